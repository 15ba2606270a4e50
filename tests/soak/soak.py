#!/usr/bin/env python3
"""soak.py: `calla serve` on pocket for a long time, with eight clients of mixed behaviour (clients.py), and in between stopped and killed.

usage: soak.py CALLA [--seconds N] [--life N] [--slowness X] [--device NAME] [--out FOLDER]

First each question is asked once, alone: with --deterministic the same question must get the same answer later, whatever else is going on.  Then
the clients run.  After every `--life` seconds the server is killed in the midst of its work, or told to stop, in turn, and started again on
the same port.  At the end, when the clients have stopped, nothing may be left: no job, no body, no connection.

With --device NAME that device computes, exactly but without --deterministic, which not every device has: then one answer in twenty may be another.

Fails if an answer was wrong, a request was left without one while the server was up, a server did not end as it should, or its private
memory grew: the median of the last third of a life of ten minutes or more may be 3 % or 2 MB above that of the second.  --out FOLDER gets
server.log, the servers' whole log, soak.log, what was wrong and when, soak.json and memory.svg.
"""
import argparse
import collections
import json
import os
import platform
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import clients

DRAIN_S = 2
MB = 1e6


class World:
    """What the clients share."""

    def __init__(self, arguments):
        self.calla, self.slowness = arguments.calla, arguments.slowness
        self.computing = ['--device', arguments.device, '--precision', 'exact'] if arguments.device else ['--deterministic']
        self.repeats = not arguments.device
        self.patience = 60 * self.slowness
        self.tokens = 24 if self.slowness == 1 else 8
        self.lengths = [10, 60, 150] if self.slowness == 1 else [5, 20]
        self.port, self.process, self.stopping, self.paused = 0, None, True, False
        self.answers, self.counts, self.wrong, self.latencies = {}, collections.Counter(), [], []
        self.lives, self.samples = [], []
        self.lock = threading.Lock()
        self.log = open(arguments.out / 'server.log', 'w+') if arguments.out else tempfile.TemporaryFile('w+')
        self.notes = open(arguments.out / 'soak.log', 'w') if arguments.out else sys.stdout
        self.begun = time.monotonic()

    def expect(self, key, got):
        with self.lock:
            return self.answers.setdefault(key, got)

    def note_latency(self, seconds):
        with self.lock:
            self.latencies.append(seconds)

    def say(self, what):
        """With the time as the server's log gives it, and the seconds since the start."""
        now = time.time()
        line = f'{time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))}.{int(now * 1e3) % 1000:03d}Z {time.monotonic() - self.begun:.1f} {what}'
        for place in {self.notes, sys.stdout}:
            print(line, file=place, flush=True)

    def fail(self, what):
        with self.lock:
            self.wrong.append(what)
        self.say(f'wrong: {what}')
        try:
            self.say('the server then: ' + ', '.join(f'{name} {self.metric("calla_" + name):g}' for name in ('jobs_running', 'jobs_queued', 'requests')))
        except OSError as error:
            self.say(f'the server then: {error!r}')

    # ---- the server ------------------------------------------------------------------------------------------------------------

    def launch(self):
        environment = {k: v for k, v in os.environ.items() if not k.startswith('CALLA_') or k == 'CALLA_POCKET'}
        return subprocess.Popen(
            [self.calla, 'serve', '--port', str(self.port), *self.computing, '--context', '4096', '--sequences', '3', '--requests', '6', '--drain',
             str(DRAIN_S)], stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment)

    def start(self):
        """Each life comes after a server that was killed at some point of its start."""
        doomed = self.launch()
        time.sleep(random.Random(len(self.lives)).random() * 0.1 * self.slowness)
        doomed.kill()
        doomed.communicate()
        self.process = self.launch()
        line = self.process.stdout.readline()
        self.port = int(re.search(r'http://127\.0\.0\.1:(\d+)', line)[1])
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        self.wait_until_loaded()
        self.lives.append({'begun_s': round(time.monotonic() - self.begun, 1), 'ended': None})
        self.stopping = False

    def wait_until_loaded(self):
        """It listens before it has its model; until then it may answer 503, as while it stops."""
        end = time.monotonic() + self.patience
        while True:
            try:
                with urllib.request.urlopen(f'http://127.0.0.1:{self.port}/health', timeout=self.patience):
                    return
            except urllib.error.HTTPError as error:
                if error.code != 503 or time.monotonic() > end:
                    raise
            time.sleep(0.02)

    def end(self, how):
        """`killed` with SIGKILL, or `stopped` with SIGTERM."""
        self.stopping = True
        begun = time.monotonic()
        self.process.send_signal(signal.SIGKILL if how == 'killed' else signal.SIGTERM)
        try:
            code = self.process.wait(DRAIN_S + (5 if self.slowness == 1 else 60))
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = 'none: it had to be killed'
        if code != (-signal.SIGKILL if how == 'killed' else 0):
            self.fail(f'a server that was {how} ended with code {code}')
        self.say(f'life {len(self.lives)} was {how}: code {code}')
        self.lives[-1].update(ended=how, ended_s=round(time.monotonic() - self.begun, 1), took_s=round(time.monotonic() - begun, 2))

    def metric(self, name):
        with urllib.request.urlopen(f'http://127.0.0.1:{self.port}/metrics', timeout=self.patience) as reply:
            return float(re.search(rf'^{re.escape(name)} (\S+)$', reply.read().decode(), re.M)[1])

    def sample(self):
        """(seconds, life, private MB); where the system does not tell, nothing."""
        try:
            text = Path(f'/proc/{self.process.pid}/status').read_text()
        except OSError:
            return
        if found := re.search(r'^RssAnon:\s+(\d+) kB', text, re.M):
            self.samples.append((time.monotonic() - self.begun, len(self.lives), int(found[1]) * 1024 / MB))


