#!/usr/bin/env python3
"""Write tiny random checkpoints in the published on-disk layout of each architecture.

  make_tiny.py --out DIR [--seed 0] [--shapes shapes.json] [--arch NAME ...]

A JSON file given with --shapes maps an architecture name to overrides of the built-in shape. Most families have a
builder here that spells out tensor names and shapes; those in AUTO are instantiated from the transformers classes and
saved as that library writes them. Every folder also gets draws.json, from which pack.py makes weights.json.
"""
import argparse
import json
import os

import numpy as np
import torch

from tinylib import Weights, drawn, rng_for, write_checkpoint, write_draws, write_tokenizer

VOCAB = 400  # the tokenizer has 384 ids; real models pad the embedding too


# ------------------------------------------------------------------ pieces

def layer_types(n, interval):
    return ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(n)]


def swiglu(w, p, hidden, inter):
    w.linear(f"{p}.gate_proj.weight", inter, hidden)
    w.linear(f"{p}.up_proj.weight", inter, hidden)
    w.linear(f"{p}.down_proj.weight", hidden, inter, 1.5)


def plain_attention(w, p, c, qk_norm, bias=False):
    h, d = c["hidden_size"], c["head_dim"]
    w.linear(f"{p}.q_proj.weight", c["num_attention_heads"] * d, h)
    w.linear(f"{p}.k_proj.weight", c["num_key_value_heads"] * d, h)
    w.linear(f"{p}.v_proj.weight", c["num_key_value_heads"] * d, h)
    w.linear(f"{p}.o_proj.weight", h, c["num_attention_heads"] * d)
    if qk_norm:
        w.norm(f"{p}.q_norm.weight", d)
        w.norm(f"{p}.k_norm.weight", d)


def gated_attention(w, p, c):
    """Qwen3-Next / Qwen3.5 full attention: q_proj carries [query | gate] per head."""
    h, d = c["hidden_size"], c["head_dim"]
    w.linear(f"{p}.q_proj.weight", c["num_attention_heads"] * 2 * d, h)
    w.linear(f"{p}.k_proj.weight", c["num_key_value_heads"] * d, h)
    w.linear(f"{p}.v_proj.weight", c["num_key_value_heads"] * d, h)
    w.linear(f"{p}.o_proj.weight", h, c["num_attention_heads"] * d, 2.0)
    w.norm(f"{p}.q_norm.weight", d, zero_centered=True)
    w.norm(f"{p}.k_norm.weight", d, zero_centered=True)


def delta_net(w, p, c, fused, f32_params):
    h = c["hidden_size"]
    kd = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    vd = c["linear_num_value_heads"] * c["linear_value_head_dim"]
    nv, k = c["linear_num_value_heads"], c["linear_conv_kernel_dim"]
    if fused:
        w.linear(f"{p}.in_proj_qkvz.weight", 2 * kd + 2 * vd, h)
        w.linear(f"{p}.in_proj_ba.weight", 2 * nv, h, 0.7)
    else:
        w.linear(f"{p}.in_proj_qkv.weight", 2 * kd + vd, h)
        w.linear(f"{p}.in_proj_z.weight", vd, h)
        w.linear(f"{p}.in_proj_b.weight", nv, h, 0.7)
        w.linear(f"{p}.in_proj_a.weight", nv, h, 0.7)
    w.normal(f"{p}.conv1d.weight", (2 * kd + vd, 1, k), 0.6)
    dt = "f32" if f32_params else "bf16"
    w.draw(f"{p}.A_log", (nv,), {"log_uniform": [0.1, 4.0]}, dt)
    w.draw(f"{p}.dt_bias", (nv,), {"log_expm1_uniform": [0.01, 0.25]})
    w.norm(f"{p}.norm.weight", c["linear_value_head_dim"], dtype=dt)
    w.linear(f"{p}.out_proj.weight", h, vd)


def qwen_moe(w, p, c, fused):
    h, f, e = c["hidden_size"], c["moe_intermediate_size"], c["num_experts"]
    w.linear(f"{p}.gate.weight", e, h, 2.0)
    if fused:
        w.stack(f"{p}.experts.gate_up_proj", e, 2 * f, h)
        w.stack(f"{p}.experts.down_proj", e, h, f, 1.5)
    else:
        for i in range(e):
            swiglu(w, f"{p}.experts.{i}", h, f)
    if c.get("shared_expert_intermediate_size"):
        swiglu(w, f"{p}.shared_expert", h, c["shared_expert_intermediate_size"])
        w.linear(f"{p}.shared_expert_gate.weight", 1, h)


