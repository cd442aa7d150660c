"""The page in Chromium: what it says, its address, its views and its layout, at three widths, light and dark."""

# ruff: noqa: F811 - fixtures are imported
from __future__ import annotations

import re
from io import BytesIO

import pytest
from PIL import Image

from tests.text.texts import FILLERS
from tests.web.page_case import (
    CHECKSUM,
    canvas_checksum,
    random_image,
    select_methods,
    show_all_methods,
    wait_for,
    wait_idle,
    wait_redrawn,
)
from tests.web.page_fixtures import address, app, browser, screenshots, visit  # noqa: F401
from vitrail import __version__

pytestmark = pytest.mark.slow

#: Each width and each scheme; colours do not depend on the width, nor the layout on the scheme.
WINDOWS = (
    (390, "light"),
    (1600, "light"),
    pytest.param(1024, "dark", marks=pytest.mark.exhaustive),  # test_target_browser.py has dark windows
)
CHECKED = "#map-grid .map-card[data-method='{}'] .verdict"
TINY = "?model=tiny&sample=cat&classes=0&method=leadlight&method=rollout"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def image_upload(width, height, name="photo.jpg", **options):
    buffer = BytesIO()
    image = Image.radial_gradient("L").resize((width, height)).convert("RGB")
    image.save(buffer, format="JPEG", **options)
    return {"name": name, "mimeType": "image/jpeg", "buffer": buffer.getvalue()}


def parameters(page):
    return page.evaluate("Object.fromEntries(new URLSearchParams(location.search))")


# -- right and honest --------------------------------------------------------------------------------------------------


def test_check_runs_by_itself_and_marks_maps_no_better_than_chance(visit, screenshots):
    page = visit("?model=scenes&sample=scene-1&method=leadlight&method=random")
    assert page.get_attribute("#main-map canvas", "data-shows") == "leadlight", "the default method is shown large"
    for name in ("leadlight", "random"):
        page.wait_for_selector(CHECKED.format(name))
    assert page.inner_text(CHECKED.format("random")) == "no better than chance"
    assert "chance" in page.get_attribute(".map-card[data-method=random]", "class")
    assert page.inner_text(CHECKED.format("leadlight")) == "faithful"
    assert re.search(r"Removing the 10 % most relevant patches \w+ \w+ from", page.inner_text("#check"))
    page.click(".map-card[data-method=random] .map")
    wait_for(page, "document.querySelector('#main-map canvas').dataset.shows === 'random'")
    assert "chance" in page.get_attribute("#main-figure", "class")
    page.screenshot(path=screenshots / "check.png")
    page.click("#check button:has-text('Show Leadlight')")
    wait_for(page, "document.querySelector('#main-map canvas').dataset.shows === 'leadlight'")


def test_check_can_be_stopped_and_the_page_does_not_wait_for_it(visit):
    page = visit("?model=scenes&sample=scene-1&method=leadlight&method=gradtoken&method=vtranm&method=rollout")
    wait_idle(page)
    page.click("#check-toggle:has-text('Stop checking')")
    page.wait_for_selector("#check-toggle:has-text('Check the maps')")
    wait_for(page, "document.querySelector('#check').textContent.includes('Not checked') || "
             "document.querySelector('#check .verdict')")  # fmt: skip
    known = canvas_checksum(page)
    page.click(".classes li:nth-child(2) .class-button")
    wait_redrawn(page, [known])
    wait_idle(page)
    page.click("#check-toggle:has-text('Check the maps')")
    page.wait_for_selector(CHECKED.format("leadlight"))


def test_headline_says_what_is_explained_and_what_the_model_says(visit):
    page = visit("?model=scenes&sample=pair-2")
    wait_idle(page)
    predicted, other = (page.inner_text(f".classes li:nth-child({i}) .name") for i in (1, 2))
    pattern = rf"What speaks for {predicted}\?\s*\([\d.]+\s%, the model’s prediction\)"
    assert re.fullmatch(pattern, page.inner_text("#question"))
    page.click(".classes li:nth-child(2) .class-button")
    wait_for(page, "document.querySelector('#question em').textContent === given", other)
    pattern = rf"What speaks for {other}\?\s*\([\d.<]+\s%, the model says {predicted}, [\d.]+\s%\)"
    assert re.fullmatch(pattern, page.inner_text("#question"))
    assert page.title().startswith(f"What speaks for {other}?")
    page.focus("#image-panel [role=combobox]")
    page.keyboard.type("moon")
    page.keyboard.press("Enter")
    wait_for(page, "/moon\\?\\s*\\([<\\d.]+\\s%, the model says/.test(document.querySelector('#question').textContent)")


