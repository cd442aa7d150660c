"""Tutorials: committed notebooks belong to their pages, are clean and small, and run from top to bottom."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import warnings

import pytest

from tests.repository.forked_kernels import forked_kernels
from tests.repository.test_docs import BLOCK, ROOT

FOLDER = ROOT / "docs" / "tutorials"
NAMES = [page.stem for page in sorted(FOLDER.glob("*.md")) if page.name != "index.md"]
#: Bytes of all committed notebooks together.
MOST_BYTES = 1_500_000
#: The notebook that is run by a kernel of its own, so that importing the libraries prints nothing either.
NEW_KERNEL = "first-explanation"
MACHINE_PATHS = re.compile(r"/(tmp|home|root|Users|usr|opt|work|var)/|site-packages|ipykernel_|[A-Z]:\\\\")


@pytest.fixture(scope="module")
def tutorials():
    spec = importlib.util.spec_from_file_location("docs_hook_tutorials", ROOT / "docs" / "hooks" / "tutorials.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def page(name):
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def committed(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


def outputs(notebook):
    return [output for cell in notebook["cells"] if cell["cell_type"] == "code" for output in cell["outputs"]]


def kinds(notebook):
    """What each cell shows: streams by name, data by type."""
    code = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    return [[output.get("name") or list(output["data"]) for output in cell["outputs"]] for cell in code]


def test_there_are_twelve_and_each_is_in_the_navigation():
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    index = page("index")
    assert len(NAMES) == 12
    for name in NAMES:
        assert f"tutorials/{name}.md" in config
        assert f"({name}.md)" in index


@pytest.mark.parametrize("name", NAMES)
def test_committed_notebook_belongs_to_its_page(name, tutorials):
    """The hook refuses a notebook whose cells are not the blocks of the page."""
    shown = tutorials.render(page(name), committed(name), name)
    assert f"({name}.ipynb){{ download }}" in shown
    assert shown.count('<div class="output"') == len(outputs(committed(name))) >= 4
    changed = page(name).replace("```python\n", "```python\n# changed\n", 1)
    with pytest.raises(ValueError, match=f"docs/hooks/tutorials.py {name}"):
        tutorials.render(changed, committed(name), name)


@pytest.mark.parametrize("name", NAMES)
def test_committed_outputs_are_clean(name):
    found = outputs(committed(name))
    assert {output["output_type"] for output in found} <= {"stream", "display_data", "execute_result"}
    assert all(output.get("name") != "stderr" for output in found), "a warning or an error was printed"
    for output in found:
        text = "".join(output.get("text", "")) + "".join(
            "".join(content) for kind, content in output.get("data", {}).items() if kind != "image/png"
        )
        text = re.sub(r"base64,[A-Za-z0-9+/=]+", "", text)
        assert not MACHINE_PATHS.search(text), text[:400]
        assert "Warning" not in text


def test_notebooks_are_small():
    assert sum(path.stat().st_size for path in FOLDER.glob("*.ipynb")) <= MOST_BYTES


@pytest.fixture(scope="module")
def forked(tutorials):
    """Options of `execute` for kernels that have imported the libraries."""
    for module in ("jupytext", "nbclient", "ipykernel"):
        pytest.importorskip(module)
    with forked_kernels({"PYTHONWARNINGS": tutorials.QUIET}) as manager:
        yield {"kernel_manager_class": manager}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_notebook_runs(name, tutorials, forked):
    """Each cell runs without an error or a warning, and shows what the committed notebook shows."""
    source = tutorials.read_source(FOLDER / f"{name}.md")
    written = [(cell["cell_type"], "".join(cell["source"])) for cell in committed(name)["cells"]]
    assert [(cell.cell_type, cell.source) for cell in source.cells] == written, "run docs/hooks/tutorials.py --text"
    options = forked if name != NEW_KERNEL else {}
    notebook = tutorials.execute(source, **options)
    printed = [output for output in outputs(notebook) if output.get("name") == "stderr"]
    assert not printed, printed[0]["text"]
    assert kinds(notebook) == kinds(committed(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["first-explanation", "which-method"])
def test_own_weights_are_used(name, assets, monkeypatch, tmp_path, capsys):
    """The last cell of a tutorial with real weights and images."""
    photos = sorted((assets / "pets" / "images").glob("*.jpg"))
    monkeypatch.setenv("VITRAIL_WEIGHTS", str(assets / "weights" / "vit_tiny_patch16_224.safetensors"))
    monkeypatch.setenv("VITRAIL_PHOTO", str(photos[0]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("VITRAIL_PHOTOS", str(photos[0].parent))
    block = next(body for body in BLOCK.findall(page(name)) if "VITRAIL_WEIGHTS" in body)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(f"import vitrail\n{block}", name, "exec"), {})  # noqa: S102
    shown = capsys.readouterr().out
    assert "Set VITRAIL_WEIGHTS" not in shown
    assert "leadlight" in shown