def mtp_module(w, c, moe, fused_experts):
    h = c["hidden_size"]
    w.norm("mtp.pre_fc_norm_embedding.weight", h, zero_centered=True)
    w.norm("mtp.pre_fc_norm_hidden.weight", h, zero_centered=True)
    w.linear("mtp.fc.weight", h, 2 * h)
    p = "mtp.layers.0"
    w.norm(f"{p}.input_layernorm.weight", h, zero_centered=True)
    gated_attention(w, f"{p}.self_attn", c)
    w.norm(f"{p}.post_attention_layernorm.weight", h, zero_centered=True)
    if moe:
        qwen_moe(w, f"{p}.mlp", c, fused_experts)
    else:
        swiglu(w, f"{p}.mlp", h, c["intermediate_size"])
    w.norm("mtp.norm.weight", h, zero_centered=True)


# ---------------------------------------------------------------- builders

def build_llama(s, seed, name="llama"):
    c = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=VOCAB, hidden_size=64,
        intermediate_size=160, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        hidden_act="silu", max_position_embeddings=4096, rms_norm_eps=1e-5, tie_word_embeddings=False,
        attention_bias=False, mlp_bias=False, rope_theta=500000.0,
        rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                          original_max_position_embeddings=64),
        bos_token_id=379, eos_token_id=[379, 381], dtype="bfloat16")
    c.update(s)
    w = Weights(seed, name)
    w.normal("model.embed_tokens.weight", (c["vocab_size"], c["hidden_size"]), 1.0)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}"
        w.norm(f"{p}.input_layernorm.weight", c["hidden_size"])
        plain_attention(w, f"{p}.self_attn", c, False)
        w.norm(f"{p}.post_attention_layernorm.weight", c["hidden_size"])
        swiglu(w, f"{p}.mlp", c["hidden_size"], c["intermediate_size"])
    w.norm("model.norm.weight", c["hidden_size"])
    if not c["tie_word_embeddings"]:
        w.linear("lm_head.weight", c["vocab_size"], c["hidden_size"], 3.0)
    return c, w, 1


def build_qwen3(s, seed, name="qwen3"):
    c = dict(
        architectures=["Qwen3ForCausalLM"], model_type="qwen3", vocab_size=VOCAB, hidden_size=64,
        intermediate_size=160, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        hidden_act="silu", max_position_embeddings=4096, rms_norm_eps=1e-6, tie_word_embeddings=True,
        attention_bias=False, rope_theta=1000000.0, rope_scaling=None, use_sliding_window=False, sliding_window=None,
        max_window_layers=4, bos_token_id=379, eos_token_id=381, dtype="bfloat16")
    c.update(s)
    w = Weights(seed, name)
    w.normal("model.embed_tokens.weight", (c["vocab_size"], c["hidden_size"]), 0.5)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}"
        w.norm(f"{p}.input_layernorm.weight", c["hidden_size"])
        plain_attention(w, f"{p}.self_attn", c, True)
        w.norm(f"{p}.post_attention_layernorm.weight", c["hidden_size"])
        swiglu(w, f"{p}.mlp", c["hidden_size"], c["intermediate_size"])
    w.norm("model.norm.weight", c["hidden_size"])
    if not c["tie_word_embeddings"]:
        w.linear("lm_head.weight", c["vocab_size"], c["hidden_size"], 3.0)
    return c, w, 1


