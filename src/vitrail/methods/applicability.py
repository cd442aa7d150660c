"""The applicability table of the documentation, as the registry has it."""

from __future__ import annotations

from vitrail.methods.registry import METHODS, MODEL_KINDS

#: The families, in the order they are listed in.
FAMILIES = ("attention", "gradient", "path", "relevance", "input", "perturbation", "trained", "control")
#: What stands before and after the table in a page.
MARKS = ("<!-- applicability -->", "<!-- /applicability -->")


def applicability() -> str:
    """Methods × kinds of models in Markdown, by family, with the reasons for every "–" below.

    Example:
        >>> applicability().splitlines()[0]
        '| method | CLS | distilled | registers | mean | pool | Swin | text |'
    """
    methods = sorted(METHODS.values(), key=lambda m: FAMILIES.index(m.family))
    rows = [f"| method | {' | '.join(MODEL_KINDS)} |", "|---" * (1 + len(MODEL_KINDS)) + "|"]
    against: dict[tuple[str, str], list[str]] = {}
    for method in methods:
        reasons = [method.reason_against(kind) for kind in MODEL_KINDS]
        rows.append(f"| `{method.name}` | {' | '.join('–' if reason else 'yes' for reason in reasons)} |")
        for kind, reason in zip(MODEL_KINDS, reasons, strict=True):
            if reason:
                against.setdefault((kind, reason), []).append(f"`{method.name}`")
    order = sorted(against, key=lambda pair: MODEL_KINDS.index(pair[0]))
    listed = [f"- **{kind}**: {reason}. {', '.join(against[kind, reason])}" for kind, reason in order]
    return "\n".join([*rows, "", *listed])


def renewed(page: str) -> str:
    """A page with the table between its marks built anew.

    Example:
        >>> page = f"Before {MARKS[0]} old {MARKS[1]} after"
        >>> "old" in renewed(page), renewed(page).startswith("Before"), renewed(page).endswith("after")
        (False, True, True)
    """
    before, _, rest = page.partition(MARKS[0])
    _, mark, after = rest.partition(MARKS[1])
    if not mark:
        raise ValueError(f"the page has no {MARKS[0]} … {MARKS[1]}")
    return f"{before}{MARKS[0]}\n\n{applicability()}\n\n{MARKS[1]}{after}"
