"""The matmuls of `cargo bench -p benches --bench matmuls` in PyTorch, on one thread.

1. Prints PyTorch's version.
2. For each line of standard input, `ELEMENTS LAYOUT ROWS DEPTH COLUMNS TIMES`, runs the matmul that many times and
   prints the seconds of one. ELEMENTS is `f32`, `rounded` (operands of `f32` under `torch.autocast` to bf16) or
   `bf16`; LAYOUT is `plain`, `right` (the right operand is a transposed view) or `left`.
"""

import sys
import time

import torch

torch.set_num_threads(1)
print(f"PyTorch {torch.__version__}", flush=True)


def operand(rows, columns, transposed, dtype):
    values = torch.rand(columns, rows).t() if transposed else torch.rand(rows, columns)
    return (values - 0.5).to(dtype)


@torch.no_grad()
def measured(elements, layout, rows, depth, columns, times):
    dtype = torch.bfloat16 if elements == "bf16" else torch.float32
    left = operand(rows, depth, layout == "left", dtype)
    right = operand(depth, columns, layout == "right", dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=elements == "rounded"):
        left @ right
        began = time.perf_counter()
        for _ in range(times):
            left @ right
        return (time.perf_counter() - began) / times


for line in sys.stdin:
    elements, layout, *sizes = line.split()
    print(measured(elements, layout, *map(int, sizes)), flush=True)
