"""The repository agrees with itself: dependencies, versions, documents; no path of one machine."""

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

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

# name[ version[ build]], where a version is constraints joined by "," and "|"
CONDA_SPEC = re.compile(
    r"""(?P<name>[a-z0-9_][a-z0-9_.-]*)
        (?:\s*(?P<version>(?:==|=|!=|>=|<=|~=|>|<)[\w.*+!]+(?:[,|](?:==|=|!=|>=|<=|~=|>|<)?[\w.*+!]+)*)
           (?:=(?P<build>[\w.*]+))?)?""",
    re.VERBOSE,
)


def ranges() -> list[str]:
    """Every requirement that pyproject.toml states, build requirements and extras included."""
    stated = [*PYPROJECT["build-system"]["requires"], *PROJECT["dependencies"]]
    for extra in PROJECT["optional-dependencies"].values():
        stated += extra
    return stated


def pins() -> dict[str, Version]:
    """Name and version of every line of the lock."""
    locked = {}
    for line in LOCK_LINES:
        name, _, version = line.partition("==")
        locked[str(canonicalize_name(name))] = Version(version)
    return locked


def code_blocks(document: Path, language: str) -> list[str]:
    pattern = rf"^```{language}\n(.*?)^```"
    return re.findall(pattern, document.read_text("utf-8"), re.MULTILINE | re.DOTALL)


# Dependencies


def test_lock_states_exact_public_versions():
    for line in LOCK_LINES:
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        (specifier,) = requirement.specifier
        # This also rules out extras, markers and addresses.
        assert line == f"{name}=={specifier.version}"
        local = Version(specifier.version).local
        assert local is None, f"{line}: only some indexes have a version with +{local}"


def test_lock_is_sorted_and_names_each_package_once():
    names = [line.partition("==")[0] for line in LOCK_LINES]
    assert names == sorted(set(names))


def test_lock_brings_no_cuda():
    assert not [name for name in pins() if re.match("nvidia|cuda|triton", name)]


