"""Scores of maps: how faithful they are, how well they localise objects, and how far methods agree.

A score is a function from a batch of maps to one value per image, by name. An accumulator collects the values::

    scores = PointingScores()
    scores.add(ids, score_pointing(maps, masks))
    scores.summary()

Accumulators of several workers are joined with ``+``, in any order and with the same result. Perturbation tests also
run the model: `Evaluator` takes images and maps and returns `PerturbationRecords`.
"""

from vitrail.capture.removal import TokenDropper
from vitrail.scores.agreement import AgreementScores, kendall, score_agreement, spearman, top_overlap
from vitrail.scores.comparison import ComparedMethod, MethodValues, PairedTest, RankedMethod, compare, rank_methods
from vitrail.scores.complexity import ComplexityScores, effective_complexity, entropy, gini, score_complexity
from vitrail.scores.continuation import continuation_faithfulness, continuation_log_probability
from vitrail.scores.curves import AREAS, AreaRule, aopc, deletion_area, find_area, insertion_area, lodds, srg
from vitrail.scores.disconnected import DisconnectedGrid
from vitrail.scores.evaluator import Evaluator
from vitrail.scores.fills import FILLS, Fill, Normalisation, find_fill
from vitrail.scores.funnybirds import (
    BirdResponses,
    PartImportance,
    measure_parts,
    score_bird_maps,
    score_bird_model,
    summarise_birds,
)
from vitrail.scores.grid_pointing import (
    GridPointingScores,
    aggregate_attributions,
    cell_masks,
    compose_grids,
    score_grid_pointing,
)
from vitrail.scores.imputation import impute
from vitrail.scores.infidelity import PatchEffects, patch_effects, score_infidelity
from vitrail.scores.monotonicity import score_monotonicity
from vitrail.scores.overdetermination import OverdeterminationScores, score_overdetermination
from vitrail.scores.perturbation import CurveKey, ForwardCounts, PerturbationRecords, RecordedCurve
from vitrail.scores.pointing import (
    BoxPointingScores,
    PointingScores,
    box_masks,
    energy_pointing_game,
    pointing_game,
    relevance_rank_accuracy,
    score_box_pointing,
    score_pointing,
)
from vitrail.scores.presets import PRESETS, QUANTITIES, Curve, LevelGrid, Preset, find_presets
from vitrail.scores.ranks import RankedMaps, kept_patches, patch_means, rank
from vitrail.scores.rationale import (
    TOP_WORDS,
    RationaleScores,
    class_probability,
    comprehensiveness_sufficiency,
    micro_f1,
    rank_words,
    span_mask,
    token_f1,
    word_average_precision,
)
from vitrail.scores.registry import (
    REGISTERED_SCORES,
    RegisteredScore,
    ScoreInputs,
    find_score,
    register_score,
)
from vitrail.scores.road import ROAD_LEVELS, score_road
from vitrail.scores.saco import saco_coefficient, score_saco
from vitrail.scores.sanity import (
    RandomisationStep,
    map_similarity,
    parameter_randomisation,
    pearson,
    randomisation_steps,
    randomised,
    ssim,
)
from vitrail.scores.segmentation import (
    THRESHOLDS,
    MultiClassSegmentationScores,
    RegionCounts,
    SegmentationScores,
    auroc,
    average_precision,
    count_confusions,
    fold_of,
    label_pixels,
    score_segmentation,
)
from vitrail.scores.selectivity import SelectivityScores, score_selectivity
from vitrail.scores.sensitivity import score_sensitivity
from vitrail.scores.statistics import (
    Interval,
    SampleScores,
    difference,
    holm,
    interval,
    mean_ratio,
    p_value,
)
from vitrail.scores.wsol import BOX_THRESHOLDS, WsolScores, box_iou, map_boxes, score_wsol

__all__ = [
    "AREAS", "BOX_THRESHOLDS", "FILLS", "PRESETS", "QUANTITIES", "REGISTERED_SCORES", "ROAD_LEVELS", "THRESHOLDS",
    "TOP_WORDS", "AgreementScores", "AreaRule", "BirdResponses", "BoxPointingScores", "ComparedMethod",
    "ComplexityScores", "Curve", "CurveKey", "DisconnectedGrid", "Evaluator", "Fill", "ForwardCounts",
    "GridPointingScores", "Interval", "LevelGrid", "MethodValues", "MultiClassSegmentationScores", "Normalisation",
    "OverdeterminationScores", "PairedTest", "PartImportance", "PatchEffects", "PerturbationRecords", "PointingScores",
    "Preset", "RandomisationStep", "RankedMaps", "RankedMethod", "RationaleScores", "RecordedCurve", "RegionCounts",
    "RegisteredScore", "SampleScores", "ScoreInputs", "SegmentationScores", "SelectivityScores", "TokenDropper",
    "WsolScores", "aggregate_attributions", "aopc", "auroc", "average_precision", "box_iou", "box_masks", "cell_masks",
    "class_probability", "compare", "compose_grids", "comprehensiveness_sufficiency", "continuation_faithfulness",
    "continuation_log_probability", "count_confusions", "deletion_area", "difference", "effective_complexity",
    "energy_pointing_game", "entropy", "find_area", "find_fill", "find_presets", "find_score", "fold_of", "gini",
    "holm", "impute", "insertion_area", "interval", "kendall", "kept_patches", "label_pixels", "lodds", "map_boxes",
    "map_similarity", "mean_ratio", "measure_parts", "micro_f1", "p_value", "parameter_randomisation", "patch_effects",
    "patch_means", "pearson", "pointing_game", "randomisation_steps", "randomised", "rank", "rank_methods",
    "rank_words", "register_score", "relevance_rank_accuracy", "saco_coefficient", "score_agreement", "score_bird_maps",
    "score_bird_model", "score_box_pointing", "score_complexity", "score_grid_pointing", "score_infidelity",
    "score_monotonicity", "score_overdetermination", "score_pointing", "score_road", "score_saco", "score_segmentation",
    "score_selectivity", "score_sensitivity", "score_wsol", "span_mask", "spearman", "srg", "ssim", "summarise_birds",
    "token_f1", "top_overlap", "word_average_precision",
]  # fmt: skip
