"""Small models of several streams of tokens: encoder–decoders of images and texts, and two encoders that attend."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.replicas.streams import Plan
from tests.zoo.entry import INPUT_METHODS, Entry, Subject
from tests.zoo.tiny import add_noise

LAYERS = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
}  # fmt: skip
ENCODER: Plan = [[("encoder", "encoder")]] * 2
DECODER: Plan = [[("decoder", "decoder")], [("decoder", "encoder")]] * 2
#: The query of a detector, the position of a generated word, and the label or word that are explained.
QUERY, POSITION, LABEL = 3, 2, 1


@dataclass(frozen=True)
class StreamCase:
    """A subject with its layers, listed by hand in the order of the pass.

    Attributes:
        subject: The model and its inputs.
        plan: Its attention layers.
        read: Stream and token that the score reads, or several.
        explained: Stream that is explained.
    """

    subject: Subject
    plan: Plan
    read: tuple[str, int] | tuple[tuple[str, int], ...]
    explained: str = "encoder"


def build(model: str, config: str, attention: str = "default", **options: Any) -> nn.Module:
    """A model in float64 whose weights are far from zero; the same weights for every kind of attention."""
    import transformers

    torch.manual_seed(0)
    chosen = {} if attention == "default" else {"attn_implementation": attention}  # backbones have no other one
    made = getattr(transformers, model)(getattr(transformers, config)(**chosen, **options))
    return add_noise(made).double().eval()


def ids(count: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(3, 50, (count, length), generator=torch.Generator().manual_seed(seed))


def word_score(output: Any) -> Tensor:
    """Logit of a word at a position of the decoder."""
    return output.logits[:, POSITION, 7]


def generator(model: str, config: str, attention: str = "default", **options: Any) -> StreamCase:
    """Two texts, for each of which a decoder predicts the next word of another one."""
    made = build(model, config, attention, vocab_size=60, **options)
    words = ids(2, 9)
    given = {"input_ids": words, "attention_mask": torch.ones_like(words), "decoder_input_ids": ids(2, 4, 2)}
    return StreamCase(Subject(made, given, word_score), [*ENCODER, *DECODER], ("decoder", POSITION))


def bart(attention: str = "default") -> StreamCase:
    special = {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 2}
    options = LAYERS | special | {"max_position_embeddings": 40, "forced_eos_token_id": 2}
    return generator("BartForConditionalGeneration", "BartConfig", attention, **options)


def t5(attention: str = "default") -> StreamCase:
    options = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
    return generator("T5ForConditionalGeneration", "T5Config", attention, decoder_start_token_id=0, **options)


def label_score(output: Any) -> Tensor:
    """Logit of a label of one query of a detector."""
    return output.logits[:, QUERY, LABEL]


def detector(family: str, attention: str = "default", **options: Any) -> StreamCase:
    """Two images of 32×48 pixels on a grid of 4×6 tokens."""
    import transformers

    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    backbone = transformers.ResNetConfig(**sizes, out_features=["stage2"])
    given = {"use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False} | LAYERS | options
    made = build(
        f"{family}ForObjectDetection", f"{family}Config", attention, backbone_config=backbone, num_queries=5,
        num_labels=4, **given,
    )  # fmt: skip
    images = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    subject = Subject(made, {"pixel_values": images}, label_score, grid=(4, 6))
    return StreamCase(subject, [*ENCODER, *DECODER], ("decoder", QUERY))


def answer(output: Any) -> Tensor:
    """Score of an answer to a question about an image."""
    return output.question_answering_score[:, 2]


def lxmert(of: str = "input_ids") -> StreamCase:
    """Two questions, each with the features of six regions of an image."""
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
    layers = {"l_layers": 2, "x_layers": 2, "r_layers": 1, "visual_feat_dim": 12, "num_qa_labels": 5}
    made = build("LxmertForQuestionAnswering", "LxmertConfig", "eager", vocab_size=60, **sizes, **layers)
    random = torch.Generator().manual_seed(4)
    given = {
        "input_ids": ids(2, 7),
        "visual_feats": torch.randn(2, 6, 12, generator=random, dtype=torch.float64),
        "visual_pos": torch.rand(2, 6, 4, generator=random, dtype=torch.float64),
    }
    crossing: Plan = [[("text", "image"), ("image", "text")], [("text", "text"), ("image", "image")]] * 2
    plan: Plan = [[("text", "text")], [("text", "text")], [("image", "image")], *crossing]
    options = {"of": of} | ({} if of == "input_ids" else {"roles": {of: "patches"}})
    subject = Subject(made, given, answer, options=options)
    return StreamCase(subject, plan, ("text", 0), "text" if of == "input_ids" else "image")


class CoAttention(nn.Module):
    """Attention of the tokens of one stream to those of another or of the same one, then an MLP, as in BERT."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width))

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        q, k, v = (f(t).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f, t in
                   ((self.query, x), (self.key, other), (self.value, other)))  # fmt: skip
        A = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        x = self.norm1(x + self.out((A @ v).transpose(1, 2).flatten(2)))
        return self.norm2(x + self.mlp(x))


