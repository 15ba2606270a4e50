#!/usr/bin/env python3
"""Writes tests/data/text/real_vectors.json.gz: texts with the ids that the official tokenizer of Qwen3.6-35B-A3B gives them.

    tools/text/collect_vectors.py FOLDER tests/data/text/real_vectors.json.gz

FOLDER holds, from public repositories:
    qwen36_tokenizer_chat_golden.json   andreaborio/ds4 tests/qwen (13 texts, 5 rendered chats)
    extra_vectors.json                  8 vectors of NinjaPear/gufo and llama.cpp's tokenizer check text
    kitoken/                            Systemcluster/kitoken tests/data at ee74d092 (BSD-2-Clause: tests/data/text/kitoken.LICENSE);
                                        a text a line, in which "\\n" is a newline, "\\s" a space and "\\x" nothing; utf8 is one text
Output: [{"name": …, "text": …, "ids": […]}, …]
"""
import gzip
import json
import pathlib
import sys


def numbers(line):
    return [int(x) for x in line.replace(",", " ").split()]


def kitoken(folder):
    for name in ("small", "mixed"):
        texts = (folder / f"{name}_input.txt").read_bytes().decode().split("\n")
        ids = (folder / f"{name}_tokens_qwen35.txt").read_text().split("\n")
        if not texts[-1]:
            texts.pop()
        if not ids[-1]:
            ids.pop()
        assert len(texts) == len(ids)
        for i, (text, line) in enumerate(zip(texts, ids)):
            text = text.replace("\\n", "\n").replace("\\s", " ").replace("\\x", "")
            yield {"name": f"kitoken_{name}_{i}", "text": text, "ids": numbers(line)}
    yield {"name": "kitoken_utf8", "text": (folder / "utf8_input.txt").read_bytes().decode(),
           "ids": numbers((folder / "utf8_tokens_qwen35.txt").read_text())}


def main():
    folder = pathlib.Path(sys.argv[1])
    golden = json.loads((folder / "qwen36_tokenizer_chat_golden.json").read_text(encoding="utf8"))
    out = [{"name": v["name"], "text": v["text"], "ids": v["token_ids"]} for v in golden["text_vectors"]]
    out += [{"name": v["name"], "text": v["rendered"], "ids": v["token_ids"]} for v in golden["chat_vectors"]]
    out += [{"name": v["name"], "text": v["text"], "ids": v["token_ids"]}
            for v in json.loads((folder / "extra_vectors.json").read_text(encoding="utf8"))]
    out += kitoken(folder / "kitoken")
    text = json.dumps(out, ensure_ascii=False, separators=(",", ":")).encode()
    with open(sys.argv[2], "wb") as f, gzip.GzipFile(fileobj=f, mode="wb", compresslevel=9, mtime=0) as z:
        z.write(text)
    print(f"{len(out)} vectors, {sum(len(v['ids']) for v in out):,} ids, {len(text):,} bytes")


main()
