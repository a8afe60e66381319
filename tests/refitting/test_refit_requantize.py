"""refit of compressed weights: every operation in fixtures of coremltools, onto what is there or newly fitted."""

import json
import math
import re
import shutil
import tracemalloc

import numpy as np
import pytest

import milblob
from cases import MODEL_CASES, load_case
from compress_coremltools import theirs
from constexpr_bytes import constexpr
from editable_packages import files_of, left
from hostile_bytes import model as model_bytes
from hostile_bytes import program
from milblob.cli import main
from paths import DATA
from peers import WITHOUT
from protobuf_programs import add_op, as_model, new_program
from thorough import sized, some

pytestmark = pytest.mark.usefixtures("unsynced")

CASES = [name for name in MODEL_CASES if (DATA / name / "model.mlpackage").exists()]


def compressed(path):
    with milblob.open(path) as model:
        return {
            name: (model[name].read().astype(np.float32), tensor.compression.operations)
            for name, tensor in model.items()
            if tensor.compression
        }


def noise_of(values, wanted):
    """The SQNR in dB, computed in another way."""
    difference = np.asarray(values, np.float64) - np.asarray(wanted, np.float64)
    noise = float(np.sum(difference**2, dtype=np.longdouble))
    signal = float(np.sum(np.asarray(wanted, np.float64) ** 2, dtype=np.longdouble))
    return math.inf if noise == 0 else None if signal == 0 else 10 * math.log10(signal / noise)


@pytest.mark.parametrize("case", some(CASES, 9))
def test_every_compressed_weight_of_every_fixture(tmp_path, case):
    """What a weight has now stays as it is; other values are met as the report says; nothing but that weight changes."""
    source = load_case(case).folder / "model.mlpackage"
    weights = compressed(source)
    random = np.random.default_rng(len(case))
    for name, (old, operations) in weights.items():
        if not np.isfinite(old).all():
            continue
        same = milblob.refit(source, {name: old}, requantize="keep", dry_run=True).changes[0]
        # A float code that is scaled and shifted is rounded twice; all others are met exactly.
        assert same.sqnr is not None and same.sqnr > (200 if "_fp" not in name or "sparse" in name else 60), (
            name,
            operations,
        )
        wider = 4 * (old + random.normal(size=old.shape).astype(np.float32) * np.abs(old).mean() / 4)
        sqnr = {}
        for mode in ("keep", "fit"):
            target = shutil.copytree(source, tmp_path / f"{mode}.mlpackage")
            before = milblob.load(target, constants=True)
            row = milblob.refit(target, {name: wider}, requantize=mode).changes[0]
            after = milblob.load(target, constants=True)
            assert row.name == name and row.requantized == mode
            expected = noise_of(after[name], wider)
            assert row.sqnr == expected or math.isclose(row.sqnr, expected, abs_tol=1e-6), name
            sqnr[mode] = row.sqnr
            for other in before.keys() - {name}:
                assert (
                    np.asarray(before[other]).tobytes() == np.asarray(after[other]).tobytes()
                    or before[other].dtype == object
                )
            with milblob.open(source, stored=True) as a, milblob.open(target, stored=True) as b:
                assert [(t.name, t.mil_dtype, t.shape, t.op) for t in a.values()] == [
                    (t.name, t.mil_dtype, t.shape, t.op) for t in b.values()
                ]
            assert not [f for f in milblob.check(target) if f.severity == "error"]
            shutil.rmtree(target)
        if operations[0] != "cast" and old.size > 32:
            assert sqnr["fit"] >= sqnr["keep"] - 0.1 or sqnr["keep"] > 60, (name, operations, sqnr)


