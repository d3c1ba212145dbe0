//! Configuration files: every broken one is refused with the exact place of every problem, none panics, and every
//! shipped one is accepted.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashMap;
use std::env::VarError;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use weir::config::model::{
    Config, Confirm, Cost, Errors, HostMatch, Http2, KeyPart, PathMatch, RedisServers, Store,
};
use weir::config::{self, Handle, LoadError, Loaded, Outcome};
use weir::limiter::Partition;
use weir::limiter::model::calendar_windows::{CalendarWindows, Period};
use weir::limiter::model::limit::{
    Algorithm, Limit, Limiter, Mode, OnStoreFailure, Partitioned, PausePolicy, Permits, Scope,
};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const SCHEMA_FILE: &str = "config/weir.schema.json";

/// A directory with a configuration in it.
struct Place {
    directory: tempfile::TempDir,
    environment: HashMap<&'static str, &'static str>,
}

impl Place {
    fn new() -> Place {
        Place { directory: tempfile::tempdir().unwrap(), environment: HashMap::new() }
    }

    fn variable(mut self, name: &'static str, value: &'static str) -> Place {
        self.environment.insert(name, value);
        self
    }

    fn file(self, name: &str, content: impl AsRef<[u8]>) -> Place {
        fs::write(self.directory.path().join(name), content).unwrap();
        self
    }

    fn load(&self, content: impl AsRef<[u8]>) -> Result<Loaded, LoadError> {
        let path = self.directory.path().join("weir.yaml");
        fs::write(&path, content).unwrap();
        config::load_with(&path, &|name| match self.environment.get(name) {
            Some(value) => Ok((*value).to_owned()),
            None => Err(VarError::NotPresent),
        })
    }

    fn config(&self, content: &str) -> Config {
        match self.load(content) {
            Ok(loaded) => Config::clone(&loaded.config),
            Err(error) => panic!("{error}\n{content}"),
        }
    }

    /// Returns the problems, without the path of the file, which begins every one.
    fn problems(&self, content: impl AsRef<[u8]>) -> Vec<String> {
        let Err(error) = self.load(content) else { return Vec::new() };
        let prefix = format!("{}:", self.directory.path().join("weir.yaml").display());
        error
            .problems
            .iter()
            .map(|problem| problem.to_string().strip_prefix(&prefix).unwrap().to_owned())
            .collect()
    }
}

