"""A server to test: small models, small limits, and a real port where that matters."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import numpy as np
import uvicorn
from PIL import Image

from vitrail.models.loaded import LoadedModel
from vitrail.models.preprocess import HALF, Preprocess
from vitrail.testing import tiny_vit
from vitrail.web.app import make_app
from vitrail.web.limits import Limits
from vitrail.web.model import ServedModel, serve_model

#: Enough work for a minute, were it not cancelled.
LONG = [f"rise:masks=9999,seed={i}" for i in range(20)]


def tiny(name: str = "tiny", **options: int) -> ServedModel:
    """A model that answers within milliseconds."""
    names = ("cat", "dog", "<b>bold</b>", "fish", "house")
    return serve_model(LoadedModel(tiny_vit(**options), Preprocess((32, 32), HALF, HALF, 0.875), names, name), name)


def app_of(*models: ServedModel, **limits: Any) -> Any:
    return make_app(models or [tiny()], Limits(**{"grace": 0.2, "looks": 60_000, **limits}))


def picture_file(width: int = 40, height: int = 30, kind: str = "PNG", mode: str = "RGB", **options: Any) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    held = BytesIO()
    Image.fromarray(pixels).convert(mode).save(held, format=kind, **options)
    return held.getvalue()


def send(client: Any, data: bytes | None = None, name: str = "a.png") -> Any:
    return client.post("/api/pictures", files={"file": (name, data if data is not None else picture_file())})


def sent(client: Any) -> str:
    return str(send(client).json()["picture"])


def error(answer: Any, status: int) -> str:
    """What a refusal says, once its form has been checked."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"what", "fix"}
    assert all(body["error"].values())
    return body["error"]["what"] + " " + body["error"]["fix"]


def until(true: Callable[[], Any], seconds: float = 30.0) -> None:
    """Wait for something that must come."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


@contextmanager
def running(app: Any) -> Iterator[str]:
    """The application on a port of this machine."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
