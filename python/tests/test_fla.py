"""Functions with flash-linear-attention's names against its references, and models of transformers with enable_fla."""

import importlib
import inspect
import itertools
import subprocess
import sys

import pytest
import reasons

torch = pytest.importorskip("torch", reason=reasons.TORCH)

from torch.nn import functional  # noqa: E402

import falcon_fwa  # noqa: E402
from falcon_fwa import fla_backend  # noqa: E402
from falcon_fwa.ops import fla as ops  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


ROUNDING = 2e-5
"""Of float32 results and gradients that are computed in another order: the largest difference seen is 1.1e-6."""


def close(got, expected, name, tolerance=ROUNDING):
    error = (got - expected).abs().max().item() / max(expected.abs().max().item(), 1e-6)
    assert error < tolerance, f"{name} is off by {error:.1e} of its largest number"


# --- our functions against references --------------------------------------------------------------------------------


def inputs(key_heads=2, heads=2, initial=False, sequences=2, batch=2, time=70, dim_k=6, dim_v=5):
    """All tensors that a function may take; with positive queries and keys, so that linear attention can divide."""
    generator = torch.Generator().manual_seed(key_heads + 10 * heads)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    tensors = {
        "q": normal(batch, time, key_heads, dim_k).abs(),
        "k": functional.normalize(normal(batch, time, key_heads, dim_k), dim=-1).abs(),
        "v": normal(batch, time, heads, dim_v),
        "g": functional.logsigmoid(normal(batch, time, heads) + 2),
        "beta": normal(batch, time, heads).sigmoid(),
    }
    if initial:
        tensors["initial_state"] = normal(sequences, heads, dim_k, dim_v)
    return {name: value.requires_grad_() for name, value in tensors.items()}


def naive(family, q, k, v, g, beta, scale, initial_state):
    """The reference of flash-linear-attention, for equal heads and whole sequences."""
    module = importlib.import_module(f"fla.ops.{family}.naive")
    if family == "gated_delta_rule":
        return module.naive_recurrent_gated_delta_rule(q, k, v, beta, g, scale, initial_state, True)
    if family == "simple_gla":
        return module.naive_recurrent_simple_gla(q, k, v, g, scale, initial_state, True)
    if family == "linear_attn":
        return module.naive_recurrent_linear_attn(q, k, v, scale, initial_state, True)
    # The other references have the axis of heads before that of time, and apply the default scale themselves.
    default = q.shape[-1] ** -0.5
    q, k, v, beta = (x.transpose(1, 2) for x in (q * (default if scale is None else scale) / default, k, v, beta))
    if family == "delta_rule":
        out, state = module.delta_rule_recurrence(q, k, v, beta, initial_state)
        return out.transpose(1, 2), state
    return module.naive_retention(q, k, v).transpose(1, 2), None


def reference(family, given, scale=None, norm=False, v_first=False, offsets=None):
    given = dict(given)
    group = given["v"].shape[2] // given["q"].shape[2]
    for name in "qk":
        if norm:
            given[name] = given[name] / (given[name].square().sum(-1, keepdim=True) + 1e-6).sqrt()
        given[name] = given[name].repeat_interleave(group, 2)
    state = given.pop("initial_state", None)
    state = state.transpose(-1, -2) if v_first and state is not None else state
    spans = [slice(None)] if offsets is None else [slice(*span) for span in itertools.pairwise(offsets)]
    states = [state] if offsets is None or state is None else state.split(1)
    states = states if len(states) == len(spans) else [None] * len(spans)
    parts = [
        naive(family, **{name: value[:, span] for name, value in given.items()}, scale=scale, initial_state=before)
        for span, before in zip(spans, states, strict=True)
    ]
    out = torch.cat([out for out, _ in parts], 1)
    if parts[0][1] is None:
        return out, None
    final = torch.cat([final for _, final in parts])
    return out, final.transpose(-1, -2) if v_first else final


