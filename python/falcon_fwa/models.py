"""Language models for Hugging Face transformers, of any preset: the same files as ``falcon train`` writes and reads.

Importing this module registers them, so that ``AutoConfig`` and ``AutoModelForCausalLM`` open a checkpoint::

    import falcon_fwa.models
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained("runs/books/checkpoints/step-002000")
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

try:
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForCausalLM,
        GenerationMixin,
        GradientCheckpointingLayer,
        PreTrainedConfig,
        PreTrainedModel,
    )
    from transformers.cache_utils import Cache, LinearAttentionAndFullAttentionLayer
    from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
except ImportError as error:  # pragma: no cover - exercised where transformers is not installed
    raise ImportError("falcon_fwa.models needs transformers: pip install 'falcon-fwa[transformers]'") from error

from .layers import FalconAttention, MixerOptions, Packing, RmsNorm

_STATES = 6
"""Tensors that a layer keeps of each sequence: memory, last key, two tails, counts, positions."""


class FalconFwaCacheLayer(LinearAttentionAndFullAttentionLayer):
    """The part of a transformers cache that belongs to one layer.

    For a rule it holds the recurrent state, whose size is fixed; for softmax attention keys and values, which grow with
    the sequence. It also counts the tokens that the layer has read.
    """

    def __init__(self, **_: Any) -> None:
        super().__init__(number_of_states=_STATES)
        self.tokens = 0

    def get_seq_length(self) -> int:
        """The number of tokens so far, padding included. ``generate`` continues after them."""
        return self.tokens

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Give every sequence the state of sequence ``beam_idx``, for beam search."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys.index_select(0, beam_idx), self.values.index_select(0, beam_idx)
        for states in (self.conv_states, self.recurrent_states):
            for index, state in states.items():
                states[index] = None if state is None else state.index_select(0, beam_idx)

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.tokens = 0


class FalconFwaConfig(PreTrainedConfig):
    """The configuration of a model: the keys of ``config.json``, as ``falcon train`` writes them.

    Args:
        vocab_size: Size of the vocabulary.
        hidden_size: Width of the residual stream.
        num_hidden_layers: Number of blocks.
        intermediate_size: Inner width of the SwiGLU; 0 leaves it out.
        tie_word_embeddings: Whether the output matrix is the embedding.
        initializer_range: Standard deviation of the initial embedding.
        matrix_init: How other matrices are initialised: ``half-width`` (as the authors do) or ``fan-in``.
        mup_base_width: The width at which learning rates and logits are not rescaled.
        keys: Options of the layers, as in :class:`falcon_fwa.layers.MixerOptions`, and of any transformers model.

    """

    model_type = "falcon_fwa"

    def __init__(
        self,
        vocab_size: int = 256,
        hidden_size: int = 256,
        num_hidden_layers: int = 4,
        intermediate_size: int = 704,
        tie_word_embeddings: bool = True,
        initializer_range: float = 0.02,
        matrix_init: str = "half-width",
        mup_base_width: int = 1024,
        **keys: Any,
    ) -> None:
        # Here the dtype of the parameters says how they are held, and they are saved so.
        weights = keys.pop("weight_format", "f32")
        if weights not in ("f32", "bf16"):
            raise ValueError(
                f"weight_format is {weights!r}: only the program falcon reads such weights; open the model that falcon "
                "convert made this one from, or convert that to bf16"
            )
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.intermediate_size = intermediate_size
        self.initializer_range = initializer_range
        self.matrix_init = matrix_init
        self.mup_base_width = mup_base_width
        own = {field.name for field in fields(MixerOptions)}
        given = {name: keys.pop(name) for name in list(keys) if name in own}
        if isinstance(given.get("lambda_init"), list):
            given["lambda_init"] = tuple(given["lambda_init"])
        for name, value in asdict(MixerOptions(**given)).items():
            setattr(self, name, value)
        super().__init__(**{"tie_word_embeddings": tie_word_embeddings, **keys})

    @property
    def layer_types(self) -> list[str]:
        """The kind of each layer, from which transformers creates caches."""
        kind = "full_attention" if self.mixer == "softmax" else "linear_attention"
        return [kind] * self.num_hidden_layers

    @property
    def number_of_conv_states(self) -> int:
        """The number of states that a layer of a transformers cache has room for."""
        return _STATES


class FalconFwaCache(Cache):
    """The states of all layers, and the number of tokens that were read, which ``generate`` needs."""

    def __init__(self, config: FalconFwaConfig) -> None:
        super().__init__(layers=[FalconFwaCacheLayer() for _ in range(config.num_hidden_layers)])


class FalconFwaMlp(nn.Module):
    """SwiGLU: ``W_down (SiLU(W_gate x) ⊙ W_up x)``."""

    def __init__(self, hidden_size: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, inner, bias=False)
        self.up_proj = nn.Linear(hidden_size, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[…, hidden_size]`` to the same."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class FalconFwaBlock(GradientCheckpointingLayer):
    """A mixer and a SwiGLU, each with a norm before it and a residual connection around both."""

    def __init__(self, config: FalconFwaConfig, layer_idx: int) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.norm_eps
        self.attn_norm = RmsNorm(width, eps)
        options, layers = MixerOptions.of(config), config.num_hidden_layers
        self.attn = FalconAttention(width, options=options, layer_idx=layer_idx, num_layers=layers)
        inner = config.intermediate_size
        self.mlp_norm = RmsNorm(width, eps) if inner > 0 else None
        self.mlp = FalconFwaMlp(width, inner) if inner > 0 else None

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        past_key_values: Cache | None,
        use_cache: bool,
        cu_seqlens: Tensor | None,
    ) -> Tensor:
        """``[batch, time, hidden_size]`` to the same."""
        mixed, _, _ = self.attn(
            self.attn_norm(hidden_states), attention_mask, past_key_values, use_cache, cu_seqlens=cu_seqlens
        )  # fmt: skip
        hidden_states = hidden_states + mixed
        if self.mlp is None or self.mlp_norm is None:
            return hidden_states
        return hidden_states + self.mlp(self.mlp_norm(hidden_states))


def _check_finite(model: nn.Module, source: Any) -> None:
    """Refuse parameters with numbers that are not finite, and name the first. Those without memory are not checked."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta or not parameter.is_floating_point():
            continue
        finite = parameter.detach().isfinite()
        if not finite.all():
            index = tuple((~finite).nonzero()[0].tolist())
            raise ValueError(
                f"{source}: tensor {name!r} holds {parameter[index].item()} at index {list(index)} in "
                f"{parameter.dtype}; nothing can be computed from it: use a copy from before it was damaged, or a "
                "wider dtype if the file is finite"
            )


