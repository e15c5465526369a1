"""One method: its inputs, the body, the write-back of its state, its outputs, and the
plan of its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from delegraph.errors import Unsupported
from delegraph.formats import DelegateContents
from delegraph_programs import constant_tensor as tensor_of
from delegraph_programs import output_values, placeholders, user_inputs, written_targets
from delegraph_programs.call_names import INDEXED, WITHIN
from delegraph_programs.exported_program import trained_targets
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec
from torch.fx import Node
from torch.utils import _pytree as pytree

from ..containers import encode_inputs, encode_outputs, encode_structure
from ..memory import Home, Storage, find_lifetimes, plan_memory
from ..program.shared_memory import MEMORY
from ..program.tables import (
    Chain,
    ContainerMetadata,
    EValue,
    ExecutionPlan,
    FrameList,
    Instruction,
    NonConstBufferDevice,
)
from .assembler import Assembler
from .body import Body, Item, Result
from .context import Context, Delegates
from .finish import finish_values
from .in_place import KERNEL, find_in_place
from .kernel_calls import copy_tensor
from .sizes import size_relations, upper_bounds
from .sources import stack_traces
from .values import TensorValue, ValueTable, constant_tensor, planned_tensor

_WRITES = (
    OutputKind.BUFFER_MUTATION,
    OutputKind.PARAMETER_MUTATION,
    OutputKind.USER_INPUT_MUTATION,
)
_RETURNED = (
    OutputKind.USER_OUTPUT,
    OutputKind.LOSS_OUTPUT,
    OutputKind.GRADIENT_TO_PARAMETER,
)
_VARYING = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class DebugHandles:
    """Of one method: the debug handle of each instruction, and of each delegate its
    debug handle map.
    """

    instructions: tuple[int | None, ...]
    delegates: tuple[dict[Any, tuple[int, ...]], ...]


def emit_method(
    name: str,
    program: ExportedProgram,
    delegates: list[DelegateContents],
    context: Context,
    plan_inputs: bool = True,
    plan_outputs: bool = True,
    takes_device: bool = False,
    gives_device: bool = False,
) -> tuple[ExecutionPlan, DebugHandles]:
    """The table of a method. Raises Unsupported for what a program file, or the
    kernels, cannot hold.

    ``plan_inputs`` and ``plan_outputs``: whether inputs and outputs get planned memory,
    or the caller brings it. ``takes_device`` and ``gives_device``: whether inputs that
    only a delegate of another device reads come from that device's memory, and results
    of such a delegate stay there.
    """

    def emit(folded: dict[Node, Result]) -> _Method:
        method = _Method(name, program, Delegates(context, delegates), context)
        method.body.folded = folded
        method.plan_inputs = plan_inputs
        method.plan_outputs = plan_outputs
        method.takes_device = takes_device
        method.gives_device = gives_device
        method.emit()
        return method

    method = emit({})
    # known from the start, so that what they were computed from is not emitted
    if method.body.folded:
        method = emit(method.body.folded)
    return method.finish()


def emit_constant_method(name: str, value: Any, context: Context) -> ExecutionPlan:
    """The table of a method that only returns a value: tensors, numbers, strings, or
    containers of them.
    """
    leaves, structure = pytree.tree_flatten(value)
    values = ValueTable()
    outputs = [
        (
            values.position(constant_tensor(v))
            if isinstance(v, torch.Tensor)
            else values.constant(v)
        )
        for v in leaves
    ]
    finished = finish_values(values.entries, {}, context)
    container = ContainerMetadata(
        encode_structure(pytree.tree_structure(((), {}))), encode_structure(structure)
    )
    return ExecutionPlan(
        name=name,
        container=container,
        values=tuple(EValue(v) for v in finished),
        outputs=tuple(outputs),
        chains=(Chain(),),
        memory_sizes=(0,),
    )


def training_methods(name: str, program: ExportedProgram) -> dict[str, Any]:
    """What a trainer asks of a joint method, by the names of constant methods:
    ExecuTorch's reads these.

    Where gradients and parameters start among the outputs, and what the parameters are
    called; {} for other methods.
    """
    kinds = [
        s.kind for s in program.graph_signature.output_specs if s.kind in _RETURNED
    ]
    trained = trained_targets(program)
    if not trained:
        return {}
    return {
        f"__et_training_gradients_index_{name}": kinds.index(
            OutputKind.GRADIENT_TO_PARAMETER
        ),
        f"__et_training_fqn_{name}": trained,
        f"__et_training_parameters_index_{name}": len(kinds),
    }


class _Method:
    def __init__(
        self,
        name: str,
        program: ExportedProgram,
        delegates: Delegates,
        context: Context,
    ) -> None:
        self.name = name
        self.program = program
        self.context = context
        self.assembler = Assembler()
        self.delegates = delegates
        ranges = program.range_constraints
        self.body = Body(
            program.graph_module, self.assembler, self.delegates, context, ranges
        )
        self.plan_inputs = self.plan_outputs = True
        self.takes_device = self.gives_device = False
        self.state: dict[str, TensorValue] = {}
        self.inputs: list[Item] = []
        self.input_positions: list[int] = []
        self.output_positions: list[int] = []

    def emit(self) -> None:
        self._bind_placeholders()
        self.input_positions = [self.body.position(i) for i in self.inputs]
        if KERNEL in self.context.kernels:
            states = {
                n: v
                for n, v in self.body.of.items()
                if isinstance(v, TensorValue) and v.storage.home is Home.STATE
            }
            self.body.in_place = find_in_place(self.program, states)
        if self.takes_device:
            self.body.inputs_on_device = frozenset(
                i for i in self.inputs if isinstance(i, TensorValue)
            )
        if self.gives_device:
            # what the method writes, or returns twice, it has to copy itself, which it
            # can on the host only
            values = [value for _, value in self._specs()]
            results = (
                value
                for spec, value in self._specs()
                if spec.kind is OutputKind.USER_OUTPUT
            )
            self.body.results_on_device = frozenset(
                v for v in results if isinstance(v, Node) and values.count(v) == 1
            )
        self.body.emit()
        self.assembler.handle = None
        outputs = self._outputs()
        self._write_back()
        self.output_positions = [self.body.position(o) for o in outputs]
        # with its first value, also if this method only reads a view of it
        for state in self.state.values():
            self.body.position(state)

    def finish(self) -> tuple[ExecutionPlan, DebugHandles]:
        """The table of what was emitted; its constants and blobs go to the pools that
        methods share.
        """
        plan = self._finish(self.input_positions, self.output_positions)
        maps = tuple(dict(d.debug_handle_map) for d in self.delegates.used.values())
        handles = DebugHandles(tuple(self.assembler.handles), maps)
        return plan, handles

    def _bind_placeholders(self) -> None:
        written = written_targets(self.program)
        trained = trained_targets(self.program)
        given = {
            s.target
            for s in self.program.graph_signature.output_specs
            if s.kind in _WRITES
        }
        for node, spec in placeholders(self.program):
            if spec.kind is InputKind.USER_INPUT:
                self.body.of[node] = item = self._input(
                    node, written_by_program=spec.arg.name in given
                )
                self.inputs.append(item)
            elif spec.target in written or (
                spec.target not in trained and self._place(spec) is not None
            ):
                # another method writes it, or this one
                self.body.of[node] = self.state[str(spec.target)] = self._state(spec)
            elif spec.target in trained:
                made = self._constant(node, spec, is_trained=True)
                self.body.of[node] = self.state[str(spec.target)] = (
                    made if made.file else self._state(spec)
                )
            else:
                self.body.of[node] = self._constant(node, spec, is_trained=False)

    def _input(self, node: Node, written_by_program: bool) -> Item:
        val = node.meta.get("val")
        if not isinstance(val, torch.Tensor):
            return (
                self.body.new_value(val, node)
                if isinstance(val, torch.SymInt | torch.SymFloat)
                else val
            )
        sizes, varies = upper_bounds(val.shape, self.program.range_constraints, node)
        planned = self.plan_inputs and not written_by_program
        return planned_tensor(
            val.dtype, sizes, varies, Home.PLANNED if planned else Home.GIVEN
        )

    def _constant(self, node: Node, spec: InputSpec, is_trained: bool) -> TensorValue:
        made = constant_tensor(tensor_of(self.program, spec))
        made.file = (
            self.context.file_of(node, is_trained) if _is_of_model(node, spec) else ""
        )
        made.name = str(spec.target) if made.file else ""
        return made

    def _state(self, spec: InputSpec) -> TensorValue:
        tensor = tensor_of(self.program, spec)
        given = spec.kind is InputKind.BUFFER and not self.context.plans_states
        home = Home.GIVEN if given else Home.STATE
        made = planned_tensor(tensor.dtype, tuple(tensor.shape), False, home)
        made.initial = tensor
        if home is Home.STATE and (place := self._place(spec)) is not None:
            made.storage.memory_id = MEMORY
            made.storage.offset = place
        made.name = str(spec.target) if self.context.names_states else ""
        return made

    def _place(self, spec: InputSpec) -> int | None:
        """Where a buffer lies in the memory of states; None if the method plans a place
        for it.
        """
        return self.context.places.offsets.get((self.name, str(spec.target)))

    def _specs(self) -> Iterable[tuple[OutputSpec, Any]]:
        return zip(
            self.program.graph_signature.output_specs,
            output_values(self.program),
            strict=True,
        )

    def _outputs(self) -> list[Item]:
        """What the caller gets. It is copied where it is memory that is not the
        method's to give away.

        The parameters of a joint program come last, and are not copied: a trainer
        updates them where they are.
        """
        outputs: list[Item] = []
        for spec, value in self._specs():
            if spec.kind in _RETURNED:
                item = self.body.item(value)
                taken = isinstance(item, TensorValue) and self._is_taken(item, outputs)
                outputs.append(self._copied(item) if taken else item)
        return [
            *outputs,
            *(self._trained(target) for target in trained_targets(self.program)),
        ]

    def _trained(self, target: str) -> TensorValue:
        if target not in self.state:
            text = (
                f"the program returns a gradient for {target}, which is no parameter"
                " that it reads"
            )
            raise Unsupported(
                "unsupported", text, hint="train it, or leave its gradient out"
            )
        return self.state[target]

    def _is_taken(self, item: TensorValue, outputs: Sequence[Item]) -> bool:
        if item.storage.home is not Home.PLANNED:
            return True
        if not self.plan_outputs and self._has_views(item):
            return True
        return any(
            isinstance(o, TensorValue) and o.storage is item.storage
            for o in (*outputs, *self.inputs)
        )

    def _has_views(self, item: TensorValue) -> bool:
        """A caller brings memory for the output alone, not for other tensors that share
        it.
        """
        return any(
            t is not item and t.storage is item.storage
            for t in self.assembler.values.tensors()
        )

    def _copied(self, item: Item) -> Item:
        assert isinstance(item, TensorValue)
        made = planned_tensor(item.dtype, item.sizes, item.varies)
        copy_tensor(self.body, item, made)
        return made

    def _write_back(self) -> None:
        """Buffers and inputs that the program writes get their new values, after all
        old ones were read.
        """
        writes = [
            (self._written(s), self.body.item(v))
            for s, v in self._specs()
            if s.kind in _WRITES
        ]
        targets = {target.storage for target, _ in writes}
        safe = [
            (
                target,
                (
                    self._copied(v)
                    if isinstance(v, TensorValue)
                    and v.storage in targets
                    and v is not target
                    else v
                ),
            )
            for target, v in writes
        ]
        for target, value in safe:
            assert isinstance(value, TensorValue)
            if value is not target:
                position = self.body.position(target)
                args = [
                    position,
                    self.body.position(value),
                    self.body.position(False),
                    position,
                ]
                self.assembler.kernel("aten::copy_", "", args)

    def _written(self, spec: OutputSpec) -> TensorValue:
        target = str(spec.target)
        if spec.kind is not OutputKind.USER_INPUT_MUTATION:
            return self.state[target]
        node = next(n for n, s in placeholders(self.program) if n.name == target)
        return self.body.tensor(node)

    def _finish(self, inputs: Sequence[int], outputs: Sequence[int]) -> ExecutionPlan:
        entries = self.assembler.values.entries
        uses = [
            [t.storage for t in tensors] for tensors in self.assembler.tensors_used()
        ]
        self._release_outputs(outputs)
        devices = self._number_devices()
        if devices and self.context.places.are_shared_by(self.name):
            text = (
                f"method {self.name} plans memory of another device, and a runtime"
                " gives such a method all its memory"
            )
            hint = (
                "leave out share_mutable_buffers, or plan for the host:"
                " enable_non_cpu_memory_planning=False"
            )
            raise Unsupported(
                "unsupported",
                f"{text} alone: it would not share its buffers",
                hint=hint,
            )
        lifetimes = find_lifetimes(
            uses, self._storages(inputs), self._storages(outputs), self.assembler.loops
        )
        offsets, sizes = plan_memory(lifetimes, self.context.alignment)
        # in all methods, since a runtime may give them one memory
        if size := self.context.places.size:
            sizes += [0] * (MEMORY + 1 - len(sizes))
            sizes[MEMORY] = size
        values = finish_values(entries, offsets, self.context)
        instructions = tuple(Instruction(call) for call in self.assembler.instructions)
        return ExecutionPlan(
            name=self.name,
            container=self._container(),
            values=tuple(EValue(v) for v in values),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            chains=(Chain(instructions=instructions, stacktrace=self._stack_traces()),),
            operators=tuple(self.assembler.operators),
            delegates=self.delegates.tables(),
            memory_sizes=tuple(sizes),
            memory_devices=devices,
        )

    def _number_devices(self) -> tuple[NonConstBufferDevice, ...]:
        """Give each device a memory behind the host's, and say which it is."""
        storages = [t.storage for t in self.assembler.values.tensors()]
        places = sorted(
            {
                s.place
                for s in storages
                if s.place is not None and s.is_planned and s.nbytes
            }
        )
        after = max((s.memory_id for s in storages if s.place is None), default=1)
        after = max(after, MEMORY if self.context.places.size else 1)
        numbers = {place: after + k for k, place in enumerate(places, 1)}
        for storage in storages:
            if storage.place in numbers:
                storage.memory_id = numbers[storage.place]
        return tuple(
            NonConstBufferDevice(number, place.kind, place.number)
            for place, number in numbers.items()
        )

    def _stack_traces(self) -> tuple[FrameList, ...]:
        if not self.context.stack_traces:
            return ()
        return stack_traces(self.program.graph_module, self.assembler.handles)

    def _storages(self, positions: Sequence[int]) -> list[Storage]:
        entries = [self.assembler.values.entries[p] for p in positions]
        return [e.storage for e in entries if isinstance(e, TensorValue)]

    def _release_outputs(self, outputs: Sequence[int]) -> None:
        """Outputs that the caller brings memory for have none in the plan; parameters
        that it trains keep theirs.
        """
        if not self.plan_outputs:
            for position in outputs:
                entry = self.assembler.values.entries[position]
                if (
                    isinstance(entry, TensorValue)
                    and entry.storage.home is Home.PLANNED
                ):
                    entry.storage.home = Home.GIVEN

    def _ranges(self, mark: str) -> dict[int, Sequence[int]]:
        """Position of an input -> the range that it is marked with."""
        return {
            k: node.meta[mark]
            for k, node in enumerate(user_inputs(self.program))
            if mark in node.meta
        }

    def _container(self) -> ContainerMetadata:
        spec = self.program.call_spec
        signature: Any = self.program.module_call_graph[0].signature
        names = signature.forward_arg_names or ()
        fixed = [
            k
            for k, n in enumerate(user_inputs(self.program))
            if not isinstance(n.meta.get("val"), _VARYING)
        ]
        sizes = size_relations(self.program)
        within = self._ranges(WITHIN)
        indexed = self._ranges(INDEXED)
        takes = (
            encode_inputs(spec.in_spec, names, sizes, fixed, within, indexed)
            if spec.in_spec is not None
            else ""
        )
        used = self.delegates.used.values()
        outputs = encode_outputs(
            spec.out_spec,
            [len(delegate.outputs) for delegate in used],
            [delegate.producer for delegate in used],
            [delegate.fingerprint for delegate in used],
            [_facts_of_file(delegate.facts) for delegate in used],
        )
        return ContainerMetadata(takes, outputs)


def _facts_of_file(facts: Mapping[str, str]) -> dict[str, str]:
    """Return the facts that are true of a delegate in a file; a hint is for the person
    who lowers the program.
    """
    return {name: text for name, text in facts.items() if name != "hint"}


def _is_of_model(node: Node, spec: InputSpec) -> bool:
    """Whether a constant has a name in the model: export numbers what it lifts out of
    code, and so do we what we fold.

    Such numbers mean something else in each method, so a data file could not tell them
    apart.
    """
    is_attribute = node.name.startswith("c_") and "_lifted_tensor" not in node.name
    return spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) or is_attribute
