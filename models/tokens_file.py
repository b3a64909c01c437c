"""The file of a data set of token ids (docs/datasets.md): written and read.

    0   8  magic, "QDLTOKEN"
    8   4  version, 1
   12   4  0
   16   8  N, the number of samples
   24   8 x (N + 1)  where each sample begins, in ids; the last number is where the last sample ends
    .   4 x that     the ids of all samples, back to back, i32

Everything is little-endian; no sample is empty.
"""

import reprlib
import struct

import numpy as np

MAGIC = b"QDLTOKEN"
VERSION = 1


def write(path, samples, vocabulary=None):
    """Writes samples, each a sequence of ids; returns how many and how many ids."""
    rows = []
    for i, sample in enumerate(samples):
        try:
            row = np.asarray(sample)
        except ValueError:  # Rows of different lengths.
            row = np.empty(0)
        if row.ndim != 1 or row.size == 0 or row.dtype.kind not in "iu":
            found = " ".join(reprlib.repr(sample).split())
            raise ValueError(f"sample {i} is {found}, not a row of one id or more")
        if row.min() < 0 or row.max() >= (vocabulary or 1 << 31):
            raise ValueError(f"sample {i} has an id outside 0 to {(vocabulary or 1 << 31) - 1}")
        rows.append(row.astype("<i4"))
    if not rows:
        raise ValueError("there are no samples")
    starts = np.zeros(len(rows) + 1, "<u8")
    np.cumsum([row.size for row in rows], out=starts[1:])
    with open(path, "wb") as file:
        file.write(MAGIC + struct.pack("<IIQ", VERSION, 0, len(rows)))
        file.write(starts.tobytes())
        for row in rows:
            file.write(row.tobytes())
    return len(rows), int(starts[-1])


def read(path):
    """The samples of a file, as a list of arrays."""
    with open(path, "rb") as file:
        data = file.read()
    version, zero, count = struct.unpack_from("<IIQ", data, 8) if len(data) >= 24 else (0, 0, 0)
    if data[:8] != MAGIC or (version, zero) != (VERSION, 0):
        raise ValueError(f"{path}: not a file of tokens of version {VERSION}")
    starts = np.frombuffer(data, "<u8", count + 1, 24)
    ids = np.frombuffer(data, "<i4", -1, 24 + 8 * (count + 1))
    if starts[0] != 0 or starts[-1] != ids.size or (np.diff(starts.astype(np.int64)) <= 0).any():
        raise ValueError(f"{path}: its samples do not begin where it says")
    return [ids[a:b] for a, b in zip(starts[:-1].astype(int), starts[1:].astype(int))]
