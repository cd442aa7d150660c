"""Data sets: real files where they are at hand, small ones in the exact layout where not, and what breaks."""

from __future__ import annotations

import json
import operator
import os
import pickle
import shutil
import sys
import tarfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data import (
    CIFAR10,
    CIFAR100,
    DATASETS,
    VOC2012,
    VOC_CLASSES,
    VOC_TO_IMAGENET,
    Dataset,
    ImageNet,
    ImageNetSegmentation,
    MaskFolder,
    Movies,
    Scenes,
    SceneSet,
    open_dataset,
)
from vitrail.data.files import Files
from vitrail.data.images import read_rgb
from vitrail.data.pickles import read_pickle
from vitrail.data.synsets import wnids
from vitrail.errors import DataError, DataWarning, MissingExtraError

RNG = np.random.default_rng(0)
pytestmark = pytest.mark.filterwarnings("ignore::vitrail.errors.DataWarning")


def picture(path: Path, size=(8, 6), mode="RGB", **options) -> np.ndarray:
    """Write a picture of noise and return its pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = RNG.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path, **options)
    return pixels


def xml(path: Path, size, things) -> None:
    """Write boxes in the layout of VOC and ImageNet; things are (name, xmin, ymin, xmax, ymax, difficult)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    objects = "".join(
        f"<object><name>{name}</name><difficult>{hard}</difficult><bndbox><xmin>{a}</xmin><ymin>{b}</ymin>"
        f"<xmax>{c}</xmax><ymax>{d}</ymax></bndbox><part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin>"
        "<xmax>2</xmax><ymax>2</ymax></bndbox></part></object>"
        for name, a, b, c, d, hard in things
    )
    width, height = size
    path.write_text(
        f"<annotation><filename>{path.stem}</filename><size><width>{width}</width><height>{height}</height>"
        f"<depth>3</depth></size>{objects}</annotation>"
    )


# Real files


def test_real_imagenet(assets):
    with pytest.warns(DataWarning, match="1,000 samples found, 50,000"):
        dataset = ImageNet(assets / "imagenet")
    assert isinstance(dataset, Dataset)
    assert len(dataset) == 1000
    assert dataset.labels != tuple(range(1000))  # the order is that of the files
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


def test_real_imagenet_needs_no_table_of_classes(assets):
    table = ImageNet(assets / "imagenet", boxes=False)
    with_folder_only = ImageNet(assets / "imagenet" / "val")
    assert with_folder_only.ids == table.ids
    assert with_folder_only[3].boxes is None
    rows = (assets / "imagenet" / "classes.csv").read_text().split()[1:]
    assert tuple(row.split(",")[1] for row in rows) == wnids() == tuple(sorted(wnids()))


def test_real_pets(assets):
    dataset = MaskFolder(assets / "pets")
    assert len(dataset) == 300
    assert len(set(dataset.labels)) == 25
    empty = []
    for sample in dataset:
        assert sample.image.size == (256, 256)
        assert sample.mask.shape == (256, 256)
        assert sample.mask.dtype == np.uint8
        empty += [] if (sample.mask == 1).any() else [sample.id]
    assert empty == ["saint_bernard_108"]
    assert {dataset.labels[k] for k, name in enumerate(dataset.ids) if name.startswith("beagle")} == {162}


def test_real_movies(assets):
    passages, marked = 0, 0
    for split, count in {"train": 1600, "val": 200, "test": 199}.items():
        with warnings.catch_warnings():
            warnings.simplefilter("error", DataWarning)
            dataset = open_dataset("movies", assets / "movies", split=split)
        assert len(dataset) == count
        assert {sample.label for sample in dataset} == {0, 1}
        passages += dataset.passages
        marked += sum(len(sample.spans) for sample in dataset)
        for sample in (dataset[0], dataset[-1]):
            assert sample.text.split() == list(sample.tokens)
            assert (sample.label == 1) == sample.id.startswith("pos")
    assert (passages, marked) == (17_462, 17_442)
    first = Movies(assets / "movies" / "movies.tar.gz", "val")[0]
    start, end = first.spans[-1]
    assert " ".join(first.tokens[start:end]) == "definitely the cinematic equivalent of a sleeper car"


