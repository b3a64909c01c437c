"""The step that sets nothing but addresses: how often the network is valid where the closed side is, over so many NICs."""

import json

from . import state
from .models import MODELS, configs, server_engine
from .processes import Accelerator, cpu_of, frontend, short
from .speed import closed_offline, latency_ms


def rails(model):
    """Closed and network at the closed peak and one step above, in turns; network over each number of NICs in `rails`, or with what
    an entry {name, nics, keys, node} says of them beside. The keys `rails`, `rail_runs`, `closed_every`, `search`, `search_s` and
    `step` of gpuround/models.py, or of --set, say how much of it; `rates` names the rates, and nothing is searched for then."""
    m = MODELS[model]
    engine = server_engine(model, m["server"], m.get("server_threads", m["threads"]))
    count = iter(range(10_000))
    out = {"search": [], "runs": []}

    def one(f, side, rate, accelerator=None, seconds=None):
        before = cpu_of(accelerator.process) if accelerator else 0
        more = ("--scenario", "server", "--duration-s", seconds or state.args.seconds, "--target-qps", round(rate))
        s = frontend(f, f"rails-{model}-{side}-{next(count)}", *more, local=accelerator is None)
        kept = {"side": side, "rate": round(rate), **short(s)}
        kept["p99_ms"] = latency_ms(kept)
        if accelerator:
            kept["accelerator_cpu_s"] = round(cpu_of(accelerator.process) - before, 1)
        state.say(json.dumps(kept)[:330])
        return kept

    f, _ = configs(model, f"rails-{model}-closed", engine)
    good, bad = 0.6 * closed_offline(model), closed_offline(model)
    for _ in range(0 if "rates" in m else m.get("search", 4)):
        rate = (good + bad) / 2
        kept = one(f, "closed", rate, seconds=m.get("search_s", 5))
        out["search"].append([kept["rate"], kept["valid"], kept["p99_ms"]])
        good, bad = (rate, bad) if kept["valid"] else (good, rate)
    rates = m.get("rates") or [good, good * (1 + m.get("step", 0.02))]
    out["rates"] = [round(r) for r in rates]
    for bare in m.get("rails", [1, 2, 4, 6]):
        name = f"network-{bare['name'] if isinstance(bare, dict) else bare}"
        addresses, a = configs(model, f"rails-{model}-{name}", engine, bare=bare)
        with Accelerator(a, f"rails-{model}-{name}") as accelerator:
            one(addresses, f"{name}-warm", rates[0] / 2, accelerator, 1)
            for turn in range(m.get("rail_runs", 5)):
                for rate in rates:
                    if state.left() < 2 * state.args.seconds + 15:
                        out["cut_short"] = True
                        continue
                    sides = [(f, "closed", None), (addresses, name, accelerator)]
                    for config, side, far in sides if turn % 2 else reversed(sides):
                        if far or turn % m.get("closed_every", 1) == 0:
                            out["runs"].append(one(config, side, rate, far))
    out["table"] = table(out["runs"])
    return out


def table(runs):
    """Of each side and rate: valid runs, all runs, p99 from the least to the most in ms, CPU seconds a run."""
    rows = {}
    for run in runs:
        rows.setdefault(f"{run['side']} at {run['rate']}", []).append(run)
    return {
        name: {
            "valid": sum(r["valid"] for r in of),
            "runs": len(of),
            "p99_ms": sorted(r["p99_ms"] for r in of),
            "cpu_s": round(sum(r["cpu_s"] + r.get("accelerator_cpu_s", 0) for r in of) / len(of), 1),
        }
        for name, of in rows.items()
    }
