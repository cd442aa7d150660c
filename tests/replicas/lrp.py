"""Layer-wise relevance propagation through a plain ViT, op by op, and the three maps read from it.

Two sets of rules, which differ only in linear layers and sums of two tensors. "ours" keeps the total of the relevance
at every step; "orig" doubles it at every linear layer and lets it grow at sums. Everything runs on one image at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .vit import Classes, Pass, Weights, gelu, grads

TINY = 1e-9


def safe(a: Tensor, b: Tensor) -> Tensor:
    """Quotient a / (b + 1e-9), and 0 wherever b is exactly 0."""
    return torch.where(b != 0, a / (b + TINY), torch.zeros((), dtype=torch.float64))


@dataclass
class Inner:
    """All values inside one block for one image (n tokens, width d, H heads of width dh, MLP width m).

    Attributes:
        X: Stream entering the block, shape n, d.
        LN1: Its layer norm, shape n, d.
        Q: Queries, shape H, n, dh; K and V likewise.
        A: Attention, shape H, n, n.
        Z: Output of each head, shape H, n, dh.
        joined: The heads' outputs side by side, shape n, d.
        branch: Attention branch after the output projection, shape n, d.
        added: The same as it is added to the stream, after LayerScale where there is one, shape n, d.
        X_mid: Stream between attention and MLP, shape n, d.
        LN2: Its layer norm, shape n, d.
        before: MLP values before the activation, shape n, m.
        after: MLP values after the activation, shape n, m.
        F_raw: MLP output before LayerScale, shape n, d.
        F: MLP output as it is added, shape n, d.
    """

    X: Tensor
    LN1: Tensor
    Q: Tensor
    K: Tensor
    V: Tensor
    A: Tensor
    Z: Tensor
    joined: Tensor
    branch: Tensor
    added: Tensor
    X_mid: Tensor
    LN2: Tensor
    before: Tensor
    after: Tensor
    F_raw: Tensor
    F: Tensor


def join(heads: Tensor) -> Tensor:
    """Put heads, shape H, n, dh, side by side, shape n, d."""
    return torch.cat([heads[h] for h in range(heads.shape[0])], dim=-1)


def split(joined: Tensor, H: int) -> Tensor:
    """Cut side-by-side heads, shape n, d, apart again, shape H, n, dh."""
    dh = joined.shape[-1] // H
    return torch.stack([joined[:, h * dh : (h + 1) * dh] for h in range(H)])


def look_inside(pass_: Pass, weights: Weights, i: int, image: int) -> Inner:
    """Values of block i for one image: what the pass recorded, and what lies between, worked out again."""
    block = pass_.blocks[i]
    X, LN1, Q, K, V, A, Z, X_mid, LN2, F_raw, F = (
        value[image].detach()
        for value in (
            block.X, block.LN1, block.Q, block.K, block.V, block.A, block.Z,
            block.X_mid, block.LN2, block.F_raw, block.F,
        )
    )  # fmt: skip
    joined = join(Z)
    branch = weights.linear(joined, f"blocks.{i}.attn.proj")
    added = branch if block.gamma1 is None else branch * block.gamma1
    before = weights.linear(LN2, f"blocks.{i}.mlp.fc1")
    return Inner(X, LN1, Q, K, V, A, Z, joined, branch, added, X_mid, LN2, before, gelu(before), F_raw, F)


@dataclass
class Start:
    """The beginning of the model for one image (S patches of k numbers, width d).

    Attributes:
        rows: The pixels of each patch in one row, channel by channel, shape S, k.
        W: The patch embedding's kernel as a matrix, shape d, k.
        b: Its bias, shape d (zeros where there is none).
        tokens: What the position embedding is added to: all tokens, shape n, d, or the patches only, shape S, d.
        position: What is added, same shape, or None.
        stream: All tokens before the norm in front of the blocks, shape n, d.
    """

    rows: Tensor
    W: Tensor
    b: Tensor
    tokens: Tensor
    position: Tensor | None
    stream: Tensor


def start_of(pass_: Pass, weights: Weights, image: int) -> Start:
    """Work out the embedding of one image again, step by step."""
    kernel = weights.get("patch_embed.proj.weight")
    d, _, ph, pw = kernel.shape
    gh, gw = pass_.grid
    pixels = pass_.images[image].detach()
    rows = []
    for i in range(gh * gw):
        row, column = divmod(i, gw)
        rows.append(pixels[:, row * ph : (row + 1) * ph, column * pw : (column + 1) * pw].reshape(-1))
    cut, W = torch.stack(rows), kernel.reshape(d, -1)
    bias = weights.optional("patch_embed.proj.bias")
    b = torch.zeros(d, dtype=torch.float64) if bias is None else bias
    patches = cut @ W.T + b
    present = [weights.optional(name) for name in ("cls_token", "dist_token", "reg_token")]
    prefix = [token[0] for token in present if token is not None]
    position = weights.optional("pos_embed")
    if position is not None and position.shape[1] == gh * gw:
        return Start(cut, W, b, patches, position[0], torch.cat([*prefix, patches + position[0]]))
    tokens = torch.cat([*prefix, patches])
    if position is None:
        return Start(cut, W, b, tokens, None, tokens)
    return Start(cut, W, b, tokens, position[0], tokens + position[0])


def paste(rows: Tensor, pass_: Pass) -> Tensor:
    """Put rows of patch pixels, shape S, k, back in their places in an image, shape channels, height, width."""
    _, channels, height, width = pass_.images.shape
    gh, gw = pass_.grid
    ph, pw = height // gh, width // gw
    image = torch.zeros(channels, height, width, dtype=torch.float64)
    for i in range(gh * gw):
        row, column = divmod(i, gw)
        patch = rows[i].reshape(channels, ph, pw)
        image[:, row * ph : (row + 1) * ph, column * pw : (column + 1) * pw] = patch
    return image


def linear_ours(x: Tensor, W: Tensor, R: Tensor) -> Tensor:
    """Linear layer: share each output's relevance among the products that are not negative.

    Args:
        x: Inputs, shape rows, i.
        W: Weight as torch stores it, shape o, i.
        R: Relevance of the outputs, shape rows, o.

    Returns:
        Relevance of the inputs, shape rows, i. Its total is that of R.
    """
    x_plus, x_minus, W_plus, W_minus = x.clamp(min=0), x.clamp(max=0), W.clamp(min=0), W.clamp(max=0)
    S = safe(R, x_plus @ W_plus.T + x_minus @ W_minus.T)
    return x_plus * (S @ W_plus) + x_minus * (S @ W_minus)


def linear_orig(x: Tensor, W: Tensor, R: Tensor) -> Tensor:
    """Linear layer: positive inputs and negative inputs each share all of the relevance, so that its total doubles.

    Arguments and result have the shapes of ``linear_ours``.
    """
    x_plus, x_minus, W_plus, W_minus = x.clamp(min=0), x.clamp(max=0), W.clamp(min=0), W.clamp(max=0)
    from_plus = x_plus * (safe(R, x_plus @ W_plus.T) @ W_plus)
    from_minus = x_minus * (safe(R, x_minus @ W_minus.T) @ W_minus)
    return from_plus + from_minus


def add_orig(u: Tensor, v: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    """Sum u + v, entry by entry in proportion to the summands; all tensors have one shape."""
    S = safe(R, u + v)
    return u * S, v * S


def add_ours(u: Tensor, v: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    """As ``add_orig``, then both sides are rescaled to split the total in the ratio of their absolute totals."""
    a, b = add_orig(u, v, R)
    size_a, size_b = a.sum().abs(), b.sum().abs()
    share_a = safe(size_a, size_a + size_b) * R.sum()
    share_b = safe(size_b, size_a + size_b) * R.sum()
    return a * safe(share_a, a.sum()), b * safe(share_b, b.sum())


def product(left: Tensor, right: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    """Matrix product left @ right in each head: one half of the relevance to either factor.

    Args:
        left: Shape H, m, k.
        right: Shape H, k, o.
        R: Relevance of the product, shape H, m, o.

    Returns:
        Relevance of left and of right, in their shapes.
    """
    S = safe(R, left @ right)
    return left * (S @ right.transpose(-1, -2)) / 2, right * (left.transpose(-1, -2) @ S) / 2


def bounded_pixels(rows: Tensor, W: Tensor, R: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The rule for inputs between two bounds (z^B), for patches as rows.

    Args:
        rows: Pixels of each patch, shape S, k.
        W: Patch embedding, shape d, k.
        R: Relevance of the embedded patches, shape S, d.
        low: Smallest number in the image, a scalar; high the largest.

    Returns:
        Relevance of the pixels, shape S, k.
    """
    W_plus, W_minus = W.clamp(min=0), W.clamp(max=0)
    bottom, top = low.expand_as(rows), high.expand_as(rows)
    S = R / (rows @ W.T - bottom @ W_plus.T - top @ W_minus.T + TINY)
    return rows * (S @ W) - bottom * (S @ W_plus) - top * (S @ W_minus)


