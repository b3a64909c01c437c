#!/usr/bin/env python3
"""A model and data to follow docs/own-model.md with, and a folder of samples as one file.

    own_model.py make DIR                   points.onnx, points.samples.f32, points.labels.i64
    own_model.py make --two DIR             the same with two inputs and two outputs
    own_model.py make --batch 8 DIR         the same with a batch that is fixed at 8
    own_model.py pack FOLDER samples.npy    files of NumPy's, one sample each, in the order of their names
    own_model.py pack FOLDER samples.raw    the bytes of any files, one sample each, in that order

Needs numpy, and `make` onnx: `.deps/venv/bin/python`, which `cargo xtask setup` makes, has both.

The model tells which of four centres a point in 16 dimensions is nearest to. The points lie around the centres so
that the nearest is not always the one they were made from: one label in ten is not the model's answer.
"""

import argparse
import pathlib
import sys

SEED = 1
CLASSES = 4
DIMENSIONS = 16
SAMPLES = 1000
SPREAD = 1.0
FILE_NAMES = ("points.onnx", "points.samples.f32", "points.labels.i64")


def points(numpy):
    """Centres, points around them, and the centre that each point was made from."""
    chance = numpy.random.default_rng(SEED)
    centres = chance.normal(size=(CLASSES, DIMENSIONS)) * 0.75
    labels = chance.integers(CLASSES, size=SAMPLES)
    around = centres[labels] + chance.normal(scale=SPREAD, size=(SAMPLES, DIMENSIONS))
    return centres.astype("<f4"), around.astype("<f4"), labels.astype("<i8")


def model(centres, two, batch):
    """The ONNX model. The nearest centre has the largest `x . c - c . c / 2`."""
    import numpy
    from onnx import TensorProto, checker, helper, numpy_helper

    n = batch or "N"
    inputs = [helper.make_tensor_value_info("point", TensorProto.FLOAT, [n, DIMENSIONS])]
    outputs = [helper.make_tensor_value_info("class", TensorProto.INT64, [n, 1])]
    constants = [
        numpy_helper.from_array(numpy.ascontiguousarray(centres.T), "centres"),
        numpy_helper.from_array(-(centres**2).sum(axis=1) / 2, "offset"),
    ]
    nodes, value = [], "point"
    if two:
        # The second input moves the point: a sample is 16 numbers and then one.
        inputs.append(helper.make_tensor_value_info("shift", TensorProto.FLOAT, [n, 1]))
        outputs.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, [n, CLASSES]))
        nodes.append(helper.make_node("Add", ["point", "shift"], ["moved"]))
        value = "moved"
    nodes.append(helper.make_node("Gemm", [value, "centres", "offset"], ["scores"]))
    nodes.append(helper.make_node("ArgMax", ["scores"], ["class"], axis=1, keepdims=1))
    graph = helper.make_graph(nodes, "points", inputs, outputs, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(made, full_check=True)
    return made


def make(folder, two, batch):
    """Writes the model, its samples and their labels into a folder."""
    import numpy
    import onnx

    folder.mkdir(parents=True, exist_ok=True)
    centres, samples, labels = points(numpy)
    onnx.save(model(centres, two, batch), folder / FILE_NAMES[0])
    if two:
        # One sample is its inputs, one behind the other, in the order in which the model has them.
        shifts = numpy.zeros((SAMPLES, 1), "<f4")
        samples = numpy.concatenate([samples, shifts], axis=1)
    samples.tofile(folder / FILE_NAMES[1])
    labels.tofile(folder / FILE_NAMES[2])
    for name in FILE_NAMES:
        path = folder / name
        print(f"{path}: {path.stat().st_size} bytes")


def pack(folder, out):
    """Writes the files of a folder, one sample each, into one."""
    import numpy

    files = sorted(f for f in folder.iterdir() if f.is_file() and not f.name.startswith("."))
    if not files:
        sys.exit(f"{folder}: it has no files")
    if out.suffix == ".npy":
        samples = [numpy.load(f, allow_pickle=False) for f in files]
        kinds = sorted({(s.dtype.str, s.shape) for s in samples})
        if len(kinds) > 1:
            sys.exit(f"{folder}: samples of one type and shape are wanted, there are {kinds}")
        numpy.save(out, numpy.stack(samples))
        what = f"{samples[0].dtype}{list(samples[0].shape)}"
    else:
        sizes = sorted({f.stat().st_size for f in files})
        if len(sizes) > 1:
            sys.exit(f"{folder}: samples of one size are wanted, there are some of {sizes[0]} and of {sizes[-1]} bytes")
        with out.open("wb") as packed:
            for f in files:
                packed.write(f.read_bytes())
        what = f"{sizes[0]} bytes"
    # Labels are in the same order: here is which file became which sample.
    names = out.with_name(out.name + ".names")
    names.write_text("".join(f"{f.name}\n" for f in files))
    print(f"{out}: {len(files)} samples of {what}; their names, in order, are in {names}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    making = what.add_parser("make", help="a model and data to try")
    making.add_argument("--two", action="store_true", help="two inputs and two outputs")
    making.add_argument("--batch", type=int, help="a fixed batch; without it any batch will do")
    making.add_argument("folder", type=pathlib.Path)
    packing = what.add_parser("pack", help="a folder of samples as one file")
    packing.add_argument("folder", type=pathlib.Path)
    packing.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    if args.what == "make":
        make(args.folder, args.two, args.batch)
    else:
        pack(args.folder, args.out)


if __name__ == "__main__":
    main()
