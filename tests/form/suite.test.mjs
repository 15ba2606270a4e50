// The official test suite of JSON schema (draft 4): a schema is understood, and then every verdict is the suite's, or it is refused by a
// keyword that is on the list below.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import suite from 'json-schema-test-suite';
import { Probe } from './probe.mjs';

// Not understood; "exclusiveMinimum": true is draft 4's, later drafts have numbers there.
const REFUSED = ['additionalItems', 'dependencies', 'exclusiveMaximum', 'exclusiveMinimum', 'maxProperties', 'minProperties', 'multipleOf', 'not', 'patternProperties',
  'uniqueItems', 'oneOf', 'allOf', '$ref', 'id', 'format', 'items'];
// Valid, and not taken: why.
const NARROWER = {
  'additional properties are allowed': 'properties that a schema does not name are not written',
  "doesn't invalidate other properties": 'properties that a schema does not name are not written',
  'ignores non-arrays': 'a schema of items without a type is meant for arrays',
  'a bignum is an integer': 'an integer has 64 bits',
  'a negative bignum is an integer': 'an integer has 64 bits',
  'ignores non-objects': 'a schema of properties without a type is meant for objects',
  'root pointer ref, match': 'a schema of properties without a type is meant for objects',
  'root pointer ref, recursive match': 'a schema of properties without a type is meant for objects',
};
const NOT_JSON_TEXT = 'a float is not an integer even without fractional part'; // 1.0, which JSON.stringify writes as 1
let probe;
before(() => (probe = new Probe()));
after(async () => assert.equal(await probe.stop(), 0));

// The value with its keys in the schema's order, others behind.
function ordered(value, schema) {
  if (Array.isArray(value)) return value.map((item) => ordered(item, schema.items ?? {}));
  if (value === null || typeof value !== 'object') return value;
  const all = Object.assign({}, schema.properties, ...['allOf', 'anyOf', 'oneOf'].flatMap((key) => schema[key] ?? []).map((part) => part.properties));
  const keys = [...Object.keys(all).filter((key) => key in value), ...Object.keys(value).filter((key) => !(key in all))];
  return Object.fromEntries(keys.map((key) => [key, ordered(value[key], all[key] ?? {})]));
}

describe('json-schema-test-suite', () => {
  const tally = { understood: 0, refused: 0, verdicts: 0, narrower: 0 };
  after(() => console.log(JSON.stringify(tally)));
  for (const file of suite.draft4())
      for (const group of file.schemas)
        test(`${file.name}: ${group.description}`, async () => {
          const { message } = await probe.schema(group.schema);
          if (message) {
            tally.refused++;
            return assert.ok(REFUSED.some((keyword) => message.includes(keyword)), message);
          }
          tally.understood++;
          for (const { description, data, valid } of group.tests) {
            if (description === NOT_JSON_TEXT) continue;
            tally.verdicts++;
            const taken = await probe.takes(JSON.stringify(ordered(data, group.schema)));
            if (taken !== valid && valid && (NARROWER[description] || NARROWER[`${group.description}, ${description}`])) tally.narrower++;
            else assert.equal(taken, valid, `${description}: ${JSON.stringify(data)}`);
          }
        });
});
