"""The page in Chromium: removing patches, links that do not apply, the drawer, focus, reloads, pins and examples."""

# ruff: noqa: F811 - fixtures are imported
from __future__ import annotations

import re

import pytest

from tests.web.page_case import wait_for, wait_idle
from tests.web.page_fixtures import address, app, browser, visit  # noqa: F401

pytestmark = pytest.mark.slow

TINY = "?model=tiny&sample=cat&classes=0&method=leadlight"
EVALUATED = "#removal-result[data-state=done]"


def test_the_slider_removes_patches_and_shows_the_numbers_of_the_server(visit):
    page = visit(TINY)
    page.wait_for_selector(EVALUATED)
    with page.expect_request("**/api/remove") as sent:
        page.evaluate(
            "s => { s.value = '50'; s.dispatchEvent(new Event('input')); }", page.query_selector("#removal-share")
        )
    body = sent.value.post_data_json
    assert len(body["removed"]) == 8, "half of 16 patches"
    found = page.request.post(sent.value.url, data=body).json()
    expected = f"{100 * found['without'][0]:.1f}"
    wait_for(page, "document.querySelector('#removal-result').textContent.includes('→ ' + given)", expected)
    assert f"elsewhere {100 * found['elsewhere'][0]:.1f}" in page.inner_text("#removal-result")
    assert "50 % (8 of 16 patches)" in page.inner_text("#removal-share-text").replace("\u00a0", " ")
    box = page.locator("#removal-brush").bounding_box()
    with page.expect_request("**/api/remove") as sent:
        page.locator("#removal-brush").click(position={"x": box["width"] / 8, "y": box["height"] / 8})
    assert (0 in sent.value.post_data_json["removed"]) != (0 in body["removed"])
    assert page.is_visible("#removal-reset")
    page.focus("#removal-brush")
    with page.expect_request("**/api/remove"):
        page.keyboard.press("Space")
    assert re.search(r"Row 3, column 3: (removed|kept)", page.text_content("#removal-live"))


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("?model=tiny&sample=cat&method=nosuch&method=rollout", "Method nosuch not available for tiny."),
        ("?model=tiny&sample=cat&classes=999999", "Class 999999 not found: tiny has classes 0 to 4."),
        ("?model=tiny&sample=cat&text=hello", "The text of this link is not explained"),
    ],
)
def test_what_a_link_asks_for_in_vain_is_said(visit, search, message):
    page = visit(search)
    page.wait_for_selector("#alert.info:not([hidden])")
    assert message in page.inner_text("#alert")
    page.click("#alert button")
    assert page.is_hidden("#alert")


def test_a_right_link_says_nothing(visit):
    page = visit(TINY)
    wait_idle(page)
    assert page.is_hidden("#alert")


@pytest.mark.parametrize("viewport", [{"width": 390, "height": 844}, {"width": 640, "height": 450}])
def test_map_and_verdict_come_first_on_a_narrow_screen(visit, viewport):
    page = visit(TINY, viewport=viewport)
    page.wait_for_selector("#main-figure .verdict")
    figure, check = (page.locator(name).bounding_box() for name in ("#main-map", ".check-box"))
    assert figure["y"] < 260
    assert check["y"] < 844
    verdict, drawer = (page.locator(name).bounding_box() for name in ("#main-figure .verdict", "#drawer-toggle"))
    assert verdict["y"] + verdict["height"] < drawer["y"], "the verdict is seen without scrolling"
    assert page.is_hidden(".sidebar >> nth=0")
    page.keyboard.press("Tab")
    page.click("#drawer-toggle")
    assert page.get_attribute("#drawer-toggle", "aria-expanded") == "true"
    assert page.evaluate("document.activeElement.closest('.sidebar') !== null")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "drawer-toggle"
    assert page.is_hidden(".sidebar >> nth=0")


def test_focus_stays_after_the_class_search_and_compare_is_written_out(visit):
    page = visit(TINY)
    wait_idle(page)
    assert page.inner_text("#image-panel .compare >> nth=0") == "compare"
    page.fill("#image-panel [role=combobox]", "coonhound")
    page.keyboard.press("Enter")
    assert "coonhound" in page.evaluate("document.activeElement.textContent")


def test_a_dropped_link_is_answered(visit):
    page = visit(TINY)
    wait_idle(page)
    page.evaluate(
        """() => {
          const transfer = new DataTransfer();
          transfer.setData("text/uri-list", "https://example.org/cat.jpg");
          document.dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
        }"""
    )
    assert "A link was dropped" in page.inner_text("#alert")


def test_a_reload_continues_the_running_job(visit):
    ids = []

    def keep_ids(page):
        page.on("response", lambda r: ids.append(r.json()["id"]) if r.url.endswith("/api/explain") else None)

    running = ".map-card[data-state=running]"
    page = visit("?model=scenes&sample=scene-1&classes=0&method=rise:masks=9900", keep_ids, running)  # takes minutes
    page.reload()
    page.wait_for_selector(running)
    assert len(ids) >= 2
    assert ids[-1] == ids[-2]
    page.click("button[aria-label^='Cancel']")


def test_summary_pins_examples_and_own_model(visit):
    page = visit(TINY)
    page.wait_for_selector("#main-figure .verdict")
    assert re.match(r"Most relevance: rows? \d", page.text_content("#main-map-summary"))
    page.click("#pin")
    assert page.locator(".pin .verdict").count() == 1
    assert page.get_attribute(".pin a", "href") == page.url
    page.click("#examples a:has-text('A map that fails')")
    page.wait_for_selector(".map-card[data-method=random]")
    wait_idle(page)
    page.click("#pin")
    assert page.locator(".pin").count() == 2
    page.click(".own-model summary")
    assert "vitrail.serve(model)" in page.inner_text(".own-model")


def test_region_of_a_known_map(visit):
    page = visit(TINY)
    region = page.evaluate(
        """async () => {
          const { mainRegion } = await import("/static/summary.js");
          const values = new Float32Array(100).fill(0.1);
          for (const row of [4, 5, 6]) for (const column of [1, 2, 3]) values[10 * row + column] = 1;
          const map = { rows: 10, columns: 10, values, unit: values };
          return mainRegion(map, [10, 10]);
        }"""
    )
    share = region.pop("share")
    assert region == {"top": 5, "left": 2, "bottom": 7, "right": 4}
    assert share == pytest.approx(9 / (9 + 9.1), rel=1e-5)


def test_the_tour_can_be_skipped_and_does_not_come_back(visit):
    page = visit(TINY)
    wait_idle(page)
    page.click("#tour-start")
    assert page.is_visible(".tour")
    page.keyboard.press("Escape")
    assert page.is_hidden(".tour")
    page.reload()
    wait_idle(page)
    assert page.is_hidden("#tour-start")
