"""Files from strangers, texts, and what nobody would send on purpose."""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress
from io import BytesIO

import numpy as np
import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, settings
from PIL import Image
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from texts import text_model
from vitrail.cli.serve import load_models
from vitrail.models.preprocess import upright
from vitrail.web.errors import ApiError
from vitrail.web.limits import Limits
from vitrail.web.uploads import read_upload
from web_case import app_of, error, picture_file, send, sent, tiny


@pytest.fixture(scope="module")
def app():
    return app_of(upload=200_000, pixels=1_000_000)


@pytest.fixture(scope="module")
def client(app):
    with TestClient(app) as one:
        yield one


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    held = BytesIO()
    image.save(held, format=kind, **options)
    return held.getvalue()


def seen(client, held):
    answer = client.get(f"/api/pictures/{held['picture']}.png?model=tiny")
    return np.asarray(Image.open(BytesIO(answer.content)))


def bomb(width: int, height: int) -> bytes:
    """A PNG that says it is huge, and is a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")


# -- what is taken -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_kinds_of_files_by_content_not_by_name(client, kind):
    held = send(client, picture_file(kind=kind), name="../../etc/passwd.exe").json()
    assert (held["width"], held["height"]) == (40, 30)
    assert seen(client, held).shape == (32, 32, 3)


def test_what_the_model_sees_is_what_the_command_line_gives_it(client, app):
    data = picture_file(300, 200)
    held = send(client, data).json()
    served = app.state.studio.models["tiny"]
    expected = served.preprocess(upright(Image.open(BytesIO(data))))
    fed = served.model_inputs(app.state.studio.picture(held["picture"]).seen["tiny"]).args[0][0]
    assert np.allclose(fed.numpy(), expected.numpy(), atol=1e-6)


def test_cameras_orientation_is_applied(client):
    image = Image.fromarray(np.zeros((30, 40, 3), np.uint8))
    image.paste((255, 0, 0), (0, 0, 20, 30))
    exif = Image.Exif()
    exif[0x0112] = 6
    held = send(client, encoded(image, "JPEG", exif=exif, quality=95)).json()
    assert (held["width"], held["height"]) == (30, 40)
    assert held["notes"] == ["rotated as its EXIF says"]
    assert seen(client, held)[2, 16, 0] > 200
    assert seen(client, held)[29, 16, 0] < 50


def test_animations_greys_inks_and_transparency(client):
    first, second = (Image.new("RGB", (20, 20), colour) for colour in ("red", "blue"))
    moving = send(client, encoded(first, "GIF", save_all=True, append_images=[second])).json()
    assert moving["notes"] == ["several frames: the first is used"]
    assert seen(client, moving)[16, 16].tolist() == [255, 0, 0]
    ramp = Image.fromarray(np.linspace(0, 65535, 400).reshape(20, 20).astype(np.uint16))
    deep = send(client, encoded(ramp)).json()
    assert deep["notes"] == ["16 bits a pixel: scaled to 8"]
    assert 100 < seen(client, deep).mean() < 155
    inks = send(client, encoded(Image.new("CMYK", (20, 20), (0, 255, 255, 0)), "JPEG")).json()
    assert inks["notes"] == ["CMYK: converted to RGB without its colour profile"]
    clear = Image.new("P", (20, 20))
    glass = send(client, encoded(clear, "PNG", transparency=0)).json()
    assert glass["notes"] == ["transparency: laid on white"]
    assert seen(client, glass).min() == 255
    assert send(client, encoded(Image.new("RGBA", (20, 20), (0, 0, 0, 0)))).json()["notes"] == glass["notes"]
    assert send(client, encoded(Image.new("1", (20, 20)))).is_success


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_what_is_no_picture(client):
    for data in (b"hello", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.4", b"%!PS-Adobe-3.0 EPSF", b"\0"):
        assert "not a picture" in error(send(client, data, "cat.png"), 415)
    error(send(client, b""), 422)
    error(client.post("/api/pictures"), 422)
    error(client.post("/api/pictures", files={"other": b"x"}), 422)
    error(client.post("/api/pictures", data={"file": "a text"}), 422)
    error(client.post("/api/pictures?model=none", files={"file": picture_file()}), 404)


def test_damaged_files(client):
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "TIFF"):
        whole = picture_file(90, 90, kind)
        for cut in (len(whole) // 2, 30, 9):
            assert send(client, whole[:cut]).status_code in (415, 422)
        assert "damaged" in error(send(client, picture_file(90, 90, "PNG")[:2000]), 422)
    flipped = bytearray(picture_file(90, 90))
    flipped[60] ^= 0xFF
    error(send(client, bytes(flipped)), 422)
    assert send(client).is_success


def test_files_and_pictures_that_are_too_large(client):
    error(send(client, b"\x89PNG" + b"\0" * 250_000), 413)
    answer = client.post(
        "/api/pictures", content=(b"\0" * 10_000 for _ in range(40)),
        headers={"Content-Type": "multipart/form-data; boundary=x"},
    )  # fmt: skip
    error(answer, 413)
    for width, height in ((1001, 1000), (60_000, 60_000), (2**31 - 1, 2**31 - 1)):
        assert "pixels" in error(send(client, bomb(width, height)), 422)
    assert "times as long" in error(send(client, picture_file(500, 3)), 422)
    assert "floating-point" in error(send(client, encoded(Image.new("F", (20, 20)), "TIFF")), 422)
    packed = encoded(Image.new("L", (1000, 900)))
    assert len(packed) < 5000
    assert send(client, packed).is_success


def test_noise_never_breaks_the_reader():
    rng = np.random.default_rng(0)
    starts = [picture_file(40, 30, kind) for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")]
    for turn in range(300):
        data = bytearray(starts[turn % len(starts)])
        for place in rng.integers(0, len(data), rng.integers(1, 12)):
            data[place] = rng.integers(0, 256)
        with suppress(ApiError):  # anything else is a failure
            read_upload(bytes(data), Limits(pixels=1_000_000))


# -- texts -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """A text model and its tokenizer in a folder, as an operator has it."""
    folder = tmp_path_factory.mktemp("models") / "reviews"
    model, tokenizer = text_model()
    model.float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    models = load_models([f"hf:{folder}"], [])
    with TestClient(app_of(*models, tiny(), characters=300)) as one:
        yield one, str(folder)


def test_texts_are_explained_word_by_word(reader, monkeypatch):
    client, folder = reader
    card = client.get("/api/models").json()[0]
    assert (card["id"], card["kind"], card["grid"], card["input"]) == ("hf-reviews", "text", None, None)
    assert not {m["name"]: m["works"] for m in card["methods"]}["rise"]
    samples = client.get("/api/samples?model=hf-reviews").json()
    assert all(s["text"] and s["url"] is None for s in samples)
    text = "the film is superb, the plot <b>tedious</b>"
    said = client.post("/api/predict", json={"model": "hf-reviews", "text": text}).json()
    assert said["classes"] == 3
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
        answer = client.get(f"/api/jobs/{job['id']}/{name}")
        assert answer.is_success
        assert folder.encode() not in answer.content
    code = client.get(f"/api/jobs/{job['id']}/code.py").text
    assert folder not in code
    found = {}
    monkeypatch.chdir(folder)
    exec(code.replace("'hf:reviews'", repr(f"hf:{folder}")).replace("'reviews'", repr(folder)), found)  # noqa: S102
    for item in job["items"]:
        one = found["found"][item["method"]].text[0]
        k = [2, 0].index(item["target"])
        assert [w["raw"] for w in item["words"]] == pytest.approx(one.scores[k].tolist(), abs=1e-5)


def test_attention_of_a_token(reader):
    client, _ = reader
    answer = client.post("/api/attention", json={"model": "hf-reviews", "text": "a lovely film", "token": 2}).json()
    assert answer["tokens"] == ["[CLS]", "a", "love", "##ly", "film", "[SEP]"]
    assert (answer["grid"], answer["prefix"]) == (None, 0)
    assert answer["layers"][0]["heads"][0]["shape"] == [1, 6]
    long = "the film and the plot " * 8
    assert "longer" in error(client.post("/api/attention", json={"model": "hf-reviews", "text": long, "token": 2}), 422)
    body = {"model": "hf-reviews", "text": long, "methods": ["rollout"]}
    assert client.post("/api/explain?wait=true", json=body).json()["state"] == "done"


def test_texts_that_cannot_be_read(reader):
    client, _ = reader
    body = {"model": "hf-reviews", "methods": ["gradcam"]}
    assert "empty" in error(client.post("/api/explain", json={**body, "text": "  "}), 422)
    assert "300 are allowed" in error(client.post("/api/explain", json={**body, "text": "a" * 301}), 422)
    assert "reads texts" in error(client.post("/api/explain", json={**body, "picture": "0"}), 422)
    assert "unicode" in error(
        client.post("/api/explain", content=b'{"model":"hf-reviews","methods":["gradcam"],"text":"\\ud800"}',
                    headers={"Content-Type": "application/json"}), 422)  # fmt: skip
    assert "does not apply" in error(client.post("/api/explain", json={**body, "text": "a", "methods": ["rise"]}), 422)
    assert "an image model" in error(client.post("/api/pictures?model=hf-reviews", files={"file": picture_file()}), 422)
    assert "an image model" in error(
        client.post("/api/curves", json={"model": "hf-reviews", "picture": "0", "methods": ["gradcam"]}), 422
    )


# -- whatever fits the schema ------------------------------------------------------------------------------------------

_APP = app_of(upload=50_000, each=1000, queue=1000)
_SCHEMA = schemathesis.openapi.from_asgi("/api/openapi.json", _APP)
_KNOWN = TestClient(_APP)
_PICTURE = sent(_KNOWN)
_CHEAP = ("rollout", "gradtoken", "random", "raw_attention:layer=-1", "rise:masks=2", "edges", "nonsense", "lrp")


@_SCHEMA.parametrize()
@settings(
    max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_nothing_that_fits_the_schema_breaks_the_server(case):
    if isinstance(case.body, dict) and "model" in case.body:
        # Ids that exist, so that requests get past the door; no method that takes long.
        case.body["model"] = "tiny"
        if "picture" in case.body and len(str(case.body["picture"])) % 3:
            case.body["picture"] = _PICTURE
        if isinstance(case.body.get("methods"), list):
            case.body["methods"] = [_CHEAP[len(str(m)) % len(_CHEAP)] for m in case.body["methods"]]
    if isinstance(case.query, dict) and "model" in case.query:
        case.query["model"] = "tiny"
    case.call_and_validate(checks=[not_a_server_error, response_schema_conformance, content_type_conformance])
