"""Check maps on the model and input they explain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vitrail import fast
from vitrail.capture.frozen import gradients_enabled
from vitrail.errors import InputError, OptionError
from vitrail.inputs.map_source import CheckSource, PromptSource, QuestionSource, TextSource
from vitrail.trust.check_run import BUDGETS, TESTS, Budget, CheckRun, CheckSettings
from vitrail.trust.image_check import ImageCheckRun
from vitrail.trust.input_removal import DEFAULT_GRID, PatchRemoval, WordRemoval
from vitrail.trust.map_check import MapChecks
from vitrail.trust.prompt_check import PromptCheckRun, UnitRemoval
from vitrail.trust.question_check import QuestionCheckRun, QuestionRemoval
from vitrail.trust.signal_check import SignalCheckRun
from vitrail.trust.signal_removal import SignalRemoval, default_cells
from vitrail.trust.text_check import TextCheckRun


@gradients_enabled()
def check_maps(
    source: CheckSource,
    explanations: Mapping[str, Any],
    image: int,
    k: int,
    *,
    budget: str | Budget = "quick",
    tests: Sequence[str] = TESTS,
    removal: str | None = None,
    batch_size: int = 64,
    seed: int = 0,
    advance: Callable[[int], None] = lambda _: None,
) -> MapChecks:
    """Check one map of each method; see `vitrail.Explanation.check`."""
    if isinstance(budget, str) and budget not in BUDGETS:
        raise OptionError(f"budget={budget!r} is not one of {', '.join(map(repr, BUDGETS))}")
    unknown = [test for test in tests if test not in TESTS]
    if unknown:
        raise OptionError(f"test {unknown[0]!r} is not one of {', '.join(map(repr, TESTS))}")
    first = next(iter(explanations.values()))
    if not (0 <= image < first.maps.shape[0] and 0 <= k < first.maps.shape[1]):
        raise OptionError(
            f"image={image}, k={k} does not exist: there are {first.maps.shape[0]} images with "
            f"{first.maps.shape[1]} targets each"
        )
    chosen = BUDGETS[budget] if isinstance(budget, str) else budget
    settings = CheckSettings(image, k, chosen, seed, frozenset(tests))
    run: CheckRun
    if isinstance(source, PromptSource):
        unit_removal = UnitRemoval(source, first, image, k, removal, advance=advance)
        run = PromptCheckRun(source, first, settings, unit_removal)
    elif isinstance(source, QuestionSource):
        question_removal = QuestionRemoval(source, first, image, k, removal, advance=advance)
        run = QuestionCheckRun(source, first, settings, question_removal)
    elif isinstance(source, TextSource):
        words = first.text[image].words
        run = TextCheckRun(source, first, settings, WordRemoval(source, words, removal, advance=advance))
    else:
        images = source.model_inputs.image
        if images is None and source.model_inputs.signal is None:
            raise InputError("maps of tokens are checked word by word: pass texts with tokenizer=… to vitrail.explain")
        if first.targets is not None and first.scores == "identity":
            raise InputError("checks compare log-odds, which the values of a regression do not have")
        call = source.model_inputs.select(slice(image, image + 1))
        grid = source.structure.layout.plane or DEFAULT_GRID
        if images is None:
            cells = source.structure.layout.grid or default_cells(call)
            run = SignalCheckRun(
                source, first, settings, SignalRemoval(source.loaded, call, cells, removal, batch_size, advance)
            )
        else:
            remove = PatchRemoval(source.loaded, call, grid, removal, batch_size, advance)
            run = ImageCheckRun(source, first, settings, remove)
    with fast.unchanged(source.loaded.module):
        return MapChecks({name: run(explanation) for name, explanation in explanations.items()})
