"""Every value of a program against float64: where it begins to differ, and what is
nobody's error.
"""

import json
from collections import Counter

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, DelegateMappingBuilder, PreprocessResult
from delegraph.discovery.registry import Registry
from delegraph.errors import ContractViolation, InputError
from delegraph.host.verify import Verification
from delegraph.partitioner import CapabilityPartitioner
from delegraph.runtime import BackendRuntime
from delegraph_analysis import verify_operators, verify_ties
from delegraph_analysis.accuracy import reference
from delegraph_analysis.accuracy.eager_values import is_same
from delegraph_analysis.accuracy.operators import severity
from torch.utils._python_dispatch import TorchDispatchMode

from core.tests.conftest import COMPILED

aten = torch.ops.aten


class TellingBackend(BackendDetails):
    """Its debug identifiers are the names of nodes."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        name = f"program {len(COMPILED)}".encode()
        COMPILED[name] = edge_program
        mapping = DelegateMappingBuilder()
        for node in (
            node for node in edge_program.graph.nodes if node.op == "call_function"
        ):
            mapping.insert_delegate_mapping_entry(nodes=node, identifier=node.name)
        return PreprocessResult(name, mapping.get_delegate_mapping())


class Telling(torch.fx.Interpreter):
    """Runs a program with a tanh that is a hundredth too large; tells values in a
    layout that is not torch's.
    """

    def run_node(self, node):
        value = super().run_node(node)
        if node.target is aten.tanh.default:
            value = value * 1.01
        if node.target is aten.argmax.default:  # the last of those that are equal
            value = (
                node.args[1] * 0
                + 2
                - super().fetch_args_kwargs_from_env(node)[0][0].flip(1).argmax(1)
            )
        if node.op == "call_function" and isinstance(value, torch.Tensor):
            self.told[node.name] = (
                value.permute(0, 2, 3, 1) if value.dim() == 4 else value,
            )
        return value


class TellingRuntime(BackendRuntime):
    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        observed = TellingRuntime.observe(processed_bytes, compile_specs, named_data)
        return lambda *args: observed(*args)[0]

    @staticmethod
    def observe(processed_bytes, compile_specs, named_data):
        program = COMPILED[processed_bytes]

        def call(*args):
            run = Telling(program.graph_module)
            run.told = {}
            return tuple(run.run(*program.state_dict.values(), *args)), run.told

        return call


class SilentRuntime(BackendRuntime):
    load = TellingRuntime.load


def lower_for_telling(model, inputs, runtime=TellingRuntime, why_not=lambda node: None):
    registry = Registry(discover=False)
    partitioner = CapabilityPartitioner(why_not, "TellingBackend")
    registry.register(
        TellingBackend, partitioner=partitioner, runtime=runtime, name="telling"
    )
    program = model.eval() if isinstance(model, torch.nn.Module) else model
    return delegraph.lower(program, inputs, backends=["telling"], registry=registry)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(2, 4, 3)

    def forward(self, x):
        return self.conv(x).relu().tanh().sigmoid().flatten(1)


@pytest.fixture(scope="module")
def image():
    return torch.randn(2, 2, 6, 6, generator=torch.Generator().manual_seed(0))


def test_first_and_worst_inside_of_a_delegate(image):
    """NHWC of these sizes, [2, 4, 4, 4], has the shape of NCHW too."""
    lowered = lower_for_telling(Net(), (image,))
    found = lowered.verify(image, per_operator=True)
    operators = found.operators
    assert [operator.operator.split(".")[1] for operator in operators.operators] == [
        "conv2d",
        "relu",
        "tanh",
        "sigmoid",
        "flatten",
    ]
    first = operators.first
    assert first.operator == "aten.tanh.default"
    assert first.where == "lowered_module_0"
    assert operators.worst is first
    assert first.figures.relative_error == pytest.approx(0.01, rel=0.1)
    assert "test_operators.py" in first.source.file
    assert "tanh()" in first.source.code
    assert not found.agrees()
    assert operators.not_compared == {}
    content = json.loads(json.dumps(found.to_json()))["operators"]
    assert content["first"]["node"] == "tanh"
    assert content["differing"] == 3
    assert len(content["values"]) == 5
    assert "first: tanh = aten.tanh.default" in str(found)
    page = lowered.report.to_html({"forward": found})
    assert "Accuracy by operator" in page
    assert ' e4"' in page
    assert ' e1"' in page
    assert "Accuracy by operator" not in lowered.report.to_html()


def test_only_borders_are_compared_without_an_observing_runtime(image):
    operators = (
        lower_for_telling(Net(), (image,), SilentRuntime)
        .verify(image, per_operator=True)
        .operators
    )
    assert [operator.operator for operator in operators.operators] == [
        "aten.flatten.using_ints"
    ]
    assert operators.not_compared == {
        "its runtime does not observe values inside the delegate": 4
    }


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            lambda outputs, told: (outputs, {k: v[0] for k, v in told.items()}),
            "returned Tensor for 'conv2d'",
        ),
        (
            lambda outputs, told: outputs,
            "returned tuple; it returns its outputs, and a mapping",
        ),
        (
            lambda outputs, told: (outputs, list(told)),
            "returned tuple; it returns its outputs, and a mapping",
        ),
    ],
)
def test_results_of_observed_delegates_are_checked(image, returned, message):
    """A tensor in place of a list of one was taken for its rows: nothing matched, and
    all seemed to be fused.
    """

    class WrongRuntime(TellingRuntime):
        @staticmethod
        def observe(processed_bytes, compile_specs, named_data):
            observed = TellingRuntime.observe(
                processed_bytes, compile_specs, named_data
            )
            return lambda *args: returned(*observed(*args))

    with pytest.raises(ContractViolation, match=message):
        lower_for_telling(Net(), (image,), WrongRuntime).verify(
            image, per_operator=True
        )


@pytest.mark.parametrize("thread_safe", [False, True])
def test_verifications_share_a_delegate_only_if_it_is_thread_safe(image, thread_safe):
    opened = []

    class Counting(TellingRuntime):
        @staticmethod
        def observe(processed_bytes, compile_specs, named_data):
            opened.append(processed_bytes)
            return TellingRuntime.observe(processed_bytes, compile_specs, named_data)

    Counting.thread_safe = thread_safe
    lowered = lower_for_telling(Net(), (image,), Counting)
    assert (
        lowered.verify(image, per_operator=True).operators
        == lowered.verify(image, per_operator=True).operators
    )
    assert len(opened) == (1 if thread_safe else 2)


class Counting32(TorchDispatchMode):
    """Counts calls in float32, by operator."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if isinstance(args[0], torch.Tensor) and args[0].dtype is torch.float32:
            self.counts[func] += 1
        return func(*args, **kwargs or {})


