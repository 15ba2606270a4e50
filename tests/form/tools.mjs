// tools.mjs: tools as coding agents declare them: names and types of arguments.
const s = { type: 'string' }, n = { type: 'number' }, i = { type: 'integer' }, b = { type: 'boolean' };
const list = (items, more = {}) => ({ type: 'array', items, ...more });
const one = (...values) => ({ type: 'string', enum: values });
const tool = (name, properties, required = Object.keys(properties), more = {}) => ({
  type: 'function',
  function: { name, parameters: { type: 'object', properties, required, additionalProperties: false, ...more } },
});
const object = (properties, required = Object.keys(properties)) => ({ type: 'object', properties, required, additionalProperties: false });

export const TOOLS = [
  tool('Read', { file_path: s, offset: n, limit: n, pages: s }, ['file_path']),
  tool('Write', { file_path: s, content: s }),
  tool('Edit', { file_path: s, old_string: s, new_string: s, replace_all: { type: 'boolean', default: false } }, ['file_path', 'old_string', 'new_string']),
  tool('MultiEdit', { file_path: s, edits: list(object({ old_string: s, new_string: s, replace_all: b }, ['old_string', 'new_string']), { minItems: 1 }) }),
  tool('Bash', { command: s, timeout: n, description: s, run_in_background: b }, ['command']),
  tool('BashOutput', { bash_id: s, filter: s, block: b, wait_up_to: n }, ['bash_id']),
  tool('KillShell', { shell_id: s }),
  tool('Grep', {
    pattern: s, path: s, glob: s, output_mode: one('content', 'files_with_matches', 'count'), '-B': n, '-A': n, '-C': n, '-n': b, '-i': b, type: s,
    head_limit: n, multiline: b,
  }, ['pattern']),
  tool('Glob', { pattern: s, path: s }, ['pattern']),
  tool('LS', { path: s, ignore: list(s) }, ['path']),
  tool('TodoWrite', { todos: list(object({ content: { type: 'string', minLength: 1 }, status: one('pending', 'in_progress', 'completed'), activeForm: { type: 'string', minLength: 1 } })) }),
  tool('Task', { description: s, prompt: s, subagent_type: s, model: one('small', 'medium', 'large'), resume: s }, ['description', 'prompt', 'subagent_type']),
  tool('WebFetch', { url: { type: 'string', format: 'uri' }, prompt: s }),
  tool('WebSearch', { query: { type: 'string', minLength: 2 }, allowed_domains: list(s), blocked_domains: list(s) }, ['query']),
  tool('NotebookEdit', { notebook_path: s, cell_id: s, new_source: s, cell_type: one('code', 'markdown'), edit_mode: one('replace', 'insert', 'delete') }, ['notebook_path', 'new_source']),
  tool('AskUserQuestion', {
    questions: list(object({ question: s, header: s, options: list(object({ label: s, description: s }), { minItems: 2, maxItems: 4 }), multiSelect: b }), { minItems: 1, maxItems: 4 }),
    answers: { type: 'object', additionalProperties: s },
  }, ['questions']),
  tool('ExitPlanMode', { plan: s, allowedPrompts: list(object({ tool: one('Bash'), prompt: s })) }, []),
  tool('shell', { command: list(s), workdir: s, timeout_ms: n, with_escalated_permissions: b, justification: s }, ['command']),
  tool('exec_command', { cmd: s, yield_time_ms: n, max_output_tokens: n, login: b, shell: s, workdir: s }, ['cmd']),
  tool('write_stdin', { session_id: n, chars: s, yield_time_ms: n, max_output_tokens: n }, ['session_id']),
  tool('apply_patch', { input: s }),
  tool('update_plan', { explanation: s, plan: list(object({ step: s, status: one('pending', 'in_progress', 'completed') })) }, ['plan']),
  tool('view_image', { path: s }),
  tool('read_many_files', { paths: list({ type: 'string', minLength: 1 }, { minItems: 1 }), include: list(s), exclude: list(s), recursive: b, useDefaultExcludes: b,
    file_filtering_options: object({ respect_git_ignore: b, respect_qwen_ignore: b }, []) }, ['paths']),
  tool('replace', { file_path: s, old_string: s, new_string: s, expected_replacements: { type: 'number', minimum: 1 } }, ['file_path', 'old_string', 'new_string']),
  tool('save_memory', { fact: s, scope: one('global', 'project') }, ['fact']),
  tool('str_replace_based_edit_tool', { command: one('view', 'create', 'str_replace', 'insert'), path: s, file_text: s, old_str: s, new_str: s, insert_line: i, view_range: list(i, { minItems: 2, maxItems: 2 }) }, ['command', 'path']),
  tool('browser_action', { action: one('launch', 'click', 'type', 'scroll_down', 'scroll_up', 'close'), url: s, coordinate: { type: 'string', pattern: '^\\d+,\\d+$' }, text: s }, ['action']),
  tool('execute_sql', { database: s, query: s, parameters: list({ anyOf: [s, n, b, { type: 'null' }] }), limit: { type: 'integer', minimum: 1, maximum: 1000 } }, ['query']),
  tool('create_issue', { title: s, body: s, labels: list(s), assignees: list(s), milestone: { type: ['integer', 'null'] }, draft: b }, ['title']),
  tool('get_time', {}),
  tool('anything', {}, [], { additionalProperties: true }),
  tool('configure', { settings: { type: 'object', additionalProperties: { anyOf: [s, n, b, list(s)] } }, dry_run: { anyOf: [b, { type: 'null' }] } }, ['settings']),
  tool('move', { to: object({ x: n, y: n, z: n }, ['x', 'y']), speed: { type: 'integer', minimum: 0, maximum: 10 }, mode: { enum: ['walk', 'run', 3, null] } }, ['to']),
];
