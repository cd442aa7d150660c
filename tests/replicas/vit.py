"""A hand-written forward pass of a plain pre-norm vision transformer, from its ``state_dict``.

Nothing here calls the model: the weights are read by name and every layer is spelled out in float64, so that the
attention maps, queries and streams are ordinary nodes of one autograd graph.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from .record import BlockPass, Classes, Pass, gradients_at, grads, score_of, softmax_rows, target

__all__ = ["BlockPass", "Classes", "Pass", "gradients_at", "grads", "read_as_last", "run", "score_of", "target"]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Normalise the last axis by its mean and (biased) variance, then scale and shift."""
    mean = x.mean(dim=-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + eps) * weight + bias


def gelu(x: Tensor) -> Tensor:
    """Exact GELU: x times the standard normal distribution function."""
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


class Weights:
    """The weights of a model by name, in float64, with a record of those nobody asked for."""

    def __init__(self, model: nn.Module) -> None:
        self.model: Any = model
        self.values: dict[str, Tensor] = {name: value.detach().double() for name, value in model.state_dict().items()}
        self.unused = set(self.values)

    def get(self, name: str) -> Tensor:
        """The weight of that name."""
        self.unused.discard(name)
        return self.values[name]

    def optional(self, name: str) -> Tensor | None:
        """The weight of that name, or None where the model has none."""
        return self.get(name) if name in self.values else None

    def linear(self, x: Tensor, name: str) -> Tensor:
        """Apply the Linear layer of that name, with its bias if it has one."""
        bias = self.optional(f"{name}.bias")
        product = x @ self.get(f"{name}.weight").T
        return product if bias is None else product + bias

    def norm(self, x: Tensor, name: str) -> Tensor:
        """Apply the layer norm of that name; return x itself where the model has none there."""
        weight = self.optional(f"{name}.weight")
        if weight is None:
            return x
        return layer_norm(x, weight, self.get(f"{name}.bias"), self.model.get_submodule(name).eps)


def embed(weights: Weights, pixels: Tensor) -> tuple[Tensor, int, tuple[int, int]]:
    """Turn pixels into the tokens entering the first block.

    Args:
        weights: The model's weights.
        pixels: Images, shape b, channels, height, width.

    Returns:
        Tokens, shape b, n, d; the number of prefix tokens; rows and columns of the patch grid.
    """
    # Cut each patch out, flatten it, multiply by the flattened kernel.
    kernel = weights.get("patch_embed.proj.weight")
    bias = weights.optional("patch_embed.proj.bias")
    b, (d, _, ph, pw) = pixels.shape[0], kernel.shape
    gh, gw = pixels.shape[2] // ph, pixels.shape[3] // pw
    patches = []
    for row in range(gh):
        for column in range(gw):
            patch = pixels[:, :, row * ph : (row + 1) * ph, column * pw : (column + 1) * pw].reshape(b, -1)
            patches.append(patch @ kernel.reshape(d, -1).T)
    x = torch.stack(patches, dim=1)
    if bias is not None:
        x = x + bias

    # Prefix tokens, in timm's order (no model there has both a distillation token and registers).
    present = [weights.optional(name) for name in ("cls_token", "dist_token", "reg_token")]
    prefix = [token.expand(b, -1, -1) for token in present if token is not None]
    position = weights.optional("pos_embed")
    if position is not None and position.shape[1] == gh * gw:
        # Position only for patches: prefix tokens are put in front afterwards, without one.
        x = torch.cat([*prefix, x + position], dim=1)
    else:
        x = torch.cat([*prefix, x], dim=1)
        if position is not None:
            x = x + position
    return weights.norm(x, "norm_pre"), x.shape[1] - gh * gw, (gh, gw)


