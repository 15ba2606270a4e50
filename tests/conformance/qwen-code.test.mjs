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

// One run with nothing but the settings: what it printed, and what `look` finds in its folder.
const run = (url, prompt, more = [], look = () => {}) =>
  inFolder(async (folder) => {
    const settings = JSON.parse(await settingsOf('Qwen Code', 'json', url));
    const quiet = { memory: { enableManagedAutoMemory: false } }; // what it does on its own account afterwards only takes time
    await mkdir(join(folder, '.qwen'));
    await writeFile(join(folder, '.qwen', 'settings.json'), JSON.stringify({ ...settings, ...quiet }));
    const ended = await runAgent(folder, [NODE22, QWEN, '-p', prompt, ...more]);
    assert.equal(ended.code, 0, `${ended.stdout}\n${ended.stderr}`);
    return { said: ended.stdout, looked: await look(folder) };
  });

// One turn: the result that it reports.
async function qwen(url, prompt, more = [], look) {
  const { said, looked } = await run(url, prompt, ['--output-format', 'json', ...more], look);
  const result = JSON.parse(said).findLast((event) => event.type === 'result');
  assert.equal(result?.is_error, false, said);
  return { ...result, looked, said };
}

describe('scripted engine', { skip }, () => {
  let server;
  before(async () => (server = await startServer([required('CALLA_SCRIPTED_SERVER'), `${required('CALLA_MODELS')}/pocket`, '131072'])));
  after(() => stopAfterTaking(server));

  test('the window is the one of the settings', async () => {
    const { said } = await run(server.url, '/context');
    assert.match(said, /Context window: 131\.1k tokens/);
  });

  test('a text turn', async () => {
    const { result, usage, said } = await qwen(server.url, 'I greet.</think>\n\nHello from the script.');
    assert.match(result, /^Hello from the script\./, said);
    assert.ok(usage.input_tokens > 1000, said);
  });

  test('a tool turn', async () => {
    // The result of the tool is what the script says next (an answer without text is asked for again and again); the quotes keep the tag out of
    // the call itself, which comes back in the result.  Of a command that ends at once the agent sometimes sees no output.
    const command = `printf made > made.txt; printf 'I read.</thi''nk>Seen by the model.'; sleep 1`;
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
