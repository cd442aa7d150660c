"""Misuse of the server on loopback, in four parts; everything is bounded.

- half_open: sockets that send nothing, part of a head, or part of a body. Meanwhile another client asks for the state
  of the server ten times.
- flood: one client uploads more images than the server keeps. The image of another client must survive.
- memory: rounds of uploads, predictions and explanations that fill all stores; resident memory after each round shows
  whether it reaches a plateau.
- ctrl_c: Ctrl+C during a job that is followed: time until the process has ended, and what it prints.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from statistics import median
from typing import Any

import httpx
from measuring import Run
from server import memory, new_image, running_server

MAX_CONNECTIONS = 300
MAX_SECONDS = 20.0
BODY = b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\n{"
HEADS = (b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n", BODY)


def client_for(url: str) -> httpx.Client:
    """A client with a cookie of its own."""
    client = httpx.Client(base_url=url, timeout=60)
    client.get("/")
    return client


def upload(client: httpx.Client, user: int, turn: int) -> str:
    """Upload a new image and return its id."""
    response = client.post("/api/pictures", files={"file": ("image.png", new_image(user, turn))})
    return str(response.json()["picture"])


def half_open(url: str, count: int, seconds: float) -> dict[str, Any]:
    """Hold half-open connections and measure the response times of another client."""
    port, sockets, times, failures = int(url.rpartition(":")[2]), list[socket.socket](), list[float](), 0
    start = time.monotonic()
    try:
        for i in range(min(count, MAX_CONNECTIONS)):
            sock = socket.create_connection(("127.0.0.1", port), timeout=5)
            sock.sendall(HEADS[i % len(HEADS)])
            sockets.append(sock)
        for _ in range(10):
            began = time.monotonic()
            try:
                failures += not httpx.get(f"{url}/api/health", timeout=10).is_success
            except httpx.HTTPError:
                failures += 1
            times.append(time.monotonic() - began)
        while time.monotonic() - start < min(seconds, MAX_SECONDS) and sum(map(is_open, sockets)):
            time.sleep(0.5)
        left = sum(map(is_open, sockets))
    finally:
        for sock in sockets:
            sock.close()
    return {
        "connections": len(sockets), "other_client_median_s": round(median(times), 4),
        "other_client_max_s": round(max(times), 4), "other_client_failures": failures,
        "still_open": left, "after_s": round(time.monotonic() - start, 1),
    }  # fmt: skip


def is_open(sock: socket.socket) -> bool:
    """Whether the server has neither closed a connection nor answered on it."""
    sock.setblocking(False)
    try:
        return len(sock.recv(4096)) > 0
    except BlockingIOError:
        return True
    except OSError:
        return False


def flood(url: str, count: int) -> dict[str, Any]:
    """One client uploads many images; then another client opens its own again."""
    victim, attacker = client_for(url), client_for(url)
    own = upload(victim, 1000, 0)
    for turn in range(count):
        upload(attacker, 1001, turn)
    status = victim.get(f"/api/pictures/{own}.png?model=scenes").status_code
    stores = httpx.get(f"{url}/api/health", timeout=60).json()["stores"]
    return {"uploads_of_the_other_client": count, "status_of_own_image": status, "images": stores["images"]}


async def requests_of_a_round(url: str, number: int, count: int) -> None:
    """Send a round of uploads, predictions and explanations, eight at a time."""
    gate = asyncio.Semaphore(8)

    async def one(turn: int) -> None:
        async with gate, httpx.AsyncClient(base_url=url, timeout=120) as client:
            await client.get("/")
            files = {"file": ("image.png", new_image(number, turn))}
            picture = (await client.post("/api/pictures", files=files)).json()["picture"]
            body = {"model": "scenes", "picture": picture}
            await client.post("/api/predict", json=body)
            await client.post("/api/explain?wait=true", json={**body, "methods": ["leadlight", "gradient_x_input"]})

    await asyncio.gather(*(one(turn) for turn in range(count)))


def rounds_of_requests(url: str, pid: int, rounds: int, count: int) -> dict[str, Any]:
    """Resident memory after each round of requests."""
    found = [round(memory(pid))]
    for number in range(rounds):
        asyncio.run(requests_of_a_round(url, 2000 + number, count))
        found.append(round(memory(pid)))
    stores = httpx.get(f"{url}/api/health", timeout=60).json()["stores"]
    kept = {name: round(store["bytes"] / 2**20, 1) for name, store in stores.items()}
    return {"requests_a_round": count, "memory_mb": found, "stores_mb": kept}


def stop(url: str, server: subprocess.Popen[str]) -> dict[str, Any]:
    """Press Ctrl+C during a long job that is followed."""
    client = client_for(url)
    body = {"model": "scenes", "picture": upload(client, 3000, 0), "methods": ["rise:masks=9999"], "targets": [0]}
    job = client.post("/api/explain", json=body).json()["id"]
    with client.stream("GET", f"/api/jobs/{job}/events") as stream:
        next(stream.iter_lines())
        server.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, errors = server.communicate(timeout=60)
    return {"seconds": round(time.monotonic() - began, 2), "exit_code": server.returncode, "printed": errors.strip()}


def serve_abuse(
    run: Run, *, connections: int = MAX_CONNECTIONS, uploads: int = 600, rounds: int = 6, requests: int = 60,
    kept: int = 60, parts: tuple[str, ...] = ("half_open", "flood", "memory", "ctrl_c"), arenas: int = 0,
    source: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Misuse of the server: half-open connections, floods of uploads, memory over rounds, Ctrl+C."""
    if run.tiny:
        connections, uploads, rounds, requests = 6, 3, 1, 2
    results: dict[str, Any] = {}
    variables = {"MALLOC_ARENA_MAX": str(arenas)} if arenas else {}
    with running_server("--kept", str(kept), source=source, **variables) as (url, server):
        tests = {
            "half_open": lambda: half_open(url, connections, MAX_SECONDS),
            "flood": lambda: flood(url, min(uploads, 1000)),
            "memory": lambda: rounds_of_requests(url, server.pid, min(rounds, 20), min(requests, 200)),
            "ctrl_c": lambda: stop(url, server),
        }
        for name in parts:
            results[name] = {"load": round(os.getloadavg()[0], 1), **tests[name]()}
            print(name, results[name], flush=True)
            run.save(results)
    return results
