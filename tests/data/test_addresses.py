"""Images by address: folders, tar shards, tables, lists, Hugging Face data sets; what cannot be read is named."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.data.source_files import pixels, png, write, write_tar
from vitrail.data import open_dataset, open_source
from vitrail.data.source import _file_version, name_store_errors
from vitrail.errors import DataError, UnreachableError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    fsspec.filesystem("memory").store.clear()


def contents(source):
    """Images by id, read from a copy of the source without its list, as workers read them."""
    reader = pickle.loads(pickle.dumps(source.emptied()))  # noqa: S301 - our own object
    assert reader.items == ()
    return {item.id: reader.open(item) for item in source.items}


def test_tar_shards_are_read_in_place(monkeypatch):
    for shard in range(3):
        write_tar(f"memory://shards/a-{shard:03d}.tar", range(2 * shard, 2 * shard + 2))
    expected = {f"a-{k // 2:03d}.tar/{k % 2:03d}.png": png(k) for k in range(6)}
    source = open_source("memory://shards/a-{000..002}.tar")
    assert contents(source) == expected
    assert [item.label for item in source.items] == list(range(6))
    assert open_source("memory://shards/*.tar").items == open_source("memory://shards").items == source.items


def test_shards_of_webdataset_have_the_same_samples(tmp_path):
    wds = pytest.importorskip("webdataset")
    with wds.TarWriter(str(tmp_path / "b-0.tar")) as shard:
        for k in range(3):
            shard.write({"__key__": f"deep/x{k}", "png": png(k), "cls": k + 1})
    source = open_source(tmp_path / "b-0.tar")
    assert contents(source) == {f"b-0.tar/deep/x{k}.png": png(k) for k in range(3)}
    assert [item.label for item in source.items] == [1, 2, 3]


def test_damaged_shards_are_items_with_the_reason(tmp_path):
    whole = write_tar(str(tmp_path / "a.tar"), range(3), labels=False)
    second = whole.index(b"001.png")
    write(str(tmp_path / "b.tar"), whole[: second + 700])  # truncated in the second image
    write(str(tmp_path / "c.tar"), whole[: second + 150] + b"xxxx" + whole[second + 154 :])  # an invalid header
    write(str(tmp_path / "d.tar"), b"no archive")
    write(str(tmp_path / "e.tar.gz"), b"compressed")
    write(str(tmp_path / "f.tar"), gzip.compress(whole))
    write(str(tmp_path / "g.tar"), b"")
    items = {item.id: item for item in open_source(tmp_path).items}
    assert [name for name, item in items.items() if item.error is None] == [
        "a.tar/000.png", "a.tar/001.png", "a.tar/002.png", "b.tar/000.png", "b.tar/001.png", "c.tar/000.png",
    ]  # fmt: skip
    assert "damaged" in items["b.tar"].error
    assert "the 2 images before the damage are used" in items["b.tar"].error
    assert "c.tar is damaged at byte" in items["c.tar"].error
    assert "d.tar cannot be read" in items["d.tar"].error
    assert "e.tar.gz is compressed" in items["e.tar.gz"].error
    assert "f.tar cannot be read" in items["f.tar"].error, "positions in a compressed archive mean nothing"
    assert "g.tar cannot be read (empty file)" in items["g.tar"].error
    source = open_source(tmp_path)
    with pytest.raises(DataError, match=r"b.tar/001.png is truncated"):
        source.open(items["b.tar/001.png"])
    with pytest.raises(DataError, match="damaged at byte"):
        source.open(items["c.tar"])
    assert source.open(items["c.tar/000.png"]) == png(0)


def table(seeds, **more):
    return pa.table({"image": [png(k) for k in seeds], "label": [k % 12 for k in seeds], **more})


def test_parquet_and_arrow_hold_images(tmp_path):
    pq.write_table(table(range(5)), tmp_path / "a.parquet", row_group_size=2)
    pq.write_table(table(range(5, 7)), tmp_path / "b.parquet")
    source = open_source(tmp_path)
    expected = {f"a.parquet/{k}": png(k) for k in range(5)} | {f"b.parquet/{k - 5}": png(k) for k in (5, 6)}
    assert contents(source) == expected
    assert [item.place for item in source.items[:3]] == [(0, 0), (0, 1), (1, 0)]
    assert [item.label for item in source.items] == list(range(7))
    with pa.OSFile(str(tmp_path / "c.arrow"), "wb") as sink, pa.ipc.new_file(sink, table([0]).schema) as writer:
        writer.write_table(table(range(3)), max_chunksize=2)
    assert contents(open_source(tmp_path / "c.arrow")) == {f"c.arrow/{k}": png(k) for k in range(3)}


def test_tables_of_hugging_face_hold_bytes_in_structs(tmp_path):
    rows = [{"bytes": png(k), "path": None} for k in range(2)]
    pq.write_table(pa.table({"picture": rows}), tmp_path / "a.parquet")
    source = open_source(tmp_path / "a.parquet", column="picture")
    assert contents(source) == {f"a.parquet/{k}": png(k) for k in range(2)}


def test_tables_and_lists_of_paths(tmp_path):
    write("memory://elsewhere/y.png", png(1))
    (tmp_path / "deep").mkdir()
    write(str(tmp_path / "deep" / "x.png"), png(0))
    paths = ["deep/x.png", "memory://elsewhere/y.png"]
    pq.write_table(pa.table({"path": paths}), tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("name,file,label\n1,deep/x.png,4\n2,memory://elsewhere/y.png,\n", encoding="utf-8")
    for name in ("a.parquet", "b.csv"):
        assert contents(open_source(tmp_path / name)) == {paths[0]: png(0), paths[1]: png(1)}
    assert [item.label for item in open_source(tmp_path / "b.csv").items] == [4, None]


def test_hugging_face_folder(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"photo": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    rows = {"photo": [{"bytes": png(k), "path": None} for k in range(3)], "label": [0, 1, 1]}
    saved = datasets.Dataset.from_dict(rows, features=features)
    saved.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=saved, test=saved.select([2])).save_to_disk(tmp_path / "two")
    source = open_source(tmp_path / "one")
    assert contents(source) == {f"row/{k}": png(k) for k in range(3)}
    assert [item.label for item in source.items] == [0, 1, 1]
    assert source.classes == ("cat", "dog")
    assert list(contents(open_source(tmp_path / "two", split="test")).values()) == [png(2)]
    with pytest.raises(DataError, match=r"has the splits train, test: choose one with --split"):
        open_source(tmp_path / "two")
    with pytest.raises(DataError, match=r"has no column img: it has photo, label"):
        open_source(tmp_path / "one", column="img")


def test_folder_of_files_in_any_store(tmp_path):
    for name in ("b.png", "a.PNG", "deep/c.jpg", "notes.txt", "out/d.png"):
        write(f"memory://photos/{name}", png(0))
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(str(tmp_path / name), png(0))
    for root in ("memory://photos", str(tmp_path)):
        assert [item.id for item in open_source(root).items] == ["a.PNG", "b.png"]
        names = [item.id for item in open_source(root, recursive=True).items]
        assert names == ["a.PNG", "b.png", "deep/c.jpg", "out/d.png"]
    assert "out/d.png" not in [i.id for i in open_source(tmp_path, recursive=True, exclude=f"{tmp_path}/out").items]
    assert [item.id for item in open_source("memory://photos/*.png").items] == ["b.png"]


def test_missing_columns_truncated_tables_and_empty_folders_are_named(tmp_path):
    pq.write_table(pa.table({"x": [1], "y": [2]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a.parquet has no column of images .*: it has x, y; choose one with --column"):
        open_source(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a.parquet has no column z: it has x, y"):
        open_source(tmp_path / "a.parquet", column="z")
    pq.write_table(table(range(2)), tmp_path / "b.parquet")
    (tmp_path / "c.parquet").write_bytes((tmp_path / "b.parquet").read_bytes()[:-20])
    items = open_source(tmp_path).items
    assert [(item.id, item.error is None) for item in items] == [
        ("a.parquet", False), ("b.parquet/0", True), ("b.parquet/1", True), ("c.parquet", False),
    ]  # fmt: skip
    assert "c.parquet cannot be read" in items[-1].error
    (tmp_path / "deep").mkdir()
    with pytest.raises(DataError, match="does not exist or is empty"):
        open_source(tmp_path / "deep")
    write(str(tmp_path / "deep" / "x.txt"), b"")
    with pytest.raises(DataError, match=r"there are no images in .*--recursive"):
        open_source(tmp_path / "deep")
    with pytest.raises(DataError, match="Protocol not known: nosuch"):
        open_source("nosuch://bucket/x.tar")


def test_unreachable_store_is_named(monkeypatch):
    write_tar("memory://shards/a.tar", range(2))
    source = open_source("memory://shards/a.tar")

    def refuse(*_, **__):
        raise TimeoutError("timed out")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", refuse)
    with pytest.raises(UnreachableError, match=r"a.tar does not answer .timed out."):
        source.open(source.items[0])
    monkeypatch.setattr(MemoryFileSystem, "isdir", refuse)
    with pytest.raises(UnreachableError, match="does not answer"):
        open_source("memory://shards")
    with pytest.raises(UnreachableError, match="hf:beans does not answer"), name_store_errors("hf:beans"):
        raise ConnectionError("Couldn't reach 'beans' on the Hub")


def test_lists_of_shards_are_kept_until_the_shard_changes(monkeypatch):
    write_tar("memory://shards/a.tar", range(2))
    opened, plain = [], MemoryFileSystem.open
    monkeypatch.setattr(MemoryFileSystem, "open", lambda self, path, *a, **k: opened.append(path) or plain(self, path))
    first = open_source("memory://shards/a.tar").items
    assert open_source("memory://shards/a.tar").items == first
    assert opened == ["/shards/a.tar"]
    monkeypatch.undo()
    write_tar("memory://shards/a.tar", range(3))
    assert len(open_source("memory://shards/a.tar").items) == 3


def test_groups_of_rows_are_read_once(tmp_path, monkeypatch):
    from vitrail.data import table_rows

    pq.write_table(table(range(6)), tmp_path / "a.parquet", row_group_size=3)
    source, read = open_source(tmp_path / "a.parquet"), []
    plain = table_rows._open_table.read
    monkeypatch.setattr(table_rows._open_table, "read", lambda self, g, c: read.append(g) or plain(self, g, c))
    contents(source)
    assert read == [0, 1]


def test_images_are_a_data_set(tmp_path):
    write_tar(str(tmp_path / "a.tar"), range(2))
    dataset = open_dataset("images", str(tmp_path / "a.tar"))
    assert list(dataset.ids) == ["a.tar/000.png", "a.tar/001.png"]
    assert (pixels(png(1)) == pixels(dataset.source.open(dataset.source.items[1]))).all()
    assert dataset[1].label == 1
    assert dataset[1].image.size == (128, 128)


def test_arrow_streams_are_read_as_the_library_datasets_writes_them(tmp_path):
    rows = table(range(5))
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=2)
    source = open_source(tmp_path / "a.arrow")
    assert contents(source) == {f"a.arrow/{k}": png(k) for k in range(5)}
    assert [item.place for item in source.items] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    write("memory://streams/a.arrow", (tmp_path / "a.arrow").read_bytes())
    with pytest.raises(DataError, match="is an Arrow stream, which has no positions"):
        open_source("memory://streams/a.arrow")


def test_lists_as_spreadsheets_write_them(tmp_path):
    for k in range(3):
        write(str(tmp_path / f"{k}.png"), png(k))
    text = "\ufefffile,label\n0.png,cat\n\n,3\n1.png\n2.png,7\n"
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    items = open_source(tmp_path / "a.csv").items
    assert [(item.id, item.label) for item in items if not item.error] == [
        ("0.png", None),
        ("1.png", None),
        ("2.png", 7),
    ]
    assert [(item.id, item.error.partition(" names")[2]) for item in items if item.error] == [
        ("a.csv/1", " no image: its path is empty")
    ]
    with pytest.raises(DataError, match=r"has 'cat' in the column label, expected indices of the model's classes"):
        open_source(tmp_path / "a.csv", label="label")


def test_paths_and_labels_of_tables_may_have_any_type(tmp_path):
    for k in range(2):
        write(str(tmp_path / f"{k}.png"), png(k))
    paths = pa.array(["0.png", None, "1.png"]).dictionary_encode()
    pq.write_table(pa.table({"path": paths, "label": [1.0, None, 4.0]}), tmp_path / "a.parquet")
    items = open_source(tmp_path / "a.parquet").items
    assert [(item.id, item.label) for item in items] == [("0.png", 1), ("a.parquet/1", None), ("1.png", 4)]
    assert "row 1 of" in items[1].error
    rows = [{"bytes": None, "path": "0.png"}, {"bytes": png(1), "path": None}, {"bytes": None, "path": "gone.png"}]
    pq.write_table(pa.table({"image": rows}), tmp_path / "b.parquet")
    source = open_source(tmp_path / "b.parquet")
    assert [source.open(item) for item in source.items[:2]] == [png(0), png(1)]
    with pytest.raises(DataError, match=r"gone.png does not exist"):
        source.open(source.items[2])


def test_files_that_were_written_again_are_read_again(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image()})
    for k in range(2):
        pq.write_table(table([k]), tmp_path / "a.parquet")
        saved = datasets.Dataset.from_dict({"image": [{"bytes": png(k), "path": None}]}, features=features)
        saved.save_to_disk(tmp_path / f"saved{k}")
        if k:
            (tmp_path / "saved").unlink()
        (tmp_path / "saved").symlink_to(tmp_path / f"saved{k}")
        for name in ("a.parquet", "saved"):
            assert list(contents(open_source(tmp_path / name)).values()) == [png(k)]


def test_lists_of_files_of_the_web_are_kept_until_their_size_or_tag_changes():
    class Web:
        protocol, tag = ("http", "https"), "a"

        def ukey(self, _):
            return "the same"

        def info(self, path):
            return {"name": path, "size": 3, "ETag": self.tag}

    web = Web()
    before = _file_version(web, "x.tar")
    assert _file_version(web, "x.tar") == before
    web.tag = "b"
    assert _file_version(web, "x.tar") != before


def test_saved_hugging_face_folder_in_a_store(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    rows = {"image": [{"bytes": png(k), "path": None} for k in range(2)], "label": [1, 0]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "one")
    source = open_source(f"file://{tmp_path / 'one'}")
    assert source.classes == ("cat", "dog")
    assert contents(source) == {f"row/{k}": png(k) for k in range(2)}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_pipes_are_named_and_not_waited_for(tmp_path):
    write(str(tmp_path / "a.png"), png(0))
    os.mkfifo(tmp_path / "b.png")
    source = open_source(tmp_path)
    assert source.open(source.items[0]) == png(0)
    with pytest.raises(DataError, match=r"b.png is a pipe, a socket or a device, expected a file"):
        source.open(source.items[1])
    os.mkfifo(tmp_path / "c.tar")
    with pytest.raises(DataError, match=r"c.tar is a pipe"):
        open_source(tmp_path / "c.tar")


def test_images_beside_shards_are_refused_and_camera_formats_are_listed(tmp_path):
    for name in ("a.png", "b.HEIC"):
        write(str(tmp_path / name), png(0))
    (tmp_path / "labels.csv").write_text("file\na.png\n", encoding="utf-8")
    assert [item.id for item in open_source(tmp_path).items] == ["a.png", "b.HEIC"]
    write_tar(str(tmp_path / "c.TAR"), [1])
    with pytest.raises(DataError, match=r"has 2 images and 1 tar shards: pass a pattern"):
        open_source(tmp_path)
    assert contents(open_source(tmp_path / "*.TAR")) == {"c.TAR/000.png": png(1)}


def test_label_that_is_no_index_leaves_its_image_and_the_others(tmp_path):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, data in (("0.cls", b"cat"), ("0.png", png(0)), ("1.png", png(1)), ("1.cls", b"5")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    write(str(tmp_path / "a.tar"), content.getvalue())
    items = open_source(tmp_path / "a.tar").items
    assert [(item.id, item.label, item.error) for item in items] == [
        ("a.tar/0.png", None, None),
        ("a.tar/1.png", 5, None),
    ]
