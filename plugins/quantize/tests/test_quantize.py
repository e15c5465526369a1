"""``delegraph.quantize`` and ``delegraph.quantization_errors`` with the TOSA backend."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import delegraph
import jsonschema
import numpy as np
import pytest
import torch
from delegraph.cli import main
from delegraph.errors import (
    ContractViolation,
    DelegraphWarning,
    InputError,
    OptionError,
    PluginFailed,
    PluginUnavailable,
)
from delegraph.plugin import BackendSpec, QuantizerSpec, hookimpl
from delegraph_programs import TRACING
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.utils.parametrizations import weight_norm

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "schema.json").read_text())
INT = {"tosa": {"spec": "TOSA-1.0+INT"}}
"""Options for a target that computes only integers."""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def net():
    torch.manual_seed(0)
    return Net().eval()


def batches(count=3):
    """Return calibration batches for ``Net``."""
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(2, 6, generator=generator),) for _ in range(count)]


def quantize_with_progress(given):
    """Quantize ``Net``, and return the arguments of each call of ``progress``."""
    calls = []
    delegraph.quantize(
        net(), given, progress=lambda done, total: calls.append((done, total))
    )
    return calls


def test_progress_counts_batches():
    assert quantize_with_progress(batches(3)) == [(1, 3), (2, 3), (3, 3)]


def test_progress_over_an_iterator_has_no_total():
    assert quantize_with_progress(iter(batches(2))) == [(1, None), (2, None)]


def test_quantization_does_not_change_the_model():
    module = net()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}

    delegraph.quantize(module, batches())

    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_layers_are_run_only_with_the_tracing_lock(monkeypatch):
    """Torch's Interpreter writes node metadata where a tracer of another thread reads."""
    module = net()
    quantized = delegraph.quantize(module, batches(1))
    set_current_meta = torch.fx.traceback.set_current_meta
    lock_was_held = []

    def watch(*args, **kwargs):
        lock_was_held.append(TRACING.is_mine())
        return set_current_meta(*args, **kwargs)

    monkeypatch.setattr(torch.fx.traceback, "set_current_meta", watch)
    delegraph.quantization_errors(module, quantized, batches(1), options=INT)

    assert lock_was_held
    assert all(lock_was_held)


def test_convolutions_with_shared_weights_fold_separate_batch_norms():
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 3, 1)
    norms = [nn.BatchNorm2d(3), nn.BatchNorm2d(3)]
    nn.init.constant_(norms[0].weight, 3.0)
    nn.init.constant_(norms[1].bias, 2.0)
    module = nn.Sequential(conv, norms[0], conv, norms[1]).eval()
    given = [torch.randn(2, 3, 4, 4) for _ in range(2)]

    program = delegraph.quantize(module, given)

    # signal-to-noise ratios, in dB
    errors = delegraph.quantization_errors(module, program, given, options=INT)
    assert all(row.snr > 30 for row in errors.layers)


@pytest.mark.parametrize(
    "layers",
    [
        lambda: (nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, track_running_stats=False)),
        lambda: (weight_norm(nn.Conv2d(3, 4, 1)), nn.BatchNorm2d(4)),
        lambda: (
            nn.Conv2d(3, 4, 1),
            nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        ),
    ],
    ids=["statistics of a batch", "computed weight", "instance norm"],
)
def test_a_norm_that_cannot_be_folded_stays(layers):
    torch.manual_seed(0)
    module = nn.Sequential(*layers(), nn.ReLU()).eval()
    given = [torch.randn(2, 3, 4, 4) for _ in range(2)]

    program = delegraph.quantize(module, given)

    assert any("_norm" in str(node.target) for node in program.graph.nodes)
    errors = delegraph.quantization_errors(module, program, given, options=INT)
    assert all(row.snr > 25 for row in errors.layers)


class WithKeywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def forward(self, x, *, scale, shift=None):
        return self.inner(x) * scale


def batches_by_name():
    """Return batches for ``WithKeywords``, whose arguments come in any order."""
    torch.manual_seed(0)
    x = torch.randn(2, 6)
    return [
        {"x": x, "scale": torch.rand(2, 4)},
        {"scale": torch.rand(2, 4), "x": -x},
    ]


