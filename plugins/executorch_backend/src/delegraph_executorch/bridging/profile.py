"""Read the time of an XNNPACK delegate's operators from an ETDump.

XNNPACK names its operators (``Convolution (NHWC, F32) IGEMM #1``), not the graph's
nodes. Operators of a kind run in the order of the nodes of that kind. If there are as
many operators as nodes of a kind, the k-th operator belongs to the k-th node. Otherwise
the operators belong to no node.

ExecuTorch adds transpositions for XNNPACK's layout of images. The time of such a
transposition counts for the only node that reads it. A transposition of a result counts
for the node that computes the result.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from delegraph_engines import Kernel, computed_by
from delegraph_engines.flatbuffer import Table, root

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
_ADDED = 65535
"""The debug handle of a node that ExecuTorch added."""
_MOVES = ("statictranspose", "copy")
_OPERAND_AND_RESULT_FIELDS = {
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
"""Kind of node -> the fields with its operands, and the field with its result.

Other kinds have one operand in field 0 and the result in field 1.
"""
_KIND = {
    **dict.fromkeys(
        ("conv2d", "depthwiseconv2d", "fullyconnected", "convtranspose2d"), "product"
    ),
    **dict.fromkeys(("convolution", "fullyconnected", "deconvolution"), "product"),
    "globalavgpooling2d": "mean",
    "statictranspose": "transpose",
}
"""Common names of kinds.

XNNPACK runs a convolution of 1x1 as a fully connected layer, for example.
"""


class GraphNode(NamedTuple):
    """The kind and debug handle of a node in XNNPACK's graph.

    An added transposition has the handle of the node that its time counts for. The
    handle is None if there are several such nodes.
    """

    kind: str
    handle: int | None


class Event(NamedTuple):
    """An operator of a delegate that ran: its name in the runtime, and its seconds.

    ``start``: in seconds after the middle of the program's call, so it may be negative.
    None if the dump does not have the call.
    """

    name: str
    seconds: float
    start: float | None = None


def last_run(dump: bytes) -> list[Event]:
    """Return the operators inside of delegates in the last call of an ETDump.

    Raises FormatError for a damaged dump.
    """
    found: list[Event] = []
    # A flatbuffer has its identifier, ED00, at byte 4. If the runtime wrote the size in
    # front of the flatbuffer, the identifier is at byte 8: skip the size.
    if dump[8:12] == b"ED00":
        dump = dump[4:]
    for run in root(dump, "ED00", "ETDump").each_table(1, "run_data"):
        if run.string(0, "name") != "Execute":
            continue
        # Forget earlier calls: the last "Execute" counts.
        found = []
        # the time halfway through the program's call
        middle = None
        ran: list[tuple[str, int, int]] = []
        for each in run.each_table(3, "events"):
            # Fields of a profile event: 0 is its name, 4 the name of a delegate's
            # operator, 6 and 7 are the start and end in nanoseconds.
            event = each.table(0, "profile_event")
            if event is None:
                continue
            start = event.scalar(6, "Q")
            end = max(event.scalar(7, "Q"), start)
            if event.string(0, "name") == "Method::execute":
                middle = (start + end) / 2
            if name := event.string(4, "delegate_debug_id_str"):
                ran.append((name, start, end))
        for name, start, end in ran:
            since = None if middle is None else (start - middle) * NANOSECOND
            found.append(Event(name, (end - start) * NANOSECOND, since))
    return found


def nodes_of(blob: bytes) -> list[GraphNode]:
    """Return the nodes of XNNPACK's graph; FormatError for a damaged graph."""
    start = 0
    if blob[4:8] == b"XH00":
        # A header is in front of the graph. Its bytes 10 to 13 are the graph's offset.
        start = int.from_bytes(blob[10:14], "little")
    graph = root(blob[start:], "XN01", "XNNPACK graph")
    kinds: list[str] = []
    kernels: list[Kernel] = []
    # number of a value -> the name of the kernel that computes it
    computed_in: dict[int, str] = {}
    for position, node in enumerate(graph.each_table(1, "xnodes")):
        # Field 1 has the fields of this kind of node, and field 0 the kind's number.
        # Field 2 is the debug handle.
        number = node.scalar(0, "B")
        handle = node.scalar(2, "I")
        fields = node.table(1, "node")
        kind = _NODES[number] if number < len(_NODES) else "unknown"
        operands, result = _OPERAND_AND_RESULT_FIELDS.get(kind, ((0,), 1))
        reads = [
            computed_in[value]
            for value in _values(fields, operands)
            if value in computed_in
        ]
        is_added = handle == _ADDED
        handles = () if is_added else (handle,)
        is_move = is_added and kind in _MOVES
        kernels.append(Kernel(str(position), handles, reads, is_move))
        kinds.append(_kind(kind))
        computed_in |= dict.fromkeys(_values(fields, (result,)), str(position))
    # Add a kernel without handles as reader of each result. ``computed_by`` then counts
    # a transposition of a result for the node that computes the result.
    returned = [
        computed_in[value]
        for value in graph.numbers(5, "u4", "output_ids")
        if value in computed_in
    ]
    kernels += [Kernel(f"result {k}", (), (name,)) for k, name in enumerate(returned)]
    owners = computed_by(kernels, ())
    nodes = []
    for position, kind in enumerate(kinds):
        handles_of_node = owners[str(position)]
        counts_for = handles_of_node[0] if handles_of_node else None
        nodes.append(GraphNode(kind, counts_for))
    return nodes


def _values(table: Table | None, fields: Sequence[int]) -> list[int]:
    """Return the numbers of the values in these fields of a node."""
    if table is None:
        return []
    return [table.scalar(field, "I") for field in fields]


def spent(
    events: Sequence[Event], nodes: Sequence[GraphNode], middle: float = 0.0
) -> Mapping[int | None, Mapping[str, Any]]:
    """Return the times of each node's operators, by its debug handle.

    The key None has the times of operators that belong to no node.

    ``middle``: the time halfway through the call by ``time.perf_counter()``, in seconds.
    ETDump has another clock, so the start of an event counts from the call's middle by
    that clock. The intervals assume that the two middles are the same moment.
    """
    handles_of_kind = defaultdict(list)
    for kind, handle in nodes:
        handles_of_kind[kind].append(handle)
    events_of_kind = defaultdict(list)
    for event in events:
        events_of_kind[_kind(event.name)].append(event)
    total: dict[int | None, dict[str, Any]] = {}
    for kind, listed in events_of_kind.items():
        owners: Sequence[int | None] = handles_of_kind[kind]
        if len(owners) != len(listed):
            owners = [None] * len(listed)
        for owner, event in zip(owners, listed, strict=True):
            amounts = total.setdefault(owner, {"seconds": 0.0})
            amounts["seconds"] += event.seconds
            if event.start is not None:
                start = middle + event.start
                ran = (start, start + event.seconds)
                amounts.setdefault("intervals", []).append(ran)
    return total


def _kind(name: str) -> str:
    """Return the common kind of an operator or node.

    For ``Convolution (NHWC, F32) IGEMM #1``, the word is ``convolution``, and its kind
    in ``_KIND`` is ``product``.
    """
    without_details = name.partition("(")[0].partition("#")[0]
    word = re.sub(r"[^a-z0-9]", "", without_details.lower())
    return _KIND.get(word, word)
