"""Create small files in the layouts of the published data sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.synsets import imagenet_wnids

RNG = np.random.default_rng(0)


def write_image(path: Path, size=(8, 6), mode="RGB", **options) -> np.ndarray:
    """Write an image of noise and return its pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = RNG.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path, **options)
    return pixels


def write_xml(path: Path, size, objects) -> None:
    """Write boxes in the format of VOC and ImageNet; objects are (name, xmin, ymin, xmax, ymax, difficult)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    elements = "".join(
        f"<object><name>{name}</name><difficult>{difficult}</difficult><bndbox><xmin>{a}</xmin><ymin>{b}</ymin>"
        f"<xmax>{c}</xmax><ymax>{d}</ymax></bndbox><part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin>"
        "<xmax>2</xmax><ymax>2</ymax></bndbox></part></object>"
        for name, a, b, c, d, difficult in objects
    )
    width, height = size
    path.write_text(
        f"<annotation><filename>{path.stem}</filename><size><width>{width}</width><height>{height}</height>"
        f"<depth>3</depth></size>{elements}</annotation>"
    )


def write_imagenet_segmentation(tmp_path: Path):
    """Write three images in the layout of gtsegs_ijcv.mat: references to cells, all arrays transposed."""
    h5py = pytest.importorskip("h5py", reason="gtsegs_ijcv.mat is HDF5, which h5py reads")
    expected = {}
    with h5py.File(tmp_path / "gtsegs_ijcv.mat", "w") as file:
        names = (f"{imagenet_wnids()[3]}_12", "n00001740_5", f"{imagenet_wnids()[999]}_33701")
        tables = {
            part: file.create_dataset(f"value/{part}", (3, 1), dtype=h5py.ref_dtype)
            for part in ("img", "gt", "id", "target")
        }
        for k, name in enumerate(names):
            pixels = RNG.integers(0, 256, (5 + k, 9, 3), dtype=np.uint8)
            mask = RNG.integers(0, 2, (5 + k, 9), dtype=np.uint8)
            expected[name] = (pixels, mask)
            cell = file.create_dataset(f"#refs#/cell{k}", (1, 1), dtype=h5py.ref_dtype)
            cell[0, 0] = file.create_dataset(f"#refs#/gt{k}", data=mask.T).ref
            tables["gt"][k, 0] = cell.ref
            tables["img"][k, 0] = file.create_dataset(f"#refs#/img{k}", data=pixels.transpose(2, 1, 0)).ref
            letters = np.frombuffer(name.encode("utf-16-le"), np.uint16)[:, None]
            tables["id"][k, 0] = file.create_dataset(f"#refs#/id{k}", data=letters).ref
    return tmp_path / "gtsegs_ijcv.mat", expected


def write_voc(tmp_path: Path) -> Path:
    """Write two images in the layout of PASCAL VOC2012."""
    root = tmp_path / "VOCdevkit" / "VOC2012"
    (root / "ImageSets" / "Segmentation").mkdir(parents=True)
    (root / "ImageSets" / "Segmentation" / "val.txt").write_text("2007_000033\n2007_000042\n")
    palette = [k * 7 % 256 for k in range(768)]
    for name, values in (("2007_000033", (0, 1, 255)), ("2007_000042", (0, 12, 15))):
        write_image(root / "JPEGImages" / f"{name}.jpg", (8, 6))
        mask = Image.fromarray(np.resize(np.array(values, np.uint8), (6, 8)))
        mask.putpalette(palette)
        (root / "SegmentationClass").mkdir(exist_ok=True)
        mask.save(root / "SegmentationClass" / f"{name}.png")
        write_xml(root / "Annotations" / f"{name}.xml", (8, 6), [("person", 1, 1, 8, 6, 0), ("dog", 2, 3, 4.0, 5, 1)])
    return tmp_path
