"""Chunks: some images, one model, one group of methods. A chunk is explained and scored as one task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from vitrail import fast
from vitrail.bench.batch import ProtocolScores, ScoreBatch, distinct_classes
from vitrail.bench.context import BenchContext, open_context
from vitrail.bench.explainer import ChunkExplainer
from vitrail.bench.ground_truth import GroundTruth, LoadedImages, join_images, prepare_ground_truth
from vitrail.bench.map_store import tensor_name, write_shard
from vitrail.bench.parts import EXPLAIN, ScoreRows, write_table
from vitrail.bench.perturbation_scores import score_perturbation
from vitrail.bench.protocols import PROTOCOLS, needs_objects
from vitrail.bench.text_chunk import TextChunkRunner
from vitrail.bench.world_chunk import WorldChunkRunner
from vitrail.capture.attention_storage import some_weight
from vitrail.capture.outputs import class_logits
from vitrail.capture.score_function import class_probabilities
from vitrail.errors import OutputError, TargetError, UnreachableError, WeightsError, error_line
from vitrail.pipeline.map_rows import to_half
from vitrail.pipeline.memory import shrink_batch_to_fit
from vitrail.scores.presets import find_presets


@dataclass(frozen=True)
class Chunk:
    """Some images of one data set, one model, one group of methods.

    Attributes:
        folder: Folder of the run.
        key: Key of the run.
        plan: The plan as JSON.
        weights_hash: SHA-256 of the model's weights. A worker with other weights refuses.
        model: Position of the model in the plan.
        dataset: Position of the data set in the plan.
        number: Number of the chunk among those of its data set.
        group: Number of the group of methods.
        indices: Indices of the images in the data set.
        methods: The group of methods.
    """

    folder: str
    key: str
    plan: str = field(repr=False)
    weights_hash: str
    model: int
    dataset: int
    number: int
    group: int
    indices: tuple[int, ...]
    methods: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of its file, without suffix."""
        return f"part-m{self.model}-d{self.dataset}-c{self.number:05d}-g{self.group:02d}"

    @property
    def maps(self) -> int:
        """Number of maps it computes."""
        return len(self.indices) * len(self.methods)

    @property
    def path(self) -> Path:
        """File of its part."""
        return Path(self.folder) / "parts" / f"{self.name}.parquet"

    @property
    def footer(self) -> dict[str, str]:
        """Footer of its part."""
        return {"key": self.key, "part": self.name}

    def prepare(self, device: str) -> None:
        """Begin to read the images, to be called while another chunk is computed on a GPU."""
        context = open_context(self.plan, device)
        if reads_ahead(device) and not (context.plan.reads_texts or context.plan.reads_worlds):
            context.read_ahead.start(self.name, image_reader(self, context), self.indices, context.plan.batch)

    def perform(self, device: str) -> Path:
        """Explain and score the images, and write the part."""
        return self.compute(device)()

    def compute(self, device: str) -> Callable[[], Path]:
        """Explain and score the images; return the function that writes the part."""
        context = open_context(self.plan, device)
        if context.any_model(self.model).weights_hash != self.weights_hash:
            name = context.plan.models[self.model].name
            raise WeightsError(f"{name} has other weights on this machine than on the one that started the run")
        module = context.any_model(self.model).loaded.module
        with fast.unchanged(module), matmul_precision(context.plan.matmul):
            if context.plan.reads_texts or context.plan.reads_worlds:
                runner_type = TextChunkRunner if context.plan.reads_texts else WorldChunkRunner
                runner = runner_type(context, self.model, self.dataset, self.methods, self.key)
                runner.run(self.indices)
                return partial(_write_rows, self, runner.rows)
            return _ChunkRunner(self, context).run()


def _write_rows(chunk: Chunk, rows: ScoreRows, unreachable: bool = False) -> Path:
    # Where a store did not answer, the next run tries again.
    footer = chunk.footer | ({"unreachable": "yes"} if unreachable else {})
    return write_table(chunk.path, rows.columns, footer)


def reads_ahead(device: str) -> bool:
    """Whether threads read images during the computation; not on a CPU, where the model needs the cores."""
    return device != "cpu"


