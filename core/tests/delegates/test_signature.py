"""Signatures and sealed blobs: what runtimes of engines check that trust what they are given."""

import json

import numpy as np
import pytest
import torch
from delegraph.backend import CompileSpec, from_specs, read_properties, to_specs
from delegraph.delegates import Border, Signature
from delegraph.errors import FormatError, InputError, OptionError, Unsupported
from delegraph.io.sealed import seal, unseal
from delegraph.partitioner import Asking
from delegraph.runtime import Compatibility
from torch.export import Dim


class Several(torch.nn.Module):
    def forward(self, x, short, flags):
        return x.sum(), short * 2, flags.any(), x.shape[0]


GIVEN = torch.randn(3, 4), torch.ones(2, dtype=torch.bfloat16), torch.ones(0, 5, dtype=torch.bool)


@pytest.fixture(scope="module")
def signature():
    exported = torch.export.export(Several(), GIVEN, dynamic_shapes=({0: Dim("n", max=9)}, None, None))
    return Signature.read(json.loads(json.dumps(Signature.of(exported).told)))


def test_a_signature_is_read_back_and_says_which_sizes_vary(signature):
    assert signature.inputs == (("float32", (-1, 4)), ("bfloat16", (2,)), ("bool", (0, 5)))
    assert signature.outputs == (("float32", ()), ("bfloat16", (2,)), ("bool", ()), ("int", ()))


def test_arguments_become_arrays_in_c_order(signature):
    x = torch.randn(4, 7).t()[:, :]
    arrays = signature.arrays((x, torch.full((1,), 1.5, dtype=torch.bfloat16).expand(2), GIVEN[2]))
    assert [a.dtype.name for a in arrays] == ["float32", "int16", "bool"]
    assert all(a.flags.c_contiguous for a in arrays) and np.array_equal(arrays[0], x.numpy())
    negative = torch._neg_view(torch.ones(3, 4))  # torch marks it as negated
    assert (signature.arrays((negative, *GIVEN[1:]))[0] == -1).all()
    assert signature.arrays((torch.ones(2, 4, requires_grad=True), *GIVEN[1:]))[0].sum() == 8


@pytest.mark.parametrize(
    "wrong", [torch.ones(3, 5), torch.ones(4), torch.ones(3, 4).double(), torch.ones(3, 4, device="meta"), 1.0, None]
)
def test_an_argument_of_another_type_is_an_input_error(signature, wrong):
    with pytest.raises(InputError, match="input 0: float32"):
        signature.arrays((wrong, *GIVEN[1:]))
    with pytest.raises(InputError, match="takes 3 inputs; 2 were given"):
        signature.arrays(GIVEN[:2])


def test_results_have_their_types_and_memory_of_their_own(signature):
    bits = np.array([0x3FC0, -0x4040], np.int16)
    total, short, flag, count = signature.results([np.float32(2.5).reshape(()), bits, np.uint8([1]), np.int64([3])])
    assert (total.item(), flag.item(), count, type(count)) == (2.5, True, 3, int) and total.shape == flag.shape == ()
    assert short.tolist() == [1.5, -1.5]
    bits[0] = 0
    assert short[0] == 1.5
    for wrong in (np.zeros(3, np.int16), np.zeros(2, np.int8)):
        with pytest.raises(FormatError, match="its signature says bfloat16"):
            signature.results([np.float32([0]), wrong, np.uint8([1]), np.int64([3])])


SIDES = ([["load", [1]]], [["float32", [-2]]], [["int", 3]], [3])


@pytest.mark.parametrize("told", [7, [], *([side, []] for side in SIDES)])
def test_a_signature_that_somebody_forged_is_a_format_error(told):
    with pytest.raises(FormatError):
        Signature.read(told)


def test_a_sealed_file_is_opened_whole_or_not_at_all(tmp_path):
    path = tmp_path / "m"
    path.write_bytes(b"engine's own")
    blob = seal(path, b"acme-1", {"a": [1]})
    assert (bytes(unseal(blob, b"acme-1")[0]), unseal(blob, b"acme-1")[1]) == (b"engine's own", {"a": [1]})
    for place in range(len(blob)):
        for damaged in (blob[:place], blob[:place] + bytes([blob[place] ^ 1]) + blob[place + 1 :]):
            with pytest.raises(FormatError):
                unseal(damaged, b"acme-1")


def test_a_file_is_sealed_with_its_signature_and_facts(signature, tmp_path):
    path = tmp_path / "m"
    path.write_bytes(b"engine's own")
    file, read, facts = Signature.unseal(signature.seal(path, b"acme-1", target="x"), b"acme-1")
    assert (bytes(file), read, facts) == (b"engine's own", signature, {"target": "x"})
    for told in (7, [], ["x", *signature.told], [{}], [{}, 3, 4]):
        path.write_bytes(b"engine's own")
        with pytest.raises(FormatError):
            Signature.unseal(seal(path, b"acme-1", told), b"acme-1")


