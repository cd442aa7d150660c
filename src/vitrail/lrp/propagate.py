"""Run a forward pass under relevance rules and propagate relevance back through it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.func import functional_call

from vitrail import fast
from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_call import run_model
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.output_tensors import any_output, logits_of
from vitrail.capture.pass_evidence import PassEvidence
from vitrail.capture.program import Program
from vitrail.capture.trace import Trace
from vitrail.capture.verify import upstream_of
from vitrail.errors import ModelError, NotApplicableError, StructureDiffersError
from vitrail.lrp.mode import RelevanceMode
from vitrail.lrp.ops import HALF, Samples
from vitrail.lrp.rule_sets import RuleSet

_log = logging.getLogger(__name__)
#: Packages whose layers hold quantised weights and compute their products out of sight of the rules.
_QUANTISED = ("bitsandbytes", "auto_gptq", "gptqmodel", "awq", "optimum.quanto", "hqq", "eetq", "torchao")
#: From the scores, shape (b, C), to the relevance to start with, in their shape.
Start = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Relevances:
    """The relevance that was propagated.

    Attributes:
        A: Relevance of the attention of each block, shape (b, H, m, n); of the last block only where that was asked.
        tokens: Relevance of the tokens that enter the first block, prefix included, shape (b, n).
        pixels: Relevance of the pixels, summed over channels, shape (b, height, width).
        blocks: Total relevance that enters each block's stream, shape (b,); attention pools have none and are left out.
    """

    A: tuple[Tensor, ...] = ()
    tokens: Tensor | None = None
    pixels: Tensor | None = None
    blocks: tuple[Tensor, ...] = ()

    def map(self, trace: Trace) -> Tensor:
        """Relevance of pixels, shape (b, height, width), if it was computed, else of patches, shape (b, S)."""
        if self.pixels is not None:
            return self.pixels
        if self.tokens is None:
            raise ValueError("neither the relevance of pixels nor of tokens was computed")
        return trace.patches(self.tokens)


@dataclass(frozen=True)
class Propagation:
    """A forward pass under rules, whose graph is kept to propagate relevance through it.

    Attributes:
        rules: What each operation does with relevance.
        structure: What the model is made of.
        passes: The batch, in one or more parts.
    """

    rules: RuleSet
    structure: ModelStructure
    passes: tuple[_Pass, ...]

    @property
    def scores(self) -> Tensor | None:
        """The class scores in the model's output, shape (b, C), without a graph; None where it has none."""
        found = [one.logits for one in self.passes if one.logits is not None]
        return torch.cat(found) if len(found) == len(self.passes) else None

    @property
    def evidence(self) -> PassEvidence | None:
        """What the pass shows of the structure; None where the batch was divided or the precision changed."""
        return self.passes[0].evidence if len(self.passes) == 1 else None

    @property
    def output(self) -> Any:
        """What the model returned, in the graph; None where the batch was divided."""
        return self.passes[0].output if len(self.passes) == 1 else None

    def reading(self, read: Callable[[Any], Tensor]) -> Propagation:
        """The same pass with the scores that a function reads from the output; what it computes is propagated through.

        Raises:
            StructureDiffersError: They depend on other attention layers than those of the structure.
        """
        device = self.passes[0].mode.attention[0].device
        with torch.enable_grad(), fast.without_autocast(device):
            return replace(self, passes=tuple(_reading(one, self.structure, read) for one in self.passes))

    def relevances(self, start: Start, want: frozenset[str]) -> Relevances:
        """Propagate relevance in one backward pass.

        Args:
            start: What to start with.
            want: Any of "A", "A:last" (of the last block only, which is cheaper), "tokens", "pixels" and "totals".

        Returns:
            The requested fields. Rules that modify gradients give input times gradient everywhere.
        """
        if "pixels" in want and any(one.image is None for one in self.passes):
            raise NotApplicableError("only images have pixels: ask for the relevance of the tokens, where='tokens'")
        scores = [one.explained.detach() for one in self.passes]
        parts = torch.split(start(torch.cat(scores)), [len(one) for one in scores])
        found = [_collect(one, self.structure, part, want) for one, part in zip(self.passes, parts, strict=True)]
        return found[0] if len(found) == 1 else _joined(found)


@dataclass(frozen=True)
class _Pass:
    """One forward: what the mode saw, the scores in its graph, the image it starts at, class scores and evidence.

    Scores that are not known yet are read from the output later.
    """

    mode: RelevanceMode
    scores: Tensor | None
    image: Tensor | None
    explained_name: str
    logits: Tensor | None = None
    evidence: PassEvidence | None = None
    output: Any = None

    @property
    def explained(self) -> Tensor:
        """The scores.

        Raises:
            ModelError: They have no gradient.
        """
        if self.scores is None:
            raise RuntimeError("the scores have not been read from the output yet")
        if not self.scores.requires_grad:
            raise ModelError(
                f"no relevance can be propagated: what is explained was computed from {self.explained_name} "
                "without a gradient (from whole numbers, or detached); pass another target"
            )
        return self.scores


