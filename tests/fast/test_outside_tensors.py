"""Tensors that a pass reads and did not make."""

from __future__ import annotations

import torch
from torch import nn

from vitrail.fast.outside_tensors import OutsideTensors


def test_inputs_weights_and_constants_are_collected_and_results_are_not() -> None:
    layer, constant, x = nn.Linear(3, 4), torch.ones(4), torch.randn(2, 3)
    unused = torch.zeros(4)
    with OutsideTensors("cpu") as outside:
        hidden = layer(x) + constant
        (hidden * hidden[:, :1]).sum() + hidden.view(-1)[0]
    addresses = [t.data_ptr() for t in outside.tensors]
    assert sorted(addresses) == sorted(t.data_ptr() for t in (x, layer.weight, layer.bias, constant))
    assert unused.data_ptr() not in addresses
    assert not any(t.requires_grad for t in outside.tensors)


def test_tensors_on_other_devices_are_left_out() -> None:
    with OutsideTensors("cuda") as outside:
        torch.ones(3) + torch.ones(3)
    assert not outside.tensors