@pytest.fixture(scope="module")
def real_cifar(assets):
    return CIFAR10(assets / "cifar10" / "cifar10_jpeg.tar.xz", "test")


def test_real_cifar(real_cifar):
    assert len(real_cifar) == 10_000 == real_cifar.expected
    assert real_cifar.ids[0] == "test/airplane/0000"
    assert real_cifar.ids[-1] == "test/truck/0999"
    for k in (0, 1234, 9999):
        assert real_cifar[k].image.size == (32, 32)
        assert real_cifar[k].label == k // 1000
    assert real_cifar.classes[1] == "automobile"
    copy = pickle.dumps(real_cifar)
    assert len(copy) < 3_000_000  # names go along, pictures do not


# ImageNet in its other layouts


@pytest.fixture
def flat(tmp_path):
    """Six flat validation images, with the classes the first six files have in numbers of a devkit."""
    for k in range(1, 7):
        picture(tmp_path / "val" / f"ILSVRC2012_val_{k:08d}.JPEG", mode=["RGB", "L", "CMYK"][k % 3])
    return tmp_path


TRUTH = (490, 361, 171, 822, 297, 482)
"""Numbers of the devkit; below they stand for the classes 0, 10, … 50."""


def devkit(folder: Path) -> None:
    savemat = pytest.importorskip("scipy.io", reason="meta.mat is written and read with scipy").savemat
    kinds = [("ILSVRC2012_ID", "f8"), ("WNID", object), ("words", object), ("num_children", "f8")]
    rows = [(number, wnids()[10 * k], "words", 0) for k, number in enumerate(TRUTH)]
    folder.mkdir(parents=True)
    savemat(folder / "meta.mat", {"synsets": np.array(rows, dtype=kinds).reshape(-1, 1)})
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text("".join(f"{n}\n" for n in TRUTH))


def test_flat_imagenet_with_the_devkit(flat):
    devkit(flat / "ILSVRC2012_devkit_t12" / "data")
    dataset = ImageNet(flat)
    assert dataset.labels == (0, 10, 20, 30, 40, 50)
    assert {sample.image.mode for sample in dataset} == {"RGB"}
    assert ImageNet(flat / "val", labels=flat / "ILSVRC2012_devkit_t12").labels == dataset.labels
    (flat / "ILSVRC2012_devkit_t12" / "data" / "meta.mat").unlink()
    with pytest.raises(DataError, match=r"meta.mat"):
        ImageNet(flat)


@pytest.mark.parametrize("kind", ["pairs", "kaggle", "synsets"])
def test_flat_imagenet_with_a_text(flat, kind):
    names = [f"ILSVRC2012_val_{k:08d}" for k in range(1, 7)]
    chosen = wnids()[5:11]
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


def test_flat_imagenet_without_labels_says_what_is_missing(flat):
    with pytest.raises(DataError, match=r"nothing says which class.*ground_truth.txt with meta.mat.*labels=path"):
        ImageNet(flat)
    (flat / "val.txt").write_text(f"ILSVRC2012_val_00000002.JPEG {wnids()[3]}\n")
    with pytest.raises(DataError, match=r"5 of 6 images .* have no label"):
        ImageNet(flat)


def test_few_class_folders_keep_the_models_numbers(tmp_path):
    for k in (7, 993):
        picture(tmp_path / "val" / wnids()[k] / f"ILSVRC2012_val_{1000 - k:08d}.JPEG")
    picture(tmp_path / "logo.png")
    dataset = ImageNet(tmp_path)
    assert dataset.labels == (993, 7)  # by file name
    assert dataset[0].label == 993
    (tmp_path / "val" / wnids()[8]).mkdir()
    with pytest.raises(DataError, match=r"1 of 3 class folders .* are empty.*2 images were found of 50,000"):
        ImageNet(tmp_path)


