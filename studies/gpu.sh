#!/usr/bin/env bash
# Run benchmarks and studies that need a GPU: studies/gpu.sh OUT STEP…
#
#   scenes     train the embedded models on scenes                        OUT/scenes
#   speed      six methods, all methods, a paper's table                  OUT/CASE-DEVICE.json
#   maps       class discrimination, and precision (needs ASSETS)         OUT/pairs.json, OUT/precision-DEVICE.json
#   sweep      one model of every timm family                             OUT/sweep-timm.csv
#   shapley    SRG of Shapley values by forward passes (needs ASSETS)     OUT/shapley.csv
#   cards      cards of the methods (needs ASSETS)                        OUT/cards.json
#   imagenet   methods of one pass on 1,000 ImageNet images (needs ASSETS)  OUT/imagenet/single
#   imagenet_many  METHODS of many passes on the same images (needs ASSETS)   OUT/imagenet/METHOD
#   appendices appendices B and F of ViT-CX (needs ASSETS)                OUT/vitcx_sanity, OUT/vitcx_delta_sigma
#   funnybirds train a classifier of birds, METHODS on it (needs ASSETS)  OUT/funnybirds
#   grid       protocols of other papers on second halves (needs ASSETS)  OUT/grid_pointing
#   readings   both readings of GradToken, ViT-CX in six combinations (needs ASSETS)  OUT/*-gpu.json
#   vit_shapley  train the explainers of ViT Shapley (needs ASSETS)       OUT/vit_shapley
#   trust      verdicts on single maps, comparison of methods (needs ASSETS)  OUT/trust.json, OUT/compare.json
#   overdetermination  share of images of which almost any part suffices (needs ASSETS)  OUT/overdetermination.json
#   worlds     prompts, boxes, regions, movements, tones, and checks of their maps  OUT/worlds
#   recall     words that the next word comes from                        OUT/recall, OUT/recall_many
#   papers     the papers' tables and ablations with small models (needs ASSETS)  OUT/PLAN
#   movies     train a text classifier and evaluate on it (needs ASSETS)  OUT/movies
#
# METHODS are names of methods, those of the plan or script if not set; MINUTES limits a step. Steps that are given to
# several calls of this script run side by side.
# ASSETS is a folder with weights/, imagenet/, pets/ and movies/; see docs/data.md.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$1
shift
export PYTHONPATH=src PYTHONUNBUFFERED=1
assets=${ASSETS:-../shared/assets}
python=${PYTHON:-python3}
tiny=$assets/weights/vit_tiny_patch16_224.safetensors
deit=$assets/weights/deit_tiny_patch16_224.safetensors
mkdir -p "$out"

plan() { # PLAN FOLDER OPTION…
  local name=$1 folder=$2
  shift 2
  $python studies/run_plan.py "$name" --device "${DEVICE:-cuda}" --minutes "${MINUTES:-8}" ${LIMIT:+--limit $LIMIT} \
    --out "$out/$folder" "$@"
}

for step in "$@"; do
  case $step in
    scenes) $python -m training.scenes --which cls --minutes 8 --out "$out/scenes" ;;
    speed) $python benchmarks/run.py catalogue speed table --device cuda --out "$out" ;;
    maps)
      $python studies/pairs.py --device cuda --batch 512 --out "$out/pairs.json"
      $python benchmarks/run.py precision --assets "$assets" --device cuda --out "$out"
      ;;
    sweep) $python studies/sweep_families.py --library timm --seconds 600 --device cuda --millions 400 --out "$out/sweep-timm.csv" ;;
    readings)
      $python studies/gradtoken_readings.py --assets "$assets" --count 300 --pairs 150 --batch 50 --device cuda --out "$out/gradtoken-readings.json"
      $python studies/vitcx_combinations.py --assets "$assets" --count 300 --minutes 8 --device cuda --out "$out/vitcx-combinations-gpu.json"
      ;;
    shapley) $python studies/shapley.py --assets "$assets" --device cuda --out "$out/shapley.csv" ;;
    cards) $python studies/cards.py --assets "$assets" --device cuda --out "$out/cards.json" ;;
    imagenet) plan imagenet1000 imagenet/single --by-method --data "imagenet=$assets/imagenet" --data "pets=$assets/pets" --weights "vit-t16=$tiny" ;;
    imagenet_many)
      for method in ${METHODS:?names of methods}; do
        plan imagenet1000_many "imagenet/${method//:/-}" --methods "$method" --no-controls --by-method \
          --data "imagenet=$assets/imagenet" --data "pets=$assets/pets" --weights "vit-t16=$tiny"
      done
      ;;
    appendices)
      for name in vitcx_sanity vitcx_delta_sigma; do
        plan studies/plans/$name.toml $name --data "imagenet=$assets/imagenet" --weights "vit-t=$tiny" --weights "deit-t=$deit"
      done
      ;;
    funnybirds)
      PYTHONPATH=src:. $python -m training.funnybirds --assets "$assets" --out "$out/funnybirds"
      $python studies/funnybirds.py --assets "$assets" --weights "$out/funnybirds/funnybirds.safetensors" --device cuda \
        ${METHODS:+--methods $METHODS} --out "$out/funnybirds"
      ;;
    grid) $python studies/grid_pointing.py run --assets "$assets" --device cuda --half 1 --out "$out/grid_pointing" ;;
    vit_shapley) PYTHONPATH=src:. $python studies/vit_shapley.py --assets "$assets" --device cuda --out "$out/vit_shapley" ;;
    trust)
      $python studies/trust.py --assets "$assets" --device "${DEVICE:-cuda}" --out "$out/trust.json"
      $python studies/compare.py --assets "$assets" --device "${DEVICE:-cuda}" --out "$out/compare.json"
      ;;
    overdetermination)
      $python studies/overdetermination.py --assets "$assets" --device "${DEVICE:-cuda}" --minutes "${MINUTES:-8}" \
        --out "$out/overdetermination.json"
      ;;
    worlds) $python studies/worlds.py --device "${DEVICE:-cuda}" --minutes "${MINUTES:-8}" --out "$out/worlds" ;;
    recall)
      plan lm_recall recall
      plan lm_recall_many recall_many
      ;;
    papers)
      plan studies/plans/ablations.toml ablations --data "pets=$assets/pets" --weights "vit-t=$tiny"
      for name in cifar10 cifar10-distilled; do
        plan studies/plans/$name.toml $name --data "$name=$assets/cifar10/cifar10_jpeg.tar.xz"
      done
      for name in vtranm vitcx; do
        plan studies/plans/$name.toml $name --data "imagenet=$assets/imagenet" --weights "vit-t=$tiny"
      done
      ;;
    movies)
      $python -m training.movies --data "$assets/movies/movies.tar.gz" --minutes 4 --out "$out/movies"
      $python studies/movies.py --model "$out/movies/movies" --data "$assets/movies/movies.tar.gz" --device cuda --out "$out/movies.json"
      ;;
    *) echo "unknown step $step: choose from scenes, speed, maps, sweep, shapley, cards, imagenet, imagenet_many, appendices, funnybirds, grid, readings, vit_shapley, trust, overdetermination, worlds, recall, papers, movies" >&2; exit 2 ;;
  esac
done
