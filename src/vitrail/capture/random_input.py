"""Random inputs on which a model's structure is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from vitrail.errors import InputError, ModelError, StructureDiffersError

Result = TypeVar("Result")


def on_random_input(run: Callable[[Tensor], Result], signal: Tensor, seed: int) -> Result:
    """Run a model on noise; where it fails on that, on values of its input in random order.

    Values of the input are in its range, which some models check.

    Args:
        run: From a random input to a result; calls the model.
        signal: Input of the model, of any shape.
        seed: Seed of the noise.

    Raises:
        ModelError: If the model fails on both.

    Example:
        >>> def bright(x):
        ...     if x.min() < 0:
        ...         raise ModelError("negative pixels")
        ...     return sorted(x.tolist())
        >>> on_random_input(bright, torch.tensor([0.5, 0.25, 1.0]), seed=0)
        [0.25, 0.5, 1.0]
    """
    generator = torch.Generator().manual_seed(seed)
    try:
        return run(torch.randn(signal.shape, generator=generator).to(signal))
    except StructureDiffersError:  # the pass ran; the structure is measured again
        raise
    except (ModelError, InputError):
        order = torch.randperm(signal.numel(), generator=generator).to(signal.device)
    try:
        return run(signal.detach().flatten()[order].view(signal.shape))
    except StructureDiffersError:
        raise
    except (ModelError, InputError) as error:
        raise ModelError(
            f"the structure of a model is measured on random inputs too, and on these this one fails ({error})"
        ) from error