def run_client(world, number, until):
    behave, numbers = clients.BEHAVIOURS[number], random.Random(number)
    while time.monotonic() < until and not world.paused:
        life = len(world.lives)
        try:
            outcome = behave(world, numbers)
        except clients.Gone as error:
            outcome = 'interrupted'
            if not world.stopping and life == len(world.lives):
                world.fail(f'{behave.__name__}: {error}')
            time.sleep(0.1)
        except clients.Wrong as error:
            outcome = 'wrong'
            world.fail(f'{behave.__name__}: {error}')
        except Exception as error:  # a client's own fault is one as well
            outcome = 'wrong'
            world.fail(f'{behave.__name__}: {error!r}')
        with world.lock:
            world.counts[f'{behave.__name__} {outcome}'] += 1


def ask_alone(world):
    """Each question once, while nothing else is going on."""
    for i in range(30):
        for path, body, parse, key in (('/v1/chat/completions', clients.chat_body(i, world.tokens), clients.of_chat, 'chat'),
                                       ('/v1/messages', clients.messages_body(i, world.tokens), clients.of_messages, 'messages')):
            clients.ask(world, path, body, parse, (key, i))
    for words in world.lengths:
        clients.ask(world, '/v1/chat/completions', clients.long_body(words), clients.of_chat, ('long', words))
    if 'Paris' not in ''.join(world.answers['chat', 0]) + ''.join(world.answers['chat', 10]):
        world.fail(f'the capital of France: {world.answers["chat", 0]}')


def check_nothing_is_left(world):
    end = time.monotonic() + 10 * world.slowness
    names = {'calla_jobs_running': 0, 'calla_jobs_queued': 0, 'calla_requests': 0, 'calla_upload_bytes': 0, 'calla_connections': 1}
    while left := {n: v for n, v in ((n, world.metric(n)) for n in names) if v > names[n]}:
        if time.monotonic() > end:
            return world.fail(f'left over: {left}')
        time.sleep(0.1)


def check_memory(world):
    """(MB of the second third, of the last) of each life."""
    for number, life in enumerate(world.lives, 1):
        points = [(t, mb) for t, n, mb in world.samples if n == number]
        if len(points) < 9:
            continue
        third = len(points) // 3
        middle, last = (statistics.median(mb for _, mb in part) for part in (points[third:2 * third], points[2 * third:]))
        life.update(private_mb={'second_third': round(middle, 2), 'last_third': round(last, 2), 'most': round(max(mb for _, mb in points), 2)})
        if world.slowness == 1 and points[-1][0] - points[0][0] >= 550 and last > max(middle * 1.03, middle + 2):
            world.fail(f'life {number}: private memory grew from {middle:.1f} to {last:.1f} MB')


