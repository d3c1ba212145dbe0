// Uploads that weir refuses while they are sent: each HTTP client of Node must read the refusal. See uploads.py.
import http from "node:http";
import http2 from "node:http2";
import https from "node:https";
import { Readable } from "node:stream";

const BODY = Buffer.alloc(30_000_000);
const UPLOADS = 15;
const PIECE = 64 * 1024;

function text(stream) {
  return new Promise((resolve, reject) => {
    let read = "";
    stream.setEncoding("utf8").on("data", (piece) => (read += piece)).on("end", () => resolve(read)).on("error", reject);
  });
}

// A body as most programs send it. One buffer of more than 10 MB is refused by Node's own bound of a session's memory, `maxSessionMemory`.
function* pieces() {
  for (let at = 0; at < BODY.length; at += PIECE) yield BODY.subarray(at, at + PIECE);
}

async function byFetch(url) {
  const answer = await fetch(url, { method: "POST", body: BODY });
  return [answer.status, await answer.text()];
}

function byHttp(url) {
  return new Promise((resolve, reject) => {
    const request = (url.startsWith("https") ? https : http).request(url, { method: "POST" });
    request.on("response", (answer) => text(answer).then((read) => resolve([answer.statusCode, read]), reject));
    request.on("error", reject);
    request.end(BODY);
  });
}

function byHttp2(url) {
  return new Promise((resolve, reject) => {
    const { origin, pathname } = new URL(url);
    const session = http2.connect(origin);
    const request = session.request({ ":method": "POST", ":path": pathname });
    request.on("response", (head) => text(request).then((read) => resolve([head[":status"], read]), reject));
    request.on("error", reject);
    request.on("close", () => session.close());
    session.on("error", reject);
    Readable.from(pieces()).pipe(request);
  });
}

// Returns the flows by their names.
export function uploads(require) {
  const byAxios = async (url) => {
    const always = { validateStatus: () => true, responseType: "text", maxBodyLength: Infinity, transformResponse: (body) => body };
    const answer = await require("axios").post(url, BODY, always);
    return [answer.status, answer.data];
  };
  const clients = { fetch: byFetch, http: byHttp, axios: byAxios, "http2, over HTTP/2": byHttp2 };
  const flow = (upload) => async (base) => {
    const isRead = async () => {
      const [status, read] = await upload(`${base}/text`).catch(() => [0, ""]);
      return status === 429 && read.includes("weir, the proxy in front of this API");
    };
    // The first upload takes the only permit.
    await isRead();
    let read = 0;
    for (let number = 0; number < UPLOADS; number++) read += await isRead();
    if (read !== UPLOADS) throw new Error(`${read} of ${UPLOADS} were read`);
    return "ok";
  };
  return Object.fromEntries(
    Object.entries(clients).map(([name, upload]) => [`${name}: ${UPLOADS} refused uploads of 30 MB`, flow(upload)]),
  );
}
