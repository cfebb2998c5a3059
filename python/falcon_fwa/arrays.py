"""Rules on NumPy arrays, and on other arrays in CPU memory that support DLPack. No framework is needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import _native
from ._native import Rule
from ._shapes import Sizes, check_shapes, check_state, resolve_rule, saved_numbers, state_shapes


class State(NamedTuple):
    """The recurrent state of ``N`` sequences: all that is needed to resume them."""

    memory: np.ndarray
    """``[N, heads, dim_k, dim_v]``: the matrix ``S`` of every head. A normalised rule has ``dim_v + 1`` columns, the
    last of which gives the total weight that reads are divided by."""
    last_key: np.ndarray
    """``[N, key heads, dim_k]``: the key of the last token. With ``align="next"``, the next value is paired with it."""
    tail_key: np.ndarray
    """``[N, window − 1, key heads, dim_k]``: keys of the latest pairs, the oldest first."""
    tail_value: np.ndarray
    """``[N, window − 1, heads, dim_v]``: values of the same pairs."""
    counts: np.ndarray
    """``[N, 2]``, int64: 1 if the sequence has had a token, else 0; and the number of pairs that its tail holds."""


class Gradients(NamedTuple):
    """Gradients with respect to the inputs of a call, each in the shape of its input; ``None`` for inputs not given."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    gain: np.ndarray | None
    ridge: np.ndarray | None
    state: State
    """The gradient with respect to the initial state. ``counts`` is no gradient, but a copy of that state's counts."""


def _array(name: str, array: Any) -> np.ndarray:
    """A NumPy view of an array; a copy if its last axis is not contiguous or a stride is negative."""
    if not isinstance(array, np.ndarray):
        if not hasattr(array, "__dlpack__"):
            raise TypeError(f"{name} must be an array that supports DLPack, got {type(array).__name__}")
        array = np.from_dlpack(array)
    if array.dtype not in (np.float32, np.float64):
        raise TypeError(f"{name} must be float32 or float64, got {array.dtype}")
    if array.ndim > 0 and (array.strides[-1] != array.itemsize or min(array.strides) < 0):
        array = np.ascontiguousarray(array)
    return array


class _Call:
    """The arguments of a call, checked, with the sizes of its results."""

    def __init__(
        self,
        arrays: tuple[Any, Any, Any, Any, Any],
        initial_state: State | None,
        cu_seqlens: Any,
        chunk_size: int,
        form: str,
        threads: int | None,
        rule: str | Rule,
        options: dict[str, Any],
    ) -> None:
        names = ("q", "k", "v", "gain", "ridge")
        given = [None if a is None else _array(n, a) for n, a in zip(names, arrays, strict=True)]
        q, k, v, gain, decay = given
        if q is None or k is None or v is None:
            raise TypeError("q, k and v must be arrays, got None")
        self.rule = resolve_rule(rule, has_gain=gain is not None, has_decay=decay is not None, **options)
        for name, array in zip(names, given, strict=True):
            if array is not None and array.dtype != q.dtype:
                raise TypeError(f"{name} must have the dtype of q, {q.dtype}, got {array.dtype}")
        self.offsets = None if cu_seqlens is None else np.ascontiguousarray(cu_seqlens, dtype=np.int64)
        offsets_shape = None if self.offsets is None else self.offsets.shape
        shapes = [None if array is None else array.shape for array in given]
        self.sizes: Sizes = check_shapes(self.rule, q.shape, k.shape, v.shape, shapes[3], shapes[4], offsets_shape)
        self.inputs = (q, k, v, gain, decay)
        self.dtype, self.form, self.chunk_size = q.dtype, form, chunk_size
        self.threads = threads or len(os.sched_getaffinity(0))
        self.state = self.new_state(np.zeros) if initial_state is None else self._checked_state(initial_state)

    def new_state(self, allocate: Callable[..., np.ndarray]) -> State:
        """A state for the sequences of the call, whose arrays come from ``np.zeros`` or ``np.empty``."""
        *shapes, counts_shape = state_shapes(self.rule, self.sizes)
        arrays = (allocate(shape, dtype=self.dtype) for shape in shapes)
        return State._make((*arrays, allocate(counts_shape, dtype=np.int64)))

    def _checked_state(self, state: State) -> State:
        """The initial state as contiguous arrays; an error names the part that does not fit."""
        check_state("initial_state", self.rule, self.sizes, [np.shape(part) for part in state])
        *parts, counts = state
        arrays = []
        for field, part in zip(State._fields[:4], parts, strict=True):
            name = f"initial_state.{field}"
            array = np.ascontiguousarray(_array(name, part))
            if array.dtype != self.dtype:
                raise TypeError(f"{name} must have the dtype of q, {self.dtype}, got {array.dtype}")
            arrays.append(array)
        return State._make((*arrays, np.ascontiguousarray(counts, dtype=np.int64)))

    def forward(self, save: bool) -> tuple[np.ndarray, State, np.ndarray | None]:
        sizes, rule = self.sizes, self.rule
        out = np.empty((sizes.batch, sizes.time, sizes.heads, sizes.dim_v), self.dtype)
        final = self.new_state(np.empty)
        saved = None
        if save:
            saved = np.empty(
                saved_numbers(rule, sizes, self.form, self.chunk_size, self.offsets is not None), self.dtype
            )
        _native.forward(
            rule.spec,
            self.form,
            self.chunk_size,
            self.inputs,
            self.offsets,
            self.state,
            out,
            final,
            saved,
            self.threads,
        )
        return out, final, saved


