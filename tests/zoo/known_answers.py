"""Tests with a known answer for any model: each takes a subject and methods and fails where a map is wrong.

Tolerances are shares of the range of a map.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import vitrail
from tests.zoo.entry import Subject
from vitrail.errors import GuessWarning, MapWarning

#: Largest difference of equal maps, and of equal scores, by precision of the model.
TOLERANCE = {torch.float32: 2e-3, torch.float64: 1e-5}
#: Names of weights and buffers that tell positions apart.
POSITIONS = re.compile(
    r"pos_?emb|position|rel_pos|rel_emb|relative_|inv_freq|periods|rope|rotary|pos_drop", re.IGNORECASE
)


def maps(subject: Subject, methods: Sequence[str], inputs: Any = None) -> dict[str, Tensor]:
    """Maps by method, shape (examples, rows, columns) or (examples, tokens)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MapWarning)
        warnings.simplefilter("ignore", GuessWarning)
        given = subject.inputs if inputs is None else inputs
        found = vitrail.explain(subject.model, given, methods=list(methods), target=subject.target, **subject.options)
    shown = {name: e.grid[:, 0].detach() for name, e in found.items()}
    assert any(values.any() for values in shown.values()), "the maps of all methods are zero"
    return shown


def assert_close(found: Tensor, expected: Tensor, what: str) -> None:
    """Fail unless two maps agree, in shares of the range of the expected values."""
    assert found.shape == expected.shape, f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}"
    if not expected.any():  # a method may find no evidence; `maps` fails where no method does
        assert not found.any(), f"{what}: {float(found.abs().max()):.2g}, expected zero"
        return
    extent = float(expected.max() - expected.min())
    assert extent > 1e-6 * float(expected.abs().max()), f"{what}: the expected map is constant"
    difference = float((found - expected).abs().max()) / extent
    assert difference <= TOLERANCE[found.dtype], f"{what}: differs by {difference:.2g} of the range"


