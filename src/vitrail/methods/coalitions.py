"""Evaluate a model on inputs of which only some players are present.

Players are groups of patches, or of tokens of a text; a coalition is a set of players that are present. Patches of
absent players are removed in one of three ways:

- "tokens": their tokens are dropped before the first block, see `vitrail.capture.token_dropping`; of a text, they are
  left out of the input. Fewer tokens make the forward pass cheaper. Coalitions are sorted by their number of tokens, so
  that those of one batch have equally many.
- "mask": no token attends to them, in any block; of a text, by its attention mask.
- "fill": their pixels, or the vectors of a text's tokens, are replaced by a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from inspect import signature
from math import ceil
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.forward import forward_pass
from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs, run_model
from vitrail.capture.token_dropping import TokenDropper
from vitrail.errors import ModelError, NotApplicableError, OptionError
from vitrail.fast.split_products import split_products
from vitrail.methods.probe import Probe

REMOVALS = ("tokens", "mask", "fill")
#: Side of a patch, in pixels, of models without one grid.
PATCH = 16

_Run = Callable[["CoalitionGame", Tensor, Tensor], Any]


def patch_grid(probe: Probe) -> tuple[int, int]:
    """Rows and columns of the patches of an image; of models without one grid, patches of 16 pixels."""
    height, width = int(probe.images.shape[2]), int(probe.images.shape[3])
    return probe.structure.layout.grid or (ceil(height / PATCH), ceil(width / PATCH))


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
        removal: One of ``REMOVALS``, or None for the first one that applies; of a text, "mask" comes first.
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
        # Functions, not bound methods: these would tie the game and its tensors into a circle of references.
        self._runs: dict[str, _Run] = {}
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
        """Pairs of input and coalition, input · N + coalition, in batches; equally many tokens where it matters."""
        count = len(kept)
        sizes = kept.sum(1).cpu() if self.removal == "tokens" else torch.zeros(count, dtype=torch.long)
        for size in sorted(set(sizes.tolist())):
            which = (sizes == size).nonzero()[:, 0]
            pairs = (torch.arange(rows)[:, None] * count + which).flatten()
            yield from pairs.split(self.probe.most)

    def _scores(self, kept: Tensor, owner: Tensor) -> Tensor:
        """Scores of inputs with some patches present, shape (N, K)."""
        removal = self.removal
        if removal == "tokens" and not bool(kept.any()) and not self._empty:
            removal = "fill"  # the model averages its patches and has nothing to read without any
        with frozen(self.probe.model), torch.no_grad(), split_products(kept.device):
            output = self._runs[removal](self, kept, owner)
            values = self.probe.scorer(output, owner, self.probe.score)
        self.probe.advance(len(kept))
        return values

    # -- ways to remove players ----------------------------------------------------------------------------------

    def _choose(self, removal: str | None) -> str:
        if removal not in (None, *REMOVALS):
            raise OptionError(f"removal={removal!r} is not one of {', '.join(map(repr, REMOVALS))} or None")
        self._empty = True
        self._runs["fill"] = CoalitionGame._filled
        order = ("mask", "tokens", "fill") if self.text else REMOVALS
        for name in order if removal is None else (removal,):
            try:
                self._prepare(name)
            except NotApplicableError:
                if removal is not None:
                    raise
            else:
                return name
        raise AssertionError("a fill applies to every model")

    def _prepare(self, removal: str) -> None:
        """Check that a model supports a removal, by a trial pass where needed."""
        probe = self.probe
        if removal == "tokens" and self.text:
            self._runs[removal] = CoalitionGame._shortened
            self._empty = bool(probe.structure.layout.prefix)
        elif removal == "tokens":
            dropper = TokenDropper(probe.model, probe.images, probe.structure.layout)
            self._empty = dropper.supports_empty
            self._runs[removal] = lambda game, kept, owner: dropper(game.probe.images[owner], _indices(kept))
        elif removal == "mask" and self.text:
            if "attention_mask" not in signature(probe.model.forward).parameters:
                raise NotApplicableError(f"{probe.structure.model} takes no attention_mask: use removal='fill'")
            self._runs[removal] = CoalitionGame._text_masked
        elif removal == "mask":
            if probe.structure.kind != "plain" or probe.structure.layout.grid is None:
                raise NotApplicableError(
                    f"no attention connects all patches of {probe.structure.model}: use removal='fill'"
                )
            self._runs[removal] = CoalitionGame._attention_masked
            try:
                self._attention_masked(torch.ones_like(self.members[:1]), self.rows[:1].to(self.members.device))
            except ModelError as error:
                raise NotApplicableError(f"{error}; use removal='fill'") from error
        elif self.text:
            _ = probe.inputs  # refuses models that cannot be fed with vectors

    def _filled(self, kept: Tensor, owner: Tensor) -> Any:
        given = self.probe.inputs[owner]
        if self.text:
            prefix = self.probe.structure.layout.prefix or 0
            present = torch.nn.functional.pad(kept, (prefix, given.shape[1] - prefix - kept.shape[1]), value=True)
            changed = torch.where(present[..., None], given, self.fill)
        else:
            rows, columns = patch_grid(self.probe)
            height, width = given.shape[2:]
            down = torch.arange(height, device=kept.device) // ceil(height / rows)
            across = torch.arange(width, device=kept.device) // ceil(width / columns)
            present = kept.view(-1, rows, columns)[:, down][:, :, across]
            changed = torch.where(present[:, None], given, self.fill)
        return run_model(self.probe.model, self.probe.fed(changed, owner))

    def _shortened(self, kept: Tensor, owner: Tensor) -> Any:
        """Texts without the tokens of absent players."""
        inputs = _picked(self.probe.model_inputs, owner)
        words = inputs.words
        assert words is not None
        prefix = self.probe.structure.layout.prefix or 0
        present = torch.nn.functional.pad(kept, (prefix, words.shape[1] - prefix - kept.shape[1]), value=True)
        valid = inputs.valid
        present = present if valid is None else present & valid
        index = _indices(present)

        def cut(value: Any) -> Any:
            same = isinstance(value, Tensor) and value.shape[:2] == words.shape
            return value.gather(1, index) if same else value

        fewer = replace(inputs, args=tuple(map(cut, inputs.args)), kwargs={k: cut(v) for k, v in inputs.kwargs.items()})
        return run_model(self.probe.model, fewer)

    def _text_masked(self, kept: Tensor, owner: Tensor) -> Any:
        inputs = _picked(self.probe.model_inputs, owner)
        words = inputs.words
        assert words is not None
        prefix = self.probe.structure.layout.prefix or 0
        present = torch.nn.functional.pad(kept, (prefix, words.shape[1] - prefix - kept.shape[1]), value=True)
        mask = inputs.kwargs.get("attention_mask", torch.ones_like(words))
        return run_model(
            self.probe.model, replace(inputs, kwargs={**inputs.kwargs, "attention_mask": mask * present.to(mask)})
        )

    def _attention_masked(self, kept: Tensor, owner: Tensor) -> Any:
        """Images whose absent patches no token attends to."""
        structure = self.probe.structure
        tokens = torch.tensor(structure.layout.patch_tokens(structure.tokens), device=kept.device)
        present = torch.ones(len(kept), structure.tokens, dtype=torch.bool, device=kept.device)
        present[:, tokens[tokens >= 0]] = kept[:, tokens >= 0]

        def edit(A: Tensor) -> Tensor:
            if A.dim() != 4 or A.shape[0] != len(present):
                raise ModelError(f"the attention of {structure.model} has shape {tuple(A.shape)}, not (b, H, m, n)")
            columns = present[:, None, None, present.shape[1] - A.shape[-1] :]
            masked = A * columns
            return masked / masked.sum(-1, keepdim=True).clamp_min(torch.finfo(A.dtype).tiny)

        edits = dict.fromkeys(range(len(structure.layers)), edit)
        inputs = self.probe.fed(self.probe.images[owner], owner)
        with forward_pass(self.probe.model, inputs, structure, [{}], edits) as one:
            return one.output


def _indices(kept: Tensor) -> Tensor:
    """Indices of the kept patches of each row, which has equally many of them: (N, S) to (N, m)."""
    return kept.nonzero()[:, 1].view(len(kept), -1)


def _picked(inputs: ModelInputs, owner: Tensor) -> ModelInputs:
    """Some of the texts by index, any of them as often as it is named."""
    batch = inputs.batch

    def index(value: Any) -> Any:
        return value[owner] if isinstance(value, Tensor) and value.dim() and value.shape[0] == batch else value

    return ModelInputs(tuple(map(index, inputs.args)), {k: index(v) for k, v in inputs.kwargs.items()})
