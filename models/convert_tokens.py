#!/usr/bin/env python3
"""Writes an official data set of a language model as a file of tokens (docs/datasets.md).

    convert_tokens.py SOURCE OUT.tokens [--column NAME] [--indices FILE] [--vocabulary N]

    llama3.1-8b    cnn_eval.json                             JSON, or JSON lines, column tok_input
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


def columns_in(data, names):
    """Columns of a table, of columns by name (one is in `names`), of records by index or in a list, or of one of these
    under one key."""
    if hasattr(data, "columns"):
        return {str(name): data[name].tolist() for name in data.columns}
    if isinstance(data, dict) and any(name in data for name in names):
        return {str(name): in_order(of) for name, of in data.items() if hasattr(of, "__iter__")}
    if isinstance(data, dict) and {"columns", "data"} <= data.keys():
        return {str(name): list(of) for name, of in zip(data["columns"], zip(*data["data"]))}
    if isinstance(data, dict) and len(data) == 1 and not isinstance(inner := next(iter(data.values())), dict):
        return columns_in(inner, names)
    records = in_order(data)
    if not all(isinstance(record, dict) for record in records):
        raise ValueError("neither a table, nor columns, nor records with the same keys")
    names = {name for record in records for name in record}
    return {str(name): [record.get(name) for record in records] for name in names}


def in_order(of):
    """The values of a list, or of a dictionary whose keys are indices."""
    return [of[i] for i in sorted(of, key=int)] if isinstance(of, dict) else list(of)


def json_in(path):
    """The JSON of a file, or of each of its lines."""
    text = path.read_text(encoding="utf-8-sig")
    try:
        return json.loads(text)
    except ValueError:
        if text.lstrip()[:1] != "{" or len(lines := text.split("\n")) < 2:
            raise
        return [json.loads(line) for line in lines if line.strip()]


def from_pandas(path, kind):
    try:
        import pandas
    except ImportError:
        raise SystemExit(f"{path}: reading a {kind} needs `pip install numpy pandas pyarrow`") from None
    return pandas.read_pickle(path) if kind == "pickle" else pandas.read_parquet(path)


def columns_of(path, names, trust_pickle):
    """The file's columns, by its ending."""
    kind = {".json": "JSON", ".jsonl": "JSON", ".parquet": "parquet", ".pkl": "pickle", ".pickle": "pickle"}
    kind = kind.get(path.suffix.lower())
    if kind is None:
        raise SystemExit(f"{path}: .json, .jsonl, .pkl, .pickle and .parquet are read here")
    if kind == "pickle" and not trust_pickle:
        raise SystemExit(
            f"{path}: a pickle runs the code that is in it. Compare its checksum with MLCommons', then say --trust-pickle"
        )
    try:
        with open(path, "rb") as file:
            is_pointer = file.read(23) == b"version https://git-lfs"
    except OSError as error:
        raise SystemExit(f"{path}: {error.strerror}") from None
    if is_pointer:
        raise SystemExit(f"{path}: a pointer of Git LFS: `git lfs pull` fetches the file itself")
    try:
        return columns_in(json_in(path) if kind == "JSON" else from_pandas(path, kind), names)
    # The exceptions of these readers depend on the bytes of a file of another kind.
    except Exception as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise SystemExit(f"{path}: no {kind} with columns of a data set: {why}") from None


def chosen(columns, names, path):
    """The column of token ids: the first of `names` that there is."""
    for name in names:
        if name in columns:
            return columns[name]
    raise SystemExit(f"{path}: no column {' or '.join(names)}; it has {', '.join(sorted(columns)) or 'none'}")


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

    names = [args.column] if args.column else COLUMNS
    samples = chosen(columns_of(args.source, names, args.trust_pickle), names, args.source)
    if args.indices:
        try:
            wanted = [int(line) for line in args.indices.read_text(encoding="utf-8").split()]
        except (OSError, ValueError) as error:
            raise SystemExit(f"{args.indices}: whole numbers are wanted, one a line: {error}") from None
        if beyond := [i for i in wanted if not 0 <= i < len(samples)]:
            raise SystemExit(f"{args.indices}: index {beyond[0]}, and {args.source} has {len(samples)} samples")
        samples = [samples[i] for i in wanted]
    try:
        count, ids = tokens_file.write(args.out, samples, args.vocabulary)
    except ValueError as error:
        raise SystemExit(f"{args.source}: {error}") from None
    except OSError as error:
        raise SystemExit(f"{args.out}: {error}") from None
    lengths = [len(sample) for sample in samples]
    print(f"{args.out}: {count} samples, {ids} ids, {min(lengths)} to {max(lengths)} each")


if __name__ == "__main__":
    main()