@pytest.mark.parametrize("output", [False, True])
def test_all_weights_of_a_model(tmp_path, output):
    for case in ("quant_int8", "palette_scaled", "sparse_quantized", "quant_int4_block"):
        source = shutil.copytree(DATA / case / "model.mlpackage", tmp_path / f"{case}.mlpackage")
        before = files_of(source)
        given = {name: (old * 2).astype(np.float16) for name, (old, _) in compressed(source).items()}
        target = tmp_path / f"{case}-out.mlpackage" if output else source
        report = milblob.refit(source, given, requantize="fit", destination=target if output else None)
        assert len(report.changes) == len(given) and all(row.sqnr > 15 for row in report.changes), case
        after = milblob.load(target)
        assert all(
            math.isclose(noise_of(after[row.name], given[row.name]), row.sqnr, abs_tol=1e-6) for row in report.changes
        )
        if output:
            assert files_of(source) == before
        assert left(tmp_path) == []


def test_a_limit_refuses_before_anything_is_written(tmp_path, capsys):
    source = shutil.copytree(DATA / "quant_int8" / "model.mlpackage", tmp_path / "m.mlpackage")
    given = {name: old * 3 for name, (old, _) in compressed(source).items()}
    names, before = list(given), files_of(source)
    given[names[0]] = compressed(source)[names[0]][0]
    for output in (None, tmp_path / "out.mlpackage"):
        for dry_run in (False, True):
            with pytest.raises(ValueError) as caught:
                milblob.refit(source, given, requantize="keep", min_sqnr=30, destination=output, dry_run=dry_run)
            words = str(caught.value)
            assert f"got {len(names) - 1} problems: {names[1]}: expected an SQNR of 30 dB or more, got " in words
            assert names[0] not in words and all(words.count(f"{name}: ") == 1 for name in names[1:])
    assert files_of(source) == before and left(tmp_path) == [] and not (tmp_path / "out.mlpackage").exists()
    np.savez(tmp_path / "w.npz", **given)
    argv = ["refit", str(source), str(tmp_path / "w.npz"), "--requantize", "keep", "--min-sqnr", "30"]
    assert main(argv) == 2 and "expected an SQNR of 30 dB or more" in capsys.readouterr().err
    assert files_of(source) == before
    argv[4] = "fit"
    assert main([*argv, "-v"]) == 0
    err = capsys.readouterr().err
    assert f"milblob: {names[0]} float32 [32, 48], requantized (fit), SQNR inf dB\n" in err
    assert re.search(r"; 3 weights requantized, SQNR \d+\.\d dB or more \(\w+\)\n$", err)
    assert main([*argv, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["tensors"]
    assert [row["requantized"] for row in rows] == ["fit"] * len(names) and [
        row["sqnr"] == "Infinity" or row["sqnr"] > 40 for row in rows
    ] == [True] * 3


def test_what_cannot_be_requantized_is_refused_by_name(tmp_path):
    source = shutil.copytree(DATA / "quant_int8" / "model.mlpackage", tmp_path / "m.mlpackage")
    weights, before = compressed(source), files_of(source)
    name, (old, _) = next(iter(weights.items()))
    with pytest.raises(
        milblob.UnsupportedError,
        match=rf"{name}: expected a weight that is stored dense, got constexpr_affine_dequantize \(add --requantize keep or fit",
    ):
        milblob.refit(source, {name: old})
    with pytest.raises(ValueError, match="3 arrays for compressed weights .*: add --requantize keep or fit"):
        milblob.refit(source, {n: values for n, (values, _) in weights.items()})
    for bad in (np.nan, np.inf, -np.inf):
        wrong = old.copy()
        wrong.reshape(-1)[5] = bad
        for mode in ("keep", "fit"):
            with pytest.raises(
                ValueError, match=rf"{name}: element 5: expected a finite number to requantize, got {bad}"
            ):
                milblob.refit(source, {name: wrong}, requantize=mode)
    with pytest.raises(ValueError, match=rf"{name}: expected shape"):
        milblob.refit(source, {name: old.T[:1]}, requantize="fit")
    with pytest.raises(TypeError, match=rf"{name}: expected floats to requantize, got int32"):
        milblob.refit(source, {name: old.astype(np.int32)}, requantize="fit")
    half = DATA / "quant_int4_block" / "model.mlpackage"
    large = {n: values.astype(np.float64) * 1e12 for n, (values, _) in compressed(half).items()}
    with pytest.raises(ValueError, match="got 2 problems: .*: element .*: expected at most 65504 in magnitude, got"):
        milblob.refit(half, large, requantize="fit")
    with pytest.raises(ValueError, match="requantize: expected one of keep, fit, got 'round'"):
        milblob.refit(source, {name: old}, requantize="round")
    with pytest.raises(milblob.UnsupportedError, match="expected one array for all that read a compressed weight"):
        with milblob.open(source) as model:
            use = model[name].consumers[0].reader.name
        milblob.refit(source, {"a": old}, mapping={"a": f"{name}@{use}"}, requantize="fit")
    assert files_of(source) == before


def shared_scale(folder):
    """Two weights whose operations read one scale, which a third operation reads too if asked."""
    program, block = new_program()
    data = np.zeros((12, 2), np.int8)
    for name in ("scale",):
        op = block.operations.add(type="const")
        from protobuf_programs import set_value

        set_value(op.attributes["val"], np.ones((12, 1), np.float32))
        op.outputs.add(name=name).type.CopyFrom(op.attributes["val"].type)
    for name in ("a", "b"):
        op = add_op(block, "constexpr_blockwise_shift_scale", name, (12, 2), scale="scale")
        value = op.inputs["data"].arguments.add().value
        value.type.tensorType.dataType, value.type.tensorType.rank = 21, 2
        for size in data.shape:
            value.type.tensorType.dimensions.add().constant.size = size
        value.immediateValue.tensor.ParseFromString(milblob.pack_tensor(data))
        add_op(block, "linear", f"y{name}", x="x", weight=name)
    path = folder / "m.mlmodel"
    path.write_bytes(as_model(program))
    return path


def test_parts_that_others_read_are_not_changed(tmp_path):
    """A new scale would change the other weight too."""
    path = shared_scale(tmp_path)
    before, values = path.read_bytes(), np.linspace(-30, 30, 24, dtype=np.float32).reshape(12, 2)
    assert set(milblob.load(path)) >= {"a", "b"}
    with pytest.raises(ValueError, match="scale: expected a part of a alone, got one that b reads too"):
        milblob.refit(path, {"a": values}, requantize="fit")
    assert path.read_bytes() == before
    milblob.refit(path, {"a": values}, requantize="keep")
    after = milblob.load(path)
    assert after["a"].tolist() == np.rint(values).tolist() and not after["b"].any()


def test_memory_is_that_of_one_weight(tmp_path):
    """Their parts are made one weight at a time; temporaries are pieces."""
    count, side = 5, 1536
    rows = []
    random = np.random.default_rng(0)
    path = tmp_path / "m.mlmodel"
    with milblob.BlobWriter(tmp_path / "w.bin") as blobs:
        places = [
            (
                blobs.write(random.integers(-127, 128, (side, side)).astype(np.int8)),
                blobs.write(np.ones((side, 1), np.float32)),
            )
            for _ in range(count)
        ]
    program_, block = new_program()
    for number, (data, scale) in enumerate(places):
        op = add_op(block, "constexpr_blockwise_shift_scale", f"w{number}", (side, side))
        for key, kind, shape, offset in (("data", 21, (side, side), data), ("scale", 11, (side, 1), scale)):
            value = op.inputs[key].arguments.add().value
            value.type.tensorType.dataType, value.type.tensorType.rank = kind, 2
            for size in shape:
                value.type.tensorType.dimensions.add().constant.size = size
            value.blobFileValue.fileName, value.blobFileValue.offset = "@model_path/w.bin", offset
        rows.append(op)
    path.write_bytes(as_model(program_))
    given = {f"w{i}": random.normal(size=(side, side)).astype(np.float32) for i in range(count)}
    milblob.refit(path, {"w0": given["w0"]}, requantize="fit")
    tracemalloc.start()
    try:
        report = milblob.refit(path, given, requantize="fit", min_sqnr=30)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(report.changes) == count and peak < 3 * 4 * side * side + (16 << 20) < count * 4 * side * side
    assert all(noise_of(values, given[name]) > 30 for name, values in milblob.load(path).items())


def test_a_limit_without_requantize_is_refused(tmp_path):
    """It would limit nothing."""
    source = shutil.copytree(DATA / "quant_int8" / "model.mlpackage", tmp_path / "m.mlpackage")
    for base in (None, {}):
        with pytest.raises(ValueError, match="^min_sqnr: expected requantize too, keep or fit, got none$"):
            milblob.refit(source, {}, base=base, min_sqnr=30)


def test_immediates(tmp_path):
    """Parts that stand in the Program."""
    parts = {"data": ("INT8", np.zeros((3, 4), np.int8)), "scale": ("FLOAT32", np.ones((3, 1), np.float32))}
    path = tmp_path / "m.mlmodel"
    path.write_bytes(model_bytes(program(constexpr("blockwise_shift_scale", [("w", "FLOAT32", [3, 4])], parts))))
    values = np.arange(12, dtype=np.float32).reshape(3, 4) * 100
    milblob.refit(path, {"w": values}, requantize="fit")
    assert noise_of(milblob.load(path)["w"], values) > 45
    milblob.refit(path, {"w": values}, requantize="fit", destination=tmp_path / "out.mlmodel")
    assert noise_of(milblob.load(tmp_path / "out.mlmodel")["w"], values) > 45


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 0, 3)])
def test_weights_without_elements(tmp_path, shape):
    """No range follows from them: the scales stay."""
    scale = ("FLOAT32", np.full([1] * len(shape), 0.5, np.float32))
    affine = {"zero_point": ("INT8", np.int8(0)), "axis": ("INT32", np.int32(0)), "scale": ("FLOAT32", np.float32(0.5))}
    path = tmp_path / "m.mlmodel"
    operations = [
        constexpr(
            "blockwise_shift_scale", [("a", "FLOAT32", shape)], {"data": ("INT4", np.zeros(shape)), "scale": scale}
        ),
        constexpr(
            "affine_dequantize",
            [("b", "FLOAT32", shape)],
            {"quantized_data": ("INT8", np.zeros(shape, "i1")), **affine},
        ),
    ]
    path.write_bytes(model_bytes(program(*operations)))
    before = path.read_bytes()
    report = milblob.refit(path, dict.fromkeys("ab", np.zeros(shape, np.float32)), requantize="fit")
    assert [row.requantized for row in report.changes] == ["fit", "fit"] and path.read_bytes() == before


