// xgrammar.mjs: the other implementation, on the same tokenizer.
import { copyFileSync, mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

// Its only file is CommonJS that package.json calls a module.
export function loadXgrammar() {
  const require = createRequire(import.meta.url), folder = mkdtempSync(join(tmpdir(), 'xgrammar-'));
  try {
    copyFileSync(require.resolve('@mlc-ai/web-xgrammar').replace(/index\.(c?js)$/, 'index.js'), join(folder, 'index.cjs'));
    return require(join(folder, 'index.cjs'));
  } finally {
    rmSync(folder, { recursive: true });
  }
}

export class Other {
  static async open(vocabulary, stop) {
    const other = new Other();
    other.library = loadXgrammar();
    other.size = vocabulary.written.length;
    const written = Array.from(vocabulary.written, (token) => token ?? '');
    other.tokenizer = await other.library.TokenizerInfo.createTokenizerInfo(written, 'byte_level', false, written.length, [stop]);
    other.compiler = await other.library.GrammarCompiler.createGrammarCompiler(other.tokenizer);
    return other;
  }

  // White space as it comes, keys that the schema does not name where it does not forbid them.
  compile(schema) {
    return this.compiler.compileJSONSchema(JSON.stringify(schema), true, undefined, undefined, false);
  }

  matcher(grammar) {
    return this.library.GrammarMatcher.createGrammarMatcher(grammar);
  }
}
