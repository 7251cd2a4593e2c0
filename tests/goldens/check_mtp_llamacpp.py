#!/usr/bin/env python3
"""Run llama.cpp's MTP graph on a float32 GGUF of a tiny Qwen checkpoint and write what it computes.

  check_mtp_llamacpp.py CHECKPOINT_DIR --out FILE [--draft 4]     (llama-cpp-python environment)
  check_mtp_llamacpp.py CHECKPOINT_DIR --compare FILE             (torch environment)

The first form feeds rows (h_p, x_{p+1}) as the MTP head is trained, without llama.cpp's extra (0, x_0) row,
and then again with it, to show what that row changes.
"""
import argparse
import ctypes
import json
import os
import tempfile

import numpy as np

from tinylib import rng_for


def run(path, out, seed, T, steps):
    import llama_cpp as L
    from safetensors.numpy import load_file, save_file

    from make_gguf import write_gguf

    lib = ctypes.CDLL(os.path.join(os.path.dirname(L.__file__), "lib", "libllama.so"))
    setn = lib["_Z26llama_set_embeddings_nextnP13llama_contextbb"]
    setn.argtypes, setn.restype = [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool], None
    getn = lib["_Z30llama_get_embeddings_nextn_ithP13llama_contexti"]
    getn.argtypes, getn.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.POINTER(ctypes.c_float)
    tmp = tempfile.mkdtemp()
    gg = os.path.join(tmp, "m.gguf")
    c = write_gguf(path, gg, "F32", [])
    H, V = c["hidden_size"], c["vocab_size"]
    L.llama_backend_init()
    mp = L.llama_model_default_params()
    mp.load_mtp = True
    model = L.llama_model_load_from_file(gg.encode(), mp)

    def context(kind):
        cp = L.llama_context_default_params()
        cp.n_ctx, cp.n_batch, cp.n_ubatch, cp.n_threads, cp.n_threads_batch = 512, 512, 512, 1, 1
        cp.type_k = cp.type_v = 0
        cp.flash_attn_type = 0
        cp.ctx_type = kind
        return L.llama_init_from_model(model, cp)

    def decode(ctx, toks, pos, hidden=None):
        n = len(toks)
        b = L.llama_batch_init(n, 0, 1)
        keep = None
        for i in range(n):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = int(toks[i]), int(pos[i]), 1, 1
            b.seq_id[i][0] = 0
        b.n_tokens = n
        if hidden is not None:
            keep = np.ascontiguousarray(hidden, np.float32)
            b.embd = keep.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        rc = L.llama_decode(ctx, b)
        assert rc == 0, rc
        logits = np.stack([np.ctypeslib.as_array(L.llama_get_logits_ith(ctx, i), (V,)).copy() for i in range(n)])
        h = np.stack([np.ctypeslib.as_array(getn(ctx, i), (H,)).copy() for i in range(n)])
        b.embd = None
        L.llama_batch_free(b)
        return logits, h

    ids = rng_for(seed, f"prompt/{os.path.basename(path.rstrip('/'))}").integers(0, 379, T)
    tgt = context(0)
    setn(tgt, True, False)
    logits, h = decode(tgt, ids, range(T))
    nxt = int(logits[-1].argmax())
    rec = {"trunk.logits": logits, "trunk.h": h, "ids": ids.astype(np.int32)}
    for label, extra in (("plain", False), ("extra", True)):
        dft = context(1)
        setn(dft, True, False)
        toks = np.concatenate([ids[1:], [nxt]])
        if extra:
            lo, hi = decode(dft, np.concatenate([ids[:1], toks]), range(T + 1),
                            np.concatenate([np.zeros((1, H), np.float32), h]))
            lo, hi, at = lo[1:], hi[1:], T + 1
        else:
            lo, hi, at = *decode(dft, toks, range(T), h), T
        rec[f"{label}.prefill.logits"] = lo
        rows, drafts = [lo[-1]], [int(lo[-1].argmax())]
        for s in range(1, steps):
            lo, hi = decode(dft, [drafts[-1]], [at + s - 1], hi[-1:])
            rows.append(lo[-1])
            drafts.append(int(lo[-1].argmax()))
        rec[f"{label}.draft.logits"], rec[f"{label}.draft.ids"] = np.stack(rows), np.array(drafts, np.int32)
        L.llama_free(dft)
    save_file(rec, out)
    print("wrote", out, "next", nxt, "drafts", rec["plain.draft.ids"], rec["extra.draft.ids"])


def compare(path, file):
    from safetensors.torch import load_file

    a, g = load_file(file), load_file(os.path.join(path, "golden.safetensors"))
    d = lambda x, y: float((x - y).abs().max())
    print(json.dumps({
        "trunk logits": d(a["trunk.logits"], g["logits"]), "h is the post-norm state": d(a["trunk.h"], g["hidden.final"]),
        "mtp prefill logits": d(a["plain.prefill.logits"], g["mtp.prefill.logits"]),
        "mtp draft logits": d(a["plain.draft.logits"], g["mtp.draft.logits"]),
        "drafts equal": bool((a["plain.draft.ids"] == g["mtp.draft.ids"]).all()),
        "effect of the extra first row on logits": d(a["extra.prefill.logits"], a["plain.prefill.logits"])}, indent=1))


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("path")
    ap.add_argument("--out")
    ap.add_argument("--compare")
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--prompt-len", type=int, default=70)
    ap.add_argument("--draft", type=int, default=4)
    a = ap.parse_args()
    if a.compare:
        compare(a.path, a.compare)
    else:
        run(a.path, a.out, a.seed, a.prompt_len, a.draft)