def compare(got, expected, given, tolerance=ROUNDING):
    """Compare outputs, final states, and the gradients of a random weighted sum of both."""
    generator = torch.Generator().manual_seed(0)
    pairs = [(a, b) for a, b in zip(got, expected, strict=True) if b is not None]
    for (a, b), name in zip(pairs, ("output", "final state"), strict=False):
        assert a.shape == b.shape and a.dtype == b.dtype
        close(a, b, name, tolerance)
    weights = [torch.randn(b.shape, generator=generator, dtype=b.dtype) for _, b in pairs]
    sums = [sum((pair[side] * weight).sum() for pair, weight in zip(pairs, weights, strict=True)) for side in (0, 1)]
    grads = [torch.autograd.grad(total, list(given.values()), allow_unused=True) for total in sums]
    for name, a, b in zip(given, *grads, strict=True):
        assert (a is None) == (b is None), name
        if b is not None:
            close(a, b, f"gradient of {name}", tolerance)


FUNCTIONS = {
    "gated_delta_rule": (ops.chunk_gated_delta_rule, ops.fused_recurrent_gated_delta_rule),
    "delta_rule": (ops.chunk_delta_rule, ops.fused_recurrent_delta_rule),
    "simple_gla": (ops.chunk_simple_gla, ops.fused_recurrent_simple_gla),
    "retention": (ops.chunk_retention, ops.fused_recurrent_retention),
    "linear_attn": (ops.chunk_linear_attn, ops.fused_recurrent_linear_attn),
}
CASES = {
    "plain": {},
    "scale": {"scale": 0.3},
    "initial": {"initial": True},
    "packed": {"offsets": [0, 1, 40, 70], "initial": True},
    "norm": {"norm": True},
    "grouped": {"heads": 4, "initial": True},
    "v_first": {"v_first": True, "initial": True},
}


def _cases():
    for family, functions in FUNCTIONS.items():
        for function in functions:
            takes = inspect.signature(function).parameters
            for name, case in CASES.items():
                unknown = (case.get("norm") and "use_qk_l2norm_in_kernel" not in takes) or (
                    case.get("v_first") and "state_v_first" not in takes
                )
                stateless = family == "retention" and (case.get("initial") or case.get("heads"))
                if not unknown and not stateless:
                    yield pytest.param(family, function, case, id=f"{function.__name__}-{name}")


@pytest.mark.parametrize("family, function, case", list(_cases()))
def test_functions_agree_with_references(family, function, case):
    pytest.importorskip("fla", reason=reasons.FLA)
    case = dict(case)
    offsets = case.get("offsets")
    packed = {"batch": 1, "sequences": 3} if offsets else {}
    given = inputs(heads=case.pop("heads", 2), initial=case.pop("initial", False), **packed)
    if case.get("v_first"):
        given["initial_state"] = given["initial_state"].detach().mT.clone().requires_grad_()
    options = {"scale": case.get("scale"), "initial_state": given.get("initial_state"), "output_final_state": True}
    options |= {"use_qk_l2norm_in_kernel": True} if case.get("norm") else {}
    options |= {"state_v_first": True} if case.get("v_first") else {}
    options |= {"cu_seqlens": torch.tensor(offsets)} if offsets else {}
    options |= {"normalize": False} if family == "linear_attn" else {}
    takes = inspect.signature(function).parameters
    tensors = {name: given[name] for name in ("q", "k", "v", "g", "beta") if name in takes}
    got = function(**tensors, **options)
    expected = reference(family, given, **case)
    compare(got if expected[1] is not None else (got[0], None), expected, given)


@pytest.mark.parametrize("function", FUNCTIONS["linear_attn"])
@pytest.mark.parametrize("initial", [False, True])
def test_linear_attention_divides_by_the_total_weight(function, initial):
    module = pytest.importorskip("fla.ops.linear_attn.naive", reason=reasons.FLA)
    given = inputs()
    given = {name: given[name] for name in "qkv"}
    before = None
    if initial:
        given |= {"memory": torch.randn(2, 2, 6, 5).requires_grad_(), "keys": torch.rand(2, 1, 2, 6).requires_grad_()}
        before = (given["memory"], given["keys"])
    tokens = {name: given[name] for name in "qkv"}
    options = {"initial_state": before, "output_final_state": True, "normalize": True}
    out, (state, keys) = function(**tokens, **options)
    expected, (expected_state, expected_keys) = module.naive_recurrent_linear_attn(**tokens, **options)
    close(keys, expected_keys, "sum of the keys")
    compare((out, state + keys.sum()), (expected, expected_state + expected_keys.sum()), given)


