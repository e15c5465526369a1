"""Arrays of an ``.npz`` file replace the example inputs."""

import random

import delegraph
import numpy as np
import pytest
import torch
from delegraph.command import read_arrays, read_inputs
from delegraph.errors import InputError


class Keywords(torch.nn.Module):
    def forward(self, x, *, a, b, factor):
        return (x + 10 * a["k"] + 100 * a["l"] + 1000 * b) * factor


@pytest.fixture
def example():
    """Return example inputs whose keywords are in another order than in ``forward``."""
    a = {"l": torch.zeros(1), "k": torch.zeros(1)}
    return (torch.zeros(1),), {"factor": 2, "b": torch.zeros(1), "a": a}


@pytest.fixture
def program(example):
    x = torch.zeros(1)
    args, kwargs = example
    kwargs = {**kwargs, "a": {"k": x.clone(), "l": x.clone()}}
    model = Keywords().eval()
    return delegraph.export(model, args, example_kwargs=kwargs)["forward"]


@pytest.mark.parametrize("has_example", [True, False])
def test_keyword_inputs_get_the_arrays_of_their_names(
    has_example, example, program, tmp_path
):
    path = tmp_path / "inputs.npz"
    arrays = {"x": 1, "a_k": 2, "a_l": 3, "b": 4}
    np.savez(path, **{k: np.array([v], "float32") for k, v in arrays.items()})
    given = example if has_example else (None, {})
    args, kwargs = read_inputs(path, "forward", program, given)
    assert Keywords()(*args, **kwargs).item() == 2 * (1 + 20 + 300 + 4000)


def test_damaged_archives_are_input_errors(tmp_path):
    path = tmp_path / "inputs.npz"
    np.savez_compressed(path, x=np.arange(5000) % 97)
    content = path.read_bytes()
    generator = random.Random(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        damaged[generator.randrange(len(damaged))] ^= generator.randrange(1, 256)
        path.write_bytes(damaged)
        try:
            read_arrays(path)
        except InputError as error:
            assert "is not a readable .npz file" in str(error)
            refused += 1

    assert refused > 200
