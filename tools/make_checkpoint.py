"""Writes a checkpoint in the exact names, shapes, dtypes and shards of the published 4-bit model (Qwen3.6-35B-A3B, MLX form), with
random weights: for tests of size, time and memory where the real weights cannot be had.

usage: python3 tools/make_checkpoint.py OUT [--layers N] [--vision] [--seed S]

The full size is 19.5 GB (40 layers).  --layers 4 gives three delta-net layers and one attention layer of full width (2.5 GB); with the
default seed its shards have the sha256 in tests/data/checkpoints/synthetic-4layer.sha256 and the recorded results belong to them.
--vision adds the tensors of the vision tower, which calla skips.

Data start at 13 mod 16, since the published shards start at odd addresses too.  The numbers are such that activations stay sane and
the delta-net heads remember between 1 and 20,000 tokens.  Needs numpy; no input files.  No tokenizer is written: drive the result by
token ids.
"""
import argparse
import json
import os
import struct

import numpy as np

HIDDEN, VOCABULARY, LAYERS = 2048, 248320, 40
HEADS, KV_HEADS, HEAD_DIM = 16, 2, 256
KEY_HEADS, VALUE_HEADS, GDN_DIM = 16, 32, 128
EXPERTS, TOP_K, WIDTH = 256, 8, 512
GROUP = 64
STOP_IDS = [248046, 248044]
ELEMENT_BYTES = {"U32": 4, "BF16": 2}
CODE_WORDS = 1 << 24  # 64 MiB of random codes, reused at shifting offsets


def is_attention(layer):
    return layer % 4 == 3


