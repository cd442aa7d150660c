"""Support for transformers, torchvision, open_clip and timm: attention structure of each family, and working methods.

    python studies/sweep_families.py --workers 15 --seconds 40 --out studies/results/sweep-families.csv
    python studies/sweep_families.py --library timm --seconds 600 --device cuda --out studies/results/sweep-timm.csv

Builds one tiny model with random weights for each family of classifiers, measures its structure and applies every
method with quick options. Each family runs in a process of its own with a time limit, so that a crash or a hang is a
row of the table. Of the perturbation methods only occlusion is applied; on timm, all but Score-CAM, which reads the
same feature maps as ViT-CX. Families of timm are its smallest models, small ones first, and those in the table are
skipped. Nothing is downloaded. ``--summary`` prints the counts of an existing table.

Two columns are tests with a known answer, both with ``transformer_mm``. ``swapped patches``: with position embeddings
set to zero, an image with two patches swapped has the map of the image with the same two patches swapped. ``padding``:
two texts in a padded batch have the maps that they have alone.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import json
import logging
import math
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from study import read_csv, save_csv
from sweep_counts import FIELDS, is_fully_working, is_softmax_classifier, summary
from sweep_methods import QUICK, attempts, error_location
from tiny_families import END, VOCABULARY, Family, TinyModel, build, families
from torch import Tensor, nn

import vitrail
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.structure import read_structure
from vitrail.errors import GuessWarning, VitrailError
from vitrail.methods.model_kinds import kind_of

TASKS = ("vision", "text-encoder", "text-decoder", "seq2seq")
LIBRARIES = ("transformers", "torchvision", "open_clip", "timm")
SKIPPED = frozenset(m.name for m in vitrail.methods().values() if m.family == "perturbation") - {"occlusion"}
#: Names of weights and buffers that tell positions apart.
POSITIONS = re.compile(r"pos_?emb|position|rel_pos|relative_|inv_freq|periods|rope|rotary", re.IGNORECASE)
TOLERANCE = 1e-3
#: Start of a line of output that holds a row.
MARK = "ROW "


def rows(family: Family, tasks: Sequence[str], device: str = "cpu") -> Iterator[dict[str, Any]]:
    """Yield the row of a family, again each time that a column is added."""
    row: dict[str, Any] = {
        "library": family.library, "task": family.task, "family": family.name, "model class": family.model,
    }  # fmt: skip
    try:
        tiny = build(family)
        tiny = replace(
            tiny, module=tiny.module.to(device), inputs=_to(tiny.inputs, device), padded=_to(tiny.padded, device)
        )
        add_noise(tiny.module)
        row["model class"] = family.model if family.library == "timm" else type(tiny.module).__name__
        inputs = _model_inputs(tiny)
        with torch.no_grad():
            inputs.into(tiny.module)
    except Exception as error:  # noqa: BLE001 - a family that cannot be built is a row
        yield row | {"reason": f"not built: {_short(error)}"}
        return
    row["task"] = _task(family, tiny)
    if row["task"] not in tasks:
        yield row | {"reason": "another task"}
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            structure = read_structure(
                tiny.module, inputs.onto(tiny.module), None, tiny.target if callable(tiny.target) else None
            )
        except VitrailError as error:
            yield row | {"recognised": "refused", "reason": _short(error)}
            return
        except Exception as error:  # noqa: BLE001
            yield row | {
                "recognised": "error",
                "failed": f"read_structure ({_short(error)} at {error_location(error)})",
            }
            return
    row["recognised"] = structure.kind
    row["self-check"] = _checks(structure)
    row["warnings"] = sum(issubclass(w.category, GuessWarning) for w in caught)
    yield row
    warnings.simplefilter("ignore")
    for test, answer in (("swapped patches", swapped_patches), ("padding", padding)):
        try:
            row[test] = answer(tiny, structure)
        except VitrailError as error:
            row[test] = f"not applicable: {_short(error)}"
        except Exception as error:  # noqa: BLE001
            row[test] = f"error: {_short(error)} at {error_location(error)}"
        yield row
    outcomes: dict[str, list[str]] = {"works": [], "refused": [], "failed": []}
    reasons: dict[str, list[str]] = {}
    skipped, quick = ({"scorecam"}, QUICK) if family.library == "timm" else (SKIPPED, {})
    for attempt in attempts(tiny.module, tiny.inputs, skipped, tiny.target, quick):
        detail = (
            f" ({attempt.error}: {_line(attempt.reason)} at {attempt.location})" if attempt.outcome == "failed" else ""
        )
        outcomes[attempt.outcome].append(attempt.method + detail)
        if attempt.reason and attempt.outcome != "failed":
            why = re.sub(rf"^{attempt.method} does not apply to \w+: ", "", attempt.reason).partition("; ")[0]
            reasons.setdefault(_line(why), []).append(attempt.method)
        row |= {key: ("; " if key == "failed" else " ").join(names) for key, names in outcomes.items()}
        row["reason"] = "; ".join(f"{' '.join(names)}: {why}" for why, names in reasons.items())
        row["missing"] = _missing(structure, tiny, outcomes["works"])
        yield row


def add_noise(model: nn.Module) -> None:
    """Add noise to every weight, so that no head of zeros and no tiny LayerScale hides whether a method works.

    The noise of a matrix is small for many inputs: deep networks without normalisation would overflow. The embedding of
    padding stays zero, as in training.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            inputs = math.prod(parameter.shape[1:]) if parameter.dim() > 1 else 1
            parameter.add_(min(0.1, 0.5 / math.sqrt(inputs)) * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0


def _to(inputs: Any, device: str) -> Any:
    return inputs.to(device) if isinstance(inputs, Tensor) else {name: t.to(device) for name, t in inputs.items()}


def _model_inputs(tiny: TinyModel) -> ModelInputs:
    return ModelInputs((tiny.inputs,)) if isinstance(tiny.inputs, Tensor) else ModelInputs((), tiny.inputs)


def _task(family: Family, tiny: TinyModel) -> str:
    """Task of a family; a text model is a decoder if its first token does not depend on a later one."""
    if family.task != "text":
        return family.task
    if tiny.seq2seq:
        return "seq2seq"
    other = {name: value.clone() for name, value in tiny.inputs.items()}
    # The token that ends the text stays last; the one before it is changed.
    other["input_ids"][0, -2] = (other["input_ids"][0, -2] + 7) % (VOCABULARY - 20) + END + 1
    try:
        with torch.no_grad():
            base = tiny.module.base_model
            first, second = base(**tiny.inputs)[0], base(**other)[0]
    except Exception:  # noqa: BLE001 - a model whose base cannot be run by itself
        return "text-encoder"
    return "text-decoder" if torch.allclose(first[0, 0], second[0, 0], atol=1e-6) else "text-encoder"


def _checks(structure: ModelStructure) -> str:
    """Names of the checks that failed or were not measured, or "passed"."""
    failed = [c.name for c in structure.checks if c.passed is False]
    unknown = [c.name for c in structure.checks if c.passed is None]
    found = [f"failed: {', '.join(failed)}"] * bool(failed) + [f"not measured: {', '.join(unknown)}"] * bool(unknown)
    return "; ".join(found) or "passed"


def _missing(structure: ModelStructure, tiny: TinyModel, works: Sequence[str]) -> str:
    """Methods that the registry defines for this kind of model and that do not work."""
    kind, text = kind_of(structure), "input_ids" in tiny.inputs if isinstance(tiny.inputs, dict) else False
    applicable = []
    for method in vitrail.methods().values():
        # A method defined by another one applies where that one does.
        source = method if method.derive is None else method.derive(method.options)[0]
        against = any(m.reason_against(k) for m in (method, source) for k in (kind, *(["text"] if text else [])))
        if method.name not in SKIPPED and not against:
            applicable.append(method.name)
    return " ".join(name for name in applicable if name not in works)


def swapped_patches(tiny: TinyModel, structure: ModelStructure) -> str:
    """Test whether the map follows two swapped patches while position embeddings are zero; they are restored."""
    inputs = _model_inputs(tiny)
    image, grid = inputs.image, structure.layout.grid
    if image is None or structure.kind != "plain" or grid is None or min(grid) < 2:
        return "not applicable"
    named = [*tiny.module.named_parameters(), *tiny.module.named_buffers()]
    found = [t for name, t in named if POSITIONS.search(name) and t.is_floating_point()]
    kept = [t.detach().clone() for t in found]
    try:
        with torch.no_grad():
            for tensor in found:
                tensor.zero_()
        return _follows(tiny, inputs, image, grid)
    finally:
        with torch.no_grad():
            for tensor, old in zip(found, kept, strict=True):
                tensor.copy_(old)


def _follows(tiny: TinyModel, inputs: ModelInputs, image: Tensor, grid: tuple[int, int]) -> str:
    rows, columns = grid
    height, width = image.shape[2] // rows, image.shape[3] // columns
    if image.shape[2] % rows or image.shape[3] % columns:
        return "not applicable: patches of unequal size"
    expected = vitrail.explain(tiny.module, tiny.inputs, "transformer_mm", target=tiny.target).grid.clone()
    if tuple(expected.shape[-2:]) != grid:
        return f"no: the map has {tuple(expected.shape[-2:])} patches, the layout {grid}"
    # The most relevant patch and the least relevant one, but not its mirror image: a transposed map would pass.
    r, c = divmod(int(expected[0, 0].argmax()), columns)
    others = expected[0, 0].clone()
    if c < rows and r < columns:
        others[c, r] = math.inf
    s, d = divmod(int(others.argmin()), columns)
    contrast = float(expected[0, 0, r, c] - expected[0, 0, s, d])
    if contrast <= TOLERANCE * float(expected.abs().max()):
        return "not applicable: all patches have the same relevance"
    swapped = image.clone()
    one = (..., slice(r * height, (r + 1) * height), slice(c * width, (c + 1) * width))
    other = (..., slice(s * height, (s + 1) * height), slice(d * width, (d + 1) * width))
    swapped[one], swapped[other] = image[other], image[one]
    with torch.no_grad():
        before = _scores(tiny, inputs.into(tiny.module))
        after = _scores(tiny, inputs.swap(image, swapped).into(tiny.module))
    if not torch.allclose(before, after, rtol=TOLERANCE, atol=TOLERANCE * float(before.abs().max())):
        return "not applicable: the scores depend on positions without position embeddings"
    feed = swapped if isinstance(tiny.inputs, Tensor) else {**tiny.inputs, "pixel_values": swapped}
    found = vitrail.explain(tiny.module, feed, "transformer_mm", target=tiny.target).grid
    expected[..., r, c], expected[..., s, d] = expected[..., s, d].clone(), expected[..., r, c].clone()
    difference = float((found - expected).abs().max()) / contrast
    return "yes" if difference <= 10 * TOLERANCE else f"no: differs by {difference:.2g} of the map's range"


def _scores(tiny: TinyModel, output: Any) -> Tensor:
    if callable(tiny.target):
        return torch.as_tensor(tiny.target(output))
    return output if isinstance(output, Tensor) else output.logits


def padding(tiny: TinyModel, structure: ModelStructure) -> str:
    """Test whether the texts of a padded batch have the maps that they have alone."""
    if not tiny.padded or structure.kind != "plain":
        return "not applicable"
    together = vitrail.explain(tiny.module, tiny.padded, "transformer_mm", target=tiny.target).grid
    with torch.no_grad():
        scores = _scores(tiny, tiny.module(**tiny.padded))
    for i, mask in enumerate(tiny.padded["attention_mask"].bool()):
        alone = {name: value[i : i + 1, mask] for name, value in tiny.padded.items()}
        with torch.no_grad():
            own = _scores(tiny, tiny.module(**alone))[0]
        if not torch.allclose(own, scores[i], rtol=TOLERANCE, atol=TOLERANCE * float(own.abs().max())):
            return "not applicable: the model's own scores depend on padding"
        expected = vitrail.explain(tiny.module, alone, "transformer_mm", target=tiny.target).grid[0, 0]
        largest = float(expected.abs().max())
        if not largest:
            return "not applicable: constant map"
        difference = float((together[i, 0, mask] - expected).abs().max()) / largest
        if difference > TOLERANCE or bool(together[i, 0, ~mask].any()):
            return f"no: text {i} differs by {difference:.2g} of the largest value"
    return "yes"


def _line(text: str) -> str:
    return " ".join(text.split())[:200]


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {_line(str(error))}"


def run_family(family: Family, tasks: Sequence[str], seconds: float, device: str) -> None:
    """Print the rows of a family; a time limit ends the process with a traceback."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    if family.library == "transformers":  # before the time limit starts
        with contextlib.suppress(Exception):
            getattr(importlib.import_module("transformers"), family.model)
    faulthandler.enable()
    faulthandler.dump_traceback_later(seconds, exit=True)
    for row in rows(family, tasks, device):
        print(MARK + json.dumps(row), flush=True)
    faulthandler.cancel_dump_traceback_later()


def in_process(family: Family, tasks: Sequence[str], seconds: float, device: str) -> dict[str, Any]:
    """Row of one family, examined in a process of its own; a crash or a hang is the row's reason."""
    request = json.dumps({"family": asdict(family), "tasks": list(tasks), "seconds": seconds, "device": device})
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, "--child", request]
    began = time.perf_counter()
    stopped = ""
    try:
        done = subprocess.run(command, check=False, env=environment, capture_output=True, timeout=seconds + 120)  # noqa: S603
        output, errors = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if done.returncode:
            places = re.findall(r'File ".*?([^/"]+/[^/"]+)", line (\d+)', errors)
            cause = "time limit" if "Timeout (" in errors else f"process ended with code {done.returncode}"
            stopped = (
                f"{cause} at {' < '.join(map(':'.join, places[:3]))}" if places else f"{cause}: {_line(errors[-200:])}"
            )
    except subprocess.TimeoutExpired as expired:
        output, stopped = (expired.stdout or b"").decode(errors="replace"), "hung, killed"
    lines = [line for line in output.splitlines() if line.startswith(MARK)]
    row: dict[str, Any] = {
        "library": family.library, "task": family.task, "family": family.name, "model class": family.model,
    }  # fmt: skip
    row |= json.loads(lines[-1][len(MARK) :]) if lines else {}
    if stopped:
        row["reason"] = f"{stopped}; {row.get('reason', '')}".rstrip("; ")
        row["failed"] = "; ".join(filter(None, [row.get("failed", ""), "stopped"]))
    return row | {"seconds": f"{time.perf_counter() - began:.1f}"}


