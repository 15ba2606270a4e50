// The structured-output helpers of the official clients and of the AI SDK, on the pocket model, which knows nothing of schemas: what comes is the
// form's doing.  Each helper checks the answer against its own schema and throws where it does not fit.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import Anthropic from '@anthropic-ai/sdk';
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod';
import { generateObject, streamObject } from 'ai';
import OpenAI from 'openai';
import { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { required, startServer } from './server.mjs';

// Bounded in all its parts: a model that was not trained for it would go on as long as it may.
const trip = z.object({
  city: z.string().min(2).max(12),
  days: z.number().int().min(1).max(30),
  wind: z.enum(['calm', 'strong']),
  hours: z.array(z.object({ at: z.int().min(0).max(23), rain: z.boolean() })).max(3),
  note: z.string().max(10).nullable(),
});
const question = 'What is the capital of France?';
const messages = [{ role: 'user', content: question }];
const modes = [true, false].map((thinking) => [thinking, thinking ? 'thinking on' : 'thinking off']);

let server, client;
before(async () => {
  server = await startServer([required('CALLA'), 'serve', '--port', '0', '--model', `${required('CALLA_MODELS')}/pocket`]);
  client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0 });
});
after(async () => assert.equal(await server.stop(), 0));

describe('openai', () => {
  for (const [enable_thinking, mode] of modes) {
    const request = { model: 'pocket', messages, temperature: 0, enable_thinking };

    test(`zodResponseFormat, ${mode}`, async () => {
      const ask = { ...request, response_format: zodResponseFormat(trip, 'trip') };
      const whole = (await client.chat.completions.parse(ask)).choices[0];
      assert.equal(whole.finish_reason, 'stop');
      trip.parse(whole.message.parsed);
      assert.equal(Boolean(whole.message.reasoning_content), enable_thinking);
      const streamed = (await client.chat.completions.stream(ask).finalChatCompletion()).choices[0];
      assert.deepEqual(streamed.message.parsed, whole.message.parsed);
    });

    test(`responses.parse, ${mode}`, async () => {
      const ask = { model: 'pocket', input: question, temperature: 0, enable_thinking, text: { format: zodTextFormat(trip, 'trip') } };
      const whole = await client.responses.parse(ask);
      trip.parse(whole.output_parsed);
      assert.equal(whole.output.some((item) => item.type === 'reasoning'), enable_thinking);
      const streamed = await client.responses.stream(ask).finalResponse();
      assert.deepEqual(streamed.output_parsed, whole.output_parsed);
    });

    test(`zodFunction and zodResponsesFunction, ${mode}`, async () => {
      const chat = { ...request, tools: [zodFunction({ name: 'book', parameters: trip })], tool_choice: 'required', parallel_tool_calls: false };
      const whole = (await client.chat.completions.parse(chat)).choices[0];
      assert.equal(whole.finish_reason, 'tool_calls');
      assert.equal(whole.message.tool_calls.length, 1);
      trip.parse(whole.message.tool_calls[0].function.parsed_arguments);
      const streamed = (await client.chat.completions.stream(chat).finalChatCompletion()).choices[0];
      assert.deepEqual(streamed.message.tool_calls[0].function.parsed_arguments, whole.message.tool_calls[0].function.parsed_arguments);

      const tools = [zodResponsesFunction({ name: 'book', parameters: trip })];
      const responses = { model: 'pocket', input: question, temperature: 0, enable_thinking, tools, tool_choice: { type: 'function', name: 'book' }, parallel_tool_calls: false };
      // parse() throws where the arguments do not fit; of a stream this client parses only texts
      const calls = ({ output }) => output.filter((item) => item.type === 'function_call').map((item) => trip.parse(JSON.parse(item.arguments)));
      const parsed = calls(await client.responses.parse(responses));
      assert.equal(parsed.length, 1);
      assert.deepEqual(calls(await client.responses.stream(responses).finalResponse()), parsed);
    });

    for (const stream of [false, true])
      test(`runTools, ${mode}, ${stream ? 'streamed' : 'whole'}`, async () => {
        const asked = [];
        const tool = zodFunction({ name: 'book', parameters: trip, function: (args) => (asked.push(args), 'booked') });
        const tool_choice = { type: 'function', function: { name: 'book' } }; // the runner ends behind its call
        const runner = client.chat.completions.runTools({ ...request, stream, tools: [tool], tool_choice });
        await runner.done();
        assert.equal(asked.length, 1);
        trip.parse(asked[0]);
      });
  }

  test('dates, unions, tuples, recursion: what zod makes of them is understood', async () => {
    const list = z.object({ value: z.int().min(0).max(9), get next() { return list.nullable(); } });
    const record = z.object({
      when: z.iso.date(),
      at: z.iso.datetime(),
      id: z.uuid(),
      code: z.string().regex(/^[a-z]{2,4}$/),
      event: z.discriminatedUnion('kind', [z.object({ kind: z.literal('a'), n: z.number().min(-1).max(1) }), z.object({ kind: z.literal('b') })]),
      pair: z.tuple([z.int().min(0).max(9), z.boolean()]),
    });
    for (const schema of [record, z.object({ list })]) {
      const ask = { model: 'pocket-instruct', messages, temperature: 1, seed: 3, max_tokens: 600, response_format: zodResponseFormat(schema, 'x') };
      const { choices } = await client.chat.completions.create(ask);
      if (choices[0].finish_reason === 'stop') schema.parse(JSON.parse(choices[0].message.content));
      else assert.equal(schema === record, false); // only a list may go on
    }
  });

  test('a schema that is not understood is the library\'s error', async () => {
    const schema = { type: 'object', properties: { a: { not: { type: 'null' } } }, required: ['a'], additionalProperties: false };
    const response_format = { type: 'json_schema', json_schema: { name: 'x', strict: true, schema } };
    await assert.rejects(
      client.chat.completions.create({ model: 'pocket', messages, response_format }),
      (e) => e instanceof OpenAI.BadRequestError && e.param === 'response_format' && /not/.test(e.message) && /\/properties\/a/.test(e.message),
    );
  });
});

