"""Checks of single maps: null distribution, removal, verdicts where the truth is known, the model restored."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import vitrail
from vitrail.data import Scenes
from vitrail.errors import InputError, OptionError
from vitrail.testing import tiny_vit
from vitrail.trust import BUDGETS, VERDICTS, Budget, MapCheck, PatchRemoval, log_odds, moved_maps, patch_values

SHORT = Budget(copies=19, levels=(0.1, 0.4), draws=1, reruns=60)


def test_moved_maps_have_the_same_values_elsewhere():
    values = torch.arange(64.0).view(8, 8)
    moved = moved_maps(values, 40, seed=3)
    assert all(torch.equal(m.flatten().sort().values, values.flatten()) for m in moved)
    assert not any(torch.equal(m, values) for m in moved)
    # The peak of a copy that was only shifted is more than one cell away.
    assert torch.equal(moved_maps(values, 40, seed=3), moved)
    assert not torch.equal(moved_maps(values, 40, seed=4), moved)


def test_moved_regions_keep_their_shape():
    values = torch.zeros(9, 9)
    values[3:5, 3:6] = 1
    for moved in moved_maps(values, 30):
        # With wrap-around, a rectangle of 2 by 3 covers two rows and three columns, or three and two.
        rows, columns = int(moved.any(1).sum()), int(moved.any(0).sum())
        assert {rows, columns} == {2, 3}


def test_small_and_oblong_grids_are_moved_too():
    assert moved_maps(torch.rand(2, 3), 5).shape == (5, 2, 3)
    assert moved_maps(torch.rand(4, 7), 5).shape == (5, 4, 7)
    with pytest.raises(OptionError, match="count"):
        moved_maps(torch.rand(4, 4), 0)


def test_log_odds_are_exact_near_certainty():
    p = torch.tensor([1e-9, 0.3, 1 - 1e-9], dtype=torch.float64)
    assert torch.allclose(log_odds(p.log()), torch.log(p / (1 - p)), rtol=1e-6)


class PatchSum(nn.Module):
    """Logits that add up evidence of cells of 8 by 8 pixels: class 1 has evidence in the cells that are bright."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        evidence = self.weight * x.mean((1, 2, 3))
        return torch.stack([torch.zeros_like(evidence), 20 * evidence], 1)


def test_removal_by_fill_replaces_what_is_not_kept():
    image = torch.zeros(1, 3, 32, 32)
    image[:, :, :8, :8] = 1
    loaded = vitrail.LoadedModel(PatchSum(), vitrail.Preprocess((32, 32), (0.0,) * 3, (1.0,) * 3))
    remove = PatchRemoval(loaded, image, (4, 4), by="black")
    score = remove(torch.tensor([[0], [5]]), lambda output: output[:, 1])
    assert torch.allclose(score, torch.tensor([20 / 16, 0.0], dtype=torch.float64))
    assert remove.forwards == 2
    with pytest.raises(OptionError, match="removal"):
        PatchRemoval(loaded, image, (4, 4), by="purple")


@pytest.fixture(scope="module")
def pair():
    loaded, data = vitrail.load("scenes"), Scenes(split="test", pairs=True, count=3)
    targets = [list(data[2].classes)]
    return vitrail.explain(loaded, data.batch([2])[0], "transformer_mm", target=targets), data[2].masks


def with_values(explanation, values):
    grid = explanation.grid.clone()
    grid[0, 0] = values
    return replace(explanation, grid=grid)


@pytest.mark.slow
def test_verdicts_separate_the_object_from_wrong_maps(pair):
    explanation, masks = pair
    size = explanation.grid.shape[-2:]
    own, other = (torch.nn.functional.adaptive_avg_pool2d(torch.tensor(m)[None].float(), size)[0] for m in masks)
    kinds = {"own": own, "other": other, "inverted": -own, "shuffled": own.flatten()[torch.randperm(256)].view(size)}
    found = {
        kind: with_values(explanation, values).check(budget=SHORT, tests=["removal"]) for kind, values in kinds.items()
    }
    assert found["own"].verdict == "faithful"
    assert found["own"].p_value == 1 / 20
    assert {found[kind].verdict for kind in ("other", "inverted", "shuffled")} == {"no better than chance"}
    assert found["own"].statistic > max(found[kind].statistic for kind in ("other", "inverted", "shuffled"))
    assert found["own"].removed[0] < found["own"].null_removed[0]


def test_class_agnostic_maps_are_named_and_the_model_is_restored():
    model = tiny_vit()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = vitrail.explain(model, torch.randn(1, 3, 32, 32), methods=["rollout", "gradsam", "random"])
    checks = found.check(budget=SHORT)
    assert "not class-specific" in checks["rollout"].failures
    assert checks["rollout"].class_similarity == pytest.approx(1)
    assert checks["rollout"].head_similarity == pytest.approx(1)
    assert checks["random"].seed_similarity < 0.9
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module.training != model.training for module in model.modules())


