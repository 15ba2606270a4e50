#!/usr/bin/env python3
"""embed.py: the Metal kernels as one source text in a C array, since Metal compiles them on the user's machine.

    embed.py SOURCE_ROOT OUT.c KERNEL.metal...

#include "..." lines are replaced by the file (from SOURCE_ROOT), once each; <...> stay.
"""
import re
import sys
from pathlib import Path


def expand(path, root, seen):
    if path in seen:
        return []
    seen.add(path)
    lines = []
    for line in path.read_text().splitlines():
        if include := re.match(r'\s*#\s*include\s+"([^"]+)"', line):
            lines += expand((root / include[1]).resolve(), root, seen)
        else:
            lines.append(line)
    return lines


def main():
    root, out, *kernels = sys.argv[1:]
    root, seen, lines = Path(root).resolve(), set(), []
    for kernel in kernels:
        lines += expand(Path(kernel).resolve(), root, seen)
    data = '\n'.join(lines).encode() + b'\n\0'
    rows = [', '.join(str(b if b < 128 else b - 256) for b in data[i:i + 24]) for i in range(0, len(data), 24)]
    Path(out).write_text('#include "backend/metal/source.h"\n\nconst char metal_source[] = {\n    ' + ',\n    '.join(rows) + '};\n')
    depfile = Path(out + '.d')
    depfile.write_text(f'{out}: ' + ' '.join(str(p) for p in sorted(seen)) + '\n')


main()
