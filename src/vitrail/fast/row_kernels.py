"""Triton kernels for products with attention that is never written to memory; CUDA only.

The plain computation is in `vitrail.capture.row_products`; both agree to rounding.
"""
# ruff: noqa: ANN001, ANN202 - Triton reads its own annotations
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

try:
    import triton
    import triton.language as tl
except ImportError:  # a build of torch without it
    triton = None

#: Block sizes of queries and keys, warps and pipeline stages, by bytes of a number.
TILES = {2: (64, 128, 8, 2), 4: (64, 64, 4, 2)}
_LOG2E = 1.4426950408889634


def attention_rows(
    Q: Tensor,
    K: Tensor,
    v: Tensor,
    scale: float,
    V: Tensor | None,
    dZ: Tensor | None,
    known: dict[str, Tensor],
    causal: bool = False,
) -> Tensor | None:
    """`row_products`, or None where torch's products are faster or the heads are too wide.

    In exact single precision the products of torch are faster than those of a kernel; with TF32 they are not.
    ``known`` keeps the norms of these queries and keys from one product to the next.
    """
    exact = Q.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    if exact or Q.shape[-1] > 256 or K.shape[:2] != Q.shape[:2]:
        return None
    if "norms" not in known:
        known["norms"] = attention_norms(Q, K, scale, causal)
    return row_products(Q, K, v, scale, V, dZ, known["norms"], causal)


