#!/usr/bin/env python3
"""Writes a model's tokenizer as Hugging Face's files, from a GGUF's metadata, for a gateway that is asked in text.

    export_tokenizer.py GGUF DIR

DIR gets `tokenizer.json`, `tokenizer_config.json` with the chat template, and `generation_config.json` with the end
token. Of the tokenizers that a GGUF may hold, SmolLM2's is known: byte-level BPE whose digits stand alone.
"""

import argparse
import json
import pathlib

import bpe
import gguf


def added(i, token):
    """A special token: found in a text as it stands, and without text in an answer."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": i, "content": token, "special": True} | plain


def files(metadata):
    """The content of each file, by its name."""
    known = bpe.Tokenizer.of(metadata)
    tokens, end = known.tokens, metadata["tokenizer.ggml.eos_token_id"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added(i, tokens[i]) for i in sorted(known.special)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": metadata["tokenizer.ggml.merges"],
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[metadata["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[end],
        "unk_token": tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata["tokenizer.chat_template"],
    }
    generation = {"eos_token_id": end}
    return {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": config,
        "generation_config.json": generation,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("gguf", type=pathlib.Path, metavar="GGUF")
    parser.add_argument("folder", type=pathlib.Path, metavar="DIR")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, content in files(gguf.Gguf(args.gguf).metadata).items():
        (args.folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    print(f"{args.folder}: tokenizer.json and its settings")


if __name__ == "__main__":
    main()
