"""The kernels without Python: small C programs under AddressSanitizer and UndefinedBehaviorSanitizer (tests/c)."""

import os
import re
import runpy
import shutil
import subprocess
import sys

import pytest

import reference
from c_drivers import INCLUDES, SANITIZERS, check_printed, compilers, corpus, tensor_value_files
from children import run_child
from compiled import compile_kept
from hostile_bytes import const, field, immediate, list_value, model, program
from once import once
from paths import DATA, ROOT
from thorough import sized

EVERY_NTH = str(sized(17, 1))
"""The changes that midway.c makes: of each operation and tier every 17th one, of the next tier others."""


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory):
    """A function that compiles C into the program, or the object, of a name, once for all workers; returns its path."""
    compiler = compilers()["c11"]
    folder = tmp_path_factory.mktemp("c")
    (folder / "probe.c").write_text("int main(void) { return 0; }\n")
    if compiler is None or sys.platform == "win32":
        pytest.skip("no C compiler: the kernels are not run under sanitizers")
    probe = subprocess.run(
        [compiler, *SANITIZERS, folder / "probe.c", "-o", folder / "probe"], capture_output=True, check=False
    )
    if probe.returncode != 0 or subprocess.run([folder / "probe"], capture_output=True, check=False).returncode != 0:
        pytest.skip("the compiler lacks AddressSanitizer: the kernels are not run under it")

    def one(name, *arguments):
        command = [compiler, "-std=c11", "-g1", *arguments]
        return once(tmp_path_factory, name, lambda path: compile_kept(command, path, name))

    return one


@pytest.fixture(scope="session")
def build(compile_c, tmp_path_factory):
    """A function that builds tests/c/NAME.c and returns the program's path. The kernels are compiled once for all.

    With -Og: at -O1 the sanitizers' checks make gcc take twice as long or longer, and the programs run as long.
    """
    options = ["-Wall", "-Wextra", "-Wconversion", "-Werror", *SANITIZERS, *INCLUDES]
    unit = tmp_path_factory.mktemp("kernels") / "kernels.c"
    unit.write_text('#include "milblob/kernels.h"\n')

    def one(name, *sources):
        kernels = compile_c("kernels.o", "-Og", *options, "-DMB_TIERS_HERE", "-c", unit)
        sources = sources or [ROOT / "tests" / "c" / f"{name}.c"]
        return compile_c(name, "-Og", *options, "-DMB_TIERS_ELSEWHERE", *sources, kernels, "-pthread")

    return one


def run(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="session")
def tensor_values(tmp_path_factory):
    return tensor_value_files(tmp_path_factory.mktemp("values"))


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """Program messages: of the fixtures' model files, and those of wire/; equal ones once."""
    folder = tmp_path_factory.mktemp("programs")
    found = {path.read_bytes(): path for path in sorted(DATA.glob("wire/*/program.pb"))}
    for number, path in enumerate(sorted(DATA.glob("*/**/model.mlmodel"))):
        try:
            fields = reference.read_fields(path.read_bytes())
        except ValueError:
            continue
        for _, _, body in [row for row in fields if row[0] == 502 and row[1] == 2]:
            if len(body) < 12_000 and body not in found:
                found[body] = folder / f"{number}-{len(found)}.pb"
                found[body].write_bytes(body)
    assert len(found) > 40
    return list(found.values())


@pytest.fixture(scope="session")
def changes(tmp_path_factory):
    """Inputs of tests/c/between.c, made once for all workers."""
    seeds = runpy.run_path(str(ROOT / "tests" / "fuzz" / "seeds.py"))
    operations = re.search(r"OPERATIONS = (\d+)", (ROOT / "tests/c/changing.h").read_text(encoding="utf-8"))
    assert operations is not None and int(operations[1]) == seeds["OPERATIONS"]
    folder = once(tmp_path_factory, "changes", lambda path: seeds["write"](path, "between", seeds["changes"]()))
    files = sorted((folder / "between").iterdir())
    assert len(files) > 500
    return files


