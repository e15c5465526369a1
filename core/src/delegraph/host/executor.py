"""Runs a lowered program on this host: the runtimes run the delegates, torch runs the
other operators.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from delegraph_programs import (
    constant_tensor,
    placeholders,
    source_of,
    user_inputs,
    written_targets,
)
from delegraph_programs.exported_program import MUTATIONS, STATE_WRITES
from delegraph_programs.memory_overlap import expect_written_apart
from delegraph_programs.program_arguments import Arguments, TensorCheck, packer
from delegraph_programs.required_strides import (
    Layout,
    arrange,
    output_layouts,
    pinned_inputs,
    result_layouts,
    same_strides,
)
from delegraph_programs.restore_inputs import KeptInputs, count_writes
from delegraph_programs.sizes_below_two import failed_at
from delegraph_programs.source_line import first_source
from delegraph_programs.tracing_lock import ForkSafeLock
from torch.export import ExportedProgram
from torch.export.graph_signature import InputSpec, OutputKind
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ..backend import CompileSpec
from ..delegates.find_delegates import delegate_calls
from ..delegates.lowered_module import Argument, LoweredBackendModule
from ..discovery.plugin_call import PluginCall
from ..errors import ContractViolation, DelegraphError, InputError, NoRuntime
from ..runtime import BackendRuntime, BlobHeader, Delegate, Observer
from .blob_compatibility import expect_compatible
from .graph_function import BoundDelegate, Graph, GraphFunction

if TYPE_CHECKING:
    from ..discovery.registry import Registry

OnMissingRuntime = Literal["error", "eager"]
_BUILDING = ForkSafeLock()
_LOCK_OF_RUNTIME: WeakKeyDictionary[type[BackendRuntime], ForkSafeLock] = (
    WeakKeyDictionary()
)
"""Runtime that is not thread-safe -> the lock that is held while the runtime loads or
runs a delegate.
"""


Attribute = Callable[[str, Callable[..., Any]], Callable[..., Any]]
"""Takes the plugin's task, such as "delegate", and a function of the plugin. Returns
the function with errors that name the plugin and the task (``PluginCall``).
"""


class DelegateHook:
    """How a delegate is loaded and called. To get values or times inside of delegates,
    observers have subclasses of this.
    """

    def loader(self, runtime: type[BackendRuntime]) -> Callable[..., Any]:
        """Return the function of ``runtime`` that loads the blob."""
        return runtime.load

    def wrap(self, run: Callable[..., Any], attribute: Attribute) -> Delegate:
        """Return ``run``, the loaded blob, as a function that returns only the outputs.

        A hook's ``loader`` may make ``run`` return values or times, too. ``attribute``:
        makes errors name the plugin, if the hook calls further functions of it.
        """
        return run

    def copy(self, results: tuple[Any, ...]) -> tuple[Any, ...]:
        """Copy results that the next call of the runtime may overwrite."""
        return tuple(r.clone() if isinstance(r, torch.Tensor) else r for r in results)


_PLAIN = DelegateHook()


class Delegates:
    """The delegates of one instance of a program, each loaded at most once. An instance
    has its own state (``LoweredProgram.instance``).

    Delegates that keep state are loaded again for each instance (``fresh``).
    ``on_missing``: if a backend has no runtime, raise NoRuntime ("error") or run the
    original operators ("eager"). ``hook_of``: returns the hook of a delegate; hooks
    pass values or times inside of delegates to an observer.
    """

    def __init__(
        self,
        registry: Registry,
        on_missing: OnMissingRuntime = "error",
        hook_of: Callable[[LoweredBackendModule], DelegateHook] = lambda module: _PLAIN,
    ) -> None:
        self.registry = registry
        self.on_missing = on_missing
        self._hook_of = hook_of
        # delegates without state; all instances share this table
        self._shared: dict[LoweredBackendModule, LoadedDelegate] = {}
        # delegates with state, of this instance alone
        self._stateful: dict[LoweredBackendModule, LoadedDelegate] = {}

    def fresh(self) -> Delegates:
        """Return the delegates of a new instance. Both instances share the delegates
        without state; the new one loads the others again.
        """
        another = Delegates(self.registry, self.on_missing, self._hook_of)
        another._shared = self._shared
        return another

    def get(self, module: LoweredBackendModule) -> LoadedDelegate:
        """Return the delegate that runs the calls of ``module``; the first call for
        ``module`` makes it.
        """
        table = self._stateful if module.state else self._shared
        # Making a LoadedDelegate is cheap: its blob is loaded later. ``setdefault``: if
        # two threads come at once, both get the same delegate.
        loaded = LoadedDelegate(module, self, self._hook_of(module))
        return table.setdefault(module, loaded)


@dataclass(frozen=True, eq=False)
class StoredDelegate:
    """A delegate that was read from a file, without the program of its partition.

    ``data``: named data. ``where``: where the delegate is, for errors. ``outputs``:
    None, because a file does not record the types of outputs.
    """

    backend_id: str
    processed_bytes: bytes
    compile_specs: list[CompileSpec]
    data: Mapping[str, bytes]
    where: str
    header: BlobHeader
    outputs: None = None

    @property
    def where_and_nodes(self) -> tuple[str, tuple[Node, ...]]:
        """Return (where the delegate is, its nodes), for errors of its runtime. A file
        does not have the nodes.
        """
        return self.where, ()

    def named_data(self) -> Mapping[str, bytes]:
        """Return named data by key."""
        return self.data


class LoadedDelegate:
    """A delegate as a function. The runtime loads the blob at the first call. No other
    class calls runtimes of plugins.

    Raises ContractViolation if results do not have the recorded types, or if the
    runtime writes to its inputs.
    """

    def __init__(
        self,
        module: LoweredBackendModule | StoredDelegate,
        delegates: Delegates,
        hook: DelegateHook = _PLAIN,
    ) -> None:
        """``module``: the delegate in a lowered program, or in a file. ``delegates``:
        has the registry and options.
        """
        self._module = module
        self._delegates = delegates
        self._hook = hook
        # a check for each output; None for a delegate from a file, which does not
        # record types
        self._checks = (
            None
            if module.outputs is None
            else [_type_check(output) for output in module.outputs]
        )
        # Held while the blob is loaded. If the runtime is not thread-safe, ``_load``
        # replaces it by the lock of the runtime, which calls hold, too.
        self._lock = ForkSafeLock("loading the same delegate")
        self._run: Delegate | None = None
        # Whether results are copied, since the next call may overwrite them. This and
        # ``_any_strides`` are set when the blob is loaded.
        self._copies = False
        self._any_strides = False
        # whether the next call compares its inputs before and after
        self._compares_inputs = True

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Call the delegate with its run-time inputs; returns its outputs as a tuple."""
        run = self._run or self._load()
        if not self._copies:
            return self._check(self._call(run, args))
        # the runtime is not thread-safe, and may return buffers that its next call
        # overwrites
        with self._lock:
            return self._hook.copy(self._check(self._call(run, args)))

    def arrange(self, value: Any, layout: Layout | None) -> Any:
        """Return an input in the ``layout`` that the backend saw. Return it unchanged if
        the runtime takes any strides, or if ``layout`` is None.
        """
        return value if self._any_strides else arrange(value, layout)

    def call_comparing(self, *args: Any) -> tuple[Any, ...]:
        """Call the delegate and compare its inputs before and after. Raises
        ContractViolation if the delegate wrote to one of them.
        """
        self._compares_inputs = True
        return self(*args)

    def _call(self, run: Delegate, args: tuple[Any, ...]) -> Any:
        """Call the runtime and check that it does not write to its inputs.

        The first call compares the values of the inputs before and after. Later calls
        only compare torch's counts of writes to the inputs. If a count changed, another
        thread may have written to another part of the same memory. So the next call
        compares values again. If values changed, the input gets its old values back,
        and ContractViolation is raised.
        """
        if not self._compares_inputs:
            counts = count_writes(args)
            results = run(*args)
            self._compares_inputs = count_writes(args) != counts
            return results
        copies = KeptInputs.of(args)
        results = run(*args)
        written = copies.put_back()  # positions of the inputs that the runtime wrote
        if written:
            raise self._input_written(written[0], args[written[0]])
        self._compares_inputs = False
        return results

    def _input_written(self, position: int, value: torch.Tensor) -> ContractViolation:
        """Return the error for a runtime that wrote to its input ``value``, at this
        ``position``.
        """
        module = self._module
        name = ""
        if isinstance(module, LoweredBackendModule):
            name = f" ({module.inputs[position].name})"
        where, nodes = module.where_and_nodes
        which = f"its input {position}{name}, {_type_of(value)}, at {where}"
        text = (
            f"the runtime of {module.backend_id} wrote to {which}; it has its values"
            " again"
        )
        hint = (
            "for its authors: compute into tensors of your own, inputs are the caller's"
        )
        return ContractViolation(
            "contract-violation", text, source=first_source(nodes), hint=hint
        )

    def _load(self) -> Delegate:
        """Load the blob, unless another thread has done so, and return the function
        that runs it.

        Keeps the function in ``_run``, and sets ``_lock``, ``_copies`` and
        ``_any_strides`` as the runtime needs them. Raises FormatError if the blob is
        damaged, or if the runtime refuses a blob from a file.

        Raises NoRuntime if the backend has no runtime. But if ``on_missing`` is
        "eager", the function then runs the original operators in eager PyTorch. A
        delegate from a file has no original operators, so NoRuntime is raised for it.
        """
        module = self._module
        registry = self._delegates.registry
        try:
            runtime = registry.runtime_for(module.backend_id)
        except NoRuntime:
            if self._delegates.on_missing != "eager" or not isinstance(
                module, LoweredBackendModule
            ):
                raise
            # Run the original operators by an ``Executable``. torch's own module would
            # write state into the program's tensors, and refuse other strides than the
            # recorded ones. Delegates inside have no hook: observers know only the
            # program's own.
            inner = Delegates(registry, "eager")
            with self._lock:
                self._run = self._run or Executable(module.original_module, inner)
                return self._run
        # replace the lock of this delegate by one for all delegates of the runtime, in
        # all programs
        if not runtime.thread_safe:
            with _BUILDING:
                self._lock = _LOCK_OF_RUNTIME.setdefault(
                    runtime, ForkSafeLock(f"calling {runtime.__name__}")
                )
        with self._lock:
            if self._run is None:
                if isinstance(module, StoredDelegate):
                    # raises FormatError for a blob of another device, for example
                    expect_compatible(module.header, module.compile_specs, registry)

                where, nodes = module.where_and_nodes

                def attribute(
                    doing: str, function: Callable[..., Any]
                ) -> Callable[..., Any]:
                    """Return ``function`` with errors that name the plugin."""
                    call = PluginCall(runtime, doing, where, nodes, registry)
                    return call.around(function)

                with PluginCall(runtime, "load", where, nodes, registry):
                    load = self._hook.loader(runtime)
                    loaded = load(
                        module.processed_bytes,
                        module.compile_specs,
                        module.named_data(),
                    )
                    run = self._hook.wrap(attribute("delegate", loaded), attribute)
                self._copies = not runtime.thread_safe
                self._any_strides = runtime.any_strides
                self._run = run
            return self._run

    def _check(self, results: Any) -> tuple[Any, ...]:
        """Return ``results`` as a tuple. Raises ContractViolation unless ``results`` is
        a tuple or list with the recorded types. Types of a delegate from a file are not
        recorded.
        """
        if not isinstance(results, (tuple, list)):
            raise self._wrong_results(type(results).__name__)
        checks = self._checks
        if checks is not None:
            fit = len(results) == len(checks) and all(
                fits(result) for fits, result in zip(checks, results, strict=True)
            )
            if not fit:
                raise self._wrong_results([_type_of(r) for r in results])
        return tuple(results)

    def _wrong_results(self, returned: Any) -> ContractViolation:
        """Return the error for results that are not as recorded. ``returned`` describes
        these results.
        """
        wanted: Any = "a tuple"
        if self._module.outputs is not None:
            wanted = [_type_of(output) for output in self._module.outputs]
        return ContractViolation(
            "contract-violation",
            f"the runtime of {self._module.backend_id} returned {returned}, but"
            f" the delegate must return {wanted}",
        )


