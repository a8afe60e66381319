"""Reading GGUF files: values as the gguf library has them, blocks repacked without rounding, broken files refused."""

import json
import random
import shutil
import struct
import sys

import ml_dtypes
import numpy as np
import pytest

from peers import WITHOUT

gguf = pytest.importorskip("gguf", reason=WITHOUT["gguf"])

import milblob  # noqa: E402
from compress_models import save_model  # noqa: E402
from compress_options import grouped  # noqa: E402
from draws import restarts  # noqa: E402
from gguf_files import QUANTIZED, block_values, write  # noqa: E402
from milblob import DType, FormatError, Linear, MilblobError, Palette, Prune, UnsupportedError  # noqa: E402
from milblob.cli import main  # noqa: E402
from milblob.formats import gguf as gguf_format  # noqa: E402
from milblob.formats.read import is_array_file, open_arrays  # noqa: E402
from paths import ROOT  # noqa: E402
from repacking import tree  # noqa: E402
from thorough import sized  # noqa: E402

DEMO = ROOT / "examples" / "demo.mlpackage"
RNG = np.random.default_rng(5)
each_test_draws_the_same = restarts(RNG)
PLAIN = {
    "f32": RNG.standard_normal((3, 5)).astype(np.float32),
    "f16": RNG.standard_normal((2, 3, 4)).astype(np.float16),
    "f64": RNG.standard_normal(7),
    "i8": np.arange(-4, 4, dtype=np.int8).reshape(4, 2),
    "i16": np.arange(6, dtype=np.int16).reshape(1, 2, 3, 1),
    "i32": np.arange(3, dtype=np.int32),
    "i64": np.arange(4, dtype=np.int64).reshape(2, 2),
}


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture
def file(tmp_path):
    arrays = PLAIN | {kind: (normal(6, 96), kind) for kind in QUANTIZED} | {"bf16": (normal(4, 32), "BF16")}
    return write(tmp_path / "w.gguf", arrays)


def test_plain_arrays_are_views_in_numpys_order(file):
    with open_arrays(file) as arrays:
        reader = gguf.GGUFReader(file)
        assert list(arrays) == [tensor.name for tensor in reader.tensors]
        for tensor in reader.tensors:
            assert arrays[tensor.name].shape == tuple(int(size) for size in reversed(tensor.shape))
        for name, expected in PLAIN.items():
            values = arrays[name].read()
            assert (values.dtype, values.shape) == (expected.dtype, expected.shape)
            assert values.tobytes() == expected.tobytes()
            assert not values.flags.writeable and not values.flags.owndata  # over the mapped file
            assert arrays[name].nbytes == expected.nbytes
        values = arrays["bf16"].read()
        assert (values.dtype, values.shape) == (ml_dtypes.bfloat16, (4, 32))
        expected = gguf.quants.dequantize(
            next(t for t in reader.tensors if t.name == "bf16").data, gguf.GGMLQuantizationType.BF16
        )
        assert np.array_equal(values.astype(np.float32), expected)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantized_arrays_are_what_the_library_makes_of_them(kind, file):
    reader = gguf.GGUFReader(file)
    tensor = next(t for t in reader.tensors if t.name == kind)
    expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    with open_arrays(file) as arrays:
        array = arrays[kind]
        values = array.read()
        assert (array.mil_dtype, array.shape, array.kind) == (DType.FLOAT32, (6, 96), kind)
        assert values.tobytes() == expected.tobytes()
        assert array.nbytes == tensor.n_bytes == tensor.data.nbytes
    stored = tensor.data.tobytes()
    size = len(stored) // (6 * 3)
    by_hand = [block_values(kind, stored[at : at + size]) for at in range(0, len(stored), size)]
    assert np.array_equal(values.reshape(-1), np.array(by_hand, np.float32).reshape(-1))


def test_large_arrays_are_dequantized_in_parts(tmp_path, monkeypatch):
    path = write(tmp_path / "w.gguf", {"w": (normal(50, 320), "Q5_1")})
    with open_arrays(path) as arrays:
        whole = arrays["w"].read()
        monkeypatch.setattr(gguf_format, "_PART_COUNT", 96)
        assert arrays["w"].read().tobytes() == whole.tobytes()


