"""Emit calls of delegates, and copies to and from the devices that they run on.

A delegate with the compile spec ``target_device`` (``b"cuda:0"``) has its inputs and
outputs in that device's memory. If two delegates run on one device, the tensors between
them are not copied to the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from delegraph.backend import CompileSpec
from delegraph.errors import OptionError
from delegraph_programs.exported_program import CALL_DELEGATE
from torch.fx import Node

from ..memory.storage import DeviceId
from ..program.pte_tables import Device
from .graph_emitter import GraphEmitter, Item, Result
from .method_values import TensorValue, planned_tensor

_TO_DEVICE = "et_copy::_h2d_copy"
_TO_HOST = "et_copy::_d2h_copy"


def emit_delegate(emitter: GraphEmitter, node: Node) -> Result:
    """Emit a call of a delegate.

    Its inputs and outputs are copied if it runs on a device other than the host.
    """
    attribute = node.args[0]
    assert isinstance(attribute, Node)
    index, delegate = emitter.delegates.find(f"{emitter.path}{attribute.target}")
    device = _device_of(delegate.compile_specs)
    if device is None:
        results = emitter.new_results(node)
        _append_call(emitter, index, [emitter.item(a) for a in node.args[1:]], results)
        return list(results)
    if not emitter.context.plans_devices:
        return _emit_without_copies(emitter, node, index, device)
    inputs = [_on_device(emitter, node, argument, device) for argument in node.args[1:]]
    results = [_new_on_device(v, emitter, node, device) for v in node.meta["val"]]
    _append_call(emitter, index, inputs, results)
    return [_on_host(emitter, node, k, item, device) for k, item in enumerate(results)]


def _append_call(
    emitter: GraphEmitter, index: int, inputs: Sequence[Item], results: Sequence[Item]
) -> None:
    """Append a call of the delegate ``index``; its results are its last arguments."""
    emitter.assembler.add_delegate_call(
        index, [emitter.position(i) for i in (*inputs, *results)]
    )


def _device_of(specs: Sequence[CompileSpec]) -> DeviceId | None:
    """Return the device of a delegate; None for the host, which is the default."""
    given = next((bytes(s.value) for s in specs if s.key == "target_device"), None)
    if given is None:
        return None
    kind, _, number = given.decode("utf-8", "replace").strip().lower().partition(":")
    known = {device.name.lower(): device for device in Device}
    if kind not in known or not (number or "0").isdecimal():
        text = (
            f"the compile spec target_device is {given!r}; a program file supports"
            f" {', '.join(known)}, with a number as in cuda:0"
        )
        raise OptionError("option-invalid", text)
    if known[kind] is Device.CPU:
        return None
    return DeviceId(known[kind], int(number or "0"))


def _emit_without_copies(
    emitter: GraphEmitter, node: Node, index: int, device: DeviceId
) -> Result:
    """Emit a call of a delegate on a device, with its tensors in host memory.

    Only the tensors' records name the device. Runtimes without copies expect this.
    """
    results = emitter.new_results(node)
    items = [emitter.item(a) for a in node.args[1:]]
    for item in (*items, *results):
        if isinstance(item, TensorValue):
            item.device = device
    _append_call(emitter, index, items, results)
    return list(results)


def _on_device(
    emitter: GraphEmitter, node: Node, argument: Any, device: DeviceId
) -> Item:
    """Return an input of a delegate in its device's memory.

    Appends a copy, unless the tensor is on the device already, or the caller passes it
    there.
    """
    item = emitter.item(argument)
    if not isinstance(item, TensorValue):
        return item
    item = emitter.device_sources.get((item, device), item)
    if item.storage.device == device:
        return item
    if item in emitter.inputs_on_device:
        if len(argument.users) != 1:
            text = (
                f"the input {argument.name} cannot stay on the device: the delegate"
                f" {node.name} is not its only reader"
            )
            hint = "skip_h2d_for_method_inputs=False copies it"
            raise OptionError("option-invalid", text, hint=hint)
        item.storage.device = item.device = device
        return item
    copy = _planned_on(device, item)
    _append_copy(emitter, _TO_DEVICE, item, copy)
    return copy


def _append_copy(
    emitter: GraphEmitter, kernel: str, source: TensorValue, target: TensorValue
) -> None:
    """Append a call of a kernel that copies: ``_TO_DEVICE`` or ``_TO_HOST``.

    ExecuTorch passes the target twice: as the argument ``out``, and as the result.
    """
    out = emitter.position(target)
    emitter.assembler.add_kernel_call(
        kernel, "out", [emitter.position(source), out, out]
    )


def _planned_on(device: DeviceId, like: TensorValue) -> TensorValue:
    """Return a new tensor in memory of a device, of the type and sizes of ``like``."""
    made = planned_tensor(like.dtype, like.sizes, like.varies)
    made.storage.device = made.device = device
    return made


def _new_on_device(
    val: Any, emitter: GraphEmitter, node: Node, device: DeviceId
) -> Item:
    """Return a new value for a result; a tensor is in memory of the device."""
    made = emitter.new_value(val, node)
    if isinstance(made, TensorValue):
        made.storage.device = made.device = device
        # the host's memory that ``memory_of`` chose does not apply
        made.storage.memory_id = 1
    return made


def _on_host(
    emitter: GraphEmitter, node: Node, k: int, made: Item, device: DeviceId
) -> Item:
    """Return a result of a delegate in the memory where its users expect it.

    ``made`` is the result on the device, ``k`` its number. If the host needs it, a copy
    is appended and returned.
    """
    is_tensor = isinstance(made, TensorValue)
    if not is_tensor or not _is_for_the_host(emitter, node, k, device):
        return made
    copy: Item = emitter.preset_results.get((node, k))
    if copy is None:
        copy = emitter.new_value(node.meta["val"][k], node)
    assert isinstance(made, TensorValue) and isinstance(copy, TensorValue)
    _append_copy(emitter, _TO_HOST, made, copy)
    emitter.device_sources[copy, device] = made
    return copy


def _is_for_the_host(
    emitter: GraphEmitter, node: Node, k: int, device: DeviceId
) -> bool:
    """Return whether the host needs the result ``k`` of a delegate.

    It does not if only delegates of the same device use it. The caller may use it as
    well, if it gets the result on the device.
    """
    elements = [element for element in node.users if element.args[1] == k]
    users_elsewhere: list[Node] = []
    for element in elements:
        for user in element.users:
            if not _is_call_on(emitter, user, device):
                users_elsewhere.append(user)
    caller_takes_it = (
        len(elements) == 1
        and elements[0] in emitter.results_on_device
        and all(user.op == "output" for user in users_elsewhere)
    )
    return bool(users_elsewhere) and not caller_takes_it


def _is_call_on(emitter: GraphEmitter, node: Node, device: DeviceId) -> bool:
    """Return whether a node is the call of a delegate that runs on this device."""
    if node.target is not CALL_DELEGATE:
        return False
    attribute = node.args[0]
    assert isinstance(attribute, Node)
    delegate = emitter.delegates.named(f"{emitter.path}{attribute.target}")
    return _device_of(delegate.compile_specs) == device