def _type_check(output: Argument) -> Callable[[Any], bool]:
    """Return a function that checks whether a value at run time is a valid ``output``.

    That is a tensor of the recorded dtype and shape, or anything but a tensor where a
    number is recorded.
    """
    if output.dtype is None:
        return lambda value: not isinstance(value, torch.Tensor)
    return TensorCheck(output.dtype, output.shape or ()).fits


def _type_of(value: Any) -> Any:
    """Return (dtype, shape) of a tensor or an ``Argument``, or "number"; for messages."""
    if isinstance(value, (torch.Tensor, Argument)) and value.dtype is not None:
        return value.dtype, tuple(value.shape or ())
    return "number"


Function = TypeVar("Function", bound=Callable[..., Any])


def uncompiled(function: Function) -> Function:
    """Return ``function`` as a function that torch.compile calls but does not compile.

    Without this, Dynamo would trace code that reads tables and runs engines. A call
    while torch.export traces raises InputError.
    """
    # empty until the first call under Dynamo; not ``functools.cache``, because Dynamo
    # warns of it
    disabled: list[Callable[..., Any]] = []

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        # ``is_exporting`` is true in all threads of the process; only the thread that
        # traces has a dispatch mode
        if torch.compiler.is_exporting() and _get_current_dispatch_mode_stack():
            raise InputError(
                "input-invalid",
                "torch.export cannot export a model that calls a lowered program, whose"
                " delegates it cannot trace",
                hint="export the original model, and lower the exported program",
            )
        # ``torch.compiler.disable`` imports Dynamo, which takes more than a second. If
        # Dynamo is not imported yet, nothing is compiled.
        if "torch._dynamo" in sys.modules:
            if not disabled:
                # keeps Dynamo from compiling the functions that ``function`` calls
                disabled.append(torch.compiler.disable(function))  # type: ignore[no-untyped-call]
            return disabled[0](*args, **kwargs)
        return function(*args, **kwargs)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]  # Dynamo's mark: do not trace this function
    call._torchdynamo_disable_msg = "a lowered program runs outside of compiled code"  # type: ignore[attr-defined]
    return cast(Function, call)


