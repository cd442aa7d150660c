"""The structure of a model: its attention layers, tokens and readout, measured on one forward pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail import fast
from vitrail.capture import verify
from vitrail.capture.attention import AttentionMode
from vitrail.capture.finite import check_finite_weights
from vitrail.capture.frozen import frozen, gradients_enabled, lock_of, unwrap
from vitrail.capture.inputs import ModelInputs, method_dtype
from vitrail.capture.layer_chain import attention_layers, chain_kind, mask_kinds, may_be_masked, stream_width
from vitrail.capture.layout import Layout
from vitrail.capture.model_call import run_model
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.output_tensors import any_output, target_values
from vitrail.capture.outputs import keep_kind, output_kind, recall_kind
from vitrail.capture.stream_search import find_streams
from vitrail.capture.structure_checks import check_folding, check_mixing, check_pool, check_stream
from vitrail.capture.structure_pass import ALL_CALLS, StructurePass
from vitrail.capture.token_order import order_differs
from vitrail.capture.token_placement import place_tokens, values_of_noise
from vitrail.capture.verify import TOLERANCE, Check
from vitrail.errors import GuessWarning, ModelError, TargetError, VitrailError

#: Packages of layers with quantised arithmetic.
_QUANTISED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized")
#: Stands among the programs of a structure for the call in which it was measured, whose passes confirm it.
ANY_PROGRAM = 0


@gradients_enabled()
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
            fast.call_cache("version", model, _version),
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
    if bool(any_output(bare).isnan().any()):
        check_finite_weights(model)  # the true reason, instead of warnings about the structure
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
    scores = target_values(target, output)
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
        warnings.warn(f"{structure.model}: {_OUTPUT_NOTES[structure.outputs]}", GuessWarning, stacklevel=8)
    for note in structure.notes:
        warnings.warn(f"{structure.model}: {note}", GuessWarning, stacklevel=8)
    for check in structure.failed:
        warnings.warn(f'{structure.model}: the check "{check.name}" failed: {check.detail}', GuessWarning, stacklevel=8)


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
    kind = chain_kind(mode, calls)
    layers = attention_layers(one.model, mode, live)
    masked, causal = mask_kinds(calls)
    base = replace(
        base, kind=kind, layers=layers, width=stream_width(mode, live), calls=len(mode.calls),
        masked=masked or may_be_masked(one.model_inputs), causal=causal,
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
    layout, notes, placed = place_tokens(one, calls, given, tokens, causal)
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
    layers = attention_layers(one.model, one.mode, [o.call for o in streams.layers])
    layers = tuple(replace(layer, pool=False) for layer in layers)
    tokens = streams.sizes[streams.explained]
    unstreamed, base = base, replace(base, kind="streams", streams=streams, layers=layers, tokens=tokens)
    check = Check("streams of tokens", True, f"{len(streams.sizes)} streams, attention between them seen in full")
    calls = [one.mode.calls[layers[streams.first].call]]
    if one.map_size is None:
        return replace(base, layout=Layout(given.prefix or 0, None, (0,), given.suffix), checks=(*base.checks, check))
    try:
        layout, notes, placed = place_tokens(one, calls, given, tokens, causal=False)
    except VitrailError:  # its tokens lie on no grid of the image
        return unstreamed
    return replace(base, layout=layout, notes=(*base.notes, *notes), checks=(*base.checks, check, placed))


def _order_by_image(one: StructurePass, base: ModelStructure) -> bool:
    """Whether the tokens of a random image stand in another order than those of the first one."""
    image = one.model_inputs.signal
    if base.owners is None or image is None:
        return False
    noise = values_of_noise(one, base.layers[0].call)
    if noise is None:
        return True
    return bool(order_differs(*noise, base.owners, base.overlapping, one.model_inputs.axes))


def _library(model: nn.Module) -> str:
    return type(model).__module__.split(".")[0]
