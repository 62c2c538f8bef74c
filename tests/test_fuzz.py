"""The fuzzers see what they look for, and the committed figures are of what they try today."""

import json

import fuzz
import pytest
import torture

from meprop.study.record import Record


def outcomes(cases=range(80)):
    return {fuzz.tried(fuzz.records, f"records {case}")[0] for case in cases}


def test_a_record_without_checks_would_be_noticed(monkeypatch):
    assert outcomes() == {"accepted", "refused"}
    monkeypatch.setattr(Record, "check", lambda record: None)
    assert "contradictions" in outcomes()


def test_tracebacks_and_hangs_would_be_noticed(monkeypatch):
    def raising(rng, folder):
        raise KeyError("x")

    assert fuzz.tried(raising, "x")[0] == "tracebacks"

    def silent(rng, folder):
        raise fuzz.Hang  # as the alarm does

    assert fuzz.tried(silent, "x")[0] == "hangs"


@pytest.mark.parametrize("module", [fuzz, torture])
def test_the_figures_are_of_what_was_tried_and_nothing_went_wrong(module):
    figures = json.loads(module.FIGURES.read_text("utf-8"))
    wrong = fuzz.WRONG if module is fuzz else torture.WRONG
    assert not any(figures.get(name) for name in wrong)
    kinds = ("accepted", "refused") if module is fuzz else torture.KINDS
    tried = sum(fuzz.CASES.values()) if module is fuzz else figures["kills"]
    assert sum(figures[kind] for kind in kinds) == tried > 0
