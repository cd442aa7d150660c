"""Targets: from what a user wants explained to the scalars that are differentiated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrail.capture.output_tensors import fields_of, missing_scores, target_values
from vitrail.capture.score_function import as_probabilities, group_probabilities
from vitrail.capture.tensor_tree import without_inference
from vitrail.errors import OptionError, TargetError
from vitrail.models.class_group import SEPARATOR, ClassGroup, append_groups, target_rows

SCORES = ("logit", "prob", "logprob")
MAX_DIGITS = 18
"""Digits of a class index that fit into 64 bits."""
GROUP_CODE = 10**MAX_DIGITS
"""Stands for the first group while classes are collected; larger than every class index."""

#: None (the predicted class), "topN" (the N likeliest), a class index or name, a group of classes (`ClassGroup`, or
#: names with "|" between them), one per image, one row of classes per image, a tensor or array of indices, or a
#: function from the model's output to one or several scalars per image.
Target = None | int | str | ClassGroup | Sequence[Any] | Tensor | NDArray[Any] | Callable[[Any], Tensor]


@dataclass(frozen=True)
class ResolvedTarget:
    """What is explained for a batch.

    Attributes:
        classes: Class indices, shape (b, K), C + i for ``groups[i]``; None where a function was given.
        values: What the function gave, shape (b, K), or None where classes are explained.
        logits: Class scores in the graph, shape (b, C), or None.
        groups: Groups of classes among the targets, with class indices.
        scores: "softmax", "sigmoid" or "identity": what turns the logits into probabilities.
    """

    classes: Tensor | None
    values: Tensor | None
    logits: Tensor | None
    groups: tuple[ClassGroup, ...] = ()
    scores: str = "softmax"

    @property
    def count(self) -> int:
        """Number of targets an image, K."""
        both = self.classes if self.classes is not None else self.values
        assert both is not None
        return int(both.shape[1])

    def scalar(self, k: int, score: str) -> Tensor:
        """The k-th target of every image, shape (b,), in the graph.

        Args:
            k: Which target.
            score: "logit", "prob" or "logprob"; a function's value is taken as it is.
        """
        if self.values is not None:
            return self.values[:, k]
        assert self.classes is not None and self.logits is not None  # noqa: PT018
        return pick(class_scores(self.logits, score, self.groups, self.scores), self.classes[:, k])

    def probability(self, k: int) -> Tensor | None:
        """Probability of the k-th target of every image, shape (b,), detached; None where the target is no class.

        Example:
            >>> resolve_target(1, torch.zeros(1, 4), batch=1).probability(0)
            tensor([0.2500])
        """
        return None if self.values is not None or self.scores == "identity" else self.scalar(k, "prob").detach()

    def rows(self) -> list[list[int | ClassGroup]]:
        """The targets as one row of classes and groups for each image, in the form that `vitrail.explain` takes."""
        if self.classes is None or self.logits is None:
            raise TargetError("the target is a function, which has no classes")
        return target_rows(self.classes, self.groups, self.logits.shape[1])


def class_scores(logits: Tensor, score: str, groups: Sequence[ClassGroup] = (), scores: str = "softmax") -> Tensor:
    """Logits, probabilities or log-probabilities, shape (b, C + groups); a single output is read as one sigmoid.

    Args:
        logits: Shape (b, C).
        score: "logit", "prob" or "logprob".
        groups: Groups of classes, whose scores follow those of the classes.
        scores: "softmax", "sigmoid" (every class by itself) or "identity" (a regression, whose values are taken as they
            are whatever ``score`` is).

    Example:
        >>> class_scores(torch.zeros(1, 4), "prob")
        tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
        >>> class_scores(torch.zeros(1, 4), "prob", scores="sigmoid")
        tensor([[0.5000, 0.5000, 0.5000, 0.5000]])
        >>> class_scores(torch.zeros(1, 1), "prob")
        tensor([[0.5000]])
    """
    if score not in SCORES:
        raise OptionError(f"score={score!r} is not one of {', '.join(map(repr, SCORES))}")
    if scores != "softmax" and any(len(group.classes) > 1 for group in groups):
        raise TargetError(
            f"a group of classes adds the probabilities of classes that exclude each other, and those of this model do "
            f"not (scores={scores!r}): pass target=function, or scores='softmax' if they do"
        )
    found = logits if score == "logit" else as_probabilities(logits, scores, log=score == "logprob")
    if groups and score != "logit" and scores == "softmax" and found.requires_grad and logits.shape[1] > 1:
        of_groups = group_probabilities(logits, [group.indices for group in groups], log=score == "logprob")
        return torch.cat([found, of_groups], 1)
    return append_groups(found, groups, log=score != "prob")


def pick(scores: Tensor, classes: Tensor) -> Tensor:
    """One score per image: (b, C) and (b,) to (b,)."""
    return scores.gather(1, classes[:, None])[:, 0]


def resolve_target(
    target: Target,
    logits: Tensor | None,
    batch: int,
    names: Sequence[str] | None = None,
    output: Any = None,
    scores: str = "softmax",
) -> ResolvedTarget:
    """Resolve a target against a model's output.

    Args:
        target: See ``Target``.
        logits: The class scores in the output, shape (b, C), or None if it has none.
        batch: Number of images b.
        names: Class names, for targets given by name and for messages.
        output: What the model returned, for targets that are a function of it; the logits by default.
        scores: What turns the logits into probabilities: "softmax", "sigmoid" or "identity".

    Example:
        >>> resolve_target([[1, 2]], torch.zeros(2, 3), batch=2).classes
        tensor([[1, 2],
                [1, 2]])
        >>> resolve_target(7, torch.zeros(2, 3), batch=2)
        Traceback (most recent call last):
        ...
        vitrail.errors.TargetError: class 7 does not exist: the model has 3 classes, 0 to 2
    """
    output = logits if output is None else output
    if callable(target):
        return ResolvedTarget(None, _values(target_values(target, output), batch), logits, scores=scores)
    if logits is None:
        raise TargetError(missing_scores(output))
    if logits.shape[0] != batch:
        raise TargetError(f"the model returned {logits.shape[0]} rows of scores for {batch} inputs")
    best = 1 if target is None else top_count(target)
    if best:
        return ResolvedTarget(logits.detach().topk(min(best, logits.shape[1])).indices, None, logits, scores=scores)
    classes, groups = _classes(target, batch, names)
    grouped, count = classes >= GROUP_CODE, logits.shape[1]
    members = torch.tensor([k for group in groups for k in group.indices], dtype=torch.long)
    single = torch.cat([classes[~grouped], members])
    worst = single[(single < 0) | (single >= count)]
    if len(worst):
        raise TargetError(f"class {int(worst[0])} does not exist: the model has {count} classes, 0 to {count - 1}")
    numbered = torch.where(grouped, classes - GROUP_CODE + count, classes)
    return ResolvedTarget(numbered.to(logits.device), None, logits, groups, scores)


def classes_of_each(target: Target, batch: int, names: Sequence[str] | None) -> list[list[int | ClassGroup]]:
    """Classes and groups of each input, one row each, for a target that names them.

    Example:
        >>> classes_of_each([["cat|dog", "bee"]], 2, ["cat", "dog", "bee"])
        [[ClassGroup([0, 1]), 2], [ClassGroup([0, 1]), 2]]
    """
    classes, groups = _classes(target, batch, names)
    return target_rows(classes, groups, GROUP_CODE)


def target_count(target: Target) -> int:
    """Targets of each image, K, as far as that is known before the model has run; 1 for a function.

    Example:
        >>> target_count(None), target_count("top3"), target_count([4, 5]), target_count([[1, 2]])
        (1, 3, 1, 2)
    """
    if isinstance(target, Tensor | np.ndarray):
        return int(target.shape[1]) if target.ndim == 2 else 1
    if isinstance(target, str) or not isinstance(target, Sequence) or not len(target):
        return max(1, top_count(target))
    row = target[0]
    if isinstance(row, Tensor | np.ndarray):
        return int(row.shape[0]) if row.ndim else 1
    return max(1, len(row)) if isinstance(row, Sequence) and not isinstance(row, str) else 1


def class_or_group(text: str, names: Sequence[str] | None) -> int | ClassGroup:
    """The class a text names, or the group of classes where it names several with "|" between them.

    Example:
        >>> class_or_group("tabby|tiger cat", ["tabby, tabby cat", "zebra", "tiger cat"])
        ClassGroup([0, 2])
        >>> class_or_group("zebra", ["tabby, tabby cat", "zebra", "tiger cat"])
        1
    """
    if SEPARATOR not in text or (names and text in names):
        return class_index(text, names)
    parts = [part.strip() for part in text.split(SEPARATOR)]
    if not all(parts):
        raise TargetError(f"{text!r} has an empty class: write a group as 'tabby|tiger cat'")
    return ClassGroup([class_index(part, names) for part in parts])


def class_index(name: str, names: Sequence[str] | None) -> int:
    """The index of a class given by name: the whole entry, then one of its synonyms, then a name that holds the words.

    An exact match comes before one that ignores case. Where several classes match alike, all of them are listed.

    Example:
        >>> class_index("goldfish", ["goldfish, Carassius auratus", "zebra"])
        0
        >>> class_index("cardigan", ["Cardigan, Cardigan Welsh corgi", "cardigan"])
        1
        >>> class_index("crane", ["crane", "zebra", "crane"])
        Traceback (most recent call last):
        ...
        vitrail.errors.TargetError: several classes are called 'crane': 0 crane, 2 crane; give an index
        >>> class_index("zebr", ["goldfish, Carassius auratus", "zebra"])
        Traceback (most recent call last):
        ...
        vitrail.errors.TargetError: no class is called 'zebr'; similar: 1 zebra
    """
    if name.isdecimal() and len(name) <= MAX_DIGITS:
        return int(name)
    if not names:
        raise TargetError(f"class {name!r} cannot be looked up: this model's class names are unknown; give an index")
    exact = [[part.strip() for part in entry.split(",")] for entry in names]
    loose = [[_plain(part) for part in entry.split(",")] for entry in names]
    wanted = _plain(name)
    matches: tuple[Callable[[int], bool], ...] = (
        lambda i: names[i].strip() == name.strip(),
        lambda i: name.strip() in exact[i],
        lambda i: wanted in (loose[i][0] if len(loose[i]) == 1 else None, " ".join(loose[i])),
        lambda i: wanted == loose[i][0],
        lambda i: wanted in loose[i],
        lambda i: f" {wanted} " in f" {_plain(names[i])} ",
    )
    for fits in matches:
        found = [i for i in range(len(names)) if fits(i)]
        if len(found) == 1:
            return found[0]
        if found:
            raise TargetError(f"several classes are called {name!r}: {_listed(found, names)}; give an index")
    synonyms = {word: i for i, entry in enumerate(loose) for word in entry}
    near = [synonyms[w] for w in get_close_matches(wanted, synonyms, n=5, cutoff=0.6)]
    similar = f"; similar: {_listed(near, names)}" if near else ""
    raise TargetError(f"no class is called {name!r}{similar}")


def _listed(indices: Sequence[int], names: Sequence[str]) -> str:
    return ", ".join(f"{i} {names[i].split(',')[0]}" for i in dict.fromkeys(indices[:8]))


@dataclass(frozen=True, eq=False)
class TextSimilarity:
    """The target that `similarity` returns: from a model's output to the similarity to each of K texts, shape (b, K).

    Attributes:
        unit: Text embeddings of length one, shape (K, d).
        scale: Factor on the cosine.
        labels: The texts, or None if they are unknown.
    """

    unit: Tensor
    scale: float
    labels: tuple[str, ...] | None = None

    def __call__(self, output: Any) -> Tensor:
        """Similarity of the images' embeddings, found in the model's output, to each text."""
        for name in ("image_embeds", "image_features", "pooler_output"):
            value = output.get(name) if isinstance(output, dict) else getattr(output, name, None)
            if isinstance(value, Tensor):
                break
        else:
            value = output[0] if isinstance(output, tuple) else output
        if not isinstance(value, Tensor) or value.dim() != 2:
            raise TargetError(f"no image embedding found in {fields_of(output)}")
        image: Tensor = F.normalize(value, dim=-1)
        return self.scale * image @ without_inference(self.unit).to(value).T


def similarity(text: Tensor, scale: float = 100.0, labels: Sequence[str] | None = None) -> TextSimilarity:
    """A target for CLIP-like models: similarity of the image to each of K texts.

    Args:
        text: Text embeddings, shape (K, d).
        scale: Factor on the cosine, as the model's logit scale.
        labels: The K texts, shown wherever a target is named.

    Example:
        >>> target = similarity(torch.eye(2), labels=["a dog", "a cat"])
        >>> target(torch.tensor([[3.0, 0.0]]))
        tensor([[100.,   0.]])
    """
    if labels is not None and (isinstance(labels, str) or len(labels) != len(text)):
        count = 1 if isinstance(labels, str) else len(labels)
        raise TargetError(f"{count} labels for {len(text)} text embeddings: give a list with one for each")
    return TextSimilarity(F.normalize(text, dim=-1), scale, None if labels is None else tuple(labels))


def target_labels(target: Target) -> tuple[str, ...] | None:
    """Names of the targets of a function that has ``labels``, such as `similarity` returns; None for all others."""
    labels = getattr(target, "labels", None) if callable(target) else None
    return tuple(map(str, labels)) if isinstance(labels, list | tuple) else None


def top_count(target: object) -> int:
    """N for the target "topN", else 0."""
    digits = target[3:] if isinstance(target, str) and target.startswith("top") else ""
    if not digits.isdecimal() or len(digits) > MAX_DIGITS:
        return 0
    if int(digits) == 0:
        raise TargetError("top0 asks for no class: write top1, top2, …")
    return int(digits)


def _plain(text: str) -> str:
    return " ".join(text.replace("_", " ").replace("-", " ").replace(",", " ").lower().split())


def _values(returned: Any, batch: int) -> Tensor:
    if not isinstance(returned, Tensor):
        raise TargetError(f"the target function returned {type(returned).__name__}, not a tensor")
    values = returned[:, None] if returned.dim() == 1 else returned
    if values.dim() != 2 or values.shape[0] != batch or values.shape[1] == 0:
        raise TargetError(
            f"the target function returned shape {tuple(values.shape)}; expected ({batch},) or ({batch}, K): "
            "one number per image, or K of them"
        )
    return values


def _classes(target: Any, batch: int, names: Sequence[str] | None) -> tuple[Tensor, tuple[ClassGroup, ...]]:
    """Class indices, shape (b, K), and the groups among them; the i-th group stands as ``GROUP_CODE`` + i."""
    groups: list[ClassGroup] = []

    def code(group: ClassGroup) -> int:
        found = ClassGroup([class_index(c, names) if isinstance(c, str) else c for c in group.classes], group.name)
        if found not in groups:
            groups.append(found)
        return int(GROUP_CODE + groups.index(found))

    def index(entry: Any) -> Any:
        entry = class_or_group(entry, names) if isinstance(entry, str) else entry
        if isinstance(entry, ClassGroup):
            return code(entry)
        if isinstance(entry, Sequence) or (isinstance(entry, Tensor | np.ndarray) and entry.ndim):
            return [index(e) for e in entry]
        value = entry.item() if isinstance(entry, Tensor | np.ndarray | np.generic) else entry
        if isinstance(value, int | float) and abs(value) >= 10**MAX_DIGITS:
            raise TargetError("the class index does not exist: it is too large for 64 bits")
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value != int(value):
            raise TargetError(f"{entry!r} is not a class: give an index or a name")
        return int(value)

    raw = index(target)
    try:
        classes = torch.tensor(raw, dtype=torch.long)
    except (ValueError, TypeError) as error:
        raise TargetError(f"every image must ask for the same number of classes, got {raw}") from error
    if classes.dim() == 0:
        return classes.expand(batch, 1), tuple(groups)
    if classes.dim() == 1 and len(classes) == batch:
        return classes[:, None], tuple(groups)
    if classes.dim() == 2 and classes.shape[0] in (1, batch) and classes.shape[1]:
        return classes.expand(batch, -1), tuple(groups)
    raise TargetError(
        f"target of shape {tuple(classes.shape)} for {batch} image(s): give one class, one per image ({batch}), or "
        f"({batch}, K) for K classes of each image; for several classes of every image write [[a, b]]"
    )
