"""ViT Shapley: objective, training that can be interrupted, files, refusals, and the explainer of the package."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import vitrail
from tests.cli.test_app import vitrail as run_command
from tests.replicas import vit_shapley as replica
from vitrail.capture.removal import kept_mask
from vitrail.data import Scenes
from vitrail.errors import DataError, InputError, NotApplicableError, OptionError, TargetError, WeightsError
from vitrail.methods.shapley_explainer import TrainingImages, TrainingSettings, open_training_images, train_explainer
from vitrail.methods.shapley_explainer.explainer_network import explainer_loss, normalise_values, shapley_loss
from vitrail.methods.shapley_explainer.partial_images import (
    PartialImages,
    kernel_sizes,
    split_patches,
    uniform_sizes,
)
from vitrail.methods.shapley_explainer.surrogate import surrogate_loss, trainable_copy
from vitrail.methods.shapley_explainer.weights import packaged_explainers, read_record
from vitrail.models import LoadedModel, Preprocess
from vitrail.testing import tiny_vit

PIXELS = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
SETTINGS = TrainingSettings(surrogate_steps=5, explainer_steps=6, batch=3, groups=2, pairs=2, explainer_lr=1e-3)
SMALL = {"size": 16, "patch": 4, "width": 8, "depth": 2, "heads": 2, "classes": 3}


def small_vit(seed=0, **options):
    model = tiny_vit(seed, **{**SMALL, **options})
    with torch.no_grad():
        model.head.weight.mul_(6)  # so that predictions depend on the patches
    return model


def images_of(count=6):
    return TrainingImages(count, lambda rows: PIXELS[list(rows)], "noise")


def train(path, model=None, settings=SETTINGS, **options):
    loaded = LoadedModel(model or small_vit(), None, ("a", "b", "c"), "small")
    return train_explainer(loaded, images_of(), path, settings, checkpoint_steps=2, **options)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("explainer") / "small.safetensors"
    return path, train(path)


# -- coalitions --------------------------------------------------------------------------------------------------------


def test_sizes_follow_the_kernel():
    generator = torch.Generator().manual_seed(0)
    sizes = [size for _ in range(500) for size in kernel_sizes(9, 8, generator)]
    shares = np.bincount(sizes, minlength=9)[1:] / len(sizes)
    assert np.abs(shares - replica.size_probabilities(9)).max() < 0.01
    assert {size for _ in range(60) for size in uniform_sizes(4, 4, generator)} == {0, 1, 2, 3, 4}


def test_a_coalition_and_its_complement_have_every_patch_once():
    keep, rest = split_patches(3, 10, 4, torch.Generator().manual_seed(0))
    assert keep.shape == (3, 4)
    assert torch.equal(kept_mask(keep, 10), ~kept_mask(rest, 10))


@pytest.mark.parametrize("kind", ["tokens", "fill"])
def test_all_patches_are_the_image_and_none_are_the_same_for_every_image(kind):
    model = small_vit()
    partial = PartialImages(model, PIXELS, kind)
    assert partial.removal == kind
    every = torch.arange(16).expand(6, -1)
    assert torch.equal(partial.probabilities(model, PIXELS, every), model(PIXELS).softmax(-1))
    nothing = partial.probabilities(model, PIXELS, every[:, :0])
    assert torch.allclose(nothing, partial.empty(model, PIXELS).expand(6, -1), atol=1e-6)


def test_hidden_patches_do_not_matter():
    model = small_vit()
    changed = PIXELS.clone()
    changed[:, :, :4, :4] += 3  # the first patch
    keep = torch.arange(1, 16).expand(6, -1)
    for kind in ("tokens", "fill"):
        partial = PartialImages(model, PIXELS, kind)
        a, b = (partial.probabilities(model, pixels, keep) for pixels in (PIXELS, changed))
        assert torch.allclose(a, b, atol=1e-6)


def test_mean_pooled_models_are_filled():
    model = small_vit(prefix=0, pool=True)
    assert PartialImages(model, PIXELS).removal == "fill"
    with pytest.raises(NotApplicableError, match=r"averages its patches.*removal='fill'"):
        PartialImages(model, PIXELS, "tokens")
    with pytest.raises(OptionError, match="removal='zero' is not one of 'auto', 'tokens', 'fill'"):
        PartialImages(model, PIXELS, "zero")


# -- objective ---------------------------------------------------------------------------------------------------------


def random_case():
    generator = torch.Generator().manual_seed(1)
    values, scores = (torch.randn(2, n, 3, generator=generator, dtype=torch.float64) for n in (5, 4))
    coalitions = (torch.rand(2, 4, 5, generator=generator) < 0.5).double()
    return values, coalitions, scores, torch.randn(3, generator=generator, dtype=torch.float64)


def test_objective_is_that_of_the_replica():
    values, coalitions, scores, empty = random_case()
    expected = replica.objective(values.numpy(), coalitions.numpy(), scores.numpy(), empty.numpy())
    assert float(shapley_loss(values, coalitions, scores, empty)) == pytest.approx(expected, rel=1e-12)


def test_normalisation_is_that_of_the_replica():
    values, _, scores, _ = random_case()
    total = scores[:, 0]
    found = normalise_values(values, total)
    assert torch.allclose(found.sum(1), total, rtol=1e-12)
    assert np.allclose(found.numpy(), replica.normalised(values.numpy(), total.numpy()), rtol=1e-12)


def least_squares(value, players, coalitions_of):
    """Minimise the objective over free values; the coalitions of one size have the kernel's share of the loss."""
    empty, whole = (torch.tensor(value(frozenset(s))) for s in ((), range(players)))
    terms = []
    for size, probability in enumerate(replica.size_probabilities(players), 1):
        members = coalitions_of(size)
        masks = torch.tensor([[float(i in s) for i in range(players)] for s in members], dtype=torch.float64)
        terms.append((probability, masks[None], torch.tensor(np.array([[value(frozenset(s)) for s in members]]))))

    def loss(free):
        values = normalise_values(free.view(1, players, -1), (whole - empty)[None])
        return sum(probability * shapley_loss(values, masks, scores, empty) for probability, masks, scores in terms)

    start = torch.zeros(players * len(empty), dtype=torch.float64)  # the loss is quadratic: one Newton step
    gradient = torch.autograd.functional.jacobian(loss, start)
    step = torch.linalg.lstsq(torch.autograd.functional.hessian(loss, start), -gradient, driver="gelsd").solution
    return normalise_values(step.view(1, players, -1), (whole - empty)[None])[0].numpy()


