"""The repository agrees with itself: dependencies, versions, documents; no path of one machine."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from checkout import files
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import meprop

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
LOCK_LINES = [
    line
    for line in (ROOT / "requirements.lock").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
]
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text("utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
(PYTHON_VERSION,) = re.findall(r"^python_version := (.+)$", MAKEFILE, re.MULTILINE)
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "book").glob("*.md"))]


EXTRAS = PROJECT["optional-dependencies"]
# Every requirement that pyproject.toml states, build requirements and extras included.
STATED = [PYPROJECT["build-system"]["requires"], PROJECT["dependencies"], *EXTRAS.values()]
RANGES = [requirement for group in STATED for requirement in group]
PINS = {str(canonicalize_name(n)): Version(v) for n, v in (line.split("==") for line in LOCK_LINES)}


# Dependencies


def test_lock_states_each_exact_public_version_once_in_order():
    names = [line.partition("==")[0] for line in LOCK_LINES]
    assert names == sorted(set(names))
    assert not [name for name in names if re.match("nvidia|cuda|triton", name)]
    for name, line in zip(names, LOCK_LINES, strict=True):
        (specifier,) = Requirement(line).specifier
        # This also rules out extras, markers and addresses.
        assert line == f"{canonicalize_name(name)}=={specifier.version}"
        local = Version(specifier.version).local
        assert local is None, f"{line}: only some indexes have a version with +{local}"


@pytest.mark.skipif(sys.platform != "linux", reason="the lock is resolved on Linux")
def test_lock_holds_what_pyproject_needs_and_nothing_else():
    """In a range; reached from pyproject.toml over the installed packages' own requirements."""
    for requirement in map(Requirement, RANGES):
        assert requirement.specifier, f"{requirement}: give a range"
        assert all(s.operator not in ("==", "===") for s in requirement.specifier), requirement
        assert PINS[canonicalize_name(requirement.name)] in requirement.specifier, "run make lock"
    seen: set[tuple[str, str]] = set()
    ahead = [Requirement(stated) for stated in RANGES]
    while ahead:
        requirement = ahead.pop()
        name = str(canonicalize_name(requirement.name))
        for extra in {"", *requirement.extras} - {extra for its, extra in seen if its == name}:
            seen.add((name, extra))
            needed = map(Requirement, metadata.requires(name) or [])
            ahead += [n for n in needed if not n.marker or n.marker.evaluate({"extra": extra})]
    # Where pip chose torch's CUDA build, it has requirements that the lock leaves to pip.
    reached = {name for name, _ in seen if not re.match("nvidia|cuda|triton", name)}
    assert reached == set(PINS), "run make lock"
    # Debian 12 has Python 3.11.2; a package may ask for a later one.
    for name in PINS:
        wanted = SpecifierSet(metadata.metadata(name)["Requires-Python"] or "")
        assert f"{PYTHON_VERSION}.0" in wanted, f"{name}: hold it back in Makefile's held"


def imported(path: Path, modules: Collection[str] = ()) -> set[str]:
    """What a file imports, at the top or in a function; of packages the `modules`, if named."""
    tree, found = ast.parse(path.read_text("utf-8")), set()
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in set(ast.walk(tree)) - for_types:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else str(node.module) for name in full}
    return found


@pytest.mark.parametrize("part", ["core", "study", "tests"])
def test_every_import_is_declared(part):
    """Somebody may install the core alone, or the study without what only the tests need."""
    allowed = [*PROJECT["dependencies"]]
    allowed += [] if part == "core" else EXTRAS["study"]
    allowed += EXTRAS["dev"] if part == "tests" else []
    declared = {canonicalize_name(Requirement(stated).name) for stated in allowed}
    distributions = metadata.packages_distributions()
    for path in (ROOT / ("tests" if part == "tests" else "meprop")).rglob("*.py"):
        if part != "tests" and (part == "study") != ("study" in path.relative_to(ROOT).parts):
            continue
        for module in {name.partition(".")[0] for name in imported(path)}:
            names = {canonicalize_name(name) for name in distributions.get(module, [])}
            assert not names or names & {*declared, "meprop"}, f"{path}: {module} is not declared"


def imports() -> dict[str, set[str]]:
    """Which of our modules each of our modules imports."""
    folders = ("meprop", "benchmarks", "measurements")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    return {
        name: (imported(path, modules) & set(modules)) - {name} for name, path in modules.items()
    }


def test_imports_go_one_way():
    """Core and kernels know nothing of the study, and the study nothing of what measures it."""
    ahead, measuring = imports(), ("benchmarks", "measurements")
    assert "meprop.selection" in ahead["meprop.kernels"], "it sees what is imported"
    for name, others in ahead.items():
        outer = measuring if name.startswith("meprop.study") else ("meprop.study", *measuring)
        if not name.startswith(measuring) and name != "meprop.__main__":
            assert not [other for other in others if other.startswith(outer)], name
    # Whoever imports a module that has only what is done is part of no cycle.
    done: set[str] = set()
    while free := {name for name in ahead.keys() - done if ahead[name] <= done}:
        done |= free
    assert not ahead.keys() - done, "these import each other in a circle"


