#!/usr/bin/env python3
"""Writes the tables of paths and request fields into docs/api.md, between "<!-- NAME -->" and "<!-- end -->".

usage: update.py PRINT_PARAMS DOC [--check]
PRINT_PARAMS is the program built from print_params.c.  --check changes nothing and fails if the document is not current.
"""
import re
import subprocess
import sys


def main():
    program, path = sys.argv[1:3]
    printed = subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True).stdout
    tables = dict(part.split("\n", 1) for part in printed.split("## ")[1:])
    with open(path, encoding="utf-8") as file:
        old = file.read()
    named = re.findall(r"<!-- (\w+) -->\n.*?<!-- end -->", old, flags=re.S)
    if sorted(named) != sorted(tables):
        sys.exit(f"{path} has tables {named}, but there are {list(tables)}")
    new = re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", lambda m: f"<!-- {m[1]} -->\n{tables[m[1]]}<!-- end -->", old, flags=re.S)
    if "--check" in sys.argv:
        if new != old:
            sys.exit(f"{path} is not current; run:  {sys.argv[0]} {program} {path}")
    else:
        with open(path, "w", encoding="utf-8") as file:
            file.write(new)


main()
