"""milblob.open, load and Tensor: what their docstrings promise. The values of every fixture are in test_golden.py."""

import concurrent.futures
import gc
import pathlib
import re
import shutil
import subprocess
import sys
import weakref
from collections.abc import Mapping

import ml_dtypes
import numpy as np
import pytest

import milblob
import reference
from cases import load_case, model_directory
from children import child_environment
from consumers import uses
from dtype_values import FIELD, assert_same, tensor_value
from paths import DATA
from protobuf_programs import LONG, add_const, add_op, as_model, new_program, set_type

pytestmark = pytest.mark.wheel

PACKAGE = DATA / "opset_ios18_fp32" / "model.mlpackage"
COMPILED = DATA / "opset_ios18_fp32" / "model.mlmodelc"


@pytest.fixture
def model():
    with milblob.open(PACKAGE) as model:
        yield model


@pytest.fixture
def blob_tensor(model):
    return next(t for t in model.values() if t.is_blob and t.ndim >= 2 and t.dtype == np.float32)


def address(array):
    return array.__array_interface__["data"][0]


# --------------------------------------------------------------------------------------------------- memory of arrays


def test_weights_in_blobs_are_views_of_the_file(model, blob_tensor):
    reader = milblob.BlobReader(blob_tensor.file)
    record = reader.record(blob_tensor.offset)
    first, second, same = blob_tensor.read(), np.asarray(blob_tensor), blob_tensor[...]
    assert np.shares_memory(first, second)
    assert np.shares_memory(first, same)
    other = next(t for t in model.values() if t.is_blob and t is not blob_tensor)
    assert address(other.read()) - address(first) == reader.record(other.offset).data_offset - record.data_offset
    assert not first.flags.writeable
    assert not first.flags.owndata


def test_immediates_are_views_of_the_model_file():
    with milblob.open(DATA / "immediates" / "model.mlmodel") as model:
        data = (DATA / "immediates" / "model.mlmodel").read_bytes()
        addresses = {}
        for tensor in model.values():
            if FIELD[tensor.mil_dtype.name] in ("floats", "doubles", "bytes") and tensor.mil_dtype.nbits >= 8:
                values = tensor.read()
                assert np.shares_memory(values, tensor.read())
                assert not values.flags.writeable
                place = data.index(values.tobytes(), tensor.offset)
                addresses[tensor.name] = address(values) - place
        assert len(addresses) > 20
        assert len(set(addresses.values())) == 1  # one mapping, every array at its own place in it


def test_a_buffer_is_used_where_it_lies():
    data = bytearray((DATA / "immediates" / "model.mlmodel").read_bytes())
    arrays = milblob.load(data)
    whole = np.frombuffer(data, np.uint8)
    name = next(name for name, array in arrays.items() if array.dtype == np.float32)
    assert np.shares_memory(arrays[name], whole)


def test_load_copies_nothing_either():
    arrays = milblob.load(PACKAGE)
    with milblob.open(PACKAGE) as model:
        blobs = [name for name, tensor in model.items() if tensor.is_blob and tensor.mil_dtype.nbits >= 8]
    addresses = [address(arrays[name]) for name in blobs]
    assert max(addresses) - min(addresses) < (model_directory(PACKAGE) / "weights" / "weight.bin").stat().st_size
    assert all(not array.flags.writeable and not array.flags.owndata for array in (arrays[name] for name in blobs))


def test_arrays_outlive_the_model_and_its_files(tmp_path):
    path = shutil.copytree(PACKAGE, tmp_path / "m.mlpackage")
    opened = milblob.open(path)
    arrays = {name: tensor.read() for name, tensor in opened.items()}
    expected = {name: array.tobytes() for name, array in milblob.load(PACKAGE).items()}
    opened.close()
    gone = weakref.ref(opened)
    del opened
    gc.collect()
    assert gone() is None
    shutil.rmtree(path)
    loaded = milblob.load(PACKAGE)
    gc.collect()
    assert {name: array.tobytes() for name, array in arrays.items()} == expected
    assert {name: array.tobytes() for name, array in loaded.items()} == expected


