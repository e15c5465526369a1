"""``KeptStep``: a step with its caches in buffers.

The methods of one ``.pte`` file can share these buffers.
"""

from __future__ import annotations

from typing import Any

import torch


class KeptStep(torch.nn.Module):
    """A step with its caches, or states, as buffers.

    Takes the arguments of ``step`` without its caches, with ``memory`` and
    ``attention_mask`` if it has these. Returns the logits of the last token, and
    ``seen``, int64 [2]. The first number is the ``position`` of the call before, -1 if
    there was none. By it, a caller checks that each call found the caches of the last
    one, also across methods. The second number is how many tokens the caches hold, 0
    for any number.

    A call with ``position`` 0 begins a text. Remaining keys and values of an older text
    are masked; states begin as zeros.
    """

    def __init__(self, step: Any) -> None:
        """Wrap ``step``: a ``Step`` or ``EncodedStep`` of any kind."""
        super().__init__()
        self.step: Any = step
        self.training = step.training
        self.last: torch.Tensor
        self.room: torch.Tensor
        empty = step.empty_caches
        self.grows = step.grows
        pairs = zip(empty, self.grows, strict=True)
        room = next((cache.shape[2] for cache, grows in pairs if grows), 0)
        for k, tensor in enumerate(empty):
            self.register_buffer(f"cache_{k}", tensor, persistent=False)
        self.register_buffer("last", torch.full((1,), -1), persistent=False)
        self.register_buffer("room", torch.full((1,), room), persistent=False)

    def _get_name(self) -> str:
        name: str = self.step._get_name()
        return name

    def forward(
        self,
        input_ids: torch.Tensor,
        position: torch.Tensor,
        memory: list[torch.Tensor] | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        buffers = [self.get_buffer(f"cache_{k}") for k in range(len(self.grows))]
        begins = position == 0
        before: list[torch.Tensor] = []
        for buffer, grows in zip(buffers, self.grows, strict=True):
            if not grows:
                buffer = torch.where(begins, torch.zeros_like(buffer), buffer)
            before.append(buffer)
        seen = torch.cat([self.last, self.room])
        more = {"memory": memory, "attention_mask": attention_mask}
        given = {name: value for name, value in more.items() if value is not None}
        scores, after = self.step(input_ids, position, before, **given)
        for buffer, tensor in zip(buffers, after, strict=True):
            buffer.copy_(tensor)
        self.last.copy_(position)
        return scores, seen
