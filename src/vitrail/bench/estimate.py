"""A dry run: how many forwards a plan takes, and about how long, from a cost model and one small batch that is timed.

Costs are counted in forwards of one picture, a backward being two. An explanation by one pass costs three and, with
several classes, two more for each; sampling methods cost what their options say. A perturbation test costs a forward
for each level that is neither untouched nor empty; levels that presets share count once, and a second class counts for
the pictures it differs on, taken as one in five.
"""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import nn

from vitrail.bench.explainer import within_memory
from vitrail.bench.part import read_note
from vitrail.bench.protocols import PROTOCOLS
from vitrail.bench.stage import Model, Stage, samples
from vitrail.bench.work import Chunk
from vitrail.inside.feed import logits_of
from vitrail.methods import find
from vitrail.scores.fills import TOKENS
from vitrail.scores.presets import find_presets

#: Share of pictures whose label is the model's answer, for the cost of a second class.
ACCURACY = 0.8
#: ViT-CX looks twice at each cluster; the paper finds 63 to 95 clusters among 768 feature maps.
CLUSTERS = 0.1
#: Relevance is carried back by rules of its own, for each method and class anew.
RELEVANCE = 6.0
#: Explanations of the sensitivity score.
AGAIN = 10
#: Pictures of the batch that is timed.
TRIED = 4


@dataclass(frozen=True)
class Estimate:
    """What a plan would take.

    Attributes:
        images: Pictures, of all data sets.
        maps: Maps, of all models and methods.
        forwards: Forwards of one picture, in all.
        explaining: Those that go into making maps.
        left: Share of the work that is not done yet.
        each: Seconds a forward takes one worker.
        workers: How many work.
        memory: Bytes that one worker takes at the most, measured while a batch was explained.
    """

    images: int
    maps: int
    forwards: float
    explaining: float
    left: float
    each: float
    workers: int
    memory: int

    @property
    def seconds(self) -> float:
        """Until it is done."""
        return self.forwards * self.left * self.each / self.workers

    def rows(self) -> list[tuple[str, str]]:
        """As words for a table."""
        time = f"{self.seconds / 3600:.1f} h" if self.seconds > 5400 else f"{self.seconds / 60:.1f} min"
        return [
            ("images", f"{self.images:,}"),
            ("maps", f"{self.maps:,}"),
            ("forwards", f"{self.forwards:,.0f}, of which {self.explaining:,.0f} make maps and the rest score them"),
            ("left to do", f"{100 * self.left:.0f} %"),
            ("a forward", f"{1000 * self.each:.2f} ms, measured"),
            ("time", f"about {time} with {self.workers} worker{'s' if self.workers > 1 else ''}"),
            ("memory", f"about {self.memory / 2**30:.1f} GiB a worker"),
        ]


def estimate(stage: Stage, chunks: list[Chunk], workers: int) -> Estimate:
    """Count the forwards of a plan, and time a small batch.

    Args:
        stage: The opened plan.
        chunks: Its pieces of work.
        workers: How many will work.
    """
    total, explaining, left = 0.0, 0.0, 0.0
    for chunk in chunks:
        count = len(chunk.indices)
        making = count * sum(explanation_cost(stage, chunk, spec) for spec in chunk.methods)
        own = making + count * scoring_cost(stage, chunk) + 2 * count
        total, explaining = total + own, explaining + making
        left += own if read_note(chunk.path) != chunk.note else 0.0
    models = range(len(stage.plan.models))
    timed = [_time(stage, stage.model(i)) for i in models]
    images = sum(len(stage.pictures(i).indices) for i in range(len(stage.plan.dataset)))
    each = sum(seconds for seconds, _ in timed) / len(timed)
    memory = max(peak for _, peak in timed)
    maps = sum(chunk.maps for chunk in chunks)
    return Estimate(images, maps, total, explaining, left / total if total else 0.0, each, workers, memory)


def explanation_cost(stage: Stage, chunk: Chunk, spec: str) -> float:
    """Forwards that one picture's maps take by one method; methods of one pass share it."""
    _, method, options = find(spec)
    protocols = stage.plan.protocols_of(stage.plan.dataset[chunk.data])
    targets = 1.0 + (1 - ACCURACY if len(stage.plan.targets) > 1 else 0.0) + ("selectivity" in protocols)
    again = 1 + (AGAIN if "sensitivity" in protocols else 0)
    if method.family == "relevance":
        return again * RELEVANCE * targets
    if not samples(spec):
        shared = sum(not samples(other) and find(other)[1].family != "relevance" for other in chunk.methods)
        return again * (1 + 2 * targets) / max(1, shared)
    height, width = stage.model(chunk.model).view.size
    if method.name == "vit_cx":
        looks = 2 * CLUSTERS * _width(stage.model(chunk.model)) * float(options.get("draws", 1)) + 2
    elif method.name == "scorecam":
        looks = float(_width(stage.model(chunk.model)))
    elif method.name == "occlusion":
        rows, columns = stage.model(chunk.model).anatomy.layout.grid or (height // 16, width // 16)
        looks = rows * columns / float(options.get("stride", 1)) ** 2
    elif method.family == "perturbation":
        looks = float(options.get("masks", 1000))
    else:  # gradients along a path or around a point
        looks = 3 * targets * float(options.get("steps", options.get("samples", 1)))
    return again * looks


def scoring_cost(stage: Stage, chunk: Chunk) -> float:
    """Forwards that scoring one picture's maps of all methods takes."""
    plan = stage.plan
    presets = find_presets([n for n in plan.protocols_of(plan.dataset[chunk.data]) if n not in PROTOCOLS])
    if not presets:
        return 0.0
    model = stage.model(chunk.model)
    height, width = model.view.size
    rows, columns = model.anatomy.layout.grid or (14, 14)
    cost = 1.0
    for target in plan.targets:
        levels = set()
        for curve in (c for p in presets if target in p.explains for c in p.curves):
            units = rows * columns if curve.fill == TOKENS else height * width
            levels |= {(curve.order, curve.fill, k) for k in curve.removed(units) if 0 < k < units}
        for spec in chunk.methods:
            second = target == "label" and "predicted" in plan.targets
            share = (1 - ACCURACY if find(spec)[1].class_specific else 0.0) if second else 1.0
            # With patches left out a forward takes about half as long.
            cost += share * sum(0.5 if fill == TOKENS else 1.0 for _, fill, _ in levels)
    return cost


def _width(model: Model) -> int:
    """How many feature maps there are: what the head reads."""
    linears = [module for module in model.about.module.modules() if isinstance(module, nn.Linear)]
    return int(linears[-1].in_features) if linears else 768


def _time(stage: Stage, model: Model) -> tuple[float, int]:
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
