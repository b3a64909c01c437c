"""MLPerf's Network division from Python: a dispatcher for a harness, a node for an engine.

* `Cluster` is the harness's side: it sends samples out of numpy arrays to many accelerators, and
  polls what comes back.
* `Node` is the accelerator's side: its engine is Python.

Both call libqdl.so, whose header `qdl.h` says what may be called where: every method of both may be
called from every thread, and releases the GIL while it waits. In a fork of a process that has made
one, every call raises `QdlError`: use multiprocessing's method `spawn`.
"""

from ._cluster import Cluster, Events
from ._face import DONE, FAILED, FIRST, AGAIN, PART, QdlError, options_block
from ._node import GONE, Arrivals, Node

__all__ = ["AGAIN", "Arrivals", "Cluster", "DONE", "Events", "FAILED", "FIRST", "GONE", "Node"]
__all__ += ["PART", "QdlError", "options_block"]
