"""The command ``delegraph generate``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from delegraph.command import Outcome, expect_file, natural_number, progress
from delegraph.errors import InputError, PluginUnavailable, UsageError


class Generate:
    """The command ``delegraph generate``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        files = (
            "a program with the methods prefill and decode (and encode), or files with"
            " one method each"
        )
        add("files", type=Path, nargs="+", metavar="FILE", help=files)
        add(
            "--prompt-tokens",
            type=natural_number,
            nargs="+",
            metavar="TOKEN",
            help="the tokens of the prompt",
        )
        add("--prompt", metavar="TEXT", help="the prompt as text; needs --tokenizer")
        add(
            "--tokenizer",
            type=Path,
            metavar="tokenizer.json",
            help="converts text to tokens, and tokens to text",
        )
        add(
            "--given-tokens",
            type=natural_number,
            nargs="+",
            metavar="TOKEN",
            help="a text for encode, as tokens",
        )
        add(
            "--given",
            type=Path,
            metavar="FILE.npy",
            help="features of a sound, or an image, for encode",
        )
        add(
            "--max-new-tokens",
            type=natural_number,
            default=20,
            metavar="N",
            help="number of tokens to generate, 20 by default",
        )
        add(
            "--stop",
            type=natural_number,
            nargs="+",
            default=[],
            metavar="TOKEN",
            help="tokens that end the text",
        )
        add(
            "--no-warm-up",
            action="store_true",
            help="include the first call of each method, which may be slow",
        )
        add(
            "--runtime",
            metavar="NAME",
            help="execute the file in this runtime, such as executorch",
        )

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        if (args.prompt is None) == (args.prompt_tokens is None):
            raise UsageError("usage-invalid", "give either --prompt-tokens or --prompt")
        if args.prompt is not None and args.tokenizer is None:
            raise UsageError(
                "usage-invalid", "--prompt needs --tokenizer, a tokenizer.json"
            )
        if len(args.files) > 3:
            raise UsageError(
                "usage-invalid", f"give one to three files; got {len(args.files)}"
            )
        if args.given is not None and args.given_tokens is not None:
            raise UsageError(
                "usage-invalid",
                "give either --given or --given-tokens for the method encode, not both",
            )
        for path in (*args.files, *filter(None, [args.tokenizer, args.given])):
            expect_file(path)
        tokenizer: Any = _tokenizer(args.tokenizer) if args.tokenizer else None
        prompt = args.prompt_tokens or tokenizer.encode(args.prompt).ids
        with progress(f"generating {args.max_new_tokens} tokens"):
            import delegraph
            from delegraph.report import format_seconds, pluralize

            from .generation import generate

            given = args.given_tokens if args.given is None else _read_array(args.given)
            before = _peak_memory()
            begin = time.perf_counter()
            loaded = [delegraph.load(path, runtime=args.runtime) for path in args.files]
            load_seconds = time.perf_counter() - begin
            program = loaded if len(loaded) > 1 else loaded[0]
            warm = not args.no_warm_up
            done = generate(
                program,
                prompt,
                args.max_new_tokens,
                given=given,
                stop=args.stop,
                warm_up=warm,
            )
            memory = _peak_memory()
        first, rest = done.rates
        text = tokenizer.decode(done.tokens) if tokenizer else None
        content = {
            "prompt": list(prompt),
            "tokens": done.tokens,
            "text": text,
            "load_seconds": load_seconds,
            "prompt_seconds": done.prompt_seconds,
            "seconds": done.seconds,
            "prompt_tokens_per_second": first,
            "tokens_per_second": rest,
            "memory_before": before,
            "peak_memory": memory,
        }
        shown = " ".join(map(str, done.tokens)) if text is None else text
        count = pluralize(len(prompt), "token")
        more = pluralize(len(done.tokens) - 1, "token")
        lines = [
            shown,
            (
                f"{count} of the prompt in {format_seconds(done.prompt_seconds)}:"
                f" {first:.4g} tokens/s"
            ),
        ]
        if rest:
            lines.append(
                f"{more} after the first in {format_seconds(done.seconds)}: {rest:.4g}"
                " tokens/s"
            )
        lines.append(f"loaded in {format_seconds(load_seconds)}")
        if memory is not None and before is not None:
            lines[-1] += (
                f"; peak memory {memory / 1e6:.4g} MB, {before / 1e6:.4g} MB before the"
                " file was loaded"
            )
        return Outcome("delegraph.generate/1", content, "\n".join(lines))


def _peak_memory() -> int | None:
    """Return the peak memory of this process in bytes; None on Windows."""
    try:
        import resource
    except ImportError:
        return None
    # Linux counts kilobytes, macOS bytes
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _read_array(path: Path) -> Any:
    """Return the tensor in a ``.npy`` file; InputError for any other file."""
    import numpy as np
    import torch

    try:
        return torch.from_numpy(np.load(path, allow_pickle=False))
    except (ValueError, TypeError, OSError, EOFError) as e:
        raise InputError(
            "input-invalid", f"{path.name} cannot be read as a numpy array: {e}"
        ) from e


def _tokenizer(path: Path) -> Any:
    """Return the tokenizer in a file of the library ``tokenizers``."""
    try:
        from tokenizers import Tokenizer
    except ImportError as e:
        text = "--tokenizer needs tokenizers, which is not installed"
        raise PluginUnavailable(
            "plugin-unavailable", text, hint="pip install tokenizers"
        ) from e
    try:
        return Tokenizer.from_file(str(path))
    except Exception as e:  # it raises no other class
        raise InputError(
            "input-invalid", f"{path.name} is not a valid tokenizer.json: {e}"
        ) from e
