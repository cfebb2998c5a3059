"""The peers: what one would use on a CPU without Falcon's kernels, written in PyTorch from the published formulas.

All take `[batch, heads, time, dim]` tensors; `log_decay` and `gain` are `[batch, heads, time]`. The time must be a
multiple of the chunk. Everything that does not need the memory before a chunk is computed for all chunks at once; only
the memories are computed one after the other.
"""

import torch
import torch.nn.functional as F


def in_chunks(x, chunk):
    """`[batch, heads, time, ...]` as `[batch, heads, chunks, chunk, ...]`."""
    batch, heads, time = x.shape[:3]
    assert time % chunk == 0, f"{time} tokens in chunks of {chunk}"
    return x.view(batch, heads, time // chunk, chunk, *x.shape[3:])


def decays(log_decay):
    """Decay from the start of the chunk to each token, and from each token to each later one (0 to earlier ones)."""
    total = log_decay.cumsum(-1)
    between = total.unsqueeze(-1) - total.unsqueeze(-2)
    future = torch.ones(between.shape[-2:], dtype=torch.bool).triu(1)
    return total.exp(), between.masked_fill(future, float("-inf")).exp()


def solve(system, values, keys, invert):
    """`(I + system)^-1` times `values`, and times `keys`."""
    if invert:
        eye = torch.eye(system.shape[-1], dtype=system.dtype).expand_as(system)
        inverse = torch.linalg.solve_triangular(system, eye, upper=False, unitriangular=True)
        return inverse @ values, inverse @ keys
    solved = torch.linalg.solve_triangular(system, torch.cat((values, keys), -1), upper=False, unitriangular=True)
    return solved.split((values.shape[-1], keys.shape[-1]), -1)


def gated_delta_rule(q, k, v, gain, log_decay, chunk, invert=False):
    """Gated DeltaNet, `S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T`, `o_t = S_t^T q_t`, in chunks.

    With `S_t = a_t S_{t-1} + k_t u_t^T`, `g` the decay since the start of the chunk and `D` the decay between tokens,
    the writes of a chunk solve `(I + A) U = b (V - g K S)` with `A = b tril(D * K K^T, -1)`. The solutions for `b V`
    and `b g K` are computed beforehand, so that the loop over the chunks has two products a step: by solving for them,
    or with `invert` by solving for the inverse and multiplying.
    """
    shape = v.shape
    q, k, v, gain, log_decay = (in_chunks(x, chunk) for x in (q, k, v, gain, log_decay))
    since, between = decays(log_decay)
    gain, since = gain.unsqueeze(-1), since.unsqueeze(-1)
    system = (gain * between * (k @ k.mT)).tril(-1)
    values, keys = solve(system, gain * v, gain * since * k, invert)
    last = since[..., -1:, :]
    key_to_end = (k * between[..., -1, :].unsqueeze(-1)).mT

    memory = k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
    memories, writes = [], []
    for values, keys, key_to_end, last in zip(*(x.unbind(2) for x in (values, keys, key_to_end, last))):
        write = values - keys @ memory
        memories.append(memory)
        writes.append(write)
        memory = last * memory + key_to_end @ write

    memories, writes = torch.stack(memories, 2), torch.stack(writes, 2)
    return ((since * q) @ memories + (q @ k.mT * between) @ writes).reshape(shape)


def gated_linear_attention(q, k, v, log_decay, chunk):
    """Gated linear attention, the dual of Mamba-2, `S_t = a_t S_{t-1} + k_t v_t^T`, `o_t = S_t^T q_t`, in chunks."""
    shape = v.shape
    q, k, v, log_decay = (in_chunks(x, chunk) for x in (q, k, v, log_decay))
    since, between = decays(log_decay)
    since = since.unsqueeze(-1)
    writes = (k * between[..., -1, :].unsqueeze(-1)).mT @ v

    memory = torch.zeros_like(writes[:, :, 0])
    memories = []
    for write, last in zip(writes.unbind(2), since[..., -1:, :].unbind(2)):
        memories.append(memory)
        memory = last * memory + write

    return ((since * q) @ torch.stack(memories, 2) + (q @ k.mT * between) @ v).reshape(shape)


def softmax_attention(q, k, v):
    """Causal softmax attention by PyTorch's own function."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)
