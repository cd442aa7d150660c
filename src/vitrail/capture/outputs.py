"""What a model returns: class scores, probabilities, or features of a model without a classification head."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail import fast
from vitrail.capture.frozen import unwrap
from vitrail.capture.operators import NORM
from vitrail.capture.output_tensors import logits_of
from vitrail.capture.recogniser import FOLD, MATMUL, SAME

#: Functions that select or average tokens: an output made by one of them is a feature vector.
_POOLING = {
    torch.mean, Tensor.mean, torch.amax, Tensor.amax, Tensor.max, Tensor.__getitem__, Tensor.select, torch.select,
    F.adaptive_avg_pool2d, F.adaptive_avg_pool1d, F.avg_pool2d, F.normalize, torch.tanh, Tensor.tanh, F.tanh,
}  # fmt: skip
#: Functions that keep the values and change the form.
_FORM = SAME | FOLD | {Tensor.squeeze, torch.squeeze, Tensor.unsqueeze, torch.unsqueeze}
_STACKING = {torch.stack, torch.cat}
_SIGMOID = {torch.sigmoid, Tensor.sigmoid, F.sigmoid}


#: Function calls of a pass, newest last: the result, the function and its arguments.
RecentCalls = Sequence[tuple[Tensor, Any, tuple[Any, ...]]]


def maker(recent_calls: RecentCalls, tensor: Tensor) -> tuple[Any, tuple[Any, ...]] | None:
    """The function that computed a tensor's values, and its arguments; None if it is not among the last calls."""
    for result, func, args in reversed(recent_calls):
        if result is tensor and not any(a is tensor for a in args):
            if func not in _FORM or not args or not isinstance(args[0], Tensor):
                return func, args
            tensor = args[0]
    return None


def output_kind(model: nn.Module, output: Any, recent_calls: RecentCalls) -> str:
    """What the output is: "scores", "probabilities", "sigmoid" or "features"; remembered for `class_logits`."""
    kind = _output_kind(model, output, recent_calls)
    scores = logits_of(output, stated_count(model))
    fast.remember(model, "outputs", (kind, None if scores is None else int(scores.shape[1])))
    return kind


def stated_count(model: nn.Module) -> int | None:
    """Number of classes that a model states: ``num_classes``, or ``num_labels`` of its config.

    Example:
        >>> from types import SimpleNamespace
        >>> stated_count(SimpleNamespace(num_classes=5)), stated_count(nn.Identity())
        (5, None)
    """
    stated = getattr(model, "num_classes", None)
    stated = getattr(getattr(model, "config", None), "num_labels", None) if stated is None else stated
    return stated if isinstance(stated, int) and stated >= 0 else None


def _stated_by_parts(model: nn.Module) -> set[int]:
    """Numbers of classes that parts of a model state, such as the classifier inside a module of the user."""
    return {count for part in model.modules() if (count := stated_count(part))}


def keep_kind(model: nn.Module, key: Hashable) -> None:
    """Keep what is known of the output under a key: of the part that one way to read it chooses."""
    fast.remember(model, "outputs", fast.recall(model, "outputs"), key)


def recall_kind(model: nn.Module, key: Hashable) -> None:
    """Let `class_logits` use what was kept under a key."""
    known = fast.recall(model, "outputs", key)
    if known is not None:
        fast.remember(model, "outputs", known)


def known_kind(model: nn.Module) -> str | None:
    """What a model returns as its self-check found, wrapped or not; None before that."""
    kind = _known_kind(model)
    return _known_kind(unwrap(model)) if kind is None else kind


def _known_kind(model: nn.Module) -> str | None:
    known: tuple[str, int | None] | None = fast.recall(model, "outputs")
    return None if known is None else known[0]


def _output_kind(model: nn.Module, output: Any, recent_calls: RecentCalls) -> str:
    stated = stated_count(model)
    scores = logits_of(output, stated)
    if scores is None:
        return "scores"
    func, args = _unpooled(recent_calls, maker(recent_calls, scores))
    if func in _SIGMOID and scores.shape[1] > 0:
        return "sigmoid"
    if is_probabilities(scores):
        return "probabilities"
    if not isinstance(output, Tensor) or scores.shape[1] in {
        stated,
        *(_stated_by_parts(model) if stated is None else ()),
    }:
        return "scores"
    projected = func in MATMUL and any(isinstance(a, nn.Parameter) and a.dim() == 2 for a in args)
    return "features" if stated == 0 or func in _POOLING or func in NORM or projected else "scores"


