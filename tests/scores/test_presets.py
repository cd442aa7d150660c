"""Perturbation records, area rules, fills and presets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.scores.score_helpers import batch
from vitrail.errors import InputError, OptionError
from vitrail.models.preprocess import IMAGENET_MEAN, IMAGENET_STD
from vitrail.scores import curves, fills, presets
from vitrail.scores.evaluator import Evaluator
from vitrail.scores.perturbation import PerturbationRecords
from vitrail.scores.presets import PRESETS
from vitrail.testing import tiny_vit

DOCS = Path(__file__).resolve().parents[2] / "docs" / "scores"


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
    joined, again = PerturbationRecords.join(parts), sum(parts[::-1], PerturbationRecords())
    for key, curve in joined.curves.items():
        assert curve.ids == again.curves[key].ids == tuple(ids)
        assert torch.equal(curve.outputs, again.curves[key].outputs)
        assert torch.allclose(curve.outputs, whole.curves[key].outputs, atol=1e-5)
    scores = joined.sample_scores(PRESETS["rise"], "a")
    assert scores.ids == ids
    assert set(scores.columns) == {"flat"} | {PRESETS["rise"].label(score) for score in PRESETS["rise"].scores}


def test_area_rules_on_known_curves():
    falling = torch.tensor([0.8, 0.6, 0.4, 0.2], dtype=torch.float64)
    x = [0.0, 0.1, 0.2, 0.3]
    for name, value in {
        "trapezoid×100": 15.0, "unit": 0.5, "unit×100": 50.0, "forced×100": 15 + 7, "count": 0.375, "mean": 0.5,
    }.items():  # fmt: skip
        assert float(curves.find_area(name)(falling, x)) == pytest.approx(value), name
    assert float(curves.aopc(falling.log())) == pytest.approx(0.3)
    logs = [torch.tensor(v / 0.8).log().item() for v in (0.6, 0.4, 0.2)]
    assert float(curves.lodds(falling.log())) == pytest.approx(sum(logs) / 4, abs=1e-6)
    assert float(curves.deletion_area(falling)) == pytest.approx(0.5)
    assert float(curves.insertion_area(falling.flip(0))) == pytest.approx(0.5)
    assert float(curves.srg(torch.tensor(0.75), torch.tensor(0.5))) == 0.25
    # A model of constant accuracy 80 % scores 72 with chefer21.
    tens = [i / 10 for i in range(10)]
    assert float(curves.AREAS["trapezoid×100"](torch.full((10,), 0.8), tens)) == pytest.approx(72)
    with pytest.raises(InputError, match="two levels"):
        curves.trapezoid_unit(torch.ones(1), [0.0])


def test_insertion_into_a_constant_fill_is_lerf():
    images, maps = batch(3)
    preset = PRESETS["vitcx"]
    records = Evaluator(tiny_vit(), preset)(images, {"m": maps})
    insertion, deletion = next(c for c in preset.curves if c.score_name == "insertion(mean)"), preset.curves[0]
    assert insertion.removed(1024) == tuple(1024 - k for k in deletion.removed(1024))
    _, inserted = records.curve(insertion, "m", "predicted", "predicted")
    curve = records.curves["m", "predicted", "lerf", "mean"]
    assert torch.allclose(inserted.flip(1), curve.outputs[..., 0].double().exp())


def differing(a, b):
    names = ("curves", "quantity", "area", "explains", "extras")
    return {name for name in names if getattr(PRESETS[a], name) != getattr(PRESETS[b], name)}


def test_presets_differ_only_as_documented():
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


def test_fill_images_have_the_documented_values():
    images = torch.randn(2, 3, 16, 16)
    normalisation = fills.Normalisation(IMAGENET_MEAN, IMAGENET_STD)

    def filled(name, seed=0):
        return fills.FILLS[name].fill_image(images, normalisation, seed).expand_as(images)

    assert [round(float(v), 2) for v in filled("black")[0, :, 0, 0]] == [-2.12, -2.04, -1.8]
    assert float(filled("mean").abs().max()) == 0
    noise = filled("noise", 3) * torch.tensor(IMAGENET_STD).view(3, 1, 1)
    noise = noise + torch.tensor(IMAGENET_MEAN).view(3, 1, 1)
    assert -1e-6 < float(noise.min()) < float(noise.max()) < 1 + 1e-6
    assert torch.equal(noise[0], noise[1])
    for name, fill in fills.FILLS.items():
        assert fill.shared == torch.equal(*filled(name))


def presets_table():
    """Format presets as a Markdown table; an asterisk marks what the source leaves open."""
    lines = ["| preset | curves | levels | fill | quantity | area | targets |", "|---|---|---|---|---|---|---|"]
    for p in PRESETS.values():
        star = {name: "*" if name in p.choices else "" for name in ("levels", "fill", "quantity", "area")}
        curves = ", ".join((*dict.fromkeys(c.name for c in p.curves), *(presets.EXTRAS[e][0] for e in p.extras)))
        levels = "; ".join(dict.fromkeys(str(c.grid) for c in p.curves))
        by_name = {c.name: ", ".join(o.fill for o in p.curves if o.name == c.name) for c in p.curves}
        same = len(p.fills) == 1
        fill = p.fills[0] if same else "; ".join(f"{name} {fills}" for name, fills in by_name.items())
        quantity, area = presets.QUANTITIES[p.quantity], presets.find_area(p.area).title
        cells = [f"`{p.name}`", curves, levels + star["levels"], fill + star["fill"], quantity + star["quantity"]]
        lines.append("| " + " | ".join([*cells, area + star["area"], ", ".join(p.explains)]) + " |")
    return "\n".join(lines)


def test_docs_list_presets_choices_and_fills():
    page = (DOCS / "perturbation.md").read_text(encoding="utf-8")
    assert presets_table() in page
    for preset in PRESETS.values():
        for field, choice in preset.choices.items():
            assert f"| `{preset.name}` | {field} | {choice} |" in page
    for fill in fills.FILLS.values():
        assert f"| `{fill.name}` | {fill.title} |" in page
