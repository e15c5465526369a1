"""The structure of a method's inputs and outputs as text: lists, tuples, dictionaries
and named tuples of leaves.

Runtimes pass flat lists and ignore it; ``delegraph.load`` gives callers their structure
back. Nothing in the text names a class, so reading it imports nothing.
"""

from __future__ import annotations

import json
import operator
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from delegraph.errors import FormatError, InputError
from delegraph.io.escape import printable
from delegraph_programs import flat_arguments
from delegraph_programs.call_arguments import expect_indices, expect_within, is_fixed
from torch.utils import _pytree as pytree

from .program.calling import index_ranges, input_ranges
from .program.calling import input_names as stated_names
from .program.input_sizes import InputSizes
from .program.tables import ContainerMetadata, ExecutionPlan

_LEAF = "*"
_DICTS = (dict, OrderedDict, defaultdict)
_KEYS = (str, int, float, bool, type(None))


def encode_structure(spec: pytree.TreeSpec) -> str:
    """The text of a structure; containers of other types than these become lists of
    their children.
    """
    return json.dumps(_encode(spec), separators=(",", ":"))


def _encode(spec: pytree.TreeSpec) -> Any:
    if spec.is_leaf():
        return _LEAF
    children = [_encode(child) for child in spec.children()]
    fields = getattr(spec.context, "_fields", None)
    if fields is not None:
        return {
            "named": [
                spec.context.__name__,
                [[f, c] for f, c in zip(fields, children, strict=True)],
            ]
        }
    if spec.type is tuple:
        return {"tuple": children}
    keys = spec.context[1] if spec.type is defaultdict else spec.context
    if spec.type in _DICTS and all(isinstance(k, _KEYS) for k in keys):
        return {
            "dict": [[key, child] for key, child in zip(keys, children, strict=True)]
        }
    return {"list": children}


def encode_inputs(
    spec: pytree.TreeSpec,
    names: Sequence[str],
    sizes: InputSizes,
    fixed: Sequence[int] = (),
    within: Mapping[int, Sequence[int]] = MappingProxyType({}),
    indexed: Mapping[int, Sequence[int]] = MappingProxyType({}),
) -> str:
    """The text of the inputs of a method, with the names of its positional arguments
    where torch recorded them.

    ``sizes``: those that are not fixed. ``fixed``: positions of the flat inputs that
    are numbers or texts which the program was exported for. ``within``: position of a
    flat input -> the lowest and the highest integer that it may hold. ``indexed``: the
    same for inputs with indices, for which eager raises an error outside of the range.
    """
    stated: dict[str, Any] = {"sizes": sizes.to_json()} if sizes.places else {}
    stated |= {"fixed": list(fixed)} if fixed else {}
    stated |= {"within": [[k, *ends] for k, ends in within.items()]} if within else {}
    stated |= (
        {"indexed": [[k, *ends] for k, ends in indexed.items()]} if indexed else {}
    )
    if not names and not stated:
        return encode_structure(spec)
    return json.dumps(
        {"structure": _encode(spec), "names": list(names), **stated},
        separators=(",", ":"),
    )


def expect_fixed_inputs(
    plan: ExecutionPlan, flat: Sequence[Any], names: Sequence[str]
) -> list[int]:
    """Positions of the flat inputs that have one value. Raises InputError if a call
    gives another.
    """
    listed = _stated(plan.container, "fixed")
    positions = (
        [k for k in listed if type(k) is int and 0 <= k < len(plan.inputs)]
        if isinstance(listed, list)
        else []
    )
    for k in positions if len(flat) == len(plan.inputs) else ():
        wanted = getattr(plan.values[plan.inputs[k]].value, "value", None)
        if not _is_same(flat[k], wanted):
            raise InputError(
                "input-invalid",
                f"input {names[k]} was exported as {wanted!r}; it is {flat[k]!r:.80}",
            )
    return positions


def expect_input_ranges(
    plan: ExecutionPlan, flat: Sequence[Any], names: Sequence[str]
) -> None:
    """Raise InputError for integers that the file was not lowered for, and for indices
    that eager refuses.
    """
    count = len(plan.inputs)
    for k, (low, high) in input_ranges(plan.container, count).items():
        if k < len(flat):
            expect_within(flat[k], low, high, lambda: names, k)
    for k, (low, high) in index_ranges(plan.container, count).items():
        if k < len(flat):
            expect_indices(flat[k], low, high, lambda: names, k)


def _is_same(given: Any, wanted: Any) -> bool:
    """Whether a number or text is the one that a program was exported for; no array is."""
    return isinstance(given, (int, float, str, type(None))) and is_fixed(wanted, given)


def input_names(plan: ExecutionPlan) -> list[str]:
    """What a caller calls each flat input; its number where the file does not say it."""
    names = stated_names(plan.container, len(plan.inputs))
    return [name or str(k) for k, name in enumerate(names)]


