"""Everything that exists for speed: recorded passes, split products, kernels, compiled models and their switches.

Other packages use the names of this module and import nothing else of this package. With ``VITRAIL_PLAIN=1`` they
compute everything by plain torch operations.
"""

from __future__ import annotations

from vitrail.fast.module_walk import cached_per_call, modules_of, tensors_of, weights_of, weights_state
from vitrail.fast.recordings import count as count_recordings
from vitrail.fast.recordings import forget as forget_recordings
from vitrail.fast.recordings import keep, log_reason, recordable, recording
from vitrail.fast.recordings import run as run_recorded
from vitrail.fast.split_products import split_products
from vitrail.fast.split_products import switched_on as split_products_enabled
from vitrail.fast.switches import plain as fast_paths_disabled
from vitrail.fast.unchanged import one_call, unchanged

__all__ = [
    "cached_per_call",
    "count_recordings",
    "fast_paths_disabled",
    "forget_recordings",
    "keep",
    "log_reason",
    "modules_of",
    "one_call",
    "recordable",
    "recording",
    "run_recorded",
    "split_products",
    "split_products_enabled",
    "tensors_of",
    "unchanged",
    "weights_of",
    "weights_state",
]
