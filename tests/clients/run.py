"""Runs the SDKs of vendors against weir, in front of stubs of their APIs, and says what each was seen to do.

    scripts/clients [--weir PATH] [--only WORDS] [--write]

`--only` picks SDKs and flows by a part of their names; `--write` replaces docs/clients-seen.md by what was seen.
Exit code 1 if an SDK takes a refusal for a result, or does not show its reason.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import stub

ROOT = pathlib.Path(__file__).parents[2]
HERE = pathlib.Path(__file__).parent
NODE = ROOT / "target/clients/node"
# The further output of weir and the SDKs.
LOG = ROOT / "target/clients/log"
LANGUAGES = {
    "Python": [sys.executable, str(HERE / "calls.py")],
    "Node": ["node", str(HERE / "calls.mjs")],
}
TOKEN = "Bearer held-by-weir"
NAMES = ["api.github.com", "storage.googleapis.com"]

# How a route answers, and whether the SDK retries as it does by default. `spent` routes have their only permit taken before.
SITUATIONS = {
    "plain": {"retries": True},
    "refused": {"limiter": {"limits": ["1/1h"]}},
    "far": {"limiter": {"limits": ["1/1h"]}, "retries": True},
    "near": {"limiter": {"limits": ["1/2500ms"]}, "retries": True},
    "queued": {"limiter": {"limits": ["1/2500ms"], "queue": {"timeout": "10s"}}, "retries": True},
    "no_route": {},
    "unreachable": {"upstream": "closed"},
    "silent": {"upstream": "silent"},
}
ERRORS = ["no_route", "unreachable", "silent"]

# The calls at once of each SDK to an API that is down, and the part of them that `retry` adds by default.
DOWN_CALLS = 5
RETRY_PART = 0.2

# Each shipped configuration, or the recipe of a document, with SDKs and flows and the path of their base URL.
SHIPPED = {
    "config/apis.yaml": {"OpenAI": "/openai", "octokit": "/github", "octokit: pages": "/github"},
    "config/github.yaml": {"octokit": "/github", "octokit: pages": "/github"},
    "config/youtube.yaml": {"YouTube: a call": "/"},
    "docs/recipes.md## GitHub": {"octokit": "/github"},
    "docs/recipes.md## OpenAI": {"OpenAI": "/openai"},
    "docs/recipes.md## Shopify": {"Shopify": "/shopify/acme", "Shopify: pages": "/shopify/acme"},
}
SHIPPED_UPSTREAMS = r"https://(api\.github\.com|api\.openai\.com|www\.googleapis\.com|acme\.myshopify\.com)"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def root_address(situation, number):
    """Returns a loopback address of its own, for an SDK whose base URL has no path."""
    return f"127.1.{list(SITUATIONS).index(situation)}.{number + 1}"


def base_url(situation, row, port):
    if row["prefix"]:
        return f"http://127.0.0.1:{port}/{situation}-{row['number']}"
    return f"http://{root_address(situation, row['number'])}:{port}"


def call_config(rows, upstreams):
    """Returns the limiters and routes of all calls: each SDK has its own in each situation."""
    limiters, routes = {}, []
    for situation, how in SITUATIONS.items():
        for row in rows if situation != "no_route" else []:
            name = f"{situation}-{row['number']}"
            upstream = {"url": f"http://{upstreams[how.get('upstream', row['upstream'])]}", "timeout": "300ms"}
            if how.get("upstream") != "silent":
                upstream["timeout"] = "30s"
            if row["upstream"] == "grpc":
                upstream["http2"] = "prior_knowledge"
            match = {"host": root_address(situation, row["number"])}
            route = {"name": name, "upstream": upstream, "errors": row["errors"], "preserve_host": row["upstream"] == "aws"}
            if row["prefix"]:
                match = {"path": f"/{name}"}
                route["strip_prefix"] = f"/{name}"
            if "limiter" in how:
                limiters[name] = how["limiter"]
                route["limiter"] = name
            routes.append({**route, "match": match})
    return limiters, routes


def down_config(rows, upstreams):
    """Returns the routes to an API that is down, for each SDK one with `retry` and one without."""
    routes = []
    for row in rows:
        for name, more in (("down", {}), ("retried", {"retry": {"attempts": 3}})):
            name = f"{name}-{row['number']}"
            # No stub of gRPC answers that it is down, but a port that nobody listens on does.
            upstream = {"url": f"http://{upstreams['down']}"}
            if row["upstream"] == "grpc":
                upstream = {"url": f"http://{upstreams['closed']}", "http2": "prior_knowledge"}
            match = {"path": f"/{name}"} if row["prefix"] else {"host": down_address(name)}
            options = {"strip_prefix": f"/{name}"} if row["prefix"] else {}
            routes.append({"name": name, "match": match, "upstream": upstream, "errors": row["errors"], **options, **more,
                           "set_headers": {"x-route": name}})
    return routes


def down_address(name):
    kind, number = name.split("-")
    return f"127.3.{['down', 'retried'].index(kind)}.{int(number) + 1}"


def flow_routes(upstreams):
    """Returns the routes of flows: with a prefix, without, under the vendors' names, and to moto."""
    http, aws = f"http://{upstreams['http']}", f"http://{upstreams['aws']}"
    held = {"set_headers": {"authorization": TOKEN, "x-shopify-access-token": TOKEN}}
    own = [{"name": name, "match": {"host": name}, "upstream": http, "preserve_host": True, **held} for name in NAMES]
    return [
        {"name": "prefix", "match": {"path": "/flow"}, "strip_prefix": "/flow", "upstream": http, **held},
        {"name": "root", "match": {"host": "127.2.0.1"}, "upstream": http, **held},
        {"name": "patience", "match": {"host": "127.2.0.5"}, "upstream": http, "limiter": "patience"},
        {"name": "upload", "match": {"host": "127.2.0.6"}, "upstream": http, "limiter": "upload"},
        {"name": "aws", "match": {"host": "127.2.0.2"}, "upstream": aws, "preserve_host": True},
        {"name": "aws-queued", "match": {"host": "127.2.0.3"}, "upstream": aws, "preserve_host": True, "limiter": "queue"},
        {"name": "aws-proxied", "match": {"host": "s3.us-east-1.amazonaws.com"}, "upstream": aws, "preserve_host": True},
        *own,
    ]


