"""The benchmark: fair turns, right statistics, honest contenders, and files that can be read."""

import gc
import json
import platform
import subprocess
import sys
from dataclasses import asdict, fields, replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from meprop import TopK, select
from meprop.bench import __main__ as command
from meprop.bench import figures, gradients, layers, running, selection, split, steps, table
from meprop.bench.cases import Case, Setup
from meprop.bench.results import Results, Row, cores, cost_lines, rows_of
from meprop.bench.statistics import fastest, fit_line, speedups, summarise
from meprop.bench.summary import summary
from meprop.bench.timing import WARM_UP, Contender, Timing, measure

# Turns


class Clock:
    """Stands still but for what contenders add to it."""

    def __init__(self):
        self.now = 0.0
        self.calls = []

    def __call__(self):
        return self.now

    def contender(self, name, *seconds, variant="contiguous"):
        def part(which, takes):
            def call():
                self.calls.append((name, which))
                self.now += takes

            return call

        return Contender(name, {f"part{i}": part(i, s) for i, s in enumerate(seconds)}, variant)


def names_by_round(calls, count):
    names = [name for name, part in calls if part == 0]
    return [names[i : i + count] for i in range(0, len(names), count)]


def test_every_round_calls_each_contender_once_in_a_new_order():
    clock = Clock()
    contenders = [clock.contender(name, 1.0) for name in "abcd"]
    timings = measure(contenders, seconds=0, least=30, clock=clock)
    rounds = names_by_round(clock.calls, 4)
    assert len(rounds) == 1 + WARM_UP + 30
    assert all(sorted(names) == list("abcd") for names in rounds)
    timed = rounds[1 + WARM_UP :]
    assert {names[0] for names in timed} == set("abcd")  # nobody always comes first
    followed = {pair for names in timed for pair in pairwise(names)}
    assert len(followed) == 12  # nor always behind the same
    assert [timing.contender.name for timing in timings] == list("abcd")
    again = Clock()
    measure([again.contender(name, 1.0) for name in "abcd"], 0, least=30, clock=again)
    assert again.calls == clock.calls


def test_first_call_and_warm_up_do_not_count():
    clock = Clock()
    slow_at_first = iter([50.0, *[9.0] * WARM_UP, *[2.0] * 100])

    def call():
        clock.now += next(slow_at_first)

    (timing,) = measure([Contender("a", {"all": call})], seconds=0, least=5, clock=clock)
    assert timing.first == 50
    assert timing.totals == [2.0] * 5


@pytest.mark.parametrize(
    ("seconds", "least", "most", "rounds"), [(0, 3, 9, 3), (20, 3, 9, 7), (99, 3, 9, 9)]
)
def test_rounds_follow_the_time_that_is_given(seconds, least, most, rounds):
    clock = Clock()
    contenders = [clock.contender("a", 1.0), clock.contender("b", 1.5, 0.5)]
    a, b = measure(contenders, seconds, least, most, clock)
    assert a.rounds == [(1.0,)] * rounds
    assert b.rounds == [(1.5, 0.5)] * rounds
    assert b.totals == [2.0] * rounds


def test_parts_run_in_order():
    clock = Clock()
    measure([clock.contender("a", 1, 2, 3)], seconds=0, least=1, clock=clock)
    assert clock.calls == [("a", 0), ("a", 1), ("a", 2)] * (2 + WARM_UP)


def test_no_garbage_is_collected_while_the_clock_runs():
    collecting = []

    def call():
        collecting.append(gc.isenabled())

    assert gc.isenabled()
    measure([Contender("a", {"all": call})], seconds=0, least=4)
    assert collecting == [True] * (1 + WARM_UP) + [False] * 4
    assert gc.isenabled()

    def fails():
        if not gc.isenabled():
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        measure([Contender("a", {"all": fails})], seconds=0, least=4)
    assert gc.isenabled()


# Statistics


def test_summarise_gives_quartiles():
    values = np.random.default_rng(0).lognormal(size=31)
    in_order = np.sort(values)
    # 31 values: the quartiles fall between the 8th and 9th, and the 23rd and 24th.
    expected = (in_order[7:9].mean(), in_order[15], in_order[22:24].mean())
    assert summarise(values) == pytest.approx(expected)
    assert summarise([3.0]) == (3.0, 3.0, 3.0)


