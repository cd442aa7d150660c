"""Follow the residual stream through its sums.

No two libraries name their blocks alike, but all of them add a branch to a stream. So the stream is found by what is
computed: whatever descends from an attention's output is its branch, until a sum with
something that was there before; that is the stream X the branch is added to. From then on the next sum that has the
new stream (or its norm, in post-norm models) as a term is the MLP's. On the way, the first linear map of the branch is
the output projection and a product with a vector is LayerScale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.capture.trace import Block
from vitrail.errors import ModelError

# Operators reach a mode as methods (a + b as Tensor.add, a += b as Tensor.add_), in some versions as operators.
ADD = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__}
MUL = {torch.mul, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__}
NORM = {F.layer_norm, torch.layer_norm, F.rms_norm, torch.rms_norm}
NOWHERE: frozenset[int] = frozenset()

#: From what left each block, in order, to what the rest of the model is to read.
Tail = Callable[[list[Tensor]], Tensor]


@dataclass(frozen=True)
class _Norm:
    source: Tensor
    result: Tensor
    gain: Tensor | None


@dataclass(frozen=True)
class _Linear:
    """A linear map's result, known by where its memory lies, which is held lest anything else come to lie there."""

    weight: Tensor
    start: int
    stop: int
    source: Tensor | None
    memory: torch.UntypedStorage


