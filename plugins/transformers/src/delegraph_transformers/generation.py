"""Greedy generation with the methods of a language model, lowered or loaded.

``prefill`` and ``decode`` are steps: each reads some tokens, and returns the scores of
the next token. Keys and values of earlier tokens are in caches. Either a step takes and
returns its caches, or the program keeps them in memory that its methods share.
"""

from __future__ import annotations

import operator
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from delegraph.errors import InputError
from delegraph_programs import output_values, user_inputs
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node

_LIST_ELEMENT = re.compile(r"(caches|states|memory)\D*(\d+)\D*")
"""The name of a tensor in a list: ``caches_0`` in programs and ``.tosa`` files.

In ``.pte`` files it is ``caches[0]``. ``states`` are the caches of models with states
of fixed size; ``memory`` is the result of ``encode``.
"""


@dataclass
class Generation:
    """The generated ``tokens`` after the prompt; the last one may be a stop token.

    ``prompt``: the number of tokens in the prompt. ``prompt_seconds`` and ``seconds``:
    the time for the prompt, and for all tokens after the first one.
    """

    prompt: int
    tokens: list[int] = field(default_factory=list)
    prompt_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def rates(self) -> tuple[float, float]:
        """Tokens a second of the prompt and of the generated tokens; 0 if not measured."""
        generated = len(self.tokens) - 1
        prompt_rate = 0.0
        if self.prompt_seconds:
            prompt_rate = self.prompt / self.prompt_seconds
        if not self.seconds or generated <= 0:
            return prompt_rate, 0.0
        return prompt_rate, generated / self.seconds


def generate(
    program: Any,
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    given: torch.Tensor | Sequence[int] | None = None,
    stop: Collection[int] = (),
    warm_up: bool = False,
) -> Generation:
    """Return the tokens of highest score after ``prompt``, as eager's greedy search.

    ``program``: the result of ``delegraph.lower`` or ``delegraph.load`` for a model
    with the methods ``prefill`` and ``decode`` (``generation_steps``). For formats with
    one method a file, pass the loaded programs. ``given``: the input of ``encode`` if
    the program has that method: tokens of a text, features of a sound, or an image.
    ``prompt`` is then the beginning for the decoder. ``stop``: tokens that end the
    text. ``warm_up``: call each method once before the timing, since the first call may
    prepare kernels.

    Raises InputError for a program without these methods, and for tokens that the model
    does not have. It also raises InputError if prompt and result are longer than the
    cache. A program that keeps its caches makes one text at a time: other threads wait.
    Before its first text without ``warm_up``, ``decode`` is called once more, to check
    that both methods share their memory.
    """
    methods = _methods_of(program)
    prefill = methods.prefill
    decode = methods.decode
    tokens = _tokens(prompt, "prompt")
    stops = _tokens(stop, "stop")
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int):
        text = f"max_new_tokens must be an integer; got {_describe(max_new_tokens)}"
        raise InputError("input-invalid", text)
    _expect_fitting(decode, tokens, max_new_tokens)
    _expect_known(decode, [*tokens, *stops])
    if not decode.keeps_caches:
        if warm_up:
            _call_each(methods, tokens, given)
        return _generate_tokens(methods, tokens, max_new_tokens, given, stops)
    kept = _kept_caches_of(program)
    with kept.lock:
        test_position = _test_position(methods, tokens, max_new_tokens)
        if warm_up:
            _call_each(methods, tokens, given, test_position or 0)
        if warm_up or kept.are_shared:
            test_position = None
        result = _generate_tokens(
            methods, tokens, max_new_tokens, given, stops, test_position
        )
        reached_decode = len(tokens) % prefill.length > 0 or len(result.tokens) > 1
        if test_position is not None and reached_decode:
            kept.are_shared = True
        return result


def _tokens(given: object, name: str) -> list[int]:
    """Return ``given``, a series of integers, as a list; InputError for anything else."""
    wanted = f"{name} must be a series of token numbers"
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        hint = None
        if isinstance(given, (str, bytes)):
            hint = "convert text to token numbers by a tokenizer"
        raise InputError(
            "input-invalid", f"{wanted}, not {_describe(given)}", hint=hint
        )
    shape = getattr(given, "shape", None)
    if shape is not None and len(shape) != 1:
        hint = f"{name}[0]" if len(shape) == 2 else None
        raise InputError(
            "input-invalid", f"{wanted}, not an array of shape {list(shape)}", hint=hint
        )
    tokens = []
    for position, value in enumerate(given):
        token = _as_integer(value)
        if token is None:
            raise InputError(
                "input-invalid", f"{wanted}; entry {position} is {_describe(value)}"
            )
        tokens.append(token)
    return tokens