def test_speedups_are_taken_round_by_round():
    assert speedups([4, 9], [2, 3]) == [2, 3]
    with pytest.raises(ValueError):
        speedups([4, 9], [2])


def test_fit_line():
    x = np.array([0.005, 0.01, 0.05, 0.1, 0.25])
    line = fit_line(x, 0.2 + 3 * x)
    assert (line.intercept, line.slope, line.r2) == pytest.approx((0.2, 3, 1))
    y = np.array([0.3, 0.2, 0.5, 0.4, 0.9])
    slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    line = fit_line(x, y)
    assert line.slope == pytest.approx(slope)
    assert line.intercept == pytest.approx(y.mean() - slope * x.mean())
    assert line.r2 == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2)


def timing(name, variant, totals, ratio=None):
    contender = Contender(name, {"all": lambda: None}, variant, ratio)
    return Timing(contender, first=1.0, rounds=[(total,) for total in totals])


def test_each_contender_counts_in_its_faster_format():
    slow = timing("dense", "contiguous", [5, 1, 5])
    fast = timing("dense", "channels_last", [4, 9, 4])
    other = timing("sparse", "contiguous", [7, 7, 7])
    assert fastest([slow, fast, other]) == {"dense": fast, "sparse": other}


def test_rows_compare_with_the_baselines_best_format():
    timings = [
        timing("dense", "contiguous", [9, 9, 9]),
        timing("dense", "channels_last", [4, 8, 6]),
        timing("masked", "contiguous", [12, 12, 12], 0.05),
        timing("sparse", "contiguous", [1, 4, 2], 0.05),
        timing("auto", "contiguous", [2, 4, 3], 0.05),
    ]
    facts = {("auto", "contiguous"): {"chose": "sparse", "difference": 1e-7}}
    setup = Setup([t.contender for t in timings], ("dense",), "a shape", 0.5, lambda: facts)
    case = Case("layer", "conv2", 1, "full", 0.05)
    rows = {(row.contender, row.format): row for row in rows_of(case, setup, timings)}
    assert not rows["dense", "contiguous"].best and rows["dense", "channels_last"].best
    sparse = rows["sparse", "contiguous"]
    # Round by round 4, 2 and 3 times as fast: not 6 / 2, the ratio of the medians, by accident.
    assert sparse.speedup == {"dense": {"median": 3.0, "q25": 2.5, "q75": 3.5}}
    # Over dense in the same, slower format 9, 2.25 and 4.5 times.
    assert sparse.same_format == {"median": 4.5, "q25": 3.375, "q75": 6.75}
    assert sparse.time == {"median": 2000.0, "q25": 1500.0, "q75": 3000.0}
    assert (sparse.case, sparse.rounds, sparse.first) == (case.name, 3, 1000.0)
    assert (sparse.shape, sparse.density, sparse.ratio) == ("a shape", 0.5, 0.05)
    assert sparse.behind is None and sparse.chose is None
    auto = rows["auto", "contiguous"]
    assert auto.behind == 1.5  # the median of 2, 1 and 1.5 times the time of sparse
    assert (auto.chose, auto.difference) == ("sparse", 1e-7)


def test_auto_without_a_rule_is_compared_with_dense():
    def rows(ratio):
        timings = [
            timing("dense", "contiguous", [1.0] * 3, ratio),
            timing("masked", "contiguous", [4.0] * 3, ratio),
            timing("sparse", "contiguous", [4.0] * 3, ratio),
            timing("exact", "contiguous", [2.0] * 3, ratio),
            timing("auto", "contiguous", [2.0] * 3, ratio),
        ]
        setup = Setup([t.contender for t in timings], ("dense",), "", 1.0, dict)
        return rows_of(Case("layer", "conv2", 1, "full", ratio), setup, timings)

    assert rows(1.0)[-1].behind == 2.0
    assert rows(0.05)[-1].behind == 0.5  # with a rule, dense gradients are no choice


def example_row(**changes):
    spread = {"median": 1.0, "q25": 0.9, "q75": 1.1}
    row = Row(
        case="layer/conv2/full/5%/1-thread", group="layer", subject="conv2",
        shape="10x32->64 14x14 5x5", gradient="full", density=1.0, threads=1, contender="dense",
        ratio=0.05, format="contiguous", best=True, rounds=7, first=1.0, time=spread,
        parts={"all": 1.0}, speedup={"dense": spread}, same_format=spread,
    )  # fmt: skip
    return replace(row, **changes)


