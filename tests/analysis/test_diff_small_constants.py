"""milblob.diff of small constants: weights only where they lie in a weight file, and compared with those that do not."""

import numpy as np
import pytest

import milblob
from constexpr_bytes import code, constexpr, value
from diffing import kinds
from hostile_bytes import field, model, operation, program, tensor_type, write_package
from paths import DATA
from thorough import some

pytestmark = pytest.mark.usefixtures("unsynced")

BIAS, WEIGHT = np.arange(4, dtype=np.float32), np.arange(24, dtype=np.float32)
ONES, TWOS = np.array([1, 1], np.int32), np.array([2, 2], np.int32)
DTYPES = {"f": "FLOAT32", "i": "INT32"}


def dtype_of(array):
    return DTYPES[array.dtype.kind]


def const(name, array):
    dtype = dtype_of(array)
    return operation("const", name, [("val", value(dtype, array))], output_type=tensor_type(code(dtype), array.shape))


def conv(name="y", **inputs):
    """An operation that reads names, or arrays that are written where it reads them."""
    body = b""
    for key, given in inputs.items():
        binding = field(1, given) if isinstance(given, str) else field(2, value(dtype_of(given), given))
        body += field(2, field(1, key) + field(2, field(1, binding)))
    return operation("conv", name, (), body, output_type=tensor_type(11, [4]))


def package(folder, *ops):
    return write_package(folder, model(program(*ops), 9))  # from 9 on weight files hold integers


def simple(folder, bias="b", strides="s", bias_values=BIAS, strides_values=ONES):
    """A convolution that reads a weight and two small constants; the names of these are given."""
    consts = const("w", WEIGHT), const(bias, bias_values), const(strides, strides_values)
    return package(folder, *consts, conv(weight="w", bias=bias, strides=strides))


def outside(path):
    """A copy with all numbers in the weight file."""
    target = path.parent / "outside.mlpackage"
    assert milblob.repack(path, target, externalize=1, force=True).counts()["externalize"]
    return target


def both_ways(a, b, **options):
    """Compares both ways; the same is found, but for the direction."""
    found, back = milblob.diff(a, b, **options), milblob.diff(b, a, **options)
    assert found.is_same == back.is_same and len(found.structure) == len(back.structure)
    assert sorted(row.kind.replace("_b", "_a") for row in found.rows) == sorted(
        row.kind.replace("_b", "_a") for row in back.rows
    )
    return found


def sources():
    return sorted({*DATA.glob("*/model.mlpackage")} - {DATA / "neural_network" / "model.mlpackage"})


@pytest.mark.parametrize("source", some(sources(), 8), ids=lambda path: path.parent.name)
def test_where_a_constant_is_stored_makes_no_difference(source, tmp_path):
    paths = [source, tmp_path / "outside.mlpackage", tmp_path / "inside.mlpackage"]
    milblob.repack(source, paths[1], externalize=1)
    milblob.repack(paths[1], paths[2], inline=True)
    for a, b in ((0, 1), (1, 2), (0, 2)):
        for options in ({}, {"names_only": True}, {"stored": True}):
            found = both_ways(paths[a], paths[b], **options)
            assert found.is_same, str(found)
            assert {row.kind for row in found.rows} <= {"same", "named"}


def test_each_is_compared_with_the_constant_of_its_name(tmp_path):
    inside = simple(tmp_path / "a")
    found = both_ways(inside, outside(inside))
    assert kinds(found) == {"w": "same", "b": "same", "s": "same"} and found.structure == []
    assert both_ways(inside, outside(inside), select=lambda name: name == "s").is_same
    assert kinds(milblob.diff(inside, inside)) == {"w": "same"}  # neither is a weight here
    # By a mapping too, and of an array.
    renamed = outside(simple(tmp_path / "c", bias="bias"))
    assert kinds(milblob.diff(inside, renamed, mapping={"b": "bias"})) == {"w": "same", "b": "same", "s": "same"}
    assert milblob.diff({"b": BIAS, "s": ONES}, inside, select=lambda name: name in "bs").is_same
    found = milblob.diff(inside, {"w": WEIGHT, "b": BIAS + 1})
    assert kinds(found) == {"w": "same", "b": "different"}


def test_differences_are_found_once(tmp_path):
    inside = simple(tmp_path / "a")
    other = simple(tmp_path / "b", strides_values=TWOS, bias_values=BIAS + 1)
    for path in (outside(other), outside(simple(tmp_path / "c", strides_values=TWOS, bias_values=BIAS + 1))):
        found = both_ways(inside, path)
        assert kinds(found) == {"w": "same", "b": "different", "s": "different"} and found.structure == []
        assert {row.name: row.figures.max_abs for row in found.rows if row.figures} == {"b": 1, "s": 1}
        assert milblob.diff(inside, path, atol=1).is_same  # tolerances hold as for any weight
    found = milblob.diff(outside(inside), tmp_path / "b" / "outside.mlpackage")
    assert kinds(found) == {"w": "same", "b": "different", "s": "different"} and found.structure == []
    found = milblob.diff(inside, other)  # inside on both sides: no weights, but no less different
    assert kinds(found) == {"w": "same"} and len(found.structure) == 2
    longer = outside(simple(tmp_path / "d", strides_values=np.ones(3, np.int32)))
    assert kinds(both_ways(inside, longer))["s"] == "shape"
    wider = outside(simple(tmp_path / "e", strides_values=ONES.astype(np.float32)))
    assert kinds(both_ways(inside, wider))["s"] == "dtype"