def test_other_classes_need_a_table(tmp_path):
    picture(tmp_path / "n99999999" / "x.JPEG")
    picture(tmp_path / "n00000001" / "x.JPEG")
    with pytest.raises(DataError, match=r"n00000001 .*classes.csv"):
        ImageNet(tmp_path)
    (tmp_path / "classes.csv").write_text("index,wnid,name\n1,n00000001,some_thing\n0,n99999999,other\n")
    dataset = ImageNet(tmp_path)
    assert dataset.ids == ("n00000001/x", "n99999999/x")  # file names alone would not tell them apart
    assert (dataset.labels, dataset.classes) == ((1, 0), ("other", "some thing"))
    (tmp_path / "classes.csv").write_text("index,wnid\n1,n00000001\n1,n99999999\n")
    with pytest.raises(DataError, match="an index of its own"):
        ImageNet(tmp_path)


def test_boxes_are_scaled_to_the_image(tmp_path):
    file = tmp_path / "val" / wnids()[2] / "ILSVRC2012_val_00000003.JPEG"
    picture(file, (50, 40))
    things = [(wnids()[2], 10, 20, 49, 39, 0), ("n00000000", 0, 0, 99, 79, 0), (wnids()[2], 90, 70, 120, 90, 0)]
    xml(tmp_path / "Annotations/CLS-LOC/val/ILSVRC2012_val_00000003.xml", (100, 80), things)
    sample = ImageNet(tmp_path)[0]
    assert sample.boxes.tolist() == [[5, 10, 25, 20], [0, 0, 50, 40], [45, 35, 50, 40]]
    assert sample.box_labels.tolist() == [2, -1, 2]
    assert len(sample.boxes_of(2)) == 2
    xml(tmp_path / "Annotations/CLS-LOC/val/ILSVRC2012_val_00000003.xml", (40, 50), things[:1])
    with pytest.raises(DataError, match="turned"):
        ImageNet(tmp_path)[0]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("<annotation><object>", "cannot be read as an annotation"),
        ("<annotation></annotation>", "has no boxes"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><annotation></annotation>', "not an annotation"),
        ("<annotation><object><name>a</name></object></annotation>", "bndbox/xmin is missing"),
    ],
)
def test_damaged_boxes_are_named(tmp_path, text, match):
    picture(tmp_path / "val" / wnids()[2] / "a.JPEG")
    (tmp_path / "boxes").mkdir()
    (tmp_path / "boxes" / "a.xml").write_text(text)
    with pytest.raises(DataError, match=match) as error:
        ImageNet(tmp_path)[0]
    assert "a.xml" in str(error.value)


def test_missing_boxes_are_counted(tmp_path):
    for name in "ab":
        picture(tmp_path / "val" / wnids()[2] / f"{name}.JPEG")
    xml(tmp_path / "boxes" / "a.xml", (8, 6), [(wnids()[2], 0, 0, 1, 1, 0)])
    with pytest.raises(DataError, match=r"1 of 2 images; b.xml is missing"):
        ImageNet(tmp_path)
    with pytest.raises(DataError, match="holds no XML files"):
        ImageNet(tmp_path, boxes=tmp_path / "val")


def test_orientation_tags_do_not_turn_images(tmp_path):
    exif = Image.Exif()
    exif[274] = 6
    pixels = picture(tmp_path / "a.png", (8, 6), exif=exif)
    assert Image.open(tmp_path / "a.png").getexif()[274] == 6
    assert (np.asarray(read_rgb(tmp_path / "a.png", "a")) == pixels).all()


