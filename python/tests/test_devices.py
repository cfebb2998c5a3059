"""The backends beside our kernels: plain PyTorch, and the mapping onto flash-linear-attention.

Both are compared with our kernels. Run as a script with ``TRITON_INTERPRET=1``, this file compares
flash-linear-attention's kernels under Triton's interpreter.
"""

import os
import subprocess
import sys

import pytest
import reasons

torch = pytest.importorskip("torch", reason=reasons.TORCH)

from falcon_fwa import RULES, Rule  # noqa: E402
from falcon_fwa.ops import BACKENDS, FalconState, backend_of, chunked, falcon, falcon_step, fresh_state  # noqa: E402
from falcon_fwa.ops import triton as mapping  # noqa: E402
from falcon_fwa.ops.falcon import _Facts, _facts  # noqa: E402

HEADS, KEY_HEADS, DIM_K, DIM_V = 4, 2, 5, 3
ROUNDING = 1e-11
"""Of float64 results and gradients that are computed in another order: the largest difference seen is 1.2e-13."""
ROUNDING_32 = 2e-5
"""Likewise in float32, in which the mapping computes: the largest difference seen is 1e-6."""
MAPPED = ("falcon-1", "falcon-1a", "retnet", "mamba-2", "deltanet", "gated-deltanet", "linear-attention")


def inputs(rule, batch, time, seed=0, dtype=torch.float64):
    """Queries, keys, values, gains and decays in the ranges of the rule."""
    make = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=make, dtype=torch.float64)

    def uniform(*shape):
        return torch.rand(*shape, generator=make, dtype=torch.float64)

    q, k = normal(batch, time, KEY_HEADS, DIM_K), normal(batch, time, KEY_HEADS, DIM_K)
    v = normal(batch, time, HEADS, DIM_V)
    columns = (DIM_V,) if rule.per_column else ()
    scale = {"beta": 1.9, "eta": 0.3, "unit": None}[rule.gain]
    gain = None if scale is None else scale * uniform(batch, time, HEADS, *columns)
    decay = None if rule.decay == "none" else uniform(batch, time, HEADS, *(columns if rule.decay == "gate" else ()))
    return [None if part is None else part.to(dtype) for part in (q, k, v, gain, decay)]


def states(rule, lengths, dtype=torch.float64):
    """The states of sequences after ``lengths`` tokens."""
    q, k, v, gain, decay = inputs(rule, 1, sum(lengths), seed=7, dtype=dtype)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    _, state = falcon(
        q, k, v, gain, decay, rule=rule, cu_seqlens=offsets, output_final_state=True, backend="kernels"
    )  # fmt: skip
    return state


def results(run, given, state):
    """Outputs, final state, and gradients of a random weighted sum of both, for all inputs and the initial state."""
    given = [None if part is None else part.detach().clone().requires_grad_() for part in given]
    state = FalconState(*(part.detach().clone().requires_grad_() for part in state[:4]), state.counts)
    out, final = run(*given, state)
    make = torch.Generator().manual_seed(3)
    parts = (out, *final[:4])
    loss = sum((part * torch.randn(part.shape, generator=make, dtype=part.dtype)).sum() for part in parts)
    names = ("q", "k", "v", "gain", "decay", *FalconState._fields[:4])
    wanted = {name: part for name, part in zip(names, (*given, *state[:4]), strict=True) if part is not None}
    grads = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    found = {"out": out, **{f"final.{name}": part for name, part in zip(FalconState._fields, final, strict=True)}}
    for (name, part), grad in zip(wanted.items(), grads, strict=True):
        found[f"grad.{name}"] = torch.zeros_like(part) if grad is None else grad
    return found


def assert_close(got, expected, tolerance=ROUNDING):
    assert got.keys() == expected.keys()
    for name, want in expected.items():
        have = got[name]
        assert have.shape == want.shape and have.dtype == want.dtype, name
        if want.numel() == 0:
            continue
        error, scale = (have - want).abs().max().item(), want.abs().max().item()
        assert error <= tolerance * (scale or 1.0), f"{name} is off by {error:.2e}, its largest number is {scale:.2e}"


