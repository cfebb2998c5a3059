"""Rules on NumPy arrays, and on any other array in the CPU's memory that speaks DLPack. No framework is needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import _native
from ._native import Rule
from ._shapes import Sizes, check_shapes, check_state, resolve_rule, saved_numbers, state_shapes


class State(NamedTuple):
    """What a continuation needs of the past, for each of ``N`` sequences."""

    memory: np.ndarray
    """``[N, heads, dim_k, dim_v]``; a normalised rule has one more column."""
    last_key: np.ndarray
    """``[N, key heads, dim_k]``: the key that the next value is paired with."""
    tail_key: np.ndarray
    """``[N, window − 1, key heads, dim_k]``: keys of the latest pairs, the oldest first."""
    tail_value: np.ndarray
    """``[N, window − 1, heads, dim_v]``: their values."""
    counts: np.ndarray
    """``[N, 2]``: whether there was a token, and how many pairs the tail holds."""


class Gradients(NamedTuple):
    """Gradients of the inputs of a call, each in the shape of its input."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    gain: np.ndarray | None
    ridge: np.ndarray | None
    state: State
    """Of the initial state; its ``counts`` are those of that state."""


def _array(name: str, array: Any) -> np.ndarray:
    """An array as NumPy sees it, where it lies; rows are put side by side if they are not."""
    if not isinstance(array, np.ndarray):
        if not hasattr(array, "__dlpack__"):
            raise TypeError(f"{name} must be an array that speaks DLPack, got {type(array).__name__}")
        array = np.from_dlpack(array)
    if array.dtype not in (np.float32, np.float64):
        raise TypeError(f"{name} must be float32 or float64, got {array.dtype}")
    if array.ndim > 0 and (array.strides[-1] != array.itemsize or min(array.strides) < 0):
        array = np.ascontiguousarray(array)
    return array


class _Call:
    """A checked call: the arrays that go in, and the sizes of those that come out."""

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
        self.state = self.empty_state(np.zeros) if initial_state is None else self._given_state(initial_state)

    def empty_state(self, make: Callable[..., np.ndarray]) -> State:
        *numbers, counts = state_shapes(self.rule, self.sizes)
        return State(*(make(shape, dtype=self.dtype) for shape in numbers), make(counts, dtype=np.int64))

    def _given_state(self, state: State) -> State:
        check_state(self.rule, self.sizes, [np.shape(part) for part in state])
        *numbers, counts = state
        arrays = (np.ascontiguousarray(_array("initial_state", part)) for part in numbers)
        state = State(*arrays, np.ascontiguousarray(counts, dtype=np.int64))
        if any(part.dtype != self.dtype for part in state[:4]):
            raise TypeError(f"initial_state must have the dtype of q, {self.dtype}")
        return state

    def forward(self, save: bool) -> tuple[np.ndarray, State, np.ndarray | None]:
        sizes, rule = self.sizes, self.rule
        out = np.empty((sizes.batch, sizes.time, sizes.heads, sizes.dim_v), self.dtype)
        final = self.empty_state(np.empty)
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
        k: Keys, shaped as the queries. Value head ``h`` uses key head ``h // (heads // key_heads)``.
        v: Values ``[batch, time, heads, dim_v]``.
        gain: ``β`` or ``η`` ``[batch, time, heads]``, with one more axis of ``dim_v`` for per-column rules;
            ``None`` for
            rules that have none.
        ridge: The ridge ``λ̄`` ``[batch, time, heads]`` of a Falcon rule, or the gate ``γ`` of a rule that has
            one. ``None``
            forgets nothing.
        rule: One of ``falcon_fwa.RULES``, or a :class:`falcon_fwa.Rule`.
        initial_state: Where the sequences go on from.
        cu_seqlens: ``[sequences + 1]``: where packed sequences begin, and the end of the last; the batch is then 1.
        chunk_size: Tokens of a chunk. Results differ by rounding only.
        form: ``"chunked"``, ``"recurrent"`` (the definition) or ``"masked"``. Results differ by rounding only.
        threads: Threads; those of the machine if not given. Results do not depend on it.
        options: Options of the rule: ``window``, ``align``, ``read``, ``gain_kind``, ``decay_kind``,
            ``detach``, ``eps``
            and ``gamma_floor``, as in :class:`falcon_fwa.Rule`.

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
    """Run a rule as :func:`scan` does, and return a function that takes gradients back.

    Returns:
        The outputs, the final state, and ``backward(grad_out, grad_state=None)``, which takes the gradient of
        the outputs
        and, if something depends on it, of the final state, and returns :class:`Gradients`.

    """
    call = _Call((q, k, v, gain, ridge), initial_state, cu_seqlens, chunk_size, form, threads, rule, options)
    out, final, saved = call.forward(save=True)

    def backward(grad_out: Any, grad_state: State | None = None) -> Gradients:
        grad_out = _array("grad_out", grad_out)
        if grad_out.shape != out.shape or grad_out.dtype != out.dtype:
            got = f"{list(grad_out.shape)} {grad_out.dtype}"
            raise ValueError(f"grad_out must be {list(out.shape)} {out.dtype}, as the outputs are, got {got}")
        upstream = None
        if grad_state is not None:
            check_state(call.rule, call.sizes, [np.shape(part) for part in grad_state])
            upstream = tuple(np.ascontiguousarray(part, dtype=call.dtype) for part in grad_state[:4])
        grads = tuple(None if array is None else np.zeros(array.shape, call.dtype) for array in call.inputs)
        incoming = call.empty_state(np.empty)
        _native.backward(
            call.rule.spec, call.form, call.chunk_size, call.inputs, call.offsets, call.state, saved, grad_out,
            upstream,
            grads, incoming, call.threads,
        )  # fmt: skip
        return Gradients(*grads, incoming)

    return out, final, backward