def _unpooled(recent_calls: RecentCalls, found: tuple[Any, tuple[Any, ...]] | None) -> tuple[Any, tuple[Any, ...]]:
    """The function behind rows that were selected, or behind an average of outputs for several crops of an image."""
    func, args = found or (None, ())
    if func not in _POOLING or not args or not isinstance(args[0], Tensor):
        return func, args
    inner = maker(recent_calls, args[0])
    if inner is not None and inner[0] in _STACKING and inner[1] and isinstance(inner[1][0], list | tuple):
        inner = maker(recent_calls, inner[1][0][-1])
    elif args[0].dim() > 2:  # one of several tokens, or their mean
        return func, args
    return inner or (func, args)


def is_probabilities(scores: Tensor) -> bool:
    """Whether each row is a probability distribution over two classes or more.

    Example:
        >>> is_probabilities(torch.tensor([[0.25, 0.75]])), is_probabilities(torch.tensor([[2.0, -1.0]]))
        (True, False)
    """
    return bool(rows_are_probabilities(scores))


def rows_are_probabilities(scores: Tensor) -> Tensor:
    """The same as a boolean tensor of one entry on the device of the scores."""
    values = scores.detach().double()
    if scores.shape[1] < 2:
        return torch.zeros((), dtype=torch.bool, device=scores.device)
    tolerance = 1e-2 if scores.dtype in (torch.float16, torch.bfloat16) else 1e-4
    inside = (values >= 0).all() & (values <= 1 + tolerance).all()
    return inside & ((values.sum(1) - 1).abs() < tolerance).all()


def class_logits(model: nn.Module, output: Any) -> Tensor | None:
    """The class scores in a model's output as logits, shape (b, C), or None if it has none.

    Probabilities become their logarithms, whose softmax they are, so that no softmax is applied twice. What the model
    returns is known from its self-check; before that, rows that are probabilities are taken as such.

    Example:
        >>> class_logits(nn.Identity(), torch.tensor([[0.25, 0.75]])).softmax(1)
        tensor([[0.2500, 0.7500]])
    """
    scores = logits_of(output, stated_count(unwrap(model)))
    kind = known_kind(model)
    if kind is None:
        kind = "probabilities" if scores is not None and is_probabilities(scores) else "scores"
    return as_logits(scores, kind)


def output_count(model: nn.Module) -> int | None:
    """Number of class scores of a model whose structure was read, or None."""
    known: tuple[str, int | None] | None = fast.recall(model, "outputs")
    return None if known is None else known[1]


def scores_as_logits(model: nn.Module, scores: Tensor) -> Tensor:
    """Class scores that were read from a model's output as logits, shape (b, C)."""
    logits = as_logits(scores, _known_kind(model) or "scores")
    assert logits is not None
    return logits


def as_logits(scores: Tensor | None, kind: str) -> Tensor | None:
    """Scores of a kind of output as logits."""
    if scores is None or kind not in ("probabilities", "sigmoid"):
        return scores
    wide = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    if kind == "sigmoid":
        return torch.logit(wide, eps=1e-7)
    logarithms = wide.clamp_min(torch.finfo(wide.dtype).tiny).log()
    # The same as logits; the model's own derivative of log p, through p and 1 / p, is lost where p rounds to one.
    return accurate_log_softmax(logarithms) if wide.requires_grad and wide.shape[-1] > 1 else logarithms


def accurate_log_softmax(logits: Tensor) -> Tensor:
    """Log-softmax whose gradient is accurate where a class has nearly all of the probability.

    The derivative of log p by the logit of its class is 1 - p. For the likeliest class the usual formula rounds p to 1
    and loses it, while the derivatives by the other logits remain. Here it is the sigmoid of their difference.
    """
    top = logits.argmax(-1, keepdim=True)
    others = logits.scatter(-1, top, torch.finfo(logits.dtype).min).logsumexp(-1, keepdim=True)
    return logits.log_softmax(-1).scatter(-1, top, F.logsigmoid(logits.gather(-1, top) - others))