def test_batches_may_be_mappings_of_arguments():
    torch.manual_seed(0)
    module = WithKeywords().eval()
    given = batches_by_name()

    program = delegraph.quantize(module, given)

    errors = delegraph.quantization_errors(module, program, given)
    assert all(row.snr > 30 for row in errors.layers)
    actual = delegraph.lower(program)(**given[1])
    torch.testing.assert_close(actual, module(**given[1]), rtol=0, atol=0.05)


def test_an_exported_program_takes_batches_by_name():
    torch.manual_seed(0)
    module = WithKeywords().eval()
    given = batches_by_name()
    exported = torch.export.export(module, (), given[0])

    from_module = delegraph.lower(delegraph.quantize(module, given))
    from_program = delegraph.lower(delegraph.quantize(exported, given))

    assert torch.equal(from_program(**given[1]), from_module(**given[1]))


def scale_of_input(program):
    [quantize, *_] = [
        node
        for node in program.graph.nodes
        if "quantize_per_tensor" in str(node.target)
    ]
    return quantize.args[1]


def test_scales_come_from_all_batches():
    up_to_half = torch.linspace(0, 0.5, 12).reshape(2, 6)
    up_to_four = torch.linspace(0, 4, 12).reshape(2, 6)

    one_batch = delegraph.quantize(net(), [up_to_half])
    both_batches = delegraph.quantize(net(), [up_to_half, up_to_four])

    # int8 has 255 steps
    assert scale_of_input(one_batch) == pytest.approx(0.5 / 255)
    assert scale_of_input(both_batches) == pytest.approx(4 / 255)


def test_a_quantized_program_has_no_weights_in_floats():
    program = delegraph.quantize(net(), batches())

    floats = [
        v
        for v in program.state_dict.values()
        if v.dtype is torch.float32 and v.dim() > 1
    ]
    assert not floats


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "there are no calibration batches"),
        (torch.randn(2, 6), "a series of batches, not Tensor"),
        (
            [torch.randn(2, 6), torch.randn(3, 6)],
            r"batch 1 has float32\[3, 6\], and the first one float32\[2, 6\]",
        ),
        (
            [torch.randn(2, 6), torch.zeros(2, 6, dtype=torch.int64)],
            "batch 1 has int64",
        ),
        (
            [torch.randn(2, 6), torch.full((2, 6), math.nan)],
            "x was NaN or infinite during calibration",
        ),
        ([torch.zeros(0, 6)], "calibration never computed a value of x"),
        ([torch.randn(2, 5)], "torch.export could not export Net"),
        (
            [(torch.randn(2, 6), torch.ones(2))],
            r"has 2 values, and Net takes \(x\)\s+hint: without labels",
        ),
        (
            [np.zeros((2, 6), np.float32)],
            (
                r"batch 0 has a numpy.ndarray, where the model takes tensors\s+hint:"
                r" torch.from"
            ),
        ),
        ({"x": torch.randn(2, 6)}, "a series of batches, not a single batch"),
        (
            [{"x": torch.randn(2, 6)}, {"y": torch.randn(2, 6)}],
            "batch 1 has other arguments than the first one",
        ),
        (
            [torch.randn(2, 6, device="meta")],
            "tensor 0 of calibration batch 0 has no data",
        ),
        (
            [torch.tensor([[3e38, -3e38] * 3]), torch.full((1, 6), math.inf)],
            "x was NaN or infinite during calibration",
        ),
    ],
)
def test_batches_that_do_not_fit_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        delegraph.quantize(net(), given)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            lambda: nn.Linear(6, 4).half().eval(),
            "only programs in float32 can be quantized; this one computes in float16",
        ),
        (
            lambda: nn.Identity().eval(),
            "the quantizer annotated no call of the program",
        ),
        (
            lambda: delegraph.quantize(net(), batches()),
            "the program is quantized already",
        ),
        (
            lambda: torch.export.export(net(), batches()[0]).module(),
            "training mode\n  hint: give the ExportedProgram",
        ),
    ],
    ids=["float16", "nothing to quantize", "quantized already", "exported module"],
)
def test_models_that_cannot_be_quantized_are_refused(model, message):
    module = model()
    given = batches()
    if "float16" in message:
        given = [x.half() for (x,) in given]

    with pytest.raises(InputError, match=message):
        delegraph.quantize(module, given)


@dataclass
class Answer:
    logits: torch.Tensor


