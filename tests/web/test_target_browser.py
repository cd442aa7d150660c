"""Prompts, boxes, regions and frames on the page, in Chromium: address, keyboard, layout in both themes, axe."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from tests.web.page_case import wait_idle
from tests.web.page_fixtures import address, browser, screenshots, visit  # noqa: F401 - fixtures
from vitrail.cli.serve import load_models
from vitrail.web.fastapi_app import make_app

pytestmark = pytest.mark.slow

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
CYAN = "() => document.querySelector('#question').textContent.startsWith('What speaks for a cyan kite')"
FIRST = "document.querySelector('#image-panel .classes li.first .name').textContent"
CLIP = "?model=scenes-clip&sample=colours-1&prompt=a+kite&prompt=a+star&contrast=1&method=rollout"
DETR = "?model=scenes-detr&sample=colours-1&method=rollout"
SEG = "?model=scenes-seg&sample=colours-1&method=rollout"
SOUND = "?model=tones&sample=tones-1&method=rollout"
ANSWER = "?model=scenes-vlm&sample=colours-1&question=What+is+in+the+image%3F&method=transformer_mm"
PROMPT = "Jane has the cup. Kim has the kite. The sun is out. Gus has the comb. Leo has the tent. Leo has the"
VIDEO = "?model=scenes-video&sample=motion-1&method=rollout"


@pytest.fixture(scope="module")
def app():
    names = ["scenes", "scenes-clip", "scenes-detr", "scenes-seg", "scenes-video", "tones", "scenes-vlm", "lm-recall"]
    return make_app(load_models(names, []))


def parameters(page):
    return parse_qsl(urlsplit(page.url).query)


def chosen(page):
    return page.text_content("#image-panel .classes li.first .name")


def no_violations(page, name):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    assert page.evaluate(OVERFLOW) == 0, name
    found = axe.Axe().run(page).response["violations"]
    assert not [(one["id"], one["nodes"][0]["html"][:120]) for one in found], name


def test_prompts_are_typed_compared_and_part_of_the_address(visit):  # noqa: F811
    page = visit(CLIP)
    wait_idle(page)
    page.click("#check-toggle")  # checks are tested elsewhere
    assert page.text_content("#question").startswith("What speaks for a kite rather than a star?")
    page.fill("#image-panel .combobox input", "a cyan kite")
    page.keyboard.press("Enter")
    page.wait_for_function(CYAN)
    assert ("prompt", "a cyan kite") in parameters(page)
    assert page.locator("#prompt-words .word").all_text_contents()[-1] == "kite"
    page.fill("#image-panel .combobox input", "a zebra")
    page.keyboard.press("Enter")
    page.wait_for_selector("#alert:has-text('zebra')")
    page.wait_for_function(CYAN)
    page.go_back()
    page.wait_for_function("() => document.querySelector('#question').textContent.includes('a kite')")
    page.reload()
    page.wait_for_selector("#main-map canvas[data-shows=rollout]")
    assert chosen(page) == "a kite"


def test_boxes_are_chosen_on_the_image_and_in_the_list(visit):  # noqa: F811
    page = visit(DETR)
    wait_idle(page)
    assert page.locator(".box-button").count() == 2
    first = chosen(page)
    other = page.locator(".box-button:not(.first)")
    other.focus()
    page.keyboard.press("Enter")
    page.wait_for_function(
        "first => document.querySelector('.classes li.first .name').textContent !== first", arg=first
    )
    assert any(name == "box" for name, _ in parameters(page))
    page.go_back()
    page.wait_for_function(
        "first => document.querySelector('.classes li.first .name').textContent === first", arg=first
    )


def test_a_region_is_clicked_brushed_and_chosen_by_keys(visit):  # noqa: F811
    page = visit(SEG)
    wait_idle(page)
    bounds = page.locator("#main-map").bounding_box()
    place = lambda x, y: (bounds["x"] + x * bounds["width"], bounds["y"] + y * bounds["height"])  # noqa: E731
    page.mouse.click(*place(0.25, 0.65))
    page.wait_for_function("() => location.search.includes('point=')")
    assert dict(parameters(page))["point"] == "32,83"
    page.mouse.move(*place(0.2, 0.6))
    page.mouse.down()
    page.mouse.move(*place(0.3, 0.6), steps=6)
    page.mouse.up()
    page.wait_for_function("() => location.search.includes('patches=')")
    assert dict(parameters(page))["patches"].startswith("147-148")
    page.focus("#main-map")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_function("() => /patches=\\d+(&|$)/.test(location.search)")
    before = dict(parameters(page))["patches"]
    page.keyboard.press("ArrowRight")
    page.keyboard.press(" ")
    page.wait_for_function(f"() => location.search.includes('patches={before}-')")
    page.wait_for_selector(".region-outline path.first", state="attached")


def test_frames_are_scrubbed_and_the_frame_is_part_of_the_address(visit):  # noqa: F811
    page = visit(VIDEO)
    wait_idle(page)
    pixels = "document.querySelector('#main-map canvas').toDataURL().length"
    before = page.evaluate(pixels)
    page.focus("#frame-slider")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.querySelector('#frame-text').textContent === 'frame 4 of 12'")
    page.wait_for_function(f"() => {pixels} !== {before}")
    assert dict(parameters(page))["time"] == "3"
    page.reload()
    page.wait_for_function("() => document.querySelector('#frame-text').textContent === 'frame 4 of 12'")
    page.wait_for_selector("#removal-result[data-state=done]")
    assert "of 384 patches" in page.inner_text("#removal-share-text"), "all times"
    assert page.is_visible("#curves-patches")


def test_a_word_of_an_answer_is_chosen_and_the_removal_shows_what_it_depends_on(visit):  # noqa: F811
    page = visit(ANSWER)
    wait_idle(page)
    page.wait_for_selector(".written-word[aria-pressed=true]:has-text('cyan')")
    page.locator(".written-word", has_text="star").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".written-word[aria-pressed=true]:has-text('star')")
    assert dict(parameters(page))["token"].count(".") == 4, "the four words before it"
    page.wait_for_selector("#prompt-words .word:has-text('yellow')")
    page.fill("#image-panel .combobox input", "What colour is the star?")
    page.keyboard.press("Enter")
    page.wait_for_selector(".written-word[aria-pressed=true]:has-text('yellow')")
    page.wait_for_selector("#removal-result[data-state=done]:has-text('yellow')")
    assert dict(parameters(page))["question"] == "What colour is the star?"
    page.go_back()
    page.wait_for_selector(".written-word[aria-pressed=true]:has-text('star')")


def test_a_generated_word_is_chosen_and_part_of_the_address(visit):  # noqa: F811
    page = visit(f"?model=lm-recall&text={PROMPT.replace(' ', '+')}&method=attnlrp", wait=".text-card[data-state=done]")
    assert page.text_content("#text-question").startswith("Why does the model write tent?")
    page.click(".written-word >> nth=1")
    page.wait_for_selector(".written-word[aria-pressed=true] >> text='.'")
    page.wait_for_function("() => [...document.querySelectorAll('.text-card .word')].at(-1)?.textContent === 'tent'")
    assert ("token", "65.19") in parameters(page)
    page.reload()
    page.wait_for_selector(".written-word[aria-pressed=true] >> text='.'")
    page.wait_for_selector(".text-card .verdict")
    no_violations(page, "generated text")


@pytest.mark.parametrize(("width", "scheme", "names"), [
    (1280, "light", ("prompt", "question")), (390, "dark", ("region", "video")), (2000, "dark", ("sound", "boxes")),
])  # fmt: skip
def test_layout_and_axe_of_every_kind(visit, screenshots, width, scheme, names):  # noqa: F811
    paths = {"prompt": CLIP, "boxes": DETR, "region": SEG, "video": VIDEO, "sound": SOUND, "question": ANSWER}
    for name in names:
        window = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme, "reduced_motion": "reduce"}
        page = visit(paths[name], **window)
        wait_idle(page)
        page.screenshot(path=screenshots / f"{name}-{width}-{scheme}.png")
        no_violations(page, f"{name} {width}")
        page.close()
