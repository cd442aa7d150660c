"""Browsing a store of maps: pages by method, class and image; pictures over the image, or of the map alone."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.bench import map_gallery
from vitrail.bench.folder import explain_folder
from vitrail.bench.map_gallery import MapGallery
from vitrail.bench.map_store import write_index, write_shard
from vitrail.data.scenes import render
from vitrail.errors import InputError

pytest.importorskip("pyarrow")


@pytest.fixture
def folder(tmp_path):
    """Maps of 150 images in three classes, and an image without a map."""
    rows = [
        {"image": f"i{n:03d}", "method": m, "class": n % 3, "name": ("cat", "Dog, hound", None)[n % 3], "part": "p",
         "offset": n}
        for n in range(150) for m in ("rollout", "tam")
    ]  # fmt: skip
    rows.append({"image": "x<b>", "method": "rollout", "error": "not an image", "class": -1, "offset": -1})
    maps = torch.eye(4).expand(150, 4, 4)
    write_shard(tmp_path / "parts" / "p.safetensors", {"rollout": maps, "tam": maps.flip(-1)}, {})
    write_index(tmp_path, rows, {"key": "k", "model": "tiny"})
    return tmp_path


def test_rows_are_chosen_by_method_class_and_image(folder):
    gallery = MapGallery(folder)
    assert gallery.title == "301 maps of tiny"
    first = gallery.rows()
    assert (len(first.rows), first.total, first.page, first.pages) == (map_gallery.PAGE_SIZE, 301, 1, 6)
    assert [row["image"] for row in first.rows.values()][:3] == ["i000", "i000", "i001"]
    last = gallery.rows(page=99)
    assert (last.page, len(last.rows)) == (6, 1)
    dogs = gallery.rows(method="tam", name="dog")
    assert dogs.total == 50
    assert {(row["method"], row["class"]) for row in dogs.rows.values()} == {("tam", 1)}
    assert [row["image"] for row in gallery.rows(image="I14", method="rollout").rows.values()] == [
        f"i14{n}" for n in range(10)
    ]
    assert gallery.rows(name="no such class").rows == {}
    assert all(gallery.store.index.slice(n, 1).to_pylist() == [row] for n, row in dogs.rows.items())


def test_rows_of_a_truncated_file_have_the_reason(folder):
    path = folder / "parts" / "p.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    rows = list(MapGallery(folder).rows(page=6).rows.values())
    assert [row["error"] for row in rows] == ["not an image"]
    (row,) = MapGallery(folder).rows(method="tam", image="i007").rows.values()
    assert row["offset"] == -1
    assert "p.safetensors is truncated or damaged" in row["error"]


def test_picture_of_a_map_whose_image_is_not_there(folder):
    gallery = MapGallery(folder)
    (number,) = gallery.rows(method="tam", image="i007").rows
    pixels = np.asarray(Image.open(BytesIO(gallery.picture(number)))).astype(int).sum(-1)
    assert pixels.shape == (4, 4)
    assert np.diag(np.fliplr(pixels)).min() > 3 * np.diag(pixels).max(), "tam's map is light on the other diagonal"
    (failed,) = gallery.rows(image="x<b>").rows
    with pytest.raises(InputError, match="not an image"):
        gallery.picture(failed)
    with pytest.raises(InputError, match="there is no map 301"):
        gallery.picture(301)


def test_picture_over_the_image_of_an_explained_folder(tmp_path):
    (tmp_path / "in").mkdir()
    Image.fromarray(render(0, 1).image).save(tmp_path / "in" / "a.png")
    explain_folder(tmp_path / "in", tmp_path / "out", methods=["rollout"])
    drawn = Image.open(BytesIO(MapGallery(tmp_path / "out").picture(0)))
    assert drawn.size == (128, 128)
