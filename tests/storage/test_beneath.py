"""What a model names is opened inside of it: whatever links there are, and whoever exchanges them meanwhile."""

import contextlib
import errno
import itertools
import json
import os
import pathlib
import shutil
import sys
from collections import Counter

import numpy as np
import pytest

import milblob
import race
from milblob.formats.read import open_arrays
from milblob.rewrite.changed_copy import copy_changed_tree
from milblob.rewrite.copying import OpenFiles
from milblob.storage import beneath
from milblob.storage.beneath import Location
from opening import WAYS, open_by
from race import exchanging
from repacking import blobs_of, package_of
from thorough import sized, some

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="links need rights on Windows: what stands behind one is not tested"
)

INSIDE, OUTSIDE = 1.0, 2.0


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """The two that do not look before they open. (Of the third, only Windows knows where an open file is.)"""
    return open_by(request.param, monkeypatch)


# ---------------------------------------------------------------------------------------------------------- every link


def grow(root):
    """A tree with links of every kind; what each path below `root` leads to."""
    (root / "a" / "b" / "c").mkdir(parents=True)
    (root / "a" / "b" / "file").write_bytes(b"inside")
    (root / "a" / "x\\y:z").write_bytes(b"inside")
    (root.parent / "other").mkdir()
    (root.parent / "other" / "file").write_bytes(b"outside")
    (root.parent / f"{root.name}2").mkdir()
    (root.parent / f"{root.name}2" / "file").write_bytes(b"outside")
    (root.parent / "alias").symlink_to(root)
    links = {
        "near": "a/b/file", "folder": "a/b", "a/up": "../a/b/file", "a/b/far": "../../a/b/../b/file", "dot": "./a/./b//file",
        "chain": "near", "long": "chain", "absolute": root / "a/b/file", "absolute folder": root / "a/b",
        "by alias": root.parent / "alias/a/b/file", "self": ".", "a/base": "..",
        "out": "../other/file", "out folder": "../other", "out absolute": root.parent / "other/file",
        "out chain": "out folder/file", "a/out": "b/../../../other/file", "twin": f"../{root.name}2/file", "top": "/",
        "missing": "a/none", "out missing": "../other/none", "loop": "loop", "ping": "pong", "pong": "ping",
        "through out": f"../other/../{root.name}/a/b/file",
    }  # fmt: skip
    for name, target in links.items():
        (root / name).symlink_to(target)
    inside = (
        "a/b/file", "near", "folder/file", "a/up", "a/b/far", "dot", "chain", "long", "absolute", "absolute folder/file",
        "by alias", "through out", "self/a/b/file", "a/base/near", "self/self/self/near", "a//b/./file", "a\\b\\file",
    )  # fmt: skip
    outside = (
        "out", "out folder/file", "out absolute", "out chain", "a/out", "twin", "top/etc/passwd", "out missing",
        "self/out", "a/base/out folder/file", "folder/../out",
    )  # fmt: skip
    missing = ("none", "a/none", "missing", "near/file", "a/b/file/x")
    return inside, outside, missing


def read_place(place):
    fd = place.open()
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


def test_every_link(every_way, tmp_path):
    root = tmp_path / "root"
    inside, outside, missing = grow(root)
    for top in (root, tmp_path / "alias", f"{root}/"):
        place = Location(str(top))
        for name in inside:
            assert read_place(place.beneath(name)) == b"inside", name
            assert place.beneath(name).real() == str(root / "a/b/file")
        assert read_place(place.entry("a/x\\y:z")) == b"inside"
        for name in outside:
            with pytest.raises(milblob.ResolveError) as caught:
                read_place(place.beneath(name))
            assert "expected a" in str(caught.value) and "inside" in str(caught.value), name
        for name in missing:
            with pytest.raises((FileNotFoundError, NotADirectoryError)) as caught:
                read_place(place.beneath(name))
            assert caught.value.filename == place.beneath(name).path
        for name in ("loop", "ping"):
            with pytest.raises(OSError) as caught:
                read_place(place.beneath(name))
            assert caught.value.errno == errno.ELOOP


def test_where_no_link_may_be(every_way, tmp_path):
    """`links=False` refuses those that stay inside too, but not what is above the outer location."""
    root = tmp_path / "root"
    inside, outside, missing = grow(root)
    links = [name for name in inside if (root / name.replace("\\", "/")).resolve() != root / name.replace("\\", "/")]
    assert len(links) > 10
    for top in (root, tmp_path / "alias", f"{root}/"):
        place = Location(str(top))
        for name in ("a/b/file", "a//b/./file", "a\\b\\file"):
            assert read_place(place.beneath(name, links=False)) == b"inside", name
        assert read_place(place.entry("a/x\\y:z", links=False)) == b"inside"
        for name in (*links, *outside):
            with pytest.raises(milblob.ResolveError):
                read_place(place.beneath(name, links=False))
        for name in missing:
            with pytest.raises((FileNotFoundError, NotADirectoryError, milblob.ResolveError)):
                read_place(place.beneath(name, links=False))


