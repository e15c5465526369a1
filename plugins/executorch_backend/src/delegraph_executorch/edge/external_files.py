"""Move named data from the program file to external files of a limited size."""

from __future__ import annotations

import hashlib

from delegraph.backend import NamedDataStoreOutput
from delegraph.errors import NamedDataError


def externalize_pte_data(
    output: NamedDataStoreOutput, max_data_bytes: int, tag_prefix: str
) -> None:
    """Move the data of the program file to external files of at most
    ``max_data_bytes`` bytes each.

    Files are filled in the sorted order of the keys. A file's name is
    ``{tag_prefix}_{digest}``, with a digest of its keys. Keys with the same buffer get
    the same file. If an argument is wrong, if a buffer exceeds the limit, or if an
    external file of that name exists, raises NamedDataError and moves nothing.
    """
    if type(max_data_bytes) is not int or max_data_bytes <= 0:
        raise _error(
            f"max_data_bytes must be a positive integer; got {max_data_bytes!r}"
        )
    if not isinstance(tag_prefix, str) or not tag_prefix:
        raise _error(f"tag_prefix is {tag_prefix!r}; the prefix must be nonempty text")
    files: dict[str, list[str]] = {}  # name of a new file -> its keys
    for keys in _shards(output, max_data_bytes):
        digest = hashlib.sha256(chr(0).join(keys).encode()).hexdigest()
        files[f"{tag_prefix}_{digest}"] = keys
    for name, keys in files.items():
        if name in output.external_data:
            raise _error(
                f"named data {keys[0]!r} would go to {name}, which exists already;"
                " use another tag_prefix"
            )
    for name, keys in files.items():
        output.external_data[name] = {key: output.pte_data.pop(key) for key in keys}


def _shards(output: NamedDataStoreOutput, limit: int) -> list[list[str]]:
    """Return the sorted keys of each new file, which has at most ``limit`` bytes.

    Buffers go in the order of their first keys into the current file. A buffer that
    does not fit begins the next file.
    """
    keys_of_buffer: dict[int, list[str]] = {}
    for key in sorted(output.pte_data):
        keys_of_buffer.setdefault(output.pte_data[key].buffer_index, []).append(key)
    shards: list[list[str]] = []
    room = 0  # bytes that the last file can still take
    for index, keys in keys_of_buffer.items():
        size = len(output.buffers[index])
        if size > limit:
            raise _error(
                f"named data {keys[0]!r} has {size} bytes, which exceeds external data"
                f" shard cap {limit}"
            )
        if size > room or not shards:
            shards.append([])
            room = limit
        shards[-1] += keys
        room -= size
    return [sorted(keys) for keys in shards]


def _error(text: str) -> NamedDataError:
    return NamedDataError("contract-violation", text)
