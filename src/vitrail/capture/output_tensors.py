"""Find the class scores, or any other tensor, in what a model returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.tensor_tree import named_tensors
from vitrail.errors import OptionError, TargetError, VitrailError

#: Where the scores of classes stand in the output objects of common libraries, best first.
LOGITS = ("logits", "logits_per_image")
EMBEDDINGS = ("image_embeds", "image_features", "pooler_output", "last_hidden_state", "text_embeds")
#: Parts of names of tensors that hold no class scores.
_NO_SCORES = ("embed", "feature", "hidden", "pooler", "attention", "loss", "box", "mask", "scale", "weight")
#: Which part of an output is read: its name, its index, or a function of the output; None to find the class scores.
OutputChoice = str | int | Callable[[Any], Any] | None
SCORE_FUNCTIONS = ("softmax", "sigmoid", "identity")


@dataclass(frozen=True)
class OutputReading:
    """How the output of a model is read in one call.

    Attributes:
        output: Which part holds the scores; None to find it.
        scores: "softmax", "sigmoid" or "identity", what turns the scores into probabilities; None to find it.

    Example:
        >>> OutputReading("logits", "softmin")
        Traceback (most recent call last):
        ...
        vitrail.errors.OptionError: scores='softmin' is not one of 'softmax', 'sigmoid', 'identity' or None
    """

    output: OutputChoice = None
    scores: str | None = None

    def __post_init__(self) -> None:
        if self.scores is not None and self.scores not in SCORE_FUNCTIONS:
            listed = ", ".join(map(repr, SCORE_FUNCTIONS))
            raise OptionError(f"scores={self.scores!r} is not one of {listed} or None")
        known = self.output is None or isinstance(self.output, str | int) or callable(self.output)
        if not known or isinstance(self.output, bool | type):
            raise OptionError(
                f"output={self.output!r} must be the name or the index of a part of the model's output, or a function"
            )

    def read(self, output: Any) -> Any:
        """The part of an output that holds the scores; all of it where nothing was chosen."""
        return output if self.output is None else chosen_output(output, self.output)


def chosen_output(output: Any, choice: OutputChoice) -> Any:
    """The part of an output that a user chose.

    Raises:
        OptionError: There is no such part; the message lists those that there are.

    Example:
        >>> chosen_output({"logits": torch.zeros(2, 5), "aux": torch.zeros(2, 3)}, "aux").shape
        torch.Size([2, 3])
        >>> chosen_output((torch.zeros(2, 5),), 1)
        Traceback (most recent call last):
        ...
        vitrail.errors.OptionError: output=1 is not a part of what the model returned, a tuple with [0] (2, 5)
    """
    if callable(choice):
        found = choice(output)
    elif isinstance(choice, int):
        parts = list(output.values()) if isinstance(output, Mapping) else output
        inside = isinstance(parts, tuple | list) and -len(parts) <= choice < len(parts)
        found = parts[choice] if inside else None
    elif isinstance(output, Mapping) and choice in output:
        found = output[choice]
    else:
        named = dict(named_tensors(output))
        found = named.get(str(choice), None if isinstance(output, Tensor) else getattr(output, str(choice), None))
    if found is None:
        raise OptionError(f"output={choice!r} is not a part of what the model returned, {fields_of(output)}")
    return found


def score_candidates(output: Any) -> list[tuple[str, Tensor]]:
    """Tensors that may hold class scores, with their names: floats of shape (b, C), or (b,) where there are none.

    Example:
        >>> [name for name, _ in score_candidates((torch.zeros(2, 32), torch.zeros(2, 5), torch.zeros(2, 7, 3)))]
        ['[0]', '[1]']
    """
    named = [(name, t) for name, t in named_tensors(output) if t.is_floating_point()]
    named = [(name, t) for name, t in named if not any(part in name.lower() for part in _NO_SCORES)]
    wide = [(name, t) for name, t in named if t.dim() == 2]
    logits = [(name, t) for name, t in wide if "logit" in name.lower()]
    return logits or wide or [(name, t) for name, t in named if t.dim() == 1]


def logits_of(output: Any, count: int | None = None) -> Tensor | None:
    """The class scores in a model's output, shape (b, C), or None if it has none or several tensors may hold them.

    A bare tensor of two axes, the ``logits`` of an output object or dict, or the only such tensor of a nested output.

    Args:
        output: What the model returned.
        count: Number of classes the model states; decides between tensors of several sizes.

    Example:
        >>> logits_of((torch.zeros(2, 5), None)).shape
        torch.Size([2, 5])
        >>> logits_of({"last_hidden_state": torch.zeros(2, 7, 4)}) is None
        True
        >>> features_and_logits = (torch.zeros(2, 32), torch.zeros(2, 5))
        >>> logits_of(features_and_logits) is None, logits_of(features_and_logits, count=5).shape
        (True, torch.Size([2, 5]))
    """
    if isinstance(output, Tensor):
        return _as_scores(output)
    named = [output.get(n) if isinstance(output, Mapping) else getattr(output, n, None) for n in LOGITS]
    found = next((value for value in named if isinstance(value, Tensor)), None)
    if found is not None:
        return _as_scores(found)
    candidates = score_candidates(output)
    if len(candidates) > 1 and count is not None:
        candidates = [(name, t) for name, t in candidates if t.dim() == 2 and t.shape[1] == count]
    return _as_scores(candidates[0][1]) if len(candidates) == 1 else None


def _as_scores(tensor: Tensor) -> Tensor | None:
    if tensor.dim() == 1 and tensor.is_floating_point():
        return tensor[:, None]
    return tensor if tensor.dim() == 2 and tensor.is_floating_point() else None


def missing_scores(output: Any) -> str:
    """Why no class scores were found in an output, and how to say where they are.

    Example:
        >>> missing_scores((torch.zeros(2, 32), torch.zeros(2, 5))).partition(": ")[2]
        '[0] (2, 32), [1] (2, 5); choose one by output=0 or output=1, or pass a target function'
    """
    candidates = [] if isinstance(output, Tensor) else score_candidates(output)
    if len(candidates) < 2:
        names = [name for name, _ in named_tensors(output)]
        if "pred_boxes" in names:
            return (
                f"the model returned {fields_of(output)}: it detects objects; pass target=vitrail.targets.box(query), "
                "and list the queries by vitrail.targets.detections"
            )
        if isinstance(output, Mapping) and any(n in names for n in ("predicted_depth", "masks_queries_logits")):
            return (
                f"the model returned {fields_of(output)}, which has a score for each pixel: pass "
                "target=vitrail.targets.region((x, y)) or region(mask)"
            )
        return (
            f"the model returned {fields_of(output)}, which holds no class scores: pass target=function, from that "
            "output to one number per image, or output= to say which part holds them"
        )
    listed = ", ".join(f"{name} {tuple(t.shape)}" for name, t in candidates)
    choices = [name[1:-1] if name[1:-1].isdecimal() and name[0] == "[" else repr(name) for name, _ in candidates]
    return (
        f"several tensors of the model's output may hold the class scores: {listed}; choose one by "
        f"{' or '.join(f'output={choice}' for choice in choices)}, or pass a target function"
    )


def any_output(output: Any) -> Tensor:
    """Some differentiable tensor of the output with a batch axis: the scores if there are any, else an embedding."""
    scores = logits_of(output)
    if scores is not None:
        return scores
    if isinstance(output, Tensor):
        return output
    for name in EMBEDDINGS:
        value = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(value, Tensor):
            return value
    values = [t for _, t in named_tensors(output) if t.is_floating_point()]
    for value in (*(t for t in values if t.dim()), *values):
        return value
    raise TargetError(f"the model returned {fields_of(output)}, in which no tensor of scores was found")


def fields_of(output: Any) -> str:
    """The output's type and the tensors in it, for messages."""
    if isinstance(output, Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    named: list[tuple[str, Any]] = []
    if isinstance(output, Mapping):
        named = [(str(k), v) for k, v in output.items()]
    elif isinstance(output, tuple | list):
        named = [(f"[{i}]", v) for i, v in enumerate(output)]
    tensors = ", ".join(f"{name} {tuple(v.shape)}" for name, v in named if isinstance(v, torch.Tensor))
    return f"a {type(output).__name__}" + (f" with {tensors}" if tensors else "")


def target_values(target: Callable[[Any], Any], output: Any) -> Any:
    """What a target function returns for an output.

    Raises:
        TargetError: The function raised an error.
    """
    try:
        return target(output)
    except (VitrailError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise TargetError(
            f"the target function failed ({type(error).__name__}: {error}) on the model's output, {fields_of(output)}: "
            "it is given what the model returns, and must return one number for each input"
        ) from error
