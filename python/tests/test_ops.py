"""Rules as PyTorch operations."""

import multiprocessing
import threading

import golden
import numpy as np
import pytest
import reasons

torch = pytest.importorskip("torch", reason=reasons.TORCH)

import falcon_fwa  # noqa: E402
from falcon_fwa import Rule, ops, scan  # noqa: E402
from falcon_fwa.ops import _scan  # noqa: E402

NAMES = falcon_fwa.RULES


def inputs(rule, batch=2, time=21, heads=4, key_heads=2, dim_k=5, dim_v=6, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)

    def uniform(shape, low, high):
        return (torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low).to(dtype)

    q, k = (
        torch.randn(batch, time, key_heads, dim_k, generator=generator, dtype=torch.float64).to(dtype) for _ in "qk"
    )
    v = torch.randn(batch, time, heads, dim_v, generator=generator, dtype=torch.float64).to(dtype)
    shape = (batch, time, heads, dim_v) if rule.per_column else (batch, time, heads)
    gain = None if rule.gain == "unit" else uniform(shape, 0.1, 0.3 if rule.gain == "eta" else 1.9)
    decay = None
    if rule.decay != "none":
        shape = shape if rule.per_column and rule.decay == "gate" else shape[:3]
        decay = uniform(shape, 0.5, 1) if rule.decay == "gate" else uniform(shape, 0.01, 0.2)
    if rule.normalised:
        # Positive weights, whose total is far from zero.
        q, k = q.abs() + 0.1, k.abs() + 0.1
    return q, k, v, gain, decay


def with_gradients(tensors):
    return tuple(None if x is None else x.detach().clone().requires_grad_() for x in tensors)


def state_of(rule, given, seed=1):
    """A state of random numbers, with full tails."""
    state = ops.fresh_state(rule, given[0], given[2])
    generator = torch.Generator().manual_seed(seed)
    numbers = [torch.randn(part.shape, generator=generator, dtype=part.dtype) * 0.3 for part in state[:4]]
    if rule.normalised:
        numbers = [part.abs() + 0.1 for part in numbers]
    counts = state.counts.clone()
    counts[:, 0], counts[:, 1] = 1, rule.window - 1
    return ops.FalconState(*numbers, counts)


@pytest.mark.parametrize("path", golden.paths(), ids=lambda path: path.stem)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_golden_cases(path, dtype):
    case = golden.Case(path)
    given = with_gradients(None if x is None else torch.tensor(x, dtype=dtype) for x in case.inputs())
    *numbers, counts = case.state()
    state = ops.FalconState(*with_gradients(torch.tensor(x, dtype=dtype) for x in numbers), torch.tensor(counts))
    out, final = ops.falcon(
        *given, rule=case.rule, initial_state=state, output_final_state=True, chunk_size=3
    )  # fmt: skip
    grad_out, grad_memory = (torch.tensor(x, dtype=dtype) for x in case.upstream())
    ((out * grad_out).sum() + (final.memory * grad_memory).sum()).backward()
    got = {"out": out, **final._asdict()}
    names = ("q", "k", "v", "gain", "ridge")
    got |= {f"grad {name}": x.grad for name, x in zip(names, given, strict=True) if x is not None}
    got |= {f"grad {name}": x.grad for name, x in state._asdict().items() if x.grad is not None}
    got = {name: x.detach().numpy() for name, x in got.items()}
    case.compare(got, golden.FLOAT64 if dtype == torch.float64 else golden.float32(case))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_match_differences(name):
    """Gradients of outputs and final state, with respect to every input and every part of the initial state."""
    # With detach, a gradient is left out on purpose.
    rule = Rule(name, detach=False) if Rule(name).detach else Rule(name)
    given = inputs(rule, batch=1, time=5, heads=2, key_heads=1, dim_k=3, dim_v=2)
    state = state_of(rule, given)
    tensors = [x for x in (*given, *state[:4]) if x is not None and x.numel() > 0]

    def call(*tensors):
        tensors = iter(tensors)
        given_now = [None if x is None else next(tensors) for x in given]
        parts = [next(tensors) if part.numel() > 0 else part for part in state[:4]]
        out, final = ops.falcon(
            *given_now, rule=rule, initial_state=ops.FalconState(*parts, state.counts),
            output_final_state=True, chunk_size=2
        )  # fmt: skip
        return out, *(part for part in final[:4] if part.numel() > 0)

    # Differences of float64 results over 1e-6, gradcheck's step, are exact to some 1e-9; outputs are of the size of 1.
    assert torch.autograd.gradcheck(call, with_gradients(tensors), atol=1e-6)


