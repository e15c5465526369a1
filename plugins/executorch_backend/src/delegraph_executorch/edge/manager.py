"""``to_edge``, ``to_edge_transform_and_lower``, ``EdgeProgramManager`` (names as in
ExecuTorch), by the one pipeline.

Every step returns a new manager, leaves the old one as it was, keeps the configuration,
and verifies its programs.
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
from delegraph.io.paths import as_path
from delegraph.partitioner import Partitioner
from delegraph.reports import left_operators
from delegraph_programs import TRACING, all_nodes
from delegraph_programs.type_aliases import Transform
from torch._ops import OpOverload
from torch.export import ExportedProgram

from .passes import Pass, as_transform, verify

Passes = Pass | Sequence[Pass] | Mapping[str, Pass | Sequence[Pass]]
"""One pass, several, or either of these by method."""
# re-entrant, because a blob may contain another program's file
_JOINING = threading.RLock()
Programs = ExportedProgram | Mapping[str, ExportedProgram]


@dataclass(frozen=True)
class EdgeCompileConfig:
    """``preserve_ops``: operators that ``to_edge`` leaves whole.

    ``check_validity``: whether to verify after every step.
    """

    preserve_ops: tuple[OpOverload, ...] = ()
    check_validity: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "preserve_ops", tuple(self.preserve_ops))
        for op in self.preserve_ops:
            if not isinstance(op, OpOverload):
                text = (
                    "preserve_ops names operators such as"
                    f" torch.ops.aten.linear.default, not {op!r}"
                )
                raise OptionError("option-invalid", text)


class EdgeProgramManager(MethodPrograms):
    """Edge programs by method, the values of constant methods, and the configuration
    with which they were made.
    """

    def __init__(
        self,
        programs: Mapping[str, ExportedProgram],
        constant_methods: Mapping[str, Any] | None = None,
        compile_config: EdgeCompileConfig | None = None,
    ) -> None:
        super().__init__(programs)
        self._edge = dict(programs)
        self._constant_methods = dict(constant_methods or {})
        self.compile_config = compile_config or EdgeCompileConfig()

    @property
    def methods(self) -> KeysView[str]:
        """Names of the methods, in the order in which they were given."""
        return self._edge.keys()

    @property
    def config_methods(self) -> KeysView[str]:
        """Names of the methods that only return a constant."""
        return self._constant_methods.keys()

    def core_program(
        self, name: str = "forward", keep: Collection[OpOverload] = ()
    ) -> ExportedProgram:
        """The program of a method. The host's calls in it are in core ATen, as far as
        the configuration wants that.
        """
        return self.exported_program(name)

    @property
    def not_core(self) -> dict[str, list[str]]:
        """Method -> names of its operators that are not core ATen: preserved, or not
        decomposed.
        """
        graphs = {m: all_nodes(p.graph_module) for m, p in self._edge.items()}
        called = {
            m: {n.target for n in nodes if isinstance(n.target, OpOverload)}
            for m, nodes in graphs.items()
        }
        return {
            m: sorted(str(op) for op in ops if torch.Tag.core not in op.tags)
            for m, ops in called.items()
        }

    @property
    def constant_methods(self) -> dict[str, Any]:
        """Name -> value of the methods that only return a constant."""
        return dict(self._constant_methods)

    @property
    def delegates(self) -> list[DelegateInfo]:
        """The delegates of all methods."""
        return [
            d
            for method, program in self._edge.items()
            for d in _delegates_of(method, program)
        ]

    def whole_delegate(self) -> DelegateInfo:
        """The only delegate with all inputs and outputs of its method, in order;
        compiled again if its own differ.
        """
        (delegate,) = self.delegates
        return whole_delegate(
            self.exported_program(delegate.method), delegate, default_registry()
        )

    @property
    def host_operators(self) -> int:
        """Number of the operators that no delegate computes."""
        return sum(
            len(left_operators(all_nodes(p.graph_module))) for p in self._edge.values()
        )

    def transform(self, passes: Passes) -> EdgeProgramManager:
        """Run passes, one or several, on every method, or by method. Each method's
        passes get a copy of its program.
        """
        lists = _to_lists("passes are", passes, self._edge)
        changed = {m: self._edge[m] for m, passes in lists.items() if passes}
        normalized = lower_programs(
            changed,
            transforms=_transforms(lists, self.compile_config),
            registry=default_registry(),
        )
        return self._next({**self._edge, **normalized})

    def to_backend(
        self, partitioner: Partitioner | Mapping[str, Partitioner]
    ) -> EdgeProgramManager:
        """Delegate what a partitioner tags, in every method or by method.

        Each backend is called once for all methods.
        """
        named = (
            partitioner
            if isinstance(partitioner, Mapping)
            else dict.fromkeys(self._edge, partitioner)
        )
        lowered = delegate(self._edge, named)
        self._verify(lowered, "to_backend")
        return self._next({**self._edge, **lowered})

    def to_executorch(
        self, config: Mapping[str, Any] | None = None
    ) -> ExecutorchProgramManager:
        """The program as a ``.pte`` file; ``config`` has options of that format.

        The file has its methods in the order of their names, as ExecuTorch's. Raises
        FormatNotFound, with the name of the distribution to install, if no plugin
        offers ``.pte`` files.
        """
        in_order = self._next(
            {method: self._programs[method] for method in sorted(self._programs)}
        )
        return ExecutorchProgramManager(
            in_order, FileFormat("program.pte", default_registry()), config or {}
        )

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write the program in the format of the path's suffix, with options of that
        format, as ``lower`` does.
        """
        with TRACING:
            FileFormat(path, default_registry()).save(self, options)

    def _next(self, programs: Mapping[str, ExportedProgram]) -> EdgeProgramManager:
        """A manager of other programs with the same configuration."""
        return EdgeProgramManager(programs, self._constant_methods, self.compile_config)

    def _verify(self, programs: Mapping[str, ExportedProgram], step: str) -> None:
        """Verify the programs after ``step``, if the configuration wants that."""
        if self.compile_config.check_validity:
            for method, program in programs.items():
                verify(program.graph_module, f"after {step}, method {method}")


