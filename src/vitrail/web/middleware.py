"""What every request and answer passes: limits on bytes, whose page may ask, and headers that keep browsers strict."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrail.web.client import COOKIE
from vitrail.web.errors import ApiError, error
from vitrail.web.limits import Limits
from vitrail.web.uploads import too_large

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
UPLOADS = "/api/pictures"
#: Bytes around a file in a form.
AROUND = 16 * 1024
SAFE = ("GET", "HEAD", "OPTIONS")


class SecurityMiddleware:
    """The outermost layer of the application.

    Args:
        app: What it guards.
        limits: How many bytes a request may have.
        hosts: Names the server answers to, or None for any: other pages cannot reach a server on this machine by giving
            their own name its address.
    """

    def __init__(self, app: ASGIApp, limits: Limits, hosts: Sequence[str] | None = None) -> None:
        self.app, self.limits, self.hosts = app, limits, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope.setdefault("state", {})
        begun = False

        async def dressed(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                _dress(message, scope)
            await send(message)

        problem = self._problem(scope)
        if problem is None:
            try:
                await self.app(scope, self._counted(scope, receive), dressed)
                return
            except ApiError as refusal:  # raised while the body was read, outside of any handler
                if begun:
                    raise
                problem = refusal
        body: Any = problem.detail
        answer = JSONResponse(error(body["what"], body["fix"]), problem.status_code, problem.headers)
        await answer(scope, receive, dressed)

    def _most(self, scope: Scope) -> int:
        return self.limits.upload + AROUND if scope["path"] == UPLOADS else self.limits.body

    def _problem(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self.hosts is not None and _name(host) not in self.hosts:
            return ApiError(421, "this server does not answer to that name", f"Use {self.hosts[0]}.")
        origin = headers.get("origin")
        if scope["method"] not in SAFE and origin is not None and urlsplit(origin).netloc != host:
            return ApiError(403, "the request comes from another site's page", "Use this server's own page.")
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._most(scope):
            return self._too_large(scope)
        return None

    def _too_large(self, scope: Scope) -> ApiError:
        if scope["path"] == UPLOADS:
            return too_large(self.limits)
        return ApiError(413, f"the request has more than {self.limits.body} bytes", "Shorten it.")

    def _counted(self, scope: Scope, receive: Receive) -> Receive:
        """The body as it arrives, cut off where it grows too large whatever its header said."""
        left = self._most(scope)

        async def counted() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise self._too_large(scope)
            return message

        return counted


def _name(host: str) -> str:
    """A host without its port.

    Example:
        >>> _name("localhost:8000"), _name("[::1]:8000"), _name("127.0.0.1")
        ('localhost', '::1', '127.0.0.1')
    """
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _dress(message: MutableMapping[str, Any], scope: Scope) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in HEADERS.items():
        headers[name] = value
    if scope["path"].startswith("/api/"):
        headers.setdefault("Cache-Control", "no-store")
    fresh = scope["state"].get("fresh")
    if fresh is not None:
        headers.append("Set-Cookie", f"{COOKIE}={fresh}; HttpOnly; SameSite=Strict; Path=/; Max-Age=31536000")
