"""Steps that measure: the engine by itself, and network / closed in both scenarios."""

import difflib
import json
import subprocess

from . import state
from .models import MODELS, configs, engine, server_engine
from .processes import Accelerator, cores, cpu_of, frontend, listed, short


def alone(model):
    m = MODELS[model]
    _, a = configs(model, f"alone-{model}", engine(model, m["offline"], m["threads"]))
    sizes = sorted({1, 8, 32, m["server"], m["offline"]})
    command = ["taskset", "-c", listed(cores()[0] + cores()[1]), str(state.args.bin / "engine_alone"), str(a), str(min(2.5, state.args.seconds)), *map(str, sizes)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=state.args.patience)
    rates, graphs, before = {}, {}, 0
    for line in run.stdout.splitlines():
        r = json.loads(line)
        rates[r["batch"]] = r["samples_per_s"]
        # Counted since the start.
        launched = sum(g.get("graphs", 0) for g in r["gpus"])
        graphs[r["batch"]], before = launched - before, launched
    if any(graphs.values()):
        rates["batches_as_graphs"] = graphs
    return rates if run.returncode == 0 else {"code": run.returncode, "said": run.stderr[-600:], **rates}


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
    state.say("difference", json.dumps(out))
    return out


def pairs(model, scenario, one):
    """`one(tag, local, accelerator)` gives a summary; closed and network take turns."""
    out = {"closed": [], "network": []}
    for i in range(state.args.pairs):
        for local in (True, False) if i % 2 == 0 else (False, True):
            if state.left() < state.args.seconds * 1.5 + 10:
                out["cut_short"] = True
                return out
            key = "closed" if local else "network"
            out[key].append(one(f"{scenario}-{model}-{key}-{i}", local))
            state.say(scenario, model, key, json.dumps(out[key][-1])[:200])
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
    more = ("--scenario", "offline", "--duration-s", state.args.seconds, "--set", f"offline_expected_qps={m['qps']}")
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


def closed_offline(model):
    runs = state.steps.get(f"offline:{model}", {}).get("closed") or []
    return sorted(r["per_s"] for r in runs)[len(runs) // 2] if runs else MODELS[model]["qps"] * 0.85


def latency_ms(kept):
    return round(kept["p99_us"].get("total", 0) / 1000, 2)


def tune(model):
    m = MODELS[model]
    rate = round(0.88 * closed_offline(model))
    out = {"rate": rate, "p99_ms": {}, "gpu": {}}
    for batch, threads in m["tries"]:
        f, _ = configs(model, f"tune-{model}-{batch}-{threads}", server_engine(model, batch, threads))
        s = frontend(f, f"tune-{model}-{batch}-{threads}", "--scenario", "server", "--duration-s", 4, "--target-qps", rate, local=True)
        kept = short(s)
        out["p99_ms"][f"{batch}x{threads}"] = latency_ms(kept)
        out["gpu"][f"{batch}x{threads}"] = kept.get("gpu")
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
            state.say(json.dumps(kept)[:260])
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
                if state.left() < state.args.seconds * 1.3 + 8:
                    out["cut_short"] = True
                    continue
                kept = one(rates[side], side == "closed", state.args.seconds)
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
