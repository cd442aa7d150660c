"""What turns the scores of a model into probabilities: a softmax, a sigmoid of each, or nothing (regression)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitrail import fast
from vitrail.capture.frozen import unwrap
from vitrail.capture.outputs import accurate_log_softmax, known_kind, stated_count
from vitrail.errors import TargetError

#: ``problem_type`` of Hugging Face configs.
_PROBLEMS = {
    "single_label_classification": "softmax", "multi_label_classification": "sigmoid", "regression": "identity",
}  # fmt: skip
#: Loss modules, which state what a head was trained for.
_LOSSES: tuple[tuple[str, tuple[type[nn.Module], ...]], ...] = (
    ("sigmoid", (nn.BCEWithLogitsLoss, nn.MultiLabelSoftMarginLoss)),
    ("softmax", (nn.CrossEntropyLoss, nn.NLLLoss)),
    ("identity", (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)),
)
#: Scores of at least so many classes that are on average this far below zero, and this many standard deviations, are
#: typical of heads trained with one sigmoid per class. A softmax does not move the mean of its logits.
_CLASSES, _MEAN, _DEVIATIONS = 5, -1.5, 1.5


@dataclass(frozen=True)
class ScoreFunction:
    """What turns scores into probabilities.

    Attributes:
        name: "softmax", "sigmoid" or "identity"; with the last, scores are values of a regression.
        known_by: What says so.
        stated: Whether the model or the user states it; otherwise it is the usual reading.
    """

    name: str
    known_by: str
    stated: bool = True

    def __str__(self) -> str:
        return f"{self.name} ({self.known_by})"


def score_function(model: nn.Module, kind: str, scores: str | None, count: int | None = None) -> ScoreFunction:
    """Find what turns a model's scores into probabilities.

    Args:
        model: The model.
        kind: Kind of its output in `vitrail.ModelStructure`: "scores", "probabilities", "sigmoid" or "features".
        scores: What the user says, or None.
        count: Number of scores of an example, or None if unknown.

    Example:
        >>> from types import SimpleNamespace
        >>> model = nn.Identity()
        >>> model.config = SimpleNamespace(problem_type="multi_label_classification")
        >>> score_function(model, "scores", None).name, score_function(model, "scores", "identity").name
        ('sigmoid', 'identity')
    """
    if scores is not None:
        return ScoreFunction(scores, "given by scores=")
    if kind == "sigmoid":
        return ScoreFunction("sigmoid", "the model's last operation is a sigmoid")
    if kind == "probabilities":
        return ScoreFunction("softmax", "the model returns probabilities")
    stated = _stated(model)
    if stated is not None:
        return stated
    if count == 1:
        return ScoreFunction("sigmoid", "it has one output", stated=False)
    return ScoreFunction("softmax", "nothing states otherwise", stated=False)


def _stated(model: nn.Module) -> ScoreFunction | None:
    config: Any = getattr(model, "config", None)
    problem = getattr(config, "problem_type", None)
    if isinstance(problem, str) and problem in _PROBLEMS:
        return ScoreFunction(_PROBLEMS[problem], f"problem_type {problem!r} of its config")
    family = getattr(config, "model_type", "")
    if hasattr(model, "get_text_features") and str(family).startswith("siglip"):
        return ScoreFunction("sigmoid", "SigLIP is trained with one sigmoid for each pair of image and text")
    if problem is None and hasattr(config, "problem_type") and stated_count(model) == 1:
        return ScoreFunction("identity", "num_labels = 1 of its config, a regression in transformers")
    types = set(map(type, fast.modules_of(model)))  # few types, many modules
    losses = {name: one.__name__ for one in types for name, kinds in _LOSSES if issubclass(one, kinds)}
    if len(losses) == 1:
        ((name, loss),) = losses.items()
        return ScoreFunction(name, f"the model has a {loss}")
    return None


def doubt_about_scores(model: nn.Module, function: ScoreFunction, logits: Tensor) -> str | None:
    """Why the usual reading of the scores may be wrong, and how to set it; None where nothing speaks against it.

    Args:
        model: The model.
        function: How its scores are read.
        logits: Scores of some inputs, shape (b, C).

    Example:
        >>> usual = score_function(nn.Identity(), "scores", None)
        >>> doubt_about_scores(nn.Identity(), usual, torch.randn(4, 10)) is None
        True
        >>> doubt_about_scores(nn.Identity(), usual, torch.randn(4, 10) - 6) is None
        False
    """
    name = type(model).__name__
    if function.stated:
        return None
    if logits.shape[1] == 1:
        return (
            f"{name} has one output and does not state its kind: it is read as the log-odds of one class; pass "
            "scores='sigmoid' if that is right, or scores='identity' for a regression"
        )
    values = logits.detach().float()
    mean, spread = float(values.mean()), float(values.std(1).mean())
    if logits.shape[1] < _CLASSES or not mean < min(_MEAN, -_DEVIATIONS * spread):
        return None
    return (
        f"the scores of {name} are {mean:.1f} on average, as of heads that are trained with one sigmoid for each "
        "class: they are read through a softmax; pass scores='sigmoid' for several labels an image, or "
        "scores='softmax' if that is right"
    )


def class_probabilities(model: nn.Module, logits: Tensor, scores: str | None = None, log: bool = False) -> Tensor:
    """Probabilities of a model's class scores, or their logarithms, by what the user or the model states.

    Args:
        model: The model, wrapped or not.
        logits: Its class scores as `vitrail.capture.outputs.class_logits` reads them, shape (b, C).
        scores: What the user says, or None.
        log: Whether logarithms are returned.

    Raises:
        TargetError: The scores are values of a regression.

    Example:
        >>> class_probabilities(nn.Identity(), torch.zeros(1, 2), "sigmoid")
        tensor([[0.5000, 0.5000]])
    """
    function = score_function(unwrap(model), known_kind(model) or "scores", scores, int(logits.shape[1]))
    if function.name == "identity":
        raise TargetError(
            f"this score compares probabilities, and the outputs of {type(unwrap(model)).__name__} are values of a "
            f"regression ({function.known_by}): pass scores='softmax' or scores='sigmoid' if they are class scores"
        )
    return as_probabilities(logits.float(), function.name, log)


def as_probabilities(logits: Tensor, function: str, log: bool = False) -> Tensor:
    """Probabilities of scores, or their logarithms; with "identity" the scores themselves.

    Example:
        >>> as_probabilities(torch.zeros(1, 2), "softmax"), as_probabilities(torch.zeros(1, 2), "sigmoid")
        (tensor([[0.5000, 0.5000]]), tensor([[0.5000, 0.5000]]))
    """
    wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    if function == "identity":
        return logits
    if function == "sigmoid" or logits.shape[1] == 1:
        if not log and not wide.requires_grad:
            return torch.sigmoid(wide)
        # The derivative of a sigmoid, p (1 - p), is lost where p rounds to one; that of the logarithm is not.
        logarithm = nn.functional.logsigmoid(wide)
        return logarithm if log else logarithm.exp()
    if not wide.requires_grad:
        return wide.log_softmax(-1) if log else wide.softmax(-1)
    found = accurate_log_softmax(wide)
    return found if log else found.exp()


def group_probabilities(logits: Tensor, groups: Sequence[Sequence[int]], log: bool = False) -> Tensor:
    """Probabilities of groups of classes by a softmax, or their logarithms, shape (b, groups).

    A group is all but certain where its classes are, so that 1 - p is not computed from the sum of their probabilities.

    Example:
        >>> group_probabilities(torch.zeros(1, 4), [[0, 1], [0, 1, 2]])
        tensor([[0.5000, 0.7500]])
    """
    wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    odds = []
    for group in groups:
        inside = torch.zeros(wide.shape[-1], dtype=torch.bool, device=wide.device)
        inside[list(group)] = True
        others = wide.masked_fill(inside, torch.finfo(wide.dtype).min).logsumexp(-1)
        odds.append(wide[..., inside].logsumexp(-1) - others)
    found = nn.functional.logsigmoid(torch.stack(odds, -1))
    return found if log else found.exp()
