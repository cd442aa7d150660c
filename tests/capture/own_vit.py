"""One small ViT in every spelling of attention and every order of tokens; all of them compute the same function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, DEPTH, PATCH, SIDE = 32, 4, 3, 8, 4
HEAD = WIDTH // HEADS
SCALE = HEAD**-0.5
Spelling = Callable[[Tensor, Tensor, Tensor], Tensor]


def _softmax_matmul(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.transpose(-2, -1)) * SCALE).softmax(-1) @ v


def _scaled_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(torch.matmul(q * SCALE, k.mT), dim=-1).matmul(v)


def _float_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    attention = F.softmax((q @ k.mT) * SCALE, dim=-1, dtype=torch.float64).to(q.dtype)
    return F.dropout(attention, 0.3, training=False) @ v


def _bmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    b = len(q)
    q, k, v = (t.reshape(b * HEADS, -1, HEAD) for t in (q, k, v))
    return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) * SCALE, -1), v).view(b, HEADS, -1, HEAD)


def _bmm_heads_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    b = len(q)
    q, k, v = (torch.cat([t[:, h] for h in range(HEADS)]) for t in (q, k, v))
    z = torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) * SCALE, -1), v)
    return torch.stack(z.split(b), 1)


def _baddbmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    b, n = len(q), q.shape[2]
    q, k, v = (t.reshape(b * HEADS, -1, HEAD) for t in (q, k, v))
    logits = torch.baddbmm(q.new_empty(b * HEADS, n, n), q, k.mT, beta=0, alpha=SCALE)
    return torch.bmm(logits.softmax(-1), v).view(b, HEADS, -1, HEAD)


def _baddbmm_by_name(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The heads come apart between the logits and the softmax, as in BLOOM."""
    b, n = len(q), q.shape[2]
    flat = [t.reshape(b * HEADS, -1, HEAD) for t in (q, k, v)]
    logits = q.new_zeros(b * HEADS, n, n).baddbmm(batch1=flat[0], batch2=flat[1].mT, beta=1.0, alpha=SCALE)
    attention = F.softmax(logits.view(b, HEADS, n, n), dim=-1).view(b * HEADS, n, n)
    return torch.bmm(attention, flat[2]).view(b, HEADS, -1, HEAD)


def _sink(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One more logit that belongs to no token, as in gpt-oss; it is so low that it changes nothing."""
    logits = (q @ k.mT) * SCALE
    sink = logits.new_full((*logits.shape[:-1], 1), -1e3)
    attention = torch.cat([logits, sink], dim=-1).softmax(-1)[..., :-1]
    return attention @ v


def _two_terms(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Logits with a second product, of queries and positions, as in DeBERTa; here it is zero."""
    n = q.shape[2]
    positions = q.new_zeros(1, 1, n, HEAD).expand(len(q), HEADS, -1, -1)
    content = (q @ k.mT) * SCALE
    index = torch.arange(n).flip(0).expand(len(q), HEADS, n, n)
    return (content + torch.gather(q @ positions.mT, -1, index)).softmax(-1) @ v


def _merged_fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    b = len(q)
    q, k, v = (t.reshape(b * HEADS, -1, HEAD) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).view(b, HEADS, -1, HEAD)


def _einsum(products: tuple[str, str], to: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Spelling:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attention = (torch.einsum(products[0], to(q), to(k)) * SCALE).softmax(-1)
        return back(torch.einsum(products[1], attention, to(v)))

    return attend


def _einsum_values_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    attention = torch.einsum("bhid,bhjd->bhij", q, k).mul(SCALE).softmax(-1)
    return torch.einsum("bhjd,bhij->bhid", v, attention)


def _softmax_over_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    attention = torch.einsum("bhjd,bhid->bhji", k, q).mul(SCALE).softmax(-2)
    return torch.einsum("bhji,bhjd->bhid", attention, v)


def _values_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    attention = ((q @ k.mT) * SCALE).softmax(-1)
    return (v.mT @ attention.mT).mT


def _exp_sum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    logits = (q @ k.mT) * SCALE
    powers = (logits - logits.amax(-1, keepdim=True)).exp()
    return (powers / powers.sum(-1, keepdim=True)) @ v


def _exp_sum_unsqueezed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    powers = torch.exp((q @ k.mT) * SCALE)
    return torch.matmul(powers / powers.sum(dim=-1).unsqueeze(-1), v)


def _log_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.log_softmax((q @ k.mT) * SCALE, dim=-1).exp() @ v


def _masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(q.shape[2], k.shape[2], dtype=torch.bool))


def _additive_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=q.new_zeros(1, 1, q.shape[2], k.shape[2]))


def _mul_sum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention that is not recognised: the product with the values is written as a sum."""
    attention = ((q @ k.mT) * SCALE).softmax(-1)
    return (attention[..., None] * v[:, :, None]).sum(-2)


def _normalised_after(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention that is not recognised: the values are summed before the normalisation."""
    powers = torch.exp((q @ k.mT) * SCALE)
    return (powers @ v) / powers.sum(-1, keepdim=True)


def same(t: Tensor) -> Tensor:
    return t


def swap(t: Tensor) -> Tensor:
    return t.transpose(1, 2)


