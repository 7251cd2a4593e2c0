#!/usr/bin/env python3
"""Run transformers in float32 on the CPU over tiny checkpoints and record what it computes.

  golden.py DIR [DIR ...] [--prompt-len 70] [--new 32] [--seed 0]

Each DIR (one checkpoint) gets golden.safetensors and golden.json. See README.md for the
meaning of every tensor.
"""
import argparse
import json
import os
import shutil
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from ref_gemma4 import Gemma4, Gemma4Drafter
from ref_qwen import QwenHybrid, load_tensors
from tinylib import rng_for

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True, warn_only=True)
HYBRID_QWEN = ("qwen3_next", "qwen3_5", "qwen3_5_moe")


def read_config(path):
    return json.load(open(os.path.join(path, "config.json")))


def dequant_fp8(path):
    """A float32 twin of a block-FP8 checkpoint: w = q * scale of its 128x128 block."""
    tmp = tempfile.mkdtemp()
    c = read_config(path)
    bo, bi = c.pop("quantization_config")["weight_block_size"]
    json.dump(c, open(os.path.join(tmp, "config.json"), "w"))
    src, out = load_tensors(path), {}
    for k, t in src.items():
        if k.endswith("_scale_inv"):
            continue
        s = src.get(k + "_scale_inv")
        if s is not None:
            s = s.repeat_interleave(bo, 0)[: t.shape[0]].repeat_interleave(bi, 1)[:, : t.shape[1]]
            t = t * s
        out[k] = t.contiguous()
    save_file(out, os.path.join(tmp, "model.safetensors"), {"format": "pt"})
    return tmp


