"""Cost of a plan: number of forward passes, time and memory, from declared costs and one timed batch.

The unit is the forward pass of one image; a backward pass counts as two. An explanation from the shared pass costs
three and, with several classes, two more for each class. Other methods cost what they declare (`vitrail.methods.cost`).
A perturbation test costs one forward pass for each level except the unperturbed and the empty image. Levels that
presets share count once. A second class counts for the images on which it differs, assumed to be one in five.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import torch
from torch import nn

from vitrail.bench.chunk import Chunk
from vitrail.bench.context import (
    AnyBenchModel,
    BenchContext,
    BenchModel,
    BenchTextModel,
    BenchWorldModel,
    open_images,
)
from vitrail.bench.grid_protocols import DIFULL, DIPART, GRID_POINTING
from vitrail.bench.method_groups import group_methods, serves_all_targets
from vitrail.bench.multiclass_protocols import MULTICLASS, MULTICLASS_ORIGINAL
from vitrail.bench.parts import read_footer
from vitrail.bench.plan import DatasetSpec, Plan
from vitrail.bench.protocols import PROTOCOLS
from vitrail.bench.text_protocols import ERASER
from vitrail.bench.world_chunk import example_inputs
from vitrail.data import cifar, image_grids, movies, voc
from vitrail.errors import VitrailError
from vitrail.methods import ModelSize, find
from vitrail.models.catalogue import catalogue_entry
from vitrail.models.percentages import percent
from vitrail.pipeline.memory import shrink_batch_to_fit
from vitrail.scores.fills import TOKENS
from vitrail.scores.presets import find_presets
from vitrail.scores.rationale import SHARES
from vitrail.text.prediction import predict_texts
from vitrail.text.tokens import max_tokens

#: Images in the timed batch.
TIMED_IMAGES = 4
#: Tensors of the size of a block's input that a block keeps for the backward pass.
TENSORS_PER_BLOCK = 16
#: Sizes of published data sets that have no options.
PUBLISHED_COUNTS = {"imagenet": 50_000, "imagenet-segmentation": 4_276}
#: Ratio of the time of a forward pass to the time of its matrix products.
OVERHEAD = 1.5
#: Assumed share of images whose label is the predicted class.
ACCURACY = 0.8
#: Explanations of one image for the sensitivity score.
SENSITIVITY_SAMPLES = 10
#: Classes in an image of VOC, on average.
CLASSES_PER_IMAGE = 1.5
#: Tokens, width, blocks, millions of parameters and billions of multiplications of BERT-base with its longest input,
#: which stands for a text model that is not on this machine.
BERT_BASE = (512, 768, 12, 110.0, 48.3)


# -- models and data sets ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelCost:
    """What the cost of a plan depends on in a model.

    Attributes:
        size: Height and width of its input; of a text model 1 and its number of tokens.
        grid: Patches per column and per row, if it has one grid.
        width: Number of feature maps.
        blocks: Number of blocks.
        methods: Methods of the plan that apply to it.
        seconds: Time of a forward pass of one image.
        memory: Peak memory of a worker, in bytes.
    """

    size: tuple[int, int]
    grid: tuple[int, int] | None
    width: int
    blocks: int
    methods: tuple[str, ...]
    seconds: float
    memory: int


def measure_model(context: BenchContext, model: AnyBenchModel) -> ModelCost:
    """Measure a loaded model with a small batch."""
    seconds, memory = _time_forward(context, model)
    methods = tuple(spec for spec in context.plan.specs() if spec not in model.not_applicable)
    linears = [module for module in model.loaded.module.modules() if isinstance(module, nn.Linear)]
    width = int(linears[-1].in_features) if linears else 768
    grid, blocks = model.structure.layout.plane, len(model.structure.layers)
    if isinstance(model, BenchTextModel):
        size = (1, max_tokens(model.loaded.module, model.settings))
        return ModelCost(size, size, width, blocks, methods, seconds, memory)
    if isinstance(model, BenchWorldModel):
        return ModelCost((128, 128), None, width, 4, methods, seconds, memory)
    assert isinstance(model, BenchModel)
    return ModelCost(model.preprocess.size, grid, width, blocks, methods, seconds, memory)


def text_cost(plan: Plan, speed: float) -> ModelCost:
    """Return the cost of BERT-base, which stands for a text model that is not on this machine.

    Args:
        plan: The plan.
        speed: Billions of multiplications per second; see `device_speed`.
    """
    tokens, width, blocks, params, gmacs = BERT_BASE
    methods = tuple(spec for spec in plan.specs() if find(spec)[1].reason_against("text") is None)
    memory = int(params * 4e6) + plan.batch * TENSORS_PER_BLOCK * blocks * tokens * width * 4
    return ModelCost((1, tokens), (1, tokens), width, blocks, methods, OVERHEAD * gmacs / speed, memory)


def catalogue_cost(plan: Plan, name: str, speed: float) -> ModelCost | None:
    """Return the cost of a model of the papers from the catalogue; None for any other model.

    Args:
        plan: The plan.
        name: Name of the model.
        speed: Billions of multiplications per second; see `device_speed`.
    """
    entry = catalogue_entry(name)
    if entry is None:
        return None
    kind = "Swin" if entry.swin else "distilled" if "distilled" in entry.timm else "CLS"
    methods = tuple(spec for spec in plan.specs() if find(spec)[1].reason_against(kind) is None)
    kept = TENSORS_PER_BLOCK * entry.blocks * (entry.grid[0] * entry.grid[1] + 1) * entry.width * 4
    memory = int(entry.params * 4e6) + plan.batch * kept
    seconds = OVERHEAD * entry.gmacs / speed
    return ModelCost((224, 224), entry.grid, entry.width, entry.blocks, methods, seconds, memory)


def device_speed(device: str) -> float:
    """Measure a device with one matrix product, in billions of multiplications per second."""
    a, b = torch.ones(788, 768, device=device), torch.ones(768, 3072, device=device)
    times = []
    for _ in range(3):
        start = perf_counter()
        float((a @ b)[0, 0])  # reading a number waits for the result
        times.append(perf_counter() - start)
    return 788 * 768 * 3072 / 1e9 / min(times)


def count_images(data: DatasetSpec) -> tuple[int, str]:
    """Return the number of images of a plan's data set, and a note if its files are not on this machine.

    Example:
        >>> count_images(DatasetSpec(name="imagenet", limit=5000))
        (5000, 'imagenet is not on this machine: counted as 5,000 images')
    """
    try:
        return len(open_images(data).indices), ""
    except VitrailError:
        pass
    split = data.options.get("split")
    count = PUBLISHED_COUNTS.get(data.name)
    if data.name == "voc2012":
        count = voc.COUNTS.get(str(split or "val"))
    elif data.name in ("cifar10", "cifar100"):
        count = cifar.COUNTS.get(str(split or "test"))
    elif data.name == "movies":
        count = movies.COUNTS.get(str(split or "test"))
    elif data.name == "grids":
        count = int(data.options.get("count", image_grids.COUNT))
    sizes = [n for n in (count, data.limit, len(data.ids) if isinstance(data.ids, tuple) else None) if n is not None]
    if not sizes:
        return 0, f"{data.title} is not on this machine and its size is unknown: not counted"
    return min(sizes), f"{data.title} is not on this machine: counted as {min(sizes):,} images"


def _time_forward(context: BenchContext, model: AnyBenchModel) -> tuple[float, int]:
    """Return the time of a forward pass of one image or text, and the peak memory of a worker."""
    gpu, count = context.device.startswith("cuda"), min(TIMED_IMAGES, context.plan.batch)
    evaluate = _timed_texts(model, count) if isinstance(model, BenchTextModel) else _timed_images(context, model, count)

    def forward(size: int) -> None:
        with torch.inference_mode():
            evaluate(size)
            if gpu:
                torch.cuda.synchronize()

    if gpu:
        torch.cuda.reset_peak_memory_stats()
    shrink_batch_to_fit(context, forward)
    times = []
    for _ in range(3):
        start = perf_counter()
        shrink_batch_to_fit(context, forward)
        times.append((perf_counter() - start) / count)
    weights = sum(p.numel() * p.element_size() for p in model.loaded.module.parameters())
    if gpu:
        peak = torch.cuda.max_memory_allocated()
        # Times three, because the graph of a backward pass keeps more.
        return min(times), weights + int((peak - weights) * context.plan.batch / count) * 3
    unit = 1 if sys.platform == "darwin" else 1024
    return min(times), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _timed_pairs(context: BenchContext, model: BenchWorldModel, count: int) -> Callable[[int], object]:
    inputs = example_inputs(context, model, count)
    return lambda size: inputs.select(slice(0, size)).into(model.loaded.module)


def _timed_images(context: BenchContext, model: AnyBenchModel, count: int) -> Callable[[int], object]:
    if isinstance(model, BenchWorldModel):
        return _timed_pairs(context, model, count)
    assert isinstance(model, BenchModel)
    images = torch.randn(count, len(model.preprocess.mean), *model.preprocess.size).to(context.device)
    return lambda size: model.loaded.module(images[:size])


def _timed_texts(model: BenchTextModel, count: int) -> Callable[[int], object]:
    texts = ["film " * max_tokens(model.loaded.module, model.settings)] * count
    return lambda size: predict_texts(texts[:size], model.settings, model.loaded.module, size)


# -- the estimate ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of a plan.

    Attributes:
        images: Number of images, of all data sets.
        maps: Number of maps, of all models and methods.
        forwards: Forward passes of one image, in total.
        explaining: Those that compute maps.
        left: Share of the work that is not done yet.
        work: Seconds for one worker from the start.
        workers: Number of workers.
        memory: Peak memory of one worker, in bytes.
        timed: How the time of a forward pass is known.
    """

    images: int
    maps: int
    forwards: float
    explaining: float
    left: float
    work: float
    workers: int
    memory: int
    timed: str = "measured"

    @property
    def seconds(self) -> float:
        """Seconds until the plan is done."""
        return self.work * self.left / self.workers

    @property
    def time(self) -> str:
        """Time until the plan is done, as text.

        Example:
            >>> Estimate(1, 1, 1.0, 1.0, 1.0, 7200.0, 1, 1).time
            '2.0 h'
        """
        return f"{self.seconds / 3600:,.1f} h" if self.seconds > 5400 else f"{self.seconds / 60:.1f} min"

    def rows(self) -> list[tuple[str, str]]:
        """Return the estimate as rows of a table."""
        each = 1000 * self.work / self.forwards if self.forwards else 0.0
        return [
            ("images", f"{self.images:,}"),
            ("maps", f"{self.maps:,}"),
            ("forward passes", f"{self.forwards:,.0f}, {self.explaining:,.0f} of them for maps, the rest for scores"),
            ("left to do", percent(self.left)),
            ("one forward pass", f"{each:.2f} ms, {self.timed}"),
            ("time", f"about {self.time} with {self.workers} worker{'s' if self.workers > 1 else ''}"),
            ("memory", f"about {self.memory / 2**30:.1f} GiB per worker"),
        ]


