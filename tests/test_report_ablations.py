"""The studies: who is compared with whom, over which seeds, and what is said of it."""

import math
import re
from dataclasses import replace

import matplotlib.pyplot as plt
import pandas
import pytest

from meprop.study.config import Config
from meprop.study.experiments import Study, load
from meprop.study.figures import ablations as drawn
from meprop.study.labels import words
from meprop.study.record import Record
from meprop.study.report import ablations, turnover
from meprop.study.report.ablations import examine
from meprop.study.report.results import Results
from meprop.study.report.statistics import STEP, holm

EXPERIMENTS = load()


def record(run, test=97.0, epochs=3):
    """A record whose last epoch is the best, with this test accuracy (of 10,000 images)."""
    names = [*run.config.sparse_layers, *("conv1", "conv2", "fc1")]
    names += ["top1", "top2"] if run.config.select_at == "bn" else []
    share = run.config.ratio or 0.25
    layer = {"before": 0.25, "after": min(0.25, share), "weight": 1.0, "norm_kept": 0.9}
    history = [
        {
            "epoch": number, "train_loss": 1 / number, "train_accuracy": 90.0 + number,
            "dev_loss": 0.5 / number, "dev_accuracy": 95.0 + number,
            "test_accuracy": test - epochs + number, "seconds": 1.0,
            "layers": dict.fromkeys(names, layer), "changed": 0.5,
        }
        for number in range(1, epochs + 1)
    ]  # fmt: skip
    wrong = list(range(round(10_000 - 100 * test)))
    return Record(
        id=run.id, config=run.config, status="finished", stopped=None, history=history,
        best_epoch=epochs, dev_accuracy=95.0 + epochs, test_accuracy=test, test_errors=wrong,
        test_predictions=[0] * len(wrong), provenance={"seconds": 1.0},
    )  # fmt: skip


def results(study, seeds, test=lambda run: 97.0, without=()):
    """The runs of a study with records for some seeds."""
    runs = [run for run in EXPERIMENTS.suites["ablation"].runs if run.name in study.runs]
    done = [run for run in runs if run.seed in seeds and run.name not in without]
    return Results(tuple(runs), {run.id: record(run, test(run)) for run in done})


def example(name, seeds=(0, 1, 2), test=lambda run: 97.0, **options):
    return examine(name, results(EXPERIMENTS.studies[name], seeds, test, **options))


def scattered(run):
    """Seeds differ, the ratio tells, and a seed moves all runs alike."""
    ratio = run.config.ratio or 1
    return round(97 + run.seed / 10 + math.log10(ratio) + 0.01 * ((run.seed * 7) % 3), 2)


# Who is compared with whom


@pytest.mark.parametrize(
    ("study", "run", "reference"),
    [
        ("ratio", "ratio-k05", "ratio-k100"),
        ("ratio", "ratio-k05-bn", "ratio-k100-bn"),
        ("ratio", "ratio-k100", None),
        ("decay", "decay-d09-bn", "ratio-k05-bn"),
        ("scope", "scope-mixed", "ratio-k05"),
        ("pick", "pick-random", "ratio-k05"),
        ("bias", "bias-sparse", "ratio-k05"),
        ("layers", "layers-conv1", "ratio-k05"),
        ("fc1", "fc1-k25", "ratio-k25"),
        ("fc1", "ratio-k25", None),
        ("history", "history-position", "decay-d06"),
        ("bn-position", "bn-position-above", "ratio-k05-bn"),
        ("activation", "activation-sigmoid", "activation-sigmoid-k100"),
        ("activation", "ratio-k05", "ratio-k100"),
        ("overfitting", "overfitting-n1000-dropout", "overfitting-n1000-k100"),
        ("overfitting", "overfitting-dropout", "ratio-k100"),
    ],
)
def test_reference(study, run, reference):
    assert examine(study).row(run).reference == reference


@pytest.mark.parametrize("study", ablations.studies())
def test_every_study_compares_something(study):
    assert any(row.reference for row in examine(study).rows)


def test_labels_tell_all_runs_of_a_study_apart():
    for name in ablations.studies():
        rows = examine(name).rows
        assert len({row.label for row in rows}) == len(rows), name
        assert len({(row.group, row.treatment) for row in rows}) == len(rows), name


