"""The rules that flash-linear-attention's Triton kernels can run.

Two recurrences of flash-linear-attention (https://github.com/fla-org/flash-linear-attention) are used, both with a
scale of 1 and ``g = log γ``::

    simple GLA          S ← γS + k vᵀ                           v := w v
    gated delta rule    S ← γS + β k (v − γSᵀk)ᵀ                β := w, as it is, for a rule that erases e = γw
                                                                β := w/γ, v := γv, for a rule that erases e = w

The last line is ``S ← γS + (w/γ) x (γv − γSᵀx)ᵀ = γS + w x (v − Sᵀx)ᵀ``, which needs ``γ > 0``. Keys are those that the
values are paired with: ``k := k_{t−1}`` under next-latent alignment, with the last key of the state before the first
token. The first token of a fresh sequence has ``γ = 1`` and ``w = 0``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .chunked import Coefficients, coefficients, heads_apart

if TYPE_CHECKING:
    from .._shapes import Properties
    from .falcon import FalconState

SMALLEST_GATE = 2.0**-40
"""Smaller gates are raised to this, because their logarithm must be finite. What such a gate leaves of the memory is
below the precision of float32. A raised gate has no gradient."""

MOST_KEYS = 256
"""The largest ``dim_k`` of flash-linear-attention's kernels for the delta rule."""


class Kernels(NamedTuple):
    """The two functions of flash-linear-attention that are called, or others with the same keywords."""

    gated_delta_rule: Callable[..., tuple[Tensor, Tensor]]
    simple_gla: Callable[..., tuple[Tensor, Tensor]]


def chunked_kernels() -> Kernels:
    """Get the kernels for sequences, which have gradients."""
    delta, linear = import_module("fla.ops.gated_delta_rule"), import_module("fla.ops.simple_gla")
    return Kernels(delta.chunk_gated_delta_rule, linear.chunk_simple_gla)


def recurrent_kernels() -> Kernels:
    """Get the kernels for few tokens; that of the gated delta rule has no gradient."""
    delta, linear = import_module("fla.ops.gated_delta_rule"), import_module("fla.ops.simple_gla")
    return Kernels(delta.fused_recurrent_gated_delta_rule, linear.fused_recurrent_simple_gla)


def missing() -> str | None:
    """Why no kernel can be called at all, or ``None``."""
    if find_spec("fla") is None or find_spec("triton") is None:
        return "flash-linear-attention is not installed: pip install 'falcon-fwa[fla]'"
    return None


def refusal(rule: Properties, dtype: torch.dtype | None = None, dim_k: int | None = None) -> str | None:
    """Why flash-linear-attention's kernels cannot run a rule, or ``None`` if they can."""
    ridge, decayed = rule.decay in ("ridge", "scaled-ridge"), rule.objective == "decayed-regression"
    floor = rule.gamma_floor
    if dtype == torch.float64:
        return "the kernels do not compute in float64"
    if rule.window > 1:
        return f"the kernels write one pair at each step, the rule writes {rule.window}"
    if rule.per_column:
        return "the kernels have no gain for each column"
    if rule.normalised:
        return "the kernels do not divide by the total weight"
    if rule.read == "before":
        return "the kernels read after the write"
    if ridge and floor is None:
        return "without gamma_floor the decay factor may be negative, and the kernels take its logarithm"
    if rule.erases and not decayed and rule.decay == "gate":
        return "the kernels predict from the decayed memory, so the mapping would divide by the gate, which may be 0"
    if rule.erases and not decayed and ridge and floor is not None and floor < SMALLEST_GATE:
        return f"the mapping divides by the decay factor: gamma_floor must be at least 2⁻⁴⁰, got {floor}"
    if rule.erases and dim_k is not None and dim_k > MOST_KEYS:
        return f"the kernels of the delta rule take a dim_k of at most {MOST_KEYS}, got {dim_k}"
    return None


def supported(rule: Properties) -> bool:
    """Whether flash-linear-attention's kernels can run a rule."""
    return refusal(rule) is None