def test_a_linear_game_is_recovered_from_a_few_coalitions():
    weights = np.random.default_rng(0).normal(size=(6, 2))

    def linear(members):
        return np.array([0.3, -0.2]) + sum((weights[i] for i in members), np.zeros(2))

    found = least_squares(linear, 6, lambda size: [tuple((i + k) % 6 for i in range(size)) for k in range(6)])
    assert np.allclose(found, weights, atol=1e-7)


def test_the_minimum_of_the_objective_is_the_shapley_value():
    table = np.random.default_rng(1).normal(size=(2**5, 2))

    def game(members):
        return table[sum(2**i for i in members)]

    found = least_squares(game, 5, lambda size: list(combinations(range(5), size)))
    assert np.allclose(found, replica.shapley_values(game, 5), atol=1e-6)


def test_training_losses_have_gradients_for_all_that_is_trained(trained):
    _, run = trained
    generator = torch.Generator().manual_seed(0)
    surrogate = trainable_copy(small_vit())
    surrogate_loss(run.partial_images, small_vit(), surrogate, PIXELS, 3, generator).backward()
    assert all(p.grad is not None for p in surrogate.parameters())
    loss = explainer_loss(run.partial_images, run.surrogate, run.explainer, PIXELS, run.empty, 2, generator)
    names = run.explainer.trained()
    gradients = torch.autograd.grad(loss, list(names.values()))
    assert all(torch.isfinite(g).all() for g in gradients)
    assert not {"backbone.head.weight", "backbone.head.bias"} & names.keys()
    assert any(name.startswith("backbone.blocks.0") for name in names)