FLOW_LIMITERS = {
    "queue": {"limits": ["5/1s"], "queue": {"timeout": "10s"}},
    # For each SDK, which the path names.
    "patience": {"limits": ["1/1s"], "key": ["path:1"], "queue": {"timeout": "60s"}},
    "upload": {"limits": ["1/1h"]},
}


def balancer_routes(tls_port, plain_port):
    """Returns the routes of a load balancer, at two addresses: it adds `X-Forwarded-*`, and changes nothing else."""
    to = {"127.2.0.8": f"127.0.0.1:{plain_port}", "127.2.0.9": f"127.2.0.1:{plain_port}"}
    return [
        {
            "name": f"to-{number}", "match": {"host": host}, "upstream": f"http://{upstream}", "rewrite_links": False,
            "set_headers": {"x-forwarded-proto": "https", "x-forwarded-host": f"{host}:{tls_port}"},
        }
        for number, (host, upstream) in enumerate(to.items())
    ]


def flow_places(plain, tls):
    """Returns where each kind of flow begins, by words of its name; the first kind that fits counts."""
    return {
        "own name": {"TLS": f"https://127.0.0.1:{tls}"},
        "GitHub's name": {"TLS": f"https://127.0.0.1:{tls}"},
        "calls with a timeout": {"a queue": f"http://127.2.0.5:{plain}"},
        "Go over HTTP/2": {"TLS": f"https://127.2.0.6:{tls}"},
        "over HTTP/2": {"HTTP": f"http://127.2.0.6:{plain}", "TLS": f"https://127.2.0.6:{tls}"},
        "a socket": {"HTTP": f"http://127.2.0.6:{plain}"},
        "refused uploads": {"HTTP": f"http://127.2.0.6:{plain}", "TLS": f"https://127.2.0.6:{tls}"},
        "as the proxy": {"HTTP": f"http://127.0.0.1:{plain}"},
        "S3|DynamoDB": {
            "HTTP": f"http://127.2.0.2:{plain}", "TLS": f"https://127.2.0.2:{tls}", "a queue": f"http://127.2.0.3:{plain}",
        },
        "": {
            "HTTP, prefix": f"http://127.0.0.1:{plain}/flow", "HTTP": f"http://127.2.0.1:{plain}",
            "TLS, prefix": f"https://127.0.0.1:{tls}/flow", "TLS": f"https://127.2.0.1:{tls}",
            "balancer, prefix": f"https://127.2.0.8:{tls}/flow", "balancer": f"https://127.2.0.9:{tls}",
        },
    }


