#!/usr/bin/env python3
"""test_eval.py: calla eval's reports and recordings, and calla selftest, on pocket."""
import json
import math
import os
import struct

import command
from command import ROOT, CommandTest, calla

TEXT = 'The capital of France is Paris. The capital of Japan is Tokyo. Water boils at a temperature that depends on the pressure.\n' * 8


def read_arrays(path):
    """A safetensors file of float32 and uint16 arrays, without numpy: {name: tuple}."""
    data = path.read_bytes()
    n = struct.unpack('<Q', data[:8])[0]
    arrays = {}
    for name, info in json.loads(data[8:8 + n]).items():
        if name == '__metadata__':
            continue
        begin, end = (8 + n + offset for offset in info['data_offsets'])
        letter, size = {'F32': ('f', 4), 'U16': ('H', 2)}[info['dtype']]
        arrays[name] = struct.unpack(f'<{(end - begin) // size}{letter}', data[begin:end])
    return arrays


class Report(CommandTest):
    def put(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def report(self, *arguments, **more):
        return json.loads(self.works('eval', *arguments, '--json', **more))

    def test_the_recorded_perplexity(self):
        """The first positions of a window without context, against log-probabilities that another implementation recorded."""
        recorded = read_arrays(ROOT / 'tests' / 'data' / 'model' / 'pocket.eval.safetensors')
        n = 300
        ids = self.put('ids.json', json.dumps({'ids': recorded['ids'][:n + 1]}))
        report = self.report('--ids', ids, '--window', '1024', '--stride', '1024')
        self.assertEqual((report['positions'], report['window'], report['stride']), (n, 1024, 1024))
        expected = -math.fsum(recorded['logprob_4bit'][:n]) / n
        self.assertAlmostEqual(report['nats_per_token'], expected, delta=2e-3)
        self.assertAlmostEqual(report['perplexity'], math.exp(report['nats_per_token']), delta=1e-9)
        self.assertNotIn('bits_per_byte', report)

    def test_windows(self):
        """Windows of 32, 8 apart, are the sum of scores of pieces that are cut here; each position is scored once."""
        ids = list(read_arrays(ROOT / 'tests' / 'data' / 'model' / 'pocket.eval.safetensors')['ids'][:70])
        path = self.put('ids.json', json.dumps({'ids': ids}))
        report = self.report('--ids', path, '--window', '32', '--stride', '8')
        nats, positions = 0, 0
        for begin in range(0, len(ids), 8):
            piece = ids[begin:begin + 33]
            if len(piece) < 26:
                break
            piece_path = self.put('piece.json', json.dumps({'ids': piece}))
            logprobs = json.loads(self.works('eval', '--ids', piece_path, '--out', '-'))['token_logprobs'][24:]
            nats -= math.fsum(logprobs)
            positions += len(logprobs)
        self.assertEqual(report['positions'], positions)
        self.assertEqual(positions, len(ids) - 1 - 24)
        self.assertAlmostEqual(report['nats_per_token'], nats / positions, delta=1e-4)
        self.assertEqual(self.report('--ids', path, '--window', '32')['stride'], 16)
        self.assertEqual(self.report('--ids', path, '--window', '32', '--stride', '8', '--positions', '5')['positions'], 5)

    def test_bits_per_byte(self):
        text = self.put('text', TEXT)
        report = self.report('--text', text, '--window', '64', '--stride', '64')
        ids = json.loads(self.works('tokenize', stdin=TEXT))['ids']
        self.assertEqual(report['positions'], len(ids) - 1)
        first = json.loads(self.works('tokenize', '--decode', stdin=json.dumps({'ids': ids[:1]})))['text']
        self.assertEqual(report['bytes'], len(TEXT.encode()) - len(first.encode()))
        expected = report['nats_per_token'] * report['positions'] / math.log(2) / report['bytes']
        self.assertAlmostEqual(report['bits_per_byte'], expected, delta=1e-9)
        self.assertEqual(self.report('--text', '-', '--window', '64', '--stride', '64', stdin=TEXT), report)

    def test_against_a_recording(self):
        text, ref = self.put('text', TEXT * 2), self.folder / 'exact.ref'
        words = ['--text', text, '--window', '128', '--positions', '192']
        report = self.report(*words, '--record', ref)
        self.assertEqual(report['positions'], 192)
        self.assertEqual(report['recorded'], {'top': 64, 'file': str(ref), 'bytes': ref.stat().st_size})
        same = self.report(*words, '--against', ref)
        self.assertEqual(same['perplexity'], report['perplexity'])
        against = same['against']
        self.assertEqual(against['top1_agreement'], 1)
        self.assertAlmostEqual(against['perplexity'], report['perplexity'], delta=1e-5)
        self.assertLess(against['kl_largest'], 1e-6)
        self.assertEqual(against['about']['batch_rows'], 256)
        self.assertEqual(against['about']['model'], 'pocket')
        for change, limit in [(['--kv', 'f32'], 0.05), (['--device', 'ref'], 1e-3), (['--batch-rows', '7'], 1e-3)]:
            against = self.report(*words, '--against', ref, *change)['against']
            self.assertGreater(against['top1_agreement'], 0.97, change)
            self.assertTrue(0 <= against['kl_mean'] <= against['kl_largest'] < limit, (change, against))
            self.assertLessEqual(against['kl_p99'], against['kl_largest'])
        # bf16 and f32 caches differ: the divergence sees it
        self.assertGreater(self.report(*words, '--against', ref, '--kv', 'f32')['against']['kl_mean'], 1e-7)

    def test_table_and_files(self):
        text, ref, out = self.put('text', TEXT), self.folder / 'ref', self.folder / 'out.json'
        words = ['eval', '--text', text, '--window', '64', '--positions', '20']
        table = self.works(*words, '--record', ref)
        for line in (r'(?m)^model +pocket$', r'(?m)^perplexity +[\d.]+$', r'(?m)^bits per byte +[\d.]+ over \d+ bytes$', r'(?m)^recorded +'):
            self.assertRegex(table, line)
        self.assertRegex(self.works(*words, '--against', ref), r'(?m)^  same top token +100\.000 %$')
        self.assertEqual(self.works(*words, '--out', out), '')
        self.assertEqual(json.loads(out.read_text())['positions'], 20)
        ids = self.put('ids.json', json.dumps({'ids': [1, 2, 3]}))
        self.assertIn('perplexity', self.works('eval', '--ids', ids, '--window', '2', '--stride', '2'))

    def test_other_recordings_are_refused(self):
        text, ref = self.put('text', TEXT), self.folder / 'ref'
        words = ['eval', '--text', text, '--window', '64', '--positions', '20']
        self.works(*words, '--record', ref)
        self.fails(1, [str(ref), '--window 64'], 'eval', '--text', text, '--positions', '20', '--window', '32', '--against', ref)
        self.fails(1, [str(ref), '20 positions'], *words[:-1], '21', '--against', ref)
        other = self.put('other', 'Another text. ' * 60)
        self.fails(1, [str(ref), 'other tokens'], 'eval', '--text', other, '--window', '64', '--positions', '20', '--against', ref)
        data = ref.read_bytes()
        for broken in (b'', data[:100], data[:-1], b'x' + data[1:]):
            ref.write_bytes(broken)
            self.fails(1, str(ref), *words, '--against', ref)

    def test_wrong_calls(self):
        text = self.put('text', 'Hello to all who read this.')
        self.fails(2, ['--text', '--ids'], 'eval')
        self.fails(2, 'not both', 'eval', '--text', text, '--ids', text)
        self.fails(2, '--stride 65', 'eval', '--text', text, '--window', '64', '--stride', '65')
        self.fails(1, [str(text), '--stride 1024'], 'eval', '--text', text)
        self.fails(1, 'no-such-text', 'eval', '--text', 'no-such-text')
        self.fails(1, 'UTF-8', 'eval', '--text', '-', stdin=b'ab\xff' * 9)
        ids = self.put('ids.json', '{"ids":[1,2,9000]}')  # the last is never given to the model
        self.fails(1, '9000', 'eval', '--ids', ids, '--window', '2', '--stride', '2', '--json')
        self.fails(1, 'no-such-folder/ref', 'eval', '--text', text, '--window', '1', '--stride', '1', '--record', 'no-such-folder/ref')


class Selftest(CommandTest):
    IDS = [8161, 318, 198, 423, 287, 278, 546, 296, 1759, 30, 8162, 198, 8161, 332, 198, 8184, 304, 8185, 304]
    ANSWER = [302, 546, 296, 1759, 287, 2821, 13, 8162]

    def checks(self, report):
        return {check['name']: check['result'] for check in report['checks']}

    def test_pocket_passes(self):
        report = json.loads(self.works('selftest', '--json'))
        self.assertEqual(self.checks(report), {'weights': 'ok', 'side by side': 'ok', 'recorded runs': 'not for this model', 'pieces of 1': 'ok',
                                               'pieces of 17': 'ok', 'pieces of 64': 'ok'})
        self.assertEqual((report['passed'], report['failed'], report['not_for_this_model']), (5, 0, 1))
        self.assertEqual((report['model'], report['vocabulary_rows']), ('pocket', 8192))
        for name in ('calla', 'commit', 'device', 'device_detail', 'precision', 'kv'):
            self.assertIn(name, report)

    def test_the_table_says_the_same(self):
        table = self.works('selftest', *([] if os.environ.get('CALLA_TEST_SHORT') else ['--device', 'ref']))
        self.assertRegex(table, r'(?m)^recorded runs +not for this model: they are of Qwen3\.6-35B-A3B in 4 bits')
        self.assertRegex(table, r'(?m)^5 passed, 0 failed, 1 not for this model$')

    def write_runs(self, *tops, shape=None, bits=4):
        """A folder with a run for each of tops: the greedy answer, each token with another one well below it; of step 3 topk is the given."""
        folder = self.folder / 'runs'
        folder.mkdir(exist_ok=True)
        shape = shape or {'hidden': json.loads(self.works('inspect', '--json'))['shape']['hidden'], 'vocabulary_rows': 8192}
        names = [f'run{i}.json' for i in range(len(tops))]
        (folder / 'runs.json').write_text(json.dumps({'model': 'pocket', 'shape': shape, 'bits': bits, 'runs': names}))
        for name, top in zip(names, tops):
            steps = [{'chosen': t, 'topk': [[t, -0.0625], [1, -3]]} for t in self.ANSWER]
            steps[3]['topk'] = top
            (folder / name).write_text(json.dumps({'prompt_token_ids': self.IDS, 'steps': steps}))
        return folder

    RIGHT = ANSWER[3]

    def test_recorded_runs(self):
        runs = self.write_runs([[self.RIGHT, -0.1], [9, -2]], [[9, -0.5], [self.RIGHT, -0.75]])  # the second: within the grid of bf16
        report = json.loads(self.works('selftest', '--json', '--runs', runs))
        checks = {c['name']: (c['result'], c['steps'], c['same_top1'], c['failed_steps']) for c in report['checks'] if 'steps' in c}
        self.assertEqual(checks, {'run0': ('ok', 8, 8, 0), 'run1': ('ok', 8, 7, 0)})
        self.assertEqual((report['passed'], report['not_for_this_model']), (7, 0))

    def failing(self, *arguments):
        """A report with failures: exit code 1, the report on standard output, one line on standard error."""
        result = calla('selftest', '--json', *arguments)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr.decode(), r'\Acalla: \d of \d checks failed\n\Z')
        return json.loads(result.stdout)

    def test_a_step_that_fails(self):
        report = self.failing('--runs', self.write_runs([[9, -0.5], [self.RIGHT, -0.76]], [[9, -0.5], [10, -0.6]]))
        checks = {c['name']: c for c in report['checks'] if 'steps' in c}
        for name, why in (('run0', 'recorded 0.260 below it'), ('run1', 'not among the recorded ones')):
            self.assertEqual((checks[name]['result'], checks[name]['failed_steps']), ('failed', 1))
            self.assertIn('step 3', checks[name]['detail'])
            self.assertIn(why, checks[name]['detail'])
        self.assertEqual(report['failed'], 2)

    def test_runs_of_another_model(self):
        for more in ({'shape': {'vocabulary_rows': 8192, 'no_such_dimension': 1}}, {'bits': 8}):
            report = json.loads(self.works('selftest', '--json', '--runs', self.write_runs([[self.RIGHT, -0.1]], **more)))
            self.assertEqual((report['passed'], report['not_for_this_model']), (5, 1))

    def test_broken_runs(self):
        runs = self.write_runs([[self.RIGHT, -0.1]])
        (runs / 'run0.json').write_text('{}')
        report = self.failing('--runs', runs)
        self.assertEqual(self.checks(report)['recorded runs'], 'failed')
        report = self.failing('--runs', self.folder / 'nowhere')
        self.assertEqual(report['failed'], 1)
        self.assertIn('nowhere', report['checks'][0]['detail'])

    def test_the_installed_runs_are_whole(self):
        """Those of the real model are read when a model has its shape: here only their form can be checked."""
        folder = ROOT / 'models' / 'selftest'
        index = json.loads((folder / 'runs.json').read_text())
        for name in index['runs']:
            run = json.loads((folder / name).read_text())
            self.assertGreater(len(run['steps']), 0)
            for step in run['steps']:
                self.assertEqual(step['chosen'], step['topk'][0][0])
                self.assertLess(max([*run['prompt_token_ids'], *(t for t, _ in step['topk'])]), index['shape']['vocabulary_rows'])
        self.assertTrue(os.access(folder / 'README.md', os.R_OK))


if __name__ == '__main__':
    command.main()