def test_eager_is_computed_apart_only_after_a_delegate_that_differs(image):
    """The relu of the delegate has eager's bits, its tanh has not. Another call of each
    is of eager itself.
    """
    taken = (aten.relu.default, aten.tanh.default)
    why_not = lambda n: None if n.target in taken else "no"
    lowered = lower_for_telling(Chain(), (image,), why_not=why_not)
    verify_operators(lowered, image)
    with Counting32() as mode:
        mode.counts = Counter()
        operators = verify_operators(lowered, image).operators
    assert [operator.where == "host" for operator in operators.operators] == [
        True,
        False,
        True,
        False,
        True,
    ]
    assert [
        mode.counts[op] for op in (aten.sin.default, aten.cos.default, aten.exp.default)
    ] == [2, 2, 3]
    assert operators.first.operator == "aten.tanh.default"
    assert operators.operators[-1].eager_error < 1e-6


class Chain(torch.nn.Module):
    def forward(self, x):
        return x.sin().relu().cos().tanh().exp()


def test_is_same_compares_types_shapes_and_bits():
    zero = torch.zeros(2, 2)
    nan = torch.full((), torch.nan)
    assert is_same(zero, zero.clone().T)
    assert is_same(nan, nan.clone())
    assert is_same(zero[:0], zero[:0])
    column = torch.ones(2, 3, 4)[:, :, :1]  # flat, its elements lie apart
    assert is_same(column, torch.ones(2, 3, 1))
    assert not is_same(column, torch.zeros(2, 3, 1))
    others = (-zero, zero[0], zero.int(), zero.to("meta"), zero.to_sparse(), 0.0)
    assert not any(is_same(zero, other) for other in others)


def test_operators_on_the_host_are_measured_with_equal_inputs(image):
    lowered = lower_for_telling(
        Net(),
        (image,),
        why_not=lambda n: None if n.target is aten.tanh.default else "no",
    )
    operators = lowered.verify(image, per_operator=True).operators
    assert [operator.where for operator in operators.operators] == [
        "host",
        "host",
        "lowered_module_0",
        "host",
        "host",
    ]
    assert operators.first.operator == "aten.tanh.default"
    assert [severity(o)[0] for o in operators.operators[:2]] == [False, False]


