"""Passes over texts as recordings: nothing waits for results, and padding may differ from call to call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import vitrail
from tests.combinations import combinations
from tests.fast.test_recordings import Replay, graphs  # noqa: F401
from vitrail.capture.frozen import frozen
from vitrail.fast import recordings
from vitrail.methods.postprocess import _to_token_maps, is_constant, normalise
from vitrail.methods.rollout import drop_smallest

SIZE = {"num_labels": 3, "vocab_size": 40, "pad_token_id": 0}
BERT = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def bert() -> nn.Module:
    config = transformers.BertConfig(**SIZE, **BERT, max_position_embeddings=16)
    return transformers.BertForSequenceClassification(config).eval()


def decoder() -> nn.Module:
    """A decoder with a sliding window, whose cache of keys and values copies from the CPU."""
    config = transformers.MistralConfig(**SIZE, **BERT, num_key_value_heads=2, sliding_window=8, head_dim=12)
    return transformers.MistralForSequenceClassification(config).eval()


def texts(seed: int, lengths: tuple[int, ...]) -> dict[str, Tensor]:
    ids = torch.randint(1, 40, (len(lengths), 9), generator=torch.Generator().manual_seed(seed))
    mask = (torch.arange(9) < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


class NoWaiting(TorchDispatchMode):
    """Refuses functions whose results Python, or the size of a tensor, depends on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masked = name in ("index", "index_put", "index_put_") and any(
            i is not None and i.dtype == torch.bool for i in args[1]
        )
        if name in ("_local_scalar_dense", "nonzero", "masked_select", "equal", "bincount") or masked:
            raise RuntimeError(f"a GPU would be waited for by {func}")
        return func(*args, **(kwargs or {}))


class NoLists(TorchFunctionMode):
    """Refuses lists of a tensor's values, which no dispatch mode sees."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.tolist, Tensor.numpy, Tensor.cpu):
            raise RuntimeError(f"a GPU would be waited for by {func}")
        return func(*args, **(kwargs or {}))


@contextmanager
def as_recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run a pass as it is recorded on a GPU."""
    with monkeypatch.context() as patched, NoLists(), NoWaiting():
        patched.setattr(torch.cuda, "is_initialized", lambda: True)
        patched.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        patched.setattr(transformers.utils.import_utils, "is_cuda_stream_capturing", lambda: True)
        yield


@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
@pytest.mark.parametrize(
    ("build", "method"), combinations([decoder, bert], ["gradtoken", "rollout:discard=0.5", "attnlrp", "leadlight"])
)
def test_texts_are_recorded_whatever_their_padding(
    build: Any,
    method: str,
    graphs: list[Replay],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compute_again = Replay.replay

    def replay(self: Replay, inputs: Any) -> Any:
        with as_recorded(monkeypatch):
            return compute_again(self, inputs)

    monkeypatch.setattr(Replay, "replay", replay)
    torch.manual_seed(0)
    model = build()
    for seed, lengths in enumerate([(9, 9), (9, 4), (6, 9), (9, 9)]):
        given = texts(seed, lengths)
        fast = vitrail.explain(model, given, method, target=seed % 3)
        with monkeypatch.context() as plain:
            plain.setenv("VITRAIL_PLAIN", "1")
            slow = vitrail.explain(model, given, method, target=seed % 3)
        assert torch.allclose(fast.grid, slow.grid, atol=1e-5 * float(slow.grid.abs().max()))
        assert torch.allclose(fast.maps, slow.maps, atol=1e-4)
        assert torch.equal(fast.constant, slow.constant)
    assert sum(one.replays for one in graphs) == 3


def test_texts_of_many_lengths_are_recorded_later(graphs: list[Replay]) -> None:  # noqa: F811
    model = nn.Linear(1, 1)

    def run(length: int) -> int:
        given = [torch.zeros(1 + length)]
        for _ in range(3):
            recordings.run(model, "pass", given, lambda inputs: ([inputs[0]], None), lambda *_: (True, None))
        return len(graphs)

    few = [run(length) for length in range(recordings.MANY_SHAPES)]
    assert few == list(range(1, recordings.MANY_SHAPES + 1))
    many = recordings.MANY_SHAPES
    assert [run(many), run(many), run(many + 1)] == [many, many + 1, many + 1]


def test_decoders_keep_no_cache_while_they_are_read() -> None:
    model = decoder()
    given = texts(0, (9, 4))
    with torch.no_grad():
        before = model(**given)
        with frozen(model):
            during = model(**given)
    assert before.past_key_values is not None
    assert during.past_key_values is None
    assert torch.equal(before.logits, during.logits)
    assert model.config.use_cache is True


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("prefix", [0, 1])
def test_maps_of_padded_texts_are_those_of_each_text_alone(signed: bool, prefix: int) -> None:
    generator = torch.Generator().manual_seed(0)
    relevance = torch.randn(2, 4, 3, 7 - prefix, generator=generator, dtype=torch.float64)
    relevance[0, 0, 0], relevance[1, 2, 1, 1] = 0.3, torch.nan
    valid = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0, 0]])
    maps, raw, constant = _to_token_maps(relevance, signed, valid.bool(), prefix)
    for b, row in enumerate(valid.bool()):
        alone = raw[:, b][..., row]
        expected = normalise(alone, signed=signed, axes=1).float()
        assert torch.equal(maps[:, b][..., row], expected)
        assert not maps[:, b][..., ~row].any()
        own = alone[..., prefix:]
        assert torch.equal(constant[:, b], is_constant(own, axes=1)[..., 0] if own.numel() else torch.ones(2, 3) > 0)


def test_share_of_dropped_attention_counts_tokens() -> None:
    M = torch.rand(3, 6, 6)
    valid = torch.arange(6) < torch.tensor([6, 4, 1])[:, None]
    dropped = drop_smallest(M, 0.5, valid=valid)
    for matrix, before, count in zip(dropped, M, (6, 4, 1), strict=True):
        assert int((matrix[:count, :count] == 0).sum()) == int(count**2 * 0.5)
        assert torch.equal(matrix[count:], before[count:])
    assert recordings.recording() is False
