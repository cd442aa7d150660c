"""Which tokens a target can depend on, by the masks of the attention calls of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

#: An attention logit below this is masked: libraries add −10000, −1e9, the smallest number of the type, or −∞.
MASKED = -9000.0


class CausalKeys(NamedTuple):
    """Every query may attend to the keys up to its own position; stands for a mask that is never written.

    Attributes:
        queries: Number of queries.
        keys: Number of keys.
    """

    queries: int
    keys: int

    def reached(self, queries: Tensor) -> Tensor:
        """The keys that some of the given queries may attend to: shape (b, m) to (b, n).

        Example:
            >>> CausalKeys(3, 3).reached(torch.tensor([[False, True, False]]))
            tensor([[ True,  True, False]])
        """
        later = queries.flip(-1).cumsum(-1).flip(-1) > 0
        return torch.nn.functional.pad(later, (0, self.keys - self.queries))


#: Which keys each query of a call may attend to, shape (b or 1, m, n).
AllowedKeys = Tensor | CausalKeys


def allowed_keys(mask: Tensor) -> Tensor:
    """Which keys each query may attend to in any head, shape (b or 1, m, n), from a mask or masked logits.

    Args:
        mask: Booleans, True where a query attends, or numbers that are added to the logits, or the logits themselves;
            shape (m, n), (b, m, n) or (b, heads, m, n), any leading size may be 1.

    Example:
        >>> allowed_keys(torch.tensor([[0.0, -1e9], [0.0, 0.0]]))
        tensor([[[ True, False],
                 [ True,  True]]])
    """
    mask = mask.detach()
    allowed = mask if mask.dtype == torch.bool else mask > MASKED
    while allowed.dim() < 3:
        allowed = allowed[None]
    if allowed.dim() > 3:
        allowed = allowed.flatten(0, -4) if allowed.dim() > 4 else allowed
        allowed = allowed.any(1) if allowed.shape[1] > 1 else allowed[:, 0]
    return allowed


def reachable_tokens(
    readout: Tensor, allowed: Sequence[AllowedKeys | None], pools: Sequence[bool], skipped: int, tokens: int
) -> Tensor | None:
    """The tokens from which information can get to the queries that are read, shape (b, n); None for all.

    A token reaches a query if the query may attend to it, or if it is the query's own token, in each block from the
    last to the first.

    Args:
        readout: How the head reads the queries of the last block, shape (b, m); positive where it does.
        allowed: For each block which keys its queries may attend to, shape (b or 1, m, n), or None for all.
        pools: Whether each block is an attention pool, whose queries are not tokens.
        skipped: Leading tokens that a pool does not read.
        tokens: Number of tokens n.

    Example:
        >>> causal = torch.ones(3, 3).tril().bool()[None]
        >>> reachable_tokens(torch.tensor([[0.0, 1.0, 0.0]]), [causal, causal], [False, False], 0, 3)
        tensor([[ True,  True, False]])
    """
    if all(one is None for one in allowed):
        return None
    reached = readout > 0
    for keys, pool in zip(reversed(allowed), reversed(pools), strict=True):
        if keys is None:
            below = reached.any(-1, keepdim=True).expand(-1, tokens)
            if pool and skipped:
                below = below.clone()
                below[:, :skipped] = False
        else:
            below = keys.reached(reached) if isinstance(keys, CausalKeys) else (reached[..., None] & keys).any(1)
            if pool and skipped:
                below = torch.nn.functional.pad(below, (skipped, 0))
        reached = below if pool else below | reached
    return reached
