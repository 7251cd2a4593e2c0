#!/usr/bin/env python3
"""Everything that is to be known of `--device cuda` on a machine with one NVIDIA GPU, in one run with a time limit.

  tests/real/gpu.py OUT [--forerun target/release/forerun] [--tests FOLDER] [--seconds 480]

First what must be right, several programs at a time: the conformance suite and the golden checkpoints on the GPU (test
programs of backend-cuda in --tests, as `cargo test --no-run` builds them, named conform and goldens), `forerun verify`
with the bundled model and with a 9B hybrid of random weights in three formats, in both compute modes. Then, one after
the other, what has to be fast: plain decoding, steps of several rows and rounds of drafts in published shapes of random
weights, with the bandwidth of a copy in the same run; the divergence of each compute mode from the CPU's exact logits;
and the same shape in transformers, its step captured as a graph. What does not fit into the limit is left out and named.

Writes OUT/*.txt and OUT/summary.txt. Needs PyTorch for copy, divergence and transformers.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import time

BUNDLED = "models/tales-28m"
OPS = """embed rms_norm add_norm join_norm linear linears gated_linear rope_table attention_inputs attention short_conv
delta_gates delta_inputs delta_rule gated_norm gate_mul glu softcap router experts add_gated cluster_head gather_rows
scatter_rows scatter_words sample head_sample""".split()
SHARDS = 7
# Shares of drafts that the bundled model's own stories accept at each place of a round.
STORIES = "0.86,0.74,0.6"


class Run:
    def __init__(self, args):
        self.args, self.began, self.lines = args, time.monotonic(), []

    def left(self):
        return self.args.seconds - (time.monotonic() - self.began)

    def say(self, line):
        self.lines.append(line)
        print(f"[{time.monotonic() - self.began:5.0f} s] {line}", flush=True)
        with open(os.path.join(self.args.out, "summary.txt"), "a") as f:
            f.write(line + "\n")

    def start(self, name, command, env=None):
        path = os.path.join(self.args.out, name + ".txt")
        with open(path, "w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                       env={**os.environ, **(env or {})})
        return name, path, process, time.monotonic()

    def end(self, job, seconds):
        """Output of a job, or None where it failed or was stopped; says which."""
        name, path, process, began = job
        try:
            code = process.wait(max(1, seconds))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = "stopped at its limit"
        text = open(path).read()
        took = time.monotonic() - began
        if code != 0:
            self.say(f"{name}: FAILED ({code}) after {took:.0f} s: {' | '.join(text.strip().splitlines()[-3:])[-400:]}")
            return None
        return text

    def run(self, name, command, seconds, env=None):
        if self.left() < 8:
            self.say(f"{name}: left out, no time")
            return None
        return self.end(self.start(name, command, env), min(seconds, self.left()))


def correctness(run, limit):
    """Programs that must agree, all at a time."""
    args, jobs = run.args, []
    forerun = args.forerun
    if args.tests:
        conform = os.path.join(args.tests, "conform")
        for shard in range(SHARDS):
            names = [f"gpu::{op}" for op in OPS[shard::SHARDS]]
            jobs.append(run.start(f"conform-{shard}", [conform, "--ignored", "--exact", "--test-threads", "1", *names]))
        jobs.append(run.start("conform-rest", [conform, "--ignored", "--test-threads", "1", "_on_a_gpu"]))
        jobs.append(run.start("goldens", [os.path.join(args.tests, "goldens"), "--ignored", "--test-threads", "1"]))
    for compute in ["half", "exact"]:
        options = ["--device", "cuda", "--compute", compute]
        jobs.append(run.start(f"verify-bundled-{compute}", [forerun, "verify", BUNDLED, *options]))
        for form in ["bf16", "fp8", "4bit"]:
            shape = ["synth:qwen3.5-9b", "--dtype", form, "--layers", "8", "--vocabulary", "8192"]
            jobs.append(run.start(f"verify-9b-{form}-{compute}", [forerun, "verify", *shape, "--quick", "--tokens", "16", *options]))
    until = time.monotonic() + limit
    for job in jobs:
        text = run.end(job, until - time.monotonic())
        if text is not None:
            last = [line for line in text.strip().splitlines() if line.strip()]
            found = [line for line in last if "test result" in line or "identical" in line] or last
            run.say(f"{job[0]}: {found[-1].strip()[:200]}")


def copy(run):
    code = """
import torch
a = torch.empty(2 << 30, dtype=torch.uint8, device="cuda"); b = torch.empty_like(a); a.random_()
times = []
for _ in range(12):
    s, e = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    s.record(); b.copy_(a); e.record(); e.synchronize(); times.append(s.elapsed_time(e))
