"""Measurements of one method on one model for its card; see `cards.py`, which runs them."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import trust
from card_values import COMPLETENESS, CONSTANT, EQUAL, OPTIONS, CardValues, single_precision, summarise
from study import timed
from torch import Tensor

import vitrail
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.removal import TokenDropper
from vitrail.capture.structure import read_structure
from vitrail.data import ImageNet, MaskFolder, Scenes
from vitrail.errors import VitrailError
from vitrail.inputs.targets import SCORES
from vitrail.methods.cost import size_of
from vitrail.methods.registry import METHODS, find
from vitrail.methods.shapley_explainer.weights import load_explainer
from vitrail.scores import Evaluator, SegmentationScores, find_presets, score_segmentation
from vitrail.scores.agreement import spearman
from vitrail.scores.sanity import randomisation_steps, randomised
from vitrail.scores.sensitivity import RADIUS, noise_samples

#: Names of the models in the tables, and those of their weights.
PHOTOGRAPHS = {
    "vit-t": "vit_tiny_patch16_224", "deit-t": "deit_tiny_patch16_224", "dinov2-s": "vit_small_patch14_dinov2"
}  # fmt: skip
SCENES = "scenes"
#: Perturbation protocols and their scores, as in the tables.
PROTOCOLS = {"chefer21": ("positive(black)", "negative(black)"), "srg": ("srg(black)",), "srg-tokens": ("srg(tokens)",)}
#: Images of the tables are the first of these.
PLANNED = 300
#: Values of options beside the variants; "score" is tried for all one-pass methods.
VALUES: dict[str, tuple[str, ...]] = {
    "raw_attention": ("layer=-2",),
    "rollout": ("normalise=false", "discard=0.5", "fusion=max"),
    "transformer_mm": ("start=4",),
    "grad_rollout": ("discard=0.5", "discard=0"),
    "attcat": ("query=readout", "sign=abs"),
    "legrad": ("blocks=4",),
    "vtranm": ("per_head=false", "layer=4"),
    "gradtoken": ("depth=6", "softmax=elementwise"),
    "leadlight": ("power=2", "power=8", "rounds=1", "mix=0.5"),
    "tam": ("start=0", "integral=false"),
    "bi_attn": ("feedback=false",),
    "attattr": ("start=0",),
    "lrp": ("where=tokens",),
    "transformer_attribution": ("start=4",),
    "conservative_lrp": ("gelu=identity", "where=pixels"),
    "attnlrp": ("gamma_linear=0", "gamma_conv=0", "where=tokens"),
    "gradient_x_input": ("reduce=abs", "reduce=max"),
    "integrated_gradients": ("rule=midpoint", "baseline=-1.0", "reduce=abs"),
    "smoothgrad": ("sigma=0.05", "sigma=0.3"),
    "occlusion": ("window=3", "fill=-1.0"),
    "rise": ("masks=1000", "masks=1000,cells=5", "masks=1000,keep=0.25"),
    "tis": ("ratio=0.25",),
    "shapley": ("prior=leadlight", "cell=2"),
}
#: Variants that cost more than the default.
EXPENSIVE_VARIANTS = {"rise": ("paper", "notebook"), "tis": ("config",), "vit_cx": ("1", "2")}


class Model:
    """A model with its images, the explained and the other class of each, and copies with random parameters.

    Args:
        name: A key of ``PHOTOGRAPHS``, or "scenes".
        args: Arguments of the program.
    """

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        self.name, self.args, self.device = name, args, torch.device(args.device)
        if name == SCENES:
            self.loaded = vitrail.load(SCENES)
            self.loaded.module.to(self.device)
            data = Scenes(split="test", pairs=True, count=args.images)
            self.images = data.batch(range(args.images))[0].to(self.device)
            classes = torch.tensor([list(data[i].classes) for i in range(args.images)])
            self.ids, self.labels = [f"scene {i:03d}" for i in range(args.images)], classes[:, 0].tolist()
        else:
            loaded = trust.load(PHOTOGRAPHS[name], args.assets, args.device)
            preprocess = replace(loaded.preprocess, squash=True)
            self.loaded = replace(loaded, preprocess=preprocess)
            photographs = ImageNet(args.assets / "imagenet")
            chosen = [photographs[i * len(photographs) // PLANNED] for i in range(args.images)]
            self.images = torch.stack([preprocess(s.image) for s in chosen]).to(self.device)
            self.ids, self.labels = [s.id for s in chosen], [s.label for s in chosen]
            masked = MaskFolder(args.assets / "pets")
            pets = [masked[i] for i in range(min(args.images, args.scored_images))]
            self.pets = torch.stack([preprocess(s.image) for s in pets]).to(self.device)
            masks = torch.stack([torch.from_numpy(s.mask.astype(np.int64)) for s in pets])[:, None].float()
            self.masks = F.interpolate(masks, self.images.shape[2:])[:, 0].long()
            with torch.no_grad():
                classes = self.loaded.module(self.images).topk(2).indices.cpu()
                self.pet_classes = self.loaded.module(self.pets).argmax(1).tolist()
        self.own, self.other = classes[:, 0].tolist(), classes[:, 1].tolist()
        self.structure = read_structure(self.loaded.module, ModelInputs((self.images,)))
        assert self.structure.layout.grid is not None
        self.grid: tuple[int, int] = self.structure.layout.grid
        self.size = size_of(self.structure)
        self.bare: dict[int, float] = {}
        self.controls: dict[str, dict[str, list[float]]] = {}
        trained = args.explainers / f"vit_shapley-{name}.safetensors" if args.explainers else None
        self.explainer = str(trained) if trained is not None and trained.is_file() else ""
        self.evaluate = Evaluator(
            self.loaded, list(PROTOCOLS), batch=args.batch,
            precision=torch.bfloat16 if self.device.type == "cuda" else None,
        )  # fmt: skip

    @cached_property
    def random(self) -> dict[str, Any]:
        """Copies of the model with random parameters in the head, in head and last block, and everywhere."""
        steps = randomisation_steps(self.loaded.module, self.images[:1])
        parts = {"head": steps[:1], "last block": steps[:2], "all": steps}
        copies = {}
        stack = ExitStack()  # never closed: the copies stay random
        for name, chosen in parts.items():
            module = copy.deepcopy(self.loaded.module)
            stack.enter_context(randomised(module, [p for step in chosen for p in step.parameters]))
            copies[name] = replace(self.loaded, module=module)
        self.stack = stack
        return copies

    def forward_backward(self, count: int) -> float:
        """Seconds of a forward and backward pass of the bare model on some images."""
        if count not in self.bare:
            module, images = self.loaded.module, self.images[:count]

            def bare() -> None:
                module(images)[:, 0].sum().backward()
                module.zero_grad(set_to_none=True)

            self.bare[count] = float(np.median([timed(bare, self.device)[1] for _ in range(6)][1:]))
        return self.bare[count]

    def maps(
        self, spec: str, count: int, *, model: Any = None, images: Tensor | None = None, target: Any = None
    ) -> tuple[Tensor, Any]:
        """Patch values, shape (count, patches), and the explanation."""
        given = (self.images if images is None else images)[:count]
        chosen = (self.own if target is None else target)[:count]
        if spec == "vit_shapley" and self.explainer:
            spec = f"{spec}:weights={self.explainer}"
        explanation = vitrail.explain(
            self.loaded if model is None else model, given, spec, target=chosen, batch_size=self.args.batch
        )
        values = explanation.grid[:, 0]
        if tuple(values.shape[1:]) != self.grid:
            values = F.adaptive_avg_pool2d(explanation.maps[:, 0][:, None].float(), self.grid)[:, 0]
        return values.flatten(1).double().nan_to_num(0.0, 0.0, 0.0).cpu(), explanation


def similarities(a: Tensor, b: Tensor) -> list[float]:
    """Rank correlation of the maps of each image, NaN where one is constant."""
    count = min(len(a), len(b))
    return single_precision(spearman(a[:count], b[:count]))


def option_specs(name: str) -> Iterator[str]:
    """Variants and other values of options of a method, as specs; those equal to the default are left out."""
    method = METHODS[name]
    default = find(name)[1:]
    specs = [v for v in method.variants if v not in EXPENSIVE_VARIANTS.get(name, ())] + list(VALUES.get(name, ()))
    if method.takes == "trace" and method.score is not None and method.family in ("gradient", "relevance"):
        specs += [f"score={score}" for score in SCORES if score != method.score]
    for spec in dict.fromkeys(specs):
        if find(f"{name}:{spec}")[1:] != default:
            yield spec


def completeness(model: Model, name: str, explanation: Any, count: int) -> list[float]:
    """Relative error of the sum of each map, for methods whose values sum to a difference of the score."""
    images, own = model.images[:count], torch.tensor(model.own[:count])[:, None]
    with torch.no_grad():
        whole = model.loaded.module(images)
        if name == "integrated_gradients":
            baseline = torch.full_like(images, float(METHODS[name].options["baseline"]))
            change = whole - model.loaded.module(baseline)
        elif name == "vit_shapley":
            change = whole.softmax(1) - load_explainer(model.loaded.module, model.structure, model.explainer).empty
        elif name == "shapley":
            dropper = TokenDropper(model.loaded.module, images)
            empty = dropper(images, torch.zeros(count, 0, dtype=torch.long, device=images.device))
            change = whole.softmax(1) - empty.softmax(1)
        else:
            return []
    expected = change.cpu().gather(1, own)[:, 0].double()
    total = explanation.grid[:, 0].flatten(1).double().sum(1).cpu()
    return single_precision((total - expected).abs() / expected.abs().clamp_min(1e-9))


def perturbation(model: Model, name: str, maps: Tensor, count: int) -> dict[str, list[float]]:
    """Scores of each image by perturbation, in the order of the model's images."""
    predicted, labels = (torch.tensor(classes[:count]) for classes in (model.own, model.labels))
    records = model.evaluate(
        model.images[:count], {name: maps}, ids=model.ids[:count], predicted=predicted, labels=labels
    )
    found: dict[str, list[float]] = {}
    for preset in find_presets(list(PROTOCOLS)):
        scored = records.sample_scores(preset, name)
        for score in PROTOCOLS[preset.name]:
            values = [float(scored.rows[i][scored.columns.index(preset.label(score))]) for i in model.ids[:count]]
            found[score] = [round(v, 5) for v in values]
    return found


