"""All rules in plain PyTorch, chunk by chunk: for any device, with gradients by autograd, and for ``torch.compile``.

Every rule is one update of a memory ``S``, whose step ``i`` writes the pairs ``(x_j, v_j)`` of a window::

    S_i = γ_i S_{i−1} + Σ_j x_j b_{j,i}ᵀ        b_{j,i} = w_i v_j − e_i S_{i−1}ᵀ x_j        o_i = S_iᵀ q_i

First come the coefficients ``γ``, ``w`` and ``e`` (:func:`coefficients`), then one scan for all rules. In a chunk that
begins with ``S_0``, with ``D_{i,s} = γ_{s+1} ⋯ γ_i``, the product of the decay factors of steps ``s + 1`` to ``i``
(nothing is divided by a decay factor, and any may be 0)::

    S_i = D_{i,0} S_0 + Σ_p A_{i,p} x_p b_pᵀ

Without erasure a row ``p`` is a pair, ``b_p = v_p``, and ``A = D K`` with ``K_{s,p} = w_s`` where step ``s`` writes
it, else 0. With erasure a row ``(s, j)`` is what step ``s`` writes for its pair ``j``, ``A_{i,(s,j)} = D_{i,s}``, and
``b`` solves a triangular system::

    (I + L) b = w v − e D_{i−1,0} S_0ᵀ x        L_{(i,j),(s,l)} = e_i D_{i−1,s} (x_j · x_l),  s < i

Rules with a gain for each column of the value do the same for every column, with a memory of one column.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from .._shapes import Properties
    from .falcon import FalconState

_COLUMN_CHUNK = 16
"""The most steps in a chunk if every column has its own decay factors: they have ``steps² · columns`` products."""


class Coefficients(NamedTuple):
    """The coefficients of steps, ``[sequences, heads, groups, time]``; a group is one column of the value, or all."""

    gamma: Tensor
    """The decay factor ``γ``."""
    write: Tensor
    """The gain ``w`` of the value, divided by the number of pairs in the window."""
    erase: Tensor
    """The gain ``e`` of the prediction, divided likewise."""


class Pairs(NamedTuple):
    """The pairs of every sequence: first the ``window − 1`` before its tokens, then one for each token."""

    x: Tensor
    """Keys ``[sequences, rows, key heads, dim_k]``, 0 where there is no pair."""
    v: Tensor
    """Values ``[sequences, rows, heads, dim_v]``, 0 where there is no pair."""
    valid: Tensor
    """Whether there is a pair ``[sequences, rows]``."""


def heads_apart(x: Tensor | None, per_column: bool) -> Tensor | None:
    """Turn ``[batch, time, heads]`` or ``[batch, time, heads, dim_v]`` into ``[batch, heads, groups, time]``."""
    if x is None:
        return None
    return x.permute(0, 2, 3, 1) if per_column else x.transpose(1, 2).unsqueeze(2)


def energies(rule: Properties, x: Tensor, pairs: Tensor) -> Tensor:
    """Return the energy ``E`` of every step ``[sequences, key heads, time]``.

    It is ``Σ ‖x_j‖² / B`` over the window, and for rules that erase the curvature ``λ_max(Σ x_j x_jᵀ) / B``. The
    gradient of the latter is that of ``uᵀ X Xᵀ u / B``, ``u`` the top eigenvector of the Gram matrix ``X Xᵀ``, or any
    of them where the top eigenvalue is repeated.

    Args:
        rule: The rule.
        x: Keys ``[sequences, key heads, rows, dim_k]``, 0 where there is no pair.
        pairs: The number of pairs ``B`` in each window, ``[sequences, time]``, at least 1.

    """
    if rule.window > 1 and rule.erases:
        windows = x.unfold(2, rule.window, 1)  # [sequences, key heads, time, dim_k, window]
        total = torch.linalg.eigvalsh(windows.transpose(-1, -2) @ windows)[..., -1].clamp(min=0)
    else:
        total = x.square().sum(-1).unfold(2, rule.window, 1).sum(-1)
    return total / pairs.unsqueeze(1)


def _given(name: str, part: Tensor | None) -> Tensor:
    if part is None:
        raise ValueError(f"{name}: the rule needs one, got None")
    return part


def coefficients(
    rule: Properties, energy: Tensor | None, gain: Tensor | None, decay: Tensor | None, pairs: Tensor, valid: Tensor
) -> Coefficients:
    """Compute decay factors and gains; all are ``[sequences, heads, groups, time]``, or broadcast to it.

    With the energy ``E`` and the ridge ``λ``, which is given or is ``λ̄E``::

        η = β / (E + λ + ε), or given       γ = max(1 − ηλ, γ_floor), or given       w = η / B       e = w, or γw, or 0

    A step that is not ``valid`` writes nothing and forgets nothing: ``η = 0`` and ``γ = 1``.
    """
    huge = torch.finfo(pairs.dtype).max / 4  # As good as infinite, but the sum of four is finite.
    eps = min(rule.eps, huge)
    energy = torch.zeros_like(pairs) if energy is None else energy.clamp(max=huge)
    ridge = torch.zeros_like(energy)
    if rule.decay == "ridge":
        ridge = _given("ridge", decay)
    elif rule.decay == "scaled-ridge":
        ridge = _given("ridge", decay) * (energy.detach() if rule.detach else energy)
    ridge = ridge.clamp(max=huge)

    if rule.gain == "beta":
        gain = _given("gain", gain)
        denominator = energy + ridge + eps
        # A denominator of 0 means that there is nothing to write; one too small to divide by is as good as 0.
        vanishes = denominator < torch.finfo(denominator.dtype).tiny
        denominator = torch.where(vanishes, 1, denominator)
        eta = torch.where(vanishes, 0, gain / denominator)
        # 1 − βλ/(E + λ + ε), without the cancellation.
        gamma = torch.where(vanishes, 1, (energy + eps + (1 - gain) * ridge) / denominator)
    else:
        eta = torch.ones_like(pairs) if gain is None else gain
        gamma = 1 - eta * ridge
    if rule.decay == "gate":
        gamma = _given("ridge", decay)
    elif rule.decay == "none":
        gamma = torch.ones_like(eta)
    elif rule.gamma_floor is not None:
        gamma = torch.where(gamma <= rule.gamma_floor, rule.gamma_floor, gamma)  # No gradient where the floor applies.

    gamma, write = torch.where(valid, gamma, 1), torch.where(valid, eta / pairs, 0)
    erase = gamma * write if rule.objective == "decayed-regression" else write
    return Coefficients(gamma, write, erase if rule.erases else torch.zeros_like(write))


def normalise(raw: Tensor, eps: float) -> Tensor:
    """Divide by the total weight ``d``, the last column, moved away from 0: ``d + ε`` where ``d ≥ 0``, else ``d − ε``.

    Where that is 0 there is nothing to read, and the result is 0 without gradient.
    """
    weight = raw[..., -1:]
    weight = torch.where(weight < 0, weight - eps, weight + eps)
    return torch.where(weight == 0, 0, raw[..., :-1] / torch.where(weight == 0, 1, weight))


def products(gamma: Tensor) -> Tensor:
    """Compute what is left at time ``i`` of the memory of time ``j``: ``γ_{j+1} ⋯ γ_i`` for ``j ≤ i``, else 0.

    Made from products of runs of 1, 2, 4, … decay factors: exact where one is 0, and so is the gradient.

    Args:
        gamma: Decay factors ``[…, steps]``; step ``i`` leads from time ``i − 1`` to time ``i``.

    Returns:
        ``[…, steps + 1, steps + 1]``: one row for each time ``i``, one column for each time ``j``.

    """
    times = torch.arange(gamma.shape[-1] + 1, device=gamma.device)
    later, earlier = times.unsqueeze(1), times.unsqueeze(0)
    product = torch.where(later > earlier, functional.pad(gamma, (1, 0), value=1).unsqueeze(-1), 1)
    run = 1
    while run < times.shape[0]:
        product = product * functional.pad(product[..., :-run, :], (0, 0, run, 0), value=1)
        run *= 2
    return torch.where(later >= earlier, product, 0)


def _rows_at(rows: Tensor, index: Tensor) -> Tensor:
    """Take the rows ``index`` ``[sequences, count]`` of ``[sequences, rows, …]``, 0 where the index is negative."""
    shape = (*index.shape, *(1,) * (rows.ndim - 2))
    taken = rows.gather(1, index.clamp(min=0).view(shape).expand(*index.shape, *rows.shape[2:]))
    return torch.where((index >= 0).view(shape), taken, 0)


def _pairs(rule: Properties, k: Tensor, v: Tensor, state: FalconState, lengths: Tensor | None) -> Pairs:
    """Pair every value with its key, and put the pairs of the tail first."""
    tokens = torch.arange(k.shape[1], device=k.device).unsqueeze(0)
    started, held = (state.counts[:, :1] > 0), state.counts[:, 1:]
    valid = torch.ones_like(tokens, dtype=torch.bool).expand(k.shape[0], -1)
    if lengths is not None:
        valid = tokens < lengths.unsqueeze(1)
    if rule.align == "next":
        # x_t = k_{t−1}; the first token of a fresh sequence has no key before it.
        k = torch.cat([state.last_key.unsqueeze(1), k[:, :-1]], 1)
        valid = valid & ((tokens > 0) | started)
        held = torch.where(started, held, 0)
    if rule.window > 1:
        # The tail fills its slots from the front, and is needed at their end.
        slots = torch.arange(rule.window - 1, device=k.device) - (rule.window - 1) + held
        k = torch.cat([_rows_at(state.tail_key, slots), k], 1)
        v = torch.cat([_rows_at(state.tail_value, slots), v], 1)
        valid = torch.cat([slots >= 0, valid], 1)
    mask = valid.unsqueeze(-1).unsqueeze(-1)
    return Pairs(torch.where(mask, k, 0), torch.where(mask, v, 0), valid)


def _advanced(rule: Properties, k: Tensor, pairs: Pairs, state: FalconState, lengths: Tensor | None) -> FalconState:
    """The state with the last key and the tail at the end of the sequences, and the memory as before."""
    if lengths is None:
        lengths = torch.full_like(state.counts[:, 0], k.shape[1])
    tail = rule.window - 1
    # Before token 0 comes the incoming last key.
    last_key = _rows_at(torch.cat([state.last_key.unsqueeze(1), k], 1), lengths.unsqueeze(1)).squeeze(1)
    started = torch.where(lengths > 0, 1, state.counts[:, 0])
    if tail == 0:
        return state._replace(last_key=last_key, counts=torch.stack([started, state.counts[:, 1]], 1))
    slots = torch.arange(tail, device=k.device).unsqueeze(0)
    ends = lengths.unsqueeze(1) + slots  # The window − 1 rows before the next token, some of which may hold no pair.
    held = pairs.valid.gather(1, ends).sum(1, keepdim=True)
    rows = torch.where(slots < held, ends + tail - held, -1)
    counts = torch.stack([started, held.squeeze(1)], 1)
    return state._replace(
        last_key=last_key, tail_key=_rows_at(pairs.x, rows), tail_value=_rows_at(pairs.v, rows), counts=counts
    )


def _in_chunks(x: Tensor, size: int) -> Tensor:
    """Cut the time, the last axis, into ``[…, chunks, size]``."""
    return x.unflatten(-1, (-1, size))


def _scan(
    rule: Properties, q: Tensor, x: Tensor, v: Tensor, coeffs: Coefficients, memory: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """Return outputs and the final memory; the names of axes are those of the einsums.

    Args:
        rule: The rule.
        q: Queries ``[n, h, time, k]``.
        x: Keys of the pairs ``[n, h, window − 1 + time, k]``.
        v: Values of the pairs ``[n, h, g, window − 1 + time, v]``, in groups ``g`` of columns with the same decay.
        coeffs: Coefficients ``[n, h, g, time]``.
        memory: ``[n, h, g, k, v]``.
        size: Steps per chunk, a divisor of the time; axis ``c`` counts chunks, axis ``i`` the steps of a chunk.

    """
    window = rule.window
    gamma, write, erase = (_in_chunks(part, size) for part in coeffs)  # [n, h, g, c, i]
    decays = products(gamma)  # [n, h, g, c, time, time]
    carry, after = decays[..., 0], decays[..., 1:]
    q = q.unflatten(2, (-1, size))
    if rule.erases:
        # Row p = (s, j): pair j of the window of step s.
        x = x.unfold(2, window, 1).transpose(-1, -2).unflatten(2, (-1, size)).flatten(3, 4)
        v = v.unfold(3, window, 1).transpose(-1, -2).unflatten(3, (-1, size)).flatten(4, 5)
        write, erase = (part.repeat_interleave(window, -1) for part in (write, erase))
        weights = after.repeat_interleave(window, -1)  # A_{i,(s,j)} = D_{i,s}
        before = weights[..., :-1, :].repeat_interleave(window, -2)
        gram = torch.einsum("nhcpk,nhcrk->nhcpr", x, x).unsqueeze(2)
        # D_{i−1,s} is 0 unless s < i, so blocks on and above the diagonal are 0.
        lower = erase.unsqueeze(-1) * before * gram
        eye = torch.eye(size * window, dtype=x.dtype, device=x.device).expand_as(lower)
        inverse = torch.linalg.solve_triangular(eye + lower, eye, upper=False, unitriangular=True)
        erased = erase * carry[..., :-1].repeat_interleave(window, -1)
        writes = inverse @ (write.unsqueeze(-1) * v)
    else:
        # Row p: the pairs that a step of the chunk writes, one after the other.
        x = x.unfold(2, size + window - 1, size).transpose(-1, -2)
        writes = v.unfold(3, size + window - 1, size).transpose(-1, -2)
        if window == 1:
            weights = after * write.unsqueeze(-2)
        else:
            steps, rows = (torch.arange(count, device=x.device) for count in (size, size + window - 1))
            ago = steps.unsqueeze(1) + window - 1 - rows
            weights = after @ torch.where((ago >= 0) & (ago < window), write.unsqueeze(-1), 0)  # A = D K
    read = slice(None, -1) if rule.read == "before" else slice(1, None)
    scores = weights[..., read, :] * torch.einsum("nhcik,nhcpk->nhcip", q, x).unsqueeze(2)
    # Chunk by chunk. All are unbound at once, because the gradient of indexing one chunk would be as large as all.
    parts = [q.unbind(2), x.unbind(2), *(part.unbind(3) for part in (writes, scores, carry, weights[..., -1, :]))]
    solved = [inverse.unbind(3), erased.unbind(3)] if rule.erases else []
    outputs = []
    for q_c, x_c, b, scores_c, carry_c, last, *solve in zip(*parts, *solved, strict=True):
        if rule.erases:
            predicted = torch.einsum("nhpk,nhgkv->nhgpv", x_c, memory)
            b = b - solve[0] @ (solve[1].unsqueeze(-1) * predicted)
        kept = torch.einsum("nhik,nhgkv->nhgiv", q_c, memory)
        outputs.append(carry_c[..., read].unsqueeze(-1) * kept + scores_c @ b)
        written = torch.einsum("nhpk,nhgpv->nhgkv", x_c, last.unsqueeze(-1) * b)
        memory = carry_c[..., -1, None, None] * memory + written
    return torch.cat(outputs, 3), memory


def _padded(packed: Tensor, starts: Tensor, lengths: Tensor, longest: int) -> Tensor:
    """Lay packed tokens ``[1, time, …]`` out as ``[sequences, longest, …]``, padded with zeros."""
    tokens = torch.arange(longest, device=packed.device).unsqueeze(0)
    index = torch.where(tokens < lengths.unsqueeze(1), starts.unsqueeze(1) + tokens, -1)
    return _rows_at(packed, index.view(1, -1)).view(*index.shape, *packed.shape[2:])


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gain: Tensor | None,
    decay: Tensor | None,
    state: FalconState,
    lengths: Tensor | None,
    rule: Properties,
    chunk_size: int,
) -> tuple[Tensor, FalconState]:
    """Run a rule over a batch in its working dtype; with ``lengths``, only so many tokens of each sequence count."""
    time, heads, key_heads = q.shape[1], v.shape[2], q.shape[2]
    if rule.per_column:
        size = min(chunk_size, _COLUMN_CHUNK)
    else:
        size = max(chunk_size // rule.window, 1) if rule.erases else chunk_size
    size = min(size, time)
    pairs = _pairs(rule, k, v, state, lengths)
    final = _advanced(rule, k, pairs, state, lengths)

    valid = pairs.valid[:, rule.window - 1 :].unsqueeze(1)
    count = pairs.valid.unfold(1, rule.window, 1).sum(-1).clamp(min=1).to(q.dtype)
    x = pairs.x.transpose(1, 2)
    energy = None
    if rule.gain == "beta" or rule.decay == "scaled-ridge":
        energy = energies(rule, x, count).repeat_interleave(heads // key_heads, 1).unsqueeze(2)
    gain = heads_apart(gain, rule.per_column)
    decay = heads_apart(decay, rule.per_column and rule.decay == "gate")
    coeffs = coefficients(rule, energy, gain, decay, count[:, None, None], valid.unsqueeze(2))
    groups = v.shape[3] if rule.per_column else 1

    # Pad to whole chunks with steps that change nothing: γ = 1, w = e = 0.
    more = -time % size
    filled = (functional.pad(part, (0, more), value=float(i == 0)) for i, part in enumerate(coeffs))
    coeffs = Coefficients(*(part.expand(-1, heads, groups, -1) for part in filled))
    q, x = (
        functional.pad(part, (0, 0, 0, more)).repeat_interleave(heads // key_heads, 1)
        for part in (q.transpose(1, 2), x)
    )
    values = pairs.v
    if rule.normalised:
        values = torch.cat([values, pairs.valid[..., None, None].to(v.dtype).expand(-1, -1, heads, 1)], -1)
    values = functional.pad(values.transpose(1, 2), (0, 0, 0, more))
    if rule.per_column:
        values, memory = values.permute(0, 1, 3, 2).unsqueeze(-1), state.memory.transpose(-1, -2).unsqueeze(-1)
    else:
        values, memory = values.unsqueeze(2), state.memory.unsqueeze(2)
    out, memory = _scan(rule, q, x, values, coeffs, memory, size)
    # [n, h, columns, time, 1] or [n, h, 1, time, columns], and the memories likewise.
    out, memory = (part.squeeze(-1).transpose(-1, -2) if rule.per_column else part.squeeze(2) for part in (out, memory))
    out = out[:, :, :time].transpose(1, 2)
    out = out if rule.normaliser_eps is None else normalise(out, rule.normaliser_eps)
    return out, final._replace(memory=memory)


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
) -> tuple[Tensor, FalconState]:
    """Run a rule over sequences; arguments as in :func:`falcon_fwa.ops.falcon`, which checks them.

    Computes in float32, or in float64 if the inputs are. Values are not checked: a gain or gate out of its range is
    used as it is. Packed sequences are padded to the longest; its length must be read from the device, which is a graph
    break in compiled code. It decides the number of chunks, so that no graph fits all lengths; a bound that is known
    beforehand, the number of all tokens, would pad every sequence to it.

    Args:
        q: Queries ``[batch, time, key heads, dim_k]``.
        k: Keys.
        v: Values ``[batch, time, heads, dim_v]``.
        gain: Gains, if the rule has them.
        decay: Ridges or gates, if the rule has them.
        state: The state to resume from.
        cu_seqlens: For packed sequences: the start of each, and the end of the last.
        rule: The rule, or anything with its properties.
        chunk_size: Tokens per chunk; rules that erase over a window, and rules with a gain for each column, use fewer.

    Returns:
        The outputs ``[batch, time, heads, dim_v]`` in the dtype of ``v``, and the final state.

    Raises:
        ValueError: The chunk is empty, or ``cu_seqlens`` does not cover the tokens.

    """
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    outputs_dtype = v.dtype
    q, k, v = (part.to(dtype) for part in (q, k, v))
    gain, decay = (None if part is None else part.to(dtype) for part in (gain, decay))
    state = state._replace(
        memory=state.memory.to(dtype),
        last_key=state.last_key.to(dtype),
        tail_key=state.tail_key.to(dtype),
        tail_value=state.tail_value.to(dtype),
    )
    kind = q.device.type
    # Automatic mixed precision would round what is computed here.
    exactly = torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()
    if cu_seqlens is None:
        if q.shape[0] * q.shape[1] == 0:
            return torch.zeros_like(v, dtype=outputs_dtype), state
        with exactly:
            out, final = _run(q, k, v, gain, decay, state, None, rule, chunk_size)
        return out.to(outputs_dtype), final
    offsets = cu_seqlens.tolist()
    counts = [end - start for start, end in pairwise(offsets)]
    if offsets[0] != 0 or offsets[-1] != q.shape[1] or min(counts, default=0) < 0:
        raise ValueError(f"cu_seqlens must rise from 0 to the time, {q.shape[1]}, got {offsets}")
    if q.shape[1] == 0:
        return torch.zeros_like(v, dtype=outputs_dtype), state
    starts = cu_seqlens[:-1].to(device=q.device, dtype=torch.int64)
    lengths = cu_seqlens[1:].to(starts) - starts
    with exactly:
        q, k, v = (_padded(part, starts, lengths, max(counts)) for part in (q, k, v))
        gain, decay = (None if part is None else _padded(part, starts, lengths, max(counts)) for part in (gain, decay))
        out, final = _run(q, k, v, gain, decay, state, lengths, rule, chunk_size)
    tokens = torch.arange(max(counts), device=q.device).unsqueeze(0) < lengths.unsqueeze(1)
    return out[tokens].unsqueeze(0).to(outputs_dtype), final
