"""The same tables by the ``flatbuffers`` package, to compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import flatbuffers
from delegraph_tosa.serialize.building import Field, Form


class FlatbuffersBuilder:
    """``SharingBuilder`` over the package's ``Builder``."""

    def __init__(self) -> None:
        self._builder = flatbuffers.Builder(1 << 16)
        self._shared: dict[object, int] = {}
        b = self._builder
        self._put: dict[str, Callable[[int, int, int], None]] = {
            "offset": b.PrependUOffsetTRelativeSlot,
            "uint8": b.PrependUint8Slot,
            "bool": b.PrependBoolSlot,
            "int32": b.PrependInt32Slot,
            "uint32": b.PrependUint32Slot,
            "uint64": b.PrependUint64Slot,
        }

    def finish(self, root: int, identifier: str) -> bytearray:
        """The finished buffer; addresses of slots are its length minus what ``slot`` returned."""
        self._builder.Finish(root, identifier.encode())
        return bytearray(self._builder.Output())

    def table(self, count: int, fields: Sequence[Field]) -> int:
        """A table of ``count`` fields in the schema."""
        self._builder.StartObject(count)
        for field in fields:
            self._put[field.kind](field.id, field.value, field.default)
        return int(self._builder.EndObject())

    def record(self, form: Form, values: Sequence[int]) -> int:
        """A table of this form; fields whose value is 0, which is their default, are left out."""
        return self.table(form.count, [Field(*field, value) for field, value in zip(form.fields, values, strict=True)])

    def shared_record(self, form: Form, values: Sequence[int]) -> int:
        """A table that equal ones share."""
        return self._share((form, *values), lambda: self.record(form, values))

    def record_with_slots(self, form: Form, slots: int, values: Sequence[int]) -> tuple[int, list[int]]:
        """A table whose first fields, so many as there are ``slots``, are filled in later, and what to fill in."""
        self._builder.StartObject(form.count)
        distances = []
        for (number, kind), value in zip(form.fields, [*[1] * slots, *values], strict=True):
            self._put[kind](number, value, 0)
            distances.append(int(self._builder.Offset()))
        return int(self._builder.EndObject()), distances[:slots]

    def string(self, text: str) -> int:
        """Half a surrogate pair, which the name of a file may have and UTF-8 has not, is written as its escape."""
        return self._share(("string", text), lambda: int(self._builder.CreateString(text, errors="backslashreplace")))

    def strings(self, texts: Sequence[str]) -> int:
        return self.offsets([self.string(text) for text in texts])

    def offsets(self, offsets: Sequence[int]) -> int:
        """A vector of finished tables or strings."""
        return self._share(("offsets", *offsets), lambda: self._offsets(offsets))

    def _offsets(self, offsets: Sequence[int]) -> int:
        self._builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self._builder.PrependUOffsetTRelative(offset)
        return int(self._builder.EndVector())

    def int32s(self, numbers: Sequence[int]) -> int:
        return self._share(("int32s", *numbers), lambda: self._int32s(numbers))

    def _int32s(self, numbers: Sequence[int]) -> int:
        self._builder.StartVector(4, len(numbers), 4)
        for number in reversed(numbers):
            self._builder.PrependInt32(number)
        return int(self._builder.EndVector())

    def raw(self, data: bytes) -> int:
        """A vector of bytes, 8-aligned as the schema asks."""
        return self._share(("bytes", data), lambda: self._raw(data))

    def _raw(self, data: bytes) -> int:
        self._builder.StartVector(1, len(data), 8)
        for byte in reversed(data):
            self._builder.PrependByte(byte)
        return int(self._builder.EndVector())

    def _share(self, key: object, make: Callable[[], int]) -> int:
        offset = self._shared.get(key)
        if offset is None:
            offset = self._shared[key] = make()
        return offset
