"""A batch of examples of a world, each with two targets and where they lie."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

Inputs = Tensor | dict[str, Tensor]
#: Rows and columns of the patches of scenes.
PATCHES = (16, 16)


@dataclass(frozen=True, eq=False)
class WorldBatch:
    """Examples of a task with their targets and their ground truth.

    Attributes:
        inputs: What the model is called with; with ``repeated``, every example twice: all with target A, then all with
            target B.
        targets: The two targets of each example, as `vitrail.explain` takes them; with ``repeated``, one for each row,
            or a function from the model's output to one value for each row.
        masks: Where A and B lie in the input, shape (b, 2, *axes); among the words of the prompts, shape (b, 2, words).
        correct: Whether the model's own output is right for A and for B, shape (b, 2).
        cells: Cells of the input along each of its axes, which are removed one by one; those of the model's tokens.
        texts: The two prompts of each example where their words are explained on the text side, else None.
        repeated: Whether the inputs hold every example twice.
        of: Name of the tensor that is explained, where there are several.
        counted: Words that count, of the same shape as ``masks``, where ``texts`` do not say it.
        objects: Where all objects lie, shape (b, objects, *axes); None where only two matter.
        decides: Which of them decide the answers, shape (b, 2, objects).
        processor: Of questions about images, the processor; the maps are then those of image tokens or of words.
        sentences: Number of the sentence of each word, -1 for padding, start and the question, of the same shape as
            ``masks``; None where there are none.
        answers: Number of the right next word of A and of B, shape (b, 2); None where the targets are no words.
    """

    inputs: Inputs
    targets: Any
    masks: Tensor
    correct: Tensor
    cells: tuple[int, ...] = PATCHES
    texts: list[list[str]] | None = None
    repeated: bool = False
    of: str | None = None
    counted: Tensor | None = None
    objects: Tensor | None = None
    decides: Tensor | None = None
    processor: Any = None
    sentences: Tensor | None = None
    answers: Tensor | None = None

    @property
    def rows(self) -> int:
        """Rows of the inputs."""
        return len(next(iter(self.inputs.values())) if isinstance(self.inputs, dict) else self.inputs)

    @property
    def candidates(self) -> Tensor | None:
        """Which words there are, of the same shape as ``masks``; None where the masks are of pixels."""
        if self.texts is None:
            return self.counted
        counts = torch.tensor([[len(text.split()) for text in pair] for pair in self.texts])
        return torch.arange(self.masks.shape[-1]) < counts[..., None]

    def select(self, row: int) -> WorldBatch:
        """One of the examples; not of those that the inputs hold twice."""
        at = slice(row, row + 1)
        inputs = {k: v[at] for k, v in self.inputs.items()} if isinstance(self.inputs, dict) else self.inputs[at]
        texts = None if self.texts is None else self.texts[at]
        return replace(self, inputs=inputs, targets=self.targets[at], masks=self.masks[at], correct=self.correct[at],
                       texts=texts)  # fmt: skip

    def on(self, device: str | torch.device) -> Inputs:
        """The inputs on a device."""
        if isinstance(self.inputs, dict):
            return {key: value.to(device) for key, value in self.inputs.items()}
        return self.inputs.to(device)
