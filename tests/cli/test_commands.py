#!/usr/bin/env python3
"""test_commands.py: calla's general behaviour: help, version, wrong words, streams that are closed, folders that are broken."""
import json
import os
import re
import signal
import subprocess
import unittest

import command
from command import ROOT, CommandTest, calla, environment

COMMANDS = ['run', 'serve', 'inspect', 'tokenize', 'template', 'eval', 'selftest', 'bench']


class Help(CommandTest):
    def test_version(self):
        self.assertRegex(self.works('--version'), r'\Acalla \d+\.\d+\.\d+ \(commit \w+, devices: (\w+,)*ref(,\w+)*\)\n\Z')

    def test_overall_help_names_each_command(self):
        for arguments in (['--help'], ['-h'], ['help']):
            text = self.works(*arguments)
            for name in COMMANDS:
                self.assertRegex(text, rf'(?m)^  {name} ')

    def test_no_command_is_wrong_and_prints_help(self):
        result = calla()
        self.assertEqual((result.returncode, result.stdout), (2, b''))
        self.assertIn(b'Usage: calla COMMAND', result.stderr)

    def test_each_command_has_help(self):
        for name in COMMANDS:
            text = self.works(name, '--help')
            self.assertTrue(text.startswith(f'calla {name}: '))
            self.assertEqual(text, self.works('help', name))
            self.assertEqual(text, self.works(name, '-h', '--model', 'nowhere'))
            self.assertLessEqual(max(map(len, text.splitlines())), 100, name)
        self.assertIn('--port N', self.works('serve', '--help'))
        self.assertIn('(CALLA_PORT)', self.works('serve', '--help'))
        self.assertNotIn('--port', self.works('run', '--help'))

    def test_the_documentation_is_current(self):
        self.assertEqual(self.works('help', '--markdown'), (ROOT / 'docs' / 'options.md').read_text(),
                         'run:  build/src/cli/calla help --markdown > docs/options.md')


class WrongWords(CommandTest):
    def test_unknown_commands(self):
        self.fails(2, ['"sevre"', 'did you mean "serve"?'], 'sevre')
        self.fails(2, '"qqqqqqqq"', 'qqqqqqqq')
        self.fails(2, '"qqqqqqqq"', 'help', 'qqqqqqqq')
        self.fails(2, 'the command comes first', '--model', 'x', 'run')

    def test_unknown_options_for_each_command(self):
        for name in COMMANDS:
            self.fails(2, ['--modle', 'did you mean --model?'], name, '--modle', 'x')
        self.fails(2, '--port is an option of serve', 'run', '--port', '80')

    def test_values_out_of_range(self):
        self.fails(2, '--port takes a whole number from 0 to 65535', 'serve', '--port', '70000')
        self.fails(2, '--temperature takes', 'run', '--temperature', 'warm', 'x')
        self.fails(2, 'CALLA_PORT takes', 'serve', env=environment(CALLA_PORT='http'))

    def test_an_error_stays_one_line(self):
        self.fails(2, 'unknown command', 'two\nlines\033[2J')
        self.assertNotIn(b'\033', calla('two\033[2J').stderr)


