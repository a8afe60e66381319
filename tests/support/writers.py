"""Everything in milblob that writes files: what is there before, what is done, and what a reader finds afterwards.

The tables of tests/test_faults.py (every call fails once) and tests/test_power_loss.py (every state of the disk after a
crash). Actions run in the child of faults.py; they get one directory, in which everything is.
"""

import argparse
import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import milblob
import pair_writers as pairs
from blob_files import blob_file
from editable_packages import code, ints, make_package
from hostile_bytes import blob_value, const, immediate, model, program, write_package
from merging import package_of
from milblob import cli
from milblob.cli.parser import parse
from milblob.compat.modelpackage import ModelPackage
from milblob.compat.storage import _BlobStorageWriter
from milblob.formats.read import open_arrays
from paths import DATA
from repacking import simple_package, small_package, tree, values

OLD_ARRAYS = {"a": np.arange(40, dtype="<f4"), "b": np.arange(900, dtype=np.uint8) % 7}
NEW_ARRAYS = {"a": np.arange(40, dtype="<f4") + 0.5, "c": np.full(1500, 9, np.uint8)}


class Writer(NamedTuple):
    """One way to write.

    Attributes:
        make: fills an empty directory with what is there before.
        act: does the thing in that directory. Its second argument says what it does after an error of its own calls:
            "stop", "close" the object that it has, or the same "again". It returns only if it was told of success.
        outputs: names that it may change; everything else in the directory is somebody's.
        see: what a reader finds there, in a form that can be compared.
        is_durable: whether a power failure after success must not lose what was written.
        is_ordered: what `see` returns is a tuple of files of which none refers to another one. A killed process may
            leave the first of them new; after an error all are old, or all new.
    """

    make: Callable[[pathlib.Path], Any]
    act: Callable[[pathlib.Path, str], Any]
    outputs: tuple[str, ...]
    see: Callable[[pathlib.Path], Any]
    is_durable: bool = True
    is_ordered: bool = False


def act(name, folder, second="stop"):
    """Run a writer by its name; the action that the child is given. "new" if it was told of success."""
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        WRITERS[name].act(pathlib.Path(folder), second)
    return "new"


def act_without(what, name, folder):
    """The same with a function of milblob.storage.output doing nothing, in every module that has it. For the child only."""
    for module in [module for key, module in sys.modules.items() if key.startswith("milblob.")]:
        if hasattr(module, what):
            setattr(module, what, lambda *_: None)
    act(name, folder)


# ------------------------------------------------------------------------------------------------------- what is found


def all_at(*sees):
    """What several find, as a tuple."""
    return lambda folder: tuple(see(folder) for see in sees)


def model_at(*names):
    def see(folder):
        return tuple(repr(values(folder / name)) if os.path.lexists(folder / name) else None for name in names)

    return see


def tree_at(*names):
    """Models whose values stay the same, while their files do not."""

    def see(folder):
        return model_at(*names)(folder), tuple(repr(sorted(tree(folder / name).items())) for name in names)

    return see


def arrays_at(name):
    def see(folder):
        if not os.path.lexists(folder / name):
            return None
        with open_arrays(folder / name) as arrays:
            return repr({key: (str(a.mil_dtype), a.shape, a.read().tobytes()) for key, a in arrays.items()})

    return see


def pair_at(listing, weights):
    """Arrays by a listing. One without its weight file is as good as none, if reading says so."""
    see = arrays_at(listing)

    def see_pair(folder):
        if os.path.lexists(folder / listing) and not os.path.lexists(folder / weights):
            try:
                see(folder)
            except milblob.ResolveError as error:
                assert weights in str(error)
                return None
        return see(folder)

    return see_pair


def bytes_at(name):
    def see(folder):
        return (folder / name).read_bytes() if os.path.lexists(folder / name) else None

    return see


