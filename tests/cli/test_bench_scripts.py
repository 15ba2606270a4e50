#!/usr/bin/env python3
"""test_bench_scripts.py: bench/table.py and bench/compare: the table in docs/speed.md is current, results become rows, and both families of
llama-bench are asked and understood.  llama-bench is played by a script here: it answers in the forms of the two, by fixed speeds."""
import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import xml.etree.ElementTree

import command
from command import POCKET, ROOT, SECONDS, CommandTest, environment

TABLE, COMPARE = ROOT / 'bench' / 'table.py', ROOT / 'bench' / 'compare'
SPEED = ROOT / 'docs' / 'speed.md'

ENTRY = {'prompt': 512, 'depth': 4096, 'decode': 64, 'decode_context': 4640, 'prefill_tok_s': 151.26, 'decode_tok_s': 20.126, 'ttft_ms': 3384.6,
         'bytes_per_token': 1_888_000_000, 'achieved_gb_s': 38.0, 'read_rate_gb_s': 51.3, 'share_of_read_rate': 0.7407, 'prefill_tflop_s': 0.75, 'dot_peak_tflop_s': 1.53, 'share_of_dot_peak': 0.4902,
         'peak_bytes': 19_876_543_210,
         'private_bytes': 300_000_000, 'stages_per_token': 240, 'digest': '0123456789abcdef', 'drift': 0.01, 'unsteady': False, 'rounds': []}
RESULT = {'date': '2026-11-30T10:11:12Z', 'version': '1.0.0', 'commit': 'abcdef', 'machine': {'cpu': 'A|B', 'cores': 2}, 'model': 'm', 'weights_bytes': 19_500_000_000,
          'plan_bytes': 500_000_000, 'device': 'cpu', 'device_detail': 'vnni', 'entries': [ENTRY],
          'options': {'decode': 64, 'prompt': [512], 'depth': [4096], 'threads': None, 'batch_rows': 256, 'precision': 'exact', 'kv': 'bf16'}}

# Speeds by batch of -ub: 4096 is a little faster on prompts and half as fast at generation, which loses one token a second for each 100
# tokens of context.
LLAMA_BENCH = '''#!{python}
import json, sys
arguments = sys.argv[1:]
family = {family!r}
if arguments == ['--help']:
    print('  -d, --n-depth <n>  (default: 0)' if family == 'llama.cpp' else '  -gp <pp,tg>  (default: )')
    sys.exit(0)
given = dict(zip(arguments[::2], arguments[1::2]))
assert given['-o'] == 'json' and given['-m'].endswith('/model.gguf') and given['-r'] == '1', given
assert ('-d' in given) <= (family == 'llama.cpp') and ('-gp' in given) <= (family != 'llama.cpp'), given
tests = []
def add(prompt, made, depth, speed, label):
    test = {{'build_commit': '8337e4cd', 'build_number': 4321, 'cpu_info': 'A', 'model_type': 'moe 35B Q4_K', 'model_size': 19570000000,
            'n_ubatch': int(given['-ub']), 'n_threads': 2, 'use_mmap': True, 'n_prompt': prompt, 'n_gen': made}}
    test.update({{'n_depth': depth}} if family == 'llama.cpp' else {{}})
    test.update({{'avg_ns': 1, 'stddev_ns': 0, 'avg_ts': speed, 'stddev_ts': 0.0}})
    test.update({{'samples_ts': [speed]}} if family == 'llama.cpp' else {{'test': label}})
    tests.append(test)
depth = int(given.get('-d', 0))
prefill, decode = {{'512': (60.0, 20), '2048': (100.0, 20), '4096': (120.0, 10)}}[given['-ub']]
if int(given['-p']): add(int(given['-p']), 0, depth, prefill, 'pp' + given['-p'])
if int(given['-n']): add(0, int(given['-n']), depth, decode - depth / 100, 'tg' + given['-n'])
if '-gp' in given:
    context, made = map(int, given['-gp'].split(','))
    add(context, made, 0, decode - context / 100, f'tg{{made}}@pp{{context}}')
print('system_info: [a line of a library]')
print(json.dumps(tests, indent=2))
'''