def compare(rule, given, state, tolerance=ROUNDING, **options):
    """Compare PyTorch with the recurrent form of the kernels, which is the definition; return the latter's results."""

    def runner(backend, form):
        def run(q, k, v, gain, decay, state):
            return falcon(
                q, k, v, gain, decay, rule=rule, initial_state=state, output_final_state=True, backend=backend,
                form=form, chunk_size=16, **options,
            )  # fmt: skip

        return run

    expected = results(runner("kernels", "recurrent"), given, state)
    assert_close(results(runner("torch", "chunked"), given, state), expected, tolerance)
    return expected


@pytest.mark.parametrize("read", ["after", "before"])
@pytest.mark.parametrize("align", ["next", "same"])
@pytest.mark.parametrize("name", RULES)
def test_torch_matches_the_kernels(name, align, read):
    rule = Rule(name, align=align, read=read)
    # A fresh sequence, one whose window is not full yet, and one that is longer than its window.
    state = states(rule, [0, 2, 6])
    for time in (1, 5, 37):
        compare(rule, inputs(rule, 3, time), state)


OPTIONS = [
    ("falcon-1", {"gain": "eta"}),
    ("falcon-1", {"decay": "ridge", "eps": 0.25}),
    ("falcon-1", {"decay": "none"}),
    ("falcon-1", {"decay": "gate"}),
    ("falcon-1", {"detach": True, "gamma_floor": 0.5}),
    ("falcon-1a", {"gain": "unit", "decay": "ridge"}),
    ("falcon-1a", {"gain": "eta", "detach": True}),
    ("falcon-2", {"gain": "eta", "decay": "gate"}),
    ("falcon-2", {"decay": "ridge", "gamma_floor": 0.0}),
    ("falcon-2", {"detach": True}),
    ("falcon-2a", {"decay": "gate"}),
    ("falcon-2a", {"gain": "eta", "decay": "none"}),
    ("falcon-3", {"window": 2, "detach": False}),
    ("falcon-3", {"window": 7, "gain": "eta"}),
    ("falcon-3", {"window": 40}),
    ("falcon-3", {"window": 3, "decay": "gate", "align": "same"}),
    ("falcon-3a", {"window": 2, "detach": False}),
    ("falcon-3a", {"window": 40, "gain": "eta", "read": "before"}),
    ("normalised-linear-attention", {"window": 3, "gain": "eta", "decay": "gate", "align": "next"}),
    ("gated-deltanet", {"window": 3, "gain": "beta", "decay": "scaled-ridge"}),
    ("online-ridge", {"gamma_floor": 0.125}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=lambda value: str(value))
def test_options(name, options):
    rule = Rule(name, **options)
    compare(rule, inputs(rule, 3, 21), states(rule, [0, 2, 6]))


def renamed(rule, name="a-new-rule"):
    """The properties of a rule under a name that nothing knows, as a new rule made of the same options would have."""
    return _Facts(*_facts(rule.spec))._replace(name=name)


@pytest.mark.parametrize("name", RULES)
def test_what_torch_computes_does_not_depend_on_the_name_of_a_rule(name):
    rule = Rule(name)
    given, state = inputs(rule, 3, 21), states(rule, [0, 2, 6])

    def run(q, k, v, gain, decay, state):
        return chunked.run(q, k, v, gain, decay, state, None, renamed(rule), 16)

    assert_close(results(run, given, state), compare(rule, given, state))


@pytest.mark.parametrize("name", RULES)
def test_packed_sequences(name):
    rule = Rule(name)
    lengths = [7, 0, 1, 20]
    offsets = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).to(torch.int32)
    compare(rule, inputs(rule, 1, sum(lengths)), states(rule, [0, 3, 0, 6]), cu_seqlens=offsets)


def test_packed_offsets_must_cover_the_tokens():
    rule = Rule("falcon-1")
    q, k, v, gain, decay = inputs(rule, 1, 5)
    for wrong in ([0, 3], [1, 5], [0, 4, 3, 5]):
        with pytest.raises(ValueError, match="cu_seqlens must rise"):
            falcon(q, k, v, gain, decay, rule=rule, cu_seqlens=torch.tensor(wrong), backend="torch")


