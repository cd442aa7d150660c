"""Explain vision-language models: image tokens and words of one stream, the first on the image, the others as text.

Relevance is computed in the decoder, for every position of its stream. What happens between the pixels and the image
tokens, in the encoder of the image, is not followed: an image token counts for the pixels that it stands for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from vitrail.capture.inputs import ModelInputs
from vitrail.capture.merged_stream import (
    STREAM,
    MergedStream,
    StreamModel,
    find_merged_stream,
    image_names,
    stream_call,
)
from vitrail.errors import InputError, MapWarning, NotApplicableError
from vitrail.inputs.map_source import MapSource, QuestionSource
from vitrail.inputs.user_inputs import to_model_inputs
from vitrail.methods.postprocess import is_constant, normalise
from vitrail.models.loaded import LoadedModel
from vitrail.models.preprocess import Preprocess
from vitrail.pipeline.encoder_decoders import DECODER_IDS, decoder_start, is_encoder_decoder
from vitrail.pipeline.explanation import Explanation
from vitrail.pipeline.image_placement import PlacedTokens, place_tokens
from vitrail.pipeline.language_prompts import answer_difference
from vitrail.pipeline.request import Request
from vitrail.pipeline.results import with_checks
from vitrail.pipeline.text_windows import spans_of
from vitrail.targets.bound_targets import Rows, has_named_target
from vitrail.targets.language_targets import TargetTerm, language_rows, target_terms
from vitrail.text.prompt_tokens import EncodedPrompt, encode_prompts
from vitrail.text.result import WordRelevance, word_relevance
from vitrail.text.text_units import unit_of_tokens, units_of_each
from vitrail.text.tokens import EncodedText, TokenWindow

Explain = Callable[[LoadedModel, Any, Request], dict[str, Explanation]]
"""`vitrail.explain` of a model, inputs and a request, as results by method."""
Again = Callable[..., Mapping[str, Explanation]]
"""Function from a call, methods with options and targets to explanations."""

#: Tensors with one number for each word, and the number for words that are appended.
_BY_WORD = {
    "attention_mask": 1, "token_type_ids": 0, "mm_token_type_ids": 0, "image_embeds_position_mask": 0, "labels": -100,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class _StreamResult:
    """Explanations of one call over its stream, with where its tokens lie."""

    results: Mapping[str, Explanation]
    stream: MergedStream
    model_inputs: ModelInputs
    continued: bool = False


@dataclass(frozen=True, eq=False)
class _AskedCall:
    """What was asked."""

    loaded: LoadedModel
    model_inputs: ModelInputs
    prompts: Sequence[EncodedPrompt]
    request: Request
    again: Again


def is_image_question(inputs: Any) -> bool:
    """Whether inputs are the arguments of a vision-language model: words, and images as floats.

    Example:
        >>> is_image_question({"input_ids": torch.ones(1, 4).long(), "pixel_values": torch.zeros(1, 3, 8, 8)})
        True
    """
    if not isinstance(inputs, Mapping) or not isinstance(inputs.get("input_ids"), Tensor):
        return False
    return bool(
        image_names(ModelInputs((), {k: v for k, v in inputs.items() if isinstance(v, Tensor)}, of="input_ids"))
    )


def explain_image_questions(
    loaded: LoadedModel, inputs: Mapping[str, Any], request: Request, language: bool, explain: Explain, again: Again
) -> dict[str, Explanation]:
    """Explain questions about images.

    Returns:
        Explanations by method: maps on the images, and the words of each text.
    """
    tokenizer = getattr(request.tokenizer, "tokenizer", request.tokenizer)
    writes = is_encoder_decoder(loaded.module)
    if writes:
        inputs = {**inputs, DECODER_IDS: decoder_start(loaded.module, inputs, len(inputs["input_ids"]))}
    model_inputs = to_model_inputs(inputs, loaded, request.roles, "input_ids", request.reading)
    if tokenizer is None:
        raise InputError(
            "a question about an image has words, which need a tokenizer: pass processor=… or tokenizer=… of the model"
        )
    prompts = encode_prompts({k: model_inputs.kwargs.get(k) for k in ("input_ids", "attention_mask")}, tokenizer)
    call = _AskedCall(loaded, model_inputs, prompts, request, again)
    if not language or (callable(request.target) and not has_named_target(request.target)):
        return _assembled([_explained(loaded, model_inputs, request, explain)], None, call)
    asked = language_rows(request.target, len(prompts), tokenizer)
    before = [inputs[DECODER_IDS].shape[1] if writes else len(prompt.ids) for prompt in prompts]
    terms = [[target_terms(one, length) for one in row] for row, length in zip(asked, before, strict=True)]
    if not any(one[0].forced for row in terms for one in row):
        rows = [[one[0].target for one in row] for row in terms]
        found = [_explained(loaded, model_inputs, replace(request, target=rows), explain)]
        return _assembled(found, asked, call)
    found, several = list[_StreamResult](), any(len({term.forced for one in row for term in one}) > 1 for row in terms)
    for i, (row, prompt) in enumerate(zip(terms, prompts, strict=True)):

        def explained(forced: Sequence[int], targets: Sequence[Any], i: int = i, prompt: Any = prompt) -> _StreamResult:
            longer = continued_call(model_inputs.select(slice(i, i + 1)), prompt, forced)
            one_row = replace(request, target=[list(targets)])
            return replace(_explained(loaded, longer, one_row, explain), continued=not writes)

        if several:
            found.append(_by_terms(row, asked[i], explained))
        else:
            found.append(explained(row[0][0].forced, [one[0].target for one in row]))
    if several and request.check:
        raise NotApplicableError("answers that differ cannot be checked together: explain each in a call of its own")
    results = _assembled(found, asked, call)
    # A check evaluates one sequence of words, and these are several.
    return {label: replace(e, source=None) for label, e in results.items()} if several else results


def _by_terms(
    row: Sequence[tuple[TargetTerm, ...]], asked: Sequence[Any], explained: Callable[..., _StreamResult]
) -> _StreamResult:
    """Targets of one example whose answers differ, each in a call of its own; a contrast is a difference of maps."""
    parts: list[_StreamResult] = []
    found: dict[str, list[Explanation]] = {}
    for terms, target in zip(row, asked, strict=True):
        own = [explained(term.forced, [term.target]) for term in terms]
        if any(part.stream.owners is None for part in own):
            raise NotApplicableError(
                "answers that differ need calls with different words, and the image tokens of this model have no place "
                "on the image: explain each answer in a call of its own"
            )
        parts += own
        for label, first in own[0].results.items():
            pieces = [part.results[label] for part in own]
            found.setdefault(label, []).append(first if len(own) == 1 else answer_difference(pieces, target))
    longest = max(parts, key=lambda part: part.stream.vectors.shape[1])
    width = longest.stream.vectors.shape[1]
    return replace(longest, results={label: _side_by_side(several, width) for label, several in found.items()})


def _side_by_side(targets: Sequence[Explanation], width: int) -> Explanation:
    """One explanation of several targets of one example, over a stream of some positions."""
    grid = torch.cat([pad(one.grid, (0, width - one.grid.shape[-1])) for one in targets], 1)
    records = tuple(record for one in targets for record in (one.named_targets or ((),))[0])
    return replace(
        targets[0], grid=grid, maps=grid, constant=torch.cat([one.constant for one in targets], 1),
        named_targets=(records,), signed=any(one.signed for one in targets),
        seconds=sum(one.seconds for one in targets),
    )  # fmt: skip


def continued_call(model_inputs: ModelInputs, prompt: EncodedPrompt | None, forced: Sequence[int]) -> ModelInputs:
    """The call of one example without padding, with further words; those of an encoder–decoder go to its decoder."""
    written = model_inputs.kwargs.get(DECODER_IDS)
    if isinstance(written, Tensor):
        more = torch.tensor([list(forced)], device=written.device, dtype=written.dtype)
        return model_inputs.swap(written, torch.cat([written, more], 1))
    assert prompt is not None, "a decoder reads words"
    ids = model_inputs.kwargs["input_ids"]
    columns, more = torch.tensor(prompt.columns, device=ids.device), torch.tensor([list(forced)], device=ids.device)
    for name, fill in (("input_ids", None), *_BY_WORD.items()):
        old = model_inputs.kwargs.get(name)
        if isinstance(old, Tensor) and old.shape == ids.shape:
            added = more if fill is None else torch.full_like(more, fill)
            model_inputs = model_inputs.swap(old, torch.cat([old[:, columns], added.to(old.dtype)], 1))
    return model_inputs


def _explained(loaded: LoadedModel, model_inputs: ModelInputs, request: Request, explain: Explain) -> _StreamResult:
    """Explain the stream of a call."""
    stream = find_merged_stream(loaded.module, model_inputs)
    called = replace(loaded, module=StreamModel(loaded.module, stream.place).eval(), preprocess=None)
    arguments = stream_call(loaded.module, model_inputs, stream)
    inner = replace(request, roles={**(request.roles or {}), STREAM: "patches"}, of=STREAM, check=False, units=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MapWarning)
        results = explain(called, arguments, inner)
    if stream.owners is None:
        results = {
            label: _with_pixels(e, loaded, model_inputs, request, explain, label) for label, e in results.items()
        }
    return _StreamResult(results, stream, model_inputs)


def _with_pixels(
    words: Explanation, loaded: LoadedModel, model_inputs: ModelInputs, request: Request, explain: Explain, label: str
) -> Explanation:
    """The explanation of a stream whose image tokens have no place, with the map of the pixels beside it."""
    name = image_names(model_inputs)[0]
    one = replace(request, methods={label: request.methods[label]}, of=name, check=False, tokenizer=None, units=None)
    given = {k: v for k, v in model_inputs.kwargs.items() if v is not None}
    try:
        pixels = next(iter(explain(loaded, given, one).values()))
    except NotApplicableError as error:
        raise NotApplicableError(
            f"the image tokens of {type(loaded.module).__name__} have no place on the image: each is computed from all "
            f"of it. So {label} would have to reach the pixels, and it does not apply to them ({error}). Use "
            "gradient_x_input, or of='input_ids' for the words alone"
        ) from error
    return replace(words, intermediates={**words.intermediates, _PIXELS: pixels})


#: Name under which the map of the pixels waits.
_PIXELS = "pixels"


def _assembled(parts: Sequence[_StreamResult], asked: Rows | None, call: _AskedCall) -> dict[str, Explanation]:
    """Results over the images and words of all examples."""
    loaded, prompts, request = call.loaded, call.prompts, call.request
    placed = [one for part in parts for one in _places(part)]
    units = units_of_each(request.units, len(prompts))
    found = {}
    for label in parts[0].results:
        pieces = [part.results[label] for part in parts]
        maps, grids, texts, constant = [], [], [], []
        example = 0
        for part, piece in zip(parts, pieces, strict=True):
            for i in range(len(piece.grid)):
                scores, place = piece.grid[i], placed[example]
                grid, raw = _image_side(piece, place, scores[:, part.stream.image[i]], i)
                grids.append(grid)
                maps.append(normalise(raw, signed=piece.signed).float())
                constant.append(is_constant(grid)[:, 0, 0])
                texts.append(_words(prompts[example], part, i, scores, piece.signed, request, units[example]))
                example += 1
        first = pieces[0]
        images = _stacked([p.image if isinstance(p, PlacedTokens) else p for p in placed])
        records = first.named_targets if len(pieces) == 1 else _joined_records(pieces)
        if records is not None and asked is not None:
            rows = zip(records, asked, strict=True)
            records = tuple(tuple(replace(r, asked=a) for r, a in zip(*row, strict=True)) for row in rows)
        found[label] = replace(
            first, maps=_stacked(maps), grid=_stacked(grids), constant=torch.stack(constant), text=tuple(texts),
            images=images, named_targets=records, seconds=sum(one.seconds for one in pieces), source=None,
            model=loaded.name or type(loaded.module).__name__, preprocess=_preprocess(request, loaded),
            intermediates={k: v for k, v in first.intermediates.items() if k != _PIXELS},
            structure={**first.structure, **_facts(parts[0])}, axes=(), signal=None,
        )  # fmt: skip
    source = _source(parts, placed, next(iter(found.values())).text, call)
    found = {label: replace(e, source=source) for label, e in found.items()}
    return with_checks(found, source, request) if request.check else found


def _source(
    parts: Sequence[_StreamResult], placed: Sequence[PlacedTokens | Tensor], texts: Any, call: _AskedCall
) -> QuestionSource:
    """What checks need: where the cells of the images and the words stand in the stream."""
    streams, covers = list[tuple[MapSource, int]](), list[Tensor]()
    for part in parts:
        inner = next(iter(part.results.values())).source
        assert isinstance(inner, MapSource)
        for i in range(len(part.stream.image)):
            place, example = placed[len(streams)], len(streams)
            words, positions = texts[example], _positions(call.prompts[example], part, i)[1]
            image = part.stream.image[i]
            cover = image.new_zeros(len(words.words), len(image), dtype=torch.float32)
            for position, unit in zip(positions.tolist(), unit_of_tokens(words.token_spans, words.spans), strict=True):
                if unit >= 0:
                    cover[unit, position] = 1.0
            if isinstance(place, PlacedTokens):
                tokens = torch.eye(int(image.sum()), device=image.device)
                cells = cover.new_zeros(place.grid(tokens)[0].numel(), len(image))
                cells[:, image] = place.grid(tokens).flatten(1).T
                cover = torch.cat([cells, cover])
            streams.append((inner, i))
            covers.append(cover)
    questions = tuple(call.model_inputs.select(slice(i, i + 1)) for i in range(len(streams)))
    first = streams[0][0]
    return QuestionSource(
        call.loaded, questions, tuple(streams), tuple(covers), first.structure, first.target, call.again
    )


def _joined_records(pieces: Sequence[Explanation]) -> Any:
    if any(one.named_targets is None for one in pieces):
        return None
    return tuple(row for one in pieces for row in one.named_targets or ())


def _places(part: _StreamResult) -> list[PlacedTokens | Tensor]:
    """Where the image tokens of each example lie; the image itself where they have no place."""
    stream, found = part.stream, list[PlacedTokens | Tensor]()
    for i in range(part.model_inputs.batch):
        one = part.model_inputs.select(slice(i, i + 1))
        pixels = one.kwargs[stream.images[0]]
        if stream.owners is None:
            found.append(pixels.reshape(-1, *pixels.shape[-3:])[0])
        else:
            found.append(place_tokens(pixels, stream.owners[i], one.kwargs))
    return found


def _image_side(piece: Explanation, place: PlacedTokens | Tensor, scores: Tensor, row: int) -> tuple[Tensor, Tensor]:
    """Relevance on its grid, shape (K, rows, columns), and at the size of the image."""
    if isinstance(place, PlacedTokens):
        grid = place.grid(scores)
        return grid, place.maps(grid)
    pixels: Explanation = piece.intermediates[_PIXELS]
    return pixels.grid[row], pixels.maps[row]


def _positions(prompt: EncodedPrompt, part: _StreamResult, row: int) -> tuple[list[int], Tensor]:
    """Tokens of one text that are words, and their positions in the stream."""
    stream, places = part.stream, torch.tensor(prompt.columns, device=part.stream.image.device)
    if part.continued:  # padding was left out
        places = torch.arange(len(places), device=places.device)
    if stream.vectors.shape[1] > part.model_inputs.kwargs["input_ids"].shape[1]:  # image tokens beside the words
        places = stream.words[row].nonzero()[:, 0][places]
    image = stream.image[row][places].tolist()
    kept = [
        i for i, (content, there) in enumerate(zip(prompt.encoded.content, image, strict=True)) if content and not there
    ]
    return kept, places[torch.tensor(kept, dtype=torch.long, device=places.device)]


def _words(
    prompt: EncodedPrompt, part: _StreamResult, row: int, scores: Tensor, signed: bool, request: Request, units: Any
) -> WordRelevance:
    """The words of one text, or its other units."""
    kept, positions = _positions(prompt, part, row)
    reduction = getattr(request.tokenizer, "reduction", "sum")
    own, question = scores[:, positions.to(scores.device)], _question(prompt, kept)
    return word_relevance(question, own, [True] * len(kept), signed, reduction, spans_of(question, units))


def _question(prompt: EncodedPrompt, kept: Sequence[int]) -> EncodedText:
    """The text of some tokens of a prompt, without image tokens and special ones."""
    pieces = [prompt.encoded.text[slice(*prompt.encoded.spans[i])] for i in kept]
    ends = [0]
    for piece in pieces:
        ends.append(ends[-1] + len(piece))
    window = TokenWindow(0, {}, list(range(len(kept))))
    names = tuple(prompt.encoded.tokens[i] for i in kept)
    return EncodedText("".join(pieces), names, tuple(pairwise(ends)), (True,) * len(kept), (window,))


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    if len({tuple(t.shape) for t in tensors}) > 1:
        sizes = ", ".join(sorted({"×".join(map(str, t.shape[1:])) for t in tensors}))
        raise InputError(f"the images have different sizes ({sizes}): explain them one by one")
    return torch.stack(list(tensors))


def _facts(part: _StreamResult) -> dict[str, str]:
    stream = part.stream
    count, total = int(stream.image[0].sum()), stream.image.shape[1]
    where = f"{stream.place.name}, {stream.place.argument}"
    return {"image tokens": f"{count} of {total} positions, found by perturbing the image", "stream": where}


def _preprocess(request: Request, loaded: LoadedModel) -> Preprocess | None:
    """Mean and standard deviation of the images, by the processor or the model."""
    found = getattr(request.tokenizer, "image_processor", None)
    mean, std = (getattr(found, name, None) for name in ("image_mean", "image_std"))
    if isinstance(mean, list | tuple) and isinstance(std, list | tuple):
        return Preprocess((1, 1), tuple(mean), tuple(std), origin="the image processor")
    return loaded.preprocess if isinstance(loaded.preprocess, Preprocess) else None
