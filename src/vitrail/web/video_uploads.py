"""Frames of an animated file, for models of videos."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np

from vitrail.models.preprocess import to_rgb
from vitrail.web.api_errors import ApiError
from vitrail.web.limits import Limits
from vitrail.web.served_model import ServedModel
from vitrail.web.uploads import FORMATS, read_upload

#: Most frames of a file that are decoded.
MAX_FRAMES = 600


def read_video(data: bytes, served: ServedModel, limits: Limits) -> np.ndarray[Any, Any]:
    """Decode an animated GIF or WebP file and take as many frames at equal distances as the model takes.

    Returns:
        Bytes of shape (frames, height, width, 3).
    """
    if served.media != "video":
        raise ApiError(422, f"{served.title} takes spectrograms, which the page does not read from files",
                       "Choose one of its samples, or use vitrail explain.")  # fmt: skip
    read_upload(data, limits)  # checks size and format
    from PIL import Image

    wanted = served.input_shape[0]
    with Image.open(BytesIO(data), formats=FORMATS) as file:
        count = min(int(getattr(file, "n_frames", 1)), MAX_FRAMES)
        if count < 2:
            raise ApiError(422, f"the file has one frame, and {served.title} takes videos of {wanted} frames",
                           "Open an animated GIF or WebP file.")  # fmt: skip
        frames = []
        for index in np.linspace(0, count - 1, wanted).round().astype(int).tolist():
            file.seek(index)
            frames.append(served.pixels(to_rgb(file.copy())))
    return np.stack(frames)