def test_gates_and_gains_are_made_from_raw_inputs():
    module = pytest.importorskip("fla.ops.gated_delta_rule.naive", reason=reasons.FLA)
    given = inputs() | {"A_log": torch.rand(2).requires_grad_(), "dt_bias": torch.rand(2).requires_grad_()}
    raw = {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}
    tokens = {name: given[name] for name in "qkv"}
    for function in FUNCTIONS["gated_delta_rule"]:
        g = -given["A_log"].exp() * functional.softplus(given["g"] + given["dt_bias"])
        beta = 2 * given["beta"].sigmoid()
        expected = module.naive_recurrent_gated_delta_rule(**tokens, g=g, beta=beta, output_final_state=True)
        compare(function(**given, **raw, output_final_state=True), expected, given)


def test_float64_is_not_rounded_to_float32():
    given = {name: value.detach().double().requires_grad_() for name, value in inputs(initial=True).items()}
    out, state = ops.chunk_gated_delta_rule(**given, output_final_state=True)
    assert out.dtype == state.dtype == torch.float64
    memory, outs = given["initial_state"], []
    q, k, v, g, beta = (given[name].transpose(1, 2) for name in ("q", "k", "v", "g", "beta"))
    for t in range(q.shape[2]):
        memory = memory * g[:, :, t, None, None].exp()
        delta = (v[:, :, t] - torch.einsum("bhk,bhkv->bhv", k[:, :, t], memory)) * beta[:, :, t, None]
        memory = memory + k[:, :, t, :, None] * delta[:, :, None]
        outs.append(torch.einsum("bhk,bhkv->bhv", q[:, :, t] * 6**-0.5, memory))
    # Rounding in float64: the largest difference seen is 1e-15. One rounding to float32 would be 6e-8.
    compare((out, state), (torch.stack(outs, 1), memory), given, 1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype):
    given = {name: value.detach().to(dtype) for name, value in inputs().items()}
    wide = {name: value.float() for name, value in given.items()}
    out, state = ops.chunk_gated_delta_rule(**given, output_final_state=True, use_qk_l2norm_in_kernel=True)
    expected, expected_state = ops.chunk_gated_delta_rule(**wide, output_final_state=True, use_qk_l2norm_in_kernel=True)
    assert out.dtype == dtype and state.dtype == torch.float32
    assert torch.equal(out, expected.to(dtype)) and torch.equal(state, expected_state)
    mixed, _ = ops.chunk_gated_delta_rule(**{**wide, "v": given["v"]}, use_qk_l2norm_in_kernel=True)
    assert torch.equal(mixed, out)


def test_one_token_without_gradients_gives_the_same_results():
    given = {name: value.detach() for name, value in inputs(initial=True, time=1).items()}
    for function in FUNCTIONS["gated_delta_rule"]:
        with torch.no_grad():
            out, state = function(**given, output_final_state=True)
        expected, expected_state = function(**given, output_final_state=True)
        close(out, expected, "output")
        close(state, expected_state, "state")


# --- enable_fla ------------------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch):
    """The rules of all calls of our kernels."""
    seen, run = [], ops._run
    monkeypatch.setattr(ops, "_run", lambda rule, *args: seen.append(rule) or run(rule, *args))
    return seen


@pytest.fixture
def enabled():
    yield falcon_fwa.enable_fla()
    falcon_fwa.disable_fla()


def snapshot():
    """Every attribute of every module of both packages, and fla's registries, by identity."""
    backends = sys.modules["fla.backends"]
    registries = [*backends._operation_registries.items(), *backends._function_registries.items()]
    names = [name for name in sys.modules if name.partition(".")[0] in ("fla", "transformers")]
    seen = {(name, key): value for name in names for key, value in list(vars(sys.modules[name]).items())}
    seen |= {(str(key), name): backend for key, registry in registries for name, backend in registry._backends.items()}
    base = sys.modules["transformers.modeling_utils"].PreTrainedModel
    return seen | {("PreTrainedModel", key): value for key, value in vars(base).items()}


