"""``vitrail explain --text``: texts of classifiers, and prompts of language models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from vitrail.cli.common import load_model, model_sentence, out, parse_targets, plain_table, progress_bar
from vitrail.errors import FigureSizeError, InputError, writing

#: An explained class with a lower probability than this is reported as one that the model does not predict.
MIN_PROBABILITY = 0.001
#: With more such classes than this, they are counted instead of named.
MAX_REJECTED = 4
#: Generated words whose sources are printed.
MAX_WORDS = 40

TextOption = Annotated[
    list[str] | None,
    typer.Option("--text", metavar="TEXT", help="A text instead of images, for hf: models; without --model the "
                 "embedded language model lm-recall. Repeat it for several.", show_default=False),
]  # fmt: skip
TokenOption = Annotated[
    list[str] | None,
    typer.Option("--token", metavar="TEXT", help="Explain this token after the --text, for language models; with the "
                 "space before it where one belongs there. Repeat it for several.", show_default=False),
]  # fmt: skip
AnswerOption = Annotated[
    list[str] | None,
    typer.Option("--answer", metavar="TEXT", help="Explain the log-probability of this continuation of the --text. "
                 "Repeat it for several.", show_default=False),
]  # fmt: skip
GenerateOption = Annotated[
    int | None,
    typer.Option("--generate", metavar="N", help="Let the language model write at most N tokens after the --text, and "
                 "explain each.", show_default=False),
]  # fmt: skip
UnitsOption = Annotated[
    str | None,
    typer.Option("--units", metavar="tokens|words|sentences|paragraphs", help="Parts of a --text that are scored and "
                 "removed as a whole. Default: words.", show_default=False),
]  # fmt: skip


@dataclass(frozen=True)
class LanguageOptions:
    """Options for language models.

    Attributes:
        tokens: Tokens that are explained.
        answers: Continuations that are explained.
        against: Tokens or continuations that they are compared with.
        generate: Most tokens that are generated and explained, or None.
        units: Units of the result, or None.
    """

    tokens: Sequence[str] | None = None
    answers: Sequence[str] | None = None
    against: Sequence[str] | None = None
    generate: int | None = None
    units: str | None = None

    @property
    def given(self) -> bool:
        """Whether one of the options was given."""
        return bool(self.tokens or self.answers or self.generate is not None or self.units)

    def row(self, target: Sequence[str] | None) -> list[list[Any]] | None:
        """One row of targets for every text, or None where none is named.

        Raises:
            InputError: The options contradict each other.
        """
        from vitrail.targets import answer, contrast, token

        if not (self.tokens or self.answers):
            return None
        if target:
            raise InputError("--target names classes: it does not go with --token and --answer")
        if self.generate is not None:
            raise InputError("--generate explains what the model writes: it does not go with --token and --answer")
        row: list[Any] = [token(one, list(self.against or ()) or None) for one in self.tokens or ()]
        for one in self.answers or ():
            others = [answer(text) for text in self.against or ()]
            row.append(contrast(answer(one), others) if others else answer(one))
        return [row]


@dataclass(frozen=True)
class TextModel:
    """A model that reads texts, as the command line names it.

    Attributes:
        model: Its name.
        loaded: The model.
        tokenizer: Its tokenizer.
    """

    model: str
    loaded: Any
    tokenizer: Any

    @property
    def language(self) -> bool:
        """Whether it is a language model; otherwise it has classes."""
        from vitrail.text.language_model import is_language_model

        return is_language_model(self.loaded.module)

    def targets(self, options: LanguageOptions, target: list[str] | None) -> Any:
        """What is explained, as `vitrail.explain` takes it."""
        row = options.row(target)
        if not self.language and row is not None:
            raise InputError("--token and --answer are for language models, and this model has classes: use --target")
        return row if row is not None else _tokens(target) if self.language else parse_targets(self.loaded, target)


def load_text_model(
    texts: Sequence[str], images: Sequence[str | Path] | None, model: str, weights: str, device: str,
    scores: str | None, announce: bool = True,
) -> TextModel:  # fmt: skip
    """Load a model for texts; the embedded language model where none is named, which is printed with ``announce``.

    Raises:
        InputError: A text is empty, or images were given too.
    """
    from vitrail.text.tokens import load_tokenizer

    if images:
        raise InputError("image files and --text were both given: pass one of them")
    empty = [i for i, text in enumerate(texts, 1) if not text.strip()]
    if empty:
        raise InputError(f"text {empty[0]} is empty: pass a text with at least one word")
    if model == "scenes":  # the default, which reads no texts
        model = "lm-recall"
        if announce:
            out.print(model_sentence(model, weights), highlight=False, soft_wrap=True)
    tokenizer = load_tokenizer(model)
    return TextModel(model, load_model(model, weights, device, scores), tokenizer)


def explain_texts(
    texts: list[str], reader: TextModel, methods: list[str] | None, target: list[str] | None,
    options: LanguageOptions, to: Path, check: bool, recompute: bool | None = None,
) -> None:  # fmt: skip
    """Explain texts, print them in colour and write scores, a page and a figure."""
    from vitrail.pipeline.explain import explain as explain_inputs
    from vitrail.text.rendering import html, terminal

    if options.generate is not None:
        options.row(target)  # raises where the options contradict each other
        _explain_generation(texts, reader, methods, options, to, recompute)
        return
    targets = reader.targets(options, target)
    with progress_bar("Explaining texts", 1) as advance:
        explanations = explain_inputs(
            reader.loaded, texts, methods=methods or [default_method(reader.language)], target=targets,
            tokenizer=reader.tokenizer, check=check, units=options.units, progress=advance.evaluations,
            recompute=recompute,
        )  # fmt: skip
    explanations.save(to)
    with writing(to, "choose another folder with --out"):
        (to / "text.html").write_text(html(explanations), encoding="utf-8")
    save_figure(explanations, to)
    first = next(iter(explanations.values()))
    for sentence in unlikely_targets(first):
        out.print(f"[yellow]{escape(sentence)}[/yellow]", highlight=False, soft_wrap=True)
    for b in range(len(texts)):
        for k in range(first.maps.shape[1]):
            out.print(f"[bold]{escape(first.label(b, k))}[/bold]", highlight=False)
            table = plain_table(padding=(0, 2, 0, 0))
            for name, explanation in explanations.items():
                table.add_row(f"[dim]{name}[/dim]", terminal(explanation, b, k))
            out.print(table)
            for explanation in explanations.values() if check else ():
                out.print(str(explanation.checks[b, k]), markup=False, highlight=False, soft_wrap=True)
    out.print(f"Word scores, page and manifests: [bold]{to}[/bold]", soft_wrap=True)


def default_method(language: bool) -> str:
    """The method where none is named."""
    from vitrail.pipeline.request import DEFAULT, LANGUAGE_DEFAULT

    return LANGUAGE_DEFAULT if language else DEFAULT


def _tokens(target: list[str] | None) -> Any:
    """Values of --target for a language model: "topN", ids or texts of tokens."""
    if target is None or (len(target) == 1 and target[0].startswith("top") and target[0][3:].isdecimal()):
        return None if target is None else target[0]
    return [[int(one) if one.isdecimal() else one for one in target]]


def _explain_generation(
    texts: list[str], reader: TextModel, methods: list[str] | None, options: LanguageOptions, to: Path,
    recompute: bool | None,
) -> None:  # fmt: skip
    """Explain what a model writes after each text."""
    from vitrail.pipeline.generation import explain_generation

    for name in methods or [default_method(True)]:
        written: Any = explain_generation(
            reader.loaded, texts, name, tokenizer=reader.tokenizer, max_new_tokens=int(options.generate or 1),
            units=options.units, recompute=recompute,
        )  # fmt: skip
        for i, found in enumerate(written):
            found.save(to / f"text-{i}" / name.replace(":", "-") if len(texts) > 1 or methods else to)
            out.print(f"[dim]{escape(name)}[/dim]", found.terminal())
            table = plain_table("generated", "sources")
            for k, word in enumerate(found.words[:MAX_WORDS]):
                table.add_row(escape(word), escape(", ".join(source for source, _ in found.top(k, 3))))
            out.print(table)
    out.print(f"Matrix, page and manifest: [bold]{to}[/bold]", soft_wrap=True)


def unlikely_targets(explanation: Any) -> list[str]:
    """Sentences on explained classes to which the model gives less than ``MIN_PROBABILITY``, and what it predicts."""
    from vitrail.capture.score_function import as_probabilities

    probabilities = explanation.probabilities
    if probabilities is None or explanation.scores == "identity":
        return []
    sentences = []
    for b, unlikely in enumerate(probabilities < MIN_PROBABILITY):
        rejected = unlikely.nonzero().flatten().tolist()
        if not rejected:
            continue
        best = int(explanation.logits[b].argmax())
        names = explanation.classes
        name = names[best].split(",")[0] if names and best < len(names) else f"class {best}"
        share = float(as_probabilities(explanation.logits[b : b + 1].double(), explanation.scores)[0, best])
        predicted, limit = f"it predicts {name} ({100 * share:.1f} %)", f"less than {100 * MIN_PROBABILITY:g} %"
        if len(rejected) > MAX_REJECTED:
            sentences.append(
                f"the model does not predict {len(rejected)} of the explained classes ({limit} each); {predicted}. "
                "Their maps explain classes that the model rejects."
            )
            continue
        sentences += [
            f"the model does not predict {explanation.target_name(b, k)} ({limit}); {predicted}. The map explains a "
            "class that the model rejects."
            for k in rejected
        ]
    return sentences


def save_figure(explanations: Any, folder: Path) -> None:
    """Write ``figure.png`` if matplotlib is installed; a figure that would be too large is left out with a word."""
    if find_spec("matplotlib") is None:
        return
    file = folder / "figure.png"
    try:
        figure = explanations.figure()
    except FigureSizeError as error:
        figure = None
        out.print(f"{file} is left out: {error}. All maps are saved.", markup=False, highlight=False, soft_wrap=True)
    with writing(file, "choose another folder with --out"):
        if figure is None:
            file.unlink(missing_ok=True)  # of an earlier run with fewer maps
        else:
            figure.savefig(file)
