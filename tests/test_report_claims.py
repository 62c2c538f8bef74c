"""The ledger: every claim has a rule and a judge, and the judges follow the rules."""

from dataclasses import replace

import pytest
import synthetic

from meprop.study.figures import claims as drawn
from meprop.study.report.claims import JUDGES, VERDICTS, Evidence, claims, ledger, showing
from meprop.study.report.claims.verdicts import (
    NOT_SUPPORTED,
    NOT_TESTED,
    SUPPORTED,
    UNDECIDED,
    Verdict,
    better,
    more_seeds,
    not_worse,
    points,
    together,
)
from meprop.study.report.results import INTERIM, Results
from meprop.study.report.statistics import interval

JITTER = (0.01, -0.02, 0.02, -0.01, 0.0)


def evidence(shift=lambda name: 0.0, seeds=5, **changes):
    """Runs that differ from 99.0 by `shift` of their name, and by a little noise; None: missing."""

    def score(run):
        by = shift(run.name)
        return None if by is None else 99.0 + by + JITTER[(run.seed + len(run.name)) % 5]

    suites = {name: synthetic.results(name, score, seeds) for name in ("paper", "ablation")}
    return replace(Evidence(**suites), **changes)


def outcome(key, found):
    return JUDGES[key](found).outcome


# The claims


def test_every_claim_has_a_rule_and_a_judge():
    keys = [claim.key for claim in claims()]
    assert sorted(JUDGES) == sorted(keys)
    for claim in claims():
        words = (claim.claim, claim.where, claim.own, claim.rule, claim.data)
        assert all(words) and not any("{" in each for each in words), claim.key


def test_the_rules_name_the_numbers_they_leave_open():
    rule = {claim.key: claim.rule for claim in claims(margin=0.25, alpha=0.01)}["suffices"]
    assert "-0.25" in rule and "99%" in rule


def test_the_papers_own_tables_are_read_off():
    own = {claim.key: claim.own for claim in claims()}
    assert own["beats-baseline"].startswith("Yes in Table 2, of which the paper says it: 6 of 6")
    assert own["suffices"].startswith("Yes: +0.05, +0.25")
    assert own["decay-helps"].startswith("Yes") and own["decay-helps-bn"].startswith("No")
    assert own["bn-faster"].startswith("No: the best epoch of the baseline is 30 with and 18")


# From an interval to an outcome


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], NOT_TESTED),
        ([0.5], UNDECIDED),
        ([0.20, 0.21, 0.22], SUPPORTED),
        ([0.00, 0.01, 0.02], NOT_SUPPORTED),
        ([-0.2, -0.3, -0.25], NOT_SUPPORTED),
        ([-0.3, 0.1, 0.5], UNDECIDED),
    ],
)
def test_better(values, expected):
    assert better(interval(values), margin=0.1) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], NOT_TESTED),
        ([0.5], UNDECIDED),
        ([-0.02, 0.01, 0.02], SUPPORTED),
        ([-0.3, -0.31, -0.32], NOT_SUPPORTED),
        ([-0.2, 0.0, 0.1], UNDECIDED),
    ],
)
def test_not_worse(values, expected):
    assert not_worse(interval(values), margin=0.1) == expected


def test_all_conditions_have_to_hold():
    assert together([SUPPORTED, SUPPORTED]) == SUPPORTED
    assert together([SUPPORTED, UNDECIDED]) == UNDECIDED
    assert together([NOT_SUPPORTED, NOT_TESTED]) == NOT_SUPPORTED
    assert together([UNDECIDED, NOT_TESTED]) == NOT_TESTED
    assert together([]) == UNDECIDED


def test_more_seeds():
    open_one = interval([-0.05, 0.05, 0.10])
    more = more_seeds([open_one], [-0.1], 0.95)
    assert more is not None and more > 0
    assert more_seeds([interval([0.1])], [0.0], 0.95) is None, "one seed has no spread"


def test_points():
    assert points(interval([0.05])) == "+0.05 points (1 seed)"
    assert points(interval([0.0, 0.1])).startswith("+0.05 points (-0.59 to +0.69, 2 seeds)")