def report_at(name):
    """A whole report, without its data, which say what could not be read at that moment."""

    def parsed(found):
        return found[1] + b", ".join(key.encode() for key in json.loads(found[2]))

    def see(folder):
        data = bytes_at(name)(folder)
        return data and re.sub(rb'(<script type="application/json"[^>]*>)(.*?)</script>', parsed, data, flags=re.DOTALL)

    return see


# ------------------------------------------------------------------------------------------------------------- weights


def write_blobs(path, arrays, mode="w"):
    with milblob.BlobWriter(path, mode) as blobs:
        for array in arrays.values():
            blobs.write(array)
        blobs.write_many(list(arrays.values()))


def twice(function):
    """An action that, if it fails, is tried again where that is asked for."""

    def run(folder, second):
        try:
            function(folder)
        except Exception:
            if second != "again":
                raise
            function(folder)

    return run


def close_twice(mode):
    """A writer whose `close` fails is closed again, which does nothing, and success is not claimed."""

    def run(folder, second):
        blobs = milblob.BlobWriter(folder / "w.bin", mode)
        try:
            blobs.write(NEW_ARRAYS["a"])
            blobs.fill(blobs.reserve(1500, "uint8"), NEW_ARRAYS["c"])
        except Exception as error:
            blobs.__exit__(type(error), error, None)
            raise
        try:
            blobs.close()
        except Exception:
            if second == "close":
                blobs.close()
            elif second == "again":
                return run(folder, "stop")
            raise

    return run


def named(function):
    """As where files cannot be without a name: what is not complete has a temporary one."""

    def run(folder, second):
        kept, milblob.storage.output._TMPFILE = milblob.storage.output._TMPFILE, 0
        try:
            function(folder, second)
        finally:
            milblob.storage.output._TMPFILE = kept

    return run


def old_blobs(folder):
    write_blobs(folder / "w.bin", OLD_ARRAYS)


def old_blobs_with_a_tail(folder):
    """An append that was interrupted has left bytes after the last record."""
    old_blobs(folder)
    with (folder / "w.bin").open("ab") as file:
        file.write(b"\xff" * 3000)


def nothing(folder):
    pass


# -------------------------------------------------------------------------------------------------------------- models


def edit(name, number=1, weights=None):
    """Assign, `flush`, `close`."""

    def run(folder, second):
        model = milblob.open(folder / name, "r+")
        try:
            for key in weights or list(model):
                old = model[key]
                model[key] = np.full(old.shape, number * (1000 if key == "ints" else 1), old.dtype)
        except Exception:
            model.discard()
            model.close()
            raise
        try:
            model.flush()
        except Exception:
            if second == "stop":
                raise
            if second == "again":
                with contextlib.suppress(Exception):
                    model.flush()
            model.close()  # writes what was assigned and is not written; or says that it cannot
            return
        model.close()

    return run


def package(folder):
    make_package(folder)


def package_with_links(folder):
    """Its weight file has another name, elsewhere, which stands for something else."""
    package(folder)
    os.link(folder / "m.mlpackage/Data/com.apple.CoreML/weights/weight.bin", folder / "linked.bin")


def package_through_a_link(folder):
    package(folder)
    (folder / "m.mlpackage").rename(folder / "real.mlpackage")
    (folder / "m.mlpackage").symlink_to("real.mlpackage")


def model_file(folder):
    """Its one value needs more bytes later: the file is written again, which is one rename."""
    value = immediate(code("INT32"), [40], ints(np.zeros(40)))
    (folder / "m.mlmodel").write_bytes(model(program(const(value, "ints"))))


def compiled(folder):
    """The same model as the compiler leaves it: MIL text beside the weights."""
    package(folder)
    (folder / "m.mlmodelc").mkdir()
    with open(folder / "m.mlmodelc/model.mil", "wb") as file:
        milblob.to_text(folder / "m.mlpackage", file)
    (folder / "m.mlpackage/Data/com.apple.CoreML/weights").rename(folder / "m.mlmodelc/weights")
    shutil.rmtree(folder / "m.mlpackage")