@pytest.mark.parametrize("mode", some(["linear_symmetric", "linear"], 2))
@pytest.mark.parametrize(
    "dtype, granularity",
    [("int8", "per_channel"), ("uint8", "per_channel"), ("int4", "per_block"), ("uint4", "per_block")],
)
def test_a_fit_equals_a_fresh_conversion(tmp_path, mode, dtype, granularity):
    """A float32 network, quantized by coremltools, refitted: every stored part is that of the new network quantized."""
    ct = pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    cto = pytest.importorskip("coremltools.optimize.coreml", reason=WITHOUT["coremltools"])
    from coremltools.converters.mil import Builder as mb

    random = np.random.default_rng(3)
    shapes = [(64, 64), (96, 64)]

    def save(path, weights):
        @mb.program(input_specs=[mb.TensorSpec(shape=(2, 64))], opset_version=ct.target.iOS18)
        def network(x):
            for number, weight in enumerate(weights):
                x = mb.linear(x=x, weight=weight, name=f"layer{number}")
            return x

        model = ct.convert(network, compute_precision=ct.precision.FLOAT32, minimum_deployment_target=ct.target.iOS18)
        options = {"block_size": 32} if granularity == "per_block" else {}
        config = cto.OpLinearQuantizerConfig(
            mode=mode, dtype=dtype, granularity=granularity, weight_threshold=0, **options
        )
        cto.linear_quantize_weights(model, cto.OptimizationConfig(global_config=config)).save(str(path))

    base = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    new = [(random.normal(size=shape) * 3 + 1).astype(np.float32) for shape in shapes]
    save(tmp_path / "base.mlpackage", base)
    save(tmp_path / "new.mlpackage", new)
    names = list(compressed(tmp_path / "base.mlpackage"))
    assert len(names) == 2
    milblob.refit(tmp_path / "base.mlpackage", dict(zip(names, new, strict=True)), requantize="fit")
    expected = milblob.load(tmp_path / "new.mlpackage", stored=True)
    found = milblob.load(tmp_path / "base.mlpackage", stored=True)
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name].tobytes() == expected[name].tobytes(), name


