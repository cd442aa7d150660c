"""CIFAR: binary files, pickles, image folders and archives; unpickling executes no code."""

from __future__ import annotations

import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.data.datafiles import RNG, write_image
from vitrail.data import CIFAR10, CIFAR100
from vitrail.data.archive import FileCollection
from vitrail.data.pickles import read_pickle
from vitrail.errors import DataError, DataWarning

pytestmark = pytest.mark.filterwarnings("ignore::vitrail.errors.DataWarning")


@pytest.fixture(scope="module")
def real_cifar(assets):
    return CIFAR10(assets / "cifar10" / "cifar10_jpeg.tar.xz", "test")


@pytest.mark.slow
def test_real_cifar(real_cifar):
    assert len(real_cifar) == 10_000 == real_cifar.expected
    assert real_cifar.ids[0] == "test/airplane/0000"
    assert real_cifar.ids[-1] == "test/truck/0999"
    for k in (0, 1234, 9999):
        assert real_cifar[k].image.size == (32, 32)
        assert real_cifar[k].label == k // 1000
    assert real_cifar.classes[1] == "automobile"
    copy = pickle.dumps(real_cifar)
    assert len(copy) < 3_000_000  # contains the names, not the images


def write_records(path: Path, rows: int, label_bytes: int, given: dict[int, tuple[int, np.ndarray]]) -> None:
    """Write a sparse file of records that are all zero except the given ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(rows * (label_bytes + 3072))
        for row, (label, pixels) in given.items():
            file.seek(row * (label_bytes + 3072))
            file.write(bytes([9] * (label_bytes - 1) + [label]) + pixels.transpose(2, 0, 1).tobytes())


def test_cifar10_binary_version(tmp_path):
    pixels = RNG.integers(0, 256, (32, 32, 3), dtype=np.uint8)
    for k in range(1, 6):
        write_records(tmp_path / "cifar-10-batches-bin" / f"data_batch_{k}.bin", 10_000, 1, {7: (k, pixels)})
    dataset = CIFAR10(tmp_path, "train")
    assert len(dataset) == 50_000
    sample = dataset[20_007]
    assert (sample.id, sample.label) == ("train/20007", 3)
    assert (np.asarray(sample.image) == pixels).all()
    with pytest.raises(DataError, match=r"0 of the 10,000 images of cifar10, split test.*test_batch.bin"):
        CIFAR10(tmp_path, "test")
    with (tmp_path / "cifar-10-batches-bin" / "data_batch_4.bin").open("r+b") as file:
        file.truncate(1_000_000)
    with pytest.raises(DataError, match=r"data_batch_4.bin has 1,000,000 bytes, expected 30,730,000"):
        CIFAR10(tmp_path, "train")
    (tmp_path / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"4 of the 5 files .*data_batch_4.bin is missing"):
        CIFAR10(tmp_path, "train")


def test_cifar100_binary_version(tmp_path):
    pixels = RNG.integers(0, 256, (32, 32, 3), dtype=np.uint8)
    write_records(tmp_path / "test.bin", 10_000, 2, {9_999: (99, pixels), 5: (100, pixels)})
    dataset = CIFAR100(tmp_path)
    assert dataset.classes[dataset[-1].label] == "worm"
    assert (np.asarray(dataset[-1].image) == pixels).all()
    with pytest.raises(DataError, match="record 5 has class 100"):
        dataset[5]
    assert len(dataset.classes) == 100
    with tarfile.open(tmp_path / "packed.tar", "w") as tar:  # read in place
        tar.add(tmp_path / "test.bin", "cifar-100-binary/test.bin")
    packed = CIFAR100(tmp_path / "packed.tar")
    assert (np.asarray(packed[-1].image) == pixels).all()


def batch(data: np.ndarray, labels: list[int], key: bytes) -> bytes:
    """A batch as pickled by Python 2 in the published files."""
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
def test_cifar_python_version(tmp_path, kind, name, key):
    data = np.zeros((10_000, 3072), np.uint8)
    data[42] = RNG.integers(0, 256, 3072)
    labels = [k % 10 for k in range(10_000)]
    folder = tmp_path / kind._folder_names[1]
    folder.mkdir()
    (folder / name).write_bytes(batch(data, labels, key))
    dataset = kind(tmp_path)
    assert dataset[42].label == 2
    assert (np.asarray(dataset[42].image) == data[42].reshape(3, 32, 32).transpose(1, 2, 0)).all()
    assert len(pickle.dumps(dataset)) < 1_000_000
    (folder / name).write_bytes(batch(data[:9], labels, key))
    with pytest.raises(DataError, match="holds data of shape"):
        kind(tmp_path)[0]


class ExecutesCode:
    def __reduce__(self):
        return os.mkdir, ("harm",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"data": ExecutesCode()}),
        pickle.dumps({"data": ExecutesCode()}, protocol=0),
        pickle.dumps({"data": np.array([{}], dtype=object)}, protocol=4),
        pickle.dumps({"data": np.zeros(3)}, protocol=4),
        pickle.dumps({"data": np.float64(3)}, protocol=4),
        b"\x80\x02}r\xff\xff\xff\xff.",  # would allocate 64 GB for the memo
        b"\x80\x02cnumpy\ndtype\n}U\x01aK\x01sb.",  # would modify the class itself
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x00.",  # states a length far above its own
        b"\x80\x02]q\x00.",
        b"cos\nsystem\n(S'mkdir harm'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"",
    ],
)
def test_pickles_execute_no_code(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="some batch"):
        read_pickle(data, "some batch")
    assert not any(tmp_path.iterdir())


def test_cifar_images(tmp_path):
    for name in CIFAR10._classes:
        for k in range(2):
            write_image(tmp_path / "data" / "test" / name / f"{k:04d}.png", (32, 32))
    with pytest.warns(DataWarning, match="20 samples found, the published data set has 10,000"):
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
    with pytest.raises(DataError, match="damaged or truncated"):
        CIFAR10(tmp_path / "half.tar.xz")
    (tmp_path / "data" / "test" / "cat" / "0001.png").unlink()
    with pytest.raises(DataError, match=r"19 of the 10,000 images of cifar10, split test, and 1 of class cat"):
        CIFAR10(tmp_path / "data")
    with pytest.raises(DataError, match="no split 'val'"):
        CIFAR10(tmp_path, "val")


def test_links_in_archives_are_ignored(tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        link = tarfile.TarInfo("docs/a.txt")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret.txt")
        tar.addfile(link)
    assert not FileCollection(tmp_path / "a.tar.gz").sizes
