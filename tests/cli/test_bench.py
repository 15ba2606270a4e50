#!/usr/bin/env python3
"""test_bench.py: calla bench on pocket: the form of what it prints, and that answers repeat.  Not speed: this machine may be busy."""
import json
import re

import command
from command import CommandTest, calla

TINY = ['--prompt', '16', '--decode', '4', '--depth', '0,32']
NAMES = ['prefill_tok_s', 'decode_tok_s', 'ttft_ms', 'bytes_per_token', 'read_rate_gb_s', 'share_of_read_rate', 'peak_bytes', 'stages_per_token',
         'prefill_tflop_s', 'dot_peak_tflop_s', 'share_of_dot_peak', 'digest']


class Bench(CommandTest):
    def test_table_and_json(self):
        path = self.folder / 'bench.json'
        table = self.works('bench', *TINY, '--json', path).splitlines()
        result = json.loads(path.read_text())
        self.assertRegex(table[0], r'\Acalla \d+\.\d+\.\d+ \(commit \w+\), \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z')
        self.assertEqual(table[1], 'pocket on {device}: {device_detail}; {machine[cpu]}, {machine[cores]} cores'.format(**result))
        self.assertEqual([line.split()[:2] for line in table[4:6]], [['16', '0'], ['16', '32']])
        self.assertRegex(table[7], r'\Aread rate of the memory: [\d.]+ GB/s; \d+ stages a token\Z')
        self.assertRegex(table[8], r'\Apeak of dot products: [\d.]+ TFLOP/s; by type: f32 [\d.]+')
        self.assertGreater(result['dot_rates']['f32'], 0)
        self.assertEqual(result['options'], {'decode': 4, 'prompt': [16], 'depth': [0, 32], 'threads': None, 'batch_rows': 256,
                                             'precision': 'exact', 'kv': 'bf16', 'deterministic': False,
                                             'without': ''})
        self.assertTrue(result['machine']['cpu'] and result['machine']['cores'] >= 1)
        for line, entry in zip(table[4:6], result['entries'], strict=True):
            for name in NAMES[:-1]:
                self.assertGreater(entry[name], 0, name)
            self.assertRegex(entry['digest'], r'\A[0-9a-f]{16}\Z')
            self.assertIn(entry['digest'], line)
            self.assertEqual(entry['unsteady'], entry['drift'] >= 0.03)
            self.assertEqual(entry['unsteady'], line.endswith(' unsteady'))
            self.assertEqual(len(entry['rounds']), 2)
            self.assertAlmostEqual(entry['achieved_gb_s'], entry['bytes_per_token'] * entry['decode_tok_s'] / 1e9, places=2)
            self.assertAlmostEqual(entry['share_of_read_rate'], entry['achieved_gb_s'] / entry['read_rate_gb_s'], places=2)
            self.assertAlmostEqual(entry['share_of_dot_peak'], entry['prefill_tflop_s'] / entry['dot_peak_tflop_s'], places=3)
        self.assertNotIn('ablation', result)
        first, second = result['entries']
        self.assertEqual((first['prompt'], first['depth'], first['decode'], first['decode_context']), (16, 0, 4, 18))
        self.assertEqual((second['prompt'], second['depth'], second['decode'], second['decode_context']), (16, 32, 4, 50))
        self.assertGreater(second['bytes_per_token'], first['bytes_per_token'])
        self.assertGreater(first['peak_bytes'], 1_000_000)

    def test_digests_repeat_and_tell_answers_apart(self):
        def digests(*arguments):
            return [entry['digest'] for entry in json.loads(self.works('bench', '--device', 'ref', *arguments, '--json', '-'))['entries']]
        first = digests(*TINY)
        self.assertEqual(digests(*TINY), first)
        short, shorter, again = digests('--prompt', '16,9,16', '--decode', '4')
        self.assertEqual((short, again), (first[0], first[0]))
        self.assertNotEqual(shorter, short)
        self.assertNotEqual(digests('--prompt', '16', '--decode', '5'), [short])

    def test_a_device_without_a_read_rate(self):
        arguments = ['bench', '--device', 'ref', '--prompt', '4', '--decode', '2']
        entry = json.loads(self.works(*arguments, '--json', '-'))['entries'][0]
        self.assertIsNone(entry['read_rate_gb_s'])
        self.assertIsNone(entry['share_of_read_rate'])
        self.assertIsNone(entry['dot_peak_tflop_s'])
        self.assertIsNone(entry['share_of_dot_peak'])
        self.assertGreater(entry['prefill_tflop_s'], 0)
        output = self.works(*arguments)
        self.assertIn('read rate of the memory: unknown', output)
        self.assertIn('peak of dot products: unknown', output)

    def optimizations(self):
        """Those of the default device: an unknown name lists them."""
        result = calla('bench', '--without', 'gears')
        self.assertEqual(result.returncode, 1)
        known = re.fullmatch(r"calla: device \w+ has no optimization called 'gears'; it has: ([a-z0-9, -]+)\n", result.stderr.decode())
        self.assertTrue(known, result.stderr)
        return known[1].split(', ')

    def test_ablate(self):
        path = self.folder / 'bench.json'
        arguments = ['bench', '--ablate', '--prompt', '8', '--decode', '2', '--depth', '0,4']
        table = self.works(*arguments, '--json', path)
        result = json.loads(path.read_text())
        names = self.optimizations()
        self.assertGreaterEqual(len(names), 3)
        self.assertEqual([arm['name'] for arm in result['ablation']], names)
        self.assertEqual(len(result['entries']), 2)
        for arm in result['ablation']:
            self.assertRegex(table, rf'(?m)^ +8 +4  {arm["name"]} +[\d.]+ +[+-][\d.]+% +[\d.]+ +[+-][\d.]+%')
            self.assertIn(f'{arm["name"]}: {arm["meaning"]}\n', table)
            for entry, whole in zip(arm['entries'], result['entries'], strict=True):
                self.assertEqual((entry['prompt'], entry['depth']), (whole['prompt'], whole['depth']))
                for kind in ('prefill', 'decode'):
                    worth = whole[f'{kind}_tok_s'] / entry[f'{kind}_tok_s'] - 1
                    self.assertAlmostEqual(entry[f'{kind}_worth'], worth, places=3)
        first = json.loads(self.works(*arguments, '--without', names[0], '--deterministic', '--json', '-'))
        self.assertEqual([arm['name'] for arm in first['ablation']], names[1:])
        self.assertEqual((first['options']['without'], first['options']['deterministic']), (names[0], True))

    def test_without(self):
        names = self.optimizations()
        for arguments in (['run', 'x'], ['serve'], ['eval', '--ids', '-'], ['selftest']):
            result = calla(*arguments, '--without', f'{names[0]},gears', stdin='{"ids":[1,2,3]}')
            self.assertEqual(result.returncode, 1)
            self.assertIn("no optimization called 'gears'", result.stderr.decode())
        self.fails(1, 'nothing that can be turned off', 'bench', '--ablate', '--device', 'ref')
        self.fails(1, ['device ref', 'none that can be turned off'], 'bench', '--without', 'gears', '--device', 'ref')
        self.assertIn('without ' + ','.join(names), self.works('eval', '--ids', '-', '--stride', '1024', '--without', ','.join(names), stdin='{"ids":[1,2,3]}'))

    def test_needs_no_tokenizer(self):
        model = self.copy_pocket()
        (model / 'tokenizer.json').unlink()
        self.assertRegex(self.works('bench', model, '--device', 'ref', '--prompt', '4', '--decode', '1'), r'(?m)^model on ref')

    def test_wrong_arguments(self):
        self.fails(2, ['--prompt takes', '0,4'], 'bench', '--prompt', '0,4')
        self.fails(2, '--depth takes', 'bench', '--depth', '1;2')
        self.fails(2, '--decode takes a whole number from 1', 'bench', '--decode', '0')
        self.fails(2, '--json needs a value', 'bench', '--json')
        self.fails(2, '--context is an option of', 'bench', '--context', '100')
        self.fails(1, 'was made for at most', 'bench', '--depth', '1048576')
        self.fails(1, 'no-such-device', 'bench', '--device', 'no-such-device')

    def test_a_file_that_cannot_be_written(self):
        result = calla('bench', '--device', 'ref', '--prompt', '2', '--decode', '1', '--json', self.folder / 'missing' / 'bench.json')
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr.decode(), r'\Acalla: cannot create [^\n]*bench.json: No such file or directory\n\Z')
        self.assertIn(b'stages a token', result.stdout)  # the measurement is not lost


if __name__ == '__main__':
    command.main()
