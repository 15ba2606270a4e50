// Schemas: whatever the masks let through is valid to ajv, and whatever is valid to ajv, compact and in the order of the schema's keys
// is let through, however it is cut into tokens.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { near } from './generate.mjs';
import { closed, Probe, Random, required, validator, Vocabulary } from './probe.mjs';
import { HOSTILE, REFUSED, SCHEMAS } from './schemas.mjs';

const ROUNDS = Number(process.env.CALLA_FORM_ROUNDS ?? 1); // 1: what every change has time for
const SEED = Number(process.env.CALLA_FORM_SEED ?? 1);
const COMPILE_MS = 2000 * Number(process.env.CALLA_TEST_PATIENCE ?? 1);

let probe, vocabulary;
before(() => {
  const model = process.env.CALLA_FORM_MODEL ?? `${required('CALLA_MODELS')}/pocket`;
  probe = new Probe(model);
  vocabulary = new Vocabulary(model);
});
const tally = { walks: 0, ended: 0, documents: 0, valid: 0 };
after(async () => {
  console.log(JSON.stringify(tally));
  assert.equal(await probe.stop(), 0);
});

async function open(schema, more) {
  const opened = await probe.schema(schema, more);
  assert.equal(opened.message, undefined);
}

describe('random ways through the masks end in valid documents', () => {
  for (const [name, schema] of Object.entries(SCHEMAS))
    test(name, async () => {
      await open(schema);
      const valid = validator(schema);
      const walks = 10 * ROUNDS;
      let ended = 0;
      for (let i = 0; i < walks; i++) {
        const thinking = i % 3 === 0;
        const walk = await probe.ask({ op: 'walk', seed: SEED * 1000003 + i, hurry: 1 + ((i * 7) % 60), most: 1500, thinking });
        tally.walks++;
        if (!walk.ended) continue;
        tally.ended++;
        ended++;
        let value;
        assert.doesNotThrow(() => (value = JSON.parse(walk.text)), `not JSON: ${JSON.stringify(walk.text)}`);
        assert.ok(valid(value), `${walk.text}: ${JSON.stringify(valid.errors)}`);
        assert.ok(await probe.takesIds(vocabulary.cut(walk.text.trim(), new Random(i))), `not taken at another cut: ${walk.text}`);
      }
      assert.ok(ended >= walks / 8, `${ended} of ${walks} ended`); // it may take long until chance finds what a pattern wants
    });
});

describe('documents are taken if and only if they are valid', () => {
  for (const [name, schema] of Object.entries(SCHEMAS))
    test(name, async () => {
      await open(schema);
      const valid = validator(closed(schema)), random = new Random(SEED), seen = new Set();
      const plain = /integer|[mM](in|ax)imum/.test(JSON.stringify(schema));
      let n_valid = 0;
      for (let i = 0; i < 60 * ROUNDS; i++) {
        const value = near(schema, random), text = JSON.stringify(value);
        if (seen.has(text)) continue;
        if (plain && /\de[-+]\d/.test(text)) continue; // integers and numbers within bounds have no exponent
        seen.add(text);
        // ajv takes more than RFC 3339 has and more than calla writes: offsets without a colon, small letters, blanks for the T
        if (schema.format === 'date-time' && /[-+]\d\d(\d\d)?"|\d(\s|\\[nrt]|t)\d|z"/.test(text)) continue;
        const expected = valid(JSON.parse(text));
        n_valid += expected;
        tally.documents++;
        tally.valid += expected;
        assert.equal(await probe.takes(text), expected, text);
        if (expected || i % 4 === 0) assert.equal(await probe.takesIds(vocabulary.cut(text, random)), expected, `${text}, cut at random`);
      }
      assert.ok(n_valid > 0);
    });
});

describe('a token is allowed if and only if its bytes are', () => {
  for (const [name, schema] of Object.entries(SCHEMAS))
    test(name, async () => {
      await open(schema);
      for (let i = 0; i < 3 * ROUNDS; i++) {
        const { ids } = await probe.ask({ op: 'walk', seed: SEED * 77 + i, hurry: 12, most: 30 });
        const before = ids.slice(0, new Random(SEED + i).below(ids.length));
        const { wrong } = await probe.ask({ op: 'bytes', ids: before, n: 200, seed: i });
        assert.deepEqual(wrong.map((id) => vocabulary.written[id]), [], `behind ${before.map((id) => vocabulary.written[id]).join('')}`);
      }
    });
});

