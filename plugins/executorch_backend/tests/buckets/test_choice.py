"""``delegraph.lower_buckets``: names, the choice of a bucket, what is padded and cut,
and what is refused.
"""

import json

import pytest
import torch
from delegraph.errors import FormatError, InputError
from delegraph.partitioner import CapabilityPartitioner
from delegraph_executorch.buckets import lower_buckets
from delegraph_executorch.buckets.choice import BucketChoice
from delegraph_executorch.buckets.table import BucketTable
from torch import nn

ECHO = CapabilityPartitioner(lambda node: None, "EchoBackend")


class Rows(nn.Module):
    """[N, 4] -> [N, 2], and the mean of all, which padding changes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x), x.mean()


def lower_to_buckets(registry, model, given, **more):
    return lower_buckets(
        model.eval(), given, backends=[ECHO], registry=registry, **more
    )


def tensors_of_sizes(*sizes):
    return [torch.randn(n, 4) for n in sizes]


def test_inputs_are_padded_to_the_smallest_fitting_bucket(registry):
    model = Rows()
    program = lower_to_buckets(registry, model, tensors_of_sizes(16, 2, 8), padding=0)
    assert program.methods == ["forward_2", "forward_8", "forward_16"]
    assert [program.bucket_of(x) for x in tensors_of_sizes(0, 2, 3, 8, 9)] == [
        "forward_2", "forward_2", "forward_8", "forward_8", "forward_16",
    ]  # fmt: skip
    for x in tensors_of_sizes(0, 1, 2, 5, 16):
        rows, mean = program(x)
        torch.testing.assert_close(rows, model(x)[0])
        assert mean.shape == ()
    x = torch.randn(5, 4)
    figures = program.verify(x)
    assert figures.outputs[0].relative_error == 0
    assert figures.outputs[1].relative_error > 0.1
    assert program.verify(torch.randn(8, 4)).relative_error == 0
    assert x.shape == (5, 4)
    assert program.report.delegated_share == 1


def test_weights_are_shared_by_all_sizes(registry):
    model = Rows()
    program = lower_to_buckets(registry, model, tensors_of_sizes(2, 8))
    kept = [
        delegate.module.original_module.state_dict
        for delegate in program.program.delegates
    ]
    assert len(kept) == 2
    assert {t.data_ptr() for state in kept for t in state.values() if t.numel()} == {
        p.data_ptr() for p in model.parameters()
    }


def test_only_exact_sizes_without_padding(registry):
    program = lower_to_buckets(
        registry, Rows(), {"few": torch.randn(2, 4), "many": (torch.randn(8, 4),)}
    )
    assert program.methods == ["few", "many"]
    assert program.bucket_of(torch.randn(8, 4)) == "many"
    with pytest.raises(
        InputError,
        match=r"no bucket holds \(float32\[3, 4\]\); there are \(float32\[2, 4\]\), ",
    ) as e:
        program(torch.randn(3, 4))
    assert "padding=0" in e.value.hint


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(9, 4),
        torch.randn(3, 5),
        torch.randn(3, 4).double(),
        torch.randn(4),
        3.0,
    ],
)
def test_inputs_larger_than_all_buckets_are_refused(registry, x):
    with pytest.raises(InputError, match="no bucket holds"):
        lower_to_buckets(registry, Rows(), tensors_of_sizes(2, 8), padding=0)(x)


@pytest.mark.parametrize("padding", ["0", torch.tensor(0.0), 10**400])
def test_padding_is_a_number(registry, padding):
    with pytest.raises(InputError, match="padding must be a Python number or None"):
        lower_to_buckets(registry, Rows(), tensors_of_sizes(2, 8), padding=padding)


def test_infinite_padding_is_stored(registry):
    program = lower_to_buckets(
        registry, Rows(), tensors_of_sizes(2, 8), padding=float("-inf")
    )
    assert program._choice.table().to_json()["padding"] == "-inf"


class Masked(nn.Module):
    """[N, L] -> [N, L]: what is not in the mask has no part in the softmax."""

    def forward(self, scores, *, mask, scale=1.0):
        return torch.softmax((scores * scale).masked_fill(~mask, -torch.inf), -1)


def test_keyword_arguments_numbers_and_two_axes(registry):
    def example(rows, length):
        return {
            "mask": torch.ones(rows, length, dtype=torch.bool),
            "scores": torch.randn(rows, length),
            "scale": 2.0,
        }

    program = lower_to_buckets(
        registry, Masked(), [example(n, m) for n in (1, 4) for m in (8, 16)], padding=0
    )
    assert program.methods == [
        "forward_1x8",
        "forward_1x16",
        "forward_4x8",
        "forward_4x16",
    ]
    given = example(1, 11)
    assert program.bucket_of(**given) == "forward_1x16"
    assert program.verify(**given).agrees(1e-6)
    assert program(**given).shape == (1, 11)
    with pytest.raises(InputError, match="no bucket holds .*3.0"):
        program(**{**given, "scale": 3.0})
    with pytest.raises(
        InputError,
        match=(
            "the call has 1 by position and mask by name; the buckets have nothing by"
            " position and scores"
        ),
    ):
        program(given["scores"], mask=given["mask"])


class Shapes(nn.Module):
    def forward(self, image):
        return image.mT, image[..., ::2]


def test_axes_of_results_follow_axes_of_inputs(registry):
    """An axis follows the input's axis that has its sizes in all buckets; what is not
    clear is refused, not guessed.
    """
    wide = lower_to_buckets(
        registry, Shapes(), [torch.randn(4, 6), torch.randn(8, 16)], padding=0
    )
    with pytest.raises(
        InputError,
        match="axis 1 of a result has the sizes 3, 8, as no axis of an input",
    ):
        wide(torch.randn(5, 6))
    assert wide.verify(torch.randn(8, 16)).relative_error == 0
    square = lower_to_buckets(
        registry, nn.ReLU(), [torch.randn(n, n) for n in (4, 8)], padding=-1.0
    )
    assert square(torch.randn(3, 3)).shape == (3, 3)
    with pytest.raises(
        InputError,
        match=(
            "axis 0 of a result has the sizes 4, 8, as several axes of inputs,"
            " which(.|\\n)*another bucket"
        ),
    ):
        square(torch.randn(2, 3))


class Turned(nn.Module):
    def forward(self, x):
        return x.mT


def test_padding_is_cut_off_a_result_whose_axes_are_swapped(registry):
    turned = lower_to_buckets(
        registry, Turned(), [torch.randn(4, 6), torch.randn(8, 16)], padding=0
    )
    x = torch.randn(7, 9)
    torch.testing.assert_close(turned(x), x.mT)


class Writing(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x):
        self.total += x.sum()
        return x + self.total


class WritingItsInput(nn.Module):
    def forward(self, x):
        return x.add_(1) * 2


@pytest.mark.parametrize(
    "model, written", [(Writing(), "total"), (WritingItsInput(), "x")]
)
def test_models_that_write_state_are_refused(registry, model, written):
    with pytest.raises(InputError, match=f"the model writes {written};"):
        lower_to_buckets(registry, model, tensors_of_sizes(2, 8))


def test_wrong_buckets_are_refused(registry):
    for given, text in (
        ([], "buckets must be a list of example inputs"),
        (torch.randn(2, 4), "buckets must be a list of example inputs"),
        (tensors_of_sizes(2, 2), "the same sizes"),
        (
            [torch.randn(2, 4), torch.randn(2, 4, 1)],
            r"'1' has \(float32\[2, 4, 1\]\), but the first has",
        ),
        (
            [torch.randn(2, 4), torch.ones(3, 4, dtype=torch.int)],
            "only sizes may differ",
        ),
        ([(torch.randn(2, 4), 1), (torch.randn(3, 4), 2)], "only sizes may differ"),
    ):
        with pytest.raises(InputError, match=text):
            lower_to_buckets(registry, Rows(), given)
    program = torch.export.export(Rows().eval(), (torch.randn(2, 4),))
    with pytest.raises(
        InputError,
        match="lower_buckets needs an nn.Module, which it exports for each bucket; got ExportedProgram",
    ):
        lower_buckets(program, tensors_of_sizes(2, 3), backends=[])


TABLE = {
    "schema": "delegraph.buckets/1", "padding": 0, "structure": {"tuple": [{"tuple": ["*"]}, {"dict": []}]},
    "rows": [
        {"method": f"forward_{n}", "inputs": [{"dtype": "float32", "shape": [n]}], "results": [[n]]} for n in (2, 8)
    ],
}  # fmt: skip
ROW = TABLE["rows"][0]
DAMAGED = {
    "no JSON": b"{",
    "no table": b"[]",
    "a number": b"3",
    "nested": b"[" * 100_000,
    "no rows": {"rows": []},
    "a row too much": {"rows": [ROW, {**ROW, "more": 1}]},
    "the same method": {"rows": [ROW, ROW]},
    "the same sizes": {"rows": [ROW, {**ROW, "method": "other"}]},
    "a method without a name": {"rows": [{**ROW, "method": []}]},
    "no shape": {"rows": [{**ROW, "inputs": [{"dtype": "float32", "shape": 3}]}]},
    "a negative size": {
        "rows": [{**ROW, "inputs": [{"dtype": "float32", "shape": [-1]}]}]
    },
    "no type": {"rows": [{**ROW, "inputs": [{"dtype": "load", "shape": [1]}]}]},
    "other ranks": {
        "rows": [
            ROW,
            {
                **ROW,
                "inputs": [{"dtype": "float32", "shape": [2, 2]}],
                "method": "other",
            },
        ]
    },
    "results of other ranks": {
        "rows": [ROW, {**TABLE["rows"][1], "results": [[2, 2]]}]
    },
    "results that are none": {"rows": [{**ROW, "results": 3}]},
    "no padding": {"padding": "0"},
    "padding beyond floats": {"padding": 10**400},
    "another structure": {"structure": {"tuple": ["*", "*"]}},
    "no structure": {"structure": {"set": ["*"]}},
    "keys that cannot be": {"structure": {"dict": [[["a"], "*"]]}},
}


def read_choice(content):
    table = BucketTable.of_bytes(content)
    return None if table is None else BucketChoice.of_table(table)


def test_a_table_in_a_file():
    choice = read_choice(json.dumps(TABLE).encode())
    assert choice.methods == [
        "forward_2",
        "forward_8",
    ]
    assert choice.table() == BucketTable.of_bytes(json.dumps(TABLE).encode())
    assert (
        choice(
            lambda name: lambda x: (x.sum(), name)[0] + 0 * x, (torch.ones(5),), {}
        ).tolist()
        == [5.0] * 5
    )
    assert (
        read_choice(json.dumps({**TABLE, "schema": "delegraph.buckets/2"}).encode())
        is None
    )


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_tables_of_sizes_are_refused(name):
    damage = DAMAGED[name]
    with pytest.raises(
        FormatError, match="its table of sizes, delegraph.buckets, cannot be read"
    ):
        read_choice(
            damage
            if isinstance(damage, bytes)
            else json.dumps({**TABLE, **damage}).encode()
        )
