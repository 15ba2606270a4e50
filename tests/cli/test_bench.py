#!/usr/bin/env python3
"""test_bench.py: calla bench on pocket: the form of what it prints, and that answers repeat.  Not speed: this machine may be busy."""
import json

import command
from command import CommandTest, calla

TINY = ['--prompt', '16', '--decode', '4', '--depth', '0,32']
NAMES = ['prefill_tok_s', 'decode_tok_s', 'ttft_ms', 'bytes_per_token', 'read_rate_gb_s', 'share_of_read_rate', 'peak_bytes', 'stages_per_token',
         'digest']


class Bench(CommandTest):
    def test_table_and_json(self):
        path = self.folder / 'bench.json'
        table = self.works('bench', *TINY, '--json', path).splitlines()
        result = json.loads(path.read_text())
        self.assertRegex(table[0], r'\Acalla \d+\.\d+\.\d+ \(commit \w+\), \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z')
        self.assertEqual(table[1], 'pocket on {device}: {device_detail}; {machine[cpu]}, {machine[cores]} cores'.format(**result))
        self.assertEqual([line.split()[:2] for line in table[4:6]], [['16', '0'], ['16', '32']])
        self.assertRegex(table[7], r'\Aread rate of the memory: [\d.]+ GB/s; \d+ stages a token\Z')
        self.assertEqual(result['options'], {'decode': 4, 'prompt': [16], 'depth': [0, 32], 'threads': None, 'batch_rows': 256,
                                             'precision': 'exact', 'kv': 'bf16'})
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
        self.assertIn('read rate of the memory: unknown', self.works(*arguments))

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
