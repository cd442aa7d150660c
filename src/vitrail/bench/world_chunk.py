"""Chunks of pairs of the worlds: both targets of some examples are explained by one group of methods and scored."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.bench.batch import ProtocolScores
from vitrail.bench.chunk_runner import ChunkRunner
from vitrail.bench.context import BenchContext, BenchWorldModel
from vitrail.bench.explainer import map_seed, needs_seed
from vitrail.bench.parts import EXPLAIN
from vitrail.bench.world_batch import WorldBatch
from vitrail.bench.world_protocols import MARKED, ExplainedPairs
from vitrail.bench.world_removal import CellRemoval, PromptWordRemoval
from vitrail.bench.world_tasks import WORLD_TASKS, maps_of_pairs, scores_of_words
from vitrail.capture.inputs import ModelInputs
from vitrail.data.world_pairs import WorldPairs
from vitrail.errors import MapWarning, OutputError, error_line
from vitrail.inputs.user_inputs import to_model_inputs
from vitrail.pipeline.explain import explain
from vitrail.pipeline.explanation import Explanation
from vitrail.targets.binding import bind_targets

_FoundMaps = dict[str, tuple[Tensor, float]]


class WorldChunkRunner(ChunkRunner):
    """Runs one chunk of pairs."""

    def __init__(self, context: BenchContext, model: int, dataset: int, methods: tuple[str, ...], key: str) -> None:
        super().__init__(context, model, dataset, methods, key)
        self.model = context.world_model(model)

    def run(self, indices: Sequence[int]) -> None:
        """Run some pairs, one batch at a time, and collect the rows of the part."""
        dataset = self.examples.dataset
        assert isinstance(dataset, WorldPairs)
        render = partial(WORLD_TASKS[dataset.task], self.model.loaded.module, dataset.split)
        refused = self._refused(render(indices[:1]), dataset.ids[indices[0]])
        for start in range(0, len(indices), self.plan.batch):
            chosen = indices[start : start + self.plan.batch]
            names, module = tuple(dataset.ids[i] for i in chosen), self.model.loaded.module
            batch = ExplainedPairs(names, render(chosen), module=module)
            batch.remove = self._removal(batch)
            batch.failures |= {(method, row): why for method, why in refused.items() for row in range(len(chosen))}
            self._explain_batch(batch, [method for method in self.methods if method not in refused])
            self._add_rows(batch)

    def _refused(self, example: WorldBatch, name: str) -> dict[str, str]:
        """Methods that fail on an example, with the reason; the others can share a pass."""
        refused: dict[str, str] = {}
        with suppress(Exception):  # where all methods apply, one call shows it
            self._explain(example, self.methods, [name])
            return refused
        for method in self.methods:
            try:
                self._explain(example, [method], [name])
            except OutputError:
                raise
            except Exception as error:  # noqa: BLE001 - a failure of a method becomes rows of the results
                refused[method] = error_line(error)
        return refused

    def _explain_batch(self, batch: ExplainedPairs, methods: Sequence[str]) -> None:
        """Explain a batch by methods that share one pass; if that fails, by one after the other."""
        try:
            found = self._explain(batch.pairs, methods, batch.ids) if methods else {}
        except OutputError:
            raise
        except Exception as error:  # noqa: BLE001 - a failure of a method becomes rows of the results
            if len(methods) == 1:
                batch.failures |= {(methods[0], row): error_line(error) for row in range(len(batch.ids))}
                return
            for method in methods:
                self._explain_batch(batch, [method])
            return
        for method, (maps, seconds) in found.items():
            batch.explanations[method], batch.seconds[method] = maps, seconds / len(batch.ids)

    def _removal(self, batch: ExplainedPairs) -> CellRemoval | PromptWordRemoval | None:
        if all(protocol.name != MARKED for protocol in self.protocols):
            return None
        if batch.pairs.texts is not None:
            return PromptWordRemoval(self.model.loaded, batch.pairs, self.context.device)
        # Every group of methods is compared with the same random removals.
        return CellRemoval(
            self.model.loaded, batch.pairs, self.context.device, map_seed(self.key, batch.ids[0], MARKED)
        )

    def _explain(self, pairs: WorldBatch, methods: Sequence[str], ids: Sequence[str]) -> _FoundMaps:
        """By method, maps of both targets of each example, shape (b, 2, *axes), on the CPU, and the time in seconds.

        Methods that draw random numbers have a seed of their own for each example, or each batch of those that the
        inputs hold twice.
        """
        if pairs.repeated:
            seeds = {m: {"seed": map_seed(self.key, ids[0], m)} if needs_seed(m) else {} for m in methods}
            return self._explain_rows(pairs, seeds)
        plain = [method for method in methods if not needs_seed(method)]
        found = self._explain_rows(pairs, {method: {} for method in plain}) if plain else {}
        for method in methods:
            if method in plain:
                continue
            rows = [
                self._explain_rows(pairs.select(i), {method: {"seed": map_seed(self.key, name, method)}})[method]
                for i, name in enumerate(ids)
            ]
            found[method] = torch.cat([maps for maps, _ in rows]), sum(seconds for _, seconds in rows)
        return found

    def _explain_rows(self, pairs: WorldBatch, options: Mapping[str, Mapping[str, Any]]) -> _FoundMaps:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MapWarning)
            # One call for all rows: a target that is a function is one of the output of exactly these.
            size = pairs.rows if pairs.repeated else None
            found = explain(
                self.model.loaded, pairs.on(self.context.device), methods=options, target=pairs.targets, of=pairs.of,
                batch_size=size, processor=pairs.processor,
            )  # fmt: skip
        grid = getattr(self.model.loaded.module, "grid", None)
        maps: _FoundMaps = {}
        for method, one in found.items():
            started = perf_counter()
            if pairs.texts is None:
                relevance = _relevance(one, pairs).detach().float()
                maps[method] = maps_of_pairs(relevance, pairs, grid).cpu(), one.seconds
            else:
                scores = scores_of_words(one.text or (), pairs)
                maps[method] = scores, perf_counter() - started
        return maps

    def _add_rows(self, batch: ExplainedPairs) -> None:
        correct = batch.pairs.correct.double().mean(1)
        for method, maps in batch.explanations.items():
            flat = (maps.flatten(2).amax(-1) == maps.flatten(2).amin(-1)).double().mean(1)
            for target in self.plan.targets:
                values, cost = {"correct": correct, "flat": flat}, batch.seconds[method]
                self.rows.add_scores(batch, ProtocolScores(EXPLAIN, method, target, values, seconds=cost))  # type: ignore[arg-type]
        for protocol in self.protocols:
            for scores in protocol(batch, self.plan.targets):  # type: ignore[arg-type]
                self.rows.add_scores(batch, scores)  # type: ignore[arg-type]
        for method in self.methods:
            for row, name in enumerate(batch.ids):
                reason = batch.failures.get((method, row))
                if reason is not None:
                    self.rows.add_failure(name, [EXPLAIN], self.plan.targets, reason, (method,))
                    for protocol in self.protocols:
                        self.rows.add_failure(name, [protocol.name], protocol.targets, reason, (method,))


def _relevance(explanation: Explanation, pairs: WorldBatch) -> Tensor:
    """Maps, or where words of questions are explained beside an image, their scores, shape (rows, 1, length)."""
    if pairs.processor is None or pairs.candidates is None or explanation.text is None:
        return explanation.maps
    length = pairs.candidates.shape[-1]
    return torch.stack([F.pad(one.scores, (0, length - one.scores.shape[1])) for one in explanation.text])


def example_inputs(context: BenchContext, model: BenchWorldModel, count: int) -> ModelInputs:
    """Inputs of a model of the worlds with the texts of their targets, with which its speed is measured."""
    dataset = context.images(0).dataset
    assert isinstance(dataset, WorldPairs)
    pairs = WORLD_TASKS[dataset.task](model.loaded.module, dataset.split, range(count))
    inputs = to_model_inputs(pairs.on(context.device), model.loaded, of=pairs.of)
    return inputs if pairs.repeated else bind_targets(pairs.targets, model.loaded, inputs)[1]
