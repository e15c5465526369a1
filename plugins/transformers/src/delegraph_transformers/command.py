"""``delegraph generate``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from delegraph.command import Outcome, expect_file, natural_number, progress
from delegraph.errors import PluginUnavailable, UsageError


class Generate:
    """``delegraph generate``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        two = "a program with the methods prefill and decode, or two files that have one method each"
        add("files", type=Path, nargs="+", metavar="FILE", help=two)
        add("--prompt-tokens", type=natural_number, nargs="+", metavar="TOKEN", help="the tokens of the prompt")
        add("--prompt", metavar="TEXT", help="the prompt as text; needs --tokenizer")
        add("--tokenizer", type=Path, metavar="tokenizer.json", help="makes tokens of text, and text of tokens")
        add("--max-new-tokens", type=natural_number, default=20, metavar="N", help="20 unless given")
        add("--stop", type=natural_number, nargs="+", default=[], metavar="TOKEN", help="tokens after which it ends")
        add("--runtime", metavar="NAME", help="execute the file in this runtime, such as executorch")

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        if (args.prompt is None) == (args.prompt_tokens is None):
            raise UsageError("usage-invalid", "the prompt is either --prompt-tokens or --prompt")
        if args.prompt is not None and args.tokenizer is None:
            raise UsageError("usage-invalid", "--prompt needs --tokenizer, a tokenizer.json")
        if len(args.files) > 2:
            raise UsageError("usage-invalid", f"one file or two are wanted, not {len(args.files)}")
        for path in (*args.files, *filter(None, [args.tokenizer])):
            expect_file(path)
        tokenizer: Any = _tokenizer(args.tokenizer) if args.tokenizer else None
        prompt = args.prompt_tokens or tokenizer.encode(args.prompt).ids
        with progress(f"generating {args.max_new_tokens} tokens"):
            import delegraph

            from .generation import generate

            loaded = [delegraph.load(path, runtime=args.runtime) for path in args.files]
            done = generate(loaded if len(loaded) > 1 else loaded[0], prompt, args.max_new_tokens, stop=args.stop)
            memory = _peak_memory()
        first, rest = done.rates
        text = tokenizer.decode(done.tokens) if tokenizer else None
        content = {
            "prompt": list(prompt),
            "tokens": done.tokens,
            "text": text,
            "prompt_tokens_per_second": first,
            "tokens_per_second": rest,
            "peak_memory": memory,
        }
        speed = f"prompt {first:.4g} tokens/s, then {rest:.4g} tokens/s"
        if memory is not None:
            speed += f"; peak memory {memory / 1e6:.4g} MB"
        shown = " ".join(map(str, done.tokens)) if text is None else text
        return Outcome("delegraph.generate/1", content, f"{shown}\n{speed}")


def _peak_memory() -> int | None:
    """The most bytes that this process had in memory; None on Windows, which does not say."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # Linux counts kilobytes, macOS bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _tokenizer(path: Path) -> Any:
    """The tokenizer of a file, as ``tokenizers`` reads it."""
    try:
        from tokenizers import Tokenizer
    except ImportError as e:
        text = "--tokenizer needs tokenizers, which is not installed"
        raise PluginUnavailable("plugin-unavailable", text, hint="pip install tokenizers") from e
    return Tokenizer.from_file(str(path))
