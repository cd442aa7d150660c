"""ExplanationViewer: an interactive page with the maps of several methods, for notebooks and files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from markupsafe import Markup
from torch import Tensor, nan_to_num

from vitrail.errors import InputError, writing
from vitrail.viz.colormap import colour_tables, to_image
from vitrail.viz.map_encoding import encode_map
from vitrail.viz.templating import png_uri, render
from vitrail.viz.types import ExplanationLike

#: Modules of the web page that the viewer uses, in the order in which they are inlined.
PAGE_MODULES = ("maps.js", "colour.js", "dom.js")
#: Most rows and columns of a map; finer maps are averaged.
MAX_CELLS = 112
#: Most images or texts in one viewer.
MAX_INPUTS = 32

_IMPORT = re.compile(r'^import\s[^;]*?\sfrom\s+"\./([\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(async )?(function|const|let|class)\b)", re.MULTILINE)


class ExplanationViewer:
    """A page with the maps of one or several methods: class, opacity, and the value of each patch or word.

    In a notebook it displays itself in a frame. It contains everything it needs and loads nothing.

    Args:
        explanations: Explanations of the same inputs by method.
        height: Height of the frame in a notebook, in pixels.
    """

    def __init__(self, explanations: Mapping[str, ExplanationLike], height: int = 460) -> None:
        if not explanations:
            raise InputError("there are no explanations to view")
        self.explanations, self.height = dict(explanations), height

    @property
    def html(self) -> str:
        """The whole page."""
        first = next(iter(self.explanations.values()))
        texts = first.of_texts
        if not texts and first.rgb_images is None:
            raise InputError(
                "these explanations have neither images nor words to show: pass a tokenizer with texts; draw videos, "
                "sound, series and features with overlay() or figure()"
            )
        count = min(len(first.maps), MAX_INPUTS)
        describe = self._text if texts else self._image
        content = {
            "kind": "text" if texts else "image",
            "methods": [
                {"title": e.title, "spec": name if ":" in name else "", "signed": e.signed}
                for name, e in self.explanations.items()
            ],
            "inputs": [describe(b) for b in range(count)],
        }
        left_out = len(first.maps) - count
        footer = first.model + (f"; the first {count} of {count + left_out} inputs" if left_out else "")
        # "<" is escaped so that no label can end the script element.
        data = Markup(json.dumps(content, ensure_ascii=False).replace("<", "\\u003c"))  # noqa: S704
        code = Markup(viewer_code())  # noqa: S704 - files of this package
        return render("viewer.html", title=f"Explanations of {first.model}", data=data, code=code, footer=footer,
                      colour_tables=colour_tables())  # fmt: skip

    def save(self, path: str | Path) -> Path:
        """Write the page to a file.

        Raises:
            OutputError: The file cannot be written.
        """
        path = Path(path)
        with writing(path, "choose another file"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.html, encoding="utf-8")
        return path

    def _repr_html_(self) -> str:
        # A separate frame isolates the page's styles and scripts from the notebook's.
        return (
            f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts" title="Explanations" '
            f'style="width:100%;height:{self.height}px;border:0"></iframe>'
        )

    def _image(self, b: int) -> dict[str, Any]:
        first = next(iter(self.explanations.values()))
        assert first.rgb_images is not None
        pixels = first.rgb_images[b]
        return {
            "name": _name(first, b, "image"),
            "image": {"src": png_uri(to_image(pixels)), "height": pixels.shape[0], "width": pixels.shape[1]},
            "targets": [first.label(b, k) for k in range(first.maps.shape[1])],
            "maps": [list(_encoded_maps(e, b)) for e in self.explanations.values()],
        }

    def _text(self, b: int) -> dict[str, Any]:
        first = next(iter(self.explanations.values()))
        assert first.text is not None
        targets = range(first.maps.shape[1])
        return {
            "name": f"{b + 1}: {first.text[b].text[:40]}",
            "text": first.text[b].text,
            "targets": [first.label(b, k) for k in targets],
            "maps": [[{"words": _words(e, b, k)} for k in targets] for e in self.explanations.values()],
        }


@cache
def viewer_code() -> str:
    """The viewer's script and the modules of the page it uses, as one module.

    Raises:
        InputError: A module imports another one that is not among them.
    """
    parts = []
    static, known = files("vitrail.web").joinpath("static"), {*PAGE_MODULES}
    sources = [static.joinpath(name).read_text(encoding="utf-8") for name in PAGE_MODULES]
    sources.append(files("vitrail.viz").joinpath("viewer.js").read_text(encoding="utf-8"))
    for source in sources:
        missing = set(_IMPORT.findall(source)) - known
        if missing:
            raise InputError(f"the viewer does not contain {', '.join(sorted(missing))}: add it to PAGE_MODULES")
        parts.append(_EXPORT.sub("", _IMPORT.sub("", source)))
    return "\n".join(parts)


def _encoded_maps(explanation: ExplanationLike, b: int) -> Iterator[dict[str, Any]]:
    """Each target's map as the page's modules decode it, and a note: that it is constant, or a check's verdict."""
    for k in range(explanation.maps.shape[1]):
        check = explanation.checks.get((b, k))
        note = "no relevance" if bool(explanation.constant[b, k]) else "" if check is None else check.verdict
        yield {"map": encode_map(_cells(explanation.grid[b, k].float()), explanation.signed), "note": note}


def _cells(grid: Tensor) -> Tensor:
    """A map with at most `MAX_CELLS` rows and columns."""
    rows, columns = (min(n, MAX_CELLS) for n in grid.shape)
    return grid if (rows, columns) == tuple(grid.shape) else F.adaptive_avg_pool2d(grid[None], (rows, columns))[0]


def _words(explanation: ExplanationLike, b: int, k: int) -> list[dict[str, Any]]:
    """The words of a text with their raw scores and scores scaled to [0, 1] or [-1, 1]."""
    assert explanation.text is not None
    text = explanation.text[b]
    shades, scores = (nan_to_num(t[k].double(), 0.0, 0.0, 0.0).tolist() for t in (text.normalised, text.scores))
    return [
        {"start": start, "end": end, "score": shade, "raw": raw, "seen": seen}
        for (start, end), shade, raw, seen in zip(text.spans, shades, scores, text.seen, strict=True)
    ]


def _name(explanation: ExplanationLike, b: int, kind: str) -> str:
    provenance = getattr(explanation, "provenance", None)
    return provenance.inputs[b] if provenance is not None else f"{kind} {b}"
