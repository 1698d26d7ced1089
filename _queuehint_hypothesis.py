"""
Entry point of Hypothesis, which calls it when it is imported.

It lies outside the package: importing the package here would make every import of Hypothesis three times as long.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

PACKAGE = "queuehint"


def register() -> None:
    """Register the types of queuehint: now if it is there, else as soon as it is imported."""
    if PACKAGE in sys.modules:
        _register_types()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _register_types() -> None:
    from queuehint.testing.registration import register as register_types

    register_types()


class _Finder:
    """Finds the package where it is found anyway, and has its types registered when its import is over."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name != PACKAGE:
            return None
        # It stays until the package is imported: `importlib.util.find_spec` looks for it, and no more.
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if find is None or isinstance(finder, _Finder):
                continue
            spec = find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(Loader):
    """Loads a module as another loader does, which the module then says it was loaded by."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
        _register_types()
