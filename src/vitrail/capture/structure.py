"""What a model is made of, found by letting one input through it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vitrail.capture.attention import AttentionMode, Call
from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs, any_output
from vitrail.capture.layout import Layout, read_layout, read_readout
from vitrail.capture.residual import ResidualStream
from vitrail.errors import GuessWarning, InputError, ModelError, VitrailError

#: Kinds of models whose attention is found but whose tokens no single n×n matrix joins, and why.
UNCHAINED_KINDS = {
    "windowed": "attends inside windows, so no attention matrix joins all its patches",
    "pyramid": "changes its number of tokens on the way, so its attention matrices do not multiply",
    "class-attention": "reads its patches through several class-attention layers",
    "parallel": "attends several times side by side in a block, so its layers form no chain",
    "mixed": "mixes its attention maps with something else before they meet the values",
}
_PROBE_BLOCKS = frozenset(range(4096))
_known: WeakKeyDictionary[nn.Module, dict[Any, ModelStructure]] = WeakKeyDictionary()


@dataclass(frozen=True)
class AttentionLayer:
    """One block as found.

    Attributes:
        call: Which of the model's attention calls it is.
        heads: Number of heads.
        pool: Whether it is an attention pool.
        projection: Name of the output projection's weight, or None if none was seen.
        value: Name of the value projection's weight, or None.
        scale: Name of the LayerScale of the attention branch, or None.
        stream: Whether the residual stream was found.
        mlp: Whether the MLP's branch was found.
        product: Whether its attention is made of queries and keys alone.
    """

    call: int
    heads: int
    pool: bool
    projection: str | None
    value: str | None
    scale: str | None
    stream: bool
    mlp: bool
    product: bool = True


@dataclass(frozen=True)
class ModelStructure:
    """What was found in a model.

    Attributes:
        model: The model's class.
        library: Where that class comes from.
        kind: "plain" (every token attends to every token) or a key of ``UNCHAINED_KINDS``.
        layout: Prefix, grid and readout.
        tokens: Number of tokens n.
        layers: Blocks in order; an attention pool comes last.
        width: Number of feature maps: rows of the last output projection seen, 0 if none was.
        tokens_first: Whether the residual stream is laid out (n, b, d) instead of (b, n, d).
        notes: What was guessed or is unusual.
    """

    model: str
    library: str
    kind: str
    layout: Layout
    tokens: int
    layers: tuple[AttentionLayer, ...]
    width: int = 0
    tokens_first: bool = False
    notes: tuple[str, ...] = ()

    @property
    def pooled(self) -> bool:
        """Whether the head reads the tokens through an attention pool."""
        return bool(self.layers) and self.layers[-1].pool

    @property
    def has_stream(self) -> bool:
        """Whether the residual stream and output projection of every block were found."""
        return all(o.projection is not None and (o.pool or (o.stream and o.mlp)) for o in self.layers)

    def rows(self) -> list[tuple[str, str]]:
        """The findings as (what, value) pairs, for printing."""
        blocks = [o for o in self.layers if not o.pool]
        layers = "1 layer" if len(self.layers) == 1 else f"{len(self.layers)} layers"
        rows = [("model", f"{self.model} ({self.library})"), ("attention", f"{self.kind}, {layers}")]
        if blocks:
            rows.append(("heads", ", ".join(str(h) for h in sorted({o.heads for o in blocks}))))
        grid = self.layout.grid
        if self.kind == "plain":
            tokens = f"{self.tokens} = {self.layout.prefix} prefix"
            patches = f"{grid[0]}×{grid[1]} patches" if grid else f"{self.tokens - (self.layout.prefix or 0)} others"
            rows += [("tokens", f"{tokens} + {patches}"), ("readout", self.layout.describe())]
        for label, names in (
            ("value projection", [o.value for o in self.layers]),
            ("output projection", [o.projection for o in self.layers]),
            ("LayerScale", [o.scale for o in self.layers]),
        ):
            found = [n for n in names if n]
            rows.append((label, found[0] + (f" … {found[-1]}" if len(found) > 1 else "") if found else "none"))
        if self.kind == "plain":
            stream, mlps = sum(o.stream for o in blocks), sum(o.mlp for o in blocks)
            rows.append(("residual stream", f"found in {stream} of {len(blocks)} blocks, MLP in {mlps}"))
        rows += [("note", note) for note in self.notes]
        return rows

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def read_structure(
    model: nn.Module, model_inputs: ModelInputs, layout: Layout | None = None, target: Callable[..., Any] | None = None
) -> ModelStructure:
    """Let one input through the model and note what it is made of; remembered for as long as the model lives.

    Args:
        model: The user's model; it is left as it was.
        model_inputs: Inputs on the model's device; only the first is used.
        layout: What the user already knows.
        target: What is to be explained, where that is not a class score: the readout depends on it.
    """
    key = (
        model_inputs.shape,
        tuple((t.dtype, t.device) for t in model_inputs.tensors),
        hash(tuple(map(id, model.modules()))),
        layout,
        target,
    )
    known = _known.setdefault(model, {})
    if key not in known:
        if len(known) >= 32:
            known.clear()
        known[key] = _probe(model, model_inputs.take(slice(0, 1)), layout or Layout(), target)
    return known[key]


def _probe(
    model: nn.Module, model_inputs: ModelInputs, layout: Layout, target: Callable[..., Any] | None
) -> ModelStructure:
    # The graph starts at the pixels, so that only attention over the image is part of it; a text has no such start,
    # and there the first attention serves.
    plan = dict.fromkeys(("stream", "value_path"), _PROBE_BLOCKS)
    image = model_inputs.image
    if image is None:
        plan["dA"] = frozenset({0})
    mode = AttentionMode(plan, batch=1, keep_output=True)
    with frozen(model):
        if image is not None:
            model_inputs = model_inputs.swap(image, image.detach().clone().requires_grad_())
        try:
            with mode:
                output = model_inputs.into(model)
        except VitrailError:
            raise
        except Exception as error:
            raise _refused(model, model_inputs, error) from error
        if not mode.calls:
            raise ModelError(
                f"no attention was found in {type(model).__name__}: none of scaled_dot_product_attention, "
                "multi_head_attention_forward or softmax-times-values was called; Vitrail explains transformers"
            )
        scalar = any_output(output) if target is None else torch.as_tensor(target(output))
        return _describe(model, model_inputs, mode, layout, scalar)


def _describe(
    model: nn.Module, model_inputs: ModelInputs, mode: AttentionMode, given: Layout, scalar: Tensor
) -> ModelStructure:
    image = model_inputs.image
    size = None if image is None else (int(image.shape[2]), int(image.shape[3]))
    calls, kind = _tower(mode)
    base = ModelStructure(type(model).__name__, _library(model), kind, given, 0, (), _width(mode, calls))
    names = {p.untyped_storage().data_ptr(): name for name, p in model.named_parameters()}
    layers = tuple(_layer(i, mode, names) for i in calls)
    if kind != "plain":
        return replace(base, layers=layers)
    blocks = [mode.calls[i] for i in calls]
    tokens = blocks[0].shape[3]
    notes: list[str] = []
    layout = read_layout(given, tokens, size, blocks[0].grid if size else None, _stated_prefix(model))
    layout, note = _find_readout(layout, blocks, scalar, text=size is None, valid=model_inputs.valid)
    if note:
        notes.append(note)
    if size is not None and blocks[0].grid != layout.grid and given.grid is None:
        notes.append("the grid was inferred from the image's shape: no patch-embedding convolution was seen")
    for guess in notes:
        warnings.warn(f"{type(model).__name__}: {guess}", GuessWarning, stacklevel=5)
    X = getattr(blocks[0].block, "X", None) if layers[0].stream else None
    tokens_first = X is not None and X.shape[0] == tokens and X.shape[1] == 1
    return replace(base, layout=layout, tokens=tokens, layers=layers, tokens_first=tokens_first, notes=tuple(notes))


def _tower(mode: AttentionMode) -> tuple[list[int], str]:
    """Which attention calls form the encoder to be explained, and what kind it is.

    A model of two towers also attends over its text; those calls do not depend on the pixels.
    """
    calls = mode.calls
    seen = [i for i, c in enumerate(calls) if c.Z is not None and c.Z.requires_grad] or list(range(len(calls)))
    shapes = [calls[i].shape for i in seen]
    tokens = shapes[0][3]
    pools = [s for s in shapes if s[2] == 1 < s[3]]
    if mode.recogniser.unmatched:
        return seen, "mixed"
    if any(s[0] != 1 for s in shapes):
        return seen, "windowed"
    if len(pools) > 1:
        return seen, "class-attention"
    if any(s[2:] != (tokens, tokens) for s in shapes[:-1]) or shapes[-1][3] != tokens or shapes[-1][2] > tokens:
        return seen, "pyramid"
    # Few latent queries read out of all tokens; many would be a stage of a pyramid.
    if shapes[-1][2] != tokens and (len(shapes) == 1 or shapes[-1][2] > max(8, tokens // 16)):
        return seen, "pyramid"
    if any(calls[i].beside for i in seen):
        return seen, "parallel"
    return seen, "plain"


def _find_readout(
    layout: Layout, blocks: list[Call], scalar: Tensor, text: bool, valid: Tensor | None
) -> tuple[Layout, str | None]:
    last = blocks[-1]
    pool = last.shape[2] < last.shape[3]
    prefix = layout.prefix
    if layout.readout is None:
        readout = None
        if last.Z is not None and scalar.requires_grad and last.Z.requires_grad:
            # A fixed direction in output space: any one output could be blind to a token by chance.
            generator = torch.Generator().manual_seed(0)
            direction = torch.randn(scalar.shape, generator=generator).to(scalar)
            (gradient,) = torch.autograd.grad((scalar * direction).sum(), last.Z, allow_unused=True)
            if gradient is not None:
                reach = gradient[0].double().pow(2).sum((0, 2)).sqrt()
                reach = reach if valid is None else reach[valid[0]]
                readout = read_readout(reach, 1 if pool else (prefix or 0) if not text else 0)
        if pool:
            readout = readout if isinstance(readout, tuple) else "pool"
        note = None
        if readout is None:
            readout = "cls" if prefix or text else "mean"
            note = f"the head's gradient is zero everywhere (an untrained head?): readout {readout!r} is a guess"
        layout = replace(layout, readout=readout)
    else:
        note = None
    if prefix is None:  # text: the token that is read is no word of the input
        layout = replace(layout, prefix=1 if layout.readout in ("cls", (0,)) else 0)
    return layout, note


def _width(mode: AttentionMode, calls: Sequence[int]) -> int:
    parameters = {} if mode.stream is None else mode.stream.parameters
    weights = [parameters["Wo", i] for i in calls if ("Wo", i) in parameters]
    return int(weights[-1].shape[0]) if weights else 0


def _layer(index: int, mode: AttentionMode, names: dict[int, str]) -> AttentionLayer:
    stream: ResidualStream | None = mode.stream
    parameters = stream.parameters if stream is not None else {}

    def name(kind: str) -> str | None:
        tensor = parameters.get((kind, index))
        return None if tensor is None else names.get(tensor.untyped_storage().data_ptr(), "(unnamed)")

    call = mode.calls[index]
    held = vars(call.block)
    return AttentionLayer(
        index, call.shape[1], call.shape[2] < call.shape[3], name("Wo"), name("Wv"), name("gamma"),
        "X" in held, held.get("F") is not None, call.product,
    )  # fmt: skip


def _stated_prefix(model: nn.Module) -> int | None:
    for module in model.modules():
        stated = getattr(module, "num_prefix_tokens", None)
        if isinstance(stated, int):
            return stated
    return None


def _library(model: nn.Module) -> str:
    return type(model).__module__.split(".")[0]


def _refused(model: nn.Module, model_inputs: ModelInputs, error: Exception) -> VitrailError:
    """The model's own complaint, with what was fed and what it seems to want."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if "nference tensor" in reason:
        return ModelError(
            "the model's weights were made under torch.inference_mode(), so nothing can be differentiated through "
            "them: load the model outside of it"
        )
    image = model_inputs.image
    if image is None:
        return InputError(f"{type(model).__name__} refused its input: {reason}")
    weight = next((m.weight for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    channels, height, width = image.shape[1:]
    if weight is not None and weight.shape[1] != channels:
        return InputError(
            f"the images have {channels} channels, {type(model).__name__} takes {weight.shape[1]}: "
            "convert them first (paths and PIL images are converted for you)"
        )
    return InputError(
        f"{type(model).__name__} refused images of {height}×{width} pixels ({reason}): resize them to the model's own "
        "size, or pass paths or PIL images, which are resized for you"
    )
