#!/usr/bin/env bash
# Every figure that wants a GPU, step by step: benchmarks/gpu.sh OUT STEP…
#
#   scenes     train the embedded models on scenes                     OUT/scenes
#   speed      the first six methods, the catalogue, a paper's table   OUT/*-gpu.json
#   maps       pairs of scenes, and precision; wants ASSETS            OUT/pairs.json, OUT/precision.json
#   sweep      one model of every family of timm                       OUT/sweep-timm.csv
#   leadlight  forms of leadlight; wants ASSETS                        OUT/leadlight.csv
#   imagenet   the plans imagenet1000 and _many; wants ASSETS          OUT/runs
#   movies     train a text classifier, measure on it; wants ASSETS    OUT/movies
#
# ASSETS is a folder with weights/, imagenet/, pets/ and movies/, as `benchmarks/leadlight.py --help` and docs/data.md say.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$1
shift
export PYTHONPATH=src PYTHONUNBUFFERED=1
assets=${ASSETS:-../shared/assets}
python=${PYTHON:-python3}
mkdir -p "$out"
for step in "$@"; do
  case $step in
    scenes)
      $python -m training.scenes --which cls --minutes 8 --out "$out/scenes"
      $python -m training.scenes --which gap --hidden 0.4 --blended 0.4 --epochs 20 --minutes 4 --out "$out/scenes"
      ;;
    speed)
      $python benchmarks/catalogue.py --device cuda --out "$out/catalogue-gpu.json"
      $python benchmarks/speed.py --device cuda --batches 8 64 --dtypes float32 bfloat16 --repeats 7 --out "$out/speed-gpu.json"
      $python benchmarks/table.py --device cuda --out "$out/table-gpu.json"
      ;;
    maps)
      $python benchmarks/pairs.py --device cuda --batch 512 --out "$out/pairs.json"
      $python benchmarks/precision.py --weights "$assets/weights/vit_tiny_patch16_224.safetensors" --images "$assets/imagenet" \
        --device cuda --out "$out/precision.json"
      ;;
    sweep) $python benchmarks/sweep.py --device cuda --millions 400 --out "$out/sweep-timm.csv" ;;
    leadlight) $python benchmarks/leadlight.py --assets "$assets" --device cuda --out "$out/leadlight.csv" ;;
    imagenet)
      for plan in imagenet1000 imagenet1000_many; do
        $python -m vitrail bench $plan --data "imagenet=$assets/imagenet" --data "pets=$assets/pets" \
          --weights "vit-t16=$assets/weights/vit_tiny_patch16_224.safetensors" --device cuda --out "$out/runs"
      done
      ;;
    movies)
      $python -m training.movies --data "$assets/movies/movies.tar.gz" --minutes 4 --out "$out/movies"
      $python benchmarks/movies.py --model "$out/movies/movies" --data "$assets/movies/movies.tar.gz" --device cuda --out "$out/movies.json"
      ;;
    *) echo "no step $step: one of scenes, speed, maps, sweep, leadlight, imagenet, movies" >&2; exit 2 ;;
  esac
done