def regions(model: Model, name: str, count: int) -> list[list[float]]:
    """Intersections and unions of object and background on pets, shape (images, 4); maps are cut at their mean."""
    _, explanation = model.maps(name, count, images=model.pets, target=model.pet_classes)
    scores = SegmentationScores()
    found = score_segmentation(explanation.maps[:, 0].cpu(), model.masks[: len(explanation.maps)])
    scores.add([f"{i:03d}" for i in range(len(explanation.maps))], found)
    return [[round(float(v), 6) for v in row] for row in scores.ratios()]


def image_count(model: Model, name: str) -> int:
    """Number of images of a method, by its cost in forward passes."""
    method = METHODS[name]
    each = 3.0 + method.cost(find(name)[2], model.size, 1).forwards
    return int(min(len(model.images), max(model.args.least, model.args.work // each)))


def measure_time(model: Model, name: str, count: int, repeats: int) -> tuple[Tensor, dict[str, float]]:
    """The map again, and the least time of some calls over that of the bare model."""
    repeated = [timed(lambda: model.maps(name, count), model.device) for _ in range(repeats)]
    seconds, bare = min(spent for _, spent in repeated), model.forward_backward(count)
    times = {"seconds": seconds, "forward_backward": bare, "over_forward_backward": round(seconds / bare, 3)}
    return repeated[-1][0][0], times


def measure(model: Model, name: str, scored: Collection[str]) -> tuple[dict[str, Any], CardValues]:
    """All measurements of one method on one model, and the values of each image behind them."""
    defaults = METHODS[name].options
    count = image_count(model, name)
    (first, explanation), taken = timed(lambda: model.maps(name, count), model.device)
    if taken > model.args.slow and count > model.args.least:
        count = max(model.args.least, int(count * model.args.slow / taken))
        first = first[:count]
        explanation = replace(explanation, grid=explanation.grid[:count], maps=explanation.maps[:count])
    again, times = measure_time(model, name, count, 2 if taken < 0.5 else 1)
    values: CardValues = {CONSTANT: single_precision(explanation.constant[:count].flatten().float().cpu())}
    values["repeat"] = similarities(first, again)
    values[EQUAL] = single_precision((again == first).all(1).float())
    if count > 1:
        values["other image"] = similarities(first, first.roll(1, 0))
    tests: dict[str, Callable[[], Any]] = {}
    if "seed" in defaults:
        tests["seed"] = lambda: model.maps(f"{name}:seed={defaults['seed'] + 1}", count)
    noise = next(noise_samples(model.images, RADIUS, 1))
    tests["noise"] = lambda: model.maps(name, count, images=model.images + noise)
    tests["label"] = lambda: model.maps(name, count, target=model.other)
    for part in ("head", "last block", "all"):
        tests[part] = lambda part=part: model.maps(name, count, model=model.random[part])
    few = min(count, model.args.option_images)
    for spec in option_specs(name):
        tests[f"{OPTIONS}{spec}"] = lambda spec=spec: model.maps(f"{name}:{spec}", few)
    refused: dict[str, str] = {}
    for test, run in tests.items():
        try:
            found = run()[0]
            values[test] = similarities(first[: len(found)], found)
        except VitrailError as error:
            refused[test.removeprefix(OPTIONS)] = str(error)
    if errors := completeness(model, name, explanation, count):
        values[COMPLETENESS] = errors
    row: dict[str, Any] = {"images": count, **times, **summarise(values)}
    limit = int(2 * model.args.slow * count / max(taken, 1e-9))
    more = min(len(model.images), max(count, min(model.args.scored_images, limit)))
    if "perturbation" in scored:
        explanation = explanation if more == count else model.maps(name, more)[1]
        row["perturbation"] = perturbation(model, name, explanation.maps[:, 0], more)
    if "regions" in scored and model.name in PHOTOGRAPHS:
        row["regions"] = regions(model, name, more)
    return {**row, "refused": refused}, values
