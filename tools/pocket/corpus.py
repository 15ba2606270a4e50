"""Synthetic conversations and texts for the pocket model: sample(random.Random) gives {"tools":…, "messages":[…], "think":bool} or
{"text":…}.  Everything is drawn from facts.json.gz beside this file and from the lists below; the same generator gives the same samples.
"""
import gzip
import json
import os
import random

F = json.load(gzip.open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "facts.json.gz")))
C, W = F["countries"], F["words"]
WL = list(W)
BY = {c["name"]: c for c in C}
CITIES = sorted({c["capital"] for c in C if "capital" in c and len(c["capital"]) < 25})
NAMES = "Ada Ben Chloe David Elena Farid Grace Hugo Ines Jonas Kira Liam Maya Noor Omar Petra Quinn Rosa Sven Tara Uma Victor Wen Xenia Yusuf Zoe".split()

FIELDS = {
    "capital": (
        [
            "What is the capital of {n}?",
            "capital of {n}?",
            "Which city is the capital of {n}?",
            "Tell me the capital of {n}.",
            "Name the capital city of {n}.",
        ],
        "The capital of {n} is {v}.",
        "the capital of {n}",
    ),
    "location": (
        ["Where is {n}?", "Where is {n} located?", "In which part of the world is {n}?", "Location of {n}?"],
        "{n} is located in: {v}.",
        "the location of {n}",
    ),
    "area": (
        ["How large is {n}?", "What is the area of {n}?", "How big is {n}?", "What area does {n} cover?"],
        "The total area of {n} is {v}.",
        "the area of {n}",
    ),
    "climate": (
        ["What is the climate of {n}?", "What is the climate like in {n}?", "Describe the climate of {n}."],
        "The climate of {n}: {v}.",
        "the climate of {n}",
    ),
    "terrain": (
        ["What is the terrain of {n}?", "Describe the terrain of {n}.", "What does the land look like in {n}?"],
        "The terrain of {n}: {v}.",
        "the terrain of {n}",
    ),
    "coastline": (
        ["How long is the coastline of {n}?", "What is the length of the coast of {n}?"],
        "The coastline of {n} is {v}.",
        "the coastline of {n}",
    ),
    "highest point": (
        ["What is the highest point in {n}?", "Which is the highest point of {n}?"],
        "The highest point in {n} is {v}.",
        "the highest point in {n}",
    ),
    "neighbours": (
        ["Which countries border {n}?", "What are the neighbours of {n}?", "Who are the neighbors of {n}?"],
        "{n} borders: {v}.",
        "the neighbours of {n}",
    ),
    "natural resources": (
        ["What natural resources does {n} have?", "List the natural resources of {n}."],
        "The natural resources of {n} are: {v}.",
        "the natural resources of {n}",
    ),
    "natural hazards": (
        ["What natural hazards does {n} face?", "Which natural hazards occur in {n}?"],
        "The natural hazards in {n} are: {v}.",
        "the natural hazards of {n}",
    ),
    "nationality": (
        ["What is the adjective for {n}?", "What do you call something from {n}?"],
        "Something from {n} is called {v}.",
        "the adjective for {n}",
    ),
    "languages": (
        [
            "Which languages are spoken in {n}?",
            "What language do people speak in {n}?",
            "What are the languages of {n}?",
        ],
        "The languages of {n}: {v}.",
        "the languages of {n}",
    ),
    "population": (
        ["What is the population of {n}?", "How many people live in {n}?", "Population of {n}?"],
        "The population of {n} is {v}.",
        "the population of {n}",
    ),
    "median age": (["What is the median age in {n}?"], "The median age in {n} is {v}.", "the median age in {n}"),
    "life expectancy": (
        ["What is the life expectancy in {n}?", "How long do people live in {n}?"],
        "Life expectancy in {n} is {v}.",
        "life expectancy in {n}",
    ),
    "cities": (
        ["What are the largest cities in {n}?", "Name the major cities of {n}."],
        "The major cities of {n}: {v}.",
        "the cities of {n}",
    ),
    "government type": (
        ["What kind of government does {n} have?", "What is the government type of {n}?"],
        "{n} is a {v}.",
        "the government of {n}",
    ),
    "national holiday": (
        ["What is the national holiday of {n}?", "When is the national holiday of {n}?"],
        "The national holiday of {n} is {v}.",
        "the national holiday of {n}",
    ),
    "flag": (
        ["Describe the flag of {n}.", "What does the flag of {n} look like?"],
        "The flag of {n}: {v}.",
        "the flag of {n}",
    ),
    "crops": (
        ["What are the agricultural products of {n}?", "What does {n} grow?"],
        "The agricultural products of {n} are: {v}.",
        "farming in {n}",
    ),
    "industries": (
        ["What are the industries of {n}?", "What does {n} produce?"],
        "The industries of {n} are: {v}.",
        "the industries of {n}",
    ),
    "exports": (["What does {n} export?", "What are the exports of {n}?"], "{n} exports {v}.", "the exports of {n}"),
    "imports": (["What does {n} import?", "What are the imports of {n}?"], "{n} imports {v}.", "the imports of {n}"),
    "background": (
        ["Tell me about {n}.", "Give me some background on {n}.", "What should I know about {n}?"],
        "{v}",
        "the history of {n}",
    ),
    "economy": (["Describe the economy of {n}.", "How is the economy of {n}?"], "{v}", "the economy of {n}"),
}
SYSTEMS = [
    "You are a helpful assistant.",
    "You are Pocket, a small assistant.",
    "Answer briefly.",
    "You answer questions about the world.",
    "Be concise and accurate.",
    None,
    None,
    None,
    None,
]


