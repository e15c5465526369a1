"""Run a program file on this host: delegates in their runtimes, the rest in torch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from delegraph.errors import InputError
from delegraph.formats import LoadDelegate, StoredBlob

from ..bridging.calling_convention import convention_in_file
from ..containers import argument_names, flatten_call, structure_of, unflatten_result
from ..inspection.blobs import stored_blobs
from ..program.pte_tables import BackendDelegate, DelegateCall, ExecutionPlan
from ..program.shared_memory import MEMORY, sharing_methods
from ..serialize.check import check_program
from ..serialize.reader import DataFile, ProgramFile, blob_of, named_segments
from .arguments import check_arguments
from .calls import split_calls_of
from .data import Data
from .method import HostMethod, Runner, check_memory
from .shared import SharedMemory

MAX_MEMORY = 1 << 33
"""The most bytes that a method may plan or return, unless the caller allows more."""
MAX_ITERATIONS = 100_000
"""The most rounds of all loops in a call, unless the caller allows more."""


class HostProgram:
    """A program file, called like the module that it was made from.

    A method is loaded by its first call and keeps its state between calls. Methods that
    share buffers have one memory for them.
    """

    def __init__(
        self,
        file: ProgramFile,
        data: Sequence[DataFile],
        load_delegate: LoadDelegate,
        max_memory: int = MAX_MEMORY,
        max_iterations: int = MAX_ITERATIONS,
        ran: Callable[[ExecutionPlan, int], None] | None = None,
    ) -> None:
        """Check and read a file.

        After each instruction, ``ran`` is called with the method's plan and the
        instruction's position.
        """
        check_program(file)
        check_arguments(file)
        self.file = file
        self._data = Data.of(file, data)
        self._load = load_delegate
        self._max_memory = max_memory
        self._max_iterations = max_iterations
        self._ran = ran
        self._plans = {plan.name: plan for plan in file.program.plans}
        self._loaded: dict[str, HostMethod] = {}
        self._sharing = sharing_methods(file.program.plans)
        self._shared: SharedMemory | None = None
        self._loading = threading.Lock()

    @property
    def methods(self) -> list[str]:
        """Return the names of the methods, in the order of the file."""
        return list(self._plans)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = "forward" if "forward" in self._plans else self.methods[0]
        return self.method(name)(*args, **kwargs)

    def method(self, name: str) -> Callable[..., Any]:
        """Return a function that takes the arguments of the original module's method.

        Files of other tools do not store how arguments and results are nested. The
        methods of such files take and return flat lists.
        """
        container = self._plan_of(name).container
        takes = structure_of(container, "inputs")
        returns = structure_of(container, "outputs")
        names = argument_names(container)

        def call(*args: Any, **kwargs: Any) -> Any:
            flat = flatten_call(takes, args, kwargs, names)
            return unflatten_result(returns, self.run(name, flat))

        return call

    def run(self, name: str, inputs: Sequence[Any]) -> list[Any]:
        """Run a method on flat inputs; return its flat outputs.

        The first call loads the method. Raises InputError if the inputs do not fit.
        """
        plan = self._plan_of(name)
        if name not in self._loaded:
            output_counts = split_calls_of(self.file, plan)
            stored = stored_blobs(self.file, plan)
            delegates = [
                self._load_delegate(d, plan, k, output_counts, stored[k])
                for k, d in enumerate(plan.delegates)
            ]
            ran = partial(self._ran, plan) if self._ran is not None else None
            with self._loading:
                # another thread may have loaded the method in the meantime
                if name not in self._loaded:
                    self._loaded[name] = HostMethod(
                        plan,
                        self._data,
                        delegates,
                        output_counts,
                        max_memory=self._max_memory,
                        max_jumps=self._max_iterations,
                        ran=ran,
                        shared=self._shared_memory_of(plan),
                    )
        return self._loaded[name](inputs)

    def _shared_memory_of(self, plan: ExecutionPlan) -> SharedMemory | None:
        """Return the memory that a method shares with others; None if it shares none."""
        if plan.name not in self._sharing:
            return None
        # raises if the memory is too large, before it is allocated
        check_memory(plan, self._max_memory)
        if self._shared is None:
            self._shared = SharedMemory(plan.memory_sizes[MEMORY])
        return self._shared

    def _plan_of(self, name: str) -> ExecutionPlan:
        """Return the plan of a method; InputError for an unknown name."""
        if name not in self._plans:
            raise InputError(
                "input-invalid", f"there is no method {name!r}; methods: {self.methods}"
            )
        return self._plans[name]

    def _load_delegate(
        self,
        delegate: BackendDelegate,
        plan: ExecutionPlan,
        number: int,
        output_counts: Mapping[int, int],
        stored: StoredBlob,
    ) -> Runner:
        """Load ``delegate``, which has the position ``number`` among those of ``plan``.

        ``output_counts`` maps the position of a delegate call to its number of outputs.
        """
        blob = bytes(blob_of(self.file, delegate))
        named = {key: bytes(content) for key, content in self._named_data().items()}
        # Blobs of ExecuTorch's backends need a calling convention. It is read from the
        # first call of the delegate.
        for position, call in enumerate(plan.calls):
            if isinstance(call, DelegateCall) and call.delegate_index == number:
                values = [plan.values[index].value for index in call.args]
                convention = convention_in_file(
                    delegate.id, blob, values, output_counts[position]
                )
                # data in the file win over a convention with the same key
                named = convention | named
                break
        return self._load(
            delegate.id, blob, stored.compile_specs, named, header=stored.header
        )

    def _named_data(self) -> Mapping[str, Any]:
        """Return the named data of the data files and of the program file."""
        external = {key: content for key, (content, _) in self._data.external.items()}
        return {**external, **named_segments(self.file)}
