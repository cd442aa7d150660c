"""Plans of the package that need no data, from the command line to the report."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

pytest.importorskip("polars")

from vitrail.bench.plan_file import plans
from vitrail.bench.report.metric import PROTOCOL_METRICS
from vitrail.cli.app import app

PLANS = ("scenes_clip", "scenes_detr", "scenes_seg", "scenes_video", "scenes_vlm", "tones", "lm_recall")


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_the_report_of_a_plan_has_all_its_protocols(name, tmp_path, monkeypatch):
    monkeypatch.delenv("VITRAIL_DATA", raising=False)
    text = plans()[name].read_text(encoding="utf-8")
    text = re.sub(r"^methods = \[.*?\]$", 'methods = ["transformer_mm"]', text, flags=re.MULTILINE | re.DOTALL)
    plan = tmp_path / "plan.toml"
    plan.write_text(re.sub(r"count = \d+", "count = 2", text), encoding="utf-8")
    result = CliRunner().invoke(app, ["bench", str(plan), "--out", str(tmp_path / "runs")], catch_exceptions=False)
    assert result.exit_code == 0
    assert "Report: " in result.output
    (page,) = (tmp_path / "runs").glob("*/report.html")
    report = page.read_text(encoding="utf-8")
    protocols = {
        p for line in re.findall(r"^protocols = (\[.*\])$", text, flags=re.MULTILINE) for p in json.loads(line)
    }
    assert protocols
    for protocol in protocols & PROTOCOL_METRICS.keys():
        heads = [head for head, *_ in PROTOCOL_METRICS[protocol].values()]
        assert any(head in report for head in heads), protocol
