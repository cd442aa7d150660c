"""Data sets by name: mask folders, movies, VOC and scenes, on real files if available and on small ones."""

from __future__ import annotations

import json
import operator
import shutil
import tarfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from PIL import Image

from tests.data.datafiles import write_image, write_imagenet_segmentation, write_voc
from vitrail.data import (
    CIFAR10,
    DATASETS,
    VOC2012,
    VOC_CLASSES,
    VOC_TO_IMAGENET,
    Dataset,
    ImageNet,
    ImageNetSegmentation,
    MaskFolder,
    Movies,
    SceneDataset,
    Scenes,
    open_dataset,
)
from vitrail.data.synsets import imagenet_wnids
from vitrail.errors import DataError, DataWarning

pytestmark = pytest.mark.filterwarnings("ignore::vitrail.errors.DataWarning")


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
        passages += dataset.passage_count
        marked += sum(len(sample.spans) for sample in dataset)
        for sample in (dataset[0], dataset[-1]):
            assert sample.text.split() == list(sample.tokens)
            assert (sample.label == 1) == sample.id.startswith("pos")
    assert (passages, marked) == (17_462, 17_442)
    first = Movies(assets / "movies" / "movies.tar.gz", "val")[0]
    start, end = first.spans[-1]
    assert " ".join(first.tokens[start:end]) == "definitely the cinematic equivalent of a sleeper car"


@pytest.fixture
def segmentation_file(tmp_path):
    return write_imagenet_segmentation(tmp_path)


@pytest.fixture
def voc(tmp_path):
    return write_voc(tmp_path)


def test_voc(voc):
    with pytest.warns(DataWarning, match="2 samples found, the published data set has 1,449"):
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


def test_voc_to_imagenet_mapping():
    assert set(VOC_TO_IMAGENET) == set(VOC_CLASSES[1:])
    assert list(VOC_CLASSES[1:]) == sorted(VOC_CLASSES[1:])
    indices_of_all = [k for indices in VOC_TO_IMAGENET.values() for k in indices]
    assert len(indices_of_all) == len(set(indices_of_all))
    assert [len(VOC_TO_IMAGENET[name]) for name in ("bird", "dog", "cat", "boat")] == [59, 118, 5, 12]


def test_damaged_voc(voc):
    root = voc / "VOCdevkit" / "VOC2012"
    with pytest.raises(DataError, match=r"train.txt does not exist.*available splits: val"):
        VOC2012(voc, "train")
    Image.new("RGB", (8, 6)).save(root / "SegmentationClass" / "2007_000033.png")
    with pytest.raises(DataError, match=r"2007_000033.png has colour channels"):
        VOC2012(voc)[0]
    Image.new("L", (6, 8)).save(root / "SegmentationClass" / "2007_000033.png")
    with pytest.raises(DataError, match="6×8, but its image is 8×6"):
        VOC2012(voc)[0]
    Image.new("L", (8, 6), 21).save(root / "SegmentationClass" / "2007_000033.png")
    with pytest.raises(DataError, match="has the value 21"):
        VOC2012(voc)[0]
    (root / "JPEGImages" / "2007_000042.jpg").unlink()
    with pytest.raises(DataError, match=r"has 1 of the 2 files of split val; 2007_000042.jpg is missing"):
        VOC2012(voc)
    with pytest.raises(DataError, match=r"expected VOCdevkit/VOC2012 with JPEGImages"):
        VOC2012(voc / "nowhere")


def test_damaged_mask_folders(tmp_path):
    with pytest.raises(DataError, match="is not a folder"):
        MaskFolder(tmp_path)
    for name in "ab":
        write_image(tmp_path / "images" / f"{name}.jpg")
    (tmp_path / "masks").mkdir()
    Image.new("L", (8, 6), 1).save(tmp_path / "masks" / "a.png")
    with pytest.raises(DataError, match=r"2 images and 1 masks, 1 of them with the same name.*b has only one"):
        MaskFolder(tmp_path)
    Image.new("L", (8, 6), 3).save(tmp_path / "masks" / "b.png")
    dataset = MaskFolder(tmp_path)
    assert dataset[0].label is None
    assert (dataset[0].mask == 1).all()
    with pytest.raises(DataError, match="has the value 3"):
        dataset[1]
    (tmp_path / "labels.csv").write_text("file,label\na.jpg,4\n")
    with pytest.raises(DataError, match=r"no line for 1 images, for example b.jpg"):
        MaskFolder(tmp_path)
    (tmp_path / "labels.csv").write_text("file,label\na.jpg,4\nb.jpg,5\n")
    assert MaskFolder(tmp_path).labels == (4, 5)
    (tmp_path / "labels.csv").write_text("file,breed\na.jpg,x\nb.jpg,x\n")
    with pytest.raises(DataError, match="needs the column file and one of"):
        MaskFolder(tmp_path)


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
    with pytest.raises(DataError, match="holds no reviews"):
        Movies(tmp_path, "val")
    (tmp_path / "docs.jsonl").write_text(json.dumps({"docid": "posR_1.txt", "document": "a b\nc d"}) + "\n")
    assert Movies(tmp_path, "val")[0].tokens == sample.tokens


