"""Lets torch retrace a program to make it functional, and checks the result.

This is the fallback of ``normalize``. torch's own functionalization has faults: it
takes the source of a broadcast ``copy_`` for the written tensor, and zeroes elements
outside of an ``as_strided``. So its result is compared with the program: first the
types, then the numbers of two calls. The second call sees the writes of the first one.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from ..delegate_protocol import Opaque
from ..errors import InputError
from ..exported_program import (
    CONSTANT_KINDS,
    MUTATIONS,
    constant_tensors,
    flat_arguments,
    outputs,
    placeholders,
    results,
    user_inputs,
    written_targets,
)
from ..higher_order_subgraphs import all_nodes, subgraphs_of
from ..operator_schema import may_be_random
from ..required_strides import Layout, arrange, result_layouts
from ..symbolic_sizes import SYMBOLS
from .aliases import families
from .operator_effects import written_arguments, written_names
from .writes import Reason

_CANNOT = "the program cannot be made functional"
_HINT = (
    "write that line without in-place calls, or report it to PyTorch:"
    " run_decompositions({}) changes the results"
)
HINT_FAILED = (
    "write that line without in-place calls; if example inputs or buffers share memory,"
    " give each its own"
)


def retrace(program: ExportedProgram, why: Reason) -> ExportedProgram:
    """Return ``program``, made functional by torch.

    ``why``: the reason for the retrace. Raises InputError if torch fails.
    """
    with warnings.catch_warnings():
        # torch warns about its own code; from 2.14 on, it erases a copy twice
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", "erase_node", UserWarning)
        try:
            functional: ExportedProgram = program.run_decompositions({})
        except Exception as e:  # torch raises many types of errors
            text = f"{_CANNOT}: {why.text}; torch failed, too: {_first_line(e)}"
            raise InputError(
                "input-invalid", text, source=why.source, hint=HINT_FAILED
            ) from e
        return functional


def check_retraced(
    program: ExportedProgram, retraced: ExportedProgram, why: Reason
) -> str | None:
    """Raise InputError if ``retraced`` computes something else than ``program``.

    Compares the types of the results, and then the numbers, by calling both programs.
    Returns why the numbers could not be compared; None if they were, and agree.
    ``why``: the reason for which ``program`` was retraced.
    """
    difference = _wrong_type(program, retraced)
    if difference is None:
        obstacle = _why_not_run(program)
        if obstacle is not None:
            return obstacle
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's operators, about values
            difference, obstacle = _compare(program, retraced)
        if difference is None:
            return obstacle
    text = (
        f"{_CANNOT}: {why.text}; torch's functional form differs from eager:"
        f" {difference}"
    )
    raise InputError("input-invalid", text, source=why.source, hint=_HINT)


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).partition("\n")[0]


def _wrong_type(program: ExportedProgram, retraced: ExportedProgram) -> str | None:
    """Describe a result of ``retraced`` of another type; None if there is none.

    The new value of an input or buffer must have the type of that input or buffer.
    Other results must have the types of the results of ``program``, by position.
    """
    # a mutation names a parameter or buffer by its target, an input by its node
    placeholder_of = {s.target or n.name: n for n, s in placeholders(retraced)}
    users_results = iter(results(program))
    for spec, value in outputs(retraced):
        if spec.kind in MUTATIONS:
            name = f"the new value of {spec.target}"
            wanted = _type(placeholder_of[str(spec.target)])
        else:
            name = "a result"
            wanted = _type(next(users_results, None))
        if wanted != _type(value):
            return f"{name} is {_type(value)} instead of {wanted}"
    return None


def _type(value: Any) -> str:
    """Return the dtype and shape of a node's value, as text.

    Symbolic sizes are "?", because their names differ in the two programs.
    """
    val = value.meta.get("val") if isinstance(value, Node) else None
    if not isinstance(val, torch.Tensor):
        return "no tensor of shape []"
    shape = [size if isinstance(size, int) else "?" for size in val.shape]
    return f"{val.dtype} of shape {shape}"


def _why_not_run(program: ExportedProgram) -> str | None:
    """Return why the program cannot be called for a comparison; None if it can."""
    examples = pytree.tree_leaves(program.example_inputs)
    for tensor in (*constant_tensors(program).values(), *examples):
        if isinstance(tensor, torch.Tensor):
            if isinstance(tensor, FakeTensor) or tensor.is_meta:
                return "its tensors have no values"
    if any(
        isinstance(m, Opaque) and m.keeps_state for m in program.graph_module.modules()
    ):
        return "it contains delegates that keep state"
    if any(
        s.kind not in (*CONSTANT_KINDS, InputKind.USER_INPUT)
        for s in program.graph_signature.input_specs
    ):
        return "an input is a custom object or an effect token, not a tensor"
    return None


def _compare(
    program: ExportedProgram, retraced: ExportedProgram
) -> tuple[str | None, str | None]:
    """Call both programs twice, and compare the results.

    Returns two texts: the difference, and the obstacle to a comparison. At most one of
    them is not None.
    """
    try:
        wanted, wanted_state = _call_twice(program, program)
    except Exception as e:  # operators and modules of the user may raise anything
        inputs = "its" if program.example_inputs else "made-up"
        return None, f"eager does not run on {inputs} inputs: {_first_line(e)}"
    try:
        got, got_state = _call_twice(retraced, program)
    except Exception as e:
        return f"it does not run: {_first_line(e)}", None
    results_per_call = len(wanted) // 2
    for k, (a, b) in enumerate(zip(got, wanted, strict=True)):
        if _differs(a, b):
            call, position = divmod(k, results_per_call)
            return f"result {position} of call {call + 1}", None
    if any(map(_differs, got_state, wanted_state)):
        return "the contents of inputs and buffers after two calls", None
    return None, None


def _call_twice(
    program: ExportedProgram, original: ExportedProgram
) -> tuple[list[Any], list[Any]]:
    """Call ``program`` twice; return its results, and the inputs and state afterwards.

    The state is parameters and buffers. Inputs and state are those of ``original``,
    which is ``program`` itself or its form before the retrace. They are copied, so that
    calls do not change them.
    """
    tensors = _tensors_safe_to_write(original)
    layouts: dict[Node, Layout] = {}
    # eager keeps its own strides; a retraced program gets the recorded ones, as a
    # lowered program does
    if program is not original:
        layouts = _layouts_that_matter(program)
    interpreter = _Interpreter(program, layouts)
    all_results: list[Any] = []
    inputs_after: list[Any] = []
    with _same_random_numbers(original), torch.no_grad():
        for _ in range(2):
            inputs = _copy(_inputs(original))
            names = [node.name for node in user_inputs(program)]
            input_of = dict(zip(names, inputs, strict=True))
            arguments = [
                tensors[s.target] if s.kind in CONSTANT_KINDS else input_of[n.name]
                for n, s in placeholders(program)
            ]
            returned = interpreter.run(*arguments, enable_io_processing=False)
            specs = program.graph_signature.output_specs
            pairs = list(zip(specs, returned, strict=True))
            all_results += _copy([v for s, v in pairs if s.kind not in MUTATIONS])
            # copy all new values before storing one, because a new value may be an
            # input that is written
            mutations = [(s, v.clone()) for s, v in pairs if s.kind in MUTATIONS]
            for spec, value in mutations:
                of_input = spec.kind is OutputKind.USER_INPUT_MUTATION
                stored_in = input_of if of_input else tensors
                stored_in[str(spec.target)].copy_(value)
            # a faulty write may reach the memory around an input's elements
            inputs_after += map(_memory, inputs)
    return all_results, [*inputs_after, *tensors.values()]


class _Interpreter(torch.fx.Interpreter):
    """Runs a program and gives values the layouts that ``layouts`` has for their nodes.

    Without that, torch's functional form of an ``as_strided`` may be right only by
    chance. A kernel of eager may happen to keep the storage offset of its argument, or
    the memory around the elements.
    """

    def __init__(
        self, program: ExportedProgram, layouts: Mapping[Node, Layout]
    ) -> None:
        """Interpret ``program``; nodes outside of ``layouts`` keep their layout."""
        super().__init__(program.graph_module)
        self._layouts = layouts

    def run_node(self, n: Node) -> Any:
        """Return the value of one node, in the layout for it if there is one."""
        value = super().run_node(n)
        return arrange(value, self._layouts.get(n))


def _layouts_that_matter(program: ExportedProgram) -> dict[Node, Layout]:
    """Return the recorded layouts of values with strides or memory that ``program``
    reads.
    """
    written = written_targets(program)
    buffers = [n for n, s in placeholders(program) if s.target in written]
    return result_layouts(program.graph_module, state=buffers)


def _memory(value: Any) -> Any:
    """Return the whole storage of a tensor as a row; other values as they are."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    length = value.untyped_storage().nbytes() // value.element_size()
    return value.as_strided((length,), (1,), 0)


