"""Pieces of work: some pictures, one model, one group of methods; and the one function that does a piece."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from vitrail.bench.batch import Batch, Found
from vitrail.bench.context import BenchContext, open_context
from vitrail.bench.explainer import Explainer, reason, within_memory
from vitrail.bench.ground_truth import GroundTruth, prepare_ground_truth
from vitrail.bench.parts import write_file, write_table
from vitrail.bench.protocols import PROTOCOLS, perturbation
from vitrail.bench.rows import EXPLAIN, ScoreRows
from vitrail.capture.inputs import logits_of
from vitrail.errors import OutputError, TargetError, WeightsError
from vitrail.scores.presets import find_presets


class BenchTask(Protocol):
    """A piece of work that any engine can do: it can be sent to another process and says where its result goes."""

    @property
    def name(self) -> str:
        """Names its file."""

    @property
    def maps(self) -> int:
        """How many maps it makes, for progress."""

    def perform(self, device: str) -> Path:
        """Do it, and return the file that now exists."""


def run_chunk(spec: BenchTask, device: str = "cpu") -> Path:
    """Do one piece of work; whatever engine runs, this is what it runs.

    On a CPU without bfloat16, torch turns its oneDNN kernels off for good at the first product in bfloat16, and what
    is left computes other last bits, in float32 too. So every piece of work begins with them on: its numbers must not
    depend on what its process did before.
    """
    mkldnn: Any = torch.backends.mkldnn
    before = mkldnn.set_flags(True)[0]
    try:
        return spec.perform(device)
    finally:
        mkldnn.set_flags(before)


@dataclass(frozen=True)
class Chunk:
    """Some pictures of one data set, one model, one group of methods.

    Attributes:
        run: The run's folder.
        key: The run's key.
        plan: The plan as JSON.
        weights: SHA-256 of the model's weights, so that a worker with others refuses.
        model: Which model of the plan.
        data: Which data set of the plan.
        number: Which chunk of its pictures.
        group: Which group of methods.
        indices: The pictures, as places in the data set.
        methods: The group.
    """

    run: str
    key: str
    plan: str = field(repr=False)
    weights: str
    model: int
    data: int
    number: int
    group: int
    indices: tuple[int, ...]
    methods: tuple[str, ...]

    @property
    def name(self) -> str:
        """Names its file."""
        return f"part-m{self.model}-d{self.data}-c{self.number:05d}-g{self.group:02d}"

    @property
    def maps(self) -> int:
        """How many maps it makes."""
        return len(self.indices) * len(self.methods)

    @property
    def path(self) -> Path:
        """Where its part goes."""
        return Path(self.run) / "parts" / f"{self.name}.parquet"

    @property
    def note(self) -> dict[str, str]:
        """What the part's footer says."""
        return {"key": self.key, "part": self.name}

    def perform(self, device: str) -> Path:
        """Explain, score and write the part."""
        stage = open_context(self.plan, device)
        if stage.model(self.model).weights != self.weights:
            raise WeightsError(
                f"{stage.plan.models[self.model].name} has other weights on this machine than where the run was begun"
            )
        with products(stage.plan.matmul):
            return _Work(self, stage).run()


