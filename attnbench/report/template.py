"""Pages from templates: self-contained, and safe with any name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

FOLDER = Path(__file__).parent  # of the templates that pages share


def filled(template: str, *, folder: Path = FOLDER, **facts: Any) -> str:
    """A page of the template in `folder`. Facts are escaped: labels, reasons and settings come from anybody's files."""
    loader = FileSystemLoader([folder, FOLDER])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(template).render(facts)
