#!/usr/bin/env python3
"""check_includes.py: who may include whom, read from the #include lines, and a few things that only one folder may do.

    base <- text, base <- weights <- backend <- model <- engine; the engine also sees text; server and cli see include/calla.h, text and
    base (and cli server/server.h).  model/shape.h is a leaf that anyone may include.  No backend is named outside src/backend, and
    no backend knows another but ref.

With --self-test: plants one violation of each rule in a copy of the rules' world and expects it to be found.
"""
import re
import sys
import tempfile
from pathlib import Path

# What each folder of src/ may include, as prefixes of the paths in #include "...".
MAY_INCLUDE = {
    'base': ['base/'],
    'text': ['text/', 'base/'],
    'weights': ['weights/', 'base/'],
    'backend': ['backend/', 'weights/', 'base/'],
    'model': ['model/', 'backend/backend.h', 'weights/', 'base/'],
    'engine': ['engine/', 'model/', 'backend/backend.h', 'weights/', 'text/', 'base/'],
    'server': ['server/', 'text/', 'base/'],
    'cli': ['cli/', 'server/server.h', 'text/', 'base/'],
}
EVERYONE = ['calla.h', 'model/shape.h']
GENERATED = ['commit.h']
LEAVES = ['model/shape.h', 'base/float.h', 'base/random.h']  # these include no header of calla but each other

INCLUDE = re.compile(r'^[ \t]*#[ \t]*(?:include|import)[ \t]*"([^"]+)"', re.M)
SOURCES = ('*.c', '*.h', '*.m', '*.cu', '*.metal', 'meson.build')


def without_comments_and_strings(text):
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', ' ', text, flags=re.S)


def backends(src):
    return sorted(p.name for p in (src / 'backend').iterdir() if p.is_dir())


def check_file(path, src, names):
    """Yields what is wrong with one file of src/."""
    inside = path.relative_to(src)
    folder = inside.parts[0]
    text = path.read_text()
    own_backend = inside.parts[1] if folder == 'backend' and len(inside.parts) > 2 else None
    if path.name != 'meson.build':
        for included in INCLUDE.findall(text):
            if included in GENERATED:
                continue
            if '/' not in included and included != 'calla.h':
                yield f'includes "{included}": write the path from src/, so that the border it crosses is seen'
            elif not any(included == p or p.endswith('/') and included.startswith(p) for p in MAY_INCLUDE[folder] + EVERYONE):
                yield f'includes "{included}": {folder}/ may include {", ".join(MAY_INCLUDE[folder] + EVERYONE)} only'
            elif str(inside) in LEAVES and included not in LEAVES:
                yield f'includes "{included}": a leaf includes nothing of calla'
            elif own_backend and any(included.startswith(f'backend/{n}/') for n in names if n not in (own_backend, 'ref')):
                yield f'includes "{included}": a backend knows no other but ref'
    if folder != 'backend':
        named = re.search(r'backend/(' + '|'.join(names) + r')\b|["/\'](' + '|'.join(names) + r')/', text) if names else None
        if named:
            yield f'names a backend: {named.group(0)}'
    if path.suffix not in ('.c', '.h'):
        return
    code = without_comments_and_strings(text)
    if inside != Path('base/memory.c'):
        for call in re.findall(r'(?<![\w.>])(malloc|calloc|realloc|reallocarray|aligned_alloc|posix_memalign|strdup|strndup|alloca)\s*\(', code):
            yield f'calls {call}: memory comes from base/memory.h, so that tests can make it fail'
    if folder != 'cli':
        for call in re.findall(r'(?<![\w.>])(exit|_exit|_Exit|abort|quick_exit)\s*\(', code):
            yield f'calls {call}: only cli/ ends the process'
        for call in re.findall(r'(?<![\w.>])(printf|puts|putchar|vprintf)\s*\(|\b(stdout)\b', code):
            yield f'uses {"".join(call)}: only cli/ writes to standard output'


def check(root):
    src = root / 'src'
    problems = []
    names = backends(src)
    for path in sorted(p for pattern in SOURCES for p in src.rglob(pattern)):
        if path.parent == src:
            continue
        if path.relative_to(src).parts[0] not in MAY_INCLUDE:
            problems.append(f'{path.relative_to(root)}: a new folder needs a rule in tests/check_includes.py')
            continue
        problems += [f'{path.relative_to(root)}: {what}' for what in check_file(path, src, names)]
    for path in (root / 'include').rglob('*.h'):
        problems += [f'{path.relative_to(root)}: includes "{i}": the public header stands alone' for i in INCLUDE.findall(path.read_text())]
    return problems


def self_test():
    good = {
        'include/calla.h': '#include <stddef.h>\n',
        'src/base/a.h': '#include "calla.h"\n',
        'src/base/memory.c': 'void *f(void) { return malloc(1); }\n',
        'src/backend/backend.c': '#include "backend/ref/ref.h"\n',
        'src/backend/ref/ref.h': '#include "model/shape.h"\n',
        'src/backend/cpu/cpu.h': '#include "backend/backend.h"\n#include "backend/ref/ref.h"\n',
        'src/model/shape.h': '#include <stdint.h>\n',
        'src/engine/a.c': '#include "text/text.h"\n/* exit(1), "free(x)" */ const char *s = "malloc(1)";\nint n = prefetch(1);\n',
        'src/cli/a.c': '#include "server/server.h"\nint main(void) { exit(1); }\n',
    }
    bad = {
        'src/base/bad.c': '#include "text/text.h"\n',
        'src/text/bad.c': '# include "weights/weights.h"\n',
        'src/weights/bad.c': '#include "model/model.h"\n',
        'src/backend/bad.c': '#include "model/model.h"\n',
        'src/backend/ref/bad.c': '#include "backend/cpu/cpu.h"\n',
        'src/model/bad.c': '#include "text/text.h"\n',
        'src/model/bad2.c': '#include "backend/ref/ref.h"\n',
        'src/model/meson.build': "files('../backend/ref/ref.c')\n",
        'src/engine/bad.c': '#include "server/server.h"\n',
        'src/server/bad.c': '#include "engine/engine.h"\n',
        'src/server/bad2.c': '#include "../model/model.h"\n',
        'src/cli/bad.c': '#include "server/http.h"\n',
        'src/cli/bad2.c': '#include "cli.h"\n',
        'src/model/shape.h': '#include "base/error.h"\n',
        'src/new/a.c': '\n',
        'src/text/bad2.c': 'char *f(void) { return strdup(""); }\n',
        'src/text/bad3.c': 'void f(void) { abort(); }\n',
        'src/text/bad4.c': 'void f(void) { fputs("", stdout); }\n',
        'include/calla.h': '#include "base/error.h"\n',
    }
    for planted in [None, *bad]:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for name, text in (good if planted is None else {**good, planted: bad[planted]}).items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            found = check(root)
        if planted is None and found:
            return f'found in a clean tree: {found}'
        if planted and {f.split(':')[0] for f in found} != {planted}:
            return f'planted {planted}, found {found}'
    return None


if __name__ == '__main__':
    if '--self-test' in sys.argv:
        failure = self_test()
        sys.exit(failure)
    wrong = check(Path(__file__).resolve().parent.parent)
    print('\n'.join(wrong) or 'every include is within the rules')
    sys.exit(1 if wrong else 0)