@pytest.mark.parametrize("name", ["falcon-1", "falcon-2", "falcon-3", "falcon-1a", "falcon-2a", "falcon-3a"])
def test_clamped_steps(name):
    rule = Rule(name)
    q, k, v, gain, decay = inputs(rule, 2, 37)
    gain, decay = torch.full_like(gain, 1.5), 20 * decay  # Most steps are clamped, some are not.
    expected = compare(rule, (q, k, v, gain, decay), states(rule, [0, 6]))
    assert expected["grad.decay"].count_nonzero() < decay.numel(), "no step was clamped"


@pytest.mark.parametrize("name", ["falcon-1", "falcon-2", "falcon-3a", "retnet", "mamba-2", "gated-deltanet"])
def test_gates_of_zero(name):
    rule = Rule(name, decay="gate")
    q, k, v, gain, decay = inputs(rule, 2, 37)
    decay[:, 3::5] = 0
    decay[:, 4] = 0
    expected = compare(rule, (q, k, v, gain, decay), states(rule, [0, 6]))
    assert expected["grad.decay"][:, 3::5].abs().min() > 0


@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("name", ["falcon-1", "falcon-2", "falcon-3", "falcon-1a", "falcon-2a", "falcon-3a"])
def test_gains_of_two_and_keys_of_zero(name, eps):
    rule = Rule(name, eps=eps)
    q, k, v, gain, decay = inputs(rule, 2, 37)
    gain, decay = torch.full_like(gain, 2), 0 * decay
    k[0, 8:20] = 0  # Longer than a window: with ε = 0 there is nothing to divide by.
    k[1, 4] = 0
    compare(rule, (q, k, v, gain, decay), states(rule, [0, 6]))


def test_continuation():
    for name in ("falcon-1", "falcon-2a", "falcon-3", "falcon-3a", "normalised-linear-attention"):
        rule = Rule(name)
        given = inputs(rule, 2, 23)
        whole, end = falcon(*given, rule=rule, output_final_state=True, backend="torch")
        state, parts = None, []
        for piece in (slice(0, 1), slice(1, 3), slice(3, 20), slice(20, 20), slice(20, 23)):
            part = [None if x is None else x[:, piece] for x in given]
            out, state = falcon(*part, rule=rule, initial_state=state, output_final_state=True, backend="torch")
            parts.append(out)
        assert_close({"out": torch.cat(parts, 1), **state._asdict()}, {"out": whole, **end._asdict()})


