"""The benchmark: fair turns, right statistics, honest contenders, and a table that can be read."""

import gc
import json
import platform
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise, repeat
from pathlib import Path

import pytest
import torch
from oracle import variables
from torch import nn

import benchmarks
from benchmarks import __main__ as command
from benchmarks import gradients, layers, networks, suite
from benchmarks.case import Case, Setup
from benchmarks.clock import WARM_UP, Contender, Timing, measure
from benchmarks.results import cores, load, rows_of
from meprop import TopK, convert, revert, select
from meprop.study import PaperCNN

# Times and gradients are looked at here, and not what a network learns.
pytestmark = pytest.mark.filterwarnings("ignore:convert. at ")


# Turns


class Clock:
    """Stands still but for what contenders add to it: first calls and warming up take longer."""

    def __init__(self):
        self.now, self.names = 0.0, []

    def __call__(self):
        return self.now

    def contender(self, name, *seconds, **options):
        def call(its):
            self.names.append(name)
            self.now += next(its)

        slow = [50.0] + [9.0] * WARM_UP
        parts = {f"part{i}": partial(call, chain(slow, repeat(s))) for i, s in enumerate(seconds)}
        return Contender(name, parts, **options)


def test_every_round_calls_each_contender_once_in_a_new_order():
    clock, again = Clock(), Clock()
    for each in (clock, again):
        measure([each.contender(name, 1.0) for name in "abcd"], 0, least=30, clock=each)
    names = clock.names
    assert names == again.names
    rounds = [names[i : i + 4] for i in range(0, len(names), 4)]
    assert len(rounds) == 1 + WARM_UP + 30
    assert all(sorted(each) == list("abcd") for each in rounds)
    timed = rounds[1 + WARM_UP :]
    assert {each[0] for each in timed} == set("abcd")  # nobody always comes first
    assert len({pair for each in timed for pair in pairwise(each)}) == 12  # nor behind the same


@pytest.mark.parametrize(
    ("seconds", "least", "most", "rounds"), [(0, 3, 9, 3), (20, 3, 9, 7), (99, 3, 9, 9)]
)
def test_rounds_follow_the_time_that_is_given(seconds, least, most, rounds):
    clock = Clock()
    contenders = [clock.contender("a", 1.0, 0.5, counts="part0"), clock.contender("b", 1.0, 0.5)]
    a, b = measure(contenders, seconds, least, most, clock)
    assert (a.first, b.first) == (100, 100)
    assert a.rounds == b.rounds == [(1.0, 0.5)] * rounds
    assert a.totals == [1.0] * rounds and b.totals == [1.5] * rounds


def test_no_garbage_is_collected_while_the_clock_runs():
    collecting = []

    def call():
        collecting.append(gc.isenabled())
        if len(collecting) == 1 + WARM_UP + 4:
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        measure([Contender("a", {"all": call})], seconds=0, least=9)
    assert collecting == [True] * (1 + WARM_UP) + [False] * 4
    assert gc.isenabled()


# Statistics


def test_rows_compare_with_the_baselines_best_format():
    timings = []
    for name, format, totals, ratio in [
        ("dense", "contiguous", [9, 9, 9], None),
        ("dense", "channels_last", [4, 8, 6], None),
        ("auto", "contiguous", [1, 4, 2], 0.05),
        ("auto", "contiguous", [3, 3, 3], 0.25),
    ]:
        facts = dict if name != "auto" else lambda: {"chose": "sparse", "difference": 1e-7}
        contender = Contender(name, {"all": int}, format, ratio, facts=facts)
        timings.append(Timing(contender, first=1.0, rounds=[(total,) for total in totals]))
    setup = Setup([each.contender for each in timings], ("dense",), "a shape", 0.5)
    case = Case("layer", "conv2", 1, "full")
    slow, fast, row, other = rows_of(case, setup, timings)
    assert not slow.best and fast.best
    assert row.best and other.best  # another ratio is another contender
    # Round by round 4, 2 and 3 times as fast: not 6 / 2, the ratio of the medians, by accident.
    assert row.speedup == {"dense": {"median": 3.0, "q25": 2.5, "q75": 3.5}}
    assert row.same_format == {"median": 4.5, "q25": 3.375, "q75": 6.75}  # over 9, 9, 9
    assert row.time == {"median": 2000.0, "q25": 1500.0, "q75": 3000.0}
    assert (row.case, row.rounds, row.first) == (case.name, 3, 1000.0)
    assert (row.shape, row.density, row.ratio) == ("a shape", 0.5, 0.05)
    assert (row.chose, row.difference) == ("sparse", 1e-7)


