"""The drawings say what the module computes."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_rgba

from meprop import TopK, select
from meprop.study import drawings, style


@pytest.fixture(autouse=True)
def book_style():
    with plt.style.context("default"):
        style.set_style()
        yield
    assert not plt.get_fignums(), "figures are shown by whoever asked for them, and once"


def test_a_table_shows_tags_as_they_are_written():
    cells = ["<img src=x onerror=alert(1)>", "a < b", "[page](x.md)", "</script>"]
    frame = pd.DataFrame({"<b>": cells}, index=["<!--", "1", "2", "3"])
    shown = style.table(frame, index=True).data
    assert "<img" not in shown and "</" not in shown and "<b" not in shown and "<!" not in shown
    assert "&lt;img src=x" in shown and "a < b" in shown and "[page](x.md)" in shown


def texts(figure):
    return [text.get_text() for axis in figure.axes for text in axis.texts]


def test_the_idea_silences_all_but_k():
    figure = drawings.idea([1, 2, 3, -4], 2)
    assert sum(text.endswith(" 0") for text in texts(figure)) == 2
    whole, top = (len(axis.patches) for axis in figure.axes[1:])
    assert whole - top == 2 * 5, "the arrows of two outputs to five inputs"
    assert len(figure.small_png()) < 60_000


def test_the_network_names_shapes_and_selecting_layers():
    outputs = {"conv1": torch.rand(32, 28, 28), "fc1": torch.rand(1024), "fc2": torch.eye(10)[3]}
    figure = drawings.network(torch.rand(1, 28, 28), outputs, selecting=("conv1",))
    said = texts(figure)
    assert said.count("top-k on the\nway back") == 1
    assert "conv1\n28 \N{MULTIPLICATION SIGN} 28 \N{MULTIPLICATION SIGN} 32" in said
    (bold,) = [t for t in figure.axes[0].texts if t.get_text() == "3"]
    assert bold.get_fontweight() == "bold", "what it takes the image for"


@pytest.mark.parametrize("scope", drawings.SCOPES)
def test_a_group_is_what_select_ranks_together(scope):
    """As many squares are coloured as share a group with the first entry."""
    figure = drawings.groups((4, 6, 5, 5), scope)
    axis = figure.axes[1 + [*drawings.SCOPES].index(scope)]
    colour = to_rgba(drawings.SCOPES[scope])
    coloured = {
        (-patch.get_y(), patch.get_x()) for patch in axis.patches if patch.get_facecolor() == colour
    }
    together = set()
    for image, column in ((i, c) for i in range(4) for c in range(6)):
        # A larger entry takes the place of the first only where they compete.
        grad = torch.zeros(4, 6, 5, 5)
        grad[0, 0, 0, 0], grad[image, column, 1, 1] = 1, 2
        mask, _ = select(grad, TopK(1e-9, scope=scope))
        if not mask[0, 0, 0, 0]:
            together.add((image, column))
    assert coloured == together
    sizes = {"map": 4 * 25, "sample": 25, "layer": 600, "mixed": 6 * 25}
    assert any(text.endswith(f"= {sizes[scope]:,}") for text in (t.get_text() for t in axis.texts))


def test_maps_show_all_and_what_is_kept():
    grad = torch.tensor([[[[1.0, 0.0], [-2.0, 0.5]]]])
    mask, _ = select(grad, TopK(0.5))
    figure = drawings.maps(torch.zeros(1, 1, 2, 2), grad, mask, {0: "map 7"}, "top 50%")
    _, whole, part = figure.axes
    assert whole.images[0].get_array().count() == 3, "zeros are holes"
    lost, kept = (image.get_array() for image in part.images)
    assert lost.sum() == 1 and kept.count() == 2
    assert [axis.get_title().strip() for axis in figure.axes] == ["image", "map 7\nall", "top 50%"]


def test_run_grad_marks_what_is_selected_while_zero():
    trace = pd.DataFrame({
        "step": [1, 2, 3], "entry": 5, "magnitude": [1.0, 0.0, 0.2], "run_grad": [0.4, 0.24, 0.1],
        "selected": [True, True, False],
    })  # fmt: skip
    figure = drawings.run_grad(pd.concat([trace, trace.assign(entry=6, selected=False)]))
    first, second = figure.axes
    assert [bar.get_facecolor()[:3] == drawings.KEPT for bar in first.patches] == [
        True,
        True,
        False,
    ]
    (cross,) = [line for line in first.lines if line.get_marker() == "x"]
    assert cross.get_xdata().tolist() == [2]
    assert not [line for line in second.lines if line.get_marker() == "x"]
    figure.small_png()
