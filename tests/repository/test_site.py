"""The site in Chromium: no violations that axe finds, also with the search open, and the search answers questions."""

# ruff: noqa: F811 - fixtures are imported
from __future__ import annotations

import functools
import http.server
import threading
from pathlib import Path

import pytest

pytest.importorskip("material", reason="mkdocs-material is not installed: uv sync --group docs")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

from mkdocs.commands.build import build  # noqa: E402
from mkdocs.config import load_config  # noqa: E402

from tests.web.page_fixtures import TIMEOUT_MS, browser  # noqa: E402, F401

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
#: Pages that are built. The ranks of the search depend on all pages, so this checks the tags and not the whole order.
PAGES = ("index.md", "trust.md", "models.md", "methods/index.md")


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The URL of some pages of the site."""
    folder = tmp_path_factory.mktemp("site")
    kept = "".join(f"!/{page}\n" for page in PAGES)
    config = load_config(
        str(ROOT / "mkdocs.yml"), site_dir=str(folder), nav=None, exclude_docs=f"*.md\n*.ipynb\nhooks/\n{kept}"
    )
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(folder))
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def violations(page):
    page.wait_for_function("() => !document.querySelector('nav.md-nav[aria-labelledby]')")  # access.js has run
    found = axe.Axe().run(page).response["violations"]
    return [(one["id"], one["nodes"][0]["html"][:120]) for one in found]


def test_site_has_no_violations_and_its_search_answers(browser, site):
    context = browser.new_context(viewport={"width": 1280, "height": 860}, reduced_motion="reduce")
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    for name in ("trust.html", "index.html"):
        page.goto(site + name)
        assert not violations(page), name
    for question, answer in {"can I trust this map": "trust", "how do I use my own model": "models"}.items():
        page.goto(site)
        page.click(".md-search__input")
        page.keyboard.insert_text(question)
        page.keyboard.press("End")  # the search listens to keys
        page.wait_for_selector(".md-search-result__item a")
        first = page.locator(".md-search-result__item > a").first
        assert first.get_attribute("href").startswith(f"{site}{answer}.html"), question
    assert not violations(page), "search"
    page.emulate_media(color_scheme="dark")
    page.goto(site)
    assert not violations(page), "dark"
    context.close()