class FalconFwaPreTrainedModel(PreTrainedModel):
    """The base class of both models."""

    if TYPE_CHECKING:
        # Transformers reads annotations when the program runs, so this one is for type checkers only.
        config: FalconFwaConfig
    config_class = FalconFwaConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["FalconFwaBlock"]  # noqa: RUF012
    _is_stateful = True
    _supports_cache_class = True

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any) -> Any:
        """Open a model, as every model of transformers; as the program ``falcon``, refuse weights that are not finite.

        Raises:
            ValueError: A weight is infinite or no number. The message names its tensor and its index.

        """
        opened = super().from_pretrained(pretrained_model_name_or_path, *model_args, **kwargs)
        _check_finite(opened[0] if isinstance(opened, tuple) else opened, pretrained_model_name_or_path)
        return opened

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise the embedding and all matrices. Layers initialise their other parameters themselves."""
        config = self.config
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=config.initializer_range)
        elif isinstance(module, FalconFwaBlock):
            branches = config.num_hidden_layers
            if config.matrix_init == "fan-in" and config.intermediate_size > 0:
                branches *= 2
            for name, child in module.named_modules():
                if isinstance(child, nn.Linear):
                    width = child.in_features if config.matrix_init == "fan-in" else 4 * config.hidden_size
                    last = name.endswith(("o_proj", "down_proj"))
                    nn.init.normal_(child.weight, std=width**-0.5 / (branches**0.5 if last else 1))
        elif isinstance(module, nn.Linear) and module is getattr(self, "lm_head", None):
            nn.init.normal_(module.weight, std=config.initializer_range)


class FalconFwaModel(FalconFwaPreTrainedModel):
    """Embedding, blocks, and the last norm."""

    def __init__(self, config: FalconFwaConfig) -> None:
        super().__init__(config)
        self.embeddings: nn.Module = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(FalconFwaBlock(config, index) for index in range(config.num_hidden_layers))
        self.norm = RmsNorm(config.hidden_size, config.norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The embedding."""
        return self.embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding."""
        self.embeddings = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cu_seqlens: Tensor | None = None,
        output_hidden_states: bool | None = None,
        **_: Any,
    ) -> BaseModelOutputWithPast:
        """Hidden states ``[batch, time, hidden_size]`` of tokens ``[batch, time]``.

        ``attention_mask`` is 0 for padding, which does not affect other tokens. With ``cu_seqlens``, the batch must be
        1 and holds packed sequences.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        x = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        time = x.shape[1]
        use_cache = not self.training if use_cache is None else use_cache
        if self.gradient_checkpointing and self.training:
            use_cache = False
        if use_cache and past_key_values is None:
            past_key_values = FalconFwaCache(self.config)
        packing, mask = None, attention_mask
        if mask is not None and self.config.mixer != "softmax":
            packing, mask = Packing.of(mask[:, -time:]), None
            if packing is not None:
                if cu_seqlens is not None:
                    raise ValueError("give either attention_mask or cu_seqlens; packed sequences have no padding")
                x, cu_seqlens = packing.pack(x), packing.cu_seqlens
        hidden_states = []
        for layer in self.layers:
            hidden_states.append(x)
            x = layer(x, mask, past_key_values, use_cache, cu_seqlens)
        if use_cache and past_key_values is not None:
            for cached in past_key_values.layers:
                if isinstance(cached, FalconFwaCacheLayer):
                    cached.tokens += time
        x = self.norm(x)
        hidden_states.append(x)
        if packing is not None:
            x = packing.unpack(x)
            if output_hidden_states:
                hidden_states = [packing.unpack(states) for states in hidden_states]
        return BaseModelOutputWithPast(
            last_hidden_state=x,
            past_key_values=past_key_values if use_cache else None,
            hidden_states=tuple(hidden_states) if output_hidden_states else None,
        )


