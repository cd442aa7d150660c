"""One training step with weight averaging, compiled and captured as a CUDA graph where possible."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.recipe import Loss, Recipe
from training.runtime import logger

#: Steps before the capture. The first steps select kernels and create the optimizer's state.
WARMUP_STEPS = 3


class WeightAverage:
    """Exponential moving average of a net's weights and buffers, stored in a separate model.

    Args:
        net: The module that is trained.
        model: The module that holds the average; its state dict keys are a subset of the net's.
    """

    def __init__(self, net: nn.Module, model: nn.Module) -> None:
        source = net.state_dict()
        pairs = [(average, source[name]) for name, average in model.state_dict().items()]
        self._pairs = [(average, new) for average, new in pairs if average.is_floating_point() and average.numel()]

    @torch.no_grad()
    def update(self, weight: Tensor) -> None:
        """Move the average towards the net's weights by a fraction of the difference, a 0-d tensor."""
        average, new = ([pair[i] for pair in self._pairs] for i in range(2))
        difference = torch._foreach_sub(new, average)  # noqa: SLF001 -- a few kernels instead of hundreds
        torch._foreach_mul_(difference, weight)
        torch._foreach_add_(average, difference)


def make_optimizer(net: nn.Module, recipe: Recipe, lr: Tensor) -> torch.optim.Optimizer:
    """AdamW without decay on norms, biases, positions and prefix tokens; its learning rate is a tensor."""
    decayed, not_decayed = [], []
    for name, parameter in net.named_parameters():
        if not parameter.numel():  # the prefix of a model without prefix tokens
            parameter.requires_grad_(False)
        elif parameter.ndim < 2 or name in ("position", "prefix"):
            not_decayed.append(parameter)
        else:
            decayed.append(parameter)
    groups = [{"params": decayed, "weight_decay": recipe.decay}, {"params": not_decayed, "weight_decay": 0.0}]
    on_gpu = lr.device.type == "cuda"
    return torch.optim.AdamW(groups, lr=lr, betas=recipe.betas, fused=on_gpu, capturable=on_gpu)


class TrainingStep:
    """Augmentation, forward, backward, clipping, update and weight averaging: one launch on a GPU.

    A step has hundreds of small operations, and launching them takes longer than running them. So after a few steps
    the step is captured as a CUDA graph and replayed. If compilation or capture fails, training continues without it.

    Args:
        net: The module that is trained.
        loss: Its loss on images given by their indices.
        average: The average of its weights.
        recipe: Learning rate and batch size.
        device: The device.
        compiled: Whether to compile the loss.

    Attributes:
        ready: Number of steps after which compilation and capture are done.
        total: Sum of the losses since it was last set to zero, on the device; reading it synchronises with the GPU.
    """

    def __init__(
        self, net: nn.Module, loss: Loss, average: WeightAverage, recipe: Recipe, device: torch.device, compiled: bool
    ) -> None:
        self._net, self._average, self._clip = net, average, recipe.clip
        self._eager_loss, self._loss = loss, torch.compile(loss) if compiled else loss
        self._indices = torch.zeros(recipe.batch, dtype=torch.int64, device=device)
        self._lr, self._average_weight, self.total = (torch.zeros((), device=device) for _ in range(3))
        self._optimizer = make_optimizer(net, recipe, self._lr)
        self._parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream() if device.type == "cuda" else None
        self._steps = 0
        self.compiled, self.ready = compiled, 1 if self._stream is None else WARMUP_STEPS + 1

    @property
    def captured(self) -> bool:
        """Whether the step is replayed from a CUDA graph."""
        return self._graph is not None

    def __call__(self, indices: Tensor, lr: float, ema_decay: float) -> None:
        """Train one step.

        Args:
            indices: Indices of the training images, shape (batch,).
            lr: Learning rate.
            ema_decay: Decay of the averaged weights.
        """
        self._indices.copy_(indices)
        self._lr.fill_(lr)
        self._average_weight.fill_(1 - ema_decay)
        if self._stream is not None and self._steps == WARMUP_STEPS:
            self._capture(self._stream)
            torch.cuda.synchronize()
        if self._graph is not None:
            self._graph.replay()
        elif self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                self._run()
            torch.cuda.current_stream().wait_stream(self._stream)
        else:
            self._run()
        self._steps += 1

    def _run(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        try:
            loss = self._loss(self._net, self._indices)
            loss.backward()
        except Exception as error:
            if self._steps or not self.compiled:  # not a compiler error: compilation is done in the first step
                raise
            logger.warning("torch.compile failed, continuing without it (%s)", _first_line(error))
            self.compiled, self._loss = False, self._eager_loss
            self._run()
            return
        torch.nn.utils.clip_grad_norm_(self._parameters, self._clip)
        self._optimizer.step()
        self._average.update(self._average_weight)
        self.total += loss.detach()

    def _capture(self, stream: torch.cuda.Stream) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, stream=stream):
                self._run()
        except RuntimeError as error:
            torch.cuda.synchronize()
            logger.warning("CUDA graph capture failed, continuing without it (%s)", _first_line(error))
            self._optimizer.zero_grad(set_to_none=True)
        else:
            self._graph = graph


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"
