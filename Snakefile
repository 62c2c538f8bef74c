# From experiments.yml to records: papermill executes notebooks/train.ipynb once for each run.
# `make reproduce` and `make book` start this (python -m meprop run), for the runs that are missing.
import os
import sys
from pathlib import Path

from meprop.study import pipeline
from meprop.study.labels import run_title
from meprop.study.experiments import load

RUNS = {run.record.as_posix(): run for run in load().runs}
RANKS = {run.id: -rank for rank, run in enumerate(pipeline.in_order(list(RUNS.values())))}
# papermill of the very environment that runs this, activated or not, here or on a cluster's node
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def of(what):
    """What a job needs to know of its run."""
    return lambda wildcards: what(RUNS["{place}/{suite}/{stem}.json".format(**wildcards)])


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
        title=of(run_title),
        # Not the output itself: Snakemake removes what a failed job leaves, and nobody could see why.
        draft=of(pipeline.draft),
        parameters=of(pipeline.parameters),
        python=sys.executable,
    threads: of(lambda run: run.config.threads)
    priority: of(lambda run: RANKS[run.id])
    # Two kernels that start at the same moment may pick the same port.
    retries: 1
    resources:
        mem_mb=2000,
        # A paper-scale run takes an hour or two; one that is cut off goes on from its checkpoint.
        runtime=of(lambda run: max(15, run.cost // 8000)),
    shell:
        """
        # Whoever reads what is said here may be gone: that ends no run.
        trap '' PIPE
        say() {{ echo "$@" 2> /dev/null || true; }}
        mkdir -p $(dirname {params.draft} {params.notebook})
        # Held until this shell and papermill are gone. A run that a killed pipeline left behind is
        # waited for, and not done twice if it came to its end.
        exec 9>> {params.draft}.lock
        {params.python:q} -IS -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)'
        if [ -e {output} ]; then exit 0; fi
        say "started   {params.id}"
        printf '%s' {params.parameters:q} > {params.draft}.yml
        : > {params.draft}.log
        PYTHONSTARTUP=meprop/study/_startup.py MEPROP_OWNER=$PPID MEPROP_LOG={params.draft}.log \
            papermill notebooks/train.ipynb {params.draft}.ipynb -f {params.draft}.yml \
            --no-progress-bar --start-timeout 300 --no-request-save-on-cell-execute \
            >> {params.draft}.log 2>&1 ||
            {{ say "failed    {params.id} (log: {params.draft}.log)"; exit 1; }}
        {params.python:q} -IS meprop/study/_entitle.py {params.draft}.ipynb {params.title:q} {params.notebook}
        mv {params.draft}.ipynb {params.notebook}
        mv {params.draft}.json {output}
        say "finished  {params.id}, after $SECONDS s"
        """