@pytest.mark.parametrize("precision", some(["FLOAT16", "FLOAT32"], 1))
@pytest.mark.parametrize(
    "options", some([{}, {"granularity": "per_grouped_channel", "group_size": 48}, {"cluster_dim": 2}], 1)
)
def test_a_fitted_palette_is_as_good_as_a_fresh_conversion(tmp_path, options, precision):
    """Palettes that coremltools made of other values: the new ones are as good as what it makes of the new network."""
    ct = pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    from coremltools.converters.mil import Builder as mb

    random = np.random.default_rng(4)

    def save(path, weight):
        @mb.program(input_specs=[mb.TensorSpec(shape=(2, 96))], opset_version=ct.target.iOS18)
        def network(x):
            return mb.linear(x=x, weight=weight, name="layer")

        wanted = {"compute_precision": getattr(ct.precision, precision), "minimum_deployment_target": ct.target.iOS18}
        ct.convert(network, skip_model_load=True, **wanted).save(str(tmp_path / "dense.mlpackage"))
        assert (
            theirs(tmp_path / "dense.mlpackage", [("palettize", {"mode": "kmeans", "nbits": 3, **options})], path)
            is None
        )

    new = np.where(
        random.random((192, 96)) < 0.9, random.normal(size=(192, 96)) * 0.1, 3 + random.normal(size=(192, 96))
    )
    new = new.astype(np.float32)
    save(tmp_path / "base.mlpackage", random.normal(size=(192, 96)).astype(np.float32))
    save(tmp_path / "new.mlpackage", new)
    (name,) = compressed(tmp_path / "base.mlpackage")
    milblob.refit(tmp_path / "base.mlpackage", {name: new}, requantize="fit")
    got, expected = (compressed(tmp_path / f"{one}.mlpackage") for one in ("base", "new"))
    gap = noise_of(got[name][0], new) - noise_of(next(iter(expected.values()))[0], new)
    assert gap > (-0.2 if "cluster_dim" in options else -0.001)


