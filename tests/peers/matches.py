"""One of our variants and a public implementation of it, with the same weights and the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from attnbench.mixer import Mixer, Role, Spec

Call = Callable[..., Tensor]


@dataclass(frozen=True)
class Sizes:
    """What a match is built for; only the variants concerned read the last five."""

    B: int
    T: int
    d_model: int
    n_heads: int
    dtype: torch.dtype = torch.float32
    window: int = 128
    n_landmarks: int = 64
    n_features: int = 256
    d_state: int = 128
    block: int = 16

    @property
    def D(self) -> int:
        """Width of a head."""
        return self.d_model // self.n_heads


SMALL = Sizes(B=2, T=48, d_model=24, n_heads=3, window=8, n_landmarks=6, n_features=20, d_state=5, block=4)
TABLE = Sizes(B=1, T=512, d_model=256, n_heads=4)


@dataclass(frozen=True)
class Match:
    """Two calls on the same inputs. Both return tensors of one shape.

    ours_with, theirs_with: parameters that gradients are taken for besides the inputs.
    weights: their parameter, ours that it is joined from, and how; the same join holds for gradients.
    """

    ours: Call
    theirs: Call
    inputs: list[Tensor]
    ours_with: list[Tensor] = field(default_factory=list)
    theirs_with: list[Tensor] = field(default_factory=list)
    weights: list[tuple[Tensor, list[Tensor], Callable[..., Tensor]]] = field(default_factory=list)


@dataclass(frozen=True)
class Rival:
    """A public implementation, what it is compared at, and by how much we want to be faster.

    package: its distribution. level: `core` (q, k, v per head to outputs per head) or `layer` (maps and all).
    match: builds both. small: sizes of the comparison by number; dtype and tolerance (of the larger of 1 and the
    largest value) are what it holds to there. mended: takes away, for that comparison, what `departs` says.
    departs: where the package is not the mechanism of the paper or of our file; what is timed then differs by that.
    note: what else a reader of times must know.
    forward, both: the largest ratio wanted of times, ours by theirs, forward and forward with backward.
    longest: no longer T is timed, for the reason `because`.
    """

    variant: str
    package: str
    what: str
    level: str
    match: Callable[[Sizes], Match]
    both: float | None = None
    forward: float | None = None
    small: Sizes = SMALL
    dtype: torch.dtype = torch.float64
    tolerance: float = 1e-10
    mended: Callable[[], AbstractContextManager[Any]] = nullcontext
    departs: str = ""
    note: str = ""
    equal: bool = True
    longest: int = 1 << 20
    because: str = ""

    @property
    def name(self) -> str:
        """Short and unique, for -k and ONLY."""
        return f"{self.variant}/{self.package}/{self.what}"

    def version(self) -> str | None:
        """Of the installed package; None where there is none."""
        try:
            return version(self.package).partition("+")[0]
        except PackageNotFoundError:
            return None


def built_in(name: str) -> type[Mixer]:
    """The class behind a name."""
    (point,) = entry_points(group="attnbench.variants", name=name)
    return point.load()


def mixer(name: str, role: Role, sizes: Sizes, **options: Any) -> Any:
    """One of our variants in eval mode with seeded weights, moved a little from where they start.

    Any, as what public packages give: the parts of either are told by name.
    """
    torch.manual_seed(0)
    built = built_in(name)(Spec(sizes.d_model, sizes.n_heads, sizes.T, role), **options).to(sizes.dtype).eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return built


def noise(sizes: Sizes, *shape: int, seed: int = 1) -> Tensor:
    """Standard normal numbers that collect gradients."""
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.to(sizes.dtype).requires_grad_()


def tokens(sizes: Sizes) -> list[Tensor]:
    """x (B, T, d_model)."""
    return [noise(sizes, sizes.B, sizes.T, sizes.d_model)]


def heads(sizes: Sizes) -> list[Tensor]:
    """q, k and v (B, H, T, D)."""
    return [noise(sizes, sizes.B, sizes.n_heads, sizes.T, sizes.D, seed=seed) for seed in (1, 2, 3)]


def joined(*parts: Tensor) -> Tensor:
    """Rows one under another."""
    return torch.cat(parts)


def layers(ours: Call, mine: nn.Module, theirs: Call, other: nn.Module, inputs: list[Tensor], **weights: Any) -> Match:
    """A match of two modules. weights: name of their parameter (`__` for a dot) = our tensors, or (join, *tensors).

    Their parameters become what ours are; those that are not named must be biases, which become 0 and take no part.
    """
    other.to(inputs[0].dtype).eval()
    given = {name.replace("__", "."): parts for name, parts in weights.items()}
    found: list[tuple[Tensor, list[Tensor], Callable[..., Tensor]]] = []
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if name not in given:
                if not name.endswith("bias"):
                    raise ValueError(f"nothing is said of {name}")
                parameter.zero_().requires_grad_(False)
                continue
            parts = given.pop(name)
            join, *tensors = parts if not isinstance(parts[0], Tensor) else (joined, *parts)
            parameter.copy_(join(*tensors).view_as(parameter))
            found.append((parameter, tensors, join))
    if given:
        raise ValueError(f"no parameters {', '.join(given)} in {type(other).__name__}")
    own: list[Tensor] = [parameter for parameter in mine.parameters() if parameter.requires_grad]
    return Match(ours, theirs, inputs, own, [parameter for parameter, _, _ in found], found)


def compare(match: Match) -> dict[str, float]:
    """The largest differences: of outputs, and of gradients of inputs and of weights, by the larger of 1 and the scale.

    Raises AssertionError where something is not finite or has another shape.
    """
    mine, ours = _evaluated(match.ours, [*match.inputs, *match.ours_with])
    other, theirs = _evaluated(match.theirs, [*match.inputs, *match.theirs_with])
    n = len(match.inputs)
    by_ours = dict(zip(map(id, match.ours_with), ours[n:], strict=True))
    found = {"output": _gap(mine, other)}
    for i in range(n):
        found[f"gradient of input {i}"] = _gap(ours[i], theirs[i])
    for gradient, (parameter, tensors, join) in zip(theirs[n:], match.weights, strict=True):
        expected = join(*(by_ours[id(tensor)] for tensor in tensors)).view_as(parameter)
        found[f"gradient of weight {tuple(parameter.shape)}"] = _gap(expected, gradient)
    return found


def forward(call: Call, inputs: Sequence[Tensor]) -> Tensor:
    """One pass without gradients."""
    with torch.no_grad():
        return call(*inputs)


def forward_backward(call: Call, inputs: Sequence[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """One pass and the gradients of inputs and parameters."""
    y = call(*inputs)
    torch.autograd.grad(y, [*inputs, *parameters], torch.ones_like(y), allow_unused=True)
    return y


def _evaluated(call: Call, wanted: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The output, and the gradients of a fixed random sum of it."""
    y = call(*[tensor for tensor in wanted if tensor.is_leaf and not isinstance(tensor, nn.Parameter)])
    seed = torch.randn(y.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(y.dtype)
    return y.detach(), list(torch.autograd.grad(y, wanted, seed, materialize_grads=True))


def _gap(one: Tensor, other: Tensor) -> float:
    assert one.shape == other.shape, f"{tuple(one.shape)} against {tuple(other.shape)}"
    assert one.isfinite().all(), "ours is not finite"
    assert other.isfinite().all(), "theirs is not finite"
    return (one.double() - other.double()).abs().max().item() / max(1.0, other.abs().max().item())


@contextmanager
def patched(owner: Any, **changes: Any) -> Iterator[None]:
    """Attributes of a module, for as long as it lasts."""
    with mock.patch.multiple(owner, **changes):
        yield


def at(sizes: Sizes, **changes: Any) -> Sizes:
    """The same sizes but for some."""
    return replace(sizes, **changes)
