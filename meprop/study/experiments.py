"""Every run of the study, read from experiments.yml and checked as a whole.

A mistake in that file is reported with its line, what is wrong and the nearest right word.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

import meprop
from meprop.study._files import read
from meprop.study.config import DEFAULTS, Config
from meprop.study.data import DATASETS
from meprop.study.settings import InOneSentence, Number, Place, SettingError, mistake, nearest

# The checkout this module belongs to. Paths of runs are relative to it, whatever the caller's
# folder is.
ROOT = Path(meprop.__file__).resolve().parents[1]
FILE = "experiments.yml"


class ExperimentsError(InOneSentence, ValueError):
    """A mistake in experiments.yml, or a name that it does not have."""


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
        """What its time is about proportional to: a training image without BN costs 8.

        With BN it costs 10, in a residual network 28; one that is only looked at an eighth.
        """
        config, data = self.config, DATASETS[self.config.dataset]
        images = 8 * (config.train_size or data.train) + data.dev + data.test
        one = 28 if config.network == "resnet20" else 10 if config.batch_norm else 8
        return config.epochs * images * one // 8


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
            if suite not in self.suites:
                raise ExperimentsError(f"{FILE}: no suite {suite!r}; {nearest(suite, self.suites)}")
        runs = [run for suite in suites for run in self.suites[suite].runs]
        names = {run.name for run in runs}
        for name in only or ():
            if not any(fnmatchcase(each, name) for each in names):
                what = f"no configuration of {', '.join(suites)} {name!r}; {nearest(name, names)}"
                raise ExperimentsError(f"{FILE}: {what}")
        if only:
            runs = [run for run in runs if any(fnmatchcase(run.name, name) for name in only)]
        declared = {run.seed for run in runs}
        if seeds and (unknown := set(seeds) - declared):
            what = f"seed {min(unknown)} is not declared for these runs, only "
            raise ExperimentsError(f"{FILE}: {what}{', '.join(map(str, sorted(declared)))}")
        return [run for run in runs if not seeds or run.seed in seeds]


def load(path: str | Path | None = None) -> Experiments:
    """Read and check the declarations; without a path, the checkout's own.

    >>> sorted(load().suites)
    ['ablation', 'cifar10', 'fashion', 'follow-up', 'mnist-unbiased', 'paper', 'quick']
    """
    path = Path(path) if path is not None else ROOT / FILE
    content, lines = _content(path)
    try:
        declared = _Declared.model_validate(content)
        suites = {name: _suite(name, suite) for name, suite in declared.suites.items()}
        _check_once(suites)
    except ValidationError as error:
        raise _located(path, lines, mistake(error, _known)) from None
    except SettingError as error:
        raise _located(path, lines, error) from None
    return Experiments(suites)


# What the file holds


def _name(name: str) -> str:
    """Part of file names and addresses, and never a path."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) or len(name) > 80:
        raise ValueError("a name is small letters, digits and hyphens, at most 80")
    return name


def _run_name(name: str) -> str:
    if re.fullmatch(r".*-s\d+", _name(name)):
        raise ValueError("the name of a run has no seed at its end")
    return name


def _distinct(values: Any) -> Any:
    if not values or len(set(values)) < len(values):
        raise ValueError(f"the list {'names one twice' if values else 'is empty'}")
    return values


_Name = Annotated[str, AfterValidator(_name)]
_RunName = Annotated[str, AfterValidator(_run_name)]
_Names = Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_distinct)]
_Seeds = Annotated[list[Annotated[int, Number(0, 10**9)]], AfterValidator(_distinct)]
_ByPattern = BeforeValidator(lambda seeds: {"*": seeds} if isinstance(seeds, list) else seeds)


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Study(_Strict):
    about: str
    varies: _Names
    runs: _Names
    within: _Names = ()


class _Suite(_Strict):
    about: str
    committed: bool
    config: dict[str, Any]
    seeds: Annotated[dict[str, _Seeds], _ByPattern]
    runs: dict[_RunName, dict[str, Any]] = Field(min_length=1)
    studies: dict[_Name, _Study] = {}


class _Declared(_Strict):
    suites: dict[_Name, _Suite] = Field(min_length=1)


def _known(place: Place) -> Collection[str]:
    models: dict[int, type[_Strict]] = {0: _Declared, 2: _Suite, 4: _Study}
    return models[len(place)].model_fields


def _located(path: Path, lines: dict[Place, int], error: SettingError) -> ExperimentsError:
    place = tuple(map(str, error.place))
    line = next((lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in lines), None)
    parts = [path.name] if line is None else [path.name, f"line {line}"]
    kinds = {"suites": "suite", "runs": "run", "studies": "study"}
    for key, name in zip(place[:4:2], place[1:4:2], strict=False):
        parts += [f"{kinds[key]} {name[:80]!r}"] if key in kinds else []
    return ExperimentsError(f"{', '.join(parts)}: {error}")


