"""Labels of part maps."""

from __future__ import annotations

#: Label of each part. The label of background object i is ``FIRST_OBJECT + i``; 0 is empty background.
LABELS = {
    "body": 1, "beak": 2, "eye01": 3, "eye02": 4, "foot01": 5, "foot02": 6, "tail": 7, "wing01": 8, "wing02": 9,
}  # fmt: skip
FIRST_OBJECT = 10
