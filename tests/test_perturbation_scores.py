"""The perturbation protocols against a plain loop over every picture and level."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

from perturbing import SEEN, batch, counted
from vitrail.errors import InputError, OptionError
from vitrail.models.preprocess import IMAGENET_MEAN, IMAGENET_STD
from vitrail.scores import fills
from vitrail.scores.evaluator import Evaluator
from vitrail.scores.perturbation import Records
from vitrail.scores.presets import PRESETS
from vitrail.scores.ranks import rank, removed
from vitrail.testing import tiny_vit

# -- a plain loop over everything --------------------------------------------------------------------------------------

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
    """Most relevant first, ties in the seeded order."""
    ties = torch.randperm(relevance.numel(), generator=torch.Generator().manual_seed(0)).tolist()
    values = relevance.flatten().tolist()
    return sorted(ties, key=lambda p: -values[p])  # Python's sort is stable


def canvas_of(image, fill):
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    if fill in ("black", "grey"):
        return ((0.0 if fill == "black" else 127 / 255) - mean) / std * torch.ones_like(image)
    if fill == "mean":
        return torch.zeros_like(image)
    kernel = fills.rise_kernel() if fill == "blur" else fills.gaussian_kernel(15, 5.0)
    half = len(kernel) // 2
    padded = F.pad(image[None], (half,) * 4, mode="constant" if fill == "blur" else "reflect")[0]
    return F.conv2d(padded[:, None], kernel.float()[None, None])[:, 0]


def plainly(model, image, relevance, label, explained, preset):
    """All scores of one image and preset, level by level."""
    order = pixels_in_order(relevance)
    n = len(order)

    def said(pictures):
        with torch.no_grad():
            return model(torch.stack(pictures)).log_softmax(1)

    predicted = int(said([image])[0].argmax())
    asked = {"predicted": predicted, "label": label, "explained": explained}
    found, logs, area = {}, [], {}
    for curve in preset.curves:
        levels = LEVELS[preset.name]
        if preset.name == "m4" and curve.order == "lerf":
            levels = [0, *levels[:-1]]
        values, pictures, canvas = [], [], canvas_of(image, curve.fill).flatten(1)
        for level in levels:
            k = n - level if curve.name == "insertion" else level
            gone = order[:k] if curve.order == "morf" else order[n - k :]
            changed = image.clone().flatten(1)
            changed[:, gone] = canvas[:, gone]
            pictures.append(changed.view_as(image))
        for out in said(pictures):
            if preset.quantity == "accuracy":
                values.append(float(int(out.argmax()) == label))
            else:
                values.append(float(out[asked[preset.quantity]].double().exp()))
            if curve.order == "morf":
                logs.append(float(out[predicted]))
        x = [level / n if not curve.grid.percents else round(level / n, 1) for level in levels]
        if preset.area == "forced×100" or preset.area == "trapezoid×100":
            x = [i / 10 for i in range(10)]
        found[curve.title] = area[curve.order] = AREA[preset.area](values, x)
    first = preset.fills[0]
    if "aopc" in preset.extras:
        probs = [torch.tensor(v).double().exp().item() for v in logs]
        found[f"aopc({first})"] = sum(probs[0] - p for p in probs) / len(probs)
        found[f"lodds({first})"] = sum(v - logs[0] for v in logs) / len(logs)
    for extra in set(preset.extras) & {"srg", "abpc"}:
        found[f"{extra}({first})"] = area["lerf"] - area["morf"]
    return found


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_equals_a_plain_loop(name):
    model, preset = tiny_vit(size=16, depth=1), PRESETS[name]
    images, maps = batch(2, 16)
    _, label_maps = batch(2, 16, seed=7)
    predicted = model(images).argmax(1)
    labels = torch.stack([predicted[0], (predicted[1] + 1) % 5])  # one right, one wrong
    records = Evaluator(model, preset, batch=7 if name == "chefer21" else 100, preprocess=SEEN)(
        images, {"m": maps}, labels=labels, label_maps={"m": label_maps}
    )
    assert set(records.modes) == set(preset.explains)
    for strip in records.strips.values():
        if 0 in strip.removed:
            assert strip.read((0,), "agreement", "predicted").tolist() == [[1.0], [1.0]]
    for mode in preset.explains:
        scores = records.scores(preset, "m", mode)
        assert set(scores) == set(preset.scores)
        for i in range(2):
            # A right prediction has one map for both classes.
            relevance = maps[i] if mode == "predicted" or i == 0 else label_maps[i]
            explained = int(predicted[i] if mode == "predicted" else labels[i])
            expected = plainly(model, images[i], relevance, int(labels[i]), explained, preset)
            for score, value in expected.items():
                assert float(scores[score][i]) == pytest.approx(value, abs=2e-4, rel=2e-5), (mode, score)


# -- how often the model is asked --------------------------------------------------------------------------------------


def forwards_of(names, n=3, apart=1, size=32):
    model, seen = counted(tiny_vit(size=size, depth=1))
    images, maps = batch(n, size)
    with torch.no_grad():
        labels = model(images).argmax(1)
    labels[:apart] = (labels[:apart] + 1) % 5
    seen.clear()
    blind = maps.flip(2)
    records = Evaluator(model, names, batch=64, preprocess=SEEN)(
        images, {"aware": maps, "blind": blind}, labels=labels, label_maps={"aware": maps.flip(1), "blind": blind}
    )
    assert records.forwards.total == sum(seen)
    assert max(seen) <= 64
    return sum(seen)


def test_no_picture_is_looked_at_twice():
    n, apart = 3, 1
    both = (n + apart) + n  # rows of the aware method, and of the blind one
    assert forwards_of("chefer21") == n + 18 * both
    assert forwards_of("vtranm") == n + 38 * both + 1
    assert forwards_of(["chefer21", "gradtoken", "bth", "vtranm", "srg"]) == forwards_of("vtranm")
    assert forwards_of("rise") == n + (27 + 27) * 2 * n + n + 1  # predicted class only; blurred pictures once
    assert forwards_of("vitcx") == n + 3 * 27 * 2 * n + n + 1
    assert forwards_of(["rise", "vitcx"]) == forwards_of("vitcx")
    assert forwards_of("agcam") == n + 18 * both + 1
    # The empty picture is one for the whole data set, not for a call.
    model, seen = counted(tiny_vit(depth=1))
    evaluate = Evaluator(model, "vtranm", preprocess=SEEN)
    images, maps = batch(3)
    parts = [evaluate(images[i : i + 1], {"m": maps[i : i + 1]}, ids=[str(i)]) for i in range(3)]
    assert sum(seen) == 3 * (1 + 38) + 1 == Records.join(parts).forwards.total


def test_counts_are_rounded_down_and_grids_nest():
    tens, fives = PRESETS["chefer21"].curves[0].removed(50176), PRESETS["vtranm"].curves[0].removed(50176)
    assert tens == (0, 5017, 10035, 15052, 20070, 25088, 30105, 35123, 40140, 45158)
    assert set(tens) < set(fives)
    assert len(PRESETS["rise"].curves[0].removed(50176)) == 29
    assert len(PRESETS["rise-224"].curves[0].removed(50176)) == 225
    assert len(PRESETS["latec"].curves[0].removed(50176)) == 1003


# -- ties and maps that say nothing ------------------------------------------------------------------------------------


def test_ties_go_by_the_seed_and_nan_is_lowest():
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
    assert bool(found.flat)
    for order in ("morf", "lerf"):
        assert [int(removed(a[0], k, order).sum()) for k in (0, 5, 36)] == [0, 5, 36]
    assert not (removed(a[0], 18, "morf") & removed(a[0], 18, "lerf")).any()
    assert rank(torch.tensor([[3, 250, 7]], dtype=torch.uint8)).ranks.tolist() == [2, 0, 1]
    with pytest.raises(OptionError, match="random or raster"):
        rank(ties, "first")


def test_flat_maps_are_scored_by_the_rule_for_ties_and_counted():
    images, maps = batch(3)
    maps[0], maps[1], maps[2, 0, 0] = 0.0, 7.0, float("nan")
    evaluate = Evaluator(tiny_vit(), "agcam")
    records = evaluate(images, {"m": maps}, labels=torch.tensor([0, 1, 2]))
    strip = records.strips["m", "predicted", "morf", "mean"]
    assert strip.flat.tolist() == [True, True, True]
    assert strip.nan.tolist() == [0, 0, 1]
    assert records.summary(PRESETS["agcam"], "m")["flat"] == 3
    zeros = evaluate(images, {"m": torch.zeros_like(maps)}, labels=torch.tensor([0, 1, 2]))
    same = zeros.strips["m", "predicted", "morf", "mean"].notes[:2]
    assert torch.allclose(same, strip.notes[:2], atol=1e-5)
    raster = Evaluator(tiny_vit(), "agcam", ties="raster")(images, {"m": torch.zeros_like(maps)})
    assert not torch.allclose(raster.strips["m", "predicted", "morf", "mean"].notes[:, 5, 0], same[:1, 5, 0])


# -- classes, precision, refusals --------------------------------------------------------------------------------------


def test_label_maps_alone_and_predictions_from_outside():
    images, maps = batch(4)
    model = tiny_vit()
    labels = torch.tensor([0, 1, 2, 3])
    alone = Evaluator(model, "agcam")(images, {}, labels=labels, label_maps={"m": maps})
    other = Evaluator(model, "agcam")(images, {"m": maps}, labels=labels)
    assert alone.modes == ("label",)
    for order in ("morf", "lerf"):
        a, b = alone.strips["m", "label", order, "mean"], other.strips["m", "predicted", order, "mean"]
        assert torch.allclose(a.notes, b.notes, atol=1e-5)
    given = Evaluator(model, "m4", preprocess=SEEN)(images, {"m": maps[:, None]}, predicted=torch.full((4,), 2))
    strip = given.strips["m", "predicted", "morf", "grey"]
    assert strip.predicted.tolist() == [2] * 4
    assert torch.allclose(strip.notes[:, 0, 0], model(images).log_softmax(1)[:, 2], atol=1e-5)
    assert strip.notes[..., 1].isnan().all()  # no labels, so no probability of them


def test_half_precision_and_training_mode():
    images, maps = batch(3)
    model = tiny_vit().train()
    full = Evaluator(model, "srg", preprocess=SEEN)(images, {"m": maps})
    with warnings.catch_warnings():  # some processors have no bfloat16 and say so
        warnings.simplefilter("ignore")
        half = Evaluator(model, "srg", preprocess=SEEN, precision=torch.bfloat16)(images, {"m": maps})
    assert model.training
    assert model.blocks[0].training
    a, b = (r.scores(PRESETS["srg"], "m")["srg(black)"] for r in (full, half))
    assert torch.allclose(a, b, atol=0.05)
    with pytest.raises(InputError, match="different settings"):
        full + half


def test_what_does_not_fit_is_refused():
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
