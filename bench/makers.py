"""The data that the jobs run on: the same tensors in every rival's file format, written by the rival's own writer.

Everything is seeded: two runs with the same scale make the same values. Sizes are element counts unless named nbytes.
"""

import json
import math
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import milblob

MODEL_NAME = "com.apple.CoreML/model.mlmodel"
WEIGHTS_NAME = "com.apple.CoreML/weights"
FILE_NAME = "@model_path/weights/weight.bin"
SHARED = ("transformer.mlpackage", "load.mlpackage")
"""What more than one bench file reads."""


class Tensors:
    """`count` different tensors of one shape, made on the fly: each is a window of one random block.

    Args:
        count: how many.
        shape: of each.
        dtype: float16 or float32.

    Iterating gives (name, array), in the order of their names.
    """

    def __init__(self, count: int, shape: tuple[int, ...], dtype: Any = np.float16) -> None:
        self.count, self.shape, self.dtype = count, shape, np.dtype(dtype)
        self._size = int(np.prod(shape))
        random = np.random.default_rng(2)
        # 0.5 to 1, either sign: no NaN, so == is enough.
        if self.dtype == np.float16:
            bits = random.integers(0, 1 << 16, self._size + 64 * count, np.uint16)
            self._block = (bits & 0x83FF | 0x3800).view(np.float16)
        else:
            bits = random.integers(0, 1 << 32, self._size + 64 * count, np.uint32)
            self._block = (bits & 0x807FFFFF | 0x3F000000).view(np.float32)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> np.ndarray[Any, Any]:
        start = 64 * number
        return self._block[start : start + self._size].reshape(self.shape)

    def name(self, number: int) -> str:
        """Return the name of a tensor; names sort as numbers do."""
        return f"weight_{number:05d}"

    def __iter__(self) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        return ((self.name(i), self[i]) for i in range(self.count))

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self.count * self._size * self.dtype.itemsize


def write_blob(path: Path, tensors: Tensors) -> None:
    """Write a blob v2 file with coremltools' own writer."""
    write_blob_offsets(path, tensors)


def write_blob_offsets(path: Path, tensors: Tensors) -> list[int]:
    """Write a blob v2 file with coremltools' own writer; return the metadata offsets."""
    from coremltools.libmilstoragepython import _BlobStorageWriter

    writer = _BlobStorageWriter(str(path))
    if tensors.dtype == np.float32:
        return [writer.write_float_data(array.reshape(-1)) for _, array in tensors]
    return [writer.write_fp16_data(array.view(np.uint16).reshape(-1)) for _, array in tensors]


def write_safetensors(path: Path, tensors: Tensors) -> None:
    """Write a safetensors file."""
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(array) for name, array in tensors}, str(path))


def write_h5(path: Path, tensors: Tensors) -> None:
    """Write an HDF5 file, one contiguous dataset per tensor."""
    import h5py

    with h5py.File(path, "w") as file:
        for name, array in tensors:
            file.create_dataset(name, data=array)


def write_gguf(path: Path, tensors: Tensors) -> None:
    """Write a GGUF file."""
    import gguf

    writer = gguf.GGUFWriter(str(path), "bench")
    for name, array in tensors:
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_torch(path: Path, tensors: Tensors) -> None:
    """Write a PyTorch state dict."""
    import torch

    torch.save({name: torch.from_numpy(array.copy()) for name, array in tensors}, path)


def write_manifest(package: Path) -> None:
    """Write the Manifest.json of a package with one model and one folder of weights."""
    entries = {}
    for number, (name, path) in enumerate((("model.mlmodel", MODEL_NAME), ("weights", WEIGHTS_NAME))):
        item = {"author": "com.apple.CoreML", "description": f"CoreML Model {name}", "name": name, "path": path}
        entries[f"00000000-0000-0000-0000-{number:012d}"] = item
    root = next(iter(entries))
    manifest = {"fileFormatVersion": "1.0.0", "itemInfoEntries": entries, "rootModelIdentifier": root}
    (package / "Manifest.json").write_text(json.dumps(manifest, indent=4))


def write_package(package: Path, tensors: Tensors) -> None:
    """Write an .mlpackage of one `const` operation per tensor, by coremltools' protobuf classes and blob writer."""

    def fill(block: Any, offsets: list[int]) -> None:
        for number, offset in enumerate(offsets):
            _add_constant(block, tensors.name(number), offset, tensors.shape)
        block.outputs.append(tensors.name(0))

    folder = _make_folders(package)
    _write_model(package, write_blob_offsets(folder / "weights" / "weight.bin", tensors), fill)


