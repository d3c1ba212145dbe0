// The SDKs for Node: how each is pointed at weir, and one call.
//
// `calls.mjs list` prints the table; `calls.mjs run` reads runs from standard input and prints what each did, one JSON document a line.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { uploads } from "./uploads.mjs";

// The modules are in a folder of the build, not above this file.
const require = createRequire(`${process.env.CLIENTS_NODE}/package.json`);

// A call that has not ended after that many milliseconds counts as waiting.
const PATIENCE = 25000;
const AT_ONCE = 6;
// The calls at once of an SDK that waits as many milliseconds, over a limit of one a second.
const PATIENT_CALLS = 8;
const TIMEOUT = 3500;
const BYTES = Buffer.alloc(1 << 20, "weir");

const ERRORS = ["no_route", "unreachable", "silent"];
const hello = [{ role: "user", content: "hello" }];

// `make(base, retries)` returns the call; the other columns are those of `client` in calls.py.
const CLIENTS = [
  {
    client: "OpenAI", limited: ["RateLimitError"],
    make(base, retries, options = {}) {
      const { OpenAI } = require("openai");
      const sdk = new OpenAI({ baseURL: `${base}/v1`, apiKey: "unused", ...(retries ? {} : { maxRetries: 0 }), ...options });
      return async () => (await sdk.chat.completions.create({ model: "m", messages: hello })).choices[0].message.content;
    },
  },
  {
    client: "Anthropic", limited: ["RateLimitError"], errors: "anthropic",
    make(base, retries, options = {}) {
      const { Anthropic } = require("@anthropic-ai/sdk");
      const sdk = new Anthropic({ baseURL: base, apiKey: "unused", ...(retries ? {} : { maxRetries: 0 }), ...options });
      return async () => (await sdk.messages.create({ model: "m", max_tokens: 9, messages: hello })).content[0].text;
    },
  },
  {
    client: "Gemini", limited: ["ApiError"], errors: "google",
    make(base, retries) {
      const { GoogleGenAI } = require("@google/genai");
      const httpOptions = { baseUrl: base, ...(retries ? { retryOptions: {} } : {}) };
      const sdk = new GoogleGenAI({ apiKey: "unused", httpOptions });
      return async () => (await sdk.models.generateContent({ model: "m", contents: "hello" })).text;
    },
  },
  {
    client: "octokit", limited: ["HttpError", "RequestError"],
    make(base, retries) {
      const off = { retry: { enabled: false }, throttle: { enabled: false } };
      const sdk = new (require("octokit").Octokit)({ baseUrl: base, auth: "unused", ...(retries ? {} : off) });
      return async () => (await sdk.rest.repos.get({ owner: "o", repo: "ok" })).data.name;
    },
  },
  {
    client: "Stripe", limited: ["StripeRateLimitError"], prefix: false,
    make(base, retries) {
      const { hostname: host, port } = new URL(base);
      const options = { host, port, protocol: "http", ...(retries ? {} : { maxNetworkRetries: 0 }) };
      const sdk = new (require("stripe"))("sk_unused", options);
      return async () => (await sdk.charges.create({ amount: 1, currency: "eur", source: "tok_visa" })).id;
    },
  },
  {
    client: "Slack", limited: ["WebAPIRateLimitedError"], textless: ["refused", "far", "near", ...ERRORS],
    make(base, retries) {
      const { WebClient } = require("@slack/web-api");
      const off = { rejectRateLimitedCalls: true, retryConfig: { retries: 0 } };
      const sdk = new WebClient("unused", { slackApiUrl: `${base}/api/`, logLevel: "error", ...(retries ? {} : off) });
      return async () => (await sdk.chat.postMessage({ channel: "c", text: "hello" })).ts;
    },
  },
  {
    client: "Notion", limited: ["APIResponseError"],
    make(base, retries) {
      const { Client } = require("@notionhq/client");
      const sdk = new Client({ auth: "unused", baseUrl: base, logLevel: "error", ...(retries ? {} : { retry: false }) });
      return async () => (await sdk.users.retrieve({ user_id: "1" })).id;
    },
  },
  {
    client: "HubSpot", limited: ["ApiException"],
    make(base, retries) {
      const { Client } = require("@hubspot/api-client");
      const sdk = new Client({ accessToken: "unused", basePath: base, ...(retries ? { numberOfApiCallRetries: 3 } : {}) });
      return async () => (await sdk.crm.contacts.basicApi.getById("1")).id;
    },
  },
  {
    client: "Twilio", limited: ["RestException"], errors: "twilio",
    make(base, retries) {
      const twilio = require("twilio");
      class ThroughWeir extends twilio.RequestClient {
        request(options) {
          return super.request({ ...options, uri: options.uri.replace("https://api.twilio.com", base) });
        }
      }
      const sdk = twilio("AC1", "unused", { httpClient: new ThroughWeir(retries ? { autoRetry: true } : {}) });
      return async () => (await sdk.messages.create({ to: "+15005550006", from: "+15005550006", body: "hello" })).sid;
    },
  },
  {
    client: "Elasticsearch", limited: ["ResponseError"], errors: "elasticsearch",
    make(base, retries) {
      const { Client } = require("@elastic/elasticsearch");
      const sdk = new Client({ node: base, auth: { apiKey: "unused" }, ...(retries ? {} : { maxRetries: 0 }) });
      return async () => (await sdk.get({ index: "index", id: "1" }))._id;
    },
  },
  {
    client: "S3, AWS SDK", limited: ["Throttling"], errors: "aws", upstream: "aws",
    make(base, retries) {
      const { S3Client, ListBucketsCommand } = require("@aws-sdk/client-s3");
      const sdk = new S3Client(aws(base, retries));
      return async () => (await sdk.send(new ListBucketsCommand({}))).Buckets.some((it) => it.Name === "bucket") && "ok";
    },
  },
  {
    client: "DynamoDB, AWS SDK", limited: ["ThrottlingException"], errors: "aws", upstream: "aws",
    make(base, retries) {
      const { DynamoDBClient, ListTablesCommand } = require("@aws-sdk/client-dynamodb");
      const sdk = new DynamoDBClient(aws(base, retries));
      return async () => Array.isArray((await sdk.send(new ListTablesCommand({}))).TableNames) && "ok";
    },
  },
  {
    client: "gRPC", limited: ["Error"], upstream: "grpc",
    make(base, retries) {
      const grpc = require("@grpc/grpc-js");
      const retryPolicy = {
        maxAttempts: 3, initialBackoff: "0.2s", maxBackoff: "1s", backoffMultiplier: 2,
        retryableStatusCodes: ["RESOURCE_EXHAUSTED", "UNAVAILABLE"],
      };
      const config = JSON.stringify({ loadBalancingConfig: [], methodConfig: [{ name: [{ service: "Echo" }], retryPolicy }] });
      const options = retries ? { "grpc.service_config": config } : {};
      const sdk = new grpc.Client(new URL(base).host, grpc.credentials.createInsecure(), options);
      const same = (bytes) => bytes;
      return () => new Promise((resolve, reject) => {
        const ended = (error, bytes) => (error ? reject(error) : resolve(bytes.toString()));
        sdk.makeUnaryRequest("/Echo/Call", same, same, Buffer.from("ok"), { deadline: Date.now() + 30000 }, ended);
      });
    },
  },
  {
    client: "axios", limited: ["AxiosError"],
    make(base) {
      const axios = require("axios");
      return async () => (await axios.get(`${base}/text`).catch((error) => {
        error.message += `: ${error.response?.data?.message}`;
        throw error;
      })).data;
    },
  },
  {
    client: "fetch", limited: ["Error"],
    make(base) {
      return async () => {
        const answer = await fetch(`${base}/text`);
        if (!answer.ok) throw new Error(await answer.text());
        return answer.text();
      };
    },
  },
].map((row) => ({ errors: "json", upstream: "http", textless: [], prefix: row.upstream === undefined, ...row }));

