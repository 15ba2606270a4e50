#!/usr/bin/env python3
"""test_model.py: the commands that load the weights: run, eval, inspect and serve, on pocket."""
import http.client
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import command
from command import POCKET, SECONDS, CommandTest, calla, environment

FRANCE = 'What is the capital of France?'
ANSWER = 'The capital of France is Paris.'
THOUGHT = 'I need to recall the capital of France.'
GREEDY = ['--temperature', '0']
VOCABULARY_ROWS = 8192


class Run(CommandTest):
    def test_an_answer_is_held_to_a_schema(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / 'schema.json'
            path.write_text('{"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "large": {"type": "boolean"}}, '
                            '"required": ["city", "large"], "additionalProperties": false}')
            for words in ([], ['--no-think']):
                answer = json.loads(self.works('run', *words, *GREEDY, '--schema', str(path), FRANCE))
                self.assertEqual(sorted(answer), ['city', 'large'])
                self.assertIn(answer['city'], ['Paris', 'Rome'])
                self.assertIsInstance(answer['large'], bool)
            path.write_text('{"properties": {"a": {"not": {"type": "null"}}}}')
            self.fails(1, [str(path), '/properties/a', 'not'], 'run', '--schema', str(path), FRANCE)
            self.fails(1, 'nowhere.json', 'run', '--schema', f'{folder}/nowhere.json', FRANCE)

    def test_the_prompt_is_the_argument_or_standard_input(self):
        self.assertEqual(self.works('run', '--no-think', *GREEDY, FRANCE), ANSWER + '\n')
        self.assertEqual(self.works('run', '--no-think', *GREEDY, stdin=FRANCE), ANSWER + '\n')
        self.assertEqual(self.works('run', '--no-think', *GREEDY, '-', stdin=FRANCE), ANSWER + '\n')
        self.assertEqual(self.works('run', *GREEDY, FRANCE, env=environment(CALLA_NO_THINK='1', CALLA_MODEL=str(POCKET))), ANSWER + '\n')

    def test_thoughts_stay_out_of_pipes(self):
        self.assertEqual(self.works('run', *GREEDY, FRANCE), ANSWER + '\n')

    def on_a_terminal(self, *arguments, **changes):
        master, slave = pty.openpty()
        process = subprocess.Popen([command.CALLA, 'run', *arguments], stdin=subprocess.DEVNULL, stdout=slave, stderr=slave,
                                   env=environment(**{'TERM': 'xterm', **changes}))
        os.close(slave)
        seen = b''
        while True:
            try:
                piece = os.read(master, 4096)
            except OSError:  # the terminal's other end was closed
                break
            if not piece:
                break
            seen += piece
        os.close(master)
        self.assertEqual(process.wait(SECONDS), 0)
        return seen.decode().replace('\r\n', '\n')

    def test_thoughts_are_dimmed_on_a_terminal(self):
        self.assertEqual(self.on_a_terminal(*GREEDY, FRANCE), f'\033[2m{THOUGHT}\033[0m\n\n{ANSWER}\n')
        self.assertEqual(self.on_a_terminal(*GREEDY, FRANCE, NO_COLOR='1'), f'{THOUGHT}\n\n{ANSWER}\n')
        self.assertEqual(self.on_a_terminal(*GREEDY, '--no-think', FRANCE), f'{ANSWER}\n')

    def test_a_bar_while_a_long_prompt_is_processed(self):
        words = ['--no-think', *GREEDY, '--batch-rows', '4', '--max-tokens', '3', f'{FRANCE} ' * 40]
        answer = self.works('run', *words)
        seen = self.on_a_terminal(*words)
        last = seen.rindex('\r')
        self.assertRegex(seen[:last], r'\A(\rprompt \[#*\.+\] \d+ of \d+\033\[K)+\Z')
        self.assertEqual(seen[last:], f'\r\033[K{answer}')
        self.assertEqual(self.on_a_terminal(*words, TERM='dumb'), answer)

    def test_raw(self):
        prompt = f'<|im_start|>user\n{FRANCE}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n'
        self.assertEqual(self.works('run', '--raw', *GREEDY, prompt), ANSWER)
        open_thought = prompt.replace('\n\n</think>\n\n', '\n')
        self.assertEqual(self.works('run', '--raw', *GREEDY, open_thought), f'{THOUGHT}\n</think>\n\n{ANSWER}')

    def test_max_tokens(self):
        self.assertEqual(self.works('run', '--no-think', *GREEDY, '--max-tokens', '3', FRANCE), 'The capital of\n')

    def test_a_full_window_is_said(self):
        result = calla('run', '--no-think', *GREEDY, '--context', '30', 'Tell me about Japan.')
        self.assertEqual(result.returncode, 0)
        self.assertTrue(result.stdout.startswith(b'In 1603'))
        self.assertRegex(result.stderr, rb'\Acalla: the context window is full[^\n]*\n\Z')

    def test_a_prompt_longer_than_the_window(self):
        self.fails(1, '10', 'run', '--context', '10', FRANCE)

    def test_the_seed_decides(self):
        words = ['run', '--no-think', '--temperature', '1.5', '--max-tokens', '40', 'Tell me about Japan.', '--seed']
        first = self.works(*words, '1')
        self.assertEqual(self.works(*words, '1'), first)
        self.assertTrue(any(self.works(*words, str(seed)) != first for seed in (2, 3, 4)))

    def test_wrong_prompts(self):
        self.fails(2, 'the prompt is empty', 'run')
        self.fails(2, 'the prompt is empty', 'run', '')
        self.fails(2, 'in quotes', 'run', 'two', 'words')
        self.fails(1, ['UTF-8', 'byte 2'], 'run', stdin=b'ab\xff')

    def test_unknown_device(self):
        self.fails(1, 'abacus', 'run', '--device', 'abacus', FRANCE)

    def test_the_log_gives_speeds(self):
        result = calla('run', '--no-think', *GREEDY, '--log', 'info', FRANCE)
        self.assertRegex(result.stderr.decode(), r'prompt: 19 tokens, [\d.]+/s; answer: \d+ tokens, [\d.]+/s\n')

    def interrupt(self, process):
        process.send_signal(signal.SIGINT)
        begun = time.monotonic()
        process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, -signal.SIGINT)
        return time.monotonic() - begun

    def test_interrupted_while_answering(self):
        process = subprocess.Popen([command.CALLA, 'run', '--raw', '--temperature', '2', '--seed', '1', 'The'], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        self.assertTrue(process.stdout.read(1))
        self.assertLess(self.interrupt(process), 10)

    def test_interrupted_while_reading_the_prompt(self):
        process = subprocess.Popen([command.CALLA, 'run'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        process.stdin.write(b'The quick brown fox jumps over the lazy dog. ' * 1000)  # thousands of tokens: many seconds
        process.stdin.close()
        process.stdin = None
        time.sleep(1.5)
        self.assertLess(self.interrupt(process), 10)


class Eval(CommandTest):
    IDS = [8161, 318, 198, 423, 287, 278, 546, 296, 1759, 30, 8162, 198, 8161, 332, 198, 8184, 304, 8185, 304, 302, 546, 296, 1759, 287, 2821, 13]

    def evaluate(self, ids, *arguments):
        path = self.folder / 'ids.json'
        path.write_text(json.dumps({'ids': ids}))
        return json.loads(self.works('eval', '--ids', path, '--out', '-', *arguments))

    def test_scores(self):
        n = len(self.IDS)
        scores = self.evaluate(self.IDS)
        self.assertEqual(sorted(scores), ['logits_last', 'token_logprobs', 'top1'])
        self.assertEqual([len(scores[k]) for k in ('token_logprobs', 'top1', 'logits_last')], [n - 1, n, VOCABULARY_ROWS])
        self.assertLess(max(scores['token_logprobs']), 0)
        logits = scores['logits_last']
        self.assertEqual(scores['top1'][-1], logits.index(max(logits)))
        # the recorded greedy answer, token by token
        self.assertEqual(scores['top1'][18:], self.IDS[19:] + [8162])
        for logprob in scores['token_logprobs'][18:]:
            self.assertGreater(logprob, -0.1)

    def test_numbers_are_read_back_exactly(self):
        for x in self.evaluate(self.IDS[:5])['logits_last']:
            self.assertEqual('%.9g' % struct.unpack('f', struct.pack('f', x))[0], '%.9g' % x)

    def test_one_token_and_a_file(self):
        out = self.folder / 'scores.json'
        self.works('eval', '--ids', '-', '--out', out, stdin='{"ids":[42]}')
        scores = json.loads(out.read_text())
        self.assertEqual((scores['token_logprobs'], len(scores['top1'])), ([], 1))

    def test_float32_cache_is_close(self):
        a, b = self.evaluate(self.IDS), self.evaluate(self.IDS, '--kv', 'f32')
        for x, y in zip(a['token_logprobs'], b['token_logprobs']):
            self.assertAlmostEqual(x, y, delta=0.05)

    def test_wrong_calls(self):
        path = self.folder / 'ids.json'
        self.fails(2, '--ids FILE', 'eval')
        self.fails(1, str(path), 'eval', '--ids', path, '--out', '-')
        for wrong in ['', '{"ids":[]}', '{"ids":[1,"2"]}', '{"ids":{}}']:
            path.write_text(wrong)
            self.fails(1, str(path), 'eval', '--ids', path, '--out', '-')
        path.write_text('{"ids":[1,8192]}')
        self.fails(1, '8192', 'eval', '--ids', path, '--out', '-')
        path.write_text('{"ids":[1,2]}')
        self.fails(1, 'no-such-folder/out', 'eval', '--ids', path, '--out', 'no-such-folder/out')
        self.fails(1, '', 'eval', '--ids', path, '--out', '-', '--context', '1')


class Inspect(CommandTest):
    def test_json_and_table_say_the_same(self):
        report = json.loads(self.works('inspect', '--json'))
        table = self.works('inspect')

        def walk(value, name=''):
            if isinstance(value, dict):
                for key, item in value.items():
                    self.assertIn(key.replace('_', ' '), table)
                    walk(item, key)
            elif isinstance(value, list):
                for item in value:
                    walk(item, name)
            elif isinstance(value, str):
                self.assertIn(value, table)

        walk(report)
        self.assertIn('layers', table)

    def test_the_context_counts(self):
        small, large = (json.loads(self.works('inspect', '--json', '--context', n)) for n in (1024, 131072))
        self.assertNotEqual(small, large)


class Serve(CommandTest):
    def start(self, port=0):
        process = subprocess.Popen([command.CALLA, 'serve', '--port', str(port)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, env=environment())
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        ready, _, _ = select.select([process.stdout], [], [], SECONDS)
        self.assertTrue(ready, 'calla serve printed nothing')
        match = None
        while not match:
            line = process.stdout.readline().decode()
            self.assertTrue(line, 'calla serve printed no address')
            match = re.search(r'http://127\.0\.0\.1:(\d+)', line)
        return process, int(match.group(1))

    def test_answers_and_ends_on_sigterm(self):
        process, port = self.start()
        connection = http.client.HTTPConnection('127.0.0.1', port, timeout=SECONDS)
        body = {'messages': [{'role': 'user', 'content': FRANCE}], 'temperature': 0, 'chat_template_kwargs': {'enable_thinking': False}}
        connection.request('POST', '/v1/chat/completions', json.dumps(body), {'Content-Type': 'application/json'})
        reply = json.loads(connection.getresponse().read())
        connection.close()
        self.assertEqual(reply['choices'][0]['message']['content'], ANSWER)
        process.terminate()
        self.assertEqual(process.wait(SECONDS), 0)

    def test_a_busy_port_is_named(self):
        with socket.socket() as busy:
            busy.bind(('127.0.0.1', 0))
            busy.listen()
            port = str(busy.getsockname()[1])
            self.fails(1, port, 'serve', '--port', port, '--log', 'warn')

    def test_nothing_is_open_to_the_network_by_itself(self):
        self.fails(1, ['--key-file', '--insecure'], 'serve', '--host', '0.0.0.0', '--port', '0')
        keys = self.folder / 'keys'
        keys.write_text('# none yet\n')
        self.fails(1, [str(keys), 'no key'], 'serve', '--port', '0', '--key-file', keys)

    def test_killed_at_work_it_starts_again_on_the_same_port(self):
        process, port = self.start()
        body = json.dumps({'messages': [{'role': 'user', 'content': FRANCE}], 'stream': True})
        for _ in range(2):
            with socket.create_connection(('127.0.0.1', port), timeout=SECONDS) as s:
                s.sendall(f'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n'
                          f'Content-Length: {len(body)}\r\n\r\n{body}'.encode())
                self.assertTrue(s.recv(1).startswith(b'H'))
                process.kill()
                process.wait(SECONDS)
            process, again = self.start(port)
            self.assertEqual(again, port)


if __name__ == '__main__':
    command.main()
