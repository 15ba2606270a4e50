// Codex, headless and without a network, with the settings of docs/agents.md: on the scripted engine, which answers what the user says
// (tests/server/fake_engine.h), and on the pocket model.
import assert from 'node:assert/strict';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { after, before, describe, test } from 'node:test';
import { inFolder, runAgent, settingsOf } from './agents.mjs';
import { required, startServer, stopAfterTaking } from './server.mjs';

const CODEX = fileURLToPath(new URL('node_modules/@openai/codex/bin/codex.js', import.meta.url));
const EXEC = ['exec', '--json', '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox'];

// One run: its events' sum.  No request is tried twice, so that each must go right at once.  more: further lines of the provider's settings.
const codex = (url, prompt, more = '') =>
  inFolder(async (folder) => {
    await mkdir(join(folder, '.codex'));
    const settings = await settingsOf('Codex', 'toml', url);
    await writeFile(join(folder, '.codex', 'config.toml'), `${settings}request_max_retries = 0\nstream_max_retries = 0\n${more}`);
    const run = await runAgent(folder, [process.execPath, CODEX, ...EXEC, prompt]);
    const events = run.stdout.split('\n').filter(Boolean).map((line) => JSON.parse(line));
    const items = events.filter((event) => event.type === 'item.completed').map((event) => event.item);
    return {
      answer: items.filter((item) => item.type === 'agent_message').map((item) => item.text).join('\n'),
      commands: items.filter((item) => item.type === 'command_execution'),
      failure: events.find((event) => event.type === 'turn.failed')?.error.message,
      usage: events.find((event) => event.type === 'turn.completed')?.usage,
      said: `${run.stdout}\n${run.stderr}`,
    };
  });

const scripted = (window) => startServer([required('CALLA_SCRIPTED_SERVER'), `${required('CALLA_MODELS')}/pocket`, String(window)]);

describe('scripted engine', { concurrency: true }, () => {
  let server;
  before(async () => (server = await scripted(131072)));
  after(() => stopAfterTaking(server));

  test('a text turn', async () => {
    const { answer, usage, said } = await codex(server.url, 'I greet.</think>\n\nHello from the script.');
    assert.equal(answer, 'Hello from the script.', said);
    assert.ok(usage.input_tokens > 1000 && usage.reasoning_output_tokens > 0);
  });

  test('a tool turn', async () => {
    // The result of the tool is what the script says next.
    const command = `printf 'I read.</think>%s by the model.' Seen`;
    const call = `<tool_call>\n<function=exec_command>\n<parameter=cmd>\n${command}\n</parameter>\n</function>\n</tool_call>`;
    const { answer, commands, said } = await codex(server.url, `I run it.</think>\n\n${call}`);
    assert.equal(commands.length, 1, said);
    assert.equal(commands[0].exit_code, 0);
    assert.equal(commands[0].aggregated_output, 'I read.</think>Seen by the model.');
    assert.match(answer, /^Seen by the model\./);
  });

  test('a prompt of ten seconds with a patience of three', async () => {
    const { answer, said } = await codex(server.url, '@prompt=1x10000 Slow.</think>Still here.', 'stream_idle_timeout_ms = 3000\n');
    assert.equal(answer, 'Still here.', said);
  });
});

test('a prompt that does not fit is known as that', async () => {
  const server = await scripted(4096);
  try {
    assert.match((await codex(server.url, 'Hello.')).failure, /context window/);
  } finally {
    await server.stop();
  }
});

describe('pocket model', () => {
  let server;
  before(async () => (server = await startServer([required('CALLA'), 'serve', '--port', '0', '--model', `${required('CALLA_MODELS')}/pocket`])));
  after(() => stopAfterTaking(server));

  // Pocket is far too small for what an agent tells it, so that only its having answered counts.
  test('a turn', async () => {
    const { usage, said } = await codex(server.url, 'What is the capital of France?');
    assert.ok(usage?.output_tokens > 0, said);
  });
});