class ResidualStream:
    """Watches every function call between attention calls; see the module's docstring."""

    def __init__(
        self,
        kept: Mapping[str, frozenset[int]],
        dtype: torch.dtype,
        nodes: dict[tuple[str, int], Tensor],
        tail: tuple[int, Tail] | None = None,
        keep_graph: bool = False,
    ) -> None:
        self._kept = kept
        self._dtype = dtype
        self._nodes = nodes
        self._tail = tail
        self._outputs: list[Tensor] = []
        self._index = -1
        self._block: Block | None = None
        self._branch: dict[int, Tensor] = {}
        self._fresh: dict[int, Tensor] = {}
        self._mid: Tensor | None = None
        self._norms: dict[int, _Norm] = {}
        self._linears: list[_Linear] = []
        self._summed: tuple[Block, Tensor] | None = None
        self._mlp_scale: tuple[Tensor, Tensor] | None = None
        self._copies: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
        self.parameters: dict[tuple[str, int], Tensor] = {}
        self._keep_graph = keep_graph
        #: The stream entering each attention sub-layer, in the graph; only where asked for.
        self.entering: dict[int, Tensor] = {}
        #: The last tensor of the stream's shape: the tokens as the head reads them.
        self.last: Tensor | None = None
        #: By block, how far its sums are from adding up, relative to the stream; only where asked for.
        self.errors: dict[int, Tensor] = {}
        self._left: Tensor | None = None

    def _wants(self, kind: str, index: int | None = None) -> bool:
        return (self._index if index is None else index) in self._kept.get(kind, NOWHERE)

    @property
    def in_branch(self) -> bool:
        """Whether an attention's branch has not met the stream yet."""
        return bool(self._branch)

    def _full(self, tensor: Tensor) -> Tensor:
        return tensor.detach() if tensor.dtype == self._dtype else tensor.detach().to(self._dtype)

    # -- called by the mode --------------------------------------------------------------------------------------

    def attended(self, index: int, block: Block, V: Tensor) -> None:
        """An attention call was made; its block is filled in as the stream goes on."""
        self._index, self._block, self._mid = index, block, None
        if self._wants("value_path"):
            self._find_value_projection(V)
        self._linears.clear()

    def branch_from(self, out: Tensor) -> None:
        """From here on, whatever descends from ``out`` is the attention's branch."""
        self._branch, self._fresh = {id(out): out}, {}

    def projected(self, weight: Tensor, bias: Tensor | None) -> None:
        """The output projection of the current block."""
        self.parameters.setdefault(("Wo", self._index), weight)
        if self._block is not None and self._wants("stream"):
            self._block.Wo = self._full(weight)
            self._block.bo = None if bias is None else self._full(bias)
            self._block.gamma = self._block.F_gamma = None

    def made_values(self, source: Tensor, weight: Tensor) -> None:
        """The value projection of the current block, and what it read."""
        self.parameters.setdefault(("Wv", self._index), weight)
        if self._block is not None and self._wants("value_path"):
            self._block.V_in, self._block.Wv = self._full(source), self._full(weight)

    # -- seen in passing -----------------------------------------------------------------------------------------

    def before(self, func: Any, args: tuple[Any, ...]) -> None:
        """A sum in place is about to overwrite its first term: copy it while it is what it was."""
        if func is Tensor.add_:
            parts = self._parts(args)
            if parts is not None:
                if parts[0] is args[0] and self._branch and self._wants("dX"):
                    raise ModelError(
                        "the model adds to its residual stream in place, which leaves no stream to differentiate at; "
                        "use a method that does not (see `vitrail methods`)"
                    )
                X, branch = (term.clone() if term is args[0] else term for term in parts)
                self._copies = (*parts, X, branch)

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """Follow one function call; returns its result, or what the tail replaces it by."""
        if func in NORM:
            self._note_norm(args, kwargs, result)
        if func in ADD:
            parts = self._parts(args)
            if parts is not None:
                return self._note_sum(*parts, *parts, result)
        elif func is Tensor.add_:
            if self._copies is not None:
                copies, self._copies = self._copies, None
                return self._note_sum(*copies, result)
        elif func is F.linear:
            self._note_linear(args, kwargs, result)
        elif self._mid is not None and func in MUL and self._wants("stream"):
            self._note_mlp_scale(args, result)
        if self._branch:
            self._note_branch(func, args, kwargs, result)
        if self._keep_graph and isinstance(result, Tensor) and result.dim() == 3 and self.entering:
            X = next(reversed(self.entering.values()))
            if result.shape[:2] == X.shape[:2] and result.requires_grad:
                self.last = result
        return result

    def _parts(self, args: tuple[Any, ...]) -> tuple[Tensor, Tensor] | None:
        """Which term of a sum is the stream and which the branch, or None if the sum is neither's."""
        if len(args) < 2 or not (isinstance(args[0], Tensor) and isinstance(args[1], Tensor)):
            return None
        left, right = args[0], args[1]
        if left.shape != right.shape or (left.dim() != 3 and not self._is_map(left)):
            return None
        if self._branch:
            in_left, in_right = id(left) in self._branch, id(right) in self._branch
            stream, branch = (right, left) if in_left else (left, right)
            # What was made beside the branch, such as a parallel MLP, is not the stream.
            return (stream, branch) if in_left != in_right and id(stream) not in self._fresh else None
        if self._mid is not None:
            norm = self._norms.get(id(self._mid))
            for stream, branch in ((left, right), (right, left)):
                if stream is self._mid or (norm is not None and stream is norm.result):
                    return stream, branch
        return None

    def _is_map(self, term: Tensor) -> bool:
        """Whether a term of four axes is a stream laid out as a map, not heads before their projection."""
        return term.dim() == 4 and ("Wo", self._index) in self.parameters

    def _note_sum(self, stream: Tensor, branch: Tensor, X: Tensor, F_out: Tensor, result: Tensor) -> Tensor:
        """A sum of stream and branch, whose values are X and F_out: the attention's, or else the MLP's."""
        block = self._block
        if block is None:
            return result
        norm = self._norms.get(id(stream))
        if self._keep_graph:
            self._check_sum(stream, X, F_out, result)
        if self._branch:
            if self._wants("branch"):
                block.branch = self._full(F_out)
            if self._wants("dX"):
                self._nodes["dX", self._index] = stream
            if self._wants("stream"):
                block.X, block.F = self._full(X), None
            if self._wants("norms"):
                block.X_norm = None if norm is None else self._full(norm.result)
                block.X_mid_norm = block.norm_gain = block.F_norm_gain = None
            self._branch, self._fresh, self._mid = {}, {}, result
        else:
            if self._wants("stream"):
                block.X_mid, block.F = self._full(X), self._full(F_out)
                if self._mlp_scale is not None and branch is self._mlp_scale[0]:
                    block.F_gamma = self._full(self._mlp_scale[1].flatten())
                self._mlp_scale = None
            if self._wants("norms"):
                self._note_mlp_norms(block, stream, result)
            self._mid, self._left = None, result
            result = self._leave(result)
        self._norms.clear()
        return result

    def _check_sum(self, stream: Tensor, X: Tensor, F_out: Tensor, result: Tensor) -> None:
        """Note how far a sum is from adding up, and how far the stream is from what left the block before."""
        errors = [_relative(result, X.detach() + F_out.detach())]
        if self._branch:
            self.entering[self._index] = stream
            if self._left is not None:
                norm = self._norms.get(id(self._left))
                before = [self._left] if norm is None else [self._left, norm.result]
                errors.append(torch.stack([_relative(X, t) for t in before]).min())
        known = [self.errors[self._index]] if self._index in self.errors else []
        self.errors[self._index] = torch.stack([*known, *errors]).max()

    def _leave(self, output: Tensor) -> Tensor:
        """A block is complete; the last one's output may be replaced."""
        if self._tail is None:
            return output
        self._outputs.append(output)
        last, put = self._tail
        return put(self._outputs) if self._index == last else output

    def _note_mlp_norms(self, block: Block, stream: Tensor, result: Tensor) -> None:
        norm = self._norms.get(id(self._mid))
        if norm is None:
            return
        if stream is self._mid:
            block.X_mid_norm = self._full(norm.result)
        else:  # the norm stands after the sum
            block.norm_gain = None if norm.gain is None else self._full(norm.gain)
            self._summed = (block, result)

    def _note_norm(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        source = args[0] if args else kwargs.get("input")
        if not isinstance(source, Tensor) or not isinstance(result, Tensor):
            return
        gain = kwargs.get("weight", args[2] if len(args) > 2 else None)
        self._norms[id(source)] = _Norm(source, result, gain)
        if self._summed is not None and source is self._summed[1]:
            if gain is not None:
                self._summed[0].F_norm_gain = self._full(gain)
            self._summed = None

    def _note_linear(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        source, weight = args[0] if args else kwargs["input"], args[1] if len(args) > 1 else kwargs["weight"]
        if not self._branch and self._wants("value_path", self._index + 1):
            start = result.data_ptr()
            stop = start + result.numel() * result.element_size()
            self._linears.append(_Linear(weight, start, stop, source, result.untyped_storage()))

    def _note_branch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        touched = [a for a in args if isinstance(a, Tensor)]
        if not any(id(a) in self._branch for a in touched):
            touched = [a for group in args if isinstance(group, list | tuple) for a in group if isinstance(a, Tensor)]
            if not any(id(a) in self._branch for a in touched):
                if isinstance(result, Tensor):
                    self._fresh[id(result)] = result
                return
        if func is F.linear and self._block is not None and ("Wo", self._index) not in self.parameters:
            weight = args[1] if len(args) > 1 else kwargs["weight"]
            self.projected(weight, args[2] if len(args) > 2 else kwargs.get("bias"))
        elif func is torch.addmm and self._block is not None and ("Wo", self._index) not in self.parameters:
            self.projected(args[2].T, args[0])  # a linear map with its weight the other way round
        elif func in MUL and self._block is not None and ("Wo", self._index) in self.parameters:
            self._note_layer_scale(touched)
        for tensor in result if isinstance(result, list | tuple) else (result,):
            if isinstance(tensor, Tensor):
                self._branch[id(tensor)] = tensor

    def _note_layer_scale(self, touched: list[Tensor]) -> None:
        assert self._block is not None
        width = self.parameters["Wo", self._index].shape[0]
        for factor in touched:
            if id(factor) not in self._branch and factor.numel() == width and factor.shape[-1] == width:
                self.parameters.setdefault(("gamma", self._index), factor)
                if self._wants("stream"):
                    self._block.gamma = self._full(factor.flatten())

    def _note_mlp_scale(self, args: tuple[Any, ...], result: Any) -> None:
        for factor in args:
            fits = isinstance(factor, Tensor) and factor.dim() > 0 and factor.numel() == factor.shape[-1]
            if fits and factor.numel() == result.shape[-1]:
                self._mlp_scale = (result, factor)

    def _find_value_projection(self, V: Tensor) -> None:
        """V is a view into the result of the linear map that made it; where it lies says which rows of the weight."""
        size = V.element_size()
        width = V.shape[1] * V.shape[3]
        for linear in reversed(self._linears):
            if linear.start <= V.data_ptr() < linear.stop and linear.source is not None:
                rows = linear.weight.shape[0]
                first = (V.data_ptr() - linear.start) // size % rows
                if V.stride(-1) == 1 and V.stride(1) == V.shape[3] and first + width <= rows:
                    self.made_values(linear.source, linear.weight[first : first + width])
                return


def _relative(one: Tensor, two: Tensor) -> Tensor:
    if one.shape != two.shape:
        return torch.tensor(torch.inf, dtype=torch.float64, device=one.device)
    scale = two.detach().abs().max().double()
    difference = (one.detach() - two.detach()).abs().max().double()
    return torch.where(scale > 0, difference / scale.clamp_min(1e-300), difference)
