"""The papers' figures: each has its panels, and rejects inputs that it cannot draw."""

from __future__ import annotations

import pytest
import torch

from vitrail.errors import InputError, ModelError, NotApplicableError, OptionError, OutputError, TargetError
from vitrail.models import load
from vitrail.models.loaded import LoadedModel
from vitrail.models.preprocess import Preprocess
from vitrail.pipeline.explain import explain
from vitrail.testing import tiny_vit
from vitrail.tools.figures import FIGURES, Progress, draw, find_figure
from vitrail.tools.figures.registry import FigureEntry
from vitrail.viz.panels import MAX_SIZE, add_axes, add_grid, new_figure, wrap_text

pytest.importorskip("matplotlib")

DEPTH, HEADS = 3, 4


@pytest.fixture(scope="module")
def loaded():
    model = tiny_vit(depth=DEPTH, heads=HEADS)
    return LoadedModel(model, Preprocess((32, 32), (0.5,) * 3, (0.5,) * 3), tuple("abcde"), "tiny")


@pytest.fixture(scope="module")
def images():
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def panels(figure, kind="image"):
    return sum(axes.get_label() == kind for axes in figure.axes)


def texts(figure):
    """Texts of a figure: those of its panels without ticks, of legends, and its own."""
    found = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    for axes in figure.axes:
        labels = [axes.xaxis.label, axes.yaxis.label] if axes.axison else []
        found += [axes.title, *axes.texts, *labels]
    return [text for text in found if text.get_text()]


