"""Comparison of methods on a user's model: ranking, recommendation, and what ``method="auto"`` makes of it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import vitrail
from vitrail.data import Scenes
from vitrail.errors import InputError, NotApplicableError, OptionError
from vitrail.pipeline import recommendation
from vitrail.testing import tiny_vit
from vitrail.tools.compared_rows import inputs_needed, ranked_rows, recommend


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(recommendation, "_remembered", {})


@pytest.mark.slow
def test_a_good_method_is_recommended_and_used():
    loaded, scenes = vitrail.load("scenes"), list(Scenes(split="test", count=16))
    images = torch.from_numpy(np.stack([scene.image for scene in scenes])).permute(0, 3, 1, 2) / 127.5 - 1
    masks = np.stack([scene.masks[0] for scene in scenes])
    found = vitrail.compare(loaded, images, ["attnlrp", "transformer_mm", "gradcam", "rollout"], masks=masks)
    names = [row.method for row in found.rows]
    assert names.index("attnlrp") < names.index("gradcam")
    assert found.recommended in ("attnlrp", "transformer_mm")
    assert found.recommended in found.reason
    assert {row.method: row.class_similarity for row in found.rows}["rollout"] == pytest.approx(1)
    assert all(row.localisation is not None for row in found.rows)
    assert vitrail.explain(loaded, images[:1], "auto").method == found.recommended
    # A new process reads it from the disk.
    recommendation._remembered.clear()
    assert vitrail.explain(loaded, images[:1], "auto").method == found.recommended
    assert found.recommended in found._repr_html_()
    first, second, *_ = found.table()
    gap = found.rows[1].ranked.to_best.difference
    assert first[2] == ""
    assert second[2].startswith(f"{100 * gap.value:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]")
    assert second[2].endswith("=") == found.rows[1].ranked.tied_with_best
    shown = zip(found.rows, found.table(), strict=True)
    assert {text[2] for row, text in shown if row.ranked.control} == {"control"}
    assert json.loads(json.dumps(found.to_dict()))["recommended"] == found.recommended


def test_rows_are_those_of_the_values_of_each_image():
    masks = np.zeros((3, 32, 32))
    masks[:2, :16] = 1  # without an object the last image has no localisation
    found = vitrail.compare(tiny_vit(), torch.randn(3, 3, 32, 32), ["gradsam", "transformer_mm"], masks=masks)
    values = {score: {row.method: row.values[score] for row in found.rows} for score in found.rows[0].values}
    assert values.keys() == {"faithfulness", "class_similarity", "localisation"}
    for row in found.rows:
        assert np.mean(row.values["faithfulness"]) == pytest.approx(row.ranked.value.value)
        assert np.isfinite(row.values["localisation"]).tolist() == [True, True, False]
        assert np.mean(row.values["localisation"][:2]) == pytest.approx(row.localisation)
    again = ranked_rows(values, ["centre", "random"], {row.method: row.forwards for row in found.rows})
    assert [row.to_dict() for row in again] == found.to_dict()["rows"]
    swapped = {
        score: {"a": by_method["gradsam"], "gradsam": by_method["random"]} for score, by_method in values.items()
    }
    assert {row.method: row.values for row in ranked_rows(swapped, [], {"gradsam": 1.0})} == {
        "gradsam": {score: by_method["random"] for score, by_method in values.items()}
    }


def test_chance_is_not_recommended():
    found = vitrail.compare(tiny_vit(), torch.randn(3, 3, 32, 32), ["random", "gradsam"])
    assert [row.method for row in found.rows].count("random") == 1
    assert found.recommended is None
    assert found.reason == (
        "3 inputs are too few to show that a method is better than the controls: with 1 compared, use at least 7, "
        "better 32 to 64."
    )
    for _ in range(2):
        with pytest.raises(OptionError, match=r"recommended no method for this model on 3 inputs: compare on more"):
            vitrail.explain(tiny_vit(), torch.randn(1, 3, 32, 32), "auto")
        recommendation._remembered.clear()  # the file says so as well


@pytest.mark.parametrize("methods", [1, 3, 20])
def test_a_clear_lead_is_found_on_as_many_inputs_as_are_asked_for(methods):
    def outcome(count):
        values = {f"m{i}": [1 + i / 10] * count for i in range(methods)} | {"random": [0.0] * count}
        return recommend(ranked_rows({"faithfulness": values}, ["random"], dict.fromkeys(values, 1.0)))

    needed = inputs_needed(methods)
    assert outcome(needed)[0] is not None
    chosen, reason = outcome(needed - 2)
    assert chosen is None
    assert reason.startswith(f"{needed - 2} inputs are too few")
    assert f"with {methods} compared, use at least {needed}" in reason


def test_a_method_is_not_chosen_without_a_comparison_or_without_a_hash(monkeypatch):
    with pytest.raises(OptionError, match=r"was not compared yet: run vitrail\.compare"):
        recommendation.recommended(tiny_vit())
    monkeypatch.setattr(recommendation.WeightsHash, "hexdigest", lambda self: None)
    with pytest.raises(OptionError, match="by the hash of the weights, and the weights of this model have none"):
        recommendation.recommended(tiny_vit())


def test_expensive_and_inapplicable_methods_are_left_out_with_a_reason():
    found = vitrail.compare(tiny_vit(), torch.randn(2, 3, 32, 32))
    compared = {row.method for row in found.rows}
    assert {"transformer_mm", "vtranm", "gradtoken", "centre"} <= compared
    assert "rise" not in compared
    assert "forward passes" in found.refused["rise"]
    assert str(found).startswith("method")


@pytest.mark.parametrize(("forwards", "text"), [(0.6, "1 forward pass a map"), (3.0, "3 forward passes a map")])
def test_the_reason_counts_passes_and_names_what_is_not_different(forwards, text):
    from types import SimpleNamespace

    def row(method, tied, to_best=None, forwards=forwards):
        test = SimpleNamespace(significant=True, difference=SimpleNamespace(value=1.0))
        ranked = SimpleNamespace(control=False, to_control=test, tied_with_best=tied, value=SimpleNamespace(value=0.3),
                                 to_best=to_best and SimpleNamespace(difference=to_best))  # fmt: skip
        return SimpleNamespace(method=method, ranked=ranked, class_similarity=0.2, forwards=forwards)

    chosen, reason = recommend([row("gradtoken", True), row("gradcam", True)])
    assert chosen == "gradtoken"
    assert text in reason
    assert reason.endswith("Not significantly different from it: gradcam.")
    assert "Every other" in recommend([row("gradtoken", True), row("gradcam", False)])[1]
    assert "the only method" in recommend([row("gradtoken", True)])[1]
    # The cheaper of two is recommended unless the interval of the difference shows that it is worse.
    for difference, expected in (((-0.1, -0.2, 0.01), "gradcam"), ((-0.1, -0.2, -0.01), "gradtoken")):
        cheap = row("gradcam", True, difference, forwards=forwards / 2)
        assert recommend([row("gradtoken", True), cheap])[0] == expected


def test_refusals_say_what_is_wrong():
    model = tiny_vit()
    with pytest.raises(InputError, match="at most 64"):
        vitrail.compare(model, torch.randn(65, 3, 32, 32))
    with pytest.raises(InputError, match="masks"):
        vitrail.compare(model, torch.randn(2, 3, 32, 32), ["gradsam"], masks=np.zeros((2, 8, 8)))
    convolution = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 4, 4), torch.nn.Flatten(), torch.nn.Linear(256, 3))
    with pytest.raises(NotApplicableError, match="rollout"):
        vitrail.compare(convolution, torch.randn(2, 3, 32, 32), ["rollout"])


def test_an_unreadable_cache_is_ignored(tmp_path):
    path = recommendation.recommendations_file()
    path.parent.mkdir(parents=True)
    path.write_text("{not json", encoding="utf-8")
    with pytest.raises(OptionError, match="not compared yet"):
        recommendation.recommended(tiny_vit())


class OnePatch(torch.nn.Module):
    """A detector whose first query depends on one patch of 8 by 8 pixels, its second on another."""

    def forward(self, x):
        scores = torch.stack([x[:, 0, 8:16, 16:24].mean((-2, -1)), x[:, 0, 24:, :8].mean((-2, -1))], 1)
        return {"logits": scores[..., None].expand(-1, -1, 2), "pred_boxes": torch.full((len(x), 2, 4), 0.5)}


def test_methods_are_ranked_by_the_value_of_a_box():
    from vitrail.targets import box

    images = 0.1 * torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    images[:, :, 8:16, 16:24] += 5
    found = vitrail.compare(OnePatch(), images, ["gradient_x_input", "occlusion"], target=box(0, label=0))
    by_name = {row.method: row.ranked.value.value for row in found.rows}
    assert by_name["gradient_x_input"] > 0.3
    assert by_name["gradient_x_input"] > by_name["random"]
    with pytest.raises(InputError, match=r"vitrail\.targets"):
        vitrail.compare(OnePatch(), images, ["occlusion"], target=3)
