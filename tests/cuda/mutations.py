#!/usr/bin/env python3
"""mutations.py: one fault planted for each thing that the CUDA tests are to see; the test that is named must fail, and say so.  And
experiments: kernels with their arithmetic left out, so that what is left of their time is that of what they load.

usage: mutations.py build BUILD [NAME…]      every mutant, or these and experiments, as programs in BUILD/mutants (a build folder with the cuda
                                             backend)
       mutations.py check                    that each can still be planted
       mutations.py list BUILD               the names of those that are there
       mutations.py run BUILD NAME           0: each of its tests has seen it.  Needs an NVIDIA GPU

A mutant is a copy of a source in which a text has been replaced: it must be there exactly once, since a fault that is no longer planted proves
nothing.
"""
import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CUDA = 'src/backend/cuda/'
ROW, SMALL_FAR, CUTS = 'tests/cuda/test_far row', 'tests/cuda/test_far small', 'tests/model/test_cuts'
GOLDEN, LAYERS = 'tests/model/test_golden tiny-a 0 8', 'tests/cuda/test_layers models/pocket 256 1e-2'

# name: (source, text, what stands in its place, objects made of it, [(test, what it must say)])
MUTANTS = {
    'needle-at-start': ('attention_bf16.cu', 'if (key0 + at[i] >= k.last) s[i]', 'if (key0 + at[i] >= k.last || key0 + at[i] == 0) s[i]',
                        ['attention_bf16'], [(ROW, r'FAIL .* bf16.*needle.*missed, the first at 0 ')]),
    'needle-at-edge': ('attention_bf16.cu', 'const uint32_t last = min(first + split.per, n);',
                       'const uint32_t last = min(first + split.per, n) - (blockIdx.x == 3);', ['attention_bf16'],
                       [(ROW, r'FAIL .* bf16.*needle.*missed, the first at [1-9]')]),
    'needle-at-end': ('attention_bf16.cu', 'own_rows(k, key0, h.own[0], keys);', '', ['attention_bf16'], [(ROW, r'FAIL .*own key')]),
    'rotary-in-float': ('rows.cu', 'sincos(a.batch.positions[row] * a.rate[threadIdx.x],',
                        'sincos((double)((float)a.batch.positions[row] * (float)a.rate[threadIdx.x]),', ['rows'], [('tests/cuda/test_far rotary', 'FAIL rotary angles')]),
    'page-offset-of-32-bits': ('attention.cuh', 'return page * page_elements(kv) +', 'return (uint32_t)(page * page_elements(kv)) +',
                               ['attention_step'], [('tests/cuda/test_far f32', r'FAIL attention f32.*behind 2\^32')]),
    'weight-offset-of-32-bits': ('rows.cu', 'const size_t tile = (size_t)(row / 16) * w.col_tiles + k / 64;',
                                 'const size_t tile = ((size_t)(row / 16) * w.col_tiles + k / 64) % (1u << 23);', ['rows'],
                                 [('tests/cuda/test_far memory', r'FAIL embedding behind 2\^32')]),
    'prompt-sees-ahead': ('prefill_attention.cu', '> last[i / 2]) s[n * 4 + i]', '> last[i / 2] + 1) s[n * 4 + i]', ['prefill_attention'],
                          [('tests/cuda/test_prefill_kernels small', r'FAIL attention ')]),
    'state-lost-between-steps': ('gdn_step.cu', 'const bool fresh = seg.slot_src == NO_SLOT;',
                                 'const bool fresh = seg.slot_src == NO_SLOT || seg.first_position == 256;', ['gdn_step'],
                                 [(CUTS, 'logits differ'), ('tests/model/test_state', 'logits differ')]),
    'sequences-confused': ('attention_step.cu', 'const batch_segment seg = a.batch.segment[a.batch.segment_of[row]];',
                           'const batch_segment seg = a.batch.segment[0];', ['attention_step'], [(CUTS, 'Failure|logits differ')]),
    'scores-by-another-scale': ('attention_step.cu', '= x[i] * 0.0625f;', '= x[i] * 0.0600f;', ['attention_step'], [(GOLDEN, 'Failure')]),
    'inputs-of-4-bits': ('int_gemv.cuh', 'high[i] = __byte_perm(__byte_perm(x + 128', 'high[i] = 0xF0F0F0F0u & __byte_perm(__byte_perm(x + 128',
                         ['linear'], [('tests/cuda/test_accuracy 8', 'TOO FAR'), (LAYERS, 'at most')]),
    'penalty-reversed': ('sampling.cu', 'x[id] = x[id] > 0 ? __fdiv_rn', 'x[id] = x[id] < 0 ? __fdiv_rn', ['sampling'],
                         [('tests/cuda/test_sampling', r' [1-9]\d* wrong'), ('tests/cuda/test_answers', 'the same up to')]),
    'written-beyond': ('rows.cu', 'a.residual[(size_t)row * a.hidden + k] = weight_at', 'a.residual[(size_t)row * a.hidden + k + 1] = weight_at',
                       ['rows'], [('memcheck ' + SMALL_FAR, 'Invalid __global__ write')]),
    'barrier-left-out': ('attention_step.cu', 'score_chunk(a, pages, head, group, begin + threadIdx.x, begin + threadIdx.x < last, h);\n        __syncthreads();',
                         'score_chunk(a, pages, head, group, begin + threadIdx.x, begin + threadIdx.x < last, h);', ['attention_step'],
                         [('racecheck ' + SMALL_FAR, 'hazard')]),
    'draws-waited-for': ('cuda.c', 'cuda_picker_of(b->batch, sample) != PICKED_BY_HOST;', 'cuda_picker_of(b->batch, sample) == PICKED_BY_HEAD;', ['cuda'],
                         [('tests/cuda/test_answers', 'Failure')]),
    'failure-not-told': ('cuda.h', 'if (e && !b->error) b->error = e;', 'if (e == cudaErrorInvalidValue) b->error = e;', ['batch', 'cuda', 'requests', 'results'],
                         [('tests/cuda/test_failing_server', 'Failure|expected')]),
    'room-not-looked-at': ('cuda.c', 'if (need <= available) return CALLA_OK;', 'if (need) return CALLA_OK;', ['cuda'],
                           [('tests/cuda/test_device', 'Failure')]),
}

