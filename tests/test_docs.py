"""What the documents promise: the README's Python runs and prints what it shows, links lead somewhere, cited files
exist, and docs/api.md has every public name with its signature."""

import contextlib
import inspect
import io
import pathlib
import re
import shutil

import pytest

import milblob

ROOT = pathlib.Path(__file__).parent.parent
FOLDERS = ("src", "include", "tests", "docs", "bench", "examples")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "bench" / "README.md"])


def test_python_of_the_readme_prints_what_it_shows(tmp_path, monkeypatch):
    """Every Python block runs, in order, in a directory that has the examples; a block after it without a language is its output."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```\n(?:\n^```\n(.*?)^```)?", text, re.M | re.S)
    assert len(blocks) >= 2 and all(shown for _, shown in blocks)
    names = {}
    for code, shown in blocks:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(code, names)
        assert out.getvalue() == shown


def anchors(page):
    """The anchors that GitHub gives the headings of a page; the second heading of one name gets "-1" and so on."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    found = {}
    for heading in re.findall(r"^#+ (.*)", text, re.M):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found[anchor] = found.get(anchor, -1) + 1
    return {anchor + (f"-{i}" if i else "") for anchor, count in found.items() for i in range(count + 1)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page):
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_cited_files_exist(page):
    """A path in backticks exists, from the root or inside one of the source folders; a test's file anywhere in tests/."""
    text = page.read_text("utf-8")
    bases = [ROOT, ROOT / "src" / "milblob", ROOT / "include" / "milblob", ROOT / "tests"]
    tests = {path.name for path in ROOT.glob("tests/**/*.py")}
    for cited in re.findall(r"`([\w./-]+\.(?:py|pyx|pxi|pxd|pyi|h|c|md|json))(?:::\w+)?`", text):
        if re.match(r"(test|reference)_\w+\.py$", cited):
            assert cited in tests, cited
        elif cited.split("/")[0] in {"models", "backend", "frontend", "passes", "optimize", "mlmodel", "ops"}:
            continue  # of coremltools
        elif cited.split("/")[0] in {"runtime-config", "executor-config"}:
            continue  # inside of TVM's archives
        elif "/" in cited:
            assert any((base / cited).exists() for base in bases), cited


def test_the_tree_names_every_folder_and_only_modules_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    tree = text[text.index("src/milblob/        the ground") :].partition("```")[0]
    package = ROOT / "src" / "milblob"
    folders = re.findall(r"^  (\w+)/ ", tree, re.M)
    assert set(folders) == {path.parent.name for path in package.glob("*/__init__.py")}


API = (ROOT / "docs" / "api.md").read_text("utf-8")


def arguments_of(function):
    """The arguments of a function as docs/api.md writes them: no types, texts in double quotes."""
    words = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        text = f'"{parameter.default}"' if isinstance(parameter.default, str) else repr(parameter.default)
        words.append(parameter.name if parameter.default is parameter.empty else f"{parameter.name}={text}")
    return ", ".join(words)


@pytest.mark.parametrize("name", milblob.__all__)
def test_the_page_about_the_api_has_every_name_and_every_signature(name):
    """A section of its own; for a function, and a class whose section has a call of it, the real arguments."""
    section = re.search(rf"^## {name}\n(.*?)(?=^##? |\Z)", API, re.M | re.S)
    assert section, "docs/api.md has no section about it"
    call = re.search(rf"`{name}\(([^`]*)\)(?: -> [^`]+)?`", section[1])
    if inspect.isfunction(getattr(milblob, name)) or call:
        assert call, "its section has no line with its signature"
        assert call[1] == arguments_of(getattr(milblob, name))