def test_a_tensor_keeps_its_model_open():
    tensor = milblob.open(PACKAGE)[
        "w_float32" if "w_float32" in milblob.open(PACKAGE) else next(iter(milblob.open(PACKAGE)))
    ]
    gc.collect()
    assert tensor.read().size == tensor.size


CYCLES = """
import gc, milblob
data = open({path!r}, "rb").read()
for view in (memoryview, bytes, bytearray, lambda source: source):
    source = bytearray(data)
    for _ in range(3):
        model = milblob.open(view(source))
        next(iter(model.values())).read()
        del model
        gc.collect()
    source.append(0)
print("good")
"""


def test_a_model_over_a_memoryview_may_be_left_to_the_garbage_collector():
    """A model and its tensors refer to each other. In a process of its own, because the failure was a crash."""
    code = CYCLES.format(path=str(DATA / "immediates" / "model.mlmodel"))
    result = subprocess.run(
        [sys.executable, "-c", code], env=child_environment(), capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "good\n", "")


def test_nothing_is_read_when_listing(tmp_path):
    """Names, dtypes, shapes and offsets come from the Program; the weight file is not even opened."""
    path = shutil.copytree(PACKAGE, tmp_path / "m.mlpackage")
    shutil.rmtree(model_directory(path) / "weights")
    with milblob.open(path) as lazy, milblob.open(PACKAGE) as full:
        for name, tensor in full.items():
            mine = lazy[name]
            assert (mine.dtype, mine.shape, mine.nbytes, mine.offset) == (
                tensor.dtype,
                tensor.shape,
                tensor.nbytes,
                tensor.offset,
            )
            assert (mine.op, mine.function, uses(mine)) == (tensor.op, tensor.function, uses(tensor))


# -------------------------------------------------------------------------------------------------------------- arrays


def test_slices(blob_tensor):
    whole = blob_tensor.read()
    assert blob_tensor[...].tobytes() == whole.tobytes()
    assert np.array_equal(blob_tensor[:, ::8], whole[:, ::8])
    assert np.array_equal(blob_tensor[-1], whole[-1])
    assert blob_tensor[0, 0] == whole[0, 0]
    assert np.array_equal(blob_tensor[whole > 0], whole[whole > 0])
    assert np.shares_memory(blob_tensor[:, ::8], whole)
    assert blob_tensor[None].shape == (1, *whole.shape)
    with pytest.raises(IndexError):
        blob_tensor[10**6]


def test_asarray(blob_tensor):
    values = blob_tensor.read()
    assert np.shares_memory(np.asarray(blob_tensor), values)
    assert np.shares_memory(np.asarray(blob_tensor, dtype=np.float32), values)
    assert np.shares_memory(np.asarray(blob_tensor, copy=False), values)
    copied = np.array(blob_tensor)
    assert not np.shares_memory(copied, values)
    assert copied.flags.writeable
    forced = np.asarray(blob_tensor, copy=True)
    assert not np.shares_memory(forced, values)
    assert forced.flags.writeable
    other = np.asarray(blob_tensor, dtype=np.float64)
    assert other.dtype == np.float64
    assert np.array_equal(other, values.astype(np.float64))
    assert np.asarray(blob_tensor, dtype=ml_dtypes.bfloat16).dtype == ml_dtypes.bfloat16
    with pytest.raises(ValueError, match="array of float32 as float16: expected a copy to be allowed, got copy=False"):
        np.asarray(blob_tensor, dtype=np.float16, copy=False)
    assert np.mean(blob_tensor) == np.mean(values)


def test_copy_false_where_values_must_be_unpacked():
    """NumPy's rule: copy=False refuses what cannot be a view."""
    with milblob.open(DATA / "blob_sub_byte" / "weight.bin") as model:
        assert np.asarray(model["#0"]).size == 1
    with milblob.open(DATA / "blob_all_dtypes" / "weight.bin") as model:
        tensor = next(t for t in model.values() if t.mil_dtype.name == "FLOAT32")
        assert np.asarray(tensor, copy=False).tobytes() == tensor.read().tobytes()


