"""Encode the structure of a method's inputs and outputs as text.

A structure has lists, tuples, dictionaries and named tuples. Runtimes pass flat lists
and ignore the text; ``delegraph.load`` restores the structure for callers. The text does
not refer to classes, so reading it imports nothing.
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
from delegraph.io.escape_for_terminal import printable
from delegraph_programs import flat_arguments
from delegraph_programs.program_arguments import expect_indices, expect_within, is_fixed
from torch.utils import _pytree as pytree

from .program.calling import index_ranges, input_ranges
from .program.calling import input_names as names_in_file
from .program.input_sizes import InputSizes
from .program.pte_tables import ContainerMetadata, ExecutionPlan

_LEAF = "*"
"""The structure of a single value."""
_DICTS = (dict, OrderedDict, defaultdict)
_KEYS = (str, int, float, bool, type(None))
"""Types of keys that JSON can represent."""


def encode_structure(spec: pytree.TreeSpec) -> str:
    """Return a structure as text. Containers of other types become lists."""
    return json.dumps(_encode(spec), separators=(",", ":"))


def _encode(spec: pytree.TreeSpec) -> Any:
    """Return a structure in the form of JSON. Containers of other types become lists.

    The context of a spec has the keys of a dictionary, or the class of a named tuple.
    """
    if spec.is_leaf():
        return _LEAF
    children = [_encode(child) for child in spec.children()]
    fields = getattr(spec.context, "_fields", None)
    if fields is not None:
        pairs = [list(pair) for pair in zip(fields, children, strict=True)]
        return {"named": [spec.context.__name__, pairs]}
    if spec.type is tuple:
        return {"tuple": children}
    # The context of a defaultdict is (function for missing keys, keys).
    keys = spec.context[1] if spec.type is defaultdict else spec.context
    if spec.type in _DICTS and all(isinstance(k, _KEYS) for k in keys):
        return {"dict": [list(pair) for pair in zip(keys, children, strict=True)]}
    return {"list": children}


def encode_inputs(
    spec: pytree.TreeSpec,
    names: Sequence[str],
    sizes: InputSizes,
    fixed: Sequence[int] = (),
    within: Mapping[int, Sequence[int]] = MappingProxyType({}),
    indexed: Mapping[int, Sequence[int]] = MappingProxyType({}),
) -> str:
    """Return the text of a method's inputs.

    - ``names``: names of positional arguments, if torch recorded them.
    - ``sizes``: the dynamic sizes.
    - ``fixed``: positions of flat inputs that are constant numbers or strings.
    - ``within``: position of an integer input -> its lowest and highest allowed value.
    - ``indexed``: position of a tensor of indices -> the lowest and highest index for
      which eager PyTorch raises no error.
    """
    facts: dict[str, Any] = {}
    if sizes.sizes:
        facts["sizes"] = sizes.to_json()
    if fixed:
        facts["fixed"] = list(fixed)
    if within:
        facts["within"] = [[k, *ends] for k, ends in within.items()]
    if indexed:
        facts["indexed"] = [[k, *ends] for k, ends in indexed.items()]
    if not names and not facts:
        return encode_structure(spec)
    content = {"structure": _encode(spec), "names": list(names), **facts}
    return json.dumps(content, separators=(",", ":"))


def check_fixed_inputs(
    plan: ExecutionPlan, flat: Sequence[Any], names: Sequence[str]
) -> list[int]:
    """Return the positions of the inputs that must equal a constant.

    ``flat`` are the inputs of a call, ``names`` are their names. Raises InputError if an
    input differs from its constant.
    """
    # The file may be damaged: ignore invalid positions.
    content = _fact_about_inputs(plan.container, "fixed")
    positions: list[int] = []
    if isinstance(content, list):
        count = len(plan.inputs)
        positions = [k for k in content if type(k) is int and 0 <= k < count]
    if len(flat) != len(plan.inputs):
        # the runtime refuses a wrong number of inputs
        return positions
    for k in positions:
        wanted = getattr(plan.values[plan.inputs[k]].value, "value", None)
        if not _is_constant(flat[k], wanted):
            raise InputError(
                "input-invalid",
                f"input {names[k]} was exported as {wanted!r}; it is {flat[k]!r:.80}",
            )
    return positions


def check_input_ranges(
    plan: ExecutionPlan, flat: Sequence[Any], names: Sequence[str]
) -> None:
    """Raise InputError for an integer or index outside of its range in the file.

    ``flat`` are the inputs of a call, ``names`` are their names.
    """
    count = len(plan.inputs)
    for k, (low, high) in input_ranges(plan.container, count).items():
        if k < len(flat):
            expect_within(flat[k], low, high, lambda: names, k)
    for k, (low, high) in index_ranges(plan.container, count).items():
        if k < len(flat):
            expect_indices(flat[k], low, high, lambda: names, k)


def _is_constant(given: Any, wanted: Any) -> bool:
    """Return whether ``given`` is the constant ``wanted``; arrays never are."""
    return isinstance(given, (int, float, str, type(None))) and is_fixed(wanted, given)


def input_names(plan: ExecutionPlan) -> list[str]:
    """Return the names of the flat inputs, or their numbers if the file has none."""
    names = names_in_file(plan.container, len(plan.inputs))
    return [name or str(k) for k, name in enumerate(names)]


def argument_names(container: ContainerMetadata | None) -> list[str]:
    """Return the names of a method's positional arguments; empty if the file has none."""
    names = _fact_about_inputs(container, "names")
    is_valid = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return [printable(name[:500]) for name in names] if is_valid else []


