"""Embedded models: files, accuracy, and class-specific maps as stated in the model cards."""

from __future__ import annotations

import json
import os
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from vitrail.data import CIFAR10, SCENE_CLASSES, Scenes
from vitrail.data.recall import draw_recall, recall_tokenizer, replace_source
from vitrail.errors import OptionError, WeightsError
from vitrail.models import EMBEDDED_MODELS, PlainViT
from vitrail.models.plain_clip import PlainCLIP
from vitrail.models.plain_decoder import PlainDecoder
from vitrail.models.plain_detector import PlainDetector
from vitrail.models.plain_segmenter import PlainSegmenter
from vitrail.models.plain_sequences import PlainSpectrogramViT, PlainVideoViT
from vitrail.models.plain_vlm import PlainVLM

COUNT = 150
OTHER_KINDS = {
    "scenes-clip": PlainCLIP,
    "scenes-detr": PlainDetector,
    "scenes-seg": PlainSegmenter,
    "scenes-video": PlainVideoViT,
    "tones": PlainSpectrogramViT,
    "scenes-vlm": PlainVLM,
    "lm-recall": PlainDecoder,
}
SCENE_MODELS = ("scenes", "scenes-tagged")
ASSETS = Path(os.environ.get("VITRAIL_ASSETS", Path(__file__).resolve().parents[3] / "shared" / "assets"))


def rendered(*args, **options):
    """Scenes as a list, rendered once, and the images of all of them."""
    scenes = list(Scenes(*args, **options))
    images = torch.from_numpy(np.stack([scene.image for scene in scenes])).permute(0, 3, 1, 2)
    return scenes, images.float() / 127.5 - 1


def predict(loaded, images):
    with torch.no_grad():
        return loaded.module(images)


def file_size(name):
    return len(files("vitrail.models").joinpath("weights", f"{name}.safetensors").read_bytes())


@pytest.mark.parametrize("name", EMBEDDED_MODELS)
def test_weights_are_in_the_package(name):
    loaded = vitrail.load(name)
    assert type(loaded.module) is OTHER_KINDS.get(name, PlainViT)
    assert not loaded.module.training
    assert sum(p.numel() for p in loaded.module.parameters()) <= 4_000_000


@pytest.mark.parametrize("name", SCENE_MODELS)
def test_scene_models_have_classes_and_size(name):
    loaded = vitrail.load(name)
    assert loaded.classes == SCENE_CLASSES
    assert loaded.preprocess.size == (128, 128)


def test_weight_files_are_small():
    assert all(file_size(name) <= 3_000_000 for name in OTHER_KINDS)
    shapley = files("vitrail.methods.shapley_explainer").joinpath("trained", "scenes.safetensors").read_bytes()
    # 25 MB were enough before there were models of language, which have 1.9 MB of their own.
    assert sum(map(file_size, EMBEDDED_MODELS)) + len(shapley) <= 26_900_000
    assert file_size("lm-recall") <= 700_000
    assert sum(file_size(name) for name in SCENE_MODELS) <= 12_000_000
    assert file_size("cifar10") <= 8_000_000
    assert file_size("cifar10-distilled") <= 8_000_000


def test_cifar10_has_classes_and_size():
    loaded = vitrail.load("cifar10")
    assert loaded.preprocess.size == (32, 32)
    assert loaded.classes[0] == "airplane"
    assert len(loaded.classes) == 10
    found = vitrail.explain(loaded, torch.randn(1, 3, 32, 32), "rollout")
    assert found.structure["tokens"] == "65 = 1 prefix + 8×8 patches"
    assert found.structure["readout"] == "the CLS token"


def test_distilled_cifar10_reads_two_tokens():
    loaded = vitrail.load("cifar10-distilled")
    found = vitrail.explain(loaded, torch.randn(1, 3, 32, 32), "rollout")
    assert found.structure["tokens"] == "66 = 2 prefix + 8×8 patches"
    assert "distil" in found.structure["readout"]


