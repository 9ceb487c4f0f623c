"""The model of `cargo bench -p benches --bench pytorch` in PyTorch: runs steps on request, one contestant at a time.

GPT: vocab 256, d_model 256, 4 heads, 8 layers, seq 128, batch 32 in 8 microbatches, f32, pre-norm, GELU 4x, explicit
softmax attention, AdamW. The unpipelined loop goes over the same microbatches on one thread; pipelines are two
processes of one thread each over gloo. Each contestant runs twice, eager and with `torch.compile`. With `--bf16`
forwards run under `torch.autocast`, which rounds operands of matmuls to bf16; weights stay f32.

1. Prints one line: its version and the contestants' names, separated by tabs.
2. For each line of standard input, which names a contestant, runs its step and prints the seconds, or `failed:` and
   why.
"""

import os
import sys
import time
from multiprocessing.connection import wait

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as S

ROUNDED = "--bf16" in sys.argv
VOCAB, WIDTH, HEADS, LAYERS, SEQ, BATCH, MICROBATCHES = 256, 256, 4, 8, 128, 32, 8


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
            x = self.tokens(x) + self.places(torch.arange(SEQ, device=x.device))
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


def loss_of(logits, target):
    return nn.functional.cross_entropy(logits.reshape(-1, VOCAB), target.reshape(-1))


def autocast():
    return torch.autocast("cpu", torch.bfloat16, enabled=ROUNDED)


def batch():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, VOCAB, (BATCH, SEQ), generator=generator) for _ in range(2)]


def whole(compiled):
    """A step of the whole model on one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Part(0, 1)
    called = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    inputs, targets = batch()

    def step():
        optimizer.zero_grad()
        for x, t in zip(inputs.chunk(MICROBATCHES), targets.chunk(MICROBATCHES)):
            with autocast():
                loss = loss_of(called(x), t) / MICROBATCHES
            loss.backward()
        optimizer.step()

    return step


def rank_step(rank, name, chunks, compiled, port):
    """A step of one of two ranks of a pipeline."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    schedule = getattr(S, name)
    stages = 2 * chunks
    v_shaped = name in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
    mine = [rank, stages - 1 - rank] if v_shaped else list(range(rank, stages, 2))
    modules = [Part(i, stages) for i in mine]
    called = [torch.compile(module) if compiled else module for module in modules]
    parts = [PipelineStage(m, i, stages, torch.device("cpu")) for m, i in zip(called, mine)]
    one = issubclass(schedule, S.PipelineScheduleSingle)
    schedule = schedule(parts[0] if one else parts, MICROBATCHES, loss_fn=loss_of)
    optimizer = torch.optim.AdamW([p for module in modules for p in module.parameters()], 1e-4)
    inputs, targets = batch()
    last = stages - 1 in mine

    def step():
        optimizer.zero_grad()
        arguments = (inputs,) if 0 in mine else ()
        with autocast():
            schedule.step(*arguments, **({"target": targets, "losses": []} if last else {}))
        optimizer.step()
        dist.barrier()

    return step


def rank_process(pipe, *arguments):
    """Runs steps on request until the pipe closes; reports errors."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        step = rank_step(*arguments)
        while True:
            pipe.recv()
            step()
            pipe.send(None)
    except EOFError:
        pass
    except BaseException as error:  # Compilers raise all kinds.
        pipe.send(f"{type(error).__name__}: {error}".split("\n")[0])


class Pipelined:
    """Two processes of one thread each."""

    def __init__(self, name, chunks, compiled, port):
        context = mp.get_context("spawn")
        self.pipes, self.processes = [], []
        for rank in range(2):
            ours, theirs = context.Pipe()
            arguments = (theirs, rank, name, chunks, compiled, port)
            self.processes.append(context.Process(target=rank_process, args=arguments, daemon=True))
            self.processes[-1].start()
            self.pipes.append(ours)

    def __call__(self):
        for pipe in self.pipes:
            try:
                pipe.send(None)
            except OSError:
                pass  # It has ended, and reported why.
        waiting = list(self.pipes)
        while waiting:
            for pipe in wait(waiting):
                waiting.remove(pipe)
                error = pipe.recv()
                if error is not None:
                    # The other rank waits for this one.
                    for process in self.processes:
                        process.kill()
                    raise RuntimeError(error)


SCHEDULES = [
    ("GPipe", 1),
    ("1F1B", 1),
    ("Interleaved1F1B", 2),
    ("LoopedBFS", 2),
    ("InterleavedZeroBubble", 2),
    ("ZBVZeroBubble", 2),
    ("DualPipeV", 2),
]


def main():
    contestants = {}
    ports = iter(range(29500, 29600))
    for compiled in (False, True):
        suffix = ", compiled" if compiled else ""
        contestants["unpipelined" + suffix] = whole(compiled)
        for name, chunks in SCHEDULES:
            if hasattr(S, "Schedule" + name):
                contestants[name + suffix] = Pipelined("Schedule" + name, chunks, compiled, next(ports))
    print(f"PyTorch {torch.__version__}", *contestants, sep="\t", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        try:
            contestants[line.strip()]()
            print(time.perf_counter() - began, flush=True)
        except Exception as error:
            print("failed:", str(error).split("\n")[0], flush=True)


if __name__ == "__main__":
    main()