@pytest.mark.parametrize("kind", QUANTIZED)
def test_blocks_are_the_stored_integers(kind, file):
    with open_arrays(file) as arrays:
        blocks, values = arrays[kind].blocks(), arrays[kind].read()
    if kind not in ("Q8_0", "Q4_0"):
        assert blocks is None
        return
    assert (blocks.data.dtype, blocks.scale.dtype) == (np.int8, np.float16)
    assert blocks.dtype is (DType.INT8 if kind == "Q8_0" else DType.INT4)
    again = blocks.scale.astype(np.float32)[..., None] * blocks.data.reshape(6, 3, 32).astype(np.float32)
    assert again.reshape(6, 96).tobytes() == values.tobytes()


def test_every_pattern_of_a_byte(tmp_path):
    """All integers of each type, with scales that are negative, subnormal, infinite and NaN."""
    scales = np.array([1.0, -0.5, 6e-8, 0.0, -0.0, np.inf, np.nan], np.float16)
    for kind in QUANTIZED:
        code = gguf.GGMLQuantizationType[kind]
        size = gguf.GGML_QUANT_SIZES[code][1]
        rows = np.arange(len(scales) * 16 * size, dtype=np.uint32).astype(np.uint8).reshape(len(scales) * 16, size)
        rows[:, :2] = np.repeat(scales, 16).view(np.uint8).reshape(-1, 2)
        writer = gguf.GGUFWriter(str(tmp_path / f"{kind}.gguf"), "test")
        writer.add_tensor("w", rows, raw_dtype=code)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with open_arrays(tmp_path / f"{kind}.gguf") as arrays, np.errstate(all="ignore"):
            expected = np.array([block_values(kind, row.tobytes()) for row in rows], np.float32)
            assert np.array_equal(arrays["w"].read(), expected, equal_nan=True)


def test_alignment_and_empty_files(tmp_path):
    for alignment in (8, 256, 4096):
        path = write(tmp_path / f"{alignment}.gguf", PLAIN, alignment)
        with open_arrays(path) as arrays:
            assert all(np.array_equal(arrays[name].read(), expected) for name, expected in PLAIN.items())
    with open_arrays(write(tmp_path / "empty.gguf", {})) as arrays:
        assert list(arrays) == []


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q2_K", "IQ4_NL", "Q8_K", "TQ1_0"])
def test_other_types_are_refused_by_name(kind, tmp_path):
    code = gguf.GGMLQuantizationType[kind]
    size = gguf.GGML_QUANT_SIZES[code][1]
    path = tmp_path / "w.gguf"
    writer = gguf.GGUFWriter(str(path), "test")
    writer.add_tensor("blk.0.w", np.zeros((2, size), np.uint8), raw_dtype=code)
    writer.add_tensor("fine", normal(2, 2))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_arrays(path) as arrays:
        assert arrays["fine"].read().shape == (2, 2)
        with pytest.raises(UnsupportedError, match=rf"type of 'blk.0.w': expected F32, .*, got {kind}"):
            arrays["blk.0.w"]


def test_without_the_library(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ImportError, match="gguf is not installed"):
        open_arrays(file)
    assert is_array_file(str(file))


# -------------------------------------------------------------------------------------------------------- broken files


def head(tensor_count=0, pair_count=0, version=3, magic=b"GGUF"):
    return magic + struct.pack("<IQQ", version, tensor_count, pair_count)


def text(value):
    return struct.pack("<Q", len(value)) + value


