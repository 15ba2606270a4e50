// Masks compared with those of xgrammar, step by step along valid documents.  Where the two differ, a token is followed to an end of the
// document on the side that allows it:
//   only ours allows it: the document is valid (ours is right to);
//   only theirs allows it: the document is not valid, or it is one of those that docs/structured.md leaves out: see `narrower` below.
// Anything else is an error of ours.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { near } from './generate.mjs';
import { closed, Probe, Random, required, validator, Vocabulary } from './probe.mjs';
import { SCHEMAS } from './schemas.mjs';
import { TOOLS } from './tools.mjs';
import { Other } from './xgrammar.mjs';

const ROUNDS = Number(process.env.CALLA_FORM_ROUNDS ?? 1);
const SAMPLES = 6; // of differing tokens in one mask, on each side
let probe, vocabulary, other, stop;
const tally = { masks: 0, equal: 0, tokens: { only_ours: 0, only_theirs: 0 }, why: {} };
before(async () => {
  const model = process.env.CALLA_FORM_MODEL ?? `${required('CALLA_MODELS')}/pocket`;
  probe = new Probe(model);
  vocabulary = new Vocabulary(model);
  stop = vocabulary.added.get('<|im_end|>');
  other = await Other.open(vocabulary, stop);
});
after(async () => {
  console.log(JSON.stringify(tally, null, 1));
  assert.equal(await probe.stop(), 0);
});

const has = (words, id) => (words[id >> 5] >>> (id & 31)) & 1;

async function our_mask(ids) {
  const { mask } = await probe.ask({ op: 'mask', ids });
  return Uint32Array.from({ length: mask.length / 8 }, (_, i) => parseInt(mask.slice(8 * i, 8 * i + 8), 16));
}

function differing(words, without) {
  const ids = [];
  for (let i = 0; i < words.length; i++)
    for (let left = words[i] & ~without[i]; left; left &= left - 1) {
      const id = 32 * i + 31 - Math.clz32(left & -left);
      if (vocabulary.written[id] !== undefined && !vocabulary.is_added(id)) ids.push(id);
    }
  return ids;
}

const text_of = (ids) => Buffer.concat(ids.filter((id) => id !== stop).map((id) => vocabulary.bytes(id))).toString();

// A way from `ids` to an end: preferably by what closes things.
async function finish(ids, mask_of, random) {
  const closers = ['"', '}', ']', '0', '1', 'a', ':', ',', 'e', 'n', 'u', 'l', 't', 'r', '-'].map((c) => vocabulary.id.get(c));
  ids = [...ids];
  for (let steps = 0; steps < 150; steps++) {
    const words = await mask_of(ids);
    if (has(words, stop)) return ids;
    const open = closers.filter((id) => has(words, id));
    const all = open.length ? open : [...vocabulary.id.values()].filter((id) => has(words, id));
    if (!all.length) return null;
    ids.push(random.below(3) || !open.length ? all[0] : random.of(all));
  }
  return null;
}

async function their_mask(grammar, ids) {
  const matcher = await other.matcher(grammar);
  for (const id of ids) assert.ok(matcher.acceptToken(id));
  const mask = Uint32Array.from(await matcher.getNextTokenBitmask());
  matcher.dispose();
  return mask;
}

const count = (why) => (tally.why[why] = (tally.why[why] ?? 0) + 1);

async function compare(name, schema) {
  if ((await probe.schema(schema)).message !== undefined) return count('refused by us');
  let grammar;
  try {
    grammar = await other.compile(schema);
  } catch {
    return count('refused by them');
  }
  const valid = validator(schema), named = validator(closed(schema)), random = new Random(5);
  const narrower = [
    ['not valid', (document, value) => !valid(value)],
    ['half a surrogate pair', (document) => /\\ud[89a-f]/i.test(document)],
    ['\\u0000', (document) => document.includes('\\u0000')],
    ['not UTF-8', (document) => document.includes('\ufffd')],
    ['a property that the schema does not name', (document, value) => !named(value)],
    ['white space, escapes, numbers or keys in another form', (document, value) => JSON.stringify(value) !== document],
  ];
  for (let i = 0, documents = 0; i < 200 && documents < 2 * ROUNDS; i++) {
    const text = JSON.stringify(near(schema, random));
    if (!valid(JSON.parse(text)) || text.length > 400) continue;
    documents++;
    const { ids } = await probe.ask({ op: 'encode', text });
    for (let at = 0; at <= ids.length; at++) {
      const before = ids.slice(0, at);
      const ours = await our_mask(before);
      let theirs;
      try {
        theirs = await their_mask(grammar, before);
      } catch {
        count('they refuse a valid document');
        break;
      }
      tally.masks++;
      const only_ours = differing(ours, theirs), only_theirs = differing(theirs, ours);
      tally.equal += !only_ours.length && !only_theirs.length;
      tally.tokens.only_ours += only_ours.length;
      tally.tokens.only_theirs += only_theirs.length;
      for (let n = 0; n < SAMPLES && only_ours.length; n++) {
        const end = await finish([...before, random.of(only_ours)], our_mask, random);
        if (!end) { count('only ours: no end found'); continue; }
        const document = text_of(end);
        assert.ok(valid(JSON.parse(document)), `${name}: ${document}`);
        count('only ours: valid');
      }
      for (let n = 0; n < SAMPLES && only_theirs.length; n++) {
        const end = await finish([...before, random.of(only_theirs)], (path) => their_mask(grammar, path), random);
        if (!end) { count('only theirs: no end found'); continue; }
        const document = text_of(end);
        let value;
        try {
          value = JSON.parse(document);
        } catch {
          count('only theirs: not JSON');
          continue;
        }
        const why = narrower.find(([, holds]) => holds(document, value));
        if (why) { count(`only theirs: ${why[0]}`); continue; }
        assert.fail(`${name}: only they take ${document}`);
      }
    }
  }
}

describe('masks and those of xgrammar', () => {
  for (const [name, schema] of Object.entries(SCHEMAS)) test(name, () => compare(name, schema));
  for (const tool of TOOLS) test(`arguments of ${tool.function.name}`, () => compare(tool.function.name, tool.function.parameters));
});
