"""Reports in Chromium: what is drawn, sorted, filtered and zoomed; keyboard, colours, policy, accessibility, size."""

import importlib.util
import pathlib

import numpy as np
import pytest

import milblob
from paths import DEMO
from peers import WITHOUT
from reports import Page, browser, weights_of
from thorough import sized

pytest.importorskip("mpld3", reason=WITHOUT["mpld3"])

SCRIPT = "<script>alert(1)</script>"
LONG = "x" * 10_000


@pytest.fixture(scope="module")
def opened():
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A report of the demo beside one in fewer bits, with everything that a report can show."""
    folder = tmp_path_factory.mktemp("demo")
    found = milblob.compress(
        DEMO, folder / "Small.mlpackage", milblob.Goal(size=60_000), scope=milblob.Scope(min_size=64)
    )
    frontier = milblob.compress_frontier(DEMO, scope=milblob.Scope(min_size=64))
    milblob.report(DEMO, folder / "Small.mlpackage", destination=folder / "r.html", plan=found, frontier=frontier)
    return folder / "r.html"


@pytest.fixture(scope="module")
def tab(opened):
    page = Page(opened)
    yield page
    page.close()


@pytest.fixture
def shown(tab, demo):
    yield tab.open(demo)
    assert tab.messages == [] and tab.requests == [demo.as_uri()]


def test_everything_is_drawn(shown):
    titles = shown.page.locator("main > section > h2").all_text_contents()
    assert titles == ["Models", "Map of bytes", "Comparison", "Compression", "Weights", "Findings"]
    for chart in ("#treemap svg", "#comparison > svg", "#compression > svg", "#weights-table .mini"):
        box = shown.page.locator(chart).first.bounding_box()
        assert box["width"] > 50 and box["height"] > 10
    assert shown.page.locator("#compression .chosen").count() == 1
    assert shown.names() == list(milblob.load(DEMO))


def test_sorting_by_each_column_and_back(shown, demo):
    rows = weights_of(demo)
    by_std = sorted(rows, key=lambda name: -rows[name]["figures"]["std"])
    shown.page.get_by_role("button", name="std", exact=True).click()
    assert shown.names() == by_std
    assert shown.page.locator("#weights-table th[aria-sort=descending]").inner_text().startswith("std")
    shown.page.get_by_role("button", name="std", exact=True).click()
    assert shown.names() == sorted(rows, key=lambda name: rows[name]["figures"]["std"])
    shown.page.locator("#weights-table th button", has_text="name").click()
    assert shown.names() == sorted(rows)


def test_the_worst_weight_is_first(shown):
    decibels = [float(text.removesuffix(" dB")) for text in shown.column("SQNR", "worst-table") if text != "-"]
    assert decibels == sorted(decibels) and len(decibels) > 10


def test_the_filter_applies_as_one_types(shown, demo):
    field = shown.page.locator("#weights-table-filter")
    field.press_sequentially("NORM1")
    wanted = [name for name in weights_of(demo) if "norm1" in name]
    assert shown.names() == wanted
    assert f"of {len(wanted)} weights" in shown.page.locator("#weights [role=status]").inner_text()
    field.fill("no such weight")
    assert shown.names() == []
    field.fill("")
    assert len(shown.names()) == len(weights_of(demo))


def test_columns_are_chosen(shown):
    heads = shown.page.locator("#weights-table thead th")
    assert "operation" not in heads.all_text_contents()
    shown.page.locator("#weights details summary").click()
    shown.page.locator("#weights .choices label", has_text="operation").locator("input").check()
    assert "operation" in heads.all_text_contents() and set(shown.column("operation")) == {"const"}
    shown.page.locator("#weights .choices label", has_text="dtype").locator("input").uncheck()
    assert "dtype" not in heads.all_text_contents()


def test_the_map_zooms_by_mouse_and_by_keyboard(shown):
    page = shown.page
    cell = page.locator("#treemap [role=button]", has_text="layers").first
    cell.click(position={"x": 20, "y": 8})
    trail = page.locator("nav[aria-label=Scope] li")
    assert trail.all_text_contents()[-1].startswith("layers") and trail.count() == 2
    page.keyboard.press("Escape")
    assert trail.count() == 1
    before = page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") != before
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert trail.count() == 2
    for _ in range(6):  # down to a weight, whose page opens
        if page.locator("dialog[open]").count():
            break
        page.keyboard.press("End")
        page.keyboard.press("Enter")
    assert page.locator("dialog[open] h2").count() == 1
    page.keyboard.press("Escape")
    page.locator("nav[aria-label=Scope] button").first.click()
    assert trail.count() == 1


@pytest.mark.parametrize("colour", ["bits", "error"])
def test_the_map_has_other_colours(shown, colour):
    def classes():
        return shown.page.evaluate("[...document.querySelectorAll('#treemap rect')].map(r => r.getAttribute('class'))")

    before = classes()
    shown.page.select_option("#map-colour", colour)
    assert classes() != before and any(one.startswith("s") and one != "scope" for one in classes())
    assert "dB" in shown.page.locator(".legend").inner_text() or colour == "bits"


def test_the_page_of_a_weight(shown, demo):
    name, row = list(weights_of(demo).items())[3]
    shown.page.locator("#weights-table .name", has_text=name).first.focus()
    shown.page.keyboard.press("Enter")
    dialog = shown.page.locator("dialog[open]")
    assert dialog.locator("h2").inner_text() == name
    assert shown.page.evaluate("document.activeElement.id") == "weight-title"
    text = dialog.inner_text()
    assert (
        row["file"] in text
        and row["consumers"][0][1] in text.replace("\n", "") + dialog.locator("svg").last.text_content()
    )
    assert dialog.locator("svg").count() >= 2 and "Statistics" not in shown.messages
    assert shown.page.url.endswith("#weight-3")
    shown.page.locator("#weight-close").click()
    assert not dialog.count()


def test_a_link_to_a_weight_opens_its_page(tab, demo):
    page = tab.open(demo, fragment="#weight-2").page
    assert page.locator("dialog[open] h2").inner_text() == list(weights_of(demo))[2]


def test_hostile_names_are_shown_as_text(tab, tmp_path):
    names = [SCRIPT, "<img src=x onerror=alert(1)>", "a\u202eb", LONG, "</script>", "&amp;", "${alert(1)}"]
    arrays = {name: np.arange(6, dtype=np.float32).reshape(2, 3) for name in names}
    path = tmp_path / "<b onclick=1>r.html"
    milblob.report(arrays, destination=path)
    page = tab.open(path)
    assert page.names() == [name.replace("\u202e", "\\u202e") for name in names]
    assert page.page.locator("main img, main script, main b").count() == 0
    for number in range(len(names)):
        page.page.locator("#weights-table .name").nth(number).click()
        assert page.page.locator("dialog[open] h2").inner_text() == page.names()[number]
        page.page.keyboard.press("Escape")
    assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.messages == [] and len(page.requests) == 1


def test_the_policy_stops_scripts_styles_and_requests(tab, demo):
    page = tab.open(demo)
    found = page.page.evaluate(
        """async () => {
            const script = document.createElement("script");
            script.append("window.ran = true");
            let typed = false;
            try { document.body.append(script); } catch { typed = true; }
            const element = document.createElement("p");
            element.setAttribute("style", "color: rgb(1, 2, 3)");
            document.body.append(element);
            const fetched = await fetch("data:text/plain,x").then(() => true, () => false);
            return [window.ran === true, getComputedStyle(element).color === "rgb(1, 2, 3)", fetched];
        }"""
    )
    assert found == [False, False, False] and page.messages


def contrast(page, selector):
    """The least contrast of text with what is beneath it, as WCAG computes it."""
    return page.evaluate(
        """selector => {
            const channel = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
            const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number); return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b); };
            const solid = (e) => { while (e) { const c = getComputedStyle(e).backgroundColor; if (!c.startsWith("rgba(0, 0, 0, 0)")) return c; e = e.parentElement; } return "rgb(255, 255, 255)"; };
            return Math.min(...[...document.querySelectorAll(selector)].map((e) => {
                const inMap = e.closest(".map");
                const text = light(getComputedStyle(e)[e instanceof SVGElement ? "fill" : "color"]);
                const under = light(inMap ? getComputedStyle(e.parentElement.querySelector("rect")).fill : solid(e));
                return (Math.max(text, under) + 0.05) / (Math.min(text, under) + 0.05);
            }));
        }""",
        selector,
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_colour_schemes_have_enough_contrast(tab, demo, scheme):
    page = tab.open(demo, color_scheme=scheme)
    background = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}[scheme]
    for colour in ("dtype", "bits", "error"):
        page.page.select_option("#map-colour", colour)
        assert contrast(page.page, "svg text") >= 4.5
    assert contrast(page.page, "td, th, th button, p, dd, dt, a:not(.skip), button, caption, .muted, label") >= 4.5
    other = {"light": "dark", "dark": "light"}[scheme]
    page.page.select_option("#theme", other)
    assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") != background
    assert page.messages == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(opened, demo, scheme):
    pytest.importorskip("axe_playwright_python", reason=WITHOUT["axe_playwright_python"])
    spec = importlib.util.find_spec("axe_playwright_python")
    axe = (pathlib.Path(spec.origin).parent / "axe.min.js").read_text("utf-8")
    # The policy allows no other script than those of the report, so axe runs in a page that ignores it.
    page = Page(opened, bypass_csp=True).open(demo, color_scheme=scheme)
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    page.page.locator("#weights-table-filter").fill(sized("norm1", ""))  # rows are alike
    for step in ("page", "dialog"):
        if step == "dialog":
            page.page.locator("#weights-table .name").first.click()
        page.page.evaluate(axe)
        # Selectors and full rows of what passes would take more than half of the time.
        options = {"runOnly": tags, "resultTypes": ["violations"], "selectors": False}
        found = page.page.evaluate("options => axe.run(document, options)", options)
        wrong = {one["id"]: [node["html"][:200] for node in one["nodes"]][:3] for one in found["violations"]}
        assert wrong == {} and len(found["passes"]) > 20, step
    page.close()


def test_all_rows_are_printed(tab, tmp_path):
    arrays = {f"w{number}": np.arange(4.0) for number in range(200)}
    milblob.report(arrays, destination=tmp_path / "r.html")
    page = tab.open(tmp_path / "r.html", color_scheme="dark")
    assert len(page.names()) == 100
    page.page.get_by_role("button", name="Next").click()
    assert page.names()[0] == "w100"
    page.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert len(page.names()) == 200
    page.page.emulate_media(media="print", color_scheme="dark")
    assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.page.locator(".tools").first.is_visible()
    page.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert len(page.names()) == 100


def test_many_weights(tab, tmp_path):
    count = sized(600, 20_000)
    random = np.random.default_rng(9)
    arrays = {
        f"encoder/layers_{at // 6}_attention_{at % 6}_weight": random.normal(size=(16, 8)).astype(np.float16)
        for at in range(count)
    }
    milblob.report(arrays, destination=tmp_path / "r.html")
    page = tab.open(tmp_path / "r.html")
    print(f"interactive after {page.ready_ms} ms")  # docs/report.md has the figure of an idle machine
    assert page.ready_ms < 20 * 1000 and len(page.names()) == 100
    page.page.locator("#weights-table-filter").fill(f"layers_{count // 6 - 1}_")
    assert len(page.names()) == 6
    cells = page.page.locator("#treemap [role=button]").count()
    assert 10 < cells <= count + count // 6 + 2
    assert page.messages == []


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "source", [{}, {"w": np.full((3, 4), np.nan, np.float16)}, {"s": np.float32(3)}, {"e": np.empty((0, 4))}]
)
def test_odd_sources_are_drawn(tab, tmp_path, source):
    milblob.report(source, destination=tmp_path / "r.html")
    page = tab.open(tmp_path / "r.html")
    assert page.names() == list(source)
    for number in range(len(source)):
        page.page.locator("#weights-table .name").nth(number).click()
        page.page.keyboard.press("Escape")
    notes = page.page.locator("#models .bad").all_text_contents()
    assert notes == {(): ["This model has no weights."], ("w",): ["1 weights hold NaN or infinities."]}.get(
        tuple(source), []
    )
    assert page.messages == []
