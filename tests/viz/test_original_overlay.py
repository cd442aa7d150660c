"""Original images: which part of them the model saw, and overlays at their own size."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.errors import InputError
from vitrail.models import ImageGeometry
from vitrail.testing import tiny_vit
from vitrail.viz import original_overlay as drawing
from vitrail.viz.colormap import blend, stretch

PREPROCESS = vitrail.Preprocess((32, 32), crop=0.875)
QUARTER_TURN = 6


def ramp(width: int, height: int) -> Image.Image:
    """Red grows with x, green with y, from 0 at the first edge to 1 at the last."""
    x = (np.arange(width) + 0.5) / width * 255
    y = (np.arange(height) + 0.5) / height * 255
    pixels = np.stack(np.broadcast_arrays(x[None], y[:, None], np.zeros((1, 1))), -1)
    return Image.fromarray(pixels.round().astype(np.uint8))


@pytest.fixture
def rotated(tmp_path):
    """A file of 90×60 stored pixels that is displayed as 60×90."""
    path = tmp_path / "phone.jpg"
    exif = Image.Exif()
    exif[0x0112] = QUARTER_TURN
    ramp(90, 60).save(path, exif=exif, quality=100, subsampling=0)
    return path


@pytest.mark.parametrize("size", [(400, 300), (300, 400), (333, 517), (64, 64)])
@pytest.mark.parametrize("preprocess", [
    PREPROCESS,
    vitrail.Preprocess((32, 48), crop=0.9),
    vitrail.Preprocess((32, 48), squash=True),
    vitrail.Preprocess((64, 64), crop=1.0, resample="bilinear"),
])  # fmt: skip
def test_geometry_agrees_with_the_pixels_of_the_input(size, preprocess):
    width, height = size
    geometry = preprocess.geometry(height, width)
    pixels = preprocess.denormalise(preprocess(ramp(width, height))[None])[0] / 255
    rows, columns = preprocess.size
    assert geometry.input_size == (rows, columns)
    for row, column in ((3, 3), (rows // 2, columns - 5), (rows - 4, columns // 3)):
        x, y = geometry.to_image(column + 0.5, row + 0.5)
        assert pixels[row, column, 0] == pytest.approx(x / width, abs=0.006)
        assert pixels[row, column, 1] == pytest.approx(y / height, abs=0.006)
        assert geometry.to_input(x, y) == pytest.approx((column + 0.5, row + 0.5))


def test_geometry_says_what_was_cropped_turned_and_squashed():
    cut = PREPROCESS.geometry(300, 400)
    assert cut.cropped
    assert not cut.rotated
    assert not cut.squashed
    assert 0.5 < cut.share < 0.6
    whole = vitrail.Preprocess((32, 32), squash=True).geometry(300, 400, orientation=QUARTER_TURN)
    assert (whole.cropped, whole.rotated, whole.squashed, whole.share) == (False, True, True, 1.0)
    text = str(whole)
    assert "whole image" in text
    assert "aspect ratio" in text
    assert "turned by 90°" in text
    assert json.loads(json.dumps(whole.to_dict()))["rotated"] is True


def test_overlay_lies_on_the_original_image(monkeypatch):
    # A map with one bright patch: the brightest place of the overlay must lie at that patch of the original.
    relevance = np.zeros((32, 32), np.float32)
    relevance[8:16, 16:24] = 1.0
    image = Image.new("RGB", (400, 300), (90, 90, 90))
    geometry = PREPROCESS.geometry(300, 400)
    whole = np.asarray(drawing.original_overlay(image, relevance, geometry)).astype(int)
    left, top = geometry.to_image(16, 8)
    right, bottom = geometry.to_image(24, 16)
    inside = whole[int(top) + 12 : int(bottom) - 12, int(left) + 12 : int(right) - 12].sum(-1)
    box = [round(v) for v in geometry.box]
    assert inside.min() > whole[box[1] + 5 : int(top) - 12, box[0] + 5 : box[2] - 5].sum(-1).max()
    assert (whole[:10, :10] == round(90 * drawing.DIM)).all(), "what was cropped away is dimmed"
    assert (whole[:, box[0] - 1] == 255).all(-1).any(), "the crop is outlined"
    monkeypatch.setattr(drawing, "STRIP_PIXELS", 1000)
    assert (np.asarray(drawing.original_overlay(image, relevance, geometry)) == whole).all(), "strips have no seams"


def test_overlay_of_an_uncropped_image_has_no_outline():
    relevance = np.random.default_rng(0).random((32, 32)).astype(np.float32)
    image = Image.effect_noise((32, 32), 60).convert("RGB")
    geometry = ImageGeometry((32, 32), (0.0, 0.0, 32.0, 32.0), (32, 32))
    drawn = np.asarray(drawing.original_overlay(image, relevance, geometry))
    assert (drawn == blend(np.asarray(image), stretch(relevance))).all()


def test_explanation_of_a_rotated_file(rotated, tmp_path):
    e = vitrail.explain(tiny_vit(), [rotated, rotated], "rollout", preprocess=PREPROCESS, target="top2", batch_size=1)
    geometry = e.originals[1].geometry
    assert geometry.size == (90, 60)
    assert geometry.rotated
    assert e.overlay(1, 1, original=True).size == (60, 90)
    e.save(tmp_path / "out", original=True)
    names = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert names["geometry"][0]["size"] == [90, 60]
    written = sorted(p.name for p in (tmp_path / "out").glob("overlay-original-*.jpg"))
    assert len(written) == 4
    assert set(written) < set(names["overlays"])
    e.save(tmp_path / "out")
    assert not list((tmp_path / "out").glob("overlay-original*")), "overlays of an earlier call are removed"


def test_images_and_paths_have_originals_and_tensors_have_none(rotated):
    image = Image.open(rotated)
    e = vitrail.explain(tiny_vit(), image, "rollout", preprocess=PREPROCESS)
    assert e.originals[0].geometry.orientation == QUARTER_TURN
    assert e.overlay(original=True).size == (60, 90)
    e = vitrail.explain(tiny_vit(), torch.zeros(1, 3, 32, 32), "rollout", preprocess=PREPROCESS)
    assert e.originals is None
    with pytest.raises(InputError, match="tensors were explained"):
        e.overlay(original=True)
    e = vitrail.explain(tiny_vit(), image, "rollout", preprocess=PREPROCESS.__call__)
    with pytest.raises(InputError, match="preprocessing is a function"):
        e.overlay(original=True)


def test_changed_file_is_refused(rotated):
    e = vitrail.explain(tiny_vit(), rotated, "rollout", preprocess=PREPROCESS)
    ramp(40, 40).save(rotated)
    with pytest.raises(InputError, match="had 60×90 before"):
        e.overlay(original=True)
    rotated.unlink()
    with pytest.raises(InputError, match="does not exist"):
        e.overlay(original=True)
