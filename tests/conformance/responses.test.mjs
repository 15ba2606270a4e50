// The official openai client on the responses and completions APIs, on the scripted engine (which answers what the user says, see
// tests/server/fake_engine.h) and on the pocket model.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import OpenAI from 'openai';
import { required, startServer, untilIdle } from './server.mjs';

const WEATHER = {
  type: 'function',
  name: 'weather',
  description: 'The weather of a city',
  strict: false,
  parameters: { type: 'object', properties: { city: { type: 'string' }, days: { type: 'integer' } }, required: ['city'] },
};
const call = (city) => `<tool_call>\n<function=weather>\n<parameter=city>\n${city}\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>`;

const say = (input, more = {}) => ({ model: 'any', input, reasoning: { effort: 'none' }, ...more });

// What differs between two answers to the same question.
function comparable(response) {
  const { id, created_at, output, output_text, output_parsed, ...rest } = response;
  const same = output.map(({ id, call_id, parsed_arguments, ...item }) => ({
    ...item,
    ...(item.content && { content: item.content.map(({ parsed, ...part }) => part) }),
  }));
  return { ...rest, output: same };
}

describe('scripted engine', () => {
  let server, client;
  before(async () => {
    server = await startServer([required('CALLA_SCRIPTED_SERVER'), `${required('CALLA_MODELS')}/pocket`]);
    client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0 });
  });
  after(async () => assert.equal(await server.stop(), 0));

  test('an answer, whole and streamed', async () => {
    const text = 'The capital of France is Paris. 🦀 漢字 "quoted"\nnext line';
    const whole = await client.responses.create(say(text));
    assert.equal(whole.status, 'completed');
    assert.equal(whole.model, 'any');
    assert.equal(whole.output_text, text);
    assert.equal(whole.usage.total_tokens, whole.usage.input_tokens + whole.usage.output_tokens);
    const stream = client.responses.stream(say(text));
    let deltas = '';
    stream.on('response.output_text.delta', (event) => (deltas += event.delta));
    const final = await stream.finalResponse();
    assert.equal(deltas, text);
    assert.deepEqual(comparable(final), comparable(whole));
  });

  test('what is stored can be asked for, gone on from by name, and deleted', async () => {
    const made = await client.responses.create(say(`Let me see.\n${call('Paris')}`, { tools: [WEATHER] }));
    assert.deepEqual(comparable(await client.responses.retrieve(made.id)), comparable(made));
    const items = [];
    for await (const item of client.responses.inputItems.list(made.id, { order: 'asc', limit: 1 })) items.push(item);
    assert.equal(items.length, 1);
    assert.equal(items[0].role, 'user');
    const next = await client.responses.create(say(
      [...items, ...made.output.map(({ id }) => ({ type: 'item_reference', id })),
        { type: 'function_call_output', call_id: made.output[1].call_id, output: 'Sunny.' }],
      { tools: [WEATHER] }));
    assert.match(next.output_text, /Sunny\./);
    await client.responses.delete(made.id);
    await assert.rejects(client.responses.retrieve(made.id), (e) => e.status === 404);
  });

  test('thoughts and calls, whole and streamed', async () => {
    const request = say(`I think.</think>\n\nLet me see.\n${call('Paris')}\n${call('Rome')}`, {
      tools: [WEATHER], reasoning: { effort: 'high' }, include: ['reasoning.encrypted_content'],
    });
    const whole = await client.responses.create(request);
    assert.deepEqual(whole.output.map((item) => item.type), ['reasoning', 'message', 'function_call', 'function_call']);
    assert.equal(whole.output[0].content[0].text, 'I think.');
    assert.deepEqual(JSON.parse(whole.output[3].arguments), { city: 'Rome', days: 3 });
    assert.ok(whole.usage.output_tokens_details.reasoning_tokens > 1);
    const final = await client.responses.stream(request).finalResponse();
    assert.deepEqual(comparable(final), comparable(whole));
  });

  test('what the events add up to is the answer at each item', async () => {
    const stream = await client.responses.create(say(`Hm.</think>\n\nSo:\n${call('Paris')}`, { tools: [WEATHER], reasoning: {}, stream: true }));
    const items = [], types = [];
    let number = 0, last;
    for await (const event of stream) {
      assert.equal(event.sequence_number, number++);
      if (types.at(-1) !== event.type) types.push(event.type);
      if (event.type === 'response.output_item.added') items[event.output_index] = '';
      if (event.type.endsWith('.delta')) items[event.output_index] += event.delta;
      if (event.type === 'response.output_item.done')
        assert.equal(items[event.output_index], event.item.arguments ?? event.item.content[0].text);
      last = event;
    }
    assert.deepEqual(types, [
      'response.created', 'response.in_progress',
      'response.output_item.added', 'response.content_part.added', 'response.reasoning_text.delta', 'response.reasoning_text.done',
      'response.content_part.done', 'response.output_item.done',
      'response.output_item.added', 'response.content_part.added', 'response.output_text.delta', 'response.output_text.done',
      'response.content_part.done', 'response.output_item.done',
      'response.output_item.added', 'response.function_call_arguments.delta', 'response.function_call_arguments.done',
      'response.output_item.done', 'response.completed',
    ]);
    assert.equal(last.response.output.length, 3);
  });

  test('a tool loop, with and without what the server remembers', async () => {
    const question = `Look.</think>${call('Paris')}`;
    const output = (item) => ({ type: 'function_call_output', call_id: item.call_id, output: 'Good.</think>It is sunny.' });
    const more = { tools: [WEATHER], reasoning: { effort: 'high' } };
    const first = await client.responses.create(say(question, more));
    const called = first.output.find((item) => item.type === 'function_call');
    const kept = await client.responses.create(say([output(called)], { ...more, previous_response_id: first.id }));
    assert.match(kept.output_text, /^It is sunny\./);
    const sent = await client.responses.create(say([{ role: 'user', content: question }, ...first.output, output(called)], { ...more, store: false }));
    assert.deepEqual(sent.usage, kept.usage);
    await assert.rejects(
      client.responses.create(say('Hi', { previous_response_id: sent.id })),
      (e) => e instanceof OpenAI.BadRequestError && e.code === 'previous_response_not_found',
    );
  });

  test('a free-text tool', async () => {
    const tools = [{ type: 'custom', name: 'patch', description: 'Edits files' }];
    const text = '*** Begin\n+"one"\n*** End';
    const request = say(`<tool_call>\n<function=patch>\n<parameter=input>\n${text}\n</parameter>\n</function>\n</tool_call>`, { tools });
    const final = await client.responses.stream(request).finalResponse();
    assert.equal(final.output[0].type, 'custom_tool_call');
    assert.equal(final.output[0].input, text);
  });

  test('silence is filled with events that the client takes', async () => {
    const types = [];
    const stream = client.responses.stream(say('@prompt=1x2500 Late.'));
    stream.on('event', (event) => types.push(event.type));
    assert.equal((await stream.finalResponse()).output[0].content[0].text, 'Late.');
    assert.ok(types.includes('keepalive'));
  });

  test('limits', async () => {
    const cut = await client.responses.create(say('@endless a', { max_output_tokens: 3 }));
    assert.equal(cut.status, 'incomplete');
    assert.equal(cut.incomplete_details.reason, 'max_output_tokens');
    assert.equal(cut.usage.output_tokens, 3);
  });

  test('errors are those of the client library', async () => {
    const refuse = (more, check, input = 'Hi') => assert.rejects(client.responses.create(say(input, more)), check);
    await refuse({ temperature: 5 }, (e) => e instanceof OpenAI.BadRequestError && e.param === 'temperature');
    await refuse({ text: { format: { type: 'json_schema' } } }, (e) => e instanceof OpenAI.BadRequestError && e.param === 'text.format');
    await refuse({}, (e) => e instanceof OpenAI.RateLimitError && e.headers.get('retry-after') === '1', '@refuse x');
    await refuse({}, (e) => e instanceof OpenAI.InternalServerError && e.status === 503, '@fail=1 a b c');
    await refuse({ stream: true }, (e) => e instanceof OpenAI.BadRequestError && e.code === 'context_length_exceeded', 'long '.repeat(9000));
    let last;
    for await (const event of await client.responses.create(say('@fail=2 one two three four', { stream: true }))) last = event;
    assert.equal(last.type, 'response.failed');
    assert.match(last.response.error.message, /scripted device failed/);
  });

  test('an aborted request stops its job', async () => {
    const stream = await client.responses.create(say('@endless @token=10 text', { stream: true }));
    let events = 0;
    for await (const event of stream) if (event && ++events === 8) break; // leaving the loop aborts
    await untilIdle(server.url);
  });

  test('completions, whole and streamed', async () => {
    const prompt = '<|im_start|>user\nhello 🦀<|im_end|>';
    const whole = await client.completions.create({ model: 'any', prompt: [prompt, prompt], n: 2, echo: true });
    assert.deepEqual(whole.choices.map((choice) => choice.text), Array(4).fill(`${prompt}hello 🦀`));
    let text = '', usage;
    for await (const chunk of await client.completions.create({ model: 'any', prompt, stream: true, stream_options: { include_usage: true } })) {
      text += chunk.choices[0]?.text ?? '';
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, 'hello 🦀');
    assert.ok(usage.completion_tokens > 1);
    const { logprobs } = (await client.completions.create({ model: 'any', prompt, logprobs: 2 })).choices[0];
    assert.equal(logprobs.tokens.length, logprobs.top_logprobs.length);
  });
});

describe('pocket model', () => {
  let server, client;
  before(async () => {
    server = await startServer([required('CALLA'), 'serve', '--port', '0', '--model', `${required('CALLA_MODELS')}/pocket`]);
    client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0 });
  });
  after(async () => assert.equal(await server.stop(), 0));

  test('two turns, the second on what the server remembers', async () => {
    const request = { model: 'pocket', temperature: 0, input: 'What is the capital of France?' };
    const first = await client.responses.create(request);
    assert.equal(first.output_text, 'The capital of France is Paris.');
    assert.equal(first.output[0].type, 'reasoning');
    const streamed = await client.responses.stream(request).finalResponse();
    assert.deepEqual(comparable(streamed), comparable(first));
    const second = await client.responses.create({ ...request, input: 'And of Italy?', previous_response_id: first.id });
    assert.equal(second.status, 'completed');
    assert.ok(second.usage.input_tokens > first.usage.total_tokens);
  });

  test('text goes on', async () => {
    const { choices } = await client.completions.create({ model: 'pocket', temperature: 0, prompt: '<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n' });
    assert.equal(choices[0].text, 'The capital of France is Paris.');
    assert.equal(choices[0].finish_reason, 'stop');
  });
});
