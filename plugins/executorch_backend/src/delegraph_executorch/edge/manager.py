"""Offer ExecuTorch's ``to_edge``, ``to_edge_transform_and_lower`` and managers.

Every step returns a new manager with the same configuration, leaves the old one
unchanged, and verifies its programs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, KeysView, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch
from delegraph import default_registry
from delegraph.delegates import DelegateInfo, MethodPrograms, delegate_calls
from delegraph.engine import lower_programs, whole_delegate
from delegraph.errors import InputError, OptionError, UnknownMethod
from delegraph.formats import join, write_files, write_whole
from delegraph.host import FileFormat
from delegraph.io.as_path import as_path
from delegraph.partitioner import Partitioner
from delegraph.report import left_operators
from delegraph_programs import TRACING, all_nodes
from delegraph_programs.type_aliases import Transform
from torch._ops import OpOverload
from torch.export import ExportedProgram

from .delegate_map import DelegateDebug, delegate_map
from .passes import Pass, as_transform, verify

Passes = Pass | Sequence[Pass] | Mapping[str, Pass | Sequence[Pass]]
"""One pass, several, or either of these by method."""
_JOINING = threading.RLock()
"""Held while a file's bytes are joined.

It is re-entrant, because a blob may be the file of another program.
"""
Programs = ExportedProgram | Mapping[str, ExportedProgram]
"""The program of the method ``forward``, or programs by method."""


@dataclass(frozen=True)
class EdgeCompileConfig:
    """Options of ``to_edge`` and ``to_edge_transform_and_lower``.

    ``preserve_ops``: operators that are not decomposed. ``check_validity``: whether to
    verify the programs after every step.
    """

    preserve_ops: tuple[OpOverload, ...] = ()
    check_validity: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "preserve_ops", tuple(self.preserve_ops))
        for op in self.preserve_ops:
            if not isinstance(op, OpOverload):
                text = (
                    "preserve_ops must contain operators such as"
                    f" torch.ops.aten.linear.default, not {op!r}"
                )
                raise OptionError("option-invalid", text)


class EdgeProgramManager(MethodPrograms):
    """Edge programs by method, constant methods, and the configuration."""

    def __init__(
        self,
        programs: Mapping[str, ExportedProgram],
        constant_methods: Mapping[str, Any] | None = None,
        compile_config: EdgeCompileConfig | None = None,
    ) -> None:
        super().__init__(programs)
        self._constant_methods = dict(constant_methods or {})
        self.compile_config = compile_config or EdgeCompileConfig()

    @property
    def methods(self) -> KeysView[str]:
        """Return the names of the methods, in the order in which they were given."""
        return self._programs.keys()

    @property
    def config_methods(self) -> KeysView[str]:
        """Return the names of the methods that only return a constant."""
        return self._constant_methods.keys()

    def core_program(
        self, name: str = "forward", keep: Collection[OpOverload] = ()
    ) -> ExportedProgram:
        """Return the program of a method: it was decomposed when it was made."""
        return self.exported_program(name)

    @property
    def not_core(self) -> dict[str, list[str]]:
        """Return each method's operators outside of core ATen, by name.

        They are preserved, or have no decomposition.
        """
        found = {}
        for method, program in self._programs.items():
            targets = {node.target for node in all_nodes(program.graph_module)}
            operators = [op for op in targets if isinstance(op, OpOverload)]
            found[method] = sorted(
                str(op) for op in operators if torch.Tag.core not in op.tags
            )
        return found

    @property
    def constant_methods(self) -> dict[str, Any]:
        """Return the values of the methods that only return a constant, by name."""
        return dict(self._constant_methods)

    @property
    def delegate_map(self) -> dict[str, dict[int, DelegateDebug]]:
        """Return the ``delegate_map`` of each method's program."""
        return {m: delegate_map(program) for m, program in self._programs.items()}

    @property
    def delegates(self) -> list[DelegateInfo]:
        """Return the delegates of all methods."""
        found: list[DelegateInfo] = []
        for method, program in self._programs.items():
            found += _delegates_of(method, program)
        return found

    def whole_delegate(self) -> DelegateInfo:
        """Return the only delegate, with all inputs and outputs of its method in order.

        If the delegate has other inputs or outputs, it is compiled again.
        """
        (delegate,) = self.delegates
        return whole_delegate(
            self.exported_program(delegate.method), delegate, default_registry()
        )

    @property
    def host_operators(self) -> int:
        """Return the number of operators that no delegate computes."""
        graphs = [program.graph_module for program in self._programs.values()]
        return sum(len(left_operators(all_nodes(graph))) for graph in graphs)

    def transform(self, passes: Passes) -> EdgeProgramManager:
        """Run one or several passes on every method, or by method.

        The passes of a method get a copy of its program.
        """
        lists = _to_lists("passes are", passes, self._programs)
        changed = {m: self._programs[m] for m, passes in lists.items() if passes}
        normalized = lower_programs(
            changed,
            transforms=_transforms(lists, self.compile_config),
            registry=default_registry(),
        )
        return self._with_programs({**self._programs, **normalized})

    def to_backend(
        self, partitioner: Partitioner | Mapping[str, Partitioner]
    ) -> EdgeProgramManager:
        """Delegate the operators that a partitioner tags, in every method or by method.

        Each backend is called once for all methods.
        """
        if isinstance(partitioner, Mapping):
            partitioners = partitioner
        else:
            partitioners = dict.fromkeys(self._programs, partitioner)
        lowered = delegate(self._programs, partitioners)
        self._verify(lowered, "to_backend")
        return self._with_programs({**self._programs, **lowered})

    def to_executorch(
        self, config: Mapping[str, Any] | None = None
    ) -> ExecutorchProgramManager:
        """Return the program as a ``.pte`` file; ``config`` has options of that format.

        Like ExecuTorch's files, it has the methods in the order of their names. Raises
        FormatNotFound, with the distribution to install, if no plugin offers ``.pte``
        files.
        """
        in_order = self._with_programs(dict(sorted(self._programs.items())))
        return ExecutorchProgramManager(
            in_order, FileFormat("program.pte", default_registry()), config or {}
        )

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write the program in the format of the path's suffix, with its options."""
        with TRACING:
            FileFormat(path, default_registry()).save(self, options)

    def _with_programs(
        self, programs: Mapping[str, ExportedProgram]
    ) -> EdgeProgramManager:
        """Return a manager of other programs with the same configuration."""
        return EdgeProgramManager(programs, self._constant_methods, self.compile_config)

    def _verify(self, programs: Mapping[str, ExportedProgram], step: str) -> None:
        """Verify the programs after ``step``, unless the configuration disables it."""
        if self.compile_config.check_validity:
            for method, program in programs.items():
                verify(program.graph_module, f"after {step}, method {method}")


