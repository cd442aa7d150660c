"""Relevance as input times a changed gradient (conservative LRP, AttnLRP), and the absolute-magnitude rules (absLRP).

No autograd: every backward step is written out, one image at a time, and the changes are made in the step itself.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .lrp import Inner, join, look_inside, paste, pooled_vectors, split, spread_over_patches, start_of
from .vit import Classes, Pass, Weights

TINY = 1e-9
TINY_GELU = 1e-10
TINY_SUM = 1e-6
TINY_INPUT = 1e-10


@dataclass(frozen=True)
class Changes:
    """How the backward pass departs from the gradient; the std of every layer norm is a constant in all of them.

    Attributes:
        attention: "constant" lets nothing through the attention maps; "shared" halves the gradient of values and
            quarters that of queries and keys.
        gelu: "plain" derivative, or "identity": output over input.
        gamma_linear: Extra weight of positive parts in linear layers; 0 is the plain gradient.
        gamma_conv: The same for the patch embedding.
        generalised: Whether products of the output's sign count more, instead of positive weights.
        packed: Whether the linear layers of attention keep their gradient, as inside ``nn.MultiheadAttention``.
    """

    attention: str
    gelu: str
    gamma_linear: float
    gamma_conv: float
    generalised: bool = False
    packed: bool = False


def away_from_zero(x: Tensor, step: float = TINY) -> Tensor:
    """Move each entry by a step away from zero; zero itself moves up."""
    return torch.where(x >= 0, x + step, x - step)


def back_linear(x: Tensor, W: Tensor, b: Tensor | None, dy: Tensor, gamma: float) -> Tensor:
    """Back through a linear layer by the gamma rule, in gradient form.

    Args:
        x: Inputs, shape rows, i.
        W: Weight as torch stores it, shape o, i.
        b: Bias, shape o, or None.
        dy: Gradient at the outputs, shape rows, o.
        gamma: Extra weight of positive parts.

    Returns:
        Gradient at the inputs, shape rows, i.
    """
    if gamma == 0:
        return dy @ W
    bias = torch.zeros(W.shape[0], dtype=torch.float64) if b is None else b
    y = x @ W.T + bias
    W_gamma = W + gamma * W.clamp(min=0)
    z = x @ W_gamma.T + bias + gamma * bias.clamp(min=0)
    relevance = x * ((dy * y / away_from_zero(z)) @ W_gamma)
    return relevance / away_from_zero(x)


def back_generalised(x: Tensor, W: Tensor, b: Tensor | None, dy: Tensor, gamma: float) -> Tensor:
    """Back through a linear layer by the generalised gamma rule, product by product.

    Args:
        x: Inputs, shape rows, i.
        W: Weight as torch stores it, shape o, i.
        b: Bias, shape o, or None.
        dy: Gradient at the outputs, shape rows, o.
        gamma: How much more products count whose sign is the output's.

    Returns:
        Gradient at the inputs, shape rows, i.
    """
    bias = torch.zeros(W.shape[0], dtype=torch.float64) if b is None else b
    rows = []
    for row in range(x.shape[0]):
        # One column a term of the sum, the bias last.
        terms = torch.cat([W * x[row], bias[:, None]], dim=1)  # shape o, i + 1
        y = terms.sum(dim=1)
        terms = terms * (1 + gamma * (terms.sign() == y.sign()[:, None]).double())
        share = terms[:, :-1] / away_from_zero(terms.sum(dim=1), TINY_SUM)[:, None]
        rows.append((dy[row] * y) @ share / away_from_zero(x[row], TINY_INPUT))
    return torch.stack(rows)


def back_norm(x: Tensor, weights: Weights, name: str, dy: Tensor) -> Tensor:
    """Back through the layer norm of that name with its std held fixed; the mean is still differentiated.

    Args:
        x: Inputs, shape ..., d.
        weights: The model's weights.
        name: Name of the norm; where the model has none, dy is passed on.
        dy: Gradient at the outputs, shape ..., d.
    """
    scale = weights.optional(f"{name}.weight")
    if scale is None:
        return dy
    through = dy * scale / std_of(x, weights, name)
    return through - through.mean(dim=-1, keepdim=True)


def std_of(x: Tensor, weights: Weights, name: str) -> Tensor:
    """What the layer norm of that name divides x, shape ..., d, by; shape ..., 1."""
    eps = weights.model.get_submodule(name).eps
    return torch.sqrt(x.var(dim=-1, unbiased=False, keepdim=True) + eps)


def gelu_factor(x: Tensor, y: Tensor, kind: str) -> Tensor:
    """What the gradient is multiplied by at the activation, for inputs x and outputs y of one shape."""
    if kind == "identity":
        return y / (x + TINY_GELU)
    if kind == "plain":
        density = torch.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
        return 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density
    raise ValueError(f"unknown gelu {kind!r}")


def back_attention(inner: Inner, dZ: Tensor, kind: str) -> Tensor:
    """Back from the heads' outputs, shape H, n, dh, to queries, keys and values side by side, shape n, 3 d."""
    dV = inner.A.transpose(-1, -2) @ dZ
    if kind == "constant":
        nothing = torch.zeros_like(dV)
        return torch.cat([join(nothing), join(nothing), join(dV)], dim=-1)
    if kind != "shared":
        raise ValueError(f"unknown attention {kind!r}")
    dA = dZ @ inner.V.transpose(-1, -2)
    dO = inner.A * (dA - (dA * inner.A).sum(dim=-1, keepdim=True))
    scaled = dO / math.sqrt(inner.Q.shape[-1])
    dQ = scaled @ inner.K
    dK = scaled.transpose(-1, -2) @ inner.Q
    return torch.cat([join(dQ / 4), join(dK / 4), join(dV / 2)], dim=-1)


