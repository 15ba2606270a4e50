#!/usr/bin/env python3
"""quality_report.py CALLA [OUT]: measures pocket with `calla eval` and writes docs/quality.md.

Input: tests/data/model/pocket.eval.safetensors (16 windows of 1,024 tokens, with log-probabilities that transformers 5.17 in float32 recorded
for the bf16 and the 4-bit weights).  Takes a minute or two on two cores.
"""
import json
import math
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / 'tests' / 'data' / 'model' / 'pocket.eval.safetensors'
WINDOW = 1024

# What is compared with what: name, the options of the run, the name of its reference.
RUNS = [
    ('exact, KV bf16', ['--precision', 'exact', '--kv', 'bf16'], None),
    ('exact, KV f32', ['--precision', 'exact', '--kv', 'f32'], None),
    ('the same again', ['--precision', 'exact', '--kv', 'bf16'], 'exact, KV bf16'),
    ('pieces of 16 rows', ['--precision', 'exact', '--kv', 'bf16', '--batch-rows', '16'], 'exact, KV bf16'),
    ('KV bf16', ['--precision', 'exact', '--kv', 'bf16'], 'exact, KV f32'),
    ('fast, KV bf16', ['--precision', 'fast', '--kv', 'bf16'], 'exact, KV bf16'),
]
AGAINST_OTHERS = ['exact, KV f32', 'exact, KV bf16', 'fast, KV bf16']

# Fast becomes the default only if it keeps these on pocket (and another one on the layers of a synthetic model of full width).
KL_LIMIT, TOP1_LIMIT = 2e-4, 0.99


def read_arrays(path):
    """A safetensors file of float32 and uint16 arrays: {name: tuple}."""
    data = path.read_bytes()
    n = struct.unpack('<Q', data[:8])[0]
    arrays = {}
    for name, info in json.loads(data[8:8 + n]).items():
        if name != '__metadata__':
            begin, end = (8 + n + offset for offset in info['data_offsets'])
            letter, size = {'F32': ('f', 4), 'U16': ('H', 2)}[info['dtype']]
            arrays[name] = struct.unpack(f'<{(end - begin) // size}{letter}', data[begin:end])
    return arrays


class Calla:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def eval(self, *arguments):
        return subprocess.run([self.program, 'eval', '--device', 'cpu', *map(str, arguments)], check=True, stdout=subprocess.PIPE).stdout

    def ids(self, name, ids):
        path = self.folder / name
        path.write_text(json.dumps({'ids': list(ids)}))
        return path

    def top1(self, ids, options):
        """The most likely token after each of ids, window by window."""
        result = []
        for begin in range(0, len(ids) - 1, WINDOW):
            path = self.ids('window.json', ids[begin:begin + WINDOW])
            result += json.loads(self.eval('--ids', path, '--out', '-', *options))['top1']
        return result


def measure(calla, ids):
    """{name: report}"""
    reports, recordings = {}, {}
    path = calla.ids('all.json', ids)
    for name, options, against in RUNS:
        words = ['--ids', path, '--window', WINDOW, '--stride', WINDOW, '--json', *options]
        if against:
            words += ['--against', recordings[against]]
        elif any(other == name for _, _, other in RUNS):
            recordings[name] = calla.folder / f'{len(recordings)}.ref'
            words += ['--record', recordings[name]]
        reports[name] = json.loads(calla.eval(*words))
        print(f'{name}: perplexity {reports[name]["perplexity"]:.5f}', file=sys.stderr)
    return reports


def agreement(a, b):
    return sum(x == y for x, y in zip(a, b)) / len(b)


def perplexity(logprobs):
    return math.exp(-math.fsum(logprobs) / len(logprobs))


def write(out, reports, data, top1):
    first = next(iter(reports.values()))
    positions = first['positions']
    lines = [
        '# Quality',
        '',
        'Written by `tools/quality_report.py`; every figure comes from `calla eval`. calla '
        f'{first["calla"]} (commit {first["commit"]}), model {first["model"]}, device {first["device"]} ({first["device_detail"]}).',
        '',
        f'Text: {positions:,} positions in {positions // WINDOW} windows of {WINDOW:,} tokens without context before them '
        f'(`--window {WINDOW} --stride {WINDOW}`), of chats like those that pocket was trained on, held out.',
        '',
        'Perplexity is e to the mean negative log-probability of the token that follows. Divergence is that of Kullback and Leibler from the '
        'reference, in nats, over the 64 most likely tokens that the reference names and all others as one more outcome; joining '
        'outcomes can only lessen it. The 99th percentile is over positions.',
        '',
        '## Against another implementation',
        '',
        'transformers 5.17 in float32 on the same weights, dequantized, and on the bf16 weights that were quantized: what quantization itself '
        'costs is the scale for all that follows.',
        '',
        '| weights, engine | perplexity | same top token as transformers, 4-bit |',
        '|---|---|---|',
        f'| bf16, transformers | {perplexity(data["logprob_bf16"]):.4f} | {100 * agreement(data["top1_bf16"], data["top1_4bit"]):.2f} % |',
        f'| 4-bit, transformers | {perplexity(data["logprob_4bit"]):.4f} | 100 % |',
    ]
    for name in AGAINST_OTHERS:
        lines.append(f'| 4-bit, calla, {name} | {reports[name]["perplexity"]:.4f} | {100 * agreement(top1[name], data["top1_4bit"]):.2f} % |')
    lines += ['', '## calla against itself', '',
              '| run | reference | perplexity | same top token | mean KL | 99th percentile | largest |', '|---|---|---|---|---|---|---|']
    for name, _, against in RUNS:
        if against:
            r, a = reports[name], reports[name]['against']
            lines.append(f'| {name} | {against} | {r["perplexity"]:.4f} | {100 * a["top1_agreement"]:.3f} % | {a["kl_mean"]:.2e} | '
                         f'{a["kl_p99"]:.2e} | {a["kl_largest"]:.2e} |')
    fast = reports['fast, KV bf16']
    a = fast['against']
    detail = fast['device_detail']
    kept = a['kl_mean'] <= KL_LIMIT and a['top1_agreement'] >= TOP1_LIMIT
    lines += ['', f'Fast precision ran as: {detail}. It may become the default only if, on pocket against exact, the mean divergence is at most '
              f'{KL_LIMIT:.0e} and the top token the same at {100 * TOP1_LIMIT:.0f} % of the positions: here {a["kl_mean"]:.2e} and '
              f'{100 * a["top1_agreement"]:.3f} %, so these two conditions are {"met" if kept else "not met"}. (A third is about the layers of a '
              'synthetic model of the real widths.)', '']
    out.write_text('\n'.join(lines))


def main(program, out):
    data = read_arrays(DATA)
    with tempfile.TemporaryDirectory() as folder:
        calla = Calla(program, Path(folder))
        reports = measure(calla, data['ids'])
        top1 = {name: calla.top1(data['ids'], options) for name, options, _ in RUNS if name in AGAINST_OTHERS}
    write(out, reports, data, top1)


if __name__ == '__main__':
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(str(Path(sys.argv[1]).resolve()), Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / 'docs' / 'quality.md')
