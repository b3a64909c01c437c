#!/usr/bin/env python3
"""The licences of everything that is linked into the programs, as one text.

    licenses.py         prints it
"""

import json
import pathlib
import platform
import subprocess

NAMES = ("license", "licence", "copying", "notice", "unlicense", "copyright")
OTHERS = """\
LoadGen (MLCommons, Apache-2.0): the text of LICENSE below.
libstdc++ and libgcc (GCC): GPL-3.0 with the GCC Runtime Library Exception 3.1, which permits this:
  https://www.gnu.org/licenses/gcc-exception-3.1.html
Rust's standard library: MIT or Apache-2.0, https://www.rust-lang.org/policies/licenses
Handwritten digits: scikit-learn (BSD-3-Clause), from UCI's Optical Recognition of Handwritten
  Digits (CC BY 4.0).
"""


def linked(root):
    """(name, version, licence, folder) of each crate that `qdl` links."""

    def cargo(words):
        command = ["cargo", *words.split(), "--offline", "--locked"]
        said = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
        return said.stdout

    tree = cargo("tree --package qdl-cli --edges normal --prefix none --format {p}")
    names = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    target = f"{platform.machine()}-unknown-linux-gnu"
    metadata = json.loads(cargo(f"metadata --format-version 1 --filter-platform {target}"))
    by_name = sorted(metadata["packages"], key=lambda crate: (crate["name"], crate["version"]))
    for package in by_name:
        of_tree = (package["name"], "v" + package["version"]) in names
        if of_tree and package["source"]:
            folder = pathlib.Path(package["manifest_path"]).parent
            yield package["name"], package["version"], package["license"] or "see its text", folder


def text(root):
    """A list of all parts, then each licence text once, with the parts that bring it."""
    parts, texts = [], {}
    for name, version, licence, folder in linked(root):
        parts.append(f"{name} {version}: {licence}")
        for file in sorted(folder.iterdir()):
            if file.is_file() and file.name.lower().startswith(NAMES):
                content = file.read_text(encoding="utf-8", errors="replace").strip()
                texts.setdefault(content, []).append(name)
    vendor = sorted((root / "report/vendor").glob("*"))
    for file in vendor:
        if file.name.lower().startswith(NAMES) or "LICENSE" in file.name:
            texts.setdefault(file.read_text().strip(), []).append("uPlot")
    own = (root / "LICENSE").read_text()
    blocks = [own, OTHERS, "Crates:\n" + "\n".join(parts)]
    blocks += [f"{', '.join(names)}:\n\n{content}" for content, names in texts.items()]
    return ("\n\n" + "-" * 80 + "\n\n").join(blocks) + "\n"


if __name__ == "__main__":
    print(text(pathlib.Path(__file__).resolve().parent.parent))
