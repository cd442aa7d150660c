"""Groups of classes: scores, every method, results and files, the command line, perturbation tests, VOC."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

import vitrail
from tests.data.datafiles import write_voc
from tests.scores.score_helpers import IMAGENET_PREPROCESS
from vitrail import ClassGroup
from vitrail.errors import InputError, TargetError
from vitrail.inputs.targets import class_scores, resolve_target
from vitrail.methods import METHODS
from vitrail.models.class_group import merge_groups
from vitrail.scores.evaluator import Evaluator
from vitrail.testing import tiny_vit

IMAGES = torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
NAMES = ("cat, tabby", "dog", "bee", "ant", "elk")


# -- scores ------------------------------------------------------------------------------------------------------------


def test_scores_of_a_group_are_those_of_the_event_that_any_of_its_classes_is_right():
    logits = torch.randn(4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    group = ClassGroup([1, 4, 6])
    probability = logits.softmax(1)[:, [1, 4, 6]].sum(1)
    assert torch.allclose(class_scores(logits, "prob", [group])[:, 7], probability)
    assert torch.allclose(class_scores(logits, "logprob", [group])[:, 7], probability.log())
    rest = logits[:, [0, 2, 3, 5]]
    joined = torch.cat([class_scores(logits, "logit", [group])[:, 7:], rest], 1)
    assert torch.allclose(joined.softmax(1)[:, 0], probability), "as one class among the others"


@pytest.mark.parametrize("score", ["logit", "prob", "logprob"])
def test_derivative_of_a_group_of_two_is_autograds(score):
    logits = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (found,) = torch.autograd.grad(resolve_target(ClassGroup([1, 3]), logits, 3).scalar(0, score).sum(), logits)
    p, inside = logits.detach().softmax(1), torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0]).double()
    whole = (p * inside).sum(1, keepdim=True)
    expected = {"logit": p * inside / whole, "prob": p * (inside - whole), "logprob": p * inside / whole - p}[score]
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-14)

    def function(out):
        value = (out.exp() * inside).sum(1)
        value = value if score == "logit" else value / out.exp().sum(1)
        return value if score == "prob" else value.log()

    model = tiny_vit().double()
    for method in ("transformer_mm", "gradient_x_input"):
        group = vitrail.explain(model, IMAGES, method, target=ClassGroup([1, 3]), score=score).grid
        assert torch.allclose(group, vitrail.explain(model, IMAGES, method, target=function).grid, rtol=1e-9), method


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (ClassGroup([0, 9]), "class 9 does not exist: the model has 5 classes, 0 to 4"),
        (ClassGroup([0, -1]), "class -1 does not exist"),
        (ClassGroup(["zebra"]), "no class is called 'zebra'"),
        ("cat|zebra", "no class is called 'zebra'"),
        ("cat|", "'cat|' has an empty class: write a group as 'tabby|tiger cat'"),
        ([[ClassGroup([0])], [1, 2]], "every image must ask for the same number of classes"),
    ],
)
def test_refused_groups(target, message):
    with pytest.raises(TargetError) as caught:
        resolve_target(target, torch.zeros(2, 5), 2, NAMES)
    assert message in str(caught.value)


@pytest.mark.parametrize("classes", [[], "tabby", 3, [0.5], [True], [None]])
def test_what_is_no_group(classes):
    with pytest.raises(TargetError, match="ClassGroup"):
        ClassGroup(classes)


def test_groups_by_name_index_and_text_beside_classes():
    group = ClassGroup([0, 2])
    for target in (ClassGroup(["tabby", "bee"]), "cat|bee", "0|2", ClassGroup(np.array([0, 2, 0])), [[group]]):
        found = resolve_target(target, torch.zeros(3, 5), 3, NAMES)
        assert found.groups == (group,)
        assert found.classes.tolist() == [[5]] * 3
    mixed = resolve_target([[1, "cat|bee"], ["dog|elk", 4]], torch.zeros(2, 5), 2, NAMES)
    assert mixed.rows() == [[1, group], [ClassGroup([1, 4]), 4]]
    assert resolve_target("a|b", torch.zeros(1, 2), 1, ("a|b", "c")).classes.tolist() == [[0]], "a class of that name"


# -- every method ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
@pytest.mark.parametrize("name", list(METHODS))
def test_group_of_one_class_equals_that_class(name):
    """In one call, beside it: both are targets of the same pass."""
    options = METHODS[name].quick
    if METHODS[name].check_weights is not None:
        pytest.skip("needs weights trained for this model")
    found = vitrail.explain(tiny_vit(seed=3).double(), IMAGES, name, target=[[2, ClassGroup([2])]], **options)
    scale = found.grid.abs().max().clamp_min(1e-300)
    assert ((found.grid[:, 0] - found.grid[:, 1]).abs().max() / scale) < 1e-9
    assert torch.equal(found.probabilities[:, 0], found.probabilities[:, 1])


@pytest.mark.parametrize("score", ["logit", "prob", "logprob"])
def test_group_of_one_class_equals_that_class_for_every_score(score):
    methods = {n: {"score": score} for n in ("transformer_mm", "gradtoken", "attattr", "gradient_x_input", "legrad")}
    found = vitrail.explain(tiny_vit().double(), IMAGES, methods=methods, target=[[2, ClassGroup([2])]])
    for name, e in found.items():
        assert torch.allclose(e.grid[:, 0], e.grid[:, 1], rtol=1e-9, atol=0), name


def test_vit_cx_scores_the_probability_of_a_group():
    """With probabilities the group's map differs from that of its logit, as a function returns it."""
    model = tiny_vit(seed=3).double()
    group = vitrail.explain(model, IMAGES, "vit_cx", target=ClassGroup([1, 3])).grid
    probability = vitrail.explain(model, IMAGES, "vit_cx", target=lambda out: out.softmax(1)[:, [1, 3]].sum(1)).grid
    logit = vitrail.explain(model, IMAGES, "vit_cx", target=lambda out: out[:, [1, 3]].logsumexp(1)).grid
    assert torch.allclose(group, probability, rtol=1e-9)
    assert not torch.allclose(group, logit, rtol=1e-2)