def test_a_place_beneath_a_place(every_way, tmp_path):
    root = tmp_path / "root"
    grow(root)
    nested = Location(str(root)).beneath("a").beneath("b")
    assert read_place(nested.beneath("file")) == b"inside"
    with pytest.raises(milblob.ResolveError):  # inside of root, but not of what it is beneath
        read_place(Location(str(root)).beneath("a").beneath("base"))
    with pytest.raises(milblob.ResolveError):
        read_place(Location(str(root)).beneath("out folder").beneath("file"))
    assert read_place(nested.beneath("file").parent().beneath("file")) == b"inside"


def test_names(every_way, tmp_path):
    root = tmp_path / "root"
    grow(root)
    place = Location(str(root))
    assert place.beneath("a").names() == [
        ("b", True),
        ("base", False),
        ("out", False),
        ("up", False),
        ("x\\y:z", False),
    ]
    with pytest.raises(milblob.ResolveError):
        place.beneath("out folder").names()


def test_descriptors_are_closed(every_way, tmp_path):
    root = tmp_path / "root"
    names = [name for group in grow(root) for name in group]
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    for name in [*names, "loop"]:
        with contextlib.suppress(milblob.ResolveError, OSError):
            read_place(Location(str(root)).beneath(name))
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(
    os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() == 0,
    reason="root reads everything: a folder that may not be searched is tested for others only",
)
def test_directories_on_the_way_need_not_be_readable(way, tmp_path):
    root = tmp_path / "root"
    grow(root)
    (root / "a").chmod(0o311)
    assert read_place(Location(str(root)).beneath("a/b/file")) == b"inside"


@pytest.mark.parametrize("code", ["ENOSYS", "EPERM", "EINVAL", "EAGAIN", "EXDEV"])
def test_a_system_call_that_is_missing_forbidden_or_undecided(code, tmp_path, monkeypatch):
    root = tmp_path / "root"
    inside, outside, _ = grow(root)
    monkeypatch.setattr(beneath._codec, "open_beneath", lambda *_: -getattr(errno, code))
    assert read_place(Location(str(root)).beneath(inside[0])) == b"inside"
    with pytest.raises(milblob.ResolveError):
        read_place(Location(str(root)).beneath(outside[0]))


# ------------------------------------------------------------------------------------------------------------- the race


def make_package(folder, value):
    data, (at,) = blobs_of((2, np.full(16, value, np.float32).tobytes()))
    return package_of(
        folder, {"main": [("w", 11, [16], "@model_path/weights/weight.bin", at)]}, {"weights/weight.bin": data},
        {"notes/mine.txt": f"{value}".encode() * 10, "notes/deep/more.txt": f"{value}".encode() * 10},
    )  # fmt: skip


def make_compiled(folder, value):
    """A compiled pipeline: model0 has the weights."""
    path = folder / "m.mlmodelc"
    (path / "model0").mkdir(parents=True)
    milblob.write_weights(
        {"w": np.full(16, value, np.float32)}, path / "model0/weights.bin", listing=path / "model0/model.mil"
    )
    return path


def make_listing(folder, value):
    (folder / "sub").mkdir(parents=True)
    milblob.write_weights({"w": np.full(16, value, np.float32)}, folder / "sub" / "w.bin", listing=folder / "w.json")
    return folder / "w.json"


def make_arrays(folder, value):
    (folder / "sub").mkdir(parents=True)
    np.save(folder / "sub" / "w.npy", np.full(16, value, np.float32))
    document = {"format": "milblob", "tensors": {"w": {"file": "sub/w.npy"}}}
    (folder / "index.json").write_text(json.dumps(document))
    return folder


def make_cache(folder, value):
    folder.mkdir()
    record = {"name": "w", "shape": [16], "dtype": "float32", "format": "raw", "nbytes": 64, "byteOffset": 0}
    shard = {"dataPath": "w.bin", "format": "raw-shard", "nbytes": 64, "records": [record]}
    (folder / "w.bin").write_bytes(np.full(16, value, np.float32).tobytes())
    (folder / "tensor-cache.json").write_text(json.dumps({"metadata": {}, "records": [shard]}))
    return folder


def make_onnx(folder, value):
    import onnx_ir as ir

    folder.mkdir()
    weight = ir.Value(name="w", const_value=ir.Tensor(np.full(16, value, np.float32), name="w"))
    graph = ir.Graph([], [], nodes=[], initializers=[weight], opset_imports={"": 21}, name="g")
    (folder / "sub").mkdir()
    ir.save(ir.Model(graph, ir_version=10), folder / "m.onnx", external_data="sub/w.bin", size_threshold_bytes=0)
    return folder / "m.onnx"


def load(path):
    (values,) = milblob.load(path).values()
    return values


def load_arrays(path):
    with open_arrays(path) as arrays:
        return arrays["w"].read()


