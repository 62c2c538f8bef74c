"""The method written out in loops, sharing no code with the module it checks."""

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
        order = sorted(range(len(group)), key=lambda i: (-abs(score[group[i]]), i))
        for i in order[: kept(len(group), ratio)]:
            chosen[group[i]] = True
    return torch.from_numpy(chosen)


def conv2d_backward(grad, x, weight, stride, padding, dilation, count):
    """Gradients of input and weight, one multiplication at a time."""
    grad, x, weight = (t.detach().double().numpy() for t in (grad, x, weight))
    dx, dw = np.zeros_like(x), np.zeros_like(weight)
    _, per_group, kh, kw = weight.shape
    outputs = weight.shape[0] // count
    for b, o, oy, ox in np.argwhere(grad != 0):
        g = grad[b, o, oy, ox]
        for i in range(per_group):
            channel = (o // outputs) * per_group + i
            for ky in range(kh):
                for kx in range(kw):
                    y = oy * stride[0] - padding[0] + ky * dilation[0]
                    z = ox * stride[1] - padding[1] + kx * dilation[1]
                    if 0 <= y < x.shape[2] and 0 <= z < x.shape[3]:
                        dw[o, i, ky, kx] += g * x[b, channel, y, z]
                        dx[b, channel, y, z] += g * weight[o, i, ky, kx]
    return torch.from_numpy(dx), torch.from_numpy(dw)