# What mlx_lm.benchmark prints; decoding slows as above.
MLX_LM = '''#!{python}
import sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert given['--model'] == 'mlx' and given['-n'] == '1', given
prompt, made = int(given['-p']), int(given['-g'])
print('Running warmup..')
print(f'Timing with prompt_tokens={{prompt}}, generation_tokens={{made}}, batch_size=1.')
for line in ('Trial 1:  ', 'Averages: '):
    print(f'{{line}}prompt_tps=2536.500, generation_tps={{148.5 - prompt / 100:.3f}}, peak_memory=19.871')
'''


def load_compare():
    loader = importlib.machinery.SourceFileLoader('compare', str(COMPARE))
    sys.dont_write_bytecode = True
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader('compare', loader))
    loader.exec_module(module)
    return module


def script(*arguments, **more):
    return subprocess.run([sys.executable, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=SECONDS, **more)


class Table(CommandTest):
    def write(self, name, content):
        (self.folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return self.folder / name

    def test_the_documentation_is_current(self):
        result = script(TABLE, '--check', SPEED)
        self.assertEqual((result.returncode, result.stderr), (0, ''))

    def test_a_row(self):
        newer = dict(RESULT, date='2026-12-01T00:00:00Z', commit='fedcba', entries=[dict(ENTRY, read_rate_gb_s=None, share_of_read_rate=None,
                                                                                         peak_bytes=None, unsteady=True)])
        result = script(TABLE, self.write('a.json', RESULT), self.write('b.json', newer))
        self.assertEqual((result.returncode, result.stderr), (0, ''))
        head, rule, first, second = result.stdout.splitlines()
        self.assertEqual({line.replace('\\|', '').count('|') for line in (head, rule, first, second)}, {21})
        self.assertEqual(second, r'| 2026-11-30 | abcdef | A\|B, 2 cores | m | cpu (vnni) | 512 | 4096 | 151.3 | 0.750 | 49.0 % | 20.13 | 3385 ms | 1888.0 | 38.00 | '
                         '51.30 GB/s | 74.1 % | 19.877 GB | 99.4 % | 240 |  |')
        self.assertIn('fedcba', first)
        self.assertTrue(first.endswith('| – | – | – | – | 240 | unsteady |'), first)

    def test_write_and_check(self):
        page = self.write('page.md', 'before\n<!-- bench/table.py begins -->\nold\n<!-- bench/table.py ends -->\nafter\n')
        data = self.write('a.json', RESULT)
        self.assertIn('behind', script(TABLE, data, '--check', page).stderr)
        self.assertEqual(script(TABLE, data, '--write', page).returncode, 0)
        self.assertEqual(script(TABLE, data, '--check', page).returncode, 0)
        text = page.read_text()
        self.assertTrue(text.startswith('before\n<!-- bench') and text.endswith('ends -->\nafter\n') and 'old' not in text and '151.3' in text)
        unmarked = self.write('other.md', 'no marks\n')
        self.assertNotEqual(script(TABLE, data, '--write', unmarked).returncode, 0)
        self.assertEqual(unmarked.read_text(), 'no marks\n')

    def test_ablation(self):
        arm = {'name': 'gears', 'meaning': 'they turn | off: they do not',
               'entries': [dict(ENTRY, prefill_tok_s=100.84, decode_tok_s=20.3, prefill_worth=0.5, decode_worth=-0.0086, unsteady=True)]}
        data = self.write('a.json', dict(RESULT, ablation=[arm]))
        plain = self.write('b.json', dict(RESULT, date='2026-11-29T00:00:00Z'))
        speeds, table = script(TABLE, data, plain).stdout.split('\n\n', 1)
        self.assertEqual(len(speeds.splitlines()), 4)
        head, rule, row, _, meaning = table.splitlines()
        self.assertEqual({line.replace('\\|', '').count('|') for line in (head, rule, row)}, {16})
        self.assertTrue(row.endswith('| gears | 512 | 4096 | 151.3 | 100.8 | +50.0 % | 20.13 | 20.30 | -0.9 % | unsteady |'), row)
        self.assertEqual(meaning, '- gears: they turn | off: they do not')
        page = self.write('page.md', 'a\n<!-- bench/table.py begins -->\n<!-- bench/table.py ends -->\n')
        self.assertIn('"<!-- bench/table.py ablation begins -->"', script(TABLE, data, '--write', page).stderr)
        page.write_text(page.read_text() + 'b\n<!-- bench/table.py ablation begins -->\n<!-- bench/table.py ablation ends -->\nc\n')
        self.assertEqual(script(TABLE, data, '--write', page).returncode, 0)
        self.assertIn('gears', page.read_text())
        self.assertEqual(script(TABLE, data, '--check', page).returncode, 0)
        self.assertIn('behind', script(TABLE, plain, '--check', page).stderr)
        self.assertEqual(script(TABLE, plain, '--write', page).returncode, 0)
        self.assertNotIn('gears', page.read_text())
        self.assertTrue(page.read_text().endswith('<!-- bench/table.py ends -->\nb\n<!-- bench/table.py ablation begins -->\n'
                                                  '<!-- bench/table.py ablation ends -->\nc\n'))

    def test_other_files_are_refused(self):
        for wrong in ['{', '[]', '{}', {'entries': [{}]}]:
            result = script(TABLE, self.write('wrong.json', wrong))
            self.assertEqual(result.returncode, 1)
            self.assertIn('wrong.json: not a result of calla bench', result.stderr)

    def test_what_calla_writes_becomes_rows(self):
        path = self.folder / 'real.json'
        self.works('bench', '--device', 'ref', '--prompt', '2,3', '--decode', '1', '--json', path)
        rows = script(TABLE, path).stdout.splitlines()[2:]
        self.assertEqual([row.split(' | ')[5:7] for row in rows], [['2', '0'], ['3', '0']])
        self.works('bench', '--ablate', '--prompt', '2,3', '--decode', '1', '--json', path)
        arms = json.loads(path.read_text())['ablation']
        rows = [row.split(' | ')[5:7] for row in script(TABLE, path).stdout.split('\n\n')[1].splitlines()[2:]]
        self.assertEqual(rows, [[arm['name'], prompt] for prompt in ('2', '3') for arm in arms])


class Fixture(CommandTest):
    """A comparison of calla on pocket with an engine that is played."""

    def other(self, family):
        path = self.folder / f'llama-bench-{family}'
        path.write_text(LLAMA_BENCH.format(python=sys.executable, family=family))
        path.chmod(0o755)
        return path

    def compare(self, other, *more, **environment_changes):
        gguf = self.folder / 'model.gguf'
        gguf.touch()
        return self.compare_with(['--llama-bench', other, '--gguf', gguf], *more, **environment_changes)

    def compare_with(self, other, *more, **environment_changes):
        return script(COMPARE, '--calla', command.CALLA, '--model', POCKET, *other, '--out', self.folder / 'out', '--calla-flags=--device ref',
                      '--decode', '2', *more, env=environment(**environment_changes))

    def rows(self, result):
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual((self.folder / 'out' / 'compare.md').read_text(), result.stdout)
        return json.loads((self.folder / 'out' / 'compare.json').read_text())


class Compare(Fixture):
    def test_llama_cpp(self):
        result = self.compare(self.other('llama.cpp'), '--prompt', '4', '--depth', '0,96', '--flags=-ub 512', '--flags=-ub 2048', '--flags=-ub 4096',
                              '--threads', '1')
        data = self.rows(result)
        self.assertEqual(data['flags'], '-ub 2048')
        self.assertEqual(data['tried'], {'-ub 512': {'prefill': 60, 'decode': 19.96}, '-ub 2048': {'prefill': 100, 'decode': 19.96},
                                         '-ub 4096': {'prefill': 120, 'decode': 9.96}})
        self.assertEqual([(r['prompt'], r['depth'], r['kind'], r['other']) for r in data['rows']],
                         [(4, 0, 'prefill', 100), (4, 0, 'decode', 19.96), (4, 96, 'prefill', 100), (4, 96, 'decode', 19)])
        for row in data['rows']:
            self.assertAlmostEqual(row['ratio'], row['calla'] / row['other'])
        turns = ['calla' if ' bench ' in line else 'other' for line in result.stderr.splitlines() if line.startswith('+ ')]
        self.assertEqual(turns, ['other'] * 6 + ['calla'] + ['other'] * 8 + ['calla'])  # three trials, then round 1, then round 2 the other way
        self.assertIn('`-ub 512` 60.0 and 20.0 tok/s', result.stdout)
        self.assertRegex(result.stdout, r'(?m)^\| 4 \| 96 \| decode \| [\d.]+ ± [\d.]+ \| 19\.0 ± 0\.0 \| [\d.]+ \| – \|$')

    def test_ik_llama_cpp(self):
        result = self.compare(self.other('ik'), '--prompt', '4', '--depth', '0,96', '--flags=-ub 2048', '--name', 'ik_llama.cpp', '--rounds', '1',
                              '--reread')
        data = self.rows(result)
        self.assertIn('1 rounds in turns, read anew', result.stdout)
        self.assertEqual(result.stderr.count('\n+ '), 2)  # one process for the prompt and what is made after it
        self.assertEqual([r['other'] for r in data['rows']], [100, 19.96, None, 19])  # it has no prompt after a context
        self.assertEqual(data['tried'], {})

    def test_mlx_lm(self):
        program = self.folder / 'mlx_lm.benchmark'
        program.write_text(MLX_LM.format(python=sys.executable))
        program.chmod(0o755)
        result = self.compare_with(['--mlx-lm', program, '--mlx-model', 'mlx'], '--prompt', '4,50', '--depth', '0,96')
        data = self.rows(result)
        self.assertEqual([r['other'] for r in data['rows']], [2536.5, 148.46, 2536.5, 148.0] + 4 * [None])  # it has no depth
        self.assertEqual((data['name'], data['tried'], data['flags'], data['about']), ('MLX-LM', {}, '', 'peak memory 19.87 GB'))
        parse = load_compare().parse_mlx_lm
        for broken in ('', 'Averages: prompt_tps=1.0, generation_tps=2.0, peak_memory=3.0',
                       'Timing with prompt_tokens=4, generation_tokens=2, batch_size=2.\nAverages: prompt_tps=1, generation_tps=2, peak_memory=3'):
            with self.assertRaises(ValueError):
                parse(broken)

    def test_one_other_engine_is_named(self):
        for other in ([], ['--llama-bench', 'a'], ['--gguf', 'a'], ['--llama-bench', 'a', '--gguf', 'b', '--mlx-lm', 'c']):
            result = self.compare_with(other)
            self.assertEqual(result.returncode, 2)
            self.assertIn('the other engine is either', result.stderr)

    def test_a_bench_that_fails_ends_the_comparison(self):
        broken = self.folder / 'broken'
        for text, words in (('#!/bin/sh\nexit 3\n', 'ended with code 3'), ('#!/bin/sh\necho "no [array]"\n', 'cannot be read'),
                            ('#!/bin/sh\necho "[{}]"\n', 'cannot be read')):
            broken.write_text(text)
            broken.chmod(0o755)
            result = self.compare(broken, '--prompt', '2')
            self.assertEqual(result.returncode, 1)
            self.assertIn(words, result.stderr)
            self.assertFalse((self.folder / 'out').exists())

    def test_without_gnuplot_that_is_said(self):
        empty = self.folder / 'empty'
        empty.mkdir()
        result = self.compare(self.other('ik'), '--prompt', '2', '--flags=-ub 512', '--rounds', '1', PATH=str(empty))
        self.rows(result)
        self.assertIn('gnuplot is not installed', result.stderr)
        self.assertFalse((self.folder / 'out' / 'compare.svg').exists())

    def test_a_figure_of_prompt_and_generation_together_is_left_out(self):
        parse = load_compare().parse_llama_bench
        common = {'build_commit': 'c', 'build_number': 1, 'model_type': 't', 'model_size': 1}
        tests = [dict(common, n_prompt=512, n_gen=0, n_depth=0, avg_ts=5.5), dict(common, n_prompt=512, n_gen=64, n_depth=0, avg_ts=7)]
        self.assertEqual(parse(json.dumps(tests))[0], {('prefill', 512, 0): 5.5})
        with self.assertRaises(ValueError):
            parse(json.dumps(tests[1:]))


class Picture(Fixture):
    """Needs gnuplot: meson leaves it out where that is missing."""

    def test_it_shows_both_engines(self):
        self.rows(self.compare(self.other('ik'), '--prompt', '2', '--depth', '0,9', '--flags=-ub 512', '--rounds', '1', '--name', 'the "other" $one'))
        text = ''.join(xml.etree.ElementTree.parse(self.folder / 'out' / 'compare.svg').getroot().itertext())
        for words in ('prefill', 'decode', 'calla', 'the "other" $one', '2 @ 9'):
            self.assertIn(words, text)


if __name__ == '__main__':
    command.main()
