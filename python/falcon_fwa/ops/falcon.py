"""Any rule over sequences, and over one token."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._native import Rule
from .._shapes import Properties, check_shapes, check_state, resolve_rule, state_shapes
from . import _scan, chunked, triton

BACKENDS = ("kernels", "triton", "torch")
"""Ways to compute: ``kernels``, ours, on the CPU; ``triton``, flash-linear-attention's kernels, on CUDA and ROCm, for
the rules that they can run; ``torch``, plain PyTorch, on any device."""


class FalconState(NamedTuple):
    """The recurrent state of ``N`` sequences: all that is needed to resume them. All but ``counts`` have gradients."""

    memory: Tensor
    """``[N, heads, dim_k, dim_v]``: the matrix ``S`` of every head. A normalised rule has ``dim_v + 1`` columns, the
    last of which gives the total weight that reads are divided by."""
    last_key: Tensor
    """``[N, key heads, dim_k]``: the key of the last token. With ``align="next"``, the next value is paired with it."""
    tail_key: Tensor
    """``[N, window − 1, key heads, dim_k]``: keys of the latest pairs, the oldest first."""
    tail_value: Tensor
    """``[N, window − 1, heads, dim_v]``: values of the same pairs."""
    counts: Tensor
    """``[N, 2]``, int64: 1 if the sequence has had a token, else 0; and the number of pairs that its tail holds."""


@torch.compiler.assume_constant_result
def _resolve(name: str, *options: Any) -> str:
    """The rule of a call as its ``spec``, a string, which operators can take; a constant in compiled code."""
    keys = (
        "has_gain",
        "has_decay",
        "window",
        "align",
        "read",
        "gain_kind",
        "decay_kind",
        "detach",
        "eps",
        "gamma_floor",
    )
    rule = Rule.parse(name) if " " in name else name
    return resolve_rule(rule, **dict(zip(keys, options, strict=True))).spec


@torch.compiler.assume_constant_result
def _facts(spec: str) -> tuple[Any, ...]:
    rule = Rule.parse(spec)
    return tuple(getattr(rule, field) for field in _Facts._fields)


class _Facts(NamedTuple):
    """The properties of a rule as plain values, which ``torch.compile`` can trace."""

    name: str
    window: int
    align: str
    read: str
    gain: str
    decay: str
    detach: bool
    eps: float
    gamma_floor: float | None
    normaliser_eps: float | None
    per_column: bool
    objective: str
    erases: bool
    normalised: bool


@torch.compiler.assume_constant_result
def _triton_refusal(
    kind: str, rule: tuple[Any, ...] | None, dtype: torch.dtype | None, dim_k: int | None
) -> str | None:
    """Why the Triton kernels cannot run a rule, or, without one, any rule; ``None`` if they can."""
    if kind != "cuda":
        return f"its kernels run on CUDA and ROCm, not on {kind}"
    return triton.missing() or (None if rule is None else triton.refusal(_Facts(*rule), dtype, dim_k))


def _choose(
    backend: str, device: torch.device, rule: _Facts | None, dtype: torch.dtype | None, dim_k: int | None
) -> str:
    """Choose the backend of a call. Raises a ``ValueError`` with the reason if the given backend cannot run it."""
    kind = device.type
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"backend must be one of {', '.join(('auto', *BACKENDS))}, got {backend!r}")
    if backend == "auto":
        if kind == "cpu":
            return "kernels"
        able = kind == "cuda" and _triton_refusal(kind, rule if rule is None else tuple(rule), dtype, dim_k) is None
        return "triton" if able else "torch"
    reason = None
    if backend == "kernels" and kind != "cpu":
        reason = f"its kernels run on the CPU, not on {kind}"
    elif backend == "triton":
        reason = _triton_refusal(kind, rule if rule is None else tuple(rule), dtype, dim_k)
    if reason is not None:
        raise ValueError(f"backend {backend!r} cannot run {'this' if rule is None else rule.name}: {reason}")
    return backend


def backend_of(
    device: torch.device | str,
    rule: str | Rule | None = None,
    dtype: torch.dtype | None = None,
    dim_k: int | None = None,
) -> str:
    """The backend that :func:`falcon` uses for ``backend="auto"``.

    That is ``kernels`` on the CPU; on CUDA and ROCm ``triton``, if flash-linear-attention is installed and can run the
    rule; else ``torch``.

    Args:
        device: Where the tensors are.
        rule: The rule; by default, one that every backend can run is assumed.
        dtype: The dtype of the queries: ``triton`` does not compute in float64.
        dim_k: The width of a key: ``triton`` does not run rules that erase with wide ones.

    """
    rule = Rule(rule) if isinstance(rule, str) else rule
    return _choose("auto", torch.device(device), None if rule is None else _Facts(*_facts(rule.spec)), dtype, dim_k)


def _check(q: Tensor, k: Tensor, v: Tensor, gain: Tensor | None, ridge: Tensor | None) -> None:
    """Check types and devices.

    Raises:
        TypeError: An argument is no tensor, or has a dtype that is not supported.
        ValueError: A tensor is not on the device of the queries.

    """
    tensors = {"q": q, "k": k, "v": v, "gain": gain, "ridge": ridge}
    for name, tensor in tensors.items():
        if tensor is None and name in ("gain", "ridge"):
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if tensor.dtype not in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            raise TypeError(f"{name} must be float32, float64, bfloat16 or float16, got {tensor.dtype}")
        if tensor.device != q.device:
            raise ValueError(f"{name} is on {tensor.device}, q on {q.device}; move one of them")
        if name in ("k", "v") and tensor.dtype != q.dtype:
            raise TypeError(f"{name} must have the dtype of q, {q.dtype}, got {tensor.dtype}")
        if (tensor.dtype == torch.float64) != (q.dtype == torch.float64):
            raise TypeError(f"{name} is {tensor.dtype} and q is {q.dtype}; only both or neither may be float64")


def _check_offsets(cu_seqlens: Tensor | None) -> None:
    if cu_seqlens is None:
        return
    if not isinstance(cu_seqlens, Tensor):
        raise TypeError(f"cu_seqlens must be a tensor, got {type(cu_seqlens).__name__}")
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"cu_seqlens must be int32 or int64, got {cu_seqlens.dtype}")


def fresh_state(rule: str | Rule, q: Tensor, v: Tensor, sequences: int | None = None, **options: Any) -> FalconState:
    """The state before any token, for inputs shaped as ``q`` and ``v``.

    Args:
        rule: One of ``falcon_fwa.RULES``, or a :class:`falcon_fwa.Rule`.
        q: ``[batch, time, key heads, dim_k]``.
        v: ``[batch, time, heads, dim_v]``.
        sequences: Number of sequences; by default the batch.
        options: Options of the rule, as in :class:`falcon_fwa.Rule`.

    """
    rule = rule if isinstance(rule, Rule) else Rule(rule, **options)
    return _fresh(_Facts(*_facts(rule.spec)), q, v, sequences)


def _fresh(rule: Properties, q: Tensor, v: Tensor, sequences: int | None) -> FalconState:
    sizes = check_shapes(rule, q.shape, q.shape, v.shape, None, None, None)
    sizes = sizes._replace(sequences=sizes.batch if sequences is None else sequences)
    *shapes, counts = state_shapes(rule, sizes)
    dtype = _scan.working_dtype(q.dtype)
    memory, last_key, tail_key, tail_value = (q.new_zeros(shape, dtype=dtype) for shape in shapes)
    return FalconState(memory, last_key, tail_key, tail_value, q.new_zeros(counts, dtype=torch.int64))


def falcon(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gain: Tensor | None = None,
    ridge: Tensor | None = None,
    *,
    rule: str | Rule = "falcon-1",
    window: int | None = None,
    align: str | None = None,
    read: str | None = None,
    gain_kind: str | None = None,
    decay_kind: str | None = None,
    detach: bool | None = None,
    eps: float | None = None,
    gamma_floor: float | None = None,
    initial_state: FalconState | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    chunk_size: int = 64,
    form: str = "chunked",
    backend: str = "auto",
) -> tuple[Tensor, FalconState | None]:
    r"""Run a rule over sequences.

    For Falcon-1, with ``x_t = k_{t−1}``, ``E = ‖x_t‖²``, ``λ = λ̄ E``::

        η = β / (E + λ + ε)        γ = max(1 − ηλ, γ_floor)
        S_t = γ S_{t−1} + η x_t (v_t − S_{t−1}ᵀ x_t)ᵀ        o_t = S_tᵀ q_t

    Args:
        q: Queries ``[batch, time, key heads, dim_k]``: float32, float64, bfloat16 or float16.
        k: Keys, in the shape of the queries. Value head ``h`` uses key head ``h // (heads // key_heads)``.
        v: Values ``[batch, time, heads, dim_v]``.
        gain: The gain of every token, ``[batch, time, heads]``, or ``[batch, time, heads, dim_v]`` for per-column rules
            (Falcon-2 and 2A): ``β ∈ [0, 2]``, from which the step size ``η`` is computed, or ``η ≥ 0`` itself, see
            ``gain_kind``. Rules without a gain take ``None``.
        ridge: How much every token forgets, ``[batch, time, heads]``: a ridge ``λ̄ ≥ 0`` or ``λ ≥ 0``, or a decay factor
            ``γ ∈ [0, 1]``, see ``decay_kind``. Rules with a ridge forget nothing if it is ``None``; rules with a gate
            need one, which has the shape of the gain for per-column rules. Rules without decay take ``None``.
        rule: One of ``falcon_fwa.RULES``, or a :class:`falcon_fwa.Rule`, which already contains the options from
            ``window`` to ``gamma_floor``. By default, these are the named rule's own.
        window: Number of pairs that each step writes.
        align: ``"next"`` pairs a value with the key before it, ``"same"`` with its own key.
        read: ``"after"`` or ``"before"`` the write of the same token.
        gain_kind: Whether ``gain`` is ``β`` (``"beta"``) or the step size ``η`` (``"eta"``); ``"unit"`` for ``η = 1``
            without a gain.
        decay_kind: Whether ``ridge`` is a ridge ``λ̄`` in units of the energy (``"scaled-ridge"``), a ridge ``λ``
            (``"ridge"``) or the decay factor ``γ`` (``"gate"``); ``"none"`` for no decay.
        detach: With a scaled ridge: no gradient through the energy that scales it.
        eps: ``ε`` of the step size.
        gamma_floor: The least decay factor ``γ`` that a ridge leads to.
        initial_state: The state to resume from; gradients flow through it. By default, sequences start afresh.
        output_final_state: Whether to return the state after the last token of each sequence.
        cu_seqlens: For sequences that are packed along time: the start of each, and the end of the last,
            ``[sequences + 1]``. The batch must then be 1. With the backend ``torch``, the longest sequence decides the
            shapes, so that compiled code has graph breaks here, and ``torch.compile(fullgraph=True)`` refuses it.
        chunk_size: Tokens per chunk of the chunked form. Results differ by rounding only.
        form: ``"chunked"``, ``"recurrent"`` (the definition, step by step) or ``"masked"`` (time and memory grow with
            the square of the length); the latter two need ``kernels``. Results differ by rounding only.
        backend: One of ``BACKENDS``, or ``"auto"`` for the one that :func:`backend_of` returns. Only ``kernels`` checks
            the values of tensors, and refuses those out of range.

    Returns:
        The outputs ``[batch, time, heads, dim_v]`` in the dtype of ``v``, and the final state or ``None``.

    Raises:
        ValueError: A shape, a device or a value does not fit, or the backend cannot run the rule. The message names the
            argument.
        TypeError: An argument is no tensor, or has a dtype that is not supported.

    """
    _check(q, k, v, gain, ridge)
    _check_offsets(cu_seqlens)
    name = rule.spec if isinstance(rule, Rule) else rule
    options = (window, align, read, gain_kind, decay_kind, detach, eps, gamma_floor)
    spec = _resolve(name, gain is not None, ridge is not None, *options)
    facts = _Facts(*_facts(spec))
    shapes = [None if x is None else x.shape for x in (gain, ridge, cu_seqlens)]
    sizes = check_shapes(facts, q.shape, k.shape, v.shape, *shapes)
    if initial_state is None:
        initial_state = _fresh(facts, q, v, sizes.sequences)
    else:
        check_state("initial_state", facts, sizes, [part.shape for part in initial_state])
    backend = _choose(backend, q.device, facts, q.dtype, q.shape[3])
    if backend != "kernels":
        if form != "chunked":
            raise ValueError(f'form must be "chunked" for backend {backend!r}, got {form!r}')
        run = triton.run if backend == "triton" else chunked.run
        out, final = run(q, k, v, gain, ridge, initial_state, cu_seqlens, facts, chunk_size)
        return out, final if output_final_state else None
    tensors = (q, k, v, gain, ridge, *initial_state)
    # Under vmap, `requires_grad` of a tensor does not tell whether a gradient is needed, so it is not considered here.
    save = torch.is_grad_enabled()
    out, *final, _ = _scan.scan(*tensors, cu_seqlens, spec, form, chunk_size, save)
    return out, FalconState(*final) if output_final_state else None


def falcon_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gain: Tensor | None = None,
    ridge: Tensor | None = None,
    *,
    state: FalconState,
    rule: str | Rule = "falcon-1",
    window: int | None = None,
    align: str | None = None,
    read: str | None = None,
    gain_kind: str | None = None,
    decay_kind: str | None = None,
    eps: float | None = None,
    gamma_floor: float | None = None,
    backend: str = "auto",
) -> tuple[Tensor, FalconState]:
    """Run one token of each sequence, for generation: :func:`falcon` with a time of 1, but faster and without gradient.

    Args:
        q: Queries ``[batch, 1, key heads, dim_k]``; the others as in :func:`falcon`, with a time of 1.
        k: Keys.
        v: Values.
        gain: Gains, if the rule has them.
        ridge: Ridges or gates, if the rule has them.
        state: The state after the tokens so far; before the first, that of :func:`fresh_state`.
        rule: The rule, and its options as in :func:`falcon`.
        window: As in :func:`falcon`.
        align: As in :func:`falcon`.
        read: As in :func:`falcon`.
        gain_kind: As in :func:`falcon`.
        decay_kind: As in :func:`falcon`.
        eps: As in :func:`falcon`.
        gamma_floor: As in :func:`falcon`.
        backend: As in :func:`falcon`. Only ``kernels`` is faster than :func:`falcon`.

    Returns:
        The outputs ``[batch, 1, heads, dim_v]`` and the state after this token.

    """
    _check(q, k, v, gain, ridge)
    name = rule.spec if isinstance(rule, Rule) else rule
    options = (window, align, read, gain_kind, decay_kind, None, eps, gamma_floor)
    spec = _resolve(name, gain is not None, ridge is not None, *options)
    facts = _Facts(*_facts(spec))
    shapes = [None if x is None else x.shape for x in (gain, ridge, None)]
    sizes = check_shapes(facts, q.shape, k.shape, v.shape, *shapes)
    if sizes.time != 1:
        raise ValueError(f"falcon_step takes one token, got a time of {sizes.time}; falcon takes more")
    check_state("state", facts, sizes, [part.shape for part in state])
    backend = _choose(backend, q.device, facts, q.dtype, q.shape[3])
    if backend != "kernels":
        run = triton.run if backend == "triton" else chunked.run
        with torch.no_grad():
            return run(q, k, v, gain, ridge, state, None, facts, 1)
    out, *final = _scan.step(q, k, v, gain, ridge, *state, spec)
    return out, FalconState(*final)
