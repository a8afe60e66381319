"""Results of the benchmarks: repeated, merged, kept for each kind of machine, and shown side by side, with a plot."""

import json
import xml.etree.ElementTree

import pytest

from bench_modules import bench_modules


@pytest.fixture(scope="module")
def bench():
    with bench_modules() as found:
        yield found


def row_of(name, role, median, **more):
    return {"job": "carry", "row": name, "role": role, "file": "bench_carry", "rounds": 5, "median": median,
            "q1": median * 0.9, "q3": median * 1.1, "min": median * 0.9, **more}  # fmt: skip


@pytest.fixture
def made_up():
    """Results in which a rival is ahead and a target is missed."""
    header = {
        "date": "2026-01-01 00:00 UTC", "cpu": "abacus", "cores": 3, "memory_nbytes": 1 << 30, "system": "Linux 1",
        "python": "CPython 3.11", "huge_pages": "never", "load_average": 0.5, "versions": {"numpy": "2.0"}, "scale": 1.0,
        "milblob": {"version": "9.9", "tier": "plain", "tiers": "plain"},
    }  # fmt: skip
    rows = [
        row_of("milblob", "milblob", 0.030, targets={"bare": 2.0}, nbytes=3_000_000, peak_nbytes=5 << 20, anonymous_nbytes=1 << 20),
        row_of("quick", "rival", 0.020, note="drops a stone"),
        row_of("slow|er", "rival", 3.0),
        row_of("bare", "limit", 0.010),
        row_of("half", "aside", 0.001),
    ]  # fmt: skip
    absent = [{"job": "carry", "row": "lame", "file": "bench_carry", "reason": "lame is not installed"}]
    return {
        "format": 1,
        "header": header,
        "abouts": {"bench_carry": "Stones.\n\nMany of them."},
        "rows": rows,
        "absent": absent,
    }


def test_page_lists_rows_where_a_rival_is_faster(bench, made_up, monkeypatch):
    report = bench["report"]
    monkeypatch.setattr(report, "GLANCE", ("bench_carry",))
    found = bench["results"].Results(made_up)
    page, rows = report.page([found]), report.rows_page([found])
    summary = "| carry | 30 ms | quick | 1.5x slower | 3x of 10 ms | 5.0 MiB (1.0 MiB) |"
    for line in (
        "- abacus: in 1 of the 1 jobs that a rival can do.",
        "| carry: quick | 1.5x faster, 20 ms against 30 ms (drops a stone) |",
        summary,
        "All 1 jobs: `bench/results/rows.md`.",
        "- abacus: 0 of 1 targets are met.",
        "| carry: milblob: <= 2x of bare | **3x** |",
        "- carry: lame (`bench/bench_carry.py`): lame is not installed (abacus)",
        "## How each cost grows",
        "| CPU | abacus, 3 cores, 1 GiB of memory |",
        "from bench/results/abacus.json;",
    ):
        assert line in page, line
    assert page.index("## Where a rival is ahead") < page.index("## At a glance") < page.index("## Targets")
    for line in (
        summary,
        "Stones.\n\nMany of them.\n\n`make bench JOB=carry`, made by [bench/bench_carry.py](../bench_carry.py).",
        "| slow\\|er | 3 s ±10% |  | 300x |  |  |",
        "| half | 1 ms ±10% |  | 1/10 |  | for orientation |",
        "| CPU | abacus, 3 cores, 1 GiB of memory |",
        "(abacus.json)",
    ):
        assert line in rows, line
    made_up["rows"][0] |= {"median": 0.015, "q1": 0.015, "q3": 0.015}
    page = report.page([bench["results"].Results(made_up)])
    assert "in 0 of the 1 jobs" in page and "1 of 1 targets are met." in page


def other_machine(data, **of_job):
    """The same results of another machine and an older milblob, with other facts of the job."""
    other = json.loads(json.dumps(data))
    other["header"] |= {"cpu": "AMD EPYC (family 25, model 17)", "date": "2025-01-01 00:00 UTC"}
    other["runs"] = {
        "bench_carry": {"date": "2025-01-01 00:00 UTC", "version": "9.8", "load_average": 0.1, "seconds": 60}
    }
    for row in other["rows"]:
        row.update(of_job.get(row["row"], {}))
    return other


