"""The model of `cargo bench -p benches --bench step` in PyTorch, for a comparison on one machine.

    pip install torch && python benches/pytorch/step.py [--rounds N]

GPT: vocab 256, d_model 256, 4 heads, 8 layers, seq 128, batch 32 in 8 microbatches, f32, pre-norm, GELU 4x, explicit
softmax attention, AdamW. The unpipelined loop goes over the same microbatches on one thread; pipelines are two
processes of one thread each over gloo. Prints a Markdown table of medians (min..max) in milliseconds.
"""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as S

VOCAB, WIDTH, HEADS, LAYERS, SEQ, BATCH, MICROBATCHES = 256, 256, 4, 8, 128, 32, 8
WARM_UP = 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("mask", torch.triu(torch.full((SEQ, SEQ), float("-inf")), 1), persistent=False)

    def forward(self, x):
        batch = x.shape[0]
        heads = self.qkv(self.norm1(x)).view(batch, SEQ, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = heads[0], heads[1], heads[2]
        scores = q @ k.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5 + self.mask
        mixed = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(batch, SEQ, WIDTH)
        x = x + self.out(mixed)
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Part(nn.Module):
    """A contiguous part of the model; embedding in the first, head in the last."""

    def __init__(self, index, stages):
        super().__init__()
        each = LAYERS // stages
        self.tokens = nn.Embedding(VOCAB, WIDTH) if index == 0 else None
        self.places = nn.Embedding(SEQ, WIDTH) if index == 0 else None
        self.blocks = nn.ModuleList(Block() for _ in range(each))
        last = index == stages - 1
        self.norm = nn.LayerNorm(WIDTH) if last else None
        self.head = nn.Linear(WIDTH, VOCAB) if last else None

    def forward(self, x):
        if self.tokens is not None:
            x = self.tokens(x) + self.places(torch.arange(SEQ))
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


def loss_of(logits, target):
    return nn.functional.cross_entropy(logits.reshape(-1, VOCAB), target.reshape(-1))


def batch():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, VOCAB, (BATCH, SEQ), generator=generator) for _ in range(2)]


def timed(step, rounds):
    seconds = []
    for _ in range(WARM_UP + rounds):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return seconds[WARM_UP:]


def row(name, seconds):
    ms = [1e3 * s for s in seconds]
    print(f"| {name} | {statistics.median(ms):.0f} ({min(ms):.0f}..{max(ms):.0f}) |", flush=True)


def plain(rounds):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Part(0, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    inputs, targets = batch()

    def step():
        optimizer.zero_grad()
        for x, t in zip(inputs.chunk(MICROBATCHES), targets.chunk(MICROBATCHES)):
            (loss_of(model(x), t) / MICROBATCHES).backward()
        optimizer.step()

    row("unpipelined, 1 thread", timed(step, rounds))


def pipelined(rank, name, chunks, rounds, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    family = getattr(S, name)
    stages = 2 * chunks
    v_shaped = name in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
    mine = [rank, stages - 1 - rank] if v_shaped else list(range(rank, stages, 2))
    parts = [PipelineStage(Part(i, stages), i, stages, torch.device("cpu")) for i in mine]
    one = issubclass(family, S.PipelineScheduleSingle)
    schedule = family(parts[0] if one else parts, MICROBATCHES, loss_fn=loss_of)
    optimizer = torch.optim.AdamW([p for part in parts for p in part.submod.parameters()], 1e-3)
    inputs, targets = batch()
    last = stages - 1 in mine

    def step():
        optimizer.zero_grad()
        arguments = (inputs,) if 0 in mine else ()
        schedule.step(*arguments, **({"target": targets, "losses": []} if last else {}))
        optimizer.step()
        dist.barrier()

    seconds = timed(step, rounds)
    if rank == 0:
        row(f"{name[len('Schedule'):]}, 2 ranks x {chunks}", seconds)
    dist.destroy_process_group()


FAMILIES = [
    ("ScheduleGPipe", 1),
    ("Schedule1F1B", 1),
    ("ScheduleInterleaved1F1B", 2),
    ("ScheduleLoopedBFS", 2),
    ("ScheduleInterleavedZeroBubble", 2),
    ("ScheduleZBVZeroBubble", 2),
    ("ScheduleDualPipeV", 2),
]

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    print(f"PyTorch {torch.__version__}\n\n| | step, ms |\n|---|---|", flush=True)
    plain(rounds)
    for port, (name, chunks) in enumerate(FAMILIES, 29500):
        if hasattr(S, name):
            mp.spawn(pipelined, (name, chunks, rounds, port), nprocs=2)