def differences(before, after):
    return {key for key in before.keys() | after.keys() if before.get(key) is not after.get(key)}


@pytest.fixture
def packages():
    for name in (
        "fla",
        "transformers",
        "transformers.modeling_utils",
        "transformers.models.qwen3_next.modeling_qwen3_next",
    ):
        pytest.importorskip(name, reason=reasons.FLA if name == "fla" else reasons.TRANSFORMERS)
    for family in FUNCTIONS:
        importlib.import_module(f"fla.ops.{family}")


def test_disabling_restores_everything(packages):
    before = snapshot()
    report = falcon_fwa.enable_fla()
    try:
        between = snapshot()
        changed = {f"{module}.{name}" for module, name in differences(before, between)}
        assert {*report.patched, *report.transformers} <= changed
        assert "fla.layers.delta_net.chunk_delta_rule" in changed
        assert falcon_fwa.enable_fla() == report
        assert not differences(between, snapshot())
    finally:
        falcon_fwa.disable_fla()
    assert not differences(before, snapshot())
    falcon_fwa.disable_fla()
    assert not differences(before, snapshot())


def test_models_loaded_later_are_patched_and_restored(packages):
    name = "transformers.models.olmo_hybrid.modeling_olmo_hybrid"
    sys.modules.pop(name, None)
    falcon_fwa.enable_fla()
    try:
        module = importlib.import_module(name)
        replacement = module.torch_chunk_gated_delta_rule
        assert f"{name}.torch_chunk_gated_delta_rule" in falcon_fwa.enable_fla().transformers
    finally:
        falcon_fwa.disable_fla()
    assert module.torch_chunk_gated_delta_rule is replacement.__wrapped__
    assert "hub_kernels" in module.torch_chunk_gated_delta_rule.__code__.co_filename


@pytest.mark.parametrize("family", FUNCTIONS)
def test_functions_of_fla_use_our_kernels(packages, enabled, calls, family):
    module = importlib.import_module(f"fla.ops.{family}")
    given = inputs()
    expected, _ = reference(family, given)
    names = [name for name in module.__all__ if name.endswith(family) and "naive" not in name]
    names = [name for name in names if name != "fused_chunk_delta_rule"]  # deprecated in fla: it raises an error
    assert len(names) >= 2
    for name in names:
        function = getattr(module, name)
        takes = inspect.signature(function).parameters
        tokens = {key: given[key] for key in ("q", "k", "v", "g", "beta") if key in takes}
        out, _ = function(**tokens, **({"normalize": False} if family == "linear_attn" else {}))
        close(out, expected, name)
    assert len(calls) == len(names)


def test_unsupported_calls_go_to_fla(packages, enabled, monkeypatch):
    function = fla_backend._fla_function(ops.fused_recurrent_gated_delta_rule, lambda *_, **__: "fla")
    given = {name: value.detach() for name, value in inputs().items()}
    elsewhere = {name: value.to("meta") for name, value in given.items()}
    assert function(**given, gk=None, gv=None)[0].shape == given["v"].shape
    assert function(**given, gk=given["k"]) == function(**given, gv=given["v"]) == "fla"
    assert function(**given, something=1) == function(**elsewhere) == "fla"
    assert function(given["q"], given["k"], given["v"], given["g"], given["k"]) == "fla"

    backends = sys.modules["fla.backends"]
    backend = backends._operation_registries["gated_delta_rule"]._backends["falcon_fwa"]
    assert backend.verify("chunk_gated_delta_rule", **given) == (True, None)
    assert backend.verify("chunk_gated_delta_rule", **given, cp_context="context") == (
        False,
        "cp_context is not supported",
    )
    assert backend.verify("chunk_gated_delta_rule", **elsewhere) == (False, "q is on meta")
    assert not backend.verify("fused_recurrent_simple_gla", given["q"], given["k"], given["v"], reverse=True)[0]
    assert not backend.verify("parallel_simple_gla", given["q"], given["k"], given["v"], output_attentions=True)[0]


