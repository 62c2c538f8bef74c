"""experiments.yml declares what the study needs, and a mistake in such a file is reported well."""

import hashlib
import os
import statistics

import pytest

from meprop.study.config import Config
from meprop.study.experiments import ExperimentsError, Run, load
from meprop.study.pipeline import find

EXPERIMENTS = load()


def configs(suite: str) -> dict[str, Config]:
    """The configurations of a suite, with seed 0."""
    return {run.name: run.config for run in EXPERIMENTS.suites[suite].runs if run.seed == 0}


# What is declared


def test_seeds():
    seeds: dict[tuple[str, str], list[int]] = {}
    for run in EXPERIMENTS.runs:
        assert run.config.seed == run.seed
        seeds.setdefault((run.suite, run.name), []).append(run.seed)
    # As the declared analysis says (book/analysis.md).
    for (suite, name), found in seeds.items():
        count = {"quick": 1, "paper": 2, "mnist-unbiased": 2}.get(suite, 3)
        if (suite, name.split("-")[0]) in {("ablation", "ratio"), ("follow-up", "pick")}:
            count = 4
        if suite == "paper" and (name.endswith("-baseline") or "-k05-" in name):
            count = 3 if name.endswith("-d09") else 5
        if name in ("ratio-k01", "fc1-k01"):
            count = 5
        compared = ("dense", "weight-", "top-k05", "unbiased-k05", "unbiased-k10", "channels-k20")
        if suite == "cifar10" and not name.startswith(compared):
            count = 1
        assert found == list(range(count)), (suite, name)


@pytest.mark.parametrize(
    ("suite", "digests"),
    [
        ("quick", "f8767db7df6e1f5e"),
        ("paper", "5f829664d313d1dd"),
        ("ablation", "a8b1e809cd4f2aa9"),
        ("follow-up", "f2b2527f63417eda"),
        ("mnist-unbiased", "3b08bf3210dd651b"),
        ("cifar10", "ba6ad9a85070a272"),
        ("fashion", "b35831727e8936a4"),
    ],
)
def test_no_declared_configuration_has_changed(suite, digests):
    """Records are found by it. Who adds a run changes the number here, and nothing else."""
    found = "".join(f"{name} {config.digest}\n" for name, config in configs(suite).items())
    assert hashlib.sha256(found.encode()).hexdigest()[:16] == digests


def test_a_run_costs_what_its_records_say():
    """In every suite that is committed, whatever its network and its data."""
    rates: dict[str, list[float]] = {}
    for run in EXPERIMENTS.runs:
        if run.committed and (record := find(run)[0]):
            seconds = statistics.median(epoch["seconds"] for epoch in record.history)
            rates.setdefault(run.suite, []).append(run.config.epochs * seconds / run.cost)
    typical = [statistics.median(each) for each in rates.values()]
    assert len(typical) > 3 and max(typical) < 2 * min(typical)


def test_where_files_go():
    runs = {run.id: run for run in EXPERIMENTS.runs}
    first, second = runs["paper/table2-baseline-s0"], runs["paper/table2-baseline-s1"]
    quick = runs["quick/table2-baseline-s0"]
    assert first.record.as_posix() == "results/paper/table2-baseline-s0.json"
    assert first.notebook.as_posix() == "notebooks/runs/paper/table2-baseline-s0.ipynb"
    assert second.notebook.as_posix() == "_build/runs/paper/table2-baseline-s1.ipynb"
    # The checkout stays clean.
    for path in (quick.record, quick.notebook, quick.log, first.log):
        assert path.parts[0] == "_build"
    assert len({run.record for run in runs.values()}) == len(EXPERIMENTS.runs)


# Picking


