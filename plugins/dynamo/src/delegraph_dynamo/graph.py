"""A graph of Dynamo and its lowered programs: one for each set of constants, and for
sizes that need their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from operator import attrgetter, is_, itemgetter
from typing import Any, NoReturn

import delegraph
import torch
from delegraph import InputError, LoweredProgram, Report
from delegraph_programs import TRACING, written_targets
from torch.export import Dim
from torch.fx import GraphModule
from torch.fx.traceback import preserve_node_meta
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .outputs import Results

_MOST_CONSTANTS = 256
"""Sets of constants for which programs are kept: modules that share a graph, such as
the layers of a model.
"""
_MOST_SIZES = 8
"""For how many sizes a graph gets programs of its own, if one cannot have all: as often
as Dynamo compiles anew.
"""
_version = attrgetter("_version")
_address = torch.Tensor.data_ptr
_Key = tuple[int, ...]
"""The identities of constants, which the program with that key keeps alive."""


class _Memory:
    """Where the elements of constants are, and torch's counts of writes to them, at one
    moment.

    The memory stays allocated as long as this object: no other tensor gets the same
    address meanwhile.
    """

    def __init__(self, constants: Sequence[torch.Tensor]) -> None:
        self._constants = constants
        self._versions = [*map(_version, constants)]
        self._wrappers = [t for t in constants if is_traceable_wrapper_subclass(t)]
        self._inner = [inner for t in self._wrappers for inner in _inner_tensors(t)]
        self._inner_versions = [*map(_version, self._inner)]
        self._addressed = [t for t in (*constants, *self._inner) if _has_address(t)]
        self._addresses = [*map(_address, self._addressed)]
        self._storages = [t.untyped_storage() for t in self._addressed]

    def is_unchanged(self) -> bool:
        """Whether all constants have their memory, and no writes to it were counted."""
        return (
            [*map(_version, self._constants)] == self._versions
            and [*map(_address, self._addressed)] == self._addresses
            and (not self._wrappers or self._has_same_inner_tensors())
        )

    def _has_same_inner_tensors(self) -> bool:
        """Whether tensors that wrap others, such as quantized weights, wrap the same
        ones, without writes.
        """
        inner = [inner for t in self._wrappers for inner in _inner_tensors(t)]
        return (
            len(inner) == len(self._inner)
            and all(map(is_, inner, self._inner))
            and [*map(_version, inner)] == self._inner_versions
        )


def _inner_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that ``tensor`` wraps, at any depth."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [inner for name in names for inner in _inner_tensors(getattr(tensor, name))]


def _has_address(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` has elements in memory of its own; wrappers and sparse tensors
    have not.
    """
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
    """A lowered program with the constants in it, and where these were in memory when
    it was lowered.

    ``key``: the addresses of the constants' Python objects, which stay theirs as long
    as the program keeps them. ``memory``: None if the user says that nothing is
    written. ``run``: None if the graph could not be lowered, for the reason
    ``why_not``. ``fixed``: sizes of the inputs -> a program for these alone.
    """

    key: _Key
    constants: Sequence[torch.Tensor]
    memory: _Memory | None
    lowered: LoweredProgram | None
    why_not: str
    fixed: dict[tuple[Any, ...], _Program]

    def __post_init__(self) -> None:
        """Find what is called, which the calls of a warm program then need not do."""
        self.run: Any = self.lowered.method("forward") if self.lowered else None
        if self.run is not None and torch.is_autocast_enabled("cpu"):
            # the program has these casts as operators: those that the host runs are not
            # to get others
            self.run = torch.autocast("cpu", enabled=False)(self.run)

    def is_unchanged(self) -> bool:
        """Whether its constants have the values that they had, as far as torch shows."""
        return self.memory is None or self.memory.is_unchanged()


