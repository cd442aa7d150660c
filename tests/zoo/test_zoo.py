"""Every model of the zoo is explained rightly, refused with the true reason, or warned about, as its entry says."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.zoo.checks import ENTRIES, TESTS, counts, run_check
from tests.zoo.entry import Entry

#: Models that are left to the exhaustive tests, each with one that is read on the same path and runs more often.
ALIKE = {
    "torchvision:alexnet": "torchvision:squeezenet1_1", "torchvision:convnext_tiny": "transformers:convnext",
    "torchvision:resnet18": "transformers:resnet", "transformers:convnextv2": "transformers:convnext",
    "transformers:donut-swin": "transformers:swin", "transformers:mobilenet_v2": "torchvision:mobilenet_v3_small",
    "transformers:pvt_v2": "timm:pvt_v2_b0", "transformers:segformer": "transformers:pvt",
    "transformers:swinv2": "timm:swinv2_tiny_window8_256", "timm:mixer_s32_224": "timm:gmlp_ti16_224",
    "timm:nest_tiny": "timm:swin_tiny_patch4_window7_224", "timm:resmlp_12_224": "timm:gmlp_ti16_224",
    "hf:AltCLIPModel": "hf:CLIPModel", "hf:ChineseCLIPModel": "hf:CLIPModel", "hf:MetaClip2Model": "hf:CLIPModel",
    "hf:Gemma3TextForCausalLM": "hf:Gemma2ForCausalLM", "hf:PhiForCausalLM": "hf:GPTNeoXForCausalLM",
    "hf:Qwen2ForCausalLM": "hf:LlamaForCausalLM", "hf:Qwen2MoeForCausalLM": "hf:MixtralForCausalLM",
    "hf:Qwen3ForCausalLM": "hf:LlamaForCausalLM", "hf:StableLmForCausalLM": "hf:LlamaForCausalLM",
    "hf:GroundingDinoForObjectDetection": "hf:DeformableDetrForObjectDetection",
    "hf:HubertForSequenceClassification": "hf:Wav2Vec2ForSequenceClassification",
    "hf:InstructBlipForConditionalGeneration": "hf:Blip2ForConditionalGeneration, answer",
    "hf:InstructBlipForConditionalGeneration, image": "hf:Blip2ForConditionalGeneration, answer, image",
    "hf:SmolVLMForConditionalGeneration": "hf:Idefics3ForConditionalGeneration",
    "hf:qwen3_5": "hf:qwen3_next", "hf:qwen3_5_text": "hf:qwen3_next",
}  # fmt: skip


def marks(entry: Entry) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] * entry.slow + [pytest.mark.exhaustive] * (entry.name in ALIKE)


@pytest.mark.parametrize("entry", [pytest.param(e, marks=marks(e), id=e.name) for e in ENTRIES])
def test_each_model_does_what_its_entry_says(entry: Entry) -> None:
    subject = entry.build()
    for check in entry.checks:
        if check not in entry.pending:
            run_check(entry, subject, check)


def test_the_zoo_is_large_and_every_entry_says_what_is_expected():
    assert not [name for name, times in Counter(e.name for e in ENTRIES).items() if times > 1]
    assert not [e.name for e in ENTRIES if not e.checks]
    found = counts()
    assert len(ENTRIES) >= 140
    assert found["known answer"] >= 100


def test_models_that_run_less_often_are_like_one_that_does():
    entries = {entry.name: entry for entry in ENTRIES}
    for name, sibling in ALIKE.items():
        assert entries[name].slow, name
        assert sibling not in ALIKE
        assert set(entries[name].tests) <= set(entries[sibling].tests), name
        assert set(entries[name].refused.values()) <= set(entries[sibling].refused.values()), name


def test_pending_checks_are_checks_of_their_entry():
    for entry in ENTRIES:
        for key in entry.pending:
            check, _, method = key.partition(":")
            assert check in entry.checks, (entry.name, key)
            assert not method or (check in TESTS and method in entry.methods), (entry.name, key)
