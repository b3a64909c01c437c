"""A system under test as others write it: LoadGen's Python module, aiohttp, one streaming request
for each sample, the first token reported as soon as it is there.

    python sut.py --url http://127.0.0.1:8000 --scenario server --qps 50 --seconds 20 --out DIR

Tuned as far as the language allows: uvloop, one session without a limit of connections, ids both
ways, no text, chunks read line by line, JSON by orjson where it is installed. LoadGen's issue
thread hands queries to the event loop's thread; tokens are completed there.
"""
import argparse, array, asyncio, json, random, resource, threading, time

import aiohttp
import mlperf_loadgen as lg
import uvloop

try:
    from orjson import dumps, loads
except ImportError:
    from json import loads

    def dumps(value):
        return json.dumps(value).encode()


class Sut:
    def __init__(self, a, prompts):
        self.a, self.prompts = a, prompts
        self.loop = uvloop.new_event_loop()
        self.ready, self.tokens, self.errors = threading.Event(), 0, 0
        self.streaming = a.scenario == "server"
        threading.Thread(target=self.run, daemon=True).start()
        self.ready.wait()

    def run(self):
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self.open())
        self.ready.set()
        self.loop.run_forever()

    async def open(self):
        limit = aiohttp.TCPConnector(limit=0, force_close=False)
        timeout = aiohttp.ClientTimeout(total=None)
        self.session = aiohttp.ClientSession(connector=limit, timeout=timeout, read_bufsize=1 << 20)

    def issue(self, samples):
        work = [(s.id, s.index) for s in samples]
        self.loop.call_soon_threadsafe(self.begin, work)

    def begin(self, work):
        for id, index in work:
            self.loop.create_task(self.one(id, index))

    async def one(self, id, index):
        body = dumps(
            {
                "model": "m", "prompt": self.prompts[index], "stream": True, "temperature": 0,
                "max_tokens": self.a.tokens, "return_token_ids": True, "ignore_eos": True,
            }
        )
        ids, first = [], self.streaming
        try:
            url = self.a.url + "/v1/completions"
            head = {"content-type": "application/json"}
            async with self.session.post(url, data=body, headers=head) as answer:
                answer.raise_for_status()
                async for line in answer.content:
                    if not line.startswith(b"data: {"):
                        continue
                    for choice in loads(line[6:])["choices"]:
                        ids += choice["token_ids"] or ()
                    if first and ids:
                        self.complete(lg.FirstTokenComplete, id, ids[:1])
                        first = False
        except Exception as e:
            self.errors += 1
            print("error:", repr(e), flush=True)
        self.tokens += len(ids)
        self.complete(lg.QuerySamplesComplete, id, ids)

    def complete(self, call, id, ids):
        data = array.array("i", ids)
        at, _ = data.buffer_info()
        call([lg.QuerySampleResponse(id, at, 4 * len(ids), len(ids))])

    def flush(self):
        pass


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--url", required=True)
    p.add_argument("--scenario", choices=["server", "offline"], default="server")
    p.add_argument("--qps", type=float, default=50)
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--count", type=int, default=1024)
    p.add_argument("--prompt", type=int, default=128)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--ttft-ms", type=int, default=2000)
    p.add_argument("--tpot-ms", type=int, default=100)
    p.add_argument("--out", required=True)
    a = p.parse_args()
    dice = random.Random(1)
    prompts = [[dice.randrange(32000) for _ in range(a.prompt)] for _ in range(a.count)]
    sut = Sut(a, prompts)
    s = lg.TestSettings()
    s.mode = lg.TestMode.PerformanceOnly
    s.use_token_latencies = True
    s.min_duration_ms = int(1000 * a.seconds)
    if a.scenario == "server":
        s.scenario = lg.TestScenario.Server
        s.server_target_qps = a.qps
        s.ttft_latency = a.ttft_ms * 1_000_000
        s.tpot_latency = a.tpot_ms * 1_000_000
        s.min_query_count = 1
    else:
        s.scenario = lg.TestScenario.Offline
        s.offline_expected_qps = a.qps
        s.min_query_count = 1
    log = lg.LogSettings()
    log.log_output.outdir = a.out
    log.log_output.copy_summary_to_stdout = False
    log.enable_trace = False
    handle = lg.ConstructSUT(sut.issue, sut.flush)
    qsl = lg.ConstructQSL(a.count, a.count, lambda _: None, lambda _: None)
    began = time.monotonic()
    lg.StartTestWithLogSettings(handle, qsl, s, log)
    wall = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "wall_s": wall, "tokens": sut.tokens, "errors": sut.errors,
                "cpu_s": used.ru_utime + used.ru_stime,
            }
        ),
        flush=True,
    )


main()
