// forms.mjs: the largest forms of tools, of schemas.mjs and of the test suite of JSON schema, a line each, for tests/text/measure_masks.
//
// usage: node tests/form/forms.mjs > FORMS
import suite from 'json-schema-test-suite';
import { SCHEMAS } from './schemas.mjs';
import { TOOLS } from './tools.mjs';

const LARGEST = 30;
const forms = [
  { name: 'all tools', tools: TOOLS },
  ...TOOLS.map((tool) => ({ name: `tool ${tool.function.name}`, tools: [tool] })),
  ...Object.entries(SCHEMAS).map(([name, schema]) => ({ name, schema })),
  ...suite.draft4().flatMap((file) => file.schemas.map(({ description, schema }) => ({ name: `suite: ${description}`, schema }))),
].map((form) => JSON.stringify(form));
for (const form of forms.sort((a, b) => b.length - a.length).slice(0, LARGEST)) console.log(form);
