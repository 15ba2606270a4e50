#!/usr/bin/env python3
"""metalc.py: compiles a .metal file for this machine, with clang.

  metalc.py check FILE.metal          diagnostics only, address spaces as types
  metalc.py fast FILE.metal -o OUT.o  optimized, nothing watched
  metalc.py watched FILE.metal -o OUT.o   every load and store reported to trace.c, undefined behaviour checked

Options: -I DIR, -D NAME=VALUE, --metal4 (language version 4, with tensors), --depfile FILE, --asan (of fast: AddressSanitizer and UndefinedBehaviorSanitizer, with their own runtimes; the
checks of watched are narrower and need none), --keep FILE (the C++ that was compiled).

The file is preprocessed as Metal would (with __METAL_VERSION__), so it may use Metal's own syntax throughout.  What C++ does not know is
rewritten here: kernels, [[attributes]], function constants, threadgroup variables, constructors of vectors, literals such as 1.0h and
1.0 (which is a float in Metal).  For each kernel a thunk is written that takes its arguments from where the dispatch bound them.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ELEMENTS = ('float', 'half', 'bfloat', 'char', 'uchar', 'short', 'ushort', 'int', 'uint', 'long', 'ulong')
VECTORS = {f'{e}{n}' for e in ELEMENTS for n in (2, 3, 4)}
SPACES = {'device', 'constant', 'threadgroup', 'thread'}
TOKEN = re.compile(r'''\#[^\n]*\n | \s+ | [A-Za-z_]\w* | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*'
    | 0[xX][0-9a-fA-F]+\w* | (?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\w* | \[\[ | \]\] | :: | << | >> | -> | [-+*/%&|^<>=!]= | && | \|\| | \+\+ | -- | .''', re.X)
BUILTINS = {
    'thread_position_in_grid': 'simt_grid_position<{p}>()',
    'thread_position_in_threadgroup': 'simt_builtin<{p}>(simt_self->position)',
    'thread_index_in_threadgroup': 'simt_builtin<{p}>(simt_self->index)',
    'threadgroup_position_in_grid': 'simt_builtin<{p}>(simt_now.position)',
    'threads_per_threadgroup': 'simt_builtin<{p}>(simt_now.threads)',
    'dispatch_threads_per_threadgroup': 'simt_builtin<{p}>(simt_now.full_threads)',
    'threadgroups_per_grid': 'simt_builtin<{p}>(simt_now.threadgroups)',
    'threads_per_grid': 'simt_builtin<{p}>(simt_now.grid_threads)',
    'thread_index_in_simdgroup': 'simt_builtin<{p}>(simt_self->lane)',
    'simdgroup_index_in_threadgroup': 'simt_builtin<{p}>(simt_self->simdgroup)',
    'simdgroups_per_threadgroup': 'simt_builtin<{p}>(simt_now.simdgroups)',
    'threads_per_simdgroup': 'simt_builtin<{p}>(SIMT_WIDTH)',
    'thread_execution_width': 'simt_builtin<{p}>(SIMT_WIDTH)',
    'thread_index_in_quadgroup': 'simt_builtin<{p}>(simt_self->lane % 4)',
    'quadgroup_index_in_threadgroup': 'simt_builtin<{p}>(simt_self->index / 4)',
}


class Fault(Exception):
    pass


def blank(token):
    return token.isspace() or token.startswith('#')


class Source:
    """The tokens of a preprocessed file, and the place of each for messages."""

    def __init__(self, text):
        self.tokens = TOKEN.findall(text)

    def place(self, at):
        name, line = '?', 1
        for token in self.tokens[:at]:
            marker = re.match(r'#\s+(\d+)\s+"([^"]*)"', token)
            if marker:
                line, name = int(marker[1]), marker[2]
            else:
                line += token.count('\n')
        return f'{name}:{line}'

    def fault(self, at, message):
        raise Fault(f'{self.place(at)}: error: {message}')

    def next(self, at):
        """Index of the first token after `at` that is not blank."""
        at += 1
        while at < len(self.tokens) and blank(self.tokens[at]):
            at += 1
        return at

    def previous(self, at):
        at -= 1
        while at >= 0 and blank(self.tokens[at]):
            at -= 1
        return at

    def closing(self, at):
        """Index of the bracket that closes the one at `at`; for '<' by counting angles."""
        opening = self.tokens[at]
        pairs = {'(': ')', '[': ']', '{': '}', '[[': ']]'}
        if opening == '<':
            depth, i = 0, at
            while i < len(self.tokens):
                token = self.tokens[i]
                if token == '<':
                    depth += 1
                elif token in ('>', '>>'):
                    depth -= len(token)
                    if depth <= 0:
                        return i
                elif token in pairs:
                    i = self.closing(i)
                i += 1
        else:
            depth, i = 0, at
            while i < len(self.tokens):
                if self.tokens[i] in ('(', '[', '{', '[['):
                    depth += 1 + (self.tokens[i] == '[[')
                elif self.tokens[i] in (')', ']', '}', ']]'):
                    depth -= 1 + (self.tokens[i] == ']]')
                    if depth <= 0:
                        return i
                i += 1
        self.fault(at, f'{opening} is never closed')

    def text(self, start, end):
        return ''.join(t for t in self.tokens[start:end] if not t.startswith('#'))

    def erase(self, start, end):
        """Keeps newlines and line markers, so that the compiler's messages name the right lines."""
        for i in range(start, end):
            token = self.tokens[i]
            if not blank(token):
                self.tokens[i] = ''
        self.tokens[start:end] = [t if t else ' ' for t in self.tokens[start:end]]


