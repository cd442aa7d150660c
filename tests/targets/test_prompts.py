"""Prompts as targets: the model's own similarity to a text, for every model of images and texts."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

import vitrail
from tests.targets.target_models import WORDS, build, pixels, tokenizer
from vitrail.errors import InputError, TargetError
from vitrail.targets import contrast, prompt
from vitrail.testing import tiny_vit

MODELS = {"CLIPModel": "Clip", "SiglipModel": "Siglip", "OwlViTModel": "OwlViT", "BlipForImageTextRetrieval": "Blip"}


def tokens(model, *texts):
    """Tokens of texts as the processors of the models make them."""
    full = {"padding": "max_length", "max_length": 16} if type(model).__name__[:3] in ("Sig", "Owl") else {
        "padding": True
    }  # fmt: skip
    found = tokenizer()(list(texts), return_tensors="pt", **full)
    kept = (
        ("input_ids",) if isinstance(model, type(build("SiglipModel", "Siglip"))) else ("input_ids", "attention_mask")
    )
    return {name: found[name] for name in kept}


@pytest.mark.parametrize("name", MODELS)
def test_prompt_equals_the_function_written_by_hand(name):
    model, images = build(name, MODELS[name]), pixels(3)
    texts = tokens(model, "a dog", "a photo of cat", "a photo of red bird")
    extra = {"use_itm_head": False} if "Blip" in name else {}

    def scores(output):
        return output.itm_score if "Blip" in name else output.logits_per_image

    def by_hand(output):
        found = scores(output)
        return torch.stack([found[:, 0], found[:, 1] - found[:, 2], found[:, 0] - found[:, 1:].logsumexp(1)], 1)

    given = {"processor": tokenizer()}
    targets = [[
        prompt("a dog", **given), prompt("cat", "red bird", template="a photo of {}", **given),
        prompt("a dog", ["a photo of cat", "a photo of red bird"], **given),
    ]]  # fmt: skip
    for method in ("gradient_x_input", "transformer_mm", "occlusion"):
        if method == "transformer_mm" and "Blip" in name:
            continue  # its text encoder attends to images, in another head that is not used here
        found = vitrail.explain(model, images, method, target=targets)
        shared = dict.fromkeys(texts, "shared")
        inputs = {"pixel_values": images, **texts, **extra}
        expected = vitrail.explain(model, inputs, method, target=by_hand, roles=shared)
        torch.testing.assert_close(found.grid, expected.grid, rtol=1e-9, atol=1e-12)
        assert float(found.grid.std()) > 0


def open_clip_model():
    open_clip = pytest.importorskip("open_clip")
    torch.manual_seed(0)
    vision = {"image_size": 64, "layers": 2, "width": 32, "head_width": 8, "patch_size": 16}
    text = {"context_length": 16, "vocab_size": len(WORDS), "width": 32, "heads": 4, "layers": 2}
    return open_clip.CLIP(16, vision, text).double().eval()


def words_tokenizer(texts):
    """A tokenizer as those of open_clip: from texts to a tensor of token numbers."""
    return tokenizer()(texts, padding="max_length", max_length=16, return_tensors="pt")["input_ids"]


def test_open_clip_with_its_tokenizer():
    model, images = open_clip_model(), pixels()
    with torch.no_grad():
        text = model.encode_text(words_tokenizer(["a dog", "a cat"]), normalize=True)
    scale = float(model.logit_scale.detach().exp())

    def by_hand(output):
        found = scale * F.normalize(output[0], dim=-1) @ text.T
        return torch.stack([found[:, 0], found[:, 0] - found[:, 1]], 1)

    row = [[prompt("a dog", processor=words_tokenizer), prompt("a dog", "a cat", processor=words_tokenizer)]]
    for method in ("gradient_x_input", "transformer_mm"):
        found = vitrail.explain(model, images, method, target=row)
        expected = vitrail.explain(model, images, method, target=by_hand)
        torch.testing.assert_close(found.grid, expected.grid, rtol=1e-6, atol=1e-9)
    assert found.label(0, 1) == "a dog against a cat"


@pytest.mark.parametrize(("name", "config"), [
    ("OwlViTForObjectDetection", "OwlViT"), pytest.param("Owlv2ForObjectDetection", "Owlv2", marks=pytest.mark.slow),
])  # fmt: skip
def test_owl_prompt_is_the_score_of_the_leading_query(name, config):
    model, images = build(name, config), pixels(3)
    texts = tokens(model, "a dog", "a cat")
    with torch.no_grad():
        output = model(pixel_values=images, **{n: t.repeat(3, 1) for n, t in texts.items()})
    leading = output.logits[..., 1].argmax(1)
    e = vitrail.explain(model, images, "gradient_x_input",
                        target=[[prompt("a cat", "a dog", processor=tokenizer())]])  # fmt: skip
    assert [row[0].pinned.query for row in e.named_targets] == leading.tolist()
    for i in range(3):
        query = int(leading[i])

        def by_hand(output, query=query):
            return output.logits[:, query, 1] - output.logits[:, query, 0]

        expected = vitrail.explain(model, {"pixel_values": images[i : i + 1], **texts}, "gradient_x_input",
                                   target=by_hand, roles=dict.fromkeys(texts, "shared"))  # fmt: skip
        torch.testing.assert_close(e.grid[i], expected.grid[0], rtol=1e-8, atol=1e-12)


def test_each_image_with_its_own_prompt():
    model, images = build("CLIPModel", "Clip"), pixels(2)
    given = {"processor": tokenizer()}
    own = vitrail.explain(model, images, "gradient_x_input", target=[prompt("a dog", **given), prompt("cat", **given)])
    both = vitrail.explain(model, images, "gradient_x_input",
                           target=[[prompt("a dog", **given), prompt("cat", **given)]])  # fmt: skip
    torch.testing.assert_close(own.grid[:, 0], torch.stack([both.grid[0, 0], both.grid[1, 1]]))
    assert [own.label(i, 0) for i in range(2)] == ["a dog", "cat"]


def test_numbers_of_texts_of_the_call():
    model, images = build("CLIPModel", "Clip"), pixels(3)
    inputs = {"pixel_values": images, **tokens(model, "a dog", "a cat")}
    found = vitrail.explain(model, inputs, "gradient_x_input", target=prompt(1, against=0))
    expected = vitrail.explain(
        model, images, "gradient_x_input", target=prompt("a cat", "a dog", processor=tokenizer())
    )
    torch.testing.assert_close(found.grid, expected.grid)
    assert found.label(0, 0) == "text 1 against text 0"


def test_templates_average_the_scores():
    model, images = build("CLIPModel", "Clip"), pixels()
    one, two = (
        vitrail.explain(model, images, "gradient_x_input", target=prompt("dog", template=t, processor=tokenizer())).grid
        for t in ("a {}", "a photo of {}")
    )
    both = vitrail.explain(model, images, "gradient_x_input",
                           target=prompt("dog", template=["a {}", "a photo of {}"], processor=tokenizer()))  # fmt: skip
    torch.testing.assert_close(both.grid, (one + two) / 2)


def test_others_are_the_other_texts_of_the_call():
    model, images = build("CLIPModel", "Clip"), pixels(1)
    given = {"processor": tokenizer()}
    row = [[contrast(prompt("a dog", **given), "others"), prompt("cat", **given), prompt("red bird", **given)]]
    e = vitrail.explain(model, images, "gradient_x_input", target=row)
    assert sorted(one.text for one in e.named_targets[0][0].pinned.against) == ["cat", "red bird"]


def test_the_similarity_depends_on_one_planted_patch():
    model, images = copy.deepcopy(build("CLIPModel", "Clip")), pixels(2)
    weight = model.vision_model.embeddings.patch_embedding.weight
    with torch.no_grad():
        weight.zero_()  # patches are read where their first pixel is not zero
        weight[:, 0, 0, 0] = torch.randn(len(weight), dtype=weight.dtype, generator=torch.Generator().manual_seed(0))
    images[:, 0, ::16, ::16] = 0
    images[0, 0, 16, 32], images[1, 0, 48, 0] = 3.0, 3.0
    e = vitrail.explain(model, images, "gradient_x_input", target=prompt("a dog", processor=tokenizer()))
    patches = e.maps[:, 0].abs().unflatten(1, (4, 16)).unflatten(3, (4, 16)).amax((2, 4)).flatten(1)
    assert patches.argmax(1).tolist() == [1 * 4 + 2, 3 * 4 + 0]


@pytest.mark.parametrize(("arguments", "message"), [
    (("",), "the prompt is empty"),
    ((True,), "is no prompt"),
    ((-1,), "counted from 0"),
])  # fmt: skip
def test_prompts_that_are_none_are_refused(arguments, message):
    with pytest.raises(TargetError, match=message):
        prompt(*arguments)


def test_template_without_a_place_is_refused():
    with pytest.raises(TargetError, match="has no place for the text"):
        prompt("a dog", template="a photo")


def test_a_prompt_for_a_model_without_text_is_refused():
    with pytest.raises(TargetError, match="reads no texts: a prompt is a target of models of images and texts"):
        vitrail.explain(tiny_vit(), torch.zeros(1, 3, 32, 32), "rollout", target=prompt("a dog"))
    with pytest.raises(TargetError, match="holds no similarity of images to texts"):
        vitrail.explain(tiny_vit(), torch.zeros(1, 3, 32, 32), "rollout", target=prompt(0))


def test_a_missing_processor_is_named():
    with pytest.raises(InputError, match="pass processor= to the target"):
        vitrail.explain(build("CLIPModel", "Clip"), pixels(1), "rollout", target=prompt("a dog"))


def test_texts_in_the_inputs_and_in_the_target_are_refused():
    model = build("CLIPModel", "Clip")
    inputs = {"pixel_values": pixels(1), **tokens(model, "a dog")}
    with pytest.raises(TargetError, match="the inputs have texts already"):
        vitrail.explain(model, inputs, "rollout", target=prompt("a cat", processor=tokenizer()))
    with pytest.raises(TargetError, match="text 4 does not exist: the call has 1 texts"):
        vitrail.explain(model, inputs, "rollout", target=prompt(4))


def test_the_embedded_model_reads_captions():
    """`scenes-clip` needs no processor: the map lies on the named object, and its name has the highest score."""
    from PIL import Image

    from vitrail.data import Scenes, encode_captions

    scene = Scenes("test", pairs=True, coloured=True)[3]
    loaded, image = vitrail.load("scenes-clip"), Image.fromarray(scene.image)
    first, second = scene.names
    target = prompt(f"a {first}", against=f"a {second}", template="a picture of {}")
    named = vitrail.explain(loaded, image, "attnlrp", target=target)
    texts = torch.from_numpy(encode_captions([f"a picture of a {name}" for name in (first, second)]))
    pixels = loaded.preprocess(image)[None]
    by_hand = vitrail.explain(
        loaded.module,
        {"input_ids": texts, "pixel_values": pixels},
        "attnlrp",
        target=lambda output: output["logits_per_image"][:, 0] - output["logits_per_image"][:, 1],
    )
    assert torch.allclose(named.grid, by_hand.grid, atol=1e-5 * float(by_hand.grid.abs().max()))
    words = named.text[0]
    assert words.words[int(words.scores[0].argmax())] == first
    with pytest.raises(InputError, match="'zebra' in 'a zebra' is not a word of the captions"):
        vitrail.explain(loaded, image, target=prompt("a zebra"))