def op_arguments(rule, packed=False):
    given = with_gradients(inputs(rule, batch=1 if packed else 2))
    offsets = torch.tensor([0, 4, 21]) if packed else None
    state = ops.fresh_state(rule, given[0], given[2], 2)
    return (*given, *state, offsets, rule.spec, "chunked", 8, True)


@pytest.mark.parametrize("name", NAMES)
def test_operators_pass_opcheck(name):
    torch.library.opcheck(_scan.scan, op_arguments(Rule(name)))
    torch.library.opcheck(_scan.scan, op_arguments(Rule(name), packed=True))
    given = inputs(Rule(name), time=1)
    arguments = (*given, *ops.fresh_state(name, given[0], given[2]), Rule(name).spec)
    torch.library.opcheck(_scan.step, arguments)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_code_gives_the_same_results(name):
    def loss(*tensors):
        out, final = ops.falcon(*tensors, rule=name, output_final_state=True, chunk_size=8)
        return out.square().sum() + final.memory.sum()

    eager, compiled = with_gradients(inputs(Rule(name))), with_gradients(inputs(Rule(name)))
    torch._dynamo.reset()
    expected, got = loss(*eager), torch.compile(loss, fullgraph=True, backend="aot_eager")(*compiled)
    torch.testing.assert_close(got, expected)
    expected.backward()
    got.backward()
    for one, other in zip(eager, compiled, strict=True):
        if one is not None:
            torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("name", NAMES)
def test_vmap_matches_a_loop(name):
    rule = Rule(name)
    many = [inputs(rule, seed=seed) for seed in range(3)]
    stacked = [None if many[0][i] is None else torch.stack([one[i] for one in many], 1) for i in range(5)]
    axes = tuple(None if x is None else 1 for x in stacked)

    def loss(*tensors):
        return ops.falcon(*tensors, rule=rule, chunk_size=8)[0]

    leaves = with_gradients(stacked)
    got = torch.vmap(loss, in_dims=axes)(*leaves)
    torch.testing.assert_close(got, torch.stack([loss(*one) for one in many]))
    # So do gradients through vmap.
    got.square().sum().backward()
    for index, one in enumerate(many):
        one = with_gradients(one)
        loss(*one).square().sum().backward()
        for leaf, alone in zip(leaves, one, strict=True):
            if leaf is not None:
                torch.testing.assert_close(leaf.grad.movedim(1, 0)[index], alone.grad)


@pytest.mark.parametrize("name", ["falcon-1", "falcon-2", "falcon-3a", "linear-attention"])
def test_vmap_of_packed_sequences(name):
    """Each element has packed sequences of its own, and their states."""
    rule, offsets = Rule(name), torch.tensor([[0, 4, 21], [0, 15, 21], [0, 0, 21]])
    many = [inputs(rule, batch=1, seed=seed) for seed in range(3)]
    leaves = with_gradients(None if many[0][i] is None else torch.stack([one[i] for one in many]) for i in range(5))

    def call(offsets, *tensors):
        out, final = ops.falcon(*tensors, rule=rule, cu_seqlens=offsets, output_final_state=True, chunk_size=8)
        return out, final.memory

    axes = (0, *(None if x is None else 0 for x in leaves))
    out, memory = torch.vmap(call, in_dims=axes)(offsets, *leaves)
    (out.square().sum() + memory.sum()).backward()
    for index, one in enumerate(many):
        one = with_gradients(one)
        expected, end = call(offsets[index], *one)
        torch.testing.assert_close(out[index], expected)
        torch.testing.assert_close(memory[index], end)
        (expected.square().sum() + end.sum()).backward()
        for leaf, alone in zip(leaves, one, strict=True):
            if leaf is not None:
                torch.testing.assert_close(leaf.grad[index], alone.grad)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("packed", [False, True])