Linear = Callable[[Tensor, Tensor, Tensor], Tensor]
Add = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
RULES: dict[str, tuple[Linear, Add]] = {"ours": (linear_ours, add_ours), "orig": (linear_orig, add_orig)}


@dataclass
class Relevance:
    """What one propagation found.

    Attributes:
        A: Relevance of the attention maps, one entry per block, each of shape b, H, n, n.
        X_0: Relevance of the tokens entering the first block, shape b, n, d.
        pixels: Relevance of the pixels, shape b, channels, height, width.
    """

    A: list[Tensor]
    X_0: Tensor
    pixels: Tensor


def pooled_vectors(pass_: Pass, weights: Weights, image: int) -> tuple[Tensor, Tensor]:
    """Tokens after the final norm, shape n, d, and their mean over the patches (unused by token heads), shape d."""
    x = weights.norm(pass_.X_last[image].detach(), "norm")
    return x, x[pass_.prefix :].mean(dim=0)


def spread_over_patches(x: Tensor, R: Tensor, prefix: int) -> Tensor:
    """Mean over patches: share each channel's relevance, shape d, by positive parts of x, shape n, d."""
    positive = x.clamp(min=0)
    positive[:prefix] = 0.0
    return safe(positive, positive.sum(dim=0).expand_as(positive)) * R