def load_model(path):
    from transformers import AutoModelForCausalLM

    c = read_config(path)
    twin = dequant_fp8(path) if c.get("quantization_config", {}).get("quant_method") == "fp8" else None
    model, info = AutoModelForCausalLM.from_pretrained(
        twin or path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    if twin:
        shutil.rmtree(twin)
    bad = {k: sorted(v) for k, v in info.items() if v and k != "error_msgs"}
    model.eval()
    return model, bad


def f32(t):
    return t.detach().to(torch.float32).contiguous().clone()


def cache_tensors(cache, n):
    """Keys/values as cached (after norm and rope) and recurrent states, per layer."""
    out = {}
    for i in range(n):
        if i >= len(cache.layers):
            break
        layer = cache.layers[i]
        for label, attr in (("conv", "conv_states"), ("recurrent", "recurrent_states")):
            d = getattr(layer, attr, None)
            if isinstance(d, dict):
                for j, t in d.items():
                    if t is not None:
                        out[f"{i}.{label}" + (f".{j}" if len(d) > 1 else "")] = f32(t[0])
        k = getattr(layer, "keys", None)
        if k is not None and k.numel():
            out[f"{i}.k"], out[f"{i}.v"] = f32(k[0]), f32(layer.values[0])
    return out


@torch.no_grad()
def run(model, ids, new):
    decoder = model.get_decoder()
    layers = decoder.layers
    rec, hooks = {}, []

    def keep(name):
        def hook(_m, _a, out):
            rec[name] = f32((out[0] if isinstance(out, tuple) else out)[0])
        return hook

    def keep_router(name):
        def hook(_m, _a, out):
            if isinstance(out, tuple) and len(out) == 3:
                rec[f"{name}.scores"], rec[f"{name}.weights"] = f32(out[0]), f32(out[1])
                rec[f"{name}.indices"] = out[2].to(torch.int32).contiguous().clone()
        return hook

    for i, layer in enumerate(layers):
        hooks.append(layer.register_forward_hook(keep(f"hidden.{i}")))
        for n, m in layer.named_modules():
            if type(m).__name__.endswith("Router"):
                hooks.append(m.register_forward_hook(keep_router(f"router.{i}")))
    emb = model.get_input_embeddings()
    hooks.append(emb.register_forward_hook(keep("hidden.embed")))
    out = model(input_ids=ids[None], use_cache=True)
    for h in hooks:
        h.remove()
    rec["logits"] = f32(out.logits[0])
    rec["hidden.final"] = f32(decoder(input_ids=ids[None], use_cache=False).last_hidden_state[0])
    cache = out.past_key_values
    rec.update({f"state.{k}": v for k, v in cache_tensors(cache, len(layers)).items()})
    got, rows = [], []
    step = out.logits[0, -1]
    for i in range(new):
        rows.append(f32(step))
        got.append(int(step.argmax()))
        if i + 1 < new:
            o = model(input_ids=torch.tensor([[got[-1]]]), past_key_values=cache, use_cache=True)
            step = o.logits[0, -1]
    rec["greedy.ids"] = torch.tensor(got, dtype=torch.int32)
    rec["greedy.logits"] = torch.stack(rows)
    rec.update({f"state_end.{k}": v for k, v in cache_tensors(cache, len(layers)).items()
                if k.split(".")[1] in ("conv", "recurrent")})
    return rec


@torch.no_grad()
def consistency(model, ids, rec):
    """Same numbers from other execution paths of the library."""
    whole = torch.cat([ids, rec["greedy.ids"].long()])[:-1]
    full = model(input_ids=whole[None], use_cache=False).logits[0]
    d1 = (full[len(ids) - 1:] - rec["greedy.logits"]).abs().max().item()
    cut = len(ids) // 2 + 3
    a = model(input_ids=ids[None, :cut], use_cache=True)
    b = model(input_ids=ids[None, cut:], past_key_values=a.past_key_values, use_cache=True)
    d2 = (torch.cat([a.logits[0], b.logits[0]]) - rec["logits"]).abs().max().item()
    top = rec["greedy.logits"].topk(2, -1).values
    out = dict(step_vs_whole_max_abs=d1, two_part_prefill_max_abs=d2,
               min_greedy_margin=(top[:, 0] - top[:, 1]).min().item(),
               logits_std=rec["logits"].std().item(), logits_abs_max=rec["logits"].abs().max().item())
    margins = []
    for k in [k for k in rec if k.startswith("router.") and k.endswith(".scores")]:
        kk = rec[k.replace("scores", "indices")].shape[-1]
        s = rec[k].topk(kk + 1, -1).values
        margins.append((s[:, kk - 1] - s[:, kk]).min().item())
    if margins:
        out["min_router_margin"] = min(margins)
    return out


@torch.no_grad()
def qwen_extras(path, model, ids, rec, steps):
    """Independent reference over the same file, then the MTP goldens."""
    ref = QwenHybrid(path)
    lay, final, _ = ref.trunk(ids)
    checks = dict(ref_trunk_hidden_max_abs=max((lay[i] - rec[f"hidden.{i}"]).abs().max().item()
                                               for i in range(len(lay))),
                  ref_final_max_abs=(final - rec["hidden.final"]).abs().max().item())
    exact = ref.double()
    checks["library_vs_float64_logits_max_abs"] = (
        exact.head(exact.trunk(ids)[1]) - rec["logits"].double()).abs().max().item()
    if "mtp.fc.weight" not in ref.w:
        return {}, checks
    nxt = int(rec["greedy.ids"][0])
    (hid, logits), drafts, rows = ref.draft(ids, rec["hidden.final"], nxt, steps)
    checks["mtp_vs_library_layer_max_abs"] = library_mtp(path, model, ref, ids, rec["hidden.final"], nxt, logits)
    # positions may start anywhere as long as they are consecutive
    alt, _ = ref.mtp(torch.cat([ids[1:], torch.tensor([nxt])]), rec["hidden.final"], torch.arange(len(ids)) + 1, {})
    checks["mtp_position_shift_max_abs"] = (alt - hid).abs().max().item()
    return {"mtp.prefill.ids": torch.cat([ids[1:], torch.tensor([nxt])]).to(torch.int32),
            "mtp.prefill.hidden": f32(hid), "mtp.prefill.logits": f32(logits),
            "mtp.draft.ids": drafts.to(torch.int32), "mtp.draft.logits": f32(rows)}, checks


def library_mtp(path, model, ref, ids, hidden, nxt, expect):
    """The same MTP pass through the library's generic MTP layer and its own decoder layer class."""
    import copy

    from transformers.cache_utils import DynamicCache
    from transformers.modeling_layers import MtpLayer

    dec = model.get_decoder()
    cfg = copy.deepcopy(dec.config)
    cfg.num_hidden_layers, cfg.layer_types = 1, ["full_attention"]
    full = next(l for l, t in zip(dec.layers, dec.config.layer_types) if t == "full_attention")
    layer = MtpLayer(cfg, type(full), type(dec.norm), 0).float().eval()
    sd = {}
    for k, t in ref.w.items():
        if not k.startswith("mtp."):
            continue
        k = k[4:]
        k = {"fc.weight": "eh_proj.weight", "pre_fc_norm_embedding.weight": "enorm.weight",
             "pre_fc_norm_hidden.weight": "hnorm.weight", "norm.weight": "post_norm.weight"}.get(
                 k, k.replace("layers.0.", "mtp_block."))
        sd[k] = t
    n = cfg.num_experts if hasattr(cfg, "num_experts") else 0
    if n and "mtp_block.mlp.experts.0.gate_proj.weight" in sd:
        pop = lambda e, w: sd.pop(f"mtp_block.mlp.experts.{e}.{w}_proj.weight")
        sd["mtp_block.mlp.experts.gate_up_proj"] = torch.stack(
            [torch.cat([pop(e, "gate"), pop(e, "up")]) for e in range(n)])
        sd["mtp_block.mlp.experts.down_proj"] = torch.stack([pop(e, "down") for e in range(n)])
    layer.load_state_dict(sd, strict=True)
    T = len(ids)
    x = torch.cat([ids[1:], torch.tensor([nxt])])[None]
    pos = torch.arange(T)[None]
    emb = model.get_input_embeddings()(x)
    pe = dec.rotary_emb(emb, pos[None].expand(3, -1, -1) if "qwen3_5" in cfg.model_type else pos)
    mask = torch.full((T, T), float("-inf")).triu(1)[None, None]
    out = layer(emb, hidden[None], pe, mask, pos, None)
    return (model.lm_head(out)[0] - expect).abs().max().item()


@torch.no_grad()
def gemma_checks(path, ids, rec):
    ref = Gemma4(path)
    lay, final, _ = ref.trunk(ids)
    return dict(ref_trunk_hidden_max_abs=max((lay[i] - rec[f"hidden.{i}"]).abs().max().item()
                                             for i in range(len(lay))),
                ref_logits_max_abs=(ref.logits(final) - rec["logits"]).abs().max().item())


@torch.no_grad()
def assistant_golden(path, target_path, ids, steps):
    """Gemma 4 drafter: reads the target's KV, one fixed position, feeds its own projected state back."""
    from transformers import AutoModelForCausalLM

    target, _ = load_model(target_path)
    tt = target.get_decoder()
    drafter, info = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager",
                                                         output_loading_info=True)
    drafter.eval()
    o = target(input_ids=ids[None], use_cache=True)
    nxt = int(o.logits[0, -1].argmax())
    from collections import UserDict
    kv = UserDict()
    d = tt(input_ids=ids[None], use_cache=False, shared_kv_states=kv, return_shared_kv_states=True)
    hidden = d.last_hidden_state[:, -1:]
    rec = {"input_ids": ids.to(torch.int32), "target.next_id": torch.tensor([nxt], dtype=torch.int32),
           "target.hidden": f32(hidden[0])}
    for name, (k, v) in kv.items():
        rec[f"target.{name}.k"], rec[f"target.{name}.v"] = f32(k[0]), f32(v[0])
    seed_hidden = hidden
    # the library drafts at the position of the token just sampled; two servers use the one before it
    for label, at in (("draft", len(ids)), ("draft_prev_position", len(ids) - 1)):
        tok, pos, hidden = torch.tensor([[nxt]]), torch.tensor([[at]]), seed_hidden
        drafts, rows, hs = [], [], []
        for _ in range(steps):
            x = torch.cat([target.get_input_embeddings()(tok), hidden], -1)
            out = drafter(inputs_embeds=x, position_ids=pos, shared_kv_states=dict(kv), use_cache=False)
            rows.append(f32(out.logits[0, -1]))
            hs.append(f32(out.last_hidden_state[0, -1]))
            tok, hidden = out.logits.argmax(-1), out.last_hidden_state
            drafts.append(int(tok))
        rec[f"mtp.{label}.ids"] = torch.tensor(drafts, dtype=torch.int32)
        rec[f"mtp.{label}.logits"], rec[f"mtp.{label}.hidden"] = torch.stack(rows), torch.stack(hs)
    # the same chain through the plain reference
    tgt, ref = Gemma4(target_path), Gemma4Drafter(path)
    _, final, tkv = tgt.trunk(ids)
    window, T = ref.c["sliding_window"], len(ids)
    allkv = {}
    for kind, (k, v) in tkv.items():
        # the library's drafter mask shows a sliding layer the last window + 1 rows whatever the position
        first = max(0, T - 1 - window) if kind == "sliding_attention" else 0
        allkv[kind] = (k[first:], v[first:], torch.full((T - first,), T - 1))
    tok, h, worst = nxt, final[-1:], 0.0
    for s in range(steps):
        lg, h = ref.step(tgt.embed(torch.tensor([tok])), h, T, allkv)
        worst = max(worst, (lg[0] - rec["mtp.draft.logits"][s]).abs().max().item())
        tok = int(lg.argmax())
    bad = {k: sorted(v) for k, v in info.items() if v and k != "error_msgs"}
    return rec, bad, dict(ref_draft_logits_max_abs=worst)