class PinnedInput(NamedTuple):
    """An input that must have its recorded strides. ``reader``: the operator that
    depends on them, such as ``as_strided``.
    """

    position: int
    placeholder: Node
    reader: Node


class Method:
    """The fixed part of a method: its program, its calling convention and its graph.

    All ``Executable`` objects of the method share it; each has its own buffers.

    ``written``: positions of inputs that the program writes. ``copied``: (position of
    an output, position of the input that it is copied to). ``stored``: (position of an
    output, name of the buffer that gets it as its new value).
    """

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        # checks the arguments of a call, and flattens them
        self.arguments = Arguments(program)
        # gives flat results the structure that the user's program returns
        self.pack = packer(program.call_spec.out_spec)
        specs = list(enumerate(program.graph_signature.output_specs))
        self.inputs = user_inputs(program)
        names = [n.name for n in self.inputs]
        # an output may be the new value of an input or buffer, which is the target of
        # the output's spec
        self.copied = [
            (k, names.index(str(s.target)))
            for k, s in specs
            if s.kind is OutputKind.USER_INPUT_MUTATION
        ]
        self.written = [position for _, position in self.copied]
        self.stored = [(k, str(s.target)) for k, s in specs if s.kind in STATE_WRITES]
        self.delegates_keep_state = any(m.state for _, m in delegate_calls(program))
        self.keeps_state = bool(self.stored) or self.delegates_keep_state

    @cached_property
    def buffers(self) -> list[tuple[Node, InputSpec]]:
        """Return placeholder and spec of each buffer that the program writes."""
        names = written_targets(self.program)
        return [(n, s) for n, s in placeholders(self.program) if s.target in names]

    @cached_property
    def graph(self) -> Graph:
        """Return the graph as a function of the written buffers and the user's inputs."""
        module = self.program.graph_module
        written = [node for node, _ in self.buffers]
        parameters = [*written, *self.inputs]
        constants = {
            node: constant_tensor(self.program, spec)
            for node, spec in placeholders(self.program)
            if node not in parameters
        }
        return Graph(module, parameters, constants, result_layouts(module, written))

    @cached_property
    def initial(self) -> dict[str, tuple[torch.Tensor, Layout | None]]:
        """Return name of each written buffer -> (initial tensor, recorded layout).

        The layout is None if the tensor is not strided. The order is that of
        ``buffers``.
        """
        return {
            str(s.target): (
                constant_tensor(self.program, s),
                Layout.of(n.meta.get("val"), with_offset=True),
            )
            for n, s in self.buffers
        }

    @cached_property
    def returned(self) -> list[tuple[int, Layout | None]]:
        """Return positions of the outputs that the caller gets, each with the layout
        that it must have.

        The other outputs are new values of inputs and buffers. The layout is None if no
        delegate had a part in the output; the strides that torch computes then stay.
        """
        pairs = zip(
            self.program.graph_signature.output_specs,
            output_layouts(self.program),
            strict=True,
        )
        return [
            (k, layout)
            for k, (spec, layout) in enumerate(pairs)
            if spec.kind not in MUTATIONS
        ]

    @cached_property
    def pinned(self) -> list[PinnedInput]:
        """Return the inputs that must have their recorded strides."""
        readers = pinned_inputs(self.program)
        return [
            PinnedInput(k, node, readers[node])
            for k, node in enumerate(self.inputs)
            if node in readers
        ]


