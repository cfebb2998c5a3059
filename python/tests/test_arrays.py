"""Rules on NumPy arrays, without torch."""

import pickle
import subprocess
import sys
import threading

import golden
import numpy as np
import pytest

import falcon_fwa
from falcon_fwa import Rule, State, _native, scan, vjp

ROUNDING = 1e-12
"""Of float64 results that are computed in another order: the largest difference seen is 3e-15."""


def inputs(rule, batch=2, time=37, heads=4, key_heads=2, dim_k=5, dim_v=6, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    q, k = (rng.standard_normal((batch, time, key_heads, dim_k)) for _ in range(2))
    v = rng.standard_normal((batch, time, heads, dim_v))
    shape = (batch, time, heads, dim_v) if rule.per_column else (batch, time, heads)
    gain = None if rule.gain == "unit" else rng.uniform(0.1, 0.9 if rule.gain == "eta" else 1.9, shape) / dim_k
    per_column_gate = rule.per_column and rule.decay == "gate"
    decay = None
    if rule.decay != "none":
        shape = shape if per_column_gate else shape[:3]
        decay = rng.uniform(0.5, 1, shape) if rule.decay == "gate" else rng.uniform(0, 0.2, shape)
    return tuple(None if x is None else x.astype(dtype) for x in (q, k, v, gain, decay))


@pytest.mark.parametrize("path", golden.paths(), ids=lambda path: path.stem)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_golden_cases(path, dtype):
    case = golden.Case(path)
    given = [None if x is None else x.astype(dtype) for x in case.inputs()]
    *numbers, counts = case.state()
    state = State(*(x.astype(dtype) for x in numbers), counts)
    for form in ("chunked", "recurrent", "masked"):
        out, final, backward = vjp(*given, rule=case.rule, initial_state=state, chunk_size=3, form=form)
        grad_out, grad_memory = (x.astype(dtype) for x in case.upstream())
        zeros = State(*(np.zeros_like(part) for part in final))
        grads = backward(grad_out, zeros._replace(memory=grad_memory))
        got = {"out": out, **final._asdict()}
        got |= {f"grad {name}": grad for name, grad in grads._asdict().items() if grad is not None and name != "state"}
        got |= {f"grad {name}": grad for name, grad in grads.state._asdict().items()}
        case.compare(got, golden.FLOAT64 if dtype == np.float64 else golden.float32(case))


@pytest.mark.parametrize("name", falcon_fwa.RULES)
def test_a_sequence_in_two_pieces_matches_the_whole(name):
    rule = Rule(name)
    given = inputs(rule)
    whole, end = scan(*given, rule=rule)
    first, state = scan(*(None if x is None else x[:, :11] for x in given), rule=rule)
    second, last = scan(
        *(None if x is None else x[:, 11:] for x in given), rule=rule, initial_state=state, chunk_size=7
    )
    np.testing.assert_allclose(np.concatenate([first, second], 1), whole, atol=ROUNDING)
    for got, expected in zip(last, end, strict=True):
        np.testing.assert_allclose(got, expected, atol=ROUNDING)


def test_packed_sequences_do_not_see_each_other():
    rule = Rule("falcon-3")
    given = inputs(rule, batch=1)
    out, state = scan(*given, rule=rule, cu_seqlens=[0, 5, 5, 37])
    alone, end = scan(*(x[:, 5:] for x in given), rule=rule)
    np.testing.assert_allclose(out[:, 5:], alone, atol=ROUNDING)
    np.testing.assert_allclose(state.memory[2], end.memory[0], atol=ROUNDING)
    assert not state.memory[1].any() and not state.counts[1].any()


def test_strided_arrays_give_the_same_results():
    rule = Rule("falcon-1")
    given = inputs(rule)
    expected, _ = scan(*given, rule=rule)
    transposed = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in given]
    assert not transposed[0].flags.c_contiguous
    np.testing.assert_array_equal(scan(*transposed, rule=rule)[0], expected)
    # Arrays whose last axis is not contiguous, or that have a negative stride, are copied.
    columns = [np.asfortranarray(x) for x in given]
    np.testing.assert_array_equal(scan(*columns, rule=rule)[0], expected)
    backwards = [x[:, ::-1].copy()[:, ::-1] for x in given]
    np.testing.assert_array_equal(scan(*backwards, rule=rule)[0], expected)


