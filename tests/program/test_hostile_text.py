"""Bad MIL texts, numbered: each ends in a FormatError with its line and column.

Truncations and mutations of good texts are tried by `tests/c/text_to_program.c`, which `codec/test_c_drivers.py::test_text`
runs, and by `tests/fuzz/fuzz_text.c`; Programs that text cannot hold are in test_write_text.py.
"""

# One attack per line, however long it is.

import pytest

import milblob

# number, text, words, where
BAD_TEXTS = [
    (1, "program(1.0)", "expected {, got the end", "line 1 column 13"),
    (2, "program(1.0)\n{\n  func", "expected the name of a function, got the end", "line 3 column 7"),
    (3, "program(1.0)\n{\n  func main<ios16>() { fp99 x = const()[val = fp99(1)]; } -> (x);\n}", "expected a type, got 'f'", "line 3"),
    (4, "program(18446744073709551616.0) {}", "a version", "line 1 column 9"),
    (5, "program(1.0) { func f<ios16>() { int8 x = const()[val = int8(128)]; } -> (x); }", "int8", "line 1 column 62"),
    (6, "program(1.0) { func f<ios16>() { fp16 x = const()[val = fp16(0x1p+16)]; } -> (x); }", "fp16", "line 1 column 62"),
    (7, "program(1.0) { func f<ios16>() { tensor<fp16, [3]> x = const()[val = tensor<fp16, [3]>([1, 2])]; } -> (x); }",
     "expected 3, got 2", "line 1"),
    (8, "program(1.0) { func f<ios16>() { string x = const()[val = string(\"a)]; } -> (x); }", "a closing quote", "line 1"),
    (9, "program(1.0) { func f<ios16>() { tensor<fp16, [4294967296, 4294967296]> x = const()"
     "[val = tensor<fp16, [4294967296, 4294967296]>([])]; } -> (x); }", "number of elements of a tensor type", "line 1"),
    (10, "program(1.0) { func f<ios16>() { " + "list<" * 100_000, "types: expected at most 100 levels", "line 1"),
    (11, "program(1.0) { func f<ios16>() { " + "cond() { " * 100_000, "blocks: expected at most 100 levels", "line 1"),
    (12, "program(1.0) { func f<ios16>() { tensor<fp16, [" + "1, " * 1000, "tensor type: expected 100 dimensions, got 101", "line 1"),
    (13, "program(1.0) { func f<ios16>() { tensor<fp16, [1, 1]> x = const()[val = tensor<fp16, [1, 1]>(" + "[" * 100_000,
     "nested lists: expected 2", "line 1"),
    (14, "program(1.0) { func f<ios16>() { } -> (); } x", "expected the end of the text, got 'x'", "line 1"),
]  # fmt: skip


@pytest.mark.every
@pytest.mark.parametrize(("number", "text", "words", "where"), BAD_TEXTS, ids=[row[0] for row in BAD_TEXTS])
def test_bad_text(number, text, words, where):
    with pytest.raises(milblob.FormatError) as caught:
        milblob.open(text.encode())
    assert words in str(caught.value)
    assert caught.value.where.startswith(where)
    assert caught.value.offset is not None and caught.value.offset <= len(text)
