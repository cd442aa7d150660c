"""The structure of a model: its attention layers, tokens and readout, measured on one forward pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from vitrail import fast
from vitrail.capture import verify
from vitrail.capture.attention import AttentionMode, Call
from vitrail.capture.attention_reach import AllowedKeys, CausalKeys
from vitrail.capture.frozen import frozen, lock_of, unwrap
from vitrail.capture.inputs import ModelInputs, method_dtype, run_model
from vitrail.capture.layout import Layout, by, count_layout, measured_layout, read_readout
from vitrail.capture.model_structure import AttentionLayer, ModelStructure
from vitrail.capture.output_tensors import any_output
from vitrail.capture.outputs import keep_kind, output_kind, recall_kind
from vitrail.capture.residual import ResidualStream
from vitrail.capture.stream_search import find_streams
from vitrail.capture.structure_checks import (
    ALL_CALLS,
    StructurePass,
    check_folding,
    check_mixing,
    check_pool,
    check_stream,
)
from vitrail.capture.token_centres import layout_by_centres
from vitrail.capture.token_order import order_differs
from vitrail.capture.verify import TOLERANCE, Check
from vitrail.errors import GuessWarning, ModelError, TargetError, VitrailError

#: Packages of layers with quantised arithmetic.
_QUANTISED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized")
#: Stands among the programs of a structure for the call in which it was measured, whose passes confirm it.
ANY_PROGRAM = 0


def read_structure(
    model: nn.Module,
    model_inputs: ModelInputs,
    layout: Layout | None = None,
    target: Callable[..., Any] | None = None,
    fresh: bool = False,
) -> ModelStructure:
    """The structure of a model as known from earlier calls, or measured on the inputs.

    A structure that was measured in an earlier call is a hypothesis: the pass that uses it confirms it, see
    `vitrail.capture.confirm`, and where that fails it is measured again. It is measured for each shape, type and device
    of the inputs, again after weights were trained or modules replaced, under another autocast, and with other
    switches of kernels.

    Args:
        model: The user's model; it is left as it was.
        model_inputs: Inputs on the model's device. What depends on a target function is measured on all of them, the
            rest on the first.
        layout: What the user already knows.
        target: What is explained, where that is not a class score; it is called with the output for all inputs.
        fresh: Measure it in any case.
    """
    layout = layout or Layout()
    with lock_of(model):
        key = (
            model_inputs.shape,
            model_inputs.signature,
            model_inputs.reading,
            tuple((t.dtype, t.device) for t in model_inputs.tensors),
            _version(model),
            _arithmetic(model_inputs.tensors),
            layout,
            callable(target),
        )
        known: ModelStructure | None = fast.recall(model, "structure", key)
        if known is not None and not fresh:
            recall_kind(model, model_inputs.reading)
            return known
        measured = _measure(model, model_inputs, layout, target)
        if known is not None and known.same_facts(measured):
            measured = known  # which has the programs it holds for, and passes that were recorded with it
        keep_kind(model, model_inputs.reading)
        measured.programs[ANY_PROGRAM] = fast.current_call()
        fast.remember(model, "structure", measured, key)
        return measured


def is_measured_now(structure: ModelStructure) -> bool:
    """Whether a structure was measured in the call under way."""
    return structure.programs.get(ANY_PROGRAM, ANY_PROGRAM) is fast.current_call()


def forget(model: Any) -> None:
    """Drop everything that is known of a model from earlier calls, and free the GPU memory it takes.

    That is its structure, kind of outputs, effective weights of layers with adapters, hash of weights and recorded
    passes. Later calls measure it again.

    Args:
        model: A model, wrapped or not, or what `vitrail.load` returned.

    Example:
        >>> import torch, vitrail
        >>> from vitrail.testing import tiny_vit
        >>> model = tiny_vit()
        >>> _ = vitrail.explain(model, torch.zeros(1, 3, 32, 32), "rollout")
        >>> vitrail.forget(model)
    """
    module = model if isinstance(model, nn.Module) else model.module
    fast.forget_module(unwrap(module))


def _version(model: nn.Module) -> int:
    """A number that changes when modules are replaced, or weights are trained, loaded or swapped."""
    modules = fast.modules_of(model)
    adapted = [m for m in modules if "base_layer" in m._modules]  # noqa: SLF001
    switches = tuple(bool(getattr(m, "merged", False)) for m in adapted)
    return hash((tuple(map(id, modules)), fast.weights_state(model), switches))


def _arithmetic(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """What decides on the arithmetic besides the model: autocast, and which kernels torch may use."""
    kind = tensors[0].device.type if tensors else "cpu"
    cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    cuda = torch.backends.cuda
    switches: tuple[Any, ...] = (cuda.flash_sdp_enabled, cuda.mem_efficient_sdp_enabled, cuda.math_sdp_enabled)
    kernels = tuple(switch() for switch in switches)
    exact = (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, fast.split_products_enabled())
    return (cast, kernels, exact, torch.are_deterministic_algorithms_enabled())


def _measure(
    model: nn.Module,
    all_inputs: ModelInputs,
    given: Layout,
    target: Callable[..., Any] | None,
    from_words: bool = True,
) -> ModelStructure:
    model_inputs = all_inputs.select(slice(0, 1))
    image = model_inputs.start
    kept = dict.fromkeys(("stream", "value_path", "branch", "norms", "cut"), ALL_CALLS)
    from_words = from_words and model_inputs.words is not None
    mode = AttentionMode(
        kept, 1, method_dtype(model), keep_output=True, from_embedding=image is None, explicit=True,
        words=model_inputs.words if from_words else None,
    )  # fmt: skip
    with frozen(model, merge=False), torch.no_grad():
        bare = run_model(model, model_inputs)
    with frozen(model):
        leaf = None
        if image is not None:
            # The graph starts at the pixels (frames, samples …), so that only attention over them is part of it.
            leaf = image.detach().clone().requires_grad_()
            model_inputs = model_inputs.swap(image, leaf)
        elif model_inputs.numbers is not None:
            # Numbers of an unknown kind: the graph starts there as well, and the order of tokens is counted.
            start = model_inputs.numbers
            model_inputs = model_inputs.swap(start, start.detach().clone().requires_grad_())
        with mode:
            output = run_model(model, model_inputs)
        if from_words and not mode.embeddings:
            # The model embeds its words in another form, so the graph starts at all embeddings.
            return _measure(model, all_inputs, given, target, from_words=False)
        outputs = output_kind(model, output, mode.recent_calls)
        mode.recent_calls.clear()
        scores = any_output(output)
        one = StructurePass(model, model_inputs, mode, output, scores, leaf)
        if leaf is None and mode.embeddings:
            one.leaf = _word_embedding(one)
        if target is None:
            one.live, one.arrived = verify.reaching(mode.calls, scores)
        else:
            one.live, one.arrived = _reached_by(target, model, all_inputs, len(mode.calls), from_words)
        structure = _with_streams(one, _describe(one, given), given, target, all_inputs if target else None, from_words)
        structure = replace(structure, outputs=outputs, given=given, from_words=from_words)
        check = _agreement(output, bare, scores.dtype)
        structure = replace(structure, checks=(check, *structure.checks))
    _report(structure)
    return structure


def _reached_by(
    target: Callable[..., Any], model: nn.Module, model_inputs: ModelInputs, calls: int, from_words: bool
) -> tuple[list[int], dict[int, Tensor]]:
    """The attention calls a target function depends on, and the gradients there; measured on all inputs."""
    image, start = model_inputs.start, model_inputs.numbers
    if start is not None:
        model_inputs = model_inputs.swap(start, start.detach().clone().requires_grad_())
    words = model_inputs.words if from_words else None
    mode = AttentionMode(
        {}, model_inputs.batch, keep_output=True, from_embedding=image is None, masks=False, words=words
    )
    with mode:
        output = run_model(model, model_inputs)
    scores = target(output)
    if not isinstance(scores, Tensor):
        raise TargetError(f"the target function returned {type(scores).__name__}, not a tensor")
    if len(mode.calls) != calls:
        raise ModelError(
            f"the model attended {len(mode.calls)} times for all inputs where it attended {calls} times for the first "
            "alone: its path depends on the input; explain the inputs one by one"
        )
    return verify.reaching(mode.calls, scores)


def _agreement(output: Any, bare: Any, dtype: torch.dtype) -> Check:
    return verify.agreement(any_output(output), any_output(bare), TOLERANCE.get(dtype, 1e-3))


def _word_embedding(one: StructurePass) -> Tensor | None:
    """The embeddings of the text's own tokens, among those of positions and types."""
    words = one.model_inputs.words
    if words is None:
        return None
    same_shape = [(ids, e) for ids, e in one.mode.embeddings if ids.shape == words.shape]
    own = [e for ids, e in same_shape if bool((ids == words).all())]
    return next(iter([*own, *(e for _, e in same_shape)]), None)