function aws(base, retries) {
  return { endpoint: base, region: "us-east-1", forcePathStyle: true, ...(retries ? {} : { maxAttempts: 1 }) };
}

function equal(left, right) {
  if (JSON.stringify(left) !== JSON.stringify(right)) throw new Error(`${JSON.stringify(left)} is not ${JSON.stringify(right)}`);
  return "ok";
}

// Makes the calls at once, and compares how many were answered with how many reached the API, which takes its time for each.
function patient(client) {
  return async (base) => {
    const name = `${client.toLowerCase()}-node`;
    // OpenAI's SDK tells the timeout of a call, and not that of the client.
    const options = { timeout: TIMEOUT, defaultHeaders: client === "OpenAI" ? { "weir-timeout": `${TIMEOUT}ms` } : {} };
    const call = CLIENTS.find((row) => row.client === client).make(`${base}/slow/${name}`, true, options);
    const isAnswered = () => call().then((value) => value === "ok", () => false);
    const answered = (await Promise.all(Array.from({ length: PATIENT_CALLS }, isAnswered))).filter((is) => is).length;
    const worked = Number(await (await fetch(`http://${process.env.CLIENTS_STUB}/worked/${name}`)).text());
    if (answered !== worked || answered < PATIENT_CALLS / 2) {
      throw new Error(`${answered} calls were answered, ${worked} reached the API`);
    }
    return "ok";
  };
}

