"""GGUF files that the tests make, and what their blocks say, written out from ggml's definition of them."""

import struct

import gguf
import numpy as np

QUANTIZED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")


def write(path, arrays, alignment=None):
    """Write arrays with the library: name -> array, or (array, type to quantize it to)."""
    writer = gguf.GGUFWriter(str(path), "test")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    writer.add_string("general.name", "näme")
    writer.add_array("tokenizer.ggml.tokens", ["a", "", "bcd"])
    writer.add_array("scores", [1.5, -2.0])
    writer.add_bool("flag", True)
    writer.add_uint64("many", 1 << 60)
    for name, array in arrays.items():
        if isinstance(array, tuple):
            kind = gguf.GGMLQuantizationType[array[1]]
            data = gguf.quants.quantize(array[0], kind)
            writer.add_tensor(name, data, raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def block_values(kind, block):
    """The 32 numbers of one block, one by one, in float32 as ggml computes them."""
    d = np.float32(np.frombuffer(block[:2], np.float16)[0])
    if kind == "Q8_0":
        return [d * np.float32(q) for q in struct.unpack("32b", block[2:])]
    has_least = kind.endswith("_1")
    m = np.float32(np.frombuffer(block[2:4], np.float16)[0]) if has_least else np.float32(0)
    rest = block[4 if has_least else 2 :]
    high, nibbles = (int.from_bytes(rest[:4], "little"), rest[4:]) if kind.startswith("Q5") else (0, rest)
    values = []
    for i in range(32):
        q = nibbles[i % 16] >> (4 * (i // 16)) & 15
        if kind.startswith("Q5"):
            q |= (high >> i & 1) << 4
        q = q if has_least else q - (16 if kind.startswith("Q5") else 8)
        values.append(d * np.float32(q) + m if has_least else d * np.float32(q))
    return values
