#!/usr/bin/env python3
"""Find how each tensor of a checkpoint was drawn, where the library stores it under another name than its own.

  find_draws.py FOLDER [--seed N]

Writes draws.json for pack.py. Every distribution that make_tiny.py uses is tried under the names the library may have
for a tensor, until one gives the bytes in the file; nothing is taken on trust.
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
# What files say, and what the library says.
NAMES = [(r"^backbone\.", "model."), (r"block_sparse_moe\.input_linear\.weight", "block_sparse_moe.experts.gate_up_proj"),
         (r"block_sparse_moe\.output_linear\.weight", "block_sparse_moe.experts.down_proj"),
         (r"router\.layer\.weight", "router.weight")]
# The library's stack of an expert's matrix, how many of its matrices lie in it, and which one it is.
STACKS = {"w1": ("gate_up_proj", 2, 0), "w3": ("gate_up_proj", 2, 1), "w2": ("down_proj", 1, 0),
          "up_proj": ("up_proj", 1, 0), "down_proj": ("down_proj", 1, 0)}


def bf16(x):
    u = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7fff + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def find(model, seed, name, shape, data):
    own = name
    for pattern, library in NAMES:
        own = re.sub(pattern, library, own)
    expert, rows = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)\.weight", own), None
    whole, first = shape, 0
    if expert:
        stack, each, part = STACKS[expert[3]]
        own, rows = f"{expert[1]}.{stack}", [each * shape[0], part * shape[0]]
        first = int(expert[2]) * rows[0] + rows[1]
        whole = [first + shape[0], shape[1]]
    for draw in DRAWS:
        values = bf16(drawn(rng_for(seed, f"{model}/{own}"), draw, tuple(whole)))
        if np.array_equal(values.reshape(-1, shape[-1])[first if expert else 0:].ravel(), data):
            of = {} if own == name else {"of": re.sub(r"\b\d+\b", "#", own)}
            return {**draw, **of, **({"rows": rows} if rows else {})}
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
    draws = {}
    for name, t in head.items():
        begin, end = (start + at for at in t["data_offsets"])
        draws[name] = find(model, a.seed, name, t["shape"], np.frombuffer(raw[begin:end], np.uint16))
    with open(os.path.join(a.folder, "draws.json"), "w") as f:
        json.dump({"model": model, "seed": a.seed, "draws": draws}, f)


if __name__ == "__main__":
    main()
