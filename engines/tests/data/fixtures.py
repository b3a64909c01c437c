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
    def value(tensor, kind, shape):
        if kind is None:
            element = h.make_tensor_type_proto(T.FLOAT, None)
            return h.make_value_info(tensor, h.make_sequence_type_proto(element))
        return h.make_tensor_value_info(tensor, kind, shape)

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
identity = [h.make_node("Identity", ["x"], ["y"])]
# A batch of four, and no other, without and with a part of the others in each answer; an answer of one element that has
# no dimension but the batch.
write("fixed_batch", identity, [("x", T.FLOAT, [4, 2])], [("y", T.FLOAT, [4, 2])])
write(
    "sum_of_4",
    [h.make_node("ReduceSum", ["x", "rows"], ["sum"], keepdims=1), h.make_node("Add", ["x", "sum"], ["y"])],
    [("x", T.FLOAT, [4, 2])],
    [("y", T.FLOAT, [4, 2])],
    [("rows", np.array([0], dtype=np.int64))],
)
# Two inputs, one of a single element; three outputs of three types and shapes, the class not the first of them.
write(
    "detect",
    [
        h.make_node("Cast", ["pixels"], ["grey"], to=T.FLOAT),
        h.make_node("Unsqueeze", ["bias", "last"], ["column"]),
        h.make_node("Add", ["grey", "column"], ["scores"]),
        h.make_node("ArgMax", ["scores"], ["class"], axis=1, keepdims=0),
        h.make_node("Unsqueeze", ["scores", "last"], ["row"]),
        h.make_node("Neg", ["row"], ["negative"]),
        h.make_node("Concat", ["row", "negative"], ["boxes"], axis=1),
    ],
    [("pixels", T.UINT8, ["N", 4]), ("bias", T.FLOAT, ["N"])],
    [
        ("boxes", T.FLOAT, ["N", 2, 4]),
        ("class", T.INT64, ["N"]),
        ("scores", T.FLOAT, ["N", 4]),
    ],
    [("last", np.array([1], dtype=np.int64))],
)
# What cannot be served: batches of two sizes, another dynamic dimension, halves.
write(
    "two_batches",
    [*identity, h.make_node("Identity", ["v"], ["w"])],
    [("x", T.FLOAT, [4, 2]), ("v", T.FLOAT, [2, 2])],
    [("y", T.FLOAT, [4, 2]), ("w", T.FLOAT, [2, 2])],
)
write("open_width", identity, [("x", T.FLOAT, ["N", "W"])], [("y", T.FLOAT, ["N", "W"])])
write("halves", identity, [("x", T.FLOAT16, ["N", 2])], [("y", T.FLOAT16, ["N", 2])])
# An output that is carried beside one that is no tensor, and beside one of halves.
write(
    "bag",
    [*identity, h.make_node("SequenceConstruct", ["x"], ["bag"])],
    [("x", T.FLOAT, ["N", 2])],
    [("y", T.FLOAT, ["N", 2]), ("bag", None, None)],
)
write(
    "half_beside",
    [*identity, h.make_node("Cast", ["x"], ["half"], to=T.FLOAT16)],
    [("x", T.FLOAT, ["N", 2])],
    [("half", T.FLOAT16, ["N", 2]), ("y", T.FLOAT, ["N", 2])],
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
