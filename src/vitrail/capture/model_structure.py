"""ModelStructure: the attention layers, tokens and readout that were found in a model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from vitrail.capture.layout import Layout, by
from vitrail.capture.streams import Streams
from vitrail.capture.verify import Check

#: Kinds of models whose tokens no single chain of n×n attention matrices connects, and why.
UNCHAINED_KINDS = {
    "windowed": "attends inside windows (or to several crops or copies of an image at a time), so no attention matrix "
    "connects all its patches",
    "pyramid": "changes its number of tokens on the way, so its attention matrices do not multiply",
    "encoder-decoder": "has attention between two sequences of its own, such as those of a decoder and an encoder, so "
    "its attention layers form no single chain",
    "class-attention": "reads its patches through several class-attention layers",
    "parallel": "runs attention layers side by side (parallel branches, several encoders, or an encoder and a "
    "decoder), so they form no single chain",
    "streams": "has several streams of tokens that cross-attention joins, such as an encoder and a decoder, and this "
    "method is defined for one stream",
    "mixed": "combines its attention maps with something else before it multiplies them with the values",
    "sampled": "reads features at sampled points, as deformable attention does, so no attention matrix connects its "
    "queries and patches",
    "unseen": "moves information between tokens outside the attention that was recognised",
    "quantised": "has int8 layers, through which no gradient passes; explain the model before it was quantised",
    "detached": "computes its attention without gradients (its forward pass runs under no_grad, inference_mode or "
    "reentrant checkpointing, or detaches its input), so how its layers depend on each other cannot be confirmed; let "
    "gradients pass",
    "none": "has no attention that was recognised: none of scaled_dot_product_attention, multi_head_attention_forward, "
    "flex_attention or softmax times values was called",
}


@dataclass(frozen=True)
class AttentionLayer:
    """One attention layer as found.

    Attributes:
        call: Which of the model's attention calls it is.
        heads: Number of heads.
        pool: Whether it is an attention pool.
        projection: Name of the output projection's weight, or None if none was seen or it does not hold numerically.
        value: Name of the value projection's weight, or None, likewise.
        scale: Name of the LayerScale of the attention branch, or None.
        stream: Whether the residual stream was found and adds up.
        mlp: Whether the MLP's branch was found.
        product: Whether its logits hold a product of queries and keys.
        size: Number of queries and of keys.
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
    size: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class ModelStructure:
    """The structure of a model, with the checks that confirm it.

    Attributes:
        model: The model's class.
        library: The package that class comes from.
        kind: "plain" (every token attends to every token) or a key of ``UNCHAINED_KINDS``.
        layout: Prefix, suffix, grid and readout.
        tokens: Number of tokens n.
        layers: Attention layers in order; an attention pool comes last.
        width: Number of feature maps: rows of the last output projection seen, 0 if none was.
        tokens_first: Whether the residual stream is laid out (n, b, d) instead of (b, n, d).
        heads_first: Whether a merged batch-and-heads axis holds all inputs of the first head first.
        pool_skips: Number of leading tokens (registers) that the attention pool does not read.
        outputs: What the model returns: "scores", "probabilities", "sigmoid", or "features" where it has no
            classification head.
        notes: What was guessed or is unusual.
        checks: The self-check: what was measured, and whether it holds.
        calls: Number of attention calls in one forward pass, those that do not reach the score included.
        masked: Whether some queries may not attend to some keys, as in causal models, or a mask may say so.
        causal: Whether no token can attend to a later one.
        members: Number of encoders side by side whose last attention reaches the score, such as those of an ensemble.
        given: What the user said of the layout.
        owners: Token of each pixel (frame, time bin …) as measured, in the shape of a map, or None.
        overlapping: Whether a pixel belongs to several tokens.
        order_by_image: Whether the order of the tokens depends on the image.
        axes: Axes of a map of what is explained, such as ("height", "width") or ("time", "height", "width"); empty for
            texts.
        text: Whether the tokens of a text are explained.
        streams: Streams of tokens that attention joins, for models of kind "streams"; else None.
        norm_first: Whether the last block normalises in front of its attention, not after the sum.
        from_words: Whether the graph of a text starts at the embeddings of its own tokens alone.
        programs: Programs of the passes for which the structure was confirmed, see `vitrail.capture.program`.
    """

    model: str
    library: str
    kind: str
    layout: Layout
    tokens: int
    layers: tuple[AttentionLayer, ...]
    width: int = 0
    tokens_first: bool = False
    heads_first: bool = False
    pool_skips: int = 0
    outputs: str = "scores"
    notes: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    calls: int = 0
    masked: bool = False
    causal: bool = False
    members: int = 1
    given: Layout = field(default_factory=Layout)
    owners: Tensor | None = field(default=None, compare=False, repr=False)
    overlapping: bool = False
    order_by_image: bool = False
    axes: tuple[str, ...] = ()
    text: bool = False
    streams: Streams | None = None
    norm_first: bool = False
    from_words: bool = False
    programs: dict[int, Any] = field(default_factory=dict, compare=False, repr=False)

    def same_facts(self, other: ModelStructure) -> bool:
        """Whether another measurement found the same; the numbers of its checks may differ."""
        if (self.owners is None) != (other.owners is None):
            return False
        if self.owners is not None and other.owners is not None and not self.owners.equal(other.owners.to(self.owners)):
            return False
        verdicts, other_verdicts = ([(c.name, c.passed) for c in one.checks] for one in (self, other))
        return verdicts == other_verdicts and replace(self, checks=()) == replace(other, checks=())

    @property
    def pooled(self) -> bool:
        """Whether the head reads the tokens through an attention pool."""
        return bool(self.layers) and self.layers[-1].pool

    @property
    def has_stream(self) -> bool:
        """Whether the residual stream and output projection of every block were found and add up."""
        return self.missing_stream is None

    @property
    def missing_stream(self) -> int | None:
        """The first block whose residual stream or output projection was not found or does not add up, or None."""
        found = [o.projection is not None and (o.pool or (o.stream and o.mlp)) for o in self.layers]
        return next((i for i, holds in enumerate(found) if not holds), None)

    @property
    def missing_sum(self) -> int | None:
        """The first block whose attention was not seen to be added to the residual stream, or None."""
        return next((i for i, o in enumerate(self.layers) if not (o.pool or o.stream)), None)

    @property
    def failed(self) -> tuple[Check, ...]:
        """Checks that do not hold."""
        return tuple(check for check in self.checks if check.passed is False)

    def rows(self) -> list[tuple[str, str]]:
        """The findings as (what, value) pairs, for printing."""
        blocks = [o for o in self.layers if not o.pool]
        layers = "1 layer" if len(self.layers) == 1 else f"{len(self.layers)} layers"
        rows = [("model", f"{self.model} ({self.library})"), ("attention", f"{self.kind}, {layers}")]
        if blocks:
            rows.append(("heads", ", ".join(str(h) for h in sorted({o.heads for o in blocks}))))
        if self.kind == "plain":
            rows += [("tokens", self._token_row()), ("readout", self.layout.describe())]
        if self.streams is not None:
            sizes = [
                f"{n} (explained)" if i == self.streams.explained else str(n) for i, n in enumerate(self.streams.sizes)
            ]
            rows += [("streams", ", ".join(sizes)), ("tokens", self._token_row())]
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

    def _token_row(self) -> str:
        layout = self.layout
        patches = f"{self.tokens - (layout.prefix or 0) - layout.suffix} others"
        if layout.grid:
            order = "" if layout.table is None else ", not row by row"
            patches = f"{by(layout.grid)} patches{order}"
        suffix = f" + {layout.suffix} suffix" if layout.suffix else ""
        return f"{self.tokens} = {layout.prefix} prefix + {patches}{suffix}"

    def __str__(self) -> str:
        rows = [*self.rows(), *((f"check: {check.name}", str(check)) for check in self.checks)]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