def image_reader(chunk: Chunk, context: BenchContext) -> Callable[[int], GroundTruth | Exception]:
    """A function that reads an image of a chunk by its index; an image that cannot be read gives the error."""
    images, by_class = context.images(chunk.dataset), context.same_classes(chunk.model, chunk.dataset)
    preprocess = context.model(chunk.model).preprocess
    objects = needs_objects(context.plan.protocols_of(images.spec))

    def read_one(index: int) -> GroundTruth | Exception:
        try:
            return prepare_ground_truth(images.dataset, index, preprocess, by_class, objects)
        except Exception as error:  # noqa: BLE001 - an unreadable image becomes a row of the results
            return error

    return read_one


@contextmanager
def matmul_precision(matmul: str) -> Iterator[None]:
    """Set the precision of float32 matrix products as a plan states, and restore it afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if matmul == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def make_chunks(context: BenchContext, folder: Path) -> list[Chunk]:
    """Return all chunks of a plan, those of slow methods first, so that none is left over at the end."""
    plan = context.plan
    text, chunks = plan.model_dump_json(), []
    for model in range(len(plan.models)):
        weights_hash = context.any_model(model).weights_hash
        for group, methods in enumerate(context.method_groups(model)):
            for dataset in range(len(plan.dataset)):
                indices = context.images(dataset).indices
                for number, start in enumerate(range(0, len(indices), plan.chunk)):
                    chosen = indices[start : start + plan.chunk]
                    chunks.append(
                        Chunk(
                            str(folder), context.key, text, weights_hash, model, dataset, number, group, chosen, methods
                        )
                    )
    return chunks


class _ChunkRunner:
    """Runs one chunk."""

    def __init__(self, chunk: Chunk, context: BenchContext) -> None:
        self.chunk, self.context, self.plan = chunk, context, context.plan
        self.model, self.images = context.model(chunk.model), context.images(chunk.dataset)
        self.by_class = context.same_classes(chunk.model, chunk.dataset)
        names = self.plan.protocols_of(self.images.spec)
        self.protocols = [PROTOCOLS[name] for name in names if name in PROTOCOLS]
        self.presets = find_presets([name for name in names if name not in PROTOCOLS])
        self.explainer = ChunkExplainer(context, self.model, chunk.key)
        self.rows = ScoreRows(self.plan.models[chunk.model].title, self.images.spec.title, chunk.methods)
        self.unreachable = False
        self.saved_maps: dict[str, list[Tensor]] = {}
        self.saved_ids: list[str] = []

    def run(self) -> Callable[[], Path]:
        """Run all images, one batch at a time; return the function that writes the part."""
        for start, loaded in zip(count(0, self.plan.batch), self._read(), strict=False):
            for position, error in loaded.errors.items():
                name = self.images.dataset.ids[self.chunk.indices[start + position]]
                self._add_unreadable(name, error_line(error))
                self.unreachable |= isinstance(error, UnreachableError)
            if loaded.inputs is not None:
                self._run_batch(loaded.truths, loaded.inputs)
        return self._write

    def _write(self) -> Path:
        if self.plan.keep_maps:
            self._write_maps()
        return _write_rows(self.chunk, self.rows, self.unreachable)

    def _read(self) -> Iterator[LoadedImages]:
        read_one, indices, size = image_reader(self.chunk, self.context), self.chunk.indices, self.plan.batch
        if reads_ahead(self.context.device):
            yield from self.context.read_ahead.batches(self.chunk.name, read_one, indices, size)
            return
        for start in range(0, len(indices), size):
            yield join_images([read_one(index) for index in indices[start : start + size]])

    def _run_batch(self, truths: list[GroundTruth], inputs: Tensor) -> None:
        targets, (batch, probabilities) = self.plan.targets, self._explain(truths, inputs)
        self.rows.add_explanations(batch, probabilities, targets)
        for protocol in self.protocols:
            self._score(batch, [protocol.name], protocol.targets or targets, partial(protocol, batch, targets))
        if self.presets:
            run = partial(score_perturbation, batch, self.presets, targets)
            self._score(batch, [p.name for p in self.presets], targets, run)
        if self.plan.keep_maps:
            self._save_maps(batch)

    def _explain(self, truths: list[GroundTruth], inputs: Tensor) -> tuple[ScoreBatch, Tensor]:
        """Explain each class of each image once; return the batch and the model's probabilities."""
        images = inputs.to(self.context.device, non_blocking=True).to(some_weight(self.model.loaded.module).dtype)
        probabilities = self._predict(images)
        predicted = probabilities.argmax(1)
        known = probabilities.shape[1] if self.by_class else 0
        labels = [t.label if t.label is not None and t.label < known else -1 for t in truths]
        by_target = [self._target_classes(*one) for one in zip(truths, predicted.tolist(), labels, strict=True)]
        classes, columns = distinct_classes(by_target, (*self.plan.targets, "first", "second"))
        ids = tuple(t.id for t in truths)
        explanations, failures = self.explainer(ids, images, classes, self.chunk.methods)
        batch = ScoreBatch(
            ids, images, truths, predicted, torch.tensor(labels), classes, columns, explanations, failures,
            self.explainer, self.chunk.dataset,
        )  # fmt: skip
        return batch, probabilities

    def _target_classes(self, truth: GroundTruth, predicted: int, label: int) -> dict[str, int]:
        """Return the classes of an image to explain, by target."""
        by_name = {"predicted": predicted} if "predicted" in self.plan.targets else {}
        if "label" in self.plan.targets and label >= 0:
            by_name["label"] = label
        if any("two classes" in protocol.needs for protocol in self.protocols) and len(truth.objects) == 2:
            by_name |= dict(zip(("first", "second"), sorted(truth.objects), strict=True))
        return by_name

    def _predict(self, images: Tensor) -> Tensor:
        """Return the model's probabilities, shape (B, C)."""
        module = self.model.loaded.module

        def forward(size: int) -> Tensor:
            with torch.inference_mode():
                outputs = [class_logits(module, module(images[i : i + size])) for i in range(0, len(images), size)]
            if outputs[0] is None:
                raise TargetError(f"{self.model.loaded.name} returns no class scores: it cannot be scored")
            logits = torch.cat([o for o in outputs if o is not None])
            return class_probabilities(module, logits, self.model.loaded.scores).cpu()

        return shrink_batch_to_fit(self.context, forward).clone()

    def _score(
        self,
        batch: ScoreBatch,
        names: Sequence[str],
        targets: Sequence[str],
        run: Callable[[], Iterable[ProtocolScores]],
    ) -> None:
        """Add the rows of protocols that run together; if they fail, rows with the reason."""
        failed: dict[str, str] = {}
        try:
            results = list(run()) if batch.explanations else []
        except OutputError:
            raise
        except Exception as error:  # noqa: BLE001 - a failure on one batch becomes rows of the results
            results, failed = [], dict.fromkeys(batch.explanations, error_line(error))
        for scores in results:
            self.rows.add_scores(batch, scores)
        for method in self.chunk.methods:
            if method in failed or method not in batch.explanations:
                for row, image in enumerate(batch.ids):
                    reason = batch.failures.get((method, row)) or failed[method]
                    self.rows.add_failure(image, names, targets, reason, (method,))

    def _add_unreadable(self, image: str, reason: str) -> None:
        """Add the rows of an image that cannot be read."""
        for protocol in self.protocols:
            self.rows.add_failure(image, [protocol.name], protocol.targets or self.plan.targets, reason)
        self.rows.add_failure(image, [EXPLAIN, *(p.name for p in self.presets)], self.plan.targets, reason)

    def _save_maps(self, batch: ScoreBatch) -> None:
        """Collect the maps of a batch; a missing map is NaN."""
        self.saved_ids += batch.ids
        grid = self.model.structure.layout.plane
        for method in self.chunk.methods:
            for target in self.plan.targets:
                columns = batch.target_columns(target)
                if method in batch.explanations:
                    explained = batch.explanations[method]
                    half = to_half(explained.grid, explained.signed, grid)[torch.arange(len(columns)), columns]
                    for row in batch.missing_maps(method, target):
                        half[row] = torch.nan
                else:
                    half = torch.full((len(columns), *(grid or (1, 1))), torch.nan, dtype=torch.float16)
                self.saved_maps.setdefault(tensor_name(method, target), []).append(half)

    def _write_maps(self) -> None:
        """Write the maps of all images. This comes before the part, so that a part that exists has its maps."""
        tensors = {name: torch.cat(pieces) for name, pieces in sorted(self.saved_maps.items())}
        footer = {"images": json.dumps(self.saved_ids), **self.chunk.footer}
        write_shard(self.chunk.path.with_suffix(".safetensors"), tensors, footer)
