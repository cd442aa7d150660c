"""Functions that read nothing that is followed need not be shown to the recogniser."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from vitrail.capture.recogniser import DIV, MATMUL, MAY_START, SOFTMAX, Recogniser


class Following(TorchFunctionMode):
    """Show functions to a recogniser: all of them, or those that its ``followed`` asks for; keeps what it found."""

    def __init__(self, every):
        super().__init__()
        self.every, self.recogniser, self.shown = every, Recogniser(), 0
        self.found = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, recogniser = kwargs or {}, self.recogniser
        if func in MATMUL:
            met = recogniser.values(func, args, kwargs)
            result = func(*args, **kwargs)
            if met is not None:
                pair = met.softmax.queries_and_keys()
                self.found.append((met.A, met.V, *(pair or ())))
                return result
            factors = recogniser.factors(func, args, kwargs)
            if factors is not None:
                recogniser.product(factors.left, factors.right, factors.order, result)
            return result
        result = func(*args, **kwargs)
        if func in SOFTMAX:
            recogniser.softmax(args[0], kwargs["dim"], result)
        elif func in DIV and (written := recogniser.written_softmax(func, args)) is not None:
            recogniser.softmax(*written, result)
        elif self.every or func in MAY_START or not recogniser.followed.isdisjoint(map(id, args[:2])):
            self.shown += 1
            recogniser.follow(func, args, kwargs, result)
        return result


def fused_softmax(logits):
    return torch.softmax(logits, dim=-1)


def written_softmax(logits):
    powers = torch.exp(logits)
    return powers / powers.sum(-1).unsqueeze(-1)


def logarithm(logits):
    return torch.exp(torch.log_softmax(logits, dim=-1))


@pytest.mark.parametrize("softmax", [fused_softmax, written_softmax, logarithm])
@pytest.mark.parametrize("sink", [False, True])
def test_skipped_functions_change_nothing_that_is_found(softmax, sink):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 5, 8)
    found = []
    for every in (True, False):
        with Following(every) as mode:
            angle = torch.randn(1, 4, 1) @ torch.randn(1, 1, 5)  # a product that never becomes attention
            for _ in range(3):
                x = (q * 2).reshape(2, 4, 5, 8).transpose(1, 2).contiguous().transpose(1, 2)
                logits = 0.5 * (x @ k.transpose(-2, -1))
                logits = logits + torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), -1e9)
                if sink:
                    logits = torch.cat([logits, torch.zeros(2, 4, 5, 1)], -1)
                A = softmax(logits)
                A = (A[..., :-1] if sink else A).to(torch.float32).clone()
                angle = angle + 1
                _ = A @ v
        found.append(mode)
    one, two = found
    assert len(one.found) == len(two.found) == 3
    assert one.recogniser.unmatched == two.recogniser.unmatched == 0
    for first, second in zip(one.found, two.found, strict=True):
        assert len(first) == len(second) >= 2
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert two.shown < one.shown
