"""`vitrail.explain` and `Explanation`: forms of inputs and targets, results, files."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import vitrail
from vitrail.errors import MissingExtraError, OutputError, require
from vitrail.testing import tiny_vit

NAMES = ("ant, emmet", "bee", "cat", "dog", "eel")
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(4))


def loaded(**options):
    prepare = vitrail.Preprocess((32, 32), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), crop=1.0)
    return vitrail.LoadedModel(tiny_vit(**options), prepare, NAMES, "tiny")


def mm(target, model=None, inputs=IMAGES):
    return vitrail.explain(model or loaded(), inputs, "transformer_mm", target=target)


def test_rows_of_a_clip_model_are_named_by_their_texts(tmp_path):
    texts = ["a photo of a dog (small)", "a cat"]
    target = vitrail.similarity(torch.randn(2, 5, generator=torch.Generator().manual_seed(0)), labels=texts)
    e = vitrail.explain(tiny_vit(), IMAGES, "transformer_mm", target=target)
    assert [e.label(1, k) for k in range(2)] == texts
    assert e.manifest()["target_names"] == [texts, texts]
    e.save(tmp_path)
    assert (tmp_path / "overlay-001-1-a-cat.png").is_file()
    check = e.check(0, 0, tests=["removal"])
    assert check.label == texts[0]
    assert any(f"patches {verb} {texts[0]} " in str(check) for verb in ("lowers", "raises", "leaves"))
    assert texts[1] in e._repr_html_()
    smooth = vitrail.explain(tiny_vit(), IMAGES, "transformer_mm", target=target, smooth="flips", batch_size=1)
    assert smooth.label(0, 1) == "a cat"
    bare = vitrail.explain(tiny_vit(), IMAGES, "transformer_mm", target=lambda y: y[:, :2])
    assert bare.label(0, 1) == "target 1"
    with pytest.raises(vitrail.errors.TargetError, match="1 labels for 2 text embeddings"):
        vitrail.similarity(torch.eye(2), labels=["a dog"])


@pytest.mark.slow
def test_texts_are_targets_of_an_open_clip_model_loaded_by_name():
    pytest.importorskip("open_clip")
    loaded_clip = vitrail.load("open_clip:ViT-B-32", pretrained=False)
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    try:
        e = vitrail.explain(loaded_clip, images, "transformer_mm:last", target=[["a dog", "a cat"]])
    except OSError as error:  # the tokenizer's vocabulary
        pytest.skip(f"the tokenizer is not available: {error}")
    assert (e.label(0, 0), e.label(0, 1)) == ("a dog", "a cat")
    one = vitrail.explain(loaded_clip, images, "transformer_mm:last", target="a cat")
    assert torch.allclose(one.grid[:, 0], e.grid[:, 1])
    for wrong in (None, 3, [["a dog", 1]]):
        with pytest.raises(vitrail.errors.TargetError, match="pass a text"):
            vitrail.explain(loaded_clip, images, target=wrong)
    with pytest.raises(vitrail.errors.ModelError, match="loaded by name"):
        vitrail.explain(loaded_clip.module, images, target="a dog")


def test_targets_in_every_form():
    model = loaded()
    predicted = model.module(IMAGES).argmax(-1)
    assert mm(None).targets.tolist() == predicted[:, None].tolist()
    assert mm(1).targets.tolist() == mm("bee").targets.tolist() == [[1], [1]]
    assert mm("emmet").targets.tolist() == [[0], [0]]
    assert mm([3, "cat"]).targets.tolist() == mm(torch.tensor([3, 2])).targets.tolist() == [[3], [2]]
    assert mm([[1, 3]]).targets.tolist() == [[1, 3], [1, 3]]
    assert mm(np.array([4, 0]).tolist()).targets.tolist() == [[4], [0]]
    top = mm("top3").targets
    assert top.shape == (2, 3)
    assert top[:, 0].tolist() == predicted.tolist()


@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
def test_function_target_equals_the_class_it_selects():
    for name in ("transformer_mm", "gradtoken", "gradcam"):
        by_class = vitrail.explain(loaded(), IMAGES, name, target=[[2, 4]])
        by_function = vitrail.explain(loaded(), IMAGES, name, target=lambda output: output[:, [2, 4]])
        assert by_function.targets is None
        assert torch.equal(by_class.grid, by_function.grid)
    assert by_function.label(0, 1) == "target 1"


@pytest.mark.parametrize("wrap", [
    lambda z: (z, None), lambda z: {"logits": z}, lambda z: [None, z], lambda z: SimpleNamespace(logits=z),
    lambda z: {"scores": z},
])  # fmt: skip
def test_outputs_in_every_form(wrap):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tiny_vit()

        def forward(self, images):
            return wrap(self.inner(images))

    assert torch.equal(mm(2, Wrapped()).grid, mm(2).grid)


def test_hugging_face_outputs_without_logits_need_a_function_target():
    import transformers

    config = transformers.ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                                    image_size=32, patch_size=8)  # fmt: skip
    model = transformers.ViTModel(config, add_pooling_layer=False).eval()
    with pytest.raises(vitrail.errors.TargetError, match=r"last_hidden_state \(2, 17, 32\).*target=function"):
        mm(1, model)
    one_patch = mm(lambda output: output.last_hidden_state[:, 5, 0], model)
    assert "token 5" in one_patch.structure["readout"]


@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
def test_single_output_uses_a_sigmoid():
    """The probability of a regression or binary head is a sigmoid, not a softmax over one class."""
    model = tiny_vit(classes=1)
    found = vitrail.explain(model, IMAGES, methods=["vtranm", "vtranm:score=logit"])
    assert found["vtranm"].targets.tolist() == [[0], [0]]
    p = torch.sigmoid(model(IMAGES))[:, :, None, None]
    assert not found["vtranm"].constant.any()
    assert torch.allclose(found["vtranm"].probabilities, p[:, :, 0, 0])


def test_inputs_in_every_form(tmp_path):
    pixels = (np.random.default_rng(0).random((32, 32, 3)) * 255).astype(np.uint8)
    image = Image.fromarray(pixels)
    image.save(tmp_path / "a.png")
    tensor = torch.from_numpy(pixels).permute(2, 0, 1).float() / 255 * 2 - 1
    expected = mm(1, inputs=tensor[None])
    path = tmp_path / "a.png"
    for given in (tensor, image, str(path), path, [image], [path], [tensor], {"images": tensor[None]}):
        found = mm(1, inputs=given)
        assert torch.allclose(found.maps, expected.maps, atol=1e-5)
        assert np.abs(found.rgb_images[0].astype(int) - pixels).max() <= 1


@pytest.mark.slow
def test_preprocessing_equals_timms(tmp_path):
    import timm
    from timm.data import create_transform, resolve_model_data_config

    rng = np.random.default_rng(1)
    for size in ((300, 200), (200, 333), (97, 512), (256, 256)):
        image = Image.fromarray((rng.random((size[1], size[0], 3)) * 255).astype(np.uint8))
        for name in ("vit_tiny_patch16_224", "deit_tiny_patch16_224", "beit_base_patch16_224"):
            model = timm.create_model(name, depth=1)
            theirs = create_transform(**resolve_model_data_config(model), is_training=False)(image)
            ours = vitrail.models.describe(model).preprocess(image)
            assert torch.allclose(ours, theirs, atol=1e-6), (size, name)


def test_several_methods_share_one_pass():
    calls = []
    model = loaded()
    model.module.register_forward_hook(lambda *_: calls.append(1))
    names = ["raw_attention", "rollout", "transformer_mm", "vtranm"]
    together = vitrail.explain(model, IMAGES, methods=names, target=2)
    assert len(calls) == 5, "four passes for the structure and its checks, one to explain"
    vitrail.explain(model, IMAGES, methods=names, target=2)
    assert len(calls) == 6, "the structure is cached"
    for name in names:
        assert torch.allclose(together[name].grid, vitrail.explain(model, IMAGES, name, target=2).grid, rtol=1e-5)
    same = vitrail.explain(model, IMAGES, methods={"vtranm": {"score": "logit"}}, target=2)
    assert same["vtranm"].options["score"] == "logit"
    assert list(together) == names


def test_batch_size_does_not_change_results():
    images = torch.randn(5, 3, 32, 32)
    whole = mm([0, 1, 2, 3, 4], inputs=images)
    pieces = vitrail.explain(loaded(), images, "transformer_mm", target=[0, 1, 2, 3, 4], batch_size=2)
    assert torch.allclose(whole.grid, pieces.grid, atol=1e-7)
    assert torch.equal(whole.targets, pieces.targets)
    assert pieces.rgb_images.shape == (5, 32, 32, 3)
    assert vitrail.explain(loaded(), images, target="top2", batch_size=3).maps.shape[:2] == (5, 2)


def test_structure_is_read_again_when_the_model_changes():
    model = tiny_vit()
    assert mm(1, model).logits.shape == (2, 5)
    model.head = nn.Linear(32, 9)
    assert mm(8, model).logits.shape == (2, 9)
    assert vitrail.explain(tiny_vit(size=48), torch.zeros(1, 3, 48, 48), "rollout").grid.shape[2:] == (6, 6)


def test_layout_can_be_passed():
    given = mm(1, tiny_vit(), IMAGES).grid
    layout = vitrail.Layout(prefix=1, grid=(4, 4), readout="cls")
    assert torch.equal(vitrail.explain(tiny_vit(), IMAGES, "transformer_mm", target=1, layout=layout).grid, given)
    mean = vitrail.Layout(readout="mean")
    assert not torch.equal(vitrail.explain(tiny_vit(), IMAGES, "rollout", layout=mean).grid,
                           vitrail.explain(tiny_vit(), IMAGES, "rollout").grid)  # fmt: skip


def test_patch_embedding_without_a_convolution():
    """A patch embedding by unfolding: the grid is inferred from the shape of the image."""

    class Unfolding(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.line = tiny_vit(), nn.Linear(192, 32)

        def forward(self, images):
            x = self.line(nn.functional.unfold(images, 8, stride=8).transpose(1, 2))
            x = torch.cat([self.inner.prefix.expand(len(x), -1, -1), x], 1)
            return self.inner.head(self.inner.norm(self.inner.blocks(x))[:, 0])

    found = mm(1, Unfolding(), torch.randn(1, 3, 16, 64))
    assert found.grid.shape[2:] == (2, 8)


def test_save_writes_overlays_maps_and_manifest(tmp_path):
    found = mm([[1, 3], [0, 2]])
    found.save(tmp_path / "deep" / "er")
    names = sorted(p.name for p in (tmp_path / "deep" / "er").iterdir())
    assert names == ["manifest.json", "maps.safetensors", "overlay-000-0-bee.png", "overlay-000-1-dog.png",
                     "overlay-001-0-ant.png", "overlay-001-1-cat.png"]  # fmt: skip
    tensors = load_file(tmp_path / "deep" / "er" / "maps.safetensors")
    assert torch.equal(tensors["maps"], found.maps)
    assert torch.equal(tensors["targets"], found.targets)
    manifest = json.loads((tmp_path / "deep" / "er" / "manifest.json").read_text())
    assert manifest["targets"] == [[1, 3], [0, 2]]
    assert manifest["options"] == {"start": 0, "score": "logit", "at": "attention"}
    assert np.allclose(manifest["probabilities"], found.probabilities.tolist())
    assert {"python", "torch", "numpy"} <= set(manifest["versions"])
    assert manifest["model"] == "tiny"
    assert Image.open(tmp_path / "deep" / "er" / "overlay-000-0-bee.png").size == (32, 32)


def test_failed_save_leaves_complete_files(tmp_path, monkeypatch):
    found = mm(1)
    folder = found.save(tmp_path / "out")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}

    def full(self, path, **options):
        path.write_bytes(b"incomplete")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(OutputError, match="No space left"):
        mm(2).save(folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        found.save(tmp_path / "file")


def test_figures():
    found = vitrail.explain(loaded(), IMAGES, methods=["rollout", "vtranm:af", "gradtoken"], target=[[1, 3]])
    figure = found.figure()
    assert len(figure.axes) == 4 * 4 + 1
    titles = [axes.get_title(loc=side) for axes in figure.axes for side in ("left", "center")]
    assert any(title.startswith("bee (") and "%" in title for title in titles)
    assert "VTranM (TokenTM)\naf" in titles
    assert found["rollout"].figure(raw=True).axes
    assert "Explanations(Explanation(rollout" in repr(found)


def test_gallery_splits_methods_into_blocks():
    from vitrail.viz.figure import gallery

    names = ["raw_attention", "rollout", "rollout:chefer", "rollout:per_head", "random"]
    found = vitrail.explain(loaded(), IMAGES, methods=names, target=1)
    drawn = gallery(found, blocks=2)
    assert len(drawn.axes) == 2 * 2 + 5 * 2, "the inputs of each block, and a map per method and image"
    assert [text.get_text() for text in drawn.texts] == [
        "Raw attention", "Rollout", "Rollout chefer", "Rollout per_head", "Random",
    ]  # fmt: skip
    assert len(gallery(found).axes) >= 2 + 5 * 2


def test_constant_maps_are_marked_in_figures():
    model = tiny_vit()
    nn.init.zeros_(model.head.weight)
    with pytest.warns(vitrail.errors.GuessWarning), pytest.warns(vitrail.errors.MapWarning):
        found = vitrail.explain(model, IMAGES, "transformer_mm", target=1)
    assert found.constant.all()
    assert sum(text.get_text() == "no relevance" for axes in found.figure().axes for text in axes.texts) == 2


@pytest.mark.slow
def test_import_is_light():
    heavy = {"timm", "transformers", "torchvision", "matplotlib", "PIL", "open_clip", "pandas", "typer", "safetensors"}
    later = {"vitrail.scores", "vitrail.bench", "vitrail.web", "vitrail.cli"}
    code = f"import sys, vitrail; print(sorted({heavy | later} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout  # noqa: S603
    assert out.strip() == "[]"


def test_missing_extra_names_what_to_install(monkeypatch):
    for name, extra in (("timm", "timm"), ("matplotlib", "plot"), ("open_clip", "clip"), ("transformers", "hf")):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingExtraError, match=rf'pip install "vitrail\[{extra}\]"'):
            require(name, extra, "run this")
    with pytest.raises(MissingExtraError, match=r"vitrail\[plot\]"):
        mm(1).figure()
    with pytest.raises(MissingExtraError, match=r"vitrail\[timm\]"):
        vitrail.load("timm:vit_tiny_patch16_224")