def _as_integer(value: object) -> int | None:
    """Return an integer of Python, numpy or torch as int; None for anything else."""
    if isinstance(value, bool) or getattr(value, "dtype", None) in (torch.bool, "bool"):
        return None
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # it raises TypeError for others
    except TypeError:
        return None


def _describe(value: object) -> str:
    """Return a short text about ``value`` for an error."""
    if isinstance(value, (str, bytes, int, float)) or value is None:
        shown = repr(value)
        if len(shown) < 40:
            return shown
        return f"a {type(value).__name__} of {len(shown)} characters"
    return f"of type {type(value).__name__}"


class _KeptCaches:
    """The caches that a program keeps, which one thread at a time may use.

    ``are_shared``: whether a call showed that ``decode`` finds the caches of ``prefill``.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.are_shared = False


_KEPT_CACHES: WeakKeyDictionary[Any, _KeptCaches] = WeakKeyDictionary()
_KEPT_CACHES_LOCK = threading.Lock()


def _kept_caches_of(program: Any) -> _KeptCaches:
    """Return the record of a program's caches, the same object in each call."""
    # a list of programs cannot be a key; its last program identifies it
    owner = program[-1] if isinstance(program, (tuple, list)) else program
    with _KEPT_CACHES_LOCK:
        return _KEPT_CACHES.setdefault(owner, _KeptCaches())


def _call_each(
    methods: _Methods,
    prompt: Sequence[int],
    given: torch.Tensor | Sequence[int] | None,
    position: int = 0,
) -> None:
    """Call the methods that ``prompt`` needs once, ``decode`` last and at ``position``.

    Caches that the program keeps are reset by the next text.
    """
    prefill = methods.prefill
    decode = methods.decode
    memory, mask = _call_encode(methods.encode, given)
    if prefill is not decode and prefill.length <= len(prompt):
        prefill(prompt[: prefill.length], 0, prefill.zeros(), memory, mask)
    decode(prompt[:1], position, decode.zeros(), memory, mask)


def _test_position(
    methods: _Methods, prompt: Sequence[int], max_new_tokens: int
) -> int | None:
    """Return a position for a test call of ``decode`` before the text, or None.

    The call stores its position in the memory of ``decode``. If both methods share
    their memory, the last call of ``prefill`` overwrites it by another position. If
    not, the next call of ``decode`` finds the test position, and the text is refused.
    None if the text does not call both methods.
    """
    prefill = methods.prefill
    pieces, rest = divmod(len(prompt), prefill.length)
    needs_decode = rest > 0 or max_new_tokens != 1
    if prefill is methods.decode or pieces == 0 or not needs_decode:
        return None
    last_of_prefill = (pieces - 1) * prefill.length
    return 1 if last_of_prefill == 0 else 0


def _generate_tokens(
    methods: _Methods,
    prompt: Sequence[int],
    max_new_tokens: int,
    given: torch.Tensor | Sequence[int] | None,
    stop: Collection[int],
    test_position: int | None = None,
) -> Generation:
    """Generate as ``generate`` does, with the methods of the program.

    ``test_position``: that of a test call of ``decode``, if it is needed; see
    ``_test_position``.
    """
    encode, prefill, decode = methods
    caches = decode.zeros()
    result = Generation(len(prompt))
    begin = time.perf_counter()
    memory, mask = _call_encode(encode, given)
    if test_position is not None:
        decode(prompt[:1], test_position, decode.zeros(), memory, mask)
    position = 0
    scores = torch.empty(0)
    while position < len(prompt):
        # whole pieces of the prompt by ``prefill``, the rest token by token
        step = prefill if len(prompt) - position >= prefill.length else decode
        scores, caches = step(
            prompt[position : position + step.length], position, caches, memory, mask
        )
        _expect_fitting(step, prompt, max_new_tokens)
        position += step.length
    result.prompt_seconds = time.perf_counter() - begin
    begin = time.perf_counter()
    while True:
        result.tokens.append(int(scores.argmax()))
        if len(result.tokens) == max_new_tokens or result.tokens[-1] in stop:
            break
        scores, caches = decode(result.tokens[-1:], position, caches, memory, mask)
        position += 1
    result.seconds = time.perf_counter() - begin
    return result


