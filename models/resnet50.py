#!/usr/bin/env python3
"""Writes ResNet-50 v1.5 with seeded random weights as ONNX: for throughput, not for accuracy.

    resnet50.py DIR

DIR/resnet50.onnx takes `image` u8 [N, 3, 224, 224] and gives `class` i64 [N, 1]. Shapes, sizes and cost are
those of the trained network with its batch normalisation folded into the convolutions; "v1.5" puts the stride of a
down-sampling block on its 3 x 3 convolution. Scaling and argmax are nodes of the graph.
"""

import argparse
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SEED = 50
CLASSES = 1000
# (blocks, inner channels) of the four stages; a block gives four times as many channels.
STAGES = [(3, 64), (4, 128), (6, 256), (3, 512)]
WIDENING = 4


class Graph:
    """Nodes and constants in the making; every method returns the name of the value it adds."""

    def __init__(self):
        self.random = np.random.default_rng(SEED)
        self.nodes = []
        self.constants = []

    def constant(self, name, value):
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype=np.float32), name))
        return name

    def node(self, kind, inputs, name, **attributes):
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def centred(self, shape):
        """Normal weights that add up to nothing for each output: what all inputs of a layer have in common would
        otherwise grow from layer to layer, and every image would end in the same class."""
        weights = self.random.standard_normal(shape)
        return weights - weights.mean(axis=tuple(range(1, len(shape))), keepdims=True)

    def convolution(self, x, name, channels_in, channels_out, kernel, stride=1, gain=1.0):
        """`gain` scales He's initialisation: 1 keeps the variance through a ReLU."""
        shape = (channels_out, channels_in, kernel, kernel)
        deviation = gain * np.sqrt(2.0 / (channels_in * kernel * kernel))
        weights = self.constant(f"{name}.weight", self.centred(shape) * deviation)
        bias = self.constant(f"{name}.bias", np.zeros(channels_out))
        return self.node(
            "Conv",
            [x, weights, bias],
            name,
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
        )

    def relu(self, x):
        return self.node("Relu", [x], f"{x}.relu")

    def bottleneck(self, x, name, channels_in, inner, stride, project):
        outer = inner * WIDENING
        y = self.relu(self.convolution(x, f"{name}.narrow", channels_in, inner, 1))
        y = self.relu(self.convolution(y, f"{name}.middle", inner, inner, 3, stride))
        # A small gain on the last one keeps sixteen residual sums from growing without bound.
        y = self.convolution(y, f"{name}.widen", inner, outer, 1, gain=0.3)
        if project:
            x = self.convolution(x, f"{name}.project", channels_in, outer, 1, stride)
        return self.relu(self.node("Add", [y, x], f"{name}.sum"))


def build():
    g = Graph()
    x = g.node("Cast", ["image"], "image.f32", to=TensorProto.FLOAT)
    x = g.node("Mul", [x, g.constant("scale", 1 / 64)], "image.scaled")
    x = g.node("Sub", [x, g.constant("mean", 2.0)], "image.centred")
    x = g.relu(g.convolution(x, "stem", 3, 64, 7, 2))
    x = g.node("MaxPool", [x], "stem.pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for s, (blocks, inner) in enumerate(STAGES, start=1):
        for b in range(blocks):
            stride = 2 if b == 0 and s > 1 else 1
            x = g.bottleneck(x, f"stage{s}.block{b + 1}", channels, inner, stride, project=b == 0)
            channels = inner * WIDENING
    x = g.node("GlobalAveragePool", [x], "pool")
    x = g.node("Flatten", [x], "features", axis=1)
    weights = g.constant("head.weight", g.centred((CLASSES, channels)).T * 0.02)
    x = g.node("Gemm", [x, weights, g.constant("head.bias", np.zeros(CLASSES))], "logits")
    g.node("ArgMax", [x], "class", axis=1, keepdims=1)
    model = helper.make_model(
        helper.make_graph(
            g.nodes,
            "resnet50",
            [helper.make_tensor_value_info("image", TensorProto.UINT8, ["N", 3, 224, 224])],
            [helper.make_tensor_value_info("class", TensorProto.INT64, ["N", 1])],
            g.constants,
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "resnet50.onnx"
    onnx.save(build(), path)
    print(f"{path}: {path.stat().st_size} bytes, random weights from seed {SEED}")


if __name__ == "__main__":
    main()
