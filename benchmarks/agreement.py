"""Cases that compare maps of fast paths and lower precisions with those of a reference: one table, one function.

A way to compute maps is a precision and, behind a comma, a mode: ``bfloat16, plain``. Reported are the largest
difference relative to the range of the reference maps, and Spearman's correlation between grids: mean and tenth
percentile over images. A variant of a method that is measured as well (``methods=lrp,lrp:stable``) is also compared
with it, both computed in the reference way.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from calls import RELEVANCE
from internals import MODES
from measuring import LARGE, PRECISIONS, SINGLE_PASS_METHODS, SIX, TINY, Run
from torch import Tensor, nn

import vitrail
from vitrail.scores.agreement import spearman


@dataclass(frozen=True)
class AgreementCase:
    """A row of the table.

    Attributes:
        about: What the case measures.
        reference: How the reference maps are computed.
        ways: Ways that are compared with it.
        calls: Methods of each call, joined by "+".
        model: timm model.
        images: Number of images.
        batch: Images of one call.
        rounds: Calls on other images and classes; passes are recorded in the second and replayed in the third.
        tokens: Number of tokens, 0 for the model's own.
    """

    about: str
    reference: str = "float64"
    ways: tuple[str, ...] = ("float32",)
    calls: tuple[str, ...] = SINGLE_PASS_METHODS
    model: str = TINY
    images: int = 2
    batch: int = 20
    rounds: int = 1
    tokens: int = 0


CASES = {
    "same": AgreementCase(
        "replayed passes against the plain path, three rounds", "float64, plain", ("float64",),
        (*SINGLE_PASS_METHODS, "+".join(SIX)), rounds=3,
    ),
    "precision": AgreementCase(
        "lower precision against float64; with --assets, trained ViT-Tiny on ImageNet images",
        ways=("float32", "tf32", "bfloat16", "bfloat16+tf32", "bfloat16, plain"), images=100,
    ),
    "split_maps": AgreementCase(
        "split and float32 products against float64", ways=("float32, all split", "float32, no split"),
        calls=("integrated_gradients", "smoothgrad", "transformer_mm", "vtranm", "gradtoken", "leadlight", "occlusion"),
        images=16,
    ),
    "relevance_maps": AgreementCase(
        "relevance in float32, by kernels and plain, against float64", ways=("float32", "float32, plain"),
        calls=RELEVANCE,
    ),
    "large_maps": AgreementCase(
        "attention row by row against matrices, 577 tokens", "bfloat16, plain", ("bfloat16, rows",),
        ("leadlight", "transformer_mm", "vtranm", "gradtoken"), LARGE, tokens=577,
    ),
}  # fmt: skip


def model_of(loaded: Any, way: str) -> Any:
    """A copy of the model in the precision of a way."""
    module = copy.deepcopy(getattr(loaded, "module", loaded)).to(PRECISIONS[way.partition(", ")[0]][0])
    return module if isinstance(loaded, nn.Module) else replace(loaded, module=module)


def maps_of(model: Any, images: Tensor, target: Any, way: str, names: Sequence[str]) -> dict[str, Tensor]:
    """Patch grids by method, computed in one way, shape (b, patches); pixel maps are averaged over patches."""
    precision, _, mode = way.partition(", ")
    dtype, matmul = PRECISIONS[precision]
    torch.set_float32_matmul_precision(matmul)
    module = getattr(model, "module", model)
    with MODES[mode](module):
        found = vitrail.explain(model, images.to(dtype), methods=list(names), target=target)
    size = module.patch_embed.grid_size
    pooled = {n: torch.nn.functional.adaptive_avg_pool2d(e.grid[:, 0].double(), size) for n, e in found.items()}
    return {name: grid.flatten(1).cpu() for name, grid in pooled.items()}


def compare(maps: Tensor, reference: Tensor) -> dict[str, float]:
    """Largest difference relative to the range, and rank correlation, of maps of shape (b, patches)."""
    span = reference.abs().amax(1, keepdim=True).clamp_min(1e-300)
    rho = spearman(maps, reference)
    rho = rho[rho.isfinite()]
    return {
        "difference": float(((maps - reference).abs() / span).max()),
        "mean": round(float(rho.mean()), 4) if len(rho) else float("nan"),
        "tenth": round(float(rho.quantile(0.1)), 4) if len(rho) else float("nan"),
    }


def read_images(assets: Path, name: str, count: int, device: torch.device) -> tuple[Any, Tensor]:
    """A trained model, and photographs evenly spread over ImageNet's validation images."""
    from vitrail.data import ImageNet

    loaded = vitrail.load(f"timm:{name}", assets / "weights" / f"{name}.safetensors")
    loaded.module.to(device)
    data = ImageNet(assets / "imagenet")
    indices = range(0, len(data), max(1, len(data) // count))[:count]
    return loaded, torch.stack([loaded.preprocess(data[i].image) for i in indices]).to(device)


def run_case(case: AgreementCase, run: Run, **settings: Any) -> dict[str, Any]:
    """Compare the maps of every call.

    Args:
        case: The row of the table.
        run: Common options.
        settings: Fields of the case to replace; ``methods`` are calls.
    """
    methods = settings.pop("methods", None)
    case = replace(case, **settings, **({"calls": methods} if methods else {}))
    count = run.count(case.images)
    trained = False
    if run.assets is not None and not case.tokens:
        trained = True
        loaded, given = read_images(run.assets, case.model, count, run.device)
    else:
        loaded = run.model(case.model, "float32", None if run.tiny or not case.tokens else case.tokens)
        given = run.images(loaded, count)
    cuda = run.device.type == "cuda"
    ways = [way for way in case.ways if cuda or "tf32" not in way]
    models = {way: model_of(loaded, way) for way in (case.reference, *ways)}
    results: dict[str, Any] = {}
    references: dict[str, Tensor] = {}
    for call in case.calls:
        grids: dict[str, dict[str, list[Tensor]]] = {way: {} for way in (case.reference, *ways)}
        for number in range(case.rounds):
            images = given if number == 0 else torch.randn_like(given)
            for part in images.split(case.batch):
                with torch.inference_mode():
                    predicted = getattr(loaded, "module", loaded)(part).argmax(1)
                target = predicted[:, None] if trained else number
                for way, own in grids.items():
                    for name, grid in maps_of(models[way], part, target, way, call.split("+")).items():
                        own.setdefault(name, []).append(grid)
        joined = {way: {name: torch.cat(parts) for name, parts in own.items()} for way, own in grids.items()}
        for name, reference in joined[case.reference].items():
            row = {way: compare(joined[way][name], reference) for way in ways}
            references.setdefault(name, reference)
            base = name.partition(":")[0]
            if base != name and base in references:
                row[base] = compare(reference, references[base])
            results[f"{name} in {call}" if "+" in call else name] = row
            print(f"{name:26s}" + "  ".join(
                f"{way} {r['difference']:.1e}, rank {r['mean']:.3f} ({r['tenth']:.3f})" for way, r in row.items()
            ), flush=True)  # fmt: skip
        run.save(results)
    return results
