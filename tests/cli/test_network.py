"""Without a network, commands fail at once and say what can be done."""

from __future__ import annotations

import socket
import threading

import pytest

from vitrail.cli.network import hub_responds, no_retries
from vitrail.errors import MissingExtraError, ModelError, require
from vitrail.models import load


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


def test_the_hub_responds_if_a_connection_can_be_opened(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        assert hub_responds()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    assert not hub_responds()
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert hub_responds(), "behind a proxy it cannot be known"


def test_a_name_that_is_not_resolved_in_time_does_not_block(monkeypatch):
    waiting = threading.Event()
    monkeypatch.setattr(socket, "create_connection", lambda *_: waiting.wait(30) and socket.socket())
    assert not hub_responds(timeout=0.05)
    waiting.set()


def test_errors_without_a_network_offer_weights_and_random_weights(monkeypatch):
    monkeypatch.setattr("vitrail.cli.network.hub_responds", lambda: False)
    with pytest.raises(ModelError, match=r"--weights FILE; or --weights random"), no_retries("timm:x", "pretrained"):
        raise ModelError("x cannot be loaded: no network?") from OSError("no route")
    with (
        pytest.raises(ModelError, match="did you mean vit_tiny"),
        no_retries("timm:vit_tinny_patch16_224", "pretrained"),
    ):
        load("timm:vit_tinny_patch16_224")
    with pytest.raises(MissingExtraError, match="pip install"), no_retries("timm:x", "pretrained"):
        require("no_such_library", "timm", "create timm models")
    for model, weights in (("scenes", "pretrained"), ("timm:x", "random"), ("torchvision:x", "pretrained")):
        with pytest.raises(ModelError, match="as it was"), no_retries(model, weights):
            raise ModelError("as it was")
