"""A whole backward pass: stages of tasks, which any number of threads take one after the other.

Python code that has dropped out of the processor's caches costs a small layer as much as the
kernels do; here it only looks up a layout, allocates the results and calls once.
"""

from __future__ import annotations

from numba import int64

from meprop.kernels._choose import join, keep, kth, scan, wild_scores
from meprop.kernels._conv import input_gradient, weight_gradient
from meprop.kernels._guess import guess
from meprop.kernels._jit import inner, kernel
from meprop.kernels._layout import filters_in, filters_out, map_sums
from meprop.kernels._plan import FIELDS, FIRST_PLACE, FIRST_TENSOR, STAGES, read_call, read_job
from meprop.kernels._simd import add_at, call, fill, geti, getl, putl, shared

_PREPARE, _SCAN, _SCORES, _KTH, _KEEP, _JOIN, _CONVOLVE, _OUT, _DONE = range(9)
_COUNT, _LOW, _THREADS = len(FIELDS), FIELDS.index("low"), FIELDS.index("threads")
_LINE = 64  # bytes between counters that several threads change
_SPINS = 4000  # looks at a counter before the processor is given to others


@inner
def _tasks(job: int, stage: int) -> int:
    """How many tasks a stage has; those of one stage do not depend on each other."""
    p = read_job(job)
    if stage == _PREPARE:
        return p.guess_tasks + p.filter_tasks + p.bias_tasks
    if stage == _KTH:
        return p.group_tasks
    if stage == _CONVOLVE:
        return p.weight_tasks + p.input_tasks
    return p.out_tasks if stage == _OUT else p.parts


@inner
def _run(job: int, stage: int, task: int, score: int, update: int, work: int) -> int:
    """Do one task; returns other than 0 where bounds were too high."""
    p = read_job(job)
    if stage == _PREPARE:
        if task < p.guess_tasks:
            guess(job, task, work)
        elif task < p.guess_tasks + p.filter_tasks:
            filters_in(job, task - p.guess_tasks)
        else:
            map_sums(job, task - p.guess_tasks - p.filter_tasks, work)
    elif stage == _SCAN:
        scan(job, task, score, update, work)
    elif stage == _SCORES:
        wild_scores(job, task)
    elif stage == _KTH:
        return kth(job, task)
    elif stage == _KEEP:
        keep(job, task)
    elif stage == _JOIN:
        join(job, task, work)
    elif stage == _CONVOLVE:
        if task < p.weight_tasks:
            weight_gradient(job, task, work)
        else:
            input_gradient(job, task - p.weight_tasks, work)
    elif stage == _OUT:
        filters_out(job, task)
    return 0


@kernel("void(i8)")
def work(job: int) -> None:
    """What each thread runs. Whoever comes late finds the tasks done, so none waits for a thread.

    A stage has three counters: tasks taken, tasks done, bounds missed. What follows on a stage is
    the same for all threads.
    """
    p = read_job(job)
    mine = p.private + p.private_size * add_at(p.counters, 1)
    at = p.counters
    stage = int64(_PREPARE)  # a literal would have a copy of all that it is passed to
    score, update = (p.run if p.run != 0 else p.score), p.run
    while stage != _DONE:
        at += 3 * _LINE
        count = _tasks(job, stage)
        task = add_at(at, 1)
        while task < count:
            if _run(job, stage, task, score, update, mine) != 0:
                add_at(at + 2 * _LINE, 1)
            add_at(at + _LINE, 1)
            task = add_at(at, 1)
        spins = 0
        while shared(at + _LINE) < count:
            spins += 1
            if spins > _SPINS and p.pause != 0:
                call(p.pause, 0, 0, 0, 0)
        if stage == _SCAN and update != 0:
            update = 0  # run_grad moves on once
            stage = _KTH
            for part in range(p.parts):
                if geti(p.wild, part) != 0:
                    stage = _SCORES
        elif stage == _SCORES:
            score, stage = p.scores, _SCAN
        elif stage == _SCAN:
            stage = _KTH
        elif stage == _KTH:
            stage = _SCAN if shared(at + 2 * _LINE) > 0 else _KEEP
        else:
            stage += 1
        if stage == _KTH and p.k >= p.size:
            stage = _KEEP


@kernel("void(i8)")
def run(call_at: int) -> None:
    """Selection, bias, weight and input gradient, of a `Call` at an address."""
    given = read_call(call_at)
    memory = given.memory
    for i in range(_COUNT):
        shift = memory if FIRST_PLACE <= i < FIRST_TENSOR else 0
        putl(memory, i, getl(given.layout, i) + shift)
    for i in range(_COUNT - FIRST_TENSOR - 1):
        putl(memory, FIRST_TENSOR + 1 + i, getl(call_at, i))
    if given.low != 0:
        putl(memory, _LOW, given.low)
    fill(getl(memory, FIRST_PLACE), 3 * _LINE // 4 * (STAGES + 1))
    if given.parallel != 0:
        call(given.parallel, given.work, memory, getl(memory, _THREADS), 0)
    else:
        call(given.work, memory, 0, 0, 0)