class Answering(Net):
    def forward(self, x):
        return Answer(super().forward(x))


def test_an_unregistered_dataclass_is_refused_with_a_hint():
    hint = (
        r"(?s)Answer.*hint: for a dataclass:"
        r" torch\.export\.register_dataclass\(TheClass\)"
    )
    with pytest.raises(InputError, match=hint):
        delegraph.quantize(Answering().eval(), batches())


class Counting(nn.Module):
    """Adds 1 to the first row of a buffer in each call."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 4)
        self.register_buffer("level", torch.zeros(2, 1))

    def forward(self, x):
        self.level[0].add_(1.0)
        return self.inner(x) * (self.level + 1)


def test_quantization_keeps_the_initial_values_of_buffers():
    module = Counting().eval()
    given = batches(4)

    program = delegraph.quantize(module, given)
    errors = delegraph.quantization_errors(module, program, given, options=INT)

    assert not module.level.any()
    assert not program.state_dict["level"].any()
    assert errors.layers[-1].snr > 30


def test_a_quantized_program_updates_its_buffers_as_eager():
    module = Counting().eval()
    given = batches(4)
    program = delegraph.quantize(module, given)

    lowered = delegraph.lower(program, options=INT)

    with torch.no_grad():
        for (x,) in given:
            torch.testing.assert_close(lowered(x), module(x), rtol=0, atol=0.1)
    # the lowered program has a state of its own
    assert not program.state_dict["level"].any()


ANY_ROWS = ({0: torch.export.Dim("n", min=2, max=9)},)
OPTIONS_WITH_SHAPES = {"tosa": {"spec": "TOSA-1.1+INT+shape"}}


def test_batches_may_have_different_sizes():
    given = [torch.randn(2, 6), torch.randn(5, 6)]

    program = delegraph.quantize(net(), given, dynamic_shapes=ANY_ROWS)

    errors = delegraph.quantization_errors(
        net(), program, given, dynamic_shapes=ANY_ROWS, options=OPTIONS_WITH_SHAPES
    )
    assert errors.layers[-1].snr > 30


def test_different_sizes_need_dynamic_shapes():
    given = [torch.randn(2, 6), torch.randn(5, 6)]
    program = delegraph.quantize(net(), given, dynamic_shapes=ANY_ROWS)

    message = r"batch 1 has [^$]*hint: dynamic_shapes lets sizes vary"
    with pytest.raises(InputError, match=message):
        delegraph.quantization_errors(
            net(), program, given, options=OPTIONS_WITH_SHAPES
        )


@pytest.mark.parametrize(
    ("quantizer", "package"), [(None, "delegraph-quantize"), ("best", "torchao==")]
)
def test_missing_torchao_is_named_with_a_hint(monkeypatch, quantizer, package):
    monkeypatch.setitem(sys.modules, "torchao", None)  # an import of it fails

    message = f"needs torchao, which is not installed\n  hint: pip install .*{package}"
    with pytest.raises(PluginUnavailable, match=message):
        delegraph.quantize(net(), batches(), backend="tosa", quantizer=quantizer)


def test_objects_that_are_no_quantizer_are_refused():
    with pytest.raises(OptionError, match="a Quantizer object of torchao; got 'best'"):
        delegraph.quantize(net(), batches(), quantizer="best")


class NoQuantizer:
    """A class that does not derive from torchao's Quantizer."""


class FailsToInitialize:
    def __init__(self):
        raise ValueError("no table")


def make_quantizer_that_fails_to_annotate():
    from torchao.quantization.pt2e.quantizer import Quantizer

    class FailsToAnnotate(Quantizer):
        def annotate(self, model):
            raise ValueError("no table")

        def validate(self, model):
            pass

    return FailsToAnnotate()


