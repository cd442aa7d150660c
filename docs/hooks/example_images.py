"""Make the example image of every method page: docs/images/methods/NAME.jpg.

    python docs/hooks/example_images.py [NAME ...]

Each image has three panels: the input, the relevance map of its first class and that of its second class. All methods
explain the same held-out scene with the embedded model, with their default options. The scene was chosen before any
map was computed: two objects of similar size that do not touch.
"""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

import vitrail
from vitrail.data import Scenes
from vitrail.viz.colormap import overlay

FOLDER = Path(__file__).resolve().parents[1] / "images" / "methods"
SCENE = 8  # of the test split with two objects
SIDE, GAP, LABEL = 224, 4, 24  # pixels
MAX_BYTES = 25_000


def panel(pixels: Image.Image, text: str) -> Image.Image:
    """One panel with its label in the lower left corner."""
    image = pixels.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(15)
    top = SIDE - LABEL
    draw.rectangle((0, top, draw.textlength(text, font=font) + 12, SIDE), fill=(20, 20, 24))
    draw.text((6, top + LABEL / 2), text, font=font, fill="white", anchor="lm")
    return image


def strip(explanation: vitrail.Explanation) -> Image.Image:
    """The input and the maps of all targets, side by side."""
    assert explanation.pictures is not None
    picture = explanation.pictures[0]
    panels = [panel(Image.fromarray(picture), "image")]
    for k in range(explanation.maps.shape[1]):
        relevance = explanation.maps[0, k].float().cpu().numpy()
        covered = overlay(picture, relevance, explanation.signed)
        panels.append(panel(Image.fromarray(covered), explanation.label(0, k).partition(" (")[0]))
    sheet = Image.new("RGB", (len(panels) * (SIDE + GAP) - GAP, SIDE), (128, 128, 128))
    for i, image in enumerate(panels):
        sheet.paste(image, (i * (SIDE + GAP), 0))
    return sheet


def encode(image: Image.Image) -> bytes:
    """JPEG bytes of the best quality that fits the limit."""
    for quality in range(88, 30, -4):
        buffer = BytesIO()
        image.save(buffer, "JPEG", quality=quality, optimize=True, progressive=True)
        if buffer.tell() <= MAX_BYTES:
            return buffer.getvalue()
    raise ValueError(f"the image does not fit into {MAX_BYTES} bytes")


def main(names: list[str]) -> None:
    """Write the images of some methods, or of all."""
    model = vitrail.load("scenes")
    scenes = Scenes("test", pairs=True)
    images, _ = scenes.batch([SCENE])
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names or list(vitrail.methods()):
        explanation = vitrail.explain(model, images, name, target=[list(scenes[SCENE].names)])
        (FOLDER / f"{name}.jpg").write_bytes(encode(strip(explanation)))


if __name__ == "__main__":
    main(sys.argv[1:])
