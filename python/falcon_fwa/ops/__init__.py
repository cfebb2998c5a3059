"""Rules as differentiable PyTorch operations.

:func:`falcon` runs any rule over sequences, :func:`falcon_step` one token. The functions of
:mod:`falcon_fwa.ops.fla` have the names, arguments and defaults of flash-linear-attention's.
"""

try:
    import torch as _torch
except ImportError as error:  # pragma: no cover - exercised by the tests without torch
    raise ImportError("falcon_fwa.ops needs PyTorch: pip install 'falcon-fwa[torch]'") from error

from .falcon import BACKENDS, FalconState, backend_of, falcon, falcon_step, fresh_state
from .fla import (
    chunk_delta_rule,
    chunk_gated_delta_rule,
    chunk_linear_attn,
    chunk_retention,
    chunk_simple_gla,
    fused_recurrent_delta_rule,
    fused_recurrent_gated_delta_rule,
    fused_recurrent_linear_attn,
    fused_recurrent_retention,
    fused_recurrent_simple_gla,
)

del _torch

__all__ = [
    "BACKENDS",
    "FalconState",
    "backend_of",
    "chunk_delta_rule",
    "chunk_gated_delta_rule",
    "chunk_linear_attn",
    "chunk_retention",
    "chunk_simple_gla",
    "falcon",
    "falcon_step",
    "fresh_state",
    "fused_recurrent_delta_rule",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_linear_attn",
    "fused_recurrent_retention",
    "fused_recurrent_simple_gla",
]