def test_words():
    config = Config(ratio=0.001, batch_norm=True, select_at="bn", decay=0.9, history="position")
    assert words(config, ["ratio", "batch_norm", "select_at", "history"]) == [
        "0.1%", "with BN", "above BN", "memory per position",
    ]  # fmt: skip
    assert words(Config(), ["ratio", "history", "dropout", "train_size", "lr"]) == [
        "all gradients", "all images", "0.001",
    ]  # fmt: skip
    assert words(Config(ratio=0.05, scope="layer"), ["scope", "sparse_layers"]) == [
        "the whole layer", "conv1 + conv2",
    ]  # fmt: skip


def test_axis_is_a_scale():
    found = {name: examine(name).axis for name in ablations.studies()}
    assert found["ratio"] == found["fc1"] == "ratio"
    assert found["decay"] == "decay"
    assert found["scope"] is found["layers"] is found["overfitting"] is found["history"] is None


def test_layers():
    assert examine("scope").layers == ["conv1", "conv2"]
    assert examine("fc1").layers == ["conv1", "conv2", "fc1"]
    assert examine("bn-position").layers == ["conv1", "top1", "conv2", "top2"]


# What is computed


def test_differences_are_paired_by_seed():
    def test(run):
        return 97.0 + run.seed + (0.5 if run.name == "pick-random" else 0)

    row = example("pick", test=test).row("pick-random")
    assert row.difference.n == 3
    assert row.difference.mean == pytest.approx(0.5)
    assert row.difference.sd < STEP
    assert row.test.mean == pytest.approx(98.5)
    assert row.test.low < row.test.mean


def test_only_common_seeds_count():
    study = EXPERIMENTS.studies["pick"]
    some = results(study, (0, 1, 2))
    del some.records["ablation/pick-random-s1"]
    row = examine("pick", some).row("pick-random")
    assert row.difference.n == 2
    assert len(row.records) == 2


def test_probabilities_are_adjusted_within_the_study():
    ablation = example("scope", seeds=range(5), test=lambda run: 97 + (hash_of(run) % 7) / 10)
    raw = [row.difference.p for row in ablation.compared]
    assert len(raw) == 3
    assert [row.p for row in ablation.compared] == holm(raw)


def hash_of(run):
    return sum(map(ord, f"{run.name}{run.seed}{run.name[::-1]}")) * (run.seed + 3)


def test_gaps_are_of_the_chosen_epoch():
    row = example("pick").row("pick-random")
    assert row.gap("train", "dev") == {seed: -5.0 for seed in range(3)}
    assert row.gap("dev", "test") == {seed: 1.0 for seed in range(3)}


def test_a_run_that_completed_no_epoch_is_left_out_and_named():
    some = results(EXPERIMENTS.studies["pick"], (0, 1))
    lost = some.records["ablation/pick-random-s0"]
    some.records["ablation/pick-random-s0"] = replace(
        lost, status="diverged", history=[], best_epoch=None, test_accuracy=None
    )
    ablation = examine("pick", some)
    assert list(ablation.row("pick-random").records) == [1]
    assert "Diverged: `pick-random` (seed 0)." in ablation.results.coverage()


def test_layer_means():
    row = example("pick").row("pick-random")
    assert row.layer("conv1", "after") == pytest.approx(5)
    assert math.isnan(row.layer("top1", "after"))


# What is said


def test_nothing_is_said_without_records():
    ablation = example("ratio", seeds=())
    assert "no answer yet" in ablations.in_words(ablation)
    assert ablations.gaps(ablation) == ablations.gradients(ablation) == "No run is done yet."
    assert ablations.noise(ablation) == "No run is done yet that learned."
    assert "Done: 0 of 80 declared runs." in ablations.about(ablation)
    assert ablations.fewest_in_words(ablation) == "There are no two ratios yet."
    assert ablations.scores(ablation).count("| 0 |") == 16
    for draw in (drawn.scores, drawn.curves, drawn.gradients, drawn.gaps, drawn.losses):
        assert draw(ablation) is None


def test_one_seed_is_a_description():
    text = ablations.in_words(example("scope", seeds=(0,)))
    assert "decides nothing" in text
    assert "Worse" not in text and "Better" not in text
    table = ablations.scores(example("scope", seeds=(0,)))
    assert " to " not in table, "an interval needs two seeds"
    one = ablations.gaps_in_words(example("overfitting", seeds=(0,)))
    assert one is not None and one.endswith("One seed: a description.")
    assert "p " not in one.split(":", 1)[1].split(".")[0]


