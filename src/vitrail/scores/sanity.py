"""Does a map depend on what the model has learnt? Its weights are randomised stage by stage and the maps compared.

Top-down the stages are the head (whatever comes after the last block), the blocks from last to first, and the
embedding. Cascading, each stage is randomised on top of those before it; independently, each one alone. The class
explained must stay the same. A map that stays as it was where the weights it should rest on are gone is not an
explanation of the model; but methods that read attention alone do not rest on the head, and rightly stay the same
there.

Similarity is not zero for maps that share nothing: noise lowers it and smoothness raises it, and top-down the
activations of the lower blocks stay what they were. So compare methods with each other, not with zero.
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

from vitrail.capture.frozen import frozen, unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.layout import Layout
from vitrail.capture.structure import read_structure
from vitrail.errors import InputError, ModelError, OptionError
from vitrail.postprocess import is_constant, normalise
from vitrail.scores.agreement import spearman
from vitrail.scores.fills import gaussian_kernel

How = Literal["normal", "permute", "init"]


@dataclass(frozen=True)
class RandomisationStep:
    """Parameters that are randomised together.

    Attributes:
        name: "head", "block 11", …, "embedding".
        parameters: Their names in the model.
    """

    name: str
    parameters: tuple[str, ...]


def stages(model: nn.Module, images: Tensor, layout: Layout | None = None) -> tuple[RandomisationStep, ...]:
    """The stages of a model from its head down, found by letting one picture through it.

    A parameter belongs to the block whose attention it stands beside; of the others, those used before the first block
    are the embedding and the rest the head. Parameters that are not used are in no stage.

    Args:
        model: The user's model; it is left as it was.
        images: Some input, shape (b, channels, height, width).
        layout: Prefix, grid and readout, where they cannot be found out.

    Example:
        >>> from vitrail.testing import tiny_vit
        >>> [stage.name for stage in stages(tiny_vit(), torch.randn(1, 3, 32, 32))]
        ['head', 'block 2', 'block 1', 'block 0', 'embedding']
    """
    model = unwrap(model)
    model_inputs = ModelInputs((images[:1],)).onto(model)
    projections = [o.projection or "" for o in read_structure(model, model_inputs, layout).layers if not o.pool]
    blocks = _roots(projections)
    uses = _Uses(model)
    with frozen(model), torch.no_grad(), uses:
        model_inputs.into(model)
    of: dict[str, list[str]] = {name: [] for name in ("head", "embedding", *(f"block {i}" for i in range(len(blocks))))}
    begun = False
    for name in uses.order:
        block = next((i for i, root in enumerate(blocks) if name.startswith(root + ".")), None)
        begun = begun or block is not None
        of[f"block {block}" if block is not None else "head" if begun else "embedding"].append(name)
    down = ["head", *(f"block {i}" for i in reversed(range(len(blocks)))), "embedding"]
    return tuple(RandomisationStep(name, tuple(of[name])) for name in down if of[name])


def _roots(projections: Sequence[str]) -> list[str]:
    """The blocks' names: what is left of their projections' names without the ending that all share."""
    split = [name.split(".") for name in projections]
    if not split or not all(projections) or "(unnamed)" in projections:
        raise ModelError("the blocks were not found by name: give stages=[Stage(name, parameters), …] yourself")
    if len(split) == 1:  # nothing to compare with; a block has a number
        parts = split[0]
        stop = next((i for i, part in enumerate(parts) if any(c.isdigit() for c in part)), 0)
        return [".".join(parts[: stop + 1])]
    shared = 0
    while all(len(s) > shared + 1 and s[-1 - shared] == split[0][-1 - shared] for s in split):
        shared += 1
    return [".".join(s[: len(s) - shared]) for s in split]


class _Uses(TorchFunctionMode):
    """The names of a model's parameters in the order in which they are first used."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.order: list[str] = []
        self._names = {id(p): name for name, p in model.named_parameters()}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self._look((*args, *kwargs.values()))
        return func(*args, **kwargs)

    def _look(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, nn.Parameter):
                name = self._names.pop(id(value), None)
                if name is not None:
                    self.order.append(name)
            elif isinstance(value, tuple | list):
                self._look(value)


# -- other weights -----------------------------------------------------------------------------------------------------


