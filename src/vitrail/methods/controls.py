"""Controls: maps that do not depend on the model, and the inverse of a method. A useful method beats them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import wraps
from typing import Any
from zlib import crc32

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.methods.probe import Probe
from vitrail.methods.registry import Applies, Method, find, register


def _grid(probe: Probe) -> tuple[int, int]:
    return probe.structure.layout.plane or (14, 14)


@register(
    "random",
    "Random",
    "control",
    cite="",
    class_specific=False,
    takes="probe",
    applies=Applies(reads="outputs", text=True, any_axes=True),
)
def random(probe: Probe, *, seed: int = 0) -> Tensor:
    """Even noise on the grid of the patches, drawn from the seed and the image's own bytes.

    The map of an image does not depend on the other images of the batch; that of a text depends on its words.

    Args:
        probe: The model and its inputs.
        seed: Of the noise.

    Returns:
        Relevance of patches, shape (b, K, rows, columns), or of the cells of another input; of a text's tokens, shape
        (b, K, S).
    """
    sequence = probe.model_inputs.patches if probe.model_inputs.words is None else probe.model_inputs.words
    if sequence is not None:
        return _random_sequence(probe, sequence, seed)
    canvas = probe.canvas
    grid = _grid(probe) if probe.model_inputs.image is not None else probe.cells
    if len(grid) == 1 and probe.structure.layout.grid is None:  # cells of a series would be taken for its tokens
        grid = tuple(canvas.shape[2:])
    maps = []
    for image in canvas:
        image_seed = crc32(image.detach().float().cpu().numpy().tobytes(), seed)
        generator = torch.Generator().manual_seed(image_seed)
        maps.append(torch.rand(grid, generator=generator))
    return torch.stack(maps).to(canvas)[:, None].expand(-1, probe.count, *grid)


def _random_sequence(probe: Probe, sequence: Tensor, seed: int) -> Tensor:
    """Noise for the words of texts, shape (b, n), or for flattened patches, shape (b, n, values)."""
    valid = probe.model_inputs.valid
    maps = torch.zeros(sequence.shape[:2])
    for i, tokens in enumerate(sequence.detach().cpu()):
        there = torch.ones(len(tokens), dtype=torch.bool) if valid is None else valid[i].cpu()
        values = tokens[there].float() if tokens.is_floating_point() else tokens[there].long()
        generator = torch.Generator().manual_seed(crc32(values.numpy().tobytes(), seed))
        maps[i, there] = torch.rand(int(there.sum()), generator=generator)
    maps = maps[:, probe.structure.layout.prefix or 0 :].to(sequence.device)
    return maps[:, None].expand(-1, probe.count, -1)


@register("centre", "Centre", "control", cite="", class_specific=False, takes="probe", applies=Applies(reads="outputs"))
def centre(probe: Probe) -> Tensor:
    """Closeness to the centre of the image.

    Args:
        probe: The model and its inputs.

    Returns:
        Relevance of patches, shape (b, K, rows, columns).
    """
    rows, columns = _grid(probe)
    y, x = (((torch.arange(n) + 0.5) / n - 0.5).to(probe.images) for n in (rows, columns))
    closeness = 1 - (y[:, None].square() + x[None].square()).sqrt()
    return closeness.expand(len(probe.images), probe.count, -1, -1).clone()


@register("edges", "Edges", "control", cite="", class_specific=False, takes="probe", applies=Applies(reads="outputs"))
def edges(probe: Probe) -> Tensor:
    """How fast brightness changes at each pixel (Sobel); it does not depend on the model.

    Args:
        probe: The model and its inputs.

    Returns:
        Relevance of pixels, shape (b, K, height, width).
    """
    grey = F.pad(probe.images.mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    across = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]).to(grey)
    slopes = F.conv2d(grey, torch.stack([across, across.T])[:, None])
    return slopes.square().sum(1, keepdim=True).sqrt().expand(-1, probe.count, -1, -1)


def _make_inverted(options: Mapping[str, Any]) -> tuple[Method, dict[str, Any]]:
    chosen = dict(options)
    of = chosen.pop("of")
    _, inner, settings = find(of)

    @wraps(inner.compute)
    def compute(given: Any, **given_options: Any) -> Tensor:
        return -inner.compute(given, **_without(given_options))

    line = replace(
        inner, name="inverted", title=f"Inverted {inner.title}", family="control", compute=compute, variants={},
        needs=lambda **given_options: inner.needed(_without(given_options)),
        signed=lambda **given_options: inner.is_signed(_without(given_options)),
        cost=lambda given_options, size, targets: inner.cost(_without(given_options), size, targets),
    )  # fmt: skip
    return line, {"of": of, **settings}


def _without(options: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if k != "of"}


@register(
    "inverted",
    "Inverted",
    "control",
    cite="",
    takes="probe",
    applies=Applies(reads="outputs", text=True, any_axes=True),
    derive=_make_inverted,
)
def inverted(probe: Probe, *, of: str = "gradtoken") -> Tensor:
    """The negative of a method: the most relevant patch becomes the least relevant.

    Args:
        probe: The model and its inputs.
        of: The method, as users type it.

    Returns:
        Whatever the method gives, with the other sign.
    """
    raise NotImplementedError(f"the registry makes this from {of} for {probe.structure.model}")
