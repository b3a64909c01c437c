#!/usr/bin/env python3
"""Writes the files of NumPy's beside it that the tests of the data set read; needs models/requirements.txt."""

import pathlib

import numpy as np

HERE = pathlib.Path(__file__).parent
PIXELS = np.arange(20, dtype=np.uint8).reshape(5, 4)
BIAS = np.array([0.5, -1.5, 2.0, 0.25, 8.0], dtype=np.float32)
CLASSES = np.array([3, 1, 0, 2, 3])


def save(name, array, **more):
    np.save(HERE / f"{name}.npy", array, **more)


save("pixels", PIXELS)
save("fortran", np.asfortranarray(PIXELS))
save("big_endian", np.arange(20, dtype=">i4").reshape(5, 4))
save("objects", np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
save("records", np.zeros(2, dtype=[("x", "f4"), ("y", "i4")]))
save("classes", CLASSES.astype(np.int32).reshape(5, 1))
np.savez(HERE / "detect.npz", pixels=PIXELS, bias=BIAS, labels=CLASSES)
np.savez_compressed(HERE / "detect_packed.npz", pixels=PIXELS, bias=BIAS, labels=CLASSES)
