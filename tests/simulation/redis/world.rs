//! The commands that scripts may call, on the keys of a simulated server.

use crate::redis::keyspace::{Keyspace, Value};
use crate::redis::resp::Reply;
use crate::redis::{Mode, Published};

const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";
const READ_ONLY: &str = "READONLY You can't write against a read only replica.";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const SYNTAX: &str = "ERR syntax error";

/// A server without its scripts and connections.
pub(super) struct World {
    pub(super) keyspace: Keyspace,
    pub(super) mode: Mode,
    /// The server's clock.
    pub(super) now: u64,
    pub(super) run_id: String,
    /// The messages that the present command has published.
    pub(super) published: Vec<Published>,
    /// True if the present script has written already: what a full server allowed to begin it allows to end.
    pub(super) has_written: bool,
}

/// A command.
#[derive(Clone, Copy)]
pub(super) struct Command {
    run: fn(&mut World, &[&[u8]]) -> Reply,
    /// The number of words; below zero: that many at least.
    arity: isize,
    writes: bool,
    needs_memory: bool,
}

impl Command {
    /// Returns a command by its name in lower case.
    pub(super) fn find(name: &[u8]) -> Option<Command> {
        let read = |run, arity| Command { run, arity, writes: false, needs_memory: false };
        let write = |run, arity, needs_memory| Command { run, arity, writes: true, needs_memory };
        Some(match name {
            b"get" => read(World::get, 2),
            b"mget" => read(World::mget, -2),
            b"time" => read(World::time, 1),
            b"info" => read(World::info, -1),
            b"publish" => read(World::publish, 3),
            b"dbsize" => read(World::dbsize, 1),
            b"set" => write(World::set, -3, true),
            b"del" => write(World::del, -2, false),
            b"zscore" => read(World::zscore, 3),
            b"zrange" => read(World::zrange, 5),
            b"zrangebyscore" => read(World::zrangebyscore, 7),
            b"zadd" => write(World::zadd, 4, true),
            b"zrem" => write(World::zrem, 3, false),
            b"zremrangebyscore" => write(World::zremrangebyscore, 4, false),
            b"pexpire" => write(World::pexpire, 3, false),
            b"flushall" => write(World::flushall, -1, false),
            _ => return None,
        })
    }

    pub(super) fn fits(&self, words: usize) -> bool {
        fits(self.arity, words)
    }
}

/// Returns true if a command of an arity may have so many words.
pub(super) fn fits(arity: isize, words: usize) -> bool {
    if arity < 0 { words >= arity.unsigned_abs() } else { words == arity.unsigned_abs() }
}

impl World {
    /// Carries out a command, unless the server cannot write.
    pub(super) fn run(&mut self, command: Command, words: &[&[u8]]) -> Reply {
        match self.mode {
            Mode::ReadOnly if command.writes => return Reply::error(READ_ONLY),
            Mode::Full if command.needs_memory && !self.has_written => return Reply::error(OUT_OF_MEMORY),
            _ => {}
        }
        self.has_written |= command.writes;
        (command.run)(self, words)
    }

    /// Carries out a command of a script.
    pub(super) fn call(&mut self, words: &[&[u8]]) -> Reply {
        let name = words.first().map(|name| name.to_ascii_lowercase()).unwrap_or_default();
        match Command::find(&name) {
            None => Reply::error("ERR Unknown Redis command called from script"),
            Some(command) if !command.fits(words.len()) => {
                Reply::error("ERR Wrong number of args calling Redis command from script")
            }
            Some(command) => self.run(command, words),
        }
    }

    fn get(&mut self, words: &[&[u8]]) -> Reply {
        match self.keyspace.value(words[1], self.now) {
            Some(Value::Scores(_)) => Reply::error(WRONG_TYPE),
            _ => self.text(words[1]),
        }
    }

    fn zscore(&mut self, words: &[&[u8]]) -> Reply {
        match self.keyspace.value(words[1], self.now) {
            Some(Value::Text(_)) => Reply::error(WRONG_TYPE),
            Some(Value::Scores(scores)) => {
                scores.get(words[2]).map_or(Reply::Nil, |score| Reply::bulk(score.to_string()))
            }
            None => Reply::Nil,
        }
    }

    /// Returns all members with their scores, ascending. No other range is asked for.
    fn zrange(&mut self, words: &[&[u8]]) -> Reply {
        let is_all = words[2] == b"0" && words[3] == b"-1" && words[4].eq_ignore_ascii_case(b"withscores");
        match self.keyspace.value(words[1], self.now) {
            _ if !is_all => Reply::error(SYNTAX),
            Some(Value::Text(_)) => Reply::error(WRONG_TYPE),
            Some(Value::Scores(scores)) => {
                let mut rows: Vec<_> = scores.iter().map(|(member, score)| (*score, member)).collect();
                rows.sort_unstable();
                let shown = |(score, member): (i64, &Vec<u8>)| {
                    [Reply::bulk(&**member), Reply::bulk(score.to_string())]
                };
                Reply::Array(rows.into_iter().flat_map(shown).collect())
            }
            None => Reply::Array(Vec::new()),
        }
    }

