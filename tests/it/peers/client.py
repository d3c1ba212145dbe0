# Python's own HTTP client: several requests on one connection. Arguments: the base address, a name, the authority's file.
import http.client
import ssl
import sys
from urllib.parse import urlsplit

base, name, authority = sys.argv[1:4]
address = urlsplit(base)
if address.scheme == "https":
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority)
    connection = http.client.HTTPSConnection(address.netloc, context=context, timeout=30)
else:
    connection = http.client.HTTPConnection(address.netloc, timeout=30)
# From here on, a connection that was closed is an error and not opened again.
connection.connect()
connection.auto_open = False


def ask(step, method="GET", body=None, **headers):
    connection.request(method, "/" + step, body=body, headers={"x-client": name, **headers})
    answer = connection.getresponse()
    text = answer.read().decode()
    version = {10: "1.0", 11: "1.1"}[answer.version]
    told = [answer.getheader(header, "") for header in ("weir-wait-ms", "retry-after")]
    print(step, answer.status, version, *told, text if answer.status == 200 else "", sep="|")


ask("hello")
ask("hello", "HEAD")
ask("words", "POST", b"some words")
ask("upload", "POST", (b"u" * 10_000 for _ in range(10)))
for _ in range(3):
    ask("waits")
ask("refuses")
ask("refuses")
ask("hello")