def test_relevance_of_a_group_starts_with_the_share_of_each_class():
    """Relevance is linear in its start: each class with the derivative of the group's logit."""
    model = tiny_vit(seed=3).double()
    shares = model(IMAGES)[:, [1, 3]].softmax(1)[:, :, None, None]
    for method in ("conservative_lrp", "attnlrp"):
        classes = vitrail.explain(model, IMAGES, method, target=[[1, 3]]).grid
        group = vitrail.explain(model, IMAGES, method, target=ClassGroup([1, 3])).grid
        assert torch.allclose(group[:, 0], (classes * shares).sum(1), rtol=1e-9, atol=1e-13), method


def test_abslrp_keeps_its_contrast_with_the_classes_outside_the_group():
    """A group of all classes but one is contrasted with that one: the negative map of it, but for the shares."""
    model = tiny_vit(seed=3, classes=3).double()
    group = vitrail.explain(model, IMAGES, "abslrp", target=ClassGroup([0, 2])).grid
    function = vitrail.explain(model, IMAGES, "abslrp", target=lambda out: out[:, [0, 2]].logsumexp(1)).grid
    other = vitrail.explain(model, IMAGES, "abslrp", target=1).grid
    correlation = torch.corrcoef(torch.stack([group.flatten(), -other.flatten()]))[0, 1]
    assert correlation > 0.9
    assert torch.corrcoef(torch.stack([function.flatten(), -other.flatten()]))[0, 1] < correlation


