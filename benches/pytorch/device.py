"""The plain loop of `cargo bench --bench device` in PyTorch, on one device: eager, and with `torch.compile`.

`python device.py [--device cuda] [--rounds N] [--layers N] [--width N] [--seq N] [--samples N] [--tf32] [--bf16]`. For
devices that PyTorch lacks (wgpu) it uses the processor. Model, batch and microbatches are that bench's. The first two
rounds are not counted, and the clock is read after a wait for the device.
"""

import argparse
import statistics
import time

import step
import torch

step.VOCAB, step.MICROBATCHES = 256, 4


def contestant(compiled, bf16):
    torch.manual_seed(0)
    model = step.Part(0, 1)
    called = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    inputs, targets = (torch.randint(0, 251, (step.BATCH, step.SEQ)) for _ in range(2))

    def run():
        optimizer.zero_grad()
        for x, t in zip(inputs.chunk(step.MICROBATCHES), targets.chunk(step.MICROBATCHES)):
            with torch.autocast(x.device.type, torch.bfloat16, enabled=bf16):
                loss = step.loss_of(called(x), t)
            (loss / step.MICROBATCHES).backward()
        optimizer.step()

    return run


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--device", default="cuda")
    arguments.add_argument("--rounds", type=int, default=7)
    for name, default in (("layers", 8), ("width", 64), ("seq", 64), ("samples", 8)):
        arguments.add_argument(f"--{name}", type=int, default=default)
    arguments.add_argument("--tf32", action="store_true", help="matmuls round to TF32, as Burn's do on NVIDIA GPUs")
    arguments.add_argument("--bf16", action="store_true", help="under autocast, as training in mixed precision is written")
    given = arguments.parse_args()
    step.LAYERS, step.WIDTH, step.SEQ, step.BATCH = given.layers, given.width, given.seq, given.samples
    torch.set_float32_matmul_precision("high" if given.tf32 else "highest")
    cuda = given.device == "cuda"
    torch.set_default_device("cuda" if cuda else "cpu")
    name = torch.cuda.get_device_name() if cuda else f"processor, {torch.get_num_threads()} threads"
    print(f"PyTorch {torch.__version__}, {name}")
    print("| step, ms: median (least..most) | |\n|---|---|")
    for compiled in (False, True):
        run, seconds = contestant(compiled, given.bf16), []
        for _ in range(2 + given.rounds):
            began = time.perf_counter()
            run()
            if cuda:
                torch.cuda.synchronize()
            seconds.append(1e3 * (time.perf_counter() - began))
        seconds = seconds[2:]
        kind = "compiled" if compiled else "eager"
        print(f"| the plain loop, {kind} | {statistics.median(seconds):.1f} ({min(seconds):.1f}..{max(seconds):.1f}) |")


if __name__ == "__main__":
    main()
