"""ImageNet and ImageNet-Segmentation: all layouts, real files if available, and damaged files."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.datafiles import write_image, write_imagenet_segmentation, write_xml
from vitrail.data import Dataset, ImageNet, ImageNetSegmentation, open_dataset
from vitrail.data.image_files import read_rgb
from vitrail.data.synsets import imagenet_wnids
from vitrail.errors import DataError, DataWarning, MissingExtraError

pytestmark = pytest.mark.filterwarnings("ignore::vitrail.errors.DataWarning")


def test_real_imagenet(assets):
    with pytest.warns(DataWarning, match="1,000 samples found, the published data set has 50,000"):
        dataset = ImageNet(assets / "imagenet")
    assert isinstance(dataset, Dataset)
    assert len(dataset) == 1000
    assert dataset.labels != tuple(range(1000))  # ordered by file name
    assert sorted(dataset.labels) == list(range(1000))
    assert dataset.ids[0] == "ILSVRC2012_val_00000001"
    assert list(dataset.ids) == sorted(dataset.ids)
    assert dataset.classes[1] == "goldfish"
    boxes = 0
    for sample in dataset:
        assert sample.image.mode == "RGB"
        assert min(sample.image.size) == 256
        assert sample.boxes.dtype == np.float32
        assert (sample.box_labels == sample.label).all()
        assert (sample.boxes[:, :2] >= 0).all()
        assert (sample.boxes[:, 2:] <= sample.image.size).all()
        assert (sample.boxes[:, 2:] > sample.boxes[:, :2]).all()
        boxes += len(sample.boxes)
    assert boxes == 1605
    assert repr(dataset) == "ImageNet(1,000 of 50,000 samples)"


def test_real_imagenet_without_classes_csv(assets):
    table = ImageNet(assets / "imagenet", boxes=False)
    with_folder_only = ImageNet(assets / "imagenet" / "val")
    assert with_folder_only.ids == table.ids
    assert with_folder_only[3].boxes is None
    rows = (assets / "imagenet" / "classes.csv").read_text().split()[1:]
    assert tuple(row.split(",")[1] for row in rows) == imagenet_wnids() == tuple(sorted(imagenet_wnids()))


@pytest.fixture
def flat(tmp_path):
    """Six validation images in one folder."""
    for k in range(1, 7):
        write_image(tmp_path / "val" / f"ILSVRC2012_val_{k:08d}.JPEG", mode=["RGB", "L", "CMYK"][k % 3])
    return tmp_path


DEVKIT_NUMBERS = (490, 361, 171, 822, 297, 482)
"""Class numbers of the development kit, mapped below to the class indices 0, 10, … 50."""


def write_devkit(folder: Path) -> None:
    savemat = pytest.importorskip("scipy.io", reason="meta.mat is written and read with scipy").savemat
    kinds = [("ILSVRC2012_ID", "f8"), ("WNID", object), ("words", object), ("num_children", "f8")]
    rows = [(number, imagenet_wnids()[10 * k], "words", 0) for k, number in enumerate(DEVKIT_NUMBERS)]
    folder.mkdir(parents=True)
    savemat(folder / "meta.mat", {"synsets": np.array(rows, dtype=kinds).reshape(-1, 1)})
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text("".join(f"{n}\n" for n in DEVKIT_NUMBERS))


def test_flat_imagenet_with_development_kit(flat):
    write_devkit(flat / "ILSVRC2012_devkit_t12" / "data")
    dataset = ImageNet(flat)
    assert dataset.labels == (0, 10, 20, 30, 40, 50)
    assert {sample.image.mode for sample in dataset} == {"RGB"}
    assert ImageNet(flat / "val", labels=flat / "ILSVRC2012_devkit_t12").labels == dataset.labels
    (flat / "ILSVRC2012_devkit_t12" / "data" / "meta.mat").unlink()
    with pytest.raises(DataError, match=r"meta.mat"):
        ImageNet(flat)


@pytest.mark.parametrize("kind", ["pairs", "kaggle", "synsets"])
def test_flat_imagenet_with_text_file(flat, kind):
    names = [f"ILSVRC2012_val_{k:08d}" for k in range(1, 7)]
    chosen = imagenet_wnids()[5:11]
    text = {
        "pairs": "".join(f"{n}.JPEG {w}\n" for n, w in zip(names, chosen, strict=True)),
        "kaggle": "ImageId,PredictionString\n"
        + "".join(f"{n},{w} 1 2 3 4 \n" for n, w in zip(names[::-1], chosen[::-1], strict=True)),
        "synsets": "\n".join(chosen),
    }[kind]
    (flat / "synset_labels.txt").write_text(text)
    assert ImageNet(flat).labels == (5, 6, 7, 8, 9, 10)
    (flat / "synset_labels.txt").write_text("cat\ndog\n")
    with pytest.raises(DataError, match="not a list of labels"):
        ImageNet(flat)


def test_flat_imagenet_without_labels_names_the_expected_file(flat):
    with pytest.raises(DataError, match=r"no label file was found.*ground_truth.txt with meta.mat.*labels=path"):
        ImageNet(flat)
    (flat / "val.txt").write_text(f"ILSVRC2012_val_00000002.JPEG {imagenet_wnids()[3]}\n")
    with pytest.raises(DataError, match=r"5 of 6 images .* have no label"):
        ImageNet(flat)


def test_few_class_folders_keep_the_class_indices(tmp_path):
    for k in (7, 993):
        write_image(tmp_path / "val" / imagenet_wnids()[k] / f"ILSVRC2012_val_{1000 - k:08d}.JPEG")
    write_image(tmp_path / "logo.png")
    dataset = ImageNet(tmp_path)
    assert dataset.labels == (993, 7)  # by file name
    assert dataset[0].label == 993
    (tmp_path / "val" / imagenet_wnids()[8]).mkdir()
    with pytest.raises(DataError, match=r"1 of 3 class folders .* are empty.*2 of 50,000 images were found"):
        ImageNet(tmp_path)


def test_other_classes_need_classes_csv(tmp_path):
    write_image(tmp_path / "n99999999" / "x.JPEG")
    write_image(tmp_path / "n00000001" / "x.JPEG")
    with pytest.raises(DataError, match=r"n00000001 .*classes.csv"):
        ImageNet(tmp_path)
    (tmp_path / "classes.csv").write_text("index,wnid,name\n1,n00000001,some_thing\n0,n99999999,other\n")
    dataset = ImageNet(tmp_path)
    assert dataset.ids == ("n00000001/x", "n99999999/x")  # file names alone are not unique
    assert (dataset.labels, dataset.classes) == ((1, 0), ("other", "some thing"))
    (tmp_path / "classes.csv").write_text("index,wnid\n1,n00000001\n1,n99999999\n")
    with pytest.raises(DataError, match="distinct indices"):
        ImageNet(tmp_path)


def test_boxes_are_scaled_to_the_image(tmp_path):
    file = tmp_path / "val" / imagenet_wnids()[2] / "ILSVRC2012_val_00000003.JPEG"
    write_image(file, (50, 40))
    objects = [
        (imagenet_wnids()[2], 10, 20, 49, 39, 0),
        ("n00000000", 0, 0, 99, 79, 0),
        (imagenet_wnids()[2], 90, 70, 120, 90, 0),
    ]
    write_xml(tmp_path / "Annotations/CLS-LOC/val/ILSVRC2012_val_00000003.xml", (100, 80), objects)
    sample = ImageNet(tmp_path)[0]
    assert sample.boxes.tolist() == [[5, 10, 25, 20], [0, 0, 50, 40], [45, 35, 50, 40]]
    assert sample.box_labels.tolist() == [2, -1, 2]
    assert len(sample.boxes_of(2)) == 2
    write_xml(tmp_path / "Annotations/CLS-LOC/val/ILSVRC2012_val_00000003.xml", (40, 50), objects[:1])
    with pytest.raises(DataError, match="rotated"):
        ImageNet(tmp_path)[0]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("<annotation><object>", "cannot be read as an annotation"),
        ("<annotation></annotation>", "has no boxes"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><annotation></annotation>', "not a bounding box annotation"),
        ("<annotation><object><name>a</name></object></annotation>", "bndbox/xmin is missing"),
    ],
)
def test_damaged_annotation_error_names_the_file(tmp_path, text, match):
    write_image(tmp_path / "val" / imagenet_wnids()[2] / "a.JPEG")
    (tmp_path / "boxes").mkdir()
    (tmp_path / "boxes" / "a.xml").write_text(text)
    with pytest.raises(DataError, match=match) as error:
        ImageNet(tmp_path)[0]
    assert "a.xml" in str(error.value)


def test_missing_annotations_are_counted(tmp_path):
    for name in "ab":
        write_image(tmp_path / "val" / imagenet_wnids()[2] / f"{name}.JPEG")
    write_xml(tmp_path / "boxes" / "a.xml", (8, 6), [(imagenet_wnids()[2], 0, 0, 1, 1, 0)])
    with pytest.raises(DataError, match=r"1 of 2 images; b.xml is missing"):
        ImageNet(tmp_path)
    with pytest.raises(DataError, match="holds no XML files"):
        ImageNet(tmp_path, boxes=tmp_path / "val")


def test_exif_orientation_is_not_applied(tmp_path):
    exif = Image.Exif()
    exif[274] = 6
    pixels = write_image(tmp_path / "a.png", (8, 6), exif=exif)
    assert Image.open(tmp_path / "a.png").getexif()[274] == 6
    assert (np.asarray(read_rgb(tmp_path / "a.png", "a")) == pixels).all()


def test_damaged_image_error_names_the_file(tmp_path):
    folder = tmp_path / imagenet_wnids()[0]
    write_image(folder / "a.JPEG", (64, 64))
    content = (folder / "a.JPEG").read_bytes()
    (folder / "b.JPEG").write_bytes(content[: len(content) // 2])
    (folder / "c.JPEG").write_bytes(b"nothing")
    (folder / "d.JPEG").write_bytes(b"")
    dataset = ImageNet(tmp_path)
    assert dataset[0].image.size == (64, 64)
    for k, name in ((1, "b"), (2, "c"), (3, "d")):
        with pytest.raises(DataError, match=f"{name}.JPEG"):
            dataset[k]
    (folder / "a.JPEG").unlink()
    with pytest.raises(DataError, match="was deleted"):
        dataset[0]


@pytest.fixture
def segmentation_file(tmp_path):
    return write_imagenet_segmentation(tmp_path)


def test_imagenet_segmentation(segmentation_file):
    path, expected = segmentation_file
    with pytest.warns(DataWarning, match="3 samples found, the published data set has 4,276"):
        dataset = ImageNetSegmentation(path)
    assert list(dataset.ids) == list(expected)
    assert dataset.labels == (3, None, 999)
    assert dataset.labelled_count == 2
    for sample, (pixels, mask) in zip(dataset, expected.values(), strict=True):
        assert (np.asarray(sample.image) == pixels).all()
        assert (sample.mask == mask).all()
        assert sample.mask.dtype == np.uint8
    copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    assert (copy[2].mask == dataset[2].mask).all()
    assert len(open_dataset("imagenet-segmentation", path.parent)) == 3


def test_imagenet_segmentation_without_h5py(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    (tmp_path / "gtsegs_ijcv.mat").write_bytes(b"")
    with pytest.raises(MissingExtraError, match=r"vitrail\[data\]"):
        ImageNetSegmentation(tmp_path)


def test_damaged_imagenet_segmentation(segmentation_file, tmp_path):
    import h5py

    path, _ = segmentation_file
    (tmp_path / "half.mat").write_bytes(path.read_bytes()[:2000])
    with pytest.raises(DataError, match="truncated"):
        ImageNetSegmentation(tmp_path / "half.mat")
    with h5py.File(tmp_path / "other.mat", "w") as file:
        file["value/img"] = np.zeros(3)
    with pytest.raises(DataError, match="unexpected layout"):
        ImageNetSegmentation(tmp_path / "other.mat")
    with h5py.File(path, "a") as file:
        cell = file[file["value/gt"][1, 0]]
        cell[0, 0] = file.create_dataset("#refs#/wrong", data=np.zeros((2, 2), np.uint8)).ref
    dataset = ImageNetSegmentation(path)
    with pytest.raises(DataError, match=r"n00001740_5 .* a mask"):
        dataset[1]
    with pytest.raises(DataError, match=r"gtsegs_ijcv.mat of Guillaumin"):
        ImageNetSegmentation(tmp_path / "absent.mat")
