"""The demo: explain four embedded scenes and write a figure and an HTML page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure
from vitrail.data.scenes import Scene, Scenes
from vitrail.data.shapes import SCENE_CLASSES
from vitrail.errors import NotApplicableError, writing
from vitrail.methods import METHODS
from vitrail.methods.cost import size_of
from vitrail.models import load
from vitrail.models.percentages import percent
from vitrail.models.preprocess import Preprocess
from vitrail.pipeline.explain import DEFAULT, explain
from vitrail.pipeline.explanation import Explanations
from vitrail.pipeline.progress import Progress
from vitrail.viz.figure import MAX_COLUMNS, figure, gallery
from vitrail.viz.html import ImageSection, explanation_page

#: Scenes of the test split: (whether it shows a pair of objects, index).
DEMO_SCENES = ((False, 3), (False, 8), (True, 5), (True, 11))

#: Methods that cost more forward passes of one image than this run only if all are asked for.
MAX_FORWARDS = 40

INTRODUCTION = (
    "Four scenes of the test split, two with one object and two with two. The class of each object is explained. The "
    "percentage under a map is the share of its positive relevance inside the mask of the object. Six maps are too few "
    "to rank methods: run `vitrail bench scenes` for that. Methods that evaluate many images evaluate fewer here than "
    "by default."
)


@dataclass(frozen=True)
class DemoScene:
    """A scene with its explanations.

    Attributes:
        scene: The scene, with the masks of its objects.
        targets: The explained classes.
        explanations: Explanations by method name.
    """

    scene: Scene
    targets: tuple[int, ...]
    explanations: Explanations

    @property
    def title(self) -> str:
        """Names of the objects."""
        return " and ".join(SCENE_CLASSES[c] for c in self.scene.classes)

    def relevance_on_object(self, method: str, k: int) -> float:
        """Share of the positive relevance for target k that lies on its object."""
        relevance = self.explanations[method].maps[0, k].clamp_min(0)
        mask = torch.from_numpy(self.scene.class_mask(self.targets[k]).copy()).to(relevance.device)
        return float((relevance * mask).sum() / relevance.sum().clamp_min(1e-12))


def demo_methods(model: str, every: bool = False) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """Choose the methods of the demo: those that apply to an embedded model and are cheap.

    Returns:
        By name, the preview options of each chosen method, the default method first, and the names of those left out.
    """
    loaded = load(model)
    assert isinstance(loaded.preprocess, Preprocess)
    stripes = torch.zeros(1, 3, *loaded.preprocess.size)
    stripes[..., ::2] = 1
    structure = read_structure(loaded.module, ModelInputs((stripes,)))
    chosen: dict[str, Mapping[str, Any]] = {}
    expensive = []
    for name, method in sorted(METHODS.items(), key=lambda item: item[0] != DEFAULT):
        options = {**method.options, **method.preview}
        try:
            method.check(structure, options, model=loaded.module)
        except NotApplicableError:
            continue
        if every or method.cost(options, size_of(structure), 1).forwards <= MAX_FORWARDS:
            chosen[name] = method.preview
        else:
            expensive.append(name)
    return chosen, expensive


def explain_demo_scenes(
    methods: Sequence[str] | Mapping[str, Mapping[str, Any]],
    model: str = "scenes",
    advance: Callable[[], Any] = lambda: None,
    progress: Progress = None,
) -> list[DemoScene]:
    """Explain four scenes of the test split, for the class of each object.

    Args:
        methods: Names of methods, or options by name.
        model: Name of an embedded model of scenes.
        advance: Called after each scene.
        progress: Progress within a scene, as in `vitrail.explain`.
    """
    loaded = load(model)
    scenes = []
    for pairs, index in DEMO_SCENES:
        scene = Scenes(split="test", objects=1, pairs=pairs)[index]
        targets = tuple(dict.fromkeys(scene.classes))
        explanations = explain(
            loaded, scene.to_tensor()[None], methods=methods, target=[list(targets)], progress=progress
        )
        scenes.append(DemoScene(scene, targets, explanations))
        advance()
    return scenes


def write_demo(scenes: Sequence[DemoScene], folder: Path) -> tuple[Path | None, Path]:
    """Write ``index.html``, and ``figure.png`` if matplotlib is installed.

    Returns:
        The path of the figure, or None without matplotlib, and the path of the page.
    """
    methods = list(scenes[0].explanations)
    sections = []
    for one in scenes:
        cells = [(name, k) for name in methods for k in range(len(one.targets))]
        remarks = {(name, k): f"{percent(one.relevance_on_object(name, k))} on the object" for name, k in cells}
        sections.append(ImageSection(one.title, one.explanations, remarks))
    table = [("Method", "Mean relevance on the object", "Seconds per scene")]
    for name in methods:
        shares = [one.relevance_on_object(name, k) for one in scenes for k in range(len(one.targets))]
        seconds = [one.explanations[name].seconds for one in scenes]
        table.append((scenes[0].explanations[name].title, percent(float(np.mean(shares))), f"{np.mean(seconds):.2f}"))
    image, page = folder / "figure.png" if find_spec("matplotlib") else None, folder / "index.html"
    draw = gallery if len(methods) > MAX_COLUMNS else figure
    with writing(folder, "choose another folder with --out"):
        folder.mkdir(parents=True, exist_ok=True)
        if image is not None:
            draw([one.explanations for one in scenes]).savefig(image)
        page.write_text(explanation_page("Vitrail demo: four scenes", INTRODUCTION, sections, table), encoding="utf-8")
    return image, page