def test_pick():
    def ids(*arguments):
        return [run.id for run in EXPERIMENTS.pick(*arguments)]

    both = [run.id for run in EXPERIMENTS.runs if run.suite in ("paper", "ablation")]
    assert ids(["paper", "ablation"]) == both
    assert ids(["paper"], ["table2-k05-d06"], [0, 1]) == [
        "paper/table2-k05-d06-s0",
        "paper/table2-k05-d06-s1",
    ]
    assert len(ids(["paper", "ablation"], ["table2-*", "ratio-k05"], [0])) == 8 + 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((["papr"],), "no suite 'papr'; did you mean 'paper'?"),
        (
            (["paper", "ablation"], ["table2-k05-d6"]),
            "no configuration of paper, ablation 'table2-k05-d6'; did you mean 'table2-k05-d06'?",
        ),
        ((["quick"], ["table2-k08-d0"], [0, 1]), "seed 1 is not declared for these runs, only 0"),
    ],
)
def test_what_there_is_not_gets_the_nearest(arguments, sentence):
    with pytest.raises(ExperimentsError) as error:
        EXPERIMENTS.pick(*arguments)
    assert str(error.value) == f"experiments.yml: {sentence}"


# Mistakes in a file

GOOD = """\
suites:
  small:
    about: for this test
    committed: false
    config: {dataset: digits, epochs: 1}
    seeds: [0, 1]
    runs:
      plain: {}
      sparse: {ratio: 0.05}
    studies:
      ratio: {about: "Enough?", varies: [ratio], runs: [plain, sparse]}
"""


def load_text(tmp_path, text):
    path = tmp_path / "some.yml"
    path.write_text(text)
    return load(path)


def test_a_good_file(tmp_path):
    experiments = load_text(tmp_path, GOOD)
    config = Config(dataset="digits", epochs=1, ratio=0.05, seed=1)
    assert experiments.runs[-1] == Run("small", "sparse", 1, config, committed=False)


SUITE = "suite 'small'"
RUN = f"line 9, {SUITE}, run 'sparse'"
STUDY = f"line 11, {SUITE}, study 'ratio'"
FIVE, BOTH = "ratio: 0.05", "[plain, sparse]"
MORE = "sparse: {ratio: 0.05}\n      more: {ratio: 0.1}"


