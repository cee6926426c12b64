"""The vocabulary of sweep files: types of values, and the [timing] and [train] tables. No torch here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Role = Literal["causal", "bidirectional", "cross"]
ROLES: tuple[Role, ...] = get_args(Role)
Match = Literal["none", "params", "flops", "state"]
PositionKind = Literal["learned", "sinusoidal", "none"]
Measure = Literal["time", "memory", "accuracy"]
Phase = Literal["forward", "backward", "forward_backward", "train_step", "prefill", "decode"]
Level = Literal["core", "layer", "block", "model"]
DType = Literal["float64", "float32", "bfloat16", "float16"]


def most_positions(kinds: Sequence[PositionKind]) -> PositionKind:
    """What a stack of mixers asks for: the most that any of its layers needs."""
    order: tuple[PositionKind, ...] = ("learned", "sinusoidal", "none")
    return next(kind for kind in order if kind in kinds)


def as_list(value: Any) -> Any:
    """One value stands for a list of one."""
    return list(value) if isinstance(value, list | tuple) else [value]


def whole(value: Any) -> Any:
    """64.0 is 64; anything else is left as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _seconds(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+\.?\d*) *(ms|s|min|m|h)", value)
    if not match:
        raise ValueError('expected a duration such as "60s" or "5m"')
    return float(match[1]) * {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}[match[2]]


def _bytes(value: Any) -> Any:
    if not isinstance(value, str):
        return whole(value)
    match = re.fullmatch(r"(\d+\.?\d*) *([KMGT]?)(i?)B", value)
    if not match:
        raise ValueError('expected a size such as "8GiB"')
    return int(Decimal(match[1]) * (1024 if match[3] else 1000) ** " KMGT".index(match[2] or " "))


def size(n_bytes: int) -> str:
    """As a person writes it: 1 GiB, 8 GB; in bytes where no unit fits."""
    units = {"GiB": 2**30, "GB": 10**9, "MiB": 2**20, "MB": 10**6, "KiB": 2**10, "kB": 10**3}
    return next((f"{n_bytes // unit} {name}" for name, unit in units.items() if n_bytes % unit == 0), f"{n_bytes} B")


def _place(value: Any) -> Any:
    """One entry of test_at, its T a count."""
    if not isinstance(value, dict) or not value:
        raise ValueError("expected a table such as { T = 128 } or { n_pairs = 16 }")
    T = whole(value.get("T", 1))
    if not isinstance(T, int) or isinstance(T, bool) or not 1 <= T < 2**63:
        raise ValueError("expected a T of at least 1")
    return value | ({"T": T} if "T" in value else {})


X = TypeVar("X")
Count = Annotated[int, BeforeValidator(whole), Field(ge=1, lt=2**63)]
WholeNumber = Annotated[int, BeforeValidator(whole), Field(ge=0, lt=2**63)]  # TOML's own limit, and torch's
Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(gt=0, lt=2**63)]
Some = Annotated[list[X], BeforeValidator(as_list), Field(min_length=1)]


class Settings(BaseModel):
    """A frozen table of a sweep file; unknown keys and wrong types are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class TimingSettings(Settings):
    """[timing]: how long a visit samples.

    visits: processes per cell and measure of time. warmup_s, max_s: seconds of warm-up and, at most, of sampling.
    precision: stop earlier once the 95 % interval of the median is within ± this share of it.
    repeats: how often at most a cell's time is measured again because something disturbed the machine.
    """

    visits: Count = 1
    repeats: WholeNumber = 2
    warmup_s: float = Field(default=0.2, ge=0)
    max_s: float = Field(default=2.0, ge=0)
    precision: float = Field(default=0.02, gt=0)


class TrainSettings(Settings):
    """[train]: how an accuracy cell is trained. The same for every variant.

    steps, batch_size: batches of a trial, sequences of a batch. AdamW, linear warm-up over the share `warmup` of the
    steps, then a cosine to a tenth; gradients are clipped to the norm `clip`.
    lr, weight_decay: each learning rate with each weight decay is a trial of its own; n_random: so many pairs instead,
    drawn between the smallest and the largest of both, the same for every variant. All are run; the one with the best
    validation accuracy is scored on test data.
    judged_at: whether a trial counts as it is at its last step, or at the step that was best on validation data.
    stop_at: once validation accuracy, looked at every `eval_every` steps, reaches this, the trial ends. None runs every
    trial to its end. quick: the first trial alone; each row says so.
    n_training: how many distinct sequences training repeats, shuffled each time; None: fresh ones in every batch. That
    of a grid goes before it.
    n_validation, n_test: sequences to choose on, and to score on.
    test_at: where else the chosen model is scored, once each, without further training: tables of T and of options of
    the task, such as { T = 256, n_pairs = 16 }; a place counts for the tasks that take its options.
    compile: train through torch.compile. amp: train with mixed precision; scores are taken in the cell's own dtype.
    """

    steps: Count = 500
    batch_size: Count = 32
    lr: Some[Annotated[float, Field(gt=0)]] = [3e-3, 1e-3]
    weight_decay: Some[Annotated[float, Field(ge=0)]] = [0.1]
    n_random: Count | None = None
    warmup: float = Field(default=0.05, ge=0, le=1)
    clip: float = Field(default=1.0, gt=0)
    n_training: Count | None = None
    n_validation: Count = 512
    n_test: Count = 2048
    eval_every: Count = 50
    stop_at: float | None = Field(default=0.99, gt=0, le=1)
    judged_at: Literal["last", "best"] = "last"
    quick: bool = False
    test_at: Annotated[list[Annotated[dict[str, Any], BeforeValidator(_place)]], BeforeValidator(as_list)] = []
    compile: bool = False
    amp: Literal["bfloat16"] | None = None
