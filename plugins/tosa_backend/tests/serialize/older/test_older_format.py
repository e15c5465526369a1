"""Commands on ``.tosa`` files work on files of TOSA 0.80, too."""

from __future__ import annotations

import re

import delegraph
import numpy as np
import pytest
import torch
from delegraph_tosa import convert, parse, read, render
from delegraph_tosa.format import TosaFormat
from torch import nn


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    torch.manual_seed(0)
    x = torch.randn(1, 3, 8, 8)
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
    ).eval()
    program = delegraph.quantize(module, [(x,)], backend="tosa")
    path = tmp_path_factory.mktemp("files") / "old.tosa"
    from delegraph_tosa.borders import integer_borders

    lowered = delegraph.lower(
        program,
        backends=["tosa"],
        options={"tosa": {"spec": "TOSA-0.80+BI"}},
        transforms=[integer_borders],
    )
    assert lowered.host_operators == 0, lowered.report
    lowered.save(path)
    return path, lowered


def test_inspection_shows_version_and_profile(quantized):
    path, _ = quantized
    found = TosaFormat.inspect(path)
    assert found.version == "0.80"
    assert found.profiles == ("BI",)
    assert found.extensions == ()
    assert "needs profile BI (TOSA 0.80)" in found.lines()
    assert list(found.operators)
    assert found.quantization.inputs
    summary = TosaFormat.summarize(path)
    assert summary.version == "0.80"
    assert summary.needs == {"profiles": ["BI"], "extensions": []}


def test_its_text_is_that_of_the_program(quantized):
    path, _ = quantized
    text = render(read(path.read_bytes()))
    assert render(parse(text)) == text
    new = render(read(convert(path.read_bytes(), "TOSA-1.0+INT").join()))
    assert without_names(new) == without_names(text)


def without_names(text):
    """In 1.0 all constants are tensors with a name."""
    return re.sub(r"%\w+", "%", text)


def test_older_file_computes_as_the_lowered_program(quantized):
    path, lowered = quantized
    inputs = TosaFormat.sample(path, 0)
    ((_, found),) = TosaFormat.run(path, inputs)
    given = [torch.from_numpy(array) for array in inputs]
    np.testing.assert_array_equal(found, lowered(*given).numpy())
    (loaded,) = delegraph.load(path)(*given)
    np.testing.assert_array_equal(found, loaded.numpy())


def test_the_scales_of_its_border_survive_conversion(quantized, tmp_path):
    path, _ = quantized
    new = tmp_path / "new.tosa"
    new.write_bytes(convert(path.read_bytes(), "TOSA-1.0+INT").join())
    assert TosaFormat.quantization(path) == TosaFormat.quantization(new)
    assert any(TosaFormat.quantization(path).inputs.values())


def test_the_official_tools_verify_a_1_0_version(quantized):
    path, _ = quantized
    for verdict in TosaFormat.verify(path):
        assert verdict.accepted
        assert verdict.detail.endswith("of the same program as TOSA 1.0")


def test_reports_name_the_profile_of_delegates(quantized):
    _, lowered = quantized
    assert "needs BI" in str(lowered.report)
