"""The first byte of one tensor out of 20,000 of 1 KiB, from the start of a Python process to its end.

What a script or a command-line tool pays that wants one value: the interpreter, the imports, the file's index, the value.
Every round is a new process, bytecode in place, files in the page cache. Memory is that of the whole process.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import makers
import measure
import pytest

from conftest import Made, needs, scaled

TENSORS = makers.Tensors(scaled(20_000, 20), (512,))
NUMBER = TENSORS.count * 2 // 3
NAME = TENSORS.name(NUMBER)
OFFSET = 64 + NUMBER * (64 + TENSORS[0].nbytes)
JOB = f"first byte of one tensor out of {TENSORS.count:,}, from process start"
ROUNDS = 15

CODE = """
import sys, json
path, name, number, offset = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
{body}
status = {{}}
try:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(("VmHWM", "RssAnon")):
                status[line.split(":")[0]] = int(line.split()[1]) * 1024
except OSError:
    pass
print(json.dumps([int(value), status]))
"""

ROWS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "Python and a read at a known offset": (
        "",
        "with open(path, 'rb') as file:\n    file.seek(offset + 64)\n    value = file.read(1)[0]",
        "bin",
        {"role": "limit", "note": "imports nothing; no index is read"},
    ),
    "milblob: open(package)[name].read()": (
        "",
        "import milblob\nvalue = milblob.open(path)[name].read().view('u1')[0]",
        "mlpackage",
        {"role": "milblob", "targets": {"safetensors: safe_open, get_tensor": 1.1}},
    ),
    "milblob: BlobReader(path).read(offset)": (
        "",
        "import milblob\nvalue = milblob.BlobReader(path).read(offset).view('u1')[0]",
        "bin",
        {"role": "milblob"},
    ),
    "NumPy: memmap at a known offset": (
        "",
        "import numpy as np\nvalue = np.memmap(path, np.uint8, 'r')[offset + 64]",
        "bin",
        {"role": "aside", "note": "no index is read"},
    ),
    "safetensors: safe_open, get_tensor": (
        "safetensors",
        "from safetensors import safe_open\n"
        "with safe_open(path, 'np') as file:\n    value = file.get_tensor(name).view('u1')[0]",
        "safetensors",
        {},
    ),
    "h5py: file[name][...]": (
        "h5py",
        "import h5py\nwith h5py.File(path) as file:\n    value = file[name][...].view('u1')[0]",
        "h5",
        {},
    ),
    "gguf: GGUFReader, search": (
        "gguf",
        "import gguf\n"
        "value = next(t for t in gguf.GGUFReader(path).tensors if t.name == name).data.view('u1').reshape(-1)[0]",
        "gguf",
        {"rounds": 3},
    ),
    "torch: load(mmap=True)[name]": (
        "torch",
        "import torch\nvalue = torch.load(path, mmap=True, weights_only=True)[name].numpy().view('u1')[0]",
        "pt",
        {"rounds": 3},
    ),
    "coremltools: load_spec, search, _BlobStorageReader": (
        "coremltools",
        "import coremltools as ct\n"
        "from coremltools.libmilstoragepython import _BlobStorageReader\n"
        "block = ct.utils.load_spec(path).mlProgram.functions['main'].block_specializations['CoreML6']\n"
        "op = next(op for op in block.operations if op.outputs[0].name == name)\n"
        "reader = _BlobStorageReader(path + '/Data/com.apple.CoreML/weights/weight.bin')\n"
        "value = reader.read_fp16_data(op.attributes['val'].blobFileValue.offset).view('u1')[0]",
        "mlpackage",
        {"rounds": 3},
    ),
}


@pytest.mark.parametrize("name", ROWS)
def bench_start(row: Any, made: Made, name: str) -> None:
    module, body, suffix, options = ROWS[name]
    if module:
        needs(module)
    path: Path = made(f"start.{suffix}", lambda path: makers.WRITERS[suffix](path, TENSORS))
    code = CODE.format(body=body)
    memory: dict[str, int] = {}

    def run() -> int:
        value, status = measure.run_python(code, str(path), NAME, str(NUMBER), str(OFFSET))
        if status:
            memory.update(peak_nbytes=status["VmHWM"], anonymous_nbytes=status["RssAnon"])
        return int(value)

    def check(value: int) -> None:
        assert value == TENSORS[NUMBER].view("u1")[0]

    facts: Callable[[], dict[str, Any]] = lambda: memory  # noqa: E731
    row(JOB, name, run, check=check, memory=False, facts=facts, **{"rounds": ROUNDS, **options})
