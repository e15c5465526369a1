"""The backend's options: from the user to compile specs, and on to OpenVINO's properties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from delegraph.backend import CompileSpec
from delegraph.errors import OptionError

PREFIX = "openvino_"
"""What the keys of the compile specs begin with; an option's name follows."""

PRECISIONS = ("f32", "f16", "bf16", "default")


@dataclass(frozen=True)
class Options:
    """Where and how OpenVINO computes. The names are those of the options in ``plugin``."""

    device: str = "CPU"
    precision: str = "f32"
    cache_dir: str = ""
    properties: str = ""

    def to_compile_specs(self) -> list[CompileSpec]:
        """One compile spec for each option that is set. Raises OptionError for what OpenVINO could not read."""
        if self.precision not in PRECISIONS:
            text = f"option 'precision' is one of {', '.join(PRECISIONS)}, not {self.precision!r:.40}"
            raise OptionError("option-invalid", text)
        self.config()  # a property that cannot be read is the user's mistake of now, not of the first run
        return [CompileSpec(PREFIX + key, value.encode()) for key, value in vars(self).items() if value]

    def config(self) -> dict[str, str]:
        """OpenVINO's properties. Raises OptionError for what is not ``NAME=VALUE``."""
        config = {} if self.precision == "default" else {"INFERENCE_PRECISION_HINT": self.precision}
        if self.cache_dir:
            config["CACHE_DIR"] = self.cache_dir
        for pair in filter(None, self.properties.split(",")):
            name, equals, value = pair.partition("=")
            if not equals:
                text = f"option 'properties' is NAME=VALUE,NAME=VALUE with OpenVINO's names, and {pair!r} has no '='"
                raise OptionError("option-invalid", text)
            config[name.strip()] = value.strip()
        return config


def from_compile_specs(compile_specs: Sequence[CompileSpec]) -> Options:
    """Raises OptionError for any other compile spec, which nobody would read."""
    given = {spec.key.removeprefix(PREFIX): spec.value.decode(errors="replace") for spec in compile_specs}
    known = {PREFIX + name for name in vars(Options())}
    for spec in compile_specs:
        if spec.key not in known:
            raise OptionError("option-invalid", f"OpenVINOBackend has no compile spec {spec.key!r}")
    return Options(**given)
