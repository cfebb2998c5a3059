"""The layer and the models: packing, caches, padding, generation, files, gradients."""

from types import SimpleNamespace

import pytest
import reasons

torch = pytest.importorskip("torch", reason=reasons.TORCH)

from falcon_fwa import RULES  # noqa: E402
from falcon_fwa.layers import FalconAttention  # noqa: E402
from falcon_fwa.ops import triton as mapping  # noqa: E402

ROUNDING = {"atol": 1e-5, "rtol": 1e-4}
"""Of float32 results that are computed in another order: the largest difference seen is a quarter of this."""


def layer(rule, **keys):
    torch.manual_seed(0)
    attention = FalconAttention(24, 4, rule, **keys)
    with torch.no_grad():
        # Gates that differ from token to token.
        for name in ("b_proj", "a_proj"):
            if hasattr(attention, name):
                getattr(attention, name).weight.normal_()
    return attention


def options_of(rule):
    """Options that a layer with this rule usually has."""
    if rule == "softmax":
        return dict(gain="none", decay="none", align="same", output_norm="none", rope_theta=1e4)
    if rule in ("linear-attention", "normalised-linear-attention"):
        return dict(gain="none", decay="none", align="same", feature_map="elu-plus-one")
    if rule == "retnet":
        return dict(gain="none", decay="fixed", align="same", rope_theta=1e4, head_v_dim=12)
    if rule == "mamba-2":
        return dict(gain="delta", decay="selective", align="same", num_key_heads=1, output_norm="all", value_skip=True,
                    output_gate="before-norm", qk_norm="none")  # fmt: skip
    if rule in ("deltanet", "gated-deltanet"):
        decay = "none" if rule == "deltanet" else "selective"
        return dict(gain="sigmoid", decay=decay, align="same", qk_norm="l2")
    return dict(gain="beta", qk_norm="l2") if rule == "online-ridge" else {}


@pytest.mark.parametrize("rule", [*RULES, "softmax"])
def test_packed_sequences_match_separate_ones(rule):
    attention = layer(rule, **options_of(rule))
    x = torch.randn(1, 19, 24, requires_grad=True)
    packed, _, _ = attention(x, cu_seqlens=torch.tensor([0, 2, 11, 19]))
    alone = torch.cat([attention(x[:, piece])[0] for piece in (slice(0, 2), slice(2, 11), slice(11, 19))], 1)
    torch.testing.assert_close(packed, alone, **ROUNDING)
    grads = [torch.autograd.grad(y.square().sum(), x, retain_graph=True)[0] for y in (packed, alone)]
    torch.testing.assert_close(grads[0], grads[1], **ROUNDING)


def test_wrong_options_are_refused_with_the_reason():
    for keys, message in [
        (dict(rule="falcon"), "rule must be softmax or one of"),
        (dict(qk_norm="layer"), "qk_norm must be one of none, rms, l2, got 'layer'"),
        (dict(num_key_heads=3), "num_key_heads must divide num_heads = 4, got 3"),
        (dict(gain="delta"), 'gain "delta" needs decay "selective"'),
    ]:
        with pytest.raises(ValueError, match=message):
            FalconAttention(24, 4, **keys)


def test_the_backend_of_a_layer():
    assert layer("falcon-1").backend == "kernels"
    assert layer("softmax", **options_of("softmax")).backend == "torch"


def test_the_backend_of_a_layer_on_a_gpu_depends_on_its_rule(monkeypatch):
    """There is no GPU here, so the last matrix is replaced by one that says it is on a GPU."""
    monkeypatch.setattr(mapping, "missing", lambda: None)

    def backend(rule, dtype=torch.float32, **keys):
        attention = layer(rule, **options_of(rule), **keys)
        attention.o_proj = torch.nn.Module()
        attention.o_proj.weight = SimpleNamespace(device=torch.device("cuda:0"), dtype=dtype)
        return attention.backend

    assert backend("falcon-1") == backend("gated-deltanet") == "triton"
    # Flash-linear-attention's kernels have no gain for each column, no window, no float64 and no wide keys.
    assert backend("falcon-2") == backend("falcon-3") == backend("falcon-1", read="before") == "torch"
    assert backend("falcon-1", torch.float64) == backend("falcon-1", head_dim=257) == "torch"
    assert backend("softmax") == "torch"


transformers = pytest.importorskip("transformers", reason=reasons.TRANSFORMERS)

from falcon_fwa.models import FalconFwaConfig, FalconFwaForCausalLM  # noqa: E402


def model(rule, **keys):
    torch.manual_seed(0)
    sizes = dict(vocab_size=50, hidden_size=24, num_hidden_layers=2, intermediate_size=32, num_heads=4, num_key_heads=4,
                 head_dim=6, head_v_dim=6, mup_base_width=24)  # fmt: skip
    config = FalconFwaConfig(mixer=rule, **{**sizes, **options_of(rule), "window": 4 if "3" in rule else 1, **keys})
    lm = FalconFwaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            if "_proj" in name:
                parameter.normal_(std=0.3)
    return lm