def cpu_name():
    try:
        return re.search(r'^model name\s*: (.*)$', Path('/proc/cpuinfo').read_text(), re.M)[1]
    except (OSError, TypeError):
        return platform.processor()


def write_results(world, folder, seconds):
    version = subprocess.run([world.calla, '--version'], capture_output=True, text=True).stdout.strip().split('\n')[0]
    slow = sorted(world.latencies)
    result = {'date': time.strftime('%Y-%m-%d', time.gmtime()), 'machine': f'{cpu_name()}, {os.cpu_count()} cores, {platform.system()}', 'version': version,
              'seconds': round(seconds), 'wrong': world.wrong, 'exchanges': dict(sorted(world.counts.items())), 'lives': world.lives,
              'cheap_requests_ms': {'median': round(statistics.median(slow) * 1e3, 2), 'p99': round(slow[len(slow) * 99 // 100] * 1e3, 2),
                                    'most': round(slow[-1] * 1e3, 2)}}
    (folder / 'soak.json').write_text(json.dumps(result, indent=1, ensure_ascii=False) + '\n')
    if not shutil.which('gnuplot'):
        return
    step = max(1, len(world.samples) // 600)
    data = '\n'.join(('\n' if i and world.samples[i][1] != world.samples[i - step][1] else '') + f'{world.samples[i][0] / 60:.3f} {world.samples[i][2]:.2f}'
                     for i in range(0, len(world.samples), step))
    script = f'''set terminal svg size 800,360 font "sans-serif,13"
set output "{folder / 'memory.svg'}"
set title "calla serve on pocket: private memory, {result['date']}"
set xlabel "minutes"; set ylabel "MB"; set yrange [0:*]; set grid ytics; set border 3; set tics nomirror; unset key
plot "-" using 1:2 with lines linewidth 1.5 linecolor rgb "#2060a0"
{data}
e
'''
    subprocess.run(['gnuplot'], input=script, text=True, check=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('calla')
    parser.add_argument('--seconds', type=float, default=1800)
    parser.add_argument('--life', type=float, default=600)
    parser.add_argument('--slowness', type=float, default=1, help='of a build with a sanitizer: fewer tokens, more patience')
    parser.add_argument('--device', help='what computes')
    parser.add_argument('--out', type=Path)
    arguments = parser.parse_args()
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
    world = World(arguments)
    world.start()
    ask_alone(world)
    world.say(f'{len(world.answers)} answers are known')
    until = time.monotonic() + arguments.seconds
    threads = [threading.Thread(target=run_client, args=(world, i, until)) for i in range(len(clients.BEHAVIOURS))]
    for t in threads:
        t.start()
    ways = ['killed', 'stopped']
    while time.monotonic() < until:
        life_end = min(until, time.monotonic() + arguments.life)
        while time.monotonic() < life_end:
            if world.process.poll() is not None:
                world.fail(f'the server ended by itself with code {world.process.returncode}')
                until = 0
                break
            world.sample()
            time.sleep(1)
        if time.monotonic() < until - arguments.life / 2:
            world.end(ways[len(world.lives) % 2 - 1])
            world.start()
    world.paused = True
    for t in threads:
        t.join()
    if world.process.poll() is None:
        check_nothing_is_left(world)
        world.end('stopped')
    check_memory(world)
    world.log.seek(0)
    log = world.log.read()
    for sign in ('ERROR: AddressSanitizer', 'WARNING: ThreadSanitizer', 'runtime error:', 'LeakSanitizer'):
        if sign in log:
            world.fail(log[log.index(sign):][:3000])
    for name in ('whole', 'streamed', 'messages', 'long_prompt', 'slow_reader'):
        if not world.counts[f'{name} answered']:
            world.fail(f'{name} never got an answer')
    if world.counts['other words'] * 20 > sum(n for name, n in world.counts.items() if name.endswith(' answered')):
        world.fail(f'{world.counts["other words"]} answers were others than alone')
    if arguments.out:
        write_results(world, arguments.out, arguments.seconds)
    print(json.dumps(dict(sorted(world.counts.items()))), json.dumps(world.lives), sep='\n')
    if world.wrong:
        print(log[-5000:])
    sys.exit(1 if world.wrong else 0)


main()
