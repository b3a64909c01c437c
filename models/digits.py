#!/usr/bin/env python3
"""Writes the handwritten-digits model and its held-out data set into a folder.

    digits.py DIR            the model of this repository, and the data
    digits.py --train DIR    trains the model again

Three files come out:

    digits.onnx          pixels u8 [N, 64]  ->  class i64 [N, 1]
    digits.samples.u8    540 images of 8 x 8 pixels, one byte each (0 to 16), one after the other
    digits.labels.i64    540 little-endian 64-bit integers: the digit in each image

The images are those that scikit-learn carries; the 540 were never shown to the network. Scaling and argmax are
nodes of the graph, so that whoever runs the model neither pre- nor post-processes.
"""

import argparse
import pathlib
import shutil
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

SEED = 0
HELD_OUT = 540
LAYERS = (128, 64)
BRIGHTEST = 16
LEAST_ACCURACY = 0.97
KEPT = pathlib.Path(__file__).with_name("digits.onnx")


def data():
    """Training images, held-out images, training labels, held-out labels."""
    images, labels = load_digits(return_X_y=True)
    return train_test_split(
        images.astype(np.uint8),
        labels.astype(np.int64),
        test_size=HELD_OUT,
        random_state=SEED,
        stratify=labels,
    )


def train(images, labels):
    """The network's layers as (weights, bias), for pixels scaled to [0, 1]."""
    network = MLPClassifier(LAYERS, alpha=1e-3, max_iter=300, random_state=SEED)
    network.fit(images.astype(np.float32) / BRIGHTEST, labels)
    return list(zip(network.coefs_, network.intercepts_))


def graph(layers):
    """The layers as an ONNX model."""
    constants = [numpy_helper.from_array(np.float32(1 / BRIGHTEST), "scale")]
    nodes = [
        helper.make_node("Cast", ["pixels"], ["pixels_f32"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["pixels_f32", "scale"], ["x0"]),
    ]
    value = "x0"
    for i, (weights, bias) in enumerate(layers, start=1):
        constants.append(numpy_helper.from_array(weights.astype(np.float32), f"w{i}"))
        constants.append(numpy_helper.from_array(bias.astype(np.float32), f"b{i}"))
        nodes.append(helper.make_node("Gemm", [value, f"w{i}", f"b{i}"], [f"y{i}"]))
        value = f"y{i}"
        if i < len(layers):
            nodes.append(helper.make_node("Relu", [value], [f"x{i}"]))
            value = f"x{i}"
    nodes.append(helper.make_node("ArgMax", [value], ["class"], axis=1, keepdims=1))
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "digits",
            [helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["N", 64])],
            [helper.make_tensor_value_info("class", TensorProto.INT64, ["N", 1])],
            constants,
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def accuracy(path, images, labels):
    """Share of the images whose class the file's model gets right."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (classes,) = session.run(["class"], {"pixels": images})
    return float((classes[:, 0] == labels).mean())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--train", action="store_true", help="train again instead of taking the kept model")
    parser.add_argument("folder", type=pathlib.Path)
    args = parser.parse_args()

    args.folder.mkdir(parents=True, exist_ok=True)
    path = args.folder / "digits.onnx"
    seen, held_out, seen_labels, held_out_labels = data()
    if args.train:
        onnx.save(graph(train(seen, seen_labels)), path)
    elif KEPT.resolve() != path.resolve():
        shutil.copyfile(KEPT, path)
    held_out.tofile(args.folder / "digits.samples.u8")
    held_out_labels.astype("<i8").tofile(args.folder / "digits.labels.i64")

    reached = accuracy(path, held_out, held_out_labels)
    print(f"{path}: {path.stat().st_size} bytes, accuracy {reached:.4f} on {len(held_out)} held-out images")
    if reached < LEAST_ACCURACY:
        sys.exit(f"{path}: accuracy {reached:.4f} is below {LEAST_ACCURACY}")


if __name__ == "__main__":
    main()
