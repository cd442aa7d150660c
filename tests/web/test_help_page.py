"""The help pages, other methods of HTTP, compression, and addresses that do not exist."""

from __future__ import annotations

import re

import pytest
from fastapi.testclient import TestClient

from tests.web.web_case import image_file, small_app, upload
from vitrail.methods import METHODS
from vitrail.trust.map_check import VERDICTS


@pytest.fixture(scope="module")
def client():
    with TestClient(small_app()) as one:
        yield one


def test_help_links_a_page_for_every_method(client):
    page = client.get("/help").text
    assert set(re.findall(r"/help/methods/(\w+)", page)) == set(METHODS)
    assert all(verdict in page for verdict in VERDICTS)
    for name, method in METHODS.items():
        text = client.get(f"/help/methods/{name}").text
        assert method.title.replace("&", "&amp;") in text, name
        assert all(f"<code>{option}</code>" in text for option in method.options), name


def test_unknown_addresses_are_pages_for_people_and_json_for_programs(client):
    for path in ("/nosuch", "/help/methods/nosuch", "/<b>x</b>"):
        response = client.get(path)
        assert response.status_code == 404
        assert "text/html" in response.headers["content-type"]
        assert "<b>x</b>" not in response.text
    response = client.get("/api/nosuch")
    assert response.status_code == 404
    assert set(response.json()) == {"error"}


def test_head_and_compression(client):
    for path in ("/", "/help", "/api/docs"):
        response = client.head(path)
        assert response.status_code == 200, path
        assert not response.content
    page = client.get("/static/page.js", headers={"Accept-Encoding": "gzip"})
    assert page.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in client.get("/static/page.js", headers={"Accept-Encoding": ""}).headers


@pytest.mark.parametrize(
    ("size", "is_enlarged"), [((1, 1), True), ((32, 31), True), ((32, 32), False), ((90, 60), False)]
)
def test_a_small_image_is_called_enlarged(client, size, is_enlarged):
    client.get("/")
    picture = upload(client, image_file(*size)).json()["picture"]
    notes = client.get(f"/api/pictures/{picture}?model=tiny").json()["notes"]
    expected = [f"enlarged from {size[0]} × {size[1]} pixels to the model's input of 32 × 32"]
    assert notes == (expected if is_enlarged else [])
