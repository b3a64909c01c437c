#!/usr/bin/env python3
"""Writes the small ONNX models beside it that the tests of engine `onnx` load; needs models/requirements.txt."""

import pathlib

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

HERE = pathlib.Path(__file__).parent


def write(name, nodes, inputs, outputs, constants=()):
    value = h.make_tensor_value_info
    graph = h.make_graph(
        nodes,
        name,
        [value(*i) for i in inputs],
        [value(*o) for o in outputs],
        [numpy_helper.from_array(v, n) for n, v in constants],
    )
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, HERE / f"{name}.onnx")


# total = bias + the sum of ids * mask: two ragged inputs and one of fixed size.
write(
    "masked_sum",
    [
        h.make_node("Mul", ["ids", "mask"], ["kept"]),
        h.make_node("ReduceSum", ["kept", "columns"], ["sum"], keepdims=1),
        h.make_node("Add", ["sum", "bias"], ["total"]),
    ],
    [("ids", T.INT64, ["N", 8]), ("bias", T.INT64, ["N", 1]), ("mask", T.INT64, ["N", 8])],
    [("total", T.INT64, ["N", 1])],
    [("columns", np.array([1], dtype=np.int64))],
)
# What cannot be served: a fixed batch, two outputs, another dynamic dimension, halves.
identity = [h.make_node("Identity", ["x"], ["y"])]
write("fixed_batch", identity, [("x", T.FLOAT, [4, 2])], [("y", T.FLOAT, [4, 2])])
write("open_width", identity, [("x", T.FLOAT, ["N", "W"])], [("y", T.FLOAT, ["N", "W"])])
write("halves", identity, [("x", T.FLOAT16, ["N", 2])], [("y", T.FLOAT16, ["N", 2])])
write(
    "two_outputs",
    [*identity, h.make_node("Neg", ["x"], ["z"])],
    [("x", T.FLOAT, ["N", 2])],
    [("y", T.FLOAT, ["N", 2]), ("z", T.FLOAT, ["N", 2])],
)
# total = the sum of four entries of a table of ten: an index outside it is an error of the runtime's.
write(
    "lookup",
    [
        h.make_node("Gather", ["table", "ids"], ["entries"]),
        h.make_node("ReduceSum", ["entries", "columns"], ["total"], keepdims=1),
    ],
    [("ids", T.INT64, ["N", 4])],
    [("total", T.INT64, ["N", 1])],
    [
        ("table", np.arange(10, dtype=np.int64) * 100),
        ("columns", np.array([1], dtype=np.int64)),
    ],
)