def test_the_surrogate_loss_is_zero_for_the_model_on_whole_images(trained):
    _, run = trained
    model = small_vit()
    every = torch.arange(16).expand(6, -1)
    log_p = run.partial_images.logits(model, PIXELS, every).log_softmax(-1).detach()
    expected = run.partial_images.probabilities(model, PIXELS)
    assert float(torch.nn.functional.kl_div(log_p, expected, reduction="batchmean")) == pytest.approx(0, abs=1e-6)


# -- training ----------------------------------------------------------------------------------------------------------


def test_training_writes_weights_and_card_and_leaves_the_model_alone(tmp_path):
    model = small_vit().train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    run = train(tmp_path / "small.safetensors", model)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["small.md", "small.safetensors"]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model.training
    assert all(p.requires_grad for p in model.parameters())
    card = (tmp_path / "small.md").read_text()
    assert run.record.model_hash in card
    assert "| data | noise |" in card
    assert [len(run.record.losses[phase]) for phase in ("surrogate", "explainer")] == [3, 3]
    stored = load_file(tmp_path / "small.safetensors")
    assert {t.dtype for name, t in stored.items() if name != "empty"} == {torch.float16}
    assert not torch.equal(run.explainer.head.values.weight, torch.zeros_like(run.explainer.head.values.weight))


@pytest.mark.parametrize(("phase", "step"), [("surrogate", 3), ("surrogate", 5), ("explainer", 1), ("explainer", 5)])
def test_an_interrupted_run_ends_with_the_weights_of_an_uninterrupted_one(phase, step, trained, tmp_path):
    path = tmp_path / "small.safetensors"

    def stop(at, done, _):
        if (at, done) == (phase, step):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(path, advance=stop)
    assert not path.exists()
    seen = []
    train(path, advance=lambda at, done, _: seen.append((at, done)))
    assert seen[0] != ("surrogate", 1), "it continues where it stopped"
    expected, found = load_file(trained[0]), load_file(path)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert read_record(path)[1].losses == trained[1].record.losses


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = tmp_path / "small.safetensors"

    def stop(*_):
        if (tmp_path / "small.checkpoint").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(path, advance=stop)
    with pytest.raises(WeightsError, match=r"small.checkpoint is a checkpoint of another run \(settings: .*remove"):
        train(path, settings=TrainingSettings(surrogate_steps=7))
    with pytest.raises(WeightsError, match=r"another run \(model_hash"):
        train(path, small_vit(seed=1))
    (tmp_path / "small.checkpoint").write_bytes(b"\0" * 100)
    with pytest.raises(WeightsError, match="cannot be read as safetensors"):
        train(path)


def test_fill_is_trained_for_mean_pooled_models(tmp_path):
    model = small_vit(prefix=0, pool=True)
    run = train(tmp_path / "gap.safetensors", model)
    assert run.partial_images.removal == "fill"
    e = vitrail.explain(model, PIXELS, "vit_shapley", weights=str(tmp_path / "gap.safetensors"), target=1)
    total = model(PIXELS).softmax(-1)[:, 1] - run.empty[1]
    assert torch.allclose(e.grid.sum((1, 2, 3)), total, atol=1e-5)


def test_timm_models_are_trained(tmp_path):
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=24, depth=1, num_heads=2,
                              num_classes=3)  # fmt: skip
    path = tmp_path / "timm.safetensors"
    run = train(path, model.eval())
    assert run.record.tokens_module == "norm"
    found = vitrail.explain(model, PIXELS, f"vit_shapley:weights={path}", target=0)
    assert found.grid.shape == (6, 1, 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "removal", "module"), [
    ("hf", "tokens", "vit.layernorm"),
    ("torchvision", "tokens", "encoder"),
    ("registers", "tokens", "norm"),
    ("mean", "fill", "norm"),
    ("attention pool", "fill", "attn_pool.kv"),
    ("relative positions", "fill", "norm"),
])  # fmt: skip
def test_other_libraries_and_readouts_are_trained(kind, removal, module, tmp_path):
    import timm
    import torchvision
    import transformers

    size = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 3}
    config = transformers.ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
                                    image_size=16, patch_size=4, num_labels=3)  # fmt: skip
    model = {
        "hf": lambda: transformers.ViTForImageClassification(config),
        "torchvision": lambda: torchvision.models.VisionTransformer(16, 4, 1, 2, 16, 32, num_classes=3),
        "registers": lambda: timm.create_model("vit_tiny_patch16_224", reg_tokens=2, **size),
        "mean": lambda: timm.create_model("vit_tiny_patch16_224", global_pool="avg", class_token=False, **size),
        "attention pool": lambda: timm.create_model("vit_base_patch16_siglip_224", **size),
        "relative positions": lambda: timm.create_model("beit_base_patch16_224", **size),
    }[kind]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    path = tmp_path / "other.safetensors"
    run = train(path, model)
    assert (run.partial_images.removal, run.record.tokens_module) == (removal, module)
    found = vitrail.explain(model, PIXELS, "vit_shapley", weights=str(path), target=1)
    with torch.no_grad():
        output = model(PIXELS)
    probability = getattr(output, "logits", output).softmax(-1)[:, 1]
    assert torch.allclose(found.grid.sum((1, 2, 3)), probability - run.empty[1], atol=1e-5)


