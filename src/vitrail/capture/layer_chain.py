"""The attention layers of a pass: what each of them is, and whether they form one chain."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from vitrail.capture import verify
from vitrail.capture.attention import AttentionMode
from vitrail.capture.attention_call import Call
from vitrail.capture.attention_reach import AllowedKeys, CausalKeys
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_structure import AttentionLayer
from vitrail.capture.residual import ResidualStream


def mask_kinds(calls: Sequence[Call]) -> tuple[bool, bool]:
    """Whether some query may not attend to some key, and whether no query may attend to a later key."""
    allowed = [c.allowed for c in calls]
    masked = any(one is not None and (isinstance(one, CausalKeys) or not bool(one.all())) for one in allowed)
    return masked, masked and all(map(_is_causal, allowed))


def may_be_masked(model_inputs: ModelInputs) -> bool:
    """Whether other examples than the one that was measured may have keys that no query attends to, such as padding.

    A mask comes from the tokens of a text, or from what is given beside an image. Masks that depend on an image alone
    are compared in each pass.
    """
    return model_inputs.words is not None or len(model_inputs.tensors) > 1


def _is_causal(allowed: AllowedKeys | None) -> bool:
    if allowed is None or isinstance(allowed, CausalKeys):
        return allowed is not None and allowed.queries == allowed.keys > 1
    return allowed.shape[1] == allowed.shape[2] > 1 and not bool(allowed.triu(1).any())


def _has_storage(tensor: Tensor) -> bool:
    try:
        return tensor.untyped_storage().data_ptr() != 0
    except (RuntimeError, NotImplementedError):
        return False


def chain_kind(mode: AttentionMode, calls: Sequence[Call]) -> str:
    """Whether the attention calls form one chain over one set of tokens, and what they form otherwise."""
    shapes = [c.shape for c in calls]
    tokens = shapes[0][3]
    pools = [s for s in shapes if s[2] == 1 < s[3]]
    if mode.sampled:
        return "sampled"
    if mode.recogniser.unmatched:
        return "mixed"
    if any(s[0] != 1 for s in shapes):
        return "windowed"
    widest = max(shapes, key=lambda s: s[2])
    if any(s[2] == s[3] < widest[2] and s[1] * s[2] == widest[1] * widest[2] for s in shapes):
        return "windowed"  # its windows were folded into the axis of the heads
    if len(pools) > 1:
        return "class-attention"
    pool = len(shapes) > 1 and shapes[-1][2] <= max(8, tokens // 16) and shapes[-1][2] < shapes[-1][3]
    body = shapes[:-1] if pool else shapes
    if any(s[2:] != (tokens, tokens) for s in body):
        return "encoder-decoder" if _has_two_sequences(shapes) else "pyramid"
    # A pool may leave out prefix tokens such as registers; one that reads fewer tokens reads merged ones.
    if pool and not tokens - 16 <= shapes[-1][3] <= tokens:
        return "pyramid"
    if not any(c.Z is not None and c.Z.requires_grad for c in calls):
        return "detached"
    # What was beside the first of them is attention over other inputs, which it does not depend on.
    if any(c.beside for c in calls[1:]) or verify.first_break(calls) is not None:
        return "parallel"
    return "plain"


def _has_two_sequences(shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether a sequence attends to another one after each of them has attended to itself."""
    own = set[int]()
    for _, _, queries, keys in shapes:
        if queries == keys:
            own.add(keys)
        elif {queries, keys} <= own:
            return True
    return False


def stream_width(mode: AttentionMode, calls: Sequence[int]) -> int:
    """Width of the residual stream, read off the output projections of some calls; 0 where none was seen."""
    parameters = {} if mode.stream is None else mode.stream.parameters
    weights = [parameters["Wo", i] for i in calls if ("Wo", i) in parameters]
    return int(weights[-1].shape[0]) if weights else 0


def attention_layers(model: nn.Module, mode: AttentionMode, calls: Sequence[int]) -> tuple[AttentionLayer, ...]:
    """The attention layers behind some calls of a pass, with the names of their weights."""
    names = {p.untyped_storage().data_ptr(): name for name, p in model.named_parameters() if _has_storage(p)}
    return tuple(_layer(i, mode, names) for i in calls)


def _layer(index: int, mode: AttentionMode, names: dict[int, str]) -> AttentionLayer:
    stream: ResidualStream | None = mode.stream
    parameters = stream.parameters if stream is not None else {}

    def name(kind: str) -> str | None:
        tensor = parameters.get((kind, index))
        if tensor is None:
            return None
        return names.get(tensor.untyped_storage().data_ptr(), "(unnamed)") if _has_storage(tensor) else "(unnamed)"

    call = mode.calls[index]
    return AttentionLayer(
        index, call.shape[1], call.shape[2] < call.shape[3], name("Wo"), name("Wv"), name("gamma"),
        "X" in call.block, "F" in call.block, call.product, call.shape[2:],
    )  # fmt: skip
