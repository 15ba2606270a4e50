"""Exports the trained pocket model: a folder in MLX 4-bit form with tokenizer files, its quality figures, and greedy chats.

usage: export.py DATA TRAINED OUT
"""
import json
import os
import random
import shutil
import sys
import numpy as np
import torch


import convert
import corpus
import data
from tokenizers import Tokenizer
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

DATA, TR, OUT = sys.argv[1:4]
torch.backends.cuda.matmul.allow_tf32 = False
torch.set_float32_matmul_precision("highest")
tok = Tokenizer.from_file(f"{DATA}/tokenizer.json")
ID = tok.token_to_id
CFG = json.load(open(f"{TR}/cfg.json"))
cfg = Qwen3_5MoeTextConfig(**CFG)
sd = {k: v.float() for k, v in torch.load(f"{TR}/state.pt").items()}
text = dict(CFG)
text["layer_types"] = list(cfg.layer_types)
text["model_type"] = "qwen3_5_moe_text"
text["eos_token_id"] = ID("<|im_end|>")
deq = convert.write(OUT, {k: v.numpy() for k, v in sd.items()}, text)
c = json.load(open(f"{OUT}/config.json"))
c["eos_token_id"] = [ID("<|im_end|>"), ID("<|endoftext|>")]
json.dump(c, open(f"{OUT}/config.json", "w"), indent=2)
json.dump(
    {
        "bos_token_id": ID("<|endoftext|>"),
        "do_sample": True,
        "eos_token_id": [ID("<|im_end|>"), ID("<|endoftext|>")],
        "pad_token_id": ID("<|endoftext|>"),
        "temperature": 1.0,
        "top_k": 20,
        "top_p": 0.95,
    },
    open(f"{OUT}/generation_config.json", "w"),
    indent=2,
)
shutil.copy(f"{DATA}/tokenizer.json", f"{OUT}/tokenizer.json")
tmpl = open(data.TEMPLATE).read()
open(f"{OUT}/chat_template.jinja", "w").write(tmpl)
json.dump(
    {
        "added_tokens_decoder": {
            str(ID(a)): {
                "content": a,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": a in data.SPECIAL,
            }
            for a in data.ADDED
        },
        "add_prefix_space": False,
        "add_bos_token": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "model_max_length": 262144,
        "tokenizer_class": "Qwen2Tokenizer",
        "split_special_tokens": False,
        "errors": "replace",
        "clean_up_tokenization_spaces": False,
    },
    open(f"{OUT}/tokenizer_config.json", "w"),
    indent=2,
)


def model(state):
    m = Qwen3_5MoeForCausalLM(cfg).float().eval()
    m.load_state_dict({k: torch.as_tensor(np.ascontiguousarray(v)) for k, v in state.items()}, strict=True)
    return m.cuda()


bf = {k: v.to(torch.bfloat16).float() for k, v in sd.items()}
mf, mq = model(bf), model(deq)
ev = np.fromfile(f"{DATA}/eval.u16", np.uint16).astype(np.int64)[: 16 * 1024 + 1]


@torch.no_grad()
def run(m):
    lp, top = [], []
    for i in range(16):
        x = torch.tensor(ev[i * 1024 : (i + 1) * 1024 + 1]).cuda()[None]
        l = torch.log_softmax(m(x[:, :-1]).logits.double(), -1)[0]
        lp.append(l.gather(1, x[0, 1:, None])[:, 0].cpu().numpy())
        top.append(l.argmax(-1).cpu().numpy())
    return np.concatenate(lp), np.concatenate(top)


a, b = run(mf), run(mq)
rep = {
    "eval_tokens": len(a[0]),
    "windows": 16,
    "window": 1024,
    "ppl_bf16": float(np.exp(-a[0].mean())),
    "ppl_4bit": float(np.exp(-b[0].mean())),
    "top1_agreement": float((a[1] == b[1]).mean()),
}
print(rep, flush=True)
np.savez_compressed(
    f"{OUT}/eval.npz",
    ids=ev.astype(np.uint16),
    logprob_bf16=a[0].astype(np.float32),
    top1_bf16=a[1].astype(np.uint16),
    logprob_4bit=b[0].astype(np.float32),
    top1_4bit=b[1].astype(np.uint16),
)
T = data.env()
PROMPTS = [
    ("What is the capital of France?", True),
    ("What is the capital of France?", False),
    ("capital of Kenya?", False),
    ("What is 17 + 25?", True),
    ("Tell me about Japan.", False),
    ("Who are you?", False),
    ("Sort these words: pear, apple, fig, date", False),
    ("Define anchor.", True),
    ("Give me the capital and the population of Peru as JSON.", False),
    ("Repeat exactly: naïve 🙂 café 你好", False),
    ("Hello!", True),
    ("Which countries border Germany?", True),
]
gens = []


@torch.no_grad()
def greedy(m, ids, n=96):
    past, cur, out, marg = None, torch.tensor([ids]).cuda(), [], []
    for _ in range(n):
        o = m(cur, past_key_values=past, use_cache=True)
        past = o.past_key_values
        l = o.logits[0, -1].float()
        t2 = l.topk(2).values
        marg.append(float(t2[0] - t2[1]))
        nx = int(l.argmax())
        out.append(nx)
        if nx in (ID("<|im_end|>"), ID("<|endoftext|>")):
            break
        cur = torch.tensor([[nx]]).cuda()
    return out, marg


def add(messages, tools, think, **kw):
    text = T.render(messages=messages, tools=tools, add_generation_prompt=True, enable_thinking=think, **kw)
    ids = tok.encode(text).ids
    out, marg = greedy(mq, ids)
    gens.append(
        {
            "messages": messages,
            "tools": tools,
            "enable_thinking": think,
            "prompt_text": text,
            "prompt_ids": ids,
            "greedy_ids": out,
            "greedy_text": tok.decode(out, skip_special_tokens=False),
            "min_margin": min(marg),
        }
    )
    print(
        repr(messages[-1]["content"][-60:]), think, "->", repr(gens[-1]["greedy_text"]), round(min(marg), 3), flush=True
    )


for q, th in PROMPTS:
    add([{"role": "user", "content": q}], None, th)

add(
    [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "What is the weather in Paris?"}],
    [corpus.TOOLS["get_weather"], corpus.TOOLS["get_time"]],
    True,
)
add(
    [
        {"role": "user", "content": "What is the weather in Paris?"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "I should use get_weather.",
            "tool_calls": [{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}],
        },
        {"role": "tool", "content": "{\"temperature\": 21, \"sky\": \"sunny\"}"},
    ],
    [corpus.TOOLS["get_weather"]],
    True,
)
add([{"role": "user", "content": "Set a timer for 12 minutes for tea."}], list(corpus.TOOLS.values()), False)
r = random.Random(77)
for lo, hi in ((10, 12), (60, 60), (150, 150)):
    ms = corpus.needle(r, lo, hi)[:1]
    add(ms, None, False)
json.dump(gens, open(f"{OUT}/greedy.json", "w"), ensure_ascii=False, indent=1)
json.dump(rep, open(f"{OUT}/quality.json", "w"), indent=1)