def _same_random_numbers(program: ExportedProgram) -> AbstractContextManager[Any]:
    """Return a context that draws the same random numbers each time.

    At its end, it restores the state of torch's generator. It does nothing if the
    program draws no numbers.
    """
    if any(may_be_random(node.target) for node in all_nodes(program.graph_module)):
        return torch.random.fork_rng()
    return nullcontext()


def _tensors_safe_to_write(program: ExportedProgram) -> dict[Any, Any]:
    """Return name -> tensor for parameters, buffers and constants of a program.

    Tensors that a call may write are copied, so the program's own keep their values.
    Weights are not, because copies of all weights may not fit into memory.
    """
    written_nodes: list[Node] = []
    for node in program.graph.nodes:
        written_nodes += written_arguments(node)
        # a write in a subgraph may reach any operand of its call
        inside = chain.from_iterable(map(all_nodes, subgraphs_of(node)))
        if any(map(written_names, inside)):
            written_nodes += node.all_input_nodes
    # a write also reaches all tensors that share memory with the written one
    related = families(program.graph.nodes, written_nodes)
    may_be_written = set(chain.from_iterable(related))
    constants = constant_tensors(program)
    written = [node for node in constants if node in may_be_written]
    # copied in one go, so that those that share memory do so as copies
    copies = _copy([constants[node] for node in written])
    constants |= zip(written, copies, strict=True)
    specs = dict(placeholders(program))
    return {specs[node].target: tensor for node, tensor in constants.items()}