@pytest.mark.parametrize(
    ("quantizer", "error", "message"),
    [
        (
            "NoQuantizer",
            ContractViolation,
            "NoQuantizer, the quantizer of in-process, does not derive from torchao's Quantizer",
        ),
        (
            "FailsToInitialize",
            PluginFailed,
            "making an object of FailsToInitialize .* raised ValueError: no table",
        ),
        (
            "make_quantizer_that_fails_to_annotate",
            PluginFailed,
            "annotation of FailsToAnnotate .* raised ValueError: no table",
        ),
    ],
)
def test_errors_name_the_faulty_quantizer_of_a_backend(quantizer, error, message):
    registry = delegraph.Registry(discover=False)

    class Acme:
        @hookimpl
        def delegraph_backends(self):
            return [
                BackendSpec(
                    "acme",
                    "delegraph_demo.backend:BackendWithDemo",
                    "BackendWithDemo",
                    api=1,
                )
            ]

        @hookimpl
        def delegraph_quantizers(self):
            return [QuantizerSpec("acme", f"{__name__}:{quantizer}")]

    registry.register(Acme(), name="acme")

    with pytest.raises(error, match=message):
        delegraph.quantize(net(), batches(1), backend="acme", registry=registry)


def test_a_model_in_training_mode_is_refused():
    with pytest.raises(InputError, match="training mode"):
        delegraph.quantize(torch.nn.Sequential(net(), torch.nn.Dropout()), batches())


def test_a_backend_without_a_quantizer_is_refused():
    with pytest.raises(OptionError, match="declares no quantizer"):
        delegraph.quantize(net(), batches(), backend="demo")


class Scaled(nn.Module):
    """Makes one channel far larger or smaller than the others: too wide for 8 bits."""

    def __init__(self, by):
        super().__init__()
        self.register_buffer("by", torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, by]))

    def forward(self, x):
        return x * self.by


class Ragged(nn.Module):
    """A network whose modules ``blocks.1`` and ``blocks.2`` lose most in integers."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(
            nn.Linear(6, 6), nn.Sequential(Scaled(400.0), nn.ReLU()), Scaled(1 / 400)
        )

    def forward(self, x):
        return self.blocks(x)


@pytest.fixture(scope="module")
def ragged():
    torch.manual_seed(0)
    return Ragged().eval()


@pytest.fixture(scope="module")
def errors_of_ragged(ragged):
    program = delegraph.quantize(ragged, batches())
    return delegraph.quantization_errors(ragged, program, batches(), options=INT)


def quantize_with_worst_modules(module, given, errors, count, setting):
    """Quantize with another precision of the ``count`` worst modules; None is floats."""
    from delegraph_tosa.quantizer import TOSAQuantizer

    quantizer = TOSAQuantizer()
    for name in errors.worst_modules(count):
        quantizer.set_module_name(name, setting)
    return delegraph.quantize(module, given, quantizer=quantizer)


def test_errors_name_modules_of_the_model(ragged, errors_of_ragged):
    names = {row.module for row in errors_of_ragged.layers if row.module}
    assert names <= dict(ragged.named_modules()).keys()

    text = errors_of_ragged.to_text()
    assert text.splitlines()[0].split()[0] == "module"
    assert "blocks.0 " in text
    assert errors_of_ragged.to_json()["layers"][0]["module"]


def test_the_worst_modules_have_the_widest_ranges(errors_of_ragged):
    assert errors_of_ragged.worst_modules(1)[0] in ("blocks.2", "blocks.1.1")
    assert errors_of_ragged.worst_modules(0) == []


def test_the_worst_modules_can_be_quantized_to_16_bits(ragged, errors_of_ragged):
    from delegraph_tosa.quantizer import Precision

    program = quantize_with_worst_modules(
        ragged, batches(), errors_of_ragged, 3, Precision(activations=torch.int16)
    )

    values = [node.meta.get("val") for node in program.graph.nodes]
    dtypes = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    assert torch.int16 in dtypes


def test_the_worst_modules_can_stay_in_floats(ragged, errors_of_ragged):
    def count_quantize_calls(program):
        targets = [str(node.target) for node in program.graph.nodes]
        return sum("quantize_per_tensor" in target for target in targets)

    partly = quantize_with_worst_modules(ragged, batches(), errors_of_ragged, 2, None)

    whole = delegraph.quantize(ragged, batches())
    assert count_quantize_calls(partly) < count_quantize_calls(whole)


class Limited(nn.Module):
    """Two convolutions, each computed in one step with the activation after it.

    The activations lose most, because few of their values are large.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.act = nn.ReLU6()
        self.second = nn.Conv2d(8, 8, 3)
        self.last = nn.ReLU6()

    def forward(self, x):
        return self.last(self.second(self.act(self.first(x) * 3)))


@pytest.fixture(scope="module")
def limited():
    torch.manual_seed(0)
    return Limited().eval()


