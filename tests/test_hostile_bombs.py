"""Files that ask for much: small bytes that would become gigabytes or hours. Each runs in a child with little memory.

The limit is on the child's address space (RLIMIT_AS); what it really used is asserted as well. The timeout is only a
guard against a hang: the inputs are chosen so that anything quadratic takes hours.
"""

# One attack per line, however long it is.

import sys

import pytest

from children import run_fork
from thorough import some

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="Linux has RLIMIT_AS and /proc: memory that hostile input takes is not limited here",
)
MIB = 1 << 20

PRELUDE = """
    import pathlib, tempfile
    from children import peak_rss_nbytes
    from hostile_bytes import *
    from hostile_bytes import field
    import milblob
    GOOD = immediate(11, [10], FLOATS)
    EMPTY = field(3, field(1, b""))  # a Value with an immediate tensor of nothing, no type: six bytes in a list
    folder = pathlib.Path(tempfile.mkdtemp())

    def text(value):
        return b"program(1.0) { func f<ios16>() { " + value + b" } -> (x); }"

    def json_package(data):
        package = write_package(folder, b"")
        (package / "Manifest.json").write_bytes(data)
        return package

    def linked_package(nbytes):
        package = json_package(b"")
        (package / "Manifest.json").rename(package / "large")
        (package / "Manifest.json").symlink_to("large")
        with open(package / "large", "r+b") as file:
            file.truncate(nbytes)
        return package
"""

