"""Tokens that change with other tokens while the results of attention are held: mixing that gradients do not show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.capture import verify
from vitrail.capture.attention import AttentionMode
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_call import run_model
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.structure_pass import ALL_CALLS, StructurePass
from vitrail.capture.verify import TOLERANCE


def mixed_by_value(
    one: StructurePass, base: ModelStructure, live: Sequence[int]
) -> tuple[tuple[int, float] | None, str | None]:
    """Whether tokens change with other ones while the result of every attention is held.

    Half of the input's tokens are changed in a second pass. Unlike gradients, this also shows what a model computes
    without one, such as a hook that adds a detached mean. Where the model fails on the changed input, a gentler change
    is tried.

    Returns:
        The first block that changed tokens enter though their input did not change, len(live) for the head, with the
        size of the change, or None where there is no such block; and why the model could not be tested, or None.
    """
    stream = one.mode.stream
    if stream is None or stream.last is None:
        return None, None
    held = {i: call.Z.detach() for i, call in enumerate(one.mode.calls) if call.Z is not None}
    text = one.model_inputs.words is not None
    reason = None
    for model_inputs, half in _half_changed(one, base):
        mode = AttentionMode({"X": ALL_CALLS}, 1, keep_output=True, from_embedding=text, masks=False, held=held)
        try:
            with mode:
                run_model(one.model, model_inputs)
        except (RuntimeError, ValueError, IndexError) as error:
            reason = f"it fails where half of the input is changed ({error})"
            continue
        if mode.stream is None or len(mode.calls) != len(one.mode.calls):
            reason = (
                f"it calls attention {len(mode.calls)} times instead of {len(one.mode.calls)} where half of the input "
                "is changed"
            )
            continue
        pairs = [(stream.entering.get(i), mode.stream.entering.get(i)) for i in live]
        return _first_mixed([*pairs, (stream.last, mode.stream.last)], half, base.tokens, one.scores.dtype), None
    return None, reason


def _first_mixed(
    pairs: Sequence[tuple[Tensor | None, Tensor | None]], half: Tensor, tokens: int, dtype: torch.dtype
) -> tuple[int, float] | None:
    """The first pair of streams, the head last, that differ at tokens whose input did not change, and by how much."""
    limit, head = TOLERANCE.get(dtype, 1e-3) / 10, len(pairs) - 1
    for block, (before, after) in enumerate(pairs):
        if before is None or after is None:
            continue
        changes = verify.token_changes(before, after, tokens)
        if changes is None:
            continue
        others = changes > limit
        # Behind the last block tokens may be in another order: which of them are read is measured in each pass.
        mixed = int(others.sum()) > int(half.sum()) if block == head else bool(others[~half].any())
        if mixed:
            return block, float(changes.max() if block == head else changes[~half].max())
    return None


def _half_changed(one: StructurePass, base: ModelStructure) -> Iterator[tuple[ModelInputs, Tensor]]:
    """The inputs with about half of their tokens changed, and which ones, shape (n,); gentler changes come later.

    Nothing where it is not known which part of the input belongs to a token.
    """
    words, image, owners = one.model_inputs.words, one.leaf, base.owners
    if base.order_by_image or base.overlapping:
        return
    half = verify.random_half(base.tokens, one.scores.device)
    if words is not None and words.shape[1] == base.tokens:
        half[[0, -1]] = False  # often special tokens, by which models find their way
        half &= (words.roll(1, 1) != words)[0]
        first = torch.arange(len(half), device=half.device) == half.int().argmax()
        for changed in (half, half & first):
            if changed.any():
                yield one.model_inputs.swap(words, torch.where(changed, words.roll(1, 1), words)), changed
        return
    if one.model_inputs.image is None or image is None or owners is None:
        return
    own = half[owners.clamp_min(0)] & (owners >= 0)
    certain = own & _with_neighbours(owners)
    own = certain if certain.any() else own  # a token of a single pixel has no neighbours
    pixels = image.detach()
    noise = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0)).to(pixels)
    # Pixels of the image itself stay in its range, which some models check.
    mirrored = torch.where(own, pixels.flip(-1, -2), pixels)
    for changed_pixels in (pixels + noise * own, mirrored):
        if not torch.equal(changed_pixels, pixels):
            yield one.model_inputs.swap(image, changed_pixels.requires_grad_()), half


def _with_neighbours(owners: Tensor) -> Tensor:
    """Pixels whose token is also that of a neighbour in its row and in its column.

    Tokens of pixels are read off ratios of gradients. Where the terms of a gradient nearly cancel, the token is wrong
    in reduced precision, such as TF32 (5 of the 50,176 pixels of DeiT-Tiny); the pixels around it are read rightly.
    """
    if owners.dim() != 2:
        return torch.ones_like(owners, dtype=torch.bool)
    row, column = owners[:, 1:] == owners[:, :-1], owners[1:] == owners[:-1]
    beside = F.pad(row, (1, 0)) | F.pad(row, (0, 1))
    return beside & (F.pad(column, (0, 0, 1, 0)) | F.pad(column, (0, 0, 0, 1)))
