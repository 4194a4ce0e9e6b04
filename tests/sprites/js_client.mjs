// What a user of the published npm client does: REST and the HTTP exec on every Node, the exec socket only where the
// global WebSocket takes headers (the client passes its token so). One JSON line a case on standard output.
//
//   js_client.mjs HOME URL TOKEN [WORD ...]
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [home, baseURL, token, ...words] = process.argv.slice(2);
const packages = join(home, 'node_modules', '@fly', 'sprites');
const { exports, main } = createRequire(import.meta.url)(join(packages, 'package.json'));
const entry = exports?.['.']?.import?.default ?? exports?.['.']?.import ?? main;
const { SpritesClient } = await import(pathToFileURL(join(packages, entry)));

const client = new SpritesClient(token, { baseURL });
const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const fresh = (prefix = 'js') => `${prefix}-${randomBytes(6).toString('hex')}`;
const make = () => client.createSprite(fresh());
const DEADLINE = 60_000;

async function drained(stream) {
  const messages = [];
  for await (const message of stream) messages.push(message);
  return messages;
}

async function checkpoint(sprite, comment) {
  const messages = await drained(await sprite.createCheckpoint(comment));
  assert.equal(messages.at(-1).type, 'complete', JSON.stringify(messages));
  return messages.map((m) => /ID: (\S+)/.exec(m.data ?? '')?.[1]).find(Boolean);
}

const rest = {
  async create_get_update_destroy() {
    const name = fresh();
    const made = await client.createSprite(name, { urlSettings: { auth: 'public' }, labels: ['a'] });
    assert.equal(made.name, name);
    assert.match(made.id, /^sprite-/);
    assert.equal((await client.getSprite(name)).id, made.id);
    const changed = await client.updateSprite(name, { labels: ['b'] });
    assert.deepEqual(changed.labels, ['b']);
    assert.equal((await client.checkSprite(name)).status, 'healthy');
    await assert.rejects(client.createSprite(name));
    await made.destroy();
    await assert.rejects(client.getSprite(name));
  },

  async list_goes_through_the_pages() {
    const prefix = fresh('page');
    const names = Array.from({ length: 52 }, (_, n) => `${prefix}-${String(n).padStart(3, '0')}`);
    for (const name of names) await client.createSprite(name);
    const first = await client.listSprites({ prefix });
    assert.equal(first.sprites.length, 50);
    assert.equal(first.hasMore, true);
    assert.deepEqual((await client.listAllSprites(prefix)).map((sprite) => sprite.name), names);
    for (const name of names) await client.deleteSprite(name);
  },

  async files() {
    const sprite = await make();
    const files = sprite.filesystem('/home/sprite');
    const data = randomBytes(200_000);
    await files.writeFile('dir/blob', data);
    assert.deepEqual(await files.readFile('dir/blob'), data);
    await files.mkdir('empty', { recursive: true });
    assert.deepEqual((await files.readdir('.')).sort(), ['dir', 'empty']);
    assert.equal((await files.stat('dir/blob')).size, 200_000);
    await files.rename('dir/blob', 'moved');
    await files.copyFile('moved', 'copied');
    await files.chmod('copied', 0o600);
    assert.equal(await files.exists('dir/blob'), false);
    assert.deepEqual(await files.readFile('copied'), data);
    await files.rm('dir', { recursive: true });
    assert.deepEqual((await files.readdir('.')).sort(), ['copied', 'empty', 'moved']);
  },

  async checkpoint_and_restore() {
    const sprite = await make();
    const files = sprite.filesystem('/home/sprite');
    await files.writeFile('changed', 'one');
    await files.writeFile('deleted', 'two');
    const id = await checkpoint(sprite, 'from js');
    assert.deepEqual((await sprite.listCheckpoints()).map((c) => c.id), ['Current', id]);
    assert.equal((await sprite.getCheckpoint(id)).comment, 'from js');
    await files.writeFile('changed', 'other');
    await files.rm('deleted');
    await files.writeFile('added', 'new');
    const messages = await drained(await sprite.restoreCheckpoint(id));
    assert.equal(messages.at(-1).type, 'complete', JSON.stringify(messages));
    assert.equal(await files.readFile('changed', 'utf8'), 'one');
    assert.equal(await files.readFile('deleted', 'utf8'), 'two');
    assert.deepEqual((await files.readdir('.')).sort(), ['changed', 'deleted']);
  },

  async network_policy() {
    const sprite = await make();
    assert.deepEqual((await sprite.getNetworkPolicy()).rules, []);
    const rules = [{ domain: '*', action: 'deny' }];
    await sprite.updateNetworkPolicy({ rules });
    assert.deepEqual((await sprite.getNetworkPolicy()).rules, rules);
  },

  // Without output: there is only the exit frame, see `joined`.
  async exec_over_http_input_and_code() {
    const sprite = await make();
    const run = (script, input) => sprite.execFileHTTP('sh', ['-c', script], { input, timeout: DEADLINE });
    const done = await run('test "$(cat)" = typed', 'typed');
    assert.deepEqual([done.stdout, done.stderr, done.exitCode], ['', '', 0]);
    await assert.rejects(run('exit 5'), { exitCode: 5 });
    assert.deepEqual(await sprite.listSessions(), []);
  },
};