    /// Returns the first members between two scores, both included. No other range is asked for.
    fn zrangebyscore(&mut self, words: &[&[u8]]) -> Reply {
        let is_first = words[4].eq_ignore_ascii_case(b"limit") && words[5] == b"0";
        let range = score_bound(words[2]).zip(score_bound(words[3])).zip(integer(words[6]));
        let Some(((least, last), most)) = range.filter(|_| is_first) else {
            return Reply::error("ERR min or max is not a float");
        };
        match self.keyspace.value(words[1], self.now) {
            Some(Value::Text(_)) => Reply::error(WRONG_TYPE),
            Some(Value::Scores(scores)) => {
                let mut rows: Vec<_> = scores.iter().map(|(member, score)| (*score, member)).collect();
                rows.retain(|(score, _)| (least..=last).contains(score));
                rows.sort_unstable();
                let most = usize::try_from(most).unwrap_or_default();
                Reply::Array(rows.into_iter().take(most).map(|(_, member)| Reply::bulk(&**member)).collect())
            }
            None => Reply::Array(Vec::new()),
        }
    }

    fn zadd(&mut self, words: &[&[u8]]) -> Reply {
        let Some(score) = integer(words[2]) else { return Reply::error("ERR value is not a valid float") };
        let added = self.keyspace.change_scores(words[1], self.now, |scores| {
            i64::from(scores.insert(words[3].to_vec(), score).is_none())
        });
        added.map_or(Reply::error(WRONG_TYPE), Reply::Int)
    }

    fn zrem(&mut self, words: &[&[u8]]) -> Reply {
        let removed = self
            .keyspace
            .change_scores(words[1], self.now, |scores| i64::from(scores.remove(words[2]).is_some()));
        removed.map_or(Reply::error(WRONG_TYPE), Reply::Int)
    }

    /// Removes the members between two scores, both included.
    fn zremrangebyscore(&mut self, words: &[&[u8]]) -> Reply {
        let Some((least, most)) = score_bound(words[2]).zip(score_bound(words[3])) else {
            return Reply::error("ERR min or max is not a float");
        };
        let removed = self.keyspace.change_scores(words[1], self.now, |scores| {
            let before = scores.len();
            scores.retain(|_, score| !(least..=most).contains(score));
            i64::try_from(before - scores.len()).unwrap_or(i64::MAX)
        });
        removed.map_or(Reply::error(WRONG_TYPE), Reply::Int)
    }

    fn pexpire(&mut self, words: &[&[u8]]) -> Reply {
        match integer(words[2]).map(u64::try_from) {
            None => Reply::error(NOT_AN_INTEGER),
            Some(Err(_)) => Reply::Int(i64::from(self.keyspace.remove(words[1], self.now))),
            Some(Ok(span)) => Reply::Int(i64::from(self.keyspace.expire_in(words[1], span, self.now))),
        }
    }

    fn mget(&mut self, words: &[&[u8]]) -> Reply {
        Reply::Array(words[1..].iter().map(|key| self.text(key)).collect())
    }

    fn text(&self, key: &[u8]) -> Reply {
        self.keyspace.text(key, self.now).map_or(Reply::Nil, Reply::bulk)
    }

    fn set(&mut self, words: &[&[u8]]) -> Reply {
        let expires_in_ms = match &words[3..] {
            [] => None,
            [option, span] if option.eq_ignore_ascii_case(b"px") => match integer(span) {
                None => return Reply::error(NOT_AN_INTEGER),
                Some(span) => match u64::try_from(span) {
                    Ok(span) if span > 0 => Some(span),
                    _ => return Reply::error("ERR invalid expire time in 'set' command"),
                },
            },
            _ => return Reply::error(SYNTAX),
        };
        self.keyspace.set(words[1], words[2], expires_in_ms, self.now);
        Reply::ok()
    }

    fn del(&mut self, words: &[&[u8]]) -> Reply {
        let now = self.now;
        Reply::Int(words[1..].iter().map(|key| i64::from(self.keyspace.remove(key, now))).sum())
    }

    fn time(&mut self, _: &[&[u8]]) -> Reply {
        let parts = [self.now / 1_000_000, self.now % 1_000_000];
        Reply::Array(parts.iter().map(|part| Reply::bulk(part.to_string())).collect())
    }

    fn dbsize(&mut self, _: &[&[u8]]) -> Reply {
        self.keyspace.expire(self.now);
        Reply::Int(i64::try_from(self.keyspace.len()).unwrap_or(i64::MAX))
    }

    fn flushall(&mut self, _: &[&[u8]]) -> Reply {
        self.keyspace.clear();
        Reply::ok()
    }

    /// Publishes a message. How many receive it is not known here.
    fn publish(&mut self, words: &[&[u8]]) -> Reply {
        self.published.push(Published { channel: words[1].to_vec(), message: words[2].to_vec() });
        Reply::Int(0)
    }

    fn info(&mut self, words: &[&[u8]]) -> Reply {
        let server = format!(
            "# Server\r\nredis_version:7.2.4\r\nredis_mode:standalone\r\nrun_id:{}\r\ntcp_port:6379\r\n",
            self.run_id
        );
        let memory = "# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n";
        let wanted = |name: &str| {
            let is_it = |word: &&[u8]| {
                [name, "all", "everything", "default"]
                    .iter()
                    .any(|one| word.eq_ignore_ascii_case(one.as_bytes()))
            };
            words.len() == 1 || words[1..].iter().any(is_it)
        };
        let sections: Vec<&str> = [("server", &*server), ("memory", memory)]
            .iter()
            .filter(|one| wanted(one.0))
            .map(|one| one.1)
            .collect();
        Reply::bulk(sections.join("\r\n"))
    }
}

/// Reads a number as strictly as Redis does: no plus, no zeros in front, no blanks.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == text).then_some(number)
}

/// Reads a bound of scores.
fn score_bound(text: &[u8]) -> Option<i64> {
    match text {
        b"-inf" => Some(i64::MIN),
        b"+inf" => Some(i64::MAX),
        _ => integer(text),
    }
}