# Contenders


@pytest.mark.parametrize("name", ["conv1", "conv2", "tiny"])
def test_gradients_are_as_in_training(name):
    layer = gradients.LAYERS[name]
    full, natural = (gradients.incoming(name, gradient) for gradient in gradients.GRADIENTS)
    for given in (full, natural):
        assert given.module(given.x).shape == given.grad.shape
        assert given.x.requires_grad == (name != "conv1")
    assert full.density > 0.999
    # At most one entry of each pooling window, and only where ReLU is open.
    windows = nn.functional.unfold((natural.grad != 0).float(), 2, stride=2)
    assert windows.unflatten(1, (layer.maps, 4)).sum(2).max() == 1
    low, high = {"conv1": (0.18, 0.25), "conv2": (0.02, 0.06), "tiny": (0.1, 0.25)}[name]
    assert low < natural.density < high


@pytest.mark.parametrize("format", gradients.FORMATS)
@pytest.mark.parametrize("gradient", gradients.GRADIENTS)
@pytest.mark.parametrize("ratio", [0.05, 1.0])
def test_contenders_of_a_layer_give_the_references_gradients(format, gradient, ratio):
    given = gradients.incoming("tiny", gradient)
    mask, _ = select(given.grad, TopK(ratio))
    y = given.module(given.x)
    wanted = (given.x, given.module.weight)
    reference = torch.autograd.grad(y, wanted, given.grad * mask, retain_graph=True)
    full = torch.autograd.grad(y, wanted, given.grad)
    calls = layers.passes(given, ratio, format)
    ours = {"kernel", "auto", "exact" if ratio == 1 else "sparse"}
    assert set(calls) == ours | ({"dense"} if ratio == 1 else {"dense", "masked"})
    for name, call in calls.items():
        found = call.gradients()
        far = layers.difference(found, full if name == "dense" else reference)
        assert far < 1e-4, name
        assert all(g.is_contiguous(memory_format=gradients.FORMATS[format]) for g in found)
        facts = call.facts(calls["dense"])()
        assert ("chose" in facts, "difference" in facts) == (name == "auto", name in ours)
    assert (layers.difference(full, reference) > 0.01) == (ratio < 1)


@pytest.mark.parametrize("ratio", [0.05, 1.0])
def test_contenders_of_a_linear_layer_keep_the_largest_of_each_sample(ratio):
    given = gradients.incoming_linear("hidden", "full")
    mask, _ = select(given.grad, TopK(ratio, scope="sample"))
    assert (mask.sum(1) == TopK(ratio).k(given.grad.shape[1])).all()
    y, wanted = given.module(given.x), (given.x, given.module.weight)
    reference = torch.autograd.grad(y, wanted, given.grad * mask)
    for name, call in layers.passes(given, ratio, "contiguous").items():
        same = layers.difference(call.gradients(), reference) < 1e-4
        assert same == (name != "dense" or ratio == 1), name


def test_the_backward_pass_of_a_layer_counts_and_autograd_runs_it():
    for contender in layers.build(Case("layer", "tiny", 1, "full", 0.05)).contenders:
        assert contender.counts == "backward"
        assert list(contender.parts) == ["forward", "backward"][contender.name == "kernel" :]
        if contender.name != "kernel":
            owner = contender.parts["backward"].__self__
            contender.parts["forward"]()
            assert owner.module.weight.grad is None and owner.y.grad_fn is not None
            contender.parts["backward"]()
            assert owner.module.weight.grad is not None and owner.x.grad is not None


def test_dense_convolutions_are_counted():
    calls = layers.passes(gradients.incoming("tiny", "natural"), 1.0, "channels_last")
    assert layers.dense_convolutions(calls["dense"].gradients) == 1
    assert layers.dense_convolutions(calls["exact"].gradients) == 0


@pytest.mark.parametrize("format", gradients.FORMATS)
def test_contenders_of_the_selection_find_the_same(format):
    given = gradients.incoming("conv1", "full")
    calls = layers.selections(given, 0.01, format)
    rows = given.grad.transpose(0, 1).flatten(1)
    picked = rows.gather(1, calls["topk"]()).flatten().sort().values
    places = calls["kthvalue"]()
    assert len(picked) == 32 * TopK(0.01).k(10 * 28 * 28)
    assert torch.equal(rows[places[:, 0], places[:, 1]].sort().values, picked)
    kept = calls["sparse"](watched=True)  # otherwise the kernels do not hand it over
    assert torch.equal(kept[kept != 0].sort().values, picked)


