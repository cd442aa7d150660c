"""The switch that turns faster computations off."""

from __future__ import annotations

import os


def fast_paths_disabled() -> bool:
    """Whether ``VITRAIL_PLAIN=1`` is set: every faster computation is then replaced by the straightforward one.

    Results agree to rounding; the switch is there to check that, and to find out which of the two is at fault.
    """
    return os.environ.get("VITRAIL_PLAIN", "") not in ("", "0")