class Tied(torch.nn.Module):
    def forward(self, x):
        index = x.round().argmax(1)
        return index, x.new_zeros(3)[index] + index * 2


def test_ties_are_no_error_and_later_operators_are_compared():
    x = torch.tensor([[1.0, 1.1, 0.2], [0.0, 2.0, 1.0]])
    found = lower_for_telling(Tied(), (x,)).verify(x, per_operator=True)
    (tie,) = found.operators.remarked[:1]
    assert tie.figures.remark.startswith(
        "a tie in aten.argmax.default: 1 position of equal elements"
    )
    assert found.operators.differing() == []
    assert found.agrees()
    assert all(
        "with the program's decisions" in output.remark for output in found.outputs
    )


def test_ties_are_accepted_only_with_the_option():
    x = torch.tensor([[1.0, 1.1, 0.2], [0.0, 2.0, 1.0]])
    lowered = lower_for_telling(Tied(), (x,))
    plain = lowered.verify(x)
    assert not plain.agrees()
    assert not any(output.remark for output in plain.outputs)
    for found in (verify_ties(lowered, x), verify_operators(lowered, x, ties=True)):
        assert found.agrees()
        assert all(
            "compared with another run of eager at 1 of 2 places" in output.remark
            for output in found.outputs
        )


def test_pages_show_agreement_and_error_consistently():
    x = torch.tensor([[1.0, 1.1, 0.2], [0.0, 2.0, 1.0]])
    lowered = lower_for_telling(Tied(), (x,))
    page = lowered.report.to_html({"forward": verify_ties(lowered, x)})
    assert "The outputs agree with eager; largest error 0 of" in page
    assert "another run of eager at 1 of 2 places" in page
    page = lowered.report.to_html({"forward": lowered.verify(x)})
    assert "The outputs differ from eager" in page


class TiedOften(torch.nn.Module):
    """Of its eighty ties the program decides the first forty otherwise, and no run of
    eager just those.
    """

    def forward(self, x):
        return (
            (x.round().argmax(1) + 3 * x.round().topk(1, 1).indices[:, 0])
            * torch.arange(40)
        ).sum()


def test_decisions_that_eager_does_not_meet_by_chance_are_followed():
    x = torch.tensor([[1.0, 1.1, 0.2], [1.1, 1.0, 0.2]]).repeat(20, 1)
    assert not verify_ties(lower_for_telling(TiedOften(), (x,)), x).agrees()
    found = lower_for_telling(TiedOften(), (x,)).verify(x, per_operator=True)
    assert found.agrees()
    assert found.relative_error == 0
    assert "with the program's decisions" in found.outputs[0].remark


class Noisy(torch.nn.Module):
    def forward(self, x):
        return (x + torch.rand_like(x)).relu()


def test_random_operators_get_one_seed_and_are_noted():
    x = torch.zeros(4)
    lowered = lower_for_telling(
        Noisy(), (x,), why_not=lambda n: "no" if "rand" in str(n.target) else None
    )
    assert lowered.verify(x).relative_error == 0
    found = lowered.verify(x, per_operator=True)
    (random,) = found.operators.remarked
    assert random.figures.remark.startswith("random")
    assert found.operators.differing() == []


class Largest(torch.nn.Module):
    def forward(self, x):
        return x.max(1)[0]


def test_a_result_of_several_is_its_operators():
    found = (
        lower_for_telling(Largest(), (torch.ones(2, 3),))
        .verify(torch.ones(2, 3), per_operator=True)
        .operators
    )
    assert [operator.operator for operator in found.operators] == ["aten.max.dim"]


class Attention(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)


class WrongAttention(Telling):
    def run_node(self, node):
        value = super().run_node(node)
        return value * 1.1 if "attention" in str(node.target) else value


def test_attention_that_drops_nothing_out_is_not_random(monkeypatch):
    monkeypatch.setitem(globals(), "Telling", WrongAttention)
    x = torch.randn(1, 2, 3, 4, generator=torch.Generator().manual_seed(0))
    found = lower_for_telling(Attention(), (x,)).verify(x, per_operator=True).operators
    assert [o.operator.split(".")[1] for o in found.differing()] == [
        "scaled_dot_product_attention"
    ]
    assert found.remarked == []


def test_precision_lost_by_eager_is_no_error():
    class Cancelling(torch.nn.Module):
        def forward(self, x):
            return (x + 1e8) - 1e8

    x = torch.rand(8)
    found = lower_for_telling(Cancelling(), (x,)).verify(x, per_operator=True)
    last = found.operators.operators[-1]
    assert last.figures.relative_error > 0.5
    assert last.eager_error > 0.5
    assert last.agrees()


