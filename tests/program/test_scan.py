"""Names, paths, chains of constexpr operations and consumers of a Program, built here with google's protobuf."""

import collections

import numpy as np
import pytest

import milblob
import reference
from cases import MODEL_CASES, load_case
from consumers import uses
from milblob import _codec
from milblob.program import schema
from milblob.program.plain import rewrite
from milblob.program.scan import Compressed, ProgramScan
from protobuf_programs import LONG, add_const, add_op, as_model, blocks_of, new_program, programs, set_type, set_value
from thorough import some

pytestmark = pytest.mark.wheel

F32, U8, STRING = 11, 31, 2


def names(program, prefix="", constants=True):
    data = program.SerializeToString(deterministic=True)
    scanned = ProgramScan(_codec.Buffer(data), (0, len(data)), prefix, constants)
    return list(scanned.names())


# --------------------------------------------------------------------------------------------------------------- names


def test_names_of_constants_arguments_and_attributes():
    program, block = new_program()
    add_const(block, "w", LONG)
    op = add_op(block, "concat", "joined", values=["w", LONG, LONG], axis=np.float32(1))
    set_value(op.attributes["hint"], LONG)
    assert sorted(names(program)) == ["joined.axis", "joined.hint", "joined.values[1]", "joined.values[2]", "w"]
    assert sorted(names(program, constants=False)) == ["joined.hint", "joined.values[1]", "joined.values[2]", "w"]


def test_names_in_a_pipeline_and_in_functions():
    program, (first, second) = new_program("alpha", "beta")
    add_const(first, "w", LONG)
    add_const(second, "w", LONG)
    set_value(program.attributes["note"], LONG)
    set_value(program.functions["beta"].attributes["note"], LONG)
    expected = ["@program.note", "alpha/w", "beta/@function.note", "beta/w"]
    assert sorted(names(program)) == expected
    assert sorted(names(program, "model1/")) == [f"model1/{name}" for name in expected]


def test_equal_names_in_nested_blocks():
    program, block = new_program()
    cond = add_op(block, "cond", "out")
    for value in (1, 2):
        add_const(cond.blocks.add(), "w", LONG * value)
    inner = add_op(cond.blocks[0], "cond", "deep").blocks.add()
    add_const(inner, "w", LONG)
    add_const(inner, "alone", LONG)
    assert names(program) == ["main/out[0]/w", "main/out[0]/deep[0]/w", "alone", "main/out[1]/w"]
    with milblob.open(as_model(program)) as model:
        assert model["main/out[1]/w"][1] == 2
        with pytest.raises(KeyError, match="'w' is ambiguous: "):
            model["w"]


def test_equal_names_in_two_functions_and_a_block():
    program, (first, second) = new_program("alpha", "beta")
    add_const(first, "w", LONG)
    add_const(add_op(first, "cond", "c").blocks.add(), "w", LONG)
    add_const(second, "w", LONG)
    assert names(program) == ["alpha/w", "alpha/c[0]/w", "beta/w"]


def test_equal_names_in_one_block_are_numbered():
    program, block = new_program()
    for _ in range(3):
        add_const(block, "w", LONG)
    add_const(block, "main/w#2", LONG)
    found = names(program)
    assert found[0] == "main/w"
    assert len(set(found)) == 4
    assert "main/w#2" in found
    data = as_model(program)
    assert list(milblob.load(data)) == found


def test_a_compressed_weight_named_like_an_argument():
    program, block = new_program()
    add_op(block, "constexpr_cast", "a.b", source_val=LONG)
    add_op(block, "constexpr_cast", "a.b#2", source_val=LONG)
    add_op(block, "add", "a", b=LONG * 2)
    with milblob.open(as_model(program)) as model:
        assert len(model) == 3
        assert [tensor.op for tensor in model.values()] == ["constexpr_cast", "constexpr_cast", "add"]
        assert list(model)[2] == "main/a.b"
        assert model["main/a.b"][1] == 2


def test_an_operation_named_like_an_attribute_of_the_program():
    program, block = new_program()
    set_value(program.attributes["note"], LONG)
    add_const(block, "@program.note", LONG * 2)
    assert names(program) == ["@program.note", "main/@program.note"]
    assert milblob.load(as_model(program))["main/@program.note"][1] == 2