// [a name of SCHEMAS, a text, whether it is taken]
const TEXTS = [
  ['other keys', '{"a":1,"x":null}', false], // not named
  ['other keys of any type', '{"a":1,"x":null}', true],
  ['other keys of any type', '{"a":1,"a":2}', false],
  ['other keys of any type', '{"a":1,"a":"x"}', false],
  ['other keys of any type', '{"a":1,"\\u0061":"x"}', false],
  ['other keys of any type', '{"a":1,"\\u0061b":1}', false], // "ab" in other letters
  ['other keys of any type', '{"a":1,"abc":1,"aba":{}}', true],
  ['other keys of a type', '{"b":1,"a":2}', false],
  ['required keys', '{"b":"x","a":1,"c":true}', false], // not in order
  ['required keys', '{ "a": 1, "b": "x", "c": true }', true],
  ['required keys', '{\n  "a": 1,\n  "b": "x",\n  "c": true\n}', true],
  ['required keys', '{"a":1,"b":"x","c":true}}', false],
  ['required keys', '{"a":1,"b":"x","c":true,}', false],
  ['required keys', '{"a":01,"b":"x","c":true}', false],
  ['required keys', '{"a":-0,"b":"x","c":true}', false], // an integer is written in one way
  ['required keys', '{"a":1,"b":"\\ud83e\\udd80","c":true}', true],
  ['required keys', '{"a":1,"b":"\\ud83e","c":true}', false], // half of a pair
  ['required keys', '{"a":1,"b":"\\udd80","c":true}', false],
  ['required keys', '{"a":1,"b":"\\x41","c":true}', false],
  ['required keys', '{"a":1,"b":"a\nb","c":true}', false],
  ['string', '"\\/\\b\\f\\n\\r\\t\\"\\\\\\u00e9"', true],
  ['string', '"\u007f"', true],
  ['string', '"\u0000"', false],
  ['number', '1.', false],
  ['number', '.5', false],
  ['number', '+1', false],
  ['number', '1e5', true],
  ['number', '1E-05', true],
  ['number', 'NaN', false],
  ['integer', '1.5', false],
  ['string lengths', '"\\n\\n"', true], // two characters
  ['string lengths', '"\\n"', false],
  ['string lengths', '"🦀🦀🦀🦀🦀"', true],
  ['string lengths', '"🦀🦀🦀🦀🦀🦀"', false],
  ['string lengths', '"\\ud83e\\udd80"', false], // one
  ['pattern', '"a\\u0062"', false], // what a pattern looks at is written plainly
  ['anyOf that overlaps', '{"a":1}', true],
  ['anyOf that overlaps', '{"a":1,"c":"x"}', true],
  ['anyOf that overlaps', '{"a":1.5,"c":"x"}', true],
  ['anyOf that overlaps', '{"a":1.5,"b":"x"}', false],
  ['date', '"2024-02-30"', false],
  ['date', '"2023-02-29"', false],
  ['date', '"2024-02-29"', true],
  ['uuid', '"123e4567-e89b-12d3-a456-42661417400"', false],
  ['const', '{"n":[1,2,3],"type":"fixed"}', false], // not in order
];
describe('texts', () => {
  for (const [name, text, taken] of TEXTS)
    test(`${name}: ${text}`, async () => {
      await open(SCHEMAS[name]);
      assert.equal(await probe.takes(text), taken);
      for (let i = 0; i < 3; i++) assert.equal(await probe.takesIds(vocabulary.cut(text, new Random(i))), taken);
    });
});

describe('what is not understood is refused by name', () => {
  for (const [name, [schema, keyword]] of Object.entries(REFUSED))
    test(name, async () => {
      const { message, status } = await probe.schema(schema);
      assert.ok(message, 'it was compiled');
      assert.ok(message.includes(keyword), message);
      assert.ok(status);
    });
});

const KEYWORDS = /pattern|(min|max)(Items|Length)|enum|anyOf|allOf|items|prefixItems|properties|required|\$ref|minimum|maximum|nesting deeper|admits no answer/;
describe('schemas that would take too much', () => {
  for (const [name, [schema, keyword]] of Object.entries(HOSTILE))
    test(name, async () => {
      const { message, ms } = await probe.schema(schema());
      assert.ok(ms < COMPILE_MS, `${ms} ms`);
      if (keyword) assert.ok(message, 'it was compiled');
      if (message) return assert.match(message, keyword ? new RegExp(keyword.replace('$', '\\$')) : KEYWORDS);
      for (let i = 0; i < 4; i++) {
        const walk = await probe.ask({ op: 'walk', seed: i, hurry: 20, most: 60 });
        assert.ok(walk.ms < COMPILE_MS, `${walk.ids.length} tokens took ${walk.ms} ms`);
      }
    });
});