def main() -> None:
    """Examine every family, and write the table after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=LIBRARIES)
    parser.add_argument("--task", choices=TASKS)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="families, or models of timm, to examine")
    parser.add_argument("--millions", type=float, default=90, help="largest model of timm, in millions of parameters")
    parser.add_argument("--list", action="store_true", help="print the families only; those of timm take minutes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=30, help="time limit of a family in seconds, without imports")
    parser.add_argument("--out", type=Path, default=Path("studies/results/sweep-families.csv"))
    parser.add_argument("--summary", action="store_true", help="print the counts of the table and leave it as it is")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        request = json.loads(args.child)
        run_family(Family(**request["family"]), request["tasks"], request["seconds"], request["device"])
        return
    if args.summary:
        print(summary(read_csv(args.out)))
        return
    tasks = (args.task,) if args.task else TASKS
    table: list[dict[str, Any]] = []
    if args.library == "timm" and args.out.exists():
        table += read_csv(args.out)
    known = {row["model class"] for row in table}
    chosen = [f for f in families(args.library, args.only or (), args.millions) if f.model not in known]
    chosen = [f for f in chosen if not args.only or {f.name, f.model} & set(args.only)]
    if args.list:
        print("\n".join(f"{f.library} {f.name} {f.model}" for f in chosen))
        return
    chosen = [f for f in chosen if not args.task or (f.task == "vision") == (args.task == "vision")]
    with ThreadPoolExecutor(args.workers) as pool:
        for done in as_completed(
            [pool.submit(in_process, family, tasks, args.seconds, args.device) for family in chosen]
        ):
            row = done.result()
            if row.get("reason") == "another task":
                continue
            row["softmax attention"], row["fully working"] = is_softmax_classifier(row), is_fully_working(row)
            table.append(row)
            start = f"{row['library']:12} {row['task']:12} {row['family']:24} {row.get('recognised', 'not built'):16}"
            works, failed = len(row.get("works", "").split()), row.get("failed", "")[:120]
            print(f"{start} {works:3} work, missing: {row.get('missing', '')}, failed: {failed}", flush=True)
            table.sort(key=lambda r: (LIBRARIES.index(r["library"]), r["task"], r["family"], r["model class"]))
            save_csv(args.out, table, FIELDS)  # after each family, for interrupted runs
    print(summary(table))


if __name__ == "__main__":
    main()
