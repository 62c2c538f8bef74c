"""A whole backward pass: stages of tasks, which any number of threads take one after the other.

Python code that has dropped out of the processor's caches costs a small layer as much as the
kernels do; here it only looks up a layout, allocates the results and calls once.
"""

from __future__ import annotations

from meprop.kernels._choose import join, keep, kth, scan, wild_scores
from meprop.kernels._conv import input_gradient, weight_gradient
from meprop.kernels._draw import draw
from meprop.kernels._guess import guess
from meprop.kernels._jit import callback, inner, kernel
from meprop.kernels._layout import filters_in, filters_out, map_sums
from meprop.kernels._plan import FIELDS, FIRST_PLACE, FIRST_TENSOR, STAGES, read_job
from meprop.kernels._simd import add_at, as_double, call, fill, geti, getl, putl, shared

_PREPARE, _DRAW, _SCAN, _SCORES, _KTH, _KEEP, _JOIN, _CONVOLVE, _OUT, _DONE = range(10)
_COUNT, _LOW = len(FIELDS), FIELDS.index("low")
_SAMPLES, _THREADS = FIELDS.index("samples"), FIELDS.index("threads")
_SAMPLE_START = FIELDS.index("sample_start")
_LINE = 64  # bytes between counters that several threads change
_SPINS = 4000  # looks at a counter before the processor is given to others


@inner
def _tasks(job: int, stage: int) -> int:
    """How many tasks a stage has; those of one stage do not depend on each other."""
    p = read_job(job)
    if stage == _PREPARE:
        count = p.guess_tasks
        if p.dx != 0 and p.in_rows == 0:
            count += p.filter_tasks
        return count + (p.bias_tasks if p.bias != 0 and p.sparse_bias == 0 else 0)
    if stage == _KTH:
        return p.group_tasks
    if stage == _CONVOLVE:
        count = p.sample_cuts * p.map_cuts if p.dw != 0 else 0
        return count + (p.input_tasks if p.dx != 0 else 0)
    if stage == _OUT:
        return p.filter_tasks if p.dw != 0 and (p.in_rows == 0 or p.sample_cuts > 1) else 0
    return p.parts


@inner
def _run(job: int, stage: int, task: int, score: int, update: int, work: int) -> int:
    """Do one task; returns other than 0 where bounds were too high."""
    p = read_job(job)
    if stage == _PREPARE:
        filters = p.filter_tasks if p.dx != 0 and p.in_rows == 0 else 0
        if task < p.guess_tasks:
            guess(job, task, work)
        elif task < p.guess_tasks + filters:
            filters_in(job, task - p.guess_tasks)
        else:
            map_sums(job, task - p.guess_tasks - filters, work)
    elif stage == _DRAW:
        draw(job, task, work)
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
        weights = p.sample_cuts * p.map_cuts if p.dw != 0 else 0
        if task < weights:
            weight_gradient(job, task, work)
        else:
            input_gradient(job, task - weights, work)
    elif stage == _OUT:
        filters_out(job, task)
    return 0


@callback("void(i8)")
def work(job: int) -> None:
    """What each thread runs. Whoever comes late finds the tasks done, so none waits for a thread.

    A stage has three counters: tasks taken, tasks done, bounds missed. What follows on a stage is
    the same for all threads.
    """
    p = read_job(job)
    mine = p.private + p.private_size * add_at(p.counters, 1)
    at = p.counters
    stage, score, update = _PREPARE, (p.run if p.run != 0 else p.score), p.run
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
        if stage == _PREPARE:
            stage = _DRAW if as_double(p.drawn) > 0 else _SCAN
        elif stage == _SCAN and update != 0:
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
        elif stage in (_DRAW, _KEEP):
            stage = _JOIN
        elif stage == _JOIN:
            stage = _CONVOLVE if p.dx != 0 or p.dw != 0 else _DONE
        else:
            stage = _OUT if stage == _CONVOLVE else _DONE
        if stage == _KTH and p.k >= p.size:
            stage = _KEEP


@kernel("i8(" + ",".join(["i8"] * 16) + ")")
def run(
    work: int, layout: int, memory: int, grad: int, score: int, run_grad: int, low: int, x: int,
    dx: int, weight: int, dw: int, bias: int, key: int, second: int, parallel: int, pause: int,
) -> int:  # fmt: skip
    """Selection, bias, weight and input gradient; returns how many entries are kept.

    work: the address of the function above; layout: of a `Job` without tensors; memory: as much as
    it needs; low: bounds of the groups, where they are given; parallel: `Threads.parallel`, or 0
    for a single thread.
    """
    for i in range(_COUNT):
        shift = memory if FIRST_PLACE <= i < FIRST_TENSOR else 0
        putl(memory, i, getl(layout, i) + shift)
    tensors = (grad, score, run_grad, x, dx, weight, dw, bias, key, second, pause)
    for i in range(11):
        putl(memory, FIRST_TENSOR + 1 + i, tensors[i])
    if low != 0:
        putl(memory, _LOW, low)
    fill(getl(memory, FIRST_PLACE), 3 * _LINE // 4 * (STAGES + 1))
    if parallel != 0:
        call(parallel, work, memory, getl(memory, _THREADS), 0)
    else:
        call(work, memory, 0, 0, 0)
    return geti(getl(memory, _SAMPLE_START), getl(memory, _SAMPLES))
