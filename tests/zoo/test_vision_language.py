"""Vision-language models: image tokens are found, and relevance is that of the stream; the zoo plants dependencies."""

from __future__ import annotations

import warnings
from functools import cache

import pytest
import torch

import vitrail
from tests.zoo import vision_language
from tests.zoo.vision_language import CASES, LABEL, TOKENIZER, WORDS, ImageQuestion
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.merged_stream import find_merged_stream
from vitrail.errors import GuessWarning, InputError, MapWarning, NotApplicableError
from vitrail.targets import token

pytest.importorskip("transformers")
METHODS = ["transformer_mm", "attnlrp", "gradient_x_input"]
FAST = ("plain", "llava", "llava_next", "qwen2_vl", "vilt")


def marked(names):
    return [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in names]


@cache
def case_of(name) -> ImageQuestion:
    return CASES[name]()


@cache
def stream_of(name):
    return vision_language.stream_of(case_of(name))


def target_of(name):
    return 1 if name == "vilt" else token(f"w{LABEL}", score="logit")


def explain(name, model, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuessWarning)
        warnings.simplefilter("ignore", MapWarning)
        given = {"methods": METHODS, "target": target_of(name), "tokenizer": TOKENIZER} | options
        return vitrail.explain(model, case_of(name).inputs, **given)


@pytest.mark.parametrize("name", marked(CASES))
def test_image_tokens_and_words_are_found(name):
    case, stream = case_of(name), stream_of(name)
    assert stream.image.sum(1).tolist() == [case.tokens] * 2
    assert stream.words.sum(1).tolist() == [WORDS + 2] * 2
    if case.grid is None:
        assert stream.owners is None


def test_gradient_times_input_is_that_of_the_stream():
    case, stream = case_of("llava"), stream_of("llava")
    with torch.no_grad():
        expected_stream = stream.vectors
    vectors = expected_stream.clone().requires_grad_()
    logits = case.model(inputs_embeds=vectors, attention_mask=case.inputs["attention_mask"]).logits
    gradient = torch.autograd.grad(logits[:, -1, LABEL].sum(), vectors)[0]
    expected = (gradient * vectors).sum(-1).detach()
    e = explain("llava", case.model)["gradient_x_input"]
    assert torch.allclose(e.grid[:, 0].flatten(1), expected[:, 1:17], atol=1e-6)
    assert torch.allclose(torch.stack([one.scores[0] for one in e.text]), expected[:, 18:], atol=1e-6)


