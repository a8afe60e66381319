"""Tables on terminals of every width: no row is wider, no two names look the same; in a pipe everything is in full."""

import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import milblob
import tvm_archives
from children import child_environment
from hostile_bytes import const, field, immediate, model, program, write_package
from milblob.cli import main
from milblob.cli.terminal import output, patterns
from milblob.cli.terminal.folding import fold_names, width_of
from paths import DATA, DEMO
from peers import WITHOUT
from thorough import share, sized, some

WIDTHS = (60, 80, 100, 200)
FLOAT32 = 11

NAMES = {
    "middle": [
        f"model_layers_{layer}_self_attn_{part}_proj_weight_to_fp16_palettized"
        for layer in range(12)
        for part in ("q", "k", "v", "o")
    ],
    "end": [f"{'text_encoder_' * 6}final_layer_norm_{i}" for i in range(12)],
    "start": [f"{i}_{'of_the_long_backbone_' * 5}weight" for i in range(12)],
    "everywhere": [
        f"{who}_{'a_stretch_that_all_have_' * n}block_{i}_{'another_one_' * n}{what}"
        for who, i, n, what in itertools.product(
            ("encoder", "decoder"), (1, 12), (1, 4), ("weight", "bias", "weight_q")
        )
    ],
    "wide": [f"重み_{i}_{'とても長い名前' * 6}_{end}" for i in range(4) for end in ("左", "右")],
    "one word": ["x" * n + c + "y" * (150 - n) for n in (10, 75, 140) for c in "abc"],
    "beginnings": ["w" * n for n in range(20, 140, 10)],
}

# Runs many commands, each after a line that says which; what it exits with.
CODE = """
import sys
from milblob.cli import main
for argv in map(str.split, sys.argv[1:]):
    print("@@", *argv, flush=True)
    status = main(argv)
    assert status in (0, 1), (argv, status)
    sys.stdout.flush()
"""


def named_package(folder, names, fill):
    """A package with a tensor of ten numbers for each name."""
    folder.mkdir(parents=True)
    ops = [
        const(immediate(FLOAT32, [10], field(1, field(1, np.full(10, fill + i, "<f4").tobytes()))), name)
        for i, name in enumerate(names)
    ]
    return write_package(folder, model(program(*ops)))


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """Command lines, without spaces inside of words: every command that prints tables, over models of many kinds."""
    folder = tmp_path_factory.mktemp("tables")
    found = []
    for key, names in NAMES.items():
        key = key.replace(" ", "_")
        a = named_package(folder / key, names, 1)
        b = named_package(folder / f"{key}_other", [*names[1:], f"{names[0]}_renamed"], 3)
        np.savez(folder / f"{key}.npz", **{name.replace("/", "."): array for name, array in milblob.load(a).items()})
        found += [f"ls {a}", f"ls {a} -v", f"ls {a} -p", f"stats {a}", f"stats {a} -v", f"diff {a} {b}"]
        found += [f"diff {a} {b} -v", f"match {folder / key}.npz {a}", f"match {folder / key}.npz {b}"]
        found += [f"show {a} {names[-1]}", f"show {a}", f"repack {a} -o {folder}/x.mlpackage -n -v", f"check {a}"]
        found += [f"ls {folder / key}.npz", f"show {folder / key}.npz {names[-1]}"]
    samples = [DEMO, *(DATA / f"{name}/model.mlpackage" for name in (
        "palette_4bit", "sparse_quantized", "matrix_chains", "matrix_palettes", "optimize_ios18", "functions", "pipeline",
    )), DATA / "blob_all_dtypes/weight.bin"]  # fmt: skip
    for path in samples:
        found += [f"ls {path}", f"ls {path} -v", f"ls {path} --stored", f"ls {path} -p", f"show {path}"]
        found += [f"stats {path}", f"stats {path} -v", f"check {path} -v", f"diff {path} {path} -v"]
        found += [f"stats {path} --histogram", f"repack {path} -o {folder}/y{path.suffix} -n -v"]
        with milblob.open(path) as opened:
            found += [f"show {path} {name}" for name in list(opened)[:3]]
    tvm_archives.make(folder / "model.tar", tvm_archives.files_of())
    return [*found, f"tvm ls {folder}/model.tar", f"tvm ls {folder}/model.tar -v", f"show {folder}/model.tar"]