def test_contrast_is_a_map_of_its_own(visit):
    page = visit("?model=scenes&sample=pair-2&method=transformer_mm&method=vtranm")
    wait_idle(page)
    page.click("#image-panel .compare >> nth=0")
    page.wait_for_selector("#shown-classes:not([hidden])")
    wait_idle(page)
    assert ", and what for " in page.inner_text("#question")
    page.check("#shown-classes input[value=first]")
    wait_for(page, "new URLSearchParams(location.search).get('shown') === 'first'")
    known = [canvas_checksum(page)]
    page.check(".class-modes input[value=contrast]")
    wait_for(page, "document.querySelector('#question').textContent.includes(' rather than ')")
    wait_idle(page)
    wait_redrawn(page, known)
    assert page.is_hidden("#shown-classes")
    assert page.is_disabled("#measure")
    assert "logit of the first class minus" in page.inner_text("#reading-list")
    assert parameters(page)["contrast"] == "1"
    again = visit(page.url.partition("/?")[2] and "?" + page.url.partition("/?")[2])
    wait_idle(again)
    assert again.inner_text("#question") == page.inner_text("#question")


def test_texts_and_times_say_what_was_done(visit):
    page = visit("?model=tiny&sample=cat&method=leadlight&method=vtranm&method=occlusion")
    wait_idle(page)
    assert re.search(r"shared pass, \d", page.inner_text(".map-card[data-method=vtranm] .card-note"))
    assert "shared" not in page.inner_text(".map-card[data-method=occlusion] .card-note")
    assert "Insertion starts from a blurred image" in page.inner_text("#faithfulness")
    page.click("#tab-text")
    page.wait_for_selector(".text-card[data-state=done]")
    select_methods(page, "rollout", "attcat", root="#text-panel")
    neutral = ".text-card[data-method={}] .word[data-neutral=true]"
    assert page.locator(neutral.format("rollout")).count() > 3
    assert page.locator(neutral.format("attcat")).count() == 0
    assert "class-agnostic" in page.inner_text(".text-legend")


def test_original_photograph_with_the_part_the_model_saw(visit, screenshots):
    page = visit(TINY)
    page.set_input_files("#file", image_upload(900, 300))
    wait_for(page, "document.querySelector('#image-note').textContent.includes('of 900')")
    wait_idle(page)
    ratio = "(c => c.width / c.height)(document.querySelector('#main-map canvas'))"
    assert page.evaluate(ratio) == pytest.approx(3, abs=0.02)
    box = page.locator("#main-map").bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + box["height"] / 2)
    assert page.inner_text("#readout").startswith("Point at a patch"), "cropped away"
    page.mouse.move(box["x"] + 0.52 * box["width"], box["y"] + 0.6 * box["height"])
    assert page.inner_text("#readout").startswith("Row 3, column 3")
    page.screenshot(path=screenshots / "original.png")
    page.check("#frame input[value=input]")
    wait_for(page, "(c => c.width === c.height)(document.querySelector('#main-map canvas'))")
    exif = Image.Exif()
    exif[0x0112] = 6
    page.set_input_files("#file", image_upload(300, 200, exif=exif.tobytes()))
    wait_for(page, "/rotated/i.test(document.querySelector('#image-note').textContent)")


# -- state -------------------------------------------------------------------------------------------------------------


