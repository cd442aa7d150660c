"""The tokenizer and the processor of models that answer questions about scenes, such as ``scenes-vlm``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.questions import IMAGE, PAD, QUESTION_WORDS, START, UNKNOWN, encode_question
from vitrail.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["QuestionProcessor", "QuestionTokenizer"]

#: In front of a word: a space, as tokenizers of sentences write it.
_SPACE = "▁"
_SPECIAL = UNKNOWN + 1


class QuestionTokenizer:
    """A tokenizer of words, with the methods of those of Hugging Face that Vitrail uses.

    Example:
        >>> tokenizer = QuestionTokenizer()
        >>> tokenizer("What colour is the kite?")["input_ids"]
        [2, 7, 9, 13, 16, 46, 5]
        >>> tokenizer.decode([7, 9, 13])
        'what colour is'
    """

    is_fast = False
    pad_token_id, unk_token_id, eos_token_id = PAD, UNKNOWN, 3
    unk_token = QUESTION_WORDS[UNKNOWN]
    all_special_ids = tuple(range(_SPECIAL))

    def __len__(self) -> int:
        return len(QUESTION_WORDS)

    def __call__(self, text: str, add_special_tokens: bool = True, **_: Any) -> dict[str, list[int]]:
        """Numbers of the words of a text, with the start in front, and which of them count: all."""
        ids = [*([START] if add_special_tokens else []), *encode_question(text)]
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> Any:
        """Names of one or several numbers; words begin with a sign for the space before them."""
        if not isinstance(ids, int):
            return [self.convert_ids_to_tokens(int(i)) for i in ids]
        word = QUESTION_WORDS[ids]
        return word if ids < _SPECIAL else _SPACE + word

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        """The text of some numbers."""
        return "".join(self.convert_ids_to_tokens(list(ids))).replace(_SPACE, " ").strip()

    def get_vocab(self) -> dict[str, int]:
        """The number of each name."""
        return {self.convert_ids_to_tokens(i): i for i in range(len(self))}


class QuestionProcessor:
    """Turns images and questions into the arguments of a model, with one image token for each patch.

    Args:
        size: Height and width of the images in pixels.
        patches: Image tokens of an image.

    Example:
        >>> from PIL import Image
        >>> given = QuestionProcessor()(images=Image.new("RGB", (128, 128)), text="What colour is the kite?")
        >>> {name: tuple(tensor.shape) for name, tensor in given.items()}
        {'input_ids': (1, 263), 'attention_mask': (1, 263), 'pixel_values': (1, 3, 128, 128)}
    """

    def __init__(self, size: int = 128, patches: int = 256) -> None:
        self.size, self.patches, self.tokenizer = size, patches, QuestionTokenizer()

    def __call__(
        self, images: Image | Sequence[Image], text: str | Sequence[str], return_tensors: str = "pt"
    ) -> dict[str, Tensor]:
        """The arguments of a model.

        Args:
            images: An image, or one for each question.
            text: A question or several; shorter ones are padded on the right.
            return_tensors: "pt"; there are no other ones.

        Raises:
            InputError: There are not as many images as questions, or a word is unknown.
        """
        if return_tensors != "pt":
            raise InputError(f"return_tensors={return_tensors!r}: this processor returns torch tensors, 'pt'")
        texts = [text] if isinstance(text, str) else list(text)
        given = list(images) if isinstance(images, Sequence) else [images]
        if len(given) != len(texts):
            raise InputError(f"{len(given)} images and {len(texts)} questions: give one image for each question")
        rows = [[IMAGE] * self.patches + self.tokenizer(one)["input_ids"] for one in texts]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
        pixels = torch.stack([self._pixels(image) for image in given])
        return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "pixel_values": pixels}

    def _pixels(self, image: Image) -> Tensor:
        """An image as values from -1 to 1, shape (3, size, size)."""
        from PIL.Image import Resampling

        rgb = image.convert("RGB")
        if rgb.size != (self.size, self.size):
            rgb = rgb.resize((self.size, self.size), Resampling.BICUBIC)
        return torch.from_numpy(np.array(rgb)).permute(2, 0, 1).float() / 127.5 - 1
