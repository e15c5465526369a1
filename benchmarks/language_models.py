"""Language models with quantized weights: tokens, bytes and speed of delegraph's files
beside ExecuTorch's.

    python benchmarks/language_models.py [FAMILY ...] [--weights float int8 int4 8da4w]
        [--layers 2] [--seconds 3]
                                         [--width 128] [--pairs 1] [--without-theirs]

Run it with an interpreter that has `executorch==1.5.1`, `torchao==0.18.0`,
`transformers==5.23.0` and delegraph's plugins. Families are small configurations of
transformers with random weights (512 tokens, and a hidden size of
--width: rows of another one than 128 have a table of their own, "wide"), quantized by
torchao's `quantize_`: weight-only int8, weight-only int4 in groups of 32, and 8da4w in
groups of 32. The programs are the methods of `delegraph_transformers.generation_steps`,
prefill of 8 tokens and decode of one, over a cache of 64.

"xnnpack" is a `.pte` of both methods, beside what ExecuTorch's own
`to_edge_transform_and_lower` makes of the same exported programs (torchao's subclasses
unwrapped before). "tosa" is a `.pte` with TOSA delegates whose constants are named
data. Tokens: how many of 20 greedy ones equal those of eager; the `.pte` of XNNPACK
runs in ExecuTorch's runtime, as ExecuTorch's own does, TOSA in delegraph's evaluator.
Weights are what torchao holds, two int4 in a byte, with scales, zero points and what it
left in floats. Milliseconds are of a decode call in ExecuTorch's runtime, both files in
turns, medians; lowering is CPU seconds from exported programs to bytes, after both have
lowered a linear layer, so that neither has the first imports.

The table "parts" says where the bytes of an "xnnpack" file are: constants (weights as
the file has them, norms, tables, numbers), XNNPACK's graphs, the program's flatbuffer,
and what is between segments. "lowering" is of --pairs pairs, delegraph and ExecuTorch
in turns on the same exported programs: the median of their ratios, the lowest and the
highest. --without-theirs leaves ExecuTorch's file out, and with it half of the time.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import delegraph
import publishing
import torch

COUNT = 20
PROMPT = [7, 3, 11, 2, 40, 9, 1, 30, 5, 77, 12]
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "vocab_size": 512,
}
SIZES |= {"max_position_embeddings": 128, "num_key_value_heads": 2, "pad_token_id": 0}
MORE: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen3": {"head_dim": 32},
    "Gemma3": {"head_dim": 32, "sliding_window": 16},
    "Phi3": {},
    "Mamba2": {
        "num_heads": 4,
        "head_dim": 64,
        "state_size": 16,
        "n_groups": 2,
        "chunk_size": 8,
    },
    "Mixtral": {"num_local_experts": 4},
}
SCALED = ("hidden_size", "intermediate_size", "head_dim")
"""Sizes that grow with the hidden size."""
WEIGHTS = ("float", "int8", "int4", "8da4w")
HEADER = (
    "family",
    "weights",
    "backend",
    "tokens equal",
    "ExecuTorch's tokens",
    "file, kB",
    "weights, kB",
    "file / weights",
)
HEADER += (
    "ExecuTorch's file, kB",
    "of its file",
    "decode, ms",
    "its decode, ms",
    "of its time",
    "lower, s",
    "its lower, s",
)
PARTS = (
    "family",
    "weights",
    "size",
    "file, B",
    "weights, B",
    "constants, B",
    "graphs, B",
    "program, B",
    "padding, B",
)
PARTS += ("graphs",)
LOWERING = (
    "family",
    "weights",
    "size",
    "pairs",
    "lower, s",
    "its lower, s",
    "of its time",
    "lowest",
    "highest",
)


def main() -> None:
    """Measure all families, or those that are named."""
    parser = publishing.parser(__doc__)
    parser.add_argument("families", nargs="*", metavar="FAMILY", default=list(MORE))
    parser.add_argument("--weights", nargs="+", default=WEIGHTS, choices=WEIGHTS)
    parser.add_argument(
        "--backends",
        nargs="+",
        default=("xnnpack", "tosa"),
        choices=("xnnpack", "tosa"),
    )
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument(
        "--seconds",
        type=float,
        default=3.0,
        help="how long decode calls of each pair of files run",
    )
    parser.add_argument(
        "--width", type=int, default=128, help="hidden size; a multiple of 128"
    )
    parser.add_argument(
        "--pairs",
        type=int,
        default=1,
        help="how often both lower the same programs, in turns",
    )
    parser.add_argument(
        "--without-theirs", action="store_true", help="leave ExecuTorch's own file out"
    )
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    for backend in given.backends:
        _lower_a_layer(backend)
    rows = []
    parts = []
    lowering = []
    for family in given.families or list(MORE):
        for weights in given.weights:
            for backend in given.backends:
                row, bytes_of, seconds = _row(family, weights, backend, given)
                rows.append(publishing.told([family, weights, backend, *row]))
                about = [family, weights, str(given.width)]
                parts += [publishing.told([*about, *bytes_of])] if bytes_of else []
                lowering += [publishing.told([*about, *seconds])] if seconds else []
    packages = ["torch", "executorch", "torchao", "transformers", "delegraph-tosa"]
    tables = [
        publishing.Table(HEADER, rows, "" if given.width == 128 else "wide", keys=3)
    ]
    tables += [publishing.Table(PARTS, parts, "parts", keys=3)] if parts else []
    tables += (
        [publishing.Table(LOWERING, lowering, "lowering", keys=3)] if lowering else []
    )
    publishing.report(given, "language_models", packages, *tables)


def _model(family: str, weights: str, layers: int, width: int) -> Any:
    """The model, quantized; its experts as ExecuTorch has kernels for them."""
    import transformers
    from torchao.quantization import (
        Int8DynamicActivationIntxWeightConfig,
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        PerGroup,
        quantize_,
    )

    config = getattr(
        transformers, {"Gemma3": "Gemma3TextConfig"}.get(family, f"{family}Config")
    )
    sizes = {**SIZES, "num_hidden_layers": layers, **MORE[family]}
    sizes |= {name: width // 128 * sizes[name] for name in SCALED if name in sizes}
    if family == "Mamba2":
        sizes = {
            k: v
            for k, v in sizes.items()
            if k not in ("num_attention_heads", "num_key_value_heads")
        }
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config(**sizes)).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            # so that scores differ, and one token does not win always
            torch.nn.init.normal_(parameter, std=0.1)
    groups = {"weight_dtype": torch.int4, "granularity": PerGroup(32)}
    if weights == "int8":
        quantize_(model, Int8WeightOnlyConfig())
    elif weights == "int4":
        quantize_(model, IntxWeightOnlyConfig(**groups))
    elif weights == "8da4w":
        groups = {"weight_dtype": torch.int4, "weight_granularity": PerGroup(32)}
        quantize_(model, Int8DynamicActivationIntxWeightConfig(**groups))
    if family == "Mixtral":
        model.set_experts_implementation("batched_mm")
    return model


def _lower_a_layer(backend: str) -> None:
    """Import and make once what a first lowering does: XNNPACK's partitioner alone
    takes seconds.
    """
    program = torch.export.export(torch.nn.Linear(4, 4).eval(), (torch.ones(1, 4),))
    delegraph.lower(program, backends=[backend])
    if backend == "xnnpack":
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
            XnnpackPartitioner,
        )
        from executorch.exir import to_edge_transform_and_lower

        to_edge_transform_and_lower(
            program, partitioner=[XnnpackPartitioner()]
        ).to_executorch()


def _row(
    family: str, weights: str, backend: str, given: argparse.Namespace
) -> tuple[list[str], list[str], list[str]]:
    """What the three tables say of a file, without what it is of; nothing where a table
    has no such row.
    """
    from delegraph_transformers import generate, generation_steps

    model = _model(family, weights, given.layers, given.width)
    made = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=COUNT, do_sample=False, eos_token_id=None
    )
    wanted = made[0, len(PROMPT) :].tolist()
    size = _bytes_of(model)
    steps = generation_steps(model, prompt_length=8, cache_length=64)
    inputs = steps["example_inputs"]
    with torch.no_grad():
        programs = {
            name: torch.export.export(step, inputs[name])
            for name, step in steps["program"].items()
        }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "ours.pte")
        theirs = Path(folder, "theirs.pte")
        own = []
        its = []
        failed = ""
        for _ in range(given.pairs):
            own.append(_lower_ours(programs, backend, file))
            if backend == "xnnpack" and not given.without_theirs and not failed:
                try:
                    its.append(_lower_theirs(model, inputs, theirs))
                except Exception as e:
                    # whatever its passes raise is what the table has to say
                    failed = type(e).__name__
        runtime = "executorch" if backend == "xnnpack" else None
        tokens = generate(delegraph.load(file, runtime=runtime), PROMPT, COUNT).tokens
        ours = [file.stat().st_size, size]
        shown = [
            f"{_equal(tokens, wanted)} of {COUNT}",
            failed,
            *_kilobytes(*ours),
            f"{ours[0] / size:.2f}",
        ]
        parts = (
            [f"{n:,.0f}" for n in (*ours, *_parts(file))]
            if backend == "xnnpack"
            else []
        )
        if not its:
            return [*shown, "", "", "", "", "", f"{median(own):.1f}", ""], parts, []
        its_tokens = generate(_theirs_as_ours(theirs, file), PROMPT, COUNT).tokens
        shown[1] = f"{_equal(its_tokens, wanted)} of {COUNT}"
        its_size = theirs.stat().st_size
        first, second = _decode(file, theirs, inputs["decode"], given.seconds)
        ratios = (
            f"{ours[0] / its_size:.2f}",
            f"{first:.3f}",
            f"{second:.3f}",
            f"{first / second:.2f}",
        )
        seconds = f"{median(own):.1f}", f"{median(its):.1f}"
        pairs = [a / b for a, b in zip(own, its, strict=True)]
        lowering = [
            str(len(pairs)),
            *seconds,
            *(f"{f(pairs):.2f}" for f in (median, min, max)),
        ]
        return [*shown, *_kilobytes(its_size), *ratios, *seconds], parts, lowering


def _lower_ours(programs: dict[str, Any], backend: str, file: Path) -> float:
    """Write delegraph's file; its CPU seconds."""
    options = {"tosa": {"named_constants": True}} if backend == "tosa" else {}
    start = time.process_time()
    delegraph.lower(programs, backends=[backend], options=options).save(file)
    return time.process_time() - start


