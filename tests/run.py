#!/usr/bin/env python3
"""run.py: builds calla in each variant, runs the tests that belong to it, and counts.

While the tests of one variant run, many of them waiting for something, the next one is built at the lowest priority.

Called by ./setup test, which installs what is needed.  The last line is "N passed, N failed", with ", N skipped" where tests skipped
themselves; a build that fails or a variant without any test counts as a failure.  Variants that this machine cannot build are listed as
not run; where CI=true, that is a failure too.
"""
import argparse
import concurrent.futures
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUILDS = ROOT / 'build-test'
IN_CI = os.environ.get('CI') == 'true'
ON_MAC = platform.system() == 'Darwin'


class Test(NamedTuple):
    name: str
    suites: set
    command: str
    needs: set  # files that the build makes


class Tally:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.failures, self.not_run = [], []

    def fail(self, what):
        self.failed += 1
        self.failures.append(what)
        return False

    def leave_out(self, what, why):
        self.not_run.append(f'{what}: {why}')
        if IN_CI:
            self.fail(f'{what} could not run: {why}')


def newest_clang():
    """clang-19 is the pinned one; outside CI a neighbour will do."""
    for version in (19,) if IN_CI else (19, 20, 18):
        if shutil.which(f'clang-{version}'):
            return f'clang-{version}'
    return None


def variants(slow):
    """(name, compiler, meson options, which tests belong to it: a function of a Test)."""
    fast = lambda test: 'slow' not in test.suites
    threads = lambda test: fast(test) and any(f'/tests/{part}' in test.command for part in ('engine/', 'server/', 'soak/', 'cli/test_model.py'))
    gcc = 'cc' if ON_MAC else 'gcc'
    no_cuda = '-Dcuda=disabled'  # compiled by itself: compile_cuda
    no_metal = '-Dmetal=disabled'  # its kernels and host are compiled by clang in any variant
    # A test that needs nothing built, such as that of the format, is the same in each variant: it runs in gcc.
    units = lambda test: test.needs and bool({'unit', 'kernel'} & test.suites)
    yield 'clang', newest_clang(), ['--buildtype=release', no_cuda, no_metal], units
    yield 'gcc', gcc, ['--buildtype=release', f'-Dslow_tests={str(slow).lower()}', no_cuda], lambda test: slow or fast(test)
    # Not scripts, whose programs have tests of their own, nor forms against other validators: the matcher's tests are among the others.
    memory = lambda test: test.needs and fast(test) and test.name != 'cli_bench_scripts' and 'form' not in test.suites
    yield 'asan', gcc, ['--native-file', 'presets/asan.ini', no_cuda], memory
    yield 'tsan', gcc, ['--native-file', 'presets/tsan.ini', no_cuda], threads


def run(command, **more):
    print('+', ' '.join(str(c) for c in command), flush=True)
    return subprocess.run(command, cwd=ROOT, **more).returncode


class Builder:
    """Makes one build folder, beside other work: what its commands say goes to a file beside it, and counts when it went wrong."""

    def __init__(self, name, llhttp_dir):
        self.name, self.folder, self.llhttp_dir, self.log = name, BUILDS / name, llhttp_dir, BUILDS / f'{name}.log'
        BUILDS.mkdir(exist_ok=True)
        self.log.write_text('')

    def run(self, command, **environment):
        with open(self.log, 'a') as log:
            print('+', ' '.join(str(c) for c in command), file=log, flush=True)
            return subprocess.run(['nice', '-n', '19', *command], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
                                  env=dict(os.environ, **environment)).returncode == 0

    def configure(self, compiler, options):
        command = ['meson', 'setup', self.folder, '--werror', *options]
        if self.llhttp_dir:
            command.append(f'-Dllhttp_dir={self.llhttp_dir}')
        if (self.folder / 'build.ninja').exists():
            command.append('--reconfigure')
        return self.run(command, CC=compiler)

    def ninja(self, *arguments):
        return self.run(['ninja', '-C', self.folder, *arguments])

    def last_lines(self):
        return ''.join(self.log.read_text(errors='replace').splitlines(keepends=True)[-40:])