def test_display_options_are_in_the_address(visit):
    page = visit(TINY)
    wait_idle(page)
    plain = page.url
    known = [canvas_checksum(page)]
    page.locator("#opacity").fill("30")
    wait_for(page, "location.search.includes('opacity=30')")
    known.append(wait_redrawn(page, known))
    page.check("#sequential input[value=frost]")
    known.append(wait_redrawn(page, known))
    page.check("#rendering input[value=patch]")
    shown = wait_redrawn(page, known)
    options = {name: parameters(page)[name] for name in ("opacity", "colour", "rendering")}
    assert options == {"opacity": "30", "colour": "frost", "rendering": "patch"}
    again = visit("?" + page.url.partition("?")[2])
    wait_idle(again)
    wait_for(again, f"({CHECKSUM})('#main-map canvas') === given", shown)
    assert again.input_value("#opacity") == "30"
    assert again.is_checked("#sequential input[value=frost]")
    other = visit("?" + plain.partition("?")[2] + "&opacity=900&colour=constructor&signed=none")
    wait_idle(other)
    wait_for(other, f"({CHECKSUM})('#main-map canvas') === given", known[0])
    assert other.url == plain, "what is not valid is left out"


def test_word_scores_are_checked_where_the_text_is_long_enough(visit, screenshots):
    text = "+".join(FILLERS)
    page = visit(f"?model=hf-reviews&text={text}&method=rollout&method=random", wait=".text-card .verdict")
    page.wait_for_selector(".text-card[data-method=random] .verdict")
    assert "most relevant words" in page.inner_text(".text-card[data-method=rollout] .check-detail")
    page.screenshot(path=screenshots / "text-check.png")
    page.fill("#text-input", "the film is superb")
    page.click("#explain-text")
    page.wait_for_selector(".text-card[data-method=rollout] .text-check:has-text('too short')")
    assert page.locator(".text-card .verdict").count() == 0


def test_address_is_the_state(visit):
    page = visit(TINY)
    wait_idle(page)
    first = page.url
    page.click(".classes li:nth-child(2) .class-button")
    wait_for(page, "!location.search.includes('classes=0&')")
    second, heading = page.url, page.inner_text("#question")
    show_all_methods(page)
    page.check("#image-panel .methods input[value=gradcam]")
    wait_for(page, "location.search.includes('method=gradcam')")
    wait_idle(page)
    page.go_back()
    wait_for(page, "location.href === given", second)
    page.wait_for_selector(".map-card[data-method=gradcam]", state="detached")
    page.go_back()
    wait_for(page, "location.href === given", first)
    wait_for(page, "document.querySelector('.classes .first .name').textContent.startsWith('American')")
    page.go_forward()
    wait_for(page, "document.querySelector('#question').innerText === given", heading)
    page.reload()
    wait_for(page, "document.querySelector('#question').innerText === given", heading)
    assert page.url == second
    other = visit("?model=scenes&sample=scene-1", context=page.context)
    assert "scenes" in other.url
    assert page.url == second, "tabs do not share a state"
    page.select_option("#model", value="tiny-2")
    wait_for(page, "location.search.includes('model=tiny-2')")
    wait_idle(page)
    page.go_back()
    wait_for(page, "document.querySelector('#model').value === 'tiny'")


def test_links_to_uploads_survive_a_restart_or_say_so(visit, app):
    page = visit(TINY)
    page.set_input_files("#file", random_image(5))
    wait_for(page, "location.search.includes('image=')")
    wait_idle(page)
    page.click(".classes li:nth-child(3) .class-button")
    wait_idle(page)
    link, heading, pixels = page.url, page.inner_text("#question"), canvas_checksum(page)
    images = app.state.server.images
    for key in list(images._values):
        images._drop(key)
    page.reload()
    wait_for(page, "document.querySelector('#question').innerText === given", heading)
    wait_idle(page)
    wait_for(page, "given !== 0")
    assert canvas_checksum(page) == pixels, "the file was sent again"
    page.close()  # an open page sends its file again whenever the server has lost it
    for key in list(images._values):
        images._drop(key)
    path = "?" + link.partition("?")[2]
    other = visit(path, wait="#notice:not([hidden])")
    assert "no longer on the server" in other.inner_text("#notice")
    assert other.url == link
    assert other.is_hidden("#main-figure")
    other.set_input_files("#file", random_image(5))
    wait_for(other, "document.querySelector('#question').innerText === given", heading)
    wait_idle(other)
    assert canvas_checksum(other) == pixels
    assert other.is_hidden("#notice")
    missing = visit("?model=nothing", wait="#notice:not([hidden])")
    assert "is not served here" in missing.inner_text("#notice")


# -- understand --------------------------------------------------------------------------------------------------------


