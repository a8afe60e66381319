"""Every fixture, in each of its forms, against what coremltools read from it when it was made: no more, no less.

The names are computed here a second time from expected.json, by the rules in DESIGN.md; the Program's references from
operations to names are followed in the protobuf.
"""

import array
import collections
import io
import mmap
import os

import numpy as np
import pytest

import milblob
import reference
from cases import BLOB_CASES, case_paths, load_case, model_directory
from dtype_values import NUMPY, assert_same, natural, tensor_value
from paths import DATA
from protobuf_programs import blocks_of, programs

pytestmark = pytest.mark.wheel

# milblob refuses what google's parser cuts to size: int32 from more than 32 bits, bool from other numbers than 0 and 1.
REFUSED = {("wire/odd_numbers", "i"): "element 1", ("wire/odd_numbers", "b"): "element 0"}


# --------------------------------------------------------------------------------------------------------------- names


def is_weight(row):
    """In a blob file, or ten numbers or more; a boolean is no number."""
    return row["weight"] and ("file" in row or row["dtype"] != "BOOL")


def is_part(row):
    return (row["op"] or "").startswith("constexpr_") and row["dtype"] != "STRING"


def local_name(row, binding_counts):
    if row["op"] is None:
        return f"@{row['where']}.{row['parameter']}{row['path']}"
    output = row["op"] if row["output"] is None else row["output"]
    if (row["op"], row["parameter"], row["where"]) == ("const", "val", "attribute"):
        return output + row["path"]
    name = f"{output}.{row['parameter']}"
    if row["where"] == "input" and binding_counts[place(row)] > 1:
        name += f"[{row['binding']}]"
    return name + row["path"]


def place(row):
    return tuple(row[key] for key in ("model", "function", "specialization", "block", "op_index", "parameter"))


def scope(row, specializations):
    if row["function"] is None:
        return ""
    head = row["function"]
    if specializations[row["model"], row["function"]] > 1 and row["specialization"] is not None:
        head += f"[{row['specialization']}]"
    return f"{head}/{row['block']}/" if row["block"] else f"{head}/"


def name_rows(case, rows):
    """Give every row its name: (names in order of the rows)."""
    binding_counts, specializations = count_in_protobuf(case)
    functions = collections.Counter(name.rpartition("/")[0] for name in case.expected["functions"])
    local = [local_name(row, binding_counts) for row in rows]
    names = []
    for row, name in zip(rows, local, strict=True):
        prefix = f"{row['model']}/" if row["model"] else ""
        if functions[row["model"]] > 1 and row["function"] is not None:
            prefix += f"{row['function']}/"
        names.append(prefix + name)
    counts = collections.Counter(names)
    for i, row in enumerate(rows):
        if counts[names[i]] > 1:
            names[i] = (f"{row['model']}/" if row["model"] else "") + scope(row, specializations) + local[i]
    seen = collections.Counter()
    for i, name in enumerate(names):
        seen[name] += 1
        names[i] = name if seen[name] == 1 else f"{name}#{seen[name]}"
    assert len(set(names)) == len(names)
    return names


def count_in_protobuf(case):
    """Bindings of each operation input, and block specializations of each function."""
    bindings, specializations = {}, {}
    for model, program in programs(case):
        for function, message in program.functions.items():
            specializations[model, function] = len(message.block_specializations)
            for opset, top in message.block_specializations.items():
                for path, block in blocks_of(top):
                    for index, op in enumerate(block.operations):
                        for key, argument in op.inputs.items():
                            bindings[model, function, opset, path, index, key] = len(argument.arguments)
    if case.name == "wire/unknown_in_entry":  # Python's protobuf hides all its entries; this is what they hold
        return {("", "main", "CoreML7", "", 7, "y"): 1}, {("", "main"): 1}
    return bindings, specializations


def read_by_constexpr(case):
    """The names of const operations that a constexpr operation of the same function reads: parts, not weights."""
    found = set()
    for model, program in programs(case):
        for function, message in program.functions.items():
            for top in message.block_specializations.values():
                for _, block in blocks_of(top):
                    for op in block.operations:
                        if op.type.startswith("constexpr_"):
                            arguments = [b for a in op.inputs.values() for b in a.arguments]
                            found |= {(model, function, b.name) for b in arguments if b.name}
    return found


