"""Security middleware: request size, host and origin checks, response headers and the client cookie."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrail.web.errors import ApiError, error_body
from vitrail.web.limits import Limits
from vitrail.web.uploads import too_large

COOKIE = "vitrail"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
UPLOAD_PATH = "/api/pictures"
#: Bytes of a multipart form around its file.
FORM_OVERHEAD = 16 * 1024
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class SecurityMiddleware:
    """The outermost layer of the application.

    Args:
        app: The application.
        limits: The limits of request sizes.
        hosts: Host names the server answers to, or None for any. This prevents DNS rebinding: another site cannot reach
            a local server by pointing its own name to the local address.
    """

    def __init__(self, app: ASGIApp, limits: Limits, hosts: Sequence[str] | None = None) -> None:
        self.app, self.limits, self.hosts = app, limits, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or reject it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope.setdefault("state", {})
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                _add_headers(message, scope)
            await send(message)

        problem = self._check(scope)
        if problem is None:
            try:
                await self.app(scope, self._limit_body(scope, receive), send_with_headers)
                return
            except ApiError as error:  # raised while the body was read, outside of any handler
                if started:
                    raise
                problem = error
        detail: Any = problem.detail
        response = JSONResponse(error_body(detail["what"], detail["fix"]), problem.status_code, problem.headers)
        await response(scope, receive, send_with_headers)

    def _max_bytes(self, scope: Scope) -> int:
        return self.limits.upload_bytes + FORM_OVERHEAD if scope["path"] == UPLOAD_PATH else self.limits.body_bytes

    def _check(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self.hosts is not None and _host_name(host) not in self.hosts:
            return ApiError(421, "unknown host name", f"Use {self.hosts[0]}.")
        origin = headers.get("origin")
        if scope["method"] not in SAFE_METHODS and origin is not None and urlsplit(origin).netloc != host:
            return ApiError(403, "cross-origin request", "Use this server's own page.")
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._max_bytes(scope):
            return self._too_large(scope)
        return None

    def _too_large(self, scope: Scope) -> ApiError:
        if scope["path"] == UPLOAD_PATH:
            return too_large(self.limits)
        return ApiError(413, f"the request has more than {self.limits.body_bytes} bytes", "Shorten it.")

    def _limit_body(self, scope: Scope, receive: Receive) -> Receive:
        """Count the bytes of the body as they arrive, whatever its Content-Length header says."""
        left = self._max_bytes(scope)

        async def receive_limited() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise self._too_large(scope)
            return message

        return receive_limited


def _host_name(host: str) -> str:
    """A host without its port.

    Example:
        >>> _host_name("localhost:8000"), _host_name("[::1]:8000"), _host_name("127.0.0.1")
        ('localhost', '::1', '127.0.0.1')
    """
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _add_headers(message: MutableMapping[str, Any], scope: Scope) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in HEADERS.items():
        headers[name] = value
    if scope["path"].startswith("/api/"):
        headers.setdefault("Cache-Control", "no-store")
    cookie = scope["state"].get("new_cookie")
    if cookie is not None:
        headers.append("Set-Cookie", f"{COOKIE}={cookie}; HttpOnly; SameSite=Strict; Path=/; Max-Age=31536000")
