#!/usr/bin/env python3
"""Writes ResNet-50 v1.5 as ONNX files that the accelerator's engine `tensorrt` builds its plans from.

    export_tensorrt.py [--samples N] DIR PRECISION...

PRECISION is int8, int8-pixels, fp16 or fp32, and DIR/resnet50-PRECISION.onnx is

    int8    image i8 [N, 3, 224, 224]   pixels minus 128   -> class i64 [N, 1]
    int8-pixels  image u8 [N, 3, 224, 224]                 -> class i64 [N, 1]
    fp16    image u8 [N, 3, 224, 224]                      -> class i64 [N, 1], half-precision weights
    fp32    image u8 [N, 3, 224, 224]                      -> class i64 [N, 1]

Those in int8 say themselves where they compute in 8 bits: QuantizeLinear and DequantizeLinear around every convolution, with a
scale for each output channel of the weights and one for each activation, taken from what float32 gives for some images.
The sums of the residual blocks are quantised on their way in as well; the last layer is not. Pixels minus 128 are the
first convolution's input at a scale of 1/64 exactly, so that nothing is lost there.

The weights are those of resnet50.py, random from a seed, but for the last layer's. With that one at random, the two
best of a thousand classes would be so close together that any rounding swaps some; a trained network keeps them apart.
So the last layer is fitted, once and in closed form, to tell a thousand seeded patterns from each other by what the random
layers make of them. Images are these patterns under noise, and a class is right or wrong.

`--samples N` also writes DIR/resnet50-PRECISION.samples.bin, N images as the model takes them, back to back;
DIR/resnet50-PRECISION.reference.npy, the classes that float32 gives for them; and DIR/resnet50-PRECISION.labels.i64, the
patterns that they are of.
"""

import argparse
import pathlib
import time

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import resnet50

PATTERN_SEED, SAMPLE_SEED, CALIBRATION_SEED = 60, 61, 62
CALIBRATION_IMAGES = 64
# The few largest activations are cut off, and all others get finer steps.
KEPT = 99.995
NOISE = 20
SIZE = 224
# Of the fit of the last layer: how much of the features' variance counts as noise.
RIDGE = 1e-3
# Standard deviation of the logits, as a trained network has it: nothing that overflows in half precision.
LOGITS = 4.0


def patterns(random, count):
    """Blobs of colour, u8 [count, 3, 224, 224]."""
    out = np.empty((count, 3, SIZE, SIZE), np.uint8)
    for i in range(count):
        cells = int(random.integers(2, 15))
        coarse = random.integers(0, 256, (3, cells, cells), dtype=np.uint8)
        at = np.arange(SIZE) * cells // SIZE
        out[i] = coarse[:, at][:, :, at]
    return out


def images(random, of, classes):
    """These patterns under noise."""
    out = np.empty((len(classes), 3, SIZE, SIZE), np.uint8)
    for i, c in enumerate(classes):
        noise = random.integers(-NOISE, NOISE + 1, out.shape[1:], dtype=np.int16)
        out[i] = np.clip(of[c] + noise, 0, 255)
    return out


