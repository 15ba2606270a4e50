"""Trains the pocket model on one GPU for a given time; the last quarter with weights rounded to 4 bits in the forward pass.

usage: train.py DATA OUT SECONDS [MOST_STEPS]

INIT=FILE.safetensors continues from saved weights and gives half of the delta-net heads a memory of 20 to 4,000 tokens; PEAK and WARM
set the learning rate and its warm-up steps.  Needs PyTorch 2.11 and transformers 5.17.
"""
import json
import math
import os
import sys
import time
import numpy as np
import torch
import torch.nn.functional as F


import transformers.models.qwen3_5_moe.modeling_qwen3_5_moe as M
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

torch.set_float32_matmul_precision("high")
DATA, OUT, SECS = sys.argv[1], sys.argv[2], float(sys.argv[3])
os.makedirs(OUT, exist_ok=True)
V = 8192
CFG = dict(
    vocab_size=V,
    hidden_size=256,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=256,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_conv_kernel_dim=4,
    num_experts=16,
    num_experts_per_tok=4,
    moe_intermediate_size=128,
    shared_expert_intermediate_size=128,
    norm_topk_prob=True,
    hidden_act="silu",
    rms_norm_eps=1e-6,
    full_attention_interval=4,
    attention_bias=False,
    tie_word_embeddings=False,
    max_position_embeddings=262144,
    rope_parameters={
        "rope_type": "default",
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
)


def l2(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def fast_chunk(
    q, k, v, g, beta, chunk_size=64, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=True, **kw
):
    dt = q.dtype
    C = chunk_size
    q, k, v, g, beta = (t.transpose(1, 2).float() for t in (q, k, v, g, beta))
    q, k = l2(q) * q.shape[-1] ** -0.5, l2(k)
    B, H, L, D = q.shape
    N = -(-L // C)
    pad = N * C - L
    if pad:
        q, k, v = (F.pad(t, (0, 0, 0, pad)) for t in (q, k, v))
        g, beta = (F.pad(t, (0, pad)) for t in (g, beta))
    q, k, v = (t.reshape(B, H, N, C, -1) for t in (q, k, v))
    g, beta = (t.reshape(B, H, N, C) for t in (g, beta))
    gc = g.cumsum(-1)
    low = torch.ones(C, C, device=q.device, dtype=torch.bool).tril()
    dec = (gc[..., :, None] - gc[..., None, :]).masked_fill(~low, float("-inf")).exp()
    kb = k * beta[..., None]
    A = (kb @ k.transpose(-1, -2) * dec).tril(-1)
    rhs = torch.cat([v * beta[..., None], kb * gc.exp()[..., None]], -1)
    sol = torch.linalg.solve_triangular(A + torch.eye(C, device=q.device), rhs, upper=False, unitriangular=True)
    u, w = sol[..., : v.shape[-1]], sol[..., v.shape[-1] :]
    att = q @ k.transpose(-1, -2) * dec
    qe = q * gc.exp()[..., None]
    ke = k * (gc[..., -1:] - gc).exp()[..., None]
    el = gc[..., -1].exp()
    S = torch.zeros(B, H, D, v.shape[-1], device=q.device) if initial_state is None else initial_state.float()
    o = []
    for i in range(N):
        vn = u[:, :, i] - w[:, :, i] @ S
        o.append(qe[:, :, i] @ S + att[:, :, i] @ vn)
        S = S * el[:, :, i, None, None] + ke[:, :, i].transpose(-1, -2) @ vn
    o = torch.stack(o, 2).reshape(B, H, N * C, -1)[:, :, :L].transpose(1, 2).to(dt)
    return o, (S if output_final_state else None)


def dense_experts(self, x, idx, wts):
    W = torch.zeros(x.shape[0], self.num_experts, device=x.device, dtype=wts.dtype).scatter_(1, idx, wts)
    gu = torch.einsum("th,eih->tei", x, self.gate_up_proj.to(x.dtype))
    g, u = gu.chunk(2, -1)
    h = F.silu(g) * u * W[..., None].to(x.dtype)
    return torch.einsum("tei,ehi->th", h, self.down_proj.to(x.dtype))


def fake_quant(w, bits):
    s = w.shape
    x = w.reshape(-1, 64)
    n = (1 << bits) - 1
    lo, hi = x.amin(1), x.amax(1)
    side = lo.abs() > hi.abs()
    sc = ((hi - lo) / n).clamp_min(1e-7)
    sc = torch.where(side, sc, -sc)
    e = torch.where(side, lo, hi)
    q0 = (e / sc).round()
    ok = q0 != 0
    sc = torch.where(ok, e / torch.where(ok, q0, torch.ones_like(q0)), sc)
    b = torch.where(ok, e, torch.zeros_like(e))
    sc, b = sc.bfloat16().float(), b.bfloat16().float()
    return (((x - b[:, None]) / sc[:, None]).round().clamp(0, n) * sc[:, None] + b[:, None]).reshape(s)


def qbits(n, p):
    if p.ndim < 2 or "conv1d" in n:
        return 0
    return 8 if n.endswith("mlp.gate.weight") or "shared_expert_gate" in n else 4


def main():
    M.torch_chunk_gated_delta_rule = fast_chunk
    M.Qwen3_5MoeExperts.forward = dense_experts
    torch.manual_seed(0)
    cfg = Qwen3_5MoeTextConfig(**CFG)
    m = Qwen3_5MoeForCausalLM(cfg).float().cuda()
    n = sum(p.numel() for p in m.parameters())
    print("parameters", n, flush=True)
    if os.environ.get("INIT"):  # continue from saved weights; half of the heads get a memory of 20 to 4,000 tokens
        from safetensors.torch import load_file

        m.load_state_dict({k: v.float() for k, v in load_file(os.environ["INIT"]).items()})
        g = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for lay in m.model.layers:
                if not hasattr(lay, "linear_attn"):
                    continue
                a = lay.linear_attn
                for h in (1, 3):
                    mem = math.exp(math.log(20) + float(torch.rand(1, generator=g)) * math.log(200))
                    a.A_log[h] = 0.0
                    a.dt_bias[h] = math.log(math.expm1(1 / mem))
                    a.in_proj_a.weight[h] *= 0.1
    tr = np.fromfile(f"{DATA}/train.u16", np.uint16)
    lo = np.fromfile(f"{DATA}/long.u16", np.uint16)
    ev = np.fromfile(f"{DATA}/eval.u16", np.uint16)
    tr, lo, ev = (torch.from_numpy(a.astype(np.int32)).cuda() for a in (tr, lo, ev))
    dec = [p for k, p in m.named_parameters() if p.ndim >= 2]
    nod = [p for k, p in m.named_parameters() if p.ndim < 2]
    opt = torch.optim.AdamW(
        [{"params": dec, "weight_decay": 0.05}, {"params": nod, "weight_decay": 0.0}],
        lr=1e-3,
        betas=(0.9, 0.95),
        fused=True,
    )
    B, L = 48, 1024
    rng = np.random.default_rng(0)
    t0 = time.time()
    step = 0
    peak = float(os.environ.get("PEAK", 2e-3))
    logits_aux = []
    for lay in m.model.layers:
        lay.mlp.gate.register_forward_hook(lambda mod, i, o: logits_aux.append(o))
    qs = [(p, qbits(k, p)) for k, p in m.named_parameters() if qbits(k, p)]
    while True:
        f = (time.time() - t0) / SECS
        if f >= 1 or (len(sys.argv) > 4 and step >= int(sys.argv[4])):
            break
        longp = f > 0.8 and step % 2 == 0
        src, b, l = (lo, 12, 4096) if longp else (tr, B, L)
        o = rng.integers(0, len(src) - l - 1, b)
        x = torch.stack([src[i : i + l + 1] for i in o]).long()
        lr = (
            peak * min(1, (step + 1) / float(os.environ.get("WARM", 200))) * (0.5 * (1 + math.cos(math.pi * min(1, f))))
            + 1e-5
        )
        for gr in opt.param_groups:
            gr["lr"] = lr
        qat = f > 0.75
        if qat:
            keep = [p.data.clone() for p, _ in qs]
            for p, bt in qs:
                p.data.copy_(fake_quant(p.data, bt))
        logits_aux.clear()
        with torch.autocast("cuda", torch.bfloat16):
            h = m.model(x[:, :-1], use_cache=False).last_hidden_state
            lg = m.lm_head(h)
        loss = F.cross_entropy(lg.float().view(-1, V), x[:, 1:].reshape(-1))
        aux = 0
        for r in logits_aux:
            a = r[0] if isinstance(r, tuple) else r
            pr = a.float().softmax(-1) if a.min() < 0 or a.max() > 1 else a.float()
            top = pr.topk(4, -1).indices
            frac = (
                torch.zeros(16, device=pr.device).scatter_add_(
                    0, top.reshape(-1), torch.ones(top.numel(), device=pr.device)
                )
                / top.numel()
            )
            aux = aux + 16 * (frac * pr.mean(0)).sum()
        (loss + 0.003 * aux).backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        if qat:
            for (p, _), w in zip(qs, keep):
                p.data.copy_(w)
        opt.step()
        opt.zero_grad(set_to_none=True)
        step += 1
        if step % 50 == 0 or step < 4:
            print(
                f"step {step} t {time.time()-t0:.0f}s loss {loss.item():.4f} aux {float(aux)/8:.3f} lr {lr:.2e} mem {torch.cuda.max_memory_allocated()>>30}G",
                flush=True,
            )
    torch.save({k: v.cpu() for k, v in m.state_dict().items()}, f"{OUT}/state.pt")
    json.dump(CFG, open(f"{OUT}/cfg.json", "w"))
    print("saved", step, "steps", flush=True)


if __name__ == "__main__":
    main()
