"""The shapes of a call: the checks that arguments fit together, and the shapes of its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ._native import DECAYS, GAINS, Rule

Shape = Sequence[int]


class Properties(Protocol):
    """The properties of a rule: a :class:`Rule`, or the same as plain values. It is used by them, not by its name."""

    @property
    def name(self) -> str: ...
    @property
    def window(self) -> int: ...
    @property
    def align(self) -> str: ...
    @property
    def read(self) -> str: ...
    @property
    def gain(self) -> str: ...
    @property
    def decay(self) -> str: ...
    @property
    def detach(self) -> bool: ...
    @property
    def eps(self) -> float: ...
    @property
    def gamma_floor(self) -> float | None: ...
    @property
    def normaliser_eps(self) -> float | None: ...
    @property
    def per_column(self) -> bool: ...
    @property
    def objective(self) -> str: ...
    @property
    def erases(self) -> bool: ...
    @property
    def normalised(self) -> bool: ...


class Sizes(NamedTuple):
    """The sizes of a call; ``sequences`` is the batch, or the number of packed sequences."""

    batch: int
    time: int
    heads: int
    key_heads: int
    dim_k: int
    dim_v: int
    sequences: int


def resolve_rule(
    rule: str | Rule,
    *,
    has_gain: bool = True,
    has_decay: bool = True,
    window: int | None = None,
    align: str | None = None,
    read: str | None = None,
    gain_kind: str | None = None,
    decay_kind: str | None = None,
    detach: bool | None = None,
    eps: float | None = None,
    gamma_floor: float | None = None,
) -> Rule:
    """The rule of a call, with its options. A rule with a ridge becomes one without, if no ridge is given."""
    if isinstance(rule, Rule):
        given = (window, align, read, gain_kind, decay_kind, detach, eps, gamma_floor)
        if any(option is not None for option in given):
            raise TypeError("a Rule has its options already; give them to Rule(...), or name the rule by a string")
        resolved = rule
    else:
        # A rule's own arguments for these are called `gain` and `decay`, which are other arguments here.
        for option, given_kind, kinds in (("gain_kind", gain_kind, GAINS), ("decay_kind", decay_kind, DECAYS)):
            if given_kind is not None and given_kind not in kinds:
                words = ", ".join(f'"{kind}"' for kind in kinds)
                raise ValueError(f'{option} must be one of {words}, got "{given_kind}"')
        resolved = Rule(
            rule,
            window=window,
            align=align,
            read=read,
            gain=gain_kind,
            decay=decay_kind,
            detach=detach,
            eps=eps,
            gamma_floor=gamma_floor,
        )
    if not has_decay and resolved.decay in ("ridge", "scaled-ridge"):
        # Without a ridge nothing is forgotten.
        resolved = Rule.parse(resolved.spec.replace(f"decay={resolved.decay}", "decay=none"))
    for name, has_input, kind, kind_without_input in (
        ("gain", has_gain, resolved.gain, "unit"),
        ("ridge", has_decay, resolved.decay, "none"),
    ):
        if has_input and kind == kind_without_input:
            raise ValueError(f"{name}: {resolved.name} takes none; leave it out")
        if not has_input and kind != kind_without_input:
            raise ValueError(f"{name}: {resolved.name} needs one ({kind}), got None")
    return resolved


def check_shapes(
    rule: Properties,
    q: Shape,
    k: Shape,
    v: Shape,
    gain: Shape | None,
    decay: Shape | None,
    cu_seqlens: Shape | None,
) -> Sizes:
    """Check the shapes of a call, and return its sizes.

    Raises:
        ValueError: A shape does not fit. The message names the argument, what is expected, and its shape.

    """
    if len(q) != 4:
        raise ValueError(f"q must be [batch, time, key heads, dim_k], got shape {list(q)}")
    if len(v) != 4:
        raise ValueError(f"v must be [batch, time, heads, dim_v], got shape {list(v)}")
    batch, time, key_heads, dim_k = q
    _, _, heads, dim_v = v
    if tuple(k) != tuple(q):
        raise ValueError(f"k must have the shape of q, {list(q)}, got {list(k)}")
    if tuple(v[:2]) != (batch, time):
        raise ValueError(f"v must have the batch and time of q, {[batch, time]}, got shape {list(v)}")
    for name, size in (("key heads", key_heads), ("dim_k", dim_k), ("heads", heads), ("dim_v", dim_v)):
        if size == 0:
            raise ValueError(f"{name} must not be 0: q has shape {list(q)}, v {list(v)}")
    if heads % key_heads != 0:
        raise ValueError(f"the heads of v ({heads}) must be a multiple of those of q and k ({key_heads})")
    for name, shape, per_column in (
        ("gain", gain, rule.per_column),
        ("ridge", decay, rule.per_column and rule.decay == "gate"),
    ):
        expected = (batch, time, heads, dim_v) if per_column else (batch, time, heads)
        if shape is not None and tuple(shape) != expected:
            meaning = "[batch, time, heads, dim_v]" if per_column else "[batch, time, heads]"
            raise ValueError(f"{name} of {rule.name} must be {meaning} = {list(expected)}, got shape {list(shape)}")
    sequences = batch
    if cu_seqlens is not None:
        if len(cu_seqlens) != 1 or cu_seqlens[0] < 1:
            raise ValueError(f"cu_seqlens must be [sequences + 1], got shape {list(cu_seqlens)}")
        if batch != 1:
            raise ValueError(f"with cu_seqlens the batch must be 1 (sequences are packed along time), got {batch}")
        sequences = cu_seqlens[0] - 1
    return Sizes(batch, time, heads, key_heads, dim_k, dim_v, sequences)


def state_shapes(rule: Properties, sizes: Sizes) -> tuple[tuple[int, ...], ...]:
    """Shapes of the parts of a state: memory, last key, tail keys, tail values and counts."""
    columns = sizes.dim_v + int(rule.normalised)
    tail = rule.window - 1
    return (
        (sizes.sequences, sizes.heads, sizes.dim_k, columns),
        (sizes.sequences, sizes.key_heads, sizes.dim_k),
        (sizes.sequences, tail, sizes.key_heads, sizes.dim_k),
        (sizes.sequences, tail, sizes.heads, sizes.dim_v),
        (sizes.sequences, 2),
    )


def check_state(argument: str, rule: Properties, sizes: Sizes, shapes: Sequence[Shape]) -> None:
    """Check the shapes of the parts of a state that was passed as ``argument``.

    Raises:
        ValueError: A shape does not fit. The message names the argument, the part, and both shapes.

    """
    names = ("memory", "last_key", "tail_key", "tail_value", "counts")
    if len(shapes) != len(names):
        raise ValueError(f"{argument} must have the parts {', '.join(names)}, got {len(shapes)} parts")
    for name, got, expected in zip(names, shapes, state_shapes(rule, sizes), strict=True):
        if tuple(got) != expected:
            raise ValueError(f"{argument}.{name} must be {list(expected)} for {rule.name}, got shape {list(got)}")


def saved_numbers(rule: Rule, sizes: Sizes, form: str, chunk_size: int, packed: bool) -> int:
    """The most numbers that a forward pass saves for the backward pass."""
    memory_size = sizes.heads * sizes.dim_k * (sizes.dim_v + int(rule.normalised))
    stretch = rule.stretch(form, chunk_size)
    if stretch is None:
        return sizes.sequences * memory_size
    if packed:
        # The lengths of the sequences are not known here, so count one incomplete segment for each.
        return (sizes.time // stretch + sizes.sequences) * memory_size
    return sizes.sequences * ((sizes.time + stretch - 1) // stretch) * memory_size
