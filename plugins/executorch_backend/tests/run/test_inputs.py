"""Calls of loaded files with other inputs than the program was exported for: named as the caller names them."""

import delegraph
import pytest
import torch
from delegraph.errors import InputError
from torch import nn
from torch.export import Dim, export

B = Dim("B", max=6)
randn = torch.randn


class Nested(nn.Module):
    def forward(self, x, pair, *, scale):
        return x + pair["a"], torch.cat([pair["a"], pair["b"]]) * scale


class Single(nn.Module):
    def forward(self, pair):
        return pair["a"] + 1


def called(x=(4, 8), a=(4, 8), b=(4, 8)):
    return (randn(x), {"a": randn(a), "b": randn(b)}), {"scale": randn(1)}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    args, kwargs = called()
    shapes = {"x": {0: B}, "pair": {"a": {0: B}, "b": {0: B}}, "scale": None}
    path = tmp_path_factory.mktemp("inputs") / "nested.pte"
    delegraph.lower(export(Nested(), args, kwargs, dynamic_shapes=shapes), backends=[]).save(path)
    return delegraph.load(path)


A = r"^input pair\['a'\] is to be torch.float32 of sizes at most \[6, 8\]; it is "
PAIR = {"a": randn(4, 8), "b": randn(4, 8)}
SCALE = {"scale": randn(1)}
OTHERS = {
    "above": (called((4, 8), (7, 8)), A + r"torch.float32 of sizes \[7, 8\]\n"),
    "type": (((randn(4, 8), {**PAIR, "a": randn(4, 8).half()}), SCALE), A + "torch.float16 of sizes"),
    "device": (((randn(4, 8), {**PAIR, "a": randn(4, 8, device="meta")}), SCALE), A + ".* on meta\n"),
    "sparse": (((randn(4, 8), {**PAIR, "a": randn(4, 8).to_sparse()}), SCALE), A + "sparse_coo torch.float32"),
    "array": (((randn(4, 8), {**PAIR, "a": randn(4, 8).numpy()}), SCALE), A + "of type ndarray\n"),
    "few": (((randn(4, 8),), SCALE), "it was given 1 positional inputs and the keywords scale: pair not given\n"),
    "keys": (((randn(4, 8), {"a": randn(4, 8)}), SCALE), r"^input pair is to be a dict .*; it is a dict with the keys"),
    "unequal": (
        called(a=(5, 8)),
        r"^aten::add.out failed .* for input x of sizes \[4, 8\], input pair\['a'\] of sizes",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_inputs_of_another_kind(loaded, name):
    (args, kwargs), message = OTHERS[name]
    with pytest.raises(InputError, match=message):
        loaded(*args, **kwargs)


def test_a_container_is_no_flat_input(tmp_path):
    program = export(Single(), ({"a": randn(3)},))
    delegraph.lower(program, backends=[]).save(tmp_path / "single.pte")
    loaded = delegraph.load(tmp_path / "single.pte")
    torch.testing.assert_close(loaded(torch.ones(3)), loaded({"a": torch.ones(3)}))
    with pytest.raises(InputError, match=r"^input pair is to be a dict with the keys \['a'\]; it is a dict with the"):
        loaded({"b": torch.ones(3)})


def test_inputs_within_the_export(loaded):
    args, kwargs = called((6, 8), (6, 8), (6, 8))
    torch.testing.assert_close(loaded(*args, **kwargs), Nested()(*args, **kwargs))
