"""Images decoded in other processes are the same, errors keep their text, and a process that dies is replaced."""

from __future__ import annotations

import time
from io import BytesIO

import pytest
import torch
from PIL import Image

from vitrail.data.scenes import render
from vitrail.errors import InputError
from vitrail.models.decoding import ImageDecoder
from vitrail.models.preprocess import Preprocess, open_image

PREPROCESS = Preprocess((32, 48), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), crop=0.9)


def photo(number: int) -> bytes:
    content = BytesIO()
    Image.fromarray(render(number, 2).image).save(content, "JPEG")
    return content.getvalue()


@pytest.fixture(scope="module")
def ready():
    """A decoder whose only process is ready."""
    decoder = ImageDecoder(1, start_after=0)
    decoder("first", photo(0), PREPROCESS)
    wait_for_process(decoder)
    yield decoder
    started = list(decoder._started)
    decoder.close()
    assert all(process.poll() is not None for process in started)


def wait_for_process(decoder: ImageDecoder) -> None:
    while decoder._free.empty():
        time.sleep(0.01)


def test_process_gives_the_same_pixels(ready, monkeypatch):
    expected = [PREPROCESS(open_image("x", photo(number))) for number in range(3)]
    monkeypatch.setattr("vitrail.models.decoding.open_image", None)  # nothing is decoded here
    assert all(torch.equal(ready("x", photo(number), PREPROCESS), one) for number, one in enumerate(expected))


def test_errors_of_a_process_keep_their_text(ready):
    whole, damaged = photo(1), photo(1)[:300]
    with pytest.raises(InputError) as here:
        open_image("a.jpg", damaged)
    with pytest.raises(InputError) as there:
        ready("a.jpg", damaged, PREPROCESS)
    assert str(there.value) == str(here.value)
    assert ready("b.jpg", whole, PREPROCESS).shape == (3, 32, 48)


@pytest.mark.slow
def test_dead_process_is_named_and_replaced(ready):
    process = ready._started[0]
    process.kill()
    process.wait()
    with pytest.raises(InputError, match=r"c.jpg ended the process that decoded it \(exit status -9\)"):
        ready("c.jpg", photo(2), PREPROCESS)
    wait_for_process(ready)
    assert torch.equal(ready("c.jpg", photo(2), PREPROCESS), PREPROCESS(open_image("c.jpg", photo(2))))
    assert len(ready._started) == 2


def test_short_runs_start_no_process():
    decoder = ImageDecoder(1, start_after=2)
    for number in range(2):
        decoder("x", photo(number), PREPROCESS)
    assert decoder._decoded == 2
    assert not decoder._started
