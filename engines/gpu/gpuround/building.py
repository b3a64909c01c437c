"""Steps that make what the others run: exported models and their samples, and plans."""

import os
import pathlib
import subprocess
import sys
import time

from . import state
from .models import MODELS, configs, engine


def export(models):
    state.args.data.mkdir(parents=True, exist_ok=True)
    ours = [m for m in models.split(",") if MODELS[m].get("kind") == "tensorrt"]
    if ours:
        command = [sys.executable, str(state.REPOSITORY / "models/export_tensorrt.py"), "--samples", "1024", str(state.args.data)]
        began = time.time()
        run = subprocess.run([*command, *(m.split("-", 1)[1] for m in ours)], capture_output=True, text=True, timeout=max(state.left(), 1))
        return {"code": run.returncode, "s": round(time.time() - began), "said": (run.stdout.splitlines() or run.stderr.splitlines())[-4:]}
    script = state.REPOSITORY / "models/export_aoti.py"
    counts = {"digits": 64, "resnet50": 1024, "bert": 512}
    running, out = {}, {}
    for model in models.split(","):
        log = open(state.args.out / f"export-{model}.log", "w")
        command = [sys.executable, str(script), "--samples", str(counts.get(model, 64)), str(state.args.data), model]
        running[model] = (subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT), time.time())
    for model, (process, began) in running.items():
        try:
            code = process.wait(max(state.left(), 1))
        except subprocess.TimeoutExpired:
            process.kill()
            code = "too long"
        text = (state.args.out / f"export-{model}.log").read_text()
        lines = [line for line in text.splitlines() if line.startswith(str(state.args.data))]
        out[model] = {"code": code, "said": (lines or text.splitlines()[-3:])[-3:]}
    return out


def plan(model):
    """Starts the engine once, which builds the plan where there is none, and once more, which finds it."""
    m = MODELS[model]
    _, a = configs(model, f"plan-{model}", engine(model, max(m["engine"]["profiles"]), 1))
    plans = pathlib.Path(os.environ["QDL_PLANS"])
    out = {"engine": m["engine"]}
    for turn in ("first", "second"):
        began = time.time()
        command = [str(state.args.bin / "engine_alone"), str(a), "0.1"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=max(min(state.left(), state.args.patience), 1))
        out[turn] = {"code": run.returncode, "s": round(time.time() - began, 1)}
        if run.returncode:
            logs = [p.read_text()[-1500:] for p in sorted(plans.glob("*.log"))]
            out[turn].update(said=run.stderr[-800:], logs=logs)
            return out
        out[turn]["files"] = {p.name: [p.stat().st_size, p.stat().st_mtime_ns] for p in sorted(plans.iterdir())}
    out["kept"] = out["first"]["files"] == out["second"]["files"]
    return out