def test_scan_program(build, programs):
    run([build("scan_program"), "--whole", *corpus("program")])
    run([build("scan_program"), *programs])
    run([build("scan_program"), "--mutate", sized(8, 1500), 1, *programs])


def test_scan_of_deep_nesting(build, tmp_path):
    value = immediate(11, [10], field(1, field(1, bytes(40))))
    for _ in range(150):
        value = list_value([value])
    path = tmp_path / "deep.pb"
    path.write_bytes(program(const(value)))
    assert model(b"")
    run([build("scan_program"), path])
    run([build("scan_program"), "--mutate", sized(100, 3000), 2, path])


def test_walk_blob(build):
    run([build("walk_blob"), "--whole", *corpus("blob")])
    files = [path for path in sorted(DATA.glob("blob_*/weight.bin")) if path.stat().st_size < 20_000]
    assert len(files) > 4
    run([build("walk_blob"), *files])
    run([build("walk_blob"), "--mutate", sized(50, 4000), 3, *files])


def test_walk_params(build, tmp_path):
    run([build("walk_params"), "--whole", *corpus("params")])
    files = []
    seeds = runpy.run_path(str(ROOT / "tests" / "fuzz" / "seeds.py"))
    for number, data in enumerate(seeds["params"]()):
        files.append(tmp_path / f"{number}.params")
        files[-1].write_bytes(data)
    assert len(files) > 100
    run([build("walk_params"), *files[::5]])
    run([build("walk_params"), "--mutate", sized(20, 600), 10, *files])


def test_walk_mlir(build):
    files = sorted(DATA.glob("aimodel/*/main.mlirb"), key=lambda path: path.stat().st_size)
    assert len(files) > 60
    run([build("walk_mlir"), "--whole", *corpus("mlir")])
    run([build("walk_mlir"), *files[::12]])
    run([build("walk_mlir"), "--mutate", sized(60, 4000), 12, *files])


def test_store_blob(build, tmp_path):
    run([build("store_blob"), "--whole", *corpus("store")])
    files = [path for path in sorted(DATA.glob("blob_*/weight.bin")) if path.stat().st_size < 1_000]
    assert files
    for nbytes in (0, 1, 7, 8, 9, 33, 4095, 4096, 4097, 9001):  # a range error is looked for in blocks of 4096
        files.append(tmp_path / f"{nbytes}")
        files[-1].write_bytes(
            bytes(nbytes - nbytes // 50) + bytes(range(1, 1 + nbytes // 50))
            if nbytes < 5000
            else bytes(nbytes - 1) + b"\xff"
        )
    run([build("store_blob"), *files[:-4]])
    run([build("store_blob"), "--mutate", sized(10, 200), 6, *files])


def test_tensor_value(build, tensor_values):
    run([build("tensor_value"), "--whole", *corpus("tensor")])
    run([build("tensor_value"), *tensor_values])
    run([build("tensor_value"), "--mutate", sized(133, 4000), 4, *tensor_values])


def test_varints(build, tensor_values):
    run([build("varint"), "--whole", *corpus("varint")])
    run([build("varint"), "--whole", *tensor_values])
    run([build("varint"), "--mutate", sized(8, 600), 8, *tensor_values])


def test_sub_byte(build, tmp_path):
    run([build("sub_byte"), "--whole", *corpus("sub_byte")])
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(256)) * 2)
    run([build("sub_byte"), path])
    path.write_bytes(b"\x21" + bytes(4100) + bytes(range(100)))  # a range error is looked for in blocks of 4096
    run([build("sub_byte"), "--mutate", sized(12, 1000), 9, path])


def test_comparing(build):
    run([build("compare"), *corpus("compare")])
    check_printed(run([build("compare")]), "compare")


def test_casts(build):
    run([build("cast"), *corpus("cast")])
    check_printed(run([build("cast")]), "cast")


def test_statistics(build):
    run([build("statistics"), *corpus("statistics")])


def test_compressing(build):
    run([build("compress"), *corpus("compress")])


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["compress", "decode", "statistics"])
def test_kernels_give_the_same_bits_everywhere(build, name):
    check_printed(run([build(name)]), name)


