// generate.mjs: random values, near a schema: mostly valid ones, in the order of its keys, and such as miss it by little.
const TEXTS = ['', 'a', 'b', 'ab', 'x1', 'abc', 'A-1', 'hello world', 'line\nend', 'tab\t"quoted" \\ back', 'é', '漢字', '🦀', 'a🦀b', '\u0001', '</parameter>',
  '/src/main.c', 'a.b', '-1', '2024-02-29', '2023-02-29', '2024-13-01', '2024-02-29T12:00:00Z', '2024-02-29T23:59:59.123+02:00',
  '123e4567-e89b-12d3-a456-426614174000', 'someone@example.org', 'not an address', 'null', 'true', '12:30:00Z', 'x'.repeat(40)];
const NUMBERS = [0, -0, 1, -1, 2, 3, 4, 5, 7, 9, 10, 11, 12, 42, 99, 100, 101, 127, 128, 255, 256, 999, 1000, 65535, 65536, -5, -10, -99, -100, -101, 0.5, -0.5, 1.5, 2.25,
  3.1, 9.99, 10.01, 99.9, 100.5, 1e-7, 1.5e-9, 1e21, -2e30, 123456789, 2147483647, 4294967296, 9007199254740991];

const resolve = (root, ref) =>
  ref === '#' ? root : ref.slice(2).split('/').reduce((at, key) => at[decodeURIComponent(key).replaceAll('~1', '/').replaceAll('~0', '~')], root);

function any(random, depth) {
  switch (random.below(depth > 2 ? 5 : 7)) {
    case 0: return null;
    case 1: return random.below(2) === 0;
    case 2: return random.of(NUMBERS);
    case 3:
    case 4: return random.of(TEXTS);
    case 5: return Array.from({ length: random.below(4) }, () => any(random, depth + 1));
    default: return Object.fromEntries(Array.from({ length: random.below(4) }, () => [random.of(TEXTS), any(random, depth + 1)]));
  }
}

const FORMATS = {
  date: ['2024-02-29', '1999-12-31', '2023-04-30', '0000-01-01', '2000-02-29', '1900-02-28'],
  'date-time': ['2024-02-29T12:00:00Z', '1999-12-31T23:59:59.999+02:00', '2023-04-30T00:00:00-11:30'],
  uuid: ['123e4567-e89b-12d3-a456-426614174000', 'FFFFFFFF-0000-0000-0000-00000000000f'],
  email: ['someone@example.org', 'a.b+c@x-y.co.uk', 'A1_b@mail.example.com'],
};

// A character more, less or another one.
function missed(text, random) {
  const letters = [...text], at = random.below(letters.length + 1), other = random.of([...'aZ09-_.:+@ é🦀', ...letters]);
  switch (random.below(3)) {
    case 0: letters.splice(at, 1); break;
    case 1: letters.splice(at, 0, other); break;
    default: letters.splice(at, 1, other);
  }
  return letters.join('');
}

// A string of about the length that the schema wants; of characters that its pattern names.
function string(schema, random) {
  if (random.below(4) === 0) return random.of(TEXTS);
  const examples = schema.examples ?? FORMATS[schema.format];
  if (examples && random.below(4)) return random.below(2) ? random.of(examples) : missed(random.of(examples), random);
  const low = schema.minLength ?? 0;
  const n = low + random.below(Math.min((schema.maxLength ?? low + 6) - low, 20) + 2);
  const letters = schema.pattern ? [...schema.pattern.replace(/[\\^$()|*+?{}[\]]/g, ''), '5', 'z', '-'] : [...'abcxyz019 _-./é漢🦀"\n'];
  return Array.from({ length: n }, () => random.of(letters)).join('');
}

function number(schema, random) {
  const low = schema.minimum ?? schema.exclusiveMinimum, high = schema.maximum ?? schema.exclusiveMaximum;
  const near = low ?? high;
  if (near === undefined || random.below(3) === 0) return random.of(NUMBERS);
  const value = low !== undefined && high !== undefined ? low + (high - low) * random.next() : near + (random.next() - 0.5) * random.of([2, 20, 1000]);
  return random.below(3) === 0 ? random.of([low ?? near, high ?? near, near + 1, near - 1]) : random.below(2) ? Math.round(value) : value;
}

