"""check_variant(): the promises that every variant keeps, tried one by one.

In the test of a plugin one line is enough:

    attnbench.check_variant(MyAttention)

The promises themselves stand in `attnbench.promises`, one public function each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from attnbench.mixer import Mixer, Role
from attnbench.promises import PROMISES, THOROUGH, Promise, shape
from attnbench.registry import describe_error, variant_name
from attnbench.settings import ROLES
from attnbench.subject import PRECISIONS, BrokenError, CrashError, NotApplicableError, Subject

Status = Literal["kept", "broken", "not applicable", "error"]


@dataclass(frozen=True)
class Result:
    """One promise in one role. detail: why not applicable; or the input, the error and its size or place.

    status `error`: the variant cannot even be built, or run at an ordinary length; the other promises were not tried.
    """

    name: str
    role: Role
    status: Status
    detail: str = ""


@dataclass(frozen=True)
class Certificate:
    """What `certify` found, promise by promise and role by role. `dataclasses.asdict` gives plain data."""

    variant: str
    options: Mapping[str, Any]
    dtype: str
    device: str
    results: tuple[Result, ...]

    @property
    def broken(self) -> tuple[Result, ...]:
        """Results that are red: broken promises, and roles in which the variant cannot run."""
        return tuple(result for result in self.results if result.status in ("broken", "error"))

    @property
    def untried(self) -> tuple[Result, ...]:
        """One result for each role in which nothing could be tried, with the reason."""
        return tuple(result for result in self.results if (result.name, result.status) == ("shape", "not applicable"))

    @property
    def ok(self) -> bool:
        """Whether no promise is broken and at least one is kept; a variant that serves no role is not ok."""
        return not self.broken and any(result.status == "kept" for result in self.results)

    def lines(self) -> list[str]:
        """One line per result, for printing."""
        return [self._line(result) for result in self.results]

    def _line(self, result: Result) -> str:
        tail = f": {result.detail}" if result.detail else ""
        return f"{self.variant} [{result.role}] {result.name}: {result.status}{tail}"

    def verdict(self) -> str:
        """What is wrong, one line per broken promise; or that all is well."""
        if self.ok:
            n_kept = sum(result.status == "kept" for result in self.results)
            return f"{self.variant} keeps its promises ({n_kept} kept)"
        lines = [self._line(result) for result in self.broken] or self.lines()
        head = f"{len(self.broken)} promises broken" if self.broken else "serves none of the roles asked for"
        return "\n".join((f"{self.variant}: {head}", *lines))


class NonConformant(AssertionError):  # noqa: N818 -- a verdict, and the name of the status in records
    """A variant breaks a promise; the message lists every one, `certificate` holds all results."""

    def __init__(self, certificate: Certificate) -> None:
        super().__init__(certificate.verdict())
        self.certificate = certificate


def certify(
    cls: type[Mixer],
    *,
    options: Mapping[str, Any] | None = None,
    roles: Iterable[Role] | None = None,
    dtype: str = "float64",
    device: str = "cpu",
    n_heads: int = 2,
    d_head: int = 4,
    avoid: Iterable[int] = (),
    layer: int = 0,
    thorough: bool = False,
) -> Certificate:
    """Try every promise in every role (all three unless given) that the variant does not refuse.

    avoid: lengths not to try. layer: which of a model's layers the variant is told to be. thorough: whether to try
    also what takes seconds: long sequences, memory, gradients by differences, more sizes of the slow form.
    A faulty variant is a result, never an exception. Raises TypeError when cls is no Mixer subclass, and ValueError
    for an unknown role or dtype. Leaves torch's generators as they were.
    """
    roles = tuple(ROLES if roles is None else roles)
    _check_request(cls, roles, dtype)
    place = (dtype, device, n_heads, d_head, frozenset(avoid), layer, thorough)
    subjects = [Subject(cls, dict(options or {}), role, *place) for role in roles]
    n_gpus = torch.cuda.device_count() if device.startswith("cuda") else 0
    with torch.random.fork_rng(devices=range(n_gpus)), torch.enable_grad():
        results = tuple(result for subject in subjects for result in _tried_in_role(subject))
    return Certificate(variant_name(cls), dict(options or {}), dtype, device, results)


def check_variant(
    cls: type[Mixer],
    *,
    options: Mapping[str, Any] | None = None,
    roles: Iterable[Role] | None = None,
    dtype: str = "float64",
    device: str = "cpu",
    n_heads: int = 2,
    d_head: int = 4,
) -> Certificate:
    """`certify`, and NonConformant (an AssertionError) that lists every broken promise unless all are kept.

    One that keeps them as a model's first layer is tried as its second one too.
    """
    sizes: dict[str, Any] = {"dtype": dtype, "device": device, "n_heads": n_heads, "d_head": d_head}
    asked: dict[str, Any] = {"options": options, "roles": None if roles is None else tuple(roles)} | sizes
    certificate = certify(cls, **asked)
    if certificate.ok:
        second = certify(cls, **asked, layer=1)
        certificate = replace(certificate, results=(*certificate.results, *second.broken))
    if not certificate.ok:
        raise NonConformant(certificate)
    return certificate


def _check_request(cls: object, roles: tuple[str, ...], dtype: str) -> None:
    if not (isinstance(cls, type) and issubclass(cls, Mixer)):
        raise TypeError(f"expected a subclass of attnbench.Mixer, got {cls!r}")
    unknown = [role for role in roles if role not in ROLES]
    if unknown:
        raise ValueError(f"roles are {', '.join(ROLES)}; got {', '.join(map(repr, unknown))}")
    if dtype not in PRECISIONS:
        raise ValueError(f"dtypes are {', '.join(PRECISIONS)}; got {dtype!r}")


def _tried_in_role(subject: Subject) -> list[Result]:
    """`shape` first; the others only when it is kept, for they would repeat its failure."""
    first = _tried(shape, subject)
    if first.status != "kept":
        return [first]
    promises = (*PROMISES, *THOROUGH) if subject.thorough else PROMISES
    return [first, *(_tried(promise, subject) for promise in promises if promise is not shape)]


def _tried(promise: Promise, subject: Subject) -> Result:
    status: Status = "kept"
    detail = ""
    try:
        with torch.set_grad_enabled(subject.no_gradients is None):
            promise(subject)
    except NotApplicableError as reason:
        status, detail = "not applicable", str(reason)
    except CrashError as error:
        status, detail = "error" if promise is shape else "broken", str(error)
    except BrokenError as error:
        status, detail = "broken", str(error)
    except Exception as error:
        status, detail = "error" if promise is shape else "broken", describe_error(error)
    return Result(promise.__name__, subject.role, status, detail)
