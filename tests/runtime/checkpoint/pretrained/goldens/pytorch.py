"""Converts the Llama of FOLDER, `model.safetensors`, to PyTorch's own files: `python pytorch.py FOLDER`, with torch and
safetensors installed. `model.pt` is a state dict; `legacy.pt` is a training checkpoint in the format of before 1.6."""

import sys
import torch
from pathlib import Path
from safetensors.torch import load_file

folder = Path(sys.argv[1])
model = load_file(folder / "model.safetensors")
# A view that is not contiguous, and two views of one storage.
head = "lm_head.weight"
model[head] = model[head].t().contiguous().t()
first, second = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up"))
both = torch.cat([model[first], model[second]])
model[first], model[second] = both.chunk(2)
torch.save(model, folder / "model.pt")
checkpoint = {"epoch": 3, "state_dict": model, "optimizer": {"lr": 0.05}}
torch.save(checkpoint, folder / "legacy.pt", _use_new_zipfile_serialization=False)