def run_block(weights: Weights, i: int, x: Tensor, cut: bool = False, attention: Tensor | None = None) -> BlockPass:
    """Run block i on the residual stream x; the stream after it is X_mid + F of the record.

    Args:
        weights: The model's weights.
        i: Which block.
        x: Stream entering it, shape b, n, d.
        cut: Whether no gradient passes from the attention module back into its first layer norm.
        attention: Attention to put in the place of the softmax, shape b, H, n, n.
    """
    name = f"blocks.{i}"
    d = x.shape[-1]
    H = weights.model.blocks[0].attn.num_heads
    dh = d // H
    heads = [slice(h * dh, (h + 1) * dh) for h in range(H)]
    zeros = torch.zeros(d, dtype=torch.float64)

    ln1 = weights.norm(x, f"{name}.norm1")
    if cut:
        ln1 = ln1.detach().requires_grad_(True)
    Wq, Wk, Wv = (part.T for part in weights.get(f"{name}.attn.qkv.weight").chunk(3, dim=0))
    qkv_bias = weights.optional(f"{name}.attn.qkv.bias")
    bq, bk, bv = (zeros, zeros, zeros) if qkv_bias is None else qkv_bias.chunk(3)
    Q = torch.stack([ln1 @ Wq[:, s] + bq[s] for s in heads], dim=1)
    K = torch.stack([ln1 @ Wk[:, s] + bk[s] for s in heads], dim=1)
    V = torch.stack([ln1 @ Wv[:, s] + bv[s] for s in heads], dim=1)
    scaled = Q @ K.transpose(-1, -2) / math.sqrt(dh)
    A = softmax_rows(scaled) if attention is None else attention
    Z = A @ V
    Wo = weights.get(f"{name}.attn.proj.weight").T
    proj_bias = weights.optional(f"{name}.attn.proj.bias")
    bo = zeros if proj_bias is None else proj_bias
    branch = bo.expand_as(x)
    for h, s in enumerate(heads):
        branch = branch + Z[:, h] @ Wo[s]
    gamma1 = weights.optional(f"{name}.ls1.gamma")
    x_mid = x + (branch if gamma1 is None else branch * gamma1)

    ln2 = weights.norm(x_mid, f"{name}.norm2")
    f_raw = weights.linear(gelu(weights.linear(ln2, f"{name}.mlp.fc1")), f"{name}.mlp.fc2")
    gamma2 = weights.optional(f"{name}.ls2.gamma")
    f = f_raw if gamma2 is None else f_raw * gamma2
    return BlockPass(x, ln1, Q, K, V, scaled, A, Z, x_mid, ln2, f_raw, f, Wv, bv, Wo, bo, gamma1, gamma2)


def read_out(weights: Weights, x: Tensor, prefix: int) -> tuple[Tensor, Tensor]:
    """Classify the final tokens.

    Args:
        weights: The model's weights.
        x: Stream leaving the last block, shape b, n, d.
        prefix: Number of tokens in front of the patches.

    Returns:
        Logits, shape b, classes, and the weights with which the tokens were read, shape n.
    """
    r = torch.zeros(x.shape[1], dtype=torch.float64)
    x = weights.norm(x, "norm")
    if "head_dist.weight" in weights.values:
        r[0] = r[1] = 0.5
        return (weights.linear(x[:, 0], "head") + weights.linear(x[:, 1], "head_dist")) / 2, r
    pooling = weights.model.global_pool
    if pooling == "token":
        r[0] = 1.0
    elif pooling == "avg" and not weights.model.pool_include_prefix:
        r[prefix:] = 1.0 / (x.shape[1] - prefix)
    else:
        raise ValueError(f"pooling {pooling!r} is not written out here")
    pooled = torch.einsum("n,bnd->bd", r, x)
    return weights.linear(weights.norm(pooled, "fc_norm"), "head"), r


def read_as_last(pass_: Pass, x: Tensor) -> Tensor:
    """Logits, shape b, classes, that the model's tail gives for tokens x, shape b, n, d, in place of the last block's.

    The tail is the final norm, the pooling and the head (or the mean of the two heads of a distilled model).
    """
    return read_out(Weights(pass_.model), x, pass_.prefix)[0]


def run(
    model: nn.Module,
    images: Tensor,
    score: str = "logit",
    cut: bool = False,
    attention: dict[int, Tensor] | None = None,
) -> Pass:
    """Run a timm-style plain ViT by hand, in float64.

    Args:
        model: The model. Its ``state_dict`` gives the weights; only the head count, the layer-norm eps and the kind
            of pooling, which are not in it, are read from the modules.
        images: Pixels, shape b, channels, height, width.
        score: Default score of ``grads`` for this pass: "logit", "prob" or "logprob".
        cut: Whether the output of every norm1 is detached, so that gradients flow only through skips and MLPs.
        attention: For some blocks, by index from 0, attention that takes the place of the softmax.

    Raises:
        ValueError: If the model has weights this forward does not use, or pools in a way it does not know.
    """
    weights = Weights(model)
    # Gradients need a graph: the weights are constants here, so the pixels carry it.
    pixels = images.detach().double().requires_grad_(True)
    x, prefix, grid = embed(weights, pixels)
    blocks = []
    for i in range(len(weights.model.blocks)):
        blocks.append(run_block(weights, i, x, cut, (attention or {}).get(i)))
        x = blocks[-1].X_mid + blocks[-1].F
    logits, r = read_out(weights, x, prefix)
    if weights.unused:
        raise ValueError(f"weights this forward does not use: {sorted(weights.unused)}")
    return Pass(blocks, x, logits, prefix, grid, r, score, model, pixels)
