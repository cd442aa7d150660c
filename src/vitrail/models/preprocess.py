"""Images to tensors as the model was trained to see them, and back to pictures."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
LARGEST = 100_000_000
"""Pixels an image may have; a decoder would take three bytes for each."""


@dataclass(frozen=True)
class Preprocess:
    """Resize, crop, scale to [0, 1], normalise.

    Attributes:
        size: Height and width the model takes.
        mean: Per channel.
        std: Per channel.
        crop: Share of the resized image's shorter side that is kept; 1 keeps all of it.
        squash: Resize straight to ``size`` instead, without keeping proportions and without a crop.
        resample: "bicubic", "bilinear" or "nearest".
        origin: Where these numbers come from, for printing.

    Example:
        >>> from PIL import Image
        >>> prepare = Preprocess((32, 32), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
        >>> prepare(Image.new("RGB", (64, 48), "white")).shape
        torch.Size([3, 32, 32])
    """

    size: tuple[int, int]
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    crop: float = 0.875
    squash: bool = False
    resample: str = "bicubic"
    origin: str = "given"

    def __call__(self, image: Image) -> Tensor:
        """One image to a tensor, shape (channels, height, width)."""
        from PIL.Image import Resampling

        how = Resampling[self.resample.upper()]
        height, width = self.size
        if self.squash:
            resized = image.resize((width, height), how)
        else:
            tall, broad = floor(height / self.crop), floor(width / self.crop)
            if broad * image.height > tall * image.width:  # the width is what limits
                wide, high = broad, max(tall, int(broad * image.height / image.width))
            else:
                wide, high = max(broad, int(tall * image.width / image.height)), tall
            resized = image.resize((wide, high), how)
            left, top = round((wide - width) / 2), round((high - height) / 2)
            resized = resized.crop((left, top, left + width, top + height))
        mode = {1: "L", 3: "RGB"}.get(len(self.mean), "RGB")
        pixels = np.asarray(resized.convert(mode), dtype=np.float32).reshape(height, width, -1) / 255
        normal = (pixels - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        return torch.from_numpy(normal.transpose(2, 0, 1).copy())

    def picture(self, images: Tensor) -> np.ndarray[Any, Any]:
        """Undo the normalisation: (b, channels, height, width) to bytes, shape (b, height, width, 3)."""
        shape = (1, -1, 1, 1)
        mean, std = (torch.tensor(v, device=images.device).view(shape) for v in (self.mean, self.std))
        return to_bytes(images.float() * std + mean)


def to_bytes(images: Tensor) -> np.ndarray[Any, Any]:
    """Values in [0, 1], shape (b, channels, h, w), to bytes, shape (b, h, w, 3); one channel becomes three."""
    shown = images[:, :3] if images.shape[1] >= 3 else images[:, :1].expand(-1, 3, -1, -1)
    scaled = (shown.clamp(0, 1) * 255).round().byte()
    return scaled.permute(0, 2, 3, 1).cpu().numpy()


def guess_picture(images: Tensor) -> np.ndarray[Any, Any]:
    """A picture of tensors whose normalisation is unknown: each image stretched to its own range."""
    low, high = images.float().amin((1, 2, 3), keepdim=True), images.float().amax((1, 2, 3), keepdim=True)
    return to_bytes((images.float() - low) / (high - low).clamp_min(1e-12))


def open_image(path: str | Path) -> Image:
    """Read an image file: upright, in RGB, and refused before decoding if it is far too large.

    Raises:
        InputError: The file is missing, is no image, is damaged, or has more than ``LARGEST`` pixels.
    """
    from PIL import Image, UnidentifiedImageError

    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder: name the images in it")
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None  # our own limit, checked below, says what to do
    try:
        with Image.open(path) as image:
            if image.width * image.height > LARGEST:
                raise InputError(
                    f"{path} has {image.width}×{image.height} pixels, more than {LARGEST // 1_000_000} million: "
                    "shrink it first, the model sees a few hundred pixels a side"
                )
            image.load()
            return upright(image)
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist") from error
    except UnidentifiedImageError as error:
        raise InputError(f"{path} is not an image Pillow can read: check the file") from error
    except (OSError, ValueError, SyntaxError) as error:
        raise InputError(f"{path} cannot be read ({error}): the file may be damaged or cut short") from error
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def upright(image: Image) -> Image:
    """Apply the camera's orientation and convert to RGB; 16-bit greys are scaled, not clipped."""
    from PIL import Image as Images
    from PIL import ImageOps

    turned = ImageOps.exif_transpose(image)
    if turned.mode.startswith("I;16") or turned.mode == "I":
        grey = np.asarray(turned, dtype=np.float64)
        return Images.fromarray((grey / 257).clip(0, 255).astype(np.uint8)).convert("RGB")
    if turned.mode in ("RGBA", "LA", "P", "PA"):
        layered = turned.convert("RGBA")
        white = Images.new("RGBA", layered.size, "white")
        return Images.alpha_composite(white, layered).convert("RGB")
    return turned.convert("RGB")
