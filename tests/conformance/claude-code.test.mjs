// Claude Code, headless and without a network, with the settings of docs/agents.md: on the scripted engine, which answers what the user says
// (tests/server/fake_engine.h), and on the pocket model.
import assert from 'node:assert/strict';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { after, before, describe, test } from 'node:test';
import { inFolder, runAgent, settingsOf } from './agents.mjs';
import { required, startServer, stopAfterTaking } from './server.mjs';

const CLAUDE = fileURLToPath(new URL('node_modules/@anthropic-ai/claude-code/cli-wrapper.cjs', import.meta.url));

// One run in the folder, its home; resolves to the result that it reports.
async function claude(folder, url, prompt, ...more) {
  await mkdir(join(folder, '.claude'), { recursive: true });
  await writeFile(join(folder, '.claude', 'settings.json'), await settingsOf('Claude Code', 'json', url));
  const run = await runAgent(folder, [process.execPath, CLAUDE, '-p', prompt, '--output-format', 'json', ...more]);
  assert.ok(run.stdout, run.stderr);
  return JSON.parse(run.stdout);
}

const scripted = (window) => startServer([required('CALLA_SCRIPTED_SERVER'), `${required('CALLA_MODELS')}/pocket`, String(window)]);

describe('scripted engine', () => {
  let server;
  before(async () => (server = await scripted(131072)));
  after(() => stopAfterTaking(server));

  test('a text turn, and another in the same session', () =>
    inFolder(async (folder) => {
      const first = await claude(folder, server.url, 'I greet.</think>\n\nHello from the script.');
      assert.equal(first.result, 'Hello from the script.', JSON.stringify(first));
      assert.equal(first.num_turns, 1);
      assert.equal(first.modelUsage.calla.contextWindow, 131072);
      const second = await claude(folder, server.url, 'And again.</think>\n\nStill here.', '--continue');
      assert.equal(second.result, 'Still here.');
      assert.equal(second.session_id, first.session_id);
      assert.ok(second.usage.input_tokens > first.usage.input_tokens);
    }));

  test('a tool turn', () =>
    inFolder(async (folder) => {
      // The result of the tool is what the script says next; the quotes keep the tag out of the call itself.
      const command = `printf made > made.txt; printf 'I read.</thi''nk>Seen by the model.'`;
      const call = `<tool_call>\n<function=Bash>\n<parameter=command>\n${command}\n</parameter>\n</function>\n</tool_call>`;
      const done = await claude(folder, server.url, `I run it.</think>\n\n${call}`, '--allowedTools', 'Bash');
      assert.match(done.result, /^Seen by the model\./, JSON.stringify(done));
      assert.equal(done.num_turns, 2);
      assert.equal(await readFile(join(folder, 'made.txt'), 'utf8'), 'made');
    }));
});

test('a prompt that does not fit is known as that', async () => {
  const server = await scripted(4096);
  try {
    const refused = await inFolder((folder) => claude(folder, server.url, 'Hello.'));
    assert.equal(refused.api_error_status, 400);
    assert.match(refused.result, /^Prompt is too long .*limit 4096/);
  } finally {
    await server.stop();
  }
});

describe('pocket model', () => {
  let server;
  before(async () => (server = await startServer([required('CALLA'), 'serve', '--port', '0', '--model', `${required('CALLA_MODELS')}/pocket`])));
  after(() => stopAfterTaking(server));

  // Pocket is far too small for what an agent tells it, so that only its having answered counts.
  test('a turn', () =>
    inFolder(async (folder) => {
      const done = await claude(folder, server.url, 'What is the capital of France?', '--tools', '', '--system-prompt', 'Answer.');
      assert.equal(done.is_error, false, JSON.stringify(done));
      assert.ok(done.usage.output_tokens > 0);
    }));
});
