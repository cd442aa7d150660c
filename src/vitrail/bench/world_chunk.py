"""Chunks of pairs of the worlds: both targets of some examples are explained by one group of methods and scored."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from vitrail.bench.batch import ProtocolScores
from vitrail.bench.chunk_runner import ChunkRunner
from vitrail.bench.context import BenchContext, BenchWorldModel
from vitrail.bench.explainer import error_line, map_seed, needs_seed
from vitrail.bench.parts import EXPLAIN
from vitrail.bench.world_protocols import ExplainedPairs
from vitrail.bench.world_tasks import WORLD_TASKS, WorldBatch, maps_of_pairs
from vitrail.data.world_pairs import WorldPairs
from vitrail.errors import MapWarning, OutputError
from vitrail.pipeline.explain import explain


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
            batch = ExplainedPairs(tuple(dataset.ids[i] for i in chosen), render(chosen))
            batch.failures |= {(method, row): why for method, why in refused.items() for row in range(len(chosen))}
            self._explain_batch(batch, [method for method in self.methods if method not in refused])
            self._add_rows(batch)

    def _refused(self, example: WorldBatch, name: str) -> dict[str, str]:
        """Methods that fail on an example, with the reason; the others can share a pass."""
        refused = {}
        for method in self.methods:
            try:
                self._explain(example, [method], name)
            except OutputError:
                raise
            except Exception as error:  # noqa: BLE001 - a failure of a method becomes rows of the results
                refused[method] = error_line(error)
        return refused

    def _explain_batch(self, batch: ExplainedPairs, methods: Sequence[str]) -> None:
        """Explain a batch by methods that share one pass; if that fails, by one after the other."""
        try:
            found = self._explain(batch.pairs, methods, batch.ids[0]) if methods else {}
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

    def _explain(self, pairs: WorldBatch, methods: Sequence[str], name: str) -> dict[str, tuple[Tensor, float]]:
        """By method, maps of both targets of each example, shape (b, 2, *axes), on the CPU, and the time in seconds."""
        inputs: Any = pairs.inputs
        if isinstance(inputs, dict):
            inputs = {key: value.to(self.context.device) for key, value in inputs.items()}
        else:
            inputs = inputs.to(self.context.device)
        options = {m: {"seed": map_seed(self.key, name, m)} if needs_seed(m) else {} for m in methods}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MapWarning)
            # One call for all rows: the target is a function of the output of exactly these.
            found = explain(
                self.model.loaded, inputs, methods=options, target=pairs.target, of=pairs.of, batch_size=pairs.rows
            )
        grid = getattr(self.model.loaded.module, "grid", None)
        return {
            method: (maps_of_pairs(one.maps.detach().float(), pairs, grid).cpu(), one.seconds)
            for method, one in found.items()
        }

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


def example_inputs(context: BenchContext, model: BenchWorldModel, count: int) -> Any:
    """Inputs of a model of the worlds, with which its speed is measured."""
    dataset = context.images(0).dataset
    assert isinstance(dataset, WorldPairs)
    return WORLD_TASKS[dataset.task](model.loaded.module, dataset.split, range(count)).inputs
