// opencode, headless and without a network, with the settings of docs/agents.md: on the scripted engine, which answers what the user says
// (tests/server/fake_engine.h), and on the pocket model.
import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { inFolder, runAgent, settingsOf } from './agents.mjs';
import { required, startServer, stopAfterTaking } from './server.mjs';

const require = createRequire(import.meta.url);
const OPENCODE = join(dirname(require.resolve(`opencode-${process.platform}-${process.arch}/package.json`)), 'bin', 'opencode');

// One run: its events' sum.
const opencode = (url, prompt, look = () => {}) =>
  inFolder(async (folder) => {
    await writeFile(join(folder, 'opencode.json'), await settingsOf('opencode', 'json', url));
    const run = await runAgent(folder, [OPENCODE, 'run', '--format', 'json', prompt], { env: { OPENCODE_DISABLE_AUTOUPDATE: '1', OPENCODE_DISABLE_MODELS_FETCH: '1' } });
    const said = `${run.stdout}\n${run.stderr}`;
    assert.equal(run.code, 0, said);
    const events = run.stdout.split('\n').filter(Boolean).map((line) => JSON.parse(line));
    assert.ok(!events.some((event) => event.type === 'error'), said);
    return {
      answer: events.filter((event) => event.type === 'text').map((event) => event.part.text).join('\n'),
      tools: events.filter((event) => event.type === 'tool_use').map((event) => event.part),
      finished: events.filter((event) => event.type === 'step_finish').map((event) => event.part),
      looked: await look(folder),
      said,
    };
  });

describe('scripted engine', () => {
  let server;
  before(async () => (server = await startServer([required('CALLA_SCRIPTED_SERVER'), `${required('CALLA_MODELS')}/pocket`, '131072'])));
  after(() => stopAfterTaking(server));

  test('a text turn', async () => {
    const { answer, finished, said } = await opencode(server.url, 'I greet.</think>\n\nHello from the script.');
    assert.match(answer, /^Hello from the script\./, said);
    assert.equal(finished.length, 1, said);
    assert.ok(finished[0].tokens.input > 1000 && finished[0].tokens.reasoning > 0, said);
  });

  test('a tool turn', async () => {
    // The result of the tool is what the script says next; the quotes keep the tag out of the call itself.
    const command = `printf made > made.txt; printf 'I read.</thi''nk>Seen by the model.'`;
    const call = `<tool_call>\n<function=bash>\n<parameter=command>\n${command}\n</parameter>\n<parameter=description>\nMakes a file\n</parameter>\n</function>\n</tool_call>`;
    const { answer, tools, looked, finished, said } = await opencode(server.url, `I run it.</think>\n\n${call}`, (folder) => readFile(join(folder, 'made.txt'), 'utf8'));
    assert.equal(tools[0]?.tool, 'bash', said);
    assert.equal(tools[0].state.status, 'completed', said);
    assert.equal(looked, 'made');
    assert.equal(finished.length, 2, said);
    assert.match(answer, /^Seen by the model\./m, said);
  });
});

describe('pocket model', () => {
  let server;
  before(async () => (server = await startServer([required('CALLA'), 'serve', '--port', '0', '--model', `${required('CALLA_MODELS')}/pocket`])));
  after(() => stopAfterTaking(server));

  // Pocket is far too small for what an agent tells it, so that only its having answered counts.
  test('a turn', async () => {
    const { finished, said } = await opencode(server.url, 'What is the capital of France?');
    assert.ok(finished[0]?.tokens.output > 0, said);
  });
});