def split(tokens, separator=','):
    """Splits a list of tokens at separators outside all brackets."""
    parts, depth, current = [], 0, []
    for token in tokens:
        if token in ('(', '[', '{', '<', '[['):
            depth += 1
        elif token in (')', ']', '}', '>', ']]'):
            depth -= 1
        elif token == '>>':
            depth -= 2
        if token == separator and depth == 0:
            parts.append(current)
            current = []
        else:
            current.append(token)
    return parts + [current] if any(not blank(t) for t in current) or parts else []


class Kernel:
    def __init__(self, name, params, template, max_threads):
        self.name, self.params, self.template, self.max_threads = name, params, template, max_threads


def attributes(tokens):
    """[(name, argument or None)] of the [[…]] in tokens."""
    found = re.findall(r'\[\[(.*?)\]\]', ''.join(t for t in tokens if not t.startswith('#')), re.S)
    return [(m[1], m[2]) for text in found for m in re.finditer(r'(\w+)\s*(?:\(\s*"?(\w+)"?\s*\))?', text)]


def parse_params(source, at, tokens):
    params = []
    for part in split(tokens):
        marks = dict(attributes(part))
        bare = re.sub(r'\[\[.*?\]\]', '', ''.join(t for t in part if not t.startswith('#')), flags=re.S).strip()
        name = re.search(r'(\w+)$', bare)
        space = next((t for t in part if t in SPACES), None)
        if 'buffer' in marks:
            if space not in ('device', 'constant'):
                source.fault(at, f'buffer parameter "{bare}" is neither device nor constant')
            params.append(('buffer', space, marks['buffer'], name[1]))
        elif 'threadgroup' in marks:
            params.append(('threadgroup', space, marks['threadgroup'], name[1]))
        else:
            builtin = next((m for m in marks if m in BUILTINS), None)
            if not builtin:
                source.fault(at, f'parameter "{bare}" of a kernel has no attribute that is known here')
            params.append(('builtin', builtin, None, name[1]))
    return params


