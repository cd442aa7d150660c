"""Chunks of texts: the words of some texts are scored by one group of methods and compared with marked words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.bench.batch import ExplainedTexts, TextBatch, distinct_classes
from vitrail.bench.chunk_runner import ChunkRunner
from vitrail.bench.context import BenchContext
from vitrail.bench.explainer import Reasons, map_seed, needs_seed
from vitrail.bench.parts import EXPLAIN
from vitrail.capture.score_function import class_probabilities
from vitrail.data import Sample
from vitrail.errors import DataError, OutputError, error_line
from vitrail.pipeline.explain import explain
from vitrail.pipeline.memory import PeakMemory, shrink_batch_to_fit
from vitrail.scores.rationale import span_mask
from vitrail.text.prediction import predict_texts


class TextChunkRunner(ChunkRunner):
    """Runs one chunk of texts."""

    def __init__(self, context: BenchContext, model: int, dataset: int, methods: tuple[str, ...], key: str) -> None:
        super().__init__(context, model, dataset, methods, key)
        self.model, self.same_classes = context.text_model(model), context.same_classes(model, dataset)

    def run(self, indices: Sequence[int]) -> None:
        """Run some texts, one batch at a time, and collect the rows of the part."""
        for start in range(0, len(indices), self.plan.batch):
            samples = []
            for index in indices[start : start + self.plan.batch]:
                try:
                    sample = self.examples.dataset[index]
                    if sample.text is None or sample.tokens is None:
                        raise DataError(f"{sample.id} is an image, expected a text")
                    samples.append(sample)
                except Exception as error:  # noqa: BLE001 - an unreadable text becomes a row of the results
                    self._add_failure(self.examples.dataset.ids[index], error_line(error))
            if samples:
                self._run_batch(samples)

    def _run_batch(self, samples: Sequence[Sample]) -> None:
        batch, probabilities = self._explain(samples)
        self.rows.add_explanations(batch, probabilities, self.plan.targets)
        for protocol in self.protocols:
            targets, failed = protocol.targets or self.plan.targets, ""
            try:
                results = list(protocol(batch, targets)) if batch.explanations else []
            except OutputError:
                raise
            except Exception as error:  # noqa: BLE001 - a failure on one batch becomes rows of the results
                results, failed = [], error_line(error)
            for scores in results:
                self.rows.add_scores(batch, scores)
            for method in self.methods:
                if failed or method not in batch.explanations:
                    for row, name in enumerate(batch.ids):
                        reason = batch.failures.get((method, row)) or failed
                        self.rows.add_failure(name, [protocol.name], targets, reason, (method,))

    def _explain(self, samples: Sequence[Sample]) -> tuple[TextBatch, Tensor]:
        """Explain each class of each text once; return the batch and the model's probabilities."""
        texts, ids = [str(s.text) for s in samples], tuple(s.id for s in samples)
        probabilities = self._predict(texts)
        count = probabilities.shape[1] if self.same_classes else 0
        by_target: list[dict[str, int]] = []
        for sample, predicted in zip(samples, probabilities.argmax(1).tolist(), strict=True):
            known = sample.label is not None and sample.label < count
            by_name = {"predicted": predicted, **({"label": int(sample.label or 0)} if known else {})}
            by_target.append({target: by_name[target] for target in self.plan.targets if target in by_name})
        classes, columns = distinct_classes(by_target, self.plan.targets)
        explanations, failures = self._word_scores(ids, samples, classes)
        marked = [None if s.spans is None else span_mask(s.spans, len(s.tokens or ())) for s in samples]
        words = [s.tokens or () for s in samples]
        batch = TextBatch(
            ids, words, marked, classes, columns, explanations, failures, self.model, self.context.batch
        )  # fmt: skip
        return batch, probabilities

    def _predict(self, texts: Sequence[str]) -> Tensor:
        """Return the model's probabilities, shape (B, C)."""
        module, settings = self.model.loaded.module, self.model.settings
        logits = shrink_batch_to_fit(self.context, lambda size: predict_texts(texts, settings, module, size))
        return class_probabilities(module, logits, self.model.loaded.scores).cpu()

    def _word_scores(
        self, ids: Sequence[str], samples: Sequence[Sample], classes: Tensor
    ) -> tuple[dict[str, ExplainedTexts], Reasons]:
        """Explain all texts by all methods; when a call fails, methods and then texts are retried one by one."""
        failures: Reasons = {}
        count = classes.shape[1]
        explained: dict[str, ExplainedTexts] = {}

        def explain_rows(specs: Sequence[str], rows: Sequence[int]) -> None:
            try:
                results, forwards, memory = self._call(ids, samples, classes, specs, rows)
            except OutputError:
                raise
            except Exception as error:  # noqa: BLE001 - a failure of one text becomes a row of the results
                if len(specs) == 1 and len(rows) == 1:
                    failures[specs[0], rows[0]] = error_line(error)
                    return
                for some in [([s], rows) for s in specs] if len(specs) > 1 else [(specs, [r]) for r in rows]:
                    explain_rows(*some)
                return
            for spec in specs:
                batch = explained.setdefault(spec, _empty(samples, count))
                for position, row in enumerate(rows):
                    text = results[spec].text[position]
                    batch.scores[row] = np.where(np.array(text.seen), text.scores.double().numpy(), np.nan)
                    batch.constant[row] = results[spec].constant[position].cpu()
                    batch.seconds[row] = results[spec].seconds / len(rows)
                    batch.forwards[row], batch.memory[row] = forwards, memory

        seeded = [spec for spec in self.methods if needs_seed(spec)]
        together = [spec for spec in self.methods if spec not in seeded]
        if together:
            explain_rows(together, range(len(samples)))
        for spec in seeded:
            for row in range(len(samples)):
                explain_rows([spec], [row])
        return explained, failures

    def _call(
        self, ids: Sequence[str], samples: Sequence[Sample], classes: Tensor, specs: Sequence[str], rows: Sequence[int]
    ) -> tuple[Any, float, float]:
        """Explain some texts; return the explanations, the inputs evaluated for each text, and the peak memory."""
        evaluated = [0]

        def count(inputs: int) -> None:
            evaluated[0] += inputs

        seed = {spec: map_seed(self.key, ids[rows[0]], spec) for spec in specs if needs_seed(spec)}
        options = {spec: {"seed": seed[spec]} if spec in seed else {} for spec in specs}
        texts = [str(samples[row].text) for row in rows]
        with PeakMemory(torch.device(self.context.device)) as peak:
            results = shrink_batch_to_fit(
                self.context,
                lambda size: explain(
                    self.model.loaded, texts, methods=options, target=classes[list(rows)],
                    tokenizer=self.model.settings, batch_size=size, advance=count,
                ),
            )  # fmt: skip
        for row, text in zip(rows, next(iter(results.values())).text or (), strict=True):
            if text.words != samples[row].tokens:
                raise DataError(f"{ids[row]}: the words of the text are not the data set's tokens joined by spaces")
        return results, evaluated[0] / len(rows), peak.bytes

    def _add_failure(self, name: str, reason: str) -> None:
        for protocol in self.protocols:
            self.rows.add_failure(name, [protocol.name], protocol.targets or self.plan.targets, reason)
        self.rows.add_failure(name, [EXPLAIN], self.plan.targets, reason)


def _empty(samples: Iterable[Sample], classes: int) -> ExplainedTexts:
    lengths = [len(sample.tokens or ()) for sample in samples]
    zeros = [0.0] * len(lengths)
    return ExplainedTexts(
        [np.full((classes, n), math.nan) for n in lengths], torch.zeros(len(lengths), classes, dtype=torch.bool),
        zeros, zeros.copy(), [math.nan] * len(lengths),
    )  # fmt: skip
