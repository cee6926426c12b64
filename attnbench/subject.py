"""What a promise is tried on: one variant with its options in one role and dtype; its inputs and tolerances."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnbench import blame
from attnbench.mixer import Attention, Mask, Mixer, Role, Spec, Use
from attnbench.registry import describe_error

MAX_T = 130  # past two chunks of 64 and one of 128, and no multiple of either
LENGTHS = (1, 2, 3, 7, 16, 17, 33, 63, 64, 65, 128, MAX_T)
LONGER = (192, 256)  # for a variant that takes none of those; every cut of 512 would need gigabytes
MASKED_LENGTHS = (9, 70, 128)
N_KEYS = 11  # S of a context, unless a promise needs another or somebody measures it


@dataclass(frozen=True)
class Precision:
    """How exactly a dtype is held to a promise.

    tolerance: largest difference allowed, in units of the larger of 1 and the largest expected value.
    slope: the same for gradients that are compared with those of a slow form in float64.
    shove: size of the changes that must not be seen; smaller where they would leave the dtype's range.
    """

    dtype: torch.dtype
    tolerance: float
    slope: float
    shove: float


PRECISIONS: Mapping[str, Precision] = {
    "float64": Precision(torch.float64, tolerance=1e-9, slope=1e-9, shove=1e3),
    "float32": Precision(torch.float32, tolerance=1e-4, slope=1e-3, shove=1e2),
    "float16": Precision(torch.float16, tolerance=2e-2, slope=4e-2, shove=1e1),
    "bfloat16": Precision(torch.bfloat16, tolerance=5e-2, slope=1e-1, shove=1e1),
}


class BrokenError(Exception):
    """A promise is not kept; the message says on which input and by how much."""


class CrashError(BrokenError):
    """The variant raised where it has no reason to."""


class NotApplicableError(Exception):
    """The promise does not concern this variant in this role; the message is the reason."""


@dataclass(frozen=True)
class Inputs:
    """x (B, T, d_model) and, in the cross role, a context (B, S, d_model)."""

    x: Tensor
    context: Tensor | None = None

    @property
    def keys(self) -> Tensor:
        """The sequence that keys come from: the context, else x."""
        return self.x if self.context is None else self.context

    @property
    def tensors(self) -> list[Tensor]:
        """x, and the context where there is one."""
        return [self.x] if self.context is None else [self.x, self.context]

    def map(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """The same change to x and to the context."""
        return Inputs(change(self.x), None if self.context is None else change(self.context))

    def rows(self, index: list[int] | Tensor) -> Inputs:
        """The rows of the batch at `index`, in its order."""
        return self.map(lambda x: x[index])

    def with_keys(self, keys: Tensor) -> Inputs:
        """The same inputs with other keys."""
        return Inputs(keys) if self.context is None else Inputs(self.x, keys)

    def leaves(self) -> Inputs:
        """Copies that collect gradients."""
        return self.map(lambda x: x.detach().clone().requires_grad_())


@dataclass(frozen=True)
class Subject:
    """One variant in one role. dtype is a key of PRECISIONS; d_model is n_heads · d_head.

    avoid: lengths that are not tried, because somebody measures them: what happens there is for that cell to say.
    Others are tried in their place. layer: which of a model's layers the mixer is told to be. thorough: whether a
    promise may take seconds, as in a certificate, or is to be quick, as before the cells of a sweep.
    """

    variant: type[Mixer]
    options: Mapping[str, Any]
    role: Role
    dtype: str = "float64"
    device: str = "cpu"
    n_heads: int = 2
    d_head: int = 4
    avoid: frozenset[int] = frozenset()
    layer: int = 0
    thorough: bool = False

    @property
    def precision(self) -> Precision:
        """The dtype and its tolerances."""
        return PRECISIONS[self.dtype]

    def spec(self, max_T: int = MAX_T) -> Spec:
        """The place that a mixer is built for."""
        return Spec(self.n_heads * self.d_head, self.n_heads, max_T, self.role, self.layer)

    def build(self, seed: int = 0, max_T: int | None = None) -> Mixer:
        """A mixer for lengths up to max_T (the subject's unless given), in eval mode.

        Raises NotApplicableError where the variant takes no length.

        Parameters are moved a little: a promise holds for a trained mixer too, and an output projection that starts
        at zero would hide every fault behind it. torch's generator of the CPU is left as it was.
        """
        self.lengths(*LENGTHS)
        spec = self.spec(max_T or self.max_T)
        with torch.random.fork_rng(devices=()), blaming(f"{self.variant.__name__}({spec})"):
            torch.manual_seed(seed)
            mixer = blame.built(self.variant, spec, **self.options)
            mixer = mixer.to(self.device, self.precision.dtype).eval()
            with torch.no_grad():
                for parameter in mixer.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
        return mixer

    def noise(self, *size: int, seed: int = 0) -> Tensor:
        """Standard normal numbers, the same for every call with the same size and seed."""
        generator = torch.Generator().manual_seed(1 + seed)
        drawn = torch.randn(size, generator=generator, dtype=torch.float64)
        return drawn.to(self.device, self.precision.dtype)

    def inputs(self, B: int, T: int, S: int | None = None) -> Inputs:
        """Random x (B, T, d_model) and, in the cross role, context (B, S, d_model); S is n_keys unless given."""
        d_model, S = self.n_heads * self.d_head, S or self.n_keys
        return Inputs(self.noise(B, T, d_model), self.noise(B, S, d_model, seed=1) if self.role == "cross" else None)

    def shove(self, x: Tensor, where: Tensor) -> Tensor:
        """x (B, T, d_model) with large noise added at `where` (B, T)."""
        return x + self.precision.shove * self.noise(*x.shape, seed=2) * where[..., None]

    def reason(self, T: int, S: int | None = None, *, mask: Mask = "none", phase: str = "forward") -> str | None:
        """Why the variant cannot serve this use; S is T, or n_keys in the cross role, unless given."""
        S = S or (self.n_keys if self.role == "cross" else T)
        if not self.avoid.isdisjoint((T, S)):
            return "a length that is measured by itself"
        use = Use(T, S, device=self.device, dtype=self.dtype, mask=mask, phase=phase)
        told: object = self.variant.unsupported(self.spec(max(MAX_T, T, S)), use, **self.options)
        if not isinstance(told, str | None):
            raise BrokenError(f"{blame.who(self.variant)}.unsupported returned {told!r}, expected a reason or None")
        return told

    def taken(self, *wanted: int, mask: Mask = "none", phase: str = "forward") -> list[int]:
        """Those of the lengths that the variant takes; for an avoided one, the next longer one that it takes."""
        found = []
        for T in wanted:
            places = range(T, MAX_T + 1) if T in self.avoid else [T]
            found += [n for n in places if self.reason(n, mask=mask, phase=phase) is None][:1]
        return list(dict.fromkeys(found))

    def lengths(self, *wanted: int, mask: Mask = "none", phase: str = "forward") -> list[int]:
        """`taken`, or else max_T. Raises NotApplicableError with the variant's reason when it takes neither."""
        for lengths in (wanted, [self.max_T]):
            if found := self.taken(*lengths, mask=mask, phase=phase):
                return found
        raise NotApplicableError(self.reason(wanted[0], mask=mask, phase=phase))

    @cached_property
    def max_T(self) -> int:
        """What mixers are built for: MAX_T, or the first of LONGER that a variant takes which takes none of LENGTHS."""
        longer = [] if self.taken(*LENGTHS) else self.taken(*LONGER)
        return longer[0] if longer else MAX_T

    @cached_property
    def no_gradients(self) -> str | None:
        """Why the variant gives no gradients in this role, where it runs forward alone; None where it gives them."""
        forward = next((T for T in (16, *LENGTHS, *LONGER) if self.reason(T) is None), None)
        return None if forward is None else self.reason(forward, phase="forward_backward")

    @cached_property
    def n_keys(self) -> int:
        """S of a context: N_KEYS, or the next one that nobody measures."""
        return self.free(N_KEYS)

    def free(self, n: int) -> int:
        """The nearest length that nobody measures, a longer one up to MAX_T before a shorter one; n where all are."""
        return next((m for m in (*range(n, MAX_T + 1), *range(n, 0, -1)) if m not in self.avoid), n)

    @property
    def T(self) -> int:
        """An ordinary length: 16, or the longest that the variant takes."""
        return self.lengths(16, *reversed(LENGTHS))[0]

    @contextmanager
    def at(self, inputs: Inputs, note: str = "") -> Iterator[None]:
        """Put the input before the message of whatever goes wrong inside."""
        sizes = f"x {tuple(inputs.x.shape)}"
        if inputs.context is not None:
            sizes += f", context {tuple(inputs.context.shape)}"
        options = "".join(f", {name} = {value!r}" for name, value in self.options.items() if value is not None)
        options += f", layer {self.layer}" if self.layer else ""
        with blaming(f"{sizes}, {self.dtype}{options}{note and ', ' + note}"):
            yield

    def same(self, actual: Tensor, expected: Tensor, what: str, slack: float = 0.0) -> None:
        """Raises BrokenError unless `actual` equals `expected` to the dtype's tolerance, or `slack` where that is more.

        A NaN never does.
        """
        check_shape(actual, expected.shape)
        if not expected.numel():
            return
        allowed = max(self.precision.tolerance, slack) * max(1.0, expected.abs().max().item())
        difference = (actual.double() - expected.double()).abs().max().item()
        if not difference <= allowed:
            raise BrokenError(f"{what}: max abs difference {difference:.3g}, tolerance {allowed:.3g}")

    def zero(self, actual: Tensor, what: str) -> None:
        """Raises BrokenError unless `actual` is 0 to the dtype's tolerance."""
        self.same(actual, torch.zeros_like(actual), what)


@contextmanager
def blaming(place: str) -> Iterator[None]:
    """Turn any error inside into BrokenError or CrashError with `place` before its message."""
    try:
        yield
    except NotApplicableError:
        raise
    except BrokenError as error:
        raise type(error)(f"{place}: {error}") from error
    except Exception as error:
        raise CrashError(f"{place}: {describe_error(error)}") from error


def run(mixer: Mixer, inputs: Inputs, key_mask: Tensor | None = None) -> Tensor:
    """One forward pass, (B, T, d_model). Raises BrokenError when the output has another shape."""
    (B, T, _), S = inputs.x.shape, inputs.keys.shape[1]
    with blame.naming(type(mixer), lambda: mixer, T, S, B):
        y: Tensor = mixer(inputs.x, context=inputs.context, key_mask=key_mask)
    told = blame.wrong(f"{blame.who(type(mixer))}.forward", y, tuple(inputs.x.shape), "(B, T, d_model)")
    if told:
        raise BrokenError(blame.fault(lambda: mixer, T, S, B) or told)
    return y


def check_attend(mixer: Attention, inputs: Inputs) -> None:
    """Raises BrokenError when `attend` alone returns anything else than a tensor (B, H, T, d_v)."""
    q, k, v, *extra = mixer.project(inputs.x, inputs.keys)
    y = mixer.attend(q, k, v, *extra, key_mask=None)
    told = blame.wrong(f"{blame.who(type(mixer))}.attend", y, (*q.shape[:3], v.shape[3]), "(B, H, T, d_v)")
    if told:
        raise BrokenError(told)


def check_shape(y: object, expected: torch.Size) -> None:
    """Raises BrokenError unless y is a tensor of this shape."""
    if not isinstance(y, Tensor):
        raise BrokenError(f"returned {type(y).__name__}, expected a tensor")
    if y.shape != expected:
        raise BrokenError(f"returned shape {tuple(y.shape)}, expected {tuple(expected)}")


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Raises BrokenError at the first tensor that holds a NaN or an infinity, by name."""
    for name, tensor in tensors.items():
        n_bad = int((~tensor.isfinite()).sum())
        if n_bad:
            raise BrokenError(f"{name}: {n_bad} of {tensor.numel()} values not finite")


def gradients(loss: Tensor, inputs: Inputs) -> list[Tensor]:
    """d loss / d x and, where there is one, d loss / d context; zeros where the loss does not depend on them."""
    found = torch.autograd.grad(loss, inputs.tensors, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs.tensors, found, strict=True)]


def right_mask(subject: Subject, S: int) -> Tensor:
    """(4, S): S, half, 3 and 1 real keys, padding behind them."""
    lengths = torch.tensor([S, S // 2 + 1, 3, 1], device=subject.device)
    return torch.arange(S, device=subject.device) < lengths[:, None]


def any_mask(subject: Subject, S: int) -> Tensor:
    """(4, S): nothing hidden, every third key, the first half, an irregular pattern."""
    s = torch.arange(S, device=subject.device)
    return torch.stack((s >= 0, s % 3 != 1, s >= S // 2, s * 7 % 5 > 1))


def masked_sizes(subject: Subject, mask: Mask) -> list[tuple[int, int]]:
    """The (T, S) at which the variant takes such a mask."""
    if subject.role != "cross":
        return [(T, T) for T in subject.taken(*MASKED_LENGTHS, mask=mask) or subject.taken(subject.max_T, mask=mask)]
    T = subject.lengths(8, *reversed(LENGTHS))[0]
    return [(T, S) for S in map(subject.free, MASKED_LENGTHS) if subject.reason(T, S, mask=mask) is None]


def masks_taken(subject: Subject) -> list[Mask]:
    """The kinds of mask that the variant takes. Raises NotApplicableError with its reason when it takes none."""
    kinds: tuple[Mask, ...] = ("right", "any")
    taken = [mask for mask in kinds if masked_sizes(subject, mask)]
    if not taken:
        raise NotApplicableError(subject.reason(MASKED_LENGTHS[0], mask="right"))
    return taken


def real_queries(subject: Subject, key_mask: Tensor, T: int) -> Tensor:
    """Which queries (B, T) are real: those of hidden keys are padding, except in the cross role."""
    return key_mask if subject.role != "cross" else torch.ones_like(key_mask[:, :1]).expand(-1, T)


def without_key(subject: Subject, key_mask: Tensor) -> Tensor:
    """Which queries (B, T or 1) see no key at all, by the mask (B, S) and the role."""
    return ~key_mask.cumsum(1).bool() if subject.role == "causal" else ~key_mask.any(1, keepdim=True)


def needs_attention(mixer: Mixer) -> Attention:
    """The mixer as an Attention. Raises NotApplicableError for any other."""
    if not isinstance(mixer, Attention):
        raise NotApplicableError("no queries and keys")
    return mixer


def needs_causal(subject: Subject) -> None:
    """Raises NotApplicableError in any other role."""
    if subject.role != "causal":
        raise NotApplicableError("the role is not causal")


def needs_gradients(subject: Subject) -> None:
    """Raises NotApplicableError, with the variant's reason, where it runs forward alone."""
    if subject.no_gradients:
        raise NotApplicableError(subject.no_gradients)