@contextmanager
def without_positions(model: nn.Module) -> Iterator[None]:
    """Set everything that tells positions apart to zero, and restore it."""
    named = [*model.named_parameters(), *model.named_buffers()]
    found = {name: t for name, t in named if POSITIONS.search(name) and t.is_floating_point()}
    kept = {name: t.detach().clone() for name, t in found.items()}
    try:
        with torch.no_grad():
            for name, tensor in found.items():
                tensor.fill_(1e30 if "periods" in name else 0.0)
                if name.endswith("rope.pos_embed"):  # sines, then cosines
                    tensor[..., tensor.shape[-1] // 2 :] = 1
        yield
    finally:
        with torch.no_grad():
            for name, tensor in found.items():
                tensor.copy_(kept[name])


def image_name(inputs: Any) -> str | None:
    """Key of the images in keyword arguments, None for a tensor."""
    if isinstance(inputs, Tensor):
        return None
    return next(name for name, value in inputs.items() if value.is_floating_point() and value.dim() >= 3)


def with_images(inputs: Any, images: Tensor) -> Any:
    """The same inputs with other images."""
    name = image_name(inputs)
    return images if name is None else {**inputs, name: images}


def images_of(inputs: Any) -> Tensor:
    """The images of the inputs."""
    name = image_name(inputs)
    return inputs if name is None else inputs[name]


def scores(subject: Subject, inputs: Any) -> Tensor:
    """The explained scores, one per example."""
    with torch.no_grad():
        output = subject.model(inputs) if isinstance(inputs, Tensor) else subject.model(**inputs)
    if callable(subject.target):
        return torch.as_tensor(subject.target(output)).flatten()
    logits = output if isinstance(output, Tensor) else output["logits"] if isinstance(output, dict) else output[0]
    return logits[:, subject.target]


def assert_same_scores(subject: Subject, first: Any, second: Any) -> None:
    """Fail where the construction itself does not hold: the model tells the two inputs apart."""
    one, other = scores(subject, first), scores(subject, second)
    share = float((one - other).abs().max() / one.abs().max())
    assert share <= TOLERANCE[one.dtype], f"the model tells both apart: scores differ by {share:.2g}"


def exchange(values: Tensor, grid: tuple[int, int], first: tuple[int, int], second: tuple[int, int]) -> Tensor:
    """Exchange two patches of images or maps of any resolution, shape (..., height, width)."""
    height, width = values.shape[-2] // grid[0], values.shape[-1] // grid[1]
    result = values.clone()
    one, other = (
        (..., slice(r * height, (r + 1) * height), slice(c * width, (c + 1) * width)) for r, c in (first, second)
    )
    result[one], result[other] = values[other], values[one]
    return result


def unlike_patches(found: Mapping[str, Tensor], grid: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """The two patches of the second image whose relevance differs most, by the method in which it differs least."""
    contrasts = []
    for method, shown in found.items():
        shape = tuple(shown.shape[-2:])
        assert shape == grid or min(shape) > max(grid), f"{method}: {shape} patches, expected {grid}"
        values = nn.functional.adaptive_avg_pool2d(shown, grid)[1].flatten()
        contrasts.append((values[:, None] - values).abs() / (values.max() - values.min()))
    contrast = torch.stack(contrasts).amin(0)
    places = [divmod(i, grid[1]) for i in range(grid[0] * grid[1])]
    for i, (row, column) in enumerate(places):
        if (column, row) in places:
            contrast[i, places.index((column, row))] = 0  # a transposed map would pass
    assert float(contrast.max()) > 0.05, "all patches have nearly the same relevance"
    first, second = divmod(int(contrast.argmax()), len(places))
    return places[first], places[second]


def swap_patches(subject: Subject, methods: Sequence[str]) -> None:
    """Two patches of the second image are exchanged: its map has them exchanged, that of the first stays."""
    assert subject.grid is not None
    with without_positions(subject.model):
        before = maps(subject, methods)
        first, second = unlike_patches(before, subject.grid)
        images = images_of(subject.inputs)
        swapped = images.clone()
        swapped[1] = exchange(images[1], subject.grid, first, second)
        given = with_images(subject.inputs, swapped)
        assert_same_scores(subject, subject.inputs, given)
        after = maps(subject, methods, given)
    for method in methods:
        expected = before[method].clone()
        expected[1] = exchange(before[method][1], subject.grid, first, second)
        assert_close(after[method], expected, method)


def swap_words(subject: Subject, methods: Sequence[str]) -> None:
    """Two words of the first text are exchanged: its map has them exchanged, that of the other text stays."""
    ids = subject.inputs["input_ids"]
    first, second = 3, 7
    assert ids[0, first] != ids[0, second]
    with without_positions(subject.model):
        before = maps(subject, methods)
        order = torch.arange(ids.shape[1])
        order[[first, second]] = order[[second, first]]
        swapped = ids.clone()
        swapped[0] = ids[0, order]
        given = {**subject.inputs, "input_ids": swapped}
        assert_same_scores(subject, subject.inputs, given)
        after = maps(subject, methods, given)
    for method in methods:
        expected = before[method].clone()
        expected[0] = before[method][0, order]
        assert_close(after[method], expected, method)


def padding(subject: Subject, methods: Sequence[str]) -> None:
    """Texts of a padded batch have the maps that they have alone, and padding has exactly zero."""
    together = maps(subject, methods)
    for i, mask in enumerate(subject.inputs["attention_mask"].bool()):
        alone = {name: value[i : i + 1, mask] for name, value in subject.inputs.items()}
        for method, found in maps(subject, methods, alone).items():
            assert_close(together[method][i, mask], found[0], f"{method}, text {i}")
            assert not together[method][i, ~mask].any(), f"{method}, text {i}: relevance of padding"


#: Position whose output `cut_future` explains.
INNER = 6


def inner_feature(output: Any) -> Tensor:
    """A feature of an inner token."""
    return (output[0] if not isinstance(output, Tensor) else output)[:, INNER, 3]


def cut_future(subject: Subject, methods: Sequence[str]) -> None:
    """An output at an inner token of a causal model has the map of the text that ends there, and zero after it."""
    base = replace(subject, model=getattr(subject.model, "base_model", subject.model), target=inner_feature)
    whole = {name: value[:1] for name, value in subject.inputs.items()}
    cut = {name: value[:, : INNER + 1] for name, value in whole.items()}
    assert_same_scores(base, whole, cut)
    full, short = maps(base, methods, whole), maps(base, methods, cut)
    for method in methods:
        assert_close(full[method][:, : INNER + 1], short[method], method)
        assert not full[method][:, INNER + 1 :].any(), f"{method}: relevance of tokens after the target"


def change_future(subject: Subject, methods: Sequence[str]) -> None:
    """An output at an inner token of a causal model has zero relevance of later tokens, whatever these are."""
    ids = subject.inputs["input_ids"]
    other = ids.clone()
    other[:, INNER + 1 :] = ids[:, INNER + 1 :].flip(1)
    changed = {**subject.inputs, "input_ids": other}
    assert not torch.equal(other, ids)
    assert_same_scores(subject, subject.inputs, changed)
    before, after = maps(subject, methods), maps(subject, methods, changed)
    for method in methods:
        assert_close(after[method], before[method], method)
        assert not before[method][:, INNER + 1 :].any(), f"{method}: relevance of tokens after the target"
        assert before[method][:, : INNER + 1].any(), f"{method}: no relevance of tokens up to the target"


def permute_examples(subject: Subject, methods: Sequence[str]) -> None:
    """The examples in another order have the same maps in that order, and each alone has its own."""
    count = next(len(v) for n, v in as_dict(subject.inputs).items() if n not in subject.shared)
    order = torch.arange(count).roll(1)
    before, after = maps(subject, methods), maps(subject, methods, chosen(subject, order))
    single = maps(subject, methods, chosen(subject, torch.tensor([1])))
    for method in methods:
        assert_close(after[method], before[method][order], f"{method}, permuted")
        assert_close(single[method][0], before[method][1], f"{method}, alone")
        apart = float((before[method][0] - before[method][1]).abs().max())
        assert apart > 0.01 * float(before[method].max() - before[method].min()), f"{method}: all examples have one map"


def as_dict(inputs: Any) -> Mapping[str, Tensor]:
    """Inputs by name."""
    return {"": inputs} if isinstance(inputs, Tensor) else inputs


def chosen(subject: Subject, order: Tensor) -> Any:
    """Some examples of a batch, in an order."""
    if isinstance(subject.inputs, Tensor):
        return subject.inputs[order]
    return {n: v if n in subject.shared else v[order] for n, v in subject.inputs.items()}


class Planted(nn.Module):
    """A model that sees one patch of each image; the other pixels are replaced by zeros before it."""

    def __init__(self, model: nn.Module, window: tuple[slice, slice], name: str | None) -> None:
        super().__init__()
        self.model, self.window, self.name = model, window, name

    def forward(self, images: Tensor | None = None, **others: Tensor) -> Any:
        given = images if self.name is None else others[self.name]
        assert given is not None
        seen = torch.zeros_like(given)
        seen[(..., *self.window)] = given[(..., *self.window)]
        return self.model(seen) if self.name is None else self.model(**{**others, self.name: seen})


def plant_patch(subject: Subject, methods: Sequence[str]) -> None:
    """The output depends on one patch alone: the map has its maximum there and is zero elsewhere."""
    images = images_of(subject.inputs)
    height, width = images.shape[-2] // 4, images.shape[-1] // 4
    top, left = 2 * height, height if width >= height else 0
    window = (slice(top, top + height), slice(left, left + width))
    planted = replace(subject, model=Planted(subject.model, window, image_name(subject.inputs)).eval())
    for method, found in maps(planted, methods).items():
        fine = nn.functional.interpolate(found[:, None].abs(), images.shape[-2:], mode="nearest")[:, 0]
        inside = torch.zeros_like(fine, dtype=torch.bool)
        inside[(..., *window)] = True
        outside = float(torch.where(inside, 0, fine).max())
        for i in range(len(fine)):
            assert float(fine[i][inside[i]].max()) > 0, f"{method}: zero at the patch"
        assert outside <= 1e-6 * float(fine.max()), f"{method}: {outside:.2g} outside of the patch"


def decisive_patch(subject: Subject, methods: Sequence[str]) -> None:
    """The construction makes the output depend on one patch: every map has its maximum there."""
    assert subject.grid is not None
    assert subject.patch is not None
    for method, found in maps(subject, methods).items():
        for shown in nn.functional.adaptive_avg_pool2d(found, subject.grid):
            place = divmod(int(shown.argmax()), subject.grid[1])
            assert place == subject.patch, f"{method}: the maximum is at {place}, expected {subject.patch}"


def ignored_patch(subject: Subject, methods: Sequence[str]) -> None:
    """The construction makes the output independent of one patch: it has no relevance, whatever it shows."""
    assert subject.grid is not None
    assert subject.patch is not None
    images = images_of(subject.inputs)
    other = exchange(images, subject.grid, subject.patch, subject.patch)
    height, width = images.shape[-2] // subject.grid[0], images.shape[-1] // subject.grid[1]
    row, column = subject.patch
    other[..., row * height : (row + 1) * height, column * width : (column + 1) * width] += 1
    before, after = maps(subject, methods), maps(subject, methods, with_images(subject.inputs, other))
    for method in methods:
        assert_close(after[method], before[method], method)
        shown = nn.functional.adaptive_avg_pool2d(before[method].abs(), subject.grid)
        assert not shown[:, row, column].any(), f"{method}: relevance of a patch that the model ignores"


def roll_image(subject: Subject, methods: Sequence[str]) -> None:
    """Without positions, an image that is rolled by one row and two columns of patches has the rolled map."""
    assert subject.grid is not None
    images = images_of(subject.inputs)
    steps = images.shape[-2] // subject.grid[0], 2 * (images.shape[-1] // subject.grid[1])
    with without_positions(subject.model):
        given = with_images(subject.inputs, images.roll(steps, (-2, -1)))
        assert_same_scores(subject, subject.inputs, given)
        before, after = maps(subject, methods), maps(subject, methods, given)
    for method in methods:
        scale = before[method].shape[-2] // subject.grid[0], before[method].shape[-1] // subject.grid[1]
        assert_close(after[method], before[method].roll((scale[0], 2 * scale[1]), (-2, -1)), method)


def same_as_twin(subject: Subject, methods: Sequence[str]) -> None:
    """Another way to write the same model or call gives the same maps."""
    assert subject.twin is not None
    found, expected = maps(subject, methods), maps(subject.twin, methods)
    for method in methods:
        assert_close(found[method], expected[method], method)


def single_prompts(subject: Subject, methods: Sequence[str]) -> None:
    """Prompts of different lengths together have the maps that each has alone, and padding has no relevance."""
    together = maps(subject, methods)
    for i, prompt in enumerate(subject.inputs):
        alone = maps(subject, methods, [prompt])
        for method in methods:
            length = alone[method].shape[1]
            assert_close(together[method][i, :length], alone[method][0], f"{method}, prompt {i}")
            assert not together[method][i, length:].any(), f"{method}: padding of prompt {i} has relevance"


def inner_position(subject: Subject, methods: Sequence[str]) -> None:
    """A token after some words has the map of the prompt that ends there; later words have no relevance."""
    position = 3
    inner = replace(subject, target=replace(subject.target, position=position))
    whole, tokenizer = subject.inputs[0], subject.options["tokenizer"]
    ids = tokenizer(whole, return_tensors="pt", return_token_type_ids=False)["input_ids"]
    found = maps(inner, methods, {"input_ids": ids})
    cut = maps(subject, methods, {"input_ids": ids[:, : position + 1]})
    for method in methods:
        assert not found[method][:, position + 1 :].any(), f"{method}: later words have relevance"
        if not method.startswith("shapley"):  # draws other coalitions of more words
            assert_close(found[method][:, : position + 1], cut[method], method)


TESTS: dict[str, Callable[[Subject, Sequence[str]], None]] = {
    "swap_patches": swap_patches, "swap_words": swap_words, "padding": padding, "cut_future": cut_future,
    "change_future": change_future,
    "permute_examples": permute_examples, "plant_patch": plant_patch,
    "decisive_patch": decisive_patch, "ignored_patch": ignored_patch, "roll_image": roll_image,
    "same_as_twin": same_as_twin, "single_prompts": single_prompts, "inner_position": inner_position,
}  # fmt: skip