def _parts(file: Path) -> tuple[int, int, int, int, int]:
    """Bytes of constants, of XNNPACK's graphs, of the program's flatbuffer and between
    them, and the graphs' number.
    """
    from delegraph_executorch.inspection.facts import bytes_covered
    from delegraph_executorch.serialize.reader import read_program

    content = file.read_bytes()
    program = read_program(content).program
    places = {
        d.processed.index
        for plan in program.plans
        for d in plan.delegates
        if d.processed is not None
    }
    graphs = [program.segments[k] for k in places]
    constants = [
        segment for k, segment in enumerate(program.segments) if k not in places
    ]
    # the flatbuffer's size, in the header of the file
    structure = int.from_bytes(content[16:24], "little")
    covered = bytes_covered(constants), bytes_covered(graphs), structure
    return *covered, len(content) - sum(covered), len(graphs)


def _kilobytes(*sizes: float) -> list[str]:
    return [f"{size / 1000:,.0f}" for size in sizes]


def _equal(tokens: list[int], wanted: list[int]) -> int:
    """How many tokens are equal before the first that differs."""
    return next(
        (k for k, (a, b) in enumerate(zip(tokens, wanted, strict=True)) if a != b),
        len(wanted),
    )


def _bytes_of(model: torch.nn.Module) -> float:
    """Bytes of all parameters, each once: parts of quantized ones, with two int4 in a
    byte.
    """
    total = 0.0
    for parameter in {id(p): p for p in model.parameters()}.values():
        names = (
            parameter.__tensor_flatten__()[0]
            if hasattr(parameter, "__tensor_flatten__")
            else []
        )
        for part in [getattr(parameter, name) for name in names] or [parameter]:
            is_int4 = (
                part.dtype is torch.int8
                and getattr(parameter, "target_dtype", None) is torch.int4
            )
            total += (
                part.nbytes / 2
                if is_int4 and part.numel() == parameter.numel()
                else part.nbytes
            )
    return total