def test_names_that_would_fill_the_memory(monkeypatch):
    monkeypatch.setattr("milblob.program.scan.MAX_NAMES_NCHARS", 30)
    program, block = new_program()
    add_const(block, "w", LONG)
    add_const(add_op(block, "cond", "a" * 20).blocks.add(), "w", LONG)
    with pytest.raises(milblob.FormatError, match="names of all constants: expected at most 30 bytes, got "):
        names(program)


def test_names_of_operations_without_outputs():
    program, block = new_program()
    add_op(block, "write_state", None, data=LONG)
    assert names(program) == ["write_state.data"]


def test_names_are_the_same_in_both_map_orders():
    """Python's protobuf writes maps in any order; names do not depend on it."""
    program, blocks = new_program("a", "b", "c")
    for number, block in enumerate(blocks):
        add_op(block, "add", "w", x=LONG, y=LONG * number)
        set_value(block.operations[0].attributes["z"], LONG)
    seen = set()
    for _ in range(8):
        data = program.SerializeToString()
        scanned = ProgramScan(_codec.Buffer(data), (0, len(data)), "", True)
        seen.add(tuple(sorted(scanned.names())))
    assert len(seen) == 1


def test_paths():
    program, block = new_program()
    add_const(block, "first", LONG)
    nested = add_op(block, "while_loop", "loop").blocks
    nested.add()
    add_op(nested.add(), "add", "sum", x=LONG)
    set_value(program.attributes["note"], LONG)
    set_value(program.functions["main"].attributes["note"], LONG)
    set_value(block.attributes["note"], LONG)
    data = program.SerializeToString(deterministic=True)
    scanned = ProgramScan(_codec.Buffer(data), (0, len(data)), "model0/", True)
    assert sorted(scanned.path(c.op, c) for c in scanned.table.constants) == [
        "model0/main.block['CoreML8'].note",
        "model0/main.block['CoreML8'].op[0] 'first'.val",
        "model0/main.block['CoreML8'].op[1] 'loop'.block[1].op[0] 'sum'.x",
        "model0/main.note",
        "model0/program.note",
    ]


def test_attributes_of_blocks_come_before_what_is_in_them():
    """The scan learns of them late, and then begins again: also for blocks inside blocks, in every flag's order."""
    program, block = new_program()
    for number in range(3):
        add_const(block, f"w{number}", LONG)
    inner = add_op(block, "while_loop", "loop").blocks.add()
    add_const(inner, "deep", LONG)
    deeper = add_op(inner, "cond", "inner").blocks.add()
    add_const(deeper, "deepest", LONG)
    set_value(deeper.attributes["note"], LONG)
    expected = ["w0", "w1", "w2", "deep", "@block.note", "deepest"]
    assert names(program) == names(program, constants=False) == expected
    set_value(block.attributes["first"], LONG)
    set_value(inner.attributes["second"], LONG)
    expected = ["@block.first", "w0", "w1", "w2", "@block.second", "deep", "@block.note", "deepest"]
    assert names(program) == names(program, constants=False) == expected
    assert milblob.load(as_model(program)).keys() == set(expected)


def test_a_program_in_the_middle_of_a_buffer():
    program, block = new_program()
    add_const(block, "w", LONG)
    data = program.SerializeToString()
    scanned = ProgramScan(_codec.Buffer(b"xyz" + data + b"tail"), (3, len(data)))
    assert list(scanned.names()) == ["w"]
    assert not scanned.rewritten
    assert scanned.buffer.nbytes == len(data) + 7


def test_more_rows_than_the_scan_has_room_for_at_first():
    program, block = new_program(*[f"f{i:02}" for i in range(40)])[0], None
    for function in program.functions.values():
        block = function.block_specializations["CoreML8"]
        for i in range(60):
            add_const(block, f"w{i}", np.zeros((2, 3, 1, 2)))
    found = names(program)
    assert found == [f"f{f:02}/w{i}" for f in range(40) for i in range(60)]