def test_read_into_an_array(model, blob_tensor):
    out = np.zeros(blob_tensor.shape, np.float32)
    assert blob_tensor.read(out=out) is out
    assert out.tobytes() == blob_tensor.read().tobytes()
    strided = np.zeros((*blob_tensor.shape, 2), np.float32)[..., 1]
    assert np.array_equal(blob_tensor.read(out=strided), out)
    with milblob.open(DATA / "immediates" / "model.mlmodel", constants=True) as immediates:
        for tensor in immediates.values():
            if tensor.mil_dtype.name != "STRING":
                out = np.empty(tensor.shape, tensor.dtype)
                assert tensor.read(out=out).tobytes() == tensor.read().tobytes()


def test_out_that_does_not_fit(blob_tensor):
    for out, words in (
        (np.zeros(blob_tensor.shape, np.float64), "out: expected dtype float32, got float64"),
        (np.zeros(blob_tensor.size, np.float32), "out: expected shape"),
        (np.zeros((1, *blob_tensor.shape), np.float32), "out: expected shape"),
        (np.broadcast_to(np.float32(0), blob_tensor.shape), "read-only"),
    ):
        with pytest.raises(ValueError, match=words):
            blob_tensor.read(out=out)


def test_sizes(model):
    for tensor in model.values():
        assert tensor.ndim == len(tensor.shape)
        assert tensor.size == np.prod(tensor.shape, dtype=int)
        assert tensor.nbytes == (tensor.size * tensor.mil_dtype.nbits + 7) // 8
        assert len(tensor) == tensor.shape[0]
        assert repr(tensor) == f"<Tensor {tensor.name!r}: {tensor.mil_dtype} [{', '.join(map(str, tensor.shape))}]>"
        assert list(tensor.parts) == []


def test_rank_0_and_open_dimensions():
    with milblob.open(DATA / "immediates" / "model.mlmodel", constants=True) as model:
        scalar = next(t for t in model.values() if t.shape == () and t.mil_dtype.name == "FLOAT32")
        assert scalar.read().shape == ()
        assert scalar.size == 1
        with pytest.raises(TypeError, match="no dimensions"):
            len(scalar)
    with milblob.open(DATA / "immediates_odd" / "model.mlmodel", constants=True) as model:
        row = next(row for row in load_case("immediates_odd").rows if None in row["shape"])
        tensor = model[row["output"]]
        assert tensor.ndim == len(row["shape"])
        assert "?" in repr(tensor)
        assert tensor.shape == load_case("immediates_odd").values(row).shape
        assert "?" not in repr(tensor)
        text = next(t for t in model.values() if t.mil_dtype.name == "STRING")
        assert text.nbytes > 0


@pytest.mark.parametrize(("count", "listed"), [(9, False), (10, True), (200, True)])
@pytest.mark.parametrize("code", [11, 10, 31, 23, 1, 35, 12, 24])
def test_open_dimensions_are_counted_for_the_rule_of_ten(code, count, listed):
    dtype = next(name for name, row in reference.DTYPES.items() if row[1] == code)
    program, block = new_program()
    op = block.operations.add(type="const")
    op.outputs.add(name="w")
    value = op.attributes["val"]
    value.type.tensorType.dataType, value.type.tensorType.rank = code, 1
    value.type.tensorType.dimensions.add().unknown.variadic = False
    array = np.zeros(count, milblob.DType[dtype].numpy)
    value.immediateValue.tensor.ParseFromString(tensor_value(FIELD[dtype], array, dtype))
    with milblob.open(as_model(program)) as model:
        if dtype == "UINT4" and count == 9:
            assert list(model) == ["w"]  # nine nibbles take five bytes, which might be ten
        else:
            assert list(model) == (["w"] if listed and dtype != "BOOL" else [])


