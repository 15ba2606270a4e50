#!/usr/bin/env python3
"""table.py: the table of docs/speed.md, from results of `calla bench --json`.

    bench/table.py                             prints the table of the committed results, bench/results/*.json
    bench/table.py a.json b.json               of others
    bench/table.py --write docs/speed.md       puts it between the two marks in that file
    bench/table.py --check docs/speed.md       fails where the file says something else

So every number there was written by calla itself.  Newest first; within a result the order that it was measured in.
"""
import argparse
import json
import sys
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / 'results'
BEGIN = '<!-- bench/table.py begins -->\n'
END = '<!-- bench/table.py ends -->\n'
COLUMNS = ['date', 'commit', 'machine', 'model', 'device', 'prompt', 'depth', 'prefill tok/s', 'decode tok/s', 'first token', 'MB per token',
           'GB/s', 'read rate', 'share', 'peak memory', 'stages', '']
LEFT = 5  # columns of text


def with_unit(value, form, unit):
    return '–' if value is None else format(value, form) + unit


def scaled(value, by):
    return None if value is None else value * by


def device_of(result):
    detail, options = result['device_detail'], result['options']
    words = [result['device'] + (f' ({detail})' if detail else '')]
    words += ['KV f32'] if options['kv'] != 'bf16' else []
    words += [f'chunks of {options["batch_rows"]}'] if options['batch_rows'] != 256 else []
    return ', '.join(words)


def row_of(result, entry):
    machine = result['machine']
    return [result['date'][:10], result['commit'], f'{machine["cpu"]}, {machine["cores"]} cores', result['model'], device_of(result),
            str(entry['prompt']), str(entry['depth']), f'{entry["prefill_tok_s"]:.1f}', f'{entry["decode_tok_s"]:.2f}',
            f'{entry["ttft_ms"]:.0f} ms', f'{entry["bytes_per_token"] / 1e6:.1f}', f'{entry["achieved_gb_s"]:.2f}',
            with_unit(entry['read_rate_gb_s'], '.2f', ' GB/s'), with_unit(scaled(entry['share_of_read_rate'], 100), '.1f', ' %'),
            with_unit(scaled(entry['peak_bytes'], 1e-9), '.3f', ' GB'), str(entry['stages_per_token']), 'unsteady' if entry['unsteady'] else '']


def markdown_row(cells):
    return '| ' + ' | '.join(cell.replace('|', '\\|') for cell in cells) + ' |\n'


def table_of(results):
    lines = [markdown_row(COLUMNS), '|' + '---|' * LEFT + '---:|' * (len(COLUMNS) - LEFT - 1) + '---|\n']
    for result in sorted(results, key=lambda r: r['date'], reverse=True):
        lines += [markdown_row(row_of(result, entry)) for entry in result['entries']]
    return ''.join(lines)


def read_result(path):
    try:
        result = json.loads(path.read_text())
        for entry in result['entries']:
            row_of(result, entry)
        return result
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f'{path}: not a result of calla bench --json: {error!r}')


def with_table(path, table):
    """The text of the file with this table between its marks."""
    text = path.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        sys.exit(f'{path}: a line "{BEGIN.strip()}" and after it a line "{END.strip()}" must say where the table is')
    return text[:text.index(BEGIN) + len(BEGIN)] + table + text[text.index(END):]


def main():
    parser = argparse.ArgumentParser(description='the table of docs/speed.md, from results of calla bench --json')
    parser.add_argument('files', nargs='*', type=Path, metavar='FILE', help='results [bench/results/*.json]')
    parser.add_argument('--write', type=Path, metavar='FILE', help='put the table between the marks in FILE')
    parser.add_argument('--check', type=Path, metavar='FILE', help='fail if FILE holds another table')
    arguments = parser.parse_args()
    table = table_of([read_result(path) for path in arguments.files or sorted(RESULTS.glob('*.json'))])
    if arguments.check:
        if with_table(arguments.check, table) != arguments.check.read_text():
            sys.exit(f'{arguments.check} is behind the results: bench/table.py --write {arguments.check}')
    elif arguments.write:
        arguments.write.write_text(with_table(arguments.write, table))
    else:
        print(table, end='')


if __name__ == '__main__':
    main()
