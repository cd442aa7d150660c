"""Videos, sound, series and features: known answers on real architectures, in double precision."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn

import vitrail
from vitrail.errors import NotApplicableError

transformers = pytest.importorskip("transformers")

WIDTH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
VIDEO = {"image_size": 16, "patch_size": 8, "num_labels": 4, **WIDTH}
#: Methods of one pass that read attention, gradients, features of tokens or relevance.
ATTENTION = ["rollout", "transformer_mm", "leadlight", "gradtoken", "vtranm", "legrad", "attnlrp", "raw_attention"]
#: Methods on the input itself.
INPUT = ["gradient_x_input", "integrated_gradients:steps=3", "smoothgrad:samples=2", "occlusion", "rise:masks=40"]


def built(model, config, **options):
    torch.manual_seed(0)
    found = getattr(transformers, model)(getattr(transformers, config)(**options)).double().eval()
    for p in found.parameters():  # heads and biases of zeros would hide errors
        p.data.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()), dtype=p.dtype))
    return found


def noise(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def videomae():
    model = built("VideoMAEForVideoClassification", "VideoMAEConfig", num_frames=6, tubelet_size=2, **VIDEO)
    model.videomae.embeddings.position_embeddings = torch.zeros_like(model.videomae.embeddings.position_embeddings)
    return model, noise(1, 6, 3, 16, 16), (2, None, 8, 8), (3, 2, 2)


def vivit():
    options = {k: v for k, v in VIDEO.items() if k != "patch_size"}
    model = built("VivitForVideoClassification", "VivitConfig", num_frames=6, tubelet_size=[2, 8, 8], **options)
    model.vivit.embeddings.position_embeddings.data.zero_()
    return model, noise(1, 6, 3, 16, 16), (2, None, 8, 8), (3, 2, 2)


def ast():
    strides = {"frequency_stride": 8, "time_stride": 8, "patch_size": 8}
    model = built("ASTForAudioClassification", "ASTConfig", max_length=40, num_mel_bins=24, num_labels=4, **strides,
                  **WIDTH)  # fmt: skip
    model.audio_spectrogram_transformer.embeddings.position_embeddings.data.zero_()
    return model, noise(1, 40, 24), (8, 8), (5, 3)


PLAIN = {"VideoMAE": videomae, "ViViT": vivit, "AST": ast}


def permuted(signal, patch, grid, order):
    """The input with its patches in another order; ``patch`` has None for the channels."""
    axes = [axis for axis, side in enumerate(patch, 1) if side is not None]
    sides = [side for side in patch if side is not None]
    canvas = signal.movedim(axes, list(range(1, len(axes) + 1)))
    places = product(*map(range, grid))
    cells = [tuple(slice(p * s, (p + 1) * s) for p, s in zip(place, sides, strict=True)) for place in places]
    moved = canvas.clone()
    for new, old in enumerate(order):
        moved[:, *cells[new]] = canvas[:, *cells[old]]
    return moved.movedim(list(range(1, len(axes) + 1)), axes)


@pytest.mark.parametrize("name", PLAIN)
def test_patches_in_another_order_have_their_relevance_in_that_order(name):
    model, signal, patch, grid = PLAIN[name]()
    order = torch.randperm(torch.Size(grid).numel(), generator=torch.Generator().manual_seed(5))
    other = permuted(signal, patch, grid, order.tolist())
    assert not torch.equal(other, signal)
    here, there = (vitrail.explain(model, s, methods=ATTENTION, target=1) for s in (signal, other))
    for method in ATTENTION:
        before, after = here[method].grid, there[method].grid
        assert before.shape == (1, 1, *grid)
        assert torch.allclose(after.flatten(2), before.flatten(2)[..., order], atol=1e-10)
        assert not torch.allclose(after, before, atol=1e-6)
        assert here[method].maps.shape[2:] == here[method].signal.shape[2:]


class Masked(nn.Module):
    """A model that sees a part of its input only."""

    def __init__(self, model, mask):
        super().__init__()
        self.model, self.config, self.main_input_name = model, model.config, model.main_input_name
        self.register_buffer("mask", mask)

    def forward(self, signal):
        return self.model(signal * self.mask)


def timesformer():
    model = built("TimesformerForVideoClassification", "TimesformerConfig", num_frames=6, **VIDEO)
    return model, noise(1, 6, 3, 16, 16), (1, None, None, None), (6, 1, 1)


def patchtst():
    model = built("PatchTSTForClassification", "PatchTSTConfig", num_input_channels=2, context_length=32,
                  patch_length=8, patch_stride=8, d_model=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4,
                  num_targets=4, scaling=None)  # fmt: skip
    return model, noise(1, 32, 2), (8, 1), (4, 2)


@pytest.mark.parametrize("name", ["VideoMAE", "ViViT", "TimeSformer", "AST", "PatchTST"])
def test_only_the_planted_patch_has_relevance(name):
    cases = PLAIN | {"TimeSformer": timesformer, "PatchTST": patchtst}
    model, signal, patch, _ = cases[name]()
    seen = tuple(slice(None) if side is None else slice(side, 2 * side) for side in patch)
    mask = torch.zeros_like(signal)
    mask[:, *seen] = 1
    shown = vitrail.explain(Masked(model, mask), signal, methods=["gradient_x_input", "occlusion:fill=0.5"], target=1)
    inside = mask.movedim(2, 1)[:, :1] if signal.dim() == 5 else mask[:, None]
    for explanation in shown.values():
        assert explanation.grid.shape[2:] == explanation.maps.shape[2:] == inside.shape[2:]
        assert explanation.grid[inside == 0].abs().max() <= 1e-12
        assert explanation.grid[inside == 1].abs().max() > 1e-6


def test_frames_that_a_model_does_not_read_have_no_relevance():
    class FirstFrames(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model, self.config = model, model.config

        def forward(self, video):
            return self.model(video[:, :6])

    model, _, _, grid = videomae()
    maps = vitrail.explain(FirstFrames(model), noise(2, 10, 3, 16, 16), methods=["rollout", *INPUT], target=1)
    for name, explanation in maps.items():
        assert explanation.maps.shape == (2, 1, 10, 16, 16)
        if not name.startswith("rise"):  # its masks are smooth and add up everywhere
            assert explanation.maps[:, :, 6:].abs().max() <= 1e-6, name
        assert explanation.maps[:, :, :6].abs().max() > 0.5, name
    assert maps["rollout"].grid.shape == (2, 1, *grid)


def test_gradients_of_a_video_add_up_as_those_of_any_input():
    model, video, *_ = videomae()
    start, end = (model(v).logits[0, 1] for v in (torch.zeros_like(video), video))
    found = vitrail.explain(model, video, "integrated_gradients", target=1, steps=60).grid
    assert torch.allclose(found.sum(), end - start, atol=1e-5)


def test_channels_in_front_of_the_frames_are_found_by_the_first_convolution():
    class ChannelsFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Conv3d(3, 8, (2, 8, 8), (2, 8, 8))
            self.block, self.head = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0), nn.Linear(8, 4)

        def forward(self, video):
            return self.head(self.block(self.embed(video).flatten(2).transpose(1, 2)).mean(1))

    torch.manual_seed(0)
    e = vitrail.explain(ChannelsFirst().double().eval(), noise(1, 3, 6, 16, 16), "rollout", target=1)
    assert [axis.name for axis in e.axes] == ["time", "height", "width"]
    assert e.maps.shape == (1, 1, 6, 16, 16)
    assert e.grid.shape == (1, 1, 3, 2, 2)


@pytest.mark.parametrize("method", ["rollout", "leadlight"])
def test_divided_attention_is_refused_for_that_reason(method):
    model, video, *_ = timesformer()
    with pytest.raises(NotApplicableError, match=r"over time and space in turn.*gradient_x_input"):
        vitrail.explain(model, video, method, target=1)


@pytest.mark.parametrize("method", ["scorecam", "vit_cx", "gradcam_features", "centre"])
def test_methods_of_images_name_the_axes(method):
    model, video, *_ = videomae()
    with pytest.raises(NotApplicableError, match=r"time, height, width; use .*transformer_mm"):
        vitrail.explain(model, video, method, target=1)


def xclip():
    shared = {**WIDTH, "projection_dim": 32}
    text = {**shared, "vocab_size": 60, "max_position_embeddings": 10, "eos_token_id": 59}
    vision = {**shared, "image_size": 16, "patch_size": 8, "num_frames": 4, "mit_hidden_size": 32,
              "mit_intermediate_size": 48, "mit_num_hidden_layers": 1, "mit_num_attention_heads": 4}  # fmt: skip
    options = {"prompt_layers": 1, "prompt_num_attention_heads": 2, "projection_dim": 32}
    model = built("XCLIPModel", "XCLIPConfig", text_config=text, vision_config=vision, **options)
    ids = torch.randint(3, 58, (3, 7), generator=torch.Generator().manual_seed(2))
    ids[:, -1] = 59
    return model, {"pixel_values": noise(1, 4, 3, 16, 16), "input_ids": ids}


def test_a_video_beside_texts_is_explained_for_one_text():
    model, call = xclip()
    plain = vitrail.explain(model, call, "gradient_x_input", target=lambda output: output.logits_per_video[:, 1])
    assert plain.maps.shape == (1, 1, 4, 16, 16)
    leaf = call["pixel_values"].clone().requires_grad_()
    model(pixel_values=leaf, input_ids=call["input_ids"]).logits_per_video[0, 1].backward()
    assert torch.allclose(plain.grid[0, 0], (leaf.grad * leaf)[0].sum(1), atol=1e-10)


def test_video_swin_is_explained_by_its_outputs():
    video = pytest.importorskip("torchvision.models.video")
    torch.manual_seed(0)
    sizes = {"patch_size": [2, 4, 4], "embed_dim": 12, "depths": [1, 1], "num_heads": [2, 2], "window_size": [2, 3, 3]}
    model = video.swin_transformer.SwinTransformer3d(**sizes, num_classes=4).double().eval()
    e = vitrail.explain(model, noise(1, 3, 4, 16, 16), "gradient_x_input", target=1)
    leaf = noise(1, 3, 4, 16, 16).requires_grad_()
    model(leaf)[0, 1].backward()
    assert torch.allclose(e.grid[0, 0], (leaf.grad * leaf)[0].sum(0), atol=1e-10)
    with pytest.raises(NotApplicableError, match="inside windows"):
        vitrail.explain(model, noise(1, 3, 4, 16, 16), "rollout", target=1)


SOUND = WIDTH | {
    "num_labels": 4, "conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 8), "classifier_proj_size": 16,
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip


@pytest.mark.parametrize("family", ["Wav2Vec2", "Hubert"])
def test_tokens_of_a_waveform_lie_where_their_convolutions_read(family):
    model = built(f"{family}ForSequenceClassification", f"{family}Config", **SOUND)
    e = vitrail.explain(model, noise(1, 1600), "rollout", target=1)
    layout = e.source.structure.layout
    assert e.grid.shape == (1, 1, 78)
    assert e.maps.shape == (1, 1, 1600)
    # Token i reads the samples 20 i to 20 i + 45 of the two convolutions: it is centred at 20 i + 22.
    assert layout.area.size == (78 * 20,)
    assert abs(layout.area.start[0] + 10 - 22.5) < 10  # half of the distance of two tokens


def test_patches_that_overlap_are_placed_by_their_centres():
    model = built("ASTForAudioClassification", "ASTConfig", max_length=76, num_mel_bins=46, num_labels=4, patch_size=16,
                  frequency_stride=10, time_stride=10, **WIDTH)  # fmt: skip
    layout = vitrail.explain(model, noise(1, 76, 46), "rollout", target=1).source.structure.layout
    assert (layout.prefix, layout.grid) == (2, (7, 4))
    assert layout.table == tuple(2 + frequency * 7 + time for time in range(7) for frequency in range(4))
    assert layout.area.size == (70, 40)
    assert all(abs(start - 3) <= 1 for start in layout.area.start)


class FeatureTokens(nn.Module):
    """One token for each feature behind a CLS token, as in FT-Transformer."""

    def __init__(self, features=6, width=16):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(width, 2, 32, batch_first=True, norm_first=True, dropout=0.0)
        self.weight, self.bias = nn.Parameter(torch.randn(features, width)), nn.Parameter(torch.zeros(features, width))
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.start, self.head = nn.Parameter(torch.randn(1, 1, width)), nn.Linear(width, 3)

    def forward(self, x_num):
        tokens = x_num[..., None] * self.weight + self.bias
        return self.head(self.encoder(torch.cat([self.start.expand(len(x_num), -1, -1), tokens], 1))[:, 0])


def test_features_of_a_table_have_a_relevance_each():
    model, rows = FeatureTokens().double().eval(), noise(2, 6)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    turned = FeatureTokens().double().eval()
    turned.weight.data = model.weight.data[order]  # the same function of features in another order
    methods = ["rollout", "leadlight", "attnlrp", "gradient_x_input", "occlusion", "rise:masks=30"]
    here = vitrail.explain(model, rows, methods=methods, target=1)
    there = vitrail.explain(turned, {"x_num": rows[:, order]}, methods=methods, target=1)
    for name in methods:
        assert here[name].maps.shape == (2, 1, 6)
        if not name.startswith("rise"):  # the same masks hide other features
            assert torch.allclose(there[name].grid, here[name].grid[..., order], atol=1e-10), name


def test_rise_shows_features_one_by_one():
    class FirstFeature(nn.Module):
        def forward(self, features):
            return torch.stack([features[:, 0], torch.zeros_like(features[:, 0])], 1)

    e = vitrail.explain(FirstFeature(), torch.full((1, 5), 3.0), "rise:masks=4000,cells=8", target=0)
    assert e.grid[0, 0].argmax() == 0
    assert e.grid[0, 0, 1:].max() - e.grid[0, 0, 1:].min() < 0.05
    assert e.grid[0, 0, 0] - e.grid[0, 0, 1:].max() > 0.1


def test_a_series_of_one_variable_has_patches_of_time():
    model = built("PatchTSTForClassification", "PatchTSTConfig", num_input_channels=1, context_length=32,
                  patch_length=8, patch_stride=8, d_model=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4,
                  num_targets=4, scaling=None)  # fmt: skip
    e = vitrail.explain(model, {"past_values": noise(1, 32, 1)}, "rollout", target=1)
    assert [axis.name for axis in e.axes] == ["time", "variables"]
    assert (e.grid.shape, e.maps.shape) == ((1, 1, 4, 1), (1, 1, 32, 1))
