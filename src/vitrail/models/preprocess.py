"""Image preprocessing: read image files, resize, crop and normalise them, and undo the normalisation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from io import BytesIO
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.models.image_geometry import ImageGeometry

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
MAX_PIXELS = 100_000_000
"""Maximum number of pixels of an image file."""
CAMERA_FORMATS = {
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1"), "HEIC"),
    **dict.fromkeys((b"avif", b"avis"), "AVIF"),
}
"""Formats of cameras that Pillow may not read, by the brand in their first bytes."""


@dataclass(frozen=True)
class Preprocess:
    """Resize, centre crop, scale to [0, 1] and normalise an image.

    Attributes:
        size: Height and width of the model's input.
        mean: Mean of each channel.
        std: Standard deviation of each channel.
        crop: Fraction of the resized image's shorter side that the crop keeps (timm's ``crop_pct``).
        squash: Resize to ``size`` without keeping the aspect ratio, and do not crop.
        resample: "bicubic", "bilinear" or "nearest".
        origin: Where these values come from, for display.
        guessed: Whether they are the usual values for this kind of model, not those of the checkpoint.

    Example:
        >>> from PIL import Image
        >>> preprocess = Preprocess((32, 32), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
        >>> preprocess(Image.new("RGB", (64, 48), "white")).shape
        torch.Size([3, 32, 32])
    """

    size: tuple[int, int]
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    crop: float = 0.875
    squash: bool = False
    resample: str = "bicubic"
    origin: str = "given"
    guessed: bool = False

    def __call__(self, image: Image) -> Tensor:
        """Convert an image to a tensor, shape (channels, height, width)."""
        from PIL.Image import Resampling

        resample = Resampling[self.resample.upper()]
        height, width = self.size
        (new_height, new_width), (top, left) = self._resize_and_crop(image.height, image.width)
        if new_height * new_width > MAX_PIXELS:  # a long strip of pixels: the resized image would fill the memory
            resized = image.resize((width, height), resample, self.geometry(image.height, image.width).box)
        else:
            resized = image.resize((new_width, new_height), resample)
            if not self.squash:
                resized = resized.crop((left, top, left + width, top + height))
        mode = {1: "L", 3: "RGB"}.get(len(self.mean), "RGB")
        pixels = np.asarray(resized.convert(mode), dtype=np.float32).reshape(height, width, -1) / 255
        normalised = (pixels - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        return torch.from_numpy(normalised.transpose(2, 0, 1).copy())

    def geometry(self, height: int, width: int, orientation: int = 1) -> ImageGeometry:
        """Which part of an image becomes the model's input.

        Args:
            height: Height of the image as displayed, after its EXIF orientation was applied.
            width: Its width.
            orientation: EXIF orientation of the file, kept in the result.

        Example:
            >>> Preprocess((224, 224), crop=0.875).geometry(512, 1024).box
            (288.0, 32.0, 736.0, 480.0)
        """
        (new_height, new_width), (top, left) = self._resize_and_crop(height, width)
        x, y = width / new_width, height / new_height
        box = (left * x, top * y, (left + self.size[1]) * x, (top + self.size[0]) * y)
        return ImageGeometry((height, width), box, self.size, orientation)

    def _resize_and_crop(self, old_height: int, old_width: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Height and width an image is resized to, and top and left of the crop."""
        height, width = self.size
        if self.squash:
            return self.size, (0, 0)
        min_height, min_width = floor(height / self.crop), floor(width / self.crop)
        if min_width * old_height > min_height * old_width:  # the width is the limiting side
            new_width = min_width
            new_height = max(min_height, int(min_width * old_height / old_width))
        else:
            new_width = max(min_width, int(min_height * old_width / old_height))
            new_height = min_height
        return (new_height, new_width), (round((new_height - height) / 2), round((new_width - width) / 2))

    def denormalise(self, images: Tensor) -> np.ndarray[Any, Any]:
        """Undo the normalisation: (b, channels, height, width) to uint8 images, shape (b, height, width, 3)."""
        shape = (1, -1, 1, 1)
        mean, std = (torch.tensor(v, device=images.device).view(shape) for v in (self.mean, self.std))
        return to_bytes(images.float() * std + mean)


def to_bytes(images: Tensor) -> np.ndarray[Any, Any]:
    """Convert values in [0, 1], shape (b, channels, h, w), to uint8, shape (b, h, w, 3); grey becomes RGB."""
    rgb = images[:, :3] if images.shape[1] >= 3 else images[:, :1].expand(-1, 3, -1, -1)
    scaled = (rgb.clamp(0, 1) * 255).round().byte()
    return scaled.permute(0, 2, 3, 1).cpu().numpy()


def rescale_to_bytes(images: Tensor) -> np.ndarray[Any, Any]:
    """Min-max scale each image to uint8, for tensors whose normalisation is unknown."""
    low, high = images.float().amin((1, 2, 3), keepdim=True), images.float().amax((1, 2, 3), keepdim=True)
    return to_bytes((images.float() - low) / (high - low).clamp_min(1e-12))


def open_image(path: str | Path, content: bytes | None = None) -> Image:
    """Read an image file as RGB, with the EXIF orientation applied.

    Args:
        path: Path of the file.
        content: Its content, if it was read already; the path is then only its name.

    Raises:
        InputError: The file is missing, not an image, damaged, or has more than ``MAX_PIXELS`` pixels. The size is
            checked before decoding.
    """
    from PIL import Image, UnidentifiedImageError

    path = Path(path) if content is None else path
    too_large = f"the limit is {MAX_PIXELS // 1_000_000} million: shrink the image first"
    try:
        if isinstance(path, Path) and path.is_dir():
            raise InputError(f"{path} is a folder: pass the paths of the image files in it")
        with Image.open(path if content is None else BytesIO(content)) as image:
            if image.width * image.height > MAX_PIXELS:
                raise InputError(f"{path} has {image.width}×{image.height} pixels, {too_large}")
            image.load()
            try:
                return to_rgb(image)
            except InputError as error:
                raise InputError(f"{path}: {error}") from error
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist: check the path") from error
    except Image.DecompressionBombError as error:
        count = re.search(r"\((\d+) pixels\)", str(error))  # Pillow does not say it otherwise
        given = f"{int(count[1]) / 1e6:,.0f} million" if count else "too many"
        raise InputError(f"{path} has {given} pixels, {too_large}") from error
    except UnidentifiedImageError as error:
        raise InputError(f"{path} {unread_format(content if isinstance(path, str) else path)}") from error
    except MemoryError:
        raise
    except Exception as error:  # decoders raise all kinds of errors on damaged files
        raise InputError(f"{path} cannot be read ({error}): the file may be damaged or truncated") from error


def unread_format(source: Path | bytes | None) -> str:
    """Say of a file that Pillow does not recognise what it is and what to do, as the end of "FILE …".

    Example:
        >>> unread_format(bytes(4) + b"ftypheic")
        'is a HEIC file, which is not supported: convert it to JPEG or PNG'
    """
    if isinstance(source, Path):
        with source.open("rb") as file:
            source = file.read(12)
    name = camera_format(source or b"")
    if name:
        return f"is a {name} file, which is not supported: convert it to JPEG or PNG"
    return "is not an image in a format that Pillow reads: check the file"


def camera_format(start: bytes) -> str:
    """Name of the camera's format that a file begins with; "" for others."""
    return CAMERA_FORMATS.get(start[8:12], "") if start[4:8] == b"ftyp" else ""


def to_rgb(image: Image) -> Image:
    """Apply the EXIF orientation and convert to RGB.

    16-bit grey values are divided by 65535; floats must be in [0, 1]. Both are rounded to 8 bits. Transparent pixels
    are composited on white.

    Raises:
        InputError: The values are outside of these ranges, or the mode cannot be converted.
    """
    from PIL import Image as PILImage
    from PIL import ImageOps

    oriented = ImageOps.exif_transpose(image)
    if 0 in oriented.size:
        raise InputError(f"the image has {oriented.width}×{oriented.height} pixels: it is empty; check the file")
    if oriented.mode in ("I", "F") or oriented.mode.startswith("I;16"):
        return PILImage.fromarray(_grey_to_bytes(oriented)).convert("RGB")
    try:
        if oriented.mode not in ("RGBA", "LA", "P", "PA", "RGBa", "La"):
            return oriented.convert("RGB")
        rgba = oriented.convert("LA").convert("RGBA") if oriented.mode == "La" else oriented.convert("RGBA")
        white = PILImage.new("RGBA", rgba.size, "white")
        return PILImage.alpha_composite(white, rgba).convert("RGB")
    except ValueError as error:
        raise InputError(
            f"an image of mode {oriented.mode!r} cannot be converted to RGB ({error}): convert it first"
        ) from error


def _grey_to_bytes(image: Image) -> np.ndarray[Any, Any]:
    """Scale an image of integers (16 bits) or floats to uint8."""
    grey = np.asarray(image, dtype=np.float64)
    low, high = float(grey.min()), float(grey.max())
    most, kind = (1, "floats") if image.mode == "F" else (65535, "integers")
    if not (low >= 0 and high <= most):  # also catches NaN
        raise InputError(
            f"the image holds {kind} from {low:.6g} to {high:.6g}, expected 0 to {most}: scale it first, for example "
            f"{'(x - x.min()) / (x.max() - x.min())' if image.mode == 'F' else 'to 8 or 16 bits'}, and remove NaN"
        )
    return (grey * (255 / most)).round().astype(np.uint8)
