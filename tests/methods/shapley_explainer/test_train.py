"""Training of explainers: files, interruption, models of other libraries, refusals."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

import vitrail
from tests.methods.shapley_explainer.small_explainer import PIXELS, SETTINGS, small_vit, train
from vitrail.errors import DataError, NotApplicableError, OptionError, TargetError, WeightsError
from vitrail.methods.shapley_explainer import TrainingImages, TrainingSettings, open_training_images, train_explainer
from vitrail.methods.shapley_explainer.weights import read_record
from vitrail.models import LoadedModel, Preprocess


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


def test_weights_do_not_depend_on_the_state_of_onednn(trained, tmp_path):
    """On some CPUs one bfloat16 product disables oneDNN for the rest of the process, and other kernels are used."""
    used = []
    torch.backends.mkldnn.set_flags(False)
    try:
        train(tmp_path / "small.safetensors", advance=lambda *_: used.append(torch.backends.mkldnn.enabled))
        assert not torch.backends.mkldnn.enabled, "the user's setting is restored"
    finally:
        torch.backends.mkldnn.set_flags(True)
    assert all(used)
    expected, found = load_file(trained[0]), load_file(tmp_path / "small.safetensors")
    assert all(torch.equal(expected[name], found[name]) for name in expected)


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
