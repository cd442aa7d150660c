"""A group of classes as one target: the model predicts any of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import TargetError

SEPARATOR = "|"
"""Between the classes of a group that is written as a text."""
NAMES_SHOWN = 3


@dataclass(frozen=True, init=False)
class ClassGroup:
    """Several classes explained as one target: the event that the image shows any of them.

    With respect to a model's logits, a group has the scores a class has. Its probability is the sum of the
    probabilities of its classes, its log-probability the logarithm of that sum, and its logit the log-sum-exp of their
    logits: a softmax over this logit and those of all other classes gives the same probability. A group of one class
    equals that class.

    Args:
        classes: Class indices or names, at least one; repeated classes count once.
        name: For display; by default the names of the classes.

    Example:
        >>> from vitrail.testing import tiny_vit
        >>> import vitrail
        >>> e = vitrail.explain(tiny_vit(), torch.zeros(1, 3, 32, 32), target=ClassGroup([1, 3], "odd"))
        >>> e.maps.shape, e.groups
        (torch.Size([1, 1, 32, 32]), (ClassGroup([1, 3], 'odd'),))
    """

    classes: tuple[int | str, ...]
    name: str | None = None

    def __init__(self, classes: Iterable[Any], name: str | None = None) -> None:
        if isinstance(classes, str) or not isinstance(classes, Iterable):
            raise TargetError(f"ClassGroup({classes!r}): give several classes, as in ClassGroup([281, 'tiger cat'])")
        single = [c.item() if hasattr(c, "item") else c for c in classes]
        wrong = [c for c in single if isinstance(c, bool) or not isinstance(c, int | str)]
        if not single or wrong:
            problem = f"{wrong[0]!r} is not a class" if wrong else "it has no classes"
            raise TargetError(f"ClassGroup: {problem}; give at least one class index or name")
        object.__setattr__(self, "classes", tuple(dict.fromkeys(single)))
        object.__setattr__(self, "name", name)

    def __repr__(self) -> str:
        return f"ClassGroup({list(self.classes)}{'' if self.name is None else f', {self.name!r}'})"

    @property
    def indices(self) -> tuple[int, ...]:
        """Class indices of a group whose names were looked up, as all groups of an `Explanation` are."""
        named = [c for c in self.classes if isinstance(c, str)]
        if named:
            raise TargetError(f"{self!r} was not looked up yet: {named[0]!r} is a name, not an index")
        return tuple(c for c in self.classes if isinstance(c, int))

    @property
    def text(self) -> str:
        """The group as a target in one line, such as "tabby|tiger cat"."""
        return SEPARATOR.join(map(str, self.classes))

    def title(self, names: Sequence[str] | None = None) -> str:
        """Name for display: its own, or the names of its classes.

        Example:
            >>> ClassGroup([0, 2]).title(["tabby, tabby cat", "zebra", "tiger cat"])
            'tabby + tiger cat'
        """
        if self.name is not None:
            return self.name
        known = [names[c].split(",")[0] if names and c < len(names) else f"class {c}" for c in self.indices]
        rest = len(known) - NAMES_SHOWN
        return " + ".join(known[:NAMES_SHOWN]) + (f" + {rest} more" if rest > 0 else "")


def append_groups(scores: Tensor, groups: Sequence[ClassGroup], *, log: bool) -> Tensor:
    """Append a column of scores for each group, shape (b, C) to (b, C + groups).

    Args:
        scores: Scores of classes.
        groups: The groups.
        log: Join scores by log-sum-exp, as logits and log-probabilities are joined, instead of by their sum.

    Example:
        >>> append_groups(torch.tensor([[0.5, 0.3, 0.2]]), [ClassGroup([0, 2])], log=False)
        tensor([[0.5000, 0.3000, 0.2000, 0.7000]])
    """
    if not groups:
        return scores
    members = [scores[:, list(group.indices)] for group in groups]
    joined = [columns.logsumexp(1) if log else columns.sum(1) for columns in members]
    return torch.cat([scores, torch.stack(joined, 1)], 1)


def membership(classes: Tensor, groups: Sequence[ClassGroup], count: int) -> Tensor:
    """Which of ``count`` classes each target consists of, shape (b,) to (b, count); ``count`` + i is ``groups[i]``.

    Example:
        >>> membership(torch.tensor([1, 3]), [ClassGroup([0, 2])], 3)
        tensor([[False,  True, False],
                [ True, False,  True]])
    """
    table = torch.zeros(count + len(groups), count, dtype=torch.bool, device=classes.device)
    table[:count].fill_diagonal_(True)
    for i, group in enumerate(groups):
        table[count + i, list(group.indices)] = True
    return table[classes]


def target_rows(classes: Tensor, groups: Sequence[ClassGroup], count: int) -> list[list[int | ClassGroup]]:
    """Targets in the form that `vitrail.explain` takes: one row of classes and groups for each image.

    Example:
        >>> target_rows(torch.tensor([[1, 3]]), [ClassGroup([0, 2])], 3)
        [[1, ClassGroup([0, 2])]]
    """
    return [[k if k < count else groups[k - count] for k in row] for row in classes.tolist()]


def merge_groups(
    targets: Sequence[Tensor], groups: Sequence[tuple[ClassGroup, ...]], count: int
) -> tuple[list[Tensor], tuple[ClassGroup, ...]]:
    """Number the groups of several results in one order.

    Args:
        targets: For each result, class indices; ``count`` + i for the i-th of its groups.
        groups: For each result, its groups.
        count: Number of classes C.

    Returns:
        The targets with new numbers, and all groups.

    Example:
        >>> one, two = ClassGroup([0]), ClassGroup([1])
        >>> merge_groups([torch.tensor([[5]]), torch.tensor([[5, 6]])], [(one,), (two, one)], 5)[0]
        [tensor([[5]]), tensor([[6, 5]])]
    """
    merged = tuple(dict.fromkeys(group for row in groups for group in row))
    if all(row == merged for row in groups):
        return list(targets), merged
    renumbered = []
    for values, row in zip(targets, groups, strict=True):
        new = [*range(count), *(count + merged.index(group) for group in row)]
        renumbered.append(torch.tensor(new, device=values.device)[values])
    return renumbered, merged
