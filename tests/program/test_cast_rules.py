"""Casts in Programs: edited by cast_rules, applied by splice, judged by coremltools."""

import contextlib
import functools
import importlib
import itertools
import logging

import ml_dtypes
import numpy as np
import pytest

import milblob
from consumers import consumers_of
from draws import restarts
from hostile_bytes import (
    blob_value,
    const,
    field,
    immediate,
    list_value,
    model,
    operation,
    program,
    tensor_type,
    write_package,
)
from milblob import DType, ProgramError, _codec
from milblob.program import cast_edits as cast_rules
from milblob.program.cast_edits import cast_edits, is_vector, refusal
from milblob.program.scan import ProgramScan
from milblob.program.splice import splice
from milblob.program.wire_edits import combined
from milblob.values.cast import cast_array
from milblob.values.tensorvalue import pack_tensor
from peers import WITHOUT
from thorough import some

ct = pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
proto, types, mb = ct.proto, ct.converters.mil.mil.types, ct.converters.mil.Builder
pymil_load = importlib.import_module("coremltools.converters.mil.frontend.milproto.load").load
_BlobStorageWriter = importlib.import_module("coremltools.libmilstoragepython")._BlobStorageWriter

TARGETS = {15: ct.target.iOS15, 16: ct.target.iOS16, 17: ct.target.iOS17, 18: ct.target.iOS18}
WITH_CONSTEXPR = pytest.mark.parametrize("ios", [16, 17, 18])
SHAPE = (1, 4, 6, 6)
rng = np.random.default_rng(5)
each_test_draws_the_same = restarts(rng)


def weight(*shape, dtype=np.float32):
    return (rng.random(shape) + 0.5).astype(dtype)


def convert(body, ios, folder, dtype=types.fp32, **inputs):
    """A package of one function. `inputs`: name -> shape, or (shape, type); float ones are of `dtype`."""
    inputs = inputs or {"x": SHAPE}
    specs = [
        mb.TensorSpec(value[0], dtype=value[1]) if isinstance(value[0], tuple) else mb.TensorSpec(value, dtype=dtype)
        for value in inputs.values()
    ]
    names = ", ".join(inputs)
    named = eval(f"lambda {names}: body({names})", {"body": body})  # coremltools takes the names from the signature
    logging.disable(logging.CRITICAL)
    try:
        made = ct.convert(
            mb.program(input_specs=specs, opset_version=TARGETS[ios])(named),
            convert_to="mlprogram",
            minimum_deployment_target=TARGETS[ios],
            pass_pipeline=ct.PassPipeline.EMPTY,
            compute_precision=ct.precision.FLOAT32,
            skip_model_load=True,
        )
    finally:
        logging.disable(logging.NOTSET)
    path = folder / f"m{ios}.mlpackage"
    made.save(str(path))
    return path


def refused(scan, row, dtype):
    return refusal(scan, row, dtype, consumers_of(scan, row))


