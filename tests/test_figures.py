"""The papers' figures: each is drawn with the panels it should have, and refuses what it cannot draw."""

from __future__ import annotations

import pytest
import torch

from vitrail.errors import InputError, NotApplicableError, OptionError, OutputError, TargetError
from vitrail.explain import explain
from vitrail.figures import FIGURES, Progress, draw, find_figure
from vitrail.figures.canvas import LARGEST, Canvas, CanvasGrid, fit
from vitrail.figures.registry import FigureEntry
from vitrail.models import load
from vitrail.models.loaded import LoadedModel
from vitrail.models.preprocess import Preprocess
from vitrail.testing import tiny_vit

pytest.importorskip("matplotlib")

DEPTH, HEADS = 3, 4


@pytest.fixture(scope="module")
def about():
    model = tiny_vit(depth=DEPTH, heads=HEADS)
    return LoadedModel(model, Preprocess((32, 32), (0.5,) * 3, (0.5,) * 3), tuple("abcde"), "tiny")


@pytest.fixture(scope="module")
def images():
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def panels(figure, kind="picture"):
    return sum(axes.get_label() == kind for axes in figure.axes)


def overlapping(figure):
    """Pairs of words that lie on one another."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [(t.get_text(), t.get_window_extent(renderer).expanded(1, 0.85)) for t in figure.texts if t.get_text()]
    return [(a, b) for i, (a, x) in enumerate(boxes) for b, y in boxes[i + 1 :] if x.overlaps(y)]


CASES = {
    "vtranm-1": ({}, 2 * (4 + 3 * DEPTH), 0),
    "vtranm-4": ({"methods": "rollout, transformer_mm attcat"}, 2 * 4, 0),
    "gradtoken-7": ({"methods": ["transformer_mm", "gradtoken:3"]}, 2 * 3, 0),
    "gradtoken-8": ({"methods": ["transformer_mm", "gradtoken"]}, 2 * (1 + 2 * 2), 0),
    "gradtoken-9": ({}, 2 * 6, 0),
    "gradtoken-10": ({}, 2 * (3 + HEADS), 0),
    "gradtoken-11": ({}, 2 * (1 + DEPTH), 0),
    "vitcx-1": ({"methods": ["rollout", "vit_cx"], "step": 12544}, 2 * 3, 0),
    "vitcx-2": ({}, 2 * 16, 0),
    "vitcx-4": ({}, 0, 2),
    "vitcx-5": ({}, 2 * 5, 2 * 4),
    "vitcx-6": ({}, 2 * 4, 0),
}


def test_every_figure_is_tried():
    assert list(CASES) == list(FIGURES)


@pytest.mark.parametrize("name", CASES)
def test_a_figure_has_its_panels_and_no_words_overlap(name, about, images, tmp_path):
    options, pictures, charts = CASES[name]
    before = {key: value.clone() for key, value in about.module.state_dict().items()}
    drawn = draw(name, about, images, **options)
    assert (panels(drawn), panels(drawn, "chart")) == (pictures, charts)
    assert not overlapping(drawn)
    assert drawn.dpi == 200
    drawn.savefig(tmp_path / f"{name}.png", dpi=60)
    assert (tmp_path / f"{name}.png").stat().st_size > 2000
    assert all(torch.equal(value, before[key]) for key, value in about.module.state_dict().items())


def test_weights_of_a_block_are_what_the_method_noted(about, images):
    mean = draw("vtranm-1", about, images[:1], 2, block="mean", strip=False)
    assert panels(mean) == 4
    assert any("mean of the blocks" in t.get_text() for t in mean.texts)
    last = [t.get_text() for t in draw("vtranm-1", about, images[:1], 2, strip=False).texts]
    assert f"block {DEPTH}" in last
    assert len(explain(about, images, "vtranm", keep=True, target=2).parts["transformation"][0]) == DEPTH
    with pytest.raises(OptionError, match=f"this model has {DEPTH} blocks"):
        draw("vtranm-1", about, images, block=DEPTH)
    with pytest.raises(OptionError, match="neither a number"):
        draw("vtranm-1", about, images, block="last")


def test_heads_on_their_own_scale_or_on_one(about, images):
    def bounds(figure):
        return {t.get_text().partition(" (")[2] for t in figure.texts if t.get_text().startswith("head")}

    assert len(bounds(draw("gradtoken-10", about, images[:1], 1))) > 1
    assert len(bounds(draw("gradtoken-10", about, images[:1], 1, scale="common", spread=False))) == 1
    with pytest.raises(OptionError, match="scale='each'"):
        draw("gradtoken-10", about, images, scale="each")


def test_depth_is_measured_against_masks_that_are_given(about, images):
    masks = torch.zeros(2, 32, 32, dtype=torch.bool)
    masks[:, 8:20, 8:20] = True
    truth = [(images, torch.tensor([0, 1]), masks)]
    drawn = draw("gradtoken-11", about, images[:1], truth=truth, threshold="mean")
    assert panels(drawn, "chart") == 3
    curve = next(axes for axes in drawn.axes if axes.get_label() == "chart").lines[0].get_ydata()
    assert len(curve) == DEPTH
    assert all(0 <= value <= 100 for value in curve)
    assert any("2 pictures with known masks" in t.get_text() for t in drawn.texts)


def test_embedded_scenes_are_drawn_where_no_images_are_given():
    scenes = load("scenes")
    pairs = draw("gradtoken-8", scenes, methods="gradtoken")
    assert panels(pairs) == 2 * 3
    measured = draw("gradtoken-11", scenes, scenes=4)
    assert panels(measured, "chart") == 3
    with pytest.raises(OptionError, match="scenes=-1"):
        draw("gradtoken-11", scenes, scenes=-1)
    with pytest.raises(InputError, match="more than the 2000"):
        draw("gradtoken-11", scenes, scenes=5000)


def test_names_and_options_that_do_not_exist_are_told_with_those_that_do(about, images):
    with pytest.raises(OptionError) as refused:
        find_figure("gradtoken10")
    assert "did you mean gradtoken-10" in str(refused.value)
    assert all(name in str(refused.value) for name in FIGURES)
    with pytest.raises(OptionError, match="vtranm-1 does not take blocks; it takes block=-1"):
        draw("vtranm-1", about, images, blocks=2)
    with pytest.raises(OptionError, match="unknown method 'rolout'"):
        draw("vtranm-4", about, images, methods="rolout")
    with pytest.raises(OptionError, match="are no methods"):
        draw("vtranm-4", about, images, methods=3)


def test_wrong_targets_and_images_are_told(about, images):
    with pytest.raises(TargetError, match="class 7 does not exist: the model has 5 classes"):
        draw("gradtoken-9", about, images, 7)
    with pytest.raises(TargetError, match="about two classes of each image, not 1"):
        draw("gradtoken-8", about, images, 3)
    with pytest.raises(TargetError, match="about one class of each image, not 2"):
        draw("gradtoken-7", about, images, [[0, 1]])
    with pytest.raises(TargetError, match="no class is called 'zebra'"):
        draw("gradtoken-7", about, images, "zebra")
    with pytest.raises(InputError, match="not trained on the embedded scenes"):
        draw("gradtoken-7", about)
    with pytest.raises(TargetError, match="give classes, not a function"):
        draw("vitcx-1", about, images, lambda output: output[:, 0])


def test_functions_are_explained_as_well(about, images):
    drawn = draw("gradtoken-9", about, images[:1], lambda output: output[:, :2])
    assert panels(drawn) == 1 + 2 * 5
    assert {"target 0", "target 1"} <= {t.get_text() for t in drawn.texts}


def test_masks_can_be_chosen_and_are_checked(about, images):
    assert panels(draw("vitcx-5", about, images[:1], masks=[0, -1], method="vit_cx:mode=paper")) == 3
    with pytest.raises(OptionError, match="masks=999 is out of range"):
        draw("vitcx-5", about, images[:1], masks=999)
    with pytest.raises(OptionError, match="which rollout does not"):
        draw("vitcx-6", about, images, method="rollout")
    with pytest.raises(OptionError, match="nothing to show"):
        draw("vitcx-2", about, images, method="vit_cx:2")
    with pytest.raises(OptionError, match="no corrected map"):
        draw("vitcx-6", about, images[:1], method="vit_cx:4")


def test_progress_is_told_and_methods_that_do_not_apply_are_left_out(about, images):
    class Counted(Progress):
        def __init__(self):
            self.total = self.done = 0

        def begin(self, what, total):
            assert what == "Explaining"
            self.total += total

        def step(self):
            self.done += 1

    seen = Counted()
    draw("gradtoken-7", about, images, methods="gradtoken", progress=seen)
    assert seen.total == seen.done == 2

    from vitrail.figures.prepare import applicable

    assert list(applicable(about, images, None, ("no_such_method", "rollout"))) == ["rollout"]
    with pytest.raises(NotApplicableError, match="none of no_such_method"):
        applicable(about, images, None, ("no_such_method",))


def test_the_list_and_the_drawing_on_the_command_line(tmp_path, monkeypatch):
    import typer
    from typer.testing import CliRunner

    from vitrail.cli.figure import figure

    app = typer.Typer()
    app.command()(figure)
    monkeypatch.setattr("vitrail.cli.common.out.width", 200)
    monkeypatch.chdir(tmp_path)
    listed = CliRunner().invoke(app, [])
    assert listed.exit_code == 0
    drawn = CliRunner().invoke(app, ["gradtoken-9", "--out", "here/schemes.pdf", "--target", "ball"])
    assert drawn.exit_code == 0, drawn.exception
    assert (tmp_path / "here" / "schemes.pdf").read_bytes().startswith(b"%PDF")
    for words, error in (
        (["gradtoken-9", "--out", "schemes.gif"], OutputError),
        (["gradtoken-9", "missing.png"], InputError),
        (["no-such-figure"], OptionError),
        (["vtranm-1", "--option", "block"], OptionError),
    ):
        assert isinstance(CliRunner().invoke(app, words).exception, error), words


def test_sheets_stay_printable():
    grid = CanvasGrid(0, 0, 2, 3, 1.0, 0.5)
    assert len(list(grid)) == 6
    with pytest.raises(InputError, match="too large"):
        Canvas(LARGEST + 1, 3)
    assert fit("a $ b", 2, 6.5) == "a $ b"
    assert fit("Transformer-MM", 0.75, 7.5) == "Transformer-\nMM"
    assert isinstance(next(iter(FIGURES.values())), FigureEntry)