def make_certificates(folder):
    """Makes an authority and a certificate for every name and address that clients use."""
    addresses = ["127.0.0.1"] + [f"127.2.0.{last}" for last in (1, 2, 6, 8, 9)]
    names = ",".join([f"IP:{it}" for it in addresses] + [f"DNS:{it}" for it in NAMES])
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    ca = ["-keyout", folder / "ca.key", "-out", folder / "ca.pem", "-subj", "/CN=weir's test authority"]
    own = ["-keyout", folder / "weir.key", "-out", folder / "weir.pem", "-subj", "/CN=weir", "-CA", folder / "ca.pem"]
    own += ["-CAkey", folder / "ca.key", "-addext", f"subjectAltName={names}", "-addext", "basicConstraints=CA:FALSE"]
    for more in (ca, own):
        subprocess.run([*make, *more], check=True, capture_output=True)


def own_config(config, port, admin):
    """Returns a configuration as text; JSON is YAML."""
    places = {"listen": f"0.0.0.0:{port}", "admin": {"listen": f"127.0.0.1:{admin}"}}
    return json.dumps({**places, "log": {"level": "warn", "access": False}, **config})


def shipped_config(place, upstream, port, admin):
    """Returns a shipped configuration with another upstream, at other ports."""
    file, _, title = place.partition("#")
    text = (ROOT / file).read_text()
    if title:
        text = re.search(rf"(?ms)^{re.escape('#' + title)}$.*?^```yaml$(.*?)^```$", text)[1]
    text = re.sub(SHIPPED_UPSTREAMS, f"http://{upstream}", text)
    text = re.sub(r"(?m)^listen: .*$", f"listen: 127.0.0.1:{port}", text)
    text = re.sub(r"(?m)^admin:.*\n(^ .*\n)*", "", text)
    return text + f"\nadmin: {{listen: '127.0.0.1:{admin}'}}\n"


@contextlib.contextmanager
def weir(program, folder, name, text, admin, environment=None):
    """Starts weir with this configuration; returns the address of its admin endpoint."""
    path = folder / f"{name}.yaml"
    path.write_text(text)
    process = subprocess.Popen([program, "serve", "--config", path], stderr=LOG.open("a"), env=environment)
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=1)
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, f"weir does not start; see {path}"
                time.sleep(0.02)
        yield f"http://127.0.0.1:{admin}"
        assert process.poll() is None, f"weir has ended with {process.returncode}"
    finally:
        process.terminate()
        process.wait(40)