# -- at use ------------------------------------------------------------------------------------------------------------


def test_values_sum_to_the_probability_minus_that_without_patches(trained):
    path, run = trained
    model = small_vit()
    e = vitrail.explain(model, PIXELS, "vit_shapley", weights=str(path), target=[[0, 1, 2]])
    assert e.signed
    assert torch.allclose(e.grid.sum((2, 3)), model(PIXELS).softmax(-1) - run.empty, atol=1e-5)
    assert torch.allclose(e.grid.sum(1), torch.zeros(6, 4, 4), atol=2e-3), "probabilities of all classes sum to one"


def test_a_group_of_classes_has_the_sum_of_their_values(trained):
    path, _ = trained
    target = [[0, 2, vitrail.ClassGroup([0, 2])]]
    e = vitrail.explain(small_vit(), PIXELS, "vit_shapley", weights=str(path), target=target)
    assert torch.allclose(e.grid[:, 2], e.grid[:, 0] + e.grid[:, 1], atol=1e-6)


def test_other_precisions_of_the_same_weights_are_accepted(trained):
    path, _ = trained
    single = vitrail.explain(small_vit(), PIXELS, "vit_shapley", weights=str(path), target=1).grid
    double = vitrail.explain(small_vit().double(), PIXELS.double(), "vit_shapley", weights=str(path), target=1).grid
    assert double.dtype == torch.float64
    assert torch.allclose(single, double.float(), atol=1e-5)


def test_one_forward_pass_of_the_explainer_for_all_targets(trained):
    path, _ = trained
    done = []
    vitrail.explain(small_vit(), PIXELS, "vit_shapley", weights=str(path), target=[[0, 1, 2]], advance=done.append)
    assert sum(done) == len(PIXELS)


def test_a_batch_is_its_images_one_by_one(trained):
    path, _ = trained
    together = vitrail.explain(small_vit(), PIXELS, "vit_shapley", weights=str(path), target=1)
    apart = vitrail.explain(small_vit(), PIXELS, "vit_shapley", weights=str(path), target=1, batch_size=1)
    assert torch.allclose(together.grid, apart.grid, atol=1e-6)


def test_a_file_that_was_replaced_is_read_again(trained, tmp_path):
    path = tmp_path / "copy.safetensors"
    path.write_bytes(trained[0].read_bytes())
    model = small_vit()
    before = vitrail.explain(model, PIXELS, "vit_shapley", weights=str(path), target=1).grid
    train(path, settings=TrainingSettings(1, 3, 3, 1, 1, explainer_lr=0.01))
    assert not torch.equal(vitrail.explain(model, PIXELS, "vit_shapley", weights=str(path), target=1).grid, before)


# -- refusals ----------------------------------------------------------------------------------------------------------


def refused(error, message, model=None, images=PIXELS, target=1, **options):
    with pytest.raises(error, match=message) as caught:
        vitrail.explain(model or small_vit(), images, "vit_shapley", target=target, **options)
    assert "\n" not in str(caught.value)


def test_models_without_an_explainer_are_refused():
    refused(NotApplicableError, "vit_shapley needs an explainer trained for this PlainViT.*vitrail train-explainer")


