"""Scores that ask the model again: perturbation, token dropping, randomised weights, noise."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import vitrail
from vitrail.errors import InputError, NotApplicableError, OptionError
from vitrail.models.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitrail.scores import curves, fills, presets, sanity, sensitivity
from vitrail.scores.evaluator import Evaluator
from vitrail.scores.perturbation import Records
from vitrail.scores.presets import PRESETS, find_presets
from vitrail.scores.ranks import rank, removed
from vitrail.scores.tokens import TokenDrop, kept, patch_means
from vitrail.testing import tiny_vit

DOCS = Path(__file__).resolve().parents[1] / "docs" / "scores"
SEEN = Preprocess((32, 32), IMAGENET_MEAN, IMAGENET_STD)


def batch(n=4, size=32, seed=1):
    dice = torch.Generator().manual_seed(seed)
    images = torch.randn(n, 3, size, size, generator=dice)
    # Few distinct values, so that ties are everywhere.
    return images, torch.randint(0, 9, (n, size, size), generator=dice).float()


def counted(model):
    """The model, and a list of how many pictures each of its forwards saw."""
    seen = []
    model.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    return model, seen


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
        lambda: evaluate(images, {}), lambda: evaluate(images, {"m": maps[:, :16]}), lambda: evaluate(images[0], {}),
        lambda: evaluate(images, {"m": maps}, label_maps={"m": maps}), lambda: evaluate(images, {"m": maps}, ids=["a"]),
        lambda: evaluate(images, {}, labels=torch.zeros(2).long(), label_maps={"m": maps}),
    ):  # fmt: skip
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


# -- leaving tokens out ------------------------------------------------------------------------------------------------


def by_hand(model, images, stay):
    """PlainViT's forward, written again, with a mask of the patches that stay."""
    x = model.embed(images).flatten(2).transpose(1, 2)
    prefix = model.prefix.shape[1]
    x = torch.cat([model.prefix.expand(len(x), -1, -1), x], 1) + model.position
    mask = torch.cat([torch.ones(len(x), prefix, dtype=torch.bool), stay], 1)
    x = x[mask].view(len(x), -1, x.shape[2])
    x = model.norm(model.blocks(x))
    return model.head(x[:, prefix:].mean(1) if model.pool else x[:, 0])


@pytest.mark.parametrize("options", [{}, {"prefix": 3}, {"pool": True}, {"pool": True, "prefix": 0}], ids=str)
def test_dropped_tokens_equal_a_forward_written_by_hand(options):
    model = tiny_vit(**options)
    images, maps = batch(3)
    drop = TokenDrop(model, images)
    ranks = rank(patch_means(maps, drop.grid)).ranks
    for order in ("morf", "lerf"):
        for count in (0, 1, 9, 15):
            with torch.no_grad():
                expected = by_hand(model, images, ~removed(ranks, count, order))
            assert torch.allclose(drop(images, kept(ranks, count, order)), expected, atol=1e-5)
    nothing = torch.empty(3, 0, dtype=torch.long)
    if options.get("pool"):
        with pytest.raises(NotApplicableError, match="none is left"):
            drop(images, nothing)
    else:
        assert torch.allclose(drop(images, nothing), by_hand(model, images, torch.zeros(3, 16, dtype=torch.bool)))


def test_tokens_are_dropped_through_the_evaluator():
    model, seen = counted(tiny_vit())
    images, maps = batch(5)
    preset = find_presets("vtranm-tokens")[0]
    evaluate = Evaluator(model, preset, batch=4)
    evaluate(images[:1], {"m": maps[:1]})  # finds out where, and runs the empty picture
    seen.clear()
    records = evaluate(images, {"m": maps}, labels=torch.arange(5))
    strip = records.strips["m", "predicted", "morf", "tokens"]
    assert strip.units == 16
    assert sum(seen) == 5 + 2 * 5 * len([k for k in strip.removed if 0 < k < 16])
    assert set(preset.curves[0].removed(16)) == set(strip.removed)
    assert preset.curves[0].removed(16)[3] == round(16 * 0.15)
    ranks = rank(patch_means(maps, (4, 4))).ranks
    for i, count in enumerate(strip.removed):
        expected = by_hand(model, images, ~removed(ranks, count, "morf")).log_softmax(1)
        assert torch.allclose(strip.notes[:, i, 3], expected.amax(1), atol=1e-5)
    assert "fill tokens" in preset.label("positive(tokens)")


