"""SmolLM2's tokenizer, from the vocabulary and the merges that its GGUF carries: byte-level BPE.

A text is cut at its special tokens, each digit stands alone, the rest is cut as GPT-2 cuts it, and in each piece the
pair that comes first in the list of merges is joined until none is left.
"""

import re

# GPT-2's pattern. Python's letters are `\p{L}` but for the numbers that are no digits, which `encode` refuses.
PIECES = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
DIGIT = re.compile(r"(\d)")
CONTROL = 3


def byte_letters():
    """GPT-2's letter for each byte: printable ones stand for themselves."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}


class Tokenizer:
    """Text to ids and back."""

    def __init__(self, tokens, merges, special):
        """`tokens` by id and `merges` in order, both in GPT-2's letters; `special` are ids that stand for no bytes."""
        self.tokens = tokens
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.ranks = {tuple(pair.split(" ")): rank for rank, pair in enumerate(merges)}
        self.letters = byte_letters()
        self.bytes = {letter: byte for byte, letter in self.letters.items()}
        self.special = set(special)
        names = sorted((tokens[i] for i in special), key=len, reverse=True)
        self.cut = re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else None

    @classmethod
    def of(cls, metadata):
        """From the metadata of a GGUF file."""
        model, pre = metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.pre"]
        if (model, pre) != ("gpt2", "smollm"):
            raise SystemExit(f"a tokenizer `{model}` with pieces `{pre}`: this one is `gpt2` with `smollm`")
        special = [i for i, kind in enumerate(metadata["tokenizer.ggml.token_type"]) if kind == CONTROL]
        return cls(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"], special)

    def joined(self, piece):
        """The tokens of one piece, in GPT-2's letters."""
        parts = list(piece)
        while len(parts) > 1:
            pairs = list(zip(parts, parts[1:]))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            joined, i = [], 0
            while i < len(parts):
                if i + 1 < len(parts) and (parts[i], parts[i + 1]) == best:
                    joined.append(parts[i] + parts[i + 1])
                    i += 2
                else:
                    joined.append(parts[i])
                    i += 1
            parts = joined
        return parts

    def encode(self, text):
        """Ids of a text; what looks like a special token is one."""
        odd = {c for c in text if c.isnumeric() and not c.isdigit()}
        if odd:
            raise ValueError(f"numbers that are no digits are not cut as the model's tokenizer cuts them: {odd}")
        ids = []
        for part in self.cut.split(text) if self.cut else [text]:
            if part in self.ids and self.ids[part] in self.special:
                ids.append(self.ids[part])
                continue
            for run in DIGIT.split(part):
                for piece in PIECES.findall(run):
                    letters = "".join(self.letters[byte] for byte in piece.encode("utf-8"))
                    ids += [self.ids[token] for token in self.joined(letters)]
        return ids

    def decode(self, ids):
        """The text of ids, without special tokens; bytes that are no text become U+FFFD."""
        known = (self.tokens[i] for i in ids if 0 <= i < len(self.tokens) and i not in self.special)
        return bytes(self.bytes[letter] for token in known for letter in token).decode("utf-8", "replace")
