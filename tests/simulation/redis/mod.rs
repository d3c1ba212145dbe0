//! A simulated Redis server: the commands that weir uses, its scripts in real Lua 5.1, and a clock that is given with every command.
//!
//! Nothing here depends on chance or on the machine's clock: the same commands at the same instants have the same replies. A server
//! knows no connections: who subscribed to what, and which replies arrive, is the network's.

pub(crate) mod calls;
mod keyspace;
mod msgpack;
mod packed;
pub(crate) mod parity;
mod real;
mod resp;
mod script;
pub(crate) mod scripts;
mod streams;
mod world;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use keyspace::Keyspace;
pub(crate) use keyspace::Snapshot;
pub(crate) use resp::{Commands, Input, Reply};
use script::Scripts;
use world::{Command, World, fits, integer};

/// The condition of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Nothing.
    #[default]
    Normal,
    /// It has no memory left: it reads, deletes and publishes.
    Full,
    /// It is a replica: it reads and publishes.
    ReadOnly,
    /// The script of somebody else runs on and on.
    Busy,
    /// It wants a password, which no client has.
    NoAuth,
}

/// A message for all who have subscribed to a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    /// The channel.
    pub(crate) channel: Vec<u8>,
    /// The message.
    pub(crate) message: Vec<u8>,
}

/// A server.
pub(crate) struct Server {
    /// Its condition.
    pub(crate) mode: Mode,
    world: Rc<RefCell<World>>,
    scripts: Scripts,
}

impl Server {
    /// Returns an empty server of a run, whose name is hexadecimal.
    ///
    /// # Panics
    ///
    /// Where Lua cannot be started: there is no memory.
    #[allow(clippy::expect_used, reason = "a simulation cannot go on without")]
    pub(crate) fn new(run_id: String) -> Server {
        let world = Rc::new(RefCell::new(World {
            keyspace: Keyspace::default(),
            mode: Mode::Normal,
            now: 0,
            run_id,
            published: Vec::new(),
            has_written: false,
        }));
        let scripts = Scripts::new(&world).expect("Lua starts");
        Server { mode: Mode::Normal, world, scripts }
    }

    /// Carries out a command at an instant of the server's clock. Returns the reply, and what was published meanwhile.
    pub(crate) fn execute(&mut self, command: &[Vec<u8>], now_micros: u64) -> (Reply, Vec<Published>) {
        {
            let mut world = self.world.borrow_mut();
            (world.mode, world.now, world.has_written) = (self.mode, now_micros, false);
        }
        let name = command.first().map(|name| name.to_ascii_lowercase()).unwrap_or_default();
        let reply = self.check(&name, command).unwrap_or_else(|| self.carry_out(&name, command));
        (reply, std::mem::take(&mut self.world.borrow_mut().published))
    }

    /// Returns why a command is not carried out at all.
    fn check(&self, name: &[u8], command: &[Vec<u8>]) -> Option<Reply> {
        let arity = match name {
            b"evalsha" | b"eval" => -3,
            b"script" | b"client" | b"auth" => -2,
            b"select" => 2,
            b"ping" | b"hello" | b"quit" | b"reset" => -1,
            name => match Command::find(name) {
                None => return Some(unknown(command)),
                Some(found) if !found.fits(command.len()) => isize::MAX,
                Some(_) => -1,
            },
        };
        if !fits(arity, command.len()) {
            let name = String::from_utf8_lossy(name);
            return Some(Reply::error(format!("ERR wrong number of arguments for '{name}' command")));
        }
        let is_let_in = matches!(name, b"auth" | b"hello" | b"quit" | b"reset");
        match self.mode {
            Mode::NoAuth if !is_let_in => Some(Reply::error("NOAUTH Authentication required.")),
            Mode::Busy if !is_let_in => Some(Reply::error(BUSY)),
            _ => None,
        }
    }

    fn carry_out(&mut self, name: &[u8], command: &[Vec<u8>]) -> Reply {
        match (name, &command[1..]) {
            (b"evalsha", [sha, rest @ ..]) => {
                let sha = String::from_utf8_lossy(sha).to_ascii_lowercase();
                if self.scripts.knows(&sha) {
                    self.run(&sha, rest)
                } else {
                    Reply::error("NOSCRIPT No matching script. Please use EVAL.")
                }
            }
            (b"eval", [source, rest @ ..]) => {
                if let Err(error) = keys_and_arguments(rest) {
                    return error;
                }
                self.scripts.load(source).map_or_else(|error| error, |sha| self.run(&sha, rest))
            }
            (b"script", rest) => self.script(rest),
            (b"ping", []) => Reply::Status("PONG".into()),
            (b"ping", [text]) => Reply::bulk(text),
            (b"hello", rest) => self.hello(rest),
            (b"auth", _) => {
                Reply::error(if self.mode == Mode::NoAuth { WRONG_PASSWORD } else { NO_PASSWORD })
            }
            (b"client", rest) => client(rest),
            (b"select" | b"quit" | b"reset", _) => Reply::ok(),
            (name, _) => match Command::find(name) {
                Some(found) => {
                    let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
                    self.world.borrow_mut().run(found, &words)
                }
                None => unknown(command),
            },
        }
    }

    fn run(&self, sha: &str, rest: &[Vec<u8>]) -> Reply {
        match keys_and_arguments(rest) {
            Ok((keys, arguments)) => self.scripts.run(sha, keys, arguments),
            Err(error) => error,
        }
    }

