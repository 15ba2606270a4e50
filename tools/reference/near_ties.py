"""Lists where a router nearly chose another expert: the smallest gaps between the last chosen and the best not chosen logit, in float64 numpy.
Rounding of float32 moves logits by some 1e-6, so that there the one choice is as right as the other (tests/model/test_golden.c).

usage: python3 near_ties.py CHECKPOINT REFERENCE.safetensors PROMPT [COUNT]      (tests/data/checkpoints/tiny-c … 5; a minute for 16,384 tokens)
Needs numpy.  Prints position, layer, gap, smallest gap first; and the largest difference from the recorded last logits.
"""
import os, sys
import numpy as np
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import st
from oracle import Model


class Router(Model):
    def __init__(s, path):
        super().__init__(path)
        s.t = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in s.t.items()}
        s.gaps = []

    def w(s, name):
        w = super().w(name).astype(np.float64)
        if name.endswith("mlp.gate"): return Watched(w, s)
        return w


class Watched:
    """The router's matrix: notes the gaps of what is multiplied by it."""
    def __init__(w, matrix, model): w.T, w.model = w, model; w.matrix = matrix

    def __rmatmul__(w, h):
        logits = h @ w.matrix.T
        k, ordered = w.model.c["num_experts_per_tok"], -np.sort(-logits, -1)
        w.model.gaps.append(ordered[:, k - 1] - ordered[:, k])
        return logits

    __array_ufunc__ = None                                                     # numpy leaves h @ w to __rmatmul__


if __name__ == "__main__":
    m, r = Router(sys.argv[1].rstrip("/")), st.load(sys.argv[2])
    prompt, count = sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 20
    ids, want = r[f"p{prompt}.ids"], r[f"p{prompt}.logits_tail"]
    logits = m.forward(ids)
    gaps = np.stack(m.gaps)
    for i in np.argsort(gaps, None)[:count]:
        layer, position = np.unravel_index(i, gaps.shape)
        print(f"position {position} layer {layer} gap {gaps[layer, position]:.2e}")
    print(f"{gaps.size} choices; last logits differ from the recorded by {np.abs(logits[-len(want):] - want).max():.1e}")
