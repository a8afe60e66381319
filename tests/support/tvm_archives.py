"""Model Library Format archives of every version, made as TVM's exporters made them (docs/tvm.md has the facts).

Nothing here is emitted by TVM: code is a comment. Parameters are packed by hand, not by milblob.
"""

import gzip
import io
import json
import struct
import tarfile

import numpy as np

MTIME = 1637859012.5
DATE = "2021-11-25 16:50:12Z"
CODES = {"float32": (2, 32), "int8": (0, 8), "uint8": (1, 8), "int32": (0, 32), "float16": (2, 16), "bool": (1, 1)}
C = np.array([[2, 4]], np.float32)
"""The one parameter of the model in TVM's own test: cast(a: (1, 2) uint8) + b: (1, 2) float32 * c, with c simplified to p0."""


def params_of(arrays):
    """A .params file."""
    out = struct.pack("<QQQ", 0xF7E58D4F05049CB7, 0, len(arrays))
    out += b"".join(struct.pack("<Q", len(name.encode())) + name.encode() for name in arrays) + struct.pack(
        "<Q", len(arrays)
    )
    for array in arrays.values():
        out += struct.pack("<QQiiiBBH", 0xDD5E40F096B4A13F, 0, 1, 0, array.ndim, *CODES[str(array.dtype)], 1)
        out += struct.pack(f"<{array.ndim + 1}q", *array.shape, array.nbytes) + array.tobytes()
    return out


def graph_of(arguments, values):
    """A graph: arguments, then one call after another that reads all arguments or the one before.

    arguments: (name, dtype, shape); values: (name, dtype, shape, storage id) of the calls.
    """
    nodes = [{"op": "null", "name": name, "inputs": []} for name, _, _ in arguments]
    for number, (name, *_) in enumerate(values):
        inputs = [[index, 0, 0] for index in range(len(arguments))] if number == 0 else [[len(nodes) - 1, 0, 0]]
        attrs = {"num_outputs": "1", "num_inputs": str(len(inputs)), "flatten_data": "0", "func_name": name}
        nodes.append({"op": "tvm_op", "name": name, "attrs": attrs, "inputs": inputs})
    rows = [(dtype, shape, sid) for sid, (_, dtype, shape) in enumerate(arguments)]
    rows += [(dtype, shape, sid) for _, dtype, shape, sid in values]
    return {
        "nodes": nodes,
        "arg_nodes": list(range(len(arguments))),
        "heads": [[len(nodes) - 1, 0, 0]],
        "attrs": {
            "dltype": ["list_str", [dtype for dtype, _, _ in rows]],
            "device_index": ["list_int", [1] * len(rows)],
            "storage_id": ["list_int", [sid for _, _, sid in rows]],
            "shape": ["list_shape", [list(shape) for _, shape, _ in rows]],
        },
        "node_row_ptr": list(range(len(nodes) + 1)),
    }


def nbytes_of(dtype, shape):
    return int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize


def sids_of(graph):
    """What the exporters report: sizes looked up by storage id, where it should have been by node."""
    attrs, found = graph["attrs"], {}
    for node, sid in enumerate(attrs["storage_id"][1]):
        row = found.setdefault(
            sid, {"storage_id": sid, "size_bytes": nbytes_of(attrs["dltype"][1][sid], attrs["shape"][1][sid])}
        )
        if graph["nodes"][node]["op"] == "null":
            row["input_binding"] = graph["nodes"][node]["name"]
    return list(found.values())


def simple_graph(name):
    """The graph of TVM's own test."""
    arguments = [("a", "uint8", (1, 2)), ("b", "float32", (1, 2)), ("p0", "float32", (1, 2))]
    return graph_of(arguments, [(f"tvmgen_{name}_fused_cast_multiply_add", "float32", (1, 2), 3)])


def module_of(name, version, executor, is_old=False):
    """One module's part of metadata.json. is_old: by a TVM before 0.11, without inputs and outputs."""
    target = "c -keys=cpu -model=host"
    main = {
        "constants_size_bytes": 8 if executor == "graph" else 0,
        "device": 1,
        "io_size_bytes": 18,
        "workspace_size_bytes": 0,
    }
    if version == 7 and not is_old:
        main["inputs"] = {"a": {"dtype": "uint8", "size": 2}, "b": {"dtype": "float32", "size": 8}}
        main["outputs"] = {"output": {"dtype": "float32", "size": 8}}
    sids = sids_of(simple_graph(name))
    functions = {"main": [main], "operator_functions": [{"function_name": f"tvmgen_{name}_fused_cast_multiply_add", "workspace": [{"device": 1, "workspace_size_bytes": 0}]}]}  # fmt: skip
    memory = sids if version == 1 else {"sids": sids, "functions": functions}
    if executor == "aot":
        memory = [] if version == 1 else {"functions": functions}
    module = {
        "export_datetime": DATE,
        "memory": memory,
        "model_name": name,
        "target": [target] if version >= 6 else {"1": target},
    }
    module["executors" if version >= 5 else "runtimes"] = [executor]
    if version >= 4:
        module["style"] = "full-model"
    if executor == "aot" and version >= 5:
        module["external_dependencies"] = [{"short_name": "tvm_standalone_crt", "url": "./runtime", "url_type": "mlf_path", "version_spec": "0.14.0"}]  # fmt: skip
    return module


