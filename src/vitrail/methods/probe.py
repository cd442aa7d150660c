"""Evaluate a model again on perturbed inputs or with another graph, for methods that need more than one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitrail.capture.attention_recorder import Edit
from vitrail.capture.forward import forward_pass
from vitrail.capture.kept_pass import TruncatedOutputs
from vitrail.capture.outputs import scores_as_logits
from vitrail.capture.trace import ALL, LAST, Needs, Trace
from vitrail.errors import InputError, ModelError, NotApplicableError
from vitrail.methods.feature_maps import block_features, blocks_with_features, feature_needs, last_of_stage, on_grid
from vitrail.methods.input_probe import InputProbe
from vitrail.models.class_group import membership

if TYPE_CHECKING:
    from vitrail.lrp.propagate import Propagation, Relevances
    from vitrail.lrp.rule_sets import RuleSet


@dataclass(frozen=True)
class Probe(InputProbe):
    """A model, its inputs and the targets, to be evaluated again with perturbed images or another graph.

    Methods that handle all targets at once get one probe; methods that handle them one by one get one for each.
    `InputProbe` describes the attributes.
    """

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
            asked = scores_as_logits(self.model, values).masked_fill(~inside, -torch.inf).softmax(1).to(values.dtype)
            if not rules.gradient or self.structure.outputs != "probabilities":
                return asked
            # The gradient of a softmax has no part in what all classes have in common. Where the start of the likeliest
            # class is zero, no rounding of its probability is left in the gradient.
            return asked - asked.gather(1, values.argmax(1, keepdim=True))

        def run() -> Propagation:
            return propagation(self.model, self.model_inputs, self.structure, rules, **self._targets())

        return self.propagations.get(rules, run, self._targets().get("read")).relevances(start, want)

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
        blocks = blocks_with_features(kind, self.seen.blocks[where]) if reads_seen and self.seen is not None else []
        if not blocks:
            with (
                forward_pass(self.model, self.model_inputs, self.structure, [feature_needs(kind, where)]) as one,
                torch.no_grad(),
            ):
                blocks = blocks_with_features(kind, one.blocks[where])
        if not blocks:
            missing = "none of its blocks shows one" if block is None else f"block {block} shows none"
            if kind != "Y":
                missing = "its residual stream was not found; use what its attention reads, features='norm1'"
            raise NotApplicableError(f"no feature map was found in {self.structure.model}: {missing}")
        shown = blocks[-1:] if self.structure.kind == "plain" else blocks
        return self.as_map(last_of_stage([block_features(block, kind) for block in shown], stage))

    def as_map(self, value: Tensor) -> Tensor:
        """Features as a map: (b, n, d) or (b, rows, columns, d) to (b, d, rows, columns), prefix left out.

        Where the places of the tokens were not measured, their order is checked on the model.
        """
        return on_grid(value, self.model, self.model_inputs, self.structure, self.images)


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
    masked = A == 0
    logits = A.to(torch.promote_types(A.dtype, torch.float32)).log().masked_fill_(masked, torch.inf)
    low = logits.amin(-1, keepdim=True)
    logits.sub_(low).mul_(kept[:, None, None].to(logits)).masked_fill_(masked, -torch.inf)
    return logits.softmax(-1).to(A.dtype).masked_fill_(low == torch.inf, 0.0)