def _fact_about_inputs(container: ContainerMetadata | None, key: str) -> Any:
    """Return the entry ``key`` of the text of inputs; None if missing or damaged."""
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
    """Return the text of a method's outputs and delegates.

    The text has facts about delegates that ExecuTorch's tables lack. Each list has an
    entry for each delegate:

    - ``delegate_outputs``: the number of outputs among the arguments of a call.
    - ``producers``: the tool that compiled it.
    - ``fingerprints``: versions of the backend's tools.
    - ``facts``: entries of the backend's report.

    ``program.calling`` reads the text.
    """
    if not delegate_outputs:
        return encode_structure(spec)
    content = {
        "structure": _encode(spec),
        "delegate_outputs": list(delegate_outputs),
        "producers": _once(producers),
    }
    if any(fingerprints):
        content["fingerprints"] = _once(fingerprints)
    if any(facts):
        content["facts"] = [dict(by_name) for by_name in facts]
    return json.dumps(content, separators=(",", ":"))


def _once(texts: Sequence[str]) -> list[str] | str:
    """Return a single string if all are equal, else the list."""
    if len(texts) > 1 and len(set(texts)) == 1:
        return texts[0]
    return list(texts)


def decode_structure(text: str) -> pytree.TreeSpec:
    """Return the structure that a text describes. Raises FormatError for other texts."""
    try:
        content = json.loads(text)
        if isinstance(content, dict):
            content = content.get("structure", content)
        return pytree.tree_structure(_decode(content))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as e:
        raise FormatError(
            "format-invalid", f"the structure of inputs or outputs cannot be read: {e}"
        ) from e


def _decode(encoded: Any) -> Any:
    """Return a value with the structure, with 0 for each leaf."""
    if encoded == _LEAF:
        return 0
    ((kind, content),) = encoded.items()
    if kind == "dict":
        return {key: _decode(child) for key, child in content}
    if kind == "named":
        name, fields = content
        cls = _named_tuple(name, tuple(field for field, _ in fields))
        return cls(*(_decode(child) for _, child in fields))
    return {"tuple": tuple, "list": list}[kind](_decode(child) for child in content)


@lru_cache(maxsize=256)
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    """Return a named tuple class, always the same class for equal arguments.

    Structures with named tuples are equal only if their classes are identical.
    """
    return namedtuple(name, fields)


def _in_containers_of_file(value: Any) -> Any:
    """Convert a value's containers to those of a file: a dataclass becomes a list."""
    leaves, spec = pytree.tree_flatten(value)
    return pytree.tree_unflatten(leaves, pytree.tree_structure(_decode(_encode(spec))))


def structure_of(
    container: ContainerMetadata | None, side: str
) -> pytree.TreeSpec | None:
    """Return the structure of ``inputs`` or ``outputs``; None if the file has none."""
    text = getattr(container, side) if container is not None else ""
    # ExecuTorch's own tools write texts of another form, or none.
    spec = decode_structure(text) if text.startswith(("{", '"')) else None
    if side == "inputs" and spec is not None and not _is_of_a_call(spec):
        raise FormatError(
            "format-invalid",
            "the structure of inputs in the file is not a pair of arguments and"
            " keyword arguments",
        )
    return spec


def _is_of_a_call(spec: pytree.TreeSpec) -> bool:
    """Return whether a structure is a pair of a tuple and a dict: args and kwargs."""
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
    """Return the flat inputs of a call.

    ``args`` and ``kwargs`` must have the structure ``spec``, except that a dataclass
    equals a list of its fields. ``args`` may also be the flat inputs themselves. Raises
    InputError for other arguments.
    """
    flat: list[Any] = pytree.tree_leaves((tuple(args), dict(kwargs)))
    is_flat = len(flat) == len(args) and all(map(operator.is_, flat, args))
    if spec is None or (not kwargs and is_flat and len(flat) == spec.num_leaves):
        return flat
    named = {name: _in_containers_of_file(value) for name, value in kwargs.items()}
    return flat_arguments(
        spec, [_in_containers_of_file(value) for value in args], named, names
    )


def unflatten_result(spec: pytree.TreeSpec | None, outputs: list[Any]) -> Any:
    """Return the flat outputs of a call in their structure; a list if it is unknown."""
    if spec is None or spec.num_leaves != len(outputs):
        return outputs
    return pytree.tree_unflatten(outputs, spec)
