"""Everything that exists for speed: recorded passes, split products, kernels, compiled models and their switches.

Other packages use the names of this module and import nothing else of this package. With ``VITRAIL_PLAIN=1`` they
compute everything by plain torch operations.
"""

from __future__ import annotations

from vitrail.fast.compiled_model import CompiledModel
from vitrail.fast.fast_passes import FastPasses
from vitrail.fast.kernels import faster, kernel
from vitrail.fast.known_model import TABLES, forget_module, on_forget, recall, remember, sizes
from vitrail.fast.module_walk import cached_per_call, call_cache, float_parameter, modules_of, weights_of, weights_state
from vitrail.fast.recordings import beside_replay, capturing, keep, log_reason, recordable, recording
from vitrail.fast.recordings import count as count_recordings
from vitrail.fast.recordings import forget as forget_recordings
from vitrail.fast.recordings import run as run_recorded
from vitrail.fast.split_products import product
from vitrail.fast.split_products import split_products as with_split_products
from vitrail.fast.split_products import switched_on as split_products_enabled
from vitrail.fast.switches import fast_paths_disabled, onednn_enabled, recomputation, recomputing, without_autocast
from vitrail.fast.unchanged import changed, current_call, one_call, unchanged
from vitrail.fast.weight_sample import sample_weights

on_forget(forget_recordings)

__all__ = [
    "TABLES", "CompiledModel", "FastPasses", "beside_replay", "cached_per_call", "call_cache", "capturing", "changed",
    "count_recordings", "current_call", "fast_paths_disabled", "faster", "float_parameter", "forget_module",
    "forget_recordings", "keep", "kernel", "log_reason", "modules_of", "on_forget", "one_call", "onednn_enabled",
    "product", "recall", "recomputation", "recomputing", "recordable", "recording", "remember", "run_recorded",
    "sample_weights", "sizes", "split_products_enabled", "unchanged", "weights_of", "weights_state",
    "with_split_products", "without_autocast",
]  # fmt: skip
