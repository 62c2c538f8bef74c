"""The explorer's gradients: exact, small, and what they say they are."""

import json
from base64 import b64decode
from pathlib import Path

import pytest
import torch

from measurements import explorer
from meprop.study import Config, load_data
from meprop.study.training import build, conditions, steps

COMMITTED = Path(__file__).resolve().parents[1] / "book/_static/explorer-data.js"


def test_gradients_are_those_of_the_training_steps(tmp_path):
    config, last = Config(dataset="digits", seed=1), 10
    explorer.export(tmp_path / "data.js", config, last)
    content, gradients = explorer.load(tmp_path / "data.js")
    data, model = load_data("digits").train, build(config)
    made = 0
    with conditions(config):
        learning = steps(config, model, data)
        for place, number in enumerate(content["about"]["steps"]):
            while made < number - 1:  # before the step itself
                made = next(learning).number
            images, labels = data[content["about"]["rows"][place]]
            assert labels.tolist() == content["images"]["labels"][place]
            for layer in content["layers"]:
                name, maps = layer["name"], layer["maps"]
                grad = explorer._gradients(model, images, labels)[name]
                assert torch.equal(gradients[name][place], grad[:, maps])
    assert (made, number) == (last - 1, last)
    assert content["about"]["config"] == config.to_dict()


def test_the_committed_file_is_what_it_says():
    assert COMMITTED.stat().st_size < 350_000
    content, gradients = explorer.load(COMMITTED)
    about, images = content["about"], content["images"]
    assert about["config"] == explorer.CONFIG.to_dict()
    assert about["steps"][-1] == explorer.LAST
    assert about["provenance"]["dirty"] is False
    assert {n: tuple(g.shape) for n, g in gradients.items()} == {
        "conv1": (8, 4, 8, 28, 28),
        "conv2": (8, 4, 8, 14, 14),
    }
    train = load_data("digits").train
    rows = torch.tensor(about["rows"])
    assert images["labels"] == train.labels[rows].tolist()
    pixels = bytearray(b64decode(images["bytes"]))
    shown = torch.frombuffer(pixels, dtype=torch.uint8).reshape(images["shape"]) / 255
    assert (shown - train.images[rows]).abs().max() <= 0.5 / 255 + 1e-6
    for layer, grads in zip(content["layers"], gradients.values(), strict=True):
        assert grads.dtype == torch.float32 and torch.isfinite(grads).all()
        assert len(set(layer["maps"])) == 8 and max(layer["maps"]) < layer["of"]
        for grad in grads:
            # Below 2x2 pooling with one winner: a quarter at most, in each window.
            assert 0 < float((grad != 0).float().mean()) <= 0.25
            assert ((grad != 0).unfold(2, 2, 2).unfold(3, 2, 2).flatten(4).sum(-1) <= 1).all()


def test_other_files_are_refused(tmp_path):
    (tmp_path / "other.js").write_text(json.dumps({"layers": []}))
    with pytest.raises(ValueError, match=r"other\.js: not a file of the explorer's"):
        explorer.load(tmp_path / "other.js")
