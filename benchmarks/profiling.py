"""Where the time of a call goes: how much of it is on lines of the user's program, and
whether the parts are the run.

    python benchmarks/profiling.py [MODEL ...] [--backend xnnpack] [--repeats 20]

The models are those of examples/, full-size. `lowered.profile` calls each in turns with
a profile and without. Milliseconds are medians: of calls without a profile, and of
calls with one. The ratio is the median of pairs of such calls, one after the other:
what measuring costs, and how far the parts, which add up to a call with a profile, are
from a run. All figures are medians of five profiles, each of which shows its call of
median length. Then the shares of that call: on lines of the program, and what is on
none: the time that a delegate takes beside its operators (`rest`), operators whose node
is not known (`unknown`), and the host between its operators (`host`). With --backend
openvino a second row has what OpenVINO's own API tells of a call of the model as it
converts it: the share of the call that is in OpenVINO's counters.
"""

from __future__ import annotations

import logging
import os
import statistics
import time
import warnings
from collections import Counter
from typing import Any

import delegraph
import measuring
import publishing
import torch

HEADER = (
    "model",
    "backend",
    "delegates",
    "on the host",
    "a run, ms",
    "profiled, ms",
    "ratio",
)
ROUNDS = 5
SHARES = ("on lines", "rest", "unknown", "host", "load")


def main() -> None:
    """Print the table."""
    parser = publishing.parser(__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--backend", default="xnnpack")
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    rows = []
    for name in arguments.models or ["MobileNetV2", "BERT-base"]:
        rows.append(
            [name, arguments.backend, *row(name, arguments.backend, arguments.repeats)]
        )
        if arguments.backend == "openvino":
            rows.append([name, "OpenVINO's own API", *own_row(name, arguments.repeats)])
    table = publishing.Table(HEADER + SHARES, rows, keys=2)
    publishing.report(arguments, "profiling", ["torch", "delegraph"], table)


def own_row(name: str, repeats: int) -> list[str]:
    """The cells of one model by OpenVINO's own API, whose counters tell means of all
    calls.
    """
    import openvino

    model, inputs = measuring.model(name)
    converted = openvino.convert_model(torch.export.export(model, inputs))
    properties = {"INFERENCE_PRECISION_HINT": "f32", "PERF_COUNT": "YES"}
    request = (
        openvino.Core()
        .compile_model(converted, "CPU", properties)
        .create_infer_request()
    )

    def call() -> list[Any]:
        request.infer([x.numpy() for x in inputs], share_inputs=True)
        return [tensor.data.copy() for tensor in request.output_tensors]

    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    counted = sum(
        kernel.real_time.total_seconds() for kernel in request.get_profiling_info()
    )
    mean = sum(seconds) / repeats
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return [
        "1",
        "0",
        "-",
        f"{1000 * mean:.2f}",
        "-",
        f"{counted / mean:.1%}",
        "-",
        "-",
        "-",
        f"{load:.1f}",
    ]


def row(name: str, backend: str, repeats: int) -> list[str]:
    """The cells of one model: medians of ROUNDS profiles."""
    model, inputs = measuring.model(name)
    lowered = delegraph.lower(model, inputs, backends=[backend])
    rounds = [
        lowered.profile(*inputs, repeats=-(-repeats // ROUNDS)) for _ in range(ROUNDS)
    ]
    shares = [statistics.median(of) for of in zip(*map(_shares, rounds), strict=True)]
    load = rounds[-1].load
    return [
        str(len(lowered.delegates)),
        str(lowered.report.host_operators),
        f"{1000 * statistics.median(found.plain_seconds for found in rounds):.2f}",
        f"{1000 * statistics.median(found.seconds for found in rounds):.2f}",
        f"{statistics.median(found.watching for found in rounds):.2f}",
        *(f"{share:.1%}" for share in shares),
        "-" if load is None else f"{load:.1f}",
    ]


def _shares(found: Any) -> list[float]:
    """The share of a profile on lines, and of what is on none: beside operators, of
    unknown ones, of the host.
    """
    off = Counter[str]()
    for part in found.parts:
        if not part.lines:
            kind = (
                "host"
                if part.where == "host"
                else "rest"
                if part.what == "the rest of the delegate"
                else "unknown"
            )
            off[kind] += part.seconds
    return [
        found.attributed,
        *(off[kind] / found.total for kind in ("rest", "unknown", "host")),
    ]


if __name__ == "__main__":
    main()
