#!/usr/bin/env python3
"""What transformers does on the same GPU, for tests/real/gpu.py. Needs PyTorch and transformers with Qwen3.5.

  gpu_peer.py decode                     milliseconds of a decode step of a 27B hybrid in bf16, its kernels in a graph
  gpu_peer.py divergence MODEL IDS       KL of bf16 from f32 for MLX weights of 8 bits, over a list of token ids
"""
import json
import os
import sys

import torch
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

SHAPE = dict(
    vocab_size=248320, hidden_size=5120, intermediate_size=17408, num_hidden_layers=64, num_attention_heads=24,
    num_key_value_heads=4, head_dim=256, linear_num_key_heads=16, linear_num_value_heads=48, linear_key_head_dim=128,
    linear_value_head_dim=128, linear_conv_kernel_dim=4, full_attention_interval=4, hidden_act="silu",
    layer_types=[("linear_attention", "full_attention")[i % 4 == 3] for i in range(64)], tie_word_embeddings=False,
    rope_parameters={"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_interleaved": True,
                     "mrope_section": [11, 11, 10]},
)


def build(config, dtype):
    # Weights are drawn by the layers themselves; drawing them again would take as long.
    qwen.Qwen3_5PreTrainedModel._init_weights = lambda self, module: None
    torch.set_default_dtype(dtype)
    with torch.device("cuda"):
        model = qwen.Qwen3_5ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model.eval()


def milliseconds(call, times=20):
    found = []
    for _ in range(times):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    return sorted(found)[len(found) // 2]


@torch.inference_mode()
def decode():
    model = build(Qwen3_5TextConfig(**SHAPE), torch.bfloat16)
    ids = torch.randint(0, 248320, (1, 32), device="cuda")
    out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
    cache, token = out.past_key_values, ids[:, -1:].clone()
    at = torch.full((1, 1), 32, device="cuda")

    def step():
        return model(input_ids=token, position_ids=at, past_key_values=cache, use_cache=True, logits_to_keep=1).logits.argmax(-1)

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    eager = milliseconds(step, 8)
    text = f"eager {eager:.2f} ms a token ({1e3 / eager:.1f} tok/s)"
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        captured = milliseconds(graph.replay)
        text += f", its kernels in a graph {captured:.2f} ms ({1e3 / captured:.1f} tok/s)"
    except Exception as error:  # whatever keeps it from being captured is the finding
        text += f", could not be captured: {str(error).splitlines()[0][:160]}"
    print(text)


def tensors(folder):
    from safetensors.torch import load_file

    stored = load_file(os.path.join(folder, "model.safetensors"), device="cuda")
    found = {}
    for name, value in stored.items():
        name = name.removeprefix("language_model.")
        if name.endswith((".scales", ".biases")):
            continue
        base = "language_model." + name.removesuffix(".weight")
        if value.dtype == torch.uint32:
            codes = value.view(torch.uint8).reshape(value.shape[0], -1).float()
            scales, biases = (stored[f"{base}.{kind}"].float() for kind in ("scales", "biases"))
            group = codes.shape[1] // scales.shape[1]
            value = codes * scales.repeat_interleave(group, 1) + biases.repeat_interleave(group, 1)
        elif "conv1d" in name:
            value = value.float().transpose(1, 2).contiguous()
        elif "norm" in name and "linear_attn.norm" not in name:
            value = value.float() - 1  # the library adds one
        found[name] = value.float()
    return found


@torch.inference_mode()
def divergence(folder, ids):
    text = json.load(open(os.path.join(folder, "config.json")))["text_config"]
    config = Qwen3_5TextConfig(**{key: value for key, value in text.items() if key != "model_type"})
    weights, ids = tensors(folder), torch.tensor([json.load(open(ids))], device="cuda")
    rounded = {name: value.bfloat16().float() for name, value in weights.items()}
    torch.backends.cuda.matmul.allow_tf32 = False

    def logits(dtype, weights):
        model = build(config, dtype)
        missing = model.load_state_dict({k: v.to(dtype) for k, v in weights.items()}, strict=False).missing_keys
        missing = [name for name in missing if "lm_head" not in name]
        assert not missing, missing
        model.lm_head.weight = model.model.embed_tokens.weight
        return torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0].double(), -1)

    base, half = logits(torch.float32, rounded), logits(torch.bfloat16, rounded)
    each = (base.exp() * (base - half)).sum(-1)
    same = (base.argmax(-1) == half.argmax(-1)).double().mean()
    print(f"transformers in bf16 from itself in f32, the same weights: mean {each.mean():.2e}, worst {each.max():.2e}, "
          f"same first choice {same:.4f} of {len(each)} positions")


if __name__ == "__main__":
    if sys.argv[1] == "decode":
        decode()
    else:
        divergence(sys.argv[2], sys.argv[3])