def attention_norms(Q: Tensor, K: Tensor, scale: float, causal: bool = False) -> Tensor:
    """Logarithms to base 2 of the sums of exponentials of the logits, shape (b·H, m), single precision."""
    batch, heads, queries, width = Q.shape
    block_m, block_n, warps, stages = TILES[Q.element_size()]
    norms = torch.empty(batch * heads, queries, device=Q.device, dtype=torch.float32)
    _norm_kernel[(triton.cdiv(queries, block_m), batch * heads)](
        Q, K, norms, *Q.stride(), *K.stride(), scale * _LOG2E, heads, queries, K.shape[2], width,
        block_m, block_n, _padded(width), _precision(Q), causal, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return norms


def _padded(width: int) -> int:
    return max(16, triton.next_power_of_2(width))  # type: ignore[no-any-return]


def _precision(Q: Tensor) -> str:
    return "ieee" if Q.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest" else "tf32"


def row_products(
    Q: Tensor,
    K: Tensor,
    v: Tensor,
    scale: float,
    V: Tensor | None = None,
    dZ: Tensor | None = None,
    norms: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """v·A for each head, or with values and the gradient at the output v·(dZ·Vᵀ ⊙ A)⁺.

    Args:
        Q: Queries, shape (b, H, m, dh).
        K: Keys, shape (b, H, n, dh).
        v: Vector over the queries, shape (b, m).
        scale: Factor of the logits.
        V: Values, shape (b, H, n, dh).
        dZ: Gradient at the attention's output, shape (b, H, m, dh).
        norms: What `attention_norms` returns, if it is known.
        causal: Whether each query sees only the keys up to its own position.

    Returns:
        Shape (b, H, n), single precision.
    """
    norms = attention_norms(Q, K, scale, causal) if norms is None else norms
    batch, heads, queries, width = Q.shape
    keys = K.shape[2]
    block_m, block_n, warps, stages = TILES[Q.element_size()]
    out = torch.empty(batch, heads, keys, device=Q.device, dtype=torch.float32)
    v = v.to(torch.float32).expand(batch, -1)
    V, dZ = (K, Q) if V is None or dZ is None else (V, dZ)
    weighted = dZ is not Q
    _row_kernel[(triton.cdiv(keys, block_n), batch * heads)](
        Q, K, V, dZ, v, norms, out, *Q.stride(), *K.stride(), *V.stride(), *dZ.stride(), *v.stride(), scale * _LOG2E,
        heads, queries, keys, width, block_m, block_n, _padded(width), weighted, _precision(Q), causal,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def attention_columns(
    Q: Tensor, K: Tensor, u: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> Tensor | None:
    """u·Āᵀ by torch's fused attention: its values are the vectors u, shape (b, k, n), the same for every head.

    In half precision each vector is split into a rounded part and the rest, so that it keeps its precision.

    Returns:
        Shape (b, k, m), or None where no fused kernel takes these tensors.
    """
    count, width = u.shape[1], Q.shape[-1]
    top = u.abs().amax((-2, -1), keepdim=True).clamp_min(torch.finfo(u.dtype).tiny)
    values = (u / top).transpose(-2, -1)  # (b, n, k)
    if Q.element_size() == 2:
        high = values.to(Q.dtype)
        values = torch.cat([high, (values - high).to(Q.dtype)], -1)
    if values.shape[-1] > width:
        return None
    values = F.pad(values.to(Q.dtype), (0, width - values.shape[-1]))[:, None].expand(-1, Q.shape[1], -1, -1)
    try:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
            Z = F.scaled_dot_product_attention(Q, K, values, attn_mask=mask, is_causal=causal, scale=scale)
    except RuntimeError:  # no fused kernel for this precision or width
        return None
    mean = Z.mean(1, dtype=u.dtype).transpose(-2, -1)  # (b, width, m)
    found = mean[:, :count] + mean[:, count : 2 * count] if Q.element_size() == 2 else mean[:, :count]
    return found * top


if triton is not None:

    @triton.jit
    def _norm_kernel(
        Q, K, norm, qb, qh, qm, qd, kb, kh, kn, kd, scale, heads, queries, keys, width,
        M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, precision: tl.constexpr, causal: tl.constexpr,
    ):  # fmt: skip
        """Logarithm to base 2 of the sum of exponentials of each row of logits."""
        row = tl.program_id(0) * M + tl.arange(0, M)
        image = tl.program_id(1) // heads
        head = tl.program_id(1) % heads
        d = tl.arange(0, D)
        q_at = Q + image * qb + head * qh + row[:, None] * qm + d[None, :] * qd
        q = tl.load(q_at, mask=(row[:, None] < queries) & (d[None, :] < width), other=0.0)
        K += image * kb + head * kh
        largest = tl.full((M,), -float("inf"), tl.float32)
        total = tl.zeros((M,), tl.float32)
        # Under a causal mask, no query of this block sees a key beyond the block's last position.
        stop = keys
        if causal:
            stop = tl.minimum(keys, (tl.program_id(0) + 1) * M)
        for start in range(0, stop, N):
            column = start + tl.arange(0, N)
            k_at = K + column[None, :] * kn + d[:, None] * kd
            k = tl.load(k_at, mask=(column[None, :] < keys) & (d[:, None] < width), other=0.0)
            logits = tl.dot(q, k, input_precision=precision) * scale
            logits = tl.where(column[None, :] < keys, logits, -float("inf"))
            if causal:
                logits = tl.where(column[None, :] <= row[:, None], logits, -float("inf"))
            higher = tl.maximum(largest, tl.max(logits, 1))
            total = total * tl.exp2(largest - higher) + tl.sum(tl.exp2(logits - higher[:, None]), 1)
            largest = higher
        tl.store(norm + tl.program_id(1) * queries + row, largest + tl.log2(total), mask=row < queries)

    @triton.jit
    def _row_kernel(
        Q, K, V, dZ, v, norm, out, qb, qh, qm, qd, kb, kh, kn, kd, vb, vh, vn, vd, zb, zh, zm, zd, rb, rm, scale, heads,
        queries, keys, width, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, weighted: tl.constexpr,
        precision: tl.constexpr, causal: tl.constexpr,
    ):  # fmt: skip
        """One block of keys: the sum over queries of v·A, or of v·(dZ·Vᵀ ⊙ A)⁺."""
        column = tl.program_id(0) * N + tl.arange(0, N)
        image = tl.program_id(1) // heads
        head = tl.program_id(1) % heads
        d = tl.arange(0, D)
        there = (column[:, None] < keys) & (d[None, :] < width)
        k = tl.load(K + image * kb + head * kh + column[:, None] * kn + d[None, :] * kd, mask=there, other=0.0)
        if weighted:
            values = tl.load(V + image * vb + head * vh + column[:, None] * vn + d[None, :] * vd, mask=there, other=0.0)
        Q += image * qb + head * qh
        dZ += image * zb + head * zh
        total = tl.zeros((N,), tl.float32)
        first = 0
        if causal:  # queries before this block of keys see none of them
            first = (tl.program_id(0) * N) // M * M
        for start in range(first, queries, M):
            row = start + tl.arange(0, M)
            inside = (row[None, :] < queries) & (d[:, None] < width)
            q = tl.load(Q + row[None, :] * qm + d[:, None] * qd, mask=inside, other=0.0)
            each = tl.load(v + image * rb + row * rm, mask=row < queries, other=0.0)
            # Rows beyond the last get zero attention.
            normed = tl.load(norm + tl.program_id(1) * queries + row, mask=row < queries, other=float("inf"))
            attention = tl.exp2(tl.dot(k, q, input_precision=precision) * scale - normed[None, :])
            if causal:
                attention = tl.where(column[:, None] <= row[None, :], attention, 0.0)
            if weighted:
                z = tl.load(dZ + row[None, :] * zm + d[:, None] * zd, mask=inside, other=0.0)
                attention = tl.maximum(attention * tl.dot(values, z, input_precision=precision), 0.0)
            total += tl.sum(attention * each[None, :], 1)
        tl.store(out + tl.program_id(1) * keys + column, total, mask=column < keys)
