"""Does `vitrail audit` tell the classes with a shortcut from the others, within one model?

A model of scenes is trained on scenes of one object where every second class has a tag in a corner that gives it away,
and the other classes have none. It starts from ``scenes-tagged``, which reads tags. The audit of its maps is then given
new scenes of the same kind, with masks (a run of the data set ``masks``) and without (an explained folder). The AUC is
that of the score of a class, tagged against untagged. The first part needs a GPU for some minutes, the second does not.

    PYTHONPATH=src:. python studies/audit_shortcut.py --train --weights half-tagged.safetensors
    PYTHONPATH=src:. python studies/audit_shortcut.py --weights half-tagged.safetensors \
        --out studies/results/audit-shortcut.json
"""

from __future__ import annotations

import csv
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from study import manifest, options, save_json
from training.images import predict
from training.loop import train
from training.models import TrainableViT, plain_copy
from training.recipe import Clock, TrainingTask
from training.run_writer import RunWriter, weights_metadata
from training.runtime import parallel_map, set_up
from training.scene_data import SceneImages
from training.scene_losses import HALF, class_loss
from training.scenes import ARCHITECTURE, MODELS, RECIPE, top1_accuracy

from vitrail.data import SCENE_CLASSES, Scene, Scenes
from vitrail.models import load

TAGGED = range(0, len(SCENE_CLASSES), 2)
METHOD = "transformer_mm"
PLAN = """
name = "half-tagged"
models = [{{ name = "scenes", weights = "{weights}" }}]
methods = ["{method}"]
controls = false
targets = "predicted"
protocols = ["complexity"]
keep_maps = true
dataset = {{ name = "masks", root = "{root}" }}
"""


def half_tagged(split: str, index: int, tag: bool = True) -> Scene:
    """A scene of one object, with a tag if its class is one of ``TAGGED``."""
    scene = Scenes(split, index + 1, objects=1, tagged=True, tag=tag)[index]
    return scene if not tag or scene.classes[0] in TAGGED else half_tagged(split, index, tag=False)


