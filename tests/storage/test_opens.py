"""What is checked is what is opened: every call outside of `storage` that opens a file is listed here, with why it may."""

import ast

from paths import ROOT
from syntax import parsed, unparse

PACKAGE = ROOT / "src" / "milblob"
OPENERS = {
    "open", "os.open", "io.open", "io.FileIO", "os.fdopen", "mmap.mmap", "np.memmap", "np.load", "np.fromfile", "zipfile.ZipFile",
    "tarfile.open", "gzip.open", "onnx.load", "ir.load", "Image.open", "safetensors.safe_open", "MappedFile", "map_settled", "paths.is_link",
    "os.path.islink", "os.path.samefile",
}  # fmt: skip
METHODS = {"read_bytes", "read_text", "write_bytes", "write_text", "tofile", "InferenceSession"}

# A path of the user's, opened once: nothing was said of it before.
NAMED = {
    ("blobs/reader.py", "BlobReader.__init__", "map_settled"), ("blobs/writer.py", "BlobWriter._open_existing", "os.open"),
    ("cli/inputs.py", "_read_image", "Image.open"), ("cli/names.py", "mapping", "open"), ("cli/commands/compress_config.py", "_read", "open"),
    ("compat/modelpackage.py", "ModelPackage._read", "Path(path).read_bytes"), ("compat/modelpackage.py", "ModelPackage._has_written", "Path(self._path, 'Manifest.json').read_bytes"), ("compat/storage.py", "_BlobStorageWriter.__init__", "os.open"),
    ("compressing/compress_plan.py", "CompressPlan.load", "open"), ("reporting/compression.py", "_frontier", "open"),
    ("formats/gguf.py", "open_arrays", "MappedFile"),
    ("formats/npz.py", "open_arrays", "MappedFile"), ("formats/onnx.py", "open_arrays", "MappedFile"),
    ("formats/params.py", "open_params", "map_settled"), ("formats/safetensors.py", "open_arrays", "MappedFile"),
    ("running/stage.py", "stage_of_file", "MappedFile"), ("onnx/weights.py", "names_beside", "MappedFile"), ("tvm/archive.py", "Archive._open_tar", "MappedFile"),
    ("tvm/check.py", "check_params", "map_settled"),
    ("aimodel/asset.py", "Asset.__init__", "map_settled"), ("cli/several.py", "_list_of", "open"),
    ("updating/patch.py", "PatchReader.__init__", "MappedFile"),
}  # fmt: skip
# A Location: opening it is the check that it stays inside.
BENEATH = {
    ("analysis/check.py", "_Checker._is_pointer", "MappedFile"), ("analysis/check.py", "_Checker._check_weights", "map_settled"),
    ("formats/npy.py", "open_array", "MappedFile"), ("formats/onnx_external.py", "ExternalFiles._open", "MappedFile"),
    ("onnx/containers.py", "described", "MappedFile"), ("model/manifest.py", "read_json", "MappedFile"),
    ("model/package.py", "Package._map", "map_settled"), ("rewrite/copying.py", "copy_entry", "MappedFile"),
    ("tvm/archive.py", "Archive.place", "map_settled"), ("tvm/edit.py", "_copy_file", "MappedFile"),
    ("aimodel/asset.py", "Asset.companion", "map_settled"), ("updating/files.py", "ModelFiles.__init__", "MappedFile"),
}  # fmt: skip
# The handle that was checked, or milblob's own.
HELD = {
    ("formats/npz.py", "save", "open"),
    ("formats/npz.py", "save", "zipfile.ZipFile"), ("formats/npz.py", "_directory", "open"), ("formats/npz.py", "_directory", "zipfile.ZipFile"),
    ("formats/safetensors.py", "open_arrays", "safetensors.safe_open"), ("formats/weights.py", "_put_stamp", "open"),
    ("formats/weights.py", "_put_stamp", "MappedFile"), ("onnx/reference.py", "WeightReference.tofile", "self.held().tofile"),
    ("running/runtime.py", "Handover.start", "import_runtime().InferenceSession"), ("tvm/unzip.py", "decompress", "MappedFile"),
    ("updating/apply.py", "_Applying._write", "io.FileIO"), ("updating/apply.py", "_Applying._write", "MappedFile"),
    ("updating/delta.py", "_Work.write", "open"), ("updating/delta.py", "_Work.write", "MappedFile"),
}  # fmt: skip
# Opened again, and then compared with what was opened first, by its descriptor or by what is in it.
COMPARED = {
    ("formats/npy.py", "open_array.load", "MappedFile"), ("model/editable.py", "EditableModel.writable", "os.open"),
}  # fmt: skip
# A file that milblob makes, a directory that it locks, or the system's; the first bytes, which choose who opens the file; the bytes
# that are hashed.
OTHERS = {
    ("batching/files.py", "_spans", "open"), ("batching/find.py", "_is_library", "tarfile.open"), ("batching/find.py", "_is_model_file", "open"),
    ("batching/find.py", "_is_zipped_model", "zipfile.ZipFile"), ("batching/journal.py", "BatchJournal.__init__", "os.open"),
    ("batching/journal.py", "BatchJournal._read", "open"),
    ("cli/terminal/streams.py", "_null", "os.open"), ("cli/terminal/streams.py", "prepared", "os.fdopen"), ("cli/commands/run.py", "save", "zipfile.ZipFile"), ("cli/commands/run.py", "save", "open"),
    ("compat/modelpackage.py", "ModelPackage._write", "Path(unfinished).write_text"), ("formats/npy_dir.py", "save", "open"),
    ("model/editable.py", "EditableModel._lock", "os.open"), ("reporting/page.py", "library", "open"), ("reporting/page.py", "_part", "open"),
    ("model/identify.py", "identify", "MappedFile"), ("remote/mirror.py", "Mirror._add", "os.open"),
    ("rewrite/copying.py", "new_file", "os.open"), ("rewrite/copying.py", "existing_file", "os.open"),
    ("threads.py", "_text", "os.open"),
    ("rewrite/download.py", "_Work.__init__", "open"), ("rewrite/download.py", "_Work._fetch", "os.open"), ("rewrite/download.py", "_Work._note", "os.open"),
    ("rewrite/download.py", "_locked", "os.open"), ("remote/zips.py", "_members", "zipfile.ZipFile"), ("remote/mirror.py", "open_mirror", "MappedFile"),
    ("remote/cache_directory.py", "CacheDirectory._key", "os.open"), ("remote/cache_directory.py", "CacheDirectory.trim", "os.open"),
    ("remote/cache_directory.py", "_opened", "os.open"),
}  # fmt: skip
# Is it a link, or the same file? Nothing is opened because of the answer: links are copied as links, or refused in what is written.
LOOKED = {
    ("compat/modelpackage.py", "ModelPackage.replaceRootModel", "os.path.samefile"),
    ("onnx/weights.py", "location_of", "paths.is_link"),
    ("rewrite/copying.py", "copy_entry", "paths.is_link"), ("rewrite/repack.py", "Repacking._write_directory", "paths.is_link"),
}  # fmt: skip