@pytest.mark.parametrize("stated", ranges())
def test_pinned_version_lies_in_pyprojects_range(stated):
    requirement = Requirement(stated)
    assert requirement.specifier, f"{stated}: give a range"
    assert all(s.operator not in ("==", "===") for s in requirement.specifier), (
        f"{stated}: exact versions belong in requirements.lock"
    )
    name = canonicalize_name(requirement.name)
    assert name in pins(), f"{name} is not in requirements.lock: run make lock"
    assert pins()[name] in requirement.specifier, (
        f"{stated}, but the lock has {pins()[name]}: run make lock"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the lock is resolved on Linux")
def test_lock_holds_what_pyproject_needs_and_nothing_else():
    """Follow the installed packages' own requirements from pyproject.toml's."""
    reached: set[str] = set()
    ahead = [Requirement(stated) for stated in ranges()]
    seen: set[tuple[str, str]] = set()
    while ahead:
        requirement = ahead.pop()
        name = str(canonicalize_name(requirement.name))
        reached.add(name)
        for extra in {"", *requirement.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for text in metadata.requires(name) or []:
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    ahead.append(needed)
    # Where pip chose torch's CUDA build, it has requirements that the lock leaves to pip.
    reached = {name for name in reached if not re.match("nvidia|cuda|triton", name)}
    assert reached == set(pins()), "run make lock"


@pytest.mark.parametrize("part", ["core", "study", "tests"])
def test_every_import_is_declared(part):
    """Somebody may install the core alone, or the study without what only the tests need."""
    extras = PROJECT["optional-dependencies"]
    allowed = [*PROJECT["dependencies"]]
    allowed += [] if part == "core" else extras["study"]
    allowed += extras["dev"] if part == "tests" else []
    declared = {canonicalize_name(Requirement(stated).name) for stated in allowed}
    outer = {"study", "bench"}
    distributions = metadata.packages_distributions()
    missing = set()
    for path in (ROOT / ("tests" if part == "tests" else "meprop")).rglob("*.py"):
        if part != "tests" and (part == "study") != bool(outer & set(path.relative_to(ROOT).parts)):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [str(node.module)]
            else:
                continue
            for module in {name.partition(".")[0] for name in modules}:
                names = {canonicalize_name(name) for name in distributions.get(module, [])}
                if names and not names & {*declared, "meprop"}:
                    missing.add(f"{path.relative_to(ROOT)}: {module}")
    assert not missing, f"not in pyproject.toml's dependencies for {part}"


def imports() -> dict[str, set[str]]:
    """Which of our modules each of our modules imports, at the top or in a function."""
    files = [*(ROOT / "meprop").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    found: dict[str, set[str]] = {}
    for name, path in modules.items():
        tree, named = ast.parse(path.read_text("utf-8")), set()
        for_types = {
            inner
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            if node in for_types:
                continue
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:  # a module of a package, or what a module has
                    full = f"{node.module}.{alias.name}"
                    named.add(full if full in modules else node.module)
        found[name] = (named & set(modules)) - {name}
    return found


def test_imports_go_one_way():
    """Core and kernels know nothing of the study, and the study nothing of the benchmarks."""
    ahead = imports()
    assert "meprop.selection" in ahead["meprop.kernels"], "it sees what is imported"
    for name, others in ahead.items():
        outer = (
            ("benchmarks",) if name.startswith("meprop.study") else ("meprop.study", "benchmarks")
        )
        if not name.startswith("benchmarks") and name != "meprop.__main__":
            assert not [other for other in others if other.startswith(outer)], name
    # Whoever imports a module that has only what is done is part of no cycle.
    done: set[str] = set()
    while free := {name for name in ahead.keys() - done if ahead[name] <= done}:
        done |= free
    assert not ahead.keys() - done, "these import each other in a circle"


def test_pinned_packages_run_on_every_patch_release():
    """Debian 12 has Python 3.11.2; a package may ask for a later one."""
    oldest = f"{PYTHON_VERSION}.0"
    for name in pins():
        wanted = SpecifierSet(metadata.metadata(name)["Requires-Python"] or "")
        assert oldest in wanted, f"{name} needs Python {wanted}: hold it back in Makefile's held"


def test_environment_installs_the_lock_and_the_package():
    assert set(ENVIRONMENT) == {"name", "channels", "dependencies"}
    conda = [entry for entry in ENVIRONMENT["dependencies"] if isinstance(entry, str)]
    (pip,) = [entry["pip"] for entry in ENVIRONMENT["dependencies"] if isinstance(entry, dict)]
    versions = {}
    for entry in conda:
        match = CONDA_SPEC.fullmatch(entry)
        assert match, f"environment.yml: {entry!r} is not a conda package specification"
        versions[match["name"]] = match["version"]
    assert {"python", "pip"} <= set(versions)
    for name in set(versions) - {"python"}:
        # A version here would be a second source of truth.
        assert name not in pins() and versions[name] is None, f"environment.yml: {name}"

    targets = []
    for entry in pip:
        words = shlex.split(entry)
        if words[0].startswith("-"):
            option, path = words  # an option with other than one path is nothing we use
            assert (ROOT / path).exists(), f"environment.yml: {entry!r} leads nowhere"
            targets.append((option, path))
        else:
            requirement = Requirement(entry)
            assert pins()[canonicalize_name(requirement.name)] in requirement.specifier
    assert targets == [("-r", "requirements.lock"), ("-e", ".")]


def test_python_version_is_the_same_everywhere():
    (python,) = [e for e in ENVIRONMENT["dependencies"] if str(e).startswith("python")]
    assert python == f"python={PYTHON_VERSION}"
    assert Version(PYTHON_VERSION) in SpecifierSet(PROJECT["requires-python"])
    assert PROJECT["requires-python"] == f">={PYPROJECT['tool']['mypy']['python_version']}"
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{PYTHON_VERSION.replace('.', '')}"


# Versions and documents


def test_version_is_stated_once_and_repeated_right():
    assert "version" in PROJECT["dynamic"] and "version" not in PROJECT
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "meprop.__version__"}
    tree = ast.parse((ROOT / "meprop" / "__init__.py").read_text("utf-8"))
    (version,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__"
    ]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == version

    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    releases = [re.fullmatch(r"\[([\d.]+)\] - (Unreleased|\d{4}-\d\d-\d\d)", h) for h in headings]
    assert all(releases), f"CHANGELOG.md: {headings}"
    numbers = [release[1] for release in releases if release]
    assert numbers[0] == version
    assert numbers == sorted(numbers, key=Version, reverse=True)
    assert "Unreleased" not in "".join(headings[1:])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_existing_make_targets(document):
    text = document.read_text("utf-8")
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
    lines = [line for block in code_blocks(document, "sh") for line in block.splitlines()]
    named = {m[1] for code in [*spans, *lines] if (m := re.match(r"make ([a-z]+)\b", code))}
    targets = set(re.findall(r"^\.PHONY: ([a-z]+)$", MAKEFILE, re.MULTILINE))
    assert named <= targets


def test_every_target_is_listed_by_help():
    targets = set(re.findall(r"^\.PHONY: ([a-z]+)$", MAKEFILE, re.MULTILINE))
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^  make ([a-z]+) ", listed, re.MULTILINE)) == targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_examples_in_documents_run(document):
    for block in code_blocks(document, "python"):
        exec(compile(block, document.name, "exec"), {})


def test_ci_runs_the_test_command():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text("utf-8").splitlines()[-1] == "make test"


def test_ci_installs_the_browser_and_the_workflow_publishes_what_was_tested():
    assert "\nneed chromium " in (ROOT / ".ci" / "run").read_text("utf-8")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "book.yml").read_text("utf-8"))
    test, publish = workflow["jobs"]["test"], workflow["jobs"]["publish"]
    commands = [step["run"] for step in test["steps"] if "run" in step]
    assert commands.index(".ci/run") < commands.index("make book")
    uploads = {step["uses"].partition("@")[0]: step["with"]["path"]
               for step in test["steps"] if "path" in step.get("with", {})}  # fmt: skip
    assert uploads["actions/upload-pages-artifact"] == "_build/html"
    assert uploads["actions/upload-artifact"] == "_build/screenshots"
    assert publish["needs"] == "test"


# Privacy


def test_no_file_names_a_path_of_one_machine():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    assert ROOT / "tests" / "test_repository.py" in paths
    folders = "|".join(["home", "mnt", "opt", "private", "root", "tmp", "Users", "work"])
    local = re.compile(rf"(?<![\w.~$)}}-])/(?:{folders})/[\w.]+|\b[A-Z]:\\\\?Users\b")
    found = []
    for path in paths:
        try:
            text = path.read_text("utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue  # binary, or deleted and not yet staged
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in local.finditer(text)]
    assert not found
