"""How well a network does on a part of the data, without gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from meprop.study.data import Part
from meprop.study.network import ACTIVATIONS, PaperCNN

BATCH = 200  # larger ones leave the cache


@torch.inference_mode()
def evaluate(model: PaperCNN, part: Part) -> tuple[float, list[int], list[int]]:
    """Mean loss, the indices of the misclassified images, and what they were taken for."""
    logits = inference(model.eval())
    loss, wrong, predicted = 0.0, [], []
    for start in range(0, len(part), BATCH):
        images, labels = part[start : start + BATCH]
        output = logits(images)
        loss += float(F.cross_entropy(output, labels, reduction="sum"))
        classes = output.argmax(1)
        missed = torch.nonzero(classes != labels).flatten()
        wrong += (missed + start).tolist()
        predicted += classes[missed].tolist()
    return loss / len(part), wrong, predicted


def inference(model: PaperCNN) -> Callable[[Tensor], Tensor]:
    """What `model(images)` computes in evaluation mode, up to rounding, in three quarters of the
    time.

    The convolutions and what is between them stay in oneDNN's own memory layout. Batch
    normalisation, which is a scale and a shift by now, goes into the convolution's weights.
    Pooling comes before the activation: it is monotone, so the largest of four is the same one.
    """
    if not torch.backends.mkldnn.is_available():
        return lambda images: model(images.contiguous(memory_format=torch.channels_last))
    activate = ACTIVATIONS[model.activation]
    layers = [
        fuse_conv_bn_eval(layer, norm) if isinstance(norm, nn.BatchNorm2d) else layer
        for layer, norm in ((model.conv1, model.bn1), (model.conv2, model.bn2))
    ]
    blocks = [(layer, layer.weight.to_mkldnn()) for layer in layers]

    def logits(images: Tensor) -> Tensor:
        x = images.to_mkldnn()
        for layer, weight in blocks:
            y = F.conv2d(x, weight, layer.bias, layer.stride, layer.padding)
            x = activate(model.pool(y))
        x = model.fc1(x.to_dense().flatten(1))
        return model.fc2(activate(model.bn3(x)))

    return logits