@contextlib.contextmanager
def moto():
    process = subprocess.Popen(
        [sys.executable, HERE / "aws.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=LOG.open("a")
    )
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(10)


def requests_by_route(admin, metric="weir_requests_total"):
    """Returns how many requests each route got, from weir's metrics."""
    metrics = urllib.request.urlopen(f"{admin}/metrics", timeout=5).read().decode()
    counts = {}
    for route, count in re.findall(rf'^{metric}\{{.*route="([^"]+)".*\}} (\d+)$', metrics, re.MULTILINE):
        counts[route] = counts.get(route, 0) + int(count)
    return counts


def ask(language, command, runs, environment):
    done = subprocess.run(
        [*LANGUAGES[language], command], input=json.dumps(runs), env=environment, stdout=subprocess.PIPE,
        stderr=LOG.open("a"), text=True, check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def problem_of_call(row, result):
    """Returns what is wrong with a call; None if nothing is."""
    situation, value, waits = result["situation"], result.get("value"), result.get("waits")
    if "error" in result:
        limited = result["error"] in row["limited"]
        if situation in ("plain", "queued"):
            return f"raises {result['error']}: {result['text']}"
        if situation not in ERRORS and not limited:
            return f"raises {result['error']}, which is no rate-limit error: {result['text']}"
        if situation in row["textless"] or "weir, the proxy in front of this API" in result["text"]:
            return None
        return f"loses the reason: {result['text']}"
    if waits:
        return None if situation == "far" else "does not end"
    if situation in ("plain", "near", "queued"):
        was_refused = result["requests"] > 1 or situation != "near"
        if value == "ok":
            return None if was_refused else "was not refused: this machine is too slow"
        return f"returns {value!r}"
    return f"takes the error for a result: {value!r}"


def cell(row, result):
    if result.get("waits"):
        return "waits"
    times = f", {result['requests']} requests" if result.get("requests", 1) > 1 else ""
    textless = ", no text" if "error" in result and result["situation"] in row["textless"] else ""
    return (f"`{result['error']}`" if "error" in result else "succeeds") + textless + times


def run_calls(listed, plain, admin, environment, only):
    """Calls each SDK in each situation; returns the rows of the table, and the problems."""
    lines, problems = [], []
    for language in LANGUAGES:
        rows = [row for row in listed if row["language"] == language and only in row["client"].lower()]
        runs = [
            {
                "client": row["client"], "situation": situation, "base": base_url(situation, row, plain),
                "retries": how.get("retries", False), "spent": "limiter" in how,
            }
            for row in rows for situation, how in SITUATIONS.items()
        ]
        results = ask(language, "run", runs, environment) if runs else []
        counts = requests_by_route(admin)
        for row in rows:
            cells = {}
            for result in [it for it in results if it["client"] == row["client"]]:
                spent = 1 if result["spent"] else 0
                result["requests"] = counts.get(f"{result['situation']}-{row['number']}", 1 + spent) - spent
                problem = problem_of_call(row, result)
                if problem is None and result["situation"] == "queued" and result["requests"] != 1:
                    problem = f"{result['requests']} requests"
                if problem:
                    problems.append(f"{row['client']}, {language}, {result['situation']}: {problem}")
                cells[result["situation"]] = cell(row, result)
            lines.append([row["client"], language, *(cells[situation] for situation in SITUATIONS)])
    return lines, problems


def run_flows(flows, plain, tls, environment, only):
    """Runs each flow from each of its places; returns the rows of the table, and the problems."""
    lines, problems = [], []
    for language, names in flows.items():
        runs = []
        for name in (name for name in names if only in name.lower()):
            places = next(places for words, places in flow_places(plain, tls).items() if re.search(words, name))
            runs += [{"flow": name, "place": place, "base": base} for place, base in places.items()]
        for result in ask(language, "run", runs, environment) if runs else []:
            if result.get("value") != "ok":
                problems.append(f"{result['flow']}, {result['place']}: {result}")
            line = next((line for line in lines if line[0] == result["flow"]), None)
            if line is None:
                line = [result["flow"], ""]
                lines.append(line)
            line[1] += (", " if line[1] and not line[1].endswith(", ") else "") + result["place"].replace(", ", " with ")
    return lines, problems


def run_down(listed, plain, admin, environment, only):
    """Lets each SDK call an API that is down; returns the rows of the table, and the problems."""
    lines, problems = [], []
    for language in LANGUAGES:
        rows = [row for row in listed if row["language"] == language and only in row["client"].lower()]
        runs = []
        for row in rows:
            for kind in ("down", "retried"):
                name = f"{kind}-{row['number']}"
                base = f"http://127.0.0.1:{plain}/{name}" if row["prefix"] else f"http://{down_address(name)}:{plain}"
                runs.append({"client": row["client"], "base": base, "retries": True, "spent": False, "calls": DOWN_CALLS})
        if runs:
            ask(language, "run", runs, environment)
        requests, retries = requests_by_route(admin), requests_by_route(admin, "weir_retries_total")
        for row in rows:
            alone, asked = (requests.get(f"{kind}-{row['number']}", 0) for kind in ("down", "retried"))
            more = retries.get(f"retried-{row['number']}", 0)
            counted = stub.WORKED[f"retried-{row['number']}"]
            if row["upstream"] != "grpc" and counted != asked + more:
                problems.append(f"{row['client']}, {language}: the API counted {counted} requests, weir {asked + more}")
            if alone < DOWN_CALLS or more > RETRY_PART * asked:
                problems.append(f"{row['client']}, {language}: {alone} requests, with `retry` {asked} and {more} retries")
            lines.append([row["client"], language, str(alone), str(asked + more)])
    return lines, problems


def run_shipped(program, folder, upstream, environment, only):
    """Runs SDKs against the shipped configurations, each with a Redis of its own; returns the rows of the table, and the problems."""
    lines, problems = [], []
    for number, (place, whom) in enumerate(SHIPPED.items()):
        whom = {name: path for name, path in whom.items() if only in name.lower()}
        if not whom:
            continue
        port, admin, redis = free_port(), free_port(), free_port()
        secrets = {"GITHUB_TOKEN": TOKEN.removeprefix("Bearer "), "ACME_TOKEN": TOKEN, "WEIR_REDIS_URL": f"redis://127.0.0.1:{redis}"}
        server = subprocess.Popen(
            ["redis-server", "--port", str(redis), "--save", "", "--appendonly", "no"], stdout=subprocess.DEVNULL
        )
        text = shipped_config(place, upstream, port, admin)
        # A configuration names the credentials that it cannot do without: `${NAME:?why}`.
        secrets = {name: "a-credential" for name in re.findall(r"\$\{(\w+):\?", text)} | secrets
        try:
            with weir(program, folder, f"shipped-{number}", text, admin, {**os.environ, **secrets}):
                for name, path in whom.items():
                    language = "Node" if "octokit" in name else "Python"
                    run = {"place": place, "base": f"http://127.0.0.1:{port}{path}", "retries": False, "spent": False}
                    run["flow" if ":" in name else "client"] = name
                    result = ask(language, "run", [run], environment)[0]
                    if result.get("value") != "ok":
                        problems.append(f"{name}, {place}: {result}")
        finally:
            server.terminate()
            server.wait(10)
        lines.append([f"`{place.split('#')[0]}`" + ("," + place.split("##")[1] if "#" in place else ""), ", ".join(whom)])
    return lines, problems


def versions():
    """Returns the versions of all SDKs."""
    own, _what_they_need = (HERE / "requirements.txt").read_text().split("\n\n", 1)
    python = own.splitlines()[1:]
    node = json.loads((HERE / "package.json").read_text())["dependencies"]
    return ", ".join(python), ", ".join(f"{name}@{version}" for name, version in node.items())


def table(head, lines):
    rows = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def document(calls, flows, down, shipped):
    python, node = versions()
    return f"""# Clients, as seen

Made by `scripts/clients --write`: the SDKs themselves, in front of stubs of their APIs (AWS: moto, with signatures checked), with weir between. No
SDK took an error of weir for a result, and each exception has weir's message in its text. [Clients](clients.md) says how each is set up.

- *refused*: the SDK's retries are off, where it has any. *In an hour*, *in 2.5 s*: its retries are on, and the next slot is that far away.
  *queue*: weir lets the call wait 2.5 s. *404*: no route. *502*: the upstream is down. *504*: it does not answer; retries are off for these.
- A number is that of the requests which reached weir, if more than one. *Waits*: the call had not ended after 25 s. *No text*: the SDK shows
  no text of such an answer, whoever sent it.

{table(["SDK", "language", "without a limit", "refused", "refused, in an hour", "refused, in 2.5 s", "queue", "404", "502", "504"], calls)}
What takes several requests succeeded at each of these places. *Balancer* is a TLS load balancer in front that sends `X-Forwarded-*`.

{table(["what", "where"], flows)}
{DOWN_CALLS} calls of each SDK with its default retries, to an API that is down: requests to the API without weir's `retry`, and with it. weir adds at
most a fifth of what an SDK sends.

{table(["SDK", "language", "requests", "with `retry`"], down)}
The shipped configurations and recipes, but for the upstream's address:

{table(["configuration", "what succeeded"], shipped)}
Python: {python}.

Node: {node}.
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weir", default=ROOT / "target/debug/weir")
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    LOG.unlink(missing_ok=True)
    only, program = options.only.lower(), pathlib.Path(options.weir).resolve()

    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_certificates(folder)
        aws = stack.enter_context(moto())
        grpc_server, grpc_authority = stub.start_grpc()
        stack.callback(grpc_server.stop, None)
        silent = stack.enter_context(stub.start_silent())
        upstreams = {
            "http": stub.start_http(TOKEN), "down": stub.start_down(), "grpc": grpc_authority, "aws": f"127.0.0.1:{aws['port']}",
            "closed": f"127.0.0.1:{free_port()}", "silent": f"127.0.0.1:{silent.getsockname()[1]}",
        }
        ca = str(folder / "ca.pem")
        environment = {
            **os.environ, "CLIENTS_NODE": str(NODE), "CLIENTS_STUB": upstreams["http"], "PYTHONWARNINGS": "ignore", "NO_PROXY": "127.0.0.0/8",
            "AWS_ACCESS_KEY_ID": aws["id"], "AWS_SECRET_ACCESS_KEY": aws["secret"], "AWS_EC2_METADATA_DISABLED": "true",
            **dict.fromkeys(["SSL_CERT_FILE", "CURL_CA_BUNDLE", "HTTPLIB2_CA_CERTS", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"], ca),
        }
        listed = {language: ask(language, "list", None, environment)[0] for language in LANGUAGES}
        rows = [{**row, "language": language} for language in LANGUAGES for row in listed[language]["calls"]]
        rows = [{**row, "number": number} for number, row in enumerate(rows)]

        plain, tls = free_port(), free_port()
        limiters, routes = call_config(rows, upstreams)
        limiters |= FLOW_LIMITERS
        routes += down_config(rows, upstreams)
        server = {"allow": ["127.0.0.0/8"], "trusted_proxies": ["127.0.0.0/8"]}
        config = {"server": server, "limiters": limiters, "routes": flow_routes(upstreams) + routes}
        admin_port = free_port()
        admin = stack.enter_context(weir(program, folder, "plain", own_config(config, plain, admin_port), admin_port))
        certificate = {"tls": {"cert": str(folder / "weir.pem"), "key": str(folder / "weir.key")}}
        config = {
            "server": {"allow": ["127.0.0.0/8"], **certificate}, "limiters": FLOW_LIMITERS,
            "routes": balancer_routes(tls, plain) + flow_routes(upstreams),
        }
        admin_port = free_port()
        stack.enter_context(weir(program, folder, "tls", own_config(config, tls, admin_port), admin_port))

        shipped, shipped_problems = run_shipped(program, folder, upstreams["http"], environment, only)
        flows, flow_problems = run_flows({it: listed[it]["flows"] for it in listed}, plain, tls, environment, only)
        down, down_problems = run_down(rows, plain, admin, environment, only)
        calls, problems = run_calls(rows, plain, admin, environment, only)
    problems = shipped_problems + flow_problems + down_problems + problems
    for line in calls + flows + down + shipped:
        print(" | ".join(line))
    for problem in problems:
        print("PROBLEM:", problem)
    if options.write and not only and not problems:
        (ROOT / "docs/clients-seen.md").write_text(document(calls, flows, down, shipped))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
