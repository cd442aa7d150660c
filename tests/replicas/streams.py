"""Relevance across two streams of tokens, from the published update rules, with the layers listed by hand."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .leadlight import distinction

#: An attention layer: names of the streams of its queries and of its keys.
Layer = tuple[str, str]
#: Layers that read the same state, one tuple after the other.
Plan = Sequence[Sequence[Layer]]

#: Stream and token that the score reads, or several of them.
Read = tuple[str, int] | tuple[tuple[str, int], ...]

SOFTMAX = (torch.softmax, Tensor.softmax, nn.functional.softmax)


class Recorder(TorchFunctionMode):
    """Keeps every attention matrix that a model computes by a softmax over four axes, as a node of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in SOFTMAX and result.dim() == 4:
            result = result if result.requires_grad else result.detach().requires_grad_()
            self.found.append(result)
        return result


def attention_and_gradients(
    model: nn.Module, inputs: dict[str, Tensor], target: Callable[[Any], Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Attention of every layer in the order of the pass, shape b, H, m, n, and the gradient of the target there."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with Recorder() as recorder:
        output = model(**inputs)
    gradients = torch.autograd.grad(target(output).sum(), recorder.found, allow_unused=True)
    dA = [torch.zeros_like(A) if g is None else g for A, g in zip(recorder.found, gradients, strict=True)]
    return [A.detach() for A in recorder.found], dA


def tokens_read(read: Read) -> tuple[tuple[str, int], ...]:
    """The tokens that a score reads, one or several."""
    return (read,) if isinstance(read[0], str) else read


def without_identity(R: Tensor) -> Tensor:
    """R̄: rows of R − I divided by their sum (rows of zeros stay), plus I; shape n, n."""
    bar = torch.eye(len(R), dtype=R.dtype)
    for i in range(len(R)):
        rest = R[i].clone()
        rest[i] -= 1
        if rest.sum() != 0:
            bar[i] += rest / rest.sum()
    return bar


def transformer_mm(
    plan: Plan, attention: Sequence[Tensor], gradients: Sequence[Tensor], read: tuple[str, int], explained: str
) -> Tensor:
    """Row of the token that is read, of the relevance of another stream's tokens, shape b, n.

    Args:
        plan: Layers in the order of the pass.
        attention: Attention of each layer, shape b, H, m, n.
        gradients: Gradient at each, in the same shape.
        read: Stream and token that the score reads, or several.
        explained: Stream whose tokens are explained.
    """
    sizes = {}
    for (queries, keys), A in zip([layer for step in plan for layer in step], attention, strict=True):
        sizes[queries], sizes[keys] = A.shape[2], A.shape[3]
    maps = []
    for image in range(len(attention[0])):
        R = {(s, t): torch.zeros(sizes[s], sizes[t], dtype=torch.float64) for s in sizes for t in sizes}
        for s, n in sizes.items():
            R[s, s] = torch.eye(n, dtype=torch.float64)
        position = 0
        for step in plan:
            changes = []
            for queries, keys in step:
                A, dA = attention[position][image], gradients[position][image]
                position += 1
                weighted = torch.stack([(A[h] * dA[h]).clamp(min=0.0) for h in range(len(A))]).mean(0)
                if queries == keys:
                    changes += [((queries, t), weighted @ R[queries, t]) for t in sizes]
                else:
                    bar_s, bar_q = without_identity(R[queries, queries]), without_identity(R[keys, keys])
                    changes.append(((queries, keys), bar_s.T @ weighted @ bar_q))
                    changes.append(((queries, queries), weighted @ R[keys, queries]))
            for pair, change in changes:
                R[pair] = R[pair] + change
        maps.append(sum(R[stream, explained][token] for stream, token in tokens_read(read)))
    return torch.stack(maps)


def rollout(plan: Plan, matrices: Sequence[Tensor], read: Read, explained: str) -> Tensor:
    """Row of the token that is read, of the product of (M + I) with rows scaled to sum one, shape b, n.

    All tokens of all streams form one set, in which a layer has entries from its queries to its keys alone.
    """
    sizes: dict[str, int] = {}
    for (queries, keys), M in zip([layer for step in plan for layer in step], matrices, strict=True):
        sizes[queries], sizes[keys] = M.shape[1], M.shape[2]
    start, total = {}, 0
    for s, n in sizes.items():
        start[s], total = total, total + n
    maps = []
    for image in range(len(matrices[0])):
        R = torch.eye(total, dtype=torch.float64)
        position = 0
        for step in plan:
            joint = torch.eye(total, dtype=torch.float64)
            for queries, keys in step:
                M = matrices[position][image]
                position += 1
                for i in range(M.shape[0]):
                    for j in range(M.shape[1]):
                        joint[start[queries] + i, start[keys] + j] += M[i, j]
            R = joint / joint.sum(-1, keepdim=True) @ R
        first = start[explained]
        rows = [R[start[stream] + token] for stream, token in tokens_read(read)]
        maps.append(sum(rows)[first : first + sizes[explained]])
    return torch.stack(maps)


def keys_of(model: nn.Module, inputs: dict[str, Tensor], layers: Sequence[str]) -> list[Tensor]:
    """Keys that the named linear layers compute, all heads of a token in one vector, shape b, n, d each."""
    found: dict[str, Tensor] = {}
    modules = dict(model.named_modules())
    handles = [
        modules[name].register_forward_hook(lambda _, __, output, name=name: found.update({name: output.detach()}))
        for name in layers
    ]
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    return [found[name] for name in layers]


def leadlight(
    relevance: Tensor,
    against: Tensor,
    keys: Sequence[Tensor],
    p: Sequence[float],
    power: float = 4.0,
    rounds: int = 2,
    mix: float = 0.75,
    contrast: float = 2.0,
) -> Tensor:
    """Relevance mixed with its average over tokens of similar keys, each over its maximum, scaled to one, shape b, n.

    Args:
        relevance: Of the tokens of one stream, shape b, n.
        against: The same from the negative gradient.
        keys: Of the upper half of the attention layers inside this stream, shape b, n, d each.
        p: Probability of each input's target.
        power: Exponent of the cosine.
        rounds: How often the relevance is averaged.
        mix: Share of the averaged relevance.
        contrast: Exponent of the comparison with what speaks against the target.
    """
    maps = []
    for image, start in enumerate(relevance):
        R = start * distinction(start, against[image], p[image]) ** contrast
        R = R / R.max()
        count = len(R)
        W = torch.zeros(count, count, dtype=torch.float64)
        for i in range(count):
            for j in range(count):
                cosines = [k[image, i] @ k[image, j] / (k[image, i].norm() * k[image, j].norm()) for k in keys]
                W[i, j] = max(float(sum(cosines)) / len(keys), 0.0) ** power
            W[i] = W[i] / W[i].sum()
        spread = R
        for _ in range(rounds):
            spread = W @ spread
        spread = spread - spread.min()
        mixed = (1 - mix) * R + mix * spread / spread.max()
        maps.append(mixed / mixed.sum())
    return torch.stack(maps)
