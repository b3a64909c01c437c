#!/usr/bin/env python3
"""The whole round on a machine with a GPU: export, compare, measure. Prints one JSON.

    round.py --bin DIR [--data DIR] [--out DIR] [--seconds S] [--budget S] [--pairs N] STEP...

STEP, in any order:

    export:MODEL...   models/export_aoti.py for these models, all at once (commas between them); for resnet50-int8 and
                      resnet50-fp16, which engine tensorrt runs, models/export_tensorrt.py
    plan:MODEL        has the plan built, and says how long it took
    answers:MODEL     every sample once, over the wire and --local: the same bytes? and against float32
    alone:MODEL       the engine by itself, by batch size
    offline:MODEL     network / closed in Offline, alternating
    tune:MODEL        closed Server at one rate with several batch sizes and worker counts; `server` uses the best
    server:MODEL      network / closed in Server: the closed peak by bisection, then both sides at 0.95 of it and one
                      bisection further, alternating
    copies:MODEL      copies a batch on the wire (contiguous slots) and --local (scattered samples)
    onnx:MODEL        ONNX Runtime on the GPU, --onnxruntime being a library of onnxruntime-gpu: answers over the wire against its
                      own on the CPU, and the engine by itself (digits; resnet50 with seeded weights)
    resident:MODEL    slots in the GPU's own memory beside slots in the host's: copies a batch, and the same answers?
    gpus:MODEL        Offline over the wire with one accelerator process on GPU 0, and on GPU 0 and 1; answers of both too
    two:MODEL         Offline over the wire with one accelerator on GPU 0, and with a second one on GPU 1
    errors            what cannot be: one line each, exit code 2; with :MODEL, for engine tensorrt

Models of engine tensorrt want --tensorrt and --shim.

DIR of --bin holds `frontend`, `accelerator`, and of the examples `engine_alone` and `resident`, built elsewhere; nothing is built here. Frontend and
accelerator are two processes on disjoint cores, connected over TCP on loopback; --local is one process on all of these
cores. Both read the same frontend configuration; what they were told is in the JSON.

A step that fails says so in the JSON, and the next one goes on.
"""

import argparse
import difflib
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]

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

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
arguments.add_argument("--bin", type=pathlib.Path, required=True)
arguments.add_argument("--data", type=pathlib.Path, default=pathlib.Path("/tmp/qdl-gpu"))
arguments.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu-round"))
arguments.add_argument("--digits", type=pathlib.Path, default=REPOSITORY / ".deps/models", help="digits samples and labels")
arguments.add_argument("--onnxruntime", type=pathlib.Path, default=None, help="libonnxruntime.so, for digits on the CPU")
arguments.add_argument("--tensorrt", type=pathlib.Path, default=None, help="folder of libnvinfer.so")
arguments.add_argument("--shim", type=pathlib.Path, default=None, help="libqdl_tensorrt.so")
arguments.add_argument("--seconds", type=float, default=20, help="of each measured run")
arguments.add_argument("--pairs", type=int, default=3, help="of network and closed runs")
arguments.add_argument("--budget", type=float, default=540, help="seconds for everything; steps beyond it are left out")
arguments.add_argument("--set", action="append", default=[], metavar="MODEL.KEY=VALUE", help="replace a setting of MODELS")
arguments.add_argument("steps", nargs="+")
ARGS = arguments.parse_args()
BEGAN = time.time()
RESULT = {"steps": {}}


def left():
    return ARGS.budget - (time.time() - BEGAN)


def say(*what):
    print(f"[{time.time() - BEGAN:6.1f}]", *what, file=sys.stderr, flush=True)


def cores():
    """Cores of the frontend and of the accelerator."""
    mine = sorted(os.sched_getaffinity(0))
    half = len(mine) // 2
    return mine[:half], mine[half:]


def listed(some):
    return ",".join(map(str, some))


