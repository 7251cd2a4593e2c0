#!/usr/bin/env python3
"""Write a Qwen3.5-style hybrid of about 0.8 B parameters with random weights, for measuring.

  tests/real/synth.py --out DIR

Needs the environment that speed.py builds (it is used by itself). Makes `hybrid-0.8b-bf16.gguf` and, by llama.cpp's own
quantiser, `hybrid-0.8b-q4_k_m.gguf`. The shape is the published one: width 1024, 24 layers of which every fourth attends,
vocabulary 248320, tied. The text it writes is noise; its speed is that of a real model.
"""
import argparse
import ctypes
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

HIDDEN, LAYERS, FFN, VOCABULARY = 1024, 24, 3584, 248320
HEADS, KV_HEADS, HEAD = 8, 2, 256
KEY_HEADS, VALUE_HEADS, STATE, TAPS = 16, 16, 128, 4


def write(path):
    import gguf
    import numpy

    rng = numpy.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "qwen35")
    writer.add_name("hybrid-0.8b")
    writer.add_block_count(LAYERS)
    writer.add_context_length(262144)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(VOCABULARY)
    writer.add_rope_freq_base(1e7)
    writer.add_rope_dimension_count(HEAD // 4)
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    writer.add_ssm_conv_kernel(TAPS)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_group_count(KEY_HEADS)
    writer.add_ssm_time_step_rank(VALUE_HEADS)
    writer.add_ssm_inner_size(VALUE_HEADS * STATE)
    writer.add_full_attention_interval(4)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"<{i}>" for i in range(VOCABULARY)])
    writer.add_token_types([gguf.TokenType.NORMAL] * VOCABULARY)
    writer.add_token_merges(["< 0"])
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)

    def matrix(name, rows, cols):
        values = rng.standard_normal((rows, cols), numpy.float32)
        values = (values * numpy.float32(cols ** -0.5)).view(numpy.uint32)
        halves = ((values + 0x7FFF + ((values >> 16) & 1)) >> 16).astype(numpy.uint16)
        writer.add_tensor(name, halves.view(numpy.uint8).reshape(rows, -1), raw_dtype=gguf.GGMLQuantizationType.BF16)

    def vector(name, values):
        writer.add_tensor(name, numpy.asarray(values, numpy.float32))

    matrix("token_embd.weight", VOCABULARY, HIDDEN)
    vector("output_norm.weight", numpy.ones(HIDDEN))
    channels = 2 * KEY_HEADS * STATE + VALUE_HEADS * STATE
    for i in range(LAYERS):
        block = f"blk.{i}"
        vector(f"{block}.attn_norm.weight", numpy.ones(HIDDEN))
        vector(f"{block}.post_attention_norm.weight", numpy.ones(HIDDEN))
        if (i + 1) % 4 == 0:
            matrix(f"{block}.attn_q.weight", 2 * HEADS * HEAD, HIDDEN)
            matrix(f"{block}.attn_k.weight", KV_HEADS * HEAD, HIDDEN)
            matrix(f"{block}.attn_v.weight", KV_HEADS * HEAD, HIDDEN)
            matrix(f"{block}.attn_output.weight", HIDDEN, HEADS * HEAD)
            vector(f"{block}.attn_q_norm.weight", numpy.ones(HEAD))
            vector(f"{block}.attn_k_norm.weight", numpy.ones(HEAD))
        else:
            matrix(f"{block}.attn_qkv.weight", channels, HIDDEN)
            matrix(f"{block}.attn_gate.weight", VALUE_HEADS * STATE, HIDDEN)
            matrix(f"{block}.ssm_alpha.weight", VALUE_HEADS, HIDDEN)
            matrix(f"{block}.ssm_beta.weight", VALUE_HEADS, HIDDEN)
            vector(f"{block}.ssm_conv1d.weight", 0.5 * rng.standard_normal((channels, TAPS)))
            vector(f"{block}.ssm_a", -rng.uniform(0.1, 4.0, VALUE_HEADS))
            vector(f"{block}.ssm_dt.bias", rng.standard_normal(VALUE_HEADS))
            vector(f"{block}.ssm_norm.weight", numpy.ones(STATE))
            matrix(f"{block}.ssm_out.weight", HIDDEN, VALUE_HEADS * STATE)
        matrix(f"{block}.ffn_gate.weight", FFN, HIDDEN)
        matrix(f"{block}.ffn_up.weight", FFN, HIDDEN)
        matrix(f"{block}.ffn_down.weight", HIDDEN, FFN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize(source, target):
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M
    params.nthread = os.cpu_count()
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)):
        raise SystemExit("llama.cpp could not quantise the file")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "forerun-real"))
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.inside:
        from speed import build_peer

        os.makedirs(args.out, exist_ok=True)
        python = build_peer(args.out)
        subprocess.run([python, "-m", "pip", "-q", "install", "gguf"], check=True)
        os.execv(python, [python, os.path.abspath(__file__), "--out", args.out, "--inside"])
    whole, small = (os.path.join(args.out, f"hybrid-0.8b-{kind}.gguf") for kind in ("bf16", "q4_k_m"))
    write(whole)
    quantize(whole, small)
    print(whole, small, sep="\n")


if __name__ == "__main__":
    main()
