"""The kernels, compiled from Rust. Use `falcon_fwa.scan` or `falcon_fwa.ops`, which check and allocate arrays."""

from typing import Any, final

__version__: str
RULES: list[str]
GAINS: list[str]
DECAYS: list[str]

@final
class Rule:
    """A rule, with its options."""

    def __new__(
        cls,
        name: str,
        *,
        window: int | None = None,
        align: str | None = None,
        read: str | None = None,
        gain: str | None = None,
        decay: str | None = None,
        detach: bool | None = None,
        eps: float | None = None,
        gamma_floor: float | None = None,
        normaliser_eps: float | None = None,
    ) -> Rule: ...
    @staticmethod
    def parse(spec: str) -> Rule: ...
    @property
    def spec(self) -> str: ...
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
    def stretch(self, form: str, chunk_size: int) -> int | None: ...

def forward(
    rule: str,
    form: str,
    chunk_size: int,
    inputs: tuple[Any, ...],
    cu_seqlens: Any,
    state: tuple[Any, ...],
    out: Any,
    final_state: tuple[Any, ...],
    saved: Any,
    threads: int,
) -> None: ...
def backward(
    rule: str,
    form: str,
    chunk_size: int,
    inputs: tuple[Any, ...],
    cu_seqlens: Any,
    state: tuple[Any, ...],
    saved: Any,
    grad_out: Any,
    grad_final: tuple[Any, ...] | None,
    grads: tuple[Any, ...],
    grad_state: tuple[Any, ...],
    threads: int,
) -> None: ...
def step(
    rule: str,
    inputs: tuple[Any, ...],
    state: tuple[Any, ...],
    out: Any,
    final_state: tuple[Any, ...],
) -> None: ...
def panic(message: str) -> None: ...