def build(name, compiler, options, wanted, llhttp_dir):
    """(what went wrong, or None; seconds).  Everything, as any compiler must take it; of the sanitizers' variants only what their tests
    need."""
    started, builder, fault = time.monotonic(), Builder(name, llhttp_dir), None
    if not builder.configure(compiler, options):
        fault = f'the configuration of variant {name}'
    else:
        targets = set()
        if name in ('asan', 'tsan'):
            targets = set().union(*(test.needs for test in listed_tests(builder.folder) if wanted(test)))
        if not builder.ninja(*sorted(targets)):
            fault = f'the build of variant {name}'
    return fault and f'{fault}:\n{builder.last_lines()}', time.monotonic() - started


def compile_cuda(slow, llhttp_dir):
    """(an error in a source, or None; what did not run, or None; seconds).  Where nvcc works, everything is compiled for the oldest kind of
    card, whose instructions all others have; for Hopper the kernels that have lines for it, and one for the rest, whose lines stand in
    device.cuh; for Blackwell one.  Slow: everything for each.  Running it needs a card.  A compiler that cannot work on this machine is one
    more thing that did not run."""
    if not shutil.which('nvcc'):
        return None, 'compiling the CUDA backend: nvcc is not installed', 0
    started, builder = time.monotonic(), Builder('cuda', llhttp_dir)
    programs = ['measure_stages', *(f'test_{n}' for n in ('accuracy', 'answers', 'device', 'failing_server', 'far', 'layers', 'prefill_kernels', 'sampling'))]
    everything = ['src/cli/calla', *(f'tests/cuda/{p}' for p in programs)]
    kernels = {'90a': ['gemm_q4', 'attention_bf16', 'prefill_attention', 'rows'], '120': ['rows']}
    known = subprocess.run(['nvcc', '--list-gpu-code'], capture_output=True, text=True).stdout.split()
    for card in ['80', '90a', *(['120'] if 'sm_120' in known else [])]:
        targets = everything if slow or card not in kernels else [f'src/backend/cuda/{k}.o' for k in kernels[card]]
        # -O1: this is about nvcc, and the C files were optimized in variant gcc.  No --buildtype, which would win when a folder is configured anew.
        if not builder.configure('gcc', ['-Ddebug=false', '-Doptimization=1', '-Dcuda=enabled', '-Dmetal=disabled', f'-Dgpu_arch={card}']):
            return None, f'compiling the CUDA backend: nvcc is there, but something that it needs is not:\n{builder.last_lines()}', 0
        if not builder.ninja(*targets) and not builder.ninja('-j1', *targets):
            last = builder.last_lines()
            if re.search(r'\.(cu|cuh|c|h)[:(]\d+.*error', last):
                return f'compiling the CUDA backend:\n{last}', None, time.monotonic() - started
            return None, f'compiling the CUDA backend: nvcc does not work here:\n{last}', 0
    return None, None, time.monotonic() - started


def listed_tests(folder):
    def introspect(what):
        return json.loads(subprocess.run(['meson', 'introspect', what, folder], cwd=ROOT, check=True, capture_output=True, text=True).stdout)

    files = {t['id']: {os.path.relpath(f, folder) for f in t['filename']} for t in introspect('--targets')}
    return [Test(t['name'], {s.split(':')[-1] for s in t['suite']}, ' '.join(t['cmd']), set().union(*(files[d] for d in t['depends'])))
            for t in introspect('--tests')]


def unrandomized():
    """ThreadSanitizer of gcc 12 cannot map its shadow where the kernel randomizes addresses by more than 28 bits."""
    command = ['setarch', platform.machine(), '-R']
    allowed = shutil.which('setarch') and subprocess.run([*command, 'true'], capture_output=True).returncode == 0
    return command if allowed else []


def count(folder, variant, tally):
    """Adds the results of the last run; returns how many there are."""
    lines = (folder / 'meson-logs' / 'testlog.json').read_text().splitlines()
    for result in map(json.loads, lines):
        if result['result'] in ('OK', 'EXPECTEDFAIL'):
            tally.passed += 1
        elif result['result'] == 'SKIP':
            tally.skipped += 1
            print(f'skipped: {result["name"]} ({variant})')
        else:
            tally.fail(f'{result["name"]} ({variant}): {result["result"]}')
    return len(lines)


def run_tests(variant, wanted, tally):
    folder = BUILDS / variant
    names = [test.name for test in listed_tests(folder) if wanted(test)]
    log = folder / 'meson-logs' / 'testlog.json'
    log.unlink(missing_ok=True)
    slower = {'asan': 5, 'tsan': 10}.get(variant, 1)
    if names:
        prefix = unrandomized() if variant == 'tsan' else []
        code = run([*prefix, 'meson', 'test', '-C', folder, '--no-rebuild', '--print-errorlogs', '-t', str(slower), *names])
        failed_before = tally.failed
        if log.exists() and count(folder, variant, tally) == len(names):
            if code != 0 and tally.failed == failed_before:
                tally.fail(f'meson test ({variant}) ended with code {code}')
            return
    tally.fail(f'{variant}: not all of its {len(names)} tests ran' if names else f'{variant}: there are no tests')