@pytest.mark.parametrize("constants", [False, True])
def test_types_that_are_remembered(constants):
    """A type like one shortly before is not read again. Dimensions of values that are not listed leave their place to others."""
    program, block = new_program()
    expected = {}
    shapes = [(3,), (5, 7), (3,), (5, 7), (7, 5), (2, 2), (3, 4), (3,), (200,), (3, 4), (1,) * 9, (2, 1, 5), (), (3,)]
    for i, shape in enumerate(shapes * 3):
        small = add_const(block, f"w{i}", np.zeros(shape))
        set_value(small.attributes["hint"], np.zeros(shapes[i * 5 % len(shapes)]))
        if i % 3 == 0:  # listed, however few elements it has
            value = small.attributes["val"]
            value.blobFileValue.fileName, value.blobFileValue.offset = "@model_path/weights/weight.bin", 64 + i
        if constants or i % 3 == 0 or np.prod(shape) >= 10:
            expected[f"w{i}"] = shape
    data = program.SerializeToString(deterministic=True)
    scanned = ProgramScan(_codec.Buffer(data), (0, len(data)), "", constants).table
    found = {c.op.name: (c.shape, c.op.shape) for c in scanned.constants if c.key == "val"}
    assert found == {name: (shape, shape) for name, shape in expected.items()}


# ------------------------------------------------------------------------------------------------------------ rewriting


@pytest.mark.parametrize("case", ["wire/split", "wire/duplicate_keys", "wire/replaced", "wire/plain", "wire/chunks"])
def test_split_messages_are_rewritten_and_only_they(case):
    data = (load_case(case).folder / "program.pb").read_bytes()
    scanned = ProgramScan(_codec.Buffer(data), (0, len(data)), "", True)
    assert scanned.rewritten is (case not in ("wire/plain", "wire/chunks"))


@pytest.mark.parametrize("case", [n for n in MODEL_CASES if n.startswith("wire/")])
def test_offsets_are_those_of_the_file_or_none(case):
    """Where protobuf had to put pieces together, values are read from its copy, and have no offset in the file."""
    data = load_case(case).path().read_bytes()
    pieces = {"split", "split_program", "duplicate_keys", "replaced"}
    rows = {row["output"]: row for row in load_case(case).rows if row["parameter"] == "val"}
    with milblob.open(load_case(case).path(), constants=True) as model:
        for tensor in model.values():
            if case.removeprefix("wire/") in pieces:
                assert tensor.offset is None
                continue
            row = rows.get(tensor.name)
            if row is None or case in ("wire/unknown_fields", "wire/unknown_groups", "wire/odd_numbers"):
                continue
            tag, at = reference.read_varint(data, tensor.offset)
            nbytes, at = reference.read_varint(data, at)
            assert reference.FIELDS[tag >> 3] == row["field"]
            assert len(reference.unpack_tensor_value(data[tensor.offset : at + nbytes])[1]) == tensor.size


def test_pieces_that_protobuf_cannot_merge():
    with pytest.raises(milblob.UnsupportedError, match="Program in pieces: expected less than 2 GiB"):
        rewrite(_codec.Buffer(b""), (0, 1 << 31))


# --------------------------------------------------------------------------------------------------------- compression


def compressed(program):
    data = program.SerializeToString(deterministic=True)
    scanned = ProgramScan(_codec.Buffer(data), (0, len(data)))
    scanned.link()
    scanned.names()
    return scanned, scanned.ends, {c for c in scanned.table.constants if scanned.is_part(c)}


def test_parts_given_by_name_and_by_value():
    program, block = new_program()
    add_const(block, "table", LONG)
    add_op(block, "constexpr_lut_to_dense", "w", indices=LONG[:3], lut="table")
    scanned, ends, parts = compressed(program)
    assert [end.op.name for end in ends] == ["w"]
    assert sorted(ends[0].parts) == ["indices", "lut"]
    assert ends[0].parts["lut"].op.name == "table"
    assert parts == {c for c in scanned.table.constants if c.storage != _codec.NAME}
    with milblob.open(as_model(program)) as model:
        assert list(model) == ["w"]
        assert model["w"].parts["lut"].name == "table"
        assert model["w"].nbytes == 12 * 4 + 3 * 4
    with milblob.open(as_model(program), stored=True) as model:
        assert list(model) == ["table", "w.indices"]


