// Cline's command line, headless and without a network, set up by the command of docs/agents.md, on the scripted engine, which answers what the
// user says (tests/server/fake_engine.h).
import assert from 'node:assert/strict';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { inFolder, runAgent, settingsOf } from './agents.mjs';
import { required, startServer, stopAfterTaking } from './server.mjs';

const require = createRequire(import.meta.url);
const CLINE = join(dirname(require.resolve(`@cline/cli-${process.platform}-${process.arch}/package.json`)), 'bin', 'cline');

// One run: its events, how it ended, and what `look` finds in its folder.
const cline = (url, prompt, look = () => {}) =>
  inFolder(async (folder) => {
    const env = { CLINE_NO_AUTO_UPDATE: '1' };
    await mkdir(join(folder, '.cline/data/settings'), { recursive: true }); // else it waits ten seconds for a telemetry that is not there
    await writeFile(join(folder, '.cline/data/settings/global-settings.json'), JSON.stringify({ telemetryOptOut: true }));
    const setup = (await settingsOf('Cline', 'sh', url)).trim().split(' ');
    const ready = await runAgent(folder, [CLINE, ...setup.slice(1)], { env });
    assert.equal(ready.code, 0, `${ready.stdout}\n${ready.stderr}`);
    const run = await runAgent(folder, [CLINE, '--json', prompt], { env });
    const said = `${run.stdout}\n${run.stderr}`;
    assert.equal(run.code, 0, said);
    const events = run.stdout.split('\n').filter((line) => line.startsWith('{')).map((line) => JSON.parse(line));
    return { events, result: events.findLast((event) => event.type === 'run_result'), looked: await look(folder), said };
  });

describe('scripted engine', () => {
  let server;
  before(async () => (server = await startServer([required('CALLA_SCRIPTED_SERVER'), `${required('CALLA_MODELS')}/pocket`, '131072'])));
  after(() => stopAfterTaking(server));

  test('a text turn', async () => {
    const { result, said } = await cline(server.url, 'I greet.</think>\n\nHello from the script.');
    assert.equal(result?.finishReason, 'completed', said);
    assert.equal(result.text, 'Hello from the script.', said);
    assert.ok(result.usage.inputTokens > 1000, said);
  });

  test('a tool turn', async () => {
    const call =
      '<tool_call>\n<function=run_commands>\n<parameter=commands>\n["printf made > made.txt"]\n</parameter>\n</function>\n</tool_call>';
    const { looked, events, said } = await cline(server.url, `I run it.</think>\n\n${call}`, (folder) => readFile(join(folder, 'made.txt'), 'utf8'));
    assert.equal(looked, 'made', said);
    assert.ok(events.some(({ event }) => event?.contentType === 'tool' && event.toolName === 'run_commands'), said);
  });
});
