"""What all commands share: one line and status 130 after Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


class Interrupted(Exception):
    """Ctrl-C was pressed. Typer would end the program without a word on a KeyboardInterrupt."""


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """Turn a function into a command: a KeyboardInterrupt becomes `Interrupted`, which `main` reports."""

    @wraps(function)
    def run(*args: Any, **options: Any) -> None:
        try:
            function(*args, **options)
        except KeyboardInterrupt as error:
            raise Interrupted from error

    return run
