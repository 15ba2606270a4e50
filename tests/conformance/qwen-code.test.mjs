// Qwen Code, headless and without a network, with the settings of docs/agents.md: on the scripted engine, which answers what the user says
// (tests/server/fake_engine.h), and on the pocket model.
import assert from 'node:assert/strict';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { after, before, describe, test } from 'node:test';
import { inFolder, NODE22, runAgent, settingsOf } from './agents.mjs';
import { required, startServer, stopAfterTaking } from './server.mjs';

const QWEN = fileURLToPath(new URL('node_modules/@qwen-code/qwen-code/cli.js', import.meta.url));
const skip = !existsSync(NODE22) && 'Node 22 is not there';

// One run: the result that it reports.
const qwen = (url, prompt, more = [], look = () => {}) =>
  inFolder(async (folder) => {
    const lines = (await settingsOf('Qwen Code', 'sh', url)).matchAll(/^export (\w+)=(.*)$/gm);
    const env = Object.fromEntries([...lines].map(([, name, value]) => [name, value]));
    await mkdir(join(folder, '.qwen')); // what it does on its own account afterwards only takes time
    await writeFile(join(folder, '.qwen', 'settings.json'), JSON.stringify({ memory: { enableManagedAutoMemory: false } }));
    const run = await runAgent(folder, [NODE22, QWEN, '-p', prompt, '--output-format', 'json', ...more], { env });
    assert.equal(run.code, 0, `${run.stdout}\n${run.stderr}`);
    const events = JSON.parse(run.stdout);
    const result = events.findLast((event) => event.type === 'result');
    assert.equal(result?.is_error, false, run.stdout);
    return { ...result, looked: await look(folder), said: run.stdout };
  });

describe('scripted engine', { skip }, () => {
  let server;
  before(async () => (server = await startServer([required('CALLA_SCRIPTED_SERVER'), `${required('CALLA_MODELS')}/pocket`, '131072'])));
  after(() => stopAfterTaking(server));

  test('a text turn', async () => {
    const { result, usage, said } = await qwen(server.url, 'I greet.</think>\n\nHello from the script.');
    assert.match(result, /^Hello from the script\./, said);
    assert.ok(usage.input_tokens > 1000, said);
  });

  test('a tool turn', async () => {
    // The result of the tool is what the script says next (an answer without text is asked for again and again); the quotes keep the tag out of
    // the call itself, which comes back in the result.
    const command = `printf made > made.txt; printf 'I read.</thi''nk>Seen by the model.'`;
    const call = `<tool_call>\n<function=run_shell_command>\n<parameter=command>\n${command}\n</parameter>\n<parameter=is_background>\nfalse\n</parameter>\n</function>\n</tool_call>`;
    const { result, looked, stats, said } = await qwen(server.url, `I run it.</think>\n\n${call}`, ['--yolo'], (folder) => readFile(join(folder, 'made.txt'), 'utf8'));
    assert.equal(looked, 'made', said);
    assert.equal(stats.tools.totalSuccess, 1, said);
    assert.match(result, /^Seen by the model\./, said);
  });
});

describe('pocket model', { skip }, () => {
  let server;
  before(async () => (server = await startServer([required('CALLA'), 'serve', '--port', '0', '--model', `${required('CALLA_MODELS')}/pocket`])));
  after(() => stopAfterTaking(server));

  // Pocket is far too small for what an agent tells it, so that only its having answered counts.
  test('a turn', async () => {
    const { usage, said } = await qwen(server.url, 'What is the capital of France?');
    assert.ok(usage.output_tokens > 0, said);
  });
});
