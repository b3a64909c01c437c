#!/usr/bin/env python3
"""Writes an official data set of a language model as a file of tokens (docs/datasets.md).

    convert_tokens.py SOURCE OUT.tokens [--column NAME] [--indices FILE] [--vocabulary N]

    llama3.1-8b    cnn_eval.json                             JSON, column tok_input
    llama2-70b     open_orca_gpt4_tokenized_llama...pkl      pickle, column tok_input
    deepseek-r1    mlperf_deepseek_r1_dataset_...pkl         pickle, column tok_input
    gpt-oss-120b   ...parquet                                parquet, column tok_input, or input_tokens from v4.0 on

The columns are those that MLCommons' references read. JSON needs `pip install numpy` alone; pickle and parquet need
`pip install numpy pandas pyarrow`. `--help` needs none of them. The order of the samples stays. `--indices` takes a file
of whole numbers, one a line, and keeps those samples alone, in that order.

A pickle runs whatever code is in it when it is read: only load one whose checksum you have compared with MLCommons' own,
and say so with --trust-pickle.
"""

import argparse
import json
import pathlib

COLUMNS = ("tok_input", "input_tokens")


def from_json(path):
    """Columns of a list of records, of records by index, or of columns by index."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(data, dict) and any(column in data for column in COLUMNS):
        by_index = {key: [of[i] for i in sorted(of, key=int)] for key, of in data.items() if isinstance(of, dict)}
        return {key: of for key, of in data.items() if isinstance(of, list)} | by_index
    records = [data[i] for i in sorted(data, key=int)] if isinstance(data, dict) else data
    names = {name for record in records for name in record}
    return {name: [record.get(name) for record in records] for name in names}


def from_pandas(path, kind):
    try:
        import pandas
    except ImportError:
        raise SystemExit(f"{path}: reading a {kind} needs `pip install numpy pandas pyarrow`") from None
    frame = pandas.read_pickle(path) if kind == "pickle" else pandas.read_parquet(path)
    return {str(name): frame[name].tolist() for name in frame.columns}


def columns_of(path, trust_pickle):
    """The file's columns, by its ending."""
    ending = path.suffix.lower()
    if ending == ".json":
        return from_json(path)
    if ending == ".parquet":
        return from_pandas(path, "parquet")
    if ending in (".pkl", ".pickle"):
        if not trust_pickle:
            raise SystemExit(
                f"{path}: a pickle runs the code that is in it. Compare its checksum with MLCommons', then say --trust-pickle"
            )
        return from_pandas(path, "pickle")
    raise SystemExit(f"{path}: .json, .pkl, .pickle and .parquet are read here")


def chosen(columns, wanted, path):
    """The column of token ids."""
    names = [wanted] if wanted else [name for name in COLUMNS if name in columns]
    if not names or names[0] not in columns:
        raise SystemExit(f"{path}: no column {wanted or ' or '.join(COLUMNS)}; it has {', '.join(sorted(columns))}")
    return columns[names[0]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--column", help="default: the first of " + ", ".join(COLUMNS) + " that there is")
    parser.add_argument("--indices", type=pathlib.Path, help="keep the samples of these indices alone, in this order")
    parser.add_argument("--vocabulary", type=int, help="refuse ids that are not below it")
    parser.add_argument("--trust-pickle", action="store_true", help="its checksum is the official one")
    args = parser.parse_args()
    # Imported here, so that `--help` works without numpy.
    try:
        import tokens_file
    except ImportError as error:
        raise SystemExit(f"{args.out}: writing a file of tokens needs `pip install numpy` ({error})") from None

    samples = chosen(columns_of(args.source, args.trust_pickle), args.column, args.source)
    if args.indices:
        wanted = [int(line) for line in args.indices.read_text().split()]
        if beyond := [i for i in wanted if not 0 <= i < len(samples)]:
            raise SystemExit(f"{args.indices}: index {beyond[0]}, and {args.source} has {len(samples)} samples")
        samples = [samples[i] for i in wanted]
    try:
        count, ids = tokens_file.write(args.out, samples, args.vocabulary)
    except ValueError as error:
        raise SystemExit(f"{args.source}: {error}") from None
    lengths = [len(sample) for sample in samples]
    print(f"{args.out}: {count} samples, {ids} ids, {min(lengths)} to {max(lengths)} each")


if __name__ == "__main__":
    main()
