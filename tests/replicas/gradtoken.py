"""GradToken: keys of the last block scored against the class gradient at its query, spread by earlier attention."""

import math

import torch
from torch import Tensor

from .raw_attention import head_mean
from .vit import Classes, Pass, grads, target


def closed_form_query_gradient(
    pass_: Pass, classes: Classes, score: str = "logit", softmax: str = "jacobian"
) -> Tensor:
    """Gradient of the score at the queries of the last block, by hand from the gradient at the heads' outputs.

    Back through ``Z = A V`` (so dA = dZ V^T), through the row softmax (its Jacobian at a row a is
    diag(a) - a a^T, symmetric), and through ``O = Q K^T / sqrt(dh)``. Only dZ itself comes from autograd.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        score: What is differentiated.
        softmax: "jacobian", or "elementwise" for its diagonal only.

    Returns:
        The gradient, shape b, H, n, dh.
    """
    block = pass_.blocks[-1]
    dZ = torch.autograd.grad(target(pass_, classes, score), block.Z, retain_graph=True)[0]
    b, H, n, dh = dZ.shape
    V, K, A = block.V.detach(), block.K.detach(), block.A.detach()
    dQ = torch.zeros_like(dZ)
    for image in range(b):
        for h in range(H):
            dA = dZ[image, h] @ V[image, h].T
            for i in range(n):
                a = A[image, h, i]
                jacobian = torch.diag(a) - torch.outer(a, a)
                if softmax == "elementwise":
                    jacobian = torch.diag(jacobian.diagonal())
                dO = jacobian @ dA[i]
                dQ[image, h, i] = dO @ K[image, h] / math.sqrt(dh)
    return dQ


def head_relevance(pass_: Pass, dQ: Tensor, image: int, h: int, similarity: str = "dot") -> Tensor:
    """Dot product of every patch key with the query gradient of each readout token, averaged as the head reads them.

    With "cosine", the cosine of each key with the averaged gradient.

    Args:
        pass_: The recorded forward pass.
        dQ: Gradient at the last block's queries, shape b, H, n, dh.
        image: Index into the batch.
        h: Head.
        similarity: "dot" or "cosine".

    Returns:
        Relevance of the patches in this head, shape S, signed.
    """
    K = pass_.blocks[-1].K[image, h, pass_.prefix :].detach()
    if similarity == "cosine":
        G = sum(share * dQ[image, h, i] for i, share in enumerate(pass_.r.tolist()))
        return torch.stack([key @ G / (key.norm() * G.norm()) for key in K])
    M = torch.zeros(K.shape[0], dtype=torch.float64)
    for i, share in enumerate(pass_.r.tolist()):
        if share:
            M = M + share * (K @ dQ[image, h, i])
    return M


def replica(
    pass_: Pass,
    classes: Classes,
    variant: int = 4,
    heads: str = "relu",
    depth: int = 1,
    score: str = "logit",
    softmax: str = "jacobian",
    similarity: str = "dot",
) -> Tensor:
    """Score the patch keys head by head, propagate through the blocks before the last, join the heads.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        variant: 0 does not propagate. 1 and 2 gather the blocks as a product of (identity + head mean), 3 and 4 as a
            mean. 1 and 3 multiply entry by entry with the readout row, 2 and 4 by the patch-to-patch matrix.
        heads: "relu" drops negative entries of each propagated head before the mean; "mean" keeps them.
        depth: First block to gather, counted from 1; the last block never takes part. With as many as the model has
            blocks nothing is left to gather, and every variant is variant 0.
        score: What is differentiated.
        softmax: "jacobian" by autograd, or "elementwise" by hand.
        similarity: "dot" or "cosine".

    Returns:
        Patch relevance, shape b, S.
    """
    if softmax == "jacobian":
        dQ = grads(pass_, classes, score)[1][-1]
    else:
        dQ = closed_form_query_gradient(pass_, classes, score, softmax)
    B, P, n = len(pass_.blocks), pass_.prefix, pass_.r.shape[0]
    if variant not in range(5):
        raise ValueError(f"unknown variant {variant}")
    if not 1 <= depth <= B:
        raise ValueError(f"depth {depth} is not between 1 and {B}")
    H = dQ.shape[1]
    maps = []
    for image in range(dQ.shape[0]):
        gathered = [pass_.blocks[number - 1].A[image].detach() for number in range(depth, B)]
        eye = torch.eye(n, dtype=torch.float64)
        product_up, product_down, mean = eye, eye, torch.zeros_like(eye)
        for A in gathered:
            product_up = (eye + head_mean(A)) @ product_up
            product_down = product_down @ (eye + head_mean(A))
            # The divisor counts all blocks although the last one adds nothing: a scale only.
            for h in range(H):
                mean = mean + A[h] / (B * H)
        result = torch.zeros(n - P, dtype=torch.float64)
        for h in range(H):
            M = head_relevance(pass_, dQ, image, h, similarity)
            if gathered and variant == 1:
                M = pass_.read(product_up) * M
            elif gathered and variant == 2:
                M = product_down[P:, P:] @ M
            elif gathered and variant == 3:
                M = pass_.read(mean) * M
            elif gathered and variant == 4:
                M = mean[P:, P:] @ M
            result = result + {"relu": M.clamp(min=0.0), "mean": M}[heads]
        maps.append(result / H)
    return torch.stack(maps)
