"""Reports as tests read them: the data in the file, its policy, and the file in a real browser."""

import base64
import contextlib
import hashlib
import html
import json
import re
import shutil

import pytest

from children import tool_environment
from peers import WITHOUT

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def data_of(path):
    """The document that the page shows."""
    text = path.read_text("utf-8")
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])


def weights_of(path):
    """{name of a weight: its row as a dict, with `figures` by name}."""
    table = data_of(path)["weights"]
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    for row in rows:
        found = row["statistics"]
        row["figures"] = None if found is None else dict(zip(table["statistics"], found, strict=True))
    return {row["name"]: row for row in rows}


def comparison_of(path):
    """{name of a weight: the row of its difference}."""
    table = data_of(path)["comparison"]
    return {row[0]: dict(zip(table["columns"], row, strict=True)) for row in table["rows"]}


def policy_of(path):
    """{directive: its values} of the Content-Security-Policy."""
    found = re.search(r'<meta http-equiv="Content-Security-Policy" content="(.*?)">', path.read_text("utf-8"))
    parts = [part.split() for part in html.unescape(found[1]).split(";")]
    return {name: values for name, *values in parts}


def digest(text):
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@contextlib.contextmanager
def browser():
    """Chromium of the system, through Playwright; skips where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason=WITHOUT["playwright"])
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(WITHOUT["chromium"])
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu"]
        opened = playwright.chromium.launch(executable_path=found, args=options, env=tool_environment())
        yield opened
        opened.close()


class Page:
    """A tab that shows one report after another: opening a tab takes longer than most tests.

    Attributes:
        page: Playwright's.
        messages: what the console said of the last report, and errors of scripts.
        requests: all that it requested, the file itself included.
    """

    def __init__(self, opened, **options):
        self.page = opened.new_page(viewport={"width": 1280, "height": 900}, **options)
        self.messages, self.requests = [], []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, path, color_scheme="light", fragment=""):
        """Load a report as a tab that had none before does; return this tab."""
        self.page.goto("about:blank")
        self.page.emulate_media(media="null", color_scheme=color_scheme)
        self.messages.clear()
        self.requests.clear()
        self.page.goto(path.as_uri() + fragment)
        self.ready_ms = int(self.page.evaluate("document.documentElement.dataset.ready"))
        return self

    def names(self, table="weights-table"):
        """The names in the rows of a table, as they are shown."""
        return self.page.locator(f"#{table} tbody .name").all_text_contents()

    def column(self, label, table="weights-table"):
        """The cells of one column."""
        heads = [text.strip() for text in self.page.locator(f"#{table} thead th").all_text_contents()]
        return self.page.locator(f"#{table} tbody td:nth-child({heads.index(label) + 1})").all_text_contents()

    def close(self):
        self.page.close()