def on_a_terminal(argv, columns, env):
    """Run CODE with a terminal as stdout; return what it printed there."""
    pty, fcntl, termios = (pytest.importorskip(name, reason=WITHOUT["pty"]) for name in ("pty", "fcntl", "termios"))
    ours, theirs = pty.openpty()
    size = b"".join(number.to_bytes(2, sys.byteorder) for number in (40, columns, 0, 0))
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    environment = {key: value for key, value in child_environment().items() if key not in ("COLUMNS", "NO_COLOR")}
    environment |= {"TERM": "xterm", "PYTHONIOENCODING": "utf-8", **env}
    with subprocess.Popen(
        [sys.executable, "-c", CODE, *argv], stdout=theirs, stderr=subprocess.PIPE, env=environment
    ) as child:
        os.close(theirs)
        out = b""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while chunk := os.read(ours, 1 << 16):
                out += chunk
        errors = child.stderr.read()
    os.close(ours)
    assert child.returncode == 0, errors.decode()
    return out.decode().replace("\r\n", "\n")


def columns_of(line):
    """The columns of a terminal that a line takes, by a count of this file's own."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


def by_command(text):
    """(command, its lines) without colours."""
    for part in re.sub(r"\x1b\[[0-9;]*m", "", text).split("@@ ")[1:]:
        command, _, rest = part.partition("\n")
        yield command, [line.rstrip() for line in rest.splitlines()]


def first_table(lines):
    """The cells of the first column of a listing; columns are two spaces apart."""
    rows = list(itertools.takewhile(bool, lines[1:]))
    return [row.split("  ")[0] for row in rows if not row.startswith(("─", "No room for", "  "))]


def names_in(command):
    """What a listing of a model or file must tell apart; None for commands that list something else."""
    words = command.split()
    if words[0] not in ("ls", "stats") or "-p" in words or "--histogram" in words:
        return None
    path = words[1]
    if path.endswith(".npz"):
        with np.load(path) as arrays:
            return list(arrays)
    with milblob.open(path, stored="--stored" in words) as opened:
        return list(opened)


WITHOUT_RICH = "raise ImportError\n"


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals here: output to a terminal is not tested")
@pytest.mark.parametrize(
    ("width", "kind"),
    # Two ways of laying out a table, each at every width; whether there are colours decides nothing about its layout.
    some([*itertools.product(WIDTHS, ["rich", "without rich"]), (80, "no colour"), (60, "dumb")], 2),
)
def test_no_row_is_wider_than_the_terminal(commands, width, kind, tmp_path):
    """An eighth of the commands at a time, of all models; `make thorough` runs all of them each time."""
    commands = share(commands, WIDTHS.index(width) + 3 * (kind == "without rich"), 8)
    env = {"rich": {}, "no colour": {"NO_COLOR": "1"}, "dumb": {"TERM": "dumb"}, "without rich": {}}[kind]
    if kind == "without rich":
        (tmp_path / "rich.py").write_text(WITHOUT_RICH)
        env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), child_environment()["PYTHONPATH"]])}
    text = on_a_terminal(commands, width, env)
    assert ("\x1b[36m" in text) == (kind == "rich")
    checked = 0
    for command, lines in by_command(text):
        for line in lines:
            assert columns_of(line) <= width, f"milblob {command}\n{line}"
        names = names_in(command)
        if names:
            shown = first_table(lines)
            assert len(shown) == len(names), command
            assert len(set(shown)) == len(set(names)), f"milblob {command}\n" + "\n".join(lines)
            for name, form in zip(names, shown, strict=True):  # what is shown is of that name
                parts = [re.escape(part) for part in form.partition("~")[0].split("…")]
                assert re.match(".*".join(parts), name) or "…" not in form, (name, form)
            checked += 1
    assert checked > sized(6, 60)


def test_a_pipe_gets_everything_in_full(commands, capsys):
    """Every name is there in full, and as many columns as ever, whatever COLUMNS says."""
    for command in share(commands, 2, 4):
        assert main(command.split()) in (0, 1), command
        out = capsys.readouterr().out
        assert "…" not in out and "No room for" not in out and "\x1b" not in out
        for name in names_in(command) or ():
            assert name in out
        if command.startswith("ls ") and "-v" in command:
            assert out.splitlines()[0].split()[-4:] == ["function", "op", "offset", "file"]


PIECES = ["a", "b", "_", ".", "1", "12", "重", "e\u0301", "a" * 30, "重_" * 9]
LONG = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@PATIENT
@given(st.lists(LONG, min_size=1, max_size=12), st.integers(10, 40))
@example(["a" * 50, "a" * 49 + "b"], 10)
@example([f"{'a' * 30}{i}{'b' * 30}" for i in range(30)], 10)
@example([f"{i}{'a' * 30}{i}{'b' * 30}{i}" for i in range(30)], 12)
@example(["." + "a" * 30, "." + "a" * 31], 10)
def test_folded_names_fit_and_are_distinct(names, width):
    for mark in ("…", "..."):
        folded = fold_names(names, width, mark)
        assert set(folded) == set(names)
        assert len(set(folded.values())) == len(set(names))
        for name, form in folded.items():
            assert columns_of(form) <= width
            assert form == name or columns_of(name) > width or form.endswith(tuple("0123456789"))
            assert width_of(form) == columns_of(form)


@pytest.mark.parametrize(("mark", "between"), [("…", "_"), ("...", "_"), ("...", ".")])
@pytest.mark.parametrize("width", range(16, 60, 4))
def test_a_folded_name_fits_one_name_only(width, mark, between):
    """Read as a pattern, with the dots for any text, a short name matches no other weight of the model."""
    parts = ("attention_self_query", "attention_self_key", "attention_output_dense", "attention_output_LayerNorm")
    parts += ("output_dense", "output_LayerNorm", "intermediate_dense")
    names = [
        f"encoder_layer_{i}_{part}_{end}_to_fp16" for i in range(12) for part in parts for end in ("weight", "bias")
    ]
    names += ["embeddings_word_embeddings_weight", "relative_bias_5_to_fp16", "relative_bias_11_to_fp16", "pooler_bias"]
    names = [name.replace("_", between) for name in names]
    for name, form in fold_names(names, width, mark).items():
        if "~" not in form:
            parts = re.split(r"…|\.{3,}", form)  # of four dots, any may be of the name
            pattern = re.compile(".*".join(map(re.escape, parts)))
            assert [other for other in names if pattern.fullmatch(other)] == [name]


def test_json_contains_no_control_characters(capsys):
    """Control characters that JSON allows, those that turn text around, and halves of characters are escapes."""
    document = {"a\x9b31m\u202e\u2066b": ["\ud800", "\U000e0001", "é 漢 😀", "\u2028"], "n": 1.5}
    output.print_json(document)
    printed = capsys.readouterr().out
    assert all(line.isprintable() for line in printed.split("\n")) and json.loads(printed) == document


def test_folding_keeps_names_distinct():
    """A part that only one name has is not what is left out."""
    names = NAMES["middle"]
    for width in (24, 30, 40):
        for name, form in fold_names(names, width, "…").items():
            layer, part = re.search(r"layers_(\d+)_self_attn_(.)_", name).groups()
            assert re.search(rf"_{layer}(_|…)", form) and re.search(rf"_{part}(_|…|$)", form), (width, form)
    for name, form in fold_names(NAMES["end"], 30, "…").items():
        assert form.endswith(name[-8:])
    for name, form in fold_names(NAMES["start"], 30, "…").items():
        assert form.startswith(name[:8])


# -- ls -p -------------------------------------------------------------------------------------------------------------


def expanded(pattern):
    """All names that a pattern without "*" and counts stands for, as a reader takes it."""
    parts = re.split(r"(\{[^}]*\})", pattern)
    choices = []
    for part in parts:
        if (found := re.fullmatch(r"\{(\d+)\.\.(\d+)\}", part)) is not None:
            first, last = found.groups()
            width = len(first) if first[0] == "0" and len(first) > 1 else 0
            choices.append([f"{n:0{width}}" for n in range(int(first), int(last) + 1)])
        elif part.startswith("{"):
            choices.append(part[1:-1].split(","))
        else:
            choices.append([part])
    return ["".join(choice) for choice in itertools.product(*choices)]


ROWS = st.lists(
    st.tuples(*[st.sampled_from(["0", "1", "2", "4", "14", "15", "01", "02"])] * 3), min_size=1, max_size=25
)


@PATIENT
@given(ROWS)
@example([("0", "4", "0"), ("0", "14", "0"), ("1", "15", "0")])
def test_a_pattern_matches_its_members_only(rows):
    names = list(dict.fromkeys(f"a_{x}_b_{y}.c/{z}" for x, y, z in rows))
    groups = patterns.fold(names, [0] * len(names))
    assert sorted(i for _, members in groups for i in members) == list(range(len(names)))
    assert [members[0] for _, members in groups] == sorted(members[0] for _, members in groups)
    for pattern, members in groups:
        if "of them" in pattern:
            count = np.prod([int(n) for n in re.findall(r": (\d+) of them", pattern)])
            simple = re.sub(r"\{\d+\.\.\d+: \d+ of them\}", "7", pattern).replace("*", "7")
            assert "*" in pattern or count * len(expanded(simple)) == len(members)
        elif "*" in pattern:
            matching = re.compile("|".join(map(re.escape, expanded(pattern))).replace(re.escape("*"), r"\d+"))
            assert all(matching.fullmatch(names[i]) for i in members)
            assert len(members) >= len(expanded(pattern))
        else:
            assert sorted(expanded(pattern)) == sorted(names[i] for i in members)


def test_three_names_do_not_read_as_six(tmp_path, cli):
    names = ["layers_0_expert_4_w", "layers_0_expert_14_w", "layers_1_expert_15_w"]
    np.savez(tmp_path / "w.npz", **{name: np.zeros(3) for name in names})
    out = cli("ls", tmp_path / "w.npz", "-p", "-q")[1].splitlines()
    assert [line.split()[0] for line in out[1:]] == ["layers_0_expert_{4,14}_w", "layers_1_expert_15_w"]
    # Numbers that have nothing to do with each other, as those of layers and operations, are one row all the same.
    names = [f"layers_{i}_op_{7 * i + 3}_w" for i in range(9)]
    assert [pattern for pattern, _ in patterns.fold(names, [0] * 9)] == ["layers_{0..8}_op_*_w"]


# -- short words for compression ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "name", "words"),
    [
        ("quant_int4_block", "first_weight_quantized", "float16 as int4 /16"),
        ("quant_int8", "first_weight_quantized", "float32 as int8 /ch"),
        ("optimize_ios18", "linear_int4_per_tensor_weight_quantized", "float32 as int4"),
        ("optimize_ios18", "linear_uint4_per_block_weight_quantized", "float32 as uint4 /8"),
        ("palette_4bit", "conv_weight_palettized", "float32 as pal4"),
        ("palette_6bit", None, "as pal6"),
        ("matrix_palettes", "vectors_3d_of2_axis1", "v2 /2x3"),
        ("matrix_chains", "sparse_fp16", "float16 as sparse 54%"),
        ("matrix_chains", "cast_of_dense", "float32 as float16"),
        ("matrix_chains", "chain_palette_of_bytes", "float16 as pal3 scaled"),
        ("sparse_palette", "first_weight_sparsified", "float32 as sparse 60% pal4"),
        ("sparse_quantized", "first_weight_sparsified", "float32 as sparse 60% int8 /ch"),
    ],
)
def test_short_descriptions_of_compression(cli, case, name, words):
    path = DATA / case / "model.mlpackage"
    argv = [path] if name is None else [path, "-k", name]
    for command in ("ls", "stats"):
        assert words in cli(command, *argv)[1]
    with milblob.open(path) as opened:
        scheme = next(tensor.compression for key, tensor in opened.items() if name in (None, key) and tensor.parts)
    assert " <- ".join(scheme.operations) in cli("ls", *argv, "-v")[1]
    assert " <- ".join(scheme.operations) in cli("stats", *argv, "-v")[1]


def test_every_compressed_weight_has_a_short_description():
    """None is left with the name of its operation, and none has many of them."""
    seen = set()
    for path in sorted(DATA.glob("*/*.mlpackage")):
        with contextlib.suppress(milblob.MilblobError), milblob.open(path) as opened:
            for tensor in opened.values():
                if tensor.compression:
                    words = str(tensor.compression)
                    assert words and len(words) <= 26 and "_" not in words, (path, tensor, words)
                    seen.add(words)
    assert len(seen) > 30


@pytest.mark.parametrize(
    "names",
    [
        ["_a" * 50_000 + str(i) + "_a" * 50_000 for i in range(20)],
        ["x" * 100 + f"{i:06}" + "y" * 100 + f"{i % 7}" + "z" * 100 for i in range(5_000)],
        ["重_" * 400 + f"{i}" + "_b" * 400 for i in range(300)],
    ],
    ids=["long names", "many names", "wide names"],
)
def test_hostile_names_are_folded_in_linear_time(names):
    """These would take minutes if every name were compared with every other, or every part with all before it."""
    folded = fold_names(names, 24, "…")
    assert len(set(folded.values())) == len(names)
    assert all(columns_of(form) <= 24 for form in folded.values())
