"""Follow the residual stream through its sums.

No two libraries name their blocks alike, but all of them add a branch to a stream. So the stream is found by what is
computed: whatever descends from an attention's output is its branch, until a sum with
something that was there before; that is the stream X the branch is added to. From then on the next sum that has the
new stream (or its norm, in post-norm models) as a term is the MLP's. On the way, the first linear map of the branch is
the output projection, a product with a vector is LayerScale, and a product with one number for each token is a norm of
the branch. In parallel blocks the MLP's result joins the branch before both are added to the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.capture.branch_operators import output_projection, rms_norm_scales, scale_factor
from vitrail.capture.operators import ADD, DIV, LINEAR, MUL, NORM, RMS_NORM
from vitrail.capture.quantised_weights import dense_weight
from vitrail.capture.tensor_difference import norm_difference, relative_difference
from vitrail.capture.trace import Block
from vitrail.capture.value_projection import ValueProjections
from vitrail.errors import ModelError

NOWHERE: frozenset[int] = frozenset()

#: From what left each block, in order, to what the rest of the model is to read.
Tail = Callable[[list[Tensor]], Tensor]


@dataclass(frozen=True)
class _Norm:
    source: Tensor
    result: Tensor
    gain: Tensor | None


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
        #: What was computed from the stream behind the attention, and whether a linear map lies between.
        self._after_mid: dict[int, tuple[Tensor, bool]] = {}
        #: In parallel blocks, the attention's result and the MLP's.
        self._joined: tuple[Tensor, Tensor] | None = None
        self._join_copies: tuple[Tensor, Tensor] | None = None
        #: The stream times numbers that do not depend on tokens, as some models add it: the product and the stream.
        self._scaled: dict[int, tuple[Tensor, Tensor]] = {}
        self.scaled = False
        self._norms: dict[int, _Norm] = {}
        self._values = ValueProjections()
        self._summed: tuple[Block, Tensor] | None = None
        self._mlp_scale: tuple[Tensor, Tensor] | None = None
        self._copies: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
        self.parameters: dict[tuple[str, int], Tensor] = {}
        self._keep_graph = keep_graph
        #: The stream entering each attention sub-layer, in the graph; only where asked for.
        self.entering: dict[int, Tensor] = {}
        #: The last tensor of the stream's shape: the tokens as the head reads them.
        self.last: Tensor | None = None
        #: By block, how far the stream that enters it is from what left the block before; only where asked for.
        self.errors: dict[int, Tensor | float] = {}
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
        self._index, self._block, self._mid, self._joined = index, block, None, None
        self._after_mid.clear()
        found = self._values.find(V) if self._wants("value_path") else None
        if found is not None:
            self.made_values(*found)
        self._values.clear()

    def branch_from(self, out: Tensor) -> None:
        """From here on, whatever descends from ``out`` is the attention's branch."""
        self._branch, self._fresh = {id(out): out}, {}

    def projected(self, weight: Tensor, bias: Tensor | None) -> None:
        """The output projection of the current block."""
        self.parameters.setdefault(("Wo", self._index), weight)
        if self._block is not None and self._wants("stream"):
            self._block.keep("Wo", dense_weight(weight), self._dtype)
            self._block.bo = None if bias is None else self._full(bias)
            self._block.gamma = self._block.F_gamma = self._block.branch_scale = None

    def made_values(self, source: Tensor, weight: Tensor) -> None:
        """The value projection of the current block, and what it read."""
        self.parameters.setdefault(("Wv", self._index), weight)
        if self._block is not None and self._wants("value_path"):
            self._block.V_in, self._block.Wv = self._full(source), self._full(dense_weight(weight))

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
            elif (joined := self._join(args)) is not None:
                attention, mlp = (term.clone() if term is args[0] else term for term in joined)
                self._join_copies = (attention, mlp)

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """Follow one function call; returns its result, or what the tail replaces it by."""
        if func in NORM:
            self._note_norm(args, kwargs, result)
        if func in ADD:
            parts = self._parts(args)
            if parts is not None:
                alpha = kwargs.get("alpha", 1)
                branch = parts[1] if alpha == 1 else alpha * parts[1]
                return self._note_sum(*parts, parts[0], branch, result)
        elif func is Tensor.add_:
            if self._copies is not None:
                copies, self._copies = self._copies, None
                return self._note_sum(*copies, result)
        elif func is F.linear:
            self._note_linear(args, kwargs, result)
        elif self._mid is not None and func in MUL and self._wants("stream"):
            self._note_mlp_scale(args, result)
        if self._branch:
            self._note_join(func, args)
            self._note_branch(func, args, kwargs, result)
        elif self._mid is not None:
            self._note_descendant(func, args, result)
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
        if left.shape != right.shape:
            return None
        if left.dim() != 3 and not self._is_map(left):
            return self._mlp_parts(left, right)
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
        return self._mlp_parts(left, right)

    def _mlp_parts(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor] | None:
        """Stream and MLP where the stream behind the attention was reshaped, cut or normalised by the model's own code.

        Both terms come from that stream, and linear maps lie on the way to one of them alone.
        """
        mid = self._mid
        if self._branch or mid is None or left.shape[-1:] != mid.shape[-1:] or left.numel() != mid.numel():
            return None
        one, two = self._after_mid.get(id(left)), self._after_mid.get(id(right))
        if one is None or two is None or one[1] == two[1]:
            return None
        return (right, left) if one[1] else (left, right)

    def _join(self, args: tuple[Any, ...]) -> tuple[Tensor, Tensor] | None:
        """The attention's result and that of an MLP beside it, if a sum is theirs."""
        if len(args) < 2 or not (isinstance(args[0], Tensor) and isinstance(args[1], Tensor)):
            return None
        left, right = args[0], args[1]
        if left.shape != right.shape or left.dim() != 3 or ("Wo", self._index) not in self.parameters:
            return None
        for attention, mlp in ((left, right), (right, left)):
            if id(attention) in self._branch and id(mlp) in self._fresh and id(mlp) not in self._branch:
                return attention, mlp
        return None

    def _note_join(self, func: Any, args: tuple[Any, ...]) -> None:
        if func is Tensor.add_:
            joined, self._join_copies = self._join_copies, None
        else:
            joined = self._join(args) if func in ADD else None
        if joined is not None:
            self._joined = joined

    def _note_descendant(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        """Follow what is computed from the stream behind the attention."""
        known = [self._after_mid[id(a)] for a in args if id(a) in self._after_mid]
        if known:
            if isinstance(result, Tensor) and any(a is self._mid for a in args):
                self._is_scaled_stream(func, args, result)
            linear = func in LINEAR or any(passed for _, passed in known)
            for tensor in result if isinstance(result, list | tuple) else (result,):
                if isinstance(tensor, Tensor):
                    self._after_mid[id(tensor)] = (tensor, linear)

    def _is_map(self, term: Tensor) -> bool:
        """Whether a term of four axes is a stream laid out as a map, not heads before their projection."""
        return term.dim() == 4 and ("Wo", self._index) in self.parameters

    def _note_sum(self, stream: Tensor, branch: Tensor, X: Tensor, F_out: Tensor, result: Tensor) -> Tensor:
        """A sum of stream and branch, whose values are X and F_out: the attention's, or else the MLP's."""
        block = self._block
        if block is None:
            return result
        if self._keep_graph and self._branch:
            self._check_stream(stream, X)
        if id(stream) in self._scaled:  # the stream enters the block before it is scaled
            stream = X = self._scaled[id(stream)][1]
            self.scaled = True
        self._scaled.clear()
        if self._branch:
            result = self._note_attention_sum(block, stream, X, F_out, result)
        else:
            result = self._note_mlp_sum(block, stream, branch, X, F_out, result)
        self._norms.clear()
        return result

    def _note_attention_sum(self, block: Block, stream: Tensor, X: Tensor, F_out: Tensor, result: Tensor) -> Tensor:
        norm = self._norms.get(id(stream))
        joined, self._joined = self._joined, None
        if self._wants("branch"):
            block.branch = self._full(F_out if joined is None else joined[0])
        if self._wants("dX"):
            self._nodes["dX", self._index] = stream
        if self._wants("X") or self._wants("stream"):
            block.keep("X", X, self._dtype)
        if self._wants("stream"):
            block.F = None
        if self._wants("norms"):
            block.X_norm = None if norm is None else self._full(norm.result)
            block.X_mid_norm = block.norm_gain = block.F_norm_gain = None
        self._branch, self._fresh, self._mid = {}, {}, result
        self._after_mid = {id(result): (result, False)}
        if joined is None:
            return result
        if self._wants("stream"):  # attention and MLP read the same stream
            block.keep("X_mid", X, self._dtype)
            block.keep("F", joined[1], self._dtype)
        return self._leave(result)

    def _note_mlp_sum(
        self, block: Block, stream: Tensor, branch: Tensor, X: Tensor, F_out: Tensor, result: Tensor
    ) -> Tensor:
        if self._wants("stream"):
            shape = block.narrow("X").shape
            block.keep("X_mid", X.reshape(shape), self._dtype)
            block.keep("F", F_out.reshape(shape), self._dtype)
            if self._mlp_scale is not None and branch is self._mlp_scale[0]:
                block.F_gamma = self._full(self._mlp_scale[1].flatten())
            self._mlp_scale = None
        if self._wants("norms"):
            self._note_mlp_norms(block, stream, result)
        return self._leave(result)

    def _check_stream(self, stream: Tensor, X: Tensor) -> None:
        """Note the stream that enters an attention, and how far it is from what left the block before."""
        if id(stream) in self._scaled:
            stream = X = self._scaled[id(stream)][1]
        self.entering[self._index] = stream
        left = self._left
        norm = None if left is None else self._norms.get(id(left))
        if left is None or stream is left or (norm is not None and stream is norm.result):
            self.errors[self._index] = 0.0
            return
        before = [left.reshape(X.shape) if left.numel() == X.numel() else left] + (
            [] if norm is None else [norm.result]
        )
        differences = [relative_difference(X, t) for t in before]
        self.errors[self._index] = torch.stack([*differences, norm_difference(before[0], X)]).min()

    def _leave(self, output: Tensor) -> Tensor:
        """A block is complete; the last one's output may be replaced."""
        self._mid, self._left = None, output
        self._after_mid.clear()
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
            self._values.note(source, weight, result)

    def _note_branch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        touched = [a for a in args if isinstance(a, Tensor)]
        if not any(id(a) in self._branch for a in touched):
            touched = [a for group in args if isinstance(group, list | tuple) for a in group if isinstance(a, Tensor)]
            if not any(id(a) in self._branch for a in touched):
                same = any(result is a for a in args)  # as Tensor.to returns, where nothing is to be changed
                if isinstance(result, Tensor) and not same and not self._is_scaled_stream(func, args, result):
                    self._fresh[id(result)] = result
                return
        if self._block is not None:
            if ("Wo", self._index) not in self.parameters:
                projection = output_projection(func, args, kwargs)
                if projection is not None:
                    self.projected(*projection)
            elif func in RMS_NORM:
                self._note_rms_norm(args, kwargs)
            elif func in MUL or func in DIV:
                self._note_scale(func, args)
        for tensor in result if isinstance(result, list | tuple) else (result,):
            if isinstance(tensor, Tensor):
                self._branch[id(tensor)] = tensor

    def _is_scaled_stream(self, func: Any, args: tuple[Any, ...], result: Tensor) -> bool:
        """Whether a tensor that is no part of a branch is multiplied with numbers that do not depend on tokens."""
        if func not in MUL or result.dim() != 3:
            return False
        old = [a for a in args if isinstance(a, Tensor) and a.shape == result.shape and id(a) not in self._fresh]
        others = [a for a in args if not any(a is o for o in old)]
        scaled = len(old) == 1 and all(not isinstance(a, Tensor) or a.numel() in (1, result.shape[-1]) for a in others)
        if scaled:
            self._scaled[id(result)] = (result, old[0])
        return scaled

    def _note_scale(self, func: Any, args: tuple[Any, ...]) -> None:
        """LayerScale (a factor for each channel or one number), or a norm of the branch (a factor for each token)."""
        branch = next((a for a in args if id(a) in self._branch and a.dim() > 1 and a.shape[-1] > 1), None)
        width = self.parameters["Wo", self._index].shape[0]
        if branch is None or branch.shape[-1] != width or len(args) < 2:
            return
        factor = scale_factor(func, args, branch)
        if factor is None:
            return
        if factor.numel() == width and factor.shape[-1:] == (width,) and id(factor) not in self._branch:
            self._scale_branch(factor)
        elif factor.shape[-1:] == (1,) and factor.shape[:-1] == branch.shape[:-1]:
            self._scale_tokens(factor)

    def _scale_branch(self, factor: Tensor) -> None:
        assert self._block is not None
        self.parameters.setdefault(("gamma", self._index), factor)
        if self._wants("stream"):
            known, new = self._block.gamma, self._full(factor.flatten())
            self._block.gamma = new if known is None else known * new

    def _scale_tokens(self, factor: Tensor) -> None:
        assert self._block is not None
        if self._wants("stream"):
            known, new = self._block.branch_scale, self._full(factor.squeeze(-1))
            self._block.branch_scale = new if known is None else known * new

    def _note_rms_norm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The fused form of a norm of the branch."""
        found = rms_norm_scales(args, kwargs, self.parameters["Wo", self._index].shape[0], self._dtype)
        if found is None:
            return
        tokens, gain = found
        self._scale_tokens(tokens)
        if gain is not None:
            self._scale_branch(gain)

    def _note_mlp_scale(self, args: tuple[Any, ...], result: Any) -> None:
        for factor in args:
            fits = isinstance(factor, Tensor) and factor.dim() > 0 and factor.numel() == factor.shape[-1]
            if fits and (factor.numel(),) == result.shape[-1:]:
                self._mlp_scale = (result, factor)
