#!/usr/bin/env python3
"""How fast answers are made at once, free ones, one that is held to a form and one with penalties among them: whoever waits for the host would
make the others wait.

usage: measure_company.py CALLA MODEL [DEVICE]     MODEL: a folder with a tokenizer
"""
import json
import re
import subprocess
import sys
import threading
import time
import urllib.request

TOKENS, ROUNDS = 600, 3
KINDS = {'free': {}, 'form': {'guided_regex': '[a-z ]*'}, 'penalties': {'presence_penalty': 0.5, 'repetition_penalty': 1.1}}
COMPANIES = [['free'] * 8, ['free'] * 7 + ['form'], ['free'] * 7 + ['penalties'], ['free'], ['form'], ['penalties']]


def answer(address, kind, number, made):
    body = {'prompt': f'{number}. ' + 'It was a dark and stormy night. ' * 8, 'max_tokens': TOKENS, 'temperature': 0, 'ignore_eos': True, **KINDS[kind]}
    request = urllib.request.Request(address + '/v1/completions', json.dumps(body).encode(), {'Content-Type': 'application/json'})
    with urllib.request.urlopen(request, timeout=120) as reply:
        made.append(json.load(reply)['usage']['completion_tokens'])


def rate(address, company):
    made, start = [], time.monotonic()
    threads = [threading.Thread(target=answer, args=(address, kind, i, made)) for i, kind in enumerate(company)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert made == [TOKENS] * len(company), made
    return sum(made) / (time.monotonic() - start)


def main(calla, model, device='cuda'):
    server = subprocess.Popen([calla, 'serve', '--model', model, '--device', device, '--port', '0', '--sequences', '8', '--context', '4096'],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for line in server.stdout:
            found = re.search(r'http://[\w.]+:\d+', line)
            if found:
                break
        threading.Thread(target=server.stdout.read, daemon=True).start()
        rates = [[rate(found[0], company) for company in COMPANIES] for _ in range(1 + ROUNDS)][1:]
        for i, company in enumerate(COMPANIES):
            counts = ' + '.join(f'{company.count(kind)} {kind}' for kind in KINDS if kind in company)
            print(f'{counts}: ' + ', '.join(f'{r[i]:.0f}' for r in rates) + ' tok/s')
    finally:
        server.terminate()
        server.wait()


if __name__ == '__main__':
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
