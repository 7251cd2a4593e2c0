"""Plain-tensor float32 reference of the Gemma 4 text model and of its drafter, written from the papers and configs
without using the library's layer classes. golden.py compares it with transformers."""
import json
import os

import torch
import torch.nn.functional as F

from ref_qwen import load_tensors, rms


class Gemma4:
    def __init__(self, path):
        self.config = json.load(open(os.path.join(path, "config.json")))
        c = self.c = self.config["text_config"]
        self.w = load_tensors(path)
        self.L = "model.language_model" if "model.language_model.norm.weight" in self.w else "model"
        self.eps, self.types, self.n = c["rms_norm_eps"], c["layer_types"], c["num_hidden_layers"]
        self.first_shared = self.n - c["num_kv_shared_layers"]

    def norm(self, x, name=None):
        y = rms(x, self.eps)
        return y * self.w[name] if name else y

    def rope(self, x, pos, kind):
        """Full-width rotation; 'proportional' keeps the exponent base of the whole head and zeroes the rest."""
        p, d = self.c["rope_parameters"][kind], x.shape[-1]
        inv = float(p["rope_theta"]) ** (-torch.arange(0, d, 2, dtype=x.dtype) / d)
        if p["rope_type"] == "proportional":
            keep = int(p.get("partial_rotary_factor", 1.0) * d // 2)
            inv[keep:] = 0.0
            inv = inv / p.get("factor", 1.0)
        ang = pos.to(x.dtype)[:, None] * inv
        cos, sin = ang.cos()[:, None], ang.sin()[:, None]
        a, b = x[..., : d // 2], x[..., d // 2:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def attend(self, q, k, v, qpos, kpos, kind):
        T, nh, d = q.shape
        g = nh // k.shape[1]
        hide = kpos[None] > qpos[:, None]
        if kind == "sliding_attention":
            hide = hide | (kpos[None] <= qpos[:, None] - self.c["sliding_window"])
        out = torch.empty(T, nh, d)
        for h in range(nh):  # scores are not scaled: q_norm and k_norm set their size
            s = q[:, h] @ k[:, h // g].T
            out[:, h] = s.masked_fill(hide, float("-inf")).softmax(-1) @ v[:, h // g]
        return out.reshape(T, nh * d)

    def layer(self, x, i, pos, kv, ple=None, outside=None):
        c, w, p, kind = self.c, self.w, f"{self.L}.layers.{i}", self.types[i]
        full = kind == "full_attention"
        d, T = (c["global_head_dim"] if full else c["head_dim"]), x.shape[0]
        n = self.norm(x, f"{p}.input_layernorm.weight")
        q = (n @ w[f"{p}.self_attn.q_proj.weight"].T).view(T, -1, d)
        q = self.rope(self.norm(q, f"{p}.self_attn.q_norm.weight"), pos, kind)
        if outside is not None:            # drafter: keys and values belong to the target
            k, v, kpos = outside[kind]
        elif i >= self.first_shared:       # reuse the newest earlier layer of the same kind
            k, v = kv[kind]
            kpos = pos
        else:
            k0 = (n @ w[f"{p}.self_attn.k_proj.weight"].T).view(T, -1, d)
            vw = w.get(f"{p}.self_attn.v_proj.weight") if not (full and c["attention_k_eq_v"]) else None
            v0 = k0 if vw is None else (n @ vw.T).view(T, -1, d)
            k = self.rope(self.norm(k0, f"{p}.self_attn.k_norm.weight"), pos, kind)
            v, kpos = self.norm(v0), pos
            kv[kind] = (k, v)
        a = self.attend(q, k, v, pos, kpos, kind) @ w[f"{p}.self_attn.o_proj.weight"].T
        x = x + self.norm(a, f"{p}.post_attention_layernorm.weight")
        glu = lambda y, g, u, dn: (F.gelu(y @ g.T, approximate="tanh") * (y @ u.T)) @ dn.T
        y = self.norm(x, f"{p}.pre_feedforward_layernorm.weight")
        y = glu(y, *(w[f"{p}.mlp.{m}_proj.weight"] for m in ("gate", "up", "down")))
        if c["enable_moe_block"]:
            y = self.norm(y, f"{p}.post_feedforward_layernorm_1.weight")
            r = self.norm(x) * w[f"{p}.router.scale"] * c["hidden_size"] ** -0.5
            top, idx = (r @ w[f"{p}.router.proj.weight"].T).softmax(-1).topk(c["top_k_experts"], -1)
            top = top / top.sum(-1, keepdim=True) * w[f"{p}.router.per_expert_scale"][idx]
            z = self.norm(x, f"{p}.pre_feedforward_layernorm_2.weight")
            m = torch.zeros_like(x)
            for t in range(T):
                for j in range(idx.shape[1]):
                    e = int(idx[t, j])
                    gu = w[f"{p}.experts.gate_up_proj"][e]
                    f = gu.shape[0] // 2
                    m[t] += top[t, j] * glu(z[t], gu[:f], gu[f:], w[f"{p}.experts.down_proj"][e])
            y = y + self.norm(m, f"{p}.post_feedforward_layernorm_2.weight")
        x = x + self.norm(y, f"{p}.post_feedforward_layernorm.weight")
        if ple is not None:
            g = F.gelu(x @ w[f"{p}.per_layer_input_gate.weight"].T, approximate="tanh") * ple
            x = x + self.norm(g @ w[f"{p}.per_layer_projection.weight"].T, f"{p}.post_per_layer_input_norm.weight")
        return x * w[f"{p}.layer_scalar"]

    def embed(self, ids):
        return self.w[f"{self.L}.embed_tokens.weight"][ids.long()] * self.c["hidden_size"] ** 0.5

    def trunk(self, ids):
        c, T = self.c, len(ids)
        x, pos, kv, layers = self.embed(ids), torch.arange(T), {}, []
        ple = None
        if q := c["hidden_size_per_layer_input"]:
            tok = self.w[f"{self.L}.embed_tokens_per_layer.weight"][ids.long()].view(T, self.n, q) * q ** 0.5
            ctx = (x @ self.w[f"{self.L}.per_layer_model_projection.weight"].T) * c["hidden_size"] ** -0.5
            ctx = self.norm(ctx.view(T, self.n, q), f"{self.L}.per_layer_projection_norm.weight")
            ple = (tok + ctx) * 0.5 ** 0.5
        for i in range(self.n):
            x = self.layer(x, i, pos, kv, ple[:, i] if ple is not None else None)
            layers.append(x)
        return layers, self.norm(x, f"{self.L}.norm.weight"), kv

    def logits(self, h):
        y = h @ self.w[f"{self.L}.embed_tokens.weight"].T
        cap = self.c.get("final_logit_softcapping")
        return y if not cap else cap * torch.tanh(y / cap)


class Gemma4Drafter(Gemma4):
    def step(self, token_embedding, hidden, position, target_kv):
        """One draft: [embedding of the last token in the target's table | hidden], a fixed position, the
        target's keys and values. Returns logits and the state for the next draft."""
        x = torch.cat([token_embedding, hidden], -1) @ self.w["pre_projection.weight"].T
        pos = torch.tensor([position])
        for i in range(self.n):
            x = self.layer(x, i, pos, {}, None, target_kv)
        h = self.norm(x, "model.norm.weight")
        full = h @ self.w["model.embed_tokens.weight"].T
        if self.config["use_ordered_embeddings"]:
            cent = h @ self.w["masked_embedding.centroids.weight"].T
            top = cent.topk(self.config["centroid_intermediate_top_k"], -1).indices
            order = self.w["masked_embedding.token_ordering"].view(self.config["num_centroids"], -1)
            keep = order[top[0]].reshape(-1)
            masked = torch.full_like(full, full[0, keep].min() - 1.0)
            masked[0, keep] = full[0, keep]
            full = masked
        return full, h @ self.w["post_projection.weight"].T
