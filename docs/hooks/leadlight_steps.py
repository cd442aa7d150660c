"""Make the figure of the page of Leadlight: docs/images/leadlight-steps.jpg.

    python docs/hooks/leadlight_steps.py

Panels: the image with one patch marked, the relevance R, the affinity of the marked patch to all patches, the spread
relevance R'', and the result. The scene is that of the example images.
"""

from __future__ import annotations

from pathlib import Path

import torch
from example_images import GAP, SCENE, SIDE, encode, panel
from PIL import Image, ImageDraw

import vitrail
from vitrail.capture.forward import forward_pass
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure
from vitrail.capture.trace import ALL
from vitrail.data import Scenes
from vitrail.methods import METHODS
from vitrail.methods.leadlight import _by_keys
from vitrail.methods.postprocess import upsample
from vitrail.viz.colormap import overlay

PATH = Path(__file__).resolve().parents[1] / "images" / "leadlight-steps.jpg"


def main() -> None:
    """Write the figure."""
    model, scenes = vitrail.load("scenes"), Scenes("test", pairs=True)
    images, _ = scenes.batch([SCENE])
    e = vitrail.explain(model, images, "leadlight", target=scenes[SCENE].names[0], keep=True)
    assert e.rgb_images is not None
    assert e.intermediates is not None
    picture, size, (rows, columns) = e.rgb_images[0], e.rgb_images[0].shape[:2], e.grid.shape[-2:]
    source, spread = (e.intermediates[name][0][0].reshape(rows, columns) for name in ("source", "spread"))
    marked = int(source.flatten().argmax())
    inputs = ModelInputs((images,))
    structure = read_structure(model.module, inputs)
    with forward_pass(model.module, inputs, structure, [{"K": ALL}]) as one:
        spread_once = _by_keys(one.trace(), METHODS["leadlight"].options["power"])
        affinity = spread_once(torch.eye(rows * columns))[:, marked]  # the row of W of this patch
    image = Image.fromarray(picture)
    height, width = size[0] // rows, size[1] // columns
    top, left = marked // columns * height, marked % columns * width
    ImageDraw.Draw(image).rectangle((left, top, left + width - 1, top + height - 1), outline=(255, 255, 255))
    panels = [panel(image, "image, one patch")]
    maps = {"relevance R": source, "affinity of the patch": affinity.reshape(rows, columns), "spread R''": spread}
    for text, grid in {**maps, "result": e.grid[0, 0]}.items():
        relevance = upsample(grid.float() / grid.max(), size)
        panels.append(panel(Image.fromarray(overlay(picture, torch.as_tensor(relevance).numpy(), signed=False)), text))
    sheet = Image.new("RGB", (len(panels) * (SIDE + GAP) - GAP, SIDE), (128, 128, 128))
    for i, one_panel in enumerate(panels):
        sheet.paste(one_panel, (i * (SIDE + GAP), 0))
    PATH.write_bytes(encode(sheet))


if __name__ == "__main__":
    main()
