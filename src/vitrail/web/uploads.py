"""Decoding of uploaded files; size and format are checked before anything is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.errors import InputError
from vitrail.models.preprocess import camera_format, to_rgb
from vitrail.web.api_errors import ApiError
from vitrail.web.limits import MEGABYTE, Limits
from vitrail.web.served_model import ServedModel

if TYPE_CHECKING:
    from PIL.Image import Image

#: Supported formats, by Pillow's names. Other decoders are disabled: some start programs, some are unsafe on untrusted
#: files.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
#: The first bytes of files in these formats.
SIGNATURES = (b"\x89PNG", b"\xff\xd8\xff", b"RIFF", b"GIF8", b"BM", b"II*\0", b"MM\0*")
EXIF_ORIENTATION = 0x0112
#: Most frames of an animated file that are decoded.
MAX_FRAMES = 600


@dataclass(frozen=True)
class Upload:
    """A decoded image.

    Attributes:
        image: The image after EXIF rotation, in RGB.
        notes: Conversions the user should know about.
    """

    image: Image
    notes: tuple[str, ...]


def read_upload(data: bytes, limits: Limits) -> Upload:
    """Decode an image file.

    Raises:
        ApiError: 413 for too many bytes, 415 for an unsupported format, 422 for a damaged image or a wrong shape.
    """
    from PIL import Image, UnidentifiedImageError

    if len(data) > limits.upload_bytes:
        raise too_large(limits)
    if not data:
        raise ApiError(422, "the file is empty", "Choose another file.")
    try:
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            _check_size(image, limits)
            notes = _notes(image)
            image.seek(0)
            image.load()
            return Upload(to_rgb(image), notes)
    except ApiError:
        raise
    except InputError as error:
        raise ApiError(422, str(error), "Choose another file.") from error
    except UnidentifiedImageError as error:
        if data.startswith(SIGNATURES):
            raise _damaged(error) from error
        name = camera_format(data)
        what = f"unsupported image format{name and ' ' + name} (supported: {', '.join(FORMATS)})"
        fix = "Convert the image to a supported format. The content of the file counts, not its name."
        if name:
            fix = "Save it as JPEG. An iPhone does so with Settings, Camera, Formats, Most Compatible."
        raise ApiError(415, what, fix) from error
    except Image.DecompressionBombError as error:
        raise _too_many_pixels("too many pixels for Pillow", limits) from error
    except Exception as error:  # decoders raise all kinds of exceptions on damaged files
        raise _damaged(error) from error


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


def too_large(limits: Limits) -> ApiError:
    """Build the error response for a file with too many bytes."""
    maximum = limits.upload_bytes / MEGABYTE
    return ApiError(
        413, f"the file is larger than {maximum:.3g} MB", "Shrink it: the model's input is a few hundred pixels wide."
    )


def _check_size(image: Image, limits: Limits) -> None:
    width, height = image.size
    if width * height > limits.pixels:
        raise _too_many_pixels(f"{width}×{height} pixels", limits)
    if min(width, height) < 1 or max(width, height) > limits.aspect_ratio * min(width, height):
        raise ApiError(
            422, f"the image is {width}×{height}, an aspect ratio above {limits.aspect_ratio}",
            "Crop it to the relevant part.",
        )  # fmt: skip
    if image.mode == "F":
        raise ApiError(422, "the image has floating-point values", "Save it with 8 or 16 bits per channel.")


def _too_many_pixels(what: str, limits: Limits) -> ApiError:
    fix = f"Shrink it to at most {limits.pixels / 1e6:.3g} million pixels; the model's input is a few hundred wide."
    return ApiError(422, f"the image is too large to decode: {what}", fix)


def _damaged(error: Exception) -> ApiError:
    reason = " ".join(str(error).split())[:120] or type(error).__name__
    if "BytesIO" in reason:
        reason = "its header cannot be read"
    return ApiError(422, f"the image is damaged or truncated ({reason})", "Open it in a viewer and save it again.")


def _notes(image: Image) -> tuple[str, ...]:
    notes = []
    if image.getexif().get(EXIF_ORIENTATION, 1) not in (1, None):
        notes.append("rotated according to its EXIF orientation")
    if getattr(image, "is_animated", False):
        notes.append("animated: the first frame is used")
    if image.mode.startswith("I"):
        notes.append("16 bits per pixel: scaled to 8")
    if image.mode == "CMYK":
        notes.append("CMYK: converted to RGB without its colour profile")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        notes.append("transparent: placed on a white background")
    return tuple(notes)
