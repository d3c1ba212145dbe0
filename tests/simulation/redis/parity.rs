//! Comparison of the simulated server with a real Redis, command by command and byte by byte.
//!
//! A real server's clock cannot be set. Scripts are sent to it with `redis.call("TIME")` and the run in `INFO` replaced by further
//! arguments, in place, so that the lines in errors stay where they are.

use std::collections::BTreeMap;

use fastrand::Rng;

use crate::redis::calls::{self, CHANNEL, RUN, Sequence};
use crate::redis::real::{Client, RealServer};
use crate::redis::scripts::{self, Script, sha_of};
use crate::redis::streams;
use crate::redis::{Mode, Published, Reply, Server};

/// The calls of a random sequence.
const CALLS: usize = 30;

/// At most one command of so many may fail, for want of memory mostly: errors alone compare little.
const ERRORS_PART: usize = 3;

/// The instant of the calls that are not random.
const NOW: u64 = 1_800_000_000_123_456;

/// Scripts that use what weir's scripts hardly use: types of replies, errors and their places, numbers as texts.
const CORNERS: &[&str] = &[
    "return {1, 2.7, 'x', true, false, nil, 3}",
    "return redis.call(\"TIME\")",
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
    "return x x",
    "return table.concat({1e15, 1e16, 0.1, 123456.789}, ' ')",
    "redis.call('SET', 'n', 0.1) return redis.call('GET', 'n')",
    "redis.call('DEL', 'n') return redis.call('SET', 'n', 0.1)",
    "return redis.status_reply('FINE')",
];

/// The reason why a comparison ends before its end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Both servers differ, or too little was compared.
    Difference(String),
    /// There is no real server, or it is gone.
    Unable(String),
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Stop {
        Stop::Unable(error.to_string())
    }
}

impl Stop {
    /// Names the place of a difference.
    fn in_place(self, place: &str) -> Stop {
        match self {
            Stop::Difference(difference) => Stop::Difference(format!("{place}: {difference}")),
            unable => unable,
        }
    }
}

/// How much was compared.
#[derive(Default)]
struct Counts {
    commands: usize,
    /// How many of them were answered with an error.
    errors: usize,
    /// The values of keys at the ends of sequences.
    values: usize,
    messages: usize,
}

/// A script as a real server gets it, and both names of it.
struct Twin {
    source: String,
    sha: String,
    real_sha: String,
}

