"""HF qwen3_5_moe state dict (float32 numpy) -> MLX 4-bit checkpoint tensors, plus the
state dict of the dequantized weights, so that a reference run uses the very same numbers."""
import json
import os

import numpy as np
import torch
from safetensors.torch import save_file
from quantize import quantize, bf16_round

P = "language_model."


def to_mlx(sd, cfg):
    """sd: HF names -> float32 arrays.  Returns (tensors for save_file, dequantized sd)."""
    out, deq = {}, {}

    def bf(x):
        return torch.from_numpy(np.ascontiguousarray(x)).to(torch.bfloat16)

    def q(name, w, bits):
        pk, s, b, d = quantize(w, bits)
        out[name + ".weight"] = torch.from_numpy(pk.view(np.int32)).view(torch.uint32)
        out[name + ".scales"], out[name + ".biases"] = bf(s), bf(b)
        return d

    for k, w in sd.items():
        w = np.asarray(w, np.float32)
        m = P + k
        if k.endswith("experts.gate_up_proj"):
            base = m.replace("experts.gate_up_proj", "switch_mlp.")
            half = w.shape[1] // 2
            d = np.concatenate([q(base + "gate_proj", w[:, :half], 4), q(base + "up_proj", w[:, half:], 4)], 1)
            deq[k] = d
        elif k.endswith("experts.down_proj"):
            deq[k] = q(m.replace("experts.down_proj", "switch_mlp.down_proj"), w, 4)
        elif k.endswith("conv1d.weight"):  # [C,1,4] -> [C,4,1]
            r = bf16_round(w)
            deq[k] = r
            out[m] = bf(np.moveaxis(r, 2, 1))
        elif k.endswith("A_log"):
            deq[k] = w
            out[m] = torch.from_numpy(w.copy())
        elif k.endswith("dt_bias"):
            r = bf16_round(w)
            deq[k] = r
            out[m] = bf(r)
        elif k.endswith("linear_attn.norm.weight"):
            r = bf16_round(w)
            deq[k] = r
            out[m] = bf(r)
        elif w.ndim == 1:  # zero-centred RMSNorm: MLX stores 1 + w
            r = bf16_round(w + 1.0)
            deq[k] = r - 1.0
            out[m] = bf(r)
        else:
            name = m[: -len(".weight")]
            bits = 8 if (name.endswith("mlp.gate") or name.endswith("shared_expert_gate")) else 4
            deq[k] = q(name, w, bits)
    return out, deq


def config_json(cfg, n_layers):
    """cfg: HF text config dict -> the config.json of an MLX checkpoint."""
    quant = {"group_size": 64, "bits": 4, "mode": "affine"}
    for i in range(n_layers):
        for t in ("mlp.gate", "mlp.shared_expert_gate"):
            quant[f"language_model.model.layers.{i}.{t}"] = {"group_size": 64, "bits": 8}
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": cfg,
        "tie_word_embeddings": False,
        "quantization": quant,
        "quantization_config": quant,
        "eos_token_id": cfg.get("eos_token_id"),
    }


def write(dirname, sd, cfg):
    os.makedirs(dirname, exist_ok=True)
    t, deq = to_mlx(sd, cfg)
    save_file(t, os.path.join(dirname, "model.safetensors"), metadata={"format": "mlx"})
    total = sum(v.numel() * v.element_size() for v in t.values())
    json.dump(
        {"metadata": {"total_size": total}, "weight_map": {k: "model.safetensors" for k in sorted(t)}},
        open(os.path.join(dirname, "model.safetensors.index.json"), "w"),
        indent=1,
    )
    json.dump(config_json(cfg, cfg["num_hidden_layers"]), open(os.path.join(dirname, "config.json"), "w"), indent=2)
    return deq
