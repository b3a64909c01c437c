#!/usr/bin/env python3
"""The whole round on a machine with a GPU: export, compare, measure. Prints one JSON.

    round.py --bin DIR [--data DIR] [--out DIR] [--seconds S] [--budget S] [--pairs N] STEP...

STEP, in any order:

    export:MODEL...   models/export_aoti.py for these models, all at once (commas between them); for resnet50-int8 and
                      resnet50-fp16, which engine tensorrt runs, models/export_tensorrt.py
    plan:MODEL        has the plan built, says how long it took, and starts once more with the plan that is kept
    answers:MODEL     every sample once, over the wire and --local: the same bytes? and against float32
    alone:MODEL       the engine by itself, by batch size
    offline:MODEL     network / closed in Offline, alternating
    tune:MODEL        closed Server at one rate with several batch sizes and worker counts; `server` uses the best
    server:MODEL      network / closed in Server: the closed peak by bisection, then both sides at 0.95 of it and one
                      bisection further, alternating
    rails:MODEL       Server with nothing set but addresses, over 1, 2, 4 and 6 NICs, and closed: how many runs are valid at the
                      closed peak and one step above
    copies:MODEL      copies a batch on the wire (contiguous slots) and --local (scattered samples)
    onnx:MODEL        ONNX Runtime on the GPU, --onnxruntime being a library of onnxruntime-gpu: answers over the wire against its
                      own on the CPU, and the engine by itself (digits; resnet50 with seeded weights)
    resident:MODEL    slots in the GPU's own memory beside slots in the host's: copies a batch, and the same answers?
    gpus:MODEL        Offline over the wire with one accelerator process on GPU 0, and on GPU 0 and 1; answers of both too
    two:MODEL         Offline over the wire with one accelerator on GPU 0, and with a second one on GPU 1
    errors            what cannot be: one line each, exit code 2; with :MODEL, for engine tensorrt

Models of engine tensorrt want --tensorrt and --shim.

DIR of --bin holds `frontend`, `accelerator`, and of the examples `engine_alone`, built elsewhere; nothing is built here. Frontend and
accelerator are two processes on disjoint cores, connected over TCP on loopback; --local is one process on all of these
cores. Both read the same frontend configuration; what they were told is in the JSON.

A step that fails says so in the JSON, and the next one goes on. Without --data and --out everything lies in target/gpu-round of the
repository: models, samples and plans in `data`, configurations, logs and what LoadGen wrote in `out`.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import time

from gpuround import agreement, building, processes, rails, refusals, several, speed, state
from gpuround.models import MODELS

HOME = state.REPOSITORY / "target/gpu-round"
STEPS = {
    f.__name__: f
    for f in (
        building.export, building.plan, agreement.answers, agreement.onnx, agreement.resident,
        speed.alone, speed.offline, speed.tune, speed.server, speed.copies, several.gpus, several.two, rails.rails,
        refusals.errors,
    )
}


def command_line():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--bin", type=pathlib.Path, required=True)
    arguments.add_argument("--data", type=pathlib.Path, default=HOME / "data", help="models, samples and plans")
    arguments.add_argument("--out", type=pathlib.Path, default=HOME / "out", help="configurations, logs, what LoadGen wrote")
    arguments.add_argument("--digits", type=pathlib.Path, default=state.REPOSITORY / ".deps/models", help="digits samples and labels")
    arguments.add_argument("--onnxruntime", type=pathlib.Path, default=None, help="libonnxruntime.so, for digits on the CPU")
    arguments.add_argument("--tensorrt", type=pathlib.Path, default=None, help="folder of libnvinfer.so")
    arguments.add_argument("--shim", type=pathlib.Path, default=None, help="libqdl_tensorrt.so")
    arguments.add_argument("--seconds", type=float, default=20, help="of each measured run")
    arguments.add_argument("--pairs", type=int, default=3, help="of network and closed runs")
    arguments.add_argument("--budget", type=float, default=540, help="seconds for everything; steps beyond it are left out")
    arguments.add_argument("--patience", type=float, default=300, help="seconds that a program may take to come up, and a plan to be built")
    arguments.add_argument("--set", action="append", default=[], metavar="MODEL.KEY=VALUE", help="replace a setting of gpuround/models.py")
    arguments.add_argument("steps", nargs="+", metavar="STEP")
    args = arguments.parse_args()
    unknown = [s for s in args.steps if s.partition(":")[0] not in STEPS]
    if unknown:
        arguments.error(f"no such step: {', '.join(unknown)}")
    for name in ("out", "bin", "digits", "data", "onnxruntime", "tensorrt", "shim"):
        path = getattr(args, name)
        setattr(args, name, path and path.resolve())
    for setting in args.set:
        where, value = setting.split("=", 1)
        model, key = where.split(".", 1)
        MODELS[model][key] = json.loads(value)
    return args


def environment(args):
    """Where the programs find PyTorch and TensorRT."""
    torch = importlib.util.find_spec("torch")
    if torch and torch.origin:
        os.environ.setdefault("QDL_TORCH", str(pathlib.Path(torch.origin).parent / "lib"))
    for key, path in (("QDL_TENSORRT", args.tensorrt), ("QDL_TENSORRT_SHIM", args.shim), ("QDL_PLANS", args.data / "plans")):
        if path:
            os.environ[key] = str(path)


def main():
    state.args = args = command_line()
    args.out.mkdir(parents=True, exist_ok=True)
    environment(args)
    result = {"machine": processes.machine(), "steps": state.steps}
    for step in args.steps:
        kind, _, model = step.partition(":")
        if state.left() < 5:
            state.steps[step] = {"left_out": "no time"}
            continue
        state.say("step", step)
        try:
            state.steps[step] = STEPS[kind](model) if model else STEPS[kind]()
        except Exception as e:  # The next step may well work.
            state.steps[step] = {"failed": f"{type(e).__name__}: {e}"[:800]}
        said = {k: v for k, v in state.steps[step].items() if k not in ("configuration", "accelerator", "difference")}
        state.say(step, json.dumps(said)[:1500])
        state.keep(result)
    result["seconds"] = round(time.time() - state.began)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
