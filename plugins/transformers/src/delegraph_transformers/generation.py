"""Greedy generation with the steps of a language model, lowered or read from files."""

from __future__ import annotations

import operator
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from delegraph.errors import InputError
from delegraph_programs import output_values, user_inputs
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node

_LISTED = re.compile(r"(caches|states|memory)\D*(\d+)\D*")
"""The name of a tensor in a list: ``caches_0`` in programs and ``.tosa`` files,
``caches[0]`` in ``.pte`` files.

``states`` are the caches of models that remember tokens in states of one size;
``memory`` is what ``encode`` returned.
"""


@dataclass
class Generation:
    """What was generated: ``tokens`` after the prompt, the last of which may be one to
    stop at.

    ``prompt_seconds`` and ``seconds``: how long the prompt took, and how long all
    tokens after the first one. ``prompt``: how many tokens the prompt has.
    """

    prompt: int
    tokens: list[int] = field(default_factory=list)
    prompt_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def rates(self) -> tuple[float, float]:
        """Tokens a second: of the prompt, and of what was generated; 0 where nothing
        was measured.
        """
        generated = len(self.tokens) - 1
        first = self.prompt / self.prompt_seconds if self.prompt_seconds else 0.0
        return (
            first,
            generated / self.seconds if self.seconds and generated > 0 else 0.0,
        )


def generate(
    program: Any,
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    given: torch.Tensor | Sequence[int] | None = None,
    stop: Collection[int] = (),
    warm_up: bool = False,
) -> Generation:
    """The tokens of highest score after ``prompt``, one after the other; the same as
    eager's greedy search.

    ``program``: what ``delegraph.lower`` or ``delegraph.load`` returned for a model
    with the methods ``prefill`` and ``decode`` (``generation_steps``); or programs that
    were loaded, for formats with one method a file. ``given``: what ``encode`` reads
    where the program has that method: tokens of a text, features of a sound or an
    image. ``prompt`` is then what the decoder begins with. ``stop``: tokens after which
    nothing follows. ``warm_up``: call each method once before anything is timed, since
    the first call may prepare kernels. Raises InputError for a program without these
    methods, for tokens that the model does not know, and where prompt and result
    together are longer than the cache. A program that keeps its caches makes one text
    at a time: other threads wait. Before its first text without ``warm_up``, ``decode``
    is called once more, to see that both methods have one memory.
    """
    encode, prefill, decode = _steps(program)
    tokens = _tokens(prompt, "prompt")
    stops = _tokens(stop, "stop")
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int):
        text = f"max_new_tokens is an integer, not {_described(max_new_tokens)}"
        raise InputError("input-invalid", text)
    _expect_fitting(decode, tokens, max_new_tokens)
    _expect_known(decode, [*tokens, *stops])
    if not decode.keeps_caches:
        if warm_up:
            _call_each(encode, prefill, decode, tokens, given)
        return _generated(encode, prefill, decode, tokens, max_new_tokens, given, stops)
    turn = _turn_of(program)
    with turn.lock:
        mark = _mark(prefill, decode, tokens, max_new_tokens)
        if warm_up:
            _call_each(encode, prefill, decode, tokens, given, mark or 0)
        if warm_up or turn.shares:
            mark = None
        result = _generated(
            encode, prefill, decode, tokens, max_new_tokens, given, stops, mark
        )
        reached_decode = len(tokens) % prefill.length > 0 or len(result.tokens) > 1
        if mark is not None and reached_decode:
            turn.shares = True
        return result


