"""A text encoder of BERT-base size on ERASER's movie reviews: fine-tune it, then measure the scores of Figure 6.

    python studies/movies_base.py split --encoder FOLDER --out carry/encoder
    python studies/movies_base.py run --pieces carry/encoder --data movies.tar.gz --device cuda --out RESULTS.json

The figure is GradToken's, which uses BERT-base.

``split`` writes the weights of a Hugging Face encoder in float16 as pieces of at most 30 MB, with its configuration and
tokenizer, for machines that take small files only. ``run`` joins them, fine-tunes the encoder on the training reviews
(`training.movies`, within ``--minutes``), and scores the test reviews with `studies/movies.py`, which writes the values
of each review beside the results and starts no method after ``--score-minutes``. What is done already (the joined
encoder, the classifier) is kept in ``--work`` and used again. With ``--scratch`` the encoder is trained on reviews
alone, those of ``--warm`` included.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
#: Largest size of a piece in bytes.
PIECE_BYTES = 30_000_000
#: Separates the name of a tensor from the number of its slice.
SLICE = "::"
#: The methods of Figure 6, then other methods that take a single pass, controls, and `tam`, which takes many passes.
METHODS = (
    "rollout", "raw_attention", "gradcam:bert", "lrp", "partial_lrp", "transformer_attribution:bert", "gradtoken",
    "agcam", "attnlrp", "transformer_attribution", "grad_rollout", "transformer_mm", "vtranm", "leadlight", "gradsam",
    "conservative_lrp", "attcat", "gradient_x_input", "random", "inverted", "leadlight:single", "leadlight:object",
    "attnlrp:released", "attnlrp:gamma_linear=0.05", "grad_eclip", "tam",
)  # fmt: skip


def read_state(folder: Path) -> dict[str, Tensor]:
    """Weights of a Hugging Face encoder's folder."""
    if (folder / "model.safetensors").is_file():
        return load_file(folder / "model.safetensors")
    return torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)


def split(encoder: Path, out: Path, limit: int = PIECE_BYTES) -> list[Path]:
    """Write the weights in float16 as pieces of at most ``limit`` bytes; large tensors are cut into slices of rows."""
    import transformers

    out.mkdir(parents=True, exist_ok=True)
    pieces: list[dict[str, Tensor]] = [{}]
    filled = 0
    for name, tensor in read_state(encoder).items():
        value = tensor.half().contiguous() if tensor.is_floating_point() else tensor.contiguous()
        rows = max(1, int(limit * 0.9 * max(1, value.shape[0] if value.dim() else 1) / max(1, value.nbytes)))
        slices = value.split(rows) if value.dim() and value.nbytes > limit * 0.9 else (value,)
        for number, own in enumerate(slices):
            if filled + own.nbytes > limit * 0.99:
                pieces.append({})
                filled = 0
            pieces[-1][name if len(slices) == 1 else f"{name}{SLICE}{number:03d}"] = own.clone()
            filled += own.nbytes
    paths = [out / f"piece-{number:02d}.safetensors" for number in range(len(pieces))]
    for path, piece in zip(paths, pieces, strict=True):
        save_file(piece, path)
    shutil.copy(encoder / "config.json", out / "config.json")
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
    tokenizer.model_max_length = 512  # some sentence encoders state less than their positions allow
    tokenizer.save_pretrained(out)
    return paths


def join(pieces: Path, out: Path) -> Path:
    """Write the encoder's folder from its pieces; weights in float32."""
    if (out / "model.safetensors").is_file():
        return out
    paths = sorted(pieces.glob("piece-*.safetensors"))
    if not paths:
        raise SystemExit(f"{pieces} holds no piece-NN.safetensors: make them with the command split")
    slices: dict[str, dict[int, Tensor]] = {}
    for path in paths:
        for key, value in load_file(path).items():
            name, _, number = key.partition(SLICE)
            slices.setdefault(name, {})[int(number or 0)] = value.float() if value.is_floating_point() else value
    out.mkdir(parents=True, exist_ok=True)
    for file in pieces.iterdir():
        if not file.name.startswith("piece-"):
            shutil.copy(file, out / file.name)
    state = {name: torch.cat([own[i] for i in sorted(own)]) if len(own) > 1 else own[0] for name, own in slices.items()}
    save_file(state, out / "model.safetensors", {"format": "pt"})
    return out


