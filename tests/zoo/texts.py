"""Text models of transformers: encoders, decoders, and encoders with a decoder."""

from __future__ import annotations

from functools import partial

from tests.zoo.entry import METHODS, WITHOUT_LEADLIGHT, Entry
from tests.zoo.tiny import tiny

#: Encoders whose words can be exchanged once positions are zero, and which ignore padding.
ENCODERS = [
    "albert",
    "bert",
    "big_bird",
    "camembert",
    "data2vec-text",
    "deberta",
    "deberta-v2",
    "distilbert",
    "electra",
    "ernie",
    "esm",
    "esmc",
    "eurobert",
    "flaubert",
    "ibert",
    "jina_embeddings_v3",
    "layoutlm",
    "layoutlmv3",
    "luke",
    "markuplm",
    "megatron-bert",
    "mobilebert",
    "modernbert",
    "modernvbert",
    "mpnet",
    "nomic_bert",
    "rembert",
    "roberta",
    "roberta-prelayernorm",
    "roc_bert",
    "roformer",
    "squeezebert",
    "tapas",
    "xlm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
]
#: Causal models.
DECODERS = [
    "arcee",
    "axk1",
    "axk2",
    "biogpt",
    "bloom",
    "ctrl",
    "deepseek_v2",
    "deepseek_v3",
    "doge",
    "exaone4",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "glm",
    "glm4",
    "gpt-sw3",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gpt_oss",
    "gptj",
    "helium",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "jetmoe",
    "llama",
    "minicpm3",
    "ministral",
    "ministral3",
    "mistral",
    "mistral4",
    "mixtral",
    "modernbert-decoder",
    "mpt",
    "nemotron",
    "olmo",
    "olmo2",
    "olmo3",
    "openai-gpt",
    "opt",
    "persimmon",
    "phi",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_5",
    "qwen3_5_text",
    "qwen3_moe",
    "qwen3_next",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
]
#: Checked in each run of the fast tests.
FAST = {"bert", "distilbert", "deberta-v2", "modernbert", "roberta", "gpt2", "llama", "gemma2", "mistral", "qwen2"}
#: Words are joined with or attend to their neighbours, so that exchanged words are not the same text without positions.
LOCAL = {"mobilebert", "modernbert", "modernvbert"}
#: Blocks in which a norm or an adapter stands between a branch and its sum; `leadlight` needs plain sums.
OTHER_SUMS = {
    "axk2", "exaone4", "gemma2", "gemma3", "gemma3_text", "glm4", "jetmoe", "olmo2", "olmo3", "squeezebert",
    "xmod",
}  # fmt: skip
#: Words are mixed before the first attention: trigrams of embeddings, or blocks of linear attention.
MIXED = {"mobilebert", "qwen3_5", "qwen3_5_text", "qwen3_next"}
#: The class to explain where the map of class 3 is constant with one of the methods.
TARGETS = {"esm": 2, "ibert": 2, "mobilebert": 2, "xlm-roberta-xl": 2}
#: Methods whose map of this random model is constant for every class.
CONSTANT = {"roformer": ("gradtoken",)}


def entry(name: str, tests: tuple[str, ...]) -> Entry:
    if name in MIXED:
        refused = dict.fromkeys(("rollout", "transformer_mm", "attnlrp"), "outside the attention")
        build = partial(tiny, "transformers", "text", name, target=TARGETS.get(name))
        return Entry(f"hf:{name}", build, tests, ("gradient_x_input", "integrated_gradients:steps=4"), refused)
    methods = WITHOUT_LEADLIGHT if name in OTHER_SUMS else METHODS
    return Entry(
        f"hf:{name}", partial(tiny, "transformers", "text", name, target=TARGETS.get(name)),
        tests, tuple(m for m in methods if m not in CONSTANT.get(name, ())), slow=name not in FAST,
    )  # fmt: skip


ENTRIES = [
    *(entry(name, ("padding",) if name in LOCAL else ("swap_words", "padding")) for name in ENCODERS),
    *(entry(name, ("cut_future", "padding")) for name in DECODERS),
]