    fn script(&mut self, words: &[Vec<u8>]) -> Reply {
        match (words[0].to_ascii_lowercase().as_slice(), &words[1..]) {
            (b"flush", _) => {
                self.scripts.forget();
                Reply::ok()
            }
            (b"load", [source]) => self.scripts.load(source).map_or_else(|error| error, Reply::bulk),
            (b"exists", shas) => {
                let knows =
                    |sha: &Vec<u8>| self.scripts.knows(&String::from_utf8_lossy(sha).to_ascii_lowercase());
                Reply::Array(shas.iter().map(|sha| Reply::Int(i64::from(knows(sha)))).collect())
            }
            _ => Reply::error(
                "ERR unknown subcommand or wrong number of arguments for 'script'. Try SCRIPT HELP.",
            ),
        }
    }

    fn hello(&self, words: &[Vec<u8>]) -> Reply {
        let is_auth = |word: &Vec<u8>| word.eq_ignore_ascii_case(b"auth");
        match (words.first().map(Vec::as_slice), self.mode) {
            (Some(version), _) if version != b"2" => Reply::error("NOPROTO unsupported protocol version"),
            (_, Mode::NoAuth) if words.iter().any(is_auth) => Reply::error(WRONG_PASSWORD),
            (_, Mode::NoAuth) => Reply::error(HELLO_WITHOUT_PASSWORD),
            _ => {
                let text = |name: &str, value: &str| [Reply::bulk(name), Reply::bulk(value)];
                let number = |name: &str, value| [Reply::bulk(name), Reply::Int(value)];
                let fields = [
                    text("server", "redis"),
                    text("version", "7.2.4"),
                    number("proto", 2),
                    number("id", 1),
                    text("mode", "standalone"),
                    text("role", if self.mode == Mode::ReadOnly { "replica" } else { "master" }),
                    [Reply::bulk("modules"), Reply::Array(Vec::new())],
                ];
                Reply::Array(fields.into_iter().flatten().collect())
            }
        }
    }

    /// Returns the instructions of Lua of the longest script call.
    pub(crate) fn longest_script(&self) -> u64 {
        self.scripts.longest()
    }

    /// Removes all keys.
    pub(crate) fn flush(&mut self) {
        self.world.borrow_mut().keyspace.clear();
    }

    /// Removes a key.
    pub(crate) fn remove(&mut self, key: &[u8]) {
        self.world.borrow_mut().keyspace.remove(key, 0);
    }

    /// Keeps keys beyond their expiry, for comparison with a server whose time hardly passes.
    pub(crate) fn never_expire(&mut self) {
        self.world.borrow_mut().keyspace.never_expires = true;
    }

    /// Returns the keys that have not expired, ascending.
    pub(crate) fn keys(&self, now_micros: u64) -> Vec<Vec<u8>> {
        self.world.borrow().keyspace.keys(now_micros)
    }

    /// Returns the text of a key.
    pub(crate) fn get(&self, key: &[u8], now_micros: u64) -> Option<Arc<[u8]>> {
        self.world.borrow().keyspace.text(key, now_micros)
    }

    /// Returns the data.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.world.borrow().keyspace.snapshot()
    }

    /// Starts the server again, as another run: without its scripts, with the given data or none. What is wrong with it stays.
    pub(crate) fn restart(&mut self, run_id: String, data: Option<&Snapshot>) {
        self.scripts.forget();
        let mut world = self.world.borrow_mut();
        world.run_id = run_id;
        match data {
            Some(data) => world.keyspace.restore(data),
            None => world.keyspace.clear(),
        }
    }
}

const BUSY: &str = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. \
    Are you sure your configuration is correct?";
const HELLO_WITHOUT_PASSWORD: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
    HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version \
    at the same time";

/// Words of a command.
type Words<'a> = &'a [Vec<u8>];

/// Splits the words of a script call behind the script.
fn keys_and_arguments(words: &[Vec<u8>]) -> Result<(Words<'_>, Words<'_>), Reply> {
    let (count, rest) = words.split_first().ok_or_else(|| Reply::error("ERR syntax error"))?;
    let count = integer(count).ok_or_else(|| Reply::error("ERR value is not an integer or out of range"))?;
    let count = usize::try_from(count).map_err(|_| Reply::error("ERR Number of keys can't be negative"))?;
    rest.split_at_checked(count)
        .ok_or_else(|| Reply::error("ERR Number of keys can't be greater than number of args"))
}

/// Answers what a client library asks for when it connects.
fn client(words: &[Vec<u8>]) -> Reply {
    match words[0].to_ascii_lowercase().as_slice() {
        b"setinfo" | b"setname" | b"no-evict" | b"no-touch" => Reply::ok(),
        b"id" => Reply::Int(1),
        b"getname" => Reply::Nil,
        _ => {
            let name = String::from_utf8_lossy(&words[0]);
            Reply::error(format!("ERR unknown subcommand '{name}'. Try CLIENT HELP."))
        }
    }
}

/// Returns the error for a command that there is none of.
fn unknown(command: &[Vec<u8>]) -> Reply {
    /// How much of a command the error quotes.
    const QUOTED_MAX: usize = 128;
    let text = |word: &Vec<u8>| String::from_utf8_lossy(&word[..word.len().min(QUOTED_MAX)]).into_owned();
    let name = command.first().map(text).unwrap_or_default();
    let mut arguments = String::new();
    for word in command.iter().skip(1) {
        if arguments.len() >= QUOTED_MAX {
            break;
        }
        let word = text(word);
        let left = QUOTED_MAX - arguments.len();
        arguments += &format!("'{}' ", word.chars().take(left).collect::<String>());
    }
    Reply::error(format!("ERR unknown command '{name}', with args beginning with: {arguments}"))
}
