"""Grids of images: cells, classes, masks and refusals."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data import ImageGrids, open_dataset
from vitrail.errors import DataError, DataWarning

pytestmark = pytest.mark.filterwarnings(f"ignore::{DataWarning.__module__}.{DataWarning.__qualname__}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six classes of one image each; all pixels of an image have the value ten times its class."""
    lines = ["index,wnid,name"]
    for label in range(6):
        wnid = f"n{label:08d}"
        (tmp_path / "val" / wnid).mkdir(parents=True)
        Image.new("RGB", (20, 10), (10 * label,) * 3).save(tmp_path / "val" / wnid / f"image{label}.JPEG", quality=100)
        lines.append(f"{label},{wnid},class {label}")
    (tmp_path / "classes.csv").write_text("\n".join(lines))
    return tmp_path


def test_cells_show_their_classes_and_masks_cover_them(folder: Path) -> None:
    grids = open_dataset("grids", folder, count=5, size=8)
    assert isinstance(grids, ImageGrids)
    for index in range(5):
        sample, masks = grids[index], grids.cell_masks(index)
        assert len(set(sample.labels)) == 4
        assert tuple(masks) == sample.labels
        assert (sum(masks.values()) == 1).all()
        pixels = np.asarray(sample.image)
        for label, mask in masks.items():
            assert abs(pixels[mask == 1].astype(int) - 10 * label).max() <= 1


def test_eligible_images_and_refusals(folder: Path) -> None:
    (folder / "among.txt").write_text("image1\nimage2\nimage4\nimage5\n")
    grids = ImageGrids(folder, count=3, size=4, among=folder / "among.txt")
    assert {label for i in range(3) for label in grids[i].labels} == {1, 2, 4, 5}
    (folder / "among.txt").write_text("image1\nnothing\n")
    with pytest.raises(DataError, match="names nothing, which"):
        ImageGrids(folder, among=folder / "among.txt")
    with pytest.raises(DataError, match="needs 9 different classes, the 6 eligible images have 6"):
        ImageGrids(folder, n=3)
    with pytest.raises(DataError, match="n ≥ 2"):
        ImageGrids(folder, n=1)
