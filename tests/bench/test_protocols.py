"""The grid pointing game and the faithfulness protocols as parts of a plan."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from tests.bench.bench_helpers import open_store
from vitrail.bench import LocalEngine, Plan, PlanError
from vitrail.bench.plan import DatasetSpec
from vitrail.bench.plan_cost import ModelCost, count_images, explanation_cost
from vitrail.data import SCENE_CLASSES, Scenes

timm = pytest.importorskip("timm")

PLAN = """
name = "grids"
models = ["scenes"]
methods = ["rollout", "leadlight"]
controls = false
protocols = ["grid_pointing", "road", "saco", "monotonicity", "infidelity"]
view = "squash"

[[dataset]]
name = "grids"
root = "images"
options = { count = 1, size = 64 }
protocols = ["grid_pointing"]

[[dataset]]
name = "imagenet"
root = "images"
limit = 1
protocols = ["road", "saco", "monotonicity", "infidelity"]
"""


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Scenes of one object as a folder in the layout of ImageNet."""
    lines = ["index,wnid,name"]
    lines += [f"{label},n{label:08d},{name}" for label, name in enumerate(SCENE_CLASSES)]
    scenes, found = Scenes("test", objects=1, count=24), set()
    for i in range(24):
        label = scenes[i].classes[0]
        if label not in found:
            found.add(label)
            path = tmp_path / "images" / "val" / f"n{label:08d}" / f"scene{i}.JPEG"
            path.parent.mkdir(parents=True)
            Image.fromarray(scenes[i].image).save(path, quality=95)
    (tmp_path / "images" / "classes.csv").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:imagenet")
def test_plan_of_all_protocols(images: Path) -> None:
    store = open_store(PLAN, images / "runs", images)
    LocalEngine(1).run(store.missing())
    table = store.merge()
    assert table["error"].drop_nulls().to_list() == []
    value = {(row["method"], row["score"]): row["value"] for row in table.iter_rows(named=True)}
    assert value["rollout", "cell_share"] == pytest.approx(0.25)  # the same map for the class of every cell
    assert value["leadlight", "cell_share"] != pytest.approx(0.25, abs=1e-6)
    for method in ("rollout", "leadlight"):
        combined = (value[method, "road_lerf"] - value[method, "road_morf"]) / 2
        assert value[method, "road"] == pytest.approx(combined)
        assert -1 <= value[method, "saco"] <= 1
        assert 0 <= value[method, "rising"] <= 1
        assert 0 <= value[method, "infidelity_scaled"] <= 1


@pytest.mark.filterwarnings("ignore:imagenet")
def test_grid_pointing_needs_grids(images: Path) -> None:
    text = PLAN.replace('protocols = ["road", "saco", "monotonicity", "infidelity"]', 'protocols = ["grid_pointing"]')
    with pytest.raises(PlanError, match="grids of images"):
        open_store(text, images / "runs", images)


@pytest.mark.filterwarnings("ignore:imagenet")
def test_relevance_stays_in_the_cell_that_the_output_depends_on(images: Path) -> None:
    text = PLAN.partition('[[dataset]]\nname = "imagenet"')[0].replace('["grid_pointing"]', '["difull", "dipart"]')
    text = text.replace('"grid_pointing", "road", "saco", "monotonicity", "infidelity"', '"difull", "dipart"')
    torch.manual_seed(0)
    save_file(timm.create_model("test_vit", num_classes=12).state_dict(), images / "vit.safetensors")
    text = text.replace(
        '["scenes"]', f'["scenes", {{ name = "timm:test_vit", weights = "{images / "vit.safetensors"}" }}]'
    )
    text = text.replace('["rollout", "leadlight"]', '["rollout", "transformer_mm", "gradcam_features", "random"]')
    store = open_store(text, images / "runs", images)
    LocalEngine(1).run(store.missing())
    rows = [row for row in store.merge().iter_rows(named=True) if row["protocol"] in ("difull", "dipart")]
    value = {(row["method"], row["score"]): row["value"] for row in rows if row["model"] != "scenes"}
    for method in ("rollout", "transformer_mm"):  # attention stays in the cell
        assert value[method, "difull"] == pytest.approx(1)
    assert value["gradcam_features", "difull"] < 0.9  # it reads patches without regard to attention
    assert value["random", "difull"] == pytest.approx(0.25, abs=0.1)
    assert value["rollout", "dipart"] == pytest.approx(0.25)  # the same map for every class
    reasons = {row["error"] for row in rows if row["model"] == "scenes"}
    assert len(reasons) == 1
    assert "need a timm VisionTransformer" in reasons.pop()


def test_cost_of_grids_with_the_classes_of_all_cells() -> None:
    model = ModelCost((224, 224), (14, 14), 192, 12, ("transformer_mm", "occlusion"), 1.0, 1)

    def cost(protocol: str, method: str, n: int = 2) -> float:
        plan = Plan(
            name="a",
            models="scenes",
            methods=method,
            protocols=protocol,
            dataset={"name": "grids", "options": {"n": n}},
        )
        return explanation_cost(plan, plan.dataset[0], [method], method, model)

    # Without the files, as many grids are counted as the plan asks for.
    assert count_images(DatasetSpec(name="grids", root="nowhere", options={"count": 7}))[0] == 7
    # A forward and backward pass for the plan's own map; for grids one forward and a backward pass for each cell.
    assert cost("grid_pointing", "transformer_mm") == 3 + (1 + 2 * 4)
    assert cost("difull", "transformer_mm") == 3 + 3 * 4 * 4  # four classes on images of four times the size
    assert cost("dipart", "occlusion", 3) == cost("sanity", "occlusion", 3) / (1 + 12 + 3) * (1 + 81)