def build_qwen3_fp8(s, seed):
    """Block-scaled FP8: float8_e4m3 weights and one scale for each 128x128 block."""
    base = dict(hidden_size=192, intermediate_size=320, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, head_dim=32, tie_word_embeddings=False)
    base.update(s)
    c, w, _ = build_qwen3(base, seed, "qwen3_fp8")
    block = [128, 128]
    c["quantization_config"] = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic",
                                    weight_block_size=block, modules_to_not_convert=["lm_head"])
    out = {}
    for k, t in w.tensors.items():
        if not k.endswith("_proj.weight"):
            out[k] = t
            continue
        f = t.float()
        o, n = f.shape
        so, sn = -(-o // block[0]), -(-n // block[1])
        scale = torch.zeros(so, sn)
        q = torch.zeros(o, n)
        for a in range(so):
            for b in range(sn):
                sl = (slice(a * 128, min(o, a * 128 + 128)), slice(b * 128, min(n, b * 128 + 128)))
                sc = f[sl].abs().max() / 448.0
                scale[a, b] = sc
                q[sl] = f[sl] / sc
        out[k] = q.to(torch.float8_e4m3fn)
        out[k + "_scale_inv"] = scale.to(torch.float32)
        w.draws[k] = {**w.draws[k], "fp8_block": block[0]}
        w.draws[k + "_scale_inv"] = {"fp8_scales": block[0]}
    w.tensors = out
    return c, w, 1


def build_qwen3_moe(s, seed):
    c = dict(
        architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", vocab_size=VOCAB, hidden_size=64,
        intermediate_size=160, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=3, norm_topk_prob=True,
        decoder_sparse_step=1, mlp_only_layers=[1], num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, hidden_act="silu", max_position_embeddings=4096, rms_norm_eps=1e-6,
        tie_word_embeddings=False, attention_bias=False, rope_theta=1000000.0, rope_scaling=None,
        use_sliding_window=False, sliding_window=None, max_window_layers=4, router_aux_loss_coef=0.001,
        bos_token_id=379, eos_token_id=381, dtype="bfloat16")
    c.update(s)
    w = Weights(seed, "qwen3_moe")
    w.normal("model.embed_tokens.weight", (c["vocab_size"], c["hidden_size"]), 1.0)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}"
        w.norm(f"{p}.input_layernorm.weight", c["hidden_size"])
        plain_attention(w, f"{p}.self_attn", c, True)
        w.norm(f"{p}.post_attention_layernorm.weight", c["hidden_size"])
        if i in c["mlp_only_layers"] or (i + 1) % c["decoder_sparse_step"]:
            swiglu(w, f"{p}.mlp", c["hidden_size"], c["intermediate_size"])
        else:
            qwen_moe(w, f"{p}.mlp", c, False)
    w.norm("model.norm.weight", c["hidden_size"])
    w.linear("lm_head.weight", c["vocab_size"], c["hidden_size"], 3.0)
    return c, w, 2  # two shards and an index file


def build_qwen3_next(s, seed):
    c = dict(
        architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next", vocab_size=VOCAB, hidden_size=64,
        intermediate_size=160, moe_intermediate_size=32, shared_expert_intermediate_size=48, num_experts=6,
        num_experts_per_tok=3, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], num_hidden_layers=8,
        full_attention_interval=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        partial_rotary_factor=0.25, rope_theta=10000000, rope_scaling=None, linear_conv_kernel_dim=4,
        linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
        hidden_act="silu", max_position_embeddings=4096, rms_norm_eps=1e-6, tie_word_embeddings=False,
        attention_bias=False, router_aux_loss_coef=0.001, use_sliding_window=False,
        bos_token_id=379, eos_token_id=381, dtype="bfloat16")
    c.update(s)
    w = Weights(seed, "qwen3_next")
    w.normal("model.embed_tokens.weight", (c["vocab_size"], c["hidden_size"]), 1.0)
    for i, t in enumerate(layer_types(c["num_hidden_layers"], c["full_attention_interval"])):
        p = f"model.layers.{i}"
        w.norm(f"{p}.input_layernorm.weight", c["hidden_size"], zero_centered=True)
        if t == "linear_attention":
            delta_net(w, f"{p}.linear_attn", c, True, False)
        else:
            gated_attention(w, f"{p}.self_attn", c)
        w.norm(f"{p}.post_attention_layernorm.weight", c["hidden_size"], zero_centered=True)
        if i in c["mlp_only_layers"]:
            swiglu(w, f"{p}.mlp", c["hidden_size"], c["intermediate_size"])
        else:
            qwen_moe(w, f"{p}.mlp", c, False)
    w.norm("model.norm.weight", c["hidden_size"], zero_centered=True)
    w.linear("lm_head.weight", c["vocab_size"], c["hidden_size"], 3.0)
    mtp_module(w, c, True, False)
    return c, w, 1


