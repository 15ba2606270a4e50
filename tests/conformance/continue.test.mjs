// Continue's command line, headless and without a network, with the settings of docs/agents.md, on the scripted engine, which answers what the
// user says (tests/server/fake_engine.h).
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { after, before, describe, test } from 'node:test';
import { inFolder, NODE22, runAgent, settingsOf } from './agents.mjs';
import { required, startServer, stopAfterTaking } from './server.mjs';

const CONTINUE = fileURLToPath(new URL('node_modules/@continuedev/cli/dist/cn.js', import.meta.url));

// One run: what it printed, and what `look` finds in its folder.
const cn = (url, prompt, more = [], look = () => {}) =>
  inFolder(async (folder) => {
    await writeFile(join(folder, 'config.yaml'), await settingsOf('Continue', 'yaml', url));
    const env = { CONTINUE_TELEMETRY_ENABLED: '0' };
    const run = await runAgent(folder, [NODE22, CONTINUE, '--config', join(folder, 'config.yaml'), ...more, '-p', prompt], { env });
    assert.equal(run.code, 0, `${run.stdout}\n${run.stderr}`);
    return { answer: run.stdout.trim(), looked: await look(folder) };
  });

describe('scripted engine', { skip: !existsSync(NODE22) && 'Node 22 is not there' }, () => {
  let server;
  before(async () => (server = await startServer([required('CALLA_SCRIPTED_SERVER'), `${required('CALLA_MODELS')}/pocket`, '131072'])));
  after(() => stopAfterTaking(server));

  test('a text turn', async () => {
    const { answer } = await cn(server.url, 'I greet.</think>\n\nHello from the script.');
    assert.match(answer, /Hello from the script\./);
  });

  test('a tool turn', async () => {
    const call = '<tool_call>\n<function=Bash>\n<parameter=command>\nprintf made > made.txt\n</parameter>\n</function>\n</tool_call>';
    const { looked } = await cn(server.url, `I run it.</think>\n\n${call}`, ['--auto'], (folder) => readFile(join(folder, 'made.txt'), 'utf8'));
    assert.equal(looked, 'made');
  });
});
