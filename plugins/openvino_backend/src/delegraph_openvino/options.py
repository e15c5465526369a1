"""The backend's options: from the user to compile specs, and on to OpenVINO's properties."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from delegraph.backend import CompileSpec, from_specs, to_specs
from delegraph.errors import OptionError

PREFIX = "openvino_"
"""What the keys of the compile specs begin with; an option's name follows."""

PRECISIONS = ("f32", "f16", "bf16", "default")

PROPERTIES = frozenset(
    "INFERENCE_NUM_THREADS NUM_STREAMS PERFORMANCE_HINT PERFORMANCE_HINT_NUM_REQUESTS EXECUTION_MODE_HINT "
    "INFERENCE_PRECISION_HINT ENABLE_CPU_PINNING ENABLE_CPU_RESERVATION ENABLE_HYPER_THREADING SCHEDULING_CORE_TYPE "
    "MODEL_DISTRIBUTION_POLICY MODEL_PRIORITY CPU_DENORMALS_OPTIMIZATION CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE "
    "DYNAMIC_QUANTIZATION_GROUP_SIZE KV_CACHE_PRECISION LP_TRANSFORMS_MODE PERF_COUNT COMPILATION_NUM_THREADS "
    "GPU_QUEUE_PRIORITY GPU_QUEUE_THROTTLE GPU_ENABLE_LOOP_UNROLLING GPU_DISABLE_WINOGRAD_CONVOLUTION NPU_TURBO "
    "NPU_TILES ALLOW_AUTO_BATCHING AUTO_BATCH_TIMEOUT ENABLE_STARTUP_FALLBACK ENABLE_RUNTIME_FALLBACK".split()
)
"""OpenVINO's properties that a program may set: of how it computes. Others, such as WEIGHTS_PATH, name files, and a
program can be a file that somebody else made."""


@dataclass(frozen=True)
class Options:
    """Where and how OpenVINO computes. The names are those of the options in ``plugin``."""

    device: str = "CPU"
    precision: str = "f32"
    properties: str = ""

    def to_compile_specs(self) -> list[CompileSpec]:
        """One compile spec for each option that is set. Raises OptionError for what OpenVINO could not read."""
        self.config()  # a property that cannot be read is the user's mistake of now, not of the first run
        return to_specs(PREFIX, {name: text for name, text in vars(self).items() if text})

    def config(self) -> dict[str, str]:
        """OpenVINO's properties. Raises OptionError for those that are not ``NAME=VALUE`` or not in ``PROPERTIES``."""
        if self.precision not in PRECISIONS:
            text = f"option 'precision' is one of {', '.join(PRECISIONS)}, not {self.precision!r:.40}"
            raise OptionError("option-invalid", text)
        config = {} if self.precision == "default" else {"INFERENCE_PRECISION_HINT": self.precision}
        for pair in filter(None, self.properties.split(",")):
            name, equals, value = map(str.strip, pair.partition("="))
            if not equals:
                text = f"option 'properties' is NAME=VALUE,NAME=VALUE with OpenVINO's names; {pair!r:.80} has no '='"
                raise OptionError("option-invalid", text)
            if name not in PROPERTIES or not re.fullmatch(r"[\w.-]{1,40}", value):
                text = f"option 'properties' does not set {name!r:.40} to {value!r:.40}: files of others could"
                hint = f"it takes words and numbers for {', '.join(sorted(PROPERTIES))}"
                raise OptionError("option-invalid", text, hint=hint)
            config[name] = value
        return config


def from_compile_specs(compile_specs: Sequence[CompileSpec]) -> Options:
    """Raises OptionError for any other compile spec, which nobody would read."""
    settings, others = from_specs(compile_specs, PREFIX, vars(Options()))
    for spec in others:
        raise OptionError("option-invalid", f"OpenVINOBackend has no compile spec {spec.key!r:.80}")
    return Options(**settings)
