#!/usr/bin/env python3
"""run.py: runs the fuzz targets under libFuzzer, one after the other, and prints docs/fuzzing.md's table of what came out.

  meson setup build-fuzz --native-file presets/fuzz.ini && ninja -C build-fuzz
  python3 tests/fuzz/run.py build-fuzz --seconds 240

Each begins with its corpus and its dictionary; what it adds to the corpus stays in BUILD/fuzz/NAME/corpus for the next run, and what it finds
in BUILD/fuzz/NAME, beside its log.  Ends with 1 if anything was found: the input, made small by -minimize_crash=1, then belongs in
tests/fuzz/corpus.
"""
import argparse
import datetime
import json
import os
import re
import subprocess
import sys
from pathlib import Path

FINDINGS = ('crash-', 'leak-', 'timeout-', 'oom-')


def targets(build):
    """(name, command of the regression test, environment) of each, as meson knows them."""
    tests = json.loads(subprocess.run(['meson', 'introspect', '--tests', build], check=True, capture_output=True, text=True).stdout)
    return [(t['name'].removeprefix('fuzz_'), t['cmd'], t['env']) for t in tests if any(s.endswith('fuzz') for s in t['suite'])]


def fuzz(build, name, command, environment, seconds):
    """(executions, coverage, features, files of the corpus, what was found)"""
    _, seeds, dictionary = command
    work = build / 'fuzz' / name
    (work / 'corpus').mkdir(parents=True, exist_ok=True)
    for old in work.iterdir():
        if old.name.startswith(FINDINGS):
            old.unlink()
    with open(work / 'log', 'w+') as log:
        code = subprocess.run([build.resolve() / 'tests' / 'fuzz' / f'fuzz_{name}', f'-dict={dictionary}', f'-max_total_time={seconds}', '-timeout=60',
                               '-rss_limit_mb=4096', '-print_final_stats=1', f'-artifact_prefix={work.resolve()}/', work / 'corpus',
                               seeds], env=dict(os.environ, **environment), stdout=log, stderr=subprocess.STDOUT).returncode
        log.seek(0)
        text = log.read()
    executions = re.search(r'stat::number_of_executed_units:\s*(\d+)', text)
    last = re.findall(r'cov: (\d+) ft: (\d+) corp: (\d+)', text)
    found = sorted(f.name for f in work.iterdir() if f.name.startswith(FINDINGS))
    if code != 0 and not found:
        found = [f'ended with code {code}']
    return (int(executions[1]) if executions else 0, *(map(int, last[-1]) if last else (0, 0, 0)), found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('build', type=Path)
    parser.add_argument('names', nargs='*', help='targets; all of them without')
    parser.add_argument('--seconds', type=int, default=240, help='for each target')
    arguments = parser.parse_args()
    all_targets = targets(arguments.build)
    unknown = set(arguments.names) - {name for name, *_ in all_targets}
    if unknown or not all_targets:
        parser.error(f'no such targets: {", ".join(sorted(unknown))}' if unknown else 'the build has no fuzz targets')
    print(f'{datetime.date.today()}, {arguments.seconds} s each\n\n| target | executions | edges | features | corpus | found |\n'
          '| --- | ---: | ---: | ---: | ---: | --- |', flush=True)
    clean = True
    for name, command, environment in all_targets:
        if arguments.names and name not in arguments.names:
            continue
        executions, coverage, features, files, found = fuzz(arguments.build, name, command, environment, arguments.seconds)
        clean = clean and not found
        print(f'| {name} | {executions:,} | {coverage:,} | {features:,} | {files:,} | {", ".join(found) or "nothing"} |', flush=True)
    return 0 if clean else 1


if __name__ == '__main__':
    sys.exit(main())
