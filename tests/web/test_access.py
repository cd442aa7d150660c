"""Access to a server: host names, tokens, slow clients, used ports, Ctrl+C, and what it keeps in memory."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from urllib.parse import quote

import httpx
import pytest
from fastapi.testclient import TestClient

from tests.web.web_case import LONG_METHODS, error_text, image_file, running_server, small_app, tiny_model, upload_id
from vitrail.cli import serve as serve_module
from vitrail.errors import InputError, OptionError
from vitrail.web.access import TOKEN_COOKIE, AccessToken
from vitrail.web.fastapi_app import make_app
from vitrail.web.limits import Limits
from vitrail.web.page_server import bind

TOKEN = "a token of enough characters"  # noqa: S105


# -- host names and origins --------------------------------------------------------------------------------------------


def test_only_addresses_localhost_and_given_names_are_answered():
    with TestClient(make_app([tiny_model()], hosts=["demo.example.org"])) as client:
        for host in ("127.0.0.1:8000", "127.9.9.9", "[::1]:80", "LOCALHOST", "10.0.0.7:80", "demo.example.org:443"):
            assert client.get("/api/models", headers={"Host": host}).is_success, host
        for host in ("evil.example", "demo.example.org.evil.example", "", "127.0.0.1.evil.example"):
            message = error_text(client.get("/api/models", headers={"Host": host}), 421)
            assert "--allow-host" in message


def test_origins_are_checked_beyond_loopback():
    with TestClient(make_app([tiny_model()], hosts=["demo.example.org"])) as client:
        samples = client.get("/api/samples?model=tiny", headers={"Host": "localhost"}).json()
        body = {"model": "tiny", "sample": samples[0]["id"]}
        rejected = ("https://evil.example", "null", "https://demo.example.org:8")
        for origin, status in [("https://demo.example.org", 200), *((one, 403) for one in rejected)]:
            headers = {"Host": "demo.example.org", "Origin": origin}
            assert client.post("/api/pictures/sample", json=body, headers=headers).status_code == status, origin


def test_the_warning_names_the_options_and_an_address_of_the_documentation():
    text = serve_module._warning("http://10.0.0.7:8000/", [], has_token=False)
    assert "--allow-host NAME" in text
    assert "--token" in text
    path = re.search(r"http://10.0.0.7:8000(/\S+)#(\S+)", text)
    with TestClient(small_app()) as client:
        assert f"id='{path[2]}'" in client.get(path[1]).text


# -- tokens ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded():
    with TestClient(make_app([tiny_model()], access=AccessToken(TOKEN)), follow_redirects=False) as client:
        yield client


def test_requests_without_the_token_are_rejected(guarded):
    response = guarded.get("/api/models")
    assert "token" in error_text(response, 401)
    assert response.headers["www-authenticate"] == "Bearer"
    for value in ("Bearer", "Bearer wrong", f"Basic {TOKEN}", "Bearer " + TOKEN[:-1], "Bearer é"):
        assert guarded.get("/api/models", headers={"Authorization": value.encode()}).status_code == 401
    assert guarded.get("/static/page.js").status_code == 401
    page = guarded.get("/?token=wrong")
    assert (page.status_code, TOKEN in page.text, "set-cookie" in page.headers) == (401, False, False)
    assert guarded.get("/api/models", headers={"Authorization": f"Bearer {TOKEN}"}).is_success


def test_the_link_sets_a_cookie_and_removes_the_token_from_the_address(guarded):
    response = guarded.get("/", params={"token": TOKEN, "model": "tiny"})
    assert (response.status_code, response.headers["location"]) == (303, "/?model=tiny")
    cookie = response.headers["set-cookie"]
    assert TOKEN_COOKIE in cookie
    assert "HttpOnly" in cookie
    assert TOKEN not in cookie
    assert guarded.get("/").status_code == 200
    assert guarded.get("/api/models").is_success
    scope = {"method": "GET", "path": "//evil.example/", "query_string": b"token=" + quote(TOKEN).encode()}
    assert AccessToken(TOKEN).answer_link(scope).headers["location"] == "/evil.example/"
    guarded.cookies.clear()
    guarded.cookies.set(TOKEN_COOKIE, "0" * 64)
    assert guarded.get("/api/models").status_code == 401


def test_short_tokens_are_rejected_and_tokens_are_not_printed():
    with pytest.raises(OptionError, match="5 characters"):
        AccessToken("short")
    assert TOKEN not in repr(AccessToken(TOKEN))


# -- ports and slow clients --------------------------------------------------------------------------------------------


def test_a_used_port_is_named():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} of 127.0.0.1 is used by another program"):
            bind("127.0.0.1", port)
    with pytest.raises(InputError, match="not an address of this machine"):
        bind("192.0.2.1", 0)


@pytest.fixture(scope="module")
def slow_server():
    app = small_app(head_seconds=1.0, body_seconds=1.0, upload_seconds=1.0, waiting_connections=5)
    with running_server(app) as url:
        yield url


def connect(stack, url, data=b""):
    sock = stack.enter_context(socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=30))
    sock.sendall(data)
    return sock


def is_closed(sock):
    """Whether the server closes a connection without a response; waits for it."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.slow
