"""Describe what a model returns: every tensor, what it holds, and which one holds the class scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from vitrail.capture.output_tensors import logits_of, missing_scores, score_candidates
from vitrail.capture.outputs import stated_count
from vitrail.capture.score_function import ScoreFunction, score_function
from vitrail.capture.tensor_tree import named_tensors

#: Kinds of class scores by what turns them into probabilities.
_SCORES = {"softmax": "class scores", "sigmoid": "scores of single classes", "identity": "values of a regression"}
#: What a tensor holds by parts of its name, where its shape does not say so.
_NAMES = {"box": "boxes", "mask": "masks", "loss": "loss"}


@dataclass(frozen=True)
class OutputTensor:
    """One tensor of a model's output, described.

    Attributes:
        name: Key, field or index; "output" where the model returns one tensor.
        shape: Its shape.
        kind: "class scores", "scores of single classes", "values of a regression", "vocabulary", "scores of each
            position", "boxes", "masks", "loss" or "features".
        axis: The axis of the classes, or None.
        chosen: Whether it holds the scores that a class target is read from.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    axis: int | None = None
    chosen: bool = False

    def __str__(self) -> str:
        where = "" if self.axis is None else f" over axis {self.axis}"
        return f"{self.kind}{where}, shape {self.shape}" + ("; read for class targets" if self.chosen else "")


@dataclass(frozen=True)
class OutputDescription:
    """What a model returns.

    Attributes:
        tensors: Every tensor of the output.
        scores: What turns the class scores into probabilities; None where there are none.
        problem: Why no tensor was chosen, and how to choose one; None where one was.
    """

    tensors: tuple[OutputTensor, ...]
    scores: ScoreFunction | None
    problem: str | None = None

    def rows(self) -> list[tuple[str, str]]:
        """The findings as (name, value) pairs, for display."""
        rows = [(f"output {one.name}", str(one)) for one in self.tensors]
        if self.scores is not None:
            rows.append(("probabilities", str(self.scores)))
        return rows if self.problem is None else [*rows, ("class targets", self.problem)]


def describe_output(
    model: nn.Module, output: Any, kind: str = "scores", scores: str | None = None
) -> OutputDescription:
    """Describe a model's output.

    Example:
        >>> import torch
        >>> found = describe_output(nn.Identity(), {"logits": torch.zeros(2, 5), "hidden_states": torch.zeros(2, 7, 8)})
        >>> [(one.name, one.kind, one.chosen) for one in found.tensors]
        [('logits', 'class scores', True), ('hidden_states', 'features', False)]
    """
    logits = None if kind == "features" else logits_of(output, stated_count(model))
    function = None if logits is None else score_function(model, kind, scores, int(logits.shape[1]))
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", None)
    named = [("output", output)] if isinstance(output, Tensor) else list(named_tensors(output))
    chosen = None if logits is None else _name_of(logits, named)
    tensors = [
        OutputTensor(name, tuple(t.shape), _SCORES[function.name], 1 if t.dim() > 1 else None, True)
        if name == chosen and function is not None
        else _described(name, t, vocabulary)
        for name, t in named
        if t.is_floating_point()
    ]
    problem = None
    if logits is None:
        ambiguous = not isinstance(output, Tensor) and len(score_candidates(output)) > 1
        problem = missing_scores(output) if ambiguous else "none: pass target=function, from the output to one number"
    return OutputDescription(tuple(tensors), function, problem)


def _name_of(logits: Tensor, named: list[tuple[str, Tensor]]) -> str | None:
    """Name of the tensor whose values the scores are; a vector of scores was given a second axis."""
    same = (n for n, t in named if t is logits or (t.dim() == 1 and t.data_ptr() == logits.data_ptr()))
    return next(same, None)


def _described(name: str, tensor: Tensor, vocabulary: Any) -> OutputTensor:
    key, axes = name.lower(), tensor.dim()
    kind = next((kind for part, kind in _NAMES.items() if part in key), None)
    if kind is not None:
        return OutputTensor(name, tuple(tensor.shape), kind)
    if axes == 3 and tensor.shape[-1] == vocabulary:
        return OutputTensor(name, tuple(tensor.shape), "vocabulary", 2)
    if "logit" in key and axes == 3:
        return OutputTensor(name, tuple(tensor.shape), "scores of each position", 2)
    if "logit" in key and axes == 4:
        return OutputTensor(name, tuple(tensor.shape), "masks", 1)
    return OutputTensor(name, tuple(tensor.shape), "features")
