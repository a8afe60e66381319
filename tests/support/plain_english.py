"""Words and forms that milblob's prose does without, and where they stand. As a program it lists them:

    .venv/bin/python tests/support/plain_english.py [PATH...]

Prose is: comments, docstrings and texts of code; the pages of the documentation without their code; names of tests.
"""

import io
import pathlib
import re
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parents[2]

# What to write instead is in CONTRIBUTING.md.
LISTED = re.compile(
    r"""\b(?: anew | behind | who(?:so)?ever | what(?:so)?ever | somebody | nobody\ else | so\ many | so\ much | reckon(?:s|ed)?
    | meanwhile | begun | lasting | told | tells? | says? | said | stands?\ for | stood\ for | goes\ on\ from | stays? | stayed
    | of\ a\ matter | which\ is\ what | (?:of|by|through)\ which | as\ \w+\ (?:has|have)\ it
    | is\ no(?!\ (?:longer|more|less|later|earlier|larger|smaller|greater|slower|faster|wider)\b)
    | it\ is\ (?:\w+\ ){1,3}that | (?:what|which|that|it|this|one|first|fits|name|only)\ counts )\b""",
    re.X | re.I,
)
# (file, a part of the line): where the word is right.
EXCEPTIONS = {
    ("tests/support/plain_english.py", ""),
}
CODE_SPAN = re.compile(r"`[^`]*`")
TEXTS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}  # the latter from Python 3.12 on
FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2\s*$", re.M | re.S)


def _blank(match):
    return re.sub(r"[^\n]", " ", match[0])


def prose_of_python(text):
    """Yield (line number, text) of comments, docstrings and texts with a space in them."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type in TEXTS and re.search(r"\s", token.string)):
            for number, line in enumerate(token.string.split("\n")):
                yield token.start[0] + number, line


def prose_of_cython(text):
    """Yield (line number, text) of comments and docstrings."""
    kept = re.sub(r'"""(.*?)"""', lambda match: match[0], text, flags=re.S)
    inside = False
    for number, line in enumerate(kept.split("\n"), 1):
        quotes = line.count('"""')
        if inside or quotes or "#" in line:
            yield number, line if inside or quotes else line[line.index("#") :]
        inside ^= quotes % 2


def prose_of_c(text):
    """Yield (line number, text) of comments and of texts with a space in them."""
    for match in re.finditer(r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)* (?:[^"\\\n]|\\.)*"', text, re.S):
        first = text.count("\n", 0, match.start()) + 1
        for number, line in enumerate(match[0].split("\n")):
            yield first + number, line


def prose_of_page(text):
    """Yield (line number, text) of a page, without code."""
    yield from enumerate(CODE_SPAN.sub(_blank, FENCE.sub(_blank, text)).split("\n"), 1)


def names_of_tests(text):
    """Yield (line number, words) of the names of tests."""
    for number, line in enumerate(text.split("\n"), 1):
        if match := re.match(r" *(?:async )?def (test_\w+)", line):
            yield number, match[1].replace("_", " ")


def sources():
    """Yield every file with prose, and what reads it."""
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix in (".py", ".pyi"):
            yield path, prose_of_python
        elif path.suffix in (".pyx", ".pxi", ".pxd"):
            yield path, prose_of_cython
    for path in sorted((ROOT / "include").rglob("*.h")):
        yield path, prose_of_c
    for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "bench" / "README.md"]:
        yield path, prose_of_page
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        yield path, names_of_tests


def listed(paths=()):
    """Yield (file, line number, the word, the line) for every listed word outside the exceptions."""
    for path, prose in sources():
        name = path.relative_to(ROOT).as_posix()
        if paths and not any(name.startswith(str(start)) for start in paths):
            continue
        if path.name == "_codec.c":
            continue
        text = path.read_text("utf-8")
        if prose is not names_of_tests and LISTED.search(text) is None:
            continue  # most files: to find their prose takes longer than to search it all
        for number, line in prose(text):
            for match in LISTED.finditer(line):
                if not any(name == file and part in line for file, part in EXCEPTIONS):
                    yield name, number, match[0], line.strip()


if __name__ == "__main__":
    for name, number, word, line in listed(sys.argv[1:]):
        print(f"{name}:{number}: {word}: {line}")