def _aligned(rule: Properties, k: Tensor, state: FalconState, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
    """The keys that the values are paired with, and whether each value has one, ``[batch, time]``."""
    tokens = torch.arange(k.shape[1], device=k.device)
    if rule.align == "same":
        return k, torch.ones_like(tokens, dtype=torch.bool).expand(k.shape[0], -1)
    before = torch.cat([torch.zeros_like(k[:, :1]), k[:, :-1]], 1)
    if cu_seqlens is None:
        first = (tokens == 0).expand(k.shape[0], -1)
        last_key, started = state.last_key.unsqueeze(1), state.counts[:, :1] > 0
    else:
        sequence = torch.searchsorted(cu_seqlens[1:].contiguous(), tokens.to(cu_seqlens.dtype), right=True)
        first = (tokens == cu_seqlens[sequence]).unsqueeze(0)
        last_key, started = state.last_key[sequence].unsqueeze(0), (state.counts[sequence, 0] > 0).unsqueeze(0)
    return torch.where(first[..., None, None], last_key.to(k.dtype), before), ~first | started


def _advanced(k: Tensor, memory: Tensor, state: FalconState, cu_seqlens: Tensor | None) -> FalconState:
    """The state at the end of the sequences. A sequence without tokens keeps its last key."""
    if cu_seqlens is None:
        last, some = k[:, -1], torch.ones_like(state.counts[:, :1], dtype=torch.bool)
    else:
        last, some = k[0, (cu_seqlens[1:] - 1).clamp(min=0)], (cu_seqlens[1:] > cu_seqlens[:-1]).unsqueeze(1)
    last_key = torch.where(some.unsqueeze(-1), last.to(memory.dtype), state.last_key)
    counts = torch.cat([torch.where(some, 1, state.counts[:, :1]), state.counts[:, 1:]], 1)
    return state._replace(memory=memory, last_key=last_key, counts=counts)


def run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gain: Tensor | None,
    decay: Tensor | None,
    state: FalconState,
    cu_seqlens: Tensor | None,
    rule: Properties,
    chunk_size: int,
    kernels: Kernels | None = None,
) -> tuple[Tensor, FalconState]:
    """Run a rule over sequences; arguments as in :func:`falcon_fwa.ops.falcon`, which checks them.

    Coefficients are computed in float32; the kernels choose the precision of products by the dtype of the inputs.
    Values are not checked: a gain or gate out of its range is used as it is.

    Args:
        q: Queries ``[batch, time, key heads, dim_k]``.
        k: Keys.
        v: Values ``[batch, time, heads, dim_v]``.
        gain: Gains, if the rule has them.
        decay: Ridges or gates, if the rule has them.
        state: The state to resume from.
        cu_seqlens: For packed sequences: the start of each, and the end of the last.
        rule: The rule, or anything with its properties.
        chunk_size: Not used: the kernels have their own.
        kernels: The functions to call; by default :func:`chunked_kernels`.

    Returns:
        The outputs ``[batch, time, heads, dim_v]`` in the dtype of ``v``, and the final state.

    Raises:
        ValueError: The kernels cannot run the rule.

    """
    del chunk_size
    reason = refusal(rule, q.dtype, q.shape[3])
    if reason is not None:
        raise ValueError(f"{rule.name} cannot run on flash-linear-attention's kernels: {reason}")
    kernels = chunked_kernels() if kernels is None else kernels
    if q.shape[0] * q.shape[1] == 0:
        return torch.zeros_like(v), state
    cu_seqlens = None if cu_seqlens is None else cu_seqlens.to(q.device)
    x, valid = _aligned(rule, k, state, cu_seqlens)
    group = v.shape[2] // k.shape[2]
    energy = x.float().square().sum(-1).repeat_interleave(group, 2)
    gain, decay = (heads_apart(None if part is None else part.float(), False) for part in (gain, decay))
    one = energy.new_ones((1, 1, 1, 1))
    coeffs = coefficients(rule, heads_apart(energy, False), gain, decay, one, valid[:, None, None])
    coeffs = Coefficients(
        *(part.expand(v.shape[0], v.shape[2], 1, v.shape[1]).squeeze(2).transpose(1, 2) for part in coeffs)
    )

    options = {"scale": 1.0, "initial_state": state.memory.float(), "output_final_state": True}
    if cu_seqlens is not None:
        options["cu_seqlens"] = cu_seqlens.to(torch.int64)
    log_gate = None if rule.decay == "none" else coeffs.gamma.clamp(min=SMALLEST_GATE).log()
    if rule.erases:
        beta, values = coeffs.write, v
        if rule.objective != "decayed-regression" and rule.decay != "none":
            beta, values = coeffs.write / coeffs.gamma, (coeffs.gamma.unsqueeze(-1) * v).to(v.dtype)
        log_gate = torch.zeros_like(beta) if log_gate is None else log_gate
        out, memory = kernels.gated_delta_rule(q=q, k=x, v=values, g=log_gate, beta=beta, **options)
    else:
        # Simple GLA needs as many key heads as value heads.
        q, x = (part.repeat_interleave(group, 2) for part in (q, x))
        values = (coeffs.write.unsqueeze(-1) * v).to(v.dtype)
        out, memory = kernels.simple_gla(q=q, k=x, v=values, g=log_gate, **options)
    return out.to(v.dtype), _advanced(k, memory, state, cu_seqlens)
