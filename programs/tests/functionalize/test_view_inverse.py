"""Every view with every write becomes functional without a retrace, and equals eager."""

import copy
import itertools

import pytest
import torch
from delegraph_programs import normalize
from torch import nn

from ..support.views_and_writes import (
    BY_ELEMENTS,
    COMPLEX,
    REAL_WRITES,
    RETRACED,
    VIEWS,
    WRITES,
)

KINDS = ("buffer", "input", "computed")


class Cells(nn.Module):
    """Applies each pair of a view and a write to its own tensor, and reads views of it."""

    def __init__(self, cells, kind):
        super().__init__()
        self.cells = cells
        self.kind = kind
        for k, (view, _) in enumerate(cells):
            self.register_buffer(f"b{k}", numbers_for(view))

    def forward(self, *inputs):
        return [self.cell(k, x) for k, x in enumerate(inputs)]

    def cell(self, k, x):
        view_name, write_name = self.cells[k]
        view = VIEWS[view_name]
        write = ALL[write_name]
        if self.kind == "buffer":
            tensor = getattr(self, f"b{k}")
        elif self.kind == "input":
            tensor = x
        else:
            tensor = x * 1
        before = view(tensor)
        written = view(tensor)
        write(written)
        return tensor, written, before, view(tensor), tensor * 2


ALL = {**WRITES, **REAL_WRITES}


def numbers_for(view):
    made = torch.arange(12.0).reshape(3, 4) / 4 - 0.5
    return torch.complex(made, 1 - made) if view in COMPLEX else made


def is_defined(view, write):
    """Return whether eager runs the pair. It refuses some dtypes and overlapping
    writes.
    """
    if write in REAL_WRITES and view in COMPLEX:
        return False
    try:
        ALL[write](VIEWS[view](numbers_for(view)))
    except RuntimeError:
        return False
    return True


NOT_EXPORTED = {("squeeze dims", "set by a mask")}
"""torch.export asks whether the mask has exactly one element set, which it cannot know,
and gives up.
"""
CELLS = [
    cell
    for cell in itertools.product(VIEWS, ALL)
    if is_defined(*cell) and cell not in NOT_EXPORTED
]


def assert_cells_equal_eager(cells, kind):
    module = Cells(cells, kind).eval()
    program = torch.export.export(
        copy.deepcopy(module), tuple(numbers_for(view) for view, _ in cells)
    )
    normal, notes = normalize(program)
    assert bool(notes) == any(view in RETRACED for view, _ in cells), notes
    ours = normal.module(check_guards=False)
    for call in range(2):
        mine = tuple(numbers_for(view) + call for view, _ in cells)
        eager = tuple(numbers_for(view) + call for view, _ in cells)
        actual = ours(*mine)
        expected = module(*eager)
        for cell, *pair in zip(cells, actual, expected, strict=True):
            torch.testing.assert_close(
                *pair,
                rtol=0,
                atol=0,
                equal_nan=True,
                msg=f"{cell}, {kind}, call {call}",
            )
        torch.testing.assert_close(
            mine, eager, rtol=0, atol=0, equal_nan=True, msg=f"inputs, call {call}"
        )


SAMPLE = [
    cell
    for k, cell in enumerate(c for c in CELLS if c[0] not in RETRACED)
    if k % 20 == 0
]


@pytest.mark.parametrize("kind", KINDS)
def test_sample_of_views_and_writes_equals_eager(kind):
    """The sample has every view, with the writes in turn."""
    assert {view for view, _ in SAMPLE} >= {
        view for view in VIEWS if view not in RETRACED
    }
    assert_cells_equal_eager(SAMPLE[KINDS.index(kind) :: 3], kind)


@pytest.mark.parametrize("view", [view for view in VIEWS if view not in RETRACED])
def test_writes_through_views_use_their_inverse(view):
    """Without an inverse, elements are written one by one: correct, but slow."""
    program = torch.export.export(
        Cells([(view, "add_")], "buffer").eval(), (numbers_for(view),)
    )
    normal, _ = normalize(program)
    by_elements = any(
        node.target is torch.ops.aten.index_put.default for node in normal.graph.nodes
    )

    assert by_elements == (view in BY_ELEMENTS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_and_write_equals_eager(view, kind):
    assert_cells_equal_eager([cell for cell in CELLS if cell[0] == view], kind)


BY_DATA = {
    "aten.narrow.default": lambda x, n: x.narrow(0, 1, n),
    "aten.split_with_sizes.default": lambda x, n: x.split([n, 4 - n])[0],
    "aten.as_strided.default": lambda x, n: x.as_strided((2,), (n,), 0),
}


class WritesByData(nn.Module):
    """Writes through a view with data-dependent sizes."""

    def __init__(self, view):
        super().__init__()
        self.view = view

    def forward(self, x, k):
        n = k.item()
        torch._check(n >= 1)
        torch._check(n <= 3)
        y = x.clone()
        self.view(y, n).add_(1)
        return y


@pytest.mark.parametrize("name", BY_DATA)
def test_views_with_data_dependent_sizes_are_retraced_by_torch(name):
    model = WritesByData(BY_DATA[name])
    functional, notes = normalize(
        torch.export.export(model, (torch.zeros(4), torch.tensor(2)))
    )

    assert len(notes) == 1
    assert f"{name} has no inverse" in notes[0]
    for k in (1, 3):
        inputs = torch.randn(4), torch.tensor(k)
        torch.testing.assert_close(
            functional.module(check_guards=False)(*inputs),
            model(*inputs),
            rtol=0,
            atol=0,
        )
