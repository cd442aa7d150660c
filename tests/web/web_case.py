"""Helpers for tests of the server: small models, small limits, uploads, and a server on a real port."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from vitrail.models.loaded import LoadedModel
from vitrail.models.preprocess import HALF, Preprocess
from vitrail.testing import tiny_vit
from vitrail.web.fastapi_app import make_app
from vitrail.web.limits import Limits
from vitrail.web.page_server import PageServer
from vitrail.web.served_model import ServedModel, serve_model

#: Methods that take about a minute unless they are cancelled.
LONG_METHODS = [f"rise:masks=9999,seed={i}" for i in range(20)]


def tiny_model(name: str = "tiny", **options: int) -> ServedModel:
    """A model whose forward pass takes milliseconds."""
    names = ("cat", "dog", "<b>bold</b>", "fish", "house")
    return serve_model(LoadedModel(tiny_vit(**options), Preprocess((32, 32), HALF, HALF, 0.875), names, name), name)


def small_app(*models: ServedModel, **limits: Any) -> Any:
    return make_app(models or [tiny_model()], Limits(**{"grace": 1.0, "evaluations": 60_000, **limits}))


def image_file(width: int = 40, height: int = 30, kind: str = "PNG", mode: str = "RGB", **options: Any) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, format=kind, **options)
    return buffer.getvalue()


def upload(client: Any, data: bytes | None = None, name: str = "a.png") -> Any:
    return client.post("/api/pictures", files={"file": (name, data if data is not None else image_file())})


def upload_id(client: Any) -> str:
    """Upload an image and return its id."""
    return str(upload(client).json()["picture"])


def error_text(response: Any, status: int) -> str:
    """Check the form of an error response and return its text."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"what", "fix"}
    assert all(body["error"].values())
    return body["error"]["what"] + " " + body["error"]["fix"]


def wait_until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    """Wait until a condition is true; fail after some seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


@contextmanager
def running_server(app: Any, port: int = 0) -> Iterator[str]:
    """Run the application on a loopback port, a free one by default, and yield its URL."""
    server = PageServer(app, port=port)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
