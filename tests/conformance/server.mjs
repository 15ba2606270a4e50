// server.mjs: starts a server program for a test file and ends it with it.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';

// command: [program, …arguments]; it prints its URL once it listens.  Its log goes to this process's stderr.
export async function startServer(command) {
  const child = spawn(command[0], command.slice(1), { stdio: ['pipe', 'pipe', 'inherit'] });
  const ended = new Promise((resolve) => child.once('exit', (code, signal) => resolve({ code, signal })));
  const url = await new Promise((resolve, reject) => {
    let text = '';
    child.stdout.on('data', (chunk) => {
      text += chunk;
      const found = text.match(/http:\/\/[^\s/]+:\d+/);
      if (found) resolve(found[0]);
    });
    child.once('error', reject);
    ended.then(({ code, signal }) => reject(new Error(`${command.join(' ')} ended with ${code ?? signal} before it listened`)));
  });
  return {
    url,
    // Ends it as a service manager would; resolves to its exit code.
    async stop() {
      child.kill('SIGTERM');
      return (await ended).code;
    },
  };
}

export async function health(url) {
  const response = await fetch(`${url}/health`);
  return response.json();
}

// Ends the server, which must have taken every request that came to it: clients try again what was refused, and nobody would notice.
export async function stopAfterTaking(server) {
  const counted = await (await fetch(`${server.url}/metrics`)).text();
  const replies = [...counted.matchAll(/^calla_http_replies_total\{route="(.*)",code="(\d+)"\} (\d+)$/gm)].map(([, route, code, n]) => ({ route, code, n }));
  const code = await server.stop();
  assert.deepEqual(replies.filter((reply) => reply.code !== '200'), []);
  assert.ok(replies.some((reply) => reply.route.startsWith('/v1/')));
  assert.equal(code, 0);
}

// How much slower than usual this build may be: the sanitizers' are.
const PATIENCE = Number(process.env.CALLA_TEST_PATIENCE ?? 1);

// Fails unless the server is without work within `limit` milliseconds.
export async function untilIdle(url, limit = 1000) {
  const begin = performance.now();
  for (;;) {
    const { running, queued } = await health(url);
    const spent = performance.now() - begin;
    if (running + queued === 0) return;
    if (spent > limit * PATIENCE) throw new Error(`still ${running} running and ${queued} queued after ${spent} ms`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

export function required(name) {
  const value = process.env[name];
  if (!value) throw new Error(`set ${name}: the build runs this test by  meson test --suite api`);
  return value;
}