def head(pass_: Pass, weights: Weights, image: int, c: int, linear: Linear) -> Tensor:
    """Relevance of the tokens after the final norm, shape n, d, when class c has relevance 1."""
    x, mean = pooled_vectors(pass_, weights, image)
    one = torch.zeros(1, pass_.logits.shape[1], dtype=torch.float64)
    one[0, c] = 1.0
    R = torch.zeros_like(x)
    if "head_dist.weight" in weights.values:
        for token, name in ((0, "head"), (1, "head_dist")):
            R[token] = linear(x[token : token + 1], weights.get(f"{name}.weight"), one / 2)[0]
    elif pass_.r[0] == 1:
        R[0] = linear(x[:1], weights.get("head.weight"), one)[0]
    else:
        # A norm between pooling and head passes relevance as it is, but the head's input is what comes after it.
        inputs = weights.norm(mean, "fc_norm")[None]
        R = spread_over_patches(x, linear(inputs, weights.get("head.weight"), one)[0], pass_.prefix)
    return R


def block(inner: Inner, weights: Weights, i: int, R: Tensor, linear: Linear, add: Add) -> tuple[Tensor, Tensor]:
    """Take relevance back through block i.

    Norms, activation, softmax, scale and LayerScale pass it on unchanged.

    Args:
        inner: The values inside the block.
        weights: The model's weights.
        i: Number of the block.
        R: Relevance of the stream leaving the block, shape n, d.
        linear: Rule of linear layers.
        add: Rule of residual sums.

    Returns:
        Relevance of the stream entering it, shape n, d, and of its attention, shape H, n, n.
    """
    H = inner.A.shape[0]
    skip, branch = add(inner.X_mid, inner.F, R)
    branch = linear(inner.after, weights.get(f"blocks.{i}.mlp.fc2.weight"), branch)
    branch = linear(inner.LN2, weights.get(f"blocks.{i}.mlp.fc1.weight"), branch)
    R = skip + branch

    skip, branch = add(inner.X, inner.added, R)
    branch = linear(inner.joined, weights.get(f"blocks.{i}.attn.proj.weight"), branch)
    R_A, R_V = product(inner.A, inner.V, split(branch, H))
    R_Q, R_KT = product(inner.Q, inner.K.transpose(-1, -2), R_A)
    parts = torch.cat([join(R_Q), join(R_KT.transpose(-1, -2)), join(R_V)], dim=-1)
    branch = linear(inner.LN1, weights.get(f"blocks.{i}.attn.qkv.weight"), parts)
    return skip + branch, R_A


