"""What the documents promise: the examples of README and the tutorials print what they show, links lead somewhere, cited
files exist, docs/api.md is what the docstrings say, and each promise of docs/security.md and docs/format.md names tests
that `make test` runs."""

import ast
import functools
import pathlib
import re

import pytest

import api_page
import walkthroughs

ROOT = pathlib.Path(__file__).parent.parent
FOLDERS = ("src", "include", "tests", "docs", "bench", "examples")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "bench" / "README.md"])


@pytest.mark.parametrize("page", walkthroughs.PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_examples_of_a_page_run_from_top_to_bottom_and_print_what_it_shows(page, tmp_path):
    """`make pages` writes what they print now."""
    assert walkthroughs.renew(page, tmp_path) == page.read_text("utf-8")


@functools.cache
def anchors(page):
    """The anchors that GitHub gives the headings of a page; the second heading of one name gets "-1" and so on."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    found = {}
    for heading in re.findall(r"^#+ (.*)", text, re.M):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found[anchor] = found.get(anchor, -1) + 1
    return {anchor + (f"-{i}" if i else "") for anchor, count in found.items() for i in range(count + 1)}


def test_links_lead_to_files_and_headings():
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
            name, _, anchor = target.partition("#")
            file = page.parent / name if name else page
            if re.match(r"https?://", target) or (file.exists() and (not anchor or anchor in anchors(file))):
                continue
            broken.append(f"{page.relative_to(ROOT).as_posix()}: {target}")
    assert not broken


OTHERS = {"models", "backend", "frontend", "passes", "optimize", "mlmodel", "ops"}  # folders of coremltools
OTHERS |= {"runtime-config", "executor-config"}  # inside of TVM's archives


def test_cited_files_exist():
    """A path in backticks exists, from the root or inside one of the source folders; a test's file anywhere in tests/."""
    bases = [ROOT, ROOT / "src" / "milblob", ROOT / "include" / "milblob", ROOT / "tests"]
    tests = {path.name for path in ROOT.glob("tests/**/*.py")}
    missing = []
    for page in PAGES:
        for cited in re.findall(r"`([\w./-]+\.(?:py|pyx|pxi|pxd|pyi|h|c|md|json))(?:::\w+)?`", page.read_text("utf-8")):
            if re.match(r"(test|reference)_\w+\.py$", cited):
                is_there = cited in tests
            else:
                folder, _, rest = cited.partition("/")
                is_there = not rest or folder in OTHERS or any((base / cited).exists() for base in bases)
            if not is_there:
                missing.append(f"{page.relative_to(ROOT).as_posix()}: {cited}")
    assert not missing


@functools.cache
def defined_tests(path):
    """The tests of a file: name -> whether `make test` runs it, or some of its cases."""
    tree = ast.parse(path.read_text("utf-8"))
    marks = [
        ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)
    ]
    return {
        node.name: not any(
            "mark.thorough" in text and "parametrize" not in text
            for text in [*marks, *map(ast.unparse, node.decorator_list)]
        )
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def cited_tests(text):
    """Yield (file, test) of what a line of a page cites; the test is None for all of a file.

    A test without a path is in the file named before it, a file without a folder anywhere in tests/.
    """
    path = None
    for file, name in re.findall(r"`(?:([\w/]+\.py)(?:::)?)?(test_\w+)?`", text):
        if file and pathlib.PurePath(file).name.startswith("test_"):
            (path,) = [
                found
                for found in ROOT.glob(f"tests/**/{pathlib.PurePath(file).name}")
                if found.as_posix().endswith(file)
            ]
        if path is not None and (name or file):
            yield path, name or None


def require_tests(row):
    """Each cited test exists; return whether `make test` runs one of them."""
    is_run = False
    for path, name in cited_tests(row):
        tests = defined_tests(path)
        assert name is None or name in tests, f"{path.name} has no {name}: {row}"
        is_run |= any(tests.values()) if name is None else tests[name]
    return is_run


def rows_of(text, column):
    """Yield the cells of each row of a page's tables that have a column of this name, and the cell in that column."""
    at = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("|") else []
        if not cells:
            at = None
        elif at is None:
            at = cells.index(column) if column in cells else len(cells) + 100
        elif at < len(cells) and not line.startswith("|---"):
            yield line, cells[at]


def test_each_promise_of_the_page_about_security_has_a_test():
    text = (ROOT / "docs" / "security.md").read_text("utf-8")
    promises = re.findall(r"^\d\. (?:.+\n)(?: {3}.+\n)*", text.partition("## Attacks")[0], re.M)
    assert len(promises) == 6
    rows = [cell for _, cell in rows_of(text, "tests")]
    assert len(rows) > 50
    for row in [*promises, *rows]:
        assert require_tests(row), f"no test that `make test` runs: {row}"


def test_each_fact_of_the_page_about_the_formats_has_a_fixture_or_a_test():
    """test_golden.py reads each fixture."""
    assert all(defined_tests(ROOT / "tests" / "test_golden.py").values())
    text = (ROOT / "docs" / "format.md").read_text("utf-8")
    rows = [*rows_of(text, "shown by"), *rows_of(text, "fixture")]
    assert len(rows) > 25
    fixtures = {path.name for path in [*ROOT.glob("tests/data/*"), *ROOT.glob("tests/data/wire/*")] if path.is_dir()}
    for line, cell in rows:
        is_read = cell == "every model" or any(
            name.split("/")[-1] in fixtures for name in re.findall(r"`([\w/]+)`", cell)
        )
        assert require_tests(cell) or is_read, f"no fixture, and no test that `make test` runs: {line}"
    for line in text.splitlines():
        require_tests(line)


def test_the_tree_names_every_folder_and_only_modules_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    tree = text[text.index("src/milblob/        the ground") :].partition("```")[0]
    package = ROOT / "src" / "milblob"
    folders = re.findall(r"^  (\w+)/ ", tree, re.M)
    assert set(folders) == {path.parent.name for path in package.glob("*/__init__.py")}


def test_the_reference_matches_the_docstrings():
    """`make pages` writes it."""
    assert api_page.page() == api_page.PAGE.read_text("utf-8")


def test_no_page_but_the_references_is_longer_than_300_lines():
    references = {"api.md", "cli.md", "onnx-operations.md", "conformance.md"}  # each written by a program, or a table
    pages = [page for page in ROOT.glob("docs/**/*.md") if page.name not in references]
    lines = {page.name: len(page.read_text("utf-8").splitlines()) for page in pages}
    assert not {name: count for name, count in lines.items() if count > 300}
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150