def images_of_limited():
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(1, 3, 8, 8, generator=generator),) for _ in range(3)]


@pytest.fixture(scope="module")
def errors_of_limited(limited):
    given = images_of_limited()
    quantized = delegraph.quantize(limited, given)
    return delegraph.quantization_errors(limited, quantized, given, options=INT)


def test_errors_name_modules_that_are_computed_with_a_module(errors_of_limited):
    joined = {row.module: row.joined for row in errors_of_limited.layers}

    assert joined["last"] == ("second",)
    for module, joined_modules in joined.items():
        assert module not in joined_modules


def test_errors_as_json_agree_with_the_schema(errors_of_limited):
    jsonschema.validate(json.loads(json.dumps(errors_of_limited.to_json())), SCHEMA)


def test_the_worst_modules_include_those_computed_with_them(errors_of_limited):
    worst = errors_of_limited.worst_modules(1)

    assert len(worst) == (2 if worst[0] == "last" else 1)


@pytest.mark.parametrize("count", [1, 2])
def test_modules_in_floats_do_not_increase_the_error(limited, errors_of_limited, count):
    given = images_of_limited()
    better = quantize_with_worst_modules(limited, given, errors_of_limited, count, None)

    after = delegraph.quantization_errors(limited, better, given)

    # half a dB may be chance
    assert after.layers[-1].snr > errors_of_limited.layers[-1].snr - 0.5


@pytest.fixture(scope="module")
def net_with_a_large_row():
    """A network whose last layer has one row that is 1000 times larger.

    With one scale for the tensor, the other rows have almost no steps.
    """
    module = net()
    with torch.no_grad():
        module.second.weight[0] *= 1000
        module.second.bias.zero_()
    return module


@pytest.fixture(scope="module")
def program_with_a_large_row(net_with_a_large_row):
    from delegraph_tosa.quantizer import Precision, TOSAQuantizer

    quantizer = TOSAQuantizer(Precision(per_channel=False))
    return delegraph.quantize(net_with_a_large_row, batches(), quantizer=quantizer)


@pytest.fixture(scope="module")
def errors_with_a_large_row(net_with_a_large_row, program_with_a_large_row):
    return delegraph.quantization_errors(
        net_with_a_large_row, program_with_a_large_row, batches(), options=INT
    )


def test_errors_are_listed_by_layer_with_source_lines(errors_with_a_large_row):
    layers = errors_with_a_large_row.layers
    assert [row.layer for row in layers] == ["relu", "linear_1", "output 0"]

    relu, linear, output = layers
    assert relu.snr > 30
    assert linear.source.startswith("plugins/quantize/tests/test_quantize.py:")
    assert linear.snr == pytest.approx(output.snr, abs=1e-3)  # the same tensor


def test_the_worst_layer_is_in_the_last_line(errors_with_a_large_row):
    [worst] = errors_with_a_large_row.worst(1)

    relu, linear, _ = errors_with_a_large_row.layers
    assert worst.snr == min(relu.snr, linear.snr)
    assert worst.layer in errors_with_a_large_row.to_text().splitlines()[-1]


def test_errors_of_outputs_are_those_of_the_lowered_program(
    net_with_a_large_row, program_with_a_large_row, errors_with_a_large_row
):
    lowered = delegraph.lower(program_with_a_large_row, options=INT)
    with torch.no_grad():
        actual = torch.cat([lowered(*batch) for batch in batches()]).double()
        expected = torch.cat([net_with_a_large_row(*b) for b in batches()]).double()

    difference = actual - expected
    snr = 10 * torch.log10(expected.square().sum() / difference.square().sum())
    output = errors_with_a_large_row.layers[-1]
    assert output.snr == pytest.approx(float(snr))
    assert output.max_abs_error == pytest.approx(float(difference.abs().max()))


def test_errors_are_written_for_model_explorer(
    program_with_a_large_row, errors_with_a_large_row
):
    data = json.loads(errors_with_a_large_row.to_model_explorer())

    results = data["graph"]["results"]
    relu = errors_with_a_large_row.layers[0]
    assert results["relu"]["value"] == relu.snr
    assert errors_with_a_large_row.to_json()["layers"][0]["snr"] == relu.snr
    assert results.keys() <= {n.name for n in program_with_a_large_row.graph.nodes}


