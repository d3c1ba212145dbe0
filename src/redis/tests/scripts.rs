//! The scripts compile and stay far from the limits of Lua 5.1.

use mlua::{Lua, LuaOptions, StdLib};

use crate::redis::script::script_texts;

/// The local variables of a main chunk at one instant; Lua allows 200.
const LOCALS_MAX: usize = 120;

/// The variables that a function takes from outside; Lua allows 60.
const UPVALUES_MAX: usize = 40;

/// Reads compiled code: a header of twelve bytes, then functions within functions (`ldump.c` of Lua 5.1).
struct Bytecode<'a> {
    rest: &'a [u8],
    upvalues_max: usize,
}

impl Bytecode<'_> {
    fn take(&mut self, count: usize) -> &[u8] {
        let (taken, rest) = self.rest.split_at(count);
        self.rest = rest;
        taken
    }

    fn int(&mut self) -> usize {
        u32::from_le_bytes(self.take(4).try_into().unwrap()) as usize
    }

    fn text(&mut self) {
        let size = usize::try_from(u64::from_le_bytes(self.take(8).try_into().unwrap())).unwrap();
        self.take(size);
    }

    /// Reads a function and those in it. Returns how many of its variables are alive at once at most.
    fn function(&mut self) -> usize {
        self.text();
        self.take(8);
        let upvalues = usize::from(self.take(4)[0]);
        self.upvalues_max = self.upvalues_max.max(upvalues);
        let code = self.int();
        self.take(4 * code);
        for _ in 0..self.int() {
            match self.take(1)[0] {
                0 => {}
                1 => drop(self.take(1)),
                3 => drop(self.take(8)),
                _ => self.text(),
            }
        }
        for _ in 0..self.int() {
            self.function();
        }
        let lines = self.int();
        self.take(4 * lines);
        let mut alive = vec![0_usize; code + 1];
        for _ in 0..self.int() {
            self.text();
            let (start, end) = (self.int(), self.int());
            alive[start..end].iter_mut().for_each(|count| *count += 1);
        }
        for _ in 0..self.int() {
            self.text();
        }
        alive.into_iter().max().unwrap_or_default()
    }
}

/// Panics unless a script stays far from the limits.
fn assert_far_from_the_limits(name: &str, source: &str) {
    let lua = Lua::new_with(StdLib::NONE, LuaOptions::default()).unwrap();
    let dump = lua.load(source).into_function().unwrap().dump(false);
    let mut bytecode = Bytecode { rest: &dump[12..], upvalues_max: 0 };
    let locals = bytecode.function();
    assert!(bytecode.rest.is_empty(), "{name}: the whole code was read");
    eprintln!("{name}: {locals} locals, {} upvalues", bytecode.upvalues_max);
    assert!(locals <= LOCALS_MAX, "{name}: {locals} locals");
    assert!(bytecode.upvalues_max <= UPVALUES_MAX, "{name}: {} upvalues", bytecode.upvalues_max);
}

#[test]
fn scripts_stay_far_from_the_limits_of_lua() {
    for (name, source) in script_texts() {
        assert_far_from_the_limits(name, &source);
    }
}

/// Returns a script with that many local variables, and a function that takes all or none of them from outside.
fn script_of(count: usize, is_used: bool) -> String {
    let names: Vec<String> = (0..count).map(|index| format!("v{index}")).collect();
    let used = if is_used { names.join(", ") } else { String::new() };
    format!("local {}\nreturn function() return {used} end", names.join(", "))
}

#[test]
fn as_much_as_is_allowed_passes() {
    assert_far_from_the_limits("locals", &script_of(LOCALS_MAX, false));
    assert_far_from_the_limits("upvalues", &script_of(UPVALUES_MAX, true));
}

#[test]
#[should_panic(expected = "made: 121 locals")]
fn a_local_variable_too_many_is_found() {
    assert_far_from_the_limits("made", &script_of(LOCALS_MAX + 1, false));
}

#[test]
#[should_panic(expected = "made: 41 upvalues")]
fn an_upvalue_too_many_is_found() {
    assert_far_from_the_limits("made", &script_of(UPVALUES_MAX + 1, true));
}
