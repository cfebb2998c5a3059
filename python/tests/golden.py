"""The golden cases: float64 outputs and gradients from an independent implementation; see golden/README.md."""

import json
import struct
from pathlib import Path

import numpy as np

from falcon_fwa import Rule

FOLDER = Path(__file__).resolve().parents[2] / "golden"

# Reference solvers, which are no rules and are not tested here: recursive least squares and state-space models.
SOLVERS = ("rls", "ssm_zoh")
NAMES = {
    "linear_attention": "linear-attention",
    "normalized_linear_attention": "normalised-linear-attention",
    "gated_deltanet": "gated-deltanet",
    "online_ridge": "online-ridge",
}


def read(path):
    """The metadata and the arrays of a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    meta = json.loads(header.pop("__metadata__")["meta"])
    arrays = {}
    for name, about in header.items():
        begin, end = (8 + length + offset for offset in about["data_offsets"])
        arrays[name] = np.frombuffer(data[begin:end], np.float64).reshape(about["shape"])
    return meta, arrays


FLOAT64 = 1e-12
"""Tolerance in float64, where only rounding differs: the largest error seen is 3e-15."""


def float32(case):
    """Tolerance in float32: what the independent implementation itself loses there, and some roundings of ours."""
    return 20 * max(case.meta["f32_ref_err"].values()) + 5e-6


class Case:
    """A golden case, with its arrays as the arguments of a call with a batch of one."""

    def __init__(self, path):
        self.meta, self.arrays = read(path)
        meta, arrays = self.meta, self.arrays
        variant = meta["variant"]
        name = NAMES.get(variant, variant.replace("falcon", "falcon-"))
        self.gain_name = next((n for n in ("gain", "eta", "beta") if f"in.{n}" in arrays), None)
        self.decay_name = next((n for n in ("lam", "g", "decay") if f"in.{n}" in arrays), None)
        options = {"align": meta["align"], "read": meta.get("read")}
        options["window"] = meta.get("B")
        if self.gain_name is None:
            options["gain"] = "unit"
        elif name == "online-ridge":
            options["gain"] = "beta"
        else:
            options["gain"] = meta.get("gain_kind", "eta")
        if name.startswith("falcon"):
            ridges = {"off": "none", "actual": "ridge", "scaled": "scaled-ridge"}
            options["decay"] = ridges[meta["ridge"]]
            if options["decay"] == "scaled-ridge":
                options["detach"] = meta["detach"]
        elif name == "normalised-linear-attention":
            options["decay"] = "none" if self.decay_name is None else "ridge"
        for option, key in (("eps", "eps"), ("gamma_floor", "eps_gamma"), ("normaliser_eps", "eps_attn")):
            if key in meta:
                options[option] = meta[key]
        if name == "normalised-linear-attention" and self.decay_name is None:
            options.pop("gamma_floor", None)
        self.rule = Rule(name, **options)
        self.normalised = self.rule.normalised

    def inputs(self):
        arrays, (time, heads) = self.arrays, self.arrays["in.v"].shape[:2]
        gain = None if self.gain_name is None else arrays[f"in.{self.gain_name}"][None]
        decay = None if self.decay_name is None else arrays[f"in.{self.decay_name}"]
        if decay is not None:
            # RetNet has one decay for each head.
            decay = np.broadcast_to(decay, (time, heads))[None] if decay.ndim == 1 else decay[None]
        return (*(arrays[f"in.{n}"][None] for n in "qkv"), gain, decay)

    def state(self):
        """Memory, last key, tails and counts."""
        arrays = self.arrays
        _, heads, dim_k = arrays["in.k"].shape
        dim_v = arrays["in.v"].shape[2]
        memory = arrays.get("in.S0", np.zeros((heads, dim_k, dim_v)))
        if self.normalised:
            total = arrays.get("in.z0", np.zeros((heads, dim_k)))
            memory = np.concatenate([memory, total[..., None]], -1)
        tail = self.rule.window - 1
        keys, values = np.zeros((tail, heads, dim_k)), np.zeros((tail, heads, dim_v))
        held = len(arrays["in.tail_x"]) if "in.tail_x" in arrays else 0
        if held:
            keys[:held], values[:held] = arrays["in.tail_x"], arrays["in.tail_v"]
        last = arrays.get("in.k_last", np.zeros((heads, dim_k)))
        started = int("in.k_last" in arrays or held > 0)
        counts = np.array([[started, held]], dtype=np.int64)
        return memory[None], last[None], keys[None], values[None], counts

    def upstream(self):
        """Gradients of the outputs and of the final memory."""
        memory = self.arrays["up.S"]
        if self.normalised:
            memory = np.concatenate([memory, self.arrays["up.z"][..., None]], -1)
        return self.arrays["up.o"][None], memory[None]

    def expected(self):
        """Outputs and final memory, and gradients by name."""
        arrays = self.arrays
        memory = arrays["out.S"]
        if self.normalised:
            memory = np.concatenate([memory, arrays["out.z"][..., None]], -1)
        expected = {"out": arrays["out.o"], "memory": memory}
        for name in ("q", "k", "v"):
            expected[f"grad {name}"] = arrays[f"grad.{name}"]
        if self.gain_name is not None:
            expected["grad gain"] = arrays[f"grad.{self.gain_name}"]
        if self.decay_name is not None:
            expected["grad ridge"] = arrays[f"grad.{self.decay_name}"]
        if "grad.S0" in arrays:
            grad = arrays["grad.S0"]
            if self.normalised:
                grad = np.concatenate([grad, arrays["grad.z0"][..., None]], -1)
            expected["grad memory"] = grad
        for name, golden_name in (("last_key", "k_last"), ("tail_key", "tail_x"), ("tail_value", "tail_v")):
            if f"grad.{golden_name}" in arrays:
                expected[f"grad {name}"] = arrays[f"grad.{golden_name}"]
            if f"out.{golden_name}" in arrays:
                expected[name] = arrays[f"out.{golden_name}"]
        return expected

    def compare(self, got, tolerance):
        """Assert that every expected array is matched, up to ``tolerance`` times its largest number."""
        for name, expected in self.expected().items():
            value = np.asarray(got[name], np.float64)[0]
            if name == "grad ridge" and self.arrays[f"in.{self.decay_name}"].ndim == 1:
                value = value.sum(0)
            value = value[: len(expected)] if "tail" in name else value
            assert value.shape == expected.shape, f"{name}: shape {value.shape}, expected {expected.shape}"
            error = np.abs(value - expected).max(initial=0)
            # An array whose numbers cancel to almost nothing has the rounding errors of what was cancelled.
            allowed = max(tolerance * np.abs(expected).max(initial=0), tolerance * 1e-2)
            assert error <= allowed, f"{name} is off by {error}, allowed is {allowed}"


def paths():
    """The files of all cases except those of solvers."""
    found = sorted(FOLDER.glob("*.safetensors"))
    return [path for path in found if read(path)[0]["variant"] not in SOLVERS]
