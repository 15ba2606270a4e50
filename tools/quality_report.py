#!/usr/bin/env python3
"""quality_report.py: measures pocket and the four-layer synthetic checkpoint of full width, and writes docs/quality.md.

    tools/quality_report.py --calla build/src/cli/calla --measure-layers build/tests/model/measure_layers [--synthetic DIR] [--out FILE]

Inputs: tests/data/model/pocket.eval.safetensors (16 windows of 1,024 tokens, with log-probabilities that transformers 5.17 in float32 recorded
for the bf16 and the 4-bit weights); tests/data/model/synthetic-4layer.reference.safetensors (logits that transformers recorded for five
prompts); the synthetic checkpoint (made by tools/make_checkpoint.py --layers 4 in a temporary folder, 2.5 GB, where none is given).  Takes
some minutes on two cores.
"""
import argparse
import json
import math
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / 'tests' / 'data' / 'model' / 'pocket.eval.safetensors'
SYNTHETIC = ROOT / 'tests' / 'data' / 'model' / 'synthetic-4layer.reference.safetensors'
POCKET = ROOT / 'models' / 'pocket'
WINDOW = 1024
SYNTHETIC_PROMPTS = 5
LAYER_ROWS = 512

# What is compared with what: name, the options of the run, the name of its reference.
RUNS = [
    ('exact, KV bf16', ['--precision', 'exact', '--kv', 'bf16'], None),
    ('exact, KV f32', ['--precision', 'exact', '--kv', 'f32'], None),
    ('the same again', ['--precision', 'exact', '--kv', 'bf16'], 'exact, KV bf16'),
    ('chunks of 64 rows', ['--precision', 'exact', '--kv', 'bf16', '--batch-rows', '64'], 'exact, KV bf16'),
    ('chunks of 16 rows', ['--precision', 'exact', '--kv', 'bf16', '--batch-rows', '16'], 'exact, KV bf16'),
    ('chunks of 1 row', ['--precision', 'exact', '--kv', 'bf16', '--batch-rows', '1'], 'exact, KV bf16'),
    ('KV bf16', ['--precision', 'exact', '--kv', 'bf16'], 'exact, KV f32'),
    ('KV q8', ['--precision', 'exact', '--kv', 'q8'], 'exact, KV f32'),
    ('fast, KV bf16', ['--precision', 'fast', '--kv', 'bf16'], 'exact, KV bf16'),
    ('fast, KV q8', ['--precision', 'fast', '--kv', 'q8'], 'exact, KV bf16'),
    ('two windows', ['--precision', 'exact', '--kv', 'f32', '--positions', '2046'], None),
    ('device ref, KV f32, two windows', ['--device', 'ref', '--kv', 'f32', '--positions', '2046'], 'two windows'),
]
AGAINST_OTHERS = ['exact, KV f32', 'exact, KV bf16', 'fast, KV bf16']

# Fast becomes the default only if it keeps these on pocket (and another one on the layers of a synthetic model of full width).
KL_LIMIT, TOP1_LIMIT, LAYER_LIMIT = 2e-4, 0.99, 2e-2

# What runs the synthetic checkpoint.
SYNTHETIC_RUNS = [('exact, KV f32', ['--precision', 'exact', '--kv', 'f32']), ('exact, KV bf16', ['--precision', 'exact', '--kv', 'bf16']),
                  ('fast, KV bf16', ['--precision', 'fast', '--kv', 'bf16'])]


def read_arrays(path):
    """A safetensors file of float32, int32 and uint16 arrays: {name: tuple}."""
    data = path.read_bytes()
    n = struct.unpack('<Q', data[:8])[0]
    arrays = {}
    for name, info in json.loads(data[8:8 + n]).items():
        if name != '__metadata__':
            begin, end = (8 + n + offset for offset in info['data_offsets'])
            letter, size = {'F32': ('f', 4), 'I32': ('i', 4), 'U16': ('H', 2)}[info['dtype']]
            arrays[name] = struct.unpack(f'<{(end - begin) // size}{letter}', data[begin:end])
    return arrays


