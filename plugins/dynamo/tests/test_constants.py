"""What a warm call reads to see that no constant was written."""

import pytest
import torch
from delegraph_dynamo.constants import counters
from torch import nn


@pytest.mark.parametrize("tensor", [nn.Parameter(torch.ones(2, 3)), torch.ones(2, 3), torch.ones(3, 2).t()])
def test_a_counter_counts_what_is_written_to_its_tensor(tensor):
    [counter] = counters([tensor])
    assert type(counter) is torch.Tensor and counter._version == tensor._version
    for write in (lambda: tensor.mul_(2), lambda: tensor[0].zero_(), lambda: tensor.detach().add_(1)):
        before = counter._version
        with torch.no_grad():
            write()
        assert counter._version == tensor._version > before


def test_a_counter_keeps_no_memory_of_its_tensor():
    """A model that is moved to another dtype gets new memory, and the old one goes."""
    weight = nn.Parameter(torch.ones(1000))
    [counter] = counters([weight])
    assert counter.untyped_storage().nbytes() == 0
    weight.data = torch.zeros(1000)
    with torch.no_grad():
        weight.add_(1)
    assert counter._version == weight._version > 0


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_tensors_that_torch_cannot_empty_and_other_classes_count_for_themselves():
    class Other(torch.Tensor):
        pass

    tensors = [torch.eye(3).to_sparse_csr(), torch.eye(3).to_sparse(), torch.ones(2).as_subclass(Other)]
    assert all(counter is tensor for counter, tensor in zip(counters(tensors), tensors, strict=True))
