#!/usr/bin/env python3
"""A node whose engine is a function on numpy: it counts on from the sum of the prompt's ids.

    node_numpy.py [CONTROL [DATA]]      addresses to listen on; default: ports that the system chooses
"""

import os
import signal
import sys

import numpy as np

import qdl

TOKENS = 8
MODEL = {
    "name": "counting",
    "inputs": [{"name": "prompt", "dtype": "i32", "shape": [64], "ragged": True}],
    "output": {"name": "tokens", "dtype": "i32", "shape": [TOKENS], "ragged": True},
}


def main():
    control, data = (sys.argv[1:] + ["127.0.0.1:0", "127.0.0.1:0"][len(sys.argv) - 1 :])[:2]
    config = {"node": f"numpy-{os.getpid()}", "control": {"listen": control}, "model": MODEL}
    config.update(nics=[{"listen": data}], memory_mib=256)

    with qdl.Node(config, engine="counting") as node:

        def engine(arrivals):
            prompts = (arrivals.input(i, np.int32) for i in range(len(arrivals)))
            first = np.array([prompt.sum() for prompt in prompts], np.int32)
            tokens = first[:, None] + np.arange(TOKENS, dtype=np.int32)
            # The first token of all, then the rest of those that somebody still wants.
            status = node.respond(arrivals.tickets, tokens[:, :1], kind=qdl.PART)
            wanted = status == 0
            node.respond(arrivals.tickets[wanted], tokens[wanted, 1:])

        signal.signal(signal.SIGTERM, lambda *_: node.stop())
        print(f"ready: {node.address}", flush=True)
        node.serve(engine)


if __name__ == "__main__":
    main()