def compiled_and_arrays(folder):
    compiled(folder)
    refit_arrays(folder)


def pending(folder):
    """A package with a journal of which nothing is applied, as a kill leaves it."""
    package(folder)

    def die(*_):
        raise KeyboardInterrupt

    kept, milblob.storage.journal._apply = milblob.storage.journal._apply, die
    try:
        edit("m.mlpackage")(folder, "stop")
    except KeyboardInterrupt:
        pass
    finally:
        milblob.storage.journal._apply = kept
    assert [name for name in os.listdir(folder / "m.mlpackage") if "milblob-journal" in name]


def complete(folder, second):
    milblob.recover(folder / "m.mlpackage")


def refit_arrays(folder, number=1):
    np.savez(folder / "w.npz", **{k: np.full(s, number * f, d) for k, s, f, d in what_is_in_package()})


def what_is_in_package():
    return ("floats", (3, 100), 1, "<f4"), ("bytes", (70,), 1, "u1"), ("ints", (40,), 1000, "<i4")


def package_and_arrays(folder):
    package(folder)
    refit_arrays(folder)


def shared_and_arrays(folder):
    """Two weights that are one record, and different new values for them."""
    data, (at,) = blob_file(("FLOAT32", np.zeros(30, "<f4")))
    value = blob_value(code("FLOAT32"), [30], "@model_path/weights/weight.bin", at)
    write_package(folder, model(program(const(value, "a"), const(value, "b"))), {"weight.bin": data})
    np.savez(folder / "w.npz", a=np.full(30, 1, "<f4"), b=np.full(30, 2, "<f4"))


def package_arrays_and_output(folder):
    package_and_arrays(folder)
    shutil.copytree(folder / "m.mlpackage", folder / "out.mlpackage")


def blobs_and_arrays(folder):
    old_blobs(folder)
    np.savez(folder / "w.npz", **{"#0": NEW_ARRAYS["a"]})


def blobs_arrays_and_output(folder):
    blobs_and_arrays(folder)
    shutil.copy(folder / "w.bin", folder / "out.bin")


def two_weight_files(folder):
    small_package(folder)


def two_models_and_output(folder):
    (folder / "made").mkdir()
    package = small_package(folder / "made")
    package.rename(folder / "m.mlpackage")
    (folder / "made").rmdir()
    shutil.copytree(folder / "m.mlpackage", folder / "out.mlpackage")


def models_to_merge(folder):
    package_of(folder / "a", [("FLOAT32", [1.0, 2.0]), ("UINT8", [7] * 100)])
    package_of(folder / "b", [("FLOAT32", [1.0, 2.0]), ("UINT8", [8] * 100)])
    milblob.merge_functions([folder / "a.mlpackage"], folder / "out.mlpackage")


def model_to_chunk(folder):
    """A network; the folder for its chunks does not exist."""
    shutil.copytree(DATA / "opset_ios18_fp32" / "model.mlpackage", folder / "m.mlpackage")


def old_and_patch(folder, more=""):
    """A package, a patch that changes one weight of it, and an old package at the destination.

    Args:
        more: of the manifest: then a new package replaces the old one in place.
    """
    old, new = simple_package(folder, [bytes(8000), bytes(20), bytes(12000)]), folder / "out.mlpackage"
    milblob.refit(old, {"w1": np.arange(5, dtype=np.float32)}, destination=new)
    (new / "Manifest.json").write_text((new / "Manifest.json").read_text() + more)
    milblob.delta(old, new, folder / "p.milpatch")
    shutil.rmtree(new)
    shutil.copytree(old, new)


def old_and_patch_of_all(folder):
    old_and_patch(folder, " ")


def models_and_old_patch(folder):
    """Two packages, and what a patch replaces."""
    old_and_patch(folder)
    milblob.apply(folder / "out.mlpackage", folder / "p.milpatch")
    (folder / "p.milpatch").write_bytes(b"old")


