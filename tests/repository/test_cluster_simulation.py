"""The simulation of a cluster: known answers, and the committed result."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def simulation():
    sys.path.insert(0, str(ROOT / "studies"))
    try:
        import cluster_simulation

        yield cluster_simulation
    finally:
        sys.path.remove(str(ROOT / "studies"))


def plain(simulation, **changes):
    """A cluster without noise, failures, stragglers or waiting."""
    free = {"noise": 0, "straggler_share": 0, "failures_per_node_hour": 0, "dispatch_seconds": 0, "store_latency": 0}
    return simulation.Cluster(**{**free, "store_bandwidth": 1e18, "chunk": 10, "seconds_per_image": 1.0, **changes})


def test_times_of_simple_clusters_are_known(simulation):
    def seconds(**changes):
        return simulation.simulate(plain(simulation, **changes))["hours"] * 3600

    assert seconds(nodes=1, images=95) == pytest.approx(95)
    assert seconds(nodes=4, images=80) == pytest.approx(20)
    assert seconds(nodes=4, images=90, start_seconds=7) == pytest.approx(37), "the ninth chunk is left over"
    assert seconds(nodes=4, images=80, image_bytes=2e6, store_bandwidth=1e6) == pytest.approx(160), "the store decides"
    slow = {"nodes": 4, "images": 400, "straggler_share": 0.25, "straggler_speed": 0.5}
    assert seconds(**slow, fixed_shares=True) == pytest.approx(200)
    assert seconds(**slow) == pytest.approx(120), "the others take over: 40 chunks at 3.5 chunks in 10 s"


def test_failures_lose_one_chunk_each_and_no_work_is_left(simulation):
    cluster = plain(simulation, nodes=5, images=5000, failures_per_node_hour=20, repair_seconds=60)
    found = simulation.simulate(cluster)
    assert found["failures"] > 5
    assert found["lost_gpu_hours"] * 3600 <= 10 * found["failures"]
    busy = 5000 / 5 + (found["lost_gpu_hours"] * 3600 + 60 * found["failures"]) / 5
    assert busy - 70 <= found["hours"] * 3600 <= busy + 140


def test_committed_result_is_what_the_simulation_gives_and_agrees_with_the_measured_run(simulation):
    committed = json.loads((ROOT / "studies" / "results" / "cluster-simulation.json").read_text(encoding="utf-8"))
    for plan, check in committed["checks"].items():
        assert simulation.measured(plan)[2] == pytest.approx(check)
        assert check["ratio"] == pytest.approx(1, abs=0.03)
    for device in {name.partition(",")[0] for name in committed["source_checks"]}:
        for name, check in simulation.measured_source(device).items():
            assert committed["source_checks"][name] == pytest.approx(check)
    case = next(row for row in committed["table"] if row["case"] == "common queue, chunks of 4096")
    cluster = simulation.Cluster(**committed["assumptions"] | {"chunk": 4096})
    hours = sorted(simulation.simulate(cluster, seed)["hours"] for seed in range(5))
    assert [case["hours_lowest"], case["hours"], case["hours_highest"]] == pytest.approx(hours[::2], abs=1e-3)
