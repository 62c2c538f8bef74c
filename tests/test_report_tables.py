"""Tables 2 and 3: what they say with no seed, one seed and many, and what they must not say."""

import math

import pytest
import synthetic
from scipy import stats

from meprop.study.figures import tables as drawn
from meprop.study.paper import table
from meprop.study.report import tables
from meprop.study.report.results import INTERIM, Results

NOISE = (0.03, -0.02, 0.01, -0.04, 0.02)


def scored(run):
    """The settings are 0.1 above the baseline, but one, which is 0.3 below."""
    shift = 0 if "baseline" in run.name else -0.3 if "k10-d06" in run.name else 0.1
    pair = 0.02 * ((run.seed * 7 + len(run.name)) % 5 - 2) if shift else 0
    return round(99.0 + NOISE[run.seed % 5] + shift + pair, 2)


def some(seeds, test=scored):
    return synthetic.results("paper", test, seeds)


def test_rows_are_the_papers_in_its_order_then_ours():
    compared = tables.compare(2, some(0))
    assert [row.paper for row in compared[:7]] == list(table(2))
    assert [(row.label, row.paper) for row in compared[7:]] == [("5%, decay 0.9", None)]


@pytest.mark.parametrize("number", tables.TABLES)
def test_without_records_there_is_a_table_and_no_number_of_ours(number):
    compared = tables.compare(number, some(0))
    text = tables.side_by_side(compared)
    assert text.count("\n") == 9 and f"{table(number)[0].test:.2f}" in text
    assert all(line.endswith("| - | - | - | 0 |") for line in text.splitlines()[2:])
    assert "not yet trained" in tables.in_words(compared).lower()
    assert drawn.curves(compared) is None and drawn.gaps(compared) is None
    assert drawn.scores(compared) is not None
    assert math.isfinite(tables.noise(compared))


def test_one_seed_is_described_and_never_judged():
    compared = tables.compare(2, some(1))
    assert all(math.isnan(row.p) and not row.difference.known for row in compared)
    assert tables.best(compared) is None
    text = tables.side_by_side(compared) + tables.differences(compared)
    assert "**" not in text and " to " not in text
    words = tables.in_words(compared)
    assert "decides nothing" in words and "distinguishabl" not in words
    found = tables.discordants(compared[1], compared[0])[0]
    assert found.only_first > 0 and found.only_second > 0


def test_a_single_setting_is_named():
    results = some(2)
    wanted = {"table2-baseline": 0, "table2-k05-d0": 0, "table2-k05-d06": 1}
    keep = {run.id for run in results.runs if wanted.get(run.name) == run.seed}
    found = {name: record for name, record in results.records.items() if name in keep}
    # The third shares no seed with the baseline.
    words = tables.in_words(tables.compare(2, Results(results.runs, found)))
    assert "One of the paper's settings is trained, 5%, decay 0:" in words and "nan" not in words


def test_differences_are_paired_and_adjusted_over_the_six():
    results = some(5)
    compared = tables.compare(2, results)
    ours = {row.name: row for row in compared}
    baseline = [r.test_accuracy for r in results.of("table2-baseline").values()]
    raw = []
    for row in table(2)[1:]:
        scores = [r.test_accuracy for r in results.of(row.name).values()]
        raw.append(stats.ttest_rel(scores, baseline).pvalue)
    assert min(ours[row.name].p for row in table(2)[1:]) == pytest.approx(6 * min(raw))
    assert math.isnan(ours["table2-k05-d09"].p), "not one of the six"
    words = tables.in_words(compared)
    better, worse = words.split("better: ")[1].split("; worse: ")
    assert "5%, decay 0.6" in better and worse == "10%, decay 0.6."
    assert "Over 5 seeds, paired" in words


def test_while_seeds_are_missing_it_is_an_interim_look():
    def words(seeds):
        some_of_them = some(5, lambda run: scored(run) if run.seed < seeds else None)
        return tables.in_words(tables.compare(2, some_of_them))

    assert "Over 2 seeds" in words(2) and words(2).endswith(INTERIM)
    assert INTERIM not in words(5)
    assert INTERIM not in words(1), "one seed decides nothing anyway"


def test_bold_only_where_it_can_be_told_apart():
    alike = tables.compare(2, some(5))
    assert tables.best(alike) is None and "**" not in tables.side_by_side(alike)

    def one_stands_out(run):
        return scored(run) + (0.5 if run.name == "table2-k08-d0" else 0)

    clear = tables.compare(2, some(5, one_stands_out))
    assert tables.best(clear).name == "table2-k08-d0"
    (bold,) = [line for line in tables.side_by_side(clear).splitlines() if "**" in line]
    assert bold.startswith("| 8%, decay 0 |")


def test_missing_rows_and_a_diverged_run_are_left_out():
    results = some(2, lambda run: None if "k08" in run.name else scored(run))
    run = results.runs[0]
    assert run.name == "table2-baseline"
    records = results.records | {run.id: synthetic.record(run, diverged=True)}
    compared = tables.compare(2, Results(results.runs, records))
    by_name = {row.name: row for row in compared}
    assert list(by_name["table2-baseline"].records) == [1]
    assert not by_name["table2-k08-d0"].records
    assert by_name["table2-k05-d0"].difference.n == 1, "only seed 1 is a pair"
    for draw in (drawn.scores, drawn.curves, drawn.gaps):
        assert draw(compared) is not None


def test_gaps():
    compared = tables.compare(3, some(3))
    record = compared[0].records[0]
    chosen = record.history[record.best_epoch - 1]
    gap = compared[0].gap("train", "test")
    assert gap.n == 3
    assert gap.mean == pytest.approx(chosen["train_accuracy"] - compared[0].test.mean, abs=0.05)
    assert "In the paper's table" in tables.gaps_in_words(compared)


def test_a_row_with_fewer_seeds_is_compared_with_the_same_ones():
    """A second seed, worse for the baseline alone, makes no row better and no gap smaller."""

    def test(run):
        worse = run.name.endswith("baseline") and run.seed == 1
        return 98.5 if worse else 99.13

    whole = some(2, test)
    records = {
        name: each for name, each in whole.records.items() if "baseline" in name or "-s0" in name
    }
    compared = tables.compare(2, Results(whole.runs, records))
    assert compared[0].test.mean < compared[1].test.mean
    assert "0 of them have a higher test accuracy than the baseline" in tables.in_words(compared)
    assert tables.gaps_in_words(compared).count("same seeds, none of the paper's 6") == 2


def test_equal_gaps_are_not_smaller():
    compared = tables.compare(2, some(1, lambda run: 99.13))
    assert (
        "none of the paper's 6 settings that are trained has a smaller one"
        in tables.gaps_in_words(compared)
    )
