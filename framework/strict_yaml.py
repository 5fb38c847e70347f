"""YAML that says each thing once."""

from __future__ import annotations

from typing import Any

import yaml


class OnceOnly(yaml.SafeLoader):
    """YAML's safe loader, which would take the last of two values for one name, and say nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                raise yaml.constructor.ConstructorError(problem=f"{name!r} is given twice: keep one of them")
        return super().construct_mapping(node, deep)


def load(text: str | bytes) -> Any:
    """Raises yaml.YAMLError and, for bytes that are not UTF-8, UnicodeDecodeError."""
    return yaml.load(text, OnceOnly)  # noqa: S506 (it is a SafeLoader)