#: Warnings about outputs that are no logits.
_OUTPUT_NOTES = {
    "probabilities": "the outputs are probabilities already: their logarithms are taken as logits, no softmax is added",
    "sigmoid": "the outputs are sigmoids of single classes: their log-odds are taken as logits",
}


def _report(structure: ModelStructure) -> None:
    """Warn about guesses and failed checks, by name."""
    if structure.outputs in _OUTPUT_NOTES:
        warnings.warn(f"{structure.model}: {_OUTPUT_NOTES[structure.outputs]}", GuessWarning, stacklevel=6)
    for note in structure.notes:
        warnings.warn(f"{structure.model}: {note}", GuessWarning, stacklevel=6)
    for check in structure.failed:
        warnings.warn(f"{structure.model}: {check.name}: {check.detail}", GuessWarning, stacklevel=6)


def _describe(one: StructurePass, given: Layout) -> ModelStructure:
    mode = one.mode
    axes = () if one.model_inputs.axes is None else one.model_inputs.axes.names
    text = one.model_inputs.words is not None
    base = ModelStructure(type(one.model).__name__, _library(one.model), "none", given, 0, (), text=text, axes=axes)
    if any(type(m).__module__.startswith(_QUANTISED) for m in one.model.modules()):
        return replace(base, kind="quantised")
    if not mode.calls:
        return base
    live = one.live
    calls = [mode.calls[i] for i in live]
    kind = _kind(mode, calls)
    names = {p.untyped_storage().data_ptr(): name for name, p in one.model.named_parameters() if _has_storage(p)}
    layers = tuple(_layer(i, mode, names) for i in live)
    masked, causal = _masks(calls)
    base = replace(
        base, kind=kind, layers=layers, width=_width(mode, live), calls=len(mode.calls), masked=masked, causal=causal,
        norm_first="X_norm" in calls[-1].block,
        members=verify.members(calls) if kind != "plain" else 1,
    )  # fmt: skip
    ignored = len(mode.calls) - len(live)
    checks = [
        Check(
            "attention on the path to the score",
            True,
            f"{len(live)} of {len(mode.calls)} attention calls reach the score"
            + (f"; {ignored} are left out" if ignored else ""),
        )
    ]
    if kind != "plain":
        return replace(base, checks=tuple(checks))
    tokens = calls[0].shape[3]
    layout, notes, placed = _layout(one, calls, given, tokens, causal)
    owners = None if one.map_size is None else one.owners
    base = replace(
        base, layout=layout, tokens=tokens, notes=tuple(notes), owners=owners,
        overlapping=one.shared >= verify.OVERLAP,
    )  # fmt: skip
    base = replace(base, order_by_image=_order_by_image(one, base))
    streams = {i: X for i, X in mode.stream.entering.items() if i in live} if mode.stream is not None else {}
    first = streams.get(live[0])
    base = replace(base, tokens_first=first is not None and first.shape[0] == tokens and first.shape[1] == 1)
    base = check_pool(one, base, calls, streams)
    if base.kind != "plain":
        return replace(base, checks=tuple(checks))
    base, stream_checks = check_stream(one, base)
    if one.mode.stream is not None and one.mode.stream.scaled:
        note = "its skip connections are scaled by learned numbers: methods take them as they are, without the scale"
        base = replace(base, notes=(*base.notes, note))
    base, mixing = check_mixing(one, base, streams, live)
    base, folding = check_folding(one, base, calls)
    checks += [placed, *mixing, *stream_checks, *folding]
    return replace(base, checks=tuple(checks))


