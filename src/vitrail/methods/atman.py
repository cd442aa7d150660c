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
    attention.

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
    tokens = probe.structure.tokens
    places = probe.structure.layout.patch_tokens(tokens)
    device = probe.model_inputs.tensors[0].device
    inside = torch.tensor([token for token in places if token >= 0], device=device)
    alike = _alike(probe, similarity, device)
    batch, count = probe.batch, 1 + len(inside)
    found = []
    for piece in probe.pieces(batch * count):
        at = torch.arange(piece.start, piece.stop, device=device)
        owner, which = at // count, at % count
        # Row 0 of each input leaves its attention as it is.
        rows = alike[owner if len(alike) > 1 else torch.zeros_like(owner), inside[(which - 1).clamp_min(0)]]
        found.append(probe.suppressed_scores(1 - factor * rows * (which > 0)[:, None], owner))
    scores = torch.cat(found).view(batch, count, -1)
    loss = (scores[:, :1] - scores[:, 1:]).transpose(1, 2)
    if len(inside) == len(places):
        return loss
    cells = torch.tensor([cell for cell, token in enumerate(places) if token >= 0], device=device)
    return loss.new_zeros(*loss.shape[:2], len(places)).index_copy(-1, cells, loss)


def _alike(probe: Probe, threshold: float | None, device: torch.device) -> Tensor:
    """How strongly each token is suppressed with each other one, shape (b or 1, n, n); one on the diagonal."""
    same = torch.eye(probe.structure.tokens, device=device, dtype=torch.float64)
    if threshold is None:
        return same[None]
    unit = F.normalize(probe.entering().double(), dim=-1)
    cosine = unit @ unit.mT
    return torch.where(cosine >= threshold, cosine.clamp(max=1), 0.0).masked_fill(same.bool(), 1.0)
