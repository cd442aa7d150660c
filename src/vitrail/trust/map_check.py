"""Results of checking maps: numbers, a verdict and three sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Every verdict and what it means; the first that applies is a map's verdict.
VERDICTS = {
    "no better than chance": "regions of the same shape elsewhere change the output as much as what the map marks",
    "unstable": "small noise on the input, or another seed of the method, gives another map",
    "not class-specific": "another class and a random classification head both give the same map",
    "faithful": "removing what the map marks changes the output more than removing regions of the same shape elsewhere",
}
#: The same for the word scores of texts.
TEXT_VERDICTS = {
    "no better than chance": "removing as many other words changes the output as much as those with the highest scores",
    "unstable": "another seed of the method gives other scores",
    "not class-specific": "another class and a random classification head both give the same scores",
    "faithful": "removing the words with the highest scores changes the output more than removing as many others",
}
#: What controls remove first, which need no model.
CONTROLS = {
    "centre": "the patches at the centre", "length of words": "the longest words", "last": "the last words",
}  # fmt: skip
FAITHFUL = "faithful"
#: Probabilities below this are printed as such, or with their first digit where all are.
SMALL = 0.001
#: Rank correlation above which a map hardly changes.
HARDLY = 0.95


@dataclass(frozen=True)
class MapCheck:
    """Result of the check of one map.

    Similarities are Spearman's rank correlations with the map; None where a test was not run, see ``skipped``.

    Attributes:
        method: The method, with its options.
        label: The explained class.
        verdict: A key of ``VERDICTS``.
        failures: All verdicts but "faithful" that apply.
        p_value: Share of the moved copies, the map itself counted among them, that do at least as well.
        removal: How patches were removed: "tokens" or the name of a fill.
        levels: Shares of the patches that were removed, or kept; the first is the one that is put into words.
        probability: The class's probability for the whole image; for a target function its value.
        removed: By level, the probability without the most relevant patches.
        kept: By level, the probability with the most relevant patches only.
        null_removed: The same as ``removed``, mean over the moved copies.
        null_kept: The same as ``kept``, mean over the moved copies; empty where they were not evaluated.
        copies: Number of moved copies.
        statistic: How much lower the class's log-odds are after the removal than with moved copies, in standard
            deviations of the copies, mean over the levels; scaled so that the copies have a standard deviation of one.
        controls: The same for maps that do not depend on the model.
        other_class: The class of ``class_similarity``.
        class_similarity: With the map of another likely class.
        noise_similarity: With the map of the image with small noise, the lowest of the draws.
        seed_similarity: With the map under another seed of the method.
        head_similarity: With the map after the classification head was randomised.
        block_similarity: With the map after the head and the last block were randomised.
        forwards: Cost of the check in forward passes of one image; a backward pass counts as two.
        skipped: Tests that were not run, with the reasons.
        is_probability: Whether the values are probabilities.
        unit: What was removed: "patches" of an image, "words" of a text, or "patches and words".
    """

    method: str
    label: str
    verdict: str
    failures: tuple[str, ...]
    p_value: float
    removal: str
    levels: tuple[float, ...]
    probability: float
    removed: tuple[float, ...]
    kept: tuple[float, ...]
    null_removed: tuple[float, ...]
    null_kept: tuple[float, ...]
    copies: int
    statistic: float
    controls: Mapping[str, float]
    other_class: str = ""
    class_similarity: float | None = None
    noise_similarity: float | None = None
    seed_similarity: float | None = None
    head_similarity: float | None = None
    block_similarity: float | None = None
    forwards: float = 0
    skipped: tuple[str, ...] = ()
    is_probability: bool = True
    unit: str = "patches"

    @property
    def passed(self) -> bool:
        """Whether the verdict is "faithful"."""
        return self.verdict == FAITHFUL

    @property
    def meaning(self) -> str:
        """What the verdict means, for an image or a text."""
        return (TEXT_VERDICTS if self.unit == "words" else VERDICTS)[self.verdict]

    @property
    def sentences(self) -> tuple[str, str, str]:
        """The result in three sentences: faithfulness, class, stability."""
        return self._faithfulness(), self._class(), self._stability()

    def _faithfulness(self) -> str:
        values = self.probability, self.removed[0], self.null_removed[0]
        show = _number if not self.is_probability else _percent if max(values) >= SMALL else _small_percent
        level, (before, removed, moved) = _percent(self.levels[0]), map(show, values)
        same = f"at {before}"  # where a value is printed as before
        verb = "lowers" if self.removed[0] < self.probability else "raises"
        change = (
            f"leaves {self.label} {same}" if removed == before else f"{verb} {self.label} from {before} to {removed}"
        )
        verb = "lower" if self.null_removed[0] < self.probability else "raise"
        other_change = f"leave it {same}" if moved == before else f"{verb} it to {moved}"
        elsewhere = (
            "as many words in shifted orders"
            if self.unit == "words"
            else "regions of the same shape elsewhere"
            if self.unit == "patches"
            else f"as many {self.unit} elsewhere"
        )
        sentence = (
            f"Removing the {level} most relevant {self.unit} {change}; {elsewhere} {other_change} "
            f"(p = {self.p_value:.2g})."
        )
        better = [name for name, value in self.controls.items() if value >= self.statistic]
        named = " or ".join(CONTROLS.get(name, name) for name in better)
        return sentence + (f" Removing {named} changes it as much." if better else "")

    def _class(self) -> str:
        if self.class_similarity is None:
            return "Whether the map depends on the class was not tested" + self._why("class") + "."
        verb = "hardly changes" if self.class_similarity > HARDLY else "changes"
        return f"The map {verb} for {self.other_class} (rank correlation {self.class_similarity:.2f})."

    def _stability(self) -> str:
        changes = []
        if self.noise_similarity is not None:
            changes.append(f"under small noise {self.noise_similarity:.2f}")
        if self.seed_similarity is not None:
            changes.append(f"with another seed {self.seed_similarity:.2f}")
        if self.head_similarity is not None:
            changes.append(f"with a random head {self.head_similarity:.2f}")
        if self.block_similarity is not None:
            changes.append(f"with a random head and last block {self.block_similarity:.2f}")
        if not changes:
            return "Stability was not tested" + self._why("noise") + "."
        return f"Rank correlation of the map with itself: {', '.join(changes)}."

    def _why(self, test: str) -> str:
        return next((f" ({reason.partition(': ')[2]})" for reason in self.skipped if reason.startswith(test)), "")

    def __str__(self) -> str:
        return "\n".join((f"{self.method}: {self.verdict}", *self.sentences))

    def to_dict(self) -> dict[str, Any]:
        """All numbers and the sentences, as JSON values."""
        return {**asdict(self), "passed": self.passed, "sentences": list(self.sentences)}

    def figure(self) -> Figure:
        """Draw the probability against the share of removed and of kept patches, beside the moved copies."""
        from vitrail.viz.check_figure import check_figure

        return check_figure({self.method: self})

    def _repr_html_(self) -> str:
        from vitrail.viz.templating import render

        return render("check.html", checks={self.method: self})


class MapChecks(Mapping[str, MapCheck]):
    """Checks of maps of the same image and class by several methods: a mapping from method to `MapCheck`."""

    def __init__(self, by_method: Mapping[str, MapCheck]) -> None:
        self._by_method = dict(by_method)

    def __getitem__(self, method: str) -> MapCheck:
        return self._by_method[method]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_method)

    def __len__(self) -> int:
        return len(self._by_method)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self._by_method.values()))

    def __repr__(self) -> str:
        return f"MapChecks({', '.join(f'{name}: {check.verdict}' for name, check in self.items())})"

    def to_dict(self) -> dict[str, Any]:
        """The checks by method, as JSON values."""
        return {name: check.to_dict() for name, check in self.items()}

    def figure(self) -> Figure:
        """Draw the curves of every method; see `MapCheck.figure`."""
        from vitrail.viz.check_figure import check_figure

        return check_figure(self)

    def _repr_html_(self) -> str:
        from vitrail.viz.templating import render

        return render("check.html", checks=self)


def _percent(p: float) -> str:
    return f"{100 * p:.0f} %" if p >= 0.1 or p == 0 else f"{100 * p:.1f} %" if p >= SMALL else "<0.1 %"


def _small_percent(p: float) -> str:
    return f"{100 * p:.1g} %"


def _number(value: float) -> str:
    return f"{value:.3g}"
