"""How long the operators of an ExecuTorch delegate take, from the ETDump that
ExecuTorch's runtime writes of a call.

XNNPACK names its operators (``Convolution (NHWC, F32) IGEMM #1``) and not the nodes
that they come from. Operators of a kind run in the order of the graph's nodes of that
kind, so the k-th is the k-th node's where there are as many of both: then nothing was
left out or put in. Of a kind with another number nothing is said. ExecuTorch puts
transpositions into the graph, for XNNPACK's layout of images: one belongs to the node
that alone reads it, or whose result it returns.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from delegraph.io.flatbuffer import Table, root
from delegraph_engines import Kernel, computed_by

NANOSECOND = 1e-9
_NODES = (
    "none add fullyconnected softmax sigmoid statictranspose clamp conv2d div"
    " staticresizebilinear2d staticconstantpad avgpooling2d minimum depthwiseconv2d"
    " maxpooling2d multiply subtract floor convert globalavgpooling2d staticreshape"
    " argmaxpooling2d squareroot ceiling hardswish leakyrelu maximum negate square elu"
    " abs prelu concatenate2 concatenate3 concatenate4 staticslice"
    " scaleddotproductattention batchmatrixmultiply concatenate5 convtranspose2d"
    " reciprocalsquareroot log gelu tanh exp sin copy cos"
).split()
"""Kinds of nodes, by their number in XNNPACK's graphs."""
_PUT_IN = 65535
"""The debug handle of a node that ExecuTorch put in."""
_MOVES = ("statictranspose", "copy")
_IDS = {
    **dict.fromkeys(
        ("conv2d", "depthwiseconv2d", "convtranspose2d"), ((15, 16, 17), 18)
    ),
    **dict.fromkeys(
        ("add", "div", "minimum", "multiply", "subtract", "maximum", "prelu"),
        ((0, 1), 2),
    ),
    **dict.fromkeys(
        ("concatenate2", "concatenate3", "concatenate4", "concatenate5"),
        ((1, 2, 3, 4, 7), 5),
    ),
    **dict.fromkeys(("avgpooling2d", "maxpooling2d"), ((10,), 11)),
    **dict.fromkeys(
        ("statictranspose", "staticreshape", "staticresizebilinear2d"), ((2,), 3)
    ),
    **dict.fromkeys(("staticconstantpad", "staticslice"), ((3,), 4)),
    **dict.fromkeys(("elu", "leakyrelu"), ((1,), 2)),
    "batchmatrixmultiply": ((0, 1), 2),
    "fullyconnected": ((0, 1, 2), 3),
    "argmaxpooling2d": ((6,), 7),
    "scaleddotproductattention": ((0, 1, 2, 3, 4), 5),
}
"""The fields of a kind of node that have the numbers of the values that it reads, and
of the one that it computes.

Kinds that are not here read the value in field 0 and compute that in field 1.
"""
_KIND = {
    **dict.fromkeys(
        ("conv2d", "depthwiseconv2d", "fullyconnected", "convtranspose2d"), "product"
    ),
    **dict.fromkeys(("convolution", "fullyconnected", "deconvolution"), "product"),
    "globalavgpooling2d": "mean",
    "statictranspose": "transpose",
}
"""What a kind is called here, where several are one: a convolution of 1x1 runs as a
fully connected layer.
"""


class Event(NamedTuple):
    """An operator of a delegate that ran: what the runtime calls it, and its seconds."""

    name: str
    seconds: float


def last_run(dump: bytes) -> list[Event]:
    """The operators inside of delegates in the last call that an ETDump has. Raises
    FormatError for a damaged one.
    """
    found: list[Event] = []
    dump = dump[4:] if dump[8:12] == b"ED00" else dump  # written with its size in front
    for run in root(dump, "ED00", "ETDump").each_table(1, "run_data"):
        if run.string(0, "name") != "Execute":
            continue
        events = (
            event.table(0, "profile_event") for event in run.each_table(3, "events")
        )
        inside = [
            event
            for event in events
            if event is not None and event.string(4, "delegate_debug_id_str")
        ]
        found = [
            Event(
                event.string(4, "name"),
                max(event.scalar(7, "Q") - event.scalar(6, "Q"), 0) * NANOSECOND,
            )
            for event in inside
        ]
    return found


def nodes_of(blob: bytes) -> list[tuple[str, int | None]]:
    """Kind and debug handle of the nodes of XNNPACK's graph, in its order. Raises
    FormatError for a damaged one.

    A transposition that was put in has the handle of the node that it serves; None if
    that is not one alone.
    """
    start = int.from_bytes(blob[10:14], "little") if blob[4:8] == b"XH00" else 0
    graph = root(blob[start:], "XN01", "XNNPACK graph")
    kinds = list[str]()
    kernels = list[Kernel]()
    computed_in: dict[int, str] = {}  # number of a value -> the place of its node
    for place, node in enumerate(graph.each_table(1, "xnodes")):
        number = node.scalar(0, "B")
        handle = node.scalar(2, "I")
        fields = node.table(1, "node")
        kind = _NODES[number] if number < len(_NODES) else "unknown"
        operands, result = _IDS.get(kind, ((0,), 1))
        reads = [
            computed_in[value]
            for value in _values(fields, operands)
            if value in computed_in
        ]
        was_put_in = handle == _PUT_IN
        kernels.append(
            Kernel(
                str(place),
                () if was_put_in else (handle,),
                reads,
                was_put_in and kind in _MOVES,
            )
        )
        kinds.append(_kind(kind))
        computed_in |= dict.fromkeys(_values(fields, (result,)), str(place))
    # a result is read by no node, and by the caller
    returned = [
        computed_in[value]
        for value in graph.numbers(5, "u4", "output_ids")
        if value in computed_in
    ]
    kernels += [Kernel(f"result {k}", (), (name,)) for k, name in enumerate(returned)]
    owners = computed_by(kernels, ())
    handles = [
        next(iter(owners[str(place)] or ()), None) for place in range(len(kinds))
    ]
    return list(zip(kinds, handles, strict=True))


def _values(table: Table | None, fields: Sequence[int]) -> list[int]:
    return [] if table is None else [table.scalar(field, "I") for field in fields]


def spent(
    events: Sequence[Event], nodes: Sequence[tuple[str, int | None]]
) -> Mapping[int | None, Mapping[str, float]]:
    """Debug handle -> seconds of the operators that are the node's; under None those
    whose node is not known.
    """
    handles = defaultdict(list)
    for kind, handle in nodes:
        handles[kind].append(handle)
    of_kind = defaultdict(list)
    for event in events:
        of_kind[_kind(event.name)].append(event)
    total: dict[int | None, dict[str, float]] = {}
    for kind, listed in of_kind.items():
        known: Sequence[int | None] = (
            handles[kind] if len(handles[kind]) == len(listed) else [None] * len(listed)
        )
        for owner, event in zip(known, listed, strict=True):
            amounts = total.setdefault(owner, {"seconds": 0.0})
            amounts["seconds"] += event.seconds
    return total


def _kind(name: str) -> str:
    word = re.sub(r"[^a-z0-9]", "", name.partition("(")[0].partition("#")[0].lower())
    return _KIND.get(word, word)
