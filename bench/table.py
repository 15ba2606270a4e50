#!/usr/bin/env python3
"""table.py: the tables of docs/speed.md, from results of `calla bench --json`: speeds, and of results of --ablate what each optimization
is worth.

    bench/table.py                             prints the tables of the committed results, bench/results/*.json
    bench/table.py a.json b.json               of others
    bench/table.py --write docs/speed.md       puts them between their marks in that file
    bench/table.py --check docs/speed.md       fails where the file says something else

So every number there was written by calla itself.  Newest first; within a result the order that it was measured in.
"""
import argparse
import json
import sys
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / 'results'
MARKS = {name: (f'<!-- bench/table.py {words}begins -->\n', f'<!-- bench/table.py {words}ends -->\n')
         for name, words in (('speeds', ''), ('ablation', 'ablation '))}
COLUMNS = ['date', 'commit', 'machine', 'model', 'device', 'prompt', 'depth', 'prefill tok/s', 'TFLOP/s', 'of dot peak', 'decode tok/s', 'first token',
           'MB per token', 'GB/s', 'read rate', 'share', 'peak memory', 'of announced', 'stages', '']
LEFT = 5  # columns of text
ABLATION_COLUMNS = ['date', 'commit', 'machine', 'model', 'device', 'optimization', 'prompt', 'depth', 'prefill tok/s', 'without', 'worth', 'decode tok/s',
                    'without', 'worth', '']
ABLATION_LEFT = 6


def with_unit(value, form, unit):
    return '–' if value is None else format(value, form) + unit


def scaled(value, by):
    return None if value is None else value * by


def device_of(result):
    detail, options = result['device_detail'], result['options']
    words = [result['device'] + (f' ({detail})' if detail else '')]
    words += [f'KV {options["kv"]}'] if options['kv'] != 'bf16' else []
    words += [f'chunks of {options["batch_rows"]}'] if options['batch_rows'] != 256 else []
    words += ['deterministic'] if options.get('deterministic') else []
    words += [f'without {options["without"]}'] if options.get('without') else []
    return ', '.join(words)


def origin_of(result):
    machine = result['machine']
    return [result['date'][:10], result['commit'], f'{machine["cpu"]}, {machine["cores"]} cores', result['model'], device_of(result)]


def share_of_announced(result, entry):
    """The peak by what `calla inspect` announces: the mapped weights and all buffers.  Only where both lie in the same memory."""
    if entry['peak_bytes'] is None or result['device'] != 'cpu':
        return None
    return entry['peak_bytes'] / (result['weights_bytes'] + result['plan_bytes'])


def row_of(result, entry):
    """Results of before operations were counted have no TFLOP/s."""
    return [*origin_of(result), str(entry['prompt']), str(entry['depth']), f'{entry["prefill_tok_s"]:.1f}',
            with_unit(entry.get('prefill_tflop_s'), '.3f', ''), with_unit(scaled(entry.get('share_of_dot_peak'), 100), '.1f', ' %'),
            f'{entry["decode_tok_s"]:.2f}',
            f'{entry["ttft_ms"]:.0f} ms', f'{entry["bytes_per_token"] / 1e6:.1f}', f'{entry["achieved_gb_s"]:.2f}',
            with_unit(entry['read_rate_gb_s'], '.2f', ' GB/s'), with_unit(scaled(entry['share_of_read_rate'], 100), '.1f', ' %'),
            with_unit(scaled(entry['peak_bytes'], 1e-9), '.3f', ' GB'),
            with_unit(scaled(share_of_announced(result, entry), 100), '.1f', ' %'), str(entry['stages_per_token']), 'unsteady' if entry['unsteady'] else '']


def markdown_row(cells):
    return '| ' + ' | '.join(cell.replace('|', '\\|') for cell in cells) + ' |\n'


def head_of(columns, left):
    return [markdown_row(columns), '|' + '---|' * left + '---:|' * (len(columns) - left - 1) + '---|\n']


def table_of(results):
    lines = head_of(COLUMNS, LEFT)
    for result in results:
        lines += [markdown_row(row_of(result, entry)) for entry in result['entries']]
    return ''.join(lines)


def ablation_row(result, arm, whole, entry):
    cells = [*origin_of(result), arm['name'], str(entry['prompt']), str(entry['depth'])]
    for kind, digits in (('prefill', 1), ('decode', 2)):
        cells += [f'{whole[f"{kind}_tok_s"]:.{digits}f}', f'{entry[f"{kind}_tok_s"]:.{digits}f}', f'{entry[f"{kind}_worth"] * 100:+.1f} %']
    return cells + ['unsteady' if whole['unsteady'] or entry['unsteady'] else '']


def ablation_of(results):
    """What each optimization is worth, and below the table what each does; '' without results of --ablate."""
    lines, meanings = [], {}
    for result in results:
        for place, whole in enumerate(result['entries']):
            for arm in result.get('ablation', []):
                lines.append(markdown_row(ablation_row(result, arm, whole, arm['entries'][place])))
                meanings.setdefault(arm['name'], arm['meaning'])
    if not lines:
        return ''
    return ''.join([*head_of(ABLATION_COLUMNS, ABLATION_LEFT), *lines, '\n', *(f'- {name}: {words}\n' for name, words in meanings.items())])


def read_result(path):
    try:
        result = json.loads(path.read_text())
        for entry in result['entries']:
            row_of(result, entry)
        ablation_of([result])
        return result
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        sys.exit(f'{path}: not a result of calla bench --json: {error!r}')


def with_tables(path, tables):
    """The text of the file with these tables between their marks.  An empty table needs none."""
    text = path.read_text()
    for name, (begin, end) in MARKS.items():
        if not tables[name] and begin not in text and end not in text:
            continue
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
            sys.exit(f'{path}: a line "{begin.strip()}" and after it a line "{end.strip()}" must say where the table is')
        text = text[:text.index(begin) + len(begin)] + tables[name] + text[text.index(end):]
    return text


def main():
    parser = argparse.ArgumentParser(description='the tables of docs/speed.md, from results of calla bench --json')
    parser.add_argument('files', nargs='*', type=Path, metavar='FILE', help='results [bench/results/*.json]')
    parser.add_argument('--write', type=Path, metavar='FILE', help='put the tables between their marks in FILE')
    parser.add_argument('--check', type=Path, metavar='FILE', help='fail if FILE holds other tables')
    arguments = parser.parse_args()
    results = [read_result(path) for path in arguments.files or sorted(RESULTS.glob('*.json'))]
    results.sort(key=lambda result: result['date'], reverse=True)
    tables = {'speeds': table_of(results), 'ablation': ablation_of(results)}
    if arguments.check:
        if with_tables(arguments.check, tables) != arguments.check.read_text():
            sys.exit(f'{arguments.check} is behind the results: bench/table.py --write {arguments.check}')
    elif arguments.write:
        arguments.write.write_text(with_tables(arguments.write, tables))
    else:
        print('\n'.join(table for table in tables.values() if table), end='')


if __name__ == '__main__':
    main()