def info(name=b"w", dims=(4,), kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def pair(key, kind, value):
    return text(key) + struct.pack("<I", kind) + value


NESTED = b"".join(struct.pack("<IQ", 9, 1) for _ in range(100_000))


@pytest.mark.every
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "beginning of GGUF file"),
        (b"GGML" + bytes(40), "beginning of GGUF file: expected GGUF, got b'GGML'"),
        (b"GGUF\3", "version in GGUF file: expected 4 bytes, got 1"),
        (head(version=1), "version of GGUF file: expected 2 or 3, got 1"),
        (head(version=3 << 24), "version of GGUF file: expected 2 or 3, got big-endian numbers"),
        (head(tensor_count=1 << 62), "number of tensors in GGUF file: expected no more than the file can hold"),
        (head(pair_count=1 << 62), "number of values of metadata in GGUF file"),
        (head(pair_count=1) + struct.pack("<Q", 1 << 63) + bytes(40), "key in GGUF file: expected 9223372036854775808 bytes"),
        (head(pair_count=1) + pair(b"k", 13, bytes(8)), "type of a value in GGUF file: expected 0 to 12, got 13"),
        (head(pair_count=1) + pair(b"k", 9, struct.pack("<IQ", 12, 1 << 61)) + bytes(9), "array in GGUF file: expected 18446744073709551616 bytes"),
        (head(pair_count=1) + pair(b"k", 9, struct.pack("<IQ", 8, 1 << 61)) + bytes(9), "number of elements of an array in GGUF file"),
        (head(pair_count=1) + pair(b"k", 9, NESTED), "type of a value in GGUF file"),
        (head(pair_count=1) + pair(b"general.alignment", 4, struct.pack("<I", 0)), "general.alignment: expected a power of two, got 0"),
        (head(pair_count=1) + pair(b"general.alignment", 4, struct.pack("<I", 48)), "general.alignment: expected a power of two, got 48"),
        (head(pair_count=1) + pair(b"general.alignment", 10, bytes(8)), "general.alignment: expected a uint32, got type 10"),
        (head(1) + info(dims=(1,) * 5) + bytes(99), "dimensions of 'w': expected at most 4, got 5"),
        (head(1) + info(name=b"\xff") + bytes(99), "name of a tensor in GGUF file: expected UTF-8"),
        (head(2) + info() + info() + bytes(99), "names of tensors: expected each once, got 'w' twice"),
        (head(1) + info(kind=999) + bytes(99), "type of 'w': expected one of ggml, got 999"),
        (head(1) + info(dims=(1 << 40,)) + bytes(99), "place of 'w': expected F32"),
        (head(1) + info(dims=(1 << 62, 1 << 62, 1 << 62)) + bytes(99), "place of 'w': expected F32"),
        (head(1) + info(dims=(0, 1 << 62, 1 << 62)) + bytes(99), "shape: expected fewer than"),
        (head(1) + info(offset=(1 << 64) - 32) + bytes(99), "place of 'w': expected F32"),
        (head(1) + info(dims=(33,), kind=8) + bytes(99), "shape of 'w': expected rows of whole blocks of 32, got [33]"),
        (head(1) + info(dims=(), kind=8) + bytes(99), "shape of 'w': expected rows of whole blocks"),
        (head(1) + info()[:-9], "GGUF file: expected"),
    ],
)  # fmt: skip
def test_broken_files_are_refused(data, words, tmp_path):
    path = tmp_path / "w.gguf"
    path.write_bytes(data)
    with pytest.raises(MilblobError) as caught, open_arrays(path) as arrays:
        for name in arrays:
            arrays[name].read()
    assert words in str(caught.value)
    assert "w.gguf" in str(caught.value)


def test_damaged_files_end_in_our_errors(file):
    """Every byte of the header changed, and cut off at every place."""
    whole = file.read_bytes()
    with open_arrays(file) as arrays:
        names = list(arrays)
    start = next(at for at in range(len(whole)) if whole[at:].startswith(PLAIN["f32"].tobytes()))
    rng = random.Random(3)
    damaged = [whole[:at] for at in range(0, start, sized(49, 7))]
    for at in range(0, start, sized(7, 1)):
        for value in (0, 255, whole[at] ^ 1 << rng.randrange(8)):
            damaged += [whole[:at] + bytes([value]) + whole[at + 1 :]]
    read = 0
    for data in damaged:
        file.write_bytes(data)
        try:
            with open_arrays(file) as arrays:
                for name in arrays:
                    try:
                        assert arrays[name].read().shape == arrays[name].shape
                        arrays[name].blocks()
                        read += 1
                    except MilblobError as error:
                        assert str(file) in str(error)
        except MilblobError as error:
            assert str(file) in str(error)
    assert read > len(names) * len(damaged) / 2