print(2 * a.numel() / sorted(times)[6] / 1e6)
"""
    text = run.run("copy", [sys.executable, "-c", code], 40)
    return float(text.split()[-1]) if text else math.nan


def bench(run, name, shape, options, seconds, env=None):
    command = [run.args.forerun, "bench", *shape, "--device", "cuda", "--prompt", "Once upon a time", "--json", *options]
    text = run.run(name, command, seconds, env)
    if text is None:
        return None
    try:
        return json.loads(text[text.index("{"):])
    except ValueError:
        run.say(f"{name}: no report")
        return None


def speeds(report):
    """Tokens a second and milliseconds a round by batch and arm, and prompts."""
    rows = {}
    for cell in report["cells"]:
        for arm in cell["arms"]:
            per_round = arm.get("ms_per_round", {})
            rows[cell["batch"], arm["arm"]] = (arm["decode_tokens_per_s"]["median"], per_round.get("median", math.nan))
    return rows, {row["tokens"]: row["tokens_per_s"]["median"] for row in report["reading"]}


def show(run, name, report):
    if report is None:
        return
    rows, prompts = speeds(report)
    for (batch, arm), (rate, ms) in rows.items():
        run.say(f"{name}: batch {batch}, {arm}: {rate:.1f} tok/s, {ms:.3f} ms a round")
    for tokens, rate in prompts.items():
        run.say(f"{name}: prompt of {tokens}: {rate:.0f} tok/s")


def divergence(run):
    """KL of each way to compute from the CPU's exact logits, over the same text."""
    import numpy as np

    out, forerun, logits = run.args.out, run.args.forerun, {}
    text = open(os.path.join(BUNDLED, "README.md")).read()[:900] + " Once upon a time there was a little fox. " * 8
    for name, options in [("cpu", ["--device", "cpu"]), ("half", ["--device", "cuda", "--compute", "half"]),
                          ("exact", ["--device", "cuda", "--compute", "exact"])]:
        path = os.path.join("/tmp", f"logits-{name}.safetensors")
        command = [forerun, "score", BUNDLED, "--text", text, "--logits", path, "--json", "--kv", "f16", *options]
        report = run.run(f"score-{name}", command, 40)
        if report is None:
            return
        raw = open(path, "rb").read()
        size = int.from_bytes(raw[:8], "little")
        head = json.loads(raw[8:8 + size])["logits"]
        begin, end = head["data_offsets"]
        logits[name] = np.frombuffer(raw[8 + size + begin:8 + size + end], np.float32).reshape(head["shape"]).astype(np.float64)
        ids = json.loads(report[report.index("{"):])["token_ids"]
    with open("/tmp/ids.json", "w") as f:
        json.dump(ids, f)
    base = log_softmax(logits["cpu"])
    for name in ["half", "exact"]:
        run.say(f"divergence: {name} from the CPU's exact logits: {kl(base, log_softmax(logits[name]))}")
    here = os.path.dirname(os.path.abspath(__file__))
    text = run.run("divergence-transformers", [sys.executable, os.path.join(here, "gpu_peer.py"), "divergence", BUNDLED, "/tmp/ids.json"], 60)
    if text:
        run.say("divergence: " + text.strip().splitlines()[-1])


def log_softmax(x):
    import numpy as np

    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def kl(base, other):
    import numpy as np

    each = (np.exp(base) * (base - other)).sum(-1)
    same = (base.argmax(-1) == other.argmax(-1)).mean()
    return f"mean {each.mean():.2e}, worst {each.max():.2e}, same first choice {same:.4f} of {len(each)} positions"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--forerun", default="target/release/forerun")
    parser.add_argument("--tests")
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--correctness", type=float, default=150, help="seconds for what must be right")
    parser.add_argument("--part", choices=["all", "right", "fast"], default="all")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    run = Run(args)
    dense, sparse = ["synth:qwen3.6-27b"], ["synth:qwen3.6-35b-a3b"]
    if args.part != "fast":
        correctness(run, args.correctness)
    run.say(f"copy: {copy(run):.0f} GB/s read and written")
    if args.part == "right":
        return
    short = ["--tokens", "48", "--reps", "1"]
    fp8 = [*dense, "--dtype", "fp8"]
    show(run, "27B FP8, all drafts accepted",
         bench(run, "27b-fp8", fp8, [*short, "--arms", "plain,3,7", "--accept", "1,1,1,1,1,1,1", "--batch", "1,4,8", "--read", "512,4096"], 110))
    show(run, "27B FP8, drafts as in stories",
         bench(run, "27b-fp8-stories", fp8, [*short, "--arms", "plain,2,3,auto", "--accept", STORIES, "--read", "16"], 80))
    divergence(run)
    show(run, "27B 4-bit", bench(run, "27b-4bit", [*dense, "--dtype", "4bit"], [*short, "--arms", "plain", "--batch", "1,4", "--read", "512"], 80))
    show(run, "27B bf16", bench(run, "27b-bf16", [*dense, "--dtype", "bf16"], [*short, "--arms", "plain", "--batch", "1,4", "--read", "512"], 90))
    here = os.path.dirname(os.path.abspath(__file__))
    peer = run.run("transformers", [sys.executable, os.path.join(here, "gpu_peer.py"), "decode"], 90)
    if peer:
        run.say("transformers, 27B bf16: " + peer.strip().splitlines()[-1])
    show(run, "35B-A3B FP8", bench(run, "35b-fp8", [*sparse, "--dtype", "fp8"], [*short, "--arms", "plain", "--batch", "1,4", "--read", "512"], 90))
    long = ["--contexts", "131072,524288", "--ctx", "524800", "--tokens", "16", "--reps", "1", "--arms", "plain", "--read", "16"]
    report = bench(run, "long", [BUNDLED], long, 60)
    for cell in report["cells"] if report else []:
        arm = cell["arms"][0]
        run.say(f"bundled model behind {cell['context']} tokens: read at {arm['prompt_tokens_per_s']['median']:.0f} tok/s, "
                f"decoded at {arm['decode_tokens_per_s']['median']:.0f} tok/s")
    run.say("done")


if __name__ == "__main__":
    sys.exit(main())