def test_several_seeds_tell_what_can_be_told():
    def test(run):
        shift = {"scope-sample": 1.0, "scope-layer": -1.0, "scope-mixed": 0.0}.get(run.name, 0.0)
        wobble = 0.02 * ((run.seed * 5 + len(run.name)) % 3 - 1)
        return 97.0 + run.seed / 10 + shift + wobble

    text = ablations.in_words(example("scope", seeds=range(5), test=test))
    better, worse, shown = (
        re.search(rf"\*\*{title}.*?\*\*: (.*)", text)[1]
        for title in ("Better", "Worse", "No difference")
    )
    assert better.startswith("each map of each image: +1.")
    assert worse.startswith("the whole layer: -")
    assert shown.startswith("each image, maps mixed")
    assert "over 5 seeds" in text and "3 comparisons" in text
    assert "interim" not in text
    assert "interim look" in ablations.in_words(example("scope", seeds=range(4), test=test))


def test_many_that_are_alike_are_counted():
    text = ablations.in_words(example("ratio", test=lambda run: 97 + hash_of(run) % 5 / 100))
    assert "\n\n- **No difference shown**: all 14.\n\n" in text


def test_no_accuracy_reaches_beyond_all_images():
    ablation = example("pick", seeds=(0, 1), test=lambda run: 99.0 + run.seed)
    assert "| 2 | 99.50 (93.15 to 100.00) |" in ablations.scores(ablation)


def test_how_few_suffice():
    text = ablations.fewest_in_words(example("ratio", seeds=range(5), test=scattered))
    assert text is not None
    assert text.startswith("No BN: test accuracy is ") and " With BN: test accuracy is " in text
    assert "interval: none. Shown to be worse: 0.1%, 0.5%, 1%, 2%, 5%, 10% and 25%." in text

    def flat(run):
        return scattered(run) if run.config.ratio == 0.001 else 97 + (hash_of(run) % 5) / 100

    text = ablations.fewest_in_words(example("ratio", seeds=range(5), test=flat))
    assert text is not None
    assert "interval: 0.5%, 1%, 2%, 5%, 10% and 25%. Shown to be worse: 0.1%." in text
    assert ablations.fewest_in_words(example("fc1")) is None
    assert ablations.fewest_in_words(example("scope")) is None


def test_a_network_that_only_guesses_is_no_mean():
    def test(run):
        stuck = run.name == "pick-random" and run.seed < 2
        return 9.8 + run.seed if stuck else 97 + run.seed / 10

    ablation = example("pick", seeds=range(3), test=test)
    assert ablation.row("pick-random").stuck == {0: 9.8, 1: 10.8}
    text = ablations.in_words(ablation)
    assert (
        "**Did not always learn**: random: 2 of 3 seeds never do better than to guess (9.80%, "
        "10.80%); the rest reaches 97.20%. A test accuracy up to 20% counts as guessing" in text
    )
    assert "No difference" not in text
    assert "| random | 3 | 9.80, 10.80, 97.20 | - | - |" in ablations.scores(ablation)
    assert "| random | 93.00, 93.00, 93.00 | - | - |" in ablations.gaps(ablation)
    assert "an accuracy of 97.10%" in ablations.noise(ablation), "of the rows that learned"
    assert "a mean over" not in ablations.noise(ablation), "one pair is left that both learn"
    assert drawn.scores(ablation) is not None
    lost = example("pick", seeds=range(3), test=lambda run: 97 if "random" in run.name else 10)
    assert "Better" not in ablations.in_words(lost), "nothing to compare with"


def test_missing_runs_are_named():
    ablation = example("pick", seeds=(0,), without=("pick-random",))
    assert (
        "Done: 1 of 10 declared runs. Missing: seeds 1, 2, 3, 4 of `ratio-k05`; seeds 0, 1, 2, "
        "3, 4 of `pick-random`." in ablations.about(ablation)
    )
    short = "Missing: seeds 2, 3, 4 of each."
    assert short in ablations.about(example("pick", seeds=(0, 1)))
    assert "All 10 declared runs are done." in ablations.about(example("pick", seeds=range(5)))
    assert ablations.in_words(ablation).startswith("There is no answer yet")
    assert "| random | 0 | - | - | - | - | - |" in ablations.scores(ablation)


def test_noise_is_stated_with_the_images_they_disagree_on():
    ablation = example("pick", test=lambda run: 97.0 if run.name == "ratio-k05" else 96.0)
    text = ablations.noise(ablation)
    assert "measured on 10,000 images" in text
    assert "On average 100 of them" in text
    assert "±0.20 points" in text


