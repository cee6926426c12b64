"""The audit of one task by name, at its usual length and with its default options. Runs in a fresh process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from attnbench import registry
from attnbench.execute import stages
from attnbench.registry import PluginError, Source
from attnbench.tasks import Task
from attnbench.tasks.audit import audit


def task_audit(name: str, sources: Mapping[str, Source], n: int, seed: int) -> dict[str, Any]:
    """A `TaskAudit` as plain facts. A task that cannot be built or drawn from has `problems` alone."""
    torch.set_num_threads(1)
    source = registry.find(name, sources, "task")
    stages.importing(source)
    cls = registry.load(source)
    if not issubclass(cls, Task):
        raise PluginError([f"task {name}: {cls.__name__} is not a subclass of attnbench.tasks.Task"])
    stages.at(f"auditing the task {name} of {stages.place(source.origin)}")
    try:
        cls(cls.min_T())
        facts = asdict(audit(cls(cls.usual_T), n, seed))
    except Exception as error:
        return {"task": name, "problems": [f"the audit fails: {registry.describe_error(error)}"]}
    return facts | {"task": name}