/// Files with one fault each, and the beginning of the problem: line, column, path, message.
const BROKEN: &[(&str, &str)] = &[
    // -- YAML
    ("routes: [\n", "1:9: not valid YAML: this `[` is not closed"),
    ("a: b: c\n", "1:5: not valid YAML"),
    ("routes:\n\t- a\n", "2:2: not valid YAML: tabs"),
    ("", " the file is empty"),
    ("---\na: 1\n---\nb: 1\n", "3:1: a second document"),
    (
        "log: {level: info}\nlog: {level: warn}\nROUTES",
        "2:1: log: key \"log\" is given twice; the first is on line 1",
    ),
    ("log: !!map {}\nROUTES", "1:6: log: tags (`!...`) are not supported"),
    // -- shape
    ("- 1\n", "1:1: expected a mapping, found a list"),
    (
        "rutes: []\n",
        "1:1: rutes: unknown key \"rutes\"; did you mean \"routes\"?\n1:1: routes: the key `routes` is missing",
    ),
    (
        "limiters:\n  a: {limts: [1/s]}\nROUTES",
        "2:7: limiters.a.limts: unknown key \"limts\"; did you mean \"limits\"?",
    ),
    ("limiters:\n  a: {queue: off}\nROUTES", "2:6: limiters.a: the key `limits` is missing"),
    ("limiters:\n  a:\nROUTES", "2:3: limiters.a: the value is empty; expected a mapping"),
    (
        "limiters:\n  a: {limits: [900]}\nROUTES",
        "2:16: limiters.a.limits[0]: expected a limit such as 900/1m",
    ),
    (
        "limiters:\n  a: {limits: [900/60]}\nROUTES",
        "2:16: limiters.a.limits[0]: the unit is missing behind 60; known: ms, s, m, h, d",
    ),
    (
        "limiters:\n  a: {limits: [{rate: 5, per: 10}]}\nROUTES",
        "2:31: limiters.a.limits[0].per: expected the length of the window with a unit",
    ),
    (
        "server:\n  header_timeout: 10\nROUTES",
        "2:19: server.header_timeout: expected a duration with a unit, such as 250ms",
    ),
    (
        "server: {max_header_bytes: 64KB}\nROUTES",
        "1:28: server.max_header_bytes: unknown unit \"KB\"; did you mean \"KiB\"?",
    ),
    // -- share
    (
        "limiters:\n  a: {limits: [9/s], share: {by: route}}\nROUTES",
        "2:22: limiters.a.share: only with `queue`: those who wait go by their shares",
    ),
    (
        "limiters:\n  a: {limits: [9/s], mode: shadow, queue: {timeout: 1s}, share: {by: route}}\nROUTES",
        "2:58: limiters.a.share: not with `mode: shadow`: a limiter that only counts shares nothing out",
    ),
    (
        "limiters:\n  a: {limits: [9/s], queue: {timeout: 1s}, share: {by: [client, 'header:x y', route, route], ahead: 2s, weights: {b: 0}}}\nROUTES",
        "2:57: limiters.a.share.by[0]: `client` needs `clients` at the top of the file, which identify callers\n\
         2:65: limiters.a.share.by[1]: expected client, header:NAME, query:NAME, json:PATH or route\n\
         2:101: limiters.a.share.ahead: must be from 50ms to 1s\n\
         2:118: limiters.a.share.weights.b: must be 1 to 1000",
    ),
    (
        "limiters:\n  a: {limits: [9/s], queue: {timeout: 1s}, share: {by: route, classes: [{name: x}, {name: x, floor: 100%}]}}\nROUTES",
        "2:73: limiters.a.share.classes[0]: nobody can be in it: name its callers in `of`\n\
         2:91: limiters.a.share.classes[1].name: another class has this name\n\
         2:101: limiters.a.share.classes[1].floor: leaves 0% of \"9/1s\", which is less than one permit",
    ),
    (
        "limiters:\n  a: {limits: [9/s], queue: {timeout: 1s}, share: {by: route, classes: [{name: x, of: [a, a]}, {name: y, ceiling: 5%}]}}\nROUTES",
        "2:91: limiters.a.share.classes[0].of[1]: is in two classes, or in one twice\n\
         2:115: limiters.a.share.classes[1].ceiling: leaves 5% of \"9/1s\", which is less than one permit",
    ),
    (
        "limiters:
  a: {limits: [9/s], queue: {timeout: 1s}, share: {by: route}}
  b: {limits: [5/s], queue: {timeout: 1s}, share: {by: route}, key: [host]}
routes:
  - {name: x, match: {path: /x}, upstream: 'http://127.0.0.1:1', limiters: [a, b]}
  - {name: y, match: {path: /y}, upstream: 'http://127.0.0.1:1', limiter: a}
",
        "2:44: limiters.a.share: routes use this limiter in different sets of limiters, and a share is of one set\n\
         2:44: limiters.a.share: the limiter \"b\" beside it has another `key`, and a share is of one queue\n\
         2:44: limiters.a.share: the limiter \"b\" beside it has a `share`, too\n\
         3:44: limiters.b.share: the limiter \"a\" beside it has another `key`, and a share is of one queue\n\
         3:44: limiters.b.share: the limiter \"a\" beside it has a `share`, too",
    ),
    // -- overrides
    (
        "limiters:\n  a: {limits: [1/s], overrides: {b: [1/s]}}\nROUTES",
        "2:22: limiters.a.overrides: only with `key`, by whose value the limits differ",
    ),
    (
        "limiters:\n  a: {limits: [1/s], key: [host, path:1], overrides: {b: [1/s]}}\nROUTES",
        "2:43: limiters.a.overrides: only with a `key` of one part",
    ),
    (
        "limiters:\n  a: {limits: [1/s], key: [host], overrides: {b: 1/s}}\nROUTES",
        "2:50: limiters.a.overrides.b: expected a list such as [10/1s], found a text",
    ),
    (
        "limiters:\n  a: {limits: [1/s], key: [host], overrides: {b: [], c: [0/s], d: [1/s, 1/1s]}}\nROUTES",
        "2:50: limiters.a.overrides.b: needs 1 to 16 limits, such as 900/1m\n\
         2:58: limiters.a.overrides.c[0]: the rate must be from 1 to 1000000000\n\
         2:73: limiters.a.overrides.d[1]: this limit is given twice",
    ),
    (
        "limiters:\n  a: {limits: [1/s], key: [host], overrides: {b.c: [1/s], B.C.: [2/s]}}\nROUTES",
        "2:59: limiters.a.overrides.B.C.: is the same value of the key as \"b.c\"",
    ),
    (
        "limiters:\n  a: {limits: [1/s], key: [client_ip], overrides: {here: [1/s], 2001:db8::1: [1/s], '2001:db8::2': [2/s]}}\nROUTES",
        "2:52: limiters.a.overrides.here: expected an address, such as 192.0.2.1 or 2001:db8::\n\
         2:85: limiters.a.overrides.2001:db8::2: is the same value of the key as \"2001:db8::1\"",
    ),
    (
        "limiters:\n  a: {limits: [1/s], guard: 20ms, key: [host], overrides: {b: [1/10ms]}}\nROUTES",
        "2:64: limiters.a.overrides.b[0]: the guard, here 20ms, must not be longer than the window of \"1/10ms\"",
    ),
    (
        "limiters:
  a:
    limits: [20/s]
    key: [host]
    queue: {timeout: 1s}
    share: {by: route, classes: [{name: hi, of: [web], floor: 60%}, {name: lo, ceiling: 20%}]}
    overrides: {b: [20/1s, 4/1s], c: [5/1s], d: [1/1s]}
ROUTES",
        "7:28: limiters.a.overrides.b[1]: the ceiling lo of `share` leaves 20% of \"4/1s\", which is less than one permit\n\
         7:50: limiters.a.overrides.d[0]: the ceiling lo of `share` leaves 20% of \"1/1s\", which is less than one permit",
    ),
    (
        "limiters:
  a:
    limits: [20/s]
    key: [host]
    queue: {timeout: 1s}
    share: {by: route, classes: [{name: hi, of: [web], floor: 60%}, {name: lo}]}
    overrides: {b: [2/1s], c: [3/1s]}
ROUTES",
        "7:21: limiters.a.overrides.b[0]: the floor hi of `share` leaves 40% of \"2/1s\", which is less than one permit",
    ),
    (
        "limiters:\n  a: {limits: [1/s], key: [host], overrides: {file: x.yaml, b: [1/s]}}\nROUTES",
        "2:53: limiters.a.overrides.file: is the path of a file with all overrides, so it stands alone",
    ),
    (
        "limiters:\n  a: {limits: [1/s], key: [host], overrides: {file: /nonexistent/x.yaml}}\nROUTES",
        "2:53: limiters.a.overrides.file: the file /nonexistent/x.yaml cannot be read: No such file",
    ),
    (
        "limiters:\n  a: {limits: [5/s], key: [host], overrides: {b: [2/s]}}\nROUTES    limiter: a\n    cost: 3\n",
        "8:11: routes[0].cost: larger than limiter \"a\" can ever grant to \"b\": 2 at once (2/1s)",
    ),
    (
        "limiters:\n  a: {limits: [1/s], key: [header:x-api-key], overrides: {sk-1: [0/s]}}\nROUTES",
        "2:66: limiters.a.overrides.***: the rate must be from 1 to 1000000000",
    ),
    (
        "limiters:\n  a: {limits: [1/s], key: [header:x-api-key], overrides: {sk-1: [1/s], sk-1: [1/s]}}\nROUTES",
        "2:72: limiters.a.overrides.***: key \"***\" is given twice; the first is on line 2",
    ),
    (
        "limiters:\n  a: {limits: [1/s], key: [json:auth.Token], overrides: {sk-1: [0/s]}}\nROUTES",
        "2:65: limiters.a.overrides.***: the rate must be from 1 to 1000000000",
    ),
    (
        "limiters:\n  a: {limits: [1/s], key: [{json: api_key, map: {a: b}}], overrides: {sk-1: [0/s]}}\nROUTES",
        "2:78: limiters.a.overrides.***: the rate must be from 1 to 1000000000",
    ),
    (
        "limiters:\n  a: {limits: [0/s], key: [host], overrides: {b: [0/s]}}\nROUTES",
        "2:16: limiters.a.limits[0]: the rate must be from 1\n2:51: limiters.a.overrides.b[0]: the rate must be from 1",
    ),
    (
        "limiters:\n  a: {limits: [1/s], key: host, overrides: {b: [0/s]}}\nROUTES",
        "2:27: limiters.a.key: expected a list such as [header:x-tenant], found a text\n\
         2:49: limiters.a.overrides.b[0]: the rate must be from 1",
    ),
    // -- the faulty part of a value
    (
        "server:\n  header_timeout: 1sek\nROUTES",
        "2:19: server.header_timeout: unknown unit \"sek\"; known: ms, s, m, h, d",
    ),
    (
        "limiters:\n  a: {limits: [{rate: 5, per: 1sek}]}\nROUTES",
        "2:31: limiters.a.limits[0].per: unknown unit \"sek\"; known: ms, s, m, h, d, w, mo",
    ),
    (
        "limiters:\n  a: {limits: [900/1sek]}\nROUTES",
        "2:16: limiters.a.limits[0]: unknown unit \"sek\"; known: ms, s, m, h, d",
    ),
    ("log: {access: {sample: 5}}\nROUTES", "1:24: log.access.sample: expected a percentage"),
    ("log: {access: {sample: '5'}}\nROUTES", "1:24: log.access.sample: the `%` is missing behind \"5\""),
    (
        "listen: 127.0.0.1:99999\nROUTES",
        "1:9: listen: expected an IP address and a port, such as 127.0.0.1:8080 or [::]:8080: \"99999\" is no port",
    ),
    (
        "listen: localhost:80\nROUTES",
        "1:9: listen: expected an IP address and a port, such as 127.0.0.1:8080 or [::]:8080: \"localhost\" is no IP",
    ),
    (
        "server: {allow: [10.0.0.0/33]}\nROUTES",
        "1:18: server.allow[0]: expected an IP address or a CIDR block, such as 10.0.0.0/8 or ::1: \"33\" is no length",
    ),
    (
        "routes:\n  - {name: a, match: {}, upstream: 'http://a:99999'}\n",
        "2:36: routes[0].upstream: the port of the URL is not a number from 1 to 65535",
    ),
    (
        "routes:\n  - {name: a, match: {path_regex: '/a(b'}, upstream: 'http://a'}\n",
        "2:35: routes[0].match.path_regex: not a valid regular expression: unclosed group, at character 3, \"(b\"",
    ),
    // -- YAML that is nearly right
    ("log: {level: \"info}\nROUTES", "1:14: not valid YAML: this quote is not closed"),
    (
        "server:\n  drain_delay:5s\nROUTES",
        "2:3: server: a space is missing after the colon of \"drain_delay\"",
    ),
    (
        "log: {level:\u{a0}info}\nROUTES",
        "1:7: log.level: a no-break space stands behind the colon of \"level\"; use a space",
    ),
    (
        "server:\n  drain_delay:\u{a0}5s\nROUTES",
        "2:3: server: a no-break space stands behind the colon of \"drain_delay\"; use a space",
    ),
    ("log: {level:info}\nROUTES", "1:7: log.level: a space is missing after the colon of \"level\""),
    (
        "limiters:\n  a:\n    limits:[1/s]\n    queue: off\nROUTES",
        "3:12: not valid YAML: a space is missing after the colon of \"limits\"",
    ),
    ("log: {level: inf}\nROUTES", "1:14: log.level: unknown value \"inf\"; did you mean \"info\"?"),
    ("store: rediss\nROUTES", "1:8: store: unknown value \"rediss\"; did you mean \"redis\"?"),
    // -- meaning
    (
        "listen: localhost\nROUTES",
        "1:9: listen: expected an IP address and a port, such as 127.0.0.1:8080 or [::]:8080: \"localhost\" has no port",
    ),
    (
        "listen: 127.0.0.1:9090\nadmin: {listen: 127.0.0.1:9090}\nROUTES",
        "2:17: admin.listen: 127.0.0.1:9090 and `listen` (127.0.0.1:9090) take the same port",
    ),
    (
        "listen: 0.0.0.0:9090\nROUTES",
        "1:1: admin.listen: 127.0.0.1:9090 and `listen` (0.0.0.0:9090) take the same port",
    ),
    (
        "listen: '[::]:9090'\nROUTES",
        "1:1: admin.listen: 127.0.0.1:9090 and `listen` ([::]:9090) take the same port",
    ),
    ("server: {header_timeout: 9d}\nROUTES", "1:26: server.header_timeout: must be from 1ms to 1h"),
    ("server: {max_connections: 0}\nROUTES", "1:27: server.max_connections: must be from 1 to 1000000"),
    ("admin: {token: a b}\nROUTES", "1:16: admin.token: must consist of visible ASCII"),
    ("admin: {token: a, read_token: b c}\nROUTES", "1:31: admin.read_token: must consist of visible ASCII"),
    ("admin: {read_token: a}\nROUTES", "1:21: admin.read_token: needs `token` beside it"),
    ("admin: {token: a, read_token: a}\nROUTES", "1:31: admin.read_token: is `token`, too"),
    (
        "limiters:\n  a: {limits: [0/1s]}\nROUTES",
        "2:16: limiters.a.limits[0]: the rate must be from 1 to 1000000000",
    ),
    (
        "limiters:\n  a: {limits: [{rate: -3, per: 1s}]}\nROUTES",
        "2:23: limiters.a.limits[0].rate: the rate must be from 1 to 1000000000",
    ),
    (
        "limiters:\n  a: {limits: [1/367d]}\nROUTES",
        "2:16: limiters.a.limits[0]: the window must be from 1ms to 366d",
    ),
    (
        "limiters:\n  a: {limits: [1/0s]}\nROUTES",
        "2:16: limiters.a.limits[0]: the window must be from 1ms to 366d",
    ),
    ("limiters:\n  a: {limits: []}\nROUTES", "2:15: limiters.a.limits: needs 1 to 16 limits"),
    (
        "limiters:\n  a: {limits: [60/1m, {rate: 60, per: 60s}]}\nROUTES",
        "2:23: limiters.a.limits[1]: this limit is given twice",
    ),
    (
        "limiters:\n  a: {limits: [{rate: 1, per: 1s, precision: 0}]}\nROUTES",
        "2:46: limiters.a.limits[0].precision: must be from 1 to 65536",
    ),
    (
        "limiters:\n  a: {limits: [{rate: 1, per: 1s, burst: 2}]}\nROUTES",
        "2:35: limiters.a.limits[0].burst: only with `algorithm: token_bucket`",
    ),
    ("limiters:\n  a: {limits: [1/s], guard: 2s}\nROUTES", "2:29: limiters.a.guard: must be from 1ms to 1s"),
    (
        "limiters:\n  a: {limits: [1/5ms, 1/s], guard: 6ms}\nROUTES",
        "2:36: limiters.a.guard: must not be longer than the window of \"1/5ms\"",
    ),
    ("limiters:\n  a b: {limits: [1/s]}\nROUTES", "2:3: limiters.a b: a name is 1 to 64 letters"),
    ("routes: []\n", "1:9: routes: needs at least one route"),
    (
        "ROUTES  - {name: api, match: {}, upstream: 'http://a'}\n",
        "5:12: routes[1].name: routes[0] already has this name",
    ),
    (
        "limiters:\n  github: {limits: [1/s]}\nROUTES    limiter: gihtub\n",
        "7:14: routes[0].limiter: unknown limiter \"gihtub\"; did you mean \"github\"?",
    ),
    (
        "ROUTES    limiters: []\n",
        "5:15: routes[0].limiters: names no limiter; `limiters: off` says that none is meant",
    ),
    (
        "limiters:\n  a: {limits: [100/1m, 5/1s]}\nROUTES    limiter: a\n    cost: 6\n",
        "8:11: routes[0].cost: larger than limiter \"a\" can ever grant: 5 at once (5/1s)",
    ),
    ("ROUTES    cost: 0\n", "5:11: routes[0].cost: must be from 1 to 1000000000"),
    (
        "ROUTES    strip_prefix: /ap\n",
        "5:19: routes[0].strip_prefix: is not the beginning of the matched path",
    ),
    (
        "routes:\n  - {name: a, match: {path_regex: '/a/[0-9]+|/ab'}, upstream: 'http://a', strip_prefix: /a}\n",
        "2:89: routes[0].strip_prefix: needs `match.path`, `match.exact_path` or a `match.path_regex` that begins with it",
    ),
    (
        "routes:\n  - {name: a, match: {path_regex: '/a('}, upstream: 'http://a', strip_prefix: /a}\n",
        "2:35: routes[0].match.path_regex: not a valid regular expression",
    ),
    (
        "routes:\n  - {name: a, match: {}, upstream: 'http://a', strip_prefix: /a}\n",
        "2:62: routes[0].strip_prefix: needs `match.path`",
    ),
    ("ROUTES    strip_prefix: /\n", "5:19: routes[0].strip_prefix: strips nothing"),
    (
        "ROUTES    set_headers: {\"a b\": c}\n",
        "5:19: routes[0].set_headers.a b: expected the name of a header",
    ),
    ("ROUTES    set_headers: {x: \"a\\nb\"}\n", "5:22: routes[0].set_headers.x: the value holds characters"),
    (
        "ROUTES    set_headers: {Host: a}\n",
        "5:19: routes[0].set_headers.Host: weir sets `host` itself; see `preserve_host`",
    ),
    ("ROUTES    set_headers: {a: b, A: c}\n", "5:25: routes[0].set_headers.A: this header is given twice"),
    ("ROUTES    remove_headers: [te]\n", "5:22: routes[0].remove_headers[0]: weir sets `te` itself"),
    (
        "routes:\n  - {name: a, match: {path_regex: '('}, upstream: 'http://a'}\n",
        "2:35: routes[0].match.path_regex: not a valid regular expression: unclosed group",
    ),
    (
        "routes:\n  - {name: a, match: {path_regex: 'a)|(b'}, upstream: 'http://a'}\n",
        "2:35: routes[0].match.path_regex: not a valid regular expression",
    ),
    (
        "routes:\n  - {name: a, match: {path: a}, upstream: 'http://a'}\n",
        "2:29: routes[0].match.path: must begin with `/`",
    ),
    (
        "routes:\n  - {name: a, match: {path: /a%20b}, upstream: 'http://a'}\n",
        "2:29: routes[0].match.path: must be visible ASCII",
    ),
    (
        "routes:\n  - {name: a, match: {path: /a/../b}, upstream: 'http://a'}\n",
        "2:29: routes[0].match.path: must not hold",
    ),
    (
        "routes:\n  - {name: a, match: {path: /, exact_path: /}, upstream: 'http://a'}\n",
        "2:22: routes[0].match: `path`, `exact_path` and `path_regex` exclude each other",
    ),
    (
        "routes:\n  - {name: a, match: {host: 'a:80'}, upstream: 'http://a'}\n",
        "2:29: routes[0].match.host: expected a host without a port",
    ),
    (
        "routes:\n  - {name: a, match: {methods: [get]}, upstream: 'http://a'}\n",
        "2:33: routes[0].match.methods[0]: methods are written in capitals",
    ),
    (
        "routes:\n  - {name: a, match: {}, upstream: 'ftp://a'}\n",
        "2:36: routes[0].upstream: the URL must begin with http:// or https://",
    ),
    (
        "routes:\n  - {name: a, match: {}, upstream: 'https://.api.example.com'}\n",
        "2:36: routes[0].upstream: no certificate can have the host of the URL as its name",
    ),
    (
        "routes:\n  - {name: a, match: {}, upstream: {url: 'https://-a.example'}}\n",
        "2:42: routes[0].upstream.url: no certificate can have the host of the URL as its name",
    ),
    (
        "routes:\n  - {name: a, match: {}, upstream: {url: 'https://a', ca: junk}}\n",
        "2:59: routes[0].upstream.ca: the file ",
    ),
    (
        "routes:\n  - {name: a, match: {}, upstream: 'http://u:p@a'}\n",
        "2:36: routes[0].upstream: the URL must not hold a user or password",
    ),
    (
        "routes:\n  - {name: a, match: {}, upstream: {url: 'http://a?b'}}\n",
        "2:42: routes[0].upstream.url: the URL must have no query",
    ),
    (
        "routes:\n  - {name: a, match: {}, upstream: {url: 'http://a', ca: pem}}\n",
        "2:54: routes[0].upstream.ca: needs a URL that begins with https://",
    ),
    (
        "routes:\n  - {name: a, match: {}, upstream: {url: 'http://a', cert: pem, key: key}}\n",
        "2:54: routes[0].upstream.cert: needs a URL that begins with https://\n\
         2:65: routes[0].upstream.key: needs a URL that begins with https://",
    ),
    (
        "routes:\n  - {name: a, match: {}, upstream: {url: 'https://a', cert: pem}}\n",
        "2:55: routes[0].upstream.cert: needs `routes[0].upstream.key` beside it",
    ),
    (
        "routes:\n  - {name: a, match: {}, upstream: {url: 'https://a', cert: pem, key: other}}\n",
        "2:71: routes[0].upstream.key: is not the key of the certificate in `cert`",
    ),
    (
        "routes:\n  - {name: a, match: {}, upstream: {url: 'https://a', cert: key, key: pem}}\n",
        "2:61: routes[0].upstream.cert: the file \n2:71: routes[0].upstream.key: the file ",
    ),
    (
        "routes:\n  - {name: a, match: {}, upstream: {url: 'http://a', proxy: 'https://b:3128'}}\n",
        "2:61: routes[0].upstream.proxy: the URL must begin with http://",
    ),
    (
        "routes:\n  - {name: a, match: {}, upstream: {url: 'http://a', proxy: 'http://u:s3cret@b/x'}}\n",
        "2:61: routes[0].upstream.proxy: the URL of a proxy has no path",
    ),
    (
        "store: {redis: {url: 'http://a'}}\nROUTES",
        "1:22: store.redis.url: the URL must begin with redis:// or rediss://",
    ),
    ("store: {redis: {timeout: 1s}}\nROUTES", "1:9: store.redis: the key `url` is missing; or give"),
    (
        "store: {redis: {cluster: ['redis://a:1', 'rediss://b:1', 'redis://c:1/2']}}\nROUTES",
        "1:42: store.redis.cluster[1]: redis:// and rediss:// cannot be mixed\n\
         1:58: store.redis.cluster[2]: these URLs name no database",
    ),
    (
        "store: {redis: {cluster: ['redis://u:s3cret@a:1', 'redis://u:s%33cret@b:1', 'redis://u:0ther@c:1', 'redis://d:1']}}\nROUTES",
        "1:77: store.redis.cluster[2]: all nodes of a Cluster need the same user and password as the first one\n\
         1:100: store.redis.cluster[3]: all nodes of a Cluster need the same user and password as the first one",
    ),
    (
        "store: {redis: {cluster: ['redis://u:s3cret@a:1', 'redis://v:s3cret@b:1']}}\nROUTES",
        "1:51: store.redis.cluster[1]: all nodes of a Cluster need the same user and password as the first one",
    ),
    (
        "store: {redis: {cluster: ['redis://0.0.0.0:1', 'redis://[::]:1', 'redis://[::1]:1']}}\nROUTES",
        "1:27: store.redis.cluster[0]: 0.0.0.0 and [::] cannot be connected to\n\
         1:48: store.redis.cluster[1]: 0.0.0.0 and [::] cannot be connected to",
    ),
    (
        "store: {redis: {url: 'redis://u:s3cret%ff@a'}}\nROUTES",
        "1:22: store.redis.url: the user and the password in the URL must be UTF-8",
    ),
    (
        "store: {redis: {sentinel: {nodes: ['redis://u%ff@a'], master: m}}}\nROUTES",
        "1:36: store.redis.sentinel.nodes[0]: the user and the password in the URL must be UTF-8",
    ),
    (
        "store: {redis: {cluster: [], tls: {ca: pem}}}\nROUTES",
        "1:26: store.redis.cluster: needs at least one URL",
    ),
    (
        "store: {redis: {cluster: ['redis://a'], sentinel: {nodes: ['redis://a'], master: ''}}}\nROUTES",
        "1:9: store.redis: `url`, `cluster` and `sentinel` exclude each other\n\
         1:82: store.redis.sentinel.master: must not be empty",
    ),
    (
        "store: {redis: {sentinel: {nodes: ['redis://a'], master: m, username: u, database: 70000}}}\nROUTES",
        "1:61: store.redis.sentinel.username: needs `password` beside it\n\
         1:84: store.redis.sentinel.database: must be from 0 to 65535",
    ),
    (
        "store: {redis: {cluster: ['redis://a']}}\nlimiters: {a: {limits: [1/s]}, b: {limits: [1/s], group: c}}\n\
         routes:\n  - {name: a, match: {}, upstream: 'http://a', limiters: [a, b]}\n",
        "4:62: routes[0].limiters[1]: on a Redis Cluster the limiters of one route need the same `group`: \"a\" is in \"a\"",
    ),
    (
        "store: {redis: {url: 'redis://a/x'}}\nROUTES",
        "1:22: store.redis.url: the path of the URL must be a database number",
    ),
    (
        "store: {redis: {url: 'redis://a', tls: {}}}\nROUTES",
        "1:35: store.redis.tls: needs URLs that begin with rediss://",
    ),
    (
        "store: {redis: {url: 'rediss://a', tls: {cert: pem}}}\nROUTES",
        "1:42: store.redis.tls.cert: needs `store.redis.tls.key` beside it",
    ),
    (
        "store: {redis: {url: 'redis://a', key_prefix: 'a{b}'}}\nROUTES",
        "1:47: store.redis.key_prefix: must be 1 to 64 letters",
    ),
];