const FLOWS = {
  ...uploads(require),
  [`OpenAI for Node: ${PATIENT_CALLS} calls with a timeout of ${TIMEOUT / 1000} s`]: patient("OpenAI"),
  [`Anthropic for Node: ${PATIENT_CALLS} calls with a timeout of ${TIMEOUT / 1000} s`]: patient("Anthropic"),
  async "octokit: pages"(base) {
    const sdk = new (require("octokit").Octokit)({ baseUrl: base, auth: "unused" });
    const issues = await sdk.paginate(sdk.rest.issues.listForRepo, { owner: "o", repo: "ok", per_page: 1 });
    return equal(issues.map((issue) => issue.number), [1, 2, 3, 4, 5]);
  },
  async "AWS SDK for Node, S3: put, get, presigned"(base) {
    const { S3Client, PutObjectCommand, GetObjectCommand } = require("@aws-sdk/client-s3");
    const { getSignedUrl } = require("@aws-sdk/s3-request-presigner");
    const sdk = new S3Client(aws(base, true));
    const place = { Bucket: "bucket", Key: "c d/ö" };
    await sdk.send(new PutObjectCommand({ ...place, Body: BYTES }));
    const bytes = await (await sdk.send(new GetObjectCommand(place))).Body.transformToByteArray();
    equal(Buffer.compare(bytes, BYTES), 0);
    const answer = await fetch(await getSignedUrl(sdk, new GetObjectCommand(place)));
    return equal([answer.status, await answer.text()], [200, "presigned"]);
  },
  async "AWS SDK for Node, DynamoDB: put, get"(base) {
    const { DynamoDBClient, CreateTableCommand, PutItemCommand, GetItemCommand } = require("@aws-sdk/client-dynamodb");
    const sdk = new DynamoDBClient(aws(base, true));
    const TableName = "node";
    await sdk.send(new CreateTableCommand({
      TableName, BillingMode: "PAY_PER_REQUEST", KeySchema: [{ AttributeName: "k", KeyType: "HASH" }],
      AttributeDefinitions: [{ AttributeName: "k", AttributeType: "S" }],
    })).catch((error) => { if (error.name !== "ResourceInUseException") throw error; });
    await sdk.send(new PutItemCommand({ TableName, Item: { k: { S: base }, v: { S: "ok" } } }));
    return (await sdk.send(new GetItemCommand({ TableName, Key: { k: { S: base } } }))).Item.v.S;
  },
};

async function did(call) {
  try {
    return { value: await call() };
  } catch (error) {
    const name = error.name === "Error" ? error.constructor.name : error.name;
    return { error: name, text: String(error.message) };
  }
}

async function outcome(run) {
  if (run.flow) return { ...run, ...(await did(() => FLOWS[run.flow](run.base))) };
  const { make } = CLIENTS.find((row) => row.client === run.client);
  const calls = Array.from({ length: run.calls ?? 1 }, () => make(run.base, run.retries));
  if (run.spent) await fetch(`${run.base}/text`);
  const start = Date.now();
  const waits = new Promise((resolve) => setTimeout(resolve, PATIENCE, { waits: true }));
  const result = await Promise.race([Promise.all(calls.map(did)).then(([first]) => first), waits]);
  return { ...run, ...result, seconds: (Date.now() - start) / 1000 };
}

if (process.argv[2] === "list") {
  console.log(JSON.stringify({ calls: CLIENTS, flows: Object.keys(FLOWS) }));
} else {
  const runs = JSON.parse(readFileSync(0, "utf8"));
  const lines = [];
  let begun = 0;
  const work = async () => {
    while (begun < runs.length) {
      const place = begun++;
      lines[place] = JSON.stringify(await outcome(runs[place]));
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  // Calls that still wait end here.
  process.stdout.write(lines.join("\n") + "\n", () => process.exit(0));
}