def quantized(name, *shape, bits=4):
    """shape: [count,] rows, inputs"""
    *outer, inputs = shape
    groups = [*outer, inputs // GROUP]
    return [(name + ".biases", "BF16", groups), (name + ".scales", "BF16", groups),
            (name + ".weight", "U32", [*outer, inputs * bits // 32])]


def layer_tensors(layer):
    channels, values = (2 * KEY_HEADS + VALUE_HEADS) * GDN_DIM, VALUE_HEADS * GDN_DIM
    if is_attention(layer):
        mixer = [("self_attn.q_norm.weight", "BF16", [HEAD_DIM]), ("self_attn.k_norm.weight", "BF16", [HEAD_DIM]),
                 *quantized("self_attn.q_proj", 2 * HEADS * HEAD_DIM, HIDDEN), *quantized("self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN),
                 *quantized("self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN), *quantized("self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM)]
    else:
        mixer = [("linear_attn.A_log", "BF16", [VALUE_HEADS]), ("linear_attn.dt_bias", "BF16", [VALUE_HEADS]),
                 ("linear_attn.conv1d.weight", "BF16", [channels, 4, 1]), ("linear_attn.norm.weight", "BF16", [GDN_DIM]),
                 *quantized("linear_attn.in_proj_qkv", channels, HIDDEN), *quantized("linear_attn.in_proj_z", values, HIDDEN),
                 *quantized("linear_attn.in_proj_a", VALUE_HEADS, HIDDEN), *quantized("linear_attn.in_proj_b", VALUE_HEADS, HIDDEN),
                 *quantized("linear_attn.out_proj", HIDDEN, values)]
    return [("input_layernorm.weight", "BF16", [HIDDEN]), ("post_attention_layernorm.weight", "BF16", [HIDDEN]), *mixer,
            *quantized("mlp.gate", EXPERTS, HIDDEN, bits=8), *quantized("mlp.shared_expert_gate", 1, HIDDEN, bits=8),
            *quantized("mlp.switch_mlp.gate_proj", EXPERTS, WIDTH, HIDDEN), *quantized("mlp.switch_mlp.up_proj", EXPERTS, WIDTH, HIDDEN),
            *quantized("mlp.switch_mlp.down_proj", EXPERTS, HIDDEN, WIDTH), *quantized("mlp.shared_expert.gate_proj", WIDTH, HIDDEN),
            *quantized("mlp.shared_expert.up_proj", WIDTH, HIDDEN), *quantized("mlp.shared_expert.down_proj", HIDDEN, WIDTH)]


def vision_tensors():
    width, wide, merged = 1152, 4304, 4608
    affine = lambda name, out, inputs: [(name + ".weight", "BF16", [out, inputs]), (name + ".bias", "BF16", [out])]
    norm = lambda name: [(name + ".weight", "BF16", [width]), (name + ".bias", "BF16", [width])]
    t = [("patch_embed.proj.weight", "BF16", [width, 2, 16, 16, 3]), ("patch_embed.proj.bias", "BF16", [width]),
         ("pos_embed.weight", "BF16", [2304, width]), *norm("merger.norm"), *affine("merger.linear_fc1", merged, merged),
         *affine("merger.linear_fc2", HIDDEN, merged)]
    for i in range(27):
        b = f"blocks.{i}."
        t += [*affine(b + "attn.qkv", 3 * width, width), *affine(b + "attn.proj", width, width), *affine(b + "mlp.linear_fc1", wide, width),
              *affine(b + "mlp.linear_fc2", width, wide), *norm(b + "norm1"), *norm(b + "norm2")]
    return [("vision_tower." + n, d, s) for n, d, s in t]


def shard_of(layer, name):
    """Which of the four published shards holds a layer's tensor: three layers lie across a border."""
    late = name.startswith("mlp.shared_expert") or name.startswith("mlp.switch_mlp.down_proj")
    if layer == 8: return 2 if late else 1
    if layer == 20:
        return 2 if name in ("linear_attn.conv1d.weight", "linear_attn.in_proj_qkv.weight", "linear_attn.in_proj_qkv.scales") else 3
    if layer == 31: return 4 if late or name.startswith("mlp.switch_mlp.up_proj") else 3
    return 1 + (layer > 8) + (layer > 20) + (layer > 31)


def all_tensors(layers, vision):
    """(name, dtype, shape, shard) sorted by name, the order of the numbers drawn."""
    p = "language_model."
    rows = [(p + n, d, s, 4) for n, d, s in quantized("lm_head", VOCABULARY, HIDDEN)]
    rows += [(p + "model." + n, d, s, 1) for n, d, s in quantized("embed_tokens", VOCABULARY, HIDDEN)]
    rows += [(p + "model.norm.weight", "BF16", [HIDDEN], 4)]
    for i in range(layers): rows += [(f"{p}model.layers.{i}.{n}", d, s, shard_of(i, n)) for n, d, s in layer_tensors(i)]
    if vision: rows += [(n, d, s, 1) for n, d, s in vision_tensors()]
    return sorted(rows)


def config(layers):
    text = {"attention_bias": False, "attn_output_gate": True, "eos_token_id": STOP_IDS[1], "full_attention_interval": 4,
            "head_dim": HEAD_DIM, "hidden_act": "silu", "hidden_size": HIDDEN,
            "layer_types": ["full_attention" if is_attention(i) else "linear_attention" for i in range(layers)],
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": GDN_DIM, "linear_num_key_heads": KEY_HEADS,
            "linear_num_value_heads": VALUE_HEADS, "linear_value_head_dim": GDN_DIM, "max_position_embeddings": 262144,
            "model_type": "qwen3_5_moe_text", "moe_intermediate_size": WIDTH, "num_attention_heads": HEADS, "num_experts": EXPERTS,
            "num_experts_per_tok": TOP_K, "num_hidden_layers": layers, "num_key_value_heads": KV_HEADS, "partial_rotary_factor": 0.25,
            "rms_norm_eps": 1e-6, "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10],
                                                      "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"},
            "shared_expert_intermediate_size": WIDTH, "tie_word_embeddings": False, "vocab_size": VOCABULARY}
    quantization = {"group_size": GROUP, "bits": 4, "mode": "affine"}
    for i in range(layers):
        for name in ("gate", "shared_expert_gate"):
            quantization[f"language_model.model.layers.{i}.mlp.{name}"] = {"group_size": GROUP, "bits": 8}
    return {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "eos_token_id": STOP_IDS, "model_type": "qwen3_5_moe",
            "quantization": quantization, "quantization_config": quantization, "text_config": text, "tie_word_embeddings": False}


def bf16(x):
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def numbers(rng, name, count, dims):
    noise = lambda base: np.full(count, base, np.float32) * (1 + 0.1 * rng.standard_normal(count, np.float32))
    eight = name.rsplit(".", 1)[0].endswith(("mlp.gate", "shared_expert_gate"))
    if name.endswith("in_proj_a.scales"): return np.full(count, 0.0004, np.float32)  # a stays small beside dt_bias
    if name.endswith("in_proj_a.biases"): return np.full(count, -0.003, np.float32)
    if name.endswith(".scales"): return noise(0.0003 if eight else 0.0048)
    if name.endswith(".biases"): return noise(-0.0003 * 127.5 if eight else -0.0048 * 7.5)
    if name.endswith("A_log"): return np.zeros(count, np.float32)  # so a head remembers about 1/softplus(dt_bias) tokens
    if name.endswith("dt_bias"): return np.log(np.expm1(1 / np.exp(rng.uniform(0, np.log(20000), count)))).astype(np.float32)
    if name.endswith("conv1d.weight"): return (rng.standard_normal(count) * 0.4).astype(np.float32)
    if dims == 1: return (1 + 0.2 * rng.standard_normal(count)).astype(np.float32)
    return (rng.standard_normal(count) * 0.02).astype(np.float32)


def write_tensor(f, rng, codes, name, dtype, shape, place):
    """place: index of the tensor in its shard, which decides where in `codes` it begins."""
    count = int(np.prod(shape))
    if dtype != "U32":
        f.write(bf16(numbers(rng, name, count, len(shape))).tobytes())
        return
    at, left = place * 7919 * 64 % len(codes), 4 * count
    while left:
        n = min(left, len(codes) - at)
        f.write(codes[at:at + n])
        left, at = left - n, 0


def write_shard(path, rng, codes, tensors):
    header, offset = {"__metadata__": {"format": "mlx"}}, 0
    for name, dtype, shape, _ in tensors:
        n = int(np.prod(shape)) * ELEMENT_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + n]}
        offset += n
    text = json.dumps(header).encode()
    text += b" " * ((13 - 8 - len(text)) % 16)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for place, (name, dtype, shape, _) in enumerate(tensors): write_tensor(f, rng, codes, name, dtype, shape, place)
    return offset


def write_json(path, value):
    with open(path, "w") as f: json.dump(value, f, indent=2)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out")
    ap.add_argument("--layers", type=int, default=LAYERS, choices=range(4, LAYERS + 1), metavar="N")
    ap.add_argument("--vision", action="store_true")
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    rng = np.random.default_rng(a.seed)
    codes = memoryview(rng.integers(0, 2 ** 32, CODE_WORDS, np.uint32).tobytes())
    os.makedirs(a.out, exist_ok=True)
    rows, total, names = all_tensors(a.layers, a.vision), 0, {}
    for shard in sorted({r[3] for r in rows}):
        name = f"model-{shard:05}-of-00004.safetensors"
        mine = [r for r in rows if r[3] == shard]
        total += write_shard(os.path.join(a.out, name), rng, codes, mine)
        names.update({r[0]: name for r in mine})
    write_json(os.path.join(a.out, "config.json"), config(a.layers))
    write_json(os.path.join(a.out, "generation_config.json"),
               {"do_sample": True, "eos_token_id": STOP_IDS, "temperature": 1.0, "top_k": 20, "top_p": 0.95})
    write_json(os.path.join(a.out, "model.safetensors.index.json"), {"metadata": {"total_size": total}, "weight_map": names})
    print(f"{len(rows)} tensors, {total / 1e9:.2f} GB in {a.out}")


if __name__ == "__main__":
    main()