def scan(
    q: Any,
    k: Any,
    v: Any,
    gain: Any = None,
    ridge: Any = None,
    *,
    rule: str | Rule = "falcon-1",
    initial_state: State | None = None,
    cu_seqlens: Any = None,
    chunk_size: int = 64,
    form: str = "chunked",
    threads: int | None = None,
    **options: Any,
) -> tuple[np.ndarray, State]:
    """Run a rule over sequences.

    Args:
        q: Queries ``[batch, time, key heads, dim_k]``, float32 or float64.
        k: Keys, in the shape of the queries. Value head ``h`` uses key head ``h // (heads // key_heads)``.
        v: Values ``[batch, time, heads, dim_v]``.
        gain: The gain of every token, ``[batch, time, heads]``, or ``[batch, time, heads, dim_v]`` for per-column rules
            (Falcon-2 and 2A). Its meaning depends on the rule (``Rule.gain``): with ``"beta"`` it is ``β ∈ [0, 2]``,
            from which the step size ``η`` is computed, and with ``"eta"`` it is ``η ≥ 0`` itself. Rules with ``"unit"``
            have ``η = 1`` and take ``None``.
        ridge: How much every token forgets, ``[batch, time, heads]``. Its meaning depends on the rule (``Rule.decay``):
            with ``"scaled-ridge"``, the default of all Falcon rules, it is the ridge ``λ̄ ≥ 0`` in units of the energy,
            and with ``"ridge"`` it is ``λ ≥ 0``; given ``None``, such rules forget nothing. Rules with ``"gate"`` need
            the decay factor ``γ ∈ [0, 1]``, which has the shape of the gain for per-column rules. Rules with ``"none"``
            take ``None``.
        rule: One of ``falcon_fwa.RULES``, or a :class:`falcon_fwa.Rule`.
        initial_state: The state to resume from, as an earlier call returned it. By default, sequences start afresh.
        cu_seqlens: For sequences that are packed along time: the start of each, and the end of the last,
            ``[sequences + 1]``. The batch must then be 1.
        chunk_size: Tokens per chunk of the chunked form. Results differ by rounding only.
        form: ``"chunked"``, ``"recurrent"`` (the definition, step by step) or ``"masked"`` (time and memory grow with
            the square of the length). Results differ by rounding only.
        threads: Number of threads; by default one for each CPU that the process may use. Results do not depend on it.
        options: Options that replace those of a rule given by name: ``window``, ``align``, ``read``, ``gain_kind``,
            ``decay_kind``, ``detach``, ``eps`` and ``gamma_floor``, as in :class:`falcon_fwa.Rule`, where
            ``gain_kind`` and ``decay_kind`` are called ``gain`` and ``decay``.

    Returns:
        The outputs ``[batch, time, heads, dim_v]``, and the state after the last token of each sequence.

    """
    call = _Call((q, k, v, gain, ridge), initial_state, cu_seqlens, chunk_size, form, threads, rule, options)
    out, final, _ = call.forward(save=False)
    return out, final


def vjp(
    q: Any,
    k: Any,
    v: Any,
    gain: Any = None,
    ridge: Any = None,
    *,
    rule: str | Rule = "falcon-1",
    initial_state: State | None = None,
    cu_seqlens: Any = None,
    chunk_size: int = 64,
    form: str = "chunked",
    threads: int | None = None,
    **options: Any,
) -> tuple[np.ndarray, State, Callable[..., Gradients]]:
    """Run a rule as :func:`scan` does, and also return the function that computes its gradients.

    The arguments are those of :func:`scan`.

    Returns:
        The outputs, the final state, and the function ``backward(grad_out, grad_state=None)``. It takes the gradients
        of a loss with respect to the outputs and, if the loss depends on it, the final state (a :class:`State` whose
        ``counts`` are ignored), and returns the :class:`Gradients` with respect to the inputs.

    """
    call = _Call((q, k, v, gain, ridge), initial_state, cu_seqlens, chunk_size, form, threads, rule, options)
    out, final, saved = call.forward(save=True)

    def backward(grad_out: Any, grad_state: State | None = None) -> Gradients:
        grad_out = _array("grad_out", grad_out)
        if grad_out.shape != out.shape or grad_out.dtype != out.dtype:
            got = f"{list(grad_out.shape)} {grad_out.dtype}"
            expected = f"{list(out.shape)} {out.dtype}"
            raise ValueError(f"grad_out must have the shape and dtype of the outputs, {expected}, got {got}")
        grad_final = None
        if grad_state is not None:
            check_state("grad_state", call.rule, call.sizes, [np.shape(part) for part in grad_state])
            grad_final = tuple(np.ascontiguousarray(part, dtype=call.dtype) for part in grad_state[:4])
        grads = tuple(None if array is None else np.empty(array.shape, call.dtype) for array in call.inputs)
        grad_initial = call.new_state(np.empty)
        _native.backward(
            call.rule.spec, call.form, call.chunk_size, call.inputs, call.offsets, call.state, saved, grad_out,
            grad_final, grads, grad_initial, call.threads,
        )  # fmt: skip
        return Gradients._make((*grads, grad_initial))

    return out, final, backward