def test_vector_registers_are_clear_after_kernels(compile_c):
    run(
        [
            compile_c(
                "registers",
                "-O3",
                "-Wall",
                "-Wextra",
                "-Wconversion",
                "-Werror",
                *INCLUDES,
                ROOT / "tests/c/registers.c",
            )
        ]
    )


def test_decoding(build):
    run([build("decode"), *corpus("decode")])


def test_packed_bits_and_varints(build):
    run([build("packed")])


def test_sources_that_change_between_two_passes(build, changes):
    """Every kernel that fills what another pass has counted: all of it and no more, or an error."""
    run([build("changing"), "between", "--whole", *corpus("between"), *changes])
    run([build("changing"), "between", "--mutate", sized(1, 60), 10, *changes[:: sized(4, 1)]])


def test_sources_that_change_in_the_middle_of_a_pass(build):
    run([build("changing"), "midway", EVERY_NTH])


def test_sources_that_another_thread_keeps_changing(build):
    run([build("changing"), "races", sized(2, 300)])


DEFECTS = {
    "between": {
        "a tail that trusts the count": (
            "kernels/varint.h", "            if (mb_varint_length_of(value) > (uint64_t)(end - at)) return",
            "            if (mb_varint_length_of(value) > (uint64_t)(end - at) && !IS_BROKEN) return",
        ),
        "a count that nobody compares": (
            "wire/pack.h", "src, count) == nbytes) return MB_OK;", "src, count) == nbytes || IS_BROKEN) return MB_OK;",
        ),
        "an output whose size is not looked at": (
            "wire/pack.h", "} else if (nbytes == mb_pack_nbytes(tier, kind, src, count)) {",
            "} else if (nbytes == mb_pack_nbytes(tier, kind, src, count) || IS_BROKEN) {",
        ),
        "chunks that are not counted down": (
            "wire/tensor.h", "if (chunk.nbytes > nbytes_left) return", "if (chunk.nbytes > nbytes_left && !IS_BROKEN) return",
        ),
        "strings that are not counted down": (
            "wire/tensor.h", "if (strings_left-- == 0) return", "if (strings_left-- == 0 && !IS_BROKEN) return",
        ),
        "set bits that are not counted again": (
            "kernels/decode.h", "if (ones > source->count - source->rank) return",
            "if (ones > source->count - source->rank && !IS_BROKEN) return",
        ),
        "an expansion that believes its bits": (
            "kernels/expand.h", "!= 0 && next < src_count;", "!= 0 && (next < src_count || IS_BROKEN);",
        ),
        "prefixes past their table": (
            "wire/splice.h", "if (level->row < capacity) rows", "if (level->row < capacity || IS_BROKEN) rows",
        ),
        "rows past their table": (
            "program/program.h", "if (scan->op_count < scan->op_capacity) scan->ops[scan->op_count] = scan->current;",
            "if (scan->op_count < scan->op_capacity || IS_BROKEN) scan->ops[scan->op_count] = scan->current;",
        ),
        "bools that may be more than 1": ("kernels/varint.h", "if (seen > 1) break;", "if (seen > 1 && !IS_BROKEN) break;"),
    },
    "midway": {
        "a search that has no end": (
            "kernels/subbyte.h",
            "i = 0; bad && i < some; i++) {\n            if ((uint8_t)(block[i] + shift) <= span) continue;",
            "i = 0; bad && (i < some || IS_BROKEN); i++) {\n"
            "            if ((uint8_t)((IS_BROKEN ? src[done + i] : block[i]) + shift) <= span) continue;",
        ),
        "elements that are read again once they were checked": (
            "kernels/subbyte.h", "        switch (nbits) { /* each",
            "        if (IS_BROKEN) memcpy(block, src + done, (size_t)some);\n        switch (nbits) { /* each",
        ),
        "small elements that are read again": (
            "kernels/varint.h", "const uint64_t low = (uint64_t)a |", "const uint64_t low = (uint64_t)(IS_BROKEN ? (uint8_t)src[i] : a) |",
        ),
        "a tag that is read again": (
            "wire/splice.h", "inner->prefix = wire.prefix;",
            "inner->prefix = wire.prefix;\n"
            "if (IS_BROKEN) { const uint8_t *tag = wire.tag; while (*tag >= 0x80) tag++; inner->prefix = tag + 1; }",
        ),
    },
}  # fmt: skip
"""Defects that the drivers are for: (header, what stands there, what stands there if IS_BROKEN brings the defect)."""
NUMBERS = {defect: number for number, defect in enumerate([*DEFECTS["between"], *DEFECTS["midway"]], 1)}

