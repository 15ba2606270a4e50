// The official openai client against the server, on the scripted engine (which answers what the user says, see
// tests/server/fake_engine.h) and on the pocket model.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import OpenAI from 'openai';
import { required, startServer, untilIdle } from './server.mjs';

const WEATHER = {
  type: 'function',
  function: {
    name: 'weather',
    description: 'The weather of a city',
    parameters: { type: 'object', properties: { city: { type: 'string' }, days: { type: 'integer' } }, required: ['city'] },
  },
};
const CALL =
  '<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>';

const say = (content, more = {}) => ({ model: 'any', messages: [{ role: 'user', content }], enable_thinking: false, ...more });

// What the chunks of a stream add up to.
async function collect(stream) {
  const sum = { content: '', reasoning: '', chunks: 0, usage: null, finish: null, logprobs: [] };
  for await (const chunk of stream) {
    sum.chunks++;
    sum.usage = chunk.usage ?? sum.usage;
    for (const choice of chunk.choices) {
      sum.content += choice.delta.content ?? '';
      sum.reasoning += choice.delta.reasoning_content ?? '';
      sum.finish = choice.finish_reason ?? sum.finish;
      sum.logprobs.push(...(choice.logprobs?.content ?? []));
    }
  }
  return sum;
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
    const whole = await client.chat.completions.create(say(text));
    assert.equal(whole.object, 'chat.completion');
    assert.equal(whole.model, 'any');
    assert.equal(whole.choices[0].message.role, 'assistant');
    assert.equal(whole.choices[0].message.content, text);
    assert.equal(whole.choices[0].finish_reason, 'stop');
    assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
    const sum = await collect(await client.chat.completions.create(say(text, { stream: true, stream_options: { include_usage: true } })));
    assert.equal(sum.content, text);
    assert.equal(sum.finish, 'stop');
    assert.deepEqual(sum.usage, whole.usage);
    assert.ok(sum.chunks > 5);
    const plain = await collect(await client.chat.completions.create(say(text, { stream: true })));
    assert.equal(plain.usage, null);
  });

  test('thoughts on and off', async () => {
    const thinking = say('First I think.</think>\n\nThen I answer.', { enable_thinking: true });
    const whole = await client.chat.completions.create(thinking);
    assert.equal(whole.choices[0].message.reasoning_content, 'First I think.');
    assert.equal(whole.choices[0].message.content, 'Then I answer.');
    assert.ok(whole.usage.completion_tokens_details.reasoning_tokens > 2);
    const sum = await collect(await client.chat.completions.create({ ...thinking, stream: true }));
    assert.equal(sum.reasoning, 'First I think.');
    assert.equal(sum.content, 'Then I answer.');
    const off = { ...say('No thought.'), enable_thinking: undefined, chat_template_kwargs: { enable_thinking: false } };
    const answer = (await client.chat.completions.create(off)).choices[0].message;
    assert.equal(answer.content, 'No thought.');
    assert.equal(answer.reasoning_content, undefined);
  });

  test('tool calls, whole and streamed', async () => {
    const request = say(CALL + '\n' + CALL, { tools: [WEATHER] });
    const check = (choice) => {
      assert.equal(choice.finish_reason, 'tool_calls');
      assert.equal(choice.message.tool_calls.length, 2);
      for (const call of choice.message.tool_calls) {
        assert.match(call.id, /^call_[0-9a-f]{24}$/);
        assert.equal(call.type, 'function');
        assert.equal(call.function.name, 'weather');
        assert.deepEqual(JSON.parse(call.function.arguments), { city: 'Paris', days: 3 });
      }
      assert.notEqual(choice.message.tool_calls[0].id, choice.message.tool_calls[1].id);
    };
    check((await client.chat.completions.create(request)).choices[0]);
    check((await client.chat.completions.stream(request).finalChatCompletion()).choices[0]);
  });

  test('the client runs a tool and sends its result back', async () => {
    const asked = [];
    const weather = async (args) => {
      asked.push(args);
      return 'sunny';
    };
    const tool = { type: 'function', function: { ...WEATHER.function, function: weather, parse: JSON.parse } };
    const runner = client.chat.completions.runTools(say(CALL, { tools: [tool], stream: true }));
    assert.match(await runner.finalContent(), /sunny/);
    assert.deepEqual(asked, [{ city: 'Paris', days: 3 }]);
  });

  test('log-probabilities are the same in both forms', async () => {
    const request = say('@endless one two', { logprobs: true, top_logprobs: 3, max_tokens: 8 });
    const whole = (await client.chat.completions.create(request)).choices[0].logprobs.content;
    assert.equal(whole.length, 8);
    assert.equal(whole[0].top_logprobs.length, 3);
    assert.equal(Buffer.from(whole.flatMap((entry) => entry.bytes)).toString().slice(0, 7), 'one two');
    const { logprobs } = await collect(await client.chat.completions.create({ ...request, stream: true }));
    assert.deepEqual(logprobs, whole);
  });

  test('several choices', async () => {
    const request = say('@choice text', { n: 4 });
    const want = ['0:text', '1:text', '2:text', '3:text'];
    const whole = await client.chat.completions.create(request);
    assert.deepEqual(whole.choices.map((choice) => choice.message.content), want);
    const streamed = await client.chat.completions.stream(request).finalChatCompletion();
    assert.deepEqual(streamed.choices.map((choice) => choice.message.content), want);
  });

  test('stop strings and limits', async () => {
    const stopped = await client.chat.completions.create(say('The quick brown fox', { stop: ['k bro'] }));
    assert.equal(stopped.choices[0].message.content, 'The quic');
    assert.equal(stopped.choices[0].finish_reason, 'stop');
    const cut = await client.chat.completions.create(say('@endless a', { max_completion_tokens: 3 }));
    assert.equal(cut.choices[0].finish_reason, 'length');
    assert.equal(cut.usage.completion_tokens, 3);
  });

  test('errors are those of the client library', async () => {
    const refuse = (more, check, content = 'Hi') => assert.rejects(client.chat.completions.create(say(content, more)), check);
    await refuse({ temperature: 5 }, (e) => e instanceof OpenAI.BadRequestError && e.param === 'temperature');
    await refuse({ response_format: { type: 'xml' } }, (e) => e instanceof OpenAI.BadRequestError && e.param === 'response_format');
    await refuse({ tool_choice: 'required' }, (e) => e instanceof OpenAI.BadRequestError && e.param === 'tool_choice');
    await refuse({}, (e) => e instanceof OpenAI.RateLimitError && e.headers.get('retry-after') === '1', '@refuse x');
    await refuse({}, (e) => e instanceof OpenAI.InternalServerError && e.status === 503, '@fail=1 a b c');
    await refuse({ stream: true }, (e) => e instanceof OpenAI.BadRequestError && e.code === 'context_length_exceeded', 'long '.repeat(9000));
    await assert.rejects(client.models.retrieve('other'), OpenAI.NotFoundError);
    await assert.rejects(client.embeddings.create({ model: 'any', input: 'x' }), OpenAI.NotFoundError);
    await assert.rejects(
      async () => collect(await client.chat.completions.create(say('@fail=2 one two three four', { stream: true }))),
      (e) => e instanceof OpenAI.APIError && /scripted device failed/.test(e.message),
    );
  });

  test('fields without effect are named', async () => {
    const { response } = await client.chat.completions.create(say('Hi', { user: 'me', store: false })).withResponse();
    assert.equal(response.headers.get('x-calla-ignored'), 'user, store');
    assert.match(response.headers.get('x-request-id'), /^req_/);
  });

  test('models', async () => {
    const list = [];
    for await (const model of client.models.list()) list.push(model);
    assert.deepEqual(list.map((model) => model.id), ['scripted', 'scripted-thinking', 'scripted-instruct']);
    assert.equal((await client.models.retrieve('scripted')).context_window, 4096);
  });

  test('an aborted request stops its job', async () => {
    const stream = await client.chat.completions.create(say('@endless @token=10 text', { stream: true }));
    let chunks = 0;
    for await (const chunk of stream) if (chunk && ++chunks === 5) break; // leaving the loop aborts
    await untilIdle(server.url);
    const abort = new AbortController();
    const whole = client.chat.completions.create(say('@prompt=1000x50 long'), { signal: abort.signal });
    setTimeout(() => abort.abort(), 100);
    await assert.rejects(whole, OpenAI.APIUserAbortError);
    await untilIdle(server.url);
  });

  test('many at once are not mixed', async () => {
    const texts = Array.from({ length: 24 }, (_, i) => `@token=2 This is answer number ${i} of many`);
    const answers = await Promise.all(
      texts.map(async (text, i) =>
        i % 2
          ? (await client.chat.completions.create(say(text))).choices[0].message.content
          : (await collect(await client.chat.completions.create(say(text, { stream: true })))).content,
      ),
    );
    assert.deepEqual(answers, texts.map((text) => text.replace('@token=2 ', '')));
  });
});

