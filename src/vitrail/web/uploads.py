"""Files from strangers to pictures: content decides, and everything is checked before it is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

from vitrail.models.preprocess import upright
from vitrail.web.errors import ApiError
from vitrail.web.limits import Limits

if TYPE_CHECKING:
    from PIL.Image import Image

#: What is decoded, by Pillow's names. Other decoders stay shut: some start programs or were never meant for strangers.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
#: How files of these formats begin.
SIGNS = (b"\x89PNG", b"\xff\xd8\xff", b"RIFF", b"GIF8", b"BM", b"II*\0", b"MM\0*")
ORIENTATION = 0x0112
NAMES = ", ".join(FORMATS)


@dataclass(frozen=True)
class Upload:
    """A picture that was read.

    Attributes:
        image: Upright, in RGB.
        notes: What was done to it that its owner should know.
    """

    image: Image
    notes: tuple[str, ...]


def read_upload(data: bytes, limits: Limits) -> Upload:
    """Decode a file.

    Args:
        data: The file's bytes.
        limits: What is refused.

    Raises:
        Refusal: 413 for too many bytes, 415 for what is no picture, 422 for damaged or far too large pictures.
    """
    from PIL import Image, UnidentifiedImageError

    if len(data) > limits.upload:
        raise too_large(limits)
    if not data:
        raise ApiError(422, "the file is empty", "Choose another file.")
    try:
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            _check_size(image, limits)
            notes = _notes(image)
            image.seek(0)
            image.load()
            found = upright(image)
    except ApiError:
        raise
    except UnidentifiedImageError as error:
        if data.startswith(SIGNS):
            raise _damaged(error) from error
        fix = f"Send a picture as one of {NAMES}; what counts is the content, not the file's name."
        raise ApiError(415, "the file is not a picture of a kind that is read here", fix) from error
    except Image.DecompressionBombError as error:
        raise _too_many_pixels("more pixels than Pillow opens", limits) from error
    except Exception as error:  # decoders raise whatever they stumble over; the server must live on
        raise _damaged(error) from error
    return Upload(found, notes)


def too_large(limits: Limits) -> ApiError:
    """The answer to a file with too many bytes."""
    most = limits.upload / (1 << 20)
    return ApiError(413, f"the file is larger than {most:.3g} MB", "Shrink it: the model sees a few hundred pixels.")


def _check_size(image: Image, limits: Limits) -> None:
    width, height = image.size
    if width * height > limits.pixels:
        raise _too_many_pixels(f"{width}×{height} pixels", limits)
    if min(width, height) < 1 or max(width, height) > limits.slender * min(width, height):
        raise ApiError(
            422, f"the picture is {width}×{height}, more than {limits.slender} times as long as it is wide",
            "Cut out the part that matters.",
        )  # fmt: skip
    if image.mode == "F":
        raise ApiError(422, "the picture's values are floating-point numbers", "Save it with 8 or 16 bits a channel.")


def _too_many_pixels(what: str, limits: Limits) -> ApiError:
    fix = f"Shrink it to {limits.pixels / 1e6:.3g} million pixels at most; the model sees a few hundred a side."
    return ApiError(422, f"the picture has {what}, too many to decode", fix)


def _damaged(error: Exception) -> ApiError:
    reason = " ".join(str(error).split())[:120] or type(error).__name__
    if "BytesIO" in reason:
        reason = "its beginning cannot be read"
    return ApiError(422, f"the picture is damaged or cut short ({reason})", "Open it in a viewer and save it again.")


def _notes(image: Image) -> tuple[str, ...]:
    notes = []
    if image.getexif().get(ORIENTATION, 1) not in (1, None):
        notes.append("rotated as its EXIF says")
    if getattr(image, "is_animated", False):
        notes.append("several frames: the first is used")
    if image.mode.startswith("I"):
        notes.append("16 bits a pixel: scaled to 8")
    if image.mode == "CMYK":
        notes.append("CMYK: converted to RGB without its colour profile")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        notes.append("transparency: laid on white")
    return tuple(notes)
