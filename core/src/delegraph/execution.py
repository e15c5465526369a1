"""Running a lowered program on this host: delegates through their runtimes, the rest in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from .attribution import AtWork, place_of
from .calling import check_fixed, flat_arguments
from .errors import ContractViolation, InputError, NoRuntime
from .lowered_module import Argument, LoweredBackendModule
from .signature import MUTATIONS, constant_tensor, placeholders, user_inputs, written_targets

if TYPE_CHECKING:
    from .registry import Registry

_CALL_DELEGATE = torch.ops.higher_order.executorch_call_delegate
_VIEW, _RESHAPE = torch.ops.aten.view.default, torch.ops.aten.reshape.default
OnMissingRuntime = Literal["error", "eager"]
CallDelegate = Callable[..., Any]


class Delegates:
    """Loads each blob once, when it is first called, and checks what it returns.

    A delegate that keeps state is loaded once for every ``fresh()``, and starts there from its initial state.
    """

    def __init__(self, registry: Registry, on_missing: OnMissingRuntime = "error") -> None:
        self._registry, self._on_missing = registry, on_missing
        self._loaded: dict[LoweredBackendModule, CallDelegate] = {}
        self._stateful: dict[LoweredBackendModule, CallDelegate] = {}

    def fresh(self) -> Delegates:
        """The same delegates, those that keep state in their initial state."""
        made = Delegates(self._registry, self._on_missing)
        made._loaded = self._loaded
        return made

    def __call__(self, module: LoweredBackendModule, *args: Any) -> tuple[Any, ...]:
        loaded = self._stateful if module.state else self._loaded
        if module not in loaded:
            loaded[module] = self._load(module)
        results = loaded[module](*args)
        _check_results(module, results)
        return tuple(results)

    def _load(self, module: LoweredBackendModule) -> CallDelegate:
        try:
            runtime = self._registry.runtime_for(module.backend_id)
        except NoRuntime:
            if self._on_missing == "eager":
                return self._eager(module)
            raise
        load, call = (AtWork(runtime, doing, *place_of(module), self._registry) for doing in ("load", "delegate"))
        with load:
            return call.around(runtime.load(module.processed_bytes, module.compile_specs, module.named_data()))

    def _eager(self, module: LoweredBackendModule) -> CallDelegate:
        """Not torch's module, which writes state into the program's tensors, and insists on the recorded strides."""
        return Executable(module.original_module, self)


def _check_results(module: LoweredBackendModule, results: Any) -> None:
    listed = results if isinstance(results, (tuple, list)) else ()
    if len(listed) != len(module.outputs) or not all(map(_agrees, module.outputs, listed)):
        given = [_type_of(r) for r in results] if isinstance(results, (tuple, list)) else type(results).__name__
        wanted = [_type_of(a) for a in module.outputs]
        text = f"the runtime of {module.backend_id} returned {given}; the calling convention says {wanted}"
        raise ContractViolation("contract-violation", text)


def _agrees(wanted: Argument, value: Any) -> bool:
    """Symbolic sizes agree with any: comparing one with a number would fix it in the program."""
    if wanted.dtype is None or not isinstance(value, torch.Tensor):
        return wanted.dtype is None and not isinstance(value, torch.Tensor)
    return value.dtype == wanted.dtype and _fits(wanted.shape or (), value.shape)


def _type_of(value: Any) -> Any:
    described = isinstance(value, (torch.Tensor, Argument)) and value.dtype is not None
    return (value.dtype, tuple(value.shape or ())) if described else "number"


class _Interpreter(torch.fx.Interpreter):
    """torch's interpreter, with calls of delegates sent to ``call``."""

    def __init__(self, module: torch.fx.GraphModule, call: CallDelegate) -> None:
        super().__init__(module)
        self._call = call
        self._bodies: dict[str, Callable[..., Any]] = {}

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """``view`` was chosen by recorded strides; inputs, and results of delegates or of kernels, may have others."""
        if target is _CALL_DELEGATE:
            return self._call(*args)
        return super().call_function(_RESHAPE if target is _VIEW else target, args, kwargs)

    def fetch_attr(self, target: str) -> Any:
        """Bodies of higher-order calls run here as well, so that delegates inside of them do."""
        found = super().fetch_attr(target)
        if not isinstance(found, torch.fx.GraphModule):
            return found
        if target not in self._bodies:
            inner = _Interpreter(found, self._call)
            self._bodies[target] = lambda *args: inner.run(*args, enable_io_processing=False)
        return self._bodies[target]


class Executable:
    """One method, ready to be called with the arguments of the exported module.

    Buffers that the program or its delegates write live here from the first call on; the caller's module is not
    touched.
    """

    def __init__(self, program: ExportedProgram, call: CallDelegate) -> None:
        call = call.fresh() if isinstance(call, Delegates) else call
        self.program, self._interpreter = program, _Interpreter(program.graph_module, call)
        self._state: dict[str, torch.Tensor] = {}
        self._written = written_targets(program)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        flat = self._flatten(args, kwargs)
        with torch.no_grad():
            results = self._interpreter.run(*self._inputs(flat), enable_io_processing=False)
        returned = self._write_back(results, flat)
        return pytree.tree_unflatten(returned, self.program.call_spec.out_spec)

    def _flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        flat = flat_arguments(self.program.call_spec.in_spec, args, kwargs)
        for node, value in zip(user_inputs(self.program), flat, strict=True):
            _check_input(node.name, node.meta.get("val"), value)
        return flat

    def _inputs(self, flat: Sequence[Any]) -> list[Any]:
        given = iter(flat)
        return [self._input(spec, given) for _, spec in placeholders(self.program)]

    def _input(self, spec: Any, given: Any) -> Any:
        if spec.kind is InputKind.USER_INPUT:
            return next(given)
        tensor = constant_tensor(self.program, spec)
        if spec.target not in self._written:
            return tensor
        return self._state.setdefault(spec.target, tensor.detach().clone())

    def _write_back(self, results: Sequence[Any], flat: Sequence[Any]) -> list[Any]:
        """Store what the signature calls mutations; return the rest."""
        names = [n.name for n in user_inputs(self.program)]
        specs = self.program.graph_signature.output_specs
        for spec, value in zip(specs, results, strict=True):
            if spec.kind is OutputKind.USER_INPUT_MUTATION:
                flat[names.index(str(spec.target))].copy_(value)
            elif spec.kind in MUTATIONS:
                self._state[str(spec.target)] = value
        return [v for s, v in zip(specs, results, strict=True) if s.kind not in MUTATIONS]


def _check_input(name: str, wanted: Any, value: Any) -> None:
    if isinstance(wanted, torch.Tensor):
        shape = getattr(value, "shape", None)
        right = isinstance(value, torch.Tensor) and value.dtype == wanted.dtype and _fits(wanted.shape, shape)
        if not right:
            expected = f"{wanted.dtype} of shape {list(wanted.shape)}"
            raise InputError("input-invalid", f"input {name} is to be {expected}; it is {_given(value)}")
    else:
        check_fixed(name, wanted, value)


def _fits(wanted: Sequence[Any], given: Any) -> bool:
    return len(wanted) == len(given) and all(w == g for w, g in zip(wanted, given, strict=True) if isinstance(w, int))


def _given(value: Any) -> str:
    return f"{value.dtype} of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
