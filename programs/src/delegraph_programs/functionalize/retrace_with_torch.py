"""The fallback: torch retraces a program, and the result is checked.

torch's own functionalization has faults. It takes the source of a broadcast ``copy_``
for the written tensor, and zeroes elements outside of windows. So its result is
compared with the program: first the types, then the numbers of two calls. The second
call sees the writes of the first one.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
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
    constant_tensor,
    flat_arguments,
    output_values,
    placeholders,
    user_inputs,
    written_targets,
)
from ..higher_order_subgraphs import all_nodes, subgraphs_of
from ..required_strides import Layout, arrange, result_layouts
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
        # torch's own, about its own code
        warnings.simplefilter("ignore", FutureWarning)
        # as above: torch from 2.14 on erases a copy twice
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
    wrong = _wrong_type(program, retraced)
    doubt = None if wrong else _why_not_run(program)
    if not wrong and not doubt:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's operators, about values
            wrong, doubt = _compare(program, retraced)
    if wrong:
        text = (
            f"{_CANNOT}: {why.text}; torch's functional form differs from eager:"
            f" {wrong}"
        )
        raise InputError("input-invalid", text, source=why.source, hint=_HINT)
    return doubt


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).partition("\n")[0]


def _wrong_type(program: ExportedProgram, retraced: ExportedProgram) -> str | None:
    """Describe a result of ``retraced`` with another dtype or shape; None if there is
    none.

    The new value of an input or buffer must have the type of that input or buffer.
    Other results must have the types of the results of ``program``, by position.
    """
    # the specs of mutations refer to these names
    placeholder_of: dict[Any, Any] = {
        s.target or n.name: n for n, s in placeholders(retraced)
    }
    placeholder_of |= {n.name: n for n in user_inputs(retraced)}
    # the user's results of ``program``, in order
    results = iter([v for s, v in _outputs(program) if s.kind not in MUTATIONS])
    for spec, value in _outputs(retraced):
        if spec.kind in MUTATIONS:
            name = f"the new value of {spec.target}"
            wanted = placeholder_of[str(spec.target)]
        else:
            name = "a result"
            wanted = next(results, None)
        if _type(wanted) != _type(value):
            return f"{name} is {_in_words(value)} instead of {_in_words(wanted)}"
    return None


def _outputs(program: ExportedProgram) -> Iterator[tuple[Any, Any]]:
    """Return pairs of the spec and the value of each output of a program."""
    return zip(
        program.graph_signature.output_specs, output_values(program), strict=True
    )


def _type(value: Any) -> Any:
    """Return dtype and shape of a node's value; None if it is no tensor.

    Symbolic sizes are "?", because their names differ.
    """
    val = value.meta.get("val") if isinstance(value, Node) else None
    if not isinstance(val, torch.Tensor):
        return None
    return val.dtype, [size if isinstance(size, int) else "?" for size in val.shape]


def _in_words(value: Any) -> str:
    """Return the dtype and shape of a node's value, as text."""
    dtype, shape = _type(value) or ("no tensor", [])
    return f"{dtype} of shape {shape}"


def _why_not_run(program: ExportedProgram) -> str | None:
    """Return why the program cannot be called for a comparison; None if it can."""
    tensors = [
        constant_tensor(program, s)
        for _, s in placeholders(program)
        if s.kind in CONSTANT_KINDS
    ]
    inputs = [
        t
        for t in pytree.tree_leaves(program.example_inputs)
        if isinstance(t, torch.Tensor)
    ]
    if any(isinstance(t, FakeTensor) or t.is_meta for t in (*tensors, *inputs)):
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

    Returns two texts: the difference, and why the results cannot be compared. At most
    one of them is not None.
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
    per_call = len(wanted) // 2
    for k, (a, b) in enumerate(zip(got, wanted, strict=True)):
        if _differs(a, b):
            return f"result {k % per_call} of call {k // per_call + 1}", None
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
    # eager keeps its own strides; a retraced program gets the recorded ones, as a
    # lowered program does
    interpreter = _Interpreter(
        program, {} if program is original else _layouts_that_matter(program)
    )
    results: list[Any] = []
    inputs_after: list[Any] = []
    with _same_random_numbers(original), torch.no_grad():
        for _ in range(2):
            inputs = _copy(_inputs(original))
            input_of = {
                n.name: value
                for n, value in zip(user_inputs(program), inputs, strict=True)
            }
            arguments = []
            for node, spec in placeholders(program):
                is_state = spec.kind in CONSTANT_KINDS
                arguments.append(
                    tensors[spec.target] if is_state else input_of[node.name]
                )
            returned = interpreter.run(*arguments, enable_io_processing=False)
            pairs = list(
                zip(program.graph_signature.output_specs, returned, strict=True)
            )
            results += _copy([v for s, v in pairs if s.kind not in MUTATIONS])
            # all new values are read before any is stored: one may be an input that
            # another is stored to
            for spec, value in [
                (s, v.clone()) for s, v in pairs if s.kind in MUTATIONS
            ]:
                of_input = spec.kind is OutputKind.USER_INPUT_MUTATION
                stored_in = input_of if of_input else tensors
                stored_in[str(spec.target)].copy_(value)
            # the memory around an input's elements is the caller's too
            inputs_after += map(_memory, inputs)
    return results, [*inputs_after, *tensors.values()]


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
        layout = self._layouts.get(n)
        return value if layout is None else arrange(value, layout)


