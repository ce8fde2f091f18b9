"""A function of somebody else by name, ``FILE.py:FUNCTION`` or ``PACKAGE.MODULE:FUNCTION``, loaded as a real module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from lpverify import errors


def load_function(spec: str) -> Any:
    """The callable that ``spec`` names; ``NAME`` after the colon may be ``CLASS.METHOD``.

    A file is registered under its name while it is executed, so dataclasses, pickling and type hints work; inside a
    package it is the package's module, so relative imports work too. Its folder stays on the import path. A file that
    is named like a loaded module, or whose name is no identifier, is registered under another name.

    Raises:
        InputError: No such file, module or function; a file that is not Python or imports what is not there. Anything
            else that the code raises while it is loaded is passed on.
    """
    file, _, name = spec.rpartition(":")
    path = Path(file).absolute()
    if file.endswith(".py"):
        try:
            path.read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = "which does not exist" if isinstance(error, FileNotFoundError) else str(error)
            raise errors.fail("verifier", got=f"{file}, {reason}", expected="a Python file") from error
    elif not all(part.isidentifier() for part in file.split(".")):
        raise errors.fail("verifier", got=errors.shown(spec), expected="FILE.py:FUNCTION or MODULE:FUNCTION")
    try:
        if file.endswith(".py"):
            module = _of_file(path)
        else:
            sys.path.insert(0, str(Path.cwd()))
            module = importlib.import_module(file)
    except (ImportError, SyntaxError) as error:
        got, expected = f"{type(error).__name__}: {error}", "a file that can be imported"
        raise errors.fail(file, got=got, expected=expected) from error
    try:
        function = reduce(getattr, name.split("."), module)
    except AttributeError:
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        expected = f"one of {', '.join(own) or 'its functions'}"
        raise errors.fail(file, got=f"no {name!r} in it", expected=expected) from None
    if not callable(function):
        raise errors.fail(spec, got=f"a {type(function).__name__}", expected="a function")
    return function


def _of_file(path: Path) -> ModuleType:
    """The module of a file: that of its package where the folder is one, else a module of its own."""
    folder, parts = path.parent, [path.stem]
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    if len(parts) > 1 and path.stem.isidentifier():
        return importlib.import_module(".".join(parts))
    name = path.stem
    if not name.isidentifier() or name in sys.modules or name in sys.stdlib_module_names:
        name = "audited_" + "".join(c if c.isalnum() else "_" for c in name)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
