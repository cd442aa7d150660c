"""Python code that reproduces a job."""

from __future__ import annotations

from vitrail.web.curve_levels import FILLS
from vitrail.web.jobs import Job

_IMAGE = '''"""Relevance maps computed with Vitrail.

image.png is the image at the model's input size. The server provides it at
/api/pictures/{image_id}.png?model={model}
For an image file of your own, give its path and leave out preprocess.
"""

from dataclasses import replace

import vitrail

model = vitrail.load({load_arguments})
preprocess = replace(model.preprocess, squash=True)  # the image is already cropped and resized
explanations = vitrail.explain(model, "image.png", methods={methods}, target={target}, preprocess=preprocess)
'''
_TEXT = '''"""Word scores computed with Vitrail."""

from transformers import AutoTokenizer

import vitrail

text = {text}
model = vitrail.load({load_arguments})
tokenizer = AutoTokenizer.from_pretrained({tokenizer_name})
explanations = vitrail.explain(model, text, methods={methods}, target={target}, tokenizer=tokenizer)
'''
_SAVE = """for name, explanation in explanations.items():
    print(name, explanation.label(0, 0), tuple(explanation.maps.shape))
explanations.figure().savefig("figure.png")
"""
_CURVES = """
import torch

from vitrail.scores import Curve, Evaluator, LevelGrid, Preset

grid = LevelGrid({percents})
curves = (Curve("deletion", "morf", "{deletion}", grid), Curve("insertion", "lerf", "{insertion}", grid))
preset = Preset("page", "the page's curves", curves, "predicted", "unit")
maps = {{name: explanation.maps[:, 0] for name, explanation in explanations.items()}}
images = next(iter(explanations.values())).images
records = Evaluator(model, preset, seed={seed})(images, maps, predicted=torch.tensor({targets}))
for name in explanations:
    scores = records.scores(preset, name)
    print(name, {{score: round(float(value), 4) for score, value in scores.items()}})
"""


def python_code(job: Job) -> str:
    """Generate a program that computes a job's maps, and its curves if it has any."""
    labels = [label for label in job.methods if label in job.explanations] or list(job.methods)
    methods = "{" + "".join(f"\n    {label!r}: {dict(job.methods[label])!r}," for label in labels) + "\n}"
    served, targets = job.served, repr(job.targets or [])
    target = f"[{targets}]"
    if job.contrast is not None and job.targets:
        target = f"vitrail.contrast({job.targets[0]}, {job.contrast})"
    common = {"load_arguments": served.load_arguments, "methods": methods, "target": target}
    if job.image_id is None:
        return _TEXT.format(text=repr(job.raw_input), tokenizer_name=served.tokenizer_name, **common) + _SAVE
    maps = _IMAGE.format(image_id=job.image_id, model=served.id, **common)
    if job.kind != "curves":
        return maps + _SAVE
    percents = tuple(round(100 * i / job.steps) for i in range(job.steps + 1))
    return maps + _CURVES.format(percents=percents, seed=job.seed, targets=targets, **FILLS)