def test_layers_that_only_move_integers_are_not_listed():
    moves = (nn.Dropout(), nn.Unflatten(1, (2, 4)))
    module = nn.Sequential(nn.Linear(6, 8), *moves, nn.Linear(4, 4)).eval()
    program = delegraph.quantize(module, batches())

    errors = delegraph.quantization_errors(module, program, batches(), options=INT)

    assert [row.layer for row in errors.layers] == ["linear", "linear_1", "output 0"]


def test_errors_of_a_program_without_quantized_layers_are_refused():
    module = net()
    given = batches()
    exported = torch.export.export(module, given[0])

    with pytest.raises(InputError, match="has no quantized layer"):
        delegraph.quantization_errors(module, exported, given)


def test_errors_against_another_model_are_refused():
    program = delegraph.quantize(net(), batches())
    other_model = nn.Linear(6, 4).eval()

    message = "has a layer relu; the floating-point program has no layer of that name"
    with pytest.raises(InputError, match=message):
        delegraph.quantization_errors(other_model, program, batches())


def test_errors_of_a_module_instead_of_a_program_are_refused():
    program = delegraph.quantize(net(), batches())

    with pytest.raises(InputError, match="must be an ExportedProgram; got Net"):
        delegraph.quantization_errors(program, net(), batches())


def test_values_that_overflow_inside_are_refused_with_their_line():
    class Square(nn.Module):
        def forward(self, x):
            return x * x

    large = torch.full((2, 6), 3e38)  # its square is beyond float32

    message = r"mul was NaN or infinite during calibration[^$]*return x \* x"
    with pytest.raises(InputError, match=message):
        delegraph.quantize(Square().eval(), [large])


class WithLogarithm(nn.Module):
    """A quantizable network, and a logarithm that may be infinite."""

    def __init__(self):
        super().__init__()
        self.net = net()
        self.line = nn.Linear(6, 4)

    def forward(self, x, y):
        return self.net(x), self.line(torch.log(y))


@pytest.mark.parametrize(
    ("observer", "value", "name"),
    [("minmax", 0.0, "log"), ("minmax", math.nan, "y"), ("histogram", math.inf, "y")],
    ids=["minus infinity inside", "NaN", "infinity"],
)
def test_values_without_a_scale_stay_in_floats(observer, value, name):
    from delegraph_tosa.quantizer import Precision, TOSAQuantizer

    module = WithLogarithm().eval()
    given = [(x, torch.rand(2, 6)) for (x,) in batches()]
    given[1][1][0, 0] = value
    quantizer = TOSAQuantizer(Precision(observer=observer))

    place = (
        rf"{name} was NaN or infinite during calibration \(\S*test_quantize.py:\d+\)"
    )
    with pytest.warns(DelegraphWarning, match=place) as warned:
        program = delegraph.quantize(module, given, quantizer=quantizer)

    # values that are infinite because of this one are not named
    assert str(warned[0].message).count(" was ") == 1
    in_integers, in_floats = program.module(check_guards=False)(*given[0])
    expected_of_net, expected_of_line = module(*given[0])
    torch.testing.assert_close(in_floats, expected_of_line)
    torch.testing.assert_close(in_integers, expected_of_net, rtol=0, atol=0.05)
    assert not torch.equal(in_integers, expected_of_net)
    assert torch.equal(module.line.weight, program.state_dict["line.weight"])
    (delegate,) = delegraph.lower(program, options=INT).delegates
    assert delegate.processed_bytes


def test_a_range_beyond_float32_stays_in_floats():
    class Sums(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x, y):
            return self.net(x), y + 1

    # y is from -3e38 to 3e38, and float32 ends at 3.4e38
    extremes = torch.tensor([[3e38, -3e38] * 3] * 2)
    given = []
    for (x,), share in zip(batches(), (1, 0.99, 0.98), strict=True):
        given.append((x, extremes * share))

    message = "y has a range that float32 cannot represent"
    with pytest.warns(DelegraphWarning, match=message):
        program = delegraph.quantize(Sums().eval(), given)

    _, in_floats = program.module(check_guards=False)(*given[0])
    assert torch.equal(in_floats, given[0][1] + 1)


