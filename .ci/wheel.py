"""Build the sdist and the wheel, install the wheel into a new environment, and use it there.

Dependencies are not downloaded again. The new environment links to the installed copies of what the wheel requires,
without extras, so the wheel runs with its declared dependencies only. The GitHub workflow does a clean installation.

    python .ci/wheel.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
#: Largest wheel, in bytes.
LIMIT = 28_000_000


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command and return what it prints; Python's variables are removed for all but this interpreter."""
    own = command[0] == sys.executable
    environment = {k: v for k, v in os.environ.items() if own or not k.startswith(("PYTHON", "COV"))}
    print("$", *map(str, command), flush=True)
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}exit status {done.returncode}")
    return done.stdout


def required(names: list[str], found: dict[str, Distribution]) -> dict[str, Distribution]:
    """Distributions that some requirements name, with their own requirements."""
    for text in names:
        requirement = Requirement(text)
        wanted = requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in requirement.extras or {""}
        )
        name = requirement.name.lower().replace("_", "-")
        if wanted and name not in found:
            found[name] = distribution(name)
            required(found[name].requires or [], found)
    return found


def link(one: Distribution, folder: Path) -> None:
    """Link the top-level files and folders of a distribution into a site-packages folder."""
    for top in sorted({file.parts[0] for file in one.files or () if ".." not in file.parts}):
        source, target = Path(str(one.locate_file(top))), folder / top
        if source.exists() and not target.exists() and top != "__pycache__":
            target.symlink_to(source)


def main() -> None:
    """Build, install and use."""
    with tempfile.TemporaryDirectory(prefix="vitrail-wheel-") as name:
        tmp = Path(name)
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp / "dist", ROOT, cwd=tmp)
        (wheel,), (sdist,) = tmp.glob("dist/*.whl"), tmp.glob("dist/*.tar.gz")
        print(f"{sdist.name} {sdist.stat().st_size / 1e6:.1f} MB, {wheel.name} {wheel.stat().st_size / 1e6:.1f} MB")
        if wheel.stat().st_size > LIMIT:
            sys.exit(f"{wheel.name} has {wheel.stat().st_size / 1e6:.1f} MB, more than {LIMIT / 1e6:.0f} MB")
        run(sys.executable, "-m", "venv", "--without-pip", tmp / "env", cwd=tmp)
        python = tmp / "env" / "bin" / "python"
        site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp).strip())
        pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(python)]
        run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=tmp)
        (metadata,) = site.glob("vitrail-*.dist-info")
        for one in required(Distribution.at(metadata).requires or [], {}).values():
            link(one, site)
        where = run(python, "-c", "import vitrail; print(vitrail.__file__)", cwd=tmp).strip()
        if not Path(where).is_relative_to(site):
            sys.exit(f"vitrail was imported from {where}, not from {site}")
        vitrail = tmp / "env" / "bin" / "vitrail"
        print(run(vitrail, "--version", cwd=tmp).strip())
        run(vitrail, "explain", "--out", "out", cwd=tmp)
        page = tmp / "out" / "index.html"
        if not page.is_file():
            sys.exit("vitrail explain wrote no page")
        print(f"vitrail explain wrote {page.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