class Executable:
    """One instance of a method: called with the arguments of the exported module, by
    any number of threads.

    The instance keeps the buffers that the program or its delegates write; the caller's
    module never changes. Calls of a program that writes buffers run one after the
    other.
    """

    def __init__(
        self,
        program: ExportedProgram | Method,
        delegates: Delegates | None = None,
        observer: Observer | None = None,
    ) -> None:
        """``delegates``: those of any instance, of which this instance uses ``fresh()``;
        None for a program that calls no delegate. ``observer``: gets each node and its
        value.
        """
        self._method = program if isinstance(program, Method) else Method(program)
        self.program = self._method.program
        self._delegates = delegates.fresh() if delegates is not None else None
        self._observer = observer
        # threads take turns only if a call writes state that the next call reads
        self._lock: AbstractContextManager[Any] = (
            ForkSafeLock("calling the same program")
            if self._method.keeps_state
            else nullcontext()
        )
        # name of a written buffer -> its present value
        self._state: dict[str, torch.Tensor] = {}
        self._run: Callable[..., Any] | None = None

    def instance(self) -> Executable:
        """Return another instance of the method, with buffers in their initial state."""
        return Executable(self._method, self._delegates)

    def __deepcopy__(self, memo: dict[int, Any]) -> Executable:
        """Return a copy of this instance. Its buffers have the present values of the
        buffers of this instance.

        Raises InputError if a delegate keeps state, which only its runtime has.
        """
        if self._method.delegates_keep_state:
            raise InputError(
                "input-invalid",
                "a program with delegates that keep state cannot be copied: their"
                " runtimes have the state",
                hint="lowered.instance() starts from the initial state",
            )
        copy = self.instance()
        with self._lock:
            copy._state = {k: v.clone() for k, v in self._state.items()}
        return copy

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the program: write new values to inputs and buffers, and return the
        results in the user's structure.

        Raises InputError if arguments do not fit. If an operator fails and an input has
        a size for which torch did not trace the program, the error becomes an
        InputError about that size (``failed_at``); other errors pass.
        """
        flat = self._method.arguments(args, kwargs)
        if self._method.written:
            expect_written_apart(self._method.inputs, flat, self._method.written)
        with self._lock, torch.no_grad():
            run = self._run or self._prepare()
            for pinned in self._method.pinned:
                _check_strides(pinned, flat[pinned.position])
            try:
                results = run(*self._state.values(), *flat)
            except DelegraphError:
                raise
            # operators raise these for sizes that do not fit
            except (ArithmeticError, IndexError, RuntimeError, ValueError) as error:
                wrong_size = failed_at(self.program, flat, error)
                if wrong_size is None:
                    raise
                raise wrong_size from error
            return self._method.pack(self._finish(results, flat))

    # ``call`` is for callers that are ``uncompiled`` themselves: doing that twice costs
    # each call about 20 us
    __call__ = uncompiled(call)

    def _prepare(self) -> Callable[..., Any]:
        """Return the function that runs the program. The first call makes the function
        (``_run``) and the buffers (``_state``).
        """
        with _BUILDING:
            if self._run is None:
                for name, (tensor, layout) in self._method.initial.items():
                    # ``__deepcopy__`` may have put a buffer there already, which stays
                    value = arrange(tensor.detach().clone(), layout)
                    self._state.setdefault(name, value)
                self._run = GraphFunction(
                    self._method.graph, self._bind, self._observer
                )
            return self._run

    def observed(
        self,
        observer: Observer,
        hook_of: Callable[[LoweredBackendModule], DelegateHook],
    ) -> Executable:
        """Return a new instance of the method that passes each node and its value to
        ``observer``. ``hook_of``: as in ``Delegates``.
        """
        assert self._delegates is not None
        registry = self._delegates.registry
        delegates = Delegates(registry, self._delegates.on_missing, hook_of)
        return Executable(self._method, delegates, observer)

    def _bind(self, module: LoweredBackendModule) -> BoundDelegate:
        """Return the function that runs calls of ``module``."""
        delegate = self._delegate_of(module)
        return BoundDelegate(delegate, delegate.arrange)

    def _delegate_of(self, module: LoweredBackendModule) -> LoadedDelegate:
        """Return the delegate that runs the calls of ``module``."""
        assert self._delegates is not None, (
            "a program with delegates is run without their runtimes"
        )
        return self._delegates.get(module)

    def _finish(self, results: Sequence[Any], flat: Sequence[Any]) -> list[Any]:
        """Write the new values of inputs and buffers, and return the outputs that the
        caller gets.

        ``results``: all outputs of the graph. ``flat``: the inputs of the call.
        """
        for k, position in self._method.copied:
            flat[position].copy_(results[k])
        for k, name in self._method.stored:
            layout = self._method.initial[name][1]
            self._state[name] = arrange(results[k], layout)
        return [arrange(results[k], layout) for k, layout in self._method.returned]


class InputComparingExecutable(Executable):
    """An Executable in which each call of a delegate compares the delegate's inputs
    before and after.
    """

    def _bind(self, module: LoweredBackendModule) -> BoundDelegate:
        """Return the function that runs calls of ``module`` and compares the inputs."""
        delegate = self._delegate_of(module)
        return BoundDelegate(delegate.call_comparing, delegate.arrange)


def _check_strides(pinned: PinnedInput, value: torch.Tensor) -> None:
    """Raise InputError if ``value`` lacks the recorded strides of the input."""
    node = pinned.placeholder
    reader = pinned.reader
    layout = Layout.of(node.meta["val"])
    # None: no layout was recorded for the input, and any strides will do
    wanted = value.stride() if layout is None else layout.strides_for(value.shape)
    if not same_strides(value, wanted):
        text = (
            f"input {node.name} has the strides {list(value.stride())}; it was exported"
            f" with {list(wanted)}, on which the result of {reader.target} depends"
        )
        hint = (
            "give the input in the layout of the example, or export with one in this"
            " layout"
        )
        raise InputError("input-invalid", text, reader, source_of(reader), hint)


def run_in_eager(module: GraphModule) -> Callable[..., Any]:
    """Return the graph of ``module`` as a function of its placeholders. Delegates in it
    run their original operators in eager PyTorch.
    """
    inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
    return GraphFunction(
        Graph(module, inputs, {}, {}),
        lambda delegate: BoundDelegate(Executable(delegate.original_module)),
    )
