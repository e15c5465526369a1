"""Fifty models with random weights, for benchmarks/matrix.toml; most are small, so that
all of them take an evening.

    delegraph matrix benchmarks/matrix.toml --store STORE --executor process:2
        --exit-zero

They are those of benchmarks/engines.py (examples/, tests/fifteen, and the tests of
delegraph-executorch and delegraph-tosa), with more of the last. Each is a function,
called as its name with _ for what is no letter or digit. Models of tests import pytest:
install requirements-dev.txt.
"""

from __future__ import annotations

import re
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import engines  # noqa: E402

MORE_VISION = ("MobileNetV3", "EfficientNet", "U-Net")
MORE_TRANSFORMERS = (
    "BERT masked",
    "DistilBERT masked",
    "RoBERTa",
    "GPT-2",
    "Llama masked",
    "Qwen2",
    "OPT masked",
)
MORE_TRANSFORMERS += ("Whisper encoder", "ViT")


def xnnpack_quantizer() -> Any:
    """ExecuTorch's quantizer for XNNPACK."""
    return engines._quantizer("xnnpack")["quantizer"]


def _all() -> dict[str, Callable[[], engines.Case]]:
    models = dict(engines._models())
    large = {name: models.pop(name) for name in engines.LARGE}
    models |= {
        f"{n}, blocks": lambda n=n: (*engines._tosa("vision").built(n), {})
        for n in MORE_VISION
    }
    models |= {n: lambda n=n: engines._transformer(n) for n in MORE_TRANSFORMERS}
    return models | large  # what takes minutes comes last


def function_of(name: str) -> str:
    """What the function of a model is called."""
    return re.sub(r"\W+", "_", name).strip("_")


def _define(name: str, make: Callable[[], engines.Case]) -> None:
    def build() -> dict[str, Any]:
        warnings.simplefilter("ignore")
        module, args, kwargs = make()
        # quantizing takes a model's inputs by position
        return {
            "model": engines._Positional(module.eval(), kwargs).eval(),
            "args": (*args, *kwargs.values()),
        }

    globals()[function_of(name)] = types.FunctionType(
        build.__code__, globals(), function_of(name), None, build.__closure__
    )


NAMES = tuple(_all())
for _name, _make in _all().items():
    _define(_name, _make)

if __name__ == "__main__":  # the lines of matrix.toml
    for _name in NAMES:
        print(
            f'    {{ model = "matrix_models.py:{function_of(_name)}", name ='
            f' "{_name}" }},'
        )
