"""Steps on two GPUs."""

import json
import os

from . import state
from .models import MODELS, configs, engine
from .processes import Accelerator, answered, cpu_of, frontend, short


def gpus(model):
    """One accelerator process. Its NICs are doubled with its GPUs, half of them for each."""
    m = MODELS[model]
    mine = sorted(os.sched_getaffinity(0))
    half = len(mine) // 2
    out = {"runs": []}
    for turn, count in enumerate((1, 2, 2, 1)[: 4 if state.left() > 6 * state.args.seconds else 2]):
        text = engine(model, m["offline"], m["threads"], max_delay_us=20000, gpus=list(range(count)))
        f, a = configs(model, f"gpus-{model}-{turn}", text, port=7960)
        nics = [f"  - {{listen: 127.0.0.1:{7961 + i}, gpu: {i % count}}}\n" for i in range(m["nics"] * count)]
        head, tail = a.read_text().split("nics:\n")
        a.write_text(head + "nics:\n" + "".join(nics) + "memory_mib: 32768\n")
        nic = next(line for line in f.read_text().splitlines(True) if "address: 127.0.0.1" in line)
        f.write_text(f.read_text().replace(nic * m["nics"], nic * m["nics"] * count))
        with Accelerator(a, f"gpus-{model}-{turn}", on=mine[half:]) as accelerator:
            before = cpu_of(accelerator.process)
            s = frontend(f, f"gpus-{model}-{turn}", "--scenario", "offline", "--duration-s", state.args.seconds,
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
        state.say(json.dumps(kept)[:400])
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
        1: state.write(f"two-{model}-frontend-1.yaml", one),
        2: state.write(f"two-{model}-frontend-2.yaml", one.replace("[{control: 127.0.0.1:7900}]", "[{control: 127.0.0.1:7900}, {control: 127.0.0.1:7920}]")),
    }
    out = {"nic": nic.strip(), "runs": []}
    try:
        for i, a in enumerate(accelerators):
            node = Accelerator(a, f"two-{model}-{i}", on=mine[(2 + i) * quarter : (3 + i) * quarter])
            running.append(node)
            node.__enter__()
        for turn, count in enumerate((1, 2, 2, 1)):
            rate = m["qps"] * count
            s = frontend(frontends[count], f"two-{model}-{turn}", "--scenario", "offline", "--duration-s", state.args.seconds,
                         "--set", f"offline_expected_qps={rate}")
            kept = {"gpus": count, **short(s), "each": [sum(int(k) * v for k, v in a["batches"].items()) for a in s["accelerators"]]}
            state.say(json.dumps(kept)[:260])
            out["runs"].append(kept)
    finally:
        for node in running:
            node.__exit__()
    mean = lambda n: sum(r["per_s"] for r in out["runs"] if r["gpus"] == n) / max(1, sum(r["gpus"] == n for r in out["runs"]))
    out["two_over_one"] = round(mean(2) / mean(1), 4)
    return out