def trainings(setup):
    """By contender and format; stock apart, whose optimizer is another."""
    return {
        (contender.name, contender.format): contender.parts["update"].__self__
        for contender in setup.contenders
    }


def weight_gradients(training):
    training.forward()
    training.backward()
    # Without biases: below a batch normalisation, theirs are nothing but rounding.
    weights = [parameter for parameter in training.model.parameters() if parameter.dim() > 1]
    found = tuple(weight.grad.clone() for weight in weights)
    training.optimizer.zero_grad()
    return found


@pytest.mark.parametrize("subject", ["PaperCNN-BN", "ResNet-20", "mobilenet_v2"])
def test_contenders_of_a_step_give_the_references_gradients(subject, monkeypatch):
    if subject in networks.NETWORKS:
        small = replace(networks.NETWORKS[subject], batch=4, side=32, ratios=(0.05,))
        monkeypatch.setitem(networks.NETWORKS, subject, small)
    torch.manual_seed(0)
    setup = networks.build(Case("step", subject, 1))
    found = {}
    for key, training in trainings(setup).items():
        torch.manual_seed(0)  # of dropout
        found[key] = weight_gradients(training)
    for (name, format), grads in found.items():
        dense = found["dense", format]  # small mini-batches below many BNs enlarge rounding
        if name in ("dense", "exact", "stock"):
            assert layers.difference(grads, dense) < 1e-3, (name, format)
        else:
            # Deep down, rounding may change which of two nearly equal entries is kept.
            assert layers.difference(grads[-1:], dense[-1:]) < 1e-4, (name, format)
            # The recipe leaves small layers alone.
            assert layers.difference(grads, dense) > 0.01 or name == "recipe", (name, format)
    if subject in networks.PAPER:
        names = {"stock", "dense", "masked", "exact", "meprop"}
        for format in gradients.FORMATS:
            convolutions = [found[name, format][:1] for name in ("meprop", "masked")]
            assert layers.difference(*convolutions) < 1e-2
    else:
        names = {"dense", "exact", "meprop", "recipe"}
        names |= (
            {"unbiased", "weights alone", "centred by image"} if subject == "ResNet-20" else set()
        )
        assert set(setup.contenders[-1].facts()["chose"]) <= set("0123456789/ sparse")
    assert {name for name, _ in found} == names


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_every_network_can_be_made_and_converted(name):
    with torch.device("meta"):
        model = networks.NETWORKS[name].make()
    convert(model, TopK(0.05))


