"""Token activation maps of vision-language models: the score of a token at each image token, less that of its context.

It reads the scores of the vocabulary at every position of the decoder's stream, which no other method needs, so it is a
function of its own and not in the registry of methods.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.capture.frozen import frozen, gradients_enabled
from vitrail.errors import InputError, MapWarning, NotApplicableError
from vitrail.inputs.map_source import QuestionSource
from vitrail.methods.postprocess import is_constant, normalise, upsample
from vitrail.models import LoadedModel
from vitrail.pipeline.explain import explain
from vitrail.pipeline.explanation import Explanation
from vitrail.targets.output_reader import OutputReader
from vitrail.targets.token_target import TokenTarget
from vitrail.text.tokens import word_scores

#: Side of the window of the rank filter.
_SIDE = 3


@gradients_enabled()
def token_activation(
    model: nn.Module | LoadedModel, inputs: Any, *, processor: Any, target: Any = None, filtered: bool = True
) -> Explanation:
    """Explain a token that a vision-language model writes by its token activation map [@li2025token].

    The activation of a token at a position is its logit there, where it is positive. The map of a token on the image is
    its activation, minus the mean map of the words before it, weighted by the token's activation at these words and
    scaled by least squares; what is left above zero is scaled to [0, 1] together with the activation at the words. One
    forward pass, no gradients.

    Args:
        model: A vision-language model.
        inputs: What its processor returned.
        processor: The processor, or its tokenizer.
        target: A token or several, as for `vitrail.explain`; None for the predicted one.
        filtered: Whether the rank Gaussian filter removes noise from the map, as published.

    Raises:
        NotApplicableError: The target is no token, or the image tokens have no place on the image.

    Example:
        >>> from PIL import Image
        >>> import vitrail
        >>> from vitrail.data import QuestionProcessor
        >>> processor = QuestionProcessor()
        >>> asked = processor(images=Image.new("RGB", (128, 128)), text="What colour is the fish?", return_tensors="pt")
        >>> e = token_activation(vitrail.load("scenes-vlm"), asked, processor=processor)
        >>> tuple(e.grid.shape), bool((e.grid >= 0).all())
        ((1, 1, 16, 16), True)
    """
    started = perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MapWarning)
        base = explain(model, inputs, "random", processor=processor, target=target)
    source = base.source
    if not isinstance(source, QuestionSource) or base.named_targets is None or base.text is None:
        raise InputError("token_activation explains tokens of vision-language models: pass what the processor returned")
    grids, texts = [], []
    for b, (inner, row) in enumerate(source.streams):
        call, cover = inner.model_inputs.select(slice(row, row + 1)), source.covers[b]
        with frozen(inner.loaded.module), torch.no_grad():
            activation = OutputReader(call.into(inner.loaded.module)).token_scores()[0].clamp_min(0)
        cells = len(cover) - len(base.text[b].words)
        if not cells:
            raise NotApplicableError("the image tokens of this model have no place on the image: each reads all of it")
        image, words = (side.sum(0) > 0 for side in (cover[:cells], cover[cells:]))
        ids = _stream_ids(call.kwargs["input_ids"][0], image)
        found = [_activation_map(activation, ids, image, words, record.pinned) for record in base.named_targets[b]]
        on_image = torch.stack([one for one, _ in found]) @ cover[:cells, image].T.to(activation)
        grid = on_image.view(len(found), *base.grid.shape[2:])
        grids.append(rank_gaussian_filter(grid) if filtered else grid)
        tokens = torch.stack([one for _, one in found]).cpu()
        scores = word_scores(tokens, base.text[b].token_spans, base.text[b].spans)
        texts.append(replace(base.text[b], scores=scores, normalised=normalise(scores, axes=1), token_scores=tokens))
    grid = torch.stack(grids)
    size = (int(base.maps.shape[-2]), int(base.maps.shape[-1]))
    maps = torch.stack([normalise(upsample(one, size)) for one in grid])
    return replace(
        base, method="token_activation", options={"filtered": filtered}, grid=grid, maps=maps.float(),
        constant=torch.stack([is_constant(one)[:, 0, 0] for one in grid]), text=tuple(texts), source=None, signed=False,
        seconds=perf_counter() - started,
    )  # fmt: skip


def _stream_ids(ids: Tensor, image: Tensor) -> Tensor:
    """The token at each position of the stream; −1 for image tokens that stand beside the words of the call."""
    if len(ids) == len(image):
        return ids
    placed = ids.new_full((len(image),), -1)
    placed[~image] = ids[-int((~image).sum()) :]
    return placed


def _activation_map(
    activation: Tensor, ids: Tensor, image: Tensor, words: Tensor, target: Any
) -> tuple[Tensor, Tensor]:
    """Scores of the image tokens and of the words for one token, scaled to [0, 1] together.

    Args:
        activation: Logits that are positive, zero elsewhere, shape (positions, vocabulary).
        ids: Token at each position.
        image: Which positions are image tokens.
        words: Which positions are words.
        target: The pinned target.
    """
    if not isinstance(target, TokenTarget):
        raise NotApplicableError(f"{target} is no token: token_activation explains tokens, targets.token(…)")
    assert target.index is not None and target.column is not None  # noqa: PT018
    own = activation[:, target.index]
    seen = torch.arange(len(ids), device=ids.device) <= target.column
    context = (words & seen & (ids != target.index)).nonzero()[:, 0]
    weights = own[context] / (own[context].sum() + 1e-8)
    interference = weights @ activation[image][:, ids[context]].T
    scale = (own[image] @ interference) / (interference @ interference).clamp_min(torch.finfo(own.dtype).tiny)
    left = (own[image] - scale * interference).clamp_min(0)
    at_words = torch.where(seen[words], own[words], 0.0)
    both = torch.cat([left, at_words])
    both = (both - both.min()) / (both.max() - both.min()).clamp_min(torch.finfo(own.dtype).tiny)
    return both[: len(left)], both[len(left) :]


def rank_gaussian_filter(grid: Tensor) -> Tensor:
    """Replace each cell by a mean of its 3 × 3 window, weighted by rank: a Gaussian around the median.

    Its width is the standard deviation of the window over its mean, so that even windows keep their median.

    Example:
        >>> rank_gaussian_filter(torch.ones(1, 3, 3)).unique()
        tensor([1.])
    """
    if min(grid.shape[-2:]) < 2:
        return grid
    windows = F.unfold(F.pad(grid[:, None], (1, 1, 1, 1), mode="reflect"), _SIDE)  # (K, 9, cells)
    ordered = windows.sort(1).values
    mean = ordered.mean(1, keepdim=True)
    width = ordered.std(1, correction=0, keepdim=True) / mean.clamp_min(torch.finfo(grid.dtype).tiny)
    rank = torch.arange(_SIDE**2, device=grid.device, dtype=grid.dtype)[:, None] - _SIDE**2 // 2
    weights = torch.softmax(-rank.square() / (2 * width.square()).clamp_min(torch.finfo(grid.dtype).tiny), 1)
    return torch.where(mean > 0, (ordered * weights).sum(1, keepdim=True), 0.0).view(grid.shape)
