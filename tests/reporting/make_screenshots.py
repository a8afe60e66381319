"""Write the pictures of docs/report.md: python tests/reporting/make_screenshots.py docs (with tests/support on PYTHONPATH)."""

import pathlib
import sys
import tempfile

import milblob
from paths import DEMO
from reports import Page, browser


def main(folder):
    with tempfile.TemporaryDirectory() as made, browser() as opened:
        small, path = pathlib.Path(made) / "Small.mlpackage", pathlib.Path(made) / "report.html"
        found = milblob.compress(DEMO, small, milblob.Goal(size=60_000), scope=milblob.Scope(min_size=64))
        frontier = milblob.compress_frontier(DEMO, scope=milblob.Scope(min_size=64))
        milblob.report(DEMO, small, destination=path, plan=found, frontier=frontier)
        for scheme, section in (
            ("light", "map"),
            ("dark", "comparison"),
            ("light", "compression"),
            ("dark", "weights"),
        ):
            shown = Page(opened).open(path, color_scheme=scheme)
            if section == "map":
                shown.page.select_option("#map-colour", "error")
            box = shown.page.locator(f"#{section}").bounding_box()
            clip = {"x": 0, "y": box["y"], "width": 1280, "height": min(box["height"] + 16, 640)}
            shown.page.screenshot(path=folder / f"report-{section}.png", clip=clip, full_page=True)
            shown.close()
        shown = Page(opened).open(path)
        shown.page.locator("#worst-table .name").first.click()
        shown.page.locator("dialog").screenshot(path=folder / "report-weight.png")
        shown.close()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
