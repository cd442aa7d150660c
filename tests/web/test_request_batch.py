"""Batches: requests of several clients in one pass give the maps of single requests, and fail alone."""

from __future__ import annotations

import dataclasses
import threading
import warnings

import numpy as np
import pytest
import torch

import vitrail
from tests.web.web_case import tiny_model, wait_until
from vitrail.methods import METHODS
from vitrail.models import LoadedModel
from vitrail.testing import tiny_vit
from vitrail.web import request_batch as batch_module
from vitrail.web.ignored_warnings import ignored_warnings
from vitrail.web.jobs import Job
from vitrail.web.limits import Limits
from vitrail.web.model_copies import copy_modules
from vitrail.web.server_state import Client, ServerState
from vitrail.web.validation import check_methods

pytestmark = pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")


class Requests:
    """Jobs of several clients that wait until ``run``, and the sizes of the batches they were computed in."""

    def __init__(self, monkeypatch):
        self.server, self.jobs, self.sizes, self.gate = (
            ServerState([tiny_model()], Limits(workers=1)),
            [],
            [],
            threading.Event(),
        )
        (self.served,) = self.server.models.values()
        self.server.batches.observe(self.served, 1, 0.001)
        compute = batch_module.explain_inputs

        def counted(served, inputs, *args):
            self.sizes.append(len(inputs))
            return compute(served, inputs, *args)

        monkeypatch.setattr(batch_module, "explain_inputs", counted)
        self.server.queue.submit("gate", lambda: self.gate.wait(60))

    def add(self, methods, image, targets=(0,)):
        pixels = np.random.default_rng(image).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        client = Client(f"client {len(self.jobs)}", frozenset({f"client {len(self.jobs)}"}))
        targets = None if targets is None else list(targets)
        checked = check_methods(methods, self.served, len(targets or [0]), 0, Limits())
        options = {method.label: dict(method.extra_options) for method in checked}
        job = Job("explain", self.served, pixels, f"image {image}", options, targets, 0, client.identities)
        self.jobs.append(self.server.start(job, checked, client))
        return job

    def run(self):
        self.gate.set()
        wait_until(lambda: all(job.finished for job in self.jobs), 60)
        self.server.close()

    def alone(self, job):
        """The maps of a job computed by the library."""
        inputs = self.served.model_inputs(job.raw_input).args[0]
        return vitrail.explain(
            self.served.loaded, inputs, methods={m: dict(o) for m, o in job.methods.items()}, target=[job.targets]
        )


def fast_methods(served):
    names = [name for name, method in METHODS.items() if method.check_weights is None]
    checked = check_methods(names, served, 1, 0, Limits(evaluations=100_000))
    return [method.label for method in checked if method.can_interleave]


def test_batched_maps_equal_those_of_single_requests(monkeypatch):
    requests = Requests(monkeypatch)
    methods = fast_methods(requests.served)
    assert {"gradtoken", "leadlight", "random", "attnlrp"} <= set(methods)
    for image in range(3):
        requests.add(methods, image, targets=[image])
    requests.run()
    assert 3 in requests.sizes
    for job in requests.jobs:
        assert job.state == "done"
        for name, expected in requests.alone(job).items():
            found = job.explanations[name]
            assert torch.allclose(found.maps, expected.maps, atol=2e-5), name
            assert torch.allclose(found.grid, expected.grid, rtol=1e-4, atol=1e-6), name
            assert torch.equal(found.targets, expected.targets)
            assert torch.allclose(found.logits, expected.logits, atol=1e-5)
            assert found.source is None


def test_requests_for_one_image_share_a_pass_and_predicted_classes(monkeypatch):
    requests = Requests(monkeypatch)
    for mix in (0.1, 0.2, 0.3):
        requests.add(["rollout", f"leadlight:mix={mix}"], image=5, targets=None)
    requests.add(["gradcam"], image=6, targets=None)
    requests.run()
    assert requests.sizes == [1, 1]
    for job in requests.jobs:
        logits = requests.served.logits(job.raw_input)
        assert job.targets == [int(logits.argmax())]
        assert all(torch.allclose(job.explanations[n].maps, e.maps, atol=2e-5) for n, e in requests.alone(job).items())


def test_different_numbers_of_classes_are_not_mixed(monkeypatch):
    requests = Requests(monkeypatch)
    requests.add(["gradcam"], 0, [1])
    requests.add(["gradcam"], 1, [1, 2])
    requests.add(["gradcam"], 2, [3])
    requests.run()
    assert sorted(requests.sizes) == [1, 2]
    assert [list(job.explanations["gradcam"].maps.shape[:2]) for job in requests.jobs] == [[1, 1], [1, 2], [1, 1]]


