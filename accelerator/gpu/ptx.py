#!/usr/bin/env python3
"""Makes accelerator/src/engine/cuda/gather/kernel.ptx of kernel.cu beside it.

    pip install nvidia-cuda-nvrtc-cu11==11.8.89
    accelerator/gpu/ptx.py

NVRTC compiles without a GPU and without a driver. 11.8 writes PTX 7.8, and the target is the oldest that
TensorRT 8 and PyTorch still run on, so that every driver since CUDA 11.8 and every GPU since Volta takes it. The first line of the
PTX says what text it was made of, which a test checks.
"""

import ctypes
import hashlib
import importlib.util
import pathlib
import sys

TARGET = "compute_70"
HERE = pathlib.Path(__file__).resolve().parents[1] / "src/engine/cuda/gather"


def library():
    found = importlib.util.find_spec("nvidia")
    for root in found.submodule_search_locations if found else []:
        for path in sorted(pathlib.Path(root).glob("cuda_nvrtc/lib/libnvrtc.so.11*")):
            return ctypes.CDLL(str(path))
    sys.exit("no NVRTC 11: pip install nvidia-cuda-nvrtc-cu11==11.8.89")


def main():
    nvrtc, text = library(), (HERE / "kernel.cu").read_bytes()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()

    def check(code):
        if code:
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            sys.exit(log.value.decode())

    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"kernel.cu", 0, None, None))
    options = [f"--gpu-architecture={TARGET}".encode(), b"--std=c++17"]
    check(nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)))
    check(nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)))
    out = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetPTX(program, out))
    lines = [line for line in out.value.decode().splitlines() if line.strip() and not line.startswith("//")]
    head = f"// Made of kernel.cu, SHA-256 {hashlib.sha256(text).hexdigest()}, by accelerator/gpu/ptx.py.\n"
    (HERE / "kernel.ptx").write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