class FalconFwaForCausalLM(FalconFwaPreTrainedModel, GenerationMixin):
    """A language model."""

    _tied_weights_keys = {"lm_head.weight": "model.embeddings.weight"}  # noqa: RUF012

    def __init__(self, config: FalconFwaConfig) -> None:
        super().__init__(config)
        self.model = FalconFwaModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        if generation_config.use_cache and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = FalconFwaCache(self.config)
        # The type that transformers gives `self` in this method is one that no model has.
        return super()._prepare_cache_for_generation(  # type: ignore[misc]
            generation_config, model_kwargs, *args, **kwargs
        )

    def get_output_embeddings(self) -> nn.Linear:
        """The output matrix."""
        return self.lm_head

    def set_output_embeddings(self, value: nn.Linear) -> None:
        """Replace the output matrix."""
        self.lm_head = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        cu_seqlens: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits ``[batch, time, vocab_size]``, and the loss of ``labels`` (shifted here; ``−100`` is ignored)."""
        outputs = self.model(
            input_ids, attention_mask, past_key_values, inputs_embeds, use_cache, cu_seqlens, output_hidden_states
        )  # fmt: skip
        hidden = outputs.last_hidden_state
        if isinstance(logits_to_keep, Tensor):
            hidden = hidden[:, logits_to_keep]
        elif logits_to_keep > 0:
            hidden = hidden[:, -logits_to_keep:]
        # Width scaling: logits of a wide model are as large as those of a narrow one.
        logits = self.lm_head(hidden * (self.config.mup_base_width / self.config.hidden_size))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=outputs.past_key_values, hidden_states=outputs.hidden_states
        )


AutoConfig.register("falcon_fwa", FalconFwaConfig, exist_ok=True)
AutoModel.register(FalconFwaConfig, FalconFwaModel, exist_ok=True)
AutoModelForCausalLM.register(FalconFwaConfig, FalconFwaForCausalLM, exist_ok=True)
