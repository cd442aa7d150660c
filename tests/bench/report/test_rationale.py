"""Report of token-F1 against the number of top words, from a file that `studies/movies.py` writes."""

from __future__ import annotations

import csv
import json
from io import StringIO
from xml.etree import ElementTree as ET

import pytest

from vitrail.bench.report import write_rationale_report
from vitrail.errors import DataError


def test_token_f1_report(tmp_path):
    def row(name, shift):
        at = {k: {"value": 0.1 + shift + k / 1000, "low": 0.05 + shift, "high": 0.3 + shift} for k in (10, 20, 80)}
        return {"method": name, "macro_f1_at": at, "micro_f1_at": at, "auprc": {"mean": 0.2, "low": 0.1, "high": 0.3}}

    path = tmp_path / "movies.json"
    rows = [row("rollout", 0.0), row("gradtoken", 0.1), row("random", -0.05)]
    path.write_text(json.dumps({"manifest": {"reviews": 3, "versions": {"vitrail": "0"}}, "rows": rows}))
    page = write_rationale_report(path)
    assert page.name == "movies-report.html"
    text = page.read_text(encoding="utf-8")
    tree = ET.fromstring(text.removeprefix("<!DOCTYPE html>\n"))  # noqa: S314 - our own page
    charts = list(tree.iter("svg"))
    assert len(charts) == 2
    assert len([p for p in charts[0] if p.tag == "polyline"]) == 3
    assert len([p for p in charts[0] if p.tag == "polygon"]) == 3  # an interval for each
    body = [["".join(c.itertext()) for c in tr] for tr in next(tree.iter("tbody"))]
    assert [line[0] for line in body] == ["gradtoken", "rollout", "random"]
    assert body[0][1] == "0.210[0.150, 0.400]"
    table = list(csv.DictReader(StringIO((tmp_path / "movies-report.csv").read_text())))
    assert len(table) == 3 * 2 * 3
    path.write_text(json.dumps({"rows": [{"method": "a", "macro_f1_at": {"10": 0.5}}]}))
    assert "0.500" in write_rationale_report(path).read_text(encoding="utf-8")  # a plain number has no interval
    path.write_text("{}")
    with pytest.raises(DataError, match="token-F1"):
        write_rationale_report(path)
