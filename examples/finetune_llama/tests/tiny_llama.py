"""Writes the tiny Llama of `../tiny` as `transformers` stores one: `python tiny_llama.py`, with torch, transformers,
tokenizers and safetensors installed (written with torch 2.15, transformers 5.24).

A byte-level BPE of 512 tokens and a Llama of 0.4 million parameters (tied head, grouped queries, scaled rotary
positions) are trained on the first half of the plays in `examples/data/shakespeare.txt`, for some minutes; the weights
are stored in bf16. `tiny.safetensors` holds the logits that `transformers` computes in f32 from what was stored.
"""

import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import ByteLevelBPETokenizer
from transformers import LlamaConfig, LlamaForCausalLM

STEPS = 3000
here = Path(__file__).parent
folder = here.parent / "tiny"
folder.mkdir(parents=True, exist_ok=True)
torch.manual_seed(7)
plays = (here.parents[1] / "data/shakespeare.txt").read_text()
plays = plays[: len(plays) // 2]

tokenizer = ByteLevelBPETokenizer()
tokenizer.train_from_iterator([plays], vocab_size=512, show_progress=False)
tokenizer.save(str(folder / "tokenizer.json"))
tokens = torch.tensor(tokenizer.encode(plays).ids)

config = LlamaConfig(
    vocab_size=512,
    hidden_size=96,
    intermediate_size=192,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=24,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
    rope_parameters={
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    bos_token_id=None,
    eos_token_id=None,
    attn_implementation="eager",
)
model = LlamaForCausalLM(config).float()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
batch, length = 16, 128
for step in range(STEPS):
    rate = 3e-3 * min(1, (step + 1) / 100) * (0.55 + 0.45 * math.cos(math.pi * step / STEPS))
    for group in optimizer.param_groups:
        group["lr"] = rate
    starts = torch.randint(0, len(tokens) - length - 1, (batch,))
    windows = torch.stack([tokens[start : start + length + 1] for start in starts])
    loss = torch.nn.functional.cross_entropy(model(windows[:, :-1]).logits.flatten(0, 1), windows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 100 == 0:
        print(step, loss.item(), flush=True)

model.bfloat16().save_pretrained(folder)
# Read again, since casting has rounded the rotary angles too.
model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
with torch.no_grad():
    ids = torch.stack([tokens[start : start + 32] for start in (0, 10_000)])
    greedy = model.generate(ids[:1, :8], max_new_tokens=24, do_sample=False)[0]
    golden = {"tokens": ids, "logits": model(ids).logits.contiguous(), "greedy": greedy}
    save_file(golden, here / "tiny.safetensors")