describe('anthropic', () => {
  // This library takes the bounds of strings and numbers out of what it sends, and checks them itself.
  const capital = z.object({ city: z.enum(['Paris', 'Rome']), large: z.boolean() });

  for (const [thinking, mode] of modes)
    test(`messages.parse, ${mode}`, async () => {
      const anthropic = new Anthropic({ baseURL: server.url, apiKey: 'none', maxRetries: 0 });
      const ask = {
        model: 'pocket',
        max_tokens: 2000,
        messages,
        temperature: 0,
        thinking: { type: thinking ? 'adaptive' : 'disabled' },
        output_config: { format: zodOutputFormat(capital) },
      };
      const whole = await anthropic.messages.parse(ask);
      capital.parse(whole.parsed_output);
      assert.equal(whole.content[0].type, thinking ? 'thinking' : 'text');
    });
});

describe('the AI SDK', () => {
  for (const [name, mode] of [['pocket', 'thinking on'], ['pocket-instruct', 'thinking off']]) {
    const ask = () => ({
      model: createOpenAICompatible({ name: 'calla', baseURL: `${server.url}/v1`, supportsStructuredOutputs: true })(name),
      schema: trip,
      prompt: question,
      temperature: 0,
      maxRetries: 0,
    });

    test(`generateObject and streamObject, ${mode}`, async () => {
      const whole = await generateObject(ask());
      trip.parse(whole.object);
      assert.equal(whole.finishReason, 'stop');
      const streamed = streamObject(ask());
      let parts = 0;
      for await (const part of streamed.partialObjectStream) parts += part !== undefined;
      assert.ok(parts > 1, `${parts} parts`);
      assert.deepEqual(await streamed.object, whole.object);
    });
  }
});