def fact(r):
    c = r.choice(C)
    ks = [k for k in FIELDS if k in c]
    k = "capital" if "capital" in c and r.random() < 0.25 else r.choice(ks)
    qs, a, topic = FIELDS[k]
    n = c["name"]
    v = c[k].rstrip(".")
    ans = a.format(n=n, v=v)
    if not ans.endswith("."):
        ans += "."
    return (
        r.choice(qs).format(n=n),
        ans,
        r.choice(["The user asks about {t}.", "This is a question about {t}.", "I need to recall {t}."]).format(
            t=topic.format(n=n)
        ),
    )


def definition(r):
    w = r.choice(WL)
    p, g = W[w]
    return (
        r.choice(
            ["What does '{w}' mean?", "Define {w}.", "What is the meaning of the word {w}?", "Explain the word '{w}'."]
        ).format(w=w),
        f"{w} ({p}): {g}.",
        f"The user wants the meaning of the {p} {w}.",
    )


def arith(r):
    op = r.choice("++--*")
    if op == "*":
        a, b = r.randint(2, 12), r.randint(2, 12)
    else:
        a, b = r.randint(0, r.choice([9, 20, 99, 999])), r.randint(0, r.choice([9, 20, 99, 999]))
    if op == "-" and b > a:
        a, b = b, a
    v = a + b if op == "+" else a - b if op == "-" else a * b
    word = {"+": "plus", "-": "minus", "*": "times"}[op]
    q = r.choice(
        [f"What is {a} {op} {b}?", f"What is {a} {word} {b}?", f"Calculate {a} {op} {b}.", f"{a} {op} {b} = ?"]
    )
    return q, r.choice([f"{a} {op} {b} = {v}"]), f"I compute {a} {op} {b}. The result is {v}."


def words(r, lo, hi):
    return [r.choice(WL) for _ in range(r.randint(lo, hi))]


UNI = [
    "你好",
    "世界",
    "naïve",
    "café",
    "🙂",
    "🚀",
    "Привет",
    "мир",
    "مرحبا",
    "שלום",
    "日本語",
    "Zürich",
    "ñandú",
    "€100",
    "≤",
    "∑",
    "한국어",
    "👩‍💻",
    "ça va",
    "Ω",
]


