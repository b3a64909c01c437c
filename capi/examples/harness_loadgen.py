#!/usr/bin/env python3
"""A harness in Python: LoadGen's own package (`pip install mlcommons-loadgen`) over accelerators.

    harness_loadgen.py CONFIG SAMPLES.npy OUT [--scenario Server] [--accuracy] [--tokens] [--KEY N]

CONFIG is a frontend's YAML; a row of SAMPLES.npy is a sample; OUT gets LoadGen's logs.
"""

import argparse
import json
import threading

import mlperf_loadgen as lg
import numpy as np

import qdl


def arguments():
    parser = argparse.ArgumentParser()
    for name in ["config", "samples", "out"]:
        parser.add_argument(name)
    parser.add_argument("--scenario", default="Offline")
    parser.add_argument("--accuracy", action="store_true")
    parser.add_argument("--tokens", action="store_true", help="measure first tokens")
    for name, default in [("qps", 1000), ("ms", 1000), ("queries", 1), ("limit_ms", 1000)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def main():
    args = arguments()
    samples = np.load(args.samples)
    size = samples[0].nbytes
    cluster = qdl.Cluster(args.config)
    cluster.register(samples)
    cluster.connect([0], [size])
    failed, ended = [], threading.Event()

    def issue(ids, indices):
        cluster.issue(ids, np.asarray(indices, np.uint64) * size, size)

    def responses(events, which, bytes_each=None):
        lengths = events.lengths[which] if bytes_each is None else np.minimum(events.lengths[which], bytes_each)
        columns = events.ids[which], events.array["data"][which], lengths, lengths // 4
        return [lg.QuerySampleResponse(*row) for row in zip(*(column.tolist() for column in columns))]

    def complete():
        while not ended.is_set():
            events = cluster.poll(8192, 0.1)
            if args.tokens and (first := (events.flags & qdl.FIRST) != 0).any():
                lg.FirstTokenComplete(responses(events, first, 4))
            if (done := events.kinds != qdl.PART).any():
                lg.QuerySamplesComplete(responses(events, done))
            failed.extend(events.reason(i) for i in np.flatnonzero(events.kinds == qdl.FAILED))

    settings = lg.TestSettings()
    settings.scenario = getattr(lg.TestScenario, args.scenario)
    settings.mode = lg.TestMode.AccuracyOnly if args.accuracy else lg.TestMode.PerformanceOnly
    settings.offline_expected_qps = settings.server_target_qps = args.qps
    settings.server_target_latency_ns = settings.ttft_latency = settings.tpot_latency = args.limit_ms * 10**6
    settings.use_token_latencies = args.tokens
    settings.min_duration_ms, settings.min_query_count, logs = args.ms, args.queries, lg.LogSettings()
    logs.log_output.outdir = args.out
    poller = threading.Thread(target=complete)
    poller.start()
    sut = lg.ConstructFastSUT(issue, lambda: None)
    qsl = lg.ConstructQSL(len(samples), len(samples), lambda indices: None, lambda indices: None)
    lg.StartTestWithLogSettings(sut, qsl, settings, logs, "")
    ended.set()
    poller.join()
    name = cluster.name()
    cluster.finish()
    print(json.dumps({"name": name, "failed": failed[:3], "ledger": cluster.record()["ledger"]}))
    lg.DestroyQSL(qsl)
    lg.DestroyFastSUT(sut)


if __name__ == "__main__":
    main()
