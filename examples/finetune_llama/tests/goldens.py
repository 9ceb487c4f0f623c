"""Writes what the tests compare with to this folder: `python goldens.py`, with torch, transformers, peft and
safetensors installed (written with torch 2.15, transformers 5.24, peft 0.21).

1. `peft`: adapters of the tiny model as PEFT stores them, with the logits, the loss, the gradients of the adapters,
   and the losses of three steps of SGD.
2. `untied`: a smaller Llama with a head of its own, biases, and linearly scaled positions, in several files; with its
   logits.
"""

import torch
from pathlib import Path
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

here = Path(__file__).parent
tiny = here.parent / "tiny"
torch.manual_seed(11)
torch.set_num_threads(1)

tokens = load_file(here / "tiny.safetensors")["tokens"]
inputs, targets = tokens[:, :-1], tokens[:, 1:]
base = LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32, attn_implementation="eager")
lora = LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj", "down_proj"], lora_dropout=0.0)
model = get_peft_model(base, lora)
trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
# PEFT starts with factors that are zero, which would hide wrong ones.
with torch.no_grad():
    for parameter in trained.values():
        parameter.normal_(0.0, 0.1)
model.peft_config["default"].base_model_name_or_path = "tiny"
model.save_pretrained(here / "peft")


def loss():
    return torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())


computed = {"logits": model(inputs).logits.detach().contiguous()}
first = loss()
first.backward()
for name, parameter in trained.items():
    computed[name.replace(".default", "")] = parameter.grad.clone()
losses = []
optimizer = torch.optim.SGD(trained.values(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    value = loss()
    value.backward()
    optimizer.step()
    losses.append(value.item())
computed["losses"] = torch.tensor(losses, dtype=torch.float64)
save_file(computed, here / "peft" / "computed.safetensors")

untied = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=64,
        rms_norm_eps=1e-6,
        initializer_range=0.2,
        tie_word_embeddings=False,
        attention_bias=True,
        mlp_bias=True,
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
        bos_token_id=None,
        eos_token_id=3,
        attn_implementation="eager",
    )
).float()
# Norms start at ones and biases at zeros, which would hide missing ones.
with torch.no_grad():
    for name, parameter in untied.named_parameters():
        if "norm" in name:
            parameter.uniform_(0.5, 1.5)
        if name.endswith("bias"):
            parameter.normal_(0.0, 0.2)
untied.save_pretrained(here / "untied", max_shard_size="40KB")
ids = torch.randint(0, 64, (4, 20))
with torch.no_grad():
    save_file({"tokens": ids, "logits": untied(ids).logits.contiguous()}, here / "untied" / "computed.safetensors")
