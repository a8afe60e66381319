"""Prints a MIL Program as `model.mil` text, as Apple's compiler would, and lays out a compiled model around it.

Checked against a real pair of protobuf and text (see README.md). There is no Core ML compiler on Linux, so these
`.mlmodelc` directories have no coremldata.bin. What was never seen in real text is a guess, listed in README.md.
"""

import json
import os
import shutil
import struct

from coremltools import proto

import record

MIL = proto.MIL_pb2
SCALARS = {
    "FLOAT16": "fp16", "FLOAT32": "fp32", "FLOAT64": "fp64", "BFLOAT16": "bf16", "FLOAT8E4M3FN": "fp8e4m3fn",
    "FLOAT8E5M2": "fp8e5m2",
}  # fmt: skip
OPSETS = {"CoreML5": "ios15", "CoreML6": "ios16", "CoreML7": "ios17", "CoreML8": "ios18"}
INDENT = " " * 12


def print_float(value):
    """Shortest hexadecimal form: 0x1.8p+1, 0x0p+0, inf, nan."""
    text = float(value).hex()
    if "." in text:
        head, exponent = text.split("p")
        text = f"{head.rstrip('0').rstrip('.')}p{exponent}"
    return text


def decode_fp8(bits, mantissa):
    """The value of a finite fp8: 3 mantissa bits with bias 7, or 2 with bias 15."""
    sign, exponent, fraction = -1.0 if bits >> 7 else 1.0, (bits & 0x7F) >> mantissa, bits & (1 << mantissa) - 1
    significand = fraction / (1 << mantissa) + (1 if exponent else 0)
    return sign * significand * 2.0 ** (max(exponent, 1) - (7 if mantissa == 3 else 15))


def print_string(value):
    """A quoted string; backslash and quote are escaped (a guess)."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def scalar_name(data_type):
    """fp16, int32, bool, ..."""
    name = MIL.DataType.Name(data_type)
    return SCALARS.get(name, name.lower())


class Printer:
    """Prints one Program.

    Attributes:
        scalars: whether rank-0 tensors are spelled by their bare scalar name, as program(1.3) does.
    """

    def __init__(self, version):
        """Sets the dialect: "1.0" or "1.3"."""
        self.version, self.scalars = version, version == "1.3"

    def dimension(self, dim):
        """An integer or `?`."""
        return str(dim.constant.size) if dim.WhichOneof("dimension") == "constant" else "?"

    def type(self, value_type):
        """A type expression."""
        kind = value_type.WhichOneof("type")
        inner = getattr(value_type, kind)
        if kind == "tensorType":
            return self.tensor_type(scalar_name(inner.dataType), [self.dimension(d) for d in inner.dimensions])
        if kind == "listType":
            return f"list<{self.type(inner.type)}, {self.dimension(inner.length)}>"
        if kind == "tupleType":
            return f"tuple<{', '.join(self.type(t) for t in inner.types)}>"
        if kind == "dictionaryType":
            return f"dict<{self.type(inner.keyType)}, {self.type(inner.valueType)}>"
        return f"state<{self.type(inner.wrappedType)}>"

    def tensor_type(self, scalar, dims):
        """tensor<fp16, [1, 2]>; a scalar as the dialect spells it."""
        return scalar if self.scalars and not dims else f"tensor<{scalar}, [{', '.join(dims)}]>"

    def elements(self, value):
        """The printed elements of an immediate tensor, in order."""
        dtype = MIL.DataType.Name(value.type.tensorType.dataType)
        tensor = value.immediateValue.tensor
        shape = record.read_shape(value.type.tensorType)
        _, values = record.read_immediate(tensor, dtype, shape)
        if dtype == "STRING":
            return [print_string(text) for text in values]
        if dtype == "BOOL":
            return ["true" if v else "false" for v in values.flat]
        if dtype in ("FLOAT16", "FLOAT32", "FLOAT64"):
            return [print_float(v) for v in values.flat]
        if dtype == "BFLOAT16":
            return [print_float(struct.unpack("<f", struct.pack("<I", int(v) << 16))[0]) for v in values.flat]
        if dtype in ("FLOAT8E4M3FN", "FLOAT8E5M2"):
            return [print_float(decode_fp8(int(v), 3 if dtype == "FLOAT8E4M3FN" else 2)) for v in values.flat]
        if dtype == "INT4":
            return [str(int(v) - 16 if v > 7 else int(v)) for v in values.flat]
        return [str(int(v)) for v in values.flat]

    def nest(self, items, shape):
        """Brackets per dimension; a scalar has none."""
        if not shape:
            return items[0]
        if len(shape) == 1:
            return f"[{', '.join(items)}]"
        step = len(items) // shape[0] if shape[0] else 0
        return f"[{', '.join(self.nest(items[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0]))}]"

    def payload(self, value):
        """What stands between a type's parentheses."""
        if value.WhichOneof("value") == "blobFileValue":
            string, integer = self.tensor_type("string", []), self.tensor_type("uint64", [])
            blob = value.blobFileValue
            return f"BLOBFILE(path = {string}({print_string(blob.fileName)}), offset = {integer}({blob.offset}))"
        inner = value.immediateValue
        member = inner.WhichOneof("value")
        if member == "tensor":
            items = self.elements(value)
            shape = [len(items) if dim is None else dim for dim in record.read_shape(value.type.tensorType)]
            return self.nest(items, shape)
        if member == "list":
            return f"[{', '.join(self.payload(v) for v in inner.list.values)}]"
        if member == "tuple":
            return f"({', '.join(self.payload(v) for v in inner.tuple.values)})"
        pairs = [(self.payload(pair.key), self.payload(pair.value)) for pair in inner.dictionary.values]
        return "{" + ", ".join(f"{{{key}, {item}}}" for key, item in pairs) + "}"

    def value(self, value):
        """type(payload)."""
        return f"{self.type(value.type)}({self.payload(value)})"

    def attributes(self, attributes):
        """[a = .., b = ..] or nothing."""
        body = ", ".join(f"{key} = {self.value(attributes[key])}" for key in sorted(attributes))
        return f"[{body}]" if body else ""

    def argument(self, argument):
        """A name, a value, or a parenthesised list of names; a list where the Program has several."""
        items = [b.name if b.WhichOneof("binding") == "name" else self.value(b.value) for b in argument.arguments]
        return items[0] if len(items) == 1 else f"({', '.join(items)})"

    def statement(self, op):
        """One operation."""
        if op.blocks:
            raise NotImplementedError("no real text with nested blocks was ever seen")
        args = ", ".join(f"{key} = {self.argument(op.inputs[key])}" for key in sorted(op.inputs))
        call = f"{op.type}({args}){self.attributes(op.attributes)};"
        outputs = ", ".join(f"{self.type(out.type)} {out.name}" for out in op.outputs)
        return f"{INDENT}{outputs} = {call}\n" if outputs else f"{INDENT}{call}\n"

    def program(self, program):
        """The whole text; functions and function inputs in alphabetical order, as Apple prints them."""
        attributes = self.attributes(program.attributes)
        text = f"program({self.version})\n" + (f"{attributes}\n" if attributes else "") + "{\n"
        for name in sorted(program.functions):
            function = program.functions[name]
            inputs = ", ".join(f"{self.type(i.type)} {i.name}" for i in sorted(function.inputs, key=lambda i: i.name))
            attributes = self.attributes(function.attributes)
            opset = OPSETS[function.opset]
            text += f"    func {name}<{opset}>({inputs}) {attributes + ' ' if attributes else ''}{{\n"
            block = function.block_specializations[function.opset]
            text += "".join(self.statement(op) for op in block.operations)
            text += f"        }} -> ({', '.join(block.outputs)});\n"
        return text + "}"


