// record.mjs: what an agent sends, without a word of what it says: stands between it and a server, and writes the shape of each request body.
//
// usage: node record.mjs FOLDER SERVER_URL
// Prints its own URL, for the agent.  The scripted engine behind it makes for a turn of any kind (tests/server/fake_engine.h).
// Keys, types, numbers, and the names that a server must know stay; every other string becomes filler of the same length,
// within the arguments of a call too.
import { mkdirSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { join } from 'node:path';

const [folder, server] = process.argv.slice(2);
const KEPT = new Set(['type', 'role', 'name', 'model', 'effort', 'keep', 'required', 'reasoning_effort', 'tool_choice']);
const BILLING = 'x-anthropic-billing-header:';

function shape(value, key) {
  if (Array.isArray(value)) return value.map((item) => shape(item, key));
  if (value && typeof value === 'object') return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, shape(v, k)]));
  if (typeof value !== 'string' || KEPT.has(key)) return value;
  if (key === 'arguments') return JSON.stringify(shape(JSON.parse(value)));
  const kept = value.startsWith(BILLING) ? BILLING.length : 0;
  return value.slice(0, kept) + 'x'.repeat(value.length - kept);
}

let count = 0;
mkdirSync(folder, { recursive: true });
const proxy = http.createServer((request, response) => {
  const chunks = [];
  request.on('data', (chunk) => chunks.push(chunk));
  request.on('end', () => {
    const body = Buffer.concat(chunks), { host, ...headers } = request.headers;
    if (body.length) writeFileSync(join(folder, `${++count}.json`), `${JSON.stringify(shape(JSON.parse(body)))}\n`);
    const there = http.request(server + request.url, { method: request.method, headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    there.on('error', () => response.destroy());
    there.end(body);
  });
});
proxy.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${proxy.address().port}`));
