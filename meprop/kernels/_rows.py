"""The one inner loop of every backward pass: rows of a sum, each over a list of scaled rows.

    sums[row] += sum of value[i] * source[at[i]]    for i in the list of `row`

Weight gradient: a row is a feature map, `source` the patches of the input (Eq. 13). Input
gradient: a row is a position, `source` the filters (Eq. 10): the maps that share a position are
summed in registers before the input gradient is touched. A patch is `segments` stretches of
`length` floats; it is cut into tiles that fit the registers, and the lists are walked once per
tile, so that a tile of `source` stays in the cache.
"""

from __future__ import annotations

from meprop.kernels._jit import inner
from meprop.kernels._simd import LANES
from meprop.kernels._tiles import FIRST_SEVERAL, SEVERAL, TILE, add_rows


@inner
def add_patches(
    rows: int, starts: int, places: int, at: int, value: int, sums: int, sums_step: int,
    source: int, source_step: int, segments: int, length: int, lanes: int,
) -> None:  # fmt: skip
    """Add the lists of all rows, over `segments` stretches of `length` floats.

    starts: where each row's list begins; places, at: offsets in floats; steps in bytes; lanes:
    address of 16 integers, first eight ones and then the lanes a stretch's last vector may write.
    """
    vectors = (length + LANES - 1) // LANES
    tiles = (vectors + TILE - 1) // TILE
    segment = 0
    while segment < segments:
        many = 1
        if vectors <= len(SEVERAL):
            many = min(SEVERAL[vectors - 1], segments - segment)
        first = 0
        for tile in range(tiles):
            after = vectors * (tile + 1) // tiles
            shape = after - first - 1
            if many > 1:
                shape = FIRST_SEVERAL[vectors - 1] + many - 2
            add_rows(
                shape, rows, starts, places, at, value,
                sums + segment * sums_step + 4 * LANES * first, sums_step,
                source + segment * source_step + 4 * LANES * first, source_step,
                lanes + 4 * LANES if after == vectors else lanes,
            )  # fmt: skip
            first = after
        segment += many
