"""The data of reports against NumPy, the file around it, and what happens to bad input."""

import importlib.util
import json
import math
import os
import shutil
import sys

import numpy as np
import pytest

import milblob
from children import run_child
from milblob.reporting import values
from milblob.reporting.scopes import scope_tree
from paths import DATA, DEMO
from peers import WITHOUT
from reports import comparison_of, data_of, digest, policy_of, weights_of
from thorough import sized

pytest.importorskip("mpld3", reason=WITHOUT["mpld3"])

COMPRESSED = DATA / "constexpr_ios18" / "model.mlpackage"


def histogram_of(row):
    low, high, width, counts = row["histogram"]
    return low, high, width, counts


# ---------------------------------------------------------------------------------------------------------------- data


@pytest.mark.parametrize("source", [DEMO, COMPRESSED])
def test_rows_are_what_numpy_computes(source, tmp_path):
    path = tmp_path / "report.html"
    written = milblob.report(source, destination=path)
    rows, arrays = weights_of(path), milblob.load(source)
    assert list(rows) == list(arrays) and written.weights == len(arrays) and not written.unreadable
    for name, array in arrays.items():
        row, wide = rows[name], array.astype(np.float64)
        finite = wide[np.isfinite(wide)]
        assert (row["shape"], row["count"], row["sampled"]) == (list(array.shape), array.size, None)
        assert row["figures"]["min"] == pytest.approx(finite.min(), rel=1e-5)
        assert row["figures"]["max"] == pytest.approx(finite.max(), rel=1e-5)
        assert row["figures"]["mean"] == pytest.approx(finite.mean(), rel=1e-5, abs=1e-12)
        assert row["figures"]["std"] == pytest.approx(finite.std(), rel=1e-5, abs=1e-12)
        assert (row["figures"]["zeros"], row["figures"]["nans"]) == (int((wide == 0).sum()), int(np.isnan(wide).sum()))
        low, _, width, counts = histogram_of(row)
        assert (sum(counts), low) == (row["histogram_count"], pytest.approx(finite.min(), rel=1e-5))
        if not width and row["histogram_count"] == array.size:
            assert counts == np.histogram(finite, len(counts), (finite.min(), finite.max()))[0].tolist()


