"""Every workflow that takes arrays, with arrays that do not fit: none ends well and is silent about what it did not use."""

import json
import shutil

import numpy as np
import pytest

import milblob
from milblob.cli import main
from paths import DATA
from peers import WITHOUT
from thorough import some
from tvm_archives import params_of

DEMO = DATA.parent.parent / "examples" / "demo.mlpackage"
NAMES = ("head_weight", "head_bias", "embedding_weight")


@pytest.fixture
def model(tmp_path):
    return shutil.copytree(DEMO, tmp_path / "m.mlpackage")


def fitting():
    values = milblob.load(DEMO)
    return {name: values[name] * 2 for name in NAMES}


def with_extra(arrays):
    return arrays | {"classifier.extra": np.linspace(5, 6, 77, dtype=np.float32)}


def misspelt(arrays):
    return {"head_wieght" if name == "head_weight" else name: values for name, values in arrays.items()}


WRONG = {
    "as they should be": lambda arrays: arrays,
    "one too many": with_extra,
    "one missing": lambda arrays: {name: values for name, values in arrays.items() if name != "head_bias"},
    "a wrong shape": lambda arrays: arrays | {"head_weight": arrays["head_weight"][:-1]},
    "a wrong rank": lambda arrays: arrays | {"head_weight": arrays["head_weight"].reshape(-1)},
    "a wrong dtype": lambda arrays: arrays | {"head_weight": np.arange(arrays["head_weight"].size).reshape(arrays["head_weight"].shape)},
    "a wider dtype": lambda arrays: {name: values.astype(np.float64) for name, values in arrays.items()},
    "a name misspelt": misspelt,
    "nothing": lambda arrays: {},
    "all of it foreign": lambda arrays: {f"x.{name}": values[..., :-1] for name, values in arrays.items()},
    "not a number": lambda arrays: arrays | {"head_bias": np.full_like(arrays["head_bias"], np.nan)},
}  # fmt: skip

MAPPING = {"w": "head_weight", "b": "head_bias", "e": "embedding_weight"}


def refit(*options, mapping=None):
    def run(folder, model, arrays):
        argv = ["refit", model, arrays, *options]
        if mapping is not None:
            (folder / "map.json").write_text(json.dumps(mapping))
            argv += ["--mapping", folder / "map.json"]
        return [argv]

    return run


def match_and_refit(*options):
    """docs/cli.md: match -o, then refit --mapping."""

    def run(folder, model, arrays):
        return [
            ["match", model, arrays, "-o", folder / "found.json", *options],
            ["refit", model, arrays, "--mapping", folder / "found.json", "--cast", *options],
            ["diff", arrays, model, "--mapping", folder / "found.json", *options],
        ]

    return run


def write_mapping(folder, mapping):
    (folder / "map.json").write_text(json.dumps(mapping))
    return folder / "map.json"


FLOWS = {
    "refit": refit(),
    "refit -q": refit("-q"),
    "refit --json": refit("--json"),
    "refit --cast": refit("--cast"),
    "refit -k": refit("-k", "head*"),
    "refit -k -q": refit("-k", "head*", "-q"),
    "refit -k --json": refit("-k", "head*", "--json"),
    "refit --dry-run": refit("--dry-run", "-k", "head*"),
    "refit to a copy": lambda folder, model, arrays: [["refit", model, arrays, "-o", folder / "out.mlpackage", "-k", "head*"]],
    "refit with a mapping that leaves one out": refit(mapping={"embedding_weight": None}),
    "refit with a mapping that leaves one out -q": refit("-q", mapping={"embedding_weight": None}),
    "refit of one weight by several": refit(mapping={"embedding_weight": "head_weight"}),
    "refit of one weight by several, unshared": refit("--unshare", mapping={"embedding_weight": "head_weight"}),
    "match, refit, diff": match_and_refit(),
    "match, refit, diff -q": match_and_refit("-q"),
    "match, refit, diff --json": match_and_refit("--json"),
    "diff": lambda folder, model, arrays: [["diff", arrays, model]],
    "diff with a mapping that leaves one out": lambda folder, model, arrays: [
        ["diff", arrays, model, "--mapping", write_mapping(folder, {"embedding_weight": None})]
    ],
    "diff with a mapping that leaves one out -q": lambda folder, model, arrays: [
        ["diff", arrays, model, "-q", "--mapping", write_mapping(folder, {"embedding_weight": None})]
    ],
    "convert": lambda folder, model, arrays: [["convert", arrays, "-o", folder / "out.npz"], ["convert", arrays, "-o", folder / "out.bin"]],
    "convert to an unpacked file": lambda folder, model, arrays: [["convert", arrays, "-o", folder / "out.npz", "--unpack"]],
}  # fmt: skip