def _copy(values: Sequence[Any]) -> list[Any]:
    """Return copies of tensors; two that share memory have copies that share memory."""
    detached = [v.detach() if isinstance(v, torch.Tensor) else v for v in values]
    return copy.deepcopy(detached)


def _inputs(program: ExportedProgram) -> list[Any]:
    """Return the flat example inputs of a program; made-up ones if it has none."""
    if program.example_inputs is not None:
        return flat_arguments(program.call_spec.in_spec, *program.example_inputs)
    generator = torch.Generator().manual_seed(0)
    return [_make_up(n.meta.get("val"), generator) for n in user_inputs(program)]


def _make_up(val: Any, generator: torch.Generator) -> Any:
    """Return a random value of the type of ``val``, a recorded value.

    Integers are 0 or 1, which are more often valid as indices.
    """
    if not isinstance(val, torch.Tensor):
        return _hint_of(val)
    shape = [_hint_of(size) for size in val.shape]
    if val.is_floating_point() or val.is_complex():
        made = torch.randn(shape, generator=generator, dtype=torch.float32)
    else:
        made = torch.randint(0, 2, shape, generator=generator)
    return made.to(val.device, val.dtype)


def _hint_of(number: Any) -> Any:
    """Return torch's example of a symbolic number, and any other value unchanged."""
    return number.node.hint if isinstance(number, SYMBOLS) else number


def _differs(got: Any, wanted: Any) -> bool:
    """Return whether two results differ.

    Floats may differ by sqrt(eps of the dtype) times the largest finite absolute value
    in ``wanted``, because the same operators in another order round differently. NaN
    equals NaN.
    """
    if not isinstance(got, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return type(got) is not type(wanted) or bool(got != wanted)
    if got.dtype is not wanted.dtype or got.shape != wanted.shape:
        return True
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return not torch.equal(got, wanted)
    finite = wanted[wanted.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    tolerance = torch.finfo(wanted.dtype).eps ** 0.5 * scale
    return not torch.allclose(got, wanted, rtol=0, atol=tolerance, equal_nan=True)