def test_many_gradients_at_once(name, packed):
    """The backward pass under vmap, which a Jacobian needs."""
    rule = Rule(name)
    given = with_gradients(inputs(rule, batch=1 if packed else 2))
    offsets = torch.tensor([0, 4, 21]) if packed else None
    out, final = ops.falcon(*given, rule=rule, cu_seqlens=offsets, output_final_state=True, chunk_size=8)
    upstream = (torch.randn(3, *out.shape, dtype=out.dtype), torch.randn(3, *final.memory.shape, dtype=out.dtype))
    leaves = [x for x in given if x is not None]
    results = (out, final.memory)
    together = torch.func.vmap(lambda *grads: torch.autograd.grad(results, leaves, grads, retain_graph=True))(*upstream)
    for index in range(3):
        alone = torch.autograd.grad(results, leaves, [grad[index] for grad in upstream], retain_graph=True)
        for many, one in zip(together, alone, strict=True):
            torch.testing.assert_close(many[index], one)


@pytest.mark.parametrize("name", NAMES)
def test_steps_of_one_token_match_the_whole(name):
    rule = Rule(name)
    given = inputs(rule)
    expected, end = ops.falcon(*given, rule=rule, output_final_state=True)
    state, outs = ops.fresh_state(rule, given[0], given[2]), []
    for t in range(21):
        token = [None if x is None else x[:, t : t + 1] for x in given]
        out, state = ops.falcon_step(*token, rule=rule, state=state)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 1), expected)
    for got, part in zip(state, end, strict=True):
        torch.testing.assert_close(got, part)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_pieces_match_those_of_the_whole(name):
    whole, cut = with_gradients(inputs(Rule(name))), with_gradients(inputs(Rule(name)))
    out, final = ops.falcon(*whole, rule=name, output_final_state=True)
    (out.square().sum() + final.memory.sum()).backward()
    state, total = None, 0
    for piece in (slice(0, 6), slice(6, 7), slice(7, 21)):
        tokens = [None if x is None else x[:, piece] for x in cut]
        out, state = ops.falcon(*tokens, rule=name, initial_state=state, output_final_state=True)
        total = total + out.square().sum()
    (total + state.memory.sum()).backward()
    for one, other in zip(whole, cut, strict=True):
        if one is not None:
            torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    given = with_gradients(inputs(Rule("falcon-1"), dtype=dtype))
    wide = with_gradients(x.float() for x in given)
    out, state = ops.falcon(*given, output_final_state=True)
    expected, _ = ops.falcon(*wide)
    assert out.dtype == dtype and state.memory.dtype == torch.float32
    torch.testing.assert_close(out, expected.to(dtype), rtol=0, atol=0)
    out.float().sum().backward()
    expected.sum().backward()
    for one, other in zip(given, wide, strict=True):
        assert one.grad.dtype == dtype
        torch.testing.assert_close(one.grad, other.grad.to(dtype), rtol=0, atol=0)


