"""What Python programs do wrong, one function a fault: `faults.py NAME`. tests/it/python.rs runs each."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np

import qdl

MODEL = {"name": "sums", "inputs": [{"name": "i", "dtype": "u8", "shape": [4096]}], "output": {"name": "o", "dtype": "i64", "shape": [1]}}


def node(fault="none", name="node"):
    """A node that answers with the sum of a sample's bytes, in this process."""
    config = {"node": name, "control": {"listen": "127.0.0.1:0"}, "model": MODEL, "nics": [{"listen": "127.0.0.1:0"}]}
    own = qdl.Node(dict(config, memory_mib=64))
    slow = threading.Event()

    def engine(arrivals):
        if fault == "sleep" and not slow.is_set():
            slow.set()
            time.sleep(5)
        if fault == "raise" and (arrivals.inputs()[:, 0] == 13).any():
            raise ZeroDivisionError("thirteen")
        return arrivals.inputs().sum(axis=1, dtype=np.int64)

    threading.Thread(target=own.serve, args=(engine, 1 if fault == "raise" else 64), daemon=True).start()
    return own


def child(name):
    """A node in a process of its own."""
    process = subprocess.Popen([sys.executable, __file__, "in_child", name], stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def in_child(name):
    print(node(name=name).address, flush=True)
    signal.pause()


def cluster(*addresses, rows=200):
    own = qdl.Cluster({"node": "f", "model": MODEL, "accelerators": [{"control": a} for a in addresses], "nics": [{"address": "127.0.0.1"}]})
    samples = np.repeat(np.arange(rows, dtype=np.uint8)[:, None], 4096, axis=1)
    own.register(samples)
    own.connect([0], [4096])
    return own, samples


def drain(own, n, most=60.0):
    """Events by id; fails unless each comes once and has the right sum."""
    found, end = {}, time.monotonic() + most
    while len(found) < n and time.monotonic() < end:
        events = own.poll()
        for i, id in enumerate(events.ids.tolist()):
            assert id not in found, f"sample {id} ended twice"
            is_done = events.kinds[i] == qdl.DONE
            found[id] = events.bytes(i).view(np.int64)[0] if is_done else events.reason(i)
            assert not is_done or found[id] == id % 200 * 4096, f"sample {id}: {found[id]}"
    assert len(found) == n, f"{len(found)} of {n} samples ended"
    return found


def issue(own, n):
    own.issue(np.arange(n), np.arange(n) % 200 * 4096, 4096)


def an_exception_refuses_its_samples_and_the_node_goes_on():
    own, _ = cluster(node("raise").address)
    issue(own, 50)
    found = drain(own, 50)
    assert found.pop(13) == "ZeroDivisionError: thirteen"
    assert not any(isinstance(answer, str) for answer in found.values())


def a_callback_that_sleeps_loses_nothing():
    own, _ = cluster(node("none").address, node("sleep", "other").address)
    issue(own, 400)
    drain(own, 400)
    assert own.counters()["ledger"]["lost_connections"] == 0


def an_array_in_flight_outlives_its_name():
    own, samples = cluster(node("sleep").address)
    issue(own, 200)
    try:
        samples.resize((1, 1))
    except ValueError:
        pass
    else:
        raise AssertionError("numpy has moved memory that is registered")
    del samples
    drain(own, 200)


def a_fork_is_refused_by_name():
    own, _ = cluster(node().address)
    child = os.fork()
    if child == 0:
        try:
            issue(own, 1)
        except qdl.QdlError as error:
            os._exit(0 if error.code == -5 and "is a fork of" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    issue(own, 200)
    drain(own, 200)


def two_threads_that_poll_get_each_event_once():
    own, _ = cluster(node().address)
    ids, left = [], threading.Event()

    def poll():
        while not left.is_set():
            ids.extend(own.poll(16, 0.1).ids.tolist())

    threads = [threading.Thread(target=poll) for _ in range(2)]
    [thread.start() for thread in threads]
    issue(own, 20_000)
    end = time.monotonic() + 60
    while len(ids) < 20_000 and time.monotonic() < end:
        time.sleep(0.01)
    left.set()
    [thread.join() for thread in threads]
    assert sorted(ids) == list(range(20_000)), len(ids)


def a_killed_node_is_replaced_by_the_other():
    process, address = child("killed")
    own, _ = cluster(address, node().address)
    issue(own, 20_000)
    own.poll(1)
    process.kill()
    process.wait()
    # One event is polled above.
    drain(own, 19_999)
    assert any("killed" in line for line in own.notes()) or own.counters()["connections"]["lost"]
    own.close()


def a_killed_harness_leaves_the_node_to_the_next():
    address = node().address
    harness = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, __file__, "in_harness", address])
    assert os.waitpid(harness, 0)[1] == signal.SIGKILL
    own, _ = cluster(address)
    issue(own, 200)
    drain(own, 200)


def in_harness(address):
    own, _ = cluster(address)
    issue(own, 20_000)
    os.kill(os.getpid(), signal.SIGKILL)


def asyncio_waits_without_blocking_the_loop():
    own, _ = cluster(node().address)

    async def run():
        ticks, n = 0, 0
        issuing = asyncio.get_running_loop().call_later(0.2, issue, own, 200)
        while n < 200:
            waiting = asyncio.ensure_future(own.wait())
            while not waiting.done():
                ticks += 1
                await asyncio.sleep(0.01)
            n += len(waiting.result())
        return issuing and ticks

    assert asyncio.run(asyncio.wait_for(run(), 60)) > 2


def options_are_written_and_kept_in_range():
    block = qdl.options_block(token_limit=3, seed=7, ignore_eos=True, stop_ids=[1, 2])
    assert len(block) % 8 == 0 and block[4] == 3
    try:
        qdl.options_block(top_p=2.0)
    except qdl.QdlError as error:
        assert "top_p" in str(error)
    else:
        raise AssertionError("top_p 2 was taken")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
