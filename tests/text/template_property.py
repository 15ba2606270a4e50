"""Random conversations rendered by jinja2 and by calla must be equal, byte for byte; where jinja2 raises, calla must fail.

usage: template_property.py RENDER_TEMPLATE SEED COUNT TEMPLATE_3_6 TEMPLATE_3_5
"""
import json
import math
import random
import struct
import subprocess
import sys

from jinja2.exceptions import TemplateError, UndefinedError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


def environment():
    """Jinja as the reference sets it up."""
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])

    def raise_exception(message):
        raise TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


WORDS = ["hello", "world", "a", "", " ", "\n", "\n\n", "\t", "\u00a0", "\u3000", "\u2028", "\x1c", "\x85", "\ufeff", "\u200b", "\x00", "\x7f",
         "é", "e\u0301", "中文", "😀", "👩‍👩‍👧", "\\", '"', "'", "<", ">", "&", "{{ x }}", "{% if %}", "<think>", "</think>", "<tool_response>",
         "</tool_response>", "<tool_call>", "</tool_call>", "<|im_end|>", "<|im_start|>", "<parameter=a>", "</parameter>", "\r\n", "\u1680", "0"]


def text(r, most=8):
    return "".join(r.choice(WORDS) for _ in range(r.randrange(most)))


def number(r):
    kind = r.randrange(7)
    if kind == 0:
        return r.choice([0, -1, 2**63 - 1, -2**63, 2**63, 2**64 - 1, 10**15, 10**16])
    if kind == 1:
        return r.choice([0.0, -0.0, 1.0, 1e5, 1e15, 1e16, 1e17, 0.1, 1e-4, 1e-5, 5e-324, 1.7976931348623157e308, 0.30000000000000004])
    if kind == 2:
        return math.ldexp(r.choice([1, -1]), r.randrange(-1074, 1023))
    if kind == 3:
        v = struct.unpack("<d", r.randbytes(8))[0]
        return v if math.isfinite(v) else 1.5
    if kind == 4:
        return round(r.uniform(-1000, 1000), r.randrange(6))
    if kind == 5:
        return float(r.randrange(10**r.randrange(1, 20)))
    return r.randrange(-2**40, 2**40)


def value(r, depth=0):
    kind = r.randrange(8 if depth < 3 else 5)
    if kind < 2:
        return text(r)
    if kind == 2:
        return number(r)
    if kind == 3:
        return r.choice([True, False, None])
    if kind == 4:
        return number(r)
    if kind == 5:
        return [value(r, depth + 1) for _ in range(r.randrange(4))]
    return {key(r): value(r, depth + 1) for _ in range(r.randrange(4))}


def key(r):
    return text(r, 4).replace("\x00", "")


def part(r):
    kind = r.randrange(12)
    if kind < 6:
        return {"type": "text", "text": text(r)}
    if kind == 6:
        return {"text": r.choice([None, True, False, number(r), text(r)])}
    if kind == 7:
        return r.choice([{"type": "image"}, {"type": "image_url", "image_url": {"url": "x"}}, {"image": 1}])
    if kind == 8:
        return r.choice([{"type": "video"}, {"video": "x"}])
    if kind == 9:
        return r.choice(["text", "an image", "video", "other", ["text"], ["image"], []])
    if kind == 10:
        return r.choice([{}, {"type": "audio"}, 5, None, True])
    return {"type": "text", "text": text(r), "extra": value(r, 2)}


def content(r, strange):
    kind = r.randrange(10)
    if kind < 7:
        return text(r)
    if kind == 7:
        return [{"type": "text", "text": text(r)} for _ in range(r.randrange(4))]
    if kind == 8 and strange:
        return [part(r) for _ in range(r.randrange(4))]
    return r.choice([None, ""] + ([5, True, False, 1.5, {}, {"a": 1}] if strange else []))


