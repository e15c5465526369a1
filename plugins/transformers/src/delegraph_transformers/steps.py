"""A language model as steps; caches and states are arguments and results.

A step reads the next tokens of a text: ``prefill`` a piece of the prompt, ``decode`` one
token. Each takes the caches that the other one returned. So they also work if their
methods share no memory, for example in two files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import delegraph
import torch
from delegraph.errors import InputError
from torch.utils._python_dispatch import TorchDispatchMode

from .caches import NO_RECIPE, HeldCache, ModelCall, has_argument, refusing
from .rotary import expect_fixed_positions, fixed_positions


class Step(ModelCall):
    """A call of a causal language model with its cache as tensors.

    ``input_ids``: int64 [B, L], the next L tokens. ``position``: int64 [1], the number
    of tokens before. ``caches``: the keys and values of each layer in turn, each [B,
    heads, C, head size], where C is the length of the cache; then the states of layers
    that have some. Returns the logits of the last token [B, vocabulary], and the new
    ``caches``.
    """

    masks = False
    """Whether the model also gets a mask of the filled part of the cache."""
    one_by_one = False
    """Whether the model is called for each token separately."""

    def __init__(self, model: Any, batch: int, cache_length: int) -> None:
        """Prepare the cache of ``model``.

        It is a PreTrainedModel with a language model's head. Raises InputError if it
        has no static cache.
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
        """For each cache, whether a token adds a row to it.

        The others are zeros at the beginning of each text.
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
        """Call the model as ``forward`` does, with ``given``: ids or embeddings."""
        ((name, tokens),) = given.items()
        pieces = [tokens]
        if self.one_by_one and tokens.shape[1] > 1:
            pieces = list(torch.split(tokens, 1, 1))
        logits = torch.empty(0)
        with self.held.holding(caches, position), fixed_positions(self.model):
            for k, piece in enumerate(pieces):
                logits = self._logits(position + k if k else position, **{name: piece})
            return logits[:, -1], self.held.tensors

    def _logits(self, position: torch.Tensor, **given: torch.Tensor) -> torch.Tensor:
        """Return the logits of the last of the tokens ``given``; the cache is updated.

        ``position`` is that of the first token.
        """
        (tokens,) = given.values()
        options: dict[str, Any] = {
            self.held.argument: self.held.cache,
            "use_cache": True,
        }
        count = tokens.shape[1]
        # some models slice positions by the number of cached tokens, which cannot be
        # exported
        if has_argument(self.model, "position_ids"):
            ids = (position + torch.arange(count, device=position.device))[None]
            options["position_ids"] = ids
            if self.batch > 1:
                options["position_ids"] = ids.expand(self.batch, count)
        if has_argument(self.model, "logits_to_keep"):
            options["logits_to_keep"] = 1
        if self.masks:
            places = torch.arange(self.length, device=position.device)
            mask = (places < position + count).to(torch.long)
            options["attention_mask"] = mask[None].expand(self.batch, self.length)
        logits: torch.Tensor = self.model(**given, **options).logits
        return logits


class RecurrentStep(Step):
    """A call of a causal language model with states of fixed size, such as Mamba.

    ``input_ids``: int64 [B, L], the next L tokens. ``position``: as of ``Step``, not
    used. ``states``: for each layer in turn the last inputs of its convolution [B,
    channels, kernel size] and the state of its recurrence, such as [B, heads, head
    size, state size]. Returns the logits of the last token [B, vocabulary], and the new
    ``states``.
    """

    def forward(  # the name shows to callers that the number of tokens has no limit
        self,
        input_ids: torch.Tensor,
        position: torch.Tensor,
        states: list[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        return self.call(states, position, input_ids=input_ids)


def choose_calls(step: Step, model: Any) -> None:
    """Find a way in which ``step`` calls ``model`` and gets the right scores.

    These are the scores of a call without a cache. Some layers continue a state only for single tokens. Some models find the filled
    part of a cache only by a mask, or read a number from the cache without one. Each
    way is tried with five tokens, in pieces; ``step`` keeps the first right one. Raises
    InputError if there is none: some models accept a static cache and use it as if it
    were full.
    """
    masks = [False]
    if any(step.grows) and has_argument(model, "attention_mask"):
        # first the way that reads fewer numbers of tensors: an exported program cannot
        masks = sorted([False, True], key=lambda mask: _count_reads(step, mask))
    reasons = []
    for one_by_one, mask in product([False, True], masks):
        step.masks = mask
        step.one_by_one = one_by_one
        reason = why_not_equal(step, model) or _why_not_exported(step, model)
        if not reason:
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
    """Return how many numbers a call of one token reads from tensors.

    ``mask``: whether it gets a mask. The result is infinite if the call fails.
    """
    step.masks = mask
    device = step.empty_caches[0].device
    token = torch.ones(step.batch, 1, dtype=torch.long, device=device)
    try:
        with _Reads() as reads, torch.no_grad():  # type: ignore[no-untyped-call]
            step(token, token[0], step.empty_caches)
    except (ValueError, TypeError, RuntimeError, IndexError):
        return math.inf
    return float(reads.count)


def _why_not_exported(step: Step, model: Any) -> str:
    """Return why a call of two tokens cannot be exported; "" if it can.

    It is also "" if transformers declares that it can. A model that reads sizes of
    tensors from the cache is refused, because no device can prepare for such sizes.
    """
    is_declared = getattr(model, "_can_compile_fullgraph", True)
    if is_declared or not any(step.grows) or model.training:
        return ""
    count = min(2, step.length)
    tokens = torch.zeros(step.batch, count, dtype=torch.long, device=model.device)
    inputs = (tokens, tokens[0, :1], step.empty_caches)
    try:
        program = delegraph.export(step, inputs)["forward"]
    except InputError as e:
        return e.message
    item = torch.ops.aten.item.default
    if not program.graph.find_nodes(op="call_function", target=item):
        return ""
    return "the model reads the number of tokens from the cache, to slice tensors"


def different(model: Any, reason: str) -> str:
    """Return the message for a model with ``reason``, a result of ``why_not_equal``."""
    return f"{type(model).__name__} does not work with a cache of fixed size: {reason}"


def why_not_equal(
    step: Any,
    model: Any,
    *,
    sizes: Sequence[int] = (2, 2, 1),
    more: Sequence[Any] = (),
    **others: Any,
) -> str:
    """Return how scores with and without a cache differ, or "".

    A few tokens are given in pieces of ``sizes``. ``more``: arguments of ``step`` after
    the caches. ``others``: further arguments of ``model``. Nothing is compared on the
    meta device, which computes nothing, or in training, which is random.
    """
    if model.device.type == "meta" or model.training:
        return ""
    sizes = [size for k, size in enumerate(sizes) if sum(sizes[: k + 1]) <= step.length]
    config = model.config.get_text_config(decoder=True)
    # neither image tokens, nor padding, which some models skip in their positions
    special = (getattr(step, "token", None), getattr(config, "pad_token_id", None))
    known = [token for token in range(config.vocab_size) if token not in special]
    text = (known * 5)[: sum(sizes)]
    tokens = torch.tensor([text] * step.batch, device=model.device)
    name = "decoder_input_ids" if others else "input_ids"
    caches = step.empty_caches
    position = 0
    try:
        with torch.no_grad():
            # another text first: models with hidden states would remember it
            first = torch.tensor([0], device=model.device)
            scores, _ = step(tokens[:, -1:], first, caches, *more)
            for piece in torch.split(tokens, sizes, 1):
                at = torch.tensor([position], device=model.device)
                scores, caches = step(piece, at, caches, *more)
                position += piece.shape[1]
            wanted = model(**{name: tokens}, **others, use_cache=False).logits[:, -1]
    except (ValueError, TypeError, RuntimeError, IndexError) as e:
        return f"{type(e).__name__}: {e}"
    # 16-bit floats, or 8-bit activations, may round otherwise if sums have another
    # order
    is_plain = all(type(p.data) is torch.Tensor for p in model.parameters())
    exact = is_plain and wanted.dtype == torch.float32
    limit = (1e-3 if exact else 0.1) * wanted.abs().max()
    atol = float(limit.nan_to_num())
    if torch.allclose(scores, wanted, rtol=0, atol=atol, equal_nan=True):
        return ""
    difference = float((scores - wanted).abs().max())
    return (
        f"after {position} tokens, the scores differ by {difference:.2g} from those"
        " without a cache"
    )