@pytest.mark.parametrize(
    ("old", "new", "place", "what"),
    [
        (FIVE, "ratoi: 0.05", RUN, "unknown key 'ratoi'; did you mean 'ratio'?"),
        (FIVE, "seed: 1", RUN, "seeds belong in the suite's `seeds`"),
        (FIVE, "decay: 0.6", RUN, "has no effect without a ratio"),
        ("sparse: {ratio: 0.05}", "sparse:", RUN, "must be a mapping"),
        ("sparse:", "plain:", "line 9", "'plain' is there twice"),
        ("{ratio: 0.05}", "{}", RUN, "the same configuration as 'plain'"),
        ("sparse:", "sparse-s1:", f"line 9, {SUITE}, run 'sparse-s1'", "no seed at its end"),
        ("epochs: 1", "epoch: 1", f"line 5, {SUITE}", "'epoch'; did you mean 'epochs'?"),
        ("[0, 1]", "[0, true]", f"line 6, {SUITE}", "got True"),
        ("[0, 1]", "[0, 0]", f"line 6, {SUITE}", "the list names one twice"),
        ("[0, 1]", "[]", f"line 6, {SUITE}", "the list is empty"),
        ("[0, 1]", "{'pl*': [0]}", f"line 6, {SUITE}", "no seeds for 'sparse'"),
        ("[0, 1]", "{'*': [0], 'sparce': [1]}", f"line 6, {SUITE}", "no run fits 'sparce'; did"),
        ("seeds:", "seed:", f"line 6, {SUITE}", "unknown key 'seed'; did you mean 'seeds'?"),
        ("    about: for this test\n", "", f"line 2, {SUITE}", "the key 'about' is missing"),
        ("false", "maybe", f"line 4, {SUITE}", "true or false, got 'maybe'"),
        (BOTH, "[plain, sparce]", STUDY, "no run 'sparce'; did you mean 'sparse'?"),
        (BOTH, "[plain]", STUDY, "its runs differ in nothing, not in ratio"),
        ("varies: [ratio]", "varies: [decay]", STUDY, "its runs differ in ratio, not in decay"),
        ("varies:", "within: [decay], varies:", STUDY, "no field in varies 'decay'"),
        ("sparse: {ratio: 0.05}", MORE, f"line 11, {SUITE}", "run 'more' is in no study"),
        ("[0, 1]", "[0, 1", "line 7", "expected"),
        (FIVE, f"ratio: {10**400}", RUN, "ratio must be a number below 1e308, got 1000"),
        ("[0, 1]", f"[{'9' * 5000}]", "", "Exceeds the limit"),
        (FIVE, "lr: 2001-02-30", "", "day is out of range"),
        (GOOD, "suites: {}", "line 1", "suites must be not empty"),
        ("sparse: {", "[sparse]: {", "line 9", "unhashable key"),
        ("sparse: {", "2: {", f"line 9, {SUITE}, run '2'", "text, got 2; in YAML write '2'"),
        ("sparse:", f"{'x' * 250}:", f"line 9, {SUITE}, run '{'x' * 80}'", "at most 80"),
        ("  small:", "  ../../small:", "line 2, suite '../../small'", "small letters"),
        ("for this test", "\0", "line 3", "'\\x00' is no text; save the file in UTF-8"),
        ("for this test", "{<<: [1]}", "line 3", "expected a mapping"),
        ("for this test", "!!python/name:os.system", "line 3", "could not determine a constructor"),
        (GOOD, "", "", "this must be a mapping of names, got None"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path, old, new, place, what):
    assert old in GOOD
    with pytest.raises(ExperimentsError) as error:
        load_text(tmp_path, GOOD.replace(old, new, 1))
    message = str(error.value)
    assert message.startswith(f"some.yml, {place}: " if place else "some.yml: "), message
    assert what in message, message
    assert "\n" not in message


def aliases(each):
    """Forty levels of aliases of aliases."""
    return "x0: &a0 {k: v}\n" + "".join(f"x{i + 1}: &a{i + 1} {each % (i, i)}\n" for i in range(40))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (GOOD.replace("this test", "\xe9").encode("latin-1"), "line 3: '\\udce9' is no text"),
        (aliases("[*a%d, *a%d]").encode(), "more than 20 aliases"),
        (aliases("{<<: *a%d, k: *a%d}").encode(), "more than 20 aliases"),
        (b"suites: &a [*a]", "inside what it names"),
        (b"suites: !!bool maybe", "not readable as YAML"),
        ("a pipe", "not a file"),
        *((b"suites:\n " + nested * 100_000, "50 levels") for nested in (b"[", b"{", b"- ")),
        (None, "no such file; the study needs the project's checkout"),
    ],
)
def test_a_file_that_is_none(tmp_path, content, what):
    """It neither hangs nor ends in a traceback."""
    path = tmp_path / "some.yml"
    if content == "a pipe":
        os.mkfifo(path)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ExperimentsError) as error:
        load(path)
    assert what in str(error.value) and "\n" not in str(error.value)


def test_two_suites_of_the_same_runs(tmp_path):
    """Committed, they are refused; what is in _build is made for each of them."""
    again = GOOD.removeprefix("suites:\n").replace("small:", "again:")
    with pytest.raises(ExperimentsError, match="two studies are called 'ratio'"):
        load_text(tmp_path, GOOD + again)
    text = GOOD + again.replace(" ratio: {ab", " r: {ab")
    load_text(tmp_path, text)
    said = r"line 12, suite 'again': run 'plain' is small/plain-s0"
    with pytest.raises(ExperimentsError, match=said):
        load_text(tmp_path, text.replace("committed: false", "committed: true"))


def test_merged_runs_keep_their_own_lines(tmp_path):
    text = GOOD.replace("runs:", "runs: &all", 1) + (
        "  more:\n    about: a\n    committed: false\n    config: {dataset: digits}\n"
        "    seeds: [0]\n    runs:\n      <<: *all\n      third: {ratoi: 1}\n"
    )
    with pytest.raises(ExperimentsError, match=r"line 19, suite 'more', run 'third'"):
        load_text(tmp_path, text)
    found = load_text(tmp_path, text.replace("ratoi: 1", "ratio: 0.1"))
    assert [run.name for run in found.suites["more"].runs] == ["plain", "sparse", "third"]
