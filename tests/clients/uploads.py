"""Uploads that weir refuses while they are sent: each HTTP client must read the refusal. More flows for Python; curl and Go are programs.

urllib and others read only when they have sent everything, so weir has to take what it does not want.
"""

import asyncio
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import threading
import time
import urllib.error
import urllib.request

from flows import equal, flow

BODY = bytes(30_000_000)
UPLOADS = 15
# The longest time to the first byte of a refusal, in seconds: the median of all uploads.
FIRST_BYTE_MAX = 0.05
GO = pathlib.Path(__file__).with_name("uploads.go")


def is_refusal(status, text):
    return status == 429 and "weir, the proxy in front of this API" in text


def refused(upload):
    """Uploads as often as it takes; returns "ok" if each refusal was read. The first upload takes the only permit."""

    def read(url):
        try:
            return is_refusal(*upload(url))
        except Exception:
            return False

    def run(base):
        read(f"{base}/text")
        return equal(sum(read(f"{base}/text") for _ in range(UPLOADS)), UPLOADS)

    return run


def add(name):
    return lambda upload: flow(f"{name}: {UPLOADS} refused uploads of 30 MB")(refused(upload))


@add("requests")
def by_requests(url):
    import requests

    answer = requests.post(url, data=BODY)
    return answer.status_code, answer.text


@add("urllib")
def by_urllib(url):
    try:
        urllib.request.urlopen(urllib.request.Request(url, data=BODY)).close()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@add("httpx")
def by_httpx(url):
    import httpx

    answer = httpx.post(url, content=BODY)
    return answer.status_code, answer.text


@add("aiohttp")
def by_aiohttp(url):
    import aiohttp

    async def upload():
        async with aiohttp.ClientSession() as session, session.post(url, data=BODY) as answer:
            return answer.status, await answer.text()

    return asyncio.run(upload())


def by_curl(url, *version):
    # Without `Expect: 100-continue`, for which curl waits with the body.
    command = ["curl", "--silent", *version, "--header", "Expect:", "--data-binary", "@-", "--write-out", "\n%{http_code}", url]
    text, _, status = subprocess.run(command, input=BODY, capture_output=True, check=True).stdout.decode().rpartition("\n")
    return int(status), text


@add("curl")
def by_curl_http1(url):
    return by_curl(url, "--http1.1")


@add("curl over HTTP/2")
def by_curl_http2(url):
    return by_curl(url, "--http2" if url.startswith("https") else "--http2-prior-knowledge")


def by_go(**environment):
    def run(base):
        command = ["go", "run", GO, f"{base}/text", str(UPLOADS)]
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
        return equal(int(done.stdout), UPLOADS)

    return run


if shutil.which("go"):
    flow(f"Go: {UPLOADS} refused uploads of 30 MB")(by_go())
    flow(f"Go over HTTP/2: {UPLOADS} refused uploads of 30 MB")(by_go(CLIENTS_HTTP2="1"))


@flow(f"a socket: the first byte of {UPLOADS} refusals")
def first_byte(base):
    host, port = base.removeprefix("http://").split(":")
    times = []
    for _ in range(1 + UPLOADS):
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"POST /text HTTP/1.1\r\nHost: %b\r\nContent-Length: %d\r\n\r\n" % (host.encode(), len(BODY)))
            begin = time.monotonic()
            sending = threading.Thread(target=client.sendall, args=[BODY])
            sending.start()
            client.recv(1)
            times.append(time.monotonic() - begin)
            sending.join()
    median = statistics.median(times[1:])
    assert median < FIRST_BYTE_MAX, f"{median} s, and at most {max(times)} s"
    return "ok"
