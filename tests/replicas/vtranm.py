"""VTranM (also known as TokenTM): attention maps weighted by how much each token's vector is transformed."""

import torch
from torch import Tensor

from .vit import BlockPass, Classes, Pass, grads

# Below this a length counts as this, so that a zero vector gives a finite weight.
TINY = 1e-12


def length_ratio(E: Tensor, T: Tensor) -> Tensor:
    """Length of each transformed vector over that of the original one.

    Args:
        E: Original vectors, shape n, d.
        T: Transformed vectors, shape n, d.

    Returns:
        One ratio per token, shape n.
    """
    return torch.stack([T[j].norm() / E[j].norm().clamp(min=TINY) for j in range(E.shape[0])])


def necc(E: Tensor, T: Tensor, denominator: slice) -> Tensor:
    """Normalised exponential cosine correlation: exp of each token's cosine over the sum of such terms.

    Args:
        E: Original vectors, shape n, d.
        T: Transformed vectors, shape n, d.
        denominator: The tokens whose terms are summed below the line; every token still gets a value.

    Returns:
        One value per token, shape n.
    """
    terms = []
    for j in range(E.shape[0]):
        lengths = E[j].norm().clamp(min=TINY) * T[j].norm().clamp(min=TINY)
        terms.append(torch.exp(E[j] @ T[j] / lengths))
    stacked = torch.stack(terms)
    return stacked / stacked[denominator].sum()


def transformed_vectors(
    block: BlockPass,
    image: int,
    value_input: str = "norm",
    value_bias: bool = True,
    projection_bias: bool = False,
    layer_scale: bool = True,
) -> list[Tensor]:
    """What each head turns every token into before attention mixes tokens: value projection, then output projection.

    Args:
        block: The record of the block.
        image: Index into the batch.
        value_input: "norm" feeds the layer norm's output to the value projection, as the model does; "raw" feeds the
            residual stream.
        value_bias: Whether the value projection keeps its bias.
        projection_bias: Whether every head gets its equal share (one H-th) of the output projection's bias.
        layer_scale: Whether the attention branch's LayerScale, if any, multiplies the result.

    Returns:
        One tensor per head, each of shape n, d. Their sum is the transformation of all heads together.
    """
    source = {"norm": block.LN1, "raw": block.X}[value_input][image].detach()
    H, dh = block.A.shape[1], block.Q.shape[-1]
    heads = []
    for h in range(H):
        part = slice(h * dh, (h + 1) * dh)
        V = source @ block.Wv[:, part]
        if value_bias:
            V = V + block.bv[part]
        T = V @ block.Wo[part]
        if projection_bias:
            T = T + block.bo / H
        if layer_scale and block.gamma1 is not None:
            T = T * block.gamma1
        heads.append(T)
    return heads


def replica(
    pass_: Pass,
    classes: Classes,
    variant: str = "full",
    score: str = "prob",
    embedding: str = "residual",
    value_input: str = "norm",
    per_head: bool = True,
    value_bias: bool = True,
    projection_bias: bool = False,
    layer_scale: bool = True,
    mlp_layer_scale: bool = True,
    necc_over: str = "all",
    init: str = "norm",
    layer: int = 0,
) -> Tensor:
    """Multiply the update maps of all attention and MLP layers, in forward order, onto the initial map.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        variant: "full"; "af+l" leaves the cosine part out of the weights; "af" has unit weights, identity start and
            no MLP factor; "baseline" is one block's update map with unit weights, by itself.
        score: What is differentiated: "prob", "logit" or "logprob".
        embedding: Which vectors are the originals: the "residual" stream or the "norm" output entering the layer.
        value_input: See ``transformed_vectors``; so for ``value_bias`` and ``projection_bias``.
        per_head: Whether each head has weights of its own; if not, all heads share those of their summed vectors.
        value_bias: Whether the value bias is part of the transformed vectors.
        projection_bias: Whether the output projection's bias is part of the transformed vectors.
        layer_scale: Whether LayerScale is part of the attention layer's transformed vectors.
        mlp_layer_scale: The same for the MLP layer.
        necc_over: Tokens in the denominator of the cosine part: "all" or "patches".
        init: Diagonal of the initial map for "full" and "af+l": "norm" (lengths of the first block's input vectors,
            whatever ``embedding`` is) or "identity" (ones).
        layer: The block "baseline" takes; -1 is the last.

    Returns:
        Patch relevance, shape b, S.
    """
    dA = grads(pass_, classes, score)[0]
    n = pass_.r.shape[0]
    eye = torch.eye(n, dtype=torch.float64)
    denominator = {"all": slice(None), "patches": slice(pass_.prefix, None)}[necc_over]
    use_weights = {"baseline": False, "af": False, "af+l": True, "full": True}[variant]

    def weight(E: Tensor, T: Tensor) -> Tensor:
        # Shape n, the diagonal of the transformation matrix.
        w = length_ratio(E, T)
        return w * necc(E, T, denominator) if variant == "full" else w

    def attention_update(i: int, image: int) -> Tensor:
        block = pass_.blocks[i]
        H = block.A.shape[1]
        w = [torch.ones(n, dtype=torch.float64)] * H
        if use_weights:
            E = {"residual": block.X, "norm": block.LN1}[embedding][image].detach()
            heads = transformed_vectors(block, image, value_input, value_bias, projection_bias, layer_scale)
            w = [weight(E, T) for T in heads] if per_head else [weight(E, torch.stack(heads).sum(dim=0))] * H
        total = torch.zeros(n, n, dtype=torch.float64)
        for h in range(H):
            T_h = block.A[image, h].detach() @ torch.diag(w[h])
            total = total + dA[i][image, h].clamp(min=0.0) * T_h
        return eye + total / H

    def mlp_update(i: int, image: int) -> Tensor:
        block = pass_.blocks[i]
        E = {"residual": block.X_mid, "norm": block.LN2}[embedding][image].detach()
        T = (block.F if mlp_layer_scale else block.F_raw)[image].detach()
        return eye + eye @ torch.diag(weight(E, T))

    maps = []
    for image in range(pass_.logits.shape[0]):
        if variant == "baseline":
            maps.append(pass_.read(attention_update(layer % len(pass_.blocks), image)))
            continue
        C = eye
        if use_weights and {"norm": True, "identity": False}[init]:
            C = torch.diag(torch.stack([vector.norm() for vector in pass_.blocks[0].X[image].detach()]))
        for i in range(len(pass_.blocks)):
            C = attention_update(i, image) @ C
            if use_weights:
                # With unit weights the factor would be twice the identity: a scale, left out.
                C = mlp_update(i, image) @ C
        maps.append(pass_.read(C))
    return torch.stack(maps)
