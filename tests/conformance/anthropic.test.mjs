// The official Anthropic client against the server, on the scripted engine (which answers what the user says, see
// tests/server/fake_engine.h) and on the pocket model.
import Anthropic from '@anthropic-ai/sdk';
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { required, startServer, untilIdle } from './server.mjs';

const WEATHER = {
  name: 'weather',
  description: 'The weather of a city',
  input_schema: { type: 'object', properties: { city: { type: 'string' }, days: { type: 'integer' } }, required: ['city'] },
};
const call = (city, days) =>
  `<tool_call>\n<function=weather>\n<parameter=city>\n${city}\n</parameter>\n<parameter=days>\n${days}\n</parameter>\n</function>\n</tool_call>`;
const THINK = { thinking: { type: 'enabled', budget_tokens: 1024 } };

const say = (content, more = {}) => ({ model: 'any', max_tokens: 2000, messages: [{ role: 'user', content }], ...more });
const open = (url, more = {}) => new Anthropic({ baseURL: url, apiKey: 'none', maxRetries: 0, ...more });

// What does not differ between two answers to the same request.
const same = ({ content, stop_reason, stop_sequence, usage }) => ({
  content: content.map(({ id, signature, ...block }) => block),
  stop_reason,
  stop_sequence,
  input: usage.input_tokens,
  output: usage.output_tokens,
});

