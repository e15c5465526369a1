"""Emit one method: inputs, instructions, written states, outputs and memory plan.

States are the buffers and trained parameters that keep their content between runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from delegraph.delegates import DelegateInfo
from delegraph.errors import Unsupported
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
from ..program.pte_tables import (
    Chain,
    ContainerMetadata,
    EValue,
    ExecutionPlan,
    FrameList,
    Instruction,
    NonConstBufferDevice,
)
from ..program.shared_memory import MEMORY
from .assembler import Assembler
from .context import Context, Delegates
from .file_values import finish_values
from .graph_emitter import GraphEmitter, Item, Result
from .in_place import INDEX_PUT_KERNEL, find_in_place
from .kernel_calls import copy_tensor
from .method_values import TensorValue, ValueTable, constant_tensor, planned_tensor
from .size_bounds import size_relations, upper_bounds
from .stack_frames import stack_traces

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
    """The debug handle of each instruction of a method, and each delegate's handle map."""

    instructions: tuple[int | None, ...]
    delegates: tuple[dict[Any, tuple[int, ...]], ...]


@dataclass(frozen=True)
class MethodOptions:
    """Options of one method.

    ``plan_inputs`` and ``plan_outputs``: whether inputs and outputs get planned memory.
    Otherwise the caller provides it. ``inputs_on_device``: whether the caller passes
    inputs of a delegate in its device's memory. ``outputs_on_device``: whether the
    caller gets results in the memory of the device that computed them.
    """

    plan_inputs: bool = True
    plan_outputs: bool = True
    inputs_on_device: bool = False
    outputs_on_device: bool = False


def emit_method(
    name: str,
    program: ExportedProgram,
    delegates: list[DelegateInfo],
    context: Context,
    options: MethodOptions,
) -> tuple[ExecutionPlan, DebugHandles]:
    """Return the plan and the debug handles of a method.

    Raises Unsupported if a program file cannot hold the method, or kernels are missing.
    """

    def emit(folded: dict[Node, Result]) -> _Method:
        used = Delegates(context, delegates)
        method = _Method(name, program, used, context, options)
        method.emitter.folded = folded
        method.emit()
        return method

    method = emit({})
    # Emit again with all folded calls known, to leave out the inputs of these calls.
    if method.emitter.folded:
        method = emit(method.emitter.folded)
    return method.finish()


