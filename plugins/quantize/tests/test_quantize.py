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
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(2, 6, generator=generator),) for _ in range(count)]


def test_batches_are_counted_and_the_model_is_not_changed():
    module = net()
    seen = []
    before = {k: v.clone() for k, v in module.state_dict().items()}
    delegraph.quantize(
        module, batches(), progress=lambda done, total: seen.append((done, total))
    )
    delegraph.quantize(
        module,
        iter(batches(2)),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(1, 3), (2, 3), (3, 3), (1, None), (2, None)]
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())


def test_layers_are_not_run_while_a_lowering_runs(monkeypatch):
    """torch's Interpreter notes the metadata of the node that it runs where a tracer in
    another thread finds it.
    """
    module = net()
    note = torch.fx.traceback.set_current_meta
    held = []

    def watched(*args, **kwargs):
        held.append(TRACING.is_mine())
        return note(*args, **kwargs)

    quantized = delegraph.quantize(module, batches(1))
    monkeypatch.setattr(torch.fx.traceback, "set_current_meta", watched)
    delegraph.quantization_errors(module, quantized, batches(1), options=INT)
    assert held and all(held)


def test_convolutions_with_shared_weights_fold_separate_batch_norms():
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 3, 1)
    norms = [nn.BatchNorm2d(3), nn.BatchNorm2d(3)]
    nn.init.constant_(norms[0].weight, 3.0)
    nn.init.constant_(norms[1].bias, 2.0)
    module = nn.Sequential(conv, norms[0], conv, norms[1]).eval()
    given = [torch.randn(2, 3, 4, 4) for _ in range(2)]
    program = delegraph.quantize(module, given)
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


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def forward(self, x, *, scale, shift=None):
        return self.inner(x) * scale


def test_batches_by_name():
    torch.manual_seed(0)
    module, (x,) = Named().eval(), batches(1)[0]
    given = [{"x": x, "scale": torch.rand(2, 4)}, {"scale": torch.rand(2, 4), "x": -x}]
    program = delegraph.quantize(module, given)
    assert all(
        row.snr > 30
        for row in delegraph.quantization_errors(module, program, given).layers
    )
    exported = torch.export.export(module, (), given[0])
    again = delegraph.quantize(exported, given)
    found = [delegraph.lower(made)(**given[1]) for made in (program, again)]
    assert torch.equal(*found)
    torch.testing.assert_close(found[0], module(**given[1]), rtol=0, atol=0.05)


def test_scales_come_from_all_batches():
    small = torch.linspace(0, 0.5, 12).reshape(2, 6)
    large = torch.linspace(0, 4, 12).reshape(2, 6)
    steps = []
    for given in ([small], [small, large]):
        program = delegraph.quantize(net(), given)
        steps.append(
            next(
                n.args[1]
                for n in program.graph.nodes
                if "quantize_per_tensor" in str(n.target)
            )
        )
    assert steps == pytest.approx([0.5 / 255, 4 / 255])


def test_weights_in_floats_are_gone():
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
def test_batches_that_do_not_fit(given, message):
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
    ids=["half", "moved", "quantized", "exported"],
)
def test_models_that_cannot_be_quantized(model, message):
    module = model()
    with pytest.raises(InputError, match=message):
        delegraph.quantize(
            module,
            (
                [torch.randn(2, 6, dtype=torch.half)]
                if "float16" in message
                else batches()
            ),
        )


@dataclass
class Answer:
    logits: torch.Tensor


class Answering(Net):
    def forward(self, x):
        return Answer(super().forward(x))


def test_a_dataclass_that_torch_does_not_know():
    hint = (
        r"(?s)Answer.*hint: for a dataclass:"
        r" torch\.export\.register_dataclass\(TheClass\)"
    )
    with pytest.raises(InputError, match=hint):
        delegraph.quantize(Answering().eval(), batches())


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 4)
        self.register_buffer("level", torch.zeros(2, 1))

    def forward(self, x):
        self.level[0].add_(1.0)
        return self.inner(x) * (self.level + 1)


def test_written_buffers_start_with_their_initial_value():
    module = Counting().eval()
    given = batches(4)
    program = delegraph.quantize(module, given)
    errors = delegraph.quantization_errors(module, program, given, options=INT)
    assert not module.level.any() and not program.state_dict["level"].any()
    lowered = delegraph.lower(program, options=INT)
    with torch.no_grad():
        for (x,) in given:
            torch.testing.assert_close(lowered(x), module(x), rtol=0, atol=0.1)
    assert not program.state_dict["level"].any() and errors.layers[-1].snr > 30


