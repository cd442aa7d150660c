"""The perturbation protocols against a plain loop over every image and level."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

from tests.scores.score_helpers import IMAGENET_PREPROCESS, batch, count_forwards, removed_mask
from vitrail.errors import InputError, OptionError
from vitrail.models.preprocess import IMAGENET_MEAN, IMAGENET_STD
from vitrail.scores import fills
from vitrail.scores.evaluator import Evaluator
from vitrail.scores.perturbation import PerturbationRecords
from vitrail.scores.presets import PRESETS
from vitrail.scores.ranks import rank
from vitrail.testing import tiny_vit

# -- reference: a plain loop -------------------------------------------------------------------------------------------

AREA = {
    "trapezoid×100": lambda v, x: 100 * sum((v[i] + v[i + 1]) / 2 * (x[i + 1] - x[i]) for i in range(len(v) - 1)),
    "unit×100": lambda v, _: 100 * (sum(v) - v[0] / 2 - v[-1] / 2) / (len(v) - 1),
    "unit": lambda v, _: (sum(v) - v[0] / 2 - v[-1] / 2) / (len(v) - 1),
    "forced×100": lambda v, x: AREA["trapezoid×100"]([*v, 0.0], [*x, 1.0]),
    "count": lambda v, _: (sum(v) - v[0] / 2 - v[-1] / 2) / len(v),
    "mean": lambda v, _: sum(v) / len(v),
}
LEVELS = {  # of 256 pixels
    "chefer21": [256 * p // 100 for p in range(0, 91, 10)],
    "vtranm": [256 * p // 100 for p in range(0, 101, 5)],
    "agcam": [256 * p // 100 for p in range(0, 101, 10)],
    "rise": [*range(0, 256, 9), 256],
    "rise-224": [*range(257)],
    "latec": [*range(1, 256)],
}
LEVELS |= {
    "vtranm-mean": LEVELS["vtranm"], "gradtoken": LEVELS["chefer21"], "bth": LEVELS["chefer21"],
    "m4": LEVELS["vtranm"], "vitcx": LEVELS["rise"], "srg": LEVELS["vtranm"],
}  # fmt: skip


def pixels_in_order(relevance):
    """Pixels from most to least relevant, ties in the seeded order."""
    ties = torch.randperm(relevance.numel(), generator=torch.Generator().manual_seed(0)).tolist()
    values = relevance.flatten().tolist()
    return sorted(ties, key=lambda p: -values[p])  # Python's sort is stable


def slow_fill_image(image, fill):
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    if fill in ("black", "grey"):
        return ((0.0 if fill == "black" else 127 / 255) - mean) / std * torch.ones_like(image)
    if fill == "mean":
        return torch.zeros_like(image)
    kernel = fills.rise_kernel() if fill == "blur" else fills.gaussian_kernel(15, 5.0)
    half = len(kernel) // 2
    padded = F.pad(image[None], (half,) * 4, mode="constant" if fill == "blur" else "reflect")[0]
    return F.conv2d(padded[:, None], kernel.float()[None, None])[:, 0]


def slow_scores(model, image, relevance, label, explained, preset):
    """All scores of one image and preset, level by level."""
    order = pixels_in_order(relevance)
    n = len(order)

    def log_probs(images):
        with torch.no_grad():
            return model(torch.stack(images)).log_softmax(1)

    predicted = int(log_probs([image])[0].argmax())
    classes = {"predicted": predicted, "label": label, "explained": explained}
    scores, logs, area = {}, [], {}
    for curve in preset.curves:
        levels = LEVELS[preset.name]
        if preset.name == "m4" and curve.order == "lerf":
            levels = [0, *levels[:-1]]
        values, perturbed, fill_image = [], [], slow_fill_image(image, curve.fill).flatten(1)
        for level in levels:
            k = n - level if curve.name == "insertion" else level
            removed = order[:k] if curve.order == "morf" else order[n - k :]
            changed = image.clone().flatten(1)
            changed[:, removed] = fill_image[:, removed]
            perturbed.append(changed.view_as(image))
        for out in log_probs(perturbed):
            if preset.quantity == "accuracy":
                values.append(float(int(out.argmax()) == label))
            else:
                values.append(float(out[classes[preset.quantity]].double().exp()))
            if curve.order == "morf":
                logs.append(float(out[predicted]))
        x = [level / n if not curve.grid.percents else round(level / n, 1) for level in levels]
        if preset.area == "forced×100" or preset.area == "trapezoid×100":
            x = [i / 10 for i in range(10)]
        scores[curve.score_name] = area[curve.order] = AREA[preset.area](values, x)
    first = preset.fills[0]
    if "aopc" in preset.extras:
        probs = [torch.tensor(v).double().exp().item() for v in logs]
        scores[f"aopc({first})"] = sum(probs[0] - p for p in probs) / len(probs)
        scores[f"lodds({first})"] = sum(v - logs[0] for v in logs) / len(logs)
    for extra in set(preset.extras) & {"srg", "abpc"}:
        scores[f"{extra}({first})"] = area["lerf"] - area["morf"]
    return scores


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_equals_a_plain_loop(name):
    model, preset = tiny_vit(size=16, depth=1), PRESETS[name]
    images, maps = batch(2, 16)
    _, label_maps = batch(2, 16, seed=7)
    predicted = model(images).argmax(1)
    labels = torch.stack([predicted[0], (predicted[1] + 1) % 5])  # one correct prediction, one wrong
    records = Evaluator(model, preset, batch=7 if name == "chefer21" else 100, preprocess=IMAGENET_PREPROCESS)(
        images, {"m": maps}, labels=labels, label_maps={"m": label_maps}
    )
    assert set(records.targets) == set(preset.explains)
    for curve in records.curves.values():
        if 0 in curve.removed:
            assert curve.read((0,), "agreement", "predicted").tolist() == [[1.0], [1.0]]
    for target in preset.explains:
        scores = records.scores(preset, "m", target)
        assert set(scores) == set(preset.scores)
        for i in range(2):
            # For a correct prediction one map serves both targets.
            relevance = maps[i] if target == "predicted" or i == 0 else label_maps[i]
            explained = int(predicted[i] if target == "predicted" else labels[i])
            expected = slow_scores(model, images[i], relevance, int(labels[i]), explained, preset)
            for score, value in expected.items():
                assert float(scores[score][i]) == pytest.approx(value, abs=2e-4, rel=2e-5), (target, score)


# -- number of forward passes ------------------------------------------------------------------------------------------


def forwards_of(names, n=3, differing=1, size=32):
    """Number of images passed through the model for a class-specific and a class-agnostic method."""
    model, sizes = count_forwards(tiny_vit(size=size, depth=1))
    images, maps = batch(n, size)
    with torch.no_grad():
        labels = model(images).argmax(1)
    labels[:differing] = (labels[:differing] + 1) % 5
    sizes.clear()
    agnostic = maps.flip(2)
    records = Evaluator(model, names, batch=64, preprocess=IMAGENET_PREPROCESS)(
        images,
        {"specific": maps, "agnostic": agnostic},
        labels=labels,
        label_maps={"specific": maps.flip(1), "agnostic": agnostic},
    )
    assert records.forwards.total == sum(sizes)
    assert max(sizes) <= 64
    return sum(sizes)


def test_no_image_is_evaluated_twice():
    n, differing = 3, 1
    both = (n + differing) + n  # maps of the class-specific and of the class-agnostic method
    assert forwards_of("chefer21") == n + 18 * both
    assert forwards_of("vtranm") == n + 38 * both + 1
    assert forwards_of(["chefer21", "gradtoken", "bth", "vtranm", "srg"]) == forwards_of("vtranm")
    assert forwards_of("rise") == n + (27 + 27) * 2 * n + n + 1  # predicted class only; blurred images once
    assert forwards_of("vitcx") == n + 3 * 27 * 2 * n + n + 1
    assert forwards_of(["rise", "vitcx"]) == forwards_of("vitcx")
    assert forwards_of("agcam") == n + 18 * both + 1
    # The empty image is evaluated once for the whole data set, not once per call.
    model, sizes = count_forwards(tiny_vit(depth=1))
    evaluate = Evaluator(model, "vtranm", preprocess=IMAGENET_PREPROCESS)
    images, maps = batch(3)
    parts = [evaluate(images[i : i + 1], {"m": maps[i : i + 1]}, ids=[str(i)]) for i in range(3)]
    assert sum(sizes) == 3 * (1 + 38) + 1 == PerturbationRecords.join(parts).forwards.total


def test_counts_are_rounded_down_and_level_grids_are_nested():
    tens, fives = PRESETS["chefer21"].curves[0].removed(50176), PRESETS["vtranm"].curves[0].removed(50176)
    assert tens == (0, 5017, 10035, 15052, 20070, 25088, 30105, 35123, 40140, 45158)
    assert set(tens) < set(fives)
    assert len(PRESETS["rise"].curves[0].removed(50176)) == 29
    assert len(PRESETS["rise-224"].curves[0].removed(50176)) == 225
    assert len(PRESETS["latec"].curves[0].removed(50176)) == 1003


# -- ties and constant maps --------------------------------------------------------------------------------------------


def test_tie_order_depends_on_the_seed_and_nan_ranks_lowest():
    ties = torch.zeros(2, 6, 6)
    a, b = rank(ties).ranks, rank(ties, seed=1).ranks
    assert torch.equal(a[0], a[1])
    assert not torch.equal(a, b)
    assert torch.equal(rank(ties, "raster").ranks[0], torch.arange(36, dtype=torch.int32))
    assert torch.equal(rank(torch.tensor([[-0.0, 0.0, -0.0]]), "raster").ranks, torch.tensor([0, 1, 2]).int())
    odd = torch.tensor([[1.0, float("nan"), -torch.inf, torch.inf]])
    found = rank(odd)
    assert found.ranks.tolist() == [1, 3, 2, 0]
    assert int(found.nan) == 1
    assert bool(found.constant)
    for order in ("morf", "lerf"):
        assert [int(removed_mask(a[0], k, order).sum()) for k in (0, 5, 36)] == [0, 5, 36]
    assert not (removed_mask(a[0], 18, "morf") & removed_mask(a[0], 18, "lerf")).any()
    assert rank(torch.tensor([[3, 250, 7]], dtype=torch.uint8)).ranks.tolist() == [2, 0, 1]
    with pytest.raises(OptionError, match="random or raster"):
        rank(ties, "first")


def test_constant_maps_are_ranked_by_the_tie_rule_and_counted():
    images, maps = batch(3)
    maps[0], maps[1], maps[2, 0, 0] = 0.0, 7.0, float("nan")
    evaluate = Evaluator(tiny_vit(), "agcam")
    records = evaluate(images, {"m": maps}, labels=torch.tensor([0, 1, 2]))
    curve = records.curves["m", "predicted", "morf", "mean"]
    assert curve.constant.tolist() == [True, True, True]
    assert curve.nan.tolist() == [0, 0, 1]
    assert records.summary(PRESETS["agcam"], "m")["flat"] == 3
    zeros = evaluate(images, {"m": torch.zeros_like(maps)}, labels=torch.tensor([0, 1, 2]))
    same = zeros.curves["m", "predicted", "morf", "mean"].outputs[:2]
    assert torch.allclose(same, curve.outputs[:2], atol=1e-5)
    raster = Evaluator(tiny_vit(), "agcam", ties="raster")(images, {"m": torch.zeros_like(maps)})
    assert not torch.allclose(raster.curves["m", "predicted", "morf", "mean"].outputs[:, 5, 0], same[:1, 5, 0])


# -- targets, precision, invalid inputs --------------------------------------------------------------------------------


def test_label_maps_alone_and_given_predictions():
    images, maps = batch(4)
    model = tiny_vit()
    labels = torch.tensor([0, 1, 2, 3])
    alone = Evaluator(model, "agcam")(images, {}, labels=labels, label_maps={"m": maps})
    other = Evaluator(model, "agcam")(images, {"m": maps}, labels=labels)
    assert alone.targets == ("label",)
    for order in ("morf", "lerf"):
        a, b = alone.curves["m", "label", order, "mean"], other.curves["m", "predicted", order, "mean"]
        assert torch.allclose(a.outputs, b.outputs, atol=1e-5)
    given = Evaluator(model, "m4", preprocess=IMAGENET_PREPROCESS)(
        images, {"m": maps[:, None]}, predicted=torch.full((4,), 2)
    )
    curve = given.curves["m", "predicted", "morf", "grey"]
    assert curve.predicted.tolist() == [2] * 4
    assert torch.allclose(curve.outputs[:, 0, 0], model(images).log_softmax(1)[:, 2], atol=1e-5)
    assert curve.outputs[..., 1].isnan().all()  # NaN without labels


def test_half_precision_and_training_mode():
    images, maps = batch(3)
    model = tiny_vit().train()
    full = Evaluator(model, "srg", preprocess=IMAGENET_PREPROCESS)(images, {"m": maps})
    with warnings.catch_warnings():  # CPUs without bfloat16 warn
        warnings.simplefilter("ignore")
        half = Evaluator(model, "srg", preprocess=IMAGENET_PREPROCESS, precision=torch.bfloat16)(images, {"m": maps})
    assert model.training
    assert model.blocks[0].training
    a, b = (r.scores(PRESETS["srg"], "m")["srg(black)"] for r in (full, half))
    assert torch.allclose(a, b, atol=0.05)
    with pytest.raises(InputError, match="different settings"):
        full + half


def test_invalid_inputs_raise():
    images, maps = batch(2)
    with pytest.raises(InputError, match="normalisation"):
        Evaluator(tiny_vit(), "chefer21")(images, {"m": maps})
    evaluate = Evaluator(tiny_vit(), "rise")
    for call in (
        lambda: evaluate(images, {}),
        lambda: evaluate(images, {"m": maps[:, :16]}),
        lambda: evaluate(images[0], {}),
        lambda: evaluate(images, {"m": maps}, label_maps={"m": maps}),
        lambda: evaluate(images, {"m": maps}, ids=["a"]),
        lambda: evaluate(images, {}, labels=torch.zeros(2).long(), label_maps={"m": maps}),
    ):
        with pytest.raises(InputError):
            call()
    with pytest.raises(OptionError, match="unknown preset"):
        Evaluator(tiny_vit(), "chefer22")
    with pytest.raises(OptionError, match="unknown fill"):
        Evaluator(tiny_vit(), "rise-paint")(images, {"m": maps})
    records = evaluate(images, {"m": maps})
    with pytest.raises(InputError, match="no record"):
        records.scores(PRESETS["m4"], "m")
    with pytest.raises(InputError, match="scored twice"):
        records + records
