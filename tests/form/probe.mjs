// probe.mjs: form_probe as an object, and what its answers are compared with.
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import Ajv from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';

export function required(name) {
  const value = process.env[name];
  if (!value) throw new Error(`set ${name}: the build runs this test by  meson test --suite form`);
  return value;
}

// One form_probe; ask(command) resolves to its answer.  Commands are answered in order.
export class Probe {
  constructor(model = `${required('CALLA_MODELS')}/pocket`) {
    this.waiting = [];
    this.child = spawn(required('CALLA_FORM_PROBE'), [model], { stdio: ['pipe', 'pipe', 'inherit'] });
    createInterface({ input: this.child.stdout }).on('line', (line) => this.waiting.shift().resolve(JSON.parse(line)));
    this.child.stdin.on('error', () => {}); // the program's end says more
    this.ended = new Promise((resolve) =>
      this.child.once('exit', (code, signal) => {
        for (const { command, reject } of this.waiting.splice(0))
          reject(new Error(`form_probe ended (${code ?? signal}) on ${JSON.stringify(command).slice(0, 2000)}`));
        resolve(code);
      }),
    );
  }

  ask(command) {
    return new Promise((resolve, reject) => {
      this.waiting.push({ command, resolve, reject });
      this.child.stdin.write(JSON.stringify(command) + '\n');
    });
  }

  // Compiles a schema; `more`: other fields of the command.  What it answers has a message if it was refused.
  schema(schema, more = {}) {
    return this.ask({ op: 'open', kind: 'json_schema', strict: true, source: JSON.stringify(schema), ...more });
  }

  // Whether the open form takes the text as a whole, at the tokenizer's own cut.
  async takes(text, more = {}) {
    const { ids } = await this.ask({ op: 'encode', text });
    return this.takesIds(ids, more);
  }

  async takesIds(ids, more = {}) {
    const tried = await this.ask({ op: 'try', ids, ...more });
    return tried.taken === ids.length && tried.stop;
  }

  stop() {
    this.child.stdin.end();
    return this.ended;
  }
}

// splitmix-like: small, seeded, the same everywhere.
export class Random {
  constructor(seed) {
    this.state = seed >>> 0;
  }
  next() {
    this.state = (this.state + 0x9e3779b9) >>> 0;
    let z = this.state;
    z = Math.imul(z ^ (z >>> 16), 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    return ((z ^ (z >>> 15)) >>> 0) / 2 ** 32;
  }
  below(n) {
    return Math.floor(this.next() * n);
  }
  of(list) {
    return list[this.below(list.length)];
  }
}

// The tokens of a tokenizer.json, so that texts can be cut in other ways than the tokenizer does.
export class Vocabulary {
  constructor(model) {
    const json = JSON.parse(readFileSync(`${model}/tokenizer.json`, 'utf8'));
    const bytes = new Map(); // byte-level alphabet → byte
    for (let b = 0, other = 0; b < 256; b++) {
      const printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      bytes.set(String.fromCharCode(printable ? b : 0x100 + other++), b);
    }
    this.added = new Map(json.added_tokens.map((token) => [token.content, token.id]));
    this.written = []; // [id] as tokenizer.json writes it
    this.latin1 = []; // [id] bytes, one character each
    this.id = new Map(); // the other way around
    for (const [written, id] of Object.entries(json.model.vocab)) {
      this.written[id] = written;
      const latin1 = Array.from(written, (c) => String.fromCharCode(bytes.get(c) ?? 0)).join('');
      this.id.set(latin1, id);
      this.latin1[id] = latin1;
    }
    for (const token of json.added_tokens) this.latin1[token.id] = this.written[token.id] = token.content;
  }

  bytes(id) {
    return Buffer.from(this.latin1[id], 'latin1');
  }

  is_added(id) {
    return this.added.get(this.written[id]) === id;
  }

  // Text, a string or a Buffer, in tokens cut at random.  Added tokens' texts stay letters.
  cut(text, random) {
    const latin1 = Buffer.from(text).toString('latin1');
    const ids = [];
    for (let at = 0; at < latin1.length; ) {
      const fits = [];
      for (let n = 1; n <= Math.min(12, latin1.length - at); n++) {
        const id = this.id.get(latin1.slice(at, at + n));
        if (id !== undefined) fits.push([id, n]);
      }
      const [id, n] = random.of(fits);
      ids.push(id);
      at += n;
    }
    return ids;
  }
}

// Properties that a schema does not name are not written, unless it says something of them ("additionalProperties"): what it leaves open
// is closed for the validator.
export function closed(schema) {
  if (!(schema.properties || schema.allOf) || schema.additionalProperties !== undefined) return schema;
  const named = Object.fromEntries((schema.required ?? []).map((key) => [key, true]));
  return { ...schema, properties: { ...named, ...schema.properties }, unevaluatedProperties: false };
}

export function validator(schema) {
  const ajv = new Ajv({ strict: false, allErrors: false, validateFormats: true, logger: false });
  addFormats(ajv);
  return ajv.compile(schema);
}