def old_weights_and_patch(folder):
    """A weight file, a patch that replaces most of it, and an old file at the destination."""
    for name, value in (("w.bin", 1), ("out.bin", 2)):
        records = ("FLOAT32", np.full(900, value, "<f4")), ("UINT8", np.full(100, 7, np.uint8))
        (folder / name).write_bytes(blob_file(*records)[0])
    milblob.delta(folder / "w.bin", folder / "out.bin", folder / "p.milpatch")
    shutil.copy(folder / "w.bin", folder / "out.bin")


def models_to_join(folder):
    shutil.copytree(DATA / "opset_ios18_fp32" / "model.mlpackage", folder / "m.mlpackage")
    first, last = milblob.chunk(folder / "m.mlpackage", folder / "parts", parts=2).chunks
    shutil.move(first.path, folder / "a.mlpackage")
    shutil.move(last.path, folder / "b.mlpackage")
    shutil.rmtree(folder / "parts")
    shutil.rmtree(folder / "m.mlpackage")
    shutil.copytree(DATA / "quant_int8" / "model.mlpackage", folder / "out.mlpackage")


# ----------------------------------------------------------------------------------------------------------- commands


def command(*argv, good=(0,)):
    """A subcommand; arguments with a slash in front are names in the directory. Parsed once: that takes longer than to run."""
    parsed = parse(argv)

    def run(folder):
        def inside(value):
            if isinstance(value, list):
                return [inside(item) for item in value]
            return f"{folder}{value}" if isinstance(value, str) and value.startswith("/") else value

        given = argparse.Namespace(**{name: inside(value) for name, value in vars(parsed).items()})
        status = given.run(given)
        if status not in good:
            raise RuntimeError(f"{argv[0]}: exit status {status}")

    act = twice(run)
    act.argv = argv
    return act


def listed(folder):
    """A weight file with a listing, and arrays to write instead."""
    milblob.write_weights(OLD_ARRAYS, folder / "out.bin", listing=folder / "out.json")
    np.savez(folder / "w.npz", **NEW_ARRAYS)


def arrays_only(folder):
    np.savez(folder / "w.npz", **NEW_ARRAYS)


def extracted(suffix):
    def make(folder):
        package(folder)
        assert cli.main(["convert", str(folder / "m.mlpackage"), "-o", str(folder / f"out{suffix}"), "-q"]) == 0
        shutil.rmtree(folder / "m.mlpackage")
        make_package(folder, 1)

    return make


def save_npz(folder):
    with milblob.open(folder / "m.mlpackage") as model:
        milblob.save(model, folder / "out.npz")


# -------------------------------------------------------------------------------------------------------------- compat


def their_append(folder):
    writer = _BlobStorageWriter(str(folder / "w.bin"), truncate_file=False)
    writer.write_float_data(NEW_ARRAYS["a"])


def their_package(folder):
    (folder / "item").mkdir()
    (folder / "item" / "a").write_bytes(b"a" * 100)
    ModelPackage(str(folder / "their.mlpackage"))


def their_item(folder):
    ModelPackage(str(folder / "their.mlpackage")).addItem(str(folder / "item"), "weights", "me", "words")


def their_model(folder):
    (folder / "old.mlmodel").write_bytes(b"old" * 100)
    (folder / "new.mlmodel").write_bytes(b"new" * 200)
    opened = ModelPackage(str(folder / "their.mlpackage"))
    opened.setRootModel(str(folder / "old.mlmodel"), "model.mlmodel", "me", "words")


def their_other_model(folder):
    opened = ModelPackage(str(folder / "their.mlpackage"))
    opened.replaceRootModel(str(folder / "new.mlmodel"), "model.mlmodel", "me", "words")


def their_root(folder):
    return pathlib.Path(ModelPackage(str(folder / "their.mlpackage")).getRootModel().path()).read_bytes()