def engine(model, batch, threads, **more):
    m = MODELS[model]
    own = m.get("engine", {})
    parts = {"kind": m.get("kind", "aoti"), "max_batch": batch, "threads": threads, "max_delay_us": m["delay_us"], **own, **more}
    return "{" + ", ".join(f"{k}: {json.dumps(v) if isinstance(v, list) else v}" for k, v in parts.items()) + "}"


def write(name, text):
    path = ARGS.out / name
    path.write_text(text)
    return path


def data_files(model):
    """The lines of `dataset` for a frontend."""
    if model == "digits":
        return f"kind: raw, samples: {ARGS.digits}/digits.samples.u8, labels: {ARGS.digits}/digits.labels.i64"
    lengths = ARGS.data / f"{model}.lengths.u32"
    more = f", lengths: {lengths}" if lengths.exists() else ""
    return f"kind: raw, samples: {ARGS.data}/{model}.samples.bin{more}"


def configs(model, tag, engine_text, file=None, port=7900):
    """Paths of the two configurations. The frontend's is read by the network run and by the closed one."""
    m = MODELS[model]
    file = file or ARGS.data / (f"{model}.onnx" if m.get("kind") == "tensorrt" else f"{model}.pt2")
    inputs = "\n".join(f"    - {i}" for i in m["inputs"])
    described = f"  name: {model}\n  inputs:\n{inputs}\n  output: {m['output']}\n"
    frontend = (
        f"node: {model}-frontend\nmodel:\n{described}dataset: {{{data_files(model)}}}\n"
        f"accelerators: [{{control: 127.0.0.1:{port}}}]\nnics:\n"
        + "".join(
            f"  - {{address: 127.0.0.1, connections: {m['connections']}, slots: {m['slots']},"
            f" post_from_issue_thread_up_to: 16384}}\n"
            for _ in range(m["nics"])
        )
        + "loadgen:\n  settings:\n"
        f"    server_target_latency_ns: {int(m['limit_ms'] * 1e6)}\n"
        f"    server_target_latency_percentile: 0.99\n"
        f"    offline_expected_qps: {m['qps']}\n    server_target_qps: {m['qps']}\n"
        f"engine: {engine_text}\nmodel_file: {file}\n"
    )
    accelerator = (
        f"node: {model}-gpu\ncontrol: {{listen: 127.0.0.1:{port}}}\n"
        f"model:\n  file: {file}\n{described}engine: {engine_text}\nnics:\n"
        + "".join(f"  - {{listen: 127.0.0.1:{port + 1 + i}}}\n" for i in range(m["nics"]))
        + "memory_mib: 16384\n"
    )
    return write(f"{tag}-frontend.yaml", frontend), write(f"{tag}-accelerator.yaml", accelerator)


class Accelerator:
    """A running accelerator."""

    def __init__(self, config, tag, on=None):
        self.log = ARGS.out / f"{tag}-accelerator.log"
        command = ["taskset", "-c", listed(on or cores()[1]), str(ARGS.bin / "accelerator"), "--config", str(config)]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def __enter__(self):
        end = time.time() + 120
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
    out = ARGS.out / tag
    on = cores()[0] if not local else cores()[0] + cores()[1]
    command = ["taskset", "-c", listed(on), str(ARGS.bin / "frontend"), "--config", str(config), "--output", str(out), "--quiet"]
    command += ["--local"] * local + [str(a) for a in more]
    before = os.times()
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=timeout or ARGS.seconds * 2 + 60)
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
            }
    return kept