def _with_streams(
    one: StructurePass,
    base: ModelStructure,
    given: Layout,
    target: Callable[..., Any] | None,
    all_inputs: ModelInputs | None,
    from_words: bool,
) -> ModelStructure:
    """The structure of a model with several streams of tokens, where that is what it has."""
    if base.kind not in ("pyramid", "parallel", "class-attention", "encoder-decoder") or one.mode.recogniser.unmatched:
        return base
    streams = find_streams(one.model, all_inputs or one.model_inputs, target, from_words)
    if streams is None or not streams.crossed:
        return base
    names = {p.untyped_storage().data_ptr(): name for name, p in one.model.named_parameters() if _has_storage(p)}
    layers = tuple(replace(_layer(o.call, one.mode, names), pool=False) for o in streams.layers)
    tokens = streams.sizes[streams.explained]
    unstreamed, base = base, replace(base, kind="streams", streams=streams, layers=layers, tokens=tokens)
    check = Check("streams of tokens", True, f"{len(streams.sizes)} streams, attention between them seen in full")
    calls = [one.mode.calls[layers[streams.first].call]]
    if one.map_size is None:
        return replace(base, layout=Layout(given.prefix or 0, None, (0,), given.suffix), checks=(*base.checks, check))
    try:
        layout, notes, placed = _layout(one, calls, given, tokens, causal=False)
    except VitrailError:  # its tokens lie on no grid of the image
        return unstreamed
    return replace(base, layout=layout, notes=(*base.notes, *notes), checks=(*base.checks, check, placed))


