"""Every run of the study, read from experiments.yml and checked as a whole.

A mistake in that file is reported with its line, what is wrong and the nearest right word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

import meprop
from meprop.study._declarations import ExperimentsError as ExperimentsError
from meprop.study._declarations import Lined, Loader, Place, nearest
from meprop.study.config import Config
from meprop.study.data import DATASETS
from meprop.study.words import listed

# The checkout this module belongs to. Paths of runs are relative to it, whatever the caller's
# folder is.
ROOT = Path(meprop.__file__).resolve().parents[1]
FILE = "experiments.yml"

_SUITE_KEYS = ("about", "committed", "config", "seeds", "runs", "studies")
_STUDY_KEYS = ("about", "varies", "runs")
_STUDY_OPTIONS = ("within",)
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_SEED_AT_END = re.compile(r".*-s\d+")


@dataclass(frozen=True)
class Run:
    """One configuration with one seed, and the files it leaves, relative to `ROOT`."""

    suite: str
    name: str
    seed: int
    config: Config
    committed: bool

    @property
    def id(self) -> str:
        return f"{self.suite}/{self.name}-s{self.seed}"

    @property
    def record(self) -> Path:
        """Its result."""
        return Path("results" if self.committed else "_build/results", f"{self.id}.json")

    @property
    def notebook(self) -> Path:
        """The executed notebook: part of the repository for one seed of a configuration."""
        shown = self.committed and self.seed == 0
        return Path("notebooks/runs" if shown else "_build/runs", f"{self.id}.ipynb")

    @property
    def log(self) -> Path:
        return Path("_build/logs", f"{self.id}.log")

    @property
    def cost(self) -> int:
        """The training images it sees in all: what its time is about proportional to."""
        return self.config.epochs * (self.config.train_size or DATASETS[self.config.dataset].train)


@dataclass(frozen=True)
class Study:
    """Configurations of one suite to be compared, and the fields of `Config` they differ in.

    `within`: the fields among these that part them into groups, each compared within itself.
    """

    suite: str
    name: str
    about: str
    varies: tuple[str, ...]
    runs: tuple[str, ...]
    within: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suite:
    """Runs that are made together."""

    name: str
    about: str
    committed: bool
    runs: tuple[Run, ...]
    studies: tuple[Study, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Its configurations, as declared."""
        return tuple(dict.fromkeys(run.name for run in self.runs))


@dataclass(frozen=True)
class Experiments:
    """All that experiments.yml declares."""

    suites: dict[str, Suite]

    @property
    def runs(self) -> list[Run]:
        return [run for suite in self.suites.values() for run in suite.runs]

    @property
    def studies(self) -> dict[str, Study]:
        return {study.name: study for suite in self.suites.values() for study in suite.studies}

    def pick(
        self, suites: list[str], only: list[str] | None = None, seeds: list[int] | None = None
    ) -> list[Run]:
        """The runs of some suites; of these the ones named in `only` (patterns too) and `seeds`.

        >>> [run.id for run in load().pick(["quick"], only=["table2-b*"])]
        ['quick/table2-baseline-s0']
        """
        for suite in suites:
            _check_known("suite", suite, self.suites)
        runs = [run for suite in suites for run in self.suites[suite].runs]
        for name in only or ():
            if not any(fnmatchcase(run.name, name) for run in runs):
                _check_known(f"configuration of {listed(suites)}", name, {run.name for run in runs})
        if only:
            runs = [run for run in runs if any(fnmatchcase(run.name, name) for name in only)]
        declared = sorted({run.seed for run in runs})
        for seed in seeds or ():
            if seed not in declared:
                raise ExperimentsError(
                    f"{FILE}: seed {seed} is not declared for these runs, only {listed(declared)}"
                )
        return [run for run in runs if not seeds or run.seed in seeds]