def test_an_answer_is_appended_to_the_question():
    """The log-probability of two words, by gradient times input at the stream."""
    from vitrail.targets import answer

    case = case_of("llava")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        e = vitrail.explain(case.model, case.inputs, "gradient_x_input", tokenizer=TOKENIZER, target=answer("w7 w9"))
    ids = torch.cat([case.inputs["input_ids"], torch.tensor([[7, 9]] * 2)], 1)
    given = case.inputs | {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    stream = find_merged_stream(case.model, ModelInputs((), given, of="input_ids"))
    vectors = stream.vectors.clone().requires_grad_()
    scores = case.model(inputs_embeds=vectors, attention_mask=torch.ones_like(ids)).logits.log_softmax(-1)
    total = scores[:, -3, 7].sum() + scores[:, -2, 9].sum()
    expected = (torch.autograd.grad(total, vectors)[0] * vectors).sum(-1).detach()
    assert torch.allclose(e.grid[:, 0].flatten(1), expected[:, 1:17], atol=1e-6)


def test_a_contrast_of_answers_is_the_difference_of_their_maps():
    """For gradient times input that is the map of the difference of log-probabilities."""
    from vitrail.targets import answer, contrast

    case = case_of("llava")
    first, second = answer("w7 w9"), answer("w8 w10 w11")

    def explained(target):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return vitrail.explain(case.model, case.inputs, "gradient_x_input", tokenizer=TOKENIZER, target=target)

    both, one, other = explained([[contrast(first, second), first]]), explained(first), explained(second)
    assert both.grid.shape == (2, 2, 4, 4)
    scale = float(one.grid.abs().max())
    assert torch.allclose(both.grid[:, 0], one.grid[:, 0] - other.grid[:, 0], atol=1e-5 * scale)
    assert torch.allclose(both.grid[:, 1], one.grid[:, 0], atol=1e-5 * scale)
    for found, a, b in zip(both.text, one.text, other.text, strict=True):
        assert torch.allclose(found.scores[0], a.scores[0] - b.scores[0], atol=1e-5 * scale)
    pinned = both.named_targets[0][0].pinned
    assert pinned.first.total == pytest.approx(one.named_targets[0][0].pinned.total, abs=1e-5)
    assert pinned.against[0].total == pytest.approx(other.named_targets[0][0].pinned.total, abs=1e-5)


def test_padding_on_the_left_changes_nothing():
    case = case_of("llava")
    row = {name: value[:1] for name, value in case.inputs.items()}
    padded = dict(row)
    padded["input_ids"] = torch.nn.functional.pad(row["input_ids"], (3, 0))
    padded["attention_mask"] = torch.nn.functional.pad(row["attention_mask"], (3, 0))
    found = []
    for given in (row, padded):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(vitrail.explain(case.model, given, "attnlrp", tokenizer=TOKENIZER, target=token("w7")))
    assert torch.allclose(found[0].grid, found[1].grid, atol=1e-5)
    assert found[0].text[0].words == found[1].text[0].words
    assert torch.allclose(found[0].text[0].scores, found[1].text[0].scores, atol=1e-5)


def test_what_is_missing_is_named():
    case = case_of("plain")
    with pytest.raises(InputError, match="pass processor=… or tokenizer=…"):
        vitrail.explain(case.model, case.inputs, "transformer_mm", target=token(7))
    fewer = case.inputs | {"input_ids": case.inputs["input_ids"][:, 2:]}
    with pytest.raises(InputError, match="one image token for each patch"):
        explain_with(case, fewer)
    llava = case_of("llava")
    fewer = {k: v[:, 2:] if k != "pixel_values" else v for k, v in llava.inputs.items()}
    with pytest.raises(InputError, match="image tokens in the text do not fit the image"):
        explain_with(llava, fewer)


def explain_with(case, inputs):
    return vitrail.explain(case.model, inputs, "transformer_mm", target=token("w7"), tokenizer=TOKENIZER)


def test_one_tensor_of_a_question_is_explained_through_the_whole_model():
    """With a tokenizer, which reads the target; the image is part of the call."""
    case = case_of("llava")
    pixels = case.inputs["pixel_values"].clone().requires_grad_()
    logits = case.model(**case.inputs | {"pixel_values": pixels}).logits[:, -1]
    (gradient,) = torch.autograd.grad(logits[:, LABEL].sum(), pixels)
    expected = (gradient * pixels).sum(1).detach()
    found = explain("llava", case.model, of="pixel_values", methods=["gradient_x_input"])["gradient_x_input"]
    assert torch.allclose(found.grid[:, 0], expected, atol=1e-5 * float(expected.abs().max()))
    best = explain("llava", case.model, of="pixel_values", methods=["gradient_x_input"], target=None)
    records = best["gradient_x_input"].named_targets
    assert [row[0].pinned.index for row in records] == logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("units", "members"),
    [("sentences", [range(WORDS)]), ("tokens", [[i] for i in range(WORDS)]), ([(0, 7)], [[0, 1]])],
)
def test_units_of_a_question_add_up_its_tokens(units, members):
    case = case_of("llava")
    inputs = {name: value[:1] for name, value in case.inputs.items()}
    options = {"tokenizer": TOKENIZER, "target": target_of("llava")}
    plain = vitrail.explain(case.model, inputs, "gradient_x_input", **options).text[0]
    found = vitrail.explain(case.model, inputs, "gradient_x_input", units=units, **options).text[0]
    expected = [float(plain.scores[0, list(own)].sum()) for own in members]
    assert found.scores[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_two_images_of_one_text_are_refused_by_name():
    case = case_of("llava")
    ids = case.inputs["input_ids"]
    both = {"input_ids": torch.cat([ids[:1], ids[1:]], 1), "pixel_values": case.inputs["pixel_values"]}
    with pytest.raises(NotApplicableError, match="2 images or tiles were given for one text"):
        vitrail.explain(case.model, both, "gradient_x_input", tokenizer=TOKENIZER, target=token("w7"))


# -- processors ------------------------------------------------------------------------------------------------------


def processor_of(family, image_processor, **options):
    """A processor of transformers whose token ids are those of the small models."""
    import transformers
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    words = {f"w{i}": i for i in range(3, 53)} | {"<pad>": 0, "<s>": 1, "</s>": 2, "a": 53, "b": 54, "<image>": 55}
    inner = Tokenizer(models.WordLevel(words, "<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.add_special_tokens([AddedToken("<image>", special=True)])
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **special)
    return getattr(transformers, family)(image_processor, tokenizer, **options)


def photo():
    from PIL import Image

    values = torch.randint(0, 256, (64, 64, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return Image.fromarray(values.numpy())


def test_what_a_processor_returns_is_explained():
    """Image tokens that stand for line ends are no words, and spaces between words are those of the text."""
    import transformers

    size, pinpoints = {"height": 64, "width": 64}, [[128, 128]]
    images = transformers.LlavaNextImageProcessor(
        size={"shortest_edge": 64}, crop_size=size, image_grid_pinpoints=pinpoints
    )
    options = {"patch_size": 16, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    processor = processor_of("LlavaNextProcessor", images, **options | {"image_token": "<image>"})
    given = processor(images=photo(), text="<image> w9 w10 w11", return_tensors="pt")
    model = case_of("llava_next").model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        e = vitrail.explain(model, given, "gradient_x_input", processor=processor, target=token("w7"))
        same = vitrail.explain(model, dict(given), "gradient_x_input", tokenizer=TOKENIZER, target=token("w7"))
    assert e.text[0].words == ("w9", "w10", "w11")
    assert torch.equal(e.grid, same.grid)
    assert torch.equal(e.text[0].scores, same.text[0].scores)


@pytest.mark.slow
def test_an_image_that_does_not_fill_its_tiles_is_explained():
    """The processor pads the image, and the model leaves out tokens of the padding: a patch is found where it is."""
    import transformers
    from PIL import Image

    size = {"height": 64, "width": 64}
    images = transformers.LlavaNextImageProcessor(
        size={"shortest_edge": 64}, crop_size=size, image_grid_pinpoints=[[128, 128]]
    )
    options = {"patch_size": 16, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    processor = processor_of("LlavaNextProcessor", images, **options | {"image_token": "<image>"})
    wide = Image.effect_noise((6, 4), 80).convert("RGB").resize((96, 64), Image.Resampling.BICUBIC)
    text = "<image> " + " ".join(f"w{i}" for i in range(9, 9 + WORDS))
    inputs = dict(processor(images=wide, text=text, return_tensors="pt"))
    case = vision_language.asked(case_of("llava_next").model, inputs, 0, None)
    stream = vision_language.stream_of(case)

    def change(pixels):
        changed = pixels.clone()
        changed[0, 4, :, :16, -16:] += 1  # the last tile, its first row and last column: row 4 and column 7 of 8
        return changed

    seen = vision_language.positions_of_patch(case, change, stream.place.name, stream.place.argument)
    words = stream.words[0].nonzero()[:, 0].tolist()
    model = vision_language.reading_only(case.model, stream.place.name, [*seen, words[-1]])
    for method in METHODS:
        e = vitrail.explain(model, inputs, method, processor=processor, target=token("w7"))
        assert divmod(int(e.grid[0, 0].abs().argmax()), 8) == (4, 7), method
        assert not e.grid[0, 0, [0, -1]].any(), method  # padding above and below


def test_labels_of_a_processor_do_not_stop_an_answer():
    """The processor of PaliGemma adds labels; words that are appended have none."""
    from vitrail.targets import answer

    case = case_of("pali_gemma")
    with_labels = case.inputs | {"labels": torch.full_like(case.inputs["input_ids"], -100)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, expected = (
            vitrail.explain(case.model, given, "gradient_x_input", tokenizer=TOKENIZER, target=answer("w7 w9"))
            for given in (with_labels, case.inputs)
        )
    assert torch.equal(found.grid, expected.grid)


def test_the_default_applies_where_image_tokens_have_no_place():
    case = case_of("kosmos2")
    with pytest.warns(GuessWarning, match="gradient_x_input is used in place of the default"):
        e = vitrail.explain(case.model, case.inputs, tokenizer=TOKENIZER, target=token("w7"))
    assert e.method == "gradient_x_input"
    assert e.image.grid.shape[-2:] == (64, 64)