@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_step_in_stages_is_a_step(batch_norm):
    """The same update as of a whole step, stage by stage."""
    subject = networks.PAPER[batch_norm]
    whole = trainings(networks.build(Case("step", subject, 1)))["meprop", "channels_last"]
    model = PaperCNN(batch_norm=batch_norm, rule=TopK(networks.PAPER_RATIO))
    staged = networks.Staged(model, batch_norm)
    for _ in range(2):
        whole.step()
        staged.step()
    assert staged.graphs == [] and staged.gradient is None
    for ours, theirs in zip(model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert type(revert(model).conv1) is nn.Conv2d


# The table


def test_of_a_case_the_last_file_counts(tmp_path):
    def write(name, schema, ms, cases):
        spread = {"median": ms, "q25": ms, "q75": ms}
        rows = [
            {"case": case, "group": case.split("/")[0], "contender": contender, "time": spread,
             "parts": {"backward": ms}, "speedup": {"dense": spread, "stock": spread}}
            for case in cases
            for contender in ("dense", "kernel")
        ]  # fmt: skip
        origin = {"cpu": "some CPU", "torch": "2", "date": "2026"}
        (tmp_path / name).mkdir()
        text = json.dumps({"schema": schema, "provenance": origin, "rows": rows})
        (tmp_path / name / "bench.json").write_text(text)

    with pytest.raises(FileNotFoundError, match="make bench"):
        load(tmp_path)
    write("a", 1, 2.0, ["layer/x", "step/y"])
    write("b", 2, 3.0, ["layer/z", "step/y"])
    rows = load(tmp_path).set_index(["case", "contender"])
    assert rows["ms"].to_dict() == rows["over_stock"].to_dict() == rows["backward"].to_dict()
    assert rows["ms"].groupby("case").first().to_dict() == {
        "layer/x": 2.0, "step/y": 3.0, "layer/z": 3.0
    }  # fmt: skip
    # Schema 1 called the backward functions of layers by themselves.
    assert rows["autograd"].unstack()["dense"].to_dict() == {
        "layer/x": False, "step/y": True, "layer/z": True
    }  # fmt: skip
    assert not rows["autograd"].unstack()["kernel"].any()


@pytest.mark.parametrize(("exact", "free"), [(1.8, (1 - 1 / 1.8) / (1 - 1 / 1.9)), (1.0, None)])
def test_the_page_shows_what_was_measured(exact, free, tmp_path):
    """With another speed of the exact step, another share is free, or the sentence is named."""
    speeds = {"exact": exact, "meprop": 1.9}
    for path in Path(benchmarks.__file__).parent.glob("*/bench.json"):
        content = json.loads(path.read_text("utf-8"))
        for row in content["rows"]:
            if row["case"] == "step/PaperCNN/1-thread" and row["contender"] in speeds:
                row["speedup"]["dense"]["median"] = speeds[row["contender"]]
        (tmp_path / path.parent.name).mkdir()
        (tmp_path / path.parent.name / "bench.json").write_text(json.dumps(content))
    expected = nullcontext() if free else pytest.raises(AssertionError, match="everything is free")
    with expected:
        found = variables("05-speed", "shapes", results=str(tmp_path))["free"]
        assert found["step of PaperCNN"] == pytest.approx(free)


# The command


def run(capsys, *arguments):
    status = command.main(arguments)
    return status, capsys.readouterr()


def test_a_small_run_from_the_command_line(tmp_path, capsys):
    pattern = "conv2/natural/5%/1-thread"
    options = ["--quick", "--only", pattern, "--threads", "1", "--seconds", "0.01"]
    status, shown = run(capsys, *options, "--output", str(tmp_path))
    assert status == 0 and "bench.json" in shown.out
    content = json.loads((tmp_path / "bench.json").read_text("utf-8"))
    assert (content["schema"], content["finished"]) == (2, True)
    assert content["settings"] == {
        "seconds": 0.01, "least": 3, "only": pattern, "quick": True, "threads": [1],
        "clock": "wall",
    }  # fmt: skip
    rows = content["rows"]
    wanted = {("layer", name) for name in ("dense", "masked", "sparse", "kernel", "auto")}
    wanted |= {("selection", name) for name in ("topk", "kthvalue", "sparse")}
    assert {(row["group"], row["contender"]) for row in rows if row["best"]} == wanted
    assert len(load(tmp_path)) == len(rows) == 2 * len(wanted)
    for row in rows:
        assert row["rounds"] >= 3 and row["time"]["median"] > 0 and row["first"] > 0
        assert row["difference"] is None or row["difference"] < 1e-4
    assert {"cpu", "cores", "commit", "date", "numba", "torch"} <= set(content["provenance"])
    assert str(tmp_path) not in json.dumps(content) and platform.node() not in str(content)


def test_a_step_in_parts_from_the_command_line(tmp_path, capsys):
    options = ["--quick", "--only", "split/PaperCNN/1", "--seconds", "0", "--cpu", "--threads", "1"]
    status, shown = run(capsys, *options, "--output", str(tmp_path))
    assert status == 0 and "noisy" not in shown.err
    rows = json.loads((tmp_path / "bench.json").read_text("utf-8"))["rows"]
    assert len(rows) == 4 and len(rows[0]["parts"]) == 17
    assert list(rows[0]["parts"])[6:9] == ["forward fc2", "forward loss", "backward loss"]
    assert list(rows[3]["parts"]) == ["selection conv1", "selection conv2"]


def test_what_was_measured_is_kept(tmp_path, capsys, monkeypatch):
    measured, done = suite.run, []

    def until(case, *settings):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(case.name)
        return measured(case, *settings)

    monkeypatch.setattr(suite, "run", until)
    options = ["--only", "layer/tiny", "--threads", "1", "--output", str(tmp_path)]
    status, shown = run(capsys, *options, "--quick", "--seconds", "0")
    assert status == 130 and "Interrupted" in shown.err and "masked" in shown.out
    content = json.loads((tmp_path / "bench.json").read_text("utf-8"))
    assert content["finished"] is False
    assert {row["case"] for row in content["rows"]} == set(done)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--threads", "0"], "must be between 1 and"),
        (["--threads", "many"], "'many'"),
        (["--seconds", "nan"], "'nan'"),
        (["--only", "conv7"], "'conv7'"),
        (["--cpu", "--threads", str(cores()), "1"], "add --threads 1"),
    ],
)
def test_a_wrong_option_ends_in_one_sentence(options, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(options)
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("benchmarks: ") and words in line