class Streams(CommandTest):
    def test_closed_standard_output(self):
        close_it = lambda: os.close(1)
        self.fails(1, 'standard output', 'tokenize', stdin='Hello', preexec_fn=close_it, stdout=None)
        self.fails(1, 'standard output', '--version', preexec_fn=close_it, stdout=None)

    def test_closed_standard_input(self):
        self.fails(1, 'standard input', 'tokenize', preexec_fn=lambda: os.close(0))

    @unittest.skipUnless(os.path.exists('/dev/full'), 'no /dev/full here')
    def test_full_disk(self):
        with open('/dev/full', 'wb') as full:
            self.fails(1, ['standard output', 'No space left'], 'tokenize', stdin='Hello', stdout=full)
            self.fails(1, 'standard output', '--help', stdout=full)
            self.fails(1, 'standard output', 'inspect', stdout=full)

    def reader_that_left(self, **more):
        """The end of calla when nobody reads its output any more."""
        read, write = os.pipe()
        os.close(read)
        process = subprocess.Popen([command.CALLA, 'tokenize'], stdin=subprocess.PIPE, stdout=write, stderr=subprocess.PIPE,
                                   env=environment(), **more)
        os.close(write)
        _, stderr = process.communicate(b'word ' * 50_000, timeout=command.SECONDS)
        return process.returncode, stderr

    def test_reader_that_left(self):
        self.assertEqual(self.reader_that_left(), (-signal.SIGPIPE, b''))
        ignore = lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        code, message = self.reader_that_left(restore_signals=False, preexec_fn=ignore)
        self.assertEqual(code, 1)
        self.assertRegex(message, rb'\Acalla: cannot write standard output: Broken pipe\n\Z')


class Folders(CommandTest):
    """Every command that opens a model says which file is wrong."""

    OPENING = [['run', 'Hello', '--model'], ['inspect'], ['tokenize'], ['template'], ['eval', '--ids', 'IDS', '--out', '-'], ['selftest'],
               ['serve', '--model'], ['bench']]

    def each(self, skip=()):
        ids = self.folder / 'ids.json'
        ids.write_text('{"ids":[1,2,3]}')
        for arguments in self.OPENING:
            if arguments[0] not in skip:
                yield [str(ids) if a == 'IDS' else a for a in arguments]

    def test_missing_folder(self):
        for arguments in self.each():
            self.fails(1, 'no-such-folder', *arguments, 'no-such-folder', stdin='{"messages":[{"role":"user","content":"x"}]}')

    def test_a_file_instead_of_a_folder(self):
        for arguments in self.each():
            self.fails(1, 'test_commands.py', *arguments, __file__)

    def test_empty_folder(self):
        for arguments in self.each():
            self.fails(1, str(self.folder / 'empty'), *arguments, self.make('empty'))

    def make(self, name):
        (self.folder / name).mkdir(exist_ok=True)
        return self.folder / name

    def test_truncated_weights(self):
        model = self.copy_pocket()
        with open(model / 'model.safetensors', 'r+b') as file:
            file.truncate(1_000_000)
        for arguments in self.each(skip=('tokenize', 'template')):
            self.fails(1, 'model.safetensors', *arguments, model)

    def test_broken_config(self):
        model = self.copy_pocket()
        config = json.loads((model / 'config.json').read_text())
        text = config.get('text_config', config)
        text['num_experts_per_tok'] = -1
        (model / 'config.json').write_text(json.dumps(config))
        for arguments in self.each(skip=('tokenize', 'template')):
            self.fails(1, ['config.json', 'num_experts_per_tok'], *arguments, model)

    def test_broken_tokenizer(self):
        model = self.copy_pocket()
        (model / 'tokenizer.json').write_text('{"model": {')
        for arguments in self.each(skip=('inspect', 'eval', 'selftest', 'bench')):
            self.fails(1, 'tokenizer.json', *arguments, model)

    def test_ids_need_no_tokenizer(self):
        model = self.copy_pocket()
        (model / 'tokenizer.json').unlink()
        self.assertIn('"top1":[', self.works('eval', model, '--ids', '-', '--out', '-', stdin='{"ids":[1,2,3]}'))

    def test_the_model_can_be_named_in_three_ways(self):
        model = self.copy_pocket()
        expected = self.works('tokenize', stdin='Hello')
        self.assertEqual(self.works('tokenize', model, stdin='Hello'), expected)
        self.assertEqual(self.works('tokenize', '--model', model, stdin='Hello'), expected)
        self.assertEqual(self.works('tokenize', stdin='Hello', env=environment(CALLA_MODEL=str(model))), expected)
        self.fails(2, 'give the model once', 'tokenize', model, '--model', model)


if __name__ == '__main__':
    command.main()
