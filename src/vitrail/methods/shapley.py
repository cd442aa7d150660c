"""Shapley values of patches, or of a text's tokens: the mean effect of each over all orders in which they appear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.capture.forward import forward_pass
from vitrail.capture.inputs import method_dtype
from vitrail.errors import InputError, NotApplicableError, OptionError
from vitrail.methods._regression import PairedRegression, ShapleyEstimate
from vitrail.methods.coalitions import CoalitionGame, draw_pairs, grid_cells, patch_grid
from vitrail.methods.cost import Cost, ModelSize, number
from vitrail.methods.probe import Probe, ProbedTrace
from vitrail.methods.registry import Applies, Method, check_whole_numbers, choose, find, register

ESTIMATORS = ("regression", "permutation")
#: The default prior; models that it does not apply to use ``UNIFORM``.
PRIOR = "grad_rollout"
#: The prior that gives all players equal shares.
UNIFORM = "uniform"
#: Pairs of coalitions between two checks of the standard error.
ROUND = 32


def _cost(options: Mapping[str, Any], _: ModelSize, targets: int) -> Cost:
    forwards = number(options, "forwards")
    if options.get("prior") in (None, UNIFORM) or options.get("estimator") == "permutation":
        return Cost(forwards, float(forwards))
    return Cost(forwards + 1, forwards + 1.0 + 2.0 * targets)


@register(
    "shapley",
    "Shapley values",
    "perturbation",
    cite="lundberg2017unified",
    takes="probe",
    score="prob",
    signed=True,
    variants={"quick": {"forwards": 64}, "preview": {"forwards": 256}, "kernelshap": {"prior": None}},
    applies=Applies(reads="outputs", text=True, drops_tokens=True),
    cost=_cost,
)
def shapley(
    probe: Probe,
    *,
    forwards: int = 512,
    estimator: str = "regression",
    prior: str | None = PRIOR,
    cell: int = 1,
    removal: str | None = None,
    fill: float = 0.0,
    tolerance: float | None = None,
    seed: int = 0,
) -> Tensor:
    """Mean effect of each patch on the class's score, over all orders in which patches may appear.

    All targets share the forward passes. Values sum to the score of the input minus the score without any patch.

    Args:
        probe: The model and its inputs.
        forwards: Most forward passes an input, the two with all and with no patches included.
        estimator: "regression": KernelSHAP on pairs of complementary coalitions. "permutation": pairs of opposite
            orders of the players.
        prior: A method of one pass whose map is the prior mean of the regression, "uniform" for equal shares, or None
            for least squares without a prior.
        cell: Side of the square cells that are the players, in patches.
        removal: How absent players are removed: "tokens", "mask" or "fill"; None for the first that applies.
        fill: What ``removal="fill"`` writes, in the model's normalised space: 0 is the mean colour.
        tolerance: Stop before ``forwards`` where the mean standard error is at most this share of the largest value.
        seed: Seed of the coalitions; all inputs get the same ones.

    Returns:
        Relevance of patches, shape (b, K, S), or (b, K, rows, columns) for models without one grid.
    """
    check_whole_numbers(4, forwards=forwards)
    check_whole_numbers(1, cell=cell)
    check_whole_numbers(0, seed=seed)
    choose("estimator", estimator, ESTIMATORS)
    if tolerance is not None and not tolerance > 0:
        raise OptionError(f"tolerance={tolerance} must be above 0, or None for no early stop")
    maps = _prior_maps(probe, prior) if estimator == "regression" else None
    parts = []
    for rows, members in players(probe, cell):
        game = CoalitionGame(probe, members, removal, fill, rows)
        if estimator == "permutation":
            estimate, used = _permutations(game, forwards, tolerance, seed)
        else:
            player_maps = None if maps is None else maps[list(rows)] @ members.T.to(maps)
            estimate, used = _regression(game, player_maps, forwards, tolerance, seed)
        share = members.double() / members.sum(1, keepdim=True)
        parts.append((estimate.values @ share, estimate.standard_error @ share, used))
    values, error, used = (torch.cat(part) for part in zip(*parts, strict=True))
    device, dtype = probe.model_inputs.tensors[0].device, method_dtype(probe.model)
    probe.note("standard_error", error.to(device, dtype))
    probe.note("forwards", used)
    values = values.to(device, dtype)
    if probe.model_inputs.image is not None and probe.structure.layout.grid is None:
        return values.view(*values.shape[:2], *patch_grid(probe))
    return values


def players(probe: Probe, cell: int) -> list[tuple[tuple[int, ...], Tensor]]:
    """Groups of inputs with the same players: their indices, and the membership of patches, shape (P, S)."""
    if probe.model_inputs.image is not None:
        return [(tuple(range(probe.batch)), grid_cells(patch_grid(probe), cell))]
    words, valid, prefix = probe.model_inputs.words, probe.model_inputs.valid, probe.structure.layout.prefix or 0
    if words is None:
        raise NotApplicableError(f"shapley removes patches of images or tokens of texts, and {probe.model_inputs.what}")
    present = torch.ones_like(words, dtype=torch.bool) if valid is None else valid
    special = probe.model_inputs.special
    if special is not None:  # special tokens are always present, as is the prefix
        present = present & ~special
    if not bool(present[:, prefix:].any(1).all()):
        raise InputError("a text has no tokens beside special ones and padding: pass texts with words")
    players: list[tuple[tuple[int, ...], Tensor]] = []
    for i, tokens in enumerate(present[:, prefix:].cpu()):
        index = tokens.nonzero()[:, 0]
        units = probe.model_inputs.unit_members(i)
        if units is None:
            groups = [index[start : start + cell] for start in range(0, len(index), cell)]
        else:
            shown = [(unit.cpu()[prefix:] & tokens).nonzero()[:, 0] for unit in units]
            groups = [unit for unit in shown if len(unit)]
        members = torch.zeros(len(groups), len(tokens), dtype=torch.bool)
        for player, group in enumerate(groups):
            members[player, group] = True
        players.append(((i,), members))
    return players


def _prior_maps(probe: Probe, prior: str | None) -> Tensor | None:
    """The positive part of a one-pass map for each target, as relevance of patches, shape (b, K, S); None for none."""
    if prior is None:
        return None
    if prior != UNIFORM:
        _, method, options = find(prior)
        if method.takes != "trace":
            known = "a method that reads one pass, such as leadlight or transformer_mm"
            raise OptionError(f"prior={prior!r} evaluates the model again: give {known}, 'uniform', or None")
        try:
            method.check(probe.structure, options)
        except NotApplicableError:
            if prior != PRIOR:
                raise
        else:
            found = _one_pass(probe, method, options)
            words = probe.model_inputs.words
            if words is None or found.shape[-1] == words.shape[1] - (probe.structure.layout.prefix or 0):
                return found
            if prior != PRIOR:
                raise NotApplicableError(
                    f"prior={prior!r} has {found.shape[-1]} tokens for {words.shape[1]} words, since the model adds "
                    "tokens of other inputs: use prior='uniform'"
                )
    if probe.model_inputs.image is None:
        if probe.model_inputs.words is None:
            raise NotApplicableError(
                f"shapley removes patches of images or tokens of texts, and {probe.model_inputs.what}"
            )
        patches = probe.model_inputs.words.shape[1] - (probe.structure.layout.prefix or 0)
    else:
        patches = patch_grid(probe)[0] * patch_grid(probe)[1]
    return torch.ones(probe.batch, probe.count, patches, dtype=torch.float64)


def _one_pass(probe: Probe, method: Method, options: Mapping[str, Any]) -> Tensor:
    score = options.get("score")
    maps = []
    with forward_pass(probe.model, probe.model_inputs, probe.structure, [method.needed(options)]) as one:
        owner = torch.arange(probe.batch, device=probe.model_inputs.tensors[0].device)
        values = probe.scorer(one.output, owner, score or "prob")
        for k in range(probe.count):
            target = values[:, k] if score else None
            trace = one.trace(target, keep_graph=k + 1 < probe.count, cut=method.detach_attention)
            if probe.classes is not None:
                trace = replace(trace, probability=probe.scorer(one.output, owner, "prob")[:, k].detach())
            target_probe = replace(probe, k=k, score=score or "prob", notes=None, advance=lambda _: None)
            relevance = method.apply(ProbedTrace.of(trace, target_probe, None), options)
            if relevance.dim() == 3:
                relevance = F.adaptive_avg_pool2d(relevance, patch_grid(probe)).flatten(1)
            maps.append(relevance.double().cpu().clamp_min(0))
    probe.propagations.clear()
    return torch.stack(maps, 1)


def _prior_mean(maps: Tensor, total: Tensor) -> Tensor:
    """Maps of players, shape (b, K, P), scaled to sums (b, K); equal shares where a map is zero everywhere."""
    sums = maps.sum(-1, keepdim=True)
    shares = torch.where(sums > 0, maps / torch.where(sums > 0, sums, 1.0), 1 / maps.shape[-1])
    return shares * total[..., None]


def _ends(game: CoalitionGame) -> tuple[Tensor, Tensor]:
    """Scores without any player, and the total effect of all, shape (b, K) each."""
    none, every = game(torch.tensor([[False], [True]]).expand(-1, game.players)).unbind(1)
    return none, every - none


def _regression(
    game: CoalitionGame,
    maps: Tensor | None,
    forwards: int,
    tolerance: float | None,
    seed: int,
) -> tuple[ShapleyEstimate, Tensor]:
    """Values by paired regression, shape (b, K, P), and the number of forward passes of each input, shape (b,)."""
    total, players = _ends(game)[1], game.players
    if players < 2:
        return _trivial(total, players)
    prior = None if maps is None else _prior_mean(maps, total)
    pairs = draw_pairs(players, (forwards - 2) // 2, seed)
    differences = total.new_zeros(*total.shape, len(pairs))
    progress = _Progress(total, players, tolerance)
    start = 0
    for stop in _rounds(len(pairs), tolerance):
        drawn, open_rows = pairs.present[start:stop], progress.open
        both = game(torch.cat([drawn, ~drawn]), game.rows[open_rows])
        differences[open_rows, :, start:stop] = (both[:, : len(drawn)] - both[:, len(drawn) :]).mT
        estimate = PairedRegression(pairs.first(stop), ridge=prior is not None)
        residuals = differences[open_rows, :, :stop].flatten(0, 1)
        prior_mean = None if prior is None else prior[open_rows].flatten(0, 1)
        round_estimate = estimate(residuals, total[open_rows].flatten(), prior_mean)
        progress.add(round_estimate, 2 + 2 * stop)
        start = stop
        if not len(progress.open):
            break
    return progress.estimate, progress.forwards


def _permutations(
    game: CoalitionGame, forwards: int, tolerance: float | None, seed: int
) -> tuple[ShapleyEstimate, Tensor]:
    """Values from pairs of opposite orders; arguments and results as those of ``_regression``."""
    (none, total), players = _ends(game), game.players
    if players < 2:
        return _trivial(total, players)
    each = 2 * (players - 1)
    count = (forwards - 2) // each
    if count < 2:
        raise OptionError(
            f"forwards={forwards} is not enough: two pairs of orders of {players} players take {2 + 2 * each}; raise "
            "forwards, raise cell, or use estimator='regression'"
        )
    orders = torch.rand(count, players, generator=torch.Generator().manual_seed(seed)).argsort(1)
    position = orders.argsort(1)
    effects = total.new_zeros(*total.shape, count, players)
    progress = _Progress(total, players, tolerance)
    start = 0
    for stop in range(2, count + 1) if tolerance is not None else (count,):
        here, open_rows = slice(start, stop), progress.open
        prefixes = (position[here, None] < torch.arange(1, players)[:, None]).flatten(0, 1)
        scores = game(torch.cat([prefixes, ~prefixes]), game.rows[open_rows]).mT
        forth, back = scores.reshape(*scores.shape[:2], 2, stop - start, players - 1).unbind(2)
        ends = [e[open_rows][..., None, None].expand(*forth.shape[:-1], 1) for e in (none, none + total)]
        forth = torch.cat([ends[0], forth, ends[1]], -1).diff()
        back = -torch.cat([ends[1], back, ends[0]], -1).diff()
        order = position[here].expand(*forth.shape)
        effects[open_rows, :, here] = ((forth + back) / 2).gather(-1, order)
        samples = effects[open_rows, :, :stop].flatten(0, 1)
        progress.add(ShapleyEstimate(samples.mean(1), samples.std(1) / stop**0.5), 2 + stop * each)
        start = stop
        if not len(progress.open):
            break
    return progress.estimate, progress.forwards


def _rounds(pairs: int, tolerance: float | None) -> list[int]:
    """Numbers of pairs after which the standard error is checked."""
    return [pairs] if tolerance is None else [*range(ROUND, pairs, ROUND), pairs]


def _trivial(total: Tensor, players: int) -> tuple[ShapleyEstimate, Tensor]:
    """The estimate of a single player, which has the whole effect."""
    values = total[..., None].expand(-1, -1, players)
    return ShapleyEstimate(values, torch.zeros_like(values)), torch.full((len(total),), 2)


class _Progress:
    """The last estimate of each input, and which inputs need more forward passes."""

    def __init__(self, total: Tensor, players: int, tolerance: float | None) -> None:
        empty = total.new_zeros(*total.shape, players)
        self.estimate = ShapleyEstimate(empty, empty.clone())
        self.forwards = torch.zeros(len(total), dtype=torch.long)
        self.open = torch.arange(len(total))
        self._tolerance = tolerance

    def add(self, estimate: ShapleyEstimate, forwards: int) -> None:
        """Keep the estimates of the inputs that were open, shape (open · K, P), and close those that are precise."""
        values, error = (
            part.view(len(self.open), -1, part.shape[-1]) for part in (estimate.values, estimate.standard_error)
        )
        self.estimate.values[self.open], self.estimate.standard_error[self.open] = values, error
        self.forwards[self.open] = forwards
        if self._tolerance is not None:
            precise = error.mean(-1) <= self._tolerance * values.abs().amax(-1)
            self.open = self.open[~precise.all(1)]
