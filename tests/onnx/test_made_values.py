"""What a conversion makes itself is bounded by the budget of the model: tables, defaults, copies of weights, nodes."""

import sys

import numpy as np
import pytest

import milblob
import milblob.onnx
from children import run_fork
from milblob import budget
from milblob.program import schema
from onnx_models import save
from thorough import some

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="Linux has RLIMIT_AS and /proc: memory that hostile input takes is not limited here",
)
F = np.float32
MIB = 1 << 20


def resized(package, change):
    """Change the message of a package."""
    file = next(package.rglob("*.mlmodel"))
    message = schema.parse("Model", file.read_bytes())
    (function,) = message.mlProgram.functions.values()
    (block,) = function.block_specializations.values()
    change(message.description, function, block)
    file.write_bytes(message.SerializeToString())
    return package


def with_defaults(folder, sizes):
    """Eight optional inputs of a shape."""
    from coremltools.converters.mil.mil import Builder as mb

    def total(**values):
        first, *rest = values.values()
        for value in rest:
            first = mb.add(x=first, y=value)
        return first

    def change(description, function, block):
        types = [one.type for one in function.inputs] + [one.type for op in block.operations for one in op.outputs]
        for declared in (one.tensorType for one in types):
            for dimension, size in zip(declared.dimensions, sizes, strict=False):
                dimension.constant.size = size
        for feature in (*description.input, *description.output):
            feature.type.multiArrayType.shape[:] = sizes
        for feature in description.input:
            feature.type.isOptional = True

    feeds = {f"x{i}": np.zeros((4,) * len(sizes), F) for i in range(8)}
    return resized(save(folder / "m.mlpackage", total, feeds), change)


def with_tables(folder):
    """Sixteen affine, each with tables of 2^24 places; no two are the same."""
    from coremltools.converters.mil.mil import Builder as mb

    def build(x):
        return [
            mb.affine(
                x=x, transform_matrix=np.ones((1, 6), F), output_height=2 + i, output_width=30 + i, name=f"y{i}",
                sampling_mode="bilinear", padding_mode="constant", padding_value=F(0),
                coordinates_mode="normalized_minus_one_to_one", align_corners=True,
            )
            for i in range(16)
        ]  # fmt: skip

    def change(description, function, block):
        for op in block.operations:
            for value in op.attributes.values():
                for at, number in enumerate(value.immediateValue.tensor.ints.values):
                    value.immediateValue.tensor.ints.values[at] = (1 << 24) - number
            if op.type == "affine":
                sizes = [one.constant for one in op.outputs[0].type.tensorType.dimensions[2:]]
                for size in sizes:
                    size.size = (1 << 24) - size.size
                (feature,) = (one for one in description.output if one.name == op.outputs[0].name)
                feature.type.multiArrayType.shape[2:] = [size.size for size in sizes]

    return resized(save(folder / "m.mlpackage", build, {"x": np.zeros((1, 1, 4, 4), F)}), change)


def with_loops(folder, name="y"):
    """Loops in the conditions of loops: each is converted twice, what is in the innermost one 2^20 times."""
    from coremltools.converters.mil.mil import Builder as mb

    def level(number, x):
        if number:
            x = mb.while_loop(_cond=lambda v: level(number - 1, v), _body=lambda v: mb.add(x=v, y=1.0), loop_vars=(x,))
        return mb.less(x=mb.reduce_sum(x=x), y=9.0)

    def build(x):
        return mb.while_loop(_cond=lambda v: level(20, v), _body=lambda v: mb.add(x=v, y=1.0), loop_vars=(x,))

    def change(description, function, block):
        while loops := [op for op in block.operations if op.type == "while_loop"]:
            block = loops[0].blocks[0]
        block.operations[-1].outputs[0].name = block.outputs[0] = name

    return resized(save(folder / "m.mlpackage", build, {"x": np.zeros(2, F)}), change)


def with_shared_weights(folder):
    """Hundreds of lstm with one weight of a MiB: each has a copy with its gates in the order of ONNX."""
    from coremltools.converters.mil.mil import Builder as mb

    weight, zero = np.random.default_rng(0).standard_normal((1024, 256)).astype(F), np.zeros((1, 256), F)

    def build(x):
        return mb.lstm(x=x, initial_h=zero, initial_c=zero, weight_ih=weight, weight_hh=weight, name="y")[0]

    def change(description, function, block):
        last = block.operations[-1]
        for number in range(600):
            block.operations.add().CopyFrom(last)
            for one in block.operations[-1].outputs:
                one.name += str(number)
            block.outputs.append(block.operations[-1].outputs[0].name)
            description.output.add().CopyFrom(description.output[0])
            description.output[-1].name = block.outputs[-1]

    return resized(save(folder / "m.mlpackage", build, {"x": np.zeros((3, 1, 256), F)}), change)