def test_what_an_engine_takes_and_returns_is_compared_as_far_as_it_is_known(signature):
    inputs = [("float32", (3, 4)), None, ("bool", None)]
    outputs = [("float32", ()), ("bfloat16", (-1,)), ("bool", ()), ("int64", ())]
    assert signature.why_otherwise(inputs, iter(outputs)) is None
    assert signature.why_otherwise(inputs[:2], outputs) == "takes 2 values, where 3 are wanted"
    for wrong in (("float32", (2, 3, 4)), ("float32", (3, 5)), ("float16", (3, 4)), (None, (3, 4))):
        said = signature.why_otherwise([wrong, *inputs[1:]], outputs)
        assert said == f"takes {wrong[0]} {wrong[1]} at place 0, where float32 (-1, 4) is wanted"
    said = signature.why_otherwise(inputs, [*outputs[:3], ("float64", ())])
    assert said == "returns float64 () at place 3, where int () is wanted"


@pytest.mark.parametrize("bad", [2**31, -(2**31) - 1])
def test_an_int64_that_the_engine_does_not_hold_is_an_input_error(bad):
    signature = Signature((("int64", (-1,)), ("int", ())), ())
    fits = torch.tensor([2**31 - 1, -(2**31)])
    assert signature.arrays((fits, 3), int64_bits=32)[0].tolist() == fits.tolist()
    assert signature.arrays((torch.ones(0, dtype=torch.int64), 3), int64_bits=32)[0].size == 0
    for args in ((torch.tensor([0, bad]), 3), (fits, bad)):
        with pytest.raises(InputError, match=f"32 bits.*{bad}"):
            signature.arrays(args, int64_bits=32)
        signature.arrays(args)


def test_properties_are_words_and_numbers_of_names_that_are_known():
    assert read_properties("o", " A=1, B = x.y-z ,,", {"A", "B"}) == {"A": "1", "B": "x.y-z"}
    assert read_properties("o", "", {"A"}) == {}
    for text, said in (("A", "has no '='"), ("C=1", "does not set 'C'"), ("A=../x", "does not set 'A'"), ("A=", "'A'")):
        with pytest.raises(OptionError, match=said):
            read_properties("o", text, {"A"})


def test_settings_go_into_compile_specs_and_back():
    specs = [*to_specs("acme_", {"flags": "-ä"}), CompileSpec("tosa_spec", b"x")]
    assert from_specs(specs, "acme_", {"flags": "", "cpu": "any"}) == ({"flags": "-ä", "cpu": "any"}, specs[1:])
    wrong = [[CompileSpec("acme_x", b"")], specs[:1] * 2, [CompileSpec("acme_cpu", b"\xff")]]
    for given in wrong:
        with pytest.raises(OptionError):
            from_specs(given, "acme_", {"flags": "", "cpu": "any"})
    with pytest.raises(OptionError, match="tosa_spec"):
        from_specs(specs, "acme_", {"flags": ""}, only=True)
    for text in ("\0", "\udcff"):
        with pytest.raises(OptionError, match="'flags'"):
            to_specs("acme_", {"flags": text})


VERDICTS = {
    "acme 2.4.1": ("runs", "runs"),
    "acme 2.3": ("runs", "rebuild"),
    "acme 3.0": ("rebuild", "rebuild"),
    "x 2.4": (None, None),
    "": (None, None),
}


@pytest.mark.parametrize("compiled_by", VERDICTS)
def test_a_verdict_by_release(compiled_by):
    verdicts = [Compatibility.by_release(compiled_by, "acme 2.4.9", reads_older=o) for o in (True, False)]
    assert [v and v.verdict for v in verdicts] == [*VERDICTS[compiled_by]]


def test_a_compiler_is_asked_about_a_call_alone_and_once_about_equal_calls():
    class Model(torch.nn.Module):
        def forward(self, x):
            low, high = x.sin().sin().aminmax(dim=0)
            return low + 2, high, x.sin() + 3

    asked = []

    def compile(program):
        [call, *_] = [node for node in program.graph.nodes if node.op == "call_function"]
        asked.append((str(call.target), len(program.graph_signature.output_specs)))
        program.module()(*(torch.ones(n.meta["val"].shape) for n in program.graph.nodes if n.op == "placeholder"))
        if "add" in asked[-1][0]:
            raise Unsupported("unsupported", f"no sums with {call.args[1]}")

    exported = torch.export.export(Model(), (torch.ones(3),)).run_decompositions({})
    ask = Asking(compile)
    calls = [n for n in exported.graph.nodes if n.op == "call_function" and "getitem" not in str(n.target)]
    said = [ask(n) for n in calls if n.meta["val"] is not None]
    assert sorted(filter(None, said)) == ["no sums with 2", "no sums with 3"]
    assert asked.count(("aten.sin.default", 1)) == 1 and len(asked) == 4