def overlapping(figure):
    """Pairs of texts that overlap."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # labels of axes and legends get their places
    renderer = canvas.get_renderer()
    boxes = [(t.get_text(), t.get_window_extent(renderer).expanded(1, 0.85)) for t in texts(figure)]
    return [(a, b) for i, (a, x) in enumerate(boxes) for b, y in boxes[i + 1 :] if x.overlaps(y)]


CASES = {
    "vtranm-1": ({}, 2 * (4 + 3 * DEPTH), 0),
    "vtranm-4": ({"methods": "rollout, transformer_mm attcat"}, 2 * 4, 0),
    "vtranm-5": ({"methods": "vtranm"}, 2 * 2, 0),
    "gradtoken-1": ({"methods": "lrp raw_attention gradtoken"}, 2 * (1 + 2 * 3), 0),
    "gradtoken-7": ({"methods": ["transformer_mm", "gradtoken:3"]}, 2 * 3, 0),
    "gradtoken-8": ({"methods": ["transformer_mm", "gradtoken"]}, 2 * (1 + 2 * 2), 0),
    "gradtoken-9": ({}, 2 * 6, 0),
    "gradtoken-10": ({}, 2 * (3 + HEADS), 0),
    "gradtoken-11": ({}, 2 * (1 + DEPTH), 0),
    "vitcx-1": ({"methods": ["rollout", "vit_cx"], "step": 12544}, 2 * 3, 0),
    "vitcx-2": ({}, 2 * 16, 0),
    "vitcx-4": ({}, 0, 2),
    "vitcx-5": ({}, 2 * 9, 2 * 4),
    "vitcx-6": ({}, 2 * 4, 0),
}


def test_every_figure_has_a_test_case():
    assert list(CASES) == list(FIGURES)


#: Figures that evaluate many perturbed images.
SLOW = ("vitcx-1", "vitcx-2")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in CASES])
def test_a_figure_has_its_panels_and_no_overlapping_text(name, loaded, images, tmp_path):
    options, count, charts = CASES[name]
    before = {key: value.clone() for key, value in loaded.module.state_dict().items()}
    figure = draw(name, loaded, images, **options)
    assert (panels(figure), panels(figure, "chart")) == (count, charts)
    assert not overlapping(figure)
    assert figure.dpi == 200
    figure.savefig(tmp_path / f"{name}.png", dpi=60)
    assert (tmp_path / f"{name}.png").stat().st_size > 2000
    assert all(torch.equal(value, before[key]) for key, value in loaded.module.state_dict().items())


def test_a_block_can_be_chosen_for_the_weights_of_vtranm(loaded, images):
    mean = draw("vtranm-1", loaded, images[:1], 2, block="mean", strip=False)
    assert panels(mean) == 4
    assert any("mean of the blocks" in t.get_text() for t in texts(mean))
    last = " ".join(t.get_text() for t in texts(draw("vtranm-1", loaded, images[:1], 2, strip=False)))
    assert f"weights\nblock {DEPTH}" in last
    assert len(explain(loaded, images, "vtranm", keep=True, target=2).intermediates["transformation"][0]) == DEPTH
    with pytest.raises(OptionError, match=f"this model has {DEPTH} blocks"):
        draw("vtranm-1", loaded, images, block=DEPTH)
    with pytest.raises(OptionError, match="must be an integer"):
        draw("vtranm-1", loaded, images, block="last")


def test_heads_have_their_own_or_a_common_scale(loaded, images):
    def bounds(figure):
        return {t.get_text().partition(" (")[2] for t in texts(figure) if t.get_text().startswith("head")}

    assert len(bounds(draw("gradtoken-10", loaded, images[:1], 1))) > 1
    assert len(bounds(draw("gradtoken-10", loaded, images[:1], 1, scale="common", propagated=False))) == 1
    with pytest.raises(OptionError, match="scale='each'"):
        draw("gradtoken-10", loaded, images, scale="each")


def test_depths_are_scored_against_given_masks(loaded, images):
    masks = torch.zeros(2, 32, 32, dtype=torch.bool)
    masks[:, 8:20, 8:20] = True
    truth = [(images, torch.tensor([0, 1]), masks)]
    figure = draw("gradtoken-11", loaded, images[:1], truth=truth, threshold="mean")
    assert panels(figure, "chart") == 3
    curve = next(axes for axes in figure.axes if axes.get_label() == "chart").lines[0].get_ydata()
    assert len(curve) == DEPTH
    assert all(0 <= value <= 100 for value in curve)
    assert any("2 images with known masks" in t.get_text() for t in texts(figure))


@pytest.mark.slow
def test_embedded_scenes_are_drawn_where_no_images_are_given():
    scenes = load("scenes")
    pairs = draw("gradtoken-8", scenes, methods="gradtoken")
    assert panels(pairs) == 2 * 3
    scored = draw("gradtoken-11", scenes, scenes=4)
    assert panels(scored, "chart") == 3
    with pytest.raises(OptionError, match="scenes=-1"):
        draw("gradtoken-11", scenes, scenes=-1)
    with pytest.raises(InputError, match="more than the 2000"):
        draw("gradtoken-11", scenes, scenes=5000)


def test_errors_about_unknown_names_and_options_list_the_known_ones(loaded, images):
    with pytest.raises(OptionError) as error:
        find_figure("gradtoken10")
    assert "did you mean gradtoken-10" in str(error.value)
    assert all(name in str(error.value) for name in FIGURES)
    with pytest.raises(OptionError, match="vtranm-1 does not take blocks; it takes block=-1"):
        draw("vtranm-1", loaded, images, blocks=2)
    with pytest.raises(OptionError, match="unknown method 'rolout'"):
        draw("vtranm-4", loaded, images, methods="rolout")
    with pytest.raises(OptionError, match="must be method names"):
        draw("vtranm-4", loaded, images, methods=3)


def test_wrong_targets_and_images_raise_errors(loaded, images):
    with pytest.raises(TargetError, match="class 7 does not exist: the model has 5 classes"):
        draw("gradtoken-9", loaded, images, 7)
    with pytest.raises(TargetError, match="needs two classes per image, got 1"):
        draw("gradtoken-8", loaded, images, 3)
    with pytest.raises(TargetError, match="needs one class per image, got 2"):
        draw("gradtoken-7", loaded, images, [[0, 1]])
    with pytest.raises(TargetError, match="no class is called 'zebra'"):
        draw("gradtoken-7", loaded, images, "zebra")
    with pytest.raises(InputError, match="not trained on the embedded scenes"):
        draw("gradtoken-7", loaded)
    with pytest.raises(TargetError, match="need classes as targets, got a function"):
        draw("vitcx-1", loaded, images, lambda output: output[:, 0])


def test_target_functions_are_explained(loaded, images):
    figure = draw("gradtoken-9", loaded, images[:1], lambda output: output[:, :2])
    assert panels(figure) == 1 + 2 * 5
    assert {"target 0", "target 1"} <= {t.get_text() for t in texts(figure)}


def test_masks_can_be_chosen_and_are_validated(loaded, images):
    assert panels(draw("vitcx-5", loaded, images[:1], masks=[0, -1], method="vit_cx:mode=paper")) == 5
    with pytest.raises(OptionError, match="masks=999 is out of range"):
        draw("vitcx-5", loaded, images[:1], masks=999)
    with pytest.raises(OptionError, match="got method='rollout'"):
        draw("vitcx-6", loaded, images, method="rollout")
    with pytest.raises(OptionError, match="masks=random"):
        draw("vitcx-2", loaded, images, method="vit_cx:2")
    with pytest.raises(OptionError, match="no corrected map"):
        draw("vitcx-6", loaded, images[:1], method="vit_cx:4")


@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")  # of an untrained model
def test_comparisons_show_the_methods_of_the_papers(loaded, images):
    from vitrail.tools.figures import gradtoken, vtranm

    baselines = {"gradcam", "lrp", "conservative_lrp", "transformer_attribution", "raw_attention", "rollout", "attcat",
                 "transformer_mm"}  # fmt: skip
    assert set(vtranm.COMPARED) == {*baselines, "vtranm"}
    assert set(gradtoken.INTRODUCED) == {"gradcam", "lrp", "raw_attention", "rollout", "gradtoken"}
    titles = {t.get_text() for t in texts(draw("vtranm-4", loaded, images[:1], quick=True))}
    assert any(title.startswith("Conservative") for title in titles)
    assert "Partial LRP" not in titles


@pytest.mark.parametrize("method", ["vit_cx", "vit_cx:paper"])
def test_the_noisy_image_is_the_one_that_vit_cx_scored(method, loaded, images):
    from vitrail.tools.figures.vitcx_data import masked_with_noise

    e = explain(loaded, images[:1], method, target=2, keep=True)
    masks, impact = e.intermediates["masks"][0][0], e.intermediates["impact"][0][0][0]
    image = images[0]
    for index in (0, len(masks) - 1):
        noisy = masked_with_noise(e, image, index)
        noise = noisy - image * masks[index]
        with torch.no_grad():
            p = loaded.module(torch.stack([noisy, image + noise, image])).softmax(1)[:, 2]
        torch.testing.assert_close(impact[index], p[0] - p[1] + p[2], rtol=1e-4, atol=1e-6)
    with pytest.raises(OptionError, match="adds no noise"):
        draw("vitcx-5", loaded, images[:1], method="vit_cx:3")


def test_similarity_of_masks_beside_a_convolutional_network(loaded, images):
    from vitrail.tools.figures.mask_similarity import convert_images, convolutional_features

    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 6, 4, 4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
    network = torch.nn.Sequential(*layers, torch.nn.Linear(6, 5)).eval()
    other = LoadedModel(network, Preprocess((64, 64)), name="small network")
    assert torch.equal(convolutional_features(network, images), network[1](network[0](images)))
    assert not any(module._forward_hooks for module in network.modules())
    figure = draw("vitcx-4", loaded, images, compare=other)
    assert panels(figure, "chart") == 2
    assert any("small network, mean" in t.get_text() for t in texts(figure))
    assert not overlapping(figure)
    white = convert_images(torch.ones(1, 3, 32, 32), loaded, other)  # 1 is white with mean and std 0.5
    expected = torch.tensor([(1 - m) / s for m, s in zip(other.preprocess.mean, other.preprocess.std, strict=True)])
    torch.testing.assert_close(white, expected.view(1, 3, 1, 1).expand(1, 3, 64, 64))
    with pytest.raises(OptionError, match="pass compare= too"):
        draw("vitcx-4", loaded, images, compare_weights="file")
    with pytest.raises(OptionError, match="got a model object"):
        draw("vitcx-4", loaded, images, compare=network, compare_weights="file")
    with pytest.raises(ModelError, match="preprocessing of Sequential is unknown"):
        draw("vitcx-4", loaded, images, compare=network)
    with pytest.raises(NotApplicableError, match="Flatten has no feature maps"):
        convolutional_features(torch.nn.Flatten(), images)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_similarity_of_masks_beside_torchvision_weights(suffix, loaded, images, tmp_path):
    models = pytest.importorskip("torchvision.models")
    safetensors = pytest.importorskip("safetensors.torch")
    network, file = models.resnet18(), tmp_path / f"resnet18.{suffix}"
    (safetensors.save_file if suffix == "safetensors" else torch.save)(network.state_dict(), file)
    figure = draw("vitcx-4", loaded, images, compare="torchvision:resnet18", compare_weights=str(file))
    assert any("torchvision:resnet18, mean" in t.get_text() for t in texts(figure))


def test_progress_is_reported_and_methods_that_do_not_apply_are_left_out(loaded, images):
    class CountedProgress(Progress):
        def __init__(self):
            self.total = self.done = 0

        def begin(self, what, total):
            assert what == "Explaining"
            self.total += total

        def step(self):
            self.done += 1

    progress = CountedProgress()
    draw("gradtoken-7", loaded, images, methods="gradtoken", progress=progress)
    assert progress.total == progress.done == 2

    from vitrail.tools.figures.prepare import select_methods

    assert list(select_methods(loaded, images, None, ("no_such_method", "rollout"))) == ["rollout"]
    with pytest.raises(NotApplicableError, match="none of no_such_method"):
        select_methods(loaded, images, None, ("no_such_method",))


def test_the_command_lists_and_draws_figures(tmp_path, monkeypatch):
    import typer
    from typer.testing import CliRunner

    from vitrail.cli.figure import figure

    app = typer.Typer()
    app.command()(figure)
    monkeypatch.setattr("vitrail.cli.common.out.width", 200)
    monkeypatch.chdir(tmp_path)
    listed = CliRunner().invoke(app, [])
    assert listed.exit_code == 0
    result = CliRunner().invoke(app, ["gradtoken-9", "--out", "here/schemes.pdf", "--target", "ball"])
    assert result.exit_code == 0, result.exception
    assert (tmp_path / "here" / "schemes.pdf").read_bytes().startswith(b"%PDF")
    for words, error in (
        (["gradtoken-9", "--out", "schemes.gif"], OutputError),
        (["gradtoken-9", "missing.png"], InputError),
        (["no-such-figure"], OptionError),
        (["vtranm-1", "--option", "block"], OptionError),
    ):
        assert isinstance(CliRunner().invoke(app, words).exception, error), words


def test_figure_size_grids_and_wrapped_text():
    figure = new_figure(4, 2)
    axes = add_axes(add_grid(figure, 2, 3, (1.0, 0.5), 0.5, 0.25, (0.25, 0.5)))
    assert axes.shape == (2, 3)
    assert axes[1, 2].get_position().bounds == pytest.approx((3 / 4, 1 - 1.75 / 2, 1 / 4, 0.5 / 2))
    assert not any(one.axison for one in axes.flat)
    with pytest.raises(InputError, match="at most 100"):
        new_figure(MAX_SIZE + 1, 3)
    assert wrap_text("a $ b", 2, 6.5) == "a $ b"
    assert wrap_text("Transformer-MM", 0.75, 7.5) == "Transformer-\nMM"
    assert wrap_text("one two three", 0.3, 6.5).endswith("two…")
    assert isinstance(next(iter(FIGURES.values())), FigureEntry)