# The judges


ACCURACY = {
    # key: (names that are raised, what it then says)
    "suffices": lambda name: 0.0,
    "suffices-bn": lambda name: 0.0,
    "beats-baseline": lambda name: 0.0 if "baseline" in name else 0.3,
    "decay-helps": lambda name: 0.3 if name.endswith("-d06") else 0.0,
    "decay-helps-bn": lambda name: 0.3 if name.endswith("-d06") else 0.0,
    "decay-too-high": lambda name: 0.3 if name.endswith("-d06") else 0.0,
    "overfits": lambda name: 0.3 if "k05" in name else 0.0,  # the gap closes from above
    "like-dropout": lambda name: 0.3 if "k05" in name or "dropout" in name else 0.0,
    "bn-higher": lambda name: 0.3 if name.startswith("table3") else 0.0,
    "bn-sparse-beats-full": lambda name: 0.3 if "k05" in name else 0.0,
    "sparse-fc-hurts": lambda name: -0.3 if name == "fc1-k01" else 0.0,
    "layers-differ": lambda name: -0.3 if name == "layers-conv1" else 0.0,
    "per-map": lambda name: -0.3 if name == "scope-mixed" else 0.0,
}


@pytest.mark.parametrize("key", ACCURACY)
def test_accuracy_claims(key):
    holds = evidence(ACCURACY[key])
    assert outcome(key, holds) == SUPPORTED
    verdict = JUDGES[key](holds)
    assert "Binomial noise of one accuracy on 10,000 images: ±0." in verdict.numbers

    one_seed = evidence(ACCURACY[key], seeds=1)
    verdict = JUDGES[key](one_seed)
    assert (verdict.outcome, verdict.more_seeds) == (UNDECIDED, None)

    none = evidence(lambda name: None)
    assert outcome(key, none) == NOT_TESTED


@pytest.mark.parametrize("key", [key for key in ACCURACY if key != "like-dropout"])
def test_accuracy_claims_that_do_not_hold(key):
    # For non-inferiority the settings fall by more than the margin, for the others they are alike.
    worse = key.startswith("suffices")
    found = evidence(lambda name: -0.3 if worse and "k05" in name else 0.0)
    assert outcome(key, found) == NOT_SUPPORTED


def test_like_dropout_is_refuted_only_where_dropout_works():
    assert outcome("like-dropout", evidence()) == UNDECIDED, "dropout does not either"
    only = evidence(lambda name: 0.3 if "dropout" in name else 0.0)
    assert outcome("like-dropout", only) == NOT_SUPPORTED


def test_one_setting_of_twelve_is_enough_against_all_settings():
    found = evidence(lambda name: 0.3 if "baseline" not in name and name != "table3-k10-d06" else 0)
    verdict = JUDGES["beats-baseline"](found)
    assert verdict.outcome == NOT_SUPPORTED
    assert "Table 2: 6 of 6 trained settings above the baseline" in verdict.numbers


def test_the_margin_and_alpha_matter():
    def slightly(name):
        return -0.15 if "k05" in name else 0.0

    assert outcome("suffices", evidence(slightly)) == NOT_SUPPORTED
    assert outcome("suffices", evidence(slightly, margin=0.3)) == SUPPORTED
    assert outcome("suffices", evidence(slightly, margin=0.16)) != outcome(
        "suffices", evidence(slightly, margin=0.16, alpha=0.9)
    )


def change(found, name, edit):
    """The evidence with every epoch of a configuration edited."""
    changed = {}
    for suite in ("paper", "ablation"):
        results = getattr(found, suite)
        records = {}
        for run in results.runs:
            record = results.records[run.id]
            if run.name == name:
                record = replace(record, history=[edit(epoch) for epoch in record.history])
            records[run.id] = record
        changed[suite] = Results(results.runs, records)
    return replace(found, **changed)


def shares(**values):
    def edit(epoch):
        layers = {layer: dict(seen) for layer, seen in epoch["layers"].items()}
        for place, value in values.items():
            layer, _, what = place.partition("_")
            layers[layer][what] = value
        return epoch | {"layers": layers}

    return edit


