"""`python -m benchmarks`: measure, write `bench.json`, print its rows."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from benchmarks.results import Results, cores, load

BUSY = 0.5  # load average above which something else is probably running
SHOWN = ["case", "contender", "ratio", "format", "ms", "speedup", "low", "high", "chose"]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = _arguments()
    options = parser.parse_args(arguments)

    from benchmarks.suite import all_cases, chosen

    threads = options.threads or [count for count in (1, 2) if count <= cores()]
    cases = chosen(all_cases(threads), options.only, options.quick)
    if not cases:
        parser.error(f"--only: no case has {options.only!r} in its name; --list shows them")
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    if options.cpu and threads != [1]:
        parser.error("--cpu: the time of one thread is counted; add --threads 1")
    seconds = options.seconds if options.seconds is not None else (0.2 if options.quick else 3.0)
    results = Results(
        {
            "seconds": seconds,
            "least": 3 if options.quick else 7,
            "only": options.only,
            "quick": options.quick,
            "threads": threads,
            "clock": "cpu" if options.cpu else "wall",
        }
    )
    busy = results.load["start"]
    if not options.cpu and busy is not None and busy > BUSY:
        print(
            f"The load average is {busy:.1f} before we begin: if other programs are running, "
            "ratios will be noisy; --cpu --threads 1 is not disturbed.",
            file=sys.stderr,
        )
    results.finished = False
    warnings.filterwarnings("ignore", "convert: at ")  # times, and not what a network learns
    try:
        _measure(cases, results)
        results.finished = True
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
    finally:
        _report(results, options.output)
    return 0 if results.finished else 130


def _arguments() -> argparse.ArgumentParser:
    parser = _Parser(prog="benchmarks", description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="a first impression, in a minute")
    parser.add_argument("--only", metavar="PATTERN", help="cases with this in their name; * is any")
    parser.add_argument("--list", action="store_true", help="name the cases and measure nothing")
    parser.add_argument(
        "--threads", type=_threads, nargs="+", metavar="N", help="thread counts (default: 1 2)"
    )
    parser.add_argument("--seconds", type=_seconds, help="time for each case (default: 3)")
    parser.add_argument(
        "--cpu", action="store_true", help="processor time, for a busy machine; one thread only"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("_build/bench"), help="folder (default: %(default)s)"
    )
    return parser


def _threads(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= cores():
        raise argparse.ArgumentTypeError(f"must be between 1 and {cores()} here, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 86400:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, got {text!r}")
    return seconds


def _measure(cases: Sequence, results: Results) -> None:
    from tqdm import tqdm

    from benchmarks import suite

    settings = results.settings
    with tqdm(cases, unit="case", dynamic_ncols=True, disable=None) as bar:
        for case in bar:
            bar.set_description(case.name)
            results.rows += suite.run(
                case, settings["seconds"], settings["least"], settings["clock"]
            )


def _report(results: Results, folder: Path) -> None:
    if not results.rows:
        print("Nothing was measured.")
        return
    path = results.save(folder)
    rows = load(folder)
    shown = rows[rows["best"]].reindex(columns=SHOWN).dropna(axis="columns", how="all")
    print(shown.to_string(index=False, na_rep="", float_format="{:.3g}".format))
    print(f"Medians; in the better memory format of each. Written: {path.as_posix()}")


if __name__ == "__main__":
    sys.exit(main())