def test_the_rule_of_ten():
    program, block = new_program()
    for count in (0, 1, 9, 10, 11):
        add_const(block, f"w{count}", np.zeros(count))
    assert list(milblob.load(as_model(program))) == ["w10", "w11"]
    assert list(milblob.load(as_model(program), constants=True)) == ["w0", "w1", "w9", "w10", "w11"]


# ------------------------------------------------------------------------------------------------------------- mapping


def test_a_model_is_a_mapping(model):
    assert isinstance(model, Mapping)
    names = list(model)
    assert len(model) == len(names) == len(set(names))
    assert list(model.keys()) == names
    assert [tensor.name for tensor in model.values()] == names
    assert all(model[name] == tensor for name, tensor in model.items())
    assert names[0] in model
    assert "no such name" not in model
    assert 5 not in model
    assert model.get("no such name") is None
    with pytest.raises(KeyError, match="no such name"):
        model["no such name"]


def test_an_unknown_name_suggests_close_ones(tmp_path):
    with milblob.open(DATA.parent.parent / "examples" / "demo.mlpackage") as model:
        for wrong, right in (
            ("head_wieght", "head_weight"), ("final.norm.bias", "final_norm_bias"), ("Embedding_weight", "embedding_weight"),
            ("layers_3_attention_query_weights", "layers_3_attention_query_weight"),
        ):  # fmt: skip
            with pytest.raises(KeyError) as caught:
                model[wrong]
            words = caught.value.args[0]
            assert words.startswith(f"{model.path} has no tensor {wrong!r}; did you mean {right}"), words
        for name in ("zzzz", "", "x" * 10000):
            with pytest.raises(KeyError) as caught:
                model[name]
            assert "did you mean" not in caught.value.args[0] and len(caught.value.args[0]) < 1000
    with milblob.BlobWriter(tmp_path / "weight.bin") as blobs:
        blobs.write(np.zeros(3, "f4"))
    with (
        milblob.open(tmp_path / "weight.bin") as model,
        pytest.raises(KeyError, match="has no tensor 'w' .it has #0 to #0"),
    ):
        model["w"]


def test_suggestions_are_made_only_for_an_error(monkeypatch):
    def fail(*_):
        raise AssertionError("asked for close names")

    monkeypatch.setattr("milblob.closeness.hint", fail)
    with milblob.open(DATA / "functions" / "model.mlpackage") as model:
        assert model.get("no such name") is None and model.get("no such name", 3) == 3 and "no such name" not in model
        with pytest.raises(AssertionError):
            model["no such name"]


def test_suggestions_compare_few_names_letter_by_letter(monkeypatch):
    """However many names there are, and however long: difflib takes the product of the lengths of two names."""
    import difflib

    from milblob.closeness import close_names

    seen = []
    real = difflib.get_close_matches
    monkeypatch.setattr(
        difflib, "get_close_matches", lambda word, names, **options: seen.extend(names) or real(word, names, **options)
    )
    known = [f"model_layers_{i}_mlp_{part}_proj_weight" for i in range(20_000) for part in ("up", "down", "gate")]
    known += ["a" * 100_000, "b" * 1000]
    found = close_names("model_layers_1234_mlp_upp_proj_weight", known)
    assert found[0] == "model_layers_1234_mlp_up_proj_weight" and len(found) == 3
    assert len(seen) <= 200 and max(map(len, seen)) <= 200


def test_bare_names():
    with milblob.open(DATA / "functions" / "model.mlpackage") as model:
        for tail in {name.partition("/")[2] for name in model}:
            assert tail not in model
            with pytest.raises(KeyError, match=f"'{tail}' is ambiguous: alpha/{tail} or beta/{tail}"):
                model[tail]
    program, (first, second) = new_program("alpha", "beta")
    add_const(first, "mine", LONG)
    add_const(first, "both", LONG)
    add_const(second, "both", LONG)
    with milblob.open(as_model(program)) as model:
        assert model["mine"] == model["alpha/mine"]
        assert "mine" in model
        assert "both" not in model
        assert list(model) == ["alpha/mine", "alpha/both", "beta/both"]