def propagation(
    model: nn.Module,
    model_inputs: ModelInputs,
    structure: ModelStructure,
    rules: RuleSet,
    read: Callable[[Any], Tensor] | None = any_output,
) -> Propagation:
    """Run one forward under rules.

    Args:
        model: The user's model, unwrapped; it is left as it was.
        model_inputs: Inputs on its device.
        structure: As read from it.
        rules: What each operation does with relevance.
        read: From the model's output to the scores; what it computes is propagated through as well. None for scores
            that are read later, by `Propagation.reading`; only the relevance of tokens can then be asked for.
    """
    _refuse_quantised(model, rules)
    batch = model_inputs.batch
    parts = [model_inputs]
    if (
        structure.tokens_first
        and batch > 1
        and batch in (structure.tokens, structure.tokens - (structure.layout.prefix or 0))
    ):
        # With as many tokens as images, the two axes cannot be distinguished.
        parts = [model_inputs.select(slice(0, batch - 1)), model_inputs.select(slice(batch - 1, None))]
    with frozen(model), fast.without_autocast(model_inputs.tensors[0].device):
        return Propagation(rules, structure, tuple(_run(model, part, structure, rules, read) for part in parts))


def _refuse_quantised(model: nn.Module, rules: RuleSet) -> None:
    """Refuse quantised layers where rules read weights: only the plain gradient passes their products as it must."""
    if rules.gradient and not rules.reads_weights:
        return
    layer = next((kind for kind in map(type, fast.modules_of(model)) if kind.__module__.startswith(_QUANTISED)), None)
    if layer is not None:
        raise NotApplicableError(
            f"the rules of {rules.name} need the weights of linear layers, and {layer.__name__} of "
            f"{layer.__module__.partition('.')[0]} hides quantised ones; use attnlrp:gamma_linear=0, "
            "conservative_lrp or a gradient method, or load the model without quantisation"
        )


def _run(
    model: nn.Module,
    model_inputs: ModelInputs,
    structure: ModelStructure,
    rules: RuleSet,
    read: Callable[[Any], Tensor] | None,
) -> _Pass:
    image = model_inputs.image
    start, leaf = model_inputs.numbers, None
    if start is not None:
        leaf = start.detach().to(torch.promote_types(start.dtype, torch.float32)).requires_grad_()
        model_inputs = model_inputs.swap(start, leaf.clone())
    samples = Samples(model_inputs.batch, structure.tokens_first)
    options: dict[str, Any] = {"text": start is None, "heads_first": structure.heads_first}
    if read is None:
        options["tokens_of"] = structure.layers[0].call
    mode, scores, logits, program, output = None, None, None, Program(), None
    split: AbstractContextManager[Any] = (
        fast.with_split_products(model_inputs.tensors[0].device) if rules.gradient else nullcontext()
    )
    if rules.supports_bfloat16 and not fast.fast_paths_disabled() and _precisions(model) == {torch.bfloat16}:
        mode = RelevanceMode(rules, samples, **options, mixed_precision=True)
        try:
            with mode:
                output = model_inputs.into(model)
                scores = None if read is None else read(output).float()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # its own code does not take two precisions
            _log.debug("relevance is propagated in single precision: %s", error)
            output = None
    if mode is None or output is None:
        program = Program(model_inputs.tensors)
        mode = RelevanceMode(rules, samples, **options, program=program)
        with split, mode:
            output = _single(model, model_inputs)
            scores = None if read is None else read(output)
            logits = None if _precisions(model) else logits_of(output)  # in half precision they are not the model's own
    if len(mode.attention) <= structure.layers[-1].call or (read is None and len(mode.attention) != structure.calls):
        raise StructureDiffersError(
            f"the model attended {len(mode.attention)} times where {structure.layers[-1].call + 1} were expected: "
            "its path depends on the input; explain the inputs one by one"
        )
    found = _Pass(mode, scores, None if image is None else leaf, model_inputs.explained_name)
    if read is None:
        return replace(found, evidence=PassEvidence(program), output=output)
    if logits is None or image is None:
        return found
    first = mode.first_values if structure.layers[0].call == 0 and structure.owners is not None else None
    return replace(found, logits=logits.detach(), evidence=PassEvidence(program, first, leaf))


def _reading(one: _Pass, structure: ModelStructure, read: Callable[[Any], Tensor]) -> _Pass:
    one.mode.program = None  # the functions of the target are none of the model's
    with one.mode:
        scores = read(one.output)
    scores = scores.float() if one.mode.mixed_precision else scores
    # Results that do not depend on the input are no nodes of the graph.
    layers = {o.call for o in structure.layers if o.call in one.mode.results and one.mode.results[o.call].requires_grad}
    if scores.requires_grad and upstream_of(scores, one.mode.results) != layers:
        raise StructureDiffersError(
            f"{structure.model}: what is explained depends on other attention layers than those on which its structure "
            "was measured"
        )
    return replace(one, scores=scores, output=None)


