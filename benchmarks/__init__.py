"""How fast the backward passes are, against PyTorch's: `python -m benchmarks` (`make bench`).

What is compared, in one process, one after the other in a new order every round:

| group     | contenders                                                                       |
|-----------|----------------------------------------------------------------------------------|
| layer     | backward pass of one convolution: `dense` (torch's own layer), `masked`          |
|           | (`torch.topk` per feature map in a hook, then dense: what public code does),     |
|           | `auto` (our layer as it comes), `sparse` (the same with `backend="sparse"`) and  |
|           | `kernel` (its backward function called by itself); at 100%, without a rule,      |
|           | `exact` in place of `sparse`                                                     |
| linear    | the same of a linear layer, with the largest entries of each sample (Section 2.1)|
| selection | to know which entries are kept: `torch.topk`, `torch.kthvalue`, ours             |
| step      | a whole training step: the best `dense` one, ours at some ratios (`meprop`),     |
|           | without a rule (`exact`) and by `meprop.recipe`; of the paper's network also     |
|           | `masked` and `stock` PyTorch as people write it; of ResNet-20 also `unbiased`    |
| split     | a step of the paper's network cut between its layers, each part on its own       |

What is counted is what a user sees. A layer is called, and autograd runs its backward pass, which
is what counts: selection, changes of layout, the bias and what Python and autograd cost are in it,
for everybody. Only `kernel` leaves autograd out. Files of schema 1 were measured as it is, all of
them: `load` says so in the column `autograd`.

Memory formats. A network is contiguous or channels_last as a whole, and its user is free to choose:
activations, weights and gradients arrive in that format and leave in it. So each contender runs in
both, and counts with the one it is faster in; both are in the results. If it needs another layout
inside, making it is counted.

Gradients of layers are real ones. `full`: taken below a batch normalisation, no zeros. `natural`:
below ReLU and 2x2 max-pooling. Those of conv1 and conv2 come from the paper's network after some
training. Networks other than the paper's have random weights and images.

Statistics. Each round gives one ratio to the baseline; the median of these and their quartiles are
kept, so that what slows the whole machine down for a moment falls out. First calls, which may
compile, and warm-up are not in them. `benchmarks.results` describes the file that is written, and
notebook 05 shows what is in the committed ones.
"""

from benchmarks.results import load

__all__ = ["load"]