def test_strided_tensors_give_the_same_results():
    given = inputs(Rule("falcon-1"))
    expected, _ = ops.falcon(*given)
    heads_first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in given]
    torch.testing.assert_close(ops.falcon(*heads_first)[0], expected, rtol=0, atol=0)
    # Views of one tensor, as from one projection for q, k and v.
    q, k, v, gain, ridge = inputs(Rule("falcon-1"), heads=2, dim_v=5)
    together = torch.cat([q, k, v], -1)
    parts = together.split(5, -1)
    expected, _ = ops.falcon(q, k, v, gain, ridge)
    torch.testing.assert_close(ops.falcon(*parts, gain, ridge)[0], expected, rtol=0, atol=0)
    # The same gain for all tokens, by a stride of 0, and a last axis that is not contiguous.
    wide = gain[:, :1].expand_as(gain)
    expected, _ = ops.falcon(q, k, v, wide.contiguous(), ridge)
    columns = q.transpose(-1, -2).contiguous().transpose(-1, -2)
    torch.testing.assert_close(ops.falcon(columns, k, v, wide, ridge)[0], expected, rtol=0, atol=0)
    # The gradient of a sum has strides of 0.
    q = q.requires_grad_()
    ops.falcon(q, k, v, gain, ridge)[0].sum().backward()
    once, q.grad = q.grad.clone(), None
    out, _ = ops.falcon(q, k, v, gain, ridge)
    out.backward(torch.ones_like(out))
    torch.testing.assert_close(q.grad, once, rtol=0, atol=0)


def test_arrays_and_tensors_agree():
    given = inputs(Rule("falcon-2"))
    out, _ = ops.falcon(*given, rule="falcon-2")
    from_arrays, _ = scan(*(x.numpy() for x in given), rule="falcon-2")
    np.testing.assert_array_equal(out.numpy(), from_arrays)
    from_tensors, _ = scan(*given, rule="falcon-2")
    np.testing.assert_array_equal(from_tensors, from_arrays)


def test_inference_saves_nothing():
    given = with_gradients(inputs(Rule("falcon-1")))
    state = ops.fresh_state("falcon-1", given[0], given[2])
    with torch.no_grad():
        *_, saved = _scan.scan(*given, *state, None, Rule("falcon-1").spec, "chunked", 8, False)
        assert saved.numel() == 0
        assert not ops.falcon(*given)[0].requires_grad
    assert ops.falcon(*given)[0].requires_grad


def test_sequences_without_tokens():
    given = with_gradients(inputs(Rule("falcon-1"), time=0))
    state = ops.fresh_state("falcon-1", given[0], given[2])
    state = state._replace(memory=torch.ones_like(state.memory).requires_grad_())
    out, final = ops.falcon(*given, initial_state=state, output_final_state=True)
    assert out.shape == (2, 0, 4, 6)
    final.memory.sum().backward()
    torch.testing.assert_close(state.memory.grad, torch.ones_like(state.memory))


def _in_child(queue, given, expected, name):
    out, _ = ops.falcon(*given, rule=name)
    queue.put(bool(torch.equal(out, expected)))