class Edited:
    """A package whose model file is edited again and again; new values go into weights/new0.bin, new1.bin, ..."""

    def __init__(self, path):
        self.file = path / "Data/com.apple.CoreML/model.mlmodel"
        self.path, self.weights = path, self.file.parent / "weights"
        self.weights.mkdir(exist_ok=True)

    def constants(self):
        """name -> (ProgramScan, row) of every tensor constant."""
        found = milblob.open(self.path, constants=True, stored=True)
        return {name: (t.program.scan, t.constant) for name, t in found.items() if t.constant is not None}

    def cast(self, names, dtype, immediate_values=False):
        """Cast constants; returns name -> the values that were written."""
        opened = milblob.open(self.path, constants=True, stored=True)
        edits, written = [], {}
        bin_name = f"new{len(list(self.weights.glob('new*')))}.bin"
        writer = None if immediate_values else _BlobStorageWriter(str(self.weights / bin_name))
        for name in names:
            tensor = opened[name]
            values, _ = cast_array(tensor.read(), dtype)
            written[name] = values
            if writer is None:
                place = pack_tensor(values)
            else:
                flat = values.reshape(-1)
                offset = (
                    writer.write_fp16_data(flat.view(np.uint16))
                    if flat.itemsize == 2
                    else writer.write_float_data(flat)
                )
                place = (f"@model_path/weights/{bin_name}", offset)
            edits += cast_edits(tensor.program.scan, tensor.constant, dtype, place, tensor.consumers)
            source = tensor.program.scan.buffer
        del writer
        data = splice(source, (0, source.nbytes), combined(edits)).tobytes()
        self.file.write_bytes(data)
        return written

    def spec(self):
        return proto.Model_pb2.Model.FromString(self.file.read_bytes())

    def block(self):
        function = self.spec().mlProgram.functions["main"]
        return function.block_specializations[function.opset]

    def pymil(self):
        spec = self.spec()
        logging.disable(logging.CRITICAL)
        try:
            return pymil_load(spec, spec.specificationVersion, str(self.weights))
        finally:
            logging.disable(logging.NOTSET)

    def types(self):
        """Output name -> type as PyMIL infers it, and as the file declares it; of all operations in the file."""
        inferred, declared = {}, {}

        def walk_file(block):
            for op in block.operations:
                declared.update({out.name: str(out.type) for out in op.outputs})
                for inner in op.blocks:
                    walk_file(inner)

        def walk(block):
            for op in block.operations:
                # PyMIL's loader makes constants of its own, of parameters that are written inside operations.
                own = [var for var in op.outputs if var.name in declared]
                inferred.update({var.name: var.sym_type.__type_info__() for var in own})
                for inner in op.blocks:
                    walk(inner)

        walk_file(self.block())
        walk(self.pymil().functions["main"])
        return inferred, declared

    def values(self, name):
        """The values that coremltools has for a constant; decompressed, if it is a constexpr_cast."""
        (op,) = [op for op in self.pymil().functions["main"].operations if op.outputs[0].name == name]
        return op.materialized_val_inference() if op.op_type == "constexpr_cast" else op.outputs[0].val


def conv(x):
    return mb.conv(x=x, weight=mb.const(val=weight(3, 4, 2, 2), name="w"), name="y")


# ------------------------------------------------------------------------------------------- float32 as constexpr_cast


@pytest.mark.parametrize("immediate_values", [False, True])
@WITH_CONSTEXPR
def test_constexpr_cast_and_back(ios, immediate_values, tmp_path):
    edited = Edited(convert(conv, ios, tmp_path))
    types_before, spec_before, values = edited.types(), edited.spec(), edited.values("w")
    written = edited.cast(["w"], "float16", immediate_values)["w"]
    assert (written == values.astype(np.float16)).all()
    assert edited.types() == types_before
    (op,) = [op for op in edited.block().operations if op.outputs[0].name == "w"]
    assert op.type == "constexpr_cast" and op.attributes["name"].immediateValue.tensor.strings.values == ["w"]
    got = edited.values("w")
    assert got.dtype == np.float32 and (got == values.astype(np.float16).astype(np.float32)).all()
    with milblob.open(edited.path) as opened:
        assert opened["w"].dtype == np.float32 and opened["w"].op == "constexpr_cast"
    edited.cast(["w.source_val"], "float32", immediate_values)
    assert edited.types() == types_before
    assert (edited.values("w") == written.astype(np.float32)).all()
    before, after = spec_before.mlProgram, edited.spec().mlProgram
    for message in (before, after):
        function = message.functions["main"]
        for op in function.block_specializations[function.opset].operations:
            if op.outputs[0].name == "w":
                op.attributes["val"].ClearField("immediateValue")
                op.attributes["val"].ClearField("blobFileValue")
    assert after == before


@WITH_CONSTEXPR
def test_operation_is_what_coremltools_writes(ios, tmp_path):
    values = weight(3, 4, 2, 2)

    def theirs(x):
        w = mb.constexpr_cast(source_val=values.astype(np.float16), output_dtype="fp32", name="w")
        return mb.conv(x=x, weight=w, name="y")

    def ours(x):
        return mb.conv(x=x, weight=mb.const(val=values, name="w"), name="y")

    (tmp_path / "theirs").mkdir()
    expected = Edited(convert(theirs, ios, tmp_path / "theirs")).block()
    edited = Edited(convert(ours, ios, tmp_path))
    edited.cast(["w"], "float16")
    (op,) = [op for op in edited.block().operations if op.outputs[0].name == "w"]
    (want,) = [op for op in expected.operations if op.outputs[0].name == "w"]
    for message in (op, want):
        holder = message.inputs["source_val"].arguments[0].value if ios >= 18 else message.attributes["source_val"]
        holder.blobFileValue.fileName, holder.blobFileValue.offset = "", 0
    assert op == want