const joined =
  'output over the HTTP exec of the npm client: it takes one read for one frame, and Node joins chunks that arrive ' +
  'together, so on a busy machine it loses the exit whatever the server does';

// Resolves with all output and the code of a command.
function ended(command) {
  return new Promise((resolve, reject) => {
    const [out, err] = [[], []];
    command.stdout.on('data', (data) => out.push(data));
    command.stderr.on('data', (data) => err.push(data));
    command.on('error', reject);
    command.on('exit', (code) => setImmediate(() => resolve({ code, out: Buffer.concat(out).toString(), err: Buffer.concat(err).toString() })));
  });
}

const sockets = {
  async exec_with_exit_codes() {
    const sprite = await make();
    const done = await ended(sprite.spawn('sh', ['-c', 'echo out; echo err >&2; exit 3']));
    assert.deepEqual(done, { code: 3, out: 'out\n', err: 'err\n' });
  },

  async stdin_and_its_end() {
    const sprite = await make();
    const command = sprite.spawn('wc', ['-c']);
    const over = ended(command);
    await new Promise((resolve) => command.once('spawn', resolve));
    command.stdin.end('x'.repeat(100_000));
    const done = await over;
    assert.deepEqual([done.code, done.out.trim()], [0, '100000']);
  },

  async terminal_and_resize() {
    const sprite = await make();
    const script = 'stty size; read line; stty size; exit 3';
    const command = sprite.spawn('bash', ['-c', script], { tty: true, rows: 31, cols: 99 });
    let resized = false;
    command.stdout.on('data', (data) => {
      if (resized || !String(data).includes('31 99')) return;
      resized = true;
      command.resize(120, 40);
      command.stdin.write('\n');
    });
    const done = await ended(command);
    assert.match(done.out, /31 99[^]*40 120/);
  },

  async session_is_listed_and_killed() {
    const sprite = await make();
    const command = sprite.spawn('sh', ['-c', 'echo up; sleep 600']);
    const over = ended(command);
    await new Promise((resolve) => command.stdout.once('data', resolve));
    const [session] = await sprite.listSessions();
    const messages = await drained(await sprite.killSession(session.id));
    assert.equal(messages.at(-1).type, 'complete', JSON.stringify(messages));
    assert.equal((await over).code, 143);
  },
};

// Whether a header given to the global WebSocket reaches a server.
async function sendsHeaders() {
  if (typeof WebSocket === 'undefined') return 'there is no global WebSocket';
  const server = createServer();
  const seen = new Promise((resolve) => {
    server.on('upgrade', (request, socket) => {
      resolve(request.headers['x-probe'] === 'yes');
      socket.destroy();
    });
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  try {
    const probe = new WebSocket(`ws://127.0.0.1:${server.address().port}/`, { headers: { 'x-probe': 'yes' } });
    probe.addEventListener('error', () => {});
    return (await seen) ? null : 'the global WebSocket drops headers';
  } catch (error) {
    return `the global WebSocket refuses headers: ${error.message}`;
  } finally {
    server.close();
  }
}

async function runAll(cases) {
  for (const [name, test] of Object.entries(cases)) {
    if (words.length > 0 && !words.some((word) => `js: ${name}`.includes(word))) continue;
    const started = Date.now();
    const took = () => (Date.now() - started) / 1000;
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error('it took too long')), DEADLINE);
    });
    try {
      await Promise.race([test(), late]);
      say({ name, took: took() });
    } catch (error) {
      say({ name, took: took(), error: String(error.stack ?? error) });
    }
    clearTimeout(timer);
  }
}

await runAll(rest);
say({ not_run: joined });
const missing = await sendsHeaders();
if (missing) {
  say({ not_run: `the npm client's exec socket (${Object.keys(sockets).join(', ')}): ${missing} on Node ${process.version}` });
} else {
  await runAll(sockets);
}
say({ end: true });
process.exit(0);
