"""The text side of prompts: relevance of their words for the image."""

from __future__ import annotations

import copy
import json

import pytest
import torch

import vitrail
from tests.targets.target_models import WORDS, build, pixels, tokenizer
from tests.targets.test_prompts import open_clip_model, words_tokenizer
from vitrail.errors import InputError, NotApplicableError
from vitrail.targets import contrast, prompt

TEXT = "a photo of red dog"


@pytest.mark.parametrize(("name", "config"), [
    ("CLIPModel", "Clip"), ("SiglipModel", "Siglip"), ("OwlViTModel", "OwlViT"),
])  # fmt: skip
def test_words_have_the_gradient_of_the_models_own_score(name, config):
    model, images = build(name, config), pixels(2)
    e = vitrail.explain(model, images, "gradient_x_input", target=prompt(TEXT, processor=tokenizer()))
    full = {} if name == "CLIPModel" else {"padding": "max_length", "max_length": 16}
    tokens = tokenizer()([TEXT], return_tensors="pt", **full)
    kept = ("input_ids",) if name == "SiglipModel" else ("input_ids", "attention_mask")
    layer = model.text_model.embeddings.token_embedding
    vectors = []
    handle = layer.register_forward_hook(lambda _, __, out: vectors.append(out) or out.requires_grad_())
    try:
        output = model(pixel_values=images, **{k: tokens[k] for k in kept})
    finally:
        handle.remove()
    for b in range(2):
        (gradient,) = torch.autograd.grad(output.logits_per_image[b, 0], vectors[0], retain_graph=True)
        expected = (gradient * vectors[0]).sum(-1)[0, 1:6]
        assert e.text[b].words == ("a", "photo", "of", "red", "dog")
        torch.testing.assert_close(e.text[b].scores[0], expected.detach(), rtol=1e-6, atol=1e-9)


def test_a_planted_word_leads():
    model, images = copy.deepcopy(build("CLIPModel", "Clip")), pixels(2)
    with torch.no_grad():
        model.text_model.embeddings.token_embedding.weight.mul_(1e-3)
        model.text_model.embeddings.token_embedding.weight[WORDS.index("red")] *= 1e4
    for method in ("gradient_x_input", "integrated_gradients"):
        e = vitrail.explain(model, images, method, target=prompt(TEXT, processor=tokenizer()))
        for one in e.text:
            assert one.words[int(one.scores[0].abs().argmax())] == "red"


def test_both_sides_of_several_prompts():
    given = {"processor": tokenizer()}
    row = [[prompt(TEXT, **given), contrast(prompt("red bird", **given), prompt("a cat", **given))]]
    e = vitrail.explain(build("CLIPModel", "Clip"), pixels(2), "transformer_mm", target=row)
    assert e.image is e
    assert len(e.text) == 4
    assert [one.text for one in e.text] == [TEXT, "red bird", TEXT, "red bird"]
    single = vitrail.explain(build("CLIPModel", "Clip"), pixels(2)[1:], "transformer_mm", target=row[0][:1])
    torch.testing.assert_close(single.text[0].scores, e.text[2].scores)


def test_numbers_of_tokens_without_a_tokenizer():
    tokens = tokenizer()(["a dog", "red cat sat"], padding=True, return_tensors="pt")
    inputs = {"pixel_values": pixels(2), "input_ids": tokens["input_ids"], "attention_mask": tokens["attention_mask"]}
    model = build("CLIPModel", "Clip")
    e = vitrail.explain(model, inputs, "gradient_x_input", target=prompt(1))
    named = vitrail.explain(model, pixels(2), "gradient_x_input", target=prompt("red cat sat", processor=tokenizer()))
    assert e.text[0].words[1:4] == tuple(str(WORDS.index(word)) for word in ("red", "cat", "sat"))
    torch.testing.assert_close(e.text[0].scores[:, 1:4], named.text[0].scores)


def test_words_of_open_clip():
    model = open_clip_model()
    e = vitrail.explain(model, pixels(1), "gradient_x_input", target=prompt("red dog", processor=words_tokenizer))
    ids = words_tokenizer(["red dog"])
    vectors = []
    handle = model.token_embedding.register_forward_hook(lambda _, __, out: vectors.append(out) or out.requires_grad_())
    try:
        image, text, scale = model(pixels(1), ids)[:3]
    finally:
        handle.remove()
    (gradient,) = torch.autograd.grad(scale * (image * text).sum(), vectors[0])
    expected = (gradient * vectors[0]).sum(-1)[0, :4].detach()
    torch.testing.assert_close(e.text[0].token_scores[0, 1:3], expected[1:3], rtol=1e-5, atol=1e-7)


def test_words_of_a_detector_for_its_query():
    e = vitrail.explain(build("OwlViTForObjectDetection", "OwlViT"), pixels(1), "gradient_x_input",
                        target=prompt("red dog", processor=tokenizer()))  # fmt: skip
    assert e.text[0].words == ("red", "dog")
    assert float(e.text[0].scores.abs().sum()) > 0


def test_saved_words_and_methods_that_do_not_apply(tmp_path):
    e = vitrail.explain(build("CLIPModel", "Clip"), pixels(1), "gradient_x_input",
                        target=prompt("red dog", processor=tokenizer()))  # fmt: skip
    assert not (e.save(tmp_path / "before") / "words.json").exists()
    assert len(e.text) == 1
    _ = e.text[0]
    (record,) = json.loads((e.save(tmp_path / "after") / "words.json").read_text(encoding="utf-8"))
    assert record["words"] == ["red", "dog"]
    e = vitrail.explain(build("CLIPModel", "Clip"), pixels(1), "occlusion",
                        target=prompt("red dog", processor=tokenizer()))  # fmt: skip
    with pytest.raises(NotApplicableError):
        _ = e.text[0]


def test_an_explanation_of_texts_has_no_image():
    import transformers

    from tests.text.texts import word_pieces

    torch.manual_seed(0)
    names = word_pieces()
    config = transformers.BertConfig(
        vocab_size=len(names), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    model = transformers.BertForSequenceClassification(config).eval()
    e = vitrail.explain(model, "the film is superb", "rollout", tokenizer=names)
    with pytest.raises(InputError, match="has no image"):
        _ = e.image