def build_qwen3_5(s, seed, moe=False, name=None):
    name = name or ("qwen3_5_moe" if moe else "qwen3_5")
    s = dict(s)
    mtp_fused = s.pop("mtp_fused_experts", True)
    t = dict(
        model_type=f"qwen3_5{'_moe' if moe else ''}_text", vocab_size=VOCAB, hidden_size=64, num_hidden_layers=8,
        full_attention_interval=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32, attn_output_gate=True,
        linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2,
        linear_num_value_heads=4, mamba_ssm_dtype="float32", hidden_act="silu", max_position_embeddings=4096,
        rms_norm_eps=1e-6, tie_word_embeddings=False, attention_bias=False, attention_dropout=0.0,
        rope_parameters=dict(rope_type="default", rope_theta=10000000, partial_rotary_factor=0.25,
                             mrope_interleaved=True, mrope_section=[2, 1, 1]),
        mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False, eos_token_id=381, dtype="bfloat16")
    if moe:
        t.update(moe_intermediate_size=32, shared_expert_intermediate_size=48, num_experts=6,
                 num_experts_per_tok=3, router_aux_loss_coef=0.001, output_router_logits=False)
    else:
        t.update(intermediate_size=128)
    t.update(s)
    t["layer_types"] = layer_types(t["num_hidden_layers"], t["full_attention_interval"])
    c = dict(
        architectures=["Qwen3_5MoeForConditionalGeneration" if moe else "Qwen3_5ForConditionalGeneration"],
        model_type="qwen3_5_moe" if moe else "qwen3_5", text_config=t,
        vision_config=dict(model_type=f"qwen3_5{'_moe' if moe else ''}", depth=1, hidden_size=16, num_heads=2,
                           intermediate_size=16, patch_size=4, out_hidden_size=t["hidden_size"]),
        image_token_id=392, video_token_id=393, vision_start_token_id=394, vision_end_token_id=395,
        tie_word_embeddings=t["tie_word_embeddings"])
    w = Weights(seed, name)
    L = "model.language_model"
    w.normal(f"{L}.embed_tokens.weight", (t["vocab_size"], t["hidden_size"]), 1.0)
    for i, kind in enumerate(t["layer_types"]):
        p = f"{L}.layers.{i}"
        w.norm(f"{p}.input_layernorm.weight", t["hidden_size"], zero_centered=True)
        if kind == "linear_attention":
            delta_net(w, f"{p}.linear_attn", t, False, True)
        else:
            gated_attention(w, f"{p}.self_attn", t)
        w.norm(f"{p}.post_attention_layernorm.weight", t["hidden_size"], zero_centered=True)
        if moe:
            qwen_moe(w, f"{p}.mlp", t, True)
        else:
            swiglu(w, f"{p}.mlp", t["hidden_size"], t["intermediate_size"])
    w.norm(f"{L}.norm.weight", t["hidden_size"], zero_centered=True)
    if not t["tie_word_embeddings"]:
        w.linear("lm_head.weight", t["vocab_size"], t["hidden_size"], 3.0)
    if t["mtp_num_hidden_layers"]:
        mtp_module(w, t, moe, mtp_fused)
    # A text-only engine has to skip the vision tower; one stand-in tensor for it.
    w.normal("model.visual.patch_embed.proj.weight", (16, 3, 2, 4, 4), 0.1)
    return c, w, 1


GEMMA_ROPE = dict(
    sliding_attention=dict(rope_type="default", rope_theta=10000.0),
    full_attention=dict(rope_type="proportional", rope_theta=1000000.0, partial_rotary_factor=0.25))


def gemma4_text_defaults():
    return dict(
        model_type="gemma4_text", vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=6,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, global_head_dim=32, num_global_key_value_heads=None,
        hidden_activation="gelu_pytorch_tanh", max_position_embeddings=4096, rms_norm_eps=1e-6,
        tie_word_embeddings=True, rope_parameters=GEMMA_ROPE, attention_bias=False, attention_dropout=0.0,
        sliding_window=16, final_logit_softcapping=30.0, use_bidirectional_attention=None,
        vocab_size_per_layer_input=VOCAB, hidden_size_per_layer_input=0, attention_k_eq_v=False,
        num_kv_shared_layers=0, enable_moe_block=False, use_double_wide_mlp=False, num_experts=None,
        top_k_experts=None, moe_intermediate_size=None, bos_token_id=379, eos_token_id=381, pad_token_id=0,
        dtype="bfloat16")


