"""MLX affine quantization (group 64) in numpy, and a writer of MLX-layout checkpoints.

Packing: a group of 64 consecutive inputs shares one scale and one bias; codes are
packed into little-endian uint32 words, lowest bits first (8 codes per word at 4 bits,
4 codes per word at 8 bits).  w ~= scale * code + bias.
"""
import numpy as np


def bf16_round(x):
    """float32 -> nearest-even bfloat16, returned as float32."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    r = ((u >> 16) & 1) + np.uint32(0x7FFF)
    return ((u + r) & np.uint32(0xFFFF0000)).view(np.float32)


def bf16_bits(x):
    return (bf16_round(x).view(np.uint32) >> 16).astype(np.uint16)


def quantize(w, bits=4, group=64):
    """w float32 [..., K] -> (packed uint32 [..., K*bits/32], scales f32, biases f32, dequantized f32)."""
    w = np.ascontiguousarray(w, np.float32)
    shape = w.shape
    g = w.reshape(-1, group)
    n = (1 << bits) - 1
    lo, hi = g.min(1), g.max(1)
    side = np.abs(lo) > np.abs(hi)
    scale = np.maximum((hi - lo) / n, 1e-7)
    scale = np.where(side, scale, -scale)
    edge = np.where(side, lo, hi)
    q0 = np.rint(edge / scale)
    ok = q0 != 0
    scale = np.where(ok, edge / np.where(ok, q0, 1), scale)
    bias = np.where(ok, edge, 0.0)
    scale, bias = bf16_round(scale), bf16_round(bias)
    q = np.clip(np.rint((g - bias[:, None]) / scale[:, None]), 0, n).astype(np.uint32)
    deq = (q * scale[:, None] + bias[:, None]).astype(np.float32).reshape(shape)
    per = 32 // bits
    words = q.reshape(-1, group // per, per)
    packed = np.zeros(words.shape[:2], np.uint32)
    for i in range(per):
        packed |= words[:, :, i] << np.uint32(bits * i)
    lead = shape[:-1]
    return (
        packed.reshape(*lead, shape[-1] // per),
        scale.reshape(*lead, -1).astype(np.float32),
        bias.reshape(*lead, -1).astype(np.float32),
        deq,
    )