def dense_weights(case):
    """Compressed weights by name: what a constexpr operation yields, one tensor, not read by another one."""
    inner, dense = read_by_constexpr(case), {}
    for model, program in programs(case):
        for function, message in program.functions.items():
            for top in message.block_specializations.values():
                for _, block in blocks_of(top):
                    for op in block.operations:
                        name = op.outputs[0].name if op.outputs else ""
                        if (
                            op.type.startswith("constexpr_")
                            and len(op.outputs) == 1
                            and (model, function, name) not in inner
                        ):
                            dense[name] = op
    return dense


# ------------------------------------------------------------------------------------------------------------- listing


def path_in_program(case, row):
    """The words of Tensor.where; the index of an operation around a block is found by its name."""
    prefix = f"{row['model']}/" if row["model"] else ""
    if row["function"] is None:
        return f"{prefix}program.{row['parameter']}"
    words = prefix + row["function"]
    if row["specialization"] is not None:
        words += f".block[{row['specialization']!r}]"
        around = ""
        for step in row["block"].split("/") if row["block"] else []:
            name, _, number = step.rpartition("[")
            same = {key: row[key] for key in ("model", "function", "specialization")} | {
                "block": around,
                "output": name,
            }
            index = next(r["op_index"] for r in case.rows if {key: r[key] for key in same} == same)
            words += f".op[{index}] {name!r}.block[{number[:-1]}]"
            around = f"{around}/{step}" if around else step
    if row["op"] is not None:
        words += f".op[{row['op_index']}] {(row['op'] if row['output'] is None else row['output'])!r}"
    return f"{words}.{row['parameter']}" if row["parameter"] else words


def check_place(case, path, row, tensor):
    """file, offset and is_blob, by the Program's own words."""
    source = case.source(path)
    if "file" in row:
        assert tensor.is_blob
        inside = row["file"].removeprefix("@model_path/").split("/")
        assert tensor.file == str(model_directory(source, row["model"]).joinpath(*inside))
        assert os.path.isfile(tensor.file)
        assert tensor.offset == row["offset"]
        return
    assert not tensor.is_blob
    if isinstance(source, bytes):
        assert tensor.file is None
    elif path.endswith(".mlmodelc"):
        assert tensor.file == str(model_directory(source, row["model"]) / "model.mil")
        assert tensor.offset is None
    elif source.is_file():
        assert tensor.file == str(source)
    if case.name.startswith("wire/") or path.endswith(".mlmodelc") or row["field"] is None:
        return
    if "strings" in row:
        encoded = reference.pack_tensor_value("strings", row["strings"])
    else:
        encoded = tensor_value(row["field"], case.values(row), row["dtype"])
    with open(tensor.file, "rb") as file:
        file.seek(tensor.offset)
        assert file.read(len(encoded)) == encoded


@pytest.mark.sample(8)
@pytest.mark.parametrize(("name", "path"), case_paths())
def test_every_constant(name, path):
    case = load_case(name)
    names = name_rows(case, case.rows)
    with milblob.open(case.source(path), constants=True, stored=True) as model:
        assert sorted(model) == sorted(names)
        assert len(model) == len(case.rows)
        for key, row in zip(names, case.rows, strict=True):
            tensor = model[key]
            assert tensor.name == key
            assert tensor.mil_dtype.name == row["dtype"]
            assert tensor.dtype == np.dtype(NUMPY[row["dtype"]])
            assert tensor.ndim == len(row["shape"])
            model_prefix = f"{row['model']}/" if row["model"] else ""
            assert tensor.function == (model_prefix + row["function"] if row["function"] else "")
            assert tensor.op == (row["op"] or "")
            assert tensor.where == path_in_program(case, row)
            assert tensor.compression is None
            assert dict(tensor.parts) == {}
            check_place(case, path, row, tensor)
            if (name, key) in REFUSED:
                with pytest.raises(milblob.FormatError, match=REFUSED[name, key]):
                    tensor.read()
                continue
            expected = case.values(row)
            assert_same(tensor.read(), expected, row["dtype"])
            shape = tuple(row["shape"]) if None not in row["shape"] else expected.shape
            assert (tensor.shape, tensor.read().shape) == (shape, shape)
            if row["dtype"] != "STRING":
                assert tensor.size == expected.size
                assert tensor.nbytes == (expected.size * reference.DTYPES[row["dtype"]][2] + 7) // 8


