"""Token-removal SRG of Shapley values against the number of forward passes.

    python studies/shapley.py --assets DIR --device cuda --out studies/results/shapley.csv

DIR has ``weights/{vit_tiny_patch16_224,deit_tiny_patch16_224,vit_small_patch14_dinov2}.safetensors`` and ``imagenet``
(validation images). The predicted class of each image is explained with 64 to 2,048 forward passes by ``shapley`` (with
every prior, with respect to the probability, the log-probability and the logit), and by
RISE; with their own number of forward passes by occlusion and ViT-CX; and by methods of one pass, which have 0 further
ones. The score is the protocol ``srg-tokens``, as ``vitrail bench`` computes it.

The coalitions of a smaller number of forward passes are the first of those of a larger one, so all are evaluated once;
the same holds for the masks of RISE. Images are processed in groups, the models in turn, and the table is written
after each, so that a run that was stopped has an even share of the images of every model. ``--raw`` keeps the scores of
the coalitions. The SRG of each image by model and row is kept in files beside the table, NAME-MODEL.parquet, and rows
and comparisons are computed from them. Rows of other models, methods and numbers of forward passes stay.
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from srg_rows import FIELDS, Form, FormValues, check_same_images, save_rows, single_precision, summarise
from study import Clock, manifest, options
from torch import Tensor

import vitrail
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure
from vitrail.data import ImageNet
from vitrail.methods import shapley
from vitrail.methods._regression import FADE, PairedRegression
from vitrail.methods.coalitions import CoalitionGame, draw_pairs, grid_cells, patch_grid
from vitrail.methods.probe import Probe
from vitrail.methods.rise import RandomMasks
from vitrail.models.loaded import LoadedModel, describe
from vitrail.models.preprocess import Preprocess
from vitrail.scores import Evaluator, find_presets

MODELS = ("vit_tiny_patch16_224", "deit_tiny_patch16_224", "vit_small_patch14_dinov2")
BUDGETS = (64, 128, 256, 512, 1024, 2048)
SCORES = ("prob", "logprob", "logit")
#: Priors of the regression; None is KernelSHAP without a prior.
PRIORS = (None, "uniform", "leadlight", "grad_rollout", "transformer_mm")
#: Weights of the pairs in the ridge: those of the method, and those of the Shapley kernel.
WEIGHTS = {"": FADE, " (kernel weights)": 0.0}
ONE_PASS = ("leadlight", "leadlight:fast", "grad_rollout", "transformer_mm", "vtranm")
MANY_PASSES = {"occlusion": 197, "occlusion:2x2": 170, "vit_cx": 130}
PRESET = "srg-tokens"


def load_model(name: str, assets: Path, device: str) -> LoadedModel:
    """A model with the weights of the folder; images are resized to 224 pixels without a crop."""
    weights = assets / "weights" / f"{name}.safetensors"
    if "dinov2" in name:
        import timm
        from safetensors.torch import load_file

        module = timm.create_model(name, img_size=224, num_classes=1000)
        module.load_state_dict({key: value.float() for key, value in load_file(weights).items()})
        loaded = replace(describe(module.eval(), name), preprocess=Preprocess((224, 224)))
    else:
        loaded = vitrail.load(f"timm:{name}", weights)
    loaded.module.to(device)
    return replace(loaded, preprocess=replace(loaded.preprocess, squash=True))


@cache
def regression(players: int, most: int, pairs: int, ridge: bool, fade: float) -> PairedRegression:
    """The regression on the first of the pairs of coalitions, which are the same for all images."""
    return PairedRegression(draw_pairs(players, most, seed=0).first(pairs), ridge, fade)


class Group:
    """Maps of some images by every method, with their labels.

    Args:
        loaded: The model.
        images: As the model takes them, shape (b, 3, 224, 224).
        args: Arguments of the program.
    """

    def __init__(self, loaded: LoadedModel, images: Tensor, args: argparse.Namespace) -> None:
        self.loaded, self.images, self.args = loaded, images, args
        self.maps: dict[Form, Tensor] = {}
        with torch.no_grad():
            self.classes = loaded.module(images).argmax(1)
        inputs = ModelInputs((images,))
        structure = read_structure(loaded.module, inputs)
        self.probe = Probe(
            loaded.module, inputs, structure, self._score, len(SCORES), max_batch=args.batch, score="prob"
        )  # fmt: skip

    def _score(self, output: Tensor, owner: Tensor, _: str) -> Tensor:
        """The predicted class's probability, log-probability and logit, shape (N, 3)."""
        logits, own = output.float(), self.classes[owner][:, None]
        every = (logits.softmax(1), logits.log_softmax(1), logits)
        return torch.cat([values.gather(1, own) for values in every], 1)

    def add(self, grid: Tensor, *, method: str, forwards: int, score: str = "", prior: str = "") -> None:
        """Add maps of a method, shape (b, rows, columns)."""
        big = torch.nn.functional.interpolate(
            grid[:, None].float().to(self.images.device), self.images.shape[2:], mode="bilinear", align_corners=False
        )
        self.maps[method, forwards, score, prior] = big[:, 0]

    def one_pass(self) -> dict[str, Tensor]:
        """Methods of one pass, which are also priors; maps of patches by method."""
        target = self.classes.tolist()
        names = [*ONE_PASS, *(p for p in PRIORS if p not in (None, "uniform", *ONE_PASS))]
        found = {}
        for name, explanation in vitrail.explain(self.loaded, self.images, methods=names, target=target).items():
            found[name] = explanation.grid[:, 0]
            self.add(found[name], method=name, forwards=0)
        return found

    def many_passes(self) -> None:
        """Methods with a number of forward passes of their own."""
        for name, forwards in MANY_PASSES.items():
            if name in self.args.skip:
                continue
            explanation = vitrail.explain(
                self.loaded, self.images, name, target=self.classes.tolist(), batch_size=self.args.batch
            )
            self.maps[name, forwards, "prob", ""] = explanation.maps[:, 0]

    def rise(self) -> None:
        """RISE with the first masks of a common list."""
        most = max(self.args.budgets)
        drawn = RandomMasks.draw(most, 8, 0.5, 0, self.images)
        total = self.images.new_zeros(len(self.images), drawn.size[0] * drawn.size[1])
        cuts = sorted({*range(0, most, self.args.batch), *self.args.budgets, most})
        for start, stop in pairwise(cuts):
            M = drawn[slice(start, stop)]
            for i, image in enumerate(self.images):
                scores = self.probe.scores(image * M[:, None], i, self.args.precision)
                total[i].add_(scores[:, 0].to(M) @ M.flatten(1))
            if stop in self.args.budgets:
                self.maps["rise", stop, "prob", ""] = total.view(-1, *drawn.size).clone()

    def shapley(self, priors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Shapley values for every number of forward passes, score and prior."""
        grid = patch_grid(self.probe)
        members = grid_cells(grid, 1)
        game = CoalitionGame(self.probe, members)
        most = (max(self.args.budgets) - 2) // 2
        pairs = draw_pairs(len(members), most, seed=0)
        with torch.autocast(self.images.device.type, self.args.precision, enabled=self.args.precision is not None):
            ends = game(torch.tensor([[False], [True]]).expand(-1, len(members)))
            first, second = game(torch.cat([pairs.present, ~pairs.present])).chunk(2, 1)
        total, differences = (ends[:, 1] - ends[:, 0]), first - second
        for budget in self.args.budgets:
            own = pairs.first((budget - 2) // 2)
            for (k, score), prior in ((s, p) for s in enumerate(SCORES) for p in PRIORS):
                if score != "prob" and prior not in ("uniform", shapley.PRIOR):
                    continue
                mean = None
                if prior is not None:
                    maps = priors.get(prior, torch.ones(1, *grid)).flatten(1).clamp_min(0).double().cpu()
                    maps = maps.expand(len(self.images), -1)[:, None]
                    mean = shapley._prior_mean(maps, total[:, k : k + 1])[:, 0]  # noqa: SLF001
                for weights, fade in WEIGHTS.items():
                    if weights and (prior != shapley.PRIOR or score != "prob"):
                        continue
                    estimate = regression(len(members), most, len(own), prior is not None, fade)
                    found = estimate(differences[:, : len(own), k], total[:, k], mean).values.unflatten(1, grid)
                    self.add(found, method="shapley", forwards=budget, score=score, prior=f"{prior}{weights}")
        raw = {"ends": ends, "first": first, "second": second, **{f"map {name}": m.cpu() for name, m in priors.items()}}
        return {name: value.float() for name, value in raw.items()}

    def srg(self, ids: list[str], evaluate: Evaluator) -> FormValues:
        """SRG of each image by every method."""
        names = {"|".join(map(str, key)): key for key in self.maps}
        maps = {name: self.maps[key] for name, key in names.items()}
        records = evaluate(self.images, maps, ids=ids, predicted=self.classes)
        preset = find_presets(PRESET)[0]
        label = preset.label("srg(tokens)")
        return {key: records.sample_scores(preset, name).column(label) for name, key in names.items()}


def main() -> None:
    """Measure group by group, and print the best of each model at the end."""
    parser = options(__doc__, assets=..., models=list(MODELS), images=100, batch=1024, minutes=6.0, out=...)
    parser.add_argument("--group", type=int, default=25, help="images of a model between two writes")
    parser.add_argument("--budgets", type=int, nargs="+", default=list(BUDGETS))
    parser.add_argument("--skip", nargs="*", default=[], help="methods to leave out: rise, occlusion, vit_cx, …")
    parser.add_argument("--float32", action="store_true", help="run perturbed images in float32, not bfloat16")
    parser.add_argument("--raw", type=Path)
    args = parser.parse_args()
    args.precision = None if args.float32 else torch.bfloat16
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = True
    clock = Clock(args.minutes)
    check_same_images(args.out, args.images)
    data = ImageNet(args.assets / "imagenet")
    chosen = [int(i) for i in np.linspace(0, len(data) - 1, args.images)]
    models = {name: load_model(name, args.assets, args.device) for name in args.models}
    evaluators = {
        name: Evaluator(loaded, PRESET, batch=args.batch, precision=args.precision) for name, loaded in models.items()
    }
    values: dict[str, FormValues] = {name: {} for name in models}
    raw: dict[str, list[dict[str, Tensor]]] = {name: [] for name in models}
    for start in range(0, args.images, args.group):
        if clock.is_over(f"image {start}"):
            break
        samples = [data[i] for i in chosen[start : start + args.group]]
        for name, loaded in models.items():
            images = torch.stack([loaded.preprocess(s.image) for s in samples]).to(args.device)
            group = Group(loaded, images, args)
            lap = time.monotonic()
            raw[name].append(group.shapley(group.one_pass()))
            print(f"{name} {start}: shapley {time.monotonic() - lap:.1f} s", end="", flush=True)
            lap = time.monotonic()
            if "rise" not in args.skip:
                group.rise()
            group.many_passes()
            print(f", other methods {time.monotonic() - lap:.1f} s", end="", flush=True)
            lap = time.monotonic()
            for key, srg in group.srg([s.id for s in samples], evaluators[name]).items():
                values[name][key] = np.concatenate([values[name].get(key, np.empty(0)), single_precision(srg)])
            print(f", SRG of {len(group.maps)} maps {time.monotonic() - lap:.1f} s", flush=True)
        about = manifest(args.device, seconds=round(clock.seconds), images=args.images, batch=args.batch,
                         precision=str(args.precision), budgets=args.budgets)  # fmt: skip
        save_rows(args.out, values, about)
        if args.raw is not None:
            joined = {
                f"{m}|{k}": torch.cat([r[k] for r in parts]).numpy() for m, parts in raw.items() for k in parts[0]
            }
            np.savez_compressed(args.raw, **joined)
    for row in sorted(summarise(values), key=lambda row: (row["model"], -row["srg"])):
        print(" ".join(str(row[name]) for name in FIELDS))


if __name__ == "__main__":
    main()
