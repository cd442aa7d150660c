"""The interactive viewer: what the page contains, and how it behaves in Chromium."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest
import torch

import vitrail
from vitrail.errors import InputError, OutputError
from vitrail.models import LoadedModel
from vitrail.testing import tiny_vit
from vitrail.viz import viewer
from vitrail.viz.map_encoding import decode_map

EVIL = "</script><script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>"
#: JavaScript from a canvas to a checksum of its pixels.
PIXELS = """c => c.getContext("2d").getImageData(0, 0, c.width, c.height).data
  .reduce((a, b) => (a * 31 + b) % 1000003, 0)"""


@pytest.fixture(scope="module")
def explanations():
    module = tiny_vit()
    count = module(torch.zeros(1, 3, 32, 32)).shape[1]
    model = LoadedModel(module, None, tuple(f"{EVIL}{i}" for i in range(count)), "tiny <b>")
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return vitrail.explain(model, images, methods=["rollout", "attcat", "gradient_x_input"], target="top2")


def page_data(page):
    return json.loads(re.search(r'id="viewer-data">(.*?)</script>', page, re.DOTALL)[1])


def test_page_holds_maps_labels_and_code_and_loads_nothing(explanations):
    page = explanations.view().html
    data = page_data(page)
    assert [m["signed"] for m in data["methods"]] == [e.signed for e in explanations.values()]
    assert len(data["inputs"]) == 2
    for i, e in enumerate(explanations.values()):
        for b in range(2):
            for k in range(2):
                decoded = torch.from_numpy(decode_map(data["inputs"][b]["maps"][i][k]["map"]))
                error = (decoded - e.grid[b, k]).abs().max()
                assert error <= e.grid[b, k].abs().max() / 30000
            assert data["inputs"][b]["targets"][k] == e.label(b, k)
    assert not re.search(r"^\s*(import|export)\b", viewer.viewer_code(), re.MULTILINE)
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "fetch(" not in page


def test_labels_are_escaped(explanations):
    page = explanations["rollout"].view().html
    assert EVIL not in page
    assert EVIL not in unescape(explanations.view()._repr_html_())
    assert "tiny &lt;b&gt;" in page
    assert page.count("<script") == 3


def test_viewer_is_saved_and_refuses_what_it_cannot_show(explanations, tmp_path):
    written = explanations.view().save(tmp_path / "deep" / "x.html")
    assert written.read_text() == explanations.view().html
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="choose another file"):
        explanations.view().save(tmp_path / "file" / "x.html")
    with pytest.raises(InputError, match="no explanations"):
        vitrail.Explanations({}).view()


def test_large_maps_and_batches_are_bounded(explanations, monkeypatch):
    monkeypatch.setattr(viewer, "MAX_CELLS", 8)
    monkeypatch.setattr(viewer, "MAX_INPUTS", 1)
    page = explanations.view().html
    data = page_data(page)
    assert data["inputs"][0]["maps"][2][0]["map"]["shape"] == [8, 8]
    assert "the first 1 of 2 inputs" in page


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    from shutil import which

    path = which("chromium") or which("chromium-browser") or which("google-chrome")
    if path is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.mark.slow
def test_viewer_in_a_notebook_frame(explanations, browser, tmp_path):
    (tmp_path / "notebook.html").write_text(f"<html><body>{explanations.view()._repr_html_()}</body></html>")
    page = browser.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto((tmp_path / "notebook.html").as_uri())
    frame = page.frames[1]
    frame.wait_for_selector("figure canvas[role]")
    canvases = frame.query_selector_all("figure canvas[role]")
    assert len(canvases) == 3
    frame.wait_for_function(f"[...document.querySelectorAll('figure canvas[role]')].every({PIXELS})")
    before = [canvas.evaluate(PIXELS) for canvas in canvases]
    box = canvases[0].bounding_box()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.1 * box["height"])
    grid = explanations["rollout"].grid[0, 0]
    text = frame.inner_text("figure .value")
    assert text.startswith("row 1, column 3:")
    value = float(re.search(r": ([\d.e−-]+),", text)[1].replace("−", "-"))
    assert value == pytest.approx(float(grid[0, 2]), rel=0.02)
    rank = int(re.search(r"rank (\d+) of 16", text)[1])
    assert rank == int((grid > grid[0, 2]).sum()) + 1
    frame.hover("footer")
    frame.wait_for_function("document.querySelector('figure .value').textContent === ''")
    assert [canvas.evaluate(PIXELS) for canvas in canvases] == before, "leaving removes the outline"
    canvases[0].focus()
    page.keyboard.press("ArrowRight")
    assert "row 1, column 2" in frame.inner_text("figure .value")
    frame.select_option("#controls label:nth-of-type(2) select", "1")
    assert canvases[1].evaluate(PIXELS) != before[1]
    frame.select_option("#controls label:nth-of-type(1) select", "1")
    frame.wait_for_function("document.querySelectorAll('figure canvas[role]').length === 3")
    assert frame.evaluate("window.pwned") is None
    assert not problems
    page.close()


@pytest.mark.slow
def test_viewer_of_texts(browser, tmp_path):
    pytest.importorskip("transformers")
    from tests.text.test_texts import cached_model

    model, tokenizer = cached_model()
    text = "a superb <b>film</b> with a dreadful plot"
    es = vitrail.explain(model, [text, "the music"], methods=["attcat", "rollout"], tokenizer=tokenizer, target=1)
    page = browser.new_page()
    page.goto(es.view().save(tmp_path / "text.html").as_uri())
    page.wait_for_selector(".words .word")
    assert page.inner_text(".words >> nth=0") == text
    word = es["attcat"].text[0]
    shown = page.get_attribute(".words >> nth=0 >> .word >> nth=1", "title")
    assert float(shown.replace("−", "-")) == pytest.approx(float(word.scores[0, 1]), rel=0.02)
    page.hover(".words >> nth=0 >> .word >> nth=1")
    assert page.inner_text("#readout").startswith("superb:")
    page.select_option("#controls select >> nth=0", "1")
    assert page.inner_text(".words >> nth=0") == "the music"
    page.close()