def run(args: argparse.Namespace) -> None:
    """Join, fine-tune, score; add what the encoder is to the manifest of the results."""
    started = time.monotonic()
    encoder: Path | None = join(args.pieces, args.work / "encoder") if args.pieces else args.encoder
    classifier = args.work / "classifier"
    if not (classifier / "manifest.json").is_file():
        command = ["-m", "training.movies", "--data", args.data, "--out", classifier]
        command += ["--size", "base"] if encoder is None else ["--from", encoder]
        command += ["--minutes", args.minutes]
        for name in ("batch", "lr", "epochs"):
            command += [] if getattr(args, name) is None else [f"--{name}", getattr(args, name)]
        command += ["--warm", args.warm] if args.warm else []
        command += ["--smoke"] if args.smoke else []
        python(command)
        print(f"fine-tuned after {time.monotonic() - started:.0f} s", flush=True)
    scores = ["studies/movies.py", "--model", classifier / "movies", "--data", args.data, "--device", args.device,
              "--batch", args.score_batch, "--minutes", args.score_minutes, "--out", args.out,
              "--methods", *args.methods]  # fmt: skip
    scores += ["--reviews", 4] if args.smoke else []
    python(scores)
    results: dict[str, Any] = json.loads(args.out.read_text(encoding="utf-8"))
    entry = json.loads((classifier / "manifest.json").read_text(encoding="utf-8"))["models"]["movies"]
    config = json.loads((classifier / "movies" / "config.json").read_text(encoding="utf-8"))
    names = ("model_type", "num_hidden_layers", "hidden_size", "num_attention_heads")
    results["manifest"] |= {
        "encoder": "trained from scratch" if encoder is None else args.name,
        "architecture": {name: config.get(name) for name in names},
        "parameters": entry["parameters"], "whole_reviews_accuracy": entry["accuracy"], "training": entry["training"],
    }  # fmt: skip
    args.out.write_text(json.dumps(results, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    print(f"done after {time.monotonic() - started:.0f} s: {args.out}", flush=True)


def python(command: list[Any]) -> None:
    """Run a script of this repository with the same interpreter."""
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    words = [sys.executable, *map(str, command)]
    print(" ".join(words[1:]), flush=True)
    subprocess.run(words, cwd=ROOT, env=environment, check=True)  # noqa: S603 - our own scripts


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("split", help="write an encoder as small pieces")
    one.add_argument("--encoder", type=Path, required=True, help="folder of a Hugging Face encoder")
    one.add_argument("--out", type=Path, required=True)
    two = commands.add_parser("run", help="fine-tune and score")
    source = two.add_mutually_exclusive_group(required=True)
    source.add_argument("--pieces", type=Path, help="folder that split wrote")
    source.add_argument("--encoder", type=Path, help="folder of a Hugging Face encoder")
    source.add_argument("--scratch", action="store_true", help="train an encoder of this size, best with --warm")
    two.add_argument("--name", default="all-mpnet-base-v2", help="name of the encoder in the manifest")
    two.add_argument("--data", type=Path, required=True, help="ERASER's movies")
    two.add_argument("--warm", type=Path, default=None, help="JSON file with other reviews to train on first")
    two.add_argument("--minutes", type=float, default=4.5, help="time limit of the training (%(default)s)")
    two.add_argument("--epochs", type=int, default=None, help="of each phase of the training (the phase's own)")
    two.add_argument("--batch", type=int, default=None, help="windows in one training step (the phase's own)")
    two.add_argument("--lr", type=float, default=None, help="of the last phase (the phase's own)")
    two.add_argument("--device", default="cpu")
    two.add_argument("--score-batch", type=int, default=16)
    two.add_argument("--score-minutes", type=float, default=float("inf"), help="start no method after this time")
    two.add_argument("--methods", nargs="+", default=list(METHODS))
    two.add_argument("--work", type=Path, default=ROOT / "out" / "movies-base")
    two.add_argument("--smoke", action="store_true", help="a few steps and four reviews")
    two.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    for name in ("data", "warm", "work", "out", "pieces", "encoder"):  # the scripts run in the repository's root
        if getattr(args, name, None) is not None:
            setattr(args, name, getattr(args, name).resolve())
    if args.command == "split":
        for path in split(args.encoder, args.out):
            print(f"{path} {path.stat().st_size / 1e6:.1f} MB")
    else:
        run(args)


if __name__ == "__main__":
    main()
