// speed.mjs: what masks cost: the time of each that is new to a form and of each that it has met before, on ways through the largest
// schemas of real tools and of the test suite of JSON schema.
//
// usage: CALLA_FORM_PROBE=build/tests/form/form_probe node tests/form/speed.mjs MODEL_DIR
import suite from 'json-schema-test-suite';
import { Probe } from './probe.mjs';
import { SCHEMAS } from './schemas.mjs';
import { TOOLS } from './tools.mjs';

const LARGEST = 30, WALKS = 20;
const probe = new Probe(process.argv[2]);
const commands = [
  ['all tools', { op: 'open', tools: TOOLS, choice: 'required' }],
  ...TOOLS.map((tool) => [`tool ${tool.function.name}`, { op: 'open', tools: [tool], choice: 'required' }]),
  ...Object.entries({ ...SCHEMAS }).map(([name, schema]) => [name, schema]),
  ...suite.draft4().flatMap((file) => file.schemas.map(({ description, schema }) => [`suite ${description}`, schema])),
].map(([name, what]) => [name, what.op ? what : { op: 'open', kind: 'json_schema', source: JSON.stringify(what), strict: true }]);

const micros = (ns) => (ns / 1000).toFixed(1).padStart(9);
const at = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0;
const row = (name, ms, fresh, again) => {
  const [a, b] = [fresh, again].map((times) => [...times].sort((x, y) => x - y));
  console.log(`${name.slice(0, 40).padEnd(40)} ${ms.toFixed(1).padStart(8)} ${[0.5, 0.99, 1].map((p) => micros(at(a, p))).join('')} ${[0.5, 0.99, 1].map((p) => micros(at(b, p))).join('')}`);
};

const begun = performance.now();
await probe.ask({ op: 'encode', text: '' });
console.log(`tokenizer: ${(performance.now() - begun).toFixed(0)} ms`);
const first = await probe.ask({ op: 'open', kind: 'json_object' });
await probe.ask({ op: 'try', ids: [] });
console.log(`first form, with what all forms share: ${first.ms.toFixed(0)} ms`);
console.log(`${''.padEnd(40)}  compile       new: median, p99, most (µs)     met before`);
const all = { fresh: [], again: [] };
const largest = commands.sort(([, a], [, b]) => JSON.stringify(b).length - JSON.stringify(a).length);
let n = 0;
for (const [name, command] of largest) {
  const { ms, message } = await probe.ask(command);
  if (message) continue;
  const fresh = [], again = [];
  for (let seed = 0; seed < WALKS; seed++) {
    const { ids } = await probe.ask({ op: 'walk', seed, hurry: 5 * seed, most: 400 });
    const times = await probe.ask({ op: 'time', ids });
    fresh.push(...times.new);
    again.push(...times.again);
  }
  row(name, ms, fresh, again);
  all.fresh.push(...fresh);
  all.again.push(...again);
  if (++n === LARGEST) break;
}
row(`all ${n}`, 0, all.fresh, all.again);
await probe.stop();
