#!/usr/bin/env python3
"""masks_table.py: the table of docs/speed.md on masks, from measure_masks's JSON.

    tests/text/masks_table.py RESULT.json                          prints it
    tests/text/masks_table.py RESULT.json --write docs/speed.md    puts it between its marks
"""
import argparse
import json
from pathlib import Path

MARKS = ('<!-- tests/text/masks_table.py begins -->\n', '<!-- tests/text/masks_table.py ends -->\n')
COLUMNS = ['form', 'bytes', 'states', 'compiled, ms', 'new masks', 'median, µs', '99 %', 'most', 'kept: median, µs', '99 %', 'taken: median, µs', '99 %']


def cells(e):
    new, kept, took = e['new'], e['kept'], e['took']
    return [f'{new["n"]:,}', f'{new["p50_us"]:.0f}', f'{new["p99_us"]:.0f}', f'{new["max_us"]:.0f}', f'{kept["p50_us"]:.1f}', f'{kept["p99_us"]:.1f}',
            f'{took["p50_us"]:.1f}', f'{took["p99_us"]:.1f}']


def table(data):
    lines = ['| ' + ' | '.join(COLUMNS) + ' |', '|---|' + '---:|' * (len(COLUMNS) - 1)]
    for e in data['forms']:
        lines.append('| ' + ' | '.join([e['name'].replace('|', '\\|'), f'{e["bytes"]:,}', f'{e["states"]:,}', f'{e["compile_ms"]:.1f}', *cells(e)]) + ' |')
    lines.append('| ' + ' | '.join([f'all {len(data["forms"])}', '', '', '', *cells(data['all'])]) + ' |')
    return (f'The trie of {data["tokens"]:,} tokens ({data["nodes"]:,} nodes) takes {data["trie_s"]:.2f} s, once.\n\n' + '\n'.join(lines) + '\n')


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument('result', type=Path)
    arguments.add_argument('--write', type=Path)
    options = arguments.parse_args()
    made = table(json.loads(options.result.read_text()))
    if not options.write:
        print(made, end='')
        return
    text = options.write.read_text()
    begin, end = text.index(MARKS[0]) + len(MARKS[0]), text.index(MARKS[1])
    options.write.write_text(text[:begin] + made + text[end:])


if __name__ == '__main__':
    main()