def models_of_libraries():
    import timm
    import transformers
    from torchvision.models import VisionTransformer

    small = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8
    )
    yield timm.models.VisionTransformer(**small), lambda m: m.blocks[0]
    yield timm.models.VisionTransformer(**small, class_token=False, global_pool="avg"), lambda m: m.blocks[0]
    yield transformers.ViTForImageClassification(config), None
    yield VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=5), lambda m: m.encoder.layers[0]


def test_tokens_of_other_libraries_are_dropped_at_the_first_block():
    images, _ = batch(2)
    stay = torch.tensor([[0, 3, 7, 15], [1, 2, 3, 4]])
    for model, first in models_of_libraries():
        model.eval()
        head = [m for m in model.modules() if isinstance(m, torch.nn.Linear)][-1]
        torch.nn.init.normal_(head.weight)  # some libraries begin with zeros, which would hide a wrong answer
        drop = TokenDrop(model, images)
        found = vitrail.inside.feed.logits_of(drop(images, stay))
        layers = [m for n, m in model.named_modules() if n.endswith((".layer.0", ".layers.0"))]
        block = first(model) if first else layers[0]
        prefix = torch.arange(drop.prefix).expand(2, -1)
        index = torch.cat([prefix, stay + drop.prefix], 1)[..., None]

        def fewer(_, args, index=index):
            return (args[0].gather(1, index.expand(-1, -1, args[0].shape[2])), *args[1:])

        hook = block.register_forward_pre_hook(fewer)
        with torch.no_grad():
            expected = vitrail.inside.feed.logits_of(model(images))
        hook.remove()
        assert torch.allclose(found, expected, atol=1e-4), type(model)
        assert not torch.allclose(found, vitrail.inside.feed.logits_of(model(images)), atol=1e-3)


def test_models_that_cannot_spare_tokens_are_refused():
    import timm
    import transformers

    images, maps = batch(2)
    swin = timm.models.SwinTransformer(
        img_size=32, patch_size=2, window_size=4, embed_dim=16, depths=(1, 1), num_heads=(2, 2), num_classes=5
    )
    for make in (lambda: TokenDrop(swin, images), lambda: Evaluator(swin, "chefer21-tokens")(images, {"m": maps})):
        with pytest.raises(NotApplicableError, match="cannot be left out"):
            make()
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
    beit = timm.models.Beit(**small, use_rel_pos_bias=True)
    with pytest.raises(NotApplicableError, match="cannot be left out"):
        TokenDrop(beit, images)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    bert = transformers.BertForSequenceClassification(config)
    with pytest.raises(NotApplicableError, match="only images"):
        TokenDrop(bert, torch.ones(1, 6, dtype=torch.long))


# -- joining, curves, presets ------------------------------------------------------------------------------------------


def test_records_join_in_any_order():
    images, maps = batch(6)
    ids, labels = [f"image {i}" for i in range(6)], torch.arange(6) % 5
    evaluate = Evaluator(tiny_vit(), ["agcam", "rise"])
    whole = evaluate(images, {"a": maps, "b": maps.flip(1)}, labels=labels, ids=ids)
    parts = [
        evaluate(images[rows], {name: m[rows]}, labels=labels[rows], ids=ids[rows])
        for rows in (slice(0, 1), slice(1, 4), slice(4, 6)) for name, m in (("a", maps), ("b", maps.flip(1)))
    ]  # fmt: skip
    parts = [parts[i] for i in (3, 0, 5, 1, 4, 2)]
    joined, again = Records.join(parts), sum(parts[::-1], Records())
    for key, strip in joined.strips.items():
        assert strip.ids == again.strips[key].ids == tuple(ids)
        assert torch.equal(strip.notes, again.strips[key].notes)
        assert torch.allclose(strip.notes, whole.strips[key].notes, atol=1e-5)
    tally = joined.tally(PRESETS["rise"], "a")
    assert tally.ids == ids
    assert set(tally.columns) == {"flat"} | {PRESETS["rise"].label(score) for score in PRESETS["rise"].scores}
    rows = list(joined.rows())
    assert len(rows) == sum(len(s.ids) * len(s.removed) for s in joined.strips.values())
    assert {"image", "method", "mode", "order", "fill", "removed", "logp_predicted", "winner"} <= set(rows[0])


