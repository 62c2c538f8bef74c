import dataclasses
from fractions import Fraction

import pytest

from meprop import TopK


def test_defaults_are_the_papers():
    papers = {"decay": 0.0, "scope": "map", "pick": "top", "bias": "full", "only": None}
    assert dataclasses.asdict(TopK(0.05)) == {"ratio": 0.05, **papers}


def test_is_frozen_and_hashable():
    rule = TopK(0.05)
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.ratio = 0.1
    assert {rule, TopK(Fraction(1, 20))} == {rule}


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("ratio", 0), ("ratio", -0.1), ("ratio", 5), ("ratio", float("nan")), ("ratio", "5%"),
        ("ratio", None), ("ratio", True), ("decay", 1), ("decay", -0.1), ("decay", float("nan")),
        ("decay", "0.6"), ("scope", "maps"), ("scope", None), ("pick", "bottom"), ("bias", "none"),
        ("only", "bias"),
    ],
)  # fmt: skip
def test_a_bad_value_is_named(argument, value):
    with pytest.raises(ValueError) as error:
        TopK(**{"ratio": 0.05, argument: value})
    assert argument in str(error.value)
    assert repr(value) in str(error.value)


def test_the_error_shows_the_way_out():
    with pytest.raises(ValueError, match=r"got 5; did you mean 0\.05\?"):
        TopK(5)
    with pytest.raises(ValueError, match="did you mean 'map'"):
        TopK(0.05, scope="maps")


def test_k_is_at_least_one_and_rounds_as_python_does():
    assert [TopK(0.05).k(n) for n in (1, 10, 1000, 7840)] == [1, 1, 50, 392]
    assert [TopK(0.5).k(n) for n in (1, 3, 5)] == [1, 2, 2]
    assert TopK(1.0).k(7) == 7