INNER = "Data/com.apple.CoreML"
RACES = [
    (make_package, load, f"{INNER}/weights"), (make_package, load, f"{INNER}/weights/weight.bin"),
    (make_package, load, f"{INNER}/model.mlmodel"), (make_package, load, INNER), (make_package, load, "Data"),
    (make_package, load, "Manifest.json"),
    (make_compiled, load, "model0"), (make_compiled, load, "model0/model.mil"), (make_compiled, load, "model0/weights.bin"),
    (make_listing, load, "sub"), (make_listing, load, "sub/w.bin"),
    (make_arrays, load_arrays, "sub"), (make_arrays, load_arrays, "sub/w.npy"), (make_arrays, load_arrays, "index.json"),
    (make_cache, load_arrays, "w.bin"), (make_onnx, load_arrays, "sub"), (make_onnx, load_arrays, "sub/w.bin"),
]  # fmt: skip


def prepare(make, part, tmp_path):
    """(model, name in it, a link beside that leads to the same of another model outside)."""
    path, other = (make(tmp_path / name, value) for name, value in (("inside", INSIDE), ("outside", OUTSIDE)))
    root, outside = (p if p.is_dir() else p.parent for p in (path, other))
    link = root / "link"  # in the model, so that it is on the same file system; and found by nobody
    link.symlink_to(outside / part)
    return path, root / part, link


@pytest.mark.parametrize(
    ("make", "action", "part"),
    some(RACES, named=[RACES[i] for i in (0, 6, 9, 11, 14, 15)]),
    ids=lambda value: getattr(value, "__name__", None) or str(value),
)
@pytest.mark.sample(4)
def test_race_of_loads(way, make, action, part, tmp_path):
    """No load reads a value of the other model, however often the way to it is exchanged for a link."""
    path, name, link = prepare(make, part, tmp_path)
    met = Counter()
    with exchanging(name, link):
        count = sized(150, race.LOADS)
        while met.total() < count or (not (met[INSIDE] and met["ResolveError"]) and met.total() < 40 * count):
            try:
                met[float(action(path)[0])] += 1
            except (milblob.MilblobError, OSError) as error:
                met[type(error).__name__] += 1
    print(f"{way}, {part}: {dict(met)}")
    assert OUTSIDE not in met, met
    assert met[INSIDE] and met["ResolveError"], met  # else nothing has been exchanged


@pytest.mark.parametrize("part", some([f"{INNER}/weights", f"{INNER}/weights/weight.bin", INNER], 1))
def test_race_of_edits(way, part, tmp_path):
    """No edit changes the other model."""
    path, name, link = prepare(make_package, part, tmp_path)
    other = {p: p.read_bytes() for p in (tmp_path / "outside").rglob("*") if p.is_file()}
    met = Counter()
    with exchanging(name, link):
        count = sized(60, 1000)
        while met.total() < count or (not (met["done"] and met["ResolveError"]) and met.total() < 40 * count):
            try:
                with milblob.open(path, "r+") as model:
                    model["w"] = np.full(16, met.total(), np.float32)
                met["done"] += 1
            except (milblob.MilblobError, OSError) as error:
                met[type(error).__name__] += 1
    print(f"{way}, {part}: {dict(met)}")
    assert {p: p.read_bytes() for p in other} == other
    assert met["done"] and met["ResolveError"], met


def repack(path, folder):
    milblob.repack(path, folder / "out.mlpackage", gc=True, force=True)
    return folder / "out.mlpackage"


def refit(path, folder):
    milblob.refit(path, {"w": np.full(16, 3, np.float32)}, destination=folder / "out.mlpackage", force=True)
    return folder / "out.mlpackage"


def copy(path, folder):
    shutil.rmtree(folder / "out", ignore_errors=True)
    (folder / "out").mkdir()
    copy_changed_tree(str(path), str(folder / "out"), {}, OpenFiles([]))
    return folder / "out"


PARTS = [f"{INNER}/notes", f"{INNER}/notes/deep", f"{INNER}/notes/mine.txt", f"{INNER}/weights"]


@pytest.mark.parametrize(
    ("action", "part"),
    some(
        itertools.product([repack, refit, copy], PARTS), named=[(repack, PARTS[0]), (refit, PARTS[3]), (copy, PARTS[1])]
    ),
)
def test_race_of_copies(way, action, part, tmp_path):
    """What copies a whole model takes nothing along from outside."""
    path, name, link = prepare(make_package, part, tmp_path)
    other = {
        p.read_bytes() for p in (tmp_path / "outside").rglob("*") if p.name in ("weight.bin", "mine.txt", "more.txt")
    }
    met = Counter()
    with exchanging(name, link):
        count = sized(6, 250)
        while met.total() < count or (len(met) < 2 and met.total() < 40 * count):
            try:
                result = action(path, tmp_path)
            except (milblob.MilblobError, OSError) as error:
                met[type(error).__name__] += 1
                continue
            met["done"] += 1
            taken = [p for p in pathlib.Path(result).rglob("*") if p.is_file() and not p.is_symlink()]
            assert not [p for p in taken if p.read_bytes() in other], part
    assert len(met) > 1 or met["done"], met