def image_pixels(pass_: Pass, weights: Weights, image: int, R: Tensor, add: Add) -> Tensor:
    """From relevance of the tokens entering block 0, shape n, d, to that of pixels, shape channels, height, width."""
    start = start_of(pass_, weights, image)
    S = start.rows.shape[0]
    if start.tokens.shape[0] == S:
        # Position is added to the patches alone, or there is no prefix at all.
        R = R[pass_.prefix :]
    if start.position is not None:
        R, _ = add(start.tokens, start.position, R)
    pixels = pass_.images[image].detach()
    return paste(bounded_pixels(start.rows, start.W, R[-S:], pixels.min(), pixels.max()), pass_)


def propagate(pass_: Pass, classes: Classes, rules: str) -> Relevance:
    """Propagate relevance 1 of one class per image down to the pixels.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        rules: "ours" or "orig".
    """
    linear, add = RULES[rules]
    weights = Weights(pass_.model)
    B = len(pass_.blocks)
    attention: list[list[Tensor]] = [[] for _ in range(B)]
    tokens, pixels = [], []
    for image, c in enumerate(classes):
        R = head(pass_, weights, image, int(c), linear)
        for i in reversed(range(B)):
            R, R_A = block(look_inside(pass_, weights, i, image), weights, i, R, linear, add)
            attention[i].append(R_A)
        tokens.append(R)
        pixels.append(image_pixels(pass_, weights, image, R, add))
    return Relevance([torch.stack(maps) for maps in attention], torch.stack(tokens), torch.stack(pixels))


def full(pass_: Pass, classes: Classes) -> Tensor:
    """LRP down to the pixels with the "orig" rules, summed over colour channels, shape b, height, width."""
    return propagate(pass_, classes, "orig").pixels.sum(dim=1)


def partial(pass_: Pass, classes: Classes) -> Tensor:
    """Relevance of the last attention map ("orig" rules): positive parts, mean over heads, readout row.

    Returns:
        Patch relevance, shape b, S.
    """
    R_A = propagate(pass_, classes, "orig").A[-1]
    return torch.stack([pass_.read(one.clamp(min=0).mean(dim=0)) for one in R_A])


def transformer_attribution(pass_: Pass, classes: Classes, start: int = 0, normalise: bool = False) -> Tensor:
    """Product over blocks of identity plus head mean of the positive part of gradient times relevance.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        start: First block (from 0) to enter the product.
        normalise: Whether each row of a factor is divided by its sum.

    Returns:
        Patch relevance, shape b, S.
    """
    R_A = propagate(pass_, classes, "ours").A
    dA = grads(pass_, classes, "logit")[0]
    maps = []
    for image in range(pass_.logits.shape[0]):
        eye = torch.eye(pass_.r.shape[0], dtype=torch.float64)
        C = eye
        for i in range(start, len(pass_.blocks)):
            factor = eye + (dA[i][image] * R_A[i][image]).clamp(min=0).mean(dim=0)
            C = (factor / factor.sum(dim=1, keepdim=True) if normalise else factor) @ C
        maps.append(pass_.read(C))
    return torch.stack(maps)
