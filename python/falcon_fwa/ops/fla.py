"""Operations with flash-linear-attention's names, arguments, order and defaults, on our kernels.

All functions have in common: ``q`` and ``k`` are ``[B, T, H, K]``, ``v`` is ``[B, T, HV, V]`` with ``HV`` a multiple of
``H``; queries are multiplied by ``scale``, ``1/√K`` if not given; states are ``[N, HV, K, V]`` in float32, or
``[N, HV, V, K]`` with ``state_v_first``; with ``cu_seqlens`` the batch is 1 and ``N`` sequences are packed along time.
Gates are logarithms, ``g ≤ 0``. Arguments that only configure Triton kernels (``cu_seqlens_cpu``, ``chunk_indices``)
are accepted and ignored.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .falcon import FalconState, falcon, falcon_step, fresh_state

_NORM_EPS = 1e-6


def _l2norm(x: Tensor) -> Tensor:
    """Rows of length 1, as the kernels of flash-linear-attention make them."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + _NORM_EPS)


def _refuse(function: str, options: dict[str, Any], allowed: tuple[str, ...] = ("chunk_size",)) -> None:
    """Refuse options that would change the result, but are not supported here."""
    for name, value in options.items():
        if name not in allowed and value is not None and value is not False:
            raise NotImplementedError(f"{function}: {name}={value!r} is not supported by falcon_fwa's CPU kernels")


def _v_first(options: dict[str, Any], state_v_first: bool) -> bool:
    """Take the old name of ``state_v_first`` out of the options, and warn as flash-linear-attention does."""
    if "transpose_state_layout" not in options:
        return state_v_first
    if state_v_first:
        raise ValueError("state_v_first and its old name transpose_state_layout are both given; leave out the latter")
    warnings.warn("transpose_state_layout is now called state_v_first", DeprecationWarning, stacklevel=4)
    return bool(options.pop("transpose_state_layout"))


def _memory(state: Tensor | None, state_v_first: bool) -> Tensor | None:
    return state.transpose(-1, -2) if state is not None and state_v_first else state


def _wide(*inputs: Tensor) -> torch.dtype:
    """The dtype to compute in, float32 or float64: inputs may have several dtypes, and none is rounded."""
    return functools.reduce(torch.promote_types, (x.dtype for x in inputs), torch.float32)