def _lower_theirs(model: Any, inputs: dict[str, Any], file: Path) -> float:
    """Write what ExecuTorch makes of the same methods; its CPU seconds."""
    from delegraph_transformers import generation_steps
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )
    from executorch.exir import to_edge_transform_and_lower
    from torchao.utils import unwrap_tensor_subclass

    plain = unwrap_tensor_subclass(model)
    steps = generation_steps(plain, prompt_length=8, cache_length=64)["program"]
    with torch.no_grad():
        programs = {
            name: torch.export.export(step, inputs[name])
            for name, step in steps.items()
        }
        start = time.process_time()
        edge = to_edge_transform_and_lower(programs, partitioner=[XnnpackPartitioner()])
        file.write_bytes(edge.to_executorch().buffer)
    return time.process_time() - start


def _flat(inputs: tuple[Any, ...]) -> list[Any]:
    return torch.utils._pytree.tree_leaves(inputs)


def _theirs_as_ours(theirs: Path, ours: Path) -> Any:
    """ExecuTorch's file behind the names of ours, which its has not."""
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(theirs)
    summary = delegraph.load(ours).summary

    class Program:
        methods = ("prefill", "decode")

        def __init__(self) -> None:
            self.summary = summary

        def method(self, name: str) -> Any:
            loaded = program.load_method(name)
            return lambda *arguments: list(loaded.execute(_flat(arguments)))

    return Program()


def _decode(
    ours: Path, theirs: Path, inputs: tuple[Any, ...], seconds: float
) -> tuple[float, float]:
    """Milliseconds of a decode call of both files, in turns."""
    from executorch.runtime import Runtime

    programs = [Runtime.get().load_program(file) for file in (ours, theirs)]
    methods = [program.load_method("decode") for program in programs]
    flat = _flat(inputs)
    spent = ([], [])
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(spent[0]) < 20:
        for method, times in zip(methods, spent, strict=True):
            start = time.perf_counter()
            method.execute(flat)
            times.append(time.perf_counter() - start)
    return 1000 * median(spent[0]), 1000 * median(spent[1])


if __name__ == "__main__":
    sys.path.insert(0, os.fspath(Path(__file__).parent))
    main()