CHOICE = """
int atoi(const char *); /* not included: midway.c says first what it wants of the system's headers */
char *getenv(const char *);
static int broken;
__attribute__((constructor)) static void choose(void) { broken = atoi(getenv("BROKEN")); }
"""


@pytest.fixture(scope="session")
def changing_with_defects(compile_c, tmp_path_factory):
    """The program of changing.c, on a copy of the headers with all defects, of which $BROKEN chooses one; 0: none."""
    folder = tmp_path_factory.mktemp("defects")
    shutil.copytree(ROOT / "include", folder / "include")
    (folder / "choice.h").write_text(CHOICE)

    def replace(header, right, wrong):
        path = folder / "include" / "milblob" / header
        text = path.read_text(encoding="utf-8")
        assert text.count(right) == 1, right
        path.write_text(text.replace(right, wrong), encoding="utf-8")

    for defects in DEFECTS.values():
        for defect, (header, right, wrong) in defects.items():
            replace(header, right, wrong.replace("IS_BROKEN", f"(broken == {NUMBERS[defect]})"))
    # All of them are in plain code: one tier is enough to see them, and without the others it compiles faster.
    replace("kernels.h", "int mb_tier_usable(void) {", "int mb_tier_usable(void) {\n    return 1;")
    replace("kernels/x86/float.h", "#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)", "#if 0")
    options = ["-Og", "-fsanitize=address", f"-I{folder / 'include'}", *INCLUDES, "-include", folder / "choice.h"]
    return compile_c("changing_with_defects", *options, ROOT / "tests/c/changing.c", "-pthread")


def run_defect(program, driver, number, changes):
    inputs = ["--whole", *changes] if driver == "between" else ["1"]  # all of them: a defect may show in one alone
    environment = {**os.environ, "BROKEN": str(number)}
    return subprocess.run(
        [program, driver, *inputs], capture_output=True, text=True, timeout=300, check=False, env=environment
    )


@pytest.mark.thorough
@pytest.mark.parametrize(("driver", "defect"), [(driver, defect) for driver in DEFECTS for defect in DEFECTS[driver]])
def test_drivers_see_each_defect_that_they_are_for(changing_with_defects, changes, driver, defect):
    """In a copy of the headers. Without this they could pass for no reason."""
    done = run_defect(changing_with_defects, driver, NUMBERS[defect], changes)
    assert done.returncode != 0 and re.search("broken promise|AddressSanitizer", done.stderr), done.stderr[-2000:]


@pytest.mark.thorough
@pytest.mark.parametrize("driver", DEFECTS)
def test_the_copy_without_a_defect_keeps_every_promise(changing_with_defects, changes, driver):
    done = run_defect(changing_with_defects, driver, 0, changes)
    assert done.returncode == 0, done.stderr[-2000:]


def test_splice(build, programs, tmp_path):
    run([build("splice_edits"), "--whole", *corpus("splice")])
    run([build("splice_edits"), *programs[:: sized(10, 1)]])
    run([build("splice_edits"), "--mutate", sized(3, 1500), 6, *programs])
    deep = b"\x08\x01"
    for _ in range(1500):
        deep = field(1, deep)
    path = tmp_path / "deep.pb"
    path.write_bytes(deep)
    run([build("splice_edits"), "--mutate", sized(4, 3000), 7, path])


def test_text(build):
    text = DATA / "opset_ios16_fp16/model.mlmodelc/model.mil"
    run([build("text_to_program"), "--truncate", 7, text])
    run([build("text_to_program"), "--mutate", sized(500, 15000), 5, text])


