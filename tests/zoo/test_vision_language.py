"""Vision-language models: image tokens are found, lie where they belong, and planted dependencies are recovered."""

from __future__ import annotations

import warnings
from functools import cache

import pytest
import torch

import vitrail
from tests.zoo.vision_language import CASES, LABEL, WORDS, ImageQuestion, positions_of_patch, reading_only
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.merged_stream import find_merged_stream
from vitrail.errors import GuessWarning, InputError, MapWarning, NotApplicableError
from vitrail.inputs.user_inputs import to_model_inputs
from vitrail.models.loaded import describe
from vitrail.targets import token

pytest.importorskip("transformers")
METHODS = ["transformer_mm", "attnlrp", "gradient_x_input"]
FAST = ("plain", "llava", "llava_next", "qwen2_vl", "vilt")
PLACED = [name for name in CASES if name not in ("blip2", "instruct_blip", "kosmos2", "florence2")]
RESAMPLED = ["blip2", "instruct_blip", "kosmos2", "florence2"]


def marked(names):
    return [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in names]


class Numbers:
    """A tokenizer whose words are numbers."""

    all_special_ids = (53, 54, 55)
    unk_token_id = None

    def __len__(self):
        return 60

    def convert_ids_to_tokens(self, ids):
        return f"▁w{ids}" if isinstance(ids, int) else [f"▁w{i}" for i in ids]

    def decode(self, ids, **_):
        return " ".join(f"w{i}" for i in ids)

    def get_vocab(self):
        return {f"▁w{i}": i for i in range(60)}

    def __call__(self, text, **_):
        return {"input_ids": [int(word[1:]) for word in text.split()]}


@cache
def case_of(name) -> ImageQuestion:
    return CASES[name]()


@cache
def stream_of(name):
    case = case_of(name)
    return find_merged_stream(case.model, to_model_inputs(case.inputs, describe(case.model), None, "input_ids", None))


def target_of(name):
    return 1 if name == "vilt" else token(f"w{LABEL}")


def explain(name, model, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuessWarning)
        warnings.simplefilter("ignore", MapWarning)
        given = {"methods": METHODS, "target": target_of(name), "tokenizer": Numbers()} | options
        return vitrail.explain(model, case_of(name).inputs, **given)


@pytest.mark.parametrize("name", marked(CASES))
def test_image_tokens_and_words_are_found(name):
    case, stream = case_of(name), stream_of(name)
    assert stream.image.sum(1).tolist() == [case.tokens] * 2
    assert stream.words.sum(1).tolist() == [WORDS + 2] * 2
    if case.grid is None:
        assert stream.owners is None


def brighter(pixels, row, column, rows, columns):
    """The first image with one cell of its grid changed, in every tile."""
    new = pixels.clone()
    if pixels.dim() == 2:  # four neighbouring flattened patches make a token
        first = 4 * (row * columns + column)
        new[first : first + 4] += 1
        return new
    height, width = pixels.shape[-2] // rows, pixels.shape[-1] // columns
    here = new[0] if new.dim() == 4 else new[0, -1:] if new.shape[1] != 5 else new[0, 4:5]
    here[..., row * height : (row + 1) * height, column * width : (column + 1) * width] += 1
    return new


def cell_of_tile(name, rows, columns):
    """The last cell of the image, and the change of the pixels that only it, or its tile, sees."""
    case = case_of(name)
    if case.tiles == 1:
        return (rows - 1, 0), lambda p: brighter(p, rows - 1, 0, rows, columns)
    # The fifth tile is the last quarter (LLaVA-NeXT), or the overview; the fourth is the last quarter of the others.
    tile = 4 if name == "llava_next" else 3

    def change(pixels):
        new = pixels.clone()
        size = pixels.shape[-1] // (columns // 2)
        new[0, tile, :, -size:, -size:] += 1
        return new

    return (rows - 1, columns - 1), change


@pytest.mark.parametrize("name", marked(PLACED))
def test_a_planted_patch_and_word_are_recovered(name):
    """The decoder reads one image token and one word; these, and the last word, are all that is relevant."""
    case, stream = case_of(name), stream_of(name)
    rows, columns = case.grid
    cell, change = cell_of_tile(name, rows, columns)
    seen = positions_of_patch(case, change, stream.place.name, stream.place.argument)
    assert len(seen) == 1, "the change must be one of a single token"
    words = stream.words[0].nonzero()[:, 0].tolist()
    planted = words[-4]
    readers = [0] if name == "vilt" else [words[-1]]
    found = explain(name, reading_only(case.model, stream.place.name, [seen[0], planted, *readers]))
    for method, e in found.items():
        grid = e.grid[0, 0].abs()
        assert tuple(grid.shape) == case.grid, method
        top = divmod(int(grid.argmax()), columns)
        assert top == cell, (method, top, cell)
        assert float(grid.sum() - grid.max()) <= 1e-4 * float(grid.max()), method
        scores = e.text[0].scores[0].abs()
        others = [i for i in range(WORDS) if i not in (WORDS - 4, WORDS - 1)]
        assert float(scores[WORDS - 4]) > 0, method
        assert float(scores[others].max()) <= 1e-4 * float(scores[WORDS - 4]), method
        assert e.images.shape[-2:] == e.maps.shape[-2:], method


@pytest.mark.parametrize("name", marked(RESAMPLED))
def test_queries_over_the_image_have_no_place(name):
    """Pixels are reached by gradients; attention methods are refused with the reason."""
    case = case_of(name)
    e = explain(name, case.model, methods=["gradient_x_input"])["gradient_x_input"]
    pixels = case.inputs["pixel_values"].clone().requires_grad_()
    torch.manual_seed(0)
    logits = case.model(**case.inputs | {"pixel_values": pixels}).logits
    gradient = torch.autograd.grad(logits[:, -1, LABEL].sum(), pixels)[0]
    expected = (gradient * pixels).sum(1).detach()
    assert torch.allclose(e.grid[:, 0].flatten(1), expected.flatten(1), atol=1e-5 * float(expected.abs().max()))
    assert e.text[0].words == tuple(f"w{i}" for i in case.inputs["input_ids"][0, -WORDS:].tolist())
    with pytest.raises(NotApplicableError, match="no place on the image"):
        explain(name, case.model, methods=["transformer_mm"])


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
        e = vitrail.explain(case.model, case.inputs, "gradient_x_input", tokenizer=Numbers(), target=answer("w7 w9"))
    ids = torch.cat([case.inputs["input_ids"], torch.tensor([[7, 9]] * 2)], 1)
    given = case.inputs | {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    stream = find_merged_stream(case.model, ModelInputs((), given, of="input_ids"))
    vectors = stream.vectors.clone().requires_grad_()
    scores = case.model(inputs_embeds=vectors, attention_mask=torch.ones_like(ids)).logits.log_softmax(-1)
    total = scores[:, -3, 7].sum() + scores[:, -2, 9].sum()
    expected = (torch.autograd.grad(total, vectors)[0] * vectors).sum(-1).detach()
    assert torch.allclose(e.grid[:, 0].flatten(1), expected[:, 1:17], atol=1e-6)


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
            found.append(vitrail.explain(case.model, given, "attnlrp", tokenizer=Numbers(), target=token("w7")))
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
    return vitrail.explain(case.model, inputs, "transformer_mm", target=token("w7"), tokenizer=Numbers())
