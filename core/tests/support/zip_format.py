"""A program format that zips the blobs, a JSON about them, and the host's program.

In the host's program, a delegate is called as ``zipped::delegate`` with its number,
because ``torch.export.save`` can write calls of operators.
"""

import io
import json
import zipfile

import torch
from delegraph.backend import (
    BackendDetails,
    CompileSpec,
    NamedDataStore,
    PreprocessResult,
)
from delegraph.errors import FormatError, OptionError
from delegraph.formats import ProgramFormat, join
from delegraph.partitioner import CapabilityPartitioner
from delegraph.runtime import BackendRuntime
from delegraph_programs import build_program, copy_node, root_call
from delegraph_programs.exported_program import CALL_DELEGATE
from torch.fx import Graph

# this module may be imported from several folders
if not hasattr(torch.ops.zipped, "delegate"):
    torch.library.define(
        "zipped::delegate", "(Tensor[] inputs, int number) -> Tensor[]"
    )
DELEGATE = torch.ops.zipped.delegate.default


class Contents:
    """The result of ``inspect``."""

    def __init__(self, table):
        self.table = table

    def to_json(self):
        return self.table

    def __str__(self):
        rows = [
            f"{d['method']}: {d['name']} of {d['backend_id']}"
            for d in self.table["delegates"]
        ]
        return "\n".join([f"methods: {', '.join(self.table['methods'])}", *rows])


class ZipFormat(ProgramFormat):
    @staticmethod
    def serialize(program, options):
        if unknown := set(options) - {"compress"}:
            raise OptionError(
                "option-invalid", f"a .zipped file has no option {unknown.pop()!r}"
            )
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", 8 if options.get("compress") else 0) as archive:
            rows = [
                _write_delegate(archive, k, d) for k, d in enumerate(program.delegates)
            ]
            archive.writestr(
                "program.json",
                json.dumps({"methods": list(program.methods), "delegates": rows}),
            )
            for method in program.methods:
                numbers = {
                    d.name: k
                    for k, d in enumerate(program.delegates)
                    if d.method == method
                }
                content = io.BytesIO()
                torch.export.save(
                    _host_part(program.exported_program(method), numbers), content
                )
                archive.writestr(f"{method}.pt2", content.getvalue())
        return file.getvalue()

    @staticmethod
    def read(path, load_delegate):
        with _opened(path) as archive:
            table = json.loads(archive.read("program.json"))
            delegates = [
                _read_delegate(archive, row, load_delegate)
                for row in table["delegates"]
            ]
            programs = {
                m: torch.export.load(io.BytesIO(archive.read(f"{m}.pt2")))
                for m in table["methods"]
            }
        return {
            method: _callable(program, delegates)
            for method, program in programs.items()
        }

    @staticmethod
    def inspect(path):
        with _opened(path) as archive:
            return Contents(json.loads(archive.read("program.json")))


def _opened(path):
    try:
        return zipfile.ZipFile(path)
    except zipfile.BadZipFile as e:
        raise FormatError("format-invalid", f"{path} is no zip: {e}") from e


def _write_delegate(archive, number, delegate):
    archive.writestr(f"blobs/{number}", join(delegate.blob))
    specs = [[s.key, s.value.hex()] for s in delegate.compile_specs]
    data = delegate.named_data
    for key, entry in (data.pte_data if data else {}).items():
        archive.writestr(f"data/{number}/{key}", join(data.buffers[entry.buffer_index]))
    return {
        "number": number,
        "method": delegate.method,
        "name": delegate.name,
        "backend_id": delegate.backend_id,
        "compile_specs": specs,
        "named_data": list(data.pte_data) if data else [],
        "inputs": [str(value) for value in delegate.inputs],
    }


def _read_delegate(archive, row, load_delegate):
    specs = [
        CompileSpec(key, bytes.fromhex(value)) for key, value in row["compile_specs"]
    ]
    data = {
        key: archive.read(f"data/{row['number']}/{key}") for key in row["named_data"]
    }
    return load_delegate(
        row["backend_id"], archive.read(f"blobs/{row['number']}"), specs, data
    )


def _host_part(program, numbers):
    """Return the program with numbered calls instead of delegates."""
    graph = Graph()
    copies = {}
    for node in program.graph.nodes:
        if node.target is CALL_DELEGATE:
            owner, *inputs = node.args
            copies[node] = graph.call_function(
                DELEGATE, ([copies[i] for i in inputs], numbers[owner.target])
            )
            copies[node].meta = {**node.meta, "val": list(node.meta["val"])}
        elif node.op != "get_attr" or node.target not in numbers:
            copies[node] = copy_node(graph, node, copies.__getitem__)
    signature = program.graph_signature
    specs = signature.input_specs, signature.output_specs
    return build_program(
        program.graph_module, graph, *specs, program, root_call(program)
    )


class Delegate(torch.nn.Module):
    def __init__(self, run):
        super().__init__()
        self.run = run

    def forward(self, *inputs):
        return self.run(*inputs)


def _callable(program, delegates):
    """Return the host's program as a module that calls the delegates."""
    module = program.module(check_guards=False)
    for node in module.graph.nodes:
        if node.target is DELEGATE:
            inputs, number = node.args
            node.op = "call_module"
            node.target = f"delegate_{number}"
            node.args = tuple(inputs)
            module.add_module(node.target, Delegate(delegates[number]))
    module.recompile()
    return module


# --- a backend to save: its blobs are exported programs -------------------------------


class SelfContainedBackend(BackendDetails):
    """Stores its parameters as named data, so a file without these cannot run."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        content = io.BytesIO()
        torch.export.save(edge_program, content)
        store = NamedDataStore()
        key = f"program of {len(content.getvalue())} bytes"
        store.add_named_data(key, content.getvalue())
        return PreprocessResult(
            key.encode(), data_store_output=store.get_named_data_store_output()
        )


class SelfContainedRuntime(BackendRuntime):
    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        assert [s.value for s in compile_specs] == [b"\x00setting"]
        module = torch.export.load(
            io.BytesIO(named_data[processed_bytes.decode()])
        ).module(check_guards=False)
        return lambda *args: tuple(module(*args))


class NoSort(CapabilityPartitioner):
    def __init__(self):
        def why_not(node):
            return "it cannot sort" if "sort" in str(node.target) else None

        super().__init__(
            why_not, "SelfContainedBackend", [CompileSpec("setting", b"\x00setting")]
        )
