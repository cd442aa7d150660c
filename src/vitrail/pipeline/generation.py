"""Explain every token that a language model writes: a matrix of generated tokens by tokens of the prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vitrail.errors import InputError, OptionError
from vitrail.inputs.map_source import PromptSource
from vitrail.inputs.user_inputs import to_model_inputs
from vitrail.models import LoadedModel
from vitrail.pipeline.explain import explain
from vitrail.pipeline.explanation import Explanation
from vitrail.pipeline.image_questions import is_image_question
from vitrail.pipeline.prepared_model import unwrapped_model
from vitrail.pipeline.saved_files import atomic_writes
from vitrail.pipeline.text_windows import spans_of
from vitrail.targets.token_context import encoded_answer
from vitrail.targets.token_target import TokenTarget
from vitrail.text.generation_view import GenerationRows, generation_figure, generation_html, generation_terminal
from vitrail.text.greedy_decoding import greedy_tokens
from vitrail.text.language_model import check_length, context_limit
from vitrail.text.prompt_tokens import EncodedPrompt, encode_prompts, is_chat, with_continuation
from vitrail.text.result import WordRelevance
from vitrail.text.tokens import Span, TokenizerSettings, word_scores, word_spans

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image
    from rich.console import RenderableType

_FILE = "generation.json"


@dataclass(frozen=True, eq=False)
class GenerationExplanation:
    """Relevance of the prompt, and of earlier generated tokens, for each generated token.

    Attributes:
        explanation: The explanation of the whole text, with one target for each generated token; None if it was loaded.
        method: The method.
        text: The prompt and what was generated after it.
        start: Number of characters of the prompt.
        tokens: All tokens, those of the prompt first.
        token_spans: Characters of each.
        prompt_tokens: Number of tokens of the prompt.
        matrix: Relevance, shape (generated tokens, all tokens): row t holds the relevance for generated token t. A
            token has none for itself and for those before it.
        log_probabilities: Log-probability of each generated token.
        units: Characters of the units that ``scores`` has: words, or those that were asked for.
        signed: Whether negative relevance is evidence against a token.
        model: The model's name.
        grid: Relevance of the cells of the image for each generated token, shape (tokens, rows, columns); None for a
            prompt without an image.
        pixels: The image as the model reads it, uint8, shape (height, width, 3); None without an image.
    """

    explanation: Explanation | None
    method: str
    text: str
    start: int
    tokens: tuple[str, ...]
    token_spans: tuple[Span, ...]
    prompt_tokens: int
    matrix: Tensor
    log_probabilities: tuple[float, ...]
    units: tuple[Span, ...]
    signed: bool = False
    model: str = ""
    grid: Tensor | None = None
    pixels: Tensor | None = None

    def __repr__(self) -> str:
        rows, columns = self.matrix.shape
        shown = self.generated if len(self.generated) <= 40 else f"{self.generated[:39]}…"
        return f"GenerationExplanation({self.method}, {rows} generated × {columns} tokens, {shown!r})"

    def __len__(self) -> int:
        return len(self.matrix)

    @property
    def prompt(self) -> str:
        """The prompt."""
        return self.text[: self.start]

    @property
    def generated(self) -> str:
        """What was generated."""
        return self.text[self.start :]

    @cached_property
    def word_spans(self) -> tuple[Span, ...]:
        """Characters of each generated word."""
        return tuple((a + self.start, b + self.start) for a, b in word_spans(self.generated))

    @property
    def words(self) -> tuple[str, ...]:
        """The generated words."""
        return tuple(self.text[a:b] for a, b in self.word_spans)

    @property
    def sources(self) -> tuple[str, ...]:
        """The units that words depend on: those of the prompt, then generated ones."""
        return tuple(self.text[a:b] for a, b in self.units)

    @cached_property
    def scores(self) -> Tensor:
        """Relevance of each source for each generated word, shape (words, sources): the sum over tokens.

        Relevance inside a word, of its first tokens for its later ones, is left out.
        """
        columns = word_scores(self.matrix, self.token_spans, self.units)
        rows = word_scores(columns.T.contiguous(), self.token_spans[self.prompt_tokens :], self.word_spans)
        own = [[a < stop and start < b for a, b in self.units] for start, stop in self.word_spans]
        return rows.T.masked_fill(torch.tensor(own, dtype=torch.bool).view(rows.T.shape), 0.0)

    @cached_property
    def image_scores(self) -> Tensor:
        """Relevance of the image's cells for each generated word, shape (words, rows, columns): the sum over tokens.

        Raises:
            InputError: The prompt has no image.
        """
        if self.grid is None:
            raise InputError("this prompt has no image: pass what the processor of a vision-language model returned")
        rows = word_scores(self.grid.flatten(1).T, self.token_spans[self.prompt_tokens :], self.word_spans)
        return rows.T.view(-1, *self.grid.shape[1:])

    def image_overlay(self, word: int | str | None = None, opacity: float = 0.75) -> Image:
        """The image with its relevance for one generated word, or for all words.

        Args:
            word: Which generated word: its index, or its text; None for the sum over all.
            opacity: Opacity of the colour where relevance is highest.

        Raises:
            InputError: The prompt has no image.
        """
        from vitrail.methods.postprocess import normalise, upsample
        from vitrail.viz.colormap import overlay, to_image

        scores = self.image_scores
        chosen = scores.sum(0) if word is None else scores[self._index(word)]
        assert self.pixels is not None
        size = (int(self.pixels.shape[0]), int(self.pixels.shape[1]))
        relevance = normalise(upsample(chosen[None, None], size), signed=self.signed)[0, 0].numpy()
        return to_image(overlay(self.pixels.numpy(), relevance, self.signed, opacity))

    def top(self, word: int | str = 0, count: int = 10) -> list[tuple[str, float]]:
        """The sources of a generated word with the highest scores, best first.

        Args:
            word: Which generated word: its index, or its text.
            count: Number of sources.
        """
        row = self.scores[self._index(word)]
        order = row.argsort(descending=True, stable=True)[:count].tolist()
        return [(self.sources[i], float(row[i])) for i in order]

    def step(self, token: int) -> WordRelevance:
        """Scores of the words before one generated token, by its index."""
        if not -len(self) <= token < len(self):
            raise InputError(f"token {token} does not exist: {len(self)} were generated")
        token %= len(self)
        before = self.prompt_tokens + token
        spans = self.token_spans[:before]
        end = max((b for _, b in spans), default=0)
        units = tuple((a, min(b, end)) for a, b in self.units if a < end)
        scores = word_scores(self.matrix[token : token + 1, :before], spans, units)
        largest = scores.abs().amax().clamp_min(1e-30)
        return WordRelevance(
            self.text[:end], tuple(self.text[a:b] for a, b in units), units, scores, scores / largest,
            (True,) * len(units), self.tokens[:before], spans, self.matrix[token : token + 1, :before],
        )  # fmt: skip

    def rows(self) -> GenerationRows:
        """What the views show."""
        return GenerationRows(
            self.text,
            self.start,
            self.units,
            self.word_spans,
            self.scores,
            self.signed,
            f"{self.method} · {self.model}",
            None if self.grid is None else self.image_scores,
            None if self.pixels is None else self.pixels.numpy(),
        )

    def html(self, title: str = "Generated words and their sources") -> str:
        """An interactive page that loads nothing: point at a generated word to see its sources."""
        return generation_html(self.rows(), title)

    def _repr_html_(self) -> str:
        from html import escape

        return f'<iframe srcdoc="{escape(self.html())}" style="width:100%;height:420px;border:0"></iframe>'

    def terminal(self, word: int | str | None = None) -> RenderableType:
        """The text for ``rich.console.Console.print``, coloured by the sources of one word or of all words."""
        return generation_terminal(self.rows(), None if word is None else self._index(word))

    def figure(self) -> Figure:
        """The matrix of words by sources as a matplotlib figure."""
        return generation_figure(self.rows())

    def overlay(self, word: int | str | None = None) -> RenderableType:
        """The same as `terminal`: the sources of a word, or of all words, over the text."""
        return self.terminal(word)

    def save(self, folder: str | Path) -> Path:
        """Write the page, the matrix as safetensors and all else as JSON; `load` reads them.

        With the explanation at hand, its own files are written into the subfolder ``explanation``.
        """
        from safetensors.torch import save as to_safetensors

        folder = Path(folder)
        with atomic_writes(folder) as into:
            with into("generation.html") as path:
                path.write_text(self.html(), encoding="utf-8")
            with into("matrix.safetensors") as path:
                tensors = {"matrix": self.matrix, "grid": self.grid, "pixels": self.pixels}
                given = {name: t.detach().cpu().contiguous() for name, t in tensors.items() if t is not None}
                path.write_bytes(to_safetensors(given))
            with into(_FILE) as path:
                path.write_text(json.dumps(self._record(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        if self.explanation is not None:
            self.explanation.save(folder / "explanation")
        return folder

    def _record(self) -> dict[str, Any]:
        return {
            "method": self.method, "model": self.model, "signed": self.signed, "text": self.text, "start": self.start,
            "tokens": self.tokens, "token_spans": self.token_spans, "prompt_tokens": self.prompt_tokens,
            "log_probabilities": self.log_probabilities, "units": self.units,
            "words": [{"word": w, "sources": self.top(i, 5)} for i, w in enumerate(self.words)],
        }  # fmt: skip

    @classmethod
    def load(cls, folder: str | Path) -> GenerationExplanation:
        """Read what `save` wrote.

        Raises:
            InputError: The folder holds no saved generation.
        """
        from safetensors.torch import load_file

        folder = Path(folder)
        if not (folder / _FILE).is_file():
            raise InputError(f"{folder} holds no {_FILE}: give a folder that GenerationExplanation.save wrote")
        record = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        spans = {name: tuple((int(a), int(b)) for a, b in record[name]) for name in ("token_spans", "units")}
        tensors = load_file(folder / "matrix.safetensors")
        return cls(
            None, record["method"], record["text"], record["start"], tuple(record["tokens"]), spans["token_spans"],
            record["prompt_tokens"], tensors["matrix"],
            tuple(record["log_probabilities"]), spans["units"], record["signed"], record["model"],
            tensors.get("grid"), tensors.get("pixels"),
        )  # fmt: skip

    def _index(self, word: int | str) -> int:
        if isinstance(word, str):
            if word not in self.words:
                raise InputError(f"{word!r} was not generated: the words are {', '.join(map(repr, self.words))}")
            return self.words.index(word)
        if not -len(self.words) <= word < len(self.words):
            raise InputError(f"word {word} does not exist: {len(self.words)} were generated")
        return word % len(self.words)


def explain_generation(
    model: nn.Module | LoadedModel,
    prompt: Any,
    method: str | None = None,
    *,
    tokenizer: Any = None,
    processor: Any = None,
    max_new_tokens: int = 40,
    continuation: str | Sequence[Any] | None = None,
    score: str | None = None,
    units: Any = None,
    batch_size: int | None = None,
    **options: Any,
) -> GenerationExplanation | list[GenerationExplanation]:
    """Explain every token that a language model writes after a prompt.

    One forward pass over the prompt and the continuation serves all tokens; methods with gradients take a backward pass
    for each, and methods that remove parts of the text evaluate all tokens at once. Several prompts run in one batch.

    Args:
        model: The model, or what ``load`` returned.
        prompt: A text, or a chat as a list of messages; or a list of these. For a vision-language model what its
            processor returned, for one or several images.
        method: A method's name, as for `vitrail.explain`.
        tokenizer: The model's fast tokenizer, or `vitrail.text.TokenizerSettings`.
        processor: The processor of a vision-language model; the same as ``tokenizer``.
        max_new_tokens: Most tokens that are generated, greedily: the likeliest token at each step.
        continuation: A text, or token ids, that is explained instead of what the model would generate; one for each of
            several prompts.
        score: What is explained of each token: its log-odds, "logodds", its "logit" or its log-probability, "logprob",
            see `vitrail.targets.token`.
        units: Sources of the words, see `vitrail.explain`; words by default.
        batch_size: Most texts in a forward pass.
        **options: Options of the method.

    Returns:
        The explanation, or a list of them for a list of prompts.

    Raises:
        InputError: A prompt is empty or too long, or nothing was generated.
    """
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise OptionError(f"max_new_tokens={max_new_tokens!r} must be an integer of at least 1")
    loaded = unwrapped_model(model, None)
    tokenizer = processor if tokenizer is None else tokenizer
    if tokenizer is None:
        raise InputError(
            "the words of a language model are read by its tokenizer: pass tokenizer=…, or processor=… for a question "
            "about an image"
        )
    if is_image_question(prompt):
        options["batch_size"] = batch_size
        return _about_images(loaded, prompt, method, tokenizer, max_new_tokens, continuation, score, units, options)
    settings = tokenizer if isinstance(tokenizer, TokenizerSettings) else TokenizerSettings(tokenizer)
    single = isinstance(prompt, str) or is_chat(prompt)
    encoded = encode_prompts(prompt, settings)
    given = [continuation] if single else [None] * len(encoded) if continuation is None else list(continuation)
    if len(given) != len(encoded) or (not single and isinstance(continuation, str)):
        raise InputError(f"{len(encoded)} prompts need a list of as many continuations, or continuation=None")
    texts = [
        _continued(loaded.module, one, text, settings, max_new_tokens) for one, text in zip(encoded, given, strict=True)
    ]
    most = max(len(ids) for ids, *_ in texts)
    targets = [
        # Every prompt has as many targets: the last one is repeated, and left out of the result.
        [TokenTarget(ids[min(t, len(ids) - 1)], start + min(t, len(ids) - 1) - 1, score) for t in range(most)]
        for (ids, *_), start in zip(texts, (len(one.ids) for one in encoded), strict=True)
    ]
    found = explain(
        loaded, [read for _, _, read in texts], method, tokenizer=settings, target=targets, batch_size=batch_size,
        units=units, **options,
    )  # fmt: skip
    results = [
        _of_prompt(found, b, encoded[b], ids, whole, units is not None, loaded.name)
        for b, (ids, whole, _) in enumerate(texts)
    ]
    return results[0] if single else results


def _about_images(
    loaded: LoadedModel, inputs: Any, method: str | None, processor: Any, count: int, continuation: Any,
    score: str | None, units: Any, options: dict[str, Any],
) -> GenerationExplanation | list[GenerationExplanation]:  # fmt: skip
    """Explain questions about images, one after the other."""
    from vitrail.pipeline.image_generation import explain_image_generation

    if units is not None:
        raise OptionError(f"units={units!r}: of a prompt with an image, words are the sources; leave units out")
    call = to_model_inputs(dict(inputs), loaded, options.get("roles"), "input_ids", None)
    single = call.batch == 1
    given = [continuation] if single else [None] * call.batch if continuation is None else list(continuation)
    if len(given) != call.batch or (not single and isinstance(continuation, str)):
        raise InputError(f"{call.batch} prompts need a list of as many continuations, or continuation=None")
    found = []
    for i, text in enumerate(given):
        kept = call.select(slice(i, i + 1)).kwargs
        own = {name: value for name, value in kept.items() if value is not None}
        found.append(explain_image_generation(loaded, own, method, processor, count, text, score, options))
    return found[0] if single else found


def _continued(
    model: nn.Module, prompt: EncodedPrompt, continuation: Any, settings: TokenizerSettings, most: int
) -> tuple[tuple[int, ...], EncodedPrompt, EncodedPrompt]:
    """Tokens after a prompt, the prompt with them, and with all but the last, which no score depends on."""
    limit, inner = context_limit(model, settings.window), settings.tokenizer
    check_length(len(prompt.ids), limit, "the prompt")
    if continuation is None:
        room = most if limit is None else min(most, limit - len(prompt.ids) + 1)
        ids = greedy_tokens(model, prompt.ids, room, getattr(inner, "eos_token_id", None))
    else:
        ids = encoded_answer(continuation, inner) if isinstance(continuation, str) else tuple(map(int, continuation))
    if not ids:
        raise InputError("the model wrote nothing after the prompt: it ends the text at once; pass continuation=…")
    check_length(len(prompt.ids) + len(ids) - 1, limit, "the prompt with its continuation")
    return ids, with_continuation(prompt, ids, inner), with_continuation(prompt, ids[:-1], inner)


def _of_prompt(
    found: Explanation, b: int, prompt: EncodedPrompt, ids: Sequence[int], whole: EncodedPrompt, units: bool, name: str
) -> GenerationExplanation:
    """The part of one prompt."""
    assert found.text is not None
    assert found.named_targets is not None
    count, here = len(ids), slice(b, b + 1)
    matrix = found.grid.new_zeros(count, len(whole.ids), dtype=torch.float32)
    matrix[:, : len(whole.ids) - 1] = found.grid[b, :count, : len(whole.ids) - 1]
    spans = tuple(
        s if content else (0, 0) for s, content in zip(whole.encoded.spans, whole.encoded.content, strict=True)
    )
    sources = found.text[b].spans if units else spans_of(whole.encoded, None)
    probabilities = [getattr(record.pinned, "probability", 0.0) for record in found.named_targets[b][:count]]
    log_probabilities = tuple(torch.tensor(probabilities, dtype=torch.float64).log().tolist())
    source = found.source
    if isinstance(source, PromptSource):
        source = replace(source, prompts=source.prompts[here])
    own = replace(
        found, source=source, maps=found.maps[here, :count], grid=found.grid[here, :count], text=found.text[here],
        constant=found.constant[here, :count], named_targets=(found.named_targets[b][:count],),
    )  # fmt: skip
    return GenerationExplanation(
        own, found.method, whole.encoded.text, len(prompt.encoded.text), whole.encoded.tokens, spans, len(prompt.ids),
        matrix.cpu(), log_probabilities, tuple(sources), found.signed, name,
    )  # fmt: skip
