#!/usr/bin/env python3
"""Builds a tokenizer.json of the real model's size and content from its merges.

    tools/build_tokenizer.py DATA OUT [--pairs]

DATA holds (tests/data/text/real):
    merges.txt.xz     the 247,587 merges, "a b" a line
    vocab_gaps.tsv    token id of merge line m is 256 + m + offset; the file bounds the offset, exactly where that could be proved
    added_tokens.tsv  the 33 added tokens, and which of them tokenizer.json has
    skeleton.json     the official tokenizer.json without vocab and merges
OUT is the file to write.  Plain: the official file's form ("a b", 26 added tokens; 12,807,982 bytes).
--pairs: the MLX conversion's (["a", "b"], all 33 added tokens; 19,989,343 bytes).

201 tokens of the real vocabulary are made by no merge and their strings are not known.  They get placeholders, of the total length
that the official file's size leaves for them; no text can give their ids.  Where an offset is only bounded the lowest one is taken,
so ids between two proved ones may be off by a few: tests use ids that other people's tokenizers gave.
"""
import json
import lzma
import pathlib
import sys

UNMADE, UNMADE_BYTES = 201, 5585  # the bytes are those of the 201 strings as JSON, quotes included


def byte_symbols():
    """The 256 single-byte tokens in order of id: the printable bytes, then the others as U+0100, U+0101, …"""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(b) for b in printable] + [chr(0x100 + i) for i in range(256 - len(printable))]


def vocabulary(data, merges):
    """[token of id 0, of id 1, …]"""
    tokens = byte_symbols() + [None] * (len(merges) + UNMADE)
    for line in (data / "vocab_gaps.tsv").read_text().splitlines():
        if line.startswith("#") or line.startswith("m_first"):
            continue
        first, last, low, _ = map(int, line.split("\t"))
        for m in range(first, last + 1):
            tokens[256 + m + low] = merges[m].replace(" ", "")
    holes = [i for i, t in enumerate(tokens) if t is None]
    assert len(holes) == UNMADE and len(set(tokens)) == len(tokens) - UNMADE + 1
    short, longer = divmod(UNMADE_BYTES - 2 * UNMADE, UNMADE)
    for n, i in enumerate(holes):
        tokens[i] = f"<unmade {i}>".replace(" ", "_").ljust(short + (n < longer), "_")
    assert len(set(tokens)) == len(tokens)
    return tokens


def added_tokens(data):
    out = []
    for line in (data / "added_tokens.tsv").read_text().splitlines()[1:]:
        number, content, special, _ = line.split("\t")
        out.append({"id": int(number), "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                    "special": special == "true"})
    return out


def main():
    data, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    merges = lzma.open(data / "merges.txt.xz", "rt", encoding="utf8").read().splitlines()
    whole = json.loads((data / "skeleton.json").read_text(encoding="utf8"))
    if "--pairs" in sys.argv:
        whole["added_tokens"] = added_tokens(data)
        whole["model"]["merges"] = [m.split(" ") for m in merges]
    else:
        whole["model"]["merges"] = merges
    whole["model"]["vocab"] = {token: i for i, token in enumerate(vocabulary(data, merges))}
    out.write_text(json.dumps(whole, ensure_ascii=False, indent=2), encoding="utf8")


main()