def test_stable_is_about_the_last_epochs():
    def shaken(epoch):
        return epoch | {"test_accuracy": epoch["test_accuracy"] + 0.2 * (-1) ** epoch["epoch"]}

    found = evidence()
    assert outcome("decay-stable", found) != SUPPORTED
    for name in ("table2-k05-d0", "table3-k05-d0"):
        found = change(found, name, shaken)
    verdict = JUDGES["decay-stable"](found)
    assert verdict.outcome == SUPPORTED and "standard deviation over seeds" in verdict.numbers


def test_faster_is_about_the_first_epoch_at_99():
    assert outcome("bn-faster", evidence()) == NOT_SUPPORTED
    found = change(evidence(), "table3-baseline", lambda epoch: epoch | {"dev_accuracy": 99.5})
    verdict = JUDGES["bn-faster"](found)
    assert verdict.outcome == SUPPORTED and verdict.numbers.endswith("1, 1, 1, 1, 1 with.")


def test_density_claims_about_records():
    found = evidence(seeds=1)
    assert outcome("pooling-cap", found) == SUPPORTED
    assert outcome("pooling-cap", change(found, "ratio-k05", shares(conv2_before=0.26))) == (
        NOT_SUPPORTED
    )
    assert outcome("five-is-twenty", found) == SUPPORTED
    low = change(found, "table2-k05-d0", shares(conv2_before=0.03, conv2_after=0.03))
    verdict = JUDGES["five-is-twenty"](low)
    assert verdict.outcome == NOT_SUPPORTED and "100% at conv2" in verdict.numbers
    assert outcome("conv-weights-dense", found) == NOT_SUPPORTED
    rows = change(found, "fc1-k05", shares(fc1_weight=0.3))
    assert outcome("conv-weights-dense", rows) == SUPPORTED
    assert outcome("only-k-rows", found) == NOT_SUPPORTED
    few = change(found, "fc1-k05", lambda epoch: epoch | {"changed": 0.1})
    assert outcome("only-k-rows", few) == SUPPORTED


def test_cost_claims_follow_the_benchmark():
    found = Evidence()
    line = {"subject": "a", "threads": 1, "r2": 0.99, "intercept": 0.1}
    found.__dict__["cost_lines"] = [line]
    assert outcome("cost-proportional", found) == SUPPORTED
    found.__dict__["cost_lines"] = [line, line | {"subject": "b", "intercept": 0.5}]
    verdict = JUDGES["cost-proportional"](found)
    assert verdict.outcome == NOT_SUPPORTED and "Exceptions: b." in verdict.numbers
    found.__dict__["cost_lines"] = []
    assert outcome("cost-proportional", found) == NOT_TESTED

    def step(network, contender, **rest):
        names = {"group": "step", "subject": network, "contender": contender, "best": True}
        return names | rest

    faster = {"dense": {"median": 1.3, "q25": 1.1, "q75": 1.5}}
    rows = [step(name, "meprop", speedup=faster) for name in ("PaperCNN", "PaperCNN-BN")]
    found.__dict__["bench"] = rows
    assert outcome("saves-training", found) == SUPPORTED
    rows[1]["speedup"] = {"dense": {"median": 1.3, "q25": 0.9, "q75": 1.5}}
    assert outcome("saves-training", found) == NOT_SUPPORTED
    found.__dict__["bench"] = [step("PaperCNN", "dense", parts={"forward": 10.0, "backward": 11.0})]
    assert outcome("backward-as-forward", found) == SUPPORTED
    found.__dict__["bench"] = []
    assert outcome("backward-as-forward", found) == outcome("saves-training", found) == NOT_TESTED