def test_sizes_that_vary():
    shapes = ({0: torch.export.Dim("n", min=2, max=9)},)
    given = [torch.randn(2, 6), torch.randn(5, 6)]
    program = delegraph.quantize(net(), given, dynamic_shapes=shapes)
    options = {"tosa": {"spec": "TOSA-1.1+INT+shape"}}
    errors = delegraph.quantization_errors(
        net(), program, given, dynamic_shapes=shapes, options=options
    )
    assert errors.layers[-1].snr > 30
    with pytest.raises(
        InputError, match=r"batch 1 has [^$]*hint: dynamic_shapes lets sizes vary"
    ):
        delegraph.quantization_errors(net(), program, given, options=options)


@pytest.mark.parametrize(
    ("given", "hint"), [(None, r"delegraph-quantize"), ("best", "torchao==")]
)
def test_without_torchao(monkeypatch, given, hint):
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(
        PluginUnavailable,
        match=f"needs torchao, which is not installed\n  hint: pip install .*{hint}",
    ):
        delegraph.quantize(net(), batches(), backend="tosa", quantizer=given)


def test_objects_that_are_no_quantizer_are_refused():
    with pytest.raises(OptionError, match="a Quantizer object of torchao; got 'best'"):
        delegraph.quantize(net(), batches(), quantizer="best")


class Careless:
    """A quantizer that is none of torchao's."""


class Unmade:
    def __init__(self):
        raise ValueError("no table")


def annotates_wrongly():
    from torchao.quantization.pt2e.quantizer import Quantizer

    class Wrong(Quantizer):
        def annotate(self, model):
            raise ValueError("no table")

        def validate(self, model):
            pass

    return Wrong()


@pytest.mark.parametrize(
    ("quantizer", "error", "message"),
    [
        (
            "Careless",
            ContractViolation,
            "Careless, the quantizer of in-process, does not derive from torchao's Quantizer",
        ),
        (
            "Unmade",
            PluginFailed,
            "making an object of Unmade .* raised ValueError: no table",
        ),
        (
            "annotates_wrongly",
            PluginFailed,
            "annotation of Wrong .* raised ValueError: no table",
        ),
    ],
)
def test_backends_with_faulty_quantizers_are_named(quantizer, error, message):
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


def test_a_backend_without_a_quantizer():
    with pytest.raises(OptionError, match="declares no quantizer"):
        delegraph.quantize(net(), batches(), backend="demo")


class Scaled(nn.Module):
    """One channel is far larger than the others, for which 8 bits of all are too few."""

    def __init__(self, by):
        super().__init__()
        self.register_buffer("by", torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, by]))

    def forward(self, x):
        return x * self.by