def their_items(folder):
    if not os.path.lexists(folder / "their.mlpackage"):
        return None
    opened = ModelPackage(str(folder / "their.mlpackage"))
    item = opened.findItemByNameAuthor("weights", "me")
    return None if item is None else pathlib.Path(item.path(), "a").read_bytes()


WRITERS = {
    "new weight file": Writer(nothing, close_twice("w"), ("w.bin",), model_at("w.bin")),
    "replaced weight file": Writer(old_blobs, close_twice("w"), ("w.bin",), model_at("w.bin")),
    "replaced weight file, no O_TMPFILE": Writer(old_blobs, named(close_twice("w")), ("w.bin",), model_at("w.bin")),
    "append": Writer(old_blobs, close_twice("a"), ("w.bin",), model_at("w.bin")),
    "append after a tail": Writer(old_blobs_with_a_tail, close_twice("a"), ("w.bin",), model_at("w.bin")),
    "edit package": Writer(package, edit("m.mlpackage"), ("m.mlpackage",), model_at("m.mlpackage")),
    "edit package, no O_TMPFILE": Writer(
        package, named(edit("m.mlpackage")), ("m.mlpackage",), model_at("m.mlpackage")
    ),
    "edit blobs of package": Writer(
        package, edit("m.mlpackage", weights=["floats", "bytes"]), ("m.mlpackage",), model_at("m.mlpackage")
    ),
    "edit package with another link": Writer(
        package_with_links, edit("m.mlpackage"), ("m.mlpackage",), model_at("m.mlpackage")
    ),
    "edit package through a link": Writer(
        package_through_a_link, edit("m.mlpackage"), ("real.mlpackage",), model_at("m.mlpackage", "real.mlpackage")
    ),
    "edit weight file": Writer(old_blobs, edit("w.bin"), ("w.bin",), model_at("w.bin")),
    "edit model file": Writer(model_file, edit("m.mlmodel"), ("m.mlmodel",), model_at("m.mlmodel")),
    "edit compiled model": Writer(compiled, edit("m.mlmodelc"), ("m.mlmodelc",), model_at("m.mlmodelc")),
    "refit compiled model": Writer(
        compiled_and_arrays, command("refit", "/m.mlmodelc", "/w.npz"), ("m.mlmodelc",), model_at("m.mlmodelc")
    ),
    "repack compiled model": Writer(
        compiled, command("repack", "/m.mlmodelc", "-o", "/m.mlmodelc", "--inline", "2000"), ("m.mlmodelc",), tree_at("m.mlmodelc")
    ),
    "compress compiled model": Writer(
        pairs.compiled_models, command("compress", "/m.mlmodelc", "-o", "/out.mlmodelc", "--int8", "--min-size", "0", "--force"),
        ("out.mlmodelc",), tree_at("out.mlmodelc"),
    ),
    "complete an edit": Writer(pending, twice(lambda f: complete(f, "")), ("m.mlpackage",), model_at("m.mlpackage")),
    "refit": Writer(
        package_and_arrays, command("refit", "/m.mlpackage", "/w.npz"), ("m.mlpackage",), model_at("m.mlpackage")
    ),
    "refit --unshare": Writer(
        shared_and_arrays, command("refit", "/m.mlpackage", "/w.npz", "--unshare"), ("m.mlpackage",),
        model_at("m.mlpackage"),
    ),
    "refit to package": Writer(
        package_arrays_and_output, command("refit", "/m.mlpackage", "/w.npz", "-o", "/out.mlpackage", "--force"),
        ("out.mlpackage",), model_at("m.mlpackage", "out.mlpackage"),
    ),
    "refit to file": Writer(
        blobs_arrays_and_output, command("refit", "/w.bin", "/w.npz", "-o", "/out.bin", "--force"),
        ("out.bin",), model_at("w.bin", "out.bin"),
    ),
    "repack package": Writer(
        two_weight_files, command("repack", "/m.mlpackage", "-o", "/m.mlpackage", "--align", "4096", "--dedupe"),
        ("m.mlpackage",), tree_at("m.mlpackage"),
    ),
    "repack to package": Writer(
        two_models_and_output, command("repack", "/m.mlpackage", "-o", "/out.mlpackage", "--align", "4096", "--force"),
        ("out.mlpackage",), tree_at("m.mlpackage", "out.mlpackage"),
    ),
    "repack to new package": Writer(
        two_weight_files, command("repack", "/m.mlpackage", "-o", "/out.mlpackage", "--align", "4096"),
        ("out.mlpackage",), tree_at("m.mlpackage", "out.mlpackage"),
    ),
    "repack weight file": Writer(
        old_blobs, command("repack", "/w.bin", "-o", "/w.bin", "--align", "4096"), ("w.bin",), bytes_at("w.bin")
    ),
    "repack model file": Writer(
        model_file, command("repack", "/m.mlmodel", "-o", "/out.mlmodel"), ("out.mlmodel",), model_at("m.mlmodel", "out.mlmodel"),
    ),
    "chunk": Writer(
        model_to_chunk, command("chunk", "/m.mlpackage", "-o", "/parts", "--parts", "2", "--force"),
        ("parts",), model_at("parts/m_chunk1.mlpackage", "parts/m_chunk2.mlpackage"),
    ),
    "delta": Writer(
        models_and_old_patch, command("delta", "/m.mlpackage", "/out.mlpackage", "-o", "/p.milpatch", "--force"),
        ("p.milpatch",), bytes_at("p.milpatch"),
    ),
    "apply": Writer(
        old_and_patch, command("apply", "/m.mlpackage", "/p.milpatch", "-o", "/out.mlpackage", "--force"),
        ("out.mlpackage",), tree_at("m.mlpackage", "out.mlpackage"),
    ),
    "apply in place": Writer(
        old_and_patch, command("apply", "/m.mlpackage", "/p.milpatch"), ("m.mlpackage",), model_at("m.mlpackage")
    ),
    "apply in place of a package": Writer(
        old_and_patch_of_all, command("apply", "/m.mlpackage", "/p.milpatch"), ("m.mlpackage",), tree_at("m.mlpackage")
    ),
    "apply to a weight file": Writer(
        old_weights_and_patch, command("apply", "/w.bin", "/p.milpatch"), ("w.bin",), bytes_at("w.bin")
    ),
    "apply to a new weight file": Writer(
        old_weights_and_patch, command("apply", "/w.bin", "/p.milpatch", "-o", "/out.bin", "--force"),
        ("out.bin",), bytes_at("out.bin"),
    ),
    "join": Writer(
        models_to_join, command("join", "/a.mlpackage", "/b.mlpackage", "-o", "/out.mlpackage", "--force"),
        ("out.mlpackage",), model_at("out.mlpackage"),
    ),
    "merge functions": Writer(
        models_to_merge, command("merge-functions", "/a.mlpackage", "/b.mlpackage", "-o", "/out.mlpackage", "--force"),
        ("out.mlpackage",), model_at("out.mlpackage"),
    ),
    "extract npz": Writer(
        extracted(".npz"), command("convert", "/m.mlpackage", "-o", "/out.npz", "--force"), ("out.npz",), arrays_at("out.npz")
    ),
    "extract safetensors": Writer(
        extracted(".safetensors"), command("convert", "/m.mlpackage", "-o", "/out.safetensors", "--force"),
        ("out.safetensors",), arrays_at("out.safetensors"),
    ),
    "extract npy": Writer(
        extracted("/"), command("convert", "/m.mlpackage", "-o", "/out/", "--force"), ("out",), arrays_at("out")
    ),
    "save to new npz": Writer(package, twice(save_npz), ("out.npz",), arrays_at("out.npz")),
    "convert to weights": Writer(
        listed, command("convert", "/w.npz", "-o", "/out.bin", "--listing", "/out.json", "--force"), ("out.bin", "out.json"), arrays_at("out.json")
    ),
    "pack": Writer(
        listed, command("convert", "/w.npz", "-o", "/out.bin", "--force"), ("out.bin", "out.json"), arrays_at("out.json")
    ),
    # --force, which there is nothing for, so that a killed one can be done again: it may have left the listing alone.
    "pack new": Writer(
        arrays_only, command("convert", "/w.npz", "-o", "/out.bin", "--force"), ("out.bin", "out.json"), pair_at("out.json", "out.bin")
    ),
    "match": Writer(
        package_and_arrays, command("match", "/m.mlpackage", "/w.npz", "-o", "/map.json", good=(0, 1)), ("map.json",), bytes_at("map.json"),
    ),
    "pack, MIL text": Writer(
        lambda f: (arrays_only(f), milblob.write_weights(OLD_ARRAYS, f / "out.bin", listing=f / "l.mil")),
        command("convert", "/w.npz", "-o", "/out.bin", "--listing", "/l.mil", "--force"), ("out.bin", "l.mil"), arrays_at("l.mil"),
    ),
    "write_weights": Writer(
        old_blobs, twice(lambda f: milblob.write_weights(NEW_ARRAYS, f / "w.bin", force=True)), ("w.bin",), model_at("w.bin"),
    ),
    "convert to .params": Writer(
        pairs.params_file, command("convert", "/w.npz", "-o", "/out.params", "--force"), ("out.params",), arrays_at("out.params")
    ),
    "parameters of a tar": Writer(
        pairs.archive("tar"), command("tvm", "params", "/lib.tar", "--with", "/w.npz"), ("lib.tar",),
        pairs.parameters_at("lib.tar"),
    ),
    "parameters of a tar.gz, copied": Writer(
        pairs.archive("tar.gz", True), command("tvm", "params", "/lib.tar.gz", "--with", "/w.npz", "-o", "/out.tar.gz", "--force"),
        ("out.tar.gz",), pairs.parameters_at("out.tar.gz"),
    ),
    "parameters of a directory": Writer(
        pairs.archive("directory"), command("tvm", "params", "/lib", "--with", "/w.npz"), ("lib",), pairs.parameters_at("lib")
    ),
    "parameters of a directory, copied": Writer(
        pairs.archive("directory", True), command("tvm", "params", "/lib", "--with", "/w.npz", "-o", "/out", "--force"),
        ("out",), pairs.parameters_at("out"),
    ),
    "refit of a bundle": Writer(
        pairs.asset(), twice(lambda f: milblob.refit(f / "m.aimodel", f / "w.npz")), ("m.aimodel",), pairs.asset_at("m.aimodel"),
    ),
    "refit of a bundle, apart": Writer(
        pairs.asset("functions_f32"), twice(lambda f: milblob.refit(f / "m.aimodel", f / "w.npz", unshare=True)), ("m.aimodel",),
        pairs.asset_at("m.aimodel"),
    ),
    "refit of a bundle, copied": Writer(
        pairs.asset(copy=True), command("refit", "/m.aimodel", "/w.npz", "-o", "/out.aimodel", "--force"), ("out.aimodel",),
        pairs.asset_at("out.aimodel"),
    ),
    "refit of bytecode": Writer(
        pairs.asset(is_bare=True), twice(lambda f: milblob.refit(f / "m.mlirb", f / "w.npz")), ("m.mlirb",), pairs.asset_at("m.mlirb"),
    ),
    "repack of a bundle": Writer(
        pairs.asset(copy=True), command("repack", "/m.aimodel", "-o", "/out.aimodel", "--dedupe", "--gc", "--force"), ("out.aimodel",),
        pairs.asset_at("out.aimodel"),
    ),
    "plan": Writer(nothing, twice(pairs.save_plan), ("plan.json",), bytes_at("plan.json")),
    "compress": Writer(
        pairs.compressed,
        command("compress", "/m.mlpackage", "-o", "/out.mlpackage", "--palette", "4", "--min-size", "0", "--save-plan", "/plan.json", "--force"),
        ("out.mlpackage", "plan.json"), all_at(bytes_at("plan.json"), tree_at("out.mlpackage")), is_ordered=True,
    ),
    "compress with new values": Writer(
        pairs.model_and_values,
        command("compress", "/m.mlpackage", "-o", "/out.mlpackage", "--int8", "--min-size", "0", "--weights", "/w.npz", "--save-plan", "/plan.json", "--force"),
        ("out.mlpackage", "plan.json"), all_at(bytes_at("plan.json"), tree_at("out.mlpackage")), is_ordered=True,
    ),
    "frontier": Writer(
        pairs.package("control_flow"), command("compress", "/m.mlpackage", "--frontier", "/out.svg", "--min-size", "0"), ("out.svg",),
        bytes_at("out.svg"),
    ),
    "report": Writer(
        pairs.package("control_flow"), command("report", "/m.mlpackage", "-o", "/report.html", "--force"), ("report.html",),
        report_at("report.html"),
    ),
    "run": Writer(
        pairs.earlier_run, pairs.without_runtime(command("run", "/m.mlpackage", "-o", "/y.npz", "--state-out", "/s.npz", "--force")),
        ("y.npz", "s.npz"), all_at(arrays_at("y.npz"), arrays_at("s.npz")), is_ordered=True,
    ),
    "run, new": Writer(
        pairs.model_with_nothing, pairs.without_runtime(command("run", "/m.mlpackage", "-o", "/y.npz", "--state-out", "/s.npz", "--force")),
        ("y.npz", "s.npz"), all_at(arrays_at("y.npz"), arrays_at("s.npz")), is_ordered=True,
    ),
    "ONNX: verify": Writer(
        pairs.earlier_run, pairs.without_runtime(command("verify", "/m.mlpackage", "/m.mlpackage", "--worst", "/y.npz", "--force", "-q")),
        ("y.npz",), arrays_at("y.npz"),
    ),
    "ONNX: to-onnx": Writer(
        pairs.earlier_conversion, command("to-onnx", "/m.mlpackage", "-o", "/out.onnx", "--weights", "copy", "--force"),
        ("out.onnx", "out.bin", "out.onnx.bin"), pairs.graph_at("out.onnx"),
    ),
    "ONNX: to-onnx, new": Writer(
        pairs.package("quant_uint8"), command("to-onnx", "/m.mlpackage", "-o", "/out.onnx", "--weights", "copy", "--force"),
        ("out.onnx", "out.bin", "out.onnx.bin"), pairs.graph_at("out.onnx"),
    ),
    "ONNX: to-onnx, all in one": Writer(
        pairs.earlier_conversion, command("to-onnx", "/m.mlpackage", "-o", "/out.onnx", "--weights", "embed", "--force"),
        ("out.onnx", "out.bin", "out.onnx.bin"), pairs.graph_at("out.onnx"),
    ),
    "coremltools' append": Writer(old_blobs, twice(their_append), ("w.bin",), model_at("w.bin"), False),
    "coremltools' item": Writer(their_package, twice(their_item), ("their.mlpackage",), their_items, False),
    "coremltools' model": Writer(their_model, twice(their_other_model), ("their.mlpackage",), their_root, False),
}  # fmt: skip


MECHANISMS = ("replaced weight file", "repack to package", "edit package", "append after a tail", "pack")
"""One writer for each way in which results appear: a new file, a new directory, a journal, an append, a pair of files."""


def make(name, folder):
    """Fill a directory with what a writer finds, and with files that are no matter of its."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_bytes(b"mine")
    (folder / "mine").mkdir()
    (folder / "mine" / "keep").write_bytes(b"mine too")
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        WRITERS[name].make(folder)
