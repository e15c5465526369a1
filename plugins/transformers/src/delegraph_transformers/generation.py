"""Greedy generation with the steps of a language model, lowered or read from files."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from delegraph.errors import InputError
from delegraph.exported_program import user_inputs

_CACHE = re.compile(r"(?:caches|states)\D*(\d+)\D*")
"""The name of a cache: ``caches_0`` in programs and ``.tosa`` files, ``caches[0]`` in ``.pte`` files.

``states`` are those of models that remember tokens in states of one size.
"""


@dataclass
class Generation:
    """What was generated: ``tokens`` after the prompt, the last of which may be one to stop at.

    ``prompt_seconds`` and ``seconds``: how long the prompt took, and how long all tokens after the first one.
    ``prompt``: how many tokens the prompt has.
    """

    prompt: int
    tokens: list[int] = field(default_factory=list)
    prompt_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def rates(self) -> tuple[float, float]:
        """Tokens a second: of the prompt, and of what was generated; 0 where nothing was measured."""
        generated = len(self.tokens) - 1
        first = self.prompt / self.prompt_seconds if self.prompt_seconds else 0.0
        return first, generated / self.seconds if self.seconds and generated > 0 else 0.0


def generate(program: Any, prompt: Sequence[int], max_new_tokens: int, *, stop: Collection[int] = ()) -> Generation:
    """The tokens of highest score after ``prompt``, one after the other; the same as eager's greedy search.

    ``program``: what ``delegraph.lower`` or ``delegraph.load`` returned for a model with the methods ``prefill`` and
    ``decode`` (``generation_steps``); or two programs that were loaded, for formats with one method a file. ``stop``:
    tokens after which nothing follows. Raises InputError for a program without these methods, for tokens that the model
    does not know, and where prompt and result together are longer than the cache.
    """
    prefill, decode = _steps(program)
    _expect_fitting(decode, prompt, max_new_tokens)
    caches = [torch.zeros(size, dtype=kind) for size, kind in decode.caches]
    result = Generation(len(prompt))
    begin = time.perf_counter()
    position, scores = 0, torch.empty(0)
    while position < len(prompt):
        # whole pieces of the prompt by ``prefill``, what is left over token by token
        step = prefill if len(prompt) - position >= prefill.length else decode
        scores, caches = step(prompt[position : position + step.length], position, caches)
        position += step.length
    result.prompt_seconds = time.perf_counter() - begin
    begin = time.perf_counter()
    while True:
        result.tokens.append(int(scores.argmax()))
        if len(result.tokens) == max_new_tokens or result.tokens[-1] in stop:
            break
        scores, caches = decode(result.tokens[-1:], position, caches)
        position += 1
    result.seconds = time.perf_counter() - begin
    return result


def _expect_fitting(step: _Step, prompt: Sequence[int], max_new_tokens: int) -> None:
    """Raise InputError for a prompt or a number of tokens that the program has no room for."""
    if not prompt or max_new_tokens < 1:
        raise InputError(
            "input-invalid", f"{len(prompt)} tokens are given and {max_new_tokens} wanted: at least 1 each"
        )
    room = step.room
    # the last token is not given to the model any more
    if room is not None and len(prompt) + max_new_tokens - 1 > room:
        text = f"a prompt of {len(prompt)} tokens and {max_new_tokens} more do not fit into the cache, which has {room}"
        hint = "lower the model with a longer one: generation_steps(model, cache_length=...)"
        raise InputError("input-invalid", text, hint=hint)
    if step.vocabulary and (unknown := [t for t in prompt if not 0 <= t < step.vocabulary]):
        text = f"the model has no token {unknown[0]}: they go from 0 to {step.vocabulary - 1}"
        raise InputError("input-invalid", text)


class _Step:
    """A method of a program: ``step(tokens, position, caches)`` returns scores and new caches.

    ``length``: how many tokens a call takes. ``caches``: (shape, dtype) of each. ``vocabulary``: how many tokens there
    are, 0 if the file does not say. ``room``: how many tokens the caches hold, None if there is no limit.
    """

    def __init__(
        self, name: str, call: Callable[..., Any], inputs: Mapping[str, tuple[Sequence[Any], torch.dtype]], scores: int
    ) -> None:
        """``call``: takes the inputs in the order of ``inputs``, name -> (shape, dtype), as a flat list."""
        self._call, self._names, self.vocabulary = call, list(inputs), scores
        numbered = {int(match[1]): given for key, given in inputs.items() if (match := _CACHE.fullmatch(key))}
        self.caches = [numbered[k] for k in sorted(numbered)]
        # keys and values are [B, heads, room, head size]; states do not grow with the tokens
        rooms = (shape[2] for key, (shape, _) in inputs.items() if key.startswith("caches") and len(shape) == 4)
        self.room = next(rooms, None)
        # a file of a model with states may leave out the position, which such a model does not read
        needed = {"input_ids", "position"} if self.room is not None else {"input_ids"}
        if not self.caches or needed - inputs.keys():
            hint = "lower a language model: delegraph.lower(model) or delegraph_transformers.generation_steps"
            text = f"{name} takes ({', '.join(inputs)}), and a step takes input_ids, position and caches"
            raise InputError("input-invalid", text, hint=hint)
        (batch, self.length), self._tokens = inputs["input_ids"]
        self._position = inputs["position"][1] if "position" in inputs else torch.long
        if batch != 1:
            raise InputError("input-invalid", f"{name} takes {batch} sequences at once; generate makes one")

    def __call__(
        self, tokens: Sequence[int], position: int, caches: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        given = {
            "input_ids": torch.tensor([list(tokens)], dtype=self._tokens),
            "position": torch.tensor([position], dtype=self._position),
        }
        ordered = [caches[int(m[1])] if (m := _CACHE.fullmatch(n)) else given[n] for n in self._names]
        scores, *new = torch.utils._pytree.tree_leaves(self._call(ordered))
        return scores, new


def _steps(program: Any) -> tuple[_Step, _Step]:
    """The steps ``prefill`` and ``decode`` of a program, or of two programs that have one method each."""
    if isinstance(program, (tuple, list)):
        if len(program) != 2:
            raise InputError("input-invalid", f"two programs are wanted, prefill and decode, not {len(program)}")
        steps = [_of_file(p, p.only_method, flat=True) for p in program]
        steps.sort(key=lambda step: -step.length)
        return steps[0], steps[1]
    missing = {"prefill", "decode"}.difference(program.methods)
    if missing:
        text = f"the program has no method {min(missing)}; its methods: {', '.join(program.methods)}"
        hint = "lower a language model: delegraph.lower(model) or delegraph_transformers.generation_steps"
        raise InputError("input-invalid", text, hint=hint)
    of = _of_file if hasattr(program, "summary") else _of_lowered
    return of(program, "prefill"), of(program, "decode")


def _of_file(program: Any, name: str, flat: bool = False) -> _Step:
    """A method of a program that was loaded. ``flat``: it takes its inputs one by one, in the order of the file."""
    summary = next(m for m in program.summary.methods if m.name == name or flat)
    inputs = {i.name: (i.shape or (), getattr(torch, i.dtype)) for i in summary.inputs}
    method = program.method(name)
    shape = summary.outputs[0].shape if summary.outputs else None
    scores = (shape[-1] if shape else None) or 0
    return _Step(name, (lambda given: method(*given)) if flat else _structured(method), inputs, scores)


def _of_lowered(program: Any, name: str) -> _Step:
    """A method of what ``delegraph.lower`` returned."""
    exported = program.exported_program(name)
    inputs = {n.name: (n.meta["val"].shape, n.meta["val"].dtype) for n in user_inputs(exported)}
    return _Step(name, _structured(program.method(name)), inputs, 0)


def _structured(method: Callable[..., Any]) -> Callable[[Sequence[Any]], Any]:
    """A call of a method that takes its caches as one list."""
    return lambda given: method(given[0], given[1], list(given[2:]))
