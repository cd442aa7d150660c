"""Transformer Input Sampling: sets of tokens from clustered activations, weighted by the class's score with each."""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.capture.forward import forward_pass
from vitrail.capture.trace import ALL, Block
from vitrail.errors import NotApplicableError, OptionError
from vitrail.methods.coalitions import CoalitionGame, grid_cells, patch_grid
from vitrail.methods.cost import forward_passes, number
from vitrail.methods.probe import Probe
from vitrail.methods.registry import Applies, check_whole_numbers, register

#: Rounds of k-means at most, and the squared movement of all centres below which it stops.
ROUNDS, MOVEMENT = 100, 1e-4


def k_means(points: Tensor, clusters: int, seed: int) -> Tensor:
    """Centres of clusters by Lloyd's algorithm, shape (clusters, d); starts at points drawn without repetition.

    A cluster without members keeps its centre.

    Example:
        >>> k_means(torch.tensor([[0.0], [1.0], [10.0], [11.0]]), 2, seed=0).sort(0).values
        tensor([[ 0.5000],
                [10.5000]])
    """
    first = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:clusters]
    centres = points[first.to(points.device)]
    for _ in range(ROUNDS):
        # |x − c|² without |x|², which is the same for all centres.
        nearest = (centres.square().sum(1) - 2 * points @ centres.T).argmin(1)
        total = torch.zeros_like(centres).index_add_(0, nearest, points)
        members = nearest.bincount(minlength=len(centres))[:, None]
        moved = torch.where(members > 0, total / members.clamp_min(1), centres)
        change = (moved - centres).square().sum()
        centres = moved
        if change <= MOVEMENT:
            break
    return centres


@register(
    "tis",
    "TIS",
    "perturbation",
    cite="englebert2023explaining",
    takes="probe",
    needs={"stream": ALL},
    score="prob",
    variants={"quick": {"masks": 64}, "preview": {"masks": 256}, "config": {"masks": 2048, "ratio": 0.25}},
    applies=Applies(
        excluded={
            "text": "the tokens lie on no grid of image patches",
            "pool": "an attention pool has no residual stream",
        }
    ),
    cost=forward_passes(lambda options, _: 1 + number(options, "masks")),
)
def tis(probe: Probe, *, masks: int = 1024, ratio: float = 0.5, removal: str | None = None, seed: int = 0) -> Tensor:
    """Mean score of the sets of tokens that a patch is in; sets are the highest values of clustered activations.

    Args:
        probe: The model and its inputs.
        masks: Number of clusters of activations, and so of sets of tokens; at most the number of activations.
        ratio: Share of the patches in a set, rounded down.
        removal: How the other patches are removed: "tokens", "mask" or "fill"; None for the first that applies.
        seed: Seed of the clustering, from which every image starts anew.

    Returns:
        Relevance of patches, shape (b, K, S); 0 for patches in no set.
    """
    check_whole_numbers(1, masks=masks)
    check_whole_numbers(0, seed=seed)
    if not 0 < ratio < 1:
        raise OptionError(f"ratio={ratio} is a share of the patches: it must lie between 0 and 1, both left out")
    grid = patch_grid(probe)
    activations = _activations(probe)
    members = grid_cells(grid, 1)
    kept = int(ratio * len(members))
    if not kept:
        raise OptionError(
            f"ratio={ratio} keeps none of {len(members)} patches: raise it to at least {1 / len(members)}"
        )
    relevance = []
    game = CoalitionGame(probe, members, removal)
    for i, points in enumerate(activations):
        centres = k_means(points, min(masks, len(points)), seed)
        sets = torch.zeros_like(centres, dtype=torch.bool).scatter_(1, centres.topk(kept, dim=1).indices, True)
        scores = game(sets, torch.tensor([i]))[0].to(points)
        covered = sets.to(points).sum(0)
        probe.note("sets", sets)
        relevance.append(torch.where(covered > 0, scores.T @ sets.to(points) / covered.clamp_min(1), 0.0))
    return torch.stack(relevance)


def _activations(probe: Probe) -> Tensor:
    """Output of every block as one map of patches for each channel, shape (b, blocks · d, S)."""
    if probe.seen is not None and probe.seen.blocks:
        outputs = [_output(block) for block in probe.seen.blocks]
    else:
        with forward_pass(probe.model, probe.model_inputs, probe.structure, [{"stream": ALL}]) as one:
            outputs = [_output(block) for block in one.blocks]
    return probe.structure.layout.patches(torch.cat(outputs, -1), 1).mT


def _output(block: Block) -> Tensor:
    if block.F is None:
        raise NotApplicableError("tis reads what each block adds up to, and a block without an MLP was found")
    return block.X_mid + block.F
