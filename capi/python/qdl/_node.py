"""The accelerator's side: `Node`."""

from __future__ import annotations

import ctypes
from typing import Callable, Optional, Sequence, Union

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from . import _face
from ._face import Config, Handle, call, library

GONE = 1
"""Status of an answer without a receiver: the frontend is gone or has cancelled the sample."""

Data = Union[np.ndarray, Sequence[np.ndarray], None]


class Arrivals:
    """Samples of one call of `Node.arrivals`: `tickets`, `lengths` in bytes, `rooms` (most bytes of
    each answer) and `token_limits`.

    Arrays of samples and outputs are the slots themselves. They are valid until the sample's
    ticket has ended: copy what has to live longer.
    """

    def __init__(self, array: np.ndarray, node: "Node") -> None:
        self.array, self._node = array, node
        self.tickets, self.lengths, self.rooms = array["ticket"], array["len"], array["room"]
        self.token_limits = array["token_limit"]

    def __len__(self) -> int:
        return len(self.array)

    def input(self, i: int, dtype: DTypeLike = np.uint8) -> np.ndarray:
        """Sample `i`, in the slot where it landed."""
        return _face.view(int(self.array["data"][i]), int(self.lengths[i]), self._node).view(dtype)

    def inputs(self, dtype: DTypeLike = np.uint8) -> np.ndarray:
        """All samples, of one length, as rows: a view where they lie in neighbouring slots."""
        all = _face.joined(self.array["data"], self.lengths.astype(np.uint64), self._node)
        return all.view(dtype).reshape(len(self), -1)

    def output(self, i: int, dtype: DTypeLike = np.uint8) -> np.ndarray:
        """The output slot of sample `i`, to write the answer into (`respond` with `data=None`)."""
        return _face.view(int(self.array["out"][i]), int(self.rooms[i]), self._node, False).view(dtype)

    def options(self, i: int) -> dict:
        """The options of request `i`, by name."""
        has = self.array["flags"][i] & _face.HAS_OPTIONS
        return _face.options_read(self._node._handle, int(self.tickets[i])) if has else {}


class Node(Handle):
    """A node whose engine is Python. It serves frontends from here on, one after another.

    `config` is the path of an accelerator's YAML file, or a dict of its keys; the model needs
    `inputs` and `output`. `engine` is a name for the record, `options` those that the engine acts
    on: requests with others are refused.
    """

    def __init__(self, config: Config, engine: str = "python", options: Sequence[str] = ()) -> None:
        bits = sum(1 << _face.OPTIONS.index(name) for name in options)
        handle = ctypes.c_uint64()
        call(library.qdl_serve(*_face.written(config), engine.encode(), bits, ctypes.byref(handle)))
        self._handle = handle.value
        self._ends = False

    @property
    def address(self) -> str:
        """HOST:PORT for `accelerators[].control` of a frontend."""
        return self._text(_face.ADDRESS)

    def arrivals(self, max: int = 1024, timeout: float = 1.0) -> Arrivals:
        """Waits up to `timeout` seconds for at most `max` samples. Each goes to one call."""
        array = np.empty(max, _face.ARRIVAL)
        n = call(library.qdl_arrivals(self._handle, array.ctypes.data, max, _face.milliseconds(timeout)))
        return Arrivals(array[:n], self)

    def respond(self, tickets: ArrayLike, data: Data, lengths: Optional[ArrayLike] = None, kind: int = _face.DONE) -> np.ndarray:
        """Sends an answer to each ticket; returns their statuses: 0, GONE, or below 0.

        `data` has a row for each, or (with `lengths` in bytes) all bytes behind one another, or is
        a list of arrays. None: the engine has written `lengths` bytes into the output slots. With
        the kind PART they are the next bytes of answers that go on. Below 0: the ticket has ended
        before, or the answer does not fit the model (`notes` says why), and the sample is refused.
        """
        tickets = np.asarray(tickets, np.uint64)
        if isinstance(data, (list, tuple)):
            lengths = [array.nbytes for array in data]
            data = np.concatenate([np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in data]) if data else None
        answers = np.zeros(tickets.shape, _face.ANSWER)
        answers["ticket"], answers["kind"] = tickets, kind
        if lengths is not None:
            answers["len"] = lengths
        if data is not None:
            data = np.ascontiguousarray(data)
            if lengths is None:
                answers["len"] = data.nbytes // tickets.size if tickets.size else 0
            if int(answers["len"].sum(dtype=np.uint64)) != data.nbytes:
                raise ValueError(f"{data.nbytes} bytes do not make {tickets.size} answers")
            ends = np.cumsum(answers["len"], dtype=np.uint64)
            answers["data"] = ends - answers["len"] + np.uint64(data.ctypes.data)
        call(library.qdl_respond(self._handle, answers.ctypes.data, answers.size))
        return answers["status"]

    def refuse(self, tickets: ArrayLike, why: str) -> np.ndarray:
        """Refuses samples: the frontend tries twice elsewhere, then they fail with this reason."""
        tickets = np.asarray(tickets, np.uint64)
        reason = np.frombuffer(why.encode() or b"-", np.uint8)
        return self.respond(tickets, np.tile(reason, tickets.size), reason.size, _face.REFUSED)

    def serve(self, engine: "Callable[[Arrivals], Data]", max: int = 1024) -> None:
        """Answers samples with what `engine` returns for them, until `stop`.

        An array has a row for each sample; None: the engine has responded itself. An exception of
        the engine refuses the samples of its call, and the node goes on.
        """
        while not self._ends:
            arrivals = self.arrivals(max, 0.1)
            if not len(arrivals):
                continue
            try:
                data = engine(arrivals)
                if data is not None:
                    self.respond(arrivals.tickets, data)
            except Exception as error:
                self.refuse(arrivals.tickets, f"{type(error).__name__}: {error}")

    def stop(self) -> None:
        """Ends `serve`, from any thread, once its engine has returned."""
        self._ends = True
