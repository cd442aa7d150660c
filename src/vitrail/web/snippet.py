"""The Python program that makes what is on the screen."""

from __future__ import annotations

from vitrail.web.jobs import Job
from vitrail.web.runner import FILLS

_PICTURE = '''"""Maps by Vitrail, as the page showed them.

picture.png is the picture as the model sees it, cut and resized; the page's server has it at
/api/pictures/{picture}.png?model={model}
For a photograph of your own, give its path and leave preprocess out.
"""

from dataclasses import replace

import vitrail

model = vitrail.load({source})
seen = replace(model.preprocess, squash=True)  # the picture is cut and resized already
found = vitrail.explain(model, "picture.png", methods={methods}, target=[{targets}], preprocess=seen)
'''
_TEXT = '''"""Scores of words by Vitrail, as the page showed them."""

from transformers import AutoTokenizer

import vitrail

text = {text}
model = vitrail.load({source})
tokenizer = AutoTokenizer.from_pretrained({reader})
found = vitrail.explain(model, text, methods={methods}, target=[{targets}], tokenizer=tokenizer)
'''
_SAVE = """for name, explanation in found.items():
    print(name, explanation.label(0, 0), tuple(explanation.maps.shape))
found.figure().savefig("figure.png")
"""
_CURVES = """
import torch

from vitrail.scores import Curve, Evaluator, LevelGrid, Preset

grid = LevelGrid({percents})
curves = (Curve("deletion", "morf", "{deletion}", grid), Curve("insertion", "lerf", "{insertion}", grid))
preset = Preset("page", "the page's curves", curves, "predicted", "unit")
maps = {{name: explanation.maps[:, 0] for name, explanation in found.items()}}
images = next(iter(found.values())).images
records = Evaluator(model, preset, seed={seed})(images, maps, predicted=torch.tensor({targets}))
for name in found:
    scores = records.scores(preset, name)
    print(name, {{score: round(float(value), 4) for score, value in scores.items()}})
"""


def code_of(job: Job) -> str:
    """A program that makes a job's maps, and its curves if it has any."""
    made = [label for label in job.methods if label in job.found] or list(job.methods)
    methods = "{" + "".join(f"\n    {label!r}: {dict(job.methods[label])!r}," for label in made) + "\n}"
    served, targets = job.served, repr(job.targets or [])
    common = {"source": served.source, "methods": methods, "targets": targets}
    if job.picture is None:
        return _TEXT.format(text=repr(job.source), reader=served.reader, **common) + _SAVE
    made_maps = _PICTURE.format(picture=job.picture, model=served.id, **common)
    if job.kind != "curves":
        return made_maps + _SAVE
    percents = tuple(round(100 * i / job.steps) for i in range(job.steps + 1))
    return made_maps + _CURVES.format(percents=percents, seed=job.seed, targets=targets, **FILLS)
