"""Gradients at the pixels or word embeddings: times the input, integrated along a path, or averaged over noise."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.errors import OptionError
from vitrail.methods.cost import gradient_passes
from vitrail.methods.probe import Probe
from vitrail.methods.registry import Applies, choose, register

REDUCE = ("sum", "abs", "max")


def _signed(reduce: str, **_: object) -> bool:
    return reduce == "sum"


def _over_channels(values: Tensor, reduce: str, probe: Probe) -> Tensor:
    """(b, channels, height, width), or another canvas, to (b, height, width); (b, n, d) of words to (b, n − prefix)."""
    axis = 2 if probe.model_inputs.axes is None else 1
    values = values if axis == 1 else values[:, probe.structure.layout.prefix or 0 :]
    if reduce == "sum":
        return values.sum(axis)
    return values.abs().sum(axis) if reduce == "abs" else values.abs().amax(axis)


@register(
    "gradient_x_input",
    "Gradient × input",
    "input",
    cite="shrikumar2016not",
    takes="probe",
    score="logit",
    signed=_signed,
    applies=Applies(reads="outputs", text=True, any_axes=True),
    cost=gradient_passes(),
)
def gradient_x_input(probe: Probe, *, reduce: str = "sum") -> Tensor:
    """Each pixel, or each token embedding of a text, times the gradient at it.

    Args:
        probe: Evaluates the model.
        reduce: How the channels of a pixel are joined: "sum" with their signs, sum of "abs", or "max" of them.

    Returns:
        Relevance of pixels, shape (b, K, height, width), or over the axes of another input, such as
        (b, K, time, height, width) of a video; of a text's tokens, shape (b, K, S).
    """
    choose("reduce", reduce, REDUCE)
    images = probe.inputs
    return torch.stack([_over_channels(images * one, reduce, probe) for one in probe.own_gradients()], 1)


@register(
    "integrated_gradients",
    "Integrated gradients",
    "input",
    cite="sundararajan2017axiomatic",
    takes="probe",
    score="logit",
    signed=_signed,
    variants={
        "interpretdl": {"rule": "ends", "score": "prob", "reduce": "abs"},
        "quick": {"steps": 3},
        "preview": {"steps": 16},
    },
    applies=Applies(reads="outputs", text=True, any_axes=True),
    cost=gradient_passes("steps"),
)
def integrated_gradients(
    probe: Probe, *, steps: int = 50, rule: str = "gauss", baseline: float = 0.0, reduce: str = "sum"
) -> Tensor:
    """Difference of image and baseline, times the mean gradient on the path between them.

    Args:
        probe: Evaluates the model.
        steps: Number of images on the path.
        rule: Where they lie and what each weighs: "gauss" (Gauss-Legendre), "midpoint" of even pieces, or even steps
            with both "ends", as some libraries have it.
        baseline: The value of every pixel at the start, as the model takes it; 0 is the mean colour. For a text, every
            number of every token's vector; positions stay what they are. A tensor or array of images, or one for each
            image, is taken as well.
        reduce: How the channels of a pixel are joined: "sum" with their signs, sum of "abs", or "max" of them.

    Returns:
        Relevance of pixels, shape (b, K, height, width), or over the axes of another input, such as
        (b, K, time, height, width) of a video; of a text's tokens, shape (b, K, S).
    """
    choose("reduce", reduce, REDUCE)
    choose("rule", rule, ("gauss", "midpoint", "ends"))
    if steps < 1:
        raise OptionError(f"steps={steps} must be at least 1")
    images = probe.inputs
    each = (-1, *[1] * (images.dim() - 1))
    alphas, weights = (torch.from_numpy(t).to(images) for t in _nodes(steps, rule))
    start = _start(baseline, images)
    way = images - start
    maps = []
    for k in range(probe.count):
        mean = torch.zeros_like(images)
        for piece in probe.pieces(steps * len(images)):
            at = torch.arange(piece.start, piece.stop, device=images.device)
            step, owner = at // len(images), at % len(images)
            gradient = probe.of(k).gradient(start[owner] + alphas[step].view(each) * way[owner], owner)
            mean.index_add_(0, owner, weights[step].view(each) * gradient)
        maps.append(_over_channels(way * mean, reduce, probe))
    return torch.stack(maps, 1)


def _start(baseline: float | Tensor, images: Tensor) -> Tensor:
    """The start of the path for each image, in the shape of the images."""
    given = torch.as_tensor(baseline).to(images)
    try:
        return given.expand_as(images)
    except RuntimeError as error:
        raise OptionError(
            f"baseline of shape {tuple(given.shape)} does not fit {len(images)} images of shape "
            f"{tuple(images.shape[1:])}: give a number, one image, or one for each image of a batch"
        ) from error


def _nodes(steps: int, rule: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Positions on the path, between 0 and 1, and their weights."""
    even = np.full(steps, 1 / steps)
    if rule == "gauss":
        points, weights = np.polynomial.legendre.leggauss(steps)
        return (points + 1) / 2, weights / 2
    if rule == "midpoint":
        return (np.arange(steps) + 0.5) / steps, even
    return np.linspace(0, 1, steps), even


@register(
    "smoothgrad",
    "SmoothGrad",
    "input",
    cite="smilkov2017smoothgrad",
    takes="probe",
    score="logit",
    signed=_signed,
    variants={"interpretdl": {"sigma": 0.1, "score": "prob"}, "quick": {"samples": 3}, "preview": {"samples": 16}},
    applies=Applies(
        reads="outputs",
        any_axes=True,
        excluded={"text": "its noise is drawn for the whole input, so that padding would change it"},
    ),
    cost=gradient_passes("samples"),
)
def smoothgrad(probe: Probe, *, samples: int = 50, sigma: float = 0.15, seed: int = 0, reduce: str = "abs") -> Tensor:
    """The gradient at the pixels, averaged over noisy copies of the image.

    Args:
        probe: Evaluates the model.
        samples: Number of copies.
        sigma: Standard deviation of the noise, as a share of the image's range of values.
        seed: Of the noise, which is the same for every image.
        reduce: How the channels of a pixel are joined: "sum" with their signs, sum of "abs", or "max" of them.

    Returns:
        Relevance of pixels, shape (b, K, height, width), or over the axes of another input.
    """
    choose("reduce", reduce, REDUCE)
    if samples < 1:
        raise OptionError(f"samples={samples} must be at least 1")
    images = probe.canvas
    each_value = tuple(range(1, images.dim()))
    spread = sigma * (images.amax(each_value, keepdim=True) - images.amin(each_value, keepdim=True))
    totals = [torch.zeros_like(images) for _ in range(probe.count)]
    generator = torch.Generator().manual_seed(seed)
    each = max(1, probe.max_batch // len(images))
    for start in range(0, samples, each):
        count = min(each, samples - start)
        noise = torch.stack([torch.randn(images.shape[1:], generator=generator) for _ in range(count)]).to(images)
        for piece in probe.pieces(count * len(images)):
            at = torch.arange(piece.start, piece.stop, device=images.device)
            sample, owner = at // len(images), at % len(images)
            noisy = images[owner] + spread[owner] * noise[sample]
            for k, total in enumerate(totals):
                total.index_add_(0, owner, probe.of(k).gradient(noisy, owner))
    return torch.stack([_over_channels(total / samples, reduce, probe) for total in totals], 1)
