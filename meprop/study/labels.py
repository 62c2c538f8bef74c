"""A run in a few words."""

from collections.abc import Callable, Sequence
from typing import Any

from meprop.study.config import DEFAULTS, Config
from meprop.study.experiments import Run

_WORDS: dict[str, Callable[[Any], str] | dict[Any, str]] = {
    "ratio": lambda value: "all gradients" if value is None else f"{100 * value:g}%",
    "batch_norm": {True: "with BN", False: "no BN"},
    "activation": {"relu": "ReLU"},
    "decay": lambda value: f"decay {value:g}",
    "scope": {
        "map": "each map",
        "sample": "each map of each image",
        "layer": "the whole layer",
        "mixed": "each image, maps mixed",
    },
    "pick": {"top": "largest", "random": "random", "unbiased": "unbiased", "centred": "centred"},
    "bias": {"full": "full bias gradient", "sparse": "selected bias gradient"},
    "only": {"weight": "weight gradient only", "input": "input gradient only"},
    "sparse_layers": " + ".join,
    "history": {"slot": "memory per slot", "position": "memory per position"},
    "select_at": {"conv": "below BN", "bn": "above BN"},
    "train_size": lambda value: f"{value:,} images" if value else "all images",
    "thinned_epochs": "for {} epochs".format,
    "dropout": lambda value: f"dropout {value:g}" if value else "",
}


def words(config: Config, names: Sequence[str]) -> list[str]:
    """Some fields of a configuration, in a few words each.

    >>> words(Config(ratio=0.05, dropout=0.5), ["ratio", "dropout", "activation"])
    ['5%', 'dropout 0.5', 'ReLU']
    """
    found = []
    for name in names:
        value = getattr(config, name)
        form = _WORDS.get(name, str)
        if name == "history" and config.decay == 0:
            continue  # there is no memory
        found.append(form.get(value, str(value)) if isinstance(form, dict) else form(value))
    return [word for word in found if word]


def link(suite: str, name: str, text: str = "") -> str:
    """A configuration's text or name, which leads to the page of its run with seed 0 (Markdown)."""
    return f"[{text or name}](/notebooks/runs/{suite}/{name}-s0.ipynb)"


# What a title says of a run, the ratio always and the others where they are not the default.
_TITLE = (
    *("ratio", "decay", "scope", "pick", "bias", "only", "thinned_epochs", "sparse_layers"),
    *("history", "select_at", "contender", "batch_norm", "activation", "dropout", "network"),
    *("dataset", "train_size"),
)


def run_title(run: Run) -> str:
    """Which configuration a run is of, and what sets it apart.

    >>> from meprop.study.experiments import load
    >>> run_title(load().pick(["ablation"], only=["decay-d09-bn"])[0])
    'decay-d09-bn: 5%, decay 0.9, with BN, 5,000 images'
    """
    # No other network has BN or not, and only one takes the images of CIFAR-10.
    config = run.config
    defaults = DEFAULTS | {"batch_norm": config.network != DEFAULTS["network"]}
    defaults |= {"network": "resnet20"} if config.dataset == "cifar10" else {}
    names = [n for n in _TITLE if n == "ratio" or getattr(config, n) != defaults[n]]
    return f"{run.name}: {', '.join(words(config, names))}"
