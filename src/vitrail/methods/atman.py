"""AtMan: loss of the class's score when the attention to one token is suppressed in every block."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.capture.trace import Needs
from vitrail.errors import OptionError
from vitrail.methods.cost import forward_passes
from vitrail.methods.probe import Probe
from vitrail.methods.registry import Applies, register


def _needs(similarity: float | None, **_: object) -> Needs:
    return {} if similarity is None else {"X": slice(0, 1)}


@register(
    "atman",
    "AtMan",
    "perturbation",
    cite="deiseroth2023atman",
    takes="probe",
    needs=_needs,
    score="logprob",
    signed=True,
    variants={"similar": {"similarity": 0.7}},
    applies=Applies(),
    cost=forward_passes(lambda _, size: 1 + size.grid[0] * size.grid[1]),
)
def atman(probe: Probe, *, factor: float = 0.9, similarity: float | None = None) -> Tensor:
    """Loss of the class's score when the attention logits of one token are multiplied by 1 − factor in all blocks.

    Logits are multiplied after the smallest one of their row was subtracted, so that a smaller multiple is less
    attention. With units of a text, the tokens of a unit are suppressed together and share its loss equally.

    Args:
        probe: The model and its inputs.
        factor: How much the token is suppressed, above 0 and at most 1.
        similarity: Cosine from which on tokens are suppressed together with the one that is measured, in proportion to
            the cosine of their embeddings; None to suppress one token alone.

    Returns:
        Relevance of patches, shape (b, K, S), signed.
    """
    if not 0 < factor <= 1:
        raise OptionError(f"factor={factor} must be above 0 and at most 1: 1 leaves the token the smallest attention")
    if similarity is not None and not 0 < similarity <= 1:
        raise OptionError(f"similarity={similarity} is a cosine: it must be above 0 and at most 1, or none")
    places = probe.structure.layout.patch_tokens(probe.structure.tokens)
    device = probe.model_inputs.tensors[0].device
    inside = torch.tensor([token for token in places if token >= 0], device=device)
    alike, batch = _alike(probe, similarity, device), probe.batch
    units = _units(probe)
    if units is None:  # a row for each token, the same rows for all inputs unless they differ
        table, counts = alike[:, inside].flatten(0, 1), torch.full((batch,), len(inside), device=device)
        first = torch.arange(batch, device=device) * (len(inside) if len(alike) > 1 else 0)
    else:
        each = [_suppressed_with(alike[i if len(alike) > 1 else 0], own) for i, own in enumerate(units)]
        table, counts = torch.cat(each), torch.tensor([len(own) for own in each], device=device)
        first = counts.cumsum(0) - counts
    # One row of each input leaves its attention as it is.
    owners = torch.arange(batch, device=device).repeat_interleave(1 + counts)
    which = torch.arange(len(owners), device=device) - ((1 + counts).cumsum(0) - 1 - counts)[owners]
    found = []
    for piece in probe.pieces(len(owners)):
        owner, at = owners[piece], which[piece]
        rows = table[(first[owner] + at - 1).clamp_min(0)]
        found.append(probe.suppressed_scores(1 - factor * rows * (at > 0)[:, None], owner))
    scores = torch.cat(found)
    loss = (scores[which == 0][owners] - scores)[which > 0]
    if units is None:
        by_token = loss.view(batch, len(inside), -1).transpose(1, 2)
    else:
        pieces = zip(torch.split(loss, counts.tolist()), units, strict=True)
        by_token = torch.stack([_shared_by_tokens(one, own) for one, own in pieces])[..., inside]
    if len(inside) == len(places):
        return by_token
    cells = torch.tensor([cell for cell, token in enumerate(places) if token >= 0], device=device)
    return by_token.new_zeros(*by_token.shape[:2], len(places)).index_copy(-1, cells, by_token)


def _units(probe: Probe) -> list[Tensor] | None:
    """Which tokens belong to each unit of each text, shape (units, n); None where single tokens are suppressed."""
    found = [probe.model_inputs.unit_members(i) for i in range(probe.batch)]
    units = [own for own in found if own is not None and own.shape[1] == probe.structure.tokens]
    return units if len(units) == len(found) else None


def _suppressed_with(alike: Tensor, units: Tensor) -> Tensor:
    """How strongly each token is suppressed with each unit, shape (units, n): as with its most similar member."""
    return torch.stack([alike[own].amax(0) for own in units])


def _shared_by_tokens(loss: Tensor, units: Tensor) -> Tensor:
    """The loss of each unit, shape (units, K), in equal shares at its tokens, shape (K, n); zero outside of units."""
    shares, unit = loss / units.sum(1, keepdim=True), units.long().argmax(0)
    return torch.where(units.any(0), shares[unit].mT, 0.0)


def _alike(probe: Probe, threshold: float | None, device: torch.device) -> Tensor:
    """How strongly each token is suppressed with each other one, shape (b or 1, n, n); one on the diagonal."""
    same = torch.eye(probe.structure.tokens, device=device, dtype=torch.float64)
    if threshold is None:
        return same[None]
    unit = F.normalize(probe.entering().double(), dim=-1)
    cosine = unit @ unit.mT
    return torch.where(cosine >= threshold, cosine.clamp(max=1), 0.0).masked_fill(same.bool(), 1.0)