def test_explainers_of_other_models_are_refused(trained):
    weights = str(trained[0])
    refused(WeightsError, "was trained for another model: small, weights", small_vit(seed=1), weights=weights)
    refused(WeightsError, "was trained for another model", small_vit(classes=4), weights=weights)


def test_other_image_sizes_are_refused(trained):
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=24, depth=1, num_heads=2,
                              num_classes=3, dynamic_img_size=True)  # fmt: skip
    path = trained[0].with_name("dynamic.safetensors")
    train(path, model.eval())
    larger = torch.randn(1, 3, 32, 32)
    refused(InputError, "images of 16×16 pixels, these have 32×32", model, larger, weights=str(path))


def test_other_class_counts_are_refused(trained, tmp_path):
    tensors, path = load_file(trained[0]), tmp_path / "two.safetensors"
    metadata = read_metadata(trained[0])
    cut = {name: t[:2].contiguous() if "head.values" in name or name == "empty" else t for name, t in tensors.items()}
    save_file(cut, path, metadata={**metadata, "classes": "2"})
    refused(NotApplicableError, "trained for 2 classes, class 2 is none of them", target=2, weights=str(path))


def test_functions_as_targets_are_refused(trained):
    refused(TargetError, "must be a class, not a function", target=lambda o: o[:, 0], weights=str(trained[0]))


def read_metadata(path):
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        return file.metadata()


def test_missing_and_damaged_files_are_refused(trained, tmp_path):
    refused(WeightsError, "nowhere.safetensors is not a file", weights=str(tmp_path / "nowhere.safetensors"))
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(trained[0].read_bytes()[:-50])
    refused(WeightsError, "damaged.safetensors cannot be read as safetensors", weights=str(damaged))
    other = tmp_path / "other.safetensors"
    save_file(small_vit().state_dict(), other)
    refused(WeightsError, "other.safetensors is not an explainer of vit_shapley", weights=str(other))
    part = {name: t for name, t in load_file(trained[0]).items() if "head.values" not in name}
    save_file(part, tmp_path / "part.safetensors", metadata=read_metadata(trained[0]))
    refused(WeightsError, "is incomplete or damaged", weights=str(tmp_path / "part.safetensors"))


@pytest.mark.parametrize(("settings", "message"), [
    ({"batch": 0}, "batch=0 must be at least 1"),
    ({"pairs": 0}, "pairs=0 must be at least 1"),
    ({"explainer_lr": float("nan")}, "explainer_lr=nan must be a positive number"),
])  # fmt: skip
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(OptionError, match=message):
        TrainingSettings(**settings)


def test_bad_training_data_are_refused(tmp_path):
    preprocess = Preprocess((16, 16))
    (tmp_path / "empty").mkdir()
    for data, message in (
        (str(tmp_path / "nowhere"), "no training data at .*pass a folder of images"),
        (str(tmp_path / "empty"), "holds no image files"),
        ("cifar10=nowhere", "nowhere"),
    ):
        with pytest.raises(DataError, match=message):
            open_training_images(data, preprocess)
    with pytest.raises(DataError, match="leaves no image"):
        open_training_images("scenes", preprocess, 0)
    (tmp_path / "broken.png").write_bytes(b"no image")
    broken = open_training_images(str(tmp_path), preprocess)
    loaded = LoadedModel(small_vit(), preprocess, None, "small")
    with pytest.raises(DataError, match=r"training images cannot be read: .*broken.png is not an image"):
        train_explainer(loaded, broken, tmp_path / "a.safetensors", SETTINGS)


def test_models_that_cannot_be_trained_are_refused(tmp_path):
    timm = pytest.importorskip("timm")
    swin = timm.create_model("swin_tiny_patch4_window7_224", img_size=56, embed_dim=24, depths=(2, 2), num_heads=(2, 2))
    images = TrainingImages(2, lambda rows: torch.randn(len(rows), 3, 56, 56), "noise")
    with pytest.raises(NotApplicableError, match="no explainer can be trained for SwinTransformer"):
        train_explainer(LoadedModel(swin.eval(), None, None, "swin"), images, tmp_path / "a.safetensors", SETTINGS)
    with pytest.raises(TargetError, match="single output"):
        train(tmp_path / "a.safetensors", small_vit(classes=1))
    with pytest.raises(vitrail.errors.ModelError, match="3 class names and 4 outputs"):
        train(tmp_path / "a.safetensors", small_vit(classes=4))
    with pytest.raises(OptionError, match=r"end its name in \.safetensors"):
        train(tmp_path / "a.pt")


