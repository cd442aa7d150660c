"""Tasks of the worlds: pairs of things in one input, a target for each, and where each lies.

Every example has two things, A and B: two objects, two movements, two tones, or the sources of two answers. A map of
target A should lie on A and not on B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.captions import Caption, describe_objects, encode_captions
from vitrail.data.motions import render_motion
from vitrail.data.recall import RECALL_TASKS, draw_recall, recall_tokenizer
from vitrail.data.scenes import Scene, Scenes
from vitrail.data.tones import render_tones
from vitrail.data.world_pairs import CONTRAST

Inputs = Tensor | dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class WorldBatch:
    """Examples of a task with their targets and their ground truth.

    Attributes:
        inputs: What the model is called with; with ``repeated``, every example twice: all with target A, then all with
            target B.
        target: From the model's output to one value for each row of the inputs, or to the two of A and B.
        masks: Where A and B lie in the input, shape (b, 2, *axes); of words, shape (b, 2, length).
        repeated: Whether the inputs hold every example twice.
        correct: Whether the model's own output is right for A and for B, shape (b, 2).
        of: Name of the tensor that is explained, where there are several.
        candidates: Words that count, of the same shape as ``masks``; None where the masks are of pixels.
        sentences: Number of the sentence of each word, -1 for padding, start and the question, of the same shape as
            ``masks``; None where there are none.
        answers: Number of the right next word of A and of B, shape (b, 2); None where the targets are no words.
    """

    inputs: Inputs
    target: Callable[[Any], Tensor]
    masks: Tensor
    repeated: bool
    correct: Tensor
    of: str | None = None
    candidates: Tensor | None = None
    sentences: Tensor | None = None
    answers: Tensor | None = None

    @property
    def rows(self) -> int:
        """Rows of the inputs."""
        return len(next(iter(self.inputs.values())) if isinstance(self.inputs, dict) else self.inputs)


def _scenes(split: str, indices: Sequence[int]) -> list[Scene]:
    pairs = Scenes(split, 1 << 20, pairs=True, coloured=True)
    return [pairs[index] for index in indices]


def _images(scenes: Sequence[Scene]) -> Tensor:
    return torch.stack([scene.to_tensor() for scene in scenes])


def _masks(scenes: Sequence[Any]) -> Tensor:
    return torch.from_numpy(np.stack([scene.masks for scene in scenes]))


def _pair_logits(output: Mapping[str, Tensor]) -> Tensor:
    """Similarity of each image to the text in the same row, shape (b,)."""
    return output["logits_per_image"].diagonal()


#: What the prompts of the caption task name beside the shape, in turn.
_NAMED = ((False, False), (True, False), (False, True), (True, True))


def _prompt(caption: Caption, index: int) -> str:
    colour, place = _NAMED[index % len(_NAMED)]
    parts = (caption.colour if colour else None, caption.place if place else None)
    return str(Caption(caption.shape, *parts, template=index % 3))


def _prompts_of_pairs(texts: Sequence[Sequence[str]], images: Tensor) -> dict[str, Tensor]:
    """Inputs of a dual encoder: all images with their first text, then all with their second one."""
    rows = [pair[0] for pair in texts] + [pair[1] for pair in texts]
    return {"input_ids": torch.from_numpy(encode_captions(rows)), "pixel_values": torch.cat([images, images])}


@torch.no_grad()
def _prompt_found(model: nn.Module, images: Tensor, shapes: Sequence[Sequence[int]]) -> Tensor:
    """Whether the shapes of A and B are the two likeliest of all shapes, shape (b, 2)."""
    device = next(model.parameters()).device
    names = torch.from_numpy(encode_captions([str(Caption(shape)) for shape in range(12)])).to(device)
    best = model(names, images.to(device))["logits_per_image"].topk(2).indices.cpu()
    found: Tensor = (best[:, None] == torch.tensor(shapes)[..., None]).any(-1)
    return found


def captions(model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """The image for a prompt: two objects, a prompt of each that names the shape and at times colour and place."""
    scenes = _scenes(split, indices)
    texts = [[_prompt(c, i) for c in describe_objects(s)] for i, s in zip(indices, scenes, strict=True)]
    images = _images(scenes)
    correct = _prompt_found(model, images, [scene.classes for scene in scenes])
    return WorldBatch(_prompts_of_pairs(texts, images), _pair_logits, _masks(scenes), True, correct, "pixel_values")


def words(model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """The prompt for an image: "a picture of a star" or "there is a star", in which one word names the object."""
    scenes = _scenes(split, indices)
    texts = [[str(Caption(c, template=1 + i % 2)) for c in s.classes] for i, s in zip(indices, scenes, strict=True)]
    images = _images(scenes)
    inputs = _prompts_of_pairs(texts, images)
    numbers = torch.stack(inputs["input_ids"].chunk(2), 1)
    correct = _prompt_found(model, images, [scene.classes for scene in scenes])
    names = encode_captions([scene_name for scene in scenes for scene_name in scene.names])[:, 1]
    named = numbers == torch.from_numpy(names).view(-1, 2, 1)
    return WorldBatch(inputs, _pair_logits, named, True, correct, "input_ids", numbers > 2)


def boxes(model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """The detection of each of two objects: the class score of the query that predicts it."""
    scenes = _scenes(split, indices)
    images = _images(scenes)
    shapes = torch.tensor([scene.classes for scene in scenes])
    device = next(model.parameters()).device
    with torch.no_grad():
        logits = model(images.to(device))["logits"].cpu()
    rows = torch.arange(len(scenes))[:, None]
    query = logits.softmax(-1).transpose(1, 2)[rows, shapes].argmax(-1)  # (b, 2)
    correct = logits[rows, query].argmax(-1) == shapes

    def target(output: Mapping[str, Tensor]) -> Tensor:
        values = output["logits"]
        return values[rows.to(values.device), query.to(values.device), shapes.to(values.device)]

    return WorldBatch(images, target, _masks(scenes), False, correct)


def regions(model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """The pixels of each of two objects: the mean score of its class over them."""
    scenes = _scenes(split, indices)
    images, masks = _images(scenes), _masks(scenes)
    shapes = torch.tensor([scene.classes for scene in scenes])
    device = next(model.parameters()).device
    with torch.no_grad():
        predicted = model(images.to(device))["logits"].argmax(1).cpu()
    step = images.shape[-1] // predicted.shape[-1]
    cells = masks[:, :, ::step, ::step].float()
    right = ((predicted[:, None] == shapes[..., None, None]) * cells).sum((2, 3)) / cells.sum((2, 3))
    rows = torch.arange(len(scenes))[:, None]

    def target(output: Mapping[str, Tensor]) -> Tensor:
        values, own = output["logits"], cells.to(output["logits"])
        chosen = values[rows.to(values.device), shapes.to(values.device)]
        return (chosen * own).sum((2, 3)) / own.sum((2, 3))

    return WorldBatch(images, target, masks, False, right >= 0.5)


def _class_batch(model: nn.Module, inputs: Inputs, classes: Tensor, masks: Tensor) -> WorldBatch:
    device = next(model.parameters()).device
    values = inputs["input_values"] if isinstance(inputs, dict) else inputs
    with torch.no_grad():
        best = model(values.to(device)).topk(2).indices.cpu()
    correct = (best[:, None] == classes[..., None]).any(-1)

    def target(output: Tensor) -> Tensor:
        return output.gather(1, classes.to(output.device))

    return WorldBatch(inputs, target, masks, False, correct)


def movements(model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """Two movements in a video: the object that moves so, in the frames in which it moves."""
    scenes = [render_motion(0, index, pairs=True, split=split) for index in indices]
    frames = torch.from_numpy(np.stack([scene.frames for scene in scenes])).permute(0, 1, 4, 2, 3).float() / 127.5 - 1
    classes, masks = [], []
    for scene in scenes:
        moving = [k for k, movement in enumerate(scene.movements) if movement is not None]
        event = np.zeros(len(scene.frames), np.bool_)
        event[scene.start : scene.stop] = True
        classes.append([scene.movements[k] for k in moving])
        masks.append(scene.masks[moving] & event[:, None, None])
    return _class_batch(model, frames.contiguous(), torch.tensor(classes), torch.from_numpy(np.stack(masks)))


def tones(model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """Two tones in a spectrogram: the time and frequency of the one that is named."""
    scenes = [render_tones(0, index, pairs=True, split=split) for index in indices]
    levels = torch.from_numpy(np.stack([scene.levels for scene in scenes])).float() / 127.5 - 1
    classes = torch.tensor([scene.tones for scene in scenes])
    return _class_batch(model, {"input_values": levels}, classes, _masks(scenes))


def recall(task: str, contrast: bool, model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """The next word of two prompts about the same facts: the words that the answer of each comes from.

    Args:
        task: One of ``RECALL_TASKS``.
        contrast: Whether the target is the logit of the answer minus that of the other prompt's answer.
        model: The language model.
        split: Split of the prompts.
        indices: Indices of the pairs.
    """
    tokenizer = recall_tokenizer()
    pairs = [draw_recall(0, index, task=task, split=split) for index in indices]
    rows = [pair[0] for pair in pairs] + [pair[1] for pair in pairs]
    inputs = tokenizer([prompt.text for prompt in rows], padding=True, return_tensors="pt")
    answers, others = (
        torch.tensor(tokenizer.convert_tokens_to_ids([getattr(prompt, name) for prompt in rows]))
        for name in ("answer", "other")
    )
    device = next(model.parameters()).device
    with torch.no_grad():
        found = model(**{name: value.to(device) for name, value in inputs.items()})["logits"][:, -1].argmax(-1).cpu()

    def target(output: Mapping[str, Tensor]) -> Tensor:
        scores = output["logits"][:, -1]
        own: Tensor = scores.gather(1, answers.to(scores.device)[:, None])[:, 0]
        return own - scores.gather(1, others.to(scores.device)[:, None])[:, 0] if contrast else own

    ids = inputs["input_ids"]
    masks, sentences = torch.zeros_like(ids, dtype=torch.bool), torch.full_like(ids, -1)
    for row, prompt in enumerate(rows):
        start = ids.shape[1] - len(prompt.words)
        masks[row, [start + place for place in prompt.source]] = True
        facts = torch.tensor(prompt.sentence)
        sentences[row, start:] = torch.where(facts < facts.max(), facts, -1)
    masks, sentences, candidates = (torch.stack(x.chunk(2), 1) for x in (masks, sentences, ids > 2))
    correct = torch.stack((found == answers).chunk(2), 1)
    return WorldBatch(
        inputs, target, masks, True, correct, "input_ids", candidates, sentences, torch.stack(answers.chunk(2), 1)
    )


#: From a model, a split and indices to a batch, for each task.
WORLD_TASKS: dict[str, Callable[[nn.Module, str, Sequence[int]], WorldBatch]] = {
    "captions": captions,
    "words": words,
    "boxes": boxes,
    "regions": regions,
    "movements": movements,
    "tones": tones,
    **{task: partial(recall, task, False) for task in RECALL_TASKS},
    **{f"{task}{CONTRAST}": partial(recall, task, True) for task in RECALL_TASKS},
}


def maps_of_pairs(values: Tensor, batch: WorldBatch, grid: Sequence[int] | None) -> Tensor:
    """Maps of A and B at the resolution of the masks.

    Args:
        values: Relevance as `vitrail.explain` returns it: maps of the input, or scores of the tokens.
        batch: The examples.
        grid: Rows and columns of the model's tokens, with frames before them; for scores of tokens.

    Returns:
        Shape (b, 2, *axes), as the masks.
    """
    if batch.repeated:
        values = torch.stack(values[:, 0].chunk(2), 1)
    shape = batch.masks.shape[2:]
    if values.shape[2:] == shape:
        return values
    if values.dim() == 3 and grid is not None:
        cells = int(np.prod(grid))
        values = values[..., values.shape[-1] - cells :].reshape(*values.shape[:2], *grid)
    mode = {1: "nearest", 2: "bilinear", 3: "trilinear"}[len(shape)]
    return F.interpolate(
        values.float(), size=tuple(shape), mode=mode, align_corners=None if mode == "nearest" else False
    )