@contextmanager
def products(matmul: str) -> Iterator[None]:
    """Let a GPU multiply matrices in single precision as a plan says; what was set before is set again."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if matmul == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def chunks(stage: BenchContext, run: Path) -> list[Chunk]:
    """All pieces of a plan: those of slow methods first, so that none is left over at the end."""
    plan = stage.plan
    text, found = plan.model_dump_json(), []
    for model in range(len(plan.models)):
        for group, methods in enumerate(stage.groups(model)):
            for data in range(len(plan.dataset)):
                indices = stage.pictures(data).indices
                for number, start in enumerate(range(0, len(indices), plan.chunk)):
                    some = indices[start : start + plan.chunk]
                    weights = stage.model(model).weights
                    found.append(Chunk(str(run), stage.key, text, weights, model, data, number, group, some, methods))
    return found


class _Work:
    """One chunk being done."""

    def __init__(self, chunk: Chunk, stage: BenchContext) -> None:
        self.chunk, self.stage, self.plan = chunk, stage, stage.plan
        self.model, self.pictures = stage.model(chunk.model), stage.pictures(chunk.data)
        self.by_class = stage.same_classes(chunk.model, chunk.data)
        names = self.plan.protocols_of(self.pictures.data)
        self.protocols = [PROTOCOLS[name] for name in names if name in PROTOCOLS]
        self.presets = find_presets([name for name in names if name not in PROTOCOLS])
        self.explainer = Explainer(stage, self.model, chunk.key)
        self.rows = ScoreRows(self.plan.models[chunk.model].title, self.pictures.data.title, chunk.methods)
        self.grids: dict[str, list[Tensor]] = {}
        self.kept: list[str] = []

    def run(self) -> Path:
        """All pictures, a batch at a time."""
        size = self.plan.batch
        for start in range(0, len(self.chunk.indices), size):
            indices = self.chunk.indices[start : start + size]
            truths = []
            for index, read in zip(indices, self._read(indices), strict=True):
                if isinstance(read, GroundTruth):
                    truths.append(read)
                else:
                    self._fail(self.pictures.dataset.ids[index], reason(read))
            if truths:
                self._batch(truths)
        if self.plan.keep_maps:
            self._keep()
        return write_table(self.chunk.path, self.rows.columns, self.chunk.note)

    def _read(self, indices: Sequence[int]) -> Iterator[GroundTruth | Exception]:
        def one(index: int) -> GroundTruth | Exception:
            try:
                return prepare_ground_truth(self.pictures.dataset, index, self.model.view, self.by_class)
            except Exception as error:  # noqa: BLE001 - a picture that cannot be read is a row, not the end
                return error

        if self.stage.device == "cpu":  # the cores are busy with the model
            yield from map(one, indices)
        else:
            with ThreadPoolExecutor(8) as pool:
                yield from pool.map(one, indices)

    def _batch(self, truths: list[GroundTruth]) -> None:
        targets, (batch, probabilities) = self.plan.targets, self._explained(truths)
        self.rows.made(batch, probabilities, targets)
        for one in self.protocols:
            self._score(batch, [one.name], one.targets or targets, partial(one, batch, targets))
        if self.presets:
            precision = torch.bfloat16 if self.plan.precision == "bfloat16" else None
            run = partial(perturbation, batch, self.presets, targets, precision=precision, seed=self.plan.seed)
            self._score(batch, [p.name for p in self.presets], targets, run)
        if self.plan.keep_maps:
            self._grids(batch)

    def _explained(self, truths: list[GroundTruth]) -> tuple[Batch, Tensor]:
        """The pictures with their maps, each class of a picture explained once; and what the model says of them."""
        images = torch.stack([t.image for t in truths]).to(self.stage.device)
        probabilities = self._predict(images)
        predicted = probabilities.argmax(1)
        count = probabilities.shape[1] if self.by_class else 0
        labels = [t.label if t.label is not None and t.label < count else -1 for t in truths]
        asked = [self._asked(*one) for one in zip(truths, predicted.tolist(), labels, strict=True)]
        each = [list(dict.fromkeys(own.values())) or [0] for own in asked]
        most = max(map(len, each))
        classes = torch.tensor([own + own[:1] * (most - len(own)) for own in each])
        names = (*self.plan.targets, "first", "second")
        columns = {n: [e.index(a[n]) if n in a else None for a, e in zip(asked, each, strict=True)] for n in names}
        ids = tuple(t.id for t in truths)
        made, bad = self.explainer(ids, images, classes, self.chunk.methods)
        known = torch.tensor(labels)
        batch = Batch(
            ids, images, truths, predicted, known, classes, columns, made, bad, self.explainer, self.chunk.data
        )
        return batch, probabilities

    def _asked(self, truth: GroundTruth, answer: int, label: int) -> dict[str, int]:
        """The classes of a picture that are to be explained, by target."""
        own = {"predicted": answer} if "predicted" in self.plan.targets else {}
        if "label" in self.plan.targets and label >= 0:
            own["label"] = label
        if any("things" in p.needs for p in self.protocols) and len(truth.things) == 2:
            own |= dict(zip(("first", "second"), sorted(truth.things), strict=True))
        return own

    def _predict(self, images: Tensor) -> Tensor:
        """Probabilities, shape (B, C)."""
        module = self.model.about.module

        def forward(size: int) -> Tensor:
            with torch.inference_mode():
                outputs = [logits_of(module(images[i : i + size])) for i in range(0, len(images), size)]
            if outputs[0] is None:
                raise TargetError(f"{self.model.about.name} returns no class scores: it cannot be scored")
            return torch.cat([o for o in outputs if o is not None]).float().softmax(1).cpu()

        return within_memory(self.stage, forward).clone()

    def _score(
        self, batch: Batch, names: Sequence[str], targets: Sequence[str], run: Callable[[], Iterable[Found]]
    ) -> None:
        """Rows of protocols that are run together; where they fail, rows that say so."""
        failed: dict[str, str] = {}
        try:
            founds = list(run()) if batch.made else []
        except OutputError:
            raise
        except Exception as error:  # noqa: BLE001 - a protocol that fails on a batch is rows, not the end
            founds, failed = [], dict.fromkeys(batch.made, reason(error))
        for found in founds:
            self.rows.found(batch, found)
        for method in self.chunk.methods:
            if method in failed or method not in batch.made:
                for row, image in enumerate(batch.ids):
                    why = batch.bad.get((method, row)) or failed[method]
                    self.rows.absent(image, names, targets, why, (method,))

    def _fail(self, image: str, why: str) -> None:
        """Rows of a picture that cannot be read."""
        for one in self.protocols:
            self.rows.absent(image, [one.name], one.targets or self.plan.targets, why)
        self.rows.absent(image, [EXPLAIN, *(p.name for p in self.presets)], self.plan.targets, why)

    # -- maps ------------------------------------------------------------------------------------------------------

    def _grids(self, batch: Batch) -> None:
        self.kept += batch.ids
        grid = self.model.structure.layout.grid
        for method in self.chunk.methods:
            for target in self.plan.targets:
                at = batch.at(target)
                if method in batch.made:
                    own = batch.made[method].half(grid)[torch.arange(len(at)), at]
                    for row in batch.without(method, target):
                        own[row] = torch.nan
                else:
                    own = torch.full((len(at), *(grid or (1, 1))), torch.nan, dtype=torch.float16)
                self.grids.setdefault(f"{method}/{target}", []).append(own)

    def _keep(self) -> None:
        """The maps of all pictures, beside the part and before it, so that a part that is there has its maps."""
        from safetensors.torch import save

        tensors = {name: torch.cat(parts).contiguous() for name, parts in sorted(self.grids.items())}
        data = save(tensors, {"images": json.dumps(self.kept), **self.chunk.note})
        write_file(self.chunk.path.with_suffix(".safetensors"), lambda file: file.write(data))