def test_a_file_that_shrinks_is_an_error(file):
    with open_arrays(file) as arrays:
        array, other = arrays["f32"], arrays["Q8_0"]
        with open(file, "r+b") as opened:
            opened.truncate(64)
        for one in (array, other):
            with pytest.raises(FormatError):
                one.read()


def test_a_limit_counts_what_is_dequantized(file):
    with open_arrays(file, max_nbytes=100) as arrays, pytest.raises(milblob.LimitError):
        arrays["Q4_0"].read()


# ------------------------------------------------------------------------------------------------------------ commands


def test_quantized_arrays_go_into_every_format(file, tmp_path, capsys):
    """What is written is what they are read as; listings say what is stored."""
    with open_arrays(file) as arrays:
        expected = {name: arrays[name].read() for name in arrays}
        stored = {name: arrays[name].nbytes for name in arrays}
    for target in ("w.npz", "w.safetensors", "w.bin", "folder/"):
        assert main(["convert", str(file), "-o", str(tmp_path / target)]) == 0
        path = tmp_path / ("w.json" if target == "w.bin" else target)
        with open_arrays(path) as arrays:
            assert {name: arrays[name].read().tobytes() for name in arrays} == {
                n: a.tobytes() for n, a in expected.items()
            }
        assert main(["diff", str(file), str(path)]) == 0
    capsys.readouterr()
    assert main(["ls", str(file), "--json"]) == 0
    assert {row["name"]: row["nbytes"] for row in json.loads(capsys.readouterr().out)["tensors"]} == stored


def demo_arrays():
    return {name: array for name, array in milblob.load(DEMO).items() if name.startswith(("layers_0", "head"))}


def test_commands_take_it(tmp_path, capsys):
    wanted = {name: np.array(array, array.dtype) for name, array in demo_arrays().items()}
    path = write(tmp_path / "w.gguf", {f"blk.{name}": array for name, array in wanted.items()})
    assert main(["ls", str(path)]) == 0
    assert "blk.head_weight" in capsys.readouterr().out
    assert main(["match", str(DEMO), str(path), "-o", str(tmp_path / "map.json")]) == 1  # other weights are not there
    assert "head_weight" in (tmp_path / "map.json").read_text()
    assert main(["convert", str(path), "-o", str(tmp_path / "w.npz")]) == 0
    with np.load(tmp_path / "w.npz") as arrays:
        assert all(arrays[f"blk.{name}"].tobytes() == array.tobytes() for name, array in wanted.items())
    model = shutil.copytree(DEMO, tmp_path / "m.mlpackage")
    new = {f"blk.{name}": array * array.dtype.type(2) for name, array in wanted.items()}
    write(tmp_path / "new.gguf", new)
    assert main(["refit", str(model), str(tmp_path / "new.gguf"), "--mapping", str(tmp_path / "map.json")]) == 0
    after = milblob.load(model)
    assert all(np.array_equal(after[name], array * array.dtype.type(2)) for name, array in wanted.items())
    capsys.readouterr()
    assert main(["convert", str(DEMO), "-o", str(tmp_path / "out.gguf")]) == 2
    assert "expected .safetensors, .npz, .params, .bin or a directory" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "dtype"), [("Q8_0", "int8"), ("Q4_0", "int4")])
@pytest.mark.parametrize("precision", [np.float16, np.float32])
def test_blocks_are_repacked_without_rounding(kind, dtype, precision, tmp_path):
    """Compressed to the same blocks, a weight takes the integers and scales of the file as they are."""
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    other = save_model(tmp_path / "o.mlpackage", 18, precision)
    milblob.compress(
        other, other, Linear(dtype, granularity="per_block", block=32), scope=milblob.Scope(select="w_turned")
    )
    path = write(tmp_path / "t.gguf", {"w_turned": (normal(96, 64), kind)})
    report = milblob.refit(other, path, requantize="fit")
    assert (report.changes[0].sqnr == float("inf")) == (precision == np.float32)
    with open_arrays(path) as arrays, milblob.open(other) as opened:
        blocks, parts = arrays["w_turned"].blocks(), opened["w_turned"].parts
        assert np.array_equal(parts["data"].read().astype(np.int8), blocks.data)
        assert np.array_equal(parts["scale"].read(), blocks.scale.astype(precision))
        values = arrays["w_turned"].read().astype(precision)
        assert np.array_equal(opened["w_turned"].read(), values)
    assert [finding for finding in milblob.check(other) if finding.code != "owner-only"] == []


