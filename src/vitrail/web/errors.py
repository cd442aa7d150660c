"""What a client is told when something cannot be done: what, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import HTTPException


class ApiError(HTTPException):
    """An answer with a status from 400 on.

    Args:
        status: The HTTP status.
        what: One sentence that says what is wrong.
        fix: What to do instead.
        headers: Further headers of the answer.
    """

    def __init__(self, status: int, what: str, fix: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, error(what, fix)["error"], dict(headers) if headers else None)


def error(what: str, fix: str) -> dict[str, dict[str, str]]:
    """The body of every answer that refuses.

    Example:
        >>> error("there is no such job", "start it again")
        {'error': {'what': 'there is no such job', 'fix': 'start it again'}}
    """
    return {"error": {"what": what, "fix": fix}}


def told(problem: Exception, fix: str = "Change the request and try again.") -> dict[str, str]:
    """An error of the library, whose messages say both in one sentence, in two parts.

    Example:
        >>> told(ValueError("class 7 does not exist: the model has 3 classes, 0 to 2"))
        {'what': 'class 7 does not exist', 'fix': 'the model has 3 classes, 0 to 2'}
        >>> told(ValueError("no"))
        {'what': 'no', 'fix': 'Change the request and try again.'}
    """
    text = " ".join(str(problem).split()) or type(problem).__name__
    what, colon, rest = text.partition(": ")
    return {"what": what, "fix": rest} if colon and rest else {"what": text, "fix": fix}


def refused(problem: Exception, status: int = 422) -> ApiError:
    """An error of the library as an answer."""
    said = told(problem)
    return ApiError(status, said["what"], said["fix"])


def missing(what: str, fix: str = "It may have been dropped to make room: start again.") -> ApiError:
    """An answer for something that is not there."""
    return ApiError(404, f"there is no {what}", fix)


def detail_of(detail: Any) -> dict[str, str]:
    """What an exception of the framework says, in our form."""
    if isinstance(detail, dict) and {"what", "fix"} <= detail.keys():
        return {"what": str(detail["what"]), "fix": str(detail["fix"])}
    return {"what": str(detail), "fix": "See /api/docs for what can be asked."}