def test_results_are_sentences_numbers_and_pages():
    found = vitrail.explain(tiny_vit(), torch.randn(2, 3, 32, 32), "transformer_mm", target="top2", check=True)
    assert set(found.checks) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    check = found.checks[1, 1]
    assert isinstance(check, MapCheck)
    assert check.verdict in VERDICTS
    assert len(check.sentences) == 3
    assert f"p = {check.p_value:.2g}" in check.sentences[0]
    assert check.to_dict()["passed"] == check.passed
    assert check.verdict in check._repr_html_()
    assert check.figure().axes
    assert found.manifest()["checks"][0]["image"] == 0
    assert check.forwards <= 200


def test_quick_checks_stay_within_their_budget():
    quick = BUDGETS["quick"]
    assert quick.copies >= 32
    assert quick.removals + quick.reruns <= 200


def test_expensive_methods_are_not_computed_again():
    found = vitrail.explain(tiny_vit(), torch.randn(1, 3, 32, 32), "rise:masks=200")
    check = found.check(budget=SHORT)
    assert check.class_similarity is None
    assert any("exceed the budget" in reason for reason in check.skipped)
    assert "not tested" in check.sentences[1]


def test_target_functions_and_groups_can_be_checked():
    images, model = torch.randn(1, 3, 32, 32), tiny_vit()
    one = vitrail.explain(model, images, "transformer_mm", target=lambda output: output[:, 0] - output[:, 1])
    assert not one.check(budget=SHORT, tests=["removal", "noise"]).is_probability
    group = vitrail.explain(model, images, "transformer_mm", target=vitrail.ClassGroup([0, 1]))
    assert 0 <= group.check(budget=SHORT, tests=["removal", "class"]).probability <= 1


def test_refusals_say_what_is_wrong():
    found = vitrail.explain(tiny_vit(), torch.randn(1, 3, 32, 32), "transformer_mm")
    with pytest.raises(OptionError, match="budget"):
        found.check(budget="huge")
    with pytest.raises(OptionError, match="does not exist"):
        found.check(image=3)
    with pytest.raises(OptionError, match="test 'colour'"):
        found.check(tests=["colour"])
    with pytest.raises(InputError, match=r"vitrail\.explain"):
        replace(found, source=None).check()


def test_maps_that_fail_are_marked(pair):
    explanation, _ = pair
    failed = with_values(explanation, -explanation.grid[0, 0])
    check = failed.check(budget=SHORT, tests=["removal"])
    marked = replace(explanation, checks={(0, 0): check})
    assert not check.passed
    assert marked.overlay().tobytes() != explanation.overlay().tobytes()
    texts = [t.get_text() for axes in marked.figure().axes for t in axes.texts]
    assert any(check.verdict in text for text in texts)


def test_patch_values_are_pixel_means_where_the_method_has_no_grid():
    found = vitrail.explain(tiny_vit(), torch.randn(1, 3, 32, 32), "gradient_x_input")
    values = patch_values(found, 0, 0, (4, 4))
    assert torch.allclose(values, found.maps[0, 0].view(4, 8, 4, 8).mean((1, 3)).double(), atol=1e-6)


def test_explanations_display_themselves_in_notebooks():
    found = vitrail.explain(tiny_vit(), torch.randn(4, 3, 32, 32), methods=["rollout", "gradsam"], target="top2")
    page = found._repr_html_()
    assert page.count("data:image/png") == 6 * 3
    assert "and 2 more" in page
    assert "gradsam" in found["gradsam"]._repr_html_()


def test_check_of_a_prompt_a_box_and_a_region():
    from tests.targets.target_models import build, pixels, tokenizer
    from vitrail.targets import box, prompt, region

    def resized(scores):
        return nn.functional.interpolate(scores, (64, 64), mode="bilinear")

    cases = {
        ("CLIPModel", "Clip"): prompt("a dog", "a cat", processor=tokenizer()),
        ("YolosForObjectDetection", "Yolos"): box(2, label=1),
        ("SegformerForSemanticSegmentation", "Segformer"): region((20, 40), 1),
    }
    for (model, config), target in cases.items():
        module = build(model, config)
        before = {name: value.clone() for name, value in module.state_dict().items()}
        e = vitrail.explain(module, pixels(2), "gradient_x_input", target=target)
        check = e.check(1, 0, budget=SHORT)
        assert check.noise_similarity is not None
        assert check.class_similarity is not None
        assert check.other_class
        with torch.no_grad():
            image = pixels(2)[1:]
            given = tokenizer()(["a dog", "a cat"], padding=True, return_tensors="pt") if model == "CLIPModel" else {}
            output = module(pixel_values=image, **given)
        expected = {
            "CLIPModel": lambda o: o.logits_per_image[0, 0] - o.logits_per_image[0, 1],
            "YolosForObjectDetection": lambda o: o.logits[0, 2, 1],
            "SegformerForSemanticSegmentation": lambda o: nn.functional.interpolate(
                o.logits, (64, 64), mode="bilinear"
            )[0, 1, 40, 20],
        }[model](output)
        assert check.probability == pytest.approx(float(expected), rel=1e-6)
        assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_check_of_a_text_that_was_given_with_the_images():
    from tests.targets.target_models import build, pixels, tokenizer
    from vitrail.targets import prompt

    texts = tokenizer()(["a dog", "a cat", "red"], padding=True, return_tensors="pt")
    inputs = {"pixel_values": pixels(2), "input_ids": texts["input_ids"], "attention_mask": texts["attention_mask"]}
    e = vitrail.explain(build("CLIPModel", "Clip"), inputs, "gradient_x_input", target=prompt(1, against=0))
    same = vitrail.explain(build("CLIPModel", "Clip"), pixels(2), "gradient_x_input",
                           target=prompt("a cat", "a dog", processor=tokenizer()))  # fmt: skip
    one, other = (x.check(0, 0, budget=SHORT, tests=["removal", "noise"]) for x in (e, same))
    assert one.removed == pytest.approx(other.removed)
    assert one.noise_similarity == pytest.approx(other.noise_similarity)