def test_docstring_unknown_fields_and_other_attributes_are_kept(tmp_path):
    """Nothing that is not about the type or the values is lost."""
    value = field(1, "why") + immediate(11, [2, 5], field(1, field(1, bytes(40)))) + field(77, b"later")
    attributes = [("extra", immediate(2, [], field(4, field(1, "kept")))), ("val", value)]
    op = operation("const", "w", attributes, output_type=tensor_type(11, [2, 5])) + field(99, b"unknown")
    path = write_package(tmp_path, model(program(op)))
    rows = milblob.open(path, constants=True)
    tensor = rows["w"]
    half = pack_tensor(np.zeros(10, np.float16))
    scan = tensor.program.scan
    assert not cast_rules.opset(scan, tensor.constant) < 16
    edits = cast_edits(scan, tensor.constant, "float16", half, tensor.consumers)
    data = splice(scan.buffer, (0, scan.buffer.nbytes), edits).tobytes()
    for piece in (field(1, "why"), field(77, b"later"), field(99, b"unknown"), b"kept"):
        assert piece in data
    again = milblob.open(data, constants=True, stored=True)["w.source_val"]
    assert again.dtype == np.float16 and again.shape == (2, 5) and again.op == "constexpr_cast"


def everything(ios):
    """One program in which each operation reads float32 constants in every parameter that takes them."""
    numbers = itertools.count()
    c = lambda *shape: mb.const(val=weight(*shape), name=f"w{next(numbers)}")  # noqa: E731

    def body(x, x2, ids, seq):
        vector = {"gamma": c(4), "beta": c(4)}
        outs = [
            mb.add(x=x, y=c(4, 6, 6)), mb.sub(x=c(4, 6, 6), y=x), mb.maximum(x=x, y=c(6, 6)), mb.pow(x=x, y=c(6, 6)),
            mb.matmul(x=x, y=c(6, 5)), mb.matmul(x=c(5, 6), y=x), mb.conv(x=x, weight=c(3, 4, 2, 2), bias=c(3)),
            mb.conv_transpose(x=x, weight=c(4, 3, 2, 2)), mb.linear(x=x2, weight=c(5, 6), bias=c(5)),
            mb.batch_norm(x=x, mean=c(4), variance=c(4), **vector), mb.instance_norm(x=x, **vector),
            mb.layer_norm(x=x, axes=[-2, -1], gamma=c(6, 6), beta=c(6, 6)), mb.gather(x=c(10, 3), indices=ids, axis=0),
            mb.gather_nd(x=c(10, 3), indices=ids), mb.scatter(data=c(10, 6), indices=np.int32([0, 1, 2, 3]), updates=x2),
            mb.scatter_nd(data=x2, indices=np.int32([[0, 1]]), updates=c(1)), mb.concat(values=(x, c(*SHAPE)), axis=1),
            mb.select(cond=mb.greater(x=x, y=np.float32(0)), a=c(*SHAPE), b=x), mb.stack(values=(x, c(*SHAPE)), axis=1),
            mb.einsum(values=(x, c(1, 6, 6, 5)), equation="nchw,nwhu->nchu"), mb.equal(x=x, y=c(6, 6)),
            mb.transpose(x=c(4, 6), perm=[1, 0]), mb.reshape(x=c(4, 6), shape=[6, 4]), mb.cast(x=c(4, 6), dtype="fp16"),
            mb.slice_by_index(x=c(4, 6), begin=[0, 0], end=[2, 6]), mb.expand_dims(x=c(4, 6), axes=[0]), mb.identity(x=c(4, 6)),
            mb.tile(x=c(4, 6), reps=[1, 2]), mb.softmax(x=c(4, 6)), mb.split(x=c(4, 6), num_splits=2, axis=0)[0],
            mb.topk(x=c(4, 6), k=2)[0], mb.clip(x=c(4, 6), alpha=np.float32(0), beta=np.float32(1)), mb.shape(x=c(4, 6)),
            mb.argsort(x=c(4, 6)), mb.reduce_argmax(x=c(4, 6)), mb.fill_like(ref_tensor=c(4, 6), value=np.float32(1)),
            mb.pad(x=c(4, 6), pad=np.int32([1, 1]), mode="constant", constant_val=np.float32(0)),
            mb.affine(x=x, transform_matrix=c(1, 6), output_height=4, output_width=4, sampling_mode="bilinear", padding_mode="constant",
                      padding_value=np.float32(0), coordinates_mode="normalized_minus_one_to_one", align_corners=True),
            mb.resample(x=x, coordinates=c(1, 3, 3, 2), sampling_mode="bilinear", padding_mode="constant", padding_value=np.float32(0),
                        coordinates_mode="normalized_minus_one_to_one", align_corners=True),
            mb.lstm(x=seq, initial_h=c(2, 5), initial_c=c(2, 5), weight_ih=c(20, 3), weight_hh=c(20, 5), bias=c(20))[0],
            mb.gru(x=seq, initial_h=c(2, 5), weight_ih=c(15, 3), weight_hh=c(15, 5), bias=c(15))[0],
            mb.rnn(x=seq, initial_h=c(2, 5), weight_ih=c(5, 3), weight_hh=c(5, 5), bias=c(5))[0],
            mb.while_loop(_cond=lambda a, b: mb.less(x=mb.reduce_sum(x=a), y=np.float32(3)), _body=lambda a, b: (mb.add(x=a, y=b), b), loop_vars=(x, c(*SHAPE)))[0],
            mb.cond(pred=mb.less(x=mb.reduce_sum(x=x), y=np.float32(3)), _true_fn=lambda: mb.add(x=x, y=c(*SHAPE)), _false_fn=lambda: c(*SHAPE)),
            mb.list_read(ls=mb.list_write(ls=mb.make_list(init_length=2, elem_shape=SHAPE, dtype="fp32"), index=0, value=c(*SHAPE)), index=0),
        ]  # fmt: skip
        if ios >= 17:
            outs += [mb.quantize(input=x, scale=c(4), axis=1, output_dtype="int8")]
        if ios >= 18:
            outs += [
                mb.scaled_dot_product_attention(query=x, key=c(*SHAPE), value=c(*SHAPE), attn_mask=c(6, 6)),
                mb.slice_update(x=x, update=c(1, 4, 6, 3), begin=np.int32([0, 0, 0, 0]), end=np.int32([1, 4, 6, 3])),
            ]
        return mb.identity(x=outs[0]), c(2, 6), *outs[1:]

    return body