def _order_by_image(one: StructurePass, base: ModelStructure) -> bool:
    """Whether the tokens of a random image stand in another order than those of the first one."""
    image = one.model_inputs.signal
    if base.owners is None or image is None:
        return False
    noise = _values_of_noise(one, base.layers[0].call)
    if noise is None:
        return True
    return bool(order_differs(*noise, base.owners, base.overlapping, one.model_inputs.axes))


def _values_of_noise(one: StructurePass, call: int) -> tuple[Tensor, Tensor] | None:
    """Values of an attention call on a random input, and that input; None where the model attends otherwise on it."""
    signal = one.model_inputs.signal
    assert signal is not None
    leaf = torch.randn(signal.shape, generator=torch.Generator().manual_seed(2)).to(signal).requires_grad_()
    mode = AttentionMode({}, 1, values_of=call, masks=False)
    with mode:
        run_model(one.model, one.model_inputs.swap(signal, leaf))
    return None if len(mode.calls) != len(one.mode.calls) or mode.values is None else (mode.values, leaf)


def _masks(calls: Sequence[Call]) -> tuple[bool, bool]:
    """Whether some query may not attend to some key, and whether no query may attend to a later key."""
    allowed = [c.allowed for c in calls]
    masked = any(one is not None and (isinstance(one, CausalKeys) or not bool(one.all())) for one in allowed)
    return masked, masked and all(map(_is_causal, allowed))


def _is_causal(allowed: AllowedKeys | None) -> bool:
    if allowed is None or isinstance(allowed, CausalKeys):
        return allowed is not None and allowed.queries == allowed.keys > 1
    return allowed.shape[1] == allowed.shape[2] > 1 and not bool(allowed.triu(1).any())


def _has_storage(tensor: Tensor) -> bool:
    try:
        return tensor.untyped_storage().data_ptr() != 0
    except (RuntimeError, NotImplementedError):
        return False


def _kind(mode: AttentionMode, calls: Sequence[Call]) -> str:
    """Whether the attention calls form one chain over one set of tokens, and what they form otherwise."""
    shapes = [c.shape for c in calls]
    tokens = shapes[0][3]
    pools = [s for s in shapes if s[2] == 1 < s[3]]
    if mode.recogniser.unmatched:
        return "mixed"
    if mode.sampled:
        return "unseen"
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