class CompiledGraph:
    """A graph of a model that ``torch.compile`` runs by delegraph. It is lowered when
    it is first called.

    ``name``: "graph 0" for the first one of its list. ``report``: what went where, and
    why not; None before the first call, and for a graph that could not be lowered.
    ``why_eager``: why the last call ran in eager PyTorch; "" if it did not.
    ``programs``: the lowered programs; more than one if several modules run the same
    graph, or if it could not be lowered for varying sizes. If the model's weights
    change, the next call lowers it again.
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
        """``constants``: positions of inputs that become constants. ``choices``:
        arguments of ``delegraph.lower``.

        ``freezing``: the constants are never written, so that no call has to look.
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
        self._inputs_of = _picking(self._inputs)
        self._constants_of = _picking(constants)
        self._symbolic = [
            _symbolic_sizes(self._placeholders[k].meta.get("example_value"))
            for k in self._inputs
        ]
        self._programs: dict[_Key, _Program] = {}
        self._last: _Program | None = None
        self._lock = threading.RLock()

    @property
    def report(self) -> Report | None:
        return self._last.lowered.report if self._last and self._last.lowered else None

    @property
    def programs(self) -> list[LoweredProgram]:
        kept = [*self._programs.values()]  # at once: another thread may add to them
        all_of_them = [
            p for program in kept for p in (program, *program.fixed.values())
        ]
        return [p.lowered for p in all_of_them if p.lowered]

    def __repr__(self) -> str:
        return (
            f"<CompiledGraph {self.name}:"
            f" {self.report.summary() if self.report else self._state()}>"
        )

    def __str__(self) -> str:
        return f"{self.name}: {self.report or self._state()}"

    def __deepcopy__(self, memo: Any) -> CompiledGraph:
        """The graph itself: a copy of a compiled model has its options too, and with
        them the list of graphs.
        """
        return self

    def __copy__(self) -> CompiledGraph:
        """The graph itself, as for a deep copy."""
        return self

    def __reduce__(self) -> NoReturn:
        """Raise InputError: a lowered program has what only this process has."""
        text = (
            f"{self.name}, a graph that torch.compile found, cannot be pickled: its"
            " programs are of this process"
        )
        hint = (
            "clear the list of the option 'graphs' before, or leave the option out; a"
            " copy is compiled again"
        )
        raise InputError("input-invalid", text, hint=hint)

    def __call__(self, *args: Any) -> Sequence[Any]:
        """Run the graph on ``args``, the values of its placeholders. Returns its
        results.
        """
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
        fitting = (
            program.fixed.get(_sizes(inputs), program) if program.fixed else program
        )
        if fitting.run is None:
            return self._otherwise(program, fitting.why_not, args)
        try:
            returned = fitting.run(*inputs)
        except InputError as error:  # the call does not fit, so nothing was written
            return self._otherwise(
                program, f"a call does not fit the program: {error}", args
            )
        return self._finish(returned, args)

    def _finish(self, returned: Sequence[Any], args: Sequence[Any]) -> Sequence[Any]:
        """The results, with views of inputs in place of copies."""
        if not self._results.views:
            return returned
        views = self._results.views
        return [
            views[k].of(args) if k in views else value
            for k, value in enumerate(returned)
        ]

    def _eager(self, reason: str, args: Sequence[Any]) -> Sequence[Any]:
        """Run the graph in eager PyTorch."""
        self.why_eager = reason
        results: Sequence[Any] = self._graph(*args)
        return results

    def _otherwise(
        self, program: _Program, why_not: str, args: Sequence[Any]
    ) -> Sequence[Any]:
        """Run the graph on inputs that ``program`` does not take: in a program for
        their sizes, or in eager PyTorch.

        Inputs that are written and share memory with others are among them.
        """
        inputs = self._inputs_of(args)
        sizes = _sizes(inputs)
        special = None
        with self._lock:
            if (
                any(self._symbolic)
                and sizes not in program.fixed
                and len(program.fixed) < _MOST_SIZES
            ):
                special = program.fixed[sizes] = self._lower(
                    program.key, inputs, program.constants, varying=False
                )
        if special is not None and special.run is not None:
            return self(*args)
        return self._eager(why_not, args)

    def _program_of(self, args: Sequence[Any], key: _Key) -> _Program:
        """The program for the constants in ``args``, lowered if there is none with
        their present values.
        """
        with self._lock:
            program = self._programs.pop(key, None)
            if program is None or not program.is_unchanged():
                constants = [args[k] for k in self._constants]
                program = self._lower(
                    key, self._inputs_of(args), constants, varying=True
                )
            self._programs[key] = program  # the last one is the one that was used last
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
        """Lower the graph. ``varying``: for all of its sizes, else for those of
        ``inputs``.

        Raises what ``delegraph.lower`` raises, except InputError if not all has to be
        delegated: the graph then runs in eager PyTorch.
        """
        memory = None if self._freezing else _Memory(constants)
        lowered = None
        why_not = self._results.why_not
        if not why_not:
            try:
                lowered = self._lowered(inputs, constants, varying)
            except InputError as error:
                if self._choices.get("require_full"):
                    raise
                why_not = str(error)
        return _Program(key, constants, memory, lowered, why_not, {})

    def _lowered(
        self, inputs: Sequence[Any], constants: Sequence[torch.Tensor], varying: bool
    ) -> LoweredProgram:
        module = _WithConstants(
            self._graph, dict(zip(self._constants, constants, strict=True))
        ).eval()
        sizes: Any = None
        if varying and any(self._symbolic):
            sizes = {"inputs": tuple(_as_dims(s) for s in self._symbolic)}
        with ExitStack() as modes:
            modes.enter_context(self._alone())
            modes.enter_context(torch.inference_mode(False))
            modes.enter_context(torch.no_grad())
            lowered = delegraph.lower(
                module, tuple(inputs), dynamic_shapes=sizes, **self._choices
            )
        if kept := written_targets(lowered.exported_program("forward")):
            names = [
                self._placeholders[k].name
                for k in self._constants
                if f"constant_{k}" in kept
            ]
            text = (
                f"the graph writes {', '.join(names or sorted(kept))}, of which Dynamo"
                " says nothing"
            )
            raise InputError("input-invalid", text)
        return lowered

    def _alone(self) -> AbstractContextManager[Any]:
        """A block in which no other thread traces: torch's tracers change modules for
        all threads, also under Dynamo.

        An empty one where other threads compile, as the user's options say: they would
        wait for what this one holds.
        """
        if self._choices.get("compiler") is not None:  # other threads may compile
            return nullcontext()
        from torch._dynamo import convert_frame

        locks = ExitStack()
        # first: who lowers a torch.cond holds it when Dynamo traces the branches
        locks.enter_context(TRACING)
        locks.enter_context(convert_frame.compile_lock)
        return locks

    def _state(self) -> str:
        """Why there is no report."""
        return (
            f"runs in eager PyTorch: {self._last.why_not}"
            if self._last
            else "not called yet"
        )


