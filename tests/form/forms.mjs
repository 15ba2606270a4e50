// forms.mjs: the largest forms that there are here, a line each, for tests/text/measure_masks: of tools and of schemas.mjs together, and of
// what is understood of JSON schema's test suite.
//
// usage: CALLA_MODELS=models CALLA_FORM_PROBE=build/tests/form/form_probe node tests/form/forms.mjs > FORMS
import suite from 'json-schema-test-suite';
import { Probe } from './probe.mjs';
import { SCHEMAS } from './schemas.mjs';
import { TOOLS } from './tools.mjs';

const LARGEST = 30; // of each
const bytes = ({ tools, schema }) => JSON.stringify(tools ?? schema).length;
const print = (forms) => forms.sort((a, b) => bytes(b) - bytes(a)).slice(0, LARGEST).forEach((form) => console.log(JSON.stringify(form)));

print([
  { name: 'all tools', tools: TOOLS },
  ...TOOLS.map((tool) => ({ name: `tool ${tool.function.name}`, tools: [tool] })),
  ...Object.entries(SCHEMAS).map(([name, schema]) => ({ name, schema })),
]);
const probe = new Probe(), understood = [];
for (const { name, schemas } of suite.draft4())
  for (const { description, schema } of schemas) if ((await probe.schema(schema)).message === undefined) understood.push({ name: `suite ${name}: ${description}`, schema });
print(understood);
await probe.stop();
