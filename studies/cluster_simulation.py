"""How long does a table of 14 million images × 20 methods take on 100 GPUs, and what does it cost?

A discrete-event simulation of `vitrail bench` on a cluster: one worker per node takes chunks of images from a common
queue (the engines ``ray`` and ``local``) or from its own fixed share (``--shard``), reads them from an object store
while the chunk before is computed, and loses its chunk when its node fails. Times per image are the phases measured on
one H200 in ``benchmarks/results/dataset-h200.json``; the wall time of that run, which the simulation does not use,
checks them. Maps without scores are checked in the same way: the time of an image in memory predicts the measured rate
from tar shards, on an H200 and on CPU workers (``source_rates-*.json``). Rates of failures and stragglers, bandwidth
and price are assumptions, stated in the result.

    python studies/cluster_simulation.py --out studies/results/cluster-simulation.json
"""

from __future__ import annotations

import heapq
import json
import random
from collections import deque
from dataclasses import asdict, dataclass, replace
from typing import Any

from study import ROOT, options

RESULTS = ROOT / "benchmarks" / "results"
MEASURED = RESULTS / "dataset-h200.json"


@dataclass(frozen=True)
class Cluster:
    """A cluster and the work it is given; times in seconds, sizes in bytes.

    Attributes:
        nodes: Nodes with one GPU each.
        images: Images of the table.
        chunk: Images of one chunk.
        seconds_per_image: Computing and scoring all maps of an image on one GPU.
        start_seconds: Loading and compiling the model, at the start and after a failure.
        image_bytes: Size of an image file.
        store_bandwidth: Bytes per second of the object store, shared by all nodes.
        store_latency: Until the first byte of a chunk arrives.
        dispatch_seconds: Time of the scheduler for each chunk; it serves one node at a time.
        noise: Standard deviation of the logarithm of a chunk's time.
        straggler_share: Share of nodes that are slow.
        straggler_speed: Their speed.
        failures_per_node_hour: Rate of failures of a node.
        repair_seconds: Until a failed node is back.
        price: Dollars for one GPU and hour.
        fixed_shares: Whether each node has its own share instead of a common queue.
    """

    nodes: int = 100
    images: int = 14_000_000
    chunk: int = 256
    seconds_per_image: float = 0.05
    start_seconds: float = 0.0
    image_bytes: float = 110e3
    store_bandwidth: float = 10e9
    store_latency: float = 0.1
    dispatch_seconds: float = 0.005
    noise: float = 0.05
    straggler_share: float = 0.05
    straggler_speed: float = 0.5
    failures_per_node_hour: float = 0.01
    repair_seconds: float = 300.0
    price: float = 3.5
    fixed_shares: bool = False


def simulate(cluster: Cluster, seed: int = 0) -> dict[str, float]:
    """Run the work of a cluster; return hours until the last chunk, GPU hours, cost, failures and lost work."""
    draw = random.Random(seed)  # noqa: S311 - a simulation
    slow = set(draw.sample(range(cluster.nodes), round(cluster.straggler_share * cluster.nodes)))
    chunks = [min(cluster.chunk, cluster.images - start) for start in range(0, cluster.images, cluster.chunk)]
    common = deque(chunks)
    shares = [deque(chunks[node :: cluster.nodes]) for node in range(cluster.nodes)]
    queues = shares if cluster.fixed_shares else [common] * cluster.nodes

    def until_failure() -> float:
        rate = cluster.failures_per_node_hour / 3600
        return draw.expovariate(rate) if rate else float("inf")

    fails_at = [until_failure() for _ in range(cluster.nodes)]
    free = [(cluster.start_seconds, node) for node in range(cluster.nodes)]
    heapq.heapify(free)
    scheduler_free = finished = lost = 0.0
    failures = 0
    while free:
        now, node = heapq.heappop(free)
        if not queues[node]:
            continue  # the node is idle until the end
        images = queues[node].popleft()
        scheduler_free = begun = max(now, scheduler_free) + cluster.dispatch_seconds
        speed = cluster.straggler_speed if node in slow else 1.0
        compute = images * cluster.seconds_per_image * draw.lognormvariate(0.0, cluster.noise) / speed
        read = cluster.store_latency + images * cluster.image_bytes * cluster.nodes / cluster.store_bandwidth
        end = begun + max(compute, read)  # the next chunk is read while this one is computed
        if fails_at[node] < end:
            failures += 1
            lost += max(0.0, fails_at[node] - begun)
            queues[node].appendleft(images)
            back = max(fails_at[node], begun) + cluster.repair_seconds + cluster.start_seconds
            fails_at[node] = back + until_failure()
            heapq.heappush(free, (back, node))
            continue
        finished = max(finished, end)
        heapq.heappush(free, (end, node))
    hours = finished / 3600
    ideal = cluster.images * cluster.seconds_per_image / cluster.nodes / 3600
    return {
        "hours": hours,
        "gpu_hours": hours * cluster.nodes,
        "dollars": hours * cluster.nodes * cluster.price,
        "efficiency": ideal / hours,
        "failures": failures,
        "lost_gpu_hours": lost / 3600,
    }