# name: (expression for the source, options, what must come out: words of the error or a number of tensors, MiB allowed)
BOMBS = {
    "count of 2^32-1 records": ("b'\\xff' * 4 + b'\\2' + bytes(59) + bytes(1 << 20)", "", "records that the file has room for: expected 16384, got 4294967295", 100),
    "a million constants and more": ("model(program(const(field(3, field(3, field(1, EMPTY) * 1_100_000)))))",
                                     "constants=True", "constants: expected 1048575", 200),
    "300,000 constants": ("model(program(const(field(3, field(3, field(1, EMPTY) * 300_000)))))", "constants=True", 300_000, 500),
    "a million operations": ("model(program(*[b''] * 1_000_000))", "constants=True, stored=True", 0, 200),
    "two million blocks": ("model(program(operation(blocks=field(4, b'') * 2_000_000)))", "", "expected 1048575", 200),
    "200,000 blocks of one long name": ("model(program(operation(name='w' * 200_000, blocks=field(4, b'') * 200_000)))", "", 0, 200),
    "300,000 functions": ("model(b''.join(field(2, field(1, str(i))) for i in range(300_000)))", "", 0, 400),
    "100,000 attributes": ("model(program(operation(attributes=[(str(i), EMPTY) for i in range(100_000)])))", "constants=True", 100_000, 300),
    "a million dimensions": ("model(program(const(immediate(11, [10] + [1] * 999_999, FLOATS))))", "", "rank: expected at most 64", 300),
    "a million dimensions of 2^63": ("model(program(const(immediate(11, [None] + [1 << 63] * 1_000_000, FLOATS))))", "",
                                     "rank: expected at most 64", 400),
    "five million dimensions": ("model(program(const(field(2, field(1, field(1, 11) + field(2, 5_000_000) + field(3, b'') * 5_000_000)) + field(3, field(1, FLOATS)))))",
                                "constants=True", "dimensions of all types", 300),
    "dimensions that multiply to 2^62": ("model(program(const(immediate(11, [1 << 31, 1 << 31], FLOATS))))", "", "expected 4611686018427387904", 100),
    "a million fields of a Model": ("field(1, 8) * 1_000_000", "", "fields of one message: expected at most 100000", 100),
    "100,000 models of a pipeline": ("field(1, 8) + field(202, field(1, b'') * 100_000)", "", "fields of one message|no models|unknown", 200),
    "pipelines 100,000 deep": ("nested_fields(100_000, 1, 202)", "", "pipelines: expected at most 16 levels|fields", 200),
    "three million empty strings": ("model(program(const(immediate(2, [3_000_000], field(4, field(1, b'') * 3_000_000)))))", "constants=True", 1, 400),
    "long key, many elements": ("model(program(operation(attributes=[('k' * 200_000, field(3, field(3, field(1, EMPTY) * 200_000)))])))",
                                "constants=True", "names of all constants: expected at most 67108864", 400),
    "long name, many elements": ("model(program(const(field(3, field(3, field(1, EMPTY) * 200_000)), 'w' * 200_000)))",
                                 "constants=True", "names of all constants: expected at most 67108864", 400),
    "long function, many constants": ("model(field(1, 1) + function([const(GOOD)] * 20_000, 'f' * 20_000) + function([], 'g'))", "",
                                      "names of all constants: expected at most 67108864", 400),
    "long block path, many twins": ("model(program(*[operation('cond', 'c' * 20_000, blocks=field(4, field(3, const(GOOD))) * 20_000)]))", "",
                                    "names of all constants: expected at most 67108864", 500),
    "100,000 constants of one name": ("model(program(*[const(GOOD)] * 100_000))", "", 100_000, 600),
    "100,000 bindings of one weight": ("model(program(operation('constexpr_cast', 'w', output_type=tensor_type(11, [10]),"
                                       " inputs=field(2, field(1, 'x') + field(2, field(1, field(2, GOOD)) * 100_000)))))", "",
                                       "expected at most 128 parts of a weight, got more", 400),
    "chain of 20,000 constexpr operations": ("model(program(*[operation('constexpr_cast', f'w{i}', output_type=tensor_type(11, [10]),"
                                             " inputs=field(2, field(1, 'source_val') + field(2, field(1, field(1, f'w{i - 1}'))))) for i in range(20_000)]))", "",
                                             "constexpr operations: expected a chain of at most 32", 400),
    "a name of a million slashes": ("model(program(const(GOOD, '/' * 1_000_000)))", "", 1, 300),
    "groups": ("model(program(operation()) + b'\\x53' * 1_000_000)", "", "groups: expected at most 200", 100),
    "Manifest 100,000 deep": ("json_package(b'[' * 100_000)", "", "nesting too deep", 100),
    "Manifest of many objects": ("json_package(b'[' + b'{},' * 5_000_000 + b'{}]')", "", "expected a key itemInfoEntries", 600),
    "Manifest too large": ("json_package(b' ' * (17 << 20))", "", "expected at most 16777216 bytes", 150),
    "Manifest that is a link to what is too large": ("linked_package(400 << 20)", "", "expected at most 16777216 bytes", 150),
    "text, types nested": ("text(b'list<' * 1_000_000)", "", "at most 100 levels", 150),
    "text, blocks nested": ("text(b'cond() { ' * 1_000_000)", "", "at most 100 levels", 150),
    "text, lists nested": ("text(b'tensor<fp16, [1]> x = const()[val = tensor<fp16, [1]>(' + b'[' * 1_000_000)", "", "nested lists", 150),
    "text that unfolds": ("text(b'list<tuple<' + b','.join([b'list<int32,?>'] * 30) + b'>, ?> x = const()[val = list<tuple<'"
                          " + b','.join([b'list<int32,?>'] * 30) + b'>, ?>([' + b','.join([b'(' + b','.join([b'[]'] * 30) + b')'] * 30_000) + b'])];')",
                          "", 0, 400),
    "text, long number": ("text(b'fp32 x = const()[val = fp32(' + b'9' * 5_000_000 + b')];')", "", "fp32", 150),
    "text, long exponent": ("text(b'fp32 x = const()[val = fp32(1e' + b'9' * 5_000_000 + b')];')", "", "fp32", 150),
}  # fmt: skip


@pytest.mark.every
@pytest.mark.parametrize("name", some(BOMBS, named=[name for name in BOMBS if name != "a million dimensions of 2^63"]))
def test_bomb(name):
    source, options, outcome, allowed = BOMBS[name]
    code = (
        PRELUDE
        + f"""
    source = {source}
    before = peak_rss_nbytes()
    try:
        with milblob.open(source{", " + options if options else ""}) as opened:
            outcome = str(len(opened))
            "no such name" in opened
            first = next(iter(opened.values()), None)
            if first is not None:
                first.nbytes, first.consumers, first.parts, first.where, first.compression
                first.read()
    except milblob.MilblobError as error:
        outcome = str(error)
        assert len(outcome) < 2000
    print((peak_rss_nbytes() - before) >> 20, outcome)
    """
    )
    used, _, got = run_fork(code, timeout=90, memory_nbytes=2500 * MIB).strip().partition(" ")
    if isinstance(outcome, int):
        assert got == str(outcome)
    else:
        assert any(words in got for words in outcome.split("|")), got
    assert int(used) <= allowed, f"{used} MiB"