def line_rows(subject, intercept, slope, dense, ratios=(0.005, 0.01, 0.05, 0.1, 0.25)):
    rows = []
    for ratio in ratios:
        cost = intercept + slope * ratio
        about = {"subject": subject, "ratio": ratio, "case": f"layer/{subject}/full/{ratio}"}
        spread = {"median": 1 / cost, "q25": 0.9 / cost, "q75": 1.1 / cost}
        time = {"median": dense, "q25": dense, "q75": dense}
        masked = {"median": 0.5, "q25": 0.4, "q75": 0.6}
        rows += [
            example_row(**about, time=time),
            example_row(**about, contender="masked", speedup={"dense": masked}),
            example_row(**about, contender="sparse", speedup={"dense": spread}),
            # The slower format, which does not count:
            example_row(**about, contender="sparse", best=False, speedup={"dense": masked}),
            example_row(**about, contender="auto", chose="sparse", behind=1.0),
        ]
    return rows


def test_cost_lines_are_fitted_to_sparse_on_full_gradients():
    rows = line_rows("conv1", 0.1, 2.0, dense=5.0) + line_rows("conv2", 0.2, 4.0, dense=7.0)
    rows += [replace(row, gradient="natural", speedup={}) for row in rows]
    rows += line_rows("conv1", 0.1, 9.0, dense=5.0, ratios=(1.0,))  # beyond the line
    rows += line_rows("wide", 0.1, 2.0, dense=5.0, ratios=(0.01, 0.05))  # two points are none
    first, second = cost_lines(rows)
    assert (first.subject, first.threads, first.r2) == ("conv1", 1, pytest.approx(1))
    assert (first.intercept, first.slope) == (pytest.approx(0.1), pytest.approx(2))
    assert first.intercept_ms == pytest.approx(0.5)
    assert (second.subject, second.intercept_ms) == ("conv2", pytest.approx(1.4))


# Contenders


@pytest.fixture
def tiny(monkeypatch):
    """A layer that takes no time, made as the larger ones are."""
    monkeypatch.setitem(gradients.LAYERS, "tiny", gradients.Layer("tiny", 4, 6, 8, 10, 3))
    return "tiny"


@pytest.mark.parametrize("name", ["conv1", "conv2", "tiny"])
def test_gradients_are_as_in_training(name, tiny):
    layer = gradients.LAYERS[name]
    full, natural = (gradients.incoming(name, gradient) for gradient in gradients.GRADIENTS)
    for given in (full, natural):
        assert given.x.shape == (layer.batch, layer.channels, layer.side, layer.side)
        assert given.grad.shape == (layer.batch, layer.maps, layer.side, layer.side)
        assert given.grad.is_contiguous() and given.grad.isfinite().all()
        assert given.module(given.x).shape == given.grad.shape
        assert given.x.requires_grad == (name != "conv1")
    assert full.density > 0.999
    # At most one entry of each pooling window, and only where ReLU is open.
    windows = torch.nn.functional.unfold((natural.grad != 0).float(), 2, stride=2)
    per_window = windows.unflatten(1, (layer.maps, 4)).sum(2)
    assert per_window.max() == 1
    low, high = {"conv1": (0.18, 0.25), "conv2": (0.02, 0.06), "tiny": (0.2, 0.25)}[name]
    assert low < natural.density < high


@pytest.mark.parametrize("memory_format", layers.FORMATS.values())
def test_masked_keeps_what_the_reference_selects(memory_format):
    grad = torch.randn(4, 3, 6, 6).contiguous(memory_format=memory_format)
    mask, _ = select(grad, TopK(0.1))
    assert torch.equal(layers.keep_largest(grad, 0.1), grad * mask)
    assert layers.keep_largest(grad, 1.0) is grad