def test_machines_side_by_side(bench, made_up, monkeypatch):
    report, results = bench["report"], bench["results"].Results
    monkeypatch.setattr(report, "GLANCE", ("bench_carry",))
    other = other_machine(made_up, milblob={"median": 0.010}, bare={"median": 0.005, "start": 0.005, "end": 0.006})
    other["rows"] = [row for row in other["rows"] if row["row"] != "half"] + [
        row_of("fly", "milblob", 1.0) | {"job": "fly"}
    ]
    every = [results(made_up), results(other)]
    page, rows = report.page(every), report.rows_page(every)
    for line in (
        "| job | milblob, abacus | milblob, Zen 4 | best rival | milblob is, abacus | milblob is, Zen 4 | of the limit, abacus |"
        " of the limit, Zen 4 | peak (own) memory |",
        "| carry | 30 ms | 10 ms | quick | 1.5x slower | 2.0x faster | 3x of 10 ms | 2x of 5 ms | 5.0 MiB (1.0 MiB) |",
        "| date | 2026-01-01 00:00 UTC | 2025-01-01 00:00 UTC |",
        "- abacus: in 1 of the 1 jobs that a rival can do.\n- Zen 4: in 0 of the 1 jobs that a rival can do.",
        "| carry: milblob: <= 2x of bare | **3x** | 2x |",
        "- Zen 4: 1 of 1 targets are met.",
        "Measured on Zen 4 before 9.9: the rows of `bench_carry.py` (9.8).",
        "- carry: lame (`bench/bench_carry.py`): lame is not installed (abacus, Zen 4)",
    ):
        assert line in page, line
    assert "| half | 1 ms ±10% | - |" in rows and "| fly | - | 1 s | none |" in rows
    assert "Measured: Zen 4 on 2025-01-01 00:00 UTC, milblob 9.8." in rows


@pytest.mark.parametrize("movement", [1.19, 1.21, 1 / 1.19, 1 / 1.21])
def test_no_figure_of_a_job_whose_limit_moved_is_shown(bench, made_up, movement):
    results = bench["results"].Results
    moved = other_machine(made_up, bare={"start": 0.010, "end": 0.010 * movement, "repeats": 2})
    assert results(moved).jobs["carry"].is_settled is (1 / 1.2 < movement < 1.2)
    pages = [make([results(made_up), results(moved)]) for make in (bench["report"].page, bench["report"].rows_page)]
    if 1 / 1.2 < movement < 1.2:
        assert "- none" in pages[0] and all("20 ms against 30 ms (drops a stone) | -" not in page for page in pages)
        return
    assert "- carry (Zen 4): 21%, after 2 repeats" in pages[0] and "- Zen 4: 0 of 0 targets are met." in pages[0]
    assert "| carry: quick | 1.5x faster, 20 ms against 30 ms (drops a stone) | - |" in pages[0]
    assert (
        "| carry | 30 ms | - | quick | 1.5x slower | 3x of 10 ms |" in pages[1]
        and "| slow\\|er | 3 s ±10% | - |" in pages[1]
    )
    assert "carry: by 21%, after 2 repeats" in bench["table"].text(results(moved))
    pages = [make([results(moved)]) for make in (bench["report"].page, bench["report"].rows_page)]
    alone = [page.partition("## How each cost grows")[0] for page in pages]  # that has figures of its own
    assert all("30 ms" not in page and "20 ms" not in page for page in alone)


def moving(job, end, median=1.0):
    """The rows of a job whose limit took 1 s at its start."""
    rows = row_of("own", "milblob", median), row_of("bare", "limit", 1.0, start=1.0, end=end)
    return [row | {"job": job, "node": f"{job}-{row['row']}"} for row in rows]


