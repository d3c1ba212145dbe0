// Node's HTTP clients: several requests on one connection. Arguments: the client, the base address, a name;
// NODE_EXTRA_CA_CERTS names the trusted authority.
import http from 'node:http';
import http2 from 'node:http2';
import https from 'node:https';

const [kind, base, name] = process.argv.slice(2);
const upload = () => Array.from({ length: 10 }, () => Buffer.alloc(10_000, 'u'));

function tell(step, status, version, header, text) {
  const told = [header('weir-wait-ms') ?? '', header('retry-after') ?? ''];
  console.log([step, status, version, ...told, status === 200 ? text : ''].join('|'));
}

// One socket: a second one would wait for it, and a closed one is not used again.
function overHttp() {
  const secure = base.startsWith('https:');
  const agent = new (secure ? https : http).Agent({ keepAlive: true, maxSockets: 1 });
  let asked = 0;
  const ask = (step, method = 'GET', pieces = []) => new Promise((resolve, reject) => {
    const headers = { 'x-client': name };
    const request = (secure ? https : http).request(`${base}/${step}`, { method, headers, agent });
    request.on('error', reject);
    request.on('response', async (response) => {
      let text = '';
      for await (const piece of response) text += piece;
      if (asked++ > 0 && !request.reusedSocket) reject(new Error('another connection'));
      tell(step, response.statusCode, response.httpVersion, (key) => response.headers[key], text);
      resolve();
    });
    for (const piece of pieces) request.write(piece);
    request.end();
  });
  return { ask, close: () => agent.destroy() };
}

function overHttp2() {
  const session = http2.connect(base);
  const ask = (step, method = 'GET', pieces = []) => new Promise((resolve, reject) => {
    const stream = session.request({ ':path': `/${step}`, ':method': method, 'x-client': name });
    let head = {};
    let text = '';
    stream.on('error', reject);
    stream.on('response', (headers) => { head = headers; });
    stream.on('data', (piece) => { text += piece; });
    stream.on('end', () => {
      tell(step, head[':status'], '2', (key) => head[key], text);
      resolve();
    });
    for (const piece of pieces) stream.write(piece);
    stream.end();
  });
  session.on('error', (error) => { throw error; });
  return { ask, close: () => session.close() };
}

function overFetch() {
  const ask = async (step, method = 'GET', pieces = []) => {
    const body = pieces.length === 0 ? undefined : new ReadableStream({
      start(controller) {
        for (const piece of pieces) controller.enqueue(piece);
        controller.close();
      },
    });
    const response = await fetch(`${base}/${step}`, { method, body, duplex: 'half', headers: { 'x-client': name } });
    tell(step, response.status, '1.1', (key) => response.headers.get(key), await response.text());
  };
  return { ask, close: () => {} };
}

const { ask, close } = { http: overHttp, http2: overHttp2, fetch: overFetch }[kind]();
await ask('hello');
await ask('hello', 'HEAD');
await ask('words', 'POST', [Buffer.from('some words')]);
await ask('upload', 'POST', upload());
for (let index = 0; index < 3; index += 1) await ask('waits');
await ask('refuses');
await ask('refuses');
await ask('hello');
close();