class _WorkItem(NamedTuple):
    """Images of one data set, explained and scored with one model and one group of methods."""

    model: int
    dataset: int
    methods: tuple[str, ...]
    images: int
    missing: bool = True


def estimate_run(context: BenchContext, chunks: Sequence[Chunk], workers: int) -> Estimate:
    """Estimate the cost of a plan whose data and weights are available; its models are timed."""
    costs = [measure_model(context, context.any_model(i)) for i in range(len(context.plan.models))]
    items = [_WorkItem(c.model, c.dataset, c.methods, len(c.indices), read_footer(c.path) != c.footer) for c in chunks]
    images = sum(len(context.images(i).indices) for i in range(len(context.plan.dataset)))
    return _add_up(context.plan, costs, items, images, workers, "measured")


def estimate_plan(
    plan: Plan, costs: Sequence[ModelCost], counts: Mapping[int, int], workers: int, timed: str
) -> Estimate:
    """Estimate the cost of a plan whose data and weights need not be available."""
    items = [
        _WorkItem(model, dataset, methods, count)
        for model, cost in enumerate(costs) for methods in group_methods(cost.methods)
        for dataset, count in counts.items()
    ]  # fmt: skip
    return _add_up(plan, costs, items, sum(counts.values()), workers, timed)


def _add_up(
    plan: Plan, costs: Sequence[ModelCost], items: Sequence[_WorkItem], images: int, workers: int, timed: str
) -> Estimate:
    total = explaining = work = left = 0.0
    maps = 0
    for model, dataset, methods, count, missing in items:
        cost, data = costs[model], plan.dataset[dataset]
        for_maps = count * sum(explanation_cost(plan, data, methods, spec, cost) for spec in methods)
        evaluated = for_maps + count * (2 + scoring_cost(plan, data, methods, cost))
        total, explaining, work = total + evaluated, explaining + for_maps, work + evaluated * cost.seconds
        left += evaluated * cost.seconds if missing else 0.0
        maps += count * len(methods)
    memory = max(cost.memory for cost in costs)
    return Estimate(images, maps, total, explaining, left / work if work else 0.0, work, workers, memory, timed)


