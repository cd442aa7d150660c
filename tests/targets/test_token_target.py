"""Log-probabilities of tokens of which a model is almost certain: their gradients are accurate in single precision."""

import pytest
import torch

from vitrail.targets.answer_target import AnswerTarget
from vitrail.targets.output_reader import OutputReader
from vitrail.targets.token_target import TokenTarget


def values(kind, scores):
    """The log-probability of token 0 of the only position."""
    reader = OutputReader({"logits": scores[:, None]})
    if kind == "token":
        return TokenTarget(0, score="logprob", index=0, column=0).values(reader)
    return AnswerTarget("", ids=(0,), columns=(0,)).values(reader)


@pytest.mark.parametrize("kind", ["token", "answer"])
@pytest.mark.parametrize("margin", [1.0, 12.0, 17.0, 24.0])
def test_gradient_of_the_log_probability(kind, margin):
    scores = torch.tensor([[margin, 0.5, -1.0, 0.0]], requires_grad=True)
    found = values(kind, scores)
    (slope,) = torch.autograd.grad(found.sum(), scores)
    wide = scores.detach().double().requires_grad_()
    expected = torch.nn.functional.logsigmoid(wide[:, 0] - wide[:, 1:].logsumexp(-1))
    (right,) = torch.autograd.grad(expected.sum(), wide)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-12)
    torch.testing.assert_close(slope, right.float(), rtol=1e-5, atol=0)