def test_names_of_compressed_weights_without_their_function(tmp_path):
    """A bare name where one weight has it; ambiguous and inner ones are refused; many unknown names cost no product."""
    program_, blocks = new_program("f", "g")
    for number, block in enumerate(blocks):
        parts = {"data": np.zeros((12, 2), np.float32), "scale": np.ones((12, 1), np.float32)}
        add_op(block, "constexpr_blockwise_shift_scale", "both", (12, 2), **parts)
        if number:
            add_op(block, "constexpr_blockwise_shift_scale", "inner", (12, 2), **parts)
            add_op(block, "constexpr_blockwise_shift_scale", "mine", (12, 2), data="inner", scale=parts["scale"])
    path = tmp_path / "m.mlmodel"
    path.write_bytes(as_model(program_))
    values = np.arange(24, dtype=np.float32).reshape(12, 2)
    assert milblob.refit(path, {"mine": values}, requantize="keep").changes[0].name == "g/mine"
    assert milblob.load(path)["g/mine"].tobytes() == values.tobytes()
    with pytest.raises(KeyError, match="'both' is ambiguous: f/both or g/both"):
        milblob.refit(path, {"both": values}, requantize="keep")
    with pytest.raises(
        milblob.UnsupportedError, match="inner: expected a weight, got constexpr_blockwise_shift_scale inside"
    ):
        milblob.refit(path, {"inner": values}, requantize="keep")
    unknown = {f"x{i}": values for i in range(sized(4_000, 20_000))}
    with pytest.raises(ValueError, match=f"{len(unknown):,} arrays with names that"):
        milblob.refit(path, unknown, requantize="keep")
