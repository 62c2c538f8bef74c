"""What a kernel does first under nbval: it notes which files of the checkout it opens."""


def _listen() -> None:
    import os
    import sys

    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    log = open(os.environ["MEPROP_OPENED"], "w", encoding="utf-8")  # noqa: SIM115

    def note(event, details):
        if event == "open" and isinstance(details[0], str):
            path = os.path.abspath(details[0])
            if path.startswith(root) and os.path.isfile(path):
                print(path.removeprefix(root), file=log, flush=True)

    sys.addaudithook(note)


_listen()
del _listen
