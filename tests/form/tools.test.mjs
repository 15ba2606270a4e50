// Tool calls: whatever the masks let through is a call of a known tool with arguments of its schema, and calla_answer reads it as it
// stands there, however it is cut into tokens.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { Probe, Random, required, validator, Vocabulary } from './probe.mjs';
import { TOOLS } from './tools.mjs';

const ROUNDS = Number(process.env.CALLA_FORM_ROUNDS ?? 1);
const SEED = Number(process.env.CALLA_FORM_SEED ?? 1);
const by_name = new Map(TOOLS.map((tool) => [tool.function.name, tool.function.parameters]));

let probe, vocabulary;
before(() => {
  const model = process.env.CALLA_FORM_MODEL ?? `${required('CALLA_MODELS')}/pocket`;
  probe = new Probe(model);
  vocabulary = new Vocabulary(model);
});
const tally = { walks: 0, ended: 0, calls: 0 };
after(async () => {
  console.log(JSON.stringify(tally));
  assert.equal(await probe.stop(), 0);
});

const open = async (command) => assert.equal((await probe.ask({ op: 'open', ...command })).message, undefined);

// Texts are free, whatever else is said of them; a value that may be a text is one.
const admits_text = (schema) => {
  if (schema === true || schema === undefined) return true;
  if (schema.enum) return schema.enum.some((value) => typeof value === 'string');
  if (schema.anyOf) return schema.anyOf.some(admits_text);
  return schema.type === undefined || [schema.type].flat().includes('string');
};

const admits_null = (schema) => schema?.enum?.includes(null) || schema?.anyOf?.some(admits_null) || [schema?.type].flat().includes('null');

// The tokens <tool_call> and </tool_call> in texts, where they are no letters.
const BEGIN = '\ud800', END = '\ud801';

// The calls of an answer's text by their tags alone, with the slips that models make: [[name, {argument: value}], …].
function read_calls(text) {
  const calls = [];
  let at = text.indexOf(BEGIN);
  const read = (pattern, what) => {
    const found = new RegExp(pattern, 'y');
    found.lastIndex = at;
    const match = found.exec(text);
    if (match) at = found.lastIndex;
    else if (what) assert.fail(`no ${what} at ${at}: ${text}`);
    return match;
  };
  while (at >= 0 && at < text.length) {
    const [, name] = read(`${BEGIN}\n{0,2}<function=([^>\n]+)>\n{0,2}`, 'call');
    const properties = by_name.get(name)?.properties ?? {};
    const values = {};
    while (!read(`</function>\n{0,2}${END}\n{0,2}`)) {
      const [, key] = read('<parameter=([^>\n]+)>\n?', 'parameter');
      assert.ok(!(key in values), `${key} comes twice`);
      const known = Object.keys(properties).map((other) => `<parameter=${other}>`);
      const slipped = `\n(?=${[...known, `</function>\n*${END}`].join('|')})`;
      const [, value] = read(`([^]*?)(?:\n?(?:</parameter>\n{0,2})+(?=<parameter=|</function>)|${slipped})`, 'end of the value');
      const schema = properties[key];
      values[key] = admits_text(schema) && !(value === 'null' && admits_null(schema)) ? value : JSON.parse(value);
    }
    calls.push([name, values]);
  }
  return calls;
}

function as_text(ids) {
  const tags = new Map([[vocabulary.added.get('<tool_call>'), BEGIN], [vocabulary.added.get('</tool_call>'), END]]);
  const parts = [];
  let between = [];
  for (const id of [...ids, undefined]) {
    if (id !== undefined && !tags.has(id)) between.push(vocabulary.bytes(id));
    else {
      parts.push(Buffer.concat(between).toString('utf8'), tags.get(id) ?? '');
      between = [];
    }
  }
  return parts.join('');
}

// A format that is not understood only loosens.
const without_format = ({ format, ...schema }) => schema;

function check_calls(calls, text) {
  const expected = read_calls(text);
  assert.equal(calls.length, expected.length, text);
  calls.forEach(([name, json], i) => {
    const parameters = by_name.get(name);
    assert.ok(parameters, `${name} is no tool`);
    assert.equal(name, expected[i][0]);
    const values = JSON.parse(json);
    assert.equal(JSON.stringify(values), JSON.stringify(expected[i][1]), text); // -0 is written 0
    for (const key of parameters.required) assert.ok(key in values, `${key} is missing in ${text}`);
    for (const [key, value] of Object.entries(values)) {
      const schema = parameters.properties[key];
      if (!schema) assert.equal(parameters.additionalProperties, true, `${key} is no parameter of ${name}`);
      else assert.ok(validator(without_format(schema))(value), `${key} = ${JSON.stringify(value)} of ${name}`);
    }
  });
}

// Control tokens stay what they are, the text between is cut anew.
function recut(ids, random) {
  const out = [];
  let between = [];
  const flush = () => {
    if (between.length) out.push(...vocabulary.cut(Buffer.concat(between.map((id) => vocabulary.bytes(id))), random));
    between = [];
  };
  for (const id of ids)
    if (vocabulary.is_added(id)) {
      flush();
      out.push(id);
    } else between.push(id);
  flush();
  return out;
}