def test_methods_are_explained_beside_the_map(visit):
    page = visit("?model=tiny&sample=cat&classes=0&method=rollout&method=attcat")
    wait_idle(page)
    assert len(page.inner_text(".intro").split(".")) == 2, "one sentence"
    assert "Class-agnostic" in page.inner_text("#reading-list")
    assert page.get_attribute("#about-method a >> nth=0", "href") == "/help/methods/rollout"
    assert page.get_attribute("#about-method a >> nth=1", "href").startswith("https://aclanthology.org/")
    page.click(".map-card[data-method=attcat] button.name")
    wait_for(page, "document.querySelector('#reading-list').textContent.includes('Warm patches speak for')")
    assert f"Vitrail {__version__}" in page.inner_text(".page-footer")
    page.click(".page-footer a[href='/help']")
    page.wait_for_selector("dl")
    assert "no better than chance" in page.inner_text("main")


def test_photographs_for_photograph_models_scenes_for_scenes(visit):
    page = visit("?model=tiny")
    names = "[...document.querySelectorAll('#samples button')].map((button) => button.dataset.sample)"
    assert page.evaluate(names)[0] == "cat"
    assert "CC0" in page.get_attribute("#samples button >> nth=0", "title")
    page.select_option("#model", value="scenes")
    wait_for(page, "document.querySelector('#samples button').dataset.sample === 'scene-1'")


def test_queued_and_running_look_different_and_say_how_long(visit):
    page = visit("?model=scenes&sample=scene-1&method=leadlight")
    wait_idle(page)
    # The time left is known once a tenth of the masks is evaluated.
    specs = [f"rise:masks={count}" for count in range(1500, 1504)]
    for spec in specs:
        page.fill("input[aria-label='Add a method with options'] >> nth=0", spec)
        page.keyboard.press("Enter")
    wait_for(page, "/about \\d+ (s|min) left/.test(document.querySelector('#map-grid').textContent)")
    page.wait_for_selector(".map-card[data-state=queued] .waiting:has-text('queued')")
    assert page.is_hidden(".map-card[data-state=queued] progress")
    assert page.is_visible(".map-card[data-state=running] progress")
    for spec in reversed(specs):
        page.click(f".map-card[data-method='{spec}'] .card-note button")


def test_curves_come_coarse_first_and_are_part_of_the_link(visit):
    page = visit("?model=scenes&sample=scene-1&method=leadlight")
    wait_idle(page)
    page.evaluate("""() => {
      window.seen = [];
      new MutationObserver(() => {
        const path = document.querySelector('.chart .curve[data-method=leadlight]')?.getAttribute('d');
        if (path) window.seen.push((path.match(/[ML]/g) ?? []).length);
      }).observe(document.querySelector('#curves'), { childList: true, subtree: true });
    }""")
    page.click("#measure")
    page.wait_for_selector("#curves[data-state=done]")
    seen = page.evaluate("window.seen")
    assert 5 in seen
    assert seen[-1] == 21
    assert seen == sorted(seen)
    assert parameters(page)["curves"] == "1"
    page.reload()
    page.wait_for_selector("#curves .curve[data-method=leadlight]")  # measured again by itself