def in_half_precision(model: nn.Module) -> bool:
    """Whether relevance is propagated in another precision than that of some of the model's tensors."""
    return bool(_precisions(model))


def _precisions(model: nn.Module) -> set[torch.dtype]:
    """The half precisions among a model's tensors."""
    return fast.call_cache("half precisions", model, lambda one: {t.dtype for t in fast.weights_of(one)} & set(HALF))


def _single(model: nn.Module, model_inputs: ModelInputs) -> Any:
    """What the model says; one in half precision says it in single, for its numbers cannot hold relevance."""
    if not _precisions(model):
        return run_model(model, model_inputs)
    half = {name: t for name, t in (*model.named_parameters(), *model.named_buffers()) if t.dtype in HALF}
    wide = model_inputs.changed(_widened)
    single = {name: t.detach().float() for name, t in half.items()}
    return wide.reading.read(functional_call(model, single, wide.args, dict(wide.kwargs)))


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in HALF else tensor


@dataclass(frozen=True)
class _Place:
    """Where relevance is read: a node of the graph, and the value there for rules that carry gradients."""

    node: Tensor | GradientEdge
    value: Tensor


def _collect(one: _Pass, structure: ModelStructure, R: Tensor, want: frozenset[str]) -> Relevances:
    mode, layers = one.mode, structure.layers
    attention = layers if "A" in want else layers[-1:] if "A:last" in want else ()
    inside = layers if structure.streams is None else (layers[structure.streams.first],)
    streams = [o.call for o in inside if not o.pool] if want & {"tokens", "totals"} else []
    if "totals" not in want:
        streams = streams[:1]
    missing = [i for i, call in enumerate(streams) if call not in mode.entering]
    if missing:
        raise NotApplicableError(
            f"the residual stream was not found in block {missing[0]} of {structure.model}, so the relevance of its "
            "tokens cannot be read; ask for pixels"
        )
    if any(not mode.attention[o.call].requires_grad for o in attention):
        if mode.mixed_precision and "softmax" not in mode.rules.rules:
            raise NotApplicableError(
                f"{structure.model} is in half precision, where {mode.rules.name} does not compute the relevance of "
                "attention itself; use a float32 model, or set VITRAIL_PLAIN=1"
            )
        raise NotApplicableError(f"the rules of {mode.rules.name} hold attention fixed, so it has no relevance")
    places = [_Place(mode.attention[o.call], mode.attention[o.call]) for o in attention]
    places += [_Place(*mode.entering[call]) for call in streams]
    if "pixels" in want and one.image is not None:
        places.append(_Place(one.image, one.image))
    nodes: Any = [place.node for place in places]
    found = torch.autograd.grad(one.explained, nodes, R, retain_graph=True, allow_unused=True)
    values = [_relevance(place, value, mode.rules.gradient) for place, value in zip(places, found, strict=True)]

    batch = mode.samples.count
    # Some models take their softmax in single precision whatever they run in; relevance has the scores' own.
    A = [v.view(batch, -1, *v.shape[-2:]).to(one.explained.dtype) for v in values[: len(attention)]]
    X = [_batch_first(v, mode.samples) for v in values[len(attention) : len(attention) + len(streams)]]
    return Relevances(
        tuple(A),
        _of_tokens(X[0], mode.keys[streams[0]]) if "tokens" in want else None,
        values[-1].sum(1) if "pixels" in want else None,
        tuple(x.sum((1, 2)) for x in X) if "totals" in want else (),
    )


def _relevance(place: _Place, found: Tensor | None, gradient: bool) -> Tensor:
    if found is None:
        return torch.zeros_like(place.value)
    return found * place.value.detach() if gradient else found


def _batch_first(X: Tensor, samples: Samples) -> Tensor:
    return X.transpose(0, 1) if samples.second and X.shape[1] == samples.count else X


def _of_tokens(X: Tensor, tokens: int) -> Tensor:
    """Relevance of the stream summed over its channels, which some models have in front of the tokens."""
    channels_first = X.dim() == 3 and X.shape[1] != tokens == X.shape[2]
    return X.sum(1 if channels_first else -1)


def _joined(parts: Sequence[Relevances]) -> Relevances:
    first = parts[0]
    return Relevances(
        tuple(torch.cat(pair) for pair in zip(*(p.A for p in parts), strict=True)),
        None if first.tokens is None else torch.cat([p.tokens for p in parts if p.tokens is not None]),
        None if first.pixels is None else torch.cat([p.pixels for p in parts if p.pixels is not None]),
        tuple(torch.cat(pair) for pair in zip(*(p.blocks for p in parts), strict=True)),
    )
