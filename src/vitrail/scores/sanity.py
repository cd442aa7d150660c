"""Sanity check by parameter randomisation: compare maps before and after weights are randomised.

The steps, from the top down, are the head (everything after the last block), the blocks from last to first, and the
embedding. In a cascading test each step is randomised in addition to those before it; in an independent test, alone.
The explained class must stay the same. A map that does not change although the weights it should depend on are random
does not explain the model. Methods that read attention only do not depend on the head and correctly do not change
there.

The similarity of unrelated maps is not zero: noise lowers it and smoothness raises it. From the top down, the
activations of the lower blocks stay the same. So compare methods with each other, not with zero.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitrail import fast
from vitrail.capture.frozen import frozen, unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.layout import Layout
from vitrail.capture.structure import read_structure
from vitrail.errors import InputError, ModelError, OptionError
from vitrail.methods.postprocess import is_constant, normalise
from vitrail.scores.agreement import spearman
from vitrail.scores.fills import gaussian_kernel

Randomisation = Literal["normal", "permute", "init"]


@dataclass(frozen=True)
class RandomisationStep:
    """Parameters that are randomised in one step.

    Attributes:
        name: "head", "block 11", …, "embedding".
        parameters: Their names in the model.
    """

    name: str
    parameters: tuple[str, ...]


def randomisation_steps(
    model: nn.Module, images: Tensor | ModelInputs, layout: Layout | None = None
) -> tuple[RandomisationStep, ...]:
    """Find the randomisation steps of a model from its head down, with one forward pass.

    A parameter belongs to the block whose module contains it. Of the others, those used before the first block are the
    embedding, and the rest the head. Unused parameters are in no step.

    Args:
        model: The user's model; it is not changed.
        images: Any valid input, shape (b, channels, height, width), or all inputs of a call.
        layout: Prefix, grid and readout, where they cannot be detected.

    Example:
        >>> from vitrail.testing import tiny_vit
        >>> [step.name for step in randomisation_steps(tiny_vit(), torch.randn(1, 3, 32, 32))]
        ['head', 'block 2', 'block 1', 'block 0', 'embedding']
    """
    model = unwrap(model)
    given = images if isinstance(images, ModelInputs) else ModelInputs((images,))
    model_inputs = given.select(slice(0, 1)).onto(model)
    projections = [o.projection or "" for o in read_structure(model, model_inputs, layout).layers if not o.pool]
    blocks = _block_names(projections)
    use = _ParameterUse(model)
    with frozen(model), torch.no_grad(), use:
        model_inputs.into(model)
    names = ["head", *(f"block {i}" for i in reversed(range(len(blocks)))), "embedding"]
    parameters: dict[str, list[str]] = {name: [] for name in names}
    after_embedding = False
    for name in use.order:
        block = next((i for i, prefix in enumerate(blocks) if name.startswith(prefix + ".")), None)
        after_embedding = after_embedding or block is not None
        step = f"block {block}" if block is not None else "head" if after_embedding else "embedding"
        parameters[step].append(name)
    return tuple(RandomisationStep(name, tuple(parameters[name])) for name in names if parameters[name])


def _block_names(projections: Sequence[str]) -> list[str]:
    """Names of the blocks: the names of their attention projections without the suffix that all have in common."""
    split = [name.split(".") for name in projections]
    if not split or not all(projections) or "(unnamed)" in projections:
        raise ModelError(
            "the modules of the model's blocks were not found: list RandomisationStep(name, parameters) by hand"
        )
    if len(split) == 1:  # no common suffix can be found for one block; a block has a number
        parts = split[0]
        stop = next((i for i, part in enumerate(parts) if any(c.isdigit() for c in part)), 0)
        return [".".join(parts[: stop + 1])]
    shared = 0
    while all(len(s) > shared + 1 and s[-1 - shared] == split[0][-1 - shared] for s in split):
        shared += 1
    return [".".join(s[: len(s) - shared]) for s in split]


class _ParameterUse(TorchFunctionMode):
    """Records the names of a model's parameters in the order of their first use."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.order: list[str] = []
        self._names = {id(p): name for name, p in model.named_parameters()}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self._record((*args, *kwargs.values()))
        return func(*args, **kwargs)

    def _record(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, nn.Parameter):
                name = self._names.pop(id(value), None)
                if name is not None:
                    self.order.append(name)
            elif isinstance(value, tuple | list):
                self._record(value)


@contextmanager
def randomised(
    model: nn.Module, parameters: Iterable[str], how: Randomisation = "normal", seed: int = 0
) -> Iterator[nn.Module]:
    """Context manager that sets some parameters to random values and restores them bit for bit, also after an error.

    Values are written in place, so views of the parameters see them, and no parameter object, gradient or flag changes.
    The random values depend on the seed and the parameter's name only.

    Args:
        model: The user's model.
        parameters: Names, as in ``named_parameters``.
        how: "normal" draws from a normal distribution with the tensor's own mean and standard deviation; "permute"
            shuffles its entries; "init" initialises again: matrices from a normal distribution of standard deviation
            0.02 truncated at two standard deviations, vectors with 1, or with 0 if they are named bias.
        seed: Seed of the draws.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> before = layer.weight.detach().clone()
        >>> with randomised(layer, ["weight"], "permute", seed=1):
        ...     same = torch.equal(layer.weight, before)
        >>> same, torch.equal(layer.weight, before)
        (False, True)
    """
    named = dict(model.named_parameters())
    names = list(parameters)
    missing = [name for name in names if name not in named]
    if missing:
        raise InputError(f"the model has no parameter {missing[0]!r}: use names of model.named_parameters()")
    selected = [(name, named[name]) for name in names if named[name].is_floating_point()]
    saved = [parameter.detach().clone() for _, parameter in selected]
    try:
        for (name, parameter), old in zip(selected, saved, strict=True):
            parameter.data.copy_(_random_values(name, old, how, seed))
        fast.changed(model)
        yield model
    finally:
        for (_, parameter), old in zip(selected, saved, strict=True):
            parameter.data.copy_(old)
        fast.changed(model)