/// Like [`BROKEN`], for limiters and routes: partitions, algorithms, costs and several limiters.
const BROKEN_LIMITERS: &[(&str, &str)] = &[
    (
        "limiters:\n  a: {limits: 10/1s}\nROUTES",
        "2:15: limiters.a.limits: expected a list such as [10/1s], found a text",
    ),
    (
        "limiters:\n  a: {limits: [1/s], queue: 10s}\nROUTES",
        "2:29: limiters.a.queue: expected off or a mapping such as {timeout: 10s}, found \"10s\"",
    ),
    (
        "routes:\n  - {name: a, match: /x, upstream: 'http://a'}\n",
        "2:22: routes[0].match: expected a mapping such as {path: /api}, found a text",
    ),
    // -- algorithms
    (
        "limiters:\n  a: {limits: [{rate: 1, per: 1w}]}\nROUTES",
        "2:31: limiters.a.limits[0].per: `1w` and `1mo` need `algorithm: fixed_window`",
    ),
    (
        "limiters:\n  a: {limits: [{rate: 1, per: 7h, algorithm: fixed_window}]}\nROUTES",
        "2:31: limiters.a.limits[0].per: with fixed_window it must divide a day, or be 1d, 1w or 1mo",
    ),
    (
        "limiters:\n  a: {limits: [{rate: 1, per: 2d, algorithm: fixed_window}]}\nROUTES",
        "2:31: limiters.a.limits[0].per: with fixed_window it must divide a day, or be 1d, 1w or 1mo",
    ),
    (
        "limiters:\n  a: {limits: [{rate: 1, per: 0s, algorithm: fixed_window}]}\nROUTES",
        "2:31: limiters.a.limits[0].per: with fixed_window it must divide a day, or be 1d, 1w or 1mo",
    ),
    (
        "limiters:\n  a: {limits: [{rate: 1, per: 1d, algorithm: fixed_window, timezone: Asia/Shangai}]}\nROUTES",
        "2:70: limiters.a.limits[0].timezone: unknown time zone \"Asia/Shangai\"; did you mean \"Asia/Shanghai\"?",
    ),
    (
        "limiters:\n  a: {limits: [{rate: 1, per: 1d, algorithm: fixed_window, timezone: here}]}\nROUTES",
        "2:70: limiters.a.limits[0].timezone: unknown time zone \"here\"; expected a name such as UTC or Asia/Shanghai",
    ),
    (
        "limiters:\n  a: {limits: [{rate: 1, per: 1d, timezone: UTC}]}\nROUTES",
        "2:35: limiters.a.limits[0].timezone: only with `algorithm: fixed_window`",
    ),
    (
        "limiters:\n  a: {limits: [{rate: 1, per: 1s, algorithm: warm_up}]}\nROUTES",
        "2:46: limiters.a.limits[0].algorithm: needs `warm_up`, the idle time after which it is cold, such as 10s",
    ),
    (
        "limiters:\n  a: {limits: [{rate: 1, per: 1s, algorithm: warm_up, warm_up: 2d, cold: 101}]}\nROUTES",
        "2:64: limiters.a.limits[0].warm_up: must be from 1ms to 1d\n2:74: limiters.a.limits[0].cold: must be from 1 to 100",
    ),
    (
        "limiters:\n  a: {limits: [{rate: 1, per: 1s, cold: 3}]}\nROUTES",
        "2:35: limiters.a.limits[0].cold: only with `algorithm: warm_up`",
    ),
    (
        "limiters:\n  a: {limits: [{rate: 1, per: 1ms, algorithm: fixed_window}]}\nROUTES",
        "2:16: limiters.a.limits[0]: a fixed window must be at least twice the guard, here 1ms: \"1/1ms\" is shorter",
    ),
    (
        "limiters:\n  a: {limits: [{rate: 1, per: 1s, algorithm: fixed_window}], guard: 600ms}\nROUTES",
        "2:69: limiters.a.guard: 600ms is more than half of the fixed window of \"1/1s\"",
    ),
    (
        "limiters:\n  a: {limits: [{rate: 1, per: 1d, algorithm: token_bucket, burst: 367}]}\nROUTES",
        "2:67: limiters.a.limits[0].burst: an empty bucket must be full again within 366d",
    ),
    (
        "limiters:\n  a: {limits: [{rate: 5, per: 1s, algorithm: token_bucket, burst: 0}]}\nROUTES",
        "2:67: limiters.a.limits[0].burst: must be from 1 to 1000000000",
    ),
    (
        "limiters:\n  a: {limits: [{rate: 5, per: 1s, algorithm: leaky_bucket}, {rate: 5, per: 1s, algorithm: leaky_bucket}]}\nROUTES",
        "2:61: limiters.a.limits[1]: this limit is given twice",
    ),
    (
        "limiters:\n  a: {limits: [{rate: 5, per: 1s, algorithm: gcra}]}\nROUTES",
        "2:46: limiters.a.limits[0].algorithm: unknown value \"gcra\"; known: sliding_window, token_bucket",
    ),
    // -- partitions
    ("limiters:\n  a: {limits: [1/s], key: []}\nROUTES", "2:27: limiters.a.key: needs 1 to 16 parts"),
    (
        "limiters:\n  a: {limits: [1/s], key: ['header:a b', ip, 'path:-1', 'path:256', 'query:', 'path:']}\nROUTES",
        "2:28: limiters.a.key[0]: expected header:NAME, query:NAME, host, path:N (a segment, from 0), client_ip, client or json:PATH (such as json:model)\n\
         2:42: limiters.a.key[1]: expected\n2:46: limiters.a.key[2]: expected\n2:57: limiters.a.key[3]: expected\n\
         2:69: limiters.a.key[4]: expected\n2:79: limiters.a.key[5]: expected",
    ),
    (
        "limiters:\n  a: {limits: [1/s], key: [header:X-A, header:x-a]}\nROUTES",
        "2:40: limiters.a.key[1]: this part is given twice",
    ),
    (
        "limiters:\n  a: {limits: [1/s], key: [host], ipv6_prefix: 56}\nROUTES",
        "2:35: limiters.a.ipv6_prefix: only with `client_ip` in `key`",
    ),
    (
        "limiters:\n  a: {limits: [1/s], key: [client_ip], ipv4_prefix: 33}\nROUTES",
        "2:53: limiters.a.ipv4_prefix: must be from 1 to 32",
    ),
    (
        "limiters:\n  a: {limits: [1/s], max_partitions: 5}\nROUTES",
        "2:22: limiters.a.max_partitions: only with `key`",
    ),
    (
        "limiters:\n  a: {limits: [1/s], show_values: true}\nROUTES",
        "2:22: limiters.a.show_values: only with `key`",
    ),
    (
        "limiters:\n  a: {limits: [1/s], key: [host, \"query:Api_Key\"], show_values: true}\nROUTES",
        "2:65: limiters.a.show_values: must be false, because `key` has a credential",
    ),
    (
        "limiters:\n  a: {limits: [1/s], key: [host], max_partitions: 0}\nROUTES",
        "2:51: limiters.a.max_partitions: must be from 1 to 10000000",
    ),
    ("limiters:\n  a: {limits: [1/s], group: 'a b'}\nROUTES", "2:29: limiters.a.group: a name is 1 to 64"),
    // -- several limiters
    (
        "limiters: {a: {limits: [0/s]}}\nROUTES    limiters: [a, a]\n",
        "1:25: limiters.a.limits[0]: the rate\n6:19: routes[0].limiters[1]: this limiter is given twice",
    ),
    (
        "limiters: {a: {limits: [1/s]}}\nROUTES    limiters: [a, a]\n",
        "6:19: routes[0].limiters[1]: this limiter is given twice",
    ),
    (
        "limiters: {a: {limits: [1/s]}}\nROUTES    limiter: a\n    limiters: [a]\n",
        "7:5: routes[0].limiters: `limiter` and `limiters` exclude each other\n7:16: routes[0].limiters[0]: this limiter",
    ),
    (
        "limiters: {a: {limits: [1/s]}, b: {limits: [1/s], scope: per_replica}}\nROUTES    limiters: [a, b]\n",
        "6:19: routes[0].limiters[1]: limiters of one route need the same `scope`: \"a\" is overall, \"b\" is per_replica",
    ),
    (
        "limiters: {a: {limits: [1/s]}}\nROUTES    limiters: [a, b, c, d, e, f, g, h, i]\n",
        "6:15: routes[0].limiters: names more than 8 limiters\n6:19: routes[0].limiters[1]: unknown limiter \"b\"\n\
         6:22: routes\n6:25: routes\n6:28: routes\n6:31: routes\n6:34: routes\n6:37: routes\n6:40: routes",
    ),
    // -- costs
    (
        "limiters: {a: {limits: [{rate: 9, per: 1s, algorithm: token_bucket, burst: 5}]}}\nROUTES    limiter: a\n    \
         cost: 6\n",
        "7:11: routes[0].cost: larger than limiter \"a\" can ever grant: 5 at once (9/1s)",
    ),
    (
        "limiters: {a: {limits: [9/s]}, b: {limits: [5/s]}}\nROUTES    limiters: [a, b]\n    \
         cost: {header: weir-cost, default: 6, max: 9}\n",
        "7:40: routes[0].cost.default: larger than limiter \"b\" can ever grant: 5 at once (5/1s)",
    ),
    (
        "ROUTES    cost: {header: weir-cost, default: 6, max: 5}\n",
        "5:40: routes[0].cost.default: `default` must not be larger than `max`",
    ),
    (
        "ROUTES    cost: {header: weir-cost, max: 0}\n",
        "5:36: routes[0].cost.max: must be from 1 to 1000000000",
    ),
    ("ROUTES    cost: {header: 'a b'}\n", "5:20: routes[0].cost.header: expected the name of a header"),
    ("ROUTES    cost: {header: content-length}\n", "5:20: routes[0].cost.header: this header frames"),
    (
        "ROUTES    cost: {default: 5}\n",
        "5:11: routes[0].cost: needs `header`, `json`, `tokens`, `estimate` or `settle`",
    ),
    // -- clients
    ("server: {allow: []}\nROUTES", "1:17: server.allow: lets nobody in; leave the key out"),
    (
        "server: {public_url: https://weir.internal/api}\nROUTES",
        "1:22: server.public_url: the URL must have no path, query or fragment",
    ),
    (
        "server: {allow: [10.0.0.0/8, 10.0.0.0/33, localhost], trusted_proxies: ['::1', 10.0.0]}\nROUTES",
        "1:30: server.allow[1]: expected an IP address or a CIDR block, such as 10.0.0.0/8 or ::1\n\
         1:43: server.allow[2]: expected\n1:80: server.trusted_proxies[1]: expected",
    ),
    ("clients: {}\nROUTES", "1:10: clients: names no client, so nobody may call; leave the key out"),
    ("clients: {a: {}}\nROUTES", "1:11: clients.a: needs `tokens` or `certificate`"),
    ("clients: {a: {tokens: []}}\nROUTES", "1:11: clients.a: needs `tokens` or `certificate`"),
    ("clients: {'a b': {tokens: [x]}}\nROUTES", "1:11: clients.a b: a name is 1 to 64"),
    (
        "clients: {a: {tokens: ['', 'x y', x]}}\nROUTES",
        "1:24: clients.a.tokens[0]: must consist of visible ASCII characters, at least one\n\
         1:28: clients.a.tokens[1]: must consist of visible",
    ),
    (
        "clients: {a: {tokens: [x, x]}, b: {tokens: [y, x]}}\nROUTES",
        "1:48: clients.b.tokens[1]: client \"a\" has this token already",
    ),
    (
        "clients: {billing: {tokens: [x]}}\nROUTES    clients: [biling, billing]\n",
        "6:15: routes[0].clients[0]: unknown client \"biling\"; did you mean \"billing\"?",
    ),
    ("ROUTES    clients: [a]\n", "5:15: routes[0].clients[0]: unknown client \"a\"; there is none"),
    (
        "clients: {a: {tokens: [x]}}\nROUTES    clients: []\n",
        "6:14: routes[0].clients: names no client; leave the key out",
    ),
    ("server: {tls: {cert: pem}}\nROUTES", "1:15: server.tls: the key `key` is missing"),
    (
        "server: {tls: {cert: key, key: pem, client_ca: none}}\nROUTES",
        "1:22: server.tls.cert: the file \n1:32: server.tls.key: the file \n1:48: server.tls.client_ca: the file ",
    ),
    (
        "server: {tls: {cert: pem, key: key, client_ca: junk}}\nROUTES",
        "1:48: server.tls.client_ca: the file ",
    ),
    (
        "server: {tls: {cert: pem, key: other}}\nROUTES",
        "1:32: server.tls.key: is not the key of the certificate in `cert`",
    ),
    (
        "clients: {a: {certificate: {san: a.internal}}}\nROUTES",
        "1:15: clients.a.certificate: needs `server.tls.client_ca`, by which certificates are verified",
    ),
    (
        "server: {tls: {cert: pem, key: key, client_ca: pem}}\n\
         clients: {a: {certificate: {san: ''}}, b: {certificate: {san: 'x y'}}, c: {certificate: {san: X.internal}},\n  \
         d: {certificate: {san: x.Internal}}}\nROUTES",
        "2:34: clients.a.certificate.san: expected a subject alternative name, such as reports.internal\n\
         2:63: clients.b.certificate.san: expected\n3:26: clients.d.certificate.san: client \"c\" has this name already",
    ),
    (
        "limiters:\n  a: {limits: [1/s], key: [host, client]}\nROUTES",
        "2:34: limiters.a.key[1]: `client` needs `clients` at the top of the file",
    ),
    (
        "limiters:\n  a: {limits: [1/s], sync: always}\nROUTES",
        "2:28: limiters.a.sync: expected off or headers",
    ),
    (
        "limiters:\n  a: {limits: [1/s], pause: {rules: [{status: 429}, {status: 100}], max: 2d}}\n  \
         b: {limits: [1/s], pause: {rules: []}}\n  \
         c: {limits: [1/s], pause: {max: 1h, guess: {first: 2s, max: 1s}, rules: [{status: 429, for: 2h}]}}\n  \
         d: {limits: [1/s], pause: {rules: [{status: 403, json: {a..b: c}, header: {\"a b\": c}}]}}\nROUTES",
        "2:62: limiters.a.pause.rules[1].status: must be a status from 200 to 599\n\
         2:74: limiters.a.pause.max: must be from 1ms to 1d\n\
         3:37: limiters.b.pause.rules: names nothing to pause on\n\
         4:54: limiters.c.pause.guess.first: must not be longer than `max`\n\
         4:95: limiters.c.pause.rules[0].for: must not be longer than `max`\n\
         5:59: limiters.d.pause.rules[0].json.a..b: expected the path of a value\n\
         5:78: limiters.d.pause.rules[0].header.a b: expected the name of a header",
    ),
    (
        "ROUTES    cost: {default: 2}\n    retry: {on: [429, 500, connect], attempts: 11, max_body: 1GiB}\n",
        "5:11: routes[0].cost: needs `header`, `json`, `tokens`, `estimate` or `settle`\n6:23: routes[0].retry.on[1]: must be connect, 429\n\
         6:48: routes[0].retry.attempts: must be from 2 to 10\n6:62: routes[0].retry.max_body: must be from 0B to 16MiB",
    ),
    (
        "ROUTES    cost: {settle: {header: 'x y', free: [99]}, max: 3}\n    retry: {on: []}\n",
        "5:29: routes[0].cost.settle.header: expected the name of a header\n\
         5:43: routes[0].cost.settle.free[0]: expected a status from 200 to 599\n\
         5:49: routes[0].cost.max: is for a cost that the request names, by `header` or `json`\n\
         6:17: routes[0].retry.on: names nothing to try again after",
    ),
    (
        "ROUTES    retry: {on: [never]}\n",
        "5:18: routes[0].retry.on[0]: expected connect, 429, 502, 503 or 504",
    ),
    (
        "limiters: {a: {limits: [1/s], queue: {timeout: 1s, patience: ['x y'], leave: 100%}}}\nROUTES",
        "1:63: limiters.a.queue.patience[0]: expected the name of a header, such as x-request-timeout\n\
         1:78: limiters.a.queue.leave: must be less than 100%",
    ),
    (
        "limiters: {a: {limits: [1/s], queue: {timeout: 1s, leave: 20}}}\nROUTES",
        "1:59: limiters.a.queue.leave: expected auto, a percentage such as 20%, or a duration such as 500ms",
    ),
    ("ROUTES    retry: {budget: 0%}\n", "5:21: routes[0].retry.budget: must be from 1% to 100%"),
    (
        "ROUTES    cost: {settle: {}}\n",
        "5:20: routes[0].cost.settle: needs `header`, `json`, `free`, or `input` or `output`",
    ),
    (
        "ROUTES    cost: {settle: {json: a.}}\n",
        "5:27: routes[0].cost.settle.json: expected the path of a value",
    ),
    (
        "ROUTES    cost: {settle: {json: [a, '']}}\n",
        "5:31: routes[0].cost.settle.json[1]: expected the path of a value",
    ),
    ("ROUTES    cost: {settle: {json: []}}\n", "5:27: routes[0].cost.settle.json: needs 1 to 8 paths"),
];