function typeOf(schema, random) {
  if (Array.isArray(schema.type)) return random.of(schema.type);
  if (schema.type) return schema.type;
  if (schema.properties || schema.required || schema.additionalProperties !== undefined) return 'object';
  if (schema.items !== undefined || schema.prefixItems || schema.minItems !== undefined || schema.maxItems !== undefined) return 'array';
  if (schema.pattern || schema.minLength !== undefined || schema.maxLength !== undefined || schema.format) return 'string';
  if (schema.minimum !== undefined || schema.maximum !== undefined || schema.exclusiveMinimum !== undefined || schema.exclusiveMaximum !== undefined) return 'number';
  return undefined;
}

export function near(schema, random, root = schema, depth = 0) {
  if (schema === true || schema === undefined) return any(random, depth);
  if (schema === false) return any(random, 3);
  if (random.below(25) === 0) return any(random, depth); // something else altogether
  if (schema.$ref) return near(depth > 12 ? { type: 'null' } : resolve(root, schema.$ref), random, root, depth + 1);
  if ('const' in schema) return schema.const;
  if (schema.enum) return random.of(schema.enum);
  for (const choice of ['anyOf', 'oneOf'])
    if (schema[choice]) {
      const options = depth > 6 ? [...schema[choice]].sort((a, b) => JSON.stringify(a).length - JSON.stringify(b).length).slice(0, 1) : schema[choice];
      const { [choice]: _, ...rest } = schema;
      return near({ ...rest, ...random.of(options) }, random, root, depth + 1);
    }
  if (schema.allOf) {
    const { allOf, ...rest } = schema;
    const merged = { ...rest, properties: { ...rest.properties }, required: [...(rest.required ?? [])] };
    for (let part of allOf) {
      while (part.$ref) part = resolve(root, part.$ref);
      const { properties, required: names, ...more } = part;
      Object.assign(merged, more, { properties: { ...merged.properties, ...properties }, required: [...merged.required, ...(names ?? [])] });
    }
    return near(merged, random, root, depth);
  }
  switch (typeOf(schema, random)) {
    case 'null': return null;
    case 'boolean': return random.below(2) === 0;
    case 'integer': { const value = Math.trunc(number(schema, random)); return Math.abs(value) < 1e20 ? value : 5; }
    case 'number': return number(schema, random);
    case 'string': return string(schema, random);
    case 'array': {
      const prefix = schema.prefixItems ?? [];
      const low = schema.minItems ?? 0;
      const high = schema.maxItems ?? (schema.items === false ? prefix.length : low + 3);
      const n = depth > 8 ? low : low + random.below(Math.max(0, Math.min(high - low, 6)) + (random.below(20) === 0 ? 2 : 1));
      return Array.from({ length: n }, (_, i) => near(prefix[i] ?? schema.items, random, root, depth + 1));
    }
    case 'object': {
      const object = {};
      for (const [key, value] of Object.entries(schema.properties ?? {})) {
        const wanted = schema.required?.includes(key);
        if (wanted ? random.below(40) > 0 : depth < 8 && random.below(2)) object[key] = near(value, random, root, depth + 1);
      }
      for (const key of schema.required ?? []) if (!(key in object) && !(key in (schema.properties ?? {})) && random.below(40) > 0) object[key] = near(schema.additionalProperties, random, root, depth + 1);
      if (schema.additionalProperties !== undefined && schema.additionalProperties !== false ? random.below(3) === 0 && depth < 8 : random.below(40) === 0)
        for (let n = random.below(3); n >= 0; n--) {
          const key = random.of(TEXTS);
          if (!(key in object) && !(key in (schema.properties ?? {}))) object[key] = near(schema.additionalProperties, random, root, depth + 1);
        }
      return object;
    }
    default: return any(random, depth);
  }
}
