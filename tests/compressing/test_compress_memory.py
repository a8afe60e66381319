"""The memory that compressing takes grows neither with a weight nor with their number, whatever the recipe."""

import json
import shutil
import sys

import numpy as np
import pytest

from children import KEPT_NBYTES, run_fork
from compress_large_models import COLUMNS, save_weight, save_weights
from thorough import sized, some

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Linux has RssAnon: memory is not measured here"
)
SIZES = [64, 128] if sized(0, 1) else [40, 80]
"""MiB of the weight. Below, arrays of some MiB are in memory as they are everywhere."""

MOST_GROWTH = 0.15  # bytes of memory for each byte of the weight

KINDS = {
    "blocks along another axis": ("Linear(granularity='per_block', block=(0, 1))", {}, None),
    "search with importance": ("Linear(search=True)", {"importance": "full"}, None),
    "palettes along another axis": ("Palette(4, granularity='per_grouped_channel', group_size=16, channel_axis=1)", {}, None),
    "palette with importance": ("Palette(4)", {"importance": "full"}, None),
    "palette of vectors": ("Palette(4, vector=2)", {}, None),
    "palette of long vectors": ("Palette(2, vector=1024)", {}, None),
    "all vectors": ("Palette(mode='unique', vector=2)", {}, "few"),
    "unique": ("Palette(mode='unique')", {}, "few"),
    "palettes with scales": ("Palette(4, scale=True)", {}, None),
    "palette with integers": ("Palette(6, lut_dtype='int8')", {}, None),
    "blocks pruned": ("Prune(0.5, block=4)", {}, None),
    "pruned with importance": ("Prune(0.5)", {"importance": "full"}, None),
    "pruned, then palette": ("Prune(0.5) + Palette(4)", {}, None),
    "pruned, then integers": ("Prune(0.5) + Linear()", {}, None),
    "pruned vectors, then palette": ("Prune(0.5, block=2, dim=0) + Palette(4, vector=2)", {}, None),
    "palette, then pruned": ("Palette(4) + Prune(0.5)", {}, None),
    "integers, then pruned": ("Linear() + Prune(0.5)", {}, None),
    "integers, then palette": ("Linear('int4', granularity='per_block', block=32) + Palette(2)", {}, None),
    "all three": ("Prune(0.5) + Palette(6) + Linear(granularity='per_tensor')", {}, None),
    "palette that keeps NaN": ("Palette(4)", {"nan": "keep"}, "nan"),
    "pruned that keeps NaN": ("Prune(0.5)", {"nan": "keep"}, "nan"),
    "old operations": ("Palette(4)", {"importance": "full"}, "iOS17"),
    "on from pruned": ("Palette(4)", {}, "Prune(0.5)"),
    "on from integers": ("Palette(4)", {}, "Linear()"),
    "anew": ("Linear('int4', granularity='per_block', block=32)", {"recompress": True}, "Linear()"),
    "a size": ("Goal(bits=5, recipes=[Linear(), Palette()])", {"importance": "full"}, None),
}  # fmt: skip
NUMBERS = [8, 40]
"""Weights of 2 MiB."""

MANY = {
    "blocks pruned": ("Prune(0.5, block=4)", {}),
    "blocks pruned, dry run": ("Prune(0.5, block=4)", {"dry_run": True}),
    "palettes, dry run": ("Palette(4)", {"dry_run": True}),
    "n of m": ("Prune(n_m=(2, 4))", {}),
    "n of m, dry run": ("Prune(n_m=(2, 4))", {"dry_run": True}),
    "pruned": ("Prune(0.5)", {}),
    "integers": ("Linear()", {}),
    "integers, with a NaN": ("Linear('int4', granularity='per_block', block=(0, 1), search=True)", {}),
    "palettes with a NaN": ("Palette(4, granularity='per_grouped_channel', group_size=128)", {}),
    "palettes of groups, dry run": ("Palette(4, granularity='per_grouped_channel', group_size=128)", {"dry_run": True}),
    "palette of vectors": ("Palette(4, vector=2)", {}),
    "palettes with scales, dry run": ("Palette(4, scale=True)", {"dry_run": True}),
    "pruned, then integers": ("Prune(0.5) + Linear()", {}),
    "a size, blocks": ("Goal(bits=9.5, recipes=[Prune(0.5, block=4)])", {}),
}  # fmt: skip
QUICK = ("pruned, then integers", "palettes along another axis")