describe('pocket model', () => {
  let server, client;
  before(async () => {
    server = await startServer([required('CALLA'), 'serve', '--port', '0', '--model', `${required('CALLA_MODELS')}/pocket`]);
    client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0 });
  });
  after(async () => assert.equal(await server.stop(), 0));

  const capital = { model: 'pocket', temperature: 0, messages: [{ role: 'user', content: 'What is the capital of France?' }] };

  for (const enable_thinking of [true, false])
    test(`the capital of France, thinking ${enable_thinking ? 'on' : 'off'}`, async () => {
      const whole = await client.chat.completions.create({ ...capital, enable_thinking });
      assert.equal(whole.choices[0].message.content, 'The capital of France is Paris.');
      assert.equal(whole.choices[0].finish_reason, 'stop');
      assert.equal(Boolean(whole.choices[0].message.reasoning_content), enable_thinking);
      const sum = await collect(await client.chat.completions.create({ ...capital, enable_thinking, stream: true }));
      assert.equal(sum.content, 'The capital of France is Paris.');
      assert.equal(sum.reasoning, whole.choices[0].message.reasoning_content ?? '');
    });

  // A18, A19, A44.
  test('the same seed gives the same text, alone and in company', async () => {
    const request = { ...capital, temperature: 1, seed: 7, max_tokens: 40 };
    const text = async () => (await client.chat.completions.create(request)).choices[0].message;
    const first = await text();
    for (const other of await Promise.all([text(), text(), text()])) assert.deepEqual(other, first);
  });

  test('log-probabilities are those of a distribution', async () => {
    const { content } = (await client.chat.completions.create({ ...capital, logprobs: true, top_logprobs: 5, max_tokens: 10 })).choices[0].logprobs;
    assert.equal(content.length, 10);
    for (const entry of content) {
      assert.ok(entry.logprob <= 0);
      assert.equal(entry.top_logprobs[0].token, entry.token); // greedy
      assert.ok(entry.top_logprobs.reduce((sum, other) => sum + Math.exp(other.logprob), 0) <= 1 + 1e-4);
    }
  });

  // As evaluation harnesses ask for the likelihood of a text: in the prompt its tokens are as likely as in the answer.
  test('log-probabilities of a prompt', async () => {
    const greedy = { model: 'pocket', temperature: 0, logprobs: 1 };
    const prompt = '<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n';
    const answer = (await client.completions.create({ ...greedy, prompt, max_tokens: 12 })).choices[0];
    const whole = (await client.completions.create({ ...greedy, prompt: prompt + answer.text, echo: true, max_tokens: 0 })).choices[0];
    assert.equal(whole.text, prompt + answer.text);
    assert.equal(whole.logprobs.token_logprobs[0], null);
    const at = whole.logprobs.tokens.length - answer.logprobs.tokens.length;
    answer.logprobs.tokens.forEach((token, i) => {
      assert.equal(whole.logprobs.tokens[at + i], token);
      assert.ok(Math.abs(whole.logprobs.token_logprobs[at + i] - answer.logprobs.token_logprobs[i]) < 0.05);
      assert.deepEqual(Object.keys(whole.logprobs.top_logprobs[at + i]), [token]);
      assert.equal(whole.logprobs.text_offset[at + i], prompt.length + answer.logprobs.text_offset[i]);
    });
  });
});