def _layout(
    one: StructurePass, calls: Sequence[Call], given: Layout, tokens: int, causal: bool
) -> tuple[Layout, list[str], Check]:
    """Where the patches are among the tokens and in the image, and which tokens the head reads."""
    size, notes = one.map_size, list[str]()
    image_size = (size[0], size[1]) if size is not None and one.model_inputs.image is not None else None
    V, leaf = calls[0].V, one.leaf
    measured_owners = None if V is None or leaf is None else verify.owners(V, leaf, one.model_inputs.axes)
    owners, shared = (None, 0.0) if measured_owners is None else measured_owners
    one.shared, one.owners = shared, owners
    words = size is None and one.model_inputs.patches is None
    name = "which token is which word" if words else "which token is which patch"
    check = Check(name, None, "no gradient from the tokens to the input: the order was counted")
    layout = None
    if size is None:
        layout = Layout(given.prefix, None, given.readout, given.suffix)
        if owners is not None:
            valid, owners = one.model_inputs.valid, owners.cpu()
            owners = owners if valid is None else _padding_in_place(owners, valid[0].cpu())
            straight = bool((owners == torch.arange(len(owners))).all()) and len(owners) == tokens
            check = Check(name, straight, "in the order of the input" if straight else _shifted(owners, tokens))
    elif owners is not None:
        layout = measured_layout(owners, tokens)
        check = _placed(layout, owners, name)
        # Each call confirms the order that was measured: that of the patches, and where there is one.
        one.owners = None if layout is None else _of_patches(owners, layout.patch_tokens(tokens))
        if layout is None and image_size is None and V is not None and leaf is not None and one.model_inputs.axes:
            # On noise that is always the same, since where a token is centred must not depend on the example.
            noise = _values_of_noise(one, one.live[0])
            layout = None if noise is None else layout_by_centres(*noise, one.model_inputs.axes)
            check = _placed(layout, owners.clamp_min(0), name)
    if image_size is not None and (layout is None or given.grid is not None or given.table is not None):
        measured = layout
        layout = count_layout(given, tokens, image_size, calls[0].grid, _stated_prefix(one.model))
        if measured is not None and (measured.grid, measured.patch_tokens(tokens)) != (
            layout.grid, layout.patch_tokens(tokens)
        ):  # fmt: skip
            check = Check(name, False, f"the given layout says otherwise than measured: {measured}")
        elif measured is not None:
            layout = replace(layout, area=measured.area)
        elif given.grid is None:
            notes.append("the order of the patches could not be measured: they are taken row by row after the prefix")
    elif size is not None and image_size is None and (layout is None or given.grid is not None):
        layout, note = _given_layout(given, tokens, size, layout)
        notes += [note] if note else []
        size = size if layout.grid is not None else None  # its tokens are taken as those of a text
    assert layout is not None
    if given.prefix is not None and image_size is not None and given.prefix != layout.prefix:
        count_layout(replace(given, grid=layout.grid), tokens, image_size, None, None)  # raises: it does not fit
    layout, note = _readout(replace(layout, readout=given.readout), calls, one, text=size is None)
    if causal and given.prefix is None and size is None:  # the first token of a causal model is a word like others
        layout = replace(layout, prefix=0)
    return layout, [*notes, *([note] if note else [])], check


def _given_layout(
    given: Layout, tokens: int, size: tuple[int, ...], measured: Layout | None
) -> tuple[Layout, str | None]:
    """The layout that the user states for an input that is no image, or one without a grid where none was measured."""
    if given.grid is None:
        note = "which part of the input each token comes from could not be measured: maps are those of the tokens"
        return Layout(given.prefix, None, given.readout, given.suffix), note
    if len(given.grid) != len(size):
        raise ModelError(
            f"the layout has a grid of {len(given.grid)} axes, {by(given.grid)}, and the input has {len(size)}, "
            f"{by(size)}: give one number of patches for each axis"
        )
    prefix = tokens - prod(given.grid) - given.suffix if given.table is None else given.prefix or 0
    if prefix < 0 or given.prefix not in (None, prefix):
        raise ModelError(
            f"the layout does not fit: {given.prefix or 0} prefix tokens and a {by(given.grid)} grid make "
            f"{(given.prefix or 0) + prod(given.grid) + given.suffix} tokens, the model has {tokens}"
        )
    stated = replace(given, prefix=prefix)
    if measured is not None and measured.grid == stated.grid:
        stated = replace(stated, area=measured.area)
    return stated, None


