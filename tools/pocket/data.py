"""Builds pocket's tokenizer and its token streams (train.u16, long.u16, eval.u16).

usage: data.py OUT N_SAMPLES

TOKENIZER=FILE takes an existing tokenizer.json instead of training one.  Needs tokenizers 0.23, jinja2, numpy.
"""
import json
import os
import random
import re
import sys
import time
from multiprocessing import Pool

import jinja2
import numpy as np


import corpus

# pocket speaks by the model's own template
TEMPLATE = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "pocket", "chat_template.jinja"
)
ADDED = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
SPECIAL = {t for t in ADDED if t.startswith("<|")} - {
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
}
REGEX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def env():
    e = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    e.filters["tojson"] = lambda x, **k: json.dumps(x, ensure_ascii=False)

    def rex(m):
        raise ValueError(m)

    e.globals["raise_exception"] = rex
    return e.from_string(open(TEMPLATE).read())


T = None


def render(s, r=None):
    global T
    if "text" in s:
        return s["text"]
    T = T or env()
    ms = [dict(m) for m in s["messages"]]
    if r is not None and not s["tools"]:
        ends = [i for i, m in enumerate(ms) if m["role"] == "assistant"]
        ms = ms[: r.choice(ends) + 1]
    if not s["think"]:
        for m in ms:
            if m["role"] == "assistant":
                m["reasoning_content"] = ""
    return T.render(messages=ms, tools=s["tools"], add_generation_prompt=False)


def build_tokenizer(path, vocab=8160):
    from tokenizers import Tokenizer, models, trainers, pre_tokenizers, decoders, normalizers, Regex, AddedToken

    r = random.Random(11)
    texts = [render(corpus.sample(r), r) for _ in range(40000)]
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(REGEX), "isolated", False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    t.decoder = decoders.ByteLevel()
    # control tokens are cut out here and added after the training
    cut = re.compile("|".join(re.escape(a) for a in ADDED))
    t.train_from_iterator(
        (p for x in texts for p in cut.split(x)),
        trainers.BpeTrainer(
            vocab_size=vocab, min_frequency=2, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        ),
    )
    t.add_tokens([AddedToken(a, special=a in SPECIAL, normalized=False) for a in ADDED])
    t.save(path)
    return t


def work(a):
    path, seed, n, long = a
    from tokenizers import Tokenizer

    t = Tokenizer.from_file(path)
    r = random.Random(seed)
    out = []
    eot = t.token_to_id("<|endoftext|>")
    for _ in range(n):
        out += t.encode(render(corpus.sample(r, long), r)).ids + [eot]
    return np.array(out, np.uint16)


if __name__ == "__main__":
    out, n = sys.argv[1], int(sys.argv[2])
    os.makedirs(out, exist_ok=True)
    t0 = time.time()
    p = f"{out}/tokenizer.json"
    from tokenizers import Tokenizer

    if os.environ.get("TOKENIZER"):
        t = Tokenizer.from_file(os.environ["TOKENIZER"])
        t.save(p)
    else:
        t = build_tokenizer(p)
    print("tokenizer", t.get_vocab_size(), round(time.time() - t0), "s", flush=True)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with Pool(os.cpu_count()) as pool:
        k = 64
        tr = np.concatenate(pool.map(work, [(p, 1000 + i, n // k, False) for i in range(k)], 1))
        lo = np.concatenate(pool.map(work, [(p, 5000 + i, n // k // 40 + 1, True) for i in range(k)], 1))
        ev = np.concatenate(pool.map(work, [(p, 9000 + i, 16, False) for i in range(16)], 1))
    tr.tofile(f"{out}/train.u16")
    lo.tofile(f"{out}/long.u16")
    ev.tofile(f"{out}/eval.u16")
    print("tokens", len(tr), len(lo), len(ev), round(time.time() - t0), "s", flush=True)
