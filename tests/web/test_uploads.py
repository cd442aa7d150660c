"""Uploads and texts."""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress
from io import BytesIO

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from tests.text.texts import text_model
from tests.web.web_case import error_text, image_file, small_app, tiny_model, upload
from vitrail.cli.serve import load_models
from vitrail.models.preprocess import to_rgb
from vitrail.web.api_errors import ApiError
from vitrail.web.limits import Limits
from vitrail.web.uploads import read_upload


@pytest.fixture(scope="module")
def app():
    return small_app(upload_bytes=200_000, pixels=1_000_000)


@pytest.fixture(scope="module")
def client(app):
    with TestClient(app) as client:
        yield client


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def stored_pixels(client, stored):
    response = client.get(f"/api/pictures/{stored['picture']}.png?model=tiny")
    return np.asarray(Image.open(BytesIO(response.content)))


def decompression_bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header states a huge size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")


# -- accepted files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_format_is_detected_by_content_not_by_name(client, kind):
    stored = upload(client, image_file(kind=kind), name="../../etc/passwd.exe").json()
    assert (stored["width"], stored["height"]) == (40, 30)
    assert stored_pixels(client, stored).shape == (32, 32, 3)


def test_preprocessing_equals_the_command_lines(client, app):
    data = image_file(300, 200)
    stored = upload(client, data).json()
    served = app.state.server.models["tiny"]
    expected = served.preprocess(to_rgb(Image.open(BytesIO(data))))
    inputs = served.model_inputs(app.state.server.image(stored["picture"]).pixels["tiny"]).args[0][0]
    assert np.allclose(inputs.numpy(), expected.numpy(), atol=1e-6)


def test_exif_orientation_is_applied(client):
    image = Image.fromarray(np.zeros((30, 40, 3), np.uint8))
    image.paste((255, 0, 0), (0, 0, 20, 30))
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = upload(client, encoded(image, "JPEG", exif=exif, quality=95)).json()
    assert (stored["width"], stored["height"]) == (30, 40)
    assert stored["notes"] == ["rotated according to its EXIF orientation"]
    assert stored_pixels(client, stored)[2, 16, 0] > 200
    assert stored_pixels(client, stored)[29, 16, 0] < 50


def test_animated_grey_cmyk_and_transparent_images(client):
    first, second = (Image.new("RGB", (20, 20), colour) for colour in ("red", "blue"))
    animated = upload(client, encoded(first, "GIF", save_all=True, append_images=[second])).json()
    assert animated["notes"] == ["animated: the first frame is used"]
    assert stored_pixels(client, animated)[16, 16].tolist() == [255, 0, 0]
    ramp = Image.fromarray(np.linspace(0, 65535, 400).reshape(20, 20).astype(np.uint16))
    grey16 = upload(client, encoded(ramp)).json()
    assert grey16["notes"] == ["16 bits per pixel: scaled to 8"]
    assert 100 < stored_pixels(client, grey16).mean() < 155
    cmyk = upload(client, encoded(Image.new("CMYK", (20, 20), (0, 255, 255, 0)), "JPEG")).json()
    assert cmyk["notes"] == ["CMYK: converted to RGB without its colour profile"]
    palette = Image.new("P", (20, 20))
    transparent = upload(client, encoded(palette, "PNG", transparency=0)).json()
    assert transparent["notes"] == ["transparent: placed on a white background"]
    assert stored_pixels(client, transparent).min() == 255
    assert upload(client, encoded(Image.new("RGBA", (20, 20), (0, 0, 0, 0)))).json()["notes"] == transparent["notes"]
    assert upload(client, encoded(Image.new("1", (20, 20)))).is_success


# -- rejected files ----------------------------------------------------------------------------------------------------


