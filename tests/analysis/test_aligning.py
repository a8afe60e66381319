"""Which operation of one Program is which of another: `milblob.diff` of networks whose names tell less than their shape."""

import numpy as np
import pytest

import milblob
from milblob.analysis.aligning import plain
from networks import Network

SIZE = 4


def weight(*key, shape=(SIZE, SIZE)):
    """Values that depend on what they are for, so that a wrong pair shows."""
    return np.random.default_rng([ord(c) for c in repr(key)]).standard_normal(shape).astype(np.float32)


class Names:
    """Names as a converter gives them: the type of the operation and a number."""

    def __init__(self, first=0, mark=""):
        self.counts = {}
        self.first, self.mark = first, mark

    def __call__(self, kind):
        number = self.counts[kind] = self.counts.get(kind, self.first - 1) + 1
        return f"{kind}_{number}{self.mark}"


def linear(network, names, x, key):
    name = names("linear")
    w = network.const(f"{name}_weight_0", weight(key))
    b = network.const(f"{name}_bias_0", weight(key, "bias", shape=(16,)))
    return network.op("linear", name, x=x, weight=w, bias=b)


def block(network, names, x, key, activation="gelu", order="qkv"):
    """A block of a transformer: attention, and two layers, each around a residual."""
    heads = {head: linear(network, names, x, (key, head)) for head in order}
    scores = network.op("matmul", names("matmul"), x=heads["q"], y=heads["k"])
    mixed = network.op("matmul", names("matmul"), x=network.op("softmax", names("softmax"), x=scores), y=heads["v"])
    x = network.op("add", names("add"), x=x, y=linear(network, names, mixed, (key, "o")))
    inner = network.op(activation, names(activation), x=linear(network, names, x, (key, "up")))
    return network.op("add", names("add"), x=x, y=linear(network, names, inner, (key, "down")))


def transformer(path, names=None, layers=4, **changed):
    """A model of some blocks; `changed` has arguments of `block`, by the number of the layer after an underscore."""
    network, names, x = Network(), names or Names(), "x"
    for layer in range(layers):
        x = block(network, names, x, layer, **changed.get(f"_{layer}", {}))
    return network.save(path, network.op("identity", "out", x=x))


def kinds_of(found):
    return {row.kind for row in found.rows}


def words(found):
    return [change.message for change in found.structure]


@pytest.mark.parametrize("first", [0, 1, 3, 7, 100])
def test_renumbered_operations_are_the_same(tmp_path, first):
    a = transformer(tmp_path / "a.mlmodel")
    b = transformer(tmp_path / "b.mlmodel", Names(first))
    found = milblob.diff(a, b)
    assert found.is_same and kinds_of(found) == {"same"} and len(found.rows) == 4 * 6 * 2, str(found)
    if not first:
        assert found.notes == []
        return
    (note,) = found.notes
    assert note.kind == "renamed" and len(note.parts) == 4 * 12
    assert note.message == (f"48 operations have other names, such as linear 'linear_0' in A, 'linear_{first}' in B")


def test_another_order_of_what_is_computed_side_by_side(tmp_path):
    """The numbers then lie: linear_0 is the query in A and the value in B."""
    a = transformer(tmp_path / "a.mlmodel")
    changed = {f"_{layer}": {"order": "vkq"} for layer in range(4)}
    b = transformer(tmp_path / "b.mlmodel", **changed)
    found = milblob.diff(a, b)
    assert found.is_same and kinds_of(found) == {"same"}, str(found)
    pairs = {row.name: row.other for row in found.rows}
    assert pairs["linear_0_weight_0"] == "linear_2_weight_0" and pairs["linear_1_weight_0"] == "linear_1_weight_0"


def test_what_is_changed_hides_nothing_else(tmp_path):
    """Two layers compute something else: neither what comes before nor what comes after the rest is the same."""
    a = transformer(tmp_path / "a.mlmodel")
    b = transformer(tmp_path / "b.mlmodel", Names(5), _0={"activation": "relu"}, _2={"activation": "relu"})
    found = milblob.diff(a, b)
    assert kinds_of(found) == {"same"} and len(found.rows) == 4 * 6 * 2, str(found)
    gelu, relu = ("operation gelu 'gelu_{}'", "operation relu 'relu_{}'")
    assert [line for line in words(found) if "linear" not in line] == [
        *(gelu.format(n) + ": only in A" for n in (0, 2)),
        *(relu.format(n) + ": only in B" for n in (5, 6)),
    ]
    assert len(words(found)) == 6  # and the two layers that read other activations