def test_a_damaged_image_is_named_when_read(tmp_path):
    folder = tmp_path / wnids()[0]
    picture(folder / "a.JPEG", (64, 64))
    whole = (folder / "a.JPEG").read_bytes()
    (folder / "b.JPEG").write_bytes(whole[: len(whole) // 2])
    (folder / "c.JPEG").write_bytes(b"nothing")
    (folder / "d.JPEG").write_bytes(b"")
    dataset = ImageNet(tmp_path)
    assert dataset[0].image.size == (64, 64)
    for k, name in ((1, "b"), (2, "c"), (3, "d")):
        with pytest.raises(DataError, match=f"{name}.JPEG"):
            dataset[k]
    (folder / "a.JPEG").unlink()
    with pytest.raises(DataError, match="does not exist any more"):
        dataset[0]


# ImageNet-Segmentation


@pytest.fixture
def outlines(tmp_path):
    """Three images in the layout of gtsegs_ijcv.mat: references to cells, everything transposed."""
    h5py = pytest.importorskip("h5py", reason="gtsegs_ijcv.mat is HDF5, which h5py reads")
    truth = {}
    with h5py.File(tmp_path / "gtsegs_ijcv.mat", "w") as file:
        names = (f"{wnids()[3]}_12", "n00001740_5", f"{wnids()[999]}_33701")
        tables = {
            part: file.create_dataset(f"value/{part}", (3, 1), dtype=h5py.ref_dtype)
            for part in ("img", "gt", "id", "target")
        }
        for k, name in enumerate(names):
            pixels = RNG.integers(0, 256, (5 + k, 9, 3), dtype=np.uint8)
            mask = RNG.integers(0, 2, (5 + k, 9), dtype=np.uint8)
            truth[name] = (pixels, mask)
            cell = file.create_dataset(f"#refs#/cell{k}", (1, 1), dtype=h5py.ref_dtype)
            cell[0, 0] = file.create_dataset(f"#refs#/gt{k}", data=mask.T).ref
            tables["gt"][k, 0] = cell.ref
            tables["img"][k, 0] = file.create_dataset(f"#refs#/img{k}", data=pixels.transpose(2, 1, 0)).ref
            letters = np.frombuffer(name.encode("utf-16-le"), np.uint16)[:, None]
            tables["id"][k, 0] = file.create_dataset(f"#refs#/id{k}", data=letters).ref
    return tmp_path / "gtsegs_ijcv.mat", truth


def test_imagenet_segmentation(outlines):
    path, truth = outlines
    with pytest.warns(DataWarning, match="3 samples found, 4,276"):
        dataset = ImageNetSegmentation(path)
    assert list(dataset.ids) == list(truth)
    assert dataset.labels == (3, None, 999)
    assert dataset.labelled == 2
    for sample, (pixels, mask) in zip(dataset, truth.values(), strict=True):
        assert (np.asarray(sample.image) == pixels).all()
        assert (sample.mask == mask).all()
        assert sample.mask.dtype == np.uint8
    copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    assert (copy[2].mask == dataset[2].mask).all()
    assert len(open_dataset("imagenet-segmentation", path.parent)) == 3


def test_imagenet_segmentation_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    (tmp_path / "gtsegs_ijcv.mat").write_bytes(b"")
    with pytest.raises(MissingExtraError, match=r"vitrail\[data\]"):
        ImageNetSegmentation(tmp_path)


def test_damaged_imagenet_segmentation(outlines, tmp_path):
    import h5py

    path, _ = outlines
    (tmp_path / "half.mat").write_bytes(path.read_bytes()[:2000])
    with pytest.raises(DataError, match="cut short"):
        ImageNetSegmentation(tmp_path / "half.mat")
    with h5py.File(tmp_path / "other.mat", "w") as file:
        file["value/img"] = np.zeros(3)
    with pytest.raises(DataError, match="not laid out as expected"):
        ImageNetSegmentation(tmp_path / "other.mat")
    with h5py.File(path, "a") as file:
        cell = file[file["value/gt"][1, 0]]
        cell[0, 0] = file.create_dataset("#refs#/wrong", data=np.zeros((2, 2), np.uint8)).ref
    dataset = ImageNetSegmentation(path)
    with pytest.raises(DataError, match=r"n00001740_5 .* a mask"):
        dataset[1]
    with pytest.raises(DataError, match=r"gtsegs_ijcv.mat of Guillaumin"):
        ImageNetSegmentation(tmp_path / "absent.mat")


# PASCAL VOC


@pytest.fixture
def voc(tmp_path):
    root = tmp_path / "VOCdevkit" / "VOC2012"
    (root / "ImageSets" / "Segmentation").mkdir(parents=True)
    (root / "ImageSets" / "Segmentation" / "val.txt").write_text("2007_000033\n2007_000042\n")
    palette = [k * 7 % 256 for k in range(768)]
    for name, values in (("2007_000033", (0, 1, 255)), ("2007_000042", (0, 12, 15))):
        picture(root / "JPEGImages" / f"{name}.jpg", (8, 6))
        mask = Image.fromarray(np.resize(np.array(values, np.uint8), (6, 8)))
        mask.putpalette(palette)
        (root / "SegmentationClass").mkdir(exist_ok=True)
        mask.save(root / "SegmentationClass" / f"{name}.png")
        xml(root / "Annotations" / f"{name}.xml", (8, 6), [("person", 1, 1, 8, 6, 0), ("dog", 2, 3, 4.0, 5, 1)])
    return tmp_path


def test_voc(voc):
    with pytest.warns(DataWarning, match="2 samples found, 1,449"):
        dataset = VOC2012(voc)
    one, two = dataset
    assert (one.label, one.labels) == (1, (1,))
    assert (two.label, two.labels) == (None, (12, 15))
    assert [dataset.classes[k] for k in two.labels] == ["dog", "person"]
    assert one.mask[0, :4].tolist() == [0, 1, 255, 0]
    assert one.boxes.tolist() == [[0, 0, 8, 6], [1, 2, 4, 5]]  # counted from 1 and inclusive in the file
    assert one.box_labels.tolist() == [15, 12]
    assert one.difficult.tolist() == [False, True]
    shutil.rmtree(voc / "VOCdevkit" / "VOC2012" / "Annotations")
    assert VOC2012(voc / "VOCdevkit")[0].boxes is None


def test_voc_for_models_of_imagenet():
    assert set(VOC_TO_IMAGENET) == set(VOC_CLASSES[1:])
    assert list(VOC_CLASSES[1:]) == sorted(VOC_CLASSES[1:])
    everything = [k for indices in VOC_TO_IMAGENET.values() for k in indices]
    assert len(everything) == len(set(everything))
    assert [len(VOC_TO_IMAGENET[name]) for name in ("bird", "dog", "cat", "boat")] == [59, 118, 5, 12]


def test_broken_voc(voc):
    root = voc / "VOCdevkit" / "VOC2012"
    with pytest.raises(DataError, match=r"train.txt does not exist.*splits there: val"):
        VOC2012(voc, "train")
    Image.new("RGB", (8, 6)).save(root / "SegmentationClass" / "2007_000033.png")
    with pytest.raises(DataError, match=r"2007_000033.png holds colours"):
        VOC2012(voc)[0]
    Image.new("L", (6, 8)).save(root / "SegmentationClass" / "2007_000033.png")
    with pytest.raises(DataError, match="6×8, but its image is 8×6"):
        VOC2012(voc)[0]
    Image.new("L", (8, 6), 21).save(root / "SegmentationClass" / "2007_000033.png")
    with pytest.raises(DataError, match="holds the number 21"):
        VOC2012(voc)[0]
    (root / "JPEGImages" / "2007_000042.jpg").unlink()
    with pytest.raises(DataError, match=r"has 1 of the 2 files of split val; 2007_000042.jpg is missing"):
        VOC2012(voc)
    with pytest.raises(DataError, match=r"expected VOCdevkit/VOC2012 with JPEGImages"):
        VOC2012(voc / "nowhere")


# CIFAR


def records(path: Path, rows: int, head: int, some: dict[int, tuple[int, np.ndarray]]) -> None:
    """A file of records, all zero but some; the zeros take no room on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(rows * (head + 3072))
        for row, (label, pixels) in some.items():
            file.seek(row * (head + 3072))
            file.write(bytes([9] * (head - 1) + [label]) + pixels.transpose(2, 0, 1).tobytes())


def test_cifar_binaries(tmp_path):
    pixels = RNG.integers(0, 256, (32, 32, 3), dtype=np.uint8)
    for k in range(1, 6):
        records(tmp_path / "cifar-10-batches-bin" / f"data_batch_{k}.bin", 10_000, 1, {7: (k, pixels)})
    dataset = CIFAR10(tmp_path, "train")
    assert len(dataset) == 50_000
    sample = dataset[20_007]
    assert (sample.id, sample.label) == ("train/20007", 3)
    assert (np.asarray(sample.image) == pixels).all()
    with pytest.raises(DataError, match=r"0 images of cifar10, split test, of 10,000.*test_batch.bin"):
        CIFAR10(tmp_path, "test")
    with (tmp_path / "cifar-10-batches-bin" / "data_batch_4.bin").open("r+b") as file:
        file.truncate(1_000_000)
    with pytest.raises(DataError, match=r"data_batch_4.bin has 1,000,000 bytes, not the 30,730,000"):
        CIFAR10(tmp_path, "train")
    (tmp_path / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"4 of the 5 files .*data_batch_4.bin is missing"):
        CIFAR10(tmp_path, "train")


def test_cifar_100_binaries(tmp_path):
    pixels = RNG.integers(0, 256, (32, 32, 3), dtype=np.uint8)
    records(tmp_path / "test.bin", 10_000, 2, {9_999: (99, pixels), 5: (100, pixels)})
    dataset = CIFAR100(tmp_path)
    assert dataset.classes[dataset[-1].label] == "worm"
    assert (np.asarray(dataset[-1].image) == pixels).all()
    with pytest.raises(DataError, match="record 5 has the class 100"):
        dataset[5]
    assert len(dataset.classes) == 100
    with tarfile.open(tmp_path / "packed.tar", "w") as tar:  # read in place
        tar.add(tmp_path / "test.bin", "cifar-100-binary/test.bin")
    packed = CIFAR100(tmp_path / "packed.tar")
    assert (np.asarray(packed[-1].image) == pixels).all()


def batch(data: np.ndarray, labels: list[int], key: bytes) -> bytes:
    """A batch as Python 2 pickled it for the published files."""
    rows, columns = data.shape
    return b"".join(
        (
            b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x04testq\x03U" + bytes([len(key)]) + key + b"]q\x05(",
            *(b"K" + bytes([label]) for label in labels),
            b"eU\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01",
            b"M" + rows.to_bytes(2, "little") + b"M" + columns.to_bytes(2, "little") + b"\x86",
            b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T",
            data.size.to_bytes(4, "little") + data.tobytes() + b"tbu.",
        )
    )


@pytest.mark.parametrize(
    ("kind", "name", "key"), [(CIFAR10, "test_batch", b"labels"), (CIFAR100, "test", b"fine_labels")]
)
def test_cifar_of_python(tmp_path, kind, name, key):
    data = np.zeros((10_000, 3072), np.uint8)
    data[42] = RNG.integers(0, 256, 3072)
    labels = [k % 10 for k in range(10_000)]
    folder = tmp_path / kind._folders[1]
    folder.mkdir()
    (folder / name).write_bytes(batch(data, labels, key))
    dataset = kind(tmp_path)
    assert dataset[42].label == 2
    assert (np.asarray(dataset[42].image) == data[42].reshape(3, 32, 32).transpose(1, 2, 0)).all()
    assert len(pickle.dumps(dataset)) < 1_000_000
    (folder / name).write_bytes(batch(data[:9], labels, key))
    with pytest.raises(DataError, match="holds data of shape"):
        kind(tmp_path)[0]


class Evil:
    def __reduce__(self):
        return os.mkdir, ("harm",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"data": Evil()}),
        pickle.dumps({"data": Evil()}, protocol=0),
        pickle.dumps({"data": np.array([{}], dtype=object)}, protocol=4),
        pickle.dumps({"data": np.zeros(3)}, protocol=4),
        pickle.dumps({"data": np.float64(3)}, protocol=4),
        b"\x80\x02}r\xff\xff\xff\xff.",  # would take 64 GB for a table of what is remembered
        b"\x80\x02cnumpy\ndtype\n}U\x01aK\x01sb.",  # would change the class itself
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x00.",  # claims to hold far more than it does
        b"\x80\x02]q\x00.",
        b"cos\nsystem\n(S'mkdir harm'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"",
    ],
)
def test_pickles_run_nothing(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="some batch"):
        read_pickle(data, "some batch")
    assert not any(tmp_path.iterdir())


def test_cifar_images(tmp_path):
    for kind in CIFAR10._classes:
        for k in range(2):
            picture(tmp_path / "data" / "test" / kind / f"{k:04d}.png", (32, 32))
    with pytest.warns(DataWarning, match="20 samples found, 10,000"):
        dataset = CIFAR10(tmp_path)
    assert dataset.ids[:3] == ("test/airplane/0000", "test/airplane/0001", "test/automobile/0000")
    for packing in ("w", "w:gz", "w:xz"):
        with tarfile.open(tmp_path / "data.tar", packing) as tar:
            tar.add(tmp_path / "data", "./data")
        packed = CIFAR10(tmp_path / "data.tar")
        assert packed.ids == dataset.ids
        copy = pickle.loads(pickle.dumps(packed))  # noqa: S301
        assert (np.asarray(copy[3].image) == np.asarray(dataset[3].image)).all()
    (tmp_path / "half.tar.xz").write_bytes((tmp_path / "data.tar").read_bytes()[:-400])
    with pytest.raises(DataError, match="damaged or cut short"):
        CIFAR10(tmp_path / "half.tar.xz")
    (tmp_path / "data" / "test" / "cat" / "0001.png").unlink()
    with pytest.raises(DataError, match=r"19 images of cifar10, split test, of 10,000, and 1 of class cat"):
        CIFAR10(tmp_path / "data")
    with pytest.raises(DataError, match="no split 'val'"):
        CIFAR10(tmp_path, "val")


def test_links_in_archives_lead_nowhere(tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        link = tarfile.TarInfo("docs/a.txt")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret.txt")
        tar.addfile(link)
    assert not Files(tmp_path / "a.tar.gz").sizes


# Mask folders


def test_broken_mask_folders(tmp_path):
    with pytest.raises(DataError, match="is not a folder"):
        MaskFolder(tmp_path)
    for name in "ab":
        picture(tmp_path / "images" / f"{name}.jpg")
    (tmp_path / "masks").mkdir()
    Image.new("L", (8, 6), 1).save(tmp_path / "masks" / "a.png")
    with pytest.raises(DataError, match=r"2 images and 1 masks, of which 1 belong together.*b stands alone"):
        MaskFolder(tmp_path)
    Image.new("L", (8, 6), 3).save(tmp_path / "masks" / "b.png")
    dataset = MaskFolder(tmp_path)
    assert dataset[0].label is None
    assert (dataset[0].mask == 1).all()
    with pytest.raises(DataError, match="holds the number 3"):
        dataset[1]
    (tmp_path / "labels.csv").write_text("file,label\na.jpg,4\n")
    with pytest.raises(DataError, match=r"no line for 1 images, as b.jpg"):
        MaskFolder(tmp_path)
    (tmp_path / "labels.csv").write_text("file,label\na.jpg,4\nb.jpg,5\n")
    assert MaskFolder(tmp_path).labels == (4, 5)
    (tmp_path / "labels.csv").write_text("file,breed\na.jpg,x\nb.jpg,x\n")
    with pytest.raises(DataError, match="needs the column file and one of"):
        MaskFolder(tmp_path)


# Movies


def review(start=1, end=3, text="b c", name="posR_1.txt") -> str:
    span = {"docid": name, "text": text, "start_token": start, "end_token": end, "start_sentence": 0, "end_sentence": 1}
    line = {"annotation_id": "posR_1.txt", "classification": "POS", "query": "", "docids": None, "evidences": [[span]]}
    return json.dumps(line) + "\n"


def test_movies_in_folders(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "posR_1.txt").write_text("a b\nc  d\n")
    (tmp_path / "val.jsonl").write_text(review())
    sample = Movies(tmp_path, "val")[0]
    assert sample.tokens == ("a", "b", "c", "d")
    assert (sample.text, sample.spans, sample.label) == ("a b c d", ((1, 3),), 1)
    shutil.rmtree(tmp_path / "docs")
    with pytest.raises(DataError, match="there are no reviews"):
        Movies(tmp_path, "val")
    (tmp_path / "docs.jsonl").write_text(json.dumps({"docid": "posR_1.txt", "document": "a b\nc d"}) + "\n")
    assert Movies(tmp_path, "val")[0].tokens == sample.tokens


@pytest.mark.parametrize(
    ("line", "match"),
    [
        (review(0, 2), "the words 0 to 2 of posR_1.txt are not 'b c'"),
        (review(3, 5), "the words 3 to 5"),
        (review(name="posR_2.txt"), "posR_2.txt, which is missing; 1 reviews were found of 2,000"),
        (review()[:50], "line 1, is cut short"),
        ('{"annotation_id": "x"}', "not laid out as expected"),
        ("[]", "not laid out as expected"),
    ],
)
def test_broken_movies(tmp_path, line, match):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "posR_1.txt").write_text("a b\nc d\n")
    (tmp_path / "test.jsonl").write_text(line)
    with pytest.raises(DataError, match=match):
        Movies(tmp_path)
    with pytest.raises(DataError, match=r"0 files train.jsonl: expected one"):
        Movies(tmp_path, "train")


# Scenes, and all of them


def test_scenes_as_samples():
    scenes, dataset = Scenes("test", 30), SceneSet("test", 30)
    assert isinstance(dataset, Dataset)
    for k, sample in enumerate(dataset):
        scene = scenes[k]
        assert sample.id == scenes.id(k)
        assert (np.asarray(sample.image) == scene.image).all()
        assert ((sample.mask == 1) == scene.masks[0]).all()
        assert sample.label == scene.classes[0]
        assert sample.labels == tuple(sorted(scene.present))
        assert (sample.boxes == scene.boxes).all()
        twins = [m for kind, m in zip(scene.classes[1:], scene.masks[1:], strict=True) if kind == scene.classes[0]]
        assert (sample.mask == 255).sum() == sum(int(m.sum()) for m in twins)
    with pytest.raises(IndexError, match="outside a set of 30"):
        dataset[30]


def test_open_by_name(tmp_path):
    assert list(DATASETS) == sorted(DATASETS)
    with pytest.raises(DataError, match=r"take one of cifar10, .*voc2012"):
        open_dataset("coco", tmp_path)
    for name in DATASETS:
        with pytest.raises(DataError):
            open_dataset(name, tmp_path / "absent")
        if name != "scenes":
            with pytest.raises(DataError, match="give the folder"):
                open_dataset(name)
            with pytest.raises(DataError, match="takes no option 'colour'"):
                open_dataset(name, tmp_path, colour=1)


def test_an_empty_folder_says_what_belongs_there(tmp_path):
    words = {
        "imagenet": r"n01440764.*image-net.org",
        "imagenet-segmentation": "gtsegs_ijcv.mat",
        "voc2012": r"host.robots.ox.ac.uk",
        "cifar10": "cs.toronto.edu",
        "cifar100": "cs.toronto.edu",
        "masks": "images/x.jpg",
        "movies": "eraserbenchmark.com",
    }
    for name, match in words.items():
        with pytest.raises(DataError, match=match):
            open_dataset(name, tmp_path)


def test_samples_are_read_in_another_process(voc, outlines, tmp_path):
    picture(tmp_path / "cifar" / wnids()[4] / "a.JPEG")
    for kind in CIFAR10._classes:
        picture(tmp_path / "test" / kind / "0.png", (32, 32))
    with tarfile.open(tmp_path / "c.tar.xz", "w:xz") as tar:
        tar.add(tmp_path / "test", "test")
    datasets = [
        VOC2012(voc), ImageNetSegmentation(outlines[0]), ImageNet(tmp_path / "cifar"), CIFAR10(tmp_path / "c.tar.xz"),
        SceneSet("val", 3),
    ]  # fmt: skip
    for dataset in datasets:
        dataset[0]  # whatever is opened on the first read must not travel
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for dataset, there in [(dataset, pool.submit(operator.getitem, dataset, 0)) for dataset in datasets]:
            here, sample = dataset[0], there.result()
            assert (sample.id, sample.label) == (here.id, here.label)
            assert (np.asarray(sample.image) == np.asarray(here.image)).all()
            assert (sample.mask is None) == (here.mask is None)
            assert here.mask is None or (sample.mask == here.mask).all()
