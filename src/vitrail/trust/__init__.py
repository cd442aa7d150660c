"""Checks of single maps: whether a map of this model and this image can be trusted.

`vitrail.Explanation.check` and ``vitrail check`` run them; `vitrail.compare` ranks methods with the same tests.
"""

from vitrail.trust.check_run import BUDGETS, Budget
from vitrail.trust.checker import check_maps
from vitrail.trust.image_check import patch_values
from vitrail.trust.input_removal import PatchRemoval, WordRemoval, log_odds
from vitrail.trust.map_check import VERDICTS, MapCheck, MapChecks
from vitrail.trust.null import moved_maps, shifted_orders

__all__ = [
    "BUDGETS", "VERDICTS", "Budget", "MapCheck", "MapChecks", "PatchRemoval", "WordRemoval", "check_maps", "log_odds",
    "moved_maps", "patch_values", "shifted_orders",
]  # fmt: skip