class Nested(nn.Module):
    """A branch in a branch, and a branch in the body of a loop."""

    def forward(self, x):
        def inner(v):
            return torch.cond(v.sum() > 4, lambda u: u * 2, lambda u: u + 1, (v,))

        def body(step, v):
            return step + 1, inner(v.tanh())

        branched = torch.cond(x.sum() > 0, inner, lambda v: v.relu(), (x,))
        steps = torch.zeros((), dtype=torch.int64)
        _, looped = while_loop(lambda step, v: step < 2, body, (steps, x))
        return branched, looped


def test_branches_in_branches_and_loops_are_quantized():
    module = Nested().eval()
    positive = [x.abs() for (x,) in batches()]
    # with these factors, each branch is taken
    given = [(factor * x,) for factor in (0.1, 1, -0.1) for x in positive]

    program = delegraph.quantize(module, given)

    quantized = program.module(check_guards=False)
    for (x,) in given:
        torch.testing.assert_close(quantized(x), module(x), rtol=0, atol=0.05)


def test_a_quantized_recurrent_layer_is_delegated_whole():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 5, batch_first=True)

        def forward(self, x):
            return self.lstm(x)[0]

    torch.manual_seed(0)
    module = Tagger().eval()
    given = [torch.randn(1, 2, 4) for _ in range(3)]

    program = delegraph.quantize(module, given)

    lowered = delegraph.lower(program, options=INT)
    assert len(lowered.delegates) == 1, str(lowered.report)
    errors = delegraph.quantization_errors(module, program, given, options=INT)
    assert errors.layers[-1].snr > 25


def train_stripe_classifier(images, labels):
    """Return a small network that names the direction of stripes."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(12):
        for x, expected in zip(images.split(64), labels.split(64), strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), expected).backward()
            optimizer.step()
    return model.eval()


def accuracy(program, images, labels):
    with torch.no_grad():
        scores = torch.cat([program(batch) for batch in images.split(64)])
    return (scores.argmax(1) == labels).double().mean().item()


def test_a_trained_network_keeps_its_accuracy():
    torch.manual_seed(0)
    images, labels = stripes(512)
    model = train_stripe_classifier(images, labels)

    quantized = delegraph.quantize(model, images[:256].split(64))

    lowered = delegraph.lower(quantized, options=INT)
    test_set = stripes(512, seed=1)
    in_floats = accuracy(model, *test_set)
    assert in_floats > 0.9
    assert accuracy(lowered, *test_set) >= in_floats - 0.01


def stripes(count, seed=0):
    """Return images [count, 1, 12, 12] of noisy stripes, and their directions [count].

    A direction is a number from 0 to 3.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator)
    angles = labels * torch.pi / 4
    y, x = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    along = x * angles.cos()[:, None, None] + y * angles.sin()[:, None, None]
    shift = 6.3 * torch.rand(count, 1, 1, generator=generator)
    noise = 1.6 * torch.randn(count, 12, 12, generator=generator)
    return ((along * 1.6 + shift).sin() + noise)[:, None], labels


MODEL = """
import torch
def model():
    torch.manual_seed(0)
    return torch.nn.Linear(6, 4).eval(), (torch.randn(2, 6),)
"""

TWO_INPUTS = """
import torch
class Two(torch.nn.Module):
    def forward(self, near, far):
        return near.relu(), far.relu()
def model():
    return Two().eval(), (torch.ones(1, 6), torch.ones(1, 6))
"""


