#!/usr/bin/env python3
"""Compiles the models of this folder ahead of time with PyTorch, for the accelerator's engine `aoti`.

    export_aoti.py [--device cuda|cpu] [--samples N] DIR MODEL...

MODEL is digits, resnet50, bert or bert-tiny. DIR/MODEL.pt2 is compiled for the device, with a dynamic batch. The
weights are those of the ONNX files: the digits' trained ones, and the seeded random ones of resnet50.py and bert.py.

    digits     pixels u8 [N, 64]                                           -> class i64 [N, 1]
    resnet50   image u8 [N, 224, 224, 3]                                   -> class i64 [N, 1]
    bert       input_ids, input_mask, segment_ids i64 [N, S], ragged       -> logits f32 [N, S, 2]

What a model takes and gives stands in the package's own metadata, under `qdl.model`, where the engine reads it.

`--samples N` also writes what a run against them needs: DIR/MODEL.samples.bin, N samples back to back (for bert, of
different lengths, which are in DIR/MODEL.lengths.u32), and DIR/MODEL.reference.npy, what float32 arithmetic gives for
them (classes, or logits at full length).

On a GPU resnet50 and bert compute in float16; on a CPU everything computes in float32.
"""

import argparse
import json
import pathlib
import sys
import time

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from torch import nn

import bert
import resnet50

HERE = pathlib.Path(__file__).parent
LARGEST_BATCH = 4096
SAMPLE_SEED = 1
TUNED_FOR = {"cuda": 256, "cpu": 32}


def arrays(constants):
    """ONNX constants by name."""
    return {c.name: numpy_helper.to_array(c) for c in constants}


def tensor(array):
    return torch.from_numpy(np.array(array))


def spec(name, dtype, shape, ragged=False):
    return {"name": name, "dtype": dtype, "shape": list(shape), "ragged": ragged}


class Digits(nn.Module):
    inputs = [spec("pixels", "u8", [64])]
    output = spec("class", "i64", [1])
    in_half = False

    def __init__(self):
        super().__init__()
        c = arrays(onnx.load(HERE / "digits.onnx").graph.initializer)
        self.scale = float(c["scale"])
        layers = [(c[f"w{i}"], c[f"b{i}"]) for i in (1, 2, 3)]
        self.weights = nn.ParameterList([nn.Parameter(tensor(w.T), requires_grad=False) for w, _ in layers])
        self.biases = nn.ParameterList([nn.Parameter(tensor(b), requires_grad=False) for _, b in layers])

    def forward(self, pixels):
        x = pixels.to(self.weights[0].dtype) * self.scale
        for i, (w, b) in enumerate(zip(self.weights, self.biases)):
            x = F.linear(x if i == 0 else F.relu(x), w, b)
        return x.argmax(1, keepdim=True)

    def samples(self, random, count):
        return [random.integers(0, 17, (count, 64), dtype=np.uint8)], None