def test_tables_have_a_row_a_run_and_whole_lines():
    for name in ablations.studies():
        ablation = example(name)
        for table in (
            ablations.scores(ablation),
            ablations.gaps(ablation),
            ablations.gradients(ablation),
        ):
            lines = table.splitlines()
            assert len(lines) == 2 + len(ablation.rows)
            assert len({line.count("|") for line in lines}) == 1, name


def test_gaps_are_for_the_study_of_overfitting():
    assert ablations.gaps_in_words(example("scope")) is None
    text = ablations.gaps_in_words(example("overfitting"))
    assert text is not None and "1,000 images, all gradients, dropout 0.5" in text
    assert ", p " in text


# Figures


@pytest.mark.parametrize("study", ablations.studies())
def test_figures(study):
    seeds = (0,) if study in ("ratio", "scope") else (0, 1, 2)
    ablation = example(study, seeds=seeds, test=scattered)
    for draw in (drawn.scores, drawn.curves):
        assert draw(ablation) is not None
    assert (drawn.gradients(ablation) is None) == (study not in ("ratio", "fc1"))
    assert (drawn.gaps(ablation) is None) == (study != "overfitting")
    assert (drawn.losses(ablation) is None) == (study != "overfitting")
    assert not plt.get_fignums()


def test_lines_follow_the_scale():
    figure = drawn.scores(example("ratio", seeds=(0,), test=scattered))
    assert figure is not None
    (first, _) = (line for line in figure.axes[0].get_lines() if len(line.get_xdata()) > 2)
    assert list(first.get_xdata()) == [0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1]
    assert first.get_ydata()[0] == pytest.approx(94)
    figure = drawn.scores(example("fc1", seeds=(0,), test=scattered))
    assert figure is not None
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert names == ["conv1 + conv2", "conv1 + conv2 + fc1"]


def test_some_runs_missing():
    ablation = example("ratio", seeds=(0,), without=("ratio-k100", "ratio-k100-bn", "ratio-k01"))
    figure = drawn.scores(ablation)
    assert figure is not None
    assert drawn.gradients(ablation) is not None


# The chosen sets


@pytest.fixture
def counted():
    rows = []
    for norm in (False, True):
        for decay in (0.0, 0.9):
            share = 0.9 - decay / 2
            for layer in ("conv1", "conv2"):
                here = {"batch_norm": norm, "decay": decay, "layer": layer}
                rows += [
                    here | {"measure": "ever", "at": at, "share": share * at / 500}
                    for at in (1, 500)
                ]
                rows += [here | {"measure": "kept", "at": at, "share": decay} for at in (1, 100)]
                rows += [here | {"measure": "nonzero", "at": at, "share": 0.5} for at in (1, 500)]
    return pandas.DataFrame(rows)


def test_the_chosen_sets_in_words(counted):
    origin = {"steps": "500", "data": "x", "seed": "0", "ratio": "0.05", "made by": "y"}
    text = turnover.page(counted, origin | {"commit": "a" * 40})
    assert "a decay of 0.6 better than 0.9" in text
    assert "at a ratio of 5%" in text
    assert "| no BN | conv1 | 0.9 | 45.0 | 90.0 | more than 100 | 50.0 |" in text
    assert "| with BN | conv2 | 0 | 90.0 | 0.0 | less than 1 | 50.0 |" in text
    assert "conv1 without BN 45% (without a memory 90%)" in text
    assert "in 4 of 4 cases; the set turns over more slowly in 4 of 4" in text
    assert "the least here is 45%." in text
    assert "chooses at conv1 without BN, 50% have a gradient at that step" in text


def test_the_chosen_sets_drawn(counted):
    figure = drawn.chosen(counted)
    assert [axis.get_title() for axis in figure.axes[:2]] == ["conv1", "conv2"]
    assert all(len(axis.get_lines()) == 4 for axis in figure.axes)


def test_a_study_without_a_reference_still_has_a_page(monkeypatch):
    """Somebody may declare one; nothing may fail."""
    study = Study("ablation", "new", "Why?", ("ratio",), ("ratio-k05", "ratio-k10"))
    monkeypatch.setattr(
        ablations.study, "load", lambda: type("E", (), {"studies": {"new": study}})()
    )
    ablation = examine("new", results(study, (0, 1)))
    assert ablation.compared == []
    assert "no answer yet" in ablations.in_words(ablation)
    assert "reference" not in ablations.scores(ablation)
    assert drawn.scores(ablation) is not None