@pytest.mark.parametrize("gradient", gradients.GRADIENTS)
@pytest.mark.parametrize("ratio", [0.05, 1.0])
def test_contenders_of_a_layer_compute_the_same(tiny, gradient, ratio):
    given = gradients.incoming(tiny, gradient)
    calls = {f: layers._calls(given, ratio, f) for f in layers.FORMATS.values()}
    reference = calls[torch.contiguous_format]["masked"]()
    for memory_format, by_name in calls.items():
        names = {"dense", "masked", "sparse", "auto"} | ({"exact"} if ratio == 1 else set())
        assert set(by_name) == names
        for name, call in by_name.items():
            grads = call()
            assert [g.shape for g in grads if g is not None] == [(4, 6, 10, 10), (8, 6, 3, 3)]
            assert all(g.is_contiguous(memory_format=memory_format) for g in grads[:2])
            assert not any(g.requires_grad for g in grads[:2])
            if name != "dense" or ratio == 1:
                assert layers.difference(grads, reference) < 1e-4
            else:
                assert layers.difference(grads, reference) > 0.01


def test_the_first_layer_of_a_network_needs_no_input_gradient():
    given = gradients.incoming("conv1", "natural")
    for call in layers._calls(given, 0.05, torch.channels_last).values():
        dx, dw, db = call()[:3]
        assert dx is None and dw.shape == (32, 1, 5, 5) and db.shape == (32,)


def test_what_ran_is_seen(tiny):
    given = gradients.incoming(tiny, "natural")
    calls = layers._calls(given, 1.0, torch.channels_last)
    assert layers.dense_convolutions(calls["dense"]) == 1
    assert layers.dense_convolutions(calls["exact"]) == 0
    setup = layers.build(Case("layer", tiny, 1, "natural", 1.0))
    facts = setup.facts()
    assert set(facts) == {(c.name, c.variant) for c in setup.contenders}
    assert facts["exact", "contiguous"]["difference"] < 1e-4
    assert facts["auto", "contiguous"]["chose"] in ("dense", "sparse")


