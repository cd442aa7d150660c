"""Errors of the API: each says what is wrong and how to fix it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import HTTPException


class ApiError(HTTPException):
    """An error response."""

    def __init__(self, status: int, what: str, fix: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, error_body(what, fix)["error"], dict(headers) if headers else None)


def error_body(what: str, fix: str) -> dict[str, dict[str, str]]:
    """Build the body of an error response.

    Example:
        >>> error_body("job not found", "start it again")
        {'error': {'what': 'job not found', 'fix': 'start it again'}}
    """
    return {"error": {"what": what, "fix": fix}}


def split_message(problem: Exception, fix: str = "Change the request and try again.") -> dict[str, str]:
    """Split the message of a library error, "what: fix", into its two parts.

    Example:
        >>> split_message(ValueError("class 7 does not exist: the model has 3 classes, 0 to 2"))
        {'what': 'class 7 does not exist', 'fix': 'the model has 3 classes, 0 to 2'}
        >>> split_message(ValueError("no"))
        {'what': 'no', 'fix': 'Change the request and try again.'}
    """
    text = " ".join(str(problem).split()) or type(problem).__name__
    what, colon, rest = text.partition(": ")
    return {"what": what, "fix": rest} if colon and rest else {"what": text, "fix": fix}


def to_api_error(problem: Exception, status: int = 422) -> ApiError:
    """Convert a library error to an error response."""
    message = split_message(problem)
    return ApiError(status, message["what"], message["fix"])


def not_found(what: str, fix: str = "It may have expired: start again.") -> ApiError:
    """Build the error response for something that does not exist."""
    return ApiError(404, f"{what} not found", fix)


def message_of(detail: Any) -> dict[str, str]:
    """Convert the detail of an `HTTPException` to a message and a fix."""
    if isinstance(detail, dict) and {"what", "fix"} <= detail.keys():
        return {"what": str(detail["what"]), "fix": str(detail["fix"])}
    return {"what": str(detail), "fix": "See /api/docs."}
