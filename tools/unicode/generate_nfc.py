#!/usr/bin/env python3
"""Writes src/text/nfc_gen.c: what normalization form C needs, as of Unicode 9.0.

Input: Debian's unicode-data (15.0) in /usr/share/unicode, of which only characters of age 9.0 or less are used; the stability policy
promises that their decompositions, combining classes and exclusions never change.  Characters assigned later are, as in the reference,
unassigned: stable starters that neither decompose nor compose.
    tools/unicode/generate_nfc.py > src/text/nfc_gen.c
    tools/unicode/generate_nfc.py --vectors > FILE     lines "source<TAB>expected" for tests, see vectors()
"""
import bz2
import sys

from tables import CODE_POINTS, c_array, two_stage

UCD = "/usr/share/unicode/"
YES, NO_OR_MAYBE = 0, 1
HANGUL = range(0xAC00, 0xAC00 + 11172)


def lines(name):
    for line in open(UCD + name, encoding="utf8"):
        line = line.split("#")[0].strip()
        if line:
            yield [f.strip() for f in line.split(";")]


def code_range(text):
    first, _, last = text.partition("..")
    return range(int(first, 16), int(last or first, 16) + 1)


def known():
    """Code points that Unicode 9.0 had assigned."""
    out = set()
    for f in lines("DerivedAge.txt"):
        if tuple(int(x) for x in f[1].split(".")) <= (9, 0):
            out.update(code_range(f[0]))
    return out


def load():
    old = known()
    combining, decomposition = {}, {}
    for f in lines("UnicodeData.txt"):
        c = int(f[0], 16)
        if c not in old:
            continue
        if f[3] != "0":
            combining[c] = int(f[3])
        if f[5] and not f[5].startswith("<"):
            parts = [int(x, 16) for x in f[5].split()]
            assert len(parts) <= 2 and all(p in old for p in parts)
            decomposition[c] = parts
    excluded = {c for f in lines("CompositionExclusions.txt") for c in code_range(f[0])}
    pairs = {}
    for c, parts in decomposition.items():
        if len(parts) == 2 and c not in excluded and c not in combining and parts[0] not in combining:
            pairs[tuple(parts)] = c
    return old, combining, decomposition, pairs


def quick_check(decomposition, pairs):
    """NFC_Quick_Check other than yes: what never stands in NFC, and what may join the character before it."""
    bad = {c for c, parts in decomposition.items() if len(parts) == 1 or pairs.get(tuple(parts)) != c}
    bad.update(second for _, second in pairs)
    bad.update(range(0x1161, 0x1176))
    bad.update(range(0x11A8, 0x11C3))
    return bad


def check(old, combining, decomposition, bad):
    """The file's own quick check agrees (more is allowed there: composites of later versions), and the property that nfc.c builds on:
    before a character that is a starter with quick check yes nothing can change, even after decomposing it."""
    theirs = {c for f in lines("DerivedNormalizationProps.txt") if f[1] == "NFC_QC" for c in code_range(f[0]) if c in old}
    assert bad <= theirs, [hex(c) for c in bad - theirs]
    for c in theirs - bad:
        print(f"U+{c:04X} joins only characters that are newer than 9.0", file=sys.stderr)
    for c in decomposition:
        if c in bad or c in combining:
            continue
        first = c
        while first in decomposition:
            first = decomposition[first][0]
        assert first not in bad and first not in combining, hex(c)


def generate():
    old, combining, decomposition, pairs = load()
    bad = quick_check(decomposition, pairs)
    check(old, combining, decomposition, bad)
    kinds = {(0, YES): 0}
    values = [0] * CODE_POINTS
    for c in sorted(set(combining) | bad):
        key = (combining.get(c, 0), NO_OR_MAYBE if c in bad else YES)
        values[c] = kinds.setdefault(key, len(kinds))
    shift, stage1, stage2 = two_stage(values)
    order = sorted(decomposition)
    index = {c: i for i, c in enumerate(order)}
    print(f"""/* nfc_gen.c: written by tools/unicode/generate_nfc.py from the characters of Unicode 9.0; do not edit.
 * {len(decomposition):,} canonical decompositions, {len(pairs):,} of which compose again, Hangul aside. */
/* clang-format off */
#include "text/nfc_tables.h"

_Static_assert(NFC_SHIFT == {shift}, "nfc_tables.h and nfc_gen.c disagree");
""")
    print(c_array(f"const uint8_t nfc_block[{len(stage1)}]", stage1))
    print(c_array(f"const uint8_t nfc_kind_of[{len(stage2)}]", stage2))
    print(c_array(f"const nfc_kind nfc_kinds[{len(kinds)}]", [f"{{{ccc}, {q}}}" for ccc, q in kinds]))
    print(f"const size_t nfc_n_decompositions = {len(order)};")
    print(c_array("const nfc_decomposition nfc_decompositions[]",
                  [f"{{0x{c:X}, 0x{decomposition[c][0]:X}, {'0x%X' % decomposition[c][1] if len(decomposition[c]) > 1 else 0}}}" for c in order]))
    print(f"const size_t nfc_n_compositions = {len(pairs)};")
    print(c_array("const uint16_t nfc_compositions[]", [index[pairs[p]] for p in sorted(pairs)]), end="")


def vectors():
    """NormalizationTest.txt, where all characters of a line are of age 9.0 or less: NFC(c1) = NFC(c2) = NFC(c3) = c2 and
    NFC(c4) = NFC(c5) = c4.  Hangul syllables are left out (the test computes them), and what repeats."""
    old = known()
    seen = set()
    for line in bz2.open(UCD + "NormalizationTest.txt.bz2", "rt", encoding="utf8"):
        line = line.split("#")[0].strip()
        if not line or line.startswith("@"):
            continue
        c = [tuple(int(x, 16) for x in f.split()) for f in line.split(";")[:5]]
        if not all(x in old for f in c for x in f) or (len(c[0]) == 1 and c[0][0] in HANGUL):
            continue
        for source, expected in ((c[0], c[1]), (c[2], c[1]), (c[4], c[3])):
            if (source, expected) not in seen:
                seen.add((source, expected))
                print("".join(map(chr, source)), "".join(map(chr, expected)), sep="\t")


vectors() if "--vectors" in sys.argv else generate()
