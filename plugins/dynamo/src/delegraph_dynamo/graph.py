"""A graph of Dynamo and its lowered programs.

There is one program for each set of constants, since modules of equal form share a
graph. If such a program does not fit the sizes of a call, another one is lowered for
these sizes only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any, NoReturn

import delegraph
import torch
from delegraph import LoweredProgram, Report
from delegraph.errors import InputError
from delegraph_programs import TRACING, written_targets
from torch.export import Dim
from torch.fx import GraphModule
from torch.fx.traceback import preserve_node_meta
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .outputs import Results

_MOST_CONSTANTS = 256
"""The most sets of constants with a program.

Modules that share a graph, such as the layers of a model, have different sets.
"""
_MOST_SIZES = 8
"""The most programs for fixed sizes of a graph, as many as Dynamo recompiles."""
_version = attrgetter("_version")
_address = torch.Tensor.data_ptr
_Key = tuple[int, ...]
"""The identities of constants, which the program with that key keeps alive."""


class _Memory:
    """A record of the memory of constants, and of torch's counts of writes to them.

    The memory stays allocated as long as this object, so no other tensor gets the same
    address meanwhile.
    """

    def __init__(self, constants: Sequence[torch.Tensor]) -> None:
        self._constants = constants
        self._versions = [*map(_version, constants)]
        self._wrappers = [t for t in constants if is_traceable_wrapper_subclass(t)]
        self._inner = _all_inner_tensors(self._wrappers)
        self._inner_versions = [*map(_version, self._inner)]
        self._addressed = [t for t in (*constants, *self._inner) if _has_address(t)]
        self._addresses = [*map(_address, self._addressed)]
        self._storages = [t.untyped_storage() for t in self._addressed]

    def is_unchanged(self) -> bool:
        """Return whether all constants have the same memory, without counted writes."""
        if [*map(_version, self._constants)] != self._versions:
            return False
        if [*map(_address, self._addressed)] != self._addresses:
            return False
        return not self._wrappers or self._has_same_inner_tensors()

    def _has_same_inner_tensors(self) -> bool:
        """Return whether wrappers contain the same tensors, without counted writes.

        Quantized weights are such wrappers.
        """
        inner = _all_inner_tensors(self._wrappers)
        if len(inner) != len(self._inner) or not all(map(is_, inner, self._inner)):
            return False
        return [*map(_version, inner)] == self._inner_versions


def _inner_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that ``tensor`` wraps, at any depth."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return _all_inner_tensors([getattr(tensor, name) for name in names])


def _all_inner_tensors(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors that any of ``tensors`` wraps; plain tensors are their own."""
    return list(chain.from_iterable(map(_inner_tensors, tensors)))


