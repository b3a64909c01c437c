"""accuracy.txt of a run of the capitals (models/capitals.py), in the form of MLCommons' scripts for language models:

    python models/capitals_accuracy.py results/mlperf_log_accuracy.json .deps/models > results/accuracy.txt

Percent of the answers that name the capital, and tokens for each answer. The hash of the log is written behind it when the
log is cut (`qdl submit`).
"""

import argparse
import contextlib
import io
import json
import pathlib

import capitals


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("log", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    args = parser.parse_args()
    args.texts = False
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        capitals.score(args)
    found = json.loads(said.getvalue())
    answers = found["answers"]
    print({"exact_match": 100 * found["right"] / answers, "tokens_per_sample": found["tokens"] / answers})


if __name__ == "__main__":
    main()
