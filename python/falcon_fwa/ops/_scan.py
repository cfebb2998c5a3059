"""The PyTorch operators over the kernels: ``falcon_fwa::scan``, its backward, and ``falcon_fwa::step``.

They are registered with :mod:`torch.library`: functional operators with fake kernels (which give shapes without
computing), autograd and vmap. Inputs may have any strides, and PyTorch allocates the results. bfloat16 and float16 are
computed in float32.
"""

from __future__ import annotations

# PyTorch reads the schema of an operator from annotations, and needs these spellings.
from typing import List, Optional, Tuple  # noqa: UP035

import torch
from torch import Tensor

from .. import _native
from .._native import Rule
from .._shapes import Sizes, saved_numbers, state_shapes

Inputs = tuple[Tensor | None, ...]
Parts = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that a call computes in, which is also that of its state."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _rows(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in ``dtype``, with the last of four axes contiguous; copied only where that needs a copy."""
    tensor = tensor.detach().to(dtype)
    fits = tensor.ndim < 4 or tensor.shape[-1] == 1 or tensor.stride(-1) == 1
    return tensor if fits else tensor.contiguous()


def _inputs(q: Tensor, k: Tensor, v: Tensor, gain: Tensor | None, decay: Tensor | None) -> tuple[Inputs, torch.dtype]:
    dtype = working_dtype(q.dtype)
    q, k, v = (_rows(tensor, dtype) for tensor in (q, k, v))
    return (q, k, v, *(None if tensor is None else _rows(tensor, dtype) for tensor in (gain, decay))), dtype


def _sizes(q: Tensor, v: Tensor, cu_seqlens: Tensor | None) -> Sizes:
    batch, time, key_heads, dim_k = q.shape
    heads, dim_v = v.shape[2:]
    sequences = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return Sizes(batch, time, heads, key_heads, dim_k, dim_v, sequences)


def _offsets(cu_seqlens: Tensor | None) -> Tensor | None:
    return None if cu_seqlens is None else cu_seqlens.detach().to(device="cpu", dtype=torch.int64).contiguous()


