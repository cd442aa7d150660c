"""Files of results by page and section, and numbers that no file has; read by `test_numbers.py`."""

from __future__ import annotations

STUDIES, BENCHMARKS, TRAINING = "studies/results", "benchmarks/results", "training/results"
PUBLISHED = "src/vitrail/bench/papers/numbers.csv"
SPEED = (f"{BENCHMARKS}/speed-h200.json", f"{BENCHMARKS}/relevance-h200.json")
GRIDS = f"{STUDIES}/grid_pointing/*.json"
THOUSAND = "results/imagenet1000.csv"

#: Files of a page's sections that name none themselves, nor does a section above them.
FILES: dict[str, tuple[str, ...]] = {
    "README.md#results": (THOUSAND, GRIDS, f"{STUDIES}/pairs-scenes.json"),
    "README.md#speed": (
        *SPEED, f"{BENCHMARKS}/latency-h200.json", f"{BENCHMARKS}/half-h200.json",
        f"{BENCHMARKS}/dataset-h200.json", f"{BENCHMARKS}/precision-h200.json",
    ),
    "docs/index.md": (f"{STUDIES}/grid_pointing/cat.json",),
    "docs/methods/leadlight.md#the-default-on-second-halves": (
        GRIDS, f"{STUDIES}/leadlight_thorough/*.json", f"{STUDIES}/leadlight_both/*.json",
        f"{STUDIES}/pairs-scenes.json", f"{STUDIES}/trust.json",
    ),
    "docs/methods/leadlight.md#card": (GRIDS,),
    "docs/methods/leadlight.md#corners": (GRIDS,),
    "docs/methods/leadlight.md#iia-and-dix-as-sources": (f"{STUDIES}/leadlight_thorough/*.json",),
    "docs/methods/gradtoken.md#measured-behaviour": (f"{STUDIES}/pairs-*.json",),
    "docs/methods/shapley.md#measured-behaviour": (f"{STUDIES}/shapley.json",),
    "docs/methods/vit_cx.md": (f"{STUDIES}/vitcx-combinations-h200.json",),
    "docs/methods/vit_shapley.md": (f"{STUDIES}/vit_shapley-*.json",),
    "docs/methods/vit_shapley.md#photographs": (
        f"{STUDIES}/vit_shapley-vit-t.json", f"{STUDIES}/vit_shapley-dinov2-s.json",
    ),
    "docs/papers/gradtoken.md": (
        PUBLISHED, f"{STUDIES}/gradtoken-readings.json", f"{STUDIES}/ablations-pets.json",
    ),
    "docs/papers/gradtoken.md#figure-6": (f"{STUDIES}/movies-base.json", f"{STUDIES}/movies-base-second.json"),
    "docs/papers/vit_cx.md": (PUBLISHED, f"{STUDIES}/paper-tables.json"),
    "docs/papers/vtranm.md": (PUBLISHED, f"{STUDIES}/paper-tables.json", THOUSAND, "results/three_models_single.csv"),
    "docs/cards/cifar10.md": (f"{TRAINING}/cifar10-manifest.json",),
    "docs/cards/cifar10-distilled.md": (f"{TRAINING}/cifar10-distilled-manifest.json",),
    "docs/cards/lm-recall.md": (f"{TRAINING}/lm-recall-manifest.json",),
    "docs/cards/movements-tones.md": (f"{TRAINING}/scenes-video-manifest.json", f"{TRAINING}/tones-manifest.json"),
    "docs/cards/scenes.md": (f"{STUDIES}/pairs-*.json", f"{TRAINING}/scenes-manifest.json"),
    "docs/cards/scenes-tasks.md": (f"{TRAINING}/scenes-[cds]*-manifest.json",),
    "docs/cards/scenes-vlm.md": (f"{TRAINING}/scenes-vlm-manifest.json",),
    "docs/audit.md#does-it-find-a-planted-shortcut": (f"{STUDIES}/audit-shortcut.json",),
    "docs/audit.md#maps-as-data": (f"{BENCHMARKS}/map_store-cpu.json",),
    "docs/bench.md#engines": (f"{STUDIES}/cluster-simulation.json", f"{BENCHMARKS}/source_rates-*.json"),
    "docs/scores/funnybirds.md": (f"{STUDIES}/funnybirds*/funnybirds.json",),
    "docs/scores/grid_pointing.md": (GRIDS,),
    "docs/scores/overdetermination.md": (f"{STUDIES}/overdetermination.json", PUBLISHED),
    "docs/scores/pointing.md#several-boxes-in-an-image": ("results/wsol.csv", "results/wsol-manifest.json", PUBLISHED),
    "docs/scores/wsol.md#measured": ("results/wsol.csv", "results/wsol-manifest.json"),
    "docs/compare.md": (f"{STUDIES}/compare.json",),
    "docs/language-model-truth.md": ("results/recall.csv", f"{TRAINING}/lm-recall-manifest.json"),
    "docs/language-model-truth.md#real-models": (f"{STUDIES}/needles.csv",),
    "docs/language-model-truth.md#movie-reviews": (f"{STUDIES}/movies-decoder.json",),
    "docs/models.md#the-self-check": (f"{BENCHMARKS}/selfcheck-*.json",),
    "docs/models.md#precision": (f"{BENCHMARKS}/precision-half-deit-h200.json",),
    "docs/models.md#large-inputs": (f"{BENCHMARKS}/large-*.json",),
    "docs/results.md": (THOUSAND,),
    "docs/text.md#results-on-movie-reviews": (f"{STUDIES}/movies-base.json",),
    "docs/text.md#a-second-training": (f"{STUDIES}/movies-base-second.json", f"{STUDIES}/movies-base.json"),
    "docs/text.md#a-small-model": (f"{STUDIES}/movies.json", f"{TRAINING}/movies-manifest.json"),
    "docs/text.md#the-same-with-a-prompted-language-model": (f"{STUDIES}/movies-decoder.json",),
    "docs/three-models.md": ("results/three_models_single.csv", "results/three_models.csv"),
    "docs/trust.md#how-far-to-trust-the-check": (f"{STUDIES}/trust.json",),
    "docs/web.md#scheduling": (f"{BENCHMARKS}/serve-flood-cpu.json",),
    "docs/worlds.md": ("results/worlds.csv",),
    "docs/worlds.md#checks": ("results/worlds-checks.json",),
    "studies/README.md#class-discrimination": (f"{STUDIES}/pairs-scenes.json",),
    "studies/README.md#shapley-values-by-forward-passes": (f"{STUDIES}/shapley.csv",),
    "studies/README.md#vit-shapley": (f"{STUDIES}/vit_shapley-*.json",),
    "studies/README.md#ablations-of-vtranm-and-gradtoken": (f"{STUDIES}/ablations-pets.json",),
    "studies/README.md#readings-of-gradtoken-and-vit-cx": (f"{STUDIES}/gradtoken-readings.json",),
    "studies/README.md#localisation": ("results/wsol.csv",),
    "studies/README.md#verdicts-on-single-maps": (f"{STUDIES}/trust.json",),
    "studies/README.md#cards-of-the-methods": (f"{STUDIES}/cards.json",),
    "studies/README.md#texts": (
        f"{STUDIES}/movies.json", f"{STUDIES}/movies-base.json", f"{STUDIES}/movies-base-second.json",
    ),
    "benchmarks/README.md": (f"{BENCHMARKS}/*.json",),
    "benchmarks/README.md#time-of-one-image": (f"{BENCHMARKS}/replay-overhead-h200.json",),
    "benchmarks/README.md#batches": (f"{BENCHMARKS}/half-h200.json",),
    "benchmarks/README.md#large-inputs": (f"{BENCHMARKS}/large-*.json", f"{BENCHMARKS}/row-tiles-h200.json"),
}  # fmt: skip
#: The same for every section of the pages of methods: numbers of papers and costs.
METHOD_FILES = (PUBLISHED, *SPEED, f"{BENCHMARKS}/precision-h200.json")
#: Pages that a script writes as a whole from files.
GENERATED = {"docs/leaderboard.md"}
#: Settings, versions, numbers of an example or of a paper, and numbers computed from values of a file.
GIVEN = {
    "README.md": "0.75 1.2 1.6 2.0 3.11 3.13 50000", "docs/api.md": "0.3 1.0 3.11 3.13", "docs/audit.md": "0.1",
    "docs/bench.md": "20 102 286", "docs/cards/cifar10.md": "0.25", "docs/cards/cifar10-distilled.md": "0.26",
    "docs/cards/lm-recall.md": "4000", "docs/cards/movements-tones.md": "16 62.5", "docs/cards/scenes-tasks.md": "11",
    "docs/cards/scenes-vlm.md": "0.02 0.5 8000", "docs/coming-from.md": "0.7 0.9 1.1 2.1 2.23",
    "docs/index.md": "60 69 82", "docs/integrations.md": "0.9",
    "docs/methods/grad_eclip.md": "22.5", "docs/methods/smoothgrad.md": "0.3859",
    "docs/methods/vit_shapley.md": "512 850 4096", "docs/models.md": "0.5 1.1 1.4",
    "docs/papers/gradtoken.md": "16 16.82 16.92 20", "docs/papers/vit_cx.md": "0.036 0.05 20.95 2048 50000",
    "docs/quickstart.md": "0.15 0.9 1.1", "docs/results.md": "0.64 0.65 224 236 703",
    "docs/scores/agreement.md": "0.1 5.3 10.8",
    "docs/scores/faithfulness.md": "0.0001 0.0015 0.01",
    "docs/scores/funnybirds.md": "5 53.2 54.4 54.6 60.2 73.5 80.6 99.8",
    "docs/scores/overdetermination.md": "0.036 20.95", "docs/scores/sanity.md": "0.02 0.2 1.5",
    "docs/scores/segmentation.md": "0.1 0.9", "docs/scores/statistics.md": "0.22 0.7",
    "docs/scores/wsol.md": "0.05 0.3 0.5 0.7 0.95", "docs/text.md": "165 189 190 199 512",
    "docs/trust.md": "0.02 0.05 0.2 0.5 0.95 20", "docs/web.md": "0.3 57.3 9999",
    "docs/worlds.md": "400",
    "benchmarks/README.md": (
        "0.64 0.75 0.88 1.26 1.3 1.39 2.0 2.4 2.5 6.61 8.0 9.0 10.3 20 20.1 23 25 29.1 34 43.3 64 80 85 90 94 95 "
        "197 512 2048 4096 8714 9850 11624 16384 50000"
    ),
    "studies/README.md": "0.001 34 42.7 85 92.7 95 101 109 850 1024 4096",
}  # fmt: skip
#: Measured, and kept in no file: by a test, while a model was trained, or once by hand. Empty, and not to be added to.
WITHOUT_FILE: dict[str, str] = {}
#: Numbers of methods that their sentence names by a group or not at all: any value of the section's files counts.
UNNAMED = {
    "README.md": "1.11", "docs/compare.md": "58 72", "docs/models.md": "44.3",
    "benchmarks/README.md": "0.41 0.49 0.72 1.07 1.30 2.87 8.8",
    "studies/README.md": "6",
}  # fmt: skip