CODE = """
    import json, pathlib, threading
    import numpy as np
    import milblob
    from milblob import Goal, Guidance, Linear, Palette, Prune
    from milblob.compressing import compress, parse_recipe  # what is imported later would count

    def anonymous_nbytes():
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

    recipe, options, paths = eval(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
    found = []
    for path in paths:
        given = dict(options)
        if given.pop("importance", None):
            with milblob.open(path) as model:
                shape = model["w0"].shape
            importance = np.broadcast_to(np.arange(1, shape[1] + 1) / shape[1], shape)  # takes no memory
            given["guidance"] = Guidance(importance={"w0": importance})
        most, done, start = [0], threading.Event(), anonymous_nbytes()

        def watch():
            while not done.wait(0.002):
                most[0] = max(most[0], anonymous_nbytes())

        watcher = threading.Thread(target=watch, daemon=True)  # an error ends the test, not its time limit
        watcher.start()
        report = milblob.compress(path, path + ".out.mlpackage", recipe, force=True, **given)
        done.set()
        watcher.join()
        assert report.weights, report.skipped
        found.append(max(most[0] - start, 0))
    print(json.dumps(found))
"""


@pytest.mark.parametrize("kind", some(KINDS, named=QUICK))
def test_growth(kind, tmp_path, monkeypatch):
    """Two weights, one twice as large: what is taken for the second is hardly more."""
    recipe, options, source = KINDS[kind]
    monkeypatch.setenv("MILBLOB_THREADS", "1")  # how much several threads hold at a time depends on their luck
    rng = np.random.default_rng(2)
    block = rng.integers(-2, 2, (64, COLUMNS)) if source == "few" else rng.standard_normal((64, COLUMNS), np.float32)
    block = block.astype(np.float16)
    paths = []
    for size in SIZES:
        rows = [np.roll(block, number, 1) for number in range((size << 20) // block.nbytes)]
        if source == "nan":
            rows[1][5, 6], rows[2][7, 8] = np.nan, np.inf
        opset = 17 if source == "iOS17" else 18
        path = save_weight(tmp_path / f"{size}", "float16", len(rows) * 64, [row.tobytes() for row in rows], opset)
        if source is not None and "(" in source:
            compressed = tmp_path / f"{size}.mlpackage"
            run_fork(
                "import milblob; from milblob import Linear, Palette, Prune\nmilblob.compress(*sys.argv[1:3], eval(sys.argv[3]))",
                path, compressed, source,
            )  # fmt: skip
            path = compressed
        paths.append(path)
    small, large = json.loads(run_fork(CODE, recipe, json.dumps(options), *paths, timeout=900))
    print(f"{kind}: {small / 2**20:.1f} and {large / 2**20:.1f} MiB")
    assert large - small < MOST_GROWTH * ((SIZES[1] - SIZES[0]) << 20) + KEPT_NBYTES
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("kind", some(MANY, 1))
def test_number_of_weights(kind, tmp_path, monkeypatch):
    """Two models, one with five times as many weights: what is taken for the second is hardly more."""
    recipe, options = MANY[kind]
    monkeypatch.setenv("MILBLOB_THREADS", "1")
    rng = np.random.default_rng(4)
    paths = []
    for number in NUMBERS:
        weights = [rng.standard_normal((256, COLUMNS), np.float32).astype(np.float16) for _ in range(number)]
        if "NaN" in kind:
            weights[-1][3, 4] = np.nan  # which is only found when all but this one are written
        pieces = [[weight.tobytes()] for weight in weights]
        paths.append(save_weights(tmp_path / f"{number}", "float16", 256, pieces))
    small, large = json.loads(run_fork(CODE, recipe, json.dumps(options), *paths, timeout=900))
    print(f"{kind}: {small / 2**20:.1f} and {large / 2**20:.1f} MiB")
    assert large - small < MOST_GROWTH * ((NUMBERS[1] - NUMBERS[0]) << 21) + KEPT_NBYTES
    shutil.rmtree(tmp_path)