def explanation_cost(plan: Plan, data: DatasetSpec, methods: Sequence[str], spec: str, model: ModelCost) -> float:
    """Return the forward passes for one image's maps by one method of a group; methods of the shared pass share it."""
    _, method, options = find(spec)
    protocols = plan.protocols_of(data)
    targets = 1.0 + (1 - ACCURACY if len(plan.targets) > 1 else 0.0) + ("selectivity" in protocols)
    targets += CLASSES_PER_IMAGE if {MULTICLASS, MULTICLASS_ORIGINAL} & set(protocols) else 0.0
    repeats = 1 + (SENSITIVITY_SAMPLES if "sensitivity" in protocols else 0)
    repeats += model.blocks + 3 if "sanity" in protocols else 0
    size = ModelSize(model.grid or (model.size[0] // 16, model.size[1] // 16), model.width, model.blocks)
    forwards = method.cost(options, size, 1).forwards
    cells = int(data.options.get("n", 2)) ** 2
    in_grids = cells if GRID_POINTING in protocols else 0  # classes that are explained without the shared pass
    apart = cells * cells * len({DIFULL, DIPART} & set(protocols))  # each cell's class, on images of as many cells
    if forwards:
        own = serves_all_targets(spec)
        return forwards * (repeats * (1.0 if own else targets) + (min(1, in_grids) if own else in_grids) + apart)
    sharing = sum(find(other)[1].cost(find(other)[2], size, 1).forwards == 0 for other in methods)
    alone = (1 + 2 * in_grids if in_grids else 0) + 3 * apart
    return repeats * (1 + 2 * targets) / max(1, sharing) + alone


def scoring_cost(plan: Plan, data: DatasetSpec, methods: Sequence[str], model: ModelCost) -> float:
    """Return the forward passes for scoring one image's maps of a group of methods."""
    if plan.reads_texts:  # the whole text, and for each share the text without its top words and these alone
        return len(methods) * len(plan.targets) * (1 + 2 * len(SHARES)) if ERASER in plan.protocols_of(data) else 0.0
    presets = find_presets([n for n in plan.protocols_of(data) if n not in PROTOCOLS])
    if not presets:
        return 0.0
    height, width = model.size
    rows, columns = model.grid or (14, 14)
    cost = 1.0
    for target in plan.targets:
        levels = set()
        for curve in (c for p in presets if target in p.explains for c in p.curves):
            units = rows * columns if curve.fill == TOKENS else height * width
            levels |= {(curve.order, curve.fill, k) for k in curve.removed(units) if 0 < k < units}
        for spec in methods:
            second = target == "label" and "predicted" in plan.targets
            share = (1 - ACCURACY if find(spec)[1].class_specific else 0.0) if second else 1.0
            # A forward pass with patches left out takes about half the time.
            cost += share * sum(0.5 if fill == TOKENS else 1.0 for _, fill, _ in levels)
    return cost
