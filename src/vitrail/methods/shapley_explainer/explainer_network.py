"""The explainer: a copy of the model with another head, which predicts Shapley values of all patches and classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitrail.capture.layout import Layout
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.removal import kept_mask
from vitrail.errors import NotApplicableError
from vitrail.methods.shapley_explainer.partial_images import PartialImages, kernel_sizes, split_patches
from vitrail.models.plain_vit import PlainBlock

#: Width of an attention head of the explainer's own block, if it divides the width of the model.
HEAD_WIDTHS = (64, 48, 32, 24, 16, 8, 4, 2, 1)


class ShapleyHead(nn.Module):
    """A transformer block and an MLP: tokens, shape (b, n, width), to values, shape (b, n, classes).

    The last layer starts at zero, so that training starts with the same value for all patches.

    Example:
        >>> ShapleyHead(8, 3)(torch.randn(2, 5, 8)).abs().max().item()
        0.0
    """

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        heads = width // next(w for w in HEAD_WIDTHS if width % w == 0 and (width // w > 1 or w == 1))
        self.block = PlainBlock(width, heads, mlp=1)
        self.norm = nn.LayerNorm(width)
        self.hidden, self.values = nn.Linear(width, width), nn.Linear(width, classes)
        nn.init.zeros_(self.values.weight)
        nn.init.zeros_(self.values.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute the values of all tokens and classes."""
        hidden = nn.functional.gelu(self.hidden(self.norm(self.block(tokens))))
        return self.values(hidden)  # type: ignore[no-any-return]


class ShapleyExplainer(nn.Module):
    """Predicts Shapley values of all patches for all classes, before normalisation.

    Args:
        backbone: A copy of the explained model or of its surrogate; its last tokens are read.
        tokens_module: Name of the submodule whose output are these tokens, see `find_tokens_module`.
        layout: Layout of the tokens.
        width: Width of the tokens.
        classes: Number of classes.
        tokens_first: Whether tokens come before the batch.
    """

    def __init__(
        self,
        backbone: nn.Module,
        tokens_module: str,
        layout: Layout,
        width: int,
        classes: int,
        tokens_first: bool = False,
    ) -> None:
        super().__init__()
        self.backbone, self.head = backbone, ShapleyHead(width, classes)
        self.tokens_module, self.layout, self.tokens_first = tokens_module, layout, tokens_first

    def forward(self, images: Tensor) -> Tensor:
        """Map images, shape (b, channels, height, width), to values, shape (b, S, classes)."""
        outputs: list[Tensor] = []
        module = self.backbone.get_submodule(self.tokens_module)
        handle = module.register_forward_hook(lambda _, __, output: outputs.append(output))
        try:
            self.backbone(images)
        finally:
            handle.remove()
        tokens = outputs[-1].transpose(0, 1) if self.tokens_first else outputs[-1]
        return self.layout.patches(self.head(tokens), 1)

    def trained(self) -> dict[str, nn.Parameter]:
        """Parameters that are trained, by name; the rest are those of the explained model."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}


def build_explainer(backbone: nn.Module, structure: ModelStructure, images: Tensor, classes: int) -> ShapleyExplainer:
    """Create an explainer around a copy of the explained model.

    Parameters of the backbone that no value depends on, such as the classification head, are frozen.
    """
    name, width = find_tokens_module(backbone, structure, images)
    explainer = ShapleyExplainer(backbone, name, structure.layout, width, classes, structure.tokens_first)
    explainer.to(images.device)
    nn.init.ones_(explainer.head.values.weight)  # with zeros, no gradient would reach the backbone
    with torch.enable_grad():
        explainer(images[:1]).sum().backward()
    nn.init.zeros_(explainer.head.values.weight)
    for parameter in explainer.parameters():
        parameter.requires_grad_(parameter.grad is not None)
        parameter.grad = None
    return explainer.eval()


def find_tokens_module(model: nn.Module, structure: ModelStructure, images: Tensor) -> tuple[str, int]:
    """Name of the last submodule that returns all tokens of an image, and the width of the tokens.

    Example:
        >>> from vitrail.capture.inputs import ModelInputs
        >>> from vitrail.capture.structure import read_structure
        >>> from vitrail.testing import tiny_vit
        >>> model, images = tiny_vit(), torch.randn(1, 3, 32, 32)
        >>> find_tokens_module(model, read_structure(model, ModelInputs((images,))), images)
        ('norm', 32)
    """
    modules_found: list[tuple[str, int]] = []
    axis = 0 if structure.tokens_first else 1

    def hook(name: str) -> object:
        def keep(_: nn.Module, __: object, output: object) -> None:
            if isinstance(output, Tensor) and output.dim() == 3 and output.shape[axis] == structure.tokens:
                modules_found.append((name, int(output.shape[-1])))

        return keep

    modules = [(name, module) for name, module in model.named_modules() if name]
    handles = [module.register_forward_hook(hook(name)) for name, module in modules]
    try:
        with torch.no_grad():
            model(images[:1])
    finally:
        for handle in handles:
            handle.remove()
    if not modules_found:
        raise NotApplicableError(
            f"no explainer can be trained for {structure.model}: none of its submodules returns its "
            f"{structure.tokens} tokens as one tensor"
        )
    return modules_found[-1]


def normalise_values(values: Tensor, total: Tensor) -> Tensor:
    """Additive efficient normalisation: spread what is missing from the total equally over the patches.

    Args:
        values: Shape (b, S, classes).
        total: What the values must sum to, v(all) − v(none), shape (b, classes).

    Example:
        >>> normalise_values(torch.tensor([[[1.0], [3.0]]]), torch.tensor([[2.0]])).flatten()
        tensor([0., 2.])
    """
    return values + ((total - values.sum(1)) / values.shape[1]).unsqueeze(1)


def shapley_loss(values: Tensor, coalitions: Tensor, scores: Tensor, empty: Tensor) -> Tensor:
    """Shapley least squares: how far sums of values are from the scores of coalitions drawn from the Shapley kernel.

    Args:
        values: Normalised values, shape (b, S, classes).
        coalitions: Zeros and ones, shape (b, count, S).
        scores: v of the coalitions, shape (b, count, classes).
        empty: v(none), shape (classes,).

    Returns:
        The squared difference, summed over the classes and averaged over images and coalitions.
    """
    return (scores - empty - coalitions @ values).square().sum(-1).mean()


def explainer_loss(
    partial: PartialImages,
    surrogate: nn.Module,
    explainer: ShapleyExplainer,
    images: Tensor,
    empty: Tensor,
    pairs: int,
    generator: torch.Generator,
) -> Tensor:
    """The loss of the explainer on pairs of random coalitions and their complements."""
    kept: list[Tensor] = []
    for size in kernel_sizes(partial.players, pairs, generator):
        kept.extend(split_patches(len(images), partial.players, size, generator))
    scores = torch.stack([partial.probabilities(surrogate, images, keep) for keep in kept], 1)
    total = partial.probabilities(surrogate, images) - empty
    values = normalise_values(explainer(images).float(), total)
    coalitions = torch.stack([kept_mask(keep, partial.players).to(scores) for keep in kept], 1)
    return shapley_loss(values, coalitions, scores, empty)
