#!/usr/bin/env python3
"""Speed of one build of forerun against another on the same models, taking turns in one run.

  tests/real/turns.py BEFORE AFTER MODEL... [--turns 7] [--tokens 96] [--read 512] [--batch 16]

BEFORE and AFTER are two programs (target/release/forerun of two checkouts). Each turn runs both, in an order that
changes, with `forerun bench`: plain decode of one sequence and of several, a prompt, three fixed drafts where the
model has an MTP head. Printed are the medians over turns of AFTER's speed over BEFORE's in the same turn, and their
range. Nothing else may run on the machine.
"""
import argparse
import json
import statistics
import subprocess
import sys


def measure(program, model, args):
    """Speeds by what was measured."""
    command = [program, "bench", model, "--batch", f"1,{args.batch}", "--tokens", str(args.tokens), "--read",
               str(args.read), "--reps", "1", "--prompt", "Once upon a time there was a little fox who lived by a river",
               "--arms", "plain,3" if args.drafts[model] else "plain", "--json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    speeds = {f"prompt of {row['tokens']}": row["tokens_per_s"]["median"] for row in report["reading"]}
    for cell in report["cells"]:
        for arm in cell["arms"]:
            what = "plain decode" if arm["arm"] == "plain" else f"{arm['arm']} drafts"
            speeds[f"{what}, batch {cell['batch']}"] = arm["decode_tokens_per_s"]["median"]
    return speeds


def drafts(program, model):
    """Whether the model can draft with a head of its own."""
    command = [program, "bench", model, "--batch", "1", "--tokens", "2", "--read", "16", "--reps", "1", "--prompt", "A",
               "--arms", "plain,3", "--json"]
    return subprocess.run(command, capture_output=True).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--read", type=int, default=512)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    args.drafts = {model: drafts(args.after, model) for model in args.models}
    slowest = 1.0
    for model in args.models:
        ratios = {}
        for turn in range(args.turns):
            order = [args.before, args.after] if turn % 2 else [args.after, args.before]
            found = {program: measure(program, model, args) for program in order}
            for what, speed in found[args.after].items():
                ratios.setdefault(what, []).append((speed / found[args.before][what], speed))
        print(model)
        for what, pairs in ratios.items():
            each = sorted(ratio for ratio, _ in pairs)
            middle = statistics.median(each)
            slowest = min(slowest, middle)
            print(f"  {what:<24} {statistics.median(speed for _, speed in pairs):8.0f} tok/s  "
                  f"{middle:5.2f}  ({each[0]:.2f}..{each[-1]:.2f})", flush=True)
    print(f"the slowest of them: {slowest:.2f}")


if __name__ == "__main__":
    sys.exit(main())
