"""A scripted engine core of vLLM: its command line, sockets, handshake and messages, without a
model. It answers token i of a prompt with (sum of the prompt + 10 * i) % 97 + 3.

core.py serve FOLDER --headless ... --data-parallel-rpc-port P --data-parallel-size-local N
    [--habit HABIT] [--attack ATTACK] [--pids FILE] [--step SECONDS] [--model-len N] [--version V]
"""
import os
import select
import signal
import socket
import struct
import sys
import time

ARGS = sys.argv[1:]


def option(name, default=None):
    return ARGS[ARGS.index(name) + 1] if name in ARGS else default


HABIT = option("--habit", "good")
STEP = float(option("--step", "0.002"))
MODEL_LEN = int(option("--model-len", "256"))
VERSION = option("--version", "0.24.0")
# Fields of an output, and the place of the prompt's counts.
FIELDS, COUNTS = {"0.33.0": (19, 11)}.get(VERSION, (13, 10))


def pack(value):
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return bytes([value]) if value < 128 else b"\xce" + struct.pack(">I", value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        return b"\xd9" + bytes([len(value)]) + value.encode()
    if isinstance(value, list):
        return b"\xdc" + struct.pack(">H", len(value)) + b"".join(map(pack, value))
    pairs = b"".join(pack(k) + pack(v) for k, v in value.items())
    return b"\xde" + struct.pack(">H", len(value)) + pairs


def unpack(data, at=0):
    """The value at this place, and the place behind it."""
    def number(size):
        return int.from_bytes(data[at + 1:at + 1 + size], "big"), at + 1 + size

    def several(count, start):
        values = []
        for _ in range(count):
            value, start = unpack(data, start)
            values.append(value)
        return values, start

    first = data[at]
    if first < 0x80:
        return first, at + 1
    if first < 0x90:
        values, end = several(2 * (first & 15), at + 1)
        return dict(zip(values[::2], values[1::2])), end
    if first < 0xa0:
        return several(first & 15, at + 1)
    if first < 0xc0:
        end = at + 1 + (first & 31)
        return data[at + 1:end].decode(), end
    if first in (0xc0, 0xc2, 0xc3):
        return {0xc0: None, 0xc2: False, 0xc3: True}[first], at + 1
    if first == 0xcb:
        return struct.unpack(">d", data[at + 1:at + 9])[0], at + 9
    if first in (0xcc, 0xcd, 0xce):
        return number(1 << (first - 0xcc))
    if first == 0xd9:
        count, start = number(1)
        return data[start:start + count].decode(), start + count
    return several(*number(2 if first == 0xdc else 4))


class Socket:
    """The connecting side of ZMTP 3.0 with the NULL mechanism."""

    def __init__(self, address, kind, identity):
        if address.startswith("ipc://"):
            self.stream = socket.socket(socket.AF_UNIX)
            self.stream.connect(address[6:])
        else:
            host, port = address[6:].split(":")
            self.stream = socket.create_connection((host, int(port)))
        greeting = b"\xff" + bytes(7) + b"\x01\x7f\x03\x01NULL" + bytes(48)
        ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
        if kind == b"DEALER":
            ready += b"\x08Identity" + struct.pack(">I", len(identity)) + identity
        self.stream.sendall(greeting + b"\x04" + bytes([len(ready)]) + ready)
        self.take(64)
        self.frame()

    def take(self, size):
        data = b""
        while len(data) < size:
            part = self.stream.recv(size - len(data))
            if not part:
                sys.exit(0)
            data += part
        return data

    def frame(self):
        flags = self.take(1)[0]
        size = struct.unpack(">Q", self.take(8))[0] if flags & 2 else self.take(1)[0]
        return flags & 1, self.take(size)

    def receive(self):
        frames, more = [], 1
        while more:
            more, body = self.frame()
            frames.append(body)
        return frames

    def send(self, body):
        self.stream.sendall(b"\x02" + struct.pack(">Q", len(body)) + body)


def note(kind):
    path = option("--pids")
    if path:
        with open(path, "a") as file:
            file.write(f"{os.getpid()}\n")
    if kind == "worker":
        while True:
            time.sleep(60)


def dead(words):
    print(words)
    print("INFO: shutting down", flush=True)
    os.kill(os.getppid(), signal.SIGTERM)
    os._exit(1)


def core(index):
    if os.fork() == 0:
        note("worker")
    note("core")
    identity = struct.pack("<H", index)
    place = "tcp://127.0.0.1:" + option("--data-parallel-rpc-port")
    strangers = attack(place, option("--attack"))
    handshake = Socket(place, b"DEALER", identity)
    handshake.send(pack({"status": "HELLO", "local": False, "headless": True}))
    addresses = unpack(handshake.receive()[0])[0]["addresses"]
    print("Loading model", os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("QDL_TEST"),
          sorted(os.sched_getaffinity(0)), flush=True)
    if HABIT == "never-ready":
        time.sleep(600)
    if HABIT == "no-memory":
        dead("torch.OutOfMemoryError: CUDA out of memory")
    if HABIT == "no-input":
        handshake.send(pack({"status": "READY", "local": False, "headless": True}))
        time.sleep(600)
    given = Socket(addresses["inputs"][0], b"DEALER", identity)
    if HABIT == "no-registration":
        handshake.send(pack({"status": "READY", "local": False, "headless": True}))
        time.sleep(600)
    given.send(pack({
        "max_model_len": MODEL_LEN, "num_gpu_blocks": 100, "block_size": 16,
        "dp_stats_address": None, "vllm_version": VERSION,
        "data_parallel_size": 2 if HABIT == "experts" else 1,
    }))
    if HABIT == "other-identity":
        Socket(addresses["inputs"][0], b"DEALER", b"\x09\x09")
        time.sleep(600)
    if HABIT == "no-output":
        handshake.send(pack({"status": "READY", "local": False, "headless": True}))
        time.sleep(600)
    output = Socket(addresses["outputs"][0], b"PUSH", identity)
    handshake.send(pack({"status": "READY", "local": False, "headless": True}))
    serve(index, given, output)


def attack(place, kind):
    """What a stranger may do at the port of the handshake; returns its sockets."""
    host, port = place[6:].split(":")
    sockets = []
    if kind in ("silent", "drip"):
        for _ in range(40):
            sockets.append(socket.create_connection((host, int(port))))
            if kind == "drip":
                sockets[-1].sendall(b"\xff")
    elif kind:
        stranger = Socket(place, b"DEALER", b"\0\0")
        sockets.append(stranger.stream)
        if kind == "garbage":
            stranger.send(b"spam")
        if kind == "long":
            stranger.stream.sendall(b"\x02" + struct.pack(">Q", 1 << 40))
        if kind == "status":
            stranger.send(pack({"status": "BYE", "local": False}))
        if kind == "ready":
            stranger.send(pack({"status": "READY", "local": False}))
        if kind == "ping":
            stranger.stream.sendall(b"\x04\x09\x04PING\0\x64ab" * 10000)
    if kind:
        time.sleep(0.3)
        print("attack", kind, "done", flush=True)
    return sockets


def serve(index, given, output):
    running, aborted, steps = {}, [], 0
    while True:
        streams = [given.stream] if HABIT != "deaf" or steps < 20 else []
        if HABIT == "deaf" and steps == 20:
            given.stream.close()
        while streams and select.select(streams, [], [], STEP if running else 60)[0]:
            kind, body = given.receive()
            value = unpack(body)[0]
            if kind == b"\x00":
                running[value[0]] = [value[1], value[3], 0]
            elif kind == b"\x01":
                print("aborted", len(value), flush=True)
                aborted += [(id, running.pop(id)) for id in value if id in running]
        outputs = [step(id, *state) for id, state in list(running.items())]
        # An abort overtakes outputs that are under way.
        outputs += [step(id, *state) for id, state in aborted]
        aborted = []
        for output_of in outputs:
            if output_of[0] in running:
                running[output_of[0]][2] += 1
                if output_of[5] is not None:
                    del running[output_of[0]]
        if outputs:
            steps += 1
            time.sleep(STEP)
            misbehave(steps, output)
            output.send(pack([index, outputs, {"stats": 1}, 1.5, None, None, None, None]))


def step(id, prompt, params, at):
    if min(prompt) < 0 or len(prompt) + 1 >= MODEL_LEN:
        dead("AssertionError: num_new_tokens > 0")
    token = (sum(prompt) + 10 * at) % 97 + 3
    last = params["max_tokens"]
    finish = 1 if at + 1 == last or len(prompt) + at + 1 == MODEL_LEN else None
    stops = params["_all_stop_token_ids"]
    if stops and prompt[0] == 7 and at + 1 >= max(params["min_tokens"], 3):
        token, finish = stops[0], 0
    if prompt[0] == 13:
        error = {"code": "validation_error", "message": "prompt too long", "retryable": False}
        return fields(id, [], 3, error=error)
    assert params["skip_reading_prefix_cache"] and not params["detokenize"]
    cached = 5 if HABIT == "cache" else 0
    counts = {"num_prompt_tokens": len(prompt), "num_cached_tokens": cached} if at == 0 else None
    return fields(id, [token], finish, counts)


def fields(id, tokens, finish=None, counts=None, error=None):
    """An output of the version."""
    output = [id, tokens, None, None, None, finish] + (FIELDS - 6) * [None]
    output[COUNTS], output[COUNTS + 2] = counts, 3 if HABIT == "nans" else 0
    if FIELDS > 18:
        output[18] = error
    return output + ([None] if HABIT == "another-field" else [])


def misbehave(steps, output):
    if steps < 20:
        return
    if HABIT == "dead":
        output.send(b"ENGINE_CORE_DEAD")
        dead("RuntimeError: index out of range in self")
    if HABIT == "pings" and steps == 20:
        # Each PONG is read: libzmq would take a side without PONGs for dead.
        for _ in range(1000):
            output.stream.sendall(b"\x04\x09\x04PING\0\x64ab")
            output.take(9)
        output.send(b"ENGINE_CORE_DEAD")
        dead("")
    if HABIT == "exits":
        dead("Segmentation fault")
    if HABIT == "silent":
        time.sleep(600)
    if HABIT == "garbled":
        output.send(b"\x93\x00\x91\x90\xc0")
    if HABIT == "unknown":
        output.send(pack([0, [fields("no hex", [5])]]))


def main():
    note("parent")
    if HABIT == "no-start":
        sys.exit("vllm: error: unrecognized arguments")
    cores = []
    for index in range(int(option("--data-parallel-size-local"))):
        pid = os.fork()
        if pid == 0:
            core(index)
        cores.append(pid)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.wait()
    sys.exit("Engine core proc died unexpectedly")


if __name__ == "__main__":
    main()