def test_repeating_ends_and_keeps_the_least_movement(bench, monkeypatch):
    asked = []

    def measure(*parts):
        asked.clear()
        left = [{"rows": rows, "absent": [], "abouts": {}} for rows in parts]

        def run_file(path, folder, data, nodes=None):
            asked.append(nodes)
            return left.pop(0)

        monkeypatch.setattr(bench["run"], "run_file", run_file)
        found = bench["run"].settled(None, None, None, repeats=2)["rows"]
        return [(row["job"], row["row"], row["median"], row.get("repeats")) for row in found]

    steady = moving("steady", 1.1)
    quiet = [("steady", "own", 1.0, None), ("steady", "bare", 1.0, None)]
    assert measure(steady) == quiet and asked == [None]
    found = measure(moving("a", 1.5) + steady, moving("a", 1.3, 2.0), moving("a", 1.0, 3.0))
    assert found == [("a", "own", 3.0, 2), ("a", "bare", 1.0, 2), *quiet]
    assert asked == [None, ["a-own", "a-bare"], ["a-own", "a-bare"]]
    assert measure(moving("a", 0.5), moving("a", 1.0, 2.0))[0] == ("a", "own", 2.0, 1) and len(asked) == 2
    assert measure(moving("a", 1.5), moving("a", 1.3, 2.0), moving("a", 1.4, 3.0))[0] == ("a", "own", 2.0, 2)
    assert measure(moving("a", 1.5), moving("a", 1.0, 2.0)[1:], [])[0] == ("a", "own", 1.0, 2)  # a row has failed


def test_parts_of_a_run_are_merged(bench, made_up, tmp_path, monkeypatch):
    run, path = bench["run"], tmp_path / "folder" / "bench.json"
    monkeypatch.setattr(bench["machine"], "describe", lambda: made_up["header"])
    one = other_machine(made_up) | {"header": made_up["header"]}
    run.keeper(path)(one)
    assert json.loads(path.read_text()) == one
    fly = row_of("milblob", "milblob", 1.0) | {"job": "fly", "file": "bench_fly"}
    two = one | {"runs": {"bench_fly": {"version": "9.9"}}, "abouts": {}, "rows": [fly], "absent": []}
    run.keeper(path)(two)
    found = json.loads(path.read_text())
    assert found["rows"] == [*one["rows"], fly] and found["absent"] == one["absent"]
    assert found["runs"] == one["runs"] | two["runs"] and found["abouts"] == one["abouts"]
    run.keeper(path)(one | {"rows": one["rows"][:1], "absent": []})
    found = json.loads(path.read_text())
    assert found["rows"] == [fly, one["rows"][0]] and found["absent"] == []
    for key, other in (("cpu", "slide rule"), ("cores", 4), ("scale", 0.5)):
        monkeypatch.setattr(bench["machine"], "describe", lambda key=key, other=other: made_up["header"] | {key: other})
        with pytest.raises(SystemExit, match=f"bench.json: {key} of the results: expected .*; remove it"):
            run.keeper(path)
    assert json.loads(path.read_text()) == found


def test_results_are_kept_for_each_kind_of_machine(bench, made_up, tmp_path, monkeypatch):
    report, path = bench["report"], tmp_path / "bench.json"
    monkeypatch.setattr(report, "KEPT", tmp_path / "kept")
    one, two = other_machine(made_up) | {"header": made_up["header"]}, other_machine(made_up)
    for data in (one, two, two | {"rows": two["rows"][:1]}):
        path.write_text(json.dumps(data))
        report.keep(path)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["abacus.json", "zen4.json"]
    assert [found.kind.title for found in report.kept()] == ["abacus", "Zen 4"]  # the last one first
    assert json.loads((tmp_path / "kept" / "zen4.json").read_text())["rows"] == two["rows"][:1]
    for key, other, message in (
        ("scale", 0.02, "expected 1, got 0.02"),
        ("cores", 4, "zen4.json: cores of the results"),
    ):
        path.write_text(json.dumps(two | {"header": two["header"] | {key: other}}))
        with pytest.raises(SystemExit, match=message):
            report.keep(path)


