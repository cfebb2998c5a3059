"""The layer: projections, short convolution, normalisation, gates, a rule, output. PyTorch modules.

Parameters have the names and shapes of the checkpoints that ``falcon train`` writes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ._native import RULES, Rule
from .ops import FalconState, backend_of, falcon, falcon_step

_FULL_STEP = math.log(math.e - 1)
"""The number whose ``softplus`` is 1, so that a new layer takes full steps."""
_LARGEST_GAIN = 2.0


@dataclass(frozen=True)
class MixerOptions:
    """The options of a layer: those keys of ``config.json`` that belong to the layer.

    The defaults are the block of the paper's authors for Falcon, with RMS-normalised keys and a learned step size.
    """

    mixer: str = "falcon-1"
    """``softmax``, or one of ``falcon_fwa.RULES``."""
    num_heads: int = 4
    num_key_heads: int = 4
    """Heads of queries and keys, which value heads share in equal groups."""
    head_dim: int = 64
    head_v_dim: int = 64
    conv_size: int = 4
    """Taps of the causal convolution after the projections; 0 leaves it out."""
    conv_activation: str = "silu"
    """``silu`` or ``none``."""
    qk_norm: str = "rms"
    """``rms``, ``l2`` or ``none``."""
    feature_map: str = "identity"
    """``identity``, ``elu-plus-one``, ``relu``, ``squared-relu`` or ``silu``."""
    scale_queries: bool = False
    value_norm: bool = False
    window: int = 1
    align: str = "next"
    read: str = "after"
    gain: str = "eta"
    """``none``, ``beta``, ``eta``, ``sigmoid`` or ``delta``."""
    decay: str = "lambda"
    """``none``, ``lambda``, ``fixed``, ``lightning`` or ``selective``."""
    lambda_scale: float = 0.95
    lambda_init: tuple[float, float] = (0.01, 0.01)
    step_eps: float = 1e-3
    gamma_floor: float | None = 0.01
    output_norm: str = "head"
    """``none``, ``head`` or ``all``."""
    output_gate: str = "after-norm"
    """``none``, ``after-norm`` or ``before-norm``."""
    value_skip: bool = False
    rope_theta: float | None = None
    norm_eps: float = 1e-5

    @classmethod
    def of(cls, config: Any) -> MixerOptions:
        """The options in a model's configuration."""
        return cls(**{field.name: getattr(config, field.name) for field in fields(cls)})

    def __post_init__(self) -> None:
        choices = {
            "mixer": ("softmax", *RULES),
            "conv_activation": ("none", "silu"),
            "qk_norm": ("none", "rms", "l2"),
            "feature_map": ("identity", "elu-plus-one", "relu", "squared-relu", "silu"),
            "gain": ("none", "beta", "eta", "sigmoid", "delta"),
            "decay": ("none", "lambda", "fixed", "lightning", "selective"),
            "output_norm": ("none", "head", "all"),
            "output_gate": ("none", "after-norm", "before-norm"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        for name in ("num_heads", "num_key_heads", "head_dim", "head_v_dim", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.num_heads % self.num_key_heads != 0:
            raise ValueError(f"num_key_heads must divide num_heads = {self.num_heads}, got {self.num_key_heads}")
        if self.gain == "delta" and self.decay != "selective":
            raise ValueError('gain "delta" needs decay "selective", with which it shares Δ')

    @property
    def softmax(self) -> bool:
        """Whether the layer is softmax attention instead of a rule."""
        return self.mixer == "softmax"

    @property
    def rule(self) -> Rule:
        """The rule with these options."""
        named = Rule(self.mixer)
        gain = {"none": "unit", "beta": "beta"}.get(self.gain, "eta")
        ridge = named.decay if named.decay in ("ridge", "scaled-ridge") else "scaled-ridge"
        decay = {"none": "none", "lambda": ridge}.get(self.decay, "gate")
        floor = "none" if self.gamma_floor is None else repr(self.gamma_floor)
        return Rule.parse(
            f"{self.mixer} window={self.window} align={self.align} read={self.read} gain={gain} decay={decay} "
            f"detach={str(named.detach).lower()} eps={self.step_eps!r} gamma_floor={floor}"
        )

    @property
    def nominal_energy(self) -> float:
        """``Ē``: the energy of a normalised key."""
        return float(self.head_dim) if self.qk_norm == "rms" else 1.0


class RmsNorm(nn.Module):
    """``x / √(mean x² + ε)``, times a learned weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise over the last axis."""
        return functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class ShortConv(nn.Module):
    """A causal convolution over time, one filter for each channel."""

    def __init__(self, channels: int, taps: int, activation: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, taps).uniform_(-(taps**-0.5), taps**-0.5))
        self.activation = activation

    def forward(self, x: Tensor, past: Tensor | None, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
        """Convolve ``x``, ``[batch, time, channels]``; return the result, and the ``past`` of the next call.

        ``past`` has the last ``taps − 1`` inputs of each sequence, ``[sequences, channels, taps − 1]``; ``None`` stands
        for zeros.
        """
        kept = self.weight.shape[-1] - 1
        sequences = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        if past is None:
            past = x.new_zeros((sequences, x.shape[-1], kept))
        before = past.transpose(1, 2).to(x.dtype)
        if cu_seqlens is None:
            long = torch.cat([before, x], 1)
            y = self._taps(long, x.shape[1])
            after = long[:, long.shape[1] - kept :]
        else:
            # Lay all sequences out in one row, each after its own past.
            lengths = cu_seqlens.diff()
            starts = cu_seqlens[:-1] + kept * torch.arange(sequences, device=x.device)
            place = torch.arange(x.shape[1], device=x.device) + kept * (
                torch.repeat_interleave(torch.arange(1, sequences + 1, device=x.device), lengths)
            )
            tails = starts.unsqueeze(1) + torch.arange(kept, device=x.device)
            long = x.new_zeros((x.shape[1] + kept * sequences, x.shape[-1]))
            long = long.index_copy(0, tails.flatten(), before.flatten(0, 1)).index_copy(0, place, x[0])
            y = self._taps(functional.pad(long, (0, 0, kept, 0)).unsqueeze(0), long.shape[0])[:, place]
            after = long[tails + lengths.unsqueeze(1)]
        y = functional.silu(y) if self.activation == "silu" else y
        return y, after.transpose(1, 2)

    def _taps(self, long: Tensor, time: int) -> Tensor:
        """``y_t = Σ_i w_i x_{t − taps + 1 + i}``."""
        weight = self.weight[:, 0].to(long.dtype)
        y = weight[:, 0] * long[:, :time]
        for tap in range(1, weight.shape[1]):
            y = torch.addcmul(y, weight[:, tap], long[:, tap : tap + time])
        return y


def rotary(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary positions: rotate pairs of features by angles that grow with the position.

    ``x`` is ``[batch, time, heads, dim]``, ``positions`` is ``[batch, time]``. Feature ``i`` is paired with feature
    ``i + dim/2``.
    """
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, device=x.device, dtype=torch.float64) / half)
    angles = (positions.to(torch.float64).unsqueeze(-1) * frequencies).unsqueeze(2)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class FalconAttention(nn.Module):
    """A layer that mixes tokens by a rule, in place of attention.

    Example::

        layer = FalconAttention(hidden_size=256, num_heads=4, rule="falcon-1")
        y, _, _ = layer(torch.randn(2, 100, 256))

    Args:
        hidden_size: Width of the input and of the output.
        num_heads: Number of heads, each with a memory of its own.
        rule: One of ``falcon_fwa.RULES``, or ``"softmax"``.
        layer_idx: Index of the layer in its model, for caches and for Lightning's decays.
        num_layers: Number of layers of the model, for Lightning's decays and the initial output matrix.
        options: All options at once, in place of ``num_heads``, ``rule`` and ``keys``.
        keys: Options by name, as in :class:`MixerOptions`. ``head_dim`` is ``hidden_size // num_heads`` if not given,
            ``head_v_dim`` is ``head_dim``, ``num_key_heads`` is ``num_heads``, and ``window`` is that of the rule.

    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int = 4,
        rule: str = "falcon-1",
        *,
        layer_idx: int = 0,
        num_layers: int = 1,
        options: MixerOptions | None = None,
        **keys: Any,
    ) -> None:
        super().__init__()
        if options is None:
            width = keys.pop("head_dim", None) or hidden_size // num_heads
            defaults = {"head_dim": width, "head_v_dim": width, "num_key_heads": num_heads}
            if rule not in ("softmax", *RULES):
                raise ValueError(f"rule must be softmax or one of {', '.join(RULES)}, got {rule!r}")
            if rule != "softmax" and "window" not in keys:
                defaults["window"] = Rule(rule).window
            options = MixerOptions(mixer=rule, num_heads=num_heads, **{**defaults, **keys})
        elif keys:
            raise TypeError(f"options already contains {', '.join(keys)}; set it there")
        self.options, self.layer_idx = options, layer_idx
        o = options
        self._rule = None if o.softmax else o.rule
        keys_width, values_width = o.num_key_heads * o.head_dim, o.num_heads * o.head_v_dim
        self.q_proj, self.k_proj = _linear(hidden_size, keys_width), _linear(hidden_size, keys_width)
        self.v_proj = _linear(hidden_size, values_width)
        if o.conv_size > 0:
            self.q_conv1d = ShortConv(keys_width, o.conv_size, o.conv_activation)
            self.k_conv1d = ShortConv(keys_width, o.conv_size, o.conv_activation)
            self.v_conv1d = ShortConv(values_width, o.conv_size, o.conv_activation)
        per_column = self._rule is not None and self._rule.per_column
        if o.gain in ("beta", "eta", "sigmoid"):
            self.b_proj = _linear(hidden_size, values_width if per_column else o.num_heads)
        if o.decay in ("lambda", "selective"):
            self.a_proj = _linear(hidden_size, o.num_heads)
            self.a_bias = nn.Parameter(self._initial_bias())
        if o.decay == "selective":
            self.A_log = nn.Parameter(torch.empty(o.num_heads).uniform_(1, 16).log())
        self.g_proj = None if o.output_gate == "none" else _linear(hidden_size, values_width)
        norm_width = {"none": 0, "head": o.head_v_dim, "all": values_width}[o.output_norm]
        self.o_norm = RmsNorm(norm_width, o.norm_eps) if norm_width else None
        self.o_proj = _linear(values_width, hidden_size)
        self.D = nn.Parameter(torch.ones(o.num_heads)) if o.value_skip else None
        # Plain numbers, not a tensor: a module may be created on the meta device, where tensors have no values.
        self.fixed_decay = None
        if o.decay == "fixed":
            self.fixed_decay = [1 - 2.0 ** (-5 - head) for head in range(o.num_heads)]
        elif o.decay == "lightning":
            slope = 8 / o.num_heads * (1 - layer_idx / num_layers)
            self.fixed_decay = [math.exp(-slope * head) for head in range(o.num_heads)]
        std = hidden_size**-0.5 / 2
        for name, module in self.named_children():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=std / num_layers**0.5 if name == "o_proj" else std)

    def _initial_bias(self) -> Tensor:
        o = self.options
        if o.decay == "lambda":
            first, last = (math.log(share / (1 - share)) for share in o.lambda_init)
            return torch.linspace(first, last, o.num_heads)
        # So that Δ starts log-uniform between a thousandth and a tenth.
        delta = torch.empty(o.num_heads).uniform_(math.log(1e-3), math.log(1e-1)).exp()
        return delta + torch.log(-torch.expm1(-delta))

    @property
    def backend(self) -> str:
        """The backend that runs the layer's rule where its parameters are; for softmax attention always ``torch``.

        It depends on the device, the rule, the dtype of the parameters and the width of a key, as :func:`backend_of`
        says.
        """
        if self._rule is None:
            return "torch"
        weight = self.o_proj.weight
        return backend_of(weight.device, self._rule, weight.dtype, self.options.head_dim)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        *,
        cu_seqlens: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, None, Any]:
        """Mix the tokens of a batch.

        Args:
            hidden_states: ``[batch, time, hidden_size]``.
            attention_mask: ``[batch, time]`` or longer, 0 for padding, which does not affect other tokens.
            past_key_values: A cache of transformers, with the state of this layer.
            use_cache: Whether to store the state after these tokens in ``past_key_values``.
            output_attentions: Ignored: there are no attention weights.
            cu_seqlens: For packed sequences: the start of each, and the end of the last. The batch must then be 1.

        Returns:
            The outputs ``[batch, time, hidden_size]``, ``None`` in place of attention weights, and ``past_key_values``.

        """
        del output_attentions
        packing = None
        if attention_mask is not None and cu_seqlens is None and not self.options.softmax:
            packing = Packing.of(attention_mask[:, -hidden_states.shape[1] :])
        x = hidden_states
        if attention_mask is not None and self.options.softmax and self.options.conv_size > 0:
            # Softmax attention keeps padding in the batch. Convolutions must see zeros there, as before a sequence.
            x = x * attention_mask[:, -x.shape[1] :].unsqueeze(-1).to(x.dtype)
        if packing is not None:
            x, cu_seqlens = packing.pack(x), packing.cu_seqlens
        cache = past_key_values.layers[self.layer_idx] if past_key_values is not None else None
        y = self._mix(x, cache, use_cache and cache is not None, cu_seqlens, attention_mask)
        return (y if packing is None else packing.unpack(y)), None, past_key_values

    def _mix(
        self, x: Tensor, cache: Any, keep: bool, cu_seqlens: Tensor | None, attention_mask: Tensor | None
    ) -> Tensor:
        o = self.options
        batch, time, _ = x.shape
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if o.conv_size > 0:
            past = _Past(cache, keep)
            q = past.convolve(0, self.q_conv1d, q, cu_seqlens)
            k = past.convolve(1, self.k_conv1d, k, cu_seqlens)
            v = past.convolve(2, self.v_conv1d, v, cu_seqlens)
        q = q.view(batch, time, o.num_key_heads, o.head_dim)
        k = k.view(batch, time, o.num_key_heads, o.head_dim)
        v = v.view(batch, time, o.num_heads, o.head_v_dim)
        positions = None
        if o.rope_theta is not None:
            mask = attention_mask if o.softmax else None
            positions = _Past(cache, keep).positions(x, cu_seqlens, mask, o.softmax)
        q, k, v = self._features(q, k, v, positions)
        if o.softmax:
            read = self._attend(q, k, v, cache, keep, cu_seqlens, attention_mask)
        else:
            read = self._scan(x, q, k, v, cache, keep, cu_seqlens)
        if self.D is not None:
            read = read + v * self.D.view(1, 1, -1, 1)
        gate = None if self.g_proj is None else functional.silu(self.g_proj(x))
        if gate is not None and o.output_gate == "before-norm":
            read = (read.flatten(2) * gate).view_as(read)
        if self.o_norm is not None:
            read = self.o_norm(read if o.output_norm == "head" else read.flatten(2))
        read = read.reshape(batch, time, -1)
        if gate is not None and o.output_gate == "after-norm":
            read = read * gate
        return self.o_proj(read)

    def _features(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        o = self.options

        def norm(x: Tensor) -> Tensor:
            if o.qk_norm == "rms":
                return functional.rms_norm(x, (x.shape[-1],), None, o.norm_eps)
            if o.qk_norm == "l2":
                return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + o.norm_eps)
            return x

        def mapped(x: Tensor) -> Tensor:
            if o.feature_map == "elu-plus-one":
                return x.clamp_max(0).exp() + functional.relu(x)
            if o.feature_map == "relu":
                return functional.relu(x)
            if o.feature_map == "squared-relu":
                return functional.relu(x).square()
            return functional.silu(x) if o.feature_map == "silu" else x

        q, k = norm(q), norm(k)
        if positions is not None and o.rope_theta is not None:
            q, k = rotary(q, positions, o.rope_theta), rotary(k, positions, o.rope_theta)
        q, k = mapped(q), mapped(k)
        if o.scale_queries or o.softmax:
            q = q * o.head_dim**-0.5
        if o.value_norm:
            v = functional.rms_norm(v, (v.shape[-1],), None, o.norm_eps)
        return q, k, v

    def gates(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The gains and decays that the rule takes for the tokens ``x``, ``[batch, time, hidden_size]``."""
        o, rule = self.options, self._rule
        if rule is None:
            raise ValueError("softmax attention has no gates")
        per_column = rule.per_column
        decay: Tensor | None = None
        delta: Tensor | None = None
        gain: Tensor | None = None
        if o.decay in ("lambda", "selective"):
            a = self.a_proj(x) + self.a_bias
            if o.decay == "lambda":
                decay = torch.sigmoid(a) * o.lambda_scale
            else:
                delta = functional.softplus(a.float())
                decay = torch.exp(-delta * self.A_log.float().exp())
        elif self.fixed_decay is not None:
            decay = x.new_tensor(self.fixed_decay, dtype=torch.float32).expand(*x.shape[:2], o.num_heads)
        if o.gain in ("beta", "eta", "sigmoid"):
            z = self.b_proj(x)
            z = z.unflatten(-1, (o.num_heads, o.head_v_dim)) if per_column else z
            if o.gain == "eta":
                unit = 1 / o.nominal_energy
                gain = functional.softplus(z + _FULL_STEP) * unit
                if rule.erases:
                    bound = z.new_tensor(_LARGEST_GAIN * unit)
                    if o.decay == "lambda" and decay is not None:
                        bound = _LARGEST_GAIN * unit / (1 + decay)
                    gain = torch.minimum(gain, bound.unsqueeze(-1) if per_column and bound.ndim else bound)
            else:
                gain = torch.sigmoid(z) * (_LARGEST_GAIN if o.gain == "beta" else 1.0)
        elif o.gain == "delta":
            gain = delta
        if per_column and decay is not None and rule.decay == "gate":
            decay = decay.unsqueeze(-1).expand(*decay.shape, o.head_v_dim)
        return gain, decay

    def _scan(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, cache: Any, keep: bool, cu_seqlens: Tensor | None
    ) -> Tensor:
        rule = self._rule
        assert rule is not None, "softmax attention attends and does not scan"
        gain, decay = self.gates(x)
        past = _Past(cache, keep)
        state = past.state()
        final: FalconState | None
        one = q.shape[1] == 1 and cu_seqlens is None and not torch.is_grad_enabled()
        if one and state is not None:
            out, final = falcon_step(q, k, v, gain, decay, rule=rule, state=state)
        else:
            out, final = falcon(
                q, k, v, gain, decay, rule=rule, initial_state=state, output_final_state=keep, cu_seqlens=cu_seqlens
            )  # fmt: skip
        past.keep_state(final)
        return out

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: Any,
        keep: bool,
        cu_seqlens: Tensor | None,
        attention_mask: Tensor | None,
    ) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        time = q.shape[2]
        if cache is not None and (keep or cache.is_initialized):
            k, v = (
                cache.update(k, v) if keep else (torch.cat([a, b], 2) for a, b in ((cache.keys, k), (cache.values, v)))
            )
        total = k.shape[2]
        rows = torch.arange(total - time, total, device=q.device).unsqueeze(1)
        allowed = torch.arange(total, device=q.device).unsqueeze(0) <= rows
        if cu_seqlens is not None:
            which = torch.repeat_interleave(torch.arange(len(cu_seqlens) - 1, device=q.device), cu_seqlens.diff())
            allowed = allowed & (which.unsqueeze(0) == which.unsqueeze(1))
        allowed = allowed.view(1, 1, time, total)
        if attention_mask is not None:
            seen = attention_mask[:, -total:].to(torch.bool)
            # A padded query sees itself, so that its row is not empty.
            itself = torch.arange(total, device=q.device).unsqueeze(0) == rows
            allowed = (allowed & seen[:, None, None, :]) | itself
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=1.0).transpose(1, 2)


class Packing:
    """Moves the tokens of a padded batch into one row without padding, and back."""

    def __init__(self, mask: Tensor) -> None:
        self.batch, self.time = mask.shape
        lengths = mask.sum(1, dtype=torch.int64)
        self.places = mask.flatten().nonzero().flatten()
        self.cu_seqlens = functional.pad(lengths.cumsum(0), (1, 0))

    @classmethod
    def of(cls, mask: Tensor) -> Packing | None:
        """The packing for a mask ``[batch, time]``, which is 0 for padding; ``None`` if there is no padding."""
        mask = mask.to(torch.bool)
        return None if bool(mask.all()) else cls(mask)

    def pack(self, x: Tensor) -> Tensor:
        """``[batch, time, …]`` to ``[1, tokens, …]``."""
        return x.flatten(0, 1)[self.places].unsqueeze(0)

    def unpack(self, x: Tensor) -> Tensor:
        """``[1, tokens, …]`` to ``[batch, time, …]``, with zeros where there was padding."""
        out = x.new_zeros((self.batch * self.time, *x.shape[2:]))
        return out.index_copy(0, self.places, x[0]).unflatten(0, (self.batch, self.time))


class _Past:
    """The state that a cache has for a layer, which is updated if ``keep``.

    The ``conv_states`` of the cache are the last inputs of the convolutions of q, k and v. Its ``recurrent_states`` are
    memory, last key, both tails, counts and positions.
    """

    POSITIONS = 5

    def __init__(self, cache: Any, keep: bool) -> None:
        self.cache, self.keep = cache, keep

    def convolve(self, index: int, conv: ShortConv, x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
        past = self.cache.conv_states[index] if self.cache is not None else None
        y, after = conv(x, past, cu_seqlens)
        if self.keep and after.shape[-1] > 0:
            self.cache.update_conv_state(after.detach(), state_idx=index)
        return y

    def _recurrent(self, index: int) -> Any:
        return None if self.cache is None else self.cache.recurrent_states[index]

    def state(self) -> FalconState | None:
        memory = self._recurrent(0)
        return None if memory is None else FalconState(*(self._recurrent(index) for index in range(5)))

    def keep_state(self, state: FalconState | None) -> None:
        if self.keep and state is not None:
            for index, part in enumerate(state):
                self.cache.update_recurrent_state(part.detach(), state_idx=index)

    def positions(self, x: Tensor, cu_seqlens: Tensor | None, mask: Tensor | None, softmax: bool) -> Tensor:
        """The position of every token in its sequence, ``[batch, time]``."""
        batch, time = x.shape[:2]
        if mask is not None:
            # Softmax attention keeps padding in its cache.
            return (mask.to(torch.int64).cumsum(1) - 1).clamp_min(0)[:, -time:]
        if softmax:
            start = 0 if self.cache is None else self.cache.get_seq_length()
            if cu_seqlens is None:
                return (torch.arange(time, device=x.device) + start).expand(batch, time)
        lengths = x.new_full((batch,), time, dtype=torch.int64) if cu_seqlens is None else cu_seqlens.diff()
        start = None if softmax else self._recurrent(self.POSITIONS)
        start = torch.zeros_like(lengths) if start is None else start.clone()
        if self.keep and not softmax:
            self.cache.update_recurrent_state(start + lengths, state_idx=self.POSITIONS)
        if cu_seqlens is None:
            return torch.arange(time, device=x.device) + start.unsqueeze(1)
        return (
            torch.arange(time, device=x.device) + torch.repeat_interleave(start - cu_seqlens[:-1], lengths)
        ).unsqueeze(0)