# -- command line ------------------------------------------------------------------------------------------------------

STEPS = ["--surrogate-steps", "3", "--explainer-steps", "3", "--batch", "2", "--pairs", "1", "--checkpoint", "1"]


def test_command_refuses_bad_input(tmp_path):
    out = tmp_path / "a.safetensors"
    for options, message in (
        (["--data", tmp_path / "nowhere", "--out", out], "no training data at"),
        (["--data", "scenes", "--out", tmp_path / "a.pt"], "must be a safetensors file"),
        (["--data", "scenes", "--out", out, "--batch", "0"], "batch=0 must be at least 1"),
        (["--data", "scenes", "--out", out, "--removal", "zero"], "removal='zero' is not one of"),
    ):
        done = run_command("train-explainer", *options)
        assert done.returncode == 2
        assert message in done.stderr


@pytest.mark.slow
def test_command_trains_on_a_folder_and_explain_uses_the_file(tmp_path):
    (tmp_path / "photos" / "more").mkdir(parents=True)
    for k, name in enumerate(("a.png", "b.jpg", "more/c.png")):
        Image.effect_noise((150, 140), 60 + 20 * k).convert("RGB").save(tmp_path / "photos" / name)
    out = tmp_path / "scenes.safetensors"
    done = run_command("train-explainer", "--data", tmp_path / "photos", "--out", out, *STEPS)
    assert done.returncode == 0, done.stderr
    assert "3 image files of the folder photos" in done.stdout
    image = tmp_path / "photos" / "a.png"
    done = run_command("explain", image, "--method", f"vit_shapley:weights={out}", "--out", tmp_path / "maps")
    assert done.returncode == 0, done.stderr
    manifest = json.loads(next((tmp_path / "maps").rglob("manifest.json")).read_text())
    assert manifest["options"]["weights"] == str(out)


@pytest.mark.slow
def test_killed_command_continues(tmp_path):
    command = [sys.executable, "-m", "vitrail", "train-explainer", "--data", "scenes", "--limit", "4", *STEPS, "--out"]
    whole, killed = (tmp_path / name / "e.safetensors" for name in ("whole", "killed"))
    subprocess.run([*command, str(whole)], check=True, capture_output=True, timeout=300)  # noqa: S603
    process = subprocess.Popen([*command, str(killed)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
    checkpoint = killed.with_suffix(".checkpoint")
    end = time.monotonic() + 240
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    process.kill()
    process.wait()
    subprocess.run([*command, str(killed)], check=True, capture_output=True, timeout=300)  # noqa: S603
    expected, found = load_file(whole), load_file(killed)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert not checkpoint.exists()


# -- the explainer of the package --------------------------------------------------------------------------------------


def test_packaged_explainers_are_small_and_have_a_card():
    found = list(packaged_explainers())
    assert [path.stem for path in found] == ["scenes"]
    for path in found:
        assert path.stat().st_size <= 3_000_000
        tensors, record = read_record(path)
        assert all(torch.isfinite(t).all() for t in tensors.values())
        assert record.model_hash in Path(path).with_suffix(".md").read_text(encoding="utf-8")


def test_scenes_needs_no_weights():
    loaded, scenes = vitrail.load("scenes"), Scenes("test", 12, pairs=True)
    images = scenes.batch(range(12))[0]
    e = vitrail.explain(loaded, images, "vit_shapley", target=[list(scene.classes) for scene in scenes])
    correct = 0
    for maps, scene in zip(e.maps, scenes, strict=True):
        for k in range(2):
            on, other = (maps[k][torch.from_numpy(scene.masks[j].copy())].mean() for j in (k, 1 - k))
            correct += bool(on > other)
    assert correct >= 20  # of 24
