"""The method from its definition, in loops and NumPy, sharing no code with the module it checks."""

from __future__ import annotations

import numpy as np
import torch


def groups(shape, scope):
    """Lists of index tuples, one list a group, each in the order that breaks ties."""
    if len(shape) == 4:
        b, c, h, w = (range(n) for n in shape)
        if scope == "map":
            return [[(i, j, y, x) for i in b for y in h for x in w] for j in c]
        if scope == "sample":
            return [[(i, j, y, x) for y in h for x in w] for i in b for j in c]
        if scope == "mixed":
            return [[(i, j, y, x) for j in c for y in h for x in w] for i in b]
        return [[(i, j, y, x) for i in b for j in c for y in h for x in w]]
    every = list(np.ndindex(*shape))
    if scope == "layer":
        return [every]
    return [[(*row, o) for o in range(shape[-1])] for row in np.ndindex(*shape[:-1])]


def kept(size, ratio):
    return max(1, round(ratio * size))


def mask(score, ratio, scope):
    """Exactly k of each group, by size, then by index."""
    score = score.numpy()
    chosen = np.zeros(score.shape, dtype=bool)
    if scope == "unified":
        sums = np.abs(score).reshape(-1, score.shape[-1]).sum(0)
        order = sorted(range(len(sums)), key=lambda o: (-sums[o], o))
        chosen[..., order[: kept(len(sums), ratio)]] = True
        return torch.from_numpy(chosen)
    for group in groups(score.shape, scope):
        values = np.array([abs(score[index]) for index in group])
        for i in np.lexsort((np.arange(len(group)), -values))[: kept(len(group), ratio)]:
            chosen[group[i]] = True
    return torch.from_numpy(chosen)


class Layer:
    """One layer's backward pass in float64, and its run_grad from step to step."""

    def __init__(self, kind, rule, history="slot", stride=(1, 1), dilation=(1, 1), groups=1,
                 around=((0, 0), (0, 0)), mode="constant"):  # fmt: skip
        self.kind, self.rule, self.history = kind, rule, history
        self.stride, self.dilation, self.groups = stride, dilation, groups
        self.around, self.mode = around, mode
        self.run_grads = {}

    def backward(self, x, weight, upstream):
        """dL/dx, dL/dW and dL/db for an upstream gradient."""
        chosen = upstream * self.select(upstream)
        full = self.rule is None or self.rule["bias"] == "full"
        for_bias = upstream if full else chosen
        if self.kind == "linear":
            return chosen @ weight, chosen.T @ x, for_bias.sum(0)
        return *self.convolution(x, weight, chosen), for_bias.sum((0, 2, 3))

    def select(self, grad):
        """1 where an entry is passed on."""
        rule = self.rule
        if rule is None:
            return np.ones(grad.shape)
        score = np.abs(grad)
        if rule["decay"] > 0:
            if self.history == "position":
                score = score.mean(0)[None]
            past = self.run_grads.get(score.shape, np.zeros(score.shape))
            score = rule["decay"] * past + (1 - rule["decay"]) * score
            self.run_grads[score.shape] = score
            score = np.broadcast_to(score, grad.shape)
        return mask(torch.from_numpy(score.copy()), rule["ratio"], rule["scope"]).numpy()

    def convolution(self, x, weight, grad):
        """dL/dx and dL/dW, a filter's pixel at a time."""
        samples, channels, height, width = x.shape
        # Where each padded pixel comes from; the last place stands for the zeros of the padding.
        source = np.arange(height * width).reshape(height, width)
        extra = {"constant_values": height * width} if self.mode == "constant" else {}
        source = np.pad(source, self.around, self.mode, **extra)
        flat = np.concatenate(
            [x.reshape(samples, channels, -1), np.zeros((samples, channels, 1))], 2
        )
        padded = flat[:, :, source]
        dpadded, dweight = np.zeros_like(padded), np.zeros_like(weight)
        outputs, inputs = weight.shape[0] // self.groups, weight.shape[1]
        for g in range(self.groups):
            filters, maps = (
                slice(g * outputs, (g + 1) * outputs),
                slice(g * inputs, (g + 1) * inputs),
            )
            for ky, kx in np.ndindex(*weight.shape[2:]):
                y, z = (
                    slice(k * d, k * d + s * n, s)
                    for k, d, s, n in zip(
                        (ky, kx), self.dilation, self.stride, grad.shape[2:], strict=True
                    )
                )
                seen, pixel = padded[:, maps, y, z], weight[filters, :, ky, kx]
                dweight[filters, :, ky, kx] = np.einsum("bohw,bihw->oi", grad[:, filters], seen)
                back = np.einsum("bohw,oi->bihw", grad[:, filters], pixel)
                dpadded[:, maps, y, z] += back
        dflat = np.zeros_like(flat)
        np.add.at(dflat, (slice(None), slice(None), source), dpadded)
        return dflat[:, :, :-1].reshape(x.shape), dweight