def test_parts_of_outer_blocks_and_several_bindings():
    program, block = new_program()
    add_const(block, "table", LONG)
    inner = add_op(block, "cond", "c").blocks.add()
    add_op(inner, "constexpr_anything", "w", data=["table", LONG], elsewhere="no_constant")
    _, ends, _ = compressed(program)
    assert sorted(ends[0].parts) == ["data[0]", "data[1]"]
    assert ends[0].parts["data[0]"].op.name == "table"
    with milblob.open(as_model(program)) as model:
        assert list(model) == ["w"]
        assert sorted(part.name for part in model["w"].parts.values()) == ["table", "w.data[1]"]


def test_chains_end_in_one_weight():
    program, block = new_program()
    first = add_op(block, "constexpr_lut_to_sparse", "mask", indices_mask=LONG, lut=LONG)
    set_type(first.outputs.add(name="values").type, F32, (12,))
    add_op(block, "constexpr_blockwise_shift_scale", "scaled", data="values", scale=LONG)
    add_op(block, "constexpr_sparse_to_dense", "w", mask="mask", nonzero_data="scaled")
    add_op(block, "relu", "out", x="w")
    _, ends, _ = compressed(program)
    assert [end.op.name for end in ends] == ["w"]
    assert isinstance(ends[0].parts["nonzero_data"], Compressed)
    values, mask = ends[0].parts["nonzero_data"].parts["data"], ends[0].parts["mask"]
    assert (values.op.name, mask.op.name) == ("values", "mask")  # two outputs of one operation: its parts are theirs
    assert values.parts is mask.parts
    assert [c.key for c in ends[0].stored()] == ["indices_mask", "lut", "scale"]  # each once
    with milblob.open(as_model(program)) as model:
        assert list(model) == ["w"]
        weight = model["w"]
        assert weight.parts["nonzero_data"].parts["data"].parts["lut"].read().tolist() == LONG.tolist()
        assert weight.nbytes == 3 * 48
        assert uses(weight) == [("relu", "out", "x")]
        values = weight.parts["nonzero_data"].parts["data"]
        assert (values.name, values.dtype, values.shape) == ("values", np.dtype("float32"), (12,))
        assert uses(values) == [("constexpr_blockwise_shift_scale", "scaled", "data")]
        assert uses(weight.parts["nonzero_data"]) == [("constexpr_sparse_to_dense", "w", "nonzero_data")]


def test_an_operation_with_two_outputs_is_not_a_weight():
    program, block = new_program()
    op = add_op(block, "constexpr_lut_to_sparse", "mask", indices_mask=LONG, lut=LONG)
    set_type(op.outputs.add(name="values").type, F32, (12,))
    with milblob.open(as_model(program)) as model, milblob.open(as_model(program), stored=True) as stored:
        assert list(model) == []
        assert sorted(stored) == ["mask.indices_mask", "mask.lut"]


def test_a_constexpr_without_parts():
    program, block = new_program()
    add_op(block, "constexpr_nothing", "w")
    add_op(block, "constexpr_of_nothing", "v", data="w")
    with milblob.open(as_model(program)) as model:
        assert list(model) == ["v"]
        assert (model["v"].nbytes, model["v"].file, model["v"].offset) == (0, None, None)
        assert model["v"].where == "main.block['CoreML8'].op[1] 'v'"
        with pytest.raises(milblob.UnsupportedError, match="'v'"):
            model["v"].read()
    block.operations[1].outputs[0].ClearField("type")
    with pytest.raises(milblob.FormatError, match="output of constexpr_of_nothing: expected a tensor type, got none"):
        milblob.open(as_model(program))
    program, block = new_program()
    add_op(block, "constexpr_nothing", "w")
    with milblob.open(as_model(program)) as model:
        assert list(model) == ["w"]
    op = add_op(block, "constexpr_cast", "c", source_val=LONG)
    op.outputs[0].ClearField("type")
    with pytest.raises(
        milblob.FormatError, match=r"expected a tensor type, got none - at main.block\['CoreML8'\].op\[1\] 'c'"
    ):
        milblob.open(as_model(program))


# ------------------------------------------------------------------------------------------------------------ consumers