@pytest.mark.filterwarnings("ignore::vitrail.errors.GuessWarning")
def test_model_of_one_output_and_model_of_probabilities():
    single = vitrail.explain(
        tiny_vit(classes=1).double(), IMAGES, "gradtoken:score=prob", target=[[0, ClassGroup([0])]]
    )
    assert torch.equal(single.grid[:, 0], single.grid[:, 1])

    class Probabilities(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tiny_vit().double()

        def forward(self, x):
            return self.inner(x).softmax(1)

    found = vitrail.explain(Probabilities().eval(), IMAGES, "transformer_attribution", target=[[3, ClassGroup([3])]])
    assert torch.allclose(found.grid[:, 0], found.grid[:, 1], rtol=1e-9)


# -- results -----------------------------------------------------------------------------------------------------------


def test_batches_with_different_groups_join():
    targets = [ClassGroup([0, 1]), 3, ClassGroup([2, 4], "rest"), ClassGroup([0, 1])]
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    whole = vitrail.explain(tiny_vit(), images, "transformer_mm", target=targets)
    parts = vitrail.explain(tiny_vit(), images, "transformer_mm", target=targets, batch_size=1)
    assert parts.groups == whole.groups == (ClassGroup([0, 1]), ClassGroup([2, 4], "rest"))
    assert torch.equal(parts.targets, whole.targets)
    assert torch.allclose(parts.probabilities, whole.probabilities)
    assert torch.allclose(parts.maps, whole.maps, atol=1e-5)
    assert parts.label(2, 0).startswith("rest (")
    assert merge_groups([whole.targets], [whole.groups], 5)[0][0] is whole.targets


def test_names_probabilities_and_files_of_a_group(tmp_path):
    model = vitrail.load("scenes")
    images = torch.zeros(1, 3, *model.preprocess.size)
    group = ClassGroup([0, 1, 2, 3, 4])
    e = vitrail.explain(model, images, "rollout", target=[[0, group]])
    names = [n.split(",")[0] for n in e.classes]
    assert e.label(0, 1).startswith(f"{names[0]} + {names[1]} + {names[2]} + 2 more (")
    expected = e.logits.softmax(1)[:, :5].sum(1)
    assert torch.allclose(e.probabilities[:, 1], expected)
    e.save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["targets"] == [[0, [0, 1, 2, 3, 4]]]
    assert manifest["groups"] == [{"name": None, "classes": [0, 1, 2, 3, 4]}]
    assert manifest["probabilities"][0][1] == pytest.approx(float(expected[0]))
    assert load_file(tmp_path / "maps.safetensors")["targets"].tolist() == [[0, e.logits.shape[1]]]
    assert "groups" not in vitrail.explain(model, images, "rollout", target=0).manifest()


def test_targets_of_the_command_line():
    from vitrail.cli.common import parse_targets

    loaded = vitrail.load("scenes")
    names = [name.split(",")[0] for name in loaded.classes]
    assert parse_targets(loaded, [f"{names[0]}|{names[3]}", names[1], "2|4"]) == [
        [ClassGroup([0, 3]), 1, ClassGroup([2, 4])]
    ]


@pytest.mark.slow
def test_command_line_takes_a_group(tmp_path):
    from vitrail.cli import app as cli

    Image.new("RGB", (40, 40), "red").save(tmp_path / "a.png")
    names = [name.split(",")[0] for name in vitrail.load("scenes").classes]
    call = ["explain", str(tmp_path / "a.png"), "--out", str(tmp_path / "out"), "--method", "rollout"]
    done = CliRunner().invoke(cli.app, [*call, "--target", f"{names[0]}|{names[3]}"])
    assert done.exit_code == 0, done.output
    manifest = json.loads((tmp_path / "out" / "a" / "rollout" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["targets"] == [[[0, 3]]]
    assert manifest["target_names"][0][0].startswith(f"{names[0]} + {names[3]} (")


@pytest.mark.slow
def test_folder_of_images_takes_a_group(tmp_path):
    pl = pytest.importorskip("polars")
    pytest.importorskip("pydantic")
    from vitrail.bench.folder import explain_folder, read_map

    (tmp_path / "in").mkdir()
    Image.new("RGB", (40, 40), "red").save(tmp_path / "in" / "a.png")
    index = explain_folder(tmp_path / "in", tmp_path / "out", methods=["gradtoken"], target=[[1, ClassGroup([0, 2])]])
    rows = pl.read_parquet(index).to_dicts()
    assert [row["error"] for row in rows] == [None, None]
    loaded = vitrail.load("scenes")
    e = vitrail.explain(loaded, tmp_path / "in" / "a.png", "gradtoken", target=ClassGroup([0, 2]))
    assert rows[1]["class"] == len(loaded.classes)
    assert rows[1]["name"] == ClassGroup([0, 2]).title(loaded.classes)
    assert rows[1]["probability"] == pytest.approx(float(e.probabilities[0, 0]), rel=1e-5)
    assert read_map(tmp_path / "out", rows[1]).shape == e.grid.shape[2:]


# -- scores of maps ----------------------------------------------------------------------------------------------------


def test_perturbation_scores_the_probability_of_a_group():
    model = tiny_vit()
    images, maps = IMAGES.float(), {"m": torch.rand(2, 32, 32, generator=torch.Generator().manual_seed(1))}
    evaluate = Evaluator(model, ["rise", "chefer21"], preprocess=IMAGENET_PREPROCESS)
    single = evaluate(images, maps, predicted=torch.tensor([2, 2]))
    groups = (ClassGroup([2]), ClassGroup([0, 1, 3, 4]), ClassGroup(range(5)))
    grouped = evaluate(images, maps, predicted=torch.tensor([5, 5]), groups=groups)
    rest = evaluate(images, maps, predicted=torch.tensor([6, 6]), groups=groups)
    every = evaluate(images, maps, labels=torch.tensor([7, 7]), predicted=torch.tensor([7, 7]), groups=groups)
    for key, curve in single.curves.items():
        assert torch.allclose(grouped.curves[key].outputs[..., 0], curve.outputs[..., 0])
        for quantity in ("explained", "agreement"):
            own = [r.curves[key].read(curve.removed, quantity, "predicted") for r in (single, rest, every)]
            assert torch.allclose(own[0] + own[1], torch.ones_like(own[0])), "the group of all others"
            assert torch.allclose(own[2], torch.ones_like(own[0])), "the group of all"
        assert bool((every.curves[key].read(curve.removed, "accuracy", "label") == 1).all())
    with pytest.raises(InputError, match="groups of classes"):
        single + evaluate(images, maps, predicted=torch.tensor([5, 5]), groups=groups, ids=("a", "b"))


@pytest.mark.slow
def test_voc_classes_are_groups_of_imagenet_classes(tmp_path, monkeypatch):
    pytest.importorskip("polars")
    pytest.importorskip("pydantic")
    from tests.bench.bench_helpers import open_store
    from vitrail.bench import explainer

    text = """
name = "voc"
models = [{ name = "timm:vit_tiny_patch16_224", weights = "random" }]
methods = ["gradtoken"]
controls = false
protocols = ["multiclass"]
dataset = { name = "voc2012" , root = "." }
"""
    write_voc(tmp_path)
    seen, explain = [], explainer.explain

    def spy(*args, **options):
        seen.extend(one for row in options["target"] for one in row)
        return explain(*args, **options)

    monkeypatch.setattr(explainer, "explain", spy)
    store = open_store(text, tmp_path / "runs", tmp_path)
    for task in store.missing():
        task.perform("cpu")
    assert ClassGroup((404, 895)) in seen
    assert ClassGroup(range(151, 269)) in seen


@pytest.mark.slow
def test_texts_with_several_windows_take_a_group():
    pytest.importorskip("transformers")
    from tests.text.texts import text_model

    model, tokenizer = text_model(num_labels=3)
    texts = [" ".join(["film"] * 60), "film film"]
    targets = [[ClassGroup([0, 2]), 1], [ClassGroup([1, 2]), 1]]
    e = vitrail.explain(model, texts, "transformer_mm", target=targets, tokenizer=tokenizer, batch_size=1)
    assert e.text[0].windows > 1
    assert e.groups[int(e.targets[0, 0]) - 3] == ClassGroup([0, 2])
    assert e.groups[int(e.targets[1, 0]) - 3] == ClassGroup([1, 2])
    probabilities = e.logits.softmax(1)
    assert torch.allclose(
        e.probabilities[:, 0], torch.stack([probabilities[0, [0, 2]].sum(), probabilities[1, 1:].sum()])
    )
    alone = vitrail.explain(
        model, texts, "transformer_mm", target=[[ClassGroup([1])], [ClassGroup([1])]], tokenizer=tokenizer
    )
    assert torch.allclose(e.grid[:, 1], alone.grid[:, 0], rtol=1e-5, atol=1e-7)
