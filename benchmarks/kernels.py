"""Cases of single products: linear maps by split products, and products with attention by block sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from measuring import PRECISIONS, Run
from torch import Tensor

from vitrail.capture import row_products
from vitrail.capture.row_products import RowwiseProducts
from vitrail.fast import row_kernels
from vitrail.fast.split_products import split_linear

SHAPES = ((768, 2304), (768, 768), (768, 3072), (3072, 768), (192, 768))
#: Block sizes of queries and keys, warps, pipeline stages, by bytes of a number.
TILES = {
    2: [(64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 2), (64, 128, 8, 2), (64, 128, 8, 3), (128, 64, 4, 2),
        (128, 64, 8, 3), (128, 128, 8, 2)],
    4: [(32, 32, 4, 2), (32, 64, 4, 2), (64, 32, 4, 2), (64, 64, 4, 2), (64, 64, 8, 2), (32, 128, 4, 2)],
}  # fmt: skip


def linear_maps(run: Run, *, images: int = 50, repeats: int = 5) -> list[dict[str, Any]]:
    """Single linear maps in float32, TF32 and by split products: time, and error against float64."""
    results, timer = [], run.timer(repeats)
    for k, n in SHAPES:
        x = torch.randn(run.count(images) * 197, k, device=run.device)
        x[:, : k // 16] *= 30  # some channels are much larger than others
        w, b = torch.randn(n, k, device=run.device) / k**0.5, torch.randn(n, device=run.device)
        exact = F.linear(x.double(), w.double(), b.double())
        row: dict[str, Any] = {"in": k, "out": n}
        ways: dict[str, Callable[..., Tensor]] = {"float32": F.linear, "tf32": F.linear}
        for name, call in (ways | ({"split": split_linear} if x.is_cuda else {})).items():
            torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
            error = (call(x, w, b).double() - exact).abs()
            row[name] = {
                "ms": 1e3 * timer.median(partial(call, x, w, b)),
                "largest_error": float(error.max() / exact.abs().max()),
                "mean_error": float(error.mean() / exact.abs().mean()),
            }
            print(k, n, name, {key: f"{value:.2e}" for key, value in row[name].items()}, flush=True)
        results.append(row)
        run.save(results)
    return results


def tensors(run: Run, dtype: torch.dtype, batch: int, heads: int, tokens: int) -> tuple[Tensor, ...]:
    """Queries, keys, values and a gradient as views of larger tensors, and a vector over the queries."""
    qkv = torch.randn(batch, tokens, 3, heads, 64, device=run.device, dtype=dtype)
    dZ = torch.randn(batch, tokens, heads, 64, device=run.device, dtype=dtype).transpose(1, 2)
    return *qkv.permute(2, 0, 3, 1, 4), dZ, torch.rand(batch, tokens, device=run.device)


def exact_products(Q: Tensor, K: Tensor, V: Tensor, dZ: Tensor, v: Tensor) -> dict[str, Tensor]:
    """The products by matrices in float64, one image at a time."""
    found: dict[str, list[Tensor]] = {"rows": [], "weighted": [], "columns": []}
    for q, k, values, z, r in zip(*(t.double() for t in (Q, K, V, dZ, v)), strict=True):
        A = torch.softmax(q @ k.mT / 8, -1)
        found["rows"].append(r @ A)
        found["weighted"].append(r @ (A * (z @ values.mT)).clamp_min(0))
        found["columns"].append(A.mean(0) @ r)
    return {name: torch.stack(parts) for name, parts in found.items()}


def row_tiles(
    run: Run, *, tokens: int = 1370, heads: int = 16, batch: int = 8,
    precisions: tuple[str, ...] = ("bfloat16", "tf32", "float32"), repeats: int = 5,
) -> list[dict[str, Any]]:  # fmt: skip
    """Products with attention of one block of ViT-L/14: error against float64, time by block sizes and in pieces.

    Compiling takes most of the time; run the precisions in parallel with ``--repeats 1`` first to fill Triton's cache.
    "pieces" is the computation without kernels.
    """
    results: list[dict[str, Any]] = []
    cuda = run.device.type == "cuda"
    if run.tiny:
        tokens, heads, batch = 53, 2, 1
    for precision in precisions:
        dtype, matmul = PRECISIONS[precision]
        torch.set_float32_matmul_precision(matmul)
        found: dict[str, Any] = {"precision": precision, "errors": {}, "milliseconds": {}}
        for length in (50, tokens - 3, tokens):
            Q, K, V, dZ, v = tensors(run, dtype, batch, heads, length)
            products, exact = RowwiseProducts(Q, K, V, torch.float32, dZ=dZ), exact_products(Q, K, V, dZ, v)
            got: dict[str, Tensor | None] = {}
            if cuda:
                columns = row_kernels.attention_columns(Q, K, v[:, None], None, False, None)
                got = {
                    "rows": row_kernels.attention_rows(Q, K, v, 1 / 8),
                    "weighted": row_kernels.attention_rows(Q, K, v, 1 / 8, V, dZ),
                    "columns": None if columns is None else columns[:, 0],
                }
            with patch.object(row_kernels, "supported", lambda *_: False):
                got |= {"rows, pieces": products.rows(v), "weighted, pieces": products.weighted_rows(v)}
            found["errors"][length] = errors = {
                name: float((t.double() - exact[kind]).norm() / exact[kind].norm())
                for name, t in got.items() if t is not None and (kind := name.partition(",")[0])
            }  # fmt: skip
            print(precision, length, {name: f"{error:.1e}" for name, error in errors.items()}, flush=True)
        weights = torch.rand(batch, heads, tokens, device=run.device)
        calls: dict[str, Callable[[], Any]] = {"attention": partial(F.scaled_dot_product_attention, Q, K, V)}
        if cuda:
            calls["columns"] = partial(row_kernels.attention_columns, Q, K, weights, None, False, None)
        times, timer, size = found["milliseconds"], run.timer(repeats), Q.element_size()
        times |= {name: 1e3 * timer.median(call) for name, call in calls.items()}
        for piece in (2**23, 2**25, 2**27):
            changed = patch.dict(row_products.PIECE, {run.device.type: piece})
            with patch.object(row_kernels, "supported", lambda *_: False), changed:
                times[f"pieces {piece}"] = 1e3 * timer.median(partial(products.weighted_rows, v))
        for tile in TILES[size] if cuda else ():
            with patch.dict(row_kernels.TILES, {size: tile}):
                try:
                    times[f"tile {tile}"] = 1e3 * timer.median(
                        partial(row_kernels.attention_rows, Q, K, v, 1 / 8, V, dZ)
                    )
                except Exception as problem:  # noqa: BLE001 - a tile may need more shared memory than there is
                    times[f"tile {tile}"] = repr(problem)[:160]
        print(precision, times, flush=True)
        results.append(found)
        run.save(results)
    return results
