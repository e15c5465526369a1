"""Language models of transformers as the programs that ``delegraph.lower`` takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
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
"""How many tokens ``prefill`` takes, unless the caller says so."""
_CACHE = 2048
"""How long a cache is at most, unless the caller or the generation config says so."""


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
    """The methods ``prefill`` and ``decode`` of a language model, as arguments of
    ``delegraph.lower``.

    A model of text or sound with an encoder has ``encode`` and ``decode``, one of
    images all three. ``encode`` is called once; the others take what it returns.

    ``model``: a ``PreTrainedModel`` that generates text. ``prompt_length``: how many
    tokens ``prefill`` takes; longer prompts take several calls, and what is left over
    goes through ``decode``. ``cache_length``: how many tokens prompt and result have
    together at most. ``batch``: how many sequences. None: as in ``cache_config`` and
    ``max_length`` of the model's generation config; if these are not set, a batch of 1
    and the most positions that the model has, up to 2048. ``encoder_inputs``: examples
    for ``encode``; without them a text has at most ``cache_length`` tokens, and sounds
    and images have the sizes that the model's config says. ``keep_caches``: caches, or
    states, are buffers that the methods share, and neither arguments nor results; save
    what is lowered of it by ``save("model.pte", share_mutable_buffers=True)``. Raises
    InputError for a model for which transformers has no static cache.
    """
    for name, count in (
        ("prompt_length", prompt_length),
        ("cache_length", cache_length),
        ("batch", batch),
    ):
        _check_count(name, count)
    settings = getattr(model, "generation_config", None)
    told = getattr(settings, "cache_config", None) or {}
    batch = batch or told.get("batch_size") or 1
    cache_length = (
        cache_length
        or told.get("max_cache_len")
        or getattr(settings, "max_length", None)
    )
    # models with states have as many positions as anybody wants
    positions = getattr(
        model.config.get_text_config(), "max_position_embeddings", _CACHE
    )
    cache_length = cache_length or min(_CACHE, positions)
    prompt_length = min(prompt_length or _PROMPT, cache_length)
    if model.can_generate() and (
        model.config.is_encoder_decoder or is_of_images(model)
    ):
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


def _check_count(name: str, count: object) -> None:
    """Raise InputError if ``count`` is neither None nor an integer from 1 on."""
    if count is None or (
        isinstance(count, int) and not isinstance(count, bool) and count > 0
    ):
        return
    raise InputError("input-invalid", f"{name} is an integer from 1 on, not {count!r}")


def _tokens(model: Any, batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Examples of the next tokens, and of their position."""
    zeros = torch.zeros(batch, length, dtype=torch.long, device=model.device)
    return zeros, torch.zeros(1, dtype=torch.long, device=model.device)


def _with_kept_caches(steps: dict[str, Any]) -> dict[str, Any]:
    """The same methods, of which prefill and decode have their caches, the third
    argument, in buffers they share.
    """
    kept = KeptStep(steps["program"]["decode"])
    program = {
        m: step if m == "encode" else kept for m, step in steps["program"].items()
    }
    inputs = {
        m: i if m == "encode" else (*i[:2], *i[3:])
        for m, i in steps["example_inputs"].items()
    }
    return {"program": program, "example_inputs": inputs}


def _with_encoder(
    model: Any,
    given: tuple[torch.Tensor, ...],
    prompt_length: int,
    cache_length: int,
    batch: int,
) -> dict[str, Any]:
    """The methods of a model that has something before its tokens; ``given``: examples
    for ``encode``.
    """
    images = is_of_images(model)
    encode = EncodeImage(model) if images else Encode(model)
    with torch.no_grad():
        memory = encode(*given)
    step: Any = (
        ImageStep(model, batch, cache_length)
        if images
        else EncodedStep(model, batch, cache_length, memory)
    )
    if images:
        choose_calls(step, model)
    else:
        read = {
            model.main_input_name: given[0],
            **dict(zip(["attention_mask"], given[1:], strict=False)),
        }
        if reason := why_not_equal(
            step, model, sizes=(1, 1, 1), more=(memory, *given[1:]), **read
        ):
            raise InputError("input-invalid", different(model, reason), hint=NO_RECIPE)
    lengths = {"prefill": prompt_length, "decode": 1} if images else {"decode": 1}
    inputs: dict[str, tuple[Any, ...]] = {"encode": given}
    for method, length in lengths.items():
        inputs[method] = (*_tokens(model, batch, length), step.empty_caches)
    last = "prefill" if images else "decode"  # an image stands in the prompt alone
    inputs[last] += (memory, *given[1:])
    return {
        "program": {"encode": encode, **dict.fromkeys(lengths, step)},
        "example_inputs": inputs,
    }


def read(given: Any) -> dict[str, Any]:
    """What ``ModelSpec`` promises: the methods of a ``PreTrainedModel``, or of the
    checkpoint in a folder.

    Raises InputError for a folder that is not there, or that transformers cannot read.
    No network is touched.
    """
    steps = generation_steps(_load(given) if isinstance(given, str) else given)
    return {
        "methods": {
            m: (step, steps["example_inputs"][m])
            for m, step in steps["program"].items()
        }
    }


def _load(folder: str) -> Any:
    if not Path(folder).is_dir():
        hint = "save the model there: model.save_pretrained(folder)"
        raise InputError(
            "input-invalid",
            f"there is no folder {folder!r} with a checkpoint",
            hint=hint,
        )
    with naming_untried_versions():
        return _read_checkpoint(folder)


def _read_checkpoint(folder: str) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        read: Any = AutoModelForCausalLM.from_pretrained
        return read(folder, local_files_only=True, trust_remote_code=False).eval()
    except (OSError, ValueError, KeyError, RuntimeError) as e:
        # what transformers raises for what it cannot read
        text = (
            f"transformers cannot read the checkpoint in {folder!r}:"
            f" {type(e).__name__}: {e}"
        )
        raise InputError("input-invalid", text) from e