def test_other_names(tmp_path):
    """Paired by who reads them."""
    inside = simple(tmp_path / "a")
    found = both_ways(inside, outside(simple(tmp_path / "b", "b_1", "s_1")))
    assert found.is_same and {(row.name, row.other) for row in found.rows} == {("w", "w"), ("b", "b_1"), ("s", "s_1")}
    found = both_ways(inside, outside(simple(tmp_path / "c", "b_1", "s_1", strides_values=TWOS)))
    assert kinds(found) == {"w": "same", "b": "same", "s": "different"} and found.structure == []


def test_constants_that_are_shared_otherwise(tmp_path):
    """One constant on the one side, two on the other: compared where they are read."""
    first, second = {"weight": "w"}, {"weight": "w"}
    one = package(tmp_path / "one", const("w", WEIGHT), const("s", ONES),
                  conv("y", strides="s", **first), conv("z", strides="s", **second))  # fmt: skip
    for name, values in (("same", ONES), ("other", TWOS)):
        consts = const("w", WEIGHT), const("t", ONES), const("u", values)
        ops = conv("y", strides="t", **first), conv("z", strides="u", **second)
        two = package(tmp_path / name, *consts, *ops)
        for a, b in ((one, two), (one, outside(two)), (tmp_path / "one" / "outside.mlpackage", two)):
            if not a.exists():
                outside(one)
            found = both_ways(a, b)
            assert kinds(found) == {"w": "same"}
            words = ["operation conv 'z', strides: int32 [1, 1] in A, int32 [2, 2] in B"]
            assert [change.message for change in found.structure] == ([] if name == "same" else words)
    # Where only tensors are compared, they have no counterpart.
    found = milblob.diff(one, tmp_path / "other" / "outside.mlpackage", select=lambda name: name in "stu")
    assert kinds(found) == {"t": "only_b", "u": "only_b"}


def test_names_that_are_read_crosswise(tmp_path):
    """Equal by name, but each operation reads the other one's."""
    consts = const("w", WEIGHT), const("s", ONES), const("t", TWOS)
    inside = package(tmp_path / "a", *consts, conv("y", weight="w", strides="s"), conv("z", weight="w", strides="t"))
    crossed = package(tmp_path / "b", *consts, conv("y", weight="w", strides="t"), conv("z", weight="w", strides="s"))
    for path in (crossed, outside(crossed)):
        assert len(both_ways(inside, path).structure) == 2


def test_written_where_they_are_read(tmp_path):
    """No const operation; and one that only one side has at all."""
    named = simple(tmp_path / "a")
    inline = package(tmp_path / "b", const("w", WEIGHT), conv(weight="w", bias=BIAS, strides=ONES))
    for a, b in ((named, inline), (named, outside(inline)), (outside(named), inline)):
        assert both_ways(a, b).is_same
    lacking = package(tmp_path / "c", const("w", WEIGHT), const("b", BIAS), conv(weight="w", bias="b"))
    for path in (named, outside(simple(tmp_path / "d"))):
        found = both_ways(lacking, path)
        assert [change.message for change in found.structure] == ["operation conv 'y', strides: only in B"]
        assert "s" not in kinds(found)


def test_small_compressed_weights(tmp_path):
    """Decompressed, and then moved into the Program, where they are weights no more."""
    half = ("FLOAT16", BIAS.astype(np.float16))
    cast = constexpr(
        "cast", [("b", "FLOAT32", (4,))], {"source_val": half, "output_dtype": ("STRING", np.array("fp32"))}
    )
    source = package(tmp_path / "a", const("w", WEIGHT), cast, conv(weight="w", bias="b"))
    dense, inside = tmp_path / "dense.mlpackage", tmp_path / "inside.mlpackage"
    milblob.repack(source, dense, decompress=True)
    milblob.repack(dense, inside, inline=True)
    for target in (dense, inside):
        found = both_ways(source, target)
        assert found.is_same and kinds(found) == {"w": "same", "b": "stored"}, str(found)
    other = simple(tmp_path / "b", bias_values=BIAS + 1)
    found = milblob.diff(source, other)
    assert kinds(found)["b"] == "different" and [c.message for c in found.structure] == [
        "operation conv 'y', strides: only in B"
    ]


def test_listings_with_all_constants(tmp_path):
    """A caller's own Model may list them all."""
    inside = simple(tmp_path / "a")
    with milblob.open(inside, constants=True) as opened:
        assert milblob.diff(opened, outside(inside)).is_same and milblob.diff(inside, opened).is_same


def test_diff_command(tmp_path, cli):
    inside = simple(tmp_path / "a")
    assert cli("diff", inside, outside(inside)) == (0, "same: 3 tensors: 3 the same\n", "")
    status, out, _ = cli("diff", inside, outside(simple(tmp_path / "b", strides_values=TWOS)))
    assert (status, out.splitlines()[1].split()[:4]) == (1, ["s", "other", "values", "int32"])
    assert out.splitlines()[-1] == "different: 3 tensors: 2 the same, 1 with other values"