SMALL_AND_LARGE = {
    "defaults": lambda folder: with_defaults(folder, [64 << 20]),
    "defaults whose size wraps": lambda folder: with_defaults(folder, [1 << 32, 1 << 32]),
    "tables": with_tables,
    "loops": with_loops,
    "names in loops": lambda folder: with_loops(folder, "y" * 100_000),
    "shared weights": with_shared_weights,
}


@pytest.mark.parametrize("name", some(SMALL_AND_LARGE, 2))
def test_small_files_that_become_large_are_refused(tmp_path, name):
    """Within a fraction more than the gigabyte that the budget allows; each was several, or without an end."""
    package = SMALL_AND_LARGE[name](tmp_path)
    code = """
        import pathlib
        from children import peak_rss_nbytes
        import milblob.onnx
        with milblob.open(sys.argv[1], max_nbytes=int(sys.argv[3]) or None) as model:
            try:
                milblob.onnx.convert(model, sys.argv[2], weights="embed")
            except milblob.LimitError as error:
                print(peak_rss_nbytes() >> 20, error)
    """
    most = 64 * MIB if name == "loops" else 0  # of the default, nodes alone take half a minute
    output = run_fork(code, package, tmp_path / "m.onnx", most, memory_nbytes=4000 * MIB, timeout=300)
    used, _, words = output.partition(" ")
    assert "max_nbytes (--max-nbytes) allows more" in words
    assert int(used) < 1300, f"{used} MiB"
    assert not (tmp_path / "m.onnx").exists()


def test_blocks_of_a_function_with_a_long_name_have_short_ones(tmp_path):
    """Of three million letters, each of a thousand subgraphs had all."""
    from coremltools.converters.mil.mil import Builder as mb

    def build(x):
        for _ in range(2):
            pred = mb.greater(x=mb.reduce_sum(x=x), y=0.0)
            x = mb.cond(pred=pred, _true_fn=lambda x=x: mb.relu(x=x), _false_fn=lambda x=x: mb.abs(x=x))
        return x

    package = save(tmp_path / "m.mlpackage", build, {"x": np.zeros(4, F)}, opset="iOS18")
    file = next(package.rglob("*.mlmodel"))
    message = schema.parse("Model", file.read_bytes())
    functions, about = message.mlProgram.functions, message.description
    functions["f" * 3000].CopyFrom(functions.pop("main"))
    about.defaultFunctionName = "f" * 3000
    about.functions.add(name="f" * 3000, input=about.input, output=about.output)
    del about.input[:], about.output[:]
    file.write_bytes(message.SerializeToString())
    names = [graph.name for graph in milblob.onnx.convert(package).graph.subgraphs()]
    assert len(set(names)) == 4
    assert max(map(len, names)) < 200


def test_a_caller_allows_more_or_less(tmp_path):
    package = with_defaults(tmp_path, [1 << 10])
    with milblob.open(package, max_nbytes=64 << 10) as model, pytest.raises(milblob.LimitError, match="max_nbytes"):
        milblob.onnx.convert(model)
    with pytest.raises(milblob.LimitError, match="max_nbytes"):
        milblob.onnx.convert(package, max_nbytes=64 << 10)
    with milblob.open(package, max_nbytes=MIB) as model:
        with pytest.raises(ValueError, match="max_nbytes: expected none of an open model"):
            milblob.onnx.convert(model, max_nbytes=MIB)
        for _ in range(9):  # what a conversion has made counts for it alone
            made = milblob.onnx.convert(model)
    assert {value.const_value.nbytes for value in made.graph.initializers.values()} == {4 << 10}


def test_states_and_random_inputs_count(tmp_path, monkeypatch):
    """Of a package, and of an .onnx file of a few kilobytes."""
    from coremltools.converters.mil.mil import Builder as mb

    def build(x, total):
        return mb.add(x=mb.read_state(input=total), y=x)

    states = {"total": np.zeros((1, 1 << 18), np.float16)}
    package = save(
        tmp_path / "m.mlpackage",
        build,
        {"x": np.zeros((1, 1), np.float16)},
        opset="iOS18",
        states=states,
        precision="fp16",
    )
    milblob.onnx.convert(package, tmp_path / "m.onnx")
    wide = {"x": np.zeros((1, 1 << 18), F)}
    other = save(tmp_path / "wide.mlpackage", lambda x: mb.relu(x=x), wide)
    monkeypatch.setattr(budget, "MIN_NBYTES", 1 << 18)
    monkeypatch.setattr(budget, "MAX_GROWTH", 16)
    for source in (package, tmp_path / "m.onnx"):
        with pytest.raises(milblob.LimitError):
            milblob.Session(source)
        with milblob.Session(source, max_nbytes=4 * MIB) as session:
            assert session.states["total"].size == 1 << 18
    with pytest.raises(milblob.LimitError):
        milblob.verify(other, other)
    assert milblob.verify(other, other, runs=1, max_nbytes=4 * MIB).is_same
