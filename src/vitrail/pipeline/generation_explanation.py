"""GenerationExplanation: relevance of a prompt, and of its image, for each token that a model wrote after it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.methods.postprocess import normalise, upsample
from vitrail.pipeline.explanation import Explanation
from vitrail.pipeline.saved_files import atomic_writes
from vitrail.text.generation_view import GenerationRows, generation_figure, generation_html, generation_terminal
from vitrail.text.result import WordRelevance
from vitrail.text.text_units import unit_of_tokens
from vitrail.text.tokens import Span, word_scores, word_spans
from vitrail.viz.colormap import overlay, to_image

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
        generated = self.token_spans[self.prompt_tokens :]
        words = torch.tensor(unit_of_tokens(generated, self.word_spans), dtype=torch.long)
        inside = (words[:, None] == words) & (words >= 0)
        matrix = self.matrix.clone()
        matrix[:, self.prompt_tokens :][inside] = 0.0
        columns = word_scores(matrix, self.token_spans, self.units)
        return word_scores(columns.T.contiguous(), generated, self.word_spans).T

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