def test_curves_by_hand():
    falling = torch.tensor([0.8, 0.6, 0.4, 0.2], dtype=torch.float64)
    x = [0.0, 0.1, 0.2, 0.3]
    for name, value in {
        "trapezoid×100": 15.0, "unit": 0.5, "unit×100": 50.0, "forced×100": 15 + 7, "count": 0.375, "mean": 0.5,
    }.items():  # fmt: skip
        assert float(curves.find_area(name)(falling, x)) == pytest.approx(value), name
    assert float(curves.aopc(falling.log())) == pytest.approx(0.3)
    logs = [torch.tensor(v / 0.8).log().item() for v in (0.6, 0.4, 0.2)]
    assert float(curves.lodds(falling.log())) == pytest.approx(sum(logs) / 4, abs=1e-6)
    assert float(curves.deletion(falling)) == pytest.approx(0.5)
    assert float(curves.insertion(falling.flip(0))) == pytest.approx(0.5)
    assert float(curves.gap(torch.tensor(0.75), torch.tensor(0.5))) == 0.25
    # A model that is right 80 % of the time, whatever is removed: the ceiling of chefer21 is 72.
    tens = [i / 10 for i in range(10)]
    assert float(curves.AREAS["trapezoid×100"](torch.full((10,), 0.8), tens)) == pytest.approx(72)
    with pytest.raises(InputError, match="two levels"):
        curves.trapezoid_unit(torch.ones(1), [0.0])


def test_constant_insertion_is_lerf_and_srg_is_their_difference():
    images, maps = batch(3)
    preset = PRESETS["vitcx"]
    records = Evaluator(tiny_vit(), preset)(images, {"m": maps})
    ins, cut = next(c for c in preset.curves if c.title == "insertion(mean)"), preset.curves[0]
    assert ins.removed(1024) == tuple(1024 - k for k in cut.removed(1024))
    _, inserted = records.curve(ins, "m", "predicted", "predicted")
    strip = records.strips["m", "predicted", "lerf", "mean"]
    assert torch.allclose(inserted.flip(1), strip.notes[..., 0].double().exp())


def differing(a, b):
    names = ("curves", "quantity", "area", "explains", "extras")
    return {name for name in names if getattr(PRESETS[a], name) != getattr(PRESETS[b], name)}


def test_presets_differ_only_as_the_table_says():
    assert differing("chefer21", "gradtoken") == set()
    assert differing("chefer21", "bth") == {"area"}
    assert differing("vtranm", "vtranm-mean") == {"curves"}
    assert [replace(c, fill="mean") for c in PRESETS["vtranm"].curves] == list(PRESETS["vtranm-mean"].curves)
    assert differing("rise", "rise-224") == {"curves"}
    assert {c.fill for c in PRESETS["rise"].curves} == {c.fill for c in PRESETS["rise-224"].curves} == {"mean", "blur"}
    assert not PRESETS["chefer21"].choices
    assert set(PRESETS["vtranm"].choices) == {"fill", "area", "levels"}
    for preset in PRESETS.values():
        assert set(preset.choices) <= {"levels", "fill", "quantity", "area"}
        for score in preset.scores:
            label = preset.label(score)
            assert label.startswith(preset.name)
            assert "fill " in label
            assert score in ("aopc(black)", "lodds(black)", "aopc(mean)", "lodds(mean)") or (
                curves.find_area(preset.area).title in label
            )
    with pytest.raises(OptionError, match="no score"):
        PRESETS["rise"].label("positive(black)")


def test_fills_are_what_they_say():
    images = torch.randn(2, 3, 16, 16)
    normal = fills.Normal(IMAGENET_MEAN, IMAGENET_STD)
    black = fills.FILLS["black"].canvas(images, normal)
    assert [round(float(v), 2) for v in black[0, :, 0, 0]] == [-2.12, -2.04, -1.8]
    assert float(fills.FILLS["mean"].canvas(images, normal).abs().max()) == 0
    back = fills.FILLS["noise"].canvas(images, normal, 3) * torch.tensor(IMAGENET_STD).view(3, 1, 1)
    back = back + torch.tensor(IMAGENET_MEAN).view(3, 1, 1)
    assert -1e-6 < float(back.min()) < float(back.max()) < 1 + 1e-6
    assert torch.equal(back[0], back[1])
    for fill in fills.FILLS.values():
        assert fill.canvas(images, normal).shape == images.shape
        assert fill.shared == torch.equal(*fill.canvas(images, normal))