@pytest.mark.parametrize("name", ["falcon-1", "falcon-2", "falcon-3", "falcon-3a"])
def test_the_chunk_size_does_not_change_results(name):
    rule = Rule(name)
    given = inputs(rule, 2, 37)
    whole, _ = falcon(*given, rule=rule, backend="torch", chunk_size=64)
    for size in (1, 3, 37):
        out, _ = falcon(*given, rule=rule, backend="torch", chunk_size=size)
        assert_close({"out": out}, {"out": whole})
    with pytest.raises(ValueError, match="chunk_size"):
        falcon(*given, rule=rule, backend="torch", chunk_size=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_float32_and_bfloat16(dtype):
    for name in ("falcon-1", "falcon-2", "falcon-3", "falcon-1a"):
        rule = Rule(name)
        given = inputs(rule, 2, 37, dtype=dtype)
        with torch.autocast("cpu", dtype=torch.bfloat16):  # This must have no effect.
            out, final = falcon(*given, rule=rule, output_final_state=True, backend="torch")
        expected, end = falcon(*given, rule=rule, output_final_state=True, backend="kernels")
        assert out.dtype == dtype and final.memory.dtype == torch.float32
        # Both compute in float32, where they differ by 4e-7 at most. That may decide to which of two neighbours an
        # output is rounded in bfloat16, which are 2⁻⁷ of their size apart.
        torch.testing.assert_close(out, expected, rtol=2**-7 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
        torch.testing.assert_close(final.memory, end.memory, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["falcon-1", "falcon-2a", "falcon-3", "falcon-3a"])
def test_compiled_code_gives_the_same_results(name):
    rule = Rule(name)
    given, state = inputs(rule, 2, 3), states(rule, [0, 6])

    def run(q, k, v, gain, decay, state):
        return falcon(
            q, k, v, gain, decay, rule=name, initial_state=state, output_final_state=True, backend="torch", chunk_size=2
        )  # fmt: skip

    # "aot_eager" traces the graph but generates no code, which would take longer.
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert_close(results(compiled, given, state), results(run, given, state))


@pytest.mark.parametrize("backend", ["kernels", "torch"])
def test_compiled_code_takes_packed_sequences(backend):
    """With ``torch`` in several graphs, because the longest sequence decides the shapes; the kernels are one graph."""
    rule = Rule("falcon-1")
    given, state = inputs(rule, 1, 12), states(rule, [0, 6])

    def run(q, k, v, gain, decay, state, offsets):
        return falcon(
            q, k, v, gain, decay, rule="falcon-1", initial_state=state, output_final_state=True, cu_seqlens=offsets,
            backend=backend, chunk_size=4,
        )  # fmt: skip

    compiled = torch.compile(run, fullgraph=backend == "kernels", backend="aot_eager")
    for lengths in ([5, 7], [0, 12], [11, 1]):
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        got, expected = (
            results(lambda *args, call=call, offsets=offsets: call(*args, offsets), given, state)
            for call in (compiled, run)
        )
        assert_close(got, expected)


@pytest.mark.parametrize("backend", ["kernels", "torch"])
def test_a_step_matches_a_sequence_of_one_token(backend):
    for name in RULES:
        rule = Rule(name)
        given, state = inputs(rule, 3, 1), states(rule, [0, 2, 6])
        out, final = falcon_step(*given, state=state, rule=name, backend=backend)
        expected, end = falcon(*given, rule=rule, initial_state=state, output_final_state=True, backend="kernels")
        assert_close({"out": out, **final._asdict()}, {"out": expected, **end._asdict()})


@pytest.mark.parametrize("name", RULES)
def test_everything_is_on_the_device_of_the_inputs(name):
    """The meta device has shapes and no numbers: code that created a tensor on the CPU would fail."""
    rule = Rule(name)
    given = [None if part is None else part.to("meta").requires_grad_() for part in inputs(rule, 2, 21)]
    out, final = falcon(*given, rule=rule, output_final_state=True)
    expected = fresh_state(rule, *given[:3:2])
    assert out.shape == given[2].shape and out.device.type == "meta"
    assert [part.shape for part in final] == [part.shape for part in expected]
    assert {part.device.type for part in final} == {"meta"}
    out.sum().backward()
    assert all(part.grad.shape == part.shape for part in given if part is not None)


def test_the_backend_of_a_device():
    assert BACKENDS == ("kernels", "triton", "torch")
    for rule in (None, *RULES):
        assert backend_of("cpu", rule) == "kernels"
        assert backend_of("mps", rule) == backend_of("xpu:1", rule) == "torch"


def test_the_backend_of_a_gpu(monkeypatch):
    monkeypatch.setattr(mapping, "missing", lambda: None)
    for name in RULES:
        assert backend_of("cuda:1", name) == ("triton" if name in MAPPED else "torch"), name
    assert backend_of("cuda", Rule("falcon-1", read="before")) == "torch"
    assert backend_of("cuda", "falcon-1", torch.float64) == "torch"
    assert backend_of("cuda", "falcon-1", dim_k=257) == "torch"
    assert backend_of("cuda", "falcon-1a", dim_k=257) == "triton"
    monkeypatch.setattr(mapping, "missing", lambda: "not here")
    assert backend_of("cuda", "falcon-1") == "torch"


def test_a_backend_that_cannot_run_is_refused_with_the_reason():
    rule = Rule("falcon-1")
    given = inputs(rule, 1, 3)
    meta = [part.to("meta") for part in given]
    state = fresh_state(rule, *meta[:3:2])
    for tensors, options, words in (
        (given, {"backend": "cuda"}, "backend must be one of auto, kernels, triton, torch, got 'cuda'"),
        (given, {"backend": "triton"}, "'triton' cannot run falcon-1: its kernels run on CUDA and ROCm, not on cpu"),
        (meta, {"backend": "kernels"}, "'kernels' cannot run falcon-1: its kernels run on the CPU, not on meta"),
        (given, {"backend": "torch", "form": "masked"}, "form must be"),
    ):
        with pytest.raises(ValueError, match=words):
            falcon(*tensors, **options)
    with pytest.raises(ValueError, match="not on meta"):
        falcon_step(*(part[:, :1] for part in meta), state=state, backend="kernels")


# --- flash-linear-attention ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_which_rules_can_be_mapped(name):
    assert mapping.supported(Rule(name)) == (name in MAPPED)
    assert mapping.supported(renamed(Rule(name))) == (name in MAPPED)
    assert not mapping.supported(Rule(name, read="before"))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("falcon-1", {"decay": "gate"}, "divide by the gate"),
        ("falcon-1", {"gamma_floor": 0.0}, "gamma_floor must be"),
        ("falcon-2", {}, "each column"),
        ("falcon-3", {}, "one pair at each step, the rule writes 4"),
        ("online-ridge", {}, "negative"),
        ("normalised-linear-attention", {}, "total weight"),
    ],
)
def test_rules_that_cannot_be_mapped_are_refused_with_the_reason(name, options, words):
    rule = Rule(name, **options)
    given = inputs(rule, 1, 3, dtype=torch.float32)
    with pytest.raises(ValueError, match=words):
        mapping.run(*given, fresh_state(rule, *given[:3:2]), None, rule, 16)


