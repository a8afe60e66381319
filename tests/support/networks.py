"""Programs written down as a list of operations, for tests of which operation of one is which of another."""

import numpy as np

from milblob.program import schema

DTYPES = {"float16": 10, "float32": 11, "int32": 23, "uint16": 32, "bool": 1}


def _set_type(value_type, dtype, shape):
    tensor = value_type.tensorType
    tensor.dataType, tensor.rank = DTYPES[str(dtype)], len(shape)
    for size in shape:
        tensor.dimensions.add().constant.size = size


def _set_value(value, array):
    if isinstance(array, str):
        value.type.tensorType.dataType = 2
        value.immediateValue.tensor.strings.values.append(array)
        return
    _set_type(value.type, array.dtype, array.shape)
    tensor, flat = value.immediateValue.tensor, array.reshape(-1)
    if array.dtype == np.float32:
        tensor.floats.values.extend(flat.tolist())
    elif array.dtype == np.int32:
        tensor.ints.values.extend(flat.tolist())
    elif array.dtype == np.bool_:
        tensor.bools.values.extend(flat.tolist())
    else:
        tensor.bytes.values = flat.tobytes()


class Network:
    """A Program with one function, one operation after another.

    Args:
        inputs: name -> shape, of float32.
        dtype: of what operations give, unless they say otherwise.
    """

    def __init__(self, inputs=(("x", (1, 8)),), dtype="float32"):
        self.model = schema.message_class("Model")()
        self.model.specificationVersion = 8
        function = self.model.mlProgram.functions["main"]
        function.opset = "CoreML7"
        self.model.mlProgram.version = 1
        for name, shape in dict(inputs).items():
            given = function.inputs.add(name=name)
            _set_type(given.type, "float32", shape)
        self.block = function.block_specializations["CoreML7"]
        self.dtype = dtype

    def const(self, name, array):
        """Add a constant; return its name."""
        op = self.block.operations.add(type="const")
        _set_value(op.attributes["val"], array)
        output = op.outputs.add(name=name)
        output.type.CopyFrom(op.attributes["val"].type)
        return name

    def op(self, kind, names, gives=None, shape=(1, 8), **inputs):
        """Add an operation; return the name of its output, or the names of several.

        Args:
            names: of its outputs.
            gives, shape: dtype and dimensions of each.
            inputs: names, arrays, strings that begin with "=" (values), or lists of names.
        """
        op = self.block.operations.add(type=kind)
        for name in [names] if isinstance(names, str) else names:
            _set_type(op.outputs.add(name=name).type, gives or self.dtype, shape)
        for key, given in inputs.items():
            for one in given if isinstance(given, list) else [given]:
                binding = op.inputs[key].arguments.add()
                if isinstance(one, str) and not one.startswith("="):
                    binding.name = one
                else:
                    _set_value(binding.value, one[1:] if isinstance(one, str) else one)
        return names

    def save(self, path, *outputs):
        """Write a .mlmodel that returns these names; return its path."""
        self.block.outputs.extend(outputs)
        path.write_bytes(self.model.SerializeToString())
        return path