@pytest.mark.parametrize(
    ("cpu", "title", "slug"),
    [
        ("AMD EPYC (family 26, model 2)", "Zen 5", "zen5"),
        ("AMD EPYC (family 25, model 17)", "Zen 4", "zen4"),
        ("AMD EPYC (family 25, model 1)", "Zen 3", "zen3"),
        ("AMD EPYC 7B12 (family 23, model 49)", "Zen 2", "zen2"),
        ("Intel(R) Xeon(R) Processor @ 2.60GHz (family 6, model 106)", "Ice Lake", "icelake"),
        (
            "Intel(R) Xeon(R) (family 6, model 999)",
            "Intel(R) Xeon(R) (family 6, model 999)",
            "intel-r-xeon-r-family-6-model-999",
        ),
        ("aarch64", "aarch64", "aarch64"),
        ("", "", "unknown"),
    ],
)
def test_kinds_of_machines(bench, cpu, title, slug):
    assert bench["machine"].kind(cpu) == (title, slug)


@pytest.fixture
def grown(bench):
    """Growth in which one operation is steep."""
    series = bench["results"].Series
    rows = [
        series("lift", [(n, n / 1000, 9) for n in (1, 10, 100)]), series("look", [(n, 0.5, 9) for n in (1, 10, 100)]),
        series("sort", [(n, n * n / 1000, 9) for n in (1, 10, 100)]), series("blink", [(1, 1e-6, 9), (10, 1e-3, 9)]),
    ]  # fmt: skip
    return bench["results"].Growth({"date": "2026-01-01 00:00 UTC"}, {"By number of stones": rows})


def test_growth_names_what_is_steep(bench, grown, tmp_path):
    grown.save(tmp_path / "growth.json")
    read = bench["results"].Growth.load(tmp_path / "growth.json")
    assert read == grown
    assert [(one.slope and round(one.slope, 2), one.is_steep) for one in read.groups["By number of stones"]] == [
        (1.0, False), (0.0, False), (2.0, True), (3.0, False),
    ]  # fmt: skip
    text = "\n".join(bench["report"].growth(read))
    assert "One is above 1.15:" in text and "| sort | 100 | 10 s | 2.00 |" in text and "| lift" not in text


def test_plots_are_an_image_with_a_line_for_each_series(bench):
    panels = [
        ("lift", [(n, n / 1000) for n in (1, 10, 100)], 1.0),
        ("a < b", [(1, 0.5), (10, 0.5)], 0.0),
        ("one", [(1, 2.0)], None),
    ]
    image = xml.etree.ElementTree.fromstring(bench["plot"].multiples(panels, "title"))
    name = "{http://www.w3.org/2000/svg}"
    lines = [line.get("points").split() for line in image.iter(f"{name}polyline")]
    steep, flat = ([float(point.split(",")[1]) for point in points] for points in lines)
    assert len(set(flat)) == 1 and steep[0] > steep[1] > steep[2]
    assert {"title", "lift  1.00", "a < b  0.00", "one"} <= {text.text for text in image.iter(f"{name}text")}


def test_other_formats_are_refused(bench, made_up):
    made_up["format"] = 2
    with pytest.raises(ValueError, match="expected 1, got 2"):
        bench["results"].Results(made_up)


def test_committed_pages_are_those_of_their_results(bench):
    report, every = bench["report"], bench["report"].kept()
    page = report.PAGE.read_text(encoding="utf-8")
    assert report.page(every) == page and report.rows_page(every) == report.ROWS.read_text(encoding="utf-8")
    files = {job.file for found in every for job in found.settled.values()}
    glance = page[page.index("## At a glance") : page.index("## Targets")]
    assert (
        glance.count("\n| ") == 1 + len(files.intersection(report.GLANCE)) > 10
    )  # the headings, and a job of each file


def test_committed_growth_is_that_of_its_results(bench):
    report = bench["report"]
    found = bench["results"].Growth.load(report.GROWTH)
    assert report.growth_page(found) == report.GROWTH.with_suffix(".md").read_text(encoding="utf-8")
    assert report.growth_image(found) == report.PLOT.read_text(encoding="utf-8")
    assert not [one.name for rows in found.groups.values() for one in rows if one.is_steep and not one.reason]
