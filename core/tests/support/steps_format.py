"""A program format that stores delegates in order, and refuses host operators."""

import json
import operator

from delegraph.backend import CompileSpec
from delegraph.errors import FormatError, InputError, OptionError
from delegraph.formats import ProgramFormat, join
from delegraph_programs import flat_arguments, output_values, user_inputs
from delegraph_programs.exported_program import CALL_DELEGATE
from torch.export.graph_signature import OutputKind
from torch.utils import _pytree as pytree


class StepsFormat(ProgramFormat):
    @staticmethod
    def serialize(program, options):
        for option in options:
            raise OptionError(
                "option-invalid", f"a .steps file has no option {option!r}"
            )
        return json.dumps(
            {method: _method(program, method) for method in program.methods}
        ).encode()

    @staticmethod
    def read(path, load_delegate):
        try:
            table = json.loads(path.read_bytes())
            return {
                name: _callable(method, load_delegate) for name, method in table.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise FormatError(
                "format-invalid", f"{path} is no .steps file, or a damaged one: {e!r}"
            ) from e


def _method(program, name):
    """Return inputs and outputs by name, their structures, and the delegate calls."""
    exported = program.exported_program(name)
    for spec in exported.graph_signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise InputError(
                "input-invalid",
                f"a .steps file keeps no state, and {name} writes {spec.target}",
            )
    takes, returns = map(pytree.treespec_dumps, exported.call_spec)
    inputs = [node.name for node in user_inputs(exported)]
    delegates = {
        delegate.name: delegate
        for delegate in program.delegates
        if delegate.method == name
    }
    known = set(inputs)
    steps = []
    for node in (node for node in exported.graph.nodes if node.op == "call_function"):
        if node.target is CALL_DELEGATE:
            owner, *values = node.args
            step = {
                "inputs": _names(values, known),
                **_contents(delegates[owner.target]),
            }
        elif node.target is operator.getitem:
            step = {"inputs": _names(node.args[:1], known), "item": node.args[1]}
        else:
            raise InputError(
                "not-fully-delegated",
                f"a .steps file has nothing of the host, which computes {node.target}",
            )
        steps.append({"result": node.name, **step})
        known.add(node.name)
    outputs = _names(output_values(exported), known)
    return {
        "takes": takes,
        "returns": returns,
        "inputs": inputs,
        "steps": steps,
        "outputs": outputs,
    }


def _names(values, known):
    for value in values:
        if getattr(value, "name", None) not in known:  # a weight, a buffer, or a number
            raise InputError(
                "input-invalid",
                f"a .steps file has no constants of the host, such as {value}",
            )
    return [value.name for value in values]


def _contents(delegate):
    if delegate.named_data is not None and delegate.named_data.pte_data:
        raise InputError(
            "input-invalid",
            f"a .steps file has no named data, which {delegate.name} reads",
        )
    specs = [(spec.key, spec.value.hex()) for spec in delegate.compile_specs]
    return {
        "backend_id": delegate.backend_id,
        "blob": join(delegate.blob).hex(),
        "compile_specs": specs,
    }


def _callable(method, load_delegate):
    takes, returns = (
        pytree.treespec_loads(method[key]) for key in ("takes", "returns")
    )
    steps = [
        (_loaded(step, load_delegate), step["inputs"], step["result"])
        for step in method["steps"]
    ]
    inputs = method["inputs"]
    outputs = method["outputs"]

    def call(*args, **kwargs):
        values = dict(zip(inputs, flat_arguments(takes, args, kwargs), strict=True))
        for run, used, result in steps:
            values[result] = run(*(values[name] for name in used))
        return pytree.tree_unflatten([values[name] for name in outputs], returns)

    return call


def _loaded(step, load_delegate):
    if "item" in step:
        return operator.itemgetter(step["item"])
    specs = [
        CompileSpec(key, bytes.fromhex(value)) for key, value in step["compile_specs"]
    ]
    return load_delegate(step["backend_id"], bytes.fromhex(step["blob"]), specs)