@pytest.mark.parametrize(("name", "path"), case_paths())
@pytest.mark.sample(8)
def test_load_every_constant(name, path):
    case = load_case(name)
    if any(name == bad for bad, _ in REFUSED):
        with pytest.raises(milblob.FormatError, match="element"):
            milblob.load(case.source(path), constants=True, stored=True)
        return
    arrays = milblob.load(case.source(path), constants=True, stored=True)
    names = name_rows(case, case.rows)
    assert sorted(arrays) == sorted(names)
    for key, row in zip(names, case.rows, strict=True):
        assert_same(arrays[key], case.values(row), row["dtype"])


@pytest.mark.parametrize(("name", "path"), case_paths())
@pytest.mark.sample(8)
def test_weights(name, path):
    """The default listing: weights without the parts of compressed ones, and the dense ends of those."""
    case = load_case(name)
    read = read_by_constexpr(case)
    rows = [
        row
        for row in case.rows
        if is_weight(row)
        and not is_part(row)
        and not (row["op"] == "const" and (row["model"], row["function"], row["output"]) in read)
    ]
    names = name_rows(case, rows)
    dense = dense_weights(case)
    if "dense" in case.expected:
        assert set(dense) == {row["output"] for row in case.expected["dense"]}
    with milblob.open(case.source(path)) as model:
        assert sorted(model) == sorted([*names, *dense])
        for key, row in zip(names, rows, strict=True):
            assert_same(np.asarray(model[key]), case.values(row), row["dtype"])
    arrays = milblob.load(case.source(path))
    assert sorted(arrays) == sorted([*names, *dense])
    for key, row in zip(names, rows, strict=True):
        assert_same(arrays[key], case.values(row), row["dtype"])
    for row in case.expected.get("dense", ()):
        assert_same(arrays[row["output"]], natural(case.arrays[row["npz"]], row["dtype"]), row["dtype"])


@pytest.mark.parametrize(("name", "path"), case_paths())
@pytest.mark.sample(8)
def test_weights_and_stored_parts(name, path):
    case = load_case(name)
    read = read_by_constexpr(case)
    rows = [
        row
        for row in case.rows
        if is_weight(row)
        or is_part(row)
        or (
            row["op"] == "const"
            and row["parameter"] == "val"
            and (row["model"], row["function"], row["output"]) in read
        )
    ]
    names = name_rows(case, rows)
    with milblob.open(case.source(path), stored=True) as model:
        assert sorted(model) == sorted(names)
        for key, row in zip(names, rows, strict=True):
            assert_same(model[key].read(), case.values(row), row["dtype"])


@pytest.mark.parametrize(("name", "path"), case_paths())
@pytest.mark.sample(8)
def test_program_order(name, path):
    """The listing follows the Program: operations in order, compressed weights where their operation stands."""
    case = load_case(name)
    index = {(row["function"], row["block"], row["output"]): row["op_index"] for row in case.rows}
    with milblob.open(case.source(path)) as model:
        order = collections.defaultdict(list)
        for tensor in model.values():
            head = tensor.where.partition(".op[")[0]
            if tensor.op and ".block[0]" not in tensor.where and ".block[1]" not in tensor.where:
                output = tensor.name.rpartition("/")[2].partition(".")[0]
                order[head, tensor.name.rpartition("/")[0]].append(
                    index[tensor.function.rpartition("/")[2], "", output]
                )
        for found in order.values():
            assert found == sorted(found)