def export(models):
    ARGS.data.mkdir(parents=True, exist_ok=True)
    ours = [m for m in models.split(",") if MODELS[m].get("kind") == "tensorrt"]
    if ours:
        command = [sys.executable, str(REPOSITORY / "models/export_tensorrt.py"), "--samples", "1024", str(ARGS.data)]
        began = time.time()
        run = subprocess.run([*command, *(m.split("-", 1)[1] for m in ours)], capture_output=True, text=True, timeout=max(left(), 1))
        return {"code": run.returncode, "s": round(time.time() - began), "said": (run.stdout.splitlines() or run.stderr.splitlines())[-4:]}
    script = REPOSITORY / "models/export_aoti.py"
    counts = {"digits": 64, "resnet50": 1024, "bert": 512}
    running, out = {}, {}
    for model in models.split(","):
        log = open(ARGS.out / f"export-{model}.log", "w")
        command = [sys.executable, str(script), "--samples", str(counts.get(model, 64)), str(ARGS.data), model]
        running[model] = (subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT), time.time())
    for model, (process, began) in running.items():
        try:
            code = process.wait(max(left(), 1))
        except subprocess.TimeoutExpired:
            process.kill()
            code = "too long"
        text = (ARGS.out / f"export-{model}.log").read_text()
        lines = [line for line in text.splitlines() if line.startswith(str(ARGS.data))]
        out[model] = {"code": code, "said": (lines or text.splitlines()[-3:])[-3:]}
    return out


def plan(model):
    """Starts the engine once, which builds the plan where there is none."""
    m = MODELS[model]
    _, a = configs(model, f"plan-{model}", engine(model, max(m["engine"]["profiles"]), 1))
    began = time.time()
    run = subprocess.run([str(ARGS.bin / "engine_alone"), str(a), "0.1"], capture_output=True, text=True, timeout=max(left(), 1))
    out = {"code": run.returncode, "s": round(time.time() - began, 1)}
    plans = pathlib.Path(os.environ["QDL_PLANS"])
    if run.returncode == 0:
        out["plans"] = {p.name: p.stat().st_size for p in sorted(plans.glob("*.plan"))}
    else:
        logs = [p.read_text()[-1500:] for p in sorted(plans.glob("*.log"))]
        out.update(said=run.stderr[-800:], logs=logs)
    return out


def answered(tag):
    """Responses by sample, from LoadGen's accuracy log."""
    log = json.loads((ARGS.out / tag / "mlperf_log_accuracy.json").read_text())
    return {e["qsl_idx"]: e["data"] for e in log}


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
        onnx = f"{{kind: onnx, max_batch: 64" + (f", library: {ARGS.onnxruntime}" if ARGS.onnxruntime else "") + "}"
        f, a = configs(model, "answers-digits-onnx", onnx, file=REPOSITORY / "models/digits.onnx", port=7950)
        cpu = frontend(f, "answers-digits-onnx", "--mode", "accuracy", "--scenario", "offline", local=True)
        z = answered("answers-digits-onnx")
        out["onnx_cpu"] = {"accuracy": cpu["accuracy"], "same_predictions": sum(z[k] == x.get(k) for k in z)}
        return out
    reference = np.load(ARGS.data / f"{model}.reference.npy")
    kind = "<f4" if model == "bert" else "<i8"
    got = np.stack([np.frombuffer(bytes.fromhex(y[i]), kind).reshape(reference.shape[1:]) for i in range(len(reference))])
    if model != "bert":
        out["same_argmax_as_float32"] = float((got == reference).mean())
        out["classes_in_reference"] = int(len(np.unique(reference)))
    else:
        lengths = np.fromfile(ARGS.data / f"{model}.lengths.u32", "<u4") // 24
        keep = np.arange(reference.shape[1])[None, :] < lengths[:, None]
        d, r = got[keep].astype(np.float64) - reference[keep], reference[keep].astype(np.float64)
        out["relative_error_to_float32"] = float(np.linalg.norm(d) / np.linalg.norm(r))
        out["whole_length_error"] = float(np.linalg.norm(got.astype(np.float64) - reference) / np.linalg.norm(reference.astype(np.float64)))
    return out


