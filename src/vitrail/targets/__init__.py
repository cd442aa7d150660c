"""Targets with names, such as prompts, boxes, tokens and contrasts, as values that print and save themselves."""

from vitrail.inputs.targets import similarity
from vitrail.targets.answer_target import answer
from vitrail.targets.boxes import box
from vitrail.targets.contrasts import contrast
from vitrail.targets.detections import Detection, detections
from vitrail.targets.embeddings import similar_to
from vitrail.targets.named_target import NamedTarget, from_dict
from vitrail.targets.prompts import prompt
from vitrail.targets.regions import region
from vitrail.targets.saved_targets import saved_targets
from vitrail.targets.token_target import token

__all__ = [
    "Detection", "NamedTarget", "answer", "box", "contrast", "detections", "from_dict", "prompt", "region",
    "saved_targets", "similar_to", "similarity", "token",
]  # fmt: skip
