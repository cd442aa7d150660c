"""`vitrail.serve`: a model object is served from Python, in a thread."""

from __future__ import annotations

import threading

import httpx
import pytest

import vitrail
from vitrail.errors import InputError, ModelError
from vitrail.testing import tiny_vit


def test_a_module_is_served_in_a_thread_and_stopped():
    model = tiny_vit()
    preprocess = vitrail.Preprocess((32, 32))
    with vitrail.serve(model, preprocess=preprocess, classes=list("abcde"), open_page=False) as page:
        (info,) = httpx.get(f"{page.url}api/models").json()
        assert info["classes"] == list("abcde")
        client = httpx.Client(base_url=page.url, timeout=120)
        picture = client.post("/api/pictures/sample", json={"model": info["id"], "sample": "cat"}).json()["picture"]
        body = {"model": info["id"], "picture": picture, "methods": ["rollout"], "targets": [1]}
        assert client.post("/api/explain?wait=true", json=body).json()["state"] == "done"
        assert page.url in page._repr_html_()
    with pytest.raises(httpx.ConnectError):
        httpx.get(page.url)
    assert not any(thread.name == "vitrail-page" for thread in threading.enumerate())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_several_models_and_names():
    loaded = vitrail.LoadedModel(tiny_vit(), vitrail.Preprocess((32, 32)), None, "mine")
    with vitrail.serve("scenes", loaded, loaded, open_page=False) as page:
        assert [one["id"] for one in httpx.get(f"{page.url}api/models").json()] == ["scenes", "mine", "mine-2"]


def test_what_is_missing_is_named():
    with pytest.raises(ModelError, match=r"preprocess=vitrail\.Preprocess"):
        vitrail.serve(tiny_vit(), open_page=False)
    with pytest.raises(InputError, match="no model"):
        vitrail.serve(open_page=False)
    with pytest.raises(InputError, match="describe one model"):
        vitrail.serve("scenes", "scenes", classes=["a"], open_page=False)