def tool_call(r, strange):
    call = {"name": text(r, 4)}
    if r.random() < 0.9:
        call["arguments"] = {key(r): value(r) for _ in range(r.randrange(4))}
    if strange and r.random() < 0.1:
        call["arguments"] = r.choice([None, 5, [], [["a", 1]]])
    if strange and r.random() < 0.1:
        call["name"] = r.choice([None, 5])
    if strange and r.random() < 0.05:
        return r.choice([{}, None, "x", {"function": None}, {"function": "x"}])
    return {"id": "call_1", "type": "function", "function": call} if r.random() < 0.7 else call


def message(r, role, strange):
    m = {"role": role}
    if not strange or r.random() < 0.95:
        m["content"] = content(r, strange)
    if role == "assistant":
        if r.random() < 0.5:
            m["reasoning_content"] = r.choice([text(r), "", None] + ([5, []] if strange else []))
        if r.random() < 0.4:
            m["tool_calls"] = [tool_call(r, strange) for _ in range(r.randrange(4))]
        if strange and r.random() < 0.1:
            m["tool_calls"] = r.choice([None, {}, {"a": 1}, 0, 5, True, "", "x"])
    return m


def request(r):
    strange = r.random() < 0.3
    roles = ["system"] if r.random() < 0.5 else []
    for _ in range(r.randrange(1, 7)):
        roles.append(r.choice(["user", "user", "assistant", "assistant", "tool", "tool"]))
    if strange and r.random() < 0.2:
        roles.insert(r.randrange(len(roles) + 1), r.choice(["system", "developer", "function", "", "USER", None, 5]))
    elif r.random() < 0.8:
        roles.insert(1 if roles[0] == "system" else 0, "user")
    made = {"messages": [message(r, role, strange) for role in roles]}
    if strange and r.random() < 0.05:
        made["messages"][r.randrange(len(roles))] = r.choice([{}, None, 5, "x", []])
    if strange and r.random() < 0.02:
        made["messages"] = []
    if r.random() < 0.4:
        made["tools"] = [value(r) for _ in range(r.randrange(3))]
    for flag in ("enable_thinking", "preserve_thinking", "add_vision_id"):
        if r.random() < 0.5:
            made[flag] = r.random() < 0.5
    made["add_generation_prompt"] = r.random() < 0.8
    made["kind"] = r.choice(["3.6", "3.5"])
    return made


def main():
    exe, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    env = environment()
    templates = {}
    for kind, path in (("3.6", sys.argv[4]), ("3.5", sys.argv[5])):
        with open(path, encoding="utf-8", newline="") as f:
            templates[kind] = env.from_string(f.read())
    r = random.Random(seed)
    requests = [request(r) for _ in range(count)]
    # one line a request: escapes keep lone control characters and line separators out of the way
    done = subprocess.run([exe], input="".join(json.dumps(q) + "\n" for q in requests), capture_output=True, text=True, encoding="utf-8")
    if done.returncode != 0:
        sys.exit(f"{exe} ended with {done.returncode}: {done.stderr}")
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    if len(answers) != count:
        sys.exit(f"{count} requests, {len(answers)} answers")
    texts = errors = 0
    for i, (q, answer) in enumerate(zip(requests, answers)):
        variables = {k: v for k, v in q.items() if k != "kind"}
        try:
            expected = {"text": templates[q["kind"]].render(**variables)}
            texts += 1
        except (TemplateError, UndefinedError, TypeError) as e:
            expected = {"error": str(e)}
            errors += 1
            if isinstance(e, TemplateError) and not isinstance(e, UndefinedError) and "error" in answer and str(e) in answer["error"]:
                continue
            if not isinstance(e, TemplateError) or isinstance(e, UndefinedError):
                if "error" in answer:
                    continue
        if answer != expected:
            sys.exit(f"seed {seed}, request {i}: {json.dumps(q)}\nexpected {expected!r}\ngot      {answer!r}")
    print(f"seed {seed}: {texts} texts equal, {errors} errors agree")
    if texts < count / 2 or errors < count / 100:
        sys.exit("too few texts or errors to mean anything")


if __name__ == "__main__":
    main()
