#!/usr/bin/env python3
"""Writes a BERT question-answering network with seeded random weights as ONNX: for throughput, not for accuracy.

    bert.py DIR            DIR/bert.onnx, the shape of BERT-large (1.3 GB)
    bert.py --tiny DIR     DIR/bert-tiny.onnx, two narrow layers (0.2 MB), for tests

The inputs are `input_ids`, `input_mask` and `segment_ids`, i64 [N, S]; the output is `span` i64 [N, 2], where the answer
begins and ends: each the position with the largest logit. S is 384, and 48 in the tiny one.

A sample shorter than S is padded with zeros. Its mask is zero there, so that padded positions are attended to by none
and chosen by none: the answer does not depend on how long the padding is.
"""

import argparse
import dataclasses
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SEED = 24
INPUTS = ("input_ids", "input_mask", "segment_ids")


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    layers: int
    hidden: int
    heads: int
    inner: int
    length: int
    words: int
    # Spread of the weights. The trained network's is near 0.02; a narrow one needs more for its answers to differ.
    spread: float


LARGE = Shape("bert", layers=24, hidden=1024, heads=16, inner=4096, length=384, words=30522, spread=0.02)
TINY = Shape("bert-tiny", layers=2, hidden=32, heads=4, inner=64, length=48, words=1000, spread=0.3)


class Graph:
    """Nodes and constants in the making; methods return the name of the value they add."""

    def __init__(self, shape):
        self.shape = shape
        self.random = np.random.default_rng(SEED)
        self.nodes = []
        self.constants = []

    def constant(self, name, value, dtype=np.float32):
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype=dtype), name))
        return name

    def weights(self, name, *dimensions):
        drawn = self.random.standard_normal(dimensions, dtype=np.float32)
        return self.constant(name, drawn * np.float32(self.shape.spread))

    def node(self, kind, inputs, name, **attributes):
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def linear(self, x, name, wide_in, wide_out):
        product = self.node("MatMul", [x, self.weights(f"{name}.weight", wide_in, wide_out)], f"{name}.product")
        return self.node("Add", [product, self.constant(f"{name}.bias", np.zeros(wide_out))], name)

    def normalised(self, x, name):
        wide = self.shape.hidden
        gain = self.constant(f"{name}.gain", np.ones(wide))
        bias = self.constant(f"{name}.bias", np.zeros(wide))
        return self.node("LayerNormalization", [x, gain, bias], name, axis=-1, epsilon=1e-12)

    def by_head(self, x, name, order):
        """[N, S, hidden] as heads, transposed to `order` of (N, S, head, part)."""
        split = self.node("Reshape", [x, "split"], f"{name}.split")
        return self.node("Transpose", [split], f"{name}.heads", perm=order)

    def attention(self, x, name):
        wide = self.shape.hidden
        query = self.by_head(self.linear(x, f"{name}.query", wide, wide), f"{name}.query", [0, 2, 1, 3])
        key = self.by_head(self.linear(x, f"{name}.key", wide, wide), f"{name}.key", [0, 2, 3, 1])
        value = self.by_head(self.linear(x, f"{name}.value", wide, wide), f"{name}.value", [0, 2, 1, 3])
        scores = self.node("Mul", [self.node("MatMul", [query, key], f"{name}.dot"), "head_scale"], f"{name}.scores")
        masked = self.node("Add", [scores, "attention_penalty"], f"{name}.masked")
        shares = self.node("Softmax", [masked], f"{name}.shares", axis=-1)
        mixed = self.node("MatMul", [shares, value], f"{name}.mixed")
        turned = self.node("Transpose", [mixed], f"{name}.turned", perm=[0, 2, 1, 3])
        joined = self.node("Reshape", [turned, "join"], f"{name}.joined")
        return self.linear(joined, f"{name}.out", wide, wide)

    def gelu(self, x, name):
        scaled = self.node("Mul", [x, "root_half"], f"{name}.scaled")
        erf = self.node("Add", [self.node("Erf", [scaled], f"{name}.erf"), "one"], f"{name}.erf1")
        return self.node("Mul", [self.node("Mul", [x, "half"], f"{name}.halved"), erf], name)

    def layer(self, x, name):
        s = self.shape
        attended = self.node("Add", [self.attention(x, f"{name}.attention"), x], f"{name}.sum")
        x = self.normalised(attended, f"{name}.norm")
        inner = self.gelu(self.linear(x, f"{name}.widen", s.hidden, s.inner), f"{name}.gelu")
        outer = self.linear(inner, f"{name}.narrow", s.inner, s.hidden)
        return self.normalised(self.node("Add", [outer, x], f"{name}.sum2"), f"{name}.norm2")

    def embedded(self):
        s = self.shape
        word = self.node("Gather", [self.weights("words", s.words, s.hidden), "input_ids"], "word")
        segment = self.node("Gather", [self.weights("segments", 2, s.hidden), "segment_ids"], "segment")
        sums = self.node("Add", [word, segment], "word_and_segment")
        # One row for each position, for every sample the same.
        placed = self.node("Add", [sums, self.weights("positions", s.length, s.hidden)], "placed")
        return self.normalised(placed, "embedded")

    def penalties(self):
        """What is added to the scores of padded positions, as [N, S, 1] for the answer and [N, 1, 1, S] inside."""
        mask = self.node("Cast", ["input_mask"], "mask", to=TensorProto.FLOAT)
        absent = self.node("Sub", ["one", mask], "absent")
        penalty = self.node("Mul", [absent, self.constant("far_below", -1e9)], "penalty")
        self.node("Unsqueeze", [penalty, self.constant("last", [2], np.int64)], "answer_penalty")
        self.node("Unsqueeze", [penalty, self.constant("middle", [1, 2], np.int64)], "attention_penalty")

    def build(self):
        s = self.shape
        part = s.hidden // s.heads
        self.constant("one", 1.0)
        self.constant("half", 0.5)
        self.constant("root_half", np.sqrt(0.5))
        self.constant("head_scale", 1 / np.sqrt(part))
        self.constant("split", [0, s.length, s.heads, part], np.int64)
        self.constant("join", [0, s.length, s.hidden], np.int64)
        self.penalties()
        x = self.embedded()
        for i in range(s.layers):
            x = self.layer(x, f"layer{i}")
        logits = self.node("Add", [self.linear(x, "logits", s.hidden, 2), "answer_penalty"], "masked_logits")
        self.node("ArgMax", [logits], "span", axis=1, keepdims=0)
        tokens = [helper.make_tensor_value_info(name, TensorProto.INT64, ["N", s.length]) for name in INPUTS]
        span = helper.make_tensor_value_info("span", TensorProto.INT64, ["N", 2])
        graph = helper.make_graph(self.nodes, s.name, tokens, [span], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="two narrow layers instead of BERT-large")
    parser.add_argument("folder", type=pathlib.Path)
    args = parser.parse_args()

    shape = TINY if args.tiny else LARGE
    args.folder.mkdir(parents=True, exist_ok=True)
    path = args.folder / f"{shape.name}.onnx"
    onnx.save(Graph(shape).build(), path)
    print(f"{path}: {path.stat().st_size} bytes, {shape.layers} layers of {shape.hidden}, up to {shape.length} tokens")


if __name__ == "__main__":
    main()
