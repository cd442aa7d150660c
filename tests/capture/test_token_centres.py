"""Where the tokens of a waveform lie: a planted dependency on a stretch of samples."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitrail

LENGTH = 960
#: Kernel and stride of each convolution, as in Wav2Vec2; the second ones overlap.
STACKS = {
    "apart": ((8, 8),),
    "half": ((16, 8),),
    "three": ((10, 5), (3, 2), (3, 2)),
    "wide": ((25, 10), (5, 3)),
}


class OneStretch(nn.Module):
    """A transformer of waveforms whose class token reads one token alone, and whose tokens read nothing else."""

    def __init__(self, convolutions, token):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.read = token, nn.Parameter(torch.randn(1, 1, 16))
        self.stack = nn.ModuleList(nn.Conv1d(16 if i else 1, 16, k, s) for i, (k, s) in enumerate(convolutions))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(4))
        self.qkv = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(2))
        self.head = nn.Linear(16, 4)

    def forward(self, input_values):
        x = self.stack[0](input_values[:, None])
        for layer in self.stack[1:]:
            x = layer(F.gelu(x))
        x = torch.cat([self.read.expand(len(x), -1, -1), x.mT], 1)
        mask = torch.eye(x.shape[1], dtype=torch.bool)
        mask[0, 1 + self.token] = True
        for i in range(2):
            q, k, v = self.qkv[i](self.norms[2 * i](x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
            x = x + self.out[i](F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))
            x = x + self.mlp[i](self.norms[2 * i + 1](x))
        return self.head(x[:, 0])


def samples_of(convolutions, token):
    """First and last sample that a token depends on, by the kernels and strides."""
    first, last = token, token
    for kernel, stride in reversed(convolutions):
        first, last = first * stride, last * stride + kernel - 1
    return first, last


@pytest.mark.parametrize("token", [4, 11])
@pytest.mark.parametrize("stack", STACKS)
def test_maps_of_waveforms_lie_on_the_samples_of_the_token_that_is_read(stack, token):
    model = OneStretch(STACKS[stack], token).double().eval()
    wave = torch.randn(1, LENGTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gradient = wave.clone().requires_grad_()
    model(gradient)[0, 1].backward()
    seen = gradient.grad[0].nonzero()[:, 0]
    assert (int(seen[0]), int(seen[-1])) == samples_of(STACKS[stack], token), "the construction holds"
    values = vitrail.explain(model, {"input_values": wave}, "rollout", target=1).maps[0, 0]
    leading = (values >= values.max() - 1e-6).nonzero()[:, 0].double()
    middle = (int(seen[0]) + int(seen[-1])) / 2
    assert abs(float(leading.mean()) - middle) <= 0.5
    assert float((values * torch.arange(LENGTH)).sum() / values.sum()) == pytest.approx(middle, abs=0.51)
