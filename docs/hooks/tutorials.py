"""Tutorials: run their notebooks, and show the outputs on their pages.

    python docs/hooks/tutorials.py [--text] [NAME ...]

docs/tutorials/NAME.md is the source, Markdown that jupytext reads: each ``python`` block is a cell. This command runs
the cells and writes docs/tutorials/NAME.ipynb, which is committed and is what readers download; with ``--text``, cells
keep the committed outputs, for changes of the text between them. As a MkDocs hook, this file puts the outputs of the
committed notebook below the blocks of the page; nothing is run while the site is built.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

FOLDER = Path(__file__).resolve().parents[1] / "tutorials"
BLOCK = re.compile(r"^```python\n(.*?)^```\n?", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]+\)")
EMBEDDED = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=]+)")
#: Kinds of output that are kept, the first that an output has.
KINDS = ("text/html", "image/png", "text/plain")
#: tqdm advises to install widgets, which no tutorial uses.
QUIET = "ignore:IProgress not found"
#: Seconds that a cell may take.
TIMEOUT = 600


def sources() -> list[Path]:
    """The pages that are notebooks, in the order of their names."""
    return sorted(page for page in FOLDER.glob("*.md") if page.name != "index.md")


def read_source(page: Path) -> Any:
    """The notebook of a page, without outputs.

    Cells are numbered instead of named at random, and links between pages become plain text, because a downloaded
    notebook has no pages beside it.
    """
    import jupytext

    notebook = jupytext.read(page)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        if cell.cell_type == "markdown":
            cell.source = LINK.sub(r"\1", cell.source)
    return notebook


def execute(notebook: Any, environment: Mapping[str, str] | None = None, **options: Any) -> Any:
    """Run the cells in a folder and with a cache of their own, and return the notebook with outputs.

    Args:
        notebook: What `read_source` returned; it is changed.
        environment: Further variables for the cells, such as paths of weights.
        options: Further options of nbclient's `NotebookClient`.
    """
    from nbclient import NotebookClient
    from traitlets.config import Config

    with tempfile.TemporaryDirectory() as folder:
        given = {
            **os.environ,
            "XDG_CACHE_HOME": folder,
            "IPYTHONDIR": folder,
            "PYTHONWARNINGS": QUIET,
            **(environment or {}),
        }
        sockets = {"transport": "ipc", "connection_file": f"{folder}/kernel.json"}
        client = NotebookClient(
            notebook,
            timeout=TIMEOUT,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
            config=Config(AsyncKernelManager=sockets),
            **options,
        )
        client.execute(env=given)
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [_kept(output) for output in cell.outputs]
    return notebook


def _kept(output: Any) -> Any:
    """An output with its first kind of content only, and with small images."""
    if "data" in output:
        kind = next(kind for kind in KINDS if kind in output.data)
        content = output.data[kind]
        if kind == "image/png":
            content = _small_png(content)
        elif kind == "text/html":
            content = EMBEDDED.sub(lambda found: f"data:image/jpeg;base64,{_small_jpeg(found[1])}", content)
        output.data, output.metadata = {kind: content}, {}
    return output


def _small_png(encoded: str) -> str:
    """A figure with 128 colours."""
    return _encode(_decode(encoded).quantize(128, dither=Image.Dither.NONE), "PNG", optimize=True)


def _small_jpeg(encoded: str) -> str:
    return _encode(_decode(encoded), "JPEG", quality=88, optimize=True)


def _decode(encoded: str) -> Image.Image:
    return Image.open(BytesIO(base64.b64decode(encoded))).convert("RGB")


def _encode(image: Image.Image, kind: str, **options: Any) -> str:
    stream = BytesIO()
    image.save(stream, kind, **options)
    return base64.b64encode(stream.getvalue()).decode()


def render(markdown: str, notebook: Mapping[str, Any], name: str) -> str:
    """Put the outputs of a notebook below the blocks of its page, and a link to the notebook below the title."""
    cells = iter([cell for cell in notebook["cells"] if cell["cell_type"] == "code"])

    def with_outputs(block: re.Match[str]) -> str:
        cell = next(cells, None)
        if cell is None or "".join(cell["source"]) != block[1].rstrip("\n"):
            raise ValueError(f"{name}.ipynb does not belong to {name}.md: run python docs/hooks/tutorials.py {name}")
        return block[0] + "\n" + "\n\n".join(_shown(cell["outputs"])) + "\n"

    shown = BLOCK.sub(with_outputs, markdown)
    title, _, rest = shown.partition("\n\n")
    return f"{title}\n\n[Download this page as a notebook]({name}.ipynb){{ download }}\n\n{rest}"


def _shown(outputs: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for output in outputs:
        if output["output_type"] == "stream":
            yield _block(f"<pre>{html.escape(''.join(output['text']).rstrip())}</pre>")
        elif "text/html" in output["data"]:
            yield _block("".join(output["data"]["text/html"]))
        elif "image/png" in output["data"]:
            png = "".join(output["data"]["image/png"]).replace("\n", "")
            yield _block(f'<img alt="figure" src="data:image/png;base64,{png}">')
        else:
            yield _block(f"<pre>{html.escape(''.join(output['data']['text/plain']))}</pre>")


def _block(content: str) -> str:
    """Raw HTML that Markdown leaves as it is: without empty lines."""
    lines = "\n".join(line for line in content.splitlines() if line.strip())
    return f'<div class="output" data-search-exclude>{lines}</div>'


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Show the outputs on the page of a tutorial."""
    path = Path(config.docs_dir) / page.file.src_uri
    if path.parent != Path(config.docs_dir) / "tutorials" or path.name == "index.md":
        return markdown
    return render(markdown, json.loads(path.with_suffix(".ipynb").read_text(encoding="utf-8")), path.stem)


def with_committed_outputs(notebook: Any, page: Path) -> Any:
    """A notebook with the outputs of the committed one, whose cells must be the same."""
    import nbformat

    committed = nbformat.read(page.with_suffix(".ipynb"), as_version=4)
    own, old = ([cell for cell in one.cells if cell.cell_type == "code"] for one in (notebook, committed))
    if [cell.source for cell in own] != [cell.source for cell in old]:
        raise ValueError(f"cells of {page.name} have changed: run it without --text")
    for cell, before in zip(own, old, strict=True):
        cell.outputs, cell.execution_count = before.outputs, before.execution_count
    return notebook


def main(names: list[str]) -> None:
    """Run some notebooks, or all, and write them."""
    import nbformat

    text_only = "--text" in names
    names = [name for name in names if name != "--text"]
    for page in sources():
        if not names or page.stem in names:
            source = read_source(page)
            notebook = with_committed_outputs(source, page) if text_only else execute(source)
            page.with_suffix(".ipynb").write_text(nbformat.writes(notebook).rstrip("\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
