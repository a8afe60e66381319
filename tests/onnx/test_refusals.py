"""Options that ONNX cannot say, or that nobody knows, are refused by name, and never lead to other values."""

import numpy as np
import pytest

import milblob
import milblob.onnx
from constexpr_bytes import code, value
from hostile_bytes import const, field, model, program, tensor_type
from milblob.program import schema
from onnx_models import save

F, INT = np.float32, np.int32
X = np.arange(24, dtype=F).reshape(1, 2, 3, 4)
V = np.ones((8, 4), F)
R = np.ones((2, 1, 4), F)
TWO = np.ones((1, 2), F)


def windowed(name, **options):
    return lambda mb, x: getattr(mb, name)(x=x, kernel_sizes=[2, 2], strides=[1, 1], pad_type="valid", **options)


def sampled(mb, x):
    return mb.resample(
        x=x, coordinates=np.zeros((1, 2, 2, 2), F), sampling_mode="bilinear", padding_mode="border", padding_value=F(0),
        coordinates_mode="unnormalized", align_corners=True,
    )  # fmt: skip


def transformed(mb, x):
    return mb.affine(
        x=x, transform_matrix=np.ones((1, 6), F), output_height=2, output_width=2, sampling_mode="bilinear",
        padding_mode="constant", padding_value=F(0), coordinates_mode="normalized_minus_one_to_one", align_corners=True,
    )  # fmt: skip


def cropped(mb, x):
    return mb.crop_resize(x=x, boxes=np.array([[0, 0, 1, 1]], F))


def recurrent(name, gates, **states):
    def build(mb, x):
        x = mb.reshape(x=mb.reduce_sum(x=x, axes=[1, 2]), shape=[1, 1, 4])
        weights = {"weight_ih": np.ones((gates * 2, 4), F), "weight_hh": np.ones((gates * 2, 2), F)}
        return getattr(mb, name)(x=x, initial_h=TWO, **weights, **states)[0]

    return build


def scattered(name, **parameters):
    return lambda mb, x: getattr(mb, name)(data=x, **parameters)


TEXTS = {
    ("affine", "coordinates_mode"): transformed, ("affine", "padding_mode"): transformed, ("affine", "sampling_mode"): transformed,
    ("avg_pool", "pad_type"): windowed("avg_pool"), ("l2_pool", "pad_type"): windowed("l2_pool"),
    ("max_pool", "pad_type"): windowed("max_pool"),
    ("conv", "pad_type"): lambda mb, x: mb.conv(x=x, weight=np.ones((1, 2, 2, 2), F)),
    ("conv_transpose", "pad_type"): lambda mb, x: mb.conv_transpose(x=x, weight=np.ones((2, 1, 2, 2), F)),
    **{("conv_quantized", key): lambda mb, x: mb.conv_quantized(
        x=x, weight=np.ones((1, 2, 2, 2), np.uint8), quantization_type="linear", quant_scale=F(1), quant_bias=F(0))
       for key in ("pad_type", "quantization_type")},
    ("crop_resize", "box_coordinate_mode"): cropped, ("crop_resize", "sampling_mode"): cropped,
    ("gelu", "mode"): lambda mb, x: mb.gelu(x=x),
    ("gru", "activation"): recurrent("gru", 3), ("gru", "direction"): recurrent("gru", 3),
    ("gru", "recurrent_activation"): recurrent("gru", 3),
    **{("lstm", key): recurrent("lstm", 4, initial_c=TWO) for key in ("activation", "cell_activation", "direction", "recurrent_activation")},
    ("rnn", "activation"): recurrent("rnn", 1), ("rnn", "direction"): recurrent("rnn", 1),
    ("pad", "mode"): lambda mb, x: mb.pad(x=x, pad=[1, 1]),
    ("random_categorical", "mode"): lambda mb, x: mb.random_categorical(x=mb.reshape(x=x, shape=[2, 12])),
    ("resample", "coordinates_mode"): sampled, ("resample", "padding_mode"): sampled, ("resample", "sampling_mode"): sampled,
    ("resize", "interpolation_mode"): lambda mb, x: mb.resize(x=x, shape=np.array([5, 5], INT), resized_dims=np.uint32(2)),
    ("resize", "sampling_mode"): lambda mb, x: mb.resize(x=x, shape=np.array([5, 5], INT), resized_dims=np.uint32(2)),
    ("resize_bilinear", "sampling_mode"): lambda mb, x: mb.resize_bilinear(x=x, target_size_height=5, target_size_width=5),
    ("scatter", "mode"): scattered("scatter", indices=np.array([0], INT), updates=X),
    ("scatter_along_axis", "mode"): scattered("scatter_along_axis", indices=np.zeros((1, 2, 3, 4), INT), updates=X),
    ("scatter_nd", "mode"): scattered("scatter_nd", indices=np.array([[0]], INT), updates=X),
}  # fmt: skip
ELSEWHERE = {
    "cast", "constexpr_cast", "quantize", "reduce_argmax", "reduce_argmin", "topk", "make_list",  # the declared type
    "einsum", "const",  # an equation is no option
}  # fmt: skip