def take_kernels(source):
    """Removes what makes a function a kernel; returns the kernels and the (host name, C++ name, kernel) that are to be registered."""
    tokens, kernels, instances = source.tokens, {}, []
    at = 0
    while at < len(tokens):
        is_attribute = tokens[at] == '[[' and tokens[source.next(at)] == 'kernel'
        if tokens[at] != 'kernel' and not is_attribute:
            at += 1
            continue
        start = at
        first = source.next(source.closing(at)) if is_attribute else source.next(at)
        # what stands before: template <…> (a definition) or template [[host_name("x")]] (an instance)
        before = source.previous(start)
        host_name = max_threads = None
        while before >= 0 and tokens[before] == ']]':
            opening = before
            while tokens[opening] != '[[':
                opening -= 1
            for name, argument in attributes(tokens[opening:before + 1]):
                if name == 'host_name':
                    host_name = argument
                elif name == 'max_total_threads_per_threadgroup':
                    max_threads = argument
            start = opening
            before = source.previous(opening)
        instance = before >= 0 and tokens[before] == 'template'
        template = before >= 0 and tokens[before] in ('>', '>>')
        if instance:
            end = first
            while tokens[end] != ';':
                end = source.closing(end) + 1 if tokens[end] in ('(', '[[') else end + 1
            text = source.text(first, end)
            declared = re.sub(r'^\s*decltype\s*\([^()]*(?:\([^()]*\)[^()]*)*\)\s*|^\s*void\s+', '', text, flags=re.S)
            name = re.match(r'(\w+)\s*(<)?', declared)
            if not name or not name[2]:
                source.fault(at, f'only a template has instances: "{text.strip()}"')
            depth, i = 0, name.end() - 1
            while True:
                depth += {'<': 1, '>': -1}.get(declared[i], 0)
                i += 1
                if depth == 0:
                    break
            instances.append((host_name or name[1], declared[:i].strip(), name[1], at))
            source.erase(before, end + 1)
            at = end + 1
            continue
        if tokens[first] != 'void':
            source.fault(first, 'a kernel returns void')
        name_at = source.next(first)
        opening = source.next(name_at)
        if tokens[opening] != '(':
            source.fault(name_at, 'a list of parameters is expected after the name of a kernel')
        closing = source.closing(opening)
        name = tokens[name_at]
        if name in kernels:
            source.fault(name_at, f'two kernels are called {name}')
        kernels[name] = Kernel(name, parse_params(source, opening, tokens[opening + 1:closing]), template, max_threads)
        if not template:
            instances.append((host_name or name, name, name, at))
        source.erase(start, first)
        at = first
    return kernels, instances


def rewrite(source):
    tokens = source.tokens
    aliases = set()
    depth = 0
    at = 0
    while at < len(tokens):
        token = tokens[at]
        following = source.next(at)
        after = tokens[following] if following < len(tokens) else ''
        if token == '{':
            depth += 1
        elif token == '}':
            depth -= 1
        elif token == 'double':
            source.fault(at, 'Metal has no double')
        elif token == 'using' and re.match(r'\w+$', after) and tokens[source.next(following)] == '=':
            meant = tokens[source.next(source.next(following))]
            if meant in VECTORS | aliases | {'vec'}:
                aliases.add(after)
        elif token == 'constant':
            end = at
            while tokens[end] not in (';', '{', '(', '=', ')') and end < len(tokens) - 1:
                end = end + 1 if tokens[end] != '[[' else source.closing(end) + 1
            marks = dict(attributes(tokens[at:end]))
            if 'function_constant' in marks and tokens[end] == ';':
                words = [t for t in tokens[at + 1:next(i for i in range(at, end) if tokens[i] == '[[')] if not blank(t)]
                kind, name = ' '.join(words[:-1]), words[-1]
                source.erase(at, end)
                tokens[at] = f'static const simt_constant<{kind}, {marks["function_constant"]}> {name}{{}}'
        elif token == 'threadgroup' and depth > 0 and tokens[source.previous(at)][-1:] in ('{', ';', '}'):
            rewrite_variable(source, at)
        elif token == '[[':
            end = source.closing(at)
            source.erase(at, end + 1)
        elif token in VECTORS | aliases and after == '(':
            before = tokens[source.previous(at)]
            if before not in ('operator', 'struct', 'using'):
                tokens[at] = f'simt_make<{token}>'
        elif token == 'vec' and after == '<':
            end = source.closing(following)
            behind = source.next(end)
            if tokens[behind] == '(':
                tokens[at] = 'simt_make<vec'
                tokens[end] += '>'
        elif token == '(' and after in VECTORS | aliases and tokens[source.next(following)] == ')':
            operand = tokens[source.next(source.next(following))]
            if re.match(r'[\w(]', operand) and tokens[source.previous(at)] not in ('sizeof', 'alignof', 'decltype'):
                source.fault(at, f'write {after}(x): the cast ({after})x would not convert here')
        elif re.match(r'\d|\.\d', token) and not token.lower().startswith('0x'):
            if re.search(r'[hH]$', token):
                tokens[at] = f'half({token[:-1]}f)'
            elif token.endswith('bf'):
                tokens[at] = f'bfloat({token[:-2]}f)'
            elif re.search(r'[.eE]', token) and not re.search(r'[fF]$', token):
                tokens[at] = token + 'f'
        at += 1