def back_head(pass_: Pass, weights: Weights, image: int, c: int, changes: Changes) -> Tensor:
    """Gradient of the logit of class c at the stream leaving the last block, shape n, d."""
    x, mean = pooled_vectors(pass_, weights, image)
    one = torch.zeros(1, pass_.logits.shape[1], dtype=torch.float64)
    one[0, c] = 1.0

    def linear(vector: Tensor, name: str, dy: Tensor) -> Tensor:
        W, b = weights.get(f"{name}.weight"), weights.optional(f"{name}.bias")
        back = back_generalised if changes.generalised else back_linear
        return back(vector[None], W, b, dy, changes.gamma_linear)[0]

    dx = torch.zeros_like(x)
    if "head_dist.weight" in weights.values:
        dx[0] = linear(x[0], "head", one / 2)
        dx[1] = linear(x[1], "head_dist", one / 2)
    elif pass_.r[0] == 1:
        dx[0] = linear(x[0], "head", one)
    else:
        d_mean = back_norm(mean, weights, "fc_norm", linear(weights.norm(mean, "fc_norm"), "head", one))
        dx[pass_.prefix :] = d_mean / (x.shape[0] - pass_.prefix)
    return back_norm(pass_.X_last[image].detach(), weights, "norm", dx)


def back_block(pass_: Pass, weights: Weights, i: int, image: int, dx: Tensor, changes: Changes) -> Tensor:
    """Back through block i: from the gradient at the stream leaving it to that entering it, both of shape n, d."""
    inner, block, name = look_inside(pass_, weights, i, image), pass_.blocks[i], f"blocks.{i}"

    def linear(x: Tensor, layer: str, dy: Tensor) -> Tensor:
        W, b = weights.get(f"{name}.{layer}.weight"), weights.optional(f"{name}.{layer}.bias")
        if changes.packed and layer.startswith("attn"):
            return back_linear(x, W, b, dy, 0.0)
        return (back_generalised if changes.generalised else back_linear)(x, W, b, dy, changes.gamma_linear)

    d = dx if block.gamma2 is None else dx * block.gamma2
    d = linear(inner.after, "mlp.fc2", d) * gelu_factor(inner.before, inner.after, changes.gelu)
    d = linear(inner.LN2, "mlp.fc1", d)
    dx = dx + back_norm(inner.X_mid, weights, f"{name}.norm2", d)

    d = dx if block.gamma1 is None else dx * block.gamma1
    dZ = split(linear(inner.joined, "attn.proj", d), inner.A.shape[0])
    d = linear(inner.LN1, "attn.qkv", back_attention(inner, dZ, changes.attention))
    return dx + back_norm(inner.X, weights, f"{name}.norm1", d)


