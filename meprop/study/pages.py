"""The executed notebooks of the repository, and executing them anew.

`notebooks/*.ipynb` hold their default parameters. `notebooks/pages/` has one of them per table of
the paper and per study of experiments.yml, `notebooks/runs/` the one that trains per configuration.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from meprop.study._declarations import ExperimentsError, nearest
from meprop.study._entitle import entitle
from meprop.study.experiments import ROOT, load
from meprop.study.labels import run_title
from meprop.study.paper import paper
from meprop.study.pipeline import available_cores, find
from meprop.study.report import readme

FOLDER = Path("notebooks")


@dataclass(frozen=True)
class Page:
    """A notebook, the parameters it gets, and where the executed one is kept (below `ROOT`)."""

    notebook: Path
    path: Path
    parameters: dict[str, Any] = field(default_factory=dict)
    title: str | None = None  # in place of the notebook's own

    @property
    def name(self) -> str:
        return self.path.stem


def pages() -> list[Page]:
    """Every page that `make notebooks` refreshes: the notebooks themselves, then what they make."""
    own = sorted(path.relative_to(ROOT) for path in (ROOT / FOLDER).glob("*.ipynb"))
    return [*(Page(path, path) for path in own), *_made()]


def run_pages() -> list[Page]:
    """The runs whose notebooks are part of the repository, as far as they are done.

    Each is shown from its record: nothing is trained.
    """
    return [
        Page(
            FOLDER / "train.ipynb",
            run.notebook,
            run.config.to_dict() | {"record": run.record.as_posix()},
            run_title(run),
        )
        for run in load().runs
        if run.notebook.is_relative_to(FOLDER) and find(run)[0] is not None
    ]


def _made() -> Iterator[Page]:
    for number, its in paper()["tables"].items():
        title = f"{its['where']}: accuracy {its['about']}"
        yield _page("03-tables", f"table{number}", title, table=number)
    for study in load().studies.values():
        title = study.about.rstrip()
        yield _page("04-ablations", f"ablation-{study.name}", title, study=study.name)


def _page(notebook: str, name: str, title: str, **parameters: Any) -> Page:
    path = FOLDER / "pages" / f"{name}.ipynb"
    return Page(FOLDER / f"{notebook}.ipynb", path, parameters, title)


def execute(page: Page, target: Path) -> None:
    """Execute a page's notebook into the file `target`; an `ExperimentsError` says what failed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}")
    command = [sys.executable, "-m", "papermill", page.notebook.as_posix(), str(draft)]
    command += ["--no-progress-bar", "--no-request-save-on-cell-execute", "-k", "python3"]
    command += ["--start-timeout", "300"]
    done = subprocess.run(
        [*command, "-y", yaml.safe_dump(page.parameters)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        # The kernel is the one of this very environment.
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
    )
    if done.returncode:
        draft.unlink(missing_ok=True)
        raise ExperimentsError(f"{page.path}: {_reason(done.stderr)}")
    entitle(draft, page.title, page.path.as_posix())
    os.replace(draft, target)


def _reason(errors: str) -> str:
    """The last line of a traceback, which names the mistake."""
    lines = [line for line in errors.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "papermill failed without a word"


def refresh(names: Sequence[str] = (), cores: int | None = None) -> int:
    """Execute pages in place, all or the named ones; returns the exit code."""
    every = [*pages(), *run_pages()]
    known = [page.name for page in every]
    for name in names:
        if name not in known:
            raise ExperimentsError(f"notebooks: no page {name!r}; {nearest(name, known)}")
    if cores is not None and cores < 1:
        raise ExperimentsError(f"notebooks: cores must be at least 1, got {cores}")
    chosen = [page for page in every if not names or page.name in names]
    failed = 0
    with ThreadPoolExecutor(cores or available_cores()) as pool:
        for page, error, seconds in pool.map(_refresh, chosen):
            failed += error is not None
            if error is None:
                print(f"executed  {page.path}, in {seconds:.0f} s", flush=True)
            else:
                print(f"failed    {error}", file=sys.stderr, flush=True)
    if not names:
        readme.write()
    return 1 if failed else 0


def _refresh(page: Page) -> tuple[Page, ExperimentsError | None, float]:
    began = time.monotonic()
    try:
        execute(page, ROOT / page.path)
    except ExperimentsError as error:
        return page, error, 0.0
    return page, None, time.monotonic() - began