def measured(plan: str) -> tuple[float, float, dict[str, float]]:
    """Seconds per image from the phases of the run on one GPU, its start, and the wall time that checks them."""
    results = json.loads(MEASURED.read_text(encoding="utf-8"))[plan]["results"][plan]
    per_image = sum(results["seconds_by_phase"].values()) / results["images"]
    one = Cluster(
        nodes=1, images=results["images"], seconds_per_image=per_image, noise=0, straggler_share=0,
        failures_per_node_hour=0,
    )  # fmt: skip
    predicted = simulate(one)["hours"] * 3600
    check = {"images": results["images"], "measured_seconds": results["seconds"], "predicted_seconds": predicted}
    return per_image, results["start_seconds"], check | {"ratio": predicted / results["seconds"]}


def measured_source(device: str) -> dict[str, dict[str, float]]:
    """By number of workers the rate from shards that the time of an image predicts, and the measured one.

    On a GPU that is the time of the command with images in memory, on CPU workers the processor time of one worker,
    of which each core gives one second a second.
    """
    content = json.loads((RESULTS / f"source_rates-{device}.json").read_text(encoding="utf-8"))
    results, settings = content["results"], content["manifest"]
    per_image = 1 / results["images_per_second"]["command_in_memory"]
    if device == "cpu":
        per_image = results["processor_seconds_per_image"]["shards_1"]
    checks = {}
    for workers in settings["workers"]:
        nodes = min(workers, results["cores"]) if device == "cpu" else 1
        images = 1000 * settings["chunk"] * nodes  # the rate, without the last chunk of each node
        cluster = Cluster(
            nodes=nodes, images=images, chunk=settings["chunk"], seconds_per_image=per_image, noise=0,
            straggler_share=0, failures_per_node_hour=0, image_bytes=results["mean_bytes"],
        )  # fmt: skip
        predicted = images / (simulate(cluster)["hours"] * 3600)
        rate = results["images_per_second"][f"workers_{workers}"]
        checks[f"{device}, {workers} workers"] = {
            "measured_images_per_second": rate, "predicted_images_per_second": predicted, "ratio": predicted / rate,
        }  # fmt: skip
    return checks


def _shard_rate(found: dict[str, Any]) -> float:
    rate: float = found["source_checks"]["h200, 1 workers"]["measured_images_per_second"]
    return rate


def main() -> None:
    """Simulate the table with several chunks, schedulers and rates of failures."""
    arguments = options(__doc__, out=...).parse_args()
    found: dict[str, Any] = {"assumptions": {}, "checks": {}, "table": []}
    for plan in ("table", "reading"):
        found["checks"][plan] = measured(plan)[2]
    found["source_checks"] = measured_source("h200") | measured_source("cpu")
    per_image, start, _ = measured("table")
    base = Cluster(seconds_per_image=per_image, start_seconds=start)
    found["assumptions"] = asdict(base)
    variants = {
        "common queue, chunks of 256": base,
        "common queue, chunks of 64": replace(base, chunk=64),
        "common queue, chunks of 4096": replace(base, chunk=4096),
        "fixed shares, chunks of 256": replace(base, fixed_shares=True),
        "common queue, ten times as many failures": replace(base, failures_per_node_hour=0.1),
        "common queue, no stragglers, no failures": replace(base, straggler_share=0, failures_per_node_hour=0),
        "common queue, store of 0.2 GB/s": replace(base, store_bandwidth=0.2e9),
        "common queue, 10 nodes": replace(base, nodes=10),
        "maps of two methods without scores": replace(base, seconds_per_image=1 / _shard_rate(found)),
    }
    for name, cluster in variants.items():
        runs = sorted((simulate(cluster, seed) for seed in range(5)), key=lambda run: run["hours"])
        middle = {key: round(value, 3) for key, value in runs[2].items()}
        spread = {"hours_lowest": round(runs[0]["hours"], 3), "hours_highest": round(runs[-1]["hours"], 3)}
        found["table"].append({"case": name, **middle, **spread})
        print(found["table"][-1], flush=True)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
