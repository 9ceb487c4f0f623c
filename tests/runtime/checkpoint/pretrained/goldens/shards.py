"""Splits the state dict of FOLDER, `model.pt`, in two files of PyTorch's format, as shards of one model: `first.bin` and
`second.bin`. `python shards.py FOLDER`; torch is not needed, because its pickled names are replaced by stand-ins."""

import pickle
import sys
import types
import zipfile
from collections import OrderedDict
from pathlib import Path

folder = Path(sys.argv[1])
FIRST = ("embed_tokens", "layers.0.", "layers.1.")


class Storage(tuple):
    """What identifies a storage: ("storage", FloatStorage, key, device, elements)."""


class Tensor:
    def __init__(self, *arguments):
        self.arguments = arguments

    def __reduce__(self):
        return torch._utils._rebuild_tensor_v2, self.arguments


def stand_in(module, name, value):
    value.__module__, value.__qualname__, value.__name__ = module, name, name
    setattr(sys.modules[module], name, value)
    return value


torch = sys.modules["torch"] = types.ModuleType("torch")
torch._utils = sys.modules["torch._utils"] = types.ModuleType("torch._utils")
stand_in("torch", "FloatStorage", type("FloatStorage", (), {}))
stand_in("torch._utils", "_rebuild_tensor_v2", lambda *arguments: Tensor(*arguments))


class Reader(pickle.Unpickler):
    def persistent_load(self, identifier):
        return Storage(identifier)


class Writer(pickle.Pickler):
    def persistent_id(self, value):
        return tuple(value) if isinstance(value, Storage) else None


with zipfile.ZipFile(folder / "model.pt") as archive:
    root = archive.namelist()[0].split("/")[0]
    model = Reader(archive.open(f"{root}/data.pkl")).load()
    for place, name in enumerate(["first.bin", "second.bin"]):
        own = OrderedDict((key, value) for key, value in model.items() if any(part in key for part in FIRST) == (place == 0))
        with zipfile.ZipFile(folder / name, "w") as out:
            stem = Path(name).stem
            with out.open(f"{stem}/data.pkl", "w") as file:
                Writer(file, protocol=2).dump(own)
            out.writestr(f"{stem}/byteorder", "little")
            for key in dict.fromkeys(tensor.arguments[0][2] for tensor in own.values()):
                out.writestr(f"{stem}/data/{key}", archive.read(f"{root}/data/{key}"))
            out.writestr(f"{stem}/version", "3\n")
