"""The benchmark as notebooks 05 and 08 still use it; `benchmarks/` at the root has taken its place.

What is compared, in one process, one after the other in a new order every round:

| group     | contenders                                                                       |
|-----------|----------------------------------------------------------------------------------|
| layer     | backward pass of one convolution: `dense` (torch's `convolution_backward`),      |
|           | `masked` (`torch.topk` per feature map, zeros, then dense: what public code does)|
|           | `sparse` and `auto` (ours); at 100%, `exact`: `sparse` without a rule            |
| selection | to know which entries are kept: `torch.topk`, `torch.kthvalue`, ours             |
| step      | a whole training step: `stock` PyTorch as people write it, the best `dense` one, |
|           | `masked`, ours at 5% (`meprop`) and without a rule (`exact`)                     |
| split     | the same step of the paper's network, cut between its layers, each on its own    |

What is counted. A layer's time runs from the gradient as autograd delivers it to the gradients as
autograd expects them, by calling the node that the layer's forward pass has left in the graph:
selection, changes of layout, the bias and what Python costs are all in it, for everybody.

Memory formats. A network is contiguous or channels_last as a whole, and its user is free to choose:
activations, weights and gradients arrive in that format and leave in it. So each contender of a
layer or a selection runs in both, and counts with the one it is faster in; both are in the results.
If it needs another layout inside, making it is counted.

Gradients are real ones. `full`: taken below a batch normalisation, no zeros. `natural`: below ReLU
and 2x2 max-pooling. Those of conv1 and conv2 come from the paper's network after some training.

Statistics. Each round gives one ratio to the baseline; the median of these and their quartiles are
reported, so that what slows the whole machine down for a moment falls out. First calls, which may
compile, and warm-up are not in them. `meprop.bench.results` describes the file that is written.
"""