@pytest.fixture(scope="module")
def cifar10_samples():
    """Every twentieth image; the archive is unpacked once."""
    data = CIFAR10(ASSETS / "cifar10" / "cifar10_jpeg.tar.xz", split="test")
    return [data[i] for i in range(0, len(data), 20)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "cifar10-distilled"])
@pytest.mark.skipif(not (ASSETS / "cifar10").is_dir(), reason="CIFAR-10 is not in VITRAIL_ASSETS")
def test_cifar10_accuracy(name, cifar10_samples):
    loaded, samples = vitrail.load(name), cifar10_samples
    with torch.no_grad():
        logits = loaded.module(torch.stack([loaded.preprocess(sample.image) for sample in samples]))
    right = logits.argmax(1) == torch.tensor([sample.label for sample in samples])
    assert float(right.float().mean()) >= 0.91


@pytest.mark.slow
def test_accuracy():
    loaded = vitrail.load("scenes")
    one, images = rendered("test", COUNT, objects=1)
    right = predict(loaded, images).argmax(1) == torch.tensor([scene.classes[0] for scene in one])
    assert float(right.float().mean()) >= 0.97
    pairs, images = rendered("test", COUNT, pairs=True)
    top = predict(loaded, images).topk(2).indices.sort(-1).values
    both = top == torch.tensor([sorted(scene.classes) for scene in pairs])
    assert float(both.all(-1).float().mean()) >= 0.92


@pytest.mark.slow
def test_scenes_tagged_uses_the_tag():
    loaded = vitrail.load("scenes-tagged")
    accuracy = {}
    for tag in (None, False):
        scenes, images = rendered("test", COUNT, objects=1, tagged=True, tag=tag)
        labels = torch.tensor([scene.classes[0] for scene in scenes])
        accuracy[tag] = float((predict(loaded, images).argmax(1) == labels).float().mean())
    assert accuracy[None] - accuracy[False] >= 0.3


@pytest.mark.slow
def test_readout_is_found_on_trained_weights():
    images = Scenes("test", 2).batch(range(2))[0]
    single = [m.name for m in vitrail.methods().values() if m.family in ("attention", "gradient", "relevance")]
    found = vitrail.explain(vitrail.load("scenes"), images, methods=single, target="top1")
    assert found["rollout"].structure["readout"] == "the CLS token"
    assert not any(e.constant.all() for e in found.values())


def mean_relevance(relevance, scene, label):
    """Mean relevance per pixel on a class and on the rest of the image."""
    mask = torch.from_numpy(scene.class_mask(label).copy())
    return relevance[mask].mean(), relevance[~mask].mean()


#: Methods whose maps are checked against the masks; they are computed together.
LOCALISED = ["transformer_mm", "vtranm"]


@pytest.fixture(scope="module")
def single_objects():
    scenes, images = rendered("test", 40, objects=1)
    targets = [scene.classes[0] for scene in scenes]
    return scenes, vitrail.explain(vitrail.load("scenes"), images, methods=LOCALISED, target=targets)


@pytest.fixture(scope="module")
def object_pairs():
    scenes, images = rendered("test", 40, pairs=True)
    targets = [list(scene.classes) for scene in scenes]
    return scenes, vitrail.explain(vitrail.load("scenes"), images, methods=LOCALISED, target=targets)


@pytest.mark.slow
@pytest.mark.parametrize("method", LOCALISED)
def test_relevance_is_on_the_object(method, single_objects):
    """Relevance per pixel on the object against the rest of the image, for each scene."""
    scenes, explanations = single_objects
    better = 0
    for relevance, scene in zip(explanations[method].maps[:, 0], scenes, strict=True):
        on, off = mean_relevance(relevance, scene, scene.classes[0])
        better += bool(on > 3 * off)
    assert better >= 36


@pytest.mark.slow
@pytest.mark.parametrize("method", LOCALISED)
def test_relevance_is_on_the_target_object_of_a_pair(method, object_pairs):
    """Relevance per pixel on the target object against the other one, for both objects of a pair."""
    scenes, explanations = object_pairs
    correct = 0
    for pair, scene in zip(explanations[method].maps, scenes, strict=True):
        for relevance, target, other in zip(pair, scene.classes, reversed(scene.classes), strict=True):
            correct += bool(mean_relevance(relevance, scene, target)[0] > mean_relevance(relevance, scene, other)[0])
    assert correct >= 60  # of 80