def _call_encode(
    encode: _Encode | None, given: torch.Tensor | Sequence[int] | None
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """Return the results of ``encode``: the memory, and the mask of a text's tokens.

    The steps take both. Without ``encode``, they are an empty list and None. Raises InputError if ``given``
    is missing, or is not needed.
    """
    if encode is None:
        if given is not None:
            raise InputError(
                "input-invalid",
                "the program has no method encode, so it takes no given=...",
            )
        return [], None
    if given is None:
        raise InputError(
            "input-invalid",
            "the program has a method encode; pass its input as given=...",
        )
    return encode(given)


def _expect_fitting(step: _Step, prompt: Sequence[int], max_new_tokens: int) -> None:
    """Raise InputError if the prompt and the new tokens do not fit into the cache."""
    if not prompt or max_new_tokens < 1:
        raise InputError(
            "input-invalid",
            "the prompt and max_new_tokens must be at least 1 token each; they are"
            f" {len(prompt)} and {max_new_tokens}",
        )
    room = step.room
    # the model does not read the last token, so it needs no place in the cache
    if room and len(prompt) + max_new_tokens - 1 > room:
        text = (
            f"a prompt of {len(prompt)} tokens and {max_new_tokens} more do not fit"
            f" into the cache of {room} tokens"
        )
        hint = (
            "lower the model with a longer cache: generation_steps(model,"
            " cache_length=...)"
        )
        raise InputError("input-invalid", text, hint=hint)


def _expect_known(step: _Step, tokens: Sequence[int]) -> None:
    """Raise InputError for a token that the model does not have."""
    for token in tokens:
        if token < 0 or (step.vocabulary and token >= step.vocabulary):
            known = "its tokens begin at 0"
            if step.vocabulary:
                known = f"its tokens are 0 to {step.vocabulary - 1}"
            raise InputError(
                "input-invalid", f"the model has no token {token}; {known}"
            )


Inputs = Mapping[str, tuple[Sequence[Any], torch.dtype]]
"""Name -> (shape, dtype), in the order of a method's inputs."""


class _Encode:
    """The method ``encode``: returns the memory, and the mask of a text."""

    def __init__(self, call: Callable[..., Any], inputs: Inputs) -> None:
        self._call = call
        self._inputs = dict(inputs)
        self._masks = [name for name in inputs if name == "attention_mask"]
        (self._name,) = [name for name in inputs if name not in self._masks]

    def __call__(
        self, given: torch.Tensor | Sequence[int]
    ) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        shape, _ = self._inputs[self._name]
        values = {}
        if self._masks:
            if isinstance(given, torch.Tensor):
                given = given.flatten()
            tokens = _tokens(given, "given")
            room = shape[1] - len(tokens)
            if room < 0 or not tokens:
                text = f"encode takes 1 to {shape[1]} tokens; given has {len(tokens)}"
                hint = None
                if room < 0:
                    hint = "lower the model with a longer cache_length"
                raise InputError("input-invalid", text, hint=hint)
            if min(tokens) < 0:
                raise InputError(
                    "input-invalid",
                    f"the model has no token {min(tokens)}; its tokens begin at 0",
                )
            values["attention_mask"] = torch.arange(shape[1])[None] < len(tokens)
            given = torch.nn.functional.pad(torch.tensor([tokens]), (0, room))
        try:
            values[self._name] = torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError) as error:
            text = f"given must be a tensor for {self._name}, not {_describe(given)}"
            raise InputError("input-invalid", text) from error
        flat = [values[name].to(dtype) for name, (_, dtype) in self._inputs.items()]
        memory = torch.utils._pytree.tree_leaves(self._call(flat))
        return memory, values.get("attention_mask")