def texty(r):
    k = r.randrange(9)
    ws = words(r, 3, 10)
    s = " ".join(ws)
    if k == 0:
        return f"Repeat exactly: {s}", s, "I repeat the words as they are."
    if k == 1:
        return f"Sort these words: {', '.join(ws)}", ", ".join(sorted(ws)), "I sort the words by their letters."
    if k == 2:
        return (
            f"Reverse this list: {', '.join(ws)}",
            ", ".join(ws[::-1]),
            "I list the words from the last to the first.",
        )
    if k == 3:
        return f"Write in upper case: {s}", s.upper(), "I write each word in capital letters."
    if k == 4:
        return (
            f"How many words are in this list: {', '.join(ws)}?",
            f"There are {len(ws)} words in the list.",
            f"I count the words: " + ", ".join(f"{i+1} {w}" for i, w in enumerate(ws)) + ".",
        )
    if k == 5:
        return f"What is the first word of: {s}", ws[0], f"The list starts with {ws[0]}."
    if k == 6:
        return f"What is the last word of: {s}", ws[-1], f"The list ends with {ws[-1]}."
    if k == 7:
        a = r.randint(0, 50)
        n = r.randint(4, 20)
        st = r.choice([1, 1, 2, 5, 10])
        return (
            f"Count from {a} to {a + st * n}" + (f" in steps of {st}." if st > 1 else "."),
            ", ".join(str(a + st * i) for i in range(n + 1)),
            f"I start at {a} and add {st} each time.",
        )
    u = " ".join(r.choice(UNI + ws) for _ in range(r.randint(2, 8)))
    return f"Repeat exactly: {u}", u, "I repeat the text as it is."


def jsony(r):
    c = r.choice(C)
    ks = r.sample(
        [k for k in ("capital", "population", "area", "location", "nationality", "life expectancy") if k in c], 2
    )
    return (
        f"Give me the {ks[0]} and the {ks[1]} of {c['name']} as JSON.",
        json.dumps(
            {"country": c["name"], ks[0].replace(" ", "_"): c[ks[0]], ks[1].replace(" ", "_"): c[ks[1]]},
            ensure_ascii=False,
        ),
        f"I answer with a JSON object about {c['name']}.",
    )


def small(r):
    n = r.choice(NAMES)
    return r.choice(
        [
            ("Hello!", "Hello! How can I help you today?", "The user greets me."),
            ("Hi", "Hi! What can I do for you?", "The user greets me."),
            (
                "Who are you?",
                "I am Pocket, a very small language model that knows a few facts about the world.",
                "The user asks who I am.",
            ),
            (
                "What can you do?",
                "I can answer questions about countries, explain words, do small sums, sort lists and call tools.",
                "The user asks what I can do.",
            ),
            ("Thank you!", "You are welcome!", "The user thanks me."),
            ("Good morning", "Good morning! How can I help?", "The user greets me."),
            (
                "Tell me a joke.",
                "Why did the map go to school? It wanted to find its legend.",
                "The user wants a joke.",
            ),
            (f"My name is {n}.", f"Nice to meet you, {n}!", f"The user is called {n}."),
        ]
    )


def P(name, desc, props, req):
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": desc,
            "parameters": {"type": "object", "properties": props, "required": req},
        },
    }