def test_the_parts_of_a_backward_pass():
    found = Evidence()
    assert found.backward_parts is not None, "they are measured"
    parts = {"forward conv1": 50.0, "backward conv1": 3.0, "backward fc1": 5.0, "update": 70.0}
    parts |= {"backward between1": 1.0, "backward loss": 1.0}
    row = {"group": "split", "subject": "PaperCNN", "contender": "dense", "best": True}
    found = Evidence()
    found.__dict__["bench"] = [row | {"parts": parts}]
    assert found.backward_parts == {"products": 8.0, "elementwise": 1.0, "loss": 1.0}
    assert JUDGES["products-dominate"](found).numbers == "They take 80% of the backward pass."
    assert outcome("elementwise-cheap", found) == SUPPORTED
    found = Evidence()
    found.__dict__["bench"] = [row | {"parts": parts | {"backward between1": 20.0}}]
    assert outcome("products-dominate", found) == NOT_SUPPORTED
    assert outcome("elementwise-cheap", found) == NOT_SUPPORTED
    found = Evidence()
    found.__dict__["bench"] = []
    assert outcome("products-dominate", found) == outcome("elementwise-cheap", found) == NOT_TESTED


def test_a_forward_pass_is_what_it_was():
    assert outcome("saves-inference", Evidence()) == NOT_SUPPORTED


def test_the_ledger_has_a_verdict_for_every_claim():
    judged = ledger()
    assert [each.claim.key for each in judged] == [claim.key for claim in claims()]
    assert {each.verdict.outcome for each in judged} <= set(VERDICTS)
    assert all(each.verdict.numbers for each in judged)


# What the notebook shows


def test_the_ledger_is_shown_whole():
    judged = ledger(evidence(lambda name: None if "k08" in name else 0.0))
    assert sum(showing.tally(judged).values()) == len(judged)
    assert showing.in_words(judged).startswith(
        f"Of {len(judged) - 1} claims of the paper and 1 question of ours, "
    )
    assert INTERIM in showing.coverage(evidence(lambda name: None if "k08" in name else 0.0))
    assert INTERIM not in showing.coverage(evidence(lambda name: 0.0))
    table = showing.scoreboard(judged).splitlines()
    assert len(table) == len(judged) + 2
    text = showing.details(judged)
    for each in judged:
        assert each.claim.rule in text and each.verdict.numbers in text
        assert any(each.claim.claim in line and each.verdict.outcome in line for line in table)


def test_what_is_undecided_says_what_would_decide():
    assert Verdict(UNDECIDED, "", 1).words == (
        "undecided (about 1 more seed would decide, at this mean and spread)"
    )
    assert Verdict(UNDECIDED, "").words == "undecided (more seeds needed)"
    assert Verdict(SUPPORTED, "", 3).words == "supported"


@pytest.mark.parametrize("seeds", [0, 1, 3])
def test_figures_with_any_number_of_seeds(seeds):
    judged = ledger(evidence(seeds=seeds) if seeds else evidence(lambda name: None))
    assert drawn.scoreboard(judged) is not None
    assert (drawn.differences(judged, 0.1) is None) == (seeds == 0)


def test_every_difference_of_test_accuracies_is_handed_on_and_no_gap():
    """Also those of a claim that waits for another row."""
    every = evidence()
    for key in ACCURACY:
        found = JUDGES[key](every).differences
        assert bool(found) == (key not in ("overfits", "like-dropout")), key
    half = evidence(lambda name: None if name == "table3-k05-d0" else 0.0)
    verdict = JUDGES["suffices-bn"](half)
    assert verdict.outcome == NOT_TESTED and verdict.differences["5%, decay 0.6"].n == 5
    assert len(JUDGES["beats-baseline"](every).differences) == 12


def test_few_parameters_are_shown_beside_the_baselines():
    found = change(evidence(seeds=1), "ratio-k100", lambda epoch: epoch | {"changed": 0.08})
    verdict = JUDGES["only-k-rows"](found)
    assert "with all gradients, a step changes 8%" in verdict.numbers
    assert "Without selection in fc1, at 5%: 100% in Table 2, 100% in Table 3." in verdict.numbers
    weights = JUDGES["conv-weights-dense"](found).numbers
    assert "In Table 2, which the rule does not read: with 5%, conv1 100% and conv2 100%" in weights