def _render(job: tuple[str, range, bool]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    split, indices, tag = job
    scenes = [half_tagged(split, index, tag) for index in indices]
    return np.stack([scene.image for scene in scenes]), np.stack([scene.labels for scene in scenes])


def rendered(split: str, count: int, workers: int, tag: bool = True) -> SceneImages:
    """Scenes with tags on half of the classes, or on none."""
    jobs = [(split, range(start, min(start + 64, count)), tag) for start in range(0, count, 64)]
    images, labels = zip(*parallel_map(_render, jobs, workers), strict=True)
    pixels = torch.from_numpy(np.concatenate(images))
    classes = torch.from_numpy(np.concatenate(labels)).float()
    return SceneImages(pixels, torch.zeros(len(pixels), 1, 1, dtype=torch.uint8), classes, f"{split}, half tagged")


def train_model(weights: Path, count: int, epochs: int, minutes: float, workers: int) -> None:
    """Train the model and save it, with its accuracy by group of classes, with and without tags."""
    sets = {tag: rendered("test", min(count, 2000), workers, tag) for tag in (True, False)}
    data = rendered("train", count, workers)  # before CUDA is used, because the processes are forked
    device = set_up(0)
    data = data.to(device)
    architecture = ARCHITECTURE | MODELS["tagged"][1]
    net = TrainableViT(architecture)
    net.load_state_dict(load("scenes-tagged").module.state_dict(), strict=False)
    model = plain_copy(net, architecture).to(device)

    def accuracies(one: torch.nn.Module) -> dict[str, float]:
        found = {}
        for tag, scenes in sets.items():
            logits = predict(one, scenes.images, HALF, HALF, device, fast=False)
            chosen = torch.isin(scenes.labels.argmax(1), torch.tensor(list(TAGGED)))
            for group, rows in (("tagged", chosen), ("untagged", ~chosen)):
                name = f"{group}_classes_{'as_trained' if tag else 'without_tags'}"
                found[name] = top1_accuracy(logits[rows.to(logits.device)], scenes.labels[rows])
        return found

    task = TrainingTask(
        name=weights.stem, net=net.to(device), model=model, count=count, loss=class_loss(data),
        evaluate=lambda one: accuracies(one)["untagged_classes_as_trained"],
        metadata=weights_metadata(architecture, SCENE_CLASSES, HALF, HALF, name=weights.stem, data=data.description),
    )  # fmt: skip
    recipe = replace(RECIPE, batch=min(RECIPE.batch, count), epochs=epochs)
    writer = RunWriter(weights.parent, {"train": count, "epochs": epochs})
    result = train(task, recipe, Clock.now() + 60 * minutes, device, writer, device.type == "cuda")
    writer.finish(task, recipe, result, {"training": data.description}, 0, accuracies, device)


def write_images(root: Path, count: int) -> None:
    """Write scenes as a data set ``masks``: images, masks and labels."""
    for part in ("images", "masks"):
        (root / part).mkdir()
    with (root / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("file", "class"))
        for index in range(count):
            scene = half_tagged("val", index)
            Image.fromarray(scene.image).save(root / "images" / f"{index:04d}.png")
            Image.fromarray(scene.masks[0].astype(np.uint8)).save(root / "masks" / f"{index:04d}.png")
            table.writerow((f"{index:04d}.png", scene.classes[0]))


def audited(folder: Path) -> dict[str, Any]:
    """Audit a store of maps: the AUC of the classes, their scores, and the findings in order."""
    from sklearn.metrics import roc_auc_score

    from vitrail.bench.audit import write_audit

    audit, _ = write_audit(folder, checks=0)
    tags = [one.label in TAGGED for one in audit.classes]
    return {
        "auc": float(roc_auc_score(tags, [one.score for one in audit.classes])),
        "masks": audit.masks,
        "classes": [
            {"class": one.name, "tagged": one.label in TAGGED, "maps": one.maps, "score": round(one.score, 3),
             "outside": round(one.outside, 3) if audit.masks else None, "border": round(one.border, 3)}
            for one in audit.classes
        ],
        "findings": [
            {"class": one.name, "tagged": one.label in TAGGED, "score": round(one.score, 3), "place": one.place,
             "maps": one.maps}
            for one in audit.findings
        ],
    }  # fmt: skip


def main() -> None:
    """Train the model, or audit its maps."""
    parser = options(__doc__, images=600, minutes=4.0)
    parser.add_argument("--weights", type=Path, required=True, help="weights file, written by --train")
    parser.add_argument("--train", action="store_true", help="train the model; without it, audit the model")
    parser.add_argument("--scenes", type=int, default=40_000, help="training scenes (%(default)s)")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--workers", type=int, default=8, help="processes that render (%(default)s)")
    parser.add_argument("--keep", type=Path, default=None, help="folder for images, maps and pages; default: none kept")
    args = parser.parse_args()
    if args.train:
        train_model(args.weights, args.scenes, args.epochs, args.minutes, args.workers)
        return
    from vitrail.bench import explain_folder
    from vitrail.bench.run import run_plan

    trained = json.loads((args.weights.parent / "manifest.json").read_text(encoding="utf-8"))["models"]
    found: dict[str, Any] = {
        "manifest": manifest(args.device, images=args.images, method=METHOD, training=trained[args.weights.stem])
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        root = folder / "data"
        root.mkdir(parents=True)
        write_images(root, args.images)
        plan = folder / "plan.toml"
        plan.write_text(PLAN.format(weights=args.weights.resolve(), method=METHOD, root=root.resolve()), "utf-8")
        found["with_masks"] = audited(Path(run_plan(plan, folder / "runs", device=args.device).folder))
        explain_folder(
            root / "images", folder / "maps", model="scenes", weights=str(args.weights), methods=[METHOD],
            device=args.device,
        )  # fmt: skip
        found["without_masks"] = audited(folder / "maps")
    save_json(args.out, found)
    for name in ("with_masks", "without_masks"):
        print(name, f"AUC {found[name]['auc']:.3f}", found[name]["findings"][:3])


if __name__ == "__main__":
    main()
