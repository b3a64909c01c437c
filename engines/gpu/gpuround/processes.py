"""Frontend and accelerator as processes on cores of their own, and what their summaries say."""

import json
import os
import pathlib
import signal
import subprocess
import time

from . import state


def cores():
    """Cores of the frontend and of the accelerator."""
    mine = sorted(os.sched_getaffinity(0))
    half = len(mine) // 2
    return mine[:half], mine[half:]


def listed(some):
    return ",".join(map(str, some))


class Accelerator:
    """A running accelerator."""

    def __init__(self, config, tag, on=None):
        self.log = state.args.out / f"{tag}-accelerator.log"
        command = ["taskset", "-c", listed(on or cores()[1]), str(state.args.bin / "accelerator"), "--config", str(config)]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def __enter__(self):
        end = time.time() + state.args.patience
        while time.time() < end:
            text = self.log.read_text()
            if "ready: " in text:
                return self
            if self.process.poll() is not None:
                raise RuntimeError(f"accelerator ended with {self.process.returncode}: {text[-600:]}")
            time.sleep(0.05)
        self.__exit__()
        raise RuntimeError(f"accelerator not ready: {self.log.read_text()[-600:]}")

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def frontend(config, tag, *more, local=False, timeout=None):
    """A run; its summary, and what it cost in CPU seconds."""
    out = state.args.out / tag
    on = cores()[0] if not local else cores()[0] + cores()[1]
    command = ["taskset", "-c", listed(on), str(state.args.bin / "frontend"), "--config", str(config), "--output", str(out), "--quiet"]
    command += ["--local"] * local + [str(a) for a in more]
    before = os.times()
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=timeout or state.args.seconds * 2 + state.args.patience)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{tag}: the frontend did not end in time") from None
    after = os.times()
    summary = out / "summary.json"
    if not summary.exists():
        raise RuntimeError(f"{tag}: exit {run.returncode}: {(run.stderr or run.stdout)[-600:]}")
    s = json.loads(summary.read_text())
    s["cpu_s"] = round(after.children_user + after.children_system - before.children_user - before.children_system, 1)
    s["said"] = run.stderr[-300:]
    return s


def cpu_of(process):
    """CPU seconds of a running process so far."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def short(s):
    """What of a summary the round keeps."""
    stages = s.get("stages") or {}
    p99 = {k: v.get("p99_us") for k, v in stages.items()} if isinstance(stages, dict) else stages
    kept = {
        "valid": s["valid"], "per_s": round(s["per_s"], 1), "samples": s["samples"], "seconds": round(s["duration_s"], 2),
        "gbyte_per_s": round(s["carried"]["gbit_out_per_s"] / 8, 3), "cpu_s": s["cpu_s"], "p99_us": p99,
        "exit": s["exit"]["code"],
    }
    if not s["valid"]:
        kept["reasons"] = s["reasons"][:2] or s["exit"]["reason"]
    for a in s["accelerators"]:
        sizes = a["batches"]
        total = sum(sizes.values()) or 1
        kept["batches"] = {"count": total, "mean": round(sum(int(k) * v for k, v in sizes.items()) / total, 1)}
        for g in a.get("gpus", []):
            n = sum(g["batches"].values()) or 1
            kept["gpu"] = {
                "copies_per_batch": round(g["copies_in"] / n, 2), "copy_in_ms": round(g["copy_in_us"] / n / 1e3, 3),
                "compute_ms": round(g["compute_us"] / n / 1e3, 3), "copy_out_ms": round(g["copy_out_us"] / n / 1e3, 3),
                "gbyte_in": round(g["bytes_in"] / 1e9, 2), "padded": g["padded"],
                "graphs": g.get("graphs", 0), "batches": n,
            }
    return kept


def answered(tag):
    """Responses by sample, from LoadGen's accuracy log."""
    log = json.loads((state.args.out / tag / "mlperf_log_accuracy.json").read_text())
    return {e["qsl_idx"]: e["data"] for e in log}


def refusal(config, environment=None):
    """Exit code, time and last line of an accelerator that ought to refuse."""
    began = time.time()
    command = [str(state.args.bin / "accelerator"), "--config", str(config)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    except subprocess.TimeoutExpired:
        return {"code": "no end after 60 s"}
    lines = run.stderr.strip().splitlines()
    return {"code": run.returncode, "s": round(time.time() - began, 1), "line": lines[-1:], "before": lines[:-1][:3], "lines": len(lines)}


def machine():
    def out(*command):
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()
        except (OSError, subprocess.TimeoutExpired) as e:
            return str(e)

    return {
        "gpu": out("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
        "cores": {"frontend": listed(cores()[0]), "accelerator": listed(cores()[1]), "local": "all of these"},
        "kernel": os.uname().release,
    }
