"""Fixtures for tests of the page: a server with small models, Chromium, windows, and a folder for screenshots."""

from __future__ import annotations

import os
import re
import shutil
import socket
import threading
from collections import deque
from pathlib import Path

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
uvicorn = pytest.importorskip("uvicorn", reason='the page needs the web extra: pip install "vitrail[web]"')

from tests.text.texts import text_model  # noqa: E402
from vitrail.cli.serve import load_models  # noqa: E402
from vitrail.models.loaded import LoadedModel  # noqa: E402
from vitrail.models.preprocess import HALF, Preprocess  # noqa: E402
from vitrail.testing import tiny_vit  # noqa: E402
from vitrail.web.fastapi_app import make_app  # noqa: E402
from vitrail.web.served_model import serve_model  # noqa: E402

#: Time to wait for a state on a busy machine.
TIMEOUT_MS = 90_000
SHOWN = "#main-map canvas[data-shows]:not([data-shows=image])"
#: Class names of the photograph models, as long as those of ImageNet.
NAMES = (
    "American Staffordshire terrier, Staffordshire terrier, American pit bull terrier, pit bull terrier",
    "German short-haired pointer", "West Highland white terrier", "black-and-tan coonhound", "Chesapeake Bay retriever",
)  # fmt: skip


def photograph_model(name, **options):
    """A model of photographs whose forward pass takes milliseconds."""
    return serve_model(LoadedModel(tiny_vit(**options), Preprocess((32, 32), HALF, HALF, 0.875), NAMES, name), name)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """The application with four image models and a text model."""
    folder = tmp_path_factory.mktemp("models") / "reviews"
    names = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}
    model, tokenizer = text_model("bert", max_position_embeddings=64, num_labels=2, **names)
    model.float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    scenes, tagged, text = load_models(["scenes", "scenes-tagged", f"hf:{folder}"], [])
    return make_app([scenes, tagged, photograph_model("tiny"), photograph_model("tiny-2", seed=3), text])


@pytest.fixture(scope="module")
def address(app):
    """The URL of the running application."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{sock.getsockname()[1]}/"
        server.should_exit = True
        thread.join(20)


@pytest.fixture(scope="module")
def browser():
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        one = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield one
        one.close()


class Visits:
    """The windows of a test: what they requested last, and what they say; shown if the test fails."""

    def __init__(self) -> None:
        self.pages = []
        self.requests: deque[str] = deque(maxlen=30)

    def watch(self, page):
        self.pages.append(page)
        for event in ("request", "requestfinished", "requestfailed"):
            page.on(event, lambda one, event=event: self.requests.append(f"{event} {one.method} {one.url}"))

    def describe(self):
        """The last requests, and the messages and the status of each window."""
        script = """() => ["#alert:not([hidden])", "#notice:not([hidden])", "#connection:not([hidden])", ".status"]
          .flatMap((selector) => [...document.querySelectorAll(selector)].map((one) => one.textContent.trim()))
          .filter(Boolean)"""
        shown = [f"{page.url} says {page.evaluate(script)}" for page in self.pages if not page.is_closed()]
        return "\n".join([*self.requests, *shown])


@pytest.fixture
def visit(browser, address, request):
    """Open the page in a new window; unexpected errors and requests to other hosts fail the test."""
    problems: list[str] = []
    contexts = []
    visits = request.node.visits = Visits()

    def go(path="", before=lambda page: None, wait=SHOWN, context=None, **options):
        if context is None:
            context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
            contexts.append(context)
            context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        visits.watch(page)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on(
            "request", lambda request: problems.append(request.url) if not request.url.startswith(address) else None
        )
        before(page)
        page.goto(address + path)
        if wait:
            page.wait_for_selector(wait)
        return page

    yield go
    for context in contexts:
        context.close()
    expected = re.compile(r"status of 4\d\d|^blob:|^data:")
    assert not [text for text in problems if not expected.search(text)]


@pytest.fixture(scope="session")
def screenshots(request, tmp_path_factory):
    """A folder for screenshots, named at the end of the run; $VITRAIL_SCREENSHOTS sets it."""
    given = os.environ.get("VITRAIL_SCREENSHOTS")
    folder = Path(given) if given else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
    reporter = request.config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None:
        reporter.ensure_newline()
        reporter.write_line(f"screenshots of the page: {folder}")
