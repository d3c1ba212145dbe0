"""Flows of several requests, with SDKs for Python: pages, uploads, redirects, signatures. Each returns "ok", or raises.

The stubs refuse calls of pages and uploads without the credential that weir holds, so a link past weir ends a flow.
"""

import base64
import concurrent.futures
import contextlib
import io
import os
import socket
import unittest.mock
import urllib.error
import urllib.parse
import urllib.request

BYTES = os.urandom(1 << 20)
PAGES = ["1", "2", "3", "4", "5"]
# The calls at once of an SDK that waits as many seconds, over a limit of one a second.
PATIENT_CALLS = 8
PATIENCE = 3.5

FLOWS = {}


def flow(name):
    def add(function):
        FLOWS[name] = function
        return function

    return add


def storage(base):
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    options = {"api_endpoint": base} if base else None
    return storage.Client(project="p", credentials=AnonymousCredentials(), client_options=options)


def boto3_client(service, base, retries=True, **config):
    import boto3
    from botocore.config import Config

    if not retries:
        config["retries"] = {"total_max_attempts": 1}
    # The credentials come from the environment.
    return boto3.session.Session().client(service, endpoint_url=base, region_name="us-east-1", config=Config(**config))


def equal(left, right):
    assert left == right, f"{left!r} is not {right!r}"
    return "ok"


@flow("Shopify: pages")
def shopify_pages(base):
    import shopify

    shopify.ShopifyResource.set_site(f"{base}/admin/api/2025-10")
    page, seen = shopify.Product.find(limit=1), []
    while True:
        seen += [str(product.id) for product in page]
        if not page.has_next_page():
            return equal(seen, PAGES)
        page = page.next_page()


@flow("YouTube: a call")
def youtube(base):
    from googleapiclient.discovery import build

    sdk = build("youtube", "v3", developerKey="key", client_options={"api_endpoint": base.rstrip("/") + "/"}, static_discovery=True)
    return sdk.videos().list(part="id", id="1").execute()["items"][0]["id"]


@flow("Google Cloud Storage: resumable upload")
def resumable_upload(base):
    name = base64.urlsafe_b64encode((base or "own name").encode()).decode()
    blob = storage(base).bucket("bucket").blob(name, chunk_size=256 * 1024)
    # Of an unknown size, so in parts.
    blob.upload_from_file(io.BytesIO(BYTES), retry=None)
    return equal(blob.size, len(BYTES))


@contextlib.contextmanager
def at_weir(base):
    """Lets every name lead to weir, as a hosts entry would, and to its port."""
    url = urllib.parse.urlsplit(base)
    look_up = socket.getaddrinfo
    to_weir = lambda _host, _port, *rest, **more: look_up(url.hostname, url.port, *rest, **more)
    with unittest.mock.patch("socket.getaddrinfo", to_weir):
        yield


@flow("PyGithub under GitHub's name: a moved repository, pages")
def github_own_name(base):
    import github

    with at_weir(base):
        sdk = github.Github(auth=github.Auth.Token("unused"), retry=None, per_page=1)
        repository = sdk.get_repo("o/ok")
        seen = [str(issue.number) for issue in repository.get_issues()]
        return equal((repository.name, seen, sdk.get_repo("o/moved").name), ("ok", PAGES, "ok"))


@flow("Google Cloud Storage under its own name: resumable upload")
def storage_own_name(base):
    with at_weir(base):
        return resumable_upload(None)


@flow("boto3, S3: put, get, presigned")
def s3(base, **config):
    # It sends `Expect: 100-continue` with the body of a put.
    sdk = boto3_client("s3", base, signature_version="s3v4", **config)
    sdk.put_object(Bucket="bucket", Key="a b/ü", Body=BYTES)
    equal(sdk.get_object(Bucket="bucket", Key="a b/ü")["Body"].read(), BYTES)
    url = sdk.generate_presigned_url("get_object", {"Bucket": "bucket", "Key": "a b/ü"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(config.get("proxies", {})))
    opener.open(url).close()
    with contextlib.suppress(urllib.error.HTTPError):
        opener.open(url.replace("X-Amz-Expires=3600", "X-Amz-Expires=3601"))
        raise AssertionError("a presigned URL of another time was accepted")
    return "ok"


@flow("boto3, S3: weir as the proxy")
def s3_by_proxy(base):
    return s3("http://s3.us-east-1.amazonaws.com", proxies={"http": base}, s3={"addressing_style": "path"})


@flow("boto3, DynamoDB: put, get")
def dynamodb(base):
    sdk = boto3_client("dynamodb", base)
    with contextlib.suppress(sdk.exceptions.ResourceInUseException):
        sdk.create_table(
            TableName="python", BillingMode="PAY_PER_REQUEST", KeySchema=[{"AttributeName": "k", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "k", "AttributeType": "S"}],
        )
    item = {"k": {"S": base}, "v": {"S": "ok"}}
    sdk.put_item(TableName="python", Item=item)
    return sdk.get_item(TableName="python", Key={"k": {"S": base}})["Item"]["v"]["S"]


def patient(base, name, make):
    """Makes the calls at once, and compares how many were answered with how many reached the API, which takes its time for each."""
    call = make(f"{base}/slow/{name}")

    def is_answered(_):
        try:
            return call() == "ok"
        except Exception:
            return False

    with concurrent.futures.ThreadPoolExecutor(PATIENT_CALLS) as pool:
        answered = sum(pool.map(is_answered, range(PATIENT_CALLS)))
    worked = int(urllib.request.urlopen(f"http://{os.environ['CLIENTS_STUB']}/worked/{name}").read())
    assert PATIENT_CALLS // 2 <= answered == worked, f"{answered} calls were answered, {worked} reached the API"
    return "ok"


@flow(f"OpenAI: {PATIENT_CALLS} calls with a timeout of {PATIENCE} s")
def openai_patience(base):
    import calls

    return patient(base, "openai-python", lambda base: calls.CLIENTS["OpenAI"]["make"](base, True, timeout=PATIENCE))


@flow(f"Anthropic: {PATIENT_CALLS} calls with a timeout of {PATIENCE} s")
def anthropic_patience(base):
    import calls

    return patient(base, "anthropic-python", lambda base: calls.CLIENTS["Anthropic"]["make"](base, True, timeout=PATIENCE))
