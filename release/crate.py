"""The results as an RO-Crate: records, notebooks, configurations and the code they come from.

`python release/crate.py` writes _build/crate, a Workflow Run RO-Crate that an archive such as
Zenodo or WorkflowHub can take. The workflow is the Snakefile; each record is the result of one of
its runs, with the commit and the digest of the code that made it.
"""

from __future__ import annotations

import json
import mimetypes
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from metadata import ROOT, documents
from rocrate.model.contextentity import ContextEntity
from rocrate.rocrate import ROCrate

from meprop.study import experiments
from meprop.study.record import Record

PARTS = "results notebooks measurements experiments.yml requirements.lock pyproject.toml"
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}


def build(target: Path) -> None:
    """Write the crate into a folder, which is emptied before."""
    about = json.loads(documents()["codemeta.json"])
    crate = ROCrate(version="1.1")

    def entity(place: str, kind: str, /, **its: Any) -> ContextEntity:
        return crate.add(ContextEntity(crate, place, properties={"@type": kind} | its))

    makers = [
        entity(f"#author-{number}", each["@type"], name=each["name"])
        for number, each in enumerate(about["author"], 1)
    ]
    licence = entity(about["license"], "CreativeWork", name=about["license"].rpartition("/")[2])
    files = {
        path: crate.add_file(ROOT / path, path, properties={"encodingFormat": _kind(path)})
        for path in _git("ls-files", *PARTS.split(), "README.md", "LICENSE", "CITATION.cff")
    }
    workflow = crate.add_workflow(
        *(ROOT / "Snakefile", "Snakefile"), main=True, lang="snakemake",
        lang_version=version("snakemake"), properties={"name": "Snakefile", "author": makers},
    )  # fmt: skip
    (commit,), (date,) = _git("rev-parse", "HEAD"), _git("log", "-1", "--format=%cI")
    names = {"name": f"{about['name']}: the results", "description": about["description"]}
    root = names | {"version": commit, "datePublished": date, "license": licence, "author": makers}
    for name, value in root.items():
        crate.root_dataset[name] = value
    crate.root_dataset["conformsTo"] = [
        entity(address, "CreativeWork", name=name, version=address.rpartition("/")[2])
        for address, name in PROFILES.items()
    ]
    inputs = [files["experiments.yml"], files["notebooks/train.ipynb"]]
    codes: dict[str, ContextEntity] = {}
    for path in [path for path in files if path.startswith("results/")]:
        record, name = Record.load(ROOT / path), path[len("results/") : -len(".json")]
        files[path]["identifier"] = record.digest
        own, made = record.provenance, [files[path]]
        if (commit := own["commit"]) not in codes:
            its = {"version": commit, "identifier": own["code"], "name": f"meprop {own['meprop']}"}
            codes[commit] = entity(f"#commit-{commit}", "SoftwareSourceCode", **its)
        if page := files.get(f"notebooks/runs/{name}.ipynb"):
            made.append(page)
        about_run = {"name": name, "description": json.dumps(record.config.to_dict())}
        action = crate.add_action(
            workflow, f"#run-{record.digest}", [*inputs, codes[commit]], made,
            about_run | {"startTime": own["start"], "agent": makers},
        )  # fmt: skip
        crate.root_dataset.append_to("mentions", action)
    shutil.rmtree(target, ignore_errors=True)
    crate.write(target)


def _kind(path: str) -> str:
    others = {".ipynb": "application/x-ipynb+json", ".yml": "application/yaml"}
    guessed = mimetypes.guess_type(path)[0]
    return others.get(Path(path).suffix) or guessed or "text/plain"


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


if __name__ == "__main__":
    assert experiments.ROOT == ROOT, "an installed meprop of another checkout"
    build(ROOT / "_build" / "crate")
    print("The crate is ready: _build/crate/ro-crate-metadata.json")
