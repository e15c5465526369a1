"""What ``delegraph.lower`` returns: a program that can be called, verified, reported on, saved."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram

from .backend import NamedDataStoreOutput
from .delegates.delegates import DelegateInfo, MethodPrograms, merged_named_data
from .delegates.lowered_module import LoweredBackendModule
from .discovery.own import provided
from .discovery.registry import Registry
from .engine.decompose import in_core_aten
from .errors import InputError
from .exported.tracing import TRACING
from .exported.types import Program
from .exported_program import written_targets
from .host.executor import Delegates, Executable, OnMissingRuntime, SuspiciousExecutable
from .host.files import FileFormat
from .report.model import Report

if TYPE_CHECKING:  # what only lowers needs none of these
    from .host.verify import Verification
    from .runtime import Observer


class LoweredProgram(MethodPrograms):
    """What ``lower`` returns: a program that runs on this host, reports, verifies and saves."""

    def __init__(
        self,
        programs: dict[str, ExportedProgram],
        eager: dict[str, Program],
        delegates: list[DelegateInfo],
        report: Report,
        registry: Registry,
        on_missing_runtime: OnMissingRuntime,
        changed: Mapping[str, str],
    ) -> None:
        super().__init__(programs)
        self.report, self.delegates = report, delegates
        self._own_data: Mapping[str, bytes] = {}
        self._eager, self._registry, self._changed = eager, registry, changed
        loaded = Delegates(registry, on_missing_runtime)
        self._methods = {m: Executable(p, loaded) for m, p in programs.items()}

    def __repr__(self) -> str:
        return f"<LoweredProgram {', '.join(self.methods)}: {self.report.summary()}>"

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    @property
    def methods(self) -> list[str]:
        """Names of the methods, in the order in which they were given."""
        return list(self._programs)

    @property
    def constant_methods(self) -> dict[str, Any]:
        """Methods that only return a constant: none, because each method was lowered from a program."""
        return {}

    @property
    def named_data(self) -> NamedDataStoreOutput:
        """The named data of all delegates, and what ``save`` was given."""
        return merged_named_data(self._programs.values(), self._own_data)

    def core_program(self, name: str = "forward", keep: Collection[OpOverload] = ()) -> ExportedProgram:
        """A copy of a method's program in which the host's calls are core ATen, apart from operators to ``keep``.

        That is what runtimes on devices have kernels for. ``exported_program`` has these calls as the model makes them,
        and that is also what runs when this program is called.
        """
        return in_core_aten(self.exported_program(name), keep)

    @property
    def host_operators(self) -> int:
        """Number of the operators that no delegate computes."""
        return self.report.host_operators

    def method(self, name: str) -> Executable:
        """A method, to be called with the arguments of the module that it came from."""
        return self._methods[self._known(name)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.method(self._the_method())(*args, **kwargs)

    def instance(self) -> LoweredProgram:
        """The same program with buffers of its own, in their initial state: one for each thread, stream or session.

        Weights, generated code, and delegates that keep no state are shared.
        """
        return self._with_methods({m: method.instance() for m, method in self._methods.items()})

    def __deepcopy__(self, memo: dict[int, Any]) -> LoweredProgram:
        """A copy with the present values of the buffers. Raises InputError if a delegate keeps state."""
        return self._with_methods({m: copy.deepcopy(method, memo) for m, method in self._methods.items()})

    def __copy__(self) -> LoweredProgram:
        """A shallow copy. The one that copy.copy makes by itself calls ``__reduce__``, which refuses."""
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def __reduce__(self) -> NoReturn:
        text = "a lowered program is not pickled: its delegates are loaded in this process"
        raise InputError("input-invalid", text, hint="lowered.save(path), and delegraph.load(path) over there")

    def _with_methods(self, methods: dict[str, Executable]) -> LoweredProgram:
        """The same program with other executables."""
        other = copy.copy(self)
        other._methods = methods
        return other

    def verify(
        self,
        *args: Any,
        method: str | None = None,
        runtime: str | None = None,
        observer: Observer | None = None,
        per_operator: bool = False,
        **kwargs: Any,
    ) -> Verification:
        """Run a method here and in eager PyTorch on the same inputs, from the initial state, and compare.

        Both begin with the same random seed. If they differ, eager is run again, at most twelve times, with other
        rounding and with equal elements in another order. If it then disagrees with itself, the figures compare with
        the nearest of its results, and say so. ``runtime`` names one that executes files of a format
        (``"executorch"``): the program is saved in that format, and run there instead. ``observer`` is told the values
        of the run here. With ``per_operator``, every value is compared, by ``delegraph_analysis.verify_operators``.
        Raises NoRuntime if the runtime is not there, InputError for an observer together with a runtime. The model is
        not called while another thread lowers, because torch puts tracers in the place of its weights then.
        """
        if runtime and (observer or per_operator):
            text = f"the runtime {runtime!r} executes a whole file, and does not tell the values in it"
            hint = "without runtime=, delegates run in the runtimes of their backends"
            raise InputError("input-invalid", text, hint=hint)
        if per_operator:
            compare = provided("delegraph_analysis:verify_operators", "verify(per_operator=True)")
            figures: Verification = compare(self, *args, method=method, **kwargs)
            return figures
        from .host.verify import Verification

        name = self._known(method or self._the_method())
        self._expect_border_of_eager(name)
        given = copy.deepcopy(args), copy.deepcopy(kwargs)
        seed = torch.get_rng_state()
        got = self._run_in_runtime(runtime, name, *given) if runtime else self._run_here(name, observer, *given)

        def eager(mode: AbstractContextManager[Any]) -> Any:
            torch.set_rng_state(seed)
            return self._run_eager(name, args, kwargs, mode)

        wanted = eager(nullcontext())
        return Verification.of(got, wanted).settled(got, wanted, eager)

    def observe(self, observer: Observer, *args: Any, method: str | None = None, **kwargs: Any) -> Any:
        """Call a method in its initial state and return its results; ``observer`` is told the values on the way."""
        return self._run_here(self._known(method or self._the_method()), observer, args, kwargs)

    def node_data(self, method: str | None = None, *args: Any, **kwargs: Any) -> Any:
        """Columns for Model Explorer, by ``delegraph_analysis.node_data(self, method, ...)``."""
        return provided("delegraph_analysis:node_data", "node data")(
            self, method or self._the_method(), *args, **kwargs
        )

    def node_of(self, file: str | os.PathLike[str]) -> Callable[[Any], tuple[str, str]]:
        """A function from a debug identifier to Model Explorer's name of that node of ``file``.

        OptionError if the format of the file has no such names.
        """
        return FileFormat(file, self._registry).node_of

    def _expect_border_of_eager(self, name: str) -> None:
        """Raise InputError if a transform changed inputs or results, so that eager cannot be called in the same way."""
        if name in self._changed:
            hint = "verify what is lowered without that transform, such as integer_borders or channels_last_borders"
            raise InputError("input-invalid", f"{self._changed[name]}: there is no call to compare", hint=hint)

    def _eager_module(self, name: str) -> torch.nn.Module:
        """The program before it was lowered, as a module.

        Torch takes long to make one of an ExportedProgram, so it is kept.
        """
        program = self._eager[name]
        if isinstance(program, ExportedProgram):
            program = self._eager[name] = program.module(check_guards=False)
        return program

    def _run_here(self, name: str, observer: Observer | None, args: Any, kwargs: Any) -> Any:
        """The results of a method in its initial state, run on this host."""
        from .host.observe import ObservedExecutable

        start = self._methods[name]
        if observer is not None:
            return ObservedExecutable(start, observer, self.delegates)(*args, **kwargs)
        return SuspiciousExecutable(start._method, start._delegates)(*args, **kwargs)

    def _run_eager(self, name: str, args: Any, kwargs: Any, mode: AbstractContextManager[Any]) -> Any:
        """The results of eager PyTorch, called in the dispatch mode ``mode``.

        Buffers that it writes are restored afterwards.
        """
        written = {target for d in self.delegates if d.method == name for target in d.module.state}
        written |= written_targets(self._programs[name])
        with TRACING, torch.no_grad(), _restoring_state(self._eager_module(name), written) as eager:
            given = copy.deepcopy(args), copy.deepcopy(kwargs)
            with mode:
                returned = eager(*given[0], **given[1])
            return copy.deepcopy(returned)  # a result may be a buffer itself, which is restored now

    def _run_in_runtime(self, runtime: str, name: str, args: Any, kwargs: Any) -> Any:
        """The results of a method, run by ``runtime`` from a file."""
        with tempfile.TemporaryDirectory() as folder:
            file = FileFormat(Path(folder, f"program{self._registry.suffix_for(runtime)}"), self._registry)
            with TRACING:
                file.save(self, {})
                method = file.load(runtime).method(name)
            return method(*args, **kwargs)

    def save(
        self, path: str | os.PathLike[str], named_data: Mapping[str, bytes] = MappingProxyType({}), **options: Any
    ) -> None:
        """Write the program, completely or not at all, in the format that the path's suffix chooses.

        ``named_data`` is stored in the file by key, beside that of the delegates; ``options`` are the format's. A
        backend's own format holds one delegate that is the whole program. Raises FormatNotFound if no plugin offers the
        format. No other thread lowers meanwhile, because a format may trace.
        """
        with TRACING:
            whole = copy.copy(self)
            whole._own_data = dict(named_data)
            FileFormat(path, self._registry).save(whole, options)

    def _the_method(self) -> str:
        """The method that a call means that names none: the only one, or ``forward``."""
        if len(self._programs) > 1 and "forward" not in self._programs:
            raise InputError("input-invalid", f"name the method: lowered.method(name)(...); methods: {self.methods}")
        return "forward" if "forward" in self._programs else self.methods[0]


@contextmanager
def _restoring_state(module: torch.nn.Module, written: Collection[str]) -> Iterator[Callable[..., Any]]:
    """A block in which ``module`` may be called.

    Afterwards buffers that were written, also in delegates, are as before.
    """
    tensors = chain(module.named_parameters(), module.named_buffers())
    kept = {name: t.detach().clone() for name, t in tensors if name in written}
    inside = [t for m in module.modules() if isinstance(m, LoweredBackendModule) for t in m.state_tensors()]
    before = [t.detach().clone() for t in inside]
    try:
        yield module
    finally:
        # the buffers are looked up again, because the model may have replaced one by another tensor
        for name, tensor in chain(module.named_parameters(), module.named_buffers()):
            if name in kept:
                tensor.data.copy_(kept[name])
        for tensor, value in zip(inside, before, strict=True):
            tensor.data.copy_(value)
