"""Tasks of the worlds: pairs of things in one input, a target for each, and where each lies.

Every example has two things, A and B: two objects, two movements, two tones, or the sources of two answers. A map of
target A should lie on A and not on B. Targets are those of `vitrail.targets`, and classes by their index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.bench.question_tasks import answer_targets, answers_right, question_batch, question_pair
from vitrail.bench.world_batch import Inputs, WorldBatch
from vitrail.data.captions import TEMPLATES, Caption, describe_objects, encode_captions
from vitrail.data.motions import render_motion
from vitrail.data.question_processor import QuestionProcessor
from vitrail.data.recall import RECALL_TASKS, draw_recall, recall_tokenizer
from vitrail.data.scenes import Scene, Scenes
from vitrail.data.shapes import SCENE_CLASSES
from vitrail.data.tones import render_tones
from vitrail.data.world_pairs import CONTRAST
from vitrail.targets import box, prompt, region


def _scenes(split: str, indices: Sequence[int]) -> list[Scene]:
    pairs = Scenes(split, 1 << 20, pairs=True, coloured=True)
    return [pairs[index] for index in indices]


def _images(scenes: Sequence[Scene]) -> Tensor:
    return torch.stack([scene.to_tensor() for scene in scenes])


def _masks(scenes: Sequence[Any]) -> Tensor:
    return torch.from_numpy(np.stack([scene.masks for scene in scenes]))


def _drawn(index: int, count: int) -> int:
    """A number below ``count`` for an example, whatever the distance of the examples that are chosen."""
    return crc32(f"{index}".encode()) % count


def _prompt(caption: Caption, index: int) -> str:
    """A prompt that names the shape, and the colour and the place in half of the examples each."""
    named = _drawn(index, 4)
    parts = (caption.colour if named & 1 else None, caption.place if named & 2 else None)
    return str(Caption(caption.shape, *parts, template=_drawn(index, len(TEMPLATES))))


@torch.no_grad()
def _prompt_found(model: nn.Module, images: Tensor, shapes: Sequence[Sequence[int]]) -> Tensor:
    """Whether the shapes of A and B are the two likeliest of all shapes, shape (b, 2)."""
    device = next(model.parameters()).device
    names = torch.from_numpy(encode_captions([str(Caption(shape)) for shape in range(len(SCENE_CLASSES))])).to(device)
    best = model(names, images.to(device))["logits_per_image"].topk(2).indices.cpu()
    found: Tensor = (best[:, None] == torch.tensor(shapes)[..., None]).any(-1)
    return found


def captions(model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """The image for a prompt: two objects, a prompt of each that names the shape and at times colour and place."""
    scenes = _scenes(split, indices)
    texts = [[_prompt(c, i) for c in describe_objects(s)] for i, s in zip(indices, scenes, strict=True)]
    images = _images(scenes)
    correct = _prompt_found(model, images, [scene.classes for scene in scenes])
    return WorldBatch(images, [[prompt(a), prompt(b)] for a, b in texts], _masks(scenes), correct)


def contrasts(model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """The image for the prompt of one object against that of the other one."""
    scenes = _scenes(split, indices)
    texts = [[_prompt(c, i) for c in describe_objects(s)] for i, s in zip(indices, scenes, strict=True)]
    images = _images(scenes)
    correct = _prompt_found(model, images, [scene.classes for scene in scenes])
    targets = [[prompt(a, against=b), prompt(b, against=a)] for a, b in texts]
    return WorldBatch(images, targets, _masks(scenes), correct)


def words(model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """The prompt for an image: "a picture of a star" or "there is a star", in which the last word names the object."""
    scenes = _scenes(split, indices)
    texts = [
        [str(Caption(c, template=1 + _drawn(i, 2))) for c in s.classes] for i, s in zip(indices, scenes, strict=True)
    ]
    images = _images(scenes)
    correct = _prompt_found(model, images, [scene.classes for scene in scenes])
    counts = torch.tensor([[len(text.split()) for text in pair] for pair in texts])
    named = torch.arange(int(counts.max())) == counts[..., None] - 1
    return WorldBatch(images, [[prompt(a), prompt(b)] for a, b in texts], named, correct, texts=texts)


def boxes(model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """The detection of each of two objects: the class score of the query whose box lies nearest to it."""
    scenes = _scenes(split, indices)
    images = _images(scenes)
    targets = [
        [box(nearest=corners.tolist(), label=shape) for corners, shape in zip(s.boxes, s.classes, strict=True)]
        for s in scenes
    ]
    shapes = torch.tensor([scene.classes for scene in scenes])
    with torch.no_grad():
        found = model(images.to(next(model.parameters()).device))["logits"].argmax(-1).cpu()
    correct = (found[:, None] == shapes[..., None]).any(-1)
    return WorldBatch(images, targets, _masks(scenes), correct)


def regions(model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """The pixels of each of two objects: the mean score of its class over them."""
    scenes = _scenes(split, indices)
    images, masks = _images(scenes), _masks(scenes)
    shapes = torch.tensor([scene.classes for scene in scenes])
    with torch.no_grad():
        predicted = model(images.to(next(model.parameters()).device))["logits"].argmax(1).cpu()
    step = images.shape[-1] // predicted.shape[-1]
    cells = masks[:, :, ::step, ::step].float()
    right = ((predicted[:, None] == shapes[..., None, None]) * cells).sum((2, 3)) / cells.sum((2, 3))
    targets = [[region(mask, label=shape) for mask, shape in zip(s.masks, s.classes, strict=True)] for s in scenes]
    return WorldBatch(images, targets, masks, right >= 0.5)


def _class_batch(
    model: nn.Module, inputs: Inputs, classes: list[list[int]], masks: Tensor, cells: tuple[int, ...]
) -> WorldBatch:
    values = inputs["input_values"] if isinstance(inputs, dict) else inputs
    with torch.no_grad():
        best = model(values.to(next(model.parameters()).device)).topk(2).indices.cpu()
    correct = (best[:, None] == torch.tensor(classes)[..., None]).any(-1)
    return WorldBatch(inputs, classes, masks, correct, cells)


def movements(model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """Two movements in a video: the object that moves so, in the frames in which it moves."""
    scenes = [render_motion(0, index, pairs=True, split=split) for index in indices]
    frames = torch.from_numpy(np.stack([scene.frames for scene in scenes])).permute(0, 1, 4, 2, 3).float() / 127.5 - 1
    classes, masks = [], []
    for scene in scenes:
        moving = [k for k, movement in enumerate(scene.movements) if movement is not None]
        event = np.zeros(len(scene.frames), np.bool_)
        event[scene.start : scene.stop] = True
        classes.append([int(scene.movements[k]) for k in moving])  # type: ignore[arg-type]
        masks.append(scene.masks[moving] & event[:, None, None])
    return _class_batch(model, frames.contiguous(), classes, torch.from_numpy(np.stack(masks)), (6, 8, 8))


def tones(model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """Two tones in a spectrogram: the time and frequency of the one that is named."""
    scenes = [render_tones(0, index, pairs=True, split=split) for index in indices]
    levels = torch.from_numpy(np.stack([scene.levels for scene in scenes])).float() / 127.5 - 1
    classes = [[int(kind) for kind in scene.tones] for scene in scenes]
    return _class_batch(model, {"input_values": levels}, classes, _masks(scenes), (16, 8))


def questions(
    model: nn.Module, split: str, indices: Sequence[int], kinds: Sequence[str] = ("colour", "shape")
) -> WorldBatch:
    """Two questions about a scene: the object whose colour or shape is asked for."""
    batch = question_batch([question_pair(split, index, kinds) for index in indices])
    return WorldBatch(
        batch.inputs, answer_targets(batch), batch.subjects, answers_right(model, batch), repeated=True,
        objects=batch.objects, decides=batch.decides, processor=QuestionProcessor(),
    )  # fmt: skip


def question_words(model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """The same questions: the word that names the object or its colour."""
    batch = question_batch([question_pair(split, index, ("colour", "shape")) for index in indices])
    return WorldBatch(
        batch.inputs, answer_targets(batch), batch.words, answers_right(model, batch), repeated=True,
        counted=batch.candidates, processor=QuestionProcessor(),
    )  # fmt: skip


def recall(task: str, contrast: bool, model: nn.Module, split: str, indices: Sequence[int]) -> WorldBatch:
    """The next word of two prompts about the same facts: the words that the answer of each comes from.

    Args:
        task: One of ``RECALL_TASKS``.
        contrast: Whether the target is the logit of the answer minus that of the other prompt's answer, instead of
            its log-odds, which `vitrail.explain` takes by default.
        model: The language model.
        split: Split of the prompts.
        indices: Indices of the pairs.
    """
    tokenizer = recall_tokenizer()
    pairs = [draw_recall(0, index, task=task, split=split) for index in indices]
    rows = [pair[0] for pair in pairs] + [pair[1] for pair in pairs]
    inputs = tokenizer([one.text for one in rows], padding=True, return_tensors="pt")
    answers, others = (
        torch.tensor(tokenizer.convert_tokens_to_ids([getattr(one, name) for one in rows]))
        for name in ("answer", "other")
    )
    device = next(model.parameters()).device
    with torch.no_grad():
        found = model(**{name: value.to(device) for name, value in inputs.items()})["logits"][:, -1].argmax(-1).cpu()

    def target(output: Mapping[str, Tensor]) -> Tensor:
        scores = output["logits"][:, -1]
        place = answers.to(scores.device)[:, None]
        own: Tensor = scores.gather(1, place)[:, 0]
        if contrast:
            return own - scores.gather(1, others.to(scores.device)[:, None])[:, 0]
        return own - scores.scatter(1, place, float("-inf")).logsumexp(1)

    ids = inputs["input_ids"]
    masks, sentences = torch.zeros_like(ids, dtype=torch.bool), torch.full_like(ids, -1)
    for row, one in enumerate(rows):
        start = ids.shape[1] - len(one.words)
        masks[row, [start + place for place in one.source]] = True
        facts = torch.tensor(one.sentence)
        sentences[row, start:] = torch.where(facts < facts.max(), facts, -1)
    masks, sentences, candidates = (torch.stack(x.chunk(2), 1) for x in (masks, sentences, ids > 2))
    correct = torch.stack((found == answers).chunk(2), 1)
    return WorldBatch(
        inputs, target, masks, correct, repeated=True, of="input_ids", counted=candidates, sentences=sentences,
        answers=torch.stack(answers.chunk(2), 1),
    )  # fmt: skip


#: From a model, a split and indices to a batch, for each task.
WORLD_TASKS: dict[str, Callable[[nn.Module, str, Sequence[int]], WorldBatch]] = {
    "captions": captions,
    "contrasts": contrasts,
    "words": words,
    "boxes": boxes,
    "regions": regions,
    "movements": movements,
    "tones": tones,
    "questions": questions,
    "relations": partial(questions, kinds=("relation",)),
    "question_words": question_words,
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


def scores_of_words(words: Sequence[Any], batch: WorldBatch) -> Tensor:
    """Scores of the words of both prompts, shape (b, 2, words); 0 behind the end of a prompt.

    Args:
        words: A `vitrail.text.WordRelevance` for each prompt, those of the first example first.
        batch: The examples.
    """
    scores = torch.zeros(len(words), batch.masks.shape[-1], dtype=torch.float64)
    for row, one in zip(scores, words, strict=True):
        row[: len(one.words)] = one.scores[0]
    return scores.view(-1, 2, scores.shape[-1])
