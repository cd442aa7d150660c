"""Downloads of the page: from a job that was cancelled, from a server that was restarted, and refused ones."""

from __future__ import annotations

import json

import pytest

from tests.web.page_case import select_methods, wait_for, wait_idle
from tests.web.page_fixtures import SHOWN, TIMEOUT_MS, address, app, browser, visit  # noqa: F401
from tests.web.web_case import running_server, small_app

pytestmark = pytest.mark.slow

TINY = "?model=tiny&method=attcat"
PART = "#image-panel [data-part=downloads]"
MANIFEST = f"{PART} button:has-text('Manifest')"


def methods_of(page, button=MANIFEST):
    """Download the manifest and return its methods."""
    with page.expect_download() as download:
        page.click(button)
    assert download.value.suggested_filename.endswith("manifest.json")
    return set(json.loads(download.value.path().read_text())["methods"])


def test_a_cancelled_job_is_requested_again(visit):  # noqa: F811
    page = visit(TINY)
    select_methods(page, "transformer_mm")
    wait_idle(page)
    requests, events = [], []
    page.on("request", lambda one: requests.append(one) if one.url.endswith("/api/explain") else None)

    def cancel_first(route):
        events.append(route.request.url)
        if len(events) > 1:
            return route.continue_()
        end = json.dumps({"id": "x", "state": "cancelled"})
        return route.fulfill(content_type="text/event-stream", body=f"event: end\ndata: {end}\n\n")

    page.route("**/events", cancel_first)
    assert methods_of(page) == {"attcat", "transformer_mm"}
    assert len(requests) == 2 <= len(events)  # a check of the maps may have begun


def test_a_refused_download_is_said(visit):  # noqa: F811
    page = visit(TINY)
    error = {"error": {"what": "too many files are drawn", "fix": "Wait a moment."}}
    page.route("**/manifest.json", lambda route: route.fulfill(status=429, json=error))
    page.click(MANIFEST)
    wait_for(page, "!document.querySelector('#alert').hidden")
    assert "Too many files are drawn. Wait a moment." in page.inner_text("#alert")
    assert page.inner_text(f"{PART} .status") == ""
    page.unroute("**/manifest.json")
    assert methods_of(page) == {"attcat"}


def test_maps_are_downloaded_after_a_restart(browser):  # noqa: F811
    page = browser.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    with running_server(small_app()) as url:
        page.goto(f"{url}/{TINY}")
        page.wait_for_selector(SHOWN)
        wait_idle(page)
        assert methods_of(page) == {"attcat"}
    with running_server(small_app(), port=int(url.rpartition(":")[2])):
        assert methods_of(page) == {"attcat"}
        page.close()