@pytest.mark.parametrize("name", NAMES)
def test_a_forked_process_starts_its_own_threads(name):
    given = inputs(Rule(name), time=200)
    expected, _ = ops.falcon(*given, rule=name)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue, given, expected, name))
    child.start()
    assert queue.get(timeout=60)
    child.join(timeout=60)
    assert child.exitcode == 0
    # The threads of the parent still work.
    torch.testing.assert_close(ops.falcon(*given, rule=name)[0], expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_two_python_threads_at_once(name):
    given = inputs(Rule(name), time=100)
    expected, _ = ops.falcon(*given, rule=name)
    same = []

    def work():
        for _ in range(5):
            same.append(torch.equal(ops.falcon(*given, rule=name)[0], expected))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same == [True] * 10


WRONG = [
    (dict(q=1.0), TypeError, "q must be a tensor, got float"),
    (dict(v=torch.zeros(2, 21, 4, 6, dtype=torch.int64)), TypeError, "v must be float32, float64, bfloat16 or float16"),
    (dict(k=torch.zeros(2, 21, 2, 5)), TypeError, "k must have the dtype of q, torch.float64, got torch.float32"),
    (dict(gain=torch.zeros(2, 21, 4)), TypeError, "gain is torch.float32 and q is torch.float64"),
    (dict(v=torch.zeros(2, 21, 4, 6, dtype=torch.float64, device="meta")), ValueError, "v is on meta, q on cpu"),
    (dict(k=torch.zeros(2, 21, 2, 4, dtype=torch.float64)), ValueError, "k must have the shape of q, [2, 21, 2, 5]"),
    (
        dict(gain=torch.zeros(2, 21, 3, dtype=torch.float64)),
        ValueError,
        "gain of falcon-1 must be [batch, time, heads]",
    ),
    (dict(cu_seqlens=[0, 21]), TypeError, "cu_seqlens must be a tensor, got list"),
    (dict(cu_seqlens=torch.tensor([0.0, 21.0])), TypeError, "cu_seqlens must be int32 or int64"),
    (dict(cu_seqlens=torch.tensor([0, 21])), ValueError, "with cu_seqlens the batch must be 1"),
    (dict(rule="falcon"), ValueError, "rule must be one of"),
    (dict(rule=Rule("falcon-1"), window=2), TypeError, "a Rule has its options already"),
]


@pytest.mark.parametrize(("change", "kind", "message"), WRONG, ids=[message[:40] for *_, message in WRONG])
def test_wrong_arguments_are_refused_with_the_reason(change, kind, message):
    names = ("q", "k", "v", "gain", "ridge")
    call = dict(zip(names, inputs(Rule("falcon-1")), strict=True)) | change
    with pytest.raises(kind) as caught:
        ops.falcon(**call)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["retnet", "mamba-2", "gated-deltanet"])
def test_a_gate_out_of_its_range_is_called_as_its_argument(name):
    """The argument is `ridge` for every rule, whether it is a ridge or a gate."""
    rule = Rule(name)
    q, k, v, gain, gate = inputs(rule, time=1)
    gate[1, 0, 2] = 1.5
    for form in ("chunked", "recurrent", "masked"):
        with pytest.raises(ValueError, match=r"^ridge\[1, 0, 2\] is 1.5: gamma must be in \[0, 1\]$"):
            ops.falcon(q, k, v, gain, gate, rule=rule, form=form)
    with pytest.raises(ValueError, match=r"^ridge\[1, 0, 2\] is 1.5: gamma must be in \[0, 1\]$"):
        ops.falcon_step(q, k, v, gain, gate, rule=rule, state=ops.fresh_state(rule, q, v))


def test_wrong_offsets_are_refused():
    for offsets in ([0, 20], [1, 21], [0, 12, 3, 21]):
        with pytest.raises(ValueError, match="offsets"):
            ops.falcon(*inputs(Rule("falcon-1"), batch=1), cu_seqlens=torch.tensor(offsets))
    # A right call still works afterwards.
    ops.falcon(*inputs(Rule("falcon-1"), batch=1), cu_seqlens=torch.tensor([0, 3, 21], dtype=torch.int32))


def test_a_step_of_several_tokens_is_refused():
    given = inputs(Rule("falcon-1"))
    with pytest.raises(ValueError, match="falcon_step takes one token, got a time of 21"):
        ops.falcon_step(*given, state=ops.fresh_state("falcon-1", given[0], given[2]))


def test_a_state_that_does_not_fit_is_named_with_its_part():
    given = inputs(Rule("falcon-1"), time=1)
    state = ops.fresh_state("falcon-1", given[0], given[2])
    wrong = state._replace(memory=state.memory[:1])
    message = ".memory must be [2, 4, 5, 6] for falcon-1, got shape [1, 4, 5, 6]"
    with pytest.raises(ValueError) as caught:
        ops.falcon(*given, initial_state=wrong)
    assert str(caught.value) == f"initial_state{message}"
    with pytest.raises(ValueError) as caught:
        ops.falcon_step(*given, state=wrong)
    assert str(caught.value) == f"state{message}"