def test_places_and_consumers_are_those_of_the_model(tmp_path):
    path = tmp_path / "report.html"
    milblob.report(DEMO, destination=path, values=False)
    rows = weights_of(path)
    with milblob.open(DEMO) as model:
        for name, tensor in model.items():
            row = rows[name]
            assert (row["dtype"], row["nbytes"], row["op"]) == (str(tensor.mil_dtype), tensor.nbytes, tensor.op)
            assert (row["function"], row["offset"], row["data_offset"]) == (
                tensor.function,
                tensor.offset,
                tensor.data_offset,
            )
            assert [[one.type or "output", one.label, one.name] for one in tensor.consumers] == row["consumers"]
            assert row["statistics"] is None and row["histogram"] is None
        assert data_of(path)["models"][0]["nbytes"] == sum(tensor.nbytes for tensor in model.values())


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "uint8"])
@pytest.mark.parametrize("shape", [(5, 7), (100, 3, 3), (2, 1)])
def test_ranges_of_channels(dtype, shape, tmp_path):
    array = (np.random.default_rng(5).normal(0, 20, shape)).astype(dtype)
    milblob.report({"w": array}, destination=tmp_path / "report.html")
    channels, low, high, minima, maxima, length = weights_of(tmp_path / "report.html")["w"]["channels"]
    shown = min(shape[0], 32)
    wide = array.reshape(shape[0], -1).astype(np.float64)[[at * (shape[0] - 1) // (shown - 1) for at in range(shown)]]
    assert (channels, length) == (shape[0], wide.shape[1])  # all elements: the rows are short
    for steps, values_ in ((minima, wide.min(1)), (maxima, wide.max(1))):
        assert np.allclose(low + (high - low) * np.array(steps) / 999, values_, atol=(high - low) / 1900 + 1e-9)


def test_not_finite_channels_and_values(tmp_path):
    array = np.array([[1, 2], [np.nan, np.inf], [np.nan, 3]], np.float16)
    written = milblob.report({"w": array, "all": np.full((2, 3), np.nan, np.float32)}, destination=tmp_path / "r.html")
    rows = weights_of(tmp_path / "r.html")
    assert rows["w"]["channels"] == [3, 1.0, 3.0, [0, -1, 999], [500, -1, 999], 2]
    assert (rows["w"]["figures"]["nans"], rows["w"]["figures"]["infinities"]) == (2, 1)
    assert (rows["all"]["channels"], rows["all"]["histogram"], rows["all"]["figures"]["min"]) == (None, None, None)
    assert rows["all"]["figures"]["nans"] == 6 and not written.unreadable


def test_a_large_weight_is_sampled_and_marked_so(tmp_path, monkeypatch, cli):
    monkeypatch.setattr(values, "MAX_EXACT_COUNT", 1000)
    monkeypatch.setattr(values, "_SAMPLE_COUNT", 256 * 16)
    array = np.random.default_rng(6).normal(size=(100, 100)).astype(np.float16)
    written = milblob.report({"large": array, "small": array[:5]}, destination=tmp_path / "r.html")
    assert written.sampled == ("large",)
    rows = weights_of(tmp_path / "r.html")
    assert (rows["large"]["sampled"], rows["large"]["count"], rows["small"]["sampled"]) == (4096, 10_000, None)
    assert rows["large"]["figures"]["std"] == pytest.approx(1, abs=0.1)
    np.savez(tmp_path / "a.npz", large=array)
    status, _, err = cli("report", str(tmp_path / "a.npz"), "-o", str(tmp_path / "a.html"))
    assert status == 0 and "1 large weight: statistics of a sample of the values" in err


@pytest.mark.thorough
@pytest.mark.skipif(
    sys.platform != "linux", reason="Linux has sparse files: a weight of 10^9 elements is not read here"
)
def test_a_weight_of_a_billion_elements(tmp_path):
    count = 10**9
    with open(tmp_path / "w.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "|i1", "fortran_order": False, "shape": (1000, count // 1000)}
        )
        file.truncate(file.tell() + count)
    written = milblob.report(tmp_path / "w.npy", destination=tmp_path / "r.html")
    (row,) = weights_of(tmp_path / "r.html").values()
    assert written.sampled == (row["name"],)
    assert (row["count"], row["sampled"], row["figures"]["zeros"]) == (count, 1 << 24, 1 << 24)


@pytest.mark.parametrize(
    "names",
    [
        ["encoder_0_weight", "encoder_0_bias", "encoder_1_weight", "head"],
        ["a", "a.b", "a.b.c", "a_", ""],
        ["_".join(["x"] * 5000), "_".join(["x"] * 5001), "x", "y"],
        ["same", "same", "other"],
    ],
)
def test_the_tree_has_every_weight_once_under_its_own_name(names):
    def leaves(nodes, prefix=""):
        for label, content in nodes:
            if isinstance(content, list):
                yield from leaves(content, prefix + label)
            else:
                yield prefix + label, content

    found = sorted(leaves(scope_tree(names)), key=lambda leaf: leaf[1])
    assert found == [(name, index) for index, name in enumerate(names)]


# ---------------------------------------------------------------------------------------------------------- two models


def test_a_comparison_is_what_numpy_computes(tmp_path):
    random = np.random.default_rng(7)
    a = {
        "same": random.normal(size=(4, 5)),
        "noisy": random.normal(size=(30, 40)).astype(np.float32),
        "gone": np.ones(3),
    }
    noisy = (a["noisy"] + random.normal(scale=0.01, size=(30, 40))).astype(np.float32)
    b = {"same": a["same"], "noisy": noisy, "new": np.zeros(2)}
    milblob.report(a, b, destination=tmp_path / "r.html")
    rows = comparison_of(tmp_path / "r.html")
    assert {name: row["kind"] for name, row in rows.items()} == {
        "same": "same", "noisy": "different", "gone": "only_a", "new": "only_b",
    }  # fmt: skip
    noise = noisy.astype(np.float64) - a["noisy"]
    sqnr = 10 * math.log10((a["noisy"].astype(np.float64) ** 2).sum() / (noise**2).sum())
    assert rows["noisy"]["sqnr"] == pytest.approx(sqnr, rel=1e-5)
    assert rows["noisy"]["max_abs"] == pytest.approx(np.abs(noise).max(), rel=1e-5)
    low, high, _, counts_a, counts_b, count = rows["noisy"]["histograms"]
    both = np.stack([a["noisy"], noisy]).astype(np.float64)
    assert (low, high, count) == (pytest.approx(both.min()), pytest.approx(both.max()), 1200)
    for counts, side in ((counts_a, both[0]), (counts_b, both[1])):
        assert counts == np.histogram(side, 12, (both.min(), both.max()))[0].tolist()
    assert data_of(tmp_path / "r.html")["comparison"]["is_same"] is False


def test_a_model_and_one_in_fewer_bits(tmp_path):
    small = tmp_path / "Small.mlpackage"
    milblob.compress(DEMO, small, milblob.Linear("int8"), scope=milblob.Scope(min_size=64))
    milblob.report(DEMO, small, destination=tmp_path / "r.html")
    rows, a, b = comparison_of(tmp_path / "r.html"), milblob.load(DEMO), milblob.load(small)
    assert list(rows) == list(a)  # network order
    changed = {name for name in a if not np.array_equal(a[name], b[name])}
    assert changed and {name for name, row in rows.items() if row["kind"] == "different"} == changed
    for name in changed:
        noise = b[name].astype(np.float64) - a[name]
        assert rows[name]["max_abs"] == pytest.approx(np.abs(noise).max(), rel=1e-5)
        assert sum(rows[name]["histograms"][3]) == sum(rows[name]["histograms"][4]) == rows[name]["histograms"][5]
    milblob.report(DEMO, small, destination=tmp_path / "n.html", values=False)
    assert {row["kind"] for row in comparison_of(tmp_path / "n.html").values()} == {"named"}


def test_a_compression_and_its_frontier(tmp_path):
    small = tmp_path / "Small.mlpackage"
    found = milblob.compress(DEMO, small, milblob.Goal(size=60_000), scope=milblob.Scope(min_size=64))
    frontier = milblob.compress_frontier(DEMO, scope=milblob.Scope(min_size=64))
    milblob.report(DEMO, small, destination=tmp_path / "r.html", plan=found, frontier=frontier)
    shown = data_of(tmp_path / "r.html")["compression"]
    rows = {row[0]: dict(zip(shown["columns"], row, strict=True)) for row in shown["rows"]}
    for weight in found.weights:
        assert rows[weight.name]["nbytes_after"] == weight.nbytes_after
        assert rows[weight.name]["sqnr"] == pytest.approx(weight.sqnr, rel=1e-5)
    assert {name for name, row in rows.items() if row["reason"]} >= {name for name, _ in found.skipped}
    assert shown["chosen"] == found.nbytes_after and len(shown["frontier"]["points"]) == len(frontier.points)
    found.plan.save(tmp_path / "plan.json")
    (tmp_path / "frontier.json").write_text(json.dumps(frontier.to_dict()))
    files = {"plan": tmp_path / "plan.json", "frontier": tmp_path / "frontier.json"}
    milblob.report(DEMO, destination=tmp_path / "f.html", **files)
    again = data_of(tmp_path / "f.html")["compression"]
    assert again["frontier"] == shown["frontier"] and again["chosen"] == found.nbytes_after


@pytest.mark.parametrize(
    "document",
    [[], {}, {"nbytes": 1, "points": 3, "alone": []}, {"nbytes": 1, "points": [{"nbytes": "x", "sqnr": 1}], "alone": []},
     {"nbytes": -1, "points": [], "alone": []}, {"nbytes": 1, "points": [], "alone": [{"recipe": "?", "nbytes": 1, "sqnr": 1}]}],
)  # fmt: skip
def test_a_wrong_frontier_is_a_format_error(document, tmp_path):
    (tmp_path / "frontier.json").write_text(json.dumps(document))
    with pytest.raises((milblob.FormatError, TypeError), match="frontier"):
        milblob.report(DEMO, destination=tmp_path / "r.html", frontier=tmp_path / "frontier.json")
    assert not (tmp_path / "r.html").exists()


# ---------------------------------------------------------------------------------------------------------------- file

HOSTILE = ["<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "<!--<script>", "a\u202eb\u2066c",
           "x" * 10_000, "new\nline\x00\u2028", '"><b onclick=alert(1)>', "&lt;b&gt;", "\ud800", "%%data%%", "é/ü.ß"]  # fmt: skip


def test_hostile_names_are_data(tmp_path):
    arrays = {name: np.arange(6, dtype=np.float32).reshape(2, 3) for name in HOSTILE}
    path = tmp_path / "r.html"
    milblob.report(arrays, destination=path)
    text = path.read_text("ascii", "surrogateescape")
    assert "<script>alert" not in text and "onerror=alert" not in text.replace(
        "\\u003cimg src=x onerror=alert(1)\\u003e", ""
    )
    shown = list(weights_of(path))
    assert shown[0] == HOSTILE[0] and shown[4] == HOSTILE[4]  # as they are: the page shows them as text
    assert not any(character in name for name in shown for character in "\u202e\u2066\n\x00\u2028\ud800")
    assert len(set(shown)) == len(HOSTILE)


def test_the_policy_allows_only_what_is_in_the_file(tmp_path):
    import re

    path = tmp_path / "r.html"
    milblob.report(DEMO, destination=path)
    policy, text = policy_of(path), path.read_text("utf-8")
    scripts = re.findall(r"<script>(.*?)</script>", text, re.S)
    assert policy["default-src"] == ["'none'"] and len(scripts) == 2
    assert policy["script-src"] == [digest(script) for script in scripts]
    assert policy["style-src"] == [digest(re.search(r"<style>(.*?)</style>", text, re.S)[1])]
    assert policy["require-trusted-types-for"] == ["'script'"] and "unsafe" not in str(policy)
    head = text[: text.index("<script>")]
    assert not re.search(r"\b(?:src|href|action)\s*=\s*[\"']?(?:https?:|//)", head) and " style=" not in head


def test_no_directory_of_this_machine_is_in_the_file(tmp_path):
    folder = tmp_path / "private-folder"
    shutil.copytree(DEMO, folder / "Model.mlpackage")
    (folder / "Model.mlpackage/Data/com.apple.CoreML/weights/weight.bin").write_bytes(b"broken" * 20)
    milblob.report(folder / "Model.mlpackage", destination=tmp_path / "r.html")
    assert "private-folder" not in (tmp_path / "r.html").read_text("utf-8")


def test_3000_weights_take_less_than_6_mb(tmp_path):
    """In `make test` a third of both."""
    count = sized(1000, 3000)
    random = np.random.default_rng(8)
    arrays = {
        f"encoder/layers_{at // 6}_attention_{at % 6}_projection_weight": random.normal(size=(32, 8))
        for at in range(count)
    }
    written = milblob.report(arrays, destination=tmp_path / "r.html")
    assert written.nbytes == (tmp_path / "r.html").stat().st_size < count * 2000


# ----------------------------------------------------------------------------------------------------------- bad input


def test_a_report_that_exists_is_kept(tmp_path, cli):
    path = tmp_path / "r.html"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="already exists"):
        milblob.report(DEMO, destination=path)
    status, _, err = cli("report", str(DEMO), "-o", str(path))
    assert (status, path.read_bytes(), err.count("\n")) == (2, b"mine", 1)
    assert cli("report", str(DEMO), "-o", str(path), "--force")[0] == 0
    assert weights_of(path)


def test_no_report_is_written_into_a_model(tmp_path, cli):
    model = shutil.copytree(DEMO, tmp_path / "m.mlpackage")
    before = sorted(model.rglob("*"))
    for words in ([model], [DEMO, model]):
        status, _, err = cli("report", *words, "-o", model / "r.html", "--force")
        assert (status, "expected a place outside of models" in err) == (2, True)
    assert sorted(model.rglob("*")) == before


def test_a_directory_that_is_missing_or_cannot_be_written(tmp_path, cli):
    status, _, err = cli("report", str(DEMO), "-o", str(tmp_path / "none" / "r.html"))
    assert (status, err.count("\n")) == (2, 1) and "none" in err
    (tmp_path / "file").write_bytes(b"")
    assert cli("report", str(DEMO), "-o", str(tmp_path / "file" / "r.html"))[0] == 2
    assert cli("report", str(DEMO), "-o", str(tmp_path))[0] == 2
    if sys.platform == "linux":  # where not even root makes a file
        status, _, err = cli("report", str(DEMO), "-o", "/proc/r.html")
        assert (status, err.count("\n")) == (2, 1)
    if sys.platform != "win32" and os.geteuid():  # root may write everywhere else
        (tmp_path / "closed").mkdir(mode=0o500)
        assert cli("report", str(DEMO), "-o", str(tmp_path / "closed" / "r.html"))[0] == 2


def test_a_source_without_weights(tmp_path):
    written = milblob.report({}, destination=tmp_path / "r.html")
    assert written.weights == 0 and weights_of(tmp_path / "r.html") == {}
    with pytest.raises(ValueError, match="nothing\\*"):
        milblob.report(DEMO, destination=tmp_path / "s.html", select="nothing*")


def test_weights_that_cannot_be_read_are_named(tmp_path, cli):
    model = shutil.copytree(DEMO, tmp_path / "Model.mlpackage")
    (model / "Data/com.apple.CoreML/weights/weight.bin").unlink()
    status, out, _ = cli("report", str(model), "-o", str(tmp_path / "r.html"), "--json")
    document = json.loads(out)
    assert status == 1 and document["unreadable"] and document["findings"]["error"] >= 1
    rows = weights_of(tmp_path / "r.html")
    assert {name for name, row in rows.items() if row["failure"]} == set(document["unreadable"])
    assert cli("report", str(model), "-o", str(tmp_path / "n.html"), "--no-values")[0] == 0


def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr("milblob.reporting.page.find_spec", lambda name: None if name == "mpld3" else find_spec(name))
    with pytest.raises(ImportError, match="mpld3 is not installed.*extra report"):
        milblob.report(DEMO, destination=tmp_path / "r.html")
    assert not list(tmp_path.iterdir())


def test_a_report_imports_no_matplotlib_and_writes_no_weights_to_memory(tmp_path):
    program = (
        "import sys, milblob\nmilblob.report(sys.argv[1], destination=sys.argv[2], values=False)\n"
        "assert not {'matplotlib', 'mpld3', 'milblob.compressing.compress'} & set(sys.modules)"
    )
    run_child(program, str(DEMO), str(tmp_path / "r.html"))


def test_an_error_while_it_is_written_leaves_nothing(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OSError("disk full")

    monkeypatch.setattr("milblob.reporting.report.write_at", fail)
    with pytest.raises(OSError, match="disk full"):
        milblob.report(DEMO, destination=tmp_path / "r.html")
    assert not list(tmp_path.iterdir())