def one_by_one(function):
    """Let a function without packed sequences and shared key heads take both, by loops and repeated heads."""

    def run(q, k, v, g, initial_state, cu_seqlens=None, **options):
        q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
        g = v.new_zeros(v.shape[:3]) if g is None else g
        beta = options.pop("beta", None)
        tensors = {"q": q, "k": k, "v": v, "g": g, **({} if beta is None else {"beta": beta})}
        if cu_seqlens is None:
            return function(**tensors, initial_state=initial_state, **options)
        outs, finals = [], []
        for n, (start, end) in enumerate(zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)):
            part = {name: x[:, start:end] for name, x in tensors.items()}
            out, final = function(**part, initial_state=initial_state[n : n + 1], **options)
            outs.append(out)
            finals.append(final)
        return torch.cat(outs, 1), torch.cat(finals)

    return run


def naive_kernels():
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
    from fla.ops.simple_gla.naive import naive_recurrent_simple_gla

    return mapping.Kernels(one_by_one(naive_recurrent_gated_delta_rule), one_by_one(naive_recurrent_simple_gla))


def compare_mapped(rule, given, state, kernels, tolerance=ROUNDING_32, cu_seqlens=None, mapped_rule=None):
    """Compare the mapping, of ``mapped_rule`` if it is given, with our kernels."""

    def mapped(*tensors):
        return mapping.run(*tensors, cu_seqlens, mapped_rule or rule, 64, kernels=kernels)

    def ours(q, k, v, gain, decay, state):
        return falcon(
            q, k, v, gain, decay, rule=rule, initial_state=state, output_final_state=True, cu_seqlens=cu_seqlens,
            backend="kernels", form="recurrent",
        )  # fmt: skip

    assert_close(results(mapped, given, state), results(ours, given, state), tolerance)


@pytest.mark.parametrize("align", ["next", "same"])
@pytest.mark.parametrize("name", MAPPED)
def test_mapping_with_the_naive_functions(name, align):
    pytest.importorskip("fla", reason=reasons.FLA)
    rule = Rule(name, align=align)
    state = states(rule, [0, 2, 6], torch.float32)
    for time in (1, 13):
        compare_mapped(rule, inputs(rule, 3, time, dtype=torch.float32), state, naive_kernels())
    offsets = torch.tensor([0, 5, 5, 12])
    compare_mapped(rule, inputs(rule, 1, 12, dtype=torch.float32), state, naive_kernels(), cu_seqlens=offsets)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("falcon-1", {"gain": "eta", "gamma_floor": 0.25}),
        ("falcon-1", {"decay": "ridge"}),
        ("falcon-1", {"decay": "none"}),
        ("falcon-3", {"window": 1}),
        ("falcon-1a", {"decay": "gate"}),
        ("falcon-1a", {"gain": "unit", "decay": "ridge", "gamma_floor": 0.0}),
        ("gated-deltanet", {"gain": "beta", "decay": "scaled-ridge"}),
        ("online-ridge", {"gamma_floor": 0.01}),
    ],
    ids=lambda value: str(value),
)
def test_mapping_of_options(name, options):
    pytest.importorskip("fla", reason=reasons.FLA)
    rule = Rule(name, **options)
    state = states(rule, [0, 6], torch.float32)
    compare_mapped(rule, inputs(rule, 2, 13, dtype=torch.float32), state, naive_kernels())