def _state(state: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    *parts, counts = state
    return (*(part.detach().to(dtype).contiguous() for part in parts), counts.detach().contiguous())


def _empty_state(rule: Rule, sizes: Sizes, like: Tensor) -> Parts:
    *shapes, counts_shape = state_shapes(rule, sizes)
    dtype = working_dtype(like.dtype)
    memory, last_key, tail_key, tail_value = (like.new_empty(shape, dtype=dtype) for shape in shapes)
    return memory, last_key, tail_key, tail_value, like.new_empty(counts_shape, dtype=torch.int64)


@torch.library.custom_op("falcon_fwa::scan", mutates_args=(), device_types="cpu")
def scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gain: Optional[Tensor],  # noqa: UP045
    decay: Optional[Tensor],  # noqa: UP045
    memory: Tensor,
    last_key: Tensor,
    tail_key: Tensor,
    tail_value: Tensor,
    counts: Tensor,
    cu_seqlens: Optional[Tensor],  # noqa: UP045
    rule: str,
    form: str,
    chunk_size: int,
    save: bool,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # noqa: UP006
    """Outputs, the five parts of the final state, and what the backward pass needs (empty unless ``save``)."""
    parsed, sizes = Rule.parse(rule), _sizes(q, v, cu_seqlens)
    inputs, dtype = _inputs(q, k, v, gain, decay)
    out = q.new_empty((sizes.batch, sizes.time, sizes.heads, sizes.dim_v), dtype=dtype)
    final = _empty_state(parsed, sizes, q)
    length = saved_numbers(parsed, sizes, form, chunk_size, cu_seqlens is not None) if save else 0
    saved = q.new_empty(length, dtype=dtype)
    state = _state((memory, last_key, tail_key, tail_value, counts), dtype)
    _native.forward(
        rule, form, chunk_size, inputs, _offsets(cu_seqlens), state, out, final, saved if save else None,
        torch.get_num_threads(),
    )  # fmt: skip
    return out.to(v.dtype), *final, saved


@scan.register_fake
def _scan_fake(
    q,
    k,
    v,
    gain,
    decay,
    memory,
    last_key,
    tail_key,
    tail_value,
    counts,
    cu_seqlens,
    rule,
    form,
    chunk_size,
    save,
):
    parsed, sizes = Rule.parse(rule), _sizes(q, v, cu_seqlens)
    out = v.new_empty((sizes.batch, sizes.time, sizes.heads, sizes.dim_v))
    length = saved_numbers(parsed, sizes, form, chunk_size, cu_seqlens is not None) if save else 0
    saved = q.new_empty((length,), dtype=working_dtype(q.dtype))
    return out, *_empty_state(parsed, sizes, q), saved


@torch.library.custom_op("falcon_fwa::scan_backward", mutates_args=(), device_types="cpu")
def scan_backward(
    grad_out: Tensor,
    grad_final: List[Tensor],  # noqa: UP006
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gain: Optional[Tensor],  # noqa: UP045
    decay: Optional[Tensor],  # noqa: UP045
    memory: Tensor,
    last_key: Tensor,
    tail_key: Tensor,
    tail_value: Tensor,
    counts: Tensor,
    cu_seqlens: Optional[Tensor],  # noqa: UP045
    saved: Tensor,
    rule: str,
    form: str,
    chunk_size: int,
) -> List[Tensor]:  # noqa: UP006
    """Gradients for q, k, v, gain and decay, without those that are ``None``, then for memory, last key and both tails.

    ``grad_final`` has the gradients with respect to the final memory, last key and tails; it is empty if the loss does
    not depend on them.
    """
    parsed, sizes = Rule.parse(rule), _sizes(q, v, cu_seqlens)
    inputs, dtype = _inputs(q, k, v, gain, decay)
    grads = tuple(None if x is None else torch.empty(x.shape, dtype=dtype) for x in inputs)
    grad_initial = _empty_state(parsed, sizes, q)
    state = _state((memory, last_key, tail_key, tail_value, counts), dtype)
    final_grads = tuple(part.detach().to(dtype).contiguous() for part in grad_final) or None
    _native.backward(
        rule, form, chunk_size, inputs, _offsets(cu_seqlens), state, saved.detach(), _rows(grad_out, dtype),
        final_grads, grads, grad_initial, torch.get_num_threads(),
    )  # fmt: skip
    given = [x for x in (q, k, v, gain, decay) if x is not None]
    given_grads = [grad for grad in grads if grad is not None]
    input_grads = [grad.to(x.dtype) for x, grad in zip(given, given_grads, strict=True)]
    parts = (memory, last_key, tail_key, tail_value)
    return input_grads + [grad.to(part.dtype) for part, grad in zip(parts, grad_initial[:4], strict=True)]


@scan_backward.register_fake
def _scan_backward_fake(
    grad_out, grad_final, q, k, v, gain, decay, memory, last_key, tail_key, tail_value, counts, cu_seqlens, saved, rule,
    form, chunk_size,
):  # fmt: skip
    given = [x for x in (q, k, v, gain, decay, memory, last_key, tail_key, tail_value) if x is not None]
    return [x.new_empty(x.shape) for x in given]


def _setup_context(ctx, inputs, output) -> None:
    *tensors, rule, form, chunk_size, save = inputs
    ctx.save_for_backward(*tensors, output[-1])
    ctx.options, ctx.save = (rule, form, chunk_size), save
    ctx.mark_non_differentiable(output[5], output[6])
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_out, *rest):
    if not ctx.save:
        raise RuntimeError("falcon_fwa::scan was called with save=False, and cannot be differentiated")
    *tensors, saved = ctx.saved_tensors
    q, v, state = tensors[0], tensors[2], tensors[5:9]
    if grad_out is None:
        grad_out = torch.zeros_like(v)
    grad_final = []
    if any(grad is not None for grad in rest[:4]):
        dtype = working_dtype(q.dtype)
        grad_final = [
            x.new_zeros(x.shape, dtype=dtype) if grad is None else grad for x, grad in zip(state, rest, strict=False)
        ]
    grads = iter(scan_backward(grad_out, grad_final, *tensors, saved, *ctx.options))
    tensor_grads = [None if x is None else next(grads) for x in tensors[:9]]
    return *tensor_grads, None, None, None, None, None, None


scan.register_autograd(_backward, setup_context=_setup_context)


@torch.library.custom_op("falcon_fwa::step", mutates_args=(), device_types="cpu")
def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gain: Optional[Tensor],  # noqa: UP045
    decay: Optional[Tensor],  # noqa: UP045
    memory: Tensor,
    last_key: Tensor,
    tail_key: Tensor,
    tail_value: Tensor,
    counts: Tensor,
    rule: str,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # noqa: UP006
    """One token of each sequence: outputs and the five parts of the final state. Has no gradient."""
    parsed, sizes = Rule.parse(rule), _sizes(q, v, None)
    inputs, dtype = _inputs(q, k, v, gain, decay)
    out = q.new_empty((sizes.batch, sizes.time, sizes.heads, sizes.dim_v), dtype=dtype)
    final = _empty_state(parsed, sizes, q)
    _native.step(rule, inputs, _state((memory, last_key, tail_key, tail_value, counts), dtype), out, final)
    return out.to(v.dtype), *final