def times_input(pass_: Pass, classes: Classes, where: str, changes: Changes) -> Tensor:
    """Input times changed gradient.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        where: "tokens" entering the first block, summed over the width and prefix tokens dropped, or "pixels", summed
            over channels.
        changes: The changes to the gradient.

    Returns:
        Signed relevance, shape b, S or b, height, width.
    """
    weights = Weights(pass_.model)
    maps = []
    for image, c in enumerate(classes):
        d = back_head(pass_, weights, image, int(c), changes)
        for i in reversed(range(len(pass_.blocks))):
            d = back_block(pass_, weights, i, image, d, changes)
        if where == "tokens":
            maps.append((pass_.blocks[0].X[image].detach() * d).sum(dim=-1)[pass_.prefix :])
        elif where == "pixels":
            start = start_of(pass_, weights, image)
            d = back_norm(start.stream, weights, "norm_pre", d)[pass_.prefix :]
            back = back_generalised if changes.generalised else back_linear
            d = back(start.rows, start.W, start.b, d, changes.gamma_conv)
            maps.append(paste(start.rows * d, pass_).sum(dim=0))
        else:
            raise ValueError(f"unknown place {where!r}")
    return torch.stack(maps)


def conservative_lrp(pass_: Pass, classes: Classes, gelu: str = "plain", where: str = "tokens") -> Tensor:
    """Input times gradient with attention maps and the std of layer norms held fixed.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        gelu: "plain" derivative, or "identity": output over input.
        where: "tokens" or "pixels".

    Returns:
        Signed relevance, shape b, S or b, height, width.
    """
    return times_input(pass_, classes, where, Changes("constant", gelu, 0.0, 0.0))


def attnlrp(
    pass_: Pass, classes: Classes, gamma_conv: float = 0.25, gamma_linear: float = 0.05, where: str = "pixels"
) -> Tensor:
    """Input times gradient with relevance shared evenly between the factors of attention, and the gamma rule.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        gamma_conv: Gamma of the patch embedding.
        gamma_linear: Gamma of all linear layers, the head included.
        where: "tokens" or "pixels".

    Returns:
        Signed relevance, shape b, S or b, height, width.
    """
    return times_input(pass_, classes, where, Changes("shared", "identity", gamma_linear, gamma_conv))


def attnlrp_released(
    pass_: Pass, classes: Classes, where: str = "pixels", attention: str = "constant", packed: bool = False
) -> Tensor:
    """AttnLRP as its authors released it for vision: attention held fixed, and the generalised gamma rule.

    Takes what ``times_input`` and ``Changes`` take, and gives signed relevance, shape b, S or b, height, width.
    """
    return times_input(pass_, classes, where, Changes(attention, "identity", 0.05, 0.25, True, packed))


def unit(R: Tensor) -> Tensor:
    """Divide by the sum of absolute values; zeros stay zeros."""
    size = R.abs().sum()
    return R / size if size > 0 else R


def abs_linear(x: Tensor, W: Tensor, y: Tensor, R: Tensor) -> Tensor:
    """Share each output's relevance by the positive products, over the size of the output with its bias.

    Args:
        x: Inputs, shape rows, i.
        W: Weight as torch stores it, shape o, i.
        y: Outputs, shape rows, o.
        R: Their relevance, shape rows, o.

    Returns:
        Relevance of the inputs, shape rows, i, of absolute total 1.
    """
    rows = []
    for row in range(x.shape[0]):
        products = (x[row] * W).clamp(min=0)  # shape o, i
        rows.append((R[row] / (y[row].abs() + TINY)) @ products)
    return unit(torch.stack(rows))


