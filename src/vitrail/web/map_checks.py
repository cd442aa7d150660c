"""Checks of the maps of a job, with `vitrail.trust`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

from vitrail.capture.frozen import unwrap
from vitrail.inputs.map_source import MapSource, PromptSource, QuestionSource, TextSource
from vitrail.inputs.targets import Target
from vitrail.models import LoadedModel
from vitrail.pipeline.explain import explain
from vitrail.pipeline.explanation import Explanation
from vitrail.targets import contrast
from vitrail.text.prediction import predict_texts
from vitrail.trust.check_run import BUDGETS, SAME, STABLE, TESTS
from vitrail.trust.checker import check_maps
from vitrail.trust.map_check import MapCheck
from vitrail.web.explained_calls import explained_call
from vitrail.web.ignored_warnings import ignored_warnings
from vitrail.web.jobs import Job
from vitrail.web.page_targets import PageTarget, difference

BUDGET = "quick"
#: What a map is compared with in each test.
CORRELATIONS = {
    "noise": "the map under small noise", "seed": "the map with another seed", "class": "the map for {other}",
    "head": "the map with a random head", "block": "the map with a random head and last block",
}  # fmt: skip


def target_of(job: Job) -> Target:
    """The target of a job in the form that `vitrail.explain` takes."""
    assert job.targets is not None
    first, other = job.targets[0], job.contrast
    if isinstance(first, PageTarget) and isinstance(other, PageTarget):
        return difference(first, other, job.served)
    if other is not None:
        return contrast(first, other)
    rows = [target.named(job.served) if isinstance(target, PageTarget) else target for target in job.targets]
    return cast("Target", [rows])


def check_map(job: Job, explanation: Explanation, k: int, advance: Callable[[int], None]) -> MapCheck:
    """Check the map of one method for target ``k`` of a job; see `vitrail.Explanation.check`."""
    with ignored_warnings():
        copy = job.served.check_copy(job.raw_input)
        # Other threads read the weights of a model that cannot be copied: they are not randomised.
        tests = TESTS if copy is not None else tuple(test for test in TESTS if test != "model")
        checks = check_maps(
            _source(job, copy or job.served.loaded), {explanation.method: explanation}, 0, k, budget=BUDGET,
            tests=tests, batch_size=job.served.batch_size, seed=job.seed, advance=advance,
        )  # fmt: skip
    check = next(iter(checks.values()))
    target = job.targets[k] if job.targets else None
    if isinstance(target, PageTarget) and target.kind == "token":  # words as the page writes them
        other = check.other_class.partition(" (")[0]
        check = replace(check, label=target.name(job.served), other_class=_plain_token(other))
    if job.contrast is not None and not job.has_named_targets:
        reason = "class: a map of the difference of two classes has no other class to compare with"
        check = replace(check, skipped=tuple(reason if s.startswith("class:") else s for s in check.skipped))
    return check


def _plain_token(name: str) -> str:
    """The word of a token's name in the library.

    Example:
        >>> _plain_token("token(' coin')"), _plain_token("' coin'"), _plain_token("")
        ('coin', 'coin', '')
    """
    quoted = re.fullmatch(r"(?:token\()?['\"](.*)['\"]\)?", name)
    return name if quoted is None else quoted[1].strip() or "space"


def check_evaluations(job: Job) -> int:
    """Images with removed patches, or texts with removed words, that the check of one map evaluates."""
    budget = BUDGETS[BUDGET]
    if job.served.reading is None:
        return budget.removals
    return budget.removals // len(budget.levels) * (len(budget.levels) + 1)


def _source(job: Job, loaded: LoadedModel) -> MapSource | TextSource | PromptSource | QuestionSource:
    """The model that checks a job's maps, and the job's input."""
    served, reading = job.served, job.served.reading
    given: dict[str, Any] = {"batch_size": served.batch_size}
    if reading is not None:
        given["tokenizer"] = reading

    def explain_again(inputs: Any, methods: Mapping[str, Mapping[str, Any]], target: Target) -> Mapping[str, Any]:
        return explain(loaded, inputs, methods=methods, target=target, **given)

    if reading is not None and not job.has_named_targets:
        predict = partial(predict_texts, settings=reading, model=unwrap(loaded.module))
        return TextSource(loaded, (job.raw_input,), reading, predict, explain_again)
    target = target_of(job)
    if job.has_named_targets or served.media != "image":
        return _named_source(job, loaded, target)
    function = target if callable(target) else None
    return MapSource(loaded, served.model_inputs(job.raw_input), served.structure, function, explain_again)


def _named_source(job: Job, loaded: LoadedModel, target: Target) -> MapSource | PromptSource | QuestionSource:
    """The source of maps of prompts, boxes, regions, tokens, videos and sound: that of a map which costs nothing."""
    inputs, given = explained_call(job.served, [job.raw_input], job.targets)
    found = explain(loaded, inputs, "random", target=target, batch_size=job.served.batch_size, **given)
    assert isinstance(found.source, MapSource | PromptSource | QuestionSource)
    return found.source


def check_json(check: MapCheck) -> dict[str, Any]:
    """A check as the page shows it: the verdict, sentences, what the removal did, and each correlation with its range.

    ``removal`` has the share of patches removed, and the output for the whole input, without the marked patches and
    without as many others. Of ``correlations``, ``good`` says whether the value lies in the good range.
    """
    found = {
        "noise": check.noise_similarity, "seed": check.seed_similarity, "class": check.class_similarity,
        "head": check.head_similarity, "block": check.block_similarity,
    }  # fmt: skip
    correlations = [
        {"test": test, "with": CORRELATIONS[test].format(other=check.other_class), "value": value,
         "good": value >= STABLE if test in ("noise", "seed") else value <= SAME,
         "range": f"{STABLE:g} or more" if test in ("noise", "seed") else f"{SAME:g} or less"}
        for test, value in found.items() if value is not None
    ]  # fmt: skip
    return {
        "verdict": check.verdict, "meaning": check.meaning, "passed": check.passed,
        "failures": list(check.failures), "p_value": check.p_value, "sentences": list(check.sentences),
        "removal": {"share": check.levels[0], "whole": check.probability, "marked": check.removed[0],
                    "elsewhere": check.null_removed[0], "is_probability": check.is_probability, "unit": check.unit},
        "correlations": correlations,
    }  # fmt: skip
