"""Imports of Understudy's packages in a process that runs a user's code, whose modules may have the same names.

Understudy's top-level packages are `actors`, `blob`, `conf` and `runtime`, and a user's project may have modules of
these names. So task processes, the command line and programs that import `understudy` load them below this package, as
`understudy.runtime` and so on, from the same files:

- In Understudy's modules `import runtime.x` means `understudy.runtime.x`. These modules get an `__import__` of their
  own, so that the imports of all other modules stay the same.
- In all other modules `import runtime.x` finds the module that Python would find without Understudy. If there is none,
  it finds Understudy's: `runtime.x` and `understudy.runtime.x` are then one module with two names.

The cluster's own processes run no user's code, and import the packages directly. In a process that has imported them
directly, `understudy.runtime.x` is a second name of `runtime.x`.

`python -m understudy.runtime.x` runs the `main()` of a module in this way.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader
else:  # its import takes as long as all other imports of this module
    Loader = object

NAMES = ("actors", "blob", "conf", "runtime")
"""Understudy's top-level packages."""

PREFIX = f"{__package__}."
ROOT = Path(__file__).resolve().parents[1]

_MAIN = "import importlib, sys; sys.exit(importlib.import_module({name!r}).main())"


def install() -> None:
    """Let this process import the packages below `understudy`; import nothing yet."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def forget_top_level() -> None:
    """Drop Understudy's modules that Python has imported under top-level names, before anything uses them.

    This is for `python -m runtime.x`, which imports `runtime` first.
    """
    for name in [name for name in sys.modules if _top(name) in NAMES and _is_top_level(name)]:
        del sys.modules[name]


def _top(name: str) -> str:
    return name.partition(".")[0]


def _is_top_level(name: str) -> bool:
    """Return whether a module of Understudy has been imported under its top-level name."""
    module = sys.modules.get(name)
    return (
        module is not None and getattr(module, "__name__", "") == name and _is_ours(getattr(module, "__spec__", None))
    )


def _is_ours(spec: ModuleSpec | None) -> bool:
    """Return whether a top-level module, or one below it, is Understudy's: of these files or another installation."""
    if spec is None or spec.origin is None:
        return False
    return any(place.name == _top(spec.name) and _is_root(place.parent) for place in Path(spec.origin).parents)


class _Finder:
    """Finds Understudy's packages below `understudy`, and under their own names if no other module has these."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.startswith(PREFIX):
            name = fullname.removeprefix(PREFIX)
            return self._find_below(fullname, name, path) if _top(name) in NAMES else None
        if _top(fullname) not in NAMES:
            return None
        return self._find_top_level(fullname) if path is None else self._find_submodule(fullname)

    def _find_below(self, fullname: str, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        if any(map(_is_top_level, NAMES)):
            return ModuleSpec(fullname, _AliasLoader(name))
        spec = PathFinder.find_spec(fullname, [str(ROOT)] if name in NAMES else path)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _OwnLoader(spec.loader.name, spec.loader.path)
        return spec

    def _find_top_level(self, name: str) -> ModuleSpec | None:
        if not any(PREFIX + own in sys.modules for own in NAMES) or any(map(_is_top_level, NAMES)):
            return None
        elsewhere = [entry for entry in sys.path if not _is_root(entry)]
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, elsewhere if finder is PathFinder else None)
            if spec is not None and not _is_ours(spec) and _has_modules(spec):
                return spec
        return ModuleSpec(name, _AliasLoader(PREFIX + name))

    def _find_submodule(self, name: str) -> ModuleSpec | None:
        parent = sys.modules.get(name.rpartition(".")[0])
        if parent is None or not parent.__name__.startswith(PREFIX):
            return None
        alias = _AliasLoader(f"{parent.__name__}.{name.rpartition('.')[2]}")
        return ModuleSpec(name, alias) if alias.finds() else None


def _has_modules(spec: ModuleSpec) -> bool:
    """Return False for a directory that only has the name: Python treats each as a package without `__init__`."""
    if spec.loader is not None and spec.origin is not None:
        return True
    directories = map(Path, spec.submodule_search_locations or ())
    return any(any(place.glob(kind)) for place in directories for kind in ("*.py", "*/__init__.py"))


def _is_root(entry: str | Path) -> bool:
    """Return whether a directory contains Understudy's packages."""
    return Path(entry, __package__, Path(__file__).name).is_file()


class _AliasLoader(Loader):
    """Loads the module of another name as an alias."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def finds(self) -> bool:
        """Return whether that module exists."""
        return self._name in sys.modules or importlib.util.find_spec(self._name) is not None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # importlib has replaced it by the alias's spec


class _OwnLoader(SourceFileLoader):
    """Loads a module below `understudy`; its imports of Understudy's packages find modules below `understudy` too."""

    def exec_module(self, module: ModuleType) -> None:
        code = super().get_code(module.__name__)
        if code is None:
            raise ImportError(f"{module.__name__} has no code", name=module.__name__)
        module.__dict__["__builtins__"] = _BUILTINS
        exec(code, module.__dict__)  # noqa: S102 -- as every loader does

    def get_code(self, fullname: str) -> CodeType:
        """Return the code that `python -m` runs."""
        return compile(_MAIN.format(name=fullname), self.path, "exec", dont_inherit=True)


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    """Import a module for a module of Understudy, as its `__import__`.

    Statements pass a tuple or None for *fromlist*. C code, such as pickle's, passes a list, and means the module of
    exactly that name.
    """
    if level or _top(name) not in NAMES or type(fromlist) is list:
        return builtins.__import__(name, globals, locals, fromlist or (), level)
    own = PREFIX + name
    if fromlist:
        return builtins.__import__(own, globals, locals, fromlist)
    importlib.import_module(own)
    return sys.modules[PREFIX + _top(name)]


_BUILTINS = {**vars(builtins), "__import__": _import}