def test_embedded_model_takes_another_file_and_a_distilled_model_has_two_heads(tmp_path):
    from safetensors.torch import save_file

    architecture = {"size": 32, "patch": 8, "width": 48, "depth": 2, "heads": 2, "classes": 10, "prefix": 2,
                    "distilled": True}  # fmt: skip
    state = PlainViT(**architecture).state_dict()
    metadata = {
        "architecture": json.dumps(architecture), "classes": json.dumps(list("abcdefghij")),
        "preprocess": json.dumps({"size": [32, 32], "mean": [0.5] * 3, "std": [0.5] * 3}),
    }  # fmt: skip
    save_file(state, tmp_path / "two.safetensors", metadata)
    found = vitrail.load("cifar10", tmp_path / "two.safetensors")
    assert found.classes == tuple("abcdefghij")
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    x = found.module.embed(image).flatten(2).transpose(1, 2)
    x = found.module.norm(found.module.blocks(torch.cat([found.module.prefix, x], 1) + found.module.position))
    expected = (found.module.head(x[:, 0]) + found.module.head_dist(x[:, 1])) / 2
    with torch.no_grad():
        assert torch.equal(found.module(image), expected.detach())
    assert (
        vitrail.explain(found, image, "gradtoken").structure["readout"] == "the mean of the CLS and distillation tokens"
    )
    save_file(state, tmp_path / "no-metadata.safetensors")
    with pytest.raises(WeightsError, match="not a file of an embedded model"):
        vitrail.load("cifar10", tmp_path / "no-metadata.safetensors")
    with pytest.raises(WeightsError, match="does not exist"):
        vitrail.load("cifar10", tmp_path / "missing.safetensors")
    with pytest.raises(OptionError, match="prefix=2"):
        PlainViT(distilled=True)


def test_frames_of_a_clip_are_those_the_video_model_was_trained_on(tmp_path):
    """The map of a .gif of a rendered clip is that of the frames in the file, and both movements are recognised."""
    import numpy as np
    from PIL import Image, ImageSequence

    from vitrail.data import render_motion

    clip = render_motion(0, 0, pairs=True, split="test")
    moved = {m for m in clip.movements if m is not None}
    frames = [Image.fromarray(frame) for frame in clip.frames]
    file = tmp_path / "clip.gif"
    frames[0].save(file, save_all=True, append_images=frames[1:], duration=125)
    with Image.open(file) as opened:
        read = np.stack([np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(opened)])
    loaded = vitrail.load("scenes-video")
    tensor = torch.from_numpy(read).permute(0, 3, 1, 2)[None].float() / 127.5 - 1
    by_tensor = vitrail.explain(loaded, tensor, "attnlrp", target=min(moved))
    by_file = vitrail.explain(loaded, str(file), "attnlrp", target=min(moved))
    assert set(by_file.logits[0].topk(2).indices.tolist()) == moved
    assert torch.allclose(by_file.grid, by_tensor.grid, atol=1e-4 * float(by_tensor.grid.abs().max()))


def test_the_language_model_answers_by_the_source():
    """It answers held-out prompts, and the answer follows the source where that is replaced."""
    loaded, tokenizer = vitrail.load("lm-recall"), recall_tokenizer()
    assert (loaded.preprocess, loaded.classes) == (None, None)
    prompts = [prompt for index in range(60) for prompt in draw_recall(0, index, split="test")]
    for asked in (prompts, [replace_source(prompt) for prompt in prompts]):
        inputs = tokenizer([prompt.text for prompt in asked], padding=True, return_tensors="pt")
        with torch.no_grad():
            found = loaded.module(**inputs)["logits"][:, -1].argmax(-1)
        right = [tokenizer.decode(number) == prompt.answer for number, prompt in zip(found, asked, strict=True)]
        assert sum(right) / len(right) >= 0.99
