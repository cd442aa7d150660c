"""Fifty people at the page at once: errors, waiting times, fairness, memory, and work freed by who goes away.

A server is started in a process of its own on this machine's loopback, with the embedded scenes model. Users take a
scene, then ask for cheap explanations one after the other without a pause, each with a cookie of their own; every third
request of every tenth user is for a method that shows the model many pictures. After a minute the users stop, a client
is killed in the middle of long work, and the server is asked whether that has ended. Bounded in time and requests; it
ends by itself.

    python benchmarks/serve.py --out benchmarks/results/serve-cpu.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles

import httpx

CHEAP = ["gradtoken", "vtranm", "transformer_mm", "rollout"]
SLOW = "rise:masks=64"
SAMPLES = ["scene-1", "scene-2", "pair-1", "pair-2", "scene-3", "scene-4"]
#: Most requests a user makes, whatever happens.
MOST = 5000


@dataclass
class User:
    """What one user saw."""

    number: int
    slow: bool
    seconds: list[float] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    refused: int = 0


async def act(user: User, url: str, end: float) -> None:
    """Ask for one explanation after the other until the time is up; a seed of its own makes each new work."""
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        await client.get("/")
        sample = {"model": "scenes", "sample": SAMPLES[user.number % len(SAMPLES)]}
        picture = (await client.post("/api/pictures/sample", json=sample)).json()["picture"]
        body = {"model": "scenes", "picture": picture}
        await client.post("/api/predict", json=body)
        for turn in range(MOST):
            if time.monotonic() > end:
                return
            # Options differ from turn to turn, so that no answer comes from what was made before.
            start = (user.number + turn * 50) / 100_000
            methods = [*CHEAP, f"leadlight:mix={0.3 + start:.5f}"]
            if user.slow and turn % 3 == 2:
                methods = [f"{SLOW},seed={user.number * 1000 + turn}"]
            asked = {**body, "methods": methods, "targets": [turn % 12]}
            await ask(user, client, asked, cheap="rise" not in methods[0])


async def ask(user: User, client: httpx.AsyncClient, body: dict[str, object], cheap: bool) -> None:
    """One request, and what came of it."""
    began = time.monotonic()
    try:
        answer = await client.post("/api/explain?wait=true", json=body)
    except httpx.HTTPError as error:
        user.answers[type(error).__name__] += 1
        return
    if answer.status_code == 503:
        user.refused += 1
        await asyncio.sleep(1)
        return
    state = answer.json().get("state", "?")
    user.answers[f"{answer.status_code} {state}"] += 1
    if cheap and state == "done":
        user.seconds.append(time.monotonic() - began)


def memory(pid: int) -> float:
    """Megabytes a process holds."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", text)
    assert found is not None
    return int(found[1]) / 1024


def idle_after_a_kill(url: str) -> dict[str, object]:
    """Start long work from a process of its own, kill that, and see how long the work lives on."""
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
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as victim:  # noqa: S603
        assert victim.stdout is not None
        job = victim.stdout.readline().strip()
        time.sleep(3)
        state = httpx.get(f"{url}/api/jobs/{job}").json()["state"]
        victim.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        victim.wait()
    while time.monotonic() - killed < 60:
        after = httpx.get(f"{url}/api/jobs/{job}").json()["state"]
        if after not in ("queued", "running"):
            break
        time.sleep(0.1)
    return {"before": state, "after": after, "seconds": round(time.monotonic() - killed, 2)}


async def crowd(url: str, count: int, seconds: float, slow: bool = True) -> list[User]:
    """Users side by side for some seconds; some of them ask for slow methods."""
    users = [User(i, slow=slow and i % 10 == 0) for i in range(count)]
    end = time.monotonic() + seconds
    await asyncio.gather(*(act(user, url, end) for user in users))
    return users


def run(count: int, seconds: float, threads: int) -> dict[str, object]:
    """All of it, against a server that is started here and ended here."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "vitrail", "serve", "--port", "0", "--queue", str(4 * count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:  # noqa: S603
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            found = re.search(r"http://\S+:\d+", line)
            assert found is not None, line
            url = found[0]
            asyncio.run(crowd(url, 2, 2.0))  # what is loaded on first use is loaded
            (alone,) = asyncio.run(crowd(url, 1, 10.0, slow=False))
            before = memory(server.pid)
            began = time.monotonic()
            users = asyncio.run(crowd(url, count, seconds))
            elapsed = time.monotonic() - began
            after = memory(server.pid)
            killed = idle_after_a_kill(url)
        finally:
            server.send_signal(signal.SIGINT)
            code = server.wait(30)
    waits = sorted(s for user in users for s in user.seconds)
    answers: Counter[str] = sum((user.answers for user in users), Counter())
    served = [len(user.seconds) for user in users if not user.slow]
    return {
        "users": count, "seconds": seconds, "elapsed_s": round(elapsed, 1), "answers": dict(answers),
        "errors": sum(n for what, n in answers.items() if what != "200 done"),
        "refused_503": sum(user.refused for user in users),
        "cheap": {
            "methods": [*CHEAP, "leadlight"], "count": len(waits), "median_s": round(median(waits), 3),
            "p95_s": round(quantiles(waits, n=20)[-1], 3), "per_second": round(len(waits) / elapsed, 2),
            "median_s_of_one_user_alone": round(median(alone.seconds), 3),
        },
        "fairness": {"served_min": min(served), "served_max": max(served), "users": len(served)},
        "memory_mb": {"before": round(before), "after": round(after)}, "killed_client": killed, "exit_code": code,
    }  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="torch threads of the server")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    load = os.getloadavg()[0]  # how busy the machine was with other things
    found = run(given.users, min(given.seconds, 600.0), given.threads)
    names = ("vitrail", "torch", "fastapi", "starlette", "uvicorn", "pillow", "numpy")
    manifest = {
        "python": platform.python_version(), "machine": platform.machine(), "system": platform.system(),
        "cores": os.cpu_count(), "load_before": round(load, 1), "threads": given.threads,
        **{name: version(name) for name in names},
    }  # fmt: skip
    text = json.dumps({"benchmark": "serve", "model": "scenes", "manifest": manifest, **found}, indent=2) + "\n"
    print(text)
    if given.out is not None:
        given.out.write_text(text)


if __name__ == "__main__":
    main()
