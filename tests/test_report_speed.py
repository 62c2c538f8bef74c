"""The committed benchmark in words and figures, and the small one beside it."""

from dataclasses import replace

import pytest

from meprop.bench.results import kinds
from meprop.study.figures import speed as drawn
from meprop.study.report import speed


@pytest.fixture(scope="module")
def rows():
    return speed.committed()


def spread(median):
    return {"median": median, "q25": 0.9 * median, "q75": 1.1 * median}


def test_of_a_case_the_last_file_counts(rows):
    steps = [row for row in rows if row.case == "step/PaperCNN/1-thread"]
    assert [row.contender for row in steps] == [
        "stock", "dense", "dense", "masked", "exact", "meprop"
    ]  # fmt: skip
    longer = {row["case"]: row["rounds"] for row in speed.files()[-1]["rows"]}
    assert {row.rounds for row in steps} == {longer["step/PaperCNN/1-thread"]}
    counting = speed.counting(rows)
    assert len({(row.case, row.contender) for row in counting}) == len(counting)
    assert {row.threads for row in counting} == {1}


def test_what_is_left_of_a_gradient(rows):
    row = next(row for row in rows if row.group == "layer")
    assert speed.left(replace(row, density=1.0, ratio=0.05)) == 0.05
    assert speed.left(replace(row, density=0.03, ratio=0.05)) == 0.03
    assert speed.left(replace(row, density=0.03, ratio=None)) == 0.03


def test_the_free_share():
    assert speed.Saving("half", 0.1, 0.2).free == 0.5
    assert speed.Saving("more than all", 0.3, 0.2).free == 1
    assert speed.Saving("worse than nothing", -0.1, 0.2).free == 0
    assert speed.Saving("nothing to share", 0.1, -0.1).free == 0


def test_savings_come_from_the_speed_ups(rows):
    one = speed.counting(rows)
    by_work = {each.work: each for each in speed.savings(one)}
    changed = [
        replace(row, speedup={"dense": spread(2.0 if row.contender == "exact" else 4.0)})
        if row.case.startswith("step/PaperCNN/")
        else row
        for row in one
    ]
    (step,) = [each for each in speed.savings(changed) if each.work == "step of PaperCNN"]
    assert (step.exact, step.selected) == (0.5, 0.75)
    assert step.free == pytest.approx(2 / 3)
    assert set(by_work) == {
        "backward of conv1", "backward of conv2", "step of PaperCNN", "step of PaperCNN-BN"
    }  # fmt: skip


def test_words_have_the_numbers(rows):
    one = speed.counting(rows)
    by_case = {
        (row.case, row.contender): row.speedup["dense"]["median"]
        for row in one
        if "dense" in row.speedup
    }
    conv2 = by_case["layer/conv2/full/5%/1-thread", "sparse"]
    assert f"conv2 {conv2:.2f}" in speed.layers_in_words(one)
    step = by_case["step/PaperCNN-BN/1-thread", "meprop"]
    assert f"batch normalisation {step:.2f} (" in speed.steps_in_words(one)
    assert "conv2: 0." in speed.growth_in_words(one)
    assert "only for conv1." in speed.dense_in_words(one)
    assert "(none saved)" in speed.free_in_words(one)
    numbers = speed.headlines(one)
    assert numbers["conv2"] == conv2 and numbers["step-PaperCNN-BN"] == step
    assert all(type(number) is float for number in numbers.values())


def test_parts_add_up(rows):
    one = speed.counting(rows)
    (dense,) = [r for r in one if (r.case, r.contender) == ("split/PaperCNN/1-thread", "dense")]
    shares = kinds(dense.parts)
    assert sum(shares.values()) == pytest.approx(sum(dense.parts.values()))
    share = shares["conv backward"] / sum(shares.values())
    assert f"are {share:.0%} of a dense step" in speed.parts_in_words(one)
    assert speed.parts_in_words([]) == "No split has been measured."


def test_figures(rows):
    one = speed.counting(rows)
    assert drawn.density([]) is drawn.free([]) is drawn.dense_wins([]) is None
    density = drawn.density(one)
    assert density is not None and len(density.axes[0].get_lines()) == 4 * 2 + 1
    table = drawn.dense_wins(rows)
    assert table is not None and len(table.axes) == 2
    assert len(table.axes[0].texts) == 8 * 6
    free = drawn.free(one)
    assert free is not None
    assert [text.get_text().strip()[-4:] for text in free.axes[0].texts][1:3] == ["free"] * 2


def test_beside(rows, monkeypatch):
    case = "layer/conv2/natural/5%/1-thread"
    ours = [replace(row, speedup={"dense": spread(3.0)}) for row in rows if row.case == case]
    table = speed.beside(rows, ours).splitlines()
    assert len(table) == 3
    assert table[2].startswith("| backward of conv2, natural gradient (4% nonzero) | 5% | ")
    assert table[2].endswith(" | 3.00 (2.70 to 3.30) |")
    assert "| - |" in speed.beside([], ours)


@pytest.mark.parametrize("quick", [True, False])
def test_what_is_measured_is_known(rows, monkeypatch, quick):
    asked = []
    monkeypatch.setattr(
        "meprop.bench.running.run", lambda case, *_, clock: asked.append(case.name) or [clock]
    )
    assert set(speed.measure(quick)) == {"cpu"}
    assert len(set(asked)) == len(asked) == (4 if quick else 14)
    assert set(asked) <= {row.case for row in rows}