@WITH_CONSTEXPR
def test_every_consumer_takes_a_constexpr(ios, tmp_path):
    """Every float32 constant of rank 1 or more, in every parameter: afterwards PyMIL infers the same types as before."""
    path = convert(everything(ios), ios, tmp_path, x=SHAPE, x2=(4, 6), ids=((2, 1), types.int32), seq=(7, 2, 3))
    edited = Edited(path)
    before = edited.types()
    rows = edited.constants()
    names = [
        name for name, (_, row) in rows.items()
        if row.mil_code == DType.FLOAT32.mil_code and row.shape and row.op is not None and row.op.type == "const"
    ]  # fmt: skip
    assert len(names) > 60
    assert [refused(*rows[name], "float16") for name in names] == [None] * len(names)
    edited.cast(names, "float16")
    assert edited.types() == before
    kinds = [op.type for op in edited.block().operations]
    assert kinds.count("constexpr_cast") == len(names) - 2  # two are in the branches of cond
    assert all(
        op.type != "const" or "FLOAT32" not in str(op) or not op.outputs[0].type.tensorType.rank
        for op in edited.block().operations
    )


NEEDS_VALUE = {
    ("conv_transpose", "bias"): lambda x, w: mb.conv_transpose(x=x, weight=mb.const(val=weight(4, 4, 2, 2)), bias=w),
    ("prelu", "alpha"): lambda x, w: mb.prelu(x=x, alpha=w),
    ("softplus_parametric", "alpha"): lambda x, w: mb.softplus_parametric(x=x, alpha=w, beta=mb.const(val=weight(4))),
    ("softplus_parametric", "beta"): lambda x, w: mb.softplus_parametric(x=x, alpha=mb.const(val=weight(4)), beta=w),
    ("non_zero", "x"): lambda x, w: mb.non_zero(x=w),
}