# -- look --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "scheme"), WINDOWS)
def test_layout_and_axe(visit, screenshots, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page = visit(
        TINY.replace("classes=0", "classes=0,1"), viewport={"width": width, "height": 900}, color_scheme=scheme,
        reduced_motion="reduce",
    )  # fmt: skip
    wait_idle(page)

    def check(name):
        page.screenshot(path=screenshots / f"{name}-{width}-{scheme}.png", full_page=True)
        assert page.evaluate(OVERFLOW) == 0, name
        found = axe.Axe().run(page).response["violations"]
        assert not [(one["id"], one["nodes"][0]["html"][:120]) for one in found], name

    page.wait_for_selector(CHECKED.format("leadlight"))
    check("maps")
    sidebar = page.locator("#image-panel .sidebar").bounding_box()
    for row in page.locator("#image-panel .classes li").all():
        if row.is_visible():
            inside = [one.bounding_box() for one in row.locator("button, .value").all() if one.is_visible()]
            assert all(one["x"] + one["width"] <= sidebar["x"] + sidebar["width"] + 1 for one in inside)
    if width >= 1600:
        grid, figure = (page.locator(name).bounding_box() for name in ("#map-grid", "#main-figure"))
        assert grid["x"] > figure["x"] + figure["width"]
        assert grid["x"] + grid["width"] > 0.95 * width, "no empty right half"
    page.click("#readout button:has-text('Enlarge')")
    page.wait_for_selector("#zoom[open]")
    check("enlarged")
    page.keyboard.press("Escape")
    page.focus("#main-map")
    page.keyboard.press("Enter")
    page.wait_for_selector("#attention[open] button.cell")
    check("attention")
    page.keyboard.press("Escape")
    for view in ("matrix", "models"):
        page.check(f"#views input[value={view}]")
        wait_idle(page)
        root = {"matrix": "#matrix-view", "models": "#models-table"}[view]
        page.wait_for_selector(f"{root}[data-state=done]")
        check(view)
    page.click("#tab-text")
    page.wait_for_selector(".text-card[data-state=done]")
    check("text")
    page.goto(page.url.partition("?")[0] + "?model=nothing")
    page.wait_for_selector("#notice:not([hidden])")
    check("dead-link")
    page.goto(page.url.partition("?")[0] + "help")
    check("help")


def test_dark_choice_persists_and_thumbnails_enlarge(visit):
    page = visit(TINY)
    wait_idle(page)
    page.click("#theme")
    assert "dark" in page.get_attribute("html", "class")
    page.reload()
    page.wait_for_selector("html.dark")
    other = visit("?model=scenes", context=page.context)
    assert "dark" in other.get_attribute("html", "class")
    page.click(".map-card[data-method=rollout] .map")
    wait_for(page, "document.querySelector('#main-map canvas').dataset.shows === 'rollout'")
    assert parameters(page)["focus"] == "rollout"
    assert page.is_hidden("#attention")


def test_keyboard_reaches_everything_once(visit):
    page = visit(TINY)
    page.wait_for_selector(CHECKED.format("rollout"))
    page.evaluate("document.body.focus()")
    visited = []
    name = """() => {
      const at = document.activeElement;
      if (at === document.body) return null;
      window.order ??= new Map();
      if (!window.order.has(at)) window.order.set(at, window.order.size);
      return window.order.get(at);
    }"""
    for _ in range(220):
        page.keyboard.press("Tab")
        at = page.evaluate(name)
        if at is None or (visited and at == visited[0]):
            break
        visited.append(at)
    assert len(visited) == len(set(visited)), "nothing twice"
    missed = page.evaluate("""() => {
      const controls = document.querySelectorAll('a[href], button, input, select, textarea, [tabindex="0"]');
      const groups = new Set([...window.order.keys()].filter((at) => at.type === 'radio').map((at) => at.name));
      return [...controls].filter((at) => at.checkVisibility() && !at.disabled && at.tabIndex >= 0)
        .filter((at) => !window.order.has(at) && !(at.type === 'radio' && groups.has(at.name)))
        .map((at) => at.outerHTML.slice(0, 90));
    }""")
    assert missed == []


@pytest.mark.parametrize("view", ["matrix", "models"])
def test_tables_are_computed_linked_and_saved_as_figures(visit, screenshots, view):
    page = visit(TINY)
    wait_idle(page)
    page.check(f"#views input[value={view}]")
    root = {"matrix": "#matrix-view", "models": "#models-table"}[view]
    columns = {"matrix": 4, "models": 2}[view]
    page.wait_for_selector(f"{root}[data-state=done]")
    assert page.locator(f"{root} tbody canvas").count() == 2 * columns
    heads = page.locator(f"{root} thead th .name").all_inner_texts()
    assert len(set(heads)) == columns
    leadlight = {canvas_checksum(page, f"{root} tbody tr:nth-child(1) td:nth-child({i + 2}) canvas") for i in range(2)}
    assert len(leadlight) == 2, "another class or model, another map"
    with page.expect_download() as download:
        page.click(f"{root} button:has-text('Save as a figure')")
    saved = Image.open(download.value.path())
    assert saved.format == "PNG"
    assert saved.width > 300 * columns
    saved.save(screenshots / f"figure-{view}.png")
    assert parameters(page)["view"] == view
    page.reload()
    page.wait_for_selector(f"{root}[data-state=done]")
    assert page.locator(f"{root} thead th .name").all_inner_texts() == heads
