"""Calls of delegates, and the copies to and from the memory of the device that one
computes on.

A delegate with the compile spec ``target_device`` (``b"cuda:0"``) takes and returns
tensors in that device's memory. What stays between two delegates of one device is never
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
from ..program.tables import Device
from .body import Body, Item, Result
from .values import TensorValue, planned_tensor

_TO_DEVICE = "et_copy::_h2d_copy"
_TO_HOST = "et_copy::_d2h_copy"


def emit_delegate(body: Body, node: Node) -> Result:
    """Call a delegate with its inputs and then its results."""
    attribute = node.args[0]
    assert isinstance(attribute, Node)
    index, delegate = body.delegates.find(f"{body.path}{attribute.target}")
    place = _place_of(delegate.compile_specs)
    if place is None:
        results = body.new_results(node)
        _call(body, index, [body.item(a) for a in node.args[1:]], results)
        return list(results)
    if not body.context.plans_devices:
        return _emit_tagged(body, node, index, place)
    inputs = [_on_device(body, node, argument, place) for argument in node.args[1:]]
    made = [_made_on_device(v, body, node, place) for v in node.meta["val"]]
    _call(body, index, inputs, made)
    return [_on_host(body, node, k, item, place) for k, item in enumerate(made)]


def _call(
    body: Body, index: int, inputs: Sequence[Item], results: Sequence[Item]
) -> None:
    body.assembler.delegate(index, [body.position(i) for i in (*inputs, *results)])


def _place_of(specs: Sequence[CompileSpec]) -> Place | None:
    """The device that a delegate computes on; None for the host, and for a delegate
    that does not say it.
    """
    given = next((bytes(s.value) for s in specs if s.key == "target_device"), None)
    if given is None:
        return None
    kind, _, number = given.decode("utf-8", "replace").strip().lower().partition(":")
    known = {device.name.lower(): device for device in Device}
    if kind not in known or not (number or "0").isdecimal():
        text = (
            f"the compile spec target_device is {given!r}; a file knows"
            f" {', '.join(known)}, with a number as in cuda:0"
        )
        raise OptionError("option-invalid", text)
    return (
        Place(known[kind], int(number or "0"))
        if known[kind] is not Device.CPU
        else None
    )


def _emit_tagged(body: Body, node: Node, index: int, place: Place) -> Result:
    """The call with tensors in the host's memory that the file calls the device's: what
    runtimes did before copies.
    """
    results = body.new_results(node)
    items = [body.item(a) for a in node.args[1:]]
    for item in (*items, *results):
        if isinstance(item, TensorValue):
            item.place = place
    _call(body, index, items, results)
    return list(results)


def _on_device(body: Body, node: Node, argument: Any, place: Place) -> Item:
    """An input of a delegate in its device's memory."""
    item = body.item(argument)
    if not isinstance(item, TensorValue):
        return item
    item = body.origins.get((item, place), item)
    if item.storage.place == place:
        return item
    if item in body.inputs_on_device:
        if len(argument.users) != 1:
            text = (
                f"the input {argument.name} is to be on the device, and more than the"
                f" delegate {node.name} reads it"
            )
            raise OptionError(
                "option-invalid",
                text,
                hint="skip_h2d_for_method_inputs=False copies it",
            )
        item.storage.place = item.place = place
        return item
    copy = _planned_on(place, item)
    position = body.position(copy)
    body.assembler.kernel(_TO_DEVICE, "out", [body.position(item), position, position])
    return copy


def _planned_on(place: Place, like: TensorValue) -> TensorValue:
    made = planned_tensor(like.dtype, like.sizes, like.varies)
    made.storage.place = made.place = place
    return made


def _made_on_device(val: Any, body: Body, node: Node, place: Place) -> Item:
    made = body.new_value(val, node)
    if isinstance(made, TensorValue):
        made.storage.place = made.place = place
        made.storage.memory_id = 1
    return made


def _on_host(body: Body, node: Node, k: int, made: Item, place: Place) -> Item:
    """A result of a delegate where its users look for it."""
    if not isinstance(made, TensorValue) or not _is_for_the_host(body, node, k, place):
        return made
    target = body.targets.get((node, k))
    copy = (
        target
        if isinstance(target, TensorValue)
        else body.new_value(node.meta["val"][k], node)
    )
    assert isinstance(copy, TensorValue)
    position = body.position(copy)
    body.assembler.kernel(_TO_HOST, "out", [body.position(made), position, position])
    body.origins[copy, place] = made
    return copy


def _is_for_the_host(body: Body, node: Node, k: int, place: Place) -> bool:
    """Whether anything but delegates of the same device uses a result, and it is none
    that stays there.
    """
    elements = [element for element in node.users if element.args[1] == k]
    others = {
        user
        for element in elements
        for user in element.users
        if not _computes_on(body, user, place)
    }
    stays = (
        len(elements) == 1
        and elements[0] in body.results_on_device
        and all(u.op == "output" for u in others)
    )
    return bool(others) and not stays


def _computes_on(body: Body, user: Node, place: Place) -> bool:
    if user.target is not CALL_DELEGATE:
        return False
    attribute = user.args[0]
    assert isinstance(attribute, Node)
    return (
        _place_of(body.delegates.named(f"{body.path}{attribute.target}").compile_specs)
        == place
    )