@pytest.mark.parametrize("memory_format", layers.FORMATS.values())
def test_contenders_of_the_selection_find_the_same(memory_format):
    given = gradients.incoming("conv1", "full")
    by_name = selection.calls(given, 0.01, memory_format)
    rows = given.grad.transpose(0, 1).flatten(1)
    indices = by_name["topk"]()
    picked = rows.gather(1, indices).flatten().sort().values
    assert indices.shape == (32, TopK(0.01).k(10 * 28 * 28))
    places = by_name["kthvalue"]()
    assert torch.equal(rows[places[:, 0], places[:, 1]].sort().values, picked)
    assert torch.equal(by_name["sparse"]().sort().values, picked)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_networks_start_from_the_same_weights(batch_norm):
    networks = steps._paper(batch_norm)
    names = ["stock", "dense", "dense", "masked", "exact", "meprop"]
    assert [name for name, _ in networks] == names
    losses, changed = [], []
    for _, training in networks:
        before = [parameter.detach().clone() for parameter in training.model.parameters()]
        training.forward()
        losses.append(training.loss.item())
        training.backward()
        training.update()
        after = training.model.parameters()
        pairs = zip(before, after, strict=True)
        changed.append(all(not torch.equal(old, new) for old, new in pairs))
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-5)
    assert all(changed)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_step_in_stages_is_a_step(batch_norm):
    """The same loss and the same update as of a whole step, stage by stage."""
    whole = dict(steps._paper(batch_norm))["meprop"]
    model = split.PaperCNN(batch_norm=batch_norm, rule=TopK(steps.RATIO))
    staged = split.Staged(model, batch_norm)
    for _ in range(2):
        whole.step()
        for name, part in staged.parts().items():
            part()
            if name == "forward loss":
                assert len(staged.graphs) == 8
    assert staged.graphs == [] and staged.gradient is None
    for ours, theirs in zip(model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_parts_of_a_step_from_the_command_line(tmp_path, capsys):
    options = ["--only", "split/PaperCNN/1", "--seconds", "0", "--cpu", "--threads", "1"]
    status, shown = run(capsys, *options, "--output", str(tmp_path))
    assert status == 0 and "noisy" not in shown.err
    content = json.loads((tmp_path / "bench.json").read_text("utf-8"))
    assert content["settings"]["clock"] == "cpu"
    rows = content["rows"]
    assert [row["contender"] for row in rows] == ["dense", "exact", "meprop", "selection"]
    parts = list(rows[0]["parts"])
    assert len(parts) == 17 and parts[-1] == "update"
    assert parts[6:10] == ["forward fc2", "forward loss", "backward loss", "backward fc2"]
    assert list(rows[3]["parts"]) == ["selection conv1", "selection conv2"]
    assert "Parts of a training step" in shown.out and (tmp_path / "split.png").exists()


# Table and figures


def everything():
    """Rows of every group, with the widest values that are to be expected."""
    wide = {"median": 12345.678, "q25": 10234.5, "q75": 15432.1}
    factor = {"median": 12.346, "q25": 10.11, "q75": 13.99}
    rows = line_rows("conv1", 0.1, 2.0, dense=123.4) + line_rows("large", 0.2, 4.0, dense=1234.5)
    about = {"ratio": 1.0, "case": "layer/large/natural/100%/1-thread", "gradient": "natural"}
    for name in ("dense", "masked", "sparse", "exact", "auto"):
        facts = {"chose": "sparse", "behind": 1.2, "difference": 0.5} if name == "auto" else {}
        row = example_row(**about, **facts, subject="large", contender=name, density=0.23)
        rows.append(replace(row, time=wide, speedup={"dense": factor}))
    for name in ("topk", "kthvalue", "sparse"):
        row = example_row(group="selection", case="selection/conv2/natural/25%", contender=name)
        rows.append(replace(row, time=wide, speedup={"topk": factor, "kthvalue": factor}))
    for name in ("stock", "dense", "masked", "exact", "meprop"):
        row = example_row(group="step", subject="PaperCNN-BN", case="step/PaperCNN-BN/1-thread")
        parts = {"forward": 12.345, "backward": 123.45, "update": 12.345}
        row = replace(row, contender=name, parts=parts, time=wide)
        row = replace(row, speedup={"dense": factor, "stock": factor}, chose="2/2 sparse")
        rows.append(replace(row, gradient=None, density=None, ratio=None))
    stages = ("conv1", "between1", "conv2", "between2", "fc1", "between3", "fc2", "loss")
    times = {f"{way} {stage}": 123.45 for way in ("forward", "backward") for stage in stages}
    for name in ("dense", "meprop", "selection"):
        row = example_row(group="split", subject="PaperCNN-BN", case="split/PaperCNN-BN/1-thread")
        parts = {"selection conv1": 12.3} if name == "selection" else times | {"update": 12.3}
        rows.append(replace(row, contender=name, parts=parts))
    return rows + [replace(row, threads=2) for row in rows]


def test_table_fits_on_a_screen_and_has_everything():
    text = table.render(everything())
    assert max(len(line) for line in text.splitlines()) <= 100
    for words in ("dense", "masked", "sparse", "auto", "exact", "topk", "kthvalue", "stock"):
        assert words in text
    assert "12.3 (10.1-14.0)" in text
    assert "0.100 + 2.00 * ratio" in text
    assert "1 thread:" in text and "2 threads:" in text
    assert "in 20 of 22 cases" in text and "1.20 times its time" in text
    assert "CAREFUL: layer/large/natural/100%/1-thread: auto is off by 5.0e-01." in text


def test_figures_show_what_there_is(tmp_path):
    assert figures.save([], tmp_path) == []
    paths = figures.save(everything(), tmp_path / "new")
    assert [path.name for path in paths] == ["layers.png", "cost.png", "steps.png", "split.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    few = [row for row in everything() if row.group == "selection"]
    assert figures.save(few, tmp_path) == []


# The command


def run(capsys, *arguments):
    status = command.main(arguments)
    return status, capsys.readouterr()


def test_a_small_run_from_the_command_line(tmp_path, capsys):
    pattern = "conv2/natural/5%/1-thread"
    options = ["--quick", "--only", pattern, "--threads", "1", "--seconds", "0.01"]
    status, shown = run(capsys, *options, "--output", str(tmp_path))
    assert status == 0
    content = json.loads((tmp_path / "bench.json").read_text("utf-8"))
    assert (content["schema"], content["finished"]) == (1, True)
    assert content["settings"] == {
        "seconds": 0.01, "least": 3, "only": pattern, "quick": True, "threads": [1],
        "clock": "wall",
    }  # fmt: skip
    rows = content["rows"]
    assert all(set(row) == {field.name for field in fields(Row)} for row in rows)
    found = {(row["group"], row["contender"], row["format"]) for row in rows}
    wanted = [("layer", n) for n in ("dense", "masked", "sparse", "auto")]
    wanted += [("selection", n) for n in ("topk", "kthvalue", "sparse")]
    assert found == {(*each, variant) for each in wanted for variant in layers.FORMATS}
    for row in rows:
        assert row["rounds"] >= 3 and row["time"]["median"] > 0 and row["first"] > 0
        assert 0.02 < row["density"] < 0.06
    best = [row for row in rows if row["best"]]
    assert sorted((row["group"], row["contender"]) for row in best) == sorted(wanted)
    (dense,) = [row for row in best if row["contender"] == "dense"]
    assert dense["speedup"]["dense"]["median"] == 1
    for name in ("dense", "masked", "sparse", "auto", "topk", "kthvalue"):
        assert name in shown.out
    assert (tmp_path / "layers.png").exists()
    assert "bench.json" in shown.out
    origin = content["provenance"]
    assert (origin["torch"], origin["numba"]) == (version("torch"), version("numba"))
    assert {"cpu", "cores", "threads", "commit", "date"} <= set(origin)
    assert str(tmp_path) not in json.dumps(content)
    assert platform.node() not in origin.values()


def test_steps_from_the_command_line(tmp_path, capsys):
    options = ["--quick", "--only", "step/PaperCNN/1", "--seconds", "0"]
    status, shown = run(capsys, *options, "--output", str(tmp_path))
    assert status == 0
    rows = json.loads((tmp_path / "bench.json").read_text("utf-8"))["rows"]
    contenders = ["stock", "dense", "dense", "masked", "exact", "meprop"]
    assert [row["contender"] for row in rows] == contenders
    assert all(list(row["parts"]) == ["forward", "backward", "update"] for row in rows)
    assert all(set(row["speedup"]) == {"dense", "stock"} for row in rows)
    assert all(name in shown.out for name in contenders)
    assert (tmp_path / "steps.png").exists()


def stand_in(monkeypatch, stop_at, error):
    """Cases that take no time, until one of them ends in an error."""
    done = []

    def run(case, seconds, least, clock):
        if len(done) == stop_at:
            raise error
        done.append(case)
        return [
            example_row(case=case.name, contender=name, ratio=case.ratio, chose="sparse")
            for name in ("dense", "masked", "sparse", "auto")
        ]

    monkeypatch.setattr(running, "run", run)


def test_ctrl_c_keeps_what_was_measured(tmp_path, capsys, monkeypatch):
    stand_in(monkeypatch, stop_at=2, error=KeyboardInterrupt())
    options = ["--only", "layer/conv2/full", "--threads", "1", "--output", str(tmp_path)]
    status, shown = run(capsys, *options)
    assert status == 130
    assert "Interrupted after 2 of 6 cases." in shown.err
    content = json.loads((tmp_path / "bench.json").read_text("utf-8"))
    assert content["finished"] is False
    assert {row["case"] for row in content["rows"]} == {
        "layer/conv2/full/0.5%/1-thread",
        "layer/conv2/full/1%/1-thread",
    }
    assert "masked" in shown.out and (tmp_path / "layers.png").exists()


def test_ctrl_c_while_figures_are_drawn_keeps_the_numbers(tmp_path, capsys, monkeypatch):
    stand_in(monkeypatch, stop_at=99, error=AssertionError())

    def save(rows, folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(figures, "save", save)
    options = ["--only", "layer/conv2/full/5%", "--threads", "1", "--output", str(tmp_path)]
    status, shown = run(capsys, *options)
    assert status == 130 and "before all figures" in shown.err
    assert json.loads((tmp_path / "bench.json").read_text("utf-8"))["finished"] is True


def test_an_error_keeps_what_was_measured(tmp_path, monkeypatch):
    stand_in(monkeypatch, stop_at=1, error=RuntimeError("no luck"))
    with pytest.raises(RuntimeError, match="no luck"):
        command.main(["--only", "layer/conv2/full", "--output", str(tmp_path)])
    content = json.loads((tmp_path / "bench.json").read_text("utf-8"))
    assert content["finished"] is False and len(content["rows"]) == 4


def test_interrupted_before_anything_was_measured(tmp_path, capsys, monkeypatch):
    stand_in(monkeypatch, stop_at=0, error=KeyboardInterrupt())
    status, shown = run(capsys, "--only", "conv2", "--output", str(tmp_path / "new"))
    assert status == 130
    assert shown.out.strip() == "Nothing was measured."
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--threads", "0"], "must be between 1 and"),
        (["--threads", str(cores() + 1)], "must be between 1 and"),
        (["--threads", "many"], "'many'"),
        (["--seconds", "soon"], "'soon'"),
        (["--seconds", "-1"], "'-1'"),
        (["--seconds", "nan"], "'nan'"),
        (["--only", "conv7"], "'conv7'"),
        (["--fast"], "--fast"),
        (["--cpu", "--threads", str(cores()), "1"], "add --threads 1"),
    ],
)
def test_a_wrong_option_ends_in_one_sentence(options, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(options)
    assert stopped.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("meprop.bench: ") and words in line


def test_list_names_every_case_once(capsys):
    status, shown = run(capsys, "--list", "--threads", "1")
    names = shown.out.split()
    assert status == 0
    assert len(set(names)) == len(names) == 4 * 2 * 6 + 2 * 2 * 3 + 3 + 2
    assert "layer/conv1/natural/0.5%/1-thread" in names and "step/resnet18/1-thread" in names
    _, shown = run(capsys, "--list", "--threads", "1", "--quick")
    assert set(shown.out.split()) < set(names)
    _, shown = run(capsys, "--list", "--threads", "1", "--quick", "--only", "resnet")
    assert shown.out.split() == ["step/resnet18/1-thread"]


def test_a_busy_machine_is_reported(tmp_path, capsys, monkeypatch):
    stand_in(monkeypatch, stop_at=99, error=AssertionError())
    for load, warns in ((0.1, False), (3.0, True)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        options = ["--only", "layer/conv2/full/5%", "--threads", "1", "--output", str(tmp_path)]
        _, shown = run(capsys, *options)
        assert ("noisy" in shown.err) == warns
        content = json.loads((tmp_path / "bench.json").read_text("utf-8"))
        assert content["load"] == {"start": load, "end": load}


def test_threads_are_set_and_given_back():
    before = torch.get_num_threads()
    with running.threads(cores()):
        assert torch.get_num_threads() == cores()
    assert torch.get_num_threads() == before


def test_results_round_trip(tmp_path):
    results = Results({"seconds": 1.0}, [example_row()])
    content = json.loads(results.save(tmp_path).read_text("utf-8"))
    assert Row(**content["rows"][0]) == example_row()
    assert content["rows"] == [asdict(row) for row in results.rows]
    assert list(tmp_path.iterdir()) == [tmp_path / "bench.json"]


def test_the_core_does_not_load_the_benchmark():
    code = "import sys, meprop; assert not [m for m in sys.modules if m.startswith('meprop.bench')]"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_readme_shows_the_committed_measurement():
    """Its table is printed by `python -m meprop.bench.summary benchmarks/*/bench.json`."""
    root = Path(__file__).resolve().parents[1]
    paths = sorted(root.glob("benchmarks/*/bench.json"))
    results = [json.loads(path.read_text("utf-8")) for path in paths]
    assert all(result["finished"] for result in results)
    shown = summary(*results)
    assert shown.count("\n|") >= 15
    assert shown in (root / "README.md").read_text("utf-8")


def test_summary_leaves_out_what_was_not_measured():
    made = {"cpu": "some CPU", "torch": "2", "date": "2026-01-01T00:00:00"}
    empty = summary({"rows": [], "provenance": made})
    assert empty.splitlines()[2:] == ["", "some CPU, torch 2, 2026-01-01."]

    def measured(median):
        spread = {"median": median, "q25": median, "q75": median}
        row = {"case": "step/PaperCNN/1-thread", "threads": 1, "contender": "meprop", "best": True}
        row |= {"ratio": 0.05, "speedup": {"dense": spread}}
        return {"rows": [row], "provenance": made}

    assert summary(measured(2.0), measured(3.0)).splitlines()[2:3] == [
        "| whole training step of PaperCNN | 5% |  |  | **3.00** (3.00-3.00) |"
    ]