def _run(
    rule: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gain: Tensor | None,
    log_gate: Tensor | None,
    scale: float | None,
    initial_state: Tensor | None,
    output_final_state: bool,
    state_v_first: bool,
    cu_seqlens: Tensor | None,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    if q.shape != k.shape:
        raise ValueError(f"q and k must have the same shape, got q {list(q.shape)} and k {list(k.shape)}")
    if cu_seqlens is not None:
        if q.shape[0] != 1:
            raise ValueError(f"with cu_seqlens the batch must be 1, got {q.shape[0]}; flatten the sequences first")
        if initial_state is not None and initial_state.shape[0] != len(cu_seqlens) - 1:
            wanted = len(cu_seqlens) - 1
            got = initial_state.shape[0]
            raise ValueError(f"initial_state must have one state for each of {wanted} sequences, got {got}")
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    dtype, wide = v.dtype, _wide(q, k, v)
    q, k, v = (x.to(wide) for x in (q, k, v))
    gain = None if gain is None else gain.to(wide)
    gate = None if log_gate is None else log_gate.to(wide).exp()
    state = None
    memory = _memory(initial_state, state_v_first)
    if memory is not None:
        memory = memory.to(wide)
        state = fresh_state(rule, k, v, memory.shape[0])._replace(memory=memory)
    inputs = (q * scale, k, v, gain, gate)
    final: FalconState | None
    if q.shape[1] == 1 and cu_seqlens is None and state is not None and not torch.is_grad_enabled():
        out, final = falcon_step(*inputs, state=state, rule=rule)
        final = final if output_final_state else None
    else:
        out, final = falcon(
            *inputs, rule=rule, initial_state=state, output_final_state=output_final_state, cu_seqlens=cu_seqlens,
            chunk_size=chunk_size or 64,
        )  # fmt: skip
    return out.to(dtype), None if final is None else _memory(final.memory, state_v_first)


def _gate_from_context(g: Tensor, a_log: Tensor, dt_bias: Tensor | None) -> Tensor:
    """``−exp(A_log) · softplus(g + dt_bias)``, in float32."""
    shifted = g.float() if dt_bias is None else g.float() + dt_bias.float()
    return -a_log.float().exp() * functional.softplus(shifted)


def _gated_delta_rule(
    function: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    scale: float | None,
    initial_state: Tensor | None,
    output_final_state: bool,
    use_qk_l2norm_in_kernel: bool,
    use_beta_sigmoid_in_kernel: bool,
    allow_neg_eigval: bool,
    state_v_first: bool,
    cu_seqlens: Tensor | None,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    options = dict(options)
    state_v_first = _v_first(options, state_v_first)
    use_gate, a_log, dt_bias = (options.pop(name, None) for name in ("use_gate_in_kernel", "A_log", "dt_bias"))
    _refuse(function, options)
    if use_qk_l2norm_in_kernel:
        q, k = _l2norm(q), _l2norm(k)
    if use_gate:
        if g is None or a_log is None:
            raise ValueError(f"{function}: use_gate_in_kernel needs g and A_log")
        g = _gate_from_context(g, a_log, dt_bias)
    if allow_neg_eigval and not use_beta_sigmoid_in_kernel:
        raise ValueError(f"{function}: allow_neg_eigval=True requires use_beta_sigmoid_in_kernel=True")
    if beta is None:
        beta = v.new_ones(v.shape[:3])
    if use_beta_sigmoid_in_kernel:
        beta = beta.sigmoid() * (2 if allow_neg_eigval else 1)
    rule = "deltanet" if g is None else "gated-deltanet"
    chunk_size = options.get("chunk_size")
    return _run(rule, q, k, v, beta, g, scale, initial_state, output_final_state, state_v_first, cu_seqlens, chunk_size)


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    cp_context: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Gated DeltaNet: ``S ← eᵍ (I − β k kᵀ) S + β k vᵀ``, ``o = Sᵀ (scale · q)``.

    ``g`` and ``beta`` are ``[B, T, HV]``.
    """
    del cu_seqlens_cpu, chunk_indices
    _refuse("chunk_gated_delta_rule", {"cp_context": cp_context})
    return _gated_delta_rule(
        "chunk_gated_delta_rule", q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel, allow_neg_eigval, state_v_first, cu_seqlens, kwargs,
    )  # fmt: skip


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Gated DeltaNet, as :func:`chunk_gated_delta_rule`; gates per channel (``gk``, ``gv``) are not supported."""
    _refuse("fused_recurrent_gated_delta_rule", {"gk": gk, "gv": gv})
    gates = {"use_gate_in_kernel": use_gate_in_kernel, "A_log": A_log, "dt_bias": dt_bias}
    return _gated_delta_rule(
        "fused_recurrent_gated_delta_rule", q, k, v, g, beta, scale, initial_state, output_final_state,
        use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval, state_v_first, cu_seqlens,
        gates | kwargs,
    )  # fmt: skip


def chunk_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """DeltaNet: ``S ← S + β k (v − Sᵀk)ᵀ``, ``o = Sᵀ (scale · q)``; ``beta`` is ``[B, T, HV]``."""
    del cu_seqlens_cpu
    return _gated_delta_rule(
        "chunk_delta_rule", q, k, v, None, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
        False, False, False, cu_seqlens, kwargs,
    )  # fmt: skip


def fused_recurrent_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """DeltaNet, as :func:`chunk_delta_rule`; ``beta`` may also have one more axis, ``[B, T, HV, V]``."""
    if beta is not None and beta.ndim == 4:
        if use_qk_l2norm_in_kernel:
            q, k = _l2norm(q), _l2norm(k)
        return _delta_rule_per_column(q, k, v, beta, scale, initial_state, output_final_state, cu_seqlens)
    beta = v.new_ones(v.shape[:3]) if beta is None else beta
    return chunk_delta_rule(
        q, k, v, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, cu_seqlens
    )  # fmt: skip


def _delta_rule_per_column(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None,
    initial_state: Tensor | None,
    output_final_state: bool,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Falcon-2 without a ridge is the delta rule with a gain for each column of the value."""
    options: dict[str, Any] = {"rule": "falcon-2", "align": "same", "gain_kind": "eta"}
    dtype, wide = v.dtype, _wide(q, k, v)
    q, k, v, beta = (x.to(wide) for x in (q, k, v, beta))
    state = None
    if initial_state is not None:
        state = fresh_state("falcon-2", q, v, initial_state.shape[0])._replace(memory=initial_state.to(wide))
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    options |= {"initial_state": state, "output_final_state": output_final_state, "cu_seqlens": cu_seqlens}
    out, final = falcon(q * scale, k, v, beta, None, **options)
    return out.to(dtype), None if final is None else final.memory


def chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Linear attention with a gate per head: ``S ← eᵍ S + k vᵀ``, ``o = Sᵀ (scale · q)``.

    ``g`` is ``[B, T, HV]``, ``g_gamma`` is ``[HV]`` for a decay that does not depend on the input; both are added.
    """
    del cu_seqlens_cpu
    state_v_first = _v_first(kwargs, state_v_first)
    _refuse("chunk_simple_gla", kwargs)
    if g_gamma is not None:
        fixed = g_gamma.expand(*v.shape[:2], v.shape[2])
        g = fixed if g is None else g + fixed
    rule = "linear-attention" if g is None else "retnet"
    size = kwargs.get("chunk_size")
    return _run(rule, q, k, v, None, g, scale, initial_state, output_final_state, state_v_first, cu_seqlens, size)


def _refuse_reverse(function: str, reverse: bool) -> None:
    if reverse:
        raise NotImplementedError(f"{function}: reverse=True is not supported by falcon_fwa's CPU kernels")


def fused_recurrent_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Linear attention with a gate per head, as :func:`chunk_simple_gla`."""
    _refuse_reverse("fused_recurrent_simple_gla", reverse)
    return chunk_simple_gla(
        q, k, v, g, g_gamma, scale, initial_state, output_final_state, state_v_first, cu_seqlens, **kwargs
    )  # fmt: skip


def _retention_decay(heads: int, device: torch.device) -> Tensor:
    """``log(1 − 2^(−5−h))`` for head ``h``."""
    return (1 - 2.0 ** (-5.0 - torch.arange(heads, dtype=torch.float, device=device))).log()


def chunk_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """RetNet: ``S ← γ_h S + k vᵀ`` with ``γ_h = 1 − 2^(−5−h)``, ``o = Sᵀ (scale · q)``."""
    return chunk_simple_gla(
        q, k, v, None, _retention_decay(q.shape[2], q.device), scale, initial_state, output_final_state,
        cu_seqlens=cu_seqlens, **kwargs,
    )  # fmt: skip


def fused_recurrent_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """RetNet, as :func:`chunk_retention`."""
    _refuse_reverse("fused_recurrent_retention", reverse)
    return chunk_simple_gla(
        q, k, v, None, _retention_decay(q.shape[2], q.device), scale, initial_state, output_final_state, state_v_first,
        cu_seqlens, **kwargs,
    )  # fmt: skip


def _linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    initial_state: Tensor | tuple[Tensor, Tensor | None] | None,
    output_final_state: bool,
    normalize: bool,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Any]:
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    before = initial_state if isinstance(initial_state, tuple) else (initial_state, None)
    if not normalize:
        return chunk_simple_gla(
            q, k, v, None, None, scale, before[0], output_final_state, cu_seqlens=cu_seqlens
        )  # fmt: skip
    # The total weight is one more column of ones: o = Sᵀq / (zᵀq + ε).
    ones = v.new_ones((*v.shape[:3], 1))
    memory = None
    if before[0] is not None:
        shape = before[0].shape[:3]
        total = before[0].new_zeros(shape) if before[1] is None else before[1].reshape(shape)
        memory = torch.cat([before[0], total.unsqueeze(-1).to(before[0].dtype)], -1)
    out, final = chunk_simple_gla(
        q, k, torch.cat([v, ones], -1), None, None, scale, memory, True, cu_seqlens=cu_seqlens
    )  # fmt: skip
    weight = out[..., -1:]
    assert final is not None, "the state was asked for"
    kept = final[..., :-1] if output_final_state else None
    return out[..., :-1] / (weight + 1e-10), (kept, final[..., -1].unsqueeze(1))


def chunk_linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | tuple[Tensor, Tensor | None] | None = None,
    output_final_state: bool = False,
    normalize: bool = True,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Any]:
    """Linear attention: ``S ← S + k vᵀ``, divided by the total weight if ``normalize``.

    With ``normalize`` the state is a pair: the memory, and the sum of the keys ``[N, 1, H, K]``.
    """
    return _linear_attn(q, k, v, scale, initial_state, output_final_state, normalize, cu_seqlens)


def fused_recurrent_linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | tuple[Tensor, Tensor | None] | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    normalize: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Any]:
    """Linear attention, as :func:`chunk_linear_attn`, by default without the division."""
    _refuse_reverse("fused_recurrent_linear_attn", reverse)
    return _linear_attn(q, k, v, scale, initial_state, output_final_state, normalize, cu_seqlens)
