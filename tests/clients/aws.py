"""Moto, with every signature checked: those in headers by moto itself, presigned URLs here, because moto knows no such check."""

import datetime
import json
import os
import sys
import urllib.parse

# All but the calls of `main` need a signature.
SETUP_CALLS = 4
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = str(SETUP_CALLS)

import boto3
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.server import ThreadedMotoServer

POLICY = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
SECRETS = {}


def presigned_is_valid(environ):
    """Signs the URL of a request as its sender should have, and compares."""
    raw = environ.get("RAW_URI") or environ["REQUEST_URI"]
    url = urllib.parse.urlsplit(f"http://{environ['HTTP_HOST']}{raw}")
    query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
    signature, expires = query.pop("X-Amz-Signature"), int(query["X-Amz-Expires"])
    key, _date, region, service, _ = query["X-Amz-Credential"].split("/")
    signed = query["X-Amz-SignedHeaders"].split(";")
    headers = {name: environ["HTTP_" + name.upper().replace("-", "_")] for name in signed}
    query_string = urllib.parse.urlencode(query, quote_via=urllib.parse.quote, safe="-_.~")
    request = AWSRequest(environ["REQUEST_METHOD"], url._replace(query=query_string).geturl(), headers)
    request.context["timestamp"] = query["X-Amz-Date"]
    made = datetime.datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%S%z")
    auth = S3SigV4QueryAuth(Credentials(key, SECRETS[key]), service, region, expires)
    right = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    age = datetime.datetime.now(datetime.timezone.utc) - made
    return signature == right and age.total_seconds() < expires


def checked(application):
    def check(environ, start_response):
        if "X-Amz-Signature=" not in environ.get("QUERY_STRING", ""):
            return application(environ, start_response)
        start_response("200 OK" if presigned_is_valid(environ) else "403 Forbidden", [("content-type", "text/plain")])
        return [b"presigned"]

    return check


def main():
    """Prints the port, and an access key that may do everything; ends with standard input."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    _host, port = server.get_host_and_port()
    server._server.app = checked(server._server.app)
    unsigned = {"aws_access_key_id": "AKIAIOSFODNN7EXAMPLE", "aws_secret_access_key": "none", "region_name": "us-east-1"}
    clients = {
        name: boto3.client(name, endpoint_url=f"http://127.0.0.1:{port}", **unsigned) for name in ("iam", "s3")
    }
    clients["iam"].create_user(UserName="weir")
    clients["iam"].put_user_policy(UserName="weir", PolicyName="all", PolicyDocument=json.dumps(POLICY))
    key = clients["iam"].create_access_key(UserName="weir")["AccessKey"]
    clients["s3"].create_bucket(Bucket="bucket")
    SECRETS[key["AccessKeyId"]] = key["SecretAccessKey"]
    print(json.dumps({"port": port, "id": key["AccessKeyId"], "secret": key["SecretAccessKey"]}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
