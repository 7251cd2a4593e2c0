#!/usr/bin/env python3
"""Speed of forerun against llama.cpp on the same files, threads and machine, alternating in one run.

  tests/real/speed.py [--forerun target/release/forerun] [--work DIR] [--threads 2] [--reps 5] [--compute exact] [--models FILE ...]

llama.cpp is llama-cpp-python built from source with the instruction sets this processor has (AMX off: gcc 12 builds
one that dies of an illegal instruction). The models are those of compare.py unless others are named. Per repetition both
programs read a prompt of 1260 tokens and then decode 128 greedily, one after the other, in turning order; the ratio is
the median over repetitions of forerun's rate over llama.cpp's in the same repetition. Drafting is off: this is about
kernels.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from compare import prepare  # noqa: E402

SETS = {"avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "avx_vnni": "AVX_VNNI", "avx512f": "AVX512",
        "avx512vbmi": "AVX512_VBMI", "avx512_vnni": "AVX512_VNNI", "avx512_bf16": "AVX512_BF16"}
PROMPT, TOKENS = 1260, 128


def build_peer(work):
    """The Python of an environment with llama-cpp-python built for this processor."""
    home = os.path.join(work, "llama-cpp")
    python = os.path.join(home, "bin", "python")
    if not os.path.exists(python):
        with open("/proc/cpuinfo") as f:
            flags = set(next(line for line in f if line.startswith("flags")).split())
        options = ["-DGGML_NATIVE=OFF"] + [f"-DGGML_{name}=ON" for flag, name in SETS.items() if flag in flags]
        venv.create(home, with_pip=True)
        subprocess.run([python, "-m", "pip", "-q", "install", "--no-binary", "llama-cpp-python", "llama-cpp-python"],
                       check=True, env={**os.environ, "CMAKE_ARGS": " ".join(options)})
    return python


def peer(model, threads):
    """Run in that environment: for every line on stdin measure once and answer with a line of JSON."""
    import llama_cpp

    llama = llama_cpp.Llama(model, n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False)
    vocabulary = llama.n_vocab()
    prompt = [(7 * i + 11) % min(vocabulary, 30000) for i in range(PROMPT)]
    for _ in sys.stdin:
        llama.reset()
        start = time.perf_counter()
        llama.eval(prompt)
        read = time.perf_counter() - start
        token = 11  # any token costs the same
        start = time.perf_counter()
        for _ in range(TOKENS):
            llama.eval([token])
            llama_cpp.llama_get_logits(llama.ctx)[0]  # wait for the numbers
        decoded = time.perf_counter() - start
        print("RATES " + json.dumps([PROMPT / read, TOKENS / decoded]), flush=True)


def ours(forerun, model, threads, compute, ids):
    done = subprocess.run([forerun, "run", model, "--ids", "@" + ids, "--max-tokens", str(TOKENS + 1), "--temperature",
                           "0", "--ignore-eos", "--draft", "0", "--ctx", "2048", "--threads", str(threads), "--compute",
                           compute, "--json"],
                          check=True, capture_output=True)
    timings = json.loads(done.stdout)["timings"]
    return [timings["prompt_tokens_per_s"], timings["decode_tokens_per_s"]]


def measure(args, python, model):
    vocabulary = 30000
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as f:
        json.dump([(7 * i + 11) % vocabulary for i in range(PROMPT)], f)
    process = subprocess.Popen([python, os.path.abspath(__file__), "--peer", model, "--threads", str(args.threads)],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def theirs():
        process.stdin.write("go\n")
        process.stdin.flush()
        while not (line := process.stdout.readline()).startswith("RATES "):
            if not line:
                raise SystemExit("llama.cpp went away")
        return json.loads(line[6:])

    theirs(), ours(args.forerun, model, args.threads, args.compute, f.name)  # warm both
    pairs = []
    for rep in range(args.reps):
        if rep % 2:
            a = theirs()
            b = ours(args.forerun, model, args.threads, args.compute, f.name)
        else:
            b = ours(args.forerun, model, args.threads, args.compute, f.name)
            a = theirs()
        pairs.append((b, a))
    process.stdin.close()
    os.unlink(f.name)
    print(os.path.basename(model))
    for i, what in enumerate(["prompt", "decode"]):
        ratios = sorted(b[i] / a[i] for b, a in pairs)
        print(f"  {what}: forerun {statistics.median(b[i] for b, _ in pairs):.0f} tok/s, llama.cpp "
              f"{statistics.median(a[i] for _, a in pairs):.0f} tok/s, ratio {statistics.median(ratios):.2f} "
              f"({ratios[0]:.2f}..{ratios[-1]:.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forerun", default="target/release/forerun")
    parser.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "forerun-real"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--compute", default="exact")
    parser.add_argument("--models", nargs="*")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return peer(args.peer, args.threads)
    args.forerun = os.path.abspath(args.forerun)
    os.makedirs(args.work, exist_ok=True)
    python = build_peer(args.work)
    for model in args.models or prepare(args.work)[1]:
        measure(args, python, model)


if __name__ == "__main__":
    main()