def is_mentioned(name, text, count):
    return name in text or f"{count} array" in text or f"{count} tensor" in text or f"{count:,} given" in text


def taken_of(folder, before, given):
    """The names of arrays whose values are somewhere in what was written."""
    written = {}
    for path in folder.iterdir():
        if path.name in ("out.mlpackage", "m.mlpackage", "out.npz", "weight.json", "out.json"):
            try:
                arrays = milblob.load(path) if path.suffix != ".npz" else dict(np.load(path))
            except milblob.MilblobError:
                continue
            for name, values in arrays.items():
                values = np.asarray(values)
                if path.name != "m.mlpackage" or values.tobytes() != before[name]:
                    written.setdefault(values.tobytes(), name)
    return {name for name, values in given.items() if np.asarray(values).tobytes() in written}


FORMS = ("safetensors", "directory", "params")
CASES = [(flow, wrong, "npz") for flow in FLOWS for wrong in WRONG]
CASES += [
    (flow, wrong, form)
    for flow in ("refit", "refit -k -q", "match, refit, diff -q", "convert")
    for wrong in WRONG
    for form in FORMS
    if form != "params" or wrong not in ("a wrong dtype", "a wider dtype")  # which the writer of tests lacks
]


@pytest.mark.parametrize("flow, wrong, form", some(CASES, 60))
@pytest.mark.sample(8)
def test_workflows(tmp_path, model, capsys, flow, wrong, form):
    """Exit code 0 means that every array was used, or that the output names or counts those that were not."""
    given = WRONG[wrong](fitting())
    arrays = save(tmp_path, given, form)
    before = {name: values.tobytes() for name, values in milblob.load(model).items()}
    for argv in FLOWS[flow](tmp_path, model, arrays):
        status = main([str(argument) for argument in argv])
        text = "".join(capsys.readouterr())
        assert status in (0, 1, 2)
        if status == 2:
            assert len(text.splitlines()) == 1 and text.startswith("milblob: ")
            break
        if argv[0] == "convert":  # all arrays are written, whatever they are
            assert status == 0 and f"{len(given)} tensor" in text
            assert taken_of(tmp_path, before, given) == set(given)
        elif argv[0] == "refit":
            taken = {name for name, values in given.items() if was_used(model, tmp_path, values, "--cast" in argv)}
            unused = set(given) - taken if "--dry-run" not in argv else set()
            assert status == 0 and all(is_mentioned(name, text, len(unused)) for name in unused), (argv, text, unused)
        elif status == 0:  # match found every weight, or diff found no difference
            pytest.fail(f"{argv}: three arrays for a model of 69 weights cannot be all")


def was_used(model, folder, values, is_cast):
    paths = [model, folder / "out.mlpackage"]
    for path in paths:
        if path.exists():
            for own in milblob.load(path).values():
                if (
                    own.shape == values.shape
                    and own.tobytes() == (values.astype(own.dtype) if is_cast else values).tobytes()
                ):
                    return True
    return False


def save(folder, given, form):
    if form == "npz":
        np.savez(folder / "w.npz", **given)
        return folder / "w.npz"
    if form == "directory":
        (folder / "w").mkdir()
        for name, values in given.items():
            np.save(folder / "w" / f"{name}.npy", values)
        return folder / "w"
    if form == "params":
        (folder / "w.params").write_bytes(
            params_of({name: np.ascontiguousarray(values) for name, values in given.items()})
        )
        return folder / "w.params"
    safetensors = pytest.importorskip("safetensors.numpy", reason=WITHOUT["safetensors"])
    safetensors.save_file(
        {name: np.ascontiguousarray(values) for name, values in given.items()}, folder / "w.safetensors"
    )
    return folder / "w.safetensors"


@pytest.mark.parametrize("options", [[], ["-q"], ["--json"]])
def test_what_a_mapping_leaves_out_is_counted_where_all_else_is_the_same(tmp_path, capsys, options):
    """`diff --mapping` ends with 0 where the rest is equal, and says that there was more."""
    values = {name: array for name, array in milblob.load(DEMO).items() if name in NAMES}
    np.savez(tmp_path / "a.npz", **values, more=np.ones(3, np.float32))
    np.savez(tmp_path / "b.npz", **values)
    (tmp_path / "map.json").write_text('{"more": null}')
    argv = ["diff", str(tmp_path / "a.npz"), str(tmp_path / "b.npz"), "--mapping", str(tmp_path / "map.json"), *options]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    if options == ["--json"]:
        assert json.loads(out)["left_out"] == ["more"]
    elif options == ["-q"]:
        assert (out, err) == ("", "milblob: 1 tensor of A left out by the mapping\n")
    else:
        assert out == "same: 3 tensors: 3 the same; 1 of A left out by the mapping: more\n"
    found = milblob.diff(tmp_path / "a.npz", tmp_path / "b.npz", mapping={"more": None})
    assert found.is_same and found.left_out == ["more"] and "1 of A left out by the mapping: more" in str(found)


