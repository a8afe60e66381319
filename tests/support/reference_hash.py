"""The slow, obvious content hash: BLAKE3 and docs/hash.md in plain loops. The test oracle; imports nothing of milblob."""

import struct

START = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
CHUNK_START, CHUNK_END, PARENT, ROOT = 1, 2, 4, 8


def turn(word, nbits):
    return (word >> nbits | word << 32 - nbits) & 0xFFFFFFFF


def compress(cv, block, counter, flags):
    """Mixes up to 64 bytes into eight words."""
    words = list(struct.unpack("<16I", block.ljust(64, b"\0")))
    v = [*cv, *START[:4], counter & 0xFFFFFFFF, counter >> 32, len(block), flags]
    columns = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
    diagonals = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    for _ in range(7):
        for i, (a, b, c, d) in enumerate(columns + diagonals):
            for word, first, second in ((words[2 * i], 16, 12), (words[2 * i + 1], 8, 7)):
                v[a] = (v[a] + v[b] + word) & 0xFFFFFFFF
                v[d] = turn(v[d] ^ v[a], first)
                v[c] = (v[c] + v[d]) & 0xFFFFFFFF
                v[b] = turn(v[b] ^ v[c], second)
        words = [words[i] for i in ORDER]
    return [v[i] ^ v[i + 8] for i in range(8)]


def node(data, chunk, root):
    """The chaining value of a subtree whose first chunk has this number."""
    if len(data) <= 1024:
        blocks = [data[i : i + 64] for i in range(0, len(data), 64)] or [b""]
        cv = START
        for i, block in enumerate(blocks):
            flags = CHUNK_START * (i == 0) | (CHUNK_END | root) * (i == len(blocks) - 1)
            cv = compress(cv, block, chunk, flags)
        return cv
    left = 1024  # as large a power of two of chunks as leaves something for the right
    while left * 2 < len(data):
        left *= 2
    children = node(data[:left], chunk, 0) + node(data[left:], chunk + left // 1024, 0)
    return compress(START, struct.pack("<16I", *children), 0, PARENT | root)


def blake3(data):
    """Returns 64 hexadecimal digits."""
    return struct.pack("<8I", *node(bytes(data), 0, ROOT)).hex()


def netstring(data):
    data = data.encode() if isinstance(data, str) else data
    return str(len(data)).encode() + b":" + data


def tensor_hash(dtype, shape, data):
    """Of a dense tensor: dtype as "float16", packed little-endian elements with padding bits of 0."""
    return blake3(f"milblob tensor 1\n{dtype} {list(shape)}\n{blake3(data)}\n".encode())


def strings_hash(shape, texts):
    return tensor_hash("string", shape, b"".join(map(netstring, texts)))


def compressed_hash(dtype, shape, scheme, parts):
    """Of a compressed weight: parts are parameter -> hash."""
    lines = b"".join(parts[key].encode() + b" " + netstring(key) + b"\n" for key in sorted(parts, key=str.encode))
    return blake3(f"milblob compressed 1\n{dtype} {list(shape)}\n{scheme}\n".encode() + lines)


def model_hash(tensors, uses=()):
    """Of tensors by name (name -> hash), and uses: (scope, operation type, operation name, parameter, name) each."""
    lines = [b"tensor " + digest.encode() + b" " + netstring(name) + b"\n" for name, digest in tensors.items()]
    lines += [b"use " + b" ".join(map(netstring, use)) + b"\n" for use in uses]
    return blake3(b"milblob model 1\n" + b"".join(sorted(lines)))