def look_for_tools(tally):
    """meson leaves out tests whose tools are missing; here that is said."""
    tools = {'node': 'tests of real clients', 'clang-format-19': 'test "format"', 'gnuplot': 'the picture of bench/compare'}
    if platform.system() == 'Linux' and platform.machine() == 'x86_64':
        tools |= {'qemu-x86_64': 'kernels on an older x86 processor', 'qemu-aarch64': 'kernels on Arm', 'aarch64-linux-gnu-gcc': 'kernels on Arm'}
    for tool, what in tools.items():
        if not shutil.which(tool):
            tally.leave_out(what, f'{tool} is not installed')
    pythons = [p for p in ('/usr/bin/python3', shutil.which('python3')) if p and os.path.exists(p)]
    if not any(subprocess.run([p, '-c', 'import jinja2'], capture_output=True).returncode == 0 for p in pythons):
        tally.leave_out('the chat template against jinja2', 'python3-jinja2 is not installed')


def install_packages():
    """What npm has: clients that talk to the server, and oracles for forms of answers.  meson registers their tests where they are.
    [(what is left out, why)]"""
    missing = []
    for folder, what in ((ROOT / 'tests' / 'conformance', 'tests of real clients'), (ROOT / 'tests' / 'form', 'forms of answers against other programs')):
        if not shutil.which('npm'):
            missing.append((what, 'npm is not installed'))
        elif run(['npm', 'ci', '--prefix', folder, '--no-audit', '--no-fund', '--loglevel=error']) != 0:
            missing.append((what, 'npm ci failed'))
    return missing


def main():
    parser = argparse.ArgumentParser(prog='./setup test', description='builds every variant and runs all tests')
    parser.add_argument('--slow', action='store_true', help='also run the tests that take minutes')
    parser.add_argument('--llhttp-dir', help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    tally = Tally()
    begun = time.monotonic()
    look_for_tools(tally)
    with concurrent.futures.ThreadPoolExecutor(1) as installing, concurrent.futures.ThreadPoolExecutor(1) as building:
        packages = installing.submit(install_packages)
        builds = []
        for name, compiler, options, wanted in variants(arguments.slow):
            if not compiler or not shutil.which(compiler):
                tally.leave_out(f'variant {name}', f'{compiler or "clang-19"} is not installed')
            elif ON_MAC and name == 'clang':
                tally.leave_out('variant clang', 'the compiler of variant gcc is clang here')
            else:
                if name != 'clang':  # meson looks for the packages, and that one needs none
                    building.submit(packages.result)
                builds.append((name, wanted, building.submit(build, name, compiler, options, wanted, arguments.llhttp_dir)))
        cuda = building.submit(compile_cuda, arguments.slow, arguments.llhttp_dir)
        for name, wanted, built in builds:
            fault, seconds = built.result()
            print(f'variant {name}: built in {seconds:.0f} s', flush=True)
            if fault:
                print(fault, flush=True)
                tally.fail(fault)
                continue
            started = time.monotonic()
            run_tests(name, wanted, tally)
            print(f'variant {name}: tested in {time.monotonic() - started:.0f} s\n', flush=True)
        for what, why in packages.result():
            tally.leave_out(what, why)
        fault, not_run, seconds = cuda.result()
        print(f'variant cuda: built in {seconds:.0f} s', flush=True)
        if fault:
            tally.fail(fault)
        if not_run:
            tally.not_run.append(not_run)
    tally.not_run.append('the CUDA backend: tests/cuda/run, on a machine with an NVIDIA GPU')
    for what in tally.not_run:
        print('not run:', what)
    for what in tally.failures:
        print('failed:', what)
    if tally.passed + tally.failed == 0:
        tally.fail('no test ran')
    skipped = f', {tally.skipped} skipped' if tally.skipped else ''
    print(f'{time.monotonic() - begun:.0f} s')
    print(f'{tally.passed} passed, {tally.failed} failed{skipped}', flush=True)
    return 1 if tally.failed else 0


if __name__ == '__main__':
    sys.exit(main())
