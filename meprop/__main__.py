"""python -m meprop status | run | notebooks | book: the study from the command line."""

import argparse
import signal
import sys
from typing import NoReturn

COMMANDS = {
    "status": "what of each suite is done, running and missing",
    "run": "train what is missing of some suites, or of all whose records are committed",
    "notebooks": "execute the pages that are out of date, in place",
    "book": "build the book in _build/html; what is out of date is executed for it",
}


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line; returns the exit code."""
    parser = argparse.ArgumentParser("python -m meprop", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, about in COMMANDS.items():
        commands.add_parser(name, help=about, description=about, allow_abbrev=False)
    status, run, notebooks, _ = commands.choices.values()
    status.add_argument("suites", nargs="*", metavar="SUITE", help="show its runs one by one")
    run.add_argument("suites", nargs="*", metavar="SUITE")
    run.add_argument("--only", nargs="*", metavar="NAME", help="these configurations")
    run.add_argument("--seeds", nargs="*", metavar="N", type=_seed, help="these seeds: 0 1")
    run.add_argument("--cores", type=int, help="so many runs at a time (default: all cores)")
    run.add_argument("--profile", help="a folder of profiles/, for a cluster")
    run.add_argument("--dry-run", action="store_true", help="say what would be trained")
    notebooks.add_argument("names", nargs="*", metavar="PAGE", help="these, out of date or not")
    notebooks.add_argument("--all", action="store_true", help="all, out of date or not")
    notebooks.add_argument("--cores", type=int, help="so many at a time (default: all cores)")
    for each in (parser, *commands.choices.values()):
        each.error = _one_sentence  # type: ignore[method-assign]

    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 0
    try:
        return _do(given)
    except ModuleNotFoundError as error:
        print(
            f"python -m meprop {given.command} needs {error.name}, and a checkout of the project: "
            "in it, pip install -e '.[study]' (the package alone: pip install 'meprop[study]')",
            file=sys.stderr,
        )
    except OSError as error:
        print(f"{error.filename or 'meprop'}: {error.strerror or error}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 2


def _do(given: argparse.Namespace) -> int:
    # Only now, so that help and mistakes wait for no more than torch.
    from meprop.study._download import DataError
    from meprop.study.settings import InOneSentence

    try:
        if given.command == "status":
            from meprop.study.status import show

            return show(given.suites)
        if given.command in ("notebooks", "book"):
            from meprop.study.pages import build, refresh

            if given.command == "book":
                return build()
            return refresh(given.names, given.all, given.cores)
        from meprop.study.pipeline import train

        only = " ".join(given.only or ()).split()  # make passes several names as one
        return train(given.suites, only, given.seeds, given.cores, given.profile, given.dry_run)
    except (DataError, InOneSentence) as error:
        print(error, file=sys.stderr)
        return 2


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"seeds are numbers with blanks between, got {text!r}")
    return int(text)


def _one_sentence(message: str) -> NoReturn:
    """Say what is wrong with the arguments."""
    print(f"python -m meprop: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see meprop/__init__.py
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
