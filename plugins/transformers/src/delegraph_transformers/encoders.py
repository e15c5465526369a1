"""Models that generate tokens for an encoded input: a text, a sound, or an image.

``encode`` is a separate method, called once. Its result, the ``memory``, is an argument
of the steps.
"""

from __future__ import annotations

from typing import Any

import torch
from delegraph.errors import InputError

from .caches import HeldCache, ModelCall, cache_argument, refusing
from .steps import Step


class Encode(ModelCall):
    """The encoder of a model with an encoder and a decoder.

    ``model`` is a PreTrainedModel. Takes ``input_ids`` int64 [B, S] and
    ``attention_mask`` bool [B, S], which is false after the end of the text; or the
    features of a sound. Returns keys and values of each decoder layer's attention to
    the encoder, in turn, each [B, heads, S, head size]. They are computed once here, so
    that no step repeats it.
    """

    def forward(
        self, given: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> list[torch.Tensor]:
        from transformers import DynamicCache, EncoderDecoderCache
        from transformers.modeling_outputs import BaseModelOutput

        options = {} if attention_mask is None else {"attention_mask": attention_mask}
        model: Any = self.model
        hidden = model.get_encoder()(given, **options).last_hidden_state
        caches: Any = EncoderDecoderCache(DynamicCache(), DynamicCache())
        first = torch.zeros(given.shape[0], 1, dtype=torch.long, device=given.device)
        # A call with any token: the layers put keys and values of the encoder's result
        # into their cache.
        model(
            encoder_outputs=BaseModelOutput(hidden),
            decoder_input_ids=first,
            use_cache=True,
            **{cache_argument(model): caches},
        )
        memory: list[torch.Tensor] = []
        for layer in caches.cross_attention_cache.layers:
            memory += [layer.keys, layer.values]
        return memory


class EncodedStep(ModelCall):
    """A call of the decoder of a model with an encoder, with its caches as tensors.

    ``input_ids``, ``position``, ``caches`` and the results: as those of ``Step``.
    ``memory``: the result of ``Encode``. ``attention_mask``: the encoder's, for models
    that have it.
    """

    def __init__(
        self, model: Any, batch: int, cache_length: int, memory: list[torch.Tensor]
    ) -> None:
        """Prepare the cache; ``memory`` of example inputs determines sizes."""
        super().__init__(model)
        self.held = HeldCache(model, cache_length)
        self.batch = batch
        self.length = cache_length
        self.encoded_length = memory[0].shape[2]
        first = torch.zeros(batch, 1, dtype=torch.long, device=model.device)
        with refusing(model), torch.no_grad():
            self.held.begin(model, lambda: self._logits(first, memory))

    @property
    def empty_caches(self) -> list[torch.Tensor]:
        """Caches before the first token."""
        return [torch.zeros_like(tensor) for tensor in self.held.empty]

    @property
    def grows(self) -> list[bool]:
        """For each cache, whether a token adds a row to it."""
        return self.held.grows

    def forward(
        self,
        input_ids: torch.Tensor,
        position: torch.Tensor,
        caches: list[torch.Tensor],
        memory: list[torch.Tensor],
        attention_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        with self.held.holding(caches, position):
            logits = self._logits(input_ids, memory, attention_mask)
            return logits[:, -1], self.held.tensors

    def _logits(
        self,
        tokens: torch.Tensor,
        memory: list[torch.Tensor],
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the logits of ``tokens``; the cache is updated."""
        from transformers import DynamicCache, EncoderDecoderCache
        from transformers.modeling_outputs import BaseModelOutput

        cross = DynamicCache()
        for k in range(len(memory) // 2):
            cross.update(memory[2 * k], memory[2 * k + 1], k)
        both: Any = EncoderDecoderCache(self.held.cache, cross)
        # the keys and values of the encoder's result are complete
        both.is_updated = dict.fromkeys(range(len(self.held.cache.layers)), True)
        model: Any = self.model
        # The layers read keys and values from the memory. Of the encoder's result, they
        # read only its sizes.
        width = model.config.get_text_config().hidden_size
        hidden = memory[0].new_zeros(tokens.shape[0], self.encoded_length, width)
        options = {} if attention_mask is None else {"attention_mask": attention_mask}
        logits: torch.Tensor = model(
            encoder_outputs=BaseModelOutput(hidden),
            decoder_input_ids=tokens,
            use_cache=True,
            **{self.held.argument: both},
            **options,
        ).logits
        return logits


class EncodeImage(ModelCall):
    """The part of a model of images and text that encodes an image as rows.

    ``pixel_values`` -> a list of one tensor, float [N, width]: one row for each place
    that an image takes in a prompt.
    """

    def forward(self, pixel_values: torch.Tensor) -> list[torch.Tensor]:
        model: Any = self.model
        if _has_vision_parts(model):
            vision = model.model.vision_model(pixel_values=pixel_values)
            rows = model.model.connector(vision.last_hidden_state)
            return [rows.flatten(0, 1)]
        features = model.get_image_features(pixel_values=pixel_values)
        features = getattr(features, "pooler_output", features)
        if isinstance(features, (list, tuple)):
            features = torch.cat(list(features), 0)
        return [features.reshape(-1, features.shape[-1])]


class ImageStep(Step):
    """A ``Step`` with image tokens, which get the rows of ``memory`` in order.

    The last of the ``caches`` is int32 [1], the number of image tokens before.
    """

    def __init__(self, model: Any, batch: int, cache_length: int) -> None:
        super().__init__(model, batch, cache_length)
        self.embed = model.get_input_embeddings()
        self.token = next(
            getattr(model.config, name)
            for name in ("image_token_id", "image_token_index")
            if hasattr(model.config, name)
        )

    @property
    def empty_caches(self) -> list[torch.Tensor]:
        count = torch.zeros(1, dtype=torch.int32, device=self.model.device)
        return [*super().empty_caches, count]

    @property
    def grows(self) -> list[bool]:
        return [*super().grows, False]

    def forward(
        self,
        input_ids: torch.Tensor,
        position: torch.Tensor,
        caches: list[torch.Tensor],
        memory: list[torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        *layers, before = caches
        embedded = self.embed(input_ids)
        if memory is not None:
            is_image = input_ids == self.token
            count = is_image.to(torch.int32).cumsum(1, dtype=torch.int32) + before
            # clamped for tokens that are no image; their row is not used
            row = (count - 1).clamp(0, memory[0].shape[0] - 1)
            of_image = torch.nn.functional.embedding(row, memory[0])
            of_image = of_image.to(embedded.dtype)
            embedded = torch.where(is_image[..., None], of_image, embedded)
            before = count[:, -1]
        scores, after = self.call(layers, position, inputs_embeds=embedded)
        return scores, [*after, before.clone()]


def encoder_inputs(model: Any, batch: int, length: int) -> tuple[torch.Tensor, ...]:
    """Return example inputs of ``Encode`` or ``EncodeImage``.

    They are tokens and a mask [B, length], features, or an image. Raises InputError if
    the model does not declare the sizes of its features.
    """
    config = model.config
    if is_of_images(model):
        vision: Any = config.vision_config
        size = vision.image_size
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        channels = getattr(vision, "num_channels", 3)
        return (torch.zeros(batch, channels, height, width, dtype=model.dtype),)
    if model.main_input_name == "input_ids":
        tokens = torch.zeros(batch, length, dtype=torch.long)
        return tokens, torch.ones(batch, length, dtype=torch.bool)
    bins = getattr(config, "num_mel_bins", None)
    positions = getattr(config, "max_source_positions", None)
    if bins is None or positions is None or model.main_input_name != "input_features":
        text = (
            f"the config of {type(model).__name__} does not declare the sizes of its"
            f" {model.main_input_name}"
        )
        raise InputError(
            "input-invalid",
            text,
            hint="generation_steps(model, encoder_inputs=(example,))",
        )
    # Whisper's first convolutions halve the number of frames
    return (torch.zeros(batch, bins, 2 * positions, dtype=model.dtype),)


def is_of_images(model: Any) -> bool:
    """Return whether ``model`` generates text from images and text."""
    return hasattr(model.config, "vision_config") and hasattr(
        model, "get_image_features"
    )


def _has_vision_parts(model: Any) -> bool:
    """Return whether the parts of ``get_image_features`` can be called separately.

    They are a vision model and a connector, as in SmolVLM and Idefics3.
    ``get_image_features`` of these models drops images that are all zeros, so sizes
    would depend on the data. transformers' export recipe calls the two parts as well.
    """
    return hasattr(model.model, "vision_model") and hasattr(model.model, "connector")
