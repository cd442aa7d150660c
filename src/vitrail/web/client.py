"""Who is asking: a random cookie, or the address of who has none yet."""

from __future__ import annotations

import re
import secrets

from fastapi import Request

from vitrail.web.state import Client, ServerState

COOKIE = "vitrail"
_FORM = re.compile(r"[A-Za-z0-9_-]{22}\Z")


def studio_of(request: Request) -> ServerState:
    """What the server has."""
    studio: ServerState = request.app.state.studio
    return studio


def client_of(request: Request) -> Client:
    """Who asks; somebody without a cookie is given one with the answer, and will be known by both.

    The answer's cookie is set by `vitrail.web.middleware.SecurityMiddleware`, which finds it in the request's state.
    """
    cookie = request.cookies.get(COOKIE, "")
    if _FORM.match(cookie):
        return Client(cookie, frozenset({cookie}))
    address = f"@{request.client.host}" if request.client else "@"
    fresh = getattr(request.state, "fresh", None)
    if fresh is None:
        fresh = request.state.fresh = secrets.token_urlsafe(16)
    return Client(address, frozenset({address, fresh}))
