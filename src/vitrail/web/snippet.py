"""Python code that reproduces a job."""

from __future__ import annotations

from vitrail.models.preprocess import Preprocess
from vitrail.web.curve_levels import FILLS
from vitrail.web.jobs import Job
from vitrail.web.page_targets import PageTarget, difference_code

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
_SIGNAL = '''"""Relevance maps computed with Vitrail.

input.npy has the {media} at the model's input size, as bytes. The server provides it at
/api/pictures/{image_id}.npy?model={model}
"""

import numpy as np
import torch

import vitrail

values = torch.from_numpy(np.load("input.npy")).float()
inputs = {tensor}
model = vitrail.load({load_arguments})
explanations = vitrail.explain(model, inputs, methods={methods}, target={target})
'''
_TENSORS = {
    "sound": "values[None] / 127.5 - 1  # time, frequency",
    "video": "((values.permute(0, 3, 1, 2) / 255 - torch.tensor({mean})[:, None, None])\n"
    "          / torch.tensor({std})[:, None, None])[None]",
}
_MASK = '''

def patches_mask(patches, grid, size):
    """A mask of some patches, counted row by row, in the size of the model's input."""
    cells = np.zeros(grid[0] * grid[1])
    cells[patches] = 1
    rows, columns = (np.arange(n) * cells_along // n for n, cells_along in zip(size, grid))
    return cells.reshape(grid)[rows][:, columns]


'''
_TEXT = '''"""Word scores computed with Vitrail."""

from transformers import AutoTokenizer

import vitrail

text = {text}
model = vitrail.load({load_arguments})
tokenizer = AutoTokenizer.from_pretrained({tokenizer_name})
explanations = vitrail.explain(model, text, methods={methods}, target={target}, tokenizer=tokenizer)
'''
_PROMPT = '''"""Word scores computed with Vitrail."""

import vitrail
from vitrail.targets import token
from vitrail.text import load_tokenizer
from vitrail.text.prompt_tokens import encode_prompts, with_continuation

text = {text}
written = {written}  # tokens that the model wrote before the explained one
model, tokenizer = vitrail.load({load_arguments}), load_tokenizer({title!r})
prompt = with_continuation(encode_prompts(text, tokenizer)[0], written, tokenizer)
explanations = vitrail.explain(model, [prompt], methods={methods}, target={target}, tokenizer=tokenizer)
'''
_QUESTION = '''"""Relevance maps computed with Vitrail.

image.png is the image at the model's input size. The server provides it at
/api/pictures/{image_id}.png?model={model}
"""

import torch
from PIL import Image

import vitrail
from vitrail.data import QuestionProcessor
from vitrail.targets import contrast, token

model, processor = vitrail.load({load_arguments}), QuestionProcessor()  # other models have their own processor
inputs = processor(images=Image.open("image.png"), text={text}, return_tensors="pt")
written = torch.tensor([{written}]).view(1, -1).long()  # tokens that the model wrote before the explained one
inputs["input_ids"] = torch.cat([inputs["input_ids"], written], 1)
inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
explanations = vitrail.explain(model, inputs, methods={methods}, target={target}, processor=processor)
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
    if job.has_named_targets:
        return _named_code(job, methods) + _SAVE
    common = {"load_arguments": served.load_arguments, "methods": methods, "target": target}
    if job.image_id is None:
        return _TEXT.format(text=repr(job.raw_input), tokenizer_name=served.tokenizer_name, **common) + _SAVE
    if served.media != "image":
        known = served.loaded.preprocess
        norm = {"mean": known.mean, "std": known.std} if isinstance(known, Preprocess) else {}
        tensor = _TENSORS[served.media].format(**norm)
        code = _SIGNAL.format(media=served.media, image_id=job.image_id, model=served.id, tensor=tensor, **common)
        return code + _SAVE
    maps = _IMAGE.format(image_id=job.image_id, model=served.id, **common)
    if job.kind != "curves":
        return maps + _SAVE
    percents = tuple(round(100 * i / job.steps) for i in range(job.steps + 1))
    return maps + _CURVES.format(percents=percents, seed=job.seed, targets=targets, **FILLS)


def _named_code(job: Job, methods: str) -> str:
    """The program for prompts, boxes, regions and tokens."""
    named = [target for target in job.targets or () if isinstance(target, PageTarget)]
    target = f"[[{', '.join(one.code(job.served) for one in named)}]]"
    if isinstance(job.contrast, PageTarget):
        target = difference_code(named[0], job.contrast, job.served)
    if job.served.target_kind == "token":
        given = {"written": list(named[0].written), "target": target, "methods": methods, "model": job.served.id,
                 "load_arguments": job.served.load_arguments, "title": job.served.title}  # fmt: skip
        if job.image_id is None:
            return _PROMPT.format(text=repr(job.raw_input), **given)
        return _QUESTION.format(text=repr(named[0].text), image_id=job.image_id, **given)
    code = _IMAGE.format(
        image_id=job.image_id, model=job.served.id, load_arguments=job.served.load_arguments, methods=methods,
        target=target,
    )  # fmt: skip
    used = [name for name in ("box", "contrast", "prompt", "region") if f"{name}(" in target]
    code = code.replace("import vitrail\n", f"import vitrail\nfrom vitrail.targets import {', '.join(used)}\n", 1)
    if "patches_mask(" in target:
        code = code.replace("import vitrail\n", "import numpy as np\n\nimport vitrail\n", 1)
        code = code.replace("\nmodel = ", _MASK + "model = ", 1)
    return code