def test_bare_names_in_pipelines():
    with milblob.open(DATA / "nested_pipeline" / "model.mlmodel") as model:
        assert list(model) == ["model0/w", "model1/model0/w"]
        assert model["model0/w"].name == "model0/w"  # a whole name comes before the tail of another
        assert "w" not in model
        with pytest.raises(KeyError):
            model["model1/w"]
    with milblob.open(DATA / "pipeline" / "model.mlpackage") as model:
        tails = [name.partition("/")[2] for name in model]
        twice = next(tail for tail in tails if tails.count(tail) == 2)
        assert twice not in model
        with pytest.raises(KeyError, match=f"'{twice}' is ambiguous: model0/{twice} or model1/{twice}"):
            model[twice]


def test_names_in_nested_blocks_and_specializations():
    with milblob.open(DATA / "control_flow" / "model.mlpackage") as model:
        assert "main/loop_0[1]/branch[0]/branch_weight" in model
        assert "branch[1]/branch_weight" in model
        assert "branch_weight" not in model
    with milblob.open(DATA / "specializations" / "model.mlmodel") as model:
        assert list(model) == ["main[CoreML7]/w", "main[CoreML8]/w"]
        assert not np.array_equal(model["main[CoreML7]/w"], model["main[CoreML8]/w"])


def test_functions_share_blobs():
    with milblob.open(DATA / "functions" / "model.mlpackage") as model:
        assert sorted(model.functions) == ["alpha", "beta"]
        one, other = model["alpha/base_weight"], model["beta/base_weight"]
        assert (one.offset, one.file) == (other.offset, other.file)
        assert (one.function, other.function) == ("alpha", "beta")
        assert np.shares_memory(one.read(), other.read())


# ------------------------------------------------------------------------------------------------------------- closing


@pytest.mark.parametrize(
    "path", [PACKAGE, COMPILED, DATA / "immediates" / "model.mlmodel", DATA / "blob_sub_byte" / "weight.bin"]
)
def test_after_close(path):
    with milblob.open(path) as model:
        assert model.__enter__() is model
        name = next(iter(model))
        kept = model[name].read()
    tensor = model[name]
    assert list(model)
    assert (tensor.dtype, tensor.shape) == (kept.dtype, kept.shape)
    for call in (
        tensor.read,
        lambda: np.asarray(tensor),
        lambda: tensor[0],
        lambda: model.program,
        lambda: model.programs,
    ):
        if path.suffix == ".bin" and call not in (tensor.read,):
            continue
        with pytest.raises(ValueError, match="I/O operation on closed"):
            call()
    if path.suffix != ".bin":
        with pytest.raises(ValueError, match="closed"):
            _ = model.metadata
        with pytest.raises(ValueError, match="closed"):
            _ = next(t for t in model.values() if t.op == "const").consumers
    model.close()
    assert kept.size == tensor.size


def test_metadata_is_kept_after_closing():
    with milblob.open(PACKAGE) as model:
        metadata = model.metadata
    assert model.metadata is metadata


def test_with_closes_on_errors():
    with pytest.raises(KeyError), milblob.open(PACKAGE) as model:
        raise KeyError
    with pytest.raises(ValueError, match="closed"):
        next(iter(model.values())).read()


def test_a_compressed_weight_after_close():
    with milblob.open(DATA / "quant_int8" / "model.mlpackage") as model:
        tensor = next(t for t in model.values() if t.parts)
    with pytest.raises(ValueError, match="closed"):
        tensor.read()