class Calla:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def eval(self, *arguments):
        device = [] if '--device' in arguments else ['--device', 'cpu']
        return subprocess.run([self.program, 'eval', *device, *map(str, arguments)], check=True, stdout=subprocess.PIPE).stdout

    def knows(self, options):
        """Whether this build has the type of cache that a run asks for."""
        words = subprocess.run([self.program, 'eval', '--help'], check=True, stdout=subprocess.PIPE, text=True).stdout
        return '--kv' not in options or options[options.index('--kv') + 1] in words.split('--kv ')[1].split()[0].split('|')

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
        if not calla.knows(options):
            continue
        words = ['--ids', path, '--window', WINDOW, '--stride', WINDOW, '--json', *options]
        if against:
            words += ['--against', recordings[against]]
        elif any(other == name for _, _, other in RUNS):
            recordings[name] = calla.folder / f'{len(recordings)}.ref'
            words += ['--record', recordings[name]]
        reports[name] = json.loads(calla.eval(*words))
        print(f'{name}: perplexity {reports[name]["perplexity"]:.5f}', file=sys.stderr)
    return reports


def measure_synthetic(calla, folder, recorded):
    """{run: [(prompt's tokens, largest difference of the recorded top logits, whether the top token is the same)]}"""
    result = {}
    for name, options in SYNTHETIC_RUNS:
        result[name] = []
        for p in range(SYNTHETIC_PROMPTS):
            ids = recorded[f'p{p}.ids']
            logits = json.loads(calla.eval(folder, '--ids', calla.ids('prompt.json', ids), '--out', '-', *options))['logits_last']
            top = recorded[f'p{p}.top_ids']
            largest = max(abs(logits[i] - logit) for i, logit in zip(top, recorded[f'p{p}.top_logits']))
            result[name].append((len(ids), largest, max(range(len(logits)), key=logits.__getitem__) == top[0]))
        print(f'synthetic, {name}: largest difference {max(r[1] for r in result[name]):.2e}', file=sys.stderr)
    return result


def measure_layers(program, folder):
    return json.loads(subprocess.run([program, str(folder), str(LAYER_ROWS)], check=True, stdout=subprocess.PIPE).stdout)


def agreement(a, b):
    return sum(x == y for x, y in zip(a, b)) / len(b)


def perplexity(logprobs):
    return math.exp(-math.fsum(logprobs) / len(logprobs))


def layers_table(layers):
    """Both models side by side; the synthetic one has fewer layers."""
    lines = ['| layer | pocket | alone | other experts | synthetic | alone | other experts |', '|---:|---:|---:|---:|---:|---:|---:|']
    for i in range(max(len(of['layers']) for of in layers.values())):
        cells = [str(i)]
        for of in layers.values():
            known = of['layers'][i] if i < len(of['layers']) else None
            cells += [f'{known["error"]:.2e}', f'{known["alone"]:.2e}', str(known['rows_with_other_experts'])] if known else ['', '', '']
        lines.append('| ' + ' | '.join(cells) + ' |')
    return lines


def verdict(reports, layers):
    a, worst = reports['fast, KV bf16']['against'], layers['synthetic']['worst']
    alone = max(layer['alone'] for layer in layers['synthetic']['layers'])
    met = [a['kl_mean'] <= KL_LIMIT, a['top1_agreement'] >= TOP1_LIMIT, worst <= LAYER_LIMIT]
    words = lambda ok: 'met' if ok else 'not met'
    return ['## Whether fast may become the default', '',
            f'On pocket, fast against exact: the mean divergence must be at most {KL_LIMIT:.0e} (it is {a["kl_mean"]:.2e}: {words(met[0])}), the top '
            f'token the same at {100 * TOP1_LIMIT:.0f} % of the positions ({100 * a["top1_agreement"]:.3f} %: {words(met[1])}). On the synthetic model, '
            f'the error behind each layer at most {LAYER_LIMIT:.0e} ({worst:.2e} in a whole run: {words(met[2])}; {alone:.2e} in a layer alone). '
            f'{"All three are met." if all(met) else "So it is not the default."}', '']


