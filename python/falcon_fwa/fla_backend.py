"""flash-linear-attention and transformers on our CPU kernels: :func:`enable_fla` and :func:`disable_fla`.

flash-linear-attention (fla) runs on GPUs, and fails on CPU tensors. Some of its functions first look for a backend in a
registry, where we register ours. The other functions are replaced, in every module of fla and transformers that refers
to them, by a wrapper that looks at the arguments. Either way, calls that our kernels support go to our kernels, and all
other calls go where they went before. Retention needs no entry: fla computes it with simple GLA.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .ops import fla as ops

_NAME = "falcon_fwa"
_PACKAGES = ("fla", "transformers", "transformers_modules")
_UNSUPPORTED = ("cp_context", "gk", "gv", "output_attentions", "reverse")
"""Arguments that our functions have because fla's do, but do not support."""
_KEYWORDS = ("A_log", "chunk_size", "dt_bias", "transpose_state_layout", "use_gate_in_kernel")
"""Arguments that our functions accept through ``**kwargs``."""


class FlaReport(NamedTuple):
    """The functions that :func:`enable_fla` redirected, by their full names."""

    registered: tuple[str, ...]
    """Functions of fla that find our kernels in its registry of backends."""
    patched: tuple[str, ...]
    """Functions of fla that were replaced."""
    transformers: tuple[str, ...]
    """Functions of models of transformers that were replaced; a later call also reports models loaded since."""


def _fused_chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    return ops.chunk_simple_gla(q, k, v, g, g_gamma, scale, initial_state, output_final_state, cu_seqlens=cu_seqlens)


def _parallel_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    scale: float | None = None,
    output_attentions: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
) -> tuple[Tensor, None]:
    del output_attentions, cu_seqlens_cpu
    return ops.chunk_simple_gla(q, k, v, g, scale=scale, cu_seqlens=cu_seqlens)[0], None


_FLA: dict[str, dict[str, Callable[..., Any]]] = {
    "gated_delta_rule": {
        "chunk_gated_delta_rule": ops.chunk_gated_delta_rule,
        "fused_recurrent_gated_delta_rule": ops.fused_recurrent_gated_delta_rule,
    },
    "delta_rule": {
        "chunk_delta_rule": ops.chunk_delta_rule,
        "fused_recurrent_delta_rule": ops.fused_recurrent_delta_rule,
    },
    "simple_gla": {
        "chunk_simple_gla": ops.chunk_simple_gla,
        "fused_chunk_simple_gla": _fused_chunk_simple_gla,
        "fused_recurrent_simple_gla": ops.fused_recurrent_simple_gla,
        "parallel_simple_gla": _parallel_simple_gla,
    },
    "linear_attn": {
        "chunk_linear_attn": ops.chunk_linear_attn,
        "fused_chunk_linear_attn": ops.chunk_linear_attn,
        "fused_recurrent_linear_attn": ops.fused_recurrent_linear_attn,
    },
}
"""Functions of ``fla.ops``, and our functions for them."""

_TRANSFORMERS: dict[str, Callable[..., Any] | None] = {
    "torch_chunk_gated_delta_rule": ops.chunk_gated_delta_rule,
    "torch_recurrent_gated_delta_rule": ops.fused_recurrent_gated_delta_rule,
    "chunk_kimi_delta_attention": None,
    "recurrent_kimi_delta_attention": None,
    "causal_conv1d_fn": None,
    "causal_conv1d_update": None,
}
"""Functions of models of transformers, and our functions for them; ``None`` is transformers' plain PyTorch."""

_replaced: dict[int, tuple[Callable[..., Any], Callable[..., Any]]] = {}
"""For each replaced function, by its ``id``: the function itself, and its replacement."""
_undo: list[Callable[[], object]] = []
"""Further steps of :func:`disable_fla`, which takes them in reverse order."""
_report: FlaReport | None = None


def _refusal(names: frozenset[str], given: dict[str, Any]) -> str | None:
    """Why our function, whose arguments are ``names``, cannot compute a call, or ``None`` if it can."""
    for name, value in given.items():
        if isinstance(value, Tensor) and value.device.type != "cpu":
            return f"{name} is on {value.device}"
        if (name in _UNSUPPORTED or name not in names) and value is not None and value is not False:
            return f"{name} is not supported"
    return None


def _verifier(ours: Callable[..., Any]) -> Callable[..., tuple[bool, str | None]]:
    """The function that fla's registry calls to find out whether ours can compute a call."""
    parameters = inspect.signature(ours).parameters
    order = tuple(parameters)
    has_kwargs = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    names = frozenset(order + (_KEYWORDS if has_kwargs else ()))

    def verify(*args: Any, **kwargs: Any) -> tuple[bool, str | None]:
        reason = _refusal(names, dict(zip(order, args, strict=False)) | kwargs)
        return reason is None, reason

    return verify