class ExecutorchProgramManager:
    """What ``to_executorch`` returns: a ``.pte`` file and its data files; weights are
    read when they are written.

    After ``buffer`` was read, the program file does not change any more, even if a
    weight does.
    """

    def __init__(
        self,
        edge: EdgeProgramManager,
        file_format: FileFormat,
        options: Mapping[str, Any],
    ) -> None:
        with TRACING:
            self._edge = edge
            self._contents = file_format.contents(edge, options)

    @property
    def methods(self) -> KeysView[str]:
        """Names of the methods."""
        return self._edge.methods

    def exported_program(self, name: str = "forward") -> ExportedProgram:
        """The program of a method, with calls of its delegates."""
        return self._edge.exported_program(name)

    @property
    def buffer(self) -> bytes:
        """The bytes of the program file; each access returns the same object, because
        runtimes read it in place.

        It is a copy of all weights. A large program is better written with
        ``write_to_file`` or ``save``.
        """
        with _JOINING:  # two threads have to get the same object, which is kept here
            self._contents[""] = content = join(self._contents[""])
        return content

    @property
    def data_files(self) -> list[str]:
        """Names of the files that the program needs besides its own."""
        return [name for name in self._contents if name]

    def write_to_file(self, file: BinaryIO) -> None:
        """Append the content of the program file to an open binary file."""
        content = self._contents[""]
        file.write(content) if isinstance(content, bytes) else content.write_to(file)

    def write_tensor_data_to_file(self, outdir: str | os.PathLike[str]) -> None:
        """Write ``data_files`` into a folder under their names; ``save`` puts the
        program's name in front of them.
        """
        for name in self.data_files:
            write_whole(os.path.join(outdir, name), self._contents[name])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program and its data files (``model.weights.ptd`` beside
        ``model.pte``), each whole or not.

        Raises OptionError for a path without the suffix ``.pte``.
        """
        target = as_path(path)
        if target.suffix.lower() != ".pte":
            raise OptionError(
                "option-invalid",
                f"to_executorch makes a .pte file, and {target.name} is to be another",
            )
        write_files(self._contents, target)


def to_edge(
    programs: Programs,
    constant_methods: Mapping[str, Any] | None = None,
    compile_config: EdgeCompileConfig | None = None,
) -> EdgeProgramManager:
    """Edge programs in core ATen, except for ``compile_config.preserve_ops`` and
    operators that nothing decomposes.

    ``not_core`` of the result lists these, such as ``aten._linalg_svd.default``. If
    there is a partitioner, ``to_edge_transform_and_lower`` leaves whole what that wants
    whole.
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
    """Normalize, run passes, delegate, and bring what is left to core ATen.

    ``partitioner``: one, several in order of preference, or such a list by method. An
    operator that one of them keeps (by ``ops_to_not_decompose``, or because its backend
    takes it) is not decomposed before that one has partitioned; operators that are not
    delegated in the end are decomposed afterwards. Passes see operators as
    ``torch.export`` recorded them.
    """
    config = compile_config or EdgeCompileConfig()
    methods = _by_method(programs)
    passes = _to_lists("passes are", transform_passes, methods)
    lists = _to_lists("a partitioner is", partitioner, methods)
    unchanged = Partitioner.transform_for_pre_decomposition
    for method, partitioners in lists.items():
        own = [
            p
            for p in partitioners
            if type(p).transform_for_pre_decomposition is not unchanged
        ]
        passes.setdefault(method, []).extend(
            p.transform_for_pre_decomposition for p in own
        )
    ranks = range(max(map(len, lists.values()), default=0))
    lowered = lower_programs(
        methods,
        [{m: p[k] for m, p in lists.items() if k < len(p)} for k in ranks],
        transforms=_transforms(passes, config),
        decompose=True,
        keep=config.preserve_ops,
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
    """Delegate what is tagged. Only methods with a partitioner take part, and nothing
    is decomposed.

    ``whole``: the one delegate of a method takes all inputs of its program, in their
    order.
    """
    check_methods("a partitioner is", partitioners, programs)
    asked = {m: p for m, p in programs.items() if m in partitioners}
    return lower_programs(
        asked, [partitioners], whole=whole, registry=default_registry()
    )


def _delegates_of(method: str, program: ExportedProgram) -> list[DelegateInfo]:
    """The delegates that a method calls, without the operators from which they were
    compiled.
    """
    names = {module: name for name, module in program.graph_module.named_modules()}
    modules = dict.fromkeys(module for _, module in delegate_calls(program))
    return [DelegateInfo(method, names[module], module, ()) for module in modules]


def _by_method(programs: Programs) -> dict[str, ExportedProgram]:
    """The programs by method; InputError for something that is no ExportedProgram."""
    named = dict(programs) if isinstance(programs, Mapping) else {"forward": programs}
    for method, program in named.items():
        if not isinstance(program, ExportedProgram):
            text = (
                f"method {method}: an ExportedProgram is wanted, not"
                f" {type(program).__name__}"
            )
            raise InputError(
                "input-invalid",
                text,
                hint="torch.export.export(module, inputs) makes one",
            )
    if not named:
        raise InputError("input-invalid", "there is no method to lower")
    return named


def _to_lists(
    what: str, given: Any, methods: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """A list for each method that is named, from one item, several, none, or any of
    these by method.
    """
    named = given if isinstance(given, Mapping) else dict.fromkeys(methods, given)
    check_methods(what, named, methods)
    return {
        m: [each] if callable(each) else list(each or ()) for m, each in named.items()
    }


def _transforms(
    passes: Mapping[str, Sequence[Pass]], config: EdgeCompileConfig
) -> dict[str, list[Transform]]:
    """The passes of each method as transforms."""
    return {
        m: [as_transform(each, m, config.check_validity) for each in listed]
        for m, listed in passes.items()
    }


def check_methods(
    what: str, named: Mapping[str, Any], methods: Mapping[str, Any]
) -> None:
    """Raise UnknownMethod if ``named`` has a method that is not among ``methods``."""
    for method in named:
        if method not in methods:
            text = f"{what} given for method {method!r}; methods: {list(methods)}"
            raise UnknownMethod("input-invalid", text)
