#!/usr/bin/env python3
"""Find how each tensor of a checkpoint was drawn, where the library stores it under another name than its own.

  find_draws.py FOLDER [--seed N]

Writes draws.json for pack.py. Every distribution that make_tiny.py uses is tried under the names the library may have
for a tensor, until one gives the bytes in the file; nothing is taken on trust. A drafter's block that was appended to a
checkpoint (`deepseek_v3`, `glm4_moe`) has the names of the file, and the mean and spread of the layer before it.
"""
import argparse
import json
import os
import re

import numpy as np

from pack import read_header
from tinylib import drawn, rng_for

DRAWS = [{"normal": [1.0, 0.15]}, {"normal": [0.0, 0.05]}, {"normal": [0.0, 0.1]}, {"normal": [0.0, 1.0]},
         {"normal": [0.0, 0.6]}, {"linear": 1.0}, {"linear": 2.0}, {"linear": 3.0}, {"log_uniform": [0.5, 8.0]},
         {"log_expm1_uniform": [0.01, 0.3]}]
# What files say, and what the library says. What only an appended block has was drawn under `mtp/`; its embedding and
# its head are the model's.
NAMES = [(r"^backbone\.", "model."),
         (r"block_sparse_moe\.input_linear\.weight", "block_sparse_moe.experts.gate_up_proj"),
         (r"block_sparse_moe\.output_linear\.weight", "block_sparse_moe.experts.down_proj"),
         (r"router\.layer\.weight", "router.weight"),
         (r"block_sparse_moe\.(?=gate\.|experts\.\d|shared_experts\.)", "mlp."),
         (r"self_attn\.(?=A_log|dt_bias|f_[ab]_proj)", "self_attn.forget_gate."),
         (r"^(?=model\.layers\.\d+\.(enorm|hnorm|eh_proj|shared_head\.norm)\.)", "mtp/"),
         (r"^model\.layers\.\d+\.embed_tokens\.", "model.embed_tokens."),
         (r"^model\.layers\.\d+\.shared_head\.head\.", "lm_head.")]
# What lies in a tensor of the library with others: which tensor, how many of such matrices an expert has there (0 for
# what is no expert's), and which of them it is.
PARTS = [(r"experts\.(\d+)\.(w1|gate_proj)\.weight", "experts.gate_up_proj", 2, 0),
         (r"experts\.(\d+)\.(w3|up_proj)\.weight", "experts.gate_up_proj", 2, 1),
         (r"experts\.(\d+)\.(w2|down_proj)\.weight", "experts.down_proj", 1, 0),
         (r"experts\.(\d+)\.up_proj\.weight", "experts.up_proj", 1, 0),
         (r"()q_conv1d\.weight", "conv1d.weight", 0, 0), (r"()k_conv1d\.weight", "conv1d.weight", 0, 1),
         (r"()v_conv1d\.weight", "conv1d.weight", 0, 2)]


def bf16(x):
    u = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7fff + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def places(name, shape):
    """Where the library may have a tensor: the name there, `rows` of weights.json, and the first of its rows."""
    own = name
    for pattern, library in NAMES:
        own = re.sub(pattern, library, own)
    for pattern, library, each, part in PARTS:
        found = re.search(rf"\b{pattern}$", own)
        if found:
            rows = [each * shape[0], part * shape[0]]
            yield own[:found.start()] + library, rows, int(found[1] or 0) * rows[0] + rows[1]
    yield own, [0, 0], 0


def draws_like(tensors, name):
    """How a tensor of an appended block may be drawn: spread as the one of the layer before it is."""
    before = tensors.get(re.sub(r"(?<=layers\.)\d+", lambda layer: str(int(layer[0]) - 1), name))
    if before is None:
        return
    shape, data = before
    values = (data.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    # The fewest digits that give the bytes.
    for digits in range(4, 18):
        mean, deviation = (float(f"{x:.{digits}g}") for x in (values.mean(), values.std(ddof=1)))
        yield {"normal": [mean, 0.15] if len(shape) == 1 else [0.0, deviation]}


def find(model, seed, name, tensors):
    shape, data = tensors[name]
    for own, rows, first in places(name, shape):
        generator = rng_for(seed, f"{model}/{own}")
        start = generator.bit_generator.state
        for draw in [*DRAWS, *draws_like(tensors, name)]:
            generator.bit_generator.state = start
            values = drawn(generator, draw, (first + shape[0], *shape[1:]))
            if np.array_equal(bf16(values[first:]).ravel(), data):
                of = {} if own == name else {"of": re.sub(r"\b\d+\b", "#", own)}
                return {**draw, **of, **({"rows": rows} if any(rows) else {})}
    raise SystemExit(f"{name}: drawn in no way known here")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("folder")
    ap.add_argument("--seed", type=int, default=0)
    a = ap.parse_args()
    model = os.path.basename(os.path.abspath(a.folder))
    with open(os.path.join(a.folder, "model.safetensors"), "rb") as f:
        raw = f.read()
    start, head = read_header(raw)
    tensors = {}
    for name, t in head.items():
        begin, end = (start + at for at in t["data_offsets"])
        tensors[name] = (t["shape"], np.frombuffer(raw[begin:end], np.uint16))
    draws = {name: find(model, a.seed, name, tensors) for name in tensors}
    with open(os.path.join(a.folder, "draws.json"), "w") as f:
        json.dump({"model": model, "seed": a.seed, "draws": draws}, f)


if __name__ == "__main__":
    main()
