"""Joining records, curves, fills and presets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from perturbing import batch
from vitrail.errors import InputError, OptionError
from vitrail.models.preprocess import IMAGENET_MEAN, IMAGENET_STD
from vitrail.scores import curves, fills, presets
from vitrail.scores.evaluator import Evaluator
from vitrail.scores.perturbation import Records
from vitrail.scores.presets import PRESETS
from vitrail.testing import tiny_vit

DOCS = Path(__file__).resolve().parents[1] / "docs" / "scores"


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
