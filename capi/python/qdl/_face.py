"""libqdl.so by ctypes: its structs as numpy types, its errors as exceptions."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
from typing import Any, Optional, Sequence, Union

import numpy as np

ABI = 1
HAS_OPTIONS = 1
PART, DONE, FAILED, REFUSED = 1, 2, 3, 4
FIRST, AGAIN = 1, 2
NAME, ADDRESS, COUNTERS, RECORD, NOTES = 1, 2, 3, 4, 5
OPTIONS = ["token_limit", "min_tokens", "temperature", "top_p", "top_k", "seed", "ignore_eos", "stop_ids"]
MAX_STOP_IDS, MAX_OPTIONS = 32, 256

SAMPLE = np.dtype([("id", "u8"), ("data", "u8"), ("len", "u4"), ("flags", "u4")])
EVENT = np.dtype([("id", "u8"), ("data", "u8"), ("at_ns", "u8"), ("len", "u4"), ("offset", "u4"), ("connection", "u4"), ("kind", "u2"), ("flags", "u2")])
ARRIVAL = np.dtype([("ticket", "u8"), ("data", "u8"), ("out", "u8"), ("len", "u4"), ("room", "u4"), ("flags", "u4"), ("token_limit", "u4")])
ANSWER = np.dtype([("ticket", "u8"), ("data", "u8"), ("len", "u4"), ("kind", "u2"), ("flags", "u2"), ("status", "i4"), ("reserved", "u4")])
REQUEST = np.dtype([("set", "u4"), ("token_limit", "u4"), ("min_tokens", "u4"), ("top_k", "u4"), ("temperature", "f4"), ("top_p", "f4"), ("seed", "u8"), ("stop_count", "u4"), ("stop_ids", "i4", MAX_STOP_IDS), ("reserved", "u4")])

Config = Union[str, "os.PathLike[str]", dict]


class QdlError(Exception):
    """A call of libqdl failed. `code` is one of the header's (QDL_E_...)."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def _load() -> ctypes.CDLL:
    path = os.environ.get("QDL_LIBRARY", str(pathlib.Path(__file__).parent / "libqdl.so"))
    library = ctypes.CDLL(path)
    u64, pointer, size = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t
    integer, long, u32, text = ctypes.c_int, ctypes.c_int64, ctypes.c_uint32, ctypes.c_char_p
    for name, result, arguments in [
        ("abi", u32, []),
        ("error", text, []),
        ("open", integer, [text, text, pointer]),
        ("register", integer, [u64, pointer, size]),
        ("connect", integer, [u64, pointer, size]),
        ("issue", integer, [u64, pointer, size]),
        ("poll", long, [u64, pointer, size, u32, pointer]),
        ("release", integer, [u64]),
        ("cancel", integer, [u64, pointer, size]),
        ("abort", integer, [u64, text]),
        ("options_write", long, [pointer, pointer, size]),
        ("options_read", integer, [u64, u64, pointer]),
        ("serve", integer, [text, text, text, u32, pointer]),
        ("arrivals", long, [u64, pointer, size, u32]),
        ("respond", long, [u64, pointer, size]),
        ("fd", integer, [u64]),
        ("text", long, [u64, integer, pointer, size]),
        ("finish", integer, [u64]),
        ("close", integer, [u64]),
    ]:
        function = getattr(library, f"qdl_{name}")
        function.restype, function.argtypes = result, arguments
    if library.qdl_abi() != ABI:
        raise ImportError(f"{path} has version {library.qdl_abi()}, and this package is for {ABI}")
    return library


library = _load()


def call(result: int) -> int:
    """The result of a call; its error as an exception."""
    if result < 0:
        raise QdlError(result, library.qdl_error().decode())
    return result


def written(config: Config) -> "tuple[Optional[bytes], Optional[bytes]]":
    """A configuration as `file` and `yaml`: a path, or a dict of the same keys."""
    if isinstance(config, dict):
        return None, json.dumps(config).encode()
    return os.fsencode(config), None


