"""``.pte`` files store each memory of constants once. Tensors may have no elements."""

from __future__ import annotations

from typing import Any

import delegraph
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from plugins.executorch_backend.tests.support.both_runtimes import expect_right_in_both

# whatever ExecuTorch warns of at import
pytestmark = pytest.mark.filterwarnings("ignore")
pytest.importorskip("delegraph_executorch")

ROWS = 500
WIDTH = 32
TOKENS = torch.tensor([[1, 2, 3]])


class Tied(nn.Module):
    """An embedding. The head of a derived class uses the same weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(ROWS, WIDTH)


class LinearHead(Tied):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, ROWS)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Any) -> Any:
        return self.head(self.embedding(tokens))


class HeadWithoutBias(Tied):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, ROWS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Any) -> Any:
        return self.head(self.embedding(tokens))


class Product(Tied):
    def forward(self, tokens: Any) -> Any:
        return self.embedding(tokens) @ self.embedding.weight.T


class TransposedParameter(Tied):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Parameter(self.embedding.weight.detach().T)

    def forward(self, tokens: Any) -> Any:
        return self.embedding(tokens) @ self.head


class ConvolutionOfView(Tied):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv1d(WIDTH, ROWS, 1, bias=False)
        self.head.weight = nn.Parameter(
            self.embedding.weight.detach().view(ROWS, WIDTH, 1)
        )

    def forward(self, tokens: Any) -> Any:
        return self.head(self.embedding(tokens).mT)


class ViewInForward(Tied):
    def forward(self, tokens: Any) -> Any:
        return F.conv1d(
            self.embedding(tokens).mT, self.embedding.weight.view(ROWS, WIDTH, 1)
        )


class HalfFloats(Product):
    def __init__(self) -> None:
        super().__init__()
        self.to(torch.float16)


class Int8(nn.Module):
    """Dequantizes weights of eight bits. The head reads a view of the embedding's
    weights.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows = nn.Buffer(torch.randint(-128, 127, (ROWS, WIDTH), dtype=torch.int8))
        self.head = nn.Buffer(self.rows.view(ROWS, WIDTH, 1))

    def forward(self, tokens: Any) -> Any:
        found = F.embedding(tokens, self.rows).float() * 0.02
        return F.conv1d(found.mT, self.head.float() * 0.02)


TIED = [
    (LinearHead, 4),
    (HeadWithoutBias, 4),
    (Product, 4),
    (TransposedParameter, 4),
    (ConvolutionOfView, 4),
    (ViewInForward, 4),
    (HalfFloats, 2),
    (Int8, 1),
]


@pytest.mark.parametrize(
    "backends",
    [[], pytest.param(["xnnpack"], marks=pytest.mark.slow)],
    ids=["host", "xnnpack"],
)
@pytest.mark.parametrize(
    ("model", "bytes_each"), TIED, ids=lambda value: getattr(value, "__name__", "")
)
def test_tied_weight_is_stored_once(
    model: Any, bytes_each: int, backends: list[str], tmp_path: Any
) -> None:
    if backends and model is TransposedParameter:
        pytest.skip("XNNPACK packs the transposed weight, whose bytes are others")
    if backends:
        pytest.importorskip("executorch")
    path = tmp_path / "model.pte"
    module = model().eval()
    delegraph.lower(module, (TOKENS,), backends=backends).save(path)

    assert path.stat().st_size < 1.3 * ROWS * WIDTH * bytes_each + 4000
    expect_right_in_both(
        path, module, (TOKENS,), atol=1e-2 if bytes_each == 2 else 1e-4, rtol=1e-3
    )


def test_weight_that_two_methods_read_is_stored_once(tmp_path: Any) -> None:
    class Embed(nn.Module):
        def __init__(self, table: nn.Embedding) -> None:
            super().__init__()
            self.table = table

        def forward(self, tokens: Any) -> Any:
            return self.table(tokens)

    class Head(Embed):
        def forward(self, x: Any) -> Any:
            return x @ self.table.weight.T

    table = nn.Embedding(ROWS, WIDTH)
    x = torch.randn(2, WIDTH)
    methods = {"embed": Embed(table), "head": Head(table)}
    path = tmp_path / "model.pte"
    delegraph.lower(methods, {"embed": (TOKENS,), "head": (x,)}, backends=[]).save(path)

    assert path.stat().st_size < 1.2 * ROWS * WIDTH * 4
    expect_right_in_both(path, table, (TOKENS,), method="embed")
    expect_right_in_both(path, lambda x: x @ table.weight.T, (x,), method="head")


class Empty(nn.Module):
    """Constants without elements. Each derived class uses some."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Buffer(torch.zeros(0, 3))
        self.index = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.written = nn.Buffer(torch.zeros(0))


class Joined(Empty):
    def forward(self, x: Any) -> Any:
        return torch.cat([self.rows, x])


class Returned(Empty):
    def forward(self, x: Any) -> Any:
        return x * 2, self.rows


class Copied(Empty):
    def forward(self, x: Any) -> Any:
        return x + 1, self.rows.clone()


class Chosen(Empty):
    def forward(self, x: Any) -> Any:
        return x[self.index], x.index_select(0, self.index)


class Written(Empty):
    def forward(self, x: Any) -> Any:
        self.written.add_(1)
        return x + self.written.sum()


class Literals(Empty):
    def forward(self, x: Any) -> Any:
        return torch.cat([torch.tensor([]), x.flatten()]), torch.zeros(0, 2)


class Sliced(Empty):
    def forward(self, x: Any) -> Any:
        return x[:0] * 2, x[2:2], x + 1, x.sum()


class Multiplied(Empty):
    def forward(self, x: Any) -> Any:
        return x[:, :0] @ self.rows + x


EMPTY = [Joined, Returned, Copied, Chosen, Written, Literals, Sliced, Multiplied]


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"external_constants": "weights"}, marks=pytest.mark.slow)],
    ids=["inside", "outside"],
)
@pytest.mark.parametrize("model", EMPTY)
def test_tensors_without_elements_survive_files(
    model: Any, options: dict[str, Any], tmp_path: Any
) -> None:
    for x in (torch.ones(2, 3), torch.zeros(0, 3)):
        if model is Sliced and not len(x):
            continue
        path = tmp_path / "model.pte"
        delegraph.lower(model(), (x,), backends=[]).save(path, **options)
        expect_right_in_both(path, model(), (x,))


def test_tosa_file_with_a_constant_without_elements(tmp_path: Any) -> None:
    delegraph.lower(Joined(), (torch.ones(2, 3),), backends=["tosa"]).save(
        tmp_path / "model.tosa"
    )
    loaded = delegraph.load(tmp_path / "model.tosa")
    assert torch.equal(loaded(torch.ones(2, 3))[0], torch.ones(2, 3))


def test_tosa_file_refuses_a_result_without_elements(tmp_path: Any) -> None:
    lowered = delegraph.lower(Returned(), (torch.ones(2, 3),), backends=["tosa"])
    with pytest.raises(
        delegraph.DelegraphError, match="is empty; TOSA has no empty tensors"
    ):
        lowered.save(tmp_path / "model.tosa")