def alone(model):
    m = MODELS[model]
    _, a = configs(model, f"alone-{model}", engine(model, m["offline"], m["threads"]))
    sizes = sorted({1, 8, 32, m["server"], m["offline"]})
    command = ["taskset", "-c", listed(cores()[0] + cores()[1]), str(ARGS.bin / "engine_alone"), str(a), str(min(2.5, ARGS.seconds)), *map(str, sizes)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    rates = {}
    for line in run.stdout.splitlines():
        r = json.loads(line)
        rates[r["batch"]] = r["samples_per_s"]
    return rates if run.returncode == 0 else {"code": run.returncode, "said": run.stderr[-600:], **rates}


def pairs(model, scenario, one):
    """`one(tag, local, accelerator)` gives a summary; closed and network take turns."""
    out = {"closed": [], "network": []}
    for i in range(ARGS.pairs):
        for local in (True, False) if i % 2 == 0 else (False, True):
            if left() < ARGS.seconds * 1.5 + 10:
                out["cut_short"] = True
                return out
            key = "closed" if local else "network"
            out[key].append(one(f"{scenario}-{model}-{key}-{i}", local))
            say(scenario, model, key, json.dumps(out[key][-1])[:200])
    return out


def ratio(out):
    closed, network = [sorted(r["per_s"] for r in out[k]) for k in ("closed", "network")]
    if closed and network:
        median = lambda x: x[len(x) // 2] if len(x) % 2 else (x[len(x) // 2 - 1] + x[len(x) // 2]) / 2
        out["network_over_closed"] = round(median(network) / median(closed), 4)
        out["closed_spread"] = round((closed[-1] - closed[0]) / median(closed), 4)
        out["network_spread"] = round((network[-1] - network[0]) / median(network), 4)
    return out


def offline(model):
    m = MODELS[model]
    text = engine(model, m["offline"], m["threads"], max_delay_us=20000)
    f, a = configs(model, f"offline-{model}", text)
    more = ("--scenario", "offline", "--duration-s", ARGS.seconds, "--set", f"offline_expected_qps={m['qps']}")
    with Accelerator(a, f"offline-{model}") as accelerator:
        def one(tag, local):
            before = cpu_of(accelerator.process)
            s = frontend(f, tag, *more, local=local)
            kept = short(s)
            if not local:
                kept["accelerator_cpu_s"] = round(cpu_of(accelerator.process) - before, 1)
            return kept

        # One short run of each before anything counts.
        warm = ("--scenario", "offline", "--duration-s", 1, "--set", f"offline_expected_qps={m['qps']}", "--set", "min_query_count=1")
        for local in (True, False):
            frontend(f, f"offline-{model}-warm-{local}", *warm, local=local)
        out = ratio(pairs(model, "offline", one))
    out["configuration"] = f.read_text()
    out["accelerator"] = a.read_text()
    out["difference"] = difference(f, a, *more)
    return out


def listed_sizes(batch):
    """Sizes of batches in Server: whatever plans for a size has met each of them before the first sample."""
    step = max(batch // 8, 4)
    return [1, *range(step, batch + 1, step)]


def server_engine(model, batch, threads):
    m = MODELS[model]
    return engine(model, batch, threads, batch_sizes=listed_sizes(batch), latency_us=int(m["limit_ms"] * 1000))


def closed_offline(model):
    runs = RESULT["steps"].get(f"offline:{model}", {}).get("closed") or []
    return sorted(r["per_s"] for r in runs)[len(runs) // 2] if runs else MODELS[model]["qps"] * 0.85


def latency_ms(kept):
    return round(kept["p99_us"].get("total", 0) / 1000, 2)


def tune(model):
    m = MODELS[model]
    rate = round(0.88 * closed_offline(model))
    out = {"rate": rate, "p99_ms": {}}
    for batch, threads in m["tries"]:
        f, _ = configs(model, f"tune-{model}-{batch}-{threads}", server_engine(model, batch, threads))
        s = frontend(f, f"tune-{model}-{batch}-{threads}", "--scenario", "server", "--duration-s", 4, "--target-qps", rate, local=True)
        out["p99_ms"][f"{batch}x{threads}"] = latency_ms(short(s))
    best = min(out["p99_ms"], key=out["p99_ms"].get)
    m["server"], m["server_threads"] = map(int, best.split("x"))
    out["best"] = best
    return out


def server(model):
    m = MODELS[model]
    threads = m.get("server_threads", m["threads"])
    f, a = configs(model, f"server-{model}", server_engine(model, m["server"], threads))
    offline_rate = closed_offline(model)
    out = {"closed_offline": offline_rate, "search": [], "runs": []}
    count = iter(range(1000))

    with Accelerator(a, f"server-{model}") as accelerator:
        def one(rate, local, seconds):
            before = cpu_of(accelerator.process)
            tag = f"server-{model}-{'closed' if local else 'network'}-{next(count)}"
            s = frontend(f, tag, "--scenario", "server", "--duration-s", seconds, "--target-qps", round(rate), local=local)
            kept = {"rate": round(rate), "side": "closed" if local else "network", **short(s)}
            kept["p99_ms"] = latency_ms(kept)
            if not local:
                kept["accelerator_cpu_s"] = round(cpu_of(accelerator.process) - before, 1)
            say(json.dumps(kept)[:260])
            return kept

        one(0.5 * offline_rate, False, 1)
        good, bad = 0.6 * offline_rate, 1.0 * offline_rate
        for _ in range(m.get("search", 4)):
            rate = (good + bad) / 2
            kept = one(rate, True, m.get("search_s", 6))
            out["search"].append([kept["rate"], kept["valid"], kept["p99_ms"]])
            good, bad = (rate, bad) if kept["valid"] else (good, rate)
        peak = good
        out["closed_peak"] = round(peak)
        best = {"closed": 0.0, "network": 0.0}
        rates = {"closed": 0.95 * peak, "network": 0.95 * peak}
        for turn in range(3):
            for side in ("closed", "network") if turn % 2 == 0 else ("network", "closed"):
                if left() < ARGS.seconds * 1.3 + 8:
                    out["cut_short"] = True
                    continue
                kept = one(rates[side], side == "closed", ARGS.seconds)
                out["runs"].append(kept)
                if kept["valid"]:
                    best[side] = max(best[side], rates[side])
                    rates[side] += 0.025 * peak
                else:
                    rates[side] -= 0.0125 * peak
        out["valid_at"] = {k: round(v) for k, v in best.items()}
        if best["closed"]:
            out["network_over_closed"] = round(best["network"] / best["closed"], 4)
    out["configuration"] = f.read_text()
    out["difference"] = difference(f, a, "--scenario", "server")
    return out


def copies(model):
    m = MODELS[model]
    f, a = configs(model, f"copies-{model}", engine(model, m["offline"], 1, max_delay_us=50000))
    more = ("--scenario", "offline", "--duration-s", 2, "--set", f"offline_expected_qps={m['qps']}")
    with Accelerator(a, f"copies-{model}"):
        wire = short(frontend(f, f"copies-{model}-wire", *more))
    return {"wire": wire.get("gpu"), "local": short(frontend(f, f"copies-{model}-local", *more, local=True)).get("gpu")}


def onnx(model):
    found = importlib.util.find_spec("nvidia")
    folders = [str(lib) for root in (found.submodule_search_locations if found else []) for lib in pathlib.Path(root).glob("*/lib")]
    os.environ["LD_LIBRARY_PATH"] = ":".join([*folders, os.environ.get("LD_LIBRARY_PATH", "")])
    library = f", library: {ARGS.onnxruntime}" if ARGS.onnxruntime else ""
    kept, file = MODELS[model], REPOSITORY / "models/digits.onnx"
    if model == "resnet50":
        file = ARGS.data / "resnet50.onnx"
        if not file.exists():
            subprocess.run([sys.executable, str(REPOSITORY / "models/resnet50.py"), str(ARGS.data)], check=True, capture_output=True, timeout=120)
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
        command = ["taskset", "-c", listed(cores()[0] + cores()[1]), str(ARGS.bin / "engine_alone"), str(a), "2", "1", "32", "128"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=90)
        out["alone"] = {r["batch"]: r["samples_per_s"] for r in map(json.loads, run.stdout.splitlines())} or run.stderr[-600:]
    finally:
        MODELS[model] = kept
    return out


def resident(model):
    """The program's own JSON, and how it ended."""
    _, a = configs(model, f"resident-{model}", engine(model, 128, 1, max_delay_us=50000))
    command = ["taskset", "-c", listed(cores()[0] + cores()[1]), str(ARGS.bin / "resident"), str(a), "50"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    lines = run.stdout.strip().splitlines()
    return {"code": run.returncode, **(json.loads(lines[-1]) if lines else {"said": run.stderr[-600:]})}


def difference(f, a, *more):
    """What differs between the closed run and the network's: of their command lines, and of what the two programs of the network
    were told about model and engine."""
    base = ["frontend", "--config", f.name, *map(str, more)]
    told = []
    for path, name in ((f, "model_file"), (a, "file")):
        lines = [line.strip() for line in path.read_text().splitlines()]
        kept = [line for line in lines if line.startswith(("engine:", f"{name}:", "- {name:", "output:"))]
        told.append(sorted(line.replace("model_file:", "file:") for line in kept))
    commands = difflib.unified_diff(base + ["--local"], base + ["and", "accelerator", "--config", a.name], "closed", "network", lineterm="", n=0)
    both = difflib.unified_diff(told[0], told[1], f.name, a.name, lineterm="", n=0)
    out = {"command_lines": list(commands), "model_and_engine": list(both) or "the same", "frontend_configuration": "one file"}
    say("difference", json.dumps(out))
    return out


def gpus(model):
    """One accelerator process. Its NICs are doubled with its GPUs, half of them for each."""
    m = MODELS[model]
    mine = sorted(os.sched_getaffinity(0))
    half = len(mine) // 2
    out = {"runs": []}
    for turn, count in enumerate((1, 2, 2, 1)[: 4 if left() > 6 * ARGS.seconds else 2]):
        text = engine(model, m["offline"], m["threads"], max_delay_us=20000, gpus=list(range(count)))
        f, a = configs(model, f"gpus-{model}-{turn}", text, port=7960)
        nics = [f"  - {{listen: 127.0.0.1:{7961 + i}, gpu: {i % count}}}\n" for i in range(m["nics"] * count)]
        head, tail = a.read_text().split("nics:\n")
        a.write_text(head + "nics:\n" + "".join(nics) + "memory_mib: 32768\n")
        nic = next(line for line in f.read_text().splitlines(True) if "address: 127.0.0.1" in line)
        f.write_text(f.read_text().replace(nic * m["nics"], nic * m["nics"] * count))
        with Accelerator(a, f"gpus-{model}-{turn}", on=mine[half:]) as accelerator:
            before = cpu_of(accelerator.process)
            s = frontend(f, f"gpus-{model}-{turn}", "--scenario", "offline", "--duration-s", ARGS.seconds,
                         "--set", f"offline_expected_qps={m['qps'] * count}")
            each = {}
            for g in s["accelerators"][0].get("gpus", []):
                n = sum(g["batches"].values())
                each[g["index"]] = {"samples": sum(int(k) * v for k, v in g["batches"].items()), "batches": n, "compute_ms": round(g["compute_us"] / max(n, 1) / 1e3, 2)}
            kept = {"gpus": count, **short(s), "each": each, "accelerator_cpu_s": round(cpu_of(accelerator.process) - before, 1)}
            kept.pop("gpu", None)
            if turn == 1:
                checked = frontend(f, f"gpus-{model}-accuracy", "--mode", "accuracy", "--scenario", "offline")
                out["checked"] = {"samples": checked["samples"], "exit": checked["exit"]["code"]}
                exact = frontend(f, f"gpus-{model}-local", "--mode", "accuracy", "--scenario", "offline", local=True)
                x, y = answered(f"gpus-{model}-accuracy"), answered(f"gpus-{model}-local")
                out["checked"].update(local=exact["samples"], same_bytes_wire_local=sum(x[k] == y.get(k) for k in x), samples=len(x))
        say(json.dumps(kept)[:400])
        out["runs"].append(kept)
    mean = lambda n: sum(r["per_s"] for r in out["runs"] if r["gpus"] == n) / max(1, sum(r["gpus"] == n for r in out["runs"]))
    out["two_over_one"] = round(mean(2) / max(mean(1), 1), 4)
    out["accelerator"] = a.read_text()
    return out


def two(model):
    """Each accelerator has a quarter of the cores, the frontend the other half; its NICs are doubled with the accelerators."""
    m = MODELS[model]
    mine = sorted(os.sched_getaffinity(0))
    quarter = len(mine) // 4
    accelerators, running = [], []
    text = [engine(model, m["offline"], m["threads"], max_delay_us=20000, gpu=i) for i in (0, 1)]
    for i in (0, 1):
        f, a = configs(model, f"two-{model}-{i}", text[i], port=7900 + 20 * i)
        a.write_text(a.read_text().replace(f"node: {model}-gpu", f"node: {model}-gpu-{i}"))
        accelerators.append(a)
    one = f.read_text().replace("control: 127.0.0.1:7920}", "control: 127.0.0.1:7900}")
    nic = next(line for line in one.splitlines(True) if "address: 127.0.0.1" in line)
    frontends = {
        1: write(f"two-{model}-frontend-1.yaml", one),
        2: write(f"two-{model}-frontend-2.yaml", one.replace("[{control: 127.0.0.1:7900}]", "[{control: 127.0.0.1:7900}, {control: 127.0.0.1:7920}]")),
    }
    out = {"nic": nic.strip(), "runs": []}
    try:
        for i, a in enumerate(accelerators):
            node = Accelerator(a, f"two-{model}-{i}", on=mine[(2 + i) * quarter : (3 + i) * quarter])
            running.append(node)
            node.__enter__()
        for turn, count in enumerate((1, 2, 2, 1)):
            rate = m["qps"] * count
            s = frontend(frontends[count], f"two-{model}-{turn}", "--scenario", "offline", "--duration-s", ARGS.seconds,
                         "--set", f"offline_expected_qps={rate}")
            kept = {"gpus": count, **short(s), "each": [sum(int(k) * v for k, v in a["batches"].items()) for a in s["accelerators"]]}
            say(json.dumps(kept)[:260])
            out["runs"].append(kept)
    finally:
        for node in running:
            node.__exit__()
    mean = lambda n: sum(r["per_s"] for r in out["runs"] if r["gpus"] == n) / max(1, sum(r["gpus"] == n for r in out["runs"]))
    out["two_over_one"] = round(mean(2) / mean(1), 4)
    return out


def refusal(config, environment=None):
    """Exit code, time and last line of an accelerator that ought to refuse."""
    began = time.time()
    command = [str(ARGS.bin / "accelerator"), "--config", str(config)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    except subprocess.TimeoutExpired:
        return {"code": "no end after 60 s"}
    lines = run.stderr.strip().splitlines()
    return {"code": run.returncode, "s": round(time.time() - began, 1), "line": lines[-1:], "before": lines[:-1][:3], "lines": len(lines)}


def errors_tensorrt(model):
    """Plans and libraries that cannot be, for a model of engine tensorrt whose plan has been built."""
    m = MODELS[model]
    good = next(p for p in sorted(pathlib.Path(os.environ["QDL_PLANS"]).glob(f"{model}*.plan")))
    bare = dict(m, engine={})
    cut = write("cut.plan", "")
    cut.write_bytes(good.read_bytes()[: good.stat().st_size // 2])
    broken = write("broken.plan", "this is no plan")
    onnx = write("broken.onnx", "this is no model")
    shapes = dict(bare, inputs=["{name: image, dtype: i8, shape: [3, 224, 225]}"])
    cases = {
        "not a plan": (bare, {}, broken, {}),
        "half a plan": (bare, {}, cut, {}),
        "not an ONNX model": (m, {}, onnx, {}),
        "other shapes": (shapes, {}, good, {}),
        "a batch beyond the profiles": (bare, {"max_batch": 4096}, good, {}),
        "out of memory": (bare, {"threads": 400}, good, {}),
        "no such GPU": (bare, {"gpu": 7}, good, {}),
        "no such precision": (dict(m, engine={"precision": "int4"}), {}, None, {}),
        "no GPU": (bare, {}, good, {"CUDA_VISIBLE_DEVICES": ""}),
        "no libnvinfer": (bare, {}, good, {"QDL_TENSORRT": "/nowhere"}),
        "no shim": (bare, {}, good, {"QDL_TENSORRT_SHIM": "/nowhere/libqdl_tensorrt.so"}),
    }
    out = {}
    for name, (described, more, file, environment) in cases.items():
        MODELS[model] = described
        tag = "error-" + name.replace(" ", "-")
        more = {"max_batch": 512, "threads": 1, **more}
        _, a = configs(model, tag, engine(model, more.pop("max_batch"), more.pop("threads"), **more), file=file)
        MODELS[model] = m
        out[name] = refusal(a, dict(os.environ, **environment))
    return out


def errors(model=None):
    """Each: exit code and the last line."""
    if model:
        return errors_tensorrt(model)
    out = {}
    broken = write("broken.pt2", "this is no archive")
    good = ARGS.data / "digits.pt2"
    text = engine("digits", 64, 1)
    wrong = dict(MODELS["digits"], inputs=["{name: pixels, dtype: u8, shape: [65]}"])
    cases = {
        "no such GPU": (engine("digits", 64, 1, gpu=7), good, None),
        "not a package": (text, broken, None),
        "other shapes": (text, good, wrong),
        "out of memory": (engine("resnet50", 65536, 24), ARGS.data / "resnet50.pt2", MODELS["resnet50"]),
    }
    kept = MODELS["digits"]
    for name, (engine_text, file, model) in cases.items():
        MODELS["digits"] = model or kept
        tag = "error-" + name.replace(" ", "-")
        _, a = configs("digits", tag, engine_text, file=file)
        MODELS["digits"] = kept
        out[name] = refusal(a)
    _, a = configs("digits", "error-hidden", text)
    out["no GPU"] = refusal(a, dict(os.environ, CUDA_VISIBLE_DEVICES=""))
    return out


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


def main():
    ARGS.out, ARGS.bin, ARGS.digits = ARGS.out.resolve(), ARGS.bin.resolve(), ARGS.digits.resolve()
    ARGS.data = ARGS.data.resolve()
    ARGS.onnxruntime = ARGS.onnxruntime and ARGS.onnxruntime.resolve()
    ARGS.out.mkdir(parents=True, exist_ok=True)
    for setting in ARGS.set:
        where, value = setting.split("=", 1)
        model, key = where.split(".", 1)
        MODELS[model][key] = json.loads(value)
    torch = importlib.util.find_spec("torch")
    if torch and torch.origin:
        os.environ.setdefault("QDL_TORCH", str(pathlib.Path(torch.origin).parent / "lib"))
    for key, path in (("QDL_TENSORRT", ARGS.tensorrt), ("QDL_TENSORRT_SHIM", ARGS.shim), ("QDL_PLANS", ARGS.data / "plans")):
        if path:
            os.environ[key] = str(path.resolve())
    RESULT["machine"] = machine()
    kinds = {f.__name__: f for f in (export, plan, answers, alone, offline, tune, server, copies, onnx, resident, gpus, two, errors)}
    for step in ARGS.steps:
        kind, _, model = step.partition(":")
        if left() < 5:
            RESULT["steps"][step] = {"left_out": "no time"}
            continue
        say("step", step)
        try:
            RESULT["steps"][step] = kinds[kind](model) if model else kinds[kind]()
        except Exception as e:  # The next step may well work.
            RESULT["steps"][step] = {"failed": f"{type(e).__name__}: {e}"[:800]}
        said = {k: v for k, v in RESULT["steps"][step].items() if k not in ("configuration", "accelerator", "difference")}
        say(step, json.dumps(said)[:1500])
        (ARGS.out / "round.json").write_text(json.dumps(RESULT, indent=1))
    RESULT["seconds"] = round(time.time() - BEGAN)
    print(json.dumps(RESULT))


if __name__ == "__main__":
    main()
