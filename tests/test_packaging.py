"""What the files about packaging say agrees: pyproject.toml, the recipe for conda, the workflow that publishes."""

import re
import tomllib

from paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_the_recipe_needs_what_the_package_needs():
    recipe = (ROOT / "recipe/recipe.yaml").read_text("utf-8")
    run = re.search(r"\n  run:\n((?:    - .*\n)+)", recipe)[1].replace(" ", "").splitlines()
    assert run == ["-python", *("-" + one.replace(" ", "") for one in PROJECT["project"]["dependencies"])]
    host = re.search(r"\n  host:\n((?:    - .*\n)+)", recipe)[1].replace(" ", "").splitlines()
    assert {"-" + one.replace(" ", "") for one in PROJECT["build-system"]["requires"]} <= set(host)
    assert f"- milblob = {PROJECT['project']['scripts']['milblob']}" in recipe
    assert f"license: {PROJECT['project']['license']}" in recipe


def test_publishing_is_trusted_and_attested():
    workflow = (ROOT / ".github/workflows/wheels.yml").read_text("utf-8")
    publish = workflow[workflow.index("\n  publish:") :]
    for text in (
        "id-token: write",
        "attestations: write",
        "attest-build-provenance",
        "attest-sbom",
        "attestations: true",
    ):
        assert text in publish
    assert "password" not in workflow and "secrets." not in workflow
    assert "needs: [wheels, sdist, sbom]" in publish


def test_wheels_are_made_for_each_system_and_tested():
    workflow = (ROOT / ".github/workflows/wheels.yml").read_text("utf-8")
    archs = re.findall(r"os: ([\w.-]+), archs: (\w+)", workflow)
    assert {(name.split("-")[0], arch) for name, arch in archs} == {
        ("ubuntu", "x86_64"), ("ubuntu", "aarch64"), ("macos", "x86_64"), ("macos", "arm64"), ("windows", "AMD64")
    }  # fmt: skip
    built = PROJECT["tool"]["cibuildwheel"]
    assert built["manylinux-x86_64-image"] == built["manylinux-aarch64-image"] == "manylinux_2_28"
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.wheel" in path.read_text("utf-8")]
    assert any("wheel.py --here" in command for command in built["test-command"]) and len(marked) > 10
