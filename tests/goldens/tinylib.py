"""Helpers shared by the golden tools: seeded random weights, dtype handling,
checkpoint writing, and a small byte-level tokenizer."""
import hashlib
import json
import os

import numpy as np

try:  # the mlx and llama.cpp environments have no torch; they only need rng_for
    import torch
    from safetensors.torch import save_file
except ImportError:
    torch = None


def rng_for(seed, label):
    """One independent generator per (seed, label); stable across runs and platforms."""
    digest = hashlib.sha256(f"{seed}/{label}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "little")))


def drawn(g, draw, shape):
    """An array in float64, as `draw` says:

    {"normal": [mean, deviation]}, {"linear": gain} (normal, deviation gain / sqrt(last axis)),
    {"uniform": [from, to]}, {"log_uniform": [from, to]} (its logarithm), {"log_expm1_uniform": [from, to]}
    (log(exp(x) - 1), whose softplus is x).
    """
    kind = next(iter(draw))
    if kind == "normal":
        mean, std = draw[kind]
        return mean + std * g.standard_normal(shape)
    if kind == "linear":
        return draw[kind] / np.sqrt(shape[-1]) * g.standard_normal(shape)
    x = g.uniform(*draw[kind], shape)
    return {"uniform": lambda x: x, "log_uniform": np.log, "log_expm1_uniform": lambda x: np.log(np.expm1(x))}[kind](x)


class Weights:
    """Collects named tensors. Everything is drawn in float32 and stored as bfloat16
    unless a tensor asks for float32, so a float32 run over the file is exact."""

    def __init__(self, seed, arch):
        self.seed, self.arch = seed, arch
        self.tensors, self.draws = {}, {}

    def draw(self, name, shape, draw, dtype="bf16"):
        assert name not in self.tensors, name
        x = drawn(rng_for(self.seed, f"{self.arch}/{name}"), draw, shape)
        t = torch.from_numpy(np.ascontiguousarray(x.astype(np.float32)))
        self.tensors[name] = t.to({"bf16": torch.bfloat16, "f32": torch.float32}[dtype])
        self.draws[name] = draw

    def normal(self, name, shape, std, mean=0.0, dtype="bf16"):
        self.draw(name, shape, {"normal": [mean, float(std)]}, dtype)

    def linear(self, name, out_f, in_f, gain=1.0):
        self.draw(name, (out_f, in_f), {"linear": float(gain)})

    def stack(self, name, n, out_f, in_f, gain=1.0):
        self.draw(name, (n, out_f, in_f), {"linear": float(gain)})

    def norm(self, name, n, zero_centered=False, dtype="bf16"):
        self.normal(name, (n,), 0.15, 0.0 if zero_centered else 1.0, dtype)


def write_draws(path, arch, seed, draws):
    """How each tensor was drawn, for pack.py."""
    with open(os.path.join(path, "draws.json"), "w") as f:
        json.dump({"model": arch, "seed": seed, "draws": draws}, f)


def write_checkpoint(path, config, tensors, shards=1, generation=None):
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f, indent=1, sort_keys=True)
    if generation is not None:
        with open(os.path.join(path, "generation_config.json"), "w") as f:
            json.dump(generation, f, indent=1, sort_keys=True)
    meta = {"format": "pt"}
    names = list(tensors)
    if shards == 1:
        save_file({k: tensors[k].contiguous() for k in names}, os.path.join(path, "model.safetensors"), meta)
        return
    weight_map, total = {}, 0
    per = (len(names) + shards - 1) // shards
    for s in range(shards):
        part = names[s * per:(s + 1) * per]
        fn = f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
        save_file({k: tensors[k].contiguous() for k in part}, os.path.join(path, fn), meta)
        for k in part:
            weight_map[k] = fn
            total += tensors[k].numel() * tensors[k].element_size()
    with open(os.path.join(path, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f, indent=1, sort_keys=True)


def read_safetensors(path):
    """All tensors of a checkpoint folder as numpy arrays (bfloat16 and FP8 e4m3 widened to float32)."""
    out = {}
    for fn in sorted(f for f in os.listdir(path) if f.startswith("model") and f.endswith(".safetensors")):
        raw = open(os.path.join(path, fn), "rb").read()
        n = int.from_bytes(raw[:8], "little")
        head = json.loads(raw[8:8 + n])
        head.pop("__metadata__", None)
        for name, t in head.items():
            a, b = t["data_offsets"]
            buf = raw[8 + n + a:8 + n + b]
            kind = t["dtype"]
            if kind == "BF16":
                v = (np.frombuffer(buf, "<u2").astype(np.uint32) << 16).view(np.float32)
            else:
                v = np.frombuffer(buf, {"F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U32": "<u4",
                                        "U8": "u1", "F8_E4M3": "u1"}[kind])
            out[name] = v.reshape(t["shape"]).copy()
    return out


# ---------------------------------------------------------------- tokenizer

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]

CORPUS = [
    "The quick engine reads a prompt and writes one token after another.",
    "A hybrid model mixes linear attention layers with full attention layers.",
    "Numbers such as 1, 23, 456 and 7890 are split into single digits.",
    "def add(a, b):\n    return a + b\n\nprint(add(2, 3))\n",
    "Grüße aus Köln! Ça va? Привет, мир. 你好，世界。 こんにちは 🙂🚀",
    "the cache keeps keys and values; the state keeps a running summary",
    "speculative decoding drafts tokens, then the target model verifies them",
]

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Pre-tokenizer regex of the Qwen2/Qwen3 family (a published constant of that format).
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build_tokenizer(vocab=384):
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tok = Tokenizer(models.BPE(byte_fallback=False))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - len(SPECIALS), min_frequency=1, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tok.train_from_iterator(CORPUS, trainer)
    tok.add_special_tokens(SPECIALS)
    return tok


def write_tokenizer(path):
    tok = build_tokenizer()
    tok.save(os.path.join(path, "tokenizer.json"))
    with open(os.path.join(path, "tokenizer_config.json"), "w") as f:
        json.dump({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
            "clean_up_tokenization_spaces": False, "model_max_length": 4096,
            "chat_template": CHAT_TEMPLATE,
        }, f, indent=1, sort_keys=True)
    return tok
