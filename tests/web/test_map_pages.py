"""Pages of a store of maps: tiles with pictures, filters that are kept in links, escaped names, unknown maps."""

from __future__ import annotations

import re
from html import unescape
from types import SimpleNamespace

import pytest

from tests.web.web_case import tiny_model
from vitrail.errors import InputError
from vitrail.web.fastapi_app import make_app

testclient = pytest.importorskip("fastapi.testclient")

ROW = {"method": "rollout", "class": 1, "name": "cat, tabby", "probability": 0.5, "flat": False, "offset": 0}


class ThreeMaps:
    """A gallery of three rows, of which the last has no map."""

    title = "3 maps of tiny"
    asked = ()

    def values(self, column):
        return {"method": ["rollout", "tam"], "name": ["cat, tabby", "d'og"]}[column]

    def rows(self, method, name, image, page):
        self.asked = (method, name, image, page)
        rows = {4: ROW | {"image": "a"}, 5: ROW | {"image": "<b>", "flat": True, "probability": None}}
        failed = {6: ROW | {"image": "c", "offset": -1, "error": "not <an> image"}}
        return SimpleNamespace(rows=rows | failed, total=200, page=page, pages=4)

    def picture(self, number):
        if number != 4:
            raise InputError("there is no such map")
        return b"JPEG"


@pytest.fixture
def client():
    with testclient.TestClient(make_app([tiny_model()], gallery=ThreeMaps())) as one:
        yield one


def test_page_shows_maps_and_reasons(client):
    text = client.get("/maps").text
    assert re.findall(r"<img src='(/maps/\d+.jpg)'", text) == ["/maps/4.jpg", "/maps/5.jpg"]
    assert "cat (50.0 %)<br>rollout<br>a<" in text
    assert "cat<br>rollout, constant<br>&lt;b&gt;" in text
    assert "c<br>not &lt;an&gt; image" in text
    assert "200 maps, page 1 of 4" in text
    assert "value='d&#x27;og'" in text
    assert client.get("/maps/4.jpg").content == b"JPEG"
    assert client.get("/maps/9.jpg").status_code == 404
    assert 'href="/maps">3 maps of tiny</a>' in client.get("/").text


def test_filters_reach_the_gallery_and_the_links(client):
    chosen = {"method": "tam", "name": "a&b", "image": "'x", "page": "2"}
    text = client.get("/maps", params=chosen).text
    assert client.app.state.templates.env.globals["gallery"].asked == ("tam", "a&b", "'x", 2)
    links = re.findall(r"<a href='([^']+)'>(Previous|Next)<", text)
    assert [(unescape(link), word) for link, word in links] == [
        ("/maps?method=tam&name=a%26b&image=%27x&page=1", "Previous"),
        ("/maps?method=tam&name=a%26b&image=%27x&page=3", "Next"),
    ]
    assert "<option selected>tam</option>" in text
    assert "name='image' value='&#x27;x'" in text


def test_server_without_maps_has_no_such_page():
    with testclient.TestClient(make_app([tiny_model()])) as one:
        assert one.get("/maps").status_code == 404
        assert "/maps" not in one.get("/").text
