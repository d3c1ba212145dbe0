//! The Lua of a simulated server: scripts by their SHA-1, in the sandbox of Redis 7.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use mlua::chunk::ChunkMode;
use mlua::state::{GcIncParams, GcMode};
use mlua::{
    Error, Function, HookTriggers, IntoLua, Lua, LuaOptions, LuaString, MultiValue, Result, StdLib, Table,
    Value, VmState,
};

use crate::mutation;
use crate::redis::msgpack;
use crate::redis::resp::Reply;
use crate::redis::scripts::sha_of;
use crate::redis::world::World;

/// How far the heap grows before it is collected, in percent: what the scripts leave is garbage, and what lives is small.
const GC_PAUSE: i32 = 1000;

/// How often the instructions of a script are counted: each time costs as much as some of them.
const COUNTED_EACH: u32 = 500;

/// The name of a script's source.
const SOURCE: &str = "@user_script";

/// The globals of Lua that Redis leaves to scripts, without those that read a clock or chance.
const GLOBALS: &[&str] = &[
    "_VERSION",
    "assert",
    "error",
    "getmetatable",
    "ipairs",
    "next",
    "pairs",
    "rawequal",
    "rawget",
    "rawset",
    "select",
    "setmetatable",
    "string",
    "table",
    "math",
    "tonumber",
    "tostring",
    "type",
    "unpack",
    "xpcall",
];

/// The parts of the sandbox that are simpler in Lua. `pcall` returns errors of commands as texts, as Redis does.
const SANDBOX: &str = r#"
local env, reason_of = ...
local pcall, error, type, tostring = pcall, error, type, tostring
local function finish(is_ok, value, ...)
  if not is_ok then
    if type(value) == "userdata" then value = reason_of(value) end
    if type(value) == "table" and type(value.err) == "string" then value = value.err end
    return false, value
  end
  return true, value, ...
end
function env.pcall(...) return finish(pcall(...)) end
setmetatable(env, {
  __index = function(_, name) error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2) end,
  __newindex = function() error("Attempt to modify a readonly table", 2) end,
})
"#;

/// The scripts of a server, and the Lua that runs them.
pub(super) struct Scripts {
    lua: Lua,
    /// The globals of all scripts.
    env: Table,
    xpcall: Function,
    handler: Function,
    /// Every script that was ever compiled, by its SHA-1.
    compiled: BTreeMap<String, Function>,
    /// The SHA-1 of each of their texts: it takes longer than the comparison.
    shas: BTreeMap<Vec<u8>, String>,
    /// The scripts that the server knows at present.
    known: BTreeSet<String>,
    /// The instructions of all calls, and the most of one.
    instructions: Rc<Cell<u64>>,
    longest: Cell<u64>,
}

