// What users of other servers reported and only a model can show, on the pocket model with the official clients: conversations of several turns,
// penalties, budgets of thoughts, and clients that leave.  The numbers are those of the project's case log.
import Anthropic from '@anthropic-ai/sdk';
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import OpenAI from 'openai';
import { required, startServer, untilIdle } from './server.mjs';

const QUESTIONS = ['What is the capital of France?', 'And of Italy?', 'Are you sure?'];

let server, openai, anthropic;
before(async () => {
  server = await startServer([required('CALLA'), 'serve', '--port', '0', '--model', `${required('CALLA_MODELS')}/pocket`]);
  openai = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0 });
  anthropic = new Anthropic({ baseURL: server.url, apiKey: 'none', maxRetries: 0 });
});
after(async () => assert.equal(await server.stop(), 0));

async function post(path, body) {
  const response = await fetch(server.url + path, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) });
  assert.equal(response.status, 200);
  return response.json();
}

// A dialect: the answer to a history, what of it goes into the history, and how many tokens were read and written.
const dialects = {
  async chat(history, thinking) {
    const { choices, usage } = await openai.chat.completions.create({ model: 'pocket', temperature: 0, enable_thinking: thinking, messages: history });
    return { items: [choices[0].message], read: usage.prompt_tokens, written: usage.completion_tokens };
  },
  async messages(history, thinking) {
    const { content, usage } = await anthropic.messages.create({ model: 'pocket', temperature: 0, max_tokens: 1000, thinking: { type: thinking ? 'adaptive' : 'disabled' }, messages: history });
    return { items: [{ role: 'assistant', content }], read: usage.input_tokens, written: usage.output_tokens };
  },
  async responses(history, thinking) {
    const { output, usage } = await openai.responses.create({ model: 'pocket', temperature: 0, store: false, reasoning: { effort: thinking ? 'high' : 'none' }, input: history });
    return { items: output, read: usage.input_tokens, written: usage.output_tokens };
  },
};

// A36: the prompt of a turn is that of the turn before with the answer as it was generated, so that only what is new has to be computed.
describe('a turn adds to the prompt of the turn before its answer and the next question', () => {
  for (const [name, ask] of Object.entries(dialects))
    for (const thinking of [false, true])
      test(`${name}, ${thinking ? 'thoughts sent back' : 'without thoughts'}`, async () => {
        const history = [];
        let expected = 0;
        for (const content of QUESTIONS) {
          history.push({ role: 'user', content });
          const { items, read, written } = await ask(history, thinking);
          const added = `\n<|im_start|>user\n${content}<|im_end|>\n<|im_start|>assistant\n<think>\n${thinking ? '' : '\n</think>\n\n'}`;
          const { count } = await post('/tokenize', { content: expected ? added : added.slice(1) });
          assert.equal(read, expected + count);
          expected = read + written;
          history.push(...items);
        }
      });

  // Without its thought an answer stands otherwise in the next prompt than it was generated: it is computed again, and nothing before it.
  test('chat, thoughts not sent back', async () => {
    const messages = [];
    let kept = '';
    for (const content of QUESTIONS) {
      messages.push({ role: 'user', content });
      const { prompt } = await post('/apply-template', { messages });
      assert.ok(prompt.startsWith(kept) && prompt.endsWith('<|im_start|>assistant\n<think>\n'));
      kept = prompt.slice(0, -'<think>\n'.length);
      const { items } = await dialects.chat(messages, true);
      messages.push({ role: 'assistant', content: items[0].content });
    }
  });
});

// A16: the same seed and prompt, and a penalty on what was said before.
test('a penalty changes the answer, and the reply names it', async () => {
  const request = { model: 'pocket', prompt: 'one two one two one two one two', seed: 5, temperature: 0, max_tokens: 60, ignore_eos: true };
  const ask = async (frequency_penalty) => {
    const { data, response } = await openai.completions.create({ ...request, frequency_penalty }).withResponse();
    assert.match(response.headers.get('x-calla-sampling'), new RegExp(` frequency_penalty=${frequency_penalty} .* seed=5 `));
    return data.choices[0].text;
  };
  const free = await ask(0);
  assert.equal(await ask(0), free);
  assert.notEqual(await ask(2), free);
});

// A34: the control token, not its letters; and A35: then an answer comes.
test("a budget closes the thought by the model's own token", async () => {
  const request = { model: 'pocket', temperature: 0, max_tokens: 40, logprobs: true, thinking_budget: 3, messages: [{ role: 'user', content: QUESTIONS[0] }] };
  const { message, logprobs } = (await openai.chat.completions.create(request)).choices[0];
  assert.deepEqual(logprobs.content.slice(3, 6).map((entry) => entry.token), ['\n', '</think>', '\n\n']);
  assert.ok(message.reasoning_content && message.content, JSON.stringify(message));
});

// A29: the client of a long prompt leaves: the work stops, others are served, and the prompt can be sent again.
describe('a client that leaves a long prompt', () => {
  const long = { model: 'pocket-instruct', temperature: 0, max_tokens: 4, messages: [{ role: 'user', content: `${QUESTIONS[0]} `.repeat(700) }] };
  const ask = async (request) => (await openai.chat.completions.create(request)).choices[0].message.content;
  let want, whole;
  before(async () => {
    const begin = performance.now();
    want = await ask(long);
    whole = performance.now() - begin;
  });

  for (const stream of [false, true])
    test(stream ? 'streamed' : 'whole', async () => {
      const abort = new AbortController();
      const left = openai.chat.completions.create({ ...long, stream }, { signal: abort.signal }).then(async (answer) => {
        if (stream) for await (const chunk of answer) assert.equal(chunk.choices[0].delta.content, ''); // the first one: no token yet
      });
      setTimeout(() => abort.abort(), whole / 4);
      await left.catch((e) => assert.ok(e instanceof OpenAI.APIUserAbortError, String(e)));
      await untilIdle(server.url, whole / 2);
      assert.equal(await ask({ ...long, max_tokens: 20, messages: [{ role: 'user', content: QUESTIONS[0] }] }), 'The capital of France is Paris.');
      assert.equal(await ask(long), want);
    });
});
