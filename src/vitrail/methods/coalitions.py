"""Coalitions of players, and the scores of a model on inputs from which all other players are removed.

Players are groups of patches, or of tokens of a text; a coalition is a set of players that are present. The ways to
remove the others are those of `vitrail.capture.removal`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

import torch
from torch import Tensor

from vitrail import fast
from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_call import run_model
from vitrail.capture.removal import (
    REMOVALS,
    TokenDropper,
    all_tokens,
    attention_without,
    drop_tokens,
    fill_patches,
    kept_indices,
    mask_tokens,
)
from vitrail.errors import InputError, ModelError, NotApplicableError, OptionError
from vitrail.methods.probe import Probe

#: Side of a patch in pixels, for models without one grid.
PATCH = 16
#: Strata of the sizes up to half of the players.
STRATA = 16
GOLDEN = (sqrt(5) - 1) / 2


def patch_grid(probe: Probe) -> tuple[int, int]:
    """Rows and columns of the patches of an image; for models without one grid, patches of 16 pixels."""
    height, width = int(probe.images.shape[2]), int(probe.images.shape[3])
    return probe.structure.layout.plane or (ceil(height / PATCH), ceil(width / PATCH))


def grid_cells(grid: tuple[int, int], cell: int) -> Tensor:
    """Membership of patches in square cells, shape (players, rows · columns); cells at the border may be smaller.

    Example:
        >>> grid_cells((2, 3), 2).int()
        tensor([[1, 1, 0, 1, 1, 0],
                [0, 0, 1, 0, 0, 1]], dtype=torch.int32)
    """
    rows, columns = (torch.arange(n) // cell for n in grid)
    index = (rows[:, None] * ceil(grid[1] / cell) + columns).flatten()
    return torch.nn.functional.one_hot(index).T.bool()


class CoalitionGame:
    """The scores of some inputs as a function of the players that are present.

    Args:
        probe: The model, its inputs and the targets.
        members: Which patches, or tokens of a text after its prefix, belong to each player, shape (P, S). Patches of no
            player are always present.
        removal: One of ``REMOVALS``, or None for the first one that applies; for texts, "mask" comes first.
        fill: What "fill" writes, in the model's normalised space: 0 is the mean colour.
        rows: Indices of the inputs that are evaluated; all by default.

    Attributes:
        removal: How absent players are removed.

    Raises:
        NotApplicableError: The model does not support the removal asked for.
    """

    def __init__(
        self, probe: Probe, members: Tensor, removal: str | None = None, fill: float = 0.0,
        rows: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        device = probe.model_inputs.tensors[0].device
        self.probe, self.fill = probe, fill
        self.rows = torch.arange(probe.batch) if rows is None else torch.tensor(rows)
        self.members = members.to(device)
        self.text = probe.model_inputs.image is None
        self.dropper: TokenDropper | None = None
        self.removal = self._choose(removal)

    @property
    def players(self) -> int:
        """Number of players, P."""
        return len(self.members)

    def __call__(self, coalitions: Tensor, rows: Tensor | None = None) -> Tensor:
        """Scores of coalitions, in double precision on the CPU, shape (b, N, K).

        Args:
            coalitions: Which players are present, shape (N, P).
            rows: Indices of the inputs to evaluate, shape (b,); those of the game by default.
        """
        rows = self.rows if rows is None else rows
        absent = ~coalitions.to(self.members.device)
        kept = (absent.float() @ self.members.float()) == 0
        values = torch.empty(len(rows), len(coalitions), self.probe.count, dtype=torch.float64)
        flat = values.view(-1, self.probe.count)
        for index in self._batches(kept, len(rows)):
            owner, which = rows[index // len(coalitions)], index % len(coalitions)
            flat[index] = self._scores(kept[which.to(kept.device)], owner.to(kept.device)).double().cpu()
        return values

    def _batches(self, kept: Tensor, rows: int) -> Iterator[Tensor]:
        """Indices input · N + coalition in batches; where tokens are dropped, a batch has equally many tokens."""
        count = len(kept)
        sizes = kept.sum(1).cpu() if self.removal == "tokens" else torch.zeros(count, dtype=torch.long)
        for size in sorted(set(sizes.tolist())):
            which = (sizes == size).nonzero()[:, 0]
            pairs = (torch.arange(rows)[:, None] * count + which).flatten()
            yield from pairs.split(self.probe.max_batch)

    def _scores(self, kept: Tensor, owner: Tensor) -> Tensor:
        """Scores of inputs with some patches present, shape (N, K)."""
        removal = self.removal
        if removal == "tokens" and not bool(kept.any()) and not self._supports_empty:
            removal = "fill"  # the model averages its patches, so it needs at least one
        with frozen(self.probe.model), torch.no_grad(), fast.with_split_products(kept.device):
            output = self._output(removal, kept, owner)
            values = self.probe.scorer(output, owner, self.probe.score)
        self.probe.advance(len(kept))
        return values

    def _choose(self, removal: str | None) -> str:
        """The removal asked for, or the first one that the model supports."""
        if removal not in (None, *REMOVALS):
            raise OptionError(f"removal={removal!r} is not one of {', '.join(map(repr, REMOVALS))} or None")
        order = ("mask", "tokens", "fill") if self.text else REMOVALS
        for name in order if removal is None else (removal,):
            try:
                self._check(name)
            except NotApplicableError:
                if removal is not None:
                    raise
            else:
                return name
        raise AssertionError("a fill applies to every model")

    def _check(self, removal: str) -> None:
        """Check that the model supports a removal, by a trial pass where needed."""
        probe, kept, owner = self.probe, torch.ones_like(self.members[:1]), self.rows[:1].to(self.members.device)
        if self.text and removal == "fill":
            _ = probe.inputs  # raises for models that do not accept word embeddings
        elif self.text and removal == "mask":
            self._masked_text(kept, owner)
            self._try(removal, torch.zeros_like(kept), owner)
            if probe.model_inputs.fixed_positions:
                self._check_finite(owner)
        elif self.text and probe.model_inputs.fixed_positions:
            raise NotApplicableError(
                "the target reads scores at a position, which moves where tokens are left out: use removal='mask' or "
                "removal='fill'"
            )
        elif self.text:
            one = kept.cumsum(1) == 1
            self._shortened_text(one, owner)
            self._try(removal, one, owner)
        elif removal == "tokens":
            self.dropper = TokenDropper(probe.model, probe.model_inputs, probe.structure.layout)
            self._try(removal, kept.expand(2, -1), owner.expand(2))
        elif removal == "mask":
            if probe.structure.kind != "plain" or probe.structure.layout.grid is None:
                raise NotApplicableError(
                    f"no attention connects all patches of {probe.structure.model}: use removal='fill'"
                )
            try:
                self._output(removal, kept, owner)
            except ModelError as error:
                raise NotApplicableError(f"{error}; use removal='fill'") from error

    def _check_finite(self, owner: Tensor) -> None:
        """Refuse to mask tokens where a token may have nothing left to attend to, as in a short window."""
        with frozen(self.probe.model), torch.no_grad():
            output = self._output("mask", self.members.any(0, keepdim=True).logical_not(), owner)
            finite = torch.isfinite(self.probe.scorer(output, owner, self.probe.score)).all()
        if not bool(finite):
            raise NotApplicableError(
                f"some tokens of {self.probe.structure.model} attend to a few others only, and nothing is left where "
                "all of these are masked: use removal='fill'"
            )

    def _try(self, removal: str, kept: Tensor, owner: Tensor) -> None:
        """Run a model of several inputs without some tokens: others may depend on their number."""
        if {one.role for one in self.probe.model_inputs.description} <= {
            "tokens",
            "mask",
        } or self.probe.model_inputs.only_image:
            return
        try:
            with frozen(self.probe.model), torch.no_grad():
                self._output(removal, kept, owner)
        except (ModelError, InputError) as error:
            raise NotApplicableError(f"{error}; use removal='fill'") from error

    @property
    def _prefix(self) -> int:
        return self.probe.structure.layout.prefix or 0

    @property
    def _supports_empty(self) -> bool:
        return self.dropper.supports_empty if self.dropper is not None else self._prefix > 0

    def _output(self, removal: str, kept: Tensor, owner: Tensor) -> Any:
        """Output of the model for inputs with some patches or tokens kept, shape (N, S)."""
        probe = self.probe
        if removal == "fill":
            return run_model(probe.model, probe.fed(self._filled(kept, owner), owner))
        if self.text and removal == "mask":
            return run_model(probe.model, self._masked_text(kept, owner))
        if self.text:
            return run_model(probe.model, self._shortened_text(kept, owner))
        if removal == "mask":
            return attention_without(probe.model, probe.fed(probe.images[owner], owner), probe.structure, kept)
        assert self.dropper is not None
        return self.dropper(probe.fed(probe.images[owner], owner), kept_indices(kept))

    def _masked_text(self, kept: Tensor, owner: Tensor) -> ModelInputs:
        inputs = self.probe.model_inputs.indexed(owner)
        assert inputs.words is not None
        return mask_tokens(self.probe.model, inputs, all_tokens(kept, self._prefix, inputs.words.shape[1]))

    def _shortened_text(self, kept: Tensor, owner: Tensor) -> ModelInputs:
        inputs = self.probe.model_inputs.indexed(owner)
        assert inputs.words is not None
        return drop_tokens(inputs, all_tokens(kept, self._prefix, inputs.words.shape[1]))

    def _filled(self, kept: Tensor, owner: Tensor) -> Tensor:
        given = self.probe.inputs[owner]
        if not self.text:
            return fill_patches(given, kept, patch_grid(self.probe), self.fill)
        return torch.where(all_tokens(kept, self._prefix, given.shape[1])[..., None], given, self.fill)


@dataclass(frozen=True)
class CoalitionPairs:
    """Coalitions that stand for themselves and their complements.

    Attributes:
        present: Players present in the first coalition of each pair, shape (M, P).
        stratum: Stratum of each pair, shape (M,).
        mass: Share of each stratum under the Shapley kernel.
        complete: Whether these are all coalitions there are.
    """

    present: Tensor
    stratum: Tensor
    mass: Tensor
    complete: bool = False

    def __len__(self) -> int:
        return len(self.present)

    def first(self, count: int) -> CoalitionPairs:
        """The first pairs; they are stratified in the same proportions."""
        complete = self.complete and count >= len(self)
        return CoalitionPairs(self.present[:count], self.stratum[:count], self.mass, complete)

    @property
    def weights(self) -> Tensor:
        """Weight of each pair, shape (M,), with mean one: expected share of its stratum divided by its actual share."""
        counts = self.stratum.bincount(minlength=len(self.mass)).clamp_min(1)
        weights = (self.mass / counts)[self.stratum]
        return weights / weights.mean()


def draw_pairs(players: int, count: int, seed: int) -> CoalitionPairs:
    """Draw pairs of complementary coalitions, or all pairs if there are at most ``count``.

    Example:
        >>> pairs = draw_pairs(3, 100, seed=0)
        >>> pairs.present.int(), pairs.complete
        (tensor([[1, 0, 0],
                [0, 1, 0],
                [0, 0, 1]], dtype=torch.int32), True)
    """
    half = players // 2
    size = torch.arange(1, half + 1, dtype=torch.float64)
    kernel = 1 / (size * (players - size))
    if players % 2 == 0:
        kernel[-1] /= 2  # a coalition of half of the players has as many players as its complement
    kernel /= kernel.sum()
    if players <= 32 and 2 ** (players - 1) - 1 <= count:
        return _all_pairs(players, kernel)
    generator = torch.Generator().manual_seed(seed)
    start = torch.div(kernel.cumsum(0) - kernel, 1 / STRATA, rounding_mode="floor").long()
    strata = (start.diff(prepend=start[:1]) > 0).long().cumsum(0)  # numbered without gaps
    mass = torch.zeros(int(strata.max()) + 1, dtype=torch.float64).index_add_(0, strata, kernel)
    sizes = [
        int(members[torch.multinomial(kernel[members], 1, generator=generator)]) + 1
        for members in ((strata == j).nonzero()[:, 0] for j in range(len(mass)))
    ]
    # An additive recurrence visits the strata in proportion to their mass, from the first pairs on.
    places = (torch.arange(count, dtype=torch.float64) * GOLDEN + torch.rand((), generator=generator)) % 1
    stratum = torch.searchsorted(mass.cumsum(0), places).clamp_max(len(mass) - 1)
    present = torch.zeros(count, players, dtype=torch.bool)
    for j, chosen in enumerate(sizes):
        rows = (stratum == j).nonzero()[:, 0]
        present[rows] = _of_one_size(players, chosen, len(rows), generator)
    return CoalitionPairs(present, stratum, mass)


def _all_pairs(players: int, kernel: Tensor) -> CoalitionPairs:
    """Every pair once; the stratum is the size of the smaller coalition."""
    number = torch.arange(1, 2 ** (players - 1))
    present = (number[:, None] >> torch.arange(players)) % 2 == 1
    present = torch.where((present.sum(1) * 2 > players)[:, None], ~present, present)
    size = present.sum(1)
    order = torch.argsort(size * 2**players + (present.long() << torch.arange(players)).sum(1))
    return CoalitionPairs(present[order], size[order] - 1, kernel, complete=True)


def _of_one_size(players: int, size: int, count: int, generator: torch.Generator) -> Tensor:
    """Coalitions of one size, shape (count, players): consecutive pieces of random orders of the players."""
    each = players // size
    orders = torch.rand(-(-count // each), players, generator=generator).argsort(1)
    chosen = orders[:, : each * size].reshape(-1, size)[:count]
    return torch.zeros(count, players, dtype=torch.bool).scatter_(1, chosen, True)