def test_half_open_connections_are_closed_and_keep_nobody_out(slow_server):
    with ExitStack() as stack:
        heads = (b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"POST /api/predict HTTP/1.1\r\nContent-Length: 9\r\n")
        half_open = [connect(stack, slow_server, heads[i % 3]) for i in range(20)]
        assert httpx.get(f"{slow_server}/api/health", timeout=30).is_success
        assert all(is_closed(sock) for sock in half_open)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/api/predict", "/api/pictures"])
def test_bodies_that_do_not_arrive_are_rejected(slow_server, path):
    kind = "application/json" if path == "/api/predict" else "multipart/form-data; boundary=x"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: 90\r\n\r\n"
    with ExitStack() as stack:
        sock = connect(stack, slow_server, head.encode() + b"--x\r\n")
        answer = b""
        while data := sock.recv(4096):
            answer += data
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"did not arrive within 1 s" in answer


def test_uploads_at_the_same_time_are_limited():
    app = small_app(files_per_client=0)
    with TestClient(app) as client:
        response = client.post("/api/pictures", files={"file": ("a.png", image_file())})
        assert "too many uploads" in error_text(response, 503)
        assert response.headers["retry-after"]


# -- memory and shutdown -----------------------------------------------------------------------------------------------


def test_health_reports_memory_and_limits():
    app = small_app(images=7)
    with TestClient(app) as client:
        upload_id(client)
        health = client.get("/api/health").json()
    assert health["stores"]["images"]["count"] == 1
    assert health["stores"]["images"]["max_count"] == 7
    assert 0 < health["stores"]["images"]["bytes"] <= health["stores"]["images"]["max_bytes"] == Limits().image_bytes
    assert health["active_jobs"] == 0
    if sys.platform.startswith("linux"):
        assert health["memory_bytes"] > 10_000_000


@pytest.mark.slow
def test_ctrl_c_stops_the_server_with_one_line():
    command = [sys.executable, "-m", "vitrail", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            url = re.search(r"http://\S+:\d+", process.stdout.readline())[0]
            with httpx.Client(base_url=url, timeout=60) as client:
                body = {"model": "scenes", "sample": "scene-1"}
                image_id = client.post("/api/pictures/sample", json=body).json()["picture"]
                body = {"model": "scenes", "picture": image_id, "methods": LONG_METHODS[:1], "targets": [0]}
                job = client.post("/api/explain", json=body).json()["id"]
                with client.stream("GET", f"/api/jobs/{job}/events") as stream:
                    lines = stream.iter_lines()
                    assert next(lines) == "event: job"
                    process.send_signal(signal.SIGINT)
                    rest = list(lines)
                assert "event: end" not in rest  # the page reconnects instead of showing a cancelled job
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert errors.strip() == "stopped"