impl Scripts {
    pub(super) fn new(world: &Rc<RefCell<World>>) -> Result<Scripts> {
        let libraries = StdLib::STRING | StdLib::TABLE | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::new())?;
        lua.gc_set_mode(GcMode::Incremental(GcIncParams::default().pause(GC_PAUSE)));
        let (globals, env) = (lua.globals(), lua.create_table()?);
        for name in GLOBALS {
            env.raw_set(*name, globals.raw_get::<Value>(*name)?)?;
        }
        let math: Table = env.raw_get("math")?;
        math.raw_set("random", Value::Nil)?;
        math.raw_set("randomseed", Value::Nil)?;
        env.raw_set("_G", &env)?;
        env.raw_set("cmsgpack", msgpack::library(&lua)?)?;
        env.raw_set("redis", library(&lua, world)?)?;
        let reason_of = lua.create_function(|_, error: Error| Ok(reason(&error)))?;
        lua.load(SANDBOX).set_name("=redis").call::<()>((&env, reason_of))?;
        let xpcall = globals.raw_get("xpcall")?;
        let handler = lua.create_function(describe)?;
        let (compiled, shas, known) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let instructions = Rc::new(Cell::new(0));
        let counted = instructions.clone();
        lua.set_hook(HookTriggers::new().every_nth_instruction(COUNTED_EACH), move |_, _| {
            counted.set(counted.get() + u64::from(COUNTED_EACH));
            Ok(VmState::Continue)
        })?;
        let longest = Cell::new(0);
        Ok(Scripts { lua, env, xpcall, handler, compiled, shas, known, instructions, longest })
    }

    /// Forgets all scripts, as a server does that is started again.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    /// Returns true if a script is known by its SHA-1.
    pub(super) fn knows(&self, sha: &str) -> bool {
        self.known.contains(sha)
    }

    /// Returns the instructions of the longest call.
    pub(super) fn longest(&self) -> u64 {
        self.longest.get()
    }

    /// Makes a script known, with the mistake that was chosen. Returns the SHA-1 of its text, or the error in it.
    pub(super) fn load(&mut self, source: &[u8]) -> std::result::Result<String, Reply> {
        let sha = self.shas.get(source).cloned().unwrap_or_else(|| sha_of(&String::from_utf8_lossy(source)));
        if !self.compiled.contains_key(&sha) {
            let text = mutation::mutated(&String::from_utf8_lossy(source));
            let chunk = self.lua.load(text).set_name(SOURCE).set_mode(ChunkMode::Text);
            let compiled = chunk.set_environment(self.env.clone()).into_function();
            let function = compiled.map_err(|error| {
                Reply::error(format!("ERR Error compiling script (new function): {}", reason(&error)))
            })?;
            self.compiled.insert(sha.clone(), function);
            self.shas.insert(source.to_vec(), sha.clone());
        }
        self.known.insert(sha.clone());
        Ok(sha)
    }

    /// Runs a known script.
    pub(super) fn run(&self, sha: &str, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Reply {
        let Some(function) = self.compiled.get(sha) else { return Reply::error("ERR no such script") };
        self.result(sha, function, keys, arguments)
            .unwrap_or_else(|error| Reply::error(format!("ERR {error}")))
    }

    fn result(
        &self,
        sha: &str,
        function: &Function,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
    ) -> Result<Reply> {
        for (name, words) in [("KEYS", keys), ("ARGV", arguments)] {
            let texts = words.iter().map(|word| BytesRef(word));
            self.env.raw_set(name, self.lua.create_sequence_from(texts)?)?;
        }
        let before = self.instructions.get();
        let (is_ok, value): (bool, Value) = self.xpcall.call((function, &self.handler))?;
        self.longest.set(self.longest.get().max(self.instructions.get() - before));
        if is_ok {
            return reply(&value);
        }
        let Value::Table(error) = value else { return Ok(Reply::error("ERR execution failure")) };
        let text = error.raw_get::<LuaString>("err")?.to_string_lossy();
        let line: Option<usize> = error.raw_get("line")?;
        let place = line.map(|line| format!(" script: {sha}, on {SOURCE}:{line}."));
        Ok(Reply::Error(text + &place.unwrap_or_default()))
    }
}

/// Bytes that become a text of Lua.
struct BytesRef<'a>(&'a [u8]);

impl IntoLua for BytesRef<'_> {
    fn into_lua(self, lua: &Lua) -> Result<Value> {
        lua.create_string(self.0).map(Value::String)
    }
}

/// The error of a command, which `redis.call` raises.
#[derive(Debug)]
struct CommandError(String);

impl std::fmt::Display for CommandError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for CommandError {}

/// Returns the text of an error without the traces that mlua adds.
fn reason(error: &Error) -> String {
    match error {
        Error::CallbackError { cause, .. } => reason(cause),
        Error::RuntimeError(text) | Error::SyntaxError { message: text, .. } => text.clone(),
        other => other.to_string(),
    }
}

/// Makes an error table of what a script raised, with the line of the script, as the error handler of Redis does.
fn describe(lua: &Lua, raised: Value) -> Result<Table> {
    let lines = (1..).map_while(|level| {
        lua.inspect_stack(level, |frame| {
            let is_script = frame.source().source.is_some_and(|source| source == SOURCE);
            frame.current_line().filter(|_| is_script)
        })
    });
    let line = lines.flatten().next();
    let text = match raised {
        Value::Table(error) => {
            error.raw_set("line", line)?;
            return Ok(error);
        }
        Value::Error(error) if error.downcast_ref::<CommandError>().is_some() => reason(&error).into_bytes(),
        Value::Error(error) => {
            let place = line.map(|line| format!("{}:{line}: ", &SOURCE[1..])).unwrap_or_default();
            format!("ERR {place}{}", reason(&error)).into_bytes()
        }
        other => [b"ERR ", other.to_string()?.as_bytes()].concat(),
    };
    let error = error_table(lua, &text)?;
    error.raw_set("line", line)?;
    Ok(error)
}

fn error_table(lua: &Lua, text: &[u8]) -> Result<Table> {
    let table = lua.create_table_with_capacity(0, 3)?;
    table.raw_set("err", lua.create_string(text)?)?;
    Ok(table)
}