def _tokens(given: object, name: str) -> list[int]:
    """Return ``given``, a series of integers, as a list. Raises InputError for anything
    else.
    """
    wanted = f"{name} is a series of token numbers"
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        hint = (
            "a tokenizer makes token numbers of text"
            if isinstance(given, (str, bytes))
            else None
        )
        raise InputError(
            "input-invalid", f"{wanted}, not {_described(given)}", hint=hint
        )
    shape = getattr(given, "shape", None)
    if shape is not None and len(shape) != 1:
        hint = f"{name}[0]" if len(shape) == 2 else None
        raise InputError(
            "input-invalid", f"{wanted}, not an array of shape {list(shape)}", hint=hint
        )
    tokens = []
    for place, value in enumerate(given):
        token = _as_integer(value)
        if token is None:
            raise InputError(
                "input-invalid", f"{wanted}; entry {place} is {_described(value)}"
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


def _described(value: object) -> str:
    """Return a short text for an error about ``value``."""
    if isinstance(value, (str, bytes, int, float)) or value is None:
        return (
            repr(value)
            if len(repr(value)) < 40
            else f"a {type(value).__name__} of {len(repr(value))} characters"
        )
    return f"of type {type(value).__name__}"


class _Turn:
    """The right to make a text with a program that keeps its caches: one thread at a
    time has it.

    ``shares``: whether ``decode`` was seen to find what ``prefill`` wrote.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.shares = False


_TURNS: WeakKeyDictionary[Any, _Turn] = WeakKeyDictionary()
_FINDING = threading.Lock()


def _turn_of(program: Any) -> _Turn:
    owner = program[-1] if isinstance(program, (tuple, list)) else program
    with _FINDING:
        return _TURNS.setdefault(owner, _Turn())


def _call_each(
    encode: _Encode | None,
    prefill: _Step,
    decode: _Step,
    prompt: Sequence[int],
    given: torch.Tensor | Sequence[int] | None,
    position: int = 0,
) -> None:
    """Call the methods that ``prompt`` needs once, ``decode`` last and at ``position``.

    Caches that the program keeps begin anew with the next text.
    """
    memory, mask = _encoded(encode, given)
    if prefill is not decode and prefill.length <= len(prompt):
        prefill(prompt[: prefill.length], 0, prefill.zeros(), memory, mask)
    decode(prompt[:1], position, decode.zeros(), memory, mask)


def _mark(
    prefill: _Step, decode: _Step, prompt: Sequence[int], max_new_tokens: int
) -> int | None:
    """Return a position for a call of ``decode`` before the text; None if the text does
    not call both methods.

    The call leaves its position in the memory of ``decode``. The last call of
    ``prefill`` has another position and overwrites it if both methods have one memory.
    If not, ``decode`` finds the mark, and the text is refused.
    """
    pieces, rest = divmod(len(prompt), prefill.length)
    if prefill is decode or pieces == 0 or (rest == 0 and max_new_tokens == 1):
        return None
    last = (pieces - 1) * prefill.length
    return 1 if last == 0 else 0


def _generated(
    encode: _Encode | None,
    prefill: _Step,
    decode: _Step,
    prompt: Sequence[int],
    max_new_tokens: int,
    given: torch.Tensor | Sequence[int] | None,
    stop: Collection[int],
    mark: int | None = None,
) -> Generation:
    """As ``generate``, with the methods of the program. ``mark``: what ``_mark``
    returned, if ``decode`` leaves it.
    """
    caches = decode.zeros()
    result = Generation(len(prompt))
    begin = time.perf_counter()
    memory, mask = _encoded(encode, given)
    if mark is not None:
        decode(prompt[:1], mark, decode.zeros(), memory, mask)
    position = 0
    scores = torch.empty(0)
    while position < len(prompt):
        # whole pieces of the prompt by ``prefill``, what is left over token by token
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


def _encoded(
    encode: _Encode | None, given: torch.Tensor | Sequence[int] | None
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """What ``encode`` makes of ``given``, and the mask of a text's tokens; nothing for
    a program without it.
    """
    if (encode is None) != (given is None):
        text = (
            "the program has no method encode"
            if encode is None
            else "the program has a method encode"
        )
        raise InputError(
            "input-invalid",
            f"{text}, and {'something' if encode is None else 'nothing'} is given"
            " for it",
        )
    return ([], None) if encode is None or given is None else encode(given)


def _expect_fitting(step: _Step, prompt: Sequence[int], max_new_tokens: int) -> None:
    """Raise InputError for a prompt or a number of tokens that the program has no room
    for.
    """
    if not prompt or max_new_tokens < 1:
        raise InputError(
            "input-invalid",
            f"{len(prompt)} tokens are given and {max_new_tokens} wanted: at least 1"
            " each",
        )
    room = step.room
    # the last token is not given to the model any more
    if room and len(prompt) + max_new_tokens - 1 > room:
        text = (
            f"a prompt of {len(prompt)} tokens and {max_new_tokens} more do not fit"
            f" into the cache, which has {room}"
        )
        hint = (
            "lower the model with a longer one: generation_steps(model,"
            " cache_length=...)"
        )
        raise InputError("input-invalid", text, hint=hint)


def _expect_known(step: _Step, tokens: Sequence[int]) -> None:
    """Raise InputError for a token that the model does not have."""
    for token in tokens:
        if token < 0 or (step.vocabulary and token >= step.vocabulary):
            most = (
                f": they go from 0 to {step.vocabulary - 1}"
                if step.vocabulary
                else ": they begin at 0"
            )
            raise InputError("input-invalid", f"the model has no token {token}{most}")


Inputs = Mapping[str, tuple[Sequence[Any], torch.dtype]]
"""Name -> (shape, dtype), in the order of a method's inputs."""


class _Encode:
    """The method ``encode``: ``encode(given)`` returns the memory, and the mask of a
    text.
    """

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
            tokens = _tokens(
                given.flatten() if isinstance(given, torch.Tensor) else given, "given"
            )
            room = shape[1] - len(tokens)
            if room < 0 or not tokens:
                text = (
                    f"encode takes 1 to {shape[1]} tokens, and {len(tokens)} are given"
                )
                hint = (
                    "lower the model with a longer cache_length" if room < 0 else None
                )
                raise InputError("input-invalid", text, hint=hint)
            if min(tokens) < 0:
                raise InputError(
                    "input-invalid",
                    f"the model has no token {min(tokens)}: they begin at 0",
                )
            values["attention_mask"] = torch.arange(shape[1])[None] < len(tokens)
            given = torch.nn.functional.pad(torch.tensor([tokens]), (0, room))
        try:
            values[self._name] = torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError) as error:
            text = f"given is a tensor for {self._name}, not {_described(given)}"
            raise InputError("input-invalid", text) from error
        flat = [values[name].to(dtype) for name, (_, dtype) in self._inputs.items()]
        return torch.utils._pytree.tree_leaves(self._call(flat)), values.get(
            "attention_mask"
        )


