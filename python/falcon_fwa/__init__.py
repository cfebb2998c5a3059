"""Falcon: fast-weight attention, sequence layers whose memory is a matrix that learns while it reads.

- :func:`falcon_fwa.scan` and :func:`falcon_fwa.vjp` run a rule on NumPy arrays, or on others that support DLPack.
- :mod:`falcon_fwa.ops` has differentiable PyTorch operations; it needs ``torch``.
- :func:`falcon_fwa.enable_fla` makes flash-linear-attention and models of transformers use our CPU kernels.

Every rule keeps a matrix ``S`` for each head. At every token it takes one normalised gradient step that pairs a key
``x`` with a value ``v``, and answers a query, ``o = Sᵀq``::

    falcon-1    S ← γS + η x (v − Sᵀx)ᵀ        falcon-1a   S ← γS + η x vᵀ

``falcon_fwa.RULES`` lists the names of all rules; a :class:`falcon_fwa.Rule` is a rule with its options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._native import RULES, Rule, __version__
from .arrays import Gradients, State, scan, vjp

if TYPE_CHECKING:
    from .fla_backend import FlaReport

__all__ = ["RULES", "Gradients", "Rule", "State", "__version__", "disable_fla", "enable_fla", "scan", "vjp"]


def enable_fla() -> FlaReport:
    """Make flash-linear-attention and transformers use our kernels: see :func:`falcon_fwa.fla_backend.enable_fla`."""
    from . import fla_backend

    return fla_backend.enable_fla()


def disable_fla() -> None:
    """Undo :func:`enable_fla`."""
    from . import fla_backend

    fla_backend.disable_fla()