# The same, but of programs that measure.  Codes reach registers as before, and registers what is stored.
STEP, PROMPT = 'tests/cuda/measure_stages', 'tests/cuda/test_prefill_kernels time'
INT_PRODUCT = ('asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"\n'
               '        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])\n'
               '        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));')
PRODUCT = 'for (int h = 0; h < 2; h++) wgmma_f16_rs<0>(sum[h], a[part][h][j], b + (part * 2 + j) * 2, accumulate || part || j);'
NO_PRODUCT = """for (int h = 0; h < 2; h++) {
                if (!(accumulate || part || j))
                    for (int i = 0; i < N / 2; i++) sum[h][i] = 0;
                sum[h][j] += __uint_as_float(%s);
            }"""
WEIGHTS, CODES = ' ^ '.join(f'a[part][h][j][{i}]' for i in range(4)), 'part ? j ? codes[h].low.w : codes[h].low.z : j ? codes[h].low.y : codes[h].low.x'
EXPERIMENTS = {
    'step-without-products': ('int_gemv.cuh', INT_PRODUCT, 'd[0] ^= a0 ^ b0, d[1] ^= a1, d[2] ^= a2 ^ b1, d[3] ^= a3;',
                              ['linear', 'moe_rows', 'moe_many'], [(STEP, '')]),
    'prompt-without-products': ('gemm_kernel.cuh', PRODUCT, NO_PRODUCT % WEIGHTS, ['gemm_q4'], [(PROMPT, '')]),
    'prompt-without-arithmetic': ('gemm_kernel.cuh', PRODUCT, NO_PRODUCT % CODES, ['gemm_q4'], [(PROMPT, '')]),
}
PLANTED = MUTANTS | EXPERIMENTS


def program_of(test):
    words = test.split()
    return words[1] if words[0] in ('memcheck', 'racecheck') else words[0]


# ---- build ----


def command_of(build, target):
    """The command that makes a target, as words."""
    text = subprocess.run(['ninja', '-C', build, '-t', 'commands', target], capture_output=True, text=True, check=True).stdout
    return shlex.split(text.strip().split('\n')[-1])


def run_in(build, words):
    done = subprocess.run(words, cwd=build, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f'{" ".join(words)}\n{done.stdout}{done.stderr}')


