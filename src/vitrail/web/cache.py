"""Maps that were made before, class by class: asking again, with a class more or for curves, costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrail.explanation import Explanation
from vitrail.web.bounded_store import BoundedStore
from vitrail.web.jobs import Job
from vitrail.web.validation import Asked

_BY_TARGET = ("maps", "grid", "flat", "targets")


class MapCache:
    """Explanations of one class each, kept for a while.

    Args:
        count: How many.
        size: Bytes of all of them.
    """

    def __init__(self, count: int, size: int) -> None:
        self.kept: BoundedStore[Explanation] = BoundedStore(count, size)

    def keep(self, job: Job, asked: Asked, explanation: Explanation) -> None:
        """Keep what a method made for a job's classes."""
        for k, target in enumerate(job.targets or ()):
            one = _one(explanation, k)
            size = sum(getattr(one, name).nbytes for name in _BY_TARGET if getattr(one, name) is not None)
            self.kept.put(_key(job, asked, target), one, size + 4096)

    def find(self, job: Job, asked: Asked) -> Explanation | None:
        """What a method made before for all of a job's classes, or None."""
        found = [self.kept.get(_key(job, asked, target)) for target in job.targets or ()]
        there = [one for one in found if one is not None]
        return _joined(there) if there and len(there) == len(found) else None


def _key(job: Job, asked: Asked, target: int) -> str:
    source = job.source if job.picture is None else ""
    return f"{job.served.id}|{job.picture}|{source}|{asked.label}|{sorted(asked.extra.items())}|{target}"


def _one(explanation: Explanation, k: int) -> Explanation:
    """The explanation of one class without its picture; tensors are copied, so that those of other classes can go."""

    def cut(tensor: Tensor) -> Tensor:
        return tensor[:, k : k + 1].cpu().clone()

    changed: dict[str, Any] = {
        name: cut(value) for name in _BY_TARGET if (value := getattr(explanation, name)) is not None
    }
    changed["images"], changed["logits"] = None, None if explanation.logits is None else explanation.logits.cpu()
    if explanation.text is not None:
        rows = slice(k, k + 1)
        changed["text"] = tuple(
            replace(t, scores=t.scores[rows], shades=t.shades[rows], token_scores=t.token_scores[rows])
            for t in explanation.text
        )
    return replace(explanation, **changed)


def at_home(explanation: Explanation) -> Explanation:
    """The same with its tensors in the host's memory."""
    names = (*_BY_TARGET, "logits", "images")
    return replace(explanation, **{n: t.cpu() for n in names if (t := getattr(explanation, n)) is not None})


def _joined(parts: Sequence[Explanation]) -> Explanation:
    """Explanations of one class each, by the same method of the same input, as one of several."""
    first = parts[0]
    changed: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts], 1)
        for name in _BY_TARGET
        if getattr(first, name) is not None
    }
    if first.text is not None:
        texts = [part.text[0] for part in parts if part.text is not None]
        scores, shades = torch.cat([t.scores for t in texts]), torch.cat([t.shades for t in texts])
        tokens = torch.cat([t.token_scores for t in texts])
        changed["text"] = (replace(texts[0], scores=scores, shades=shades, token_scores=tokens),)
    return replace(first, **changed)