class Loops(torch.nn.Module):
    """Branches in a loop, and a map, with operators that the host keeps (lgamma) and
    such as are delegated.
    """

    def forward(self, x):
        def body(i, z):
            return i + 1, torch.cond(
                z.sum() > 0,
                lambda z: torch.tanh(z.lgamma() + 1),
                lambda z: z.exp() + 0.5,
                (z,),
            )

        _, z = torch.while_loop(lambda i, z: i < 6, body, (torch.tensor(0), x))
        return z, torch._higher_order_ops.map(lambda row: row.lgamma().sin(), x)


@pytest.fixture(scope="module")
def loops():
    """The program, which torch exports in seconds, and its input."""
    x = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)) + 0.5
    return torch.export.export(Loops().eval(), (x,)), x


class Branch(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: (x + 1,), lambda x: (x * 2 + 3,), (x,))


class LateRuntime(TellingRuntime):
    """Its tanh is wrong from the third call on."""

    @staticmethod
    def observe(processed_bytes, compile_specs, named_data):
        right = TellingRuntime.observe(processed_bytes, compile_specs, named_data)
        has_tanh = any(
            node.target is aten.tanh.default
            for node in COMPILED[processed_bytes].graph.nodes
        )
        calls = []

        def call(*args):
            calls.append(args)
            outputs, told = right(*args)
            factor = (1 if len(calls) >= 3 else 1 / 1.01) if has_tanh else 1
            return tuple(o * factor for o in outputs), {
                k: (v[0] * factor,) for k, v in told.items() if k == "tanh"
            }

        return call


def test_inside_of_branches_and_loops_by_iteration(loops):
    program, x = loops
    lowered = lower_for_telling(
        program,
        None,
        LateRuntime,
        lambda n: None if n.target in (aten.tanh.default, aten.exp.default) else "no",
    )
    verification = lowered.verify(x, per_operator=True)
    found = verification.operators
    rows = {(operator.where, operator.node): operator for operator in found.operators}
    branch = "while_loop_body_graph_0.true_graph_0"
    tanh = next(operator for operator in found.operators if "tanh" in operator.operator)
    assert tanh.where.startswith(f"{branch}.lowered_module_")
    assert tanh.where in {delegate.name for delegate in lowered.delegates}
    assert tanh.differs_from == 3
    assert 3 <= tanh.iteration <= 6
    assert found.first is tanh
    assert f"in iteration {tanh.iteration} (it differs from 3 on)" in str(tanh)
    kept = rows[f"host, in {branch}", "lgamma"]
    assert kept.agrees()
    assert kept.iteration in range(1, 7)
    assert kept.differs_from is None
    assert rows["host, in body_graph_0", "lgamma"].iteration in (1, 2, 3)
    assert rows["host", "while_loop"].iteration is None
    assert json.loads(json.dumps(tanh.to_json()))["differs_from"] == 3
    assert ' e4"' in lowered.report.to_html({"forward": verification})


def test_operators_that_are_not_observed_are_counted(loops, monkeypatch):
    monkeypatch.setattr(reference, "ITERATIONS", 4)
    program, x = loops
    found = (
        lower_for_telling(program, None, why_not=lambda n: "no")
        .verify(x, per_operator=True)
        .operators
    )
    assert set(found.not_compared) == {reference.LATER}
    assert found.not_compared[reference.LATER] > 2 * 3
    whole = lower_for_telling(Branch(), (x,)).verify(x, per_operator=True).operators
    assert whole.not_compared == {reference.WHOLE: 3}


def test_worst_verification_of_several_inputs_is_kept(image):
    lowered = lower_for_telling(Net(), (image,))
    found = [lowered.verify(scale * image, per_operator=True) for scale in (0.0, 1.0)]
    worst = type(found[0]).worst_of(found)
    assert worst.outputs == found[1].outputs
    assert worst.operators.first.figures == found[1].operators.first.figures


def test_runtimes_of_whole_files_refuse_values_of_operators(image):
    with pytest.raises(InputError, match="does not show the values"):
        lower_for_telling(Net(), (image,)).verify(
            image, runtime="executorch", per_operator=True
        )


def test_tolerance_is_that_of_the_type():
    near = torch.tensor([1.005])
    expected = torch.tensor([1.0])
    assert not Verification.of(near, expected).agrees()
    assert Verification.of(near, expected).agrees(0.01)
    assert Verification.of(near.half(), expected.half()).agrees()
    assert not Verification.of(torch.tensor([100001]), torch.tensor([100000])).agrees()
