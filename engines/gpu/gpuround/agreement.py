"""Steps that compare answers: over the wire, --local, in float32, of another engine."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

from . import state
from .models import MODELS, configs, engine
from .processes import Accelerator, answered, cores, frontend, listed, short


def answers(model):
    import numpy as np

    m = MODELS[model]
    out = {}
    exact = engine(model, m["exact"], m["threads"], batch_sizes=[m["exact"]])
    f, a = configs(model, f"answers-{model}", exact)
    closed = frontend(f, f"answers-{model}-local", "--mode", "accuracy", "--scenario", "offline", local=True)
    with Accelerator(a, f"answers-{model}"):
        wire = frontend(f, f"answers-{model}-wire", "--mode", "accuracy", "--scenario", "offline")
    x, y = answered(f"answers-{model}-local"), answered(f"answers-{model}-wire")
    out["samples"] = len(x)
    out["same_bytes_wire_local"] = sum(x[k] == y.get(k) for k in x)
    out["different_answers"] = len(set(x.values()))
    out["copies_per_batch"] = {"wire": short(wire).get("gpu", {}).get("copies_per_batch"), "local": short(closed).get("gpu", {}).get("copies_per_batch")}
    if model == "digits":
        out["accuracy"] = {"wire": wire["accuracy"], "local": closed["accuracy"]}
        onnx = "{kind: onnx, max_batch: 64" + (f", library: {state.args.onnxruntime}" if state.args.onnxruntime else "") + "}"
        f, a = configs(model, "answers-digits-onnx", onnx, file=state.REPOSITORY / "models/digits.onnx", port=7950)
        cpu = frontend(f, "answers-digits-onnx", "--mode", "accuracy", "--scenario", "offline", local=True)
        z = answered("answers-digits-onnx")
        out["onnx_cpu"] = {"accuracy": cpu["accuracy"], "same_predictions": sum(z[k] == x.get(k) for k in z)}
        return out
    reference = np.load(state.args.data / f"{model}.reference.npy")
    kind = "<f4" if model == "bert" else "<i8"
    got = np.stack([np.frombuffer(bytes.fromhex(y[i]), kind).reshape(reference.shape[1:]) for i in range(len(reference))])
    if model != "bert":
        out["same_argmax_as_float32"] = float((got == reference).mean())
        out["classes_in_reference"] = int(len(np.unique(reference)))
    else:
        lengths = np.fromfile(state.args.data / f"{model}.lengths.u32", "<u4") // 24
        keep = np.arange(reference.shape[1])[None, :] < lengths[:, None]
        d, r = got[keep].astype(np.float64) - reference[keep], reference[keep].astype(np.float64)
        out["relative_error_to_float32"] = float(np.linalg.norm(d) / np.linalg.norm(r))
        out["whole_length_error"] = float(np.linalg.norm(got.astype(np.float64) - reference) / np.linalg.norm(reference.astype(np.float64)))
    return out


def onnx(model):
    found = importlib.util.find_spec("nvidia")
    folders = [str(lib) for root in (found.submodule_search_locations if found else []) for lib in pathlib.Path(root).glob("*/lib")]
    os.environ["LD_LIBRARY_PATH"] = ":".join([*folders, os.environ.get("LD_LIBRARY_PATH", "")])
    library = f", library: {state.args.onnxruntime}" if state.args.onnxruntime else ""
    kept, file = MODELS[model], state.REPOSITORY / "models/digits.onnx"
    if model == "resnet50":
        file = state.args.data / "resnet50.onnx"
        if not file.exists():
            subprocess.run([sys.executable, str(state.REPOSITORY / "models/resnet50.py"), str(state.args.data)], check=True, capture_output=True, timeout=120)
        MODELS[model] = dict(kept, inputs=["{name: image, dtype: u8, shape: [3, 224, 224]}"])

    def made(tag, text):
        f, a = configs(model, tag, text, file=file, port=7980)
        if model != "digits":
            line = next(line for line in f.read_text().splitlines(True) if line.startswith("dataset:"))
            f.write_text(f.read_text().replace(line, "dataset: {kind: random, count: 256}\n"))
        return f, a

    out = {}
    try:
        f, _ = made(f"onnx-{model}-cpu", f"{{kind: onnx, max_batch: 32, threads: 2, intra_threads: {len(cores()[0])}{library}}}")
        cpu = frontend(f, f"onnx-{model}-cpu", "--mode", "accuracy", "--scenario", "offline", local=True)
        cuda = f"{{kind: onnx, provider: cuda, max_batch: 128, threads: 2{library}}}"
        f, a = made(f"onnx-{model}-cuda", cuda)
        with Accelerator(a, f"onnx-{model}-cuda"):
            gpu = frontend(f, f"onnx-{model}-cuda", "--mode", "accuracy", "--scenario", "offline")
        x, y = answered(f"onnx-{model}-cpu"), answered(f"onnx-{model}-cuda")
        out["samples"], out["same_as_on_the_cpu"] = len(x), sum(x[k] == y.get(k) for k in x)
        out["different_answers"] = len(set(x.values()))
        out["accuracy"] = {"cpu": cpu.get("accuracy"), "cuda": gpu.get("accuracy")}
        out["wire"] = short(gpu).get("gpu")
        command = ["taskset", "-c", listed(cores()[0] + cores()[1]), str(state.args.bin / "engine_alone"), str(a), "2", "1", "32", "128"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=90)
        out["alone"] = {r["batch"]: r["samples_per_s"] for r in map(json.loads, run.stdout.splitlines())} or run.stderr[-600:]
    finally:
        MODELS[model] = kept
    return out


def resident(model):
    """Slots in the host's memory and in the GPU's, neighbours and every other one: copies, and the same answers?"""
    _, a = configs(model, f"resident-{model}", engine(model, 128, 1, max_delay_us=50000))
    command = ["taskset", "-c", listed(cores()[0] + cores()[1]), str(state.args.bin / "engine_alone"), str(a), "1", "128", "128/2", "gpu:128", "gpu:128/2"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    runs = [json.loads(line) for line in run.stdout.splitlines()]
    answers = [r["answers"] for r in runs]
    return {"code": run.returncode, "answers_equal": len(runs) == 4 and answers[:2] == answers[2:], "runs": runs or run.stderr[-600:]}
