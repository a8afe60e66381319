"""The site in a browser: every page is built without a warning, search finds `refit`, blocks of code can be copied."""

import functools
import http.server
import subprocess
import sys
import threading

import pytest

from paths import ROOT
from peers import WITHOUT
from reports import browser


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the site, served on loopback: its search fetches the index."""
    pytest.importorskip("sphinx", reason=WITHOUT["sphinx"])
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-b", "html", "docs", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.thorough
def test_search_finds_a_function_and_its_pages(site):
    with browser() as opened:
        page = opened.new_page()
        page.goto(f"{site}/search.html?q=refit")
        page.wait_for_selector("ul.search li a", timeout=30_000)
        found = page.locator("ul.search li a").all_text_contents()
        assert len(found) > 3 and any("fine-tune" in title.lower() for title in found)


@pytest.mark.thorough
def test_commands_are_copied_without_what_they_print(site):
    with browser() as opened:
        context = opened.new_context(permissions=["clipboard-read", "clipboard-write"])
        page = context.new_page()
        page.goto(f"{site}/tutorials/look.html")
        block = page.locator("div.highlight-console").first
        block.hover()
        block.locator("button.copybtn").click()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.strip() == "milblob ls examples/demo.mlpackage"