@pytest.mark.parametrize(("name", "path"), case_paths())
@pytest.mark.sample(8)
def test_functions_and_opsets(name, path):
    case = load_case(name)
    with milblob.open(case.source(path)) as model:
        assert sorted(model.functions) == sorted(case.expected["functions"])
        opset = model.metadata.opset
        opsets = opset if isinstance(opset, dict) else dict.fromkeys(case.expected["functions"], opset)
        assert opsets == case.expected["functions"]
        if not path.endswith(".mlmodelc"):
            assert model.metadata.spec_version == case.expected["specification_version"] or path.endswith(".pb")


COMPRESSED = [pair for pair in case_paths() if load_case(pair[0]).expected.get("dense")]


@pytest.mark.parametrize(("name", "path"), COMPRESSED)
def test_compressed_weights(name, path):
    """Dense name, dtype and shape as coremltools decompresses it; parts by parameter, chains included."""
    case = load_case(name)
    messages = dense_weights(case)
    rows = dict(zip(name_rows(case, case.rows), case.rows, strict=True))
    with milblob.open(case.source(path)) as model:
        for row in case.expected["dense"]:
            tensor = model[row["output"]]
            assert tensor.op == row["op"]
            assert tensor.compression.scheme == row["op"].removeprefix("constexpr_")
            assert tensor.mil_dtype.name == row["dtype"]
            assert tensor.shape == tuple(row["shape"])
            assert tensor.function == row["function"]
            assert not tensor.is_blob
            assert tensor.offset is None
            check_parts(tensor, messages[row["output"]], case, rows)
            assert_same(tensor.read(), natural(case.arrays[row["npz"]], row["dtype"]), row["dtype"])


def check_parts(tensor, op, case, rows):
    """Parts of a compressed weight: one per tensor argument or attribute of its operation, equal to the stored rows."""
    expected = {key for key in [*op.inputs, *op.attributes] if key not in ("name", "output_dtype")}
    assert set(tensor.parts) == expected
    nbytes = {}
    for key, part in tensor.parts.items():
        if part.parts:
            name = op.inputs[key].arguments[0].name
            assert part.compression
            inner = next(
                o
                for _, p in programs(case)
                for f in p.functions.values()
                for b in f.block_specializations.values()
                for o in b.operations
                if name in [out.name for out in o.outputs]
            )
            assert part.op == inner.type
            declared = next(out for out in inner.outputs if out.name == name)  # not always the first of them
            assert part.name.endswith(name)
            assert part.mil_dtype.mil_code == declared.type.tensorType.dataType
            assert part.shape == tuple(d.constant.size for d in declared.type.tensorType.dimensions)
            nbytes |= check_parts(part, inner, case, rows)
            continue
        row = rows[part.name]
        assert_same(part.read(), case.values(row), row["dtype"])
        assert part.name in (f"{op.outputs[0].name}.{key}", *(b.name for b in op.inputs[key].arguments))
        nbytes[(part.file, part.offset) if part.is_blob else part.name] = part.nbytes  # one blob may be two parts
    assert tensor.nbytes == sum(nbytes.values())
    files = {part.file for part in tensor.parts.values()}
    assert tensor.file == (files.pop() if len(files) == 1 else None)
    return nbytes


@pytest.mark.parametrize("path", load_case("neural_network").expected["paths"])
def test_neural_network_is_refused_by_name(path):
    with pytest.raises(
        milblob.UnsupportedError, match="expected an ML Program or a pipeline of them, got a neuralNetwork"
    ):
        milblob.open(DATA / "neural_network" / path)


# --------------------------------------------------------------------------------------------------------------- blobs


def sources(path):
    """Yield (kind, a source of the same bytes) for everything a BlobReader takes."""
    data = path.read_bytes()
    yield "path", path
    yield "str", str(path)
    yield "bytes", data
    yield "bytearray", bytearray(data)
    yield "memoryview", memoryview(data)
    yield "array", array.array("B", data)
    yield "array of words", array.array("I", data + bytes(-len(data) % 4))
    yield "ndarray", np.frombuffer(data, np.uint8)
    yield "BytesIO", io.BytesIO(data)
    with open(path, "rb") as file:
        yield "file", file
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            yield "mmap", mapped