def test_unsupported_formats(client):
    for data in (b"hello", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.4", b"%!PS-Adobe-3.0 EPSF", b"\0"):
        assert "unsupported image format" in error_text(upload(client, data, "cat.png"), 415)
    photo = bytes(4) + b"ftypheic" + bytes(40)
    assert "format HEIC" in (text := error_text(upload(client, photo, "photo.heic"), 415))
    assert "Save it as JPEG" in text
    error_text(upload(client, b""), 422)
    error_text(client.post("/api/pictures"), 422)
    error_text(client.post("/api/pictures", files={"other": b"x"}), 422)
    error_text(client.post("/api/pictures", data={"file": "a text"}), 422)
    error_text(client.post("/api/pictures?model=none", files={"file": image_file()}), 404)


def test_damaged_files(client):
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "TIFF"):
        whole = image_file(90, 90, kind)
        for cut in (len(whole) // 2, 30, 9):
            assert upload(client, whole[:cut]).status_code in (415, 422)
        assert "damaged" in error_text(upload(client, image_file(90, 90, "PNG")[:2000]), 422)
    flipped = bytearray(image_file(90, 90))
    flipped[60] ^= 0xFF
    error_text(upload(client, bytes(flipped)), 422)
    assert upload(client).is_success


def test_files_and_images_that_are_too_large(client):
    error_text(upload(client, b"\x89PNG" + b"\0" * 250_000), 413)
    response = client.post(
        "/api/pictures", content=(b"\0" * 10_000 for _ in range(40)),
        headers={"Content-Type": "multipart/form-data; boundary=x"},
    )  # fmt: skip
    error_text(response, 413)
    for width, height in ((1001, 1000), (60_000, 60_000), (2**31 - 1, 2**31 - 1)):
        assert "pixels" in error_text(upload(client, decompression_bomb(width, height)), 422)
    assert "aspect ratio" in error_text(upload(client, image_file(500, 3)), 422)
    assert "floating-point" in error_text(upload(client, encoded(Image.new("F", (20, 20)), "TIFF")), 422)
    compressed = encoded(Image.new("L", (1000, 900)))
    assert len(compressed) < 5000
    assert upload(client, compressed).is_success


def test_corrupted_files_raise_api_errors_only():
    rng = np.random.default_rng(0)
    valid = [image_file(40, 30, kind) for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")]
    for turn in range(300):
        data = bytearray(valid[turn % len(valid)])
        for place in rng.integers(0, len(data), rng.integers(1, 12)):
            data[place] = rng.integers(0, 256)
        with suppress(ApiError):  # anything else is a failure
            read_upload(bytes(data), Limits(pixels=1_000_000))


# -- texts -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def text_server(tmp_path_factory):
    """A client of a server with a text model, and the model's folder."""
    folder = tmp_path_factory.mktemp("models") / "reviews"
    model, tokenizer = text_model()
    model.float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    models = load_models([f"hf:{folder}"], [])
    with TestClient(small_app(*models, tiny_model(), characters=300)) as client:
        yield client, str(folder)


def test_texts_are_explained_word_by_word(text_server, monkeypatch):
    client, folder = text_server
    info = client.get("/api/models").json()[0]
    assert (info["id"], info["kind"], info["grid"], info["input"]) == ("hf-reviews", "text", None, None)
    assert not {m["name"]: m["works"] for m in info["methods"]}["rise"]
    samples = client.get("/api/samples?model=hf-reviews").json()
    assert all(s["text"] and s["url"] is None for s in samples)
    text = "the film is superb, the plot <b>tedious</b>"
    prediction = client.post("/api/predict", json={"model": "hf-reviews", "text": text}).json()
    assert prediction["classes"] == 3
    methods = ["attcat", "integrated_gradients:steps=3"]
    body = {"model": "hf-reviews", "text": text, "methods": methods, "targets": [2, 0]}
    job = client.post("/api/explain?wait=true", json=body).json()
    assert job["text"] == text
    assert {i["state"] for i in job["items"]} == {"done"}
    words = job["items"][0]["words"]
    assert [text[w["start"] : w["end"]] for w in words] == [w["text"] for w in words] == text.split()
    assert max(abs(w["score"]) for w in words) == pytest.approx(1)
    assert job["items"][0]["map"] is None
    for name in ("figure.png", "maps.safetensors", "manifest.json"):
        response = client.get(f"/api/jobs/{job['id']}/{name}")
        assert response.is_success
        assert folder.encode() not in response.content
    code = client.get(f"/api/jobs/{job['id']}/code.py").text
    assert folder not in code
    namespace = {}
    monkeypatch.chdir(folder)
    exec(code.replace("'hf:reviews'", repr(f"hf:{folder}")).replace("'reviews'", repr(folder)), namespace)  # noqa: S102
    for item in job["items"]:
        text_scores = namespace["explanations"][item["method"]].text[0]
        k = [2, 0].index(item["target"])
        assert [w["raw"] for w in item["words"]] == pytest.approx(text_scores.scores[k].tolist(), abs=1e-5)


def test_attention_of_a_token(text_server):
    client, _ = text_server
    response = client.post("/api/attention", json={"model": "hf-reviews", "text": "a lovely film", "token": 2}).json()
    assert response["tokens"] == ["[CLS]", "a", "love", "##ly", "film", "[SEP]"]
    assert (response["grid"], response["prefix"]) == (None, 0)
    assert response["layers"][0]["heads"][0]["shape"] == [1, 6]
    long = "the film and the plot " * 8
    assert "longer" in error_text(
        client.post("/api/attention", json={"model": "hf-reviews", "text": long, "token": 2}), 422
    )
    body = {"model": "hf-reviews", "text": long, "methods": ["rollout"]}
    assert client.post("/api/explain?wait=true", json=body).json()["state"] == "done"


def test_invalid_texts_are_rejected(text_server):
    client, _ = text_server
    body = {"model": "hf-reviews", "methods": ["gradcam"]}
    assert "empty" in error_text(client.post("/api/explain", json={**body, "text": "  "}), 422)
    assert "at most 300" in error_text(client.post("/api/explain", json={**body, "text": "a" * 301}), 422)
    assert "is a text model" in error_text(client.post("/api/explain", json={**body, "picture": "0"}), 422)
    assert "unicode" in error_text(
        client.post("/api/explain", content=b'{"model":"hf-reviews","methods":["gradcam"],"text":"\\ud800"}',
                    headers={"Content-Type": "application/json"}), 422)  # fmt: skip
    assert "does not apply" in error_text(
        client.post("/api/explain", json={**body, "text": "a", "methods": ["rise"]}), 422
    )
    assert "an image model" in error_text(
        client.post("/api/pictures?model=hf-reviews", files={"file": image_file()}), 422
    )
    assert "an image model" in error_text(
        client.post("/api/curves", json={"model": "hf-reviews", "picture": "0", "methods": ["gradcam"]}), 422
    )
