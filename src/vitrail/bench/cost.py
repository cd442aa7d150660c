"""What the cost of a plan depends on in its models and data sets: measured, or known without them."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import nn

from vitrail.bench.context import BenchContext, BenchModel, open_images
from vitrail.bench.explainer import within_memory
from vitrail.bench.plan import DatasetSpec, Plan
from vitrail.capture.inputs import logits_of
from vitrail.data import cifar, voc
from vitrail.errors import VitrailError
from vitrail.methods import find
from vitrail.models.catalogue import entry_of

#: Pictures of the batch that is timed.
TRIED = 4
#: Tensors as large as a block's input that a block leaves behind for a backward.
KEPT = 16
#: Pictures of the published sets that do not depend on options.
PUBLISHED = {"imagenet": 50_000, "imagenet-segmentation": 4_276}
#: A forward takes so much longer than its products alone.
OVERHEAD = 1.5


@dataclass(frozen=True)
class ModelCost:
    """A model, as far as costs go.

    Attributes:
        size: Height and width of its pictures.
        grid: Patches down and across, if it has one grid.
        width: How many feature maps it has.
        blocks: How many blocks.
        methods: Those of the plan that apply to it.
        seconds: Of a forward of one picture.
        memory: Bytes a worker takes at the most.
    """

    size: tuple[int, int]
    grid: tuple[int, int] | None
    width: int
    blocks: int
    methods: tuple[str, ...]
    seconds: float
    memory: int


def measured(stage: BenchContext, model: BenchModel) -> ModelCost:
    """A loaded model, timed with a small batch."""
    seconds, memory = _time(stage, model)
    methods = tuple(spec for spec in stage.plan.specs() if spec not in model.refused)
    blocks = len(model.structure.layers)
    return ModelCost(model.view.size, model.structure.layout.grid, _width(model), blocks, methods, seconds, memory)


def known(plan: Plan, name: str, speed: float) -> ModelCost | None:
    """A model of the papers, from what is written about it; None for any other.

    Args:
        plan: The plan.
        name: The model.
        speed: Multiplications a second, in billions; see `speed_of`.
    """
    entry = entry_of(name)
    if entry is None:
        return None
    kind = "Swin" if entry.swin else "distilled" if "distilled" in entry.timm else "CLS"
    methods = tuple(spec for spec in plan.specs() if find(spec)[1].reason_against(kind) is None)
    kept = KEPT * entry.blocks * (entry.grid[0] * entry.grid[1] + 1) * entry.width * 4
    memory = int(entry.params * 4e6) + plan.batch * kept
    return ModelCost((224, 224), entry.grid, entry.width, entry.blocks, methods, OVERHEAD * entry.gmacs / speed, memory)


def speed_of(device: str) -> float:
    """Multiplications a second of a device, in billions, by one product of matrices."""
    a, b = torch.ones(788, 768, device=device), torch.ones(768, 3072, device=device)
    times = []
    for _ in range(3):
        began = perf_counter()
        float((a @ b)[0, 0])  # reading a number waits for it
        times.append(perf_counter() - began)
    return 788 * 768 * 3072 / 1e9 / min(times)


def pictures_of(data: DatasetSpec) -> tuple[int, str]:
    """How many pictures a data set of a plan has, and a remark where that is not known from its files.

    Example:
        >>> pictures_of(Data(name="imagenet", limit=5000))
        (5000, 'imagenet is not here: counted with 5,000 pictures')
    """
    try:
        return len(open_images(data).indices), ""
    except VitrailError:
        pass
    split = data.options.get("split")
    count = PUBLISHED.get(data.name)
    if data.name == "voc2012":
        count = voc.COUNTS.get(str(split or "val"))
    elif data.name in ("cifar10", "cifar100"):
        count = cifar.COUNTS.get(str(split or "test"))
    sizes = [n for n in (count, data.limit, len(data.ids) if isinstance(data.ids, tuple) else None) if n is not None]
    if not sizes:
        return 0, f"{data.title} is not here, and how many pictures it has is unknown: not counted"
    return min(sizes), f"{data.title} is not here: counted with {min(sizes):,} pictures"


def _width(model: BenchModel) -> int:
    """How many feature maps there are: what the head reads."""
    linears = [module for module in model.about.module.modules() if isinstance(module, nn.Linear)]
    return int(linears[-1].in_features) if linears else 768


def _time(stage: BenchContext, model: BenchModel) -> tuple[float, int]:
    """Seconds a forward of one picture takes, and the memory a worker takes at the most."""
    images = torch.randn(min(TRIED, stage.plan.batch), len(model.view.mean), *model.view.size).to(stage.device)
    gpu = stage.device.startswith("cuda")

    def forward(size: int) -> None:
        with torch.inference_mode():
            logits_of(model.about.module(images[:size]))
            if gpu:
                torch.cuda.synchronize()

    if gpu:
        torch.cuda.reset_peak_memory_stats()
    within_memory(stage, forward)
    times = []
    for _ in range(3):
        began = perf_counter()
        within_memory(stage, forward)
        times.append((perf_counter() - began) / len(images))
    weights = sum(p.numel() * p.element_size() for p in model.about.module.parameters())
    if gpu:
        peak = torch.cuda.max_memory_allocated()
        return min(times), weights + int((peak - weights) * stage.plan.batch / len(images)) * 3  # a graph keeps more
    unit = 1 if sys.platform == "darwin" else 1024
    return min(times), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