# --- models of transformers ------------------------------------------------------------------------------------------

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
}  # fmt: skip
MODELS = {
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM"),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM"),
    "olmo_hybrid": ("OlmoHybridConfig", "OlmoHybridForCausalLM"),
}
ENTRIES = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")


def model_and_tokens(kind):
    transformers = pytest.importorskip("transformers", reason=reasons.TRANSFORMERS)
    config, model = MODELS[kind]
    if not hasattr(transformers, model):
        pytest.skip(f"this transformers has no {model}")
    torch.manual_seed(0)
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
    model = getattr(transformers, model)(getattr(transformers, config)(**SIZES, **special))
    for name, value in model.named_parameters():
        if name.endswith("A_log"):  # gates of a new model are mostly 0; these let gradients through
            value.data.copy_(torch.linspace(-4, 0, len(value)))
    return model, torch.randint(2, 64, (2, 75))


def results(model, tokens):
    model.train()
    model.zero_grad()
    out = model(tokens, labels=tokens)
    out.loss.backward()
    grads = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    greedy = model.eval().generate(tokens[:, :20], max_new_tokens=12, do_sample=False)
    return out.logits.detach(), grads, greedy


@pytest.mark.parametrize("kind", MODELS)
def test_models_give_the_same_results(monkeypatch, calls, kind):
    model, tokens = model_and_tokens(kind)
    with monkeypatch.context() as patch:
        module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
        for name in ENTRIES:  # plain PyTorch, even if fla is installed
            patch.setattr(module, name, getattr(module, name).__wrapped__)
        logits, grads, greedy = results(model, tokens)
    assert not calls

    falcon_fwa.enable_fla()
    try:
        got = results(model, tokens)
    finally:
        falcon_fwa.disable_fla()
    assert calls.count("gated-deltanet") == 3 * (1 + 12)  # three layers: a forward pass, then a prompt and 11 tokens
    # Rounding in float32 through four layers: the largest differences seen are 4e-7 and 4e-6.
    close(got[0], logits, "logits", 1e-5)
    assert got[1].keys() == grads.keys() and len(grads) > 20
    for name, grad in grads.items():
        close(got[1][name], grad, name, 1e-4)
    assert torch.equal(got[2], greedy)


def test_gated_delta_rule_matches_that_of_transformers():
    module = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next", reason=reasons.TRANSFORMERS)
    plain = module.torch_chunk_gated_delta_rule.__wrapped__
    given = inputs(heads=4, initial=True)
    options = {"initial_state": given["initial_state"], "output_final_state": True, "use_qk_l2norm_in_kernel": True}
    tokens = [given[name] for name in ("q", "k", "v", "g", "beta")]
    compare(ops.chunk_gated_delta_rule(*tokens, **options), plain(*tokens, **options), given)


def test_without_fla():
    """In another process, where fla cannot be imported, and a package for convolutions fails when it is called."""
    pytest.importorskip("transformers", reason=reasons.TRANSFORMERS)
    code = f"""
import sys, types
sys.path.insert(0, {str(importlib.import_module("pathlib").Path(__file__).parent)!r})
sys.modules["fla"] = None
sys.modules["causal_conv1d"] = broken = types.ModuleType("causal_conv1d")
def fail(x, weight, bias=None, seq_idx=None, activation=None):
    raise RuntimeError("needs a GPU")
broken.causal_conv1d_fn = broken.causal_conv1d_update = fail
import torch, falcon_fwa
assert "transformers" not in sys.modules
report = falcon_fwa.enable_fla()
assert not report.registered and not report.patched
from test_fla import model_and_tokens, ops
seen, run = [], ops._run
ops._run = lambda *args: seen.append(1) or run(*args)
model, tokens = model_and_tokens("qwen3_next")
model(tokens, labels=tokens).loss.backward()
model.eval().generate(tokens[:, :20], max_new_tokens=3, do_sample=False)
assert len(falcon_fwa.enable_fla().transformers) == 4
falcon_fwa.disable_fla()
try:
    model(tokens)
except RuntimeError as error:
    print(len(seen), error)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{3 * (1 + 3)} needs a GPU"


def test_importing_the_package_does_not_import_torch():
    code = "import sys, falcon_fwa; assert callable(falcon_fwa.enable_fla) and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