def write(out, reports, data, top1, layers, synthetic):
    first = next(iter(reports.values()))
    positions = first['positions']
    lines = [
        '# Quality',
        '',
        'Written by `tools/quality_report.py`; the figures come from `calla eval` and, of layers, from `tests/model/measure_layers.c`. calla '
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
    for name in (name for name in AGAINST_OTHERS if name in reports):
        lines.append(f'| 4-bit, calla, {name} | {reports[name]["perplexity"]:.4f} | {100 * agreement(top1[name], data["top1_4bit"]):.2f} % |')
    lines += ['', '## calla against itself', '',
              'Without another word: exact, chunks of 256 rows. Two windows: 2,046 positions.', '',
              '| run | reference | perplexity | same top token | mean KL | 99th percentile | largest |', '|---|---|---|---|---|---|---|']
    for name, _, against in RUNS:
        if against and name in reports:
            r, a = reports[name], reports[name]['against']
            lines.append(f'| {name} | {against} | {r["perplexity"]:.4f} | {100 * a["top1_agreement"]:.3f} % | {a["kl_mean"]:.2e} | '
                         f'{a["kl_p99"]:.2e} | {a["kl_largest"]:.2e} |')
    lines += ['', f'Fast precision ran as: {reports["fast, KV bf16"]["device_detail"]}.', '',
              '## Layers in fast precision', '',
              f'The same {LAYER_ROWS} tokens exactly and fast, in one step: the relative L2 error of the residual stream behind each layer, '
              '|fast − exact| / |exact| over all rows. In the whole run it carries what the layers before left; alone, the layer begins with '
              'what exact gave it. Where a router chose other experts the exact run\'s were put in their place, so that a near tie does not '
              f'count as an error of arithmetic; in how many of the {LAYER_ROWS} rows that was, stands beside it. Synthetic: four random layers '
              'of the real widths (`tools/make_checkpoint.py --layers 4`).', '', *layers_table(layers), '',
              '## Logits of the synthetic model', '',
              'The largest difference among the 64 most likely tokens after each prompt from those that transformers 5.17 in float32 recorded '
              f'(`{SYNTHETIC.relative_to(ROOT)}`).', '',
              '| run | ' + ' | '.join(f'{n:,} token{"" if n == 1 else "s"}' for n, _, _ in synthetic[SYNTHETIC_RUNS[0][0]]) + ' | same top token |',
              '|---' + '|---:' * (SYNTHETIC_PROMPTS + 1) + '|']
    for name, results in synthetic.items():
        lines.append(f'| {name} | ' + ' | '.join(f'{largest:.1e}' for _, largest, _ in results) +
                     f' | {sum(same for _, _, same in results)} of {len(results)} |')
    out.write_text('\n'.join([*lines, '', *verdict(reports, layers)]))


def main():
    parser = argparse.ArgumentParser(description='measures pocket and a synthetic model, and writes docs/quality.md')
    parser.add_argument('--calla', required=True, type=Path, metavar='PATH', help='the calla to measure')
    parser.add_argument('--measure-layers', required=True, type=Path, metavar='PATH', help='tests/model/measure_layers of the same build')
    parser.add_argument('--synthetic', type=Path, metavar='DIR', help='the four-layer checkpoint [made and deleted again, 2.5 GB]')
    parser.add_argument('--out', type=Path, default=ROOT / 'docs' / 'quality.md', metavar='FILE')
    arguments = parser.parse_args()
    data = read_arrays(DATA)
    with tempfile.TemporaryDirectory() as folder:
        calla = Calla(arguments.calla.resolve(), Path(folder))
        reports = measure(calla, data['ids'])
        top1 = {name: calla.top1(data['ids'], options) for name, options, _ in RUNS if name in AGAINST_OTHERS}
        synthetic = arguments.synthetic
        if not synthetic:
            synthetic = Path(folder) / 'synthetic-4layer'
            subprocess.run([sys.executable, ROOT / 'tools' / 'make_checkpoint.py', synthetic, '--layers', '4'], check=True)
        layers = {name: measure_layers(arguments.measure_layers.resolve(), path) for name, path in (('pocket', POCKET), ('synthetic', synthetic))}
        logits = measure_synthetic(calla, synthetic, read_arrays(SYNTHETIC))
    write(arguments.out, reports, data, top1, layers, logits)


if __name__ == '__main__':
    main()