def abs_add(u: Tensor, v: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    """Both sides of a sum get their positive part's share, each made to have absolute total 1."""
    S = R / ((u + v).abs() + TINY)
    return unit(u.clamp(min=0) * S), unit(v.clamp(min=0) * S)


def abs_norm(x: Tensor, weights: Weights, name: str, R: Tensor) -> Tensor:
    """Layer norm with mean and std held fixed, shapes n, d; where the model has none, R is passed on."""
    scale = weights.optional(f"{name}.weight")
    if scale is None:
        return R
    y = weights.norm(x, name)
    return unit((x * scale / std_of(x, weights, name)).clamp(min=0) / (y.abs() + TINY) * R)


def abs_product(left: Tensor, right: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    """Matrix product left @ right in each head.

    Args:
        left: Shape H, m, k.
        right: Shape H, k, o.
        R: Relevance of the product, shape H, m, o.

    Returns:
        Relevance of left and of right in their shapes, each of absolute total 1 over all heads.
    """
    S = R / ((left @ right).abs() + TINY)
    R_left, R_right = [], []
    for h in range(left.shape[0]):
        terms = (left[h][:, :, None] * right[h][None, :, :]).clamp(min=0) * S[h][:, None, :]  # shape m, k, o
        R_left.append(terms.sum(dim=2))
        R_right.append(terms.sum(dim=0))
    return unit(torch.stack(R_left)), unit(torch.stack(R_right))


def abs_head(pass_: Pass, weights: Weights, image: int, R: Tensor) -> Tensor:
    """From relevance of the classes, shape classes, to that of the stream leaving the last block, shape n, d."""
    x, mean = pooled_vectors(pass_, weights, image)

    def linear(vector: Tensor, name: str) -> Tensor:
        return abs_linear(vector[None], weights.get(f"{name}.weight"), weights.linear(vector[None], name), R[None])[0]

    tokens = torch.zeros_like(x)
    if "head_dist.weight" in weights.values:
        # Halves would make no difference: each head's relevance is brought to absolute total 1.
        tokens[0] = linear(x[0], "head")
        tokens[1] = linear(x[1], "head_dist")
    elif pass_.r[0] == 1:
        tokens[0] = linear(x[0], "head")
    else:
        R_mean = abs_norm(mean, weights, "fc_norm", linear(weights.norm(mean, "fc_norm"), "head"))
        tokens = unit(spread_over_patches(x, R_mean, pass_.prefix))
    return abs_norm(pass_.X_last[image].detach(), weights, "norm", tokens)


def abs_block(inner: Inner, weights: Weights, i: int, R: Tensor) -> Tensor:
    """From relevance of the stream leaving block i to that of the stream entering it, both of shape n, d."""
    name = f"blocks.{i}"
    skip, branch = abs_add(inner.X_mid, inner.F, R)
    branch = abs_linear(inner.after, weights.get(f"{name}.mlp.fc2.weight"), inner.F_raw, branch)
    branch = abs_linear(inner.LN2, weights.get(f"{name}.mlp.fc1.weight"), inner.before, branch)
    R = skip + abs_norm(inner.X_mid, weights, f"{name}.norm2", branch)

    skip, branch = abs_add(inner.X, inner.added, R)
    branch = abs_linear(inner.joined, weights.get(f"{name}.attn.proj.weight"), inner.branch, branch)
    R_A, R_V = abs_product(inner.A, inner.V, split(branch, inner.A.shape[0]))
    R_Q, R_KT = abs_product(inner.Q, inner.K.transpose(-1, -2), R_A)
    parts = torch.cat([join(R_Q), join(R_KT.transpose(-1, -2)), join(R_V)], dim=-1)
    outputs = torch.cat([join(inner.Q), join(inner.K), join(inner.V)], dim=-1)
    branch = abs_linear(inner.LN1, weights.get(f"{name}.attn.qkv.weight"), outputs, parts)
    return skip + abs_norm(inner.X, weights, f"{name}.norm1", branch)


def abs_pass(pass_: Pass, weights: Weights, image: int, R: Tensor) -> Tensor:
    """From relevance of the classes, shape classes, to that of the pixels, shape channels, height, width."""
    R = abs_head(pass_, weights, image, R)
    for i in reversed(range(len(pass_.blocks))):
        R = abs_block(look_inside(pass_, weights, i, image), weights, i, R)
    start = start_of(pass_, weights, image)
    S = start.rows.shape[0]
    R = abs_norm(start.stream, weights, "norm_pre", R)
    if start.tokens.shape[0] == S:
        R = R[pass_.prefix :]
    if start.position is not None:
        R, _ = abs_add(start.tokens, start.position, R)
    return paste(abs_linear(start.rows, start.W, start.rows @ start.W.T + start.b, R[-S:]), pass_)


def abslrp(pass_: Pass, classes: Classes) -> Tensor:
    """Relevance of the class minus relevance of all other classes evenly, by the absolute-magnitude rules.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.

    Returns:
        Signed pixel relevance, summed over channels, shape b, height, width.
    """
    weights = Weights(pass_.model)
    count = pass_.logits.shape[1]
    maps = []
    for image, c in enumerate(classes):
        one = torch.zeros(count, dtype=torch.float64)
        one[int(c)] = 1.0
        others = (1 - one) / (count - 1)
        difference = abs_pass(pass_, weights, image, one) - abs_pass(pass_, weights, image, others)
        maps.append(difference.sum(dim=0))
    return torch.stack(maps)