class _WithConstants(torch.nn.Module):
    """A graph as a module, in which some inputs are parameters and buffers. It keeps
    the user's lines.
    """

    def __init__(
        self, graph: GraphModule, constants: Mapping[int, torch.Tensor]
    ) -> None:
        """``constants``: position of an input -> its value."""
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
        # the casts of the call, which export sees only inside of a module; the user's
        # lines, which stand in the graph
        with _autocast(), preserve_node_meta():
            return torch.fx.Interpreter(self.graph_module).run(*values)


def _picking(positions: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """The function that picks what lies at ``positions``; without Python's time for
    each.
    """
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda values: [values[k] for k in positions]


def _autocast() -> AbstractContextManager[Any]:
    """The autocast that is at work, as a block."""
    if not torch.is_autocast_enabled("cpu"):
        return nullcontext()
    return torch.autocast("cpu", torch.get_autocast_dtype("cpu"))


def _symbolic_sizes(value: Any) -> set[int] | bool:
    """The dimensions of an input that vary; of an int, whether it varies."""
    if isinstance(value, torch.Tensor):
        return {
            k for k, size in enumerate(value.shape) if isinstance(size, torch.SymInt)
        }
    return isinstance(value, torch.SymInt)


def _as_dims(symbolic: set[int] | bool) -> Any:
    """What ``torch.export`` is told of an input; it finds out itself which sizes are
    equal, or multiples.
    """
    return (
        dict.fromkeys(symbolic, Dim.AUTO)
        if isinstance(symbolic, set)
        else Dim.AUTO
        if symbolic
        else None
    )


def _sizes(inputs: Iterable[Any]) -> tuple[Any, ...]:
    """What a program for fixed sizes depends on: shapes and strides, and numbers."""
    return tuple(
        (*v.shape, v.stride()) if isinstance(v, torch.Tensor) else v for v in inputs
    )