def _last_name(function):
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)


def opens_in(tree):
    """Yield (function, what is called) of all calls that open a file."""

    last_names = METHODS | {name.rpartition(".")[2] for name in OPENERS}  # few calls have to be spelled out

    def walk(node, where):
        for child in ast.iter_child_nodes(node):
            is_scope = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            if isinstance(child, ast.Call) and _last_name(child.func) in last_names:
                called = unparse(child.func)
                is_method = isinstance(child.func, ast.Attribute) and child.func.attr in METHODS
                if called in OPENERS or is_method:
                    yield ".".join(where), called
            yield from walk(child, [*where, child.name] if is_scope else where)

    return walk(tree, [])


def test_every_call_that_opens_a_file_is_known():
    found = {
        (path.relative_to(PACKAGE).as_posix(), *call)
        for path in PACKAGE.rglob("*.py")
        if path.parent.name != "storage"
        for call in opens_in(parsed(path))
    }
    known = NAMED | BENEATH | HELD | COMPARED | OTHERS | LOOKED
    assert sorted(found - known) == [], "open it by a Location or by the handle that was checked, and list it here"
    assert sorted(known - found) == [], "no longer there"
    seen = opens_in(
        ast.parse("class A:\n def f(self):\n  x = [p.read_bytes() for p in y]\n  self.mmap.mmap(mmap.mmap(1, 2))")
    )
    assert list(seen) == [("A.f", "p.read_bytes"), ("A.f", "mmap.mmap")]