def test_repacking_needs_the_same_blocks_and_a_fit(tmp_path):
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    path = write(tmp_path / "t.gguf", {"w_turned": (normal(96, 64), "Q8_0")})
    for recipe, how in [
        (Linear("int8", granularity="per_block", block=16), "fit"),
        (Linear("int4", granularity="per_block", block=32), "fit"),
        (Linear("int8"), "fit"),
        (Linear("int8", granularity="per_block", block=32), "keep"),
    ]:
        model = save_model(tmp_path / "m.mlpackage", 18, np.float32)
        milblob.compress(model, model, recipe, scope=milblob.Scope(select="w_turned"))
        report = milblob.refit(model, path, requantize=how)
        assert report.changes[0].sqnr < float("inf")
        with open_arrays(path) as arrays, milblob.open(model) as opened:
            assert (
                opened["w_turned"].parts["scale"].read().tobytes()
                != arrays["w_turned"].blocks().scale.astype(np.float32).tobytes()
            )
        shutil.rmtree(model)


def test_the_steps_of_the_page(tmp_path):
    """docs/compress.md: a converted model gets the blocks of the GGUF file that it was made of."""
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    model = save_model(tmp_path / "m.mlpackage", 18, np.float16)
    with milblob.open(model) as opened:
        values = opened["w_turned"].read().astype(np.float32)
    path = write(tmp_path / "w.gguf", {"blk.0.attn.weight": (values, "Q8_0"), "other": (normal(3, 32), "Q4_1")})
    found = milblob.match(model, path)
    plain = [
        one for one in found.matches if one.how != "scaled" and all(step.startswith("cast ") for step in one.needs)
    ]
    names = dict.fromkeys(found.refit_mapping) | {one.given: one.name for one in plain}
    assert names == {"blk.0.attn.weight": "w_turned", "other": None}
    milblob.compress(model, tmp_path / "s.mlpackage", guidance=milblob.Guidance(weights=path, mapping=names))
    with open_arrays(path) as arrays, milblob.open(tmp_path / "s.mlpackage") as opened:
        blocks, parts = arrays["blk.0.attn.weight"].blocks(), opened["w_turned"].parts
        assert np.array_equal(parts["data"].read(), blocks.data)
        assert np.array_equal(parts["scale"].read(), blocks.scale)


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """By precision: a model whose weights `compress` gives new values."""
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    folder = tmp_path_factory.mktemp("dense")
    return {one: save_model(folder / f"{one.__name__}.mlpackage", 18, one) for one in (np.float16, np.float32)}


@pytest.mark.parametrize("precision", [np.float16, np.float32])
@pytest.mark.parametrize("recipe", [None, Linear("int8", granularity="per_block", block=32)], ids=str)
def test_compress_takes_blocks_as_they_are(recipe, precision, dense, tmp_path):
    """Integers and scales of the file where the recipe has the same blocks; all other weights take its values."""
    given = {
        "w_turned": (normal(96, 64), "Q8_0"), "first": (normal(256, 64), "Q4_0"), "w_ih": (normal(96, 32), "Q4_1"),
        "w_hh": normal(96, 24),
    }  # fmt: skip
    path, output = write(tmp_path / "t.gguf", given), tmp_path / "s.mlpackage"
    source = dense[precision]
    before = {one: one.read_bytes() for one in sorted(source.rglob("*")) if one.is_file()}
    report = milblob.compress(
        source, output, recipe, guidance=milblob.Guidance(weights=path, mapping={"first": "w_product"})
    )
    assert report.source == str(source)
    with open_arrays(path) as arrays, milblob.open(output) as opened, milblob.open(source) as old:
        for name in opened:
            array = {"w_product": "first"}.get(name, name)
            wanted = arrays[array].read().astype(precision) if array in given else old[name].read()
            is_held = name == "w_turned" or (recipe is None and name == "w_product")
            if is_held or (recipe is None and array in given):
                assert np.array_equal(opened[name].read(), wanted)
            if is_held:
                blocks, parts = arrays[array].blocks(), opened[name].parts
                assert parts["data"].mil_dtype is blocks.dtype
                assert np.array_equal(parts["data"].read().astype(np.int8), blocks.data)
                assert np.array_equal(parts["scale"].read(), blocks.scale.astype(precision))
            elif recipe is None:
                assert opened[name].chain is None
        lost = {one.name: one.squared for one in report.weights}
        assert lost["w_turned"] == 0
        assert recipe is not None or set(lost) == {"w_turned", "w_product"}
        assert recipe is None or lost["w_product"] > 0
    assert {one: one.read_bytes() for one in sorted(source.rglob("*")) if one.is_file()} == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["s.mlpackage", "t.gguf"]
    assert [finding for finding in milblob.check(output) if finding.code != "owner-only"] == []


