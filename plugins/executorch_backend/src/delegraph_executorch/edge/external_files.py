"""Move named data from the program file to external files of a limited size."""

from __future__ import annotations

import hashlib

from delegraph.backend import NamedDataStoreOutput
from delegraph.errors import NamedDataError


def externalize_pte_data(
    output: NamedDataStoreOutput, max_data_bytes: int, tag_prefix: str
) -> None:
    """Move the program file's named data to external files of a limited size.

    A file has at most ``max_data_bytes`` bytes. Files are filled in the sorted order of
    the keys; keys with the same buffer go to the same file. A file's name is
    ``{tag_prefix}_{digest}``, with a digest of its keys.

    Raises NamedDataError and moves nothing if an argument is wrong, a buffer exceeds the
    limit, or an external file of that name exists.
    """
    if type(max_data_bytes) is not int or max_data_bytes <= 0:
        raise _error(
            f"max_data_bytes must be a positive integer; got {max_data_bytes!r}"
        )
    if not isinstance(tag_prefix, str) or not tag_prefix:
        raise _error(f"tag_prefix is {tag_prefix!r}; the prefix must be nonempty text")
    # name of a new file -> its keys
    files: dict[str, list[str]] = {}
    for keys in _keys_of_files(output, max_data_bytes):
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


def _keys_of_files(output: NamedDataStoreOutput, limit: int) -> list[list[str]]:
    """Return the sorted keys of each new file, which has at most ``limit`` bytes.

    Buffers go in the order of their first keys into the current file. A buffer that
    does not fit begins the next file.
    """
    keys_of_buffer: dict[int, list[str]] = {}
    for key in sorted(output.pte_data):
        keys_of_buffer.setdefault(output.pte_data[key].buffer_index, []).append(key)
    files: list[list[str]] = []
    # bytes that the last file can still take
    room = 0
    for index, keys in keys_of_buffer.items():
        size = len(output.buffers[index])
        if size > limit:
            raise _error(
                f"named data {keys[0]!r} has {size} bytes, which exceeds external data"
                f" shard cap {limit}"
            )
        if size > room or not files:
            files.append([])
            room = limit
        files[-1] += keys
        room -= size
    return [sorted(keys) for keys in files]


def _error(text: str) -> NamedDataError:
    return NamedDataError("contract-violation", text)
