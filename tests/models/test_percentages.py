"""Shares in per cent: none that is larger than zero is called 0 %, none below one 100 %."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import fields
from importlib.resources import files

import pytest

from vitrail.bench.audit.audit import Finding
from vitrail.models.image_geometry import ImageGeometry
from vitrail.models.percentages import percent


@pytest.mark.parametrize(("width", "text"), [
    (10, "the model saw 1 % of the image"), (4, "the model saw 0.4 % of the image"),
    (0.4, "the model saw <0.1 % of the image"), (997, "the model saw 99.7 % of the image"),
])  # fmt: skip
def test_the_part_of_an_image_that_a_model_saw(width, text):
    assert str(ImageGeometry((100, 1000), (0.0, 0.0, float(width), 100.0), (224, 224))).startswith(text)


def test_a_finding_of_an_audit_at_one_patch_of_many():
    given = {"score": 0.25, "place": "top left", "patches": 1 / 256, "maps": 12, "share": 0.004}
    finding = Finding(**{one.name: given.get(one.name) for one in fields(Finding)})
    assert "of 12 maps (0.4 % of the class) is at one place" in finding.sentence
    assert finding.sentence.endswith("which covers 0.4 % of the image")


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_page_writes_shares_in_the_same_way():
    shares = [0.0, 0.0004, 0.004, 0.0094, 0.0096, 0.356, -0.002, -0.4]
    script = files("vitrail.web").joinpath("static/maps.js").read_text(encoding="utf-8").replace("export ", "")
    script += f"\nprocess.stdout.write({shares}.map(formatShare).join(';'));"
    node = shutil.which("node")
    assert node is not None
    done = subprocess.run([node, "-e", script], capture_output=True, text=True, check=True)  # noqa: S603
    own = [percent(share).replace("-", "−").replace(" ", "\u00a0") for share in shares]
    assert done.stdout.split(";") == own