class Ragged(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(
            nn.Linear(6, 6), nn.Sequential(Scaled(400.0), nn.ReLU()), Scaled(1 / 400)
        )

    def forward(self, x):
        return self.blocks(x)


def raised(module, given, errors, count, setting):
    """Quantize with another precision of the worst modules."""
    from delegraph_tosa.quantizer import TOSAQuantizer

    quantizer = TOSAQuantizer()
    for name in errors.worst_modules(count):
        quantizer.set_module_name(name, setting)
    return delegraph.quantize(module, given, quantizer=quantizer)


def test_the_worst_modules_can_be_given_higher_precision():
    from delegraph_tosa.quantizer import Precision

    torch.manual_seed(0)
    module = Ragged().eval()
    given = batches()
    errors = delegraph.quantization_errors(
        module, delegraph.quantize(module, given), given, options=INT
    )
    modules = dict(module.named_modules())
    assert {row.module for row in errors.layers if row.module} <= modules.keys()
    assert (
        errors.worst_modules(1)[0] in ("blocks.2", "blocks.1.1")
        and "blocks.0 " in errors.to_text()
    )
    assert (
        errors.to_text().splitlines()[0].split()[0] == "module"
        and errors.to_json()["layers"][0]["module"]
    )
    precise = raised(module, given, errors, 3, Precision(activations=torch.int16))
    assert torch.int16 in {
        n.meta["val"].dtype
        for n in precise.graph.nodes
        if isinstance(n.meta.get("val"), torch.Tensor)
    }
    quantizes = [
        sum("quantize_per_tensor" in str(n.target) for n in program.graph.nodes)
        for program in (
            raised(module, given, errors, 2, None),
            delegraph.quantize(module, given),
        )
    ]
    assert quantizes[0] < quantizes[1] and errors.worst_modules(0) == []


class Limited(nn.Module):
    """The limit loses most, since so few of its values are large; it is computed with
    the convolution before it.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.act = nn.ReLU6()
        self.second = nn.Conv2d(8, 8, 3)
        self.last = nn.ReLU6()

    def forward(self, x):
        return self.last(self.second(self.act(self.first(x) * 3)))


def test_raised_activations_include_their_layer():
    torch.manual_seed(0)
    module = Limited().eval()
    generator = torch.Generator().manual_seed(1)
    given = [(torch.randn(1, 3, 8, 8, generator=generator),) for _ in range(3)]
    quantized = delegraph.quantize(module, given)
    errors = delegraph.quantization_errors(module, quantized, given, options=INT)
    joined = {row.module: row.joined for row in errors.layers}
    assert joined["last"] == ("second",) and all(
        m not in modules for m, modules in joined.items()
    )
    jsonschema.validate(json.loads(json.dumps(errors.to_json())), SCHEMA)
    worst = errors.worst_modules(1)
    assert len(worst) == (2 if worst[0] == "last" else 1)
    before = errors.layers[-1].snr
    for count in (1, 2):
        better = raised(module, given, errors, count, None)
        after = delegraph.quantization_errors(module, better, given)
        assert after.layers[-1].snr > before - 0.5, (
            f"{count} modules in floats: {before} dB before"
        )


def test_errors_name_the_worst_layer():
    module = net()
    with torch.no_grad():
        # per tensor, this row takes the steps of all others
        module.second.weight[0] *= 1000
        module.second.bias.zero_()
    from delegraph_tosa.quantizer import Precision, TOSAQuantizer

    quantizer = TOSAQuantizer(Precision(per_channel=False))
    program = delegraph.quantize(module, batches(), quantizer=quantizer)
    errors = delegraph.quantization_errors(module, program, batches(), options=INT)
    assert [row.layer for row in errors.layers] == ["relu", "linear_1", "output 0"]
    relu, linear, output = errors.layers
    assert relu.snr > 30 and errors.worst(1)[0].snr == min(relu.snr, linear.snr)
    assert linear.source.startswith(
        "plugins/quantize/tests/test_quantize.py:"
    ) and linear.snr == pytest.approx(output.snr, abs=1e-3)
    with torch.no_grad():
        lowered = delegraph.lower(program, options=INT)
        got, wanted = (
            torch.cat([f(*b) for b in batches()]).double() for f in (lowered, module)
        )
    noise = (got - wanted).square().sum()
    assert output.snr == pytest.approx(
        float(10 * torch.log10(wanted.square().sum() / noise))
    )
    assert output.max_abs_error == pytest.approx(float((got - wanted).abs().max()))
    assert errors.worst(1)[0].layer in errors.to_text().splitlines()[-1]
    rows = errors.to_json()["layers"]
    assert rows[0]["snr"] == relu.snr
    data = json.loads(errors.to_model_explorer())
    assert data["graph"]["results"]["relu"]["value"] == relu.snr
    names = {node.name for node in program.graph.nodes}
    assert set(data["graph"]["results"]) <= names


def test_layers_that_only_move_integers_add_no_error():
    module = nn.Sequential(
        nn.Linear(6, 8), nn.Dropout(), nn.Unflatten(1, (2, 4)), nn.Linear(4, 4)
    ).eval()
    errors = delegraph.quantization_errors(
        module, delegraph.quantize(module, batches()), batches(), options=INT
    )
    assert [row.layer for row in errors.layers] == ["linear", "linear_1", "output 0"]


def test_errors_of_a_program_that_was_not_quantized():
    module = net()
    given = batches()
    with pytest.raises(InputError, match="has no quantized layer"):
        delegraph.quantization_errors(
            module, torch.export.export(module, given[0]), given
        )
    other = delegraph.quantize(net(), given)
    with pytest.raises(
        InputError,
        match="has a layer relu; the floating-point program has no layer of that name",
    ):
        delegraph.quantization_errors(nn.Linear(6, 4).eval(), other, given)
    with pytest.raises(InputError, match="must be an ExportedProgram; got Net"):
        delegraph.quantization_errors(other, net(), given)


def test_values_that_overflow_inside():
    class Square(nn.Module):
        def forward(self, x):
            return x * x

    with pytest.raises(
        InputError,
        match=r"mul was NaN or infinite during calibration[^$]*return x \* x",
    ):
        delegraph.quantize(Square().eval(), [torch.full((2, 6), 3e38)])


class Halves(nn.Module):
    """A part whose values may have no scale, beside one whose values have."""

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
def test_values_without_scale_stay_in_floats(observer, value, name):
    from delegraph_tosa.quantizer import Precision, TOSAQuantizer

    module = Halves().eval()
    given = [(x, torch.rand(2, 6)) for (x,) in batches()]
    given[1][1][0, 0] = value
    place = (
        rf"{name} was NaN or infinite during calibration \(\S*test_quantize.py:\d+\)"
    )
    with pytest.warns(DelegraphWarning, match=place) as warned:
        program = delegraph.quantize(
            module, given, quantizer=TOSAQuantizer(Precision(observer=observer))
        )
    assert str(warned[0].message).count(" was ") == 1, (
        "what follows from it is not named"
    )
    found = program.module(check_guards=False)(*given[0])
    wanted = module(*given[0])
    torch.testing.assert_close(found[1], wanted[1])
    torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=0.05)
    assert not torch.equal(found[0], wanted[0])
    (delegate,) = delegraph.lower(program, options=INT).delegates
    assert delegate.processed_bytes and torch.equal(
        module.line.weight, program.state_dict["line.weight"]
    )


def test_a_span_that_fp32_has_not_stays_in_floats():
    shares = (1, 0.99, 0.98)
    given = [
        (x, torch.tensor([[3e38, -3e38] * 3] * 2) * share)
        for (x,), share in zip(batches(), shares, strict=True)
    ]

    class Sums(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x, y):
            return self.net(x), y + 1

    with pytest.warns(
        DelegraphWarning, match="y has a range that float32 cannot represent"
    ):
        program = delegraph.quantize(Sums().eval(), given)
    assert torch.equal(
        program.module(check_guards=False)(*given[0])[1], given[0][1] + 1
    )


class Nested(nn.Module):
    """Branches in a branch, and in a loop, whose body torchao quantizes."""

    def forward(self, x):
        def inner(v):
            return torch.cond(v.sum() > 4, lambda u: u * 2, lambda u: u + 1, (v,))

        branched = torch.cond(x.sum() > 0, inner, lambda v: v.relu(), (x,))
        steps = torch.zeros((), dtype=torch.int64)
        _, looped = while_loop(
            lambda k, v: k < 2, lambda k, v: (k + 1, inner(v.tanh())), (steps, x)
        )
        return branched, looped


def test_branches_in_branches_and_loops():
    module = Nested().eval()
    some = [x.abs() for (x,) in batches()]
    # each branch has its turn
    given = [(scale * x,) for scale in (0.1, 1, -0.1) for x in some]
    program = delegraph.quantize(module, given)
    for (x,) in given:
        for found, wanted in zip(
            program.module(check_guards=False)(x), module(x), strict=True
        ):
            torch.testing.assert_close(found, wanted, rtol=0, atol=0.05)


def test_a_recurrent_layer_is_quantized_step_by_step():
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


def test_a_trained_network_keeps_its_accuracy():
    torch.manual_seed(0)
    model, images, labels = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(16, 4),
    ), *stripes(512)  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(12):
        for part, wanted in zip(images.split(64), labels.split(64), strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(part), wanted).backward()
            optimizer.step()
    model.eval()
    lowered = delegraph.lower(
        delegraph.quantize(model, images[:256].split(64)), options=INT
    )
    images, labels = stripes(512, seed=1)
    with torch.no_grad():
        floats = torch.cat([model(part) for part in images.split(64)]).argmax(1)
        found = torch.cat([lowered(part) for part in images.split(64)]).argmax(1)
    accuracy = [(guess == labels).double().mean().item() for guess in (floats, found)]
    assert accuracy[0] > 0.9 and accuracy[1] >= accuracy[0] - 0.01


def stripes(count, seed=0):
    """Noisy stripes in four directions, at any place: images [count,1,12,12] and their
    directions [count].
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
    """Runs ``delegraph lower m.py --quantize FILE``; gives its exit code, output and
    errors.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(MODEL)

    def run(file, *words):
        code = main(["lower", "m.py", "--backend", "tosa", "--quantize", file, *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_the_command_line_quantizes(command, tmp_path):
    np.savez(
        tmp_path / "c.npz",
        x=np.random.default_rng(0).normal(size=(5, 2, 6)).astype("float32"),
    )
    code, out, err = command("c.npz", "-o", "m.tosa", "--verify")
    assert (code, err) == (0, "") and "wrote m.tosa" in out, out + err
    assert (
        "note: quantized after 5 batches of c.npz; --verify compares with the quantized"
        " program" in out
    )
    assert delegraph.load(tmp_path / "m.tosa")(torch.zeros(2, 6))[0].shape == (2, 4)


def test_arrays_are_found_by_the_names_of_inputs(command, tmp_path):
    (tmp_path / "m.py").write_text(TWO_INPUTS)
    near = np.linspace(-1, 1, 12, dtype="float32").reshape(2, 1, 6)
    far = np.full((2, 1, 6), 50, "float32")
    np.savez(tmp_path / "named.npz", far=far, near=near)
    np.savez(tmp_path / "numbered.npz", near, far)
    np.savez(tmp_path / "other.npz", far=far, x=near)
    for file in ("named.npz", "numbered.npz"):
        code, out, err = command(file, "--option", "tosa.spec=TOSA-1.0+INT")
        steps = [
            float(step)
            for step in re.findall(
                r"input quantize_per_tensor\w* int8, scale ([\d.]+)", out
            )
        ]
        assert code == 0 and steps[0] < 0.01 and steps[1] > 0.1, out + err
    code, _, err = command("other.npz")
    assert (
        code == 1
        and "other.npz has the arrays far, x, and the inputs of the model are near, far"
        in err
    )


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
def test_calibration_files_that_do_not_fit(command, tmp_path, file, message):
    (tmp_path / "text.npz").write_text("no zip")
    np.savez(tmp_path / "rows.npz", np.zeros((5, 2, 6)), np.zeros((4, 2, 6)))
    np.savez(tmp_path / "flat.npz", x=np.zeros((2, 6), "float32"))
    np.savez(tmp_path / "empty.npz", x=np.zeros((0, 2, 6), "float32"))
    np.savez(tmp_path / "dtype.npz", x=np.zeros((1, 2, 6), "int64"))
    code, _, err = command(file)
    assert code != 0 and re.search(message, err) and err.count("error [") == 1


COMMAND_MODEL = """
import torch

def net():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    return module.eval(), (torch.randn(1, 3, 6, 6),)
"""


def test_saved_quantized_programs_lower_in_a_fresh_process(tmp_path):
    (tmp_path / "net.py").write_text(COMMAND_MODEL)
    np.savez(
        tmp_path / "c.npz",
        np.random.default_rng(0).standard_normal((4, 1, 3, 6, 6), dtype=np.float32),
    )

    def run(*words):
        given = [sys.executable, "-m", "delegraph", *map(str, words)]
        return subprocess.run(given, cwd=tmp_path, capture_output=True, text=True)

    made = run(
        "quantize",
        "net.py:net",
        "--backend",
        "tosa",
        "--calibration",
        "c.npz",
        "-o",
        "q.pt2",
    )
    assert (
        made.returncode == 0
        and "quantized after 4 batches" in made.stdout
        and "wrote q.pt2" in made.stdout
    ), made
    target = ("--backend", "tosa", "--require-full", "--verify")
    lowered = run("lower", "q.pt2", *target, "-o", "q.tosa", "-v")
    assert lowered.returncode == 0, lowered
    assert (
        re.search(r"needs \S*INT", lowered.stdout) and (tmp_path / "q.tosa").exists()
    ), lowered
    wrong = run(
        "quantize",
        "net.py:net",
        "--backend",
        "tosa",
        "--calibration",
        "c.npz",
        "-o",
        "q.onnx",
    )
    assert wrong.returncode == 2 and "must name a .pt2 file" in wrong.stderr
