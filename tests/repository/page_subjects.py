"""What a number on a page is about: the methods, scores and models that its block names, and the values of these."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from vitrail.methods import METHODS

#: Words of pages, and the part of a file's labels that means the same; with "=" the whole label.
SCORES: Mapping[str, tuple[str, ...]] = {
    r"mIoU": ("miou",),
    r"mAP\b": ("=map", "=mAP", "map ("),
    r"[Pp]ixel acc|\bPAcc": ("pixel_acc", "pix. acc", "pacc"),
    r"\bSRG": ("srg", "faithfulness"),
    r"[Ff]aithful": ("srg", "faithfulness", "comprehensiveness", "sufficiency"),
    r"[Pp]ositive": ("positive", "pos. "),
    r"[Nn]egative": ("negative", "neg. "),
    r"[Pp]ointing|\bbox\b": ("hit@", "energy", "pointing", "pg acc"),
    r"AOPC": ("aopc",),
    r"LOdds": ("lodds",),
    r"[Ee]ntropy|Gini": ("entropy", "gini"),
    r"[Cc]omprehensiveness": ("comprehensiveness",),
    r"[Ss]ufficiency": ("sufficiency",),
    r"[Dd]eletion": ("deletion",),
    r"[Ii]nsertion": ("insertion",),
    r"[Cc]orner": ("corners",),
    r"\bcell|\bshare is\b": ("cell_share", "cell_peak", "difull", "dipart", "positive", "negative"),
    r"SaCo": ("saco",),
    r"ROAD": ("road",),
    r"[Ii]nfidelity": ("infidelity",),
    r"[Mm]onoton": ("monotone", "rising"),
}
MODELS: Mapping[str, tuple[str, ...]] = {
    r"ViT-Tiny": ("vit-t", "vit_tiny"),
    r"DeiT-Tiny": ("deit-t", "deit_tiny"),
    r"DINOv2": ("dinov2",),
    r"SmolLM2": ("smollm2",),
    r"Qwen": ("qwen",),
}
#: Longer labels are sentences, which may name any score.
LONGEST = 60
#: Methods by the words that pages use for them outside of code.
TITLES = {name: rf"(?<![\w-]){re.escape(method.title.partition(' (')[0])}(?![\w-])" for name, method in METHODS.items()}
TITLES |= {
    "leadlight": r"(?<![\w-])(?:Leadlight|[Dd]efault)(?!\w)",
    "vtranm": r"VTranM|TokenTM",
    "random": r"\b[Rr]andom\b",
    "centre": r"\b(?:[Cc]ent(?:re|red)|blob)\b",
    "edges": r"\b[Ee]dges\b",
    "inverted": r"\b[Ii]nverted\b",
}


@dataclass(frozen=True)
class Subjects:
    """What a block of a page names. Of a kind of which it names none, all values count.

    Attributes:
        row: Names in the first cell of a table's row.
        methods: Methods and controls.
        scores: Keys of ``SCORES``.
        models: Keys of ``MODELS``.
    """

    row: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset()
    scores: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()

    @classmethod
    def of(cls, text: str, plain: str) -> Subjects:
        """What a text names, given with and without code and links."""
        methods = {one for one in re.findall(r"`([^`\n]+)`", text) if _is_method(one)}
        methods |= {name for name, regex in TITLES.items() if re.search(regex, plain)}
        return cls(methods=frozenset(methods), scores=_named(SCORES, plain), models=_named(MODELS, plain))

    def among(self, labels: frozenset[str]) -> Subjects:
        """The same without names that a file has no values of; a page may also name what it compares them with.

        Args:
            labels: All labels of the file.
        """
        known = labels | {base(label) for label in labels}
        return replace(self, row=self.row & known, methods=self.methods & known)

    def include(self, labels: frozenset[str]) -> bool:
        """Whether a value with some labels belongs to these."""
        known = labels | {base(label) for label in labels}
        if self.row and not self.row & known:
            return False
        if self.methods and not self.row and any(map(_is_method, labels)) and not self.methods & known:
            return False
        return _agree(SCORES, self.scores, labels) and _agree(MODELS, self.models, labels)


@cache
def base(label: str) -> str:
    """The name of a method without options."""
    return label.partition(":")[0]


@cache
def _is_method(label: str) -> bool:
    return base(label) in METHODS or label.endswith(" first")


def _named(kind: Mapping[str, tuple[str, ...]], text: str) -> frozenset[str]:
    return frozenset(regex for regex in kind if re.search(regex, text))


def _agree(kind: Mapping[str, tuple[str, ...]], named: frozenset[str], labels: frozenset[str]) -> bool:
    """Whether no subject of a kind is named, or a value has none, or has one of those that are named."""
    if not named:
        return True
    own = [label for label in labels if len(label) <= LONGEST and any(_means(label, parts) for parts in kind.values())]
    return not own or any(_means(label, kind[regex]) for label in own for regex in named)


@cache
def _means(label: str, parts: tuple[str, ...]) -> bool:
    lower = label.lower()
    return any(lower == part[1:].lower() if part[0] == "=" else part in lower for part in parts)
