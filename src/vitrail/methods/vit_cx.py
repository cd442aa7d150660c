"""ViT-CX: clustered feature maps as masks, weighted by their debiased causal impact, corrected for coverage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.trace import Needs
from vitrail.errors import OptionError
from vitrail.fast import fast_paths_disabled
from vitrail.methods._blocks import blocks_needed, chosen_block
from vitrail.methods._masks import FeatureMasks, agglomerate, joined, mean_similarity, similarity, stretched
from vitrail.methods.cost import Cost, ModelSize, number
from vitrail.methods.feature_maps import feature_needs
from vitrail.methods.probe import Probe
from vitrail.methods.registry import Applies, check_whole_numbers, choose, register
from vitrail.methods.rise import RandomMasks

Masks = FeatureMasks | RandomMasks

#: Cells and share of shown cells of the random masks.
CELLS, KEEP = 8, 0.5
#: Share of the feature maps left after clustering: the paper finds 63 to 95 clusters among 768 maps.
CLUSTERS = 0.1
#: Kinds of models whose maps get finer clusters by default, as the paper does for Swin.
FINER = ("windowed", "pyramid")
#: Feature maps by name, in the terms of `Probe.features`.
FEATURES = {"norm1": "Y", "attention": "branch", "skip": "sum", "block": "out"}
CLUSTER_RULES = ("sum", "mean")
NOISES = ("per_mask", "shared")
LINKAGES = ("complete", "average", "single")
#: Options that each of the two modes sets; they also differ in a factor of the map.
MODES = {
    "released": {"features": "norm1", "cluster": "sum", "noise": "per_mask"},
    "paper": {"features": "attention", "cluster": "mean", "noise": "shared"},
}
VARIANTS: dict[str, dict[str, object]] = {
    "released": {"mode": "released"},
    "paper": {"mode": "paper"},
    "1": {"masks": "all"},
    "2": {"masks": "random"},
    "3": {"debias": False},
    "4": {"coverage": False},
    "5": {"debias": False, "coverage": False},
}


def _needs(mode: str, features: str | None, masks: str, block: int | None, **_: object) -> Needs:
    if masks == "random" or mode not in MODES:
        return {}
    kind = FEATURES.get(features or MODES[mode]["features"])
    return {} if kind is None else feature_needs(kind, blocks_needed(block))


def _cost(options: Mapping[str, Any], size: ModelSize, _: int) -> Cost:
    masks = number(options, "random_masks") if options.get("masks") == "random" else size.width
    each = _evaluations_per_mask(options)
    evaluated = CLUSTERS * masks if options.get("masks") == "clustered" else float(masks)
    return Cost(1 + masks * each, 2 + evaluated * each)


def _evaluations_per_mask(options: Mapping[str, Any]) -> int:
    twice = 2 if options.get("antithetic") else 1
    return 2 * number(options, "draws") * twice if options.get("debias") else 1


@register(
    "vit_cx",
    "ViT-CX",
    "perturbation",
    cite="xie2023vitcx",
    takes="probe",
    needs=_needs,
    score="prob",
    variants=VARIANTS,
    applies=Applies(reads="features"),
    cost=_cost,
    evaluations_per_mask=_evaluations_per_mask,
)
def vit_cx(
    probe: Probe,
    *,
    mode: str = "released",
    features: str | None = None,
    block: int | None = None,
    cluster: str | None = None,
    noise: str | None = None,
    linkage: str = "complete",
    delta: float | None = None,
    sigma: float = 0.1,
    masks: str = "clustered",
    debias: bool = True,
    coverage: bool = True,
    draws: int = 1,
    antithetic: bool = False,
    random_masks: int = 5000,
    seed: int = 0,
) -> Tensor:
    """Clusters of feature maps as masks; each masked image is scored with noise on the hidden pixels.

    Args:
        probe: The model and its inputs.
        mode: "released": as the authors' program. "paper": as the paper's text. They differ in the three options that
            follow, and by a factor.
        features: Feature maps of the last block: "norm1", what its attention reads (released); "attention", what its
            attention adds, before LayerScale (paper); "skip", the stream after that sum; "block", its output. None: as
            ``mode`` sets; the same holds for the options below.
        block: Feature maps of another block, by index from the start or negative from the end. None: the last, or the
            last before the grid shrinks for the last time.
        cluster: A cluster's mask: "sum" of its members, brought to [0, 1] (released), or their "mean" (paper).
        noise: "per_mask", a new one for every mask (released), or "shared" by all masks of an image (paper).
        linkage: The distance of two clusters: "complete", "average" or "single" linkage.
        delta: Cosine distance from which on clusters are not joined; None for 0.1, or 0.05 where the grid shrinks.
        sigma: Standard deviation of the noise, in the model's normalised space.
        masks: "clustered" feature maps, "all" of them, or "random" ones as in RISE.
        debias: Mask with noise and subtract the effect of the noise on the whole image; otherwise the plain score.
        coverage: Divide by how much the masks together show of a pixel.
        draws: How many noises to average over.
        antithetic: Evaluate each noise and its negative, which cancels effects linear in it.
        random_masks: How many random masks.
        seed: Seed of the noise, from which every image starts anew, and of random masks.

    Returns:
        Relevance of pixels, shape (b, K, height, width).
    """
    choose("mode", mode, ("released", "paper"))
    bundle = MODES[mode]
    features, cluster, noise = features or bundle["features"], cluster or bundle["cluster"], noise or bundle["noise"]
    choose("features", features, FEATURES)
    choose("cluster", cluster, CLUSTER_RULES)
    choose("noise", noise, NOISES)
    choose("linkage", linkage, LINKAGES)
    choose("masks", masks, ("clustered", "all", "random"))
    check_whole_numbers(1, draws=draws, random_masks=random_masks)
    check_whole_numbers(0, seed=seed)
    if sigma < 0:
        raise OptionError(f"sigma={sigma} is a standard deviation: it cannot be negative")
    if delta is not None and delta <= 0:
        raise OptionError(f"delta={delta} would join nothing: it must be positive; masks='all' leaves maps apart")
    if not debias and (draws > 1 or antithetic):
        raise OptionError("debias=False takes no noise: draws and antithetic have nothing to average")
    if delta is None:
        delta = 0.05 if probe.structure.kind in FINER else 0.1
    chosen: Iterator[Masks]
    if masks == "random":
        drawn = RandomMasks.draw(random_masks, CELLS, KEEP, seed, probe.images)
        chosen = iter([drawn] * probe.batch)
    else:
        single = _single_masks(probe, FEATURES[features], chosen_block(block, len(probe.structure.layers)))
        chosen = _clustered(probe, single, cluster, linkage, delta) if masks == "clustered" else _all(probe, single)
    impact: Callable[[Probe, int, Masks], Tensor] = _plain
    if debias:
        impact = partial(_debiased, shared=noise == "shared", sigma=sigma, draws=draws, twice=antithetic, seed=seed)
    return torch.stack([_map(probe, i, m, impact(probe, i, m), mode, coverage) for i, m in enumerate(chosen)])


def _single_masks(probe: Probe, kind: str, block: int | None) -> list[FeatureMasks]:
    """For each image, one mask for each feature map."""
    size = (int(probe.images.shape[2]), int(probe.images.shape[3]))
    return [stretched(grids, size, probe.pieces) for grids in probe.features(kind, stage=-2, block=block)]


def _all(probe: Probe, single: list[FeatureMasks]) -> Iterator[FeatureMasks]:
    """The masks of each image, unchanged."""
    for masks in single:
        _note_clusters(probe, masks, masks, torch.ones(len(masks), dtype=torch.long))
        yield masks


def _clustered(
    probe: Probe, single: list[FeatureMasks], cluster: str, linkage: str, delta: float
) -> Iterator[FeatureMasks]:
    """One mask for each cluster, for each image."""
    # All images are clustered before the first mask is scored: clustering synchronises with the device many times, and
    # would otherwise wait for the scores of the previous image each time.
    labelled = [agglomerate(1 - similarity(masks), delta, linkage) for masks in single]
    for masks, labels in zip(single, labelled, strict=True):
        clusters = joined(masks, labels, cluster == "mean", probe.pieces) if len(masks) else masks
        _note_clusters(probe, masks, clusters, labels.bincount())
        yield clusters


def _plain(probe: Probe, i: int, masks: Masks) -> Tensor:
    """Scores of the masked images, shape (1, N, K)."""
    image = probe.images[i]
    scores = [probe.scores((image * masks[p][:, None]).to(image.dtype), i) for p in probe.pieces(len(masks))]
    return torch.cat([image.new_zeros(0, probe.count), *scores])[None]


def _debiased(
    probe: Probe, i: int, masks: Masks, *, shared: bool, sigma: float, draws: int, twice: bool, seed: int
) -> Tensor:
    """Score of each masked image with noise on the hidden pixels, minus the change that the noise causes alone.

    Returns:
        Impact of masks, shape (draws, N, K).
    """
    image = probe.images[i]
    before = probe.unchanged()[i]
    # On a GPU the noise is drawn there: drawing it on the CPU takes longer than the model.
    home = image.device if image.device.type == "cuda" else torch.device("cpu")
    generator = torch.Generator(home).manual_seed(seed)

    def noise(count: int) -> Tensor:
        # Drawn mask by mask, so that the noise does not depend on the batch size.
        drawn = [torch.randn(image.shape, generator=generator, device=home, dtype=torch.float32) for _ in range(count)]
        return (torch.stack(drawn) * sigma).to(image)

    def difference(M: Tensor, Z: Tensor) -> Tensor:
        hidden = (1 - M) * Z
        pair = ((image * M + hidden).to(image.dtype), (image + hidden).to(image.dtype))
        if 2 * len(M) <= probe.max_batch and not fast_paths_disabled():  # one forward pass for both
            behind, before_mask = probe.scores(torch.cat(pair), i).chunk(2)
        else:
            behind, before_mask = (probe.scores(images, i) for images in pair)
        return behind - before_mask

    impacts = []
    for _ in range(draws):
        Z = noise(1)[0] if shared else None
        scores = [image.new_zeros(0, probe.count)]
        for piece in probe.pieces(len(masks)):
            M = masks[piece][:, None]
            each = noise(len(M)) if Z is None else Z
            change = (difference(M, each) + difference(M, -each)) / 2 if twice else difference(M, each)
            scores.append(change + before)
        impacts.append(torch.cat(scores))
    return torch.stack(impacts)


def _map(probe: Probe, i: int, masks: Masks, impact: Tensor, mode: str, coverage: bool) -> Tensor:
    """Sum of masks weighted by their impact, shape (draws, N, K), divided by coverage; shape (K, height, width)."""
    draws, count, targets = impact.shape
    impact = impact.to(torch.promote_types(probe.images.dtype, torch.float32))
    weights = impact.mT.flatten(0, 1)
    total = weights.new_zeros(len(weights), masks.size[0] * masks.size[1])
    covered = total.new_zeros(masks.size[0] * masks.size[1])
    for piece in probe.pieces(count):
        M = masks[piece].flatten(1).to(total)
        total.addmm_(weights[:, piece], M)
        covered += M.sum(0)
    if coverage and count:
        # A pixel that all masks hide, up to rounding, has no relevance.
        seen = covered > 64 * torch.finfo(covered.dtype).eps * count
        scale = 1 / count if mode == "released" else count
        total = torch.where(seen, scale * total / torch.where(seen, covered, 1.0), 0.0)
    maps = total.view(draws, targets, *masks.size)
    if probe.notes is not None:
        probe.note("count", count)
        probe.note("impact", impact.mean(0).T)
        probe.note("impact_plain", _plain(probe, i, masks)[0].T)
        probe.note("coverage", covered.view(masks.size))
        if draws > 1:
            probe.note("stability", torch.stack([_agreement(maps[:, k]) for k in range(targets)]))
    return maps.mean(0)


def _agreement(maps: Tensor) -> Tensor:
    """Mean correlation between every two of some maps, shape (draws, height, width)."""
    between = torch.corrcoef(maps.flatten(1))
    first, second = torch.triu_indices(len(maps), len(maps), 1, device=maps.device)
    return between[first, second].mean()


def _note_clusters(probe: Probe, single: FeatureMasks, clusters: FeatureMasks, sizes: Tensor) -> None:
    """Record the masks, the number of maps in each, and the similarity of maps and of masks."""
    if probe.notes is None:
        return
    probe.note("masks", torch.cat([clusters[p].cpu() for p in probe.pieces(len(clusters))]) if len(clusters) else None)
    probe.note("cluster_sizes", sizes)
    pairs = {"before": mean_similarity(single), "after": mean_similarity(clusters)}
    probe.note("similarity", {when: {"mean": mean, "max": highest} for when, (mean, highest) in pairs.items()})
