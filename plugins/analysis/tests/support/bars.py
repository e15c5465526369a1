"""Pictures of upright and of lying bars, and a network that tells them apart."""

import pytest
import torch

SIZE = 8


def pictures(count, seed):
    """Return (picture [1, 1, 8, 8], label [1]) pairs: label 1 has a lying bar."""
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for number in range(count):
        picture = 0.3 * torch.rand(1, 1, SIZE, SIZE, generator=generator)
        place = int(torch.randint(SIZE, (), generator=generator))
        label = number % 2
        bar = picture[0, 0, place] if label else picture[0, 0, :, place]
        bar += 0.7
        samples.append((picture, torch.tensor([label])))
    return samples


def trained():
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 5),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 2),
    )
    data = pictures(128, 1)
    inputs = torch.cat([picture for picture, _ in data])
    labels = torch.cat([label for _, label in data])
    optimizer = torch.optim.Adam(layers.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(layers(inputs), labels).backward()
        optimizer.step()
    return layers.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def network():
    return trained()
