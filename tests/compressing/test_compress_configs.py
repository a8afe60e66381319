"""`op_types` and `per_name` against coremltools' OptimizationConfig on the same model."""

import logging
import warnings

import numpy as np
import pytest

import milblob
from compress_coremltools import described
from compress_models import save_architecture
from compress_options import grouped
from milblob import Linear, Prune
from peers import WITHOUT

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
pytestmark = pytest.mark.usefixtures("one_thread", "unsynced")
RENAMED = "another name"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A transformer, one of whose operations has a name that is not that of its output.

    It is a matmul: coremltools finds a conflict between linear operations that share a bias, though it compresses none.
    """
    from coremltools.proto import Model_pb2

    logging.disable(logging.CRITICAL)
    path = save_architecture("transformer", tmp_path_factory.mktemp("m") / "m.mlpackage", 18, np.dtype("float16"))
    file = path / "Data/com.apple.CoreML/model.mlmodel"
    spec = Model_pb2.Model()
    spec.ParseFromString(file.read_bytes())
    (block,) = spec.mlProgram.functions["main"].block_specializations.values()
    (op,) = [op for op in block.operations if any(one.arguments[0].name == "out_0" for one in op.inputs.values())]
    op.attributes["name"].immediateValue.tensor.strings.values[0] = RENAMED
    readers = {
        argument.name: op.outputs[0].name
        for op in block.operations
        for one in op.inputs.values()
        for argument in one.arguments
        if argument.name
    }
    file.write_bytes(spec.SerializeToString())
    yield path, {name: readers[name] for name in ("out_0", "out_1")}
    logging.disable(logging.NOTSET)


def theirs(path, to, kind, **configs):
    import coremltools as ct
    import coremltools.optimize.coreml as opt

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = ct.models.MLModel(str(path), skip_model_load=True)
        getattr(opt, kind)(loaded, opt.OptimizationConfig(**configs)).save(str(to))


def test_types_and_names(model, tmp_path):
    import coremltools.optimize.coreml as opt

    (path, readers), four, kind = model, opt.OpLinearQuantizerConfig(dtype="int4"), "linear_quantize_weights"
    general, neighbours = opt.OpLinearQuantizerConfig(), opt.OpMagnitudePrunerConfig(n_m_ratio=(2, 4))
    some = Linear("int4")
    cases = [
        (kind, {"op_type_configs": {"matmul": four}}, None, {"op_types": {"matmul": some}}, "tied"),
        (kind, {"op_type_configs": {"linear": four}}, None, {"op_types": {"linear": some}}, ""),
        (kind, {"op_type_configs": {"linear": None}}, Linear(), {"op_types": {"linear": None}}, ""),
        (kind, {"op_name_configs": {"out_0": four}}, Linear(), {"per_name": {"out_0": some}}, ""),
        (kind, {"op_name_configs": {RENAMED: four}}, Linear(), {"per_name": {RENAMED: some}}, ""),
        (kind, {"op_name_configs": {RENAMED: None}}, Linear(), {"per_name": {RENAMED: None}}, ""),
        (kind, {"op_name_configs": {readers["out_1"]: four}}, None, {"per_name": {readers["out_1"]: some}}, ""),
        (kind, {"op_name_configs": {"logits": four}}, Linear(), {"per_name": {"logits": some}}, "tied"),
        (kind, {"op_name_configs": {RENAMED: None, "out_0": four}}, None, {"per_name": {RENAMED: None, "out_0": some}}, ""),
        (
            kind, {"op_name_configs": {readers["out_1"]: None}, "op_type_configs": {"linear": four}}, None,
            {"per_name": {readers["out_1"]: None}, "op_types": {"linear": some}}, "",
        ),
        (
            "prune_weights", {"op_name_configs": {"out_0": neighbours}}, None,
            {"per_name": {"out_0": Prune(n_m=(2, 4))}}, "",
        ),
    ]  # fmt: skip
    for number, (function, configs, recipe, options, refused) in enumerate(cases):
        ours, other = tmp_path / f"{number} ours.mlpackage", tmp_path / f"{number} theirs.mlpackage"
        configs = configs if recipe is None else configs | {"global_config": general}
        if refused:
            with pytest.raises(ValueError, match="conflict detected"):
                theirs(path, other, function, **configs)
            with pytest.raises(ValueError, match="expected one recipe for table, got several, by .*gather"):
                milblob.compress(path, ours, recipe, **grouped(**options))
            continue
        theirs(path, other, function, **configs)
        report = milblob.compress(path, ours, recipe, **grouped(**options))
        assert report.weights
        got, expected = described(ours), described(other)
        assert {name: row for name, (row, _) in got.items()} == {name: row for name, (row, _) in expected.items()}
