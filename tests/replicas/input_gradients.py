"""Gradients at the pixels: times the input, integrated along a path, averaged over noise."""

import numpy as np
import torch
from torch import Tensor, nn

from .vit import Classes, gradients_at, run


def pixel_gradient(images: Tensor, model: nn.Module, classes: Classes, score: str) -> Tensor:
    """Gradient of the score at the pixels, shape b, channels, height, width."""
    pass_ = run(model, images)
    return gradients_at([pass_.images], pass_, classes, score)[0]


def over_channels(values: Tensor, reduce: str) -> Tensor:
    """Join the channels: shape b, channels, height, width to b, height, width.

    Args:
        values: What each channel of each pixel was given.
        reduce: "sum" adds them up with their signs, "abs" adds up their sizes, "max" takes the largest size.
    """
    channels = [values[:, k] for k in range(values.shape[1])]
    joined = channels[0] if reduce == "sum" else channels[0].abs()
    for channel in channels[1:]:
        if reduce == "sum":
            joined = joined + channel
        elif reduce == "abs":
            joined = joined + channel.abs()
        elif reduce == "max":
            joined = torch.maximum(joined, channel.abs())
        else:
            raise ValueError(f"unknown reduce {reduce!r}")
    return joined


def gradient_x_input(
    images: Tensor, model: nn.Module, classes: Classes, reduce: str = "sum", score: str = "logit"
) -> Tensor:
    """Pixels times the gradient of the score at them.

    Args:
        images: Normalised pixels, shape b, channels, height, width.
        model: The model.
        classes: One class per image.
        reduce: How channels are joined: "sum", "abs" or "max".
        score: What is differentiated: "logit", "prob" or "logprob".

    Returns:
        Pixel relevance, shape b, height, width.
    """
    x = images.detach().double()
    return over_channels(x * pixel_gradient(x, model, classes, score), reduce)


def path_points(steps: int, rule: str) -> list[tuple[float, float]]:
    """Points between 0 and 1 and their weights, which sum to one.

    Args:
        steps: How many points.
        rule: "gauss" for Gauss-Legendre, "midpoint" for the middles of equal pieces, "ends" for even spacing with
            both ends included, all weights the same.
    """
    if rule == "gauss":
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        return [((float(x) + 1.0) / 2.0, float(w) / 2.0) for x, w in zip(nodes, weights, strict=True)]
    if rule == "midpoint":
        return [((t + 0.5) / steps, 1.0 / steps) for t in range(steps)]
    if rule == "ends":
        return [(t / (steps - 1) if steps > 1 else 0.0, 1.0 / steps) for t in range(steps)]
    raise ValueError(f"unknown rule {rule!r}")


def integrated_gradients(
    images: Tensor,
    model: nn.Module,
    classes: Classes,
    steps: int = 50,
    rule: str = "gauss",
    baseline: float = 0.0,
    reduce: str = "sum",
    score: str = "logit",
) -> Tensor:
    """Difference to a baseline times the gradient averaged on the straight line from the baseline to the image.

    Args:
        images: Normalised pixels, shape b, channels, height, width.
        model: The model.
        classes: One class per image.
        steps: Number of points on the line.
        rule: Where they lie and what they weigh; see ``path_points``.
        baseline: Value of every pixel of the baseline, in normalised units.
        reduce: How channels are joined: "sum", "abs" or "max".
        score: What is differentiated: "logit", "prob" or "logprob".

    Returns:
        Pixel relevance, shape b, height, width.
    """
    x = images.detach().double()
    start = torch.full_like(x, baseline)
    mean = torch.zeros_like(x)
    for alpha, weight in path_points(steps, rule):
        mean = mean + weight * pixel_gradient(start + alpha * (x - start), model, classes, score)
    return over_channels((x - start) * mean, reduce)


def smoothgrad(
    images: Tensor,
    model: nn.Module,
    classes: Classes,
    samples: int = 50,
    sigma: float = 0.15,
    seed: int = 0,
    reduce: str = "abs",
    score: str = "logit",
) -> Tensor:
    """Mean gradient over copies of the image with Gaussian noise; channels are joined after the mean.

    Every image has a generator of its own, started from the same seed: what is drawn for an image does not depend on
    its place in the batch.

    Args:
        images: Normalised pixels, shape b, channels, height, width.
        model: The model.
        classes: One class per image.
        samples: Number of noisy copies.
        sigma: Standard deviation of the noise, as a share of the image's own range of values (all channels).
        seed: Seed of the noise.
        reduce: How channels are joined: "sum", "abs" or "max".
        score: What is differentiated: "logit", "prob" or "logprob".

    Returns:
        Pixel relevance, shape b, height, width.
    """
    maps = []
    for image, c in zip(images.detach().double(), classes, strict=True):
        generator = torch.Generator().manual_seed(seed)
        spread = sigma * (image.max() - image.min())
        mean = torch.zeros_like(image)
        for _ in range(samples):
            noise = torch.randn(*image.shape, generator=generator, dtype=torch.float32).double()
            mean = mean + pixel_gradient((image + spread * noise)[None], model, [int(c)], score)[0] / samples
        maps.append(over_channels(mean[None], reduce)[0])
    return torch.stack(maps)
