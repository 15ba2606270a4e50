#!/usr/bin/env python3
"""test_metalc.py: what metalc.py must refuse, and what it must take, in check mode and where it says so itself.

Planted faults of the kind that Metal's compiler would find: an address space mixed up, a name of the standard library without its namespace, a
kernel that is no template and is instantiated.  For each there is the same file without the fault, which must pass.
"""
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

METALC = Path(__file__).resolve().parent / 'metalc.py'
HEAD = '#include <metal_stdlib>\nusing namespace metal;\n'

# name, source with FAULT, what stands for FAULT in the good version and in the bad one, what the message says
CASES = [
    ('device taken for threadgroup', HEAD + '''kernel void k(device float *x [[buffer(0)]], threadgroup float *t [[threadgroup(0)]]) {
        threadgroup float *p = FAULT; *p = 1; }''', 't', 'x', 'cannot initialize a variable'),
    ('constant taken for device', HEAD + '''struct A { uint n; };
     static uint n_of(FAULT const A *a) { return a->n; }
     kernel void k(constant A &a [[buffer(0)]], device uint *y [[buffer(1)]]) { y[0] = n_of(&a); }''', 'constant', 'device', 'no matching function'),
    ('threadgroup memory given to a thread pointer', HEAD + '''static void set(FAULT float *p) { *p = 0; }
     kernel void k(device float *x [[buffer(0)]]) { threadgroup float t[4]; set(t); x[0] = t[0]; }''', 'threadgroup', 'thread', 'no matching function'),
    ('writing to constant memory', HEAD + 'kernel void k(FAULT float *x [[buffer(0)]]) { x[0] = 1; }', 'device', 'constant', 'read-only'),
    ('a device pointer in a structure', HEAD + '''struct A { FAULT float *p; };
     kernel void k(constant A &a [[buffer(0)]]) { device float *p = a.p; p[0] = 0; }''', 'device', 'threadgroup', 'cannot initialize a variable'),
    ('no namespace', '#include <metal_stdlib>\nFAULT\nkernel void k(device float *x [[buffer(0)]]) { x[0] = exp(x[0]); }', 'using namespace metal;', '',
     "'exp'"),
    ('an instance of no template', HEAD + 'FAULT kernel void k(device T *x [[buffer(0)]]) { x[0] = 0; }\n'
     'template [[host_name("k_float")]] kernel decltype(k<float>) k<float>;', 'template <typename T>', 'typedef float T;', 'k'),
    ('a vector reinterpreted', HEAD + 'kernel void k(device float4 *x [[buffer(0)]], device int4 *i [[buffer(1)]]) { x[0] = FAULT; }', 'float4(i[0])',
     '(float4)i[0]', 'write float4(x)'),
    ('a parameter that is told nothing', HEAD + 'kernel void k(device float *x [[buffer(0)]], uint i FAULT) { x[i] = 0; }', '[[thread_position_in_grid]]', '',
     'no attribute that is known'),
    ('a buffer that is neither device nor constant', HEAD + 'kernel void k(FAULT float *x [[buffer(0)]]) {}', 'device', 'thread', 'neither device nor constant'),
    ('two kernels of one name', HEAD + 'kernel void k(device float *x [[buffer(0)]]) {}\nkernel void FAULT(device float *x [[buffer(0)]]) {}', 'l', 'k',
     'two kernels are called k'),
    ('a double', HEAD + 'kernel void k(device float *x [[buffer(0)]]) { FAULT y = 1.0; x[0] = float(y); }', 'float', 'double', 'Metal has no double'),
    ('a thread barrier of unknown flags', HEAD + 'kernel void k(device float *x [[buffer(0)]]) { threadgroup_barrier(FAULT); x[0] = 0; }',
     'mem_flags::mem_device | mem_flags::mem_threadgroup', '1', 'mem_flags'),
]


def check(source):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'case.metal'
        path.write_text(source + '\n')
        done = subprocess.run([sys.executable, METALC, 'check', path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def faults_of(case):
    """What is wrong with metalc.py's answers to the two versions."""
    name, source, good, bad, message = case
    faults = []
    code, text = check(source.replace('FAULT', good))
    if code != 0:
        faults.append(f'{name}: the good version is refused:\n{text}')
    code, text = check(source.replace('FAULT', bad))
    if code == 0 or message not in text or 'case.metal' not in text:
        faults.append(f'{name}: "{message}" in case.metal was expected, but it says:\n{text or "nothing"}')
    return faults


def main():
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        faults = [fault for found in pool.map(faults_of, CASES) for fault in found]
    print(*faults, f'{len(CASES)} cases, {len(faults)} failed', sep='\n')
    return len(faults) != 0


sys.exit(main())
