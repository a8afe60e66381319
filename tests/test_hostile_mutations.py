"""Every truncation and many seeded mutations of real files: a value or MilblobError, in a child that may crash.

A child prints how many inputs it tried and how many still gave values; that is checked too, so that a child which does
nothing is no success.
"""

import json

import pytest

import milblob
from children import run_fork
from paths import DATA
from thorough import sized

# What the child runs. Files are written to a package on disk, so that references lead somewhere.
CHILD = """
    import pathlib, random, shutil
    from hostile_bytes import use_everything
    import milblob

    mode, source, part, work, count, seed = sys.argv[1:]
    source, work = pathlib.Path(source), pathlib.Path(work)
    path = work / source.name
    shutil.copytree(source, path) if source.is_dir() else shutil.copy(source, path)
    target = path / part if part else path
    whole = target.read_bytes()
    expected = use_everything(path)
    assert expected
    rng = random.Random(int(seed))
    MARKS = bytes([0, 1, 2, 7, 8, 9, 10, 11, 12, 18, 26, 34, 63, 64, 127, 128, 129, 192, 254, 255])
    TEXT = b"()[]{}<>,;=\\"\\\\?-.0x9pe~ \\n%@"

    def mutated(data):
        data = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            at, kind = rng.randrange(len(data)), rng.randrange(7)
            if kind == 0:
                data[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                data[at] = rng.choice(MARKS)
            elif kind == 2:
                data[at] = rng.choice(TEXT)
            elif kind == 3:
                data[at:at + 10] = b"\\xff" * min(10, len(data) - at)
            elif kind == 4:
                start, n = rng.randrange(len(data)), rng.randrange(1, 40)
                data[at:at] = data[start:start + n]
            elif kind == 5:
                del data[at:at + rng.randrange(1, 20)]
            else:
                start, n = rng.randrange(len(data)), rng.randrange(1, 40)
                data[at:at + n] = data[start:start + n]
            if not data:
                data = bytearray(b"\\0")
        return bytes(data)

    def inputs():
        if mode == "truncate":
            step = len(whole) // int(count) + 1
            for cut in range(0, len(whole), step):
                yield whole[:cut]
        else:
            for _ in range(int(count)):
                yield mutated(whole)

    tried = survived = 0
    for data in inputs():
        target.write_bytes(data)
        tried += 1
        try:
            found = use_everything(path)
        except (milblob.MilblobError, OSError) as error:
            assert str(error).isprintable() or isinstance(error, OSError), repr(error)
            continue
        survived += 1
        if mode == "truncate":  # fewer tensors, or none; but those that are there are what they were
            for name, value in found.items():
                assert expected.get(name) == value, name
    print(tried, survived)
"""

MODELS = [
    ("opset_ios16_fp16/model.mlpackage", "Data/com.apple.CoreML/model.mlmodel"),
    ("immediates/model.mlmodel", ""),
    ("containers/model.mlmodel", ""),
    ("wire/split/model.mlmodel", ""),
    ("constexpr_ios18/model.mlpackage", "Data/com.apple.CoreML/model.mlmodel"),
]
OTHERS = [
    ("opset_ios16_fp16/model.mlpackage", "Data/com.apple.CoreML/weights/weight.bin"),
    ("opset_ios16_fp16/model.mlpackage", "Manifest.json"),
    ("opset_ios16_fp16/model.mlmodelc", "model.mil"),
    ("opset_ios16_fp16/model.mlmodelc", "metadata.json"),
    ("blob_sub_byte/weight.bin", ""),
    ("pipeline/model.mlpackage", "Data/com.apple.CoreML/model.mlmodel"),
]


@pytest.mark.parametrize(("source", "part"), MODELS + OTHERS)
def test_truncated(source, part, tmp_path):
    """At as many places as there is time for, or at every byte."""
    places = min(sized(25, 100_000), (DATA / source / part).stat().st_size)
    tried, survived = run_fork(CHILD, "truncate", DATA / source, part, tmp_path, places, 0).split()
    assert int(tried) >= places // 2
    if part == "Data/com.apple.CoreML/model.mlmodel":
        assert int(survived) == 0


@pytest.mark.parametrize(("source", "part", "count"), [
    (*MODELS[0], 1000), (*MODELS[1], 800), (*MODELS[2], 3000), (*MODELS[3], 5000), (*MODELS[4], 1000),
    (*OTHERS[0], 600), (*OTHERS[1], 600), (*OTHERS[2], 1500), (*OTHERS[3], 600), (*OTHERS[4], 1500), (*OTHERS[5], 1500),
])  # fmt: skip
def test_mutations(source, part, count, tmp_path):
    count = sized(count // 30, 4 * count)
    tried, survived = run_fork(CHILD, "mutate", DATA / source, part, tmp_path, count, 20240607).split()
    assert int(tried) == count
    always_opens = part.endswith("weight.bin") or part == "metadata.json"  # what is wrong shows when it is read
    assert 0 < int(survived) < count + always_opens


@pytest.mark.parametrize("case", ["opset_ios16_fp16", "constexpr_ios18", "immediates"])
def test_names_of_a_mutated_model_are_unique(case):
    """In this process: one flipped bit at a time, in memory."""
    folder = DATA / case
    path = folder / json.loads((folder / "expected.json").read_text(encoding="utf-8"))["paths"][0]
    data = (path / "Data/com.apple.CoreML/model.mlmodel" if path.is_dir() else path).read_bytes()
    listed = 0
    for bit in range(0, len(data) * 8, max(61, len(data) // 40)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            with milblob.open(changed, constants=True, stored=True) as opened:
                assert all(opened[name].name == name for name in opened)
                listed += 1
        except milblob.MilblobError:
            continue
    assert listed > 10
