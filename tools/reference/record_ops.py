"""Records what each composite op of a layer computes, in float64 numpy, for tests/kernels/test_ops.c.

usage: python3 record_ops.py CHECKPOINT OUT.safetensors      (tests/data/checkpoints/tiny-a tests/data/kernels/ops.safetensors)
Needs numpy.  Input: a checkpoint in MLX layout; 7 token ids from a fixed formula.  Arrays, rows in prompt order:
  ids; embed [7][H]; and for layer 0 (gated delta net) and the first attention layer, as l0.* and l3.*:
  in (residual before the layer), mixer_in, mixer_out, residual (after the output projection), moe_in, expert ids and weights,
  shared, shared_gate, experts (silu(gate)·up of the chosen), out (residual after the layer)
"""
import os, sys
import numpy as np
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import st
from oracle import Model

N = 7
sig = lambda x: 1 / (1 + np.exp(-x))
silu = lambda x: x * sig(x)


class Recorder(Model):
    def __init__(s, path):
        super().__init__(path)
        s.t = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in s.t.items()}
        s.out = {}

    def w(s, name):
        return super().w(name).astype(np.float64) if name not in s.deq else s.deq[name].astype(np.float64)

    def mix(s, h, l, rec):
        """The mixer up to its output, with the projections recorded the way BUF_MIXER_IN holds them."""
        c = s.c
        if c["layer_types"][l] == "full_attention":
            P = f"model.layers.{l}.self_attn."
            q, k, v = (h @ s.w(P + n).T for n in ("q_proj", "k_proj", "v_proj"))
            rec["mixer_in"] = np.concatenate([q, k, v], -1)
            full = s.attn(h, P)                                        # gate and output projection included
            rec["mixer_out"] = s.before_gate
        else:
            P = f"model.layers.{l}.linear_attn."
            rec["mixer_in"] = np.concatenate([h @ s.w(P + n).T for n in ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b")], -1)
            full = s.gdn(h, P)
            rec["mixer_out"] = s.before_norm
        return full

    def rms(s, x, w):
        if s.in_gdn and x.shape[-1] == s.c["linear_value_head_dim"] and x.ndim == 3: s.before_norm = x.reshape(len(x), -1).copy()
        return super().rms(x, w)

    in_gdn = False

    def gdn(s, h, P):
        s.in_gdn = True
        r = super().gdn(h, P)
        s.in_gdn = False
        return r

    def attn(s, h, P):
        keep, s.deq[P + "o_proj"] = s.w(P + "o_proj"), np.eye(s.c["num_attention_heads"] * s.c["head_dim"])
        gated = super().attn(h, P)
        s.deq[P + "o_proj"] = keep
        L, H, D = len(h), s.c["num_attention_heads"], s.c["head_dim"]
        gate = (h @ s.w(P + "q_proj").T).reshape(L, H, 2 * D)[..., D:].reshape(L, -1)
        s.before_gate = gated / sig(gate)
        return gated @ keep.T

    def layer(s, x, l):
        rec = {"in": x}
        P, c = f"model.layers.{l}.", s.c
        x = x + s.mix(s.rms(x, s.v(P + "input_layernorm.weight")), l, rec)
        rec["residual"] = x
        h = rec["moe_in"] = s.rms(x, s.v(P + "post_attention_layernorm.weight")); M = P + "mlp."
        g = h @ s.w(M + "gate").T; k = c["num_experts_per_tok"]; idx = np.argsort(-g, -1, kind="stable")[:, :k]
        top = np.take_along_axis(g, idx, -1); wt = np.exp(top - top.max(-1, keepdims=True)); wt /= wt.sum(-1, keepdims=True)
        G, U, D = (s.w(M + "switch_mlp." + n) for n in ("gate_proj", "up_proj", "down_proj"))
        ex = np.stack([[silu(G[e] @ h[t]) * (U[e] @ h[t]) for e in idx[t]] for t in range(len(h))])
        y = np.stack([sum(wt[t, j] * (D[idx[t, j]] @ ex[t, j]) for j in range(k)) for t in range(len(h))])
        shared = silu(h @ s.w(M + "shared_expert.gate_proj").T) * (h @ s.w(M + "shared_expert.up_proj").T)
        gate = sig(h @ s.w(M + "shared_expert_gate").T)
        x = x + y + gate * (shared @ s.w(M + "shared_expert.down_proj").T)
        rec |= {"expert": idx, "weight": wt, "shared": shared, "shared_gate": gate[:, 0], "experts": ex, "out": x}
        for name, a in rec.items():
            s.out[f"l{l}.{name}"] = a.astype(np.int32) if name == "expert" else a.astype(np.float32)
        return x


m = Recorder(sys.argv[1].rstrip("/"))
ids = np.array([(i * 2654435761 + 12345) % 2**32 % m.c["vocab_size"] for i in range(N)], np.int32)
x = m.w("model.embed_tokens")[ids]
m.out["ids"], m.out["embed"] = ids, x.astype(np.float32)
attention = m.c["layer_types"].index("full_attention")
for l in range(attention + 1):
    y = m.layer(x, l)
    if l not in (0, attention): m.out = {k: v for k, v in m.out.items() if not k.startswith(f"l{l}.")}
    x = y
st.save(sys.argv[2], m.out)
print({k: v.shape for k, v in m.out.items()})