def gemma4_layer(w, p, t, i, q_only=False):
    h = t["hidden_size"]
    full = t["layer_types"][i] == "full_attention"
    d = t["global_head_dim"] if full else t["head_dim"]
    alt = t["attention_k_eq_v"] and full
    kvh = t["num_global_key_value_heads"] if (alt and t["num_global_key_value_heads"]) else t["num_key_value_heads"]
    first_shared = t["num_hidden_layers"] - t["num_kv_shared_layers"]
    shared = i >= first_shared
    for n in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
              "post_feedforward_layernorm"):
        w.norm(f"{p}.{n}.weight", h)
    a = f"{p}.self_attn"
    w.linear(f"{a}.q_proj.weight", t["num_attention_heads"] * d, h)
    w.normal(f"{a}.q_norm.weight", (d,), 0.1, 0.7)
    if not q_only:
        # Published files keep k/v tensors of KV-sharing layers although nothing reads them.
        w.linear(f"{a}.k_proj.weight", kvh * d, h)
        if not alt:
            w.linear(f"{a}.v_proj.weight", kvh * d, h)
        w.normal(f"{a}.k_norm.weight", (d,), 0.1, 0.7)
    w.linear(f"{a}.o_proj.weight", h, t["num_attention_heads"] * d)
    inter = t["intermediate_size"] * (2 if t["use_double_wide_mlp"] and shared else 1)
    swiglu(w, f"{p}.mlp", h, inter)
    w.draw(f"{p}.layer_scalar", (1,), {"uniform": [0.6, 1.1]})
    if t["hidden_size_per_layer_input"]:
        q = t["hidden_size_per_layer_input"]
        w.linear(f"{p}.per_layer_input_gate.weight", q, h)
        w.linear(f"{p}.per_layer_projection.weight", h, q)
        w.norm(f"{p}.post_per_layer_input_norm.weight", h)
    if t["enable_moe_block"]:
        e, f = t["num_experts"], t["moe_intermediate_size"]
        w.linear(f"{p}.router.proj.weight", e, h, 8.0)
        w.norm(f"{p}.router.scale", h)
        w.norm(f"{p}.router.per_expert_scale", e)
        w.stack(f"{p}.experts.gate_up_proj", e, 2 * f, h)
        w.stack(f"{p}.experts.down_proj", e, h, f)
        for n in ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"):
            w.norm(f"{p}.{n}.weight", h)


def build_gemma4(s, seed, variant):
    t = gemma4_text_defaults()
    if variant == "e":       # small on-device style: per-layer inputs, shared KV, wide MLP in sharing layers
        t.update(num_hidden_layers=6, hidden_size_per_layer_input=32, num_kv_shared_layers=2,
                 use_double_wide_mlp=True,
                 layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention",
                              "sliding_attention", "full_attention"])
    elif variant == "dense":  # large dense style: keys double as values in global layers
        t.update(num_hidden_layers=6, attention_k_eq_v=True, num_global_key_value_heads=1,
                 layer_types=["sliding_attention"] * 5 + ["full_attention"])
    elif variant == "moe":
        t.update(num_hidden_layers=6, attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True,
                 num_experts=8, top_k_experts=3, moe_intermediate_size=32,
                 layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2)
    t.update(s)
    c = dict(architectures=["Gemma4ForConditionalGeneration"], model_type="gemma4", text_config=t,
             vision_config=None, audio_config=None, boi_token_id=390, eoi_token_id=391, image_token_id=392,
             video_token_id=393, boa_token_id=394, eoa_token_index=395, audio_token_id=396,
             tie_word_embeddings=True, dtype="bfloat16")
    w = Weights(seed, f"gemma4_{variant}")
    L = "model.language_model"
    h = t["hidden_size"]
    w.normal(f"{L}.embed_tokens.weight", (t["vocab_size"], h), 1.5 / np.sqrt(h))
    for i in range(t["num_hidden_layers"]):
        gemma4_layer(w, f"{L}.layers.{i}", t, i)
    w.norm(f"{L}.norm.weight", h)
    if t["hidden_size_per_layer_input"]:
        q = t["hidden_size_per_layer_input"]
        n = t["num_hidden_layers"] * q
        w.normal(f"{L}.embed_tokens_per_layer.weight", (t["vocab_size_per_layer_input"], n), 1.0 / np.sqrt(q))
        w.linear(f"{L}.per_layer_model_projection.weight", n, h, np.sqrt(h))
        w.norm(f"{L}.per_layer_projection_norm.weight", q)
    return c, w, 1