@pytest.mark.parametrize("name", MAPPED)
def test_the_mapping_does_not_depend_on_the_name_of_a_rule(name):
    pytest.importorskip("fla", reason=reasons.FLA)
    rule = Rule(name)
    given, state = inputs(rule, 2, 13, dtype=torch.float32), states(rule, [0, 6], torch.float32)
    compare_mapped(rule, given, state, naive_kernels(), mapped_rule=renamed(rule))


@pytest.mark.parametrize("name", ["retnet", "gated-deltanet"])
def test_mapping_of_gates_of_zero(name):
    pytest.importorskip("fla", reason=reasons.FLA)
    rule = Rule(name)
    given = inputs(rule, 2, 13, dtype=torch.float32)
    given[4][:, ::4] = 0
    state = states(rule, [0, 6], torch.float32)
    out, final = mapping.run(*given, state, None, rule, 64, kernels=naive_kernels())
    expected, end = falcon(*given, rule=rule, initial_state=state, output_final_state=True, backend="kernels")
    assert_close({"out": out, "memory": final.memory}, {"out": expected, "memory": end.memory}, ROUNDING_32)


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
def test_mapping_with_triton_kernels_under_the_interpreter():
    pytest.importorskip("fla", reason=reasons.FLA)
    pytest.importorskip("triton", reason=reasons.TRITON)
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", __file__], env=environment, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.split() == list(MAPPED)


class Counter(int):
    """A loop counter with the method ``to``, which the counters of compiled kernels have."""

    def to(self, _dtype):
        return self


def prepare_interpreter():
    """Work around what Triton's interpreter lacks for flash-linear-attention's kernels."""
    import builtins
    import importlib

    import triton.runtime.autotuner as autotuner

    # To choose among configurations, Triton needs a driver, which is absent here: leave one configuration.
    initialise = autotuner.Autotuner.__init__
    autotuner.Autotuner.__init__ = lambda self, fn, names, configs, *args, **kwargs: initialise(
        self, fn, names, configs[:1], *args, **kwargs
    )
    for name in ("chunk_h", "chunk_delta_h"):
        module = importlib.import_module(f"fla.ops.common.{name}")
        module.range = lambda *bounds: map(Counter, builtins.range(*map(int, bounds)))


def interpreted():
    """Compare the chunked kernels, with gradients, for one rule of each kind, and the recurrent ones for all rules."""
    prepare_interpreter()
    offsets = torch.tensor([0, 3, 4])
    for name in MAPPED:
        rule = Rule(name)
        state = states(rule, [0, 1], torch.float32)
        for batch, cu_seqlens in ((2, None), (1, offsets)):
            given = inputs(rule, batch, 4, dtype=torch.float32)
            if name in ("falcon-1", "falcon-1a"):
                compare_mapped(rule, given, state, mapping.chunked_kernels(), cu_seqlens=cu_seqlens)
            out, final = mapping.run(*given, state, cu_seqlens, rule, 64, kernels=mapping.recurrent_kernels())
            expected, end = falcon(
                *given, rule=rule, initial_state=state, output_final_state=True, cu_seqlens=cu_seqlens,
                backend="kernels",
            )  # fmt: skip
            assert_close({"out": out, **final._asdict()}, {"out": expected, **end._asdict()}, ROUNDING_32)
        print(name)


if __name__ == "__main__":
    interpreted()
