"""A device made of host memory: tensors that say they are elsewhere, and a count of what is brought to the host.

Inside `simulated_device` tensors made for, or moved to, the device `NAME` are wrappers of CPU tensors. Everything
PyTorch does with them passes through one function, which computes on the CPU and

* counts transfers: copies to the CPU, numbers read (``item``, ``bool``, ``int``), and operations whose shape depends on
  the data (masks as an index, ``nonzero``), for which one must wait just so;
* counts operations that are not views, each of which would be a kernel launch;
* refuses what devices refuse: operations of a device tensor with a host tensor that has axes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

NAME = "meta"
"""PyTorch knows it everywhere, and would fail on it here if an operation were not passed on."""

aten = torch.ops.aten
WAITING = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten._unique2, aten.unique_dim}
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}


class OnDevice(torch.Tensor):
    """A tensor on the simulated device; ``host`` holds its numbers."""

    host: torch.Tensor

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> OnDevice:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=NAME,
        )

    def __init__(self, host: torch.Tensor) -> None:
        self.host = host

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(_without_lists(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_without_lists(key), value)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside the simulated device")


def _without_lists(key: Any) -> Any:
    """Lists in an index as host tensors: PyTorch would make tensors of them that are not passed on."""
    if isinstance(key, tuple):
        return tuple(map(_without_lists, key))
    return torch.tensor(key) if isinstance(key, list) else key


class Device(TorchDispatchMode):
    """Runs operations.

    ``transfers`` names those that synchronise, in order; ``operations`` those on the device that are not views.
    """

    def __init__(self) -> None:
        super().__init__()
        self.transfers: list[str] = []
        self.operations: list[str] = []

    def clear(self) -> None:
        """Count from here."""
        self.transfers.clear()
        self.operations.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        here = [isinstance(x, OnDevice) for x in tensors]
        assert all(on == (x.device.type == NAME) for x, on in zip(tensors, here, strict=True)), f"{func}: lost numbers"
        packet = func.overloadpacket
        device = kwargs.get("device")
        stays = any(here) if device is None else torch.device(device).type == NAME
        if device is not None and stays:
            kwargs["device"] = torch.device("cpu")
        if any(here):
            if packet in WAITING or (packet is aten._to_copy and not stays) or self._masked(packet, args):
                self.transfers.append(str(packet))
            if packet not in INDEXING and packet not in (aten._to_copy, aten.copy_):
                stray = [tuple(x.shape) for x, on in zip(tensors, here, strict=True) if not on and x.ndim]
                assert not stray, f"{packet} of tensors on two devices: shapes {stray} on the host"
        views = [result.alias_info is not None and not result.alias_info.is_write for result in func._schema.returns]
        if (any(here) or stays) and not any(views):
            self.operations.append(str(packet))
        bare_args, bare_kwargs = tree_map_only(OnDevice, lambda x: x.host, (args, kwargs))
        result = func(*bare_args, **bare_kwargs)
        if func._schema.is_mutable and any(here):
            return args[0]
        return tree_map_only(torch.Tensor, OnDevice, result) if stays else result

    @staticmethod
    def _masked(packet: Any, args: Any) -> bool:
        if packet not in INDEXING:
            return False
        indices = [x for x in args[1] if x is not None]
        return any(x.dtype in (torch.bool, torch.uint8) and isinstance(x, OnDevice) for x in indices)

    @staticmethod
    def put(tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` on the device."""
        return OnDevice(tensor.clone())


def _through_the_host(make: Any) -> Any:
    """Constructors from host data, which PyTorch does not pass on as a whole: made on the host, then moved."""

    def made(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        if device is None or torch.device(device).type != NAME or isinstance(data, OnDevice):
            return make(data, *args, device=device, **kwargs)
        return make(data, *args, **kwargs).to(NAME)

    return made


@contextmanager
def simulated_device() -> Iterator[Device]:
    with pytest.MonkeyPatch.context() as patch, Device() as device:
        for name in ("tensor", "as_tensor", "asarray"):
            patch.setattr(torch, name, _through_the_host(getattr(torch, name)))
        patch.setattr(torch, "inference_mode", torch.no_grad)  # it does not know wrapped tensors
        yield device