class ResNet50(nn.Module):
    inputs = [spec("image", "u8", [224, 224, 3])]
    output = spec("class", "i64", [1])
    in_half = True

    def __init__(self):
        super().__init__()
        c = arrays(resnet50.build().graph.initializer)
        self.scale, self.mean = float(c["scale"]), float(c["mean"])
        self.convolutions = nn.ModuleDict()
        for name in (n.removesuffix(".weight") for n in c if n.endswith(".weight") and n != "head.weight"):
            w = c[f"{name}.weight"]
            layer = nn.Conv2d(w.shape[1], w.shape[0], w.shape[2], padding=w.shape[2] // 2)
            layer.weight.data, layer.bias.data = tensor(w), tensor(c[f"{name}.bias"])
            self.convolutions[name.replace(".", "_")] = layer
        for s in (2, 3, 4):
            for part in ("middle", "project"):
                self.convolutions[f"stage{s}_block1_{part}"].stride = (2, 2)
        self.convolutions["stem"].stride = (2, 2)
        self.head = nn.Linear(2048, 1000)
        self.head.weight.data, self.head.bias.data = tensor(c["head.weight"].T.copy()), tensor(c["head.bias"])
        self.to(memory_format=torch.channels_last)

    def logits(self, image):
        c = self.convolutions
        x = image.permute(0, 3, 1, 2).to(self.head.weight.dtype) * self.scale - self.mean
        x = F.max_pool2d(F.relu(c["stem"](x)), 3, 2, 1)
        for s, (blocks, _) in enumerate(resnet50.STAGES, start=1):
            for b in range(1, blocks + 1):
                name = f"stage{s}_block{b}"
                y = F.relu(c[f"{name}_narrow"](x))
                y = F.relu(c[f"{name}_middle"](y))
                y = c[f"{name}_widen"](y)
                x = F.relu(y + (c[f"{name}_project"](x) if b == 1 else x))
        return self.head(x.mean((2, 3)))

    def forward(self, image):
        return self.logits(image).argmax(1, keepdim=True)

    def samples(self, random, count):
        """Blobs of colour under noise: images that differ, so that their classes do."""
        out = np.empty((count, 224, 224, 3), np.uint8)
        for i in range(count):
            cells = int(random.integers(2, 15))
            coarse = random.integers(0, 256, (cells, cells, 3))
            at = np.arange(224) * cells // 224
            noise = random.integers(-20, 21, (224, 224, 3))
            out[i] = np.clip(coarse[at][:, at] + noise, 0, 255)
        return [out], None


class Bert(nn.Module):
    in_half = True

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.inputs = [spec(n, "i64", [shape.length], ragged=True) for n in bert.INPUTS]
        self.output = spec("logits", "f32", [shape.length, 2])
        g = bert.Graph(shape)
        g.build()
        c = arrays(g.constants)
        keep = lambda name, array: self.register_buffer(name.replace(".", "_"), tensor(array))
        keep("words", c["words"])
        keep("segments", c["segments"])
        keep("positions", c["positions"])
        for name in [n.removesuffix(".gain") for n in c if n.endswith(".gain")]:
            keep(f"{name}.gain", c[f"{name}.gain"])
            keep(f"{name}.bias", c[f"{name}.bias"])
        for i in range(shape.layers):
            at = f"layer{i}.attention"
            joined = [np.concatenate([c[f"{at}.{p}.{k}"] for p in ("query", "key", "value")], -1) for k in ("weight", "bias")]
            keep(f"layer{i}.qkv.weight", joined[0].T.copy())
            keep(f"layer{i}.qkv.bias", joined[1])
            for part in (f"{at}.out", f"layer{i}.widen", f"layer{i}.narrow"):
                keep(f"{part}.weight", c[f"{part}.weight"].T.copy())
                keep(f"{part}.bias", c[f"{part}.bias"])
        keep("logits.weight", c["logits.weight"].T.copy())
        keep("logits.bias", c["logits.bias"])

    def linear(self, x, name):
        name = name.replace(".", "_")
        return F.linear(x, getattr(self, f"{name}_weight"), getattr(self, f"{name}_bias"))

    def normalised(self, x, name):
        name = name.replace(".", "_")
        return F.layer_norm(x, (self.shape.hidden,), getattr(self, f"{name}_gain"), getattr(self, f"{name}_bias"), 1e-12)

    def forward(self, input_ids, input_mask, segment_ids):
        s = self.shape
        x = F.embedding(input_ids, self.words) + F.embedding(segment_ids, self.segments) + self.positions
        x = self.normalised(x, "embedded")
        # A finite penalty, as large as half precision goes: a row of nothing but -inf would be no number.
        bias = (1 - input_mask.to(x.dtype)) * -60000.0
        bias = bias[:, None, None, :].expand(-1, 1, s.length, -1)
        for i in range(s.layers):
            qkv = self.linear(x, f"layer{i}.qkv").view(-1, s.length, 3, s.heads, s.hidden // s.heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
            a = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            a = a.transpose(1, 2).reshape(-1, s.length, s.hidden)
            x = self.normalised(x + self.linear(a, f"layer{i}.attention.out"), f"layer{i}.norm")
            y = self.linear(F.gelu(self.linear(x, f"layer{i}.widen")), f"layer{i}.narrow")
            x = self.normalised(x + y, f"layer{i}.norm2")
        return self.linear(x, "logits").float()

    def samples(self, random, count):
        s = self.shape
        lengths = random.integers(min(30, s.length), s.length + 1, count)
        rows = [np.zeros((count, s.length), np.int64) for _ in self.inputs]
        for i, n in enumerate(lengths):
            rows[0][i, :n] = random.integers(0, s.words, n)
            rows[1][i, :n] = 1
            rows[2][i, (n + 1) // 2 : n] = 1
        return rows, lengths


MODELS = {
    "digits": Digits,
    "resnet50": ResNet50,
    "bert": lambda: Bert(bert.LARGE),
    "bert-tiny": lambda: Bert(bert.TINY),
}


def write_samples(folder, name, model, device, count):
    """Samples as they cross the wire, and what float32 gives for them."""
    rows, lengths = model.samples(np.random.default_rng(SAMPLE_SEED), count)
    path = folder / f"{name}.samples.bin"
    if lengths is None:
        rows[0].tofile(path)
    else:
        with open(path, "wb") as f:
            for i, n in enumerate(lengths):
                for row in rows:
                    f.write(row[i, :n].tobytes())
        (lengths * 8 * len(rows)).astype("<u4").tofile(folder / f"{name}.lengths.u32")
    # TF32 would be half precision by another name.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    out = []
    for at in range(0, count, 32):
        out.append(model(*(torch.from_numpy(r[at : at + 32]).to(device) for r in rows)).cpu().numpy())
    out = np.concatenate(out)
    np.save(folder / f"{name}.reference.npy", out)
    return out


def export(folder, name, device, count):
    started = time.time()
    model = MODELS[name]().eval().to(device)
    said = ""
    if count:
        reference = write_samples(folder, name, model, device, count)
        said = f", {count} samples, {len(np.unique(reference))} different answers in float32"
    if device == "cuda" and model.in_half:
        model = model.half()
    # Kernels are chosen for a batch of this size, and run at any.
    rows, _ = model.samples(np.random.default_rng(SAMPLE_SEED), TUNED_FOR[device])
    example = tuple(torch.from_numpy(r).to(device) for r in rows)
    batch = torch.export.Dim("batch", min=1, max=LARGEST_BATCH)
    program = torch.export.export(model, example, dynamic_shapes=tuple({0: batch} for _ in example))
    traced = time.time()
    path = folder / f"{name}.pt2"
    described = json.dumps({"name": name, "inputs": model.inputs, "output": model.output})
    torch._inductor.aoti_compile_and_package(
        program,
        package_path=str(path),
        inductor_configs={"aot_inductor.metadata": {"qdl.model": described}},
    )
    done = time.time()
    print(
        f"{path}: {path.stat().st_size} bytes for {device}, made in {traced - started:.0f} s,"
        f" compiled in {done - traced:.0f} s{said}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--samples", type=int, default=0, metavar="N")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("models", nargs="+", choices=MODELS, metavar="MODEL")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("no CUDA device here; --device cpu compiles for the CPU")
    args.folder.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        for name in args.models:
            export(args.folder, name, args.device, args.samples)


if __name__ == "__main__":
    main()
