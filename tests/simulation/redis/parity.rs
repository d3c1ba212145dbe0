//! Comparison of the simulated server with a real Redis, command by command and byte by byte.
//!
//! A real server's clock cannot be set. Scripts are sent to it with `redis.call("TIME")` and the run in `INFO` replaced by further
//! arguments, in place, so that the lines in errors stay where they are.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use crate::redis::calls::{CHANNEL, RUN, Sequence};
use crate::redis::scripts::Script;
use crate::redis::{Published, Reply, Server, sha1};

/// How much was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The sequences.
    pub sequences: usize,
    /// Their commands.
    pub commands: usize,
    /// How many of them were answered with an error.
    pub errors: usize,
    /// The values of keys at the ends of sequences.
    pub values: usize,
    /// The published messages.
    pub messages: usize,
}

/// A connection to a real server.
pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    /// Connects to a server on this machine.
    pub fn connect(port: u16) -> std::io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(Client { stream: BufReader::new(stream) })
    }

    /// Sends a command. Returns the bytes of its reply.
    pub fn ask(&mut self, words: &[&[u8]]) -> std::io::Result<Vec<u8>> {
        let mut command = Vec::new();
        Reply::Array(words.iter().map(Reply::bulk).collect()).encode(&mut command);
        self.stream.get_mut().write_all(&command)?;
        self.reply()
    }

    /// Returns the bytes of the next reply.
    pub fn reply(&mut self) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut left = 1_usize;
        while left > 0 {
            left -= 1;
            let start = bytes.len();
            if self.stream.read_until(b'\n', &mut bytes)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let line = String::from_utf8_lossy(&bytes[start..]).into_owned();
            let length =
                line.get(1..).and_then(|length| length.trim_end().parse::<usize>().ok()).unwrap_or(0);
            match line.as_bytes().first() {
                Some(b'*') => left += length,
                Some(b'$') if !line.starts_with("$-") => {
                    let start = bytes.len();
                    bytes.resize(start + length + 2, 0);
                    self.stream.read_exact(&mut bytes[start..])?;
                }
                _ => {}
            }
        }
        Ok(bytes)
    }
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
            .replace(r#"redis.call("INFO", "server")"#, r#"("run_id:" .. ARGV[#ARGV])"#);
        let [sha, real_sha] = [source, &real].map(|source| sha1::hex(source.as_bytes()));
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

/// Carries out each sequence on a simulated and on a real server, which is emptied. Keys do not expire: real time hardly passes. Calls
/// of the given scripts may come by their SHA-1.
///
/// # Errors
///
/// The first difference, or that of a connection.
pub fn compare(sequences: &[Sequence], scripts: &[Script], redis_port: u16) -> Result<Counts, String> {
    let connect =
        || Client::connect(redis_port).map_err(|error| format!("no Redis on port {redis_port}: {error}"));
    let (simulated, twins) = (Server::new(RUN.to_owned()), BTreeMap::new());
    let mut pair =
        Pair { simulated, real: connect()?, listener: connect()?, twins, counts: Counts::default() };
    pair.simulated.never_expire();
    for script in scripts {
        pair.learn(&script.source)?;
    }
    pair.listener.ask(&[b"SUBSCRIBE", CHANNEL.as_bytes()]).map_err(|error| error.to_string())?;
    for (index, sequence) in sequences.iter().enumerate() {
        pair.compare(sequence).map_err(|difference| format!("sequence {index}: {difference}"))?;
    }
    Ok(pair.counts)
}

impl Pair {
    fn ask(&mut self, words: &[&[u8]]) -> Result<Vec<u8>, String> {
        self.real.ask(words).map_err(|error| error.to_string())
    }

    /// Makes a script known to both servers.
    fn learn(&mut self, source: &str) -> Result<(), String> {
        let twin = Twin::new(source);
        let load = |source: &str| [b"SCRIPT".to_vec(), b"LOAD".to_vec(), source.as_bytes().to_vec()];
        self.simulated.execute(&load(source), 0);
        self.ask(&[b"SCRIPT", b"LOAD", twin.source.as_bytes()])?;
        self.twins.insert(twin.sha.clone(), twin);
        Ok(())
    }

    fn compare(&mut self, sequence: &Sequence) -> Result<(), String> {
        self.ask(&[b"FLUSHALL"])?;
        self.simulated.flush();
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
        self.counts.sequences += 1;
        self.counts.commands += sequence.len();
        self.compare_keys(sequence.last().map_or(0, |(now, _)| *now))?;
        self.compare_messages(&published)
    }

    /// Carries a command out on the real server. Returns its reply, with the simulated server's name of the script.
    fn real_reply(&mut self, now: u64, command: &[Vec<u8>]) -> Result<Vec<u8>, String> {
        let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        let name = words[0].to_ascii_lowercase();
        let sha = match name.as_slice() {
            b"eval" => {
                let source = String::from_utf8_lossy(words[1]).into_owned();
                self.learn(&source)?;
                sha1::hex(source.as_bytes())
            }
            b"evalsha" => String::from_utf8_lossy(words[1]).into_owned(),
            _ => return self.ask(&words),
        };
        let twin = self.twins.get(&sha).ok_or_else(|| format!("the script {sha} is not given"))?;
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

    fn compare_keys(&mut self, now: u64) -> Result<(), String> {
        let mut keys = Vec::new();
        let all = self.simulated.keys(now);
        Reply::Int(i64::try_from(all.len()).unwrap_or(i64::MAX)).encode(&mut keys);
        same("DBSIZE", &keys, &self.ask(&[b"DBSIZE"])?)?;
        for key in all {
            let mut value = Vec::new();
            Reply::bulk(self.simulated.get(&key, now).unwrap_or_default()).encode(&mut value);
            same(&shown(std::slice::from_ref(&key)), &value, &self.ask(&[b"GET", &key])?)?;
            self.counts.values += 1;
        }
        Ok(())
    }

    fn compare_messages(&mut self, published: &[Published]) -> Result<(), String> {
        let end = Published { channel: CHANNEL.into(), message: b"end".to_vec() };
        self.ask(&[b"PUBLISH", &end.channel, &end.message])?;
        for message in published.iter().chain([&end]) {
            let mut expected = Vec::new();
            let words: [&[u8]; 3] = [b"message", &message.channel, &message.message];
            Reply::Array(words.iter().map(Reply::bulk).collect()).encode(&mut expected);
            same("a message", &expected, &self.listener.reply().map_err(|error| error.to_string())?)?;
        }
        self.counts.messages += published.len();
        Ok(())
    }
}

fn same(what: &str, simulated: &[u8], real: &[u8]) -> Result<(), String> {
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    if simulated == real {
        return Ok(());
    }
    Err(format!("{what}:\nsimulated {}\nreal      {}", text(simulated), text(real)))
}

fn shown(words: &[Vec<u8>]) -> String {
    let shown: Vec<String> = words.iter().map(|word| word.escape_ascii().to_string()).collect();
    shown.join(" ")
}
