"""Evaluate a model again on perturbed inputs or with another graph, for methods that need more than one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vitrail import fast
from vitrail.capture.attention import Edit
from vitrail.capture.feature_order import check_feature_order
from vitrail.capture.forward import ForwardPass, TruncatedOutputs, forward_pass, output_pass
from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs, run_model
from vitrail.capture.layout import grid_of
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.output_tensors import fields_of
from vitrail.capture.outputs import scores_as_logits
from vitrail.capture.recorded_forward import recorded_scores
from vitrail.capture.trace import ALL, LAST, Block, Needs, Trace
from vitrail.capture.verify import gradients
from vitrail.errors import InputError, ModelError, NotApplicableError
from vitrail.models.class_group import ClassGroup, membership

if TYPE_CHECKING:
    from vitrail.lrp.propagate import Propagation, Relevances
    from vitrail.lrp.rules import RuleSet

#: Side of a cell in pixels, or in bins of a spectrogram, where a model's own patches are unknown.
PATCH = 16
#: Cells of a series whose patches are unknown.
SERIES_CELLS = 64
#: From the output for some images, and which inputs they were made from, shape (N,), to all K targets, shape (N, K).
Scorer = Callable[[Any, Tensor, str], Tensor]


class PropagationCache:
    """The last forward pass under relevance rules; its graph is as large as that of a training step, so only one."""

    def __init__(self) -> None:
        self._last: Propagation | None = None

    def get(self, rules: RuleSet, run: Callable[[], Propagation]) -> Propagation:
        """The pass under these rules: the kept one, or a new one after the old graph was released."""
        if self._last is None or self._last.rules is not rules:
            self._last = None
            self._last = run()
        return self._last

    def output_pass(
        self, model: nn.Module, model_inputs: ModelInputs, structure: ModelStructure, rules: RuleSet
    ) -> ForwardPass | None:
        """Run the forward pass under rules, keep it, and return it as a pass for the model's output.

        Rules change what goes backwards only, so its class scores are the model's own. None where they are not, or
        where the structure cannot be confirmed by it: the model is in half precision, runs under autocast, masks its
        attention, attends elsewhere as well, or has no class scores.
        """
        from vitrail.lrp.propagate import propagation

        seen = structure.kind == "plain" and not structure.masked and structure.calls == len(structure.layers)
        if not seen or model_inputs.image is None or torch.is_autocast_enabled(model_inputs.tensors[0].device.type):
            return None
        found = self.get(rules, lambda: propagation(model, model_inputs, structure, rules))
        if found.scores is None or found.evidence is None:
            return None
        evidence = found.evidence if rules.gradient else replace(found.evidence, values=None)
        return output_pass(model, model_inputs, structure, found.scores, evidence)

    def clear(self) -> None:
        """Release the graph."""
        self._last = None


@dataclass(frozen=True)
class Probe:
    """A model, its inputs and the targets, to be evaluated again with perturbed images or another graph.

    Methods that handle all targets at once get one probe; methods that handle them one by one get one for each.

    Attributes:
        model: The user's model, unwrapped.
        model_inputs: The inputs, on its device.
        structure: What it is made of.
        scorer: The targets as a function of the model's output.
        count: Number of targets an input, K.
        classes: Class indices of the targets, shape (b, K), C + i for ``groups[i]``; None where the target is a
            function.
        groups: Groups of classes among the targets.
        score: "logit", "prob" or "logprob": what is read off for a class.
        k: Index of the current target, for methods that handle targets one by one.
        max_batch: Maximum number of images in one forward pass.
        seen: The pass over the inputs as they are, where there was one that methods may read off again.
        shared: The pass whose trace a method reads, with its graph.
        notes: Where a method puts intermediate results, or None where they are not kept.
        advance: Called with the number of images just evaluated, for progress.
        propagations: Keeps the last forward pass under relevance rules for the next method with the same rules.
        removal_scorer: The same as ``scorer`` for methods that remove parts of the input; None where it is the same.
    """

    model: nn.Module
    model_inputs: ModelInputs
    structure: ModelStructure
    scorer: Scorer
    count: int
    classes: Tensor | None = None
    groups: tuple[ClassGroup, ...] = ()
    score: str = "prob"
    k: int = 0
    max_batch: int = 32
    seen: ForwardPass | None = None
    shared: ForwardPass | None = None
    notes: dict[str, list[Any]] | None = None
    advance: Callable[[int], None] = field(default=lambda _: None)
    propagations: PropagationCache = field(default_factory=PropagationCache)
    removal_scorer: Scorer | None = None

    @property
    def images(self) -> Tensor:
        """The images as the model takes them, shape (b, channels, height, width)."""
        image = self.model_inputs.image
        if image is None:
            raise NotApplicableError(f"this method changes the pixels of images, and {self.model_inputs.what}")
        return image.detach()

    @property
    def canvas(self) -> Tensor:
        """Images, or other inputs on axes, with the channels first: (b, channels, axes of the map …)."""
        canvas = self.model_inputs.canvas
        if canvas is None:
            raise NotApplicableError(
                f"this method changes images, videos, spectrograms, series or features, and {self.model_inputs.what}"
            )
        return canvas.detach()

    @property
    def cells(self) -> tuple[int, ...]:
        """Number of cells along each axis of the canvas: of the patches where these are known.

        Otherwise cells of 16 pixels or bins, one frame of a video, one variable, one feature, and 64 cells of a series.
        """
        if self.structure.layout.grid is not None:
            return self.structure.layout.grid
        axes, size = self.model_inputs.axes, self.model_inputs.map_size
        if axes is None or size is None:
            return (14, 14)
        found = []
        for name, length in zip(axes.names, size, strict=True):
            if name in ("variables", "features") or (name == "time" and len(size) == 3):
                found.append(length)
            elif name == "time" and "frequency" not in axes.names:
                found.append(min(length, SERIES_CELLS))
            else:
                found.append(ceil(length / PATCH))
        return tuple(found)

    @property
    def inputs(self) -> Tensor:
        """What can be changed little by little: the canvas, or the vectors of a text's tokens, shape (b, n, d)."""
        words, patches = self.model_inputs.words, self.model_inputs.patches
        if words is None:
            return self.canvas if patches is None else patches.detach()
        with torch.no_grad():
            vectors = self.embedding_layer(words)
        vectors = vectors[0] if isinstance(vectors, tuple) else vectors
        if not isinstance(vectors, Tensor) or vectors.shape[:-1] != words.shape:
            raise NotApplicableError(
                f"this method changes the vectors of words, and the embedding layer of {self.structure.model} returns "
                f"{fields_of(vectors)}, not one vector a word"
            )
        return vectors

    @property
    def embedding_layer(self) -> nn.Module:
        """The layer that turns a text's words into vectors."""
        find = getattr(self.model, "get_input_embeddings", None)
        try:
            layer = None if find is None else find()
        except NotImplementedError:  # transformers' way to say that there is none
            layer = None
        if not isinstance(layer, nn.Module):
            raise NotApplicableError(
                f"this method changes the vectors of words, and {self.structure.model} does not name the layer that "
                "makes them: it has no get_input_embeddings()"
            )
        return layer

    @property
    def batch(self) -> int:
        """Number of inputs."""
        return self.model_inputs.batch

    def of(self, k: int) -> Probe:
        """The same for another target."""
        return replace(self, k=k)

    def note(self, name: str, value: Any) -> None:
        """Keep an intermediate result, where these are kept."""
        if self.notes is not None:
            self.notes.setdefault(name, []).append(value)

    def pieces(self, count: int) -> Iterator[slice]:
        """``count`` images in pieces of at most ``max_batch``."""
        for start in range(0, count, self.max_batch):
            yield slice(start, min(start + self.max_batch, count))

    # -- changed images ----------------------------------------------------------------------------------------

    def fed(self, images: Tensor, owner: Tensor) -> ModelInputs:
        """Model inputs with other images (canvases) or word embeddings; all else comes from each one's own input."""
        if self.model_inputs.words is not None:
            return self.model_inputs.embedded(owner, self.embedding_layer, images)
        axes = self.model_inputs.axes
        return self.model_inputs.pick(owner, images if axes is None else axes.restore(images))

    def scores(self, images: Tensor, owner: Tensor | int = 0, precision: torch.dtype | None = None) -> Tensor:
        """All targets of perturbed images, shape (N, K), without gradients; one forward pass, so mind N.

        Args:
            images: Images, shape (N, channels, height, width), or other canvases.
            owner: Which input each was made from, shape (N,), or one for all.
            precision: Run the model in this precision by autocast instead of its own.
        """
        owner = self._owner(owner, len(images))
        cast = nullcontext() if precision is None else torch.autocast(images.device.type, precision)
        recorded = None
        if precision is None and self.classes is not None and self.model_inputs.only_image:
            recorded = recorded_scores(self.model, self.structure, images)
        if recorded is not None:
            values = self.scorer(recorded, owner, self.score)
        else:
            with frozen(self.model), torch.inference_mode(), cast, fast.with_split_products(images.device):
                output = run_model(self.model, self.fed(images, owner))
                values = self.scorer(output, owner, self.score)
        self.advance(len(images))
        return values.clone() if values.is_inference() else values

    def unchanged(self) -> Tensor:
        """All targets of the inputs as they are, shape (b, K), without gradients; no forward if they were seen."""
        owner = torch.arange(self.batch, device=self.model_inputs.tensors[0].device)
        if self.seen is None:
            return torch.cat([self.scores(self.inputs[p], owner[p]) for p in self.pieces(self.batch)])
        with torch.no_grad():
            return self.scorer(self.seen.output, owner, self.score).detach()

    def gradient(self, images: Tensor, owner: Tensor | int = 0) -> Tensor:
        """Gradient of the current target at perturbed images, in the shape of the images."""
        owner = self._owner(owner, len(images))
        with frozen(self.model):
            leaf = images.detach().clone().requires_grad_()
            with fast.with_split_products(images.device):
                output = run_model(self.model, self.fed(leaf, owner))
            value = self.scorer(output, owner, self.score)[:, self.k]
            (found,) = gradients(value.sum(), [leaf], keep=False)
        if found is None:
            raise NotApplicableError(
                f"the output of {self.structure.model} has no gradient at its input (quantised layers, or a forward "
                "pass under no_grad): use occlusion or rise"
            )
        self.advance(len(images))
        return found

    def trace(
        self, images: Tensor, needs: Needs, owner: Tensor | int = 0, edits: Mapping[int, Edit] | None = None
    ) -> Trace:
        """A pass over perturbed images, with the gradients of the current target.

        Args:
            images: Images as the model takes them, shape (N, channels, height, width).
            needs: What to keep, as in a registry line.
            owner: Which input each was made from, shape (N,), or one for all.
            edits: Functions that replace the attention of some blocks, by block.
        """
        owner = self._owner(owner, len(images))
        with forward_pass(self.model, self.fed(images, owner), self.structure, [needs], edits) as one:
            found = one.trace(self.scorer(one.output, owner, self.score)[:, self.k])
        self.advance(len(images))
        return found

    def suppressed_scores(self, kept: Tensor, owner: Tensor) -> Tensor:
        """All targets of the inputs while all blocks attend less to some tokens, shape (N, K), without gradients.

        Args:
            kept: What the attention logits of each token are multiplied with after the smallest one of their row was
                subtracted, shape (N, n).
            owner: Which input each row belongs to, shape (N,).
        """
        layers = self.structure.layers
        skipped = [self.structure.pool_skips if layer.pool else 0 for layer in layers]
        edits = {i: partial(_suppress, kept=kept[:, count:]) for i, count in enumerate(skipped)}
        chosen = self.model_inputs.indexed(owner)
        with forward_pass(self.model, chosen, self.structure, [{}], edits) as one, torch.no_grad():
            values = self.scorer(one.output, owner, self.score).detach()
        self.advance(len(owner))
        return values.to(one.dtype)

    def entering(self) -> Tensor:
        """The residual stream that enters the first block, shape (b, n, d)."""
        blocks = self.seen.blocks[:1] if self.seen is not None else ()
        if blocks and "X" in blocks[0]:
            return blocks[0].X
        with forward_pass(self.model, self.model_inputs, self.structure, [{"X": slice(0, 1)}]) as one:
            return one.blocks[0].X

    def _owner(self, owner: Tensor | int, count: int) -> Tensor:
        if isinstance(owner, Tensor):
            return owner
        return torch.full((count,), owner, dtype=torch.long, device=self.model_inputs.tensors[0].device)

    # -- other graphs --------------------------------------------------------------------------------------------

    def layer_gradients(self, count: int, pool: Callable[[Tensor], Tensor] | None = None) -> list[Tensor]:
        """Gradients at the attention of the last blocks, each of the target as if the model ended with that block.

        The outputs of these blocks are stacked in the batch where the last block's output goes on, so that the
        model's own tail, its last norm and head, reads all of them: in the shared pass, or in one of its own.

        Args:
            count: How many blocks.
            pool: Applied to a block's output, shape (b, n, d), before the tail; None to leave it as it is.

        Returns:
            One gradient a block, in order, each of shape (b, H, n, n).
        """
        layers = [i for i, o in enumerate(self.structure.layers) if not o.pool][-count:]
        shared = None if self.shared is None else self.shared.truncated
        if pool is None and shared is not None and shared.blocks[: len(layers)] == tuple(reversed(layers)):
            return self._truncated_gradients(shared, layers)
        pool = pool or (lambda x: x)
        try:
            return self._ended(layers, range(len(layers)), pool)
        except (RuntimeError, ModelError, InputError):
            # The rest of a model that puts tokens back on a grid may remember how many images there were.
            return [self._ended(layers, [i], pool)[0] for i in range(len(layers))]

    def _truncated_gradients(self, early: TruncatedOutputs, layers: Sequence[int]) -> list[Tensor]:
        """The same in the graph of the shared pass."""
        assert self.shared is not None
        owner = torch.arange(self.batch, device=self.model_inputs.tensors[0].device).repeat(len(early.blocks))
        with torch.enable_grad():
            values = self.scorer(early.output, owner, self.score)[:, self.k].view(len(early.blocks), -1)
            scores = dict(zip(early.blocks, values.sum(1), strict=True))
        nodes = self.shared.nodes
        found = [torch.autograd.grad(scores[i], nodes["dA", i], retain_graph=True)[0] for i in layers]
        return [gradient.to(self.shared.dtype) for gradient in found]

    def _ended(self, layers: Sequence[int], ends: Sequence[int], pool: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """For some of the layers, the gradient at its attention of the target as if the model ended there."""
        needs = {"dA": slice(layers[0], layers[-1] + 1)}
        owner = torch.arange(self.batch, device=self.model_inputs.tensors[0].device).repeat(len(ends))
        found = []

        def stack(outputs: list[Tensor]) -> Tensor:
            # Whether tokens or images come first, images are stacked.
            axis = 1 if self.structure.tokens_first else 0
            last = outputs[-len(layers) :]
            return torch.cat([pool(last[i]) for i in ends], axis)

        with forward_pass(self.model, self.model_inputs, self.structure, [needs], tail=stack) as one:
            values = self.scorer(one.output, owner, self.score)[:, self.k].view(len(ends), -1)
            for place, i in enumerate(ends):
                node = one.nodes["dA", layers[i]]
                (gradient,) = torch.autograd.grad(values[place].sum(), node, retain_graph=place + 1 < len(ends))
                found.append(gradient.to(one.dtype))
        return found

    def relevances(self, rules: RuleSet, want: frozenset[str], contrast: bool = False) -> Relevances:
        """Relevance of the current target, propagated by the given rules.

        A class starts with relevance 1 at its score. In a group each class starts with its share, the derivative of
        the group's logit: the softmax over the logits of the group.

        Args:
            rules: What each operation does with relevance.
            want: Which of the fields of ``Relevances`` to fill.
            contrast: Start with all classes but those of the target, equally, instead of the target.
        """
        from vitrail.lrp.propagate import propagation

        def start(values: Tensor) -> Tensor:
            if self.classes is None:
                asked = torch.zeros_like(values)
                asked[:, self.k] = 1
                return (1 - asked) / max(1, values.shape[1] - 1) if contrast else asked
            inside = membership(self.classes[:, self.k], self.groups, values.shape[1])
            if contrast:
                return (~inside).to(values) / (~inside).sum(1, keepdim=True).clamp_min(1)
            return scores_as_logits(self.model, values).masked_fill(~inside, -torch.inf).softmax(1).to(values.dtype)

        def run() -> Propagation:
            return propagation(self.model, self.model_inputs, self.structure, rules, **self._targets())

        return self.propagations.get(rules, run).relevances(start, want)

    def _targets(self) -> dict[str, Any]:
        """Where the targets are a function of the output, they are what relevance starts at."""
        if self.classes is not None:
            return {}
        owner = torch.arange(self.batch, device=self.model_inputs.tensors[0].device)
        return {"read": lambda output: self.scorer(output, owner, "logit")}

    # -- feature maps --------------------------------------------------------------------------------------------

    def features(self, kind: str = "Y", stage: int = -1, block: int | None = None) -> Tensor:
        """Feature maps of a block, shape (b, width, rows, columns); no forward if the pass that was seen kept them.

        Args:
            kind: "Y" for what the attention reads, the result of the norm before it; "branch" for what it adds, before
                LayerScale; "sum" for the stream after that sum; "out" for the stream that leaves the block.
            stage: Of models whose grid shrinks, which stage's last block: −1 the last, −2 the last but one. In a plain
                model the last block.
            block: One block by its index, whatever the stage; None for the last of the stage.
        """
        plain = self.structure.kind == "plain" and not self.structure.layers[-1].pool
        where = slice(block, block + 1) if block is not None else LAST if plain else ALL
        reads_seen = self.seen is not None and (plain or block is not None)
        blocks = _showing(kind, self.seen.blocks[where]) if reads_seen and self.seen is not None else []
        if not blocks:
            with (
                forward_pass(self.model, self.model_inputs, self.structure, [feature_needs(kind, where)]) as one,
                torch.no_grad(),
            ):
                blocks = _showing(kind, one.blocks[where])
        if not blocks:
            missing = "none of its blocks shows one" if block is None else f"block {block} shows none"
            if kind != "Y":
                missing = "its residual stream was not found; use what its attention reads, features='norm1'"
            raise NotApplicableError(f"no feature map was found in {self.structure.model}: {missing}")
        shown = blocks[-1:] if self.structure.kind == "plain" else blocks
        return self.as_map(_at_stage([_feature(block, kind) for block in shown], stage))

    def as_map(self, value: Tensor) -> Tensor:
        """Features as a map: (b, n, d) or (b, rows, columns, d) to (b, d, rows, columns), prefix left out.

        Where the places of the tokens were not measured, their order is checked on the model.
        """
        if len(value) != len(self.images):
            raise NotApplicableError(
                f"the features of {self.structure.model} do not lie on a grid: it cuts its images into "
                f"{len(value) // len(self.images)} parts before it normalises them; use rise, occlusion or an input "
                "gradient instead"
            )
        if value.dim() == 4:
            if self.structure.layers:
                check_feature_order(self.model, self.model_inputs, self.structure, 0, (value.shape[1], value.shape[2]))
            return value.permute(0, 3, 1, 2)
        size = (int(self.images.shape[2]), int(self.images.shape[3]))
        layout = self.structure.layout
        grid = layout.plane
        if grid is not None and value.shape[1] == layout.tokens:
            value = layout.patches(value, 1)
        else:
            for prefix in (0, 1, 2):
                grid = grid_of(value.shape[1] - prefix, size)
                if grid is not None:
                    check_feature_order(self.model, self.model_inputs, self.structure, prefix, grid)
                    value = value[:, prefix:]
                    break
            else:
                raise NotApplicableError(
                    f"the features of {self.structure.model} do not lie on a grid: {value.shape[1]} tokens for "
                    f"an image of {size[0]}×{size[1]}"
                )
        return value.transpose(1, 2).reshape(len(value), -1, *grid)


@dataclass(frozen=True)
class ProbedTrace(Trace):
    """A trace for methods that also evaluate the model again.

    Attributes:
        again: The model and its inputs, for the current target.
    """

    again: Probe | None = None

    @property
    def probe(self) -> Probe:
        """The model and its inputs, to evaluate it again."""
        if self.again is None:
            raise RuntimeError("this trace was made without a probe: pass again=Probe(...)")
        return self.again

    @classmethod
    def of(cls, trace: Trace, probe: Probe, notes: dict[str, list[Any]] | None) -> ProbedTrace:
        """A trace with a probe, and a place for intermediate results."""
        own = {f.name: getattr(trace, f.name) for f in fields(Trace)}
        return cls(**{**own, "notes": notes}, again=probe)


def _suppress(A: Tensor, kept: Tensor) -> Tensor:
    """Attention, shape (N, H, m, n), after its logits above the smallest one of their row were multiplied.

    Softmax leaves open what was added to all logits of a row, so the logarithm of the attention serves. Keys without
    attention are masked and stay so.
    """
    logits = A.to(torch.promote_types(A.dtype, torch.float32)).log()
    masked = A == 0
    low = logits.masked_fill(masked, torch.inf).amin(-1, keepdim=True)
    changed = ((logits - low) * kept[:, None, None].to(logits)).masked_fill(masked, -torch.inf)
    return torch.where(masked.all(-1, keepdim=True), A, changed.softmax(-1).to(A.dtype))


def feature_needs(kind: str, where: slice = LAST) -> Needs:
    """What a pass must keep for `Probe.features` of a kind."""
    kinds = {"Y": ("Y",), "out": ("stream",)}.get(kind, ("branch", "stream"))
    return dict.fromkeys(kinds, where)


def _showing(kind: str, blocks: Sequence[Block]) -> list[Block]:
    name = {"out": "X_mid", "sum": "branch"}.get(kind, kind)
    return [b for b in blocks if name in b and not b.pool]


def _feature(block: Block, kind: str) -> Tensor:
    """The features of a kind, in the shape of the stream."""
    if kind == "out":
        return block.X_mid if block.F is None else block.X_mid + block.F
    if kind == "sum":
        return block.X + block.branch
    value: Tensor = getattr(block, kind)
    scale = getattr(block, "gamma", None) if kind == "branch" else None
    return value if scale is None else value / scale


def _at_stage(maps: Sequence[Tensor], stage: int) -> Tensor:
    """The last map of a stage, counted from the end; a stage is a run of maps with the same number of positions."""
    sizes = [m.shape[1:-1].numel() for m in maps]
    starts = [i for i, size in enumerate(sizes) if i == 0 or size != sizes[i - 1]]
    ends = [*(i - 1 for i in starts[1:]), len(maps) - 1]
    return maps[ends[max(stage, -len(ends))]]