@pytest.mark.parametrize("rule", [*RULES, "softmax"])
def test_pieces_with_a_cache_match_the_whole(rule):
    lm, ids = model(rule), torch.randint(50, (2, 23))
    with torch.no_grad():
        expected = lm(ids, use_cache=False).logits
        outputs = lm(ids[:, :9])
        logits = [outputs.logits]
        for piece in (slice(9, 10), slice(10, 11), slice(11, 19), slice(19, 23)):
            outputs = lm(ids[:, piece], past_key_values=outputs.past_key_values)
            logits.append(outputs.logits)
    torch.testing.assert_close(torch.cat(logits, 1), expected, **ROUNDING)
    assert outputs.past_key_values.get_seq_length() == 23


@pytest.mark.parametrize("rule", ["falcon-1", "falcon-3a", "retnet", "mamba-2", "softmax"])
def test_padding_does_not_affect_other_tokens(rule):
    lm, ids = model(rule), torch.randint(50, (2, 12))
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    with torch.no_grad():
        padded = lm(ids, attention_mask=mask)
        alone, beside = lm(ids[:1, 5:]).logits, lm(ids[1:]).logits
        torch.testing.assert_close(padded.logits[:1, 5:], alone, **ROUNDING)
        torch.testing.assert_close(padded.logits[1:], beside, **ROUNDING)
        # Later tokens do not see the padding either.
        mask = torch.cat([mask, torch.ones(2, 1, dtype=mask.dtype)], 1)
        after = lm(ids[:, :1], attention_mask=mask, past_key_values=padded.past_key_values).logits
        whole = lm(torch.cat([ids[:1, 5:], ids[:1, :1]], 1)).logits[:, -1:]
    torch.testing.assert_close(after[:1], whole, **ROUNDING)


@pytest.mark.parametrize("rule", ["falcon-1", "falcon-3", "mamba-2", "softmax"])
def test_generate_matches_a_greedy_loop(rule):
    lm, ids = model(rule), torch.randint(50, (2, 7))
    got = lm.generate(ids, max_new_tokens=9, do_sample=False)
    expected = ids
    with torch.no_grad():
        for _ in range(9):
            best = lm(expected, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
            expected = torch.cat([expected, best], 1)
    assert torch.equal(got, expected)
    beams = lm.generate(ids, max_new_tokens=4, num_beams=3, do_sample=False)
    assert beams.shape == (2, 11)


@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_model_opens(tmp_path, tied):
    lm = model("falcon-3a", tie_word_embeddings=tied)
    lm.save_pretrained(tmp_path)
    opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert isinstance(opened, FalconFwaForCausalLM)
    ids = torch.randint(50, (1, 9))
    torch.testing.assert_close(opened(ids).logits, lm(ids).logits, atol=0, rtol=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_model_with_weights_that_are_not_finite_does_not_open(tmp_path, value):
    lm = model("falcon-1")
    with torch.no_grad():
        lm.model.layers[1].attn.k_proj.weight[3, 5] = value
    lm.save_pretrained(tmp_path)
    for kind in (FalconFwaForCausalLM, transformers.AutoModelForCausalLM, transformers.AutoModel):
        words = rf"layers\.1\.attn\.k_proj\.weight' holds {value} at index \[3, 5\]"
        with pytest.raises(ValueError, match=words) as caught:
            kind.from_pretrained(tmp_path)
        assert str(caught.value).startswith(f"{tmp_path}: tensor ")
    with pytest.raises(ValueError, match=r"at index \[3, 5\]"):
        FalconFwaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)


def test_weights_too_large_for_the_dtype_asked_for_are_refused(tmp_path):
    lm = model("falcon-1")
    with torch.no_grad():
        lm.model.norm.weight[2] = 1e6
    lm.save_pretrained(tmp_path)
    opened, _ = FalconFwaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert opened.model.norm.weight[2] == 1e6
    with pytest.raises(ValueError, match=r"'model.norm.weight' holds inf at index \[2\] in torch.float16"):
        FalconFwaForCausalLM.from_pretrained(tmp_path, dtype=torch.float16)


def test_weights_in_8_bits_are_refused():
    with pytest.raises(ValueError, match="weight_format is 'int8': only the program falcon reads such weights"):
        FalconFwaConfig(weight_format="int8")
    assert "weight_format" not in FalconFwaConfig(weight_format="bf16").to_dict()


def test_gradient_checkpointing_does_not_change_gradients():
    lm, ids = model("falcon-1").train(), torch.randint(50, (2, 15))
    lm(ids, labels=ids).loss.backward()
    expected = {name: parameter.grad.clone() for name, parameter in lm.named_parameters()}
    lm.zero_grad()
    lm.gradient_checkpointing_enable()
    lm(ids, labels=ids).loss.backward()
    for name, parameter in lm.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], msg=name)


def test_a_model_learns():
    """A short sequence that repeats itself is memorised."""
    lm, ids = model("falcon-1a").train(), torch.arange(12).repeat(2, 2)
    optimizer = torch.optim.AdamW(lm.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = lm(ids, labels=ids).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # A model that does not learn stays at the first loss.
    assert losses[-1] < 0.2 * losses[0]