def rewrite_variable(source, at):
    """threadgroup T a[2], b;  →  references to memory of the threadgroup that runs."""
    tokens = source.tokens
    end = at
    while tokens[end] != ';':
        end += 1
    body = [t for t in tokens[at + 1:end] if not t.startswith('#')]
    text = ''.join(body).strip()
    if re.search(r'[*&=(]', re.sub(r'^alignas\s*\(.*?\)|\[.*?\]', '', text, flags=re.S)): # a pointer, or a function
        return
    match = re.match(r'((?:alignas\s*\(\d+\)\s*)?[\w:]+(?:\s*<[^;]*?>)?)\s+(\w+\s*(?:\[.*)?(?:,.*)?)$', text, re.S)
    if not match:
        source.fault(at, f'the threadgroup variable "{text}" is not understood')
    out = ''
    for declarator in split(TOKEN.findall(match[2])):
        name, extent = re.match(r'\s*(\w+)\s*(.*)$', ''.join(declarator), re.S).groups()
        kind = f'simt_variable_{name}'
        out += (f'static simt_site simt_site_{name}; typedef {match[1]} {kind} {extent.strip()}; threadgroup {kind} &{name} = '
                f'*(threadgroup {kind} *)simt_threadgroup_variable(&simt_site_{name}, sizeof({kind}), alignof({kind}));')
    source.erase(at, end + 1)
    tokens[at] = out


def thunks(kernels, instances, file):
    out = ['', '} // namespace', '']
    for number, (host_name, function, name, _) in enumerate(instances):
        kernel = kernels[name]
        arguments, params = [], []
        for i, (kind, what, index, param) in enumerate(kernel.params):
            p = f'simt_parameter<decltype({function}), {i}>::type'
            if kind == 'builtin':
                arguments.append(BUILTINS[what].format(p=p))
                continue
            arguments.append(f'simt_argument<{p}>::get({kind}[{index}])')
            kinds = {'device': 'SIMT_DEVICE', 'constant': 'SIMT_CONSTANT', 'threadgroup': 'SIMT_THREADGROUP'}
            pointee = f'simt_size<simt_argument<{p}>::pointee>'
            params.append(f'{{{kinds[what if kind == "buffer" else kind]}, {index}, {pointee}::bytes, {pointee}::align, '
                          f'simt_argument<{p}>::whole != 0, "{param}"}}')
        out += [f'static void simt_thunk_{number}(void *const *buffer, void *const *threadgroup_) {{',
                '    (void)buffer, (void)threadgroup_;',
                f'    {function}({", ".join(arguments)});'.replace('::get(threadgroup[', '::get(threadgroup_['), '}',
                f'static const simt_param simt_params_{number}[] = {{{", ".join(params) or "{}"}}};',
                f'static simt_kernel simt_kernel_{number} = {{"{host_name}", simt_thunk_{number}, simt_params_{number}, {len(params)}, '
                f'{kernel.max_threads or 0}, "{file}", nullptr}};']
    registered = ' '.join(f'simt_register(&simt_kernel_{n});' for n in range(len(instances)))
    out += [f'__attribute__((constructor)) static void simt_register_all() {{ {registered} }}', '']
    return '\n'.join(out)


def translate(text, file, check, metal4=False):
    source = Source(text)
    kernels, instances = take_kernels(source)
    rewrite(source)
    for host_name, function, name, at in instances:
        if name not in kernels:
            source.fault(at, f'{name} is instantiated but is no kernel')
    library = '#include "metal_stdlib.h"\n' + ('#include "metal_tensor.h"\n' if metal4 else '')
    body = library + 'namespace {\n' + ''.join(source.tokens)
    if check: # instances are compiled, thunks (which know no address spaces) are not
        uses = '\n'.join(f'[[maybe_unused]] static auto *const simt_use_{n} = &{function};' for n, (_, function, _, _) in enumerate(instances))
        return body + '\n} // namespace\n' + uses + '\n'
    return body + thunks(kernels, instances, file)


