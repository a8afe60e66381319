"""Consumers of a tensor in a Program that is split into pieces."""

import pytest

import milblob
from hostile_bytes import field


def operation(kind, output, type_pieces, inputs=b"", attributes=b""):
    named = field(1, output) + b"".join(field(2, piece) for piece in type_pieces)
    return field(3, field(1, kind) + inputs + field(3, named) + attributes)


def test_split_type_of_an_operation_without_weights_is_refused_by_name():
    size = field(1, field(1, 12))
    vector = field(1, field(1, 11) + field(2, 1) + field(3, size))  # tensor<fp32, [12]>
    value = field(2, vector) + field(3, field(1, field(1, field(1, bytes(48)))))
    weight = operation(b"const", b"w", [vector], attributes=field(5, field(1, b"val") + field(2, value)))
    reads = field(2, field(1, b"x") + field(2, field(1, field(1, b"w"))))
    relu = operation(b"relu", b"y", [b"", vector, vector], inputs=reads)
    block = weight + relu + field(2, b"y")
    function = field(2, b"CoreML7") + field(3, field(1, b"CoreML7") + field(2, block))
    program = field(1, 1) + field(2, field(1, b"main") + field(2, function))
    model = milblob.open(field(1, 8) + field(502, program))
    assert list(model) == ["w"]
    assert model["w"].read().tolist() == [0.0] * 12
    with pytest.raises(milblob.UnsupportedError, match="Program: expected every message in one piece, got pieces"):
        _ = model["w"].consumers