def test_layers_more_and_less(tmp_path):
    a = transformer(tmp_path / "a.mlmodel", layers=3)
    b = transformer(tmp_path / "b.mlmodel", Names(2), layers=4)
    found = milblob.diff(a, b)
    totals = found.totals
    assert (totals["same"], totals["only_b"], totals["different"]) == (36, 12, 0), str(found)


def test_given_names_come_first(tmp_path):
    """Layers that changed places are compared by name."""

    def layers(path, *order):
        network, x = Network(), "x"
        for name in order:
            x = network.op("linear", f"y_{name}", x=x, weight=network.const(f"{name}_w", weight(name)))
        return network.save(path, x)

    a, b = layers(tmp_path / "a.mlmodel", "first", "second"), layers(tmp_path / "b.mlmodel", "second", "first")
    found = milblob.diff(a, b)
    assert [(row.name, row.other, row.kind) for row in found.rows] == [
        ("first_w", "first_w", "same"),
        ("second_w", "second_w", "same"),
    ]
    assert not found.is_same  # the operations read each other's


def test_weights_that_are_read_crosswise(tmp_path):
    """The same names and values, but each operation reads the other one's."""

    def model(path, first, second):
        network = Network()
        network.const("up", weight("up"))
        network.const("down", weight("down"))
        inner = network.op("linear", "inner", x="x", weight=first)
        return network.save(path, network.op("linear", "out", x=inner, weight=second))

    found = milblob.diff(model(tmp_path / "a.mlmodel", "up", "down"), model(tmp_path / "b.mlmodel", "down", "up"))
    assert kinds_of(found) == {"same"} and words(found) == [
        "operation linear 'inner', weight: weight 'up' in A, weight 'down' in B",
        "operation linear 'out', weight: weight 'down' in A, weight 'up' in B",
    ]


# -------------------------------------------------------------------------------------------------- stored once or twice


def norms(path, *biases, dtype=np.float32):
    """Layer norms, one after another, with the bias of each; equal ones are stored once."""
    network, x, known = Network(), "x", {}
    for number, bias in enumerate(biases):
        name = known.setdefault(bias, f"norm{number}_bias")
        if name == f"norm{number}_bias":
            network.const(name, np.full(16, bias, dtype))
        x = network.op("layer_norm", f"norm{number}", x=x, beta=name)
    return network.save(path, x)


def test_what_one_side_stores_once_is_compared_at_each_place(tmp_path):
    shared = norms(tmp_path / "a.mlmodel", 0, 0, 0)
    other = norms(tmp_path / "b.mlmodel", 0, 1, 0)
    found = milblob.diff(shared, other)
    rows = [(row.name, row.other, row.kind) for row in found.rows]
    assert rows == [("norm0_bias", "norm0_bias", "same"), ("norm0_bias", "norm1_bias", "different")]
    assert found.structure == []
    back = milblob.diff(other, shared)
    assert [(row.name, row.other, row.kind) for row in back.rows] == [
        ("norm0_bias", "norm0_bias", "same"),
        ("norm1_bias", "norm0_bias", "different"),
    ]
    found = milblob.diff(norms(tmp_path / "c.mlmodel", 1, 1, 2, 2), norms(tmp_path / "d.mlmodel", 1, 2, 2, 1))
    assert {(row.name, row.other, row.kind) for row in found.rows} == {
        ("norm0_bias", "norm0_bias", "same"),
        ("norm0_bias", "norm1_bias", "different"),
        ("norm2_bias", "norm1_bias", "same"),
        ("norm2_bias", "norm0_bias", "different"),
    }
    assert found.structure == []


# ------------------------------------------------------------------------------------------------------- what is folded


def axes(path, kind, shape, **inputs):
    network = Network({"x": (1, 2, 3, 4)})
    given = network.op("relu", "y", x="x", shape=(1, 2, 3, 4))
    return network.save(path, network.op(kind, "out", x=given, shape=shape, **inputs))