@pytest.mark.parametrize("key", NEEDS_VALUE, ids=".".join)
@WITH_CONSTEXPR
def test_consumers_that_need_the_value(ios, key, tmp_path, monkeypatch):
    """Refused by name, and rightly: PyMIL cannot load what would come of it, or infers another type."""
    assert set(NEEDS_VALUE) == cast_rules._NEEDS_VALUE
    edited = Edited(convert(lambda x: NEEDS_VALUE[key](x, mb.const(val=weight(4), name="w")), ios, tmp_path))
    program_, row = edited.constants()["w"]
    with pytest.raises(ProgramError) as caught:
        cast_edits(program_, row, "float16", ("@model_path/weights/weight.bin", 64), consumers_of(program_, row))
    assert f"{key[0]} " in str(caught.value) and f" reads it as {key[1]}: expected a const there" in str(caught.value)
    assert caught.value.where.endswith("'w'.val")
    monkeypatch.setattr(cast_rules, "_NEEDS_VALUE", frozenset())
    before = edited.types()
    edited.cast(["w"], "float16")
    try:
        after = edited.types()
    except AttributeError as error:  # None for a value
        assert "'NoneType' object has no attribute 'shape'" in str(error)
    else:
        assert after != before


# --------------------------------------------------------------------------------------------- another declared type

INDEPENDENT = {
    ("cast", "x"): lambda x, w: mb.cast(x=w, dtype="int32"),
    ("shape", "x"): lambda x, w: mb.shape(x=w),
    ("argsort", "x"): lambda x, w: mb.argsort(x=w),
    ("reduce_argmax", "x"): lambda x, w: mb.reduce_argmax(x=w),
    ("reduce_argmin", "x"): lambda x, w: mb.reduce_argmin(x=w),
    ("non_zero", "x"): lambda x, w: mb.non_zero(x=w),
    ("fill_like", "ref_tensor"): lambda x, w: mb.fill_like(ref_tensor=w, value=np.int32(1)),
    ("resample", "coordinates"): lambda x, w: mb.resample(
        x=x, coordinates=w, sampling_mode="bilinear", padding_mode="constant", padding_value=np.zeros((), nptype(x)),
        coordinates_mode="normalized_minus_one_to_one", align_corners=True),
    ("conv", "weight"): lambda x, w: mb.conv(x=x, weight=w),
    ("matmul", "x"): lambda x, w: mb.matmul(x=w, y=x),
    ("matmul", "y"): lambda x, w: mb.matmul(x=x, y=w),
    ("prelu", "alpha"): lambda x, w: mb.prelu(x=x, alpha=w),
    ("scaled_dot_product_attention", "attn_mask"): lambda x, w: mb.scaled_dot_product_attention(query=x, key=x, value=x, attn_mask=w),
}  # fmt: skip
SHAPES = {"resample": (1, 3, 3, 2), "conv": (3, 4, 2, 2), "prelu": (4,)}


def nptype(var):
    return types.nptype_from_builtin(var.dtype)


@pytest.mark.parametrize("ios", some([15, 16, 17, 18], 1))
@pytest.mark.parametrize("key", INDEPENDENT, ids=".".join)
def test_retyped_where_consumers_do_not_mind(key, ios, tmp_path):
    """float16 to float32 (and in iOS15 the reverse): accepted from the opset in the table, refused before it."""
    assert set(INDEPENDENT) == set(cast_rules._INDEPENDENT)
    since = cast_rules._INDEPENDENT[key][0]
    for own, target in [(np.float16, "float32")] + [(np.float32, "float16")] * (ios == 15):
        folder = tmp_path / target
        folder.mkdir()

        def body(x, own=own):
            return INDEPENDENT[key](x, mb.const(val=weight(*SHAPES.get(key[0], (6, 6)), dtype=own), name="w"))

        dtype = types.fp16 if own is np.float16 and ios >= 16 else types.fp32
        if ios == 15 and own is np.float16 and key[0] == "resample":
            continue  # its coordinates are float32 there
        with contextlib.suppress(ValueError) if ios < since else contextlib.nullcontext():
            path = convert(body, ios, folder, dtype)
            edited = Edited(path)
            program_, row = edited.constants()["w"]
            assert (refused(program_, row, target) is None) == (ios >= since)
            if ios >= since:
                inferred, declared = edited.types()
                values = edited.values("w")
                edited.cast(["w"], target)
                inferred_after, declared_after = edited.types()
                changed = {name for name in declared if declared[name] != declared_after[name]}
                assert changed == {"w"} == {name for name in inferred if inferred[name] != inferred_after[name]}
                assert (edited.values("w") == values.astype(target)).all()