@pytest.mark.parametrize(
    ("line", "match"),
    [
        (review(0, 2), "words 0 to 2 of posR_1.txt are not 'b c'"),
        (review(3, 5), "words 3 to 5"),
        (review(name="posR_2.txt"), "posR_2.txt, which is missing; 1 of 2,000 reviews were found"),
        (review()[:50], "line 1, is truncated"),
        ('{"annotation_id": "x"}', "unexpected layout"),
        ("[]", "unexpected layout"),
    ],
)
def test_damaged_movies(tmp_path, line, match):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "posR_1.txt").write_text("a b\nc d\n")
    (tmp_path / "test.jsonl").write_text(line)
    with pytest.raises(DataError, match=match):
        Movies(tmp_path)
    with pytest.raises(DataError, match=r"0 files train.jsonl: expected one"):
        Movies(tmp_path, "train")


def test_scenes_as_samples():
    scenes, dataset = Scenes("test", 30), SceneDataset("test", 30)
    assert isinstance(dataset, Dataset)
    for k, sample in enumerate(dataset):
        scene = scenes[k]
        assert sample.id == scenes.id(k)
        assert (np.asarray(sample.image) == scene.image).all()
        assert ((sample.mask == 1) == scene.masks[0]).all()
        assert sample.label == scene.classes[0]
        assert sample.labels == tuple(sorted(scene.present))
        assert (sample.boxes == scene.boxes).all()
        same_class = [
            m for label, m in zip(scene.classes[1:], scene.masks[1:], strict=True) if label == scene.classes[0]
        ]
        assert (sample.mask == 255).sum() == sum(int(m.sum()) for m in same_class)
    with pytest.raises(IndexError, match="out of range for 30 samples"):
        dataset[30]


def test_open_dataset(tmp_path):
    assert list(DATASETS) == sorted(DATASETS)
    with pytest.raises(DataError, match=r"use one of cifar10, .*voc2012"):
        open_dataset("coco", tmp_path)
    for name in DATASETS:
        with pytest.raises(DataError):
            open_dataset(name, tmp_path / "absent")
        if name == "worlds":
            with pytest.raises(DataError, match="needs the option 'task'"):
                open_dataset(name)
        elif name != "scenes":
            with pytest.raises(DataError, match="pass its folder"):
                open_dataset(name)
            with pytest.raises(DataError, match="takes no option 'colour'"):
                open_dataset(name, tmp_path, colour=1)


def test_empty_folder_error_names_the_expected_files(tmp_path):
    messages = {
        "imagenet": r"n01440764.*image-net.org",
        "imagenet-segmentation": "gtsegs_ijcv.mat",
        "voc2012": r"host.robots.ox.ac.uk",
        "cifar10": "cs.toronto.edu",
        "cifar100": "cs.toronto.edu",
        "masks": "images/x.jpg",
        "movies": "eraserbenchmark.com",
    }
    for name, match in messages.items():
        with pytest.raises(DataError, match=match):
            open_dataset(name, tmp_path)


@pytest.mark.slow
def test_data_sets_work_in_another_process(voc, segmentation_file, tmp_path):
    write_image(tmp_path / "cifar" / imagenet_wnids()[4] / "a.JPEG")
    for name in CIFAR10._classes:
        write_image(tmp_path / "test" / name / "0.png", (32, 32))
    with tarfile.open(tmp_path / "c.tar.xz", "w:xz") as tar:
        tar.add(tmp_path / "test", "test")
    datasets = [
        VOC2012(voc), ImageNetSegmentation(segmentation_file[0]), ImageNet(tmp_path / "cifar"),
        CIFAR10(tmp_path / "c.tar.xz"), SceneDataset("val", 3),
    ]  # fmt: skip
    for dataset in datasets:
        dataset[0]  # open files must not be pickled
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for dataset, there in [(dataset, pool.submit(operator.getitem, dataset, 0)) for dataset in datasets]:
            here, sample = dataset[0], there.result()
            assert (sample.id, sample.label) == (here.id, here.label)
            assert (np.asarray(sample.image) == np.asarray(here.image)).all()
            assert (sample.mask is None) == (here.mask is None)
            assert here.mask is None or (sample.mask == here.mask).all()
