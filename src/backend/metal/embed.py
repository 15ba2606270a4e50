#!/usr/bin/env python3
"""embed.py: the Metal kernels as C arrays: as one source text, which Metal compiles on the user's machine, or as a compiled library.

    embed.py source NAME SOURCE_ROOT OUT.c KERNEL.metal...
    embed.py library OUT.c [FILE.metallib]

#include "..." lines are replaced by the file (from SOURCE_ROOT), once each; <...> stay.  Without a file the library has no bytes.
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


def array_of(data):
    return '{\n    ' + ',\n    '.join(', '.join(map(str, data[i:i + 24])) for i in range(0, len(data), 24)) + '};\n'


def write_source(name, root, out, *kernels):
    root, seen, lines = Path(root).resolve(), set(), []
    for kernel in kernels:
        lines += expand(Path(kernel).resolve(), root, seen)
    data = [b if b < 128 else b - 256 for b in '\n'.join(lines).encode() + b'\n\0']
    Path(out).write_text('#include "backend/metal/source.h"\n\nconst char ' + name + '[] = ' + array_of(data))
    depfile = Path(out + '.d')
    depfile.write_text(f'{out}: ' + ' '.join(str(p) for p in sorted(seen)) + '\n')


def write_library(out, *library):
    data = Path(library[0]).read_bytes() if library else b''
    Path(out).write_text(f'#include "backend/metal/source.h"\n\nconst uint64_t metal_library_bytes = {len(data)};\n'
                         'const uint8_t metal_library[] = ' + array_of(data or b'\0'))


{'source': write_source, 'library': write_library}[sys.argv[1]](*sys.argv[2:])
