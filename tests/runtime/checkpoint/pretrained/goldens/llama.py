"""Writes the goldens to FOLDER: a small Llama as Hugging Face's `transformers` stores it, its outputs, and the same
model after three steps of SGD: `python llama.py FOLDER`, with torch, transformers and safetensors installed."""

import sys
import torch
from pathlib import Path
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

folder = Path(sys.argv[1])
torch.manual_seed(7)
torch.set_num_threads(1)
config = LlamaConfig(
    vocab_size=40,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
    rms_norm_eps=1e-5,
    initializer_range=0.3,
    tie_word_embeddings=False,
    attn_implementation="eager",
)
model = LlamaForCausalLM(config).float().eval()
# Norms start at ones, which would hide missing ones.
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.uniform_(0.5, 1.5)


def stored():
    return {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}


save_file(stored(), folder / "model.safetensors", {"format": "pt"})
tokens = torch.randint(0, config.vocab_size, (4, 8))
targets = torch.randint(0, config.vocab_size, (4, 8))
logits = model(tokens).logits.detach().clone()

optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses = []
for _ in range(3):
    loss = torch.nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
save_file(stored(), folder / "tuned.safetensors", {"format": "pt"})
save_file(
    {"tokens": tokens, "targets": targets, "logits": logits.contiguous(), "losses": torch.tensor(losses)},
    folder / "computed.safetensors",
)