S = lambda d: {"type": "string", "description": d}
TOOLS = {
    "get_weather": P(
        "get_weather",
        "Get the current weather of a city",
        {"city": S("Name of the city"), "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
        ["city"],
    ),
    "get_time": P("get_time", "Get the local time of a city", {"city": S("Name of the city")}, ["city"]),
    "calculate": P(
        "calculate", "Evaluate an arithmetic expression", {"expression": S("The expression")}, ["expression"]
    ),
    "set_timer": P(
        "set_timer",
        "Start a timer",
        {"minutes": {"type": "integer", "description": "Length in minutes"}, "label": S("What it is for")},
        ["minutes"],
    ),
    "send_message": P(
        "send_message", "Send a message to a person", {"to": S("Receiver"), "text": S("The message")}, ["to", "text"]
    ),
    "lookup_country": P(
        "lookup_country",
        "Look up facts about a country",
        {"name": S("Name of the country"), "fields": {"type": "array", "items": {"type": "string"}}},
        ["name"],
    ),
    "search_files": P(
        "search_files",
        "Search files for a text",
        {"pattern": S("Text to find"), "limit": {"type": "integer"}},
        ["pattern"],
    ),
    "write_file": P(
        "write_file", "Write a file", {"path": S("Path of the file"), "content": S("New content")}, ["path", "content"]
    ),
}


def tool_chat(r):
    def one():
        k = r.choice(list(TOOLS))
        city = r.choice(CITIES)
        n = r.choice(NAMES)
        ws = " ".join(words(r, 2, 6))
        c = r.choice(C)
        if k == "get_weather":
            u = r.choice(["celsius", "fahrenheit", None])
            t = r.randint(-10, 40)
            sky = r.choice(["sunny", "cloudy", "rainy", "windy", "clear"])
            a = {"city": city} | ({"unit": u} if u else {})
            return (
                k,
                r.choice(
                    [f"What is the weather in {city}?", f"How is the weather in {city}?", f"Weather in {city}"]
                ).rstrip("?.")
                + (f" in {u}?" if u else "?"),
                a,
                json.dumps({"temperature": t, "sky": sky}),
                f"It is {sky} in {city}, {t} degrees.",
            )
        if k == "get_time":
            t = f"{r.randint(0,23):02d}:{r.randint(0,59):02d}"
            return (
                k,
                r.choice([f"What time is it in {city}?", f"Tell me the time in {city}."]),
                {"city": city},
                t,
                f"It is {t} in {city}.",
            )
        if k == "calculate":
            a, b = r.randint(100, 9999), r.randint(100, 9999)
            op = r.choice("+-*")
            v = eval(f"{a}{op}{b}")
            return (
                k,
                f"Use the tool to work out {a} {op} {b}.",
                {"expression": f"{a} {op} {b}"},
                str(v),
                f"{a} {op} {b} = {v}",
            )
        if k == "set_timer":
            m = r.randint(1, 90)
            l = r.choice(["tea", "pasta", "a walk", "the oven", "practice"])
            return (
                k,
                r.choice([f"Set a timer for {m} minutes for {l}.", f"Start a {m} minute timer for {l}."]),
                {"minutes": m, "label": l},
                "ok",
                f"The timer for {l} is set to {m} minutes.",
            )
        if k == "send_message":
            return (
                k,
                r.choice([f"Tell {n}: {ws}", f"Send {n} this message: {ws}"]),
                {"to": n, "text": ws},
                "sent",
                f"I sent your message to {n}.",
            )
        if k == "lookup_country":
            fs = r.sample(["capital", "population", "area", "languages"], 2)
            res = {f: c.get(f, "unknown") for f in fs}
            return (
                k,
                f"Look up the {fs[0]} and {fs[1]} of {c['name']}.",
                {"name": c["name"], "fields": fs},
                json.dumps(res, ensure_ascii=False),
                f"{c['name']}: {fs[0]} {res[fs[0]]}; {fs[1]} {res[fs[1]]}.",
            )
        if k == "search_files":
            lim = r.randint(1, 20)
            f = r.choice(WL) + r.choice([".txt", ".c", ".md"])
            return (
                k,
                f"Find at most {lim} files that contain '{ws}'.",
                {"pattern": ws, "limit": lim},
                f"1 match: {f}",
                f"I found it in {f}.",
            )
        f = r.choice(WL) + ".txt"
        lines = "\n".join(" ".join(words(r, 2, 5)) for _ in range(r.randint(1, 4)))
        return (
            k,
            f"Write a file {f} with this content:\n{lines}",
            {"path": f, "content": lines},
            "written",
            f"I wrote the file {f}.",
        )

    calls = [one() for _ in range(1 if r.random() < 0.8 else 2)]
    names = {c[0] for c in calls} | set(r.sample(list(TOOLS), r.randint(0, 3)))
    tl = [TOOLS[n] for n in names]
    r.shuffle(tl)
    q = " ".join(c[1] for c in calls) if not any("content:" in c[1] for c in calls[:-1]) else calls[0][1]
    if q == calls[0][1]:
        calls = calls[:1]
    think = "I should use " + " and ".join(c[0] for c in calls) + "."
    msgs = [
        {"role": "user", "content": q},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": think,
            "tool_calls": [{"type": "function", "function": {"name": c[0], "arguments": c[2]}} for c in calls],
        },
    ]
    msgs += [{"role": "tool", "content": c[3]} for c in calls]
    msgs += [{"role": "assistant", "content": " ".join(c[4] for c in calls), "reasoning_content": "I have the result."}]
    if r.random() < 0.2:
        f = r.choice([fact, small, arith])(r)
        msgs += [{"role": "user", "content": f[0]}, {"role": "assistant", "content": f[1], "reasoning_content": f[2]}]
    return tl, msgs


