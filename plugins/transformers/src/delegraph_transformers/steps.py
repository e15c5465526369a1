"""A language model as steps over its caches or states, which are arguments and results:
no step hides a state.

Each method, ``prefill`` for a piece of the prompt and ``decode`` for one token, takes
what the other returned. So they work in formats whose methods do not share memory, and
in two files as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import delegraph
import torch
from delegraph.errors import InputError
from torch.utils._python_dispatch import TorchDispatchMode

from .caches import NO_RECIPE, HeldCache, ModelCall, refusing, takes
from .rotary import expect_fixed_positions, fixed_positions


class Step(ModelCall):
    """A call of a causal language model with its cache as tensors.

    ``input_ids``: int64 [B, L], the next L tokens. ``position``: int64 [1], how many
    tokens were given before. ``caches``: the keys and values of each layer in turn,
    each [B, heads, C, head size], where C is the length of the cache; then the states
    of layers that have these in place of keys and values, or beside them. Returns the
    logits of the last token [B, vocabulary], and the new ``caches``.
    """

    masks = False
    """Whether the model is told by a mask, too, how much of the cache is filled."""
    one_by_one = False
    """Whether the model is called for each token by itself."""

    def __init__(self, model: Any, batch: int, cache_length: int) -> None:
        """``model``: a PreTrainedModel with a language model's head. Raises InputError
        if it has no static cache.
        """
        super().__init__(model)
        expect_fixed_positions(model, cache_length)
        self.held = HeldCache(model, cache_length)
        self.batch = batch
        self.length = cache_length
        first = torch.zeros(batch, 1, dtype=torch.long, device=model.device)
        with refusing(model), torch.no_grad():
            self.held.begin(model, lambda: self._logits(first[0], input_ids=first))

    @property
    def empty_caches(self) -> list[torch.Tensor]:
        """Caches before the first token."""
        return [torch.zeros_like(tensor) for tensor in self.held.empty]

    @property
    def grows(self) -> list[bool]:
        """Of each cache, whether a token adds a row to it; the others begin each text
        as zeros.
        """
        return self.held.grows

    def forward(
        self,
        input_ids: torch.Tensor,
        position: torch.Tensor,
        caches: list[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        return self.call(caches, position, input_ids=input_ids)

    def call(
        self, caches: list[torch.Tensor], position: torch.Tensor, **given: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """As ``forward``; ``given``: the next tokens, as ids or as what the model makes
        of them first.
        """
        ((name, tokens),) = given.items()
        pieces = (
            torch.split(tokens, 1, 1)
            if self.one_by_one and tokens.shape[1] > 1
            else [tokens]
        )
        logits = torch.empty(0)
        with self.held.holding(caches, position), fixed_positions(self.model):
            for k, piece in enumerate(pieces):
                logits = self._logits(position + k if k else position, **{name: piece})
            return logits[:, -1], self.held.tensors

    def _logits(self, position: torch.Tensor, **given: torch.Tensor) -> torch.Tensor:
        """The logits of the last tokens of ``given``, the first of which is at
        ``position``; the cache goes on.
        """
        (tokens,) = given.values()
        options: dict[str, Any] = {
            self.held.argument: self.held.cache,
            "use_cache": True,
        }
        count = tokens.shape[1]
        # some models count positions by a slice of as many as the cache has, which
        # cannot be exported
        if takes(self.model, "position_ids"):
            ids = (position + torch.arange(count, device=position.device))[None]
            options["position_ids"] = (
                ids if self.batch == 1 else ids.expand(self.batch, count)
            )
        if takes(self.model, "logits_to_keep"):
            options["logits_to_keep"] = 1
        if self.masks:
            filled = (
                torch.arange(self.length, device=position.device) < position + count
            )
            options["attention_mask"] = filled.to(torch.long)[None].expand(
                self.batch, self.length
            )
        logits: torch.Tensor = self.model(**given, **options).logits
        return logits


class RecurrentStep(Step):
    """A call of a causal language model that remembers all tokens in states of one
    size, such as Mamba.

    ``input_ids``: int64 [B, L], the next L tokens. ``position`` is what ``Step`` takes,
    and is not read. ``states``: of each layer in turn the last inputs of its
    convolution [B, channels, kernel size] and what its recurrence keeps, such as [B,
    heads, head size, state size]. Returns the logits of the last token [B, vocabulary],
    and the new ``states``.
    """

    def forward(  # the name says to callers that there is no room that could run out
        self,
        input_ids: torch.Tensor,
        position: torch.Tensor,
        states: list[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        return self.call(states, position, input_ids=input_ids)


def choose_calls(step: Step, model: Any) -> None:
    """Let ``step`` call ``model`` in the first way that gives the scores of a call
    without any cache.

    Some layers go on from a state for single tokens only, and some models see by a mask
    alone how much of a cache is filled, or read a number from the cache without one.
    Five tokens are tried, in pieces. Raises InputError if no way gives these scores:
    there are models that take a static cache and compute with it as if it were full.
    """
    masks = (
        [False, True] if any(step.grows) and takes(model, "attention_mask") else [False]
    )
    # the first of those that read least, since what is exported has no numbers to read
    if len(masks) > 1:
        masks.sort(key=lambda mask: _count_reads(step, mask))
    reasons = []
    for way in [(mask, alone) for alone in (False, True) for mask in masks]:
        step.masks, step.one_by_one = way
        if not (reason := why_not_equal(step, model) or _why_not_exported(step, model)):
            return
        reasons.append(reason)
    raise InputError("input-invalid", different(model, reasons[0]), hint=NO_RECIPE)


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Counts the numbers that are read out of tensors."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def _count_reads(step: Step, mask: bool) -> float:
    """How many numbers a call of one token reads from tensors, with or without a mask;
    infinite if it fails.
    """
    step.masks = mask
    token = torch.ones(
        step.batch, 1, dtype=torch.long, device=step.empty_caches[0].device
    )
    try:
        with _Reads() as reads, torch.no_grad():  # type: ignore[no-untyped-call]
            step(token, token[0], step.empty_caches)
    except (ValueError, TypeError, RuntimeError, IndexError):
        return math.inf
    return float(reads.count)


def _why_not_exported(step: Step, model: Any) -> str:
    """Why a call of two tokens cannot be exported; empty if it can, or if transformers
    says that the model can.

    A call whose tensors have sizes that it reads from the cache is none that a device
    could prepare for.
    """
    if (
        getattr(model, "_can_compile_fullgraph", True)
        or not any(step.grows)
        or model.training
    ):
        return ""
    tokens = torch.zeros(
        step.batch, min(2, step.length), dtype=torch.long, device=model.device
    )
    try:
        program = delegraph.export(step, (tokens, tokens[0, :1], step.empty_caches))[
            "forward"
        ]
    except InputError as e:
        return e.message
    read = [
        node
        for node in program.graph.nodes
        if node.target is torch.ops.aten.item.default
    ]
    return (
        "the model reads the number of its tokens from the cache, to cut tensors there"
        if read
        else ""
    )


def different(model: Any, reason: str) -> str:
    """The message for a model that ``why_not_equal`` has a reason for."""
    return f"{type(model).__name__} does not work with a cache of fixed size: {reason}"


def why_not_equal(
    step: Any,
    model: Any,
    *,
    sizes: Sequence[int] = (2, 2, 1),
    more: Sequence[Any] = (),
    **others: Any,
) -> str:
    """How the scores after a few tokens, in pieces of ``sizes``, differ from those of
    one call without a cache.

    Empty if they do not. ``more``: what ``step`` takes after the caches. ``others``:
    what ``model`` takes besides tokens. Nothing is compared where nothing can be
    computed, on the meta device, or in training, which is random.
    """
    if model.device.type == "meta" or model.training:
        return ""
    sizes = [size for k, size in enumerate(sizes) if sum(sizes[: k + 1]) <= step.length]
    config = model.config.get_text_config(decoder=True)
    # neither places of an image, nor padding, which some models leave out of their
    # positions
    special = (getattr(step, "token", None), getattr(config, "pad_token_id", None))
    known = [token for token in range(config.vocab_size) if token not in special]
    tokens = torch.tensor([(known * 5)[: sum(sizes)]] * step.batch, device=model.device)
    name = "decoder_input_ids" if others else "input_ids"
    caches = step.empty_caches
    position = 0
    try:
        with torch.no_grad():
            # another text before, of which models that keep states of their own have
            # something left
            scores, _ = step(
                tokens[:, -1:], torch.tensor([0], device=model.device), caches, *more
            )
            for piece in torch.split(tokens, sizes, 1):
                scores, caches = step(
                    piece, torch.tensor([position], device=model.device), caches, *more
                )
                position += piece.shape[1]
            wanted = model(**{name: tokens}, **others, use_cache=False).logits[:, -1]
    except (ValueError, TypeError, RuntimeError, IndexError) as e:
        return f"{type(e).__name__}: {e}"
    # rounding of 16 bits, or of activations in 8, may go another way where sums are
    # taken in another order
    exact = wanted.dtype == torch.float32 and all(
        type(p.data) is torch.Tensor for p in model.parameters()
    )
    most = (1e-3 if exact else 0.1) * wanted.abs().max()
    if torch.allclose(
        scores, wanted, rtol=0, atol=float(most.nan_to_num()), equal_nan=True
    ):
        return ""
    return (
        f"after {position} tokens the scores are"
        f" {float((scores - wanted).abs().max()):.2g} off those without a cache"
    )