def check_blobs(case, source):
    rows = case.expected["records"]
    with milblob.BlobReader(source) as blobs:
        assert len(blobs) == len(rows)
        records = list(blobs)
        for number, (record, row) in enumerate(zip(records, rows, strict=True)):
            assert record.dtype.name == row["dtype"]
            assert record.dtype.blob_code == row["code"]
            for key in ("offset", "nbytes", "data_offset", "count", "padding_nbits"):
                assert getattr(record, key) == row[key]
            assert blobs[number] == blobs[number - len(rows)] == record
            assert blobs.record(row["offset"]) == blobs.record(record) == record
            expected = natural(case.arrays[row["npz"]], row["dtype"])
            got = blobs.read(row["offset"])
            assert_same(got, expected, row["dtype"])
            assert not got.flags.writeable
            assert_same(blobs.read(record), expected, row["dtype"])
            out = np.empty(row["count"], NUMPY[row["dtype"]])
            assert blobs.read(row["offset"], out=out) is out
            assert_same(out, expected, row["dtype"])
            packed = blobs.read_packed(row["offset"])
            assert (packed.dtype, packed.shape, packed.flags.writeable) == (np.uint8, (row["nbytes"],), False)
            data = case.path().read_bytes()
            assert packed.tobytes() == data[row["data_offset"] : row["data_offset"] + row["nbytes"]]
        assert blobs.index.dtype == milblob.RECORD
        assert blobs.index.shape == (len(rows),)
        assert not blobs.index.flags.writeable
        for key in ("offset", "nbytes", "data_offset", "count", "padding_nbits"):
            assert blobs.index[key].tolist() == [row[key] for row in rows]
        assert blobs.index["blob_code"].tolist() == [row["code"] for row in rows]
        assert blobs.index["mil_code"].tolist() == [reference.DTYPES[row["dtype"]][1] for row in rows]
        packed = got = None


@pytest.mark.parametrize("name", BLOB_CASES)
def test_blob_file(name):
    case = load_case(name)
    check_blobs(case, case.path())


@pytest.mark.parametrize("name", ["blob_sub_byte", "blob_handmade", "blob_empty", "blob_garbage", "blob_none"])
def test_blob_file_from_every_kind_of_source(name):
    case = load_case(name)
    if not case.expected["records"]:
        for _, source in sources(case.path()):
            with milblob.BlobReader(source) as blobs:
                assert (len(blobs), list(blobs)) == (0, [])
        return
    for _, source in sources(case.path()):
        check_blobs(case, source)


@pytest.mark.parametrize("name", BLOB_CASES)
def test_blob_file_as_a_model(name):
    case = load_case(name)
    rows = case.expected["records"]
    arrays = milblob.load(case.path())
    assert list(arrays) == [f"#{i}" for i in range(len(rows))]
    with milblob.open(case.path()) as model:
        assert model.kind == "blob"
        for i, row in enumerate(rows):
            tensor = model[f"#{i}"]
            expected = natural(case.arrays[row["npz"]], row["dtype"])
            assert_same(tensor.read(), expected, row["dtype"])
            assert_same(arrays[f"#{i}"], expected, row["dtype"])
            assert (tensor.offset, tensor.nbytes, tensor.shape) == (row["offset"], row["nbytes"], (row["count"],))
            assert (tensor.file, tensor.is_blob, tensor.op, tensor.function) == (str(case.path()), True, "", "")
            assert tensor.consumers == ()
            assert tensor.where == f"#{i}"


def test_noise_in_reserved_bytes_is_there_and_ignored():
    case = load_case("blob_garbage")
    data = bytearray(case.path().read_bytes())
    offsets = [row["offset"] for row in case.expected["records"]]
    assert all(any(data[offset + 24 : offset + 64]) for offset in offsets)
    with milblob.BlobReader(bytes(data)) as noisy:
        for offset in offsets:
            data[offset + 24 : offset + 64] = bytes(40)
        with milblob.BlobReader(data) as clean:
            assert list(noisy) == list(clean)
