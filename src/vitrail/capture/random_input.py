"""Random inputs on which a model's structure is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from vitrail.errors import InputError, ModelError, StructureDiffersError

Result = TypeVar("Result")


def on_random_input(run: Callable[[Tensor], Result], signal: Tensor, seed: int) -> Result:
    """Run a model on noise; where it fails, on noise in the range of its input, then on its input in random order.

    Some models check the range of their pixels, or take only some values.

    Args:
        run: From a random input to a result; calls the model.
        signal: Input of the model, of any shape.
        seed: Seed of the noise.

    Raises:
        ModelError: If the model fails on all of them.

    Example:
        >>> def bright(x):
        ...     if x.min() < 0:
        ...         raise ModelError("negative pixels")
        ...     return 0.25 <= x.min() <= x.max() <= 1
        >>> on_random_input(bright, torch.tensor([0.5, 0.25, 1.0]), seed=0)
        tensor(True)
    """
    generator = torch.Generator().manual_seed(seed)
    low, high = signal.detach().amin(), signal.detach().amax()
    shuffled = torch.randperm(signal.numel(), generator=torch.Generator().manual_seed(seed))
    inputs: tuple[Callable[[], Tensor], ...] = (
        lambda: torch.randn(signal.shape, generator=generator).to(signal),
        lambda: (torch.rand(signal.shape, generator=generator).to(signal) * (high - low) + low).clamp(low, high),
        lambda: signal.detach().flatten()[shuffled.to(signal.device)].view(signal.shape),
    )
    failure: Exception | None = None
    for draw in inputs:
        try:
            return run(draw())
        except StructureDiffersError:  # the pass ran; the structure is measured again
            raise
        except (ModelError, InputError) as error:
            failure = error
    raise ModelError(
        f"the structure of a model is measured on random inputs too, and on these this one fails ({failure})"
    ) from failure
