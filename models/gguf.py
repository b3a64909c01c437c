"""Reads GGUF files: metadata, and tensors as float32 or as the blocks they are stored in.

The layout is that of ggml's own description of the format (docs/gguf.md there), version 2 and 3, little-endian. Of the
element types those are known that the demo's model has: F32, F16, Q4_1 and Q8_0.
"""

import math
import mmap
import struct

import numpy as np

F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8
# Type of a tensor: elements of a block, bytes of a block.
BLOCKS = {F32: (1, 4), F16: (1, 2), Q4_1: (32, 20), Q8_0: (32, 34)}
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


class Gguf:
    """An open file: `metadata`, and `tensors` as name -> (shape, type, position); shapes as numpy counts them."""

    def __init__(self, path):
        with open(path, "rb") as file:
            if not file.read(1):
                raise SystemExit(f"{path}: not a GGUF file: 0 bytes")
            self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self.bytes[:4] != b"GGUF":
            is_pointer = self.bytes[:23] == b"version https://git-lfs"
            what = "a pointer of Git LFS: `git lfs pull` fetches the file itself" if is_pointer else "not a GGUF file"
            raise SystemExit(f"{path}: {what}")
        self.at = 4
        version = self.take("I")
        if version not in (2, 3):
            raise SystemExit(f"{path}: GGUF version {version}, 2 or 3 was expected")
        tensors, keys = self.take("Q"), self.take("Q")
        self.metadata = {}
        for _ in range(keys):
            name = self.string()
            self.metadata[name] = self.value(self.take("I"))
        listed = []
        for _ in range(tensors):
            name = self.string()
            dimensions = [self.take("Q") for _ in range(self.take("I"))]
            listed.append((name, tuple(reversed(dimensions)), self.take("I"), self.take("Q")))
        alignment = self.metadata.get("general.alignment", 32)
        begin = -(-self.at // alignment) * alignment
        self.tensors = {name: (shape, kind, begin + at) for name, shape, kind, at in listed}

    def take(self, form):
        (value,) = struct.unpack_from("<" + form, self.bytes, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def string(self):
        length = self.take("Q")
        self.at += length
        return self.bytes[self.at - length : self.at].decode("utf-8")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            of, length = self.take("I"), self.take("Q")
            return [self.value(of) for _ in range(length)]
        return self.take(SCALARS[kind])

    def blocks(self, name):
        """A tensor's blocks, u8 [blocks, bytes of a block], with its shape and type."""
        shape, kind, at = self.tensors[name]
        if kind not in BLOCKS:
            raise SystemExit(f"tensor {name}: elements of GGUF type {kind} are not read here")
        elements, size = BLOCKS[kind]
        count = math.prod(shape) // elements
        raw = np.frombuffer(self.bytes, np.uint8, count * size, at)
        return raw.reshape(count, size), shape, kind

    def floats(self, name):
        """A tensor as float32."""
        blocks, shape, kind = self.blocks(name)
        if kind == F32:
            return blocks.view("<f4").reshape(shape)
        if kind == F16:
            return blocks.view("<f2").astype(np.float32).reshape(shape)
        scale = blocks[:, 0:2].copy().view("<f2").astype(np.float32)
        if kind == Q8_0:
            return (scale * blocks[:, 2:].view(np.int8)).reshape(shape)
        # Q4_1: scale, smallest value, then 32 values of 4 bits, the low halves first.
        least = blocks[:, 2:4].copy().view("<f2").astype(np.float32)
        halves = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
        return (scale * halves + least).reshape(shape)
