"""Security middleware: access, host and origin, size and time of requests, response headers, the client cookie."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrail.web.access import AccessToken
from vitrail.web.api_errors import ApiError, error_body
from vitrail.web.hosts import host_name, is_allowed
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
    """The outermost layer of the application."""

    def __init__(
        self, app: ASGIApp, limits: Limits, hosts: Sequence[str] | None = None, access: AccessToken | None = None
    ) -> None:
        self.app, self.limits, self.hosts, self.access = app, limits, hosts, access
        self._uploads: list[str] = []

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

        problem = self._check_host(scope)
        if problem is None and self.access is not None and not self.access.is_given(Headers(scope=scope)):
            response = self.access.answer_link(scope)
            if response is None and not scope["path"].startswith(("/api/", "/static/")):
                response = self.access.page()
            if response is not None:
                await response(scope, receive, send_with_headers)
                return
            fix = "Send the header Authorization: Bearer TOKEN, or open the link that vitrail serve printed."
            problem = ApiError(401, "this server needs a token", fix, {"WWW-Authenticate": "Bearer"})
        problem = problem or self._check(scope)
        if problem is None:
            try:
                with self._count_upload(scope):
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

    def _check_host(self, scope: Scope) -> ApiError | None:
        host = Headers(scope=scope).get("host", "")
        if self.hosts is None or is_allowed(host, self.hosts):
            return None
        name = host_name(host)[:60]
        fix = f"Open it by its address, or start it with vitrail serve --allow-host {name or 'NAME'}."
        return ApiError(421, f"this server does not answer to the host name {name!r}", fix)

    def _check(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
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

    @contextmanager
    def _count_upload(self, scope: Scope) -> Iterator[None]:
        """Limit the uploads that arrive at the same time, in total and of one client."""
        if scope["path"] != UPLOAD_PATH:
            yield
            return
        client = _client_key(scope)
        if len(self._uploads) >= self.limits.files or self._uploads.count(client) >= self.limits.files_per_client:
            raise ApiError(503, "too many uploads at the same time", "Try again.", {"Retry-After": "5"})
        self._uploads.append(client)
        try:
            yield
        finally:
            self._uploads.remove(client)

    def _limit_body(self, scope: Scope, receive: Receive) -> Receive:
        """Limit the bytes of the body as they arrive, whatever its Content-Length header says, and their time."""
        left, complete = self._max_bytes(scope), False
        seconds = self.limits.upload_seconds if scope["path"] == UPLOAD_PATH else self.limits.body_seconds
        end = asyncio.get_running_loop().time() + seconds

        async def receive_limited() -> Message:
            nonlocal left, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(end):
                    message = await receive()
            except TimeoutError as error:
                what = f"the request did not arrive within {seconds:.0f} s"
                raise ApiError(408, what, "Send it again.", {"Connection": "close"}) from error
            complete = not message.get("more_body", False)
            left -= len(message.get("body", b""))
            if left < 0:
                raise self._too_large(scope)
            return message

        return receive_limited


def _client_key(scope: Scope) -> str:
    try:
        cookie = SimpleCookie(Headers(scope=scope).get("cookie", "")).get(COOKIE)
    except CookieError:
        cookie = None
    return cookie.value if cookie is not None else str((scope.get("client") or ("",))[0])


def _add_headers(message: MutableMapping[str, Any], scope: Scope) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in HEADERS.items():
        headers[name] = value
    if scope["path"].startswith("/api/"):
        headers.setdefault("Cache-Control", "no-store")
    cookie = scope["state"].get("new_cookie")
    if cookie is not None:
        headers.append("Set-Cookie", f"{COOKIE}={cookie}; HttpOnly; SameSite=Strict; Path=/; Max-Age=31536000")
