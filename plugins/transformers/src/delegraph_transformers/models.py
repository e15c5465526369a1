"""Language models of transformers as programs for ``delegraph.lower``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from delegraph.errors import InputError

from .caches import NO_RECIPE, HeldCache
from .encoders import Encode, EncodedStep, EncodeImage, ImageStep, is_of_images
from .encoders import encoder_inputs as example_inputs
from .kept import KeptStep
from .steps import RecurrentStep, Step, choose_calls, different, why_not_equal
from .versions import naming_untried_versions

_PROMPT = 32
"""The default number of tokens of ``prefill``."""
_CACHE = 2048
"""The largest default length of a cache."""


@naming_untried_versions()
def generation_steps(
    model: Any,
    *,
    prompt_length: int | None = None,
    cache_length: int | None = None,
    batch: int | None = None,
    encoder_inputs: Sequence[torch.Tensor] = (),
    keep_caches: bool = False,
) -> dict[str, Any]:
    """Return the methods ``prefill`` and ``decode`` of a language model, for ``lower``.

    Models with an encoder differ: those of text or sound have ``encode`` and
    ``decode``, those of images have all three. ``encode`` is called once; the others
    take its result.

    ``model``: a ``PreTrainedModel`` that generates text. ``prompt_length``: how many
    tokens ``prefill`` takes. Longer prompts take several calls, and the rest goes
    through ``decode``. ``cache_length``: how many tokens prompt and result have
    together at most. ``batch``: how many sequences. The defaults are ``cache_config``
    and ``max_length`` of the model's generation config. If these are not set, they are
    a batch of 1 and the most positions that the model has, up to 2048.
    ``encoder_inputs``: examples for ``encode``. Without them a text has at most
    ``cache_length`` tokens, and sounds and images have the sizes in the model's config.
    ``keep_caches``: caches, or states, are buffers that the methods share, and neither
    arguments nor results. Save the lowered program by ``save("model.pte",
    share_mutable_buffers=True)``. Raises InputError for a model for which transformers
    has no static cache.
    """
    _expect_count("prompt_length", prompt_length)
    _expect_count("cache_length", cache_length)
    _expect_count("batch", batch)
    settings = getattr(model, "generation_config", None)
    cache_config = getattr(settings, "cache_config", None) or {}
    batch = batch or cache_config.get("batch_size") or 1
    cache_length = (
        cache_length
        or cache_config.get("max_cache_len")
        or getattr(settings, "max_length", None)
        or _default_cache_length(model)
    )
    prompt_length = min(prompt_length or _PROMPT, cache_length)
    has_encoder = model.config.is_encoder_decoder or is_of_images(model)
    if has_encoder and model.can_generate():
        given = tuple(encoder_inputs) or example_inputs(model, batch, cache_length)
        steps = _with_encoder(model, given, prompt_length, cache_length, batch)
        return _with_kept_caches(steps) if keep_caches else steps
    kind = Step if HeldCache(model, cache_length).has_rows else RecurrentStep
    step = kind(model, batch, cache_length)
    choose_calls(step, model)
    lengths = {"prefill": prompt_length, "decode": 1}
    inputs = {
        method: (*_tokens(model, batch, length), step.empty_caches)
        for method, length in lengths.items()
    }
    steps = {"program": dict.fromkeys(lengths, step), "example_inputs": inputs}
    return _with_kept_caches(steps) if keep_caches else steps


def _default_cache_length(model: Any) -> int:
    """Return the most positions of the model, up to a limit."""
    # models with states have no limit
    config = model.config.get_text_config()
    return min(_CACHE, getattr(config, "max_position_embeddings", _CACHE))


def _expect_count(name: str, count: object) -> None:
    """Raise InputError unless ``count`` is None or a positive integer."""
    if count is None:
        return
    if isinstance(count, int) and not isinstance(count, bool) and count > 0:
        return
    raise InputError(
        "input-invalid", f"{name} must be a positive integer, not {count!r}"
    )


def _tokens(model: Any, batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return examples of the next tokens, and of their position."""
    zeros = torch.zeros(batch, length, dtype=torch.long, device=model.device)
    return zeros, torch.zeros(1, dtype=torch.long, device=model.device)


def _with_kept_caches(steps: dict[str, Any]) -> dict[str, Any]:
    """Return the same methods with caches in shared buffers instead of arguments."""
    kept = KeptStep(steps["program"]["decode"])
    program = dict(steps["program"])
    inputs = dict(steps["example_inputs"])
    for method in program.keys() - {"encode"}:
        program[method] = kept
        tokens, position, _caches, *others = inputs[method]
        inputs[method] = (tokens, position, *others)
    return {"program": program, "example_inputs": inputs}


def _with_encoder(
    model: Any,
    given: tuple[torch.Tensor, ...],
    prompt_length: int,
    cache_length: int,
    batch: int,
) -> dict[str, Any]:
    """Return the methods of a model with an encoder; ``given``: its example inputs."""
    has_images = is_of_images(model)
    encode = EncodeImage(model) if has_images else Encode(model)
    with torch.no_grad():
        memory = encode(*given)
    first, *mask = given
    step: Any
    lengths = {"decode": 1}
    if has_images:
        step = ImageStep(model, batch, cache_length)
        choose_calls(step, model)
        lengths = {"prefill": prompt_length, "decode": 1}
    else:
        step = EncodedStep(model, batch, cache_length, memory)
        read = {model.main_input_name: first}
        if mask:
            [read["attention_mask"]] = mask
        reason = why_not_equal(
            step, model, sizes=(1, 1, 1), more=(memory, *mask), **read
        )
        if reason:
            raise InputError("input-invalid", different(model, reason), hint=NO_RECIPE)
    inputs: dict[str, tuple[Any, ...]] = {"encode": given}
    for method, length in lengths.items():
        inputs[method] = (*_tokens(model, batch, length), step.empty_caches)
    # images are only in the prompt, so ``decode`` does not take their memory
    reader = "prefill" if has_images else "decode"
    inputs[reader] += (memory, *mask)
    program = {"encode": encode, **dict.fromkeys(lengths, step)}
    return {"program": program, "example_inputs": inputs}