def describe_feature(feature):
    """An entry of inputSchema or outputSchema."""
    array = feature.type.multiArrayType
    if feature.type.WhichOneof("Type") == "stateType":
        array = feature.type.stateType.arrayType
    kind = {65568: "Float32", 65552: "Float16", 65600: "Double", 131104: "Int32"}.get(array.dataType, "")
    shape = list(array.shape)
    return {
        "hasShapeFlexibility": "1" if array.WhichOneof("ShapeFlexibility") else "0",
        "isOptional": "0",
        "dataType": kind,
        "formattedType": f"MultiArray ({kind} {' × '.join(map(str, shape))})",
        "shortDescription": feature.shortDescription,
        "shape": str(shape),
        "name": feature.name,
        "type": "MultiArray" if kind else (feature.type.WhichOneof("Type") or "").removesuffix("Type").capitalize(),
    }


def describe_model(spec):
    """The object of metadata.json, as far as a Program tells it."""
    meta, kind = spec.description.metadata, spec.WhichOneof("Type")
    described = {
        "metadataOutputVersion": "3.0",
        "shortDescription": meta.shortDescription,
        "author": meta.author,
        "license": meta.license,
        "version": meta.versionString,
        "specificationVersion": spec.specificationVersion,
        "modelType": {"name": f"MLModelType_{kind}"},
        "inputSchema": [describe_feature(f) for f in spec.description.input],
        "outputSchema": [describe_feature(f) for f in spec.description.output],
        "stateSchema": [describe_feature(f) for f in spec.description.state],
        "userDefinedMetadata": dict(sorted(meta.userDefined.items())),
        "isUpdatable": "0",
        "method": "predict",
    }
    return {key: value for key, value in described.items() if value != ""}


def compile_model(spec, folder, version, weights):
    """Writes one compiled model; a pipeline becomes model0/, model1/, ... with a weights folder of its own each."""
    os.makedirs(folder)
    with open(os.path.join(folder, "metadata.json"), "w", encoding="utf-8") as file:
        json.dump([describe_model(spec)], file, indent=2, ensure_ascii=False, separators=(",", " : "))
    if spec.WhichOneof("Type") == "pipeline":
        for i, model in enumerate(spec.pipeline.models):
            compile_model(model, os.path.join(folder, f"model{i}"), version, weights)
        return
    with open(os.path.join(folder, "model.mil"), "w", encoding="utf-8") as file:
        file.write(Printer(version).program(spec.mlProgram))
    recorder = record.Recorder(os.path.dirname(weights))
    recorder.program(spec.mlProgram)
    for name in sorted({row["file"] for row in recorder.tensors if "file" in row}):
        inside = name.removeprefix("@model_path/weights/")
        os.makedirs(os.path.dirname(os.path.join(folder, "weights", inside)), exist_ok=True)
        shutil.copyfile(os.path.join(weights, inside), os.path.join(folder, "weights", inside))


def compile_package(package, folder, version):
    """Writes the compiled form of an .mlpackage."""
    weights = os.path.join(os.path.dirname(record.find_spec(package)), "weights")
    compile_model(record.read_spec(package), folder, version, weights)
