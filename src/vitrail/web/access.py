"""Access by a token, which a client sends as a header, or a browser as a cookie that a link has set."""

from __future__ import annotations

import hmac
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Scope

from vitrail.errors import OptionError

TOKEN_COOKIE = "vitrail-access"  # noqa: S105 - the name of a cookie
MIN_CHARACTERS = 16
PAGE = (
    "<!doctype html><html lang='en'><meta charset='utf-8'><title>Vitrail</title>"
    "<p>This server needs a token. Open the link that <code>vitrail serve</code> printed at its start.</p></html>"
)


class AccessToken:
    """A token, of at least 16 characters, that every request must carry.

    A client sends ``Authorization: Bearer TOKEN``. A browser opens the link ``/?token=TOKEN`` once: the response sets a
    cookie, from which the token cannot be computed, and redirects to the same address without the token. All
    comparisons take the same time for every wrong value.

    Example:
        >>> from starlette.datastructures import Headers
        >>> access = AccessToken("correct horse battery")
        >>> access.is_given(Headers({"Authorization": "Bearer correct horse battery"})), access.is_given(Headers({}))
        (True, False)
    """

    def __init__(self, token: str) -> None:
        if len(token) < MIN_CHARACTERS:
            raise OptionError(
                f"the token has {len(token)} characters: use at least {MIN_CHARACTERS}, or 'auto' for a random one"
            )
        self._token = token.encode()
        self._cookie = hmac.new(self._token, b"vitrail page", "sha256").hexdigest()

    def __repr__(self) -> str:
        return "AccessToken(…)"

    def is_given(self, headers: Headers) -> bool:
        """Whether a request carries the token or the cookie."""
        kind, _, value = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(value):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(TOKEN_COOKIE)
        except CookieError:
            return False
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self._cookie.encode())

    def answer_link(self, scope: Scope) -> Response | None:
        """The redirect that sets the cookie, for a page that was opened with the right token; otherwise None."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if scope["method"] != "GET" or not any(name == "token" and self._is_token(value) for name, value in query):
            return None
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        # A path with two slashes at its start would lead to another host.
        path = "/" + scope["path"].lstrip("/")
        response = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        response.set_cookie(TOKEN_COOKIE, self._cookie, max_age=31536000, httponly=True, samesite="lax")
        return response

    @staticmethod
    def page() -> Response:
        """The page of a browser without the cookie."""
        return HTMLResponse(PAGE, 401)

    def _is_token(self, value: str) -> bool:
        return hmac.compare_digest(value.encode(), self._token)
