#!/usr/bin/env python3
"""Tests of the scripts for language models: `python -m unittest discover -s models -t models`."""

import contextlib
import io
import json
import pathlib
import struct
import sys
import tempfile
import unittest

import numpy as np

import bpe
import capitals
import convert_tokens
import export_llm
import export_tokenizer
import gguf
import tokens_file

MODELS = pathlib.Path(__file__).resolve().parent.parent / ".deps/models"
# By Hugging Face's tokenizers 0.23.3, from the same vocabulary and merges.
KNOWN = {
    capitals.CHAT.format("São Tomé and Príncipe"): [
        1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198,
        1, 4093, 198, 1780, 314, 260, 3575, 282, 40481, 8581, 2756, 284, 2383, 28339, 9052, 47, 2, 198, 1, 520, 9531, 198,
    ],
    "x=12345; don't  we'll\n\n\tüber 日本 🎉": [
        104, 45, 33, 34, 35, 36, 37, 43, 1326, 982, 216, 392, 3060, 1116, 197, 7170, 593, 17097, 241, 115, 40993, 15107, 232,
        227,
    ],
}  # fmt: skip


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class TokensFile(InFolder):
    def test_samples_come_back(self):
        path = self.folder / "a.tokens"
        self.assertEqual(tokens_file.write(path, [[1, 2, 3], np.array([2**31 - 1])]), (2, 4))
        self.assertEqual([list(row) for row in tokens_file.read(path)], [[1, 2, 3], [2**31 - 1]])
        self.assertEqual(path.stat().st_size, 24 + 8 * 3 + 4 * 4)

    def test_what_is_no_sample_is_named(self):
        path = self.folder / "a.tokens"
        for samples, words in (([[1], []], "sample 1"), ([[-1]], "outside 0"), ([[1.5]], "sample 0"), ([], "no samples")):
            with self.assertRaisesRegex(ValueError, words):
                tokens_file.write(path, samples)
        with self.assertRaisesRegex(ValueError, "outside 0 to 9"):
            tokens_file.write(path, [[10]], vocabulary=10)

    def test_other_files_are_refused(self):
        path = self.folder / "a.tokens"
        tokens_file.write(path, [[1, 2], [3]])
        good = path.read_bytes()
        for content in (b"", good[:-4], good + bytes(4), b"x" + good[1:], good[:8] + b"\2" + good[9:]):
            path.write_bytes(content)
            with self.assertRaises(ValueError):
                tokens_file.read(path)


class Converter(InFolder):
    def convert(self, *arguments):
        out = self.folder / "out.tokens"
        sys.argv = ["convert_tokens.py", str(self.source), str(out), *map(str, arguments)]
        with contextlib.redirect_stdout(io.StringIO()):
            convert_tokens.main()
        return [list(row) for row in tokens_file.read(out)]

    def write(self, data):
        self.source = self.folder / "data.json"
        self.source.write_text(json.dumps(data))

    def test_json_of_records_and_of_columns(self):
        rows = [[1, 2], [3], [4, 5]]
        self.write([{"tok_input": row, "output": "x"} for row in rows])
        self.assertEqual(self.convert(), rows)
        self.write({"tok_input": {str(i): rows[i] for i in (2, 0, 1)}, "output": {"0": "x"}})
        self.assertEqual(self.convert(), rows)
        self.write({"input_tokens": rows})
        self.assertEqual(self.convert(), rows)

    def test_other_shapes_of_json(self):
        rows = [[1, 2], [3], [4, 5]]
        records = [{"tok_input": row, "output": "x"} for row in rows]
        split = {"columns": ["output", "tok_input"], "index": [0, 1, 2], "data": [["x", row] for row in rows]}
        lines = "\n".join(json.dumps(record) for record in records)
        for text in (json.dumps({"data": records}), json.dumps(split), lines, "\ufeff" + json.dumps(records)):
            self.write(None)
            self.source.write_text(text, encoding="utf-8")
            self.assertEqual(self.convert(), rows)
        self.write({"ids": rows})
        self.assertEqual(self.convert("--column", "ids"), rows)

    def test_a_file_of_another_kind_ends_in_one_line(self):
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:5\n"
        spoilt = [b"", b"\xff\xfe", b"null", b"3", b"[1, 2]", b"[[1], [2]]", b'[{"tok_input": [1', b"[" * 100_000]
        spoilt += [b"<!DOCTYPE html>", b'{"a": {"b": 1}}', b'{"tok_input": 5}', b'[{"tok_input": "[1, 2]"}]', pointer]
        spoilt += [b'[{"tok_input": [[1], [2, 3]]}]', b'[{"tok_input": [1.0]}, {}]', b'{"tok_input": [1]}\n{"tok_']
        for content in spoilt:
            self.write(None)
            self.source.write_bytes(content)
            with self.assertRaises(SystemExit) as end:
                self.convert()
            self.assertRegex(str(end.exception), r"\A[^\n]*data.json: [^\n]+\Z")

    def test_some_samples_alone(self):
        self.write([{"ids": [i + 1]} for i in range(12)])
        indices = self.folder / "indices"
        indices.write_text("11\n0\n3\n")
        self.assertEqual(self.convert("--column", "ids", "--indices", indices), [[12], [1], [4]])
        indices.write_text("12\n")
        with self.assertRaisesRegex(SystemExit, "index 12, and .* has 12 samples"):
            self.convert("--column", "ids", "--indices", indices)

    def test_what_cannot_be_read_is_named(self):
        self.write([{"text": "x"}])
        with self.assertRaisesRegex(SystemExit, "no column tok_input or input_tokens; it has text"):
            self.convert()
        self.source = self.folder / "data.pkl"
        with self.assertRaisesRegex(SystemExit, "runs the code that is in it"):
            self.convert()
        self.source = self.folder / "data.csv"
        with self.assertRaisesRegex(SystemExit, "are read here"):
            self.convert()