def test_a_failing_request_does_not_fail_the_others(monkeypatch):
    gradsam = METHODS["gradsam"]

    def fails_in_batches(trace):
        if len(trace.blocks[0].A) > 1:
            raise TypeError("no batches")
        return gradsam.compute(trace)

    monkeypatch.setitem(METHODS, "unbatched", dataclasses.replace(gradsam, name="unbatched", compute=fails_in_batches))
    requests = Requests(monkeypatch)
    good = [requests.add(["gradtoken"], image) for image in (0, 1)]
    alone = [requests.add(["unbatched"], image) for image in (2, 3)]
    broken = requests.add(["raw_attention:layer=77"], 4)
    requests.run()
    assert [job.state for job in (*good, *alone, broken)] == ["done"] * 4 + ["failed"]
    assert "layer=77" in broken.items[0].error["what"]


def test_cancelled_requests_are_left_out(monkeypatch):
    requests = Requests(monkeypatch)
    first, second = requests.add(["gradcam"], 0), requests.add(["gradcam"], 1)
    requests.add(["gradcam"], 2)
    requests.server.cancel(first)
    second.cancelled.set()
    requests.run()
    assert (first.state, second.state, requests.jobs[2].state) == ("cancelled", "cancelled", "done")
    assert requests.sizes == [1]


def test_predictions_are_computed_together(monkeypatch):
    requests = Requests(monkeypatch)
    rng = np.random.default_rng(0)
    inputs = {f"image {i}": rng.integers(0, 256, (32, 32, 3), dtype=np.uint8) for i in range(4)}
    single = []
    logits = type(requests.served).logits
    monkeypatch.setattr(type(requests.served), "logits", lambda *args: single.append(args) or logits(*args))
    futures = [
        requests.server.predict(Client(name, frozenset({name})), requests.served, name, pixels)
        for name, pixels in inputs.items()
    ]
    requests.gate.set()
    found = [future.result(60) for future in futures]
    requests.server.close()
    assert not single
    for probabilities, pixels in zip(found, inputs.values(), strict=True):
        assert torch.allclose(probabilities, logits(requests.served, pixels).softmax(-1), atol=1e-6)


def test_copies_share_weights_and_give_the_same_maps_at_the_same_time():
    served = tiny_model().for_workers(2)
    first, second = (copy.module for copy in served.copies)
    assert first is not second
    assert [p.data_ptr() for p in first.parameters()] == [p.data_ptr() for p in second.parameters()]
    inputs, methods = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)), ["gradtoken", "lrp"]
    found, start = {}, threading.Barrier(2)

    def run(index):
        start.wait(30)
        for _ in range(5):
            found[index] = vitrail.explain(served.copies[index], inputs, methods=methods, target=1)

    threads = [threading.Thread(target=run, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(p.requires_grad for p in first.parameters())
    assert all(torch.equal(found[0][name].maps, found[1][name].maps) for name in methods)


def test_a_model_that_cannot_be_copied_is_used_as_it_is():
    module = tiny_vit()
    module.lock = threading.Lock()
    assert copy_modules(LoadedModel(module)).module is module


def test_each_worker_uses_a_copy_of_its_own_and_cores_are_shared(monkeypatch):
    server = ServerState([tiny_model()], Limits(workers=2))
    (served,) = server.models.values()
    both, threads = threading.Barrier(2), []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    server.queue.cores = 6

    def run():
        both.wait(30)
        return served.loaded.module

    modules = [future.result(60) for future in [server.queue.submit(name, run) for name in "ab"]]
    server.close()
    assert {id(module) for module in modules} == {id(copy.module) for copy in served.copies[:2]}
    assert sorted(threads) == [3, 6]
    assert served.loaded is served.copies[0]


def test_known_maps_do_not_wait_for_a_model(monkeypatch):
    requests = Requests(monkeypatch)
    requests.gate.set()
    first = requests.add(["gradcam"], 0)
    wait_until(lambda: first.finished, 60)
    gate = threading.Event()
    requests.server.queue.submit("gate", lambda: gate.wait(60))
    again, other = requests.add(["gradcam"], 0), requests.add(["gradcam"], 1)
    wait_until(lambda: again.finished, 60)
    assert (again.state, other.state) == ("done", "queued")
    assert torch.equal(again.explanations["gradcam"].maps, first.explanations["gradcam"].maps)
    gate.set()
    requests.run()


def test_warnings_are_shown_again_after_the_last_thread():
    before, inside, leave = list(warnings.filters), threading.Event(), threading.Event()

    def run():
        with ignored_warnings():
            inside.set()
            leave.wait(30)

    with ignored_warnings():
        thread = threading.Thread(target=run)
        thread.start()
        assert inside.wait(30)
    warnings.warn("ignored: another thread is inside", stacklevel=1)
    leave.set()
    thread.join(30)
    assert list(warnings.filters) == before