def uses_in_protobuf(function):
    """(block path, name) -> Counter of uses, by google's parser; a name is looked for in its block and those around."""
    found = collections.defaultdict(collections.Counter)

    def visit(block, path, outer):
        scope = {**outer}
        for value in block.inputs:
            scope[value.name] = path
        for op in block.operations:
            for key, argument in op.inputs.items():
                for binding in argument.arguments:
                    if binding.WhichOneof("binding") == "name" and binding.name in scope:
                        found[scope[binding.name], binding.name][
                            op.type, op.outputs[0].name if op.outputs else op.type, key
                        ] += 1
            for number, nested in enumerate(op.blocks):
                step = f"{op.outputs[0].name if op.outputs else op.type}[{number}]"
                visit(nested, f"{path}/{step}" if path else step, scope)
            for output in op.outputs:
                scope[output.name] = path
        for name in block.outputs:
            if name in scope:
                found[scope[name], name]["return", name, ""] += 1

    for block in function.block_specializations.values():
        visit(block, "", {})
    return found


@pytest.mark.parametrize("name", some([n for n in MODEL_CASES if not n.startswith("wire/")], 12))
@pytest.mark.sample(4)
def test_consumers_of_every_constant(name):
    case = load_case(name)
    expected = {}
    for model_name, program in programs(case):
        for function_name, function in program.functions.items():
            if len(function.block_specializations) == 1:
                expected[model_name, function_name] = uses_in_protobuf(function)
    checked = 0
    for path in case.expected["paths"]:
        with milblob.open(case.source(path), constants=True, stored=True) as model:
            by_where = collections.defaultdict(list)
            for tensor in model.values():
                by_where[tensor.where].append(tensor)
            for row in case.rows:
                if row["op"] is None or (row["model"], row["function"]) not in expected:
                    continue
                prefix = f"{row['model']}/" if row["model"] else ""
                output = row["op"] if row["output"] is None else row["output"]
                tail = f".op[{row['op_index']}] {output!r}.{row['parameter']}"
                found = [
                    t
                    for where, tensors in by_where.items()
                    for t in tensors
                    if where.endswith(tail)
                    and where.startswith(f"{prefix}{row['function']}.block[")
                    and where.count(".block[") == 1 + len(row["block"].split("/") if row["block"] else [])
                ]
                if row["op"] == "const" and row["parameter"] == "val":
                    wanted = expected[row["model"], row["function"]][row["block"], output]
                else:
                    wanted = {(row["op"], output, row["parameter"]): 1}
                assert any(collections.Counter(uses(t)) == wanted for t in found), (row, [t.consumers for t in found])
                checked += 1
    assert checked or not any(row["op"] for row in case.rows) or name == "specializations"


def test_consumers_of_compressed_weights():
    case = load_case("sparse_palette")
    ((_, program),) = programs(case)
    expected = uses_in_protobuf(program.functions["main"])
    with milblob.open(case.path()) as model:
        for row in case.expected["dense"]:
            assert collections.Counter(uses(model[row["output"]])) == expected["", row["output"]]
            assert model[row["output"]].consumers


def test_consumers_in_nested_blocks_and_returns():
    program, block = new_program()
    add_const(block, "w", LONG)
    cond = add_op(block, "cond", "c", pred="w")
    for number in range(2):
        inner = cond.blocks.add()
        if number:
            add_const(inner, "w", LONG * 2)
        add_op(inner, "relu", f"r{number}", x="w")
        inner.outputs.append("w")
    block.outputs.append("w")
    add_op(block, "add", "sum", x="w", y="w")
    with milblob.open(as_model(program)) as model:
        outer, inner = model["main/w"], model["main/c[1]/w"]
        assert collections.Counter(uses(outer)) == collections.Counter(
            [
                ("cond", "c", "pred"),
                ("relu", "r0", "x"),
                ("return", "w", ""),
                ("return", "w", ""),
                ("add", "sum", "x"),
                ("add", "sum", "y"),
            ]
        )
        assert collections.Counter(uses(inner)) == collections.Counter([("relu", "r1", "x"), ("return", "w", "")])


def test_a_cast_of_an_unused_constant():
    program, block = new_program()
    add_const(block, "w", LONG)
    set_value(program.attributes["note"], LONG)
    with milblob.open(as_model(program)) as model:
        assert model["w"].consumers == ()
        assert model["@program.note"].consumers == ()