def test_a_refusal_may_be_one_of_the_operator_whatever_the_shapes():
    asked = []

    def compile(program):
        asked.append(program)
        raise Unsupported("unsupported", "no rule")

    exported = torch.export.export(Two(), (torch.ones(3), torch.ones(4)))
    first, second = [n for n in exported.graph.nodes if n.op == "call_function"][:2]
    ask = Asking(compile, lambda node, why: why == "no rule")
    assert ask(first) == ask(second) == ask(first) == "no rule" and len(asked) == 1
    asked.clear()
    ask = Asking(compile, lambda node, why: False)
    assert ask(first) == ask(second) == "no rule" and len(asked) == 2


class Two(torch.nn.Module):
    def forward(self, x, y):
        return x.sin(), y.sin()


class Many(torch.nn.Module):
    def forward(self, x, y):
        low, high = y.aminmax(dim=0)
        return x.sin(), y.sin(), x.sin() + 2, y.cos() + x, y.sin().sin() + 3, low, high


def calls_of(model, *args):
    exported = torch.export.export(model, args).run_decompositions({})
    return exported, [n for n in exported.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]


@pytest.mark.parametrize("refused", ["", "add", "sin"])
def test_calls_of_one_operator_are_asked_about_together_and_alone_if_they_are_refused(refused):
    """Each gets the answer that it gets alone; a program has the operands of each of its calls, and runs."""
    asked = []

    def compile(program):
        calls = [n for n in program.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
        asked.append([str(n.target).split(".")[1] for n in calls])
        inputs = [torch.ones(n.meta["val"].shape) for n in program.graph.nodes if n.op == "placeholder"]
        assert len(inputs) == sum(len(n.all_input_nodes) for n in calls)
        assert len(program.module()(*inputs)) == len(program.graph_signature.output_specs)
        for call in calls:
            if call.args[1:] in [(3,), (2,)] and refused == "add":
                raise Unsupported("unsupported", f"no sum with {call.args[1]}")
            if call.all_input_nodes[0].meta["val"].shape == (4,) and refused == asked[-1][0] == "sin":
                raise Unsupported("unsupported", "no four")

    exported, calls = calls_of(Many(), torch.ones(3, 1), torch.ones(4))
    support = Asking(compile).after(lambda node: "no cos" if "cos" in node.name else None)
    support.begin(exported)
    together, asked[:] = list(asked), []
    answers = [support.why_not(node) for node in calls]
    assert asked == []
    alone = Asking(compile)
    assert answers == ["no cos" if "cos" in n.name else alone(n) for n in calls]
    assert sorted(map(sorted, together)) == sorted(
        [["aminmax"], ["add"] * 3, ["sin"] * 2]
        + ([["add"]] * 3 if refused == "add" else [["sin"]] * 2 if refused == "sin" else [])
    )


def test_what_is_no_call_of_the_program_or_is_asked_about_again_is_looked_at_as_it_is_then():
    exported, calls = calls_of(Two(), torch.ones(3), torch.ones(4))
    _, others = calls_of(Many(), torch.ones(3, 1), torch.ones(4))
    support = Asking(lambda program: None).after(lambda node: node.meta.get("why"))
    support.begin(exported)
    assert [support.why_not(node) for node in (*calls, *others)] == [None] * (len(calls) + len(others))
    calls[0].meta["why"] = "it has changed"
    assert support.why_not(calls[0]) == "it has changed"


def test_a_refusal_of_an_operator_ends_the_questions_about_it():
    asked = []

    def compile(program):
        asked.append(program)
        raise Unsupported("unsupported", "no rule")

    exported, calls = calls_of(Two(), torch.ones(3), torch.ones(4))
    support = Asking(compile, lambda node, why: why == "no rule").after(lambda node: None)
    support.begin(exported)
    assert [support.why_not(node) for node in calls] == ["no rule", "no rule"] and len(asked) == 1


def test_a_timed_signature_does_the_same_and_counts_by_border():
    plain = Signature((("float32", (2,)),), (("float32", (2,)), ("int", ())))
    timed, seconds = plain.timed()
    [array] = timed.arrays([torch.ones(2)])
    borders = Border("input", 0), Border("output", 0), Border("output", 1)
    assert {*seconds} == {*borders} and seconds[borders[0]] > 0 == seconds[borders[1]]
    one, two = timed.results(iter([array, np.array(3)]))
    assert one.tolist() == [1, 1] and two == 3 and all(seconds.values())
    before = dict(seconds)
    timed.results([array, np.array(3)])
    assert seconds[borders[1]] > before[borders[1]] and seconds[borders[0]] == before[borders[0]]
    several, seconds = Signature(plain.inputs * 2, ()).timed()
    several.arrays([torch.ones(2)] * 2)
    assert seconds == {}  # nobody knows which of them it took
    with pytest.raises(InputError):
        timed.arrays([torch.ones(3)])
    with pytest.raises(ValueError, match="zip"):
        timed.results([array])