def test_compress_fits_other_recipes_to_the_new_values(dense, tmp_path):
    """As refit and then compress do, to the byte; a goal chooses by the new values, and keeps blocks where it may."""
    path = write(tmp_path / "t.gguf", {"w_product": (normal(256, 64), "Q4_1"), "w_turned": (normal(96, 64), "Q8_0")})
    model = dense[np.float16]
    milblob.refit(model, path, cast=True, destination=tmp_path / "r.mlpackage")
    for number, how in enumerate([{"recipe": Palette(4)}, {"bits": 5}, {"recipe": Prune(0.5) + Linear()}]):
        first, second = tmp_path / f"a{number}.mlpackage", tmp_path / f"b{number}.mlpackage"
        once = milblob.compress(model, first, **grouped(weights=path, **how))
        twice = milblob.compress(tmp_path / "r.mlpackage", second, **grouped(**how))
        assert once.weights == twice.weights
        assert tree(first) == tree(second)
        assert (
            milblob.compress(model, tmp_path / "n.mlpackage", **grouped(weights=path, dry_run=True, **how)).weights
            == once.weights
        )
    assert not (tmp_path / "n.mlpackage").exists()
    blocks = [Linear("int8", granularity="per_block", block=32), Palette(8)]
    chosen = milblob.compress(
        model, tmp_path / "c.mlpackage", milblob.Goal(sqnr=200, recipes=blocks), guidance=milblob.Guidance(weights=path)
    )
    assert [(one.name, one.squared) for one in chosen.weights] == [("w_turned", 0.0)]


def test_command_compresses_a_gguf_file(dense, tmp_path, capsys):
    path = write(tmp_path / "t.gguf", {"a": (normal(96, 64), "Q8_0")})
    command = ["compress", str(dense[np.float32]), "-o", str(tmp_path / "s.mlpackage"), "--weights", str(path)]
    assert main([*command, "--map", "a=w_turned"]) == 0
    assert "1 weight compressed" in capsys.readouterr().err
    with milblob.open(tmp_path / "s.mlpackage") as opened, open_arrays(path) as arrays:
        assert np.array_equal(opened["w_turned"].read(), arrays["a"].read())
    for more, words in (
        ([], "has no weight "), (["--map", "a=w_turned", "--search"], "--search: expected it only with"),
        (["--map", "a=w_turned", "-k", "w_ih"], "weights: expected some in blocks that Core ML can hold"),
        (["--map", "a=w_turned", "-o", str(dense[np.float32])], "expected another place than the model"),
    ):  # fmt: skip
        assert main([*command, "--force", *more]) == 2
        assert words in capsys.readouterr().err
    assert main([*command[:4], "--int8", "--map", "a=w_turned"]) == 2
    assert "--map: expected --weights" in capsys.readouterr().err
    assert main(["compress", command[1], "--frontier", str(tmp_path / "f.svg"), *command[4:]]) == 2
    assert "--weights: expected none with --frontier" in capsys.readouterr().err
    with pytest.raises(ValueError, match="mapping: expected weights"):
        milblob.compress(dense[np.float32], tmp_path / "x.mlpackage", Linear(), guidance=milblob.Guidance(mapping={}))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["s.mlpackage", "t.gguf"]
