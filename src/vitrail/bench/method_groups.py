"""Which methods are computed together, decided from the cost each method declares."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.methods import METHODS, Method, ModelSize, find


def group_methods(specs: Sequence[str]) -> list[tuple[str, ...]]:
    """Split methods into groups: one for each method that evaluates images of its own, and one for all others.

    Example:
        >>> group_methods(["rollout", "tam", "random"])
        [('tam',), ('rollout', 'random')]
    """
    alone = [spec for spec in specs if _evaluates_own_images(find(spec)[1])]
    together = tuple(spec for spec in specs if spec not in alone)
    return [*((spec,) for spec in alone), *([together] if together else [])]


def single_pass_methods() -> tuple[str, ...]:
    """Return the names of the package's methods that share one pass, without the controls.

    Methods of other packages are left out: a plan must not depend on which of them are installed.
    """
    package_methods = (method for method in METHODS.values() if method.compute.__module__.startswith("vitrail."))
    return tuple(m.name for m in package_methods if m.family != "control" and not _evaluates_own_images(m))


def serves_all_targets(spec: str) -> bool:
    """Whether the images a method evaluates serve all targets, so that a second target costs nothing.

    Example:
        >>> serves_all_targets("occlusion"), serves_all_targets("tam"), serves_all_targets("rollout")
        (True, False, False)
    """
    _, method, options = find(spec)
    one, two = (method.cost(options, ModelSize(), targets) for targets in (1, 2))
    return one.evaluations > 0 and one == two


def _evaluates_own_images(method: Method) -> bool:
    """Whether a method evaluates images beyond the shared pass, with its default options.

    Relevance propagation does not count: it evaluates the given image once, with other backward rules.
    """
    evaluations = method.cost(method.options, ModelSize(), 1).evaluations
    return evaluations > (1 if method.takes == "trace" else 0)
