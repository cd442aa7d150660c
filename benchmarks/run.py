"""Run benchmarks and write their results.

    python benchmarks/run.py CASE… --device cuda --out benchmarks/results

``--list`` prints the cases, what each measures, and its settings. ``--out`` is a folder; each case writes
``CASE-DEVICE.json`` with results and manifest there, while it runs. Settings of a case are changed with
``--set NAME=VALUE``, values of a list separated by commas (by semicolons if a value has a comma):

    python benchmarks/run.py latency relevance --device cuda --out benchmarks/results
    python benchmarks/run.py speed --set shapes=float32:8 --set methods=gradtoken,vtranm --repeats 3
    python benchmarks/run.py --all --tiny
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import agreement
import calls
import torch
from measuring import Run, device_label, parse_value, save_results

#: Cases that are functions of their own, beside those of the tables, with their modules. These are imported when a case
#: runs, since some need optional libraries.
FUNCTIONS = {
    "perturbation": "perturbation", "rise": "perturbation", "evaluator": "perturbation", "table": "perturbation",
    "dataset": "dataset", "linear_maps": "kernels", "row_tiles": "kernels", "overhead": "two_versions",
    "named_targets": "named_targets", "video_memory": "named_targets",
    "serve": "server", "serve_flood": "server", "serve_abuse": "server_abuse", "ray_cluster": "cluster",
    "source_rates": "source_rates",
    "decoders": "decoders", "decoders_long": "decoders", "decoders_agreement": "decoders", "peers": "peers",
    "map_store": "map_store",
}  # fmt: skip


def function_of(name: str) -> Callable[..., Any]:
    """The function of a case."""
    function: Callable[..., Any] = getattr(importlib.import_module(FUNCTIONS[name]), name)
    return function


def _run_function(name: str, *args: Any, **settings: Any) -> Any:
    return function_of(name)(*args, **settings)


CASES: dict[str, Callable[..., Any]] = {
    **{name: partial(calls.run_case, case) for name, case in calls.CASES.items()},
    **{name: partial(agreement.run_case, case) for name, case in agreement.CASES.items()},
    **{name: partial(_run_function, name) for name in FUNCTIONS},
}


def describe(name: str) -> tuple[str, dict[str, Any]]:
    """What a case measures, and its settings with their defaults."""
    if name in FUNCTIONS:
        function = function_of(name)
        parameters = inspect.signature(function).parameters.values()
        return (function.__doc__ or "").partition("\n")[0], {
            p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY
        }
    case = calls.CASES.get(name) or agreement.CASES[name]
    settings = {key: value for key, value in vars(case).items() if isinstance(value, tuple | int | str)}
    return case.about, {key: value for key, value in settings.items() if key != "about"} | {"methods": ("",)}


def settings_of(names: list[str], given: list[str]) -> dict[str, dict[str, Any]]:
    """Settings of each case, from words NAME=VALUE; a case takes those that it has."""
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for word in given:
        key, _, text = word.partition("=")
        own = [name for name in names if key in describe(name)[1]]
        if not own:
            known = sorted({key for name in names for key in describe(name)[1]})
            raise SystemExit(f"{key} is no setting of {', '.join(names)}: choose from {', '.join(known)}")
        for name in own:
            found[name][key] = parse_value(text, describe(name)[1][key])
    return found


def main() -> None:
    """Run the cases of the command line, and write results and manifest of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--all", action="store_true", help="every case")
    parser.add_argument("--list", action="store_true", help="print the cases and their settings")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=None, help="interleaved measurements of each call")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the cases")
    parser.add_argument("--tiny", action="store_true", help="small models and numbers, to rehearse a case")
    parser.add_argument("--profile", action="store_true", help="print kernels and Python functions of each call")
    parser.add_argument("--assets", type=Path, default=None, help="folder with weights/ and imagenet/")
    parser.add_argument("--out", type=Path, default=None, help="folder of the results")
    args = parser.parse_args()
    names = list(CASES) if args.all else args.cases
    if args.list or not names:
        for name in names or CASES:
            about, settings = describe(name)
            print(f"{name}: {about}\n    " + ", ".join(f"{k}={v!r}"[:120] for k, v in settings.items()))
        return
    unknown = [name for name in names if name not in CASES]
    if unknown:
        parser.error(f"unknown case {', '.join(unknown)}: choose from {', '.join(CASES)}")
    chosen = settings_of(names, args.set)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    failed = []
    for name in names:
        device = torch.device(args.device)
        path = None if args.out is None else args.out / f"{name}-{device_label(device)}.json"
        run = Run(device, args.repeats, args.tiny, args.profile, args.assets)
        run.save = partial(save_results, path, run, describe(name)[1] | chosen[name])
        print(f"== {name}", flush=True)
        try:
            run.save(CASES[name](run, **chosen[name]))
        except Exception:  # noqa: BLE001 - the other cases are still measured
            traceback.print_exc()
            failed.append(name)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