def test_text_of_the_corpus(build):
    folder = ROOT / "tests" / "fuzz"
    run([build("fuzz_text", folder / "fuzz_text.c", folder / "standalone.c"), *corpus("text")])


@pytest.mark.parametrize("name", ["public", "python"])
def test_python_on_the_corpus(name):
    code = """
        import os, runpy
        sys.argv[1:1] = ["--replay"]
        sys.argv[0] = sys.argv.pop(2)
        sys.path.insert(0, os.path.dirname(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")
    """
    files = corpus(name)
    out = run_child(code, ROOT / f"tests/fuzz/fuzz_{name}.py", *files)
    assert out.splitlines()[-1] == f"{len(files)} inputs"


def test_every_harness_has_a_corpus():
    harnesses = {path.stem.removeprefix("fuzz_") for path in (ROOT / "tests" / "fuzz").glob("fuzz_*.*")}
    assert harnesses == {path.name for path in (ROOT / "tests" / "fuzz" / "corpus").iterdir()}


def test_a_broken_promise_is_seen(build, tmp_path):
    """The drivers can fail: without its bounds, the quick decoder writes past its array."""
    header = (ROOT / "include/milblob/kernels/varint.h").read_text(encoding="utf-8")
    broken = (
        header.replace(" && bad == 0)", ")")
        .replace("while (bad == 0 && left >= 8 && ", "while (")
        .replace(" && to[k] < limit[k]", "")
    )
    assert "limit[k])" not in broken and "bad == 0" not in broken
    shutil.copytree(ROOT / "include", tmp_path / "include")
    (tmp_path / "include/milblob/kernels/varint.h").write_text(broken, encoding="utf-8")
    build("tensor_value")  # skips where there are no sanitizers
    program_path, value = tmp_path / "broken", tmp_path / "value.pb"
    includes = [f"-I{tmp_path / 'include'}", f"-I{ROOT / 'tests' / 'c'}"]
    subprocess.run(
        [
            compilers()["c11"],
            "-std=c11",
            "-g",
            *SANITIZERS,
            *includes,
            ROOT / "tests/c/tensor_value.c",
            "-o",
            program_path,
        ],
        check=True,
    )
    value.write_bytes(field(2, field(1, b"\1" * 63 + b"\x80" * 10_000 + b"\1")))
    done = subprocess.run([program_path, value], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "heap-buffer-overflow" in done.stderr


@pytest.mark.parametrize(
    ("header", "right", "wrong", "message"),
    [
        ("dtype.h", 'X(UINT3, "uint3", 39, 12, 3,', 'X(UINT3, "uint3", 39, 12, 5,', "give it a case in this switch"),
        ("kernels.h", "    MB_TIER_COUNT\n", "    MB_TIER_NEW,\n    MB_TIER_COUNT\n", "ask the CPU for it in this function"),
        ("kernels.h", "#endif\n};\n\n", "#endif\n{0}};\n\n", "as many rows as enum mb_tier_row has"),
    ],
    ids=["width", "tier", "row"],
)  # fmt: skip
def test_what_is_new_in_a_table_stops_the_compiler(header, right, wrong, message, tmp_path):
    """A width that kernels do not know was packed as if it had six bits; a tier ran without a look at the CPU."""
    shutil.copytree(ROOT / "include", tmp_path / "include")
    path, unit = tmp_path / "include" / "milblob" / header, tmp_path / "unit.c"
    text = path.read_text(encoding="utf-8")
    assert text.count(right) == 1
    path.write_text(text.replace(right, wrong), encoding="utf-8")
    unit.write_text('#include "milblob/kernels.h"\n')
    compiler = compilers()["c11"]
    if compiler is None or sys.platform == "win32":
        pytest.skip("no gcc or clang: that a new width, tier or row stops the compiler is not tested")
    command = [compiler, "-std=c11", "-fsyntax-only", f"-I{tmp_path / 'include'}", unit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and message in done.stderr
