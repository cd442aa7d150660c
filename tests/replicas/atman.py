"""AtMan: the score lost when the attention logits of one token are scaled down in every block."""

import torch
from torch import Tensor

from .vit import Classes, Pass, Weights, embed, read_out, run_block, score_of


def suppressed(pass_: Pass, image: int, kept: Tensor) -> Tensor:
    """Logits of the model, shape 1, classes, while every attention logit of key j is multiplied by kept[j].

    The smallest logit of each row is subtracted first.
    """
    weights = Weights(pass_.model)
    x, prefix, _ = embed(weights, pass_.images[image : image + 1].detach())
    for i in range(len(pass_.blocks)):
        logits = run_block(weights, i, x).O_[0]
        attention = torch.zeros_like(logits)
        for h in range(logits.shape[0]):
            for row in range(logits.shape[1]):
                above = (logits[h, row] - logits[h, row].min()) * kept
                attention[h, row] = above.exp() / above.exp().sum()
        block = run_block(weights, i, x, attention=attention[None])
        x = block.X_mid + block.F
    return read_out(weights, x, prefix)[0]


def replica(
    pass_: Pass, classes: Classes, factor: float = 0.9, similarity: float | None = None, score: str = "logprob"
) -> Tensor:
    """Score of the class minus its score with one patch suppressed, for each patch.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        factor: Share of the logit that is taken off.
        similarity: Cosine of the tokens entering the first block from which on others are suppressed too, by
            ``factor`` times that cosine.
        score: "logit", "prob" or "logprob".

    Returns:
        Patch relevance, shape b, S.
    """
    b, n, _ = pass_.X_last.shape
    maps = torch.zeros(b, n - pass_.prefix, dtype=torch.float64)
    for image in range(b):
        tokens = pass_.blocks[0].X[image].detach()
        whole = score_of(pass_.logits[image : image + 1], classes[image : image + 1], score)
        for j in range(pass_.prefix, n):
            kept = torch.ones(n, dtype=torch.float64)
            for other in range(n):
                cosine = torch.dot(tokens[j], tokens[other]) / (tokens[j].norm() * tokens[other].norm())
                if similarity is not None and cosine >= similarity:
                    kept[other] = 1 - factor * cosine
            kept[j] = 1 - factor
            changed = score_of(suppressed(pass_, image, kept), classes[image : image + 1], score)
            maps[image, j - pass_.prefix] = (whole - changed).detach()
    return maps
