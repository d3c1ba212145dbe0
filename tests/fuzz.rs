//! The targets of `fuzz/`, run on their corpus and on small mutations of it: so they run with every change, without a
//! fuzzer.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;

#[path = "../fuzz/connection.rs"]
mod connection;

/// The number of mutations of each input; fewer of whole connections, each of which takes some milliseconds.
const CHANGED: u64 = 3000;
const CONNECTIONS_CHANGED: u64 = 30;

type Target = (&'static str, fn(&[u8]), u64);

const TARGETS: [Target; 6] = [
    (
        "path",
        |bytes| {
            if let Ok(text) = std::str::from_utf8(bytes) {
                weir::proxy::fuzz::path(text);
            }
        },
        CHANGED,
    ),
    ("request", weir::proxy::fuzz::request, CHANGED),
    ("quota", weir::proxy::fuzz::quota, CHANGED),
    ("script_reply", weir::redis::fuzz::script_reply, CHANGED),
    (
        "configuration",
        |bytes| {
            if let Ok(text) = std::str::from_utf8(bytes)
                && let Err(error) = weir::config::parse(Path::new("weir.yaml"), text)
            {
                assert!(!error.problems.is_empty(), "a refusal says why");
            }
        },
        CHANGED,
    ),
    ("connection", connection::connection, CONNECTIONS_CHANGED),
];

/// Pseudo-random numbers, always the same (Marsaglia's xorshift).
struct Dice(u64);

impl Dice {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % (below.max(1) as u64)).unwrap()
    }
}

/// Returns the input with a few bytes replaced, removed or repeated.
fn changed(input: &[u8], dice: &mut Dice) -> Vec<u8> {
    const LIKELY: &[u8] = b"/.%;2fe5c\\:@,- \n\0\xff0";
    let mut bytes = input.to_vec();
    for _ in 0..=dice.next(4) {
        let at = dice.next(bytes.len());
        match dice.next(4) {
            0 if !bytes.is_empty() => bytes[at] = LIKELY[dice.next(LIKELY.len())],
            1 if !bytes.is_empty() => bytes.truncate(bytes.len() - dice.next(bytes.len().min(8))),
            2 => bytes.insert(at, LIKELY[dice.next(LIKELY.len())]),
            _ => {
                let piece = bytes[at..(at + dice.next(9)).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes
}

#[test]
fn the_corpus_and_its_mutations_pass_every_target() {
    for (name, target, mutations) in TARGETS {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
        let mut kept = 0;
        for entry in std::fs::read_dir(&corpus).unwrap() {
            let input = std::fs::read(entry.unwrap().path()).unwrap();
            target(&input);
            let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
            for _ in 0..mutations {
                target(&changed(&input, &mut dice));
            }
            kept += 1;
        }
        assert!(kept > 0, "nothing is kept for {name}");
    }
}
