"""The SDKs for Python: how each is pointed at weir, and one call.

`calls.py list` prints the table; `calls.py run` reads runs from standard input and prints what each did, one JSON document a line.
"""

import concurrent.futures
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request

import flows
import uploads  # noqa: F401: it adds flows

# A call that has not ended after that many seconds counts as waiting.
PATIENCE = 25

ERRORS = ["no_route", "unreachable", "silent"]
CLIENTS = {}


def client(name, limited, **options):
    """Adds an SDK: a function of its base URL, and of whether it retries, that returns the call.

    limited    the exceptions that mean a spent limit
    errors     the form of weir's errors on its route (json)
    upstream   what answers: http, grpc or aws (http)
    prefix     whether its base URL may have a path
    textless   the situations in which its exception has no text of the API's
    """
    row = {"client": name, "limited": limited, "errors": "json", "upstream": "http", "textless": [], **options}
    row["prefix"] = row["upstream"] == "http"

    def add(make):
        CLIENTS[name] = {**row, "make": make}
        return make

    return add


@client("OpenAI", limited=["RateLimitError"])
def openai(base, retries, **options):
    import openai

    if not retries:
        options["max_retries"] = 0
    sdk = openai.OpenAI(base_url=f"{base}/v1", api_key="unused", **options)
    messages = [{"role": "user", "content": "hello"}]
    return lambda: sdk.chat.completions.create(model="m", messages=messages).choices[0].message.content


@client("Anthropic", limited=["RateLimitError"], errors="anthropic")
def anthropic(base, retries, **options):
    import anthropic

    if not retries:
        options["max_retries"] = 0
    sdk = anthropic.Anthropic(base_url=base, api_key="unused", **options)
    messages = [{"role": "user", "content": "hello"}]
    return lambda: sdk.messages.create(model="m", max_tokens=9, messages=messages).content[0].text


@client("Gemini", limited=["ClientError"], errors="google")
def gemini(base, retries):
    from google import genai

    # By default it does not retry; an empty `retry_options` switches its retries on.
    options = {"retry_options": {}} if retries else {}
    sdk = genai.Client(api_key="unused", http_options={"base_url": base, **options})
    return lambda: sdk.models.generate_content(model="m", contents="hello").text


@client("PyGithub", limited=["RateLimitExceededException", "GithubException"])
def pygithub(base, retries):
    import github

    options = {} if retries else {"retry": None}
    sdk = github.Github(base_url=base, auth=github.Auth.Token("unused"), **options)
    return lambda: sdk.get_repo("o/ok").name


@client("Stripe", limited=["RateLimitError"])
def stripe(base, retries):
    import stripe

    options = {} if retries else {"max_network_retries": 0}
    sdk = stripe.StripeClient("sk_unused", base_addresses={"api": base}, **options)
    return lambda: sdk.v1.charges.create({"amount": 1, "currency": "eur", "source": "tok_visa"}).id


@client("Slack", limited=["SlackApiError"])
def slack(base, retries):
    import slack_sdk
    from slack_sdk.http_retry.builtin_handlers import RateLimitErrorRetryHandler

    sdk = slack_sdk.WebClient(token="unused", base_url=f"{base}/api/")
    if retries:
        # Not on by default.
        sdk.retry_handlers.append(RateLimitErrorRetryHandler(max_retry_count=2))
    return lambda: sdk.chat_postMessage(channel="c", text="hello")["ts"]


@client("Notion", limited=["APIResponseError"])
def notion(base, retries):
    import notion_client

    options = {} if retries else {"retry": False}
    sdk = notion_client.Client(auth="unused", base_url=base, **options)
    return lambda: sdk.users.retrieve("1")["id"]


@client("HubSpot", limited=["ApiException"])
def hubspot(base, retries):
    import hubspot

    # By default it does what urllib3 does: 429, 503 and 413 with `Retry-After`, three times.
    options = {} if retries else {"retry": False}
    sdk = hubspot.HubSpot(access_token="unused", host=base, **options)
    return lambda: sdk.crm.contacts.basic_api.get_by_id("1").id


@client("Twilio", limited=["TwilioRestException"])
def twilio(base, retries):
    from twilio.http.http_client import TwilioHttpClient
    from twilio.rest import Client

    class ThroughWeir(TwilioHttpClient):
        def request(self, method, url, *rest, **options):
            return super().request(method, url.replace("https://api.twilio.com", base), *rest, **options)

    sdk = Client("AC1", "unused", http_client=ThroughWeir())
    return lambda: sdk.messages.create(to="+15005550006", from_="+15005550006", body="hello").sid


@client("Elasticsearch", limited=["ApiError"], errors="elasticsearch")
def elasticsearch(base, retries):
    from elasticsearch import Elasticsearch

    # It retries 429, 502, 503 and 504 by default, and at once.
    options = {} if retries else {"max_retries": 0}
    sdk = Elasticsearch(base, api_key="unused", **options)
    return lambda: sdk.get(index="index", id="1")["_id"]


