"""Load test of the web page with fifty users: errors, latency, fairness, memory, and cancellation of abandoned jobs.

    python benchmarks/serve.py --out benchmarks/results/serve-cpu.json

The server runs in its own process on the loopback interface, with the embedded scenes model. Each user has a cookie of
their own, chooses a scene and requests fast explanations one after the other without a pause; every third request of
every tenth user is for a slow method. After a minute, a client is killed during a long job, and the time until the
server cancels the job is measured. Time and number of requests are bounded.
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

FAST = ["gradtoken", "vtranm", "transformer_mm", "rollout"]
SLOW = "rise:masks=64"
SAMPLES = ["scene-1", "scene-2", "pair-1", "pair-2", "scene-3", "scene-4"]
#: Most requests of one user.
MAX_REQUESTS = 5000


@dataclass
class SimulatedUser:
    """A simulated user and the responses it got."""

    number: int
    slow: bool
    seconds: list[float] = field(default_factory=list)
    responses: Counter[str] = field(default_factory=Counter)
    rejected: int = 0


async def run_user(user: SimulatedUser, url: str, end: float) -> None:
    """Request one explanation after the other until the time is up."""
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        await client.get("/")
        sample = {"model": "scenes", "sample": SAMPLES[user.number % len(SAMPLES)]}
        image = (await client.post("/api/pictures/sample", json=sample)).json()["picture"]
        body = {"model": "scenes", "picture": image}
        await client.post("/api/predict", json=body)
        for turn in range(MAX_REQUESTS):
            if time.monotonic() > end:
                return
            # Options differ from turn to turn, so that no response comes from the cache.
            offset = (user.number + turn * 50) / 100_000
            methods = [*FAST, f"leadlight:mix={0.3 + offset:.5f}"]
            if user.slow and turn % 3 == 2:
                methods = [f"{SLOW},seed={user.number * 1000 + turn}"]
            request = {**body, "methods": methods, "targets": [turn % 12]}
            await send(user, client, request, fast="rise" not in methods[0])


async def send(user: SimulatedUser, client: httpx.AsyncClient, body: dict[str, object], fast: bool) -> None:
    """Send one request and count its response."""
    started = time.monotonic()
    try:
        response = await client.post("/api/explain?wait=true", json=body)
    except httpx.HTTPError as error:
        user.responses[type(error).__name__] += 1
        return
    if response.status_code == 503:
        user.rejected += 1
        await asyncio.sleep(1)
        return
    state = response.json().get("state", "?")
    user.responses[f"{response.status_code} {state}"] += 1
    if fast and state == "done":
        user.seconds.append(time.monotonic() - started)


def memory_mb(pid: int) -> float:
    """Resident memory of a process in megabytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", text)
    assert found is not None
    return int(found[1]) / 1024


def time_to_cancel(url: str) -> dict[str, object]:
    """Start a long job from another process, kill that process, and measure how long the job goes on."""
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


async def run_users(url: str, count: int, seconds: float, slow: bool = True) -> list[SimulatedUser]:
    """Run users at the same time for some seconds; every tenth also requests slow methods."""
    users = [SimulatedUser(i, slow=slow and i % 10 == 0) for i in range(count)]
    end = time.monotonic() + seconds
    await asyncio.gather(*(run_user(user, url, end) for user in users))
    return users


def run(count: int, seconds: float, threads: int) -> dict[str, object]:
    """Start a server, run the load test and stop the server."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "vitrail", "serve", "--port", "0", "--queue", str(4 * count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:  # noqa: S603
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            found = re.search(r"http://\S+:\d+", line)
            assert found is not None, line
            url = found[0]
            asyncio.run(run_users(url, 2, 2.0))  # warm-up
            (alone,) = asyncio.run(run_users(url, 1, 10.0, slow=False))
            before = memory_mb(server.pid)
            started = time.monotonic()
            users = asyncio.run(run_users(url, count, seconds))
            elapsed = time.monotonic() - started
            after = memory_mb(server.pid)
            killed = time_to_cancel(url)
        finally:
            server.send_signal(signal.SIGINT)
            code = server.wait(30)
    latencies = sorted(s for user in users for s in user.seconds)
    responses: Counter[str] = sum((user.responses for user in users), Counter())
    served = [len(user.seconds) for user in users if not user.slow]
    return {
        "users": count, "seconds": seconds, "elapsed_s": round(elapsed, 1), "answers": dict(responses),
        "errors": sum(n for response, n in responses.items() if response != "200 done"),
        "refused_503": sum(user.rejected for user in users),
        "cheap": {
            "methods": [*FAST, "leadlight"], "count": len(latencies), "median_s": round(median(latencies), 3),
            "p95_s": round(quantiles(latencies, n=20)[-1], 3), "per_second": round(len(latencies) / elapsed, 2),
            "median_s_of_one_user_alone": round(median(alone.seconds), 3),
        },
        "fairness": {"served_min": min(served), "served_max": max(served), "users": len(served)},
        "memory_mb": {"before": round(before), "after": round(after)}, "killed_client": killed, "exit_code": code,
    }  # fmt: skip


def main() -> None:
    """Run the load test, and write results and manifest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="torch threads of the server")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    load = os.getloadavg()[0]  # load by other processes
    found = run(args.users, min(args.seconds, 600.0), args.threads)
    names = ("vitrail", "torch", "fastapi", "starlette", "uvicorn", "pillow", "numpy")
    manifest = {
        "python": platform.python_version(), "machine": platform.machine(), "system": platform.system(),
        "cores": os.cpu_count(), "load_before": round(load, 1), "threads": args.threads,
        **{name: version(name) for name in names},
    }  # fmt: skip
    text = json.dumps({"benchmark": "serve", "model": "scenes", "manifest": manifest, **found}, indent=2) + "\n"
    print(text)
    if args.out is not None:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