def test_the_number_of_threads_does_not_change_results():
    rule = Rule("falcon-1", window=1)
    given = inputs(rule, time=300, dtype=np.float32)
    one, _ = scan(*given, rule=rule, threads=1)
    two, _ = scan(*given, rule=rule, threads=2)
    np.testing.assert_array_equal(one, two)


def test_two_python_threads_at_once():
    rule = Rule("falcon-1")
    given = inputs(rule, time=500)
    expected, _ = scan(*given, rule=rule)
    found = []

    def work():
        for _ in range(10):
            found.append(scan(*given, rule=rule, threads=2)[0])

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    for out in found:
        np.testing.assert_array_equal(out, expected)


def test_a_panic_becomes_an_exception():
    with pytest.raises(RuntimeError, match="a bug in falcon_fwa, please report it: on purpose"):
        _native.panic("on purpose")
    test_the_number_of_threads_does_not_change_results()


def test_sequences_without_tokens():
    rule = Rule("falcon-3a")
    given = inputs(rule, time=0)
    out, state = scan(*given, rule=rule)
    assert out.shape == (2, 0, 4, 6) and not state.counts.any()


def test_rules_can_be_pickled_hashed_and_compared():
    rule = Rule("falcon-3", window=7, align="same", gamma_floor=0.5)
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert hash(rule) == hash(Rule.parse(rule.spec)) and rule != Rule("falcon-3")
    assert (rule.window, rule.align, rule.gamma_floor, rule.erases) == (7, "same", 0.5, True)


@pytest.mark.parametrize("name", falcon_fwa.RULES)
def test_the_objective_of_a_rule_says_what_it_erases(name):
    linear = ("falcon-1a", "falcon-2a", "falcon-3a", "linear-attention", "normalised-linear-attention", "retnet")
    objectives = dict.fromkeys((*linear, "mamba-2"), "inner-product") | {"gated-deltanet": "decayed-regression"}
    rule = Rule(name)
    assert rule.objective == objectives.get(name, "regression")
    assert rule.erases == (rule.objective != "inner-product")


WRONG = [
    (dict(rule="falcon-9"), ValueError, 'rule must be one of "falcon-1"'),
    (dict(align="last"), ValueError, 'align must be one of "next", "same", got "last"'),
    (dict(window=0), ValueError, "the window must hold at least 1 pair, got 0"),
    (dict(form="fast"), ValueError, 'form must be one of "chunked", "recurrent", "masked", got "fast"'),
    (dict(chunk_size=0), ValueError, "chunk_size must be at least 1"),
    (dict(q=np.zeros((2, 37, 5))), ValueError, "q must be [batch, time, key heads, dim_k], got shape [2, 37, 5]"),
    (dict(k=np.zeros((2, 36, 2, 5))), ValueError, "k must have the shape of q, [2, 37, 2, 5], got [2, 36, 2, 5]"),
    (dict(v=np.zeros((1, 37, 4, 6))), ValueError, "v must have the batch and time of q, [2, 37]"),
    (dict(v=np.zeros((2, 37, 3, 6))), ValueError, "the heads of v (3) must be a multiple of those of q and k (2)"),
    (dict(v=np.zeros((2, 37, 4, 0))), ValueError, "dim_v must not be 0"),
    (dict(gain=np.zeros((2, 37, 4, 6))), ValueError, "gain of falcon-1 must be [batch, time, heads] = [2, 37, 4]"),
    (dict(gain=None), ValueError, "gain: falcon-1 needs one (beta), got None"),
    (dict(gain=np.full((2, 37, 4), 2.5)), ValueError, "gain[0, 0, 0] is 2.5: beta must be in [0, 2]"),
    (dict(ridge=np.full((2, 37, 4), -1.0)), ValueError, "ridge[0, 0, 0] is -1: lambda must be"),
    (
        dict(decay_kind="gate", ridge=np.full((2, 37, 4), 1.5)),
        ValueError,
        "ridge[0, 0, 0] is 1.5: gamma must be in [0, 1]",
    ),
    (dict(decay_kind="gates"), ValueError, 'decay_kind must be one of "scaled-ridge", "ridge", "gate", "none", got'),
    (dict(gain_kind="theta"), ValueError, 'gain_kind must be one of "beta", "eta", "unit", got "theta"'),
    (dict(gamma_floor=1.0), ValueError, "gamma_floor must be in [0, 1), got 1"),
    (dict(eps=-1.0), ValueError, "eps must be in [0, inf), got -1"),
    (dict(decay_kind="gate", detach=True), ValueError, 'detach=True needs a rule whose decay is "scaled-ridge"'),
    (dict(rule="linear-attention"), ValueError, "gain: linear-attention takes none; leave it out"),
    (dict(v=np.zeros((2, 37, 4, 6), np.float32)), TypeError, "v must have the dtype of q, float64, got float32"),
    (dict(k=np.zeros((2, 37, 2, 5), np.int64)), TypeError, "k must be float32 or float64, got int64"),
    (dict(q=[1.0, 2.0]), TypeError, "q must be an array that supports DLPack, got list"),
    (dict(cu_seqlens=[0, 37]), ValueError, "with cu_seqlens the batch must be 1"),
    (dict(initial_state=(1, 2)), ValueError, "initial_state must have the parts memory"),
]