def test_environment_installs_the_lock_and_the_package():
    """A version of anything but Python would be a second source of truth."""
    assert ENVIRONMENT["dependencies"] == [
        f"python={PYTHON_VERSION}",
        *(each for each in ENVIRONMENT["dependencies"][1:-1] if re.fullmatch(r"[a-z-]+", each)),
        {"pip": ["-r requirements.lock", "-e ."]},
    ]
    assert "pip" in ENVIRONMENT["dependencies"]


def test_binder_can_install_the_environment(tmp_path):
    """conda calls pip in the folder of environment.yml, with a file; all is here already."""
    others = ["Dockerfile", "binder", ".binder", "apt.txt", "postBuild", "requirements.txt"]
    assert not [name for name in others if (ROOT / name).exists()], "Binder would read that instead"
    for name in ("pyproject.toml", "requirements.lock", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "meprop", tmp_path / "meprop", ignore=lambda *_: ["study", "kernels"])
    wanted = tmp_path / "condaenv.requirements.txt"
    wanted.write_text("\n".join(ENVIRONMENT["dependencies"][-1]["pip"]), encoding="utf-8")
    options = ["--dry-run", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "-r", str(wanted)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("Would install meprop-"), "and nothing else"
    assert {"ipykernel", "jupyterlab"} <= set(PINS), "what Binder opens needs them"


def test_python_version_is_the_same_everywhere():
    assert Version(PYTHON_VERSION) in SpecifierSet(PROJECT["requires-python"])
    assert PROJECT["requires-python"] == f">={PYPROJECT['tool']['mypy']['python_version']}"
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{PYTHON_VERSION.replace('.', '')}"


# Versions and documents


def test_version_is_stated_once_and_repeated_right():
    assert "version" in PROJECT["dynamic"] and "version" not in PROJECT
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "meprop.__version__"}
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    releases = [re.fullmatch(r"\[([\d.]+)\] - (Unreleased|\d{4}-\d\d-\d\d)", h) for h in headings]
    assert all(releases), f"CHANGELOG.md: {headings}"
    numbers = [release[1] for release in releases if release]
    assert numbers[0] == citation["version"] == meprop.__version__
    assert numbers == sorted(numbers, key=Version, reverse=True)
    assert "Unreleased" not in "".join(headings[1:])


def test_documents_name_existing_make_targets_and_help_lists_them_all():
    targets = set(re.findall(r"^\.PHONY: ([a-z]+)$", MAKEFILE, re.MULTILINE))
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^  make ([a-z]+) ", listed, re.MULTILINE)) == targets
    for document in DOCUMENTS:
        text = document.read_text("utf-8")
        blocks = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S))
        named = re.findall(r"(?<!`)`make (\w+)", text) + re.findall(r"^make (\w+)", blocks, re.M)
        assert set(named) <= targets, document


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_examples_in_documents_run(document):
    names = {}  # a document is read from its beginning
    blocks = re.findall(r"^```python\n(.*?)^```", document.read_text("utf-8"), re.M | re.S)
    for block in blocks:
        exec(compile(block, document.name, "exec"), names)


def test_ci_runs_the_test_command_and_the_workflow_publishes_what_was_tested():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK) and "\nneed chromium " in script.read_text("utf-8")
    assert script.read_text("utf-8").splitlines()[-1] == "make test"
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "book.yml").read_text("utf-8"))
    test, publish = workflow["jobs"]["test"], workflow["jobs"]["publish"]
    commands = [step["run"] for step in test["steps"] if "run" in step]
    assert commands.index(".ci/run") < commands.index("make book")
    uploads = {step["uses"].partition("@")[0]: step["with"]["path"]
               for step in test["steps"] if "path" in step.get("with", {})}  # fmt: skip
    assert uploads["actions/upload-pages-artifact"] == "_build/html"
    assert uploads["actions/upload-artifact"] == "_build/screenshots"
    assert publish["needs"] == "test"


def test_actions_are_pinned_by_commit_and_leave_no_credentials():
    """A tag can be moved to other code; what is checked out needs no right to push."""
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        text = path.read_text("utf-8")
        for action in (uses := re.findall(r"uses: (.*)", text)):
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
        checkouts = [action for action in uses if action.startswith("actions/checkout@")]
        assert checkouts and text.count("persist-credentials: false") == len(checkouts)


# Privacy


def test_no_file_names_a_path_of_one_machine():
    paths = [ROOT / name for name in files()]
    assert ROOT / "tests" / "test_repository.py" in paths
    folders = "|".join(["home", "mnt", "opt", "private", "root", "tmp", "Users", "work"])
    local = re.compile(rf"(?<![\w.~$)}}-])/(?:{folders})/[\w.]+|\b[A-Z]:\\\\?Users\b")
    found = []
    for path in paths:
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue  # binary
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in local.finditer(text)]
    assert not found