def with_text(package, operation, parameter, text):
    """Give a parameter of an operation another text: in the operation, or in the const that it is bound to."""
    file = package / "Data" / "com.apple.CoreML" / "model.mlmodel"
    model = schema.parse("Model", file.read_bytes())
    (function,) = model.mlProgram.functions.values()
    (block,) = function.block_specializations.values()
    changed = 0
    for one in block.operations:
        if one.type != operation:
            continue
        (bound,) = one.inputs[parameter].arguments
        value = bound.value
        if bound.WhichOneof("binding") == "name":
            (const,) = (other for other in block.operations if other.outputs and other.outputs[0].name == bound.name)
            value = const.attributes["val"]
        value.immediateValue.tensor.strings.values[:] = [text]
        changed += 1
    assert changed
    file.write_bytes(model.SerializeToString())


def test_every_option_that_is_a_text_is_here():
    from milblob.dtypes import DType
    from milblob.rules.operation_rules import table

    known = {
        (name, key)
        for name in milblob.onnx.supported() - ELSEWHERE
        for _, arguments in table().versions.get(name, ())
        for key, argument in arguments.items()
        if argument.dtypes == frozenset({DType.STRING})
    }
    assert known == set(TEXTS)


@pytest.mark.parametrize(("operation", "parameter"), TEXTS)
@pytest.mark.sample(8)
def test_an_unknown_text_is_refused(tmp_path, operation, parameter):
    from coremltools.converters.mil.mil import Builder as mb

    path = save(tmp_path / "m.mlpackage", lambda x: TEXTS[operation, parameter](mb, x), {"x": X}, opset="iOS18")
    milblob.onnx.convert(path)
    with_text(path, operation, parameter, "NO_SUCH")
    with pytest.raises((milblob.UnsupportedError, milblob.ProgramError), match="NO_SUCH"):
        milblob.onnx.convert(path, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_boxes_with_numbers_of_several_images_are_refused_before_ios17(tmp_path):
    """coremltools declares a dimension of images that these crops do not have."""
    from coremltools.converters.mil.mil import Builder as mb

    roi = np.zeros((3, 1, 5, 1, 1), F)
    path = save(tmp_path / "m.mlpackage", lambda x: mb.crop_resize(x=x, roi=roi), {"x": X.repeat(2, 0)}, opset="iOS16")
    with pytest.raises(milblob.UnsupportedError, match="crop_resize: expected one image"):
        milblob.onnx.convert(path)


def test_conv_quantized_with_a_palette_is_refused(tmp_path):
    from coremltools.converters.mil.mil import Builder as mb

    def build(x):
        return mb.conv_quantized(
            x=x, weight=np.ones((1, 2, 2, 2), np.uint8), quantization_type="lut", quant_scale=F(1), quant_bias=F(0)
        )

    path = save(tmp_path / "m.mlpackage", build, {"x": X})
    with pytest.raises(milblob.UnsupportedError, match="quantization_type linear, got 'lut'"):
        milblob.onnx.convert(path)


@pytest.mark.parametrize(("kind", "key", "axes"), [("transpose", "perm", [0, 5]), ("cumsum", "axis", 5)])
def test_an_axis_that_the_input_lacks_is_refused(tmp_path, kind, key, axes):
    """ONNX's own inference of types lets these two pass, and runtimes refuse the result."""
    bound = field(2, field(1, "x") + field(2, field(1, field(1, "x"))))
    bound += field(2, field(1, key) + field(2, field(1, field(2, value("INT32", np.array(axes, INT))))))
    output = field(3, field(1, "y") + field(2, tensor_type(code("FLOAT32"), (2, 3))))
    x = const(value("FLOAT32", np.zeros((2, 3), F)), "x")
    (tmp_path / "m.mlmodel").write_bytes(model(program(x, field(1, kind) + bound + output, opset="CoreML8"), 9))
    [found] = milblob.check(tmp_path / "m.mlmodel", rules="MIL050").findings
    assert found.where == "main.block['CoreML8'].op[1] 'y'" and found.message.startswith(
        f"{key} of {kind}: expected -2 "
    )
    with pytest.raises(milblob.ProgramError, match=f"MIL050 {key} of {kind}: expected -2 to 1, got 5"):
        milblob.onnx.convert(tmp_path / "m.mlmodel", tmp_path / "m.onnx")
