"""Write a report: a page, Markdown and CSV."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vitrail.bench.parts import write_file
from vitrail.report.html_report import html
from vitrail.report.markdown import markdown
from vitrail.report.rationale import rationale_csv, rationale_markdown, rationale_page, read_rationales
from vitrail.report.rows import as_csv
from vitrail.report.run import Run
from vitrail.report.summary import make_sheet


def write_report(
    folder: str | Path,
    out: str | Path | None = None,
    *,
    each: int = 1,
    device: str = "cpu",
    advance: Callable[[], None] = lambda: None,
) -> Path:
    """Report on a run, finished or not: report.html, report.md and report.csv.

    Args:
        folder: The run's folder.
        out: Where to write; the run's folder unless told.
        each: See `make_sheet`.
        device: See `make_sheet`.
        advance: See `make_sheet`.

    Returns:
        The page.

    Raises:
        DataError: It is not the folder of a run, or nothing in it is done.
    """
    sheet = make_sheet(Run(folder), each, device, advance)
    return _write(Path(out or folder), html(sheet), markdown(sheet), as_csv(sheet))


def write_rationales(path: str | Path, out: str | Path | None = None) -> Path:
    """The same of token-F1 that a benchmark wrote; beside the file unless told otherwise."""
    about, found = read_rationales(path)
    folder, stem = Path(out or Path(path).parent), Path(path).stem
    texts = rationale_page(about, found), rationale_markdown(found), rationale_csv(found)
    return _write(folder, *texts, name=f"{stem}-report")


def _write(folder: Path, page: str, text: str, table: str, name: str = "report") -> Path:
    for suffix, content in ((".md", text), (".csv", table), (".html", page)):
        data = content.encode()
        path = write_file(folder / f"{name}{suffix}", lambda file, data=data: file.write(data))  # type: ignore[misc]
    return path