impl Twin {
    fn new(source: &str) -> Twin {
        let real = source
            .replace(r#"redis.call("TIME")"#, "{ ARGV[#ARGV - 2], ARGV[#ARGV - 1] }")
            .replace(r#"redis.call("INFO", "server")"#, r#"("run_id:" .. ARGV[#ARGV])"#)
            // On a machine without free CPU more time passes than some keys are kept.
            .replace(r#""PX", "#, r#""PX", 600000 + "#);
        let [sha, real_sha] = [source, &real].map(sha_of);
        Twin { source: real, sha, real_sha }
    }
}

/// Both servers.
struct Pair {
    simulated: Server,
    real: Client,
    listener: Client,
    twins: BTreeMap<String, Twin>,
    counts: Counts,
}

/// Compares random sequences on a simulated and on a real server, some of them while nothing can be written. Keys do not expire: they are kept for
/// longer than that takes. Returns whether both are the same.
///
/// # Errors
///
/// The reason why nothing can be compared: there is no real server, mostly.
pub(crate) fn compare(sequences: u64) -> Result<bool, String> {
    match compare_all(sequences) {
        Ok(()) => Ok(true),
        Err(Stop::Difference(difference)) => {
            println!("not as on a real Redis: {difference}");
            Ok(false)
        }
        Err(Stop::Unable(why)) => Err(why),
    }
}

fn compare_all(sequences: u64) -> Result<(), Stop> {
    let server = RealServer::start().map_err(Stop::Unable)?;
    let scripts = scripts::all();
    let mut pair = Pair::new(&server, &scripts)?;
    let streams = streams::compare(&server)?;
    let corners = CORNERS.iter().map(|source| {
        let words = ["EVAL", source, "1", "k", "a"];
        (NOW, words.map(|word| word.as_bytes().to_vec()).to_vec())
    });
    let corners: Sequence = corners.collect();
    for mode in [Mode::Normal, Mode::Full, Mode::ReadOnly] {
        pair.compare(mode, &corners).map_err(|stop| stop.in_place(&format!("{mode:?}")))?;
    }
    let mut drawn = Server::new(RUN.to_owned());
    for seed in 0..sequences {
        let sequence = calls::sequence(&mut Rng::with_seed(seed), &mut drawn, &scripts, CALLS);
        let mode = match seed % 10 {
            8 => Mode::Full,
            9 => Mode::ReadOnly,
            _ => Mode::Normal,
        };
        pair.compare(mode, &sequence).map_err(|stop| stop.in_place(&format!("sequence {seed}")))?;
    }
    let Counts { commands, errors, values, messages } = pair.counts;
    if errors > commands / ERRORS_PART {
        return Err(Stop::Difference(format!(
            "{errors} of {commands} commands fail: adapt redis/calls.rs and redis/scripts.rs to the scripts"
        )));
    }
    println!(
        "as on a real Redis: {streams} streams of bytes, {sequences} random sequences, {commands} commands, {errors} errors, \
         {values} values of keys, {messages} messages"
    );
    Ok(())
}

impl Pair {
    fn new(server: &RealServer, scripts: &[Script]) -> Result<Pair, Stop> {
        let (simulated, twins) = (Server::new(RUN.to_owned()), BTreeMap::new());
        let mut pair = Pair {
            simulated,
            real: server.connect()?,
            listener: server.connect()?,
            twins,
            counts: Counts::default(),
        };
        pair.simulated.never_expire();
        for script in scripts {
            pair.learn(&script.source)?;
        }
        pair.listener.ask(&[b"SUBSCRIBE", CHANNEL.as_bytes()])?;
        Ok(pair)
    }

    fn ask(&mut self, words: &[&[u8]]) -> Result<Vec<u8>, Stop> {
        Ok(self.real.ask(words)?)
    }

    /// Makes a script known to both servers. Returns the real one's reply.
    fn learn(&mut self, source: &str) -> Result<Vec<u8>, Stop> {
        let twin = Twin::new(source);
        let load = [b"SCRIPT".to_vec(), b"LOAD".to_vec(), source.as_bytes().to_vec()];
        self.simulated.execute(&load, 0);
        let reply = self.ask(&[b"SCRIPT", b"LOAD", twin.source.as_bytes()])?;
        self.twins.insert(twin.sha.clone(), twin);
        Ok(reply)
    }

    /// Compares a sequence that begins with empty servers, in a mode in which they are put then.
    fn compare(&mut self, mode: Mode, sequence: &Sequence) -> Result<(), Stop> {
        self.ask(&[b"FLUSHALL"])?;
        self.simulated.flush();
        self.simulated.mode = mode;
        match mode {
            Mode::Full => drop(self.ask(&[b"CONFIG", b"SET", b"maxmemory", b"1"])?),
            Mode::ReadOnly => drop(self.ask(&[b"REPLICAOF", b"127.0.0.1", b"1"])?),
            _ => {}
        }
        let published = self.compare_replies(sequence)?;
        self.compare_keys(sequence.last().map_or(0, |(now, _)| *now))?;
        self.compare_messages(&published)?;
        self.ask(&[b"CONFIG", b"SET", b"maxmemory", b"0"])?;
        self.ask(&[b"REPLICAOF", b"NO", b"ONE"])?;
        Ok(())
    }

    /// Returns what the simulated server has published.
    fn compare_replies(&mut self, sequence: &Sequence) -> Result<Vec<Published>, Stop> {
        let mut published = Vec::new();
        for (index, (now, command)) in sequence.iter().enumerate() {
            let (reply, messages) = self.simulated.execute(command, *now);
            published.extend(messages);
            let mut simulated = Vec::new();
            reply.encode(&mut simulated);
            let real = self.real_reply(*now, command)?;
            same(&format!("command {index}, {}", shown(command)), &simulated, &real)?;
            self.counts.errors += usize::from(simulated.starts_with(b"-"));
        }
        self.counts.commands += sequence.len();
        Ok(published)
    }

    /// Carries a command out on the real server. Returns its reply, with the simulated server's name of the script.
    fn real_reply(&mut self, now: u64, command: &[Vec<u8>]) -> Result<Vec<u8>, Stop> {
        let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        let name = words[0].to_ascii_lowercase();
        let sha = match name.as_slice() {
            b"eval" => {
                let source = String::from_utf8_lossy(words[1]).into_owned();
                let learnt = self.learn(&source)?;
                if learnt.starts_with(b"-") {
                    return Ok(learnt);
                }
                sha_of(&source)
            }
            b"evalsha" => String::from_utf8_lossy(words[1]).into_owned(),
            _ => return self.ask(&words),
        };
        let twin =
            self.twins.get(&sha).ok_or_else(|| Stop::Unable(format!("the script {sha} is not given")))?;
        let (seconds, micros) = ((now / 1_000_000).to_string(), (now % 1_000_000).to_string());
        let real_sha = twin.real_sha.clone();
        let mut call: Vec<&[u8]> = vec![b"EVALSHA", real_sha.as_bytes()];
        call.extend_from_slice(&words[2..]);
        call.extend([seconds.as_bytes(), micros.as_bytes(), RUN.as_bytes()]);
        let reply = self.ask(&call)?;
        if !reply.starts_with(b"-") {
            return Ok(reply);
        }
        Ok(String::from_utf8_lossy(&reply).replace(&real_sha, &sha).into_bytes())
    }

    fn compare_keys(&mut self, now: u64) -> Result<(), Stop> {
        let mut keys = Vec::new();
        let all = self.simulated.keys(now);
        Reply::Int(i64::try_from(all.len()).unwrap_or(i64::MAX)).encode(&mut keys);
        same("DBSIZE", &keys, &self.ask(&[b"DBSIZE"])?)?;
        for key in all {
            let is_text = self.simulated.get(&key, now).is_some();
            let words: &[&[u8]] =
                if is_text { &[b"GET", &key] } else { &[b"ZRANGE", &key, b"0", b"-1", b"WITHSCORES"] };
            let command: Vec<Vec<u8>> = words.iter().map(|word| word.to_vec()).collect();
            let mut value = Vec::new();
            self.simulated.execute(&command, now).0.encode(&mut value);
            same(&shown(std::slice::from_ref(&key)), &value, &self.ask(words)?)?;
            self.counts.values += 1;
        }
        Ok(())
    }

    fn compare_messages(&mut self, published: &[Published]) -> Result<(), Stop> {
        let end = Published { channel: CHANNEL.into(), message: b"end".to_vec() };
        self.ask(&[b"PUBLISH", &end.channel, &end.message])?;
        for message in published.iter().chain([&end]) {
            let mut expected = Vec::new();
            let words: [&[u8]; 3] = [b"message", &message.channel, &message.message];
            Reply::Array(words.iter().map(Reply::bulk).collect()).encode(&mut expected);
            same("a message", &expected, &self.listener.reply()?)?;
        }
        self.counts.messages += published.len();
        Ok(())
    }
}

pub(super) fn same(what: &str, simulated: &[u8], real: &[u8]) -> Result<(), Stop> {
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    if simulated == real {
        return Ok(());
    }
    Err(Stop::Difference(format!("{what}:\nsimulated {}\nreal      {}", text(simulated), text(real))))
}

fn shown(words: &[Vec<u8>]) -> String {
    let shown: Vec<String> = words.iter().map(|word| word.escape_ascii().to_string()).collect();
    shown.join(" ")
}
