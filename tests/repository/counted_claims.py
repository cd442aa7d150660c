"""Sentences of the pages that count something, with the functions that count it again in the files of results."""

from __future__ import annotations

import csv
import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from vitrail.methods import METHODS
from vitrail.methods.card import method_card
from vitrail.scores import difference

ROOT = Path(__file__).resolve().parents[2]
WORDS = {2: "two", 6: "six", 12: "twelve", 15: "fifteen", 16: "sixteen"}
CONTROLS = {"random", "centre", "edges", "inverted", "end first", "start first"}


@dataclass(frozen=True)
class Claim:
    """A part of a sentence with ``{}`` for each number, and what the numbers are."""

    page: str
    text: str
    count: Callable[[], tuple[int | str, ...]]

    def shown(self) -> str:
        """The text as the page must have it."""
        return self.text.format(*self.count())


@cache
def rows(path: str) -> list[dict[str, str]]:
    """The rows of a table."""
    with (ROOT / path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def content(path: str) -> Any:
    """A file of JSON."""
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def column(score: str, target: str = "predicted", protocol: str | None = None) -> dict[str, dict[str, str]]:
    """A column of the thousand images by method, without controls."""
    return {
        row["method"]: row
        for row in rows("results/imagenet1000.csv")
        if (row["score"], row["target"], row["control"]) == (score, target, "False")
        and protocol in (None, row["protocol"])
    }


def better_than_controls(table: dict[str, dict[str, str]]) -> set[str]:
    """Methods of a column that are significantly better than the strongest control."""
    return {name for name, row in table.items() if significant(row, "to_control")}


def significant(row: dict[str, str], against: str) -> bool:
    """Whether a row is significantly better by a difference of the table."""
    up = -1 if row["better"] == "down" else 1
    return bool(row[against]) and up * float(row[against]) > 0 and float(row[f"p_{against}"]) < 0.05


def measured_methods(path: str) -> set[str]:
    """Methods of a table without controls and without their variants."""
    return {row["method"].partition(":")[0] for row in rows(path) if row["control"] == "False"}


def forms(path: str) -> int:
    """Number of rows of a table of methods, without controls."""
    return len({row["method"] for row in rows(path) if row["control"] == "False"})


def better_columns(method: str) -> int:
    """Number of columns of three models in which a method is significantly better than the strongest control."""
    return sum(
        significant(row, "to_control") for row in rows("results/three_models_single.csv") if row["method"] == method
    )


def both_srg() -> set[str]:
    """Rows that are better than every control by SRG with black pixels and with tokens."""
    return better_than_controls(column("srg(black)")) & better_than_controls(column("srg(tokens)"))


def whole_image_boxes() -> tuple[int, int]:
    """Rows of localisation at the lowest accuracy, that of the whole image, and all rows, without controls."""
    own = [row for row in rows("results/wsol.csv") if (row["score"], row["control"]) == ("max_box_acc", "False")]
    lowest = min(float(row["value"]) for row in own)
    return sum(float(row["value"]) == lowest for row in own), len(own)


def positive_between(low: float, high: float) -> int:
    """Number of rows whose positive test rounds to a value in a range."""
    areas = (float(row["value"]) for row in column("positive(black)", protocol="chefer21").values())
    return sum(low <= round(area, 1) <= high for area in areas)


def label_gains(score: str, protocol: str) -> int:
    """Number of rows that are significantly better with maps of the label."""
    return sum(significant(row, "to_predicted") for row in column(score, "label", protocol).values())


def discriminating() -> tuple[int, int]:
    """Class-specific rows on pairs whose interval is above one half, and all of them."""
    found = content("studies/results/pairs-scenes.json")["results"][0]["methods"]
    own = {n: v for n, v in found.items() if n not in CONTROLS and METHODS[n.partition(":")[0]].class_specific}
    return sum(one["wins"][1] > 0.5 for one in own.values()), len(own)


def quick_and_faithful() -> tuple[int, int]:
    """Methods that pass by SRG, noise and cost, and methods whose cost was measured."""
    cards = {name: method_card(name).lines for name in METHODS if METHODS[name].family != "control"}
    timed = {name: lines for name, lines in cards.items() if "cost" in lines and "srg" in lines}
    passed = [n for n, lines in timed.items() if all(lines[key].rating == "pass" for key in ("srg", "noise", "cost"))]
    return len(passed), len(timed)


def timm_counts() -> tuple[int, int, int]:
    """Methods that were tried on timm's models, plain models on which all work, and plain models."""
    plain = [row["works"].split() for row in rows("studies/results/sweep-timm.csv") if row["attention"] == "plain"]
    most = max(len(works) for works in plain)
    return most, sum(len(works) == most for works in plain), len(plain)


def place(path: str, method: str, score: str = "f1") -> tuple[int, int]:
    """The place of a method among the methods of movie reviews, and their number."""
    own = [row for row in content(path)["rows"] if row["method"] not in CONTROLS]
    order = [row["method"] for row in sorted(own, key=lambda row: -row[score]["mean"])]
    return order.index(method) + 1, len(order)


def behind_last_words() -> tuple[int, int]:
    """Number of methods on BERT-base's size whose token-F1 is below that of a review's last words, and of all."""
    first = place(f"{MOVIES}-base.json", "gradtoken")[1]
    rows = {row["method"]: row["f1"]["mean"] for row in content(f"{MOVIES}-base.json")["rows"]}
    own = [value for name, value in rows.items() if name not in CONTROLS]
    return sum(value < rows["end first"] for value in own), first


def below_centre(model: str) -> int:
    """Number of compared methods whose mean faithfulness is below that of the centred blob."""
    found = {row["method"]: row["faithfulness"][0] for row in content("studies/results/compare.json")[model]["rows"]}
    return sum(value < found["centre"] for name, value in found.items() if name not in CONTROLS)


def compared() -> tuple[str, int]:
    """The number of compared methods below the centred blob, the same on both models, and of all of them."""
    first, second = "vit_tiny_patch16_224", "vit_small_patch14_dinov2"
    assert below_centre(first) == below_centre(second)
    return WORDS[below_centre(first)], len(content("studies/results/compare.json")[first]["rows"]) - 2


def shipped(name: str, digits: int = 2) -> tuple[str, str]:
    """Millions of parameters and megabytes of the weights of a shipped model."""
    data = (ROOT / f"src/vitrail/models/weights/{name}.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    numbers = sum(math.prod(entry["shape"]) for key, entry in header.items() if key != "__metadata__")
    return f"{numbers / 1e6:.2f}", f"{len(data) / 1e6:.{digits}f}"


def sizes(page: str, *names: str, digits: int = 2) -> tuple[Claim, ...]:
    """The rows of parameters and of the file in a card of shipped models."""
    columns = zip(*(shipped(name, digits) for name in names), strict=True)
    parameters, megabytes = (" | ".join(column) for column in columns)
    return (
        Claim(page, "| parameters | {} M |", lambda: (parameters.replace(" |", " M |"),)),
        Claim(page, "| file, float16 | {} MB |", lambda: (megabytes.replace(" |", " MB |"),)),
    )


@cache
def example_values(path: str) -> Any:
    """A file of the values of each example."""
    return pl.read_parquet(ROOT / path)


def paired(path: str, methods: tuple[str, str], examples: int, **chosen: str) -> tuple[str, str, str]:
    """Difference of two methods in points, with its 95 % interval; examples in the order of the file."""
    table = example_values(path).filter(pl.col("value").is_not_nan(), **chosen)
    own = [table.filter(method=name)["value"].to_numpy().astype(float) for name in methods]
    assert len(own[0]) == len(own[1]) == examples, chosen
    value, low, high = (f"{100 * number:.1f}".replace("-", "−") for number in difference(*own))
    return value, low, high


def leads_of_vtranm(order: str) -> list[tuple[float, float, float]]:
    """Differences of VTranM to the best other method on CIFAR-10 by an order of removal, with their intervals."""
    found = []
    for model in ("cifar10", "cifar10-distilled"):
        table = example_values(f"studies/results/paper-tables-{model}-{model}.parquet")
        for target in ("label", "predicted"):
            own = table.filter(score=f"{order}(black)", target=target).pivot("method", index="image", values="value")
            means = {name: own[name].mean() for name in own.columns[1:] if name not in CONTROLS | {"vtranm"}}
            best = (min if order == "positive" else max)(means, key=means.__getitem__)
            found.append(tuple(difference(own["vtranm"].to_numpy(), own[best].to_numpy())))
    return found


def positive_leads() -> tuple[str, str]:
    """The smallest and the largest lead of VTranM in the positive test on CIFAR-10, in points."""
    assert all(low <= 0 <= high for _, low, high in leads_of_vtranm("negative"))
    leads = leads_of_vtranm("positive")
    assert all(high < 0 for *_, high in leads)
    return f"{min(-value for value, *_ in leads):.1f}", f"{max(-value for value, *_ in leads):.1f}"


def leads_by_road() -> tuple[str, ...]:
    """Leads of gradient x input over the next method by ROAD on three models, in points, with their intervals."""
    found: tuple[str, ...] = ()
    for model in ("vit-t", "deit-t", "dinov2-s"):
        path = f"studies/results/grid_pointing/{model}-1.parquet"
        own = example_values(path).filter(score="road").group_by("method").agg(pl.col("value").mean())
        first, second = own.sort("value", descending=True)["method"].to_list()[:2]
        assert first == "gradient_x_input"
        found += paired(path, (first, second), 40, score="road")
    return found


def random_removal() -> tuple[str, str]:
    """The lowest and the highest score of the control `random` by removal of marked cells on the worlds."""
    table = rows("results/worlds.csv")
    own = [float(row["mean"]) for row in table if (row["method"], row["score"]) == ("random", "better")]
    return f"{100 * min(own):.1f}", f"{100 * max(own):.1f}"


THOUSAND, PAGE = "results/imagenet1000.csv", "docs/results.md"
MODELS, THREE = "docs/three-models.md", "results/three_models"
MOVIES = "studies/results/movies"
WORLDS, RECALL, NEEDLES = "results/worlds.parquet", "results/recall.parquet", "studies/results/needles-smollm2.parquet"
OBJECT, SINGLE = ("leadlight", "leadlight:object"), ("leadlight", "leadlight:single")
CLAIMS = (
    Claim("README.md", "{} methods by twelve scores", lambda: (len(measured_methods(THOUSAND)),)),
    Claim("README.md", "[{} tutorials]", lambda: (tutorials().capitalize(),)),
    Claim("docs/tutorials/index.md", "{} short notebooks", lambda: (tutorials().capitalize(),)),
    Claim("docs/index.md", "{} methods on ImageNet and Pets", lambda: (len(measured_methods(THOUSAND)),)),
    Claim("results/README.md", "Scores of {} methods on ViT-Tiny/16", lambda: (len(measured_methods(THOUSAND)),)),
    Claim(PAGE, "{} of {} rows are significantly better than every control by SRG",
          lambda: (WORDS[len(both_srg())].capitalize(), forms(THOUSAND))),
    Claim(PAGE, "{0} of {1} rows are significantly better than the centre control by SRG with tokens (↑), {2} of {1}",
          lambda: (len(better_than_controls(column("srg(tokens)"))), forms(THOUSAND),
                   len(better_than_controls(column("srg(black)"))))),
    Claim(PAGE, "{} of {} rows beat every control and {} lie between 9.6 and 11.5 %",
          lambda: (len(better_than_controls(column("positive(black)", protocol="chefer21"))), forms(THOUSAND),
                   positive_between(9.6, 11.5))),
    Claim(PAGE, "(↑; {} of {} rows significantly better)",
          lambda: (len(better_than_controls(column("hit@0"))), forms(THOUSAND))),
    Claim(PAGE, "{} of {} improve significantly in the positive test (`gradient_x_input` gets worse), {} in the",
          lambda: (label_gains("positive(black)", "chefer21"),
                   sum(bool(row["to_predicted"]) for row in column("hit@0", "label").values()),
                   label_gains("negative(black)", "chefer21"))),
    Claim(MODELS, "for the {} rows of at most two passes", lambda: (forms(f"{THREE}_single.csv"),)),
    Claim(MODELS, "{} rows, RISE with 1,000 masks", lambda: (forms(f"{THREE}.csv"),)),
    Claim(MODELS, "in {} of 36 columns, scheme 3 (`gradtoken:3`) in {}",
          lambda: (better_columns("gradtoken"), better_columns("gradtoken:3"))),
    Claim("docs/compare.md", "{} of {} methods on each model", compared),
    Claim("docs/scores/wsol.md", "{} of {} rows have the 41.4 % of the box of the whole image", whole_image_boxes),
    Claim("docs/text.md", "`leadlight` (0.129) is third of {} methods",
          lambda: (place(f"{MOVIES}.json", "leadlight")[1],)),
    Claim("studies/README.md", "`leadlight` is third of {}.", lambda: (place(f"{MOVIES}.json", "leadlight")[1],)),
    Claim("docs/text.md", "GradToken is {}th of {} (0.098)", lambda: place(f"{MOVIES}-base.json", "gradtoken")),
    Claim("studies/README.md", "`gradtoken` 0.098 ({}th of {})", lambda: place(f"{MOVIES}-base.json", "gradtoken")),
    Claim("docs/text.md", "gives 0.129, more than {} of the {} methods", behind_last_words),
    Claim("studies/README.md", "**On scenes with two objects, {} of {} class-specific rows prefer", discriminating),
    Claim("studies/README.md", "| {} of {} class-specific rows do |", discriminating),
    Claim("studies/README.md", "**{} of the {} methods with a measured time", quick_and_faithful),
    Claim("studies/README.md", "| {} of the {} methods with a measured time", quick_and_faithful),
    Claim("studies/README.md", "All {} methods tried work on {} of {} plain vision transformers", timm_counts),
    Claim("studies/README.md", "all {} on {} of {} plain vision transformers", timm_counts),
    Claim("docs/worlds.md", "(90.5 against 88.2 %, difference {} points [{}, {}])",
          lambda: paired(WORLDS, OBJECT, 200, task="movements", score="share")),
    Claim("docs/worlds.md", "87.0 against 96.0 % ({} points [{}, {}])",
          lambda: paired(WORLDS, OBJECT, 200, task="words", score="top")),
    Claim("docs/worlds.md", "52.2 against 58.3 % ({} points [{}, {}])",
          lambda: paired(WORLDS, OBJECT, 200, task="tones", score="hit")),
    Claim("docs/worlds.md", "[questions](#questions) ({} points [{}, {}])",
          lambda: paired(WORLDS, OBJECT, 200, task="questions", score="first")),
    Claim("docs/worlds.md", "95.5 against 94.2 %, a difference of {} points [{}, {}]",
          lambda: paired(WORLDS, OBJECT, 200, task="captions", score="share")),
    Claim("docs/language-model-truth.md", "(before 77.5 %, difference {} points [{}, {}])",
          lambda: paired(RECALL, SINGLE, 100, task="copy", score="share")),
    Claim("docs/language-model-truth.md", "(`attnlrp:released`: 96.0 %, difference {} points [{}, {}], paired",
          lambda: paired(NEEDLES, ("context_cite", "attnlrp:released"), 300, score="odds word")),
    Claim("docs/language-model-truth.md", "(29.3 %, difference {} points [{}, {}], paired bootstrap)",
          lambda: paired(NEEDLES, SINGLE, 300, score="answer word")),
    Claim("docs/worlds.md", "the `random` control lies between {} and {} %", random_removal),
    Claim("docs/scores/faithfulness.md", "(of `gradient_x_input` {} [{}, {}], {} [{}, {}] and {} [{}, {}] points",
          leads_by_road),
    Claim("docs/papers/vtranm.md", "its area is {} to {} points lower (↓) than that of the next", positive_leads),
    *sizes("docs/cards/cifar10.md", "cifar10", digits=1),
    *sizes("docs/cards/cifar10-distilled.md", "cifar10-distilled", digits=1),
    *sizes("docs/cards/lm-recall.md", "lm-recall"),
    *sizes("docs/cards/movements-tones.md", "scenes-video", "tones"),
    *sizes("docs/cards/scenes.md", "scenes", "scenes-tagged", digits=1),
    *sizes("docs/cards/scenes-tasks.md", "scenes-clip", "scenes-detr", "scenes-seg"),
    *sizes("docs/cards/scenes-vlm.md", "scenes-vlm", digits=1),
)  # fmt: skip


def tutorials() -> str:
    """The number of tutorials, as a word."""
    return WORDS[len(list((ROOT / "docs" / "tutorials").glob("*.ipynb")))]
