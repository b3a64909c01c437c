"""What every part of a round knows: how it was called, how long it may take, and what it has found so far."""

import json
import pathlib
import sys
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]

# The command line, once it is read.
args = None
began = time.time()
# What each step has found.
steps = {}


def left():
    """Seconds of the budget."""
    return args.budget - (time.time() - began)


def say(*what):
    """A line for people, with the time since the start."""
    print(f"[{time.time() - began:6.1f}]", *what, file=sys.stderr, flush=True)


def write(name, text):
    """A file among what the round leaves; its path."""
    path = args.out / name
    path.write_text(text)
    return path


def keep(result):
    """What has been found so far, where it is found if the round is cut short."""
    write("round.json", json.dumps(result, indent=1))
