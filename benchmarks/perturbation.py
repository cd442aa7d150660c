"""Cases of methods and tests that evaluate many images, against the forward passes that they need."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from internals import in_mode
from measuring import BASE, SINGLE_PASS_METHODS, TINY, Calls, Rows, Run, add_ratios, bare_passes, labels_with_errors
from torch import Tensor, nn

import vitrail
from vitrail.scores import Evaluator, rank

TABLE_IMAGES = 50_000


def forwards(model: nn.Module, image: Tensor, counts: list[int], most: int, autocast: bool = False) -> None:
    """Bare forward passes: for each count that many images, in batches, of one image."""
    context = torch.autocast(image.device.type, torch.bfloat16) if autocast else nullcontext()
    with torch.inference_mode(), context:
        for count in counts:
            for start in range(0, count, most):
                model(image[:1].expand(min(most, count - start), -1, -1, -1).contiguous())


def threshold(model: nn.Module, images: Tensor, wanted: int, most: int) -> tuple[float, list[int]]:
    """A threshold of ViT-CX with about as many masks as trained weights give, and the masks of each image."""
    low, high = 0.01, 0.9
    for _ in range(12):
        delta = (low + high) / 2
        found = vitrail.explain(model, images, "vit_cx", delta=delta, target=0, keep=True, batch_size=most)
        counts = [int(k) for k in found.intermediates["count"][0]]
        if abs(sum(counts) / len(counts) - wanted) <= 0.1 * wanted:
            break
        low, high = (delta, high) if sum(counts) / len(counts) > wanted else (low, delta)
    return delta, counts


def perturbation(
    run: Run, *, model: str = BASE, small: str = TINY, batches: tuple[int, ...] = (32, 64), steps: int = 50,
    masks: int = 512, modes: tuple[str, ...] = ("", "plain", "no split"), repeats: int = 5,
) -> dict[str, Rows]:  # fmt: skip
    """Score-CAM, RISE, integrated gradients (also of Captum) and ViT-CX for one image, against their own passes."""
    own, timer, results = run.model(model), run.timer(repeats), dict[str, Rows]()
    image, masks, steps = run.images(own, 1), run.count(masks, 4), run.count(steps, 4)

    def measure(name: str, target: nn.Module, calls: Calls, reference: str, **options: Any) -> None:
        explain = partial(vitrail.explain, target, options.pop("images", image), name, target=0, **options)
        calls |= {f"{name}, {mode}" if mode else name: in_mode(mode, target, explain) for mode in modes}
        rows, _ = timer.compare(calls)
        add_ratios(rows, {"passes": reference, **({"captum": "Captum"} if "Captum" in rows else {})})
        label = name if name not in results else f"{name}, batches of {options['batch_size']}"
        results[label] = rows
        run.save(results)

    for most in batches:
        print(f"-- batches of {most}", flush=True)
        passes = partial(forwards, own, image, [1, own.embed_dim], most)
        measure("scorecam", own, {"its forwards": passes}, "its forwards", batch_size=most)
        passes = partial(forwards, own, image, [masks], most)
        measure("rise", own, {"its forwards": passes}, "its forwards", batch_size=most, masks=masks, seed=0)
    calls: Calls = {"its passes": bare_passes(own, image.expand(steps, -1, -1, -1).contiguous())[
        "bare forward_input_gradient"]}  # fmt: skip
    if find_spec("captum") is not None:
        from captum.attr import IntegratedGradients

        captum = IntegratedGradients(own)
        calls["Captum"] = lambda: captum.attribute(image.clone().requires_grad_(), target=0, n_steps=steps)
    measure("integrated_gradients", own, calls, "its passes", steps=steps)
    for name, wanted, count in ((small, 27, 1), (model, 63, 1), (model, 63, 4)):
        target = run.model(name)
        images = run.images(target, count)
        delta, counts = threshold(target, images, run.count(wanted, 6), batches[-1])
        passes = partial(forwards, target, images, [n for k in counts for n in (1, k, k)], batches[-1])
        print(f"-- {name}, {count} images, masks {counts}", flush=True)
        options = {"delta": delta, "batch_size": batches[-1], "images": images}
        measure("vit_cx", target, {"its forwards": passes}, "its forwards", **options)
        results[f"vit_cx, {name}, {count} images"] = results.popitem()[1]
    return results


def rise(
    run: Run, *, model: str = BASE, masks: int = 4000, batches: tuple[int, ...] = (64, 128), repeats: int = 5
) -> list[dict[str, Any]]:
    """RISE in bfloat16, converted or under autocast: share of the bare model's throughput."""
    results, masks = [], run.count(masks, 8)
    for converted in (False, True):
        own = run.model(model, "bfloat16" if converted else "float32")
        image = run.images(own, 1)
        for most in batches:
            precision = {} if converted else {"precision": "bfloat16"}
            options = {"masks": masks, "batch_size": most, "target": 0, **precision}
            rows, _ = run.timer(repeats).compare({
                "bare model": partial(forwards, own, image, [masks], most, autocast=not converted),
                "rise": partial(vitrail.explain, own, image, "rise", **options),
            })  # fmt: skip
            add_ratios(rows, {"bare": "bare model"})
            throughput = 1 / rows["rise"]["over_bare"]
            results.append({"most": most, "converted": converted, "throughput": throughput, "rows": rows})
            run.save(results)
    return results