def milliseconds(timeout: float) -> int:
    """A wait; rounded up, so that a short one is a wait."""
    return int(min(max(timeout, 0.0), 3600.0) * 1000 + 0.999)


class Memory:
    """Bytes at an address, for numpy. An array keeps this object, and it keeps `owner`."""

    def __init__(self, address: int, length: int, owner: Any, is_read_only: bool = True) -> None:
        self.owner = owner
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (length,), "data": (address, is_read_only)}


def view(address: int, length: int, owner: Any, is_read_only: bool = True) -> np.ndarray:
    """An array over bytes that `owner` keeps."""
    return np.asarray(Memory(address, length, owner, is_read_only)) if length else np.empty(0, np.uint8)


def joined(starts: np.ndarray, lengths: np.ndarray, owner: Any) -> np.ndarray:
    """All bytes behind one another: a view if they lie so, else a copy."""
    if len(starts) == 0:
        return np.empty(0, np.uint8)
    if (starts[1:] == starts[:-1] + lengths[:-1]).all():
        return view(int(starts[0]), int(lengths.sum()), owner)
    each = zip(starts.tolist(), lengths.tolist())
    return np.concatenate([view(start, length, owner) for start, length in each])


class Handle:
    """What a cluster and a node have in common: texts, a descriptor, an end."""

    _handle = 0

    def fileno(self) -> int:
        """A descriptor for `select`: readable while events or arrivals wait."""
        return call(library.qdl_fd(self._handle))

    def _text(self, which: int) -> str:
        length = call(library.qdl_text(self._handle, which, None, 0))
        while True:
            room = ctypes.create_string_buffer(length + 1)
            length = call(library.qdl_text(self._handle, which, room, len(room)))
            if length < len(room):
                return room.value.decode()

    def name(self) -> str:
        """The SUT's name, or the node's."""
        return self._text(NAME)

    def counters(self) -> dict:
        """Counts so far."""
        return json.loads(self._text(COUNTERS))

    def notes(self) -> "list[str]":
        """Lines for a log since the last call: losses, waits, the abort."""
        return self._text(NOTES).splitlines()

    def finish(self) -> None:
        """Ends the run in order; events that wait can still be polled."""
        call(library.qdl_finish(self._handle))

    def close(self) -> None:
        """Finishes, and frees the handle. A second call has no effect."""
        handle, self._handle = self._handle, 0
        if handle:
            call(library.qdl_close(handle))

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self, abort: Any = library.qdl_abort, close: Any = library.qdl_close) -> None:
        # Without a wait for samples in flight. A fork and a node get an error, which is ignored.
        if self._handle:
            abort(self._handle, b"the program dropped its cluster")
            close(self._handle)


def options_block(*, stop_ids: Sequence[int] = (), **options: Any) -> bytes:
    """The block of a request's options (`token_limit`, `seed`, ...): write it in front of the prompt."""
    own = np.zeros(1, REQUEST)
    for name, value in options.items():
        if name not in OPTIONS:
            raise TypeError(f"no option `{name}`; there are {', '.join(OPTIONS)}")
        if name != "ignore_eos":
            own[name] = value
        own["set"] |= 1 << OPTIONS.index(name) if value is not False else 0
    if len(stop_ids):
        own["stop_count"], own["stop_ids"][0, : len(stop_ids)] = len(stop_ids), stop_ids
        own["set"] |= 1 << OPTIONS.index("stop_ids")
    room = ctypes.create_string_buffer(MAX_OPTIONS)
    length = call(library.qdl_options_write(own.ctypes.data, room, len(room)))
    return room.raw[:length]


def options_read(handle: int, ticket: int) -> dict:
    """The options of a request, by name."""
    own = np.zeros(1, REQUEST)
    call(library.qdl_options_read(handle, ticket, own.ctypes.data))
    options = {n: own[n][0].item() for i, n in enumerate(OPTIONS[:6]) if own["set"][0] >> i & 1}
    if own["set"][0] >> 6 & 1:
        options["ignore_eos"] = True
    if own["stop_count"][0]:
        options["stop_ids"] = own["stop_ids"][0, : own["stop_count"][0]].tolist()
    return options
