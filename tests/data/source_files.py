"""Images written as tar shards, tables and lists, into memory or a folder, for tests of sources."""

from __future__ import annotations

import io
import tarfile

import fsspec
import numpy as np
from PIL import Image

from vitrail.data.scenes import render


def png(seed):
    """An image file of a scene."""
    content = io.BytesIO()
    Image.fromarray(render(seed, 1).image).save(content, "PNG")
    return content.getvalue()


def write(address, content):
    with fsspec.open(address, "wb") as file:
        file.write(content)


def write_tar(address, seeds, labels=True):
    """A tar shard with the keys 000, 001 … as WebDataset writes it."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number, seed in enumerate(seeds):
            members = [(f"{number:03d}.png", png(seed))]
            members += [(f"{number:03d}.cls", str(seed % 12).encode())] if labels else []
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    write(address, content.getvalue())
    return content.getvalue()


def pixels(content):
    return np.asarray(Image.open(io.BytesIO(content)))