def build_gemma4_assistant(s, seed):
    """Drafter that reads the KV of the 'gemma4_dense' target of the same seed and shapes."""
    s = dict(s)
    target = dict(s.pop("target", {}))
    ordered = s.pop("use_ordered_embeddings", True)
    cent, topk = s.pop("num_centroids", 20), s.pop("centroid_intermediate_top_k", 6)
    tt = gemma4_text_defaults()
    tt.update(attention_k_eq_v=True, num_global_key_value_heads=1)
    tt.update(target)
    t = gemma4_text_defaults()
    for k in ("head_dim", "global_head_dim", "num_key_value_heads", "num_global_key_value_heads", "attention_k_eq_v",
              "sliding_window", "rope_parameters", "vocab_size"):
        t[k] = tt[k]
    t.update(hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
             layer_types=["sliding_attention"] * 3 + ["full_attention"], num_kv_shared_layers=4,
             vocab_size_per_layer_input=0, final_logit_softcapping=None)
    t.update(s)
    t["num_kv_shared_layers"] = t["num_hidden_layers"]
    bh = tt["hidden_size"]
    c = dict(architectures=["Gemma4AssistantForCausalLM"], model_type="gemma4_assistant", text_config=t,
             backbone_hidden_size=bh, use_ordered_embeddings=ordered, num_centroids=cent,
             centroid_intermediate_top_k=topk, tie_word_embeddings=True, dtype="bfloat16")
    w = Weights(seed, "gemma4_assistant")
    h, v = t["hidden_size"], t["vocab_size"]
    w.normal("model.embed_tokens.weight", (v, h), 3.0 / np.sqrt(h))
    for i in range(t["num_hidden_layers"]):
        gemma4_layer(w, f"model.layers.{i}", t, i, q_only=True)
    w.norm("model.norm.weight", h)
    w.linear("pre_projection.weight", h, 2 * bh)
    w.linear("post_projection.weight", bh, h)
    if ordered:
        w.linear("masked_embedding.centroids.weight", cent, h, 2.0)
        order = rng_for(seed, "gemma4_assistant/order").permutation(v).astype(np.int64)
        w.tensors["masked_embedding.token_ordering"] = torch.from_numpy(order)
    return c, w, 1


BUILD = {
    "llama": build_llama,
    "qwen3": build_qwen3,
    "qwen3_moe": build_qwen3_moe,
    "qwen3_fp8": build_qwen3_fp8,
    "qwen3_next": build_qwen3_next,
    "qwen3_5": lambda s, seed: build_qwen3_5(s, seed, False),
    "qwen3_5_moe": lambda s, seed: build_qwen3_5(s, seed, True),
    "gemma4_e": lambda s, seed: build_gemma4(s, seed, "e"),
    "gemma4_dense": lambda s, seed: build_gemma4(s, seed, "dense"),
    "gemma4_moe": lambda s, seed: build_gemma4(s, seed, "moe"),
    "gemma4_assistant": build_gemma4_assistant,
    # a wider model whose rows divide by 256, for block formats that need that
    "qwen3_5_wide": lambda s, seed: build_qwen3_5(dict(dict(
        hidden_size=256, num_hidden_layers=4, intermediate_size=256, num_attention_heads=4, num_key_value_heads=1,
        head_dim=64, linear_key_head_dim=64, linear_value_head_dim=64, linear_num_key_heads=2,
        linear_num_value_heads=4, mtp_num_hidden_layers=0, rope_parameters=dict(
            rope_type="default", rope_theta=10000000, partial_rotary_factor=0.25, mrope_interleaved=True,
            mrope_section=[3, 3, 2])), **s), seed, False, "qwen3_5_wide"),
}

# ------------------------------------------------- from transformers classes

_B = dict(vocab_size=VOCAB, hidden_size=64, max_position_embeddings=4096, rms_norm_eps=1e-6, bos_token_id=379,
          eos_token_id=381, pad_token_id=0, tie_word_embeddings=False)

