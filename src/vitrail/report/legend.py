"""Marks beside numbers, the same in every form of a report, and what they mean."""

from __future__ import annotations

from vitrail.report.ranking import ALPHA, RankedMethod

#: Cannot be told from the best.
TIED = "="
#: No better than the strongest control.
WEAK = "○"

_MEANING = f"""
Best in bold, second best underlined; equal values share a place. Controls know nothing of the model, stand apart below
the methods, and are never marked.

`{TIED}` the difference to the best is no more than chance; `{WEAK}` the method is not shown to be better than the
strongest control.

Numbers in brackets are 95 % intervals: percentile bootstrap over pictures, 2,000 draws. For "best of ten" the threshold
is chosen once on all pictures, so that its interval does not hold the choice itself.

Tests are paired over the pictures that two methods share (methods swapped at random, 2,000 draws), corrected after Holm
for the number of methods in the column, and called a difference below {ALPHA}.
"""
#: How to read the tables, a sentence or two each.
MEANING = tuple(" ".join(part.split()) for part in _MEANING.strip().split("\n\n"))


def marks(standing: RankedMethod, direction: str) -> str:
    """The marks of a number."""
    tied = TIED if standing.place != 1 and standing.tied() else ""
    return tied + (WEAK if standing.beats(direction) is False else "")
