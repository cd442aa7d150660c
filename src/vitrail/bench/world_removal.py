"""Removal of what a map marks, against equally many random cells or another word, on pairs of the worlds."""

from __future__ import annotations

from functools import cached_property
from math import prod

import torch
from torch import Tensor

from vitrail.bench.world_batch import WorldBatch
from vitrail.capture.frozen import frozen
from vitrail.capture.model_call import run_model
from vitrail.data.captions import encode_captions
from vitrail.inputs.user_inputs import to_model_inputs
from vitrail.models.loaded import LoadedModel
from vitrail.targets.binding import bind_targets
from vitrail.trust.signal_check import cell_means
from vitrail.trust.signal_removal import spread_cells

#: Share of the cells that are removed, and random draws of as many.
LEVEL, DRAWS = 0.1, 20


class CellRemoval:
    """Values of both targets of some examples with cells of the input replaced by the mean of the input."""

    def __init__(self, loaded: LoadedModel, pairs: WorldBatch, device: str, seed: int = 0) -> None:
        self.cells, self.seed = pairs.cells, seed
        inputs = to_model_inputs(pairs.on(device), loaded)
        self.called, self.inputs, bound = bind_targets(pairs.targets, loaded, inputs)
        with frozen(self.called.module), torch.no_grad():
            output = run_model(self.called.module, self.inputs)
            self.targets = bound.pinned(output)
            self.whole = self.targets(output).double().cpu()
        canvas = self.inputs.canvas
        assert canvas is not None
        self.canvas, self.fill = canvas, canvas.flatten(2).mean(-1).view(*canvas.shape[:2], *[1] * (canvas.dim() - 2))

    @property
    def count(self) -> int:
        """Cells that are removed from each input."""
        return max(1, round(LEVEL * prod(self.cells)))

    @cached_property
    def chance(self) -> Tensor:
        """Values after random removals, shape (b, 2, draws)."""
        batch, total = len(self.whole), prod(self.cells)
        order = torch.rand(batch, DRAWS, total, generator=torch.Generator().manual_seed(self.seed)).argsort(-1)
        return self.values(order[..., : self.count]).transpose(1, 2)

    def values(self, removed: Tensor) -> Tensor:
        """Values of both targets with some cells removed, whose indices have the shape (b, n, m).

        Returns:
            Shape (b, n, 2).
        """
        batch, draws = removed.shape[:2]
        gone = torch.zeros(batch * draws, prod(self.cells), dtype=torch.bool).scatter(1, removed.flatten(0, 1), True)
        gone = spread_cells(gone.view(-1, *self.cells).to(self.canvas.device), tuple(self.canvas.shape[2:]))[:, None]
        owner = torch.arange(batch, device=self.canvas.device).repeat_interleave(draws)
        found = []
        axes = self.inputs.axes
        assert axes is not None
        for start in range(0, len(owner), 256):
            rows = slice(start, start + 256)
            own = owner[rows]
            changed = axes.restore(torch.where(gone[rows], self.fill[own], self.canvas[own]))
            with frozen(self.called.module), torch.no_grad():
                output = run_model(self.called.module, self.inputs.pick(own, changed))
                found.append(self.targets(output, own).double().cpu())
        return torch.cat(found).view(batch, draws, 2)

    def scores(self, maps: Tensor) -> dict[str, Tensor]:
        """How often removal of the marked cells lowers the target more than a random one, and by how much more.

        Args:
            maps: Maps of A and B, shape (b, 2, *axes).
        """
        finite = maps.double().nan_to_num(0.0, 0.0, 0.0)
        values = torch.stack([torch.stack([cell_means(one, self.cells) for one in pair]) for pair in finite]).flatten(2)
        # Ties are broken at random, since the order of the cells would favour one corner.
        shuffled = torch.randperm(values.shape[-1], generator=torch.Generator().manual_seed(self.seed))
        order = shuffled[values[..., shuffled].argsort(dim=-1, descending=True, stable=True)][..., : self.count]
        own = self.values(order).diagonal(dim1=1, dim2=2)
        return compare_removals(own, self.chance)


class PromptWordRemoval:
    """Values of both prompts of some examples with one word left out."""

    def __init__(self, loaded: LoadedModel, pairs: WorldBatch, device: str) -> None:
        assert pairs.texts is not None
        self.candidates = pairs.candidates
        shorter = [[_without_each(text) for text in pair] for pair in pairs.texts]
        known = {text: i for i, text in enumerate(dict.fromkeys(t for pair in shorter for row in pair for t in row))}
        tokens = torch.from_numpy(encode_captions(list(known))).to(device)
        with torch.no_grad():
            scores = loaded.module(tokens, pairs.on(device))["logits_per_image"].double().cpu()
        self.without = torch.full(pairs.masks.shape, torch.nan, dtype=torch.float64)
        for b, pair in enumerate(shorter):
            for k, row in enumerate(pair):
                self.without[b, k, : len(row)] = scores[b, [known[text] for text in row]]

    def scores(self, maps: Tensor) -> dict[str, Tensor]:
        """How often removal of the leading word lowers the prompt's value more than that of another one."""
        assert self.candidates is not None
        first = maps.double().masked_fill(~self.candidates, -torch.inf).argmax(-1, keepdim=True)
        own = self.without.gather(-1, first)
        others = self.without.scatter(-1, first, torch.nan)
        return compare_removals(own[..., 0], others)


def _without_each(text: str) -> list[str]:
    words = text.split()
    return [" ".join(words[:i] + words[i + 1 :]) for i in range(len(words))]


def compare_removals(own: Tensor, chance: Tensor) -> dict[str, Tensor]:
    """The share of random removals after which the target is higher, ties as a half, and the difference of the means.

    Args:
        own: Values after removal of what the maps mark, shape (b, 2).
        chance: Values after random removals, shape (b, 2, draws); NaN for missing ones.

    Returns:
        "better" and "drop", each of shape (b,).

    Example:
        >>> compare_removals(torch.tensor([[1.0, 2.0]]), torch.tensor([[[2.0, 3.0], [1.0, 2.0]]]))["better"]
        tensor([0.6250], dtype=torch.float64)
    """
    there = ~chance.isnan()
    higher = 0.5 * (torch.sign(chance - own[..., None]).nan_to_num(0.0).double() + 1) * there
    return {
        "better": (higher.sum(-1) / there.sum(-1)).mean(1),
        "drop": (chance.nanmean(-1) - own).double().mean(1),
    }