@contextmanager
def randomised(model: nn.Module, parameters: Iterable[str], how: How = "normal", seed: int = 0) -> Iterator[nn.Module]:
    """Give some parameters random values; on leaving, by an error too, all are put back bit for bit.

    Values are written into the memory the parameters have, so that whoever holds a view of it sees them, and no
    parameter object, gradient or flag changes. What is drawn depends on the seed and the parameter's name alone.

    Args:
        model: The user's model.
        parameters: Names, as ``named_parameters`` gives them.
        how: "normal" draws from a normal distribution with each tensor's own mean and deviation; "permute" shuffles its
            entries, which keeps their distribution exactly; "init" starts afresh: matrices from a normal distribution
            of deviation 0.02 cut at two deviations, vectors one, and zero if they are called bias.
        seed: Of the draws.

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
        raise InputError(f"the model has no parameter {missing[0]!r}")
    chosen = [(name, named[name]) for name in names if named[name].is_floating_point()]
    saved = [parameter.detach().clone() for _, parameter in chosen]
    try:
        for (name, parameter), old in zip(chosen, saved, strict=True):
            parameter.data.copy_(_draw(name, old, how, seed))
        yield model
    finally:
        for (_, parameter), old in zip(chosen, saved, strict=True):
            parameter.data.copy_(old)


def _draw(name: str, old: Tensor, how: How, seed: int) -> Tensor:
    """New values, drawn on the CPU so that no device differs."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + (seed << 32))
    if how == "permute":
        return old.flatten()[torch.randperm(old.numel(), generator=generator).to(old.device)].view_as(old)
    if how == "normal":
        wide = old.double()
        drawn = torch.randn(old.shape, generator=generator, dtype=torch.float64).to(old.device)
        return (wide.mean() + drawn * wide.std(correction=0)).to(old.dtype)
    if how == "init":
        if old.dim() > 1:
            return nn.init.trunc_normal_(torch.empty(old.shape), std=0.02, a=-0.04, b=0.04, generator=generator).to(old)
        return torch.zeros_like(old) if name.endswith("bias") else torch.ones_like(old)
    raise OptionError(f"how={how!r} is not a way to randomise: choose normal, permute or init")


# -- comparing ---------------------------------------------------------------------------------------------------------


def pearson(a: Tensor, b: Tensor) -> Tensor:
    """Correlation of each map with its partner, shape (B, …) to (B,), float64; NaN where a map is constant.

    Example:
        >>> round(pearson(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[3.0, 5.0, 7.0]])).item(), 6)
        1.0
    """
    a, b = (v.flatten(1).double() - v.flatten(1).double().mean(1, keepdim=True) for v in (a, b))
    return (a * b).sum(1) / (a.square().sum(1) * b.square().sum(1)).sqrt()


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity of maps scaled to [0, 1], shape (B, height, width) to (B,), float64.

    Windows are Gaussian, of deviation 1.5 and 11 pixels wide or as wide as fits; only whole windows count.

    Example:
        >>> ssim(torch.eye(16)[None], 3 * torch.eye(16)[None]).item()
        1.0
    """
    a, b = (normalise(v.double())[:, None] for v in (a, b))
    side = min(11, *a.shape[2:])
    window = gaussian_kernel(side - (side + 1) % 2, 1.5).to(a)[None, None]
    mean_a, mean_b = F.conv2d(a, window), F.conv2d(b, window)
    var_a, var_b = F.conv2d(a * a, window) - mean_a**2, F.conv2d(b * b, window) - mean_b**2
    both = F.conv2d(a * b, window) - mean_a * mean_b
    light = (2 * mean_a * mean_b + 1e-4) / (mean_a**2 + mean_b**2 + 1e-4)
    return (light * (2 * both + 9e-4) / (var_a + var_b + 9e-4)).mean((1, 2, 3))


def similarity(original: Tensor, changed: Tensor) -> dict[str, Tensor]:
    """How alike two maps of each image are, shape (B,) each; NaN where one is constant or not finite.

    Example:
        >>> found = similarity(torch.eye(16)[None], torch.eye(16)[None])
        >>> {name: round(value.item(), 6) for name, value in found.items()}
        {'spearman': 1.0, 'spearman_abs': 1.0, 'pearson': 1.0, 'ssim': 1.0}
    """
    dull = is_constant(original)[:, 0, 0] | is_constant(changed)[:, 0, 0]
    a, b = original.nan_to_num(), changed.nan_to_num()
    found = {"spearman": spearman(a, b), "spearman_abs": spearman(a.abs(), b.abs())}
    found |= {"pearson": pearson(a, b), "ssim": ssim(a, b)}
    return {name: value.where(~dull, torch.nan) for name, value in found.items()}


def parameter_randomisation(
    model: nn.Module,
    explain: Callable[[], Tensor],
    stages: Sequence[RandomisationStep],
    *,
    cascading: bool = True,
    how: How = "normal",
    seed: int = 0,
) -> dict[str, Tensor]:
    """Similarity of the maps before and after each stage is randomised.

    Args:
        model: The user's model; it is left as it was, bit for bit.
        explain: Makes the maps, shape (B, height, width), with the model as it is when called; the class must be fixed.
        stages: In the order in which they are to be randomised: as `stages` gives them top-down, reversed bottom-up.
        cascading: Keep earlier stages randomised; else each stage is randomised alone.
        how: See `randomised`.
        seed: Of the draws; average over several.

    Returns:
        By ``stage|measure`` a value for each image, shape (B,), ready for a tally.

    Example:
        >>> import vitrail
        >>> from vitrail.testing import tiny_vit
        >>> model, images = tiny_vit(), torch.randn(2, 3, 32, 32)
        >>> found = parameter_randomisation(
        ...     model, lambda: vitrail.explain(model, images, "rollout").maps[:, 0], stages(model, images))
        >>> found["head|spearman"].round(decimals=6).tolist(), bool((found["embedding|spearman"] < 0.9).all())
        ([1.0, 1.0], True)
    """
    original = explain()
    found: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for stage in stages:
            if not cascading:
                stack.close()
            stack.enter_context(randomised(model, stage.parameters, how, seed))
            found |= {f"{stage.name}|{name}": value for name, value in similarity(original, explain()).items()}
    return found