class _Step:
    """The method ``prefill`` or ``decode``: returns scores and new caches.

    ``length``: how many tokens a call takes. ``caches``: (shape, dtype) of each.
    ``vocabulary``: the number of tokens, 0 if the file does not declare it. ``room``:
    how many tokens the caches hold, 0 if there is no limit.

    ``keeps_caches``: the program keeps its caches. Then ``room`` is known after the
    first call, and ``caches`` of calls are a list of one tensor, the position of the
    call before.
    """

    def __init__(
        self, name: str, call: Callable[..., Any], inputs: Inputs, scores: int
    ) -> None:
        """Read the inputs of a method.

        ``call`` takes the inputs in the order of ``inputs`` as a flat list. ``scores``:
        how many scores it returns, 0 if that is not known.
        """
        self._call = call
        self._names = list(inputs)
        self.vocabulary = scores
        numbered: dict[int, tuple[Sequence[Any], torch.dtype]] = {}
        for key, given in inputs.items():
            match = _LIST_ELEMENT.fullmatch(key)
            if match and match[1] != "memory":
                numbered[int(match[2])] = given
        self.caches = [numbered[k] for k in sorted(numbered)]
        # keys and values are [B, heads, room, head size]; states do not depend on the
        # number of tokens
        rooms = (
            shape[2]
            for key, (shape, _) in inputs.items()
            if key.startswith("caches") and len(shape) == 4
        )
        self.room = next(rooms, 0)
        self.keeps_caches = not numbered and {"input_ids", "position"} <= inputs.keys()
        # a file of a model with states may lack the position, which it does not use
        needed = {"input_ids", "position"} if self.room else {"input_ids"}
        if not (self.caches or self.keeps_caches) or needed - inputs.keys():
            hint = (
                "lower a language model: delegraph.lower(model) or"
                " delegraph_transformers.generation_steps"
            )
            text = (
                f"the method {name} takes ({', '.join(inputs)}); a step of a language"
                " model takes input_ids, position and caches"
            )
            raise InputError("input-invalid", text, hint=hint)
        (batch, self.length), self._tokens = inputs["input_ids"]
        _, self._position = inputs.get("position", ((), torch.long))
        _, self._mask = inputs.get("attention_mask", ((), torch.bool))
        if batch != 1:
            raise InputError(
                "input-invalid",
                f"the method {name} takes {batch} sequences at once; generate needs a"
                " batch of 1",
            )

    def zeros(self) -> list[torch.Tensor]:
        """Return the caches before the first token; none if the program keeps them."""
        return [torch.zeros(size, dtype=kind) for size, kind in self.caches]

    def __call__(
        self,
        tokens: Sequence[int],
        position: int,
        caches: Sequence[torch.Tensor],
        memory: Sequence[torch.Tensor] = (),
        mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        given = {
            "attention_mask": mask if mask is None else mask.to(self._mask),
            "input_ids": torch.tensor([list(tokens)], dtype=self._tokens),
            "position": torch.tensor([position], dtype=self._position),
        }
        lists = {"caches": caches, "states": caches, "memory": memory}
        ordered: list[Any] = []
        for name in self._names:
            match = _LIST_ELEMENT.fullmatch(name)
            ordered.append(lists[match[1]][int(match[2])] if match else given[name])
        scores, *new = torch.utils._pytree.tree_leaves(self._call(ordered))
        if self.keeps_caches:
            new = self._check_kept_caches(position, caches, new)
        return scores, new

    def _check_kept_caches(
        self, position: int, before: Sequence[torch.Tensor], seen: Sequence[Any]
    ) -> list[torch.Tensor]:
        """Check that this call found the caches of the last one; return the position.

        The next call gets the position instead of caches.

        ``before``: the position of the call before, if there was one. ``seen``: the
        second result of ``KeptStep``. Raises InputError for caches of another call.
        """
        is_tensor = len(seen) == 1 and isinstance(seen[0], torch.Tensor)
        if not is_tensor or seen[0].numel() != 2:
            text = (
                "a step without caches must return scores and two numbers; this"
                " program returns something else"
            )
            hint = "lower a language model: generation_steps(model, keep_caches=True)"
            raise InputError("input-invalid", text, hint=hint)
        last, self.room = seen[0].tolist()
        if before and last != int(before[0]):
            text = (
                f"the last call was at position {int(before[0])}, but the caches of this"
                f" call are at position {last}: the methods do not share caches"
            )
            hint = (
                'save the program by save("model.pte", share_mutable_buffers=True), and'
                " load that file"
            )
            raise InputError("input-invalid", text, hint=hint)
        return [torch.tensor(position)]


class _Methods(NamedTuple):
    """The methods of a program; ``prefill`` may be ``decode``."""

    encode: _Encode | None
    prefill: _Step
    decode: _Step


def _methods_of(program: Any) -> _Methods:
    """Return the methods of one program, or of several with one method each.

    A program without ``prefill`` reads its prompt by ``decode``.
    """
    if isinstance(program, (tuple, list)):
        return _methods_of_files(program)
    if not hasattr(program, "methods") or not hasattr(program, "method"):
        text = (
            "program must be a result of delegraph.lower or delegraph.load, not"
            f" {_describe(program)}"
        )
        raise InputError("input-invalid", text)
    needed = {"decode"} if "encode" in program.methods else {"prefill", "decode"}
    missing = needed.difference(program.methods)
    if missing:
        text = (
            f"the program has no method {min(missing)}; its methods:"
            f" {', '.join(program.methods)}"
        )
        hint = (
            "lower a language model: delegraph.lower(model) or"
            " delegraph_transformers.generation_steps"
        )
        raise InputError("input-invalid", text, hint=hint)
    read = _of_file if hasattr(program, "summary") else _of_lowered
    names = {"encode", "prefill", "decode"}.intersection(program.methods)
    named = {name: read(program, name) for name in names}
    decode = named["decode"]
    return _Methods(named.get("encode"), named.get("prefill", decode), decode)


def _methods_of_files(programs: Sequence[Any]) -> _Methods:
    """Return the methods of programs with one method each; ``prefill`` is the longest."""
    if not 1 < len(programs) < 4:
        text = (
            "pass two or three programs, prefill, decode and perhaps encode, not"
            f" {len(programs)}"
        )
        raise InputError("input-invalid", text)
    for program in programs:
        if not hasattr(program, "summary"):
            text = (
                "each of several programs must be a result of delegraph.load, not"
                f" {_describe(program)}"
            )
            raise InputError("input-invalid", text)
    methods = [_of_file(p, p.only_method, flat=True) for p in programs]
    encoders = [method for method in methods if isinstance(method, _Encode)]
    steps = [method for method in methods if isinstance(method, _Step)]
    steps.sort(key=lambda step: -step.length)
    if len(encoders) > 1 or not steps:
        raise InputError(
            "input-invalid",
            "one of the programs must have the method decode, and at most one the method encode",
        )
    encode = encoders[0] if encoders else None
    return _Methods(encode, prefill=steps[0], decode=steps[-1])


def _of_file(program: Any, name: str, flat: bool = False) -> Any:
    """Return a method of a loaded program, an ``_Encode`` or a ``_Step``.

    ``flat``: the program has only this method, which takes its inputs one by one, in
    the order of the file.
    """
    summary = next(m for m in program.summary.methods if m.name == name or flat)
    inputs = {i.name: (i.shape or (), getattr(torch, i.dtype)) for i in summary.inputs}
    method = program.method(name)

    def call_flat(given: Sequence[Any]) -> Any:
        return method(*given)

    if _is_encode(inputs):
        return _Encode(call_flat, inputs)
    scores = None
    if summary.outputs and summary.outputs[0].shape:
        scores = summary.outputs[0].shape[-1]
    call = call_flat if flat else _structured(method, inputs)
    return _Step(name, call, inputs, scores or 0)


def _of_lowered(program: Any, name: str) -> Any:
    """Return a method of a lowered program."""
    exported = program.exported_program(name)
    inputs: dict[str, tuple[Sequence[Any], torch.dtype]] = {}
    for node in user_inputs(exported):
        inputs[node.name] = (node.meta["val"].shape, node.meta["val"].dtype)
    method = program.method(name)
    if _is_encode(inputs):
        return _Encode(lambda given: method(*given), inputs)
    return _Step(name, _structured(method, inputs), inputs, _score_count(exported))


def _score_count(exported: ExportedProgram) -> int:
    """Return the size of the vocabulary, by the first result; 0 if it is not known."""
    specs = exported.graph_signature.output_specs
    outputs = zip(output_values(exported), specs, strict=True)
    results = [v for v, spec in outputs if spec.kind is OutputKind.USER_OUTPUT]
    value = None
    if results and isinstance(results[0], Node):
        value = results[0].meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.shape:
        return 0
    count = value.shape[-1]
    return count if isinstance(count, int) else 0


def _is_encode(inputs: Inputs) -> bool:
    """Return whether a method with these inputs is no step, but ``encode``."""
    return "input_ids" not in inputs and not any(map(_LIST_ELEMENT.fullmatch, inputs))


def _structured(
    method: Callable[..., Any], inputs: Inputs
) -> Callable[[Sequence[Any]], Any]:
    """Return a function that calls ``method`` with a flat list of its inputs.

    Neighbouring tensors of one list, such as ``caches_0`` and ``caches_1``, become a
    list again.
    """
    kinds: list[str] = []
    for name in inputs:
        match = _LIST_ELEMENT.fullmatch(name)
        kinds.append(match[1] if match else name)
    lists = {"caches", "states", "memory"}

    def call(given: Sequence[Any]) -> Any:
        arguments: list[Any] = []
        for k, (kind, value) in enumerate(zip(kinds, given, strict=True)):
            continues_list = k > 0 and kinds[k - 1] == kind
            if kind not in lists:
                arguments.append(value)
            elif continues_list:
                arguments[-1].append(value)
            else:
                arguments.append([value])
        return method(*arguments)

    return call
