"""Targets that the page names: prompts, boxes, regions, and tokens that a model writes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import torch

from vitrail.errors import TargetError
from vitrail.targets import NamedTarget, box, contrast, prompt, region, token
from vitrail.targets.token_context import decoded_token
from vitrail.trust.signal_removal import spread_cells
from vitrail.web.served_model import ServedModel


@dataclass(frozen=True)
class PageTarget:
    """A target of a request that is no class.

    Attributes:
        kind: "prompt", "box", "region" or "token".
        text: The prompt; for a token of a vision-language model, the question.
        query: Query of the box.
        label: Label of the box or region, or None for the likeliest one.
        point: Pixel (x, y) of the model's input.
        patches: Patches of the region, row by row.
        token: Number of the token.
        written: Tokens that the model wrote before it.
    """

    kind: str
    text: str | None = None
    query: int | None = None
    label: int | None = None
    point: tuple[float, float] | None = None
    patches: tuple[int, ...] = ()
    token: int | None = None
    written: tuple[int, ...] = ()

    def __str__(self) -> str:
        return json.dumps(self.to_json(), sort_keys=True)

    def to_json(self) -> dict[str, Any]:
        """The fields that are set.

        Example:
            >>> PageTarget("box", query=3).to_json()
            {'kind': 'box', 'query': 3}
        """
        given = {name: value for name, value in asdict(self).items() if value is not None and value != ()}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}

    def name(self, served: ServedModel) -> str:
        """A name for display, where the model's output is not known yet."""
        label = "" if self.label is None else served.class_name(self.label)
        if self.kind == "prompt":
            return self.text or ""
        if self.kind == "token":
            return decoded_token(served.tokenizer, self.token or 0).strip() or "space"
        if self.kind == "box":
            return f"{label}, query {self.query}" if label else f"query {self.query}"
        where = f"{len(self.patches)} patches" if self.patches else f"pixel {_pair(self.point)}"
        return f"{label}, {where}" if label else where

    def named(self, served: ServedModel) -> NamedTarget:
        """The target of the library."""
        if self.kind == "prompt":
            return prompt(self.text or "")
        if self.kind == "token":
            return token(self.token)
        if self.kind == "box":
            return box(self.query, label=self.label)
        if self.patches:
            return region(self._mask(served), label=self.label)
        if self.point is None:
            raise TargetError("the region is empty: click a point of the image, or brush over patches")
        return region(self.point, label=self.label)

    def _mask(self, served: ServedModel) -> torch.Tensor:
        grid = served.plane
        count = grid[0] * grid[1]
        if self.patches[-1] >= count:
            raise TargetError(f"patch {self.patches[-1]} does not exist: the model has {count}, 0 to {count - 1}")
        cells = torch.zeros(1, count)
        cells[0, list(self.patches)] = 1
        return spread_cells(cells.view(1, *grid), served.preprocess.size)[0]

    def code(self, served: ServedModel) -> str:
        """The target as Python code, which uses ``patches_mask`` of the snippet for a brushed region."""
        label = "" if self.label is None else f", label={self.label}"
        if self.kind == "prompt":
            return f"prompt({self.text!r})"
        if self.kind == "token":
            return f"token({self.token})"
        if self.kind == "box":
            return f"box({self.query}{label})"
        if self.patches:
            size = served.preprocess.size
            return f"region(patches_mask({list(self.patches)}, {tuple(served.plane)}, {tuple(size)}){label})"
        return f"region({_pair(self.point)}{label})"


#: A class index, or a target with a name.
RequestedTarget = int | PageTarget


def _pair(point: tuple[float, float] | None) -> str:
    return "" if point is None else f"({point[0]:g}, {point[1]:g})"


def difference(first: PageTarget, second: PageTarget, served: ServedModel) -> NamedTarget:
    """One target minus another; for prompts the score against the other text."""
    if first.kind == "prompt":
        return prompt(first.text or "", against=second.text)
    return contrast(first.named(served), second.named(served))


def difference_code(first: PageTarget, second: PageTarget, served: ServedModel) -> str:
    """The difference of two targets as Python code."""
    if first.kind == "prompt":
        return f"prompt({first.text!r}, against={second.text!r})"
    return f"contrast({first.code(served)}, {second.code(served)})"


def target_json(target: RequestedTarget | None) -> Any:
    """A target as JSON: the index of a class, or the fields of a target with a name."""
    return target.to_json() if isinstance(target, PageTarget) else target


def target_name(target: RequestedTarget, served: ServedModel) -> str:
    """The name of a class, or of a target with a name."""
    return target.name(served) if isinstance(target, PageTarget) else served.class_name(target)
