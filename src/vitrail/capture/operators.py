"""Torch functions by what they compute: sums, products, linear maps and norms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Operators reach a mode as methods (a + b as Tensor.add, a += b as Tensor.add_), in some versions as operators.
ADD = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__}
MUL = {torch.mul, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__}
MATMUL = {torch.matmul, Tensor.matmul, Tensor.__matmul__}
#: Linear maps, which an MLP has and a norm has not.
LINEAR = {F.linear, torch.addmm, F.conv1d, torch.conv1d, F.conv2d, torch.conv2d, torch.bmm, torch.einsum} | MATMUL
RMS_NORM = {F.rms_norm, torch.rms_norm}
NORM = {F.layer_norm, torch.layer_norm, F.rms_norm, torch.rms_norm}
DIV = {torch.div, Tensor.div, Tensor.div_, torch.true_divide, Tensor.true_divide, Tensor.__truediv__}
