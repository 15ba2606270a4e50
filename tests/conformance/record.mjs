// record.mjs: what an agent sends, without a word of what it says: a stub server that writes the shape of each request body to a folder.
//
// usage: node record.mjs FOLDER [TOOL ARGUMENTS_JSON]
// Prints its URL.  Speaks the messages dialect: the first answer calls TOOL, if one is named and offered, the second ends the turn.
// Keys, types, numbers, and the names that a server must know stay; every other string becomes filler of the same length.
import { mkdirSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { join } from 'node:path';

const [folder, tool, argumentsJson] = process.argv.slice(2);
const KEPT = new Set(['type', 'role', 'name', 'model', 'effort', 'keep', 'required']);
const BILLING = 'x-anthropic-billing-header:';

function shape(value, key) {
  if (Array.isArray(value)) return value.map((item) => shape(item, key));
  if (value && typeof value === 'object') return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, shape(v, k)]));
  if (typeof value !== 'string' || KEPT.has(key)) return value;
  const kept = value.startsWith(BILLING) ? BILLING.length : 0;
  return value.slice(0, kept) + 'x'.repeat(value.length - kept);
}

const write = (response, type, more) => response.write(`event: ${type}\ndata: ${JSON.stringify({ type, ...more })}\n\n`);

function answer(response, model, block) {
  const message = { id: 'msg_1', type: 'message', role: 'assistant', model, content: [], stop_reason: null, stop_sequence: null };
  const usage = { input_tokens: 1, output_tokens: 1 };
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  write(response, 'message_start', { message: { ...message, usage } });
  const call = block.type === 'tool_use';
  write(response, 'content_block_start', { index: 0, content_block: call ? { ...block, input: {} } : { type: 'text', text: '' } });
  const delta = call ? { type: 'input_json_delta', partial_json: argumentsJson } : { type: 'text_delta', text: block.text };
  write(response, 'content_block_delta', { index: 0, delta });
  write(response, 'content_block_stop', { index: 0 });
  write(response, 'message_delta', { delta: { stop_reason: call ? 'tool_use' : 'end_turn', stop_sequence: null }, usage });
  write(response, 'message_stop', {});
  response.end();
}

let count = 0;
mkdirSync(folder, { recursive: true });
const server = http.createServer(async (request, response) => {
  let text = '';
  for await (const chunk of request) text += chunk;
  if (request.method !== 'POST') return response.end();
  const body = JSON.parse(text);
  writeFileSync(join(folder, `${++count}.json`), `${JSON.stringify(shape(body))}\n`);
  const again = JSON.stringify(body.messages.at(-1)).includes('tool_result');
  const calls = tool && !again && body.tools?.some((offered) => offered.name === tool);
  answer(response, body.model, calls ? { type: 'tool_use', id: 'toolu_1', name: tool } : { type: 'text', text: 'Done.' });
});
server.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${server.address().port}`));
