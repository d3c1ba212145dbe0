//! Tests of the server by itself.

use crate::redis::{Mode, Reply, Server, scripts};

fn words(text: &[&str]) -> Vec<Vec<u8>> {
    text.iter().map(|word| word.as_bytes().to_vec()).collect()
}

fn eval(server: &mut Server, source: &str) -> Reply {
    server.execute(&words(&["EVAL", source, "1", "k", "a"]), 1_800_000_000_123_456).0
}

fn text(reply: &Reply) -> String {
    let mut bytes = Vec::new();
    reply.encode(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn smoke() {
    let mut server = Server::new("ab".into());
    for source in [
        "return {1, 2.7, 'x', true, false, nil, 3}",
        "return redis.call('TIME')",
        "return redis.call('MGET', KEYS[1], 'other')",
        "redis.call('SET', KEYS[1], cmsgpack.pack({1, {2, -40}, 'abc', 1.5, 2^63, -1/0, {a = 1}}), 'PX', 1000) return redis.call('GET', KEYS[1])",
        "return {cmsgpack.unpack('\\1\\2\\161x\\147\\1\\2\\3')}",
        "return {pcall(cmsgpack.unpack, '\\147\\1')}",
        "return cmsgpack.unpack('\\147\\1')",
        "\nlocal function f() error('UNREADABLE x', 0) end\nf()",
        "local x = nil + 1",
        "return foo",
        "foo = 1",
        "return redis.error_reply('FOO bar baz')",
        "return redis.error_reply('FOO')",
        "return redis.pcall('NOPE')",
        "return redis.call('NOPE')",
        "\n\nreturn redis.call('SET', 'k', 1, 'PX', -1)",
        "return redis.call('SET', 'k', 1, 'PX', 1e20)",
        "return tostring(redis.pcall('INFO', 'server'))",
        "return x x",
        "return table.concat({1e15, 1e16, 0.1, 123456.789}, ' ')",
        "redis.call('SET', 'n', 0.1) return redis.call('GET', 'n')",
        "return redis.status_reply('FINE')",
    ] {
        eprintln!("{source:?}\n    {:?}", text(&eval(&mut server, source)));
    }
    server.mode = Mode::Full;
    eprintln!("{:?}", eval(&mut server, "return redis.call('SET', 'n', 0.1)"));
    eprintln!("{:?}", eval(&mut server, "redis.call('DEL', 'n') return redis.call('SET', 'n', 0.1)"));
    server.mode = Mode::ReadOnly;
    eprintln!("{:?}", eval(&mut server, "return redis.call('SET', 'n', 0.1)"));
    for script in scripts::all() {
        server.execute(&words(&["SCRIPT", "LOAD", &script.source]), 0);
    }
}

#[test]
fn random_calls() {
    let mut server = Server::new(crate::redis::calls::RUN.into());
    let scripts = scripts::all();
    let mut kinds = std::collections::BTreeMap::new();
    let start = std::time::Instant::now();
    let mut calls = 0;
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let sequence = crate::redis::calls::sequence(&mut rng, &mut server, &scripts, 30);
        server.restart(crate::redis::calls::RUN.into(), None);
        for script in &scripts {
            server.execute(&words(&["SCRIPT", "LOAD", &script.source]), 0);
        }
        for (now, command) in &sequence {
            calls += 1;
            let (reply, published) = server.execute(command, *now);
            *kinds.entry(format!("published {}", !published.is_empty())).or_insert(0) += 1;
            let what = match reply {
                Reply::Error(text) => text.chars().take(60).collect(),
                Reply::Bulk(_) => "bulk".to_owned(),
                _ => "other".to_owned(),
            };
            *kinds.entry(what).or_insert(0) += 1;
        }
    }
    eprintln!("{calls} calls twice in {:?} {kinds:#?}", start.elapsed());
}