def _of_patches(owners: Tensor, patches: Sequence[int]) -> Tensor:
    """The owners without pixels of tokens that are no patches, such as a mean of all, which depends on every pixel."""
    return owners.masked_fill(~torch.isin(owners, torch.tensor(patches, device=owners.device)), -1)


def _padding_in_place(owners: Tensor, valid: Tensor) -> Tensor:
    """Padding that no token depends on, as models set its embedding to zero, counts as being at its position."""
    return (
        torch.where((owners < 0) & ~valid, torch.arange(len(owners)), owners) if len(valid) == len(owners) else owners
    )


def _shifted(owners: Tensor, tokens: int) -> str:
    moved = int((owners != torch.arange(len(owners))).sum())
    return f"{moved} of {len(owners)} words are not at their own position among {tokens} tokens"


def _placed(layout: Layout | None, owners: Tensor, name: str) -> Check:
    if layout is None or layout.grid is None:
        return Check(name, None, "the patches lie on no regular grid: the order was counted")
    order = "row by row" if layout.table is None else "in another order, placed by a table"
    covered = float((owners >= 0).double().mean())
    border = "" if covered > 0.999 else f"; {100 * (1 - covered):.1f} % of the pixels belong to no patch"
    return Check(
        name,
        True,
        f"{by(layout.grid)} patches {order}, {layout.prefix} tokens before and {layout.suffix} after{border}",
    )


def _readout(layout: Layout, calls: Sequence[Call], one: StructurePass, text: bool) -> tuple[Layout, str | None]:
    last = calls[-1]
    pool = last.shape[2] < last.shape[3] and len(calls) > 1
    prefix, note = layout.prefix, None
    if layout.readout is None:
        readout = None
        gradient = next((one.arrived[i] for i in reversed(one.arrived) if one.mode.calls[i] is last), None)
        if gradient is not None:
            reach = gradient[0].double().pow(2).sum((0, 2)).sqrt()
            valid = one.model_inputs.valid
            reach = reach if valid is None else reach * valid[0].to(reach)
            before, after = (1, 0) if pool else (0, 0) if text else (prefix or 0, layout.suffix)
            readout = read_readout(_padded_mean(reach, valid), before, after)
        if pool:
            readout = readout if isinstance(readout, tuple) else "pool"
        if readout is None:
            readout = "cls" if prefix or text else "mean"
            note = f"the head's gradient is zero everywhere (an untrained head?): readout {readout!r} is a guess"
        layout = replace(layout, readout=readout)
    if prefix is None:  # text: the token that is read is no word of the input
        layout = replace(layout, prefix=1 if layout.readout in ("cls", (0,)) else 0)
    return layout, note


def _padded_mean(reach: Tensor, valid: Tensor | None) -> Tensor:
    """Leave padding out where every other token is read, so that a mean over a padded text counts as one."""
    if valid is None or not bool((reach[valid[0]] > 0).all()):
        return reach
    return reach[valid[0]]


def _width(mode: AttentionMode, calls: Sequence[int]) -> int:
    parameters = {} if mode.stream is None else mode.stream.parameters
    weights = [parameters["Wo", i] for i in calls if ("Wo", i) in parameters]
    return int(weights[-1].shape[0]) if weights else 0


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


def _stated_prefix(model: nn.Module) -> int | None:
    for module in model.modules():
        stated = getattr(module, "num_prefix_tokens", None)
        if isinstance(stated, int):
            return stated
    return None


def _library(model: nn.Module) -> str:
    return type(model).__module__.split(".")[0]
