"""Blocks in other forms than two sums: the stream is found, adds up, and gives the maps it must give."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitrail
from tests.capture.own_vit import HEADS, PATCH, SIDE, WIDTH, OwnViT
from vitrail.capture.forward import forward_pass
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure
from vitrail.capture.trace import ALL
from vitrail.errors import GuessWarning, MapWarning, NotApplicableError

IMAGES = torch.randn(2, 3, SIDE * PATCH, SIDE * PATCH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
METHODS = ["vtranm", "attcat", "leadlight", "bi_attn:variant=token", "attnlrp"]


def structure(model: nn.Module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuessWarning)
        return read_structure(model, ModelInputs((IMAGES,)))


def maps(model: nn.Module) -> dict[str, Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuessWarning)
        warnings.simplefilter("ignore", MapWarning)
        return {name: e.grid for name, e in vitrail.explain(model, IMAGES, methods=METHODS, target=1).items()}


def blocks(model: nn.Module):
    with forward_pass(
        model, ModelInputs((IMAGES,)), structure(model), [dict.fromkeys(("stream", "branch", "V", "A"), ALL)]
    ) as one:
        return one.blocks


class OtherForm(OwnViT):
    """An ``OwnViT`` whose sums are written in another way; see ``FORMS``."""

    def __init__(self, form: str, **options) -> None:
        super().__init__(**options)
        self.form = form

    def mlp(self, block: nn.ModuleDict, x: Tensor) -> Tensor:
        return block["down"](F.gelu(block["up"](x)))

    def attend(self, index: int, x: Tensor) -> Tensor:
        if self.form not in ("matmul", "einsum"):
            out = super().attend(index, x)
            return {"halved": lambda: out / 2, "doubled": lambda: 2.0 * out}.get(self.form, lambda: out)()
        block = self.blocks[index]
        b, n, _ = x.shape
        q, k, v = block["qkv"](x).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        z = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        if self.form == "matmul":
            return z.reshape(b, n, WIDTH) @ block["proj"].weight.T
        return torch.einsum("bnhd,whd->bnw", z, block["proj"].weight.view(WIDTH, HEADS, -1))

    def encode(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            if self.form == "own-norm":  # post-norm, the norm written out
                x = _layer_norm(block["norm1"], x + self.attend(i, x))
                x = _layer_norm(block["norm2"], x + self.mlp(block, x))
            elif self.form == "flat":  # the MLP runs on rows of all texts, as in OPT
                x = x + self.attend(i, block["norm1"](x))
                rows = x.reshape(-1, WIDTH)
                x = (rows + self.mlp(block, block["norm2"](rows))).view(x.shape)
            else:
                x = x + self.attend(i, block["norm1"](x))
                x = x + self.mlp(block, block["norm2"](x))
        return self.norm(x)


def _layer_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return norm.weight * ((x - mean) / torch.sqrt(variance + norm.eps)) + norm.bias


@pytest.mark.parametrize("form", ["halved", "doubled", "own-norm", "flat", "matmul", "einsum"])
def test_other_forms_give_the_maps_of_the_plain_model(form):
    model = OtherForm(form, post_norm=form == "own-norm").double().eval()
    plain = OwnViT(post_norm=form == "own-norm").double().eval()
    scale = {"halved": 0.5, "doubled": 2.0}.get(form, 1.0)
    with torch.no_grad():
        for block in plain.blocks:
            block["proj"].weight *= scale
            block["proj"].bias *= scale if form not in ("matmul", "einsum") else 0.0
    assert torch.allclose(model(IMAGES), plain(IMAGES), atol=1e-10)
    found = structure(model)
    assert found.has_stream and not found.failed, str(found)  # noqa: PT018
    expected = maps(plain)
    for name, grid in maps(model).items():
        if name.startswith("bi_attn") and scale != 1:
            continue  # this form of BiAttn leaves LayerScale out by its definition
        assert torch.allclose(grid, expected[name], atol=1e-8), name


class Parallel(OwnViT):
    """Attention and MLP read the same stream."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place

    def encode(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            y = block["norm1"](x)
            attention = self.attend(i, y)
            mlp = block["down"](F.gelu(block["up"](y)))
            if self.in_place:
                mlp += attention
                x = x + mlp
            else:
                x = attention + mlp + x
        return self.norm(x)


@pytest.mark.parametrize("in_place", [False, True])
def test_parallel_blocks_are_taken_apart(in_place):
    model = Parallel(in_place).double().eval()
    found = structure(model)
    assert found.kind == "plain" and found.has_stream and not found.failed, str(found)  # noqa: PT018
    kept = blocks(model)
    for block, after in itertools.pairwise(kept):
        assert torch.equal(block.X_mid, block.X)
        assert torch.allclose(block.X + block.branch + block.F, after.X, atol=1e-12)
    assert all(grid.isfinite().all() for grid in maps(model).values())


class BranchNorm(OwnViT):
    """What the attention and the MLP add is normalised, as in Gemma 2 and OLMo 2."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.gain = nn.Parameter(1 + 0.3 * torch.randn(WIDTH))

    def rms(self, x: Tensor) -> Tensor:
        if self.fused:
            return F.rms_norm(x, (WIDTH,), self.gain, 1e-6)
        return self.gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def encode(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            x = x + self.rms(self.attend(i, x))
            x = x + self.rms(block["down"](F.gelu(block["up"](x))))
        return self.norm(x)


@pytest.mark.parametrize("fused", [False, True])
def test_a_norm_of_the_branch_scales_what_each_token_receives(fused):
    """VTranM with lengths, written out: Ẽ of token j at token i is s_i·γ ⊙ (V_j·Wo) of each head."""
    model = BranchNorm(fused).double().eval()
    found = structure(model)
    assert found.has_stream and not found.failed, str(found)  # noqa: PT018
    needs = dict.fromkeys(("stream", "V", "A", "dA"), ALL)
    with forward_pass(model, ModelInputs((IMAGES,)), found, [needs]) as one:
        trace = one.trace(one.output.softmax(-1)[:, 1])
    C = torch.diag_embed(trace.blocks[0].X.norm(dim=-1))
    identity = torch.eye(C.shape[-1], dtype=C.dtype)
    for block in trace.blocks:
        split = block.Wo.view(WIDTH, HEADS, -1)
        moved = torch.einsum("bhjd,whd->bhjw", block.V, split) * block.gamma
        ratio = moved.norm(dim=-1) / block.X.norm(dim=-1)[:, None]  # (b, H, j)
        w = block.branch_scale[:, None, :, None] * ratio[:, :, None, :]
        C = (identity + ((block.dA * block.A).clamp_min(0) * w).mean(1)) @ C
        mlp = block.F.norm(dim=-1) / block.X_mid.norm(dim=-1)
        C = (identity + torch.diag_embed(mlp)) @ C
    expected = C[:, 0, 1:].view(2, SIDE, SIDE)
    given = vitrail.explain(model, IMAGES, "vtranm:variant=af+l", target=1).grid[:, 0]
    assert torch.allclose(given / given.amax((1, 2), True), expected / expected.amax((1, 2), True), atol=1e-9)


class ScaledSkip(OwnViT):
    """The stream is scaled by learned numbers where a branch is added to it, as in Doge."""

    def encode(self, x: Tensor) -> Tensor:
        gain = torch.linspace(0.5, 1.5, WIDTH, dtype=x.dtype)
        for i, block in enumerate(self.blocks):
            y = self.attend(i, block["norm1"](x))
            x = gain * x + y
            y = block["down"](F.gelu(block["up"](block["norm2"](x))))
            x = gain * x + y
        return self.norm(x)


def test_scaled_skip_connections_are_noted():
    found = structure(ScaledSkip().double().eval())
    assert found.kind == "plain" and found.has_stream, str(found)  # noqa: PT018
    assert any("skip connections are scaled" in note for note in found.notes)
    with pytest.warns(GuessWarning, match="skip connections are scaled"):
        vitrail.explain(ScaledSkip().double().eval(), IMAGES, "vtranm", target=1)


class GatedBranch(OwnViT):
    """The branch is multiplied with a function of itself: no fixed output projection."""

    def attend(self, index: int, x: Tensor) -> Tensor:
        y = super().attend(index, x)
        return y * y.sigmoid()


def test_a_gated_branch_has_no_output_projection():
    model = GatedBranch().double().eval()
    assert "output projections" in [check.name for check in structure(model).failed]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuessWarning)
        with pytest.raises(NotApplicableError, match="pair of sums"):
            vitrail.explain(model, IMAGES, "vtranm", target=1)
        vitrail.explain(model, IMAGES, "attcat", target=1)  # reads the stream alone
