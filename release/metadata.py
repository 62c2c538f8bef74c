"""What this project is, for machines: codemeta.json, and the repository's address everywhere.

`python release/metadata.py` derives codemeta.json from pyproject.toml and CITATION.cff. The address
is written by hand in one place, `repository.url` of _config.yml: this puts it into the other files,
or takes it out of them while that key is empty.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]


def documents(root: Path = ROOT) -> dict[str, str]:
    """What codemeta.json, CITATION.cff and pyproject.toml should say, by their names."""
    address = yaml.safe_load((root / "_config.yml").read_text("utf-8"))["repository"]["url"]
    project = (root / "pyproject.toml").read_text("utf-8")
    project = re.sub(r"\n\[project\.urls\]\n(?:.+\n)+", "", project)
    citation = (root / "CITATION.cff").read_text("utf-8")
    citation = re.sub(r"^repository-code: .*\n", "", citation, flags=re.MULTILINE)
    if address:
        urls = f'\n[project.urls]\nRepository = "{address}"\nIssues = "{address}/issues"\n'
        before, heading, after = project.partition("\n[project.optional-dependencies]")
        project = f"{before}{urls}{heading}{after}"
        citation = re.sub(
            r"^(license: .*\n)", rf"\1repository-code: {address}\n", citation, flags=re.MULTILINE
        )
    content = codemeta(tomllib.loads(project)["project"], yaml.safe_load(citation))
    return {
        "codemeta.json": json.dumps(content, indent=2, ensure_ascii=False) + "\n",
        "CITATION.cff": citation,
        "pyproject.toml": project,
    }


def codemeta(project: dict[str, Any], citation: dict[str, Any]) -> dict[str, Any]:
    """CodeMeta's terms for the two files."""
    (paper,) = citation["references"]
    arxiv = paper["identifiers"][0]["value"].partition(":")[2]
    urls = project.get("urls", {})
    addresses = {"codeRepository": urls.get("Repository"), "issueTracker": urls.get("Issues")}
    return {
        "@context": "https://w3id.org/codemeta/3.0",
        "@type": "SoftwareSourceCode",
        "name": project["name"],
        "description": project["description"],
        "version": citation["version"],
        "license": f"https://spdx.org/licenses/{project['license']}",
        "author": [{"@type": "Organization", "name": each["name"]} for each in project["authors"]],
        **{name: address for name, address in addresses.items() if address},
        "keywords": project["keywords"],
        "programmingLanguage": "Python",
        "runtimePlatform": f"Python {project['requires-python']}",
        "softwareRequirements": project["dependencies"],
        "referencePublication": {
            "@type": "ScholarlyArticle",
            "@id": f"https://arxiv.org/abs/{arxiv}",
            "name": paper["title"],
            "author": [
                {"@type": "Person", "givenName": a["given-names"], "familyName": a["family-names"]}
                for a in paper["authors"]
            ],
            "datePublished": str(paper["year"]),
        },
    }


def main(root: Path = ROOT) -> None:
    for name, text in documents(root).items():
        path = root / name
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"Written: {name}", file=sys.stderr)


if __name__ == "__main__":
    main()
