"""Maps of a video: frames with overlays, contact sheets and animations."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import InputError
from vitrail.viz.colormap import blend, stretch, to_image

if TYPE_CHECKING:
    from PIL.Image import Image

Array = NDArray[Any]

#: Smallest width of a frame on a contact sheet, in pixels; smaller frames are enlarged.
FRAME_WIDTH = 112
#: Most columns of a contact sheet.
COLUMNS = 8
#: Frames a second of an animation if those of the video are unknown.
FRAME_RATE = 4.0
_GAP, _CAPTION = 4, 16
_PAPER, _INK = (255, 255, 255), (60, 60, 60)


def frame_overlays(frames: Array, relevance: Array, signed: bool = False, opacity: float = 0.75) -> list[Array]:
    """Draw the map of a video over its frames; all frames share one scale, so that they can be compared.

    Args:
        frames: uint8, shape (time, height, width, 3).
        relevance: In [0, 1], or [-1, 1] if signed, shape (time, height, width).
        signed: Whether zero is in the middle of the colour map.
        opacity: Opacity of the colour where relevance is highest.

    Returns:
        One uint8 image, shape (height, width, 3), for each frame.
    """
    stretched = stretch(relevance)
    return [blend(frame, one, signed, opacity) for frame, one in zip(frames, stretched, strict=True)]


def contact_sheet(frames: Sequence[Array], captions: Sequence[str] | None = None, columns: int | None = None) -> Image:
    """Draw the frames of a video side by side, in rows.

    Args:
        frames: uint8 images, each of shape (height, width, 3).
        captions: A line under each frame, such as its time; None for the index of the frame.
        columns: Frames in a row; at most 8 by default, in rows of equal length where possible.

    Example:
        >>> frames = [np.zeros((20, 30, 3), np.uint8)] * 6
        >>> two_rows, one_row = contact_sheet(frames, columns=3), contact_sheet(frames, columns=6)
        >>> two_rows.width < one_row.width, two_rows.height > one_row.height
        (True, True)
    """
    from PIL import Image as PILImage
    from PIL import ImageDraw, ImageFont

    count = len(frames)
    columns = columns or ceil(count / ceil(count / COLUMNS))
    height, width = frames[0].shape[:2]
    scale = max(1, ceil(FRAME_WIDTH / width))
    cell = (width * scale, height * scale)
    captions = captions or [f"frame {i}" for i in range(count)]
    sheet_size = (columns * (cell[0] + _GAP) + _GAP, ceil(count / columns) * (cell[1] + _CAPTION + _GAP) + _GAP)
    sheet = PILImage.new("RGB", sheet_size, _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for i, (frame, caption) in enumerate(zip(frames, captions, strict=True)):
        row, column = divmod(i, columns)
        at = (_GAP + column * (cell[0] + _GAP), _GAP + row * (cell[1] + _CAPTION + _GAP))
        sheet.paste(to_image(frame).resize(cell, PILImage.Resampling.NEAREST), at)
        draw.text((at[0] + 1, at[1] + cell[1] + 1), caption, fill=_INK, font=font)
    return sheet


def save_animation(frames: Sequence[Array], path: str | Path, rate: float | None = None) -> Path:
    """Write uint8 frames, each of shape (height, width, 3), as an animated .gif, or as an .mp4 if PyAV is installed.

    Returns:
        The path.

    Raises:
        InputError: The suffix is another one, or PyAV is not installed.
    """
    path, rate = Path(path), rate or FRAME_RATE
    suffix = path.suffix.lower()
    scale = max(1, ceil(FRAME_WIDTH / frames[0].shape[1]))
    large = [np.repeat(np.repeat(frame, scale, 0), scale, 1) for frame in frames]
    if suffix == ".gif":
        images = [to_image(frame) for frame in large]
        milliseconds = max(20, round(1000 / rate))
        images[0].save(path, save_all=True, append_images=images[1:], duration=milliseconds, loop=0)
    elif suffix == ".mp4":
        _write_mp4(large, path, rate)
    else:
        raise InputError(f"{path.name}: an animation is a .gif or an .mp4 file")
    return path


def _write_mp4(frames: Sequence[Array], path: Path, rate: float) -> None:
    try:
        import av
    except ImportError as error:
        raise InputError(
            f"writing {path.name} needs PyAV: pip install 'vitrail[media]', or write a .gif file"
        ) from error
    height, width = (n // 2 * 2 for n in frames[0].shape[:2])  # even, as H.264 requires
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=max(1, round(rate)))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for frame in frames:
            cut = np.ascontiguousarray(frame[:height, :width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(cut, format="rgb24")))
        container.mux(stream.encode())