def load(path: str | Path | None = None) -> Experiments:
    """Read and check the declarations; without a path, the checkout's own.

    >>> sorted(load().suites)
    ['ablation', 'paper', 'quick']
    """
    path = Path(path) if path is not None else ROOT / FILE
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=Loader)
    except FileNotFoundError:
        raise ExperimentsError(
            f"{path}: no such file; the study needs the project's checkout, with meprop installed "
            "from it (pip install -e .)"
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise ExperimentsError(f"{path.name}{line}: {error.problem or error.context}") from None
    top = Place(path.name, content)
    top.check_keys(("suites",), required=("suites",))
    found = {}
    for name in top.mapping("suites"):
        found[str(name)] = _suite(str(name), top.below("suites").below(name, f"suite {name!r}"))
    experiments = Experiments(found)
    _check_committed_once(top.below("suites"), experiments)
    return experiments


def _suite(name: str, place: Place) -> Suite:
    place.check_keys(_SUITE_KEYS, required=("about", "committed", "config", "seeds", "runs"))
    if not _NAME.fullmatch(name):
        raise place.fail("a name is small letters, digits and hyphens")
    committed = place.of("committed", bool, "true or false")
    shared = place.mapping("config")
    _check_fields(place.below("config"))
    declared = place.below("runs")
    seeds = _seeds(place, [str(run) for run in declared.mapping()])
    runs: list[Run] = []
    by_config: dict[Config, str] = {}
    for run in declared.mapping():
        here = declared.below(run, f"run {run!r}")
        if not isinstance(run, str) or not _NAME.fullmatch(run) or _SEED_AT_END.fullmatch(run):
            raise here.fail("a name is small letters, digits and hyphens, with no seed at its end")
        _check_fields(here)
        try:
            config = Config.from_dict(shared | here.mapping())
            configs = [Config.from_dict(config.to_dict() | {"seed": seed}) for seed in seeds[run]]
        except (TypeError, ValueError) as error:
            raise here.fail(str(error)) from None
        if config in by_config:
            raise here.fail(f"the same configuration as {by_config[config]!r}: declare it once")
        by_config[config] = run
        pairs = zip(seeds[run], configs, strict=True)
        runs += [Run(name, run, seed, config, committed) for seed, config in pairs]
    studies = _studies(name, place, {run.name: run.config for run in runs})
    return Suite(name, str(place.value["about"]), committed, tuple(runs), studies)


def _check_fields(place: Place) -> None:
    known = [field.name for field in fields(Config) if field.name != "seed"]
    for key in place.mapping():
        if key == "seed":
            raise place.fail("seeds belong in the suite's `seeds`", key)
        if key not in known:
            raise place.fail(f"unknown key {key!r}; {nearest(str(key), known)}", key)


def _seeds(place: Place, names: list[str]) -> dict[str, list[int]]:
    """Each configuration's seeds."""
    given = place.value["seeds"]
    patterns: Mapping[Any, Any] = given if isinstance(given, Lined) else {"*": given}
    found: dict[str, list[int]] = {}
    here = place.below("seeds") if isinstance(given, Lined) else place
    for pattern, seeds in patterns.items():
        key = pattern if isinstance(given, Lined) else "seeds"
        if not isinstance(seeds, list) or not seeds:
            raise here.fail(f"seeds must be a list of whole numbers, got {seeds!r}", key)
        for seed in seeds:
            if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
                raise here.fail(f"a seed must be a whole number from 0, got {seed!r}", key)
        if len(set(seeds)) < len(seeds):
            raise here.fail(f"a seed is there twice: {seeds}", key)
        fitting = [name for name in names if fnmatchcase(name, str(pattern))]
        if not fitting:
            raise here.fail(f"no run fits {pattern!r}; {nearest(str(pattern), names)}", key)
        found |= dict.fromkeys(fitting, seeds)
    if left := [name for name in names if name not in found]:
        raise here.fail(f"no seeds for {left[0]!r}")
    return found


def _studies(suite: str, place: Place, configs: dict[str, Config]) -> tuple[Study, ...]:
    if "studies" not in place.value:
        return ()
    found = []
    for name in place.mapping("studies"):
        here = place.below("studies").below(name, f"study {name!r}")
        here.check_keys(_STUDY_KEYS + _STUDY_OPTIONS, required=_STUDY_KEYS)
        known = [field.name for field in fields(Config)]
        varies = here.names("varies", known, "field of Config")
        runs = here.names("runs", configs, "run")
        differing = {
            field
            for field in known
            if field != "seed" and len({getattr(configs[run], field) for run in runs}) > 1
        }
        if differing != set(varies):
            raise here.fail(
                f"its runs differ in {listed(sorted(differing)) or 'nothing'}, not in "
                f"{listed(sorted(varies))}",
                "varies",
            )
        within = here.names("within", varies, "field in varies") if "within" in here.value else ()
        found.append(Study(suite, str(name), str(here.value["about"]), varies, runs, within))
    used = {run for study in found for run in study.runs}
    if left := [name for name in configs if name not in used]:
        raise place.below("studies").fail(f"run {left[0]!r} is in no study")
    return tuple(found)


def _check_committed_once(place: Place, experiments: Experiments) -> None:
    """A paper-scale run costs hours: two suites must not both declare it."""
    seen: dict[Config, Run] = {}
    names: set[str] = set()
    for run in experiments.runs:
        if run.committed and (other := seen.setdefault(run.config, run)) is not run:
            raise place.below(run.suite, f"suite {run.suite!r}").fail(
                f"run {run.name!r} is {other.id} again: declare it once"
            )
    for suite in experiments.suites.values():
        for study in suite.studies:
            if study.name in names:
                raise place.fail(f"two studies are called {study.name!r}")
            names.add(study.name)


def _check_known(kind: str, word: str, known: Any) -> None:
    if word not in known:
        raise ExperimentsError(f"{FILE}: no {kind} {word!r}; {nearest(word, sorted(known))}")