async function walks(command, n, check) {
  await open(command);
  let ended = 0;
  for (let i = 0; i < n; i++) {
    const thinking = i % 3 === 0;
    const walk = await probe.ask({ op: 'walk', seed: SEED * 7919 + i, hurry: (i * 11) % 80, most: 3000, thinking });
    tally.walks++;
    if (!walk.ended) continue;
    tally.ended++;
    tally.calls += walk.calls.length;
    ended++;
    const ids = walk.ids.slice(0, -1);
    const text = as_text(thinking ? ids.slice(ids.indexOf(vocabulary.added.get('</think>')) + 1) : ids);
    check_calls(walk.calls, text);
    check?.(walk);
    const again = recut(ids, new Random(i));
    assert.ok(await probe.takesIds(again, { thinking }), `not taken at another cut: ${text}`);
    const { calls, text: content } = await probe.ask({ op: 'answer', ids: again, thinking });
    assert.deepEqual([content, calls], [walk.text, walk.calls], 'another cut, another answer');
  }
  assert.ok(ended >= n / 2, `${ended} of ${n} ended`);
}

describe('each tool alone', () => {
  for (const tool of TOOLS)
    test(tool.function.name, () =>
      walks({ tools: [tool], choice: 'named', tool: tool.function.name, one_call: true }, 5 * ROUNDS, ({ calls }) => assert.equal(calls.length, 1)));
});

describe('all tools', () => {
  test('auto', () => walks({ tools: TOOLS }, 12 * ROUNDS));
  test('required', () => walks({ tools: TOOLS, choice: 'required' }, 12 * ROUNDS, ({ calls }) => assert.ok(calls.length >= 1)));
  test('one call', () => walks({ tools: TOOLS, choice: 'required', one_call: true }, 12 * ROUNDS, ({ calls }) => assert.equal(calls.length, 1)));
  test('named', () => walks({ tools: TOOLS, choice: 'named', tool: 'Grep' }, 8 * ROUNDS, ({ calls }) => assert.ok(calls.length && calls.every(([name]) => name === 'Grep'))));
  test('a call or a document', () =>
    walks({ tools: TOOLS, kind: 'json_schema', strict: true, source: '{"type":"object","properties":{"done":{"type":"boolean"}},"required":["done"],"additionalProperties":false}' }, 12 * ROUNDS, ({ calls, text }) =>
      assert.ok(calls.length || typeof JSON.parse(text).done === 'boolean')));
});

// Calls as the template prints them, of values that are valid.
const EXAMPLES = [
  ['Edit', { file_path: '/a/b.c', old_string: 'int a;\n', new_string: '\n\n  "x" </function> & <parameter=y>\n' }],
  ['Bash', { command: 'ls -la "$HOME" | grep é' }],
  ['get_time', {}],
  ['TodoWrite', { todos: [{ content: 'a', status: 'pending', activeForm: 'doing a' }] }],
  ['shell', { command: ['bash', '-lc', 'echo "\\n"'], timeout_ms: 1000 }],
  ['configure', { settings: { a: 1, b: ['x'] }, dry_run: null }],
  ['Read', { file_path: 'x', limit: 100 }],
];
describe('calls are taken as the template prints them', () => {
  for (const [name, values] of EXAMPLES)
    test(name, async () => {
      await open({ tools: TOOLS, choice: 'required' });
      const lines = Object.entries(values).map(([key, value]) => `<parameter=${key}>\n${typeof value === 'string' ? value : JSON.stringify(value)}\n</parameter>\n`);
      const text = `<tool_call>\n<function=${name}>\n${lines.join('')}</function>\n</tool_call>`;
      const { ids } = await probe.ask({ op: 'encode', text });
      assert.ok(await probe.takesIds(ids), text);
      assert.ok(await probe.takesIds(recut(ids, new Random(3))));
      const { calls } = await probe.ask({ op: 'answer', ids });
      assert.equal(calls.length, 1);
      assert.deepEqual([calls[0][0], JSON.parse(calls[0][1])], [name, values]);
    });
});

// How a value stands in a call; undefined: it cannot.
async function value_in_call(value, { letters = false } = {}) {
  const text = `<tool_call>\n<function=LS>\n<parameter=path>\n${value}\n</parameter>\n</function>\n</tool_call>`;
  const { ids: whole } = await probe.ask({ op: 'encode', text });
  const ids = letters ? [whole[0], ...vocabulary.cut(text.slice('<tool_call>'.length, -'</tool_call>'.length), new Random(3)), whole.at(-1)] : whole;
  if (!(await probe.takesIds(ids))) return undefined;
  const { calls } = await probe.ask({ op: 'answer', ids });
  assert.equal(calls.length, 1);
  return JSON.parse(calls[0][1]).path;
}

describe('a value may hold what does not end it', () => {
  before(() => open({ tools: TOOLS, choice: 'required' }));
  for (const value of ['a</parameter>b', '</think>', 'x\n<think>\n</think>\n<tool_response>', 'a <parameter=path>', '</function>\nx', '<tool_call>\n</tool_call>', '<tool_call>\n<function=LS>\n'])
    for (const letters of value.includes('tool_call') ? [true] : [false, true])
      test(`${JSON.stringify(value)}${letters ? ' in letters' : ''}`, async () => assert.equal(await value_in_call(value, { letters }), value));
  for (const value of ['a\n<parameter=path>\nb', 'a\n</function>\n<function=LS>', 'a\n</parameter>\n</function>\n', 'a\n</parameter>\n</tool_call>', 'a<|im_end|>', '<|im_start|>', 'a<tool_call>', '</tool_call>'])
    test(`not ${JSON.stringify(value)}`, async () => assert.notEqual(await value_in_call(value), value));
});