@client("Shopify", limited=["ClientError"], textless=ERRORS)
def shopify(base, retries):
    import shopify

    def call():
        shopify.ShopifyResource.set_site(f"{base}/admin/api/2025-10")
        shopify.ShopifyResource.set_headers({"X-Shopify-Access-Token": "unused"})
        return shopify.Shop.current().name

    return call


@client("Google Cloud Storage", limited=["TooManyRequests"], errors="google")
def cloud_storage(base, retries):
    sdk = flows.storage(base)
    # By default it tries again for two minutes.
    options = {} if retries else {"retry": None}
    return lambda: sdk.get_bucket("bucket", **options).id


@client("google-api-python-client", limited=["HttpError"], errors="google")
def google_api(base, retries):
    from googleapiclient.discovery import build

    endpoint = {"api_endpoint": f"{base}/storage/v1/"}
    sdk = build("storage", "v1", developerKey="unused", client_options=endpoint, static_discovery=True)
    return lambda: sdk.buckets().get(bucket="bucket").execute(num_retries=3 if retries else 0)["name"]


@client("S3, boto3", limited=["ClientError"], errors="aws", upstream="aws")
def boto3_s3(base, retries):
    sdk = flows.boto3_client("s3", base, retries)
    return lambda: "ok" if "bucket" in [it["Name"] for it in sdk.list_buckets()["Buckets"]] else None


@client("DynamoDB, boto3", limited=["ThrottlingException", "ClientError"], errors="aws", upstream="aws")
def boto3_dynamodb(base, retries):
    sdk = flows.boto3_client("dynamodb", base, retries)
    return lambda: "ok" if isinstance(sdk.list_tables()["TableNames"], list) else None


@client("gRPC", limited=["_InactiveRpcError"], upstream="grpc")
def grpc(base, retries):
    import grpc

    names = [{"service": "Echo"}]
    policy = {
        "maxAttempts": 3, "initialBackoff": "0.2s", "maxBackoff": "1s", "backoffMultiplier": 2,
        "retryableStatusCodes": ["RESOURCE_EXHAUSTED", "UNAVAILABLE"],
    }
    # Not on by default, but for calls that reached no server.
    config = {"methodConfig": [{"name": names, "retryPolicy": policy}]}
    options = [("grpc.service_config", json.dumps(config))] if retries else []
    channel = grpc.insecure_channel(base.removeprefix("http://"), options)
    call = channel.unary_unary("/Echo/Call", request_serializer=None, response_deserializer=None)
    return lambda: call(b"ok", timeout=30).decode()


@client("requests, with urllib3's Retry", limited=["HTTPError"])
def requests(base, retries):
    import requests
    from urllib3.util.retry import Retry

    session = requests.Session()
    retry = Retry(total=3, status_forcelist=(429, 502, 504), raise_on_status=False)
    session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retry if retries else 0))
    return lambda: checked(session.get(f"{base}/text"), requests.HTTPError)


@client("httpx", limited=["HTTPStatusError"])
def httpx(base, retries):
    import httpx

    def call():
        answer = httpx.get(f"{base}/text")
        if answer.is_error:
            raise httpx.HTTPStatusError(answer.text, request=answer.request, response=answer)
        return answer.text

    return call


def checked(answer, error):
    """Returns the text of an answer. An HTTP client knows no vendor's errors, so its user puts the text into one."""
    if not answer.ok:
        raise error(answer.text)
    return answer.text


def use_permit(base):
    """Takes the only permit of a limiter."""
    try:
        urllib.request.urlopen(base + "/text", timeout=5).close()
    except urllib.error.HTTPError:
        pass


def did(call):
    """Returns what an SDK did: the value that it returned, or its exception."""
    try:
        return {"value": call()}
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)}


def outcome(run):
    """Returns what an SDK did. The call is on a thread of its own, which is left behind if the SDK waits."""
    if "flow" in run:
        return {**run, **did(lambda: flows.FLOWS[run["flow"]](run["base"]))}
    make = CLIENTS[run["client"]]["make"]
    calls = [make(run["base"], run["retries"]) for _ in range(run.get("calls", 1))]
    if run["spent"]:
        use_permit(run["base"])
    start, results = time.monotonic(), []
    threads = [threading.Thread(target=lambda call=call: results.append(did(call)), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0, start + PATIENCE - time.monotonic()))
    result = results[0] if len(results) == len(calls) else {"waits": True}
    return {**run, **result, "seconds": round(time.monotonic() - start, 2)}


def main():
    if sys.argv[1] == "list":
        table = [{key: value for key, value in row.items() if key != "make"} for row in CLIENTS.values()]
        print(json.dumps({"calls": table, "flows": list(flows.FLOWS)}))
        return
    runs = json.load(sys.stdin)
    # Some flows change how names are looked up.
    with concurrent.futures.ThreadPoolExecutor(1 if "flow" in runs[0] else 6) as pool:
        for result in pool.map(outcome, runs):
            print(json.dumps(result), flush=True)
    # Threads that still wait end here.
    os._exit(0)


if __name__ == "__main__":
    main()
