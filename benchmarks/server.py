"""Load test of the server: a server of its own on loopback, and users who request explanations without pauses.

Each user has a cookie. With ``new=images`` each request is for a new image and the same methods, with ``new=options``
for one of six sample scenes and a method with new options: no result is in the cache. With ``new=nothing`` each user
asks for the default method on the sample scenes, as first-time users do, so the results are soon in the cache. Every
third request of every tenth user is for a slow method that evaluates many perturbed images. At the end, a client is
killed during a long job, and the time until the server cancels the job is measured. Time and number of requests are
bounded.

``serve_flood``: one client keeps as many long jobs queued as the server takes, of forty. Another measures a default map
and a check, each of a new image. Measurements with and without the flood alternate.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx
import numpy as np
from measuring import Run
from PIL import Image

FAST_METHODS = ["gradtoken", "vtranm", "transformer_mm", "rollout"]
SLOW_METHOD = "rise:masks=64"
#: A long method of the client that floods, and how many such jobs it starts.
FLOOD_METHOD, FLOOD_JOBS = "rise:masks=9999", 40
SAMPLES = ["scene-1", "scene-2", "pair-1", "pair-2", "scene-3", "scene-4"]
#: One for all clients: creating it takes longer than a request.
CONTEXT = ssl.create_default_context()
#: Maximum number of requests of one user.
MAX_REQUESTS = 5000


@dataclass
class User:
    """The results of one simulated user."""

    number: int
    slow: bool
    seconds: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    rejected: int = 0
    started: float = 0.0


def new_image(user: int, turn: int) -> bytes:
    """A PNG file that no other request has: a few bright squares on noise."""
    rng = np.random.default_rng([user, turn])
    pixels = rng.integers(0, 80, (128, 128, 3), dtype=np.uint8)
    for row, column in rng.integers(0, 96, (4, 2)):
        pixels[row : row + 32, column : column + 32] = rng.integers(80, 256, 3)
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


async def simulate(user: User, url: str, seconds: float, new: str, ready: asyncio.Barrier) -> None:
    """Request one explanation after the other for some seconds, once all users are ready."""
    async with httpx.AsyncClient(base_url=url, timeout=120, verify=CONTEXT) as client:
        await client.get("/")
        sample = {"model": "scenes", "sample": SAMPLES[user.number % len(SAMPLES)]}
        picture = await store_image(user, client, "/api/pictures/sample", json=sample)
        body = {"model": "scenes", "picture": picture}
        await client.post("/api/predict", json=body)
        await ready.wait()
        user.started = time.monotonic()
        end = user.started + seconds
        for turn in range(MAX_REQUESTS):
            if time.monotonic() > end:
                return
            methods = [*FAST_METHODS, "leadlight"]
            if new == "nothing":
                methods = methods[-1:]
            elif new == "options":
                methods[-1] += f":mix={0.3 + (user.number + turn * 50) / 100_000:.5f}"
            else:
                file = {"file": ("image.png", new_image(user.number, turn))}
                body["picture"] = await store_image(user, client, "/api/pictures", files=file)
            if user.slow and turn % 3 == 2:
                methods = [f"{SLOW_METHOD},seed={user.number * 1000 + turn}"]
            request = {**body, "methods": methods, "targets": [turn % 12]}
            await explain(user, client, request, fast="rise" not in methods[0])


async def store_image(user: User, client: httpx.AsyncClient, path: str, **content: Any) -> str:
    """Upload an image or choose a sample, again if the server is busy, and return its id."""
    while (response := await client.post(path, **content)).status_code == 503:
        user.rejected += 1
        await asyncio.sleep(0.5)
    response.raise_for_status()
    return str(response.json()["picture"])


async def explain(user: User, client: httpx.AsyncClient, body: dict[str, object], fast: bool) -> None:
    """Send one request and record its outcome."""
    start = time.monotonic()
    try:
        response = await client.post("/api/explain?wait=true", json=body)
    except httpx.HTTPError as error:
        user.outcomes[type(error).__name__] += 1
        return
    if response.status_code == 503:
        user.rejected += 1
        await asyncio.sleep(1)
        return
    state = response.json().get("state", "?")
    user.outcomes[f"{response.status_code} {state}"] += 1
    if fast and state == "done":
        user.seconds.append(time.monotonic() - start)


def memory(pid: int) -> float:
    """Resident memory of a process in megabytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", text)
    assert found is not None
    return int(found[1]) / 1024


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, of all its threads; unlike response times, independent of other load."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def kill_client(url: str) -> dict[str, object]:
    """Start a long job from a separate process, kill that process, and measure how long the job continues."""
    program = (
        "import httpx, sys\n"
        f"c = httpx.Client(base_url={url!r}, timeout=600)\n"
        "p = c.post('/api/pictures/sample', json={'model': 'scenes', 'sample': 'scene-1'}).json()['picture']\n"
        "b = {'model': 'scenes', 'picture': p, 'methods': ['rise:masks=9999'], 'targets': [0]}\n"
        "j = c.post('/api/explain', json=b).json()['id']\n"
        "print(j, flush=True)\n"
        "with c.stream('GET', f'/api/jobs/{j}/events') as s:\n"
        "    [None for _ in s.iter_lines()]\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as client:  # noqa: S603
        assert client.stdout is not None
        job = client.stdout.readline().strip()
        time.sleep(3)
        state = httpx.get(f"{url}/api/jobs/{job}").json()["state"]
        client.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        client.wait()
    while time.monotonic() - killed < 60:
        after = httpx.get(f"{url}/api/jobs/{job}").json()["state"]
        if after not in ("queued", "running"):
            break
        time.sleep(0.1)
    return {"before": state, "after": after, "seconds": round(time.monotonic() - killed, 2)}


async def simulate_users(url: str, count: int, seconds: float, new: str, slow: bool = True) -> list[User]:
    """Simulate users in parallel; with ``slow``, every tenth also requests slow methods."""
    users = [User(i, slow=slow and i % 10 == 0) for i in range(count)]
    ready = asyncio.Barrier(count)
    await asyncio.gather(*(simulate(user, url, seconds, new, ready) for user in users))
    return users


@contextmanager
def running_server(*options: str, source: str = "", **variables: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start a server with the scenes model, of the source code in a folder; its address and process."""
    environment = {**os.environ, **variables, **({"PYTHONPATH": source} if source else {})}
    command = [sys.executable, "-m", "vitrail", "serve", "--port", "0", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as server:  # noqa: S603
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            found = re.search(r"http://\S+:\d+", line)
            assert found is not None, line
            yield found[0], server
        finally:
            server.kill()


def load_test(count: int, seconds: float, threads: int, new: str, source: str) -> dict[str, Any]:
    """Run the load test on one server."""
    with running_server("--queue", str(4 * count), source=source, OMP_NUM_THREADS=str(threads)) as (url, server):
        asyncio.run(simulate_users(url, 2, min(2.0, seconds), new))  # warm-up
        (alone,) = asyncio.run(simulate_users(url, 1, min(10.0, seconds / 4), new, slow=False))
        before, cpu_before = memory(server.pid), cpu_seconds(server.pid)
        users = asyncio.run(simulate_users(url, count, seconds, new))
        elapsed = time.monotonic() - min(user.started for user in users)
        after, cpu_after = memory(server.pid), cpu_seconds(server.pid)
        killed = kill_client(url)
        server.send_signal(signal.SIGINT)
        code = server.wait(30)
    times = sorted(s for user in users for s in user.seconds)
    outcomes: Counter[str] = sum((user.outcomes for user in users), Counter())
    served = [len(user.seconds) for user in users if not user.slow]
    return {
        "new": new, "users": count, "seconds": seconds, "elapsed_s": round(elapsed, 1), "answers": dict(outcomes),
        "errors": sum(n for outcome, n in outcomes.items() if outcome != "200 done"),
        "refused_503": sum(user.rejected for user in users),
        "cheap": {
            "methods": ["leadlight"] if new == "nothing" else [*FAST_METHODS, "leadlight"],
            "count": len(times), "median_s": round(median(times or [0.0]), 3),
            "p95_s": round(quantiles(times, n=20)[-1] if len(times) > 1 else 0.0, 3),
            "per_second": round(len(times) / elapsed, 2),
            "cpu_s_per_answer": round((cpu_after - cpu_before) / max(1, sum(outcomes.values())), 4),
            "median_s_of_one_user_alone": round(median(alone.seconds or [0.0]), 3),
        },
        "fairness": {"served_min": min(served), "served_max": max(served), "users": len(served)},
        "memory_mb": {"before": round(before), "after": round(after)}, "killed_client": killed, "exit_code": code,
    }  # fmt: skip


async def flood(url: str, jobs: int, is_full: asyncio.Event) -> None:
    """Keep long jobs queued from one client until cancelled; at most eight are accepted at a time."""
    async with httpx.AsyncClient(base_url=url, timeout=120, verify=CONTEXT) as client:
        await client.get("/")
        sample = {"model": "scenes", "sample": "scene-1"}
        picture = (await client.post("/api/pictures/sample", json=sample)).json()["picture"]
        body = {"model": "scenes", "picture": picture, "targets": [0]}
        accepted: list[str] = []
        try:
            while True:
                for _ in range(jobs - len(accepted)):
                    methods = [f"{FLOOD_METHOD},seed={len(accepted)}"]
                    response = await client.post("/api/explain", json={**body, "methods": methods})
                    if response.status_code == 503:
                        is_full.set()
                        break
                    accepted.append(response.json()["id"])
                for job in accepted:  # a client that asks for its job keeps it alive
                    await client.get(f"/api/jobs/{job}")
                await asyncio.sleep(2.0)
        finally:
            for job in accepted:
                await client.delete(f"/api/jobs/{job}")


async def time_requests(url: str, first: int, maps: int) -> dict[str, list[float]]:
    """Seconds of default maps and of one check, each of a new image, by one client."""
    user = User(first, slow=False)
    found: dict[str, list[float]] = {"map": [], "check": []}
    async with httpx.AsyncClient(base_url=url, timeout=600, verify=CONTEXT) as client:
        await client.get("/")
        for turn, path in enumerate(["explain"] * maps + ["check"]):
            file = {"file": ("image.png", new_image(first, turn))}
            picture = await store_image(user, client, "/api/pictures", files=file)
            body = {"model": "scenes", "picture": picture, "methods": ["leadlight"], "targets": [turn % 12]}
            start = time.monotonic()
            response = await client.post(f"/api/{path}?wait=true", json=body)
            assert response.json()["state"] == "done", response.text
            found["map" if path == "explain" else path].append(time.monotonic() - start)
            await asyncio.sleep(0.05)
    return found


async def time_flood(url: str, rounds: int, jobs: int, maps: int) -> dict[str, Any]:
    """Alternate between measurements without and with a flood of long jobs by another client."""
    await time_requests(url, 999, 3)  # warm-up
    alone: dict[str, list[float]] = {"map": [], "check": []}
    flooded: dict[str, list[float]] = {"map": [], "check": []}
    for turn in range(rounds):
        for name, seconds in (await time_requests(url, 1000 + turn, maps)).items():
            alone[name] += seconds
        is_full = asyncio.Event()
        task = asyncio.create_task(flood(url, jobs, is_full))
        await asyncio.wait_for(is_full.wait(), 60)
        await asyncio.sleep(1.0)
        for name, seconds in (await time_requests(url, 2000 + turn, maps)).items():
            flooded[name] += seconds
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(1.0)
    results: dict[str, Any] = {"flood_jobs": jobs, "flood_method": FLOOD_METHOD, "rounds": rounds}
    for name, goal in ("map", 2.0), ("check", 3.0):
        results[name] = {
            "count": len(alone[name]), "alone_median_s": round(median(alone[name]), 4),
            "flood_median_s": round(median(flooded[name]), 4), "flood_max_s": round(max(flooded[name]), 4),
            "ratio": round(median(flooded[name]) / median(alone[name]), 2), "goal": goal,
        }  # fmt: skip
    return results


def compare(measured: list[dict[str, Any]], count: int) -> dict[str, Any]:
    """All measurements of several sources, and the ratios of the last source to the first."""
    first, last = measured[::count], measured[count - 1 :: count]

    def ratio(name: str) -> float:
        return round(median(r["cheap"][name] for r in last) / median(r["cheap"][name] for r in first), 3)

    names = ("median_s", "p95_s", "per_second", "cpu_s_per_answer", "median_s_of_one_user_alone")
    return {"ratios_of_last_to_first_source": {name: ratio(name) for name in names}, "measurements": measured}


def serve(
    run: Run, *, users: int = 50, seconds: float = 60.0, threads: int = os.cpu_count() or 1, new: str = "images",
    sources: tuple[str, ...] = ("",), rounds: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Fifty users of the server: errors, response times, fairness, memory; several sources are measured in turns."""
    if run.tiny:
        users, seconds = 2, 2.0
    measured = []
    for _ in range(rounds):
        for source in sources:
            measured.append(load_test(users, min(seconds, 600.0), threads, new, source))
            print(measured[-1], flush=True)
    return measured[-1] if len(measured) == 1 else compare(measured, len(sources))


def serve_flood(run: Run, *, rounds: int = 3, maps: int = 10, threads: int = os.cpu_count() or 1) -> dict[str, Any]:
    """One client while another floods the server with long jobs: seconds and ratios of a default map and a check."""
    if run.tiny:
        rounds, maps = 1, 2
    with running_server("--queue", "128", OMP_NUM_THREADS=str(threads)) as (url, _):
        return {"flood": asyncio.run(time_flood(url, rounds, FLOOD_JOBS, maps))}
