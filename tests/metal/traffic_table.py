#!/usr/bin/env python3
"""traffic_table.py: the table of docs/speed.md on what Metal moves, from traffic.json (measure_traffic.c).

    tests/metal/traffic_table.py                          prints it
    tests/metal/traffic_table.py --write docs/speed.md    puts it between its marks
    tests/metal/traffic_table.py --check docs/speed.md    fails where the file says something else

Lily's side is arithmetic on what its source does (perplexityai/pplx-garden, commit f263d07d), weights, states, keys and values alone, without
activations and partial sums.
"""
import argparse
import json
import sys
from pathlib import Path

MARKS = ('<!-- tests/metal/traffic_table.py begins -->\n', '<!-- tests/metal/traffic_table.py ends -->\n')
COLUMNS = ['tokens', 'a token: MB', 'of the least', 'K and V', 'other', 'GFLOP', 'Lily: MB', 'a prompt: GB', 'weights', 'K and V', 'other', 'TFLOP',
           'Lily: GB', 'K and V']

ATTENTION_LAYERS, HEADS, HEAD_BYTES = 10, 16, 2 * 256 * 2  # HEAD_BYTES: K and V of a position and a K/V head, bf16
POSITION_BYTES = ATTENTION_LAYERS * 2 * HEAD_BYTES
TOKEN_WEIGHTS = 1.667e9
STATES = 30 * 32 * 128 * 128 * 4
Q4 = 36 / 64  # bytes of a weight with its share of scale and bias
DENSE = 30 * (12352 * 2048 + 2048 * 4096) + 10 * (9216 * 2048 + 2048 * 4096) + 40 * (3 * 512 * 2048)
EXPERTS = 40 * 256 * 3 * 512 * 2048
HEAD = 248320 * 2048


def lily_token(tokens):
    """Every threadgroup of attention reads K and V for one query head, from 8,192 positions on for four, from 32,768 on for all eight.  The
    state is swept twice and written at least once."""
    readers = 8 if tokens < 8192 else 2 if tokens < 32768 else 1
    return TOKEN_WEIGHTS + 3 * STATES + POSITION_BYTES * tokens * readers


def lily_cache(tokens):
    """A threadgroup has 16 queries of one head."""
    return sum(ATTENTION_LAYERS * HEADS * HEAD_BYTES * end for end in range(16, tokens + 1, 16))


def lily_prompt(tokens):
    """Pieces of 4,096.  Dense matrices are written out in bf16 for each, and read again for every 64 rows; experts are read for every 32 rows
    that chose them, 64 in pieces of 3,072 and more; rows spread evenly."""
    total = 0
    for first in range(0, tokens, 4096):
        rows = min(4096, tokens - first)
        block = 64 if rows >= 3072 else 32
        total += DENSE * (Q4 + 2 + 2 * -(-rows // 64)) + EXPERTS * Q4 * -(-(rows * 8 // 256) // block) + 2 * STATES
    return total + HEAD * Q4 + lily_cache(tokens)


def all_of(t):
    return t['weights'] + t['cache'] + t['states'] + t['rest']


def table(data):
    lines = ['| ' + ' | '.join(COLUMNS) + ' |', '|' + '---:|' * len(COLUMNS)]
    for e in data['lengths']:
        n, token, prompt = e['tokens'], e['token'], e['prompt']
        cells = [f'{n:,}', f'{all_of(token) / 1e6:.0f}', f'{all_of(token) / e["least"]:.3f}', f'{token["cache"] / 1e6:.1f}',
                 f'{token["rest"] / 1e6:.1f}', f'{token["flops"] / 1e9:.1f}', f'{lily_token(n) / 1e6:.0f}', f'{all_of(prompt) / 1e9:.1f}',
                 f'{prompt["weights"] / 1e9:.1f}', f'{prompt["cache"] / 1e9:.2f}', f'{prompt["rest"] / 1e9:.1f}', f'{prompt["flops"] / 1e12:.2f}', f'{lily_prompt(n) / 1e9:.1f}', f'{lily_cache(n) / 1e9:.2f}']
        lines.append('| ' + ' | '.join(cells) + ' |')
    return '\n'.join(lines) + '\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--write', type=Path)
    parser.add_argument('--check', type=Path)
    args = parser.parse_args()
    text = table(json.loads((Path(__file__).resolve().parent / 'traffic.json').read_text()))
    file = args.write or args.check
    if not file:
        print(text, end='')
        return 0
    before, rest = file.read_text().split(MARKS[0])
    whole = before + MARKS[0] + text + MARKS[1] + rest.split(MARKS[1])[1]
    if args.write:
        file.write_text(whole)
    elif whole != file.read_text():
        print(f'{file} is behind tests/metal/traffic.json: run tests/metal/traffic_table.py --write {file}')
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
