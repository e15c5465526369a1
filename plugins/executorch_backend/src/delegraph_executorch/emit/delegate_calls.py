"""Emit calls of delegates, and copies to and from the devices that they run on.

A delegate with the compile spec ``target_device`` (``b"cuda:0"``) has its inputs and
outputs in that device's memory. Tensors between two delegates of one device are not
copied to the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from delegraph.backend import CompileSpec
from delegraph.errors import OptionError
from delegraph_programs.exported_program import CALL_DELEGATE
from torch.fx import Node

from ..memory.storage import Place
from ..program.pte_tables import Device
from .graph_emitter import GraphEmitter, Item, Result
from .method_values import TensorValue, planned_tensor

_TO_DEVICE = "et_copy::_h2d_copy"
_TO_HOST = "et_copy::_d2h_copy"


def emit_delegate(emitter: GraphEmitter, node: Node) -> Result:
    """Call a delegate, with copies of its inputs and outputs if it runs on a device."""
    attribute = node.args[0]
    assert isinstance(attribute, Node)
    index, delegate = emitter.delegates.find(f"{emitter.path}{attribute.target}")
    place = _place_of(delegate.compile_specs)
    if place is None:
        results = emitter.new_results(node)
        _append_call(emitter, index, [emitter.item(a) for a in node.args[1:]], results)
        return list(results)
    if not emitter.context.plans_devices:
        return _emit_without_copies(emitter, node, index, place)
    inputs = [_on_device(emitter, node, argument, place) for argument in node.args[1:]]
    results = [_new_on_device(v, emitter, node, place) for v in node.meta["val"]]
    _append_call(emitter, index, inputs, results)
    return [_on_host(emitter, node, k, item, place) for k, item in enumerate(results)]


def _append_call(
    emitter: GraphEmitter, index: int, inputs: Sequence[Item], results: Sequence[Item]
) -> None:
    """Append a call of the delegate ``index``; its results are its last arguments."""
    emitter.assembler.delegate(
        index, [emitter.position(i) for i in (*inputs, *results)]
    )


def _place_of(specs: Sequence[CompileSpec]) -> Place | None:
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
    return Place(known[kind], int(number or "0"))


def _emit_without_copies(
    emitter: GraphEmitter, node: Node, index: int, place: Place
) -> Result:
    """Call a delegate with tensors in host memory that the file assigns to the device.

    Runtimes without copies expect this.
    """
    results = emitter.new_results(node)
    items = [emitter.item(a) for a in node.args[1:]]
    for item in (*items, *results):
        if isinstance(item, TensorValue):
            item.place = place
    _append_call(emitter, index, items, results)
    return list(results)


def _on_device(emitter: GraphEmitter, node: Node, argument: Any, place: Place) -> Item:
    """Return an input of a delegate in its device's memory, after a copy if needed."""
    item = emitter.item(argument)
    if not isinstance(item, TensorValue):
        return item
    item = emitter.origins.get((item, place), item)
    if item.storage.place == place:
        return item
    if item in emitter.inputs_on_device:
        if len(argument.users) != 1:
            text = (
                f"the input {argument.name} cannot stay on the device: the delegate"
                f" {node.name} is not its only reader"
            )
            hint = "skip_h2d_for_method_inputs=False copies it"
            raise OptionError("option-invalid", text, hint=hint)
        item.storage.place = item.place = place
        return item
    copy = _planned_on(place, item)
    _append_copy(emitter, _TO_DEVICE, item, copy)
    return copy


def _append_copy(
    emitter: GraphEmitter, kernel: str, source: TensorValue, target: TensorValue
) -> None:
    """Append a call of a copying kernel.

    ExecuTorch passes the target twice: as the argument ``out``, and as the result.
    """
    out = emitter.position(target)
    emitter.assembler.kernel(kernel, "out", [emitter.position(source), out, out])


def _planned_on(place: Place, like: TensorValue) -> TensorValue:
    """Return a new tensor in memory of a device, of the type and sizes of ``like``."""
    made = planned_tensor(like.dtype, like.sizes, like.varies)
    made.storage.place = made.place = place
    return made


def _new_on_device(val: Any, emitter: GraphEmitter, node: Node, place: Place) -> Item:
    """Return a new value for a result; a tensor is in memory of the device."""
    made = emitter.new_value(val, node)
    if isinstance(made, TensorValue):
        made.storage.place = made.place = place
        made.storage.memory_id = 1
    return made


def _on_host(
    emitter: GraphEmitter, node: Node, k: int, made: Item, place: Place
) -> Item:
    """Return a result of a delegate in the memory where its users expect it.

    ``k`` is the number of the result. A result for the host is copied.
    """
    if not isinstance(made, TensorValue) or not _is_for_the_host(
        emitter, node, k, place
    ):
        return made
    target = emitter.targets.get((node, k))
    copy: Item = target
    if not isinstance(target, TensorValue):
        copy = emitter.new_value(node.meta["val"][k], node)
    assert isinstance(copy, TensorValue)
    _append_copy(emitter, _TO_HOST, made, copy)
    emitter.origins[copy, place] = made
    return copy


def _is_for_the_host(emitter: GraphEmitter, node: Node, k: int, place: Place) -> bool:
    """Return whether a result is copied to the host.

    It is not copied if only delegates of the same device use it, or if the caller takes
    it on the device.
    """
    elements = [element for element in node.users if element.args[1] == k]
    others: list[Node] = []
    for element in elements:
        others += [u for u in element.users if not _computes_on(emitter, u, place)]
    stays = (
        len(elements) == 1
        and elements[0] in emitter.results_on_device
        and all(user.op == "output" for user in others)
    )
    return bool(others) and not stays


def _computes_on(emitter: GraphEmitter, user: Node, place: Place) -> bool:
    """Return whether a node is the call of a delegate that runs on this device."""
    if user.target is not CALL_DELEGATE:
        return False
    attribute = user.args[0]
    assert isinstance(attribute, Node)
    delegate = emitter.delegates.named(f"{emitter.path}{attribute.target}")
    return _place_of(delegate.compile_specs) == place
