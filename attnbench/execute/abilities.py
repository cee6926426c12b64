"""What each variant can do: roles, key masks, decoding, devices. Loads variants, so it runs in a fresh process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnbench import registry
from attnbench.errors import RequestError
from attnbench.mixer import Mixer, Role, Spec, Use
from attnbench.registry import Source
from attnbench.settings import ROLES

SIZE = 64  # T, S, d_model and max_T of the place that a variant is asked about
DEVICES = ("cpu", "cuda")


def abilities(sources: Mapping[str, Source]) -> tuple[list[dict[str, Any]], list[str]]:
    """One row per variant with its default options, and a line for each one that cannot be loaded.

    In a row a reason stands for what is unsupported, None for what is supported. A role is served when one device
    serves it; masks and decoding are told of served roles on that device, devices of the first served role.
    """
    rows, broken = [], []
    for name, source in sources.items():
        try:
            cls = registry.load(source)
            if not issubclass(cls, Mixer):
                raise RequestError([f"{source.origin}: {cls.__name__} is no subclass of attnbench.Mixer"])
        except RequestError as error:
            broken += error.mistakes
            continue
        rows.append({"name": name, "origin": source.origin} | abilities_of(cls))
    return rows, broken


def abilities_of(cls: type[Mixer]) -> dict[str, Any]:
    """What one variant can do with its default options, see `abilities`."""
    on = {role: {device: reason_for(cls, role, device=device) for device in DEVICES} for role in ROLES}
    served = {role: device for role in ROLES for device in reversed(DEVICES) if on[role][device] is None}
    return {
        "roles": {role: None if role in served else on[role]["cpu"] for role in ROLES},
        "masks": {
            role: {mask: reason_for(cls, role, device=device, mask=mask) for mask in ("right", "any")}
            for role, device in served.items()
        },
        "decoding": {role: reason_for(cls, role, device=device, phase="decode") for role, device in served.items()},
        "devices": on[next(iter(served), ROLES[0])],
    }


def reason_for(cls: type[Mixer], role: Role, **use: Any) -> str | None:
    """Why one use, by the fields of `Use`, is unsupported, or None; an error inside the answer is a reason too."""
    try:
        return cls.unsupported(Spec(SIZE, 4, SIZE, role), Use(SIZE, SIZE, **use))
    except Exception as error:
        return registry.describe_error(error)