def evaluator(
    run: Run, *, model: str = BASE, presets: tuple[str, ...] = ("chefer21",), images: int = 256, batch: int = 256,
    precisions: tuple[str, ...] = ("bfloat16", "autocast"), repeats: int = 3,
) -> list[dict[str, Any]]:  # fmt: skip
    """Perturbation tests with given maps: share of the bare model's throughput."""
    results, count = [], run.count(images, 4)
    for precision in precisions:
        autocast = torch.bfloat16 if precision == "autocast" else None
        own = run.model(model, "float32" if autocast else precision)
        given = run.images(own, count)
        with torch.inference_mode():
            labels = labels_with_errors(torch.cat([own(part).argmax(1) for part in given.split(batch)]))
        specific, of_label, agnostic = torch.rand(3, count, *given.shape[2:], device=run.device).unbind(0)
        maps = {"class-specific": specific, "class-agnostic": agnostic}
        label_maps = {"class-specific": of_label, "class-agnostic": agnostic}
        test = Evaluator(own, list(presets), batch=batch, precision=autocast)
        evaluate = partial(test, given, maps, labels=labels, label_maps=label_maps)
        passes = evaluate().forwards.total
        rows, _ = run.timer(repeats).compare({
            "bare model": partial(forwards, own, given, [passes], batch, autocast=autocast is not None),
            "evaluator": evaluate,
            "ranking one method": partial(rank, specific),
        })  # fmt: skip
        add_ratios(rows, {"bare": "bare model"})
        ratio = 1 / rows["evaluator"]["over_bare"]
        print(f"{precision}: {passes / rows['evaluator']['seconds']:.1f} images/s, ratio {ratio:.3f}", flush=True)
        results.append({"precision": precision, "passes": passes, "ratio": ratio, "rows": rows})
        run.save(results)
    return results


#: Set-ups of `table`: precision of the model, and whether the test runs under autocast.
SETUPS = {
    "converted": ("bfloat16+tf32", False), "plan, tf32": ("tf32", True), "plan, float32": ("float32", True)
}  # fmt: skip


def table(
    run: Run, *, model: str = BASE, setups: tuple[str, ...] = tuple(SETUPS), images: int = 320, batch: int = 256,
    explain_batch: int = 64, repeats: int = 3,
) -> dict[str, Any]:  # fmt: skip
    """A paper's perturbation table on synthetic images in memory: explaining and scoring, hours for 50,000 images."""
    names = ["rollout", "gradcam"] if run.tiny else [*SINGLE_PASS_METHODS, "random", "centre", "edges"]
    results: dict[str, Any] = {"methods": names}
    count = run.count(images, 4)
    for setup in setups:
        precision, autocast = SETUPS[setup]
        own = run.model(model, precision)
        given = run.images(own, count)
        with torch.inference_mode():
            predicted = own(given).argmax(1)
        labels = labels_with_errors(predicted)
        differing = (labels != predicted).nonzero()[:, 0]

        def maps_of(rows: Tensor, classes: Tensor, own: nn.Module = own, given: Tensor = given) -> dict[str, Tensor]:
            parts: dict[str, list[Tensor]] = {name: [] for name in names}
            for chunk in rows.split(explain_batch):
                found = vitrail.explain(own, given[chunk], methods=names, target=classes[chunk, None])
                for name in names:
                    parts[name].append(found[name].maps[:, 0])
            return {name: torch.cat(maps) for name, maps in parts.items()}

        def explain(predicted: Tensor = predicted, labels: Tensor = labels, differing: Tensor = differing) -> Any:
            maps, of_label = maps_of(torch.arange(count, device=run.device), predicted), maps_of(differing, labels)
            return maps, {name: maps[name].index_copy(0, differing, of_label[name]) for name in names}

        maps, label_maps = explain()
        test = Evaluator(own, ["chefer21"], batch=batch, precision=torch.bfloat16 if autocast else None)
        score = partial(test, given, maps, labels=labels, label_maps=label_maps)
        passes = score().forwards.total / count
        rows, _ = run.timer(repeats).compare({"explain": explain, "score": score})
        seconds = {name: row["seconds"] for name, row in rows.items()}
        rate = count / sum(seconds.values())
        hours = TABLE_IMAGES / rate / 3600
        print(f"{setup}: {rate:.2f} images/s, {hours:.2f} h for {TABLE_IMAGES:,}; explaining "
              f"{seconds['explain'] / sum(seconds.values()):.0%}", flush=True)  # fmt: skip
        results[setup] = {"forwards_per_image": passes, "seconds": seconds, "images_per_second": rate,
                          "hours_for_50000": hours}  # fmt: skip
        run.save(results)
    return results