@pytest.mark.parametrize(
    "key", [("linear", "weight"), ("add", "y"), ("gather", "x"), ("concat", "values"), ("conv", "weight")]
)
def test_retyping_refused_by_name(key, tmp_path):
    made = {
        "linear": lambda x, w: mb.linear(x=mb.reshape(x=x, shape=[24, 6]), weight=w, name="y"),
        "add": lambda x, w: mb.add(x=x, y=w, name="y"),
        "gather": lambda x, w: mb.gather(x=w, indices=np.int32([0]), axis=0, name="y"),
        "concat": lambda x, w: mb.concat(values=(mb.reshape(x=x, shape=[24, 6]), w), axis=0, name="y"),
        "conv": lambda x, w: mb.conv(x=x, weight=w, bias=mb.const(val=weight(3, dtype=np.float16)), name="y"),
    }
    shape = (3, 4, 2, 2) if key[0] == "conv" else (6, 6)
    body = lambda x: made[key[0]](x, mb.const(val=weight(*shape, dtype=np.float16), name="w"))  # noqa: E731
    program_, row = Edited(convert(body, 17, tmp_path, types.fp16)).constants()["w"]
    with pytest.raises(ProgramError) as caught:
        cast_edits(program_, row, "float32", ("@model_path/weights/weight.bin", 64), consumers_of(program_, row))
    because = "the type of its bias, which is float16" if key[0] == "conv" else "float16, which its type follows from"
    assert str(caught.value).startswith(
        f"cast of float16 to float32: {key[0]} 'y' reads it as {key[1]}: expected {because}"
    )


def test_one_of_several_consumers_refuses(tmp_path):
    def body(x):
        w = mb.const(val=weight(6, 6), name="w")
        return mb.cast(x=w, dtype="int32"), mb.add(x=x, y=w, name="sum")

    program_, row = Edited(convert(body, 15, tmp_path)).constants()["w"]
    assert refused(program_, row, "float16") == (
        "cast of float32 to float16: add 'sum' reads it as y: expected float32, which its type follows from"
    )


@pytest.mark.parametrize("ios", [15, 18])
def test_bfloat16_is_refused_everywhere(ios, tmp_path):
    program_, row = Edited(convert(conv, ios, tmp_path)).constants()["w"]
    assert "conv 'y' reads it as weight: expected float32" in refused(program_, row, "bfloat16")


# ------------------------------------------------------------------------------------------------------------ by hand


def scanned(*operations, version="CoreML7", **options):
    data = program(*operations).replace(b"CoreML7", version.encode())
    return ProgramScan(_codec.Buffer(data), (0, len(data)), constants=True, **options)


FLOATS = immediate(11, [2, 5], field(1, field(1, bytes(40))))


def only(scanned_program, **wanted):
    (row,) = [c for c in scanned_program.constants if all(getattr(c, key) == value for key, value in wanted.items())]
    return row


def words_of(scanned_program, row, dtype="float16"):
    words = refused(scanned_program, row, dtype)
    with pytest.raises(ProgramError, match="^cast of ") as caught:
        cast_edits(scanned_program, row, dtype, b"", consumers_of(scanned_program, row))
    assert words is not None and str(caught.value).startswith(words)
    return words


def test_values_that_are_no_constants_of_their_own():
    inline = field(2, field(1, "y") + field(2, field(1, field(2, FLOATS))))
    p = scanned(operation("add", "s", inputs=inline, output_type=tensor_type(11, [2, 5])))
    assert words_of(p, only(p, key="y")).endswith("got a value inside another operation (add.y)")
    p = scanned(operation("constexpr_affine_dequantize", "w", [("scale", FLOATS)], output_type=tensor_type(11, [2, 5])))
    assert words_of(p, only(p, key="scale")).endswith(
        "got a part of a compressed weight (constexpr_affine_dequantize.scale)"
    )
    p = scanned(operation("const", "w", [("val", list_value([FLOATS]))]))
    assert words_of(p, only(p, key="val")).endswith("got an element of a list or dictionary")
    p = scanned(operation("const", "w", [("other", FLOATS)], output_type=tensor_type(11, [2, 5])))
    assert words_of(p, only(p, key="other")).endswith("got a value inside another operation (const.other)")
    data = field(4, field(1, "note") + field(2, FLOATS))
    p = ProgramScan(_codec.Buffer(data), (0, len(data)), constants=True)
    assert words_of(p, only(p, key="note")).endswith("got an attribute of the Program, a function or a block")