class Weights(unittest.TestCase):
    def test_blocks_of_four_bits_are_read_as_ggml_has_them(self):
        # Scale 0.5, smallest value -1, then values 0 to 15 in the low halves and 15 to 0 in the high ones.
        packed = bytes(low | (15 - low) << 4 for low in range(16))
        raw = struct.pack("<ee", 0.5, -1.0) + packed
        file = gguf.Gguf.__new__(gguf.Gguf)
        file.bytes, file.tensors = raw, {"w": ((1, 32), gguf.Q4_1, 0)}
        expected = [0.5 * v - 1 for v in [*range(16), *range(15, -1, -1)]]
        self.assertEqual(file.floats("w")[0].tolist(), expected)

    def test_quantised_weights_are_near(self):
        weights = np.random.default_rng(1).standard_normal((8, 64), dtype=np.float32)
        weights[3, :32] = 0
        values, scales = export_llm.quantised(weights, 8)
        back = ((values.astype(np.float32) - 128) * scales[..., None]).reshape(8, 64)
        self.assertLess(np.abs(back - weights).max(), scales.max() * 0.51)
        values, scales = export_llm.quantised(weights, 4)
        halves = np.stack([values & 15, values >> 4], -1).reshape(8, 2, 32).astype(np.float32) - 8
        self.assertLess(np.abs((halves * scales[..., None]).reshape(8, 64) - weights).max(), np.abs(scales).max() * 1.01)


class Tokenizer(unittest.TestCase):
    def test_known_texts(self):
        tokenizer = bpe.Tokenizer.of(gguf.Gguf(MODELS / "smollm2.gguf").metadata)
        for text, ids in KNOWN.items():
            self.assertEqual(tokenizer.encode(text), ids)
        spoken = tokenizer.encode("Tirana, Curaçao 12")
        self.assertEqual(tokenizer.decode([*spoken, 2]), "Tirana, Curaçao 12")
        with self.assertRaisesRegex(ValueError, "½"):
            tokenizer.encode("½")

    def test_hugging_face_s_files_hold_the_vocabulary_and_the_chat_template(self):
        files = export_tokenizer.files(gguf.Gguf(MODELS / "smollm2.gguf").metadata)
        tokenizer, config = files["tokenizer.json"], files["tokenizer_config.json"]
        self.assertEqual(len(tokenizer["model"]["vocab"]), 49_152)
        self.assertEqual(tokenizer["added_tokens"][2]["content"], config["eos_token"])
        self.assertEqual(files["generation_config.json"], {"eos_token_id": 2})
        self.assertIn("add_generation_prompt", config["chat_template"])

    def test_an_answer_is_right_where_the_capital_is_named(self):
        self.assertIn(capitals.plain("Bogotá"), capitals.plain("It is BOGOTA."))
        self.assertNotIn(capitals.plain("Rome"), capitals.plain("It is Paris."))


if __name__ == "__main__":
    unittest.main()