def _fla_function(ours: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper that calls our function if it can compute the call, else the original."""
    verify = _verifier(ours)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (ours if verify(*args, **kwargs)[0] else original)(*args, **kwargs)

    return call


def _transformers_function(ours: Callable[..., Any] | None, original: Any) -> Callable[..., Any]:
    """A wrapper that calls our function on the CPU; without one, the plain PyTorch that ``original`` wraps."""
    names = frozenset(inspect.signature(ours or original).parameters)
    exporting = getattr(torch.compiler, "is_exporting", bool)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if ours is None:
            packed = kwargs.get("cu_seqlens") is not None or kwargs.get("seq_idx") is not None
            on_cpu = all(value.device.type == "cpu" for value in args if isinstance(value, Tensor))
            return (original.__wrapped__ if on_cpu and not packed else original)(*args, **kwargs)
        # Models pass all their keyword arguments on. As transformers does, drop those that the function does not have.
        accepted = {name: value for name, value in kwargs.items() if name in names}
        given = dict(zip(("q", "k", "v"), args, strict=False)) | accepted
        if len(args) != 3 or exporting() or _refusal(names, given) is not None:
            return original(*args, **kwargs)
        return ours(*args, **accepted)

    return call


def _swap(table: dict[int, Callable[..., Any]]) -> None:
    """Replace functions in all modules of fla and transformers; ``table`` maps their ``id`` to their replacements."""
    for path, module in list(sys.modules.items()):
        if module is not None and path.partition(".")[0] in _PACKAGES:
            for name, value in list(vars(module).items()):
                if id(value) in table:
                    setattr(module, name, table[id(value)])


def _plan_replacement(original: Callable[..., Any], replacement: Callable[..., Any]) -> None:
    _replaced[id(original)] = (original, replacement)


def _plan_model(module: ModuleType | None) -> None:
    """Plan to replace the functions of ``_TRANSFORMERS`` that the module of a model has."""
    ours = {id(replacement) for _, replacement in _replaced.values()}
    for name, function in _TRANSFORMERS.items():
        original: Any = vars(module).get(name) if module is not None else None
        # A function that chooses between kernels and plain PyTorch wraps the latter. Plain functions are not replaced.
        if hasattr(original, "__wrapped__") and id(original) not in _replaced and id(original) not in ours:
            _plan_replacement(original, _transformers_function(function, original))


def _enable_transformers() -> None:
    """Plan to replace functions of loaded models; those of later models are replaced when they define their classes."""
    for path, module in list(sys.modules.items()):
        if path.startswith(("transformers.models.", "transformers_modules.")):
            _plan_model(module)
    base = importlib.import_module("transformers.modeling_utils").PreTrainedModel
    original = vars(base)["__init_subclass__"]

    def init_subclass(cls: type[Any], /, **kwargs: Any) -> None:
        original.__get__(None, cls)(**kwargs)
        before = len(_replaced)
        _plan_model(sys.modules.get(cls.__module__))
        if len(_replaced) > before:
            _swap({key: replacement for key, (_, replacement) in _replaced.items()})

    base.__init_subclass__ = classmethod(init_subclass)
    _undo.append(lambda: setattr(base, "__init_subclass__", original))


def _enable_registry(entries: dict[str, Callable[..., Any]]) -> list[str]:
    """Register our backend for the functions that look for one, and return the names of these functions."""
    backends = importlib.import_module("fla.backends")
    if getattr(backends, "_DISPATCH_DISABLED", True):
        return []
    methods = {name: staticmethod(ours) for name, ours in entries.items()}
    methods |= {f"{name}_verifier": staticmethod(_verifier(ours)) for name, ours in entries.items()}
    backend = type("FalconBackend", (backends.BaseBackend,), {"backend_type": _NAME, "priority": -1, **methods})

    def register(target: str | Callable[..., Any], registry: Any) -> None:
        logged = set(registry._logged)
        backends.register(target)(backend)
        _undo.append(lambda: (registry._backends.pop(_NAME, None), registry._logged.intersection_update(logged)))

    # One function uses the registry of its whole operation; each of the others has a registry of its own.
    register("gated_delta_rule", backends._operation_registries["gated_delta_rule"])
    names = ["chunk_gated_delta_rule"]
    for operation, functions in _FLA.items():
        for name in functions:
            function = getattr(sys.modules[f"fla.ops.{operation}"], name)
            registry = backends._function_registries.get(inspect.unwrap(function))
            if registry is not None:
                register(function, registry)
                names.append(name)
    return names


def _enable_fla() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Register our backend, plan to replace the other functions, and return the full names of both kinds."""
    modules = {operation: importlib.import_module(f"fla.ops.{operation}") for operation in _FLA}
    registered = _enable_registry({name: ours for functions in _FLA.values() for name, ours in functions.items()})
    paths: tuple[list[str], list[str]] = ([], [])
    for operation, functions in _FLA.items():
        for name, ours in functions.items():
            paths[name not in registered].append(f"fla.ops.{operation}.{name}")
            if name not in registered:
                original = getattr(modules[operation], name)
                _plan_replacement(original, _fla_function(ours, original))
    return tuple(paths[0]), tuple(paths[1])


def _replaced_in_models() -> tuple[str, ...]:
    """The full names of the functions of models that are replaced now."""
    ours = {id(replacement) for _, replacement in _replaced.values()}
    modules = [(path, module) for path, module in list(sys.modules.items()) if path.startswith(_PACKAGES[1:])]
    found = [(path, name) for path, module in modules for name in _TRANSFORMERS if id(vars(module).get(name)) in ours]
    return tuple(f"{path}.{name}" for path, name in found)


def enable_fla() -> FlaReport:
    """Make flash-linear-attention and transformers' gated-delta-rule models use our kernels on the CPU.

    Calls with tensors on other devices, or with arguments that our kernels do not support (``gk``, ``gv``,
    ``cp_context``, ``reverse``, ``output_attentions``), go where they went before. Either package may be absent. A
    second call changes nothing. The report names the functions that were redirected.
    """
    global _report
    if _report is None:
        registered, patched = _enable_fla() if find_spec("fla") is not None else ((), ())
        if find_spec("transformers") is not None:
            _enable_transformers()
        _swap({key: replacement for key, (_, replacement) in _replaced.items()})
        _report = FlaReport(registered, patched, ())
    return _report._replace(transformers=_replaced_in_models())


def disable_fla() -> None:
    """Undo :func:`enable_fla`: restore every function."""
    global _report
    _swap({id(replacement): original for original, replacement in _replaced.values()})
    while _undo:
        _undo.pop()()
    _replaced.clear()
    _report = None
