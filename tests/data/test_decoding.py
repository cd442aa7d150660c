"""Images decoded in other processes are the same, errors keep their text, and a process that dies is replaced."""

from __future__ import annotations

import io
import tarfile
import threading

import pytest
import torch
from PIL import Image

from vitrail.data import decoding
from vitrail.data.addresses import open_source
from vitrail.data.decoding import ImageDecoder
from vitrail.data.scenes import render
from vitrail.errors import DataError, InputError
from vitrail.models.preprocess import Preprocess, open_image

PREPROCESS = Preprocess((32, 48), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), crop=0.9)


def photo(number):
    content = io.BytesIO()
    Image.fromarray(render(number, 2).image).save(content, "JPEG")
    return content.getvalue()


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    """A shard of four images, of which the third is cut off."""
    folder = tmp_path_factory.mktemp("shard")
    with tarfile.open(folder / "a.tar", "w") as tar:
        for number in range(4):
            content = photo(number)[: 300 if number == 2 else None]
            info = tarfile.TarInfo(f"{number}.jpg")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return open_source(folder)


@pytest.fixture(scope="module")
def ready(shard):
    """A decoder whose only process is ready."""
    decoder = ImageDecoder(1, start_after=0)
    decoder(shard, shard.items[:1], PREPROCESS)
    assert decoder._ready.wait(300)
    yield decoder
    started = list(decoder._started)
    decoder.close()
    assert all(process.poll() is not None for process in started)


def same(found, expected):
    """Whether two lists of images and errors are equal."""
    kinds = [type(one) for one in found] == [type(one) for one in expected]
    return kinds and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else str(a) == str(b)
        for a, b in zip(found, expected, strict=True)
    )


def test_process_gives_the_same_images_and_errors(ready, shard, monkeypatch):
    expected = ImageDecoder(0)(shard, shard.items, PREPROCESS)
    assert [type(one) for one in expected] == [torch.Tensor, torch.Tensor, InputError, torch.Tensor]
    monkeypatch.setattr(decoding, "open_image", None)  # nothing is decoded here
    assert same(ready(shard, shard.items, PREPROCESS), expected)
    assert same(ready(shard, shard.items[2:3], PREPROCESS), expected[2:3])


def test_what_is_no_local_file_is_read_here(ready, shard, monkeypatch):
    class Table:
        """A source of two images that only this process can read, and one that it cannot."""

        def open(self, item):
            if item.id == "gone":
                raise DataError("it is gone")
            return photo(int(item.id))

    items = [shard.items[0]._replace(id=name, file=name, place=()) for name in ("1", "gone", "3")]
    expected = ImageDecoder(0)(Table(), items, PREPROCESS)
    assert str(expected[1]) == "it is gone"
    monkeypatch.setattr(decoding, "open_image", None)
    assert same(ready(Table(), items, PREPROCESS), expected)


@pytest.mark.slow
def test_dead_process_is_replaced_and_its_images_are_tried_one_by_one(ready, shard, monkeypatch):
    expected = ImageDecoder(0)(shard, shard.items, PREPROCESS)
    monkeypatch.setattr(decoding, "MAX_WAIT", 300)  # on a slow machine too
    ready._started[0].kill()
    ready._started[0].wait()
    assert same(ready(shard, shard.items, PREPROCESS), expected)
    assert len(ready._started) == 2
    asked, ask = [], decoding._ask

    def die(process, request):
        asked.append(request.names)
        if "a.tar/1.jpg" in request.names:
            process.kill()
        return ask(process, request)

    monkeypatch.setattr(decoding, "_ask", die)
    found = ready(shard, shard.items[:2], PREPROCESS)
    assert asked == [["a.tar/0.jpg", "a.tar/1.jpg"], ["a.tar/0.jpg"], ["a.tar/1.jpg"], ["a.tar/1.jpg"]]
    assert torch.equal(found[0], expected[0])
    assert str(found[1]).startswith("a.tar/1.jpg ended the process that decoded it (exit status -9)")


class StubProcess:
    """A process that ends after some requests, noted with the time it was killed."""

    def __init__(self):
        self.killed = threading.Event()

    def poll(self):
        return -9 if self.killed.is_set() else None

    wait = poll

    def kill(self):
        self.killed.set()


@pytest.fixture
def stubbed(monkeypatch):
    """A decoder whose processes are stubs; the first is ready."""
    decoder = ImageDecoder(0)
    monkeypatch.setattr(decoder, "_start", lambda: None)
    decoder._started.append(StubProcess())
    decoder._free.put(decoder._started[0])
    decoder._ready.set()
    yield decoder
    decoder._started.clear()


def test_image_whose_process_died_is_never_decoded_here(stubbed, shard, monkeypatch):
    monkeypatch.setattr(decoding, "_ask", lambda *_: (_ for _ in ()).throw(EOFError))
    monkeypatch.setattr(decoding, "MAX_WAIT", 0)
    monkeypatch.setattr(decoding, "open_image", None)
    (found,) = stubbed(shard, shard.items[:1], PREPROCESS)
    assert str(found) == "the process that decoded a.tar/0.jpg ended, and no other started within 0 s: run it again"
    assert stubbed._started[0].killed.is_set()


def test_without_processes_images_are_decoded_here_at_once(stubbed, shard, monkeypatch):
    stubbed._free.get()
    stubbed._started[0].kill()
    monkeypatch.setattr(decoding, "MAX_WAIT", -1)  # waiting would raise an error
    assert same(stubbed(shard, shard.items, PREPROCESS), ImageDecoder(0)(shard, shard.items, PREPROCESS))


def test_process_that_takes_too_long_is_killed_and_its_image_named(stubbed, shard, monkeypatch):
    process = stubbed._started[0]

    class Answers:
        """A pipe that answers once its process was killed."""

        def readline(self, *_):
            assert process.killed.wait(120)
            return b""

        read = readinto = readline

    process.stdin, process.stdout = io.BytesIO(), Answers()
    monkeypatch.setattr(decoding, "MAX_SECONDS", 0.01)
    (found,) = stubbed(shard, shard.items[:1], PREPROCESS)
    assert str(found) == "a.tar/0.jpg was not decoded within 0 s: the file may be damaged"


def test_any_error_of_one_image_leaves_the_others(shard, monkeypatch):
    expected = ImageDecoder(0)(shard, shard.items[:2], PREPROCESS)

    def fail(name, content):
        if name == "a.tar/0.jpg":
            raise MemoryError("no room")
        return open_image(name, content)

    monkeypatch.setattr(decoding, "open_image", fail)
    found = ImageDecoder(0)(shard, shard.items[:2], PREPROCESS)
    assert str(found[0]) == "a.tar/0.jpg cannot be decoded (MemoryError: no room)"
    assert torch.equal(found[1], expected[1])


def test_short_runs_start_no_process(shard):
    decoder = ImageDecoder(1, start_after=2)
    decoder(shard, shard.items[:2], PREPROCESS)
    assert decoder._decoded == 2
    assert not decoder._started