class _Step:
    """A method of a program: ``step(tokens, position, caches, memory, mask)`` returns
    scores and new caches.

    ``length``: how many tokens a call takes. ``caches``: (shape, dtype) of each.
    ``vocabulary``: how many tokens there are, 0 if the file does not say. ``room``: how
    many tokens the caches hold, 0 if there is no limit. A program that keeps its caches
    tells it in the first call; in place of caches, its calls take and return their
    position.
    """

    def __init__(
        self, name: str, call: Callable[..., Any], inputs: Inputs, scores: int
    ) -> None:
        """``call``: takes the inputs in the order of ``inputs``, name -> (shape,
        dtype), as a flat list.
        """
        self._call = call
        self._names = list(inputs)
        self.vocabulary = scores
        listed = [
            (match, given)
            for key, given in inputs.items()
            if (match := _LISTED.fullmatch(key))
        ]
        numbered = {
            int(match[2]): given for match, given in listed if match[1] != "memory"
        }
        self.caches = [numbered[k] for k in sorted(numbered)]
        # keys and values are [B, heads, room, head size]; states do not grow with the
        # tokens
        rooms = (
            shape[2]
            for key, (shape, _) in inputs.items()
            if key.startswith("caches") and len(shape) == 4
        )
        self.room = next(rooms, 0)
        self.keeps_caches = not numbered and {"input_ids", "position"} <= inputs.keys()
        # a file of a model with states may leave out the position, which such a model
        # does not read
        needed = {"input_ids", "position"} if self.room else {"input_ids"}
        if not (self.caches or self.keeps_caches) or needed - inputs.keys():
            hint = (
                "lower a language model: delegraph.lower(model) or"
                " delegraph_transformers.generation_steps"
            )
            text = (
                f"{name} takes ({', '.join(inputs)}), and a step takes input_ids,"
                " position and caches"
            )
            raise InputError("input-invalid", text, hint=hint)
        (batch, self.length), self._tokens = inputs["input_ids"]
        self._position = inputs["position"][1] if "position" in inputs else torch.long
        self._mask = (
            inputs["attention_mask"][1] if "attention_mask" in inputs else torch.bool
        )
        if batch != 1:
            raise InputError(
                "input-invalid",
                f"{name} takes {batch} sequences at once; generate makes one",
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
        ordered = [
            lists[m[1]][int(m[2])] if (m := _LISTED.fullmatch(n)) else given[n]
            for n in self._names
        ]
        scores, *new = torch.utils._pytree.tree_leaves(self._call(ordered))
        return scores, (
            self._expect_kept(position, caches, new) if self.keeps_caches else new
        )

    def _expect_kept(
        self, position: int, before: Sequence[torch.Tensor], seen: Sequence[Any]
    ) -> list[torch.Tensor]:
        """What the next call is given instead of caches. Raises InputError if this one
        did not find those of the last.

        ``before``: the position of the call before, if there was one. ``seen``: what
        ``KeptStep`` returned.
        """
        if (
            len(seen) != 1
            or not isinstance(seen[0], torch.Tensor)
            or seen[0].numel() != 2
        ):
            text = (
                "a step without caches returns scores and seen, two numbers, and this"
                " program returns something else"
            )
            hint = "lower a language model: generation_steps(model, keep_caches=True)"
            raise InputError("input-invalid", text, hint=hint)
        last, self.room = seen[0].tolist()
        if before and last != int(before[0]):
            text = (
                f"the call before was of position {int(before[0])}, and this one found"
                f" the caches of position {last}"
            )
            hint = (
                'methods share their caches in a file: save("model.pte",'
                " share_mutable_buffers=True), and load that"
            )
            raise InputError("input-invalid", text, hint=hint)
        return [torch.tensor(position)]


def _steps(program: Any) -> tuple[_Encode | None, _Step, _Step]:
    """The methods ``encode`` (None if there is none), ``prefill`` and ``decode`` of one
    program, or of several.

    Of several, each has one method. A program without ``prefill`` reads its prompt by
    ``decode``.
    """
    if isinstance(program, (tuple, list)):
        if not 1 < len(program) < 4:
            text = (
                "two or three programs are wanted, prefill and decode, and encode, not"
                f" {len(program)}"
            )
            raise InputError("input-invalid", text)
        for part in program:
            if not hasattr(part, "summary"):
                text = (
                    "of several programs, each is what delegraph.load returned, not"
                    f" {_described(part)}"
                )
                raise InputError("input-invalid", text)
        made = [_of_file(p, p.only_method, flat=True) for p in program]
        encoders = [m for m in made if isinstance(m, _Encode)]
        steps = sorted(
            (m for m in made if isinstance(m, _Step)), key=lambda step: -step.length
        )
        if len(encoders) > 1 or not steps:
            raise InputError(
                "input-invalid",
                "of the programs, one may be encode, and one has to be decode",
            )
        return encoders[0] if encoders else None, steps[0], steps[-1]
    if not hasattr(program, "methods") or not hasattr(program, "method"):
        text = (
            "program is what delegraph.lower or delegraph.load returned, not"
            f" {_described(program)}"
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
    of = _of_file if hasattr(program, "summary") else _of_lowered
    methods = {
        name: of(program, name)
        for name in ("encode", "prefill", "decode")
        if name in program.methods
    }
    return (
        methods.get("encode"),
        methods.get("prefill", methods["decode"]),
        methods["decode"],
    )


def _of_file(program: Any, name: str, flat: bool = False) -> Any:
    """A method of a program that was loaded. ``flat``: it takes its inputs one by one,
    in the order of the file.
    """
    summary = next(m for m in program.summary.methods if m.name == name or flat)
    inputs = {i.name: (i.shape or (), getattr(torch, i.dtype)) for i in summary.inputs}
    method = program.method(name)
    if _is_encode(inputs):
        return _Encode(lambda given: method(*given), inputs)
    shape = summary.outputs[0].shape if summary.outputs else None
    scores = (shape[-1] if shape else None) or 0
    return _Step(
        name,
        (lambda given: method(*given)) if flat else _structured(method, inputs),
        inputs,
        scores,
    )


def _of_lowered(program: Any, name: str) -> Any:
    """A method of what ``delegraph.lower`` returned."""
    exported = program.exported_program(name)
    inputs = {
        n.name: (n.meta["val"].shape, n.meta["val"].dtype)
        for n in user_inputs(exported)
    }
    method = program.method(name)
    if _is_encode(inputs):
        return _Encode(lambda given: method(*given), inputs)
    return _Step(name, _structured(method, inputs), inputs, _score_count(exported))


def _score_count(exported: ExportedProgram) -> int:
    """Return how many scores the first result has for each token; 0 if that is not
    known.
    """
    specs = exported.graph_signature.output_specs
    results = [
        value
        for value, spec in zip(output_values(exported), specs, strict=True)
        if spec.kind is OutputKind.USER_OUTPUT
    ]
    value = (
        results[0].meta.get("val") if results and isinstance(results[0], Node) else None
    )
    if not isinstance(value, torch.Tensor) or not value.shape:
        return 0
    count = value.shape[-1]
    return count if isinstance(count, int) else 0


def _is_encode(inputs: Inputs) -> bool:
    """Whether a method with these inputs reads something else than the tokens of a
    step.
    """
    return "input_ids" not in inputs and not any(
        _LISTED.fullmatch(name) for name in inputs
    )


def _structured(
    method: Callable[..., Any], inputs: Inputs
) -> Callable[[Sequence[Any]], Any]:
    """A call of a method that takes its caches as one list, and its memory, with the
    flat ``inputs``.
    """
    kinds = [
        match[1] if (match := _LISTED.fullmatch(name)) else name for name in inputs
    ]
    lists = {"caches", "states", "memory"}

    def call(given: Sequence[Any]) -> Any:
        arguments: list[Any] = []
        for k, (kind, value) in enumerate(zip(kinds, given, strict=True)):
            if kind not in lists:
                arguments.append(value)
            elif k and kinds[k - 1] == kind:
                arguments[-1].append(value)
            else:
                arguments.append([value])
        return method(*arguments)

    return call
