"""A configuration and a record in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

from meprop.study.config import Config
from meprop.study.data import DATASETS
from meprop.study.experiments import Run
from meprop.study.record import Record

TIMES = "\N{MULTIPLICATION SIGN}"


def listed(words: Iterable[object], last: str = "and") -> str:
    """Words with commas, and another word before the last.

    >>> listed([0, 1, 2]), listed(["mnist", "digits"], "or"), listed(["conv1"]), listed([])
    ('0, 1 and 2', 'mnist or digits', 'conv1', '')
    """
    *most, end = [str(word) for word in words] or [""]
    return f"{', '.join(most)} {last} {end}" if most else end


def describe(config: Config) -> str:
    """What a configuration is, in a sentence or two.

    >>> describe(Config(dataset="digits", ratio=0.05, epochs=3))
    "The paper's network, trained on 1,200 images of digits for 3 epochs. Of the gradient at the \
output of conv1 and conv2, the largest 5% of each feature map are passed back. Seed 0."
    """
    parts = ["The paper's network"]
    extras = [
        "with batch normalisation" if config.batch_norm else "",
        f"with {config.activation} activations" if config.activation != "relu" else "",
        f"with dropout of {config.dropout:g} on fc1" if config.dropout else "",
    ]
    parts += [extra for extra in extras if extra]
    size = config.train_size or DATASETS[config.dataset].train
    epochs = "1 epoch" if config.epochs == 1 else f"{config.epochs} epochs"
    data = config.dataset.upper() if config.dataset == "mnist" else config.dataset
    trained = f"{' '.join(parts)}, trained on {size:,} images of {data} for {epochs}."
    return f"{trained} {_selection(config)} Seed {config.seed}."


def _selection(config: Config) -> str:
    if config.ratio is None:
        return "All gradients are passed back: a baseline."
    layers = listed(config.sparse_layers)
    which = {"random": "a random", "unbiased": "an unbiased"}.get(config.pick, "the largest")
    group = {
        "map": "of each feature map",
        "sample": "of each feature map of each image",
        "layer": "of the whole layer",
        "mixed": "of each image, over all feature maps",
        "unified": "of the units, the same for the whole mini-batch,",
    }[config.scope]
    where = " above batch normalisation" if config.select_at == "bn" else ""
    share = f"{100 * config.ratio:.4g}%"
    text = f"Of the gradient at the output of {layers}{where}, {which} {share}"
    text += f" {group} are passed back"
    if config.decay:
        text += f", chosen by run_grad with a decay of {config.decay:g}"
        text += ", averaged over the mini-batch" if config.history == "position" else ""
    text += ", centred" if config.pick == "centred" else ""
    return text + ("; the bias gradients are selected too." if config.bias == "sparse" else ".")


def outcome(record: Record) -> str:
    """What came out, in a sentence or two (Markdown)."""
    text = ""
    if record.stopped is not None:
        at = f"epoch {record.stopped['epoch']}, step {record.stopped['step']}"
        text = f"The run diverged: at {at} the loss was no finite number. "
    if record.best_epoch is None or record.test_errors is None:
        return f"{text}No epoch was completed."
    return (
        f"{text}Best development accuracy: {record.dev_accuracy:.2f}%, first reached in epoch "
        f"{record.best_epoch}. The network of that epoch has a **test accuracy of "
        f"{record.test_accuracy:.2f}%** ({len(record.test_errors)} mistakes)."
    )


def shares_table(record: Record) -> str:
    """What became of each layer's gradient in the chosen epoch (Markdown)."""
    if record.best_epoch is None:
        return "No epoch was completed."
    names = {
        "before": "nonzero before (%)",
        "after": "nonzero after (%)",
        "norm_kept": "norm kept (%)",
        "weight": "nonzero in weight gradient (%)",
    }
    layers = record.history[record.best_epoch - 1]["layers"]
    lines = [["", *names.values()], ["---", *["--:"] * len(names)]]
    for layer, seen in layers.items():
        shares = (f"{100 * seen[name]:.2f}" if name in seen else "" for name in names)
        lines.append([layer, *shares])
    return _markdown(lines)


def provenance_table(record: Record) -> str:
    """Versions, machine and time, a line each (Markdown)."""
    origin = {name.replace("_", " "): str(value) for name, value in record.provenance.items()}
    origin["seconds"] = f"{record.provenance['seconds']:.0f}"
    for name in ("commit", "code", "data"):
        origin[name] = origin[name][:12]
    return _markdown([["", ""], ["---", "---"], *([name, text] for name, text in origin.items())])


def _markdown(lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


_WORDS: dict[str, Callable[[Any], str] | dict[Any, str]] = {
    "ratio": lambda value: "all gradients" if value is None else f"{100 * value:g}%",
    "batch_norm": {True: "with BN", False: "no BN"},
    "decay": lambda value: f"decay {value:g}",
    "scope": {
        "map": "each map",
        "sample": "each map of each image",
        "layer": "the whole layer",
        "mixed": "each image, maps mixed",
    },
    "pick": {"top": "largest", "random": "random", "unbiased": "unbiased", "centred": "centred"},
    "bias": {"full": "full bias gradient", "sparse": "selected bias gradient"},
    "sparse_layers": " + ".join,
    "history": {"slot": "memory per slot", "position": "memory per position"},
    "select_at": {"conv": "below BN", "bn": "above BN"},
    "train_size": lambda value: f"{value:,} images" if value else "all images",
    "dropout": lambda value: f"dropout {value:g}" if value else "",
}


def words(config: Config, names: Sequence[str]) -> list[str]:
    """Some fields of a configuration, in a few words each.

    >>> words(Config(ratio=0.05, dropout=0.5), ["ratio", "dropout", "activation"])
    ['5%', 'dropout 0.5', 'relu']
    """
    found = []
    for name in names:
        value = getattr(config, name)
        form = _WORDS.get(name, str)
        if name == "history" and config.decay == 0:
            continue  # there is no memory
        found.append(form.get(value, str(value)) if isinstance(form, dict) else form(value))
    return [word for word in found if word]


# What a title says of a run, the ratio always and the others where they are not the default.
_TITLE = (
    *("ratio", "decay", "scope", "pick", "bias", "sparse_layers", "history", "select_at"),
    *("contender", "batch_norm", "activation", "dropout", "network", "dataset", "train_size"),
)


def run_title(run: Run) -> str:
    """Which configuration a run is of, and what sets it apart.

    >>> from meprop.study.experiments import load
    >>> run_title(load().pick(["ablation"], only=["decay-d09-bn"])[0])
    'decay-d09-bn: 5%, decay 0.9, with BN, 5,000 images'
    """
    defaults = {field.name: field.default for field in fields(Config)}
    names = [n for n in _TITLE if n == "ratio" or getattr(run.config, n) != defaults[n]]
    return f"{run.name}: {', '.join(words(run.config, names))}"
