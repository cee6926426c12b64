"""A new variant to start from: a plugin file and its test, or a whole package, written from templates."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

import attnbench
from attnbench import registry
from attnbench.errors import RequestError

TEMPLATES = Path(__file__).parent / "templates"


def write(name: str, folder: Path, *, package: bool = False) -> list[Path]:
    """Write NAME.py and test_NAME.py into a folder, made if need be, and for a package its pyproject.toml.

    Returns the files. Raises RequestError for a name that cannot be used and for a file that is there already;
    nothing is written then.
    """
    class_name = _class_name(name)
    about = {
        "name": name,
        "class_name": class_name,
        "package": f"attnbench-{name.strip('_').replace('_', '-').lower()}",
        "named": registry.variant_name(type(class_name, (), {})) != name,
    }
    templates = {f"{name}.py": "plugin.py.jinja", f"test_{name}.py": "test_plugin.py.jinja"}
    if package:
        templates["pyproject.toml"] = "pyproject.toml.jinja"
    texts = {folder / file: _filled(template, about) for file, template in templates.items()}
    there = [file for file in texts if file.exists()]
    if there:
        raise RequestError(f"{file}: is there already" for file in there)
    _check_free(name, class_name)
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        file.write_text(text, encoding="utf-8")
    return list(texts)


def _class_name(name: str) -> str:
    """block_mean -> BlockMean. Raises RequestError when either could not be a name in Python."""
    class_name = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    usable = name.isascii() and name.isidentifier() and class_name.isidentifier()
    if not usable or keyword.iskeyword(name) or keyword.iskeyword(class_name):
        nearest = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").lower()
        fits = re.fullmatch(r"[a-z]\w*", nearest) and not keyword.iskeyword(nearest)
        raise RequestError([f'"{name}": not a name in Python{f"; {nearest} would be one" if fits else ""}'])
    return class_name


def _check_free(name: str, class_name: str) -> None:
    """Raise RequestError when a variant, a module or a class of attnbench has the name."""
    variants = registry.installed(registry.VARIANTS)
    if name in variants:
        raise RequestError([f'"{name}": taken by the variant of {variants[name].origin}'])
    if find_spec(name) is not None:
        raise RequestError([f'"{name}": taken; a module of this name is installed, and the file would hide it'])
    if class_name in attnbench.__all__:
        raise RequestError([f'"{name}": taken; attnbench itself has a class {class_name}'])


def _filled(template: str, about: Mapping[str, Any]) -> str:
    loader = FileSystemLoader(TEMPLATES)
    environment = Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True, autoescape=False
    )
    return environment.get_template(template).render(about)