def test_match_counts_what_has_no_weight(tmp_path, capsys):
    """Also with -q, where every weight was found."""
    values = milblob.load(DEMO)
    arrays = {name: values[name] for name in NAMES} | {"extra": np.linspace(0, 1, 50, dtype=np.float32)}
    np.savez(tmp_path / "a.npz", **arrays)
    argv = ["match", str(DEMO), str(tmp_path / "a.npz"), "-k", "head_*", "-k", "embedding_weight"]
    assert main(argv) == 0
    assert "given, not matched: 1 array" in capsys.readouterr().out
    assert main([*argv, "-q"]) == 0
    assert capsys.readouterr() == ("", "milblob: 1 array not matched\n")
    assert main([*argv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unmatched_given"] == ["extra"]


def test_convert_refuses_a_name_twice(tmp_path, capsys):
    for folder in "ab":
        np.savez(tmp_path / f"{folder}.npz", w=np.zeros(3, np.float32))
    argv = ["convert", str(tmp_path / "a.npz"), str(tmp_path / "b.npz"), "-o", str(tmp_path / "weight.bin")]
    assert main(argv) == 2 and "w" in capsys.readouterr().err and not (tmp_path / "weight.bin").exists()


UNUSED = {
    "show -f without a tensor": (["show", "MODEL", "-f", "main"], "-f: expected NAME too"),
    "show -f of no function": (["show", "MODEL", "-f", "nope"], "-f: expected NAME too"),
    "diff --names-only --atol": (["diff", "MODEL", "MODEL", "--names-only", "--atol", "1"], "--atol: expected none with --names-only"),
    "diff --names-only --rtol": (["diff", "MODEL", "MODEL", "--names-only", "--rtol", "1"], "--rtol: expected none"),
    "diff --names-only --top": (["diff", "MODEL", "MODEL", "--names-only", "--top", "3"], "--top: expected none"),
    "diff --names-only --min-sqnr": (["diff", "MODEL", "MODEL", "--names-only", "--min-sqnr", "3"], "--min-sqnr: expected none"),
    "diff --names-only --min-cosine": (["diff", "MODEL", "MODEL", "--names-only", "--min-cosine", ".3"], "--min-cosine: expected none"),
    "diff --names-only --max-abs": (["diff", "MODEL", "MODEL", "--names-only", "--max-abs", "3"], "--max-abs: expected none"),
    "diff --stored of arrays": (["diff", "ARRAYS", "ARRAYS", "--stored"], "expected a model, which stored (--stored) is about"),
    "diff --names-only --top 0": (["diff", "MODEL", "MODEL", "--names-only", "--top", "0"], "--top: expected none"),
    "diff --names-only --max-abs 0": (["diff", "MODEL", "MODEL", "--names-only", "--max-abs", "0"], "--max-abs: expected none"),
    "compress --keep-nan of integers": (["compress", "MODEL", "--int8", "--keep-nan", "-n"], "--keep-nan: expected it with palettes"),
    "compress --keep-nan of a file with a recipe of integers": (
        ["compress", "MODEL", "--config", "CONFIG", "--keep-nan", "-n"], "--keep-nan: expected it with palettes"
    ),
    "compress --keep-nan of new values as they are": (
        ["compress", "MODEL", "--weights", "ARRAYS", "--keep-nan", "-n"], "--keep-nan: expected it with palettes"
    ),
    "text --json --weights": (["text", "MODEL", "--json", "--weights", "all"], "--weights: expected none with --json"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNUSED)
def test_options_that_nothing_uses(tmp_path, model, cli, case):
    np.savez(tmp_path / "arrays.npz", **fitting())
    argv, words = UNUSED[case]
    (tmp_path / "config.toml").write_text('recipe = "int8"')
    paths = {"MODEL": model, "ARRAYS": tmp_path / "arrays.npz", "CONFIG": tmp_path / "config.toml"}
    status, out, err = cli(*(paths.get(word, word) for word in argv))
    assert (status, out) == (2, "") and words in err


def test_convert_counts_the_arrays_that_it_leaves_out(tmp_path, cli):
    np.savez(tmp_path / "arrays.npz", w=np.zeros(4, np.float32), names=np.array(["a", "b"]))
    command = ["convert", tmp_path / "arrays.npz", "-o", tmp_path / "w.bin", "--skip-unsupported", "--force"]
    assert "left out: names" in cli(*command)[2]
    assert cli(*command, "-q") == (0, "", "milblob: 1 array left out (--skip-unsupported)\n")