def run(model, outputs, x, batch=16):
    """What float32 gives for these outputs of the graph, one array for each."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    known = {o.name for o in model.graph.output}
    model.graph.output.extend(helper.make_empty_tensor_value_info(o) for o in outputs if o not in known)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    parts = [session.run(list(outputs), {"image": x[i : i + batch]}) for i in range(0, len(x), batch)]
    return [np.concatenate(p) for p in zip(*parts)]


def replace(model, arrays):
    for c in model.graph.initializer:
        if c.name in arrays:
            c.CopyFrom(numpy_helper.from_array(arrays[c.name].astype(np.float32), c.name))


def fit_head(model, of):
    """The last layer that gives each pattern its own class: ridge regression on what the layers before it make of them."""
    random = np.random.default_rng(CALIBRATION_SEED)
    (features,) = run(model, ["features"], images(random, of, np.arange(len(of))))
    features = features.astype(np.float64)
    mean = features.mean(0)
    x = features - mean
    covariance = x.T @ x / len(x)
    ridge = RIDGE * np.trace(covariance) / len(covariance)
    # Classes are what is told apart, so that all of the spread is theirs but for the ridge.
    weights = np.linalg.solve(covariance + ridge * np.eye(len(covariance)), x.T)
    bias = -0.5 * np.einsum("kf,fk->k", x, weights)
    logits = x @ weights + bias
    scale = LOGITS / logits.std()
    weights, bias = weights * scale, bias * scale
    replace(model, {"head.weight": weights, "head.bias": bias - mean @ weights})


def activations(model):
    """Names of what is quantised: inputs of convolutions and of the pool at the end, and what residual sums add."""
    names = []
    for n in model.graph.node:
        wanted = {"Conv": n.input[:1], "GlobalAveragePool": n.input[:1], "Add": n.input[1:2]}.get(n.op_type, [])
        names += [i for i in wanted if i != "image.centred" and i not in names]
    return names


def scales(model, of):
    """A step for each activation."""
    random = np.random.default_rng(CALIBRATION_SEED)
    names = activations(model)
    largest = dict.fromkeys(names, 0.0)
    for at in range(0, CALIBRATION_IMAGES, 8):
        x = images(random, of, random.integers(0, len(of), 8))
        for name, value in zip(names, run(model, names, x, 8)):
            largest[name] = max(largest[name], float(np.percentile(np.abs(value), KEPT)))
    return {n: v / 127 for n, v in largest.items()}


def quantised(model, steps, pixels):
    """The same graph in 8 bits, of pixels as they are or of pixels minus 128."""
    weights = {c.name: numpy_helper.to_array(c) for c in model.graph.initializer}
    nodes, constants, done = [], [], {}

    def constant(name, value, dtype):
        constants.append(numpy_helper.from_array(np.asarray(value, dtype=dtype), name))
        return name

    def there_and_back(name, step, axis=None):
        """`name` as 8 bits and back; what it is called then. One pair serves all who read it."""
        if name not in done:
            zero = np.zeros(np.shape(step))
            how = [constant(f"{name}.step", step, np.float32), constant(f"{name}.zero", zero, np.int8)]
            axis = {} if axis is None else {"axis": axis}
            nodes.append(helper.make_node("QuantizeLinear", [name, *how], [f"{name}.q"], name=f"{name}.q", **axis))
            nodes.append(helper.make_node("DequantizeLinear", [f"{name}.q", *how], [f"{name}.dq"], name=f"{name}.dq", **axis))
            done[name] = f"{name}.dq"
        return done[name]

    # (pixel / 64 - 2) is (pixel - 128) / 64.
    if not pixels:
        how = [constant("image.step", 1 / 64, np.float32), constant("image.zero", 0, np.int8)]
        nodes.append(helper.make_node("DequantizeLinear", ["image", *how], ["image.centred"], name="image.dq"))
    for n in model.graph.node:
        if n.op_type in ("Cast", "Mul", "Sub") and not pixels:
            continue
        n = onnx.NodeProto.FromString(n.SerializeToString())
        if n.op_type == "Conv":
            w = weights[n.input[1]]
            step = np.abs(w).reshape(len(w), -1).max(1) / 127
            n.input[1] = there_and_back(n.input[1], step, axis=0)
        at = {"Conv": 0, "GlobalAveragePool": 0, "Add": 1}.get(n.op_type)
        if at is not None and (pixels or n.input[at] != "image.centred"):
            n.input[at] = there_and_back(n.input[at], steps.get(n.input[at], 1 / 64))
        nodes.append(n)
    kept = [c for c in model.graph.initializer if pixels or c.name not in ("scale", "mean")]
    return rebuilt(model, nodes, kept + constants, TensorProto.UINT8 if pixels else TensorProto.INT8)


def halved(model):
    """The same graph in half precision."""
    constants = [
        numpy_helper.from_array(numpy_helper.to_array(c).astype(np.float16), c.name) for c in model.graph.initializer
    ]
    nodes = []
    for n in model.graph.node:
        n = onnx.NodeProto.FromString(n.SerializeToString())
        if n.op_type == "Cast":
            n.attribute[0].i = TensorProto.FLOAT16
        nodes.append(n)
    return rebuilt(model, nodes, constants, TensorProto.UINT8)


def rebuilt(model, nodes, constants, image):
    graph = helper.make_graph(
        nodes,
        model.graph.name,
        [helper.make_tensor_value_info("image", image, ["N", 3, SIZE, SIZE])],
        list(model.graph.output),
        constants,
    )
    out = helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=model.ir_version)
    onnx.checker.check_model(out, full_check=True)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--samples", type=int, default=0, metavar="N")
    parser.add_argument("--check", action="store_true", help="also run what was written on the CPU, over the samples")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("precisions", nargs="+", choices=("int8", "int8-pixels", "fp16", "fp32"), metavar="PRECISION")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    began = time.time()
    of = patterns(np.random.default_rng(PATTERN_SEED), resnet50.CLASSES)
    model = resnet50.build()
    fit_head(model, of)
    print(f"last layer fitted after {time.time() - began:.0f} s", flush=True)
    if args.samples:
        random = np.random.default_rng(SAMPLE_SEED)
        classes = random.integers(0, len(of), args.samples)
        x = images(random, of, classes)
        reference, logits = run(model, ["class", "logits"], x)
        best = np.sort(logits, 1)
        right = float((reference[:, 0] == classes).mean())
        print(
            f"float32: {100 * right:.2f} % of {len(x)} right, {len(np.unique(reference))} classes, the best before the second by"
            f" {np.median(best[:, -1] - best[:, -2]):.2f}, logits' deviation {logits.std():.2f}",
            flush=True,
        )
    for precision in args.precisions:
        if precision.startswith("int8"):
            out = quantised(model, scales(model, of), pixels=precision == "int8-pixels")
        else:
            out = halved(model) if precision == "fp16" else model
        path = args.folder / f"resnet50-{precision}.onnx"
        onnx.save(out, path)
        said = ""
        if args.samples:
            taken = x ^ 128 if precision == "int8" else x
            taken = taken.view(np.int8) if precision == "int8" else taken
            taken.tofile(args.folder / f"resnet50-{precision}.samples.bin")
            classes.astype("<i8").tofile(args.folder / f"resnet50-{precision}.labels.i64")
            np.save(args.folder / f"resnet50-{precision}.reference.npy", reference)
            if args.check:
                (got,) = run(out, ["class"], taken)
                said = f", the class of float32 for {100 * float((got == reference).mean()):.2f} %"
        print(f"{path}: {path.stat().st_size} bytes after {time.time() - began:.0f} s{said}", flush=True)


if __name__ == "__main__":
    main()