def _layouts_that_matter(program: ExportedProgram) -> dict[Node, Layout]:
    """Return the recorded layouts of values with strides or memory that ``program``
    reads.
    """
    written = written_targets(program)
    buffers = [n for n, s in placeholders(program) if s.target in written]
    return result_layouts(program.graph_module, state=buffers)


def _memory(value: Any) -> Any:
    """Return the whole storage of a tensor as a row; other values as they are.

    The row has the memory around the tensor's elements, too.
    """
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    return value.as_strided(
        (value.untyped_storage().nbytes() // value.element_size(),), (1,), 0
    )


def _same_random_numbers(program: ExportedProgram) -> AbstractContextManager[Any]:
    """Return a block that draws the same random numbers each time.

    It restores the caller's generator. If the program draws no numbers, it does
    nothing.
    """
    tags = (getattr(n.target, "tags", ()) for n in all_nodes(program.graph_module))
    if any(torch.Tag.nondeterministic_seeded in t for t in tags):
        return torch.random.fork_rng()
    return nullcontext()


def _tensors_safe_to_write(program: ExportedProgram) -> dict[Any, Any]:
    """Return name -> tensor for parameters, buffers and constants of a program.

    Tensors that a call of the program may write are copied, so the program's own keep
    their values.
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
    constants = [(n, s) for n, s in placeholders(program) if s.kind in CONSTANT_KINDS]
    tensors: dict[Any, Any] = {
        spec.target: constant_tensor(program, spec) for _, spec in constants
    }
    # copied in one go, so that those that share memory do so as copies
    written = [spec.target for node, spec in constants if node in may_be_written]
    tensors |= zip(written, _copy([tensors[name] for name in written]), strict=True)
    return tensors


def _copy(values: Sequence[Any]) -> list[Any]:
    """Return copies of tensors; two that share memory have copies that share memory."""
    return copy.deepcopy(
        [v.detach() if isinstance(v, torch.Tensor) else v for v in values]
    )


def _inputs(program: ExportedProgram) -> list[Any]:
    """Return the flat example inputs of a program; made-up ones if it has none."""
    if program.example_inputs is not None:
        return flat_arguments(program.call_spec.in_spec, *program.example_inputs)
    generator = torch.Generator().manual_seed(0)
    return [_make_up(n.meta.get("val"), generator) for n in user_inputs(program)]


def _make_up(val: Any, generator: torch.Generator) -> Any:
    """Return a random value of the recorded type.

    Integers are 0 or 1, which are more often valid as indices.
    """
    if not isinstance(val, torch.Tensor):
        return _number(val)
    shape = [_number(d) for d in val.shape]
    if val.is_floating_point() or val.is_complex():
        return torch.randn(shape, generator=generator, dtype=torch.float32).to(
            val.device, val.dtype
        )
    return torch.randint(0, 2, shape, generator=generator).to(val.device, val.dtype)


def _number(d: Any) -> Any:
    """Return torch's hint for a symbolic number, and any other value unchanged."""
    if isinstance(d, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return d.node.hint
    return d


def _differs(got: Any, wanted: Any) -> bool:
    """Return whether two results differ.

    Floats may differ by sqrt(eps of the dtype), times the largest finite absolute value
    in ``wanted``: the same operators in another order round differently. NaN equals
    NaN.
    """
    if not isinstance(got, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return type(got) is not type(wanted) or bool(got != wanted)
    if got.dtype is not wanted.dtype or got.shape != wanted.shape:
        return True
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return not torch.equal(got, wanted)
    finite = wanted[wanted.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    return not torch.allclose(
        got,
        wanted,
        rtol=0,
        atol=torch.finfo(wanted.dtype).eps ** 0.5 * scale,
        equal_nan=True,
    )
