"""What archives and indexes read: codemeta.json, the address, the paper, the crate."""

import json
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from rocrate.rocrate import ROCrate

from meprop.study import load_records
from meprop.study.record import Record

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "release"))
import crate  # noqa: E402
import metadata  # noqa: E402

PARTS = ("codemeta.json", "CITATION.cff", "pyproject.toml", "_config.yml")


@pytest.mark.parametrize("name", PARTS[:3])
def test_the_committed_metadata_agree(name):
    assert (ROOT / name).read_text("utf-8") == metadata.documents()[name], "run make metadata"


def test_one_key_holds_the_address(tmp_path):
    for name in PARTS:
        shutil.copy(ROOT / name, tmp_path)
    before = {name: (tmp_path / name).read_text("utf-8") for name in PARTS}
    settings = before["_config.yml"]
    address = "https://example.org/us/meprop"
    named = re.sub(r"^  url: .*$", f'  url: "{address}"', settings, flags=re.MULTILINE)
    for config in (named, settings):
        (tmp_path / "_config.yml").write_text(config, "utf-8")
        metadata.main(tmp_path)
        known = yaml.safe_load(config)["repository"]["url"]
        project = tomllib.loads((tmp_path / "pyproject.toml").read_text("utf-8"))["project"]
        urls = {"Repository": known, "Issues": f"{known}/issues"} if known else {}
        assert project.get("urls", {}) == urls
        citation = yaml.safe_load((tmp_path / "CITATION.cff").read_text("utf-8"))
        assert citation.get("repository-code", "") == known
        content = json.loads((tmp_path / "codemeta.json").read_text("utf-8"))
        assert content.get("codeRepository", "") == known
    assert before == {name: (tmp_path / name).read_text("utf-8") for name in PARTS}


def test_the_paper_has_josss_form():
    _, front, text = (ROOT / "paper.md").read_text("utf-8").split("---\n", 2)
    about = yaml.safe_load(front)
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} <= set(about)
    assert re.findall(r"^# (.+)$", text, re.M)[:3] == [
        "Summary", "Statement of need", "State of the field"
    ]  # fmt: skip
    assert 750 <= len(re.findall(r"[\w'-]+", text)) <= 1750
    known = re.findall(r"^@\w+\{(\w+),", (ROOT / about["bibliography"]).read_text("utf-8"), re.M)
    cited = set(re.findall(r"@(\w+\d{4}\w+)", text))
    assert len(cited) > 5 and cited <= set(known)


def references(value):
    """What an entity points at."""
    if isinstance(value, dict):
        return {value["@id"]}
    return set().union(*map(references, value)) if isinstance(value, list) else set()


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crate")
    crate.build(folder)
    content = json.loads((folder / "ro-crate-metadata.json").read_text("utf-8"))
    entities = {entity["@id"]: entity for entity in content["@graph"]}
    assert len(entities) == len(content["@graph"]), "each is described once"
    return folder, content, entities


def test_every_file_of_the_crate_is_there_and_as_committed(graph):
    folder, _, entities = graph
    files = {name for name, entity in entities.items() if "File" in entity["@type"]}
    assert files >= {"Snakefile", "experiments.yml", "notebooks/train.ipynb"}
    for name in files:
        assert (folder / name).read_bytes() == (ROOT / name).read_bytes()
    assert references(entities["./"]["hasPart"]) == files
    written = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert written == {*files, "ro-crate-metadata.json"}


def test_the_crate_has_what_its_profiles_require(graph):
    folder, content, entities = graph
    assert content["@context"] == "https://w3id.org/ro/crate/1.1/context"
    root = entities["./"]
    for name in ("name", "description", "datePublished", "license", "version"):
        assert root[name]
    assert references(root["conformsTo"]) == set(crate.PROFILES)
    workflow = entities[root["mainEntity"]["@id"]]
    assert {"File", "SoftwareSourceCode", "ComputationalWorkflow"} == set(workflow["@type"])
    assert workflow["name"] and workflow["programmingLanguage"]["@id"] in entities
    for name, entity in entities.items():
        outside = {"identifier", "url", "conformsTo"} if name != "./" else set()
        for key in entity.keys() - outside:
            assert references(entity[key]) <= set(entities), f"{name}: {key}"
    assert len(ROCrate(folder).get_entities()) == len(entities), "others can read it"


def test_each_record_is_the_result_of_a_run_by_a_commit(graph):
    folder, _, entities = graph
    actions = [entity for entity in entities.values() if entity["@type"] == "CreateAction"]
    assert {action["@id"] for action in actions} == references(entities["./"]["mentions"])
    assert len(actions) == len(load_records(ROOT / "results"))
    for action in actions:
        assert action["instrument"] == entities["./"]["mainEntity"]
        record = Record.load(folder / action["result"][0]["@id"])
        assert action["@id"] == f"#run-{record.digest}"
        assert json.loads(action["description"]) == record.config.to_dict()
        assert action["startTime"] == record.provenance["start"]
        made_by = entities[action["object"][-1]["@id"]]
        assert made_by["version"] == record.provenance["commit"]
        assert made_by["identifier"] == record.provenance["code"]
