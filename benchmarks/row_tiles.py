"""Kernels for products with attention: error against float64, and time by block sizes and against torch's functions.

    python benchmarks/row_tiles.py --device cuda --out out/row_tiles.json

Compiling takes most of the time; run the precisions in parallel with ``--repeats 1`` first to fill Triton's cache.
The products are those of one block of a ViT-L/14 at 518 px, batch 8. "pieces" is the computation without kernels.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from common import Timer, save_speed, speed_parser
from torch import Tensor

from vitrail.capture import row_products
from vitrail.capture.row_products import RowwiseProducts
from vitrail.fast import row_kernels

PRECISIONS = {"bfloat16": torch.bfloat16, "tf32": torch.float32, "float32": torch.float32}
#: Block sizes of queries and keys, warps, pipeline stages, by bytes of a number.
TILES = {
    2: [(64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 2), (64, 128, 8, 2), (64, 128, 8, 3), (128, 64, 4, 2),
        (128, 64, 8, 3), (128, 128, 8, 2)],
    4: [(32, 32, 4, 2), (32, 64, 4, 2), (64, 32, 4, 2), (64, 64, 4, 2), (64, 64, 8, 2), (32, 128, 4, 2)],
}  # fmt: skip


def tensors(args: argparse.Namespace, dtype: torch.dtype, tokens: int) -> tuple[Tensor, ...]:
    """Queries, keys, values and a gradient as views of larger tensors, and a vector over the queries."""
    qkv = torch.randn(args.batch, tokens, 3, args.heads, 64, device=args.device, dtype=dtype)
    Q, K, V = qkv.permute(2, 0, 3, 1, 4)
    dZ = torch.randn(args.batch, tokens, args.heads, 64, device=args.device, dtype=dtype).transpose(1, 2)
    return Q, K, V, dZ, torch.rand(args.batch, tokens, device=args.device)


def exact(Q: Tensor, K: Tensor, V: Tensor, dZ: Tensor, v: Tensor) -> dict[str, Tensor]:
    """The products by matrices in float64, one image at a time."""
    found: dict[str, list[Tensor]] = {"rows": [], "weighted": [], "columns": []}
    for q, k, values, z, r in zip(*(t.double() for t in (Q, K, V, dZ, v)), strict=True):
        A = torch.softmax(q @ k.mT / 8, -1)
        found["rows"].append(r @ A)
        found["weighted"].append(r @ (A * (z @ values.mT)).clamp_min(0))
        found["columns"].append(A.mean(0) @ r)
    return {name: torch.stack(parts) for name, parts in found.items()}


def error(one: Tensor, other: Tensor) -> float:
    """Norm of the difference over the norm."""
    return float((one.double() - other).norm() / other.norm())


def timed(timer: Timer, call: Callable[[], Any]) -> float | str:
    """Milliseconds of a call, or why it failed."""
    try:
        return 1e3 * timer.median(call)
    except Exception as problem:  # noqa: BLE001 - a tile may need more shared memory than there is
        return f"{type(problem).__name__}: {problem}"[:160]


def measure(args: argparse.Namespace, precision: str, timer: Timer) -> dict[str, Any]:
    """Errors and times in one precision."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    dtype = PRECISIONS[precision]
    found: dict[str, Any] = {"precision": precision, "errors": {}, "milliseconds": {}}
    for tokens in (args.tokens, args.tokens - 3, 50):
        Q, K, V, dZ, v = tensors(args, dtype, tokens)
        expected, products = exact(Q, K, V, dZ, v), RowwiseProducts(Q, K, V, torch.float32, dZ=dZ)
        columns = row_kernels.attention_columns(Q, K, v[:, None], None, False, None)
        got = {
            "rows": row_kernels.attention_rows(Q, K, v, 1 / 8),
            "weighted": row_kernels.attention_rows(Q, K, v, 1 / 8, V, dZ),
            "columns": None if columns is None else columns[:, 0],
        }
        errors = {name: None if t is None else error(t, expected[name]) for name, t in got.items()}
        supported, row_kernels.supported = row_kernels.supported, lambda *_: False
        errors |= {"rows pieces": error(products.rows(v), expected["rows"]),
                   "weighted pieces": error(products.weighted_rows(v), expected["weighted"])}  # fmt: skip
        row_kernels.supported = supported
        found["errors"][tokens] = errors
        print(precision, tokens, {k: e if e is None else f"{e:.1e}" for k, e in errors.items()}, flush=True)
    Q, K, V, dZ, v = tensors(args, dtype, args.tokens)
    products, times = RowwiseProducts(Q, K, V, torch.float32, dZ=dZ), found["milliseconds"]
    attend = torch.nn.functional.scaled_dot_product_attention
    times["attention"] = timed(timer, lambda: attend(Q, K, V))
    heads = torch.rand(args.batch, args.heads, args.tokens, device=args.device)
    times["columns"] = timed(timer, lambda: row_kernels.attention_columns(Q, K, heads, None, False, None))
    supported, row_kernels.supported = row_kernels.supported, lambda *_: False
    for size in (2**23, 2**25, 2**27):
        row_products.PIECE["cuda"] = size
        times[f"pieces {size}"] = timed(timer, lambda: products.weighted_rows(v))
    row_kernels.supported = supported
    best = row_kernels.TILES[Q.element_size()]
    for tile in TILES[Q.element_size()]:
        row_kernels.TILES[Q.element_size()] = tile
        times[f"tile {tile}"] = timed(timer, lambda: row_kernels.attention_rows(Q, K, v, 1 / 8, V, dZ))
    row_kernels.TILES[Q.element_size()] = best
    ranked = sorted((t, name) for name, t in times.items() if isinstance(t, float))
    print(precision, [f"{name}: {t:.2f} ms" for t, name in ranked], flush=True)
    print(precision, {name: t for name, t in times.items() if isinstance(t, str)}, flush=True)
    return found


def main() -> None:
    """Measure, and write results after each precision."""
    parser = speed_parser(__doc__, repeats=5)
    parser.add_argument("--tokens", type=int, default=1370)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    args = parser.parse_args()
    torch.manual_seed(0)
    results: list[Any] = []
    for precision in args.precisions:
        results.append(measure(args, precision, Timer(torch.device(args.device), args.repeats)))
        save_speed(args, results)


if __name__ == "__main__":
    main()