@step.register_fake
def _step_fake(q, k, v, gain, decay, memory, last_key, tail_key, tail_value, counts, rule):
    parsed, sizes = Rule.parse(rule), _sizes(q, v, None)
    return v.new_empty((sizes.batch, sizes.time, sizes.heads, sizes.dim_v)), *_empty_state(parsed, sizes, q)


# --- vmap: the mapped axis is folded into the sequences --------------------------------------------------------------


def _front(size: int, tensor: Tensor | None, axis: int | None) -> Tensor | None:
    """The tensor with its mapped axis first; expanded along a new axis if it is not mapped."""
    if tensor is None:
        return None
    return tensor.unsqueeze(0).expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)


def _fold_tokens(tensor: Tensor | None, packed: bool) -> Tensor | None:
    """``[size, batch, time, …]`` as ``[size · batch, time, …]``, or, packed, as ``[1, size · time, …]``."""
    if tensor is None:
        return None
    return tensor.flatten(1, 2).flatten(0, 1).unsqueeze(0) if packed else tensor.flatten(0, 1)


def _unfold_tokens(tensor: Tensor, size: int, packed: bool) -> Tensor:
    if packed:
        return tensor.squeeze(0).unflatten(0, (size, -1)).unsqueeze(1)
    return tensor.unflatten(0, (size, -1))


def _fold_offsets(size: int, offsets: Tensor | None) -> Tensor | None:
    """Offsets ``[size, sequences + 1]`` as those of ``size · sequences`` sequences, one after the other."""
    if offsets is None:
        return None
    offsets = offsets.to(torch.int64)
    before = offsets[:, -1].cumsum(0) - offsets[:, -1]
    moved = offsets + before.unsqueeze(1)
    return torch.cat([moved[:, :-1].flatten(), moved[-1, -1:]])


@scan.register_vmap
def _scan_vmap(info, in_dims, *args):
    tensors, options = args[:11], args[11:]
    size = info.batch_size
    front = [_front(size, tensor, axis) for tensor, axis in zip(tensors, in_dims, strict=False)]
    packed = front[10] is not None
    tokens = [_fold_tokens(tensor, packed) for tensor in front[:5]]
    state = [part.flatten(0, 1) for part in front[5:10]]
    out, *final, saved = scan(*tokens, *state, _fold_offsets(size, front[10]), *options)
    # What is saved belongs to all elements at once. Return it with the first element, and zeros with the others.
    saved = torch.cat([saved.unsqueeze(0), saved.new_zeros((size - 1, saved.shape[0]))])
    parts = [part.unflatten(0, (size, -1)) for part in final]
    return (_unfold_tokens(out, size, packed), *parts, saved), (0,) * 7


@scan_backward.register_vmap
def _scan_backward_vmap(info, in_dims, *args):
    size = info.batch_size
    (grad_out, grad_final, *tensors), options = args[:14], args[14:]
    out_axis, final_axes, *axes = in_dims[:14]
    if not isinstance(final_axes, list | tuple):
        final_axes = [final_axes] * len(grad_final)
    grad_out = _front(size, grad_out, out_axis)
    final = [_front(size, part, axis) for part, axis in zip(grad_final, final_axes, strict=True)]
    front = [_front(size, tensor, axis) for tensor, axis in zip(tensors, axes, strict=True)]
    if axes[-1] is None:
        # The forward pass was not mapped: each of the mapped gradients needs all that it saved.
        def element_grads(index: int) -> list[Tensor]:
            element = [None if tensor is None else tensor[index] for tensor in front]
            return scan_backward(grad_out[index], [part[index] for part in final], *element, *options)

        stacked = [torch.stack(grads) for grads in zip(*(element_grads(index) for index in range(size)), strict=True)]
        return stacked, [0] * len(stacked)
    packed = front[10] is not None
    tokens = [_fold_tokens(tensor, packed) for tensor in front[:5]]
    state = [part.flatten(0, 1) for part in front[5:10]]
    folded = [part.flatten(0, 1) for part in final]
    offsets = _fold_offsets(size, front[10])
    grads = scan_backward(_fold_tokens(grad_out, packed), folded, *tokens, *state, offsets, front[11][0], *options)
    token_grads, state_grads = grads[:-4], grads[-4:]
    unfolded = [_unfold_tokens(grad, size, packed) for grad in token_grads]
    unfolded += [grad.unflatten(0, (size, -1)) for grad in state_grads]
    return unfolded, [0] * len(unfolded)


@step.register_vmap
def _step_vmap(info, in_dims, *args):
    tensors, rule = args[:10], args[10]
    front = [_front(info.batch_size, tensor, axis) for tensor, axis in zip(tensors, in_dims, strict=False)]
    folded = [None if tensor is None else tensor.flatten(0, 1) for tensor in front]
    return tuple(part.unflatten(0, (info.batch_size, -1)) for part in step(*folded, rule)), (0,) * 6
