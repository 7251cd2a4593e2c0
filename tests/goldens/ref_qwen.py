"""Plain-tensor float32 reference of the Qwen3-Next / Qwen3.5 trunk and MTP module,
written from the papers and configs without using the library's layer classes.
golden.py compares it with transformers and uses it for the MTP goldens."""
import json
import os

import torch
import torch.nn.functional as F
from safetensors import safe_open


def load_tensors(path):
    files = sorted(f for f in os.listdir(path) if f.startswith("model") and f.endswith(".safetensors"))
    out = {}
    for fn in files:
        with safe_open(os.path.join(path, fn), "pt") as f:
            for k in f.keys():
                t = f.get_tensor(k)
                out[k] = t.float() if t.is_floating_point() else t
    return out


def rms(x, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


class QwenHybrid:
    def __init__(self, path=None, config=None, tensors=None):
        self.config = config or json.load(open(os.path.join(path, "config.json")))
        c = self.c = self.config.get("text_config", self.config)
        self.w = tensors if tensors is not None else load_tensors(path)
        self.prefix = "model.language_model" if "model.language_model.norm.weight" in self.w else "model"
        self.eps = c["rms_norm_eps"]
        rp = c.get("rope_parameters") or {}
        self.theta = rp.get("rope_theta", c.get("rope_theta"))
        self.rot = int(c["head_dim"] * rp.get("partial_rotary_factor", c.get("partial_rotary_factor", 0.25)))
        iv = c.get("full_attention_interval", 4)
        self.types = c.get("layer_types") or [
            "full_attention" if (i + 1) % iv == 0 else "linear_attention" for i in range(c["num_hidden_layers"])]

    def double(self):
        """The same model in float64."""
        return QwenHybrid(config=self.config, tensors={k: v.double() if v.is_floating_point() else v
                                                       for k, v in self.w.items()})

    # -- norms: weight is an offset from one
    def norm1(self, x, name):
        return rms(x, self.eps) * (1.0 + self.w[name])

    def rope(self, x, pos):
        """x [T, heads, d]; the first `rot` dims turn, halves paired (i, i + rot/2)."""
        half = self.rot // 2
        inv = float(self.theta) ** (-torch.arange(half, dtype=x.dtype) * 2.0 / self.rot)
        ang = pos.to(x.dtype)[:, None] * inv[None]
        cos, sin = ang.cos()[:, None], ang.sin()[:, None]
        a, b, rest = x[..., :half], x[..., half:self.rot], x[..., self.rot:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def attention(self, x, p, pos, cache):
        c, d = self.c, self.c["head_dim"]
        nh, nkv, T = c["num_attention_heads"], c["num_key_value_heads"], x.shape[0]
        qg = (x @ self.w[f"{p}.q_proj.weight"].T).view(T, nh, 2 * d)
        q, gate = qg[..., :d], qg[..., d:].reshape(T, nh * d)
        k = (x @ self.w[f"{p}.k_proj.weight"].T).view(T, nkv, d)
        v = (x @ self.w[f"{p}.v_proj.weight"].T).view(T, nkv, d)
        q = self.rope(self.norm1(q, f"{p}.q_norm.weight"), pos)
        k = self.rope(self.norm1(k, f"{p}.k_norm.weight"), pos)
        if "k" in cache:
            k, v = torch.cat([cache["k"], k]), torch.cat([cache["v"], v])
        cache["k"], cache["v"] = k, v
        S, g = k.shape[0], nh // nkv
        out = torch.empty(T, nh, d, dtype=x.dtype)
        mask = torch.arange(S)[None] > (torch.arange(T) + S - T)[:, None]
        for h in range(nh):
            s = (q[:, h] @ k[:, h // g].T) * d ** -0.5
            out[:, h] = s.masked_fill(mask, float("-inf")).softmax(-1) @ v[:, h // g]
        return (out.reshape(T, nh * d) * gate.sigmoid()) @ self.w[f"{p}.o_proj.weight"].T

    def delta_net(self, x, p, st):
        c, T = self.c, x.shape[0]
        nk, nv = c["linear_num_key_heads"], c["linear_num_value_heads"]
        dk, dv, K = c["linear_key_head_dim"], c["linear_value_head_dim"], c["linear_conv_kernel_dim"]
        r = nv // nk
        if f"{p}.in_proj_qkvz.weight" in self.w:
            # rows grouped by key head: [q dk | k dk | v r*dv | z r*dv], and [b r | a r]
            m = (x @ self.w[f"{p}.in_proj_qkvz.weight"].T).view(T, nk, 2 * dk + 2 * r * dv)
            q, k, v, z = m.split([dk, dk, r * dv, r * dv], -1)
            ba = (x @ self.w[f"{p}.in_proj_ba.weight"].T).view(T, nk, 2 * r)
            b, a = ba[..., :r].reshape(T, nv), ba[..., r:].reshape(T, nv)
            qkv = torch.cat([q.reshape(T, -1), k.reshape(T, -1), v.reshape(T, -1)], -1)
            z = z.reshape(T, nv, dv)
        else:
            qkv = x @ self.w[f"{p}.in_proj_qkv.weight"].T
            z = (x @ self.w[f"{p}.in_proj_z.weight"].T).view(T, nv, dv)
            b, a = x @ self.w[f"{p}.in_proj_b.weight"].T, x @ self.w[f"{p}.in_proj_a.weight"].T
        C = qkv.shape[1]
        conv = st.get("conv", torch.zeros(K - 1, C, dtype=x.dtype))
        full = torch.cat([conv, qkv])
        st["conv"] = full[-(K - 1):]
        wc = self.w[f"{p}.conv1d.weight"].reshape(C, K)
        y = sum(full[j:j + T] * wc[:, j] for j in range(K))
        y = F.silu(y)
        q, k, v = y.split([nk * dk, nk * dk, nv * dv], -1)
        l2 = lambda t: t * torch.rsqrt(t.pow(2).sum(-1, keepdim=True) + 1e-6)
        q = l2(q.view(T, nk, dk)).repeat_interleave(r, 1) * dk ** -0.5
        k = l2(k.view(T, nk, dk)).repeat_interleave(r, 1)
        v = v.view(T, nv, dv)
        beta = b.sigmoid()
        decay = torch.exp(-self.w[f"{p}.A_log"].exp() * F.softplus(a + self.w[f"{p}.dt_bias"]))
        S = st.get("S", torch.zeros(nv, dk, dv, dtype=x.dtype))
        out = torch.empty(T, nv, dv, dtype=x.dtype)
        for t in range(T):
            S = S * decay[t][:, None, None]
            err = (v[t] - torch.einsum("hkv,hk->hv", S, k[t])) * beta[t][:, None]
            S = S + k[t][:, :, None] * err[:, None, :]
            out[t] = torch.einsum("hkv,hk->hv", S, q[t])
        st["S"] = S
        out = rms(out, self.eps) * self.w[f"{p}.norm.weight"] * F.silu(z)
        return out.reshape(T, nv * dv) @ self.w[f"{p}.out_proj.weight"].T

    def glu(self, x, gate, up, down):
        return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T

    def mlp(self, x, p):
        w = self.w
        if f"{p}.gate.weight" not in w:
            return self.glu(x, w[f"{p}.gate_proj.weight"], w[f"{p}.up_proj.weight"], w[f"{p}.down_proj.weight"])
        k = self.c["num_experts_per_tok"]
        probs = (x @ w[f"{p}.gate.weight"].T).softmax(-1)
        top, idx = probs.topk(k, -1)
        if self.c.get("norm_topk_prob", True):
            top = top / top.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for t in range(x.shape[0]):
            for j in range(k):
                e = int(idx[t, j])
                if f"{p}.experts.gate_up_proj" in w:
                    gu = w[f"{p}.experts.gate_up_proj"][e]
                    f = gu.shape[0] // 2
                    g, u, d = gu[:f], gu[f:], w[f"{p}.experts.down_proj"][e]
                else:
                    g, u, d = (w[f"{p}.experts.{e}.{n}_proj.weight"] for n in ("gate", "up", "down"))
                out[t] += top[t, j] * self.glu(x[t], g, u, d)
        if f"{p}.shared_expert.gate_proj.weight" in w:
            s = self.glu(x, *(w[f"{p}.shared_expert.{n}_proj.weight"] for n in ("gate", "up", "down")))
            out = out + (x @ w[f"{p}.shared_expert_gate.weight"].T).sigmoid() * s
        return out

    def block(self, x, p, kind, pos, st):
        n = self.norm1(x, f"{p}.input_layernorm.weight")
        x = x + (self.attention(n, f"{p}.self_attn", pos, st) if kind == "full_attention"
                 else self.delta_net(n, f"{p}.linear_attn", st))
        return x + self.mlp(self.norm1(x, f"{p}.post_attention_layernorm.weight"), f"{p}.mlp")

    def embed(self, ids):
        return self.w[f"{self.prefix}.embed_tokens.weight"][ids.long()]

    def head(self, h):
        return h @ self.w.get("lm_head.weight", self.w[f"{self.prefix}.embed_tokens.weight"]).T

    def trunk(self, ids, states=None, start=0):
        states = states if states is not None else [{} for _ in self.types]
        pos = torch.arange(start, start + len(ids))
        x, layers = self.embed(ids), []
        for i, kind in enumerate(self.types):
            x = self.block(x, f"{self.prefix}.layers.{i}", kind, pos, states[i])
            layers.append(x)
        return layers, self.norm1(x, f"{self.prefix}.norm.weight"), states

    # -- MTP: one extra full-attention block fed with [norm(embed(next)) | norm(hidden)]
    def mtp(self, ids, hidden, pos, cache):
        e = self.norm1(self.embed(ids), "mtp.pre_fc_norm_embedding.weight")
        h = self.norm1(hidden, "mtp.pre_fc_norm_hidden.weight")
        x = torch.cat([e, h], -1) @ self.w["mtp.fc.weight"].T
        x = self.block(x, "mtp.layers.0", "full_attention", pos, cache)
        out = self.norm1(x, "mtp.norm.weight")
        return out, self.head(out)

    def draft(self, prompt, hidden, next_id, steps):
        """Prefill the MTP cache with rows (h_p, x_{p+1}) at position p, then draft."""
        T, cache = len(prompt), {}
        ids = torch.cat([prompt[1:].long(), torch.tensor([next_id])])
        hid, logits = self.mtp(ids, hidden, torch.arange(T), cache)
        pre = (hid.clone(), logits.clone())
        drafts, rows = [], []
        for s in range(steps):
            rows.append(logits[-1])
            drafts.append(int(logits[-1].argmax()))
            if s + 1 < steps:
                hid, logits = self.mtp(torch.tensor([drafts[-1]]), hid[-1:], torch.tensor([T + s]), cache)
        return pre, torch.tensor(drafts), torch.stack(rows)