describe('scripted engine', () => {
  let server, client;
  before(async () => {
    server = await startServer([required('CALLA_SCRIPTED_SERVER'), `${required('CALLA_MODELS')}/pocket`, '16384']);
    client = open(server.url);
  });
  after(async () => assert.equal(await server.stop(), 0));

  // The answer, which must be the same whole and streamed.
  async function ask(request) {
    const whole = await client.messages.create(request);
    assert.deepEqual(same(await client.messages.stream(request).finalMessage()), same(whole));
    return whole;
  }

  test('an answer, whole and streamed', async () => {
    const text = 'The capital of France is Paris. 🦀 漢字 "quoted"\nnext line';
    const whole = await ask(say(text));
    assert.equal(whole.type, 'message');
    assert.equal(whole.model, 'any');
    assert.match(whole.id, /^msg_/);
    assert.match(whole._request_id, /^req_/);
    assert.deepEqual(whole.content, [{ type: 'text', text }]);
    assert.equal(whole.stop_reason, 'end_turn');
    const kinds = [];
    for await (const event of await client.messages.create(say(text, { stream: true }))) kinds.push(event.type);
    assert.deepEqual([...new Set(kinds)], [
      'message_start', 'content_block_start', 'content_block_delta', 'content_block_stop', 'message_delta', 'message_stop',
    ]);
    assert.ok(kinds.length > 10);
  });

  test('thoughts come when they are asked for, and go back', async () => {
    const whole = await ask(say('First I think.</think>\n\nThen I answer.', THINK));
    assert.equal(whole.content[0].thinking, 'First I think.');
    assert.ok(whole.content[0].signature);
    assert.equal(whole.content[1].text, 'Then I answer.');
    const history = (content) => say('', { ...THINK, messages: [{ role: 'user', content: 'A' }, { role: 'assistant', content }, { role: 'user', content: 'B</think>C' }] });
    const count = async (content) => (await client.messages.countTokens(((r) => (delete r.max_tokens, r))(history(content)))).input_tokens;
    assert.ok((await count(whole.content)) > (await count(whole.content.slice(1))) + 3);
    assert.deepEqual((await ask(history(whole.content))).content.map((block) => block.thinking ?? block.text), ['B', 'C']);
    assert.deepEqual((await ask(say('No thought.', { thinking: { type: 'disabled' } }))).content, [{ type: 'text', text: 'No thought.' }]);
  });

  test('tool calls, whole and streamed', async () => {
    const whole = await ask(say(`I look.\n\n${call('Paris', 3)}\n${call('Rome', 4)}`, { tools: [WEATHER] }));
    assert.equal(whole.stop_reason, 'tool_use');
    assert.deepEqual(whole.content.map((block) => block.input ?? block.text), ['I look.', { city: 'Paris', days: 3 }, { city: 'Rome', days: 4 }]);
    assert.match(whole.content[1].id, /^toolu_/);
    assert.notEqual(whole.content[1].id, whole.content[2].id);
    const parts = [];
    await client.messages.stream(say(call('Paris', 3), { tools: [WEATHER] })).on('inputJson', (part) => parts.push(part)).finalMessage();
    assert.deepEqual(JSON.parse(parts.join('')), { city: 'Paris', days: 3 });
  });

  test('the client runs a tool and sends its result back', async () => {
    const asked = [];
    const weather = {
      ...WEATHER,
      type: 'custom',
      parse: (input) => input,
      run: (input) => (asked.push(input), 'sunny'),
    };
    for (const stream of [false, true]) {
      const runner = client.beta.messages.toolRunner(say(call('Paris', 3), { tools: [weather], stream }));
      const last = await runner.runUntilDone();
      assert.match(last.content[0].text, /sunny/);
    }
    assert.deepEqual(asked, [{ city: 'Paris', days: 3 }, { city: 'Paris', days: 3 }]);
  });

  test('seventy rounds of tools', async () => {
    const messages = [{ role: 'user', content: `I begin.</think>\n\n${call('City 0', 0)}` }];
    for (let round = 0; round < 70; round++) {
      const request = { model: 'any', max_tokens: 500, ...THINK, tools: [WEATHER], messages };
      const answer = round % 2 ? await client.messages.create(request) : await client.messages.stream(request).finalMessage();
      const uses = answer.content.filter((block) => block.type === 'tool_use');
      assert.equal(answer.stop_reason, 'tool_use', `round ${round}`);
      assert.deepEqual(uses.map((use) => use.input), [{ city: `City ${round}`, days: round }]);
      assert.equal(answer.content[0].type, 'thinking');
      messages.push({ role: 'assistant', content: answer.content });
      const result = `I go on.</think>\n\n${call(`City ${round + 1}`, round + 1)}`;
      messages.push({ role: 'user', content: [{ type: 'tool_result', tool_use_id: uses[0].id, content: result }] });
    }
  });

  test('stop sequences and limits', async () => {
    const stopped = await ask(say('The quick brown fox', { stop_sequences: ['never', 'k bro'] }));
    assert.deepEqual(stopped.content, [{ type: 'text', text: 'The quic' }]);
    assert.equal(stopped.stop_reason, 'stop_sequence');
    assert.equal(stopped.stop_sequence, 'k bro');
    const cut = await ask(say('@endless a', { max_tokens: 3 }));
    assert.equal(cut.stop_reason, 'max_tokens');
    assert.equal(cut.usage.output_tokens, 3);
  });

  test('tokens are counted', async () => {
    const { max_tokens, ...request } = say('How many tokens?', { system: [{ type: 'text', text: 'Be brief.' }], tools: [WEATHER] });
    const { input_tokens } = await client.messages.countTokens(request);
    assert.equal((await client.messages.create({ ...request, max_tokens })).usage.input_tokens, input_tokens);
  });

  test('the first line of an agent that changes with each request costs nothing', async () => {
    const count = async (hex) =>
      (await client.messages.create(say('Hi', { system: [{ type: 'text', text: `x-anthropic-billing-header: cch=${hex};` }, { type: 'text', text: 'Be brief.' }] }))).usage;
    assert.deepEqual(await count('a1b2c'), await count('0'));
  });

  test('errors are those of the client library', async () => {
    const refuse = (content, more, check) => assert.rejects(client.messages.create(say(content, more)), check);
    const bad = (word) => (e) => e instanceof Anthropic.BadRequestError && e.type === 'invalid_request_error' && e.message.includes(word);
    await refuse('Hi', { temperature: 5 }, bad('temperature'));
    await refuse('Hi', { tool_choice: { type: 'any' } }, bad('tool_choice'));
    await refuse('Hi', { output_config: { format: { type: 'json_schema' } } }, bad('output_config.format'));
    await refuse([{ type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'AAAA' } }], {}, bad('messages[0].content[0]'));
    await refuse('@refuse x', {}, (e) => e instanceof Anthropic.RateLimitError && e.headers.get('retry-after') === '1');
    await refuse('@fail=1 a b c', {}, (e) => e instanceof Anthropic.InternalServerError && e.status === 503);
    await refuse('long '.repeat(20000), { stream: true }, (e) => bad('prompt is too long: ')(e) && /\d+ tokens > \d+ maximum/.test(e.message));
    await assert.rejects(
      client.messages.stream(say('@fail=2 one two three four')).finalMessage(),
      (e) => e instanceof Anthropic.APIError && /scripted device failed/.test(e.message),
    );
  });

  test('a key may come in either header', async () => {
    for (const more of [{ apiKey: 'k' }, { apiKey: null, authToken: 'k' }])
      assert.equal((await open(server.url, more).messages.create(say('Hi'))).content[0].text, 'Hi');
  });

  test('fields without effect are named', async () => {
    const { response } = await client.messages.create(say('Hi', { metadata: { user_id: 'u' }, service_tier: 'auto' })).withResponse();
    assert.equal(response.headers.get('x-calla-ignored'), 'metadata, service_tier');
  });

  test('models', async () => {
    const list = [];
    for await (const model of client.models.list()) list.push(model);
    assert.deepEqual(list.map((model) => model.id), ['scripted', 'scripted-thinking', 'scripted-instruct']);
    const one = await client.models.retrieve('scripted');
    assert.equal(one.type, 'model');
    assert.equal(one.display_name, 'scripted');
    assert.equal(one.max_input_tokens, 16384);
    assert.ok(Math.abs(new Date(one.created_at) - Date.now()) < 600_000);
  });

  test('an aborted request stops its job', async () => {
    const stream = await client.messages.create(say('@endless @token=10 text', { stream: true }));
    let events = 0;
    for await (const event of stream) if (event && ++events === 5) break; // leaving the loop aborts
    await untilIdle(server.url);
  });
});

describe('pocket model', () => {
  let server, client;
  before(async () => {
    server = await startServer([required('CALLA'), 'serve', '--port', '0', '--model', `${required('CALLA_MODELS')}/pocket`]);
    client = open(server.url);
  });
  after(async () => assert.equal(await server.stop(), 0));

  for (const type of ['enabled', 'disabled'])
    test(`the capital of France, thinking ${type}`, async () => {
      const request = say('What is the capital of France?', { temperature: 0, thinking: { type, ...(type === 'enabled' && { budget_tokens: 1024 }) } });
      const whole = await client.messages.create(request);
      assert.equal(whole.content.at(-1).text, 'The capital of France is Paris.');
      assert.equal(whole.stop_reason, 'end_turn');
      assert.equal(whole.content[0].type, type === 'enabled' ? 'thinking' : 'text');
      assert.deepEqual(same(await client.messages.stream(request).finalMessage()), same(whole));
    });
});