def write(path, rec, meta):
    import safetensors
    import transformers

    rec = {k: v for k, v in rec.items() if not k.endswith(".scores")}
    save_file({k: v.contiguous() for k, v in rec.items()}, os.path.join(path, "golden.safetensors"))
    meta["versions"] = dict(torch=torch.__version__, transformers=transformers.__version__,
                            safetensors=safetensors.__version__, numpy=np.__version__)
    json.dump(meta, open(os.path.join(path, "golden.json"), "w"), indent=1, sort_keys=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("dirs", nargs="+")
    ap.add_argument("--prompt-len", type=int, default=70)
    ap.add_argument("--new", type=int, default=32)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--draft", type=int, default=4)
    a = ap.parse_args()
    for path in a.dirs:
        path = path.rstrip("/")
        name = os.path.basename(path)
        ids = torch.from_numpy(rng_for(a.seed, f"prompt/{name}").integers(0, 379, a.prompt_len).astype(np.int64))
        c = read_config(path)
        meta = dict(name=name, model_type=c["model_type"], seed=a.seed, prompt_len=a.prompt_len, new_tokens=a.new,
                    compute="float32, eager attention, CPU")
        if c["model_type"] == "gemma4_assistant":
            target = os.path.join(os.path.dirname(path), "gemma4_dense")
            rec, bad, meta["checks"] = assistant_golden(path, target, ids, a.draft)
            meta["target"] = "gemma4_dense"
        else:
            model, bad = load_model(path)
            rec = {"input_ids": ids.to(torch.int32)}
            rec.update(run(model, ids, a.new))
            meta["checks"] = consistency(model, ids, rec)
            if c["model_type"] in HYBRID_QWEN:
                more, checks = qwen_extras(path, model, ids, rec, a.draft)
                rec.update(more)
                meta["checks"].update(checks)
            elif c["model_type"] == "gemma4":
                meta["checks"].update(gemma_checks(path, ids, rec))
        meta["loading_notes"] = {k: v[:6] for k, v in bad.items()}
        write(path, rec, meta)
        size = os.path.getsize(os.path.join(path, "golden.safetensors")) / 1024
        notes = json.dumps(meta["loading_notes"])[:300]
        print(f"{name}: {size:.0f} KiB", json.dumps(meta.get("checks", {})), "notes", notes)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