def files_of(version=7, executor="graph", modules=("default",), is_old=False):
    """Name -> bytes of a full-model archive."""
    files = {}
    found = {name: module_of(name, version, executor, is_old) for name in modules}
    document = {"version": 7, "modules": found} if version == 7 else {"version": version, **found[modules[0]]}
    files["metadata.json"] = json.dumps(document, indent=2, sort_keys=True).encode()
    for name in modules:
        prefix = f"{name}_" if version >= 3 else ""
        files[f"codegen/host/src/{prefix}lib0.c"] = b"/* code */\n"
        files[f"codegen/host/lib/{prefix}lib1.o"] = b"\x7fELF"
        if version >= 5:
            files[f"codegen/host/include/tvmgen_{name}.h"] = b"/* header */\n"
        files[f"parameters/{name}.params"] = params_of({"p0": C} if executor == "graph" else {})
        files["relay.txt" if version < 4 else f"src/{name}.relay" if version == 7 else "src/relay.txt"] = (
            b"def @main() {}\n"
        )
        if executor == "graph":
            config = "executor-config" if version >= 5 else "runtime-config"
            base = f"{name}.graph" if version == 7 else "graph.json"
            files[f"{config}/graph/{base}"] = json.dumps(simple_graph(name)).encode()
    if executor == "aot" and version >= 5:
        files["runtime/include/tvm/runtime/crt/crt.h"] = b"/* runtime */\n"
        files["templates/crt_config.h.template"] = b"/* template */\n"
    return files


def operator_files(version=7):
    """Name -> bytes of an operator-style archive: add of two int8, TVM's own test."""
    memory = {"add": [
        {"size_bytes": 2, "shape": [2], "dtype": "int8", "input_binding": "A"},
        {"size_bytes": 1, "shape": [1], "dtype": "int8", "input_binding": "B"},
        {"size_bytes": 2, "shape": [2], "dtype": "int8", "input_binding": "C"},
    ]}  # fmt: skip
    document = {"version": version, "model_name": "add", "export_datetime": DATE, "memory": memory, "target": ["c"] if version >= 6 else {"1": "c"}, "style": "operator"}  # fmt: skip
    document["executors" if version >= 5 else "runtimes"] = []
    return {"metadata.json": json.dumps(document).encode(), "codegen/host/src/lib0.c": b"/* code */\n", "codegen/host/lib/lib1.o": b"\x7fELF", "src/tir-1.txt": b"@main\n"}  # fmt: skip


def tar_of(files, *, prefix="./", edit=lambda info: info, extra=()):
    """A tar as the exporter made it: PAX, directories as members, root's, sorted; `extra`: (TarInfo, bytes) after them."""
    stream = io.BytesIO()
    folders = {""} | {"/".join(name.split("/")[:n]) for name in files for n in range(1, name.count("/") + 1)}
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted([*files, *folders]):
            info = tarfile.TarInfo(f"{prefix}{name}" if name else ".")
            info.mtime, info.uid, info.gid, info.uname, info.gname, info.mode = MTIME, 0, 0, "root", "root", 0o644
            data = files.get(name, b"")
            if name in folders:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
            info.size = len(data)
            tar.addfile(edit(info), io.BytesIO(data))
        for info, data in extra:
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def gzip_of(data, name="model.tar", level=9):
    """A gzipped file as tar and gzip make it: with a name and a time."""
    stream = io.BytesIO()
    with gzip.GzipFile(name, "wb", level, stream, MTIME) as file:
        file.write(data)
    return stream.getvalue()


def make(path, files, kind="tar"):
    """Write an archive; returns its path."""
    if kind == "directory":
        path.mkdir()
        for name, data in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
    else:
        data = tar_of(files)
        path.write_bytes(gzip_of(data) if kind == "tar.gz" else data)
    return path


def changed(files, change):
    """Files with a change of metadata.json."""
    document = json.loads(files["metadata.json"])
    change(document)
    return {**files, "metadata.json": json.dumps(document).encode()}


def graph_with(change):
    graph = simple_graph("default")
    change(graph)
    return json.dumps(graph).encode()


def one_file(code=2, bits=32, lanes=1, shape=(2,), data=bytes(8), name=b"p", **changes):
    """A .params file of one tensor by its numbers; what is wrong with it is given by name."""
    nbytes = changes.get("nbytes", len(data))
    count, again = changes.get("count", 1), changes.get("again", 1)
    head = struct.pack(
        "<QQQQ",
        changes.get("magic", 0xF7E58D4F05049CB7),
        changes.get("reserved", 0),
        count,
        changes.get("name_nbytes", len(name)),
    )
    head += name + struct.pack("<QQQ", again, changes.get("tensor_magic", 0xDD5E40F096B4A13F), 0)
    head += struct.pack("<iiiBBH", changes.get("device", 1), 0, changes.get("ndim", len(shape)), code, bits, lanes)
    return head + struct.pack(f"<{len(shape)}qq", *shape, nbytes) + data
