"""The executed notebooks of the repository: what each reads, and whether it is up to date.

`notebooks/*.ipynb` hold their default parameters; `notebooks/pages/` has one of them for each
further table of the paper and study of experiments.yml, `notebooks/runs/` the one that trains for
each configuration. A page carries the digest of its source, its parameters and all that it reads
(`metadata.meprop.inputs`). It is out of date when that digest is no longer right. Times of files
have no say.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from meprop.study import _papermill
from meprop.study.experiments import ROOT, Experiments, ExperimentsError, Run, load
from meprop.study.labels import run_title
from meprop.study.paper import paper
from meprop.study.pipeline import alone, draft, find, resources, snakemake, train, why
from meprop.study.settings import nearest

FOLDER = Path("notebooks")
# These measure times: nothing else may run beside them.
TIMED = ("05-speed", "08-your-model")
# Made anew whenever the book is built: it compares the reader's own machine.
OWN_MACHINE = "07-quick"
# Studies that show no difference share a page.
SHARED = ("decay", "pick", "bias", "layers", "history")
INDEX = "_build/html/index.html"  # of the book

_PAPER, _CLAIMS = "meprop/study/paper.yml", "meprop/study/claims.yml"
_FINDINGS = "notebooks/findings.yml"
_RUNS = tuple(f"results/{suite}/*.json" for suite in ("paper", "ablation", "follow-up"))
_OTHER_DATA = ("results/fashion/*.json", "results/cifar10/*.json")
_ALL_RUNS = (*_RUNS, *_OTHER_DATA, "results/mnist-unbiased/*.json", "results/quick*/*.json")
_MEASURED = ("benchmarks/*/bench.json", "measurements/sparsity/*", "measurements/turnover.csv")
# What a notebook reads, as patterns of files; a table's and a study's pages add their records.
READS: dict[str, tuple[str, ...]] = {
    "01-method": (_PAPER, "results/paper/*.json", "book/_static/explorer-data.js"),
    "02-sparsity": (_PAPER, "measurements/sparsity/*", "results/paper/table2-baseline-s*.json"),
    "03-tables": (_PAPER, _FINDINGS),
    "04-ablations": (_FINDINGS,),
    "05-speed": ("benchmarks/*/bench.json",),
    "06-claims": (_PAPER, _CLAIMS, *_RUNS, *_MEASURED),
    "07-quick": ("results/quick*/*.json",),
    "08-your-model": (),
    "09-runs": _ALL_RUNS,
    "10-status": (*_ALL_RUNS, "measurements/fuzz.json", "measurements/torture.json"),
    "11-turnover": ("measurements/turnover.csv",),
    "12-power": ("results/paper/*.json",),
    "13-deep": (),
    "14-worth": ("results/cifar10/*.json", "measurements/residual/*", "measurements/noise.csv"),
    "train": (),
}


@dataclass(frozen=True)
class Page:
    """A notebook, the parameters it gets, and where the executed one is kept (below `ROOT`)."""

    notebook: Path
    path: Path
    parameters: dict[str, Any] = field(default_factory=dict)
    title: str | None = None  # in place of the notebook's own
    reads: tuple[str, ...] = ()  # patterns of files
    declared: Any = None  # in experiments.yml, beside the runs whose records it reads

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def draft(self) -> Path:
        """Where it is executed."""
        return Path("_build/pages") / self.path

    @property
    def log(self) -> Path:
        return Path("_build/logs") / self.path.with_suffix(".log")

    @property
    def timed(self) -> bool:
        return self.notebook.stem in TIMED

    def inputs(self) -> dict[str, Any]:
        """All that its content depends on, beside its source and title."""
        runs = {
            run.id: run.config.digest
            for run in _runs()
            if any(run.record.match(pattern) for pattern in self.reads)
        }
        there = {path for each in self.reads for path in ROOT.glob(each) if path.is_file()}
        reads = {path.relative_to(ROOT).as_posix(): path for path in there}
        return {
            "parameters": self.parameters,
            "reads": {name: _papermill.file_digest(path) for name, path in reads.items()},
            "declared": {"runs": runs, "study": self.declared},
        }

    def specification(self) -> dict[str, Any]:
        """What `_papermill.py` is told."""
        return {
            "notebook": self.notebook.as_posix(),
            "parameters": self.parameters,
            "title": self.title,
            "inputs": self.inputs(),
        }

    def up_to_date(self) -> bool:
        """Whether the page is there, and made from what is there now."""
        try:
            page = json.loads((ROOT / self.path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return False
        source = json.loads((ROOT / self.notebook).read_text(encoding="utf-8"))
        digest = _papermill.digest(source, self.title, self.inputs())
        return page["metadata"].get("meprop", {}).get("inputs") == digest


@cache
def _experiments(path: Path) -> Experiments:
    return load(path)


def _runs() -> list[Run]:
    return _experiments(ROOT / "experiments.yml").runs


def pages() -> list[Page]:
    """Every page but those of single runs: the notebooks themselves, then what they make."""
    made = {page.path: page for page in _made()}
    own = sorted(path.relative_to(ROOT) for path in (ROOT / FOLDER).glob("*.ipynb"))
    first = [made.pop(path, Page(path, path, reads=READS.get(path.stem, ()))) for path in own]
    return [*first, *(page for page in made.values() if (ROOT / page.notebook).is_file())]


def run_pages() -> list[Page]:
    """The runs whose notebooks are part of the repository, as far as they are done."""
    done = [run for run in _runs() if run.committed and find(run)[0] is not None]
    return [run_page(run) for run in done if run.notebook.is_relative_to(FOLDER)]


def run_page(run: Run) -> Page:
    """A run, shown from its record: nothing is trained."""
    record = run.record.as_posix()
    parameters = run.config.to_dict() | {"record": record}
    title = f"{run_title(run)}\n\n{_links(run)}"
    return Page(FOLDER / "train.ipynb", run.notebook, parameters, title, (record,))


def _links(run: Run) -> str:
    """Where a run comes from and what it is used for (Markdown)."""
    links = {"Record": run.record}
    for page in _made():
        named = any(run.record.match(pattern) for pattern in page.reads)
        if page.declared is None and named:  # a table, whose records have its name
            links[str(page.title).partition(":")[0]] = page.path
        for study in page.declared or ():
            if run.name in study["runs"]:
                links[f"Study: {study['name']}"] = page.path
    links |= {
        f"Seed {other.seed}": other.record
        for other in _runs()
        if (other.suite, other.name) == (run.suite, run.name) and other.seed != run.seed
        if (ROOT / other.record).is_file()
    }
    links |= {"Claims": FOLDER / "06-claims.ipynb", "All runs": FOLDER / "09-runs.ipynb"}
    return " · ".join(f"[{text}](/{path.as_posix()})" for text, path in links.items())


def training(run: Run) -> dict[str, Any]:
    """What `_papermill.py` is told to train a run, whose page is then up to date."""
    record = draft(run).with_suffix(".json").as_posix()
    parameters = run.config.to_dict() | {"record": record, "checkpoint": "auto"}
    own = {"parameters": parameters, "records": {run.record.as_posix(): record}}
    return run_page(run).specification() | own


def _made() -> Iterator[Page]:
    """A page for each table and study; the first of them is the notebook itself."""
    for number, its in paper()["tables"].items():
        title = f"{its['where']}: accuracy {its['about']}"
        records = f"results/paper/table{number}-*.json"
        yield _page("03-tables", f"table{number}", {"table": number}, title, records)
    studies = _experiments(ROOT / "experiments.yml").studies
    alone = {name: [study] for name, study in studies.items() if name not in SHARED}
    shared = [studies[name] for name in SHARED if name in studies]
    for name, its in (alone | ({"others": shared} if shared else {})).items():
        title = its[0].about if name != "others" else "What makes no visible difference"
        records = f"results/{its[0].suite}/*.json"  # all of them: the spread is pooled
        declared = [asdict(study) for study in its]
        given = {"study": name}
        yield _page("04-ablations", f"ablation-{name}", given, title, records, declared)


def _page(
    notebook: str, name: str, given: dict[str, Any], title: str, records: str, declared: Any = None
) -> Page:
    source, path = FOLDER / f"{notebook}.ipynb", FOLDER / "pages" / f"{name}.ipynb"
    if given in ({"table": 2}, {"study": "ratio"}):  # its defaults
        path, given = source, {}
    return Page(source, path, given, title, (*READS[notebook], records), declared)


def book_pages() -> list[Page]:
    """What has to be executed before the book is built."""
    own = [page for page in pages() if page.name == OWN_MACHINE or not page.up_to_date()]
    return own + [page for page in run_pages() if not page.up_to_date()]


def refresh(names: Sequence[str] = (), every: bool = False, cores: int | None = None) -> int:
    """Execute pages in place: the named ones, every one, or those that are out of date."""
    known = {page.name: page for page in [*pages(), *run_pages()]}
    for name in names:
        if name not in known:
            raise ExperimentsError(f"notebooks: no page {name!r}; {nearest(name, known)}")
    options = resources("notebooks", cores)
    with alone(["pages"]):
        wanted = known.values() if every else [known[name] for name in dict.fromkeys(names)]
        chosen = list(wanted) or [page for page in known.values() if not page.up_to_date()]
        if not chosen:
            print(f"Nothing to execute: all {len(known)} pages are up to date.")
            return 0
        print(f"{len(chosen)} of {len(known)} pages to execute.", flush=True)
        failed = _execute(chosen, [page.draft.as_posix() for page in chosen], options)
        for page in chosen:
            if (ROOT / page.draft).is_file():
                (ROOT / page.path).parent.mkdir(parents=True, exist_ok=True)
                os.replace(ROOT / page.draft, ROOT / page.path)
    return failed


def build() -> int:
    """Build the book from the committed pages; those that are out of date are executed for it."""
    run_pages()  # a damaged record ends it at once
    if code := train(["quick"]):
        return code
    with alone(["pages"]):
        return _execute(book_pages(), [INDEX], resources("book"))


def _execute(chosen: list[Page], targets: list[str], options: list[str]) -> int:
    """Let Snakemake make files out of pages; says what failed, and returns the exit code."""
    for old in ("pages", "logs/notebooks"):
        shutil.rmtree(ROOT / "_build" / old, ignore_errors=True)
    log = Path("_build/logs/pages.log")
    if snakemake(targets, ROOT / log, options):
        return 130
    missing = [page for page in chosen if not (ROOT / page.draft).is_file()]
    for page in missing:
        print(f"Failed: {page.path}: {why(page.log, log)}", file=sys.stderr)
    if missing or all((ROOT / target).is_file() for target in targets):
        return 1 if missing else 0
    print(f"Failed: {INDEX}: see above, and {log}", file=sys.stderr)
    return 1