/// Returns the functions of `redis`.
fn library(lua: &Lua, world: &Rc<RefCell<World>>) -> Result<Table> {
    let library = lua.create_table()?;
    let single = |lua: &Lua, text: LuaString| lua.create_table_from([("ok", text)]);
    let add = |name: &str, function: Result<Function>| library.raw_set(name, function?);
    add("error_reply", lua.create_function(|lua, text: LuaString| error_reply(lua, &text.as_bytes())))?;
    add("status_reply", lua.create_function(move |lua, text| single(lua, text)))?;
    let (raising, other) = (world.clone(), world.clone());
    add(
        "call",
        lua.create_function(move |lua, words| match call(lua, &raising, &words)? {
            Reply::Error(text) => Err(Error::external(CommandError(text))),
            reply => value(lua, &reply),
        }),
    )?;
    add("pcall", lua.create_function(move |lua, words| value(lua, &call(lua, &other, &words)?)))?;
    Ok(library)
}

/// Returns an error table; a single word is no code, and becomes `ERR word`.
fn error_reply(lua: &Lua, text: &[u8]) -> Result<Table> {
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let code: &[u8] = if text.contains(&b' ') { b"" } else { b"ERR " };
    error_table(lua, &[code, text.trim_ascii_end()].concat())
}

/// Carries out the command of a script.
fn call(lua: &Lua, world: &RefCell<World>, words: &MultiValue) -> Result<Reply> {
    if words.is_empty() {
        return Ok(Reply::error("ERR Please specify at least one argument for this redis lib call"));
    }
    let mut texts = Vec::with_capacity(words.len());
    for word in words {
        texts.push(match word {
            Value::String(text) => text.clone(),
            Value::Integer(number) if number.unsigned_abs() < DIGITS_END => {
                lua.create_string(number.to_string())?
            }
            #[allow(clippy::cast_precision_loss, reason = "it was a float")]
            Value::Integer(number) => lua.create_string(digits(*number as f64))?,
            Value::Number(number) => lua.create_string(digits(*number))?,
            _ => return Ok(Reply::error("ERR Lua redis lib command arguments must be strings or integers")),
        });
    }
    let borrowed: Vec<_> = texts.iter().map(LuaString::as_bytes).collect();
    let slices: Vec<&[u8]> = borrowed.iter().map(|text| &**text).collect();
    Ok(world.borrow_mut().call(&slices))
}

/// The first number with more than 17 digits.
const DIGITS_END: u64 = 100_000_000_000_000_000;

/// Returns a number as `%.17g` prints it.
fn digits(number: f64) -> String {
    if !number.is_finite() {
        return number.to_string().to_lowercase();
    }
    let scientific = format!("{number:.16e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let short = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..17).contains(&exponent) {
        let places = usize::try_from(16 - exponent).unwrap_or_default();
        return short(&format!("{number:.places$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", short(mantissa), exponent.abs())
}

/// Returns a reply as a script sees it.
fn value(lua: &Lua, reply: &Reply) -> Result<Value> {
    let table = |name: &str, text: &str| {
        let table = lua.create_table()?;
        table.raw_set(name, text)?;
        Ok(Value::Table(table))
    };
    match reply {
        Reply::Status(text) => table("ok", text),
        Reply::Error(text) => table("err", text),
        Reply::Int(number) => Ok(Value::Integer(*number)),
        Reply::Bulk(bytes) => lua.create_string(bytes).map(Value::String),
        Reply::Nil => Ok(Value::Boolean(false)),
        Reply::Array(replies) => {
            let values: Vec<Value> = replies.iter().map(|reply| value(lua, reply)).collect::<Result<_>>()?;
            lua.create_sequence_from(values).map(Value::Table)
        }
    }
}

/// Returns the reply that a script's result becomes.
fn reply(result: &Value) -> Result<Reply> {
    Ok(match result {
        Value::String(text) => Reply::bulk(&*text.as_bytes()),
        Value::Boolean(true) => Reply::Int(1),
        Value::Integer(number) => Reply::Int(*number),
        #[allow(clippy::cast_possible_truncation, reason = "as Redis does it")]
        Value::Number(number) => Reply::Int(*number as i64),
        Value::Table(table) => {
            if let Value::String(text) = table.raw_get("err")? {
                return Ok(Reply::Error(text.to_string_lossy()));
            }
            if let Value::String(text) = table.raw_get("ok")? {
                return Ok(Reply::Status(text.to_string_lossy()));
            }
            let mut replies = Vec::new();
            for value in table.sequence_values::<Value>() {
                replies.push(reply(&value?)?);
            }
            Reply::Array(replies)
        }
        _ => Reply::Nil,
    })
}
