"""``LoweredProgram``, the result of ``delegraph.lower``."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, get_args

import torch
from delegraph_programs import TRACING, written_targets
from delegraph_programs.export_module import expect_no_training
from delegraph_programs.type_aliases import Program
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.utils._pytree import tree_map_only

from .backend import NamedDataStoreOutput
from .delegates.find_delegates import DelegateInfo, MethodPrograms, merged_named_data
from .delegates.lowered_module import LoweredBackendModule
from .discovery.first_party import provided
from .discovery.registry import Registry
from .engine.decompose_on_demand import in_core_aten
from .engine.whole_method_delegate import whole_delegate
from .errors import InputError, OptionError
from .host.executor import (
    Delegates,
    Executable,
    InputComparingExecutable,
    OnMissingRuntime,
    uncompiled,
)
from .host.files import FileFormat
from .report.model import Report

if TYPE_CHECKING:  # imported late at run time: lowering alone needs neither
    from .host.verify import Verification
    from .runtime import Observer

_RUNS_EAGER = (
    "delegates of backends without a runtime run in eager PyTorch on this host"
)


class LoweredProgram(MethodPrograms):
    """A lowered program. A call runs it on this host; ``verify`` compares it with eager
    PyTorch, ``save`` writes it to a file.

    ``report``: which operators each backend got. ``delegates``: the compiled parts of
    all methods.
    """

    def __init__(
        self,
        programs: dict[str, ExportedProgram],
        eager: dict[str, Program],
        delegates: list[DelegateInfo],
        report: Report,
        registry: Registry,
        changed: Mapping[str, str],
    ) -> None:
        """``programs``: method -> lowered program. ``eager``: method -> program before
        lowering.

        ``registry``: finds runtimes and formats. ``changed``: method -> how a transform
        changed its inputs or results, for the error of ``verify``.
        """
        super().__init__(programs)
        self.report = report
        self.delegates = delegates
        self._whole: DelegateInfo | None = None  # the result of ``whole_delegate``
        # data that ``save`` adds to the delegates' named data
        self._own_data: Mapping[str, bytes] = {}
        self._eager = eager
        self._registry = registry
        self._changed = changed
        # shared by the methods, so that each delegate is loaded once
        loaded = Delegates(registry)
        self._methods = {m: Executable(p, loaded) for m, p in programs.items()}

    def __repr__(self) -> str:
        return f"<LoweredProgram {', '.join(self.methods)}: {self.report.summary()}>"

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    @property
    def methods(self) -> list[str]:
        """Return the names of the methods, in the order of ``lower``."""
        return list(self._programs)

    @property
    def constant_methods(self) -> dict[str, Any]:
        """Return {}. An EdgeProgramManager may have methods that return a constant; a
        LoweredProgram has none. Formats read this property of any program.
        """
        return {}

    @property
    def named_data(self) -> NamedDataStoreOutput:
        """Return the named data of all delegates, and the data passed to ``save``."""
        return merged_named_data(self._programs.values(), self._own_data)

    def core_program(
        self, name: str = "forward", keep: Collection[OpOverload] = ()
    ) -> ExportedProgram:
        """Return a copy of a method's program for runtimes on devices.

        These only have kernels for core ATen, so the host's operators are decomposed to
        core ATen, except those in ``keep``. Raises InputError for an unknown method.
        """
        return in_core_aten(self.exported_program(name), keep)

    def whole_delegate(self) -> DelegateInfo:
        """Return the only delegate with the inputs and outputs of its method, in order.

        A file of the backend's own format needs such a delegate. If the delegate has
        other inputs or outputs, the first call compiles it again, and keeps the result.
        There must be exactly one delegate. Raises InputError if it cannot do the whole
        work of the program, for example because the host writes a buffer.
        """
        if self._whole is None:
            (delegate,) = self.delegates
            self._whole = whole_delegate(
                self.exported_program(delegate.method), delegate, self._registry
            )
        return self._whole

    @property
    def host_operators(self) -> int:
        """Return the number of operators that no delegate computes, in all methods."""
        return self.report.host_operators

    def method(self, name: str) -> Executable:
        """Return the method ``name``, which is called like the model.

        Raises InputError for an unknown name.
        """
        return self._methods[self._checked_name(name)]

    @uncompiled
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``forward`` or the only method."""
        return self.method(self.chosen_method(method=None)).call(*args, **kwargs)

    def instance(self) -> LoweredProgram:
        """Return a program with buffers of its own, in their initial state.

        The new program is for another thread, stream or session. It shares weights,
        generated code and delegates without state with this program.
        """
        return self._with_methods(
            {m: method.instance() for m, method in self._methods.items()}
        )

    def with_missing_runtime(self, how: OnMissingRuntime) -> LoweredProgram:
        """Return a program that treats delegates without a runtime on this host as
        ``how`` demands.

        ``how`` "eager": run the operators of such delegates in eager PyTorch; the new
        report has a note about this. "error": raise NoRuntime, as without this method.
        The new program is in its initial state. Raises OptionError for another ``how``.
        """
        if how not in get_args(OnMissingRuntime):
            wanted = " or ".join(map(repr, get_args(OnMissingRuntime)))
            raise OptionError(
                "option-invalid", f"with_missing_runtime takes {wanted}, not {how!r}"
            )
        loaded = Delegates(self._registry, how)
        other = self._with_methods(
            {m: Executable(p, loaded) for m, p in self._programs.items()}
        )
        other.report = copy.copy(self.report)
        other.report.notes = [note for note in self.report.notes if note != _RUNS_EAGER]
        if how == "eager":
            other.report.notes.append(_RUNS_EAGER)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> LoweredProgram:
        """Return a copy with buffers of its own and their current values.

        Raises InputError if a delegate keeps state.
        """
        return self._with_methods(
            {m: copy.deepcopy(method, memo) for m, method in self._methods.items()}
        )

    def __copy__(self) -> LoweredProgram:
        """Return a shallow copy.

        Without this method, ``copy.copy`` would call ``__reduce__``, which raises.
        """
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def __reduce__(self) -> NoReturn:
        raise InputError(
            "input-invalid",
            "a lowered program is not pickled: its delegates are loaded in this process",
            hint="lowered.save(path), and delegraph.load(path) over there",
        )

    def _with_methods(self, methods: dict[str, Executable]) -> LoweredProgram:
        """Return a shallow copy with the executables ``methods``."""
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
        """Run a method and eager PyTorch on the same inputs, from the initial state,
        and compare their results.

        Both start with the same random seed. ``delegraph_analysis.verify_ties`` also
        accepts the results of eager with other rounding, or with equal elements in
        another order.

        ``method``: by default the only one, or "forward". ``runtime``: a runtime that
        executes whole files, such as "executorch"; the program is saved to a temporary
        file, which the runtime executes. ``observer``: gets the values of the run on
        this host. ``per_operator``: compare every value, by
        ``delegraph_analysis.verify_operators``; then ``observer`` gets nothing.

        Raises NoRuntime if the runtime is missing. Raises InputError in four cases: a
        runtime with ``observer`` or ``per_operator``, an unknown method, a model that
        itself fails on these inputs, or a transform that changed inputs or results.

        The call waits while another thread lowers, because torch then replaces weights
        of the model by tracers.
        """
        if runtime and per_operator:
            raise self._hidden_values_error(runtime)
        if per_operator:
            compare = provided(
                "delegraph_analysis:verify_operators", "verify(per_operator=True)"
            )
            figures: Verification = compare(self, *args, method=method, **kwargs)
            return figures
        from .host.verify import Verification

        return Verification.of(
            *self.run_both(
                args, kwargs, method=method, runtime=runtime, observer=observer
            )
        )

    def verify_over(self, data: Iterable[Any], metric: Any = None, **more: Any) -> Any:
        """Compare a method with eager PyTorch on each sample of a data set.

        See ``delegraph_analysis.verify_over``, which gets all arguments.
        """
        compare = provided("delegraph_analysis:verify_over", "verify_over()")
        return compare(self, data, metric, **more)

    def run_both(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        method: str | None = None,
        runtime: str | None = None,
        observer: Observer | None = None,
    ) -> tuple[Any, Any]:
        """Return (results of a method, results of eager PyTorch) on the same inputs,
        from the initial state.

        Both runs start with the same random seed. For the parameters and errors see
        ``verify``.
        """
        from .host.verify import call_of_model

        if runtime and observer:
            raise self._hidden_values_error(runtime)
        name = self.chosen_method(method)
        seed = torch.get_rng_state()
        # Eager runs first, so that an error of the model is not taken for an error of
        # the lowered program.
        with call_of_model(name):
            expected = self.run_eager(args, kwargs, method=name)
        # copied, because the program may write to its arguments
        args = copy.deepcopy(args)
        kwargs = copy.deepcopy(kwargs)
        torch.set_rng_state(seed)
        if runtime:
            return self._run_in_runtime(runtime, name, args, kwargs), expected
        return self._run_here(name, observer, args, kwargs), expected

    def run_eager(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        method: str | None = None,
        mode: AbstractContextManager[Any] | None = None,
    ) -> Any:
        """Return the results of the model in eager PyTorch, run inside the context
        manager ``mode`` if one is given.

        At the end, the model's parameters and buffers have their old values again. The
        model gets copies of the arguments. Raises InputError for an unknown method, and
        if a transform changed the inputs or results.
        """
        name = self.chosen_method(method)
        self._expect_same_signature(name)
        # Names of the parameters and buffers that eager may write: the state that
        # delegates keep, and the targets that the host's part of the program writes.
        written = {
            target
            for d in self.delegates
            if d.method == name
            for target in d.module.state
        }
        written |= written_targets(self._programs[name])
        with (
            TRACING,
            torch.no_grad(),
            _restoring_state(self._eager_module(name), written) as eager,
        ):
            own_args = copy.deepcopy(args)
            own_kwargs = copy.deepcopy(kwargs)
            with mode or nullcontext():
                returned = eager(*own_args, **own_kwargs)
            # Detached, because TorchScript may return tensors that need a gradient in
            # spite of no_grad. Copied, because a result may be a buffer, which is
            # restored when the block ends.
            return copy.deepcopy(
                tree_map_only(torch.Tensor, torch.Tensor.detach, returned)
            )

    @staticmethod
    def _hidden_values_error(runtime: str) -> InputError:
        """Return the error for ``verify`` with ``runtime``, which executes whole files,
        and with an argument that needs the values inside of the program.
        """
        return InputError(
            "input-invalid",
            f"the runtime {runtime!r} executes a whole file, and does not show the"
            " values in it",
            hint="without runtime=, delegates run in the runtimes of their backends",
        )

    def observe(
        self, observer: Observer, *args: Any, method: str | None = None, **kwargs: Any
    ) -> Any:
        """Call a method in its initial state; ``observer`` gets all values of the call.

        Returns the results. ``method``: by default the only one, or "forward".
        """
        return self._run_here(self.chosen_method(method), observer, args, kwargs)

    def observed(
        self, observer: Observer, method: str | None = None
    ) -> Callable[..., Any]:
        """Return a method in its initial state. When the method is called, ``observer``
        gets all values of the call.
        """
        name = self.chosen_method(method)
        hooks = provided("delegraph_analysis.observe:hooks_of", "observing a program")
        return self._methods[name].observed(observer, hooks(observer, self.delegates))

    def profile(
        self, *args: Any, repeats: int = 10, method: str | None = None, **kwargs: Any
    ) -> Any:
        """Return the times of a call by line, module and delegate.

        See ``delegraph_analysis.profile_program``.
        """
        profile = provided("delegraph_analysis:profile_program", "profile()")
        return profile(self, *args, repeats=repeats, method=method, **kwargs)

    def node_data(self, method: str | None = None, *args: Any, **kwargs: Any) -> Any:
        """Return data columns for Model Explorer.

        See ``delegraph_analysis.node_data``, which gets the name of the method and all
        other arguments.
        """
        columns_of = provided("delegraph_analysis:node_data", "node data")
        return columns_of(self, self.chosen_method(method), *args, **kwargs)

    def _expect_same_signature(self, name: str) -> None:
        """Raise InputError if a transform changed inputs or results of the method
        ``name``, so that eager PyTorch and the method cannot be compared.
        """
        if name in self._changed:
            raise InputError(
                "input-invalid",
                f"{self._changed[name]}, so the method cannot be compared with eager",
                hint=(
                    "lower the model without that transform, for example without"
                    " integer_borders, and verify that program"
                ),
            )

    def _eager_module(self, name: str) -> torch.nn.Module:
        """Return the program before lowering, as a module.

        The first call puts the module into ``_eager`` in place of an ExportedProgram,
        because ``ExportedProgram.module`` takes long.
        """
        program = self._eager[name]
        if isinstance(program, ExportedProgram):
            module = program.module(check_guards=False)
            self._eager[name] = module
            return module
        # An exported module has only one mode, but its ``training`` is True. It is
        # recognized by its own ``eval``, and not checked.
        if "eval" not in vars(program):
            expect_no_training(program)
        return program

    def _run_here(
        self, name: str, observer: Observer | None, args: Any, kwargs: Any
    ) -> Any:
        """Return the results of a method, run on this host from its initial state.

        ``observer``: gets all values of the run. If it is None, each delegate's inputs
        are compared before and after its calls, to find runtimes that write to inputs.
        """
        if observer is not None:
            return self.observed(observer, name)(*args, **kwargs)
        method = self._methods[name]
        comparing = InputComparingExecutable(method._method, method._delegates)
        return comparing(*args, **kwargs)

    def _run_in_runtime(self, runtime: str, name: str, args: Any, kwargs: Any) -> Any:
        """Return the results of a method, run by ``runtime`` from a temporary file."""
        with tempfile.TemporaryDirectory() as folder:
            file = FileFormat(
                Path(folder, f"program{self._registry.suffix_for(runtime)}"),
                self._registry,
            )
            with TRACING:  # a lock: a format may trace
                file.save(self, {})
                method = file.load(runtime).method(name)
            return method(*args, **kwargs)

    def save(
        self,
        path: str | os.PathLike[str],
        named_data: Mapping[str, bytes] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        """Write the program, completely or not at all, in the format that the path's
        suffix chooses.

        ``named_data``: key -> data to store in the file, with the delegates' own named
        data. ``options``: options of the format.

        Raises FormatNotFound if no plugin declares the format, OptionError for wrong
        options, WriteError if the file cannot be written. Raises InputError if the
        format cannot hold this program: ``.tosa``, for example, holds one delegate.
        """
        with TRACING:  # a lock: a format may trace
            # a copy, so that ``named_data`` is for this file only
            with_data = copy.copy(self)
            with_data._own_data = dict(named_data)
            FileFormat(path, self._registry).save(with_data, options)
            # keep the delegate that ``whole_delegate`` may have compiled for the file
            self._whole = with_data._whole

    def chosen_method(self, method: str | None) -> str:
        """Return ``method``; for None, "forward" if there is such a method, else the
        only method.

        Raises InputError for an unknown name, and for None if there are several methods
        without "forward".
        """
        if method is not None:
            return self._checked_name(method)
        if "forward" in self._programs:
            return "forward"
        if len(self._programs) > 1:
            raise InputError(
                "input-invalid",
                f"name the method: lowered.method(name)(...); methods: {self.methods}",
            )
        return self.methods[0]


@contextmanager
def _restoring_state(
    module: torch.nn.Module, written: Collection[str]
) -> Iterator[Callable[..., Any]]:
    """Run a block that calls ``module``, then restore the state of ``module``.

    This state has two parts: the parameters and buffers with a name in ``written``, and
    the state tensors of delegates that ``module`` itself calls.
    """
    tensors = chain(module.named_parameters(), module.named_buffers())
    # name of a parameter or buffer -> copy of its value
    old_values = {name: t.detach().clone() for name, t in tensors if name in written}
    delegate_tensors: list[torch.Tensor] = []
    for part in module.modules():
        if isinstance(part, LoweredBackendModule):
            delegate_tensors += part.state_tensors()
    old_delegate_values = [t.detach().clone() for t in delegate_tensors]
    try:
        yield module
    finally:
        # looked up again, because the model may have replaced a buffer by another
        # tensor
        for name, tensor in chain(module.named_parameters(), module.named_buffers()):
            if name in old_values:
                tensor.data.copy_(old_values[name])
        for tensor, value in zip(delegate_tensors, old_delegate_values, strict=True):
            tensor.data.copy_(value)