def find_clang():
    for name in ('clang++-19', 'clang++-20', 'clang++'):
        if shutil.which(name):
            return name
    raise Fault('clang++-19 is not installed')


COMMON = ['-std=c++14', '-x', 'c++', '-nostdinc++', '-ffp-contract=off', '-Xclang', '-ffloat16-excess-precision=none', '-Xclang',
          '-fbfloat16-excess-precision=none', '-mavx2', '-mfma', '-mf16c', '-fno-exceptions', '-fno-rtti', '-fno-math-errno', '-Wall', '-Wextra',
          '-Werror', '-Wno-c++17-extensions', '-Wno-c++20-extensions', '-Wno-unknown-attributes', '-Wno-unused-function',
          '-Wno-unused-parameter', '-Wno-pass-failed', '-Wno-psabi', '-Wno-duplicate-decl-specifier', '-Wno-unused-const-variable', '-Wno-unused-variable']
MODES = {
    'check': ['-fsyntax-only', '-DSIMT_CHECK'],
    'fast': ['-O2', '-g1', '-c', '-fno-strict-aliasing'],
    # no pass may turn loops into accesses that are not reported
    'watched': ['-O1', '-g1', '-c', '-fno-strict-aliasing', '-fno-vectorize', '-fno-slp-vectorize', '-fno-builtin-memcpy', '-fno-builtin-memset',
                '-fsanitize-coverage=func,trace-loads,trace-stores', '-ftrivial-auto-var-init=pattern',
                '-fsanitize=alignment,bounds,shift,integer-divide-by-zero,signed-integer-overflow,float-cast-overflow,bool,unreachable,return',
                '-fsanitize-minimal-runtime', '-fno-sanitize-recover=all'],
}


def main():
    parser = argparse.ArgumentParser(description='compiles a .metal file for this machine')
    parser.add_argument('mode', choices=MODES)
    parser.add_argument('file')
    parser.add_argument('-o', dest='out')
    parser.add_argument('-I', dest='include', action='append', default=[])
    parser.add_argument('-D', dest='define', action='append', default=[])
    parser.add_argument('--depfile')
    parser.add_argument('--asan', action='store_true')
    parser.add_argument('--metal4', action='store_true')
    parser.add_argument('--keep')
    arguments = parser.parse_args()
    try:
        clang = find_clang()
        command = [clang, '-E', '-x', 'c++', '-std=c++14', '-nostdinc', '-D__METAL__',
                   f'-D__METAL_VERSION__={400 if arguments.metal4 else 310}', f'-I{HERE}/marker']
        command += [f'-I{d}' for d in arguments.include] + [f'-D{d}' for d in arguments.define] + [arguments.file]
        if arguments.depfile:
            command += ['-MD', '-MF', arguments.depfile, '-MT', arguments.out or arguments.file]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            return done.returncode
        text = translate(done.stdout, os.path.basename(arguments.file), arguments.mode == 'check', arguments.metal4)
    except Fault as fault:
        print(fault, file=sys.stderr)
        return 1
    if arguments.keep:
        Path(arguments.keep).write_text(text)
    command = [clang, *COMMON, *MODES[arguments.mode], f'-I{HERE}/simt']
    if arguments.metal4: # its descriptors of products are arguments of templates
        command += ['-std=c++20', '-Wno-deprecated-anon-enum-enum-conversion']
    if arguments.asan and arguments.mode == 'fast':
        command += ['-fsanitize=address,undefined', '-fno-sanitize=function,vptr', '-fsanitize-address-use-after-return=never']
    if arguments.mode != 'check':
        if not arguments.out:
            parser.error('-o is missing')
        command += ['-o', arguments.out]
    return subprocess.run([*command, '-'], input=text, text=True).returncode


if __name__ == '__main__':
    sys.exit(main())
