"""Results of Ray actors come back as bytes: the same as those of the local engine, without a folder in common."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.bench.bench_helpers import TINY, assert_same, open_store
from tests.data.source_files import png
from vitrail.bench import explain_folder
from vitrail.bench.engines.ray import RayWorker, write_result
from vitrail.bench.map_store import open_maps
from vitrail.errors import OutputError
from vitrail.pipeline import memory
from vitrail.ray import Explainer, read_maps

pytestmark = pytest.mark.slow


class InProcess:
    """An engine that runs tasks as an actor does, in this process."""

    def run(self, tasks, done=lambda _: None):
        for task in tasks:
            here = replace(task, folder="/nonexistent/folder/of/another/machine")
            files = RayWorker("cpu", torch.get_num_threads()).run(here)
            assert isinstance(files, dict), files
            assert list(files)[-1] == f"parts/{task.name}.parquet", "it marks the part as complete"
            write_result(task, files)
            done(task)


def test_actors_give_the_same_bytes_without_a_folder_in_common(tiny_run, tmp_path):
    store = open_store(TINY, tmp_path, tmp_path)
    InProcess().run(store.missing())
    assert_same(store, tiny_run[1])


def test_explained_images_and_columns_have_the_same_maps(tmp_path):
    methods = ["rollout", "gradtoken"]
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    out = tmp_path / "maps"
    explain_folder(tmp_path, out, methods=methods, batch=2, engine=InProcess())
    columns = Explainer("scenes", methods, batch=2)({"image": [png(number) for number in range(3)]})
    maps = open_maps(out)
    for number, content in enumerate(columns["maps"]):
        for method, relevance in read_maps(content).items():
            stored = maps.read(f"{number}.png", method=method)
            assert torch.allclose(stored, relevance[0].float(), rtol=2e-3), "as far as half precision stores them"


def test_failures_are_texts_and_a_full_disk_stops_the_run(tiny_run, tmp_path):
    store, _ = tiny_run
    failure = RayWorker("cpu", 1).run(replace(store.chunks[0], weights_hash="other"))
    assert "has other weights on this machine" in failure
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match=r"cannot write .*run it again to resume"):
        write_result(replace(store.chunks[0], folder=str(tmp_path / "file")), {"parts/x.parquet": b"x"})


def test_models_that_share_a_gpu_share_its_memory(monkeypatch):
    limits = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: limits.append(given))
    for share in (0.5, 1, 0):
        context = SimpleNamespace(get_assigned_resources=lambda share=share: {"GPU": share, "CPU": 1})
        ray = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda context=context: context)
        monkeypatch.setitem(memory.sys.modules, "ray", ray)
        memory.keep_to_gpu_share("cuda")
        memory.keep_to_gpu_share("cpu")
    assert limits == [(0.5, 0)]