def test_same_dtype_scalars_and_other_kinds():
    w = operation("const", "w", [("val", FLOATS)], output_type=tensor_type(11, [2, 5]))
    p = scanned(w)
    assert words_of(p, only(p, key="val"), "float32").endswith("expected another dtype, got the same")
    assert words_of(p, only(p, key="val"), "int8").endswith("expected dtypes of one kind")
    scalar = immediate(11, [], field(1, field(1, bytes(4))))
    p = scanned(operation("const", "w", [("val", scalar)], output_type=tensor_type(11, [])))
    assert words_of(p, only(p, key="val")).endswith("expected a tensor, got a scalar")
    for dims, vector in (([], True), ([10], True), ([2, 5], False)):
        value = immediate(11, dims, field(1, field(1, bytes(40 if dims else 4))))
        p = scanned(operation("const", "w", [("val", value)], output_type=tensor_type(11, dims)))
        assert is_vector(only(p, key="val")) == vector


@functools.cache
def reading(op, parameter):
    return operation(
        op,
        "r",
        inputs=field(2, field(1, parameter) + field(2, field(1, field(1, "w")))),
        output_type=tensor_type(11, [2, 5]),
    )


@pytest.mark.parametrize(("op", "words"), [
    ("constexpr_blockwise_shift_scale", "expected a weight, got a part of a compressed one"),
    ("custom_layer", "expected an operation that is known to take a constexpr output"),
])  # fmt: skip
def test_consumers_that_no_constexpr_goes_into(op, words):
    w = operation("const", "w", [("val", FLOATS)], output_type=tensor_type(11, [2, 5]))
    p = scanned(w, reading(op, "scale"), version="CoreML8")
    assert words_of(p, only(p, key="val")) == f"cast of float32 to float16: {op} 'r' reads it as scale: {words}"


def test_outputs_of_blocks():
    """As constexpr_cast its type stays; any other cast would change what the function returns."""
    w = operation("const", "w", [("val", FLOATS)], output_type=tensor_type(11, [2, 5]))
    block = field(3, w) + field(2, "w")
    for version in ("CoreML5", "CoreML6"):
        function = field(
            2, field(1, "main") + field(2, field(2, version) + field(3, field(1, version) + field(2, block)))
        )
        data = field(1, 1) + function
        p = ProgramScan(_codec.Buffer(data), (0, len(data)), constants=True)
        row = only(p, key="val")
        if version == "CoreML6":
            assert refused(p, row, "float16") is None
        assert "it is an output of its block" in words_of(p, row, "float16" if version == "CoreML5" else "bfloat16")


def test_a_cast_of_an_unused_constant():
    w = operation("const", "w", [("val", FLOATS)], output_type=tensor_type(11, [2, 5]))
    p = scanned(w)
    values = np.arange(10).astype(ml_dtypes.bfloat16)
    edits = cast_edits(p, only(p, key="val"), "bfloat16", pack_tensor(values), ())
    again = milblob.open(model(splice(p.buffer, p.span, edits).tobytes()), constants=True)["w"]
    assert again.mil_dtype is DType.BFLOAT16 and again.read().tolist() == np.arange(10).reshape(2, 5).tolist()


def test_constexpr_cast_to_something_else():
    half = blob_value(10, [2, 5], "@model_path/weights/weight.bin", 64)
    text = immediate(2, [], field(4, field(1, "fp32")))
    op = operation(
        "constexpr_cast", "w", [("source_val", half), ("output_dtype", text)], output_type=tensor_type(11, [2, 5])
    )
    p = scanned(op)
    row = only(p, key="source_val")
    assert words_of(p, row, "bfloat16") == "cast of float16 to bfloat16: expected float32, which constexpr_cast yields"
    assert refused(p, row, "float32") is None


@pytest.mark.parametrize(
    ("version", "ios"),
    [
        ("CoreML5", 15),
        ("CoreML6", 16),
        ("CoreML7", 17),
        ("CoreML8", 18),
        ("CoreML9", 19),
        ("CoreML4", 15),
        ("CoreMLx", 15),
    ],
)
def test_opset(version, ios):
    p = scanned(const(FLOATS), version=version)
    assert cast_rules.opset(p, only(p, key="val")) == ios