def argument_names(container: ContainerMetadata | None) -> list[str]:
    """The names of a method's positional arguments; empty if the file does not say
    them.
    """
    listed = _stated(container, "names")
    known = isinstance(listed, list) and all(isinstance(name, str) for name in listed)
    return [printable(name[:500]) for name in listed] if known else []


def _stated(container: ContainerMetadata | None, key: str) -> Any:
    try:
        content = json.loads(container.inputs) if container is not None else None
    except (ValueError, RecursionError):
        return None
    return content.get(key) if isinstance(content, dict) else None


def encode_outputs(
    spec: pytree.TreeSpec,
    delegate_outputs: Sequence[int],
    producers: Sequence[str],
    fingerprints: Sequence[str] = (),
    facts: Sequence[Mapping[str, str]] = (),
) -> str:
    """Return the text of a method's outputs, with a list of each property of its
    delegates.

    A delegate call in a file lists inputs and outputs without the place where the
    outputs start, and its table has no field for a producer. ``fingerprints`` (of the
    backends' tools) and ``facts`` (of the backends' reports) are left out if all of
    them are empty. A text that all delegates share is written once. ``program.calling``
    reads the text.
    """
    if not delegate_outputs:
        return encode_structure(spec)
    stated = {
        "structure": _encode(spec),
        "delegate_outputs": list(delegate_outputs),
        "producers": _once(producers),
    }
    if any(fingerprints):
        stated["fingerprints"] = _once(fingerprints)
    if any(facts):
        stated["facts"] = [dict(by_name) for by_name in facts]
    return json.dumps(stated, separators=(",", ":"))


def _once(texts: Sequence[str]) -> list[str] | str:
    return texts[0] if len(texts) > 1 and len(set(texts)) == 1 else list(texts)


def decode_structure(text: str) -> pytree.TreeSpec:
    """The structure that a text describes. Raises FormatError for any other text."""
    try:
        content = json.loads(text)
        return pytree.tree_structure(
            _decode(
                content.get("structure", content)
                if isinstance(content, dict)
                else content
            )
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as e:
        raise FormatError(
            "format-invalid", f"the structure of inputs or outputs cannot be read: {e}"
        ) from e


def _decode(encoded: Any) -> Any:
    """A value of the structure, with 0 for each leaf."""
    if encoded == _LEAF:
        return 0
    ((kind, content),) = encoded.items()
    if kind == "dict":
        return {key: _decode(child) for key, child in content}
    if kind == "named":
        name, fields = content
        return _named_tuple(name, tuple(f for f, _ in fields))(
            *(_decode(c) for _, c in fields)
        )
    return {"tuple": tuple, "list": list}[kind](_decode(child) for child in content)


@lru_cache(maxsize=256)
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    """One class for each text, so that structures that were read twice are equal."""
    return namedtuple(name, fields)


def _as_written(value: Any) -> Any:
    """A value in the containers that it has after its structure was written and read
    back.
    """
    leaves, spec = pytree.tree_flatten(value)
    return pytree.tree_unflatten(leaves, pytree.tree_structure(_decode(_encode(spec))))


def structure_of(
    container: ContainerMetadata | None, side: str
) -> pytree.TreeSpec | None:
    """The structure of a method's ``inputs`` or ``outputs``; None if the file does not
    say it in a way that we know.
    """
    text = getattr(container, side) if container is not None else ""
    spec = decode_structure(text) if text.startswith(("{", '"')) else None
    if side == "inputs" and spec is not None and not _is_of_a_call(spec):
        raise FormatError(
            "format-invalid",
            "the structure of inputs is not that of arguments and keyword arguments",
        )
    return spec


def _is_of_a_call(spec: pytree.TreeSpec) -> bool:
    return (
        spec.type is tuple
        and spec.num_children == 2
        and [c.type for c in spec.children()] == [tuple, dict]
    )


def flatten_call(
    spec: pytree.TreeSpec | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    names: Sequence[str] = (),
) -> list[Any]:
    """The flat inputs of a call: arguments in their structure, or one for each input.

    Raises InputError for arguments of another structure. The text names no classes:
    containers are compared in the form in which they are written, a dataclass as the
    list of its fields.
    """
    flat: list[Any] = pytree.tree_leaves((tuple(args), dict(kwargs)))
    plain = not kwargs and len(flat) == len(args) and all(map(operator.is_, flat, args))
    if spec is None or (plain and len(flat) == spec.num_leaves):
        return flat
    named = {name: _as_written(value) for name, value in kwargs.items()}
    return flat_arguments(spec, [_as_written(value) for value in args], named, names)


def unflatten_result(spec: pytree.TreeSpec | None, outputs: list[Any]) -> Any:
    """The flat outputs of a call in their structure; as a list if that is not known."""
    return (
        outputs
        if spec is None or spec.num_leaves != len(outputs)
        else pytree.tree_unflatten(outputs, spec)
    )
