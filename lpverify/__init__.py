"""How good can speculative-decoding verification be, and how close does an algorithm get?

The public names are those of the stub file ``__init__.pyi``, which type checkers read as well. They are imported on
first use, so that ``import lpverify`` is cheap and loads no numpy, no solver, no plotting and no torch.
"""

import ast as _ast
from importlib import import_module as _import_module
from pathlib import Path as _Path

_HOMES = {}  # public name -> module and name in it; some are modules themselves

for _node in _ast.parse(_Path(__file__).with_suffix(".pyi").read_text()).body:
    if isinstance(_node, _ast.ImportFrom):
        _HOMES |= {_name.name: (_node.module, _name.name) for _name in _node.names}
    elif isinstance(_node, _ast.Assign):  # make = families
        _HOMES[_node.targets[0].id] = _HOMES.pop(_node.value.id)

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name):
    if name == "__version__":
        from importlib.metadata import version

        value = version("lpverify")
    elif name in _HOMES:
        home, attribute = _HOMES[name]
        module = _import_module(home)
        value = getattr(module, attribute) if hasattr(module, attribute) else _import_module(f"{home}.{attribute}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__():
    return __all__
