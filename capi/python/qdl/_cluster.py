"""The harness's side: `Cluster`."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
from typing import Any, Optional

import numpy as np
from numpy.typing import ArrayLike

from . import _face
from ._face import Config, Handle, call, library


class _Lease:
    """Keeps the bytes of a poll's events."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self, release: Any = library.qdl_release) -> None:
        release(self.number)


class Events:
    """Events of one poll, one entry of each array an event.

    `ids`, `kinds` (PART, DONE, FAILED), `flags` (FIRST, AGAIN), `lengths` and `offsets` in bytes,
    `times` in nanoseconds of `time.monotonic_ns`, `connections`. The bytes live as long as this
    object or an array of them does; answers above 16 KiB occupy their slots so long.
    """

    def __init__(self, array: np.ndarray, lease: Optional[_Lease]) -> None:
        self.array, self._lease = array, lease
        self.ids, self.kinds, self.flags = array["id"], array["kind"], array["flags"]
        self.lengths, self.offsets = array["len"], array["offset"]
        self.times, self.connections = array["at_ns"], array["connection"]

    def __len__(self) -> int:
        return len(self.array)

    def bytes(self, i: int) -> np.ndarray:
        """The bytes of event `i`: of a part those after `offsets[i]`, of FAILED the reason."""
        return _face.view(int(self.array["data"][i]), int(self.lengths[i]), self._lease)

    def data(self) -> np.ndarray:
        """The bytes of all events behind one another, without a copy where they lie so."""
        return _face.joined(self.array["data"], self.lengths.astype(np.uint64), self._lease)

    def reason(self, i: int) -> str:
        """Why event `i` is FAILED."""
        return self.bytes(i).tobytes().decode(errors="replace")


class Cluster(Handle):
    """Accelerators behind one dispatcher.

    `config` is the path of a frontend's YAML file, or a dict of its keys. Register memory, then
    `connect`, then `issue` and `poll`; `close` (or `with`) at the end. Each issued sample ends with
    exactly one event DONE or FAILED, whatever fails in between.
    """

    def __init__(self, config: Config) -> None:
        handle = ctypes.c_uint64()
        call(library.qdl_open(*_face.written(config), ctypes.byref(handle)))
        self._handle = handle.value
        self._bases: "list[int]" = []
        self._sizes: "list[int]" = []
        # Arrays that samples are sent from: they live as long as this object, whatever the caller
        # deletes, and numpy refuses to resize them meanwhile.
        self._arrays: "list[np.ndarray]" = []
        self._is_finished = False

    def register(self, array: np.ndarray) -> int:
        """Registers an array that samples are sent from, without a copy; returns its number.

        Call it before `connect`. Do not write a sample in the array while it is in flight.
        """
        if not array.flags.c_contiguous:
            raise ValueError("the array is not contiguous: register numpy.ascontiguousarray of it")
        call(library.qdl_register(self._handle, array.ctypes.data, array.nbytes))
        self._arrays.append(array)
        self._bases.append(array.ctypes.data)
        self._sizes.append(array.nbytes)
        return len(self._arrays) - 1

    def _samples(self, ids: ArrayLike, offsets: ArrayLike, lengths: ArrayLike, array: int, flags: int) -> np.ndarray:
        ids = np.asarray(ids, np.uint64)
        samples = np.zeros(ids.shape, _face.SAMPLE)
        offsets, lengths = np.asarray(offsets, np.uint64), np.asarray(lengths, np.uint64)
        if ids.size and (offsets + lengths).max() > self._sizes[array]:
            raise ValueError(f"a sample ends beyond the {self._sizes[array]} bytes of array {array}")
        samples["id"], samples["len"], samples["flags"] = ids, lengths, flags
        samples["data"] = offsets + np.uint64(self._bases[array])
        return samples

    def connect(self, offsets: ArrayLike = (), lengths: ArrayLike = (), array: int = 0) -> None:
        """Connects to every accelerator, and waits for one that loads its model.

        Samples at these offsets, one of each length, warm the connections up.
        """
        offsets = np.asarray(offsets, np.uint64)
        samples = self._samples(np.zeros(offsets.shape), offsets, lengths, array, 0) if offsets.size else offsets
        call(library.qdl_connect(self._handle, samples.ctypes.data, samples.size))

    def issue(self, ids: ArrayLike, offsets: ArrayLike, lengths: ArrayLike, array: int = 0, has_options: bool = False) -> None:
        """Issues samples and returns at once: bytes `offsets[i]` to `offsets[i] + lengths[i]` of
        the registered array number `array`. `lengths` may be one number for all. All are issued, or
        (with an exception) none. `has_options`: each begins with an `options_block`."""
        samples = self._samples(ids, offsets, lengths, array, _face.HAS_OPTIONS if has_options else 0)
        call(library.qdl_issue(self._handle, samples.ctypes.data, samples.size))

    def poll(self, max: int = 4096, timeout: float = 1.0) -> Events:
        """Waits up to `timeout` seconds for at most `max` events. Two threads may poll: each event
        goes to one of them."""
        array, lease = np.empty(max, _face.EVENT), ctypes.c_uint64()
        n = call(library.qdl_poll(self._handle, array.ctypes.data, max, _face.milliseconds(timeout), ctypes.byref(lease)))
        return Events(array[:n], _Lease(lease.value) if lease.value else None)

    async def wait(self, max: int = 4096) -> Events:
        """As `poll`, for asyncio: the loop runs on until there are events. Without any after
        `finish`."""
        loop = asyncio.get_running_loop()
        while True:
            events = self.poll(max, 0)
            if len(events) or self._is_finished:
                return events
            ready: "asyncio.Future[None]" = loop.create_future()
            # The loop has one reader a descriptor, and two tasks may wait.
            descriptor = os.dup(self.fileno())
            loop.add_reader(descriptor, lambda: None if ready.done() else ready.set_result(None))
            try:
                await ready
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)

    def cancel(self, ids: ArrayLike) -> None:
        """Asks for the end of samples; each still ends with DONE or FAILED."""
        own = np.ascontiguousarray(ids, np.uint64)
        call(library.qdl_cancel(self._handle, own.ctypes.data, own.size))

    def abort(self, why: str) -> None:
        """Ends the run: all samples fail with this reason."""
        call(library.qdl_abort(self._handle, why.encode()))

    def finish(self) -> None:
        """Waits for samples in flight, up to the deadline `drain`, and says good-bye."""
        super().finish()
        self._is_finished = True

    def record(self) -> Any:
        """The record of the run, after `finish`: the keys of summary.json that concern the system."""
        return json.loads(self._text(_face.RECORD))
