#!/usr/bin/env python3
"""test_install.py BUILD: installs into a folder of its own; the installed calla finds the installed pocket, not the source tree's."""
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def main(build):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(['meson', 'install', '-C', build, '--no-rebuild', '--destdir', folder], check=True, stdout=subprocess.DEVNULL)
        [program] = [p for p in Path(folder).rglob('calla') if p.parent.name == 'bin']
        prefix = program.parent.parent
        model = prefix / 'share' / 'calla' / 'models' / 'pocket'
        for name in ('model.safetensors', 'tokenizer.json', 'README.md', 'WORDNET-LICENSE.txt'):
            assert (model / name).is_file(), f'{name} was not installed'
        assert (model.parent / 'selftest' / 'runs.json').is_file(), 'the recorded runs of calla selftest were not installed'
        assert (prefix / 'include' / 'calla.h').is_file(), 'calla.h was not installed'
        env = {k: v for k, v in os.environ.items() if not k.startswith('CALLA_')}
        run = lambda: subprocess.run([program, 'tokenize'], input=b'Hello', capture_output=True, env=env, cwd=folder)
        good = run()
        assert good.returncode == 0 and good.stdout.startswith(b'{"ids":['), good
        tokenizer = model / 'tokenizer.json'
        tokenizer.chmod(0o644)
        tokenizer.write_text('{')
        broken = run()
        assert broken.returncode == 1 and str(tokenizer).encode() in broken.stderr, broken
    print('the installed calla finds its own pocket')


if __name__ == '__main__':
    main(sys.argv[1])