class TwoStreams(nn.Module):
    """Words and regions of an image in the manner of ViLBERT: each stream attends to the other, then to itself.

    Both co-attention layers of a pair read the streams as they were before it. The score reads the product of the first
    token of each stream.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words, self.regions = nn.Embedding(60, 32), nn.Linear(12, 32)
        self.text_first = CoAttention()
        self.pairs = nn.ModuleList(nn.ModuleList(CoAttention() for _ in range(4)) for _ in range(2))
        self.head = nn.Linear(32, 5)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.words

    def forward(self, input_ids: Tensor, visual_feats: Tensor) -> Tensor:
        text, image = self.words(input_ids), self.regions(visual_feats)
        text = self.text_first(text, text)
        for text_cross, image_cross, text_self, image_self in self.pairs:
            text, image = text_cross(text, image), image_cross(image, text)
            text, image = text_self(text, text), image_self(image, image)
        return self.head(text[:, 0] * image[:, 0])


def vilbert(of: str = "input_ids") -> StreamCase:
    """Two texts, each with the features of six regions of an image."""
    torch.manual_seed(0)
    made = add_noise(TwoStreams()).double().eval()
    regions = torch.randn(2, 6, 12, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    given = {"input_ids": ids(2, 7), "visual_feats": regions}
    crossing: Plan = [[("text", "image"), ("image", "text")], [("text", "text"), ("image", "image")]] * 2
    options = {"of": of} | ({} if of == "input_ids" else {"roles": {of: "patches"}})
    subject = Subject(made, given, first_logit, options=options)
    explained = "text" if of == "input_ids" else "image"
    return StreamCase(subject, [[("text", "text")], *crossing], (("text", 0), ("image", 0)), explained)


def first_logit(output: Tensor) -> Tensor:
    return output[:, 2]


def sampled(name: str) -> Subject:
    """A detector that reads features at sampled points; Grounding DINO also reads a caption.

    In float64 the proposals that become queries are the same for an image alone and in a batch, so that a query is a
    well-defined target.
    """
    from tests.targets.target_models import build as target_model
    from tests.targets.target_models import pixels, tokenizer

    made = target_model(f"{name}ForObjectDetection", name)
    given = {"pixel_values": pixels(2)}
    if name == "GroundingDino":
        tokens = tokenizer()(["a dog . a cat ."] * 2, return_tensors="pt")
        given |= {key: tokens[key] for key in ("input_ids", "attention_mask")}
    return Subject(made, given, label_score)


CASES = {
    "bart": bart, "t5": t5, "detr": partial(detector, "Detr"), "conditional_detr": partial(detector, "ConditionalDetr"),
    "lxmert, text": lxmert, "lxmert, image": partial(lxmert, "visual_feats"),
    "vilbert, text": vilbert, "vilbert, image": partial(vilbert, "visual_feats"),
}  # fmt: skip
STREAM_METHODS = ("transformer_mm", "rollout", "grad_rollout", "leadlight", "attnlrp")
WORDS = ("permute_examples", "swap_words")


def subject_of(name: str) -> Subject:
    return CASES[name]().subject


ENTRIES = [
    Entry("hf:BartForConditionalGeneration", partial(subject_of, "bart"), WORDS, STREAM_METHODS,
          {"gradtoken": "several streams of tokens"}, slow=False, target="next word"),
    Entry("hf:T5ForConditionalGeneration", partial(subject_of, "t5"), WORDS, STREAM_METHODS,
          {"gradtoken": "several streams of tokens"}, target="next word"),
    Entry("hf:DetrForObjectDetection", partial(subject_of, "detr"), ("permute_examples",), STREAM_METHODS,
          {"vtranm": "several streams of tokens"}, slow=False, target="label of a box"),
    Entry("hf:ConditionalDetrForObjectDetection", partial(subject_of, "conditional_detr"), ("permute_examples",),
          STREAM_METHODS, {"vtranm": "several streams of tokens"}, target="label of a box"),
    Entry("hf:LxmertForQuestionAnswering", partial(subject_of, "lxmert, text"), ("permute_examples",), STREAM_METHODS,
          {"gradtoken": "several streams of tokens"}, target="answer"),
    Entry("hf:LxmertForQuestionAnswering, image", partial(subject_of, "lxmert, image"), ("permute_examples",),
          STREAM_METHODS, {"gradtoken": "several streams of tokens"}, target="answer"),
    Entry("own:two streams (ViLBERT)", partial(subject_of, "vilbert, text"), ("permute_examples",), STREAM_METHODS,
          {"gradtoken": "several streams of tokens"}, target="answer"),
    Entry("own:two streams (ViLBERT), image", partial(subject_of, "vilbert, image"), ("permute_examples",),
          STREAM_METHODS, {"gradtoken": "several streams of tokens"}, target="answer"),
    *(
        Entry(f"hf:{name}ForObjectDetection", partial(sampled, name), ("plant_patch", "permute_examples"),
              INPUT_METHODS, dict.fromkeys(("transformer_mm", "leadlight", "attnlrp"), "sampled points"),
              target="label of a box")
        for name in ("DeformableDetr", "RTDetr", "GroundingDino")
    ),
]  # fmt: skip