class Several(nn.Module):
    """A classifier with a second input and a second output."""

    def __init__(self, vit: nn.Module) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, image, scale):
        logits = self.vit(image)
        return {"aux": logits.detach().flip(1), "logits": logits * scale}


@pytest.mark.parametrize("removal", ["tokens", "blur"])
def test_a_call_with_several_tensors_has_the_checks_of_the_plain_call(removal):
    vit, images = tiny_vit().eval(), torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    names = ["rollout", "transformer_mm"]
    settings = {"budget": SHORT, "removal": removal, "tests": ("removal", "class", "noise")}
    plain = vitrail.explain(vit, images, methods=names, target=2).check(1, **settings)
    call = {"image": images, "scale": torch.tensor([[9.0], [1.0]])}
    found = vitrail.explain(Several(vit).eval(), call, methods=names, target=2, output="logits").check(1, **settings)
    for name in names:
        one, other = plain[name], found[name]
        assert one.removal == other.removal == removal
        assert other.p_value == one.p_value
        assert other.removed == pytest.approx(one.removed, abs=1e-6)
        assert other.class_similarity == pytest.approx(one.class_similarity, abs=1e-4)
        assert other.noise_similarity == pytest.approx(one.noise_similarity, abs=1e-4)
    first = vitrail.explain(Several(vit).eval(), call, "rollout", target=2, output="logits").check(0, **settings)
    assert first.probability != pytest.approx(plain["rollout"].probability, abs=1e-3)  # its own scale was used


def test_target_functions_of_the_whole_batch_cannot_be_checked():
    labels = torch.tensor([[1], [2]])
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    found = vitrail.explain(tiny_vit().eval(), images, "rollout", target=lambda o: o.gather(1, labels))
    with pytest.raises(InputError, match="copies of one image"):
        found.check(1, budget=SHORT)


class Sorted(nn.Module):
    """A ViT whose patches are sorted by the image."""

    def __init__(self) -> None:
        super().__init__()
        from vitrail.models.plain_vit import PlainViT

        self.vit = PlainViT()

    def forward(self, images):
        v = self.vit
        x = v.embed(images).flatten(2).transpose(1, 2) + v.position[:, 1:]
        x = x.gather(1, x.mean(-1).argsort(1)[..., None].expand_as(x))
        return v.head(v.norm(v.blocks(torch.cat([v.prefix.expand(len(x), -1, -1) + v.position[:, :1], x], 1)))[:, 0])


def test_tokens_in_an_order_of_the_image_are_not_dropped():
    torch.manual_seed(0)
    images = torch.randn(1, 3, 32, 32)
    removal = PatchRemoval(vitrail.LoadedModel(Sorted().eval()), images, (4, 4))
    assert removal.by == "blur"


@pytest.mark.parametrize(("values", "text"), [
    ((0.834, 0.601, 0.812), "lowers dog from 83 % to 60 %; regions of the same shape elsewhere lower it to 81 % "),
    ((0.5, 0.601, 0.55), "raises dog from 50 % to 60 %; regions of the same shape elsewhere raise it to 55 % "),
    ((0.834, 0.834, 0.834), "leaves dog at 83 %; regions of the same shape elsewhere leave it at 83 % "),
    ((0.834, 0.831, 0.845), "leaves dog at 83 %; regions of the same shape elsewhere raise it to 84 % "),
    ((2e-4, 1e-4, 3e-4), "lowers dog from 0.02 % to 0.01 %; regions of the same shape elsewhere raise it to 0.03 % "),
])  # fmt: skip
def test_a_value_that_is_printed_as_before_is_neither_lowered_nor_raised(values, text):
    before, removed, moved = values
    check = MapCheck(
        "rollout", "dog", "faithful", (), 0.02, "mean", (0.1,), before, (removed,), (), (moved,), (), 49, 1.0, {}
    )
    assert check.sentences[0] == f"Removing the 10 % most relevant patches {text}(p = 0.02)."
    left = check.figure().axes[0]
    assert left.get_ylabel() == "probability of dog"
    assert left.get_ylim()[1] == pytest.approx(1.03 if before > 0.1 else 1.03 * 1.1 * 3e-4), "small values are visible"
