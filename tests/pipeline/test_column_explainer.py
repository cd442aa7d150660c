"""Maps as columns of a table: Ray Data and Spark give what `vitrail.explain` gives, and bad rows are named."""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image
from vitrail.integrations import SPARK_COLUMNS, spark_explainer

import vitrail
from tests.data.source_files import pixels, png
from vitrail.errors import InputError, ModelError, OptionError
from vitrail.pipeline.map_rows import to_half
from vitrail.ray import Explainer, read_maps
from vitrail.testing import tiny_vit

METHODS = ["rollout", "gradtoken"]


def expected_maps(count, target=None):
    """Maps of some scenes by `vitrail.explain`, in half precision, each alone."""
    model = vitrail.load("scenes")
    images = [Image.fromarray(pixels(png(k))) for k in range(count)]
    return [vitrail.explain(model, image, methods=METHODS, target=target) for image in images]


def assert_equal(columns, expected):
    for maps, targets, one in zip(columns["maps"], columns["targets"], expected, strict=True):
        found = read_maps(maps)
        for method in METHODS:
            torch.testing.assert_close(found[method], to_half(one[method].grid, one[method].signed, (16, 16))[0])
        assert list(targets) == one["rollout"].targets[0].tolist()


def test_columns_are_those_of_explain_for_every_kind_of_image(tmp_path):
    (tmp_path / "x.png").write_bytes(png(1))
    values = [png(0), str(tmp_path / "x.png"), pixels(png(2)), {"bytes": png(3), "path": None}]
    columns = Explainer("scenes", METHODS, "top2", batch=1)({"id": list("abcd"), "image": values})
    assert columns["id"].tolist() == list("abcd")
    expected = expected_maps(4, "top2")
    assert_equal(columns, expected)
    for names, probabilities, one in zip(columns["names"], columns["probabilities"], expected, strict=True):
        assert names == [one["rollout"].classes[t] for t in one["rollout"].targets[0]]
        np.testing.assert_allclose(probabilities, one["rollout"].probabilities[0], rtol=1e-5)
    assert set(columns["errors"]) == set(columns["checks"]) == {"{}"}
    assert len(columns["maps"][0]) < 2 * 2 * 16 * 16 * 2 + 300, "two methods, two targets, half precision, compressed"


def test_bad_rows_do_not_affect_the_others(tmp_path):
    values = [png(0), b"not an image", str(tmp_path / "missing.png"), 3.5, png(1)]
    columns = Explainer("scenes", METHODS)({"image": values})
    errors = [json.loads(text) for text in columns["errors"]]
    assert [set(one) for one in errors] == [set(), *[set(METHODS)] * 3, set()]
    assert "row 1 is not an image" in errors[1]["rollout"]
    assert "missing.png does not exist" in errors[2]["gradtoken"]
    assert "row 3 holds float" in errors[3]["rollout"]
    assert [bool(maps) for maps in columns["maps"]] == [True, False, False, False, True]
    assert read_maps(columns["maps"][1]) == {}
    assert columns["targets"][1] == []


def test_checks_are_columns():
    model = vitrail.models.LoadedModel(tiny_vit(), vitrail.Preprocess((32, 32)), name="tiny")
    columns = Explainer(model, ["rollout"], check=True)({"image": [png(0)]})
    one = vitrail.explain(model, Image.fromarray(pixels(png(0))), "rollout", check=True)
    assert json.loads(columns["checks"][0]) == {"rollout": [one.checks[0, 0].verdict]}


def test_wrong_columns_and_options_are_named():
    explainer = Explainer("scenes", ["rollout"])
    with pytest.raises(InputError, match="there is no column 'image', only content: pass column"):
        explainer({"content": [png(0)]})
    with pytest.raises(InputError, match="the column 'maps' would be overwritten"):
        explainer({"image": [png(0)], "maps": [1]})
    with pytest.raises(OptionError, match=r"methods must be a list, such as \['rollout'\]"):
        Explainer("scenes", "rollout")
    with pytest.raises(ModelError, match="the preprocessing of x is unknown"):
        Explainer(vitrail.models.LoadedModel(torch.nn.Linear(2, 2), name="x"))


def test_spark_function_explains_frames():
    pd = pytest.importorskip("pandas")
    frames = [pd.DataFrame({"id": [k], "image": [png(k)]}) for k in range(2)]
    found = pd.concat(spark_explainer("scenes", METHODS)(iter(frames)))
    assert found["id"].to_list() == [0, 1]
    assert [name.split()[0] for name in SPARK_COLUMNS.split(", ")] == [name for name in found.columns if name != "id"]
    assert_equal(found, expected_maps(2))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("pyspark") is None, reason="pyspark is not installed")
def test_spark_job_explains_a_table(monkeypatch):
    from pyspark.sql import SparkSession

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        table = session.createDataFrame([(k, png(k)) for k in range(2)], "id int, image binary")
        found = table.mapInPandas(spark_explainer("scenes", METHODS), f"id int, {SPARK_COLUMNS}").toPandas()
    finally:
        session.stop()
    assert_equal(found.sort_values("id"), expected_maps(2))


class DiesOnce(Explainer):
    """Kills its own process at the first row with a given image, once."""

    def __init__(self, *args, flag, **options):
        super().__init__(*args, **options)
        self.flag = flag

    def __call__(self, columns):
        if 2 in list(columns["id"]) and not os.path.exists(self.flag):  # noqa: PTH110 - a single call
            with open(self.flag, "w", encoding="ascii"):  # noqa: PTH123
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(columns)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'vitrail[ray]'")
def test_ray_data_gives_the_same_maps_after_an_actor_died(tmp_path, monkeypatch):
    import ray

    monkeypatch.setenv("RAY_worker_niceness", "0")
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        table = ray.data.from_items([{"id": k, "image": png(k)} for k in range(4)], override_num_blocks=4)
        found = table.map_batches(
            DiesOnce,
            fn_constructor_args=("scenes", METHODS),
            fn_constructor_kwargs={"flag": str(tmp_path / "died"), "batch": 1},
            concurrency=1, batch_size=1, num_cpus=1,
        )  # fmt: skip
        found.write_parquet(str(tmp_path / "maps"))
    finally:
        ray.shutdown()
    assert (tmp_path / "died").exists()
    rows = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "maps").sort_by("id").to_pydict()
    assert rows["id"] == list(range(4))
    assert_equal(rows, expected_maps(4))