SPELLINGS: dict[str, Spelling] = {
    "fused": F.scaled_dot_product_attention,
    "fused-scale": lambda q, k, v: F.scaled_dot_product_attention(q * 2, k, v, scale=SCALE / 2),
    "fused-mask": _masked,
    "fused-additive-mask": _additive_mask,
    "fused-merged": _merged_fused,
    "softmax-matmul": _softmax_matmul,
    "scaled-queries": _scaled_queries,
    "float-softmax": _float_softmax,
    "bmm": _bmm,
    "bmm-heads-first": _bmm_heads_first,
    "baddbmm": _baddbmm,
    "baddbmm-by-name": _baddbmm_by_name,
    "sink": _sink,
    "two-terms": _two_terms,
    "einsum": _einsum(("bhid,bhjd->bhij", "bhij,bhjd->bhid"), same, same),
    "einsum-spaces": _einsum(("b h i d, b h j d -> b h i j", "b h i j, b h j d -> b h i d"), same, same),
    "einsum-heads-last": _einsum(("bhid,bhjd->bhij", "bhij,bhjd->bihd"), same, swap),
    "einsum-tokens-first": _einsum(("bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd"), swap, swap),
    "einsum-mixed": _einsum(("bqhd,bkhd->bqhk", "bqhk,bkhd->bqhd"), swap, swap),
    "einsum-values-first": _einsum_values_first,
    "softmax-over-rows": _softmax_over_rows,
    "values-before": _values_before,
    "exp-sum": _exp_sum,
    "exp-sum-unsqueezed": _exp_sum_unsqueezed,
    "log-softmax": _log_softmax,
}
#: Spellings that no recogniser follows: the self-check must find that tokens are mixed by something unseen.
UNSEEN: dict[str, Spelling] = {"mul-sum": _mul_sum, "normalised-after": _normalised_after}
#: Orders of the tokens: how the rows (CLS, patches) are arranged before the first block.
ORDERS = ("raster", "cls-last", "columns", "shuffled", "suffix", "registers", "snake")


class OwnViT(nn.Module):
    """A ViT whose function does not depend on how attention is spelled and tokens are ordered.

    Args:
        spelling: A key of ``SPELLINGS`` or ``UNSEEN``, or one for each block.
        order: A key of ``ORDERS``.
        pool: "cls", "mean" of the patches, or "last" token.
        rows: Grid rows; columns are ``SIDE``.
        post_norm: Norms after the sums.
    """

    def __init__(
        self,
        spelling: str | tuple[str, ...] = "fused",
        order: str = "raster",
        pool: str = "cls",
        rows: int = SIDE,
        post_norm: bool = False,
        seed: int = 3,
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.cls = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.extra = nn.Parameter(torch.randn(1, 2, WIDTH))
        self.position = nn.Parameter(0.5 * torch.randn(1, rows * SIDE, WIDTH))
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(WIDTH), "qkv": nn.Linear(WIDTH, 3 * WIDTH), "proj": nn.Linear(WIDTH, WIDTH),
                    "norm2": nn.LayerNorm(WIDTH), "up": nn.Linear(WIDTH, 48), "down": nn.Linear(48, WIDTH),
                }
            )
            for _ in range(DEPTH)
        )  # fmt: skip
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 5)
        self.spelling = (spelling,) * DEPTH if isinstance(spelling, str) else spelling
        self.order, self.pool, self.post_norm = order, pool, post_norm
        with torch.no_grad():
            for block in self.blocks:
                block["qkv"].weight *= 3  # attention that is not uniform
        cells = torch.arange(rows * SIDE).view(rows, SIDE)
        flipped = cells.clone()
        flipped[1::2] = cells[1::2].flip(1)
        shuffled = torch.randperm(rows * SIDE, generator=torch.Generator().manual_seed(7))
        arranged = {"columns": cells.T.flatten(), "shuffled": shuffled, "snake": flipped.flatten()}
        self.register_buffer("arranged", arranged.get(order, cells.flatten()), persistent=False)

    def tokens(self, images: Tensor) -> Tensor:
        patches = self.embed(images).flatten(2).transpose(1, 2) + self.position
        patches = patches[:, self.arranged]
        cls, extra = self.cls.expand(len(images), -1, -1), self.extra.expand(len(images), -1, -1)
        if self.order == "suffix":
            return torch.cat([cls, patches, extra], 1)
        if self.order == "registers":
            return torch.cat([cls, extra, patches], 1)
        return torch.cat([patches, cls] if self.order == "cls-last" else [cls, patches], 1)

    def attend(self, index: int, x: Tensor) -> Tensor:
        block = self.blocks[index]
        b, n, _ = x.shape
        q, k, v = block["qkv"](x).view(b, n, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4)
        z = {**SPELLINGS, **UNSEEN}[self.spelling[index]](q, k, v)
        return block["proj"](z.transpose(1, 2).reshape(b, n, WIDTH))

    def encode(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            if self.post_norm:
                x = block["norm1"](x + self.attend(i, x))
                x = block["norm2"](x + block["down"](F.gelu(block["up"](x))))
            else:
                x = x + self.attend(i, block["norm1"](x))
                x = x + block["down"](F.gelu(block["up"](block["norm2"](x))))
        return self.norm(x)

    def read(self, x: Tensor) -> Tensor:
        if self.pool == "mean":
            start = {"cls-last": 0, "registers": 3}.get(self.order, 1)
            return x[:, start : start + len(self.arranged)].mean(1)
        return x[:, -1] if self.order == "cls-last" else x[:, 0]

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.read(self.encode(self.tokens(images))))


def twin(**options: Any) -> OwnViT:
    """A model with the weights of the reference ``OwnViT()``, in double precision."""
    reference = OwnViT(**{k: v for k, v in options.items() if k in ("pool", "rows", "post_norm", "seed")}).double()
    model = OwnViT(**options).double().eval()
    model.load_state_dict(reference.state_dict())
    return model