class ExecutorchProgramManager:
    """A ``.pte`` file and its data files. Weights are read when the files are written.

    After ``buffer`` was read, the program file no longer changes.
    """

    def __init__(
        self,
        edge: EdgeProgramManager,
        file_format: FileFormat,
        options: Mapping[str, Any],
    ) -> None:
        with TRACING:
            self._programs = edge
            # name of a data file -> content; "" is the program file
            self._contents = file_format.contents(edge, options)

    @property
    def methods(self) -> KeysView[str]:
        """Return the names of the methods."""
        return self._programs.methods

    def exported_program(self, name: str = "forward") -> ExportedProgram:
        """Return the program of a method, with calls of its delegates."""
        return self._programs.exported_program(name)

    @property
    def buffer(self) -> bytes:
        """Return the bytes of the program file, always the same object.

        Runtimes read it in place. It has a copy of all weights: write large programs
        with ``write_to_file`` or ``save``.
        """
        # Two threads must get the same object.
        with _JOINING:
            self._contents[""] = content = join(self._contents[""])
        return content

    @property
    def data_files(self) -> list[str]:
        """Return the names of the data files that the program needs."""
        return [name for name in self._contents if name]

    def write_to_file(self, file: BinaryIO) -> None:
        """Append the content of the program file to an open binary file."""
        content = self._contents[""]
        if isinstance(content, bytes):
            file.write(content)
        else:
            content.write_to(file)

    def write_tensor_data_to_file(self, outdir: str | os.PathLike[str]) -> None:
        """Write ``data_files`` into a folder.

        Unlike those of ``save``, their names do not begin with the program's name.
        """
        for name in self.data_files:
            write_whole(os.path.join(outdir, name), self._contents[name])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program and its data files, such as ``model.weights.ptd``.

        Each file is written completely or not at all. Raises OptionError for a path
        without the suffix ``.pte``.
        """
        target = as_path(path)
        if target.suffix.lower() != ".pte":
            text = f"to_executorch writes .pte files; the file name is {target.name}"
            hint = "use the suffix .pte"
            raise OptionError("option-invalid", text, hint=hint)
        write_files(self._contents, target)


def to_edge(
    programs: Programs,
    constant_methods: Mapping[str, Any] | None = None,
    compile_config: EdgeCompileConfig | None = None,
) -> EdgeProgramManager:
    """Decompose programs to core ATen.

    These operators stay: ``compile_config.preserve_ops``, and operators without a
    decomposition, such as ``aten._linalg_svd.default``. ``not_core`` of the result
    lists them. With a partitioner, use ``to_edge_transform_and_lower``, which also keeps
    the operators that the partitioner takes.
    """
    return to_edge_transform_and_lower(
        programs, constant_methods=constant_methods, compile_config=compile_config
    )


def to_edge_transform_and_lower(
    programs: Programs,
    transform_passes: Passes | None = None,
    partitioner: (
        Partitioner | Sequence[Partitioner] | Mapping[str, Sequence[Partitioner]] | None
    ) = None,
    constant_methods: Mapping[str, Any] | None = None,
    compile_config: EdgeCompileConfig | None = None,
) -> EdgeProgramManager:
    """Normalize programs, run passes, delegate, and decompose the rest to core ATen.

    ``partitioner``: one, several in order of preference, or such a list by method.
    Operators stay whole if a partitioner names them in ``ops_to_not_decompose``, or if
    its backend takes them. They are decomposed after the partitioning, unless they are
    delegated. Passes see operators as ``torch.export`` recorded them.
    """
    config = compile_config or EdgeCompileConfig()
    methods = _by_method(programs)
    passes = _to_lists("passes are", transform_passes, methods)
    lists = _to_lists("a partitioner is", partitioner, methods)
    default = Partitioner.transform_for_pre_decomposition
    for method, partitioners in lists.items():
        passes_of_method = passes.setdefault(method, [])
        for each in partitioners:
            if type(each).transform_for_pre_decomposition is not default:
                passes_of_method.append(each.transform_for_pre_decomposition)
    # round k runs the k-th partitioner of each method that has so many
    round_count = max(map(len, lists.values()), default=0)
    rounds: list[dict[str, Partitioner]] = [{} for _ in range(round_count)]
    for method, partitioners in lists.items():
        for k, each in enumerate(partitioners):
            rounds[k][method] = each
    lowered = lower_programs(
        methods,
        rounds,
        transforms=_transforms(passes, config),
        core_aten=config.preserve_ops,
        registry=default_registry(),
    )
    edge = EdgeProgramManager(lowered, constant_methods, config)
    edge._verify(lowered, "lowering")
    return edge


def delegate(
    programs: Mapping[str, ExportedProgram],
    partitioners: Mapping[str, Partitioner],
    whole: bool = False,
) -> dict[str, ExportedProgram]:
    """Lower the methods that have a partitioner, without decompositions.

    ``whole``: the one delegate of a method takes all inputs of its program, in their
    order.
    """
    check_methods("a partitioner is", partitioners, programs)
    with_partitioner = {m: p for m, p in programs.items() if m in partitioners}
    return lower_programs(
        with_partitioner, [partitioners], whole=whole, registry=default_registry()
    )


def _delegates_of(method: str, program: ExportedProgram) -> list[DelegateInfo]:
    """Return the delegates that a method calls, without lists of their operators."""
    names = {module: name for name, module in program.graph_module.named_modules()}
    modules = dict.fromkeys(module for _, module in delegate_calls(program))
    return [DelegateInfo(method, names[module], module, ()) for module in modules]


def _by_method(programs: Programs) -> dict[str, ExportedProgram]:
    """Return the programs by method. Raises InputError for other objects."""
    named = dict(programs) if isinstance(programs, Mapping) else {"forward": programs}
    for method, program in named.items():
        if not isinstance(program, ExportedProgram):
            text = (
                f"method {method} is a {type(program).__name__}, not an ExportedProgram"
            )
            hint = "torch.export.export(module, inputs) makes one"
            raise InputError("input-invalid", text, hint=hint)
    if not named:
        raise InputError("input-invalid", "there is no method to lower")
    return named


def _to_lists(
    subject: str, given: Any, methods: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """Return a list of items for each method.

    ``given`` is one item, several, none, or a mapping from methods to any of these.
    ``subject`` begins the error for an unknown method.
    """
    named = given if isinstance(given, Mapping) else dict.fromkeys(methods, given)
    check_methods(subject, named, methods)
    lists = {}
    for method, each in named.items():
        # passes and partitioners can be called, lists cannot
        lists[method] = [each] if callable(each) else list(each or ())
    return lists


def _transforms(
    passes: Mapping[str, Sequence[Pass]], config: EdgeCompileConfig
) -> dict[str, list[Transform]]:
    """Return the passes of each method as transforms."""
    return {
        m: [as_transform(each, m, config.check_validity) for each in listed]
        for m, listed in passes.items()
    }


def check_methods(
    subject: str, named: Mapping[str, Any], methods: Mapping[str, Any]
) -> None:
    """Raise UnknownMethod if ``named`` has a method that is not among ``methods``."""
    for method in named:
        if method not in methods:
            text = f"{subject} given for method {method!r}; methods: {list(methods)}"
            raise UnknownMethod("input-invalid", text)
