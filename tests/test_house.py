"""The house rules that a program can check."""

import ast
import itertools
import pathlib
import platform
import re
import shutil
import subprocess
import sys

import pytest

import milblob
import milblob.onnx
from c_drivers import compilers
from children import run_child
from folders import FOLDERS
from journeys import journeys
from paths import ROOT
from peers import WITHOUT
from protobuf_programs import LONG, add_const, as_model, new_program
from syntax import nodes, unparse

PACKAGE, HEADERS = ROOT / "src" / "milblob", ROOT / "include" / "milblob"
MAX_LINES = 600


def tracked():
    """Files of the repository; without git, those of the folders that are its own."""
    if shutil.which("git") and (ROOT / ".git").exists():
        listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        return [ROOT / name for name in listing.decode().split("\0") if name and (ROOT / name).is_file()]
    folders = ("src", "include", "tests", "docs", "bench", "examples")
    return [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in (".so", ".pyc")
    ]


def our_modules():
    """(path inside the package, its folder, all nodes of its syntax tree) of every Python file but those that hand out the public names."""
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        if str(inside) not in ("__init__.py", "__main__.py", "torch.py", "jax.py", "mlx.py"):
            folder = inside.parts[0] if len(inside.parts) > 1 else ""
            yield inside, folder, nodes(path)