def test_a_wrong_constant_of_a_normalised_rule_is_called_as_its_argument():
    with pytest.raises(ValueError, match=r"^normaliser_eps must be in \[0, inf\), got -1$"):
        Rule("normalised-linear-attention", normaliser_eps=-1.0)


def wrong_states(state):
    """States with one wrong part each, the type of the error, and its message after the name of the argument."""
    yield (1, 2), ValueError, " must have the parts memory, last_key, tail_key, tail_value, counts, got 2 parts"
    memory, counts = state.memory[:1], state.counts[:, :1]
    message = ".memory must be [2, 4, 5, 6] for falcon-1, got shape [1, 4, 5, 6]"
    yield state._replace(memory=memory), ValueError, message
    yield state._replace(counts=counts), ValueError, ".counts must be [2, 2] for falcon-1, got shape [2, 1]"


@pytest.mark.parametrize(("change", "kind", "message"), WRONG, ids=[message[:40] for *_, message in WRONG])
def test_wrong_arguments_are_refused_with_the_reason(change, kind, message):
    names = ("q", "k", "v", "gain", "ridge")
    call = dict(zip(names, inputs(Rule("falcon-1")), strict=True)) | change
    with pytest.raises(kind) as caught:
        scan(**call)
    assert message in str(caught.value)


def test_an_initial_state_that_does_not_fit_is_named_with_its_part():
    given = inputs(Rule("falcon-1"))
    _, state = scan(*given)
    memory, last_key = state.memory.tolist(), state.last_key.astype(np.float32)
    wrong_types = [
        (state._replace(memory=memory), TypeError, ".memory must be an array that supports DLPack, got list"),
        (state._replace(last_key=last_key), TypeError, ".last_key must have the dtype of q, float64, got float32"),
    ]
    for wrong, kind, message in [*wrong_states(state), *wrong_types]:
        with pytest.raises(kind) as caught:
            scan(*given, initial_state=wrong)
        assert str(caught.value) == f"initial_state{message}"


def test_a_gradient_of_the_state_that_does_not_fit_is_named_with_its_part():
    out, final, backward = vjp(*inputs(Rule("falcon-1")))
    for wrong, kind, message in wrong_states(final):
        with pytest.raises(kind) as caught:
            backward(np.zeros_like(out), wrong)
        assert str(caught.value) == f"grad_state{message}"


@pytest.mark.parametrize("offsets", [[0, 36], [1, 37], [0, 20, 10, 37], [0, 38], [0, -1, 37], [[0, 37]], []])
def test_wrong_offsets_are_refused(offsets):
    with pytest.raises(ValueError, match=r"cu_seqlens|offsets"):
        scan(*inputs(Rule("falcon-1"), batch=1), cu_seqlens=np.array(offsets, dtype=np.int64))


def test_torch_is_not_imported():
    code = "import falcon_fwa, sys; assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