@pytest.fixture
def command(tmp_path, capsys, monkeypatch):
    """Return a function that runs ``delegraph lower m.py --quantize FILE``.

    It returns the exit code, the output and the errors.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(MODEL)

    def run(file, *words):
        code = main(["lower", "m.py", "--backend", "tosa", "--quantize", file, *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_the_command_line_quantizes(command, tmp_path):
    values = np.random.default_rng(0).normal(size=(5, 2, 6)).astype("float32")
    np.savez(tmp_path / "c.npz", x=values)

    code, out, err = command("c.npz", "-o", "m.tosa", "--verify")

    assert (code, err) == (0, ""), out + err
    assert "wrote m.tosa" in out
    note = (
        "note: quantized after 5 batches of c.npz; --verify compares with the quantized"
        " program"
    )
    assert note in out
    [result] = delegraph.load(tmp_path / "m.tosa")(torch.zeros(2, 6))
    assert result.shape == (2, 4)


NEAR = np.linspace(-1, 1, 12, dtype="float32").reshape(2, 1, 6)
FAR = np.full((2, 1, 6), 50, "float32")


@pytest.mark.parametrize("named", [True, False])
def test_calibration_arrays_belong_to_inputs_by_name_or_order(command, tmp_path, named):
    (tmp_path / "m.py").write_text(TWO_INPUTS)
    if named:
        np.savez(tmp_path / "c.npz", far=FAR, near=NEAR)
    else:
        np.savez(tmp_path / "c.npz", NEAR, FAR)

    code, out, err = command("c.npz", "--option", "tosa.spec=TOSA-1.0+INT")

    assert code == 0, out + err
    pattern = r"input quantize_per_tensor\w* int8, scale ([\d.]+)"
    near_scale, far_scale = map(float, re.findall(pattern, out))
    assert near_scale < 0.01  # 2 / 255
    assert far_scale > 0.1  # 50 / 255


def test_calibration_arrays_with_unknown_names_are_refused(command, tmp_path):
    (tmp_path / "m.py").write_text(TWO_INPUTS)
    np.savez(tmp_path / "c.npz", far=FAR, x=NEAR)

    code, _, err = command("c.npz")

    assert code == 1
    message = "c.npz has the arrays far, x, and the inputs of the model are near, far"
    assert message in err


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("none.npz", "there is no file none.npz"),
        ("m.py", "--quantize must name an .npz file; got 'm.py'"),
        ("text.npz", "text.npz is not an .npz file with numbers"),
        ("rows.npz", "rows.npz: all arrays need the same number of batches"),
        (
            "flat.npz",
            (
                r"flat.npz: a batch has inputs of the shapes \[\[6\]\], and the model's"
                r" example has \[\[2, 6\]\]"
            ),
        ),
        ("empty.npz", "there are no calibration batches"),
        (
            "dtype.npz",
            "dtype.npz: input 0 is int64, and the model's example is float32",
        ),
    ],
)
def test_calibration_files_that_do_not_fit_are_refused(
    command, tmp_path, file, message
):
    (tmp_path / "text.npz").write_text("no zip")
    np.savez(tmp_path / "rows.npz", np.zeros((5, 2, 6)), np.zeros((4, 2, 6)))
    np.savez(tmp_path / "flat.npz", x=np.zeros((2, 6), "float32"))
    np.savez(tmp_path / "empty.npz", x=np.zeros((0, 2, 6), "float32"))
    np.savez(tmp_path / "dtype.npz", x=np.zeros((1, 2, 6), "int64"))

    code, _, err = command(file)

    assert code != 0
    assert re.search(message, err), err
    assert err.count("error [") == 1


COMMAND_MODEL = """
import torch

def net():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    return module.eval(), (torch.randn(1, 3, 6, 6),)
"""


def run_delegraph(folder, *words):
    """Run a command of delegraph in a process of its own."""
    command = [sys.executable, "-m", "delegraph", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def quantize_command(folder, output):
    """Run ``delegraph quantize`` with a network and calibration data in the folder."""
    (folder / "net.py").write_text(COMMAND_MODEL)
    values = np.random.default_rng(0).standard_normal((4, 1, 3, 6, 6), np.float32)
    np.savez(folder / "c.npz", values)
    words = ("--backend", "tosa", "--calibration", "c.npz", "-o", output)
    return run_delegraph(folder, "quantize", "net.py:net", *words)


def test_saved_quantized_programs_lower_in_a_fresh_process(tmp_path):
    quantized = quantize_command(tmp_path, "q.pt2")
    assert quantized.returncode == 0, quantized
    assert "quantized after 4 batches" in quantized.stdout
    assert "wrote q.pt2" in quantized.stdout

    words = ("--backend", "tosa", "--require-full", "--verify", "-o", "q.tosa", "-v")
    lowered = run_delegraph(tmp_path, "lower", "q.pt2", *words)

    assert lowered.returncode == 0, lowered
    assert re.search(r"needs \S*INT", lowered.stdout), lowered
    assert (tmp_path / "q.tosa").exists()


def test_quantized_programs_are_saved_only_as_pt2_files(tmp_path):
    quantized = quantize_command(tmp_path, "q.onnx")

    assert quantized.returncode == 2
    assert "must name a .pt2 file" in quantized.stderr