def test_the_page_shows_the_presets_as_they_are():
    page = (DOCS / "perturbation.md").read_text(encoding="utf-8")
    assert presets.table() in page
    for preset in PRESETS.values():
        for field, choice in preset.choices.items():
            assert f"| `{preset.name}` | {field} | {choice} |" in page
    for fill in fills.FILLS.values():
        assert f"| `{fill.name}` | {fill.title} |" in page


# -- random weights and noise ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["normal", "permute", "init"])
def test_randomised_weights_are_put_back_bit_for_bit(how):
    model = tiny_vit().train()
    model.blocks[1].qkv.weight.data[0, 0] = float("nan")
    model.head.weight.requires_grad_(False)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    objects = [id(p) for p in model.parameters()]

    def change_and_fail():
        with sanity.randomised(model, list(before), how):
            assert not torch.equal(model.embed.weight, before["embed.weight"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change_and_fail()
    for name, p in model.named_parameters():
        assert torch.equal(p.detach().view(torch.int32), before[name].view(torch.int32)), name
    assert objects == [id(p) for p in model.parameters()]
    assert model.training
    assert not model.head.weight.requires_grad
    with pytest.raises(InputError, match="no parameter"), sanity.randomised(model, ["tail.weight"], how):
        pass
    with pytest.raises(OptionError, match="not a way"), sanity.randomised(model, ["head.weight"], "zeros"):
        pass


def test_maps_of_attention_ignore_the_head_and_maps_of_gradients_do_not():
    model, images = tiny_vit(depth=2), batch(2)[0]
    stages = sanity.stages(model, images)
    assert [s.name for s in stages] == ["head", "block 1", "block 0", "embedding"]
    assert sorted(n for s in stages for n in s.parameters) == sorted(n for n, _ in model.named_parameters())
    state = {name: value.clone() for name, value in model.state_dict().items()}

    def explain(method):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return vitrail.explain(model, images, method, target=1).maps[:, 0]

    for cascading in (True, False):
        found = sanity.parameter_randomisation(model, lambda: explain("rollout"), stages, cascading=cascading)
        assert torch.allclose(found["head|spearman"], torch.ones(2).double())
        assert torch.allclose(found["head|ssim"], torch.ones(2).double())
        assert (found["embedding|spearman"] < 0.99).all()
    other = sanity.parameter_randomisation(model, lambda: explain("transformer_mm"), stages[:1])
    assert (other["head|spearman"] < 1 - 1e-6).all()
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])

    def fails():
        raise ZeroDivisionError

    calls = iter([lambda: explain("rollout"), lambda: explain("rollout"), fails])
    with pytest.raises(ZeroDivisionError):
        sanity.parameter_randomisation(model, lambda: next(calls)(), stages)  # noqa: PLW0108 - another one each time
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])


def test_similarity_of_maps():
    a = torch.rand(2, 20, 20)
    found = sanity.similarity(a, a.clone())
    assert all(torch.allclose(v, torch.ones(2).double()) for v in found.values())
    assert (sanity.similarity(a, -a)["pearson"] < -0.999).all()
    a[0] = 1.0
    found = sanity.similarity(a, torch.rand(2, 20, 20))
    assert all(v[0].isnan() and not v[1].isnan() for v in found.values())


def test_sensitivity_counts_only_noise_that_changes_no_answer():
    images = torch.randn(3, 1, 4, 4)
    still = sensitivity.sensitivity(lambda x: torch.ones(len(x), 4, 4), images, samples=2)
    assert all(float(still[name].max()) == 0 for name in ("max_over_map", "mean_over_map", "ratio"))
    moved = sensitivity.sensitivity(lambda x: x[:, 0], images, samples=3, radius=0.1, over="input")
    noise = torch.stack([n.double().norm() for n in sensitivity.noises(images, 0.1, 3)])
    size = images.flatten(1).double().norm(dim=1)
    assert torch.allclose(moved["max_over_input"], noise.max() / size)
    assert torch.allclose(moved["mean_over_input"], noise.mean() / size)
    assert torch.allclose(moved["ratio"], torch.ones(3).double())
    answers = iter([torch.tensor([0, 0, 0]), torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1])])
    part = sensitivity.sensitivity(lambda x: x[:, 0], images, samples=2, radius=0.1, predict=lambda _: next(answers))
    assert part["samples"].tolist() == [2, 1, 0]
    assert part["max_over_map"].isnan().tolist() == [False, False, True]
