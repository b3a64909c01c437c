"""What cannot be: one line each, and exit code 2."""

import os
import pathlib

from . import state
from .models import MODELS, configs, engine
from .processes import refusal


def errors_tensorrt(model):
    """Plans and libraries that cannot be, for a model of engine tensorrt whose plan has been built."""
    m = MODELS[model]
    good = next(p for p in sorted(pathlib.Path(os.environ["QDL_PLANS"]).glob(f"{model}*.plan")))
    bare = dict(m, engine={})
    cut = state.write("cut.plan", "")
    cut.write_bytes(good.read_bytes()[: good.stat().st_size // 2])
    broken = state.write("broken.plan", "this is no plan")
    onnx = state.write("broken.onnx", "this is no model")
    shapes = dict(bare, inputs=[i.replace("224]", "225]") for i in m["inputs"]])
    cases = {
        "not a plan": (bare, {}, broken, {}),
        "half a plan": (bare, {}, cut, {}),
        "not an ONNX model": (m, {}, onnx, {}),
        "other shapes": (shapes, {}, good, {}),
        "a batch beyond the profiles": (bare, {"max_batch": 4096}, good, {}),
        "out of memory": (bare, {"threads": 400}, good, {}),
        "no such GPU": (bare, {"gpu": 7}, good, {}),
        "no such precision": (dict(m, engine={"precision": "int4"}), {}, None, {}),
        "no GPU": (bare, {}, good, {"CUDA_VISIBLE_DEVICES": ""}),
        "no libnvinfer": (bare, {}, good, {"QDL_TENSORRT": "/nowhere"}),
        "no shim": (bare, {}, good, {"QDL_TENSORRT_SHIM": "/nowhere/libqdl_tensorrt.so"}),
    }
    out = {}
    for name, (described, more, file, environment) in cases.items():
        MODELS[model] = described
        tag = "error-" + name.replace(" ", "-")
        more = {"max_batch": max(m["engine"]["profiles"]), "threads": 1, **more}
        _, a = configs(model, tag, engine(model, more.pop("max_batch"), more.pop("threads"), **more), file=file)
        MODELS[model] = m
        out[name] = refusal(a, dict(os.environ, **environment))
    return out


def errors(model=None):
    """Each: exit code and the last line."""
    if model:
        return errors_tensorrt(model)
    out = {}
    broken = state.write("broken.pt2", "this is no archive")
    good = state.args.data / "digits.pt2"
    text = engine("digits", 64, 1)
    wrong = dict(MODELS["digits"], inputs=["{name: pixels, dtype: u8, shape: [65]}"])
    cases = {
        "no such GPU": (engine("digits", 64, 1, gpu=7), good, None),
        "not a package": (text, broken, None),
        "other shapes": (text, good, wrong),
        "out of memory": (engine("resnet50", 65536, 24), state.args.data / "resnet50.pt2", MODELS["resnet50"]),
    }
    kept = MODELS["digits"]
    for name, (engine_text, file, model) in cases.items():
        MODELS["digits"] = model or kept
        tag = "error-" + name.replace(" ", "-")
        _, a = configs("digits", tag, engine_text, file=file)
        MODELS["digits"] = kept
        out[name] = refusal(a)
    _, a = configs("digits", "error-hidden", text)
    out["no GPU"] = refusal(a, dict(os.environ, CUDA_VISIBLE_DEVICES=""))
    return out