def _has_address(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` has own memory, unlike wrappers and sparse tensors."""
    if is_traceable_wrapper_subclass(tensor) or tensor.layout is not torch.strided:
        return False
    try:
        tensor.untyped_storage()
        tensor.data_ptr()
    except (NotImplementedError, RuntimeError):
        return False
    return True


@dataclass(eq=False)
class _Program:
    """A lowered program with its constants, and a record of their memory.

    ``key``: the addresses of the constants' Python objects, which the program keeps
    alive. ``memory``: None if the user declared that constants are never written.
    ``run``: None if the graph could not be lowered, for the reason ``why_not``.
    ``fixed``: sizes of the inputs -> a program for these sizes only.
    """

    key: _Key
    constants: Sequence[torch.Tensor]
    memory: _Memory | None
    lowered: LoweredProgram | None
    why_not: str
    fixed: dict[tuple[Any, ...], _Program]

    def __post_init__(self) -> None:
        """Find the function to call once, and not in each call."""
        self.run: Any = self.lowered.method("forward") if self.lowered else None
        if self.run is not None and torch.is_autocast_enabled("cpu"):
            # the program has the casts of autocast as operators, so the host must not
            # add others
            self.run = torch.autocast("cpu", enabled=False)(self.run)

    def is_unchanged(self) -> bool:
        """Return whether its constants were not written, as far as torch counts."""
        return self.memory is None or self.memory.is_unchanged()


class CompiledGraph:
    """A graph of a model that ``torch.compile`` runs by delegraph.

    It is lowered at its first call. ``name``: "graph 0" for the first one of its list.
    ``report``: the report of the lowering. It is None before the first call, and for a
    graph that could not be lowered. ``why_eager``: why the last call ran in eager
    PyTorch; "" if it did not. ``programs``: the lowered programs. There are several if
    modules share the graph, or if it could not be lowered for varying sizes. If the
    model's weights change, the next call lowers it again.
    """

    def __init__(
        self,
        graph: GraphModule,
        number: int,
        constants: list[int],
        results: Results,
        choices: Mapping[str, Any],
        freezing: bool = False,
    ) -> None:
        """Prepare the graph.

        ``constants``: positions of inputs that become constants. ``choices``: arguments
        of ``delegraph.lower``. ``freezing``: the constants are never written, so that
        calls need not check them.
        """
        self.name = f"graph {number}"
        self.why_eager = ""
        self._graph = graph
        self._results = results
        self._choices = choices
        self._placeholders = graph.graph.find_nodes(op="placeholder")
        self._constants = constants
        self._freezing = freezing
        self._inputs = [
            k for k in range(len(self._placeholders)) if k not in {*constants}
        ]
        self._inputs_of = _picker(self._inputs)
        self._constants_of = _picker(constants)
        self._symbolic = [
            _symbolic_sizes(self._placeholders[k].meta.get("example_value"))
            for k in self._inputs
        ]
        self._programs: dict[_Key, _Program] = {}
        self._last: _Program | None = None
        self._lock = threading.RLock()

    @property
    def report(self) -> Report | None:
        if self._last is None or self._last.lowered is None:
            return None
        return self._last.lowered.report

    @property
    def programs(self) -> list[LoweredProgram]:
        kept = [*self._programs.values()]  # a copy: another thread may add to them
        fixed = chain.from_iterable([*program.fixed.values()] for program in kept)
        return [program.lowered for program in (*kept, *fixed) if program.lowered]

    def __repr__(self) -> str:
        state = self.report.summary() if self.report else self._state()
        return f"<CompiledGraph {self.name}: {state}>"

    def __str__(self) -> str:
        return f"{self.name}: {self.report or self._state()}"

    def __deepcopy__(self, memo: Any) -> CompiledGraph:
        """Return the graph itself.

        A copy of a compiled model copies its options, and with them the list of graphs.
        """
        return self

    def __copy__(self) -> CompiledGraph:
        """Return the graph itself, as for a deep copy."""
        return self

    def __reduce__(self) -> NoReturn:
        """Raise InputError: a lowered program cannot leave its process."""
        text = (
            f"{self.name}, a graph that torch.compile found, cannot be pickled: its"
            " programs exist only in this process"
        )
        hint = (
            "clear the list of the option 'graphs' first, or omit the option; a copy"
            " of the model is compiled again"
        )
        raise InputError("input-invalid", text, hint=hint)

    def __call__(self, *args: Any) -> Sequence[Any]:
        """Run the graph on ``args``, the values of its placeholders."""
        if len(args) != len(self._placeholders):
            text = (
                f"the graph has {len(self._placeholders)} inputs, {len(args)} were"
                " given"
            )
            raise InputError("input-invalid", text)
        key = tuple(map(id, self._constants_of(args)))
        program = self._last
        if program is None or program.key != key or not program.is_unchanged():
            program = self._program_of(args, key)
        inputs = self._inputs_of(args)
        chosen = program
        if program.fixed:
            chosen = program.fixed.get(_sizes(inputs), program)
        if chosen.run is None:
            return self._run_misfit(program, chosen.why_not, args)
        try:
            returned = chosen.run(*inputs)
        except InputError as error:  # the call does not fit, so nothing was written
            why = f"a call does not fit the program: {error}"
            return self._run_misfit(program, why, args)
        return self._with_views(returned, args)

    def _with_views(
        self, returned: Sequence[Any], args: Sequence[Any]
    ) -> Sequence[Any]:
        """Return the results, with views of inputs instead of copies."""
        if not self._results.views:
            return returned
        views = self._results.views
        return [
            views[k].of(args) if k in views else value
            for k, value in enumerate(returned)
        ]

    def _run_eagerly(self, reason: str, args: Sequence[Any]) -> Sequence[Any]:
        """Run the graph in eager PyTorch."""
        self.why_eager = reason
        results: Sequence[Any] = self._graph(*args)
        return results

    def _run_misfit(
        self, program: _Program, why_not: str, args: Sequence[Any]
    ) -> Sequence[Any]:
        """Run the graph on inputs that ``program`` refuses, for the reason ``why_not``.

        It runs in a new program for their sizes, or in eager PyTorch. Inputs are also
        refused if they are written and share memory with others.
        """
        inputs = self._inputs_of(args)
        sizes = _sizes(inputs)
        special = None
        with self._lock:
            is_new = any(self._symbolic) and sizes not in program.fixed
            if is_new and len(program.fixed) < _MOST_SIZES:
                special = self._lower(
                    program.key, inputs, program.constants, varying=False
                )
                program.fixed[sizes] = special
        if special is not None and special.run is not None:
            # finds the new program by its sizes
            return self(*args)
        return self._run_eagerly(why_not, args)

    def _program_of(self, args: Sequence[Any], key: _Key) -> _Program:
        """Return the program for the present values of the constants in ``args``.

        It is lowered if there is none.
        """
        with self._lock:
            program = self._programs.pop(key, None)
            if program is None or not program.is_unchanged():
                constants = [args[k] for k in self._constants]
                program = self._lower(
                    key, self._inputs_of(args), constants, varying=True
                )
            self._programs[key] = program  # in order of last use
            while len(self._programs) > _MOST_CONSTANTS:
                del self._programs[next(iter(self._programs))]
            self._last = program
            return program

    def _lower(
        self,
        key: _Key,
        inputs: Sequence[Any],
        constants: Sequence[torch.Tensor],
        varying: bool,
    ) -> _Program:
        """Lower the graph, for all sizes (``varying``) or for those of ``inputs``.

        Raises the errors of ``delegraph.lower``. InputError is raised only if
        everything has to be delegated; otherwise the graph runs in eager PyTorch.
        """
        memory = None if self._freezing else _Memory(constants)
        lowered = None
        why_not = self._results.why_not
        if not why_not:
            try:
                lowered = self._lowered_program(inputs, constants, varying)
            except InputError as error:
                if self._choices.get("require_full"):
                    raise
                why_not = str(error)
        return _Program(key, constants, memory, lowered, why_not, {})

    def _lowered_program(
        self, inputs: Sequence[Any], constants: Sequence[torch.Tensor], varying: bool
    ) -> LoweredProgram:
        """Return the result of ``delegraph.lower`` for the graph with these constants.

        Raises InputError if the program writes inputs that Dynamo took for constants.
        """
        by_position = dict(zip(self._constants, constants, strict=True))
        module = _WithConstants(self._graph, by_position).eval()
        sizes: Any = None
        if varying and any(self._symbolic):
            sizes = {"inputs": tuple(_as_dims(s) for s in self._symbolic)}
        with ExitStack() as modes:
            modes.enter_context(self._block_other_tracing())
            modes.enter_context(torch.inference_mode(False))
            modes.enter_context(torch.no_grad())
            lowered = delegraph.lower(
                module, tuple(inputs), dynamic_shapes=sizes, **self._choices
            )
        written = written_targets(lowered.exported_program("forward"))
        if written:
            constants_written = [
                k for k in self._constants if f"constant_{k}" in written
            ]
            names = [self._placeholders[k].name for k in constants_written]
            text = (
                f"the graph writes {', '.join(names or sorted(written))}, and Dynamo did"
                " not report that"
            )
            raise InputError("input-invalid", text)
        return lowered

    def _block_other_tracing(self) -> AbstractContextManager[Any]:
        """Return a block in which no other thread traces.

        torch's tracers change modules for all threads, also under Dynamo. If the user's
        options let other threads compile, the block is empty: they would wait for the
        locks of this one.
        """
        if self._choices.get("compiler") is not None:  # other threads may compile
            return nullcontext()
        from torch._dynamo import convert_frame

        locks = ExitStack()
        # first: a thread that lowers a torch.cond holds it when Dynamo traces the
        # branches
        locks.enter_context(TRACING)
        locks.enter_context(convert_frame.compile_lock)
        return locks

    def _state(self) -> str:
        """Return why there is no report."""
        if self._last is None:
            return "not called yet"
        return f"runs in eager PyTorch: {self._last.why_not}"


class _WithConstants(torch.nn.Module):
    """A graph as a module with some inputs as parameters and buffers.

    It keeps the user's lines.
    """

    def __init__(
        self, graph: GraphModule, constants: Mapping[int, torch.Tensor]
    ) -> None:
        """Register ``constants``: position of an input -> its value."""
        super().__init__()
        self.graph_module = graph
        self._names = {k: f"constant_{k}" for k in constants}
        for k, tensor in constants.items():
            if isinstance(tensor, torch.nn.Parameter):
                self.register_parameter(self._names[k], tensor)
            else:
                self.register_buffer(self._names[k], tensor)

    def forward(self, *inputs: Any) -> Any:
        """Run the graph node by node, so that export knows the line of each."""
        given = iter(inputs)
        count = len(self._names) + len(inputs)
        values = [
            getattr(self, self._names[k]) if k in self._names else next(given)
            for k in range(count)
        ]
        # Export sees the casts of autocast only inside of a module. The user's lines
        # are in the metadata of the graph.
        with _autocast(), preserve_node_meta():
            return torch.fx.Interpreter(self.graph_module).run(*values)


def _picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that picks the values at ``positions``, without a Python loop."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda values: [values[k] for k in positions]


def _autocast() -> AbstractContextManager[Any]:
    """Return the active autocast, as a block."""
    if not torch.is_autocast_enabled("cpu"):
        return nullcontext()
    return torch.autocast("cpu", torch.get_autocast_dtype("cpu"))


def _symbolic_sizes(value: Any) -> set[int] | bool:
    """Return the dimensions of a tensor that vary; for an int, whether it varies."""
    if isinstance(value, torch.Tensor):
        return {
            k for k, size in enumerate(value.shape) if isinstance(size, torch.SymInt)
        }
    return isinstance(value, torch.SymInt)


def _as_dims(symbolic: set[int] | bool) -> Any:
    """Return the dynamic sizes of an input for ``torch.export``.

    ``Dim.AUTO``: export itself finds out which sizes are equal, or multiples.
    """
    if isinstance(symbolic, set):
        return dict.fromkeys(symbolic, Dim.AUTO)
    return Dim.AUTO if symbolic else None


def _sizes(inputs: Iterable[Any]) -> tuple[Any, ...]:
    """Return the key of a program for fixed sizes: shapes, strides and numbers."""
    return tuple(
        (*v.shape, v.stride()) if isinstance(v, torch.Tensor) else v for v in inputs
    )