def compile_object(build, source, name, out):
    """The object that the build makes of src/backend/cuda/NAME, from the copy in `source`, whose headers come first."""
    is_kernel = (ROOT / CUDA / f'{name}.cu').exists()
    target = f'{CUDA}{name}.o' if is_kernel else f'src/backend/libcalla_backend.a.p/cuda_{name}.c.o'
    words = command_of(build, target)
    file = f'{name}.cu' if is_kernel else f'{name}.c'
    words = [str(source / CUDA / file) if w.endswith(CUDA + file) else str(out) if w == target else w for w in words]
    depfile = next((i for i, w in enumerate(words) if w == '-MF'), None)
    if depfile is not None:
        words[depfile + 1] = str(out) + '.d'
    compiler = 2 if words[0].endswith('ccache') else 1
    run_in(build, words[:compiler] + ['-I' + str(source / 'src')] + words[compiler:])
    return str(out)


def compile_tests(build, names):
    """The kernels' own test programs as objects, once for all their mutants."""
    made = {}
    for program in sorted({program_of(test) for name in names for test, _ in PLANTED[name][4]}):
        words = command_of(build, program)
        source = next((w for w in words if w.endswith('.cu')), None)
        if not source:
            continue  # of C: the build has its object
        made[program] = str(Path(build).resolve() / 'mutants' / f'{Path(program).name}.o')
        run_in(build, [w for w in words[:words.index('-o')] if not w.endswith('.o')] + ['-c', '-o', made[program]])
    return made


def link(build, program, compiled, objects, out):
    """The program with these objects in place of the build's."""
    names = {Path(o).name for o in objects}
    words = [w for w in command_of(build, program) if not (w.startswith(CUDA) and Path(w).name in names)]
    words = [compiled[program] if w.endswith('.cu') else w for w in words]
    at = words.index('-o')
    run_in(build, words[:at] + ['-o', str(out)] + objects + words[at + 2:])  # objects in front of an archive that has the build's own


def mutated(name):
    """The source as a whole, with the fault in it."""
    file, text, other = PLANTED[name][:3]
    original = (ROOT / CUDA / file).read_text()
    if original.count(text) != 1:
        sys.exit(f'{name}: {CUDA}{file} has its text {original.count(text)} times: plant the fault anew')
    return original.replace(text, other)


def plant(build, name, compiled):
    file, _, _, objects, tests = PLANTED[name]
    folder = Path(build).resolve() / 'mutants' / name
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch)
        (source / CUDA).mkdir(parents=True)
        for path in (ROOT / CUDA).iterdir():
            if path.suffix in ('.h', '.cuh') or path.stem in objects:
                (source / CUDA / path.name).write_text(mutated(name) if path.name == file else path.read_text())
        made = [compile_object(build, source, o, source / f'{o}.o') for o in objects]
        for program in {program_of(test) for test, _ in tests}:
            link(build, program, compiled, made, folder / Path(program).name)
    return name


def build_all(build, names):
    chosen = names or list(MUTANTS)
    (Path(build) / 'mutants').mkdir(exist_ok=True)
    compiled = compile_tests(build, chosen)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name in pool.map(lambda n: plant(build, n, compiled), chosen):
            print(f'planted: {name}', flush=True)


# ---- run ----


def run(build, name):
    seen = True
    for test, said in MUTANTS[name][4]:
        words = test.split()
        tool = ['compute-sanitizer', '--tool', words.pop(0), '--error-exitcode', '9'] if words[0] in ('memcheck', 'racecheck') else []
        program = Path(build).resolve() / 'mutants' / name / Path(words[0]).name
        done = subprocess.run(tool + [str(program)] + words[1:], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace')
        good = done.returncode != 0 and re.search(said, done.stdout) is not None
        print(f'{name}: {test}: {"seen" if good else f"MISSED (exit status {done.returncode})"}')
        if not good:
            print(done.stdout[-1500:])
        seen = seen and good
    return 0 if seen else 1


def main():
    if len(sys.argv) >= 3 and sys.argv[1] == 'build':
        build_all(sys.argv[2], sys.argv[3:])
    elif sys.argv[1:] == ['check']:
        print(sum(bool(mutated(name)) for name in PLANTED), 'faults can be planted')
    elif len(sys.argv) == 3 and sys.argv[1] == 'list':
        folder = Path(sys.argv[2]) / 'mutants'
        print('\n'.join(n for n in MUTANTS if (folder / n).is_dir()))
    elif len(sys.argv) == 4 and sys.argv[1] == 'run':
        sys.exit(run(sys.argv[2], sys.argv[3]))
    else:
        sys.exit(__doc__)


main()
