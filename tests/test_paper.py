"""The paper's numbers agree with each other and with what experiments.yml declares."""

from meprop.study.config import Config
from meprop.study.experiments import load
from meprop.study.paper import paper

TABLES = {number: table["rows"] for number, table in paper()["tables"].items()}


def test_rows_are_the_declared_configurations():
    for suite in ("paper", "quick"):
        declared = {run.name: run.config for run in load().suites[suite].runs if run.seed == 0}
        for number, rows in TABLES.items():
            for row in rows:
                config = declared[row["name"]]
                ratio = row["k"] / 100 if "k" in row else None
                assert (config.ratio, config.batch_norm) == (ratio, number == 3)
                assert config.decay == row.get("decay", 0)


def test_scores_are_counts_of_images():
    """All dev scores are multiples of 0.02%, so the development set has 5,000 images."""
    for rows in TABLES.values():
        assert len(rows) == 7 and "k" not in rows[0]
        for row in rows:
            assert abs(row["dev"] * 50 - round(row["dev"] * 50)) < 1e-9
            assert 1 <= row["epoch"] <= 30 and row["test"] < row["dev"]


def test_training_is_what_config_does():
    training = paper()["training"]
    assert training["batch_size"] == Config().batch_size
    assert training["adam"]["lr"] == Config().lr
