"""``torch.compile(model, backend="delegraph")``: what a warm call costs, and what of 25
models is delegated.

    python benchmarks/torch_compile.py [--calls 50] [--repeats 40] [--models]

Calls: microseconds on one thread, the lower decile of calls in turns, which other work
disturbs least. The other backend lowers the same graph of the same module with the same
constants, and calls ``lowered`` with the inputs that are left, without looking at the
constants. Where a module is compiled for two backends, the calls of the one that came
first take longer in Dynamo's guards, by a tenth; so each comes first once, and the
table has the mean of both. "own part": what delegraph does in a call before it calls
``lowered`` and behind it, less what the other backend does there. "own part, alone":
the same where nothing else runs, so that all constants are in the processor's caches.
Models (``--models``): graphs, share of the operators that TOSA takes, and the largest
ratio of error to tolerance against eager (``LoweredProgram.verify`` has the tolerances;
below 1 is equal); how many constants there are, and the own part of a call, where the
lowered program has used the caches in between; the same with ``freezing``.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import delegraph
import publishing
import torch
from delegraph.host import Verification
from delegraph_dynamo import compile_graph
from delegraph_dynamo.constants import constant_inputs
from delegraph_dynamo.graph import _WithConstants
from torch import nn

ROOT = Path(__file__).parent.parent
PLACES = {
    "examples": [
        "mobilenet_v2.py:mobilenet_v2",
        "resnet.py:resnet18",
        "two_partitions.py:two_partitions",
    ],
    "tests/fifteen": [
        *(
            f"images.py:{name}"
            for name in (
                "mobilenet_v2_changed",
                "efficientnet",
                "resnet_changed",
                "unet_changed",
            )
        ),
        *(
            f"images.py:{name}"
            for name in (
                "yolo",
                "yolo_changed",
                "vit",
                "diffusion",
                "diffusion_changed",
            )
        ),
        *(
            f"sequences.py:{name}"
            for name in ("bert", "gpt2_changed", "llama", "whisper", "keyword_spotter")
        ),
        *(
            f"sequences.py:{name}"
            for name in ("dlrm", "time_series", "time_series_changed", "clip_text")
        ),
    ],
    "plugins/tosa_backend/tests/models": [
        *(
            f"vision.py:{name}"
            for name in ("MobileNetV3", "ConvNeXt", "ShuffleNetV2", "DenseNet")
        )
    ],
}
"""Folder -> models in it that are written here."""
CONFIGS = {
    "BertModel": {
        "vocab_size": 99,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    },
    "GPT2Model": {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "LlamaForCausalLM": {
        "vocab_size": 99,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    },
    "MistralForCausalLM": {
        "vocab_size": 99,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
    },
    "ViTModel": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
    },
}
"""Classes of transformers, with random weights -> their configurations."""


def main() -> None:
    """Print one of the tables."""
    parser = publishing.parser(__doc__)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--models", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    packages = ["torch", "delegraph", "delegraph-tosa", "transformers"]
    if arguments.models:
        found = ("model", "graphs", "operators", "delegated", "largest ratio to eager")
        costs = ("constants", "own part, us", "frozen, us")
        table = publishing.Table(
            (*found, *costs),
            [publishing.told(row(name, *built)) for name, *built in models()],
        )
        publishing.report(arguments, "torch_compile_models", packages, table)
    else:
        header = (
            "model",
            "backend that only calls `lowered`, us",
            "delegraph, us",
            "difference, us",
            "own part, us",
            "own part, alone, us",
        )
        table = publishing.Table(
            header, [_calls(*case, arguments) for case in _cases()]
        )
        publishing.report(arguments, "torch_compile_calls", packages, table)


def models() -> Iterator[tuple[str, nn.Module, tuple[Any, ...], dict[str, Any]]]:
    """Name, module in eval mode, positional and keyword inputs of each model."""
    for folder, names in PLACES.items():
        for name in names:
            file, _, function = name.partition(":")
            module = _module(ROOT / folder / file)
            given = (
                module.built(function)
                if hasattr(module, "built")
                else getattr(module, function)()
            )
            if not isinstance(given, dict):
                given = dict(zip(("model", "args", "kwargs"), given, strict=False))
            yield (
                function,
                given["model"].eval(),
                tuple(given.get("args", ())),
                given.get("kwargs", {}),
            )
    import transformers

    for name, sizes in CONFIGS.items():
        torch.manual_seed(0)
        kind = getattr(transformers, name)
        model = kind(kind.config_class(**sizes)).eval()
        vision = "image_size" in sizes
        yield (
            name,
            model,
            (torch.randn(1, 3, 32, 32) if vision else torch.randint(99, (1, 8)),),
            {},
        )


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    # where Dynamo looks for it
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(name: str, model: nn.Module, *inputs: Any) -> list[str]:
    """A row of the table of models; ``inputs`` are positional and keyword inputs."""
    torch._dynamo.reset()
    graphs: list[Any] = []
    parts: dict[str, list[_OwnPart]] = {"ours": [], "bare": []}

    def ours(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> _OwnPart:
        options = {"backends": ["tosa"], "graphs": graphs}
        parts["ours"].append(
            _OwnPart(
                lambda around: compile_graph(graph, example_inputs, options=options)
            )
        )
        return parts["ours"][-1]

    def bare(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> _OwnPart:
        parts["bare"].append(
            _OwnPart(lambda around: only_calls(graph, example_inputs, around, ["tosa"]))
        )
        return parts["bare"][-1]

    reference = copy.deepcopy(model)
    backends = {
        key: torch.compile(model, backend=backend, dynamic=False)
        for key, backend in (("ours", ours), ("bare", bare))
    }
    with torch.no_grad():
        torch.manual_seed(1)
        args, kwargs = copy.deepcopy(inputs)
        found = _tensors(backends["ours"](*args, **kwargs))
        torch.manual_seed(1)
        args, kwargs = copy.deepcopy(inputs)
        verified = Verification.of(found, _tensors(reference(*args, **kwargs)))
        own = _own_parts(
            {key: partial(called, *args, **kwargs) for key, called in backends.items()},
            parts,
        )
    reports = [graph.report for graph in graphs if graph.report]
    delegated = sum(report.delegated_operators for report in reports)
    total = delegated + sum(report.host_operators for report in reports)
    verdict = f"{verified.relative_error:.2g}" + (
        "" if verified.agrees() else " (differs)"
    )
    eager = sum(graph.report is None for graph in graphs)
    count = f"{len(graphs)}" + (f", {eager} in eager" if eager else "")
    constants = sum(len(part.graph._constants) for part in parts["ours"])
    return [
        name,
        count,
        str(total),
        f"{delegated / total:.0%}" if total else "-",
        verdict,
        str(constants),
        *own,
    ]


class _OwnPart:
    """A backend's graph, and the nanoseconds of its calls until it calls its lowered
    program and after that.
    """

    def __init__(self, compiled: Callable[[Callable[[Any], Any]], Any]) -> None:
        """``compiled``: the graph, given what is to be put around the lowered program."""
        self.stamps = [0, 0]
        self.times = list[int]()
        self.graph = compiled(lambda run: _stamped(run, self.stamps, 0, 1))

    def __call__(self, *args: Any) -> Any:
        begun = time.perf_counter_ns()
        results = self.graph(*args)
        ended = time.perf_counter_ns()
        self.times.append(self.stamps[0] - begun + ended - self.stamps[1])
        return results


def _own_parts(
    backends: Mapping[str, Callable[[], Any]], parts: Mapping[str, Sequence[_OwnPart]]
) -> list[str]:
    """The own part of ours less that of the other backend, and the same with frozen
    constants.
    """
    graphs = [part.graph for part in parts["ours"]]
    if not graphs or any(
        graph._last is None or graph._last.run is None for graph in graphs
    ):
        return ["-", "-"]
    for part in parts["ours"]:
        program = part.graph._last
        program.run = _stamped(program.run, part.stamps, 0, 1)
    backends["bare"]()
    looking = _difference(backends, parts)
    for graph in graphs:
        graph._last.versions = []
    return [f"{looking:.1f}", f"{_difference(backends, parts):.1f}"]


def _difference(
    backends: Mapping[str, Callable[[], Any]], parts: Mapping[str, Sequence[_OwnPart]]
) -> float:
    """Microseconds: medians of 20 calls in turns, fewer in 10 seconds."""
    for part in (*parts["ours"], *parts["bare"]):
        part.times.clear()
    ends = time.monotonic() + 10
    for _ in range(20):
        for call in backends.values():
            call()
        if time.monotonic() > ends:
            break
    ours, bare = (
        sum(statistics.median(part.times) for part in parts[key])
        for key in ("ours", "bare")
    )
    return (ours - bare) / 1e3


def _tensors(returned: Any) -> list[torch.Tensor]:
    """The tensors among results, also of the classes of transformers, whose caches are
    no outputs to compare.
    """
    if isinstance(returned, dict):
        returned = list(returned.values())
    if isinstance(returned, (list, tuple)):
        return [tensor for part in returned for tensor in _tensors(part)]
    return [returned] if isinstance(returned, torch.Tensor) else []


def _cases() -> Iterator[tuple[str, nn.Module, tuple[Any, ...]]]:
    yield "one linear layer, 2 constants", nn.Linear(8, 8).eval(), (torch.randn(4, 8),)
    layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(80))).eval()
    yield "80 linear layers, 160 constants", layers, (torch.randn(4, 8),)
    layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(160))).eval()
    yield "160 linear layers, 320 constants", layers, (torch.randn(4, 8),)


def _calls(
    name: str, model: nn.Module, inputs: tuple[Any, ...], arguments: argparse.Namespace
) -> list[str]:
    orders = [_in_turns(model, inputs, first, arguments) for first in ("bare", "ours")]
    base, cost, own_base, own_cost, alone = (
        sum(figures) / len(orders) for figures in zip(*orders, strict=True)
    )
    return [
        name,
        *(
            f"{value:.1f}"
            for value in (base, cost, cost - base, own_cost - own_base, alone)
        ),
    ]


def _in_turns(
    model: nn.Module, inputs: tuple[Any, ...], first: str, arguments: argparse.Namespace
) -> list[float]:
    """Both backends' calls, both own parts, and what delegraph's own part takes more if
    it runs alone.
    """
    torch._dynamo.reset()
    graphs: list[Any] = []
    stamps = [0, 0, 0, 0]
    """When the backend was called, when ``lowered`` was, and when these two returned.
    """

    def ours(
        graph: torch.fx.GraphModule, example_inputs: list[Any]
    ) -> Callable[..., Any]:
        return _stamped(
            compile_graph(
                graph, example_inputs, options={"backends": [], "graphs": graphs}
            ),
            stamps,
            0,
            3,
        )

    def bare(
        graph: torch.fx.GraphModule, example_inputs: list[Any]
    ) -> Callable[..., Any]:
        return _stamped(
            only_calls(graph, example_inputs, lambda run: _stamped(run, stamps, 1, 2)),
            stamps,
            0,
            3,
        )

    backends = {"bare": bare, "ours": ours}
    order = sorted(backends, key=lambda key: key != first)
    with torch.no_grad():
        called = {
            key: torch.compile(model, backend=backends[key], dynamic=False)
            for key in order
        }
        for key in order:
            called[key](*inputs)
        alone = _without_lowered(graphs[0], inputs)
        program = graphs[0]._last
        program.run = _stamped(program.run, stamps, 1, 2)
        whole: dict[str, list[int]] = {key: [] for key in order}
        own: dict[str, list[int]] = {key: [] for key in order}
        for _ in range(arguments.repeats):
            for key in order:
                for _ in range(arguments.calls):
                    begun = time.perf_counter_ns()
                    called[key](*inputs)
                    whole[key].append(time.perf_counter_ns() - begun)
                    own[key].append(stamps[1] - stamps[0] + stamps[3] - stamps[2])
        parts = [
            min(_microseconds(call, arguments.calls) for _ in range(arguments.repeats))
            for call in alone
        ]
    deciles = [
        statistics.quantiles(times, n=10)[0] / 1e3
        for times in (*(whole[k] for k in backends), *(own[k] for k in backends))
    ]
    return [*deciles, parts[1] - parts[0]]


def _stamped(
    call: Callable[..., Any], stamps: list[int], before: int, after: int
) -> Callable[..., Any]:
    """``call``, that writes when it begins and when it has ended to two places of
    ``stamps``.
    """

    def run(*args: Any) -> Any:
        stamps[before] = time.perf_counter_ns()
        results = call(*args)
        stamps[after] = time.perf_counter_ns()
        return results

    return run


def _without_lowered(graph: Any, inputs: tuple[Any, ...]) -> list[Callable[[], Any]]:
    """The calls of the other backend and of ``graph``, with results in place of the
    lowered program.
    """
    graph, positions = copy.copy(graph), graph._inputs
    program = graph._last = copy.copy(graph._last)
    args: list[Any] = [None] * (len(positions) + len(program.constants))
    for places, values in ((positions, inputs), (graph._constants, program.constants)):
        for k, value in zip(places, values, strict=True):
            args[k] = value
    results = program.run(*inputs)

    def lowered(*given: Any) -> Any:
        return results

    def bare(*args: Any) -> Any:
        given = [args[k] for k in positions]
        return lowered(*given)

    program.run = lowered
    return [partial(bare, *args), partial(graph, *args)]


def only_calls(
    graph: torch.fx.GraphModule,
    example_inputs: list[Any],
    around: Callable[[Any], Any] = lambda run: run,
    backends: Sequence[str] = (),
) -> Callable[..., Any]:
    """A backend of ``torch.compile`` that lowers the graph, with the same constants,
    and only calls what it got.

    ``around`` makes of that what is called.
    """
    constants = constant_inputs(graph, example_inputs)
    inputs = [k for k in range(len(example_inputs)) if k not in constants]
    module = _WithConstants(graph, {k: example_inputs[k] for k in constants}).eval()
    lowered: list[Any] = []

    def run(*args: Any) -> Any:
        given = [args[k] for k in inputs]
        if not lowered:
            lowered.append(
                around(
                    delegraph.lower(module, tuple(given), backends=[*backends]).method(
                        "forward"
                    )
                )
            )
        return lowered[0](*given)

    return run


def _microseconds(call: Callable[[], Any], count: int) -> float:
    begun = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - begun) / count * 1e6


if __name__ == "__main__":
    main()
