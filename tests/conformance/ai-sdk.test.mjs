// The AI SDK with its provider for servers like OpenAI's, on the scripted engine, which answers what the user says
// (tests/server/fake_engine.h), and on the pocket model.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';
import { required, startServer } from './server.mjs';

const CALL =
  '<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>';
const schema = jsonSchema({ type: 'object', properties: { city: { type: 'string' }, days: { type: ['integer', 'null'] } }, required: ['city'] });

const modelOf = (server, name) =>
  createOpenAICompatible({ name: 'calla', baseURL: `${server.url}/v1`, includeUsage: true })(name);

describe('scripted engine', () => {
  let server, model, plain;
  before(async () => {
    server = await startServer([required('CALLA_SCRIPTED_SERVER'), `${required('CALLA_MODELS')}/pocket`]);
    model = modelOf(server, 'scripted');
    plain = modelOf(server, 'scripted-instruct');
  });
  after(async () => assert.equal(await server.stop(), 0));

  test('a thought and an answer, whole and streamed', async () => {
    const prompt = 'I think. 🦀</think>\n\nI answer. 漢字';
    const whole = await generateText({ model, prompt, maxRetries: 0 });
    assert.equal(whole.reasoningText, 'I think. 🦀');
    assert.equal(whole.text, 'I answer. 漢字');
    assert.equal(whole.finishReason, 'stop');
    const streamed = streamText({ model, prompt, maxRetries: 0 });
    assert.equal(await streamed.text, whole.text);
    assert.equal(await streamed.reasoningText, whole.reasoningText);
    assert.deepEqual((await streamed.usage).outputTokens, whole.usage.outputTokens);
    assert.ok((await streamed.usage).reasoningTokens > 0);
  });

  for (const [how, ask] of [
    ['whole', async (options) => generateText(options)],
    ['streamed', async (options) => { const s = streamText(options); await s.consumeStream(); return { steps: await s.steps, text: await s.text }; }],
  ])
    test(`a tool that is run, ${how}`, async () => {
      const asked = [];
      const weather = tool({ inputSchema: schema, execute: async (input) => (asked.push(input), 'sunny') });
      const done = await ask({ model: plain, prompt: CALL, tools: { weather }, stopWhen: stepCountIs(2), maxRetries: 0 });
      assert.deepEqual(asked, [{ city: 'Paris', days: 3 }]);
      assert.equal(done.steps[0].finishReason, 'tool-calls');
      assert.match(done.text, /sunny/);
    });

  test('arguments arrive as they are written', async () => {
    const say = '<tool_call>\n<function=write>\n<parameter=text>\n' + 'word '.repeat(40) + '\n</parameter>\n</function>\n</tool_call>';
    const write = tool({ inputSchema: jsonSchema({ type: 'object', properties: { text: { type: 'string' } } }) });
    const streamed = streamText({ model: plain, prompt: say, tools: { write }, maxRetries: 0 });
    let deltas = 0;
    for await (const part of streamed.fullStream) deltas += part.type === 'tool-input-delta';
    assert.ok(deltas > 20, `${deltas} deltas`);
    assert.equal((await streamed.toolCalls)[0].input.text, 'word '.repeat(40));
  });

  test('a failure is an error, whole and half-way', async () => {
    await assert.rejects(generateText({ model: plain, prompt: '@fail=1 a b c', maxRetries: 0 }), /scripted device failed/);
    const errors = [];
    const streamed = streamText({ model: plain, prompt: '@fail=2 one two three four', maxRetries: 0, onError: ({ error }) => errors.push(error) });
    await streamed.consumeStream();
    assert.match(String(errors[0]?.message ?? errors[0]), /scripted device failed/);
  });
});

describe('pocket model', () => {
  let server;
  before(async () => (server = await startServer([required('CALLA'), 'serve', '--port', '0', '--model', `${required('CALLA_MODELS')}/pocket`])));
  after(async () => assert.equal(await server.stop(), 0));

  test('the capital of France', async () => {
    const done = await generateText({ model: modelOf(server, 'pocket'), prompt: 'What is the capital of France?', temperature: 0, maxRetries: 0 });
    assert.equal(done.text, 'The capital of France is Paris.');
    assert.ok(done.reasoningText.length > 0);
  });
});
