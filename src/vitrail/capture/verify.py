"""Numeric checks of what was found in a model, on that model.

Each function measures one thing on the graph of a single forward pass: which attention the score depends on, whether
attention layers form one chain, which pixels each token comes from, whether tokens are mixed outside the attention that
was seen, and whether the residual stream adds up. What cannot be measured is reported as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from vitrail import fast
from vitrail.capture.attention import AttentionMode
from vitrail.capture.attention_call import Call, Gate
from vitrail.capture.signal_axes import SignalAxes
from vitrail.capture.trace import Block
from vitrail.errors import ModelError

#: Relative differences above this are errors, by precision of the model.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}
#: A gradient below this share of the largest is rounding.
SILENT = 1e-5


@dataclass(frozen=True)
class Check:
    """One check of the self-check.

    Attributes:
        name: What was checked.
        passed: Whether it holds; None where it could not be measured.
        detail: The error found, or why it could not be measured.
    """

    name: str
    passed: bool | None
    detail: str

    def __str__(self) -> str:
        verdict = {True: "pass", False: "FAIL", None: "not measured"}[self.passed]
        return f"{verdict}: {self.detail}"


def direction(like: Tensor, seed: int = 0) -> Tensor:
    """A fixed random direction in the shape of a tensor: no single output, token or channel decides alone."""
    found = _direction(tuple(like.shape), like.dtype, like.device, seed)
    fast.keep(found)
    return found


@lru_cache(maxsize=64)
def _direction(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    """Kept, because copying it to a GPU makes the GPU wait."""
    with torch.inference_mode(False):
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def gradients(scalar: Tensor, nodes: Sequence[Tensor], keep: bool = True) -> list[Tensor | None]:
    """Gradients of a scalar at some nodes, None where it does not depend on one; the graph stays if ``keep``."""
    if not scalar.requires_grad:
        return [None] * len(nodes)
    wanted = [node for node in nodes if node.requires_grad]
    try:
        found = iter(torch.autograd.grad(scalar, wanted, retain_graph=keep, allow_unused=True) if wanted else ())
    except AssertionError as error:  # a backward of the model's own, such as that of reversible layers
        raise ModelError(f"the model's own backward pass failed: {error or 'an assertion'}; use methods that need no "
                         "gradients, such as rise or occlusion") from error  # fmt: skip
    except RuntimeError as error:
        if fast.recomputing() or (not isinstance(error, CheckpointError) and "use_reentrant" not in str(error)):
            raise
        raise ModelError(
            "the model's forward pass calls torch.utils.checkpoint, whose recomputation cannot be recorded; "
            "call the function itself in evaluation mode (if self.training: checkpoint(f, x), else: f(x))"
        ) from error
    return [next(found) if node.requires_grad else None for node in nodes]


def reaching(calls: Sequence[Call], scores: Tensor) -> tuple[list[int], dict[int, Tensor]]:
    """The attention calls that the explained scores are computed from, and the gradients at their outputs.

    These may be zero, as where weights after an attention layer are zero. All calls where no gradient arrives anywhere.
    """
    nodes = [(i, c.Z) for i, c in enumerate(calls) if c.Z is not None and c.Z.requires_grad]
    if not nodes:
        return list(range(len(calls))), {}
    arrived = zip(nodes, gradients((scores * direction(scores)).sum(), [Z for _, Z in nodes]), strict=True)
    found = {i: g for (i, _), g in arrived if g is not None}
    return list(found) or [i for i, _ in nodes], found


def first_break(calls: Sequence[Call]) -> int | None:
    """The first attention call that does not depend on the one before it, or None if they form one chain."""
    for i, (one, two) in enumerate(pairwise(calls)):
        if one.Z is not None and two.V is not None and not _depends(two.V, one.Z):
            return i + 1
    return None


def _depends(result: Tensor, source: Tensor) -> bool:
    """Whether a tensor was computed from another one, by the graph alone."""
    if result.grad_fn is None or source.grad_fn is None:
        return False
    seen, waiting = set[Any](), [result.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is source.grad_fn:
            return True
        if node not in seen:
            seen.add(node)
            waiting += [before for before, _ in node.next_functions if before is not None]
    return False


def upstream(result: Tensor, calls: Sequence[Call]) -> frozenset[int]:
    """The attention calls from which a tensor was computed, by the graph alone, as indices into ``calls``."""
    return upstream_of(result, {i: c.Z for i, c in enumerate(calls) if c.Z is not None})


def upstream_of(result: Tensor, tensors: Mapping[int, Tensor]) -> frozenset[int]:
    """Which of some tensors another one was computed from, by the graph alone."""
    sources = {t.grad_fn: i for i, t in tensors.items() if t.grad_fn is not None}
    if result.grad_fn is None:
        return frozenset()
    found, seen, waiting = set[int](), set[Any](), [result.grad_fn]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in sources:
            found.add(sources[node])
        waiting += [before for before, _ in node.next_functions if before is not None]
    return frozenset(found)


def members(calls: Sequence[Call]) -> int:
    """Number of encoders that work side by side on the input, each of which has attention of its own.

    The last attention of an encoder is one that no other attention was computed from. Attention layers of one block
    that read the same stream come from the same layers and are one encoder.
    """
    before = {i: upstream(c.V, calls) for i, c in enumerate(calls) if c.V is not None}
    used = frozenset[int]().union(*before.values()) if before else frozenset[int]()
    last = [i for i in before if i not in used]
    return max(1, len({before[i] or frozenset((i,)) for i in last}))


def owners(V: Tensor, leaf: Tensor, axes: SignalAxes | None = None) -> tuple[Tensor, float] | None:
    """The token that each pixel (or frame, time bin, word embedding …) belongs to, by few backward passes.

    The tokens are weighted with the digits of their index, and with one for every other token: the ratio of two
    gradients at a pixel is a digit of its token, and a pixel of one token has no gradient from the other half. Where
    pixels belong to several tokens (overlapping patches), the tokens are weighted with the bits of their index instead,
    and the stronger gradient decides on each bit.

    Args:
        V: Values of the first attention, shape (1, H, n, dh), in the graph of ``leaf``.
        leaf: Images, shape (1, channels, height, width), other inputs on axes, or embeddings, shape (1, words, width).
        axes: Axes of ``leaf``; None for images and embeddings.

    Returns:
        Token indices in the shape of ``leaf`` without the batch axis and the channels, −1 where no token depends on the
        input, and the largest share of another token in what a pixel does; None where the values do not depend on
        ``leaf``.
    """
    n = V.shape[-2]
    each = (V * direction(V[:, :, :1])).sum((0, 1, 3))
    index = torch.arange(n, device=V.device)
    digits = [index // _BASE**k % _BASE for k in range(max(1, _digits(n)))]
    half = random_half(n, V.device)
    found = _gradient_rows(each, leaf, torch.stack([half, ~half, *digits]).to(each))
    if found is None:
        return None
    channels = _channels(leaf, axes)
    rows = (found.double()[..., None] if channels is None else found.double().movedim(channels + 1, -1))[:, 0]
    one, zero = rows[0].square().sum(-1), rows[1].square().sum(-1)
    total = one + zero
    top = total.max()
    own = torch.where((one >= zero)[..., None], rows[0], rows[1])
    size = own.square().sum(-1).clamp_min(1e-300)
    read = [((row * own).sum(-1) / size).round() for row in rows[2:]]
    ids = torch.stack([digit.clamp(-1, _BASE) * _BASE**k for k, digit in enumerate(read)]).sum(0).long()
    wrong = torch.stack([(digit < 0) | (digit >= _BASE) for digit in read]).any(0)
    shared = (torch.minimum(zero, one) / total.clamp_min(1e-300)).max()
    ids = ids.masked_fill((total <= top * 1e-24) | wrong | (ids >= n) | (ids < 0), -1)
    largest, shared_most = torch.stack([top, shared]).tolist()
    if not largest > 0:
        return None
    return (ids, shared_most) if shared_most < OVERLAP else _owners_by_bits(each, leaf, channels)


def _owners_by_bits(each: Tensor, leaf: Tensor, channels: int | None) -> tuple[Tensor, float] | None:
    """The same by binary codes, in 2·log₂ n backward passes; ``each`` is one number a token, shape (n,)."""
    n = len(each)
    bits = torch.arange(max(1, (n - 1).bit_length()), device=each.device)
    ones = (torch.arange(n, device=each.device)[None] >> bits[:, None] & 1).to(each)
    found = _gradient_rows(each, leaf, torch.cat([1 - ones, ones]))
    if found is None:
        return None
    squares = found.double().square()
    zero, one = (squares if channels is None else squares.sum(channels + 1))[:, 0].chunk(2)
    total = (zero + one).sum(0)
    ids = ((one > zero).long() << bits.view(-1, *[1] * total.dim())).sum(0)
    shared = (torch.minimum(zero, one) / (zero + one).clamp_min(1e-300)).max()
    ids = ids.masked_fill((total <= total.max() * 1e-24) | (ids >= n), -1)
    return ids, float(shared)


def _channels(leaf: Tensor, axes: SignalAxes | None) -> int | None:
    """Axis of the numbers of one pixel or word, or None where each number counts."""
    if axes is not None:
        return axes.channels
    return 1 if leaf.dim() == 4 else 2


#: From this share of another token on, a pixel belongs to several.
OVERLAP = 1e-8
#: Digits of token indices are read off ratios of gradients, in half precision as well.
_BASE = 32


def _digits(n: int) -> int:
    count = 0
    while n > 1:
        n, count = -(-n // _BASE), count + 1
    return count


def random_half(n: int, device: torch.device) -> Tensor:
    """Half of the tokens, drawn at random, the same each time; neither half is empty."""
    half = torch.rand(n, generator=torch.Generator().manual_seed(1)) < 0.5
    half[:1], half[1:2] = True, False
    return half.to(device)


def _gradient_rows(values: Tensor, leaf: Tensor, weights: Tensor) -> Tensor | None:
    """Gradients of several weighted sums of ``values`` at ``leaf``, stacked; in one backward pass where that works."""
    if not values.requires_grad:
        return None
    try:
        (found,) = torch.autograd.grad(
            values, leaf, weights, retain_graph=True, allow_unused=True, is_grads_batched=True
        )
    except RuntimeError:  # an operation that cannot be batched
        rows = [gradients((values * row).sum(), [leaf])[0] for row in weights]
        return None if rows[0] is None else torch.stack([torch.zeros_like(leaf) if r is None else r for r in rows])
    return found


def mixing(tokens: Tensor, entering: dict[int, Tensor], gate: Gate, count: int) -> tuple[int | None, float] | None:
    """Whether tokens are mixed while attention is cut.

    Half of the last tokens are differentiated with no gradient through the attention that was seen. Whatever arrives at
    the other half in the stream entering a block was mixed by something else.

    Args:
        tokens: The last tensor with one row for each token, in the graph.
        entering: The stream entering each block, in the graph.
        gate: The gate in front of every attention.
        count: Number of tokens n.

    Returns:
        The highest block below which tokens are mixed (None for nowhere) and the largest share that leaked; None where
        that cannot be measured.
    """
    streams = [(i, _token_axis(X, count)) for i, X in sorted(entering.items())]
    axis = _token_axis(tokens, count)
    if axis is None or not streams or any(a is None for _, a in streams):
        return None
    half = torch.arange(count, device=tokens.device) % 2 == 0
    chosen = tokens.movedim(axis, 0)[half]
    gate.closed = True
    try:
        found = gradients((chosen * direction(chosen)).sum(), [X for _, X in sorted(entering.items())])
    finally:
        gate.closed = False
    pairs: list[tuple[int, Tensor]] = []
    for (i, own), gradient in zip(streams, found, strict=True):
        if gradient is not None and own is not None:
            size = gradient.movedim(own, 0).flatten(1).norm(dim=1)
            pairs.append((i, torch.stack([size[half].max(), size[~half].max()])))
    numbers = torch.stack([pair for _, pair in pairs]).tolist() if pairs else []
    leaks = [
        (i, outside / max(inside, outside))
        for (i, _), (inside, outside) in zip(pairs, numbers, strict=True)
        if inside > 0 or outside > 0
    ]
    if not leaks:
        return None
    mixed = [i for i, share in leaks if share > SILENT]
    return (max(mixed) if mixed else None), max(share for _, share in leaks)


def token_changes(one: Tensor, two: Tensor, count: int) -> Tensor | None:
    """Largest difference between two streams at each token, relative to the largest entry.

    Args:
        one: A stream.
        two: The same stream of another pass.
        count: Number of tokens n.

    Returns:
        Differences, shape (n,); None where the streams have no axis of tokens.

    Example:
        >>> token_changes(torch.ones(1, 3, 2), torch.tensor([[[1.0, 1.0], [1.0, 3.0], [1.0, 1.0]]]), 3)
        tensor([0., 2., 0.])
    """
    axis = _token_axis(one, count)
    if axis is None or one.shape != two.shape:
        return None
    first, second = (t.detach().movedim(axis, 0).flatten(1) for t in (one, two))
    return (second - first).abs().amax(1) / first.abs().max()


def _token_axis(tensor: Tensor, count: int) -> int | None:
    axes = [axis for axis, size in enumerate(tensor.shape[:-1]) if size == count]
    return axes[0] if len(axes) == 1 else (1 if tensor.dim() == 3 and tensor.shape[1] == count else None)


def projection_error(block: Block, Z: Tensor, tokens_first: bool) -> Tensor | None:
    """Relative difference between what the attention adds to the stream and s·γ·(Z·Woᵀ + bo); None if not seen.

    s is the factor of each token where the branch is normalised.
    """
    held = vars(block)
    if "branch" not in block or "Wo" not in block:
        return None
    branch = block.branch.transpose(0, 1) if tokens_first else block.branch
    rows = Z.detach().transpose(1, 2).flatten(2).to(block.Wo.dtype)
    if rows.shape[-1] != block.Wo.shape[1] or branch.shape[-1] != block.Wo.shape[0]:
        return torch.tensor(torch.inf, dtype=torch.float64, device=Z.device)
    made = rows @ block.Wo.T
    bias, scale = held.get("bo"), held.get("gamma")
    made = made if bias is None else made + bias
    made = made if scale is None else made * scale
    tokens = held.get("branch_scale")
    if tokens is not None:
        made = made * (tokens.T if tokens_first else tokens)[..., None].to(made)
    if made.numel() != branch.numel():
        return torch.tensor(torch.inf, dtype=torch.float64, device=Z.device)
    return relative(made.reshape(branch.shape), branch)


def value_error(block: Block, V: Tensor) -> Tensor | None:
    """Relative difference between the values and V_in·Wvᵀ, but for a bias that all tokens share; None if not seen."""
    if "V_in" not in block or "Wv" not in block:
        return None
    made = (block.V_in @ block.Wv.T).reshape(V.shape[0], V.shape[2], V.shape[1], V.shape[3]).transpose(1, 2)
    bias = V.detach().to(made.dtype) - made
    return relative(bias, bias[:, :, :1].expand_as(bias), V.detach())


def relative(one: Tensor, two: Tensor, scale: Tensor | None = None) -> Tensor:
    """Largest difference relative to the largest entry, as a tensor of one number.

    Example:
        >>> relative(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])).item()
        0.2
    """
    size = (two if scale is None else scale).detach().abs().max().double()
    difference = (one.detach() - two.detach()).abs().max().double()
    return torch.where(size > 0, difference / size.clamp_min(1e-300), difference)


def agreement(opened: Any, bare: Tensor, tolerance: float) -> Check:
    """Whether the model under capture gives what the bare model gives."""
    error = float(relative(opened, bare))
    return Check("outputs under capture", error <= tolerance, f"relative difference to the bare model {error:.1e}")


def folded_order(alone: AttentionMode, both: AttentionMode) -> bool | None:
    """Whether a merged batch-and-heads axis holds the heads first: False, True, or None for neither.

    Args:
        alone: A pass over one image that kept A.
        both: A pass over that image and another that kept A, read with the batch first.
    """
    heads_first: bool | None = False
    for one, two in zip(alone.calls, both.calls, strict=True):
        if not one.folded:
            continue
        A, B = one.block.A[0], two.block.A.flatten(0, 1)
        count = len(A)
        if float(relative(B[:count], A)) < 1e-3:
            continue
        heads_first = True if float(relative(B[:: len(B) // count][:count], A)) < 1e-3 else None
    return heads_first
