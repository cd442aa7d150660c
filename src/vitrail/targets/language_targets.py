"""Targets of language models: what a user gives as targets of prompts, and the continuations that they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vitrail.errors import TargetError
from vitrail.inputs.targets import top_count
from vitrail.targets.answer_target import AnswerTarget
from vitrail.targets.bound_targets import Rows, target_rows_of
from vitrail.targets.class_target import ClassTarget
from vitrail.targets.contrasts import Contrast
from vitrail.targets.named_target import NamedTarget
from vitrail.targets.token_target import TokenTarget


def language_rows(target: Any, prompts: int, tokenizer: Any) -> Rows:
    """One row of targets for each prompt, with the tokens of each.

    Args:
        target: None for the predicted token, "topN", the text or id of a token, one of `vitrail.targets`, one of these
            for each prompt, or rows of K.
        prompts: Number of prompts.
        tokenizer: The tokenizer.

    Example:
        >>> [str(one) for one in language_rows("top2", 1, None)[0]]
        ['the next token', 'the next token of rank 2']
    """
    best = top_count(target) if isinstance(target, str) else 0
    if best:
        target = [[TokenTarget(rank=i) for i in range(best)]]
    rows = target_rows_of(_as_targets(target), prompts)
    return tuple(tuple(_with_tokens(one, tokenizer) for one in row) for row in rows)


def _as_targets(target: Any) -> Any:
    """Tokens in place of what is a class elsewhere."""
    if isinstance(target, list | tuple):
        return [_as_targets(one) for one in target]
    if target is None:
        return TokenTarget()
    if isinstance(target, str) or (isinstance(target, int) and not isinstance(target, bool)):
        return TokenTarget(target)
    return target


def _with_tokens(target: NamedTarget, tokenizer: Any) -> NamedTarget:
    """The target with the ids of its tokens; a class that was given for a language model is a token."""
    if isinstance(target, Contrast):
        others = None if target.against is None else tuple(_with_tokens(o, tokenizer) for o in target.against)
        return replace(target, first=_with_tokens(target.first, tokenizer), against=others)
    if isinstance(target, ClassTarget):
        if target.label is not None and not isinstance(target.label, int | str):
            raise TargetError(f"{target} is a group of classes, and a language model has tokens: name one of them")
        target = TokenTarget(target.label)
    if isinstance(target, TokenTarget | AnswerTarget):
        return target.with_tokenizer(tokenizer)
    return target


def has_language_target(target: Any) -> bool:
    """Whether a target is a token or an answer, or holds some.

    Example:
        >>> from vitrail.targets import contrast, token
        >>> has_language_target([[contrast(token(" a"), token(" b"))]]), has_language_target("top2")
        (True, False)
    """
    if isinstance(target, list | tuple):
        return any(has_language_target(one) for one in target)
    return isinstance(target, NamedTarget) and target.reads_positions


@dataclass(frozen=True)
class TargetTerm:
    """A target that one sequence of tokens is enough for.

    Attributes:
        target: The target.
        forced: Tokens that are appended to the prompt.
    """

    target: NamedTarget
    forced: tuple[int, ...]


def target_terms(target: NamedTarget, start: int) -> tuple[TargetTerm, ...]:
    """The target as one term, or, where answers differ before their last token, a term for each of them."""
    if isinstance(target, AnswerTarget):
        return (TargetTerm(replace(target, start=start), target.forced),)
    if not isinstance(target, Contrast):
        return (TargetTerm(target, ()),)
    sides: Sequence[NamedTarget] = (target.first, *(target.against or ()))
    answers = [one for one in sides if isinstance(one, AnswerTarget)]
    if not answers:
        return (TargetTerm(target, ()),)
    if len(answers) < len(sides):
        raise TargetError(f"{target} compares an answer with something else: write contrast(answer(a), answer(b))")
    placed = [replace(one, start=start) for one in answers]
    if len({one.forced for one in placed}) == 1:
        others = None if target.against is None else tuple(placed[1:])
        return (TargetTerm(replace(target, first=placed[0], against=others), placed[0].forced),)
    return tuple(TargetTerm(one, one.forced) for one in placed)


def read_positions(target: NamedTarget, tokens: int) -> list[int]:
    """Positions of a sequence of some tokens whose scores a target reads.

    Raises:
        TargetError: The sequence is shorter.
    """
    if isinstance(target, Contrast):
        return [p for one in (target.first, *(target.against or ())) for p in read_positions(one, tokens)]
    if isinstance(target, AnswerTarget):
        assert target.start is not None
        return [target.start + i - 1 for i in range(len(target.ids))]
    if isinstance(target, TokenTarget):
        if not -tokens <= target.position < tokens:
            raise TargetError(f"{target}: the prompt has {tokens} tokens, 0 to {tokens - 1}")
        return [target.position % tokens]
    return list(range(tokens))  # a function may read any