def test_every_block_is_found():
    ((_, program),) = programs(load_case("control_flow"))
    paths = [path for path, _ in blocks_of(next(iter(program.functions["main"].block_specializations.values())))]
    data = program.SerializeToString(deterministic=True)
    scanned = ProgramScan(_codec.Buffer(data), (0, len(data)), "", True)
    assert len(scanned.table.blocks) == len(paths)
    assert scanned.table.version == program.version


def test_names_are_the_same_in_every_listing():
    program, block = new_program()
    add_const(block, "w", np.arange(20, dtype=np.float32))
    loop = add_op(block, "while_loop", "l")
    inner = loop.blocks.add()
    add_const(inner, "w", np.float32(1))  # too small for a weight, but it makes the name occur twice
    data = as_model(program)
    with milblob.open(data) as weights, milblob.open(data, constants=True) as every:
        assert list(weights) == ["main/w"]
        assert set(every) >= {"main/w", "main/l[0]/w"}


def test_a_circle_through_one_of_two_outputs_is_refused():
    program, block = new_program()
    add_op(block, "constexpr_lut_to_sparse", "mask", indices_mask="w").outputs.add(name="values")
    add_op(block, "constexpr_sparse_to_dense", "w", nonzero_data="values")
    with pytest.raises(milblob.FormatError, match="expected parts that are computed before it"):
        milblob.open(as_model(program))


def test_a_blob_that_is_two_parts_counts_once():
    program, block = new_program()
    add_op(block, "constexpr_blockwise_shift_scale", "w", data=LONG, scale=LONG, offset=LONG)
    for key in ("data", "scale"):
        value = block.operations[-1].inputs[key].arguments[0].value
        value.blobFileValue.fileName, value.blobFileValue.offset = "@model_path/w.bin", 64
    with milblob.open(as_model(program)) as model:
        assert {part.nbytes for part in model["w"].parts.values()} == {LONG.nbytes}
        assert model["w"].nbytes == 2 * LONG.nbytes


def test_constexpr_operations_in_a_circle_are_refused():
    program, block = new_program()
    add_op(block, "constexpr_lut_to_dense", "v", lut="w")
    add_op(block, "constexpr_lut_to_dense", "w", lut="v")
    with pytest.raises(milblob.FormatError, match="expected parts that are computed before it") as caught:
        milblob.open(as_model(program))
    assert caught.value.where == "main.block['CoreML8'].op[0] 'v'"


def test_a_part_that_is_also_read_directly_remains_a_weight():
    program, block = new_program()
    add_const(block, "s", np.arange(12, dtype=np.float32))
    add_const(block, "d", np.arange(12, dtype=np.float32))
    add_op(block, "constexpr_blockwise_shift_scale", "w", scale="s", data="d")
    add_op(block, "add", "y", x="w", y="s")
    with milblob.open(as_model(program)) as model:
        assert list(model) == ["s", "w"]
        assert {key: part.name for key, part in model["w"].parts.items()} == {"scale": "s", "data": "d"}
        assert model["s"].read().tolist() == list(range(12))


@pytest.mark.parametrize("count", some([1, 15, 16, 17, 18, 300, 1024], 10))
@pytest.mark.parametrize("twice", [0, 1, 15, 16, 17, 299, 1023])
def test_a_repeated_function_is_found_among_many(count, twice):
    program, blocks = new_program(*[f"f{i}" for i in range(count)])
    for number, block in enumerate(blocks if count > 1 else [blocks]):
        add_const(block, "w", np.full(10, number, np.float32))
    data = program.SerializeToString()
    with milblob.open(as_model(program)) as model:
        assert len(model) == count
        assert len(model.functions) == len(set(model.functions))
        assert model[next(iter(model))].offset is not None  # scanned as it lies
    if twice < count:
        other, block = new_program(f"f{twice}")
        add_const(block, "w", np.full(10, -1, np.float32))
        both = data + other.SerializeToString()
        merged = schema.Model(specificationVersion=9).SerializeToString() + reference.write_field(502, both)
        name = f"f{twice}/w" if count > 1 else "w"
        with milblob.open(merged) as model:
            assert len(model) == count
            assert model[name].read().tolist() == [-1.0] * 10  # protobuf: the last of two equal keys counts
            assert model[name].offset is None