AUTO = {
    "gemma3": dict(_B, model_type="gemma3_text", intermediate_size=112, num_hidden_layers=6, num_attention_heads=4,
                   num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=24, sliding_window=12,
                   layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
                   rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=1000000.0, factor=8.0),
                                        sliding_attention=dict(rope_type="default", rope_theta=10000.0)),
                   tie_word_embeddings=True),
    "qwen3_yarn": dict(_B, model_type="qwen3", intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
                       num_key_value_heads=2, head_dim=16, max_position_embeddings=256, tie_word_embeddings=True,
                       rope_parameters=dict(rope_type="yarn", rope_theta=1000000.0, factor=4.0,
                                            original_max_position_embeddings=64)),
    "lfm2": dict(_B, model_type="lfm2", intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
                 num_key_value_heads=2, conv_L_cache=3, conv_bias=False, block_auto_adjust_ff_dim=False,
                 layer_types=["conv", "conv", "full_attention", "conv"], norm_eps=1e-5, rope_theta=1000000.0,
                 tie_word_embeddings=True),
    "olmo_hybrid": dict(_B, model_type="olmo_hybrid", intermediate_size=128, num_hidden_layers=4,
                        num_attention_heads=4, num_key_value_heads=4,
                        layer_types=["linear_attention"] * 3 + ["full_attention"], linear_num_key_heads=4,
                        linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
                        linear_conv_kernel_dim=4, linear_allow_neg_eigval=True),
    "gemma3n": dict(_B, model_type="gemma3n_text", intermediate_size=[96] * 5, num_hidden_layers=5,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size_per_layer_input=VOCAB,
                    hidden_size_per_layer_input=16, laurel_rank=8, altup_num_inputs=3, altup_active_idx=0,
                    num_kv_shared_layers=2, sliding_window=16, final_logit_softcapping=30.0, tie_word_embeddings=True,
                    activation_sparsity_pattern=[0.9, 0.9, 0.0, 0.0, 0.0], rope_theta=1000000.0,
                    layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention",
                                 "full_attention"]),
    "lfm2_moe": dict(_B, model_type="lfm2_moe", intermediate_size=128, moe_intermediate_size=32, num_hidden_layers=4,
                     num_attention_heads=4, num_key_value_heads=2, conv_L_cache=3, conv_bias=False,
                     layer_types=["conv", "conv", "full_attention", "conv"], norm_eps=1e-5, num_dense_layers=1,
                     num_experts=8, num_experts_per_tok=3, use_expert_bias=True, norm_topk_prob=True,
                     routed_scaling_factor=1.0, rope_theta=1000000.0, tie_word_embeddings=True),
    "granitemoehybrid": dict(_B, model_type="granitemoehybrid", intermediate_size=32, shared_intermediate_size=64,
                             num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, num_local_experts=4,
                             num_experts_per_tok=2, layer_types=["mamba", "mamba", "attention", "mamba"],
                             mamba_n_heads=8, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=16, mamba_d_conv=4,
                             mamba_expand=2, mamba_chunk_size=32, position_embedding_type="nope",
                             embedding_multiplier=2.0, residual_multiplier=0.6, logits_scaling=2.0,
                             attention_multiplier=0.25),
    "nemotron_h": dict(_B, model_type="nemotron_h", intermediate_size=96, num_hidden_layers=6,
                       hybrid_override_pattern="M-M*-E", num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                       mamba_num_heads=8, mamba_head_dim=16, n_groups=2, ssm_state_size=16, conv_kernel=4,
                       chunk_size=32, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=32,
                       moe_shared_expert_intermediate_size=32, n_group=1, topk_group=1, norm_topk_prob=True,
                       routed_scaling_factor=1.5, layer_norm_epsilon=1e-5),
    "deepseek_v4": dict(_B, model_type="deepseek_v4", moe_intermediate_size=32, num_hidden_layers=4,
                        num_attention_heads=4, num_key_value_heads=1, head_dim=32, q_lora_rank=32, qk_rope_head_dim=8,
                        num_experts_per_tok=2, n_routed_experts=8, n_shared_experts=1, sliding_window=16, o_groups=2,
                        o_lora_rank=16, index_n_heads=4, index_head_dim=16, index_topk=6, hc_mult=2,
                        hc_sinkhorn_iters=4, mlp_layer_types=["hash_moe", "moe", "moe", "moe"],
                        compress_rates=dict(compressed_sparse_attention=4, heavily_compressed_attention=16),
                        layer_types=["sliding_attention", "heavily_compressed_attention",
                                     "compressed_sparse_attention", "compressed_sparse_attention"]),
    "qwen4_exp": dict(_B, model_type="qwen4_exp_text", num_hidden_layers=4, num_attention_heads=4,
                      num_key_value_heads=2, head_dim=32, linear_key_head_dim=16, linear_value_head_dim=16,
                      linear_num_key_heads=2, linear_num_value_heads=4, moe_intermediate_size=32,
                      shared_expert_intermediate_size=32, num_experts=8, num_experts_per_tok=3, hc_count=2,
                      hc_lowrank=8, ple_layer_ids=[2], ple_embed_dim=64, ngram_size=3, heads_per_ngram=2,
                      ngram_vocab_size_base=200, make_ngram_vocab_size_divisible_by=8, split_ngram_parts=2,
                      indexer_n_heads=2, indexer_kv_heads=1, indexer_head_dim=16, indexer_budget=16,
                      indexer_compress_ratio=4,
                      rope_parameters=dict(rope_type="default", rope_theta=10000000, partial_rotary_factor=0.25,
                                           mrope_interleaved=True, mrope_section=[2, 1, 1])),
}


