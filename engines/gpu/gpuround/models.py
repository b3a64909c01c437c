"""The models, and the configurations of frontend and accelerator that a run of one of them has."""

import json

from . import state

# What differs between the models' runs. A batch of `exact` samples is what answers are compared at.
MODELS = {
    "digits": dict(
        inputs=["{name: pixels, dtype: u8, shape: [64]}"],
        output="{name: class, dtype: i64, shape: [1]}",
        exact=64, offline=512, server=64, threads=2, tries=[(64, 2)], nics=1, connections=2, slots=1024, qps=200000, limit_ms=5, delay_us=500,
    ),
    "resnet50": dict(
        inputs=["{name: image, dtype: u8, shape: [224, 224, 3]}"],
        output="{name: class, dtype: i64, shape: [1]}",
        exact=64, offline=512, server=128, threads=3, tries=[(128, 2), (96, 2), (96, 3), (64, 3), (160, 2)], nics=4, connections=2, slots=512, qps=34000, limit_ms=15, delay_us=2000,
    ),
    # 11.5 GB/s take more rails than 4.8, and batches are over sooner.
    "resnet50-int8": dict(
        kind="tensorrt", engine=dict(precision="int8", profiles=[64, 512]),
        inputs=["{name: image, dtype: i8, shape: [3, 224, 224]}"],
        output="{name: class, dtype: i64, shape: [1]}",
        exact=64, offline=512, server=256, threads=3, tries=[(256, 2), (192, 3), (256, 3)], nics=6, connections=2, slots=512, qps=80000, limit_ms=15, delay_us=2000,
    ),
    "resnet50-int8-pixels": dict(
        kind="tensorrt", engine=dict(precision="int8", profiles=[512]),
        inputs=["{name: image, dtype: u8, shape: [3, 224, 224]}"],
        output="{name: class, dtype: i64, shape: [1]}",
        exact=64, offline=512, server=256, threads=3, tries=[(256, 2), (192, 3)], nics=6, connections=2, slots=512, qps=80000, limit_ms=15, delay_us=2000,
    ),
    "resnet50-fp16": dict(
        kind="tensorrt", engine=dict(precision="fp16", profiles=[512]),
        inputs=["{name: image, dtype: u8, shape: [3, 224, 224]}"],
        output="{name: class, dtype: i64, shape: [1]}",
        exact=64, offline=512, server=128, threads=3, tries=[(128, 2), (128, 3), (192, 2)], nics=4, connections=2, slots=512, qps=42000, limit_ms=15, delay_us=2000,
    ),
    "bert": dict(
        inputs=[
            "{name: input_ids, dtype: i64, shape: [384], ragged: true}",
            "{name: input_mask, dtype: i64, shape: [384], ragged: true}",
            "{name: segment_ids, dtype: i64, shape: [384], ragged: true}",
        ],
        output="{name: logits, dtype: f32, shape: [384, 2]}",
        exact=32, offline=128, server=32, threads=2, tries=[(32, 2), (64, 2)], nics=1, connections=4, slots=256, qps=2000, limit_ms=130, delay_us=5000,
    ),
}


def engine(model, batch, threads, **more):
    m = MODELS[model]
    own = m.get("engine", {})
    parts = {"kind": m.get("kind", "aoti"), "max_batch": batch, "threads": threads, "max_delay_us": m["delay_us"], **own, **more}
    return "{" + ", ".join(f"{k}: {json.dumps(v) if isinstance(v, list) else v}" for k, v in parts.items()) + "}"


def listed_sizes(batch):
    """Sizes of batches in Server: whatever plans for a size has met each of them before the first sample."""
    step = max(batch // 8, 4)
    return [1, *range(step, batch + 1, step)]


def server_engine(model, batch, threads):
    m = MODELS[model]
    return engine(model, batch, threads, batch_sizes=listed_sizes(batch), latency_us=int(m["limit_ms"] * 1000))


def data_files(model):
    """The lines of `dataset` for a frontend."""
    if model == "digits":
        return f"kind: raw, samples: {state.args.digits}/digits.samples.u8, labels: {state.args.digits}/digits.labels.i64"
    lengths = state.args.data / f"{model}.lengths.u32"
    more = f", lengths: {lengths}" if lengths.exists() else ""
    return f"kind: raw, samples: {state.args.data}/{model}.samples.bin{more}"


def configs(model, tag, engine_text, file=None, port=7900, bare=None):
    """Paths of the two configurations. The frontend's is read by the network run and by the closed one. `bare` is a number of
    NICs of which nothing is said but their addresses, or has `nics`, `keys` of each on both sides and keys of both `node`s."""
    m = MODELS[model]
    nics, node = m["nics"], ""
    near = f", connections: {m['connections']}, slots: {m['slots']}"
    far = ""
    if bare:
        bare = bare if isinstance(bare, dict) else {"nics": bare}
        nics, node = bare["nics"], bare.get("node", "")
        near = far = f", {bare['keys']}" if "keys" in bare else ""
    file = file or state.args.data / (f"{model}.onnx" if m.get("kind") == "tensorrt" else f"{model}.pt2")
    inputs = "\n".join(f"    - {i}" for i in m["inputs"])
    described = f"  name: {model}\n  inputs:\n{inputs}\n  output: {m['output']}\n"
    frontend = (
        f"node: {model}-frontend\nmodel:\n{described}dataset: {{{data_files(model)}}}\n"
        f"accelerators: [{{control: 127.0.0.1:{port}}}]\nnics:\n"
        + f"  - {{address: 127.0.0.1{near}}}\n" * nics
        + "loadgen:\n  settings:\n"
        f"    server_target_latency_ns: {int(m['limit_ms'] * 1e6)}\n"
        f"    server_target_latency_percentile: 0.99\n"
        f"    offline_expected_qps: {m['qps']}\n    server_target_qps: {m['qps']}\n"
        f"engine: {engine_text}\nmodel_file: {file}\n{node}\n"
    )
    accelerator = (
        f"node: {model}-gpu\ncontrol: {{listen: 127.0.0.1:{port}}}\n"
        f"model:\n  file: {file}\n{described}engine: {engine_text}\nnics:\n"
        + "".join(f"  - {{listen: 127.0.0.1:{port + 1 + i}{far}}}\n" for i in range(nics))
        + f"memory_mib: 16384\n{node}\n"
    )
    return state.write(f"{tag}-frontend.yaml", frontend), state.write(f"{tag}-accelerator.yaml", accelerator)
