"""check_variant(): the promises that every variant keeps, tried one by one.

In the test of a plugin one line is enough:

    attnbench.check_variant(MyAttention)

The promises themselves stand in `attnbench.promises`, one public function each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from attnbench.certificate import Certificate, Result, Status
from attnbench.mixer import Mixer, Role
from attnbench.promises import PROMISES, THOROUGH, Promise, shape
from attnbench.registry import describe_error, variant_name
from attnbench.settings import ROLES
from attnbench.subject import PRECISIONS, BrokenError, NotApplicableError, Subject


class NonConformant(AssertionError):  # noqa: N818 -- a verdict, and the name of the status in records
    """A variant breaks a promise; the message lists every one, `certificate` holds all results."""

    def __init__(self, certificate: Certificate) -> None:
        lines = [certificate.verdict(), *certificate.breaches()]
        if not certificate.broken:
            lines = [f"{certificate.variant}: serves none of the roles asked for", *certificate.lines()]
        super().__init__("\n".join(lines))
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
    return Certificate(variant_name(cls), dict(options or {}), device, (dtype,), results)


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
    except Exception as error:
        ran = type(error) is BrokenError  # and not the CrashError of a variant that raised
        status = "broken" if ran or promise is not shape else "error"
        detail = str(error) if isinstance(error, BrokenError) else describe_error(error)
    return Result(promise.__name__, subject.role, status, detail, subject.dtype, subject.layer)