def imported_folders(inside, every):
    """The folders of milblob that a file imports from, at any level of nesting: "" for a module of the ground."""
    package = inside.parts[:-1]
    for node in every:
        modules = []
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            modules = [(*base, *(node.module.split(".") if node.module else ()), alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "milblob":
            modules = [(*node.module.split(".")[1:], alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            modules = [tuple(name[1:]) for name in names if name[0] == "milblob" and len(name) > 1]
        for module in modules:
            yield module[0] if (PACKAGE / module[0]).is_dir() else ""


def test_imports_follow_the_order_of_folders():
    seen = set()
    for inside, folder, every in our_modules():
        assert folder in FOLDERS, f"{inside}: expected a folder that has a place in the order"
        for other in imported_folders(inside, every):
            assert FOLDERS.index(other) <= FOLDERS.index(folder), f"{inside} imports from {other}"
            seen.add((folder, other))
    assert {("model", "program"), ("cli", "rewrite"), ("storage", ""), ("analysis", "formats")} <= seen
    codec = (PACKAGE / "_codec.pyx").read_text(encoding="utf-8")
    assert set(re.findall(r"^from \.(\w+)", codec, re.M)) == {"errors"}


def foreign_privates(every):
    """(line, text) of every use of another module's underscore attribute; NamedTuple has public names of that kind."""
    own = {"_replace", "_asdict", "_fields"}
    for node in every:
        if isinstance(node, ast.ClassDef):
            own |= {item.name for item in ast.walk(node) if isinstance(item, ast.FunctionDef | ast.ClassDef)}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            own.add(node.attr)
    for node in every:
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            value = unparse(node.value)
            # A subclass may replace what its base class has for it.
            if value not in ("self", "cls", "super()") and node.attr not in own:
                yield node.lineno, unparse(node)


# coremltools' own name, which milblob.compat stands in for.
THEIRS = {
    "load._load_file_value",
    "parser._actions",
    "os._exit",
    "argparse._SubParsersAction",
}  # argparse has no public list of them


def test_no_module_uses_what_is_private_to_another():
    found = [f"{inside}:{line} {text}" for inside, _, every in our_modules() for line, text in foreign_privates(every)]
    assert [row for row in found if row.split(" ")[1] not in THEIRS] == []
    assert list(
        foreign_privates([*ast.walk(ast.parse("class A:\n    def _a(self): pass\n\nA()._a(b._b, self._c)"))])
    ) == [(4, "b._b")]


def classes_of(package):
    """{name of a class: the modules that have one}: of every public name, in Python and in Cython."""
    found = {}
    for path in sorted(package.rglob("*")):
        names = []
        if path.suffix == ".py":
            names = [node.name for node in nodes(path) if isinstance(node, ast.ClassDef)]
        elif path.suffix in (".pyx", ".pxi"):  # with ":", because one without only announces the class
            names = re.findall(r"^(?:cdef )?class (\w+)[^\n]*:$", path.read_text(encoding="utf-8"), re.M)
        for name in names:
            if not name.startswith("_"):
                found.setdefault(name, []).append(path.relative_to(package).with_suffix("").as_posix())
    return found


# As milblob.Variable and milblob.onnx.Variable: each package has public names of its own.
PUBLIC_TWICE = {"Scope": ["compressing/options", "onnx/topology"], "Variable": ["onnx/topology", "program/types"]}


def test_no_two_classes_have_one_name():
    """A reader who meets a name knows which class it is."""
    found = classes_of(PACKAGE)
    assert {"Model", "Scan", "BlobReader"} <= set(found)
    assert {name: modules for name, modules in found.items() if len(modules) > 1} == PUBLIC_TWICE
    assert set(PUBLIC_TWICE) <= set(milblob.__all__) & set(milblob.onnx.__all__)


def test_classes_of_one_name_are_found(tmp_path):
    (tmp_path / "codec").mkdir()
    (tmp_path / "one.py").write_text(
        "class Plan:\n    pass\n\ndef f():\n    class Inner(Plan):\n        pass\n", "utf-8"
    )
    (tmp_path / "two.py").write_text("class Plan: pass\nclass _Plan: pass\n", "utf-8")
    (tmp_path / "codec" / "three.pxi").write_text(
        "cdef class Plan\n@cython.final\ncdef class Inner(X):\n    pass\n", "utf-8"
    )
    assert classes_of(tmp_path) == {"Plan": ["one", "two"], "Inner": ["codec/three", "one"]}


def test_no_assertions():
    for inside, _, every in our_modules():
        lines = [node.lineno for node in every if isinstance(node, ast.Assert)]
        assert not lines, f"{inside}: assert in line {lines[0]}"


def test_what_tests_skip_without_is_installed():
    """In the environment of `make test`: a broken set-up must not hide all tests against coremltools behind a skip."""
    if not (ROOT / ".venv" / ".tools").exists() or not (ROOT / ".venv").samefile(sys.prefix):
        pytest.skip("not the environment that `make test` makes: which oracles it lacks is not looked at")
    names = set()
    for path in (ROOT / "tests").rglob("*.py"):
        names |= set(re.findall(r'importorskip\("([\w.]+)"', path.read_text("utf-8")))
    names -= {
        "torch",
        "peft",
        "transformers",
        "jax",
        "distributed",
        "ray",
        "mlx.core",
        "sphinx",
        "s3fs",
        "moto.server",
        "huggingface_hub",
        "pty",
        "fcntl",
        "termios",
    }  # never needed, or of the system
    assert {"coremltools", "gguf", "sklearn"} <= names
    has_wheels = sys.platform == "darwin" or (sys.platform, platform.machine()) == ("linux", "x86_64")
    if sys.version_info >= (3, 14) or not has_wheels:
        names = {name for name in names if not name.startswith("coremltools")}  # as pyproject.toml has it
    run_child("import importlib\nfor name in sys.argv[1:]:\n    importlib.import_module(name)", *sorted(names))


SKIPS = {"xfail", "skip", "skipif", "importorskip"}


def test_every_skip_names_what_is_not_tested():
    paths = [
        path
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(rf"\.({'|'.join(SKIPS)})\b", path.read_text(encoding="utf-8"))
    ]
    assert len(paths) > 100
    for path in paths:
        for node in nodes(path):
            is_called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            name = unparse(node.func) if is_called and node.func.attr in SKIPS else ""
            assert name not in ("pytest.xfail", "pytest.mark.xfail", "pytest.mark.skip"), f"{path.name}:{node.lineno}"
            if name in ("pytest.mark.skipif", "pytest.importorskip"):
                (reason,) = (ast.unparse(word.value) for word in node.keywords if word.arg == "reason")
                assert not reason.startswith("WITHOUT") or reason[9:-2] in WITHOUT, f"{path.name}:{node.lineno}"
            if name == "pytest.skip":
                assert node.args, f"{path.name}:{node.lineno}"


def test_tests_have_the_folders_of_the_package():
    """A reader finds the tests of a module where the module is."""
    ours = {path.name for path in (ROOT / "tests").iterdir() if any(path.glob("test_*.py"))}
    assert ours == set(FOLDERS) - {""} | {"codec"}


def test_no_test_module_imports_another():
    """What tests share is in tests/support. Code for child processes, in strings, counts too."""
    checked = 0
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        names = re.findall(r"^ *from +([\w.]+) +import ", text, re.M)
        for row in re.findall(r"^ *import +([\w., ]+)$", text, re.M):
            names += [word.split()[0] for word in row.split(",") if word.strip()]
        for name in names:
            is_test = name == "conftest" or name.rpartition(".")[2].startswith("test_")
            is_bench = (path.name, name) == ("test_bench.py", "conftest")  # a benchmark that it writes: that of bench/
            assert not is_test or is_bench, (
                f"{path.relative_to(ROOT)} imports {name}: move what both need to tests/support"
            )
            checked += 1
    assert checked > 500


def test_conftest_has_fixtures_and_hooks_only():
    tree = ast.parse((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    for node in tree.body:
        assert not isinstance(node, ast.ClassDef | ast.Assign), f"tests/conftest.py, line {node.lineno}: no fixture"
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("pytest_"):
            assert any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list), node.name


def compile_headers(standard, unit, headers):
    compiler = compilers()[standard]
    if compiler is None:
        pytest.skip("no compiler: headers are not compiled alone")
    lines = [f'#include "milblob/{header.relative_to(HEADERS).as_posix()}"' for header in headers]
    lines += ["typedef int unit;\n"]  # ISO C takes no empty one, and some headers have macros only
    unit.write_text("\n".join(lines))
    command = [compiler, f"-std={standard}", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-fsyntax-only"]
    command += ["-Wpedantic"] * (standard == "c11")  # a declaration right after a label: older clangs take none
    done = subprocess.run([*command, f"-I{ROOT / 'include'}", unit], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("standard", ["c11", "c++17"])
def test_headers_compile_twice_in_one_unit(standard, tmp_path):
    compile_headers(
        standard, tmp_path / ("all.c" if standard == "c11" else "all.cpp"), 2 * sorted(HEADERS.rglob("*.h"))
    )


@pytest.mark.thorough
def test_headers_compile_alone(tmp_path):
    headers = sorted(HEADERS.rglob("*.h"))
    assert len(headers) >= 14
    for header in headers:
        compile_headers("c11", tmp_path / f"{header.parent.name}_{header.stem}.c", [header, header])


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)


def test_headers_know_bytes_and_counts_only():
    for header in HEADERS.rglob("*.h"):
        code = without_comments(header.read_text(encoding="utf-8"))
        for word in ("Python.h", "malloc", "calloc", "realloc", "free", "printf", "alloca", "strtod", "setjmp", "goto"):
            assert not re.search(rf"\b{re.escape(word)}\b", code), f"{header.name}: {word}"
        includes = set(re.findall(r"#include [<\"]([^>\"]+)", code))
        assert all(name.startswith("milblob/") or name in {
            "stdbool.h", "stddef.h", "stdint.h", "string.h", "intrin.h", "immintrin.h", "arm_neon.h", "sys/mman.h",
            "errno.h", "stdio.h", "sys/stat.h", "sys/syscall.h", "unistd.h",
        } for name in includes), includes  # fmt: skip


def imported_modules(inside, every):
    """The modules of milblob that a file imports, at any level of nesting and for type checkers too."""
    folder = list(inside.parts[:-1])
    for node in every:
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*folder[: len(folder) - node.level + 1], *(node.module.split(".") if node.module else [])]
            for name in node.names:
                yield ".".join([*base, name.name])
                yield ".".join(base)


def test_no_modules_import_each_other():
    """Nor do more than two in a circle: a file can be read with what it imports."""
    graph = {}
    for inside, _, every in our_modules():
        graph[".".join(inside.with_suffix("").parts)] = set(imported_modules(inside, every))
    graph = {name: (found & graph.keys()) - {name} for name, found in graph.items()}
    while ends := {name for name, found in graph.items() if not found}:
        graph = {name: found - ends for name, found in graph.items() if name not in ends}
    assert graph == {}


def test_declarations_for_cython_are_used_and_exist():
    texts = (path.read_text(encoding="utf-8") for path in PACKAGE.glob("*.pxd"))
    pxd = re.sub(r"#[^\n]*", "", "\n".join(texts))
    declared = set(re.findall(r"^    [\w ]+? \*?(mb_\w+)\(", pxd, re.M))
    assert len(declared) > 10
    code = "\n".join(
        path.read_text(encoding="utf-8") for path in [PACKAGE / "_codec.pyx", *PACKAGE.glob("codec/*.pxi")]
    )
    headers = {
        path.relative_to(HEADERS).as_posix(): without_comments(path.read_text(encoding="utf-8"))
        for path in HEADERS.rglob("*.h")
    }
    everything = "\n".join(headers.values())
    used = set(re.findall(r"\b[CM]\.(\w+)", code))
    # Defined by its name, or by a macro that is given the name.
    defined = {name for names in re.findall(r" \*?(mb_\w+)\(|MB_DEFINE_\w+\((mb_\w+),", everything) for name in names}
    assert sorted(declared - defined) == [], "in no header"
    assert sorted(declared - used) == [], "declared and not used"
    assert used <= set(re.findall(r"\w+", pxd))
    for name in re.findall(r'cdef extern from "milblob/([\w/]+\.h)"', pxd):
        assert name in headers


def test_statuses_have_the_same_names_in_c_and_cython():
    enum = re.search(
        r"typedef enum mb_status \{(.*?)\}", without_comments((HEADERS / "base.h").read_text()), re.S
    ).group(1)
    pxd = (PACKAGE / "_kernels.pxd").read_text()
    assert re.findall(r"MB_\w+", enum) == re.findall(
        r"MB_\w+", pxd[pxd.index("mb_status:") : pxd.index("ctypedef struct mb_error")]
    )


def test_all_is_public_and_documented():
    assert sorted(milblob.__all__) == sorted(set(milblob.__all__))
    for name in milblob.__all__:
        assert getattr(milblob, name).__doc__ or name == "RECORD"
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in milblob.__all__:
        assert re.search(rf"^## {name}$|^\| `{name}`", text, re.M), f"docs/api.md lacks {name}"


def test_stub_of_the_codec():
    """Every public name of _codec is in its stub, and the reverse."""
    stub = PACKAGE / "_codec.pyi"
    from milblob import _codec

    listed = set()
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            listed.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            listed.add(node.target.id)
    own = {
        name
        for name, value in vars(_codec).items()
        if getattr(value, "__module__", "milblob._codec") == "milblob._codec"
    }
    own -= {"FormatError", "UnsupportedError", "program_path"}
    assert {name for name in listed if not name.startswith("_")} == {name for name in own if not name.startswith("_")}


def test_files_are_short():
    for path in PACKAGE.rglob("*.p*"):
        if path.suffix in (".py", ".pyx", ".pxi", ".pxd", ".pyi"):
            assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES, path.name
    for path in HEADERS.rglob("*.h"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES, path.name


MAKERS = {
    "arange",
    "empty",
    "eye",
    "full",
    "indices",
    "linspace",
    "meshgrid",
    "ones",
    "pad",
    "repeat",
    "tile",
    "tri",
    "zeros",
}
"""What makes arrays of any size from a few numbers."""
# Where a conversion to ONNX makes such arrays after the budget of the model has allowed them.
BOUNDED = {
    ("emit", "arange"), ("emit", "full"), ("packed", "repeat"), ("packed", "arange"),
}  # fmt: skip


def numpy_calls(every):
    """(name of the function, whether all sizes stand in the call) of every call of NumPy."""
    for node in every:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and unparse(node.func.value) == "np":
            given = [one for one in node.args if not unparse(one).startswith("np.")]  # dtypes aside
            named = {one.id for argument in given for one in ast.walk(argument) if isinstance(one, ast.Name)}
            yield node.func.attr, not named - {"bool", "object"}


def test_converters_make_arrays_through_the_container():
    """Which counts them first; and no size is multiplied in NumPy's integers, which wrap."""
    made = set()
    for inside, folder, every in our_modules():
        for name, is_fixed in numpy_calls(every):
            assert name not in ("prod", "product", "cumprod"), f"{inside}: math.prod multiplies sizes"
            if folder == "onnx" and name in MAKERS and not is_fixed:
                made.add((inside.stem, name))
    assert made == BOUNDED, "container.filled and container.numbers are bounded"


def test_import_brings_little():
    """Nothing but milblob beyond what NumPy brings; ml_dtypes, protobuf and JSON come with their first use."""
    code = """
        import numpy
        before = set(sys.modules)
        import milblob
        print(*sorted(name for name in set(sys.modules) - before if name.split(".")[0] != "milblob"))
        print(*sorted(name.split(".")[0] for name in sys.modules))
    """
    new, heavy = run_child(code).split("\n")[:2]
    new = {name for name in new.split() if "cython" not in name}  # the modules that Cython itself keeps
    new = {name for name in new if name.split(".")[0] != "importlib"}  # which Python has before, without this name
    assert new <= {"mmap", "threading", "errno", "fcntl"}, new
    assert not {"google", "coremltools", "rich", "safetensors", "ml_dtypes"} & set(heavy.split())


def test_weights_of_types_that_numpy_has_bring_no_others(tmp_path):
    """Reading one of NumPy's own types waits for no package of others; one of ml_dtypes' types brings it."""
    program, block = new_program()
    add_const(block, "w", LONG)
    path = tmp_path / "m.mlmodel"
    path.write_bytes(as_model(program))
    code = f"""
        import milblob
        with milblob.open({str(path)!r}) as model:
            model["w"].read().sum(), repr(model["w"]), model["w"].nbytes
        print("ml_dtypes" in sys.modules, milblob.DType("bfloat16").numpy.name, "ml_dtypes" in sys.modules)
        import numpy
        print(*(milblob.DType(member.numpy) is member for member in milblob.DType if member.name not in ("UINT3", "UINT6")))
    """
    first, second = run_child(code).split("\n")[:2]
    assert first.split() == ["False", "bfloat16", "True"]
    assert set(second.split()) == {"True"}


def test_no_machine_paths():
    """What is committed names no machine and no registry."""
    words = [f"/{name}/" for name in ("home", "Users", "work", "root")] + [
        "/opt" + "/w",
        "C:" + "\\Users",
        "localhost:",
        "devpi",
    ]
    checked = 0
    for path in tracked():
        data = path.read_bytes()
        if b"\0" in data[:8000] or path == pathlib.Path(__file__):
            continue
        text = data.decode("utf-8", "replace")
        checked += 1
        for word in words:
            assert word not in text, f"{path.relative_to(ROOT)}: {word}"
    assert checked > 50


def test_open_and_load_hardly_ever_call_a_later_folder():
    for name, (_, _, _, climbs) in itertools.islice(journeys(FOLDERS), 2):
        assert len(climbs) <= 8, (name, climbs)