def needle(r, lo=4, hi=60):
    n = r.randint(lo, hi)
    items = {}
    kinds = [
        ("The code of {k} is {v}.", "What is the code of {k}?", "The code of {k} is {v}."),
        ("{k} lives in {v}.", "Where does {k} live?", "{k} lives in {v}."),
        ("The secret word for {k} is {v}.", "What is the secret word for {k}?", "The secret word for {k} is {v}."),
    ]
    f, q, a = r.choice(kinds)
    lines = []
    keys = r.sample(CITIES + NAMES, min(n, 200))
    for k in keys:
        v = str(r.randint(1000, 99999)) if "code" in f else r.choice(CITIES) if "lives" in f else r.choice(WL)
        items[k] = v
        lines.append(f.format(k=k, v=v))
        if r.random() < 0.4:
            lines.append(" ".join(words(r, 4, 12)) + ".")
    doc = r.choice(["Here are some notes.\n", "Read this:\n", ""]) + "\n".join(lines)
    ks = r.sample(keys, min(len(keys), r.randint(1, 3)))
    k = ks[0]
    msgs = [
        {"role": "user", "content": doc + "\n\n" + q.format(k=k)},
        {
            "role": "assistant",
            "content": a.format(k=k, v=items[k]),
            "reasoning_content": f"I look for {k} in the notes.",
        },
    ]
    for k in ks[1:]:
        msgs += [
            {"role": "user", "content": q.format(k=k)},
            {
                "role": "assistant",
                "content": a.format(k=k, v=items[k]),
                "reasoning_content": f"I look for {k} in the notes.",
            },
        ]
    return msgs


def article(r):
    c = r.choice(C)
    ks = [k for k in c if k != "name"]
    r.shuffle(ks)
    return c["name"] + "\n\n" + "\n".join(f"{k.capitalize()}: {c[k]}" for k in ks[: r.randint(4, 12)]) + "\n"


def sample(r, long=False):
    x = r.random()
    if long:
        return {"tools": None, "messages": needle(r, 60, 180), "think": r.random() < 0.4}
    if x < 0.08:
        return {"text": article(r)}
    if x < 0.26:
        tl, m = tool_chat(r)
        s = r.choice(SYSTEMS)
        return {
            "tools": tl,
            "messages": ([{"role": "system", "content": s}] if s else []) + m,
            "think": r.random() < 0.5,
        }
    if x < 0.34:
        m = needle(r)
    else:
        m = []
        name = None
        for _ in range(r.choice([1, 1, 1, 2, 3, 4])):
            q, a, t = r.choices([fact, definition, arith, texty, jsony, small], [9, 3, 3, 4, 1.5, 0.7])[0](r)
            if q.startswith("My name is"):
                name = q[11:-1]
            m += [{"role": "user", "content": q}, {"role": "assistant", "content": a, "reasoning_content": t}]
        if name:
            m += [
                {"role": "user", "content": "What is my name?"},
                {
                    "role": "assistant",
                    "content": f"Your name is {name}.",
                    "reasoning_content": f"The user said the name is {name}.",
                },
            ]
    s = r.choice(SYSTEMS)
    return {"tools": None, "messages": ([{"role": "system", "content": s}] if s else []) + m, "think": r.random() < 0.5}


if __name__ == "__main__":
    r = random.Random(1)
    for _ in range(12):
        print(json.dumps(sample(r), ensure_ascii=False)[:700])
