#!/usr/bin/env python3
"""The demo's questions for a language model, and what became of them.

    capitals.py write PACKAGE GGUF DIR      PACKAGE: the unpacked wheel of countryinfo 1.0.1 (MIT)
    capitals.py score LOG DIR               LOG: mlperf_log_accuracy.json of a run over capitals.tokens

`write` asks "What is the capital of X?" for each country, in SmolLM2's chat template, and writes DIR/capitals.tokens
(docs/datasets.md), and DIR/capitals.json with the answers and what it takes to read ids. `score` prints one line of
JSON: an answer is right where the capital's name is in its text, letters and digits alone, in lower case.
"""

import argparse
import json
import pathlib
import unicodedata

import bpe
import gguf
import tokens_file

# As the chat template in the GGUF writes a first question.
CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of {}?<|im_end|>\n<|im_start|>assistant\n"
)


def countries(package):
    """(name, capital) of each country that has one, by the name of its file."""
    found = []
    for path in sorted((package / "countryinfo/data").glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        name, capital = data.get("name"), data.get("capital")
        if name and isinstance(capital, str) and len(capital) > 2:
            found.append((name, capital))
    if not found:
        raise SystemExit(f"{package}: no countries in it")
    return found


def plain(text):
    """Letters without their accents, digits and blanks."""
    spread = unicodedata.normalize("NFKD", text.lower())
    return "".join(c for c in spread if c.isalnum() or c == " ")


def write(args):
    metadata = gguf.Gguf(args.gguf).metadata
    tokenizer = bpe.Tokenizer.of(metadata)
    asked = countries(args.package)
    prompts = [tokenizer.encode(CHAT.format(name)) for name, _ in asked]
    args.folder.mkdir(parents=True, exist_ok=True)
    samples, ids = tokens_file.write(args.folder / "capitals.tokens", prompts, len(tokenizer.tokens))
    content = {
        "capitals": [capital for _, capital in asked],
        "names": [name for name, _ in asked],
        "eos": metadata["tokenizer.ggml.eos_token_id"],
        "special": sorted(tokenizer.special),
        "tokens": tokenizer.tokens,
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    (args.folder / "capitals.json").write_text(text, encoding="utf-8")
    lengths = [len(prompt) for prompt in prompts]
    print(f"{samples} questions, {ids} ids, {min(lengths)} to {max(lengths)} each")


def score(args):
    content = json.loads((args.folder / "capitals.json").read_text(encoding="utf-8"))
    tokenizer = bpe.Tokenizer(content["tokens"], [], content["special"])
    answers = {}
    for entry in json.loads(args.log.read_text(encoding="utf-8")):
        data = bytes.fromhex(entry["data"])
        ids = [int.from_bytes(data[i : i + 4], "little", signed=True) for i in range(0, len(data) - 3, 4)]
        answers[entry["qsl_idx"]] = ids
    right, tokens = 0, 0
    for index, ids in answers.items():
        tokens += len(ids)
        spoken = ids[: ids.index(content["eos"])] if content["eos"] in ids else ids
        text = tokenizer.decode(spoken)
        named = plain(content["capitals"][index]) in plain(text)
        right += named
        if args.texts:
            print(f"{'+' if named else '-'} {content['names'][index]}: {text.strip()!r}")
    print(json.dumps({"answers": len(answers), "right": right, "tokens": tokens}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(required=True)
    writing = commands.add_parser("write")
    writing.add_argument("package", type=pathlib.Path)
    writing.add_argument("gguf", type=pathlib.Path)
    writing.set_defaults(run=write)
    scoring = commands.add_parser("score")
    scoring.add_argument("log", type=pathlib.Path)
    scoring.add_argument("--texts", action="store_true", help="print each answer, too")
    scoring.set_defaults(run=score)
    for command in (writing, scoring):
        command.add_argument("folder", type=pathlib.Path)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