def draw_for(model, name, p):
    """How the parameter `name` of shape `p` is drawn."""
    leaf = name.split(".")[-1]
    if leaf == "A_log":
        return {"log_uniform": [0.5, 8.0]}
    if leaf == "dt_bias":
        return {"log_expm1_uniform": [0.01, 0.3]}
    if (leaf == "D" or "norm" in name) and p.ndim == 1:
        return {"normal": [p.float().mean().item(), 0.15]}
    if leaf in ("expert_bias", "e_score_correction_bias"):
        return {"normal": [0.0, 0.05]}
    if p.ndim <= 1:
        return {"normal": [0.0, 0.1]}
    if "embed_tokens" in name:
        return {"linear": 1.5} if "gemma" in model else {"normal": [0.0, 1.0]}
    if p.ndim == 3 and p.shape[1] == 1:
        return {"normal": [0.0, 0.6]}
    return {"linear": 3.0 if name == "lm_head.weight" else 2.0 if "down_proj" in name or "gate.weight" in name else 1.0}


def randomize_from_classes(name, spec, seed, out):
    """Instantiate the library model, replace every parameter by a seeded draw, save."""
    from transformers import AutoConfig, AutoModelForCausalLM

    spec = dict(spec)
    cfg = AutoConfig.for_model(spec.pop("model_type"), **spec)
    cfg.dtype = "bfloat16"
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(cfg, dtype=torch.float32)
    draws = {}
    with torch.no_grad():
        for n, p in list(model.named_parameters()) + list(model.named_buffers()):
            if not p.is_floating_point() or "rotary" in n or "inv_freq" in n or n.endswith("embed_scale"):
                continue
            if p.numel() == 1 and "scal" in n.split(".")[-1]:
                continue
            draws[n] = draw_for(name, n, p)
            v = drawn(rng_for(seed, f"{name}/{n}"), draws[n], tuple(p.shape))
            p.copy_(torch.from_numpy(v.astype(np.float32)).to(torch.bfloat16).float())
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(out, safe_serialization=True)
    write_draws(out, name, seed, draws)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", required=True)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--shapes", help="JSON: architecture -> overrides")
    ap.add_argument("--arch", nargs="*", help="default: all")
    a = ap.parse_args()
    over = json.load(open(a.shapes)) if a.shapes else {}
    names = a.arch or list(BUILD) + list(AUTO)
    for name in names:
        out = os.path.join(a.out, name)
        s = over.get(name, {})
        if name in BUILD:
            config, w, shards = BUILD[name](s, a.seed)
            gen = {"eos_token_id": 381, "bos_token_id": 379, "do_sample": False}
            write_checkpoint(out, config, w.tensors, shards, gen)
            write_draws(out, w.arch, a.seed, w.draws)
            n = sum(t.numel() for t in w.tensors.values())
        else:
            randomize_from_classes(name, {**AUTO[name], **s}, a.seed, out)
            n = -1
        write_tokenizer(out)
        size = sum(os.path.getsize(os.path.join(out, f)) for f in os.listdir(out))
        print(f"{name}: {n} weights, {size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