def _content(path: Path) -> tuple[Any, dict[Place, int]]:
    """What a YAML file holds, and where."""
    try:
        text = read(path).decode(errors="surrogateescape")
        aliases, depth, start, end = 0, 0, yaml.CollectionStartEvent, yaml.CollectionEndEvent
        for event in yaml.parse(text):
            aliases += isinstance(event, yaml.AliasEvent)
            depth += isinstance(event, start) - isinstance(event, end)
            if aliases > 20 or depth > 50:  # nobody would see the end
                what = "more than 20 aliases, or 50 levels"
                raise yaml.MarkedYAMLError(problem=what, problem_mark=event.start_mark)
        lines = dict(_lines(yaml.compose(text, yaml.SafeLoader)))
        return yaml.safe_load(text), lines
    except FileNotFoundError:
        raise ExperimentsError(
            f"{path}: no such file; the study needs the project's checkout, with meprop installed "
            "from it (pip install -e '.[study]')"
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise ExperimentsError(f"{path.name}{line}: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        number = text.count("\n", 0, error.position) + 1
        what = f"{chr(error.character)!a} is no text; save the file in UTF-8, without control codes"
        raise ExperimentsError(f"{path.name}, line {number}: {what}") from None
    except RecursionError:
        what = "an alias (*x) stands inside what it names (&x)"
        raise ExperimentsError(f"{path.name}: {what}") from None
    except (OSError, LookupError, ValueError, yaml.YAMLError) as error:
        what = " ".join(str(error).split())
        raise ExperimentsError(f"{path.name}: not readable as YAML ({what})") from None


def _lines(node: yaml.Node | None, place: Place = ()) -> Iterator[tuple[Place, int]]:
    """The line of each key; one that is there twice, which YAML takes in silence, is refused."""
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from _lines(each, place)
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                what = f"{name!r} is there twice"
                raise yaml.MarkedYAMLError(problem=what, problem_mark=key.start_mark)
            seen.add(name)
            here = place if name == "<<" else (*place, name)
            yield from _lines(value, here)
            yield here, key.start_mark.line + 1


# What it means


def _suite(name: str, declared: _Suite) -> Suite:
    place = ("suites", name)
    runs: list[Run] = []
    by_config: dict[Config, str] = {}
    for run, own in declared.runs.items():
        here = (*place, "runs", run)
        given = declared.config | own
        try:
            if "seed" in given:
                raise SettingError("seeds belong in the suite's `seeds`", ("seed",))
            config = Config.from_dict(given)
        except SettingError as error:
            shared = not own.keys() & {*error.place} and declared.config.keys() & {*error.place}
            at = (*place, "config") if shared else here
            raise SettingError(str(error), (*at, *error.place)) from None
        if other := by_config.get(config):
            raise SettingError(f"the same configuration as {other!r}: declare it once", here)
        by_config[config] = run
        for seed in _seeds((*place, "seeds"), declared, run):
            runs.append(Run(name, run, seed, replace(config, seed=seed), declared.committed))
    configs = {run: config for config, run in by_config.items()}
    studies = [_study(name, each, study, configs) for each, study in declared.studies.items()]
    if studies and (left := configs.keys() - {run for study in studies for run in study.runs}):
        raise SettingError(f"run {min(left)!r} is in no study", (*place, "studies"))
    return Suite(name, declared.about, declared.committed, tuple(runs), tuple(studies))


def _seeds(place: Place, declared: _Suite, run: str) -> list[int]:
    """Those of the last pattern that fits."""
    for pattern in declared.seeds:
        if not any(fnmatchcase(name, pattern) for name in declared.runs):
            what = f"no run fits {pattern!r}; {nearest(pattern, declared.runs)}"
            raise SettingError(what, (*place, pattern))
    fitting = [seeds for pattern, seeds in declared.seeds.items() if fnmatchcase(run, pattern)]
    if not fitting:
        raise SettingError(f"no seeds for {run!r}", place)
    return fitting[-1]


def _study(suite: str, name: str, declared: _Study, configs: dict[str, Config]) -> Study:
    place = ("suites", suite, "studies", name)
    for key, known, kind in (
        ("varies", DEFAULTS, "field of Config"),
        ("runs", configs, "run"),
        ("within", declared.varies, "field in varies"),
    ):
        for each in getattr(declared, key):
            if each not in known:
                what = f"no {kind} {each!r}; {nearest(each, known)}"
                raise SettingError(what, (*place, key))
    compared = [configs[run] for run in declared.runs]
    differing = {field for field in DEFAULTS if len({getattr(c, field) for c in compared}) > 1}
    if differing != set(declared.varies):
        found, wanted = (", ".join(sorted(names)) for names in (differing, declared.varies))
        what = f"its runs differ in {found or 'nothing'}, not in {wanted}"
        raise SettingError(what, (*place, "varies"))
    return Study(suite, name, **vars(declared))


def _check_once(suites: dict[str, Suite]) -> None:
    """A paper-scale run costs hours: two suites must not both declare it."""
    seen: dict[Config, Run] = {}
    names: set[str] = set()
    for suite in suites.values():
        for run in suite.runs if suite.committed else ():
            if (other := seen.setdefault(run.config, run)) is not run:
                what = f"run {run.name!r} is {other.id} again: declare it once"
                raise SettingError(what, ("suites", suite.name))
        for study in suite.studies:
            if study.name in names:
                what = f"two studies are called {study.name!r}"
                raise SettingError(what, ("suites", suite.name, "studies", study.name))
            names.add(study.name)