def write_chain(package: Path, tensors: Tensors) -> None:
    """Write an .mlpackage of one `linear` operation for each tensor, which is square: each reads the output of the one before."""

    def fill(block: Any, offsets: list[int]) -> None:
        from coremltools import proto

        value = "x"
        for number, offset in enumerate(offsets):
            _add_constant(block, tensors.name(number), offset, tensors.shape)
            op = block.operations.add(type="linear")
            op.inputs["x"].arguments.add(name=value)
            op.inputs["weight"].arguments.add(name=tensors.name(number))
            value = f"y_{number}"
            _set_type(op.outputs.add(name=value).type, proto.MIL_pb2.FLOAT16, (1, tensors.shape[0]))
            _set_name(op, value)
        block.outputs.append(value)

    folder = _make_folders(package)
    with milblob.BlobWriter(folder / "weights" / "weight.bin", sync=False) as writer:
        offsets = writer.write_many(array for _, array in tensors)
    _write_model(package, offsets, fill, (1, tensors.shape[1]))


def write_sparse(package: Path, nbytes: int) -> None:
    """Write an .mlpackage of four tensors whose values take `nbytes` together, all of them holes of a sparse file."""
    side = math.isqrt(nbytes // 4 // 2) // 8 * 8
    offsets = [64 + number * (64 + side * side * 2) for number in range(4)]
    with open(_make_folders(package) / "weights" / "weight.bin", "wb") as file:
        file.write(struct.pack("<II56x", len(offsets), 2))
        for offset in offsets:
            file.seek(offset)
            file.write(struct.pack("<IIQQ40x", 0xDEADBEEF, 1, side * side * 2, offset + 64))
        file.truncate(offset + 64 + side * side * 2)

    def fill(block: Any, offsets: list[int]) -> None:
        for number, offset in enumerate(offsets):
            _add_constant(block, f"weight_{number}", offset, (side, side))
        block.outputs.append("weight_0")

    _write_model(package, offsets, fill)


def _make_folders(package: Path) -> Path:
    folder = package / "Data" / "com.apple.CoreML"
    (folder / "weights").mkdir(parents=True)
    return folder


def _write_model(
    package: Path, offsets: list[int], fill: Callable[[Any, list[int]], None], x: tuple[int, ...] | None = None
) -> None:
    """Write a Model of one function, whose block `fill` fills; with an input of shape `x` it is one for iOS 18."""
    from coremltools import proto

    model = proto.Model_pb2.Model(specificationVersion=7 if x is None else 9)
    model.mlProgram.version = 1
    function = model.mlProgram.functions["main"]
    function.opset = "CoreML6" if x is None else "CoreML8"
    if x is not None:
        _set_type(function.inputs.add(name="x").type, proto.MIL_pb2.FLOAT16, x)
    block = function.block_specializations[function.opset]
    fill(block, offsets)
    if x is not None:
        for features, name in ((model.description.input, "x"), (model.description.output, block.outputs[0])):
            array = features.add(name=name).type.multiArrayType
            array.shape.extend(x)
            array.dataType = proto.FeatureTypes_pb2.ArrayFeatureType.FLOAT16
    (package / "Data" / MODEL_NAME).write_bytes(model.SerializeToString())
    write_manifest(package)


def _add_constant(block: Any, name: str, offset: int, shape: tuple[int, ...]) -> None:
    from coremltools import proto

    op = block.operations.add(type="const")
    value = op.attributes["val"]
    value.blobFileValue.fileName = FILE_NAME
    value.blobFileValue.offset = offset
    _set_type(value.type, proto.MIL_pb2.FLOAT16, shape)
    _set_type(op.outputs.add(name=name).type, proto.MIL_pb2.FLOAT16, shape)
    _set_name(op, name)


def _set_name(op: Any, name: str) -> None:
    from coremltools import proto

    value = op.attributes["name"]
    value.type.tensorType.dataType = proto.MIL_pb2.STRING
    value.immediateValue.tensor.strings.values.append(name)


def _set_type(type_: Any, dtype: int, shape: tuple[int, ...]) -> None:
    type_.tensorType.dataType = dtype
    type_.tensorType.rank = len(shape)
    for size in shape:
        type_.tensorType.dimensions.add().constant.size = size


WRITERS: dict[str, Callable[[Path, Tensors], None]] = {
    "bin": write_blob,
    "safetensors": write_safetensors,
    "h5": write_h5,
    "gguf": write_gguf,
    "pt": write_torch,
    "mlpackage": write_package,
}


def write_transformer(package: Path, layers: int, width: int, target: str = "iOS16") -> None:
    """Convert a transformer by coremltools' own converter: 19 weights per layer, with 12 * width^2 values.

    With 24 layers of width 1024 it has 2,841 operations and 459 weights of 640 MB. The rotary embedding is written out
    as such models have it, with slices, and every small constant is an operation of its own, as coremltools makes them.
    """
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    size = 16 * width * width + 64 * 24 * (layers + 1)
    block = np.random.default_rng(3).standard_normal(size, np.float32).astype(np.float16)
    made = iter(range(1 << 30))

    def weight(name: str, *shape: int) -> Any:
        start, size = 64 * next(made), int(np.prod(shape))
        return mb.const(val=np.ascontiguousarray(block[start : start + size].reshape(shape)), name=name)

    tokens, heads, vocabulary = 64, 16, 16 * width
    depth = width // heads
    half = depth // 2

    def norm(x: Any, name: str) -> Any:
        return mb.layer_norm(
            x=x, axes=[-1], gamma=weight(f"{name}_gamma", width), beta=weight(f"{name}_beta", width),
            epsilon=np.float16(1e-3), name=name,
        )  # fmt: skip

    def linear(x: Any, name: str, rows: int, columns: int) -> Any:
        matrix, bias = weight(f"{name}_weight", rows, columns), weight(f"{name}_bias", rows)
        return mb.linear(x=x, weight=matrix, bias=bias, name=name)

    def rotate(x: Any, name: str, cos: Any, sin: Any) -> Any:
        x = mb.transpose(x=mb.reshape(x=x, shape=[1, tokens, heads, depth]), perm=[0, 2, 1, 3], name=f"{name}_heads")
        a = mb.slice_by_index(x=x, begin=[0, 0, 0, 0], end=[1, heads, tokens, half], name=f"{name}_left")
        b = mb.slice_by_index(x=x, begin=[0, 0, 0, half], end=[1, heads, tokens, depth], name=f"{name}_right")
        mean = mb.reduce_mean(x=mb.square(x=x), axes=[-1], keep_dims=True, name=f"{name}_mean")
        x = mb.mul(x=x, y=mb.rsqrt(x=mean, epsilon=np.float16(1e-3)), name=f"{name}_unit")
        turned = mb.concat(values=[mb.mul(x=b, y=np.float16(-1)), a], axis=-1, name=f"{name}_turned")
        return mb.add(x=mb.mul(x=x, y=cos), y=mb.mul(x=turned, y=sin), name=f"{name}_rotated")

    def gelu(x: Any, name: str) -> Any:
        cube = mb.mul(x=mb.mul(x=x, y=x), y=x, name=f"{name}_cube")
        inner = mb.add(x=x, y=mb.mul(x=cube, y=np.float16(0.044715)), name=f"{name}_inner")
        bent = mb.tanh(x=mb.mul(x=inner, y=np.float16(0.7978846)), name=f"{name}_tanh")
        return mb.mul(x=mb.mul(x=x, y=np.float16(0.5)), y=mb.add(x=bent, y=np.float16(1)), name=name)

    @mb.program(input_specs=[mb.TensorSpec((1, tokens), dtype=types.int32)], opset_version=getattr(ct.target, target))
    def program(ids: Any) -> Any:
        x = mb.gather(x=weight("embedding", vocabulary, width), indices=ids, axis=0, name="embedded")
        for i in range(layers):
            p = f"layers_{i}"
            cos, sin = weight(f"{p}_cos", 1, 1, tokens, depth), weight(f"{p}_sin", 1, 1, tokens, depth)
            y = norm(x, f"{p}_norm1")
            q = rotate(linear(y, f"{p}_q", width, width), f"{p}_q_rope", cos, sin)
            k = rotate(linear(y, f"{p}_k", width, width), f"{p}_k_rope", cos, sin)
            v = mb.reshape(x=linear(y, f"{p}_v", width, width), shape=[1, tokens, heads, depth])
            v = mb.transpose(x=v, perm=[0, 2, 1, 3])
            scores = mb.mul(x=mb.matmul(x=q, y=k, transpose_y=True), y=np.float16(depth**-0.5))
            scores = mb.clip(x=scores, alpha=np.float16(-1e4), beta=np.float16(1e4), name=f"{p}_scores")
            scores = mb.softmax(x=mb.add(x=scores, y=weight(f"{p}_mask", 1, 1, tokens, tokens)), axis=-1)
            y = mb.transpose(x=mb.matmul(x=scores, y=v), perm=[0, 2, 1, 3])
            y = mb.reshape(x=y, shape=[1, tokens, width])
            x = mb.add(x=x, y=linear(y, f"{p}_o", width, width))
            y = linear(norm(x, f"{p}_norm2"), f"{p}_up", 4 * width, width)
            y = gelu(y, f"{p}_gelu")
            x = mb.add(x=x, y=linear(y, f"{p}_down", width, 4 * width), name=f"{p}_out")
        return norm(x, "final")

    model = ct.convert(
        program,
        convert_to="mlprogram",
        minimum_deployment_target=getattr(ct.target, target),
        pass_pipeline=ct.PassPipeline.EMPTY,
        compute_precision=ct.precision.FLOAT32,
        skip_model_load=True,
    )
    model.save(str(package))


# ----------------------------------------------------------------------------------------------------- large Programs


def statements(count: int) -> Iterator[Any]:
    """Yield 4 * count operations as a transformer has them: constants inline and in a weight file, inputs by name.

    The constants of the weight file are all one record, at 64, of 512 * 512 float16.
    """
    from coremltools import proto

    mil = proto.MIL_pb2

    def tensor(type_: Any, dtype: int, *shape: int) -> None:
        type_.tensorType.dataType = dtype
        type_.tensorType.rank = len(shape)
        for size in shape:
            type_.tensorType.dimensions.add().constant.size = size

    previous = "x"
    for i in range(count):
        scope = f"encoder_layers_{i // 16}_block_{i % 16}"
        for kind in ("blob", "ints", "floats", "linear"):
            op = mil.Operation(type="linear" if kind == "linear" else "const")
            output = op.outputs.add(name=f"{scope}_{kind}")
            name = op.attributes["name"]
            tensor(name.type, mil.STRING)
            name.immediateValue.tensor.strings.values.append(f"{scope}_{kind}")
            if kind == "linear":
                tensor(output.type, mil.FLOAT16, 1, 64, 512)
                inputs = {"x": previous, "weight": f"{scope}_blob", "bias": f"{scope}_floats", "shape": f"{scope}_ints"}
                for key, value in inputs.items():
                    op.inputs[key].arguments.add(name=value)
                previous = f"{scope}_{kind}"
                yield op
                continue
            val = op.attributes["val"]
            if kind == "blob":
                shape, dtype = (512, 512), mil.FLOAT16
                val.blobFileValue.fileName = FILE_NAME
                val.blobFileValue.offset = 64
            elif kind == "ints":
                shape, dtype = (4,), mil.INT32
                val.immediateValue.tensor.ints.values.extend([1, 64, i, -1])
            else:
                shape, dtype = (8,), mil.FLOAT32
                val.immediateValue.tensor.floats.values.extend([0.001 * (i + k) for k in range(8)])
            tensor(val.type, dtype, *shape)
            tensor(output.type, dtype, *shape)
            yield op


def _field(number: int, payload: bytes) -> bytes:
    """A length-delimited protobuf field."""
    found, values = bytearray(), (number << 3 | 2, len(payload))
    for value in values:
        while value > 0x7F:
            found.append(value & 0x7F | 0x80)
            value >>= 7
        found.append(value)
    return bytes(found) + payload


def write_program(package: Path, nbytes: int) -> None:
    """Write an .mlpackage whose Program takes about so many bytes, and whose one record all its constants refer to.

    A chunk of operations is made by protobuf and repeated under other names of the same length.
    """
    from coremltools import proto

    folder = package / "Data" / "com.apple.CoreML"
    (folder / "weights").mkdir(parents=True)
    write_blob(folder / "weights" / "weight.bin", Tensors(1, (512, 512)))
    groups = max(1, min(1000, nbytes // 1000))
    chunk = proto.MIL_pb2.Block(operations=statements(groups)).SerializeToString()
    chunks = [chunk.replace(b"encoder_layers", b"enc%04d_layers" % i) for i in range(max(1, nbytes // len(chunk)))]
    outputs = _field(2, b"enc0000_layers_0_block_0_linear")
    body = _field(3, _field(1, b"CoreML6") + _field(2, outputs + b"".join(chunks)))
    function = proto.MIL_pb2.Function(opset="CoreML6")
    x = function.inputs.add(name="x")
    x.type.tensorType.dataType = proto.MIL_pb2.FLOAT16
    main = _field(1, b"main") + _field(2, function.SerializeToString() + body)
    program = proto.MIL_pb2.Program(version=1).SerializeToString() + _field(2, main)
    head = proto.Model_pb2.Model(specificationVersion=7).SerializeToString()
    (folder / "model.mlmodel").write_bytes(head + _field(502, program))
    write_manifest(package)


def weights_of_onnx(path: Path) -> list[Path]:
    """Return the weight files that `milblob.onnx.convert` has written for a .onnx file: their two names take turns."""
    return [one for one in (path.with_suffix(".bin"), path.with_name(f"{path.name}.bin")) if one.exists()]