def _random_values(name: str, old: Tensor, how: Randomisation, seed: int) -> Tensor:
    """Draw new values on the CPU, so that they are the same on every device."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + (seed << 32))
    if how == "permute":
        return old.flatten()[torch.randperm(old.numel(), generator=generator).to(old.device)].view_as(old)
    if how == "normal":
        exact = old.double()
        drawn = torch.randn(old.shape, generator=generator, dtype=torch.float64).to(old.device)
        return (exact.mean() + drawn * exact.std(correction=0)).to(old.dtype)
    if how == "init":
        if old.dim() > 1:
            return nn.init.trunc_normal_(torch.empty(old.shape), std=0.02, a=-0.04, b=0.04, generator=generator).to(old)
        return torch.zeros_like(old) if name.endswith("bias") else torch.ones_like(old)
    raise OptionError(f"unknown randomisation how={how!r}: choose normal, permute or init")


def pearson(a: Tensor, b: Tensor) -> Tensor:
    """Pearson's correlation of each pair of maps, shape (B, …) to (B,), float64; NaN where a map is constant.

    Example:
        >>> round(pearson(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[3.0, 5.0, 7.0]])).item(), 6)
        1.0
    """
    a, b = (v.flatten(1).double() - v.flatten(1).double().mean(1, keepdim=True) for v in (a, b))
    return (a * b).sum(1) / (a.square().sum(1) * b.square().sum(1)).sqrt()


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity (SSIM) of maps scaled to [0, 1], shape (B, height, width) to (B,), float64.

    Windows are Gaussian with σ = 1.5, 11 pixels wide or the largest odd width that fits; only full windows count.

    Example:
        >>> ssim(torch.eye(16)[None], 3 * torch.eye(16)[None]).item()
        1.0
    """
    a, b = (normalise(v.double())[:, None] for v in (a, b))
    side = min(11, *a.shape[2:])
    window = gaussian_kernel(side - (side + 1) % 2, 1.5).to(a)[None, None]
    mean_a, mean_b = F.conv2d(a, window), F.conv2d(b, window)
    var_a, var_b = F.conv2d(a * a, window) - mean_a**2, F.conv2d(b * b, window) - mean_b**2
    covariance = F.conv2d(a * b, window) - mean_a * mean_b
    luminance = (2 * mean_a * mean_b + 1e-4) / (mean_a**2 + mean_b**2 + 1e-4)
    return (luminance * (2 * covariance + 9e-4) / (var_a + var_b + 9e-4)).mean((1, 2, 3))


def map_similarity(original: Tensor, changed: Tensor) -> dict[str, Tensor]:
    """Compute similarity measures of two maps of each image, shape (B,) each; NaN where one is constant or not finite.

    Example:
        >>> found = map_similarity(torch.eye(16)[None], torch.eye(16)[None])
        >>> {name: round(value.item(), 6) for name, value in found.items()}
        {'spearman': 1.0, 'spearman_abs': 1.0, 'pearson': 1.0, 'ssim': 1.0}
    """
    constant = is_constant(original)[:, 0, 0] | is_constant(changed)[:, 0, 0]
    a, b = original.nan_to_num(), changed.nan_to_num()
    measures = {"spearman": spearman(a, b), "spearman_abs": spearman(a.abs(), b.abs())}
    measures |= {"pearson": pearson(a, b), "ssim": ssim(a, b)}
    return {name: value.where(~constant, torch.nan) for name, value in measures.items()}


def parameter_randomisation(
    model: nn.Module,
    explain: Callable[[], Tensor],
    steps: Sequence[RandomisationStep],
    *,
    cascading: bool = True,
    how: Randomisation = "normal",
    seed: int = 0,
) -> dict[str, Tensor]:
    """Measure the similarity of maps before and after each randomisation step.

    Args:
        model: The user's model; its weights are restored bit for bit.
        explain: Computes maps of a fixed class, shape (B, height, width), with the model's current weights.
        steps: Steps in the order of randomisation: as returned by `randomisation_steps` for top-down, reversed for
            bottom-up.
        cascading: Keep earlier steps randomised; else randomise each step alone.
        how: See `randomised`.
        seed: Seed of the draws; average over several.

    Returns:
        Under ``step|measure`` one value per image, shape (B,).

    Example:
        >>> import vitrail
        >>> from vitrail.testing import tiny_vit
        >>> model, images = tiny_vit(), torch.randn(2, 3, 32, 32)
        >>> found = parameter_randomisation(
        ...     model, lambda: vitrail.explain(model, images, "rollout").maps[:, 0], randomisation_steps(model, images))
        >>> found["head|spearman"].round(decimals=6).tolist(), bool((found["embedding|spearman"] < 0.9).all())
        ([1.0, 1.0], True)
    """
    original = explain()
    scores: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for step in steps:
            if not cascading:
                stack.close()
            stack.enter_context(randomised(model, step.parameters, how, seed))
            scores |= {f"{step.name}|{name}": value for name, value in map_similarity(original, explain()).items()}
    return scores
