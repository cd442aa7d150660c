"""One step of training, compiled and captured as a CUDA graph where that works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from training.average import Average
from training.schedule import Recipe
from training.start import logger

#: From a net and indices of training pictures to the loss on them; draws the augmentation itself.
Loss = Callable[[Any, Tensor], Tensor]

#: Steps before the capture: kernels are chosen and the optimizer's state is made in the first ones.
WARM_UP = 3


def make_optimizer(net: nn.Module, recipe: Recipe, lr: Tensor) -> torch.optim.Optimizer:
    """AdamW without decay on norms, biases, positions and prefix tokens; its rate is a tensor, changed in place."""
    decayed, free = [], []
    for name, parameter in net.named_parameters():
        if not parameter.numel():  # the prefix of a model without one
            parameter.requires_grad_(False)
        elif parameter.ndim < 2 or name in ("position", "prefix"):
            free.append(parameter)
        else:
            decayed.append(parameter)
    groups = [{"params": decayed, "weight_decay": recipe.decay}, {"params": free, "weight_decay": 0.0}]
    on_gpu = lr.device.type == "cuda"
    return torch.optim.AdamW(groups, lr=lr, betas=recipe.betas, fused=on_gpu, capturable=on_gpu)


class Step:
    """Augmentation, forward, backward, clipping, update and averaging: one launch on a GPU.

    A step consists of some hundred small operations, and launching them one by one takes longer than running them. So
    after a few steps the whole of it is recorded once and replayed from then on. Where the compiler or the recording
    fails, training goes on without it.

    Args:
        net: What is trained.
        loss: Its loss on pictures given by their indices.
        average: The average of its weights.
        recipe: Rates and sizes.
        device: Where it is trained.
        compiled: Whether to compile the loss.

    Attributes:
        ready: Number of steps after which nothing is left to be prepared.
        total: Sum of the losses since it was last set to zero, on the device: reading it waits for the GPU.
    """

    def __init__(
        self, net: nn.Module, loss: Loss, average: Average, recipe: Recipe, device: torch.device, compiled: bool
    ) -> None:
        self._net, self._average, self._clip = net, average, recipe.clip
        self._eager, self._loss = loss, torch.compile(loss) if compiled else loss
        self._indices = torch.zeros(recipe.batch, dtype=torch.int64, device=device)
        self._lr, self._pull, self.total = (torch.zeros((), device=device) for _ in range(3))
        self._optimizer = make_optimizer(net, recipe, self._lr)
        self._parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream() if device.type == "cuda" else None
        self._taken = 0
        self.compiled, self.ready = compiled, 1 if self._stream is None else WARM_UP + 1

    @property
    def captured(self) -> bool:
        """Whether the step is replayed."""
        return self._graph is not None

    def __call__(self, indices: Tensor, lr: float, decay: float) -> None:
        """Take one step on some pictures, with a learning rate and a decay of the averaged weights."""
        self._indices.copy_(indices)
        self._lr.fill_(lr)
        self._pull.fill_(1 - decay)
        if self._stream is not None and self._taken == WARM_UP:
            self._capture(self._stream)
            torch.cuda.synchronize()
        if self._graph is not None:
            self._graph.replay()
        elif self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                self._take()
            torch.cuda.current_stream().wait_stream(self._stream)
        else:
            self._take()
        self._taken += 1

    def _take(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        try:
            loss = self._loss(self._net, self._indices)
            loss.backward()  # type: ignore[no-untyped-call]
        except Exception as error:
            if self._taken or not self.compiled:  # the compiler has done its work before: this is another matter
                raise
            logger.warning("torch.compile failed, going on without it (%s)", _line(error))
            self.compiled, self._loss = False, self._eager
            self._take()
            return
        torch.nn.utils.clip_grad_norm_(self._parameters, self._clip)
        self._optimizer.step()
        self._average.update(self._pull)
        self.total += loss.detach()

    def _capture(self, stream: torch.cuda.Stream) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, stream=stream):
                self._take()
        except RuntimeError as error:
            torch.cuda.synchronize()
            logger.warning("capturing the step failed, going on without it (%s)", _line(error))
            self._optimizer.zero_grad(set_to_none=True)
        else:
            self._graph = graph


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"
