"""Units of a text whose relevance is added up: tokens, words, sentences, paragraphs, or passages of the user."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from vitrail.errors import InputError, OptionError
from vitrail.text.tokens import Span, word_spans

NAMED_UNITS = ("tokens", "words", "sentences", "paragraphs")
#: The end of a sentence: a mark, closing quotes or brackets, then a space or the end of a line.
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|\n")
_PARAGRAPH_END = re.compile(r"\n\s*\n")


def unit_spans(text: str, units: Any, token_spans: Sequence[Span] = ()) -> tuple[Span, ...]:
    """Start and end (exclusive) of each unit of a text, in characters.

    Args:
        text: The text.
        units: "tokens", "words", "sentences", "paragraphs", or passages: pairs of start and end, or their texts in the
            order in which they occur.
        token_spans: Characters of the tokens, for "tokens".

    Raises:
        OptionError: The units are not understood.
        InputError: A passage is not in the text.

    Example:
        >>> unit_spans("Anna sings. Ben reads a book.", "sentences")
        ((0, 11), (12, 29))
        >>> unit_spans("Anna sings. Ben reads.", ["Anna", "Ben"])
        ((0, 4), (12, 15))
    """
    if isinstance(units, str):
        if units == "words":
            return word_spans(text)
        if units == "tokens":
            return tuple(span for span in token_spans if span[0] < span[1])
        if units == "sentences":
            return _between(text, _SENTENCE_END)
        if units == "paragraphs":
            return _between(text, _PARAGRAPH_END)
    elif isinstance(units, Sequence) and units:
        if all(isinstance(one, str) for one in units):
            return _found(text, units)
        if all(_is_span(one) for one in units):
            return _checked([(int(a), int(b)) for a, b in units], text)
    listed = ", ".join(map(repr, NAMED_UNITS))
    raise OptionError(f"units={units!r} is not one of {listed}, or a list of passages: (start, end) or their texts")


def units_of_each(units: Any, texts: int) -> list[Any]:
    """The units of each text: the same for all, or one list of passages for each.

    Example:
        >>> units_of_each("words", 2), units_of_each([[(0, 4)], [(0, 3), (4, 9)]], 2)
        (['words', 'words'], [[(0, 4)], [(0, 3), (4, 9)]])
    """
    nested = (
        not isinstance(units, str)
        and isinstance(units, Sequence)
        and len(units) > 0
        and all(_is_list(u) for u in units)
    )
    if not nested:
        return [units] * texts
    if len(units) != texts:
        raise OptionError(f"units= has {len(units)} lists of passages for {texts} texts: give one for each text")
    return list(units)


def unit_of_tokens(token_spans: Sequence[Span], units: Sequence[Span]) -> list[int]:
    """The unit that each token belongs to, that with most of its characters; −1 for none.

    Example:
        >>> unit_of_tokens([(0, 0), (0, 4), (4, 10), (10, 11)], [(0, 4), (5, 10)])
        [-1, 0, 1, -1]
    """
    order = sorted(range(len(units)), key=lambda i: units[i])
    ends = [units[i][1] for i in order]
    found = []
    for start, stop in token_spans:
        best, most = -1, 0
        for place in range(bisect_right(ends, start), len(order)):
            a, b = units[order[place]]
            if a >= stop:
                break
            shared = min(stop, b) - max(start, a)
            if shared > most:
                best, most = order[place], shared
        found.append(best)
    return found


def divided_at(units: Sequence[Span], text: str, place: int) -> tuple[Span, ...]:
    """Units of a text of which one that goes over a place is divided there, without spaces around.

    Example:
        >>> divided_at([(0, 4), (5, 16)], "Anna has the key", 12)
        ((0, 4), (5, 12), (13, 16))
    """
    found: list[Span] = []
    for start, stop in units:
        if not start < place < stop:
            found.append((start, stop))
            continue
        before, after = text[start:place].rstrip(), text[place:stop].lstrip()
        found += [(start, start + len(before))] if before else []
        found += [(stop - len(after), stop)] if after else []
    return tuple(found)


def _between(text: str, ends: re.Pattern[str]) -> tuple[Span, ...]:
    """The pieces of a text between some marks, which belong to the piece before them, without spaces around."""
    stops = [*(match.end() for match in ends.finditer(text)), len(text)]
    found, start = [], 0
    for stop in stops:
        piece = text[start:stop]
        first = start + len(piece) - len(piece.lstrip())
        last = first + len(piece.strip())
        if first < last:
            found.append((first, last))
        start = stop
    return tuple(found)


def _found(text: str, passages: Sequence[str]) -> tuple[Span, ...]:
    found, start = [], 0
    for passage in passages:
        at = text.find(passage, start) if passage else -1
        if at < 0:
            raise InputError(
                f"the passage {passage[:40]!r} is not in the text after character {start}: give passages in the order "
                "in which they occur, or as (start, end)"
            )
        found.append((at, at + len(passage)))
        start = at + len(passage)
    return tuple(found)


def _checked(spans: list[Span], text: str) -> tuple[Span, ...]:
    for start, end in spans:
        if not 0 <= start < end <= len(text):
            raise InputError(f"the passage ({start}, {end}) is not in the text, which has {len(text)} characters")
    ordered = sorted(spans)
    for one, following in pairwise(ordered):
        if following[0] < one[1]:
            raise InputError(f"the passages {one} and {following} overlap: a character belongs to one passage")
    return tuple(spans)


def _is_span(value: Any) -> bool:
    pair = isinstance(value, list | tuple) and len(value) == 2
    return pair and all(isinstance(i, int) and not isinstance(i, bool) for i in value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and not _is_span(value)