def emit_constant_method(name: str, value: Any, context: Context) -> ExecutionPlan:
    """Return the plan of a method without inputs that only returns a constant value.

    The value is a tensor, a number, a string, or a container of these. The plan has no
    instructions: its outputs are entries of the table of values.
    """
    leaves, structure = pytree.tree_flatten(value)
    values = ValueTable()
    outputs = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            outputs.append(values.position(constant_tensor(leaf)))
        else:
            outputs.append(values.constant(leaf))
    # no tensor has planned memory, so no offsets are given
    finished = finish_values(values.entries, {}, context)
    no_arguments = pytree.tree_structure(((), {}))
    container = ContainerMetadata(
        encode_structure(no_arguments), encode_structure(structure)
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
    """Return the constant methods that ExecuTorch's trainer calls for a joint method.

    They give the positions of the first gradient and the first parameter among the
    outputs, and the parameters' names. Other methods have none.
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
    """Emits one method.

    ``states``: the values that keep their content between runs, by their name in the
    model. ``inputs``: the values of the inputs that the caller passes.
    """

    def __init__(
        self,
        name: str,
        program: ExportedProgram,
        delegates: Delegates,
        context: Context,
        options: MethodOptions,
    ) -> None:
        self.name = name
        self.program = program
        self.context = context
        self.assembler = Assembler()
        self.delegates = delegates
        ranges = program.range_constraints
        self.emitter = GraphEmitter(
            program.graph_module, self.assembler, self.delegates, context, ranges
        )
        self.options = options
        self.states: dict[str, TensorValue] = {}
        self.inputs: list[Item] = []
        self.input_positions: list[int] = []
        self.output_positions: list[int] = []

    def emit(self) -> None:
        """Append the instructions of the method, and give all values their positions."""
        self._bind_placeholders()
        self.input_positions = [self.emitter.position(i) for i in self.inputs]
        if INDEX_PUT_KERNEL in self.context.kernels:
            states = {
                node: value
                for node, value in self.emitter.emitted.items()
                if isinstance(value, TensorValue) and value.storage.home is Home.STATE
            }
            self.emitter.in_place = find_in_place(self.program, states)
        if self.options.inputs_on_device:
            self.emitter.inputs_on_device = frozenset(
                i for i in self.inputs if isinstance(i, TensorValue)
            )
        if self.options.outputs_on_device:
            self.emitter.results_on_device = self._results_on_device()
        self.emitter.emit()
        self.assembler.handle = None
        outputs = self._outputs()
        self._write_back()
        self.output_positions = [self.emitter.position(o) for o in outputs]
        # Store the first values of all states, even if the method reads only views of
        # them.
        for state in self.states.values():
            self.emitter.position(state)

    def _results_on_device(self) -> frozenset[Node]:
        """Return the returned nodes whose results may stay on a device.

        A result that is returned twice, or also written to a buffer, needs a host copy.
        """
        values = [value for _, value in self._specs()]
        return frozenset(
            value
            for spec, value in self._specs()
            if spec.kind is OutputKind.USER_OUTPUT
            and isinstance(value, Node)
            and values.count(value) == 1
        )

    def finish(self) -> tuple[ExecutionPlan, DebugHandles]:
        """Return the plan and the debug handles.

        Adds the method's constants and blobs to the pools that all methods share.
        """
        plan = self._plan()
        maps = tuple(dict(d.debug_handle_map) for d in self.delegates.used.values())
        handles = DebugHandles(tuple(self.assembler.handles), maps)
        return plan, handles

    def _bind_placeholders(self) -> None:
        """Create the values of inputs, buffers and constants."""
        written = written_targets(self.program)
        trained = trained_targets(self.program)
        written_inputs = {
            s.target
            for s in self.program.graph_signature.output_specs
            if s.kind in _WRITES
        }
        for node, spec in placeholders(self.program):
            target = str(spec.target)
            if spec.kind is InputKind.USER_INPUT:
                item = self._input(node, is_written=spec.arg.name in written_inputs)
                self.emitter.emitted[node] = item
                self.inputs.append(item)
                continue
            is_trained = spec.target in trained
            # a buffer that only another method writes is a state here as well
            has_state_offset = not is_trained and self._state_offset(spec) is not None
            if spec.target in written or has_state_offset:
                value = self._state(spec)
                self.states[target] = value
            elif is_trained:
                value = self._constant(node, spec, is_trained=True)
                # a trained parameter in a data file is not planned as a state
                if not value.file:
                    value = self._state(spec)
                self.states[target] = value
            else:
                value = self._constant(node, spec, is_trained=False)
            self.emitter.emitted[node] = value

    def _input(self, node: Node, is_written: bool) -> Item:
        """Return the value of an input: a number, a constant or a tensor.

        The caller provides the memory of an input that the method writes.
        """
        val = node.meta.get("val")
        if isinstance(val, torch.SymInt | torch.SymFloat):
            return self.emitter.new_value(val, node)
        if not isinstance(val, torch.Tensor):
            # export fixed the value of this input
            return val
        sizes, varies = upper_bounds(val.shape, self.program.range_constraints, node)
        is_planned = self.options.plan_inputs and not is_written
        home = Home.PLANNED if is_planned else Home.GIVEN
        return planned_tensor(val.dtype, sizes, varies, home)

    def _constant(self, node: Node, spec: InputSpec, is_trained: bool) -> TensorValue:
        """Return the value of a weight or constant, with its data file if it has one."""
        made = constant_tensor(tensor_of(self.program, spec))
        if _is_of_model(node, spec):
            made.file = self.context.file_of(node, is_trained)
        if made.file:
            made.name = str(spec.target)
        return made

    def _state(self, spec: InputSpec) -> TensorValue:
        """Return the value of a state.

        Its offset is planned, unless ``Context.state_offsets`` has it. Without
        ``plans_states``, the caller provides the memory of buffers.
        """
        tensor = tensor_of(self.program, spec)
        is_buffer = spec.kind is InputKind.BUFFER
        is_planned = self.context.plans_states or not is_buffer
        home = Home.STATE if is_planned else Home.GIVEN
        made = planned_tensor(tensor.dtype, tuple(tensor.shape), False, home)
        made.initial = tensor
        offset = self._state_offset(spec)
        if is_planned and offset is not None:
            made.storage.memory_id = MEMORY
            made.storage.offset = offset
        if self.context.names_states:
            made.name = str(spec.target)
        return made

    def _state_offset(self, spec: InputSpec) -> int | None:
        """Return a buffer's offset in the memory of states, if it is fixed."""
        return self.context.state_offsets.offsets.get((self.name, str(spec.target)))

    def _specs(self) -> Iterable[tuple[OutputSpec, Any]]:
        """Return each output's specification, with the node or constant that it is."""
        return zip(
            self.program.graph_signature.output_specs,
            output_values(self.program),
            strict=True,
        )

    def _outputs(self) -> list[Item]:
        """Return the values that the caller gets, after appending the copies they need.

        An output is copied if its memory has another use. The parameters of a program
        with a backward pass come last. They are not copied: a trainer updates them.
        """
        outputs: list[Item] = []
        for spec, value in self._specs():
            if spec.kind not in _RETURNED:
                continue
            item = self.emitter.item(value)
            if isinstance(item, TensorValue) and self._needs_copy(item, outputs):
                item = self._append_copy(item)
            outputs.append(item)
        for target in trained_targets(self.program):
            outputs.append(self._trained_parameter(target))
        return outputs

    def _trained_parameter(self, target: str) -> TensorValue:
        """Return the value of a trained parameter; Unsupported if nothing reads it."""
        if target not in self.states:
            text = (
                f"the program returns a gradient for {target}, but does not read a"
                " parameter of this name"
            )
            hint = "use the parameter in the model, or do not return its gradient"
            raise Unsupported("unsupported", text, hint=hint)
        return self.states[target]

    def _needs_copy(self, item: TensorValue, outputs: Sequence[Item]) -> bool:
        """Return whether the memory of an output has another use.

        ``outputs`` are the outputs before it.
        """
        if item.storage.home is not Home.PLANNED:
            return True
        if not self.options.plan_outputs and self._has_views(item):
            return True
        return any(
            isinstance(other, TensorValue) and other.storage is item.storage
            for other in (*outputs, *self.inputs)
        )

    def _has_views(self, item: TensorValue) -> bool:
        """Return whether other tensors share the memory of ``item``.

        They could not share memory that the caller provides for an output.
        """
        return any(
            t is not item and t.storage is item.storage
            for t in self.assembler.values.tensors()
        )

    def _append_copy(self, item: TensorValue) -> TensorValue:
        """Append an instruction that copies a tensor; return the copy."""
        made = planned_tensor(item.dtype, item.sizes, item.varies)
        copy_tensor(self.emitter, item, made)
        return made

    def _write_back(self) -> None:
        """Append the copies of new values to buffers, parameters and inputs.

        They come after all other instructions, so that these read the old values.
        """
        writes = [
            (self._target_of_write(spec), self.emitter.tensor(value))
            for spec, value in self._specs()
            if spec.kind in _WRITES
        ]
        written = {target.storage for target, _ in writes}
        # A new value may be the old value of another buffer: copy it before any write.
        safe = []
        for target, value in writes:
            if value.storage in written and value is not target:
                value = self._append_copy(value)
            safe.append((target, value))
        non_blocking = False
        for target, value in safe:
            if value is target:
                continue
            # copy_(self, src, non_blocking) returns self
            args = [
                self.emitter.position(item)
                for item in (target, value, non_blocking, target)
            ]
            self.assembler.add_kernel_call("aten::copy_", "", args)

    def _target_of_write(self, spec: OutputSpec) -> TensorValue:
        """Return the buffer, parameter or input that an output is written to."""
        target = str(spec.target)
        if spec.kind is not OutputKind.USER_INPUT_MUTATION:
            return self.states[target]
        node = next(n for n, s in placeholders(self.program) if n.name == target)
        return self.emitter.tensor(node)

    def _plan(self) -> ExecutionPlan:
        """Plan the memory and return the plan of the method."""
        entries = self.assembler.values.entries
        uses = [
            [t.storage for t in tensors] for tensors in self.assembler.tensors_used()
        ]
        self._release_outputs()
        devices = self._number_device_memories()
        if devices and self.context.state_offsets.are_shared_by(self.name):
            text = (
                f"method {self.name} cannot share its buffers: it plans memory of another"
                " device, and runtimes give such a method memory of its own"
            )
            hint = (
                "leave out share_mutable_buffers, or plan for the host:"
                " enable_non_cpu_memory_planning=False"
            )
            raise Unsupported("unsupported", text, hint=hint)
        inputs = self._storages(self.input_positions)
        outputs = self._storages(self.output_positions)
        lifetimes = find_lifetimes(uses, inputs, outputs, self.assembler.loops)
        offsets, sizes = plan_memory(lifetimes, self.context.alignment)
        # Every method has the memory of states: a runtime may share it between methods.
        states_size = self.context.state_offsets.size
        if states_size:
            sizes += [0] * (MEMORY + 1 - len(sizes))
            sizes[MEMORY] = states_size
        values = finish_values(entries, offsets, self.context)
        instructions = tuple(Instruction(call) for call in self.assembler.instructions)
        chain = Chain(instructions=instructions, stacktrace=self._stack_traces())
        return ExecutionPlan(
            name=self.name,
            container=self._structures(),
            values=tuple(EValue(v) for v in values),
            inputs=tuple(self.input_positions),
            outputs=tuple(self.output_positions),
            chains=(chain,),
            operators=tuple(self.assembler.operators),
            delegates=self.delegates.store_blobs(),
            memory_sizes=tuple(sizes),
            memory_devices=devices,
        )

    def _number_device_memories(self) -> tuple[NonConstBufferDevice, ...]:
        """Set the memory number of all storages on devices; return the file's table.

        Memories are numbered from 1. Those of devices come after those of the host.
        """
        storages = [t.storage for t in self.assembler.values.tensors()]
        devices = set()
        last_of_host = MEMORY if self.context.state_offsets.size else 1
        for storage in storages:
            if storage.device is None:
                last_of_host = max(last_of_host, storage.memory_id)
            elif storage.is_planned and storage.nbytes:
                devices.add(storage.device)
        numbers = {
            device: number
            for number, device in enumerate(sorted(devices), last_of_host + 1)
        }
        for storage in storages:
            if storage.device in numbers:
                storage.memory_id = numbers[storage.device]
        return tuple(
            NonConstBufferDevice(number, device.kind, device.number)
            for device, number in numbers.items()
        )

    def _stack_traces(self) -> tuple[FrameList, ...]:
        """Return the user's lines for each instruction, if the options ask for them."""
        if not self.context.stack_traces:
            return ()
        return stack_traces(self.program.graph_module, self.assembler.handles)

    def _storages(self, positions: Sequence[int]) -> list[Storage]:
        """Return the storages of the tensors among the values at ``positions``."""
        entries = [self.assembler.values.entries[p] for p in positions]
        return [e.storage for e in entries if isinstance(e, TensorValue)]

    def _release_outputs(self) -> None:
        """Mark the memory of outputs as the caller's, unless the options plan it.

        Trained parameters are states, not planned outputs: they keep their memory.
        """
        if self.options.plan_outputs:
            return
        for storage in self._storages(self.output_positions):
            if storage.home is Home.PLANNED:
                storage.home = Home.GIVEN

    def _ranges(self, mark: str) -> dict[int, Sequence[int]]:
        """Return the ranges of values that partitioners recorded for inputs.

        ``mark`` is their key in ``node.meta``: WITHIN or INDEXED. The result maps the
        position of an input to its range.
        """
        return {
            k: node.meta[mark]
            for k, node in enumerate(user_inputs(self.program))
            if mark in node.meta
        }

    def _structures(self) -> ContainerMetadata:
        """Return the structures of inputs and outputs as texts, for ``delegraph.load``.

        The text of inputs also has the conditions on inputs. The text of outputs also
        has the facts about delegates. ExecuTorch's runtime reads neither text.
        """
        spec = self.program.call_spec
        inputs = ""
        if spec.in_spec is not None:
            signature: Any = self.program.module_call_graph[0].signature
            constant_inputs = [
                k
                for k, node in enumerate(user_inputs(self.program))
                if not isinstance(node.meta.get("val"), _VARYING)
            ]
            inputs = encode_inputs(
                spec.in_spec,
                signature.forward_arg_names or (),
                size_relations(self.program),
                constant_inputs,
                self._ranges(WITHIN),
                self._ranges(INDEXED),
            )
        used = self.delegates.used.values()
        outputs = encode_outputs(
            spec.out_spec,
            [len(delegate.outputs) for delegate in used],
            [delegate.producer for delegate in used],
            [delegate.fingerprint for delegate in used],
            [_facts_of_file(delegate.facts) for delegate in used],
        )
        return ContainerMetadata(inputs, outputs)


def _facts_of_file(facts: Mapping[str, str]) -> dict[str, str]:
    """Return a delegate's facts without hints, which concern only the compiler's user."""
    return {name: text for name, text in facts.items() if name != "hint"}


def _is_of_model(node: Node, spec: InputSpec) -> bool:
    """Return whether a constant has a name in the model.

    Export numbers tensors that it lifts out of code, and delegraph numbers folded ones.
    The same number means another tensor in each method, so data files cannot hold them.
    """
    is_attribute = node.name.startswith("c_") and "_lifted_tensor" not in node.name
    return spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) or is_attribute