def test_a_file_that_shrank_is_noticed(tmp_path):
    path = shutil.copytree(PACKAGE, tmp_path / "m.mlpackage")
    weights = model_directory(path) / "weights" / "weight.bin"
    with milblob.open(path) as model:
        tensor = next(t for t in model.values() if t.is_blob)
        before = tensor.read().copy()
        size = weights.stat().st_size
        with weights.open("r+b") as file:
            file.truncate(size - 1)
        with pytest.raises(
            milblob.FormatError, match=f"size: expected {size} bytes as when it was opened, got {size - 1}"
        ) as error:
            tensor.read()
        assert error.value.where == tensor.where
        assert error.value.file == str(weights)
    assert before.size == tensor.size


# ---------------------------------------------------------------------------------------------------------- compression


def test_a_compressed_weight_and_its_parts():
    with milblob.open(DATA / "palette_scaled" / "model.mlpackage") as model:
        tensor = next(t for t in model.values() if t.parts)
        assert tensor.read().shape == tensor.shape
        assert re.fullmatch(rf"main\.block\['CoreML8'\]\.op\[\d+\] '{tensor.name}'", tensor.where)
        assert repr(tensor).endswith(f", {tensor.compression.scheme}>")
        assert not tensor.is_blob
        with pytest.raises(TypeError):
            tensor.parts["x"] = tensor
    arrays = milblob.load(DATA / "palette_scaled" / "model.mlpackage", stored=True)
    assert f"{tensor.name}.indices" in arrays


def test_parts_have_names_of_their_own():
    with (
        milblob.open(DATA / "palette_4bit" / "model.mlpackage") as model,
        milblob.open(DATA / "palette_4bit" / "model.mlpackage", stored=True) as stored,
    ):
        for tensor in model.values():
            for key, part in tensor.parts.items():
                assert part.name == f"{tensor.name}.{key}"
                assert part.read().tobytes() == stored[part.name].read().tobytes()
                assert part.consumers[0].parameter == key


# -------------------------------------------------------------------------------------------------------------- threads


def test_threads_share_a_model():
    case = load_case("wide_integers")
    with milblob.open(case.path(), constants=True) as model:
        rows = [row for row in case.rows if row["parameter"] == "val" and row["op"] == "const"] * 8

        def read(row):
            tensor = model[row["output"]]
            return tensor.read(), uses(tensor), model.metadata.spec_version, tensor.shape

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for row, (values, found, version, shape) in zip(rows, pool.map(read, rows), strict=True):
                assert_same(values, case.values(row), row["dtype"])
                assert (found, version) == (uses(model[row["output"]]), case.expected["specification_version"])
                assert shape == values.shape


def test_threads_open_models():
    def read(_):
        return {name: array.tobytes() for name, array in milblob.load(PACKAGE).items()}

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(read, range(32)))
    assert all(result == results[0] for result in results)


# ----------------------------------------------------------------------------------------------------------- odd Values


@pytest.mark.parametrize(
    ("field", "values", "dtype"),
    [
        ("floats", [1.5, 2.5], "FLOAT32"),
        ("ints", [1, -2, 3], "INT32"),
        ("bools", [True], "BOOL"),
        ("strings", ["a", "b"], "STRING"),
        ("longInts", [1 << 40], "INT64"),
        ("doubles", [0.1], "FLOAT64"),
        ("bytes", b"abc", "UINT8"),
        ("floats", [], "FLOAT32"),
    ],
)
def test_list_elements_without_a_type_are_what_their_field_holds(field, values, dtype):
    program, block = new_program()
    op = add_op(block, "custom", "c")
    op.attributes["list"].immediateValue.list.values.add().immediateValue.tensor.ParseFromString(
        reference.pack_tensor_value(field, values)
    )
    with milblob.open(as_model(program), constants=True) as model:
        (tensor,) = model.values()
        assert tensor.name == "c.list[0]"
        assert tensor.mil_dtype.name == dtype
        assert tensor.read().tolist() == list(values)


def test_a_list_element_without_type_and_field():
    program, block = new_program()
    op = add_op(block, "custom", "c")
    op.attributes["list"].immediateValue.list.values.add().immediateValue.tensor.SetInParent()
    with milblob.open(as_model(program), constants=True) as model:
        assert model["c.list[0]"].read().shape == (0,)


