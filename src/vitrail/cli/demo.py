"""The main job on the embedded default: scenes explained by every method, with the truth beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure
from vitrail.data.scenes import CLASSES, Scene, Scenes
from vitrail.errors import NotApplicableError, OutputError
from vitrail.explain import explain
from vitrail.explanation import Explanations
from vitrail.methods import METHODS, find
from vitrail.models import load
from vitrail.viz.page import PageSection, page

#: Which held-out scenes are shown: (pairs or single objects, index).
SHOWN = ((False, 3), (False, 8), (True, 5), (True, 11))


#: More methods than this go on a sheet with a row for each.
MOST_COLUMNS = 8


@dataclass(frozen=True)
class DemoScene:
    """One scene with its explanations.

    Attributes:
        scene: The scene, with the truth.
        targets: The classes asked for.
        explanations: By method.
    """

    scene: Scene
    targets: tuple[int, ...]
    explanations: Explanations

    @property
    def title(self) -> str:
        """What is seen."""
        return " and ".join(CLASSES[c] for c in self.scene.classes)

    def on_object(self, method: str, k: int) -> float:
        """Share of the relevance that lies on the asked object."""
        relevance = self.explanations[method].maps[0, k].clamp_min(0)
        mask = torch.from_numpy(self.scene.class_mask(self.targets[k]).copy()).to(relevance.device)
        return float((relevance * mask).sum() / relevance.sum().clamp_min(1e-12))


def run(
    methods: Sequence[str] | None = None, model: str = "scenes", advance: Callable[[], Any] = lambda: None
) -> list[DemoScene]:
    """Explain four held-out scenes, two of them pairs with both classes asked for.

    Args:
        methods: Methods to use; all that apply to the model by default.
        model: An embedded scenes model.
        advance: Called after each scene, for progress.
    """
    about = load(model)
    names = {name: {} for name in methods} if methods is not None else _applicable(about)
    shown = []
    for pairs, index in SHOWN:
        scene = Scenes(split="test", objects=1, pairs=pairs)[index]
        targets = tuple(dict.fromkeys(scene.classes))
        found = explain(about, scene.to_tensor(), methods=names, target=[list(targets)])
        shown.append(DemoScene(scene, targets, found))
        advance()
    return shown


def _applicable(about: Any) -> dict[str, Mapping[str, Any]]:
    """Every method that applies, in a minute or two for all: with its preview options."""
    names: dict[str, Mapping[str, Any]] = {}
    blank = torch.zeros(1, 3, *about.preprocess.size)
    blank[..., ::2] = 1
    structure = read_structure(about.module, ModelInputs((blank,)))
    for name, method in METHODS.items():
        _, line, options = find(name)
        try:
            line.check(structure, options)
        except NotApplicableError:
            continue
        names[name] = method.preview
    return names


def write(shown: Sequence[DemoScene], folder: Path) -> tuple[Path, Path]:
    """Write the figure and the page.

    Returns:
        Where they are.
    """
    from vitrail.viz.figure import figure
    from vitrail.viz.gallery import gallery

    names = list(shown[0].explanations)
    parts = []
    for one in shown:
        asked = [(name, k) for name in names for k in range(len(one.targets))]
        remarks = {(name, k): f"{one.on_object(name, k):.0%} on the object" for name, k in asked}
        parts.append(PageSection(one.title, one.explanations, remarks))
    table = [("method", "relevance on the asked object", "seconds a scene")]
    for name in names:
        shares = [one.on_object(name, k) for one in shown for k in range(len(one.targets))]
        seconds = [one.explanations[name].seconds for one in shown]
        table.append((shown[0].explanations[name].title, f"{np.mean(shares):.0%}", f"{np.mean(seconds):.2f}"))
    introduction = (
        "Four scenes the model has not seen, two of them with two objects, each asked for in turn. Under each map: the "
        "share of its relevance that lies on the asked object, which is known exactly. Six maps decide nothing; "
        "the benchmark uses hundreds. Methods that look at many pictures run with fewer here than they would by "
        "themselves."
    )
    picture, sheet = folder / "figure.png", folder / "index.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draw = gallery if len(names) > MOST_COLUMNS else figure
        draw([one.explanations for one in shown]).savefig(picture)
        sheet.write_text(page("Vitrail: four scenes", introduction, parts, table), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write to {folder} ({error})") from error
    return picture, sheet