@pytest.mark.parametrize(
    ("kind", "shape", "key", "one", "other", "is_same"),
    [
        ("transpose", (1, 3, 2, 4), "perm", [0, 2, 1, 3], [0, 2, -3, -1], True),
        ("transpose", (1, 3, 2, 4), "perm", [0, 2, 1, 3], [0, 1, 2, 3], False),
        ("transpose", (1, 3, 2, 4), "perm", [0, 2, 1, 3], [0, 2, -3, -5], False),
        ("reduce_mean", (1, 2), "axes", [2, 3], [-2, -1], True),
        ("reduce_mean", (1, 2), "axes", [2, 3], [-1, -2], False),
        ("softmax", (1, 2, 3, 4), "axis", 3, -1, True),
        ("softmax", (1, 2, 3, 4), "axis", 3, -2, False),
        ("expand_dims", (1, 2, 3, 4, 1), "axes", [4], [-1], True),
        ("expand_dims", (1, 2, 3, 4, 1), "axes", [3], [-1], False),
        ("slice_by_index", (1, 2, 3, 4), "end", [1, 2, 3, 3], [1, 2, 3, -1], False),  # no axes
    ],
)
def test_axes_count_from_either_end(tmp_path, kind, shape, key, one, other, is_same):
    files = [
        axes(tmp_path / f"{name}.mlmodel", kind, shape, **{key: np.array(value, np.int32)})
        for name, value in (("a", one), ("b", other))
    ]
    assert milblob.diff(*files).is_same is milblob.diff(*files[::-1]).is_same is is_same


def half(path, names, marks):
    """The layers of `plain_layers` as a conversion in float16 has them."""
    network = Network(dtype="float16")
    x = network.op("cast", "x_to_fp16", x="x", dtype="=fp16")
    for number in range(3):
        w = network.const(f"{names}{number}_w{marks}", weight(number).astype(np.float16))
        bias = np.array([0.1, number], np.float16)
        x = network.op("linear", f"{names}{number}_cast_fp16", x=x, weight=w, bias=bias, epsilon=np.float16([1e-5]))
    return network.save(path, network.op("cast", "out", "float32", x=x, dtype="=fp32"))


def full(path, last=0.1):
    network, x = Network(), "x"
    for number in range(3):
        w = network.const(f"layer{number}_w", weight(number))
        bias = np.array([last if number == 2 else 0.1, number], np.float32)
        x = network.op("linear", "out" if number == 2 else f"layer{number}", x=x, weight=w, bias=bias,
                       epsilon=np.float32([1e-5]))  # fmt: skip
    return network.save(path, x)


@pytest.mark.parametrize(("names", "marks"), [("layer", "_to_fp16"), ("other", "")])
def test_precision_is_counted(tmp_path, names, marks):
    a, b = full(tmp_path / "a.mlmodel"), half(tmp_path / "b.mlmodel", names, marks)
    found = milblob.diff(a, b)
    assert kinds_of(found) == {"different"} and len(found.rows) == 3
    assert min(row.figures.sqnr for row in found.rows) > 60
    assert words(found) == [
        "2 casts, 1 to float16, 1 to float32: only in B",
        "3 operations give float32 in A, float16 in B",
        "6 small constants are float32 in A, float16 in B, the same values once rounded",
    ]
    back = milblob.diff(b, a)
    assert len(back.structure) == 3 and back.structure[-1].message.startswith("6 small constants are float16 in A")
    folded = found.structure[0]
    assert folded.parts == ("operation cast 'x_to_fp16': only in B", "operation cast 'out': only in B")
    assert found.to_dict()["structure"][0]["parts"] == list(folded.parts)
    # A constant that is not the same once rounded is no noise.
    other = milblob.diff(full(tmp_path / "c.mlmodel", last=0.2), b)
    (line,) = (line for line in words(other) if ", bias:" in line)
    assert "float32 [0.2" in line and "float16 [0.0999" in line
    assert "5 small constants are float32 in A, float16 in B, the same values once rounded" in words(other)


def test_outputs_of_one_operation_are_distinct(tmp_path):
    def model(path, first, second):
        network = Network()
        parts = network.op("split", ["part_0", "part_1"], x="x")
        out = network.op("sub", "out", x=parts[first], y=parts[second])
        return network.save(path, out)

    a, b = model(tmp_path / "a.mlmodel", 0, 1), model(tmp_path / "b.mlmodel", 1, 0)
    assert milblob.diff(a, model(tmp_path / "c.mlmodel", 0, 1)).is_same
    assert sorted(words(milblob.diff(a, b))) == [
        "operation sub 'out', x: part_0 in A, part_1 in B",
        "operation sub 'out', y: part_1 in A, part_0 in B",
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("w_to_fp16", "w"), ("w_cast_fp16", "w"), ("w_cast_fp16_to_fp32", "w"), ("w_cast_fp16_cast_uint16", "w"),
        ("w_to_fp16_palettized", "w"), ("w_quantized.scale", "w.scale"), ("lstm_cast_fp16_0", "lstm_0"),
        ("loop_cast_fp16[1]/y_to_int16", "loop[1]/y"), ("into_fp16ish", "into_fp16ish"), ("to_fp16", "to_fp16"),
        ("a_quantized_b", "a_b"),
    ],
)  # fmt: skip
def test_plain_names(name, expected):
    assert plain(name) == expected