def test_errors_name_the_place():
    program, block = new_program()
    op = add_const(block, "w", LONG)
    set_type(op.attributes["val"].type, 11, ())
    del op.attributes["val"].type.tensorType.dimensions[:]
    op.attributes["val"].type.tensorType.rank = 1
    op.attributes["val"].type.tensorType.dimensions.add().constant.size = 13
    data = as_model(program)
    with milblob.open(data) as model, pytest.raises(milblob.FormatError) as error:
        model["w"].read()
    assert error.value.where == "main.block['CoreML8'].op[0] 'w'.val"
    assert str(error.value).endswith(" - at main.block['CoreML8'].op[0] 'w'.val")
    assert "elements of floats: expected 13 for shape (13,), got 12" in str(error.value)
    with pytest.raises(milblob.FormatError) as error:
        milblob.load(data)
    assert error.value.where == "main.block['CoreML8'].op[0] 'w'.val"


def test_names_of_records():
    with milblob.open(DATA / "blob_sub_byte" / "weight.bin") as model:
        count = len(model)
        assert f"#{count - 1}" in model
        for name in (f"#{count}", "#007", "#+7", "#-1", "#", "7", "#٧", "# 7", "#7.0", f"#{'9' * 40}", 7, None):
            assert name not in model
            with pytest.raises(KeyError):
                model[name]


def test_a_broken_record_among_those_that_are_loaded(tmp_path):
    path = shutil.copytree(PACKAGE, tmp_path / "m.mlpackage")
    with milblob.open(path) as model:
        tensor = [t for t in model.values() if t.is_blob][-1]
    weights = bytearray(pathlib.Path(tensor.file).read_bytes())
    weights[tensor.offset] ^= 1
    pathlib.Path(tensor.file).write_bytes(weights)
    for call in (lambda: milblob.load(path), lambda: milblob.open(path)[tensor.name].read()):
        with pytest.raises(milblob.FormatError, match="record sentinel: expected 0xdeadbeef") as error:
            call()
        assert (error.value.where, error.value.offset, error.value.file) == (tensor.where, tensor.offset, tensor.file)


def test_data_offsets():
    with milblob.open(PACKAGE, constants=True) as model:
        assert {tensor.is_blob for tensor in model.values()} == {True, False}
        for tensor in model.values():
            if not tensor.is_blob:
                assert tensor.data_offset is None
                continue
            data = pathlib.Path(tensor.file).read_bytes()
            assert data[tensor.data_offset :][: tensor.nbytes] == tensor.read().tobytes()
    with pytest.raises(ValueError, match="closed"):
        _ = next(t for t in model.values() if t.is_blob).data_offset
    rows = load_case("blob_sub_byte").expected["records"]
    with milblob.open(DATA / "blob_sub_byte" / "weight.bin") as model:
        assert [t.data_offset for t in model.values()] == [row["data_offset"] for row in rows]


def test_where_in_a_weight_file():
    with milblob.open(DATA / "blob_sub_byte" / "weight.bin") as model:
        assert (model["#3"].where, model["#3"].file) == ("#3", str(DATA / "blob_sub_byte" / "weight.bin"))
        assert (model["#3"].function, model["#3"].op, model["#3"].compression, model["#3"].is_blob) == (
            "",
            "",
            None,
            True,
        )


def test_iterating_reads_once(monkeypatch):
    with milblob.open(DATA / "immediates/model.mlmodel", constants=True) as model:
        cube, scalar = model["int4_cube"], model["int4_scalar"]
        read, reads = milblob.Tensor.read, []
        monkeypatch.setattr(milblob.Tensor, "read", lambda self: reads.append(self) or read(self))
        assert np.stack(list(cube)).tobytes() == read(cube).tobytes()
        assert len(reads) == 1
        with pytest.raises(TypeError):
            iter(scalar)