/// The replacement for `ROUTES` in an example: the last key of the file, open for more keys of its only route.
const ROUTES: &str = "routes:
  - name: api
    match: {path: /api}
    upstream: http://127.0.0.1:1
";

fn example(text: &str) -> String {
    text.replace("ROUTES", ROUTES)
}

/// Asserts that each example has exactly these problems, each beginning as expected.
fn assert_problems<'a>(place: &Place, examples: impl IntoIterator<Item = (&'a str, &'a str)>) {
    let mut wrong = String::new();
    for (text, expected) in examples {
        let problems = place.problems(example(text));
        let fits = problems.len() == expected.lines().count()
            && problems.iter().zip(expected.lines()).all(|(problem, expected)| problem.starts_with(expected));
        if !fits {
            wrong += &format!("{text}\nexpected:\n{expected}\nfound:\n{}\n\n", problems.join("\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

fn pem(place: Place) -> Place {
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let other = rcgen::KeyPair::generate().unwrap().serialize_pem();
    let key = certificate.signing_key.serialize_pem();
    // A certificate in PEM form that is none: `AAAA` is valid base64.
    let junk = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    place.file("pem", certificate.cert.pem()).file("key", key).file("other", other).file("junk", junk)
}

#[test]
fn every_broken_file_is_refused_with_its_place() {
    let place = pem(Place::new());
    assert_problems(&place, BROKEN.iter().chain(BROKEN_LIMITERS).copied());
}

#[test]
fn a_route_answers_as_the_server_does_unless_it_says_otherwise() {
    let config = Place::new().config(&example(
        "server: {errors: google, public_url: 'HTTPS://Weir.internal:443/'}\nROUTES    rewrite_links: false\n",
    ));
    assert_eq!(config.server.public_url.as_deref(), Some("https://weir.internal"));
    assert_eq!((config.server.errors, config.routes[0].errors), (Errors::Google, Errors::Google));
    assert!(!config.routes[0].rewrite_links);
    let config = Place::new().config(&example("server: {errors: google}\nROUTES    errors: aws\n"));
    assert_eq!(config.routes[0].errors, Errors::Aws);
}

#[test]
fn an_upstream_over_tls_has_a_host_that_a_certificate_can_name() {
    let place = Place::new();
    let label = "a".repeat(64);
    for (host, can_be_named) in [
        ("api.example.com", true),
        ("api.example.com.", true),
        ("api_v1.example.com", true),
        ("xn--bcher-kva.example", true),
        ("127.0.0.1", true),
        ("[::1]", true),
        (".api.example.com", false),
        ("a..example", false),
        ("-a.example", false),
        (label.as_str(), false),
    ] {
        for (scheme, is_sound) in [("https", can_be_named), ("http", true)] {
            let route = format!("routes: [{{name: a, match: {{}}, upstream: '{scheme}://{host}'}}]\n");
            let problems = place.problems(&route);
            assert_eq!(problems.is_empty(), is_sound, "{scheme} {host}: {problems:?}");
        }
        let store = format!("store: {{redis: {{url: 'rediss://{host}'}}}}\nROUTES");
        let problems = place.problems(example(&store));
        assert_eq!(problems.is_empty(), can_be_named, "{host}: {problems:?}");
    }
}

#[test]
fn listeners_that_can_both_be_bound_are_taken() {
    let place = Place::new();
    for (one, other, can_both) in [
        ("0.0.0.0:80", "[::1]:80", true),
        ("0.0.0.0:80", "0.0.0.0:80", false),
        ("0.0.0.0:80", "127.0.0.1:80", false),
        ("0.0.0.0:80", "[::ffff:127.0.0.1]:80", false),
        ("[::ffff:0.0.0.0]:80", "127.0.0.1:80", false),
        ("[::ffff:127.0.0.1]:80", "127.0.0.1:80", false),
        ("[::]:80", "127.0.0.1:80", false),
        ("[::]:80", "[::1]:80", false),
        ("[::]:80", "0.0.0.0:80", false),
        ("127.0.0.1:80", "[::1]:80", true),
        ("0.0.0.0:80", "0.0.0.0:81", true),
        ("0.0.0.0:0", "0.0.0.0:0", true),
    ] {
        for (traffic, admin) in [(one, other), (other, one)] {
            let text = format!("listen: '{traffic}'\nadmin: {{listen: '{admin}'}}\nROUTES");
            let problems = place.problems(example(&text));
            assert_eq!(problems.is_empty(), can_both, "{traffic} {admin}: {problems:?}");
        }
    }
}

#[test]
fn networks_are_parsed_as_addresses_and_blocks() {
    let config = Place::new().config(&example(
        "server: {allow: [10.0.0.1, '::1', 10.0.0.0/8, '::ffff:10.0.0.0/104'], trusted_proxies: ['2001:db8::/32']}\nROUTES",
    ));
    let shown = |networks: &[ipnet::IpNet]| networks.iter().map(ToString::to_string).collect::<Vec<_>>();
    let allow = shown(&config.server.allow.unwrap());
    // In the form in which addresses are compared.
    assert_eq!(allow, ["10.0.0.1/32", "::1/128", "10.0.0.0/8", "10.0.0.0/8"]);
    assert_eq!(shown(&config.server.trusted_proxies), ["2001:db8::/32"]);
}

#[test]
fn tokens_are_kept_as_digests_alone() {
    let place = pem(Place::new()).variable("TOKEN", "s3cret");
    let config = place.config(&example(
        "server: {tls: {cert: pem, key: key, client_ca: pem}}\nclients:\n  a: {tokens: [\"${TOKEN}\", other]}\n  \
         b: {certificate: {san: b.internal}}\nROUTES    clients: [a]\n",
    ));
    assert!(config.clients.is_some());
    let listed: Vec<_> = config.routes[0].clients.iter().flatten().map(|name| &**name).collect();
    assert_eq!(listed, ["a"]);
    let tls = config.server.tls.as_ref().unwrap();
    assert_eq!(tls.client_ca, Some(place.directory.path().join("pem")));
    let shown = format!("{config:?}");
    assert!(!shown.contains("s3cret") && !shown.contains("other"), "{shown}");
    assert_eq!(place.config(&example("ROUTES")).clients, None);
}

#[test]
fn problems_of_shape_and_of_meaning_are_reported_together() {
    let place = Place::new();
    let text = "\
limiters:
  a: {limits: [0/1s]}
  b: {limits: [5/10], queue: {timeout: 10}}
  c: {limits: [what, 0/2s]}
routes:
  - {name: 5, match: {}, upstream: 'ftp://a'}
  - {name: x, match: {}, upstream: 'http://a', limiter: b}
  - {name: x, match: {}, upstream: 'http://a', limiter: d, cost: 0}
";
    assert_problems(
        &place,
        [(
            text,
            "2:16: limiters.a.limits[0]: the rate must be
3:16: limiters.b.limits[0]: the unit is missing behind 10
3:40: limiters.b.queue.timeout: expected a duration
4:16: limiters.c.limits[0]: no `/` between rate and window
4:22: limiters.c.limits[1]: the rate must be
6:12: routes[0].name: expected a text
8:12: routes[2].name: routes[1] already has this name
8:57: routes[2].limiter: unknown limiter \"d\"; known: a, b, c
8:66: routes[2].cost: must be from 1",
        )],
    );
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let place = Place::new();
    let refused = |path: &Path, message: &str| {
        let error = config::load(path).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}:", path.display())) && error.contains(message), "{error}");
    };
    refused(Path::new("/nonexistent/weir.yaml"), "cannot read the file: No such file");
    refused(place.directory.path(), "cannot read the file: Is a directory");

    assert_eq!(place.problems(b"log: {}\nlisten: \xff\xfe\n"), ["2:9: the file is not UTF-8"]);
    assert_eq!(place.problems("#".repeat(1024 * 1024 + 1)), [" the file is larger than 1048576 bytes"]);
    assert_eq!(place.problems("\0").len(), 1);
}

#[test]
fn certificates_are_read() {
    let place = pem(Place::new()).file("empty", "");
    let redis = |tls: &str| format!("store: {{redis: {{url: 'rediss://a', tls: {{{tls}}}}}}}\nROUTES");
    assert_problems(&place, [(redis("ca: none").as_str(), "1:46: store.redis.tls.ca: the file ")]);
    assert_problems(&place, [(redis("ca: empty").as_str(), "1:46: store.redis.tls.ca: the file ")]);
    assert_problems(&place, [(redis("ca: junk").as_str(), "1:46: store.redis.tls.ca: the file ")]);
    assert_problems(
        &place,
        [(redis("cert: pem, key: pem").as_str(), "1:58: store.redis.tls.key: the file ")],
    );
    let config = place.config(&example(&redis("ca: pem, cert: pem, key: key")));
    let Store::Redis(redis) = config.store else { panic!("no redis") };
    assert_eq!(redis.tls.ca, Some(place.directory.path().join("pem")));
    assert!(redis.tls.identity.is_some());
}

#[test]
fn values_from_outside_are_used_and_never_repeated() {
    let place = Place::new()
        .variable("RATE", "20")
        .variable("SECRET", "s3cret value")
        .variable("QUOTA", "s3cret")
        .file("token", "from-a-file\n");
    let config = place.config(&example(
        "admin: {token: '${file:token}'}\nlimiters:\n  a: {limits: [{rate: '${RATE}', per: \"${PER:-1s}\"}]}\nROUTES    \
         limiter: a\n    set_headers: {authorization: 'Bearer ${SECRET}'}\n",
    ));
    assert_eq!(config.admin.token.as_ref().map(|token| token.reveal()), Some("from-a-file"));
    assert_eq!(&*config.limiters[0].limits[0].label, "20/1s");
    let (name, value) = &config.routes[0].set_headers[0];
    assert_eq!((name.as_str(), value.to_str().unwrap()), ("authorization", "Bearer s3cret value"));
    assert!(value.is_sensitive());
    assert!(!format!("{config:?}").contains("s3cret"));

    // Each of these values is invalid at its place.
    let secret = "'${SECRET}'";
    for text in [
        format!("listen: {secret}\nROUTES"),
        format!("admin: {{token: {secret}}}\nROUTES"),
        format!("log: {{level: {secret}}}\nROUTES"),
        format!("log: {{access: {secret}}}\nROUTES"),
        format!("server: {{header_timeout: {secret}, max_connections: {secret}}}\nROUTES"),
        format!("store: {secret}\nROUTES"),
        format!("store: {{redis: {{url: {secret}, tls: {{ca: {secret}}}, key_prefix: {secret}}}}}\nROUTES"),
        "limiters: {a: {limits: [{rate: 1, per: 1d, algorithm: fixed_window, timezone: '${QUOTA}'}], key: ['${SECRET}'], \
         group: '${SECRET}'}}\nROUTES    limiters: ['${QUOTA}']\n    cost: {header: '${SECRET}'}\n"
            .to_owned(),
        "limiters: {a: {limits: ['${QUOTA}', '${SECRET}'], queue: '${QUOTA}', guard: '${QUOTA}'}}\nROUTES"
            .to_owned(),
        format!("ROUTES    limiter: {secret}\n    strip_prefix: {secret}\n    cost: {secret}\n"),
        format!(
            "routes:\n  - {{name: {secret}, match: {{path: {secret}, host: {secret}}}, upstream: {secret}}}\n"
        ),
        format!(
            "routes:\n  - {{name: {secret}, match: {{path_regex: '(${{SECRET}}'}}, upstream: {{url: {secret}}}}}\n"
        ),
        "routes:\n  - {name: a, match: {methods: ['${SECRET}']}, upstream: 'ftp://${QUOTA}'}\n".to_owned(),
    ] {
        let problems = place.problems(example(&text));
        assert!(!problems.is_empty(), "{text}");
        assert!(!problems.join("\n").contains("s3cret"), "{text}\n{}", problems.join("\n"));
    }
}

#[test]
fn omitted_keys_have_their_defaults() {
    let config = Place::new().config(&example("ROUTES"));
    assert_eq!(config.listen.to_string(), "0.0.0.0:8080");
    assert_eq!(config.admin.listen.to_string(), "127.0.0.1:9090");
    assert_eq!(config.admin.token, None);
    assert_eq!(config.server.max_connections, 10_000);
    assert_eq!(config.server.max_header_bytes, 65_536);
    assert_eq!(config.server.drain_timeout, Duration::from_secs(30));
    assert_eq!(config.log.level, tracing::Level::INFO);
    assert_eq!(config.store, Store::Memory);
    assert!(config.limiters.is_empty());
    let route = &config.routes[0];
    assert!(route.limiters.is_empty());
    assert_eq!(route.cost, Cost::Fixed(Permits::ONE));
    assert!(!route.preserve_host && !route.forwarded_headers);
    assert!(route.rewrite_links);
    assert_eq!((route.errors, config.server.errors), (Errors::Json, Errors::Json));
    assert_eq!(route.upstream.timeouts.connect, Duration::from_secs(5));
    assert_eq!(route.upstream.http2, Http2::Auto);
}

#[test]
fn limiters_are_parsed_as_written() {
    let config = Place::new().config(&example(
        "limiters:\n  b:\n    limits: [900/m, {rate: 5000, per: 3600s, precision: 10}]\n    queue: {timeout: 10s}\n    \
         on_store_failure: reject\n  a: {limits: [20/s], queue: false, guard: 5ms}\nROUTES    limiters: [b]\n    cost: 5\n",
    ));
    let [b, a] = config.limiters.as_slice() else { panic!("{:?}", config.limiters) };
    assert_eq!(b.name.as_str(), "b");
    let labels: Vec<&str> = b.limits.iter().map(|limit| &*limit.label).collect();
    assert_eq!(labels, ["900/1m", "5000/1h"]);
    assert_eq!(b.queue.as_ref().map(|queue| (queue.timeout.as_secs(), queue.max_waiting)), Some((10, 1000)));
    assert_eq!(b.on_store_failure, OnStoreFailure::Reject);
    assert_eq!(b.guard, Duration::from_millis(20));
    assert_eq!((&a.queue, a.guard, &*a.group), (&None, Duration::from_millis(5), "a"));
    assert_eq!((a.scope, a.mode, a.partitioned.clone()), (Scope::Overall, Mode::Enforce, None));
    assert_eq!(names(&config), ["b"]);
    assert_eq!((a.pause.clone(), a.follows_upstream), (Some(PausePolicy::default()), false));
    assert_eq!((&config.routes[0].retry, &config.routes[0].settle), (&None, &None));
    assert_eq!(config.routes[0].cost, Cost::Fixed(Permits::new(5).unwrap()));
}

/// Returns the limiters of the only route.
fn names(config: &Config) -> Vec<&str> {
    config.routes[0].limiters.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn algorithms_are_parsed_as_written() {
    let config = Place::new().config(&example(
        "limiters:\n  a:\n    limits:\n      - 10/1s\n      - {rate: 10, per: 1s, algorithm: token_bucket}\n      \
         - {rate: 10, per: 1000ms, algorithm: leaky_bucket}\n      - {rate: 9, per: 1s, algorithm: token_bucket, burst: 20}\n      \
         - {rate: 100, per: 1d, algorithm: fixed_window}\n      \
         - {rate: 100, per: 1d, algorithm: fixed_window, timezone: Asia/Shanghai}\n      \
         - {rate: 500, per: 1w, algorithm: fixed_window}\n      - {rate: 900, per: 1mo, algorithm: fixed_window}\n      \
         - {rate: 7, per: 1s, algorithm: warm_up, warm_up: 9s}\n      \
         - {rate: 8, per: 1s, algorithm: warm_up, warm_up: 1m, cold: 5}\nROUTES",
    ));
    let limits = &config.limiters[0].limits;
    let labels: Vec<&str> = limits.iter().map(|limit| &*limit.label).collect();
    assert_eq!(
        labels,
        [
            "10/1s",
            "10/1s token_bucket",
            "10/1s leaky_bucket",
            "9/1s",
            "100/1d UTC",
            "100/1d Asia/Shanghai",
            "500/1w",
            "900/1mo",
            "7/1s",
            "8/1s"
        ]
    );
    let burst = |limit: &Limit| match limit.algorithm {
        Algorithm::TokenBucket { burst } => burst.get(),
        _ => 0,
    };
    assert_eq!((burst(&limits[1]), burst(&limits[3])), (10, 20));
    assert_eq!(limits[2].algorithm, Algorithm::LeakyBucket);
    let days = |zone: &str| CalendarWindows::new(Period::Span(Duration::from_secs(86_400)), zone).unwrap();
    assert_eq!(limits[5].algorithm, Algorithm::FixedWindow { windows: days("Asia/Shanghai") });
    assert_eq!(limits[5].per, Duration::from_secs(86_400));
    assert_eq!(limits[7].per, Duration::from_secs(31 * 86_400));
    let warm_up = |seconds, cold: u32| Algorithm::WarmUp {
        warm_up: Duration::from_secs(seconds),
        cold: cold.try_into().unwrap(),
    };
    assert_eq!([&limits[8].algorithm, &limits[9].algorithm], [&warm_up(9, 3), &warm_up(60, 5)]);
    assert_eq!(config.limiters[0].guard, Duration::from_millis(10));
}

#[test]
fn partitions_costs_and_several_limiters_are_parsed_as_written() {
    let config = Place::new().config(&example(
        "limiters:\n  a:\n    limits: [100/s]\n    key: [header:X-Corp-Id, 'query:app id', host, path:2, client_ip]\n    ipv6_prefix: 56\n    \
         max_partitions: 7\n    show_values: true\n    group: g\n    mode: shadow\n  b: {limits: [{rate: 9, per: 1s, algorithm: token_bucket, burst: 40}], \
         key: [host]}\nROUTES    limiters: [a, b]\n    cost: {header: X-Cost}\n",
    ));
    let [a, b] = config.limiters.as_slice() else { panic!("{:?}", config.limiters) };
    assert_eq!(
        (a.partitioned.clone(), a.mode, &*a.group),
        (Some(Partitioned { shows_values: true, ..Partitioned::new(7) }), Mode::Shadow, "g")
    );
    assert_eq!((b.partitioned.clone(), &*b.group), (Some(Partitioned::new(100_000)), "b"));
    assert_eq!(names(&config), ["a", "b"]);
    let [(_, key), _] = config.routes[0].limiters.as_slice() else {
        panic!("{:?}", config.routes[0].limiters)
    };
    let expected = [
        KeyPart::Header("x-corp-id".parse().unwrap()),
        KeyPart::Query("app id".into()),
        KeyPart::Host,
        KeyPart::Path(2),
        KeyPart::ClientIp { ipv4: 32, ipv6: 56 },
    ];
    assert_eq!(**key, expected);
    let max = Permits::new(40).unwrap();
    assert_eq!(
        config.routes[0].cost,
        Cost::Header { name: "x-cost".parse().unwrap(), default: Permits::ONE, max }
    );

    let config = Place::new().config(&example(
        "store: {redis: {url: 'redis://a'}}\nlimiters:\n  a: {limits: [1/s], scope: per_replica}\n  \
         b: {limits: [1/s], scope: per_replica}\nROUTES    limiters: [a, b]\n",
    ));
    assert_eq!(config.limiters[0].scope, Scope::PerReplica);
    assert_eq!(names(&config), ["a", "b"]);
}

#[test]
fn routes_are_parsed_as_written() {
    let config = Place::new().config(
        r#"
routes:
  - name: prefix
    match: {path: /a/, host: "*.Example.com", methods: [GET], headers: {X-Tenant: acme}}
    upstream: HTTPS://Api.Example.com/v1/
    strip_prefix: /a
    preserve_host: true
  - name: any
    match: {path: /, host: "[::1]"}
    upstream: {url: "http://[::1]:8080", http2: off, timeout: 5s}
  - name: regex
    match: {path_regex: "/a|/a/[^/]+/b"}
    upstream: http://10.0.0.1
    strip_prefix: /a
"#,
    );
    let [prefix, any, regex] = config.routes.as_slice() else { panic!("{:?}", config.routes) };
    assert!(matches!(&prefix.matches.path, PathMatch::Prefix(path) if path == "/a"));
    assert_eq!(prefix.matches.host, Some(HostMatch::Suffix(".example.com".to_owned())));
    assert_eq!(prefix.matches.headers[0].0.as_str(), "x-tenant");
    assert_eq!(prefix.strip_prefix.as_deref(), Some("/a"));
    let upstream = &prefix.upstream;
    assert_eq!((&*upstream.host, upstream.port, upstream.tls), ("api.example.com", 443, true));
    assert_eq!((&*upstream.authority, &*upstream.base_path), ("api.example.com", "/v1"));

    assert!(matches!(any.matches.path, PathMatch::Any));
    assert_eq!(any.matches.host, Some(HostMatch::Exact("[::1]".to_owned())));
    assert_eq!((&*any.upstream.host, &*any.upstream.authority), ("::1", "[::1]:8080"));
    assert_eq!((any.upstream.http2, any.upstream.timeouts.headers.as_secs()), (Http2::Off, 5));
    assert_eq!(&*any.upstream.base_path, "");

    let PathMatch::Pattern(pattern) = &regex.matches.path else { panic!("{:?}", regex.matches.path) };
    assert!(pattern.is_match("/a") && pattern.is_match("/a/x/b"));
    assert!(!pattern.is_match("/ab") && !pattern.is_match("x/a/x/b") && !pattern.is_match("/a\n"));
    assert_eq!(regex.strip_prefix.as_deref(), Some("/a"));
}

#[test]
fn upstream_settings_are_parsed_as_written() {
    let place = pem(Place::new()).variable("PROXY_PASSWORD", "pa%2f55");
    let loaded = place
        .load(
            "routes:\n  - {name: a, match: {}, upstream: {url: 'https://a', cert: pem, key: key, \
             proxy: 'http://jane:${PROXY_PASSWORD}@egress.corp:3128'}}\n  \
             - {name: b, match: {}, upstream: {url: 'http://a', proxy: 'http://jane:s3cret@[::1]'}}\n",
        )
        .unwrap();
    let upstreams: Vec<_> = loaded.config.routes.iter().map(|route| &route.upstream).collect();
    let file = |name: &str| place.directory.path().join(name);
    assert_eq!(upstreams[0].identity, Some((file("pem"), file("key"))));
    let proxies: Vec<_> = upstreams.iter().map(|upstream| upstream.proxy.as_ref().unwrap()).collect();
    assert_eq!((&*proxies[0].host, proxies[0].port), ("egress.corp", 3128));
    assert_eq!((&*proxies[1].host, proxies[1].port), ("::1", 80));
    let revealed: Vec<_> = proxies.iter().map(|proxy| proxy.credentials.as_ref().unwrap().reveal()).collect();
    assert_eq!(revealed, ["jane:pa/55", "jane:s3cret"]);
    assert_eq!(loaded.masked()["routes"][1]["upstream"]["proxy"], "http://jane:***@[::1]");
    let shown = format!("{loaded:?}");
    assert!(!shown.contains("pa/55") && !shown.contains("pa%2f55") && !shown.contains("s3cret"), "{shown}");
}

#[test]
fn a_redis_store_shows_no_password() {
    let place = Place::new().variable("PASSWORD", "pa55");
    let loaded = place
        .load(example(
            "store:\n  redis: {url: 'rediss://user:${PASSWORD}@redis.internal/2', timeout: 50ms, pool_size: 2, \
             key_prefix: 'prod:weir', fleet_size: 3, confirm: replica}\nROUTES",
        ))
        .unwrap();
    let Store::Redis(redis) = &loaded.config.store else { panic!("no redis") };
    assert_eq!(redis.confirm, Confirm::Replica);
    let RedisServers::One(node) = &redis.servers else { panic!("one server") };
    assert_eq!(node.url.reveal(), "rediss://user:pa55@redis.internal/2");
    assert_eq!(redis.servers.addresses(), "redis.internal:6379");
    assert_eq!((redis.timeout, redis.pool_size, redis.fleet_size), (Duration::from_millis(50), 2, 3));
    assert_eq!(redis.key_prefix, "prod:weir");
    assert!(!format!("{loaded:?}").contains("pa55"));
}

#[test]
fn the_hash_covers_the_file_as_written() {
    let text = example("log: {level: '${LEVEL:-info}'}\nROUTES");
    let one = Place::new().config(&text);
    let other = Place::new().variable("LEVEL", "debug").config(&text);
    assert_eq!(one.hash, other.hash);
    assert_eq!(one.hash.len(), 16);
    assert_ne!(one.hash, Place::new().config(&format!("{text}\n")).hash);
}

#[test]
fn the_handle_reports_the_running_configuration_and_the_last_reload() {
    let place = Place::new();
    let loaded = |text: &str| place.load(example(text)).unwrap();
    let handle = Handle::new(loaded("listen: 127.0.0.1:1\nROUTES"));
    assert_eq!(handle.last_reload(), None);

    assert_eq!(
        handle.publish(loaded("listen: 127.0.0.1:2\nadmin: {listen: 127.0.0.1:3}\nROUTES"), Vec::new()),
        ["listen", "admin.listen"]
    );
    // The process still listens on its first address, so going back needs no restart.
    assert_eq!(
        handle.publish(loaded("listen: 127.0.0.1:1\nlog: {level: debug}\nROUTES"), Vec::new()),
        [""; 0]
    );
    assert_eq!(handle.loaded().masked()["log"]["level"], "debug");
    assert_eq!(
        handle.publish(loaded("listen: 127.0.0.1:1\nstore: {redis: {url: 'redis://a'}}\nROUTES"), Vec::new()),
        ["store"]
    );

    let running = handle.config();
    handle.refuse(place.load("routes: 5\n").unwrap_err());
    assert_eq!(handle.config().hash, running.hash);
    let last = handle.last_reload().unwrap();
    assert!(matches!(&last.outcome, Outcome::Refused { problems } if problems.len() == 1), "{last:?}");
}

/// Returns the configurations in config/.
fn shipped() -> Vec<PathBuf> {
    let files = fs::read_dir(Path::new(ROOT).join("config")).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<PathBuf> =
        files.filter(|file| file.extension().is_some_and(|end| end == "yaml")).collect();
    assert!(files.len() >= 3, "{files:?}");
    files
}

/// An environment with the variables that a file cannot do without (`${NAME:?why}`), and no other one.
fn needed(text: &str) -> impl Fn(&str) -> Result<String, VarError> {
    move |name| match text.contains(&format!("${{{name}:?")) {
        true => Ok("a-credential".to_owned()),
        false => Err(VarError::NotPresent),
    }
}

#[test]
fn every_shipped_file_needs_its_credentials_and_nothing_else() {
    for file in shipped() {
        let text = fs::read_to_string(&file).unwrap();
        let loaded = config::load_with(&file, &needed(&text)).unwrap_or_else(|error| panic!("{error}"));
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
        assert!(!text.contains(":-missing"), "{}: a credential that is not there passes", file.display());
        let without = config::load_with(&file, &|_| Err(VarError::NotPresent));
        assert_eq!(without.is_err(), text.contains(":?"), "{}", file.display());
    }
}

#[test]
fn parts_are_repeated_as_in_compose_files() {
    let text = "\
x-limiter: &limiter
  limits: [1/s]
  queue: {timeout: 5s}
x-unused: ${UNSET}
limiters:
  a: {<<: *limiter, limits: [2/s]}
  b: *limiter
routes:
  - &route {name: a, match: {path: /a}, upstream: 'http://a', limiter: a}
  - {<<: *route, name: b, match: {path: /b}, limiter: b}
";
    let config = Place::new().config(text);
    let labels: Vec<_> = config.limiters.iter().map(|limiter| &*limiter.limits[0].label).collect();
    assert_eq!(labels, ["2/1s", "1/1s"]);
    assert!(config.limiters.iter().all(|limiter| limiter.queue.is_some()));
    assert_eq!(config.routes[1].limiters[0].0.as_str(), "b");
    let wrong = text.replace("timeout: 5s", "timeout: 5x");
    let problems = Place::new().problems(&wrong);
    assert_eq!(problems, ["3:20: limiters.a.queue.timeout: unknown unit \"x\"; known: ms, s, m, h, d"]);
    let nested = text.replace("  b: *limiter", "  b: {<<: *limiter, x-note: 1}");
    assert!(Place::new().problems(&nested)[0].contains("unknown key \"x-note\""), "only at the top");
}

#[test]
fn the_commented_file_shows_every_key() {
    let text = fs::read_to_string(Path::new(ROOT).join("config/weir.yaml")).unwrap();
    let schema = config::json_schema();
    let definitions = schema["$defs"].as_object().unwrap().values();
    for object in std::iter::once(&schema).chain(definitions) {
        for key in object["properties"].as_object().into_iter().flat_map(|properties| properties.keys()) {
            let shown =
                [format!("{key}: "), format!("{key}:\n")].iter().any(|written| text.contains(written));
            assert!(shown, "config/weir.yaml does not show {key}");
        }
    }
}

#[test]
fn every_shipped_file_names_the_schema_to_editors() {
    let schema = Path::new(ROOT).join(SCHEMA_FILE).canonicalize().unwrap();
    for file in shipped().into_iter().chain([Path::new(ROOT).join("deploy/kubernetes/weir.yaml")]) {
        let text = fs::read_to_string(&file).unwrap();
        let first = text.lines().next().unwrap();
        let named = first.strip_prefix("# yaml-language-server: $schema=");
        let named = named.unwrap_or_else(|| panic!("{}: the first line names no schema", file.display()));
        let found = file.parent().unwrap().join(named).canonicalize();
        assert_eq!(found.ok().as_ref(), Some(&schema), "{}: {first}", file.display());
    }
}

/// Returns the overrides of the first limiter: value, labels of its limits.
fn overrides(config: &Config) -> Vec<(String, Vec<String>)> {
    let shown = |limiter: &std::sync::Arc<Limiter>| {
        let labels = limiter.limits.iter().map(|limit| limit.label.to_string());
        (limiter.value().unwrap().to_string(), labels.collect())
    };
    let mut overrides: Vec<_> = config.limiters[0].overrides().map(shown).collect();
    overrides.sort();
    overrides
}

/// The example with one limiter of this key and these overrides.
fn overriding(key: &str, overrides: &str) -> String {
    let clients = "clients: {acme: {tokens: [a]}, billing: {tokens: [b]}}\n";
    let limiter = format!("{{limits: [10/1s], key: [{key}], overrides: {overrides}}}");
    example(&format!(
        "{clients}limiters:\n  a: {limiter}\nROUTES    limiter: a\n    cost: {{header: x-cost}}\n"
    ))
}

#[test]
fn overrides_are_parsed_as_written() {
    let place = Place::new();
    let config = place.config(&overriding("client", "{acme: [100/s], billing: [1/1s, {rate: 9, per: 1d}]}"));
    let expected = [("acme", vec!["100/1s"]), ("billing", vec!["1/1s", "9/1d"])];
    let owned = |(value, labels): &(&str, Vec<&str>)| {
        ((*value).to_owned(), labels.iter().map(|label| (*label).to_owned()).collect())
    };
    assert_eq!(overrides(&config), expected.iter().map(owned).collect::<Vec<(String, Vec<String>)>>());
    assert!(
        matches!(config.routes[0].cost, Cost::Header { max, .. } if max.get() == 100),
        "the largest that anybody may have: {:?}",
        config.routes[0].cost
    );
    // With a list it is a value like any other.
    assert_eq!(overrides(&place.config(&overriding("host", "{file: [7/s]}")))[0].0, "file");
    let limiter = config.limiters[0].clone();
    let of = |limiter: &std::sync::Arc<Limiter>, value: &str| {
        let partition = Partition::of([Some(value.as_bytes())]);
        limiter.of_partition(Some(partition)).limits[0].label.to_string()
    };
    assert_eq!([of(&limiter, "acme"), of(&limiter, "other")], ["100/1s", "10/1s"]);
    // Values are compared as requests are read.
    for (key, written, read) in [
        ("host", "API.example.com.", "api.example.com"),
        ("client_ip", "2001:db8:0:1:2::3", "2001:db8:0:1::"),
        ("client_ip", "::ffff:192.0.2.1", "192.0.2.1"),
        ("path:1", "Acme", "Acme"),
    ] {
        let config = place.config(&overriding(key, &format!("{{'{written}': [7/s]}}")));
        assert_eq!(of(&config.limiters[0], read), "7/1s", "{key} {written}");
    }
}

#[test]
fn a_cost_above_a_ceiling_is_warned_of() {
    let with = |cost: &str| {
        let classes = "[{name: web, of: [x], floor: 20%}, {name: rest, ceiling: 10%}]";
        let limiter =
            format!("{{limits: [20/s], queue: {{timeout: 1s}}, share: {{by: route, classes: {classes}}}}}");
        let route =
            format!("{{name: x, match: {{path: /}}, upstream: 'http://a', limiter: a, cost: {cost}}}");
        let loaded = Place::new().load(format!("limiters: {{a: {limiter}}}\nroutes: [{route}]\n")).unwrap();
        loaded.warnings.iter().map(ToString::to_string).filter(|it| it.contains("cost")).collect::<Vec<_>>()
    };
    assert_eq!(with("2"), Vec::<String>::new());
    let [warning] = &*with("3") else { panic!() };
    let expected = r#"larger than limiter "a" can ever grant to "rest", by "ceiling rest": 2 at once; their requests are refused"#;
    assert!(warning.ends_with(expected), "{warning}");
    assert_eq!(with("17").len(), 2, "what the floor leaves, too");
}

#[test]
fn a_queue_beside_a_limiter_without_one_is_warned_of() {
    let warned = |without: &str, names: &str| {
        let limiters = format!(
            "{{a: {{limits: [1/s]{without}}}, b: {{limits: [1/s], queue: {{timeout: 1s}}}}, c: {{limits: [1/s]}}}}"
        );
        let routes = ["a", "b", "c"].map(|name| {
            format!("{{name: {name}, match: {{path: /{name}}}, upstream: 'http://a', limiter: {name}}}")
        });
        let route = format!("{{name: x, match: {{}}, upstream: 'http://a', limiters: [{names}]}}");
        let text = format!("limiters: {limiters}\nroutes: [{}, {route}]\n", routes.join(", "));
        let loaded = Place::new().load(text).unwrap();
        loaded.warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let [warning] = &*warned("", "b, a") else { panic!() };
    let expected = "routes[3].limiters: the limiter \"a\" has no `queue`, so no request of this route waits, and the queue of \"b\" \
                    is not used here; give \"a\" a queue too, or say by `queue: off` that this is meant";
    assert!(warning.ends_with(expected), "{warning}");
    let [warning] = &*warned("", "b, a, c") else { panic!() };
    assert!(warning.contains("the limiters \"a\" and \"c\" have no `queue`"), "{warning}");
    for (without, names) in [
        ("", "a, c"),
        (", queue: off", "a, b"),
        (", mode: shadow", "a, b"),
        (", queue: {timeout: 2s}", "a, b"),
    ] {
        assert_eq!(warned(without, names), Vec::<String>::new(), "{without} {names}");
    }
}

#[test]
fn a_pattern_in_a_path_is_warned_of() {
    let warned = |matches: &str| {
        let text =
            format!("routes: [{{name: a, match: {{{matches}}}, upstream: 'http://a', limiters: off}}]\n");
        let loaded = Place::new().load(text).unwrap();
        loaded
            .warnings
            .iter()
            .map(|warning| format!("{}: {}", warning.path, warning.message))
            .collect::<Vec<_>>()
    };
    let asterisk = "`*` stands for itself here; a prefix needs none (`/api`), and a pattern is `path_regex`";
    for (matches, expected) in [
        ("path: '/api/*'", format!("routes[0].match.path: {asterisk}")),
        ("path: '/a*b/{id}'", format!("routes[0].match.path: {asterisk}")),
        ("exact_path: '/v1/**'", format!("routes[0].match.exact_path: {asterisk}")),
        (
            "path: '/api/{id}/x'",
            "routes[0].match.path: \"{id}\" stands for itself here; a pattern is `path_regex`".to_owned(),
        ),
        (
            "exact_path: '/api/:id'",
            "routes[0].match.exact_path: \":id\" stands for itself here; a pattern is `path_regex`"
                .to_owned(),
        ),
    ] {
        assert_eq!(warned(matches), [expected], "{matches}");
    }
    for matches in
        ["path: '/v1/projects:batch'", "path: '/a/{b}.json'", "path_regex: '/api/.*'", "path: '/:'"]
    {
        assert_eq!(warned(matches), Vec::<String>::new(), "{matches}");
    }
}

#[test]
fn callers_of_a_share_that_are_no_clients_are_warned_of() {
    let shared = |share: &str| {
        let limiter = format!("{{limits: [10/1s], queue: {{timeout: 5s}}, share: {share}}}");
        let clients = "clients: {billing: {tokens: [a]}, web: {tokens: [b]}}\n";
        let yaml = example(&format!("{clients}limiters:\n  a: {limiter}\nROUTES    limiter: a\n"));
        let loaded = Place::new().load(yaml).unwrap();
        loaded.warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let [warning] = &shared("{by: client, weights: {bill: 3, web: 2}}")[..] else { panic!() };
    assert!(warning.ends_with("limiters.a.share.weights.bill: no client is named \"bill\""), "{warning}");
    let [warning] =
        &shared("{by: client, classes: [{name: i, of: [webb]}, {name: j}], weights: {bill: 3}}")[..]
    else {
        panic!()
    };
    let expected = "classes[0].of[0]: no client is named \"webb\", and 1 further values name none";
    assert!(warning.ends_with(expected), "{warning}");
    assert!(shared("{by: client, weights: {billing: 3}}").is_empty());
    assert!(shared("{by: 'header:x-team', weights: {bill: 3}}").is_empty());
}

#[test]
fn overrides_for_unknown_clients_are_warned_of() {
    let named = "{acme: [1/s], x: [1/s], y: [1/s], z: [1/s], v: [1/s]}";
    let loaded = Place::new().load(overriding("client", named)).unwrap();
    let [warning] = &*loaded.warnings else { panic!("{:?}", loaded.warnings) };
    assert!(
        warning
            .to_string()
            .ends_with("limiters.a.overrides.x: no client is named \"x\", and 3 further values name none"),
        "{warning}"
    );
}

#[test]
fn overrides_in_a_file_have_their_problems_there() {
    let text = overriding("client", "{file: plans.yaml}");
    let of = |content: &str| Place::new().file("plans.yaml", content).load(&text);
    let config = of("acme: [100/s]\nbilling: &all [1/s, 9/1d]\n").unwrap().config;
    assert_eq!(overrides(&config).len(), 2);
    assert_eq!(overrides(&of("{}\n").unwrap().config), []);
    for (content, expected) in [
        ("", "plans.yaml: the file is empty; write {} where no value has limits of its own"),
        ("acme: [0/s]\nbilling: [1]\n", "plans.yaml:1:8: acme[0]: the rate must be from 1"),
        ("acme: [0/s]\nbilling: [1]\n", "plans.yaml:2:11: billing[0]: expected a limit such as 900/1m"),
        ("acme: 5/s\n", "plans.yaml:1:7: acme: expected a list such as [10/1s], found a text"),
        ("- acme\n", "plans.yaml:1:1: expected a mapping, found a list"),
        ("acme: [1/s]\nacme: [2/s]\n", "plans.yaml:2:1: acme: key \"acme\" is given twice"),
        ("acme: [\n", "plans.yaml:1:7: not valid YAML"),
        ("acme: [\u{0}", "plans.yaml"),
    ] {
        let error = of(content).unwrap_err().to_string();
        assert!(error.contains(expected), "{content:?}: {error}");
    }
    let error = Place::new().file("plans.yaml", [0xff]).load(&text).unwrap_err();
    assert!(error.to_string().contains("plans.yaml:1:1: the file is not UTF-8"), "{error}");
    let large = format!("acme: [1/s]\n#{}", "#".repeat(8 * 1024 * 1024));
    let error = Place::new().file("plans.yaml", large).load(&text).unwrap_err();
    assert!(error.to_string().contains("plans.yaml is larger than 8388608 bytes"), "{error}");
}

#[test]
fn a_changed_file_of_overrides_is_another_configuration() {
    let place = Place::new();
    let text = overriding("client", "{file: plans.yaml}");
    let load = |content: &str| {
        fs::write(place.directory.path().join("plans.yaml"), content).unwrap();
        place.load(&text).unwrap()
    };
    let before = load("acme: [100/s]\nbilling: [5/s]\n");
    let after = load("acme: [200/s]\n");
    assert_ne!(before.config.hash, after.config.hash);
    let changes = after.changes_since(&before);
    let paths = changes.iter().map(|change| change.path.as_str());
    let paths: Vec<_> = paths.filter(|path| !path.starts_with("routes.api.cost.max")).collect();
    assert_eq!(paths, ["limiters.a.overrides.acme", "limiters.a.overrides.billing"]);
    assert!(changes[0].new.as_deref().unwrap().contains("rate: 200"), "{changes:?}");
    assert_eq!(after.masked()["limiters"]["a"]["overrides"], serde_json::json!({"file": "plans.yaml"}));
    assert_eq!(after.effective()["limiters"]["a"]["overrides"], serde_json::json!({"file": "plans.yaml"}));
    assert_eq!(load("acme: [{rate: 200, per: 1s}]\n").changes_since(&after), []);
}

#[test]
fn values_that_may_be_credentials_are_shown_nowhere() {
    let place = Place::new();
    let inline = place.load(overriding("'header:x-api-key'", "{sk-one: [1/s], sk-two: [2/s]}")).unwrap();
    let other = place.load(overriding("'header:x-api-key'", "{sk-one: [1/s], sk-tri: [2/s]}")).unwrap();
    let place = place.file("plans.yaml", "sk-one: [1/s]\nsk-two: [2/s]\n");
    let file = place.load(overriding("'header:x-api-key'", "{file: plans.yaml}")).unwrap();
    let place = place.file("plans.yaml", "sk-one: [1/s]\nsk-tri: [2/s]\n");
    let later = place.load(overriding("'header:x-api-key'", "{file: plans.yaml}")).unwrap();
    let shown = inline.effective()["limiters"]["a"]["overrides"].clone();
    assert_eq!(shown.as_object().unwrap().len(), 2, "both are shown: {shown}");
    for (after, before) in [(&other, &inline), (&later, &file)] {
        let changes = after.changes_since(before);
        assert_eq!(changes.len(), 2, "one goes and one comes: {changes:?}");
        let all = format!("{changes:?}{}{}", after.masked(), after.effective());
        assert!(!all.contains("sk-") && !all.contains('\u{1}') && !all.contains("\\u{1}"), "{all}");
    }
    assert!(later.config.limiters[0].overrides().all(|limiter| &**limiter.value().unwrap() == "***"));
    let place = place.file("plans.yaml", "sk-one: [1/s]\nsk-two: 5/s\nsk-one: [1/s]\nsk-tri: [0/s]\n");
    let error = place.load(overriding("'header:x-api-key'", "{file: plans.yaml}")).unwrap_err();
    let shown: String = error.problems.iter().map(|problem| problem.with_line("") + "\n").collect();
    assert!(
        !shown.contains("sk-") && shown.contains("plans.yaml:3:1: ***: key \"***\" is given twice"),
        "{shown}"
    );
}

/// Each part of a route that reads bodies, and what is wrong with it.
#[test]
fn each_setting_that_reads_bodies_is_checked() {
    let file = |server: &str, key: &str, route: &str| {
        format!(
            "server: {server}\nlimiters:\n  a: {{limits: [9/1s], key: ['{key}']}}\nroutes:\n  - name: r\n    match: {{}}\n    \
             upstream: 'http://a'\n    limiter: a\n{route}"
        )
    };
    for (server, key, route, problem) in [
        ("{}", "json:model", "", ""),
        ("{body_memory: 0B}", "host", "", ""),
        ("{}", "json:model", "    body: {max: 16MiB}\n", ""),
        ("{}", "host", "    cost: {json: n.0, max: 3}\n", ""),
        ("{}", "json:", "", "3:29: limiters.a.key[0]: expected header:NAME, "),
        ("{}", "json:a..b", "", "limiters.a.key[0]: expected header:NAME, "),
        ("{}", "x:y", "", "3:29: limiters.a.key[0]: expected header:NAME, "),
        ("{}", "host", "    cost: {json: '', max: 3}\n", "routes[0].cost.json: expected the path of a value"),
        (
            "{}",
            "host",
            "    cost: {json: n, header: x}\n",
            "routes[0].cost.json: `header` and `json` exclude",
        ),
        (
            "{}",
            "host",
            "    cost: {json: n, default: 10}\n",
            "routes[0].cost.default: larger than limiter \"a\"",
        ),
        ("{}", "host", "    cost: {tokens: openai}\n", ""),
        (
            "{}",
            "host",
            "    cost: {estimate: {output: {first_of: json:n}}, settle: {input: a.b, refund: true}}\n",
            "",
        ),
        (
            "{}",
            "host",
            "    cost: {tokens: opnai}\n",
            "routes[0].cost.tokens: unknown preset \"opnai\"; did you mean",
        ),
        (
            "{}",
            "host",
            "    cost: {tokens: openai, json: n}\n",
            "routes[0].cost.json: not beside `tokens` or",
        ),
        (
            "{}",
            "host",
            "    cost: {settle: {input: a.b, include_usage: true}}\n",
            "routes[0].cost.settle.include_usage: only with `tokens` or `estimate`",
        ),
        ("{}", "host", "    cost: {tokens: openai, settle: {include_usage: false}}\n", ""),
        ("{}", "host", "    cost: {tokens: openai, max: 3}\n", "routes[0].cost.max: not with an estimate"),
        (
            "{}",
            "host",
            "    cost: {tokens: openai, settle: {weights: {output: -1}}}\n",
            "routes[0].cost.settle.weights.output: must be from 0 to 1000",
        ),
        (
            "{}",
            "host",
            "    cost: {tokens: openai, settle: {input: a..b}}\n",
            "routes[0].cost.settle.input: expected the path of a value",
        ),
        (
            "{}",
            "host",
            "    cost: {tokens: openai}\n    body: {max: 0B}\n",
            "routes[0].body.max: the estimate of a `cost` looks into bodies",
        ),
        (
            "{}",
            "host",
            "    cost: {estimate: {max: 10}}\n",
            "routes[0].cost.estimate.max: larger than limiter \"a\"",
        ),
        (
            "{}",
            "host",
            "    cost: {default: 1, settle: {refund: true}}\n",
            "routes[0].cost.settle: needs `input` or `output`",
        ),
        (
            "{}",
            "host",
            "    cost: {estimate: {max: 3, learn: p95}, settle: {input: a.b, refund: true}}\n",
            "routes[0].cost.estimate.learn: needs `settle` with `output` and `refund: true`",
        ),
        (
            "{}",
            "host",
            "    cost: {tokens: openai, estimate: {learn: p95}}\n",
            "routes[0].cost.estimate.learn: needs `settle` with `output` and `refund: true`",
        ),
        ("{}", "host", "    cost: {tokens: openai, estimate: {learn: p95}, settle: {refund: true}}\n", ""),
        ("{}", "host", "    body: {max: 17MiB}\n", "routes[0].body.max: must be from 0B to 16MiB"),
        (
            "{}",
            "json:model",
            "    body: {max: 0B}\n",
            "routes[0].body.max: limiter \"a\" has `json:model` in its `key`, and with 0B nothing of a body",
        ),
        (
            "{}",
            "host",
            "    cost: {json: n}\n    body: {max: 0B}\n",
            "routes[0].body.max: `cost.json` looks into bodies, and with 0B",
        ),
        (
            "{body_memory: 64KiB}",
            "json:model",
            "    body: {}\n",
            "routes[0].body.max: limiter \"a\" has `json:model` in its `key`, so it must not be larger than `server.body_memory`, which is 64KiB",
        ),
    ] {
        let problems = Place::new().problems(file(server, key, route));
        let is_expected = match problem {
            "" => problems.is_empty(),
            problem => problems.len() == 1 && problems[0].contains(problem),
        };
        assert!(is_expected, "{server} {key} {route}{problems:#?}");
    }
    let by_part =
        |part: &str| format!("limiters:\n  a: {{limits: [9/1s], key: [{part}]}}\nROUTES    limiter: a\n");
    for (part, problem) in [
        ("{json: model}", ""),
        ("{json: model, map: {'gpt-5*': gpt-5}}", ""),
        ("{path_regex: 'models/([^/:]+)'}, json:model", ""),
        ("{}", "limiters.a.key[0]: needs either `json` or `path_regex`"),
        ("{json: a, path_regex: b}", "limiters.a.key[0]: needs either `json` or `path_regex`"),
        ("{json: a..b}", "limiters.a.key[0].json: expected the path of a value"),
        ("{json: a, map: {}}", "limiters.a.key[0].map: needs 1 to 256 values"),
        (
            "{path_regex: '(a'}",
            "limiters.a.key[0].path_regex: not a valid regular expression: unclosed group",
        ),
        ("{path_regex: '(a)(b)'}", "limiters.a.key[0].path_regex: has more than one group"),
        ("json:a, {json: a}", "limiters.a.key[1]: this part is given twice"),
        ("{json: a, header: x}", "limiters.a.key[0].header: unknown key"),
        (
            "5",
            "limiters.a.key[0]: expected a part such as header:x-tenant, or a mapping with `json` or `path_regex`",
        ),
    ] {
        let problems = Place::new().problems(example(&by_part(part)));
        let is_expected = if problem.is_empty() {
            problems.is_empty()
        } else {
            problems.len() == 1 && problems[0].contains(problem)
        };
        assert!(is_expected, "{part} {problems:#?}");
    }
    let by_body = |matches: &str, rest: &str| {
        format!("routes:\n  - {{name: r, match: {matches}, upstream: 'http://a', limiters: off{rest}}}\n")
    };
    for (matches, rest, problem) in [
        ("{json: {model: gpt-5}}", "", ""),
        ("{json: {}}", "", "routes[0].match.json: names no value"),
        ("{json: {a.: x}}", "", "routes[0].match.json.a.: expected the path of a value"),
        ("{json: {a: x}}", ", body: {max: 0B}", "routes[0].body.max: `match.json` looks into bodies"),
    ] {
        let problems = Place::new().problems(by_body(matches, rest));
        let is_expected = if problem.is_empty() {
            problems.is_empty()
        } else {
            problems.len() == 1 && problems[0].contains(problem)
        };
        assert!(is_expected, "{matches} {rest} {problems:#?}");
    }
    let config = Place::new().config(&by_body("{json: {a.0: x}}", ", body: {max: 2MiB}"));
    let json = config.routes[0].matches.json.as_deref().unwrap();
    assert_eq!((json.values[0].0.to_string().as_str(), json.body_bytes_max), ("a.0", 2 << 20));
}

#[test]
fn an_estimate_needs_no_max_that_suits_every_partition() {
    let estimated = |limiter: &str, max: &str| {
        format!(
            "limiters: {{a: {{limits: [200000/1m], {limiter}}}}}\nroutes:\n  - {{name: r, match: {{}}, upstream: 'http://a', \
             limiters: [{{name: a, cost: {{tokens: openai{max}}}}}]}}\n"
        )
    };
    for limiter in ["key: ['header:x-tenant'], overrides: {free: [10000/1m]}", "mode: shadow"] {
        let problems = Place::new().problems(estimated(limiter, ""));
        assert!(problems.is_empty(), "{limiter}: {problems:?}");
    }
    let overridden = "key: ['header:x-tenant'], overrides: {free: [10000/1m]}";
    let problems = Place::new().problems(estimated(overridden, ", estimate: {max: 20000}"));
    assert!(problems.len() == 1 && problems[0].contains(r#"can ever grant to "free""#), "{problems:?}");
}

#[test]
fn ten_thousand_overrides_are_read_quickly() {
    let mut plans = String::new();
    for tenant in 0..10_000 {
        plans.push_str(&format!("tenant-{tenant}: [{}/1s, 100000/1d]\n", 1 + tenant % 100));
    }
    let place = Place::new().file("plans.yaml", plans);
    let begun = std::time::Instant::now();
    let loaded = place.load(overriding("'header:x-tenant'", "{file: plans.yaml}")).unwrap();
    println!("10 000 overrides in {:?}", begun.elapsed());
    assert_eq!(loaded.config.limiters[0].overrides().count(), 10_000);
}

#[test]
fn files_generated_from_the_schema_are_up_to_date() {
    for (path, made, command) in [
        (SCHEMA_FILE, format!("{:#}\n", config::json_schema()), "schema"),
        ("docs/configuration.md", config::reference(), "schema --markdown"),
    ] {
        let committed = fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_default();
        assert!(committed == made, "{path} is out of date; run: cargo run -- {command} > {path}");
    }
}

const WHOLE: &str = include_str!("../config/weir.yaml");

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn random_text_never_panics(text in "\\PC{0,200}") {
        let _ = config::parse(Path::new("f"), &text);
    }

    #[test]
    fn random_yaml_never_panics(text in "[-a-c0-9:{}\\[\\],&*!|>'\"#%@?~$ \t\n./]{0,120}") {
        let _ = config::parse(Path::new("f"), &text);
    }

    /// Any part that a URL parser takes for a password is hidden.
    #[test]
    fn the_password_of_a_proxy_is_never_shown(
        scheme in "(http|HTTP|ht\ttp| http):(//|//|//|[/\\\\]{0,3})",
        before in "([ab]{0,2}:|[a-b:/@?#.% \\\\\t]{0,5})",
        after in "(|:|[a-b:/@?#.% \\\\\t]{0,5})",
        host in "(@h|@h:1|@h/|h)",
    ) {
        let given = serde_json::to_string(&format!("{scheme}{before}s3cret{after}{host}")).unwrap();
        let file = format!("routes: [{{name: a, match: {{}}, upstream: {{url: 'http://a', proxy: {given}}}}}]\n");
        match config::parse(Path::new("f"), &file) {
            Ok(loaded) => {
                let proxy = loaded.config.routes[0].upstream.proxy.as_ref().unwrap();
                let (user, password) =
                    proxy.credentials.as_ref().and_then(|secret| secret.reveal().split_once(':')).unwrap_or_default();
                let is_secret = password.contains("s3cret") || password.is_empty() && user.contains("s3cret");
                prop_assert!(!is_secret || !loaded.masked().to_string().contains("s3cret"), "{}", loaded.masked());
            }
            Err(error) => prop_assert!(!error.to_string().contains("s3cret"), "{error}"),
        }
    }

    #[test]
    fn a_damaged_file_never_panics(
        at in 0..WHOLE.len(),
        length in 0..40_usize,
        put in "[-a-z0-9:{}\\[\\],&*!|>'\"#$ \t\n]{0,10}",
    ) {
        let mut bytes = WHOLE.as_bytes().to_vec();
        let end = (at + length).min(bytes.len());
        bytes.splice(at..end, put.into_bytes());
        let text = String::from_utf8_lossy(&bytes);
        if let Err(error) = config::parse_with(Path::new("f"), &text, &needed(WHOLE)) {
            prop_assert!(!error.problems.is_empty());
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = Place::new().load(bytes);
    }
}
