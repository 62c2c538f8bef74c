# From experiments.yml to the book: train makes records, page executes a notebook, book builds the site.
# `make reproduce`, `make notebooks` and `make book` ask for files (python -m meprop run | notebooks | book).
import json
import os
import sys
from pathlib import Path

from meprop.study import pages, pipeline
from meprop.study.experiments import load

RUNS = {run.record.as_posix(): run for run in load().runs}
RANKS = {run.id: -rank for rank, run in enumerate(pipeline.in_order(list(RUNS.values())))}
PAGES = {page.path.as_posix(): page for page in [*pages.pages(), *map(pages.run_page, RUNS.values())]}
# The programs of the very environment that runs this, activated or not, here or on a cluster's node
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def of(what):
    """What a job needs to know of its run."""
    return lambda wildcards: what(RUNS["{place}/{suite}/{stem}.json".format(**wildcards)])


def of_page(what):
    """What a job needs to know of its page."""
    return lambda wildcards: what(PAGES[f"{wildcards.page}.ipynb"])


onstart:
    pipeline.stop_at_signals()


rule all:
    input:
        lambda wildcards: [path for path, run in RUNS.items() if pipeline.find(run)[0] is None],


rule train:
    input:
        # What a committed record shows does not depend on when the notebook was edited.
        ancient("notebooks/train.ipynb"),
    output:
        # update: what is there when the job begins stays. A run that a killed pipeline left behind
        # may have come to its end since; a record that does not count was put aside before.
        update("{place}/{suite}/{stem}.json"),
    wildcard_constraints:
        place="results|_build/results",
        suite="[^/]+",
        stem="[^/]+",
    params:
        id=of(lambda run: run.id),
        notebook=of(lambda run: run.notebook),
        # Not the output itself: Snakemake removes what a failed job leaves, and nobody could see why.
        draft=of(pipeline.draft),
        specification=of(lambda run: json.dumps(pages.training(run))),
        python=sys.executable,
    threads: of(lambda run: run.config.threads)
    priority: of(lambda run: RANKS[run.id])
    # Two kernels that start at the same moment may pick the same port.
    retries: 1
    resources:
        mem_mb=2000,
        # A paper-scale run takes an hour or two; one that is cut off goes on from its checkpoint.
        runtime=of(lambda run: max(15, run.cost // 64_000)),
    shell:
        """
        # Whoever reads what is said here may be gone: that ends no run. On a terminal it takes the
        # place of the lines that show the progress.
        trap '' PIPE
        say() {{ {{ [ ! -t 1 ] || printf '\\r\\033[J'; echo "$@"; }} 2> /dev/null || true; }}
        fail() {{
            [ $? -lt 128 ] || echo "it was killed" >> {params.draft}.log
            say "failed    {params.id} (log: {params.draft}.log)"
            exit 1
        }}
        trap 'rm -f {params.draft}.progress' EXIT
        mkdir -p $(dirname {params.draft} {params.notebook})
        # Held until this shell and papermill are gone. A run that a killed pipeline left behind is
        # waited for, and not done twice if it came to its end.
        exec 9>> {params.draft}.lock
        {params.python:q} -IS -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)'
        if [ -e {output} ]; then exit 0; fi
        say "started   {params.id}"
        : > {params.draft}.log
        {{
            printf '%s' {params.specification:q} > {params.draft}.page &&
            PYTHONSTARTUP=meprop/study/_startup.py MEPROP_OWNER=$PPID MEPROP_LOG={params.draft}.log \
                {params.python:q} -P meprop/study/_papermill.py {params.draft}.page {params.draft}.ipynb &&
            mv {params.draft}.ipynb {params.notebook} &&
            mv {params.draft}.json {output}
        }} >> {params.draft}.log 2>&1 || fail
        say "finished  {params.id}, after $SECONDS s"
        """


rule page:
    input:
        # The one of the reader's own machine shows the quick suite.
        of_page(lambda page: [path for path, run in RUNS.items()
                              if page.name == pages.OWN_MACHINE and run.suite == "quick"]),
    output:
        "_build/pages/{page}.ipynb",
    params:
        path=of_page(lambda page: page.path),
        log=of_page(lambda page: page.log),
        specification=of_page(lambda page: json.dumps(page.specification())),
        python=sys.executable,
    # One that measures times has the machine to itself.
    threads: of_page(lambda page: workflow.cores if page.timed else 1)
    retries: 1
    shell:
        """
        mkdir -p $(dirname {params.log})
        printf '%s' {params.specification:q} > {params.log}.page
        {params.python:q} -P meprop/study/_papermill.py {params.log}.page {output}.draft > {params.log} 2>&1
        mv {output}.draft {output}
        echo "executed  {params.path}, in $SECONDS s"
        """


rule book:
    input:
        lambda wildcards: [page.draft.as_posix() for page in pages.book_pages()],
    output:
        pages.INDEX,
    shell:
        """
        # A fresh start each time: Sphinx reports a warning only when it reads the page anew.
        rm -rf _build/source _build/html _build/.doctrees
        mkdir -p _build/source _build/pages
        cp -R _config.yml CHANGELOG.md book notebooks results benchmarks measurements _build/pages/. _build/source
        cd _build/source
        jupyter-book build . --toc book/_toc.yml --path-output ../.. -W -n --keep-going 2>&1
        """
