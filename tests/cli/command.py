"""command.py: what the script tests of the commands share: running calla, and expectations about how it ends."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
POCKET = ROOT / 'models' / 'pocket'
CALLA = None  # set by main()

# Slow enough for sanitizer builds on a busy machine, short enough to notice a hang.
SECONDS = 120


def environment(**changes):
    """The environment without calla's own variables but CALLA_POCKET, and with some changes."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith('CALLA_')}
    kept['CALLA_PRECISION'] = 'exact'  # answers are compared with recorded ones
    return dict(kept, **changes)


def calla(*arguments, stdin=b'', env=None, **more):
    if isinstance(stdin, str):
        stdin = stdin.encode()
    more.setdefault('stdout', subprocess.PIPE)
    return subprocess.run([CALLA, *map(str, arguments)], input=stdin, stderr=subprocess.PIPE, env=env or environment(), timeout=SECONDS, **more)


class CommandTest(unittest.TestCase):
    """Adds expectations to unittest's."""

    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)
        self.addCleanup(self._folder.cleanup)

    def works(self, *arguments, **more):
        """Runs calla, expects success and silence on stderr, returns stdout."""
        result = calla(*arguments, **more)
        self.assertEqual((result.returncode, result.stderr.decode(errors='replace')), (0, ''), arguments)
        return (result.stdout or b'').decode()

    def fails(self, code, words, *arguments, **more):
        """Expects an exit code, nothing on stdout, and one line "calla: …" on stderr that holds each of the words."""
        result = calla(*arguments, **more)
        message = result.stderr.decode()
        self.assertEqual(result.returncode, code, f'{arguments}: {message}')
        self.assertRegex(message, r'\Acalla: [^\n]+\n\Z', arguments)
        for word in [words] if isinstance(words, str) else words:
            self.assertIn(word, message)
        self.assertIn(result.stdout, (b'', None))

    def copy_pocket(self):
        """A writable model folder."""
        copy = self.folder / 'model'
        shutil.copytree(POCKET, copy)
        for path in copy.iterdir():
            path.chmod(0o644)
        return copy


def main():
    global CALLA
    CALLA = str(Path(sys.argv.pop(1)).resolve())
    sys.modules['command'] = sys.modules[__name__]
    unittest.main(module='__main__', verbosity=2)
