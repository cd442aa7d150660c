"""Connections of the server: time limits for slow clients, a clear message for a used port, a quick shutdown."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitrail.errors import InputError
from vitrail.web.limits import Limits

#: Seconds in which open requests may end after Ctrl+C.
SHUTDOWN_SECONDS = 1


class TimedProtocol(H11Protocol):
    """HTTP connections that are closed if the head of a request does not arrive in time.

    Connections without a complete request are limited in number. Above it the oldest is closed, so that a client that
    opens connections without using them cannot keep others out.
    """

    limits = Limits()
    _waiting: dict[TimedProtocol, None]
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit."""
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit."""
        self._stop_timer()
        self._waiting.pop(self, None)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Stop the time limit when the head, and free the place when the whole request has arrived."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._stop_timer()
        if self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete:
            self._waiting.pop(self, None)

    def on_response_complete(self) -> None:
        """Start the time limit of the next request."""
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self._wait_for_head()

    def _wait_for_head(self) -> None:
        self._stop_timer()
        self._waiting.pop(self, None)
        if len(self._waiting) >= self.limits.waiting_connections:
            next(iter(self._waiting)).abort()
        self._waiting[self] = None
        self._timer = self.loop.call_later(self.limits.head_seconds, self.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def abort(self) -> None:
        """Close the connection at once."""
        self._waiting.pop(self, None)
        self.transport.abort()


class PageServer(uvicorn.Server):
    """A server that ends event streams at once when it is stopped."""

    def __init__(self, app: FastAPI, host: str = "127.0.0.1", port: int = 0) -> None:
        limits: Limits = app.state.server.limits
        # One class for each server, with its own limits and connections.
        protocol = type("TimedProtocol", (TimedProtocol,), {"limits": limits, "_waiting": {}})
        super().__init__(
            uvicorn.Config(
                app, host=host, port=port, http=protocol, log_level="error", access_log=False, server_header=False,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS, limit_concurrency=limits.connections,
            )
        )  # fmt: skip
        self.state = app.state.server

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all streams, then close all connections."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # requests that are cut off are no news
        self.state.begin_close()
        await super().shutdown(sockets)


def bind(host: str, port: int) -> socket.socket:
    """Open the socket of a server."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        # Binding succeeds on some systems although another program listens.
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise InputError(_bind_message(host, port, error)) from error
    sock.set_inheritable(True)
    return sock


def _bind_message(host: str, port: int, error: OSError) -> str:
    """What is wrong with an address.

    Example:
        >>> _bind_message("127.0.0.1", 8000, OSError(errno.EADDRINUSE, "in use"))
        'port 8000 of 127.0.0.1 is used by another program: choose another with --port, or --port 0 for any free one'
    """
    known: dict[int | None, Any] = {
        errno.EADDRINUSE: f"port {port} of {host} is used by another program: choose another with --port, or --port 0 "
        "for any free one",
        errno.EACCES: f"port {port} needs special rights: choose one above 1023 with --port",
        errno.EADDRNOTAVAIL: f"{host} is not an address of this machine: leave out --host, or use 0.0.0.0 for all",
    }
    return str(known.get(error.errno, f"cannot listen on {host}, port {port}: {error.strerror or error}"))
